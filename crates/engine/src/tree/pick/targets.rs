//! The settings of compactions and the targets of the levels, fixed or dynamic, which decide when a
//! level is due.
//!
//! Threading: plain values and pure functions.

use super::*;
use crate::types::options::{
    ByLevel, Compression, KeyspaceSettings, LevelTargets, Options, StallPolicy,
};

/// The settings that decide when and how much to compact. Sizes are in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PickOptions {
    /// The number of level-0 runs at which a compaction is due.
    pub l0_trigger_count: usize,
    /// The number of level-0 runs at which newer runs are merged with each other while older ones
    /// cannot move down.
    pub l0_intra_count: usize,
    /// The number that takes the place of `l0_intra_count`, if it is larger, while the keyspace has
    /// other work. A merge within level 0 writes its tables one more time than necessary, and the
    /// older runs may be able to move down as soon as that work ends.
    pub l0_intra_busy_count: usize,
    /// The minimum number of runs that a merge within level 0 takes.
    pub l0_intra_min_count: usize,
    /// Level 0 takes any number of runs (`stall_policy` is `redirect`). What then counts for merges
    /// within level 0 is its depth, and they may be larger than `max_job_bytes`.
    pub redirects: bool,
    /// The target size of level 1.
    pub level1_bytes: u64,
    /// How many times larger the target of each further level is.
    pub level_factor: u64,
    /// The target size of a table in raw bytes (T).
    pub table_bytes: u64,
    /// The largest job, in input bytes. A single table with the tables that it overlaps may exceed
    /// it.
    pub max_job_bytes: u64,
    /// A table that overlaps more tables than this two levels below is merged and not moved.
    pub max_grandparent_count: usize,
    /// How the targets of levels are chosen.
    pub level_targets: LevelTargets,
    /// The compression of each level. A table is not moved unchanged to a level with another
    /// compression.
    pub compression: ByLevel<Compression>,
    /// Tables that jobs have reserved do not make a level due.
    pub first_score: bool,
    /// The table with the fewest overlaps below goes first, and not the first one of the level.
    pub second_score: bool,
    /// A job may go through a level that is due itself to the level below it.
    pub three_levels: bool,
    /// Tables of which lookups have read as many bytes in vain as a compaction of them reads and
    /// writes go down, although their level is not due.
    pub seek_compaction: bool,
}

/// With `redirect`, runs of level 0 merge with each other from this depth on.
const L0_DEPTH_COUNT: usize = 12;

impl Default for PickOptions {
    fn default() -> PickOptions {
        PickOptions {
            l0_trigger_count: 4,
            l0_intra_count: 6,
            l0_intra_busy_count: 0,
            l0_intra_min_count: 3,
            redirects: false,
            level1_bytes: 256 << 20,
            level_factor: 10,
            table_bytes: 64 << 20,
            max_job_bytes: 25 * (64 << 20),
            max_grandparent_count: 40,
            level_targets: LevelTargets::Fixed,
            compression: Compression::None.into(),
            first_score: true,
            second_score: true,
            three_levels: false,
            seek_compaction: true,
        }
    }
}

impl PickOptions {
    /// What picks need to know of the settings of a keyspace and of the options of its store.
    pub fn of(settings: &KeyspaceSettings, options: &Options) -> PickOptions {
        let schedule = &options.schedule;
        let redirects = options.stall_policy == StallPolicy::Redirect;
        let slowdown = settings.l0_slowdown_count as usize;
        PickOptions {
            l0_trigger_count: settings.l0_trigger_count as usize,
            // The number of runs at which writers are slowed down. With `redirect` nobody is, so
            // reads decide.
            l0_intra_busy_count: match redirects {
                true => slowdown.min(L0_DEPTH_COUNT),
                false => slowdown,
            },
            redirects,
            level1_bytes: settings.level1_bytes,
            level_factor: settings.level_factor.into(),
            table_bytes: settings.table_bytes,
            max_job_bytes: 25 * settings.table_bytes,
            level_targets: settings.level_targets,
            compression: settings.compression,
            first_score: schedule.first_score,
            second_score: schedule.second_score,
            three_levels: schedule.three_levels,
            seek_compaction: schedule.seek_compaction,
            ..PickOptions::default()
        }
    }

    /// The fixed target of a level in bytes. Level 0 has none, because its runs are counted.
    pub(super) fn fixed_target_bytes(&self, level: u8) -> u64 {
        match level {
            0 => 0,
            _ => self.level1_bytes.max(1).saturating_mul(
                self.level_factor
                    .max(1)
                    .saturating_pow(u32::from(level) - 1),
            ),
        }
    }
}

/// The level into which level 0 is merged, and the targets of the levels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Targets {
    /// The level into which level 0 moves down. The levels between are empty, and no job makes
    /// tables there.
    pub base: u8,
    /// The first level that is needed. Levels above it that have data (after a change of the
    /// settings, or after many deletes) are emptied.
    pub first_needed: u8,
    /// Target bytes by level. Level 0 has none.
    pub bytes: [u64; LEVEL_COUNT],
}

/// The targets for a version. `jobs` has the reservations of compactions that have not ended, which
/// say where they make tables.
///
/// Dynamic targets: the size of the largest level is taken as that of the deepest one. From there
/// upwards each level has a target `level_factor` times smaller, until one is not larger than
/// `level1_bytes`. So nine tenths of the data are on the deepest level, and about a tenth of the
/// data is obsolete.
pub fn targets(version: &KeyspaceVersion, options: &PickOptions, jobs: &[Reservation]) -> Targets {
    let mut bytes = [0; LEVEL_COUNT];
    if options.level_targets == LevelTargets::Fixed {
        for (level, bytes) in (0..).zip(&mut bytes) {
            *bytes = options.fixed_target_bytes(level);
        }
        return Targets {
            base: 1,
            first_needed: 1,
            bytes,
        };
    }
    let (factor, least) = (options.level_factor.max(2), options.level1_bytes.max(1));
    let mut size = version
        .levels()
        .map(|(_, level)| level.file_bytes())
        .max()
        .unwrap_or(0);
    let mut first_needed = BOTTOM_LEVEL;
    while first_needed > 1 && size > least {
        first_needed -= 1;
        size /= factor;
    }
    for level in first_needed..=BOTTOM_LEVEL {
        bytes[usize::from(level)] = size.max(least);
        size = size.saturating_mul(factor);
    }
    // The base is not below a level that has tables or will have some.
    let made = jobs
        .iter()
        .filter_map(|job| job.spans.iter().map(|(level, _)| *level).max());
    let held = version
        .levels()
        .filter(|(_, tables)| !tables.is_empty())
        .map(|(level, _)| level);
    let base = made
        .chain(held)
        .filter(|level| *level > 0)
        .fold(first_needed, u8::min);
    Targets {
        base,
        first_needed,
        bytes,
    }
}
