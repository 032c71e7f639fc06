//! Stories about memtables that leave their values in the log (RFC 13, section 11).
//! `docs/stories.md` describes them.

use std::collections::BTreeMap;
use std::time::Duration;

use siltstone::{ErrorKind, IterOptions, Keyspace, StallPolicy};
use siltstone_storage::fault::{Fault, Rule};
use siltstone_storage::{OpKind, Runtime, Storage, StorageErrorKind};

use super::*;

pub const ALL: &[Story] = &[
    (
        "values_in_the_log_are_read_where_they_are",
        12,
        values_in_the_log_are_read_where_they_are,
    ),
    (
        "a_cursor_keeps_the_log_segments_that_it_reads",
        6,
        a_cursor_keeps_the_log_segments_that_it_reads,
    ),
    (
        "a_crash_in_a_burst_loses_nothing",
        12,
        a_crash_in_a_burst_loses_nothing,
    ),
    (
        "a_flush_that_was_asked_for_is_not_deferred",
        4,
        a_flush_that_was_asked_for_is_not_deferred,
    ),
    (
        "damage_under_a_value_in_the_log_is_named",
        4,
        damage_under_a_value_in_the_log_is_named,
    ),
    (
        "a_log_that_cannot_be_read_back_keeps_no_values",
        4,
        a_log_that_cannot_be_read_back_keeps_no_values,
    ),
];

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

/// Options with which memtables of 64 KiB leave their values in the log.
fn burst_options() -> Options {
    Options {
        stall_policy: StallPolicy::Redirect,
        memtable_bytes: 64 << 10,
        sealed_memtables_max: 4,
        redirect_log_bytes_max: 8 << 30,
        ..small()
    }
}

/// A store whose flushes take two seconds each, and its default keyspace.
fn slow_store(rt: &Runtime) -> (Disk, Store, Keyspace) {
    let disk = Disk::new(rt);
    let store = disk.open_with(burst_options());
    let ks = store.default_keyspace().unwrap();
    let slow = Rule::on(OpKind::Sync, Fault::Delay(Duration::from_secs(2)));
    disk.faults.add(slow.ending(".tbl").for_good());
    (disk, store, ks)
}

fn value(i: u64) -> Vec<u8> {
    let bytes = 100 + (i as usize * 37) % 3000;
    (0..bytes).map(|at| (at as u64 * 7 + i) as u8).collect()
}

/// Writes so much so fast that flushes are behind. Some keys are written again, and some deleted.
fn write_burst(ks: &Keyspace, model: &mut Model, rounds: u64, seed: u64) {
    for round in 0..rounds {
        let i = (round * 7 + seed) % 97;
        match (round + seed) % 11 {
            0 => {
                ks.delete(key(i)).unwrap();
                model.remove(&key(i));
            }
            _ => {
                let value = value(round);
                ks.put(key(i), &value).unwrap();
                model.insert(key(i), value);
            }
        }
    }
}

fn log_backed(store: &Store) -> u64 {
    let stats = store.stats();
    let counts = stats.keyspaces.iter().map(|k| k.log_backed_memtable_count);
    counts.sum()
}

/// Waits until memtables have left their values in the log.
fn wait_for_log_backed(rt: &Runtime, store: &Store) {
    for _ in 0..200 {
        if log_backed(store) > 0 {
            return;
        }
        rt.sleep(Duration::from_millis(5));
    }
    panic!("no memtable left its values in the log");
}

/// A store whose flushes take two seconds each, after so many writes of a burst that memtables have
/// left their values in the log; and the model of its keyspace.
fn in_a_burst(rt: &Runtime, rounds: u64, seed: u64) -> (Disk, Store, Keyspace, Model) {
    let (disk, store, ks) = slow_store(rt);
    let mut model = Model::new();
    write_burst(&ks, &mut model, rounds, seed);
    wait_for_log_backed(rt, &store);
    (disk, store, ks, model)
}

fn all_of(ks: &Keyspace) -> Model {
    ks.iter().unwrap().map(|pair| pair.unwrap()).collect()
}

/// Every kind of read gives what the model has.
fn check_reads(ks: &Keyspace, model: &Model) {
    let keys: Vec<Vec<u8>> = (0..97).map(key).collect();
    let found = ks.multi_get(&keys).unwrap();
    for (key, found) in keys.iter().zip(found) {
        let expected = model.get(key);
        assert_eq!(ks.get(key).unwrap().as_ref(), expected, "{key:?}");
        assert_eq!(ks.contains_key(key).unwrap(), expected.is_some());
        let pinned = ks.get_pinned(key).unwrap();
        assert_eq!(pinned.map(|value| value.to_vec()).as_ref(), expected);
        assert_eq!(found.as_ref(), expected);
    }
    assert_eq!(&all_of(ks), model);
    let mut cursor = ks.cursor(IterOptions::default()).unwrap();
    let mut backward = Model::new();
    cursor.seek_to_last().unwrap();
    while cursor.valid() {
        backward.insert(cursor.key().to_vec(), cursor.value().to_vec());
        cursor.prev().unwrap();
    }
    assert_eq!(&backward, model);
}

/// Reads of all kinds, of the present and of a snapshot, while values are in the log, in a
/// checkpoint made then, and after the flushes.
fn values_in_the_log_are_read_where_they_are(rt: Runtime, seed: u64) {
    let (disk, store, ks) = slow_store(&rt);
    let mut model = Model::new();
    write_burst(&ks, &mut model, 150, seed);
    let (snapshot, before) = (store.snapshot(), model.clone());
    write_burst(&ks, &mut model, 120, seed + 5);
    wait_for_log_backed(&rt, &store);
    check_reads(&ks, &model);
    let target = Disk::new(&rt);
    let folder: Arc<dyn Storage> = Arc::new(target.faults.clone());
    store.checkpoint_to(folder).unwrap();
    let copied = target.open();
    assert_eq!(all_of(&copied.default_keyspace().unwrap()), model);
    let old = |key: &Vec<u8>| ks.get_at(&snapshot, key).unwrap();
    for key in (0..97).map(key) {
        assert_eq!(old(&key).as_ref(), before.get(&key), "{key:?}");
    }
    disk.faults.clear();
    store.flush().unwrap();
    assert_eq!(log_backed(&store), 0);
    check_reads(&ks, &model);
    store.wait_until_idle().unwrap();
    check_reads(&ks, &model);
    store.close().unwrap();
    let reopened = disk.open();
    check_reads(&reopened.default_keyspace().unwrap(), &model);
}

/// A cursor that was made during the burst reads its values after they were flushed and the log
/// start has passed them, and while new segments are written. When it is gone, the segments are.
fn a_cursor_keeps_the_log_segments_that_it_reads(rt: Runtime, seed: u64) {
    let (disk, store, ks, model) = in_a_burst(&rt, 250, seed);
    let mut cursor = ks.cursor(IterOptions::default()).unwrap();
    cursor.seek_to_first().unwrap();
    let segments = disk.names(".log");
    disk.faults.clear();
    store.flush().unwrap();
    store.test_hooks().delete_obsolete();
    // The next segments would be recycled ones.
    let mut later = model.clone();
    write_burst(&ks, &mut later, 300, seed + 1);
    store.flush().unwrap();
    store.test_hooks().delete_obsolete();
    let mut found = Model::new();
    while cursor.valid() {
        found.insert(cursor.key().to_vec(), cursor.value().to_vec());
        cursor.next().unwrap();
    }
    assert_eq!(found, model);
    drop(cursor);
    // A task may still hold what it has just flushed.
    rt.sleep(Duration::from_secs(2));
    store.test_hooks().delete_obsolete();
    let now = disk.names(".log");
    let left: Vec<_> = segments.iter().filter(|name| now.contains(name)).collect();
    assert!(left.len() <= 4, "{left:?} of {segments:?} are still there");
    check_reads(&ks, &later);
}

/// The process is killed, or power is lost, while values are in the log and flushes are deferred.
fn a_crash_in_a_burst_loses_nothing(rt: Runtime, seed: u64) {
    let (disk, store, ks, mut model) = in_a_burst(&rt, 120, seed);
    rt.sleep(Duration::from_millis(seed * 300));
    write_burst(&ks, &mut model, 40, seed + 3);
    store.sync_log().unwrap();
    let after = match seed % 2 {
        0 => disk.kill(),
        _ => disk.lose_power(),
    };
    let reopened = after.open_with(burst_options());
    check_reads(&reopened.default_keyspace().unwrap(), &model);
}

/// A caller of `flush` waits for the flushes alone, although the burst goes on.
fn a_flush_that_was_asked_for_is_not_deferred(rt: Runtime, seed: u64) {
    let (disk, store, ks, model) = in_a_burst(&rt, 150, seed);
    disk.faults.clear();
    let (clock, writes) = (rt.clone(), ks.clone());
    let writer = rt.spawn("writer", move || {
        for i in 0..200u64 {
            writes.put(key(200 + i), value(i)).unwrap();
            clock.sleep(Duration::from_millis(20));
        }
    });
    let began = rt.now();
    ks.flush().unwrap();
    let took = rt.now().since(began);
    assert!(took < Duration::from_secs(3), "a flush took {took:?}");
    writer.unwrap().join().unwrap();
    for (key, value) in &model {
        assert_eq!(ks.get(key).unwrap().as_ref(), Some(value));
    }
    // When the burst is over, everything is flushed without a call.
    for _ in 0..40 {
        if log_backed(&store) == 0 {
            return;
        }
        rt.sleep(Duration::from_millis(250));
    }
    panic!("memtables are still log-backed ten seconds after the burst");
}

/// A byte of a segment is read with a flipped bit while values lie there. The read of that value
/// fails and names the segment; the others are read.
fn damage_under_a_value_in_the_log_is_named(rt: Runtime, seed: u64) {
    let (disk, store, ks) = slow_store(&rt);
    // A value that occurs once, so it is found in the segment.
    let marked = |i: u64| [&b"marked value number "[..], &i.to_be_bytes(), &[9; 2000]].concat();
    for i in 0..150 {
        ks.put(key(i), marked(i)).unwrap();
    }
    wait_for_log_backed(&rt, &store);
    let mut is_named = false;
    for i in 0..150 {
        let wanted = marked(i);
        for name in disk.names(".log") {
            let file = disk.memory.open(&name).unwrap();
            let mut bytes = vec![0; file.len() as usize];
            file.read_at(0, &mut bytes).unwrap();
            let at = bytes.windows(wanted.len()).position(|w| w == &wanted[..]);
            let Some(at) = at else { continue };
            let offset = at as u64 + 100 + seed;
            let flip = Rule::on_reads(Fault::FlipAt { offset, mask: 1 });
            disk.faults.add(flip.named(&name[..]).times(1));
            match ks.get(key(i)) {
                // It is in memory or in a table.
                Ok(found) => assert_eq!(found.as_ref(), Some(&wanted)),
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Corruption, "{error}");
                    assert!(error.to_string().contains(&name), "{error}");
                    assert!(ks.contains_key(key(i)).unwrap());
                    is_named = true;
                }
            }
            assert_eq!(ks.get(key(i)).unwrap(), Some(wanted));
            break;
        }
    }
    assert!(is_named, "no value was read in the log");
}

/// Reads of the log fail, or return other bytes, while memtables would leave their values there.
/// The memtables keep their values in memory, and everything is flushed and read as usual.
fn a_log_that_cannot_be_read_back_keeps_no_values(rt: Runtime, seed: u64) {
    let (disk, store, ks) = slow_store(&rt);
    let fault = match seed % 2 {
        0 => Fault::Fail(StorageErrorKind::Io),
        _ => Fault::FlipRandom { seed },
    };
    let mut model = Model::new();
    disk.faults
        .add(Rule::on_reads(fault).ending(".log").for_good());
    write_burst(&ks, &mut model, 250, seed);
    rt.sleep(Duration::from_millis(50));
    // A flipped bit may lie where no record of the memtable is.
    assert!(seed % 2 == 1 || log_backed(&store) == 0);
    disk.faults.clear();
    check_reads(&ks, &model);
    store.flush().unwrap();
    check_reads(&ks, &model);
}
