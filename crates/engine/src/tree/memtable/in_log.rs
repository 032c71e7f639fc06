//! Memtables whose large values are in the log ("log as run", RFC 13, section 11).
//!
//! A *log-backed* memtable has the keys, sequence numbers and kinds of a sealed memtable, and in
//! place of each large value its address in the log, as an entry of kind [`VALUE_ADDRESS`]. It
//! takes a few hundredths of the memory. It is made once and never changes.
//!
//! Invariants: no other memtable has entries of this kind. A log-backed memtable pins each segment
//! that it names, and has its file open.
//!
//! Threading: as for sealed memtables.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use siltstone_storage::ReadFile;

use super::{ArenaError, ArenaPool, InsertError, Memtable};
use crate::env::segment_pins::SegmentPin;
use crate::formats::log::values::ValueAddress;
use crate::types::error::{Error, ErrorKind, Result, closed};

/// The kind of an entry whose value is an address.
pub(crate) const VALUE_ADDRESS: u8 = 4;

/// The kind of an entry whose value is its own.
pub(super) const PUT: u8 = 1;

/// A segment that a memtable reads, with its open file.
pub(crate) struct LogSegment {
    segment: u32,
    file: Arc<dyn ReadFile>,
    /// Keeps the segment.
    pin: SegmentPin,
}

impl LogSegment {
    pub(crate) fn new(segment: u32, file: Arc<dyn ReadFile>, pin: SegmentPin) -> LogSegment {
        LogSegment { segment, file, pin }
    }
}

/// The values that a memtable has in the log, copied into memory for a flush. It needs them in the
/// order of the keys, and reads them in that of the log.
#[derive(Default)]
pub(crate) struct LogCopy {
    /// The segment and the offset of each value, ascending, and where it begins in `bytes`.
    values: Vec<(u32, u32, usize)>,
    bytes: Vec<u8>,
}

/// Two neighbouring values are read by one call if they begin in the same [`READ_BYTES`] of the
/// segment and fewer than this many bytes lie between them.
const GAP_BYTES: u64 = 32 << 10;

/// A call reads at most this many bytes and one value.
const READ_BYTES: u32 = 1 << 20;

/// What a log-backed memtable has besides its entries.
pub(super) struct LogBacked {
    segments: Vec<LogSegment>,
    /// What [`Memtable::used_bytes`] was before the values were left in the log.
    data_bytes: u64,
    /// The number of flushes that met bytes in the log that are not the value.
    damaged_count: AtomicU32,
}

/// What values of at least a certain size take in a memtable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LargeValues {
    pub(crate) count: usize,
    pub(crate) bytes: u64,
}

impl Memtable {
    /// Whether it has values that are in the log.
    #[inline]
    pub(crate) fn is_log_backed(&self) -> bool {
        self.log_backed.is_some()
    }

    /// The bytes that it took before its values were left in the log, which are about those that
    /// its flush has to write; of any other memtable [`Memtable::used_bytes`].
    pub(crate) fn data_bytes(&self) -> u64 {
        let in_log = self.log_backed.as_ref();
        in_log.map_or_else(|| self.used_bytes(), |in_log| in_log.data_bytes)
    }

    /// The values of at least this size, which is not 0.
    pub(crate) fn large_values(self: &Arc<Self>, least_bytes: usize) -> LargeValues {
        let mut found = LargeValues::default();
        let mut iter = self.iter();
        iter.seek_to_first();
        while iter.is_valid() {
            let bytes = iter.own_value().len();
            if bytes >= least_bytes {
                found.count += 1;
                found.bytes += bytes as u64;
            }
            iter.next();
        }
        found
    }

    /// A memtable with the same entries, in which each put whose number is in `addresses`
    /// (ascending) has its address in place of its value. `segments` are those of the addresses.
    /// This memtable is sealed and has no range delete.
    ///
    /// # Errors
    /// There is no memory.
    pub(crate) fn with_values_in_log(
        self: &Arc<Self>,
        arenas: &ArenaPool,
        addresses: &[(u64, ValueAddress)],
        segments: Vec<LogSegment>,
    ) -> Result<Memtable> {
        debug_assert!(addresses.is_sorted_by_key(|(seq, _)| *seq));
        let records = &self.tree.records;
        let address_of = |record: u32| {
            let seq = records.seq(record);
            let at = addresses.binary_search_by_key(&seq, |(seq, _)| *seq).ok()?;
            let address = addresses[at].1;
            let is_same =
                records.kind(record) == PUT && address.len as usize == records.value(record).len();
            is_same.then_some(address)
        };
        let mut key_bytes = 0;
        let mut value_bytes = 0;
        let mut iter = self.iter();
        iter.seek_to_first();
        while iter.is_valid() {
            key_bytes += iter.key().len();
            value_bytes += match address_of(iter.record()) {
                Some(_) => ValueAddress::BYTES,
                None => iter.own_value().len(),
            };
            iter.next();
        }
        let entries = self.entry_count() as usize;
        let bytes = Memtable::arena_bytes_for(entries, key_bytes, value_bytes);
        let arena = arenas.take_exactly(bytes).map_err(no_arena)?;
        let mut made = Memtable::new(arena);
        let mut writer = made.writer();
        // The versions of a key, newest first. They are inserted in the order of their numbers.
        let mut versions: Vec<u32> = Vec::new();
        iter.seek_to_first();
        while iter.is_valid() {
            versions.clear();
            let key = self.tree.key(iter.record());
            while iter.is_valid() && self.tree.key(iter.record()) == key {
                versions.push(iter.record());
                iter.next();
            }
            for record in versions.iter().rev().copied() {
                let seq = records.seq(record);
                let inserted = match address_of(record) {
                    Some(address) => writer.insert(key, seq, VALUE_ADDRESS, &address.encode()),
                    None => {
                        let value = records.value(record);
                        writer.insert(key, seq, records.kind(record), value)
                    }
                };
                inserted.map_err(not_inserted)?;
            }
        }
        drop(writer);
        made.set_raw_bytes(self.raw_bytes());
        made.log_backed = Some(LogBacked {
            segments,
            data_bytes: self.data_bytes(),
            damaged_count: AtomicU32::new(0),
        });
        Ok(made)
    }

    /// A copy of the values that are in the log, for a log-backed memtable. If it cannot be made,
    /// it is empty: then each value is read for itself, and reports why it cannot be read.
    pub(crate) fn copy_log(self: &Arc<Self>) -> Option<LogCopy> {
        let in_log = self.log_backed.as_ref()?;
        Some(self.copy_of(&in_log.segments).unwrap_or_default())
    }

    fn copy_of(self: &Arc<Self>, segments: &[LogSegment]) -> Option<LogCopy> {
        let mut addresses = Vec::new();
        let mut iter = self.iter();
        iter.seek_to_first();
        while iter.is_valid() {
            if self.tree.records.kind(iter.record()) == VALUE_ADDRESS {
                addresses.push(ValueAddress::decode(iter.own_value())?);
            }
            iter.next();
        }
        addresses.sort_unstable_by_key(|address| (address.segment, address.offset));
        let all = addresses.iter().map(|address| address.len as usize).sum();
        let mut copy = LogCopy {
            values: Vec::with_capacity(addresses.len()),
            bytes: Vec::new(),
        };
        copy.bytes.try_reserve_exact(all).ok()?;
        let is_near = |a: &ValueAddress, b: &ValueAddress| {
            a.segment == b.segment
                && a.offset / READ_BYTES == b.offset / READ_BYTES
                && u64::from(b.offset) < a.end() + GAP_BYTES
        };
        let mut read = Vec::new();
        for group in addresses.chunk_by(is_near) {
            let (first, last) = (group[0], group[group.len() - 1]);
            let segment = { segments }.iter().find(|s| s.segment == first.segment)?;
            read.resize((last.end() - u64::from(first.offset)) as usize, 0);
            segment.file.read_at(first.offset.into(), &mut read).ok()?;
            for address in group {
                let at = (address.offset - first.offset) as usize;
                let value = &read[at..at + address.len as usize];
                let begin = copy.bytes.len();
                copy.values.push((address.segment, address.offset, begin));
                copy.bytes.extend_from_slice(value);
            }
        }
        Some(copy)
    }

    /// A flush has met bytes in the log that are not the value.
    pub(crate) fn count_damage(&self) {
        if let Some(in_log) = &self.log_backed {
            in_log.damaged_count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The number of flushes that met such bytes.
    pub(crate) fn damaged_count(&self) -> u32 {
        let in_log = self.log_backed.as_ref();
        in_log.map_or(0, |in_log| in_log.damaged_count.load(Ordering::Relaxed))
    }

    /// Appends the value of an entry that this memtable has to `out`.
    ///
    /// # Errors
    /// The value is in the log, and cannot be read there. `out` is unchanged.
    #[inline]
    pub(crate) fn read_value(&self, kind: u8, value: &[u8], out: &mut Vec<u8>) -> Result<()> {
        if kind != VALUE_ADDRESS {
            out.extend_from_slice(value);
            return Ok(());
        }
        self.read_in_log(value, out)
    }

    #[cold]
    fn read_in_log(&self, address: &[u8], out: &mut Vec<u8>) -> Result<()> {
        let segments = self.log_backed.iter().flat_map(|b| &b.segments);
        let address = ValueAddress::decode(address);
        let found = address.and_then(|address| {
            let segment = { segments }.find(|s| s.segment == address.segment)?;
            Some((address, segment))
        });
        let (address, segment) = found.ok_or_else(no_address)?;
        address.read(&*segment.file, out).map_err(|error| {
            // The next open of the store has no pins, so it may have taken the segment away.
            match segment.pin.is_closing() {
                true => closed(),
                false => error,
            }
        })
    }
}

impl LogCopy {
    /// The value of an entry of this kind, which has this value of its own or an address. `None` if
    /// the copy does not have it.
    #[inline]
    pub(crate) fn value<'a>(&'a self, kind: u8, own: &'a [u8]) -> Option<&'a [u8]> {
        if kind != VALUE_ADDRESS {
            return Some(own);
        }
        let address = ValueAddress::decode(own)?;
        let key = (address.segment, address.offset);
        let found = { &self.values }.binary_search_by_key(&key, |(s, o, _)| (*s, *o));
        let (_, _, begin) = self.values[found.ok()?];
        let value = self.bytes.get(begin..begin + address.len as usize)?;
        address.verify(value).ok()?;
        Some(value)
    }
}

#[cold]
fn no_arena(cause: ArenaError) -> Error {
    Error::new(ErrorKind::NoSpace, cause.to_string())
}

#[cold]
fn not_inserted(cause: InsertError) -> Error {
    Error::corruption("a memtable", format!("it cannot be copied: {cause}"))
}

#[cold]
fn no_address() -> Error {
    Error::corruption("a memtable", "it has a value address that leads nowhere")
        .advice("this is a bug: report it")
}
