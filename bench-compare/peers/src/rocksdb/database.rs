//! RocksDB's C interface, with owners for what it creates. The only `unsafe` code of this driver is
//! here, in `iterator.rs` and in `tables.rs`.
//!
//! Invariants: a pointer comes from the function that creates its kind and is released once, by
//! `Drop`. What refers to an open database borrows it. Bytes that RocksDB gives are borrowed from
//! their owner. The bindings are those of 10.4, whose functions 10.10 has with the same types.
//!
//! Threading: a `Database` is shared by threads, as RocksDB allows. Batches and iterators belong to
//! one thread.

use std::ffi::{CStr, CString, c_char, c_uint, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::{NonNull, null, null_mut};
use std::slice;
use std::sync::Arc;

use librocksdb_sys as ffi;
use siltstone_bench::engine::{Answers, EngineError, Result};

use super::events::Events;
use super::iterator::Iterator;

/// Levels of RocksDB's log: information, and what is more important.
const INFO_LEVEL: i32 = 1;
/// `BottommostLevelCompaction::kForceOptimized`.
const FORCE_OPTIMIZED: u8 = 3;

/// Takes over a text that RocksDB allocated, if it gave one.
///
/// # Safety
/// `text` is null, or came from RocksDB and was not taken before.
pub(super) unsafe fn taken(text: *mut c_char) -> Option<String> {
    if text.is_null() {
        return None;
    }
    // SAFETY: RocksDB gives zero-terminated texts, which the caller has to free.
    unsafe {
        let owned = CStr::from_ptr(text).to_string_lossy().into_owned();
        ffi::rocksdb_free(text.cast());
        Some(owned)
    }
}

/// Makes a call that may leave the text of an error behind.
pub(super) fn checked<T>(
    during: &'static str,
    call: impl FnOnce(*mut *mut c_char) -> T,
) -> Result<T> {
    let mut error = null_mut();
    let result = call(&mut error);
    // SAFETY: the error is null or came from RocksDB just now.
    match unsafe { taken(error) } {
        Some(message) => Err(EngineError::new(during, message)),
        None => Ok(result),
    }
}

/// A path as RocksDB takes it.
pub(super) fn c_path(path: &Path) -> Result<CString> {
    CString::new(path.as_os_str().as_bytes()).map_err(|error| EngineError::new("open", error))
}

/// Declares an owner of a pointer.
macro_rules! owner {
    ($(#[$doc:meta])* $name:ident($type:ident), $create:ident, $destroy:ident) => {
        $(#[$doc])*
        pub(super) struct $name(pub(super) NonNull<ffi::$type>);

        impl $name {
            pub fn new() -> $name {
                // SAFETY: a constructor without arguments.
                $name::owned(unsafe { ffi::$create() })
            }

            /// Takes over a pointer that RocksDB just made with `new`, which is never null.
            fn owned(pointer: *mut ffi::$type) -> $name {
                $name(NonNull::new(pointer).expect("operator new does not return null"))
            }

            pub fn pointer(&self) -> *mut ffi::$type {
                self.0.as_ptr()
            }
        }

        impl Drop for $name {
            fn drop(&mut self) {
                // SAFETY: the owner alone releases the pointer, and RocksDB keeps copies.
                unsafe { ffi::$destroy(self.0.as_ptr()) };
            }
        }
    };
}

owner!(
    /// Options of a database and of its tables.
    Options(rocksdb_options_t),
    rocksdb_options_create,
    rocksdb_options_destroy
);
owner!(
    ReadOptions(rocksdb_readoptions_t),
    rocksdb_readoptions_create,
    rocksdb_readoptions_destroy
);
owner!(
    WriteOptions(rocksdb_writeoptions_t),
    rocksdb_writeoptions_create,
    rocksdb_writeoptions_destroy
);
owner!(
    FlushOptions(rocksdb_flushoptions_t),
    rocksdb_flushoptions_create,
    rocksdb_flushoptions_destroy
);
owner!(
    CompactOptions(rocksdb_compactoptions_t),
    rocksdb_compactoptions_create,
    rocksdb_compactoptions_destroy
);
owner!(
    WaitOptions(rocksdb_wait_for_compact_options_t),
    rocksdb_wait_for_compact_options_create,
    rocksdb_wait_for_compact_options_destroy
);
owner!(
    /// Writes that become visible together.
    Batch(rocksdb_writebatch_t),
    rocksdb_writebatch_create,
    rocksdb_writebatch_destroy
);

impl Options {
    /// The defaults, changed as the text says, in RocksDB's own form: `name=value;name=value`.
    pub fn parsed(text: &str) -> Result<Options> {
        let (base, options) = (Options::new(), Options::new());
        let text = CString::new(text).map_err(|error| EngineError::new("open", error))?;
        checked("open", |error| {
            // SAFETY: both options are alive, and the text is zero-terminated.
            unsafe {
                ffi::rocksdb_get_options_from_string(
                    base.pointer(),
                    text.as_ptr(),
                    options.pointer(),
                    error,
                );
            }
        })?;
        Ok(options)
    }

    /// Passes what RocksDB writes to its log to `events`, which must outlive the database.
    fn set_log(&mut self, events: &Arc<Events>) {
        let given = Arc::as_ptr(events).cast_mut().cast();
        // SAFETY: the callback has the declared type, and gets a pointer to events that the
        // database keeps alive. The options share the logger, so the handle is released.
        unsafe {
            let logger =
                ffi::rocksdb_logger_create_callback_logger(INFO_LEVEL, Some(logged), given);
            ffi::rocksdb_options_set_info_log(self.pointer(), logger);
            ffi::rocksdb_logger_destroy(logger);
        }
    }
}

/// Called by RocksDB with each line of its log.
unsafe extern "C" fn logged(events: *mut c_void, _: c_uint, text: *mut c_char, bytes: usize) {
    // SAFETY: the pointer is that of `Options::set_log`, whose events live until the database is
    // closed, and the text has the length that RocksDB gives.
    let (events, text) = unsafe {
        (
            &*events.cast_const().cast::<Events>(),
            slice::from_raw_parts(text.cast::<u8>(), bytes),
        )
    };
    events.line(&String::from_utf8_lossy(text));
}

/// The version of the library. RocksDB has no function for it, but writes it to its log when a
/// database is opened, for which one in memory will do.
pub(super) fn version() -> Option<String> {
    let options = Options::parsed("create_if_missing=true;").ok()?;
    // SAFETY: constructors; the environment outlives the database, which is closed first.
    unsafe {
        let environment = ffi::rocksdb_create_mem_env();
        ffi::rocksdb_options_set_env(options.pointer(), environment);
        let database = Database::open(Path::new("/version"), options, true);
        let version = database
            .ok()
            .and_then(|database| database.events().version());
        ffi::rocksdb_env_destroy(environment);
        version
    }
}

impl Batch {
    pub fn clear(&mut self) {
        // SAFETY: the batch is alive.
        unsafe { ffi::rocksdb_writebatch_clear(self.pointer()) };
    }

    pub fn put(&mut self, key: &[u8], value: &[u8]) {
        // SAFETY: slices are passed with their lengths, and RocksDB copies them.
        unsafe {
            ffi::rocksdb_writebatch_put(
                self.pointer(),
                key.as_ptr().cast(),
                key.len(),
                value.as_ptr().cast(),
                value.len(),
            );
        }
    }

    pub fn delete(&mut self, key: &[u8]) {
        // SAFETY: as for a put.
        unsafe {
            ffi::rocksdb_writebatch_delete(self.pointer(), key.as_ptr().cast(), key.len());
        }
    }
}

/// Buffers of a read of many keys.
#[derive(Default)]
pub(super) struct ManyKeys {
    keys: Vec<*const c_char>,
    sizes: Vec<usize>,
    values: Vec<*mut ffi::rocksdb_pinnableslice_t>,
    errors: Vec<*mut c_char>,
}

/// An open database.
pub(super) struct Database {
    db: NonNull<ffi::rocksdb_t>,
    column_family: NonNull<ffi::rocksdb_column_family_handle_t>,
    read: ReadOptions,
    write: WriteOptions,
    write_synced: WriteOptions,
    options: Options,
    events: Arc<Events>,
}

// SAFETY: rocksdb::DB may be used by several threads without locks of the caller, and options are
// only read after the open.
unsafe impl Send for Database {}
// SAFETY: as above.
unsafe impl Sync for Database {}

impl Database {
    pub fn open(folder: &Path, options: Options, verify_checksums: bool) -> Result<Database> {
        let path = c_path(folder)?;
        let events = Arc::<Events>::default();
        // The options have the logger, so they are dropped before the events if the open fails.
        let mut options = options;
        options.set_log(&events);
        let db = checked("open", |error| {
            // SAFETY: the options are alive, and the path is zero-terminated.
            unsafe { ffi::rocksdb_open(options.pointer(), path.as_ptr(), error) }
        })?;
        let (read, write_synced) = (ReadOptions::new(), WriteOptions::new());
        // SAFETY: the options are alive, and the database is open.
        let column_family = unsafe {
            ffi::rocksdb_readoptions_set_verify_checksums(read.pointer(), verify_checksums.into());
            ffi::rocksdb_writeoptions_set_sync(write_synced.pointer(), 1);
            ffi::rocksdb_get_default_column_family_handle(db)
        };
        Ok(Database {
            db: NonNull::new(db).expect("an open without an error gives a database"),
            column_family: NonNull::new(column_family).expect("there is a default column family"),
            read,
            write: WriteOptions::new(),
            write_synced,
            options,
            events,
        })
    }

    pub fn pointer(&self) -> *mut ffi::rocksdb_t {
        self.db.as_ptr()
    }

    pub fn options(&self) -> &Options {
        &self.options
    }

    pub fn events(&self) -> &Events {
        &self.events
    }

    pub fn write(&self, batch: &mut Batch, sync: bool) -> Result<()> {
        let options = if sync {
            &self.write_synced
        } else {
            &self.write
        };
        checked("write", |error| {
            // SAFETY: all three are alive, and the batch is not used by another thread.
            unsafe {
                ffi::rocksdb_write(self.pointer(), options.pointer(), batch.pointer(), error);
            }
        })
    }

    /// Calls `found` with the value, which stays in the block cache or the map meanwhile.
    pub fn get(&self, key: &[u8], found: &mut dyn FnMut(&[u8])) -> Result<bool> {
        let value = checked("get", |error| {
            // SAFETY: the database and the options are alive; the key is passed with its length.
            unsafe {
                ffi::rocksdb_get_pinned(
                    self.pointer(),
                    self.read.pointer(),
                    key.as_ptr().cast(),
                    key.len(),
                    error,
                )
            }
        })?;
        Ok(Pinned::of(value)
            .map(|value| found(value.bytes()))
            .is_some())
    }

    /// Reads many keys with one call, which sorts them and reads blocks once.
    pub fn multi_get(
        &self,
        keys: &[&[u8]],
        many: &mut ManyKeys,
        answers: &mut Answers<'_>,
    ) -> Result<()> {
        many.keys.clear();
        many.keys
            .extend(keys.iter().map(|key| key.as_ptr().cast::<c_char>()));
        many.sizes.clear();
        many.sizes.extend(keys.iter().map(|key| key.len()));
        many.values.clear();
        many.values.resize(keys.len(), null_mut());
        many.errors.clear();
        many.errors.resize(keys.len(), null_mut());
        // SAFETY: all four arrays have as many elements as there are keys.
        unsafe {
            ffi::rocksdb_batched_multi_get_cf(
                self.pointer(),
                self.read.pointer(),
                self.column_family.as_ptr(),
                keys.len(),
                many.keys.as_ptr(),
                many.sizes.as_ptr(),
                many.values.as_mut_ptr(),
                many.errors.as_mut_ptr(),
                false,
            );
        }
        let mut result = Ok(());
        for (index, (value, error)) in many.values.iter().zip(&many.errors).enumerate() {
            let value = Pinned::of(*value);
            // SAFETY: the error is null or came from RocksDB just now.
            match unsafe { taken(*error) } {
                Some(message) => result = Err(EngineError::new("multi_get", message)),
                None => answers(index, value.as_ref().map(Pinned::bytes)),
            }
        }
        result
    }

    pub fn iterator(&self) -> Iterator<'_> {
        Iterator::new(self, &self.read)
    }

    pub fn flush(&self) -> Result<()> {
        let options = FlushOptions::new();
        checked("flush", |error| {
            // SAFETY: both are alive. The default waits until the flush has ended.
            unsafe { ffi::rocksdb_flush(self.pointer(), options.pointer(), error) };
        })
    }

    /// Compacts all keys, and each table of the last level once.
    pub fn compact(&self) {
        let options = CompactOptions::new();
        // SAFETY: null stands for the first and the last key.
        unsafe {
            ffi::rocksdb_compactoptions_set_bottommost_level_compaction(
                options.pointer(),
                FORCE_OPTIMIZED,
            );
            ffi::rocksdb_compact_range_opt(self.pointer(), options.pointer(), null(), 0, null(), 0);
        }
    }

    pub fn wait_until_idle(&self) -> Result<()> {
        let options = WaitOptions::new();
        checked("wait until idle", |error| {
            // SAFETY: both are alive.
            unsafe { ffi::rocksdb_wait_for_compact(self.pointer(), options.pointer(), error) };
        })
    }

    /// A property as text, if RocksDB has one of this name.
    pub fn property(&self, name: &CStr) -> Option<String> {
        // SAFETY: the database is alive, and the name is zero-terminated.
        unsafe { taken(ffi::rocksdb_property_value(self.pointer(), name.as_ptr())) }
    }

    /// A property as a number, if RocksDB has one of this name.
    pub fn number(&self, name: &CStr) -> Option<u64> {
        let mut value = 0;
        // SAFETY: as above.
        let code = unsafe { ffi::rocksdb_property_int(self.pointer(), name.as_ptr(), &mut value) };
        (code == 0).then_some(value)
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        // SAFETY: iterators borrow the database, so nothing uses it any more. RocksDB waits for its
        // background work, so nobody logs after this, and the events may be freed.
        unsafe {
            ffi::rocksdb_column_family_handle_destroy(self.column_family.as_ptr());
            ffi::rocksdb_close(self.pointer());
        }
    }
}

/// A value that RocksDB keeps in memory for the reader.
struct Pinned(NonNull<ffi::rocksdb_pinnableslice_t>);

impl Pinned {
    /// Null stands for no value.
    fn of(value: *mut ffi::rocksdb_pinnableslice_t) -> Option<Pinned> {
        NonNull::new(value).map(Pinned)
    }

    fn bytes(&self) -> &[u8] {
        let mut bytes = 0;
        // SAFETY: the value is alive; what it points to is kept as long as it lives.
        unsafe {
            let start = ffi::rocksdb_pinnableslice_value(self.0.as_ptr(), &mut bytes);
            slice::from_raw_parts(start.cast(), bytes)
        }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // SAFETY: the bytes borrow the value, so nothing uses it any more.
        unsafe { ffi::rocksdb_pinnableslice_destroy(self.0.as_ptr()) };
    }
}
