//! Which tables a seek opens, and what of a table is read: a seek leaves out the tables that it
//! knows to be covered by a range delete, a cursor leaves out filters, and whether a key is there
//! is answered without its value.

mod common;

use std::collections::BTreeMap;

use common::{Dice, Disk, key, small};
use siltstone::{Cursor, ErrorKind, IterOptions, Keyspace, Options, Snapshot, Store};
use siltstone_storage::sim::{self, SimConfig};
use siltstone_storage::{OpKind, Runtime, Storage};

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

/// Keys of a store of some ten tables.
const COUNT: u64 = 5000;

fn value(i: u64) -> Vec<u8> {
    vec![i as u8; 100]
}

/// A store whose keys are in one level, and whose tables are all closed.
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
        store.core_for_tests().pause_compaction(true);
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

    /// How many tables a new cursor opens, starting with all of them closed.
    fn opened_by(&self, options: IterOptions, seek: impl FnOnce(&mut Cursor)) -> u64 {
        let mut cursor = self.keyspace.cursor(options).unwrap();
        self.opened_by_this(&mut cursor, seek)
    }

    fn opened_by_this(&self, cursor: &mut Cursor, seek: impl FnOnce(&mut Cursor)) -> u64 {
        let opened = || self.store.stats().counter("table_open_count");
        self.store.core_for_tests().close_tables();
        let before = opened();
        seek(cursor);
        opened() - before
    }
}

#[track_caller]
fn stands(cursor: &Cursor, wanted: Option<u64>) {
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
            stands(cursor, Some(COUNT - 1));
        });
        assert_eq!(opened, 1 + flushed, "seek");
        let opened = place.opened_by(all(), |cursor| {
            cursor.seek_for_prev(key(middle)).unwrap();
            stands(cursor, Some(0));
        });
        assert_eq!(opened, 1 + flushed, "seek_for_prev");
        let opened = place.opened_by(IterOptions::range(key(middle)..), |cursor| {
            cursor.seek_to_first().unwrap();
            stands(cursor, Some(COUNT - 1));
        });
        assert_eq!(opened, 1 + flushed, "first");
        let opened = place.opened_by(IterOptions::range(..key(middle)), |cursor| {
            cursor.seek_to_last().unwrap();
            stands(cursor, Some(0));
        });
        assert_eq!(opened, 1 + flushed, "last");
        // From the one to the other and back.
        let opened = place.opened_by(all(), |cursor| {
            cursor.seek_to_first().unwrap();
            cursor.next().unwrap();
            stands(cursor, Some(COUNT - 1));
            cursor.prev().unwrap();
            stands(cursor, Some(0));
        });
        assert_eq!(opened, 2 + flushed, "there and back");
    }
}

#[test]
fn a_range_that_is_wholly_covered_opens_nothing() {
    let place = Place::new();
    // Two range deletes that meet, and neither covers all.
    place.delete(1, COUNT / 2);
    place.delete(COUNT / 2, COUNT - 1);
    let nowhere = |way: &str, options: IterOptions, seek: fn(&mut Cursor)| {
        let opened = place.opened_by(options, |cursor| {
            seek(cursor);
            stands(cursor, None);
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
                stands(cursor, Some(i));
                cursor.next().unwrap();
            }
            stands(cursor, Some(COUNT - 1));
            for i in news.into_iter().rev() {
                cursor.prev().unwrap();
                stands(cursor, Some(i));
            }
            cursor.prev().unwrap();
            stands(cursor, Some(0));
        });
        // The range delete is too new for this reader.
        let mut old = place.keyspace.cursor_at(&before, all()).unwrap();
        place.opened_by_this(&mut old, |cursor| {
            cursor.seek(key(2000)).unwrap();
            stands(cursor, Some(2000));
        });
        place.opened_by_this(&mut old, |cursor| {
            cursor.seek_for_prev(key(3000)).unwrap();
            stands(cursor, Some(3000));
        });
    }
}

#[test]
fn a_table_that_is_covered_in_part_is_looked_into() {
    // In each table some keys, whichever it begins and ends with, lie under the range delete, which
    // begins or ends within it.
    let place = Place::new();
    for from in (0..COUNT - 1000).step_by(330) {
        let copy = Place::opened(place.disk.kill(), small());
        let to = from + 900;
        copy.delete(from, to);
        copy.opened_by(all(), |cursor| {
            cursor.seek(key(from + 100)).unwrap();
            stands(cursor, Some(to));
        });
        copy.opened_by(all(), |cursor| {
            cursor.seek_for_prev(key(to - 100)).unwrap();
            stands(cursor, from.checked_sub(1));
        });
        copy.opened_by(IterOptions::range(..key(to + 1)), |cursor| {
            cursor.seek_to_last().unwrap();
            stands(cursor, Some(to));
            cursor.prev().unwrap();
            stands(cursor, from.checked_sub(1));
        });
    }
}

struct World {
    disk: Disk,
    store: Store,
    keyspace: Keyspace,
    model: Model,
    snapshots: Vec<(Snapshot, Model)>,
    dice: Dice,
}

/// Keys of the model.
const KEYS: u64 = 600;

impl World {
    fn key(&mut self) -> Vec<u8> {
        key(self.dice.below(KEYS))
    }

    fn change(&mut self) {
        match self.dice.below(100) {
            0..50 => {
                let start = self.dice.below(KEYS);
                for i in start..start + self.dice.below(40) {
                    let value = vec![self.dice.below(256) as u8; 200];
                    self.keyspace.put(&key(i), &value).unwrap();
                    self.model.insert(key(i), value);
                }
            }
            50..55 => {
                let key = self.key();
                self.keyspace.delete(&key).unwrap();
                self.model.remove(&key);
            }
            55..75 => {
                let start = self.dice.below(KEYS);
                let width = [30, 150, KEYS][self.dice.below(3) as usize];
                let (start, end) = (key(start), key(start + 1 + self.dice.below(width)));
                self.keyspace.delete_range(&start, &end).unwrap();
                self.model.retain(|k, _| *k < start || *k >= end);
            }
            75..82 => self.keyspace.flush().unwrap(),
            82..86 => self.keyspace.compact_range(None, None).unwrap(),
            86..90 => {
                let pairs: Model = (0..1 + self.dice.below(6))
                    .map(|i| (self.key(), vec![b'i', i as u8]))
                    .collect();
                let borrowed: Vec<(&[u8], &[u8])> =
                    pairs.iter().map(|(k, v)| (&k[..], &v[..])).collect();
                let hooks = self.store.core_for_tests();
                common::ingest(&self.disk, &hooks, &self.keyspace, &borrowed);
                self.model.extend(pairs);
            }
            90..96 => {
                let snapshot = self.store.snapshot();
                self.snapshots.push((snapshot, self.model.clone()));
            }
            _ if self.snapshots.len() > 2 => {
                self.snapshots.swap_remove(0);
            }
            _ => {}
        }
    }

    /// One seek within some bounds, and a few steps from there.
    fn probe(&mut self) {
        if self.dice.below(3) > 0 {
            self.store.core_for_tests().close_tables();
        }
        let (a, b) = (self.key(), self.key());
        let (lower, upper) = match self.dice.below(4) {
            0 => (None, None),
            1 => (Some(a), None),
            2 => (None, Some(b)),
            _ => (Some(a.clone().min(b.clone())), Some(a.max(b))),
        };
        let options = IterOptions {
            lower: lower.clone(),
            upper: upper.clone(),
            ..all()
        };
        let which = self.dice.below(self.snapshots.len() as u64 + 1) as usize;
        let (mut cursor, model) = match self.snapshots.get(which) {
            Some((snapshot, model)) => {
                let cursor = self.keyspace.cursor_at(snapshot, options);
                (cursor.unwrap(), model.clone())
            }
            None => (self.keyspace.cursor(options).unwrap(), self.model.clone()),
        };
        let within = |k: &[u8]| {
            lower.as_deref().is_none_or(|l| k >= l) && upper.as_deref().is_none_or(|u| k < u)
        };
        let keys: Vec<_> = model.keys().filter(|k| within(k)).cloned().collect();
        let place = self.key();
        let (what, mut at) = match self.dice.below(4) {
            0 => {
                cursor.seek_to_first().unwrap();
                ("first", Some(0))
            }
            1 => {
                cursor.seek_to_last().unwrap();
                ("last", keys.len().checked_sub(1))
            }
            2 => {
                cursor.seek(&place).unwrap();
                ("seek", Some(keys.partition_point(|k| *k < place)))
            }
            _ => {
                cursor.seek_for_prev(&place).unwrap();
                let after = keys.partition_point(|k| *k <= place);
                ("back", after.checked_sub(1))
            }
        };
        for step in 0..6 {
            let wanted = at.and_then(|at| keys.get(at));
            let found = cursor.valid().then(|| (cursor.key(), cursor.value()));
            let wanted = wanted.map(|k| (&k[..], &model[k][..]));
            let number = cursor.number();
            assert_eq!(found, wanted, "{what} {place:?}, step {step}, at {number}");
            if wanted.is_none() {
                break;
            }
            at = match self.dice.below(2) {
                0 => {
                    cursor.next().unwrap();
                    at.map(|at| at + 1)
                }
                _ => {
                    cursor.prev().unwrap();
                    at.and_then(|at| at.checked_sub(1))
                }
            };
        }
    }
}

#[test]
fn seeks_with_closed_tables_show_what_the_model_does() {
    for seed in 0..30 {
        let config = SimConfig {
            stack_bytes: 1 << 20,
            max_steps: 8_000_000,
            ..SimConfig::new(seed)
        };
        let outcome = sim::run(config, move |rt| {
            let dice = Dice::new(seed);
            let disk = Disk::new(&rt);
            let store = disk.open_with(small());
            store.core_for_tests().set_gap_min(2);
            let mut world = World {
                keyspace: store.default_keyspace().unwrap(),
                disk,
                store,
                model: Model::new(),
                snapshots: Vec::new(),
                dice,
            };
            for _ in 0..25 {
                for _ in 0..8 {
                    world.change();
                }
                for _ in 0..20 {
                    world.probe();
                }
            }
        });
        if let Err(failure) = outcome.result {
            panic!("seed {seed}: {failure}");
        }
    }
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
        stands(cursor, Some(COUNT / 2));
    });
    let by_cursor = reads(&place.disk) - before;
    assert_eq!(place.keyspace.iter().unwrap().count() as u64, COUNT);
    // A lookup needs the filter, and says what is wrong with it.
    let lookups: [fn(&Keyspace) -> siltstone::Error; 4] = [
        |k| k.get(key(7)).unwrap_err(),
        |k| k.contains_key(key(7)).unwrap_err(),
        |k| k.multi_get(&[key(7)]).unwrap_err(),
        |k| k.get_pinned(key(7)).unwrap_err(),
    ];
    for look_up in lookups {
        for is_open in [false, true] {
            if !is_open {
                place.store.core_for_tests().close_tables();
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
