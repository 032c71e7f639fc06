//! A store on a device whose disk is full. The store continues when there is space again. The disk
//! is a small file system of the test's own.

#[path = "../../storage/tests/common/tmpfs.rs"]
mod tmpfs;

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use siltstone::{Error, ErrorKind, Options, WriteOptions};
use siltstone_device::{
    ClientOptions, DataFolder, DeviceStore, Placement, Server, ServerOptions, open,
};
use siltstone_storage::Runtime;
use siltstone_storage::link::{Network, SocketNetwork};
use tmpfs::on_tmpfs;

/// The space of the device, in MiB.
const SPACE_MIB: u32 = 48;

/// How long the test waits for anything. It is never reached unless something hangs.
const PATIENCE: Duration = Duration::from_secs(60);

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

fn options() -> Options {
    Options {
        memtable_bytes: 256 << 10,
        table_bytes: 256 << 10,
        level1_bytes: 1 << 20,
        log_segment_bytes: 512 << 10,
        log_bytes_max: 4 << 20,
        l0_trigger_count: 2,
        ..Options::default()
    }
}

fn placement() -> Placement {
    Placement {
        client: ClientOptions {
            time_limit: Duration::from_secs(20),
            ..ClientOptions::default()
        },
        ..Placement::default()
    }
}

/// Creates a file that takes all the space that is left.
fn fill(dir: &Path) -> std::path::PathBuf {
    let path = dir.join("ballast");
    let mut file = std::fs::File::create(&path).unwrap();
    let mut piece = 1 << 20;
    while piece > 0 {
        match file.write(&vec![1; piece]) {
            Ok(written) if written > 0 => {}
            _ => piece /= 2,
        }
    }
    path
}

fn pair(n: u32) -> (Vec<u8>, Vec<u8>) {
    let key = format!("key-{:08}", n.wrapping_mul(2_654_435_761) % 3000).into_bytes();
    (key, n.to_be_bytes().repeat(100))
}

fn put(store: &DeviceStore, n: u32, sync: bool) -> Result<(), Error> {
    let keyspace = store.default_keyspace()?;
    let (key, value) = pair(n);
    let mut batch = siltstone::Batch::new();
    batch.put(&keyspace, &key, &value)?;
    store
        .write(
            &batch,
            WriteOptions {
                sync,
                ..WriteOptions::default()
            },
        )
        .map(drop)
}

/// Checks that everything that was acknowledged is there. A key whose last write failed may have
/// the value of that write.
fn check(store: &DeviceStore, model: &Model, refused: &Model) {
    let keyspace = store.default_keyspace().unwrap();
    for (key, value) in model {
        let found = keyspace.get(key).unwrap();
        let is_refused = found.is_some() && found.as_ref() == refused.get(key);
        assert!(is_refused || found.as_ref() == Some(value), "{key:?}");
    }
}

#[test]
fn a_store_on_a_full_device_goes_on_when_there_is_space() {
    on_tmpfs(
        "a_store_on_a_full_device_goes_on_when_there_is_space",
        SPACE_MIB,
        fill_and_free,
    );
}

fn fill_and_free(dir: &Path) {
    let runtime = Runtime::threads();
    let network: Arc<dyn Network> = Arc::new(SocketNetwork::new(&runtime));
    let folders = Arc::new(DataFolder::open(dir.join("data")).unwrap());
    let socket = dir.join("socket");
    let address = format!("unix:{}", socket.display()).parse().unwrap();
    let server = Server::start(
        &runtime,
        &network,
        &[address],
        folders,
        ServerOptions {
            slots: 2,
            ..ServerOptions::default()
        },
    )
    .unwrap();
    let url = format!("silt+unix://{}#db", socket.display());
    let store = open(&url, options(), &placement()).unwrap();
    let (mut model, mut refused) = (Model::new(), Model::new());
    let mut n = 0;
    for round in 0..3 {
        // There is space, so every write succeeds.
        for _ in 0..5000 {
            put(&store, n, n % 50 == 0).unwrap();
            model.extend([pair(n)]);
            n += 1;
        }
        let ballast = fill(dir);
        // The store keeps some of the space that it has reserved.
        let error = loop {
            assert!(n < 200_000, "round {round}: the disk is never full");
            match put(&store, n, n % 50 == 0) {
                Ok(()) => model.extend([pair(n)]),
                Err(error) => break error,
            }
            n += 1;
        };
        let mut errors = vec![error];
        for _ in 0..20 {
            refused.extend([pair(n)]);
            n += 1;
            match put(&store, n, n % 2 == 0) {
                Ok(()) => model.extend([pair(n)]),
                Err(error) => errors.push(error),
            }
        }
        for error in &errors {
            assert_eq!(error.kind(), ErrorKind::NoSpace, "round {round}: {error}");
            let text = error.to_string();
            assert!(text.contains("data/db/"), "it names no file: {text}");
            assert!(text.contains("the store goes on by itself"), "{text}");
        }
        check(&store, &model, &refused);
        // With space, the store continues by itself, without being opened again.
        std::fs::remove_file(ballast).unwrap();
        let begun = runtime.now();
        while let Err(error) = put(&store, n, true) {
            assert_eq!(error.kind(), ErrorKind::NoSpace, "round {round}: {error}");
            assert!(runtime.now().since(begun) < PATIENCE, "{error}");
            runtime.sleep(Duration::from_millis(10));
        }
        model.extend([pair(n)]);
        n += 1;
        store.flush().unwrap();
        store.wait_until_idle().unwrap();
        assert_eq!(store.stats().health.to_string(), "good");
        check(&store, &model, &refused);
    }
    let stats = store.stats();
    let device = &stats.sides[0];
    assert!(device.compaction_count > 0, "{device:?}");
    assert_eq!(device.rejected_count, 0, "{device:?}");
    store.close().unwrap();
    let store = open(&url, options(), &placement()).unwrap();
    check(&store, &model, &refused);
    store.close().unwrap();
    server.stop();
}
