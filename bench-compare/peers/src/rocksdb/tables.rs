//! Tables of RocksDB: those that an ingest builds, and the list of those that a database has.
//!
//! Invariants and threading are those of `database.rs`.

use std::path::{Path, PathBuf};
use std::ptr::NonNull;

use librocksdb_sys as ffi;
use siltstone_bench::engine::{EngineError, Level, Result};

use super::database::{Database, Options, c_path, checked};

/// Bytes of a table that an ingest builds: RocksDB's default of `target_file_size_base`.
const TABLE_BYTES: u64 = 64 << 20;

/// What gives the entries of an ingest.
pub(super) type Next<'a> = dyn FnMut(&mut Vec<u8>, &mut Vec<u8>) -> bool + 'a;

/// Writes one table.
pub(super) struct TableWriter {
    writer: NonNull<ffi::rocksdb_sstfilewriter_t>,
    environment: NonNull<ffi::rocksdb_envoptions_t>,
}

impl TableWriter {
    pub fn open(options: &Options, path: &Path) -> Result<TableWriter> {
        let path = c_path(path)?;
        // SAFETY: constructors, whose arguments are alive.
        let writer = unsafe {
            let environment = ffi::rocksdb_envoptions_create();
            let writer = ffi::rocksdb_sstfilewriter_create(environment, options.pointer());
            TableWriter {
                writer: NonNull::new(writer).expect("operator new does not return null"),
                environment: NonNull::new(environment).expect("operator new does not return null"),
            }
        };
        checked("ingest", |error| {
            // SAFETY: the writer is alive, and the path is zero-terminated.
            unsafe {
                ffi::rocksdb_sstfilewriter_open(writer.writer.as_ptr(), path.as_ptr(), error)
            };
        })?;
        Ok(writer)
    }

    pub fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        checked("ingest", |error| {
            // SAFETY: the writer is open, and slices are passed with their lengths.
            unsafe {
                ffi::rocksdb_sstfilewriter_put(
                    self.writer.as_ptr(),
                    key.as_ptr().cast(),
                    key.len(),
                    value.as_ptr().cast(),
                    value.len(),
                    error,
                );
            }
        })
    }

    fn file_bytes(&self) -> u64 {
        let mut bytes = 0;
        // SAFETY: the writer is open.
        unsafe { ffi::rocksdb_sstfilewriter_file_size(self.writer.as_ptr(), &mut bytes) };
        bytes
    }

    pub fn finish(self) -> Result<()> {
        checked("ingest", |error| {
            // SAFETY: the writer is open.
            unsafe { ffi::rocksdb_sstfilewriter_finish(self.writer.as_ptr(), error) };
        })
    }
}

impl Drop for TableWriter {
    fn drop(&mut self) {
        // SAFETY: the owner alone releases both.
        unsafe {
            ffi::rocksdb_sstfilewriter_destroy(self.writer.as_ptr());
            ffi::rocksdb_envoptions_destroy(self.environment.as_ptr());
        }
    }
}

/// Writes all entries to tables in `folder`.
pub(super) fn build(
    database: &Database,
    folder: &Path,
    next: &mut Next<'_>,
) -> Result<Vec<PathBuf>> {
    std::fs::create_dir_all(folder).map_err(|error| EngineError::new("ingest", error))?;
    let (mut key, mut value) = (Vec::new(), Vec::new());
    let mut tables = Vec::new();
    let mut open: Option<TableWriter> = None;
    while next(&mut key, &mut value) {
        let writer = match &mut open {
            Some(writer) => writer,
            None => {
                let path = folder.join(format!("{}.sst", tables.len()));
                tables.push(path.clone());
                open.insert(TableWriter::open(database.options(), &path)?)
            }
        };
        writer.put(&key, &value)?;
        if writer.file_bytes() >= TABLE_BYTES {
            open.take().map_or(Ok(()), TableWriter::finish)?;
        }
    }
    open.map_or(Ok(()), TableWriter::finish)?;
    Ok(tables)
}

/// Makes tables a part of the database. Their files are moved into its folder.
pub(super) fn ingest(database: &Database, tables: &[PathBuf]) -> Result<()> {
    let paths: Result<Vec<_>> = tables.iter().map(|path| c_path(path)).collect();
    let paths = paths?;
    let pointers: Vec<_> = paths.iter().map(|path| path.as_ptr()).collect();
    checked("ingest", |error| {
        // SAFETY: the paths are alive and zero-terminated, and the options are released here.
        unsafe {
            let options = ffi::rocksdb_ingestexternalfileoptions_create();
            ffi::rocksdb_ingestexternalfileoptions_set_move_files(options, 1);
            ffi::rocksdb_ingest_external_file(
                database.pointer(),
                pointers.as_ptr(),
                pointers.len(),
                options,
                error,
            );
            ffi::rocksdb_ingestexternalfileoptions_destroy(options);
        }
    })
}

/// The tables of each level that has some. Level 0 has a run for each table.
pub(super) fn levels(database: &Database) -> Vec<Level> {
    let mut levels: Vec<Level> = Vec::new();
    for (level, bytes) in live_files(database) {
        let index = levels.iter().position(|found| found.level == level);
        let index = index.unwrap_or_else(|| {
            levels.push(Level {
                level,
                runs: 0,
                tables: 0,
                bytes: 0,
            });
            levels.len() - 1
        });
        let found = &mut levels[index];
        found.tables += 1;
        found.bytes += bytes;
        found.runs = if level == 0 { found.tables } else { 1 };
    }
    levels.sort_by_key(|level| level.level);
    levels
}

/// The level and the bytes of each table.
fn live_files(database: &Database) -> Vec<(u32, u64)> {
    // SAFETY: the list is alive until it is released, and all indices are below its length.
    unsafe {
        let list = ffi::rocksdb_livefiles(database.pointer());
        let files = (0..ffi::rocksdb_livefiles_count(list))
            .map(|index| {
                let level = ffi::rocksdb_livefiles_level(list, index);
                (
                    level as u32,
                    ffi::rocksdb_livefiles_size(list, index) as u64,
                )
            })
            .collect();
        ffi::rocksdb_livefiles_destroy(list);
        files
    }
}
