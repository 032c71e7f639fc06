//! Lookups that read level 0 in vain make it move down before it has its full number of runs
//! (`seek-compaction`).

mod common;

use std::time::Duration;

use common::{Disk, key, simulate, small};
use siltstone::{IterOptions, Keyspace, Options, ScheduleOptions, Store};
use siltstone_storage::fault::{Fault, Rule};
use siltstone_storage::{OpKind, Runtime, StorageErrorKind};

/// Each run has every second key, and there are fewer runs than make level 0 due.
const PAIRS: u64 = 400;
const RUNS: u64 = 2;

fn value(round: u64) -> Vec<u8> {
    vec![round as u8; 400]
}

struct Place {
    disk: Disk,
    store: Store,
    keyspace: Keyspace,
}

impl Place {
    fn new(rt: &Runtime, change: impl FnOnce(&mut Options)) -> Place {
        // Blocks are read from the storage, and nothing says beforehand that a key is not there.
        let mut options = Options {
            map_tables: false,
            ..small()
        };
        options.bloom_bits_per_key = 0.into();
        options.l0_trigger_count = RUNS as u32 + 1;
        change(&mut options);
        let disk = Disk::new(rt);
        let store = disk.open_with(options);
        let keyspace = store.default_keyspace().unwrap();
        for round in 0..RUNS {
            for i in (0..PAIRS).step_by(2) {
                keyspace.put(&key(i), &value(round)).unwrap();
            }
            keyspace.flush().unwrap();
        }
        store.wait_until_idle().unwrap();
        let place = Place {
            disk,
            store,
            keyspace,
        };
        assert_eq!(place.runs(), RUNS);
        place
    }

    fn runs(&self) -> u64 {
        self.store.stats().keyspaces[0].levels[0].run_count
    }

    fn compactions(&self) -> u64 {
        self.store.stats().counter("seek_compaction_count")
    }

    fn get_absent(&self, rounds: u64) {
        for _ in 0..rounds {
            for i in (1..PAIRS).step_by(2) {
                assert_eq!(self.keyspace.get(&key(i)).unwrap(), None);
            }
        }
    }

    fn get_absent_until_idle(&self, rounds: u64) {
        self.get_absent(rounds);
        self.store.wait_until_idle().unwrap();
    }

    /// Everything is as it was, and level 0 has moved down.
    fn has_moved_down(&self) {
        assert_eq!((self.runs(), self.compactions()), (0, 1));
        for i in 0..PAIRS {
            let found = self.keyspace.get(&key(i)).unwrap();
            let expected = (i % 2 == 0).then(|| value(RUNS - 1));
            assert_eq!(found, expected, "key {i}");
        }
    }

    fn has_not_moved(&self) {
        assert_eq!((self.runs(), self.compactions()), (RUNS, 0));
    }
}

fn without_a_cache(options: &mut Options) {
    options.block_cache_bytes = 0;
}

#[test]
fn gets_in_vain_move_level_0_down() {
    simulate(|rt| {
        let place = Place::new(&rt, without_a_cache);
        place.get_absent_until_idle(3);
        place.has_moved_down();
    });
}

#[test]
fn gets_in_vain_move_a_deeper_table_down_too() {
    simulate(|rt| {
        let place = Place::new(&rt, |options| {
            without_a_cache(options);
            options.level_factor = 10;
        });
        // Level 2 has every second key, and a run of level 0 has a few of them. The first request
        // gives level 1 more than its target, so that level 2 gets some, and the second all.
        for _ in 0..2 {
            place.keyspace.compact_range(None, None).unwrap();
            place.store.wait_until_idle().unwrap();
        }
        let levels = || place.store.stats().keyspaces[0].levels.clone();
        let tables = |level: usize| levels()[level].table_count;
        assert_eq!((tables(0), tables(1), tables(2) > 0), (0, 0, true));
        place.store.test_hooks().pause_compaction(true);
        for i in (0..PAIRS).step_by(40) {
            place.keyspace.put(&key(i), &value(RUNS - 1)).unwrap();
        }
        place.keyspace.flush().unwrap();
        place.store.test_hooks().pause_compaction(false);
        assert_eq!((tables(0), place.compactions()), (1, 0));
        place.get_absent_until_idle(5);
        // The run has gone to level 1, and on to level 2.
        assert_eq!((tables(0), tables(1), tables(2) > 0), (0, 0, true));
        assert!(place.compactions() > 0);
    });
}

#[test]
fn many_gets_at_once_count_too() {
    simulate(|rt| {
        let place = Place::new(&rt, without_a_cache);
        let absent: Vec<_> = (1..PAIRS).step_by(2).map(key).collect();
        for _ in 0..20 {
            for keys in absent.chunks(10) {
                let values = place.keyspace.multi_get(keys).unwrap();
                assert!(values.iter().all(Option::is_none));
            }
        }
        place.store.wait_until_idle().unwrap();
        place.has_moved_down();
    });
}

#[test]
fn seeks_of_cursors_move_level_0_down() {
    simulate(|rt| {
        let place = Place::new(&rt, without_a_cache);
        for i in 0..PAIRS {
            let mut cursor = place.keyspace.cursor(IterOptions::default()).unwrap();
            match i % 2 {
                0 => cursor.seek(key(i)).unwrap(),
                _ => cursor.seek_for_prev(key(i)).unwrap(),
            }
            assert!(cursor.valid());
        }
        place.store.wait_until_idle().unwrap();
        place.has_moved_down();
    });
}

#[test]
fn reads_that_cost_little_move_nothing() {
    simulate(|rt| {
        // Blocks in the cache are read once.
        let cached = Place::new(&rt, |_| {});
        cached.get_absent_until_idle(20);
        cached.has_not_moved();
        // Filters say that the keys are not there. (One in some hundred times they do not.)
        let filtered = Place::new(&rt, |options| {
            without_a_cache(options);
            options.bloom_bits_per_key = 10.into();
        });
        filtered.get_absent_until_idle(1);
        filtered.has_not_moved();
        // Keys that are found were not sought in vain.
        let found = Place::new(&rt, without_a_cache);
        for i in (0..PAIRS).step_by(2) {
            assert!(found.keyspace.get(&key(i)).unwrap().is_some());
        }
        found.store.wait_until_idle().unwrap();
        found.has_not_moved();
    });
}

#[test]
fn the_switch_turns_it_off() {
    simulate(|rt| {
        let place = Place::new(&rt, |options| {
            without_a_cache(options);
            options.schedule = ScheduleOptions {
                seek_compaction: false,
                ..ScheduleOptions::default()
            };
        });
        place.get_absent_until_idle(5);
        place.has_not_moved();
    });
}

#[test]
fn a_compaction_without_space_stops_no_writer_and_is_not_tried_again_at_once() {
    simulate(|rt| {
        let place = Place::new(&rt, without_a_cache);
        let full = Fault::Fail(StorageErrorKind::NoSpace);
        let rule = Rule::on(OpKind::Create, full).named("00000001-");
        place.disk.faults.add(rule.for_good());
        place.get_absent(3);
        rt.sleep(Duration::from_secs(2));
        let failed = || place.store.stats().counter("job_failed_count");
        assert_eq!(failed(), 1);
        place.keyspace.put("another", "value").unwrap();
        rt.sleep(Duration::from_secs(60));
        assert_eq!(failed(), 1);
        place.has_not_moved();
        place.disk.faults.clear();
        place.get_absent_until_idle(3);
        place.has_moved_down();
    });
}

/// What other lookups read at the same time does not count: the same reads are due after as many
/// lookups with one reader as with many.
#[test]
fn readers_side_by_side_count_what_each_has_read() {
    simulate(|rt| {
        let place = Place::new(&rt, without_a_cache);
        let tasks: Vec<_> = (0..8)
            .map(|task: u64| {
                let keyspace = place.keyspace.clone();
                let reads = move || {
                    // All of them together read a sixth of what makes level 0 due.
                    for i in (1..PAIRS).skip(2 * task as usize).step_by(48) {
                        assert_eq!(keyspace.get(&key(i)).unwrap(), None);
                    }
                };
                rt.spawn("reader", reads).unwrap()
            })
            .collect();
        for task in tasks {
            task.join().unwrap();
        }
        place.store.wait_until_idle().unwrap();
        place.has_not_moved();
    });
}
