//! Which tables a seek opens, and which parts of a table are read: a seek does not open a table
//! that a range delete covers, a cursor does not read filters, and `contains_key` does not read
//! values.

mod common;

use common::history::{Change, Workload, World, simulate};
use common::{Disk, key, small};
use siltstone::{Cursor, ErrorKind, IterOptions, Keyspace, Options, Store};
use siltstone_storage::{OpKind, Runtime, Storage};

/// The number of keys, which are in some ten tables.
const COUNT: u64 = 5000;

fn value(i: u64) -> Vec<u8> {
    vec![i as u8; 100]
}

/// A store whose keys are in one level.
struct Place {
    disk: Disk,
    store: Store,
    keyspace: Keyspace,
}

impl Place {
    fn new() -> Place {
        Place::with(small())
    }

    fn with(options: Options) -> Place {
        let disk = Disk::new(&Runtime::threads());
        let store = disk.open_with(options.clone());
        let keyspace = store.default_keyspace().unwrap();
        for i in 0..COUNT {
            keyspace.put(&key(i), &value(i)).unwrap();
        }
        keyspace.compact_range(None, None).unwrap();
        store.wait_until_idle().unwrap();
        store.close().unwrap();
        Place::opened(disk, options)
    }

    fn opened(disk: Disk, options: Options) -> Place {
        let store = disk.open_with(options);
        store.test_hooks().pause_compaction(true);
        let keyspace = store.default_keyspace().unwrap();
        store.wait_until_idle().unwrap();
        let place = Place {
            disk,
            store,
            keyspace,
        };
        assert!(place.tables() >= 8, "{} tables", place.tables());
        place
    }

    /// Tables below level 0.
    fn tables(&self) -> u64 {
        let stats = self.store.stats();
        let levels = stats.keyspaces[0].levels.iter();
        levels.skip(1).map(|level| level.table_count).sum()
    }

    fn delete(&self, from: u64, to: u64) {
        self.keyspace.delete_range(&key(from), &key(to)).unwrap();
    }

    /// How many tables a seek of a new cursor opens if all of them are closed.
    fn opened_by(&self, options: IterOptions, seek: impl FnOnce(&mut Cursor)) -> u64 {
        let mut cursor = self.keyspace.cursor(options).unwrap();
        self.opened_by_this(&mut cursor, seek)
    }

    fn opened_by_this(&self, cursor: &mut Cursor, seek: impl FnOnce(&mut Cursor)) -> u64 {
        let opened = || self.store.stats().counter("table_open_count");
        self.store.test_hooks().close_tables();
        let before = opened();
        seek(cursor);
        opened() - before
    }
}

#[track_caller]
fn assert_position(cursor: &Cursor, wanted: Option<u64>) {
    let found = cursor.valid().then(|| cursor.key().to_vec());
    assert_eq!(found, wanted.map(key));
}

fn all() -> IterOptions {
    IterOptions::default()
}

#[test]
fn a_seek_opens_only_the_table_in_which_it_ends() {
    let middle = COUNT / 2;
    for flushed in [0, 1] {
        let place = Place::new();
        place.delete(1, COUNT - 1);
        if flushed == 1 {
            // Now the range delete is in a table of its own, which is opened as well.
            place.keyspace.flush().unwrap();
        }
        let opened = place.opened_by(all(), |cursor| {
            cursor.seek(key(middle)).unwrap();
            assert_position(cursor, Some(COUNT - 1));
        });
        assert_eq!(opened, 1 + flushed, "seek");
        let opened = place.opened_by(all(), |cursor| {
            cursor.seek_for_prev(key(middle)).unwrap();
            assert_position(cursor, Some(0));
        });
        assert_eq!(opened, 1 + flushed, "seek_for_prev");
        let opened = place.opened_by(IterOptions::range(key(middle)..), |cursor| {
            cursor.seek_to_first().unwrap();
            assert_position(cursor, Some(COUNT - 1));
        });
        assert_eq!(opened, 1 + flushed, "first");
        let opened = place.opened_by(IterOptions::range(..key(middle)), |cursor| {
            cursor.seek_to_last().unwrap();
            assert_position(cursor, Some(0));
        });
        assert_eq!(opened, 1 + flushed, "last");
        // From the first to the last and back.
        let opened = place.opened_by(all(), |cursor| {
            cursor.seek_to_first().unwrap();
            cursor.next().unwrap();
            assert_position(cursor, Some(COUNT - 1));
            cursor.prev().unwrap();
            assert_position(cursor, Some(0));
        });
        assert_eq!(opened, 2 + flushed, "there and back");
    }
}

#[test]
fn a_range_that_is_wholly_covered_opens_nothing() {
    let place = Place::new();
    // Two adjacent range deletes, neither of which covers everything.
    place.delete(1, COUNT / 2);
    place.delete(COUNT / 2, COUNT - 1);
    let nowhere = |way: &str, options: IterOptions, seek: fn(&mut Cursor)| {
        let opened = place.opened_by(options, |cursor| {
            seek(cursor);
            assert_position(cursor, None);
        });
        assert_eq!(opened, 0, "{way}");
    };
    let range = || IterOptions::range(key(1000)..key(4000));
    nowhere("first", range(), |c| c.seek_to_first().unwrap());
    nowhere("last", range(), |c| c.seek_to_last().unwrap());
    nowhere("seek", range(), |c| c.seek(key(2000)).unwrap());
    nowhere("back", range(), |c| c.seek_for_prev(key(2000)).unwrap());
    let prefix = || IterOptions::prefix("key002");
    nowhere("prefix", prefix(), |c| c.seek_to_first().unwrap());
    nowhere("prefix back", prefix(), |c| c.seek_to_last().unwrap());
    // All of the keyspace.
    place.delete(0, COUNT);
    nowhere("all", all(), |c| c.seek_to_first().unwrap());
    nowhere("all back", all(), |c| c.seek_to_last().unwrap());
}

#[test]
fn what_a_range_delete_does_not_hide_is_found() {
    let place = Place::new();
    let before = place.store.snapshot();
    place.delete(1, COUNT - 1);
    let news = [700, 701, 3300];
    for i in news {
        place.keyspace.put(&key(i), b"new").unwrap();
    }
    for flushed in [false, true] {
        if flushed {
            place.keyspace.flush().unwrap();
        }
        place.opened_by(all(), |cursor| {
            cursor.seek(key(300)).unwrap();
            for i in news {
                assert_position(cursor, Some(i));
                cursor.next().unwrap();
            }
            assert_position(cursor, Some(COUNT - 1));
            for i in news.into_iter().rev() {
                cursor.prev().unwrap();
                assert_position(cursor, Some(i));
            }
            cursor.prev().unwrap();
            assert_position(cursor, Some(0));
        });
        // This reader is older than the range delete.
        let mut old = place.keyspace.cursor_at(&before, all()).unwrap();
        place.opened_by_this(&mut old, |cursor| {
            cursor.seek(key(2000)).unwrap();
            assert_position(cursor, Some(2000));
        });
        place.opened_by_this(&mut old, |cursor| {
            cursor.seek_for_prev(key(3000)).unwrap();
            assert_position(cursor, Some(3000));
        });
    }
}

#[test]
fn a_table_that_is_covered_in_part_is_searched() {
    // The range deletes begin and end at many positions within the tables.
    let place = Place::new();
    for from in (0..COUNT - 1000).step_by(330) {
        let copy = Place::opened(place.disk.kill(), small());
        let to = from + 900;
        copy.delete(from, to);
        copy.opened_by(all(), |cursor| {
            cursor.seek(key(from + 100)).unwrap();
            assert_position(cursor, Some(to));
        });
        copy.opened_by(all(), |cursor| {
            cursor.seek_for_prev(key(to - 100)).unwrap();
            assert_position(cursor, from.checked_sub(1));
        });
        copy.opened_by(IterOptions::range(..key(to + 1)), |cursor| {
            cursor.seek_to_last().unwrap();
            assert_position(cursor, Some(to));
            cursor.prev().unwrap();
            assert_position(cursor, from.checked_sub(1));
        });
    }
}

const CHANGES: &[(u64, Change)] = &[
    (50, Change::PutRun),
    (5, Change::Delete),
    (20, Change::DeleteRange),
    (7, Change::Flush),
    (4, Change::Compact),
    (4, Change::Ingest),
    (6, Change::Snapshot),
    (4, Change::DropSnapshot),
];

#[test]
fn seeks_with_closed_tables_show_what_the_model_does() {
    simulate(30, |rt, seed| {
        let workload = Workload {
            keys: (0..600).map(key).collect(),
            options: |_| small(),
            gap_mins: &[2],
            changes: CHANGES,
            run_max: 150,
        };
        let mut world = World::new(&rt, seed, workload);
        for _ in 0..25 {
            for _ in 0..8 {
                world.change();
            }
            for _ in 0..5 {
                let bounds = world.bounds();
                let mut readers = world.old_readers();
                readers.push(world.reader(bounds));
                for reader in &mut readers {
                    if world.dice.below(3) > 0 {
                        world.store.test_hooks().close_tables();
                    }
                    world.walk(reader, 6);
                }
            }
        }
    });
}

/// Where the sections of a table begin.
fn footer_of(disk: &Disk, name: &str) -> siltstone_table::footer::Footer {
    let file = disk.memory.open(name).unwrap();
    let reader = siltstone_table::reader::TableReader::open(file, Default::default()).unwrap();
    *reader.footer()
}

fn reads(disk: &Disk) -> u64 {
    disk.faults.counts().of(OpKind::Read)
}

#[test]
fn cursors_read_no_filters() {
    let place = Place::new();
    for name in place.disk.names(".tbl") {
        let at = footer_of(&place.disk, &name).blocks_bytes as usize;
        place
            .disk
            .memory
            .damage(&name, |bytes| bytes[at] ^= 1)
            .unwrap();
    }
    let before = reads(&place.disk);
    let opened = place.opened_by(all(), |cursor| {
        cursor.seek(key(COUNT / 2)).unwrap();
        assert_position(cursor, Some(COUNT / 2));
    });
    let by_cursor = reads(&place.disk) - before;
    assert_eq!(place.keyspace.iter().unwrap().count() as u64, COUNT);
    // A lookup needs the filter, and its error names it.
    let lookups: [fn(&Keyspace) -> siltstone::Error; 4] = [
        |k| k.get(key(7)).unwrap_err(),
        |k| k.contains_key(key(7)).unwrap_err(),
        |k| k.multi_get(&[key(7)]).unwrap_err(),
        |k| k.get_pinned(key(7)).unwrap_err(),
    ];
    for look_up in lookups {
        for is_open in [false, true] {
            if !is_open {
                place.store.test_hooks().close_tables();
            } else {
                let mut cursor = place.keyspace.cursor(..).unwrap();
                cursor.seek(key(7)).unwrap();
            }
            let error = look_up(&place.keyspace);
            assert_eq!(error.kind(), ErrorKind::Corruption, "{error}");
            assert!(
                error.to_string().contains("checksum of the filter"),
                "{error}"
            );
        }
    }
    // Footer, properties and index of each table; there are no range deletes.
    assert_eq!(by_cursor, 3 * opened);
}

#[test]
fn lookups_behind_a_cursor_have_their_filter() {
    let place = Place::new();
    let hits = |keys: std::ops::Range<u64>| {
        let found = keys.filter(|i| place.keyspace.contains_key(key(*i)).unwrap());
        found.count() as u64
    };
    assert_eq!(place.keyspace.iter().unwrap().count() as u64, COUNT);
    let before = reads(&place.disk);
    assert_eq!(hits(0..COUNT), COUNT);
    assert_eq!(reads(&place.disk) - before, place.tables());
    let opened = place.store.stats().counter("table_open_count");
    assert!(opened <= place.tables(), "{opened} opened");
}

#[test]
fn whether_a_key_is_there_is_answered_without_its_value() {
    // Mapped tables; and blocks that are too large to be read for one value.
    let large = |map_tables| Options {
        map_tables,
        table_bytes: 4 << 20,
        memtable_bytes: 16 << 20,
        level1_bytes: 16 << 20,
        ..small()
    };
    for map_tables in [true, false] {
        let disk = Disk::new(&Runtime::threads());
        let store = disk.open_with(large(map_tables));
        let keyspace = store.default_keyspace().unwrap();
        for i in 0..4 {
            keyspace.put(&key(i), &vec![i as u8; 3 << 20]).unwrap();
        }
        assert!(keyspace.contains_key(key(1)).unwrap(), "in the memtable");
        keyspace.flush().unwrap();
        store.close().unwrap();
        for name in disk.names(".tbl") {
            // Values come first.
            disk.memory.damage(&name, |bytes| bytes[0] ^= 1).unwrap();
        }
        let store = disk.open_with(large(map_tables));
        let keyspace = store.default_keyspace().unwrap();
        for i in 0..6 {
            assert_eq!(keyspace.contains_key(key(i)).unwrap(), i < 4, "{i}");
        }
        let errors = (0..4).filter(|i| keyspace.get(key(*i)).is_err()).count();
        assert!(errors > 0, "the damage is in no value, map: {map_tables}");
        keyspace.delete(key(2)).unwrap();
        assert!(!keyspace.contains_key(key(2)).unwrap());
        keyspace.delete_range(key(0), key(2)).unwrap();
        keyspace.flush().unwrap();
        assert!(!keyspace.contains_key(key(1)).unwrap());
    }
}
