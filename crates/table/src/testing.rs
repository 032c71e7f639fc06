//! Table files in memory, for tests.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use siltstone_storage::{
    Map, Mutex, ReadFile, Result, Runtime, StorageError, StorageErrorKind, WriteFile,
};

use crate::key::compare_internal;
use crate::{ReaderOptions, TableReader, TableSummary, TableWriter, WriterOptions};

/// A file that is written.
pub(crate) struct Output {
    bytes: Mutex<Vec<u8>>,
    pub(crate) appends: AtomicU64,
}

impl Default for Output {
    fn default() -> Self {
        Output {
            bytes: Runtime::threads().mutex(Vec::new()),
            appends: AtomicU64::new(0),
        }
    }
}

impl Output {
    pub(crate) fn take(&self) -> Vec<u8> {
        std::mem::take(&mut self.bytes.lock())
    }
}

impl WriteFile for Output {
    fn name(&self) -> &str {
        "table"
    }
    fn position(&self) -> u64 {
        self.bytes.lock().len() as u64
    }
    fn append(&self, parts: &[&[u8]]) -> Result<()> {
        self.appends
            .fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        parts
            .iter()
            .for_each(|p| self.bytes.lock().extend_from_slice(p));
        Ok(())
    }
    fn reserve(&self, _: u64) -> Result<()> {
        Ok(())
    }
    fn len(&self) -> u64 {
        self.position()
    }
    fn sync(&self) -> Result<()> {
        Ok(())
    }
    fn truncate_to_position(&self) -> Result<()> {
        Ok(())
    }
}

/// A file that is read, mapped or not.
pub(crate) struct Input {
    pub(crate) bytes: Arc<[u8]>,
    pub(crate) map: Option<Map>,
}

impl ReadFile for Input {
    fn name(&self) -> &str {
        "table"
    }
    fn len(&self) -> u64 {
        self.bytes.len() as u64
    }
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        let range = usize::try_from(offset)
            .ok()
            .and_then(|o| Some(o..o.checked_add(buf.len())?));
        match range.and_then(|r| self.bytes.get(r)) {
            Some(from) => buf.copy_from_slice(from),
            None => {
                return Err(StorageError::new(
                    StorageErrorKind::UnexpectedEof,
                    "read",
                    "table",
                    "short",
                )
                .at(offset));
            }
        }
        Ok(())
    }
    fn map(&self) -> Result<Option<Map>> {
        Ok(self.map.clone())
    }
}

pub(crate) type Entries = Vec<(Vec<u8>, u64, Vec<u8>)>;

/// Sorts the entries and removes equal internal keys.
pub(crate) fn in_order(mut entries: Entries) -> Entries {
    entries.sort_by(|a, b| compare_internal(&a.0, a.1, &b.0, b.1));
    entries.dedup_by(|a, b| a.0 == b.0 && a.1 == b.1);
    entries
}

/// Writes a table.
pub(crate) fn write(
    entries: &Entries,
    deletes: Vec<(Vec<u8>, Vec<u8>, u64)>,
    options: WriterOptions,
) -> (Vec<u8>, TableSummary) {
    let out = Arc::new(Output::default());
    let mut writer = TableWriter::new(out.clone(), options).unwrap();
    for (key, trailer, value) in entries {
        writer.add(key, *trailer, value).unwrap();
    }
    writer
        .set_range_deletes(crate::rangedel::joined(deletes))
        .unwrap();
    let summary = writer.finish().unwrap();
    let bytes = out.take();
    assert_eq!(bytes.len() as u64, summary.file_bytes);
    (bytes, summary)
}

/// Opens bytes as a table.
pub(crate) fn open(bytes: &[u8], options: ReaderOptions) -> crate::Result<Arc<TableReader>> {
    let bytes: Arc<[u8]> = bytes.into();
    let map = options.map.then(|| Map::from_bytes(bytes.clone(), false));
    TableReader::open(Arc::new(Input { bytes, map }), options)
}
