//! What a failed or cancelled attempt leaves to the next attempt of the identical job.
//!
//! A [`Handover`] stands in the context of all attempts of one job. An attempt that ends without an
//! outcome leaves its finished, synced tables there, with the place where each subjob goes on: the
//! first key of its next table and the layout's sums there. The next attempt takes them, verifies
//! them as tables from outside, gives them its own names, and begins behind them. [`Handover::end`]
//! closes the handover and names what is left in it, so that the caller deletes that; an attempt
//! that returns later leaves nothing.
//!
//! Invariants: only a job of the same identity is continued: its bytes are equal but for the
//! output prefix, so its tables are. Nothing is left by an attempt in which any sync failed (what a
//! failed sync lost need not show when it is read), that found no room (its tables would take the
//! room that others need), or whose task panicked. Tables in a handover have the names of an
//! attempt that is over; nothing refers to them.
//!
//! Threading: one attempt at a time uses it, but one that was given up may return beside the next
//! one. A runtime mutex; no I/O under it.

use siltstone_storage::{Mutex, Runtime};

use crate::job::outcome::{Counters, OutputTable};
use crate::layout::LayoutState;

/// Where a subjob goes on.
#[derive(Clone, Debug)]
pub(super) enum Point {
    /// At its first entry.
    Start,
    /// At the first entry of a table.
    Table {
        /// The layout there.
        layout: LayoutState,
        /// Where the table's range begins.
        left_bound: Vec<u8>,
        /// What was read and dropped before it.
        counters: Counters,
    },
    /// Nowhere: this is what all of it read and dropped.
    End(Counters),
}

/// The finished tables of a subjob.
#[derive(Clone, Debug)]
pub(super) struct Part {
    pub subjob: u32,
    pub tables: Vec<OutputTable>,
    pub next: Point,
}

impl Part {
    pub fn new(subjob: u32) -> Part {
        Part {
            subjob,
            tables: Vec::new(),
            next: Point::Start,
        }
    }
}

#[derive(Default)]
struct Left {
    job: u128,
    parts: Vec<Part>,
    adopted: u64,
    is_closed: bool,
}

impl Left {
    /// Empties it; the names of the tables that were in it.
    fn take_names(&mut self) -> Vec<String> {
        let parts = std::mem::take(&mut self.parts);
        let tables = parts.into_iter().flat_map(|part| part.tables);
        tables.map(|table| table.name).collect()
    }
}

/// See the module.
pub struct Handover {
    left: Mutex<Left>,
}

impl Handover {
    /// For a new job.
    pub fn new(runtime: &Runtime) -> Handover {
        Handover {
            left: runtime.mutex(Left::default()),
        }
    }

    /// Tables that the last attempt left.
    pub fn left_count(&self) -> usize {
        self.left.lock().parts.iter().map(|p| p.tables.len()).sum()
    }

    /// Tables that attempts took over from those before them.
    pub fn adopted_count(&self) -> u64 {
        self.left.lock().adopted
    }

    /// Closes the handover: no further attempt takes or leaves anything. Gives the names of the
    /// tables that were left, which the caller deletes.
    pub fn end(&self) -> Vec<String> {
        let mut left = self.left.lock();
        left.is_closed = true;
        left.take_names()
    }

    /// Takes what was left for the job of this identity. If it was left for another job, gives the
    /// names of the tables, which the caller deletes.
    pub(super) fn take(&self, job: u128) -> Result<Vec<Part>, Vec<String>> {
        let mut left = self.left.lock();
        if left.job != job {
            return Err(left.take_names());
        }
        Ok(std::mem::take(&mut left.parts))
    }

    pub(super) fn adopted(&self, count: usize) {
        self.left.lock().adopted += count as u64;
    }

    /// Leaves finished tables to the next attempt. Gives the names of those that no attempt will
    /// take, which the caller deletes: all of them if the handover is closed.
    #[must_use]
    pub(super) fn leave(&self, job: u128, parts: Vec<Part>) -> Vec<String> {
        let mut left = self.left.lock();
        (left.job, left.parts) = (job, parts);
        if left.is_closed {
            return left.take_names();
        }
        Vec::new()
    }
}
