//! LevelDB and RocksDB through their C interfaces, which have the same functions under two
//! prefixes.

use std::ffi::{CString, c_char, c_int, c_uchar};
use std::path::Path;
use std::sync::Arc;

use bench_compare::c_functions;
use bench_compare::c_library::{Failure, Library, P, taken};

use super::{Engine, Iter, MEMTABLE_BYTES, Result};

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
    readoptions_set_snapshot: fn(P, P);
    put: fn(P, P, Bytes, usize, Bytes, usize, Failure);
    get: fn(P, P, Bytes, usize, *mut usize, Failure) -> P;
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
}

/// What only RocksDB has.
struct Rocks {
    column_family: P,
    delete_range_cf: unsafe extern "C" fn(P, P, P, Bytes, usize, Bytes, usize, Failure),
    flush: unsafe extern "C" fn(P, P, Failure),
    flush_options: P,
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
fn checked<T>(f: &Functions, call: impl FnOnce(Failure) -> T) -> Result<T> {
    let mut error = std::ptr::null_mut();
    let result = call(&mut error);
    // SAFETY: the engine leaves a zero-terminated string that is ours to free.
    match unsafe { taken(error, f.free) } {
        Some(text) => Err(text),
        None => Ok(result),
    }
}

pub(super) fn open(engine: &str, folder: &Path) -> Result<Option<Box<dyn Engine>>> {
    let library = match engine {
        "leveldb" => Library::leveldb(),
        _ => Library::rocksdb(),
    };
    let library = match library {
        Ok(library) => library,
        Err(error) => {
            eprintln!("{engine} is left out: {error}");
            return Ok(None);
        }
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
                        unsafe extern "C" fn(P, P, P, Bytes, usize, Bytes, usize, Failure),
                    >(library.find("rocksdb_delete_range_cf")?),
                    flush: std::mem::transmute::<P, unsafe extern "C" fn(P, P, Failure)>(
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
    fn seek(&mut self, key: &[u8]) -> Result<()> {
        unsafe { (self.f.iter_seek)(self.iter, key.as_ptr(), key.len()) };
        Ok(())
    }

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
