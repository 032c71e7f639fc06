//! A run in a process of its own: the task that the process gets, and its answer.
//!
//! The task is a line of JSON on standard input, and the answer is a line of JSON on standard
//! output. Progress goes to standard error.
//!
//! Invariant: the child has ended before [`Standing::run`] returns. A child that is asked to end
//! gets ten seconds before it is killed.
//!
//! Threading: [`Standing::run`] is called by one thread. Another thread reads what the child
//! writes.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};

use super::device::{command, words_before};
use super::{Standing, TopologyError};
use crate::record::Record;
use crate::settings::Settings;

/// The interval at which the child is checked.
const LOOK: Duration = Duration::from_millis(20);
/// How long a child may take to end after it was asked to.
const END_LIMIT: Duration = Duration::from_secs(10);

/// Where an engine finds its device.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Placed {
    /// The address of the device.
    pub address: Option<String>,
    /// The number of the device's process.
    pub device_pid: Option<u32>,
    /// The interface of the shaped link.
    pub interface: Option<String>,
    /// The rate of the limiter in the client, if it stands in for a shaped link.
    pub limit_bytes_per_s: Option<u64>,
}

/// The task of a child.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Task {
    /// The name of the engine.
    pub engine: String,
    /// The folder below which the store lies.
    pub folder: PathBuf,
    /// The text that is shown beside the progress.
    pub label: String,
    /// The run.
    pub settings: Settings,
    /// Where the engine finds its device.
    pub placed: Placed,
}

/// The answer of a child.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Outcome {
    /// The results of the run.
    pub record: Option<Box<Record>>,
    /// Why it failed.
    pub error: Option<String>,
    /// Whether a signal ended it.
    pub is_interrupted: bool,
}

impl Standing {
    /// Carries out a run in a child, and returns its record. `stopped` says whether the user wants
    /// to end the run.
    ///
    /// # Errors
    /// See [`TopologyError`].
    pub fn run(
        &mut self,
        engine: &str,
        folder: &Path,
        settings: &Settings,
        label: &str,
        stopped: &dyn Fn() -> bool,
    ) -> Result<Record, TopologyError> {
        let task = Task {
            engine: engine.to_string(),
            folder: folder.to_path_buf(),
            label: label.to_string(),
            settings: settings.clone(),
            placed: self.placed(),
        };
        let failed = |what: String| TopologyError::Child(what);
        let mut line = serde_json::to_vec(&task).map_err(|error| failed(error.to_string()))?;
        line.push(b'\n');
        let space = self.namespaces.as_ref();
        let space = space.map_or(Vec::new(), super::Namespaces::on_host);
        let cores = self.topology.host_cores.to_string();
        let mut words = words_before(&self.program, space, &cores, 0);
        words.extend([
            self.program.as_os_str().into(),
            "bench".into(),
            "task".into(),
        ]);
        let mut command = command(&words).ok_or_else(|| failed("no command".into()))?;
        let spawned = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = Running(spawned.map_err(|error| failed(error.to_string()))?);
        let answer = child.0.stdout.take().map(|mut stdout| {
            std::thread::spawn(move || {
                let mut text = String::new();
                stdout.read_to_string(&mut text).map(|_| text)
            })
        });
        if let Some(mut stdin) = child.0.stdin.take() {
            // If the child has ended already, its output says why.
            let _ = stdin.write_all(&line);
        }
        self.wait(&mut child, stopped)?;
        let text = answer.and_then(|answer| answer.join().ok()?.ok());
        let text = text.unwrap_or_default();
        if text.trim().is_empty() {
            return Err(failed("it ended without an answer".into()));
        }
        let outcome: Outcome = serde_json::from_str(text.trim())
            .map_err(|error| failed(format!("it answered `{}`: {error}", head(&text))))?;
        match outcome {
            Outcome {
                is_interrupted: true,
                ..
            } => Err(TopologyError::Interrupted),
            Outcome {
                record: Some(mut record),
                ..
            } => {
                record.stand_ins = self.stand_ins();
                Ok(*record)
            }
            Outcome { error, .. } => Err(failed(error.unwrap_or_default())),
        }
    }

    /// Waits until the child has ended. If the device ends or the user wants to end the run before
    /// that, ends the child and returns an error.
    fn wait(
        &mut self,
        child: &mut Running,
        stopped: &dyn Fn() -> bool,
    ) -> Result<(), TopologyError> {
        loop {
            let ended = child.0.try_wait();
            if ended
                .map_err(|error| TopologyError::Child(error.to_string()))?
                .is_some()
            {
                return Ok(());
            }
            if stopped() {
                child.end();
                return Err(TopologyError::Interrupted);
            }
            if let Some(device) = &mut self.device
                && device.has_ended()
            {
                child.end();
                return Err(TopologyError::Device {
                    command: device.address().to_string(),
                    what: "it ended during the run".into(),
                });
            }
            std::thread::sleep(LOOK);
        }
    }
}

/// The beginning of a text.
fn head(text: &str) -> String {
    text.chars().take(200).collect()
}

/// A child process. It is killed when this value is dropped.
struct Running(Child);

impl Running {
    /// Asks the child to end, and kills it if it does not.
    fn end(&mut self) {
        if let Ok(pid) = i32::try_from(self.0.id())
            && let Some(pid) = Pid::from_raw(pid)
        {
            let _ = kill_process(pid, Signal::TERM);
        }
        let until = Instant::now() + END_LIMIT;
        while Instant::now() < until {
            if !matches!(self.0.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(LOOK);
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Reads a task, carries it out, and returns the answer as a line.
///
/// # Errors
/// If there is no task.
pub fn carry_out(
    input: &mut dyn Read,
    act: impl FnOnce(&Task) -> Outcome,
) -> Result<String, String> {
    let mut text = String::new();
    input
        .read_to_string(&mut text)
        .map_err(|error| error.to_string())?;
    let task: Task = serde_json::from_str(&text).map_err(|error| {
        format!("this call is one of `silt bench` to itself, and there is no task: {error}")
    })?;
    serde_json::to_string(&act(&task)).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task() -> Task {
        Task {
            engine: "siltstone".into(),
            folder: "/tmp/x".into(),
            label: "1/2 x".into(),
            settings: Settings::default(),
            placed: Placed {
                address: Some("unix:/tmp/s".into()),
                device_pid: Some(7),
                ..Placed::default()
            },
        }
    }

    #[test]
    fn a_task_and_its_answer_survive_their_lines() {
        let line = serde_json::to_string(&task()).unwrap();
        let answer = carry_out(&mut line.as_bytes(), |got| {
            assert_eq!(*got, task());
            Outcome {
                record: Some(Box::default()),
                ..Outcome::default()
            }
        });
        let back: Outcome = serde_json::from_str(&answer.unwrap()).unwrap();
        assert!(back.record.is_some() && back.error.is_none());
    }

    #[test]
    fn a_call_without_a_task_is_refused() {
        for text in ["", "{}", "null", "{\"engine\": 1}"] {
            let refused = carry_out(&mut text.as_bytes(), |_| Outcome::default());
            assert!(refused.unwrap_err().contains("there is no task"), "{text}");
        }
    }

    /// A topology whose program is a script in place of `silt`. The script ignores its arguments.
    fn standing(script: &str) -> (Standing, tempfile::TempDir) {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("program");
        std::fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        let standing = Standing::start(&program, &Settings::default(), folder.path()).unwrap();
        (standing, folder)
    }

    #[test]
    fn a_child_that_is_asked_to_end_is_ended_and_one_that_says_nothing_is_an_error() {
        let run = |script: &str, stop: bool| {
            let (mut standing, folder) = standing(script);
            let settings = Settings::default();
            standing.run("siltstone", folder.path(), &settings, "x", &|| stop)
        };
        let ended = run("exec sleep 600", true).unwrap_err();
        assert!(matches!(ended, TopologyError::Interrupted), "{ended}");
        let silent = run("cat > /dev/null; echo nonsense", false).unwrap_err();
        assert!(silent.to_string().contains("`nonsense"), "{silent}");
        let failed = run("cat > /dev/null; echo '{\"error\":\"disk full\"}'", false);
        assert!(failed.unwrap_err().to_string().contains("disk full"));
    }
}
