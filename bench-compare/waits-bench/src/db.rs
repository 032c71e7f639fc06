//! The engines behind one small interface.
//!
//! Threading: a [`Db`] is shared; what [`Db::put`] and [`Db::get`] return belongs to one thread.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use siltstone::{Components, Keyspace, Options, StallPolicy, Store};
use siltstone_bench::engine::Engine;
use siltstone_bench::settings::EngineSettings;
use siltstone_storage::rated::{RatedStorage, Rates};
use siltstone_storage::{FileStorage, Runtime, Storage};

use crate::{Arguments, Result, SecondDisk};

/// Puts an entry.
pub type Put<'a> = Box<dyn FnMut(&[u8], &[u8]) -> Result<()> + 'a>;

/// Reads a key, and returns whether it was found.
pub type Get<'a> = Box<dyn FnMut(&[u8]) -> Result<bool> + 'a>;

/// An open store.
pub trait Db: Sync {
    /// What puts into keyspace number `keyspace`.
    fn put(&self, keyspace: usize) -> Result<Put<'_>>;

    /// What reads keyspace number `keyspace`.
    fn get(&self, keyspace: usize) -> Result<Get<'_>>;

    /// Flushes, and waits until nothing is to be flushed or compacted.
    fn settle(&self) -> Result<()>;

    /// What the engine says about its writers: time that they waited, by cause, in milliseconds.
    fn waits(&self) -> BTreeMap<String, f64>;
}

fn text(error: impl ToString) -> String {
    error.to_string()
}

/// Opens a new store of this engine with so many keyspaces.
pub fn open(
    arguments: &Arguments,
    engine: &str,
    folder: &Path,
    keyspaces: usize,
) -> Result<Box<dyn Db>> {
    let (policy, own) = engine.split_once(':').unwrap_or((engine, ""));
    let policy = match policy {
        "stop" => StallPolicy::Stop,
        "slowdown" => StallPolicy::Slowdown,
        "adoc" => StallPolicy::Adoc,
        "redirect" => StallPolicy::Redirect,
        _ => return peer(arguments, engine, folder, keyspaces),
    };
    let mut options = Options {
        stall_policy: policy,
        memtable_bytes: arguments.memtable_bytes,
        sealed_memtables_max: 3,
        background_tasks: arguments.background_threads,
        block_cache_bytes: 64 << 20,
        ..Options::default()
    };
    for setting in own.split(':').filter(|setting| !setting.is_empty()) {
        let (name, value) = setting
            .split_once('=')
            .ok_or("a setting has the form NAME=VALUE")?;
        let value = match value.parse::<i64>() {
            Ok(number) => siltstone::Value::from(number),
            Err(_) => siltstone::Value::from(value),
        };
        options.set(name, &value).map_err(text)?;
    }
    let store = match arguments.write_bytes_per_s {
        None => Store::open(folder, options).map_err(text)?,
        Some(write_bytes_per_s) => {
            let runtime = Runtime::threads();
            let rates = Rates {
                write_bytes_per_s,
                read_bytes_per_s: 0,
                queued_bytes_max: 16 << 20,
                sync_time: Duration::from_millis(1),
            };
            let disk = |folder: &Path| -> Result<Arc<dyn Storage>> {
                let storage = FileStorage::open_or_create(folder).map_err(text)?;
                Ok(Arc::new(RatedStorage::new(
                    Arc::new(storage),
                    &runtime,
                    rates,
                )))
            };
            let mut components = Components::on(disk(folder)?, runtime.clone());
            let second = folder.with_extension("second");
            match arguments.second_disk {
                SecondDisk::None => {}
                SecondDisk::Tables => components.redirect = Some(disk(&second)?),
                SecondDisk::Log => components.log = disk(&second)?,
            }
            Store::open_with(components, options).map_err(text)?
        }
    };
    let mut all = vec![store.default_keyspace().map_err(text)?];
    for number in 1..keyspaces {
        all.push(store.create_keyspace(&format!("k{number}")).map_err(text)?);
    }
    Ok(Box::new(Own {
        store,
        keyspaces: all,
    }))
}

struct Own {
    store: Store,
    keyspaces: Vec<Keyspace>,
}

impl Db for Own {
    fn put(&self, keyspace: usize) -> Result<Put<'_>> {
        let keyspace = &self.keyspaces[keyspace];
        Ok(Box::new(|key, value| {
            keyspace.put(key, value).map_err(text)
        }))
    }

    fn get(&self, keyspace: usize) -> Result<Get<'_>> {
        let keyspace = &self.keyspaces[keyspace];
        Ok(Box::new(|key| {
            let value = keyspace.get_pinned(key).map_err(text)?;
            Ok(value.is_some())
        }))
    }

    fn settle(&self) -> Result<()> {
        self.store.flush().map_err(text)?;
        self.store.wait_until_idle().map_err(text)
    }

    fn waits(&self) -> BTreeMap<String, f64> {
        let totals = self.store.stats().delay_totals.into_iter();
        let totals = totals.filter(|(_, total)| total.total_us > 0);
        totals
            .map(|(cause, total)| (cause.word().to_string(), total.total_us as f64 / 1e3))
            .collect()
    }
}

/// Another engine.
fn peer(
    arguments: &Arguments,
    engine: &str,
    folder: &Path,
    keyspaces: usize,
) -> Result<Box<dyn Db>> {
    if keyspaces > 1 || arguments.write_bytes_per_s.is_some() {
        return Err(format!(
            "{engine} takes no part in this scenario: it is for siltstone only"
        ));
    }
    let mut own = BTreeMap::new();
    let mut set = |name: &str, value: &str| own.insert(name.to_string(), value.to_string());
    let name = match engine {
        "rocksdb" | "rocksdb-flat" => {
            // What siltstone has by default.
            set("max_write_buffer_number", "4");
            set("max_subcompactions", "2");
            if engine == "rocksdb-flat" {
                set("level0_slowdown_writes_trigger", "36");
                set("soft_pending_compaction_bytes_limit", "0");
            }
            "rocksdb"
        }
        name => name,
    };
    let driver = bench_peers::drivers()
        .into_iter()
        .find(|driver| driver.name() == name);
    let driver = driver.ok_or_else(|| format!("there is no engine {engine}"))?;
    let settings = EngineSettings {
        memtable_bytes: arguments.memtable_bytes,
        background_threads: arguments.background_threads,
        own,
        ..EngineSettings::default()
    };
    let engine = driver.open(folder, &settings).map_err(text)?;
    Ok(Box::new(Peer { engine }))
}

struct Peer {
    engine: Box<dyn Engine>,
}

impl Db for Peer {
    fn put(&self, _keyspace: usize) -> Result<Put<'_>> {
        let mut session = self.engine.session().map_err(text)?;
        Ok(Box::new(move |key, value| {
            session.put(key, value, false).map_err(text)
        }))
    }

    fn get(&self, _keyspace: usize) -> Result<Get<'_>> {
        let mut session = self.engine.session().map_err(text)?;
        Ok(Box::new(move |key| {
            session.get(key, &mut |_| {}).map_err(text)
        }))
    }

    fn settle(&self) -> Result<()> {
        self.engine.flush().map_err(text)?;
        if self.engine.wait_until_idle().map_err(text)? {
            return Ok(());
        }
        // An engine that cannot be asked is idle when the process uses no processor time.
        let mut before = crate::samples::cpu_s();
        for _ in 0..3600 {
            std::thread::sleep(Duration::from_millis(500));
            let now = crate::samples::cpu_s();
            if now - before < 0.02 {
                return Ok(());
            }
            before = now;
        }
        Err("the engine did not become idle within half an hour".into())
    }

    fn waits(&self) -> BTreeMap<String, f64> {
        let waits = self.engine.figures().stall_s.into_iter();
        waits.map(|(cause, s)| (cause, s * 1e3)).collect()
    }
}
