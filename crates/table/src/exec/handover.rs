//! What a failed or cancelled attempt leaves to the next attempt of the identical job.
//!
//! What it is: a [`Handover`] stands in the context of all attempts of one job. An attempt that ends without an outcome leaves its finished,
//! synced tables there, with the place where each subjob goes on: the first key of its next table and the layout's sums there. The next attempt
//! takes them, reads and verifies them as tables from outside, gives them its own names, and begins behind them. Whoever ends the matter deletes
//! what is left.
//!
//! Invariants: only a job of the same identity is gone on with: its bytes are equal but for the output prefix, so its tables are. Nothing is left
//! by an attempt in which any sync failed (what a failed sync lost need not show when it is read), that found no room (its tables would keep
//! what others need), or whose task panicked. Tables in a handover have the names of an attempt that is over; nothing refers to them.
//!
//! Threading: one attempt at a time has it; a runtime mutex, no I/O under it.

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

    /// Ends the matter: the names of what was left, to be deleted.
    pub fn end(&self) -> Vec<String> {
        let parts = std::mem::take(&mut self.left.lock().parts);
        let tables = parts.into_iter().flat_map(|p| p.tables);
        tables.map(|t| t.name).collect()
    }

    /// What was left for the job of this identity; of another one, only the names.
    pub(super) fn take(&self, job: u128) -> Result<Vec<Part>, Vec<String>> {
        if self.left.lock().job != job {
            return Err(self.end());
        }
        Ok(std::mem::take(&mut self.left.lock().parts))
    }

    pub(super) fn adopted(&self, count: usize) {
        self.left.lock().adopted += count as u64;
    }

    pub(super) fn leave(&self, job: u128, parts: Vec<Part>) {
        let mut left = self.left.lock();
        (left.job, left.parts) = (job, parts);
    }
}
