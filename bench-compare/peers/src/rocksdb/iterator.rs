//! Iterators of RocksDB.
//!
//! Invariants and threading are those of `database.rs`.

use std::marker::PhantomData;
use std::ptr::NonNull;
use std::slice;

use librocksdb_sys as ffi;
use siltstone_bench::engine::{Entries, Result};

use super::database::{Database, ReadOptions, checked};

/// An iterator over the database as it was when the iterator was made.
pub(super) struct Iterator<'a> {
    iterator: NonNull<ffi::rocksdb_iterator_t>,
    database: PhantomData<&'a Database>,
}

impl<'a> Iterator<'a> {
    pub fn new(database: &'a Database, read: &'a ReadOptions) -> Iterator<'a> {
        // SAFETY: both are alive, and outlive the iterator by its lifetime.
        let iterator = unsafe { ffi::rocksdb_create_iterator(database.pointer(), read.pointer()) };
        Iterator {
            iterator: NonNull::new(iterator).expect("RocksDB always makes an iterator"),
            database: PhantomData,
        }
    }

    /// Seeks the first key that is not less than `from`, or the first of all.
    pub fn seek(&mut self, from: Option<&[u8]>) {
        let iterator = self.iterator.as_ptr();
        // SAFETY: the iterator is alive, and the key is passed with its length.
        unsafe {
            match from {
                Some(key) => ffi::rocksdb_iter_seek(iterator, key.as_ptr().cast(), key.len()),
                None => ffi::rocksdb_iter_seek_to_first(iterator),
            }
        }
    }

    /// Seeks the last key that is not greater than `from`, or the last of all.
    pub fn seek_for_prev(&mut self, from: Option<&[u8]>) {
        let iterator = self.iterator.as_ptr();
        // SAFETY: as above.
        unsafe {
            match from {
                Some(key) => {
                    ffi::rocksdb_iter_seek_for_prev(iterator, key.as_ptr().cast(), key.len());
                }
                None => ffi::rocksdb_iter_seek_to_last(iterator),
            }
        }
    }

    /// The entry where the iterator is. `None` is the end, or an error.
    fn entry(&self) -> Option<(&[u8], &[u8])> {
        let iterator = self.iterator.as_ptr();
        let (mut key_bytes, mut value_bytes) = (0, 0);
        // SAFETY: the iterator is alive. It keeps the bytes until it moves, which borrows it
        // mutably.
        unsafe {
            if ffi::rocksdb_iter_valid(iterator) == 0 {
                return None;
            }
            let key = ffi::rocksdb_iter_key(iterator, &mut key_bytes);
            let value = ffi::rocksdb_iter_value(iterator, &mut value_bytes);
            Some((
                slice::from_raw_parts(key.cast(), key_bytes),
                slice::from_raw_parts(value.cast(), value_bytes),
            ))
        }
    }

    /// Gives the entries from the position on until `entries` has enough.
    pub fn give(&mut self, is_forward: bool, entries: &mut Entries<'_>) -> Result<()> {
        while let Some((key, value)) = self.entry()
            && entries(key, value)
        {
            // SAFETY: the iterator is positioned, for `entry` has just returned an entry.
            unsafe {
                match is_forward {
                    true => ffi::rocksdb_iter_next(self.iterator.as_ptr()),
                    false => ffi::rocksdb_iter_prev(self.iterator.as_ptr()),
                }
            }
        }
        checked("scan", |error| {
            // SAFETY: the iterator is alive.
            unsafe { ffi::rocksdb_iter_get_error(self.iterator.as_ptr(), error) };
        })
    }
}

impl Drop for Iterator<'_> {
    fn drop(&mut self) {
        // SAFETY: entries borrow the iterator, so nothing uses it any more.
        unsafe { ffi::rocksdb_iter_destroy(self.iterator.as_ptr()) };
    }
}
