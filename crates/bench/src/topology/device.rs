//! The device of a run: `silt device` as a process of its own.
//!
//! Invariants: the device is killed when a [`DeviceProcess`] is dropped, and on Linux also when the
//! process that started it ends. A device that does not report within ten seconds that it listens
//! has failed.
//!
//! Threading: one thread starts and drops it. Other threads read the output of the device.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use super::TopologyError;
use super::namespaces::Namespaces;
use crate::settings::{Files, Topology};

/// How long a device may take to start until it listens.
const START_LIMIT: Duration = Duration::from_secs(10);
/// The port of a device in a namespace of its own.
const PORT: u16 = 4400;
/// The maximum number of bytes of a device's standard error that an error message contains.
const SAID_BYTES_MAX: u64 = 4096;
/// How many bytes of the tables that it was sent a device keeps. It is enough for all tables of a
/// run.
const KEEP_BYTES: u64 = 64 << 30;

/// See the module.
#[derive(Debug)]
pub struct DeviceProcess {
    child: Child,
    address: String,
}

/// The words that are put before the command of a process of a topology. They make it run in its
/// namespace and on its cores.
pub(super) fn words_before(
    program: &Path,
    space: Vec<OsString>,
    cores: &str,
    nice: u32,
) -> Vec<OsString> {
    let mut words = space;
    words.push(program.into());
    let pid = std::process::id().to_string();
    let nice = nice.to_string();
    let own = [
        "bench", "within", "--parent", &pid, "--cores", cores, "--nice", &nice, "--",
    ];
    words.extend(own.map(OsString::from));
    words
}

/// A command of these words.
pub(super) fn command(words: &[OsString]) -> Option<Command> {
    let (program, rest) = words.split_first()?;
    let mut command = Command::new(program);
    // A signal of the terminal reaches only the process that started this one. That process then
    // ends this one.
    command.args(rest).process_group(0);
    Some(command)
}

impl DeviceProcess {
    /// Starts a device for the stores below `folder`, and waits until it listens.
    ///
    /// # Errors
    /// If it cannot be started or does not listen. The message has what the device wrote.
    pub fn start(
        program: &Path,
        topology: &Topology,
        folder: &Path,
        own: &Path,
        namespaces: Option<&Namespaces>,
    ) -> Result<DeviceProcess, TopologyError> {
        let cores = topology.device_cores.to_string();
        let space = namespaces.map_or(Vec::new(), Namespaces::on_device);
        let mut words = words_before(program, space, &cores, topology.nice);
        words.extend([program.as_os_str().into(), "device".into(), "--json".into()]);
        words.push("--listen".into());
        match namespaces {
            None => {
                let mut socket = OsString::from("unix:");
                socket.push(own.join("socket"));
                words.push(socket);
            }
            Some(made) => {
                words.push(format!("{}:{PORT}", made.device_address()).into());
                // Nobody else is in the namespaces.
                words.push("--allow-plaintext-from-anyone".into());
            }
        }
        let add = |words: &mut Vec<OsString>, pairs: &[(&str, OsString)]| {
            for (option, value) in pairs {
                words.push(option.into());
                words.push(value.clone());
            }
        };
        let state = || ("--state", own.join("state").into_os_string());
        let pairs: Vec<(&str, OsString)> = match topology.files {
            Files::Held | Files::HeldLocalLog => vec![("--data", folder.into())],
            Files::Shared => vec![state(), ("--share", folder.into())],
            Files::Lent | Files::Local => {
                vec![state(), ("--keep", KEEP_BYTES.to_string().into())]
            }
        };
        add(&mut words, &pairs);
        let number = |number: u32| OsString::from(number.to_string());
        add(
            &mut words,
            &[
                ("--slots", number(topology.slots)),
                ("--parallelism", number(topology.parallelism)),
                ("--name", "bench".into()),
            ],
        );
        DeviceProcess::listening(&words)
    }

    /// Starts the command, and waits for its first line.
    fn listening(words: &[OsString]) -> Result<DeviceProcess, TopologyError> {
        let shown: Vec<_> = words.iter().map(|word| word.to_string_lossy()).collect();
        let failed = |what: String| TopologyError::Device {
            command: shown.join(" "),
            what,
        };
        let mut command = command(words).ok_or_else(|| failed("no command".into()))?;
        let spawned = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        let child = spawned.map_err(|error| failed(error.to_string()))?;
        let mut device = DeviceProcess {
            child,
            address: String::new(),
        };
        let (sender, first) = mpsc::channel();
        let Some(stdout) = device.child.stdout.take() else {
            return Err(failed("it has no output".into()));
        };
        // The thread reads until the device ends, so that the device never waits for a reader.
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                let _ = sender.send(line);
            }
        });
        match first.recv_timeout(START_LIMIT) {
            Ok(line) => match address_in(&line) {
                Some(address) => {
                    device.address = address;
                    device.forget_errors();
                    Ok(device)
                }
                None => Err(failed(format!("it said `{line}` instead of its address"))),
            },
            Err(RecvTimeoutError::Timeout) => Err(failed(format!(
                "it does not listen after {} s",
                START_LIMIT.as_secs()
            ))),
            Err(RecvTimeoutError::Disconnected) => {
                let said = device.said();
                Err(failed(format!("it ended: {}", said.trim())))
            }
        }
    }

    /// Reads standard error to its end, so that the device never waits for a reader.
    fn forget_errors(&mut self) {
        if let Some(mut stderr) = self.child.stderr.take() {
            std::thread::spawn(move || std::io::copy(&mut stderr, &mut std::io::stderr()));
        }
    }

    /// What the device wrote on standard error. The device is killed first.
    fn said(&mut self) -> String {
        let mut said = Vec::new();
        let _ = self.child.kill();
        if let Some(stderr) = self.child.stderr.take() {
            let _ = stderr.take(SAID_BYTES_MAX).read_to_end(&mut said);
        }
        String::from_utf8_lossy(&said).into_owned()
    }

    /// The address at which it listens.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// The number of its process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Whether it has ended by itself.
    pub fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }
}

impl Drop for DeviceProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The address in the line with which a device says that it has started.
fn address_in(line: &str) -> Option<String> {
    let value: serde_json::Value = serde_json::from_str(line).ok()?;
    (value.get("event")? == "started").then_some(())?;
    Some(value.get("addresses")?.get(0)?.as_str()?.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(script: &str) -> Vec<OsString> {
        ["sh", "-c", script].map(OsString::from).to_vec()
    }

    #[test]
    fn a_device_is_killed_when_it_is_dropped() {
        let line = r#"{"event":"started","addresses":["unix:/x"]}"#;
        let device = DeviceProcess::listening(&words(&format!("echo '{line}'; exec sleep 600")));
        let mut device = device.unwrap();
        assert_eq!(device.address(), "unix:/x");
        assert!(!device.has_ended());
        let pid = device.pid();
        assert!(crate::topology::process::cpu_us_of(pid).is_some());
        drop(device);
        assert_eq!(crate::topology::process::cpu_us_of(pid), None);
    }

    #[test]
    fn a_device_that_does_not_start_is_reported_with_what_it_said() {
        let error = |script: &str| {
            let failed = DeviceProcess::listening(&words(script)).unwrap_err();
            failed.to_string()
        };
        let said = error("echo the disk is gone >&2; exit 3");
        assert!(said.contains("the disk is gone"), "{said}");
        let said = error("echo hello; exec sleep 600");
        assert!(said.contains("`hello`"), "{said}");
        let none = DeviceProcess::listening(&["/no/such/program".into()]).unwrap_err();
        assert!(none.to_string().contains("/no/such/program"), "{none}");
    }

    #[test]
    fn only_the_line_of_a_start_has_an_address() {
        let started = r#"{"event":"started","addresses":["10.0.0.1:4400"]}"#;
        assert_eq!(address_in(started).as_deref(), Some("10.0.0.1:4400"));
        for other in ["", "{}", r#"{"event":"ended"}"#, r#"{"event":"started"}"#] {
            assert_eq!(address_in(other), None, "{other}");
        }
    }
}
