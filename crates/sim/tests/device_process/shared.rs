//! A store in a folder of this machine, and a real process of a device that shares the folder.
//! Local files check no epoch, so only the names of tables keep out a worker that comes too late.
//!
//! The device is stopped in the middle of a job and goes on when another host has the store; or it
//! is killed, also with a host that never runs what the device has failed with, and so cannot hide
//! what the device does wrong; or its host is killed. Every acknowledged write is there, nothing
//! that the store has is changed by a late worker, and what such a worker leaves is gone after the
//! next open.
//!
//! Invariant: no step of a trial is longer than [`HANG`].
//!
//! Threading: one task at a time uses a [`World`].

use std::collections::BTreeMap;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use siltstone::check::{CheckReport, CheckStorages, check};
use siltstone::{Keyspace, SideStats, Stats};
use siltstone_device::DeviceStore;
use siltstone_sim::coverage::Coverage;
use siltstone_sim::process::device_host::{KEYS, key, key_of, open_store, value, write_of};
use siltstone_sim::rng::Rng;
use siltstone_storage::FileStorage;

use super::host::HostProcess;
use super::server::ServerProcess;

/// How long a trial waits for anything that it looks for. It is never reached unless something
/// hangs.
const PATIENCE: Duration = Duration::from_secs(60);

/// How long a step of a trial may take, in case that a call of the store does not return. A step
/// may wait several times for as long as [`PATIENCE`], and those waits say what they wait for.
const HANG: Duration = Duration::from_secs(300);

/// The pause between two steps of a host while it waits for something that takes seconds.
const SLOWLY: Duration = Duration::from_millis(2);

/// If a device has had no job for this long, it has no late one either.
const QUIET: Duration = Duration::from_secs(1);

/// The number of writes of a host that works alone, enough for several compactions.
const WRITES: u64 = 1500;

/// How often the device of a trial is killed.
const KILLS: u32 = 4;

/// How often a trial tries to kill the device at a moment when its host needs the device.
const TRIES: u32 = 20;

/// What the store does when a late worker goes on.
#[derive(Clone, Copy)]
enum Late {
    /// It is closed, so nobody but the worker changes a file.
    Closed,
    /// A host writes to it.
    AtWork,
}

/// What the store has to contain.
#[derive(Default)]
struct Known {
    /// The last acknowledged write of each key.
    writes: BTreeMap<u64, u64>,
    /// The number of the next write.
    next: u64,
    /// A write that a host may have begun when it was killed.
    in_doubt: Option<u64>,
}

/// A folder with a store, its host in this process, and the device. The fields are dropped in this
/// order.
struct World {
    host: Option<DeviceStore>,
    server: ServerProcess,
    /// The process of the device while it is stopped. It would outlive this process.
    stopped: Arc<Mutex<Option<Pid>>>,
    seed: u64,
    /// Whether the host runs what the device has failed with.
    has_fallback: bool,
    rng: Rng,
    known: Known,
    coverage: Coverage,
    dir: tempfile::TempDir,
}

/// The device's side.
fn device(stats: &Stats) -> &SideStats {
    let side = &stats.sides[0];
    assert_eq!(side.side, "device", "{stats:?}");
    side
}

/// The side of the host's own cores.
fn cores(stats: &Stats) -> &SideStats {
    let side = stats.sides.last().expect("a side");
    assert_eq!(side.side, "host", "{stats:?}");
    side
}

/// The number of jobs that the device has failed with and that the host may do.
fn fallbacks(stats: &Stats) -> u64 {
    stats.counter("job_fallback_count")
}

/// Whether an attempt of a job on the device has not ended.
fn is_on_device(stats: &Stats) -> bool {
    let name = &device(stats).name;
    let mut jobs = stats.jobs.iter();
    jobs.any(|job| job.is_under_way() && job.executor == *name)
}

/// Checks that nothing of what happened to the device is a failure of the store.
fn check_health(stats: &Stats) {
    assert_eq!(stats.health, "good");
    assert_eq!(stats.jobs_failing, None);
    assert_eq!(stats.counter("job_failed_count"), 0, "{stats:?}");
    assert_eq!(device(stats).rejected_count, 0, "{stats:?}");
}

/// The lengths and the checksums of all files in a folder, by name.
fn files_of(folder: &Path) -> BTreeMap<String, (usize, u32)> {
    let entries = std::fs::read_dir(folder).expect("the folder");
    let names = entries.map(|entry| entry.expect("a name").file_name());
    let file = |name: std::ffi::OsString| {
        let bytes = std::fs::read(folder.join(&name)).ok()?;
        let name = name.to_string_lossy().into_owned();
        Some((name, (bytes.len(), crc32c::crc32c(&bytes))))
    };
    names.filter_map(file).collect()
}

/// Checks that all these files are still there and have not changed. Returns the names of the files
/// that have come.
fn files_beside(before: &BTreeMap<String, (usize, u32)>, folder: &Path) -> Vec<String> {
    let now = files_of(folder);
    for (name, file) in before {
        assert_eq!(now.get(name), Some(file), "a late worker changed {name}");
    }
    let mut names: Vec<String> = now.into_keys().collect();
    names.retain(|name| !before.contains_key(name));
    names
}

/// Checks a store that is closed.
fn checked(folder: &Path) -> CheckReport {
    let storage = FileStorage::open_existing(folder).expect("the folder");
    let report = check(&CheckStorages::on(&storage), &mut |_| {}).expect("a check");
    assert!(report.is_sound(), "{report:?}");
    assert!(report.foreign.is_empty(), "{:?}", report.foreign);
    report
}

impl World {
    /// An empty shared folder, and a device that shares it.
    fn new(seed: u64) -> World {
        let dir = tempfile::tempdir().expect("a folder");
        std::fs::create_dir(dir.path().join("shared")).expect("the shared folder");
        World {
            host: None,
            server: World::start(dir.path()),
            stopped: Arc::default(),
            seed,
            has_fallback: true,
            rng: Rng::new(seed ^ 0x5AED),
            known: Known::default(),
            coverage: Coverage::default(),
            dir,
        }
    }

    fn start(dir: &Path) -> ServerProcess {
        let (data, share) = (dir.join("data"), dir.join("shared"));
        ServerProcess::start_sharing(&data, &World::address(dir), &share)
    }

    fn address(dir: &Path) -> String {
        format!("unix:{}", dir.join("socket").display())
    }

    /// Starts the device again after its end.
    fn start_again(&mut self) {
        self.server = World::start(self.dir.path());
    }

    fn note_stopped(&self, device: Option<Pid>) {
        *self.stopped.lock().expect("a process") = device;
    }

    fn stop_device(&self) {
        self.server.stop();
        self.note_stopped(Some(self.server.pid()));
    }

    fn let_device_go_on(&self) {
        self.note_stopped(None);
        self.server.go_on();
    }

    fn kill_device(&mut self) {
        self.note_stopped(None);
        self.server.kill();
        self.coverage.add("shared.device_killed");
    }

    /// The store's folder.
    fn folder(&self) -> PathBuf {
        self.dir.path().join("shared").join("store")
    }

    /// Does a step of the trial, which panics if it takes longer than [`HANG`].
    fn within(
        mut self,
        what: &'static str,
        step: impl FnOnce(&mut World) + Send + 'static,
    ) -> World {
        let stopped = Arc::clone(&self.stopped);
        let (sender, done) = channel();
        let task = std::thread::spawn(move || {
            step(&mut self);
            let _ = sender.send(self);
        });
        match done.recv_timeout(HANG) {
            Ok(world) => world,
            Err(RecvTimeoutError::Timeout) => {
                if let Some(device) = stopped.lock().expect("a process").take() {
                    let _ = kill_process(device, Signal::KILL);
                }
                panic!("waited too long for: {what}");
            }
            Err(RecvTimeoutError::Disconnected) => {
                let ended = task.join();
                resume_unwind(ended.expect_err("a task without a result has panicked"));
            }
        }
    }

    /// Opens the store, with the device or without it.
    fn open(&mut self, with_device: bool) {
        let address = World::address(self.dir.path());
        let device = with_device.then_some(&address[..]);
        let opened = open_store(
            &self.folder(),
            device,
            self.has_fallback || device.is_none(),
        );
        self.host = Some(opened.expect("an open"));
    }

    fn close(&mut self) {
        let host = self.host.take().expect("it is open");
        host.close().expect("a close");
    }

    fn host(&self) -> &DeviceStore {
        self.host.as_ref().expect("it is open")
    }

    fn keyspace(&self) -> Keyspace {
        let keyspace = self.host().default_keyspace();
        keyspace.expect("the default keyspace")
    }

    fn stats(&self) -> Stats {
        self.host().stats()
    }

    /// Makes a write, and reads a key.
    fn step(&mut self) {
        let keyspace = self.keyspace();
        let write = self.known.next;
        let number = key_of(self.seed, write);
        self.known.next += 1;
        let put = keyspace.put(key(number), value(write));
        put.expect("a write");
        self.known.writes.insert(number, write);
        let number = self.rng.below(KEYS);
        self.check_key(&keyspace, number);
    }

    fn check_key(&self, keyspace: &Keyspace, number: u64) {
        let found = keyspace.get(key(number)).expect("a read");
        let wanted = self.known.writes.get(&number).copied();
        let write = found.as_deref().and_then(write_of);
        assert_eq!(write, wanted, "the write of key {number}");
        assert!(found == wanted.map(value), "the value of write {write:?}");
    }

    fn check_all(&self) {
        let keyspace = self.keyspace();
        for number in 0..KEYS {
            self.check_key(&keyspace, number);
        }
    }

    /// Works until something is so, with this pause between two steps.
    fn work_until(
        &mut self,
        what: &str,
        pause: Duration,
        mut is_so: impl FnMut(&mut World) -> bool,
    ) {
        let begun = Instant::now();
        while !is_so(self) {
            assert!(begun.elapsed() < PATIENCE, "waited too long for: {what}");
            self.step();
            std::thread::sleep(pause);
        }
    }

    /// Works until the device has done this many compactions since the store was opened.
    fn use_device(&mut self, count: u64) {
        let pause = Duration::ZERO;
        self.work_until("compactions of the device", pause, |world| {
            device(&world.stats()).compaction_count >= count
        });
    }

    /// Waits until all that is due is done.
    fn settle(&self) {
        let host = self.host();
        host.flush().expect("a flush");
        host.wait_until_idle().expect("the work that is due");
    }

    /// Works until the device has a job, and stops the device in the middle of it.
    fn stop_in_a_job(&mut self) {
        let begun = Instant::now();
        loop {
            let pause = Duration::ZERO;
            self.work_until("a job", pause, |world| world.server.has_job());
            self.stop_device();
            if self.server.has_job() && is_on_device(&self.stats()) {
                return;
            }
            self.let_device_go_on();
            assert!(begun.elapsed() < PATIENCE, "no job lasts long enough");
        }
    }

    /// Stops the device in a job, and works until the host has given this job up and has done a
    /// compaction with its own cores.
    fn give_a_job_up(&mut self) {
        let begun = Instant::now();
        let after = loop {
            let before = fallbacks(&self.stats());
            self.stop_in_a_job();
            let (first, mut after) = (self.known.next, Stats::default());
            self.work_until("the end of the job", SLOWLY, |world| {
                after = world.stats();
                fallbacks(&after) > before || !is_on_device(&after)
            });
            if fallbacks(&after) > before {
                let writes = self.known.next - first;
                self.coverage.add_count("shared.write_meanwhile", writes);
                break after;
            }
            // The device had sent its answer before it was stopped.
            self.let_device_go_on();
            assert!(begun.elapsed() < PATIENCE, "no job needed the device");
        };
        self.coverage.add("shared.given_up");
        let done = cores(&after).compaction_count;
        self.work_until("a compaction of the host", SLOWLY, |world| {
            cores(&world.stats()).compaction_count > done
        });
        check_health(&self.stats());
        self.check_all();
    }

    /// Kills the device at a drawn moment, and starts it again. The host works all the time, and
    /// uses the device again in the end.
    fn kill_device_at_work(&mut self) {
        if self.rng.chance(60) {
            let pause = Duration::ZERO;
            self.work_until("a job", pause, |world| world.server.has_job());
        }
        for _ in 0..self.rng.below(40) {
            self.step();
        }
        self.kill_device();
        for _ in 0..self.rng.below(400) {
            self.step();
        }
        self.start_again();
        // Outcomes of the process that was killed may still be installed.
        let done = device(&self.stats()).compaction_count;
        self.use_device(done + 3);
        self.coverage.add("shared.used_again");
    }

    /// The number of jobs that the device has failed with. Those count that the host may do, if it
    /// may do any.
    fn failures(&self, stats: &Stats) -> u64 {
        match self.has_fallback {
            true => fallbacks(stats),
            false => device(stats).failed_count,
        }
    }

    /// Kills the device in the middle of a job, and starts it again. The host loses the job.
    fn kill_device_in_a_job(&mut self) {
        for _ in 0..TRIES {
            let before = self.failures(&self.stats());
            self.stop_in_a_job();
            let done = device(&self.stats()).compaction_count;
            self.kill_device();
            self.start_again();
            let mut after = Stats::default();
            self.work_until("the end of the job", SLOWLY, |world| {
                after = world.stats();
                let is_lost = world.failures(&after) > before;
                is_lost || device(&after).compaction_count > done + 3
            });
            if self.failures(&after) > before {
                return;
            }
        }
        panic!("no job needed the device any more when it was killed");
    }

    /// Starts a host as a process of its own, and kills it while the device has a job of it. If
    /// `stops` is set, the device is stopped before that, so that the job cannot end.
    fn kill_host(&mut self, stops: bool) {
        let first = self.known.next;
        let address = World::address(self.dir.path());
        let mut host = HostProcess::start(&self.folder(), &address, self.seed, first);
        let begun = Instant::now();
        loop {
            host.check_alive();
            assert!(begun.elapsed() < PATIENCE, "waited too long for a job");
            if !self.server.has_job() {
                std::thread::sleep(Duration::from_micros(200));
                continue;
            }
            if !stops {
                let moment = Duration::from_micros(self.rng.below(10_000));
                std::thread::sleep(moment);
                break;
            }
            self.stop_device();
            if self.server.has_job() {
                break;
            }
            self.let_device_go_on();
        }
        let last = host.kill();
        self.coverage.add("shared.host_killed");
        let next = last.map_or(first, |last| last + 1);
        let known = &mut self.known;
        let writes = (first..next).map(|write| (key_of(self.seed, write), write));
        known.writes.extend(writes);
        (known.in_doubt, known.next) = (Some(next), next + 1);
    }

    /// Finds out whether the store has the write that its host may have begun when it was killed.
    fn look_for_write_in_doubt(&mut self) {
        let Some(write) = self.known.in_doubt.take() else {
            return;
        };
        let number = key_of(self.seed, write);
        let found = self.keyspace().get(key(number)).expect("a read");
        if found.as_deref().and_then(write_of) == Some(write) {
            self.known.writes.insert(number, write);
        }
    }

    /// Waits until the device runs no job.
    fn late_jobs_end(&mut self, mut meanwhile: impl FnMut(&mut World)) {
        let begun = Instant::now();
        let mut quiet = begun;
        while quiet.elapsed() < QUIET {
            meanwhile(self);
            std::thread::sleep(SLOWLY);
            if self.server.has_job() {
                quiet = Instant::now();
            }
            assert!(begun.elapsed() < PATIENCE, "a late job does not end");
        }
    }

    /// The device was stopped in a job of an earlier host, and a host without the device has the
    /// store. The host works, and then the device goes on.
    fn wake_device(self, late: Late) -> World {
        let mut world = self.within("the work of a host without a device", |world| {
            (0..WRITES).for_each(|_| world.step());
            world.settle();
            world.check_all();
        });
        assert!(world.server.has_job(), "a job ended while it was stopped");
        world.coverage.add("shared.late_job");
        let world = match late {
            Late::Closed => world.within("a late job at a closed store", |world| {
                world.wake_at_closed_store();
            }),
            Late::AtWork => world.within("a late job beside a host", |world| {
                world.wake_beside_host();
            }),
        };
        world.within("an open after a late job", |world| {
            world.start_again();
            world.open_once();
        })
    }

    fn wake_at_closed_store(&mut self) {
        self.close();
        let folder = self.folder();
        let orphans = checked(&folder).orphans;
        assert!(orphans.is_empty(), "{orphans:?}");
        let before = files_of(&folder);
        self.let_device_go_on();
        self.late_jobs_end(|_| {});
        files_beside(&before, &folder);
        self.server.end();
        let new = files_beside(&before, &folder);
        let orphans = checked(&folder).orphans.into_iter();
        let orphans: Vec<String> = orphans.map(|orphan| orphan.name).collect();
        assert_eq!(orphans, new, "all files of a late worker are orphans");
        self.coverage.add("shared.late_at_closed_store");
        let count = new.len() as u64;
        self.coverage.add_count("shared.late_table", count);
    }

    fn wake_beside_host(&mut self) {
        self.let_device_go_on();
        self.late_jobs_end(World::step);
        self.settle();
        self.check_all();
        self.server.end();
        self.close();
        self.coverage.add("shared.late_beside_host");
        let count = checked(&self.folder()).orphans.len() as u64;
        self.coverage.add_count("shared.late_table", count);
    }

    /// Opens the store once more, without the device. Everything has to be there, and nothing is
    /// left over after that.
    fn open_once(&mut self) {
        self.open(false);
        self.check_all();
        self.close();
        let orphans = checked(&self.folder()).orphans;
        assert!(orphans.is_empty(), "{orphans:?}");
        self.coverage.add("shared.no_orphans");
    }
}

/// The device is stopped in the middle of a job. The host gives the job up and does it itself.
/// Another host has the store when the device goes on.
pub fn stopped_trial(seed: u64) -> Coverage {
    let world = World::new(seed);
    let world = world.within("a compaction on the device", |world| {
        world.open(true);
        world.use_device(1);
    });
    let world = world.within("a job that the host gives up", World::give_a_job_up);
    let world = world.within("an open by another host", |world| {
        world.close();
        world.open(false);
        world.check_all();
    });
    let late = match seed % 2 {
        0 => Late::Closed,
        _ => Late::AtWork,
    };
    world.wake_device(late).coverage
}

/// The device is killed several times while a host works, the last time in the middle of a job.
pub fn killed_trial(seed: u64) -> Coverage {
    let mut world = World::new(seed);
    world = world.within("an open", |world| world.open(true));
    for _ in 1..KILLS {
        world = world.within("a kill of the device", World::kill_device_at_work);
    }
    world = world.within("a kill in a job", World::kill_device_in_a_job);
    world = world.within("the end of the work", |world| {
        world.settle();
        world.check_all();
        let stats = world.stats();
        check_health(&stats);
        let count = fallbacks(&stats);
        world.coverage.add_count("shared.fallback", count);
        world.close();
        checked(&world.folder());
        world.open_once();
    });
    world.coverage
}

/// The device is killed in the middle of jobs, and the host must not run them. Each of them waits
/// for the next process of the device.
pub fn without_fallback_trial(seed: u64) -> Coverage {
    let mut world = World::new(seed);
    world.has_fallback = false;
    world = world.within("an open", |world| world.open(true));
    for _ in 0..KILLS {
        world = world.within("a kill in a job", |world| {
            world.kill_device_in_a_job();
            world.coverage.add("shared.lost_without_fallback");
            let done = device(&world.stats()).compaction_count;
            world.use_device(done + 3);
        });
    }
    world = world.within("the end of the work", |world| {
        world.settle();
        world.check_all();
        let stats = world.stats();
        assert_eq!(stats.health, "good");
        assert_eq!(device(&stats).rejected_count, 0, "{stats:?}");
        assert_eq!(fallbacks(&stats), 0, "the host has done the device's work");
        world.close();
        checked(&world.folder());
        world.open_once();
    });
    world.coverage
}

/// The host is killed while the device has a job of it, and another host opens the store at once.
/// The device is stopped meanwhile, or it goes on and gets jobs of the new host as well.
pub fn host_killed_trial(seed: u64) -> Coverage {
    let mut world = World::new(seed);
    for late in [Some(Late::Closed), None, Some(Late::AtWork)] {
        world = world.within("a kill of a host", move |world| {
            world.kill_host(late.is_some());
        });
        world = world.within("an open after the kill", move |world| {
            world.open(late.is_none());
            world.look_for_write_in_doubt();
            world.check_all();
        });
        world = match late {
            Some(late) => world.wake_device(late),
            None => world.within("jobs of two hosts on one device", |world| {
                world.use_device(1);
                world.settle();
                world.check_all();
                check_health(&world.stats());
                // Only a late job could still run now.
                world.late_jobs_end(|_| {});
                world.coverage.add("shared.two_hosts");
                world.close();
                world.open_once();
            }),
        };
    }
    world.coverage
}
