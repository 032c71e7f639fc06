//! Counts what a job did, and emits its events.
//!
//! Threading: the task that has done the work, without a lock.

use std::sync::Arc;

use siltstone_storage::Instant;
use siltstone_table::job::outcome::Counters;

use crate::env::Env;
use crate::formats::version::TableMeta;
use crate::jobs::Jobs;
use crate::jobs::schedule;
use crate::jobs::work::{Compaction, Reason, What, Work};
use crate::tree::pick::{Choice, ChoiceKind};
use crate::types::event::Event;

/// What a piece of work made, once it is installed.
pub(super) struct Made {
    pub(super) counters: Counters,
    pub(super) tables: Vec<Arc<TableMeta>>,
    /// Bytes of the tables that a job wrote.
    pub(super) out_bytes: u64,
}

impl Jobs {
    /// Reports that a job begins on another side.
    pub(crate) fn report_placed(&self, work: &Work) {
        self.env.events().emit(|| {
            let (executor, side) = self.runner.sides.name_of(work.placed.side);
            Event::JobPlaced {
                keyspace: work.keyspace.name.clone(),
                kind: work.kind().word(),
                in_bytes: work.bytes(),
                executor,
                side,
                placement: work.placement(),
            }
        });
    }

    /// Emits the events of the tables that a job made, once they are installed. A move makes no
    /// tables.
    pub(super) fn report_tables(&self, work: &Work, tables: &[Arc<TableMeta>]) {
        let level = match &work.what {
            What::Flush(_) => 0,
            What::Compaction(compaction) if compaction.is_edit() => return,
            What::Compaction(compaction) => compaction.choice.to,
        };
        for table in tables {
            let created = || table.created(&work.keyspace.name, level);
            self.env.events().emit(created);
        }
    }

    fn count_compaction(&self, compaction: &Compaction, made: &Made) {
        let choice = &compaction.choice;
        if compaction.reason == Reason::Deletes && gave_nothing_back(choice, &made.tables) {
            schedule::remember_unproductive(self, &made.tables);
        }
        count_dropped(&self.env, &made.counters);
        let m = self.env.metrics();
        m.compaction_in_bytes.add(choice.input_bytes);
        m.compaction_out_bytes.add(made.out_bytes);
        m.compaction_count.add(1);
        if choice.kind == ChoiceKind::IntraL0 {
            m.intra_l0_count.add(1);
        }
        if choice.by_seeks {
            m.seek_compaction_count.add(1);
        }
        match compaction.reason {
            Reason::Due => 0,
            Reason::Deletes => m.delete_compaction_count.add(1),
            Reason::Manual => m.manual_count.add(1),
        };
    }

    /// Counts a flush that was installed, and emits its event.
    pub(super) fn report_flush(&self, work: &Work, made: &Made, start: Instant) {
        let env = &self.env;
        count_dropped(env, &made.counters);
        let in_bytes = made.counters.raw_bytes_read;
        let m = env.metrics();
        m.flush_in_bytes.add(in_bytes);
        let took = env.now().since(start);
        m.flush_out_bytes.add(made.out_bytes);
        m.flush_count.add(1);
        m.flush_time.record(took);
        tracing::debug!(
            in_bytes,
            out_bytes = made.out_bytes,
            table_count = made.tables.len(),
            duration_us = took.as_micros() as u64,
            "flushed"
        );
        env.events().emit(|| {
            let (executor, side) = self.runner.sides.name_of(work.placed.side);
            Event::Flushed {
                keyspace: work.keyspace.name.clone(),
                in_bytes,
                out_bytes: made.out_bytes,
                table_count: made.tables.len() as u64,
                duration_us: took.as_micros() as u64,
                executor,
                side,
            }
        });
    }

    /// Counts a compaction that was installed, and emits its event.
    pub(super) fn report_compaction(
        &self,
        work: &Work,
        compaction: &Compaction,
        made: &Made,
        start: Instant,
    ) {
        let (env, choice) = (&self.env, &compaction.choice);
        let m = env.metrics();
        match choice.kind {
            ChoiceKind::TrivialMove => {
                m.trivial_move_count.add(1);
            }
            ChoiceKind::Drop => {
                m.dropped_table_count.add(choice.tables().count() as u64);
            }
            _ => self.count_compaction(compaction, made),
        }
        // Tables that are dropped as a whole are not read.
        let read = choice.tables().filter(|_| !compaction.is_edit());
        for table in read.filter(|table| table.location != 0) {
            m.returned_table_count.add(1);
            m.returned_table_bytes.add(table.file_bytes);
        }
        let took = env.now().since(start);
        if !compaction.is_edit() {
            m.compaction_time.record(took);
        }
        tracing::debug!(
            out_bytes = made.out_bytes,
            out_table_count = made.tables.len(),
            duration_us = took.as_micros() as u64,
            "compacted"
        );
        env.events().emit(|| {
            let (executor, side) = self.runner.sides.name_of(work.placed.side);
            Event::Compacted {
                keyspace: work.keyspace.name.clone(),
                reason: choice.reason.clone(),
                from_level: choice.from,
                to_level: choice.to,
                in_table_count: choice.tables().count() as u64,
                in_bytes: choice.input_bytes,
                out_table_count: made.tables.len() as u64,
                out_bytes: made.out_bytes,
                duration_us: took.as_micros() as u64,
                executor,
                side,
                placement: work.placement(),
            }
        });
    }
}

/// Whether tables that were rewritten in place have as many tombstones as before. (Tables that move
/// down a level come closer to what their tombstones delete.)
fn gave_nothing_back(choice: &Choice, outputs: &[Arc<TableMeta>]) -> bool {
    let count = |t: &Arc<TableMeta>| t.deletes + t.range_deletes;
    let before: u64 = choice.tables().map(count).sum();
    choice.kind == ChoiceKind::Rewrite && outputs.iter().map(count).sum::<u64>() >= before
}

/// Adds what a job dropped to the store's counts.
fn count_dropped(env: &Env, counters: &Counters) {
    let m = env.metrics();
    m.dropped_shadowed_count.add(counters.shadowed);
    m.dropped_tombstone_count.add(counters.tombstones);
    m.dropped_covered_count.add(counters.covered);
    m.dropped_fragment_count.add(counters.fragments_dropped);
}
