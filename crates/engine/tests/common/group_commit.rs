//! Stories about groups of writers: one that fails, one that is refused memory, and a leader that
//! is late for a close. `docs/stories.md` describes them.

use std::time::Duration;

use siltstone::{Batch, ErrorKind, Keyspace, WriteOptions};
use siltstone_storage::fault::{Fault, Rule};
use siltstone_storage::{OpKind, Runtime};

use super::*;

pub const ALL: &[Story] = &[
    (
        "a_late_leader_meets_a_closed_store",
        60,
        a_late_leader_meets_a_closed_store,
    ),
    (
        "a_failed_group_does_not_keep_the_log",
        2,
        a_failed_group_does_not_keep_the_log,
    ),
    (
        "a_refused_memtable_fails_its_own_batches",
        12,
        a_refused_memtable_fails_its_own_batches,
    ),
];

/// A leader is late: its append to the log takes seconds, and meanwhile the store is closed. The
/// answer that each writer got is true in the next life, even if the power is lost right after the
/// close.
fn a_late_leader_meets_a_closed_store(rt: Runtime, seed: u64) {
    let disk = Disk::new(&rt);
    let store = disk.open();
    let late = Rule::on(OpKind::Append, Fault::Delay(Duration::from_secs(3)));
    let late = disk.faults.add(late.ending(".log").nth(seed));
    let tasks: Vec<_> = (0..3u64)
        .map(|w| {
            let ks = store.default_keyspace().unwrap();
            let write = move || {
                let mut acknowledged = Vec::new();
                for i in 0.. {
                    match ks.put(&key(w * 1000 + i), b"v") {
                        Ok(()) => acknowledged.push(key(w * 1000 + i)),
                        Err(e) => {
                            assert_eq!(e.kind(), ErrorKind::Closed, "{e}");
                            break;
                        }
                    }
                }
                acknowledged
            };
            rt.spawn("writer", write).unwrap()
        })
        .collect();
    while disk.faults.fired_count(late) == 0 {
        rt.yield_point();
    }
    store.close().unwrap();
    let acknowledged: Vec<_> = tasks.into_iter().flat_map(|t| t.join().unwrap()).collect();
    for disk in [disk.lose_power(), disk] {
        let again = disk.open();
        let ks = again.default_keyspace().unwrap();
        for key in &acknowledged {
            assert!(
                ks.get(key).unwrap().is_some(),
                "{} was acknowledged and is not in the next life",
                String::from_utf8_lossy(key)
            );
        }
    }
}

/// A group of writes to an idle keyspace fails for want of room. The keyspace must not hold the log
/// from then on.
fn a_failed_group_does_not_keep_the_log(rt: Runtime, _seed: u64) {
    let disk = Disk::new(&rt);
    let store = disk.open();
    let hooks = store.test_hooks();
    let (a, b) = two(&store);
    for i in 0..40 {
        a.put(&key(i), &[7; 900]).unwrap();
    }
    disk.memory.set_capacity(Some(disk.memory.used_bytes()));
    let big = vec![7; 200_000];
    assert_eq!(b.put(b"k", &big).unwrap_err().kind(), ErrorKind::NoSpace);
    disk.memory.set_capacity(None);
    rt.sleep(Duration::from_secs(5));
    let before = hooks.state().log_start.segment;
    for i in 0..400 {
        a.put(&key(i), &[7; 900]).unwrap();
    }
    a.flush().unwrap();
    assert!(
        hooks.state().log_start.segment > before + 2,
        "an empty keyspace keeps the log from {before} on"
    );
}

/// There is no memory for one keyspace's memtable. The batches that write to it fail as a whole,
/// and the other batches of their group do not.
fn a_refused_memtable_fails_its_own_batches(rt: Runtime, _seed: u64) {
    let disk = Disk::new(&rt);
    let store = disk.open();
    let hooks = store.test_hooks();
    let (a, b) = two(&store);
    // A value that no ordinary memtable holds needs one of its own size.
    let big = vec![7; 400_000];
    hooks.refuse_arenas_from(400_000);
    let writers: Vec<_> = (0..6u64)
        .map(|w| {
            let (store, a, b, big) = (store.clone(), a.clone(), b.clone(), big.clone());
            let write = move || {
                for i in 0..20 {
                    let mut batch = Batch::new();
                    batch.put(&a, &key(w * 100 + i), b"small").unwrap();
                    // The last writer asks for what is refused. The one before writes to the same
                    // keyspace, and has room there unless they share a group.
                    if w >= 4 {
                        let value = if w == 5 { &big[..] } else { b"small" };
                        batch.put(&b, &key(w * 100 + i), value).unwrap();
                    }
                    match (w, store.write(&batch, WriteOptions::default())) {
                        (0..=3, result) => result.expect("it touches no refused keyspace"),
                        (4, Ok(())) => {}
                        (_, result) => {
                            let error = result.expect_err("there is no memory for it");
                            assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
                        }
                    }
                }
            };
            rt.spawn("writer", write).unwrap()
        })
        .collect();
    for writer in writers {
        writer.join().unwrap();
    }
    let look = |a: &Keyspace, b: &Keyspace, when: &str| {
        for w in 0..6u64 {
            for i in 0..20 {
                let of_a = a.get(&key(w * 100 + i)).unwrap().is_some();
                let of_b = b.get(&key(w * 100 + i)).unwrap().is_some();
                match w {
                    0..=3 => assert!(of_a, "{when}: {w}, {i} was acknowledged"),
                    4 => assert_eq!(of_a, of_b, "{when}: half of a batch, {i}"),
                    _ => assert!(!of_a && !of_b, "{when}: {i} was refused"),
                }
            }
        }
    };
    look(&a, &b, "before a crash");
    hooks.refuse_arenas_from(usize::MAX);
    b.put(b"k", &big).unwrap();
    let after = disk.kill().open();
    let again = (after.keyspace("a").unwrap(), after.keyspace("b").unwrap());
    look(&again.0, &again.1, "after a crash");
    assert_eq!(again.1.get(b"k").unwrap().unwrap().len(), big.len());
}
