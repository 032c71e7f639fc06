//! An engine that keeps nothing on disk and does as little as an engine can: a sorted map in
//! memory. A run on it shows what the benchmark itself costs, and its tests check the workloads
//! without a store.
//!
//! A map lives as long as the process, so that a run finds what the one before it has written. In
//! the folder of its store lies an empty file: without it the store is a new one.
//!
//! Invariant: a store whose map was in another process is refused, because it would look empty.
//!
//! Threading: one lock guards a map, and another one the list of all maps.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, RwLock};

use super::{
    Abilities, Driver, Engine, EngineError, Entries, Figures, Level, Promise, Result, Session,
    Write,
};
use crate::settings::EngineSettings;

/// Opens stores in memory. What a store holds is gone when the process ends.
#[derive(Debug, Default, Clone, Copy)]
pub struct NullDriver;

type Map = BTreeMap<Vec<u8>, Vec<u8>>;

/// The maps of this process, by the folders of their stores.
static MAPS: Mutex<BTreeMap<PathBuf, Arc<RwLock<Map>>>> = Mutex::new(BTreeMap::new());

/// The file in the folder of a store that has a map.
const MARK: &str = "MAP";

struct Null {
    map: Arc<RwLock<Map>>,
}

impl Driver for NullDriver {
    fn name(&self) -> &str {
        "null"
    }

    fn version(&self) -> String {
        env!("CARGO_PKG_VERSION").to_string()
    }

    fn abilities(&self) -> Abilities {
        Abilities {
            unsynced: Promise::Memory,
            sync: false,
            reverse: true,
            ingest: true,
            multi_get: true,
            compact: true,
            threads: true,
        }
    }

    fn settings(&self, _settings: &EngineSettings) -> BTreeMap<String, String> {
        BTreeMap::from([("storage".into(), "a sorted map in memory".into())])
    }

    fn open(&self, folder: &Path, _settings: &EngineSettings) -> Result<Box<dyn Engine>> {
        let system = |error: std::io::Error| EngineError::new("open", error);
        let folder = std::path::absolute(folder).map_err(system)?;
        let mark = folder.join(MARK);
        let mut maps = MAPS.lock().map_err(poisoned)?;
        if !mark.exists() {
            std::fs::create_dir_all(&folder).map_err(system)?;
            std::fs::write(&mark, []).map_err(system)?;
            maps.insert(folder.clone(), Arc::default());
        }
        let map = maps.get(&folder).cloned().ok_or_else(|| {
            let what = "the map of this store was in the memory of another process; fill it and \
                        read it in one call";
            EngineError::new("open", what)
        })?;
        Ok(Box::new(Null { map }))
    }
}

fn poisoned(_: impl Sized) -> EngineError {
    EngineError::new("lock the map", "another thread panicked")
}

impl Engine for Null {
    fn session(&self) -> Result<Box<dyn Session + '_>> {
        Ok(Box::new(NullSession { map: &self.map }))
    }

    fn wait_until_idle(&self) -> Result<bool> {
        Ok(true)
    }

    fn flush(&self) -> Result<()> {
        Ok(())
    }

    fn compact(&self) -> Result<()> {
        Ok(())
    }

    fn ingest(&self, next: &mut dyn FnMut(&mut Vec<u8>, &mut Vec<u8>) -> bool) -> Result<()> {
        let mut map = self.map.write().map_err(poisoned)?;
        let (mut key, mut value) = (Vec::new(), Vec::new());
        while next(&mut key, &mut value) {
            map.insert(key.clone(), value.clone());
        }
        Ok(())
    }

    fn figures(&self) -> Figures {
        Figures::default()
    }

    fn levels(&self) -> Vec<Level> {
        Vec::new()
    }

    fn close(self: Box<Self>) -> Result<()> {
        Ok(())
    }
}

struct NullSession<'a> {
    map: &'a RwLock<Map>,
}

impl Session for NullSession<'_> {
    fn write(&mut self, writes: &[Write<'_>], _sync: bool) -> Result<()> {
        let mut map = self.map.write().map_err(poisoned)?;
        for write in writes {
            match *write {
                Write::Put(key, value) => {
                    map.insert(key.to_vec(), value.to_vec());
                }
                Write::Delete(key) => {
                    map.remove(key);
                }
            }
        }
        Ok(())
    }

    fn get(&mut self, key: &[u8], found: &mut dyn FnMut(&[u8])) -> Result<bool> {
        let map = self.map.read().map_err(poisoned)?;
        let value = map.get(key);
        value.into_iter().for_each(|value| found(value));
        Ok(value.is_some())
    }

    fn scan(&mut self, from: Option<&[u8]>, entries: &mut Entries<'_>) -> Result<()> {
        let map = self.map.read().map_err(poisoned)?;
        let start = from.map_or(Bound::Unbounded, Bound::Included);
        let mut range = map.range::<[u8], _>((start, Bound::Unbounded));
        range.any(|(key, value)| !entries(key, value));
        Ok(())
    }

    fn scan_reverse(&mut self, from: Option<&[u8]>, entries: &mut Entries<'_>) -> Result<()> {
        let map = self.map.read().map_err(poisoned)?;
        let end = from.map_or(Bound::Unbounded, Bound::Included);
        let range = map.range::<[u8], _>((Bound::Unbounded, end));
        range.rev().any(|(key, value)| !entries(key, value));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_map_stays_until_its_folder_is_deleted() {
        let folder = tempfile::tempdir().unwrap();
        let store = folder.path().join("null");
        let open = || NullDriver.open(&store, &EngineSettings::default()).unwrap();
        let has_a = |engine: &dyn Engine| {
            let mut session = engine.session().unwrap();
            session.get(b"a", &mut |_| {}).unwrap()
        };
        let engine = open();
        engine.session().unwrap().put(b"a", b"1", false).unwrap();
        engine.close().unwrap();
        assert!(has_a(&*open()));
        std::fs::remove_dir_all(&store).unwrap();
        assert!(!has_a(&*open()));
        // As another process would leave it.
        MAPS.lock().unwrap().remove(&store);
        let refused = NullDriver.open(&store, &EngineSettings::default()).err();
        assert!(refused.unwrap().message.contains("another process"));
    }
}
