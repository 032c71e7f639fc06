//! LevelDB and RocksDB.

use std::path::Path;

use crate::c_database::{self, Database, OtherEngine};

use super::{Engine, Iter, MEMTABLE_BYTES, Result};

/// Opens a database; `None`, with a message, if the engine's library is not found.
pub(super) fn open(engine: OtherEngine, folder: &Path) -> Result<Option<Box<dyn Engine>>> {
    let library = match engine.library() {
        Ok(library) => library,
        Err(error) => {
            eprintln!("{engine:?} is left out: {error}");
            return Ok(None);
        }
    };
    let database = Database::open(engine, &library, folder, MEMTABLE_BYTES as usize)?;
    Ok(Some(Box::new(database)))
}

impl Engine for Database {
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        Database::put(self, key, value)
    }

    fn delete_range(&mut self, start: &[u8], end: &[u8]) -> Result<bool> {
        Database::delete_range(self, start, end)
    }

    fn get(&mut self, key: &[u8]) -> Result<bool> {
        Database::get(self, key, &mut Vec::new())
    }

    fn snapshot(&mut self) -> Result<usize> {
        Ok(Database::snapshot(self))
    }

    fn flush(&mut self) -> Result<()> {
        Database::flush(self)
    }

    fn compact(&mut self) -> Result<()> {
        Database::compact(self);
        Ok(())
    }

    fn iterator(&mut self, snapshot: Option<usize>) -> Result<Box<dyn Iter + '_>> {
        Ok(Box::new(Database::iterator(self, snapshot)))
    }
}

/// Fails unless the iterator is positioned, for only then it may be moved.
fn check_position(iter: &c_database::Iter<'_>) -> Result<()> {
    match iter.key() {
        Some(_) => Ok(()),
        None => Err("the iterator is not positioned".into()),
    }
}

impl Iter for c_database::Iter<'_> {
    fn seek(&mut self, key: &[u8]) -> Result<()> {
        c_database::Iter::seek(self, key);
        self.check()
    }

    fn seek_to_first(&mut self) -> Result<()> {
        c_database::Iter::seek_to_first(self);
        self.check()
    }

    fn seek_to_last(&mut self) -> Result<()> {
        c_database::Iter::seek_to_last(self);
        self.check()
    }

    fn next(&mut self) -> Result<()> {
        check_position(self)?;
        // SAFETY: the iterator is positioned.
        unsafe { c_database::Iter::next(self) };
        self.check()
    }

    fn prev(&mut self) -> Result<()> {
        check_position(self)?;
        // SAFETY: the iterator is positioned.
        unsafe { c_database::Iter::prev(self) };
        self.check()
    }

    fn key(&mut self) -> Vec<u8> {
        c_database::Iter::key(self).map_or(Vec::new(), <[u8]>::to_vec)
    }
}
