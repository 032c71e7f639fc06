//! The bytes of a batch: entries one after the other, each with the number of its keyspace.
//!
//! [`BatchBody`] encodes them and [`Entries`] decodes them. A log record holds the bodies of its
//! batches, so a group of batches is written by one vectored append without encoding anything
//! again.
//!
//! Invariants: a body that a [`BatchBody`] holds always decodes. [`Entries`] takes any bytes, never
//! panics, never trusts a length, and accepts only the one encoding of an entry, so decoding and
//! encoding again gives the same bytes. The format is described in `docs/format/log.md`.
//!
//! Threading: plain values.

use std::fmt;

use crate::types::error::{Error, ErrorKind, Result, reversed_range};
use crate::types::fields::unsupported_feature;
use crate::types::limits::{MAX_BATCH_BYTES, MAX_KEY_BYTES, MAX_VALUE_BYTES};

/// The longest header of an entry: kind, keyspace, two lengths.
const MAX_ENTRY_HEADER_BYTES: usize = 1 + 5 + 5 + 5;

/// The kind of an entry that is an operand of a merge operator (reserved).
const MERGE_OPERAND: u8 = 3;

/// The kind of an entry that is the address of a value in a value log (reserved).
const VALUE_ADDRESS: u8 = 4;

/// This bit of an entry's kind says that the entry expires (reserved).
const EXPIRES: u8 = 0x80;

/// What an entry does. The numbers are those of the table format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum EntryKind {
    /// The key has no value from here on.
    Delete = 0,
    /// The key has this value from here on.
    Put = 1,
    /// No key of a range has a value from here on.
    RangeDelete = 2,
}

impl EntryKind {
    /// The kind with this number.
    #[inline]
    fn from_number(number: u8) -> Option<EntryKind> {
        match number {
            0 => Some(EntryKind::Delete),
            1 => Some(EntryKind::Put),
            2 => Some(EntryKind::RangeDelete),
            _ => None,
        }
    }
}

/// One entry of a batch, borrowed from its body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    /// What it does.
    pub kind: EntryKind,
    /// The id of the keyspace.
    pub keyspace: u32,
    /// The key; for a range delete, the first key of the range.
    pub key: &'a [u8],
    /// The value of a put; the end of a range delete, which is not deleted; empty for a delete.
    pub value: &'a [u8],
}

/// The entries of a batch, with the numbers of their keyspaces. It belongs to no store and cannot
/// be written to one: programs use [`Batch`](crate::Batch), which takes keyspaces. The log, its
/// tests and the fuzz targets use this type.
#[doc(hidden)]
#[derive(Clone, Default, PartialEq, Eq)]
pub struct BatchBody {
    bytes: Vec<u8>,
    count: u32,
    /// Where the parts of the first entry are, if there is one. Most batches have no other, and a
    /// write looks at its entries several times.
    first: EntryPlace,
    totals: Totals,
    /// Whether not all entries are for the keyspace of the first one.
    is_mixed: bool,
}

/// Sums over the entries of a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    /// The number of entries.
    pub(crate) entries: usize,
    /// Bytes of their keys.
    pub(crate) key_bytes: usize,
    /// Bytes of their values.
    pub(crate) value_bytes: usize,
    /// The number of entries that delete single keys.
    pub(crate) deletes: u64,
}

impl Totals {
    /// Adds an entry.
    #[inline]
    pub(crate) fn add(&mut self, entry: &Entry<'_>) {
        self.entries += 1;
        self.key_bytes += entry.key.len();
        self.value_bytes += entry.value.len();
        self.deletes += u64::from(entry.kind == EntryKind::Delete);
    }
}

impl std::ops::AddAssign for Totals {
    fn add_assign(&mut self, other: Totals) {
        self.entries += other.entries;
        self.key_bytes += other.key_bytes;
        self.value_bytes += other.value_bytes;
        self.deletes += other.deletes;
    }
}

/// Where the parts of an entry are in the bytes of a body.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct EntryPlace {
    kind: u8,
    keyspace: u32,
    key_start: u32,
    value_start: u32,
    end: u32,
}

impl EntryPlace {
    /// Those of an entry that was decoded from `bytes`, and ends at `end`.
    fn of(entry: &Entry<'_>, end: usize) -> EntryPlace {
        let value_start = end - entry.value.len();
        // A body is not longer than 2 GiB.
        EntryPlace {
            kind: entry.kind as u8,
            keyspace: entry.keyspace,
            key_start: (value_start - entry.key.len()) as u32,
            value_start: value_start as u32,
            end: end as u32,
        }
    }

    /// The entry in these bytes, which are those of its body.
    #[inline]
    fn entry(self, bytes: &[u8]) -> Option<Entry<'_>> {
        let (key_start, value_start) = (self.key_start as usize, self.value_start as usize);
        Some(Entry {
            kind: EntryKind::from_number(self.kind)?,
            keyspace: self.keyspace,
            key: bytes.get(key_start..value_start)?,
            value: bytes.get(value_start..self.end as usize)?,
        })
    }
}

impl BatchBody {
    /// An empty body.
    pub fn new() -> BatchBody {
        BatchBody::default()
    }

    /// An empty body with room for `bytes` bytes of entries.
    pub fn with_capacity(bytes: usize) -> BatchBody {
        BatchBody {
            bytes: Vec::with_capacity(bytes),
            ..BatchBody::default()
        }
    }

    /// The body of these bytes, after checking all of them.
    ///
    /// # Errors
    /// [`ErrorKind::Corruption`] if the bytes are not a body, [`ErrorKind::Unsupported`] for an
    /// entry of an unknown kind, [`ErrorKind::InvalidArgument`] if there are too many bytes.
    pub fn from_bytes(bytes: Vec<u8>) -> Result<BatchBody> {
        if bytes.len() > MAX_BATCH_BYTES {
            return Err(too_large("batch", MAX_BATCH_BYTES, bytes.len()));
        }
        // A body of 2 GiB has fewer than 2^30 entries: each takes three bytes at least.
        let count = count_entries(&bytes).map_err(|bad| bad.into_error("a batch's body"))?;
        let mut body = BatchBody::default();
        let mut entries = Entries::new(&bytes);
        while let Some(Ok(entry)) = entries.next() {
            body.count_entry(&entry, entries.position());
        }
        debug_assert_eq!(u64::from(body.count), count);
        Ok(BatchBody { bytes, ..body })
    }

    /// Sets `key` of keyspace number `keyspace` to `value`.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] when a limit is exceeded; the body is unchanged.
    #[inline]
    pub fn put(&mut self, keyspace: u32, key: &[u8], value: &[u8]) -> Result<()> {
        self.push(EntryKind::Put, keyspace, key, value)
    }

    /// Removes `key` from keyspace number `keyspace`.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] when a limit is exceeded; the body is unchanged.
    pub fn delete(&mut self, keyspace: u32, key: &[u8]) -> Result<()> {
        self.push(EntryKind::Delete, keyspace, key, &[])
    }

    /// Removes all keys of keyspace number `keyspace` from `start` on and before `end`. Equal
    /// bounds remove nothing and add no entry.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] when `end` lies before `start` or a limit is exceeded; the
    /// body is unchanged.
    pub fn delete_range(&mut self, keyspace: u32, start: &[u8], end: &[u8]) -> Result<()> {
        if end.len() > MAX_KEY_BYTES {
            return Err(too_large("end key", MAX_KEY_BYTES, end.len()).advice(SHORTER_KEY));
        }
        match start.cmp(end) {
            std::cmp::Ordering::Less => self.push(EntryKind::RangeDelete, keyspace, start, end),
            std::cmp::Ordering::Equal => check_lengths(start, &[]),
            std::cmp::Ordering::Greater => Err(reversed_range("the range to delete", start, end)),
        }
    }

    #[inline]
    fn push(&mut self, kind: EntryKind, keyspace: u32, key: &[u8], value: &[u8]) -> Result<()> {
        check_lengths(key, value)?;
        let mut header = [0; MAX_ENTRY_HEADER_BYTES];
        header[0] = kind as u8;
        let mut used = 1;
        used += put_varint(&mut header[used..], keyspace);
        used += put_varint(&mut header[used..], key.len() as u32);
        if kind != EntryKind::Delete {
            used += put_varint(&mut header[used..], value.len() as u32);
        }
        let added = used + key.len() + value.len();
        if added > MAX_BATCH_BYTES - self.bytes.len() {
            let found = self.bytes.len() + added;
            return Err(
                too_large("batch", MAX_BATCH_BYTES, found).advice("split it into several batches")
            );
        }
        self.bytes.reserve(added);
        self.bytes.extend_from_slice(&header[..used]);
        self.bytes.extend_from_slice(key);
        self.bytes.extend_from_slice(value);
        let entry = Entry {
            kind,
            keyspace,
            key,
            value,
        };
        self.count_entry(&entry, self.bytes.len());
        Ok(())
    }

    /// Counts an entry that ends at `end` of the bytes.
    #[inline]
    fn count_entry(&mut self, entry: &Entry<'_>, end: usize) {
        if self.count == 0 {
            self.first = EntryPlace::of(entry, end);
        }
        self.is_mixed |= entry.keyspace != self.first.keyspace;
        self.totals.add(entry);
        self.count += 1;
    }

    /// The keyspace of all entries and their sums; `None` if they are for several keyspaces, or
    /// there are none.
    #[inline]
    pub(crate) fn of_one_keyspace(&self) -> Option<(u32, Totals)> {
        (self.count > 0 && !self.is_mixed).then_some((self.first.keyspace, self.totals))
    }

    /// Adds all entries of `other` after those of this body.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] when both together are too large; the body is unchanged.
    pub fn append(&mut self, other: &BatchBody) -> Result<()> {
        if other.bytes.len() > MAX_BATCH_BYTES - self.bytes.len() {
            let found = self.bytes.len() + other.bytes.len();
            return Err(too_large("batch", MAX_BATCH_BYTES, found)
                .advice("write the two batches one after the other"));
        }
        if self.count == 0 {
            self.first = other.first;
        }
        let differs = other.count > 0 && other.first.keyspace != self.first.keyspace;
        self.is_mixed |= other.is_mixed || differs;
        self.totals += other.totals;
        self.bytes.extend_from_slice(&other.bytes);
        self.count += other.count;
        Ok(())
    }

    /// The number of entries.
    pub fn len(&self) -> usize {
        self.count as usize
    }

    /// Whether it has no entries.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The number of bytes.
    pub fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// The bytes: what a log record holds of this batch.
    pub fn body(&self) -> &[u8] {
        &self.bytes
    }

    /// Removes all entries and keeps the memory.
    pub fn clear(&mut self) {
        let mut bytes = std::mem::take(&mut self.bytes);
        bytes.clear();
        *self = BatchBody {
            bytes,
            ..BatchBody::default()
        };
    }

    /// The entries, in the order in which they were added.
    #[inline]
    pub fn iter(&self) -> impl Iterator<Item = Entry<'_>> + '_ {
        let (first, others) = match self.count {
            0 => (None, self.bytes.len()),
            _ => (self.first.entry(&self.bytes), self.first.end as usize),
        };
        let others = Entries {
            bytes: &self.bytes,
            at: others,
        };
        // A body always decodes: `from_bytes` checked the bytes that came from elsewhere.
        let others = others.map_while(std::result::Result::ok);
        first.into_iter().chain(others)
    }
}

impl fmt::Debug for BatchBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BatchBody")
            .field("len", &self.count)
            .field("bytes", &self.bytes.len())
            .finish()
    }
}

/// The advice for a key that is too long.
const SHORTER_KEY: &str =
    "use a shorter key, such as a hash of it, and keep the whole in the value";

#[cold]
fn too_large(what: &str, limit_bytes: usize, found_bytes: usize) -> Error {
    Error::invalid_argument(format!("the {what} is too large"))
        .expected(format_args!("at most {limit_bytes} bytes"))
        .found(format_args!("{found_bytes} bytes"))
}

/// Why bytes are not a batch body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadEntry {
    /// Where the entry begins in the bytes.
    pub offset: usize,
    /// What is wrong with it.
    pub reason: BadEntryReason,
}

/// What is wrong with an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadEntryReason {
    /// A kind that this version does not know.
    Kind(u8),
    /// The bytes end inside the entry.
    Cut,
    /// A number longer than 32 bits, or not in its shortest form.
    Varint,
    /// A key longer than [`MAX_KEY_BYTES`].
    Key(u32),
    /// A value longer than [`MAX_VALUE_BYTES`].
    Value(u32),
    /// A range delete that ends at or before its start.
    Range,
}

impl fmt::Display for BadEntryReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BadEntryReason::Kind(kind) => match *kind & !EXPIRES {
                MERGE_OPERAND => write!(f, "an entry of kind {kind}, with a merge operand"),
                VALUE_ADDRESS => write!(f, "an entry of kind {kind}, with a value address"),
                _ if *kind & EXPIRES != 0 => write!(f, "an entry of kind {kind}, which expires"),
                _ => write!(f, "an entry of kind {kind}"),
            },
            BadEntryReason::Cut => write!(f, "an entry that is cut off"),
            BadEntryReason::Varint => write!(f, "a number that is not a shortest 32-bit varint"),
            BadEntryReason::Key(bytes) => write!(f, "a key of {bytes} bytes"),
            BadEntryReason::Value(bytes) => write!(f, "a value of {bytes} bytes"),
            BadEntryReason::Range => write!(f, "a range delete that ends where it starts"),
        }
    }
}

impl BadEntry {
    /// Converts it into the engine's error. `what` names the bytes.
    #[cold]
    pub fn into_error(self, what: &str) -> Error {
        // An unknown kind under a good checksum was written by a later version, not by a fault.
        let expected = |error: Error| {
            error.expected(format_args!("a valid entry {} bytes into it", self.offset))
        };
        let BadEntryReason::Kind(number) = self.reason else {
            let error = Error::new(ErrorKind::Corruption, format!("{what} does not decode"));
            return expected(error).found(self.reason);
        };
        let mut features: Vec<&str> = match number & !EXPIRES {
            MERGE_OPERAND => vec!["merge operands"],
            VALUE_ADDRESS => vec!["value addresses"],
            0..=2 => vec![],
            _ => vec!["entries of another kind"],
        };
        if number & EXPIRES != 0 {
            features.push("expiry of entries");
        }
        expected(unsupported_feature(what, &features.join(", "))).found(self.reason)
    }
}

/// The entries of one batch body, or of several in a row, as in a log record's payload. The
/// iterator ends after an error.
#[derive(Clone, Debug)]
pub struct Entries<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Entries<'a> {
    /// The entries in `bytes`.
    pub fn new(bytes: &'a [u8]) -> Entries<'a> {
        Entries { bytes, at: 0 }
    }

    /// Where the next entry begins in the bytes.
    pub fn position(&self) -> usize {
        self.at
    }

    #[inline]
    fn decode(&mut self) -> std::result::Result<Entry<'a>, BadEntryReason> {
        let mut rest = &self.bytes[self.at..];
        let kind = EntryKind::from_number(rest[0]).ok_or(BadEntryReason::Kind(rest[0]))?;
        rest = &rest[1..];
        let keyspace = take_varint(&mut rest)?;
        let key_bytes = take_varint(&mut rest)?;
        if key_bytes as usize > MAX_KEY_BYTES {
            return Err(BadEntryReason::Key(key_bytes));
        }
        let value_bytes = match kind {
            EntryKind::Delete => 0,
            _ => take_varint(&mut rest)?,
        };
        match kind {
            EntryKind::RangeDelete if value_bytes as usize > MAX_KEY_BYTES => {
                return Err(BadEntryReason::Key(value_bytes));
            }
            _ if value_bytes as usize > MAX_VALUE_BYTES => {
                return Err(BadEntryReason::Value(value_bytes));
            }
            _ => {}
        }
        let (key, after) = rest
            .split_at_checked(key_bytes as usize)
            .ok_or(BadEntryReason::Cut)?;
        let (value, after) = after
            .split_at_checked(value_bytes as usize)
            .ok_or(BadEntryReason::Cut)?;
        if kind == EntryKind::RangeDelete && key >= value {
            return Err(BadEntryReason::Range);
        }
        self.at = self.bytes.len() - after.len();
        Ok(Entry {
            kind,
            keyspace,
            key,
            value,
        })
    }
}

impl<'a> Iterator for Entries<'a> {
    type Item = std::result::Result<Entry<'a>, BadEntry>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        if self.at >= self.bytes.len() {
            return None;
        }
        let offset = self.at;
        Some(self.decode().map_err(|reason| {
            self.at = self.bytes.len();
            BadEntry { offset, reason }
        }))
    }
}

/// The number of entries in `bytes`, after checking all of them.
///
/// # Errors
/// The first entry that does not decode.
pub fn count_entries(bytes: &[u8]) -> std::result::Result<u64, BadEntry> {
    let mut count = 0;
    for entry in Entries::new(bytes) {
        entry?;
        count += 1;
    }
    Ok(count)
}

/// Refuses a key or a value that is too long for an entry.
///
/// # Errors
/// [`ErrorKind::InvalidArgument`] that names the limit.
#[inline]
pub fn check_lengths(key: &[u8], value: &[u8]) -> Result<()> {
    if key.len() > MAX_KEY_BYTES {
        return Err(too_large("key", MAX_KEY_BYTES, key.len()).advice(SHORTER_KEY));
    }
    if value.len() > MAX_VALUE_BYTES {
        return Err(too_large("value", MAX_VALUE_BYTES, value.len())
            .advice("store the value in pieces, under keys of their own"));
    }
    Ok(())
}

/// Writes `value` as a varint (seven bits a byte, low first) to the start of `out`. Returns its
/// length.
#[inline]
fn put_varint(out: &mut [u8], mut value: u32) -> usize {
    let mut used = 0;
    while value >= 0x80 {
        out[used] = value as u8 | 0x80;
        value >>= 7;
        used += 1;
    }
    out[used] = value as u8;
    used + 1
}

/// Takes a varint off the front of `bytes`: at most 32 bits, and in its shortest form.
#[inline]
fn take_varint(bytes: &mut &[u8]) -> std::result::Result<u32, BadEntryReason> {
    let mut value = 0u64;
    for (i, &byte) in bytes.iter().take(5).enumerate() {
        value |= u64::from(byte & 0x7f) << (7 * i);
        if byte < 0x80 {
            if (byte == 0 && i > 0) || value > u64::from(u32::MAX) {
                return Err(BadEntryReason::Varint);
            }
            *bytes = &bytes[i + 1..];
            return Ok(value as u32);
        }
    }
    Err(if bytes.len() < 5 {
        BadEntryReason::Cut
    } else {
        BadEntryReason::Varint
    })
}
