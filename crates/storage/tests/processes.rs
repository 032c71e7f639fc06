//! Leases between processes, and a SIGBUS outside our maps. The other process runs this test's own
//! binary.

use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsRawFd;
use std::process::{Command, Stdio};

use siltstone_storage::{FileStorage, Storage, StorageErrorKind};

const ROLE: &str = "SILTSTONE_TEST_ROLE";
const DIR: &str = "SILTSTONE_TEST_DIR";

/// A command that runs `test` of this binary in its own process, in the given role.
fn child(test: &str, role: &str, dir: &std::path::Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args([test, "--exact", "--nocapture", "--test-threads=1"])
        .env(ROLE, role)
        .env(DIR, dir);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    command
}

fn wait_for(lines: &mut impl BufRead, wanted: &str) -> String {
    let mut line = String::new();
    loop {
        line.clear();
        assert!(
            lines.read_line(&mut line).unwrap() > 0,
            "the child ended without saying {wanted:?}"
        );
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

    let error = storage
        .lease("writer")
        .err()
        .expect("held by the other process");
    assert_eq!(error.kind, StorageErrorKind::LeaseHeld);
    assert!(
        error.to_string().contains(&format!("pid {}", holder.id())),
        "{error}"
    );
    let other = storage.lease("other").unwrap();

    holder.kill().unwrap(); // SIGKILL: nothing is cleaned up
    holder.wait().unwrap();
    let lease = storage.lease("writer").unwrap();
    assert_eq!(lease.epoch().0, 3);
    drop(other);

    // Conversely, the child cannot take the lease that this process holds.
    let output = child(test, "holder", dir.path())
        .stderr(Stdio::piped())
        .output()
        .unwrap();
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("LeaseHeld"));
}

#[test]
fn readers_of_other_processes_are_named_and_end_with_them() {
    const TEST: &str = "readers_of_other_processes_are_named_and_end_with_them";
    if std::env::var(ROLE).as_deref() == Ok("reader") {
        let storage = FileStorage::open_existing(std::env::var(DIR).unwrap()).unwrap();
        let _share = storage.lease_shared("writer").unwrap();
        println!("\nreading");
        let mut line = String::new();
        let _ = std::io::stdin().read_line(&mut line); // until killed
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let storage = FileStorage::open_or_create(dir.path()).unwrap();
    drop(storage.lease("writer").unwrap());
    let mut readers: Vec<_> = (0..2)
        .map(|_| child(TEST, "reader", dir.path()).spawn().unwrap())
        .collect();
    for reader in &mut readers {
        let mut lines = BufReader::new(reader.stdout.take().unwrap());
        wait_for(&mut lines, "reading");
    }
    let refused = || {
        let error = storage.lease("writer").err().expect("read elsewhere");
        assert_eq!(error.kind, StorageErrorKind::LeaseHeld);
        error.to_string()
    };
    let text = refused();
    for reader in &readers {
        assert!(text.contains(&reader.id().to_string()), "{text}");
    }
    let mut last = readers.pop().unwrap();
    last.kill().unwrap();
    last.wait().unwrap();
    let text = refused();
    assert!(!text.contains(&last.id().to_string()), "{text}");
    readers[0].kill().unwrap();
    readers[0].wait().unwrap();
    drop(storage.lease("writer").unwrap());
}

#[test]
fn a_sigbus_outside_our_maps_still_kills() {
    if std::env::var(ROLE).as_deref() == Ok("foreign") {
        // A mapping of ours installs our handler. Then a mapping that is not ours loses a page.
        let dir = std::env::var(DIR).unwrap();
        let storage = FileStorage::open_or_create(&dir).unwrap();
        let lease = storage.lease("writer").unwrap();
        storage
            .create(lease.epoch(), "t")
            .unwrap()
            .append(&[&[b'x'; 8192]])
            .unwrap();
        let map = storage.open("t").unwrap().map().unwrap().unwrap();
        assert_eq!(map.read_u8(0), Some(b'x'));
        let file = std::fs::OpenOptions::new()
            .read(true)
            .write(true)
            .open(format!("{dir}/t"))
            .unwrap();
        // SAFETY: this is a new mapping at an address that the kernel chooses.
        let foreign = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                8192,
                libc::PROT_READ,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        assert_ne!(foreign, libc::MAP_FAILED);
        file.set_len(0).unwrap();
        assert_eq!(map.read_u8(5000), Some(0));
        assert!(map.failed());
        println!("\nours is handled");
        std::io::stdout().flush().unwrap();
        // SAFETY: it was mapped above. The fault is intended, and ends this process.
        let byte = unsafe { foreign.cast::<u8>().read_volatile() };
        println!("\nsurvived with {byte}");
        return;
    }
    use std::os::unix::process::ExitStatusExt;
    let dir = tempfile::tempdir().unwrap();
    let output = child(
        "a_sigbus_outside_our_maps_still_kills",
        "foreign",
        dir.path(),
    )
    .output()
    .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        said.contains("ours is handled") && !said.contains("survived"),
        "{said}"
    );
    assert_eq!(
        output.status.signal(),
        Some(libc::SIGBUS),
        "the default action must have ended it: {said}"
    );
}
