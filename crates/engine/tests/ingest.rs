//! Tables from outside, built or exported, are ingested over several keyspaces, in every state of a
//! store.

mod common;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use common::*;
use siltstone::{
    ErrorKind, IngestMode, IngestReport, IterOptions, Keyspace, Store, TableBuilder, TableFile,
    TableFolder, TableOptions,
};
use siltstone_storage::fault::{Fault, Rule};
use siltstone_storage::{
    CrashPolicy, Epoch, MemoryStorage, OpKind, Runtime, Storage, StorageErrorKind,
};
use siltstone_table::key::{Kind, trailer};
use siltstone_table::writer::{TableWriter, WriterOptions};

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

/// A folder of the caller's.
struct Outside {
    memory: MemoryStorage,
    folder: TableFolder,
}

impl Outside {
    fn new(rt: &Runtime) -> Outside {
        let memory = MemoryStorage::new(rt);
        Outside {
            folder: TableFolder::on(Arc::new(memory.clone()), Epoch::default()),
            memory,
        }
    }

    fn names(&self) -> Vec<String> {
        let all = self.memory.list().unwrap();
        all.into_iter().map(|o| o.name).collect()
    }

    /// Tables of these pairs. A pair without a value is a delete.
    fn build(&self, prefix: &str, pairs: &[(Vec<u8>, Option<Vec<u8>>)]) -> Vec<TableFile> {
        let options = TableOptions {
            table_bytes: 64 << 10,
            block_bytes: 1 << 10,
            ..TableOptions::default()
        };
        let mut builder = TableBuilder::new(&self.folder, prefix, options).unwrap();
        for (key, value) in pairs {
            match value {
                Some(value) => builder.put(key, value).unwrap(),
                None => builder.delete(key).unwrap(),
            }
        }
        let built = builder.finish().unwrap();
        built.into_iter().map(|t| t.file).collect()
    }

    /// One table of these keys, which all have this value.
    fn keys(&self, prefix: &str, keys: impl Iterator<Item = u64>, value: &str) -> Vec<TableFile> {
        let pairs: Vec<_> = keys.map(|i| (key(i), Some(value.into()))).collect();
        self.build(prefix, &pairs)
    }
}

fn tables_of(disk: &Disk) -> Vec<String> {
    disk.names(".tbl")
}

fn state(keyspace: &Keyspace) -> Model {
    keyspace.iter().unwrap().map(Result::unwrap).collect()
}

#[test]
fn a_builder_requires_ascending_keys_and_cuts_tables() {
    with_seeds(1, |rt, _| {
        let outside = Outside::new(&rt);
        let mut builder = TableBuilder::new(&outside.folder, "t", TableOptions::default()).unwrap();
        builder.put(b"b", b"1").unwrap();
        for wrong in [&b"b"[..], b"a", b""] {
            let error = builder.put(wrong, b"2").unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
            let text = error.to_string();
            assert!(text.contains("above b"), "{text}");
        }
        let error = builder.put(&vec![b'x'; 70_000], b"").unwrap_err();
        assert!(error.to_string().contains("65535"), "{error}");
        // The builder continues after a refusal.
        builder.delete(b"c").unwrap();
        let built = builder.finish().unwrap();
        assert_eq!(
            (built.len(), built[0].entry_count, built[0].delete_count),
            (1, 2, 1)
        );
        assert_eq!(
            (&built[0].smallest_key[..], &built[0].largest_key[..]),
            (&b"b"[..], &b"c"[..])
        );

        let pairs: Vec<_> = (0..2000).map(|i| (key(i), Some(vec![7; 200]))).collect();
        let files = outside.build("many", &pairs);
        assert!(files.len() > 4, "{}", files.len());
        let empty = TableBuilder::new(&outside.folder, "none", TableOptions::default()).unwrap();
        assert!(empty.finish().unwrap().is_empty());
        // A name that exists is not overwritten, and files that the failed builder made before are
        // deleted.
        let mut taken = TableBuilder::new(&outside.folder, "t", TableOptions::default()).unwrap();
        assert!(taken.put(b"a", b"").is_err());
        assert!(taken.put(b"b", b"").is_err());
        taken.abandon();
        assert!(outside.names().contains(&"t-00000.table".to_string()));
        let bad = TableOptions {
            block_bytes: 1000,
            ..TableOptions::default()
        };
        assert!(TableBuilder::new(&outside.folder, "t", bad).is_err());
    });
}

/// The store has data in memtables, level 0 and every level below, with snapshots before and after,
/// and range deletes beneath. The files overlap.
#[test]
fn ingested_tables_lie_above_everything() {
    with_seeds(6, |rt, seed| {
        let disk = Disk::new(&rt);
        let store = disk.open();
        let outside = Outside::new(&rt);
        let ks = store.default_keyspace().unwrap();
        let mut model = Model::new();
        let mut put = |ks: &Keyspace, i: u64, v: &str| {
            ks.put(&key(i), v.as_bytes()).unwrap();
            model.insert(key(i), v.into());
        };
        for i in 0..600 {
            put(&ks, i, "bottom");
        }
        ks.compact_range(None, None).unwrap();
        for i in (0..600).step_by(3) {
            put(&ks, i, "level 0");
        }
        ks.flush().unwrap();
        for i in (0..600).step_by(5) {
            put(&ks, i, "memtable");
        }
        ks.delete_range(&key(100), &key(200)).unwrap();
        model.retain(|k, _| !(key(100) <= *k && *k < key(200)));
        let before = store.snapshot();
        let old = model.clone();

        // The second file lies above the first one, and the third overlaps both in part. Deletes
        // hide older data.
        let mut files = outside.keys("a", (50..300).step_by(2), "first");
        files.extend(outside.keys("b", (150..400).step_by(3), "second"));
        let deletes: Vec<_> = (380..420).map(|i| (key(i), None)).collect();
        files.extend(outside.build("c", &deletes));
        let mut wanted = model.clone();
        wanted.extend((50..300).step_by(2).map(|i| (key(i), b"first".to_vec())));
        wanted.extend((150..400).step_by(3).map(|i| (key(i), b"second".to_vec())));
        wanted.retain(|k, _| !(key(380) <= *k && *k < key(420)));
        let how = [IngestMode::Link, IngestMode::Copy, IngestMode::Move][seed as usize % 3];
        let count = files.len() as u64;
        let report = if seed < 3 {
            store.ingest(&[(&ks, files)], how).unwrap()
        } else {
            // The keyspace is named twice: its lists are taken one after the other.
            let others = files.split_off(1);
            store.ingest(&[(&ks, files), (&ks, others)], how).unwrap()
        };
        assert_eq!(
            (report.table_count, report.run_count),
            (count, 3),
            "{report:?}"
        );
        assert_eq!(report.number, store.snapshot().number());
        assert_eq!(outside.names().is_empty(), how == IngestMode::Move);
        check(&ks, &wanted, "after the ingest");
        let at = |i: u64| ks.get_at(&before, &key(i)).unwrap();
        assert_eq!(
            (0..600)
                .filter(|i| at(*i) != old.get(&key(*i)).cloned())
                .count(),
            0
        );
        let after = store.snapshot();
        ks.put(&key(150), b"newer").unwrap();
        ks.delete_range(&key(160), &key(170)).unwrap();
        for _ in 0..2 {
            assert_eq!(ks.get(&key(150)).unwrap().unwrap(), b"newer");
            assert_eq!(ks.get(&key(162)).unwrap(), None);
            assert_eq!(ks.get_at(&after, &key(150)).unwrap().unwrap(), b"second");
            assert_eq!(ks.get_at(&after, &key(162)).unwrap().unwrap(), b"second");
            assert_eq!(ks.get_at(&before, &key(162)).unwrap(), None);
            ks.compact_range(None, None).unwrap();
        }
        wanted.insert(key(150), b"newer".to_vec());
        wanted.retain(|k, _| !(key(160) <= *k && *k < key(170)));
        check(&ks, &wanted, "compacted");
        let verified = store.verify(&mut |_| ()).unwrap();
        assert!(verified.is_sound(), "{:?}", verified.problems);
        check(
            &disk.lose_power().open().default_keyspace().unwrap(),
            // The writes after the ingest were not synced, but the flushed data is there.
            &wanted,
            "after power loss",
        );
    });
}

/// An ingest over several keyspaces: a reader sees all of it or nothing.
#[test]
fn an_ingest_over_keyspaces_is_seen_whole() {
    with_seeds(40, |rt, seed| {
        let disk = Disk::new(&rt);
        let store = disk.open();
        let outside = Outside::new(&rt);
        let (a, b) = two(&store);
        let rounds = 4u64;
        let done = Arc::new(AtomicBool::new(false));
        let readers: Vec<_> = (0..2)
            .map(|_| {
                let (store, a, b, done) = (store.clone(), a.clone(), b.clone(), done.clone());
                let read = move || {
                    let mut seen = 0;
                    while !done.load(Ordering::Acquire) {
                        let snapshot = store.snapshot();
                        let at = |ks: &Keyspace| ks.get_at(&snapshot, b"key000001").unwrap();
                        let (of_b, of_a) = (at(&b), at(&a));
                        assert_eq!(of_a, of_b, "half an ingest at {}", snapshot.number());
                        seen = seen.max(of_a.map_or(0, |v| v.len()));
                    }
                    seen
                };
                rt.spawn("reader", read).unwrap()
            })
            .collect();
        let writer = {
            let (a, done) = (a.clone(), done.clone());
            let write = move || {
                for i in 0.. {
                    if done.load(Ordering::Acquire) {
                        return;
                    }
                    a.put(&key(500 + i % 50), b"other").unwrap();
                }
            };
            rt.spawn("writer", write).unwrap()
        };
        for round in 1..=rounds {
            let value = "v".repeat(round as usize);
            let name = |x: &str| format!("{x}{round}");
            let mut of_a = outside.keys(&name("a"), 0..3, "beneath");
            of_a.extend(outside.keys(&name("b"), 1..2, &value));
            let of_b = outside.keys(&name("c"), 1..2, &value);
            store
                .ingest(&[(&a, of_a), (&b, of_b)], IngestMode::Link)
                .unwrap();
            if seed.is_multiple_of(2) {
                b.put(&key(900 + round), b"between").unwrap();
                b.flush().unwrap();
            }
        }
        done.store(true, Ordering::Release);
        for reader in readers {
            assert!(reader.join().unwrap() <= rounds as usize);
        }
        writer.join().unwrap();
        assert_eq!(a.get(&key(2)).unwrap().unwrap(), b"beneath");
        assert_eq!(a.get(&key(1)).unwrap(), b.get(&key(1)).unwrap());
        // The slots meet, so everything in level 0 can move down.
        store.flush().unwrap();
        store.wait_until_idle().unwrap();
        for name in ["a", "b"] {
            assert!(stats_of(&store, name).levels[0].run_count < 4, "{name}");
        }
    });
}

/// A crash at every call: the ingest is there in all keyspaces or in none, it is there if it was
/// acknowledged, and nothing is left over.
#[test]
fn a_crash_at_every_call_leaves_all_or_nothing() {
    with_seeds(3, |rt, seed| {
        let disk = Disk::new(&rt);
        let outside = Outside::new(&rt);
        let store = disk.open();
        let (a, b) = two(&store);
        put_synced(&a, b"before", b"1");
        store.sync_log().unwrap();
        let mut of_a = outside.keys("a", 0..20, "first");
        of_a.extend(outside.keys("b", 10..30, "second"));
        let of_b = outside.keys("c", 0..5, "b");
        disk.memory.start_journal();
        let how = [IngestMode::Copy, IngestMode::Link][seed as usize % 2];
        let report = store.ingest(&[(&a, of_a), (&b, of_b)], how).unwrap();
        disk.memory.mark("acknowledged");
        assert_eq!(report.run_count, 2);
        put_synced(&b, b"after", b"2");
        a.flush().unwrap();
        store.wait_until_idle().unwrap();
        let mut replay = disk.memory.replay();
        let (mut with, mut without) = (0, 0);
        for n in 0..=replay.len() {
            replay.advance_to(n);
            let acknowledged = replay
                .marks_so_far()
                .iter()
                .any(|m| m.label == "acknowledged");
            let images = [
                replay.kill_in(&rt),
                replay.crash_in(&rt, CrashPolicy::LoseUnsynced).0,
                replay.crash_in(&rt, CrashPolicy::KeepUnsynced).0,
                replay.crash_in(&rt, CrashPolicy::Seeded(seed << 32 | n)).0,
            ];
            for (i, image) in images.into_iter().enumerate() {
                let what = format!("call {n} of {}, image {i}", replay.len());
                let after = Disk::on(&rt, image);
                let store = after
                    .try_open(small())
                    .unwrap_or_else(|e| panic!("{what}: {e}"));
                let (a, b) = (store.keyspace("a").unwrap(), store.keyspace("b").unwrap());
                assert_eq!(a.get(b"before").unwrap().unwrap(), b"1", "{what}");
                let (of_a, of_b) = (state(&a).len() - 1, state(&b));
                let of_b = of_b.keys().filter(|k| k.starts_with(b"key")).count();
                match (of_a, of_b) {
                    (30, 5) => {
                        with += 1;
                        assert_eq!(a.get(&key(9)).unwrap().unwrap(), b"first", "{what}");
                        assert_eq!(a.get(&key(10)).unwrap().unwrap(), b"second", "{what}");
                    }
                    (0, 0) => {
                        without += 1;
                        assert!(!acknowledged, "{what}: acknowledged and lost");
                    }
                    halves => panic!("{what}: a part of it: {halves:?}"),
                }
                // Every table on the disk is named.
                let named: Vec<String> = store
                    .test_hooks()
                    .state()
                    .keyspaces
                    .values()
                    .flat_map(|k| k.version.tables().map(|(_, t)| t.name.clone()))
                    .collect();
                for name in tables_of(&after) {
                    assert!(named.contains(&name), "{what}: orphan {name}");
                }
                store.close().unwrap();
            }
        }
        assert!(with > 0 && without > 0, "{with} {without}");
    });
}

/// A storage call of the ingest fails: it returns the error, nothing has changed, nothing is left,
/// and the files still belong to the caller.
#[test]
fn a_failing_call_changes_nothing() {
    with_seeds(1, |rt, _| {
        for kind in [OpKind::Import, OpKind::Open, OpKind::Read, OpKind::Sync] {
            for nth in 0..4 {
                let disk = Disk::new(&rt);
                let outside = Outside::new(&rt);
                let store = disk.open();
                let (a, b) = two(&store);
                let of_a = outside.keys("a", 0..20, "a");
                let of_b = outside.keys("b", 0..5, "b");
                disk.faults.add(
                    Rule::on(kind, Fault::Fail(StorageErrorKind::Io))
                        .named("00000001-")
                        .nth(nth),
                );
                let result =
                    store.ingest(&[(&a, of_a.clone()), (&b, of_b.clone())], IngestMode::Move);
                // A fault that the ingest did not meet must not affect later reads.
                disk.faults.clear();
                if let Err(error) = result {
                    assert_eq!((state(&a).len(), state(&b).len()), (0, 0), "{error}");
                    assert_eq!(tables_of(&disk), Vec::<String>::new(), "{error}");
                    assert_eq!(outside.names().len(), 2, "{error}");
                    store
                        .ingest(&[(&a, of_a), (&b, of_b)], IngestMode::Move)
                        .unwrap();
                }
                assert_eq!((state(&a).len(), state(&b).len()), (20, 5));
                assert_eq!(outside.names().len(), 0);
            }
        }
    });
}

/// A table that was copied and not synced is linked, its sync fails, and the ingest is repeated.
/// The second sync of the same file had nothing left to write and succeeded, and a power loss took
/// what was acknowledged.
#[test]
fn a_link_whose_sync_failed_is_not_believed_later() {
    with_seeds(4, |rt, seed| {
        let disk = Disk::new(&rt);
        let outside = Outside::new(&rt);
        let store = disk.open();
        let (a, _) = two(&store);
        let table = outside.keys("a", 0..500, "a").remove(0);
        let bytes = outside.memory.read_small(table.name()).unwrap();
        let mut copies = (0..3).map(|i| {
            let name = format!("copy{i}.tbl");
            let file = outside.memory.create(Epoch::default(), &name).unwrap();
            file.append(&[&bytes]).unwrap();
            outside.folder.file(&name)
        });
        let how = [IngestMode::Link, IngestMode::Move][seed as usize % 2];
        let failures = 1 + seed / 2;
        let fail = Fault::Fail(StorageErrorKind::Io);
        disk.faults.add(
            Rule::on(OpKind::Sync, fail)
                .named("00000001-")
                .times(failures),
        );
        let file = copies.next().unwrap();
        let first = store.ingest(&[(&a, vec![file.clone()])], how);
        // A copy has bytes of its own. If they cannot be synced either, it is as if nothing had
        // been tried.
        assert_eq!(first.is_ok(), failures == 1, "{first:?}");
        if first.is_err() {
            assert_eq!(tables_of(&disk), Vec::<String>::new());
            store.ingest(&[(&a, vec![file])], how).unwrap();
        }
        let links = disk.faults.counts().of(OpKind::Import);
        store
            .ingest(&[(&a, vec![copies.next().unwrap()])], how)
            .unwrap();
        assert_eq!(
            disk.faults.counts().of(OpKind::Import),
            links,
            "linked again"
        );
        let back = disk.lose_power().open();
        let a = back.keyspace("a").unwrap();
        assert_eq!(state(&a).len(), 500, "an acknowledged ingest");
    });
}

/// A table written by hand: these entries, in one block or several.
fn raw_table(
    outside: &Outside,
    name: &str,
    keyspace: Option<u32>,
    entries: &[(&[u8], u64, Kind)],
) -> TableFile {
    let file = outside.memory.create(Epoch::default(), name).unwrap();
    let options = WriterOptions {
        block_size_bytes: 1 << 10,
        keyspace,
        ..WriterOptions::default()
    };
    let mut writer = TableWriter::new(file.clone(), options).unwrap();
    for (key, number, kind) in entries {
        writer.add(key, trailer(*number, *kind), b"value").unwrap();
    }
    writer.finish().unwrap();
    file.sync().unwrap();
    outside.folder.file(name)
}

/// A copy of a file with other bytes.
fn altered(outside: &Outside, of: &TableFile, name: &str, f: impl Fn(&mut Vec<u8>)) -> TableFile {
    let mut bytes = outside.memory.read_small(of.name()).unwrap();
    f(&mut bytes);
    let file = outside.memory.create(Epoch::default(), name).unwrap();
    file.append(&[&bytes]).unwrap();
    file.sync().unwrap();
    outside.folder.file(name)
}

#[test]
fn bad_files_are_refused_by_name() {
    with_seeds(1, |rt, _| {
        let disk = Disk::new(&rt);
        let outside = Outside::new(&rt);
        let store = disk.open();
        let (a, b) = two(&store);
        let good = outside.keys("good", 0..200, "value");
        let len = outside.memory.read_small(good[0].name()).unwrap().len();
        let put = Kind::Put;
        let mut bad: Vec<(TableFile, ErrorKind, &str)> = vec![
            (
                raw_table(&outside, "numbers", None, &[(b"a", 5, put), (b"b", 6, put)]),
                ErrorKind::InvalidArgument,
                "sequence numbers",
            ),
            (
                raw_table(
                    &outside,
                    "one.number",
                    None,
                    &[(b"a", 0, put), (b"b", 6, put)],
                ),
                ErrorKind::InvalidArgument,
                "sequence numbers",
            ),
            (
                raw_table(
                    &outside,
                    "versions",
                    None,
                    &[(b"a", 0, put), (b"a", 0, Kind::Delete)],
                ),
                ErrorKind::InvalidArgument,
                "more than once",
            ),
            (
                raw_table(&outside, "kinds", None, &[(b"a", 0, Kind::Merge)]),
                ErrorKind::Unsupported,
                "merge operands",
            ),
            (
                raw_table(&outside, "owned", Some(1), &[(b"a", 0, put)]),
                ErrorKind::InvalidArgument,
                "belongs to a store",
            ),
            (
                altered(&outside, &good[0], "truncated", |b| b.truncate(len - 100)),
                ErrorKind::Corruption,
                "truncated",
            ),
            (
                altered(&outside, &good[0], "short", |b| b.truncate(10)),
                ErrorKind::Corruption,
                "short",
            ),
            (
                altered(&outside, &good[0], "empty", |b| b.clear()),
                ErrorKind::Corruption,
                "empty",
            ),
            (
                altered(&outside, &good[0], "no.table", |b| b.fill(b'x')),
                ErrorKind::Corruption,
                "no.table",
            ),
            (
                outside.folder.file("missing"),
                ErrorKind::NotFound,
                "missing",
            ),
        ];
        // One flipped bit anywhere: in a block, filter, index, properties or footer.
        for i in 0..40 {
            let at = i * (len - 1) / 39;
            let name = format!("bit{at}");
            let file = altered(&outside, &good[0], &name, |b| b[at] ^= 1 << (i % 8));
            // A flipped version or an unknown feature is another kind of error; see below.
            bad.push((file, ErrorKind::Corruption, "bit"));
        }
        for (file, kind, text) in bad {
            // A good table precedes it, in another keyspace. Nothing of it is kept.
            let error = store
                .ingest(
                    &[(&b, good.clone()), (&a, vec![file.clone()])],
                    IngestMode::Move,
                )
                .expect_err(file.name());
            assert_eq!(error.kind(), kind, "{}: {error}", file.name());
            assert!(error.to_string().contains(text), "{}: {error}", file.name());
            assert!(error.to_string().contains(file.name()), "{error}");
            assert_eq!(
                (state(&a).len(), state(&b).len()),
                (0, 0),
                "{}",
                file.name()
            );
            assert_eq!(tables_of(&disk), Vec::<String>::new(), "{}", file.name());
        }
        // A later format version, with a valid checksum of the footer.
        let later = altered(&outside, &good[0], "later", |b| {
            let footer = b.len() - siltstone_table::footer::FOOTER_BYTES;
            // The version, and the checksum of everything up to it.
            b[footer + 48] += 1;
            let crc = crc32c::crc32c(&b[footer..footer + 52]);
            b[footer + 52..footer + 56].copy_from_slice(&crc.to_le_bytes());
        });
        let error = store
            .ingest(&[(&a, vec![later])], IngestMode::Link)
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        // The keyspace belongs to another store.
        let other = Disk::new(&rt).open();
        let foreign = other.default_keyspace().unwrap();
        let error = store
            .ingest(&[(&foreign, good.clone())], IngestMode::Link)
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert_eq!(
            store.ingest(&[(&a, vec![])], IngestMode::Move).unwrap(),
            IngestReport::default()
        );
        store.ingest(&[(&a, good)], IngestMode::Move).unwrap();
        assert_eq!(state(&a).len(), 200);
    });
}

/// Without room the ingest fails and leaves nothing. In `NoSpace` it is refused, and with room it
/// works again.
#[test]
fn a_full_disk() {
    with_seeds(4, |rt, seed| {
        let disk = Disk::new(&rt);
        let outside = Outside::new(&rt);
        let store = disk.open();
        let (a, _) = two(&store);
        a.put(b"k", b"v").unwrap();
        let pairs: Vec<_> = (0..3000).map(|i| (key(i), Some(vec![7; 100]))).collect();
        let files = outside.build("big", &pairs);
        disk.memory
            .set_capacity(Some(disk.memory.used_bytes() + 100_000));
        let error = store
            .ingest(&[(&a, files.clone())], IngestMode::Copy)
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
        assert_eq!(tables_of(&disk), Vec::<String>::new());
        a.put(b"k", b"still written").unwrap();
        if seed.is_multiple_of(2) {
            // Now the store itself has no room.
            disk.memory.set_capacity(Some(disk.memory.used_bytes()));
            while a.put(b"x", &[7; 2000]).is_ok() {}
            let few = outside.keys("few", 0..2, "v");
            let error = store.ingest(&[(&a, few)], IngestMode::Link).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
            assert_eq!(
                state(&a).keys().filter(|k| k.starts_with(b"key")).count(),
                0
            );
        }
        disk.memory.set_capacity(None);
        rt.sleep(Duration::from_secs(5));
        let how = if seed < 2 {
            IngestMode::Copy
        } else {
            IngestMode::Move
        };
        store.ingest(&[(&a, files)], how).unwrap();
        assert_eq!(
            state(&a).keys().filter(|k| k.starts_with(b"key")).count(),
            3000
        );
        let back = disk.lose_power().open().keyspace("a").unwrap();
        assert_eq!(back.get(&key(2999)).unwrap().unwrap(), [7; 100]);
    });
}

/// A drop, a close and other ingests during an ingest.
#[test]
fn ingests_beside_drops_and_closes_are_whole() {
    with_seeds(60, |rt, seed| {
        let disk = Disk::new(&rt);
        let outside = Outside::new(&rt);
        let store = disk.open();
        let (a, b) = two(&store);
        let of = |x: &str| {
            (
                outside.keys(&format!("{x}a"), 0..10, x),
                outside.keys(&format!("{x}b"), 0..10, x),
            )
        };
        disk.faults
            .add(Rule::on(OpKind::Import, Fault::Delay(Duration::from_millis(3))).for_good());
        let tasks: Vec<_> = ["1", "2"]
            .into_iter()
            .map(|x| {
                let (of_a, of_b) = of(x);
                let (store, a, b) = (store.clone(), a.clone(), b.clone());
                let ingest = move || store.ingest(&[(&a, of_a), (&b, of_b)], IngestMode::Link);
                rt.spawn("ingest", ingest).unwrap()
            })
            .collect();
        rt.sleep(Duration::from_millis(seed % 15));
        let expected = if seed.is_multiple_of(2) {
            store.drop_keyspace("b").unwrap();
            ErrorKind::KeyspaceDropped
        } else {
            store.clone().close().unwrap();
            ErrorKind::Closed
        };
        let mut done = 0;
        for task in tasks {
            match task.join().unwrap() {
                Ok(report) => {
                    assert_eq!(report.entry_count, 20);
                    done += 1;
                }
                Err(error) => assert_eq!(error.kind(), expected, "{error}"),
            }
        }
        let wanted = if done > 0 { 10 } else { 0 };
        let after = if seed.is_multiple_of(2) {
            assert_eq!(state(&a).len(), wanted);
            store.flush().unwrap();
            store.test_hooks().delete_obsolete();
            let most = 2 * done;
            assert!(tables_of(&disk).len() <= most, "{:?}", tables_of(&disk));
            disk.lose_power()
        } else {
            // Nothing is written to a store that was closed.
            disk.clone()
        };
        let store = after.open();
        assert_eq!(state(&store.keyspace("a").unwrap()).len(), wanted);
        if seed % 2 == 1 {
            assert_eq!(state(&store.keyspace("b").unwrap()).len(), wanted);
        }
    });
}

/// A store ingests what another one exports: the same keys and values, with ranges and snapshots.
#[test]
fn an_export_is_what_another_store_ingests() {
    with_seeds(3, |rt, seed| {
        let disk = Disk::new(&rt);
        let outside = Outside::new(&rt);
        let store = disk.open();
        let ks = store.default_keyspace().unwrap();
        let mut model = Model::new();
        let mut dice = Dice::new(seed);
        for round in 0..1500u64 {
            let i = dice.below(700);
            match dice.below(10) {
                0 => {
                    ks.delete(&key(i)).unwrap();
                    model.remove(&key(i));
                }
                1 => {
                    let end = i + dice.below(20);
                    ks.delete_range(&key(i), &key(end)).unwrap();
                    model.retain(|k, _| !(key(i) <= *k && *k < key(end)));
                }
                _ => {
                    let value = vec![round as u8; dice.below(600) as usize];
                    ks.put(&key(i), &value).unwrap();
                    model.insert(key(i), value);
                }
            }
            if dice.below(200) == 0 {
                ks.flush().unwrap();
            }
        }
        let snapshot = store.snapshot();
        let old = model.clone();
        ks.put(b"later", b"than the snapshot").unwrap();
        ks.delete(&key(1)).unwrap();
        let all = IterOptions::default();
        let built = ks
            .export_at(&snapshot, all, &outside.folder, "all")
            .unwrap();
        assert!(built.len() > 1);
        assert_eq!(
            built.iter().map(|t| t.entry_count).sum::<u64>(),
            old.len() as u64
        );
        assert_eq!(built.iter().map(|t| t.delete_count).sum::<u64>(), 0);
        let part = ks
            .export(
                IterOptions::range(key(100)..key(200)),
                &outside.folder,
                "part",
            )
            .unwrap();
        let files = |built: Vec<siltstone::BuiltTable>| built.into_iter().map(|t| t.file).collect();
        let other_disk = Disk::new(&rt);
        let other = other_disk.open();
        let (a, b) = two(&other);
        // Older data is visible where nothing was exported.
        b.put(b"mine", b"stays").unwrap();
        other
            .ingest(&[(&a, files(built)), (&b, files(part))], IngestMode::Move)
            .unwrap();
        check(&a, &old, "the snapshot");
        let mut wanted: Model = old
            .range(key(100)..key(200))
            .map(|(k, v)| (k.clone(), v.clone()))
            .collect();
        wanted.insert(b"mine".to_vec(), b"stays".to_vec());
        check(&b, &wanted, "the range");
        assert!(outside.names().is_empty());
        other.close().unwrap();
        check(
            &other_disk.lose_power().open().keyspace("a").unwrap(),
            &old,
            "opened again",
        );
        // An export that fails leaves nothing.
        let faults = siltstone_storage::FaultStorage::new(Arc::new(outside.memory.clone()), &rt);
        faults.add(Rule::on(OpKind::Sync, Fault::Fail(StorageErrorKind::Io)));
        let folder = TableFolder::on(Arc::new(faults), Epoch::default());
        assert!(
            ks.export(IterOptions::default(), &folder, "failed")
                .is_err()
        );
        assert!(outside.names().is_empty(), "{:?}", outside.names());
    });
}

/// Tables on local files, by their paths, between two stores.
#[test]
fn tables_are_ingested_by_their_paths() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let store = Store::open(path("one.store"), small()).unwrap();
    let ks = store.default_keyspace().unwrap();
    for i in 0..3000 {
        ks.put(&key(i), &[i as u8; 50]).unwrap();
    }
    let out = TableFolder::create(path("out")).unwrap();
    let built = ks.export(IterOptions::default(), &out, "all").unwrap();
    store.close().unwrap();
    let paths: Vec<_> = built
        .iter()
        .map(|t| path("out").join(t.file.name()))
        .collect();
    for (i, how) in [IngestMode::Link, IngestMode::Copy, IngestMode::Move]
        .into_iter()
        .enumerate()
    {
        let other = Store::open(path(&format!("other{i}.store")), small()).unwrap();
        let ks = other.default_keyspace().unwrap();
        let files = TableFile::at_paths(&paths).unwrap();
        let report = other.ingest(&[(&ks, files)], how).unwrap();
        assert_eq!((report.entry_count, report.left.len()), (3000, 0));
        assert_eq!(ks.iter().unwrap().count(), 3000);
        assert_eq!(paths.iter().all(|p| p.exists()), how != IngestMode::Move);
        other.close().unwrap();
        let again = Store::open(path(&format!("other{i}.store")), small()).unwrap();
        let ks = again.default_keyspace().unwrap();
        assert_eq!(ks.get(&key(2999)).unwrap().unwrap(), [2999u64 as u8; 50]);
    }
    assert!(TableFile::at_paths([path("nowhere").join("x")]).is_err());
}
