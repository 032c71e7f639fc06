//! Collects the input of a job: the version, the settings, and the published number with the
//! snapshots, which are read together.
//!
//! Threading: any task; no lock is held.

use std::cell::Cell;

use siltstone_table::exec::Handover;
use siltstone_table::job::{DropRules, Job};

use crate::formats::version::{KeyRange, KeyspaceVersion, TableMeta};
use crate::jobs::Jobs;
use crate::jobs::begun::Begun;
use crate::jobs::build::{CompactionSpec, FlushSpec};
use crate::jobs::choice::Answer;
use crate::jobs::sides::SideId;
use crate::jobs::work::{Compaction, What};
use crate::tree::pick::{Division, older_ranges, soft_cuts, targets};
use crate::tree::settings::Settings;
use crate::tree::view::{KeyspaceCore, MemSource};

impl Jobs {
    /// Asks the sides whether they would run the job of picked work. Must not be called under a
    /// lock.
    pub(super) fn ask_sides(&self, keyspace: &KeyspaceCore, what: &What) -> Vec<Answer> {
        let job = match what {
            What::Flush(source) => {
                let settings = keyspace.load_settings();
                self.runner
                    .flush_job(&self.flush_spec(keyspace, source, &settings))
            }
            What::Compaction(compaction) => {
                Some(self.compaction_job(keyspace, compaction, Division::Equal(1)))
            }
        };
        match job {
            Some(job) => self.runner.sides.ask(&job),
            // The memtable is empty, so there is nothing to execute.
            None => self.runner.sides.nobody(),
        }
    }

    /// The input of a flush job.
    pub(super) fn flush_spec<'a>(
        &self,
        keyspace: &KeyspaceCore,
        source: &'a MemSource,
        settings: &'a Settings,
    ) -> FlushSpec<'a> {
        let (published, snapshots) = self.tree.snapshots().for_job();
        // A level-0 run is divided at the table boundaries of the base level, so that each of its
        // tables overlaps few tables there.
        let version = keyspace.view().version.clone();
        let base = targets(&version, &settings.pick, &[]).base;
        FlushSpec {
            keyspace: keyspace.id,
            settings: &settings.all,
            mem: &source.mem,
            published,
            snapshots,
            soft_cuts: base_cuts(&version, base, source),
        }
    }

    pub(super) fn begin_compaction(
        &self,
        keyspace: &KeyspaceCore,
        compaction: &Compaction,
        side: SideId,
    ) -> Begun {
        let tables = compaction.choice.tables().cloned().collect();
        let inputs = self.tree.tables().inputs(tables);
        let division = self.runner.division(side);
        let mut job = self.compaction_job(keyspace, compaction, division);
        if self.keeps_all(keyspace, compaction, side) {
            job.rules = DropRules::QUICK;
        }
        Begun::compaction(job, inputs, Handover::new(self.env.runtime()))
    }

    /// Whether a compaction drops nothing because the side wants it so at this level. What merges
    /// into the last level always drops what it may, so what was kept above is dropped in the end.
    fn keeps_all(&self, keyspace: &KeyspaceCore, compaction: &Compaction, side: SideId) -> bool {
        let (version, to) = (&compaction.version, compaction.choice.to);
        if side == self.runner.sides.host() || version.deepest_level().is_none_or(|d| d <= to) {
            return false;
        }
        let settings = keyspace.load_settings();
        let base = targets(version, &settings.pick, &[]).base;
        let depth = u32::from((to + 1).saturating_sub(base));
        depth > 0 && !self.runner.sides.drops_into(side, depth)
    }

    /// The job of a compaction.
    fn compaction_job(
        &self,
        keyspace: &KeyspaceCore,
        compaction: &Compaction,
        division: Division,
    ) -> Job {
        let Compaction {
            choice,
            version,
            unsettled,
            ..
        } = compaction;
        let (published, snapshots) = self.tree.snapshots().for_job();
        let older = older_ranges(version, choice, unsettled);
        let settings = keyspace.load_settings();
        let spec = CompactionSpec {
            version,
            settings: &settings.all,
            choice,
            published,
            snapshots,
            older,
        };
        let is_away = Cell::new(false);
        let anchors = |table: &TableMeta| self.tree.tables().anchors(table, &is_away);
        self.runner.compaction_job(&spec, division, &anchors)
    }
}

/// The keys at which a table of the level above the base level should end, within the keys of a
/// memtable.
fn base_cuts(version: &KeyspaceVersion, base: u8, source: &MemSource) -> Vec<Vec<u8>> {
    let (Some(first), Some(last)) = (source.mem.first_key(), source.mem.last_key()) else {
        return Vec::new();
    };
    let range = KeyRange::closed(first, last);
    let cuts = soft_cuts(version, base - 1, &range);
    let mut cuts: Vec<Vec<u8>> = cuts.into_iter().map(Vec::from).collect();
    cuts.dedup();
    cuts
}
