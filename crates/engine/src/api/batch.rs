//! A batch: puts, deletes and range deletes over any keyspaces of one store that take effect
//! together or not at all.
//!
//! [`Batch`] holds the bytes that go into a log record (its *body*, see [`BatchBody`]), and the
//! open store that they are for. Entries are numbered in the order in which they were added; of two
//! entries for one key the later one wins.
//!
//! Invariant: all entries of a batch are for keyspaces of the open store `session`, and a batch
//! without entries belongs to no store. A keyspace's number identifies it in its own store only, so
//! no public call takes a bare number.
//!
//! A batch belongs to one *open* of a store (`SessionId`), not to the id in its manifest: a folder
//! that was copied has the id of its original, and both may be open side by side with different
//! keyspaces behind one number. Handles and snapshots end with their open in the same way.
//!
//! Threading: a plain value.

use crate::env::Env;
use crate::env::session::SessionId;
pub use crate::types::limits::{MAX_BATCH_BYTES, MAX_KEY_BYTES, MAX_VALUE_BYTES};
use std::fmt;

pub use crate::formats::batch::{
    BadEntry, BadEntryReason, BatchBody, Entries, Entry, EntryKind, check_lengths, count_entries,
};

use crate::api::keyspace::Keyspace;
use crate::types::error::{Error, Result};

/// Writes over any keyspaces of a store that take effect together or not at all. They are applied
/// in the order in which they were added.
///
/// A batch belongs to the open store of its first entry's keyspace. Entries for keyspaces of
/// another store are refused when they are added, and [`Store::write`](crate::Store::write) refuses
/// a batch of another store. A store that was closed and opened again counts as another store here,
/// as it does for handles and snapshots; so do a copy and a checkpoint. After [`Batch::clear`], a
/// batch can be filled for any store.
///
/// Keys and values are copied into the batch; an entry takes a few bytes more than these.
/// [`Batch::clear`] keeps the memory. A batch can be written more than once, to the store that it
/// belongs to.
///
/// ```
/// # let folder = tempfile::tempdir().unwrap();
/// let store = siltstone::Store::open(folder.path(), siltstone::Options::default())?;
/// let birds = store.open_keyspace("birds")?;
/// let mut batch = siltstone::Batch::new();
/// batch.delete_range(&birds, "a", "z")?;  // removes what was there
/// batch.put(&birds, "wren", "9 g")?;      // stays: later entries win
/// store.write(&batch, siltstone::WriteOptions::default())?;
/// assert_eq!(birds.get("wren")?, Some(b"9 g".to_vec()));
/// # siltstone::Result::Ok(())
/// ```
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Batch {
    body: BatchBody,
    session: Option<SessionId>,
}

impl Batch {
    /// An empty batch.
    pub fn new() -> Batch {
        Batch::default()
    }

    /// An empty batch with room for `bytes` bytes of entries.
    pub fn with_capacity(bytes: usize) -> Batch {
        Batch {
            body: BatchBody::with_capacity(bytes),
            session: None,
        }
    }

    /// A batch of the open store `session`, whose keyspaces have the numbers in `body`.
    pub(crate) fn of_session(session: SessionId, body: BatchBody) -> Batch {
        Batch {
            session: (!body.is_empty()).then_some(session),
            body,
        }
    }

    /// Adds a put: `key` of `keyspace` gets `value`.
    ///
    /// # Errors
    /// `InvalidArgument` if `keyspace` is of another store than the batch, or if a limit is
    /// exceeded ([`MAX_KEY_BYTES`], [`MAX_VALUE_BYTES`], [`MAX_BATCH_BYTES`]). The batch is then
    /// unchanged.
    #[inline]
    pub fn put(
        &mut self,
        keyspace: &Keyspace,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
    ) -> Result<()> {
        self.check_keyspace(keyspace)?;
        self.body.put(keyspace.id(), key.as_ref(), value.as_ref())?;
        self.session = Some(keyspace.session());
        Ok(())
    }

    /// Adds a delete of `key` in `keyspace`.
    ///
    /// # Errors
    /// As [`Batch::put`].
    #[inline]
    pub fn delete(&mut self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<()> {
        self.check_keyspace(keyspace)?;
        self.body.delete(keyspace.id(), key.as_ref())?;
        self.session = Some(keyspace.session());
        Ok(())
    }

    /// Adds a delete of all keys of `keyspace` in `start..end`; `end` itself stays. Equal bounds
    /// add no entry.
    ///
    /// # Errors
    /// `InvalidArgument` if `end` lies before `start`; as [`Batch::put`] otherwise.
    pub fn delete_range(
        &mut self,
        keyspace: &Keyspace,
        start: impl AsRef<[u8]>,
        end: impl AsRef<[u8]>,
    ) -> Result<()> {
        self.check_keyspace(keyspace)?;
        let (start, end) = (start.as_ref(), end.as_ref());
        self.body.delete_range(keyspace.id(), start, end)?;
        if !self.body.is_empty() {
            self.session = Some(keyspace.session());
        }
        Ok(())
    }

    /// Adds all entries of `other` after those of this batch.
    ///
    /// # Errors
    /// `InvalidArgument` if `other` belongs to another store, or if both together are larger than
    /// [`MAX_BATCH_BYTES`]. The batch is then unchanged.
    pub fn append(&mut self, other: &Batch) -> Result<()> {
        if let (Some(own), Some(others)) = (self.session, other.session)
            && own != others
        {
            return Err(
                Error::invalid_argument("the two batches are for different stores")
                    .advice("make one batch for each store"),
            );
        }
        self.body.append(&other.body)?;
        self.session = self.session.or(other.session);
        Ok(())
    }

    /// Refuses a keyspace of another store than that of the batch's entries.
    #[inline]
    fn check_keyspace(&self, keyspace: &Keyspace) -> Result<()> {
        match self.session {
            Some(own) if own != keyspace.session() => Err(foreign_keyspace(keyspace)),
            _ => Ok(()),
        }
    }

    /// The body, if the batch may be written to this open store.
    #[inline]
    pub(crate) fn body_for(&self, env: &Env) -> Result<&BatchBody> {
        match self.session {
            Some(own) if own != env.session() => Err(foreign_batch(env)),
            _ => Ok(&self.body),
        }
    }

    /// The number of entries. A write of the batch takes as many sequence numbers.
    pub fn len(&self) -> usize {
        self.body.len()
    }

    /// Whether the batch has no entries.
    pub fn is_empty(&self) -> bool {
        self.body.is_empty()
    }

    /// The number of bytes that the batch's entries take in the log.
    pub fn bytes(&self) -> usize {
        self.body.bytes()
    }

    /// Removes all entries and keeps the memory. The batch then belongs to no store.
    pub fn clear(&mut self) {
        self.body.clear();
        self.session = None;
    }

    /// The entries, in the order in which they were added.
    pub fn iter(&self) -> impl Iterator<Item = Entry<'_>> + '_ {
        self.body.iter()
    }
}

impl fmt::Debug for Batch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch")
            .field("len", &self.len())
            .field("bytes", &self.bytes())
            .finish()
    }
}

#[cold]
fn foreign_keyspace(keyspace: &Keyspace) -> Error {
    Error::invalid_argument(format!(
        "the keyspace `{}` is in another store than the batch's other entries",
        keyspace.name()
    ))
    .expected("a keyspace of the open store that the batch belongs to")
    .found(format!("one of {:?}, opened separately", keyspace.store()))
    .advice(
        "make one batch for each store; after reopening a store, get its keyspaces and make its \
         batches again",
    )
}

#[cold]
fn foreign_batch(env: &Env) -> Error {
    let store = env.storages().manifest.describe();
    Error::invalid_argument("the batch is for another store")
        .expected(format_args!(
            "entries for keyspaces of the store {store} as it is open now"
        ))
        .found("entries for keyspaces of another store, or of an earlier open of this one")
        .advice("make the batch from this store's keyspaces")
}

#[cfg(test)]
mod tests;
