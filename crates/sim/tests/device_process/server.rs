//! The process of a device.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use siltstone_device::TlsFiles;

/// The longest time that a device may take to end.
const END_MAX: Duration = Duration::from_secs(60);

/// The process of a device. It is killed when this value is dropped.
pub struct ServerProcess {
    child: Child,
    pub address: String,
}

impl ServerProcess {
    /// Starts a device that holds the folders in `data`.
    pub fn start(data: &Path, address: &str, tls: Option<&TlsFiles>) -> ServerProcess {
        let mut command = ServerProcess::command(data, address);
        if let Some(tls) = tls {
            command.args([&tls.ca, &tls.certificate, &tls.key]);
        }
        ServerProcess::start_command(command, address)
    }

    /// Starts a device that runs the jobs of stores below the folder `share`. It keeps no tables of
    /// other stores.
    pub fn start_sharing(data: &Path, address: &str, share: &Path) -> ServerProcess {
        let mut command = ServerProcess::command(data, address);
        command.arg("--share").arg(share);
        ServerProcess::start_command(command, address)
    }

    fn command(data: &Path, address: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_device_server"));
        command.arg(data).arg(address);
        command
    }

    fn start_command(mut command: Command, address: &str) -> ServerProcess {
        let child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn();
        let mut child = child.expect("the device's process");
        let mut line = String::new();
        let out = child.stdout.take().expect("its output");
        let read = BufReader::new(out).read_line(&mut line);
        assert!(
            read.is_ok() && !line.is_empty(),
            "the device at {address} did not start"
        );
        ServerProcess {
            child,
            address: line.trim().to_string(),
        }
    }

    /// Kills the process with SIGKILL, and waits for its end.
    pub fn kill(&mut self) {
        self.child.kill().expect("it can be killed");
        self.child.wait().expect("it ends");
    }

    /// The process's number.
    pub fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// Stops all threads of the process, as by SIGSTOP. Its sockets stay open.
    pub fn stop(&self) {
        kill_process(self.pid(), Signal::STOP).expect("it can be stopped");
        // This returns when the last thread has stopped.
        let stopped = waitpid(Some(self.pid()), WaitOptions::UNTRACED);
        let stopped = stopped.expect("it is a child of this process");
        let is_stopped = stopped.is_some_and(|(_, status)| status.stopped());
        assert!(is_stopped, "the device has ended instead");
    }

    /// Lets a process that was stopped go on.
    pub fn go_on(&self) {
        kill_process(self.pid(), Signal::CONT).expect("it can go on");
    }

    /// Whether a job is running in the process. Also works while the process is stopped.
    pub fn has_job(&self) -> bool {
        let tasks = format!("/proc/{}/task", self.child.id());
        let tasks = std::fs::read_dir(tasks).expect("its threads").flatten();
        // The device names the thread of a job like this. A thread may end meanwhile.
        let name_of = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("comm"));
        let mut names = tasks.flat_map(name_of);
        names.any(|name| name.trim_end() == "job")
    }

    /// Ends the process in order, which ends its jobs first.
    pub fn end(&mut self) {
        drop(self.child.stdin.take());
        let begun = Instant::now();
        while self.child.try_wait().expect("its status").is_none() {
            assert!(begun.elapsed() < END_MAX, "the device does not end");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// The most memory that the process ever had, in bytes.
    pub fn most_memory(&self) -> u64 {
        let status = format!("/proc/{}/status", self.child.id());
        let status = std::fs::read_to_string(status).expect("its status");
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kib = line.and_then(|line| line.trim().strip_suffix(" kB"));
        kib.and_then(|kib| kib.trim().parse::<u64>().ok())
            .expect("a number of KiB")
            << 10
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
