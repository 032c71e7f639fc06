//! LevelDB 1.23, linked to the system's library (Debian: `libleveldb-dev`).
//!
//! Promise: each write is appended to the log by a system call before it is acknowledged, so an
//! unsynced write survives the end of the process. A synced write waits for `fdatasync`.
//!
//! Settings: the memtable, the block cache and the bits of the Bloom filter are as asked. LevelDB
//! has one background thread, which both flushes and compacts, whatever is asked. Of the codecs it
//! has only Snappy, as its own setting `compression=snappy`; LZ4 and zstd are refused. It always
//! reads tables through maps, up to 1000 files, and with system calls beyond that. One setting
//! differs from LevelDB's default: `max_open_files` is the highest that LevelDB accepts, as RocksDB
//! keeps all tables open too. With the default of 1000, tables of more than 2 GiB would be opened
//! again and again. LevelDB keeps a fifth of the files open that the process may open, and so the
//! driver raises the process's own limit to the one that the system allows.
//!
//! Reads copy a value once, into a string that the session keeps, as a C++ program would do.
//! Checksums are not verified on reads, which is LevelDB's default.
//!
//! Figures: LevelDB keeps no counters of bytes by cause. Flushes, compactions and waits are counted
//! from what it writes to its own log of messages, and the bytes of its write-ahead log where they
//! are appended to the file; the processor time is that of its background thread. LevelDB
//! counts how often a writer waits, but not how long, so there are no stall times.
//!
//! Threading: as the traits say. Writes of several threads are grouped by LevelDB.

mod database;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Resource, getrlimit, setrlimit};
use siltstone_bench::engine::{
    Abilities, Driver, Engine, EngineError, Entries, Figures, Level, Promise, Result,
    SETTINGS_ERROR, Session, ThreadClass, Write,
};
use siltstone_bench::settings::{Compression, EngineSettings};

use crate::own::{NOT_AVAILABLE, Own, no_codec};
use database::{Batch, CppString, Database, Settings};

/// LevelDB clips the setting to this value.
const MAX_OPEN_FILES: i32 = 50_000;

/// Opens stores of LevelDB.
#[derive(Debug, Default, Clone, Copy)]
pub struct LevelDbDriver;

/// The settings as the bridge takes them.
fn settings_of(settings: &EngineSettings) -> Result<Settings> {
    if settings.compression != Compression::None {
        let others = "engine.compression can only be none, and LevelDB's own setting compression \
                      can be snappy";
        return Err(no_codec("LevelDB", settings.compression, others));
    }
    let mut own = Own::new("LevelDB", &settings.own);
    let found = Settings {
        write_buffer_size: settings.memtable_bytes as usize,
        cache_bytes: settings.cache_bytes as usize,
        max_file_size: own.number("max_file_size", 2 << 20)?,
        block_size: own.number("block_size", 4096)?,
        block_restart_interval: own.number("block_restart_interval", 16)?,
        max_open_files: own.number("max_open_files", MAX_OPEN_FILES)?,
        bloom_bits: settings.bloom_bits as i32,
        snappy: own.choice("compression", &["none", "snappy"])? == 1,
        paranoid_checks: own.number("paranoid_checks", false)?,
        reuse_logs: own.number("reuse_logs", false)?,
        verify_checksums: own.number("verify_checksums", false)?,
    };
    own.check()?;
    Ok(found)
}

/// The settings by LevelDB's names.
fn named(settings: &Settings) -> BTreeMap<String, String> {
    let compression = if settings.snappy { "snappy" } else { "none" };
    let filter = match settings.bloom_bits {
        0 => "none".to_string(),
        bits => format!("NewBloomFilterPolicy({bits})"),
    };
    [
        ("write_buffer_size", settings.write_buffer_size.to_string()),
        (
            "block_cache",
            format!("NewLRUCache({})", settings.cache_bytes),
        ),
        ("filter_policy", filter),
        ("compression", compression.to_string()),
        ("max_file_size", settings.max_file_size.to_string()),
        ("block_size", settings.block_size.to_string()),
        (
            "block_restart_interval",
            settings.block_restart_interval.to_string(),
        ),
        ("max_open_files", settings.max_open_files.to_string()),
        ("paranoid_checks", settings.paranoid_checks.to_string()),
        ("reuse_logs", settings.reuse_logs.to_string()),
        ("verify_checksums", settings.verify_checksums.to_string()),
        (
            "background_threads",
            format!("{NOT_AVAILABLE} (always one)"),
        ),
        (
            "mmap_reads",
            format!("{NOT_AVAILABLE} (always, up to 1000 files)"),
        ),
        ("lz4 and zstd", NOT_AVAILABLE.to_string()),
        (
            "open files of the process",
            getrlimit(Resource::Nofile)
                .maximum
                .map_or("unlimited".into(), |files| files.to_string()),
        ),
    ]
    .into_iter()
    .map(|(name, value)| (name.to_string(), value))
    .collect()
}

impl Driver for LevelDbDriver {
    fn name(&self) -> &str {
        "leveldb"
    }

    fn version(&self) -> String {
        database::version()
    }

    fn abilities(&self) -> Abilities {
        Abilities {
            unsynced: Promise::Process,
            sync: true,
            reverse: true,
            ingest: false,
            multi_get: false,
            compact: true,
            threads: true,
        }
    }

    fn settings(&self, settings: &EngineSettings) -> BTreeMap<String, String> {
        match settings_of(settings) {
            Ok(found) => named(&found),
            Err(error) => BTreeMap::from([(SETTINGS_ERROR.into(), error.message)]),
        }
    }

    fn thread_class(&self, name: &str) -> ThreadClass {
        match name {
            "leveldb:bg" => ThreadClass::Other,
            _ => ThreadClass::Foreground,
        }
    }

    fn open(&self, folder: &Path, settings: &EngineSettings) -> Result<Box<dyn Engine>> {
        let settings = settings_of(settings)?;
        raise_open_files();
        std::fs::create_dir_all(folder).map_err(|error| EngineError::new("open", error))?;
        let database = Database::open(folder, &settings)?;
        Ok(Box::new(LevelDb {
            database,
            sizes: Mutex::new(None),
        }))
    }
}

/// Lets this process open as many files as the system allows. LevelDB looks at this limit once,
/// when the first store is opened. Beyond its share it opens a table anew for each read.
fn raise_open_files() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // With the limit as it was, large stores are slower, and nothing else changes.
    let _ = setrlimit(Resource::Nofile, limit);
}

/// With at least so many tables, the text that lists them is read once in [`SIZES_KEPT`].
const MANY_TABLES: u64 = 64;
const SIZES_KEPT: Duration = Duration::from_secs(10);

struct LevelDb {
    database: Database,
    sizes: Mutex<Option<Sizes>>,
}

/// The bytes of each level, and when they were read.
struct Sizes {
    read: Instant,
    by_level: BTreeMap<u32, u64>,
}

impl Engine for LevelDb {
    fn session(&self) -> Result<Box<dyn Session + '_>> {
        Ok(Box::new(LevelDbSession {
            database: &self.database,
            batch: Batch::new(),
            value: CppString::new(),
        }))
    }

    fn wait_until_idle(&self) -> Result<bool> {
        self.database.wait_until_idle();
        Ok(true)
    }

    /// LevelDB writes its memtable before it compacts a range. This range is above all keys of the
    /// workloads, so nothing is compacted.
    fn flush(&self) -> Result<()> {
        let above = [0xff; 64];
        self.database.compact_between(&above, &above);
        Ok(())
    }

    fn compact(&self) -> Result<()> {
        self.database.compact();
        Ok(())
    }

    fn ingest(&self, _next: &mut dyn FnMut(&mut Vec<u8>, &mut Vec<u8>) -> bool) -> Result<()> {
        Err(EngineError::new("ingest", "LevelDB cannot ingest tables"))
    }

    fn figures(&self) -> Figures {
        let counted = self.database.counted();
        let background_ns = counted.background_cpu_ns;
        let compaction_ns = background_ns.saturating_sub(counted.background_flush_cpu_ns);
        Figures {
            log_bytes: Some(counted.log_bytes),
            flush_bytes: Some(counted.flush_bytes),
            compaction_bytes: Some(counted.compaction_bytes),
            compaction_read_bytes: self.read_bytes(),
            flush_cpu_s: Some(counted.flush_cpu_ns as f64 / 1e9),
            compaction_cpu_s: Some(compaction_ns as f64 / 1e9),
            others: BTreeMap::from([
                ("flush_count".into(), counted.flush_count),
                ("compaction_count".into(), counted.compaction_count),
                ("waits_for_memtable".into(), counted.memtable_waits),
                ("waits_for_level0".into(), counted.level0_waits),
            ]),
            ..Figures::default()
        }
    }

    /// The sizes come from a text that lists all tables, which LevelDB makes under its mutex. So
    /// they are read seldom, and between two readings they are those of the last one.
    fn levels(&self) -> Vec<Level> {
        let tables = self.tables_by_level();
        let sizes = self.sizes(tables.values().sum());
        tables
            .into_iter()
            .map(|(level, tables)| Level {
                level,
                runs: if level == 0 { tables } else { 1 },
                tables,
                bytes: sizes.get(&level).copied().unwrap_or(0),
            })
            .collect()
    }

    fn close(self: Box<Self>) -> Result<()> {
        Ok(())
    }
}

impl LevelDb {
    /// The rows of `leveldb.stats`: level, files, MiB, seconds, MiB read, MiB written. Only levels
    /// that have files, or to which a compaction wrote, have a row.
    fn rows(&self) -> Vec<[f64; 6]> {
        let stats = self.database.property(c"leveldb.stats");
        let row = |line: &str| {
            let numbers: Option<Vec<f64>> = line
                .split_whitespace()
                .map(|column| column.parse().ok())
                .collect();
            numbers?.try_into().ok()
        };
        stats
            .iter()
            .flat_map(|text| text.lines())
            .filter_map(row)
            .collect()
    }

    /// LevelDB rounds it to MiB for each level.
    fn read_bytes(&self) -> Option<u64> {
        let mib: f64 = self.rows().iter().map(|row| row[4]).sum();
        Some(mib as u64 * (1 << 20))
    }

    fn tables_by_level(&self) -> BTreeMap<u32, u64> {
        self.rows()
            .iter()
            .filter(|row| row[1] > 0.0)
            .map(|row| (row[0] as u32, row[1] as u64))
            .collect()
    }

    /// The bytes of each level, which may be some seconds old if there are many tables.
    fn sizes(&self, tables: u64) -> BTreeMap<u32, u64> {
        let mut kept = self.sizes.lock().unwrap_or_else(PoisonError::into_inner);
        match &*kept {
            Some(sizes) if tables >= MANY_TABLES && sizes.read.elapsed() < SIZES_KEPT => {
                sizes.by_level.clone()
            }
            _ => {
                let by_level = self.bytes_by_level();
                *kept = Some(Sizes {
                    read: Instant::now(),
                    by_level: by_level.clone(),
                });
                by_level
            }
        }
    }

    /// The exact sizes are in `leveldb.sstables`, which has a line ` number:bytes[...]` for each
    /// table after a line `--- level N ---`.
    fn bytes_by_level(&self) -> BTreeMap<u32, u64> {
        let listed = self
            .database
            .property(c"leveldb.sstables")
            .unwrap_or_default();
        let mut level = 0;
        let mut bytes = BTreeMap::new();
        for line in listed.lines() {
            if let Some(rest) = line.strip_prefix("--- level ") {
                level = number_at_start(rest).unwrap_or(0) as u32;
            } else if let Some(table) = line.trim_start().split_once(':').map(|(_, rest)| rest) {
                *bytes.entry(level).or_insert(0) += number_at_start(table).unwrap_or(0);
            }
        }
        bytes
    }
}

fn number_at_start(text: &str) -> Option<u64> {
    let digits = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    text[..digits].parse().ok()
}

struct LevelDbSession<'a> {
    database: &'a Database,
    batch: Batch,
    value: CppString,
}

impl Session for LevelDbSession<'_> {
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
        let value = self.database.get(key, &mut self.value)?;
        Ok(value.map(found).is_some())
    }

    fn scan(&mut self, from: Option<&[u8]>, entries: &mut Entries<'_>) -> Result<()> {
        let mut iterator = self.database.iterator();
        match from {
            Some(key) => iterator.seek(key),
            None => iterator.first(),
        }
        iterator.give(true, entries)
    }

    fn scan_reverse(&mut self, from: Option<&[u8]>, entries: &mut Entries<'_>) -> Result<()> {
        let mut iterator = self.database.iterator();
        match from {
            Some(key) => iterator.seek_for_prev(key)?,
            None => iterator.last(),
        }
        iterator.give(false, entries)
    }
}
