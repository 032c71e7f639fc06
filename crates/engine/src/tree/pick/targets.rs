//! What decides when a level is due: settings of compaction, and the targets of the levels, fixed or dynamic.
//!
//! Threading: plain values and pure functions.

use super::*;
use crate::types::options::{ByLevel, Compression, KeyspaceSettings, LevelTargets};

/// What decides when and how much to compact. Sizes in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PickOptions {
    /// Level-0 runs that make a compaction due.
    pub l0_trigger_count: usize,
    /// Level-0 runs from which on newer runs are merged among themselves while older ones cannot move down.
    pub l0_intra_count: usize,
    /// Fewest runs that a merge within level 0 takes.
    pub l0_intra_min_count: usize,
    /// Target size of level 1.
    pub level1_bytes: u64,
    /// How many times larger each further level is.
    pub level_factor: u64,
    /// Target raw size of a table (T).
    pub table_bytes: u64,
    /// Largest job, in input bytes; a single table and what it overlaps may exceed it.
    pub max_job_bytes: u64,
    /// A table that overlaps more tables than this, two levels below, is cut anew instead of moved.
    pub max_grandparent_count: usize,
    /// How targets of levels are found.
    pub level_targets: LevelTargets,
    /// How tables of each level are compressed: a table does not move as it is to a level that is compressed otherwise.
    pub compression: ByLevel<Compression>,
}

impl Default for PickOptions {
    fn default() -> PickOptions {
        PickOptions {
            l0_trigger_count: 4,
            l0_intra_count: 6,
            l0_intra_min_count: 3,
            level1_bytes: 256 << 20,
            level_factor: 10,
            table_bytes: 64 << 20,
            max_job_bytes: 25 * (64 << 20),
            max_grandparent_count: 40,
            level_targets: LevelTargets::Fixed,
            compression: Compression::None.into(),
        }
    }
}

impl PickOptions {
    /// What a keyspace with these settings asks for.
    pub fn of(settings: &KeyspaceSettings) -> PickOptions {
        PickOptions {
            l0_trigger_count: settings.l0_trigger_count as usize,
            level1_bytes: settings.level1_bytes,
            level_factor: settings.level_factor.into(),
            table_bytes: settings.table_bytes,
            max_job_bytes: 25 * settings.table_bytes,
            level_targets: settings.level_targets,
            compression: settings.compression,
            ..PickOptions::default()
        }
    }

    /// Fixed target bytes of a level; level 0 has none (it is counted in runs).
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

/// Where level 0 goes, and what the levels are to hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Targets {
    /// The level that level 0 goes down to. Those between are empty, and no job makes tables there.
    pub base: u8,
    /// The first level that is needed. What lies above it (after a change of the settings, or when much was deleted) drains.
    pub first_needed: u8,
    /// Target bytes by level; level 0 has none.
    pub bytes: [u64; LEVEL_COUNT],
}

/// The targets of a version, given what its queued and running jobs make.
///
/// Dynamic ones: whatever level is the largest is taken for the deepest one's content; from there upwards each level needs `level_factor` times
/// less, until one is no larger than `level1_bytes`. So nine tenths of the data lie on the deepest level, and what is out of date is about a tenth.
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
    // Nothing is put below what is there or about to be there.
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
