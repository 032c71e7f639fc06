//! A file of which several ranges are fetched at once, before they are read one by one.
//!
//! A check of an outcome reads many small ranges of many tables. If these lie behind a link, each
//! read is a round trip. Most ranges are known before the first one is read, so [`Fetched::fetch`]
//! gets them with one call, which the client of a device makes one request. Reads of other ranges
//! go to the file.
//!
//! Invariants: at most [`FETCH_BYTES`] of a file are kept, and each fetch replaces what the one
//! before it has fetched. Nobody writes to the objects any more, so these bytes stay the same.
//!
//! Threading: shared, without a lock.

use std::collections::BTreeMap;
use std::sync::Arc;

use arc_swap::ArcSwap;
use siltstone_storage::{Access, Map, ReadByDescriptor, ReadFile, ReadPurpose, ReadRange, Result};

use crate::error::TableError;
use crate::exec::{CancelToken, ExecError, Inputs, StreamSource};
use crate::job::{InputKind, Job};

/// The number of bytes that are fetched at once. A check that is cancelled waits for them, and a
/// link may be slow.
pub(super) const FETCH_BYTES: u64 = 256 << 10;

/// See the module.
pub(super) struct Fetched {
    file: Arc<dyn ReadFile>,
    /// By their offsets.
    ranges: ArcSwap<BTreeMap<u64, Vec<u8>>>,
}

impl Fetched {
    /// A file of which nothing was fetched yet.
    pub fn of(file: Arc<dyn ReadFile>) -> Arc<Fetched> {
        Arc::new(Fetched {
            file,
            ranges: ArcSwap::default(),
        })
    }

    /// Fetches these ranges, each given by its offset and its length, and forgets what was fetched
    /// before. Of ranges that are more than [`FETCH_BYTES`] together, only the first ones are
    /// fetched.
    pub fn fetch(&self, ranges: impl IntoIterator<Item = (u64, u64)>) -> Result<()> {
        let mut left = FETCH_BYTES;
        let fits = |(_, len): &(u64, u64)| {
            let rest = left.checked_sub(*len);
            left = rest.unwrap_or(0);
            rest.is_some()
        };
        let ranges = ranges.into_iter().take_while(fits);
        let mut read: Vec<(u64, Vec<u8>)> = ranges
            .map(|(offset, len)| (offset, vec![0; len as usize]))
            .collect();
        // One range is one read in any case.
        if read.len() > 1 {
            let wanted = read.iter_mut().map(|(offset, buf)| ReadRange {
                offset: *offset,
                buf,
            });
            self.file.read_ranges(&mut wanted.collect::<Vec<_>>())?;
        } else {
            read.clear();
        }
        self.ranges.store(Arc::new(read.into_iter().collect()));
        Ok(())
    }

    /// Fills `buf` with what was fetched. Returns false if a part of it was not.
    fn serve(&self, mut offset: u64, buf: &mut [u8]) -> bool {
        let ranges = self.ranges.load();
        let mut filled = 0;
        while filled < buf.len() {
            let Some((start, bytes)) = ranges.range(..=offset).next_back() else {
                return false;
            };
            let Some(bytes) = bytes.get((offset - start) as usize..) else {
                return false;
            };
            let len = bytes.len().min(buf.len() - filled);
            if len == 0 {
                return false;
            }
            buf[filled..filled + len].copy_from_slice(&bytes[..len]);
            (filled, offset) = (filled + len, offset + len as u64);
        }
        true
    }
}

impl ReadFile for Fetched {
    fn name(&self) -> &str {
        self.file.name()
    }
    fn len(&self) -> u64 {
        self.file.len()
    }
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        match self.serve(offset, buf) {
            true => Ok(()),
            false => self.file.read_at(offset, buf),
        }
    }
    fn read_ranges(&self, ranges: &mut [ReadRange<'_>]) -> Result<()> {
        match ranges.iter_mut().all(|r| self.serve(r.offset, r.buf)) {
            true => Ok(()),
            false => self.file.read_ranges(ranges),
        }
    }
    fn read_ranges_for(&self, purpose: ReadPurpose, ranges: &mut [ReadRange<'_>]) -> Result<()> {
        match ranges.iter_mut().all(|r| self.serve(r.offset, r.buf)) {
            true => Ok(()),
            false => self.file.read_ranges_for(purpose, ranges),
        }
    }
    fn read_by_descriptor(&self, read: &mut ReadByDescriptor<'_>) -> Result<bool> {
        self.file.read_by_descriptor(read)
    }
    fn advise(&self, access: Access, offset: u64, len: u64) {
        self.file.advise(access, offset, len);
    }
    fn map(&self) -> Result<Option<Map>> {
        self.file.map()
    }
}

/// The inputs of a job, whose tables are such files.
pub(super) struct FetchedInputs<'a> {
    inputs: &'a dyn Inputs,
    /// By location and name.
    files: BTreeMap<(u32, String), Arc<Fetched>>,
}

impl FetchedInputs<'_> {
    /// Opens the files of the tables that have keys of the job. `cancel` is checked before each of
    /// them.
    pub fn open<'a>(
        job: &Job,
        inputs: &'a dyn Inputs,
        cancel: &CancelToken,
    ) -> std::result::Result<FetchedInputs<'a>, ExecError> {
        let mut files = BTreeMap::new();
        for input in &job.inputs {
            let has_keys = !input.clip.intersect(&job.bounds).is_empty();
            let key = (input.location, input.name.clone());
            if input.kind != InputKind::Table || !has_keys || files.contains_key(&key) {
                continue;
            }
            if cancel.is_cancelled() {
                return Err(ExecError::Cancelled);
            }
            let file = inputs.table(input.location, &input.name)?;
            files.insert(key, Fetched::of(file));
        }
        Ok(FetchedInputs { inputs, files })
    }

    /// The file of a table.
    pub fn file(&self, location: u32, name: &str) -> Option<&Arc<Fetched>> {
        self.files.get(&(location, name.to_string()))
    }
}

impl Inputs for FetchedInputs<'_> {
    fn table(
        &self,
        location: u32,
        name: &str,
    ) -> std::result::Result<Arc<dyn ReadFile>, TableError> {
        match self.file(location, name) {
            Some(file) => Ok(file.clone()),
            None => self.inputs.table(location, name),
        }
    }

    fn stream(
        &self,
        location: u32,
        name: &str,
    ) -> std::result::Result<Arc<dyn StreamSource>, TableError> {
        self.inputs.stream(location, name)
    }
}

#[cfg(test)]
mod tests {
    use siltstone_storage::{MemoryStorage, Runtime, Storage};

    use super::*;

    #[test]
    fn what_was_fetched_is_not_read_again() {
        let storage = MemoryStorage::new(&Runtime::threads());
        let bytes: Vec<u8> = (0..=255).collect();
        let epoch = storage.lease("store").unwrap().epoch();
        storage.publish(epoch, "x", &bytes).unwrap();
        let file = Fetched::of(storage.open("x").unwrap());
        file.fetch([(10, 20), (30, 10), (100, 50)]).unwrap();
        for (offset, len, is_there) in [
            (10, 30, true),
            (15, 20, true),
            (110, 40, true),
            (0, 256, false),
            (9, 2, false),
            (35, 10, false),
            (110, 41, false),
            (200, 1, false),
        ] {
            let mut buf = vec![0; len];
            assert_eq!(file.serve(offset, &mut buf), is_there, "{offset}, {len}");
            file.read_at(offset, &mut buf).unwrap();
            assert_eq!(buf, bytes[offset as usize..offset as usize + len]);
        }
        // Another fetch replaces what there was, and one range alone is not worth it.
        file.fetch([(10, 20)]).unwrap();
        assert!(!file.serve(10, &mut [0; 20]));
        file.fetch([(0, 1), (5, 1), (7, FETCH_BYTES)]).unwrap();
        assert!(file.serve(5, &mut [0; 1]) && !file.serve(7, &mut [0; 1]));
        file.fetch([(0, 1), (400, 1)]).unwrap_err();
    }
}
