//! What the tables of a job must hold, computed anew from its streams.
//!
//! What it is: [`Contents`] reads the stream of a subjob, applies the job's drop rules, and compares what survives with the
//! entries that were read back from the tables. It does not use the merge, the layout or the encoder, so that an entry
//! that one of these lost or changed shows.
//!
//! Invariant: blocks are compared in ascending order. A block that follows the one before it continues in the stream, so
//! nothing can be missing between the two; any other block begins with a seek to its first key.
//!
//! Threading: one owner.

use std::cmp::Ordering;

use super::fragments::Fragments;
use super::verify::{Failure, Rejected};
use super::{Hex, Job, KeyBounds};
use crate::exec::{EntryStream, StreamSource};
use crate::key::{Kind, compare_internal, seq_of};
use crate::retain::{RangeDelete, Retain, Verdict};
use siltstone_storage::planted::{self, Bug};

/// The entries and range deletes that a subjob keeps. See the module.
pub(super) struct Contents<'a> {
    stream: &'a dyn StreamSource,
    bounds: KeyBounds,
    retain: Retain,
    /// The range deletes that the subjob's tables must have between them.
    fragments: Fragments,
    entries: Box<dyn EntryStream>,
    /// The user key of the entry that was read last from the stream, if there was one.
    key: Option<Vec<u8>>,
    /// The stream was positioned at a user key, of which the block before may have the newest versions.
    after_seek: bool,
    /// The table (counted within the subjob) and the block that come next if none is left out.
    next: (usize, usize),
}

/// How a sentence about an entry names it.
fn entry_text(key: &[u8], trailer: u64) -> String {
    let kind = match trailer as u8 {
        kind if kind == Kind::Put as u8 => "put",
        kind if kind == Kind::Delete as u8 => "delete",
        _ => "entry of another kind",
    };
    format!(
        "the {kind} of key {} at number {}",
        Hex(key),
        seq_of(trailer)
    )
}

impl<'a> Contents<'a> {
    /// What this subjob of a job with one stream keeps.
    ///
    /// # Errors
    /// Those of the stream.
    pub fn new(
        job: &Job,
        subjob: usize,
        stream: &'a dyn StreamSource,
    ) -> Result<Contents<'a>, Failure> {
        let bounds = job.subjob_bounds(subjob);
        let (fragments, retain) = Fragments::of(job, &bounds, &stream.range_deletes()?);
        Ok(Contents {
            stream,
            fragments,
            retain,
            entries: stream.open(&bounds)?,
            bounds,
            key: None,
            after_seek: false,
            next: (0, 0),
        })
    }

    /// The blocks of a table that holds the keys of `range` are about to be compared: its range
    /// deletes must be those that the subjob has there.
    pub fn begin_table(
        &self,
        name: &str,
        range: (&[u8], Option<&[u8]>),
        found: &[RangeDelete],
    ) -> Result<(), Rejected> {
        self.fragments.compare(name, range, found)
    }

    /// The entries of a block come next, `first_key` the first of them.
    pub fn begin_block(
        &mut self,
        (table, block): (usize, usize),
        first_key: &[u8],
    ) -> Result<(), Failure> {
        if self.next != (table, block) {
            let from = KeyBounds {
                start: first_key.to_vec(),
                end: self.bounds.end.clone(),
            };
            self.entries = self.stream.open(&from)?;
            self.key = None;
            self.after_seek = true;
        }
        self.next = (table, block + 1);
        Ok(())
    }

    /// All blocks of the table that were chosen are compared; it has `block_count`.
    pub fn end_table(&mut self, table: usize, block_count: usize) {
        if self.next == (table, block_count) {
            self.next = (table + 1, 0);
        }
    }

    /// Compares the next entry of table `name` with the next one that the job keeps.
    pub fn compare(
        &mut self,
        name: &str,
        key: &[u8],
        trailer: u64,
        value: &[u8],
    ) -> Result<(), Failure> {
        let reject = |reason: String| Failure::Rejected(Rejected { reason });
        let stranger = || {
            let entry = entry_text(key, trailer);
            reject(format!(
                "table {name} holds {entry}, which was never written"
            ))
        };
        while let Some(entry) = self.entries.next_entry()? {
            if self.key.as_deref() != Some(entry.user_key) {
                self.retain.start_key(entry.user_key);
                let known = self.key.get_or_insert_default();
                known.clear();
                known.extend_from_slice(entry.user_key);
            }
            if self.retain.judge(entry.user_key, entry.trailer) != Verdict::Keep {
                continue;
            }
            match compare_internal(entry.user_key, entry.trailer, key, trailer) {
                Ordering::Equal => {
                    self.after_seek = false;
                    return match entry.value == value {
                        true => Ok(()),
                        false => Err(reject(format!(
                            "table {name}: the value of {} has {} bytes and differs from the {} \
                             bytes that were written",
                            entry_text(key, trailer),
                            value.len(),
                            entry.value.len()
                        ))),
                    };
                }
                // The block before has this version of the same key.
                Ordering::Less if self.after_seek && entry.user_key == key => {}
                Ordering::Less => {
                    let missing = entry_text(entry.user_key, entry.trailer);
                    return Err(reject(format!("table {name} lacks {missing}")));
                }
                Ordering::Greater => return Err(stranger()),
            }
        }
        Err(stranger())
    }

    /// All tables of the subjob were compared, `tables` of them: if the last block was among what
    /// was compared, nothing that the job keeps may be left.
    pub fn end(mut self, tables: usize) -> Result<(), Failure> {
        if !planted::is(Bug::NoTableIsNotAsked) {
            self.fragments.compare_end(tables)?;
        }
        if self.next != (tables, 0) {
            return Ok(());
        }
        while let Some(entry) = self.entries.next_entry()? {
            if self.key.as_deref() != Some(entry.user_key) {
                self.retain.start_key(entry.user_key);
                self.key = Some(entry.user_key.to_vec());
            }
            if self.retain.judge(entry.user_key, entry.trailer) == Verdict::Keep {
                let missing = entry_text(entry.user_key, entry.trailer);
                let reason = format!("the tables end before {missing}");
                return Err(Rejected { reason }.into());
            }
        }
        Ok(())
    }
}
