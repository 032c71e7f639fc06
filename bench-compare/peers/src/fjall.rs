//! fjall 3, a log-structured merge tree in Rust.
//!
//! Promise: with `manual_journal_persist = false`, its default, each write reaches the kernel
//! before it is acknowledged, so an unsynced write survives the end of the process. A synced write
//! is followed by `persist(SyncData)`, which waits for `fdatasync`.
//!
//! Settings: the memtable, the cache, the workers (at least two, [`MIN_WORKERS`] says why) and the
//! codec are as asked. fjall has no zstd, so the driver refuses it. The Bloom filter gets the bits
//! that are asked for below level 0. At level 0 it keeps fjall's own stronger filter (one false
//! positive in 10,000), which helps reads and costs little. The other filters and most indexes
//! share the cache with the data, as fjall has it by default; its setting
//! `pin_filters_and_indexes=true` keeps them in memory beside the cache, as RocksDB does. fjall
//! reads tables with system calls only. The settings of a keyspace are those of its creation: a
//! store that is opened again takes only the cache and the workers from the new settings.
//!
//! Idle: fjall counts the flushes that wait and the compactions that run, but not the compactions
//! that wait for a worker. A worker takes one within microseconds and keeps it for at least a
//! millisecond, so the store is idle when it is seen without work for a tenth of a second.
//!
//! Figures: fjall counts compactions and their time, but no bytes.
//!
//! Threading: as the traits say. A write is appended under one lock.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fjall::compaction::Leveled;
use fjall::config::{
    BlockSizePolicy, BloomConstructionPolicy, CompressionPolicy, FilterPolicy, FilterPolicyEntry,
    HashRatioPolicy, PinningPolicy,
};
use fjall::{
    AbstractTree, CompressionType, Database, Guard, Keyspace, KeyspaceCreateOptions, PersistMode,
};
use siltstone_bench::engine::{
    Abilities, Driver, Engine, EngineError, Entries, Figures, Level, Promise, Result,
    SETTINGS_ERROR, Session, ThreadClass, Write,
};
use siltstone_bench::settings::{Compression, EngineSettings};

use crate::own::{NOT_AVAILABLE, Own, no_codec};

/// With one worker, fjall 3.1.13 can stop for ever: writers fill the queue of the workers with
/// requests to rotate the memtable, and the worker then waits for room in its own queue.
const MIN_WORKERS: u32 = 2;

const POLL: Duration = Duration::from_millis(2);
const IDLE_POLLS: u32 = 50;

/// Opens stores of fjall.
#[derive(Debug, Default, Clone, Copy)]
pub struct FjallDriver;

fn failed<E: ToString>(during: &'static str) -> impl Fn(E) -> EngineError {
    move |error| EngineError::new(during, error)
}

/// How a store is opened, by fjall's names.
struct Settings {
    max_memtable_size: u64,
    cache_size: u64,
    worker_threads: usize,
    bloom_bits: u32,
    compression: CompressionType,
    max_journaling_size: u64,
    data_block_size: u32,
    data_block_hash_ratio: f32,
    expect_point_read_hits: bool,
    pin_filters_and_indexes: bool,
    l0_threshold: u8,
    table_target_size: u64,
}

fn settings_of(settings: &EngineSettings) -> Result<Settings> {
    let mut own = Own::new("fjall", &settings.own);
    let found = Settings {
        max_memtable_size: settings.memtable_bytes,
        cache_size: settings.cache_bytes,
        worker_threads: settings.background_threads.max(MIN_WORKERS) as usize,
        bloom_bits: settings.bloom_bits,
        compression: match settings.compression {
            Compression::None => CompressionType::None,
            Compression::Lz4 => CompressionType::Lz4,
            codec @ Compression::Zstd => {
                let others = "engine.compression can be none or lz4";
                return Err(no_codec("fjall", codec, others));
            }
        },
        max_journaling_size: own.number("max_journaling_size", 512 << 20)?,
        data_block_size: own.number("data_block_size", 4096)?,
        data_block_hash_ratio: own.number("data_block_hash_ratio", 0.0)?,
        expect_point_read_hits: own.number("expect_point_read_hits", false)?,
        pin_filters_and_indexes: own.number("pin_filters_and_indexes", false)?,
        l0_threshold: own.number("l0_threshold", 4)?,
        table_target_size: own.number("table_target_size", 64 << 20)?,
    };
    own.check()?;
    if found.max_journaling_size < 64 << 20 {
        let message = "fjall: max_journaling_size must be at least 67108864 bytes";
        return Err(EngineError::new("open", message));
    }
    Ok(found)
}

/// The settings by fjall's names.
fn named(settings: &Settings) -> BTreeMap<String, String> {
    let compression = settings.compression.to_string();
    let filter = match settings.bloom_bits {
        0 => "none".to_string(),
        bits => format!("level 0: FalsePositiveRate(0.0001), below: BitsPerKey({bits})"),
    };
    [
        ("max_memtable_size", settings.max_memtable_size.to_string()),
        ("cache_size", settings.cache_size.to_string()),
        ("worker_threads", settings.worker_threads.to_string()),
        ("filter_policy", filter),
        ("data_block_compression_policy", compression.clone()),
        ("journal_compression", compression),
        ("manual_journal_persist", false.to_string()),
        (
            "max_journaling_size",
            settings.max_journaling_size.to_string(),
        ),
        (
            "data_block_size_policy",
            settings.data_block_size.to_string(),
        ),
        (
            "data_block_hash_ratio_policy",
            settings.data_block_hash_ratio.to_string(),
        ),
        (
            "expect_point_read_hits",
            settings.expect_point_read_hits.to_string(),
        ),
        (
            "filter_block_pinning_policy and index_block_pinning_policy",
            match settings.pin_filters_and_indexes {
                true => "all levels".to_string(),
                false => {
                    "fjall's default (filters of level 0, indexes of levels 0 and 1)".to_string()
                }
            },
        ),
        ("l0_threshold", settings.l0_threshold.to_string()),
        ("table_target_size", settings.table_target_size.to_string()),
        ("mmap_reads", NOT_AVAILABLE.to_string()),
    ]
    .into_iter()
    .map(|(name, value)| (name.to_string(), value))
    .collect()
}

impl Settings {
    fn filter(&self) -> FilterPolicy {
        if self.bloom_bits == 0 {
            return FilterPolicy::disabled();
        }
        let rate = BloomConstructionPolicy::FalsePositiveRate(0.0001);
        let bits = BloomConstructionPolicy::BitsPerKey(self.bloom_bits as f32);
        FilterPolicy::new([
            FilterPolicyEntry::Bloom(rate),
            FilterPolicyEntry::Bloom(bits),
        ])
    }

    fn keyspace(&self) -> KeyspaceCreateOptions {
        let strategy = Leveled::default()
            .with_l0_threshold(self.l0_threshold)
            .with_table_target_size(self.table_target_size);
        let mut options = KeyspaceCreateOptions::default();
        if self.pin_filters_and_indexes {
            options = options
                .filter_block_pinning_policy(PinningPolicy::all(true))
                .index_block_pinning_policy(PinningPolicy::all(true));
        }
        options
            .max_memtable_size(self.max_memtable_size)
            .filter_policy(self.filter())
            .data_block_compression_policy(CompressionPolicy::all(self.compression))
            .data_block_size_policy(BlockSizePolicy::all(self.data_block_size))
            .data_block_hash_ratio_policy(HashRatioPolicy::all(self.data_block_hash_ratio))
            .expect_point_read_hits(self.expect_point_read_hits)
            .compaction_strategy(Arc::new(strategy))
    }
}

impl Driver for FjallDriver {
    fn name(&self) -> &str {
        "fjall"
    }

    fn version(&self) -> String {
        env!("FJALL_VERSION").to_string()
    }

    fn abilities(&self) -> Abilities {
        Abilities {
            unsynced: Promise::Process,
            sync: true,
            reverse: true,
            ingest: true,
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
        match name.starts_with("fjall:") {
            true => ThreadClass::Other,
            false => ThreadClass::Foreground,
        }
    }

    fn open(&self, folder: &Path, settings: &EngineSettings) -> Result<Box<dyn Engine>> {
        let settings = settings_of(settings)?;
        let database = Database::builder(folder)
            .cache_size(settings.cache_size)
            .worker_threads(settings.worker_threads)
            .journal_compression(settings.compression)
            .max_journaling_size(settings.max_journaling_size)
            .open()
            .map_err(failed("open"))?;
        let keyspace = database
            .keyspace("default", || settings.keyspace())
            .map_err(failed("open"))?;
        Ok(Box::new(Fjall { keyspace, database }))
    }
}

struct Fjall {
    /// It is dropped before the database, which waits for its workers.
    keyspace: Keyspace,
    database: Database,
}

impl Fjall {
    fn has_work(&self) -> bool {
        self.database.outstanding_flushes() > 0
            || self.database.active_compactions() > 0
            || self.keyspace.sealed_memtable_count() > 0
    }
}

impl Engine for Fjall {
    fn session(&self) -> Result<Box<dyn Session + '_>> {
        Ok(Box::new(FjallSession { engine: self }))
    }

    fn wait_until_idle(&self) -> Result<bool> {
        Ok(self.idle_since()?.is_some())
    }

    /// The polls that only make sure are not work of the engine.
    fn idle_since(&self) -> Result<Option<Instant>> {
        let (mut idle_polls, mut since) = (0, Instant::now());
        while idle_polls < IDLE_POLLS {
            std::thread::sleep(POLL);
            if self.has_work() {
                (idle_polls, since) = (0, Instant::now());
            } else {
                idle_polls += 1;
            }
        }
        Ok(Some(since))
    }

    fn flush(&self) -> Result<()> {
        self.keyspace
            .rotate_memtable_and_wait()
            .map_err(failed("flush"))
    }

    fn compact(&self) -> Result<()> {
        self.flush()?;
        self.keyspace.major_compact().map_err(failed("compact"))
    }

    fn ingest(&self, next: &mut dyn FnMut(&mut Vec<u8>, &mut Vec<u8>) -> bool) -> Result<()> {
        let mut ingestion = self.keyspace.start_ingestion().map_err(failed("ingest"))?;
        let (mut key, mut value) = (Vec::new(), Vec::new());
        while next(&mut key, &mut value) {
            ingestion
                .write(key.as_slice(), value.as_slice())
                .map_err(failed("ingest"))?;
        }
        ingestion.finish().map_err(failed("ingest"))
    }

    fn figures(&self) -> Figures {
        let compacting_us = self.database.time_compacting().as_micros() as u64;
        let others = [
            (
                "compaction_count",
                self.database.compactions_completed() as u64,
            ),
            ("compaction_time_us", compacting_us),
            ("journal_count", self.database.journal_count() as u64),
            (
                "journal_bytes",
                self.database.journal_disk_space().unwrap_or(0),
            ),
            ("memtable_bytes", self.database.write_buffer_size()),
        ];
        Figures {
            others: others
                .into_iter()
                .map(|(name, value)| (name.to_string(), value))
                .collect(),
            ..Figures::default()
        }
    }

    fn levels(&self) -> Vec<Level> {
        let version = self.keyspace.tree.current_version();
        (0..)
            .zip(version.iter_levels())
            .filter(|(_, found)| !found.is_empty())
            .map(|(level, found)| Level {
                level,
                runs: found.run_count() as u64,
                tables: found.table_count() as u64,
                bytes: found.size(),
            })
            .collect()
    }

    fn close(self: Box<Self>) -> Result<()> {
        Ok(())
    }
}

struct FjallSession<'a> {
    engine: &'a Fjall,
}

impl FjallSession<'_> {
    /// A single write needs no batch, which would be slower.
    fn write_one(&self, write: &Write<'_>) -> fjall::Result<()> {
        match *write {
            Write::Put(key, value) => self.engine.keyspace.insert(key, value),
            Write::Delete(key) => self.engine.keyspace.remove(key),
        }
    }

    fn write_batch(&self, writes: &[Write<'_>], sync: bool) -> fjall::Result<()> {
        let keyspace = &self.engine.keyspace;
        let mode = if sync {
            PersistMode::SyncData
        } else {
            PersistMode::Buffer
        };
        let database = self.engine.database.clone();
        let mut batch =
            fjall::OwnedWriteBatch::with_capacity(database, writes.len()).durability(Some(mode));
        for write in writes {
            match *write {
                Write::Put(key, value) => batch.insert(keyspace, key, value),
                Write::Delete(key) => batch.remove(keyspace, key),
            }
        }
        batch.commit()
    }
}

/// Gives entries until `entries` has enough.
fn give(found: impl Iterator<Item = Guard>, entries: &mut Entries<'_>) -> Result<()> {
    for guard in found {
        let (key, value) = guard.into_inner().map_err(failed("scan"))?;
        if !entries(&key, &value) {
            break;
        }
    }
    Ok(())
}

impl Session for FjallSession<'_> {
    fn write(&mut self, writes: &[Write<'_>], sync: bool) -> Result<()> {
        let result = match writes {
            [write] => self.write_one(write).and_then(|()| match sync {
                true => self.engine.database.persist(PersistMode::SyncData),
                false => Ok(()),
            }),
            _ => self.write_batch(writes, sync),
        };
        result.map_err(failed("write"))
    }

    fn get(&mut self, key: &[u8], found: &mut dyn FnMut(&[u8])) -> Result<bool> {
        let value = self.engine.keyspace.get(key).map_err(failed("get"))?;
        Ok(value.map(|value| found(&value)).is_some())
    }

    fn scan(&mut self, from: Option<&[u8]>, entries: &mut Entries<'_>) -> Result<()> {
        let keyspace = &self.engine.keyspace;
        match from {
            Some(from) => give(keyspace.range(from..), entries),
            None => give(keyspace.iter(), entries),
        }
    }

    fn scan_reverse(&mut self, from: Option<&[u8]>, entries: &mut Entries<'_>) -> Result<()> {
        let keyspace = &self.engine.keyspace;
        match from {
            Some(from) => give(keyspace.range(..=from).rev(), entries),
            None => give(keyspace.iter().rev(), entries),
        }
    }
}
