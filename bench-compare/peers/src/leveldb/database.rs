//! The functions of `bridge.cc`, with owners for what they create. The only `unsafe` code of this
//! driver is here.
//!
//! Invariants: a pointer comes from the function that creates its kind and is released once, by
//! `Drop`. Iterators borrow their database. Bytes that LevelDB gives are borrowed from their owner.
//!
//! Threading: a `Database` is shared by threads, as LevelDB allows. The others belong to one.

use std::ffi::{CStr, CString, c_char, c_int, c_uchar};
use std::marker::PhantomData;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::{NonNull, null, null_mut};
use std::slice;

use siltstone_bench::engine::{EngineError, Entries, Result};

/// A pointer to an object of C++.
#[repr(C)]
struct Opaque {
    _bytes: [u8; 0],
}

type Object = *mut Opaque;
type Text = *mut c_char;

/// How a database is opened. The layout is that of `silt_leveldb_settings` in `bridge.cc`.
#[repr(C)]
pub(super) struct Settings {
    pub write_buffer_size: usize,
    pub cache_bytes: usize,
    pub max_file_size: usize,
    pub block_size: usize,
    pub block_restart_interval: c_int,
    pub max_open_files: c_int,
    pub bloom_bits: c_int,
    pub snappy: bool,
    pub paranoid_checks: bool,
    pub reuse_logs: bool,
    pub verify_checksums: bool,
}

/// What was counted since the open. The layout is that of `silt_leveldb_figures`.
#[repr(C)]
#[derive(Default)]
pub(super) struct Counted {
    pub log_bytes: u64,
    pub background_cpu_ns: u64,
    pub background_flush_cpu_ns: u64,
    pub flush_cpu_ns: u64,
    pub flush_count: u64,
    pub flush_bytes: u64,
    pub compaction_count: u64,
    pub compaction_bytes: u64,
    pub memtable_waits: u64,
    pub level0_waits: u64,
}

unsafe extern "C" {
    fn silt_leveldb_open(path: *const c_char, settings: &Settings, opened: &mut Object) -> Text;
    fn silt_leveldb_close(database: Object);
    fn silt_leveldb_batch_create() -> Object;
    fn silt_leveldb_batch_destroy(batch: Object);
    fn silt_leveldb_batch_clear(batch: Object);
    fn silt_leveldb_batch_put(
        batch: Object,
        key: *const u8,
        key_bytes: usize,
        value: *const u8,
        value_bytes: usize,
    );
    fn silt_leveldb_batch_delete(batch: Object, key: *const u8, key_bytes: usize);
    fn silt_leveldb_write(database: Object, batch: Object, sync: c_uchar) -> Text;
    fn silt_leveldb_string_create() -> Object;
    fn silt_leveldb_string_destroy(string: Object);
    fn silt_leveldb_get(
        database: Object,
        key: *const u8,
        key_bytes: usize,
        string: Object,
        value: &mut *const u8,
        value_bytes: &mut usize,
        error: &mut Text,
    ) -> c_int;
    fn silt_leveldb_iterator_create(database: Object) -> Object;
    fn silt_leveldb_iterator_destroy(iterator: Object);
    fn silt_leveldb_iterator_seek(iterator: Object, key: *const u8, key_bytes: usize);
    fn silt_leveldb_iterator_first(iterator: Object);
    fn silt_leveldb_iterator_last(iterator: Object);
    fn silt_leveldb_iterator_next(iterator: Object);
    fn silt_leveldb_iterator_prev(iterator: Object);
    fn silt_leveldb_iterator_entry(
        iterator: Object,
        key: &mut *const u8,
        key_bytes: &mut usize,
        value: &mut *const u8,
        value_bytes: &mut usize,
    ) -> c_int;
    fn silt_leveldb_iterator_error(iterator: Object) -> Text;
    fn silt_leveldb_property(database: Object, name: *const c_char) -> Text;
    fn silt_leveldb_compact(
        database: Object,
        begin: *const u8,
        begin_bytes: usize,
        end: *const u8,
        end_bytes: usize,
    );
    fn silt_leveldb_wait_until_idle(database: Object);
    fn silt_leveldb_read_figures(database: Object, figures: &mut Counted);
    fn silt_leveldb_major_version() -> c_int;
    fn silt_leveldb_minor_version() -> c_int;
    fn silt_leveldb_free(text: Text);
}

/// Takes over a text that the bridge allocated, if it gave one.
///
/// # Safety
/// `text` is null, or came from the bridge and was not taken before.
unsafe fn taken(text: Text) -> Option<String> {
    if text.is_null() {
        return None;
    }
    // SAFETY: the bridge gives zero-terminated texts, which the caller has to free.
    unsafe {
        let owned = CStr::from_ptr(text).to_string_lossy().into_owned();
        silt_leveldb_free(text);
        Some(owned)
    }
}

/// The result of a call that returns the text of an error or null.
///
/// # Safety
/// As for [`taken`].
unsafe fn checked(during: &'static str, text: Text) -> Result<()> {
    // SAFETY: as the caller promises.
    match unsafe { taken(text) } {
        Some(message) => Err(EngineError::new(during, message)),
        None => Ok(()),
    }
}

/// A pointer that C++ just made with `new`, which never returns null.
fn created(object: Object) -> NonNull<Opaque> {
    NonNull::new(object).expect("operator new does not return null")
}

/// The version of the library, as `1.23`.
pub(super) fn version() -> String {
    // SAFETY: functions without arguments that return a constant.
    let (major, minor) = unsafe { (silt_leveldb_major_version(), silt_leveldb_minor_version()) };
    format!("{major}.{minor}")
}

/// An open database.
pub(super) struct Database(NonNull<Opaque>);

// SAFETY: leveldb::DB may be used by several threads without locks of the caller, and the counters
// of the bridge are atomic.
unsafe impl Send for Database {}
// SAFETY: as above.
unsafe impl Sync for Database {}

impl Database {
    pub fn open(folder: &Path, settings: &Settings) -> Result<Database> {
        let path = CString::new(folder.as_os_str().as_bytes())
            .map_err(|error| EngineError::new("open", error))?;
        let mut opened = null_mut();
        // SAFETY: the path is zero-terminated, and the structures have the layout of the bridge.
        unsafe {
            checked(
                "open",
                silt_leveldb_open(path.as_ptr(), settings, &mut opened),
            )?;
        }
        Ok(Database(created(opened)))
    }

    pub fn write(&self, batch: &mut Batch, sync: bool) -> Result<()> {
        // SAFETY: both are alive, and the batch is not used by another thread.
        unsafe {
            let text = silt_leveldb_write(self.0.as_ptr(), batch.0.as_ptr(), sync.into());
            checked("write", text)
        }
    }

    /// The value of the key, which stays in `text` until the next call.
    pub fn get<'a>(&self, key: &[u8], text: &'a mut CppString) -> Result<Option<&'a [u8]>> {
        let (mut value, mut value_bytes, mut error) = (null(), 0, null_mut());
        // SAFETY: all pointers are alive during the call.
        let found = unsafe {
            silt_leveldb_get(
                self.0.as_ptr(),
                key.as_ptr(),
                key.len(),
                text.0.as_ptr(),
                &mut value,
                &mut value_bytes,
                &mut error,
            )
        };
        match found {
            0 => Ok(None),
            // SAFETY: the bytes are those of the string, which is borrowed as long as they are.
            1 => Ok(Some(unsafe { slice::from_raw_parts(value, value_bytes) })),
            // SAFETY: otherwise the bridge set the error.
            _ => unsafe { checked("get", error).map(|()| None) },
        }
    }

    pub fn iterator(&self) -> Iterator<'_> {
        // SAFETY: the database is alive, and outlives the iterator by its lifetime.
        let iterator = unsafe { silt_leveldb_iterator_create(self.0.as_ptr()) };
        Iterator {
            iterator: created(iterator),
            database: PhantomData,
        }
    }

    /// A property as text, if LevelDB has one of this name.
    pub fn property(&self, name: &CStr) -> Option<String> {
        // SAFETY: the name is zero-terminated.
        unsafe { taken(silt_leveldb_property(self.0.as_ptr(), name.as_ptr())) }
    }

    /// Compacts all keys.
    pub fn compact(&self) {
        // SAFETY: null stands for the first and the last key.
        unsafe { silt_leveldb_compact(self.0.as_ptr(), null(), 0, null(), 0) };
    }

    /// Compacts the keys from `begin` to `end`, and writes the memtable to a table before.
    pub fn compact_between(&self, begin: &[u8], end: &[u8]) {
        // SAFETY: slices are passed with their lengths.
        unsafe {
            silt_leveldb_compact(
                self.0.as_ptr(),
                begin.as_ptr(),
                begin.len(),
                end.as_ptr(),
                end.len(),
            );
        }
    }

    pub fn wait_until_idle(&self) {
        // SAFETY: the database is alive.
        unsafe { silt_leveldb_wait_until_idle(self.0.as_ptr()) };
    }

    pub fn counted(&self) -> Counted {
        let mut counted = Counted::default();
        // SAFETY: the structure has the layout of the bridge.
        unsafe { silt_leveldb_read_figures(self.0.as_ptr(), &mut counted) };
        counted
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        // SAFETY: iterators borrow the database, so nothing uses it any more.
        unsafe { silt_leveldb_close(self.0.as_ptr()) };
    }
}

/// Writes that become visible together.
pub(super) struct Batch(NonNull<Opaque>);

impl Batch {
    pub fn new() -> Batch {
        // SAFETY: a constructor without arguments.
        Batch(created(unsafe { silt_leveldb_batch_create() }))
    }

    pub fn clear(&mut self) {
        // SAFETY: the batch is alive.
        unsafe { silt_leveldb_batch_clear(self.0.as_ptr()) };
    }

    pub fn put(&mut self, key: &[u8], value: &[u8]) {
        // SAFETY: slices are passed with their lengths, and LevelDB copies them.
        unsafe {
            silt_leveldb_batch_put(
                self.0.as_ptr(),
                key.as_ptr(),
                key.len(),
                value.as_ptr(),
                value.len(),
            );
        }
    }

    pub fn delete(&mut self, key: &[u8]) {
        // SAFETY: as for a put.
        unsafe { silt_leveldb_batch_delete(self.0.as_ptr(), key.as_ptr(), key.len()) };
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        // SAFETY: nothing keeps a pointer to the batch.
        unsafe { silt_leveldb_batch_destroy(self.0.as_ptr()) };
    }
}

/// A `std::string` that reads fill.
pub(super) struct CppString(NonNull<Opaque>);

impl CppString {
    pub fn new() -> CppString {
        // SAFETY: a constructor without arguments.
        CppString(created(unsafe { silt_leveldb_string_create() }))
    }
}

impl Drop for CppString {
    fn drop(&mut self) {
        // SAFETY: the bytes of values borrow the string, so nothing uses it any more.
        unsafe { silt_leveldb_string_destroy(self.0.as_ptr()) };
    }
}

/// An iterator over the database as it was when the iterator was made.
pub(super) struct Iterator<'a> {
    iterator: NonNull<Opaque>,
    database: PhantomData<&'a Database>,
}

impl Iterator<'_> {
    pub fn seek(&mut self, key: &[u8]) {
        // SAFETY: the iterator is alive, here and below.
        unsafe { silt_leveldb_iterator_seek(self.iterator.as_ptr(), key.as_ptr(), key.len()) };
    }

    pub fn first(&mut self) {
        // SAFETY: as above.
        unsafe { silt_leveldb_iterator_first(self.iterator.as_ptr()) };
    }

    pub fn last(&mut self) {
        // SAFETY: as above.
        unsafe { silt_leveldb_iterator_last(self.iterator.as_ptr()) };
    }

    /// Moves to the last key that is not greater. LevelDB has no such seek of its own.
    pub fn seek_for_prev(&mut self, key: &[u8]) -> Result<()> {
        self.seek(key);
        match self.entry().map(|(found, _)| found == key) {
            Some(true) => {}
            // SAFETY: `entry` has just returned an entry.
            Some(false) => unsafe { self.prev() },
            None => {
                self.check()?;
                self.last();
            }
        }
        Ok(())
    }

    /// The entry where the iterator is. `None` is the end, or an error.
    pub fn entry(&self) -> Option<(&[u8], &[u8])> {
        let (mut key, mut key_bytes, mut value, mut value_bytes) = (null(), 0, null(), 0);
        // SAFETY: LevelDB keeps the bytes until the iterator moves, which borrows it mutably.
        unsafe {
            let is_valid = silt_leveldb_iterator_entry(
                self.iterator.as_ptr(),
                &mut key,
                &mut key_bytes,
                &mut value,
                &mut value_bytes,
            );
            (is_valid == 1).then(|| {
                (
                    slice::from_raw_parts(key, key_bytes),
                    slice::from_raw_parts(value, value_bytes),
                )
            })
        }
    }

    /// Moves to the next entry.
    ///
    /// # Safety
    /// [`Iterator::entry`] returned an entry since the last move. A check here would be a part of
    /// what is measured.
    pub unsafe fn next(&mut self) {
        // SAFETY: the iterator is positioned, as the caller promises.
        unsafe { silt_leveldb_iterator_next(self.iterator.as_ptr()) };
    }

    /// Moves to the entry before.
    ///
    /// # Safety
    /// As for [`Iterator::next`].
    pub unsafe fn prev(&mut self) {
        // SAFETY: the iterator is positioned, as the caller promises.
        unsafe { silt_leveldb_iterator_prev(self.iterator.as_ptr()) };
    }

    /// The error that ended the iterator, if one did.
    pub fn check(&self) -> Result<()> {
        // SAFETY: as above.
        unsafe { checked("scan", silt_leveldb_iterator_error(self.iterator.as_ptr())) }
    }

    /// Gives the entries from the position on until `entries` has enough.
    pub fn give(&mut self, is_forward: bool, entries: &mut Entries<'_>) -> Result<()> {
        while let Some((key, value)) = self.entry()
            && entries(key, value)
        {
            // SAFETY: `entry` has just returned an entry.
            unsafe {
                if is_forward {
                    self.next();
                } else {
                    self.prev();
                }
            }
        }
        self.check()
    }
}

impl Drop for Iterator<'_> {
    fn drop(&mut self) {
        // SAFETY: entries borrow the iterator, so nothing uses it any more.
        unsafe { silt_leveldb_iterator_destroy(self.iterator.as_ptr()) };
    }
}
