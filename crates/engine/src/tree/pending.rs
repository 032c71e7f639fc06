//! An estimate of what compactions still have to read in a keyspace.
//!
//! Threading: a pure function.

use std::sync::Arc;

use crate::formats::version::{KeyspaceVersion, TableMeta};
use crate::tree::pick::{PickOptions, file_bytes, targets};
use crate::types::limits::BOTTOM_LEVEL;

/// An estimate of the bytes that compactions will read until no level is due. (The estimate of
/// RocksDB, with two differences: the tables that level 0 overlaps are counted one by one, and what
/// can be moved unchanged does not count.)
pub fn pending_bytes(version: &KeyspaceVersion, options: &PickOptions) -> u64 {
    let targets = targets(version, options, &[]);
    let from_level0 = match version.runs().len() < options.l0_trigger_count {
        true => Coming::default(),
        false => level0_bytes(version, targets.base),
    };
    let mut pending = from_level0.read;
    let mut coming = from_level0;
    for level in targets.base..BOTTOM_LEVEL {
        let own = u128::from(version.level(level).file_bytes());
        let size = own + coming.merged + coming.moved;
        let over = size.saturating_sub(u128::from(targets.bytes[usize::from(level)]));
        let below = u128::from(version.level(level + 1).file_bytes());
        let came = std::mem::take(&mut coming);
        if over == 0 {
            continue;
        }
        if below == 0 {
            coming.moved = over;
            continue;
        }
        // What overlaps something below is merged with it, the others move.
        let merged = u128::from(overlapping_bytes(version, level)) + came.merged;
        coming.merged = over * merged.min(size) / size;
        coming.moved = over - coming.merged;
        pending += coming.merged + coming.merged * below / size;
    }
    u64::try_from(pending).unwrap_or(u64::MAX)
}

/// Bytes that come into a level, and the bytes that are read for that.
#[derive(Clone, Copy, Default)]
struct Coming {
    merged: u128,
    moved: u128,
    read: u128,
}

/// What the way down from level 0 reads and brings to the base level.
fn level0_bytes(version: &KeyspaceVersion, base: u8) -> Coming {
    let runs = version.runs().iter();
    let mut tables: Vec<&Arc<TableMeta>> = runs.flat_map(|run| run.tables.tables()).collect();
    tables.sort_unstable_by(|a, b| a.bounds.start.cmp(&b.bounds.start));
    let level = version.level(base);
    let mut all = Coming::default();
    // The tables of the base level before this one are counted.
    let mut counted = 0;
    let mut at = 0;
    while at < tables.len() {
        // The tables from `at` on that overlap each other, directly or not.
        let mut range = tables[at].bounds.clone();
        let mut end = at + 1;
        while end < tables.len() && range.end.reaches(&tables[end].bounds.start) {
            if tables[end].bounds.end > range.end {
                range.end = tables[end].bounds.end.clone();
            }
            end += 1;
        }
        let bytes = u128::from(file_bytes(tables[at..end].iter().copied()));
        let below = level.overlapping(&range);
        if end == at + 1 && below.is_empty() {
            all.moved += bytes;
        } else {
            let new = below.start.max(counted)..below.end.max(counted);
            counted = new.end;
            all.merged += bytes;
            all.read += bytes + u128::from(file_bytes(&level.tables()[new]));
        }
        at = end;
    }
    all
}

/// The bytes of the tables of a level that overlap a table of the next one.
fn overlapping_bytes(version: &KeyspaceVersion, level: u8) -> u64 {
    let below = version.level(level + 1).tables();
    let mut from = 0;
    let mut bytes = 0u64;
    for table in version.level(level).tables() {
        let before = |b: &&Arc<TableMeta>| !b.bounds.end.reaches(&table.bounds.start);
        from += below[from..].iter().take_while(before).count();
        let next = below.get(from);
        if next.is_some_and(|next| table.bounds.end.reaches(&next.bounds.start)) {
            bytes = bytes.saturating_add(table.file_bytes);
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::pick::tests::draw;

    /// In MiB. A table has 10 MiB, level 1 a target of 100 MiB, and level 0 is due with two runs.
    fn pending(text: &str) -> u64 {
        let drawing = draw(text);
        pending_bytes(&drawing.version, &drawing.options) >> 20
    }

    #[test]
    fn nothing_is_pending_below_the_trigger_and_within_the_targets() {
        assert_eq!(pending(""), 0);
        assert_eq!(pending("L0 (0,1]: 1[a..c]\nL1: 2[a..c] 3[d..f]"), 0);
    }

    #[test]
    fn level0_is_read_with_what_it_overlaps() {
        let text = "L0 (1,2]: 1[a..c]\nL0 (0,1]: 2[b..d]\nL1: 3[d..f] 4[g..i]";
        assert_eq!(pending(text), 30);
        let apart = "L0 (1,2]: 1[a..b]\nL0 (0,1]: 2[h..k]\nL1: 3[d..f] 4[g..i]";
        assert_eq!(pending(apart), 20, "1 will be moved, 2 is merged with 4");
    }

    #[test]
    fn a_level_above_its_target_is_read_with_its_part_of_the_next_one() {
        // Level 1 has 160 MiB, 60 above the target, and level 2 is twice as large.
        let text = "L1: 1[a..m]*100 2[n..z]*60\nL2: 3[a..m]*200 4[n..z]*120";
        assert_eq!(pending(text), 60 + 120);
        let apart = "L1: 1[a..c]*100 2[d..f]*60\nL2: 3[n..z]*320";
        assert_eq!(pending(apart), 0, "all of it will be moved");
        assert_eq!(pending("L1: 1[a..m]*100 2[n..z]*60"), 0, "nothing is below");
    }

    #[test]
    fn what_comes_down_counts_again_at_each_level_that_it_overfills() {
        // Level 0 brings 200 MiB to level 1, which has 100 of 100 MiB. Level 2 has 1,000 of 1,000.
        let text = "L0 (1,2]: 1[a..z]*100\nL0 (0,1]: 2[a..z]*100
            L1: 3[a..z]*100
            L2: 4[a..z]*1000";
        // 200 + 100 are read for level 1; 200 of the 300 with 1,000 / 300 times as much below.
        assert_eq!(pending(text), 300 + 200 + 666);
    }
}
