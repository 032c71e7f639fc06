//! Starts one process, waits for it, and ends it if it takes too long or if the user wants it.
//!
//! Invariant: a process that was started has ended when [`watch`] returns. It is killed if this
//! program is killed, so that a comparison which is begun again does not find it at work.
//!
//! Threading: two threads read what the process prints, until it ends.

use std::io::{self, Read};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, getpid, getppid, kill_process_group, set_parent_process_death_signal,
};

use crate::Result;

/// How often the process is looked at.
const STEP: Duration = Duration::from_millis(20);
/// How long a process that was told to end may take.
const GRACE: Duration = Duration::from_secs(10);

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// By itself.
    Itself(ExitStatus),
    /// It took too long, and was ended.
    Late,
    /// The user wanted it.
    Stopped,
}

/// A process that has ended.
#[derive(Debug)]
pub struct Ended {
    pub end: End,
    /// What it printed.
    pub output: String,
    /// What it said on standard error.
    pub errors: String,
    pub took: Duration,
}

impl Ended {
    /// The last lines of what it said.
    pub fn last_errors(&self) -> String {
        const LINES: usize = 6;
        let lines: Vec<&str> = self
            .errors
            .lines()
            .filter(|l| !l.trim().is_empty())
            .collect();
        lines[lines.len().saturating_sub(LINES)..].join(" ")
    }

    /// How it ended, in words.
    pub fn how(&self) -> String {
        match self.end {
            End::Itself(status) => match (status.code(), status.signal()) {
                (Some(code), _) => format!("it ended with code {code}"),
                (None, Some(9)) => "it was killed, perhaps because the memory was full".into(),
                (None, signal) => format!("it was ended by signal {}", signal.unwrap_or(0)),
            },
            End::Late => format!("it had not ended after {:.0} s", self.took.as_secs_f64()),
            End::Stopped => "it was stopped".into(),
        }
    }
}

/// Runs a command to its end. When `stop` is set or the time is up, it is told to end, and killed
/// if it does not.
pub fn watch(command: &mut Command, deadline: Duration, stop: &AtomicBool) -> Result<Ended> {
    // In a group of its own, the terminal's ^C reaches this program alone.
    command
        .process_group(0)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let us = getpid();
    // SAFETY: between fork and exec this makes two system calls and allocates nothing.
    unsafe { command.pre_exec(move || die_with(us)) };
    let program = command.get_program().to_string_lossy().into_owned();
    let start = Instant::now();
    let child = command.spawn();
    let mut child = child.map_err(|error| format!("{program} cannot be started: {error}"))?;
    let output = reader(child.stdout.take());
    let errors = reader(child.stderr.take());
    let end = wait(&mut child, start + deadline, stop);
    let end = end.map_err(|error| format!("waiting for {program}: {error}"))?;
    Ok(Ended {
        end,
        output: output.join().unwrap_or_default(),
        errors: errors.join().unwrap_or_default(),
        took: start.elapsed(),
    })
}

/// Called in a new process: it is killed when its parent ends. If the parent has ended before this
/// took effect, no signal comes any more, and the process must not begin.
fn die_with(parent: Pid) -> io::Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    match getppid() == Some(parent) {
        true => Ok(()),
        false => Err(Errno::SRCH.into()),
    }
}

fn reader(from: Option<impl Read + Send + 'static>) -> JoinHandle<String> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut from) = from {
            // What was read before an error is still worth showing.
            let _ = from.read_to_end(&mut bytes);
        }
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

fn wait(child: &mut Child, until: Instant, stop: &AtomicBool) -> io::Result<End> {
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(End::Itself(status));
        }
        let end = match () {
            () if stop.load(Ordering::Acquire) => End::Stopped,
            () if Instant::now() >= until => End::Late,
            () => {
                std::thread::sleep(STEP);
                continue;
            }
        };
        stop_now(child)?;
        return Ok(end);
    }
}

/// Tells a process to end, and kills it if it does not.
fn stop_now(child: &mut Child) -> io::Result<()> {
    // It may have ended meanwhile.
    let _ = kill_process_group(Pid::from_child(child), Signal::TERM);
    let told = Instant::now();
    while told.elapsed() < GRACE {
        if child.try_wait()?.is_some() {
            return Ok(());
        }
        std::thread::sleep(STEP);
    }
    let _ = kill_process_group(Pid::from_child(child), Signal::KILL);
    child.wait().map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, deadline_ms: u64, stop: bool) -> Ended {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        let deadline = Duration::from_millis(deadline_ms);
        watch(&mut command, deadline, &AtomicBool::new(stop)).unwrap()
    }

    #[test]
    fn what_a_process_prints_and_says_is_kept_apart() {
        let ended = shell(
            "echo out; echo one >&2; echo two >&2; exit 3",
            60_000,
            false,
        );
        assert_eq!(
            (ended.output.as_str(), ended.last_errors().as_str()),
            ("out\n", "one two")
        );
        assert_eq!(ended.how(), "it ended with code 3");
    }

    #[test]
    fn a_process_that_hangs_is_ended() {
        let ended = shell("exec sleep 60", 100, false);
        assert_eq!(ended.end, End::Late);
        assert!(ended.took < Duration::from_secs(30));
    }

    #[test]
    fn a_process_is_stopped_when_the_user_wants_it() {
        assert_eq!(shell("exec sleep 60", 60_000, true).end, End::Stopped);
    }

    #[test]
    fn a_program_that_is_not_there_is_named() {
        let mut command = Command::new("/no/such/program");
        let error = watch(&mut command, GRACE, &AtomicBool::new(false)).unwrap_err();
        assert!(error.contains("/no/such/program"), "{error}");
    }

    #[test]
    fn a_process_whose_parent_has_ended_does_not_begin() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        let start = |parent: Pid| {
            let mut command = Command::new("touch");
            command.arg(&file);
            // SAFETY: between fork and exec this makes two system calls and allocates nothing.
            unsafe { command.pre_exec(move || die_with(parent)) };
            command.status()
        };
        // To the new process it looks as if this test had ended: its parent is another process.
        let error = start(Pid::INIT).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(Errno::SRCH.raw_os_error()));
        assert!(!file.exists());
        assert!(start(getpid()).unwrap().success());
        assert!(file.exists());
    }
}
