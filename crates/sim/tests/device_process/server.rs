//! The process of a device.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use siltstone_device::TlsFiles;

/// The process of a device. It is killed when this value is dropped.
pub struct ServerProcess {
    child: Child,
    pub address: String,
}

impl ServerProcess {
    /// Starts a device that holds the folders in `data`.
    pub fn start(data: &Path, address: &str, tls: Option<&TlsFiles>) -> ServerProcess {
        let mut command = Command::new(env!("CARGO_BIN_EXE_device_server"));
        command.arg(data).arg(address);
        if let Some(tls) = tls {
            command.args([&tls.ca, &tls.certificate, &tls.key]);
        }
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
