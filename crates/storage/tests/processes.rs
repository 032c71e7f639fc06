//! Leases between processes, and what a SIGBUS that is not ours does: this test's own binary is the other process.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

use siltstone_storage::{FileStorage, Storage, StorageErrorKind};

const ROLE: &str = "SILTSTONE_TEST_ROLE";
const DIR: &str = "SILTSTONE_TEST_DIR";

/// Runs `test` of this binary in a process of its own, in the given role.
fn child(test: &str, role: &str, dir: &std::path::Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([test, "--exact", "--nocapture", "--test-threads=1"]).env(ROLE, role).env(DIR, dir);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    command
}

fn wait_for(lines: &mut impl BufRead, wanted: &str) -> String {
    let mut line = String::new();
    loop {
        line.clear();
        assert!(lines.read_line(&mut line).unwrap() > 0, "the child ended without saying {wanted:?}");
        if let Some(at) = line.find(wanted) {
            return line[at..].trim().to_owned();
        }
    }
}

#[test]
fn leases_exclude_other_processes_and_end_with_them() {
    if std::env::var(ROLE).as_deref() == Ok("holder") {
        let storage = FileStorage::open_existing(std::env::var(DIR).unwrap()).unwrap();
        let lease = storage.lease("writer").unwrap();
        println!("\nholding epoch {}", lease.epoch().0);
        let mut line = String::new();
        let _ = std::io::stdin().read_line(&mut line); // until killed
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let storage = FileStorage::open_or_create(dir.path()).unwrap();
    drop(storage.lease("writer").unwrap());

    let test = "leases_exclude_other_processes_and_end_with_them";
    let mut holder = child(test, "holder", dir.path()).spawn().unwrap();
    let mut lines = BufReader::new(holder.stdout.take().unwrap());
    assert_eq!(wait_for(&mut lines, "holding"), "holding epoch 2");

    let error = storage.lease("writer").err().expect("held by the other process");
    assert_eq!(error.kind, StorageErrorKind::LeaseHeld);
    assert!(error.to_string().contains(&format!("pid {}", holder.id())), "{error}");
    let other = storage.lease("other").unwrap();

    holder.kill().unwrap(); // SIGKILL: nothing is cleaned up
    holder.wait().unwrap();
    let lease = storage.lease("writer").unwrap();
    assert_eq!(lease.epoch().0, 3);
    drop(other);

    // And the other way round: the child cannot take what we hold.
    let output = child(test, "holder", dir.path()).stderr(Stdio::piped()).output().unwrap();
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("LeaseHeld"));
}

#[test]
fn a_sigbus_elsewhere_still_kills() {
    if std::env::var(ROLE).as_deref() == Ok("foreign") {
        // Our handler is installed by a mapping of ours; then a signal comes that has nothing to do with it.
        let dir = std::env::var(DIR).unwrap();
        let storage = FileStorage::open_or_create(dir).unwrap();
        let lease = storage.lease("writer").unwrap();
        storage.create(lease.epoch(), "t").unwrap().append(&[b"x"]).unwrap();
        let map = storage.open("t").unwrap().map().unwrap().unwrap();
        assert_eq!(map.read_u8(0), Some(b'x'));
        println!("\nready");
        std::io::stdout().flush().unwrap();
        let mut line = String::new();
        let _ = std::io::stdin().read_line(&mut line);
        println!("\nsurvived");
        return;
    }
    use std::os::unix::process::ExitStatusExt;
    let dir = tempfile::tempdir().unwrap();
    let mut process = child("a_sigbus_elsewhere_still_kills", "foreign", dir.path()).spawn().unwrap();
    let mut lines = BufReader::new(process.stdout.take().unwrap());
    wait_for(&mut lines, "ready");
    let status = Command::new("kill").args(["-BUS", &process.id().to_string()]).status().unwrap();
    assert!(status.success());
    assert_eq!(process.wait().unwrap().signal(), Some(libc::SIGBUS), "the default action must have ended it");
}
