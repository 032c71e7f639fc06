//! The project's own engine.
//!
//! Threading: as [`siltstone::Store`], whose handles all threads share.

use std::collections::BTreeMap;
use std::ops::Deref;
use std::path::{Path, PathBuf};

use siltstone::{
    Batch, ByLevel, Cursor, IngestMode, IterOptions, Keyspace, Options, Stats, Store, TableBuilder,
    TableFolder, TableOptions, WriteOptions,
};
use siltstone_device::DeviceStore;

use super::executors::BySide;
use super::{
    Abilities, Answers, Driver, Engine, EngineError, Entries, Figures, Level, Promise, Result,
    SETTINGS_ERROR, Session, ThreadClass, Write,
};
use crate::settings::{Compression, EngineSettings};

/// Opens stores of siltstone.
#[derive(Debug, Default, Clone, Copy)]
pub struct SiltstoneDriver;

/// An open store, which a device may have a part in.
pub(crate) enum Opened {
    /// No device has.
    Local(Store),
    /// One has.
    Placed(Box<DeviceStore>),
}

impl Deref for Opened {
    type Target = Store;

    fn deref(&self) -> &Store {
        match self {
            Opened::Local(store) => store,
            Opened::Placed(store) => store,
        }
    }
}

impl Opened {
    fn close(self) -> siltstone::Result<()> {
        match self {
            Opened::Local(store) => store.close(),
            Opened::Placed(store) => store.close(),
        }
    }
}

/// What is counted beside the store's own counters.
pub(crate) trait Beside: Send + Sync {
    /// Counters by name, since the open.
    fn counters(&self, store: &Opened, stats: &Stats) -> Vec<(String, u64)>;
}

/// The error of a call of the store.
pub(crate) fn failed(during: &'static str) -> impl FnOnce(siltstone::Error) -> EngineError {
    move |error| EngineError::new(during, error)
}

/// The options of a store with these settings.
pub(crate) fn options_of(settings: &EngineSettings) -> Result<Options> {
    let mut text = String::new();
    for (name, value) in &settings.own {
        let is_plain = value.parse::<u64>().is_ok() || value.parse::<bool>().is_ok();
        let is_toml = is_plain || value.starts_with(['[', '"', '\'']);
        let value = if is_toml {
            value.clone()
        } else {
            format!("{value:?}")
        };
        text.push_str(&format!("{name} = {value}\n"));
    }
    let mut options = Options::from_toml(&text).map_err(failed("read the engine's settings"))?;
    let own = |name: &str| settings.own.contains_key(name);
    if !own("memtable_bytes") {
        options.memtable_bytes = settings.memtable_bytes;
    }
    if !own("block_cache_bytes") {
        options.block_cache_bytes = settings.cache_bytes;
    }
    if !own("bloom_bits_per_key") {
        options.bloom_bits_per_key = ByLevel::all(settings.bloom_bits);
    }
    if !own("compression") {
        options.compression = ByLevel::all(match settings.compression {
            Compression::None => siltstone::Compression::None,
            Compression::Lz4 => siltstone::Compression::Lz4,
            Compression::Zstd => siltstone::Compression::Zstd(1),
        });
    }
    if !own("background_tasks") {
        options.background_tasks = settings.background_threads;
    }
    if let Some(mapped) = settings.mmap_reads
        && !own("map_tables")
    {
        options.map_tables = mapped;
    }
    Ok(options)
}

impl Driver for SiltstoneDriver {
    fn name(&self) -> &str {
        "siltstone"
    }

    fn version(&self) -> String {
        env!("CARGO_PKG_VERSION").to_string()
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
        match options_of(settings) {
            Ok(options) => siltstone::settings()
                .iter()
                .map(|setting| {
                    let value = setting.value(&options);
                    (setting.name.to_string(), setting.show(&value))
                })
                .collect(),
            Err(error) => BTreeMap::from([(SETTINGS_ERROR.into(), error.message)]),
        }
    }

    /// The workers both flush and compact.
    fn thread_class(&self, name: &str) -> ThreadClass {
        match name.starts_with("silt-") {
            true => ThreadClass::Other,
            false => ThreadClass::Foreground,
        }
    }

    fn open(&self, folder: &Path, settings: &EngineSettings) -> Result<Box<dyn Engine>> {
        let options = options_of(settings)?;
        let store = Store::open(folder, options).map_err(failed("open"))?;
        let beside = Some(Box::new(BySide) as Box<dyn Beside>);
        let store = Siltstone::of(Opened::Local(store), folder, beside)?;
        Ok(Box::new(store))
    }
}

pub(crate) struct Siltstone {
    store: Opened,
    keyspace: Keyspace,
    beside: Option<Box<dyn Beside>>,
    /// A folder beside the store for tables that are built to be ingested.
    built: PathBuf,
}

impl Siltstone {
    /// A store that is open, whose files are in `folder` as far as they are local.
    pub(crate) fn of(
        store: Opened,
        folder: &Path,
        beside: Option<Box<dyn Beside>>,
    ) -> Result<Siltstone> {
        let keyspace = store.default_keyspace().map_err(failed("open"))?;
        Ok(Siltstone {
            store,
            keyspace,
            beside,
            built: folder.with_extension("built"),
        })
    }
}

impl Engine for Siltstone {
    fn session(&self) -> Result<Box<dyn Session + '_>> {
        Ok(Box::new(StoreSession {
            store: &self.store,
            keyspace: &self.keyspace,
            batch: Batch::new(),
            value: Vec::new(),
        }))
    }

    fn wait_until_idle(&self) -> Result<bool> {
        self.store
            .wait_until_idle()
            .map_err(failed("wait until idle"))?;
        Ok(true)
    }

    fn flush(&self) -> Result<()> {
        self.store.flush().map_err(failed("flush"))
    }

    fn compact(&self) -> Result<()> {
        self.keyspace
            .compact_range(None, None)
            .map_err(failed("compact"))
    }

    fn ingest(&self, next: &mut dyn FnMut(&mut Vec<u8>, &mut Vec<u8>) -> bool) -> Result<()> {
        let failed = || failed("ingest");
        let folder = TableFolder::create(&self.built).map_err(failed())?;
        let options = TableOptions::from(&self.keyspace.options());
        let mut builder = TableBuilder::new(&folder, "bench", options).map_err(failed())?;
        let (mut key, mut value) = (Vec::new(), Vec::new());
        while next(&mut key, &mut value) {
            builder.put(&key, &value).map_err(failed())?;
        }
        let tables = builder.finish().map_err(failed())?;
        let files = tables.into_iter().map(|table| table.file).collect();
        self.store
            .ingest(&[(&self.keyspace, files)], IngestMode::Move)
            .map_err(failed())?;
        // What is left is an empty folder, or one with files of somebody else.
        let _ = std::fs::remove_dir(&self.built);
        Ok(())
    }

    fn figures(&self) -> Figures {
        let stats = self.store.stats();
        let seconds = |us: u64| us as f64 / 1e6;
        Figures {
            user_bytes: Some(stats.counter("user_bytes")),
            // If writers sync the log, a segment is written twice: with zeros, and with records.
            log_bytes: Some(stats.counter("log_bytes") + stats.log.zeroed_bytes),
            flush_bytes: Some(stats.counter("flush_out_bytes")),
            compaction_read_bytes: Some(stats.counter("compaction_in_bytes")),
            compaction_bytes: Some(stats.counter("compaction_out_bytes")),
            flush_cpu_s: Some(seconds(stats.counter("flush_cpu_us"))),
            compaction_cpu_s: Some(seconds(stats.counter("compaction_cpu_us"))),
            // The waits in the leader's turn are in `others`: one of them is no wait of one writer.
            stall_s: stats
                .delay_totals
                .iter()
                .filter(|(cause, _)| !cause.is_of_leader())
                .map(|(cause, total)| (cause.word().to_string(), seconds(total.total_us)))
                .collect(),
            others: {
                let beside = self
                    .beside
                    .iter()
                    .flat_map(|beside| beside.counters(&self.store, &stats));
                let own = stats.counters.iter();
                let own = own.map(|(name, count)| (name.to_string(), *count));
                let of_leader = stats.delay_totals.iter();
                let of_leader = of_leader.filter(|(cause, _)| cause.is_of_leader());
                let of_leader = of_leader
                    .map(|(cause, total)| (format!("leader_{}_us", cause.word()), total.total_us));
                own.chain(of_leader).chain(beside).collect()
            },
        }
    }

    fn levels(&self) -> Vec<Level> {
        let stats = self.store.stats();
        let name = self.keyspace.name();
        let Some(keyspace) = stats.keyspaces.iter().find(|k| k.name == name) else {
            return Vec::new();
        };
        (0..)
            .zip(&keyspace.levels)
            .filter(|(_, level)| level.table_count > 0)
            .map(|(number, level)| Level {
                level: number,
                runs: level.run_count,
                tables: level.table_count,
                bytes: level.file_bytes,
            })
            .collect()
    }

    fn close(self: Box<Self>) -> Result<()> {
        let Siltstone {
            store, keyspace, ..
        } = *self;
        drop(keyspace);
        store.close().map_err(failed("close"))
    }
}

struct StoreSession<'a> {
    store: &'a Store,
    keyspace: &'a Keyspace,
    batch: Batch,
    /// A buffer for the value of a get.
    value: Vec<u8>,
}

/// Gives the entries to `entries`, beginning at the cursor's position.
fn walk(
    cursor: &mut Cursor,
    entries: &mut Entries<'_>,
    step: impl Fn(&mut Cursor) -> siltstone::Result<()>,
) -> siltstone::Result<()> {
    while cursor.valid() && entries(cursor.key(), cursor.value()) {
        step(cursor)?;
    }
    Ok(())
}

impl Session for StoreSession<'_> {
    fn write(&mut self, writes: &[Write<'_>], sync: bool) -> Result<()> {
        self.batch.clear();
        for write in writes {
            match write {
                Write::Put(key, value) => self.batch.put(self.keyspace, key, value),
                Write::Delete(key) => self.batch.delete(self.keyspace, key),
            }
            .map_err(failed("write"))?;
        }
        self.store
            .write(
                &self.batch,
                WriteOptions {
                    sync,
                    ..WriteOptions::default()
                },
            )
            .map_err(failed("write"))
    }

    fn put(&mut self, key: &[u8], value: &[u8], sync: bool) -> Result<()> {
        self.keyspace
            .put_with(
                key,
                value,
                WriteOptions {
                    sync,
                    ..WriteOptions::default()
                },
            )
            .map_err(failed("put"))
    }

    fn delete(&mut self, key: &[u8], sync: bool) -> Result<()> {
        self.keyspace
            .delete_with(
                key,
                WriteOptions {
                    sync,
                    ..WriteOptions::default()
                },
            )
            .map_err(failed("delete"))
    }

    fn get(&mut self, key: &[u8], found: &mut dyn FnMut(&[u8])) -> Result<bool> {
        let value = &mut self.value;
        let is_found = self.keyspace.get_into(key, value).map_err(failed("get"))?;
        if is_found {
            found(value);
        }
        Ok(is_found)
    }

    fn multi_get(&mut self, keys: &[&[u8]], answers: &mut Answers<'_>) -> Result<()> {
        let values = self.keyspace.multi_get(keys).map_err(failed("multi_get"))?;
        for (index, value) in values.iter().enumerate() {
            answers(index, value.as_deref());
        }
        Ok(())
    }

    fn scan(&mut self, from: Option<&[u8]>, entries: &mut Entries<'_>) -> Result<()> {
        let mut scan = || {
            let mut cursor = self.keyspace.cursor(IterOptions::default())?;
            match from {
                Some(key) => cursor.seek(key)?,
                None => cursor.seek_to_first()?,
            }
            walk(&mut cursor, entries, Cursor::next)
        };
        scan().map_err(failed("scan"))
    }

    fn scan_reverse(&mut self, from: Option<&[u8]>, entries: &mut Entries<'_>) -> Result<()> {
        let mut scan = || {
            let mut cursor = self.keyspace.cursor(IterOptions::default())?;
            match from {
                Some(key) => cursor.seek_for_prev(key)?,
                None => cursor.seek_to_last()?,
            }
            walk(&mut cursor, entries, Cursor::prev)
        };
        scan().map_err(failed("scan backward"))
    }
}
