//! What a benchmark calls on an engine, and the engines that every build has.
//!
//! A [`Driver`] opens a store of one engine. The open store is an [`Engine`], which all threads
//! share. Each thread has a [`Session`] of its own, which may keep buffers, iterators or a read
//! transaction between calls.
//!
//! Invariant: the workloads know engines only by these traits, so all engines get the same keys,
//! the same values and the same calls in the same order.
//!
//! Threading: a `Driver` and an `Engine` are shared between threads. A `Session` belongs to one.

mod executors;
pub(crate) mod gpu;
mod null;
pub(crate) mod siltstone;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Instant;

use crate::settings::EngineSettings;

pub use crate::settings::{Abilities, Promise};
pub use executors::SiltstoneWith;
pub use gpu::{FirstGpu, Gpus};
pub use null::NullDriver;
pub use siltstone::SiltstoneDriver;

/// The name under which [`Driver::settings`] says why an engine refuses its settings.
pub const SETTINGS_ERROR: &str = "error";

/// A failure of an engine, with its own text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineError {
    /// What was done, for example `put`.
    pub during: &'static str,
    /// What the engine said.
    pub message: String,
}

impl EngineError {
    /// The error of a call.
    pub fn new(during: &'static str, message: impl ToString) -> EngineError {
        EngineError {
            during,
            message: message.to_string(),
        }
    }
}

impl std::fmt::Display for EngineError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.during, self.message)
    }
}

impl std::error::Error for EngineError {}

/// The result of a call of an engine.
pub type Result<T> = std::result::Result<T, EngineError>;

/// Whose work a thread of the process does, by which its processor time is reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ThreadClass {
    /// A thread of the workload, or any other that is not the engine's.
    Foreground,
    /// It writes memtables to tables.
    Flush,
    /// It merges tables.
    Compaction,
    /// Another thread of the engine, or one that both flushes and compacts.
    Other,
}

/// Opens stores of one engine.
pub trait Driver: Send + Sync {
    /// The name in tables and JSON, for example `rocksdb`.
    fn name(&self) -> &str;

    /// The version of the library, for example `10.10.1`.
    fn version(&self) -> String;

    /// What the engine can do.
    fn abilities(&self) -> Abilities;

    /// Every setting that the engine gets, as its own name and value, for the record. A setting of
    /// `settings` that the engine does not have is given as `not available`. If the engine refuses
    /// them, [`SETTINGS_ERROR`] is the only name, and its value says why.
    fn settings(&self, settings: &EngineSettings) -> BTreeMap<String, String>;

    /// Whether a process of its own opens the same stores, if it knows the engine's name and its
    /// settings.
    fn opens_elsewhere(&self) -> bool {
        true
    }

    /// Whose work a thread does, by its name, of which Linux keeps 15 bytes. An engine that names
    /// its threads overrides this.
    fn thread_class(&self, _name: &str) -> ThreadClass {
        ThreadClass::Foreground
    }

    /// All folders that have files of the store in `folder`. Only the first one must exist.
    fn folders(&self, folder: &Path) -> Vec<PathBuf> {
        vec![folder.to_path_buf()]
    }

    /// Opens the store in `folder`, and creates it if there is none.
    ///
    /// # Errors
    /// The engine's own; a value of [`EngineSettings::own`] that it does not know.
    fn open(&self, folder: &Path, settings: &EngineSettings) -> Result<Box<dyn Engine>>;
}

/// An open store.
pub trait Engine: Send + Sync {
    /// What one thread calls.
    ///
    /// # Errors
    /// The engine's own.
    fn session(&self) -> Result<Box<dyn Session + '_>>;

    /// Waits until no flush and no compaction runs or is due. An engine that cannot be asked
    /// returns `false` at once, and the caller waits until the process uses no processor time.
    ///
    /// The caller gives the wait up after a time, so it need not end by itself. It should end with
    /// an error of the engine's flushes and compactions.
    ///
    /// # Errors
    /// The engine's own, for example a failed compaction.
    fn wait_until_idle(&self) -> Result<bool>;

    /// As [`Engine::wait_until_idle`], and returns since when the engine is idle; `None` if it
    /// cannot be asked. An engine that waits a while to be sure overrides this, because that while
    /// is not work.
    ///
    /// # Errors
    /// As [`Engine::wait_until_idle`].
    fn idle_since(&self) -> Result<Option<Instant>> {
        Ok(self.wait_until_idle()?.then(Instant::now))
    }

    /// Writes all memtables to tables.
    ///
    /// # Errors
    /// The engine's own.
    fn flush(&self) -> Result<()>;

    /// Compacts the whole store and returns when this is done.
    ///
    /// # Errors
    /// The engine's own; engines without [`Abilities::compact`] refuse.
    fn compact(&self) -> Result<()>;

    /// Adds sorted entries as tables, in ascending order of keys, without writing them to the log.
    /// `next` gives the next key and value, and `false` at the end.
    ///
    /// # Errors
    /// The engine's own; engines without [`Abilities::ingest`] refuse.
    fn ingest(&self, next: &mut dyn FnMut(&mut Vec<u8>, &mut Vec<u8>) -> bool) -> Result<()>;

    /// The engine's counters since the open.
    fn figures(&self) -> Figures;

    /// The shape of the tree.
    fn levels(&self) -> Vec<Level>;

    /// Closes the store cleanly.
    ///
    /// # Errors
    /// The engine's own.
    fn close(self: Box<Self>) -> Result<()>;
}

/// A write of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Write<'a> {
    /// Sets a key.
    Put(&'a [u8], &'a [u8]),
    /// Deletes a key.
    Delete(&'a [u8]),
}

/// Gets the entries of a scan one after the other: key, value. It returns whether to go on.
pub type Entries<'a> = dyn FnMut(&[u8], &[u8]) -> bool + 'a;

/// Gets the answers of a read of many keys: the key's index, and its value if it has one.
pub type Answers<'a> = dyn FnMut(usize, Option<&[u8]>) + 'a;

/// What one thread calls.
pub trait Session {
    /// Writes all of `writes` atomically, and waits until they are durable if `sync` says so.
    ///
    /// # Errors
    /// The engine's own.
    fn write(&mut self, writes: &[Write<'_>], sync: bool) -> Result<()>;

    /// Sets one key.
    ///
    /// # Errors
    /// The engine's own.
    fn put(&mut self, key: &[u8], value: &[u8], sync: bool) -> Result<()> {
        self.write(&[Write::Put(key, value)], sync)
    }

    /// Deletes one key.
    ///
    /// # Errors
    /// The engine's own.
    fn delete(&mut self, key: &[u8], sync: bool) -> Result<()> {
        self.write(&[Write::Delete(key)], sync)
    }

    /// Calls `found` with the value of the key and returns true, or returns false if there is none.
    /// The bytes need not be copied: `found` may be called with memory of the engine.
    ///
    /// # Errors
    /// The engine's own.
    fn get(&mut self, key: &[u8], found: &mut dyn FnMut(&[u8])) -> Result<bool>;

    /// Reads many keys.
    ///
    /// # Errors
    /// The engine's own.
    fn multi_get(&mut self, keys: &[&[u8]], answers: &mut Answers<'_>) -> Result<()> {
        for (index, key) in keys.iter().enumerate() {
            let mut is_found = false;
            self.get(key, &mut |value| {
                is_found = true;
                answers(index, Some(value));
            })?;
            if !is_found {
                answers(index, None);
            }
        }
        Ok(())
    }

    /// With a new iterator: seeks the first key not less than `from` (or the first of all), and
    /// gives the entries from there on until `entries` says that it is enough.
    ///
    /// # Errors
    /// The engine's own.
    fn scan(&mut self, from: Option<&[u8]>, entries: &mut Entries<'_>) -> Result<()>;

    /// As [`Session::scan`], backward from the last key not greater than `from` (or the last of
    /// all).
    ///
    /// # Errors
    /// The engine's own; engines without [`Abilities::reverse`] refuse.
    fn scan_reverse(&mut self, from: Option<&[u8]>, entries: &mut Entries<'_>) -> Result<()>;
}

/// The engine's own counters since the open. A counter that an engine does not have is `None`, and
/// no figure is made up from it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Figures {
    /// Bytes of keys and values that were written.
    pub user_bytes: Option<u64>,
    /// Bytes written to the log.
    pub log_bytes: Option<u64>,
    /// Bytes that flushes wrote to tables.
    pub flush_bytes: Option<u64>,
    /// Bytes that compactions read.
    pub compaction_read_bytes: Option<u64>,
    /// Bytes that compactions wrote to tables.
    pub compaction_bytes: Option<u64>,
    /// Processor time of flushes, in seconds.
    pub flush_cpu_s: Option<f64>,
    /// Processor time of compactions, in seconds.
    pub compaction_cpu_s: Option<f64>,
    /// Time that writers waited, in seconds, by cause.
    pub stall_s: BTreeMap<String, f64>,
    /// The engine's other counters by their own names, for the record.
    pub others: BTreeMap<String, u64>,
}

/// One level of a tree.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Level {
    /// Its number; 0 is the newest.
    pub level: u32,
    /// Its sorted runs.
    pub runs: u64,
    /// Its tables.
    pub tables: u64,
    /// Its bytes on disk.
    pub bytes: u64,
}
