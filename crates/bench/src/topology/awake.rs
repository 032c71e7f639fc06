//! Keeps the cores of the machine from sleeping while hosts and devices are compared.
//!
//! A core of a virtual machine that has nothing to do stops, and to wake it takes the hypervisor 10
//! to 50 microseconds, which differ from minute to minute. A read over a link wakes two cores, so
//! this time would be half of it, and would hide what is compared. Loops that run only when nothing
//! else wants the core (the scheduling class `SCHED_IDLE`) keep it from stopping.
//!
//! Invariants: the loops end when an [`Awake`] is dropped, and on Linux also when the process that
//! started them ends. Their processor time is that of processes of their own, so it does not count
//! for the host or the device.
//!
//! Threading: one thread starts and drops it.

use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use super::device::{command, words_before};
use crate::measure::machine::usable_cores;

/// The program that puts a command into a scheduling class, and the command.
const LOOP: [&str; 6] = ["chrt", "--idle", "0", "sh", "-c", "while :; do :; done"];
/// A loop that has not ended after this time runs.
const START_LIMIT: Duration = Duration::from_millis(50);

/// See the module.
#[derive(Debug)]
pub struct Awake {
    loops: Vec<Child>,
}

impl Awake {
    /// What is said of every run beside it.
    pub const STAND_IN: &str = "Loops of the lowest priority (`SCHED_IDLE`) keep the cores from \
                                sleeping, because a virtual machine takes long to wake one.";

    /// Starts a loop on each core that this process may use. `None` if one of them does not run,
    /// for example because the system has no `chrt`. Then the cores sleep.
    pub fn start(program: &Path) -> Option<Awake> {
        let mut awake = Awake { loops: Vec::new() };
        for core in usable_cores() {
            let mut words = words_before(program, Vec::new(), &core.to_string(), 0);
            words.extend(LOOP.map(Into::into));
            let mut command = command(&words)?;
            let quiet = command.stdin(Stdio::null()).stdout(Stdio::null());
            awake.loops.push(quiet.stderr(Stdio::null()).spawn().ok()?);
        }
        let begun = Instant::now();
        while begun.elapsed() < START_LIMIT {
            let mut loops = awake.loops.iter_mut();
            if !loops.all(|child| matches!(child.try_wait(), Ok(None))) {
                return None;
            }
            std::thread::sleep(START_LIMIT / 10);
        }
        Some(awake)
    }
}

impl Drop for Awake {
    fn drop(&mut self) {
        for child in &mut self.loops {
            // It fails only if the loop has ended already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
