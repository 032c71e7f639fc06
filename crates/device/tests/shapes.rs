//! All executors make the same tables of a job (E2). Random jobs, with range deletes, snapshots,
//! cuts of both kinds and all sets of drop rules, are run by the host's cores, by a device in each
//! of its shapes, in two halves over the link, and divided between host and device. Bytes, records
//! and counts are compared.
//!
//! A case that fails is printed with its seed. `SILT_SEED=K` runs the case of seed K.

mod common;
#[path = "../../table/tests/common/mod.rs"]
mod jobs;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use common::folders::ChangedFolders;
use common::{address, are_all, seeds};
use jobs::cases::{Case, a_case, job_of};
use jobs::{epoch, files};
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use siltstone_device::{
    ClientOptions, DataFolder, Device, DeviceExecutor, FolderWanted, Folders, MemoryFolders,
    SeparatedExecutor, Server, ServerOptions,
};
use siltstone_storage::link::{MemoryNetwork, Network};
use siltstone_storage::{Epoch, FileStorage, MemoryStorage, Runtime, Storage};
use siltstone_table::Codec;
use siltstone_table::exec::{CpuExecutor, ExecContext, Executor, InputMap, Inputs, SplitExecutor};
use siltstone_table::job::outcome::Outcome;
use siltstone_table::job::verify::verify_outcome;
use siltstone_table::job::{DropRules, Job};

/// The number of cases.
const CASES: u64 = 100;

/// A device that holds folders in memory, shares a folder of this machine, and takes tables.
struct World {
    runtime: Runtime,
    network: Arc<dyn Network>,
    folders: Arc<MemoryFolders>,
    server: Option<Server>,
    /// A session without a folder.
    device: Arc<Device>,
    /// A folder below the one that the device shares.
    shared: PathBuf,
    _dir: tempfile::TempDir,
}

fn connect(runtime: &Runtime, network: &Arc<dyn Network>, folder: FolderWanted) -> Arc<Device> {
    let options = ClientOptions {
        time_limit: Duration::from_secs(20),
        ..ClientOptions::default()
    };
    Device::connect(runtime, Arc::clone(network), address(), folder, options).expect("a session")
}

impl World {
    fn new() -> World {
        let runtime = Runtime::threads();
        let network: Arc<dyn Network> = Arc::new(MemoryNetwork::new(&runtime));
        let dir = tempfile::tempdir().expect("a folder");
        let shared = dir.path().join("shared");
        std::fs::create_dir(&shared).expect("a folder");
        let shared = shared.canonicalize().expect("its path");
        let folders = Arc::new(MemoryFolders::new(&runtime));
        let local = DataFolder::open(dir.path().join("data")).expect("a folder");
        let options = ServerOptions {
            slots: 2,
            parallelism: 3,
            keep_bytes: 8 << 20,
            shared: vec![shared.clone()],
            ..ServerOptions::default()
        };
        let of: Arc<dyn Folders> = Arc::new(ChangedFolders::of(&folders).with_shared(Some(local)));
        let server = Server::start(&runtime, &network, &[address()], of, options);
        World {
            server: Some(server.expect("a server")),
            device: connect(&runtime, &network, FolderWanted::None),
            runtime,
            network,
            folders,
            shared: shared.join("store"),
            _dir: dir,
        }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.device.close();
        if let Some(server) = self.server.take() {
            server.stop();
        }
    }
}

/// A random job, and how it is run.
#[derive(Clone, Debug)]
struct Drawn {
    case: Case,
    codec: Codec,
    /// The number of subjobs that run at once, where several do.
    several: usize,
    /// How the survivors of separated transfer are cut.
    chunk_extents: usize,
    piece_bytes: usize,
}

impl Drawn {
    fn new(seed: u64) -> Drawn {
        let mut bytes = [0x5a; 32];
        bytes[..8].copy_from_slice(&seed.to_le_bytes());
        let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
        let mut runner = TestRunner::new_with_rng(Config::default(), rng);
        let all = (a_case(), 0u8..3, 2usize..4, 1usize..40, 1usize..300);
        let drawn = all.new_tree(&mut runner).expect("a case").current();
        let (case, codec, several, chunk_extents, piece_bytes) = drawn;
        Drawn {
            case,
            codec: Codec::from_u8(codec).expect("a codec"),
            several,
            chunk_extents,
            piece_bytes,
        }
    }

    /// Writes the inputs into a storage, and makes the job. A device gets no streams.
    fn job(&self, storage: &Arc<MemoryStorage>) -> Job {
        let (mut job, _) = job_of(&self.case, storage, |_| false);
        job.format.codec = self.codec;
        job.format.level = *self.codec.levels().start();
        job
    }
}

/// Prints a case that fails, and how to repeat it.
struct Shown<'a>(u64, &'a Drawn);

impl Drop for Shown<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let Shown(seed, drawn) = self;
            eprintln!(
                "FAILED: seed {seed}; repeat: SILT_SEED={seed} cargo test -p siltstone-device \
                 --test shapes\n{drawn:?}"
            );
        }
    }
}

/// A folder with the inputs of a job.
struct Place {
    runtime: Runtime,
    storage: Arc<dyn Storage>,
    inputs: Arc<InputMap>,
    epoch: Epoch,
}

impl Place {
    fn new(runtime: &Runtime, job: &Job, storage: Arc<dyn Storage>, epoch: Epoch) -> Place {
        let mut inputs = InputMap::new();
        for input in &job.inputs {
            let file = storage.open(&input.name).expect("an input");
            inputs.add_table(input.location, &input.name, file);
        }
        Place {
            runtime: runtime.clone(),
            storage,
            inputs: Arc::new(inputs),
            epoch,
        }
    }

    fn context(&self, max_parallel: usize) -> ExecContext {
        let inputs = Arc::clone(&self.inputs) as Arc<dyn Inputs>;
        let (runtime, storage) = (self.runtime.clone(), Arc::clone(&self.storage));
        ExecContext {
            max_parallel,
            ..ExecContext::new(runtime, inputs, storage, self.epoch)
        }
    }

    fn object_count(&self) -> usize {
        self.storage.list().expect("a list").len()
    }
}

/// What must be equal, besides the bytes of the tables.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Equal {
    /// Everything that an outcome says, except the processor time.
    All,
    /// The same without the bytes that were read: columns may be read twice, and blocks without
    /// survivors only once.
    ExceptReads,
}

/// What an outcome says about its tables and about what was dropped. Its names were verified, and
/// differ because each run is an attempt of its own.
fn made(outcome: &Outcome, equal: Equal) -> Outcome {
    let mut outcome = outcome.clone();
    outcome.output.attempt = 0;
    outcome.counters.cpu_ns = 0;
    if equal == Equal::ExceptReads {
        outcome.counters.bytes_read = 0;
    }
    let tables = outcome.tables.iter_mut();
    tables.for_each(|table| table.name.clear());
    outcome
}

/// A job, and what the host's cores make of it, one subjob after the other.
struct Trial<'a> {
    drawn: &'a Drawn,
    job: Job,
    expected: Outcome,
    files: Vec<Vec<u8>>,
    /// The number of the last attempt.
    attempt: Cell<u64>,
}

impl Trial<'_> {
    fn new<'a>(drawn: &'a Drawn, job: &Job, own: &Place) -> Trial<'a> {
        let expected = CpuExecutor::new().run(job, &own.context(1));
        let expected = expected.expect("a sound job");
        Trial {
            drawn,
            job: job.clone(),
            files: files(&*own.storage, &expected),
            expected,
            attempt: Cell::new(job.output.attempt),
        }
    }

    /// Runs an attempt of the job, and compares it with what was expected.
    fn check(
        &self,
        what: &str,
        place: &Place,
        executor: &dyn Executor,
        context: &ExecContext,
        equal: Equal,
    ) -> Outcome {
        self.attempt.set(self.attempt.get() + 1);
        let mut job = self.job.clone();
        job.output.attempt = self.attempt.get();
        let before = place.object_count();
        let outcome = executor.run(&job, context);
        let outcome = outcome.unwrap_or_else(|error| panic!("{what}: {error}"));
        if let Err(rejected) = verify_outcome(&job, &outcome) {
            panic!("{what}: {rejected}");
        }
        assert_eq!(made(&outcome, equal), made(&self.expected, equal), "{what}");
        self.check_files(what, &*place.storage, &outcome);
        let left = place.object_count() - before;
        assert_eq!(left, outcome.tables.len(), "{what}: objects that were made");
        let progress = &context.progress;
        let tables = progress.tables.load(Ordering::Relaxed) as usize;
        assert_eq!(
            tables,
            outcome.tables.len(),
            "{what}: tables in the progress"
        );
        let memory = progress.buffer_bytes.load(Ordering::Relaxed);
        assert_eq!(memory, 0, "{what}: memory that is still counted");
        outcome
    }

    fn check_files(&self, what: &str, storage: &dyn Storage, outcome: &Outcome) {
        let found = files(storage, outcome);
        assert_eq!(found.len(), self.files.len(), "{what}");
        for (n, (found, expected)) in found.iter().zip(&self.files).enumerate() {
            assert!(found == expected, "{what}: table {n} has other bytes");
        }
    }

    /// The host's cores: several subjobs at once, and columns first.
    fn host(&self, what: &str, place: &Place) {
        let several = self.drawn.several;
        for (max_parallel, columns_first, equal) in [
            (several, false, Equal::All),
            (1, true, Equal::ExceptReads),
            (several, true, Equal::ExceptReads),
        ] {
            let what = format!("{what}, {max_parallel} at once, columns first: {columns_first}");
            let context = ExecContext {
                columns_first,
                ..place.context(max_parallel)
            };
            self.check(&what, place, &CpuExecutor::new(), &context, equal);
        }
    }

    /// The device is sent the tables, and keeps them for the second attempt.
    fn lent(&self, world: &World, own: &Place) {
        let executor = DeviceExecutor::new("lent", &world.device);
        let inputs: u64 = self.job.inputs.iter().map(|input| input.len_bytes).sum();
        for (what, max_parallel) in [
            ("lent", 1),
            ("lent, and the tables are kept", self.drawn.several),
        ] {
            let context = own.context(max_parallel);
            self.check(what, own, &executor, &context, Equal::All);
            assert_eq!(executor.sent_table_bytes(), inputs, "{what}: sent bytes");
        }
        executor.close();
    }

    /// The device and the host see the same folder.
    fn shared(&self, world: &World, own: &Place) {
        std::fs::create_dir(&world.shared).expect("a folder");
        for input in &self.job.inputs {
            let bytes = own.storage.read_small(&input.name).expect("an input");
            std::fs::write(world.shared.join(&input.name), bytes).expect("room");
        }
        let storage = FileStorage::open_existing(&world.shared).expect("the folder");
        let place = Place::new(&world.runtime, &self.job, Arc::new(storage), epoch());
        let executor = DeviceExecutor::new("shared", &world.device);
        let before = world.device.report().sent_bytes;
        let context = place.context(self.drawn.several);
        self.check("shared", &place, &executor, &context, Equal::All);
        let sent = world.device.report().sent_bytes - before;
        assert!(
            sent < 16 << 10,
            "only the job crosses the link: {sent} bytes"
        );
        std::fs::remove_dir_all(&world.shared).expect("the folder");
    }

    /// The device has the folder. It runs the whole job, or a half of it, or the host runs the job
    /// over the link.
    fn held(&self, world: &World, name: &str) {
        let folder = Arc::new(world.folders.folder(name));
        assert_eq!(self.drawn.job(&folder), self.job);
        let wanted = FolderWanted::Named {
            name: name.into(),
            create: false,
        };
        let session = connect(&world.runtime, &world.network, wanted);
        let storage = session.storage();
        let lease = storage.lease("store").expect("a free lease");
        let place = Place::new(&world.runtime, &self.job, storage, lease.epoch());
        let several = self.drawn.several;
        let device: Arc<dyn Executor> = Arc::new(DeviceExecutor::new("device", &world.device));
        for max_parallel in [1, several] {
            let what = format!("held, {max_parallel} at once");
            let context = place.context(max_parallel);
            let outcome = self.check(&what, &place, &*device, &context, Equal::All);
            self.check_files(&what, &*folder, &outcome);
        }
        self.host("the host over the link", &place);
        let separated = SeparatedExecutor::new(&session)
            .always()
            .cut_into(self.drawn.chunk_extents, self.drawn.piece_bytes);
        for (count, max_parallel) in [(1, 1), (2, several)] {
            let what = format!("separated, {max_parallel} at once");
            let context = place.context(max_parallel);
            let outcome = self.check(&what, &place, &separated, &context, Equal::ExceptReads);
            self.check_files(&what, &*folder, &outcome);
            let entries = context.progress.entries.load(Ordering::Relaxed);
            let expected = self.expected.counters.entries_read;
            assert_eq!(entries, expected, "{what}: entries in the progress");
            assert_eq!(separated.stats().job_count, count, "{what}");
        }
        let host: Arc<dyn Executor> = Arc::new(CpuExecutor::new());
        for (what, first, second) in [
            ("the first half on the host", &host, &device),
            ("the first half on the device", &device, &host),
        ] {
            let (first, second) = (Arc::clone(first), Arc::clone(second));
            let split = SplitExecutor::new(&world.runtime, "split", first, second);
            // Each side gets one of two jobs that cannot be divided.
            for _ in 0..2 {
                self.check(what, &place, &split, &place.context(1), Equal::All);
            }
        }
        lease.release().expect("a release");
        session.close();
        let removed = world.folders.remove_scratch_folder(name);
        removed.expect("a folder in memory");
    }

    /// What the case shows. Each of these must occur in some case.
    fn facts(&self) -> [(&'static str, bool); 13] {
        let (job, counters) = (&self.job, &self.expected.counters);
        let tables = &self.expected.tables;
        [
            ("range deletes", counters.range_deletes_read > 0),
            ("kept fragments", tables.iter().any(|t| t.fragments > 0)),
            ("dropped fragments", counters.fragments_dropped > 0),
            ("covered entries", counters.covered > 0),
            ("shadowed entries", counters.shadowed > 0),
            ("dropped tombstones", counters.tombstones > 0),
            ("several runs", job.inputs.len() > 1),
            ("several tables", tables.len() > job.subjobs()),
            ("hard cuts", !job.hard_cuts.is_empty()),
            ("soft cuts", !job.soft_cuts.is_empty()),
            ("snapshots", !job.snapshots.is_empty()),
            ("fewer drop rules", job.rules != DropRules::ALL),
            ("compression", job.format.codec != Codec::None),
        ]
    }
}

#[test]
fn all_shapes_give_the_tables_of_the_host() {
    let world = World::new();
    let seeds = seeds(CASES);
    let are_all = are_all(&seeds, CASES);
    let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
    for seed in seeds {
        let drawn = Drawn::new(seed);
        let _shown = Shown(seed, &drawn);
        let own = Arc::new(MemoryStorage::new(&world.runtime));
        let job = drawn.job(&own);
        let own = Place::new(&world.runtime, &job, own, epoch());
        let trial = Trial::new(&drawn, &job, &own);
        trial.host("the host", &own);
        trial.lent(&world, &own);
        trial.shared(&world, &own);
        trial.held(&world, &format!("case-{seed}"));
        for (fact, is_seen) in trial.facts() {
            *seen.entry(fact).or_default() += usize::from(is_seen);
        }
    }
    println!("{seen:?}");
    if are_all {
        assert!(seen.values().all(|count| *count > 0), "{seen:?}");
    }
}
