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
//! An executor outside this crate uses it with [`Handover::take`], [`Handover::note_adopted`] and
//! [`Handover::leave`]. An executor whose attempts run on another machine takes the parts when an
//! attempt begins, and sends them with the job. The other machine gives its attempt a handover of
//! its own that contains them ([`Handover::with_parts`]). If the attempt ends without an outcome,
//! the executor leaves the parts that the other machine last reported ([`super::PartListener`]).
//!
//! Invariants: only a job of the same identity is continued: its bytes are equal except for the
//! output prefix, so its tables are equal too. An attempt leaves nothing if any of its syncs failed
//! (a read may not show what the sync lost), if it found no room (its tables would take room that
//! other files need), if it lost its lease (the files may belong to another writer), or if its task
//! panicked. Tables in a handover have the names of an attempt that has ended, and nothing refers
//! to them.
//!
//! Threading: one attempt at a time uses it, but an abandoned attempt may return while the next one
//! runs. It has a runtime mutex, and no I/O is done under it.

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

    /// The names of the tables that the last attempt left.
    pub fn left_names(&self) -> Vec<String> {
        let left = self.left.lock();
        let tables = left.parts.iter().flat_map(|part| &part.tables);
        tables.map(|table| table.name.clone()).collect()
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

    /// A handover that contains these parts of the job with this identity, for an attempt that
    /// continues after them. The rules of [`Handover::leave`] apply to them.
    pub fn with_parts(runtime: &Runtime, job: u128, parts: Vec<Part>) -> Handover {
        let left = Left {
            job,
            parts,
            ..Left::default()
        };
        Handover {
            left: runtime.mutex(left),
        }
    }

    /// Takes the tables that were left for the job of this identity, when an attempt begins. From
    /// then on they belong to the attempt. It renames them to names of its own and calls
    /// [`Handover::note_adopted`], or it deletes them. If it fails later, it leaves them again.
    ///
    /// # Errors
    /// If the tables were left for another job: their names. The caller deletes these tables.
    pub fn take(&self, job: u128) -> Result<Vec<Part>, Vec<String>> {
        let mut left = self.left.lock();
        if left.job != job {
            return Err(left.take_names());
        }
        Ok(std::mem::take(&mut left.parts))
    }

    /// Counts tables that an attempt took over from an earlier one.
    pub fn note_adopted(&self, count: usize) {
        self.left.lock().adopted += count as u64;
    }

    /// Leaves finished tables to the next attempt, and replaces what was left before. Returns the
    /// names of the tables that no attempt will take, which the caller deletes. These are all
    /// tables if the handover is closed.
    ///
    /// Rules for the caller:
    /// - The attempt has ended: nothing writes, renames or deletes the tables any more, except the
    ///   next attempt.
    /// - The bytes of each table are durable in the storage to which the next attempt writes. If a
    ///   sync of the attempt failed, it leaves nothing and deletes its tables.
    /// - The attempt leaves nothing after it found no space, because finished tables would take
    ///   that space, and nothing after it lost its lease, because the files may belong to another
    ///   writer.
    /// - Parts that another process reported were checked with [`Part::check`] and
    ///   [`Part::check_names`] before. Otherwise that process could name any file of the folder.
    #[must_use]
    pub fn leave(&self, job: u128, parts: Vec<Part>) -> Vec<String> {
        let mut left = self.left.lock();
        (left.job, left.parts) = (job, parts);
        if left.is_closed {
            return left.take_names();
        }
        Vec::new()
    }
}
