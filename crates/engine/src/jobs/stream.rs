//! A sealed memtable as the input of a flush.
//!
//! Threading: shared; a sealed memtable does not change.

use std::sync::Arc;

use arc_swap::ArcSwapOption;
use siltstone_storage::{StorageError, StorageErrorKind};
use siltstone_table::error::TableError;
use siltstone_table::exec::{EntryStream, StreamEntry, StreamSource};
use siltstone_table::job::KeyBounds;
use siltstone_table::retain::RangeDelete;

use crate::tree::memtable::in_log::LogCopy;
use crate::tree::memtable::{Memtable, MemtableIter};
use crate::types::error::{Error, ErrorKind};

/// A sealed memtable as a job's stream.
pub(crate) struct MemtableSource {
    mem: Arc<Memtable>,
    /// The values that the first stream has copied from the log. The verification of the flush
    /// reads them again, with a stream for each block of its sample.
    log: Arc<ArcSwapOption<LogCopy>>,
}

impl MemtableSource {
    pub(crate) fn new(mem: Arc<Memtable>) -> MemtableSource {
        MemtableSource {
            mem,
            log: Arc::default(),
        }
    }
}

impl StreamSource for MemtableSource {
    fn key_bounds(&self) -> Option<(Vec<u8>, Vec<u8>)> {
        Some((
            self.mem.first_key()?.to_vec(),
            self.mem.last_key()?.to_vec(),
        ))
    }

    fn range_deletes(&self) -> Result<Vec<RangeDelete>, TableError> {
        Ok(self
            .mem
            .range_deletes()
            .map(|d| RangeDelete {
                start: d.start.to_vec(),
                end: d.end.to_vec(),
                seq: d.seq,
            })
            .collect())
    }

    fn open(&self, bounds: &KeyBounds) -> Result<Box<dyn EntryStream>, TableError> {
        let mut iter = self.mem.iter();
        iter.seek(&bounds.start, u64::MAX >> 8);
        Ok(Box::new(MemtableStream {
            iter,
            end: bounds.end.clone(),
            log: self.log.load_full(),
            copied: self.log.clone(),
            value: Vec::new(),
            started: false,
        }))
    }
}

struct MemtableStream {
    iter: MemtableIter,
    end: Option<Vec<u8>>,
    /// The values that are in the log.
    log: Option<Arc<LogCopy>>,
    /// Where the next streams find them.
    copied: Arc<ArcSwapOption<LogCopy>>,
    /// The value of the last entry, if it alone was read from the log.
    value: Vec<u8>,
    started: bool,
}

/// The error for a value that cannot be read in the log. The next flush tries it again.
#[cold]
fn unread(mem: &Memtable, error: Error) -> TableError {
    if error.kind() == ErrorKind::Corruption {
        mem.count_damage();
    }
    let known = error.storage().cloned();
    let made = known.unwrap_or_else(|| {
        StorageError::new(StorageErrorKind::Io, "read", "the log", error.to_string())
    });
    TableError::Storage(made)
}

impl EntryStream for MemtableStream {
    fn next_entry(&mut self) -> Result<Option<StreamEntry<'_>>, TableError> {
        if self.started && self.iter.is_valid() {
            self.iter.next();
        }
        if !self.started && self.log.is_none() {
            self.log = self.iter.memtable().copy_log().map(Arc::new);
            self.copied.store(self.log.clone());
        }
        self.started = true;
        if !self.iter.is_valid()
            || self
                .end
                .as_deref()
                .is_some_and(|end| self.iter.key() >= end)
        {
            return Ok(None);
        }
        let mem = self.iter.memtable();
        let copied = self.log.as_ref().map(|log| self.iter.value_in(log));
        let value = match copied {
            Some(Some(value)) => value,
            // The value alone is read, and if that fails the error says why.
            _ if mem.is_log_backed() => {
                self.value.clear();
                let read = self.iter.append_value(&mut self.value);
                read.map_err(|error| unread(mem, error))?;
                &self.value
            }
            _ => self.iter.value(),
        };
        Ok(Some(StreamEntry {
            user_key: self.iter.key(),
            trailer: self.iter.seq() << 8 | u64::from(self.iter.kind()),
            value,
        }))
    }
}
