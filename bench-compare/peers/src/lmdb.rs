//! LMDB, a B+ tree in a memory map, with `WRITEMAP | NOSYNC | NOMEMINIT`.
//!
//! Promise: with `WRITEMAP` a commit stores into a shared map, so its pages are in the page cache
//! when the call returns and survive the end of the process. A process that is killed within a
//! transaction leaves pages that no meta page refers to; the meta page of a commit gets its number
//! last. So an unsynced write survives the process, as with the other engines. After a loss of
//! power the promise is weaker: the others lose their latest writes, but the kernel may have
//! written LMDB's meta page before the pages that it refers to, and then the store is damaged.
//!
//! A synced write clears `NOSYNC` for its commit, which then syncs all pages before the meta page.
//! Once it returns, the store survives a loss of power, until the next unsynced write.
//!
//! Each write is a transaction of its own, and LMDB has one writer at a time. A session keeps a
//! read transaction, and renews it for each operation. Values are given out of the map, without a
//! copy.
//!
//! The map has [`MAP_SIZE`] bytes unless `map_size` says otherwise, so that it does not become full
//! while something is measured: LMDB's manual advises to choose it as large as possible. It costs
//! addresses only. With `WRITEMAP` the file is as long as the map, with holes where no page was
//! used, so its blocks say what it takes on the disk, not its length. A map that is full
//! nevertheless is doubled, after which all pages have to be mapped again. On a file system without
//! holes, or with a limit of addresses (`ulimit -v`), `map_size` has to be given.
//!
//! Reads of data that is larger than memory need `nordahead=true`: LMDB's source calls readahead
//! harmful then. It stays off by default, because readahead helps scans of data that fits.
//!
//! Settings: there are no memtables, filters or background threads, and the page cache is the
//! cache. LMDB does not compress, so a codec is refused. The version is 0.9.24, as in Debian 12;
//! later ones of 0.9 only correct errors.
//!
//! An ingest is LMDB's bulk load: `MDB_APPEND`, which fills pages from left to right, if the
//! entries lie behind all others.
//!
//! Threading: as the traits say. To grow the map, a writer waits until no session is within an
//! operation ([`Gate`]).

mod gate;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};

use lmdb::{
    Cursor, Database, Environment, EnvironmentFlags, Error, InactiveTransaction, RoCursor,
    RoTransaction, RwTransaction, Transaction, WriteFlags,
};
use lmdb_sys as ffi;
use siltstone_bench::engine::{
    Abilities, Driver, Engine, EngineError, Entries, Figures, Level, Promise, Result,
    SETTINGS_ERROR, Session, Write,
};
use siltstone_bench::settings::{Compression, EngineSettings};

use crate::own::{NOT_AVAILABLE, Own, no_codec};
use gate::{Gate, Passage};

/// The size of the map: more than ten times what the largest standard comparison needs, with 20 GiB
/// of records, whose pages are two thirds full after random inserts.
const MAP_SIZE: usize = 256 << 30;

/// Bytes of entries that one transaction of an ingest writes.
const INGEST_BYTES: usize = 8 << 20;

/// Opens stores of LMDB.
#[derive(Debug, Default, Clone, Copy)]
pub struct LmdbDriver;

/// How an environment is opened.
struct Settings {
    map_size: usize,
    max_readers: u32,
    flags: EnvironmentFlags,
}

fn failed(during: &'static str) -> impl Fn(Error) -> EngineError {
    move |error| EngineError::new(during, error)
}

/// The error of an open, with the setting that is most often the reason.
fn cannot_open(error: Error, map_size: usize) -> EngineError {
    let message = format!(
        "{error} (with a map of {map_size} bytes; a file system without holes, or a limit of \
         addresses, needs a smaller one: set LMDB's own setting map_size)"
    );
    EngineError::new("open", message)
}

/// The default flags are those of an embedded user who wants the fastest writes that survive the
/// process. `NOTLS` only allows several sessions in one thread.
fn settings_of(settings: &EngineSettings) -> Result<Settings> {
    if settings.compression != Compression::None {
        let others = "engine.compression can only be none, because LMDB does not compress";
        return Err(no_codec("LMDB", settings.compression, others));
    }
    let mut own = Own::new("LMDB", &settings.own);
    let optional = [
        ("writemap", true, EnvironmentFlags::WRITE_MAP),
        ("nometasync", false, EnvironmentFlags::NO_META_SYNC),
        ("nomeminit", true, EnvironmentFlags::NO_MEM_INIT),
        ("nordahead", false, EnvironmentFlags::NO_READAHEAD),
    ];
    let mut flags = EnvironmentFlags::NO_TLS | EnvironmentFlags::NO_SYNC;
    for (name, default, flag) in optional {
        flags.set(flag, own.number(name, default)?);
    }
    let found = Settings {
        map_size: own.number("map_size", MAP_SIZE)?,
        max_readers: own.number("max_readers", 1024)?,
        flags,
    };
    own.check()?;
    Ok(found)
}

impl Driver for LmdbDriver {
    fn name(&self) -> &str {
        "lmdb"
    }

    fn version(&self) -> String {
        gate::version()
    }

    fn abilities(&self) -> Abilities {
        Abilities {
            unsynced: Promise::Fragile,
            sync: true,
            reverse: true,
            ingest: true,
            multi_get: false,
            compact: false,
            threads: true,
        }
    }

    fn settings(&self, settings: &EngineSettings) -> BTreeMap<String, String> {
        let found = match settings_of(settings) {
            Ok(found) => found,
            Err(error) => return BTreeMap::from([(SETTINGS_ERROR.into(), error.message)]),
        };
        let missing = [
            "memtable_bytes",
            "cache_bytes",
            "bloom_bits",
            "compression",
            "background_threads",
            "mmap_reads",
        ];
        let mut named: BTreeMap<String, String> = missing
            .map(|name| (name.to_string(), NOT_AVAILABLE.to_string()))
            .into();
        named.insert("flags".into(), format!("{:?}", found.flags));
        named.insert("map_size".into(), found.map_size.to_string());
        named.insert("max_readers".into(), found.max_readers.to_string());
        named
    }

    fn open(&self, folder: &Path, settings: &EngineSettings) -> Result<Box<dyn Engine>> {
        let settings = settings_of(settings)?;
        std::fs::create_dir_all(folder).map_err(|error| EngineError::new("open", error))?;
        let environment = Environment::new()
            .set_flags(settings.flags)
            .set_map_size(settings.map_size)
            .set_max_readers(settings.max_readers)
            .open(folder)
            .map_err(|error| cannot_open(error, settings.map_size))?;
        let database = environment.open_db(None).map_err(failed("open"))?;
        Ok(Box::new(Lmdb {
            database,
            gate: Gate::default(),
            writer: Mutex::new(true),
            environment,
        }))
    }
}

struct Lmdb {
    environment: Environment,
    database: Database,
    gate: Gate,
    /// Guards write transactions, and says whether commits are now made without a sync.
    writer: Mutex<bool>,
}

impl Lmdb {
    /// The lock of the writer, with the flag `NOSYNC` as `sync` needs it.
    fn writer(&self, sync: bool) -> Result<MutexGuard<'_, bool>> {
        let mut is_unsynced = self.writer.lock().map_err(gate::poisoned)?;
        if *is_unsynced == sync {
            gate::set_no_sync(&self.environment, !sync).map_err(failed("set NOSYNC"))?;
            *is_unsynced = !sync;
        }
        Ok(is_unsynced)
    }

    /// Carries out a transaction, and grows the map as often as it is too small for it.
    fn transact(
        &self,
        sync: bool,
        passage: &Passage,
        write: &mut dyn FnMut(&mut RwTransaction<'_>) -> lmdb::Result<()>,
    ) -> Result<()> {
        let _writer = self.writer(sync)?;
        loop {
            let within = passage.enter()?;
            let mut transaction = self.environment.begin_rw_txn().map_err(failed("begin"))?;
            match write(&mut transaction).and_then(|()| transaction.commit()) {
                Ok(()) => return Ok(()),
                Err(Error::MapFull) => {
                    drop(within);
                    self.grow()?;
                }
                Err(error) => return Err(EngineError::new("write", error)),
            }
        }
    }

    /// Doubles the map, while no session is within an operation.
    fn grow(&self) -> Result<()> {
        self.gate.close(|| {
            let info = self.environment.info().map_err(failed("grow the map"))?;
            self.environment
                .set_map_size(info.map_size() * 2)
                .map_err(failed("grow the map"))
        })
    }

    /// Whether all keys of the store are less than `first`.
    fn is_behind_all(&self, passage: &Passage, first: &[u8]) -> Result<bool> {
        let _within = passage.enter()?;
        let transaction = self.environment.begin_ro_txn().map_err(failed("ingest"))?;
        let cursor = transaction
            .open_ro_cursor(self.database)
            .map_err(failed("ingest"))?;
        match cursor.get(None, None, ffi::MDB_LAST) {
            Ok((key, _)) => Ok(key.is_some_and(|key| key < first)),
            Err(Error::NotFound) => Ok(true),
            Err(error) => Err(EngineError::new("ingest", error)),
        }
    }
}

impl Lmdb {
    /// What LMDB says of its pages, which it reads from the map.
    fn counts(&self) -> Result<BTreeMap<String, u64>> {
        let passage = self.gate.passage()?;
        let _within = passage.enter()?;
        let stat = self.environment.stat().map_err(failed("figures"))?;
        let info = self.environment.info().map_err(failed("figures"))?;
        Ok(BTreeMap::from([
            ("branch_pages".into(), stat.branch_pages() as u64),
            ("depth".into(), stat.depth().into()),
            ("entries".into(), stat.entries() as u64),
            ("last_page".into(), info.last_pgno() as u64),
            ("last_transaction".into(), info.last_txnid() as u64),
            ("leaf_pages".into(), stat.leaf_pages() as u64),
            ("map_size_bytes".into(), info.map_size() as u64),
            ("overflow_pages".into(), stat.overflow_pages() as u64),
            ("page_bytes".into(), stat.page_size().into()),
        ]))
    }
}

impl Engine for Lmdb {
    fn session(&self) -> Result<Box<dyn Session + '_>> {
        Ok(Box::new(LmdbSession {
            engine: self,
            passage: self.gate.passage()?,
            reader: None,
        }))
    }

    /// LMDB does nothing in the background.
    fn wait_until_idle(&self) -> Result<bool> {
        Ok(true)
    }

    /// There are no memtables.
    fn flush(&self) -> Result<()> {
        Ok(())
    }

    fn compact(&self) -> Result<()> {
        Err(EngineError::new(
            "compact",
            "LMDB cannot compact a store that is open",
        ))
    }

    fn ingest(&self, next: &mut dyn FnMut(&mut Vec<u8>, &mut Vec<u8>) -> bool) -> Result<()> {
        let passage = self.gate.passage()?;
        let mut flags = None;
        loop {
            let entries = taken(next, INGEST_BYTES);
            let Some((first, _)) = entries.first() else {
                return Ok(());
            };
            let flags = match flags {
                Some(flags) => flags,
                None if self.is_behind_all(&passage, first)? => *flags.insert(WriteFlags::APPEND),
                None => *flags.insert(WriteFlags::empty()),
            };
            self.transact(false, &passage, &mut |transaction| {
                entries
                    .iter()
                    .try_for_each(|(key, value)| transaction.put(self.database, key, value, flags))
            })?;
        }
    }

    fn figures(&self) -> Figures {
        Figures {
            others: self.counts().unwrap_or_default(),
            ..Figures::default()
        }
    }

    /// A B+ tree has no levels of this kind.
    fn levels(&self) -> Vec<Level> {
        Vec::new()
    }

    fn close(self: Box<Self>) -> Result<()> {
        Ok(())
    }
}

/// The next entries, of at least `bytes` if there are so many.
fn taken(
    next: &mut dyn FnMut(&mut Vec<u8>, &mut Vec<u8>) -> bool,
    bytes: usize,
) -> Vec<(Vec<u8>, Vec<u8>)> {
    let (mut entries, mut found) = (Vec::new(), 0);
    let (mut key, mut value) = (Vec::new(), Vec::new());
    while found < bytes && next(&mut key, &mut value) {
        found += key.len() + value.len();
        entries.push((key.clone(), value.clone()));
    }
    entries
}

struct LmdbSession<'a> {
    engine: &'a Lmdb,
    passage: Arc<Passage>,
    /// The read transaction between two operations. There is none before the first.
    reader: Option<InactiveTransaction<'a>>,
}

impl<'a> LmdbSession<'a> {
    /// Reads in the newest state, within the gate.
    fn read<T>(
        &mut self,
        read: impl FnOnce(&RoTransaction<'a>, Database) -> lmdb::Result<T>,
    ) -> Result<T> {
        let _within = self.passage.enter()?;
        let transaction = match self.reader.take() {
            Some(reader) => reader.renew(),
            None => self.engine.environment.begin_ro_txn(),
        };
        let transaction = transaction.map_err(failed("begin"))?;
        let result = read(&transaction, self.engine.database).map_err(failed("read"));
        self.reader = Some(transaction.reset());
        result
    }
}

/// An entry where a cursor is: the key, unless it is the caller's, and the value.
type Found<'a> = lmdb::Result<(Option<&'a [u8]>, &'a [u8])>;

/// Moves to the last key that is not greater. LMDB has no such seek of its own.
fn seek_for_prev<'a>(cursor: &RoCursor<'a>, key: &[u8]) -> Found<'a> {
    match cursor.get(Some(key), None, ffi::MDB_SET_RANGE) {
        Ok((Some(found), value)) if found == key => Ok((Some(found), value)),
        Ok(_) => cursor.get(None, None, ffi::MDB_PREV),
        Err(Error::NotFound) => cursor.get(None, None, ffi::MDB_LAST),
        error => error,
    }
}

/// Gives the entries from a position on until `entries` has enough.
fn give(
    cursor: &RoCursor<'_>,
    first: Found<'_>,
    step: u32,
    entries: &mut Entries<'_>,
) -> lmdb::Result<()> {
    let mut found = first;
    loop {
        match found {
            Ok((Some(key), value)) if entries(key, value) => found = cursor.get(None, None, step),
            Ok(_) | Err(Error::NotFound) => return Ok(()),
            Err(error) => return Err(error),
        }
    }
}

impl Session for LmdbSession<'_> {
    fn write(&mut self, writes: &[Write<'_>], sync: bool) -> Result<()> {
        let database = self.engine.database;
        self.engine
            .transact(sync, &self.passage, &mut |transaction| {
                writes.iter().try_for_each(|write| match write {
                    Write::Put(key, value) => {
                        transaction.put(database, key, value, WriteFlags::empty())
                    }
                    Write::Delete(key) => match transaction.del(database, key, None) {
                        Err(Error::NotFound) => Ok(()),
                        result => result,
                    },
                })
            })
    }

    fn get(&mut self, key: &[u8], found: &mut dyn FnMut(&[u8])) -> Result<bool> {
        self.read(
            |transaction, database| match transaction.get(database, &key) {
                Ok(value) => {
                    found(value);
                    Ok(true)
                }
                Err(Error::NotFound) => Ok(false),
                Err(error) => Err(error),
            },
        )
    }

    fn scan(&mut self, from: Option<&[u8]>, entries: &mut Entries<'_>) -> Result<()> {
        self.read(|transaction, database| {
            let cursor = transaction.open_ro_cursor(database)?;
            let first = match from {
                Some(key) if !key.is_empty() => cursor.get(from, None, ffi::MDB_SET_RANGE),
                _ => cursor.get(None, None, ffi::MDB_FIRST),
            };
            give(&cursor, first, ffi::MDB_NEXT, entries)
        })
    }

    fn scan_reverse(&mut self, from: Option<&[u8]>, entries: &mut Entries<'_>) -> Result<()> {
        self.read(|transaction, database| {
            let cursor = transaction.open_ro_cursor(database)?;
            let first = match from {
                // LMDB has no empty keys, so none is less.
                Some([]) => Err(Error::NotFound),
                Some(key) => seek_for_prev(&cursor, key),
                None => cursor.get(None, None, ffi::MDB_LAST),
            };
            give(&cursor, first, ffi::MDB_PREV, entries)
        })
    }
}

#[cfg(test)]
mod tests;
