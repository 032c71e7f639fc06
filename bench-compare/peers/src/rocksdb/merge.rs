//! A merge of sorted runs by RocksDB, as a job of an executor merges them: `gpu-check` measures it
//! beside siltstone's executors.
//!
//! Each run is one table, so RocksDB's merge has as many inputs as ours. The database has two
//! levels and no compactions of its own. The runs are ingested, the oldest into the last level and
//! the others into level 0. Then one compaction of everything merges them, which is what is timed;
//! if it was more than one compaction, the merge is refused. Outputs have 64 MiB. All else is
//! as in the other comparisons (`options.rs`).
//!
//! Invariant: each merge finds the same tables, because each gets links to them in a new folder.
//!
//! Threading: runs may be written at once; one merge at a time.

use std::path::{Path, PathBuf};
use std::time::Instant;

use siltstone_bench::engine::{EngineError, Result};
use siltstone_bench::measure::process::cpu_s;
use siltstone_bench::settings::{Compression, EngineSettings};

use super::database::{Database, Options};
use super::options::text;
use super::tables::{TableWriter, ingest};

/// The bytes of an output: RocksDB's default, and siltstone's.
const TABLE_BYTES: u64 = 64 << 20;

/// Runs that can be merged again and again.
pub struct RocksDbRuns {
    folder: PathBuf,
    compression: Compression,
    count: usize,
}

/// A merge that was done.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RocksDbMerge {
    /// How long the compaction took, in seconds.
    pub wall_s: f64,
    /// The processor time of this process meanwhile, in seconds.
    pub cpu_s: f64,
    /// The bytes of its inputs, as RocksDB counts them.
    pub read_bytes: u64,
    /// The bytes of its outputs.
    pub written_bytes: u64,
    /// The entries of its outputs.
    pub entries: u64,
}

/// A table that is being written.
pub struct RocksDbTable(TableWriter);

impl RocksDbTable {
    /// Adds an entry, whose key is above the one before.
    ///
    /// # Errors
    /// RocksDB's own.
    pub fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.0.put(key, value)
    }

    /// Finishes the table.
    ///
    /// # Errors
    /// RocksDB's own.
    pub fn finish(self) -> Result<()> {
        self.0.finish()
    }
}

fn failed(during: &'static str) -> impl FnOnce(std::io::Error) -> EngineError {
    move |error| EngineError::new(during, error)
}

impl RocksDbRuns {
    /// A place for this number of runs in a folder, which is made.
    ///
    /// # Errors
    /// If it cannot be made.
    pub fn new(folder: &Path, compression: Compression, count: usize) -> Result<RocksDbRuns> {
        std::fs::create_dir_all(folder).map_err(failed("create the folder"))?;
        Ok(RocksDbRuns {
            folder: folder.to_path_buf(),
            compression,
            count,
        })
    }

    fn file(&self, run: usize) -> PathBuf {
        self.folder.join(format!("run-{run}.sst"))
    }

    fn settings(&self, threads: usize) -> EngineSettings {
        let own = [
            ("num_levels", "2".to_string()),
            ("disable_auto_compactions", "true".to_string()),
            ("max_subcompactions", threads.to_string()),
            ("target_file_size_base", TABLE_BYTES.to_string()),
            // One compaction takes everything.
            ("max_compaction_bytes", (1u64 << 50).to_string()),
        ];
        EngineSettings {
            compression: self.compression,
            // One flushes, and nothing is flushed here.
            background_threads: threads as u32 + 1,
            own: own.map(|(name, value)| (name.to_string(), value)).into(),
            ..EngineSettings::default()
        }
    }

    /// The table of a run, which is to be written. A run with a larger number is newer.
    ///
    /// # Errors
    /// RocksDB's own.
    pub fn table(&self, run: usize) -> Result<RocksDbTable> {
        let (text, _) = text(&self.settings(1))?;
        let writer = TableWriter::open(&Options::parsed(&text)?, &self.file(run))?;
        Ok(RocksDbTable(writer))
    }

    /// Merges all runs with this number of threads.
    ///
    /// # Errors
    /// RocksDB's own, and a merge that was not one compaction of all runs.
    pub fn merge(&self, threads: usize) -> Result<RocksDbMerge> {
        let folder = self.folder.join("merge");
        let (text, verify_checksums) = text(&self.settings(threads))?;
        let database = Database::open(&folder, Options::parsed(&text)?, verify_checksums)?;
        for run in 0..self.count {
            let link = self.folder.join("ingested.sst");
            std::fs::hard_link(self.file(run), &link).map_err(failed("link a table"))?;
            ingest(&database, &[link])?;
        }
        let before = database.events().sums();
        let (began, used_s) = (Instant::now(), cpu_s().unwrap_or(0.0));
        database.compact();
        let wall_s = began.elapsed().as_secs_f64();
        let cpu_s = cpu_s().unwrap_or(0.0) - used_s;
        // The event of a compaction is in the log when its call has returned.
        let after = database.events().sums();
        let count = after.compaction_count - before.compaction_count;
        if count != 1 {
            let what = format!("the runs were merged by {count} compactions, expected one");
            return Err(EngineError::new("merge", what));
        }
        let entries = database.number(c"rocksdb.estimate-num-keys");
        drop(database);
        std::fs::remove_dir_all(&folder).map_err(failed("delete the database"))?;
        Ok(RocksDbMerge {
            wall_s,
            cpu_s,
            read_bytes: after.compaction_read_bytes - before.compaction_read_bytes,
            written_bytes: after.compaction_bytes - before.compaction_bytes,
            entries: entries.unwrap_or(0),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_compaction_merges_all_runs_each_time() {
        let folder = tempfile::tempdir().unwrap();
        for compression in [Compression::None, Compression::Lz4] {
            let folder = folder.path().join(compression.name());
            let runs = RocksDbRuns::new(&folder, compression, 3).unwrap();
            for run in 0..3u64 {
                // Every third key is in all runs, and the others are in one.
                let mut table = runs.table(run as usize).unwrap();
                for number in 0..3000u64 {
                    let own = if number % 3 == 0 { 0 } else { run };
                    let key = (3 * number + own).to_be_bytes();
                    table.put(&key, &[run as u8; 100]).unwrap();
                }
                table.finish().unwrap();
            }
            for threads in [1, 2, 1] {
                let merged = runs.merge(threads).unwrap();
                assert_eq!(merged.entries, 1000 + 3 * 2000, "{merged:?}");
                assert!(merged.wall_s > 0.0, "{merged:?}");
                assert!(
                    merged.written_bytes > 0 && merged.read_bytes > 0,
                    "{merged:?}"
                );
            }
        }
    }
}
