//! Stories about the time that writers wait: how long at most, for what, and what is left of a
//! write that gave up. `docs/stories.md` describes them.

use std::time::Duration;

use siltstone::stall::StallCause;
use siltstone::{Batch, ErrorKind, Keyspace, StallPolicy, WriteOptions};
use siltstone_storage::fault::{Fault, Rule};
use siltstone_storage::rated::{RatedStorage, Rates};
use siltstone_storage::{OpKind, Runtime};

use super::*;

pub const ALL: &[Story] = &[
    (
        "a_write_that_would_wait_too_long_writes_nothing",
        24,
        a_write_that_would_wait_too_long_writes_nothing,
    ),
    (
        "a_busy_batch_is_in_none_of_its_keyspaces",
        8,
        a_busy_batch_is_in_none_of_its_keyspaces,
    ),
    (
        "a_write_leaves_the_queue_at_its_deadline",
        12,
        a_write_leaves_the_queue_at_its_deadline,
    ),
    (
        "waits_for_a_leader_have_names",
        2,
        waits_for_a_leader_have_names,
    ),
    (
        "a_stalled_keyspace_delays_no_other",
        8,
        a_stalled_keyspace_delays_no_other,
    ),
    (
        "writers_follow_the_progress_of_a_flush",
        4,
        writers_follow_the_progress_of_a_flush,
    ),
    (
        "merges_do_not_keep_flushes_waiting",
        8,
        merges_do_not_keep_flushes_waiting,
    ),
    (
        "compactions_leave_the_cores_to_writers_and_flushes",
        8,
        compactions_leave_the_cores_to_writers_and_flushes,
    ),
];

/// The time that a write may wait in these stories.
const WAIT: Duration = Duration::from_millis(50);

const BRIEFLY: WriteOptions = WriteOptions {
    sync: false,
    wait_max: Some(WAIT),
};

/// Options with which one memtable of 64 KiB may wait to be flushed.
fn tight(stall_policy: StallPolicy) -> Options {
    Options {
        stall_policy,
        memtable_bytes: 64 << 10,
        sealed_memtables_max: 1,
        ..small()
    }
}

const POLICIES: [StallPolicy; 4] = [
    StallPolicy::Stop,
    StallPolicy::Slowdown,
    StallPolicy::Adoc,
    StallPolicy::Redirect,
];

/// Each flush takes this time or a multiple of it from now on.
fn slow_flushes(disk: &Disk, by: Duration) {
    let slow = Rule::on(OpKind::Sync, Fault::Delay(by));
    disk.faults.add(slow.ending(".tbl").for_good());
}

/// Writers that wait at most 50 ms while flushes take seconds. Each call ends in time; what it
/// wrote is there, and what it did not write is not, also after the process was killed.
fn a_write_that_would_wait_too_long_writes_nothing(rt: Runtime, seed: u64) {
    let disk = Disk::new(&rt);
    let store = disk.open_with(tight(POLICIES[seed as usize % 4]));
    slow_flushes(&disk, Duration::from_secs(2));
    let tasks: Vec<_> = (0..2u64)
        .map(|w| {
            let (clock, ks) = (rt.clone(), store.default_keyspace().unwrap());
            let write = move || {
                let (mut written, mut busy) = (Vec::new(), Vec::new());
                for i in 0..80 {
                    let (key, began) = (key(w * 1000 + i), clock.now());
                    match ks.put_with(&key, [7; 4000], BRIEFLY) {
                        Ok(()) => written.push(key),
                        Err(e) => {
                            assert_eq!(e.kind(), ErrorKind::Busy, "{e}");
                            let text = e.to_string();
                            assert!(text.contains("wait_max"), "{text}");
                            // In the queue there may be too little time left for the leader.
                            let named = ["keyspace `default`", "before it in the queue"];
                            assert!(named.iter().any(|name| text.contains(name)), "{text}");
                            busy.push(key);
                        }
                    }
                    let took = clock.now().since(began);
                    assert!(took <= WAIT * 2, "a put took {took:?}");
                }
                (written, busy)
            };
            rt.spawn("writer", write).unwrap()
        })
        .collect();
    let (mut written, mut busy) = (Vec::new(), Vec::new());
    for task in tasks {
        let (mut ok, mut no) = task.join().unwrap();
        written.append(&mut ok);
        busy.append(&mut no);
    }
    assert!(!busy.is_empty(), "nobody would have waited for long");
    assert!(written.len() > 10, "{} puts are written", written.len());
    let check = |store: &Store| {
        let ks = store.default_keyspace().unwrap();
        for key in &written {
            assert!(ks.get(key).unwrap().is_some(), "{key:?} is lost");
        }
        for key in &busy {
            assert!(ks.get(key).unwrap().is_none(), "{key:?} was not written");
        }
    };
    check(&store);
    store.sync_log().unwrap();
    disk.faults.clear();
    let killed = disk.kill();
    check(&killed.open_with(tight(StallPolicy::Redirect)));
    // The bytes of the writes that gave up were given back, so writers go on at once.
    store.wait_until_idle().unwrap();
    let began = rt.now();
    let ks = store.default_keyspace().unwrap();
    ks.put_with(b"after", b"v", BRIEFLY).unwrap();
    assert!(rt.now().since(began) < WAIT);
}

/// A batch over two keyspaces, one of which is stalled, is in none of them if it gives up.
fn a_busy_batch_is_in_none_of_its_keyspaces(rt: Runtime, seed: u64) {
    let disk = Disk::new(&rt);
    let store = disk.open_with(tight(POLICIES[seed as usize % 4]));
    let (a, b) = two(&store);
    slow_flushes(&disk, Duration::from_secs(2));
    let mut refused = false;
    for i in 0..100 {
        let mut batch = Batch::new();
        batch.put(&a, key(i), [7; 4000]).unwrap();
        batch.put(&b, key(i), [7; 4]).unwrap();
        let written = store.write(&batch, BRIEFLY);
        if let Err(e) = &written {
            assert_eq!(e.kind(), ErrorKind::Busy, "{e}");
            refused = true;
        }
        for ks in [&a, &b] {
            let found = ks.get(key(i)).unwrap();
            assert_eq!(found.is_some(), written.is_ok(), "{written:?}");
        }
        // Who writes to the other keyspace alone never waits.
        b.put_with(b"alone", b"v", BRIEFLY).unwrap();
    }
    assert!(refused, "no batch would have waited for long");
}

/// Runs `work` while a leader's append to the log takes three seconds.
fn beside_a_slow_leader<T: Send + 'static>(
    rt: &Runtime,
    disk: &Disk,
    leader: &Keyspace,
    work: impl FnOnce() -> T,
) -> T {
    let slow = Rule::on(OpKind::Append, Fault::Delay(Duration::from_secs(3)));
    let slow = disk.faults.add(slow.ending(".log").times(2));
    let ks = leader.clone();
    let task = rt.spawn("leader", move || ks.put(b"slow", b"v")).unwrap();
    while disk.faults.fired_count(slow) == 0 {
        rt.yield_point();
    }
    let done = work();
    task.join().unwrap().unwrap();
    done
}

/// A leader's append takes three seconds. Whoever waits behind it at most 50 ms gives up in time,
/// whatever call it is, and nothing of it is written. Whoever has no limit is written. Whose batch
/// the next leader has taken before the deadline gets its result, however late it is.
fn a_write_leaves_the_queue_at_its_deadline(rt: Runtime, _seed: u64) {
    let disk = Disk::new(&rt);
    let store = disk.open();
    let (a, b) = two(&store);
    a.put(b"taken", b"v").unwrap();
    let (patient, others) = beside_a_slow_leader(&rt, &disk, &a, || {
        let ks = b.clone();
        let patient = rt.spawn("patient", move || ks.put(b"patient", b"v"));
        let (ks, four_seconds) = (b.clone(), Duration::from_secs(4));
        let options = WriteOptions {
            wait_max: Some(four_seconds),
            ..WriteOptions::NO_SYNC
        };
        let late = rt.spawn("late", move || ks.put_with(b"late", b"v", options));
        let began = rt.now();
        let others = [
            a.put_with(b"busy", b"v", BRIEFLY).err(),
            a.take_with(b"taken", BRIEFLY).err(),
            b.put_with(b"busy", vec![7; 3_000_000], BRIEFLY).err(),
        ];
        let took = rt.now().since(began);
        assert!(took <= WAIT * 4, "three calls took {took:?}");
        ([patient.unwrap(), late.unwrap()], others)
    });
    for task in patient {
        task.join().unwrap().unwrap();
    }
    for error in others {
        let error = error.expect("the call gave up");
        assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
        assert!(error.to_string().contains("queue"), "{error}");
    }
    for (ks, key, there) in [
        (&a, "slow", true),
        (&a, "taken", true),
        (&b, "patient", true),
        (&b, "late", true),
        (&a, "busy", false),
        (&b, "busy", false),
    ] {
        assert_eq!(ks.get(key).unwrap().is_some(), there, "{key}");
    }
}

/// What a leader waits for, and all writers with it, is counted under its own cause.
fn waits_for_a_leader_have_names(rt: Runtime, _seed: u64) {
    let disk = Disk::new(&rt);
    let store = disk.open();
    let (a, b) = two(&store);
    let total = |cause: StallCause| {
        let totals = store.stats().delay_totals;
        let found = totals.iter().find(|(c, _)| *c == cause);
        found.map_or(0, |(_, total)| total.total_us)
    };
    let delay = |op: OpKind, ending: &'static str| {
        let slow = Rule::on(op, Fault::Delay(Duration::from_millis(30)));
        disk.faults.add(slow.ending(ending))
    };
    let named = |cause: StallCause, at_least_us: u64| {
        let us = total(cause);
        assert!(us >= at_least_us, "{cause:?}: {us} us");
        disk.faults.clear();
    };
    assert_eq!(total(StallCause::LogSync), 0);
    delay(OpKind::Sync, ".log");
    a.put_with(b"k", b"v", WriteOptions::SYNC).unwrap();
    named(StallCause::LogSync, 30_000);
    delay(OpKind::Append, ".log");
    a.put(b"k", vec![7; 64 << 10]).unwrap();
    named(StallCause::LogWrite, 30_000);
    // In this store segments are small, and leaders make them.
    delay(OpKind::Create, ".log");
    (0..40).for_each(|i| a.put(key(i), [7; 4000]).unwrap());
    named(StallCause::LogSegment, 30_000);
    // A flush of all keyspaces has the lead while it seals their memtables.
    b.put(b"k", b"v").unwrap();
    let listed = store.stats().delay_totals;
    let waits: u64 = listed.iter().map(|(_, total)| total.count).sum();
    assert!(waits >= 3, "{listed:?}");
    let others = listed.iter().filter(|(cause, _)| !cause.is_of_leader());
    let others: u64 = others.map(|(_, total)| total.count).sum();
    assert_eq!(others, 0, "no keyspace was over its limits: {listed:?}");
}

/// The flushes of a keyspace take seconds, and its writers wait. Those of another keyspace do not.
fn a_stalled_keyspace_delays_no_other(rt: Runtime, seed: u64) {
    let disk = Disk::new(&rt);
    let store = disk.open_with(tight(POLICIES[seed as usize % 4]));
    let (a, b) = two(&store);
    slow_flushes(&disk, Duration::from_secs(2));
    let writer = {
        let a = a.clone();
        rt.spawn("writer", move || {
            (0..100).try_for_each(|i| a.put(key(i), [7; 4000]))
        })
    };
    let mut longest = Duration::ZERO;
    for i in 0..200 {
        let began = rt.now();
        b.put(key(i), b"v").unwrap();
        longest = longest.max(rt.now().since(began));
        rt.sleep(Duration::from_millis(20));
    }
    writer.unwrap().join().unwrap().unwrap();
    assert!(longest < WAIT, "a put waited {longest:?}");
    let totals = store.stats().delay_totals;
    let of_limits = totals.iter().filter(|(cause, _)| !cause.is_of_leader());
    let us: u64 = of_limits.map(|(_, total)| total.total_us).sum();
    assert!(us > 1_000_000, "nobody was stalled: {totals:?}");
}

/// With `redirect`, writers that have used up all memory go on in small steps while a flush runs,
/// and do not wait until it is installed. A flush takes more than a second here.
fn writers_follow_the_progress_of_a_flush(rt: Runtime, _seed: u64) {
    let rates = Rates {
        write_bytes_per_s: 1 << 20,
        read_bytes_per_s: 0,
        queued_bytes_max: 0,
        sync_time: Duration::ZERO,
    };
    let disk = Disk::new(&rt);
    let storage = RatedStorage::new(Arc::new(disk.memory.clone()), &rt, rates);
    let options = Options {
        memtable_bytes: 2 << 20,
        ..tight(StallPolicy::Redirect)
    };
    let components = Components::on(Arc::new(storage), rt.clone());
    let store = Store::open_with(components, options).unwrap();
    store.test_hooks().pause_compaction(true);
    let ks = store.default_keyspace().unwrap();
    let mut longest = Duration::ZERO;
    for i in 0..4000 {
        let began = rt.now();
        ks.put(key(i), [7; 4000]).unwrap();
        // The first flushes are not measured yet.
        if i >= 1500 {
            longest = longest.max(rt.now().since(began));
        }
    }
    let flushes = store.stats().latencies["flush"];
    assert!(flushes.max_ns > 1_000_000_000, "{flushes:?}");
    assert!(
        longest < Duration::from_millis(500),
        "a put waited {longest:?}"
    );
}

/// With `redirect`, no writer waits for a compaction, however few tasks there are. The rate that
/// compactions keep to is one byte a second here, so those that begin take weeks.
fn merges_do_not_keep_flushes_waiting(rt: Runtime, seed: u64) {
    let disk = Disk::new(&rt);
    let options = Options {
        background_tasks: 1 + (seed % 3) as u32,
        background_bytes_per_s: 1,
        l0_trigger_count: 2,
        ..tight(StallPolicy::Redirect)
    };
    let store = disk.open_with(options);
    let ks = store.default_keyspace().unwrap();
    let mut longest = Duration::ZERO;
    for i in 0..400 {
        let began = rt.now();
        ks.put(key(i * 7919 % 1000), [i as u8; 4000]).unwrap();
        longest = longest.max(rt.now().since(began));
        rt.sleep(Duration::from_millis(1));
    }
    assert!(longest < Duration::from_secs(1), "a put waited {longest:?}");
    let stats = store.stats();
    let running = stats.jobs.iter().filter(|job| job.from_level.is_some());
    assert!(running.count() > 0, "no compaction began");
    assert_eq!(stats.counter("compaction_count"), 0);
    store.set_option("background_bytes_per_s", "0").unwrap();
    store.wait_until_idle().unwrap();
    assert_eq!(ks.iter().unwrap().count(), 400);
}

/// A simulated process has one core. A compaction pauses there while a flush runs, under every
/// policy, as long as level 0 is short, and for three quarters of the time at most. If level 0 is
/// so deep that writers wait for it soon, it does not pause.
fn compactions_leave_the_cores_to_writers_and_flushes(rt: Runtime, seed: u64) {
    for is_short in [true, false] {
        let disk = Disk::new(&rt);
        let policy = POLICIES[(seed % 4) as usize];
        let mut options = Options {
            background_bytes_per_s: 100_000,
            l0_trigger_count: 2,
            memtable_bytes: 1 << 20,
            table_bytes: 1 << 20,
            level1_bytes: 1 << 20,
            ..tight(policy)
        };
        if !is_short {
            options.l0_slowdown_count = 3;
            options.l0_stop_count = 3;
        }
        let store = disk.open_with(options);
        let ks = store.default_keyspace().unwrap();
        let fill = |round: u64| {
            (0..200).for_each(|i| ks.put(key(i * 7919 + round), [i as u8; 4000]).unwrap());
            ks.flush().unwrap();
        };
        fill(0);
        fill(1);
        let begins = (0..1000).any(|_| {
            rt.sleep(Duration::from_millis(1));
            let jobs = store.stats().jobs;
            jobs.iter().any(|job| job.from_level.is_some())
        });
        assert!(begins, "no compaction began");
        slow_flushes(&disk, Duration::from_secs(20));
        let begun = rt.now();
        fill(2);
        let flush_us = rt.now().since(begun).as_micros() as u64;
        let paused_us = store.stats().counter("compaction_pause_us");
        let expected = match is_short {
            true => 1_000_000..=flush_us * 3 / 4,
            false => 0..=0,
        };
        assert!(
            expected.contains(&paused_us),
            "{policy:?}: a pause of {paused_us} us in {flush_us} us"
        );
        store.set_option("background_bytes_per_s", "0").unwrap();
        store.wait_until_idle().unwrap();
        assert_eq!(ks.iter().unwrap().count(), 600);
    }
}
