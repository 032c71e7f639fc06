//! The finished tables that a failed or cancelled attempt leaves to the next attempt of the same
//! job.
//!
//! A [`Handover`] is part of the context of all attempts of one job. An attempt that ends without
//! an outcome leaves its finished, synced tables there, with the point at which each subjob
//! continues: the first key of its next table and the layout's sums at that key. The next attempt
//! takes the tables, verifies them like foreign tables, gives them its own names, and begins after
//! them. [`Handover::end`] closes the handover and returns the names of the tables in it, which the
//! caller deletes. An attempt that returns after that leaves nothing.
//!
//! Invariants: only a job of the same identity is continued: its bytes are equal except for the
//! output prefix, so its tables are equal too. An attempt leaves nothing if any of its syncs failed
//! (a read may not show what the sync lost), if it found no room (its tables would take room that
//! other files need), or if its task panicked. Tables in a handover have the names of an attempt
//! that has ended, and nothing refers to them.
//!
//! Threading: one attempt at a time uses it, but an abandoned attempt may return while the next one
//! runs. A runtime mutex; no I/O under it.

use siltstone_storage::{Mutex, Runtime};

use super::part::Part;

#[derive(Default)]
struct Left {
    job: u128,
    parts: Vec<Part>,
    adopted: u64,
    is_closed: bool,
}

impl Left {
    /// Empties the list, and returns the names of the tables that were in it.
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
    /// An empty handover for a new job.
    pub fn new(runtime: &Runtime) -> Handover {
        Handover {
            left: runtime.mutex(Left::default()),
        }
    }

    /// The number of tables that the last attempt left.
    pub fn left_count(&self) -> usize {
        self.left.lock().parts.iter().map(|p| p.tables.len()).sum()
    }

    /// The number of tables that attempts took over from earlier ones.
    pub fn adopted_count(&self) -> u64 {
        self.left.lock().adopted
    }

    /// Closes the handover: no further attempt takes or leaves tables. Returns the names of the
    /// tables in it, which the caller deletes.
    pub fn end(&self) -> Vec<String> {
        let mut left = self.left.lock();
        left.is_closed = true;
        left.take_names()
    }

    /// Takes the tables that were left for the job of this identity. If they were left for another
    /// job, returns their names, and the caller deletes them.
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

    /// Leaves finished tables to the next attempt. Returns the names of the tables that no attempt
    /// will take, which the caller deletes. These are all tables if the handover is closed.
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
