//! The index of a table: it says which block a key is in and where that block is in the file.
//!
//! For each block it holds a separator, an internal key that is at or after the block's last entry
//! and before the next block's first entry. Between two blocks it is the first user key of the
//! right block, up to and including its first byte that differs from the left block's last key,
//! with the highest trailer. Between versions of one user key it is the left entry's internal key.
//! The separator of the last block is its last entry's internal key. Nearly all separators have the
//! highest trailer, so trailers are stored only for the others.
//!
//! A search has no unpredictable branches: eight bytes of each separator, after the prefix that all
//! separators share, are in an array of integers. Only separators with equal integers are compared
//! bytewise.
//!
//! Invariants (checked when a stored index is opened): separators ascend strictly. Blocks follow
//! each other without gaps, and each contains its header.
//!
//! Threading: immutable once built, and shared.

use std::cmp::Ordering;

use siltstone_storage::{HugeSlice, prefetch_line};

use crate::block::{CHECKSUM_BYTES, HEADER_BYTES};
use crate::coding::{Cursor, head, partition_point};
use crate::error::{Damage, Result, TableError};
use crate::key::{HIGHEST_TRAILER, common_prefix, compare_internal};
use crate::limits::{MAX_KEY_BYTES, MAX_TABLE_BYTES};

/// Bytes before the first column of a stored index.
pub const INDEX_HEADER_BYTES: usize = 16;

/// The location of a block in its file, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The offset of its first byte, which is the first value.
    pub start: u64,
    /// The offset of its header.
    pub anchor: u64,
    /// The offset of its end, after the checksum.
    pub end: u64,
}

impl Place {
    /// Stored length in bytes.
    pub fn stored_bytes(&self) -> u64 {
        self.end - self.start
    }
}

/// A search first looks for the group of this many blocks, in an array that has one head of each
/// group and is small enough to stay in a near cache. Then it prefetches the heads and the places
/// of the group together, so that it waits for memory once.
const GROUP: usize = 16;

/// A search of an [`Index`] whose last cache lines were prefetched. See [`Index::narrow`].
#[derive(Clone, Copy, Debug)]
pub struct Narrowed {
    /// The result if `size` is 0. Otherwise the result is in `base..=base + size`.
    base: usize,
    size: usize,
    /// The head to find.
    x: u64,
}

/// Builds an index while a table is written.
#[derive(Clone, Debug, Default)]
pub struct IndexBuilder {
    places: Vec<(u64, u64)>,
    separators: Vec<u8>,
    separator_ends: Vec<u32>,
    trailers: Vec<(u32, u64)>,
}

impl IndexBuilder {
    /// Memory that it uses, in bytes.
    pub fn memory_bytes(&self) -> usize {
        16 * self.places.capacity()
            + self.separators.capacity()
            + 4 * self.separator_ends.capacity()
            + 16 * self.trailers.capacity()
    }

    /// An index without blocks.
    pub fn new() -> IndexBuilder {
        IndexBuilder::default()
    }

    /// The number of blocks.
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Whether there are no blocks.
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Adds the next block: the offset of its header, its end, and its separator.
    ///
    /// # Errors
    /// If the table has too many blocks, or if its separators have 4 GiB or more.
    pub fn push(&mut self, anchor: u64, end: u64, separator: &[u8], trailer: u64) -> Result<()> {
        let bytes = self.separators.len() as u64 + separator.len() as u64;
        if bytes > u32::MAX as u64
            || self.places.len() >= u32::MAX as usize
            || end > MAX_TABLE_BYTES
        {
            let (what, limit, found) = if end > MAX_TABLE_BYTES {
                ("size of a table in bytes", MAX_TABLE_BYTES, end)
            } else {
                (
                    "size of a table's index keys in bytes",
                    u32::MAX as u64,
                    bytes,
                )
            };
            return Err(TableError::Limit { what, limit, found });
        }
        if trailer != HIGHEST_TRAILER {
            self.trailers.push((self.places.len() as u32, trailer));
        }
        self.places.push((anchor, end));
        self.separators.extend_from_slice(separator);
        self.separator_ends.push(self.separators.len() as u32);
        Ok(())
    }

    fn separator(&self, i: usize) -> &[u8] {
        let start = if i == 0 {
            0
        } else {
            self.separator_ends[i - 1] as usize
        };
        &self.separators[start..self.separator_ends[i] as usize]
    }

    /// The separator of the last block: user key and trailer. `None` if there are no blocks.
    pub(crate) fn last_separator(&self) -> Option<(&[u8], u64)> {
        let last = self.len().checked_sub(1)?;
        let trailer = match self.trailers.last() {
            Some((block, trailer)) if *block as usize == last => *trailer,
            _ => HIGHEST_TRAILER,
        };
        Some((self.separator(last), trailer))
    }

    /// Appends the stored index, without its checksum.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let n = self.len();
        let prefix = if n == 0 { &[][..] } else { self.separator(0) };
        let prefix = &prefix[..if n == 0 {
            0
        } else {
            common_prefix(prefix, self.separator(n - 1))
        }];
        let c = prefix.len();
        let wide = self.places.last().is_some_and(|p| p.1 > u32::MAX as u64);
        out.extend_from_slice(&(n as u32).to_le_bytes());
        out.extend_from_slice(&(c as u16).to_le_bytes());
        out.extend_from_slice(&[if wide { 8 } else { 4 }, 0]);
        out.extend_from_slice(&((self.separators.len() - n * c) as u32).to_le_bytes());
        out.extend_from_slice(&(self.trailers.len() as u32).to_le_bytes());
        for i in 0..n {
            out.extend_from_slice(&head(&self.separator(i)[c..], 8).to_le_bytes());
        }
        let mut offset = |x: u64| {
            if wide {
                out.extend_from_slice(&x.to_le_bytes());
            } else {
                out.extend_from_slice(&(x as u32).to_le_bytes());
            }
        };
        self.places.iter().for_each(|p| offset(p.0));
        self.places.iter().for_each(|p| offset(p.1));
        for (i, end) in self.separator_ends.iter().enumerate() {
            out.extend_from_slice(&(end - ((i + 1) * c) as u32).to_le_bytes());
        }
        self.trailers
            .iter()
            .for_each(|t| out.extend_from_slice(&t.0.to_le_bytes()));
        self.trailers
            .iter()
            .for_each(|t| out.extend_from_slice(&t.1.to_le_bytes()));
        for i in 0..n {
            out.extend_from_slice(&self.separator(i)[c..]);
        }
        out.extend_from_slice(prefix);
    }
}

/// An index in memory.
#[derive(Clone, Debug)]
pub struct Index {
    prefix: Box<[u8]>,
    heads: HugeSlice<u64>,
    /// The last head of each group that is followed by another one.
    group_ends: HugeSlice<u64>,
    /// The header and the end of each block. A block starts where the one before it ends.
    places: HugeSlice<(u64, u64)>,
    separators: HugeSlice<u8>,
    separator_ends: HugeSlice<u32>,
    /// The numbers of blocks whose separator has another trailer than the highest, ascending, with
    /// that trailer.
    trailers: Box<[(u32, u64)]>,
}

impl Index {
    /// Opens and checks a stored index (without its checksum) of a table whose blocks have
    /// `blocks_bytes` bytes.
    pub fn decode(bytes: &[u8], blocks_bytes: u64) -> std::result::Result<Index, Damage> {
        let mut c = Cursor::new(bytes);
        let n = c.u32("index block count")? as usize;
        let prefix_len = c.u16("index prefix length")? as usize;
        let width = c.u16("index offset width")? as usize;
        let separator_bytes = c.u32("index separator bytes")? as usize;
        let m = c.u32("index trailer count")? as usize;
        if width != 4 && width != 8 {
            return Err(Damage::new("index offset width", 6, 4, width as u64));
        }
        // All sizes are bounded by the section's length, because `Cursor` returns only existing
        // bytes.
        let heads = c.u64s("index heads", n)?;
        let mut offsets = |what| {
            if width == 8 {
                c.u64s(what, n)
            } else {
                Ok(c.u32s(what, n)?.into_iter().map(u64::from).collect())
            }
        };
        let anchors = offsets("index anchors")?;
        let ends = offsets("index ends")?;
        let separator_ends = c.u32s("index separator ends", n)?;
        let numbers = c.u32s("index trailer numbers", m)?;
        let trailer_values = c.u64s("index trailers", m)?;
        let separators_at = c.position();
        let separators = c.take("index separators", separator_bytes)?;
        let prefix = c.take("index prefix", prefix_len)?;
        c.finish("index length")?;

        let mut start = 0;
        for (i, (anchor, end)) in anchors.iter().zip(&ends).enumerate() {
            let least = (HEADER_BYTES + CHECKSUM_BYTES) as u64;
            if *anchor < start || *end < anchor.saturating_add(least) {
                let at = INDEX_HEADER_BYTES + 8 * n + i * width;
                return Err(Damage::new("index anchor", at as u64, start, *anchor));
            }
            start = *end;
        }
        if start != blocks_bytes {
            let at = INDEX_HEADER_BYTES + 8 * n + 2 * n * width;
            return Err(Damage::new(
                "index end of the last block",
                at as u64,
                blocks_bytes,
                start,
            ));
        }
        if separator_ends.windows(2).any(|w| w[0] > w[1])
            || separator_ends.last().map_or(0, |e| *e as usize) != separator_bytes
        {
            let found = separator_ends.last().map_or(0, |e| *e as u64);
            return Err(Damage::new(
                "index separator ends",
                separators_at as u64,
                separator_bytes as u64,
                found,
            ));
        }
        if numbers.windows(2).any(|w| w[0] >= w[1])
            || numbers.last().is_some_and(|l| *l as usize >= n)
        {
            let found = numbers.last().map_or(0, |e| *e as u64);
            return Err(Damage::new(
                "index trailer numbers",
                separators_at as u64,
                n as u64,
                found,
            ));
        }
        let index = Index {
            prefix: prefix.into(),
            group_ends: HugeSlice::from_fn(n.saturating_sub(1) / GROUP, |i| {
                heads[GROUP * i + GROUP - 1]
            }),
            heads: heads.as_slice().into(),
            places: HugeSlice::from_fn(n, |i| (anchors[i], ends[i])),
            separators: separators.into(),
            separator_ends: separator_ends.as_slice().into(),
            trailers: numbers.into_iter().zip(trailer_values).collect(),
        };
        for i in 0..n {
            let suffix = index.suffix(i);
            let at = separators_at as u64 + index.separator_ends[i] as u64;
            if suffix.len() + prefix_len > MAX_KEY_BYTES {
                return Err(Damage::new(
                    "index separator length",
                    at,
                    MAX_KEY_BYTES as u64,
                    suffix.len() as u64,
                ));
            }
            if index.heads[i] != head(suffix, 8) {
                return Err(Damage::new(
                    "index head",
                    (INDEX_HEADER_BYTES + 8 * i) as u64,
                    head(suffix, 8),
                    index.heads[i],
                ));
            }
            if i > 0
                && compare_internal(
                    index.suffix(i - 1),
                    index.trailer(i - 1),
                    suffix,
                    index.trailer(i),
                ) != Ordering::Less
            {
                return Err(Damage::new(
                    "order of index separators",
                    at,
                    i as u64,
                    i as u64 - 1,
                ));
            }
        }
        Ok(index)
    }

    /// The number of blocks.
    #[inline]
    pub fn len(&self) -> usize {
        self.heads.len()
    }

    /// Whether the table has no blocks.
    pub fn is_empty(&self) -> bool {
        self.heads.is_empty()
    }

    #[inline]
    fn suffix(&self, i: usize) -> &[u8] {
        let start = if i == 0 {
            0
        } else {
            self.separator_ends[i - 1] as usize
        };
        &self.separators[start..self.separator_ends[i] as usize]
    }

    fn trailer(&self, i: usize) -> u64 {
        match self.trailers.binary_search_by_key(&(i as u32), |t| t.0) {
            Ok(at) => self.trailers[at].1,
            Err(_) => HIGHEST_TRAILER,
        }
    }

    /// The separator of block `i`: user key and trailer.
    pub fn separator(&self, i: usize) -> (Vec<u8>, u64) {
        ([&self.prefix, self.suffix(i)].concat(), self.trailer(i))
    }

    /// The location of block `i`.
    #[inline]
    pub fn place(&self, i: usize) -> Place {
        let (anchor, end) = self.places[i];
        Place {
            start: if i == 0 { 0 } else { self.places[i - 1].1 },
            anchor,
            end,
        }
    }

    /// The only block that can hold the first entry at or after (`user_key`, `trailer`). If that
    /// block ends before such an entry, the entry is the first one of the next block. `len()` if
    /// the table ends before it.
    #[inline]
    pub fn find(&self, user_key: &[u8], trailer: u64) -> usize {
        self.find_narrowed(self.narrow(user_key), user_key, trailer)
    }

    /// The first part of [`Index::find`], which finds the group of blocks. It prefetches all other
    /// lines that the search will read, for which a plain search would wait one after the other. A
    /// search of several indexes narrows all of them before it continues with any.
    #[inline]
    pub fn narrow(&self, user_key: &[u8]) -> Narrowed {
        let n = self.len();
        let c = self.prefix.len();
        let known = |base| Narrowed {
            base,
            size: 0,
            x: 0,
        };
        if c > 0 {
            let common = c.min(user_key.len());
            match self.prefix[..common].cmp(&user_key[..common]) {
                Ordering::Less => return known(n),
                Ordering::Greater => return known(0),
                Ordering::Equal if user_key.len() < c => return known(0),
                Ordering::Equal => {}
            }
        }
        let x = head(&user_key[c..], 8);
        let ends = &self.group_ends;
        let base = GROUP * partition_point(ends.len(), |i| ends[i] < x);
        let size = GROUP.min(n - base);
        for line in (0..size).step_by(8) {
            prefetch_line(&self.heads[base + line]);
        }
        for line in (0..size).step_by(4) {
            prefetch_line(&self.places[base + line]);
        }
        Narrowed { base, size, x }
    }

    /// Completes [`Index::find`] after [`Index::narrow`] of the same key.
    #[inline]
    pub fn find_narrowed(&self, narrowed: Narrowed, user_key: &[u8], trailer: u64) -> usize {
        let Narrowed { base, size, x } = narrowed;
        let n = self.len();
        if size == 0 {
            return base;
        }
        let low = base + partition_point(size, |i| self.heads[base + i] < x);
        if low == n || self.heads[low] != x {
            return low;
        }
        let suffix = &user_key[self.prefix.len()..];
        let high = low + partition_point(n - low, |i| self.heads[low + i] <= x);
        let (mut lo, mut hi) = (low, high);
        while lo < hi {
            let mid = lo + (hi - lo) / 2;
            let order = match self.suffix(mid).cmp(suffix) {
                Ordering::Equal => trailer.cmp(&self.trailer(mid)),
                unequal => unequal,
            };
            if order == Ordering::Less {
                lo = mid + 1;
            } else {
                hi = mid;
            }
        }
        lo
    }

    /// Prefetches the first cache line that [`Index::find`] reads.
    #[inline]
    pub fn prefetch(&self) {
        if let Some(middle) = self.group_ends.get(self.group_ends.len() / 2) {
            prefetch_line(middle);
        }
    }

    /// Prefetches what [`Index::place`] reads.
    #[inline]
    pub fn prefetch_place(&self, i: usize) {
        if let Some(place) = self.places.get(i) {
            prefetch_line(place);
        }
    }

    /// Heap memory in bytes.
    pub fn memory_bytes(&self) -> usize {
        self.prefix.len()
            + self.heads.len() * (8 + 16 + 4)
            + self.group_ends.len() * 8
            + self.separators.len()
            + self.trailers.len() * 16
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn build(separators: &[(Vec<u8>, u64)], wide: bool) -> (Vec<u8>, u64) {
        let mut b = IndexBuilder::new();
        let mut end = if wide { 5 << 30 } else { 0 };
        for (key, trailer) in separators {
            b.push(end + 10, end + 100, key, *trailer).unwrap();
            end += 100;
        }
        let mut out = Vec::new();
        b.encode(&mut out);
        (out, end)
    }

    fn internal_key() -> impl Strategy<Value = (Vec<u8>, u64)> {
        let byte = prop::sample::select(vec![0u8, 1, 0x80, 0xff]);
        let key = prop_oneof![
            prop::collection::vec(byte.clone(), 0..4),
            prop::collection::vec(byte, 8..20)
        ];
        (key, prop_oneof![Just(HIGHEST_TRAILER), 0u64..5])
    }

    proptest! {
        #[test]
        fn a_search_finds_what_a_linear_search_finds(
            separators in prop::collection::vec(internal_key(), 1..60),
            probes in prop::collection::vec(internal_key(), 0..60),
            prefix in prop::collection::vec(any::<u8>(), 0..3),
            wide in any::<bool>(),
        ) {
            let longer = |k: &(Vec<u8>, u64)| ([prefix.as_slice(), &k.0].concat(), k.1);
            let mut separators: Vec<_> = separators.iter().map(longer).collect();
            separators.sort_by(|a, b| compare_internal(&a.0, a.1, &b.0, b.1));
            separators.dedup();
            let (bytes, end) = build(&separators, wide);
            let index = Index::decode(&bytes, end).unwrap();
            for (i, s) in separators.iter().enumerate() {
                prop_assert_eq!(&index.separator(i), s);
            }
            let inside = probes.iter().map(longer);
            let all = inside.chain(probes.iter().cloned()).chain(separators.iter().cloned());
            for (key, trailer) in all {
                let want = separators
                    .iter()
                    .position(|s| compare_internal(&s.0, s.1, &key, trailer).is_ge());
                prop_assert_eq!(index.find(&key, trailer), want.unwrap_or(separators.len()));
            }
        }

        /// Indexes of more blocks than one narrowed search covers, for all ways of halving. Some
        /// separators share heads.
        #[test]
        fn finds_in_large_indexes(n in 1usize..700, same in 1u32..4, step in 1u32..3) {
            let separators: Vec<_> = (0..n as u32)
                .map(|i| {
                    let head = u64::from(2 * (i / same * step)).to_be_bytes();
                    ([&head[..], &[(i % same) as u8]].concat(), HIGHEST_TRAILER)
                })
                .collect();
            let (bytes, end) = build(&separators, false);
            let index = Index::decode(&bytes, end).unwrap();
            let around = |s: &(Vec<u8>, u64)| {
                let above = [&s.0[..], &[0]].concat();
                let mut next_head = s.0.clone();
                next_head[7] |= 1;
                [s.0.clone(), above, next_head, s.0[..8].to_vec()]
            };
            for key in separators.iter().flat_map(around).chain([vec![], vec![0xff; 9]]) {
                let want = separators.partition_point(|s| {
                    compare_internal(&s.0, s.1, &key, HIGHEST_TRAILER).is_lt()
                });
                prop_assert_eq!(index.find(&key, HIGHEST_TRAILER), want);
            }
        }

        #[test]
        fn damaged_indexes_never_panic(
            separators in prop::collection::vec(internal_key(), 0..10),
            flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        ) {
            let mut separators = separators;
            separators.sort_by(|a, b| compare_internal(&a.0, a.1, &b.0, b.1));
            separators.dedup();
            let (mut bytes, end) = build(&separators, false);
            for (at, byte) in flips {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
            if let Ok(index) = Index::decode(&bytes, end) {
                for (key, trailer) in separators {
                    index.find(&key, trailer);
                }
            }
            let _ = Index::decode(&bytes[..bytes.len() / 2], end);
        }
    }
}
