//! Runs the real `silt`.

#![allow(dead_code)] // Each test file uses a part of it.

use std::ffi::OsStr;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// The binary.
pub const SILT: &str = env!("CARGO_BIN_EXE_silt");

/// The result of a command.
#[derive(Debug)]
pub struct Ended {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

impl From<Output> for Ended {
    fn from(output: Output) -> Ended {
        Ended {
            code: output.status.code(),
            out: String::from_utf8_lossy(&output.stdout).into_owned(),
            err: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

impl Ended {
    /// Its output. The command must have succeeded without output on standard error.
    #[track_caller]
    pub fn fine(self) -> String {
        assert_eq!((self.code, &self.err[..]), (Some(0), ""), "{}", self.out);
        self.out
    }

    /// Its error. The command must have ended with this code, and with a reason in one line that is
    /// not from a panic.
    #[track_caller]
    pub fn failed(self, code: i32) -> String {
        assert_eq!(self.code, Some(code), "{}{}", self.out, self.err);
        assert!(!self.err.contains("panicked"), "{}", self.err);
        if code == 3 {
            assert!(
                self.err.starts_with("silt: ") && self.err.trim_end().lines().count() == 1,
                "{}",
                self.err
            );
        }
        self.err
    }
}

/// Runs `silt` with these arguments.
pub fn silt<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Ended {
    Command::new(SILT)
        .args(args)
        .stdin(Stdio::null())
        .output()
        .unwrap()
        .into()
}

/// Runs `silt` with an input.
pub fn silt_with<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>, input: &[u8]) -> Ended {
    let mut child = Command::new(SILT)
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // A command that refuses its input may close it early.
    let _ = child.stdin.take().unwrap().write_all(input);
    child.wait_with_output().unwrap().into()
}

/// `silt <command> <store> <args>`.
pub fn on(command: &str, store: &Path, args: &[&str]) -> Ended {
    let mut all = vec![OsStr::new(command), store.as_os_str()];
    all.extend(args.iter().map(OsStr::new));
    silt(all)
}

/// Numbered lines: `key 000000`, `key 000001`, ...
pub fn numbered(count: u64) -> Vec<u8> {
    (0..count)
        .flat_map(|n| format!("key {n:06}\n").into_bytes())
        .collect()
}

/// A store of numbered lines, in tables.
pub fn numbered_store(store: &Path, count: u64) {
    let args = [OsStr::new("load"), store.as_os_str()];
    silt_with(args, &numbered(count)).fine();
}

/// A store with its log in `fast` and its tables in `wide` beside it.
pub fn split_store(dir: &Path) -> PathBuf {
    let store = dir.join("s");
    for (name, folder) in [("log_dir", "fast"), ("table_dir", "wide")] {
        let set = format!("{name}={}", dir.join(folder).display());
        on("options", &store, &["--set", &set]).fine();
    }
    numbered_store(&store, 2000);
    store
}

/// Creates a keyspace as tools do for themselves: `silt` refuses names that begin with `silt.`.
pub fn tools_keyspace(store: &Path, name: &str) {
    let opened = siltstone::Store::open(store, siltstone::Options::default()).unwrap();
    opened.create_keyspace(name).unwrap();
    opened.close().unwrap();
}

/// The files of a store whose names have this ending.
pub fn files(store: &Path, suffix: &str) -> Vec<std::path::PathBuf> {
    let mut found: Vec<_> = std::fs::read_dir(store)
        .unwrap()
        .map(|e| e.unwrap().path())
        .filter(|p| p.to_string_lossy().ends_with(suffix))
        .collect();
    found.sort();
    found
}

/// A random generator without output whose sequence can be repeated (splitmix64).
pub struct Draw(pub u64);

impl Draw {
    pub fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % n
    }
}
