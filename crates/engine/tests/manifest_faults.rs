//! Every storage call of the manifest fails, one after the other: while it is written anew in a
//! running store (the roll), and at an open. The tests say which errors poison the store and which
//! do not. Everything that was acknowledged is there after the next open.

mod common;

use std::time::Duration;

use common::{Disk, key, prefix_len, put_synced, small};
use siltstone::{Batch, ErrorKind, Store};
use siltstone_storage::fault::{Fault, Fired, Rule};
use siltstone_storage::sim::{self, SimConfig};
use siltstone_storage::{CrashPolicy, OpKind, Runtime, StorageErrorKind};

use StorageErrorKind::{Io, NoSpace};

const FAULTS: [Fault; 4] = [
    Fault::Fail(Io),
    Fault::FailAfter(Io),
    Fault::Fail(NoSpace),
    Fault::FailAfter(NoSpace),
];

/// Runs with one seed, so that the same call of two runs has the same number until a fault fires.
fn simulated<T: Send + 'static>(what: &str, body: impl FnOnce(Runtime) -> T + Send + 'static) -> T {
    let config = SimConfig {
        stack_bytes: 1 << 20,
        max_steps: 3_000_000,
        ..SimConfig::new(7)
    };
    match sim::run(config, body).result {
        Ok(value) => value,
        Err(failure) => panic!("{what}: {failure}"),
    }
}

fn manifests(disk: &Disk) -> usize {
    let names = disk.names("");
    names.iter().filter(|n| n.starts_with("MANIFEST-")).count()
}

/// Everything that was acknowledged is there after a kill or a power loss, and the store can be
/// opened and written.
fn comes_back(disk: &Disk, put: u64, what: &str) {
    let images = [CrashPolicy::LoseUnsynced, CrashPolicy::KeepUnsynced].map(|p| disk.crash(p));
    for image in images.into_iter().chain([disk.kill()]) {
        let store = image.open();
        let ks = store.default_keyspace().unwrap();
        assert_eq!(prefix_len(&ks), put, "{what}");
        put_synced(&ks, &key(put), b"v");
        ks.flush().unwrap();
        store.wait_until_idle().unwrap();
        store.test_hooks().delete_obsolete();
        assert_eq!(manifests(&image), 1, "{what}: {:?}", image.names(""));
        store.close().unwrap();
    }
}

/// The number of puts before the open that meets the fault.
const BEFORE: u64 = 5;

/// A closed store with some data, on a disk whose changes `rule` counts from here on.
fn closed(rt: &Runtime, rule: Rule) -> Disk {
    let disk = Disk::new(rt);
    let store = disk.open();
    let ks = store.default_keyspace().unwrap();
    (0..BEFORE).for_each(|i| put_synced(&ks, &key(i), b"v"));
    drop(ks);
    store.close().unwrap();
    disk.faults.add(rule);
    disk
}

/// Flushes with edits of a quarter of a mebibyte (the first and last keys of their tables are
/// long), until the manifest must have been written anew. Returns the number of acknowledged puts
/// in the default keyspace.
fn roll(store: &Store) -> u64 {
    let ks = store.default_keyspace().unwrap();
    let mut put = BEFORE;
    let Ok(wide) = store.create_keyspace("wide") else {
        return put;
    };
    for round in 0..20u64 {
        for first in [b'a', b'b'] {
            let _ = wide.put(&[first; 60_000], &key(round));
        }
        let _ = wide.flush();
        let mut batch = Batch::new();
        batch.put(&ks, &key(put), b"v").unwrap();
        put += u64::from(store.write(&batch, common::SYNC).is_ok());
    }
    put
}

/// The changes without a fault, as a rule that fails changes counts them.
fn changes() -> Vec<Fired> {
    let mut fired = simulated("no fault", |rt| {
        let every = Rule::on_changes(Fault::Delay(Duration::ZERO)).for_good();
        let disk = closed(&rt, every);
        let store = disk.open();
        assert_eq!(roll(&store), BEFORE + 20);
        assert_eq!(store.stats().health, "good");
        disk.faults.fired()
    });
    fired.retain(|f| f.kind != OpKind::StartWriteback);
    fired
}

/// The numbers of the changes from the creation of the `nth` new manifest to the replacement of the
/// pointer.
fn new_manifest(changes: &[Fired], nth: usize) -> Vec<usize> {
    let all = |kind, name: &str| -> Vec<usize> {
        let of = |i: &usize| changes[*i].kind == kind && changes[*i].name.starts_with(name);
        (0..changes.len()).filter(of).collect()
    };
    let (from, to) = (
        all(OpKind::Create, "MANIFEST-")[nth],
        all(OpKind::Replace, "CURRENT")[nth],
    );
    let of_manifest = |f: &Fired| {
        f.name.starts_with("MANIFEST-") || f.name == "CURRENT" || f.kind == OpKind::SyncDir
    };
    let calls: Vec<_> = (from..=to).filter(|i| of_manifest(&changes[*i])).collect();
    assert!(
        calls.len() >= 5,
        "create, reserve, append, sync, names, pointer: {calls:?}"
    );
    calls
}

/// Whether a store still takes writes after its new manifest met this fault. Nothing refers to a
/// manifest that the pointer does not name, so its own calls may fail. The state of the folder
/// after a failed sync, and that of the pointer after a failed replacement, are unknown, unless
/// nothing was written for lack of room.
fn still_writes(kind: OpKind, fault: Fault) -> bool {
    match kind {
        OpKind::SyncDir => false,
        OpKind::Replace => fault == Fault::Fail(NoSpace),
        _ => true,
    }
}

#[test]
fn a_roll_may_fail_at_each_call() {
    let changes = changes();
    for call in new_manifest(&changes, 1) {
        for fault in FAULTS {
            let met = changes[call].clone();
            let what = format!("change {call}, {:?} {:?}, {fault:?}", met.kind, met.name);
            let context = what.clone();
            simulated(&what, move |rt| {
                let disk = closed(&rt, Rule::on_changes(fault).nth(call as u64));
                let store = disk.open();
                let put = roll(&store);
                let fired = disk.faults.fired();
                assert_eq!(
                    (fired[0].kind, &fired[0].name),
                    (met.kind, &met.name),
                    "{context}"
                );
                disk.faults.clear();
                rt.sleep(Duration::from_secs(5));
                let ks = store.default_keyspace().unwrap();
                let mut batch = Batch::new();
                batch.put(&ks, &key(put), b"v").unwrap();
                let next = store.write(&batch, common::SYNC);
                let put = match next {
                    Ok(()) => put + 1,
                    Err(ref error) => {
                        assert_eq!(error.kind(), ErrorKind::Poisoned, "{context}: {error}");
                        put
                    }
                };
                assert_eq!(
                    next.is_ok(),
                    still_writes(met.kind, fault),
                    "{context}: {next:?}"
                );
                if next.is_ok() {
                    // The new manifest is deleted, even if its creation failed after the file was
                    // made.
                    store.test_hooks().delete_obsolete();
                    assert_eq!(manifests(&disk), 1, "{context}: {:?}", disk.names(""));
                }
                comes_back(&disk, put, &context);
            });
        }
    }
}

#[test]
fn an_open_may_fail_at_each_call_of_its_manifest() {
    let changes = changes();
    let (mut opened, mut refused) = (0, 0);
    for call in new_manifest(&changes, 0) {
        for fault in FAULTS {
            let met = changes[call].clone();
            let what = format!("change {call}, {:?} {:?}, {fault:?}", met.kind, met.name);
            let context = what.clone();
            let is_open = simulated(&what, move |rt| {
                let disk = closed(&rt, Rule::on_changes(fault).nth(call as u64));
                let store = disk.try_open(small());
                assert_eq!(disk.faults.fired().len(), 1, "{context}");
                disk.faults.clear();
                let is_open = match &store {
                    Ok(_) => true,
                    Err(error) => {
                        let kinds = [ErrorKind::Io, ErrorKind::NoSpace, ErrorKind::Poisoned];
                        assert!(kinds.contains(&error.kind()), "{context}: {error}");
                        false
                    }
                };
                drop(store);
                comes_back(&disk, BEFORE, &context);
                // The same folder can be opened, whatever the refused open left in it.
                let store = disk.open();
                assert_eq!(
                    prefix_len(&store.default_keyspace().unwrap()),
                    BEFORE,
                    "{context}"
                );
                is_open
            });
            if is_open {
                opened += 1;
            } else {
                refused += 1;
            }
        }
    }
    assert!(
        opened > 0 && refused > 8,
        "{opened} opened, {refused} refused"
    );
}

/// While the process has no descriptor left, a new manifest cannot be written. Nothing is unknown
/// then, because no file was opened. This poisoned the store.
#[test]
fn a_roll_without_descriptors_poisons_nothing_and_is_made_later() {
    for kind in [OpKind::Replace, OpKind::Create] {
        let what = format!("{kind:?}");
        simulated(&what.clone(), move |rt| {
            let disk = closed(&rt, Rule::on(OpKind::Sync, Fault::Delay(Duration::ZERO)));
            let store = disk.open();
            let name = match kind {
                OpKind::Replace => "CURRENT",
                _ => "MANIFEST-",
            };
            let fault = Fault::Fail(StorageErrorKind::TooManyOpen);
            disk.faults
                .add(Rule::on(kind, fault).named(name).for_good());
            let named = || {
                disk.names("")
                    .into_iter()
                    .find(|n| n.starts_with("MANIFEST-"))
            };
            let before = named();
            let put = roll(&store);
            assert_eq!(put, BEFORE + 20, "{what}: every write is acknowledged");
            assert!(!disk.faults.fired().is_empty(), "{what}: a roll was tried");
            assert_eq!(store.stats().health, "good", "{what}");
            disk.faults.clear();
            let ks = store.default_keyspace().unwrap();
            let mut put = put;
            let wide = store.keyspace("wide").unwrap();
            for round in 0..40u64 {
                for first in [b'a', b'b'] {
                    wide.put(&[first; 60_000], &key(round)).unwrap();
                }
                wide.flush().unwrap();
                put_synced(&ks, &key(put), b"v");
                put += 1;
            }
            assert_ne!(named(), before, "{what}: it is rolled later");
            comes_back(&disk, put, &what);
        });
    }
}

/// The pointer was replaced, the call returned that there was no room, and from then on nothing can
/// be read. It is unknown which manifest is current, so none may be deleted. (The new one was
/// deleted, and the next open missed it: seed 76 of `every_call_fails`.)
#[test]
fn a_pointer_that_cannot_be_read_back_deletes_no_manifest() {
    let cannot_fail = [OpKind::FreeBytes, OpKind::StartWriteback, OpKind::Advise];
    let mut calls = simulated("no fault", |rt| {
        let disk = closed(&rt, Rule::on_any(Fault::Delay(Duration::ZERO)).for_good());
        disk.open().close().unwrap();
        disk.faults.fired()
    });
    calls.retain(|call| !cannot_fail.contains(&call.kind));
    let is_pointer = |call: &Fired| call.kind == OpKind::Replace && call.name == "CURRENT";
    let nth = calls.iter().position(is_pointer).expect("it is replaced");
    for fault in FAULTS {
        let what = format!("{fault:?}");
        simulated(&what.clone(), move |rt| {
            let disk = closed(&rt, Rule::on_any(fault).nth(nth as u64).for_good());
            disk.try_open(small()).expect_err(&what);
            assert!(is_pointer(&disk.faults.fired()[0]), "{what}");
            disk.faults.clear();
            comes_back(&disk, BEFORE, &what);
        });
    }
}

/// An I/O error while the manifest's space is written ahead has no unknown result: those bytes hold
/// nothing that was promised. It used to poison the store, and every write was refused until it was
/// opened again.
#[test]
fn an_error_while_space_is_reserved_loses_nothing_and_poisons_nothing() {
    for lasting in [false, true] {
        simulated("reserving fails", move |rt| {
            let disk = Disk::new(&rt);
            let store = disk.open();
            let hooks = store.test_hooks();
            let rule = Rule::on(OpKind::Reserve, Fault::Fail(Io)).named("MANIFEST");
            disk.faults
                .add(if lasting { rule.for_good() } else { rule });
            // Their names fill the space that the manifest has.
            let mut created = 0;
            while disk.faults.fired().is_empty() || created % 8 != 0 {
                store.create_keyspace(&wide_name(created)).unwrap();
                created += 1;
                assert!(created < 400, "the manifest never grew");
            }
            assert_eq!(store.stats().health, "good");
            let ks = store.keyspace(&wide_name(created - 1)).unwrap();
            put_synced(&ks, &key(0), b"v");
            if lasting {
                assert!(hooks.pending_edit_count() > 0, "no edit had to wait");
                let error = store.drop_keyspace("default").err();
                assert_eq!(error.map(|e| e.to_string()), None, "drops go on");
            }
            // What was acknowledged is in the log, whether its edit waits or not.
            for image in [disk.kill(), disk.lose_power()] {
                let back = image.open();
                assert_eq!(back.keyspaces(), store.keyspaces());
                let ks = back.keyspace(&wide_name(created - 1)).unwrap();
                assert_eq!(prefix_len(&ks), 1);
            }
            // The edits are committed by themselves, once the fault has passed.
            disk.faults.clear();
            rt.sleep(Duration::from_secs(5));
            assert_eq!(hooks.pending_edit_count(), 0, "what waited still waits");
            assert_eq!(hooks.state().keyspaces.len(), store.keyspaces().len());
            ks.flush().unwrap();
            assert_eq!(store.stats().health, "good");
        });
    }
}

/// A long name that is ordered by its number.
fn wide_name(i: u64) -> String {
    format!("{i:03}{}", "x".repeat(240))
}
