//! Prepares the processes of a topology: such a process ends when the one that started it ends,
//! runs only on its cores, and has its nice value.
//!
//! The command `silt bench within` sets this up for its own process, and then executes the command
//! that follows in the same process. So all threads of that command have these properties, and no
//! code of this program runs between `fork` and `exec`.
//!
//! Invariant: if the parent has already ended when the process asks for a signal at its end, the
//! process does not execute the command.
//!
//! Threading: called before there are other threads.

use std::convert::Infallible;
use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::process::{Pid, Signal};

use crate::settings::Cores;

/// Arguments of the call that becomes another command.
#[derive(Debug, clap::Args)]
pub struct WithinArgs {
    /// The number of the process that starts this one.
    #[arg(long, value_name = "PID")]
    pub parent: i32,
    /// The cores that the command may use.
    #[arg(long, value_name = "CORES", default_value = "any")]
    pub cores: Cores,
    /// The nice value of the command.
    #[arg(long, value_name = "NUMBER", default_value_t = 0)]
    pub nice: u32,
    /// The command.
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

/// Becomes the command.
///
/// # Errors
/// If the system refuses one of the properties, or the command cannot be started.
pub fn within(args: &WithinArgs) -> io::Result<Infallible> {
    end_with(args.parent)?;
    keep_to(&args.cores)?;
    if args.nice > 0 {
        let nice = i32::try_from(args.nice).unwrap_or(19);
        rustix::process::setpriority_process(None, nice)?;
    }
    let (program, words) = args
        .command
        .split_first()
        .ok_or(io::ErrorKind::InvalidInput)?;
    Err(Command::new(program).args(words).exec())
}

/// The process gets SIGKILL when the thread that started it ends.
#[cfg(target_os = "linux")]
fn end_with(parent: i32) -> io::Result<()> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    match rustix::process::getppid() == Pid::from_raw(parent) {
        true => Ok(()),
        false => Err(io::Error::other(format!("process {parent} has ended"))),
    }
}

#[cfg(not(target_os = "linux"))]
fn end_with(_parent: i32) -> io::Result<()> {
    Ok(())
}

/// Makes the calling thread, and all threads that it starts later, run on these cores only.
///
/// # Errors
/// If this process cannot use one of the cores.
#[cfg(target_os = "linux")]
pub fn keep_to(cores: &Cores) -> io::Result<()> {
    has_cores(cores)?;
    let Cores::Only(cores) = cores else {
        return Ok(());
    };
    let mut set = rustix::thread::CpuSet::new();
    for core in cores {
        set.set(*core as usize);
    }
    rustix::thread::sched_setaffinity(None, &set)?;
    Ok(())
}

/// Checks that this process can use all of these cores.
///
/// # Errors
/// If it cannot use one of them. The message names the first such core.
pub fn has_cores(cores: &Cores) -> io::Result<()> {
    #[cfg(target_os = "linux")]
    if let Cores::Only(cores) = cores {
        let allowed = rustix::thread::sched_getaffinity(None)?;
        let missing = cores.iter().find(|core| {
            let core = **core as usize;
            core >= rustix::thread::CpuSet::MAX_CPU || !allowed.is_set(core)
        });
        if let Some(core) = missing {
            return Err(io::Error::other(format!(
                "this process cannot use core {core}; give cores that the machine has"
            )));
        }
    }
    #[cfg(not(target_os = "linux"))]
    let _ = cores;
    Ok(())
}

/// On this system, threads cannot be kept on certain cores.
///
/// # Errors
/// If the call names cores.
#[cfg(not(target_os = "linux"))]
pub fn keep_to(cores: &Cores) -> io::Result<()> {
    match cores {
        Cores::Any => Ok(()),
        Cores::Only(_) => Err(io::Error::other("this system keeps no process to cores")),
    }
}

/// Gives the threads of this process whose names begin with `prefix` this nice value. Returns how
/// many there were.
///
/// # Errors
/// If the system refuses it.
#[cfg(target_os = "linux")]
pub fn nice_threads(prefix: &str, nice: u32) -> io::Result<usize> {
    let threads = crate::measure::process::threads().unwrap_or_default();
    let mut count = 0;
    for thread in threads
        .iter()
        .filter(|thread| thread.name.starts_with(prefix))
    {
        let nice = i32::try_from(nice).unwrap_or(19);
        rustix::process::setpriority_process(Pid::from_raw(thread.id), nice)?;
        count += 1;
    }
    Ok(count)
}

/// On this system, threads have no nice values of their own.
///
/// # Errors
/// Always.
#[cfg(not(target_os = "linux"))]
pub fn nice_threads(_prefix: &str, _nice: u32) -> io::Result<usize> {
    Err(io::Error::other(
        "threads have no nice value on this system",
    ))
}

/// The processor time of another process so far, in microseconds; `None` if it has ended or the
/// system does not say.
pub fn cpu_us_of(pid: u32) -> Option<u64> {
    #[cfg(target_os = "linux")]
    {
        let process = procfs::process::Process::new(i32::try_from(pid).ok()?).ok()?;
        // The clock of each task counts nanoseconds; those of the process have steps of 10 ms.
        let stat = process.stat().ok()?;
        let ticks = stat.utime + stat.stime;
        Some(ticks.saturating_mul(1_000_000) / procfs::ticks_per_second())
    }
    #[cfg(not(target_os = "linux"))]
    {
        let _ = pid;
        None
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn a_thread_keeps_to_its_core_and_a_core_that_is_missing_is_refused() {
        // The call changes the calling thread, so it is made in a thread that nothing else uses.
        std::thread::spawn(|| {
            keep_to(&Cores::Only(vec![0])).unwrap();
            let allowed = rustix::thread::sched_getaffinity(None).unwrap();
            assert_eq!(allowed.count(), 1);
            assert!(allowed.is_set(0));
            assert!(keep_to(&Cores::Only(vec![1000])).is_err());
            assert!(keep_to(&Cores::Only(vec![0, 1000])).is_err());
            keep_to(&Cores::Any).unwrap();
        })
        .join()
        .unwrap();
    }

    #[test]
    fn threads_get_a_nice_value_by_their_names() {
        let (begin, began) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::Builder::new()
            .name("nicebench-1".into())
            .spawn(move || {
                begin.send(rustix::thread::gettid()).unwrap();
                let _ = ended.recv();
            })
            .unwrap();
        let id = began.recv().unwrap();
        assert_eq!(nice_threads("nicebench-", 7).unwrap(), 1);
        assert_eq!(rustix::process::getpriority_process(Some(id)).unwrap(), 7);
        let own = rustix::process::getpriority_process(Some(rustix::thread::gettid()));
        assert_ne!(own.unwrap(), 7);
        drop(end);
        thread.join().unwrap();
    }

    #[test]
    fn another_process_has_a_processor_time_until_it_ends() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        assert!(cpu_us_of(child.id()).unwrap() < 10_000_000);
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(cpu_us_of(child.id()), None);
    }
}
