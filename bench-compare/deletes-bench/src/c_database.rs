//! LevelDB and RocksDB through their C interfaces, which have the same functions under two
//! prefixes; what only one of them has is declared apart.
//!
//! Safety: all pointers that are passed to an engine came from it and were not released yet, or
//! point to Rust data that outlives the call, and slices are passed with their lengths. Options,
//! caches and filters are never released: an open database refers to them.
//!
//! Threading: one thread calls; engines have background threads of their own.

use std::ffi::{CString, c_char, c_int, c_uchar};
use std::path::Path;

use crate::c_library::{Failure, Library, P, c_functions, taken};

/// A failure with its text.
pub type Result<T, E = String> = std::result::Result<T, E>;

type Bytes = *const u8;

c_functions! {
    Functions;
    open: fn(P, *const c_char, Failure) -> P;
    close: fn(P);
    free: fn(P);
    options_create: fn() -> P;
    options_set_create_if_missing: fn(P, c_uchar);
    options_set_compression: fn(P, c_int);
    options_set_write_buffer_size: fn(P, usize);
    writeoptions_create: fn() -> P;
    readoptions_create: fn() -> P;
    readoptions_destroy: fn(P);
    readoptions_set_snapshot: fn(P, P);
    put: fn(P, P, Bytes, usize, Bytes, usize, Failure);
    get: fn(P, P, Bytes, usize, *mut usize, Failure) -> *mut u8;
    create_snapshot: fn(P) -> P;
    release_snapshot: fn(P, P);
    compact_range: fn(P, Bytes, usize, Bytes, usize);
    create_iterator: fn(P, P) -> P;
    iter_destroy: fn(P);
    iter_valid: fn(P) -> c_uchar;
    iter_seek: fn(P, Bytes, usize);
    iter_seek_to_first: fn(P);
    iter_seek_to_last: fn(P);
    iter_next: fn(P);
    iter_prev: fn(P);
    iter_key: fn(P, *mut usize) -> Bytes;
    iter_get_error: fn(P, Failure);
}

c_functions! {
    RocksDbFunctions;
    get_default_column_family_handle: fn(P) -> P;
    delete_range_cf: fn(P, P, P, Bytes, usize, Bytes, usize, Failure);
    flushoptions_create: fn() -> P;
    flush: fn(P, P, Failure);
}

/// Which engine it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OtherEngine {
    /// The library that `LEVELDB_LIBRARY` names, or else the system's (Debian: libleveldb1d).
    LevelDb,
    /// The library that `ROCKSDB_LIBRARY` names, or else the system's. A release build is in the
    /// Java package `org.rocksdb:rocksdbjni` (classifier `linux64`).
    RocksDb,
}

impl OtherEngine {
    /// Loads its library.
    ///
    /// # Errors
    /// If the library is not found; the text says what can be done.
    pub fn library(self) -> Result<Library> {
        match self {
            OtherEngine::LevelDb => Library::open("LEVELDB_LIBRARY", "libleveldb.so.1d"),
            OtherEngine::RocksDb => Library::open("ROCKSDB_LIBRARY", "librocksdb.so"),
        }
    }
}

/// What only an open RocksDB has.
struct Rocks {
    f: RocksDbFunctions,
    column_family: P,
    flush_options: P,
}

/// An open database.
pub struct Database {
    f: Functions,
    rocks: Option<Rocks>,
    db: P,
    write: P,
    read: P,
    snapshots: Vec<P>,
}

impl Functions {
    /// Calls a function that may leave the text of an error behind.
    fn checked<T>(&self, call: impl FnOnce(Failure) -> T) -> Result<T> {
        let mut error = std::ptr::null_mut();
        let result = call(&mut error);
        match self.text(error) {
            Some(text) => Err(text),
            None => Ok(result),
        }
    }

    /// Takes over a string that the engine gave, if it gave one.
    fn text(&self, given: *mut c_char) -> Option<String> {
        // SAFETY: engines give malloc'ed, zero-terminated strings that are the caller's to free.
        unsafe { taken(given, self.free) }
    }
}

impl Database {
    /// Opens or creates the database in `folder`.
    ///
    /// # Errors
    /// The engine's, and those of a library that lacks a function.
    pub fn open(
        engine: OtherEngine,
        library: &Library,
        folder: &Path,
        memtable_bytes: usize,
    ) -> Result<Database> {
        let name = CString::new(folder.to_string_lossy().as_bytes()).map_err(|e| e.to_string())?;
        let (f, rocks) = match engine {
            OtherEngine::LevelDb => (Functions::load(library, "leveldb")?, None),
            OtherEngine::RocksDb => {
                let rocks = RocksDbFunctions::load(library, "rocksdb")?;
                (Functions::load(library, "rocksdb")?, Some(rocks))
            }
        };
        // SAFETY: see the module.
        let options = unsafe {
            let options = (f.options_create)();
            (f.options_set_create_if_missing)(options, 1);
            (f.options_set_compression)(options, 0);
            (f.options_set_write_buffer_size)(options, memtable_bytes);
            options
        };
        // SAFETY: see the module.
        let db = f.checked(|error| unsafe { (f.open)(options, name.as_ptr(), error) })?;
        // SAFETY: constructors without arguments, and one whose argument is the database.
        let (write, read) = unsafe { ((f.writeoptions_create)(), (f.readoptions_create)()) };
        let rocks = rocks.map(|f| unsafe {
            Rocks {
                column_family: (f.get_default_column_family_handle)(db),
                flush_options: (f.flushoptions_create)(),
                f,
            }
        });
        Ok(Database {
            f,
            rocks,
            db,
            write,
            read,
            snapshots: Vec::new(),
        })
    }

    /// Sets a key.
    ///
    /// # Errors
    /// The engine's, here and below.
    pub fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        let (key, value) = ((key.as_ptr(), key.len()), (value.as_ptr(), value.len()));
        // SAFETY: see the module.
        self.f.checked(|error| unsafe {
            (self.f.put)(self.db, self.write, key.0, key.1, value.0, value.1, error);
        })
    }

    /// Deletes the keys from `start` up to `end`; false for LevelDB, which has no range deletes.
    pub fn delete_range(&mut self, start: &[u8], end: &[u8]) -> Result<bool> {
        let Some(rocks) = &self.rocks else {
            return Ok(false);
        };
        let (start, end) = ((start.as_ptr(), start.len()), (end.as_ptr(), end.len()));
        // SAFETY: see the module.
        self.f.checked(|error| unsafe {
            (rocks.f.delete_range_cf)(
                self.db,
                self.write,
                rocks.column_family,
                start.0,
                start.1,
                end.0,
                end.1,
                error,
            );
        })?;
        Ok(true)
    }

    /// Copies the value of a key into `value`, which is cleared first; false if there is none.
    pub fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        value.clear();
        let mut len = 0;
        // SAFETY: see the module.
        let found = self.f.checked(|error| unsafe {
            (self.f.get)(self.db, self.read, key.as_ptr(), key.len(), &mut len, error)
        })?;
        if found.is_null() {
            return Ok(false);
        }
        // SAFETY: the engine gave `len` bytes that are the caller's to free.
        unsafe {
            value.extend_from_slice(std::slice::from_raw_parts(found, len));
            (self.f.free)(found.cast());
        }
        Ok(true)
    }

    /// Takes a snapshot and returns its number, from 0. Snapshots live as long as the database.
    pub fn snapshot(&mut self) -> usize {
        // SAFETY: see the module.
        self.snapshots
            .push(unsafe { (self.f.create_snapshot)(self.db) });
        self.snapshots.len() - 1
    }

    /// Flushes the memtable; LevelDB's interface has no such call, and nothing happens.
    pub fn flush(&mut self) -> Result<()> {
        let Some(rocks) = &self.rocks else {
            return Ok(());
        };
        // SAFETY: see the module.
        self.f.checked(|error| unsafe {
            (rocks.f.flush)(self.db, rocks.flush_options, error);
        })
    }

    /// Compacts everything.
    pub fn compact(&mut self) {
        let none = std::ptr::null();
        // SAFETY: null stands for the first and the last key.
        unsafe { (self.f.compact_range)(self.db, none, 0, none, 0) };
    }

    /// A new iterator, at a snapshot or at the newest state. It is not positioned.
    pub fn iterator(&self, snapshot: Option<usize>) -> Iter<'_> {
        // SAFETY: see the module.
        unsafe {
            let own_read = snapshot.map(|i| {
                let read = (self.f.readoptions_create)();
                (self.f.readoptions_set_snapshot)(read, self.snapshots[i]);
                read
            });
            Iter {
                f: &self.f,
                iter: (self.f.create_iterator)(self.db, own_read.unwrap_or(self.read)),
                own_read,
            }
        }
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        // SAFETY: each snapshot is released once, the database is closed once, and iterators
        // borrow it.
        unsafe {
            for snapshot in &self.snapshots {
                (self.f.release_snapshot)(self.db, *snapshot);
            }
            (self.f.close)(self.db);
        }
    }
}

/// An iterator.
pub struct Iter<'a> {
    f: &'a Functions,
    iter: P,
    /// Options with a snapshot, which only this iterator has.
    own_read: Option<P>,
}

impl Iter<'_> {
    /// Seeks the first key that is not below `key`.
    pub fn seek(&mut self, key: &[u8]) {
        // SAFETY: see the module, here and below.
        unsafe { (self.f.iter_seek)(self.iter, key.as_ptr(), key.len()) };
    }

    /// Seeks the first key.
    pub fn seek_to_first(&mut self) {
        // SAFETY: as above.
        unsafe { (self.f.iter_seek_to_first)(self.iter) };
    }

    /// Seeks the last key.
    pub fn seek_to_last(&mut self) {
        // SAFETY: as above.
        unsafe { (self.f.iter_seek_to_last)(self.iter) };
    }

    /// The key of the entry where it is positioned; `None` if it is not positioned.
    pub fn key(&self) -> Option<&[u8]> {
        // SAFETY: as above; what the engine gives is valid until the iterator moves.
        unsafe {
            if (self.f.iter_valid)(self.iter) == 0 {
                return None;
            }
            let mut len = 0;
            let key = (self.f.iter_key)(self.iter, &mut len);
            Some(std::slice::from_raw_parts(key, len))
        }
    }

    /// Moves to the next entry.
    ///
    /// # Safety
    /// It is positioned: [`Iter::key`] would return a key. This is not checked here, because
    /// the check would be a part of what is measured.
    pub unsafe fn next(&mut self) {
        // SAFETY: as the caller promises.
        unsafe { (self.f.iter_next)(self.iter) };
    }

    /// Moves to the entry before.
    ///
    /// # Safety
    /// As of [`Iter::next`].
    pub unsafe fn prev(&mut self) {
        // SAFETY: as the caller promises.
        unsafe { (self.f.iter_prev)(self.iter) };
    }

    /// The error that it met, if it did.
    ///
    /// # Errors
    /// This error.
    pub fn check(&self) -> Result<()> {
        // SAFETY: as above.
        self.f
            .checked(|error| unsafe { (self.f.iter_get_error)(self.iter, error) })
    }
}

impl Drop for Iter<'_> {
    fn drop(&mut self) {
        // SAFETY: both are released once.
        unsafe {
            (self.f.iter_destroy)(self.iter);
            if let Some(read) = self.own_read {
                (self.f.readoptions_destroy)(read);
            }
        }
    }
}
