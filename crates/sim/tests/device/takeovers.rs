//! Hosts that want the lease of one folder. They are cut off or paused for a while and come back,
//! the device is killed and restarted, and a local program opens the folder meanwhile.
//!
//! As long as a host works, nobody else gets its lease. Once somebody else has the lease, no call
//! of the first host succeeds, not even a read. No request of that host changes anything, however
//! late it arrives, and its jobs have ended. Epochs rise, even if the folder's lock file loses its
//! epoch.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use siltstone_device::{ClientOptions, Device, DeviceExecutor, FolderWanted};
use siltstone_sim::coverage::Coverage;
use siltstone_sim::remote::{Machine, Tap, address, draw_losses};
use siltstone_sim::rng::Rng;
use siltstone_storage::fault::{Fault, Rule};
use siltstone_storage::link::{MemoryNetwork, Network};
use siltstone_storage::{Epoch, Instant, OpKind, Result, Runtime, Storage, StorageErrorKind};
use siltstone_table::exec::Executor;

use super::jobs::{Faults, Work, add_rule, context, faulty, work, write_input};
use super::{good_link, simulated};

const HOSTS: usize = 3;

/// A host does not count as dead after a shorter silence than this. (The device waits for ten
/// seconds.)
const SILENCE: Duration = Duration::from_secs(8);

/// How long after a host was cut off its lease may at the latest be given to another one.
const LATE: Duration = Duration::from_secs(60);

/// The true state, which the hosts do not know.
#[derive(Default)]
struct Truth {
    is_over: bool,
    /// The number of grants, including those to local programs.
    grants: u64,
    holder: Option<usize>,
    newest: u64,
    cut_since: [Option<Instant>; HOSTS],
    was_cut_until: [Option<Instant>; HOSTS],
    coverage: Coverage,
}

#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Truth>>);

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Truth> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that a host got the lease. Returns the number of the grant.
    fn granted(&self, host: usize, epoch: Epoch, now: Instant) -> u64 {
        let mut truth = self.lock();
        assert!(
            epoch.0 > truth.newest,
            "host {host} got epoch {}, and epoch {} was given before",
            epoch.0,
            truth.newest
        );
        truth.newest = epoch.0;
        if let Some(other) = truth.holder.filter(|other| *other != host) {
            let cut = truth.cut_since[other].map(|since| now.since(since));
            let is_cut = cut.is_some_and(|cut| cut >= SILENCE);
            let was_cut = truth.was_cut_until[other].map(|until| now.since(until));
            let was_cut = was_cut.is_some_and(|ago| ago <= LATE);
            assert!(
                is_cut || was_cut,
                "host {host} got the lease of host {other}, which is not silent"
            );
            truth.coverage.add("takeovers.taken_over");
        }
        truth.holder = Some(host);
        truth.grants += 1;
        truth.grants
    }

    /// Notes that somebody other than the hosts has, or had, the folder.
    fn lost(&self) {
        let mut truth = self.lock();
        truth.holder = None;
        truth.grants += 1;
    }

    fn reach(&self, name: &str) {
        self.lock().coverage.add(name);
    }
}

/// One host.
struct Host {
    runtime: Runtime,
    number: usize,
    shared: Shared,
    rng: Rng,
    objects: u64,
}

impl Host {
    /// Makes a call under the lease of this grant. If somebody else got the lease before the call
    /// began, the call must fail.
    fn call<T>(&self, grant: u64, what: &str, call: impl FnOnce() -> Result<T>) -> Result<T> {
        let is_over = self.shared.lock().grants != grant;
        let result = call();
        match &result {
            Ok(_) => assert!(
                !is_over,
                "host {}: {what} succeeded after somebody else got the lease",
                self.number
            ),
            Err(error) if error.kind == StorageErrorKind::Fenced => {
                self.shared.reach("takeovers.fenced");
                if what.starts_with("read") {
                    self.shared.reach("takeovers.fenced_read");
                }
            }
            Err(_) => {}
        }
        result
    }

    /// Makes one random call. Returns false if the host gives up.
    fn step(&mut self, storage: &Arc<dyn Storage>, epoch: Epoch, grant: u64) -> bool {
        let name = format!("host-{}-{}", self.number, self.objects);
        let result = match self.rng.below(8) {
            0 | 1 => {
                self.objects += 1;
                let created = self.call(grant, "create", || storage.create(epoch, &name));
                created.and_then(|file| {
                    // Appends do not wait for their answers, so they may succeed. The sync must
                    // not.
                    let count = 1 + self.rng.below(5);
                    for _ in 0..count {
                        file.append(&[name.as_bytes()])?;
                        self.runtime
                            .sleep(Duration::from_millis(self.rng.below(400)));
                    }
                    self.call(grant, "sync", || file.sync())
                })
            }
            2 => self.call(grant, "sync_dir", || storage.sync_dir(epoch)),
            3 => {
                let bytes = epoch.0.to_le_bytes();
                self.call(grant, "replace", || {
                    storage.replace(epoch, "CURRENT", &bytes)
                })
            }
            4 | 5 => {
                let read = || storage.read_small("CURRENT").map(drop);
                match self.call(grant, "read a small object", read) {
                    Err(error) if error.kind == StorageErrorKind::NotFound => Ok(()),
                    other => other,
                }
            }
            6 => self.call(grant, "read a list", || storage.list().map(drop)),
            _ => {
                self.runtime
                    .sleep(Duration::from_millis(self.rng.below(2000)));
                Ok(())
            }
        };
        match result {
            Ok(()) => true,
            // The host may be cut off, and continues when it is connected again.
            Err(error) => error.kind == StorageErrorKind::Unreachable,
        }
    }

    /// Begins a job that takes a long time.
    fn begin_job(&self, device: &Arc<Device>, epoch: Epoch, grant: u64, work: &Work) {
        let storage: Arc<dyn Storage> = device.storage();
        let mut job = work.job.clone();
        job.output.epoch = epoch.0;
        if write_input(&*storage, epoch, work).is_err() {
            return;
        }
        let Ok(context) = context(&self.runtime, &storage, epoch) else {
            return;
        };
        let (device, shared) = (Arc::clone(device), self.shared.clone());
        let number = self.number;
        let run = move || {
            let executor = DeviceExecutor::new("device", &device);
            let is_over = shared.lock().grants != grant;
            let ended = executor.run(&job, &context);
            assert!(
                ended.is_err() || !is_over,
                "a job of host {number} was done after somebody else got the lease"
            );
            shared.reach("takeovers.job");
        };
        drop(self.runtime.spawn("job", run));
    }

    fn live(mut self, tap: &Tap, work: &Work) {
        let is_over = |shared: &Shared| shared.lock().is_over;
        while !is_over(&self.shared) {
            let folder = FolderWanted::Named {
                name: "db".into(),
                create: true,
            };
            let network: Arc<dyn Network> = Arc::new(tap.clone());
            let options = ClientOptions {
                time_limit: Duration::from_secs(5),
                ..ClientOptions::default()
            };
            let runtime = &self.runtime;
            let device = Device::connect(runtime, network, address(), folder, options);
            let Ok(device) = device else {
                continue;
            };
            let storage: Arc<dyn Storage> = device.storage();
            let lease = match storage.lease("store") {
                Ok(lease) => lease,
                Err(error) => {
                    if error.kind == StorageErrorKind::LeaseHeld {
                        self.shared.reach("takeovers.refused");
                    }
                    device.close();
                    let pause = Duration::from_millis(300 + self.rng.below(2000));
                    self.runtime.sleep(pause);
                    continue;
                }
            };
            let epoch = lease.epoch();
            let grant = self.shared.granted(self.number, epoch, self.runtime.now());
            let _ = storage.delete(epoch, super::jobs::INPUT);
            if self.rng.chance(50) {
                self.begin_job(&device, epoch, grant, work);
            }
            for _ in 0..5 + self.rng.below(60) {
                if is_over(&self.shared) || !self.step(&storage, epoch, grant) {
                    break;
                }
            }
            {
                let mut truth = self.shared.lock();
                if truth.holder == Some(self.number) {
                    truth.holder = None;
                }
            }
            if self.rng.chance(50) {
                let _ = lease.release();
            }
            drop(lease);
            device.close();
        }
    }
}

/// Makes one kind of trouble.
fn trouble(
    runtime: &Runtime,
    machine: &mut Machine,
    taps: &[Tap],
    shared: &Shared,
    faults: &Faults,
    (rng, losses): (&mut Rng, &mut Rng),
) {
    let draw = rng.below(10);
    if draw < 6 {
        // A host that has the lease is cut off more often.
        let holder = shared.lock().holder;
        let host = holder
            .filter(|_| rng.chance(70))
            .unwrap_or(rng.index(HOSTS));
        let begun = runtime.now();
        shared.lock().cut_since[host] = Some(begun);
        let time = Duration::from_millis(500 + rng.below(30_000));
        if rng.chance(50) {
            taps[host].hold();
            runtime.sleep(time);
            taps[host].let_go();
        } else {
            taps[host].pause();
            runtime.sleep(time);
            taps[host].resume();
            shared.reach("takeovers.paused");
        }
        let now = runtime.now();
        let mut truth = shared.lock();
        truth.cut_since[host] = None;
        if now.since(begun) >= SILENCE {
            truth.was_cut_until[host] = Some(now);
        }
        return;
    }
    let is_forgotten = draw == 9;
    if is_forgotten {
        let report = machine.lose_power(draw_losses(losses));
        shared.lock().coverage.take_crash(&report);
    } else {
        machine.kill();
    }
    if draw == 8 {
        // A local program opens the folder.
        let folder = machine.folders().folder("db");
        if let Ok(lease) = folder.lease("store") {
            shared.lost();
            let file = folder.create(lease.epoch(), &format!("local-{}", rng.draw()));
            drop(file);
            shared.reach("takeovers.opened_locally");
        }
    } else if is_forgotten {
        shared.lost();
        machine.watch().forget_epochs();
        shared.reach("takeovers.epochs_forgotten");
    } else {
        shared.reach("takeovers.again");
    }
    runtime.sleep(Duration::from_millis(rng.below(2000)));
    faults
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .clear();
    machine.start_again();
}

pub fn trial(seed: u64) -> Coverage {
    simulated(seed, 8_000_000, move |runtime| {
        let mut rng = Rng::new(seed ^ 0x7A4E);
        // These random numbers are separate, so that everything else in a seed stays as it was.
        let mut losses = Rng::new(seed ^ 0x105E);
        let network = MemoryNetwork::new(&runtime);
        network.set_faults(good_link());
        let tap = |n: u64| Tap::new(&runtime, &network, seed ^ n, &[]);
        let faults = Faults::default();
        let mut machine = Machine::start(&runtime, &tap(99), faulty(&runtime, &faults));
        let shared = Shared::default();
        let taps: Vec<Tap> = (0..HOSTS as u64).map(tap).collect();
        let hosts: Vec<_> = (0..HOSTS)
            .map(|number| {
                let host = Host {
                    runtime: runtime.clone(),
                    number,
                    shared: shared.clone(),
                    rng: rng.fork(number as u64),
                    objects: 0,
                };
                let tap = taps[number].clone();
                let work = work(&runtime, 600);
                let live = move || host.live(&tap, &work);
                runtime.spawn("host", live).expect("a task")
            })
            .collect();
        for _ in 0..6 {
            // Jobs on the device are slow.
            let delay = Fault::Delay(Duration::from_secs(2));
            let slow = Rule::on(OpKind::Append, delay).ending(".tbl").for_good();
            add_rule(&faults, slow);
            runtime.sleep(Duration::from_millis(500 + rng.below(8000)));
            let rngs = (&mut rng, &mut losses);
            trouble(&runtime, &mut machine, &taps, &shared, &faults, rngs);
        }
        runtime.sleep(Duration::from_secs(15));
        shared.lock().is_over = true;
        for host in hosts {
            host.join().expect("the host's task");
        }
        assert_eq!(machine.watch().wrong(), Vec::<String>::new());
        let mut coverage = std::mem::take(&mut shared.lock().coverage);
        taps.iter().for_each(|tap| coverage.merge(&tap.coverage()));
        coverage
    })
}
