//! LevelDB and RocksDB through their C interfaces, which have the same functions under two
//! prefixes; what only one of them has is declared apart.
//!
//! Safety: all pointers that are passed to an engine came from it and were not released yet, or
//! point to Rust data that outlives the call, and slices are passed with their lengths. Options,
//! caches and filters are never released: an open database refers to them.
//!
//! Threading: one thread calls; engines have background threads of their own.

use std::ffi::{CStr, CString, c_char, c_int, c_uchar};
use std::path::Path;

use crate::c_library::{Failure, P, c_functions, taken};

pub use crate::c_library::Library;

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
    options_set_max_open_files: fn(P, c_int);
    cache_create_lru: fn(usize) -> P;
    writeoptions_create: fn() -> P;
    readoptions_create: fn() -> P;
    readoptions_destroy: fn(P);
    readoptions_set_snapshot: fn(P, P);
    put: fn(P, P, Bytes, usize, Bytes, usize, Failure);
    delete: fn(P, P, Bytes, usize, Failure);
    get: fn(P, P, Bytes, usize, *mut usize, Failure) -> *mut u8;
    property_value: fn(P, *const c_char) -> *mut c_char;
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
    iter_value: fn(P, *mut usize) -> Bytes;
    iter_get_error: fn(P, Failure);
}

c_functions! {
    LevelDbFunctions;
    options_set_cache: fn(P, P);
    options_set_filter_policy: fn(P, P);
    options_set_max_file_size: fn(P, usize);
    filterpolicy_create_bloom: fn(c_int) -> P;
}

c_functions! {
    RocksDbFunctions;
    options_set_max_background_jobs: fn(P, c_int);
    options_set_block_based_table_factory: fn(P, P);
    block_based_options_create: fn() -> P;
    block_based_options_set_block_cache: fn(P, P);
    block_based_options_set_filter_policy: fn(P, P);
    filterpolicy_create_bloom_full: fn(f64) -> P;
    property_int: fn(P, *const c_char, *mut u64) -> c_int;
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

/// How a database is opened. It is created if it does not exist, and compresses nothing.
pub struct Settings {
    /// Bytes of the memtable.
    pub memtable_bytes: usize,
    /// Whatever else differs from the engine's defaults.
    pub tables: Option<TableSettings>,
}

/// Settings of tables and background work.
pub struct TableSettings {
    /// Bytes of the block cache.
    pub cache_bytes: usize,
    /// Filter bits a key.
    pub filter_bits: u32,
    /// Bytes of LevelDB's files, if not its default.
    pub file_bytes: Option<usize>,
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
        settings: &Settings,
    ) -> Result<Database> {
        let name = CString::new(folder.to_string_lossy().as_bytes()).map_err(|e| e.to_string())?;
        let (f, level, rocks) = match engine {
            OtherEngine::LevelDb => {
                let level = LevelDbFunctions::load(library, "leveldb")?;
                (Functions::load(library, "leveldb")?, Some(level), None)
            }
            OtherEngine::RocksDb => {
                let rocks = RocksDbFunctions::load(library, "rocksdb")?;
                (Functions::load(library, "rocksdb")?, None, Some(rocks))
            }
        };
        // SAFETY: see the module.
        let options = unsafe {
            let options = (f.options_create)();
            (f.options_set_create_if_missing)(options, 1);
            (f.options_set_compression)(options, 0);
            (f.options_set_write_buffer_size)(options, settings.memtable_bytes);
            options
        };
        if let Some(tables) = &settings.tables {
            // SAFETY: see the module.
            unsafe {
                let cache = (f.cache_create_lru)(tables.cache_bytes);
                if let Some(level) = &level {
                    let filter = (level.filterpolicy_create_bloom)(tables.filter_bits as c_int);
                    (level.options_set_cache)(options, cache);
                    (level.options_set_filter_policy)(options, filter);
                    (f.options_set_max_open_files)(options, 2000);
                    if let Some(bytes) = tables.file_bytes {
                        (level.options_set_max_file_size)(options, bytes);
                    }
                }
                if let Some(rocks) = &rocks {
                    let filter = (rocks.filterpolicy_create_bloom_full)(tables.filter_bits.into());
                    let blocks = (rocks.block_based_options_create)();
                    (rocks.block_based_options_set_block_cache)(blocks, cache);
                    (rocks.block_based_options_set_filter_policy)(blocks, filter);
                    (rocks.options_set_block_based_table_factory)(options, blocks);
                    (rocks.options_set_max_background_jobs)(options, 2);
                }
            }
        }
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

    /// Deletes a key.
    pub fn delete(&mut self, key: &[u8]) -> Result<()> {
        // SAFETY: see the module.
        self.f.checked(|error| unsafe {
            (self.f.delete)(self.db, self.write, key.as_ptr(), key.len(), error);
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

    /// A property as text; empty if there is none of this name.
    pub fn property(&self, name: &CStr) -> String {
        // SAFETY: see the module.
        let text = unsafe { (self.f.property_value)(self.db, name.as_ptr()) };
        self.f.text(text).unwrap_or_default()
    }

    /// A property of RocksDB as a number; 0 if there is none of this name.
    pub fn number(&self, name: &CStr) -> u64 {
        let mut value = 0;
        if let Some(rocks) = &self.rocks {
            // SAFETY: see the module.
            unsafe { (rocks.f.property_int)(self.db, name.as_ptr(), &mut value) };
        }
        value
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

    /// The key and the value of the entry where it is positioned; `None` if it is not positioned.
    pub fn entry(&self) -> Option<(&[u8], &[u8])> {
        // SAFETY: as above; what the engine gives is valid until the iterator moves.
        unsafe {
            if (self.f.iter_valid)(self.iter) == 0 {
                return None;
            }
            let (mut key_len, mut value_len) = (0, 0);
            let key = (self.f.iter_key)(self.iter, &mut key_len);
            let value = (self.f.iter_value)(self.iter, &mut value_len);
            Some((
                std::slice::from_raw_parts(key, key_len),
                std::slice::from_raw_parts(value, value_len),
            ))
        }
    }

    /// Moves to the next entry.
    ///
    /// # Safety
    /// It is positioned: [`Iter::entry`] would return an entry. This is not checked here, because
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
