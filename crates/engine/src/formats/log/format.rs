//! The bytes of the log: segment names, segment headers, record headers, checksums.
//! `docs/format/log.md` has byte tables with every limit; a test compares them with the constants
//! here.
//!
//! Invariants: every decoder takes any bytes and returns a value or a reason; it never panics and
//! never trusts a length. A decoder returns what its encoder was given. A checksum covers salt,
//! segment number and offset, so bytes are valid only at the position for which they were written.
//!
//! Threading: pure functions.

use std::fmt;
use std::ops::Deref;

use siltstone_table::checksum::{crc32c, crc32c_append};

use super::position::Position;
use crate::types::error::Error;
use crate::types::fields::unsupported_feature;
use siltstone_storage::planted;

/// The first bytes of every segment.
pub const MAGIC: [u8; 8] = *b"SILTLOG\0";
/// The version that this build writes, and the only one that it reads.
pub const VERSION: u32 = 2;
/// Bytes of a segment's header.
pub const SEGMENT_HEADER_BYTES: usize = 64;
/// Bytes of a record's header without a synced position. This is the shortest header.
pub const RECORD_HEADER_BYTES: usize = 20;
/// Bytes of a record's header with a synced position.
pub const LONG_RECORD_HEADER_BYTES: usize = 28;
/// Records start at multiples of this.
pub const RECORD_ALIGN_BYTES: usize = 4;
/// In the byte of a record's kind: the header has a synced position.
pub const HAS_POSITION: u8 = 0x80;
/// The first record that begins in each unit of this many bytes, counted from the segment's
/// beginning, has a synced position. A disk never loses less than this at once.
pub const POSITION_UNIT_BYTES: u32 = 512;
/// The longest payload of a record: 2 GiB.
pub const MAX_PAYLOAD_BYTES: u64 = 1 << 31;
/// The longest segment. Offsets fit into 32 bits.
pub const MAX_SEGMENT_BYTES: u64 = (1 << 32) - 8;
/// The smallest segment size that options may set.
pub const MIN_SEGMENT_BYTES: u64 = 4096;

/// The most segments that are ready and have no header yet. If more than these and the one that is
/// being entered have no header behind the last record, records were lost.
pub const READY_SEGMENTS_MAX: usize = 3;
/// The largest segment number.
pub const MAX_SEGMENT_NUMBER: u32 = u32::MAX - 1;
/// The largest sequence number: 56 bits.
pub const MAX_SEQUENCE: u64 = (1 << 56) - 1;
/// The longest header that a later version may have. It limits what is read before the version is
/// known.
pub const MAX_HEADER_BYTES: usize = 4096;

/// The name of segment `number`.
pub fn segment_name(number: u32) -> String {
    format!("{number:012}.log")
}

/// The number in a segment's name; `None` for other names.
pub fn parse_segment_name(name: &str) -> Option<u32> {
    let digits = name.strip_suffix(".log")?;
    if digits.len() != 12 || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let number: u64 = digits.parse().ok()?;
    u32::try_from(number)
        .ok()
        .filter(|n| (1..=MAX_SEGMENT_NUMBER).contains(n))
}

/// The kind of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum RecordKind {
    /// A group of batches: their bodies one after the other (see [`crate::api::batch`]).
    Group = 1,
    /// Tables are ingested.
    Ingest = 2,
    /// A keyspace is created.
    KeyspaceCreate = 3,
    /// A keyspace is dropped.
    KeyspaceDrop = 4,
}

impl RecordKind {
    /// The kind with this number. Numbers from 5 on are reserved, and `unknown_record` names what
    /// they are for.
    pub fn from_number(number: u8) -> Option<RecordKind> {
        match number {
            1 => Some(RecordKind::Group),
            2 => Some(RecordKind::Ingest),
            3 => Some(RecordKind::KeyspaceCreate),
            4 => Some(RecordKind::KeyspaceDrop),
            _ => None,
        }
    }
}

/// The kind of the records that say where the writes of a keyspace are kept from there on
/// (reserved).
const REDIRECT: u8 = 5;

/// The error for a record of a kind that this build does not know. Such a record has a good
/// checksum, so it is refused, and neither skipped nor taken for the end of the log.
#[cold]
pub(crate) fn unknown_record(kind: u8) -> Error {
    let feature = match kind {
        REDIRECT => "redirect markers".to_string(),
        kind => format!("log records of kind {kind}"),
    };
    unsupported_feature("the log", &feature)
        .expected("a record of kind 1 to 4")
        .found(format_args!("kind {kind}"))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

/// Where a segment's records end, and the checksum chained over them. The header of the next
/// segment repeats this.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChainEnd {
    /// The segment's number; 0 if there is none, because a chain starts here.
    pub segment: u32,
    /// The offset at which the segment's records end, in bytes.
    pub offset: u32,
    /// The header's checksum, continued over each record's checksum.
    pub checksum: u32,
}

impl ChainEnd {
    /// The predecessor of a chain's first segment.
    pub const NONE: ChainEnd = ChainEnd {
        segment: 0,
        offset: 0,
        checksum: 0,
    };
}

/// The header of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentHeader {
    /// The id of the store.
    pub store_id: u64,
    /// The segment's number, which its name repeats.
    pub number: u32,
    /// A random number of the chain. It is part of every record's checksum.
    pub salt: u64,
    /// The end of the segment before it in the chain.
    pub previous: ChainEnd,
}

/// Why bytes are not the header of a segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BadHeader {
    /// The file is shorter than a header. The value is its length.
    TooShort(u64),
    /// The bytes begin with something else.
    Magic([u8; 8]),
    /// A header with a good checksum, of a version that this build does not know.
    Version(u32),
    /// The length of the header is not possible.
    HeaderBytes(u32),
    /// The checksum does not match.
    Checksum {
        /// The checksum of the bytes found.
        expected: u32,
        /// The checksum stored in the header.
        found: u32,
    },
    /// A valid header of another segment: the file was recycled, and its new header was not written
    /// or not synced.
    Number(u64),
    /// A field has a value that is never written.
    Field(&'static str, u64),
}

impl fmt::Display for BadHeader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BadHeader::TooShort(len) => {
                write!(f, "{len} bytes, which is too short for a segment header")
            }
            BadHeader::Magic(found) => write!(f, "{found:02x?} instead of a segment's magic"),
            BadHeader::Version(version) => write!(f, "format version {version}"),
            BadHeader::HeaderBytes(bytes) => write!(f, "a header of {bytes} bytes"),
            BadHeader::Checksum { expected, found } => {
                write!(
                    f,
                    "header checksum {found:#010x} where the bytes give {expected:#010x}"
                )
            }
            BadHeader::Number(number) => write!(f, "the header of segment {number}"),
            BadHeader::Field(field, value) => write!(f, "{field} {value} in the header"),
        }
    }
}

impl SegmentHeader {
    /// The bytes of the header. The last four are its checksum, with which the segment's chain
    /// begins.
    pub fn encode(&self) -> [u8; SEGMENT_HEADER_BYTES] {
        let mut bytes = [0; SEGMENT_HEADER_BYTES];
        bytes[0..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
        bytes[12..16].copy_from_slice(&(SEGMENT_HEADER_BYTES as u32).to_le_bytes());
        bytes[16..24].copy_from_slice(&self.store_id.to_le_bytes());
        bytes[24..32].copy_from_slice(&u64::from(self.number).to_le_bytes());
        bytes[32..40].copy_from_slice(&self.salt.to_le_bytes());
        bytes[40..48].copy_from_slice(&u64::from(self.previous.segment).to_le_bytes());
        bytes[48..56].copy_from_slice(&u64::from(self.previous.offset).to_le_bytes());
        bytes[56..60].copy_from_slice(&self.previous.checksum.to_le_bytes());
        let checksum = crc32c(&bytes[..60]);
        bytes[60..64].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// Decodes the header of segment `number` from the first bytes of its file: at least
    /// [`SEGMENT_HEADER_BYTES`], if there are as many. With [`MAX_HEADER_BYTES`], a header of a
    /// later version can be told from damage.
    ///
    /// # Errors
    /// The reason why the bytes are not that header.
    pub fn decode(bytes: &[u8], number: u32) -> Result<(SegmentHeader, u32), BadHeader> {
        if bytes.len() < SEGMENT_HEADER_BYTES {
            return Err(BadHeader::TooShort(bytes.len() as u64));
        }
        if bytes[0..8] != MAGIC {
            return Err(BadHeader::Magic(
                bytes[0..8].try_into().expect("eight bytes"),
            ));
        }
        let version = u32_at(bytes, 8);
        let header_bytes = u32_at(bytes, 12);
        // Every version keeps these two fields and ends its header with a checksum of all bytes
        // before it, so a later version can be told from a flipped bit.
        let len = header_bytes as usize;
        if !(SEGMENT_HEADER_BYTES..=MAX_HEADER_BYTES).contains(&len) || len > bytes.len() {
            return Err(BadHeader::HeaderBytes(header_bytes));
        }
        let expected = crc32c(&bytes[..len - 4]);
        let found = u32_at(bytes, len - 4);
        if expected != found {
            return Err(BadHeader::Checksum { expected, found });
        }
        if version != VERSION {
            return Err(BadHeader::Version(version));
        }
        if len != SEGMENT_HEADER_BYTES {
            return Err(BadHeader::HeaderBytes(header_bytes));
        }
        let own = u64_at(bytes, 24);
        if own != u64::from(number) {
            return Err(BadHeader::Number(own));
        }
        let small = |name, at| {
            let value = u64_at(bytes, at);
            u32::try_from(value).map_err(|_| BadHeader::Field(name, value))
        };
        let previous = ChainEnd {
            segment: small("previous segment", 40)?,
            offset: small("previous end", 48)?,
            checksum: u32_at(bytes, 56),
        };
        if previous.segment >= number {
            return Err(BadHeader::Field(
                "previous segment",
                u64::from(previous.segment),
            ));
        }
        let header = SegmentHeader {
            store_id: u64_at(bytes, 16),
            number,
            salt: u64_at(bytes, 32),
            previous,
        };
        Ok((header, found))
    }

    /// The store's id in a header of which only the checksum was verified.
    pub(crate) fn store_id_field(bytes: &[u8]) -> Option<u64> {
        (bytes.len() >= SEGMENT_HEADER_BYTES).then(|| u64_at(bytes, 16))
    }

    /// The number in a header that may be damaged, if a segment can have it.
    pub fn number_field(bytes: &[u8]) -> Option<u32> {
        (bytes.len() >= SEGMENT_HEADER_BYTES)
            .then(|| u64_at(bytes, 24))
            .and_then(|number| u32::try_from(number).ok())
            .filter(|number| (1..=MAX_SEGMENT_NUMBER).contains(number))
    }

    /// The salt in a header that may be damaged. A record that is valid with this salt belongs to
    /// the segment even so.
    pub fn salt_field(bytes: &[u8]) -> Option<u64> {
        (bytes.len() >= SEGMENT_HEADER_BYTES).then(|| u64_at(bytes, 32))
    }
}

/// The part of a record's checksum that is the same for all records of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordSeed(u32);

impl RecordSeed {
    /// The seed of segment `number` in the chain with `salt`.
    pub fn new(salt: u64, number: u32) -> RecordSeed {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&salt.to_le_bytes());
        bytes[8..].copy_from_slice(&u64::from(number).to_le_bytes());
        RecordSeed(crc32c(&bytes))
    }

    /// The checksum of a record's offset and of its header without the two checksum fields.
    /// `synced` are the eight bytes of the synced position, if the header has one.
    #[inline]
    fn offset_and_header(self, offset: u32, fields: &[u8; 12], synced: Option<&[u8; 8]>) -> u32 {
        let mut bytes = [0; 8 + 12 + 8];
        bytes[..8].copy_from_slice(&u64::from(offset).to_le_bytes());
        bytes[8..20].copy_from_slice(fields);
        let Some(synced) = synced else {
            return crc32c_append(self.0, &bytes[..20]);
        };
        bytes[20..].copy_from_slice(synced);
        crc32c_append(self.0, &bytes)
    }
}

/// A record's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordHeader {
    /// Length of the payload, in bytes.
    pub payload_bytes: u32,
    /// The number of the kind, below 128. Numbers above 4 are for later versions.
    pub kind: u8,
    /// The log position that was known to be synced when the record was written. `None`: the
    /// record does not say it, because an earlier one does.
    pub synced: Option<Position>,
    /// The first sequence number of the record's entries.
    pub first_sequence: u64,
}

/// The bytes of a record's header.
#[derive(Clone, Copy, Debug)]
pub struct HeaderBytes {
    bytes: [u8; LONG_RECORD_HEADER_BYTES],
    len: usize,
}

impl Deref for HeaderBytes {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// Why bytes are not a valid record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BadRecord {
    /// Fewer bytes than a record's shortest header are left in the segment.
    SegmentFull,
    /// Zeros: nothing was written here.
    Nothing,
    /// The header's check does not match, a field has a value that is never written, or the
    /// segment ends within the header.
    Header,
    /// The record would end behind the segment's end.
    PastEnd {
        /// The length of the record's payload, in bytes.
        payload_bytes: u32,
        /// The bytes left in the segment after the record's header.
        left_bytes: u64,
    },
    /// The checksum over the payload does not match.
    Checksum {
        /// The checksum of the bytes found.
        expected: u32,
        /// The checksum stored in the record.
        found: u32,
    },
    /// Bytes between the payload and the next record are not zero.
    Padding,
}

impl BadRecord {
    /// Whether a record that was written for this position begins here, but is not complete.
    pub fn is_torn(&self) -> bool {
        matches!(
            self,
            BadRecord::Checksum { .. } | BadRecord::Padding | BadRecord::PastEnd { .. }
        )
    }
}

impl fmt::Display for BadRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BadRecord::SegmentFull => write!(f, "the last bytes of the segment"),
            BadRecord::Nothing => write!(f, "zeros"),
            BadRecord::Header => write!(f, "a damaged, foreign or half-written record header"),
            BadRecord::PastEnd {
                payload_bytes,
                left_bytes,
            } => {
                write!(
                    f,
                    "a record of {payload_bytes} payload bytes where {left_bytes} are left"
                )
            }
            BadRecord::Checksum { expected, found } => {
                write!(
                    f,
                    "record checksum {found:#010x} where the bytes give {expected:#010x}"
                )
            }
            BadRecord::Padding => write!(f, "padding that is not zero"),
        }
    }
}

/// The number of zero bytes that follow a payload of `payload_bytes`.
#[inline]
pub fn padding_bytes(payload_bytes: u64) -> usize {
    (payload_bytes as usize).wrapping_neg() & (RECORD_ALIGN_BYTES - 1)
}

/// The length of a record with a header of `header_bytes`: header, payload and padding.
#[inline]
pub fn record_bytes(header_bytes: usize, payload_bytes: u64) -> u64 {
    header_bytes as u64 + payload_bytes + padding_bytes(payload_bytes) as u64
}

/// The length of the header that begins with these bytes, if it is one.
#[inline]
pub fn header_bytes(head: &[u8; RECORD_HEADER_BYTES]) -> usize {
    match head[8] & HAS_POSITION {
        0 => RECORD_HEADER_BYTES,
        _ => LONG_RECORD_HEADER_BYTES,
    }
}

/// Whether a whole record may begin with these bytes where `left_bytes` are left in the segment.
/// The search for records tries every fourth byte and computes a checksum only where this says so.
#[inline]
pub fn may_begin_record(head: &[u8; RECORD_HEADER_BYTES], left_bytes: u64) -> bool {
    let payload_bytes = u64::from(u32_at(head, 4));
    head[8] & !HAS_POSITION != 0
        && payload_bytes <= MAX_PAYLOAD_BYTES
        && record_bytes(header_bytes(head), payload_bytes) <= left_bytes
}

impl RecordHeader {
    /// The length of this header, in bytes.
    #[inline]
    #[allow(clippy::len_without_is_empty)] // No header is empty.
    pub fn len(&self) -> usize {
        match self.synced {
            None => RECORD_HEADER_BYTES,
            Some(_) => LONG_RECORD_HEADER_BYTES,
        }
    }

    /// The bytes of the header, and the record's checksum, for a record at `offset` whose payload
    /// consists of `parts`.
    #[inline]
    pub fn encode(&self, seed: RecordSeed, offset: u32, parts: &[&[u8]]) -> (HeaderBytes, u32) {
        let mut bytes = [0; LONG_RECORD_HEADER_BYTES];
        let mut word = self.first_sequence << 8 | u64::from(self.kind);
        let mut len = RECORD_HEADER_BYTES;
        let synced = self.synced.map(|synced| {
            word |= u64::from(HAS_POSITION);
            len = LONG_RECORD_HEADER_BYTES;
            // The segment is the first half of the field.
            synced.to_u64().rotate_left(32).to_le_bytes()
        });
        let mut fields = [0; 12];
        fields[..4].copy_from_slice(&self.payload_bytes.to_le_bytes());
        fields[4..].copy_from_slice(&word.to_le_bytes());
        let check = seed.offset_and_header(offset, &fields, synced.as_ref());
        bytes[4..16].copy_from_slice(&fields);
        bytes[16..20].copy_from_slice(&check.to_le_bytes());
        if let Some(synced) = &synced {
            bytes[20..28].copy_from_slice(synced);
        }
        let mut checksum = check;
        for part in parts {
            checksum = crc32c_append(checksum, part);
        }
        bytes[0..4].copy_from_slice(&checksum.to_le_bytes());
        (HeaderBytes { bytes, len }, checksum)
    }

    /// Decodes the header of a record at `offset` in a segment of `segment_bytes`. `bytes` are the
    /// first ones of the record: as many as [`header_bytes`] says, unless the segment has fewer. A
    /// header that is accepted was written for this position (up to one chance in 2^32), so its
    /// length can be trusted enough to read the payload.
    ///
    /// # Errors
    /// The reason why there is no record.
    #[inline]
    pub fn decode(
        bytes: &[u8],
        seed: RecordSeed,
        offset: u32,
        segment_bytes: u64,
    ) -> Result<Plausible, BadRecord> {
        let Some((head, rest)) = bytes.split_first_chunk::<RECORD_HEADER_BYTES>() else {
            return Err(BadRecord::SegmentFull);
        };
        let word = u64_at(head, 8);
        let kind = word as u8 & !HAS_POSITION;
        let payload_bytes = u32_at(head, 4);
        if kind == 0 {
            let nothing = head.iter().all(|&b| b == 0);
            return Err(if nothing {
                BadRecord::Nothing
            } else {
                BadRecord::Header
            });
        }
        if u64::from(payload_bytes) > MAX_PAYLOAD_BYTES {
            return Err(BadRecord::Header);
        }
        let header_bytes = header_bytes(head);
        let synced = match header_bytes {
            RECORD_HEADER_BYTES => None,
            _ => Some(rest.first_chunk::<8>().ok_or(BadRecord::Header)?),
        };
        let fields = head[4..16].first_chunk().expect("twelve bytes");
        let check = seed.offset_and_header(offset, fields, synced);
        if check != u32_at(head, 16) {
            return Err(BadRecord::Header);
        }
        let end = u64::from(offset) + record_bytes(header_bytes, u64::from(payload_bytes));
        if end > segment_bytes.min(MAX_SEGMENT_BYTES) {
            let payload_at = u64::from(offset) + header_bytes as u64;
            return Err(BadRecord::PastEnd {
                payload_bytes,
                left_bytes: segment_bytes.saturating_sub(payload_at),
            });
        }
        let header = RecordHeader {
            payload_bytes,
            kind,
            synced: synced
                .map(|word| Position::from_u64(u64::from_le_bytes(*word).rotate_left(32))),
            first_sequence: word >> 8,
        };
        Ok(Plausible {
            header,
            partial: check,
            stored: u32_at(head, 0),
            end: end as u32,
        })
    }
}

/// A record whose header is valid and whose payload is not verified yet.
#[derive(Clone, Copy, Debug)]
pub struct Plausible {
    /// The header.
    pub header: RecordHeader,
    /// The checksum of position and header. Continued over the payload, it must give `stored`.
    pub partial: u32,
    /// The checksum stored in the record.
    pub stored: u32,
    /// The offset in the segment at which the record ends, including its padding.
    pub end: u32,
}

impl Plausible {
    /// Verifies payload and padding: `rest` is everything between the header and `end`.
    ///
    /// # Errors
    /// The reason why the record is not valid.
    #[inline]
    pub fn verify(&self, rest: &[u8]) -> Result<(), BadRecord> {
        let Some((payload, padding)) = rest.split_at_checked(self.header.payload_bytes as usize)
        else {
            return Err(BadRecord::Header);
        };
        self.verify_checksum(crc32c_append(self.partial, payload))?;
        if padding.iter().any(|&b| b != 0) {
            return Err(BadRecord::Padding);
        }
        Ok(())
    }

    /// Compares a checksum computed over the payload with the one stored in the record.
    ///
    /// # Errors
    /// Both checksums, if they differ.
    pub fn verify_checksum(&self, expected: u32) -> Result<(), BadRecord> {
        if expected == self.stored || planted!(LogChecksumIsIgnored) {
            return Ok(());
        }
        Err(BadRecord::Checksum {
            expected,
            found: self.stored,
        })
    }
}

/// Continues a segment's chained checksum over the checksum of its next record.
#[inline]
pub fn chain(checksum: u32, record_checksum: u32) -> u32 {
    crc32c_append(checksum, &record_checksum.to_le_bytes())
}
