//! Several neighbouring entries of a block, decoded column by column.
//!
//! A scan needs all columns of each entry. Their widths are the same for the whole block, so it is
//! cheaper to decide on them once for some entries than once for each.
//!
//! Invariants: a window has [`WINDOW`] entries or none. It is filled only if all of them are sound,
//! so what is wrong with an entry is left to the code that reads single entries ([`View`]). Bytes
//! of tails are read when an entry is taken.
//!
//! Threading: one owner.

use std::borrow::Borrow;

use super::header::{FLAG_KINDS, FLAG_PADS, HEADER_BYTES, Header};
use super::search::{Entry, KEY_SLACK_BYTES, View};
use crate::coding::Bytes;
use crate::key::Kind;
use siltstone_storage::planted;

/// The number of entries of a window. A short scan would decode more of them in vain.
pub const WINDOW: usize = 8;

/// See the module.
#[derive(Clone, Debug)]
pub struct Window {
    /// The number of the first entry. It is `usize::MAX` while the window has no entries.
    first: usize,
    /// The number of bytes that all keys of the block begin with.
    prefix_len: usize,
    /// The length of a key without its tail.
    head_end: usize,
    /// The offset of the block's tails in its bytes.
    tails: usize,
    heads: [u64; WINDOW],
    trailers: [u64; WINDOW],
    tail_starts: [u32; WINDOW + 1],
    value_starts: [u32; WINDOW + 1],
}

impl Default for Window {
    fn default() -> Window {
        Window {
            first: usize::MAX,
            prefix_len: 0,
            head_end: 0,
            tails: 0,
            heads: [0; WINDOW],
            trailers: [0; WINDOW],
            tail_starts: [0; WINDOW + 1],
            value_starts: [0; WINDOW + 1],
        }
    }
}

impl Window {
    /// Forgets all entries.
    #[inline]
    pub fn clear(&mut self) {
        self.first = usize::MAX;
    }

    /// The position of entry `i` in the window, if it is there.
    #[inline(always)]
    pub fn position(&self, i: usize) -> Option<usize> {
        let at = i.wrapping_sub(self.first);
        // No block has `usize::MAX` entries, and an empty window gives `i + 1`.
        (at < WINDOW && self.first != usize::MAX).then_some(at)
    }

    /// The entry at this position. `bytes` must be those from which the window was filled, and
    /// `key` must begin with the block's prefix. The key is written as by [`View::key_over`].
    /// `None` if the bytes end before the key does.
    #[inline(always)]
    pub fn take<B: Bytes + ?Sized>(
        &self,
        bytes: &B,
        at: usize,
        key: &mut Vec<u8>,
    ) -> Option<Entry> {
        let tail_start = *self.tail_starts.get(at)? as usize;
        let tail_len = *self.tail_starts.get(at + 1)? as usize - tail_start;
        let key_len = self.head_end + tail_len;
        if key.len() < key_len + KEY_SLACK_BYTES {
            key.resize(key_len + KEY_SLACK_BYTES, 0);
        }
        let head = self.heads.get(at)?.to_be_bytes();
        key.get_mut(self.prefix_len..)?
            .first_chunk_mut::<8>()?
            .copy_from_slice(&head);
        if tail_len > 0 {
            let tail = self.tails + tail_start;
            let to = key.get_mut(self.head_end..)?;
            // Near the end of the bytes, fewer than eight may be left.
            let is_copied = tail_len <= 8 && bytes.copy_to(tail, to.first_chunk_mut::<8>()?);
            if !is_copied && !bytes.copy_to(tail, to.get_mut(..tail_len)?) {
                return None;
            }
        }
        let value_start = *self.value_starts.get(at)? as usize;
        Some(Entry {
            key_len,
            trailer: *self.trailers.get(at)?,
            value_start,
            value_len: *self.value_starts.get(at + 1)? as usize - value_start,
        })
    }
}

/// Reads integers of two or four bytes from `at` on. Returns false if the bytes end before.
#[inline(always)]
fn integers<B: Bytes + ?Sized>(bytes: &B, at: usize, width: usize, out: &mut [u32]) -> bool {
    if width == 2 {
        let mut raw = [0; 2 * WINDOW];
        let is_there = bytes.copy_to(at, &mut raw);
        for (x, raw) in out.iter_mut().zip(raw.as_chunks::<2>().0) {
            *x = u16::from_le_bytes(*raw).into();
        }
        return is_there;
    }
    let mut raw = [0; 4 * WINDOW];
    let is_there = bytes.copy_to(at, &mut raw);
    for (x, raw) in out.iter_mut().zip(raw.as_chunks::<4>().0) {
        *x = u32::from_le_bytes(*raw);
    }
    is_there
}

/// Whether the starts never descend, and the last one is at most `most`.
#[inline(always)]
fn is_ascending(starts: &[u32; WINDOW + 1], most: usize) -> bool {
    let is_any_above = (0..WINDOW).fold(false, |any, k| any | (starts[k] > starts[k + 1]));
    !is_any_above && starts[WINDOW] as usize <= most
}

impl<B: Bytes + ?Sized, H: Borrow<Header>> View<'_, B, H> {
    /// Fills the window with entry `i` and its neighbours, which come after it if the block has as
    /// many. Returns false if the block has too few entries, if keys end within their heads, or if
    /// something is wrong. The window is then empty.
    #[inline]
    pub fn fill_window(&self, i: usize, window: &mut Window) -> bool {
        window.clear();
        let filled = self.decode_window(i, window);
        if let Some(first) = filled {
            window.first = first;
        }
        filled.is_some()
    }

    /// Decodes the entries of [`View::fill_window`], and returns the number of the first one.
    #[inline(always)]
    fn decode_window(&self, i: usize, window: &mut Window) -> Option<usize> {
        let (h, bytes, at) = (self.header(), self.bytes(), self.at());
        let first = i.min(h.n.checked_sub(WINDOW)?);
        if i >= h.n || h.has(FLAG_PADS) {
            return None;
        }
        window.prefix_len = h.prefix_len;
        window.tails = at + h.tails;

        // Heads, as the eight bytes that are written to a key.
        if h.head_width == 4 {
            let mut raw = [0; 4 * WINDOW];
            if !bytes.copy_to(at + HEADER_BYTES + 4 * first, &mut raw) {
                return None;
            }
            let shift = if !planted!(HeadOfWrongWidth) { 32 } else { 0 };
            for (x, raw) in window.heads.iter_mut().zip(raw.as_chunks::<4>().0) {
                *x = u64::from(u32::from_le_bytes(*raw)) << shift;
            }
        } else {
            let mut raw = [0; 8 * WINDOW];
            if !bytes.copy_to(at + HEADER_BYTES + 8 * first, &mut raw) {
                return None;
            }
            for (x, raw) in window.heads.iter_mut().zip(raw.as_chunks::<8>().0) {
                *x = u64::from_le_bytes(*raw);
            }
        }

        // Tails.
        if h.tail_end_width == 0 {
            window.head_end = h.key_len - h.tail_len;
            for (k, start) in window.tail_starts.iter_mut().enumerate() {
                *start = ((first + k) * h.tail_len) as u32;
            }
        } else {
            window.head_end = h.prefix_len + h.head_width;
            let (ends, width) = (at + h.tail_ends, h.tail_end_width);
            window.tail_starts[0] = match first {
                0 => 0,
                _ => bytes.uint(ends + (first - 1) * width, width) as u32,
            };
            let out = &mut window.tail_starts[1..];
            let is_there = integers(bytes, ends + first * width, width, out);
            if !is_there || !is_ascending(&window.tail_starts, h.tail_bytes) {
                return None;
            }
        }

        // Trailers. Kinds above these two are rare.
        let is_frequent = |kind: u8| kind <= Kind::Put as u8;
        let mut kinds = [h.base as u8; WINDOW];
        if h.has(FLAG_KINDS) && !bytes.copy_to(at + h.kinds + first, &mut kinds) {
            return None;
        }
        if !kinds.iter().all(|kind| is_frequent(*kind)) {
            return None;
        }
        let base = h.base >> 8;
        if h.seq_width == 0 {
            for (trailer, kind) in window.trailers.iter_mut().zip(kinds) {
                *trailer = base << 8 | u64::from(kind);
            }
        } else {
            let (seqs, width) = (at + h.seqs + first * h.seq_width, h.seq_width);
            // The numbers have up to 7 bytes, and the last one is read with the bytes behind it.
            let mut raw = [0; 8 * WINDOW];
            let is_near_end = !bytes.copy_to(seqs, &mut raw);
            let mask = u64::MAX >> (64 - 8 * width.min(8));
            for (k, trailer) in window.trailers.iter_mut().enumerate() {
                let seq = match raw.get(k * width..).and_then(|raw| raw.first_chunk::<8>()) {
                    Some(raw) if !is_near_end => u64::from_le_bytes(*raw) & mask,
                    _ => bytes.uint(seqs + k * width, width),
                };
                *trailer = base.wrapping_add(seq) << 8 | u64::from(kinds[k]);
            }
        }

        // Values.
        if h.value_width == 0 {
            for (k, start) in window.value_starts.iter_mut().enumerate() {
                *start = ((first + k) * h.value_len) as u32;
            }
        } else {
            let width = h.value_width;
            let starts = at + h.value_starts + first * width;
            let (out, last) = window.value_starts.split_at_mut(WINDOW);
            let is_there = integers(bytes, starts, width, out);
            last[0] = match first + WINDOW == h.n {
                true => h.value_bytes as u32,
                false => bytes.uint(starts + WINDOW * width, width) as u32,
            };
            if !is_there || !is_ascending(&window.value_starts, h.value_bytes) {
                return None;
            }
        }
        Some(first)
    }

    /// Writes the prefix of all keys to the start of `key`. Returns false if the bytes end before
    /// it does.
    pub fn prefix_over(&self, key: &mut Vec<u8>) -> bool {
        let h = self.header();
        if key.len() < h.prefix_len {
            key.resize(h.prefix_len, 0);
        }
        let prefix = &mut key[..h.prefix_len];
        self.bytes().copy_to(self.at() + h.prefix, prefix)
    }
}
