use super::*;

fn storage() -> (MemoryStorage, Epoch) {
    let s = MemoryStorage::new(&Runtime::threads());
    let e = s.lease("writer").unwrap().epoch();
    (s, e)
}

fn kind<T>(result: Result<T>) -> StorageErrorKind {
    result.err().expect("this call must fail").kind
}

#[test]
fn synced_survives_unsynced_does_not() {
    let (s, e) = storage();
    let w = s.create(e, "a").unwrap();
    w.append(&[b"one"]).unwrap();
    w.sync().unwrap();
    assert!(
        s.crash(CrashPolicy::LoseUnsynced)
            .list()
            .unwrap()
            .is_empty(),
        "the name was not synced"
    );
    s.sync_dir(e).unwrap();
    w.append(&[b"two"]).unwrap();
    assert_eq!(
        s.crash(CrashPolicy::LoseUnsynced).read_small("a").unwrap(),
        b"one"
    );
    assert_eq!(
        s.crash(CrashPolicy::KeepUnsynced).read_small("a").unwrap(),
        b"onetwo"
    );
    let killed = s.kill();
    assert_eq!(killed.read_small("a").unwrap(), b"onetwo");
    assert_eq!(
        killed
            .crash(CrashPolicy::LoseUnsynced)
            .read_small("a")
            .unwrap(),
        b"one",
        "a kill syncs nothing"
    );
}

#[test]
fn rename_and_bytes_are_durable_independently() {
    let (s, e) = storage();
    let w = s.create(e, "1.log").unwrap();
    w.append(&[b"old old old"]).unwrap();
    w.sync().unwrap();
    s.sync_dir(e).unwrap();
    let w = s.recycle(e, "1.log", "2.log").unwrap();
    w.append(&[b"new"]).unwrap();
    let bytes_only = {
        w.sync().unwrap();
        s.crash(CrashPolicy::LoseUnsynced)
    };
    assert_eq!(bytes_only.read_small("1.log").unwrap(), b"new old old");
    w.append(&[b"+"]).unwrap();
    s.sync_dir(e).unwrap();
    let name_only = s.crash(CrashPolicy::LoseUnsynced);
    assert_eq!(name_only.read_small("2.log").unwrap(), b"new old old");
    assert_eq!(kind(name_only.open("1.log")), StorageErrorKind::NotFound);
}

#[test]
fn replace_is_durable_and_alone() {
    let (s, e) = storage();
    drop(s.create(e, "other").unwrap());
    drop(s.create(e, "tmp").unwrap());
    s.rename(e, "tmp", "CURRENT").unwrap();
    s.replace(e, "CURRENT", b"v1").unwrap();
    for seed in 0..50 {
        let image = s.crash(CrashPolicy::Seeded(seed));
        assert_eq!(image.read_small("CURRENT").unwrap(), b"v1", "seed {seed}");
    }
    assert_eq!(
        s.crash(CrashPolicy::LoseUnsynced).list().unwrap().len(),
        1,
        "replace syncs its own name only"
    );
}

#[test]
fn a_failed_sync_loses_pages_that_still_show() {
    let (s, e) = storage();
    let w = s.create(e, "a").unwrap();
    s.sync_dir(e).unwrap();
    w.append(&[&[1; 4096]]).unwrap();
    assert!(w.inject(crate::storage::InjectedFault::LoseUnsynced));
    w.append(&[&[2; 4096]]).unwrap();
    w.sync().unwrap();
    assert_eq!(s.kill().read_small("a").unwrap()[0], 1);
    let image = s.crash(CrashPolicy::KeepUnsynced).read_small("a").unwrap();
    assert_eq!((image.len(), image[0], image[4096]), (8192, 0, 2));
    drop(s.create(e, "b").unwrap());
    assert!(s.inject_lost_names());
    s.sync_dir(e).unwrap();
    assert_eq!(s.list().unwrap().len(), 2);
    assert_eq!(s.crash(CrashPolicy::KeepUnsynced).list().unwrap().len(), 1);
}

#[test]
fn leases_fence() {
    let s = MemoryStorage::new(&Runtime::threads());
    let old = s.lease("writer").unwrap();
    assert_eq!(kind(s.lease("writer")), StorageErrorKind::LeaseHeld);
    let other = s.lease("other").unwrap();
    let w = s.create(old.epoch(), "a").unwrap();
    s.set_leases_expire(true);
    let new = s.lease("writer").unwrap();
    assert!(new.epoch() > old.epoch());
    let e = old.epoch();
    assert_eq!(kind(w.append(&[b"x"])), StorageErrorKind::Fenced);
    assert_eq!(kind(w.append(&[])), StorageErrorKind::Fenced);
    assert_eq!(kind(w.reserve(1)), StorageErrorKind::Fenced);
    assert_eq!(kind(w.sync()), StorageErrorKind::Fenced);
    assert_eq!(kind(w.truncate_to_position()), StorageErrorKind::Fenced);
    assert_eq!(kind(s.create(e, "b")), StorageErrorKind::Fenced);
    assert_eq!(kind(s.recycle(e, "a", "b")), StorageErrorKind::Fenced);
    assert_eq!(kind(s.delete(e, "a")), StorageErrorKind::Fenced);
    assert_eq!(kind(s.rename(e, "a", "b")), StorageErrorKind::Fenced);
    assert_eq!(kind(s.import(e, "b", &s, "a")), StorageErrorKind::Fenced);
    assert_eq!(kind(s.publish(e, "b", b"")), StorageErrorKind::Fenced);
    assert_eq!(kind(s.sync_dir(e)), StorageErrorKind::Fenced);
    assert_eq!(kind(s.replace(e, "a", b"")), StorageErrorKind::Fenced);
    assert!(
        s.open("a").unwrap().is_empty(),
        "none of the calls had an effect"
    );
    drop(s.create(new.epoch(), "n").unwrap());
    drop(s.create(other.epoch(), "o").unwrap());
    // The images can be leased, with larger epochs.
    assert!(s.kill().lease("writer").unwrap().epoch() > new.epoch());
    assert!(
        s.crash(CrashPolicy::LoseUnsynced)
            .lease("writer")
            .unwrap()
            .epoch()
            > new.epoch()
    );
}

#[test]
fn journal_gives_every_prefix() {
    let (s, e) = storage();
    drop(s.create(e, "before").unwrap());
    s.start_journal();
    let w = s.create(e, "a").unwrap();
    s.sync_dir(e).unwrap();
    w.append(&[b"x"]).unwrap();
    w.sync().unwrap();
    let at = s.mark("x is synced");
    w.append(&[b"y"]).unwrap();
    s.delete(e, "a").unwrap();
    s.sync_dir(e).unwrap();
    assert_eq!((at, s.journal_len()), (4, 7));
    let names = |s: &MemoryStorage| {
        s.list()
            .unwrap()
            .into_iter()
            .map(|o| (o.name, o.len))
            .collect::<Vec<_>>()
    };
    let lens: Vec<_> = (0..=7)
        .map(|n| names(&s.crash_at(n, CrashPolicy::LoseUnsynced)))
        .collect();
    let with_a = |len| vec![("a".to_owned(), len), ("before".to_owned(), 0)];
    let expected = [
        vec![],
        vec![],
        with_a(0),
        with_a(0),
        with_a(1),
        with_a(1),
        with_a(1),
        vec![("before".to_owned(), 0)],
    ];
    assert_eq!(lens, expected);
    let mut replay = s.replay();
    assert_eq!((replay.len(), replay.kind(3)), (7, Some(OpKind::Sync)));
    replay.advance_to(3);
    assert!(replay.marks_so_far().is_empty());
    replay.advance_to(4);
    assert_eq!(
        replay.marks_so_far(),
        [Mark {
            at: 4,
            label: "x is synced".into()
        }]
    );
    replay.advance_to(u64::MAX);
    assert_eq!(names(&replay.kill_in(&Runtime::threads())), names(&s));
}

#[test]
fn capacity() {
    let (s, e) = storage();
    assert_eq!(s.free_bytes(), None);
    s.set_capacity(Some(3 * 4096));
    let w = s.create(e, "a").unwrap();
    w.append(&[&[1; 4096]]).unwrap();
    let err = w.append(&[&[2; 3 * 4096]]).unwrap_err();
    assert_eq!(
        (err.kind, w.position(), w.len()),
        (StorageErrorKind::NoSpace, 4096, 3 * 4096)
    );
    assert_eq!(s.free_bytes(), Some(0));
    assert_eq!(kind(s.replace(e, "c", b"x")), StorageErrorKind::NoSpace);
    s.replace(e, "empty", b"").unwrap();
    w.truncate_to_position().unwrap();
    assert_eq!(kind(w.reserve(4 * 4096)), StorageErrorKind::NoSpace);
    assert_eq!(w.len(), 4096);
    w.reserve(3 * 4096).unwrap();
    w.append(&[&[3; 2 * 4096]]).unwrap();
    s.delete(e, "a").unwrap();
    assert_eq!(s.used_bytes(), 3 * 4096, "an open object keeps its space");
    drop(w);
    assert_eq!(s.used_bytes(), 0);
    let w = s.create(e, "b").unwrap();
    s.set_capacity(Some(0));
    assert_eq!(kind(w.append(&[b"x"])), StorageErrorKind::NoSpace);
    s.set_capacity(None);
    w.append(&[b"x"]).unwrap();
}

#[test]
fn a_map_keeps_its_bytes() {
    let (s, e) = storage();
    let w = s.create(e, "a").unwrap();
    w.append(&[b"hello"]).unwrap();
    let map = s.open("a").unwrap().map().unwrap().unwrap();
    let image = s.crash(CrashPolicy::LoseUnsynced);
    s.delete(e, "a").unwrap();
    drop((s, w, image));
    assert!(map.view().equals(b"hello"));
}

#[test]
fn an_import_shares_bytes_and_its_name_is_durable_after_a_folder_sync() {
    let (from, f) = storage();
    let w = from.create(f, "t").unwrap();
    w.append(&[&[7; 5000]]).unwrap();
    w.sync().unwrap();
    let (to, e) = storage();
    to.start_journal();
    to.import(e, "n", &from, "t").unwrap();
    assert_eq!(
        kind(to.import(e, "n", &from, "t")),
        StorageErrorKind::AlreadyExists
    );
    assert_eq!(
        kind(to.import(e, "m", &from, "u")),
        StorageErrorKind::NotFound
    );
    from.delete(f, "t").unwrap();
    assert_eq!(to.read_small("n").unwrap(), [7; 5000]);
    assert!(
        to.crash(CrashPolicy::LoseUnsynced)
            .list()
            .unwrap()
            .is_empty()
    );
    let kept = to.crash(CrashPolicy::KeepUnsynced);
    assert_eq!(
        kept.read_small("n").unwrap(),
        [7; 5000],
        "the bytes were durable"
    );
    to.sync_dir(e).unwrap();
    let lost = to.crash(CrashPolicy::LoseUnsynced);
    assert_eq!(lost.read_small("n").unwrap(), [7; 5000]);
    assert_eq!(
        to.crash_at(2, CrashPolicy::LoseUnsynced)
            .read_small("n")
            .unwrap(),
        [7; 5000],
        "the journal has it"
    );
    // The second name does not save bytes that were never synced.
    let w = from.create(f, "u").unwrap();
    w.append(&[b"unsynced"]).unwrap();
    to.import(e, "u", &from, "u").unwrap();
    to.sync_dir(e).unwrap();
    let lost = to.crash(CrashPolicy::LoseUnsynced);
    assert_eq!(lost.read_small("u").unwrap(), b"");
    // The space of imported objects is counted.
    to.set_capacity(Some(to.used_bytes() + 4096));
    w.append(&[&[1; 5000]]).unwrap();
    assert_eq!(
        kind(to.import(e, "v", &from, "u")),
        StorageErrorKind::NoSpace
    );
}

#[test]
fn published_bytes_may_be_lost_with_the_power() {
    let (s, e) = storage();
    s.publish(e, "STATS", b"one").unwrap();
    s.sync_dir(e).unwrap();
    s.publish(e, "STATS", b"two").unwrap();
    assert_eq!(s.read_small("STATS").unwrap(), b"two");
    assert_eq!(s.kill().read_small("STATS").unwrap(), b"two");
    let mut seen = std::collections::BTreeSet::new();
    for seed in 0..200 {
        seen.insert(
            s.crash(CrashPolicy::Seeded(seed))
                .read_small("STATS")
                .unwrap_or_default(),
        );
    }
    let bytes: [&[u8]; 3] = [b"", b"one", b"two"];
    assert!(bytes.iter().all(|b| seen.contains(*b)), "{seen:?}");
    s.set_capacity(Some(0));
    assert_eq!(
        kind(s.publish(e, "STATS", b"no")),
        StorageErrorKind::NoSpace
    );
}

#[test]
fn readers_and_a_writer_exclude_each_other() {
    let s = MemoryStorage::new(&Runtime::threads());
    let writer = s.lease("writer").unwrap();
    assert_eq!(kind(s.lease_shared("writer")), StorageErrorKind::LeaseHeld);
    drop(writer);
    s.start_journal();
    let readers = [
        s.lease_shared("writer").unwrap(),
        s.lease_shared("writer").unwrap(),
    ];
    assert_eq!(s.journal_len(), 0, "a reader changes nothing");
    assert_eq!(kind(s.lease("writer")), StorageErrorKind::LeaseHeld);
    drop(readers);
    assert!(s.lease("writer").is_ok());
}

/// Images of a kill and of a power loss partway through the change number `at` of the journal, for
/// many seeds.
fn within(s: &MemoryStorage, at: u64) -> (Vec<Vec<u8>>, CrashReport) {
    let mut replay = s.replay();
    replay.advance_to(at);
    let runtime = Runtime::threads();
    let mut all = CrashReport::default();
    let images = (0..300).map(|seed| {
        let (killed, report) = replay
            .kill_within(&runtime, seed)
            .expect("it can be interrupted");
        all.merge(&report);
        let policy = CrashPolicy::Seeded(seed);
        let lost = replay.crash_within(&runtime, policy, seed);
        assert!(lost.is_some());
        killed.read_small("a").unwrap()
    });
    (images.collect(), all)
}

#[test]
fn an_interrupted_call_leaves_a_part_of_its_bytes() {
    let (s, e) = storage();
    s.start_journal();
    let w = s.create(e, "a").unwrap();
    w.append(&[&[1; 10_000]]).unwrap();
    w.reserve(40_000).unwrap();
    w.append(&[&[2; 5_000]]).unwrap();
    let mut replay = s.replay();
    assert!(
        replay.kill_within(&Runtime::threads(), 1).is_none(),
        "a creation cannot be interrupted"
    );
    replay.advance_to(1);

    let (images, report) = within(&s, 1);
    assert_eq!(
        (report.writes_cut_count, report.writes_scattered_count),
        (300, 0)
    );
    let lens: std::collections::BTreeSet<usize> = images.iter().map(Vec::len).collect();
    assert_eq!(
        lens,
        [0, 4096, 8192].into(),
        "a call that grows the object stops between pages"
    );

    let (images, report) = within(&s, 2);
    assert_eq!(report.reserves_cut_count, 300);
    assert!(images.iter().all(|i| i.len() > 10_000 && i.len() < 40_000));

    let (images, report) = within(&s, 3);
    assert!(report.writes_cut_count > 50 && report.writes_scattered_count > 50);
    let ends_in_the_middle = |i: &[u8]| {
        let count = i[10_000..15_000].iter().take_while(|b| **b == 2).count();
        count > 0 && count % 512 != 0 && i[10_000 + count..].iter().all(|b| *b == 0)
    };
    assert!(images.iter().any(|i| ends_in_the_middle(i)));
    let last_first = |i: &[u8]| i[10_000] == 0 && i[14_999] == 2;
    assert!(
        images.iter().any(|i| last_first(i)),
        "stored in another order"
    );
    assert!(
        images
            .iter()
            .all(|i| i.len() == 40_000 && i[..10_000] == [1; 10_000])
    );
}

#[test]
fn a_page_may_be_written_back_while_it_is_stored_to() {
    let (s, e) = storage();
    let w = s.create(e, "a").unwrap();
    w.append(&[&[1; 4096]]).unwrap();
    w.sync().unwrap();
    s.sync_dir(e).unwrap();
    let w = s.recycle(e, "a", "b").unwrap();
    w.append(&[&[2; 4096]]).unwrap();
    s.sync_dir(e).unwrap();
    let mut cut = 0;
    for seed in 0..500 {
        let (image, report) = s.crash_in(&Runtime::threads(), CrashPolicy::Seeded(seed));
        if report.pages_cut_count == 1 {
            let bytes = image.read_small("b").unwrap();
            let at = bytes.iter().take_while(|b| **b == 2).count();
            assert!(bytes[at..].iter().all(|b| *b == 1));
            cut += u32::from(at % 512 != 0);
        }
    }
    assert!(cut > 10, "{cut}");
}

#[test]
fn a_kill_loses_unsynced_bytes_of_direct_objects() {
    let (s, e) = storage();
    let direct = s.create_direct(e, "a").unwrap();
    let plain = s.create(e, "b").unwrap();
    for w in [&direct, &plain] {
        w.append(&[b"synced"]).unwrap();
        w.sync().unwrap();
        w.append(&[b" and not"]).unwrap();
    }
    let killed = s.kill();
    assert_eq!(killed.read_small("a").unwrap(), b"synced");
    assert_eq!(killed.read_small("b").unwrap(), b"synced and not");
    assert_eq!(s.read_small("a").unwrap(), b"synced and not");
}

#[test]
fn a_truncated_object_is_short_for_all_its_readers() {
    let (s, e) = storage();
    let w = s.create(e, "a").unwrap();
    w.append(&[&[7; 10_000]]).unwrap();
    w.sync().unwrap();
    s.sync_dir(e).unwrap();
    s.start_journal();
    let reader = s.open("a").unwrap();
    let map = reader.map().unwrap().unwrap();
    assert!(!s.cut("b", 0) && !s.cut("a", 10_000));
    assert!(s.cut("a", 5_000));
    assert!(map.failed());
    assert_eq!((map.read_u8(4_999), map.read_u8(5_000)), (Some(7), Some(0)));
    let mut buf = [1; 2];
    assert_eq!(
        kind(reader.read_at(4_999, &mut buf)),
        StorageErrorKind::UnexpectedEof
    );
    assert_eq!(buf, [0; 2]);
    reader.read_at(4_998, &mut buf).unwrap();
    assert!(reader.map().unwrap().unwrap().failed());
    let late = s.open("a").unwrap();
    assert_eq!(late.len(), 5_000);
    assert!(
        !late.map().unwrap().unwrap().failed(),
        "it maps only existing bytes"
    );
    for image in [
        s.crash(CrashPolicy::LoseUnsynced),
        s.kill(),
        s.crash_at(1, CrashPolicy::KeepUnsynced),
    ] {
        assert_eq!(image.read_small("a").unwrap(), [7; 5_000]);
    }
    // A writer that continues leaves zeros in between, as on real files.
    w.append(&[b"x"]).unwrap();
    let bytes = s.read_small("a").unwrap();
    assert_eq!(
        (bytes.len(), bytes[6_000], bytes[10_000]),
        (10_001, 0, b'x')
    );
}

#[test]
fn an_unreadable_page_fails_reads_and_marks_maps() {
    let (s, e) = storage();
    let w = s.create(e, "a").unwrap();
    w.append(&[&[7; 10_000]]).unwrap();
    let reader = s.open("a").unwrap();
    let map = reader.map().unwrap().unwrap();
    assert!(s.set_unreadable("a", 5_000..5_001));
    let mut buf = [1; 2];
    reader.read_at(4_094, &mut buf).unwrap();
    assert_eq!(kind(reader.read_at(4_095, &mut buf)), StorageErrorKind::Io);
    reader.read_at(8_192, &mut buf).unwrap();
    assert!(map.failed() && s.open("a").unwrap().map().unwrap().unwrap().failed());
    assert_eq!(
        (map.read_u8(4_095), map.read_u8(4_096), map.read_u8(8_192)),
        (Some(7), Some(0), Some(7))
    );
    assert_eq!(s.kill().read_small("a").unwrap(), [7; 10_000]);
    s.set_readable();
    reader.read_at(4_095, &mut buf).unwrap();
    assert_eq!(buf, [7; 2]);
}

#[test]
fn a_disk_fills_up_after_a_number_of_calls() {
    let (s, e) = storage();
    let w = s.create(e, "a").unwrap();
    s.fill_after(1, 4096);
    w.append(&[&[1; 4096]]).unwrap();
    assert_eq!(s.capacity(), None);
    w.append(&[&[1; 4096]]).unwrap();
    assert_eq!(s.capacity(), Some(8192));
    assert_eq!(kind(w.append(&[b"x"])), StorageErrorKind::NoSpace);
    s.set_capacity(None);
    w.append(&[b"x"]).unwrap();
}
