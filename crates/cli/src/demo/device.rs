//! The device of `silt demo --device`: a process of its own, which shares the folder of the store
//! and runs compactions in it.
//!
//! [`DemoDevice`] is the process. [`Moves`] is a thread that notes which jobs run there, for the
//! report. The sections of the demo are the same with it and without, so what they compare is the
//! work of both processes.
//!
//! Invariant: the process and its folder are gone when the demo ends, also after an error. If the
//! demo is killed, the process ends, and the folder stays.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use siltstone::{JobStats, SideStats, Stats, Store};
use siltstone_device::{DeviceStore, Placement};
use siltstone_storage::link::Address;
use siltstone_table::exec::Executor;

use crate::commands::place;
use crate::commands::stats::jobs::name_of;
use crate::failure::Failure;
use crate::output::bytes;
use crate::report::record::Recorder;

/// How long the process may take until it listens.
const START_MAX: Duration = Duration::from_secs(30);

/// How long it may take to end in order.
const END_MAX: Duration = Duration::from_secs(10);

/// How often running jobs are looked at.
const LOOK: Duration = Duration::from_millis(25);

/// The number of jobs that the report lists.
const MOVES_MAX: usize = 20;

/// See the module.
pub struct DemoDevice {
    child: Child,
    /// Its socket and its notes.
    folder: PathBuf,
    /// What it prints.
    lines: Receiver<String>,
}

impl DemoDevice {
    /// Starts a device that shares this folder, and waits until it listens.
    pub fn start(share: &Path) -> Result<DemoDevice, Failure> {
        let folder = new_folder()?;
        let program =
            std::env::current_exe().map_err(|e| Failure::io("finding this program", &e))?;
        let spawned = Command::new(program)
            .args(["device", "--name", "device", "--slots", "2", "--parent"])
            .arg(std::process::id().to_string())
            .arg("--listen")
            .arg(format!("unix:{}", folder.join("socket").display()))
            .arg("--share")
            .arg(share)
            .arg("--state")
            .arg(folder.join("state"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn();
        let mut child = match spawned {
            Ok(child) => child,
            Err(e) => {
                let _ = std::fs::remove_dir_all(&folder);
                return Err(Failure::io("starting the device's process", &e));
            }
        };
        let (sender, lines) = channel();
        if let Some(out) = child.stdout.take() {
            std::thread::spawn(move || {
                let lines = BufReader::new(out).lines().map_while(Result::ok);
                // Its output is read to the end, so that it never waits for this process.
                lines.for_each(|line| drop(sender.send(line)));
            });
        }
        let device = DemoDevice {
            child,
            folder,
            lines,
        };
        match device.lines.recv_timeout(START_MAX) {
            Ok(_) => Ok(device),
            Err(_) => Err(Failure::Other(
                "the device's process does not start; what it said stands above".to_string(),
            )),
        }
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    fn address(&self) -> Result<Address, Failure> {
        let text = format!("unix:{}", self.folder.join("socket").display());
        let parsed: Result<Address, _> = text.parse();
        parsed.map_err(|error| Failure::Other(error.to_string()))
    }

    /// Opens the store with this device as a side, and with these executors.
    pub fn open(
        &self,
        path: &Path,
        options: siltstone::Options,
        executors: Vec<Arc<dyn Executor>>,
    ) -> Result<DeviceStore, Failure> {
        let place = path.to_str().ok_or_else(|| {
            Failure::Other(format!(
                "{}: with --device, the store's path must be UTF-8",
                path.display()
            ))
        })?;
        let placement = Placement {
            devices: vec![self.address()?],
            executors,
            ..place::placement()?
        };
        let options = place::near_data(options);
        Ok(siltstone_device::open(place, options, &placement)?)
    }
}

impl Drop for DemoDevice {
    fn drop(&mut self) {
        let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
        let begun = Instant::now();
        while begun.elapsed() < END_MAX && matches!(self.child.try_wait(), Ok(None)) {
            std::thread::sleep(Duration::from_millis(10));
        }
        // An error means that it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// A new folder with a short path, because paths of sockets are.
fn new_folder() -> Result<PathBuf, Failure> {
    let (base, pid) = (std::env::temp_dir(), std::process::id());
    for attempt in 0..1000 {
        let path = base.join(format!("silt-demo-device-{pid}-{attempt}"));
        match std::fs::create_dir(&path) {
            Ok(()) => return Ok(path),
            Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(e) => return Err(Failure::file(&path, &e)),
        }
    }
    Err(Failure::Other(format!(
        "{}: no free name for the device's folder",
        base.display()
    )))
}

/// The jobs that were seen on the device.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// The first of them: when, what, and why there.
    pub first: Vec<(f64, String, String)>,
    /// Their number.
    pub count: u64,
}

/// A thread that looks for jobs on the device until it is stopped.
pub struct Moves {
    stop: Arc<AtomicBool>,
    seen: Arc<Mutex<Seen>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Moves {
    /// Starts to look.
    pub fn start(store: Store, recorder: &Arc<Recorder>) -> Moves {
        let (stop, seen) = (Arc::new(AtomicBool::new(false)), Arc::default());
        let (stopped, noted) = (Arc::clone(&stop), Arc::clone(&seen));
        let recorder = Arc::clone(recorder);
        let thread = std::thread::spawn(move || {
            let begun = Instant::now();
            let mut now_there: BTreeSet<String> = BTreeSet::new();
            while !stopped.load(Ordering::Acquire) {
                let stats = store.stats();
                let jobs = stats.jobs.iter().filter(|job| is_there(job));
                let mut there = BTreeSet::new();
                for job in jobs {
                    let what = format!("{}, {}", name_of(job), bytes(job.input_bytes));
                    if !now_there.contains(&what) {
                        note(&noted, begun, &what, &job.placement, &recorder);
                    }
                    there.insert(what);
                }
                now_there = there;
                std::thread::park_timeout(LOOK);
            }
        });
        Moves {
            stop,
            seen,
            thread: Some(thread),
        }
    }

    /// Ends the thread, and returns what it saw.
    pub fn stop(mut self) -> Seen {
        self.end();
        self.seen
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    fn end(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

impl Drop for Moves {
    fn drop(&mut self) {
        self.end();
    }
}

fn is_there(job: &JobStats) -> bool {
    job.side == "device" && job.is_under_way()
}

fn note(seen: &Mutex<Seen>, begun: Instant, what: &str, why: &str, recorder: &Recorder) {
    let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
    seen.count += 1;
    if seen.first.len() < MOVES_MAX {
        let at_s = begun.elapsed().as_secs_f64();
        seen.first.push((at_s, what.to_string(), why.to_string()));
        recorder.mark("→", format!("{what}: begins on the device"));
    }
}

/// The device among the sides, if the store has one.
pub fn side(stats: &Stats) -> Option<&SideStats> {
    stats.sides.iter().find(|side| side.side == "device")
}

/// How many compactions each side has done, if there is a device.
pub fn shares(stats: &Stats) -> Option<String> {
    side(stats)?;
    let each = stats.sides.iter();
    let each: Vec<String> = each
        .map(|side| format!("{} {}", side.side, side.compaction_count))
        .collect();
    Some(format!("compactions done: {}", each.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sides_share_the_compactions() {
        let side = |side: &str, compaction_count| SideStats {
            side: side.to_string(),
            compaction_count,
            ..SideStats::default()
        };
        let mut stats = Stats {
            sides: vec![side("host", 2)],
            ..Stats::default()
        };
        assert_eq!(shares(&stats), None);
        stats.sides.insert(0, side("device", 7));
        let said = shares(&stats);
        assert_eq!(said.as_deref(), Some("compactions done: device 7, host 2"));
    }
}
