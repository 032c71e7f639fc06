//! Where the values of puts lie in the log, and reading them there (RFC 13, section 11).
//!
//! The payload of a record has the bodies of its batches without a gap, so each value is one range
//! of bytes of one segment.
//!
//! Invariants: an address is only made of a record that was verified completely. The checksum of an
//! address is that of the value alone, because that of the record needs the whole record. Bytes
//! that are not the value cause an error, never a panic.
//!
//! Threading: pure functions over files that are only read.

use siltstone_storage::ReadFile;

use super::format::{RecordKind, RecordSeed, SEGMENT_HEADER_BYTES, segment_name};
use super::position::Position;
use super::reader::SegmentReader;
use crate::formats::batch::{Entries, Entry, EntryKind};
use crate::types::error::{Error, Result};

/// A part of a segment that consists of whole records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentPart {
    /// The number of the segment.
    pub segment: u32,
    /// Where the first record begins.
    pub from: u32,
    /// Where the last record ends.
    pub to: u32,
}

/// Where a value is in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ValueAddress {
    /// The number of the segment.
    pub(crate) segment: u32,
    /// The offset of the value in it.
    pub(crate) offset: u32,
    /// The length of the value.
    pub(crate) len: u32,
    /// The crc32c of the value.
    pub(crate) checksum: u32,
}

impl ValueAddress {
    /// The length of an address.
    pub(crate) const BYTES: usize = 16;

    /// Four numbers of 32 bits. Addresses are only kept in memory.
    pub(crate) fn encode(&self) -> [u8; ValueAddress::BYTES] {
        let mut bytes = [0; ValueAddress::BYTES];
        let words = [self.segment, self.offset, self.len, self.checksum];
        for (at, word) in bytes.chunks_exact_mut(4).zip(words) {
            at.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// The inverse of [`ValueAddress::encode`]; `None` if the bytes are not an address.
    pub(crate) fn decode(bytes: &[u8]) -> Option<ValueAddress> {
        let (words, []) = bytes.as_chunks::<4>() else {
            return None;
        };
        let &[segment, offset, len, checksum] = words else {
            return None;
        };
        Some(ValueAddress {
            segment: u32::from_le_bytes(segment),
            offset: u32::from_le_bytes(offset),
            len: u32::from_le_bytes(len),
            checksum: u32::from_le_bytes(checksum),
        })
    }

    /// Appends the value to `out`. `file` is that of the segment.
    ///
    /// # Errors
    /// Those of the storage; `Corruption` if the bytes are not the value. `out` is unchanged.
    pub(crate) fn read(&self, file: &dyn ReadFile, out: &mut Vec<u8>) -> Result<()> {
        let before = out.len();
        let end = before + self.len as usize;
        out.try_reserve_exact(self.len as usize)
            .map_err(|_| self.bad("there is no memory for a value in the log"))?;
        out.resize(end, 0);
        let read = file.read_at(self.offset.into(), &mut out[before..]);
        let checked = read
            .map_err(Error::from)
            .and_then(|()| self.verify(&out[before..]));
        if checked.is_err() {
            out.truncate(before);
        }
        checked
    }

    /// The offset at which the value ends.
    pub(crate) fn end(&self) -> u64 {
        u64::from(self.offset) + u64::from(self.len)
    }

    /// Checks that these bytes are the value.
    ///
    /// # Errors
    /// `Corruption` if they are not.
    pub(crate) fn verify(&self, value: &[u8]) -> Result<()> {
        match crc32c::crc32c(value) == self.checksum {
            true => Ok(()),
            false => Err(self.bad("a value in the log was changed after it was written")),
        }
    }

    #[cold]
    fn bad(&self, what: &str) -> Error {
        Error::corruption(segment_name(self.segment), what.to_string()).at(self.offset.into())
    }
}

/// Calls `found` for each put in this part of a segment, in the order of their sequence numbers,
/// with the number, the entry, and the offset in the segment at which the value begins. `salt` is
/// that of the chain to which the segment belongs.
///
/// # Errors
/// Those of the storage; `Corruption` if there is anything but whole records.
pub(crate) fn puts_of(
    file: &dyn ReadFile,
    part: &SegmentPart,
    salt: u64,
    found: &mut dyn FnMut(u64, &Entry<'_>, u32),
) -> Result<()> {
    let bad = |at: u64, what: &str| {
        Error::corruption(segment_name(part.segment), what.to_string()).at(at)
    };
    let seed = RecordSeed::new(salt, part.segment);
    let mut reader = SegmentReader::of(file);
    let mut at = u64::from(part.from).max(SEGMENT_HEADER_BYTES as u64);
    while at < u64::from(part.to) {
        let Ok((record, payload)) = reader.record(at, seed)? else {
            return Err(bad(at, "a record cannot be read back"));
        };
        let header = &record.header;
        if header.kind == RecordKind::Group as u8 {
            let begin = at + header.len() as u64;
            let numbered = (header.first_sequence..).zip(Entries::new(payload));
            for (sequence, entry) in numbered {
                let entry = entry.map_err(|entry| entry.into_error("a record of the log"))?;
                if entry.kind == EntryKind::Put {
                    // The value is a part of the payload.
                    let offset = entry.value.as_ptr().addr() - payload.as_ptr().addr();
                    found(sequence, &entry, (begin + offset as u64) as u32);
                }
            }
        }
        at = record.end.into();
    }
    match at == u64::from(part.to).max(SEGMENT_HEADER_BYTES as u64) {
        true => Ok(()),
        false => Err(bad(at, "the records do not end where they should")),
    }
}

/// The parts of these segments between two positions. A segment is its number and where its records
/// end, in ascending order.
pub(crate) fn parts_between(
    segments: impl Iterator<Item = (u32, u32)>,
    first: Position,
    last: Position,
) -> Vec<SegmentPart> {
    let within = segments.filter(|(number, _)| (first.segment..=last.segment).contains(number));
    let parts = within.map(|(segment, end)| SegmentPart {
        segment,
        from: match segment == first.segment {
            true => first.offset,
            false => 0,
        },
        to: match segment == last.segment {
            true => last.offset,
            false => end,
        },
    });
    let has_records = |part: &SegmentPart| {
        let from = part.from.max(SEGMENT_HEADER_BYTES as u32);
        part.to > from
    };
    parts.filter(has_records).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_four_numbers() {
        let address = ValueAddress {
            segment: 7,
            offset: 0x0102_0304,
            len: u32::MAX,
            checksum: 9,
        };
        let bytes = address.encode();
        assert_eq!(ValueAddress::decode(&bytes), Some(address));
        assert_eq!(ValueAddress::decode(&bytes[..15]), None);
        assert_eq!(ValueAddress::decode(&[0; 20]), None);
    }

    #[test]
    fn parts_lie_between_the_positions_and_have_records() {
        let part = |segment, from, to| SegmentPart { segment, from, to };
        let segments = [(3, 500), (4, 900), (7, 64), (8, 800), (9, 100)];
        let between = |first: (u32, u32), last: (u32, u32)| {
            let (first, last) = (
                Position::new(first.0, first.1),
                Position::new(last.0, last.1),
            );
            parts_between(segments.into_iter(), first, last)
        };
        assert_eq!(between((4, 100), (4, 300)), [part(4, 100, 300)]);
        // The log ended at the end of a segment before the first record was appended.
        assert_eq!(between((4, 900), (8, 700)), [part(8, 0, 700)]);
        assert_eq!(
            between((3, 400), (8, 800)),
            [part(3, 400, 500), part(4, 0, 900), part(8, 0, 800)]
        );
        assert_eq!(between((0, 0), (3, 64)), []);
    }
}
