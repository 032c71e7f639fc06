//! Computes from a job's stream what its tables must contain.
//!
//! [`Contents`] reads the stream of a subjob, applies the job's drop rules, and compares the
//! surviving entries with those that were read back from the tables. It uses neither the merge nor
//! the layout nor the encoder, so it finds an entry that one of these lost or changed.
//!
//! Invariant: blocks are compared in ascending order. If a block directly follows the previous one,
//! its comparison continues in the stream, so nothing can be missing between the two. Otherwise the
//! comparison begins with a seek to the block's first key.
//!
//! Threading: one owner.

use std::cmp::Ordering;

use super::fragments::Fragments;
use super::verify::{Failure, Rejected};
use super::{Hex, Job, KeyBounds};
use crate::exec::{EntryStream, StreamSource};
use crate::key::{Kind, compare_internal, seq_of};
use crate::retain::{RangeDelete, Retain, Verdict};

/// The entries and range deletes that a subjob must keep. See the module.
pub(super) struct Contents<'a> {
    stream: &'a dyn StreamSource,
    bounds: KeyBounds,
    retain: Retain,
    /// The range deletes that the subjob's tables must contain together.
    fragments: Fragments,
    entries: Box<dyn EntryStream>,
    /// The user key of the last entry that was read from the stream, if there is one.
    key: Option<Vec<u8>>,
    /// Whether the stream was positioned at a user key whose newest versions may be in the previous
    /// block, which is not compared.
    after_seek: bool,
    /// The table (its number within the subjob) and the block that directly follow the last
    /// compared block.
    next: (usize, usize),
}

/// Describes an entry in a message.
pub(super) fn entry_text(key: &[u8], trailer: u64) -> String {
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
    /// Computes what this subjob keeps of `stream`, the only input of its job.
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

    /// Begins a table that is responsible for `range`. Compares its range deletes with those that
    /// the subjob must keep there.
    pub fn begin_table(
        &self,
        name: &str,
        range: (&[u8], Option<&[u8]>),
        found: &[RangeDelete],
    ) -> Result<(), Rejected> {
        self.fragments.compare(name, range, found)
    }

    /// Begins a block whose first entry has the key `first_key`.
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

    /// Ends a table of `block_count` blocks, after the blocks of the sample were compared.
    pub fn end_table(&mut self, table: usize, block_count: usize) {
        if self.next == (table, block_count) {
            self.next = (table + 1, 0);
        }
    }

    /// Compares the next entry of table `name` with the next entry that the job keeps.
    pub fn compare(
        &mut self,
        name: &str,
        key: &[u8],
        trailer: u64,
        value: &[u8],
    ) -> Result<(), Failure> {
        let reject = |reason: String| Failure::Rejected(Rejected { reason });
        let unexpected = || {
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
                // This version of the same key is in the previous block.
                Ordering::Less if self.after_seek && entry.user_key == key => {}
                Ordering::Less => {
                    let missing = entry_text(entry.user_key, entry.trailer);
                    return Err(reject(format!("table {name} lacks {missing}")));
                }
                Ordering::Greater => return Err(unexpected()),
            }
        }
        Err(unexpected())
    }

    /// Ends the subjob, which has `tables` tables. If their last block was compared, the stream
    /// must have no further entry that the job keeps.
    pub fn end(mut self, tables: usize) -> Result<(), Failure> {
        self.fragments.compare_end(tables)?;
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
