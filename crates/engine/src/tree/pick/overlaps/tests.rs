//! The index of overlaps against a sweep, after random edits.

use proptest::prelude::*;

use super::*;
use crate::formats::version::{AddTable, KeyspaceEdit};

/// The number of keys.
const KEYS: u8 = 40;

fn table(id: u64, first: u8, last: u8, file_bytes: u64) -> Arc<TableMeta> {
    Arc::new(TableMeta {
        id,
        location: 0,
        name: format!("{id}"),
        min_seq: 1,
        max_seq: 1,
        raw_bytes: file_bytes,
        file_bytes,
        entries: 1,
        deletes: 0,
        range_deletes: 0,
        digest: 0,
        points: Some(([first].into(), [last].into())),
        bounds: KeyRange::closed(&[first], &[last]),
        sequence_override: None,
        flags: 0,
    })
}

/// A change of one level.
#[derive(Clone, Debug)]
struct Change {
    level: u8,
    first: u8,
    len: u8,
    file_bytes: u64,
    /// The tables in the range are removed first. Otherwise the new table has no room if there are
    /// any.
    replaces: bool,
    /// No table is added.
    only_removes: bool,
}

fn change() -> impl Strategy<Value = Change> {
    let bytes = prop_oneof![4 => 0..9u64, 1 => Just(u64::MAX)];
    let of = |(level, first, len, file_bytes, replaces, only_removes)| Change {
        level,
        first,
        len,
        file_bytes,
        replaces,
        only_removes,
    };
    (
        1..=BOTTOM_LEVEL,
        0..KEYS,
        0..8u8,
        bytes,
        any::<bool>(),
        any::<bool>(),
    )
        .prop_map(of)
}

/// The version after a change. It is the same version if there is no room for a table.
fn applied(version: &KeyspaceVersion, change: &Change, id: u64) -> Option<KeyspaceVersion> {
    let last = (change.first + change.len).min(KEYS);
    let range = KeyRange::closed(&[change.first], &[last]);
    let mut edit = KeyspaceEdit::new(1);
    if change.replaces {
        let tables = version.level(change.level).overlapping_tables(&range);
        edit.remove.extend(tables.iter().map(|t| RemoveTable {
            level: change.level,
            id: t.id,
        }));
    }
    if !change.only_removes {
        edit.add.push(AddTable {
            level: change.level,
            run: None,
            table: table(id, change.first, last, change.file_bytes),
        });
    }
    version.apply(&edit).ok()
}

/// The order of a level's tables by a sweep.
fn swept(version: &KeyspaceVersion, level: u8) -> Vec<Order> {
    let of = |t: &Arc<TableMeta>| {
        let (count, bytes) = sums(version.level(level + 1).overlapping_tables(&t.bounds));
        (count, bytes, t.id)
    };
    let mut orders: Vec<Order> = version.level(level).tables().iter().map(of).collect();
    orders.sort_unstable();
    orders
}

fn compare(index: &Overlaps, version: &KeyspaceVersion) {
    for level in 1..BOTTOM_LEVEL {
        let indexed: Vec<Order> = index.in_order(level).map(|(order, _)| *order).collect();
        assert_eq!(indexed, swept(version, level), "level {level}");
        for (order, table) in index.in_order(level) {
            assert_eq!(order.2, table.id);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn the_index_is_a_sweep_after_every_edit(
        changes in prop::collection::vec((change(), any::<bool>()), 1..120),
    ) {
        let mut version = Arc::new(KeyspaceVersion::new(1));
        // One index sees every version, the other one leaves some out.
        let (mut each, mut some) = (Overlaps::default(), Overlaps::default());
        for (id, (change, is_seen)) in (1..).zip(&changes) {
            let Some(next) = applied(&version, change, id) else {
                continue;
            };
            version = Arc::new(next);
            each.follow(&version);
            compare(&each, &version);
            if *is_seen {
                some.follow(&version);
                compare(&some, &version);
            }
        }
        // A new index of the same version has the same order.
        let mut anew = Overlaps::default();
        anew.follow(&version);
        compare(&anew, &version);
        // Both picks find the same tables, whatever is due.
        for level1_bytes in [1, 20] {
            let options = PickOptions { level1_bytes, level_factor: 2, ..PickOptions::default() };
            let mut input = PickInput {
                version: &version,
                options: &options,
                jobs: &[],
                unsettled: &[],
                seek_bytes: &BTreeMap::new(),
                overlaps: None,
                last_picked: &NOTHING_PICKED,
                free_bytes: None,
                unread: &[],
                is_calm: false,
            };
            let swept = pick(&input);
            input.overlaps = Some(&anew);
            prop_assert_eq!(pick(&input), swept);
        }
    }
}

#[test]
fn an_index_of_another_version_is_not_used() {
    let version = Arc::new(KeyspaceVersion::new(1));
    let mut index = Overlaps::default();
    assert!(!index.is_of(&version));
    index.follow(&version);
    assert!(index.is_of(&version));
    let equal = Arc::new(KeyspaceVersion::clone(&version));
    assert!(!index.is_of(&equal), "it is another value");
}
