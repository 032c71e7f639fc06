//! Reading and writing fixed-width integers: [`Bytes`], from which blocks are searched, and
//! [`Cursor`], which decodes a section from a slice.
//!
//! Everything is little-endian, except that a key's head is an integer that orders as its bytes do.
//!
//! Invariants: every access checks bounds. Bytes of a map may turn to zeros between two accesses
//! (if its page failed). So each field is read once, and `failed()` is called after the last
//! access, before anything is trusted.
//!
//! Threading: pure functions on shared bytes.

use std::cmp::Ordering;

use siltstone_storage::{Map, MapView, prefetch_line};

use crate::error::Damage;

/// Bytes to read from: a heap buffer or a map of a file. Search code is generic over this trait, so
/// it is compiled for each.
pub trait Bytes {
    /// Length in bytes.
    fn len(&self) -> usize;

    /// Whether there are no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies `buf.len()` bytes from `offset`; false if they are out of bounds.
    fn copy_to(&self, offset: usize, buf: &mut [u8]) -> bool;

    /// Prefetches the cache line at `offset`. Never fails.
    fn prefetch(&self, offset: usize);

    /// The byte at `offset`, or 0 if it is out of bounds.
    #[inline(always)]
    fn u8(&self, offset: usize) -> u8 {
        let mut b = [0; 1];
        self.copy_to(offset, &mut b);
        b[0]
    }

    /// The integer at `offset`, or 0 if it is out of bounds. Callers have checked the bounds of its
    /// column.
    #[inline(always)]
    fn u16(&self, offset: usize) -> u16 {
        let mut b = [0; 2];
        self.copy_to(offset, &mut b);
        u16::from_le_bytes(b)
    }

    /// The integer at `offset`, or 0 if it is out of bounds.
    #[inline(always)]
    fn u32(&self, offset: usize) -> u32 {
        let mut b = [0; 4];
        self.copy_to(offset, &mut b);
        u32::from_le_bytes(b)
    }

    /// The integer at `offset`, or 0 if it is out of bounds.
    #[inline(always)]
    fn u64(&self, offset: usize) -> u64 {
        let mut b = [0; 8];
        self.copy_to(offset, &mut b);
        u64::from_le_bytes(b)
    }

    /// The integer of `width` (0 to 8) bytes at `offset`, or 0 if it is out of bounds.
    #[inline(always)]
    fn uint(&self, offset: usize, width: usize) -> u64 {
        if width == 0 {
            return 0;
        }
        let mut b = [0; 8];
        if self.copy_to(offset, &mut b) {
            return u64::from_le_bytes(b) & (u64::MAX >> (64 - 8 * width.min(8)));
        }
        let mut short = [0; 8];
        self.copy_to(offset, &mut short[..width.min(8)]);
        u64::from_le_bytes(short)
    }

    /// Compares the `len` bytes at `offset` with `other`, bytewise. A prefix of the other comes
    /// first.
    #[inline]
    fn compare(&self, offset: usize, len: usize, other: &[u8]) -> Ordering {
        let n = len.min(other.len());
        let mut i = 0;
        while i + 8 <= n {
            let mut a = [0; 8];
            self.copy_to(offset + i, &mut a);
            let (a, b) = (u64::from_be_bytes(a), head_at(other, i));
            if a != b {
                return a.cmp(&b);
            }
            i += 8;
        }
        if i < n {
            let rest = n - i;
            let mut a = [0; 8];
            if n >= 8 {
                // The last eight bytes. Some of them are compared twice.
                self.copy_to(offset + n - 8, &mut a);
                let (a, b) = (u64::from_be_bytes(a), head_at(other, n - 8));
                if a != b {
                    return a.cmp(&b);
                }
            } else {
                self.copy_to(offset + i, &mut a[..rest]);
                let mut b = [0; 8];
                b[..rest].copy_from_slice(&other[i..n]);
                if a != b {
                    return a.cmp(&b);
                }
            }
        }
        len.cmp(&other.len())
    }

    /// The crc32c of a range, continuing from `crc`; `None` if it is out of bounds.
    fn crc32c(&self, crc: u32, offset: usize, len: usize) -> Option<u32> {
        let mut crc = crc;
        let mut at = offset;
        let end = offset.checked_add(len).filter(|end| *end <= self.len())?;
        let mut buf = [0; 4096];
        while at < end {
            let part = &mut buf[..(end - at).min(4096)];
            if !self.copy_to(at, part) {
                return None;
            }
            crc = crc32c::crc32c_append(crc, part);
            at += part.len();
        }
        Some(crc)
    }
}

/// Eight bytes of `bytes` at `at` as an integer that orders as the bytes do.
#[inline(always)]
fn head_at(bytes: &[u8], at: usize) -> u64 {
    match bytes.get(at..at + 8) {
        Some(b) => u64::from_be_bytes(b.try_into().unwrap_or_default()),
        None => 0,
    }
}

impl Bytes for [u8] {
    #[inline(always)]
    fn len(&self) -> usize {
        <[u8]>::len(self)
    }

    #[inline(always)]
    fn copy_to(&self, offset: usize, buf: &mut [u8]) -> bool {
        match offset
            .checked_add(buf.len())
            .and_then(|end| self.get(offset..end))
        {
            Some(from) => {
                buf.copy_from_slice(from);
                true
            }
            None => false,
        }
    }

    #[inline(always)]
    fn prefetch(&self, offset: usize) {
        if offset < self.len() {
            prefetch_line(&self[offset]);
        }
    }

    fn crc32c(&self, crc: u32, offset: usize, len: usize) -> Option<u32> {
        let end = offset.checked_add(len)?;
        Some(crc32c::crc32c_append(crc, self.get(offset..end)?))
    }
}

impl Bytes for Map {
    #[inline(always)]
    fn len(&self) -> usize {
        Map::len(self)
    }

    #[inline(always)]
    fn copy_to(&self, offset: usize, buf: &mut [u8]) -> bool {
        Map::copy_to(self, offset, buf)
    }

    #[inline(always)]
    fn prefetch(&self, offset: usize) {
        Map::prefetch(self, offset)
    }
}

impl Bytes for MapView<'_> {
    #[inline(always)]
    fn len(&self) -> usize {
        MapView::len(*self)
    }

    #[inline(always)]
    fn copy_to(&self, offset: usize, buf: &mut [u8]) -> bool {
        MapView::copy_to(*self, offset, buf)
    }

    #[inline(always)]
    fn prefetch(&self, offset: usize) {
        MapView::prefetch(*self, offset)
    }
}

/// The first `width` (4 or 8) bytes of `suffix`, padded with zeros, as an integer that orders as
/// the bytes do.
#[inline(always)]
pub fn head(suffix: &[u8], width: usize) -> u64 {
    let x = match suffix.first_chunk::<8>() {
        Some(b) => u64::from_be_bytes(*b),
        None => {
            let mut b = [0; 8];
            b[..suffix.len()].copy_from_slice(suffix);
            u64::from_be_bytes(b)
        }
    };
    if width == 4 { x >> 32 } else { x }
}

/// The number of elements of `0..n` for which `pred` is true. It must be true for a first part and
/// false for the rest. There are no branches that depend on the data, because these would be
/// mispredicted half the time.
#[inline(always)]
pub fn partition_point(n: usize, mut pred: impl FnMut(usize) -> bool) -> usize {
    if n == 0 {
        return 0;
    }
    let mut base = 0;
    let mut size = n;
    while size > 1 {
        let half = size / 2;
        base = std::hint::select_unpredictable(pred(base + half), base + half, base);
        size -= half;
    }
    base + pred(base) as usize
}

/// Decodes a section from front to back. Every read names its field, for errors.
#[derive(Clone, Debug)]
pub struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    /// A cursor at the start of `bytes`.
    pub fn new(bytes: &'a [u8]) -> Cursor<'a> {
        Cursor { bytes, at: 0 }
    }

    /// The number of bytes that were read.
    pub fn position(&self) -> usize {
        self.at
    }

    /// The number of bytes that are left.
    pub fn remaining(&self) -> usize {
        self.bytes.len() - self.at
    }

    /// The next `len` bytes.
    pub fn take(&mut self, what: &'static str, len: usize) -> Result<&'a [u8], Damage> {
        if len > self.remaining() {
            return Err(Damage::new(
                what,
                self.at as u64,
                len as u64,
                self.remaining() as u64,
            ));
        }
        let part = &self.bytes[self.at..self.at + len];
        self.at += len;
        Ok(part)
    }

    /// The next u16.
    pub fn u16(&mut self, what: &'static str) -> Result<u16, Damage> {
        Ok(Bytes::u16(self.take(what, 2)?, 0))
    }

    /// The next u32.
    pub fn u32(&mut self, what: &'static str) -> Result<u32, Damage> {
        Ok(Bytes::u32(self.take(what, 4)?, 0))
    }

    /// The next u64.
    pub fn u64(&mut self, what: &'static str) -> Result<u64, Damage> {
        Ok(Bytes::u64(self.take(what, 8)?, 0))
    }

    /// The next `n` u32.
    pub fn u32s(&mut self, what: &'static str, n: usize) -> Result<Vec<u32>, Damage> {
        let bytes = self.take(what, n.saturating_mul(4))?;
        Ok(bytes.chunks_exact(4).map(|b| Bytes::u32(b, 0)).collect())
    }

    /// The next `n` u64.
    pub fn u64s(&mut self, what: &'static str, n: usize) -> Result<Vec<u64>, Damage> {
        let bytes = self.take(what, n.saturating_mul(8))?;
        Ok(bytes.chunks_exact(8).map(|b| Bytes::u64(b, 0)).collect())
    }

    /// Fails if bytes are left.
    pub fn finish(&self, what: &'static str) -> Result<(), Damage> {
        if self.remaining() == 0 {
            Ok(())
        } else {
            Err(Damage::new(
                what,
                self.at as u64,
                self.at as u64,
                self.bytes.len() as u64,
            ))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compare_is_the_order_of_slices() {
        let a: Vec<u8> = (0..64).collect();
        for len in 0..30 {
            for other_len in 0..30 {
                for flip in 0..=other_len {
                    let mut other: Vec<u8> = (3..3 + other_len as u8).collect();
                    if let Some(b) = other.get_mut(flip) {
                        *b ^= 0x81;
                    }
                    assert_eq!(
                        a.as_slice().compare(3, len, &other),
                        a[3..3 + len].cmp(&other[..])
                    );
                }
            }
        }
    }

    #[test]
    fn a_uint_reads_only_its_width() {
        let a = [1u8, 2, 3, 4, 5, 6, 7, 8, 9];
        for width in 0..=8 {
            for at in 0..=9 - width {
                let want = (0..width)
                    .map(|i| (a[at + i] as u64) << (8 * i))
                    .sum::<u64>();
                assert_eq!(a.as_slice().uint(at, width), want);
            }
        }
    }

    #[test]
    fn partition_points() {
        for n in 0..70 {
            for k in 0..=n {
                assert_eq!(partition_point(n, |i| i < k), k);
            }
        }
    }

    #[test]
    fn cursors_stop_at_the_end() {
        let mut c = Cursor::new(&[1, 0, 2]);
        assert_eq!(c.u16("x").unwrap(), 1);
        assert_eq!(c.u32("y").unwrap_err(), Damage::new("y", 2, 4, 1));
        assert!(c.finish("end").is_err());
    }
}
