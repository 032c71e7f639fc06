//! RocksDB through its C interface, from a shared library that is loaded when the engine is asked
//! for ([`Library::rocksdb`]). A release build is in the Java package `org.rocksdb:rocksdbjni`
//! (classifier `linux64`).
//!
//! Settings as for the others; two background jobs. Checksums are verified on reads, its default.

use std::ffi::{CStr, CString, c_char, c_int, c_uchar};
use std::path::Path;
use std::time::{Duration, Instant};

use bench_compare::c_functions;
use bench_compare::c_library::{Failure, Library, P, taken};

use super::{CACHE_BYTES, Engine, FILTER_BITS, MEMTABLE_BYTES, Result};
use crate::os;

c_functions! {
    Functions;
    options_create: fn() -> P;
    options_set_create_if_missing: fn(P, c_uchar);
    options_set_compression: fn(P, c_int);
    options_set_write_buffer_size: fn(P, usize);
    options_set_max_background_jobs: fn(P, c_int);
    options_set_block_based_table_factory: fn(P, P);
    block_based_options_create: fn() -> P;
    block_based_options_set_block_cache: fn(P, P);
    block_based_options_set_filter_policy: fn(P, P);
    cache_create_lru: fn(usize) -> P;
    filterpolicy_create_bloom_full: fn(f64) -> P;
    readoptions_create: fn() -> P;
    writeoptions_create: fn() -> P;
    open: fn(P, *const c_char, Failure) -> P;
    close: fn(P);
    put: fn(P, P, *const u8, usize, *const u8, usize, Failure);
    delete: fn(P, P, *const u8, usize, Failure);
    get: fn(P, P, *const u8, usize, *mut usize, Failure) -> *mut u8;
    free: fn(P);
    property_value: fn(P, *const c_char) -> *mut c_char;
    property_int: fn(P, *const c_char, *mut u64) -> c_int;
    create_iterator: fn(P, P) -> P;
    iter_destroy: fn(P);
    iter_seek: fn(P, *const u8, usize);
    iter_seek_to_first: fn(P);
    iter_valid: fn(P) -> c_uchar;
    iter_next: fn(P);
    iter_key: fn(P, *mut usize) -> *const u8;
    iter_value: fn(P, *mut usize) -> *const u8;
    iter_get_error: fn(P, Failure);
}

struct RocksDb {
    library: Functions,
    db: P,
    read: P,
    write: P,
}

pub(super) fn open(path: &Path) -> Result<Box<dyn Engine>> {
    let library = Functions::load(&Library::rocksdb()?, "rocksdb")?;
    let name = CString::new(path.to_string_lossy().as_bytes()).map_err(|e| e.to_string())?;
    let mut error = std::ptr::null_mut();
    let l = &library;
    // SAFETY: plain constructor calls with valid arguments; options, cache and filter live as long
    // as the process.
    let (db, read, write) = unsafe {
        let options = (l.options_create)();
        (l.options_set_create_if_missing)(options, 1);
        (l.options_set_compression)(options, 0);
        (l.options_set_write_buffer_size)(options, MEMTABLE_BYTES);
        (l.options_set_max_background_jobs)(options, 2);
        let blocks = (l.block_based_options_create)();
        (l.block_based_options_set_block_cache)(blocks, (l.cache_create_lru)(CACHE_BYTES));
        let filter = (l.filterpolicy_create_bloom_full)(f64::from(FILTER_BITS));
        (l.block_based_options_set_filter_policy)(blocks, filter);
        (l.options_set_block_based_table_factory)(options, blocks);
        let db = (l.open)(options, name.as_ptr(), &mut error);
        (db, (l.readoptions_create)(), (l.writeoptions_create)())
    };
    library.check(error)?;
    Ok(Box::new(RocksDb {
        library,
        db,
        read,
        write,
    }))
}

impl Functions {
    /// The error that RocksDB left behind, if it did.
    fn check(&self, error: *mut c_char) -> Result<()> {
        match self.text(error) {
            Some(text) => Err(text),
            None => Ok(()),
        }
    }

    /// Takes over a string that RocksDB gave, if it gave one.
    fn text(&self, given: *mut c_char) -> Option<String> {
        // SAFETY: RocksDB gives a malloc'ed, zero-terminated string that is ours to free.
        unsafe { taken(given, self.free) }
    }
}

impl RocksDb {
    fn number(&self, name: &CStr) -> u64 {
        let mut value = 0;
        // SAFETY: the database is open; the string is valid.
        unsafe { (self.library.property_int)(self.db, name.as_ptr(), &mut value) };
        value
    }

    fn property(&self, name: &CStr) -> String {
        // SAFETY: the database is open; the string is valid.
        let text = unsafe { (self.library.property_value)(self.db, name.as_ptr()) };
        self.library.text(text).unwrap_or_default()
    }
}

impl Engine for RocksDb {
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        let mut error = std::ptr::null_mut();
        // SAFETY: the database is open; both slices are valid for their lengths.
        unsafe {
            (self.library.put)(
                self.db,
                self.write,
                key.as_ptr(),
                key.len(),
                value.as_ptr(),
                value.len(),
                &mut error,
            );
        }
        self.library.check(error)
    }

    fn delete(&mut self, key: &[u8]) -> Result<()> {
        let mut error = std::ptr::null_mut();
        // SAFETY: as above.
        unsafe {
            (self.library.delete)(self.db, self.write, key.as_ptr(), key.len(), &mut error);
        }
        self.library.check(error)
    }

    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        let (mut error, mut len) = (std::ptr::null_mut(), 0);
        value.clear();
        // SAFETY: as above; the answer is null or `len` bytes that are ours to free.
        let found = unsafe {
            let found = (self.library.get)(
                self.db,
                self.read,
                key.as_ptr(),
                key.len(),
                &mut len,
                &mut error,
            );
            if !found.is_null() {
                value.extend_from_slice(std::slice::from_raw_parts(found, len));
                (self.library.free)(found.cast());
            }
            !found.is_null()
        };
        self.library.check(error)?;
        Ok(found)
    }

    fn scan(&mut self, key: Option<&[u8]>, count: u64, pair: &mut Vec<u8>) -> Result<(u64, u64)> {
        let (mut seen, mut bytes) = (0, 0);
        let mut error = std::ptr::null_mut();
        let l = &self.library;
        // SAFETY: the iterator lives between create and destroy; keys and values are valid until
        // it moves.
        unsafe {
            let iter = (l.create_iterator)(self.db, self.read);
            match key {
                Some(key) => (l.iter_seek)(iter, key.as_ptr(), key.len()),
                None => (l.iter_seek_to_first)(iter),
            }
            while seen < count && (l.iter_valid)(iter) != 0 {
                let mut len = 0;
                pair.clear();
                let data = (l.iter_key)(iter, &mut len);
                pair.extend_from_slice(std::slice::from_raw_parts(data, len));
                let data = (l.iter_value)(iter, &mut len);
                pair.extend_from_slice(std::slice::from_raw_parts(data, len));
                bytes += pair.len() as u64;
                seen += 1;
                if seen < count {
                    (l.iter_next)(iter);
                }
            }
            (l.iter_get_error)(iter, &mut error);
            (l.iter_destroy)(iter);
        }
        self.library.check(error)?;
        Ok((seen, bytes))
    }

    /// Idle when no flush and no compaction is pending or runs, and the process has used next to no
    /// processor time for a third of a second; the caller takes the wait for nothing off.
    fn wait_until_idle(&mut self) -> Result<()> {
        let busy = [
            c"rocksdb.mem-table-flush-pending",
            c"rocksdb.num-running-flushes",
            c"rocksdb.compaction-pending",
            c"rocksdb.num-running-compactions",
        ];
        let mut quiet_since = Instant::now();
        let mut cpu = os::cpu_seconds();
        while quiet_since.elapsed() < os::QUIET {
            std::thread::sleep(Duration::from_millis(10));
            let now = os::cpu_seconds();
            if now - cpu > 0.0007 || busy.iter().any(|name| self.number(name) > 0) {
                quiet_since = Instant::now();
            }
            cpu = now;
        }
        Ok(())
    }

    /// Not counted by this interface.
    fn table_bytes_written(&mut self) -> u64 {
        0
    }

    fn describe(&mut self) -> String {
        self.property(c"rocksdb.levelstats").replace('\n', "; ")
    }
}

impl Drop for RocksDb {
    fn drop(&mut self) {
        // SAFETY: opened once, closed once, no iterator is left.
        unsafe { (self.library.close)(self.db) };
    }
}
