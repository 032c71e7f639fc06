//! A `silt device` that a test runs as a child process.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::common::SILT;

/// How long a test waits for anything. It is never reached unless something hangs.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Waits until the condition holds.
#[track_caller]
pub fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < PATIENCE, "waited too long for: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Waits until a child has ended. One that does not end is killed, and the test fails.
#[track_caller]
pub fn ended(child: &mut Child) -> ExitStatus {
    let start = Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        if start.elapsed() > PATIENCE {
            child.kill().unwrap();
            panic!("the process does not end");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A device at a Unix socket in a temporary folder, which holds the folders in `data`.
pub struct TestDevice {
    pub dir: tempfile::TempDir,
    args: Vec<String>,
    /// The process, and the lines that it prints.
    running: Option<(Child, Receiver<String>)>,
}

impl TestDevice {
    /// Starts a device with these arguments besides the address.
    pub fn start(args: &[&str]) -> TestDevice {
        let mut device = TestDevice {
            dir: tempfile::tempdir().unwrap(),
            args: args.iter().map(|arg| arg.to_string()).collect(),
            running: None,
        };
        device.run();
        device
    }

    /// A path in the temporary folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The text of such a path.
    pub fn text(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_string()
    }

    /// The address at which it listens.
    pub fn address(&self) -> String {
        format!("unix:{}", self.text("socket"))
    }

    /// The address of one of its folders.
    pub fn url(&self, folder: &str) -> String {
        format!("silt+unix://{}#{folder}", self.text("socket"))
    }

    /// Starts the process, and waits until it listens.
    pub fn run(&mut self) {
        let mut child = Command::new(SILT)
            .args(["device", "--listen", &self.address()])
            .args(&self.args)
            .args(["--data", &self.text("data")])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            // Nobody receives any more if the test has failed.
            out.lines().map_while(Result::ok).for_each(|line| {
                let _ = sender.send(line);
            });
        });
        // It prints its first line when it listens, and its output ends if it fails before.
        let first = lines.recv_timeout(PATIENCE);
        self.running = Some((child, lines));
        first.expect("the device does not start");
    }

    /// Sends the process a signal that does not end it.
    pub fn send(&self, signal: Signal) {
        let (child, _) = self.running.as_ref().expect("it runs");
        kill_process(Pid::from_child(child), signal).unwrap();
    }

    fn signal(&mut self, signal: Signal) -> (ExitStatus, String) {
        let (mut child, lines) = self.running.take().expect("it runs");
        kill_process(Pid::from_child(&child), signal).unwrap();
        let status = ended(&mut child);
        // The lines end with the process.
        let rest = lines.iter().map(|line| line + "\n").collect();
        (status, rest)
    }

    /// Kills the process.
    pub fn kill(&mut self) {
        self.signal(Signal::KILL);
    }

    /// Ends the process by a signal. Returns its status, and its output without the first line.
    pub fn end(&mut self, signal: Signal) -> (ExitStatus, String) {
        self.signal(signal)
    }
}

impl Drop for TestDevice {
    fn drop(&mut self) {
        if let Some((mut child, _)) = self.running.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
