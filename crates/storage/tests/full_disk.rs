//! A real full disk: a small tmpfs in a mount namespace of this test's own child process.

#[path = "common/tmpfs.rs"]
mod tmpfs;

use std::path::Path;

use siltstone_storage::{FileStorage, Storage, StorageErrorKind};
use tmpfs::on_tmpfs;

const SIZE_MIB: u32 = 4;
const SIZE: u64 = (SIZE_MIB as u64) << 20;

fn fill(dir: &Path) {
    let s = FileStorage::open_or_create(dir.join("store")).unwrap();
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
        "the old pointer is unchanged"
    );
    assert!(s.list().unwrap().iter().all(|o| !o.name.contains("tmp")));

    // Appends to reserved space succeed on a full disk.
    log.append(&[&vec![9u8; (64 << 10) - 4]]).unwrap();
    log.sync().unwrap();
    // So does taking a lease: the space of its text is already allocated.
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
}

#[test]
fn full_disk() {
    on_tmpfs("full_disk", SIZE_MIB, fill);
}
