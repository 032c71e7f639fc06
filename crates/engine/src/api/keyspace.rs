//! The handle of a keyspace, [`Keyspace`].
//!
//! Each call checks its arguments and leaves the work to one of the parts below.
//!
//! Threading: every method may be called from any thread.

use std::sync::Arc;

use crate::api::store::Store;
use crate::commit::write::{WriteOptions, write_if, write_to};
use crate::env::session::SessionId;
use crate::formats::batch::BatchBody;
use crate::services::parts::Parts;
use crate::tree::iter::{Cursor, IterOptions, Range};
use crate::tree::read::{self, PinnedValue};
use crate::tree::snapshot::Snapshot;
use crate::tree::view::KeyspaceCore;
use crate::types::error::{Error, Result};
use crate::types::options::{KeyspaceOptions, KeyspaceSettings};

/// A handle of one keyspace, which is an ordered map of byte strings (in RocksDB: a column family).
/// It is cheap to clone, and any of its methods may be called from any thread. It keeps the store
/// open, as a [`Store`] does.
///
/// Keys and values are anything that is bytes (`impl AsRef<[u8]>`): `"text"`, `b"bytes"`,
/// `[u8; N]`, `Vec<u8>` or references to these. Keys are ordered bytewise, so write a number as
/// `n.to_be_bytes()`. A key has at most 65,535 bytes and may be empty, a value at most 1 GiB.
///
/// Reads and writes return `Closed` after the store was closed, and `KeyspaceDropped` after the
/// keyspace was dropped.
#[derive(Clone)]
pub struct Keyspace {
    store: Store,
    keyspace: Arc<KeyspaceCore>,
}

impl Keyspace {
    pub(crate) fn new(store: Store, keyspace: Arc<KeyspaceCore>) -> Keyspace {
        Keyspace { store, keyspace }
    }

    /// The keyspace's number in events and statistics. No other keyspace of this store ever gets
    /// the same number, but a keyspace of another store may have it.
    #[inline]
    pub fn id(&self) -> u32 {
        self.keyspace.id
    }

    /// The keyspace's name.
    pub fn name(&self) -> &str {
        &self.keyspace.name
    }

    /// The settings in force: the keyspace's own, and the store's where it has none of its own. (A
    /// default of the store that contradicts an own setting is adjusted:
    /// [`KeyspaceOptions::over`].)
    pub fn options(&self) -> KeyspaceSettings {
        self.keyspace.settings().all.clone()
    }

    /// The settings that were set for this keyspace.
    pub fn own_options(&self) -> KeyspaceOptions {
        self.keyspace.settings().own.clone()
    }

    /// Sets the options that are set in `options`, and leaves the others unchanged. They are stored
    /// in the manifest, durably, before the call returns; this costs one sync. They apply to the
    /// next memtable, job and decision; existing tables are not rewritten.
    ///
    /// # Errors
    /// `InvalidArgument` that names the impossible option; `KeyspaceDropped`; `NoSpace`, `Poisoned`
    /// or I/O as [`Store::write`]. Nothing has changed then. (After `Poisoned` or I/O, the options
    /// may be in force when the store is opened again.)
    pub fn set_options(&self, options: &KeyspaceOptions) -> Result<()> {
        self.change_options(options, &[])
    }

    /// Removes this keyspace's own values of the options with these names, so that they follow the
    /// store's options again. Values stay until they are removed here, whether they were set by
    /// [`Keyspace::set_options`], by the [`crate::Options::keyspaces`] of an open, or by the file
    /// `OPTIONS.toml`. A later open changes only the options that it sets.
    ///
    /// # Errors
    /// As [`Keyspace::set_options`].
    pub fn unset_options(&self, names: &[&str]) -> Result<()> {
        self.change_options(&KeyspaceOptions::default(), names)
    }

    /// Does both in one edit: removes the options `unset` as [`Keyspace::unset_options`], then sets
    /// those of `set` as [`Keyspace::set_options`]. Only the result is checked for contradictions.
    ///
    /// # Errors
    /// As [`Keyspace::set_options`].
    pub fn change_options(&self, set: &KeyspaceOptions, unset: &[&str]) -> Result<()> {
        self.check()?;
        crate::services::settings::set_keyspace(&self.parts().catalog, &self.keyspace, |own| {
            unset.iter().try_for_each(|name| own.unset(name))?;
            *own = crate::types::options::keyspace::merged(self.name(), own, set, None)?;
            Ok(())
        })
    }

    /// The store that the keyspace is in.
    pub fn store(&self) -> &Store {
        &self.store
    }

    pub(crate) fn parts(&self) -> &Parts {
        self.store.parts()
    }

    /// Identifies the open store that the keyspace is in.
    #[inline]
    pub(crate) fn session(&self) -> SessionId {
        self.parts().env.session()
    }

    pub(crate) fn inner(&self) -> &Arc<KeyspaceCore> {
        &self.keyspace
    }

    #[inline]
    pub(crate) fn check(&self) -> Result<()> {
        self.parts().env.check_open()?;
        self.keyspace.check()
    }

    fn write_one(
        &self,
        options: WriteOptions,
        fill: impl FnOnce(&mut BatchBody, u32) -> Result<()>,
    ) -> Result<()> {
        self.check()?;
        let mut body = BatchBody::new();
        fill(&mut body, self.keyspace.id)?;
        write_to(&self.parts().commit, &self.keyspace, body, options)
    }

    /// Sets `key` to `value`. When the call returns, the write is in the log and visible to
    /// readers. With the default [`WriteOptions`], the store's [`SyncMode`](crate::SyncMode)
    /// decides when it survives a loss of power.
    ///
    /// # Errors
    /// `InvalidArgument` for a key over 65,535 bytes or a value over 1 GiB; as [`Store::write`]
    /// otherwise.
    #[inline]
    pub fn put(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<()> {
        self.put_bytes(key.as_ref(), value.as_ref(), WriteOptions::default())
    }

    /// Like [`Keyspace::put`], with [`WriteOptions`].
    ///
    /// # Errors
    /// As [`Keyspace::put`].
    pub fn put_with(
        &self,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        options: WriteOptions,
    ) -> Result<()> {
        self.put_bytes(key.as_ref(), value.as_ref(), options)
    }

    fn put_bytes(&self, key: &[u8], value: &[u8], options: WriteOptions) -> Result<()> {
        self.check()?;
        let mut body = BatchBody::with_capacity(key.len() + value.len() + 16);
        body.put(self.keyspace.id, key, value)?;
        write_to(&self.parts().commit, &self.keyspace, body, options)
    }

    /// Removes `key`. It is no error if there is no such key.
    ///
    /// # Errors
    /// As [`Keyspace::put`].
    pub fn delete(&self, key: impl AsRef<[u8]>) -> Result<()> {
        self.delete_with(key, WriteOptions::default())
    }

    /// Like [`Keyspace::delete`], with [`WriteOptions`].
    ///
    /// # Errors
    /// As [`Keyspace::put`].
    pub fn delete_with(&self, key: impl AsRef<[u8]>, options: WriteOptions) -> Result<()> {
        let key = key.as_ref();
        self.write_one(options, |body, id| body.delete(id, key))
    }

    /// Removes `key` and returns its value, or `None` if there is no such key. No other write comes
    /// between the read and the delete: if several threads take the same key, only one of them gets
    /// the value.
    ///
    /// The call costs a get. If the key exists, it also costs a second get, during which no other
    /// write is committed, and a delete.
    ///
    /// # Errors
    /// As [`Keyspace::get`] and [`Keyspace::put`]. After `Poisoned` or an I/O error of the write,
    /// the key may or may not exist when the store is opened again.
    ///
    /// ```
    /// # let folder = tempfile::tempdir().unwrap();
    /// let store = siltstone::Store::open(folder.path(), siltstone::Options::default())?;
    /// let tasks = store.default_keyspace()?;
    /// tasks.put("1", "sweep")?;
    /// assert_eq!(tasks.take("1")?, Some(b"sweep".to_vec()));
    /// assert_eq!(tasks.take("1")?, None);
    /// # siltstone::Result::Ok(())
    /// ```
    pub fn take(&self, key: impl AsRef<[u8]>) -> Result<Option<Vec<u8>>> {
        self.take_with(key, WriteOptions::default())
    }

    /// Like [`Keyspace::take`], with [`WriteOptions`]. If there is no such key, nothing is written
    /// and nothing is synced.
    ///
    /// # Errors
    /// As [`Keyspace::take`].
    pub fn take_with(
        &self,
        key: impl AsRef<[u8]>,
        options: WriteOptions,
    ) -> Result<Option<Vec<u8>>> {
        self.take_bytes(key.as_ref(), options)
    }

    fn take_bytes(&self, key: &[u8], options: WriteOptions) -> Result<Option<Vec<u8>>> {
        self.check()?;
        self.parts().env.health().check()?;
        let mut body = BatchBody::new();
        body.delete(self.keyspace.id, key)?;
        let mut value = Vec::new();
        // If there is no value, no other writer has to wait. If there is one, this brings its block
        // into memory, so that the read under the lead is quick.
        if !self.get_into(key, &mut value)? {
            return Ok(None);
        }
        let taken = write_if(&self.parts().commit, &body, options, || {
            read::get_into(&self.parts().tree, &self.keyspace, key, None, &mut value)
        })?;
        Ok(taken.then_some(value))
    }

    /// Removes all keys in `start..end`; `end` itself stays. The cost of the call does not depend
    /// on the number of keys. Equal bounds remove nothing. The guide's page on
    /// [keyspaces](crate::guide::keyspaces) says how to remove all keys.
    ///
    /// # Errors
    /// `InvalidArgument` if `end` lies before `start`; as [`Keyspace::put`] otherwise.
    pub fn delete_range(&self, start: impl AsRef<[u8]>, end: impl AsRef<[u8]>) -> Result<()> {
        self.delete_range_with(start, end, WriteOptions::default())
    }

    /// Like [`Keyspace::delete_range`], with [`WriteOptions`].
    ///
    /// # Errors
    /// As [`Keyspace::delete_range`].
    pub fn delete_range_with(
        &self,
        start: impl AsRef<[u8]>,
        end: impl AsRef<[u8]>,
        options: WriteOptions,
    ) -> Result<()> {
        let (start, end) = (start.as_ref(), end.as_ref());
        self.write_one(options, |body, id| body.delete_range(id, start, end))
    }

    /// The value of `key` as a new vector; `None` if there is no such key.
    ///
    /// # Errors
    /// `Corruption` or I/O; `KeyspaceDropped`; `Closed`.
    pub fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<Vec<u8>>> {
        let mut value = Vec::new();
        Ok(self.get_into(key, &mut value)?.then_some(value))
    }

    /// Clears `value` and copies the value of `key` into it. Returns false if there is no such key.
    /// This allocates only if the buffer is too small.
    ///
    /// # Errors
    /// As [`Keyspace::get`]. The buffer is empty then.
    #[inline]
    pub fn get_into(&self, key: impl AsRef<[u8]>, value: &mut Vec<u8>) -> Result<bool> {
        value.clear();
        self.check()?;
        read::get_into(
            &self.parts().tree,
            &self.keyspace,
            key.as_ref(),
            None,
            value,
        )
    }

    /// Whether there is such a key. This is a get that does not copy the value. It does not even
    /// read the value if tables are mapped and not compressed, as they are by default.
    ///
    /// # Errors
    /// As [`Keyspace::get`].
    pub fn contains_key(&self, key: impl AsRef<[u8]>) -> Result<bool> {
        self.check()?;
        read::contains(&self.parts().tree, &self.keyspace, key.as_ref())
    }

    /// The value of `key` without a copy, where that is possible: a value in a table is returned as
    /// a reference to its block, which stays in memory as long as the [`PinnedValue`] lives.
    ///
    /// # Errors
    /// As [`Keyspace::get`].
    pub fn get_pinned(&self, key: impl AsRef<[u8]>) -> Result<Option<PinnedValue>> {
        self.check()?;
        read::get_pinned(&self.parts().tree, &self.keyspace, key.as_ref(), None)
    }

    /// Like [`Keyspace::get`], as the snapshot sees it.
    ///
    /// # Errors
    /// `InvalidArgument` for a snapshot of another store; as [`Keyspace::get`] otherwise.
    pub fn get_at(&self, snapshot: &Snapshot, key: impl AsRef<[u8]>) -> Result<Option<Vec<u8>>> {
        self.check()?;
        let (key, number) = (key.as_ref(), Some(self.number_of(snapshot)?));
        let mut value = Vec::new();
        let found = read::get_into(&self.parts().tree, &self.keyspace, key, number, &mut value)?;
        Ok(found.then_some(value))
    }

    /// The values of `keys`, in the order of `keys`, all read at one moment, so the call sees a
    /// batch as a whole or not at all. Keys may be given in any order, and more than once.
    ///
    /// This is faster than a loop of [`Keyspace::get`] for many keys, or if their blocks have to be
    /// read: cache misses of the lookups overlap, each block is opened once, and blocks that are
    /// neither mapped nor cached are read together. It allocates each value and, while it runs,
    /// about 200 bytes for each key.
    ///
    /// # Errors
    /// As [`Keyspace::get`]. The first error is returned instead of all values.
    ///
    /// ```
    /// # let folder = tempfile::tempdir().unwrap();
    /// let store = siltstone::Store::open(folder.path(), siltstone::Options::default())?;
    /// let fruits = store.default_keyspace()?;
    /// fruits.put(b"apple", b"red")?;
    /// fruits.put(b"pear", b"green")?;
    /// let colours = fruits.multi_get(&["pear", "plum", "apple"])?;
    /// assert_eq!(colours, [Some(b"green".to_vec()), None, Some(b"red".to_vec())]);
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn multi_get<K: AsRef<[u8]>>(&self, keys: &[K]) -> Result<Vec<Option<Vec<u8>>>> {
        self.check()?;
        read::multi_get(&self.parts().tree, &self.keyspace, keys, None)
    }

    /// Like [`Keyspace::multi_get`], as the snapshot sees the keys.
    ///
    /// # Errors
    /// As [`Keyspace::multi_get`]; `InvalidArgument` for a snapshot of another store.
    pub fn multi_get_at<K: AsRef<[u8]>>(
        &self,
        snapshot: &Snapshot,
        keys: &[K],
    ) -> Result<Vec<Option<Vec<u8>>>> {
        self.check()?;
        let number = self.number_of(snapshot)?;
        read::multi_get(&self.parts().tree, &self.keyspace, keys, Some(number))
    }

    pub(crate) fn number_of(&self, snapshot: &Snapshot) -> Result<u64> {
        if snapshot.belongs_to(self.parts().tree.snapshots()) {
            return Ok(snapshot.number());
        }
        Err(Error::invalid_argument("the snapshot is of another store")
            .advice("take one from this store"))
    }

    /// A cursor over what is published now, within the bounds of `range`: `..`, `"a".."c"`, or
    /// [`IterOptions`]. Later writes do not change what it sees. It is not positioned yet: seek
    /// first.
    ///
    /// # Errors
    /// `InvalidArgument` for a range that ends before it starts; `KeyspaceDropped`; `Corruption` or
    /// I/O when tables are opened.
    pub fn cursor(&self, range: impl Into<IterOptions>) -> Result<Cursor> {
        self.check()?;
        Cursor::new(&self.parts().tree, &self.keyspace, None, range.into())
    }

    /// Like [`Keyspace::cursor`], over what the snapshot sees.
    ///
    /// # Errors
    /// As [`Keyspace::cursor`]; `InvalidArgument` for a snapshot of another store.
    pub fn cursor_at(&self, snapshot: &Snapshot, range: impl Into<IterOptions>) -> Result<Cursor> {
        self.check()?;
        let number = self.number_of(snapshot)?;
        Cursor::new(
            &self.parts().tree,
            &self.keyspace,
            Some(number),
            range.into(),
        )
    }

    /// The pairs of key and value with keys in `range`, as a double-ended iterator. Both ends see
    /// the same moment.
    ///
    /// ```
    /// # let folder = tempfile::tempdir().unwrap();
    /// let store = siltstone::Store::open(folder.path(), siltstone::Options::default())?;
    /// let birds = store.default_keyspace()?;
    /// for name in ["heron", "kite", "raven", "wren"] {
    ///     birds.put(name, "")?;
    /// }
    /// assert_eq!(birds.range(..)?.count(), 4);
    /// assert_eq!(birds.range("k".."r")?.count(), 1);
    /// assert_eq!(birds.range("kite"..="raven")?.count(), 2);
    /// let (last, _) = birds.range(.."r")?.next_back().unwrap()?;
    /// assert_eq!(last, b"kite");
    /// # siltstone::Result::Ok(())
    /// ```
    ///
    /// # Errors
    /// As [`Keyspace::cursor`].
    pub fn range(&self, range: impl Into<IterOptions>) -> Result<Range> {
        self.range_of(self.store.snapshot(), range.into())
    }

    /// Like [`Keyspace::range`], over what the snapshot sees.
    ///
    /// # Errors
    /// As [`Keyspace::cursor_at`].
    pub fn range_at(&self, snapshot: &Snapshot, range: impl Into<IterOptions>) -> Result<Range> {
        self.range_of(snapshot.clone(), range.into())
    }

    fn range_of(&self, snapshot: Snapshot, options: IterOptions) -> Result<Range> {
        let front = self.cursor_at(&snapshot, &options)?;
        let keyspace = self.clone();
        // The closure holds the snapshot until the back end is made.
        Ok(Range::new(
            front,
            Box::new(move || keyspace.cursor_at(&snapshot, options)),
        ))
    }

    /// All pairs, in key order. `for pair in &keyspace` is the same.
    ///
    /// # Errors
    /// As [`Keyspace::cursor`].
    pub fn iter(&self) -> Result<Range> {
        self.range(..)
    }

    /// Like [`Keyspace::iter`], over what the snapshot sees.
    ///
    /// # Errors
    /// As [`Keyspace::cursor_at`].
    pub fn iter_at(&self, snapshot: &Snapshot) -> Result<Range> {
        self.range_at(snapshot, ..)
    }

    /// All pairs whose keys begin with `prefix`, in key order.
    ///
    /// # Errors
    /// As [`Keyspace::cursor`].
    pub fn prefix(&self, prefix: impl AsRef<[u8]>) -> Result<Range> {
        self.range(IterOptions::prefix(prefix))
    }

    /// Like [`Keyspace::prefix`], over what the snapshot sees.
    ///
    /// # Errors
    /// As [`Keyspace::cursor_at`].
    pub fn prefix_at(&self, snapshot: &Snapshot, prefix: impl AsRef<[u8]>) -> Result<Range> {
        self.range_at(snapshot, IterOptions::prefix(prefix))
    }

    /// Whether the keyspace has no keys. This costs a seek.
    ///
    /// # Errors
    /// As [`Keyspace::cursor`].
    pub fn is_empty(&self) -> Result<bool> {
        let keys_only = IterOptions {
            values: false,
            ..IterOptions::default()
        };
        let mut cursor = self.cursor(keys_only)?;
        cursor.seek_to_first()?;
        Ok(!cursor.valid())
    }

    /// The smallest key with its value; `None` if the keyspace is empty.
    ///
    /// # Errors
    /// As [`Keyspace::cursor`].
    pub fn first(&self) -> Result<Option<(Vec<u8>, Vec<u8>)>> {
        let mut cursor = self.cursor(..)?;
        cursor.seek_to_first()?;
        Ok(cursor.pair())
    }

    /// The largest key with its value; `None` if the keyspace is empty.
    ///
    /// # Errors
    /// As [`Keyspace::cursor`].
    pub fn last(&self) -> Result<Option<(Vec<u8>, Vec<u8>)>> {
        let mut cursor = self.cursor(..)?;
        cursor.seek_to_last()?;
        Ok(cursor.pair())
    }

    /// Flushes the keyspace's memtables to tables and waits until that is done. Everything that was
    /// written or read before the call then survives a loss of power in every sync mode, in other
    /// keyspaces too, because the log is synced.
    ///
    /// # Errors
    /// The error that prevented the flush. `Unreachable` if the storage cannot be reached for 30 s:
    /// the flush goes on when it can, and may then succeed.
    pub fn flush(&self) -> Result<()> {
        self.check()?;
        crate::jobs::flush::flush(&self.parts().jobs, std::slice::from_ref(&self.keyspace))
    }

    /// Flushes the keyspace, compacts everything between `start` and `end` to the deepest level
    /// that has data there, and waits until that is done. Both ends are included (unlike the end of
    /// [`Keyspace::delete_range`]); `None` means no bound.
    ///
    /// # Errors
    /// `InvalidArgument` if `end` lies before `start`; the error that prevented a compaction.
    pub fn compact_range(&self, start: Option<&[u8]>, end: Option<&[u8]>) -> Result<()> {
        self.check()?;
        crate::jobs::manual::compact_range(&self.parts().jobs, &self.keyspace, start, end)
    }
}

/// All pairs, in key order, like [`Keyspace::iter`]. If the iterator cannot be opened, its only
/// item is the error.
///
/// ```
/// # let folder = tempfile::tempdir().unwrap();
/// # let store = siltstone::Store::open(folder.path(), siltstone::Options::default())?;
/// # let birds = store.default_keyspace()?;
/// for pair in &birds {
///     let (key, value) = pair?;
///     println!("{} = {}", key.escape_ascii(), value.escape_ascii());
/// }
/// # siltstone::Result::Ok(())
/// ```
impl IntoIterator for &Keyspace {
    type Item = Result<(Vec<u8>, Vec<u8>)>;
    type IntoIter = Range;
    fn into_iter(self) -> Range {
        self.iter().unwrap_or_else(Range::refused)
    }
}

impl std::fmt::Debug for Keyspace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Keyspace({} = {})", self.keyspace.id, self.keyspace.name)
    }
}
