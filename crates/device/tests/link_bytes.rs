//! The bytes of a link by purpose, as the counters of a session and the statistics of a store show
//! them.

use std::sync::Arc;
use std::time::Duration;

use siltstone::{Options, ScheduleOptions, Store};
use siltstone_device::{
    ClientOptions, DataFolder, DeviceStore, LinkBytes, LinkPurpose, Placement, Server,
    ServerOptions, open,
};
use siltstone_storage::Runtime;
use siltstone_storage::link::{Address, Network, SocketNetwork};

/// A device at a Unix socket.
struct World {
    dir: tempfile::TempDir,
    server: Option<Server>,
}

impl World {
    fn new() -> World {
        let dir = tempfile::tempdir().unwrap();
        let runtime = Runtime::threads();
        let network: Arc<dyn Network> = Arc::new(SocketNetwork::new(&runtime));
        let folders = DataFolder::open(dir.path().join("data")).unwrap();
        let options = ServerOptions {
            keep_bytes: 64 << 20,
            slots: 2,
            ..ServerOptions::default()
        };
        let address = format!("unix:{}", dir.path().join("socket").display());
        let addresses: [Address; 1] = [address.parse().unwrap()];
        let server = Server::start(&runtime, &network, &addresses, Arc::new(folders), options);
        World {
            dir,
            server: Some(server.unwrap()),
        }
    }

    fn address(&self) -> Address {
        let socket = self.dir.path().join("socket");
        format!("unix:{}", socket.display()).parse().unwrap()
    }

    fn url(&self, folder: &str) -> String {
        let socket = self.dir.path().join("socket");
        format!("silt+unix://{}#{folder}", socket.display())
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if let Some(server) = self.server.take() {
            server.stop();
        }
    }
}

fn placement() -> Placement {
    Placement {
        client: ClientOptions {
            time_limit: Duration::from_secs(5),
            // Reads by descriptor do not cross the link.
            descriptors: false,
            ..ClientOptions::default()
        },
        ..Placement::default()
    }
}

/// Options for small memtables, with compactions by this policy.
fn options(policy: &str) -> Options {
    Options {
        memtable_bytes: 256 << 10,
        schedule: ScheduleOptions::policy(policy).unwrap(),
        ..Options::default()
    }
}

const ENTRIES: u32 = 20_000;

/// Writes much more than a memtable holds, and compacts it.
fn fill(store: &Store) {
    let keyspace = store.default_keyspace().unwrap();
    for n in 0..ENTRIES {
        let key = format!("key-{:08}", n.wrapping_mul(2_654_435_761) % 100_000);
        keyspace.put(&key, &n.to_be_bytes().repeat(16)).unwrap();
    }
    keyspace.compact_range(None, None).unwrap();
    store.wait_until_idle().unwrap();
}

trait Counts {
    /// The bytes of a purpose that were sent, and those that were received.
    fn link(&self, purpose: LinkPurpose) -> (u64, u64);
}

impl Counts for siltstone::Stats {
    fn link(&self, purpose: LinkPurpose) -> (u64, u64) {
        let of = |way: &str| self.counter(&format!("link_{purpose}_{way}_bytes"));
        (of("sent"), of("received"))
    }
}

/// Checks that the counts of the session are equal to those of the statistics, and that the sums
/// are the totals. Signs of life may be sent at any time.
fn agree(store: &DeviceStore) {
    let before = store.devices()[0].report();
    let stats = store.stats();
    let after = store.devices()[0].report();
    let purposes = before.purposes.iter().zip(&after.purposes);
    for (LinkBytes { purpose, .. }, after) in purposes.clone() {
        let (sent, received) = stats.link(*purpose);
        assert!(
            sent <= after.sent && received <= after.received,
            "{purpose}"
        );
    }
    for (before, _) in purposes {
        let (sent, received) = stats.link(before.purpose);
        assert!(before.sent <= sent && before.received <= received);
    }
    let sum: u64 = after.purposes.iter().map(|bytes| bytes.sent).sum();
    assert_eq!(sum, after.sent_bytes);
    let sum: u64 = after.purposes.iter().map(|bytes| bytes.received).sum();
    assert_eq!(sum, after.received_bytes);
}

#[test]
fn jobs_on_the_device_spare_the_link_their_tables() {
    let world = World::new();
    let user_bytes = u64::from(ENTRIES) * (12 + 64);
    let store = open(&world.url("db"), options("default"), &placement()).unwrap();
    fill(&store);
    agree(&store);
    let stats = store.stats();
    let link = |purpose| stats.link(purpose);
    let compacted = stats.counter("compaction_in_bytes");
    // What was written crosses the link once as log, and once in the tables of flushes.
    assert!(link(LinkPurpose::Log).0 >= user_bytes, "{stats:?}");
    assert!(link(LinkPurpose::Table).0 >= stats.counter("flush_out_bytes"));
    assert!(link(LinkPurpose::Jobs).0 > 0 && link(LinkPurpose::Verify).1 > 0);
    assert!(link(LinkPurpose::Manifest).0 > 0 && link(LinkPurpose::Names).0 > 0);
    assert!(link(LinkPurpose::Session).0 > 0);
    assert_eq!(link(LinkPurpose::Lent), (0, 0));
    if stats.counter("job_fallback_count") == 0 {
        assert!(link(LinkPurpose::Compaction).1 < compacted, "{stats:?}");
    }
    let device = stats.sides.iter().find(|side| side.side == "device");
    let device = device.expect("a device");
    if device.compaction_count > 0 {
        let moved = device.compaction_in_bytes + device.compaction_out_bytes;
        assert!(device.saved_link_bytes >= Some(moved), "{device:?}");
        assert!(
            device.link_bytes.is_some_and(|bytes| bytes > 0),
            "{device:?}"
        );
        assert!(
            device.compaction_cpu_us > 0 && device.host_cpu_us > 0,
            "{device:?}"
        );
    }
    let host = stats.sides.last().expect("the host");
    assert_eq!((host.link_bytes, host.saved_cpu_us), (None, None));
    let counts = stats.sides.iter().map(|side| side.compaction_count);
    assert_eq!(counts.sum::<u64>(), stats.counter("compaction_count"));
    // Bytes for reads are counted when somebody reads.
    let before = link(LinkPurpose::Read).1;
    assert!(store.default_keyspace().unwrap().iter().unwrap().count() > 1000);
    assert!(store.stats().link(LinkPurpose::Read).1 > before);
    agree(&store);
    store.close().unwrap();
}

#[test]
fn compactions_on_the_host_read_across_the_link() {
    let world = World::new();
    let store = open(&world.url("db"), options("host-only"), &placement()).unwrap();
    fill(&store);
    agree(&store);
    let stats = store.stats();
    let compacted = stats.counter("compaction_in_bytes");
    // The last bytes of tables, with their footers and indexes, are sent when a table is opened.
    let read = stats.link(LinkPurpose::Compaction).1 + stats.link(LinkPurpose::Read).1;
    let least = compacted * 9 / 10;
    assert!(compacted > 0 && read >= least, "{read} of {compacted}");
    let (written, _) = stats.link(LinkPurpose::Table);
    let made = stats.counter("flush_out_bytes") + stats.counter("compaction_out_bytes");
    assert!(written >= made, "{written} of {made}");
    assert_eq!(stats.link(LinkPurpose::Jobs).1, 0);
    store.close().unwrap();
}

#[test]
fn lent_tables_count_as_lent() {
    let world = World::new();
    let placed = Placement {
        devices: vec![world.address()],
        ..placement()
    };
    let dir = world.dir.path().join("local");
    let dir = dir.to_str().unwrap();
    let store = open(dir, options("default"), &placed).unwrap();
    let mut rounds = 0;
    // At times the host may be the faster side.
    while store.stats().link(LinkPurpose::Lent).0 == 0 {
        assert!(
            rounds < 20,
            "the device got no job: {:?}",
            store.stats().sides
        );
        fill(&store);
        rounds += 1;
    }
    agree(&store);
    let stats = store.stats();
    let (sent, received) = stats.link(LinkPurpose::Lent);
    assert!(sent > 0 && received > 0, "{stats:?}");
    assert!(stats.link(LinkPurpose::Jobs).0 > 0);
    for local in [LinkPurpose::Log, LinkPurpose::Table, LinkPurpose::Read] {
        assert_eq!(stats.link(local), (0, 0), "{local}");
    }
    store.close().unwrap();
}

/// What a device saves is the time that the host would have needed for the device's compactions,
/// estimated from the host's own compactions, minus what they cost the host. Large compactions on a
/// device that holds the tables do save something.
#[test]
fn a_device_says_what_it_saves_the_host() {
    let world = World::new();
    let options = Options {
        memtable_bytes: 4 << 20,
        ..options("default")
    };
    let store = open(&world.url("db"), options, &placement()).unwrap();
    let keyspace = store.default_keyspace().unwrap();
    let device = |stats: &siltstone::Stats| {
        let mut sides = stats.sides.iter();
        sides.find(|s| s.side == "device").unwrap().clone()
    };
    assert_eq!(device(&store.stats()).saved_cpu_us, None, "it did nothing");
    let both = |stats: &siltstone::Stats| stats.sides.iter().all(|s| s.compaction_count > 0);
    let mut rounds = 0;
    // The first compaction goes to the device and the next one to the host, because nothing has
    // been measured for them. After that, either side may be faster.
    while !both(&store.stats()) || rounds < 3 {
        assert!(rounds < 30, "{:?}", store.stats().sides);
        for n in 0..30_000u32 {
            let key = format!("key-{:08}", n.wrapping_mul(2_654_435_761) % 100_000);
            let value = (n + rounds).to_be_bytes().repeat(100);
            keyspace.put(&key, &value).unwrap();
        }
        keyspace.compact_range(None, None).unwrap();
        store.wait_until_idle().unwrap();
        rounds += 1;
    }
    let stats = store.stats();
    let (side, host) = (device(&stats), stats.sides.last().unwrap());
    assert_eq!(host.saved_cpu_us, None, "{host:?}");
    let saved = side.saved_cpu_us.expect("both were measured") as f64;
    let for_a_byte = host.compaction_cpu_us as f64 / host.compaction_in_bytes as f64;
    let needed = for_a_byte * side.compaction_in_bytes as f64;
    let expected = needed - side.host_cpu_us as f64;
    assert!(
        (saved - expected).abs() <= needed / 100.0 + 2.0,
        "{saved}, and not {expected}: {side:?}, {host:?}"
    );
    assert!(saved < needed, "{side:?}, {host:?}");
    drop(keyspace);
    store.close().unwrap();
}
