//! More attacks on the end of a closed log (RFC 1, section 15.7).

use std::collections::BTreeMap;
use std::ops::Range;

use siltstone::ErrorKind;
use siltstone::check::{CheckStorages, check as check_store};
use siltstone::log::format::{parse_segment_name, segment_name};
use siltstone_storage::StorageErrorKind;
use siltstone_storage::fault::{Fault, Rule};
use siltstone_storage::{CrashPolicy, Epoch, OpKind, Runtime, Storage};

use super::damaged_logs::*;
use super::*;

pub const ALL: &[Story] = &[
    (
        "an_older_manifest_is_not_believed",
        2,
        an_older_manifest_is_not_believed,
    ),
    (
        "damage_is_still_skipped_on_a_full_disk",
        1,
        damage_is_still_skipped_on_a_full_disk,
    ),
    (
        "a_close_deletes_obsolete_segments",
        10,
        a_close_deletes_obsolete_segments,
    ),
    (
        "unreadable_bytes_that_are_not_needed_are_skipped",
        3,
        unreadable_bytes_that_are_not_needed_are_skipped,
    ),
    (
        "a_repair_loses_nothing_without_saying_so",
        1,
        a_repair_loses_nothing_without_saying_so,
    ),
    (
        "closed_logs_are_changed_at_random",
        60,
        closed_logs_are_changed_at_random,
    ),
    (
        "killed_logs_are_changed_at_random",
        60,
        killed_logs_are_changed_at_random,
    ),
    ("every_fault_of_a_close", 6, every_fault_of_a_close),
];

/// The files for which `is_wanted` is true, with their bytes.
fn files(disk: &Disk, is_wanted: impl Fn(&str) -> bool) -> BTreeMap<String, Vec<u8>> {
    let names = disk.names("").into_iter().filter(|name| is_wanted(name));
    names
        .filter_map(|name| {
            // The store may be open and delete a file meanwhile.
            let file = disk.memory.open(&name).ok()?;
            let mut bytes = vec![0; file.len() as usize];
            file.read_at(0, &mut bytes).ok()?;
            Some((name, bytes))
        })
        .collect()
}

fn is_of_manifest(name: &str) -> bool {
    name == "CURRENT" || name.starts_with("MANIFEST-")
}

fn is_of_log(name: &str) -> bool {
    parse_segment_name(name).is_some()
}

/// Replaces all files for which `is_wanted` is true by these.
fn put_back(disk: &Disk, is_wanted: fn(&str) -> bool, files: &BTreeMap<String, Vec<u8>>) {
    let lease = disk.memory.lease("store").unwrap();
    for name in disk.names("").into_iter().filter(|name| is_wanted(name)) {
        disk.memory.delete(lease.epoch(), &name).unwrap();
    }
    for (name, bytes) in files {
        disk.memory.replace(lease.epoch(), name, bytes).unwrap();
    }
}

/// The manifest of an earlier close is put back. Its log starts in a segment that was deleted
/// later, and nothing in that segment is needed. The missing segment was skipped, and the store
/// opened without what was written later, and deleted it.
fn an_older_manifest_is_not_believed(rt: Runtime, seed: u64) {
    let disk = Disk::new(&rt);
    write_two_keyspaces(&disk, 1).close().unwrap();
    let older = files(&disk, is_of_manifest);
    let store = disk.open_with(options());
    fill(&[&store.keyspace("a").unwrap()], 100..110);
    let wanted = contents(&store);
    let disk = match seed {
        0 => {
            store.close().unwrap();
            disk.kill()
        }
        _ => disk.kill(),
    };
    assert_eq!(contents(&disk.kill().open_with(options())), wanted);
    put_back(&disk, is_of_manifest, &older);
    let names = disk.names("");
    let error = disk.try_open(options()).map(|_| ()).unwrap_err();
    assert!(error.is_corruption(), "{error}");
    assert!(error.to_string().contains("older than the log"), "{error}");
    let left = disk.names("");
    assert!(names.iter().all(|name| left.contains(name)), "{left:?}");
    let checked = check_store(&CheckStorages::on(&disk.memory), &mut |_| {}).unwrap();
    assert!(!checked.is_sound());
}

/// The first segment of a closed store is missing and not needed, and the store is opened on a full
/// disk: the new manifest keeps the log's start, and is not marked as closed. After a kill the
/// store could not be opened, because in one that was not closed a missing segment is damage.
fn damage_is_still_skipped_on_a_full_disk(rt: Runtime, _seed: u64) {
    let disk = Disk::new(&rt);
    let store = disk.open_with(options());
    let (a, b) = two(&store);
    fill(&[&a], 0..20);
    store.flush().unwrap();
    // This goes into the next segment, so the log starts where the records of the first one end.
    b.put(b"large", &[7; 40_000]).unwrap();
    fill(&[&b], 0..80);
    let wanted = contents(&store);
    drop((a, b));
    store.close().unwrap();
    let closed = state(&disk);
    let (start, end) = (start_of(&closed), synced_of(&closed));
    let first = records(&disk.memory, start.segment);
    assert_eq!(first.last().unwrap().end, u64::from(start.offset));
    assert!(start.segment < end.segment);
    for what in ["missing", "cut", "unreadable"] {
        let mut waited = 0;
        for room in (0..300u64).step_by(10) {
            let full = disk.kill();
            let name = segment_name(start.segment);
            let fault = Fault::Unreadable { start: 0, end: 500 };
            let unreadable = || Rule::on_reads(fault).named(&name).for_good();
            let lease = full.memory.lease("store").unwrap();
            match what {
                "missing" => full.memory.delete(lease.epoch(), &name).unwrap(),
                "unreadable" => drop(full.faults.add(unreadable())),
                _ => full.memory.damage(&name, |b| b.truncate(500)).unwrap(),
            }
            drop(lease);
            let capacity = full.memory.used_bytes() + room * 1024;
            full.memory.set_capacity(Some(capacity));
            let Ok(store) = full.try_open(options()) else {
                continue;
            };
            assert_eq!(contents(&store), wanted);
            let is_good = store.stats().health == "good";
            waited += u64::from(!is_good);
            for killed in [full.kill(), full.lose_power()] {
                // The disk is still full, and what could not be read still cannot be read.
                let again = killed.kill();
                if what == "unreadable" {
                    again.faults.add(unreadable());
                    // A file that cannot be read cannot be rewritten. The fault does not simulate
                    // that.
                    let rewrite = Rule::on(OpKind::Sync, Fault::Fail(StorageErrorKind::Io));
                    again.faults.add(rewrite.named(&name).for_good());
                }
                match again.try_open(options()) {
                    Ok(store) => assert_eq!(contents(&store), wanted, "{what}, {room} KiB"),
                    Err(error) => {
                        let kind = error.kind();
                        assert_eq!(kind, ErrorKind::NoSpace, "{what}, {room} KiB: {error}");
                    }
                }
                let again = killed
                    .unlimited()
                    .try_open(options())
                    .unwrap_or_else(|e| panic!("{what}, {room} KiB, good {is_good}: {e}"));
                assert_eq!(contents(&again), wanted, "{what}, {room} KiB");
            }
            store.close().unwrap();
            assert_eq!(
                contents(&full.kill().unlimited().open_with(options())),
                wanted,
                "{what}, {room} KiB, closed"
            );
        }
        assert!(waited > 3, "the disk was never full: {waited}");
    }
}

/// Segments that a flush made obsolete right before a close stayed until the next open.
fn a_close_deletes_obsolete_segments(rt: Runtime, seed: u64) {
    let disk = Disk::new(&rt);
    let store = disk.open_with(options());
    let (a, b) = two(&store);
    fill(&[&a, &b], 0..60);
    assert!(store.stats().log.live_segment_count > 2);
    if seed.is_multiple_of(2) {
        store.flush().unwrap();
    } else {
        a.flush().unwrap();
        b.flush().unwrap();
    }
    let wanted = contents(&store);
    drop((a, b));
    store.close().unwrap();
    assert_eq!(disk.names(".log").len(), 1, "{:?}", disk.names(".log"));
    assert_eq!(contents(&disk.open_with(options())), wanted);
}

/// What an open, a check and a repair make of a disk on which some bytes of the log cannot be read.
fn judge_unreadable(disk: &Disk, wanted: &Contents, rule: Rule, what: &str) -> Result<u64, String> {
    disk.faults.clear();
    disk.faults.add(rule);
    let storage: Arc<dyn Storage> = Arc::new(disk.faults.clone());
    let checked = check_store(&CheckStorages::on(&disk.faults), &mut |_| {})
        .unwrap_or_else(|e| panic!("{what}: check: {e}"));
    let lost_nothing = match Repaired::of(disk, storage.clone()) {
        Ok(repaired) => {
            let report = &repaired.report;
            assert!(
                !report.lost_nothing() || repaired.contents() == *wanted,
                "{what}: {report:?}"
            );
            report.lost_nothing()
        }
        // An open that fails may succeed the next time, and nothing is known about the segment.
        Err(error) => {
            assert!(what.contains("opened"), "{what}: repair: {error}");
            true
        }
    };
    let reading = Components::on(storage, disk.rt.clone());
    let reading = Store::open_read_only_with(reading, options()).map(|store| contents(&store));
    let opened = disk.try_open(options());
    match opened {
        Err(error) => {
            assert!(!checked.is_sound(), "{what}: check finds nothing");
            assert!(reading.is_err(), "{what}: it opens for reading only");
            let file = error.file().unwrap_or_default();
            assert!(parse_segment_name(file).is_some(), "{what}: {error}");
            Err(error.to_string())
        }
        Ok(store) => {
            assert_eq!(contents(&store), *wanted, "{what}");
            assert_eq!(reading.unwrap(), *wanted, "{what}: read-only");
            assert!(lost_nothing, "{what}: repair says that something is lost");
            let passed = store.stats().counter("skipped_log_damage_count");
            assert_eq!(
                checked.is_sound(),
                passed == 0,
                "{what}: {:?}",
                checked.problems
            );
            Ok(passed)
        }
    }
}

/// A failing read refused the open wherever it was. If the bytes are not needed, the failure is
/// skipped and reported, as damage is.
fn unreadable_bytes_that_are_not_needed_are_skipped(rt: Runtime, seed: u64) {
    let disk = Disk::new(&rt);
    // A closed store with records that are needed, one without, and a killed one.
    let store = write_two_keyspaces(&disk, seed % 2);
    let wanted = contents(&store);
    let disk = match seed {
        0 | 1 => {
            store.close().unwrap();
            disk.kill()
        }
        _ => {
            store.sync_log().unwrap();
            disk.kill()
        }
    };
    let before = state(&disk);
    let (start, end) = (start_of(&before), synced_of(&before));
    assert_eq!(before.closed, seed < 2);
    let name = segment_name(start.segment);
    let offset = u64::from(start.offset);
    let all: Vec<Range<u64>> = records(&disk.memory, start.segment);
    let unreadable = |segment: u32, bytes: &Range<u64>| {
        let fault = Fault::Unreadable {
            start: bytes.start,
            end: bytes.end,
        };
        let name = segment_name(segment);
        Rule::on_reads(fault).named(name).for_good()
    };
    let mut passed = 0;
    let parts = all.iter().map(|r| r.start..r.start + 1);
    let parts = parts.chain(all.iter().map(|r| r.end - 1..r.end));
    for part in parts.chain([0..1, 32..40, 0..offset - 512, 63..offset - 512]) {
        // Media lose whole sectors.
        let part = part.start & !511..part.end.next_multiple_of(512);
        let what = format!("{part:?} of {name}, log from {start} to {end}, seed {seed}");
        let found = judge_unreadable(
            &disk.kill(),
            &wanted,
            unreadable(start.segment, &part),
            &what,
        );
        if part.end <= offset || before.closed && start == end {
            assert_eq!(found, Ok(1), "{what}");
            passed += 1;
        } else {
            let said = found.expect_err(&what);
            assert!(said.contains("cannot be read"), "{what}: {said}");
        }
    }
    // The four parts that are not those of records lie before the log's start. Of each record, the
    // sector of its first byte and that of its last one were tried. Those that end before the log's
    // start are skipped, and all of them if nothing in the log is needed.
    let nothing_is_needed = before.closed && start == end;
    let sectors_end = offset & !511;
    let skipped = all.iter().flat_map(|r| [r.start, r.end - 1]);
    let skipped = skipped.filter(|at| nothing_is_needed || *at < sectors_end);
    let what = format!("log from {start} to {end}, records at {all:?}, seed {seed}");
    assert_eq!(passed, 4 + skipped.count(), "{what}");
    // How many records lie before the log's start depends on how many fill a segment.
    let before_start = all.iter().filter(|r| r.end <= offset).count();
    assert!(before_start > 0, "{what}");
    assert_eq!(before_start == all.len(), nothing_is_needed, "{what}");
    // The file cannot be opened at all.
    let open = Rule::on(OpKind::Open, Fault::Fail(StorageErrorKind::Io));
    let open = open.named(&name).for_good();
    let found = judge_unreadable(&disk.kill(), &wanted, open, "cannot be opened");
    assert_eq!(found.is_ok(), seed == 1, "{found:?}");
    // Nothing follows the end of a closed log.
    if before.closed {
        let file = segment_name(end.segment);
        let len = disk.memory.open(&file).unwrap().len();
        let from = u64::from(end.offset);
        let from = from.next_multiple_of(512);
        for part in [from..from + 1, from..len, len - 1..len] {
            let copy = disk.kill();
            let what = format!("{part:?} of {file}, which ends at {end}");
            let found = judge_unreadable(&copy, &wanted, unreadable(end.segment, &part), &what);
            assert_eq!(found, Ok(0), "{what}");
        }
        let copy = disk.kill();
        let stray = segment_name(end.segment + 1);
        copy.memory
            .replace(Epoch::default(), &stray, &[7; 9000])
            .unwrap();
        let rule = unreadable(end.segment + 1, &(0..9000));
        let found = judge_unreadable(&copy, &wanted, rule, "a file behind the end");
        assert_eq!(found, Ok(0));
    }
}

/// Bytes become unreadable during a repair, which reads the log twice. The repair fails, or its
/// report names what is lost.
fn a_repair_loses_nothing_without_saying_so(rt: Runtime, _seed: u64) {
    let disk = Disk::new(&rt);
    let store = write_two_keyspaces(&disk, 2);
    let wanted = contents(&store);
    store.close().unwrap();
    let name = segment_name(start_of(&state(&disk)).segment);
    let mut refused = 0;
    for n in 0.. {
        let disk = disk.kill();
        let fault = Fault::Unreadable {
            start: 0,
            end: 30_000,
        };
        let rule = Rule::on_reads(fault).named(&name).nth(n).for_good();
        let rule = disk.faults.add(rule);
        match Repaired::of(&disk, Arc::new(disk.faults.clone())) {
            Ok(repaired) if repaired.report.lost_nothing() => {
                assert_eq!(repaired.contents(), wanted, "unreadable from read {n} on");
            }
            Ok(_) => {}
            Err(error) => {
                let text = error.to_string();
                assert!(
                    text.contains("the first time but not the second time"),
                    "{text}"
                );
                refused += 1;
            }
        }
        if disk.faults.fired_count(rule) == 0 {
            break;
        }
    }
    assert!(refused > 0);
}

/// Damages the files of a log as no single fault does: cuts, gaps, bits, garbage behind the end,
/// exchanged files, older copies. Returns a description.
fn change_at_random(
    disk: &Disk,
    dice: &mut Dice,
    older: &[BTreeMap<String, Vec<u8>>],
    from: u32,
) -> String {
    let mut done = Vec::new();
    for _ in 0..1 + dice.below(2) {
        let mut names: Vec<String> = files(disk, is_of_log).into_keys().collect();
        // Nothing below the start is read.
        names.retain(|name| parse_segment_name(name) >= Some(from) || dice.below(4) == 0);
        if names.is_empty() {
            break;
        }
        let name = names[dice.below(names.len() as u64) as usize].clone();
        let other = names[dice.below(names.len() as u64) as usize].clone();
        let of = |name: &str| files(disk, |n| n == name)[name].clone();
        let mut bytes = of(&name);
        let len = bytes.len().max(1) as u64;
        let at = match dice.below(3) {
            0 => dice.below(len.min(200)),
            _ => dice.below(len),
        } as usize;
        let at = at.min(bytes.len());
        let upto = (at + 1 + dice.below(3000) as usize).min(bytes.len());
        let what = match dice.below(10) {
            0 => {
                bytes.truncate(at);
                "cut"
            }
            1 => {
                bytes.truncate(at & !7);
                bytes.resize(len as usize, 0);
                "zeros behind"
            }
            2 if at < bytes.len() => {
                bytes[at] ^= 1 << dice.below(8);
                "flip"
            }
            3 => {
                bytes[at..upto].fill(0);
                "zeros"
            }
            4 => {
                let garbage = bytes[at..upto].to_vec();
                bytes.extend(garbage);
                "more of itself"
            }
            5 => {
                bytes.extend(vec![0; 5000]);
                "longer"
            }
            6 => {
                let exchanged = of(&other);
                disk.memory
                    .replace(Epoch::default(), &other, &bytes)
                    .unwrap();
                bytes = exchanged;
                "exchanged"
            }
            7 => {
                let with = older.iter().rev().find_map(|files| files.get(&name));
                bytes = with.cloned().unwrap_or_default();
                "an older copy"
            }
            8 => {
                bytes.clear();
                "empty"
            }
            _ => {
                let lease = disk.memory.lease("store").unwrap();
                disk.memory.delete(lease.epoch(), &name).unwrap();
                done.push(format!("{name} is missing"));
                continue;
            }
        };
        disk.memory
            .replace(Epoch::default(), &name, &bytes)
            .unwrap();
        done.push(format!(
            "{name} of {len} bytes at {at} to {upto}, {other}: {what}"
        ));
    }
    done.join("; ")
}

/// A short life of two keyspaces: every state that they had, and the log's files at some times.
struct Life {
    store: Store,
    states: Vec<Contents>,
    /// The number of states that tables have.
    flushed: usize,
    older: Vec<BTreeMap<String, Vec<u8>>>,
}

fn live_at_random(disk: &Disk, dice: &mut Dice) -> Life {
    let store = disk.open_with(options());
    let (a, b) = two(&store);
    let empty = contents(&store);
    let mut life = Life {
        store,
        states: vec![empty],
        flushed: 0,
        older: Vec::new(),
    };
    for i in 0..30 + dice.below(60) {
        let ks = [&a, &b][dice.below(2) as usize];
        let mut now = life.states.last().unwrap().clone();
        let (key, value) = match dice.below(8) {
            0 => (Vec::new(), Vec::new()),
            1 => (key(dice.below(40)), Vec::new()),
            _ => (
                key(dice.below(40)),
                vec![i as u8; dice.below(4000) as usize],
            ),
        };
        ks.put(&key, &value).unwrap();
        let pairs = now.get_mut(ks.name()).unwrap();
        pairs.retain(|(k, _)| *k != key);
        pairs.push((key, value));
        pairs.sort();
        life.states.push(now);
        match dice.below(30) {
            0 => {
                life.store.flush().unwrap();
                life.flushed = life.states.len() - 1;
            }
            1 => ks.flush().unwrap(),
            2 => life.store.sync_log().unwrap(),
            3 => life.older.push(files(disk, is_of_log)),
            _ => {}
        }
    }
    life
}

/// A closed store is opened with everything, or it is refused; and all tools agree.
fn closed_logs_are_changed_at_random(rt: Runtime, seed: u64) {
    let disk = Disk::new(&rt);
    let mut dice = Dice::new(seed);
    let life = live_at_random(&disk, &mut dice);
    let wanted = contents(&life.store);
    assert_eq!(Some(&wanted), life.states.last());
    life.store.close().unwrap();
    let from = state(&disk).log_start.segment as u32;
    for _ in 0..8 {
        let copy = disk.kill();
        let what = change_at_random(&copy, &mut dice, &life.older, from);
        judge(&copy, &wanted, &format!("{what}, missing"));
    }
}

/// A killed store is opened with a state that it had, not older than its tables, or it is refused.
fn killed_logs_are_changed_at_random(rt: Runtime, seed: u64) {
    let disk = Disk::new(&rt);
    let mut dice = Dice::new(seed);
    let life = live_at_random(&disk, &mut dice);
    let disk = disk.kill();
    let from = state(&disk).log_start.segment as u32;
    for _ in 0..8 {
        let copy = disk.kill();
        let what = change_at_random(&copy, &mut dice, &life.older, from);
        let least = life.flushed;
        let checked = check_store(&CheckStorages::on(&copy.memory), &mut |_| {})
            .unwrap_or_else(|e| panic!("{what}: check: {e}"));
        let repaired = Repaired::of(&copy, Arc::new(copy.memory.clone()));
        let repaired = repaired.unwrap_or_else(|e| panic!("{what}: repair: {e}"));
        match copy.try_open(options()) {
            Ok(store) => {
                let found = contents(&store);
                let at = life.states.iter().rposition(|s| *s == found);
                let at = at.unwrap_or_else(|| panic!("{what}: it never was so"));
                assert!(at >= least, "{what}: {at} of {least} and more");
                let passed = store.stats().counter("skipped_log_damage_count") > 0;
                assert_eq!(
                    !passed,
                    checked.is_sound(),
                    "{what}: {:?}",
                    checked.problems
                );
                let rescued = repaired.contents();
                if repaired.report.lost_nothing() {
                    let at_repair = life.states.iter().rposition(|s| *s == rescued);
                    assert!(
                        at_repair >= Some(at),
                        "{what}: repaired, {at_repair:?} of {at}"
                    );
                }
            }
            Err(error) => {
                assert!(error.is_corruption(), "{what}: {error}");
                assert!(!checked.is_sound(), "{what}: check finds nothing: {error}");
            }
        }
    }
}

/// Each call of a close fails once, or from then on. A close that succeeded left a store from which
/// no power loss takes anything. One that failed lost nothing that a kill keeps.
fn every_fault_of_a_close(rt: Runtime, seed: u64) {
    let fault = [
        Fault::Fail(StorageErrorKind::Io),
        Fault::FailAfter(StorageErrorKind::Io),
        Fault::Fail(StorageErrorKind::NoSpace),
        Fault::Fail(StorageErrorKind::TooManyOpen),
        Fault::ShortAppend {
            per_mille: 500,
            kind: StorageErrorKind::Io,
        },
        Fault::FailAfter(StorageErrorKind::NoSpace),
    ][seed as usize];
    for for_good in [false, true] {
        for n in 0.. {
            let disk = Disk::new(&rt);
            let store = disk.open_with(options());
            let (a, b) = two(&store);
            fill(&[&a, &b], 0..8);
            a.flush().unwrap();
            store.wait_until_idle().unwrap();
            fill(&[&b], 8..12);
            store
                .create_keyspace("late")
                .unwrap()
                .put(b"", b"")
                .unwrap();
            store.create_keyspace("gone").unwrap();
            store.drop_keyspace("gone").unwrap();
            let wanted = contents(&store);
            drop((a, b));
            let rule = Rule::on_changes(fault).nth(n);
            let rule = disk.faults.add(match for_good {
                true => rule.for_good(),
                false => rule,
            });
            let closed = store.close();
            let has_fired = disk.faults.fired_count(rule) > 0;
            disk.faults.clear();
            let what = format!("{fault:?} at change {n}, for good: {for_good}, {closed:?}");
            let killed = disk.kill();
            let is_closed = state(&killed).closed;
            assert_eq!(judge(&killed, &wanted, &what), (true, false), "{what}");
            let lost = disk.lose_power();
            if closed.is_ok() || is_closed && state(&lost).closed {
                assert_eq!(judge(&lost, &wanted, &what), (true, false), "{what}");
            } else {
                prefix_len(&lost.open_with(options()).keyspace("b").unwrap());
            }
            if !has_fired {
                assert!(closed.is_ok() && n > 4, "{what}");
                break;
            }
            let seeded = disk.crash(CrashPolicy::Seeded(n));
            if closed.is_ok() {
                assert_eq!(contents(&seeded.open_with(options())), wanted, "{what}");
            }
        }
    }
}
