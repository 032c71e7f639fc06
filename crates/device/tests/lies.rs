//! Devices that report what is not true to their hosts. A host that is lied to loses one attempt,
//! and gets its work done elsewhere.

mod common;
#[path = "../../table/tests/common/mod.rs"]
mod jobs;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use common::address;
use jobs::{Content, a_job, files, table_input};
use siltstone::{Components, Options, Store, Value};
use siltstone_device::wire::Answer;
use siltstone_device::wire::frame::{BULK_MAX, FrameHeader, HEADER_BYTES, Label, header_of};
use siltstone_device::{
    ClientOptions, Device, DeviceExecutor, FolderWanted, Folders, MemoryFolders, Server,
    ServerOptions,
};
use siltstone_storage::link::{
    Address, Connection, LinkFaults, LinkResult, Listener, MemoryNetwork, Network, Received,
};
use siltstone_storage::sim::{self, SimConfig};
use siltstone_storage::{Epoch, Instant, MemoryStorage, Runtime, Storage};
use siltstone_table::exec::{CpuExecutor, ExecContext, ExecError, Executor, InputMap, Throttle};
use siltstone_table::job::{Input, Job};

/// What a device lies about.
#[derive(Clone, Copy)]
enum Lie {
    /// It reports for each job that it has read and written this many bytes.
    Spent(u64),
    /// It reports parts that never end, for jobs that never end.
    Parts,
}

/// The network of a device that lies.
#[derive(Clone)]
struct Lying {
    inner: MemoryNetwork,
    lie: Lie,
    /// The number of lies.
    told: Arc<AtomicU64>,
}

impl Network for Lying {
    fn connect(&self, address: &Address, deadline: Instant) -> LinkResult<Arc<dyn Connection>> {
        self.inner.connect(address, deadline)
    }

    fn listen(&self, address: &Address) -> LinkResult<Arc<dyn Listener>> {
        let (inner, of) = (self.inner.listen(address)?, self.clone());
        Ok(Arc::new(LyingListener { inner, of }))
    }
}

struct LyingListener {
    inner: Arc<dyn Listener>,
    of: Lying,
}

impl Listener for LyingListener {
    fn address(&self) -> Address {
        self.inner.address()
    }

    fn accept(&self, deadline: Instant) -> LinkResult<Option<Arc<dyn Connection>>> {
        let accepted = self.inner.accept(deadline)?;
        Ok(accepted.map(|inner| {
            let of = self.of.clone();
            Arc::new(LyingConnection { inner, of }) as Arc<dyn Connection>
        }))
    }

    fn close(&self) {
        self.inner.close();
    }
}

struct LyingConnection {
    inner: Arc<dyn Connection>,
    of: Lying,
}

impl LyingConnection {
    /// The frame of an answer about a job, with a lie. `None` for an answer that stays as it is.
    fn changed(&self, parts: &[&[u8]]) -> Option<Vec<u8>> {
        let [header, fields, ..] = parts else {
            return None;
        };
        let header = FrameHeader::decode(header.first_chunk::<HEADER_BYTES>()?).ok()?;
        let answer = Answer::decode(header.kind, fields).ok()?;
        let (answer, bulk) = match (answer, self.of.lie) {
            (Answer::Job(mut status), Lie::Spent(bytes)) => {
                status.counts.spent_bytes = bytes;
                (Answer::Job(status), Vec::new())
            }
            (Answer::Job(mut status), Lie::Parts) => {
                // The host asks for parts that are empty here.
                status.parts = vec![Vec::new(); 9];
                status.end = None;
                (Answer::Job(status), Vec::new())
            }
            // The server has no such part.
            (Answer::Failed(error), Lie::Parts) if error.detail.contains("the attempt has") => {
                (Answer::Bytes, vec![7; BULK_MAX])
            }
            _ => return None,
        };
        self.of.told.fetch_add(1, Ordering::Relaxed);
        let fields = answer.encode();
        let label = Label {
            number: header.number,
            kind: answer.kind(),
            flags: 0,
        };
        let header = header_of(label, &fields, &[&bulk]).encode();
        Some([&header[..], &fields, &bulk].concat())
    }
}

impl Connection for LyingConnection {
    fn peer(&self) -> String {
        self.inner.peer()
    }

    fn is_local(&self) -> bool {
        self.inner.is_local()
    }

    fn send(&self, parts: &[&[u8]], deadline: Instant) -> LinkResult<()> {
        match self.changed(parts) {
            Some(bytes) => self.inner.send(&[&bytes], deadline),
            None => self.inner.send(parts, deadline),
        }
    }

    fn receive(&self, buf: &mut [u8], deadline: Instant) -> LinkResult<Received> {
        self.inner.receive(buf, deadline)
    }

    fn close(&self) {
        self.inner.close();
    }
}

/// A device that lies, and a session of a host with it.
struct Liar {
    network: MemoryNetwork,
    server: Server,
    device: Arc<Device>,
    told: Arc<AtomicU64>,
}

impl Liar {
    fn new(runtime: &Runtime, lie: Lie) -> Liar {
        let network = MemoryNetwork::new(runtime);
        let told = Arc::new(AtomicU64::new(0));
        let lying: Arc<dyn Network> = Arc::new(Lying {
            inner: network.clone(),
            lie,
            told: Arc::clone(&told),
        });
        let folders: Arc<dyn Folders> = Arc::new(MemoryFolders::new(runtime));
        let options = ServerOptions::default();
        let server = Server::start(runtime, &lying, &[address()], folders, options);
        let folder = FolderWanted::Named {
            name: "db".into(),
            create: true,
        };
        let link: Arc<dyn Network> = Arc::new(network.clone());
        let options = ClientOptions::default();
        let device = Device::connect(runtime, link, address(), folder, options);
        Liar {
            network,
            server: server.expect("a server"),
            device: device.expect("a session"),
            told,
        }
    }

    fn end(self) {
        assert!(self.told.load(Ordering::Relaxed) > 0, "nothing was told");
        self.device.close();
        self.server.stop();
    }
}

/// A rate limit of the host that counts the bytes that it is given, and makes the caller wait for
/// them.
struct Counted {
    runtime: Runtime,
    spent_bytes: AtomicU64,
}

const BYTES_PER_S: u64 = 1 << 20;

impl Throttle for Counted {
    fn spent(&self, bytes: u64, stop: &dyn Fn() -> bool) {
        self.spent_bytes.fetch_add(bytes, Ordering::Relaxed);
        let until = self.runtime.now() + Duration::from_secs(bytes / BYTES_PER_S);
        while self.runtime.now() < until && !stop() {
            self.runtime.sleep(Duration::from_secs(1));
        }
    }

    fn bytes_per_s(&self) -> u64 {
        BYTES_PER_S
    }
}

fn simulated(seed: u64, test: impl FnOnce(&Runtime) + Send + 'static) {
    let config = SimConfig {
        max_steps: 20_000_000,
        stack_bytes: 1 << 20,
        ..SimConfig::new(seed)
    };
    let outcome = sim::run(config, move |runtime| test(&runtime));
    if let Err(failure) = outcome.result {
        panic!("seed {seed}: {failure}");
    }
}

/// A job with one input of about 50 kB.
fn job_on(storage: &Arc<impl Storage + ?Sized>) -> (Job, Arc<InputMap>) {
    let content = Content {
        entries: (0..500u16)
            .map(|n| (n.to_be_bytes().to_vec(), 9 << 8 | 1, vec![n as u8; 100]))
            .collect(),
        ..Content::default()
    };
    let mut inputs = InputMap::new();
    let input: Input = table_input(&mut inputs, storage, "in-0.tbl", &content);
    let job = Job {
        inputs: vec![input],
        ..a_job(9)
    };
    (job, Arc::new(inputs))
}

/// The bytes that a device reports to have read and written count against the limit of the host, so
/// a large lie would hold up every job for years. The attempt fails instead, and the host does not
/// wait.
#[test]
fn bytes_that_nobody_can_have_spent_fail_the_attempt() {
    // At most 64 MiB and 64 times the input may be spent.
    let (most, one_more) = {
        let input_bytes = Arc::new(AtomicU64::new(0));
        let of = Arc::clone(&input_bytes);
        simulated(1, move |runtime| {
            let (job, _) = job_on(&Arc::new(MemoryStorage::new(runtime)));
            of.store(job.inputs[0].len_bytes, Ordering::Relaxed);
        });
        let most = (64 << 20) + 64 * input_bytes.load(Ordering::Relaxed);
        (most, most + 1)
    };
    for (spent_bytes, is_believed) in [(most, true), (one_more, false), (u64::MAX, false)] {
        simulated(2, move |runtime| {
            let liar = Liar::new(runtime, Lie::Spent(spent_bytes));
            let storage: Arc<dyn Storage> = liar.device.storage();
            (1..jobs::epoch().0).for_each(|_| drop(storage.lease("store").expect("free")));
            let lease = storage.lease("store").expect("free");
            assert_eq!(lease.epoch(), jobs::epoch());
            let (job, inputs) = job_on(&storage);
            let limit = Arc::new(Counted {
                runtime: runtime.clone(),
                spent_bytes: AtomicU64::new(0),
            });
            let context = ExecContext {
                throttle: Some(Arc::clone(&limit) as Arc<dyn Throttle>),
                ..ExecContext::new(
                    runtime.clone(),
                    Arc::clone(&inputs) as Arc<_>,
                    Arc::clone(&storage),
                    lease.epoch(),
                )
            };
            let begun = runtime.now();
            let executor = DeviceExecutor::new("device", &liar.device);
            let ran = executor.run(&job, &context);
            let took = runtime.now().since(begun);
            let counted = limit.spent_bytes.load(Ordering::Relaxed);
            if is_believed {
                ran.expect("a count that is possible");
                assert_eq!(counted, spent_bytes);
                assert!(took >= Duration::from_secs(60), "{took:?}");
            } else {
                let error = ran.map(drop).expect_err("an impossible count");
                let said = format!("read and written {spent_bytes} bytes for inputs of");
                assert!(error.to_string().contains(&said), "{error}");
                assert_eq!(counted, 0, "the lie counts against the limit");
                assert!(took < Duration::from_secs(5), "{took:?}");
                // The attempt has ended on the device too, and the host runs the job.
                runtime.sleep(Duration::from_secs(5));
                let mut again = job.clone();
                again.output.attempt = 2;
                let outcome = CpuExecutor.run(&again, &context).expect("a sound job");
                let own = Arc::new(MemoryStorage::new(runtime));
                let (job, inputs) = job_on(&own);
                let here = ExecContext::new(runtime.clone(), inputs, own.clone(), Epoch(3));
                let expected = CpuExecutor.run(&job, &here).expect("a sound job");
                assert_eq!(files(&*storage, &outcome), files(&*own, &expected));
                let names = storage.list().expect("a list");
                let tables = names.iter().filter(|object| object.name.ends_with(".tbl"));
                assert_eq!(tables.count(), 1 + outcome.tables.len(), "{names:?}");
            }
            lease.release().expect("a release");
            executor.close();
            liar.end();
        });
    }
}

/// A host whose job is cancelled does not go on reading parts that never end.
#[test]
fn parts_without_end_do_not_hold_up_a_cancel() {
    simulated(4, |runtime| {
        let liar = Liar::new(runtime, Lie::Parts);
        let storage: Arc<dyn Storage> = liar.device.storage();
        (1..jobs::epoch().0).for_each(|_| drop(storage.lease("store").expect("free")));
        let lease = storage.lease("store").expect("free");
        let (job, inputs) = job_on(&storage);
        let (outputs, epoch) = (Arc::clone(&storage), lease.epoch());
        let context = ExecContext::new(runtime.clone(), inputs, outputs, epoch);
        liar.network.set_faults(LinkFaults {
            delay: Duration::from_millis(20),
            ..LinkFaults::default()
        });
        let (cancel, rt) = (context.cancel.clone(), runtime.clone());
        let later = move || {
            rt.sleep(Duration::from_secs(2));
            cancel.cancel();
        };
        let later = runtime.spawn("cancel", later).expect("a task");
        let begun = runtime.now();
        let executor = DeviceExecutor::new("device", &liar.device);
        let ran = executor.run(&job, &context).map(drop);
        let took = runtime.now().since(begun);
        later.join().expect("no panic");
        assert!(matches!(ran, Err(ExecError::Cancelled)), "{ran:?}");
        assert!(took < Duration::from_secs(5), "{took:?}");
        liar.network.set_faults(LinkFaults::default());
        lease.release().expect("a release");
        executor.close();
        liar.end();
    });
}

/// A whole store with a device that lies: the host runs the compactions, and is not slowed down.
#[test]
fn a_store_with_such_a_device_goes_on() {
    simulated(3, |runtime| {
        let liar = Liar::new(runtime, Lie::Spent(u64::MAX));
        let mut components = Components::on(liar.device.storage(), runtime.clone());
        let executor = DeviceExecutor::new("device", &liar.device);
        components.executors.push(Arc::new(executor));
        let mut options = Options {
            memtable_bytes: 64 << 10,
            table_bytes: 64 << 10,
            level1_bytes: 64 << 10,
            l0_trigger_count: 2,
            log_segment_bytes: 64 << 10,
            background_bytes_per_s: 1 << 20,
            ..Options::default()
        };
        let near_data = Value::from("near-data");
        options.set("schedule", &near_data).expect("a schedule");
        let store = Store::open_with(components, options).expect("an open");
        let keyspace = store.default_keyspace().expect("the default keyspace");
        let begun = runtime.now();
        for n in 0..400u32 {
            let key = (n % 100).to_be_bytes();
            keyspace.put(&key, &[n as u8; 2000]).expect("a write");
        }
        store.flush().expect("a flush");
        store.wait_until_idle().expect("the work ends");
        let took = runtime.now().since(begun);
        assert!(took < Duration::from_secs(60), "{took:?}");
        for n in 300..400u32 {
            let value = keyspace.get(&(n % 100).to_be_bytes()).expect("a read");
            assert_eq!(value.as_deref(), Some(&[n as u8; 2000][..]));
        }
        let stats = store.stats();
        let side = |name: &str| stats.sides.iter().find(|side| side.side == name);
        let device = side("device").expect("its statistics");
        assert!(device.failed_count > 0, "{device:?}");
        let said = device.last_failure.as_deref().unwrap_or_default();
        assert!(said.contains("it says that it has read"), "{said}");
        let host = side("host").expect("its statistics");
        assert!(host.compaction_bytes_per_s.is_some(), "{host:?}");
        drop(keyspace);
        store.close().expect("a close");
        liar.end();
    });
}
