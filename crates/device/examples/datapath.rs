//! Counts what the data path of a client costs: requests, bytes, calls of the link and processor
//! time, for a store on local files and for the same store on a device.
//!
//! ```text
//! cargo run -p siltstone-device --example datapath -- [local|unix|tcp|unix-link|unix-jobs ...]
//! ```
//! The device is a process of its own on this machine. Compactions run on the host's cores, so that
//! all their bytes go through the client, except with a name that ends in `-jobs`: there the device
//! runs them. With a name that ends in `-link`, no descriptors are passed. Times of a busy machine
//! say little; the counts and the processor time do.

use std::collections::BTreeMap;
use std::error::Error;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use siltstone::storage::{FileStorage, Storage};
use siltstone::{Components, Options, Store};
use siltstone_device::{
    ClientOptions, DataFolder, Device, DeviceExecutor, FolderWanted, Server, ServerOptions,
};
use siltstone_storage::link::{
    Address, Connection, LinkResult, Listener, Network, Received, SocketNetwork,
};
use siltstone_storage::{Instant, Mutex, Runtime};

type Outcome<T> = Result<T, Box<dyn Error>>;

/// The entries that are written, each with 16 bytes of key and 112 of value.
const ENTRIES: u64 = 200_000;

/// The lookups of keys with nothing in memory.
const GETS: u64 = 2_000;

/// What crossed the link.
#[derive(Clone, Debug, Default)]
struct Counts {
    /// Requests by the kind of their frame.
    requests: BTreeMap<u16, u64>,
    sends: u64,
    receives: u64,
    sent_bytes: u64,
    received_bytes: u64,
}

/// A network that counts.
struct Counting {
    inner: SocketNetwork,
    counts: Arc<Mutex<Counts>>,
}

struct CountingConnection {
    inner: Arc<dyn Connection>,
    counts: Arc<Mutex<Counts>>,
}

impl Network for Counting {
    fn connect(&self, address: &Address, deadline: Instant) -> LinkResult<Arc<dyn Connection>> {
        Ok(Arc::new(CountingConnection {
            inner: self.inner.connect(address, deadline)?,
            counts: Arc::clone(&self.counts),
        }))
    }

    fn listen(&self, address: &Address) -> LinkResult<Arc<dyn Listener>> {
        self.inner.listen(address)
    }
}

impl Connection for CountingConnection {
    fn peer(&self) -> String {
        self.inner.peer()
    }

    fn is_local(&self) -> bool {
        self.inner.is_local()
    }

    fn passes_descriptors(&self) -> bool {
        self.inner.passes_descriptors()
    }

    fn send_with_descriptor(
        &self,
        parts: &[&[u8]],
        descriptor: BorrowedFd<'_>,
        deadline: Instant,
    ) -> LinkResult<()> {
        self.inner.send_with_descriptor(parts, descriptor, deadline)
    }

    fn take_descriptor(&self) -> Option<OwnedFd> {
        self.inner.take_descriptor()
    }

    fn send(&self, parts: &[&[u8]], deadline: Instant) -> LinkResult<()> {
        {
            let mut counts = self.counts.lock();
            counts.sends += 1;
            counts.sent_bytes += parts.iter().map(|part| part.len() as u64).sum::<u64>();
            // A frame begins with its header. A hello has no part of this length.
            for head in parts.iter().filter(|part| part.len() == 28) {
                let kind = u16::from_le_bytes([head[16], head[17]]);
                *counts.requests.entry(kind).or_default() += 1;
            }
        }
        self.inner.send(parts, deadline)
    }

    fn receive(&self, buf: &mut [u8], deadline: Instant) -> LinkResult<Received> {
        let received = self.inner.receive(buf, deadline);
        let mut counts = self.counts.lock();
        counts.receives += 1;
        if let Ok(Received::Bytes(len)) = &received {
            counts.received_bytes += *len as u64;
        }
        received
    }

    fn close(&self) {
        self.inner.close();
    }
}

/// The processor time of a process in milliseconds, of the program and of the system.
fn cpu_ms(pid: u32) -> (u64, u64) {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or("").split(' ').collect();
    let ticks = |n: usize| {
        fields
            .get(n)
            .and_then(|f| f.parse::<u64>().ok())
            .unwrap_or(0)
    };
    (ticks(12) * 10, ticks(13) * 10)
}

/// The calls of the system that read and write, of a process.
fn calls(pid: u32) -> (u64, u64) {
    let io = std::fs::read_to_string(format!("/proc/{pid}/io")).unwrap_or_default();
    let of = |name: &str| {
        let line = io.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|n| n.trim().parse().ok()).unwrap_or(0)
    };
    (of("syscr:"), of("syscw:"))
}

fn kind_name(kind: u16) -> String {
    let name = match kind {
        1 => "alive",
        5 => "reopen",
        6 => "close",
        7 => "open",
        8 => "read",
        9 => "read_small",
        10 => "list",
        18 => "open_finished",
        32 => "create",
        33 => "recycle",
        34 => "sync_object",
        35 => "delete",
        36 => "rename",
        38 => "replace",
        40 => "sync_names",
        42 => "begin_job",
        64 => "append",
        65 => "reserve",
        66 => "truncate",
        67 => "sync",
        other => return format!("kind{other}"),
    };
    name.to_string()
}

/// One place of the store.
struct Place {
    name: String,
    dir: tempfile::TempDir,
    child: Option<Child>,
    address: Option<Address>,
    counts: Arc<Mutex<Counts>>,
    runtime: Runtime,
}

impl Place {
    fn new(name: &str) -> Outcome<Place> {
        let runtime = Runtime::threads();
        let dir = tempfile::tempdir()?;
        let address: Option<Address> =
            match name.trim_end_matches("-jobs").trim_end_matches("-link") {
                "local" => None,
                "unix" => Some(format!("unix:{}", dir.path().join("socket").display()).parse()?),
                "tcp" => Some("127.0.0.1:47613".parse()?),
                other => return Err(format!("{other}: expected local, unix or tcp").into()),
            };
        let mut child = None;
        if let Some(address) = &address {
            let program = std::env::current_exe()?;
            let mut command = Command::new(program);
            command
                .arg("serve")
                .arg(address.to_string())
                .arg(dir.path().join("data"));
            child = Some(command.stdin(Stdio::piped()).spawn()?);
        }
        Ok(Place {
            name: name.to_string(),
            dir,
            child,
            address,
            counts: Arc::new(runtime.mutex(Counts::default())),
            runtime,
        })
    }

    fn open(&self, runtime: &Runtime) -> Outcome<(Store, Option<Arc<Device>>)> {
        let options = Options {
            memtable_bytes: 2 << 20,
            block_cache_bytes: 16 << 20,
            ..Options::default()
        };
        let Some(address) = &self.address else {
            let storage: Arc<dyn Storage> =
                Arc::new(FileStorage::open_or_create(self.dir.path().join("data"))?);
            let components = Components::on(storage, runtime.clone());
            return Ok((Store::open_with(components, options)?, None));
        };
        let network: Arc<dyn Network> = Arc::new(Counting {
            inner: SocketNetwork::new(runtime),
            counts: Arc::clone(&self.counts),
        });
        let folder = FolderWanted::Named {
            name: "db".into(),
            create: true,
        };
        let client = ClientOptions {
            descriptors: !self.name.ends_with("-link"),
            ..ClientOptions::default()
        };
        let device = Device::connect(runtime, network, address.clone(), folder, client)?;
        let mut components = Components::on(device.storage(), runtime.clone());
        if self.name.ends_with("-jobs") {
            components
                .executors
                .push(Arc::new(DeviceExecutor::new("device", &device)));
        }
        Ok((Store::open_with(components, options)?, Some(device)))
    }

    fn pids(&self) -> Vec<u32> {
        let own = std::iter::once(std::process::id());
        own.chain(self.child.as_ref().map(Child::id)).collect()
    }

    /// Runs a part, and prints what it cost.
    fn measure<T>(&self, what: &str, bytes: u64, run: impl FnOnce() -> Outcome<T>) -> Outcome<T> {
        let before: Vec<_> = self
            .pids()
            .iter()
            .map(|pid| (cpu_ms(*pid), calls(*pid)))
            .collect();
        let counted = self.counts.lock().clone();
        let begun = self.runtime.now();
        let result = run()?;
        let passed = self.runtime.now().since(begun).as_millis();
        let now = self.counts.lock().clone();
        println!(
            "{:10} {what:12} {passed:6} ms, {bytes} bytes of entries",
            self.name
        );
        for ((pid, before), side) in self.pids().iter().zip(before).zip(["host", "device"]) {
            let ((user, system), (reads, writes)) = (cpu_ms(*pid), calls(*pid));
            println!(
                "    {side:6} user {:5} ms, system {:5} ms, read calls {:7}, write calls {:7}",
                user - before.0.0,
                system - before.0.1,
                reads - before.1.0,
                writes - before.1.1
            );
        }
        let sent = now.sent_bytes - counted.sent_bytes;
        let received = now.received_bytes - counted.received_bytes;
        if sent > 0 {
            let per = |x: u64| x as f64 / bytes as f64;
            println!(
                "    link   sent {sent} ({:.3} a byte), received {received} ({:.3} a byte), \
                 {} sends, {} receives",
                per(sent),
                per(received),
                now.sends - counted.sends,
                now.receives - counted.receives
            );
            let requests = now.requests.iter().filter_map(|(kind, count)| {
                let more = count - counted.requests.get(kind).unwrap_or(&0);
                (more > 0).then(|| format!("{} {more}", kind_name(*kind)))
            });
            println!("    requests: {}", requests.collect::<Vec<_>>().join(", "));
        }
        Ok(result)
    }

    fn run(&self) -> Outcome<()> {
        let runtime = self.runtime.clone();
        let (store, device) = self.open(&runtime)?;
        let key = |n: u64| {
            let mixed = n.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 20;
            format!("{mixed:016x}").into_bytes()
        };
        let all = ENTRIES * 128;
        self.measure("fill", all, || {
            let keyspace = store.default_keyspace()?;
            for n in 0..ENTRIES {
                keyspace.put(key(n), n.to_be_bytes().repeat(14))?;
            }
            store.flush()?;
            store.wait_until_idle()?;
            Ok(())
        })?;
        self.measure("fill-synced", 500 * 128, || {
            let keyspace = store.default_keyspace()?;
            for n in ENTRIES..ENTRIES + 500 {
                keyspace.put(key(n), n.to_be_bytes().repeat(14))?;
                store.sync_log()?;
            }
            Ok(())
        })?;
        store.close()?;
        device.inspect(|device| device.close());
        let (store, device) = self.measure("open", 1, || self.open(&runtime))?;
        let scanned = self.measure("scan", all, || {
            Ok(store.default_keyspace()?.iter()?.count() as u64)
        })?;
        assert_eq!(scanned, ENTRIES + 500);
        store.close()?;
        device.inspect(|device| device.close());
        let (store, device) = self.open(&runtime)?;
        self.measure("get", GETS * 128, || {
            let keyspace = store.default_keyspace()?;
            for n in 0..GETS {
                let n = n.wrapping_mul(7919) % ENTRIES;
                let value = keyspace.get(key(n))?;
                assert_eq!(value.as_deref(), Some(&n.to_be_bytes().repeat(14)[..]));
            }
            Ok(())
        })?;
        self.measure("compact", all, || {
            store.default_keyspace()?.compact_range(None, None)?;
            Ok(())
        })?;
        store.close()?;
        device.inspect(|device| device.close());
        Ok(())
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            drop(child.stdin.take());
            let _ = child.wait();
        }
    }
}

/// The process of the device. It ends when its input does.
fn serve(address: &str, data: &Path) -> Outcome<()> {
    let runtime = Runtime::threads();
    let network: Arc<dyn Network> = Arc::new(SocketNetwork::new(&runtime));
    let folders = Arc::new(DataFolder::open(data)?);
    let addresses = [address.parse()?];
    let options = ServerOptions::default();
    let server = Server::start(&runtime, &network, &addresses, folders, options)?;
    std::io::copy(&mut std::io::stdin(), &mut std::io::sink())?;
    server.stop();
    Ok(())
}

fn main() -> Outcome<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let [what, address, data] = &args[..]
        && what == "serve"
    {
        return serve(address, Path::new(data));
    }
    let all = ["local", "unix", "tcp"].map(str::to_string);
    for name in if args.is_empty() { &all[..] } else { &args[..] } {
        Place::new(name)?.run()?;
    }
    Ok(())
}
