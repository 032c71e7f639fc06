//! Stories about a storage that cannot be reached for a while, as one across a link. Calls of users
//! fail with an error that says what is known, what changes the store waits, nothing is poisoned,
//! and a close ends. `docs/stories.md` describes them.

use std::time::Duration;

use siltstone::check::{CheckStorages, check};
use siltstone::repair::{RepairOptions, RepairSource, repair};
use siltstone::{Error, ErrorKind, SyncMode};
use siltstone_storage::fault::{Effect, Fault, Rule};
use siltstone_storage::{Instant, OpKind, Runtime};

use super::*;

pub const ALL: &[Story] = &[
    (
        "a_sync_in_doubt_promises_nothing",
        4,
        a_sync_in_doubt_promises_nothing,
    ),
    (
        "a_group_that_did_not_reach_the_log_is_nowhere",
        4,
        a_group_that_did_not_reach_the_log_is_nowhere,
    ),
    (
        "names_wait_for_the_storage_and_poison_nothing",
        4,
        names_wait_for_the_storage_and_poison_nothing,
    ),
    (
        "a_leader_without_a_segment_changes_nothing",
        4,
        a_leader_without_a_segment_changes_nothing,
    ),
    (
        "a_close_does_not_wait_for_the_storage",
        8,
        a_close_does_not_wait_for_the_storage,
    ),
    (
        "a_job_waits_for_the_storage_and_does_not_fail",
        4,
        a_job_waits_for_the_storage_and_does_not_fail,
    ),
    (
        "a_caller_of_a_flush_gives_up_and_the_flush_goes_on",
        4,
        a_caller_of_a_flush_gives_up_and_the_flush_goes_on,
    ),
    (
        "an_unreachable_storage_is_never_taken_for_damage",
        1,
        an_unreachable_storage_is_never_taken_for_damage,
    ),
    (
        "a_stalled_writer_gives_up_and_writes_go_on_later",
        4,
        a_stalled_writer_gives_up_and_writes_go_on_later,
    ),
    (
        "a_stalled_writer_goes_on_when_the_storage_answers",
        4,
        a_stalled_writer_goes_on_when_the_storage_answers,
    ),
    (
        "cancelled_stalls_end_at_once",
        4,
        cancelled_stalls_end_at_once,
    ),
];

/// How long a stalled writer waits while the storage does not answer (`Store::write`).
const STALL_LIMIT: Duration = Duration::from_secs(30);

/// The time limit of a call.
const LIMIT: Duration = Duration::from_secs(1);

/// Fails the calls of this rule until `end`, each after its time limit.
fn cut(disk: &Disk, calls: fn(Fault) -> Rule, effect: Effect, end: Option<Instant>) -> usize {
    let rule = calls(Fault::Unreachable {
        limit: LIMIT,
        effect,
    });
    let rule = rule.for_good();
    disk.faults.add(match end {
        Some(end) => rule.until(end),
        None => rule,
    })
}

fn in_secs(rt: &Runtime, secs: u64) -> Option<Instant> {
    Some(rt.now() + Duration::from_secs(secs))
}

fn log_syncs(fault: Fault) -> Rule {
    Rule::on(OpKind::Sync, fault).ending(".log")
}

fn log_appends(fault: Fault) -> Rule {
    Rule::on(OpKind::Append, fault).ending(".log")
}

fn is_good(store: &Store) {
    assert_eq!(store.stats().health, "good");
}

fn put(store: &Store, n: u64, options: WriteOptions) -> siltstone::Result<()> {
    let mut batch = Batch::new();
    let keyspace = store.default_keyspace()?;
    batch.put(&keyspace, &key(n), b"v")?;
    store.write(&batch, options)
}

/// A sync of the log gets no answer. Its write is visible, and no caller may be told that it is
/// durable. The next sync that succeeds covers it.
fn a_sync_in_doubt_promises_nothing(rt: Runtime, seed: u64) {
    let disk = Disk::new(&rt);
    let sync = match seed % 2 {
        0 => SyncMode::Never,
        _ => SyncMode::Always,
    };
    let store = disk.open_with(Options { sync, ..small() });
    put(&store, 0, SYNC).unwrap();
    let rule = cut(&disk, log_syncs, Effect::None, in_secs(&rt, 20));
    // Writers whose syncs are joined, and one that asks for none.
    let tasks: Vec<_> = (1..4)
        .map(|n| {
            let store = store.clone();
            rt.spawn("writer", move || put(&store, n, SYNC)).unwrap()
        })
        .collect();
    let syncing = {
        let store = store.clone();
        let rt_there = rt.clone();
        rt.spawn("sync", move || {
            rt_there.sleep(Duration::from_millis(100));
            store.sync_log()
        })
        .unwrap()
    };
    for task in tasks {
        let error = task.join().unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsynced, "{error}");
    }
    let error = syncing.join().unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsynced, "{error}");
    assert!(disk.faults.fired_count(rule) > 0);
    if sync == SyncMode::Never {
        put(&store, 4, NO_SYNC).unwrap();
    } else {
        assert_eq!(
            put(&store, 4, NO_SYNC).unwrap_err().kind(),
            ErrorKind::Unsynced
        );
    }
    is_good(&store);
    assert_eq!(prefix_len(&store.default_keyspace().unwrap()), 5);
    // Only the first write is known to be durable.
    let lost = disk.lose_power().open();
    assert_eq!(prefix_len(&lost.default_keyspace().unwrap()), 1);
    rt.sleep(Duration::from_secs(30));
    store.sync_log().unwrap();
    let kept = disk.lose_power().open();
    assert_eq!(prefix_len(&kept.default_keyspace().unwrap()), 5);
    store.close().unwrap();
    let closed = disk.lose_power().open();
    assert_eq!(prefix_len(&closed.default_keyspace().unwrap()), 5);
}

/// The append of a group gets no answer, so it had no effect. Nobody sees the write, it has no
/// number, and the record of the next group takes its place.
fn a_group_that_did_not_reach_the_log_is_nowhere(rt: Runtime, _: u64) {
    let disk = Disk::new(&rt);
    let store = disk.open();
    put(&store, 0, NO_SYNC).unwrap();
    let before = store.stats().published;
    cut(&disk, log_appends, Effect::Taken, in_secs(&rt, 5));
    for n in 1..3 {
        let error = put(&store, n, NO_SYNC).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    }
    let error = store.create_keyspace("a").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    assert_eq!(store.stats().published, before);
    assert_eq!(store.keyspaces(), ["default"]);
    is_good(&store);
    rt.sleep(Duration::from_secs(10));
    put(&store, 1, NO_SYNC).unwrap();
    store.create_keyspace("a").unwrap();
    assert_eq!(store.stats().published, before + 2);
    for disk in [disk.kill(), disk.lose_power()] {
        let again = disk.open();
        assert_eq!(prefix_len(&again.default_keyspace().unwrap()), 2);
        assert_eq!(again.keyspaces().len(), 2);
    }
    store.close().unwrap();
}

/// A create, a flush and a new manifest need syncs of names, which get no answer. They wait until
/// the storage answers, and nothing is poisoned.
fn names_wait_for_the_storage_and_poison_nothing(rt: Runtime, seed: u64) {
    let disk = Disk::new(&rt);
    let store = disk.open();
    put(&store, 0, NO_SYNC).unwrap();
    let effect = Effect::Drawn(seed);
    let end = in_secs(&rt, 30);
    for kind in [OpKind::SyncDir, OpKind::Replace] {
        let limit = LIMIT;
        let rule = Rule::on(kind, Fault::Unreachable { limit, effect });
        disk.faults.add(rule.for_good().until(end.unwrap()));
    }
    store.flush().unwrap();
    assert!(rt.now() >= end.unwrap());
    let waits = store.stats().counter("unreachable_wait_count");
    assert!(waits > 0);
    // A manifest is written anew and made current during the next outage.
    store.test_hooks().roll_manifest_from(1);
    let rolls = store.test_hooks().manifest_roll_count();
    cut(&disk, Rule::on_any, effect, in_secs(&rt, 100));
    let creating = {
        let (store, disk_there) = (store.clone(), disk.clone());
        let create = move || {
            let mut refused = 0;
            for n in 0..40 {
                while let Err(error) = store.create_keyspace(&format!("a{n}")) {
                    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
                    refused += 1;
                }
                // The next outage may come at any of the calls.
                if n % 3 == 0 {
                    let kind = [OpKind::Create, OpKind::SyncDir, OpKind::Replace][n % 9 / 3];
                    let limit = LIMIT;
                    let rule = Rule::on(kind, Fault::Unreachable { limit, effect });
                    disk_there.faults.add(rule.times(2));
                }
            }
            refused
        };
        rt.spawn("create", create).unwrap()
    };
    rt.sleep(Duration::from_secs(10));
    let stats = store.stats();
    let since = stats.unreachable_since_us.expect("it cannot be reached");
    assert!(since <= rt.unix_micros());
    assert!(creating.join().unwrap() > 0);
    assert!(store.test_hooks().manifest_roll_count() > rolls);
    disk.faults.clear();
    is_good(&store);
    rt.sleep(Duration::from_secs(5));
    assert_eq!(store.stats().unreachable_since_us, None);
    assert!(store.stats().counter("unreachable_count") >= 2);
    assert!(store.stats().counter("unreachable_wait_us") > 0);
    store.close().unwrap();
    assert_eq!(disk.lose_power().open().keyspaces().len(), 41);
}

/// A leader needs a segment while none is prepared. The write fails and has changed nothing, and
/// the supply goes on when the storage answers.
fn a_leader_without_a_segment_changes_nothing(rt: Runtime, seed: u64) {
    let disk = Disk::new(&rt);
    let store = disk.open();
    let kinds = [
        OpKind::Create,
        OpKind::Reserve,
        OpKind::Sync,
        OpKind::SyncDir,
    ];
    let kind = kinds[seed as usize % kinds.len()];
    let limit = LIMIT;
    let effect = Effect::Drawn(seed);
    let rule = Rule::on(kind, Fault::Unreachable { limit, effect });
    let rule = match kind {
        OpKind::SyncDir => rule,
        _ => rule.ending(".log"),
    };
    let end = in_secs(&rt, 100).unwrap();
    let rule = disk.faults.add(rule.for_good().until(end));
    let large = vec![7; 20_000];
    let put = |n: u64| store.default_keyspace()?.put(key(n), &large);
    let mut written = 0;
    let error: Error = loop {
        match put(written) {
            Ok(()) => written += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    assert!(disk.faults.fired_count(rule) > 0);
    let published = store.stats().published;
    assert_eq!(put(written).unwrap_err().kind(), ErrorKind::Unreachable);
    assert_eq!(store.stats().published, published);
    assert_eq!(prefix_len(&store.default_keyspace().unwrap()), written);
    is_good(&store);
    rt.sleep(end.since(rt.now()) + Duration::from_secs(5));
    for n in written..written + 30 {
        put(n).unwrap();
    }
    let killed = disk.kill().open();
    assert_eq!(
        prefix_len(&killed.default_keyspace().unwrap()),
        written + 30
    );
    store.close().unwrap();
    let closed = disk.lose_power().open();
    assert_eq!(
        prefix_len(&closed.default_keyspace().unwrap()),
        written + 30
    );
}

/// A store is closed during an outage that does not end, while a create and a flush wait. The close
/// returns with the error, nothing is deleted any more, and the next open recovers.
fn a_close_does_not_wait_for_the_storage(rt: Runtime, seed: u64) {
    let disk = Disk::new(&rt);
    let store = disk.open();
    for n in 0..20 {
        put(&store, n, NO_SYNC).unwrap();
    }
    store.sync_log().unwrap();
    if seed.is_multiple_of(2) {
        // The record of the create reaches the log, and its edit waits.
        let limit = LIMIT;
        let effect = Effect::Drawn(seed);
        for kind in [OpKind::Sync, OpKind::SyncDir] {
            let rule = Rule::on(kind, Fault::Unreachable { limit, effect });
            disk.faults.add(rule.for_good());
        }
    } else {
        cut(&disk, Rule::on_any, Effect::Drawn(seed), None);
    }
    let spawn = |name: &str, call: fn(&Store) -> siltstone::Result<()>| {
        let store = store.clone();
        rt.spawn(name, move || call(&store)).unwrap()
    };
    let waiting = [
        spawn("create", |store| store.create_keyspace("a").map(drop)),
        spawn("flush", |store| store.flush()),
    ];
    rt.sleep(Duration::from_secs(seed));
    let before = disk.names(".tbl").len();
    let error = store.clone().close().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    for task in waiting {
        let _ = task.join().unwrap();
    }
    assert!(disk.names(".tbl").len() >= before, "a table was deleted");
    assert_eq!(store.close().unwrap_err().kind(), ErrorKind::Closed);
    for disk in [disk.kill(), disk.lose_power()] {
        let again = disk.open();
        assert_eq!(prefix_len(&again.default_keyspace().unwrap()), 20);
        again.close().unwrap();
    }
}

/// A caller that waits for a flush fails after its limit. The flush goes on, and nothing is lost.
fn a_caller_of_a_flush_gives_up_and_the_flush_goes_on(rt: Runtime, seed: u64) {
    let disk = Disk::new(&rt);
    let store = disk.open_with(small());
    let ks = store.default_keyspace().unwrap();
    for n in 0..20 {
        ks.put(key(n), [seed as u8; 100]).unwrap();
    }
    cut(&disk, Rule::on_changes, Effect::None, in_secs(&rt, 100));
    let begun = rt.now();
    let error = store.flush().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    assert!(
        error.to_string().contains("goes on in the background"),
        "{error}"
    );
    let waited = rt.now().since(begun);
    assert!(
        waited >= STALL_LIMIT && waited < 3 * STALL_LIMIT,
        "{waited:?}"
    );
    rt.sleep(Duration::from_secs(100));
    assert!(!disk.names(".tbl").is_empty(), "the flush went on");
    store.flush().unwrap();
    let stats = store.stats();
    assert_eq!(stats.counter("job_failed_count"), 0, "{stats:?}");
    store.close().unwrap();
    let again = disk.lose_power().open();
    assert_eq!(prefix_len(&again.default_keyspace().unwrap()), 20);
    again.close().unwrap();
}

/// Flushes and compactions meet outages at all of their calls, reads of inputs too. They wait, no
/// job fails, and reads of users fail as single calls.
fn a_job_waits_for_the_storage_and_does_not_fail(rt: Runtime, seed: u64) {
    let disk = Disk::new(&rt);
    let store = disk.open_with(Options {
        map_tables: false,
        block_cache_bytes: 0,
        ..small()
    });
    let ks = store.default_keyspace().unwrap();
    for n in 0..2000 {
        ks.put(key(n), [seed as u8; 100]).unwrap();
    }
    store.flush().unwrap();
    cut(&disk, Rule::on_any, Effect::Drawn(seed), in_secs(&rt, 20));
    let error = ks.get(key(7)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    ks.compact_range(None, None).unwrap();
    cut(&disk, Rule::on_reads, Effect::None, in_secs(&rt, 20));
    ks.compact_range(None, None).unwrap();
    let stats = store.stats();
    assert_eq!(stats.counter("job_failed_count"), 0, "{stats:?}");
    assert!(stats.counter("unreachable_wait_count") > 0);
    is_good(&store);
    assert_eq!(prefix_len(&ks), 2000);
    drop(ks);
    store.close().unwrap();
}

/// Fails all changes of tables. The log and the manifest answer, as if they were local.
fn cut_tables(disk: &Disk, seed: u64, end: Option<Instant>) {
    let calls = |fault| Rule::on_changes(fault).ending(".tbl");
    cut(disk, calls, Effect::Drawn(seed), end);
}

/// Writes from `from` on until a write fails. Returns the number of the first record that is not
/// written, and the error.
fn put_until_refused(store: &Store, from: u64) -> (u64, Error) {
    let keyspace = store.default_keyspace().unwrap();
    for n in from.. {
        if let Err(error) = keyspace.put(key(n), [7; 2000]) {
            return (n, error);
        }
    }
    unreachable!("the numbers do not end")
}

/// The storage of the tables does not answer, and flushes wait. A writer that is stalled fails
/// after the limit, as does each later one. When the storage answers again, writes go on.
fn a_stalled_writer_gives_up_and_writes_go_on_later(rt: Runtime, seed: u64) {
    let disk = Disk::new(&rt);
    let store = disk.open();
    cut_tables(&disk, seed, None);
    let mut written = 0;
    for _ in 0..2 {
        let began = rt.now();
        let (next, error) = put_until_refused(&store, written);
        assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
        let text = error.to_string();
        assert!(
            text.contains("nothing was written") && text.contains(".tbl"),
            "{text}"
        );
        let took = rt.now().since(began);
        // The flush's call fails first, and a recheck comes a moment later.
        let most = STALL_LIMIT + LIMIT * 3;
        assert!(took >= STALL_LIMIT && took <= most, "{took:?}: {text}");
        written = next;
    }
    assert!(store.stats().unreachable_since_us.is_some());
    assert_eq!(prefix_len(&store.default_keyspace().unwrap()), written);
    is_good(&store);
    disk.faults.clear();
    let keyspace = store.default_keyspace().unwrap();
    for n in written..written + 500 {
        keyspace.put(key(n), [7; 2000]).unwrap();
    }
    store.flush().unwrap();
    assert_eq!(prefix_len(&keyspace), written + 500);
    let stats = store.stats();
    assert_eq!(stats.counter("job_failed_count"), 0, "{stats:?}");
    drop(keyspace);
    store.close().unwrap();
    let again = disk.lose_power().open();
    let keyspace = again.default_keyspace().unwrap();
    assert_eq!(prefix_len(&keyspace), written + 500);
}

/// The outage is shorter than the limit of a stalled writer: no write fails.
fn a_stalled_writer_goes_on_when_the_storage_answers(rt: Runtime, seed: u64) {
    let disk = Disk::new(&rt);
    let store = disk.open();
    let end = in_secs(&rt, 20);
    cut_tables(&disk, seed, end);
    let keyspace = store.default_keyspace().unwrap();
    for n in 0..1500 {
        keyspace.put(key(n), [7; 2000]).unwrap();
    }
    assert!(rt.now() >= end.unwrap(), "no writer was stalled");
    assert_eq!(prefix_len(&keyspace), 1500);
    is_good(&store);
    drop(keyspace);
    store.close().unwrap();
}

/// A program that ends cancels the waits of its stalled writers during an outage.
fn cancelled_stalls_end_at_once(rt: Runtime, seed: u64) {
    let disk = Disk::new(&rt);
    let store = disk.open();
    cut_tables(&disk, seed, None);
    let writer = {
        let store = store.clone();
        let write = move || put_until_refused(&store, 0);
        rt.spawn("writer", write).unwrap()
    };
    rt.sleep(Duration::from_secs(10));
    let cancelled = rt.now();
    store.cancel_stalls();
    let (written, error) = writer.join().unwrap();
    assert!(rt.now().since(cancelled) < LIMIT);
    assert_eq!(error.kind(), ErrorKind::Closed, "{error}");
    let (next, error) = put_until_refused(&store, written);
    assert_eq!((next, error.kind()), (written, ErrorKind::Closed));
    assert_eq!(prefix_len(&store.default_keyspace().unwrap()), written);
    disk.faults.clear();
    store.flush().unwrap();
    // Nothing is stalled any more.
    put(&store, written, NO_SYNC).unwrap();
    assert_eq!(prefix_len(&store.default_keyspace().unwrap()), written + 1);
    store.close().unwrap();
}

/// A store of several tables and a log.
fn some_store(rt: &Runtime) -> Disk {
    let disk = Disk::new(rt);
    let store = disk.open();
    let (a, b) = two(&store);
    for n in 0..300 {
        a.put(key(n), [1; 100]).unwrap();
        b.put(key(n), [2; 100]).unwrap();
    }
    store.flush().unwrap();
    for n in 300..400 {
        a.put(key(n), [1; 100]).unwrap();
    }
    store.sync_log().unwrap();
    disk.kill()
}

/// An open, an open for reading, a check and a repair lose the storage at each of their calls. They
/// report that, never damage, and the next open finds everything.
fn an_unreachable_storage_is_never_taken_for_damage(rt: Runtime, _: u64) {
    type Call = fn(&Disk) -> siltstone::Result<bool>;
    let calls: [(&str, Call); 4] = [
        ("open", |disk| disk.try_open(small()).map(|_| true)),
        ("open for reading", |disk| {
            let storage: Arc<dyn Storage> = Arc::new(disk.faults.clone());
            let components = Components::on(storage, disk.rt.clone());
            let store = Store::open_read_only_with(components, small())?;
            let all = store.open_keyspace("a")?.iter()?.count();
            Ok(all == 400)
        }),
        ("check", |disk| {
            let report = check(&CheckStorages::on(&disk.faults), &mut |_| {})?;
            assert!(report.is_sound(), "{:?}", report.problems);
            Ok(true)
        }),
        ("repair", |disk| {
            let source: Arc<dyn Storage> = Arc::new(disk.faults.clone());
            let target: Arc<dyn Storage> = Arc::new(MemoryStorage::new(&disk.rt));
            let from = RepairSource::on(source);
            let options = RepairOptions::default();
            let report = repair(&from, &target, &disk.rt, &options, &mut |_| {})?;
            assert!(report.lost.is_empty() && report.damage.is_empty());
            Ok(true)
        }),
    ];
    let image = some_store(&rt).memory;
    for (what, call) in calls {
        let mut nth = 0;
        loop {
            let disk = Disk::on(&rt, image.kill());
            let limit = LIMIT;
            let effect = Effect::Drawn(nth);
            let rule = Rule::on_any(Fault::Unreachable { limit, effect });
            let rule = disk.faults.add(rule.nth(nth).for_good());
            let ended = call(&disk);
            let met = disk.faults.fired_count(rule) > 0;
            match ended {
                Ok(is_whole) => {
                    assert!(is_whole || met, "{what}, call {nth}: something is missing")
                }
                Err(error) => {
                    assert_eq!(
                        error.kind(),
                        ErrorKind::Unreachable,
                        "{what}, {nth}: {error}"
                    );
                    assert!(met, "{what}, call {nth}: {error}");
                }
            }
            disk.faults.clear();
            let store = disk.open();
            for (name, count) in [("a", 400), ("b", 300)] {
                let keyspace = store.open_keyspace(name).unwrap();
                assert_eq!(prefix_len(&keyspace), count, "{what}, call {nth}, {name}");
            }
            store.close().unwrap();
            if !met {
                break;
            }
            // All calls up to the 60th, and then one in seven.
            nth += if nth < 60 { 1 } else { 7 };
        }
        assert!(nth > 5, "{what} makes few calls: {nth}");
    }
}
