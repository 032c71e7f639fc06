//! The header of a block: 32 bytes that determine the offset of every column.
//!
//! Invariants: a [`Header`] that [`Header::parse`] returned describes columns that follow each
//! other within [`Header::columns_bytes`], with sums that cannot overflow. The contents of the
//! columns are not known to be sound: offsets in them are checked when they are used.

use super::extent::MAX_PADDING_BYTES;
use crate::coding::Bytes;
use crate::compress::Codec;
use crate::error::{Damage, Feature};
use crate::key::{Kind, MAX_SEQ};
use crate::limits::{MAX_BLOCK_ENTRIES, MAX_BLOCK_TAIL_BYTES, MAX_BLOCK_VALUE_BYTES};

/// The size of a block's header in bytes.
pub const HEADER_BYTES: usize = 32;

/// The size of the checksum that ends a stored block, in bytes.
pub const CHECKSUM_BYTES: usize = 4;

/// Some keys end within their head, so there is a column of pads.
pub const FLAG_PADS: u8 = 1;
/// Kinds differ, so there is a column of kinds.
pub const FLAG_KINDS: u8 = 2;
/// All user keys have the same length, so there are no tail ends and no pads.
pub const FLAG_FIXED_KEYS: u8 = 4;
/// The values are stored compressed.
pub const FLAG_VALUES_COMPRESSED: u8 = 8;
/// The columns are stored compressed.
pub const FLAG_COLUMNS_COMPRESSED: u8 = 16;

/// Compressed parts use zstd, not lz4. Set only together with one of the two flags before it.
pub const FLAG_ZSTD: u8 = 32;

/// There is a column of expiries between kinds and value starts (reserved, RFC 12). A block with it
/// is refused.
pub const FLAG_EXPIRIES: u8 = 64;

const KNOWN_FLAGS: u8 = 63;

/// A parsed header. Column offsets are relative to the header's first byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Number of entries, 1 to 4096.
    pub n: usize,
    /// The number of bytes that all user keys begin with.
    pub prefix_len: usize,
    /// The width of a head: 4 or 8 bytes.
    pub head_width: usize,
    /// The width of a sequence number, stored as an offset from the base: 0 to 7 bytes.
    pub seq_width: usize,
    /// The `FLAG_*` bits.
    pub flags: u8,
    /// The width of a value start: 2 or 4 bytes, or 0 if all values have the same length.
    pub value_width: usize,
    /// The smallest sequence number, shifted by 8, with the kind of all entries (0 if kinds
    /// differ).
    pub base: u64,
    /// The bytes of all values, uncompressed.
    pub value_bytes: usize,
    /// The bytes of all tails.
    pub tail_bytes: usize,
    /// The crc32c of the values as stored.
    pub values_crc: u32,
    /// The length of every user key with [`FLAG_FIXED_KEYS`], otherwise 0.
    pub key_len: usize,
    /// The length of every value if `value_width` is 0, otherwise 0.
    pub value_len: usize,
    /// The length of every tail with [`FLAG_FIXED_KEYS`], otherwise 0.
    pub tail_len: usize,
    /// The width of a tail end: 0, 2 or 4 bytes.
    pub tail_end_width: usize,
    /// The offset of the tails.
    pub tails: usize,
    /// The offset of the tail ends.
    pub tail_ends: usize,
    /// The offset of the pads.
    pub pads: usize,
    /// The offset of the sequence numbers.
    pub seqs: usize,
    /// The offset of the kinds.
    pub kinds: usize,
    /// The offset of the value starts.
    pub value_starts: usize,
    /// The offset of the common prefix.
    pub prefix: usize,
    /// The offset of the padding, which has as many zero bytes as are left up to the end.
    pub padding: usize,
    /// The offset of the end: the length of header, columns and padding, uncompressed, without the
    /// checksum.
    pub end: usize,
}

impl Header {
    /// Reads the header at `at`. Offsets in errors are relative to `at`.
    #[inline]
    pub fn parse<B: Bytes + ?Sized>(bytes: &B, at: usize) -> Result<Header, Damage> {
        let mut raw = [0; HEADER_BYTES];
        if !bytes.copy_to(at, &mut raw) {
            let left = bytes.len().saturating_sub(at);
            return Err(Damage::new(
                "block header",
                0,
                HEADER_BYTES as u64,
                left as u64,
            ));
        }
        Header::from_bytes(&raw)
    }

    /// Decodes and checks a header.
    #[inline]
    pub fn from_bytes(raw: &[u8; HEADER_BYTES]) -> Result<Header, Damage> {
        let raw = raw.as_slice();
        let flags = raw.u8(6);
        let mut h = Header {
            n: raw.u16(0) as usize,
            prefix_len: raw.u16(2) as usize,
            head_width: raw.u8(4) as usize,
            seq_width: raw.u8(5) as usize,
            flags,
            value_width: raw.u8(7) as usize,
            base: raw.u64(8),
            value_bytes: raw.u32(16) as usize,
            tail_bytes: raw.u32(20) as usize,
            values_crc: raw.u32(24),
            key_len: raw.u16(28) as usize,
            value_len: 0,
            tail_len: 0,
            tail_end_width: 0,
            tails: 0,
            tail_ends: 0,
            pads: 0,
            seqs: 0,
            kinds: 0,
            value_starts: 0,
            prefix: 0,
            padding: 0,
            end: 0,
        };
        let bad = |what, offset: usize, expected: u64, found: u64| {
            Err(Damage::new(what, offset as u64, expected, found))
        };
        if h.n == 0 || h.n > MAX_BLOCK_ENTRIES {
            return bad("block entry count", 0, MAX_BLOCK_ENTRIES as u64, h.n as u64);
        }
        if h.head_width != 4 && h.head_width != 8 {
            return bad("block head width", 4, 8, h.head_width as u64);
        }
        if h.seq_width > 7 {
            return bad("block sequence number width", 5, 7, h.seq_width as u64);
        }
        if flags & !KNOWN_FLAGS != 0 {
            if flags & !KNOWN_FLAGS == FLAG_EXPIRIES {
                return Err(Damage::unsupported(Feature::Expiries, 6));
            }
            return bad("block flags", 6, KNOWN_FLAGS as u64, flags as u64);
        }
        if flags & FLAG_ZSTD != 0 && flags & (FLAG_VALUES_COMPRESSED | FLAG_COLUMNS_COMPRESSED) == 0
        {
            let found = (flags & !FLAG_ZSTD) as u64;
            return bad("block flags", 6, found, flags as u64);
        }
        if h.base >> 8 > MAX_SEQ || Kind::from_u8(h.base as u8).is_none() {
            return bad(
                "kind of a block's entries",
                8,
                Kind::ValueAddress as u64,
                h.base & 0xff,
            );
        }
        if h.value_bytes as u64 > MAX_BLOCK_VALUE_BYTES {
            return bad(
                "block value bytes",
                16,
                MAX_BLOCK_VALUE_BYTES,
                h.value_bytes as u64,
            );
        }
        if h.tail_bytes as u64 > MAX_BLOCK_TAIL_BYTES {
            return bad(
                "block tail bytes",
                20,
                MAX_BLOCK_TAIL_BYTES,
                h.tail_bytes as u64,
            );
        }
        let padding = raw.u16(30) as u64;
        let most = if flags & FLAG_COLUMNS_COMPRESSED == 0 {
            MAX_PADDING_BYTES
        } else {
            0
        };
        if padding > most {
            return bad("block padding", 30, most, padding);
        }
        match h.value_width {
            0 if h.value_bytes.is_multiple_of(h.n) => h.value_len = h.value_bytes / h.n,
            2 if h.value_bytes <= u16::MAX as usize => {}
            4 => {}
            _ => return bad("block value start width", 7, 4, h.value_width as u64),
        }
        if flags & FLAG_FIXED_KEYS != 0 {
            let tail_len = h.key_len.saturating_sub(h.prefix_len + h.head_width);
            if flags & FLAG_PADS != 0 || h.key_len < h.prefix_len || h.tail_bytes != tail_len * h.n
            {
                return bad(
                    "block key length",
                    28,
                    (h.prefix_len + h.head_width) as u64,
                    h.key_len as u64,
                );
            }
            h.tail_len = tail_len;
        } else {
            if h.key_len != 0 {
                return bad("block key length", 28, 0, h.key_len as u64);
            }
            h.tail_end_width = if h.tail_bytes <= u16::MAX as usize {
                2
            } else {
                4
            };
        }
        h.tails = HEADER_BYTES + h.n * h.head_width;
        h.tail_ends = h.tails + h.tail_bytes;
        h.pads = h.tail_ends + h.n * h.tail_end_width;
        h.seqs = h.pads + if flags & FLAG_PADS != 0 { h.n } else { 0 };
        h.kinds = h.seqs + h.n * h.seq_width;
        h.value_starts = h.kinds + if flags & FLAG_KINDS != 0 { h.n } else { 0 };
        h.prefix = h.value_starts + h.n * h.value_width;
        h.padding = h.prefix + h.prefix_len;
        h.end = h.padding + padding as usize;
        Ok(h)
    }

    /// Whether a flag is set.
    #[inline(always)]
    pub fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// The codec of compressed parts.
    pub fn codec(&self) -> Codec {
        match self.has(FLAG_ZSTD) {
            true => Codec::Zstd,
            false => Codec::Lz4,
        }
    }

    /// The bytes of header, columns and padding, uncompressed, without the checksum.
    pub fn columns_bytes(&self) -> usize {
        self.end
    }
}
