//! Approximate sizes and counts of key ranges, from indexes and memtables, without reading a block.
//!
//! Invariants: as long as nobody writes meanwhile, each number differs from the truth by at most
//! its stated error. Tables that lie entirely in the range are counted exactly. So at most two
//! tables of each run and level are uncertain: those that an end of the range cuts.
//!
//! Threading: the caller's task, on a pinned view.

use std::sync::Arc;

use siltstone_table::key::{HIGHEST_TRAILER, raw_bytes};
use siltstone_table::reader::TableReader;

use crate::api::keyspace::Keyspace;
use crate::formats::version::{End, KeyRange, TableMeta};
use crate::tree::iter::IterOptions;
use crate::tree::memtable::Memtable;
use crate::tree::view::Source;
use crate::types::error::Result;

/// The number of entries of a memtable that are counted one by one. Half of the others are assumed
/// to be in the range.
const COUNTED_ENTRIES: u64 = 65_536;

/// A number that was estimated: the exact number lies between `value - error` and `value + error`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Estimate {
    /// The estimate.
    pub value: u64,
    /// How far the exact number may lie from the estimate.
    pub error: u64,
}

impl Estimate {
    /// A number between `least` and `most`, probably near `likely`.
    fn between(least: u64, likely: u64, most: u64) -> Estimate {
        let value = likely.clamp(least, most.max(least));
        Estimate {
            value,
            error: (value - least).max(most.saturating_sub(value)),
        }
    }

    fn add(&mut self, other: Estimate) {
        self.value = self.value.saturating_add(other.value);
        self.error = self.error.saturating_add(other.error);
    }

    fn add_exact(&mut self, value: u64) {
        self.value = self.value.saturating_add(value);
    }
}

/// The approximate size of a key range in a keyspace.
///
/// Everything that is stored counts, including deletes, and overwritten versions that no compaction
/// has dropped yet. So a scan shows at most as many keys as the upper end of the entry count. Range
/// deletes are not counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ApproximateSize {
    /// Bytes in table files: blocks, with their share of the table's index and filter. Memtables
    /// are not included.
    ///
    /// The error is half of each block that an end of the range cuts, which are at most two blocks
    /// of each run of level 0 and each deeper level.
    pub file_bytes: Estimate,
    /// Raw bytes: user keys, values and 12 bytes an entry. Memtables are included.
    ///
    /// The error allows for blocks of very different sizes in the tables that an end of the range
    /// cuts. In practice the blocks of a table hold about the same (the setting `block_bytes`), and
    /// the estimate is wrong by a block or two.
    pub raw_bytes: Estimate,
    /// Entries. Memtables are included.
    ///
    /// The error is like that of the raw bytes.
    pub entry_count: Estimate,
}

impl ApproximateSize {
    fn add(&mut self, other: ApproximateSize) {
        self.file_bytes.add(other.file_bytes);
        self.raw_bytes.add(other.raw_bytes);
        self.entry_count.add(other.entry_count);
    }
}

/// The bounds as a range of keys; `None` if no key lies between them.
fn key_range(range: &IterOptions) -> Result<Option<KeyRange>> {
    range.check()?;
    let range = KeyRange {
        start: range.lower.as_deref().unwrap_or_default().into(),
        end: match &range.upper {
            Some(upper) => End::Excluded(upper[..].into()),
            None => End::Unbounded,
        },
    };
    Ok((!range.is_empty()).then_some(range))
}

/// `part / whole` of `total`.
fn share(total: u64, part: u64, whole: u64) -> u64 {
    let scaled = u128::from(total) * u128::from(part) / u128::from(whole.max(1));
    u64::try_from(scaled).unwrap_or(u64::MAX)
}

/// The size of the range in a table that an end of the range cuts.
fn of_cut_table(meta: &TableMeta, table: &TableReader, range: &KeyRange) -> ApproximateSize {
    let index = table.index();
    let blocks = index.len();
    let Some((first, last)) = &meta.points else {
        return ApproximateSize::default();
    };
    let cuts_start = range.start > *first;
    let cuts_end = !range.end.reaches(last);
    // The blocks before `from` lie before the range, and those after `to` behind it.
    let from = match cuts_start {
        true => index.find(&range.start, HIGHEST_TRAILER),
        false => 0,
    };
    let to = match range.end.key() {
        Some(end) if cuts_end => index.find(end, HIGHEST_TRAILER),
        _ => blocks,
    };
    let sure = if cuts_start { from + 1 } else { from }..to;
    let mut unsure: Vec<usize> = Vec::new();
    if cuts_start && from < blocks {
        unsure.push(from);
    }
    if cuts_end && to < blocks && unsure.last() != Some(&to) {
        unsure.push(to);
    }
    let bytes = |i: usize| index.place(i).stored_bytes();
    let sure_bytes: u64 = match (sure.clone().next(), sure.clone().next_back()) {
        (Some(first), Some(last)) => index.place(last).end - index.place(first).start,
        _ => 0,
    };
    let unsure_bytes: u64 = unsure.iter().map(|i| bytes(*i)).sum();
    let likely_bytes = sure_bytes + unsure_bytes / 2;
    let whole = table.footer().blocks_bytes;
    let scaled = |bytes| share(meta.file_bytes, bytes, whole);
    // Each block holds at least one entry, even those outside of the range.
    let sure_count = sure.len() as u64;
    let outside_count = blocks as u64 - sure_count - unsure.len() as u64;
    let of = |total: u64, least_a_block: u64| {
        Estimate::between(
            sure_count * least_a_block,
            share(total, likely_bytes, whole),
            total.saturating_sub(outside_count * least_a_block),
        )
    };
    ApproximateSize {
        file_bytes: Estimate::between(
            scaled(sure_bytes),
            scaled(likely_bytes),
            // Rounded up, so that the exact number is not above it.
            scaled(sure_bytes + unsure_bytes) + 1,
        ),
        raw_bytes: of(meta.raw_bytes, raw_bytes(0, 0)),
        entry_count: of(meta.entries, 1),
    }
}

/// The size of the range in a memtable.
fn of_memtable(mem: &Arc<Memtable>, range: &KeyRange) -> ApproximateSize {
    let mut size = ApproximateSize::default();
    let (entries, raw) = (mem.entry_count(), mem.raw_bytes());
    let whole = matches!((mem.first_key(), mem.last_key()), (Some(first), Some(last))
        if range.contains(first) && range.contains(last));
    // The raw bytes of a memtable include its range deletes.
    if whole && mem.range_delete_count() == 0 {
        size.entry_count.add_exact(entries);
        size.raw_bytes.add_exact(raw);
        return size;
    }
    let mut iter = mem.iter();
    iter.seek(&range.start, u64::MAX >> 8);
    let (mut count, mut bytes) = (0u64, 0u64);
    while iter.is_valid() && range.end.reaches(iter.key()) {
        if count == COUNTED_ENTRIES {
            let rest = entries.saturating_sub(count);
            let rest_raw = raw.saturating_sub(bytes);
            size.entry_count.add(Estimate::between(0, rest / 2, rest));
            size.raw_bytes
                .add(Estimate::between(0, rest_raw / 2, rest_raw));
            break;
        }
        count += 1;
        bytes += raw_bytes(iter.key().len(), iter.value_len());
        iter.next();
    }
    size.entry_count.add_exact(count);
    size.raw_bytes.add_exact(bytes);
    size
}

impl Keyspace {
    /// The approximate size of the keys within the bounds of `range`, each number with its error.
    ///
    /// This reads no blocks. It opens the tables that the ends of the range cut (at most two of
    /// each run and level). In each memtable that does not lie entirely in the range, it counts up
    /// to 65,536 entries, and assumes that half of the others are in the range.
    ///
    /// ```
    /// # let folder = tempfile::tempdir().unwrap();
    /// let store = siltstone::Store::open(folder.path(), siltstone::Options::default())?;
    /// let numbers = store.default_keyspace()?;
    /// for n in 0..1000u32 {
    ///     numbers.put(n.to_be_bytes(), "a value")?;
    /// }
    /// let range = 100u32.to_be_bytes()..200u32.to_be_bytes();
    /// let count = numbers.approximate_size(range)?.entry_count;
    /// assert!(count.value.abs_diff(100) <= count.error);
    /// # siltstone::Result::Ok(())
    /// ```
    ///
    /// # Errors
    /// `InvalidArgument` for a range that ends before it starts; `KeyspaceDropped`; `Corruption` or
    /// I/O when tables are opened.
    pub fn approximate_size(&self, range: impl Into<IterOptions>) -> Result<ApproximateSize> {
        self.check()?;
        let mut size = ApproximateSize::default();
        let Some(range) = key_range(&range.into())? else {
            return Ok(size);
        };
        let tree = &self.parts().tree;
        let (view, _) = crate::tree::read::pin(tree, self.inner(), None)?;
        for source in &view.sources {
            if let Source::Memtable(m) = source {
                size.add(of_memtable(&m.mem, &range));
            }
        }
        for (_, level) in view.level_views() {
            for i in level.level.overlapping(&range) {
                let handle = &level.handles[i];
                let meta = &handle.meta;
                match &meta.points {
                    Some((first, last)) if range.contains(first) && range.contains(last) => {
                        size.file_bytes.add_exact(meta.file_bytes);
                        size.raw_bytes.add_exact(meta.raw_bytes);
                        size.entry_count.add_exact(meta.entries);
                    }
                    Some((first, last)) if range.overlaps(&KeyRange::closed(first, last)) => {
                        let table = tree.tables().reader_owned(handle)?;
                        size.add(of_cut_table(meta, &table, &range));
                    }
                    // Only range deletes of the table reach into the range, and no entries.
                    _ => {}
                }
            }
        }
        Ok(size)
    }

    /// The approximate number of entries within the bounds of `range`:
    /// [`ApproximateSize::entry_count`] of [`Keyspace::approximate_size`].
    ///
    /// # Errors
    /// As [`Keyspace::approximate_size`].
    pub fn approximate_count(&self, range: impl Into<IterOptions>) -> Result<Estimate> {
        Ok(self.approximate_size(range)?.entry_count)
    }
}
