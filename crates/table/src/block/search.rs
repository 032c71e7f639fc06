//! Searching a block: finds the entry of a key, and reads what an entry contains.
//!
//! A [`View`] is a header and the offsets of its columns and values in some [`Bytes`], which may be
//! a heap buffer or a map of the file. A search touches the cache lines of the heads that a binary
//! search reads, and then one tail, one sequence number and one value start.
//!
//! Invariants: the columns were checked to be within the bytes. Values read from them (tail ends,
//! value starts) are checked before they are used, and a contradiction is a [`Damage`], never a
//! panic.
//!
//! Threading: shared and immutable.

use std::borrow::Borrow;
use std::cmp::Ordering;

use super::header::{FLAG_KINDS, FLAG_PADS, HEADER_BYTES, Header};
use crate::coding::{Bytes, head, partition_point};
use crate::error::{Damage, Feature};
use crate::key::Kind;
use siltstone_storage::planted;

/// The number of bytes that [`View::key_over`] may write after a key.
pub const KEY_SLACK_BYTES: usize = 8;

/// A block whose columns are not compressed, in a heap buffer or in a map. The view owns the
/// header, or borrows it from a caller that keeps it: copying a header costs as much as reading an
/// entry.
#[derive(Debug)]
pub struct View<'a, B: Bytes + ?Sized, H = Header> {
    bytes: &'a B,
    /// The offset of the header.
    at: usize,
    /// The offset of the first value. If the values are elsewhere (because they are compressed),
    /// only their ranges are used.
    values: usize,
    h: H,
}

impl<B: Bytes + ?Sized, H: Copy> Clone for View<'_, B, H> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<B: Bytes + ?Sized, H: Copy> Copy for View<'_, B, H> {}

/// What [`View::entry_over`] returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The length of the user key in bytes.
    pub key_len: usize,
    /// The trailer.
    pub trailer: u64,
    /// The start of the value, counted from the block's first value.
    pub value_start: usize,
    /// The length of the value in bytes.
    pub value_len: usize,
}

impl<'a, B: Bytes + ?Sized> View<'a, B> {
    /// A view of the block whose header is at `at` and whose values begin at `values`.
    #[inline]
    pub fn new(bytes: &'a B, at: usize, values: usize) -> Result<View<'a, B>, Damage> {
        let h = Header::parse(bytes, at)?;
        View::with_header(bytes, at, values, h)
    }
}

impl<'a, B: Bytes + ?Sized, H: Borrow<Header>> View<'a, B, H> {
    /// As [`View::new`], with a header that was parsed before.
    #[inline]
    pub fn with_header(
        bytes: &'a B,
        at: usize,
        values: usize,
        h: H,
    ) -> Result<View<'a, B, H>, Damage> {
        let columns_end = h.borrow().end;
        match at.checked_add(columns_end) {
            Some(end) if end <= bytes.len() => Ok(View {
                bytes,
                at,
                values,
                h,
            }),
            _ => Err(Damage::new(
                "end of a block's columns",
                0,
                bytes.len() as u64,
                (at as u64).saturating_add(columns_end as u64),
            )),
        }
    }

    /// The view of a heap block whose lengths were already checked.
    #[inline(always)]
    pub(super) fn new_unchecked_len(bytes: &'a B, at: usize, h: H) -> View<'a, B, H> {
        View {
            bytes,
            at,
            values: 0,
            h,
        }
    }

    /// The header.
    #[inline(always)]
    pub fn header(&self) -> &Header {
        self.h.borrow()
    }

    /// The number of entries.
    #[inline(always)]
    pub fn len(&self) -> usize {
        self.header().n
    }

    /// Whether there are no entries, which is never the case for a parsed block.
    pub fn is_empty(&self) -> bool {
        self.header().n == 0
    }

    /// The head of entry `i`.
    #[inline(always)]
    pub fn head(&self, i: usize) -> u64 {
        if self.header().head_width == 4 {
            self.bytes.u32(self.at + HEADER_BYTES + 4 * i) as u64
        } else {
            self.bytes.u64(self.at + HEADER_BYTES + 8 * i)
        }
    }

    #[inline]
    fn tail_end(&self, i: usize) -> usize {
        if self.header().tail_end_width == 2 {
            self.bytes.u16(self.at + self.header().tail_ends + 2 * i) as usize
        } else {
            self.bytes.u32(self.at + self.header().tail_ends + 4 * i) as usize
        }
    }

    /// The offset (in the bytes) and the length of the tail of entry `i`, and the length of its key
    /// after the prefix.
    #[inline]
    pub(super) fn tail(&self, i: usize) -> Result<(usize, usize, usize), Damage> {
        let h = self.header();
        if h.tail_end_width == 0 {
            return Ok((
                self.at + h.tails + i * h.tail_len,
                h.tail_len,
                h.key_len - h.prefix_len,
            ));
        }
        let start = if i == 0 { 0 } else { self.tail_end(i - 1) };
        let end = self.tail_end(i);
        if start > end || end > h.tail_bytes {
            return Err(Damage::new(
                "tail end",
                (h.tail_ends + i * h.tail_end_width) as u64,
                h.tail_bytes as u64,
                end as u64,
            ));
        }
        let len = end - start;
        let mut suffix = h.head_width + len;
        if h.has(FLAG_PADS) {
            let pad = self.bytes.u8(self.at + h.pads + i) as usize;
            if pad > 0 {
                if pad > h.head_width || len > 0 {
                    return Err(Damage::new(
                        "pad",
                        (h.pads + i) as u64,
                        h.head_width as u64,
                        pad as u64,
                    ));
                }
                suffix -= pad;
            }
        }
        Ok((self.at + h.tails + start, len, suffix))
    }

    /// The length of the user key of entry `i` in bytes.
    pub fn key_len(&self, i: usize) -> Result<usize, Damage> {
        Ok(self.header().prefix_len + self.tail(i)?.2)
    }

    /// Replaces `out` by the user key of entry `i`.
    pub fn key_into(&self, i: usize, out: &mut Vec<u8>) -> Result<(), Damage> {
        let len = self.key_over(i, out, false)?;
        out.truncate(len);
        Ok(())
    }

    /// Writes the user key of entry `i` to the start of `out`, and returns its length. `out` grows
    /// to have [`KEY_SLACK_BYTES`] after the key, so that heads and short tails are copied with a
    /// fixed size. With `has_prefix`, `out` already begins with the block's prefix.
    #[inline]
    pub fn key_over(&self, i: usize, out: &mut Vec<u8>, has_prefix: bool) -> Result<usize, Damage> {
        let (tail, tail_len, suffix) = self.tail(i)?;
        let h = self.header();
        let total = h.prefix_len + suffix;
        if out.len() < total + KEY_SLACK_BYTES {
            out.resize(total + KEY_SLACK_BYTES, 0);
        }
        let mut ok = has_prefix || {
            let (prefix, _) = out.split_at_mut(h.prefix_len);
            self.bytes.copy_to(self.at + h.prefix, prefix)
        };
        let is_narrow = h.head_width == 4 && !planted!(HeadOfWrongWidth);
        let x = self.head(i) << if is_narrow { 32 } else { 0 };
        out[h.prefix_len..][..8].copy_from_slice(&x.to_be_bytes());
        if tail_len > 0 {
            let at = total - tail_len;
            // Near the end of the bytes, fewer than eight may be left.
            if tail_len > 8 || !self.bytes.copy_to(tail, &mut out[at..][..8]) {
                ok &= self.bytes.copy_to(tail, &mut out[at..total]);
            }
        }
        if ok {
            Ok(total)
        } else {
            Err(Damage::new("key", 0, total as u64, 0))
        }
    }

    /// All of entry `i` but its value. The key is written to `out` as by [`View::key_over`].
    #[inline]
    pub fn entry_over(
        &self,
        i: usize,
        out: &mut Vec<u8>,
        has_prefix: bool,
    ) -> Result<Entry, Damage> {
        let key_len = self.key_over(i, out, has_prefix)?;
        let trailer = self.trailer(i)?;
        let (value_start, value_len) = self.value_range(i)?;
        Ok(Entry {
            key_len,
            trailer,
            value_start,
            value_len,
        })
    }

    /// Compares the key of entry `i` after the prefix with `suffix`. Their heads must be equal.
    #[inline]
    fn compare_after_head(&self, i: usize, suffix: &[u8]) -> Result<Ordering, Damage> {
        let (tail, tail_len, len) = self.tail(i)?;
        let width = self.header().head_width;
        if len <= width || suffix.len() <= width {
            // The heads are equal and padded with zeros, so the shorter key is a prefix of the
            // other.
            return Ok(len.cmp(&suffix.len()));
        }
        Ok(self.bytes.compare(tail, tail_len, &suffix[width..]))
    }

    /// The trailer of entry `i`. A reserved kind is refused, and an unknown one is damage.
    #[inline]
    pub fn trailer(&self, i: usize) -> Result<u64, Damage> {
        let h = self.header();
        let seq = (h.base >> 8).wrapping_add(
            self.bytes
                .uint(self.at + h.seqs + i * h.seq_width, h.seq_width),
        );
        let kind = if h.has(FLAG_KINDS) {
            self.bytes.u8(self.at + h.kinds + i)
        } else {
            h.base as u8
        };
        if kind > Kind::Put as u8 {
            return Err(self.refused_kind(i, kind));
        }
        Ok(seq << 8 | kind as u64)
    }

    /// The error for the kind of entry `i`, which is neither put nor delete.
    #[cold]
    fn refused_kind(&self, i: usize, kind: u8) -> Damage {
        let h = self.header();
        let at = match h.has(FLAG_KINDS) {
            true => (h.kinds + i) as u64,
            false => 8,
        };
        match Kind::from_u8(kind) {
            Some(Kind::Merge) => Damage::unsupported(Feature::MergeOperands, at),
            Some(Kind::ValueAddress) => Damage::unsupported(Feature::ValueAddresses, at),
            _ => Damage::new("kind of an entry", at, Kind::Put as u64, kind as u64),
        }
    }

    /// The start of the value of entry `i`, counted from the block's first value, and its length.
    #[inline]
    pub fn value_range(&self, i: usize) -> Result<(usize, usize), Damage> {
        let h = self.header();
        if h.value_width == 0 {
            return Ok((i * h.value_len, h.value_len));
        }
        let start_at = |i: usize| {
            if h.value_width == 2 {
                self.bytes.u16(self.at + h.value_starts + 2 * i) as usize
            } else {
                self.bytes.u32(self.at + h.value_starts + 4 * i) as usize
            }
        };
        let start = start_at(i);
        let end = if i + 1 == h.n {
            h.value_bytes
        } else {
            start_at(i + 1)
        };
        if start > end || end > h.value_bytes {
            return Err(Damage::new(
                "value start",
                (h.value_starts + i * h.value_width) as u64,
                end as u64,
                start as u64,
            ));
        }
        Ok((start, end - start))
    }

    /// The bytes that contain the block.
    #[inline(always)]
    pub fn bytes(&self) -> &'a B {
        self.bytes
    }

    /// The offset of the header in the bytes.
    #[inline(always)]
    pub fn at(&self) -> usize {
        self.at
    }

    /// The offset of the first value in the bytes.
    #[inline(always)]
    pub fn values(&self) -> usize {
        self.values
    }

    /// Prefetches the cache lines with which a search of this block begins.
    #[inline]
    pub fn prefetch(&self) {
        for line in 0..4 {
            self.bytes.prefetch(self.at + 64 * line);
        }
    }

    /// Prefetches the cache lines of sequence number, value start and prefix.
    #[inline]
    pub fn prefetch_result(&self, i: usize) {
        let h = self.header();
        self.bytes
            .prefetch(self.at + h.tails + i * h.tail_bytes / h.n);
        self.bytes.prefetch(self.at + h.seqs + i * h.seq_width);
        self.bytes.prefetch(self.at + h.prefix);
        if h.value_width == 0 {
            self.bytes.prefetch(self.values + i * h.value_len);
        } else {
            self.bytes
                .prefetch(self.at + h.value_starts + i * h.value_width);
        }
    }

    /// Searches the entries with the head `x`, of which `low` is the first. Returns the first entry
    /// at or after (suffix, trailer).
    fn search_equal_heads(
        &self,
        low: usize,
        x: u64,
        suffix: &[u8],
        trailer: u64,
    ) -> Result<usize, Damage> {
        let single = low + 1 == self.header().n || self.head(low + 1) != x;
        let (mut lo, mut hi) = (low, low + 1);
        if !single {
            hi = low + partition_point(self.header().n - low, |i| self.head(low + i) <= x);
        }
        while lo < hi {
            let mid = lo + (hi - lo) / 2;
            let order = match self.compare_after_head(mid, suffix)? {
                Ordering::Equal => trailer.cmp(&self.trailer(mid)?),
                unequal => unequal,
            };
            if order == Ordering::Less {
                lo = mid + 1;
            } else {
                hi = mid;
            }
        }
        Ok(lo)
    }

    /// The first entry at or after (`user_key`, `trailer`) in the order of entries, or `len()` if
    /// there is none.
    pub fn seek(&self, user_key: &[u8], trailer: u64) -> Result<usize, Damage> {
        let h = self.header();
        let common = h.prefix_len.min(user_key.len());
        match self
            .bytes
            .compare(self.at + h.prefix, common, &user_key[..common])
        {
            Ordering::Less => return Ok(h.n),
            Ordering::Greater => return Ok(0),
            Ordering::Equal if user_key.len() < h.prefix_len => return Ok(0),
            Ordering::Equal => {}
        }
        let suffix = &user_key[h.prefix_len..];
        let x = head(suffix, h.head_width);
        let low = self.lower_bound(x);
        if low == h.n || self.head(low) != x {
            return Ok(low);
        }
        self.search_equal_heads(low, x, suffix, trailer)
    }

    #[inline(always)]
    fn lower_bound(&self, x: u64) -> usize {
        let heads = self.at + HEADER_BYTES;
        if self.header().head_width == 4 {
            partition_point(self.header().n, |i| {
                (self.bytes.u32(heads + 4 * i) as u64) < x
            })
        } else {
            partition_point(self.header().n, |i| self.bytes.u64(heads + 8 * i) < x)
        }
    }

    /// The newest version of `user_key` whose trailer is at most `limit`, as its entry and trailer.
    #[inline]
    pub fn get(&self, user_key: &[u8], limit: u64) -> Result<Option<(usize, u64)>, Damage> {
        let Some(low) = self.locate(user_key) else {
            return Ok(None);
        };
        self.prefetch_result(low);
        self.get_located(low, user_key, limit)
    }

    /// The first part of [`View::get`]: the first entry with the key's head, if there is one. Its
    /// key may be another one.
    #[inline]
    pub fn locate(&self, user_key: &[u8]) -> Option<usize> {
        let suffix = user_key.get(self.header().prefix_len..)?;
        let x = head(suffix, self.header().head_width);
        let low = self.lower_bound(x);
        (low < self.header().n && self.head(low) == x).then_some(low)
    }

    /// Completes [`View::get`] after [`View::locate`] of the same key, which returned `low`.
    #[inline]
    pub fn get_located(
        &self,
        low: usize,
        user_key: &[u8],
        limit: u64,
    ) -> Result<Option<(usize, u64)>, Damage> {
        let h = self.header();
        if user_key.len() < h.prefix_len || low >= h.n {
            return Ok(None);
        }
        let (prefix, suffix) = user_key.split_at(h.prefix_len);
        let mut i = low;
        // The entry's head is the key's, so only the next head shows whether others share it.
        let x = head(suffix, h.head_width);
        if i + 1 < h.n && self.head(i + 1) == x {
            i = self.search_equal_heads(i, x, suffix, limit)?;
            if i == h.n || self.head(i) != x && !planted!(HeadNotAsked) {
                return Ok(None);
            }
        }
        if self.compare_after_head(i, suffix)? != Ordering::Equal
            || self.bytes.compare(self.at + h.prefix, h.prefix_len, prefix) != Ordering::Equal
        {
            return Ok(None);
        }
        let trailer = self.trailer(i)?;
        Ok((trailer <= limit).then_some((i, trailer)))
    }
}

impl<'a, H: Borrow<Header>> View<'a, [u8], H> {
    /// The value of entry `i`, without a copy.
    #[inline]
    pub fn value(&self, i: usize) -> Result<&'a [u8], Damage> {
        let (start, len) = self.value_range(i)?;
        let start = self.values + start;
        self.bytes
            .get(start..start + len)
            .ok_or_else(|| Damage::new("value", 0, (start + len) as u64, self.bytes.len() as u64))
    }
}
