use std::path::Path;
use std::sync::Arc;

use rustix::fs::Mode;

use super::FileStorage;
use super::place::sync_names_of;
use super::storage::REWRITE_BYTES;
use crate::error::{Result, StorageError, StorageErrorKind};
use crate::storage::DirectFile;
use crate::storage::{Access, Epoch, Lease, Storage, WriteFile};

fn fresh() -> (tempfile::TempDir, FileStorage, Box<dyn Lease>) {
    let dir = tempfile::tempdir().unwrap();
    let storage = FileStorage::open_or_create(dir.path().join("store")).unwrap();
    let lease = storage.lease("writer").unwrap();
    (dir, storage, lease)
}

fn kind<T>(result: Result<T>) -> StorageErrorKind {
    result.err().expect("this call must fail").kind
}

fn write(storage: &FileStorage, epoch: Epoch, name: &str, bytes: &[u8]) {
    storage
        .create(epoch, name)
        .unwrap()
        .append(&[bytes])
        .unwrap();
}

#[test]
fn create_append_read() {
    let (_dir, s, lease) = fresh();
    let e = lease.epoch();
    let w = s.create(e, "a").unwrap();
    w.append(&[b"hello ", b"", b"world"]).unwrap();
    w.append(&[]).unwrap();
    w.append(&[b"!"]).unwrap();
    assert_eq!((w.position(), w.len()), (12, 12));
    w.sync().unwrap();
    w.start_writeback(0, 12);
    s.sync_dir(e).unwrap();
    assert_eq!(s.read_small("a").unwrap(), b"hello world!");
    assert_eq!(kind(s.create(e, "a")), StorageErrorKind::AlreadyExists);
    let r = s.open("a").unwrap();
    let mut buf = [0; 5];
    r.read_at(6, &mut buf).unwrap();
    assert_eq!(&buf, b"world");
    let err = r.read_at(9, &mut buf).unwrap_err();
    assert_eq!(
        (err.kind, err.offset),
        (StorageErrorKind::UnexpectedEof, Some(9))
    );
    assert!(err.to_string().contains("/store/a at byte 9"), "{err}");
}

#[test]
fn many_parts_in_one_append() {
    let (_dir, s, lease) = fresh();
    let w = s.create(lease.epoch(), "a").unwrap();
    let bytes: Vec<Vec<u8>> = (0..1000u32)
        .map(|i| vec![i as u8; (i % 17) as usize])
        .collect();
    let parts: Vec<&[u8]> = bytes.iter().map(Vec::as_slice).collect();
    w.append(&parts).unwrap();
    assert_eq!(s.read_small("a").unwrap(), bytes.concat());
}

#[test]
fn reserve_keeps_bytes_and_position() {
    let (_dir, s, lease) = fresh();
    let w = s.create(lease.epoch(), "log").unwrap();
    w.append(&[b"abc"]).unwrap();
    w.reserve(3 << 20).unwrap();
    assert_eq!((w.position(), w.len()), (3, 3 << 20));
    w.reserve(10).unwrap();
    assert_eq!(w.len(), 3 << 20);
    w.append(&[b"def"]).unwrap();
    let bytes = s.read_small("log").unwrap();
    assert_eq!(bytes.len(), 3 << 20);
    assert_eq!(&bytes[..6], b"abcdef");
    assert!(bytes[6..].iter().all(|b| *b == 0));
    w.truncate_to_position().unwrap();
    assert_eq!((w.position(), w.len()), (6, 6));
    assert_eq!(s.read_small("log").unwrap(), b"abcdef");
}

/// Appends into reserved space are stored through a map of the space. Its pages leave the map when
/// 1 MiB of them was stored to, and before a sync. Appends use the map or a system call; the file
/// is the same.
#[test]
fn appends_into_reserved_space_are_in_order_across_windows_and_syncs() {
    let (_dir, s, lease) = fresh();
    let w = s.create(lease.epoch(), "log").unwrap();
    let reserved: usize = 5 << 20;
    w.reserve(reserved as u64).unwrap();
    let mut expected = Vec::new();
    for i in 0..4000u32 {
        // Most are small. Some are longer than the map takes, and the last go beyond the space.
        let len = if i % 500 == 499 {
            40_000
        } else {
            700 + i % 600
        };
        let record = vec![(i % 251) as u8 + 1; len as usize];
        let (first, second) = record.split_at(record.len() / 3);
        w.append(&[first, b"", second]).unwrap();
        expected.extend_from_slice(&record);
        if i % 700 == 300 {
            w.sync().unwrap();
        }
        assert_eq!(w.position(), expected.len() as u64);
    }
    assert!(expected.len() < reserved, "part of the space is left");
    assert!(expected.len() > 3 << 20, "there are several windows");
    let bytes = s.read_small("log").unwrap();
    assert!(bytes[..expected.len()] == expected[..]);
    assert!(bytes[expected.len()..].iter().all(|b| *b == 0));
    w.append(&[&[7; 1 << 20]]).unwrap();
    assert_eq!(w.len(), (expected.len() + (1 << 20)) as u64);
}

#[test]
fn recycle_keeps_old_bytes() {
    let (_dir, s, lease) = fresh();
    let e = lease.epoch();
    write(&s, e, "1.log", b"0123456789");
    write(&s, e, "taken", b"");
    assert_eq!(
        kind(s.recycle(e, "1.log", "taken")),
        StorageErrorKind::AlreadyExists
    );
    assert_eq!(
        kind(s.recycle(e, "1.log", "1.log")),
        StorageErrorKind::AlreadyExists
    );
    assert_eq!(kind(s.recycle(e, "none", "x")), StorageErrorKind::NotFound);
    let w = s.recycle(e, "1.log", "2.log").unwrap();
    assert_eq!((w.name(), w.position(), w.len()), ("2.log", 0, 10));
    w.append(&[b"ab"]).unwrap();
    assert_eq!(s.read_small("2.log").unwrap(), b"ab23456789");
    assert_eq!(kind(s.open("1.log")), StorageErrorKind::NotFound);
}

#[test]
fn list_shows_objects_only() {
    let (_dir, s, lease) = fresh();
    let e = lease.epoch();
    write(&s, e, "b", b"12");
    write(&s, e, "a", b"1");
    std::fs::create_dir(s.path().join("sub")).unwrap();
    std::fs::write(s.path().join(".a.tmp"), b"left over").unwrap();
    std::fs::write(s.path().join("not an object"), b"").unwrap();
    let names: Vec<_> = s
        .list()
        .unwrap()
        .into_iter()
        .map(|o| (o.name, o.len))
        .collect();
    assert_eq!(names, [("a".to_owned(), 1), ("b".to_owned(), 2)]);
    assert!(s.path().join("LOCK.writer").exists());
    drop(lease);
    assert!(s.path().join(".a.tmp").exists());
    let _lease = s.lease("writer").unwrap();
    assert!(
        !s.path().join(".a.tmp").exists(),
        "taking the lease cleans up"
    );
    assert!(
        s.path().join("not an object").exists(),
        "what is not ours stays"
    );
}

#[test]
fn replace_rename_import_delete() {
    let (_dir, s, lease) = fresh();
    let e = lease.epoch();
    s.replace(e, "CURRENT", b"one").unwrap();
    s.replace(e, "CURRENT", b"two!").unwrap();
    assert_eq!(s.read_small("CURRENT").unwrap(), b"two!");
    assert!(!s.path().join(".CURRENT.tmp").exists());
    write(&s, e, "a", b"a");
    write(&s, e, "b", b"b");
    let open_b = s.open("b").unwrap();
    s.rename(e, "a", "b").unwrap();
    assert_eq!(s.read_small("b").unwrap(), b"a");
    let mut buf = [0];
    open_b.read_at(0, &mut buf).unwrap();
    assert_eq!(&buf, b"b", "an open file stays what it was");
    s.import(e, "c", &s, "b").unwrap();
    assert_eq!(
        kind(s.import(e, "c", &s, "b")),
        StorageErrorKind::AlreadyExists
    );
    assert_eq!(
        kind(s.import(e, "d", &s, "none")),
        StorageErrorKind::NotFound
    );
    s.delete(e, "b").unwrap();
    assert_eq!(s.read_small("c").unwrap(), b"a");
    assert_eq!(kind(s.delete(e, "b")), StorageErrorKind::NotFound);
    assert_eq!(kind(s.rename(e, "b", "x")), StorageErrorKind::NotFound);
    assert!(s.free_bytes().unwrap() > 0);
}

#[test]
fn bad_names_touch_nothing() {
    let (_dir, s, lease) = fresh();
    let e = lease.epoch();
    for name in ["", "../x", ".x", "a/b", "LOCK.writer"] {
        assert_eq!(kind(s.create(e, name)), StorageErrorKind::InvalidInput);
        assert_eq!(kind(s.open(name)), StorageErrorKind::InvalidInput);
        assert_eq!(kind(s.delete(e, name)), StorageErrorKind::InvalidInput);
        assert_eq!(
            kind(s.replace(e, name, b"")),
            StorageErrorKind::InvalidInput
        );
        assert_eq!(kind(s.rename(e, "a", name)), StorageErrorKind::InvalidInput);
    }
    assert_eq!(kind(s.lease("a/b")), StorageErrorKind::InvalidInput);
    assert!(s.list().unwrap().is_empty());
}

#[test]
fn a_link_to_elsewhere_is_not_followed() {
    let (dir, s, lease) = fresh();
    std::fs::write(dir.path().join("outside"), b"secret").unwrap();
    std::os::unix::fs::symlink(dir.path().join("outside"), s.path().join("a")).unwrap();
    assert!(s.open("a").is_err());
    assert!(s.recycle(lease.epoch(), "a", "b").is_err());
    assert!(s.list().unwrap().is_empty());
}

#[test]
fn leases_exclude_handles_of_one_process() {
    let (_dir, s, lease) = fresh();
    let other = FileStorage::open_existing(s.path()).unwrap();
    for storage in [&s, &other] {
        let e = storage.lease("writer").err().unwrap();
        assert_eq!(e.kind, StorageErrorKind::LeaseHeld);
        assert!(
            e.to_string()
                .contains(&format!("pid {}", std::process::id())),
            "{e}"
        );
    }
    let second_name = other.lease("other").unwrap();
    let first = lease.epoch();
    drop(lease);
    let again = other.lease("writer").unwrap();
    assert!(again.epoch() > first);
    assert!(second_name.epoch() > Epoch(0));
}

#[test]
fn opening_writes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(
        kind(FileStorage::open_existing(dir.path().join("none"))),
        StorageErrorKind::NotFound
    );
    assert!(!dir.path().join("none").exists());
    std::fs::write(dir.path().join("file"), b"").unwrap();
    assert_eq!(
        kind(FileStorage::open_existing(dir.path().join("file"))),
        StorageErrorKind::InvalidInput
    );
    assert!(FileStorage::open_or_create(dir.path().join("file")).is_err());
    let deep = dir.path().join("x/y/z");
    drop(FileStorage::open_or_create(&deep).unwrap());
    let s = FileStorage::open_existing(&deep).unwrap();
    assert!(s.list().unwrap().is_empty());
    assert_eq!(std::fs::read_dir(&deep).unwrap().count(), 0);
}

#[test]
fn maps_show_the_file_and_outlive_it() {
    let (_dir, s, lease) = fresh();
    for len in [
        0usize,
        1,
        4095,
        4096,
        4097,
        (2 << 20) - 1,
        2 << 20,
        (2 << 20) + 5000,
    ] {
        let bytes: Vec<u8> = (0..len).map(|i| (i * 31 + i / 4096) as u8).collect();
        write(&s, lease.epoch(), "t", &bytes);
        let r = s.open("t").unwrap();
        let map = r.map().unwrap().unwrap();
        let again = r.map().unwrap().unwrap();
        for access in [
            Access::Random,
            Access::Sequential,
            Access::WillNeed,
            Access::DontNeed,
        ] {
            r.advise(access, 0, len as u64);
            r.advise(access, 4097, u64::MAX);
            map.advise(access, u64::MAX, 1);
        }
        drop(r);
        s.delete(lease.epoch(), "t").unwrap();
        assert_eq!(map.len(), len);
        assert!(map.view().equals(&bytes));
        assert!(again.view().equals(&bytes));
        assert!(!map.failed());
        assert_eq!(map.read_u8(len), None);
    }
}

#[test]
fn a_lost_page_reads_as_zeros_and_marks_the_map() {
    let (_dir, s, lease) = fresh();
    for pages in [8usize, 600] {
        let name = format!("t{pages}");
        write(&s, lease.epoch(), &name, &vec![7u8; pages * 4096]);
        write(&s, lease.epoch(), &format!("other{pages}"), &[9u8; 8192]);
        let map = s.open(&name).unwrap().map().unwrap().unwrap();
        let other = s
            .open(&format!("other{pages}"))
            .unwrap()
            .map()
            .unwrap()
            .unwrap();
        assert_eq!(map.read_u8(0), Some(7));
        let file = std::fs::OpenOptions::new()
            .write(true)
            .open(s.path().join(&name))
            .unwrap();
        file.set_len(4096).unwrap();
        assert_eq!(map.read_u32(100), Some(0x0707_0707));
        assert!(!map.failed());
        assert_eq!(map.read_u64(5 * 4096 + 8), Some(0));
        assert!(map.failed());
        // Large copies over many lost pages, on several threads at once.
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    let mut buf = vec![1u8; (pages - 1) * 4096];
                    assert!(map.copy_to(4096, &mut buf));
                    assert!(buf.iter().all(|b| *b == 0));
                    assert!(map.failed());
                    assert!(map.crc32c(0, pages * 4096).is_some());
                });
            }
        });
        assert_eq!(other.read_u8(8191), Some(9));
        assert!(!other.failed(), "only the map that lost a page is marked");
    }
}

#[test]
fn appends_and_syncs_run_beside_each_other() {
    let (_dir, s, lease) = fresh();
    let w: Arc<dyn WriteFile> = s.create(lease.epoch(), "log").unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for i in 0..200u32 {
                w.append(&[&i.to_le_bytes()]).unwrap();
            }
        });
        scope.spawn(|| {
            for _ in 0..10 {
                w.sync().unwrap();
            }
        });
    });
    let bytes = s.read_small("log").unwrap();
    assert_eq!(
        bytes,
        (0..200u32).flat_map(u32::to_le_bytes).collect::<Vec<_>>()
    );
}

#[test]
fn imports_link_within_a_file_system_and_copy_else() {
    use std::os::unix::fs::MetadataExt;
    let (_dir, s, lease) = fresh();
    let e = lease.epoch();
    let (_other_dir, other, other_lease) = fresh();
    write(&other, other_lease.epoch(), "t", b"table");
    s.import(e, "linked", &other, "t").unwrap();
    let inode = |s: &FileStorage, name: &str| std::fs::metadata(s.path().join(name)).unwrap().ino();
    assert_eq!(inode(&s, "linked"), inode(&other, "t"));
    // The file stays when its name in the source folder is deleted.
    other.delete(other_lease.epoch(), "t").unwrap();
    assert_eq!(s.read_small("linked").unwrap(), b"table");

    // Another kind of storage cannot be linked from. The copy is larger than one piece.
    let memory = crate::MemoryStorage::new(&crate::Runtime::threads());
    let bytes: Vec<u8> = (0..2_500_000u32).map(|i| (i / 7) as u8).collect();
    let file = memory.create(Epoch(0), "t").unwrap();
    file.append(&[&bytes]).unwrap();
    s.import(e, "copied", &memory, "t").unwrap();
    assert!(s.read_small("copied").unwrap() == bytes);
    assert_eq!(
        kind(s.import(e, "copied", &memory, "t")),
        StorageErrorKind::AlreadyExists
    );
    // The source is on another file system, if this machine has one.
    let Ok(elsewhere) = tempfile::tempdir_in("/dev/shm") else {
        return;
    };
    let device = |path: &Path| std::fs::metadata(path).unwrap().dev();
    if device(elsewhere.path()) == device(s.path()) {
        return;
    }
    let shm = FileStorage::open_or_create(elsewhere.path()).unwrap();
    shm.import(e, "t", &s, "linked").unwrap();
    assert_eq!(shm.read_small("t").unwrap(), b"table");
    assert_eq!(
        kind(shm.import(e, "u", &s, "none")),
        StorageErrorKind::NotFound
    );
    assert_eq!(shm.list().unwrap().len(), 1, "a failed copy leaves nothing");
}

#[test]
fn readers_keep_a_writer_out_and_are_named() {
    let (_dir, s, lease) = fresh();
    let refused = |error: StorageError, part: &str| {
        assert_eq!(error.kind, StorageErrorKind::LeaseHeld);
        assert!(error.to_string().contains(part), "{error}");
    };
    let own = format!("pid {}", std::process::id());
    refused(s.lease_shared("writer").err().unwrap(), &own);
    drop(lease);
    let before = std::fs::read(s.path().join("LOCK.writer")).unwrap();
    let one = s.lease_shared("writer").unwrap();
    let two = s.lease_shared("writer").unwrap();
    refused(s.lease("writer").err().unwrap(), &own);
    refused(s.lease("writer").err().unwrap(), "readers have it open");
    drop(one);
    refused(s.lease("writer").err().unwrap(), "readers have it open");
    drop(two);
    assert_eq!(
        std::fs::read(s.path().join("LOCK.writer")).unwrap(),
        before,
        "readers write nothing"
    );
    drop(s.lease("writer").unwrap());
    // The folder was copied without the lease's file.
    drop(s.lease_shared("never").unwrap());
    assert!(s.path().join("LOCK.never").exists());
}

/// Deleting a folder deletes the lease's file. A lock on a file without a name keeps nobody out, so
/// no lease is granted on it.
#[test]
fn a_lease_counts_only_while_its_file_has_its_name() {
    let (_dir, s, lease) = fresh();
    let path = s.path().join("LOCK.writer");
    let other = FileStorage::open_existing(s.path()).unwrap();
    std::fs::remove_file(&path).unwrap();
    let second = other.lease("writer").unwrap();
    assert_eq!(
        kind(s.lease_shared("writer")),
        StorageErrorKind::LeaseHeld,
        "the new file is locked"
    );
    drop(lease);
    assert_eq!(kind(s.lease("writer")), StorageErrorKind::LeaseHeld);
    drop(second);
    drop(s.lease("writer").unwrap());
    drop(s.lease_shared("writer").unwrap());
}

#[test]
fn links_that_lead_nowhere_are_reported() {
    let dir = tempfile::tempdir().unwrap();
    let link = dir.path().join("store");
    std::os::unix::fs::symlink(dir.path().join("disk"), &link).unwrap();
    for result in [
        FileStorage::open_or_create(&link),
        FileStorage::open_existing(&link),
        FileStorage::open_or_create(link.join("below")),
    ] {
        let error = result.unwrap_err();
        assert_eq!(error.kind, StorageErrorKind::InvalidInput, "{error}");
        let text = error.to_string();
        assert!(
            text.contains("symbolic link to") && text.contains("is its disk mounted?"),
            "{text}"
        );
    }
    std::fs::create_dir(dir.path().join("disk")).unwrap();
    let through = FileStorage::open_or_create(&link).unwrap();
    assert_eq!(
        through.location(),
        FileStorage::open_existing(dir.path().join("disk"))
            .unwrap()
            .location()
    );
}

#[test]
fn published_bytes_replace_one_another() {
    let (_dir, s, lease) = fresh();
    let e = lease.epoch();
    s.publish(e, "STATS", b"one").unwrap();
    s.publish(e, "STATS", b"").unwrap();
    s.publish(e, "STATS", b"three").unwrap();
    assert_eq!(s.read_small("STATS").unwrap(), b"three");
    assert!(!s.path().join(".STATS.tmp").exists());
    assert_eq!(
        kind(s.publish(e, "a/b", b"")),
        StorageErrorKind::InvalidInput
    );
}

/// No call waits for the other end of a pipe, and no message is just "Is a directory". It names the
/// kind of the file that has the name, and what the user can do.
#[test]
fn what_is_no_file_is_named_and_never_waited_for() {
    let (dir, s, lease) = fresh();
    let path = |name: &str| dir.path().join("store").join(name);
    type Make<'a> = &'a dyn Fn(&str);
    let make: [(&str, Make<'_>); 3] = [
        ("a directory", &|name| {
            std::fs::create_dir(path(name)).unwrap();
        }),
        ("a pipe or a device", &|name| {
            rustix::fs::mknodat(
                rustix::fs::CWD,
                path(name),
                rustix::fs::FileType::Fifo,
                Mode::RUSR | Mode::WUSR,
                0,
            )
            .unwrap();
        }),
        ("a symbolic link", &|name| {
            std::os::unix::fs::symlink("elsewhere", path(name)).unwrap();
        }),
    ];
    for (number, (what, make)) in make.into_iter().enumerate() {
        let name = format!("object{number}");
        make(&name);
        make(&format!("LOCK.l{number}"));
        for error in [
            s.open(&name).err().unwrap(),
            s.sync_object(lease.epoch(), &name).err().unwrap(),
            s.create(lease.epoch(), &name).err().unwrap(),
            s.lease(&format!("l{number}")).err().unwrap(),
        ] {
            let text = error.to_string();
            assert!(text.contains(&format!("{what} lies where")), "{text}");
            assert!(text.contains("move it away"), "{text}");
        }
    }
}

/// A folder whose file system has direct I/O. If the tests' folder has none, returns `None` and
/// says so on the terminal.
fn direct() -> Option<(tempfile::TempDir, FileStorage, Box<dyn Lease>)> {
    let made = fresh();
    match made.1.check_direct() {
        Ok(()) => Some(made),
        Err(e) => {
            assert_eq!(e.kind, StorageErrorKind::Unsupported);
            assert!(e.to_string().contains("O_DIRECT"), "{e}");
            eprintln!("skipped: {e}");
            None
        }
    }
}

#[test]
fn direct_files_hold_the_same_bytes() {
    let Some((_dir, s, lease)) = direct() else {
        return;
    };
    assert_eq!(s.list().unwrap(), []);
    let e = lease.epoch();
    let bytes: Vec<u8> = (0..3_000_001u32).map(|i| ((i * 31) >> 3) as u8).collect();
    // The pieces have odd lengths, fill whole buffers, or are empty. Syncs happen at odd offsets.
    let ends = [
        0,
        1,
        511,
        512,
        513,
        4095,
        4096,
        4097,
        8192,
        1 << 20,
        (1 << 20) + 1,
        2_500_000,
        3_000_001,
    ];
    for sync_each in [false, true] {
        let name = format!("t{sync_each}");
        let w = s.create_direct(e, &name).unwrap();
        assert_eq!(
            kind(s.create_direct(e, &name)),
            StorageErrorKind::AlreadyExists
        );
        let mut at = 0;
        for end in ends {
            let (a, b) = bytes[at..end].split_at((end - at) / 3);
            w.append(&[a, b"", b]).unwrap();
            assert_eq!(w.position(), end as u64);
            if sync_each {
                w.sync().unwrap();
                assert_eq!(s.read_small(&name).unwrap().len(), end);
            }
            at = end;
        }
        w.sync().unwrap();
        drop(w);
        assert!(s.read_small(&name).unwrap() == bytes);
        let r = s.open_direct(&name).unwrap();
        assert_eq!((r.name(), r.len()), (&name[..], 3_000_001));
        assert!(r.map().unwrap().is_none());
        for (offset, len) in [
            (0, 0),
            (0, 1),
            (0, 4096),
            (1, 4096),
            (4095, 2),
            (4096, 4096),
            (2_999_999, 2),
            (3_000_000, 1),
            (0, 3_000_001),
            (12_345, 2_000_000),
            (3_000_001, 0),
        ] {
            let mut buf = vec![0xee; len];
            r.read_at(offset as u64, &mut buf).unwrap();
            assert!(buf == bytes[offset..offset + len], "{offset} {len}");
        }
        for (offset, len) in [
            (3_000_001, 1),
            (3_000_000, 2),
            (4_000_000, 1),
            (u64::MAX - 1, 8),
        ] {
            let error = r.read_at(offset, &mut vec![0; len]).unwrap_err();
            assert_eq!(
                (error.kind, error.offset),
                (StorageErrorKind::UnexpectedEof, Some(offset))
            );
        }
    }
    assert_eq!(kind(s.open_direct("none")), StorageErrorKind::NotFound);
    assert_eq!(kind(s.open_direct("../x")), StorageErrorKind::InvalidInput);
}

#[test]
fn direct_files_are_reserved_and_cut() {
    let Some((_dir, s, lease)) = direct() else {
        return;
    };
    let w = s.create_direct(lease.epoch(), "t").unwrap();
    w.append(&[b"abc"]).unwrap();
    w.reserve(10_000).unwrap();
    assert_eq!((w.position(), w.len()), (3, 10_000));
    w.sync().unwrap();
    let mut expected = vec![0; 10_000];
    expected[..3].copy_from_slice(b"abc");
    assert_eq!(s.read_small("t").unwrap(), expected);
    w.append(&[b"def"]).unwrap();
    w.truncate_to_position().unwrap();
    w.sync().unwrap();
    assert_eq!(s.read_small("t").unwrap(), b"abcdef");
}

/// `len` bytes that begin at a multiple of 4096, in a vector, and where they begin.
fn aligned(len: usize) -> (Vec<u8>, usize) {
    let mut bytes = vec![0; len + 4096];
    let at = bytes.as_ptr().align_offset(4096);
    for (i, byte) in bytes[at..at + len].iter_mut().enumerate() {
        *byte = ((i * 31) >> 3) as u8;
    }
    (bytes, at)
}

#[test]
fn aligned_appends_to_a_direct_file_mix_with_others() {
    let Some((_dir, s, lease)) = direct() else {
        return;
    };
    let (bytes, at) = aligned(3 << 20);
    let bytes = &bytes[at..at + (3 << 20)];
    // What is appended first, and the length of the large part: at an aligned position and at
    // others, with an aligned length and with others.
    for (before, len) in [
        (0, 1 << 20),
        (4096, 1 << 20),
        (12_288, (1 << 20) + 77),
        (5, 1 << 20),
        (4096 + 512, (2 << 20) + 1),
        ((1 << 20) - 4096, 300 << 10),
    ] {
        let name = format!("t{before}-{len}");
        let w = s.create_direct(lease.epoch(), &name).unwrap();
        // The parts lie at aligned addresses, whatever the position is.
        w.append(&[&bytes[..before]]).unwrap();
        w.append(&[&bytes[4096..4096 + len], b"after"]).unwrap();
        w.append(&[&bytes[..300 << 10]]).unwrap();
        assert_eq!(w.position(), (before + len + 5 + (300 << 10)) as u64);
        w.sync().unwrap();
        let want = [
            &bytes[..before],
            &bytes[4096..4096 + len],
            b"after",
            &bytes[..300 << 10],
        ];
        assert!(s.read_small(&name).unwrap() == want.concat(), "{name}");
    }
}

#[test]
fn direct_files_are_written_and_read_by_their_descriptors() {
    let Some((_dir, s, lease)) = direct() else {
        return;
    };
    let (bytes, at) = aligned(1 << 20);
    let bytes = &bytes[at..at + (1 << 20)];
    let w = s.create_direct(lease.epoch(), "t").unwrap();
    w.append(&[&bytes[..8192]]).unwrap();
    let mut write = |file: DirectFile<'_>, offset: u64| {
        assert_eq!(offset % file.alignment, 0);
        let mut done = 8192;
        while done < 65536 {
            let to = offset + (done - 8192) as u64;
            done += rustix::io::pwrite(file.descriptor, &bytes[done..65536], to)?;
        }
        Ok(true)
    };
    let len = 65536 - 8192;
    assert!(!w.append_by_descriptor(len, &mut |_, _| Ok(false)).unwrap());
    assert_eq!(w.position(), 8192);
    assert!(w.append_by_descriptor(len, &mut write).unwrap());
    assert_eq!(w.position(), 65536);
    w.append(&[&bytes[65536..65536 + 77]]).unwrap();
    // Neither a position nor a length that is not aligned is possible.
    let mut never = |_: DirectFile<'_>, _: u64| panic!("nothing may be written");
    assert!(!w.append_by_descriptor(4096, &mut never).unwrap());
    w.append(&[&bytes[65536 + 77..65536 + 4096]]).unwrap();
    assert!(!w.append_by_descriptor(77, &mut never).unwrap());
    w.sync().unwrap();
    assert!(s.read_small("t").unwrap() == bytes[..65536 + 4096]);

    let r = s.open_direct("t").unwrap();
    let (mut to, at) = aligned(65536);
    let mut read = |file: DirectFile<'_>| {
        let found = rustix::io::pread(file.descriptor, &mut to[at..at + 65536], 4096)?;
        assert_eq!((found, 4096 % file.alignment), (65536, 0));
        Ok(())
    };
    assert!(r.read_by_descriptor(&mut read).unwrap());
    assert!(to[at..at + 65536] == bytes[4096..4096 + 65536]);
    let error = r.read_by_descriptor(&mut |_| Err(std::io::Error::other("a broken bus")));
    let error = error.unwrap_err();
    assert_eq!((error.kind, error.op), (StorageErrorKind::Io, "read"));
    assert!(error.to_string().contains("a broken bus"), "{error}");

    // Files in the page cache have none to give.
    let mut unread = |_: DirectFile<'_>| panic!("nothing may be read");
    let r = s.open("t").unwrap();
    assert!(!r.read_by_descriptor(&mut unread).unwrap());
    let w = s.create(lease.epoch(), "u").unwrap();
    assert!(!w.append_by_descriptor(4096, &mut never).unwrap());
}

#[test]
fn after_a_failed_write_by_its_descriptor_a_direct_file_takes_nothing() {
    let Some((_dir, s, lease)) = direct() else {
        return;
    };
    let w = s.create_direct(lease.epoch(), "t").unwrap();
    let error = w.append_by_descriptor(4096, &mut |_, _| Err(std::io::Error::other("no power")));
    assert_eq!((kind(error), w.position()), (StorageErrorKind::Io, 0));
    assert_eq!(kind(w.append(&[b"more"])), StorageErrorKind::Io);
    let again = w.append_by_descriptor(4096, &mut |_, _| panic!("nothing may be written"));
    assert_eq!(kind(again), StorageErrorKind::Io);
}

#[test]
fn bytes_are_written_over_themselves() {
    let (_dir, s, lease) = fresh();
    let e = lease.epoch();
    for len in [0, 1, REWRITE_BYTES, REWRITE_BYTES * 2 + 77] {
        let bytes: Vec<u8> = (0..len).map(|i| (i % 251) as u8).collect();
        let name = format!("f{len}");
        s.create(e, &name).unwrap().append(&[&bytes]).unwrap();
        s.rewrite_object(e, &name).unwrap();
        assert_eq!(s.read_small(&name).unwrap(), bytes);
    }
    assert_eq!(
        kind(s.rewrite_object(e, "none")),
        StorageErrorKind::NotFound
    );
}

#[test]
fn the_names_of_a_folder_are_synced_however_it_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let deep = dir.path().join("a").join("b");
    std::fs::create_dir_all(&deep).unwrap();
    let link = dir.path().join("link");
    std::os::unix::fs::symlink(&deep, &link).unwrap();
    let relative = deep.join("..").join("b");
    for path in [&*deep, &link, &relative, Path::new("/"), Path::new(".")] {
        sync_names_of(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    }
    assert_eq!(
        kind(sync_names_of(&dir.path().join("none"))),
        StorageErrorKind::NotFound
    );
}
