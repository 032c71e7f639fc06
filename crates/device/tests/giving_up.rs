//! Calls that give up because the device does not answer, and what may follow them: an append that
//! failed has had no effect, and a sync covers what was done before its own call.

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::{Setup, impatient, simulated};
use siltstone_device::ClientOptions;
use siltstone_storage::link::LinkFaults;
use siltstone_storage::{CrashPolicy, Epoch, Storage, StorageErrorKind};

/// How long calls wait for the device.
const LIMIT: Duration = Duration::from_secs(2);

/// From now on nothing reaches the other side, and nobody is told.
fn freeze(setup: &Setup) {
    setup.network.set_silent(true);
    setup.network.freeze_all();
}

/// From now on new connections work again.
fn thaw(setup: &Setup) {
    setup.network.set_silent(false);
    setup.runtime.sleep(Duration::from_secs(5));
}

/// A file may not keep its connection while others wait for one, so its appends wait for their
/// answers. If no answer arrives, the bytes still stay with the client.
#[test]
fn an_append_that_fails_has_had_no_effect() {
    simulated(21, |setup| {
        let options = ClientOptions {
            connections_max: 1,
            ..impatient(LIMIT)
        };
        let device = setup.connect_with("db", options);
        let storage = device.storage();
        let lease = storage.lease("store").unwrap();
        let file = storage.create(lease.epoch(), "log").unwrap();
        let mut appended = Vec::new();
        for round in 0..20u8 {
            match round {
                5 => freeze(setup),
                10 => thaw(setup),
                _ => {}
            }
            let record = [round; 1000];
            match file.append(&[&record]) {
                Ok(()) => appended.extend(record),
                Err(error) => assert_eq!(error.kind, StorageErrorKind::Unreachable, "{error}"),
            }
        }
        file.sync().unwrap();
        assert_eq!(file.position(), appended.len() as u64);
        drop(file);
        assert!(
            storage.read_small("log").unwrap() == appended,
            "the file has other bytes than those of the appends that succeeded"
        );
        lease.release().unwrap();
        device.close();
    });
}

/// Makes a sync of names that is executed, but whose caller gives up before the answer arrives.
fn give_up_a_sync(setup: &Setup, storage: &Arc<dyn Storage>, epoch: Epoch) {
    setup.network.set_faults(LinkFaults {
        delay: Duration::from_micros(500),
        ..LinkFaults::default()
    });
    for tries in 1..60 {
        let name = format!("before-{tries}");
        storage.create(epoch, &name).unwrap();
        let syncing = Arc::clone(storage);
        let sync = move || syncing.sync_dir(epoch);
        let syncing = setup.runtime.spawn("sync", sync).unwrap();
        let wait = Duration::from_micros(200 + 50 * tries);
        setup.runtime.sleep(wait);
        freeze(setup);
        let synced = syncing.join().unwrap();
        thaw(setup);
        if synced.is_err() && is_durable(setup, &name) {
            return;
        }
    }
    panic!("no sync gave up after it was executed");
}

/// Whether the object would survive a power loss.
fn is_durable(setup: &Setup, name: &str) -> bool {
    let left = setup.folders.folder("db").crash(CrashPolicy::LoseUnsynced);
    left.open(name).is_ok()
}

#[test]
fn a_sync_of_names_is_not_answered_by_one_that_gave_up() {
    simulated(22, |setup| {
        let device = setup.connect_with("db", impatient(LIMIT));
        let storage = device.storage();
        let lease = storage.lease("store").unwrap();
        give_up_a_sync(setup, &storage, lease.epoch());
        // The creation settles the sync, and the next sync covers the creation.
        storage.create(lease.epoch(), "table").unwrap();
        assert!(!is_durable(setup, "table"));
        storage.sync_dir(lease.epoch()).unwrap();
        assert!(is_durable(setup, "table"));
        lease.release().unwrap();
        device.close();
    });
}

#[test]
fn a_sync_of_names_does_not_take_over_one_that_gave_up() {
    simulated(23, |setup| {
        let device = setup.connect_with("db", impatient(LIMIT));
        let storage = device.storage();
        let lease = storage.lease("store").unwrap();
        give_up_a_sync(setup, &storage, lease.epoch());
        // Meanwhile a job on the device makes a name, which the lane of names does not know.
        let folder = setup.folders.folder("db");
        folder.create(lease.epoch(), "made").unwrap();
        assert!(!is_durable(setup, "made"));
        storage.sync_dir(lease.epoch()).unwrap();
        assert!(is_durable(setup, "made"));
        lease.release().unwrap();
        device.close();
    });
}

/// What is dropped while the device does not answer is closed there when it answers again, although
/// nothing else is dropped then.
#[test]
fn what_is_dropped_during_an_outage_is_closed_later() {
    simulated(25, |setup| {
        let device = setup.connect_with("db", impatient(LIMIT));
        let storage = device.storage();
        let lease = storage.lease("store").unwrap();
        storage.create(lease.epoch(), "log").unwrap();
        let reader = storage.open("log").unwrap();
        freeze(setup);
        drop((lease, reader));
        // The keeper tries to close them, and gives up.
        setup.runtime.sleep(Duration::from_secs(10));
        let open = |setup: &Setup| -> usize {
            let sessions = setup.server.as_ref().unwrap().sessions();
            sessions.iter().map(|session| session.open_objects).sum()
        };
        assert!(open(setup) > 0);
        thaw(setup);
        setup.runtime.sleep(Duration::from_secs(5));
        assert_eq!(open(setup), 0);
        let other = setup.connect("db");
        let lease = other.storage().lease("store").unwrap();
        lease.release().unwrap();
        other.close();
        device.close();
    });
}

/// An object whose open gave up is closed on the device, if the device opened it.
#[test]
fn an_open_that_gives_up_leaves_nothing_open() {
    simulated(26, |setup| {
        let device = setup.connect_with("db", impatient(LIMIT));
        let storage = device.storage();
        let lease = storage.lease("store").unwrap();
        storage.create(lease.epoch(), "log").unwrap();
        // The requests arrive, and the answers come after the caller has given up.
        setup.network.set_faults(LinkFaults {
            delay: Duration::from_secs(7),
            ..LinkFaults::default()
        });
        let error = storage
            .open("log")
            .err()
            .expect("no answer arrives in time");
        assert_eq!(error.kind, StorageErrorKind::Unreachable, "{error}");
        setup.network.set_faults(LinkFaults::default());
        setup.runtime.sleep(Duration::from_secs(30));
        let sessions = setup.server.as_ref().unwrap().sessions();
        let open: usize = sessions.iter().map(|session| session.open_objects).sum();
        assert_eq!(open, 0);
        lease.release().unwrap();
        device.close();
    });
}
