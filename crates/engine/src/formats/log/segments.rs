//! The supply of fresh segments and the list of live ones.
//!
//! [`Supply`] makes segments ready before they are needed (creates or recycles them, reserves their
//! space, syncs their bytes and their names) and keeps a bounded pool of obsolete segments to
//! recycle. The writer keeps those that are ready. [`Live`] knows which segments hold records, and
//! which of them have bytes that no sync has covered.
//!
//! Sizes: the first segment of a chain is small, and each segment that is made ready is twice as
//! large as the one before it, up to the size in the options. So a store with few writes has a
//! small log, and one with many writes soon has segments of the full size. The space of a segment
//! is reserved in the background while the segment before it is being filled. Zeros are written to
//! it only if writers sync the log: in a log that only flushes sync, they would be written to the
//! disk for nothing.
//!
//! Invariants: a segment's name is durable before its first record is written. A prepared segment
//! has no records, so a failure to prepare one loses nothing (only a failed sync of the folder
//! poisons, unless the storage could not be reached: then the file waits until a later attempt has
//! synced its name). Numbers only grow.
//!
//! Threading: a runtime mutex of the writer guards each. The supply's mutex is held across storage
//! calls; that of the live list never is.

use std::collections::VecDeque;
use std::sync::Arc;

use siltstone_storage::{Epoch, Storage, StorageError, StorageErrorKind, WriteFile};

use super::format::{MAX_SEGMENT_NUMBER, segment_name};
use crate::types::error::{Error, ErrorKind};

/// The size of a chain's first segment in bytes, if the options allow that much.
const FIRST_SEGMENT_BYTES: u64 = 256 << 10;

/// If the log was synced at least this often while a segment was written, writers sync it, and not
/// only flushes, and the space of the next segment is written beforehand: otherwise each of their
/// syncs would change the file system's metadata too.
pub(super) const SYNCS_OF_WRITERS: u64 = 32;

/// A segment that is ready for its header.
pub(super) struct Fresh {
    pub(super) number: u32,
    pub(super) file: Arc<dyn WriteFile>,
}

/// A segment that could not be made ready.
pub(super) struct SupplyError {
    pub(super) error: Error,
    /// The sync of the folder failed. Earlier names may be lost, and no later sync will report it.
    pub(super) poisons: bool,
}

impl From<StorageError> for SupplyError {
    fn from(error: StorageError) -> SupplyError {
        SupplyError {
            error: Error::from(error).context("preparing a log segment"),
            poisons: false,
        }
    }
}

/// Makes segments ready and recycles obsolete ones.
pub(super) struct Supply {
    storage: Arc<dyn Storage>,
    epoch: Epoch,
    /// The full size of a segment.
    segment_bytes: u64,
    /// The size of the next segment to make ready.
    next_bytes: u64,
    pool_limit_count: usize,
    next_number: u64,
    /// A segment whose space is reserved and whose name is not known to be durable, because the
    /// storage could not be reached.
    unnamed: Option<Fresh>,
    /// Names of obsolete segments to recycle.
    pool: Vec<String>,
    /// Names to delete: of files whose deletion failed, and of files that may exist although
    /// creating them failed.
    garbage: Vec<String>,
    pub(super) created_count: u64,
    pub(super) recycled_count: u64,
    /// Bytes of zeros that were written to prepare segments.
    pub(super) zeroed_bytes: u64,
}

impl Supply {
    /// A supply whose first segment gets a number above `highest`, the highest number in the name
    /// of any file found.
    pub(super) fn new(
        storage: Arc<dyn Storage>,
        epoch: Epoch,
        segment_bytes: u64,
        pool_limit_count: usize,
        highest: u32,
    ) -> Supply {
        Supply {
            storage,
            epoch,
            segment_bytes,
            next_bytes: segment_bytes.min(FIRST_SEGMENT_BYTES),
            pool_limit_count,
            next_number: u64::from(highest) + 1,
            unnamed: None,
            pool: Vec::new(),
            garbage: Vec::new(),
            created_count: 0,
            recycled_count: 0,
            zeroed_bytes: 0,
        }
    }

    pub(super) fn pool_count(&self) -> usize {
        self.pool.len()
    }

    /// Makes a segment ready. `is_synced` says whether writers sync the log.
    pub(super) fn prepare(&mut self, is_synced: bool) -> Result<Fresh, SupplyError> {
        if self.unnamed.is_none() {
            let is_first = self.next_bytes <= FIRST_SEGMENT_BYTES;
            self.unnamed = Some(self.make_space(is_first || is_synced)?);
        }
        let fresh = self.sync_name()?;
        self.next_bytes = self.next_bytes.saturating_mul(2).min(self.segment_bytes);
        Ok(fresh)
    }

    /// Makes the file of the next segment and its space, and fills the space with zeros if
    /// `written`.
    fn make_space(&mut self, written: bool) -> Result<Fresh, SupplyError> {
        let (number, file) = self.take_file()?;
        let old_bytes = file.len();
        let made = match written {
            true => file.reserve(self.next_bytes).map(|()| true),
            false => file.allocate(self.next_bytes),
        };
        // Zeros reach the disk here, in the background, and not with the sync of the first group.
        // Without zeros there is nothing to sync but the name.
        let made = made.and_then(|has_zeros| match has_zeros {
            true => file.sync().map(|()| true),
            false => Ok(false),
        });
        let has_zeros = made.as_ref().is_ok_and(|has_zeros| *has_zeros);
        if let Err(error) = made {
            // Nothing refers to the file and it is empty, so it is deleted. A later attempt makes a
            // new one.
            let name = segment_name(number);
            drop(file);
            if error.kind == StorageErrorKind::Unreachable {
                // A deletion would only take as long again.
                self.garbage.push(name);
                return Err(error.into());
            }
            match self.storage.delete(self.epoch, &name) {
                Ok(()) => self.next_number = u64::from(number),
                Err(_) => self.garbage.push(name),
            }
            return Err(error.into());
        }
        if has_zeros {
            // A recycled segment has its length already.
            self.zeroed_bytes += self.next_bytes.saturating_sub(old_bytes);
        }
        Ok(Fresh { number, file })
    }

    /// Makes the name of the file durable, which is ready then.
    fn sync_name(&mut self) -> Result<Fresh, SupplyError> {
        let synced = self.storage.sync_dir(self.epoch);
        synced.map_err(|error| SupplyError {
            poisons: error.kind != StorageErrorKind::Unreachable,
            error: Error::from(error).context("syncing the log's folder"),
        })?;
        Ok(self.unnamed.take().expect("the caller made a file"))
    }

    /// Makes the next segment from a file whose space is written already. The segment has its
    /// length.
    pub(super) fn prepare_from(&mut self, reserve: &str) -> Result<Fresh, SupplyError> {
        self.pool.push(reserve.to_string());
        let (number, file) = self.take_file()?;
        file.sync()?;
        self.unnamed = Some(Fresh { number, file });
        self.sync_name()
    }

    /// Makes a file with the next number, by recycling one if possible. A name that exists already
    /// is skipped: headers name their predecessor, so the numbers of a chain may have gaps.
    fn take_file(&mut self) -> Result<(u32, Arc<dyn WriteFile>), SupplyError> {
        loop {
            let number = u32::try_from(self.next_number)
                .ok()
                .filter(|n| *n <= MAX_SEGMENT_NUMBER)
                .ok_or_else(|| SupplyError {
                    error: Error::new(
                        ErrorKind::Unsupported,
                        "the log's segment numbers are used up",
                    )
                    .expected(format_args!("at most {MAX_SEGMENT_NUMBER}"))
                    .advice("copy the data into a new store"),
                    poisons: false,
                })?;
            self.next_number += 1;
            let name = segment_name(number);
            if let Some(old) = self.pool.pop() {
                match self.storage.recycle(self.epoch, &old, &name) {
                    Ok(file) => {
                        self.recycled_count += 1;
                        return Ok((number, file));
                    }
                    // The call changed nothing, and has waited for a descriptor: other calls find
                    // none either.
                    Err(error) if error.kind == StorageErrorKind::TooManyOpen => {
                        self.pool.push(old);
                        return Err(error.into());
                    }
                    // Whatever happened to the old file, nothing in it is needed.
                    Err(error) => {
                        self.garbage.push(old);
                        if error.kind != StorageErrorKind::AlreadyExists {
                            // The file may have the new name even so, and would never be listed:
                            // the number is skipped.
                            self.garbage.push(name);
                            if error.kind == StorageErrorKind::Unreachable {
                                return Err(error.into());
                            }
                            continue;
                        }
                    }
                }
            }
            match self.storage.create(self.epoch, &name) {
                Ok(file) => {
                    self.created_count += 1;
                    return Ok((number, file));
                }
                Err(error) if error.kind == StorageErrorKind::AlreadyExists => {}
                Err(error) => {
                    // The file may exist even so. Its number is not used again.
                    self.garbage.push(name);
                    return Err(error.into());
                }
            }
        }
    }

    /// Adds those of these obsolete segments to the pool that fit it. Returns the names to delete,
    /// including those whose deletion failed before. Only files of about the next segment's size
    /// are kept: a shorter one would need space when the disk may be full, and a longer one was
    /// made for one large batch, or by an earlier open that had written more.
    pub(super) fn retire(&mut self, segments: Vec<(String, u64)>) -> Vec<String> {
        let mut doomed = std::mem::take(&mut self.garbage);
        for (name, len_bytes) in segments {
            let usual = self.next_bytes..=self.next_bytes.saturating_mul(2);
            if usual.contains(&len_bytes) && self.pool.len() < self.pool_limit_count {
                self.pool.push(name);
            } else {
                doomed.push(name);
            }
        }
        doomed
    }

    /// Empties the pool. Returns the names to delete, with those of these segments that were made
    /// ready: none of these files has a record that a replay reads.
    pub(super) fn give_up(&mut self, ready: impl Iterator<Item = Fresh>) -> Vec<String> {
        let mut doomed = std::mem::take(&mut self.garbage);
        doomed.append(&mut self.pool);
        let fresh = self.unnamed.take().into_iter().chain(ready);
        doomed.extend(fresh.map(|fresh| segment_name(fresh.number)));
        doomed
    }

    /// Drops the files that are not in use.
    pub(super) fn release(&mut self) {
        self.unnamed = None;
    }

    /// Remembers names that the next [`Supply::retire`] returns again.
    pub(super) fn deletion_failed(&mut self, names: Vec<String>) {
        self.garbage.extend(names);
    }
}

/// A segment that holds records, or was found at open.
pub(super) struct LiveSegment {
    pub(super) number: u32,
    /// The length of the file, in bytes.
    pub(super) len_bytes: u64,
    /// Where its records end; `None` for the segment that is being written.
    pub(super) end: Option<u32>,
    /// The file, while it may hold bytes that no sync has covered.
    pub(super) file: Option<Arc<dyn WriteFile>>,
}

/// All segments that are not obsolete, in ascending order.
#[derive(Default)]
pub(super) struct Live {
    segments: VecDeque<LiveSegment>,
    released: bool,
}

impl Live {
    pub(super) fn push(&mut self, segment: LiveSegment) {
        debug_assert!(
            self.segments
                .back()
                .is_none_or(|last| last.number < segment.number)
        );
        self.segments.push_back(segment);
    }

    /// Records that the segment being written ends at `end`.
    pub(super) fn close_current(&mut self, end: u32) {
        if let Some(current) = self.segments.back_mut() {
            current.end = Some(end);
        }
    }

    /// The files to sync up to segment `number`, oldest first, without those for which
    /// `done(number, end)` is true.
    pub(super) fn to_sync(
        &self,
        number: u32,
        done: impl Fn(u32, Option<u32>) -> bool,
    ) -> Vec<Arc<dyn WriteFile>> {
        self.segments
            .iter()
            .filter(|s| s.number <= number && !done(s.number, s.end))
            .filter_map(|s| s.file.clone())
            .collect()
    }

    /// Drops all files. Nothing can be synced any more.
    pub(super) fn release(&mut self) {
        self.released = true;
        self.segments.iter_mut().for_each(|s| s.file = None);
    }

    pub(super) fn is_released(&self) -> bool {
        self.released
    }

    /// Records that everything below segment `number` is synced.
    pub(super) fn synced_below(&mut self, number: u32) {
        for segment in self.segments.iter_mut().take_while(|s| s.number < number) {
            segment.file = None;
        }
    }

    /// Removes the segments below `number`, except those that are pinned, and returns their names
    /// and lengths in bytes.
    pub(super) fn remove_below(
        &mut self,
        number: u32,
        is_pinned: &dyn Fn(u32) -> bool,
    ) -> Vec<(String, u64)> {
        let below = self.segments.partition_point(|s| s.number < number);
        let mut removed = Vec::new();
        let mut pinned = Vec::new();
        for segment in self.segments.drain(..below) {
            match is_pinned(segment.number) {
                true => pinned.push(segment),
                false => removed.push((segment_name(segment.number), segment.len_bytes)),
            }
        }
        for segment in pinned.into_iter().rev() {
            self.segments.push_front(segment);
        }
        removed
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &LiveSegment> {
        self.segments.iter()
    }
}
