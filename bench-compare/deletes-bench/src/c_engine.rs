//! LevelDB and RocksDB through their C interfaces, which have the same functions under two
//! prefixes.

use std::ffi::{CStr, CString, c_char, c_int, c_uchar, c_void};
use std::path::Path;
use std::sync::Arc;

use super::{Engine, Iter, MEMTABLE_BYTES, Result};

type P = *mut c_void;
type Error = *mut *mut c_char;
type Bytes = *const u8;

/// Declares the functions that are loaded, and loads them.
macro_rules! functions {
    ($($name:ident: fn($($argument:ty),*) $(-> $result:ty)?;)*) => {
        #[allow(clippy::type_complexity)]
        struct Functions {
            $($name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
        }

        impl Functions {
            fn load(library: &Library, prefix: &str) -> Result<Functions> {
                Ok(Functions {
                    // SAFETY: the declarations below are those of leveldb/c.h and rocksdb/c.h.
                    $($name: unsafe {
                        std::mem::transmute::<P, unsafe extern "C" fn($($argument),*) $(-> $result)?>(
                            library.find(&format!("{prefix}_{}", stringify!($name)))?,
                        )
                    },)*
                })
            }
        }
    };
}

functions! {
    open: fn(P, *const c_char, Error) -> P;
    close: fn(P);
    free: fn(P);
    options_create: fn() -> P;
    options_set_create_if_missing: fn(P, c_uchar);
    options_set_compression: fn(P, c_int);
    options_set_write_buffer_size: fn(P, usize);
    writeoptions_create: fn() -> P;
    readoptions_create: fn() -> P;
    readoptions_set_snapshot: fn(P, P);
    put: fn(P, P, Bytes, usize, Bytes, usize, Error);
    get: fn(P, P, Bytes, usize, *mut usize, Error) -> P;
    create_snapshot: fn(P) -> P;
    release_snapshot: fn(P, P);
    compact_range: fn(P, Bytes, usize, Bytes, usize);
    create_iterator: fn(P, P) -> P;
    iter_destroy: fn(P);
    iter_valid: fn(P) -> c_uchar;
    iter_seek_to_first: fn(P);
    iter_seek_to_last: fn(P);
    iter_next: fn(P);
    iter_prev: fn(P);
    iter_key: fn(P, *mut usize) -> Bytes;
}

/// What only RocksDB has.
struct Rocks {
    column_family: P,
    delete_range_cf: unsafe extern "C" fn(P, P, P, Bytes, usize, Bytes, usize, Error),
    flush: unsafe extern "C" fn(P, P, Error),
    flush_options: P,
}

/// A library that stays loaded.
struct Library(P);

impl Library {
    fn open(name: &str) -> Option<Library> {
        let name = CString::new(name).ok()?;
        // SAFETY: the name is a string; the initialisers of these libraries are sound.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW) };
        (!handle.is_null()).then_some(Library(handle))
    }

    fn find(&self, name: &str) -> Result<P> {
        let text = CString::new(name).map_err(|e| e.to_string())?;
        // SAFETY: the handle is one that dlopen gave.
        let found = unsafe { libc::dlsym(self.0, text.as_ptr()) };
        match found.is_null() {
            true => Err(format!("the library has no function `{name}`")),
            false => Ok(found),
        }
    }
}

struct CEngine {
    f: Arc<Functions>,
    rocks: Option<Rocks>,
    db: P,
    write: P,
    read: P,
    snapshots: Vec<P>,
}

struct CIter {
    f: Arc<Functions>,
    iter: P,
}

/// Calls a function that may leave an error behind.
fn checked<T>(f: &Functions, call: impl FnOnce(Error) -> T) -> Result<T> {
    let mut error = std::ptr::null_mut();
    let result = call(&mut error);
    if error.is_null() {
        return Ok(result);
    }
    // SAFETY: the engine left a zero-terminated string that is ours to free.
    unsafe {
        let text = CStr::from_ptr(error).to_string_lossy().into_owned();
        (f.free)(error.cast());
        Err(text)
    }
}

pub(super) fn open(engine: &str, folder: &Path) -> Result<Option<Box<dyn Engine>>> {
    let name = match engine {
        "leveldb" => "libleveldb.so.1d".to_string(),
        _ => std::env::var("ROCKSDB_LIBRARY").unwrap_or_else(|_| "librocksdb.so".to_string()),
    };
    let Some(library) = Library::open(&name) else {
        eprintln!("{engine} is left out: {name} cannot be loaded");
        return Ok(None);
    };
    let f = Arc::new(Functions::load(&library, engine)?);
    let path = CString::new(folder.to_string_lossy().as_bytes()).map_err(|e| e.to_string())?;
    // SAFETY: here and below, pointers are those that the engine gave, and slices are passed with
    // their lengths, as its header says.
    let (db, write, read) = unsafe {
        let options = (f.options_create)();
        (f.options_set_create_if_missing)(options, 1);
        (f.options_set_compression)(options, 0);
        (f.options_set_write_buffer_size)(options, MEMTABLE_BYTES as usize);
        let db = checked(&f, |error| (f.open)(options, path.as_ptr(), error))?;
        (db, (f.writeoptions_create)(), (f.readoptions_create)())
    };
    let rocks = match engine {
        "rocksdb" => {
            let default = library.find("rocksdb_get_default_column_family_handle")?;
            let options = library.find("rocksdb_flushoptions_create")?;
            // SAFETY: the types are those of rocksdb/c.h.
            Some(unsafe {
                Rocks {
                    column_family: std::mem::transmute::<P, unsafe extern "C" fn(P) -> P>(default)(
                        db,
                    ),
                    delete_range_cf: std::mem::transmute::<
                        P,
                        unsafe extern "C" fn(P, P, P, Bytes, usize, Bytes, usize, Error),
                    >(library.find("rocksdb_delete_range_cf")?),
                    flush: std::mem::transmute::<P, unsafe extern "C" fn(P, P, Error)>(
                        library.find("rocksdb_flush")?,
                    ),
                    flush_options: std::mem::transmute::<P, unsafe extern "C" fn() -> P>(options)(),
                }
            })
        }
        _ => None,
    };
    Ok(Some(Box::new(CEngine {
        f,
        rocks,
        db,
        write,
        read,
        snapshots: Vec::new(),
    })))
}

impl Engine for CEngine {
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        checked(&self.f, |error| unsafe {
            let (key, value) = ((key.as_ptr(), key.len()), (value.as_ptr(), value.len()));
            (self.f.put)(self.db, self.write, key.0, key.1, value.0, value.1, error)
        })
    }

    fn delete_range(&mut self, start: &[u8], end: &[u8]) -> Result<bool> {
        let Some(rocks) = &self.rocks else {
            return Ok(false);
        };
        checked(&self.f, |error| unsafe {
            (rocks.delete_range_cf)(
                self.db,
                self.write,
                rocks.column_family,
                start.as_ptr(),
                start.len(),
                end.as_ptr(),
                end.len(),
                error,
            )
        })?;
        Ok(true)
    }

    fn get(&mut self, key: &[u8]) -> Result<bool> {
        let mut len = 0;
        let value = checked(&self.f, |error| unsafe {
            (self.f.get)(self.db, self.read, key.as_ptr(), key.len(), &mut len, error)
        })?;
        if value.is_null() {
            return Ok(false);
        }
        unsafe { (self.f.free)(value) };
        Ok(true)
    }

    fn snapshot(&mut self) -> Result<usize> {
        self.snapshots
            .push(unsafe { (self.f.create_snapshot)(self.db) });
        Ok(self.snapshots.len() - 1)
    }

    fn flush(&mut self) -> Result<()> {
        match &self.rocks {
            Some(rocks) => checked(&self.f, |error| unsafe {
                (rocks.flush)(self.db, rocks.flush_options, error)
            }),
            None => Ok(()),
        }
    }

    fn compact(&mut self) -> Result<()> {
        let none = std::ptr::null();
        unsafe { (self.f.compact_range)(self.db, none, 0, none, 0) };
        Ok(())
    }

    fn iterator(&mut self, snapshot: Option<usize>) -> Result<Box<dyn Iter + '_>> {
        let iter = unsafe {
            let read = (self.f.readoptions_create)();
            if let Some(i) = snapshot {
                (self.f.readoptions_set_snapshot)(read, self.snapshots[i]);
            }
            (self.f.create_iterator)(self.db, read)
        };
        Ok(Box::new(CIter {
            f: self.f.clone(),
            iter,
        }))
    }
}

impl Drop for CEngine {
    fn drop(&mut self) {
        unsafe {
            for snapshot in &self.snapshots {
                (self.f.release_snapshot)(self.db, *snapshot);
            }
            (self.f.close)(self.db);
        }
    }
}

impl Iter for CIter {
    fn seek_to_first(&mut self) -> Result<()> {
        unsafe { (self.f.iter_seek_to_first)(self.iter) };
        Ok(())
    }

    fn seek_to_last(&mut self) -> Result<()> {
        unsafe { (self.f.iter_seek_to_last)(self.iter) };
        Ok(())
    }

    fn next(&mut self) -> Result<()> {
        unsafe { (self.f.iter_next)(self.iter) };
        Ok(())
    }

    fn prev(&mut self) -> Result<()> {
        unsafe { (self.f.iter_prev)(self.iter) };
        Ok(())
    }

    fn key(&mut self) -> Vec<u8> {
        unsafe {
            if (self.f.iter_valid)(self.iter) == 0 {
                return Vec::new();
            }
            let mut len = 0;
            let start = (self.f.iter_key)(self.iter, &mut len);
            std::slice::from_raw_parts(start, len).to_vec()
        }
    }
}

impl Drop for CIter {
    fn drop(&mut self) {
        unsafe { (self.f.iter_destroy)(self.iter) };
    }
}
