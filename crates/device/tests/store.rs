//! Stores on a device, over the sockets of the system. The whole store, only its tables, or only
//! its compactions are on the device.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use siltstone::{ErrorKind, Options, Storages, Store};
use siltstone_device::{
    ClientOptions, DataFolder, DeviceStore, Placement, Server, ServerOptions, open, open_read_only,
};
use siltstone_storage::Runtime;
use siltstone_storage::link::{Address, Network, SocketNetwork};

/// A device at a Unix socket.
struct World {
    dir: tempfile::TempDir,
    sessions_max: usize,
    server: Option<Server>,
}

impl World {
    fn new() -> World {
        World::with_sessions(ServerOptions::default().sessions_max)
    }

    fn with_sessions(sessions_max: usize) -> World {
        let mut world = World {
            dir: tempfile::tempdir().unwrap(),
            sessions_max,
            server: None,
        };
        std::fs::create_dir(world.dir.path().join("shared")).unwrap();
        world.start();
        world
    }

    fn start(&mut self) {
        let runtime = Runtime::threads();
        let network: Arc<dyn Network> = Arc::new(SocketNetwork::new(&runtime));
        let folders = DataFolder::open(self.dir.path().join("data")).unwrap();
        let options = ServerOptions {
            shared: vec![self.dir.path().join("shared").canonicalize().unwrap()],
            keep_bytes: 64 << 20,
            slots: 2,
            sessions_max: self.sessions_max,
            ..ServerOptions::default()
        };
        let addresses = [self.address()];
        let server = Server::start(&runtime, &network, &addresses, Arc::new(folders), options);
        self.server = Some(server.unwrap());
    }

    fn stop(&mut self) {
        self.server.take().unwrap().stop();
    }

    fn address(&self) -> Address {
        let path = self.dir.path().join("socket");
        format!("unix:{}", path.display()).parse().unwrap()
    }

    fn url(&self, folder: &str) -> String {
        format!(
            "silt+unix://{}#{folder}",
            self.dir.path().join("socket").display()
        )
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if let Some(server) = self.server.take() {
            server.stop();
        }
    }
}

fn small() -> Options {
    Options {
        memtable_bytes: 256 << 10,
        ..Options::default()
    }
}

fn placement() -> Placement {
    Placement {
        client: ClientOptions {
            time_limit: Duration::from_secs(5),
            lease_wait: Duration::from_secs(15),
            ..ClientOptions::default()
        },
        ..Placement::default()
    }
}

fn key(n: u32) -> Vec<u8> {
    format!("key-{:08}", n.wrapping_mul(2_654_435_761) % 100_000).into_bytes()
}

/// Writes much more than a memtable holds, compacts it, and returns the number of entries.
fn fill(store: &Store) -> usize {
    let keyspace = store.default_keyspace().unwrap();
    for n in 0..20_000u32 {
        keyspace.put(&key(n), &n.to_be_bytes().repeat(16)).unwrap();
    }
    store.flush().unwrap();
    store.wait_until_idle().unwrap();
    check(store);
    keyspace.iter().unwrap().count()
}

/// Checks that every entry has the value that was written last.
fn check(store: &Store) {
    let keyspace = store.default_keyspace().unwrap();
    let mut last = std::collections::BTreeMap::new();
    for n in 0..20_000u32 {
        last.insert(key(n), n);
    }
    for (key, n) in &last {
        let value = keyspace.get(key).unwrap();
        let value = value.unwrap_or_else(|| panic!("{key:?} is missing"));
        assert_eq!(&value[..], &n.to_be_bytes().repeat(16)[..]);
    }
    assert_eq!(keyspace.iter().unwrap().count(), last.len());
}

/// Whether a side of this kind has completed a compaction.
fn done_by(store: &Store, side: &str) -> bool {
    let stats = store.stats();
    let mut sides = stats.sides.iter().filter(|s| s.side == side);
    sides.any(|s| s.compaction_bytes_per_s.is_some())
}

fn assert_nothing_failed(store: &DeviceStore) {
    let stats = store.stats();
    for side in &stats.sides {
        let counts = (side.failed_count, side.rejected_count);
        assert_eq!(counts, (0, 0), "{side:?}");
    }
}

/// The error for a limit of the device does not advise to raise one of this process.
#[test]
fn a_device_with_too_many_sessions_says_so() {
    let world = World::with_sessions(1);
    let store = open(&world.url("birds"), small(), &placement()).unwrap();
    let refused = open(&world.url("eggs"), small(), &placement());
    let said = refused.err().unwrap().to_string();
    assert!(said.contains("has 1 sessions already"), "{said}");
    assert!(said.contains("this is a limit of the device"), "{said}");
    assert!(!said.contains("ulimit"), "{said}");
    store.close().unwrap();
}

#[test]
fn a_store_on_a_device_keeps_everything() {
    let mut world = World::new();
    let url = world.url("birds");
    let store = open(&url, small(), &placement()).unwrap();
    let count = fill(&store);
    assert!(done_by(&store, "device"), "{:?}", store.stats().sides);
    assert_nothing_failed(&store);
    // Meanwhile another host cannot open the store, and is told which host has it.
    let error = open(&url, small(), &Placement::default()).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Locked, "{error}");
    let holder = format!(", pid {}, last heard", std::process::id());
    assert!(
        error.to_string().contains("another host has it (") && error.to_string().contains(&holder),
        "{error}"
    );
    store.close().unwrap();
    // The store is there for readers, after a restart of the device, and for local tools.
    let reader = open_read_only(&url, small(), &placement()).unwrap();
    check(&reader);
    reader.close().unwrap();
    world.stop();
    let local = Store::open(world.dir.path().join("data/birds"), small()).unwrap();
    assert_eq!(
        local.default_keyspace().unwrap().iter().unwrap().count(),
        count
    );
    local.close().unwrap();
    world.start();
    let store = open(&url, small(), &placement()).unwrap();
    check(&store);
    store.close().unwrap();
}

#[test]
fn tables_on_a_device_and_the_log_here() {
    let world = World::new();
    let local = world.dir.path().join("local");
    let place = local.display().to_string();
    let tables = Placement {
        tables: Some(world.url("tables")),
        ..placement()
    };
    let store = open(&place, small(), &tables).unwrap();
    fill(&store);
    assert!(done_by(&store, "device"), "{:?}", store.stats().sides);
    assert_nothing_failed(&store);
    store.close().unwrap();
    let has_tables = |path: &Path| {
        let names = std::fs::read_dir(path).unwrap();
        let mut names = names.map(|entry| entry.unwrap().file_name());
        names.any(|name| name.to_string_lossy().ends_with(".tbl"))
    };
    assert!(!has_tables(&local));
    assert!(has_tables(&world.dir.path().join("data/tables")));
    // The store knows where its tables are.
    let store = open(&place, small(), &placement()).unwrap();
    check(&store);
    store.close().unwrap();
    // The error of a plain open says how the store can be opened.
    let error = Store::open(&local, small()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(
        error.to_string().contains("siltstone_device::open"),
        "{error}"
    );
    let elsewhere = Placement {
        tables: Some(world.url("others")),
        ..placement()
    };
    let error = open(&place, small(), &elsewhere).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
}

/// The disk of a device may not be mounted. An empty folder must not take the place of the tables.
#[test]
fn a_missing_folder_of_tables_is_not_made_again() {
    let world = World::new();
    let place = world.dir.path().join("local").display().to_string();
    let tables = Placement {
        tables: Some(world.url("tables")),
        ..placement()
    };
    let store = open(&place, small(), &tables).unwrap();
    store
        .default_keyspace()
        .unwrap()
        .put("wren", "9 g")
        .unwrap();
    store.flush().unwrap();
    store.close().unwrap();
    let there = world.dir.path().join("data/tables");
    let away = world.dir.path().join("data/away");
    std::fs::rename(&there, &away).unwrap();
    for placed in [&placement(), &tables] {
        for error in [
            open(&place, small(), placed).err().unwrap(),
            open_read_only(&place, small(), placed).err().unwrap(),
        ] {
            assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
            let text = error.to_string();
            assert!(text.contains("DIRECTORIES in the store's folder"), "{text}");
        }
    }
    assert!(!there.exists());
    std::fs::rename(&away, &there).unwrap();
    let store = open(&place, small(), &placement()).unwrap();
    let found = store.default_keyspace().unwrap().get("wren").unwrap();
    assert_eq!(found, Some(b"9 g".to_vec()));
    store.close().unwrap();
}

/// If one of the two folders of a new store cannot be made, the other one is not left.
#[test]
fn a_store_that_cannot_be_made_leaves_no_folder() {
    let world = World::new();
    let at = |name: &str| world.dir.path().join(name);
    let tables = Placement {
        tables: Some(world.url("tables")),
        ..placement()
    };
    // Nobody can make a folder there.
    open("/proc/x", small(), &tables).err().unwrap();
    assert!(!at("data/tables").exists());
    let nowhere = Placement {
        tables: Some(format!("silt+unix://{}#tables", at("none").display())),
        client: ClientOptions {
            time_limit: Duration::from_millis(300),
            ..ClientOptions::default()
        },
        ..Placement::default()
    };
    let place = at("local").display().to_string();
    let error = open(&place, small(), &nowhere).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    assert!(!at("local").exists());
}

#[test]
fn compactions_of_a_local_store_run_on_a_device() {
    let world = World::new();
    for folder in ["shared/store", "lent"] {
        let path = world.dir.path().join(folder).display().to_string();
        let lent = Placement {
            devices: vec![world.address()],
            ..placement()
        };
        let store = open(&path, small(), &lent).unwrap();
        fill(&store);
        assert!(
            done_by(&store, "device"),
            "{folder}: {:?}",
            store.stats().sides
        );
        assert_nothing_failed(&store);
        store.close().unwrap();
        let store = Store::open(&path, small()).unwrap();
        check(&store);
        store.close().unwrap();
        let storages = Storages::find(&path).unwrap();
        let storages = siltstone::check::CheckStorages::of(&storages);
        let report = siltstone::check::check(&storages, &mut |_| {}).unwrap();
        assert!(report.is_sound(), "{report:?}");
    }
}

#[test]
fn a_closed_store_leaves_no_session_and_no_sent_tables() {
    let world = World::new();
    let server = world.server.as_ref().unwrap();
    let lent = Placement {
        devices: vec![world.address()],
        ..placement()
    };
    let path = world.dir.path().join("lent").display().to_string();
    let store = open(&path, small(), &lent).unwrap();
    fill(&store);
    let began = server.take_session_events();
    // There is one session of the executor, and one for the tables that are sent.
    assert_eq!(began.len(), 2, "{began:?}");
    assert!(began.iter().all(|event| !event.has_ended), "{began:?}");
    assert_eq!(began.iter().filter(|event| event.is_scratch).count(), 1);
    assert_eq!(server.sessions().len(), 2);
    let scratch = world.dir.path().join("data/.scratch");
    let scratch_count = || std::fs::read_dir(&scratch).unwrap().count();
    assert_eq!(scratch_count(), 1);
    store.close().unwrap();
    assert_eq!(server.sessions(), []);
    assert_eq!(scratch_count(), 0);
    let ended = server.take_session_events();
    assert_eq!(ended.len(), 2, "{ended:?}");
    assert!(ended.iter().all(|event| event.has_ended), "{ended:?}");
    assert_eq!(server.take_session_events(), []);
}

#[test]
fn what_is_not_there_is_named() {
    let world = World::new();
    let none = Options {
        create_if_missing: false,
        ..small()
    };
    let error = open(&world.url("nothing"), none, &placement())
        .err()
        .unwrap();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    let error = open(
        "silt://127.0.0.1:1/db",
        small(),
        &Placement {
            client: ClientOptions {
                time_limit: Duration::from_millis(300),
                ..ClientOptions::default()
            },
            ..Placement::default()
        },
    )
    .err()
    .unwrap();
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    assert!(
        error.to_string().contains("is `silt device` running?"),
        "{error}"
    );
    // A mistyped address is no path of a local folder.
    for wrong in [
        "silt://127.0.0.1/db",
        "silt:/127.0.0.1:1/db",
        "SILT://h:1/db",
    ] {
        let error = open(wrong, small(), &placement()).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
        assert!(!Path::new(wrong).exists());
    }
    // A device that does not answer leaves no folder.
    let local = world.dir.path().join("local");
    let nobody = Placement {
        devices: vec!["127.0.0.1:1".parse().unwrap()],
        client: ClientOptions {
            time_limit: Duration::from_millis(300),
            ..ClientOptions::default()
        },
        ..Placement::default()
    };
    for place in [local.to_str().unwrap(), &world.url("new")] {
        let error = open(place, small(), &nobody).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    }
    assert!(!local.exists() && !world.dir.path().join("data/new").exists());
}

/// The host runs all compactions, and the device has the tables. If the schedule allows it, each
/// compaction decides whether the values stay there. All data is there in any case.
#[test]
fn compactions_of_the_host_may_leave_values_on_the_device() {
    let world = World::new();
    for (folder, schedule, is_asked) in [
        ("with", "host-only, separated-transfer=on", true),
        ("without", "host-only", false),
    ] {
        let mut options = small();
        options.set("schedule", &schedule.into()).unwrap();
        let store = open(&world.url(folder), options, &placement()).unwrap();
        let keyspace = store.default_keyspace().unwrap();
        for round in 0..3u8 {
            for n in 0..300u32 {
                keyspace.put(key(n), [round; 4096]).unwrap();
            }
            store.flush().unwrap();
            keyspace.compact_range(None, None).unwrap();
        }
        for n in 0..300u32 {
            assert_eq!(keyspace.get(key(n)).unwrap().unwrap(), [2; 4096]);
        }
        let stats = store.separated_stats().expect("a device has the tables");
        let asked = stats.job_count + stats.declined_count;
        assert_eq!(asked > 0, is_asked, "{schedule}: {stats:?}");
        assert_eq!(stats.failed_count, 0, "{stats:?}");
        store.close().unwrap();
    }
}
