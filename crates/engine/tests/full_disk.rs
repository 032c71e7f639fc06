//! A real, small file system fills up: `NoSpace`, reads go on, dropping works, and writing resumes by itself when there is room. Nothing
//! that was acknowledged is lost. In a mount namespace of its own; skipped, aloud, where that is not to be had.

#![cfg(target_os = "linux")]

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use siltstone::{ErrorKind, Options, Store};

const ROLE: &str = "SILT_FULL_DISK";

fn options() -> Options {
    Options {
        memtable_bytes: 256 << 10,
        table_bytes: 64 << 10,
        level1_bytes: 64 << 10,
        log_segment_bytes: 64 << 10,
        log_bytes_max: 1 << 20,
        ..Options::default()
    }
}

fn key(i: u32) -> [u8; 4] {
    i.to_be_bytes()
}

fn fill(dir: &Path) {
    let ballast = dir.join("ballast");
    std::fs::write(&ballast, vec![1u8; 2 << 20]).unwrap();
    let store = Store::open(dir.join("store"), options()).unwrap();
    let ks = store.default_keyspace().unwrap();
    let other = store.create_keyspace("other").unwrap();
    for i in 0..200 {
        other.put(&key(i), &[3; 900]).unwrap();
    }
    store.flush().unwrap();
    let mut told = 0;
    let error = loop {
        match ks.put(&key(told), &[7; 900]) {
            Ok(()) => told += 1,
            Err(error) => break error,
        }
        assert!(told < 100_000, "the disk never filled");
    };
    assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
    for i in 0..told {
        assert_eq!(ks.get(&key(i)).unwrap().unwrap(), [7; 900], "reads go on");
    }
    assert_eq!(ks.iter().unwrap().count(), told as usize);
    // Dropping is how room is made, on the full disk too.
    store.drop_keyspace("other").unwrap();
    std::fs::remove_file(&ballast).unwrap();
    // By itself: it is only asked again. (Bounded by tries, which a slow machine only makes longer.)
    let resumed = (0..600).any(|_| {
        siltstone_storage::Runtime::threads().sleep(Duration::from_millis(50));
        ks.put(&key(told), b"after").is_ok()
    });
    assert!(resumed, "writing did not resume: {}", store.stats().health);
    store.flush().unwrap();
    store.close().unwrap();
    let store = Store::open(dir.join("store"), options()).unwrap();
    let ks = store.default_keyspace().unwrap();
    for i in 0..told {
        assert_eq!(ks.get(&key(i)).unwrap().unwrap(), [7; 900]);
    }
    assert_eq!(ks.get(&key(told)).unwrap().unwrap(), b"after");
    assert!(store.keyspace("other").is_err());
    println!("full disk survived with {told} puts");
}

#[test]
fn full_disk() {
    if let Ok(dir) = std::env::var(ROLE) {
        fill(Path::new(&dir));
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let script = r#"mount -t tmpfs -o size=8m tmpfs "$1" || exit 77; exec "$2" full_disk --exact --nocapture"#;
    let output = Command::new("unshare")
        .args([
            "--user",
            "--map-root-user",
            "--mount",
            "sh",
            "-c",
            script,
            "sh",
        ])
        .arg(dir.path())
        .arg(std::env::current_exe().unwrap())
        .env(ROLE, dir.path())
        .output();
    match output {
        Ok(o) => {
            let (out, err) = (
                String::from_utf8_lossy(&o.stdout),
                String::from_utf8_lossy(&o.stderr),
            );
            if o.status.success() {
                assert!(out.contains("full disk survived"), "{out}");
                println!("{out}");
            } else if o.status.code() == Some(77) || !out.contains("running 1 test") {
                println!("skipped: a tmpfs in a user namespace is not to be had here: {err}");
            } else {
                panic!("{out}\n{err}");
            }
        }
        Err(e) => println!("skipped: `unshare` cannot be run: {e}"),
    }
}
