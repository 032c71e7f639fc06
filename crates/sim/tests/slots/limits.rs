//! What bounds jobs elsewhere: open files, memory, and the rate of the store's jobs.

use std::sync::atomic::{AtomicU64, Ordering};

use siltstone::Options;
use siltstone_table::exec::{ExecContext, ExecError, Executor, Side};
use siltstone_table::job::Job;
use siltstone_table::job::outcome::Outcome;

use super::*;

/// The jobs of a device have as many tables open as they have subjobs. An eighth of the files that
/// the process may open is for them.
#[test]
fn slots_are_bounded_by_open_files() {
    for (files, slots) in [(1000, 5), (70, 2), (10, 1)] {
        simulated(move |world| {
            world.storage.set_open_max(files, 10_000);
            let device = world.device(Plan {
                slots: 5,
                parallelism: 4,
                ..two_slots()
            });
            let store = world.open(&[&device]);
            assert_eq!(store.stats().sides[0].slot_count, slots);
            measure(&world, &store, &device);
            let made = due(&store, &["a", "b", "c", "d", "e", "f"]);
            world.rt.sleep(Duration::from_secs(60));
            store.test_hooks().pause_compaction(false);
            store.wait_until_idle().unwrap();
            assert_eq!(device.most_running() as u64, slots, "of {files} files");
            for (keyspace, model) in &made {
                check(keyspace, model);
            }
        });
    }
}

/// A device whose jobs hold memory of this process.
struct Holder {
    device: Arc<Device>,
    bytes: u64,
}

impl Executor for Holder {
    fn name(&self) -> &str {
        self.device.name()
    }
    fn side(&self) -> Side {
        self.device.side()
    }
    fn accepts(&self, job: &Job) -> Result<(), String> {
        self.device.accepts(job)
    }
    fn slots(&self) -> usize {
        self.device.slots()
    }
    fn run(&self, job: &Job, ctx: &ExecContext) -> Result<Outcome, ExecError> {
        let held = &ctx.progress.buffer_bytes;
        held.fetch_add(self.bytes, Ordering::Relaxed);
        let result = self.device.run(job, ctx);
        held.fetch_sub(self.bytes, Ordering::Relaxed);
        result
    }
}

/// The memory of jobs elsewhere is counted, also of those that were given up, as long as their
/// executor has not returned.
#[test]
fn memory_of_jobs_elsewhere_is_counted() {
    const BYTES: u64 = 5 << 20;
    simulated(|world| {
        let hang = Ending::Hang(Duration::from_secs(300));
        let device = world.device(Plan {
            endings: [hang].into(),
            ..two_slots()
        });
        let mut components = world.components(world.storage.clone(), &[]);
        components.executors.push(Arc::new(Holder {
            device: device.clone(),
            bytes: BYTES,
        }));
        let store = Store::open_with(components, options()).unwrap();
        let job_bytes = || store.stats().memory.job_bytes;
        let made = due(&store, &["a"]);
        world.rt.sleep(Duration::from_secs(60));
        assert_eq!(job_bytes(), 0);
        store.test_hooks().pause_compaction(false);
        world.rt.sleep(Duration::from_secs(1));
        assert_eq!((device.running(), job_bytes()), (1, BYTES));
        assert_eq!(store.stats().sides[0].running_job_count, 1);
        store.wait_until_idle().unwrap();
        let stats = store.stats();
        assert_eq!((device.running(), stats.sides[0].lost_slot_count), (1, 1));
        assert_eq!(stats.memory.job_bytes, BYTES, "the job that hangs has it");
        world.rt.sleep(Duration::from_secs(300));
        assert_eq!((device.running(), job_bytes()), (0, 0));
        for (keyspace, model) in &made {
            check(keyspace, model);
        }
    });
}

/// Flushes do not wait for the rate, and compactions pay for them. So the first wait of a
/// compaction may be longer than an attempt may be silent. It is not taken for one that hangs.
#[test]
fn a_wait_for_the_rate_is_no_silence() {
    simulated(|world| {
        let device = world.device(Plan {
            job_time: Duration::ZERO,
            ..two_slots()
        });
        let options = Options {
            background_bytes_per_s: 10_000,
            ..options()
        };
        let components = world.components(world.storage.clone(), &[&device]);
        let store = Store::open_with(components, options).unwrap();
        let made = due(&store, &["a"]);
        store.test_hooks().pause_compaction(false);
        let begin = world.rt.now();
        store.wait_until_idle().unwrap();
        let took = world.rt.now().since(begin);
        assert!(took > Duration::from_secs(120), "it waited: {took:?}");
        assert_eq!(device.ran().len(), 1, "{:?}", device.ran());
        let stats = store.stats();
        assert_eq!(stats.counter("job_fallback_count"), 0);
        assert_eq!(stats.sides[0].failed_count, 0);
        check(&made[0].0, &made[0].1);
    });
}

/// An executor that is silent for a while, whether it is cancelled or not, and then fails.
struct Late {
    runtime: Runtime,
    silence: Duration,
}

impl Executor for Late {
    fn name(&self) -> &str {
        "late"
    }
    fn side(&self) -> Side {
        Side::Device
    }
    fn run(&self, _: &Job, _: &ExecContext) -> Result<Outcome, ExecError> {
        self.runtime.sleep(self.silence);
        Err(ExecError::Cancelled)
    }
}

/// An executor returns at the moment at which its job is given up. Its slot is not lost for ever,
/// whoever is first.
#[test]
fn a_job_that_returns_while_it_is_given_up_keeps_no_slot() {
    let mut given_up = 0;
    for seed in 0..100 {
        let hung = Arc::new(AtomicU64::new(0));
        let count = hung.clone();
        simulated_with(seed, move |world| {
            let mut components = world.components(world.storage.clone(), &[]);
            components.executors.push(Arc::new(Late {
                runtime: world.rt.clone(),
                // A flush is cancelled after five seconds without a sign of life, and given up two
                // seconds later. Both are noticed by a look each second.
                silence: Duration::from_secs(7),
            }));
            let store = Store::open_with(components, options()).unwrap();
            store.test_hooks().pause_compaction(true);
            let keyspace = store.default_keyspace().unwrap();
            keyspace.put(b"k", b"v").unwrap();
            keyspace.flush().unwrap();
            world.rt.sleep(Duration::from_secs(1));
            let side = &store.stats().sides[0];
            assert_eq!(side.lost_slot_count, 0, "{side:?}");
            count.store(side.failed_count, Ordering::Relaxed);
        });
        given_up += hung.load(Ordering::Relaxed);
    }
    assert!(given_up > 0, "no job was given up");
}
