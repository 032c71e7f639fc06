//! Makes searchable blocks from stored bytes ([`Block`], [`open_stored`]), and decodes all entries
//! of a block ([`Decoded`]).
//!
//! Invariants: no byte of a stored block is trusted before its checksum was verified, if the caller
//! asks for that. Lengths are never trusted: allocations are bounded by the stored length, times
//! the factor by which the codec can expand it.
//!
//! Threading: a [`Block`] is immutable and shared.

use std::borrow::Borrow;

use super::header::{
    CHECKSUM_BYTES, FLAG_COLUMNS_COMPRESSED, FLAG_FIXED_KEYS, FLAG_KINDS, FLAG_PADS,
    FLAG_VALUES_COMPRESSED, HEADER_BYTES, Header,
};
use super::search::View;
use crate::checksum::crc32c;
use crate::coding::Bytes;
use crate::error::Damage;

/// The parts of a stored block, after its lengths were found to agree.
struct Parts<'a> {
    values: &'a [u8],
    header: Header,
    /// The columns as stored, without header and checksum.
    columns: &'a [u8],
}

/// Header and columns of a block as stored, from the header at `anchor` on. With `verify`, verifies
/// their checksum first. `values_len` is the stored length of the values.
fn split_columns(
    stored: &[u8],
    anchor: usize,
    values_len: usize,
    verify: bool,
) -> Result<(Header, &[u8]), Damage> {
    let end = stored.len().saturating_sub(CHECKSUM_BYTES);
    if anchor.saturating_add(HEADER_BYTES) > end {
        return Err(Damage::new(
            "block length",
            0,
            (anchor + HEADER_BYTES + CHECKSUM_BYTES) as u64,
            stored.len() as u64,
        ));
    }
    if verify {
        let (want, found) = (stored.u32(end), crc32c(&stored[anchor..end]));
        if want != found {
            return Err(Damage::new(
                "checksum of a block's columns",
                end as u64,
                found as u64,
                want as u64,
            ));
        }
    }
    let header = Header::parse(stored, anchor).map_err(|d| d.shifted(anchor as u64))?;
    let columns = &stored[anchor + HEADER_BYTES..end];
    if !header.has(FLAG_COLUMNS_COMPRESSED) && header.end != HEADER_BYTES + columns.len() {
        let len = (columns.len() + HEADER_BYTES) as u64;
        return Err(Damage::new(
            "length of a block's columns",
            anchor as u64,
            header.end as u64,
            len,
        ));
    }
    if !header.has(FLAG_VALUES_COMPRESSED) && header.value_bytes != values_len {
        return Err(Damage::new(
            "length of a block's values",
            anchor as u64 + 16,
            values_len as u64,
            header.value_bytes as u64,
        ));
    }
    Ok((header, columns))
}

/// Splits a stored block, whose header is at `anchor`. With `verify`, verifies both checksums
/// before anything that they cover is used.
fn split(stored: &[u8], anchor: usize, verify: bool) -> Result<Parts<'_>, Damage> {
    let (header, columns) = split_columns(stored, anchor, anchor, verify)?;
    let values = &stored[..anchor];
    if verify {
        let found = crc32c(values);
        if header.values_crc != found {
            return Err(Damage::new(
                "checksum of a block's values",
                anchor as u64 + 24,
                found as u64,
                header.values_crc as u64,
            ));
        }
    }
    Ok(Parts {
        values,
        header,
        columns,
    })
}

impl Parts<'_> {
    fn compressed(&self) -> bool {
        self.header.flags & (FLAG_COLUMNS_COMPRESSED | FLAG_VALUES_COMPRESSED) != 0
    }

    /// Replaces `out` by the values, header and columns, uncompressed.
    fn unpack(&self, stored: &[u8], anchor: usize, out: &mut Vec<u8>) -> Result<(), Damage> {
        let h = &self.header;
        if h.has(FLAG_VALUES_COMPRESSED) {
            h.codec()
                .check_expansion(self.values.len(), h.value_bytes)?;
        }
        if h.has(FLAG_COLUMNS_COMPRESSED) {
            h.codec()
                .check_expansion(self.columns.len(), h.end - HEADER_BYTES)
                .map_err(|d| d.shifted(anchor as u64))?;
        }
        out.clear();
        out.resize(h.value_bytes + h.end, 0);
        let (values, rest) = out.split_at_mut(h.value_bytes);
        if h.has(FLAG_VALUES_COMPRESSED) {
            h.codec().decompress(self.values, values)?;
        } else {
            values.copy_from_slice(self.values);
        }
        let (header, columns) = rest.split_at_mut(HEADER_BYTES);
        header.copy_from_slice(&stored[anchor..anchor + HEADER_BYTES]);
        if h.has(FLAG_COLUMNS_COMPRESSED) {
            h.codec()
                .decompress(self.columns, columns)
                .map_err(|d| d.shifted((anchor + HEADER_BYTES) as u64))?;
        } else {
            columns.copy_from_slice(self.columns);
        }
        Ok(())
    }
}

/// A view of a stored block in the caller's buffer, for readers of whole tables. Compressed blocks
/// are uncompressed to `scratch`. `anchor` is the offset of the header in `stored`. With `verify`,
/// checksums are verified first.
///
/// Offsets in errors are relative to `stored`.
pub fn open_stored<'a>(
    stored: &'a [u8],
    anchor: usize,
    verify: bool,
    scratch: &'a mut Vec<u8>,
) -> Result<View<'a, [u8]>, Damage> {
    let parts = split(stored, anchor, verify)?;
    if !parts.compressed() {
        return View::with_header(stored, anchor, 0, parts.header);
    }
    parts.unpack(stored, anchor, scratch)?;
    View::with_header(
        scratch.as_slice(),
        parts.header.value_bytes,
        0,
        parts.header,
    )
}

/// A view of header and columns of a stored block without its values, whose stored length is
/// `values_len`. `stored` begins with the header. Keys, trailers and value ranges can be asked of
/// it, values cannot. With `verify`, the checksum of header and columns is verified first.
///
/// Offsets in errors are relative to `stored`.
pub fn open_columns<'a>(
    stored: &'a [u8],
    values_len: usize,
    verify: bool,
    scratch: &'a mut Vec<u8>,
) -> Result<View<'a, [u8]>, Damage> {
    let (header, columns) = split_columns(stored, 0, values_len, verify)?;
    if !header.has(FLAG_COLUMNS_COMPRESSED) {
        return View::with_header(stored, 0, 0, header);
    }
    let codec = header.codec();
    codec.check_expansion(columns.len(), header.end - HEADER_BYTES)?;
    scratch.clear();
    scratch.resize(header.end, 0);
    let (head, unpacked) = scratch.split_at_mut(HEADER_BYTES);
    head.copy_from_slice(&stored[..HEADER_BYTES]);
    let unpack = codec.decompress(columns, unpacked);
    unpack.map_err(|d| d.shifted(HEADER_BYTES as u64))?;
    View::with_header(scratch.as_slice(), 0, 0, header)
}

/// An uncompressed block on the heap: values, header, columns. Caches keep it in an `Arc`.
#[derive(Debug)]
pub struct Block {
    data: Box<[u8]>,
    header: Header,
    anchor: usize,
}

impl Block {
    /// Makes a block from its stored bytes, with its header at `anchor`. With `verify`, verifies
    /// checksums first.
    pub fn new(stored: Vec<u8>, anchor: usize, verify: bool) -> Result<Block, Damage> {
        let parts = split(&stored, anchor, verify)?;
        let header = parts.header;
        if !parts.compressed() {
            return Ok(Block {
                data: stored.into_boxed_slice(),
                header,
                anchor,
            });
        }
        let mut data = Vec::new();
        parts.unpack(&stored, anchor, &mut data)?;
        Ok(Block {
            data: data.into_boxed_slice(),
            header,
            anchor: header.value_bytes,
        })
    }

    /// Its searchable view.
    #[inline]
    pub fn view(&self) -> View<'_, [u8], &Header> {
        View::new_unchecked_len(&self.data, self.anchor, &self.header)
    }

    /// The `len` value bytes at `start`, which come from [`View::value_range`].
    #[inline]
    pub fn value_at(&self, start: usize, len: usize) -> Option<&[u8]> {
        self.data.get(start..start.checked_add(len)?)
    }

    /// Heap bytes, for the accounting of caches.
    pub fn memory_bytes(&self) -> usize {
        self.data.len() + std::mem::size_of::<Block>()
    }
}

/// All entries of a block as plain arrays, for merges. Buffers are reused from block to block.
#[derive(Clone, Debug, Default)]
pub struct Decoded {
    /// The user keys, one after the other, followed by [`Decoded::SLACK`] bytes of padding for wide
    /// loads.
    pub keys: Vec<u8>,
    /// The end of each user key in `keys`.
    pub key_ends: Vec<u32>,
    /// The trailer of each entry.
    pub trailers: Vec<u64>,
    /// The end of each value, counted from the block's first value. Value `i` begins where value
    /// `i - 1` ends.
    pub value_ends: Vec<u32>,
    /// The number of bytes that all user keys begin with.
    pub prefix_len: usize,
}

impl Decoded {
    /// The padding after the keys, in bytes.
    pub const SLACK: usize = 16;

    /// The number of entries.
    pub fn len(&self) -> usize {
        self.trailers.len()
    }

    /// Whether there are no entries.
    pub fn is_empty(&self) -> bool {
        self.trailers.is_empty()
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

    /// The range of the value of entry `i`, counted from the block's first value.
    #[inline]
    pub fn value_range(&self, i: usize) -> std::ops::Range<usize> {
        let start = if i == 0 {
            0
        } else {
            self.value_ends[i - 1] as usize
        };
        start..self.value_ends[i] as usize
    }
}

impl<H: Borrow<Header>> View<'_, [u8], H> {
    /// Replaces `out` by all entries. Every offset in the columns is checked, so `out` can be used
    /// without further checks, and each value range is within the block's values. So is the padding
    /// of heads and of the block.
    pub fn decode_all(&self, out: &mut Decoded) -> Result<(), Damage> {
        let h = *self.header();
        let n = h.n;
        let block = &self.bytes()[self.at()..self.at() + h.end];
        out.prefix_len = h.prefix_len;
        out.key_ends.clear();
        out.trailers.clear();
        out.value_ends.clear();

        // Trailers.
        let base = h.base >> 8;
        let kind = h.base & 0xff;
        if h.seq_width == 0 && !h.has(FLAG_KINDS) {
            self.trailer(0)?;
            out.trailers.resize(n, h.base);
        } else {
            if !h.has(FLAG_KINDS) {
                self.trailer(0)?;
            }
            for i in 0..n {
                let seq = base + block.uint(h.seqs + i * h.seq_width, h.seq_width);
                if h.has(FLAG_KINDS) {
                    out.trailers.push(self.trailer(i)?);
                } else {
                    out.trailers.push(seq << 8 | kind);
                }
            }
        }
        // Values.
        if h.value_width == 0 {
            out.value_ends
                .extend((1..=n).map(|i| (i * h.value_len) as u32));
        } else {
            for i in 0..n {
                let (start, len) = self.value_range(i)?;
                let want = out.value_ends.last().map_or(0, |e| *e as usize);
                if start != want {
                    return Err(Damage::new(
                        "value start",
                        (h.value_starts + i * h.value_width) as u64,
                        want as u64,
                        start as u64,
                    ));
                }
                out.value_ends.push((start + len) as u32);
            }
        }
        // Keys: prefix, then eight bytes of head (or four, and four that the tail overwrites), then
        // the tail.
        let prefix = &block[h.prefix..h.prefix + h.prefix_len];
        let most = n * (h.prefix_len + h.head_width) + h.tail_bytes + Self::KEY_SLACK;
        out.keys.clear();
        out.keys.resize(most, 0);
        let keys = out.keys.as_mut_slice();
        let shift = if h.head_width == 4 { 32 } else { 0 };
        let mut at = 0;
        let mut tail = h.tails;
        if h.tail_end_width == 0 {
            let suffix = h.key_len - h.prefix_len;
            for i in 0..n {
                keys[at..at + prefix.len()].copy_from_slice(prefix);
                at += prefix.len();
                keys[at..at + 8].copy_from_slice(&(self.head(i) << shift).to_be_bytes());
                copy_short(&mut keys[at + h.head_width..], block, tail, h.tail_len);
                tail += h.tail_len;
                at += suffix;
                out.key_ends.push(at as u32);
            }
        } else {
            for i in 0..n {
                let (tail_at, tail_len, suffix) = self.tail(i)?;
                keys[at..at + prefix.len()].copy_from_slice(prefix);
                at += prefix.len();
                keys[at..at + 8].copy_from_slice(&(self.head(i) << shift).to_be_bytes());
                copy_short(
                    &mut keys[at + h.head_width..],
                    self.bytes(),
                    tail_at,
                    tail_len,
                );
                at += suffix;
                out.key_ends.push(at as u32);
            }
        }
        self.check_head_padding()?;
        if let Some(at) = block[h.padding..h.end].iter().position(|b| *b != 0) {
            let at = h.padding + at;
            return Err(Damage::new(
                "padding of a block",
                at as u64,
                0,
                block[at].into(),
            ));
        }
        out.keys.truncate(at + Decoded::SLACK);
        out.keys[at..].fill(0);
        Ok(())
    }

    /// Checks that heads are padded with zeros. The pads were checked before. A search compares
    /// whole heads, so it would not find a key whose head is padded with other bytes. Blocks in
    /// which no key ends within its head have nothing to check.
    #[inline(never)]
    fn check_head_padding(&self) -> Result<(), Damage> {
        let h = self.header();
        let same = match h.has(FLAG_FIXED_KEYS) {
            true => (h.prefix_len + h.head_width).saturating_sub(h.key_len),
            false => 0,
        };
        let pads = match h.has(FLAG_PADS) {
            true => &self.bytes()[self.at() + h.pads..][..h.n],
            false if same == 0 => return Ok(()),
            false => &[],
        };
        let padding = |i| {
            let pad = pads.get(i).map_or(same, |pad| usize::from(*pad));
            // The bits of this many bytes. All bits are a shift by 64, which has no result.
            let mask = 1u64
                .checked_shl(8 * pad as u32)
                .unwrap_or(0)
                .wrapping_sub(1);
            self.head(i) & mask
        };
        if (0..h.n).fold(0, |all, i| all | padding(i)) == 0 {
            return Ok(());
        }
        let first = (0..h.n).find(|i| padding(*i) != 0).unwrap_or(0);
        let at = HEADER_BYTES + first * h.head_width;
        Err(Damage::new(
            "padding of a head",
            at as u64,
            0,
            padding(first),
        ))
    }

    /// Padding while keys are written: the number of bytes that a head or a wide copy may write too
    /// much.
    const KEY_SLACK: usize = 32;
}

/// Copies `len` bytes. Short ones are copied with a fixed size if both sides have room.
#[inline(always)]
fn copy_short(to: &mut [u8], from: &[u8], at: usize, len: usize) {
    if len <= 16
        && let (Some(to), Some(from)) = (to.first_chunk_mut::<16>(), from.get(at..at + 16))
    {
        to.copy_from_slice(from);
        return;
    }
    to[..len].copy_from_slice(&from[at..at + len]);
}
