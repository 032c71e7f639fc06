//! The file of statistics that an open store writes, and others read without opening it.

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::folders::{Folders, Layout};
use common::{Disk, SYNC, key, put_in_all, small};
use siltstone::check::{CheckStorages, check};
use siltstone::{
    Components, ErrorKind, KeyspaceStats, Limit, Options, PressureStats, Storages, Store,
    read_stats_file, read_stats_file_from,
};
use siltstone_storage::fault::{Effect, Fault, Rule};
use siltstone_storage::sim::{self, SimConfig};
use siltstone_storage::{FaultStorage, OpKind, Storage, StorageErrorKind};

const STATS: &str = "STATS.json";

fn in_simulation(f: impl FnOnce(siltstone_storage::Runtime) + Send + 'static) {
    let outcome = sim::run(SimConfig::new(11), f);
    outcome.result.unwrap_or_else(|failure| panic!("{failure}"));
}

/// Counting the files of the store takes at most a thousandth of the time, however long a listing
/// of its folder takes. All other figures in the file are current.
#[test]
fn files_are_not_counted_for_each_publication() {
    in_simulation(|rt| {
        let disk = Disk::new(&rt);
        let store = disk.open();
        let ks = store.create_keyspace("a").unwrap();
        rt.sleep(Duration::from_secs(3));
        let read = || read_stats_file_from(&disk.memory).unwrap();
        let slow = Fault::Delay(Duration::from_millis(20));
        disk.faults.add(Rule::on(OpKind::List, slow).for_good());
        // This count is slow.
        rt.sleep(Duration::from_secs(2));
        let lists = || disk.faults.counts().of(OpKind::List);
        let (before, old) = (lists(), read());
        ks.put(b"k", &[1; 200]).unwrap();
        ks.flush().unwrap();
        rt.sleep(Duration::from_secs(10));
        let new = read();
        assert_eq!(lists(), before, "nothing is listed within 20 s");
        assert!(new.written_us >= old.written_us + 9_000_000);
        assert_eq!(new.stats.counter("put_count"), 1);
        assert_eq!(new.stats.space, old.stats.space);
        rt.sleep(Duration::from_secs(15));
        assert_eq!(lists(), before + 1);
        let tables = |space: siltstone::SpaceStats| space.tables.file_count;
        assert_eq!(tables(old.stats.space) + 1, tables(read().stats.space));
        store.close().unwrap();
    });
}

/// While the folder cannot be listed, the last count stays. The files are counted again soon after
/// that, and after a count that took long.
#[test]
fn a_count_that_failed_or_was_slow_is_made_again_soon() {
    in_simulation(|rt| {
        let disk = Disk::new(&rt);
        let store = disk.open();
        let ks = store.create_keyspace("a").unwrap();
        let space = || read_stats_file_from(&disk.memory).unwrap().stats.space;
        let add_table = || {
            ks.put(b"k", &[1; 200]).unwrap();
            ks.flush().unwrap();
        };
        rt.sleep(Duration::from_secs(3));
        let old = space();
        assert!(old.total().file_count > 0);
        let unreachable = Fault::Unreachable {
            limit: Duration::from_secs(30),
            effect: Effect::None,
        };
        disk.faults
            .add(Rule::on(OpKind::List, unreachable).for_good());
        rt.sleep(Duration::from_secs(40));
        assert_eq!(space(), old);
        disk.faults.clear();
        add_table();
        rt.sleep(Duration::from_secs(90));
        assert_eq!(space().tables.file_count, old.tables.file_count + 1);
        // As a listing that waits until an outage ends.
        let slow = Fault::Delay(Duration::from_secs(30));
        disk.faults.add(Rule::on(OpKind::List, slow));
        rt.sleep(Duration::from_secs(60));
        add_table();
        rt.sleep(Duration::from_secs(310));
        assert_eq!(space().tables.file_count, old.tables.file_count + 2);
        store.close().unwrap();
    });
}

/// One of the folders cannot be listed from the beginning: the files in the others are counted.
#[test]
fn a_folder_that_cannot_be_listed_hides_no_other() {
    in_simulation(|rt| {
        let folders = Folders::new(&rt);
        let tables = FaultStorage::new(Arc::new(folders.memory[1].clone()), &rt);
        let storages = Storages {
            tables: Arc::new(tables.clone()),
            ..folders.storages(Layout::of(0, 1))
        };
        let components = Components::of(storages, rt.clone());
        let store = Store::open_with(components, small()).unwrap();
        let fail = Fault::Fail(StorageErrorKind::PermissionDenied);
        tables.add(Rule::on(OpKind::List, fail).for_good());
        let ks = store.create_keyspace("a").unwrap();
        ks.put(b"k", &[1; 200]).unwrap();
        ks.flush().unwrap();
        let space = || {
            read_stats_file_from(&folders.memory[0])
                .unwrap()
                .stats
                .space
        };
        rt.sleep(Duration::from_secs(3));
        let old = space();
        assert!(old.manifests.file_count > 0 && old.log_live.file_count > 0);
        assert_eq!(old.tables.file_count, 0);
        tables.clear();
        rt.sleep(Duration::from_secs(90));
        let whole = space();
        assert_eq!(whole.tables.file_count, 1);
        // From now on the last whole count stays.
        tables.add(Rule::on(OpKind::List, fail).for_good());
        rt.sleep(Duration::from_secs(90));
        assert_eq!(space(), whole);
        store.close().unwrap();
    });
}

#[test]
fn the_file_has_the_statistics_of_the_store() {
    in_simulation(|rt| {
        let disk = Disk::new(&rt);
        let error = read_stats_file_from(&disk.memory).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        let store = disk.open();
        let ks = store.create_keyspace("a").unwrap();
        for i in 0..2000 {
            ks.put(&key(i), &[1; 200]).unwrap();
        }
        store.flush().unwrap();
        store.wait_until_idle().unwrap();
        rt.sleep(Duration::from_secs(3));
        let syncs = disk.faults.counts().of(OpKind::SyncDir);
        let first = read_stats_file_from(&disk.memory).unwrap();
        assert_eq!(first.stats.keyspaces, store.stats().keyspaces);
        assert!(first.stats.keyspaces.iter().any(|k| k.name == "a"));
        assert_eq!(first.stats.published, store.stats().published);
        assert_eq!(first.stats.health, "good");
        assert_eq!(first.stats.log.live_segment_count, 1);
        assert_eq!(first.stats.counter("put_count"), 2000);
        assert!(first.stats.latencies["put"].count > 0);
        assert!(first.stats.sides.len() == 1 && first.stats.jobs.is_empty());
        rt.sleep(Duration::from_secs(5));
        let next = read_stats_file_from(&disk.memory).unwrap();
        let passed = next.written_us - first.written_us;
        assert!((4_000_000..=6_000_000).contains(&passed), "{passed}");
        assert_eq!(
            disk.faults.counts().of(OpKind::SyncDir),
            syncs,
            "writing the file syncs nothing"
        );
        // The names are those of the JSON that is printed.
        let printed: serde_json::Value = serde_json::from_str(&store.stats().to_json()).unwrap();
        let file: serde_json::Value =
            serde_json::from_slice(&disk.memory.read_small(STATS).unwrap()).unwrap();
        let names = |v: &serde_json::Value| -> Vec<String> {
            v.as_object().unwrap().keys().cloned().collect()
        };
        assert_eq!(names(&printed), names(&file["stats"]));
        assert_eq!(printed["keyspaces"], file["stats"]["keyspaces"]);

        assert_eq!(printed["keyspaces"][0]["levels"][3]["level"], 3);
        assert_eq!(printed["delay_totals"]["l0_stop"]["count"], 0);
        assert!(printed["write_amplification"].as_f64().unwrap() > 0.5);

        // They are there after a kill, the next writer replaces them, and a close deletes them.
        let killed = disk.kill();
        let left = read_stats_file_from(&killed.memory).unwrap();
        assert_eq!(left.written_us, next.written_us);
        let report = check(&CheckStorages::on(&killed.memory), &mut |_| ()).unwrap();
        assert!(report.is_sound() && report.foreign.is_empty());
        let again = killed.open();
        let error = read_stats_file_from(&killed.memory).unwrap_err();
        assert_eq!(
            error.kind(),
            ErrorKind::NotFound,
            "they were another writer's"
        );
        rt.sleep(Duration::from_secs(2));
        assert!(read_stats_file_from(&killed.memory).unwrap().written_us > left.written_us);
        again.close().unwrap();
        store.close().unwrap();
        for disk in [disk, killed] {
            let error = read_stats_file_from(&disk.memory).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::NotFound);
        }
    });
}

#[test]
fn the_file_shows_poison_and_may_fail_without_harm() {
    in_simulation(|rt| {
        let disk = Disk::new(&rt);
        let store = disk.open();
        let ks = store.default_keyspace().unwrap();
        disk.faults
            .add(Rule::on(OpKind::Publish, Fault::Fail(StorageErrorKind::NoSpace)).for_good());
        for i in 0..5 {
            put_in_all(&store, &[&ks], &key(i), b"v", SYNC);
            rt.sleep(Duration::from_secs(1));
        }
        assert!(store.stats().counter("stats_file_failed_count") >= 4);
        assert_eq!(store.stats().health, "good");
        disk.faults.clear();
        disk.faults
            .add(Rule::on(OpKind::Sync, Fault::Fail(StorageErrorKind::Io)).named(common::LOG));
        assert!(store.sync_log().is_ok(), "all was synced");
        ks.put(b"x", b"y").unwrap();
        assert_eq!(store.sync_log().unwrap_err().kind(), ErrorKind::Poisoned);
        rt.sleep(Duration::from_secs(2));
        let found = read_stats_file_from(&disk.memory).unwrap();
        assert!(
            found.stats.health.contains("takes no writes"),
            "{}",
            found.stats.health
        );
    });
}

#[test]
fn statistics_are_read_beside_an_open_store_on_files() {
    let rt = siltstone_storage::Runtime::threads();
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path(), small()).unwrap();
    let ks = store.default_keyspace().unwrap();
    for i in 0..100 {
        ks.put(&key(i), b"v").unwrap();
    }
    store.flush().unwrap();
    // It happens soon; how soon depends on the scheduler.
    let mut found = None;
    for _ in 0..6000 {
        found = read_stats_file(folder.path())
            .ok()
            .filter(|f| f.stats.counter("flush_count") == 1);
        if found.is_some() {
            break;
        }
        rt.sleep(Duration::from_millis(10));
    }
    let found = found.expect("a minute passed without statistics");
    assert_eq!(found.pid, std::process::id());
    // Forecasts change with time.
    let without_times = |keyspaces: &[KeyspaceStats]| -> Vec<KeyspaceStats> {
        let pressure = PressureStats::default();
        let of = |k: &KeyspaceStats| KeyspaceStats {
            pressure: pressure.clone(),
            ..k.clone()
        };
        keyspaces.iter().map(of).collect()
    };
    let now = store.stats().keyspaces;
    assert_eq!(without_times(&found.stats.keyspaces), without_times(&now));
    let limits = &found.stats.keyspaces[0].pressure.limits;
    assert_eq!(limits.len(), 5, "{limits:?}");
    assert_eq!((limits[1].limit, limits[1].load), (Limit::L0Depth, 1));
    store.close().unwrap();
    assert!(!folder.path().join(STATS).exists());
}

#[test]
fn writing_the_file_is_a_setting_and_readers_write_none() {
    in_simulation(|rt| {
        let disk = Disk::new(&rt);
        let calls = |disk: &Disk| disk.faults.counts().of(OpKind::Publish);
        let options = Options {
            stats_file_ms: 0,
            ..small()
        };
        let store = disk.open_with(options);
        let ks = store.default_keyspace().unwrap();
        ks.put(b"k", b"v").unwrap();
        rt.sleep(Duration::from_secs(10));
        assert_eq!(calls(&disk), 0);
        store.set_option("stats_file_ms", 250u64).unwrap();
        rt.sleep(Duration::from_secs(11));
        let n = calls(&disk);
        // Four a second, and one at once.
        assert!((40..=45).contains(&n), "{n}");
        store.set_option("stats_file_ms", 0u64).unwrap();
        rt.sleep(Duration::from_secs(10));
        assert!(calls(&disk) <= n + 1);
        store.close().unwrap();
        let n = calls(&disk);
        // A store that is closed within the first second writes no file.
        let store = disk.open();
        store.close().unwrap();
        let on = Components::on(Arc::new(disk.faults.clone()), rt.clone());
        let reader = Store::open_read_only_with(on, small()).unwrap();
        rt.sleep(Duration::from_secs(5));
        reader.close().unwrap();
        assert_eq!(calls(&disk), n);
        assert!(disk.memory.list().unwrap().iter().all(|o| o.name != STATS));
    });
}
