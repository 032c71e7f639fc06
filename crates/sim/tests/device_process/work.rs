//! A host with a store on a real device that is killed, or whose sockets are cut. No synced write
//! is lost, and an outage alone does not poison the store.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use siltstone::check::{CheckStorages, check};
use siltstone::{Batch, ErrorKind, Options, Value, WriteOptions};
use siltstone_device::{
    ClientOptions, Device, DeviceStore, DeviceUrl, FolderWanted, Placement, network, open,
};
use siltstone_sim::coverage::Coverage;
use siltstone_sim::rng::Rng;
use siltstone_storage::{Runtime, Storage};

use super::proxy::Proxy;
use super::server::ServerProcess;

/// What was tried and what was acknowledged, by key.
#[derive(Default)]
struct Known {
    tried: BTreeMap<u32, u64>,
    synced: BTreeMap<u32, u64>,
    writes: u64,
}

fn key(n: u32) -> Vec<u8> {
    format!("key-{n:04}").into_bytes()
}

/// The policies that stores are opened with, by seed. Without fallback, a job that the device
/// failed with waits for the device, so the host cannot hide such a failure.
const SCHEDULES: [&str; 2] = ["near-data", "near-data, fallback=off"];

fn options(seed: u64) -> Options {
    let mut options = Options {
        memtable_bytes: 128 << 10,
        table_bytes: 64 << 10,
        level1_bytes: 128 << 10,
        log_segment_bytes: 128 << 10,
        log_bytes_max: 8 << 20,
        l0_trigger_count: 2,
        ..Options::default()
    };
    let schedule = Value::from(SCHEDULES[(seed % 2) as usize]);
    options.set("schedule", &schedule).expect("a schedule");
    options
}

fn client() -> ClientOptions {
    ClientOptions {
        time_limit: Duration::from_secs(30),
        lease_wait: Duration::from_secs(40),
        ..ClientOptions::default()
    }
}

/// Opens the store. This may need several attempts while the device is killed.
fn opened(url: &str, seed: u64, coverage: &mut Coverage) -> DeviceStore {
    let mut tries = 0;
    loop {
        let placement = Placement {
            client: client(),
            ..Placement::default()
        };
        match open(url, options(seed), &placement) {
            Ok(store) => return store,
            Err(error) => {
                tries += 1;
                assert!(tries < 10, "{url}: {error}");
                let passes = matches!(
                    error.kind(),
                    ErrorKind::Unreachable
                        | ErrorKind::Locked
                        | ErrorKind::Poisoned
                        | ErrorKind::Closed
                        | ErrorKind::Io
                );
                assert!(passes, "{url}: {:?}: {error}", error.kind());
                coverage.add("work.open_tried_again");
                std::thread::sleep(Duration::from_millis(100));
            }
        }
    }
}

fn check_value(known: &Known, n: u32, value: Option<&[u8]>) {
    let synced = known.synced.get(&n).copied().unwrap_or(0);
    let tried = known.tried.get(&n).copied().unwrap_or(0);
    let found = value.map_or(0, |value| {
        u64::from_le_bytes(value[..8].try_into().expect("eight bytes at least"))
    });
    assert!(
        (synced..=tried).contains(&found),
        "key {n} has {found}, {synced} was acknowledged, {tried} was tried"
    );
}

/// Writes and reads until `goes_on` returns false. Returns whether the store was poisoned.
fn work(
    store: &DeviceStore,
    known: &mut Known,
    rng: &mut Rng,
    coverage: &mut Coverage,
    goes_on: &mut dyn FnMut() -> bool,
) -> Option<String> {
    let keyspace = store.default_keyspace().expect("the default keyspace");
    while goes_on() {
        let n = rng.below(200) as u32;
        let result = match rng.below(20) {
            0..=13 => {
                known.writes += 1;
                let value = known.writes;
                known.tried.insert(n, value);
                let mut bytes = value.to_le_bytes().to_vec();
                bytes.resize(1000, n as u8);
                let mut batch = Batch::new();
                batch.put(&keyspace, &key(n), &bytes).expect("a small put");
                let sync = rng.chance(50);
                let written = store.write(
                    &batch,
                    WriteOptions {
                        sync,
                        ..WriteOptions::default()
                    },
                );
                if sync && written.is_ok() {
                    known.synced.insert(n, value);
                    coverage.add("work.synced");
                }
                written.map(drop)
            }
            14..=18 => keyspace
                .get(&key(n))
                .map(|value| check_value(known, n, value.as_deref())),
            _ => store.flush(),
        };
        match result.map_err(|error| (error.kind(), error.to_string())) {
            Ok(()) => {}
            Err((ErrorKind::Unreachable | ErrorKind::Unsynced, _)) => coverage.add("work.outage"),
            Err((ErrorKind::Poisoned | ErrorKind::Io | ErrorKind::Closed, text)) => {
                return Some(text);
            }
            Err((kind, text)) => panic!("{kind:?}: {text}"),
        }
    }
    None
}

/// Checks that everything is there in the end, and nothing is left over.
fn at_the_end(url: &str, seed: u64, known: &Known, coverage: &mut Coverage) {
    let store = opened(url, seed, coverage);
    let keyspace = store.default_keyspace().expect("the default keyspace");
    for n in 0..200 {
        let value = keyspace.get(&key(n)).expect("a read");
        check_value(known, n, value.as_deref());
    }
    store.wait_until_idle().expect("the work that is left");
    let stats = store.stats();
    let devices = stats.sides.iter().filter(|side| side.side == "device");
    let count: u64 = devices.map(|side| side.compaction_count).sum();
    coverage.add_count("work.device_job", count);
    drop(keyspace);
    store.close().expect("a close");
    let runtime = Runtime::threads();
    let url: DeviceUrl = url.parse().expect("an address");
    let folder = FolderWanted::Named {
        name: url.folder.clone(),
        create: false,
    };
    let network = network(&runtime, None).expect("sockets");
    let session = Device::connect(&runtime, network, url.address.clone(), folder, client());
    let session = session.expect("a session");
    let storage: std::sync::Arc<dyn Storage> = session.storage();
    let report = check(&CheckStorages::on(&*storage), &mut |_| {}).expect("a check");
    assert!(report.is_sound(), "{report:?}");
    assert!(report.orphans.is_empty(), "{:?}", report.orphans);
    coverage.add("work.no_orphans");
    session.close();
}

fn start(folder: &Path, address: &str) -> ServerProcess {
    ServerProcess::start(&folder.join("data"), address, None)
}

/// The device is killed five times while a host works.
pub fn killed_trial(seed: u64) -> Coverage {
    let mut rng = Rng::new(seed ^ 0x9111);
    let mut coverage = Coverage::default();
    let dir = tempfile::tempdir().expect("a folder");
    let socket = dir.path().join("socket");
    let address = format!("unix:{}", socket.display());
    let url = format!("silt+unix://{}#db", socket.display());
    let mut known = Known::default();
    let mut server = start(dir.path(), &address);
    let mut store = opened(&url, seed, &mut coverage);
    for _ in 0..5 {
        // The device is killed after this time. Some calls of the host are then under way.
        let (killed, folder) = (rng.below(400), dir.path().to_path_buf());
        let away = Duration::from_millis(rng.below(300));
        let address = address.clone();
        let killer = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(killed));
            server.kill();
            std::thread::sleep(away);
            start(&folder, &address)
        });
        let until = Instant::now() + Duration::from_millis(killed) + away * 2;
        let mut goes_on = || Instant::now() < until;
        let poisoned = work(&store, &mut known, &mut rng, &mut coverage, &mut goes_on);
        server = killer.join().expect("the killer");
        coverage.add("work.device_killed");
        if let Some(why) = poisoned {
            assert!(!why.contains("damaged"), "{why}");
            coverage.add("work.poisoned");
            let _ = store.close();
            store = opened(&url, seed, &mut coverage);
        }
    }
    let _ = store.close();
    at_the_end(&url, seed, &known, &mut coverage);
    drop(server);
    coverage
}

/// The sockets between host and device are cut, until this has happened ten times.
pub fn cut_trial(seed: u64) -> Coverage {
    let mut rng = Rng::new(seed ^ 0xC075);
    let mut coverage = Coverage::default();
    let dir = tempfile::tempdir().expect("a folder");
    let server = start(dir.path(), "127.0.0.1:0");
    let proxy = Proxy::start(&server.address, seed);
    let url = format!("silt://127.0.0.1:{}/db", proxy.port);
    let mut known = Known::default();
    let store = opened(&url, seed, &mut coverage);
    let most = Instant::now() + Duration::from_secs(60);
    let mut goes_on = || proxy.troubles() < 10 && Instant::now() < most;
    let poisoned = work(&store, &mut known, &mut rng, &mut coverage, &mut goes_on);
    assert_eq!(poisoned, None, "an outage has poisoned the store");
    let cut = proxy.counts.cut.load(std::sync::atomic::Ordering::SeqCst);
    coverage.add_count("proxy.cut", cut);
    coverage.add_count("proxy.frozen", proxy.troubles().saturating_sub(cut));
    proxy.calm();
    store.close().expect("a close");
    at_the_end(&url, seed, &known, &mut coverage);
    coverage
}
