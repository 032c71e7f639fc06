//! The end of a closed log, and damage in parts of a log that are not needed (RFC 1, section 15).

use siltstone::log::Position;
use siltstone::log::format::segment_name;
use siltstone::manifest::{manifest_name, recover};
use siltstone::{Options, SyncMode};
use siltstone_storage::{CrashPolicy, MemoryStorage, Runtime, Storage};

use super::damaged_logs::*;
use super::*;

pub const ALL: &[Story] = &[
    (
        "a_closed_log_is_whole_or_damaged",
        3,
        a_closed_log_is_whole_or_damaged,
    ),
    (
        "the_manifest_of_a_closed_store_is_whole_or_damaged",
        3,
        the_manifest_of_a_closed_store_is_whole_or_damaged,
    ),
    ("a_log_of_a_copy_is_refused", 2, a_log_of_a_copy_is_refused),
    (
        "the_log_of_a_later_life_does_not_hide_a_loss",
        1,
        the_log_of_a_later_life_does_not_hide_a_loss,
    ),
    (
        "a_killed_log_may_be_damaged_where_it_is_not_needed",
        2,
        a_killed_log_may_be_damaged_where_it_is_not_needed,
    ),
    (
        "a_close_is_cut_off_at_every_call",
        6,
        a_close_is_cut_off_at_every_call,
    ),
    (
        "a_closed_store_is_durable_in_every_mode",
        3,
        a_closed_store_is_durable_in_every_mode,
    ),
    ("a_close_on_a_full_disk", 1, a_close_on_a_full_disk),
    (
        "a_close_while_data_waits_for_room",
        1,
        a_close_while_data_waits_for_room,
    ),
    (
        "a_drop_beside_a_flush_keeps_the_log",
        40,
        a_drop_beside_a_flush_keeps_the_log,
    ),
    (
        "the_log_does_not_start_behind_the_synced_position",
        1,
        the_log_does_not_start_behind_the_synced_position,
    ),
    (
        "a_checkpoint_is_a_closed_store",
        1,
        a_checkpoint_is_a_closed_store,
    ),
];

/// A store is closed, and then every kind of part of its log is damaged. What is needed is never
/// lost silently, and damage to what is not needed refuses no open.
fn a_closed_log_is_whole_or_damaged(rt: Runtime, seed: u64) {
    let disk = Disk::new(&rt);
    let store = write_two_keyspaces(&disk, seed);
    let wanted = contents(&store);
    store.close().unwrap();
    let closed = state(&disk);
    assert!(closed.closed);
    let (start, end) = (start_of(&closed), synced_of(&closed));
    match seed {
        0 => assert!(start.offset > 0 && start < end, "{start} to {end}"),
        1 => assert_eq!(start, end),
        _ => assert!(
            start < end && start.segment < end.segment,
            "{start} to {end}"
        ),
    }
    assert_eq!(judge(&disk.kill(), &wanted, "nothing"), (true, false));
    let beginning = Position::new(start.segment, 0);
    let (mut opened, mut refused) = (0, 0);
    for hit in hits(&disk, start.segment, end.segment) {
        let ends = match hit.segment == end.segment {
            true => u64::from(end.offset),
            false => records(&disk.memory, hit.segment)
                .last()
                .map_or(64, |last| last.end),
        };
        let what = &hit.what;
        let (opens, passed) = judge(&hit.apply(&disk), &wanted, what);
        assert_eq!(
            opens,
            !hit.meets(start, end, ends),
            "{what}: log from {start} to {end}"
        );
        if opens {
            opened += 1;
            assert_eq!(passed, hit.meets(beginning, end, ends), "{what}");
        } else {
            refused += 1;
            let error = hit
                .apply(&disk)
                .try_open(options())
                .map(|_| ())
                .unwrap_err();
            let said = "the store was closed with its log ending there";
            let missing = error
                .to_string()
                .contains("the log's first segment is missing");
            let displaced = error.to_string().contains("another segment's name");
            assert!(
                error.to_string().contains(said) || missing || displaced,
                "{what}: {error}"
            );
        }
    }
    assert!(opened > 5, "{opened} opened, {refused} refused");
    assert_eq!(
        refused == 0,
        seed == 1,
        "{opened} opened, {refused} refused"
    );
}

/// The same for a store that was killed. Damage before the log's start, in a file that contains the
/// start, is skipped. A start segment that is missing or cut is not, because it is unknown what was
/// behind it.
fn a_killed_log_may_be_damaged_where_it_is_not_needed(rt: Runtime, seed: u64) {
    let disk = Disk::new(&rt);
    let store = write_two_keyspaces(&disk, seed);
    let wanted = contents(&store);
    let disk = disk.kill();
    let killed = state(&disk);
    assert!(!killed.closed);
    let (start, synced) = (start_of(&killed), synced_of(&killed));
    assert!(
        start.offset > 64 && start <= synced,
        "{start}, synced {synced}"
    );
    let last = records(&disk.memory, start.segment)
        .iter()
        .rfind(|record| record.end <= u64::from(start.offset))
        .cloned();
    let (mut passed_count, mut refused) = (0, 0);
    for hit in hits(&disk, start.segment, start.segment) {
        let what = &hit.what;
        let copy = hit.apply(&disk);
        let is_gone = hit.change.is_none()
            || copy.memory.open(&segment_name(hit.segment)).unwrap().len()
                < u64::from(start.offset);
        let before_start = hit.bytes.end <= u64::from(start.offset);
        let opened = copy.try_open(options());
        if is_gone {
            let error = opened.map(|_| ()).unwrap_err();
            assert!(error.is_corruption(), "{what}: {error}");
            refused += 1;
        } else if before_start {
            let store = opened.unwrap_or_else(|e| panic!("{what}: {e}"));
            assert_eq!(
                contents(&store),
                wanted,
                "{what}, log from {start}, last {last:?}"
            );
            assert_eq!(
                store.stats().counter("skipped_log_damage_count"),
                1,
                "{what}"
            );
            passed_count += 1;
        } else if let Ok(store) = opened {
            // What was never synced may end anywhere, and the flushed part never does.
            let a = store.keyspace("a").unwrap();
            assert_eq!(prefix_len(&a), 35, "{what}");
        }
    }
    assert!(
        passed_count > 5 && refused > 1,
        "{passed_count} passed, {refused} refused"
    );
}

/// A close is interrupted at each of its calls, by a kill or by a power loss. A kill loses nothing,
/// and a power loss leaves a prefix. Once the edit is there, the state says that the store was
/// closed, and that is true.
fn a_close_is_cut_off_at_every_call(rt: Runtime, seed: u64) {
    let disk = Disk::new(&rt);
    let store = write_two_keyspaces(&disk, seed % 3);
    let wanted = contents(&store);
    disk.memory.start_journal();
    store.close().unwrap();
    let calls = disk.memory.journal_len();
    assert!(calls >= 3, "the edit, its sync and its seal: {calls}");
    let mut closed_count = 0;
    let mut replay = disk.memory.replay();
    for n in 0..=calls {
        replay.advance_to(n);
        let killed = Disk::on(&rt, replay.kill_in(&rt));
        let is_closed = state(&killed).closed;
        closed_count += u64::from(is_closed);
        assert_eq!(
            contents(&killed.open_with(options())),
            wanted,
            "killed at call {n}"
        );
        for policy in [
            CrashPolicy::LoseUnsynced,
            CrashPolicy::KeepUnsynced,
            CrashPolicy::Seeded(seed * 1000 + n),
        ] {
            let lost = Disk::on(&rt, replay.crash_in(&rt, policy).0);
            let is_closed = state(&lost).closed;
            let store = lost.open_with(options());
            if is_closed || n == calls {
                assert_eq!(contents(&store), wanted, "{policy:?} at call {n}, closed");
            } else {
                prefix_len(&store.keyspace("b").unwrap());
            }
        }
    }
    assert!(closed_count >= 2, "{closed_count} of {calls}");
    let ends = state(&disk);
    assert!(ends.closed && start_of(&ends) <= synced_of(&ends));
}

/// The power is lost right after a close, in every sync mode: everything is there.
fn a_closed_store_is_durable_in_every_mode(rt: Runtime, seed: u64) {
    let disk = Disk::new(&rt);
    let sync = [
        SyncMode::Never,
        SyncMode::Interval(std::time::Duration::from_secs(3600)),
        SyncMode::Always,
    ][seed as usize];
    let store = disk.open_with(Options { sync, ..options() });
    let (a, b) = two(&store);
    fill(&[&a, &b], 0..40);
    a.flush().unwrap();
    fill(&[&a], 40..50);
    let wanted = contents(&store);
    drop((a, b));
    // A handle that is dropped without a close leaves what a kill leaves.
    let killed = disk.kill();
    drop(killed.open_with(options()));
    assert!(!state(&killed).closed, "nobody closed it");
    store.close().unwrap();
    for n in 0..20 {
        let policy = match n {
            0 => CrashPolicy::LoseUnsynced,
            _ => CrashPolicy::Seeded(n),
        };
        let lost = disk.crash(policy);
        assert!(state(&lost).closed, "{policy:?}");
        assert_eq!(
            contents(&lost.open_with(options())),
            wanted,
            "{sync:?}, {policy:?}"
        );
    }
}

/// A close on a full disk: the log was synced, and the edit takes bytes that the manifest has
/// reserved.
fn a_close_on_a_full_disk(rt: Runtime, _seed: u64) {
    let disk = Disk::new(&rt);
    let store = write_two_keyspaces(&disk, 0);
    let wanted = contents(&store);
    let used = disk.memory.used_bytes();
    disk.memory.set_capacity(Some(used));
    // Ceilings are edits that may not use the reserved bytes, so they fill the manifest up to
    // those.
    let hooks = store.test_hooks();
    let mut filled = 0;
    while hooks.raise_ceiling().is_ok() {
        filled += 1;
        assert!(filled < 10_000, "the manifest never filled");
    }
    store.close().unwrap();
    assert!(state(&disk).closed);
    for lost in [disk.kill(), disk.lose_power()] {
        assert_eq!(contents(&lost.unlimited().open_with(options())), wanted);
    }
}

/// An open on a full disk keeps the replayed data in memory, and a replay reads the inherited log.
/// A close then records where that log ends, and damage in it is damage.
fn a_close_while_data_waits_for_room(rt: Runtime, _seed: u64) {
    let disk = Disk::new(&rt);
    let store = write_two_keyspaces(&disk, 2);
    let wanted = contents(&store);
    // The log is synced as a whole, so the synced position that the manifest must have later is its
    // end.
    store.sync_log().unwrap();
    let disk = disk.kill();
    let before = state(&disk);
    let mut waited = 0;
    for room in (0..200u64).step_by(10) {
        let full = disk.kill();
        let capacity = full.memory.used_bytes() + room * 1024;
        full.memory.set_capacity(Some(capacity));
        let Ok(store) = full.try_open(options()) else {
            continue;
        };
        if store.stats().health == "good" {
            continue;
        }
        waited += 1;
        let waiting = state(&full);
        assert_eq!(waiting.log_start, before.log_start, "{room} KiB are free");
        assert!(!waiting.closed);
        store.close().unwrap();
        let closed = state(&full);
        assert!(closed.closed, "{room} KiB are free");
        assert_eq!(closed.log_start, before.log_start);
        let full = full.kill().unlimited();
        assert_eq!(
            judge(&full.kill(), &wanted, "closed while waiting"),
            (true, false)
        );
        let end = synced_of(&closed);
        let name = segment_name(end.segment);
        let cut = full.kill();
        cut.memory
            .damage(&name, |bytes| bytes.truncate(end.offset as usize - 8))
            .unwrap();
        assert_eq!(
            judge(&cut, &wanted, "the inherited log cut"),
            (false, false)
        );
    }
    assert!(waited > 3, "the disk was never full: {waited}");
}

/// A keyspace is dropped while another one is flushed. A power loss may undo the drop, and the
/// keyspace then has everything that was synced.
fn a_drop_beside_a_flush_keeps_the_log(rt: Runtime, seed: u64) {
    let disk = Disk::new(&rt);
    let store = disk.open_with(options());
    let (a, b) = two(&store);
    for i in 0..10 {
        put_synced(&b, &key(i), &[7; 100]);
    }
    // This goes into the next segment, so that the log may start behind what the other keyspace
    // has.
    fill(&[&a], 0..60);
    disk.memory.start_journal();
    let dropping = {
        let store = store.clone();
        let rt = rt.clone();
        let pause = std::time::Duration::from_micros(seed * 10);
        rt.clone()
            .spawn("drop", move || {
                rt.sleep(pause);
                store.drop_keyspace("b").unwrap();
            })
            .unwrap()
    };
    a.flush().unwrap();
    dropping.join().unwrap();
    let calls = disk.memory.journal_len();
    let mut replay = disk.memory.replay();
    for n in 0..=calls {
        replay.advance_to(n);
        let lost = Disk::on(&rt, replay.crash_in(&rt, CrashPolicy::LoseUnsynced).0);
        let store = lost.open_with(options());
        if let Ok(b) = store.keyspace("b") {
            assert_eq!(prefix_len(&b), 10, "power loss at call {n} of {calls}");
        }
    }
}

/// The log starts at its end if nothing needs it, but never behind the synced position: a power
/// loss may take the header of a fresh segment.
fn the_log_does_not_start_behind_the_synced_position(rt: Runtime, _seed: u64) {
    let disk = Disk::new(&rt);
    let store = disk.open_with(options());
    let ks = store.default_keyspace().unwrap();
    for i in 0..120 {
        ks.put(&key(i), &[7; 1500]).unwrap();
        ks.flush().unwrap();
        let now = state(&disk);
        let (start, synced) = (start_of(&now), synced_of(&now));
        assert!(
            start <= synced,
            "after {i} records: {start}, synced {synced}"
        );
        if i % 10 == 0 {
            let lost = disk.lose_power();
            let found = prefix_len(&lost.open_with(options()).default_keyspace().unwrap());
            assert_eq!(found, i + 1);
        }
    }
}

/// A checkpoint is a closed store with an empty log, so damage to that log loses nothing.
fn a_checkpoint_is_a_closed_store(rt: Runtime, _seed: u64) {
    let disk = Disk::new(&rt);
    let store = write_two_keyspaces(&disk, 0);
    let wanted = contents(&store);
    let target = MemoryStorage::new(&rt);
    store.checkpoint_to(Arc::new(target.clone())).unwrap();
    let copy = Disk::on(&rt, target);
    let made = state(&copy);
    assert!(made.closed && start_of(&made) == synced_of(&made));
    let start = made.log_start.segment as u32;
    for hit in hits(&copy, start, start) {
        let end = u64::from(synced_of(&made).offset);
        let (opens, passed) = judge(&hit.apply(&copy), &wanted, &hit.what);
        assert_eq!(
            (opens, passed),
            (true, hit.bytes.start < end),
            "{}",
            hit.what
        );
    }
}

/// A manifest that was cut at the end of an edit, or whose tail became zeros, looks like a shorter
/// one: the tables of the later edits would be deleted, and the end of the log forgotten. A closed
/// store knows how far its manifest reaches, so every cut is damage, whatever happened to the log.
fn the_manifest_of_a_closed_store_is_whole_or_damaged(rt: Runtime, seed: u64) {
    let disk = Disk::new(&rt);
    let store = write_two_keyspaces(&disk, seed);
    let wanted = contents(&store);
    store.close().unwrap();
    let read = recover(&disk.memory).unwrap().expect("a store");
    let (name, end) = (manifest_name(read.current.number), read.end.offset);
    assert_eq!(read.current.end, end, "the pointer says how far it reaches");
    let whole = disk.memory.read_small(&name).unwrap();
    for at in (0..end).step_by(8) {
        let are_zeros = whole[at as usize..end as usize].iter().all(|b| *b == 0);
        for (what, zeros, logs) in [
            ("cut", false, true),
            ("zeros", true, true),
            ("cut, no logs", false, false),
        ] {
            if zeros && are_zeros {
                continue;
            }
            let what = format!("{what}: {name} at {at} of {end}");
            let copy = disk.kill();
            copy.memory
                .damage(&name, |bytes| match zeros {
                    true => bytes[at as usize..].fill(0),
                    false => bytes.truncate(at as usize),
                })
                .unwrap();
            if !logs {
                let lease = copy.memory.lease("store").unwrap();
                for log in copy.names(".log") {
                    copy.memory.delete(lease.epoch(), &log).unwrap();
                }
            }
            refuses(&copy, &name, &wanted, &what);
        }
    }
}

/// Two copies of a store are written, and the log of one is put under the manifest of the other.
/// The store, the segment number and the records are valid, and yet they are not what was written.
fn a_log_of_a_copy_is_refused(rt: Runtime, seed: u64) {
    let disk = Disk::new(&rt);
    disk.open_with(options()).close().unwrap();
    let (ours, theirs) = (disk.kill(), disk.kill());
    let live = |disk: &Disk, value: &[u8]| {
        let store = disk.open_with(options());
        let keyspace = store.default_keyspace().unwrap();
        keyspace.put(value, value).unwrap();
        let wanted = contents(&store);
        store.close().unwrap();
        wanted
    };
    let wanted = live(&ours, b"ours");
    live(&theirs, if seed == 0 { b"hers" } else { b"a longer one" });
    let names = ours.names(".log");
    assert_eq!((names.len(), &names), (1, &theirs.names(".log")));
    let foreign = theirs.memory.read_small(&names[0]).unwrap();
    ours.memory
        .damage(&names[0], |bytes| *bytes = foreign.clone())
        .unwrap();
    refuses(&ours, &names[0], &wanted, "the log of a copy");
}

/// The log of a closed store is missing, and an empty segment of a later open is there instead.
fn the_log_of_a_later_life_does_not_hide_a_loss(rt: Runtime, _: u64) {
    let disk = Disk::new(&rt);
    for n in 0..2 {
        let store = disk.open_with(options());
        fill(&[&store.default_keyspace().unwrap()], n..n + 1);
        store.close().unwrap();
    }
    let later = disk.kill();
    let store = later.open_with(options());
    let wanted = contents(&store);
    store.flush().unwrap();
    store.close().unwrap();
    let log = disk.names(".log");
    let lease = disk.memory.lease("store").unwrap();
    for name in &log {
        disk.memory.delete(lease.epoch(), name).unwrap();
    }
    for name in later.names(".log") {
        let bytes = later.memory.read_small(&name).unwrap();
        let file = disk.memory.create(lease.epoch(), &name).unwrap();
        file.append(&[&bytes]).unwrap();
    }
    drop(lease);
    refuses(&disk, &log[0], &wanted, "the log of a later life");
}
