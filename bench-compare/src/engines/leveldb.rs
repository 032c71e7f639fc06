//! LevelDB of the system (1.23 on Debian), through its C interface.
//!
//! Its tables are mapped by default on 64-bit hosts (up to 1000 files), and checksums are not verified on reads. It syncs each table
//! that it finishes, as we do, and does not sync its log.

use std::ffi::{CStr, CString, c_char, c_int, c_uchar, c_void};
use std::path::Path;
use std::time::{Duration, Instant};

use super::{CACHE_BYTES, Engine, FILTER_BITS, MEMTABLE_BYTES, Result};
use crate::os;

type P = *mut c_void;

unsafe extern "C" {
    fn leveldb_open(options: P, name: *const c_char, error: *mut *mut c_char) -> P;
    fn leveldb_close(db: P);
    fn leveldb_options_create() -> P;
    fn leveldb_options_set_create_if_missing(options: P, yes: c_uchar);
    fn leveldb_options_set_filter_policy(options: P, filter: P);
    fn leveldb_options_set_compression(options: P, kind: c_int);
    fn leveldb_options_set_write_buffer_size(options: P, bytes: usize);
    fn leveldb_options_set_max_file_size(options: P, bytes: usize);
    fn leveldb_options_set_cache(options: P, cache: P);
    fn leveldb_options_set_max_open_files(options: P, count: c_int);
    fn leveldb_cache_create_lru(bytes: usize) -> P;
    fn leveldb_filterpolicy_create_bloom(bits: c_int) -> P;
    fn leveldb_readoptions_create() -> P;
    fn leveldb_writeoptions_create() -> P;
    fn leveldb_put(
        db: P,
        w: P,
        k: *const u8,
        klen: usize,
        v: *const u8,
        vlen: usize,
        error: *mut *mut c_char,
    );
    fn leveldb_delete(db: P, w: P, k: *const u8, klen: usize, error: *mut *mut c_char);
    fn leveldb_get(
        db: P,
        r: P,
        k: *const u8,
        klen: usize,
        vlen: *mut usize,
        error: *mut *mut c_char,
    ) -> *mut u8;
    fn leveldb_free(p: P);
    fn leveldb_property_value(db: P, name: *const c_char) -> *mut c_char;
    fn leveldb_create_iterator(db: P, r: P) -> P;
    fn leveldb_iter_destroy(iter: P);
    fn leveldb_iter_seek(iter: P, k: *const u8, klen: usize);
    fn leveldb_iter_seek_to_first(iter: P);
    fn leveldb_iter_valid(iter: P) -> c_uchar;
    fn leveldb_iter_next(iter: P);
    fn leveldb_iter_key(iter: P, len: *mut usize) -> *const u8;
    fn leveldb_iter_value(iter: P, len: *mut usize) -> *const u8;
    fn leveldb_iter_get_error(iter: P, error: *mut *mut c_char);
}

struct LevelDb {
    db: P,
    read: P,
    write: P,
}

/// The error that LevelDB left behind, if it did.
fn check(error: *mut c_char) -> Result<()> {
    if error.is_null() {
        return Ok(());
    }
    // SAFETY: LevelDB gives a malloc'ed, zero-terminated string that is ours to free.
    unsafe {
        let text = CStr::from_ptr(error).to_string_lossy().into_owned();
        leveldb_free(error.cast());
        Err(text)
    }
}

/// Size of its files; its default of 2 MiB unless `LEVELDB_FILE_MIB` says otherwise.
fn file_bytes() -> Option<usize> {
    std::env::var("LEVELDB_FILE_MIB")
        .ok()?
        .parse::<usize>()
        .ok()
        .map(|mib| mib << 20)
}

pub(super) fn open(path: &Path) -> Result<Box<dyn Engine>> {
    let name = CString::new(path.to_string_lossy().as_bytes()).map_err(|e| e.to_string())?;
    let mut error = std::ptr::null_mut();
    // SAFETY: plain constructor calls with valid arguments; options, cache and filter live as long as the process.
    let db = unsafe {
        let options = leveldb_options_create();
        leveldb_options_set_create_if_missing(options, 1);
        leveldb_options_set_compression(options, 0);
        leveldb_options_set_write_buffer_size(options, MEMTABLE_BYTES);
        leveldb_options_set_cache(options, leveldb_cache_create_lru(CACHE_BYTES));
        leveldb_options_set_filter_policy(
            options,
            leveldb_filterpolicy_create_bloom(FILTER_BITS as c_int),
        );
        leveldb_options_set_max_open_files(options, 2000);
        if let Some(bytes) = file_bytes() {
            leveldb_options_set_max_file_size(options, bytes);
        }
        leveldb_open(options, name.as_ptr(), &mut error)
    };
    check(error)?;
    // SAFETY: constructors without arguments.
    let (read, write) = unsafe { (leveldb_readoptions_create(), leveldb_writeoptions_create()) };
    Ok(Box::new(LevelDb { db, read, write }))
}

impl LevelDb {
    fn property(&mut self, name: &CStr) -> String {
        // SAFETY: the database is open; the answer is null or a malloc'ed string that is ours to free.
        unsafe {
            let text = leveldb_property_value(self.db, name.as_ptr());
            if text.is_null() {
                return String::new();
            }
            let copied = CStr::from_ptr(text).to_string_lossy().into_owned();
            leveldb_free(text.cast());
            copied
        }
    }
}

impl Engine for LevelDb {
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        let mut error = std::ptr::null_mut();
        // SAFETY: the database is open; both slices are valid for their lengths.
        unsafe {
            leveldb_put(
                self.db,
                self.write,
                key.as_ptr(),
                key.len(),
                value.as_ptr(),
                value.len(),
                &mut error,
            );
        }
        check(error)
    }

    fn delete(&mut self, key: &[u8]) -> Result<()> {
        let mut error = std::ptr::null_mut();
        // SAFETY: the database is open; the slice is valid for its length.
        unsafe { leveldb_delete(self.db, self.write, key.as_ptr(), key.len(), &mut error) };
        check(error)
    }

    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        let (mut error, mut len) = (std::ptr::null_mut(), 0);
        value.clear();
        // SAFETY: as above; the answer is null or `len` bytes that are ours to free.
        let found = unsafe {
            let found = leveldb_get(
                self.db,
                self.read,
                key.as_ptr(),
                key.len(),
                &mut len,
                &mut error,
            );
            if !found.is_null() {
                value.extend_from_slice(std::slice::from_raw_parts(found, len));
                leveldb_free(found.cast());
            }
            !found.is_null()
        };
        check(error)?;
        Ok(found)
    }

    fn scan(&mut self, key: Option<&[u8]>, count: u64, pair: &mut Vec<u8>) -> Result<(u64, u64)> {
        let (mut seen, mut bytes) = (0, 0);
        let mut error = std::ptr::null_mut();
        // SAFETY: the iterator lives between create and destroy; keys and values are valid until it moves.
        unsafe {
            let iter = leveldb_create_iterator(self.db, self.read);
            match key {
                Some(key) => leveldb_iter_seek(iter, key.as_ptr(), key.len()),
                None => leveldb_iter_seek_to_first(iter),
            }
            while seen < count && leveldb_iter_valid(iter) != 0 {
                let mut len = 0;
                pair.clear();
                let data = leveldb_iter_key(iter, &mut len);
                pair.extend_from_slice(std::slice::from_raw_parts(data, len));
                let data = leveldb_iter_value(iter, &mut len);
                pair.extend_from_slice(std::slice::from_raw_parts(data, len));
                bytes += pair.len() as u64;
                seen += 1;
                if seen < count {
                    leveldb_iter_next(iter);
                }
            }
            leveldb_iter_get_error(iter, &mut error);
            leveldb_iter_destroy(iter);
        }
        check(error)?;
        Ok((seen, bytes))
    }

    /// LevelDB cannot be asked. It is idle when the process has used next to no processor time for a third of a second; the time waited
    /// for nothing is taken off by the caller (`os::QUIET`).
    fn wait_until_idle(&mut self) -> Result<()> {
        let mut quiet_since = Instant::now();
        let mut cpu = os::cpu_seconds();
        while quiet_since.elapsed() < os::QUIET {
            std::thread::sleep(Duration::from_millis(10));
            let now = os::cpu_seconds();
            if now - cpu > 0.0007 {
                quiet_since = Instant::now();
            }
            cpu = now;
        }
        Ok(())
    }

    fn table_bytes_written(&mut self) -> u64 {
        // "Level  Files Size(MB) Time(sec) Read(MB) Write(MB)", a line a level; megabytes of 2^20.
        let stats = self.property(c"leveldb.stats");
        let mib: f64 = stats
            .lines()
            .map(|line| line.split_whitespace().collect::<Vec<_>>())
            .filter(|columns| columns.len() == 6 && columns[0].parse::<u32>().is_ok())
            .filter_map(|columns| columns[5].parse::<f64>().ok())
            .sum();
        (mib * (1 << 20) as f64) as u64
    }

    fn describe(&mut self) -> String {
        let stats = self.property(c"leveldb.stats");
        stats
            .lines()
            .skip(3)
            .map(|l| l.split_whitespace().collect::<Vec<_>>().join(" "))
            .collect::<Vec<_>>()
            .join("; ")
    }
}

impl Drop for LevelDb {
    fn drop(&mut self) {
        // SAFETY: opened once, closed once, no iterator is left.
        unsafe { leveldb_close(self.db) };
    }
}
