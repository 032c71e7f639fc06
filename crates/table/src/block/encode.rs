//! Collects the entries of a block and writes its header and columns.
//!
//! The builder keeps keys and trailers. The values stay with the caller, which has already written
//! them to its output, before the header. A block is a pure function of its entries.
//!
//! Threading: one owner. Buffers are reused from block to block.

use super::extent::{BlockEnd, Extent};
use super::header::{
    CHECKSUM_BYTES, FLAG_COLUMNS_COMPRESSED, FLAG_FIXED_KEYS, FLAG_KINDS, FLAG_PADS,
    FLAG_VALUES_COMPRESSED, FLAG_ZSTD, HEADER_BYTES,
};
use crate::compress::Codec;
use crate::key::common_prefix;

/// The number of zero bytes after the collected keys, so that heads can be read eight bytes at a
/// time.
const SLACK: usize = 8;

/// The entries of one block.
pub struct BlockBuilder {
    /// All user keys, one after the other, followed by [`SLACK`] bytes.
    keys: Vec<u8>,
    /// The end of each key in `keys`.
    key_ends: Vec<u32>,
    trailers: Vec<u64>,
    /// The end of each value, counted from the block's first value.
    value_ends: Vec<u32>,
    /// What the entries decide together. It means nothing if there are none.
    extent: Extent,
    scratch: Vec<u8>,
}

/// How a block is stored, apart from its entries.
#[derive(Clone, Copy, Debug)]
pub struct Stored {
    /// The checksum of the values as stored.
    pub values_crc: u32,
    /// Whether the values are stored compressed.
    pub values_compressed: bool,
    /// The codec of the columns.
    pub codec: Codec,
    /// The level of the codec.
    pub level: u8,
    /// The offset of the header in the file.
    pub offset: u64,
    /// Why the block ends, which decides whether it is padded.
    pub end: BlockEnd,
}

impl Default for BlockBuilder {
    fn default() -> Self {
        BlockBuilder::new()
    }
}

impl BlockBuilder {
    /// An empty block.
    pub fn new() -> BlockBuilder {
        BlockBuilder {
            keys: vec![0; SLACK],
            key_ends: Vec::new(),
            trailers: Vec::new(),
            value_ends: Vec::new(),
            extent: Extent::first(0, 0, 0),
            scratch: Vec::new(),
        }
    }

    /// The number of entries.
    #[inline]
    pub fn len(&self) -> usize {
        self.trailers.len()
    }

    /// Whether there are no entries.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.trailers.is_empty()
    }

    /// The bytes of all values.
    #[inline]
    pub fn value_bytes(&self) -> u64 {
        if self.is_empty() {
            0
        } else {
            self.extent.value_bytes
        }
    }

    /// The bytes of all user keys.
    #[inline]
    pub fn key_bytes(&self) -> u64 {
        (self.keys.len().saturating_sub(SLACK)) as u64
    }

    /// What the entries decide together, if there are any.
    #[inline]
    pub fn extent(&self) -> Option<&Extent> {
        (!self.is_empty()).then_some(&self.extent)
    }

    /// The user key of the last entry, or empty if there is no entry.
    #[inline]
    pub fn last_key(&self) -> &[u8] {
        match self.len() {
            0 => &[],
            n => self.key(n - 1),
        }
    }

    /// The user key of entry `i`.
    #[inline]
    pub fn key(&self, i: usize) -> &[u8] {
        let start = if i == 0 {
            0
        } else {
            self.key_ends[i - 1] as usize
        };
        &self.keys[start..self.key_ends[i] as usize]
    }

    /// The user key and the trailer of the last entry.
    #[inline]
    pub fn last(&self) -> Option<(&[u8], u64)> {
        let n = self.len();
        (n > 0).then(|| (self.key(n - 1), self.trailers[n - 1]))
    }

    /// Removes the entries and keeps the buffers.
    pub fn clear(&mut self) {
        self.keys.clear();
        self.keys.resize(SLACK, 0);
        self.key_ends.clear();
        self.trailers.clear();
        self.value_ends.clear();
    }

    /// The extent with the next entry in order. `shared` is the length of the common prefix of its
    /// user key and the last one in this block. It is ignored for the first entry.
    #[inline]
    pub fn extent_with(
        &self,
        key_len: usize,
        trailer: u64,
        value_len: usize,
        shared: usize,
    ) -> Extent {
        if self.is_empty() {
            Extent::first(key_len, trailer, value_len)
        } else {
            self.extent.with(key_len, trailer, value_len, shared)
        }
    }

    /// Adds the next entry in order. `extent` is the extent with it.
    #[inline]
    pub fn push(&mut self, user_key: &[u8], trailer: u64, extent: Extent) {
        let end = self.keys.len() - SLACK;
        self.extent = extent;
        self.keys.truncate(end);
        self.keys.extend_from_slice(user_key);
        self.keys.extend_from_slice(&[0; SLACK]);
        self.key_ends.push((end + user_key.len()) as u32);
        self.trailers.push(trailer);
        self.value_ends.push(extent.value_bytes as u32);
    }

    /// Adds an entry, and compares it with the previous one itself.
    pub fn push_entry(&mut self, user_key: &[u8], trailer: u64, value_len: usize) {
        let shared = self
            .last()
            .map_or(0, |(last, _)| common_prefix(last, user_key));
        let extent = self.extent_with(user_key.len(), trailer, value_len, shared);
        self.push(user_key, trailer, extent);
    }

    /// Appends header, columns and checksum to `out`. The columns are compressed if that saves
    /// enough. Otherwise they are followed by padding, if the block ends with its page. Returns the
    /// block's checksum.
    ///
    /// The block must not be empty.
    pub fn encode(&mut self, stored: Stored, out: &mut Vec<u8>) -> u32 {
        let start = out.len();
        let flags_at = start + 6;
        self.encode_columns(stored.values_crc, out);
        if stored.values_compressed {
            out[flags_at] |= FLAG_VALUES_COMPRESSED;
        }
        self.scratch.clear();
        let codec = stored.codec;
        if codec.compress(
            stored.level,
            &out[start + HEADER_BYTES..],
            &mut self.scratch,
        ) {
            out.truncate(start + HEADER_BYTES);
            out.extend_from_slice(&self.scratch);
            out[flags_at] |= FLAG_COLUMNS_COMPRESSED;
        } else {
            let end = stored.offset + (out.len() - start + CHECKSUM_BYTES) as u64;
            let padding = stored.end.padding(end) as usize;
            out[start + 30..start + 32].copy_from_slice(&(padding as u16).to_le_bytes());
            out.resize(out.len() + padding, 0);
        }
        if codec == Codec::Zstd
            && out[flags_at] & (FLAG_VALUES_COMPRESSED | FLAG_COLUMNS_COMPRESSED) != 0
        {
            out[flags_at] |= FLAG_ZSTD;
        }
        let crc = crate::checksum::crc32c(&out[start..]);
        out.extend_from_slice(&crc.to_le_bytes());
        crc
    }

    fn encode_columns(&self, values_crc: u32, out: &mut Vec<u8>) {
        let n = self.len();
        debug_assert!(n > 0 && n <= crate::limits::MAX_BLOCK_ENTRIES);
        let first = self.key(0);
        let extent = &self.extent;
        let (prefix_len, head_width) = (extent.prefix_len, extent.head_width());
        let (fixed_keys, pads) = (extent.has_fixed_keys(), extent.has_pads());
        let (base_seq, seq_width) = (extent.base_seq(), extent.seq_width());
        let (kinds_differ, value_width) = (extent.has_kinds(), extent.value_width());
        let mut flags = 0;
        for (set, flag) in [
            (pads, FLAG_PADS),
            (kinds_differ, FLAG_KINDS),
            (fixed_keys, FLAG_FIXED_KEYS),
        ] {
            flags |= if set { flag } else { 0 };
        }
        let kind = if kinds_differ {
            0
        } else {
            extent.min_trailer & 0xff
        };
        let base = base_seq << 8 | kind;

        let header = out.len();
        out.extend_from_slice(&[0; HEADER_BYTES]);
        // Heads, and the number of tail bytes.
        let skip = prefix_len + head_width;
        let keys = self.keys.as_slice();
        let mut tail_bytes = 0;
        let mut start = 0;
        for end in &self.key_ends {
            let end = *end as usize;
            let suffix = start + prefix_len;
            let eight = keys[suffix..suffix + 8]
                .first_chunk::<8>()
                .map_or(0, |b| u64::from_be_bytes(*b));
            let len = end - suffix;
            // The eight bytes may include bytes of the next key, which are not part of the head.
            let head = if len >= 8 {
                eight
            } else {
                eight & !(u64::MAX >> (8 * len))
            };
            if head_width == 4 {
                out.extend_from_slice(&((head >> 32) as u32).to_le_bytes());
            } else {
                out.extend_from_slice(&head.to_le_bytes());
            }
            tail_bytes += (end - start).saturating_sub(skip);
            start = end;
        }
        // Tails.
        start = 0;
        for end in &self.key_ends {
            let end = *end as usize;
            if end - start > skip {
                out.extend_from_slice(&keys[start + skip..end]);
            }
            start = end;
        }
        if !fixed_keys {
            let wide = tail_bytes > u16::MAX as usize;
            let (mut start, mut tail_end) = (0, 0);
            for end in &self.key_ends {
                tail_end += (*end as usize - start).saturating_sub(skip);
                start = *end as usize;
                if wide {
                    out.extend_from_slice(&(tail_end as u32).to_le_bytes());
                } else {
                    out.extend_from_slice(&(tail_end as u16).to_le_bytes());
                }
            }
        }
        if pads {
            let mut start = 0;
            for end in &self.key_ends {
                let suffix = *end as usize - start - prefix_len;
                start = *end as usize;
                out.push(head_width.saturating_sub(suffix) as u8);
            }
        }
        if seq_width > 0 {
            for t in &self.trailers {
                out.extend_from_slice(&((t >> 8) - base_seq).to_le_bytes()[..seq_width]);
            }
        }
        if kinds_differ {
            out.extend(self.trailers.iter().map(|t| *t as u8));
        }
        let starts = || std::iter::once(0).chain(self.value_ends[..n - 1].iter().copied());
        match value_width {
            2 => starts().for_each(|s| out.extend_from_slice(&(s as u16).to_le_bytes())),
            4 => starts().for_each(|s| out.extend_from_slice(&s.to_le_bytes())),
            _ => {}
        }
        out.extend_from_slice(&first[..prefix_len]);

        let h = &mut out[header..header + HEADER_BYTES];
        h[0..2].copy_from_slice(&(n as u16).to_le_bytes());
        h[2..4].copy_from_slice(&(prefix_len as u16).to_le_bytes());
        h[4] = head_width as u8;
        h[5] = seq_width as u8;
        h[6] = flags;
        h[7] = value_width as u8;
        h[8..16].copy_from_slice(&base.to_le_bytes());
        h[16..20].copy_from_slice(&(extent.value_bytes as u32).to_le_bytes());
        h[20..24].copy_from_slice(&(tail_bytes as u32).to_le_bytes());
        h[24..28].copy_from_slice(&values_crc.to_le_bytes());
        let key_len = if fixed_keys {
            extent.longest_key as u16
        } else {
            0
        };
        h[28..30].copy_from_slice(&key_len.to_le_bytes());
    }
}
