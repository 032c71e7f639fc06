//! Compactions keep to `background_bytes_per_s`. Flushes, closes and changes of the rate do not
//! wait for it.

use std::time::Duration;

use siltstone::{Keyspace, Options, Store};
use siltstone_storage::Runtime;

use super::*;

pub const ALL: &[Story] = &[
    (
        "compactions_keep_to_the_rate",
        2,
        compactions_keep_to_the_rate,
    ),
    (
        "a_slow_rate_delays_only_compactions",
        2,
        a_slow_rate_delays_only_compactions,
    ),
];

const RATE: u64 = 200_000;

/// A store in which nothing was compacted yet, with some runs in level 0.
fn with_runs(disk: &Disk, bytes_per_s: u64, seed: u64) -> (Store, Keyspace) {
    let store = disk.open_with(Options {
        background_bytes_per_s: bytes_per_s,
        l0_trigger_count: 2,
        subjobs_max: 1 + seed as u32 % 2 * 3,
        ..small()
    });
    let hooks = store.test_hooks();
    hooks.pause_compaction(true);
    let ks = store.default_keyspace().unwrap();
    for run in 0..4u64 {
        for i in 0..300 {
            ks.put(&key(i * 4 + run), &[run as u8; 700]).unwrap();
        }
        ks.flush().unwrap();
    }
    (store, ks)
}

fn compactions_keep_to_the_rate(rt: Runtime, seed: u64) {
    let disk = Disk::new(&rt);
    let (store, ks) = with_runs(&disk, RATE, seed);
    // The bytes that flushes took from the limit are available again.
    rt.sleep(Duration::from_secs(60));
    let limited = |store: &Store| store.stats().counter("rate_limited_bytes");
    let (begin, before) = (rt.now(), limited(&store));
    store.test_hooks().pause_compaction(false);
    store.wait_until_idle().unwrap();
    let spent = limited(&store) - before;
    let stats = store.stats();
    let moved = stats.counter("compaction_in_bytes") + stats.counter("compaction_out_bytes");
    assert!(
        spent * 10 >= moved * 8 && spent <= moved,
        "{spent} bytes were counted, {moved} bytes read and written"
    );
    let took_ms = rt.now().since(begin).as_millis() as u64;
    let wanted_ms = spent * 1000 / RATE;
    // The bound allows for a burst, and for the steps in which waits and idleness are checked.
    assert!(
        took_ms + 110 >= wanted_ms && took_ms <= wanted_ms + wanted_ms / 4 + 2_000,
        "{spent} bytes took {took_ms} ms, expected about {wanted_ms}"
    );
    assert!(spent > 4 * RATE && stats.counter("rate_wait_count") > 0);
    assert_eq!(ks.iter().unwrap().count(), 1200);
}

fn a_slow_rate_delays_only_compactions(rt: Runtime, seed: u64) {
    let disk = Disk::new(&rt);
    // With one byte a second, a job would take weeks.
    let (store, ks) = with_runs(&disk, 1, seed);
    let begin = rt.now();
    store.test_hooks().pause_compaction(false);
    rt.sleep(Duration::from_secs(10));
    assert_eq!(store.stats().counter("compaction_count"), 0);
    for i in 0..300 {
        ks.put(&key(i), b"later").unwrap();
    }
    store.flush().unwrap();
    assert!(
        rt.now().since(begin) < Duration::from_secs(12),
        "a flush waited"
    );
    if seed == 0 {
        store.close().unwrap();
        assert!(
            rt.now().since(begin) < Duration::from_secs(14),
            "a close waited"
        );
        let store = disk.open();
        assert_eq!(
            store.default_keyspace().unwrap().iter().unwrap().count(),
            1200
        );
        return;
    }
    // A changed rate applies to the job that waits.
    store.set_option("background_bytes_per_s", 0u64).unwrap();
    store.wait_until_idle().unwrap();
    assert!(
        rt.now().since(begin) < Duration::from_secs(14),
        "a changed rate came late"
    );
    assert!(store.stats().counter("compaction_count") > 0);
    assert_eq!(ks.get(&key(7)).unwrap().unwrap(), b"later");
}
