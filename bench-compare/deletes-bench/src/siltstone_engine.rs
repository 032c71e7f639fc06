//! The project's own engine.

use std::path::Path;

use siltstone::{Cursor, IterOptions, Keyspace, Options, Snapshot, Store};

use super::{Engine, Iter, MEMTABLE_BYTES, Result};

struct Siltstone {
    snapshots: Vec<Snapshot>,
    keyspace: Keyspace,
    store: Store,
}

fn text(error: siltstone::Error) -> String {
    error.to_string()
}

pub(super) fn open(folder: &Path) -> Result<Box<dyn Engine>> {
    let options = Options {
        memtable_bytes: MEMTABLE_BYTES,
        ..Options::default()
    };
    let store = Store::open(folder, options).map_err(text)?;
    Ok(Box::new(Siltstone {
        snapshots: Vec::new(),
        keyspace: store.default_keyspace().map_err(text)?,
        store,
    }))
}

impl Engine for Siltstone {
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.keyspace.put(key, value).map_err(text)
    }

    fn delete_range(&mut self, start: &[u8], end: &[u8]) -> Result<bool> {
        self.keyspace.delete_range(start, end).map_err(text)?;
        Ok(true)
    }

    fn get(&mut self, key: &[u8]) -> Result<bool> {
        Ok(self.keyspace.get(key).map_err(text)?.is_some())
    }

    fn snapshot(&mut self) -> Result<usize> {
        self.snapshots.push(self.store.snapshot());
        Ok(self.snapshots.len() - 1)
    }

    fn flush(&mut self) -> Result<()> {
        self.keyspace.flush().map_err(text)
    }

    fn compact(&mut self) -> Result<()> {
        self.keyspace.compact_range(None, None).map_err(text)?;
        self.store.wait_until_idle().map_err(text)
    }

    fn iterator(&mut self, snapshot: Option<usize>) -> Result<Box<dyn Iter + '_>> {
        let options = IterOptions::default();
        let cursor = match snapshot {
            Some(i) => self.keyspace.cursor_at(&self.snapshots[i], options),
            None => self.keyspace.cursor(options),
        };
        Ok(Box::new(cursor.map_err(text)?))
    }
}

impl Iter for Cursor {
    fn seek(&mut self, key: &[u8]) -> Result<()> {
        Cursor::seek(self, key).map_err(text)
    }

    fn seek_to_first(&mut self) -> Result<()> {
        Cursor::seek_to_first(self).map_err(text)
    }

    fn seek_to_last(&mut self) -> Result<()> {
        Cursor::seek_to_last(self).map_err(text)
    }

    fn next(&mut self) -> Result<()> {
        Cursor::next(self).map_err(text)
    }

    fn prev(&mut self) -> Result<()> {
        Cursor::prev(self).map_err(text)
    }

    fn key(&mut self) -> Vec<u8> {
        Cursor::key(self).to_vec()
    }
}
