//! Keyspaces are created and dropped while the manifest has no room for the edits.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use siltstone::{Batch, ErrorKind, Options, Store};
use siltstone_storage::fault::{Fault, Rule};
use siltstone_storage::{OpKind, Runtime, StorageErrorKind};

use super::*;

pub const ALL: &[Story] = &[
    (
        "a_keyspace_dropped_before_its_create_found_room",
        4,
        a_keyspace_dropped_before_its_create_found_room,
    ),
    (
        "a_drop_without_room_succeeds_once_there_is_room",
        2,
        a_drop_without_room_succeeds_once_there_is_room,
    ),
    (
        "keyspaces_come_and_go_on_a_full_disk",
        6,
        keyspaces_come_and_go_on_a_full_disk,
    ),
];

/// A few hundred creates fit into these segments, so the log has room when the manifest has none.
fn options() -> Options {
    Options {
        log_segment_bytes: 512 << 10,
        log_bytes_max: 4 << 20,
        ..small()
    }
}

/// A long name: about two hundred of them fill the space of a manifest.
fn wide_name(i: u64) -> String {
    format!("{i:03}{}", "x".repeat(240))
}

/// From here on the manifest cannot grow: there is no space, or the device refuses.
fn stop_manifest(disk: &Disk, kind: StorageErrorKind) {
    let rule = Rule::on(OpKind::Reserve, Fault::Fail(kind)).named("MANIFEST");
    disk.faults.add(rule.for_good());
}

/// Creates keyspaces until the edit of one must wait, and returns its name.
fn create_until_one_waits(store: &Store) -> String {
    let hooks = store.test_hooks();
    for i in 0..400 {
        let name = wide_name(i);
        store.create_keyspace(&name).unwrap();
        if hooks.pending_edit_count() > 0 {
            return name;
        }
    }
    panic!("all creates found room");
}

/// The ids of the keyspaces, which must all differ.
fn ids(store: &Store) -> BTreeSet<u32> {
    let names = store.keyspaces();
    let ids: BTreeSet<u32> = names
        .iter()
        .map(|n| store.keyspace(n).unwrap().id())
        .collect();
    assert_eq!(ids.len(), names.len(), "two keyspaces have one id");
    ids
}

/// The edit of a create waits, and the keyspace is dropped. The edit of the drop used to overtake
/// that of the create, and named a keyspace that the manifest did not know. The edit of the create
/// came later and made a keyspace that nobody had. The next two keyspaces got the same id, so data
/// of one was read from the other, and one of them was gone after a kill. The log was kept for ever
/// from then on.
fn a_keyspace_dropped_before_its_create_found_room(rt: Runtime, seed: u64) {
    let disk = Disk::new(&rt);
    let store = disk.open_with(options());
    let hooks = store.test_hooks();
    let passing = seed.is_multiple_of(2);
    let kind = match passing {
        true => StorageErrorKind::NoSpace,
        false => StorageErrorKind::Io,
    };
    stop_manifest(&disk, kind);
    let waits = create_until_one_waits(&store);
    let given = store.keyspace(&waits).unwrap().id();
    // After an I/O error the store continues, so more edits may wait: before it, after it, and with
    // data.
    let mut kept = Vec::new();
    if !passing {
        for name in ["before", "after"] {
            let other = store.create_keyspace(name).unwrap();
            put_synced(&other, b"k", name.as_bytes());
            kept.push(name);
        }
        let gone = store.create_keyspace("gone").unwrap();
        put_in_all(&store, &[&gone], b"k", b"gone", NO_SYNC);
        store.drop_keyspace("gone").unwrap();
        put_synced(&store.keyspace(&waits).unwrap(), b"k", b"of the dropped");
    }
    store.drop_keyspace(&waits).unwrap();
    let listed = store.keyspaces();
    assert!(!listed.contains(&waits));
    let comes_back = |disk: &Disk, when: &str| {
        for image in [disk.kill(), disk.lose_power()] {
            let back = image.open();
            assert_eq!(back.keyspaces(), listed, "{when}");
            for name in &kept {
                let value = back.keyspace(name).unwrap().get(b"k").unwrap();
                assert_eq!(value.as_deref(), Some(name.as_bytes()), "{when}");
            }
            let next = back.create_keyspace("next").unwrap().id();
            assert!(next > given, "{when}: id {next} was given before");
        }
    };
    comes_back(&disk, "waiting");
    disk.faults.clear();
    rt.sleep(Duration::from_secs(5));
    assert_eq!(store.stats().health, "good");
    assert_eq!(hooks.pending_edit_count(), 0);
    assert_eq!(hooks.state().keyspaces.len(), listed.len());
    comes_back(&disk, "with room");

    // The name is free again, and two new keyspaces are different.
    let (again, z) = (
        store.create_keyspace(&waits).unwrap(),
        store.create_keyspace("z").unwrap(),
    );
    ids(&store);
    again.put(b"k", b"again").unwrap();
    assert_eq!(z.get(b"k").unwrap(), None, "a key of another keyspace");
    z.put(b"z", b"z").unwrap();
    store.flush().unwrap();
    let back = disk.kill().open();
    ids(&back);
    for (name, key, value) in [(&waits[..], b"k", &b"again"[..]), ("z", b"z", b"z")] {
        let pairs = back.keyspace(name).unwrap().iter().unwrap();
        let pairs: Vec<_> = pairs.map(Result::unwrap).collect();
        assert_eq!(pairs, [(key.to_vec(), value.to_vec())], "{name}");
    }
    // The log is not kept longer than it is needed.
    let from = hooks.state().log_start.segment;
    let ks = store.default_keyspace().unwrap();
    for i in 0..6000 {
        ks.put(&key(i % 100), &[1; 1000]).unwrap();
    }
    ks.flush().unwrap();
    let to = hooks.state().log_start.segment;
    assert!(
        to > from + 5,
        "the log is kept: it began at {from}, now {to}"
    );
}

/// The same, and the log has no room for the record of the drop either. The drop could not free
/// anything, so it fails for lack of room, which is not damage, and works once there is room.
fn a_drop_without_room_succeeds_once_there_is_room(rt: Runtime, seed: u64) {
    let disk = Disk::new(&rt);
    let store = disk.open_with(options());
    let hooks = store.test_hooks();
    stop_manifest(
        &disk,
        [StorageErrorKind::Io, StorageErrorKind::NoSpace][seed as usize],
    );
    let waits = create_until_one_waits(&store);
    let kept = store.keyspace(&waits).unwrap();
    let error = hooks.drop_without_record(&kept).unwrap_err();
    let kinds = [ErrorKind::NoSpace, ErrorKind::Io];
    assert!(kinds.contains(&error.kind()), "{error}");
    assert_eq!(kept.get(b"k").unwrap(), None);
    for image in [disk.kill(), disk.lose_power()] {
        assert!(image.open().keyspaces().contains(&waits));
    }
    disk.faults.clear();
    hooks.drop_without_record(&kept).unwrap();
    assert!(!store.keyspaces().contains(&waits));
    rt.sleep(Duration::from_secs(5));
    assert_eq!(store.stats().health, "good");
    assert_eq!(hooks.state().keyspaces.len(), store.keyspaces().len());
    for image in [disk.kill(), disk.lose_power()] {
        let back = image.open();
        assert_eq!(back.keyspaces(), store.keyspaces());
    }
}

/// Random creates, drops, ingests and batches over keyspaces on a disk that fills and empties,
/// whose manifest sometimes cannot grow although the log can. The store is opened several times,
/// sometimes without room, and ended by a kill or a power loss. What was acknowledged is there, and
/// nothing else is.
fn keyspaces_come_and_go_on_a_full_disk(rt: Runtime, seed: u64) {
    let mut dice = Dice::new(seed);
    let mut disk = Disk::new(&rt);
    let mut model = Model::from([("default".to_string(), BTreeMap::new())]);
    let mut counter = 0;
    let mut waited = 0;
    for life in 0..3 {
        let store = disk.open_with(Options {
            log_segment_bytes: 256 << 10,
            ..small()
        });
        compare(&store, &model, &format!("life {life} begins"));
        // The space of the manifest is nearly used up.
        for i in 0..88 + dice.below(32) {
            let name = format!("w{life}{i:03}{}", "y".repeat(240));
            store.create_keyspace(&name).unwrap();
            store.drop_keyspace(&name).unwrap();
        }
        for _ in 0..200 {
            waited += usize::from(store.test_hooks().pending_edit_count() > 0);
            step(&disk, &store, &mut model, &mut counter, &mut dice);
        }
        compare(&store, &model, &format!("life {life} ends"));
        disk = if dice.below(2) == 0 {
            disk.faults.clear();
            disk.memory.set_capacity(None);
            rt.sleep(Duration::from_secs(5));
            assert_eq!(store.stats().health, "good", "there is room again");
            assert_eq!(store.test_hooks().pending_edit_count(), 0);
            store.flush().unwrap();
            store.sync_log().unwrap();
            disk.lose_power()
        } else {
            disk.kill()
        };
        disk.memory.set_capacity(None);
        if dice.below(3) == 0 {
            disk.memory.set_capacity(Some(disk.memory.used_bytes()));
            match disk.try_open(small()) {
                Ok(store) => compare(&store, &model, "opened without room"),
                Err(error) => assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}"),
            }
            disk = disk.kill();
            disk.memory.set_capacity(None);
        }
    }
    // The sum over all seeds: it is chance whether a manifest is full just when it cannot grow.
    let waited = WAITED.fetch_add(waited, Ordering::AcqRel) + waited;
    assert!(waited > 0 || seed < 5, "no edit ever waited");
}

/// The number of steps during which an edit waited.
static WAITED: AtomicUsize = AtomicUsize::new(0);

type Model = BTreeMap<String, BTreeMap<Vec<u8>, Vec<u8>>>;

fn compare(store: &Store, model: &Model, when: &str) {
    let names: Vec<String> = model.keys().cloned().collect();
    assert_eq!(store.keyspaces(), names, "{when}: keyspaces");
    ids(store);
    for (name, contents) in model {
        check(&store.keyspace(name).unwrap(), contents, when);
    }
}

/// Whether a call succeeded. If it did not, there must have been no space.
fn succeeded<T>(result: siltstone::Result<T>, what: &str) -> bool {
    match result {
        Ok(_) => true,
        Err(error) => {
            let kinds = [ErrorKind::NoSpace, ErrorKind::Io];
            assert!(kinds.contains(&error.kind()), "{what}: {error}");
            false
        }
    }
}

fn step(disk: &Disk, store: &Store, model: &mut Model, counter: &mut u64, dice: &mut Dice) {
    let hooks = store.test_hooks();
    let names: Vec<String> = model.keys().cloned().collect();
    let name = names[dice.below(names.len() as u64) as usize].clone();
    match dice.below(20) {
        0 => {
            disk.faults.clear();
            match dice.below(4) {
                0 => {
                    let room = dice.below(3) * 9000;
                    let capacity = disk.memory.used_bytes() + room;
                    disk.memory.set_capacity(Some(capacity));
                }
                1 => stop_manifest(disk, StorageErrorKind::NoSpace),
                _ => stop_manifest(disk, StorageErrorKind::Io),
            }
        }
        1 => {
            disk.faults.clear();
            disk.memory.set_capacity(None);
        }
        2 => disk.rt.sleep(Duration::from_millis(dice.below(3000))),
        3..8 => {
            *counter += 1;
            // Some names are used again.
            let name = match dice.below(3) {
                0 => format!("r{}", dice.below(5)),
                _ => format!("{counter:05}{}", "x".repeat(240)),
            };
            if !model.contains_key(&name) && succeeded(store.create_keyspace(&name), "create") {
                model.insert(name, BTreeMap::new());
            }
        }
        8..11 => {
            if names.len() > 1 && succeeded(store.drop_keyspace(&name), "drop") {
                model.remove(&name);
            }
        }
        11..13 => {
            // There is room for the table itself; its record and its edit may find none.
            disk.memory.set_capacity(None);
            let key = key(dice.below(40));
            let table = table(disk, &hooks, &[(&key, b"ingested")]);
            if dice.below(2) == 0 {
                let capacity = disk.memory.used_bytes();
                disk.memory.set_capacity(Some(capacity));
            }
            let keyspace = store.keyspace(&name).unwrap();
            if succeeded(hooks.ingest(&keyspace, vec![table]), "ingest") {
                let contents = model.get_mut(&name).unwrap();
                contents.insert(key, b"ingested".to_vec());
            }
        }
        13 => drop(succeeded(store.keyspace(&name).unwrap().flush(), "flush")),
        _ => {
            let other = names[dice.below(names.len() as u64) as usize].clone();
            let both = BTreeSet::from([name, other]);
            let key = key(dice.below(40));
            let value = vec![dice.below(250) as u8; dice.below(2500) as usize];
            let mut batch = Batch::new();
            for name in &both {
                let keyspace = store.keyspace(name).unwrap();
                batch.put(&keyspace, &key, &value).unwrap();
            }
            let options = [NO_SYNC, SYNC][usize::from(dice.below(5) == 0)];
            if succeeded(store.write(&batch, options), "write") {
                for name in &both {
                    let contents = model.get_mut(name).unwrap();
                    contents.insert(key.clone(), value.clone());
                }
            }
        }
    }
}
