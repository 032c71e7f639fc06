//! The process of a host, which works with a store whose device shares its folder.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;

/// The process of a host. It is killed when this value is dropped.
pub struct HostProcess {
    child: Child,
    /// Reads the numbers of the writes that were acknowledged, and returns the last one.
    reader: Option<JoinHandle<Option<u64>>>,
}

impl HostProcess {
    /// Starts a host that opens the store in `folder` and makes the writes from number `first` on.
    pub fn start(folder: &Path, device: &str, seed: u64, first: u64) -> HostProcess {
        let child = Command::new(env!("CARGO_BIN_EXE_device_host"))
            .arg(folder)
            .args([device, &seed.to_string(), &first.to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn();
        let mut child = child.expect("the host's process");
        let out = BufReader::new(child.stdout.take().expect("its output"));
        let read = move || {
            let lines = out.lines().map_while(Result::ok);
            let numbers = lines.map(|line| line.parse::<u64>().expect("a number"));
            numbers.last()
        };
        HostProcess {
            child,
            reader: Some(std::thread::spawn(read)),
        }
    }

    /// Checks that the process has not ended by itself, which it only does after an error.
    pub fn check_alive(&mut self) {
        let ended = self.child.try_wait().expect("its status");
        assert_eq!(ended, None, "the host has ended");
    }

    /// Kills the process with SIGKILL, and waits for its end. Returns the number of the last write
    /// that it has acknowledged, if there is one.
    pub fn kill(mut self) -> Option<u64> {
        self.check_alive();
        self.child.kill().expect("it can be killed");
        self.child.wait().expect("it ends");
        let reader = self.reader.take().expect("it was started");
        reader.join().expect("numbers of writes")
    }
}

impl Drop for HostProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
