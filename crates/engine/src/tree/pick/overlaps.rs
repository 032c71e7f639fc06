//! For each table of levels 1 to 5, the number and the bytes of the tables of the next level that
//! it overlaps, in the order in which tables should move down (priority 2).
//!
//! [`Overlaps`] describes one version. [`Overlaps::follow`] brings it to another version, from the
//! tables that were added and removed between the two: O(log n + overlaps) for each of these, and
//! one comparison of pointers for each table of a level that has changed. So a pick finds the
//! table with the fewest overlaps without a pass over two levels ([RFC
//! 10](../../../../../docs/rfc/0010-schedule.md), section 2).
//!
//! Invariants: the index has each table of levels 1 to 5 of its version, with exactly the tables of
//! the next level that overlap its bounds. The order is that of [`Order`], as in a sweep.
//!
//! Threading: a plain value. The schedule has one for each keyspace, under its lock.

use super::*;
use crate::formats::version::Level;

/// What orders the tables of a level: the number of tables below, their bytes, and the table's id.
pub(super) type Order = (usize, u128, u64);

/// The number of levels that have a next level.
const INDEXED: usize = BOTTOM_LEVEL as usize - 1;

/// See the module.
#[derive(Debug, Default)]
pub struct Overlaps {
    /// The version that the index describes. `None` if it describes a version without tables.
    version: Option<Arc<KeyspaceVersion>>,
    /// Levels 1 to 5.
    levels: [LevelOverlaps; INDEXED],
}

/// The index of one level.
#[derive(Debug, Default)]
struct LevelOverlaps {
    /// The number and the bytes of the tables below, by the id of the table.
    of: BTreeMap<u64, (usize, u128)>,
    order: BTreeMap<Order, Arc<TableMeta>>,
}

impl LevelOverlaps {
    fn add(&mut self, table: &Arc<TableMeta>, below: &[Arc<TableMeta>]) {
        let (count, bytes) = sums(below);
        self.of.insert(table.id, (count, bytes));
        self.order.insert((count, bytes, table.id), table.clone());
    }

    fn remove(&mut self, id: u64) {
        if let Some((count, bytes)) = self.of.remove(&id) {
            self.order.remove(&(count, bytes, id));
        }
    }

    /// Changes the sums of a table below which tables were added or removed.
    fn change(&mut self, id: u64, change: impl FnOnce(&mut (usize, u128))) {
        let Some(sums) = self.of.get_mut(&id) else {
            return;
        };
        let before = *sums;
        change(sums);
        let after = *sums;
        if let Some(table) = self.order.remove(&(before.0, before.1, id)) {
            self.order.insert((after.0, after.1, id), table);
        }
    }
}

/// The number and the bytes of tables.
pub(super) fn sums(tables: &[Arc<TableMeta>]) -> (usize, u128) {
    // A sum of so many 64-bit numbers does not overflow, so a removal is exact.
    let bytes = tables.iter().map(|t| u128::from(t.file_bytes)).sum();
    (tables.len(), bytes)
}

/// The tables that only the first level has, and those that only the second one has.
fn difference(old: &Level, new: &Level) -> (Vec<Arc<TableMeta>>, Vec<Arc<TableMeta>>) {
    let (old, new) = (old.tables(), new.tables());
    // An edit keeps the values of the tables that it does not change, and changes neighbours.
    let same = |(a, b): &(&Arc<TableMeta>, &Arc<TableMeta>)| Arc::ptr_eq(a, b);
    let before = old.iter().zip(new).take_while(same).count();
    let (old, new) = (&old[before..], &new[before..]);
    let after = old
        .iter()
        .rev()
        .zip(new.iter().rev())
        .take_while(same)
        .count();
    let (old, new) = (&old[..old.len() - after], &new[..new.len() - after]);
    let only_in = |tables: &[Arc<TableMeta>], other: &[Arc<TableMeta>]| {
        let others: BTreeSet<u64> = other.iter().map(|t| t.id).collect();
        let only = tables.iter().filter(|t| !others.contains(&t.id)).cloned();
        only.collect::<Vec<_>>()
    };
    (only_in(old, new), only_in(new, old))
}

impl Overlaps {
    /// Whether the index describes this version.
    pub fn is_of(&self, version: &KeyspaceVersion) -> bool {
        self.version
            .as_deref()
            .is_some_and(|own| std::ptr::eq(own, version))
    }

    /// Brings the index to another version of the same keyspace.
    pub fn follow(&mut self, version: &Arc<KeyspaceVersion>) {
        if self.is_of(version) {
            return;
        }
        let old = self.version.replace(version.clone());
        let empty = Arc::new(Level::default());
        // By level, 1 to 6.
        let changes: Vec<_> = (1..=BOTTOM_LEVEL)
            .map(|level| {
                let old = old.as_ref().map_or(&empty, |old| old.level(level));
                let new = version.level(level);
                match Arc::ptr_eq(old, new) {
                    true => Default::default(),
                    false => difference(old, new),
                }
            })
            .collect();
        for (i, index) in self.levels.iter_mut().enumerate() {
            let (gone, come) = &changes[i];
            let (gone_below, come_below) = &changes[i + 1];
            let level = i as u8 + 1;
            let (upper, lower) = (version.level(level), version.level(level + 1));
            gone.iter().for_each(|table| index.remove(table.id));
            // Tables that have come are not in the index yet, so they are not changed here.
            for below in gone_below {
                for table in upper.overlapping_tables(&below.bounds) {
                    index.change(table.id, |(count, bytes)| {
                        *count -= 1;
                        *bytes -= u128::from(below.file_bytes);
                    });
                }
            }
            for below in come_below {
                for table in upper.overlapping_tables(&below.bounds) {
                    index.change(table.id, |(count, bytes)| {
                        *count += 1;
                        *bytes += u128::from(below.file_bytes);
                    });
                }
            }
            for table in come {
                index.add(table, lower.overlapping_tables(&table.bounds));
            }
        }
    }

    /// The tables of a level, those with the fewest tables below first.
    pub(super) fn in_order(
        &self,
        level: u8,
    ) -> impl Iterator<Item = (&Order, &Arc<TableMeta>)> + use<'_> {
        let index = self.levels.get(usize::from(level).wrapping_sub(1));
        index.into_iter().flat_map(|index| &index.order)
    }
}

#[cfg(test)]
mod tests;
