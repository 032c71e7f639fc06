//! The public handle of a keyspace: [`Keyspace`].
//!
//! A thin handle over the core. Each call checks its arguments and calls the module that does the
//! work: `write`, `read`, `iter`, `flush`, `compaction`.
//!
//! Threading: every method may be called from any thread.

use std::borrow::Cow;
use std::sync::Arc;

use crate::api::store::Store;
use crate::commit::write::{WriteOptions, write, write_if};
use crate::env::session::SessionId;
use crate::formats::batch::BatchBody;
use crate::services::parts::Parts;
use crate::tree::iter::{Cursor, IterOptions, Range};
use crate::tree::read::{self, PinnedValue};
use crate::tree::snapshot::Snapshot;
use crate::tree::view::KeyspaceCore;
use crate::types::error::{Error, Result};
use crate::types::options::{KeyspaceOptions, KeyspaceSettings};

/// A handle on one keyspace: an ordered map of byte strings of its own. Cheap to clone.
///
/// It keeps the store open, as a [`Store`] does. Keys and values are anything that is bytes
/// (`impl AsRef<[u8]>`): `"text"`, `b"bytes"`, `[u8; N]`, `Vec<u8>` or references to these. Write a
/// number as `n.to_be_bytes()`, because keys are ordered bytewise.
#[derive(Clone)]
pub struct Keyspace {
    store: Store,
    keyspace: Arc<KeyspaceCore>,
}

impl Keyspace {
    pub(crate) fn new(store: Store, keyspace: Arc<KeyspaceCore>) -> Keyspace {
        Keyspace { store, keyspace }
    }

    /// Its number in events and statistics. No other keyspace of the store ever has this number;
    /// one of another store may.
    #[inline]
    pub fn id(&self) -> u32 {
        self.keyspace.id
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.keyspace.name
    }

    /// The settings in force: its own, and the store's where it has none. (Where a default
    /// contradicts what was set for it, the default gives way: [`KeyspaceOptions::over`].)
    pub fn options(&self) -> KeyspaceSettings {
        self.keyspace.settings().all.clone()
    }

    /// The settings that were set for this keyspace.
    pub fn own_options(&self) -> KeyspaceOptions {
        self.keyspace.settings().own.clone()
    }

    /// Sets the options that are set in `options`, and leaves the others unchanged. When it
    /// returns, the store has stored them. They hold for the next memtable, job and decision;
    /// nothing is rewritten because of them. It costs one edit of the manifest, with its sync.
    ///
    /// # Errors
    /// `InvalidArgument` that names the impossible option; `KeyspaceDropped`; `NoSpace`, `Poisoned`
    /// or I/O as a write. Nothing has changed then. (After `Poisoned` or I/O they may be in force
    /// when the store is opened again.)
    pub fn set_options(&self, options: &KeyspaceOptions) -> Result<()> {
        self.change_options(options, &[])
    }

    /// Lets these options, by name, follow the store's again. Only this removes what was set for
    /// the keyspace by [`Keyspace::set_options`], by the [`crate::Options::keyspaces`] of an open,
    /// or by the file `OPTIONS.toml`. An open that no longer sets an option changes nothing, and
    /// one that still sets it sets it again.
    ///
    /// # Errors
    /// As [`Keyspace::set_options`].
    pub fn unset_options(&self, names: &[&str]) -> Result<()> {
        self.change_options(&KeyspaceOptions::default(), names)
    }

    /// Both in one edit: has the options `unset` follow the store's again, and then sets what `set`
    /// sets. Only the result must be possible.
    ///
    /// # Errors
    /// As [`Keyspace::set_options`].
    pub fn change_options(&self, set: &KeyspaceOptions, unset: &[&str]) -> Result<()> {
        self.check()?;
        crate::services::settings::set_keyspace(
            self.parts().jobs.catalog(),
            &self.keyspace,
            |own| {
                unset.iter().try_for_each(|name| own.unset(name))?;
                *own = crate::types::options::keyspace::merged(self.name(), own, set, None)?;
                Ok(())
            },
        )
    }

    /// The store that it is in.
    pub fn store(&self) -> &Store {
        &self.store
    }

    pub(crate) fn parts(&self) -> &Parts {
        self.store.parts()
    }

    /// Names the open store that it is in.
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
        write(self.parts().jobs.commit(), Cow::Owned(body), options)
    }

    /// Sets `key` to `value`.
    ///
    /// # Errors
    /// `InvalidArgument` for a key over 65,535 bytes or a value over 1 GiB; as [`Store::write`]
    /// otherwise.
    #[inline]
    pub fn put(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<()> {
        self.put_bytes(key.as_ref(), value.as_ref(), WriteOptions::default())
    }

    /// As [`Keyspace::put`], with [`WriteOptions`].
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
        write(self.parts().jobs.commit(), Cow::Owned(body), options)
    }

    /// Removes `key`, whether or not it is there.
    ///
    /// # Errors
    /// As [`Keyspace::put`].
    pub fn delete(&self, key: impl AsRef<[u8]>) -> Result<()> {
        self.delete_with(key, WriteOptions::default())
    }

    /// As [`Keyspace::delete`], with [`WriteOptions`].
    ///
    /// # Errors
    /// As [`Keyspace::put`].
    pub fn delete_with(&self, key: impl AsRef<[u8]>, options: WriteOptions) -> Result<()> {
        let key = key.as_ref();
        self.write_one(options, |body, id| body.delete(id, key))
    }

    /// Removes `key` and returns its value; `None` if it was not there. No other write comes
    /// between the read and the delete: if several threads take one key at a time, one of them gets
    /// the value.
    ///
    /// It costs a get. If the key is there, it costs a second get, during which no other write is
    /// committed, and a delete.
    ///
    /// # Errors
    /// As [`Keyspace::get`] and [`Keyspace::put`]. After `Poisoned` or an I/O error of the write,
    /// the key may or may not be there when the store is opened again.
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

    /// As [`Keyspace::take`], with [`WriteOptions`]. If `key` is not there, nothing is written and
    /// nothing is synced.
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
        // If there is no value, no other writer waits for this. And this brings the key's block
        // into memory, so that the read below is quick.
        if !self.get_into(key, &mut value)? {
            return Ok(None);
        }
        let taken = write_if(self.parts().jobs.commit(), &body, options, || {
            read::get_into(&self.parts().tree, &self.keyspace, key, None, &mut value)
        })?;
        Ok(taken.then_some(value))
    }

    /// Removes all keys from `start` on and before `end` (`end` itself stays, as in `start..end`).
    /// The cost does not depend on the number of keys. Equal bounds remove nothing. The guide's
    /// page on [keyspaces](crate::guide::keyspaces) says how to remove all keys.
    ///
    /// # Errors
    /// `InvalidArgument` if `end` lies before `start`; as [`Keyspace::put`] otherwise.
    pub fn delete_range(&self, start: impl AsRef<[u8]>, end: impl AsRef<[u8]>) -> Result<()> {
        self.delete_range_with(start, end, WriteOptions::default())
    }

    /// As [`Keyspace::delete_range`], with [`WriteOptions`].
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

    /// The value of `key`, owned.
    ///
    /// # Errors
    /// `Corruption` or I/O; `KeyspaceDropped`.
    pub fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<Vec<u8>>> {
        let mut value = Vec::new();
        Ok(self.get_into(key, &mut value)?.then_some(value))
    }

    /// Copies the value of `key` into `value` (cleared first); false if there is none. Allocates
    /// only if the buffer is too small.
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

    /// Whether `key` is there. It costs a get that does not copy the value, and does not even read
    /// it where tables are mapped and not compressed (the default).
    ///
    /// # Errors
    /// As [`Keyspace::get`].
    pub fn contains_key(&self, key: impl AsRef<[u8]>) -> Result<bool> {
        self.check()?;
        read::contains(&self.parts().tree, &self.keyspace, key.as_ref())
    }

    /// The value of `key` as a counted block of the block cache where it lies in a table: nothing
    /// is copied.
    ///
    /// # Errors
    /// As [`Keyspace::get`].
    pub fn get_pinned(&self, key: impl AsRef<[u8]>) -> Result<Option<PinnedValue>> {
        self.check()?;
        read::get_pinned(&self.parts().tree, &self.keyspace, key.as_ref(), None)
    }

    /// The value of `key` as the snapshot sees it.
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

    /// The values of `keys`, in their order, all read at one moment: what a batch wrote is seen
    /// whole or not at all. Keys may be given in any order, and more than once.
    ///
    /// This is faster than a loop of [`Keyspace::get`] for many keys, or if their blocks have to be
    /// read: cache misses of the lookups overlap, each block is opened once, and blocks that are
    /// neither mapped nor cached are read together. It allocates each value and, while it runs,
    /// some 200 bytes for each key.
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

    /// The values of `keys`, in their order, as the snapshot sees them.
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

    /// A cursor over the present state, within the bounds of `range`: `..`, `"a".."c"`, or
    /// [`IterOptions`].
    ///
    /// # Errors
    /// `InvalidArgument` for a range that ends before it starts; `KeyspaceDropped`; corruption or
    /// I/O when tables are opened.
    pub fn cursor(&self, range: impl Into<IterOptions>) -> Result<Cursor> {
        self.check()?;
        Cursor::new(&self.parts().tree, &self.keyspace, None, range.into())
    }

    /// A cursor over what the snapshot sees.
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

    /// The pairs with keys in `range` as a double-ended iterator; both ends read at one number.
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

    /// The pairs with keys in `range` that the snapshot sees.
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

    /// All pairs that the snapshot sees, in key order.
    ///
    /// # Errors
    /// As [`Keyspace::cursor_at`].
    pub fn iter_at(&self, snapshot: &Snapshot) -> Result<Range> {
        self.range_at(snapshot, ..)
    }

    /// All pairs whose keys begin with `prefix`.
    ///
    /// # Errors
    /// As [`Keyspace::cursor`].
    pub fn prefix(&self, prefix: impl AsRef<[u8]>) -> Result<Range> {
        self.range(IterOptions::prefix(prefix))
    }

    /// All pairs that the snapshot sees and whose keys begin with `prefix`.
    ///
    /// # Errors
    /// As [`Keyspace::cursor_at`].
    pub fn prefix_at(&self, snapshot: &Snapshot, prefix: impl AsRef<[u8]>) -> Result<Range> {
        self.range_at(snapshot, IterOptions::prefix(prefix))
    }

    /// Whether there is no key. It costs a seek.
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

    /// Flushes the keyspace's memtables and waits for that. What was written, or read, before the
    /// call then survives a loss of power in every sync mode. This holds for other keyspaces too,
    /// because the log is synced.
    ///
    /// # Errors
    /// The error that prevented the flush.
    pub fn flush(&self) -> Result<()> {
        self.check()?;
        crate::jobs::flush::flush(&self.parts().jobs, std::slice::from_ref(&self.keyspace))
    }

    /// Compacts everything between `start` and `end` to the lowest level that has data there, and
    /// waits for that. Both ends are included (unlike the end of [`Keyspace::delete_range`]);
    /// `None` is no bound.
    ///
    /// # Errors
    /// `InvalidArgument` if `end` lies before `start`; the error that prevented a compaction.
    pub fn compact_range(&self, start: Option<&[u8]>, end: Option<&[u8]>) -> Result<()> {
        self.check()?;
        crate::jobs::manual::compact_range(&self.parts().jobs, &self.keyspace, start, end)
    }
}

/// All pairs, in key order, as [`Keyspace::iter`]. If the iterator cannot be opened, the error is
/// its only item.
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
