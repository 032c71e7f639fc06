//! A real full disk: a small tmpfs in a mount namespace of this test's own child process.

use std::process::Command;

use siltstone_storage::{FileStorage, Storage, StorageErrorKind};

const ROLE: &str = "SILTSTONE_TEST_FULL_DISK";
const SIZE: u64 = 4 << 20;

fn fill(dir: &str) {
    let s = FileStorage::open_or_create(format!("{dir}/store")).unwrap();
    let lease = s.lease("writer").unwrap();
    let e = lease.epoch();
    let free = s.free_bytes().unwrap();
    assert!(free <= SIZE && free > SIZE / 2, "{free}");
    s.replace(e, "CURRENT", b"before").unwrap();

    let log = s.create(e, "log").unwrap();
    log.append(&[b"head"]).unwrap();
    log.sync().unwrap();
    let error = log.reserve(2 * SIZE).unwrap_err();
    assert_eq!(error.kind, StorageErrorKind::NoSpace, "{error}");
    assert_eq!((log.position(), log.len()), (4, 4));
    assert_eq!(
        s.read_small("log").unwrap(),
        b"head",
        "a failed reserve leaves the object as it was"
    );
    assert!(
        s.free_bytes().unwrap() > SIZE / 2,
        "and gives the space back"
    );
    log.reserve(64 << 10).unwrap();

    let table = s.create(e, "table").unwrap();
    let block = vec![7u8; 300_000];
    let error = loop {
        let before = table.position();
        if let Err(error) = table.append(&[&block[..100], &block]) {
            assert_eq!(table.position(), before);
            break error;
        }
    };
    assert_eq!(error.kind, StorageErrorKind::NoSpace, "{error}");
    assert_eq!(
        s.replace(e, "CURRENT", &vec![1; 1 << 20]).unwrap_err().kind,
        StorageErrorKind::NoSpace
    );
    assert_eq!(
        s.read_small("CURRENT").unwrap(),
        b"before",
        "the old pointer stands"
    );
    assert!(s.list().unwrap().iter().all(|o| !o.name.contains("tmp")));

    // Reserved space takes appends on the full disk.
    log.append(&[&vec![9u8; (64 << 10) - 4]]).unwrap();
    log.sync().unwrap();
    // So does a lease: its text has its place.
    drop(lease);
    let lease = s.lease("writer").unwrap();
    assert!(lease.epoch() > e);

    // Freed space is usable at once.
    drop(table);
    s.delete(lease.epoch(), "table").unwrap();
    s.create(lease.epoch(), "again")
        .unwrap()
        .append(&[&block])
        .unwrap();
    s.replace(lease.epoch(), "CURRENT", b"after").unwrap();
    assert_eq!(s.read_small("CURRENT").unwrap(), b"after");
    println!("full disk handled");
}

#[test]
fn full_disk() {
    if let Ok(dir) = std::env::var(ROLE) {
        fill(&dir);
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let script = r#"mount -t tmpfs -o size=4m tmpfs "$1" || exit 77; exec "$2" full_disk --exact --nocapture"#;
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
        Ok(o) if o.status.success() => {
            assert!(String::from_utf8_lossy(&o.stdout).contains("full disk handled"));
        }
        Ok(o) => {
            let (out, err) = (
                String::from_utf8_lossy(&o.stdout),
                String::from_utf8_lossy(&o.stderr),
            );
            // 77: no mount; otherwise `unshare` itself was refused before our binary ran at all.
            if o.status.code() == Some(77) || !out.contains("running 1 test") {
                println!("skipped: a tmpfs in a user namespace is not to be had here: {err}");
                return;
            }
            panic!("{out}\n{err}");
        }
        Err(e) => println!("skipped: `unshare` cannot be run: {e}"),
    }
}
