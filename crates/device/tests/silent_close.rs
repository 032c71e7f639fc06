//! Stores that are closed while their device is silent. A close does not make a call with its own
//! time limit for each table, so it takes only a few limits, however many tables there are.

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::{Setup, impatient, simulated};
use siltstone::check::{CheckStorages, check};
use siltstone::{Components, Options, Store};
use siltstone_device::Device;
use siltstone_storage::link::LinkFaults;
use siltstone_storage::{JoinHandle, Storage};

/// How long calls of the client wait for the device.
const LIMIT: Duration = Duration::from_secs(20);

/// With one limit for each of these tables, a close would take 20 minutes.
const TABLES: u32 = 60;

/// The maximum number of limits that a close may take: one for the call that is under way, one for
/// the first call of each kind that would be made for each table, and those for ending the store's
/// own files.
const LIMITS_MAX: u32 = 10;

fn key(n: u32) -> Vec<u8> {
    format!("key-{n:04}").into_bytes()
}

fn options(is_due: bool) -> Options {
    Options {
        l0_trigger_count: if is_due { 4 } else { 900 },
        memtable_bytes: 64 << 10,
        table_bytes: 64 << 10,
        log_segment_bytes: 64 << 10,
        l0_slowdown_count: 1000,
        l0_stop_count: 1000,
        ..Options::default()
    }
}

/// Opens the store. Its compactions of level 0 are due if `is_due`.
fn open(setup: &Setup, is_due: bool) -> (Arc<Device>, Store) {
    let device = setup.connect_with("db", impatient(LIMIT));
    let components = Components::on(device.storage(), setup.runtime.clone());
    let store = Store::open_with(components, options(is_due)).expect("an open");
    (device, store)
}

/// Makes as many tables as there are keys. Each has a range delete that deletes nothing.
fn fill(store: &Store, with_range_deletes: bool) {
    store.test_hooks().pause_compaction(true);
    let keyspace = store.default_keyspace().expect("the default keyspace");
    for n in 0..TABLES {
        keyspace.put(&key(n), b"value").expect("a write");
        if with_range_deletes {
            let (start, end) = (format!("none-{n:04}"), format!("none-{n:04}x"));
            let deleted = keyspace.delete_range(start.as_bytes(), end.as_bytes());
            deleted.expect("a write");
        }
        keyspace.flush().expect("a flush");
    }
}

/// Closes a store whose device is silent. Returns how many limits the close took.
fn close_in_silence(setup: &Setup, store: Store) -> f64 {
    let begun = setup.runtime.now();
    // The error says what the close could not do, and does not matter here.
    let _ = store.close();
    setup.runtime.now().since(begun).as_secs_f64() / LIMIT.as_secs_f64()
}

/// Lets the device answer again, and checks that everything is there and nothing is left over.
fn look(setup: &Setup) {
    setup.network.set_silent(false);
    // The device notices that the last session is silent.
    setup.runtime.sleep(Duration::from_secs(90));
    let (device, store) = open(setup, true);
    let keyspace = store.default_keyspace().expect("the default keyspace");
    for n in 0..TABLES {
        let value = keyspace.get(&key(n)).expect("a read");
        assert_eq!(value.as_deref(), Some(&b"value"[..]), "key {n}");
    }
    store.wait_until_idle().expect("the work that is left");
    drop(keyspace);
    store.close().expect("a close");
    let storage: Arc<dyn Storage> = device.storage();
    let report = check(&CheckStorages::on(&*storage), &mut |_| {}).expect("a check");
    assert!(report.is_sound(), "{report:?}");
    assert!(report.orphans.is_empty(), "{:?}", report.orphans);
    device.close();
}

/// Makes the link a little slow. Once `is_now` returns true, the device is silent.
fn silence_when(setup: &Setup, is_now: impl Fn() -> bool + Send + 'static) -> JoinHandle<()> {
    let (runtime, network) = (setup.runtime.clone(), setup.network.clone());
    network.set_faults(LinkFaults {
        delay: Duration::from_millis(1),
        ..LinkFaults::default()
    });
    let silence = move || {
        while !is_now() {
            runtime.sleep(Duration::from_micros(500));
        }
        network.set_silent(true);
        network.freeze_all();
    };
    setup.runtime.spawn("silence", silence).expect("a task")
}

/// Tables that a cursor kept are to be deleted when the cursor is dropped. The device becomes
/// silent when it has deleted a few of them.
#[test]
fn tables_that_are_to_be_deleted_hold_up_no_close() {
    for seed in 31..35 {
        simulated(seed, move |setup| {
            let (device, store) = open(setup, true);
            fill(&store, false);
            let keyspace = store.default_keyspace().expect("the default keyspace");
            let mut cursor = keyspace.cursor(..).expect("a cursor");
            cursor.seek_to_first().expect("a read");
            store.test_hooks().pause_compaction(false);
            keyspace.compact_range(None, None).expect("a compaction");
            store.wait_until_idle().expect("the work ends");
            let folder = setup.folders.folder("db");
            let tables = move || {
                let names = folder.list().expect("a list");
                names.iter().filter(|o| o.name.ends_with(".tbl")).count() as u32
            };
            assert!(tables() > TABLES, "the cursor keeps {} tables", tables());
            let silence = silence_when(setup, move || tables() <= TABLES - 5);
            drop(cursor);
            drop(keyspace);
            let limits = close_in_silence(setup, store);
            silence.join().expect("no panic");
            assert!(limits <= LIMITS_MAX.into(), "{limits} limits");
            device.close();
            look(setup);
        });
    }
}

/// No table of a store that was just opened has been read yet, so its first jobs open many tables:
/// the inputs of a compaction or, if none is due, the tables that have range deletes.
#[test]
fn tables_that_nobody_has_read_hold_up_no_close() {
    for seed in 40..52 {
        simulated(seed, move |setup| {
            let is_due = seed % 2 == 0;
            let (device, store) = open(setup, is_due);
            fill(&store, true);
            store.close().expect("a close");
            device.close();
            let (device, store) = open(setup, is_due);
            let until = setup.runtime.now() + Duration::from_millis(seed - 40);
            let runtime = setup.runtime.clone();
            let silence = silence_when(setup, move || runtime.now() >= until);
            silence.join().expect("no panic");
            setup.runtime.sleep(Duration::from_millis(500));
            let limits = close_in_silence(setup, store);
            assert!(limits <= LIMITS_MAX.into(), "{limits} limits");
            device.close();
            look(setup);
        });
    }
}
