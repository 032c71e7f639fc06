//! RocksDB, linked to the library in `ROCKSDB_LIB_DIR`, or else built from source.
//!
//! Promise: each write is appended to the log by a system call before it is acknowledged
//! (`manual_wal_flush` is off), so an unsynced write survives the end of the process. A synced
//! write waits for `fdatasync`.
//!
//! Settings: memtable, block cache, bits of the Bloom filter, codec, threads
//! (`max_background_jobs`; of two, one flushes and one compacts) and reads through maps are as
//! asked. Two logs are kept and written again (`recycle_log_file_num`), because siltstone and
//! Pebble do that too, and it makes synced writes faster. Everything else is RocksDB's default, for
//! these reasons:
//!
//! - `optimize_filters_for_hits` stays off: it would leave out the filters of the last level, and
//!   make reads of absent keys several times slower.
//! - Index and filter blocks stay outside of the block cache and in memory, without a limit, which
//!   is the default and the fastest.
//! - The cache is an LRU cache. `HyperClockCache` is for many cores; on few they are equal.
//! - `allow_concurrent_memtable_write` is on by default. `enable_pipelined_write` is off by default
//!   and helps only several writers; an experiment can set it.
//! - Blocks have 4 KiB. The 16 KiB that RocksDB's guide proposes save memory of indexes, and cost
//!   time on reads that are in memory.
//! - `bytes_per_sync` is off by default; it smooths the writing of tables on slow disks.
//! - `level_compaction_dynamic_level_bytes` and `kMinOverlappingRatio` are on by default.
//! - `unordered_write` is off: it gives up that a snapshot does not change.
//! - Checksums are verified on reads, which is the default. An experiment can set
//!   `verify_checksums=false`, an option of reads.
//!
//! Options of an experiment have RocksDB's own names, and RocksDB parses them; those of tables have
//! the prefix `block_based_table_factory.`.
//!
//! Calls: reads pin the value instead of copying it. Reads of many keys are one batched call, which
//! sorts the keys. A session keeps its batch, so a write allocates nothing. An ingest builds tables
//! of 64 MiB beside the store and moves them in. A compaction of everything compacts the last level
//! too, each table once, as `db_bench` does.
//!
//! Idle: `WaitForCompact`, which waits for flushes too.
//!
//! Figures: see [`events`]; the bytes of the log and the stall time are from `rocksdb.dbstats`,
//! which rounds them to hundredths of a GiB and to milliseconds. RocksDB does not divide the stall
//! time by cause. It counts stalls by cause, and these counts are among the others.
//!
//! Threading: as the traits say. Writes of several threads are grouped by RocksDB.

mod database;
mod events;
mod iterator;
mod merge;
mod options;
mod tables;

use std::collections::BTreeMap;
use std::ffi::CStr;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use siltstone_bench::engine::{
    Abilities, Answers, Driver, Engine, EngineError, Entries, Figures, Level, Promise, Result,
    Session, ThreadClass, Write,
};
use siltstone_bench::settings::EngineSettings;

use database::{Batch, Database, ManyKeys, Options};
pub use merge::{RocksDbMerge, RocksDbRuns, RocksDbTable};

/// Opens stores of RocksDB.
#[derive(Debug, Default, Clone, Copy)]
pub struct RocksDbDriver;

impl Driver for RocksDbDriver {
    fn name(&self) -> &str {
        "rocksdb"
    }

    fn version(&self) -> String {
        static VERSION: OnceLock<Option<String>> = OnceLock::new();
        let version = VERSION.get_or_init(database::version);
        version.clone().unwrap_or_else(|| "unknown".into())
    }

    fn abilities(&self) -> Abilities {
        Abilities {
            unsynced: Promise::Process,
            sync: true,
            reverse: true,
            ingest: true,
            multi_get: true,
            compact: true,
            threads: true,
        }
    }

    fn settings(&self, settings: &EngineSettings) -> BTreeMap<String, String> {
        options::names(settings)
    }

    /// RocksDB flushes in its pool of high priority, and compacts in those of low and of bottom
    /// priority.
    fn thread_class(&self, name: &str) -> ThreadClass {
        match name.strip_prefix("rocksdb:") {
            Some(pool) if pool.starts_with("high") => ThreadClass::Flush,
            Some(pool) if pool.starts_with("low") || pool.starts_with("bot") => {
                ThreadClass::Compaction
            }
            Some(_) => ThreadClass::Other,
            None => ThreadClass::Foreground,
        }
    }

    fn open(&self, folder: &Path, settings: &EngineSettings) -> Result<Box<dyn Engine>> {
        let (text, verify_checksums) = options::text(settings)?;
        std::fs::create_dir_all(folder).map_err(|error| EngineError::new("open", error))?;
        let database = Database::open(folder, Options::parsed(&text)?, verify_checksums)?;
        Ok(Box::new(RocksDb {
            database,
            built: folder.with_extension("built"),
        }))
    }
}

struct RocksDb {
    database: Database,
    /// A folder beside the store for tables that are built to be ingested.
    built: PathBuf,
}

impl Engine for RocksDb {
    fn session(&self) -> Result<Box<dyn Session + '_>> {
        Ok(Box::new(RocksDbSession {
            database: &self.database,
            batch: Batch::new(),
            many: ManyKeys::default(),
        }))
    }

    fn wait_until_idle(&self) -> Result<bool> {
        self.database.wait_until_idle()?;
        Ok(true)
    }

    fn flush(&self) -> Result<()> {
        self.database.flush()
    }

    fn compact(&self) -> Result<()> {
        self.database.compact();
        Ok(())
    }

    fn ingest(&self, next: &mut dyn FnMut(&mut Vec<u8>, &mut Vec<u8>) -> bool) -> Result<()> {
        let tables = tables::build(&self.database, &self.built, next)?;
        if !tables.is_empty() {
            tables::ingest(&self.database, &tables)?;
        }
        std::fs::remove_dir_all(&self.built).map_err(|error| EngineError::new("ingest", error))
    }

    fn figures(&self) -> Figures {
        let sums = self.database.events().sums();
        let stats = self
            .database
            .property(c"rocksdb.dbstats")
            .unwrap_or_default();
        let mut others = self.counts();
        others.insert("flush_count".into(), sums.flush_count);
        others.insert("compaction_count".into(), sums.compaction_count);
        others.insert("trivial_move_count".into(), sums.trivial_move_count);
        Figures {
            user_bytes: None,
            log_bytes: log_bytes(&stats),
            flush_bytes: Some(sums.flush_bytes),
            compaction_read_bytes: Some(sums.compaction_read_bytes),
            compaction_bytes: Some(sums.compaction_bytes),
            flush_cpu_s: Some(sums.flush_cpu_us as f64 / 1e6),
            compaction_cpu_s: Some(sums.compaction_cpu_us as f64 / 1e6),
            stall_s: stall_s(&stats)
                .map(|seconds| ("all causes".to_string(), seconds))
                .into_iter()
                .collect(),
            others,
        }
    }

    fn levels(&self) -> Vec<Level> {
        tables::levels(&self.database)
    }

    fn close(self: Box<Self>) -> Result<()> {
        Ok(())
    }
}

impl RocksDb {
    /// The counts of stalls by cause, and what RocksDB keeps in memory.
    fn counts(&self) -> BTreeMap<String, u64> {
        let sizes: [(&str, &CStr); 3] = [
            ("block_cache_bytes", c"rocksdb.block-cache-usage"),
            ("memtable_bytes", c"rocksdb.cur-size-all-mem-tables"),
            ("table_reader_bytes", c"rocksdb.estimate-table-readers-mem"),
        ];
        let sizes = sizes.into_iter().filter_map(|(name, property)| {
            Some((name.to_string(), self.database.number(property)?))
        });
        let stalls = self.database.property(c"rocksdb.cf-write-stall-stats");
        sizes
            .chain(named_counts(&stalls.unwrap_or_default()))
            .collect()
    }
}

/// The counts in a text like `Write Stall (count): memtable-limit-stops: 0, total-stops: 0`.
fn named_counts(text: &str) -> BTreeMap<String, u64> {
    let (_, list) = text.split_once("(count): ").unwrap_or_default();
    list.split([',', '\n'])
        .filter_map(|pair| {
            let (name, count) = pair.rsplit_once(':')?;
            Some((name.trim().to_string(), count.trim().parse().ok()?))
        })
        .collect()
}

/// The bytes in a line like `Cumulative WAL: 12K writes, 0 syncs, ..., written: 0.25 GB, 9 MB/s`.
fn log_bytes(stats: &str) -> Option<u64> {
    let found = stats
        .lines()
        .find_map(|text| text.strip_prefix("Cumulative WAL: "))?;
    let (_, rest) = found.split_once("written: ")?;
    let gib: f64 = rest.split_once(" GB")?.0.parse().ok()?;
    Some((gib * (1u64 << 30) as f64) as u64)
}

/// The seconds in a line like `Cumulative stall: 00:01:2.345 H:M:S, 0.0 percent`.
fn stall_s(stats: &str) -> Option<f64> {
    let found = stats
        .lines()
        .find_map(|text| text.strip_prefix("Cumulative stall: "))?;
    let (time, _) = found.split_once(" H:M:S")?;
    time.split(':').try_fold(0.0, |seconds, part| {
        let part: f64 = part.trim().parse().ok()?;
        Some(seconds * 60.0 + part)
    })
}

struct RocksDbSession<'a> {
    database: &'a Database,
    batch: Batch,
    many: ManyKeys,
}

impl Session for RocksDbSession<'_> {
    fn write(&mut self, writes: &[Write<'_>], sync: bool) -> Result<()> {
        self.batch.clear();
        for write in writes {
            match write {
                Write::Put(key, value) => self.batch.put(key, value),
                Write::Delete(key) => self.batch.delete(key),
            }
        }
        self.database.write(&mut self.batch, sync)
    }

    fn get(&mut self, key: &[u8], found: &mut dyn FnMut(&[u8])) -> Result<bool> {
        self.database.get(key, found)
    }

    fn multi_get(&mut self, keys: &[&[u8]], answers: &mut Answers<'_>) -> Result<()> {
        self.database.multi_get(keys, &mut self.many, answers)
    }

    fn scan(&mut self, from: Option<&[u8]>, entries: &mut Entries<'_>) -> Result<()> {
        let mut iterator = self.database.iterator();
        iterator.seek(from);
        iterator.give(true, entries)
    }

    fn scan_reverse(&mut self, from: Option<&[u8]>, entries: &mut Entries<'_>) -> Result<()> {
        let mut iterator = self.database.iterator();
        iterator.seek_for_prev(from);
        iterator.give(false, entries)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use options::TABLE;

    #[test]
    fn the_log_and_the_stalls_are_read_from_the_statistics_of_the_database() {
        let stats = "** DB Stats **\n\
            Cumulative WAL: 12K writes, 0 syncs, 12.00 writes per sync, written: 0.25 GB, 9 MB/s\n\
            Cumulative stall: 01:02:3.500 H:M:S, 0.0 percent\n";
        assert_eq!(log_bytes(stats), Some(1 << 28));
        assert_eq!(stall_s(stats), Some(3723.5));
        assert_eq!(stall_s("other"), None);
    }

    #[test]
    fn rocksdb_accepts_every_option_and_writes_it_to_its_file() {
        let folder = tempfile::tempdir().unwrap();
        let mut settings = EngineSettings {
            cache_bytes: 5 << 20,
            mmap_reads: Some(true),
            ..EngineSettings::default()
        };
        settings
            .own
            .insert("max_write_buffer_number".into(), "3".into());
        settings
            .own
            .insert(format!("{TABLE}block_size"), "8192".into());
        let (text, verify) = options::text(&settings).unwrap();
        let options = Options::parsed(&text).unwrap();
        let database = Database::open(folder.path(), options, verify).unwrap();
        assert_eq!(
            database.number(c"rocksdb.block-cache-capacity"),
            Some(5 << 20)
        );
        let files = std::fs::read_dir(folder.path()).unwrap().flatten();
        let file = files
            .map(|file| file.path())
            .find(|path| path.to_string_lossy().contains("OPTIONS-"))
            .expect("RocksDB writes its options to a file");
        let written = std::fs::read_to_string(file).unwrap();
        for line in [
            "write_buffer_size=67108864",
            "max_background_jobs=2",
            "compression=kNoCompression",
            "allow_mmap_reads=true",
            "max_write_buffer_number=3",
            "filter_policy=bloomfilter:10:false",
            "block_size=8192",
        ] {
            assert!(written.contains(line), "{line} is not in {written}");
        }
    }

    #[test]
    fn threads_are_told_apart_by_their_pools() {
        let class = |name| RocksDbDriver.thread_class(name);
        assert_eq!(class("rocksdb:high"), ThreadClass::Flush);
        assert_eq!(class("rocksdb:low"), ThreadClass::Compaction);
        assert_eq!(class("rocksdb:dump_st"), ThreadClass::Other);
        assert_eq!(class("reader-1"), ThreadClass::Foreground);
    }

    #[test]
    fn stalls_are_counted_by_cause() {
        let text = "Write Stall (count): memtable-limit-stops: 3, total-stops: 4\n";
        let counts = BTreeMap::from([
            ("memtable-limit-stops".into(), 3),
            ("total-stops".into(), 4),
        ]);
        assert_eq!(named_counts(text), counts);
    }
}
