//! Batches: which store they belong to, and which entries and writes are refused.
#![allow(clippy::disallowed_methods, clippy::disallowed_types)] // real threads and a real clock

use std::path::Path;
use std::sync::Arc;

use siltstone::{
    Batch, Components, Error, ErrorKind, Keyspace, Options, Result, Store, SyncMode, WriteOptions,
};
use siltstone_storage::{CrashPolicy, MemoryStorage, Runtime, Storage};

const OPTIONS: WriteOptions = WriteOptions::NO_SYNC;

/// A store in a folder with the keyspaces `names`, in this order.
fn store_with(folder: &Path, names: &[&str]) -> Store {
    let store = Store::open(folder, Options::default()).unwrap();
    for name in names {
        store.create_keyspace(name).unwrap();
    }
    store
}

#[track_caller]
fn assert_refused<T>(result: Result<T>, words: &[&str]) {
    let error: Error = result.err().expect("it was not refused");
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    let text = error.to_string();
    for word in words {
        assert!(text.contains(word), "{text} does not say {word}");
    }
    assert!(error.advice_text().is_some(), "{text}");
}

fn keys(keyspace: &Keyspace) -> Vec<Vec<u8>> {
    let pairs = keyspace.iter().unwrap();
    pairs.map(|pair| pair.unwrap().0).collect()
}

/// Asserts that every call that adds an entry refuses a keyspace of another store.
fn assert_adds_nothing_of(batch: &mut Batch, foreign: &Keyspace) {
    let before = batch.clone();
    let words = [foreign.name(), "opened separately"];
    assert_refused(batch.put(foreign, "k", "v"), &words);
    assert_refused(batch.delete(foreign, "k"), &words);
    assert_refused(batch.delete_range(foreign, "a", "b"), &words);
    // This range is empty and would add no entry, but it is refused too.
    assert_refused(batch.delete_range(foreign, "a", "a"), &words);
    assert_eq!(*batch, before, "a refused entry changed the batch");
}

/// Keyspaces of two stores may have the same number. A handle of one store wrote into the keyspace
/// of the other store that had its number.
#[test]
fn a_keyspace_of_another_store_is_refused() {
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let (left, right) = (
        store_with(folders[0].path(), &["users"]),
        store_with(folders[1].path(), &["orders"]),
    );
    let (users, orders) = (
        left.keyspace("users").unwrap(),
        right.keyspace("orders").unwrap(),
    );
    assert_eq!(users.id(), orders.id(), "the numbers must be equal");

    let mut batch = Batch::new();
    batch.put(&users, "ada", "1").unwrap();
    assert_adds_nothing_of(&mut batch, &orders);
    assert_refused(
        right.write(&batch, OPTIONS),
        &["another store", folders[1].path().to_str().unwrap()],
    );
    assert_eq!(keys(&orders), [] as [Vec<u8>; 0]);
    left.write(&batch, OPTIONS).unwrap();
    assert_eq!(keys(&users), [b"ada".to_vec()]);

    // After `clear` it can be filled for any store.
    batch.clear();
    batch.put(&orders, "17", "paid").unwrap();
    assert_adds_nothing_of(&mut batch, &users);
    assert_refused(left.write(&batch, OPTIONS), &["another store"]);
    right.write(&batch, OPTIONS).unwrap();
    assert_eq!(keys(&orders), [b"17".to_vec()]);
    assert_eq!(keys(&users), [b"ada".to_vec()]);
}

#[test]
fn a_batch_of_another_store_is_not_appended() {
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let (left, right) = (
        store_with(folders[0].path(), &["users"]),
        store_with(folders[1].path(), &["orders"]),
    );
    let users = left.keyspace("users").unwrap();
    let orders = right.keyspace("orders").unwrap();
    let (mut one, mut other) = (Batch::new(), Batch::new());
    one.put(&users, "ada", "1").unwrap();
    other.put(&orders, "17", "paid").unwrap();
    let before = one.clone();
    assert_refused(one.append(&other), &["different stores"]);
    assert_eq!(one, before);

    // A batch without entries belongs to no store, and then to that of its first entry.
    one.append(&Batch::new()).unwrap();
    let mut empty = Batch::new();
    left.write(&empty, OPTIONS).unwrap();
    right.write(&empty, OPTIONS).unwrap();
    empty.append(&other).unwrap();
    assert_refused(left.write(&empty, OPTIONS), &["another store"]);
    right.write(&empty, OPTIONS).unwrap();
    // An empty range adds no entry, so the batch still belongs to no store.
    let mut none = Batch::new();
    none.delete_range(&users, "a", "a").unwrap();
    none.put(&orders, "18", "open").unwrap();
    right.write(&none, OPTIONS).unwrap();
    assert_eq!(keys(&orders), [b"17".to_vec(), b"18".to_vec()]);
}

fn copy_folder(from: &Path, to: &Path) {
    std::fs::create_dir(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

/// A copied folder has the store id of its original, so the id in the manifest does not distinguish
/// them. Keyspaces that were created after the copy have the same number in both, but are
/// different.
#[test]
fn a_copy_a_checkpoint_and_a_reopened_store_are_other_stores() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let store = store_with(&path("original"), &["users"]);
    store.checkpoint(path("checkpoint")).unwrap();
    store.close().unwrap();
    copy_folder(&path("original"), &path("copy"));

    let original = store_with(&path("original"), &["sessions"]);
    let sessions = original.keyspace("sessions").unwrap();
    let mut batch = Batch::new();
    batch.put(&sessions, "s1", "ada").unwrap();
    for name in ["copy", "checkpoint"] {
        let other = store_with(&path(name), &["invoices"]);
        let invoices = other.keyspace("invoices").unwrap();
        assert_eq!(invoices.id(), sessions.id(), "the numbers must be equal");
        assert_adds_nothing_of(&mut batch, &invoices);
        assert_refused(other.write(&batch, OPTIONS), &["another store"]);
        assert_eq!(keys(&invoices), [] as [Vec<u8>; 0]);
        other.close().unwrap();
    }
    original.write(&batch, OPTIONS).unwrap();

    // Handles are valid until the store that they come from is closed, and so are batches.
    original.close().unwrap();
    let again = Store::open(path("original"), Options::default()).unwrap();
    assert_refused(again.write(&batch, OPTIONS), &["an earlier open"]);
    let sessions = again.keyspace("sessions").unwrap();
    assert_adds_nothing_of(&mut batch, &sessions);
    batch.clear();
    batch.put(&sessions, "s2", "bob").unwrap();
    again.write(&batch, OPTIONS).unwrap();
    assert_eq!(keys(&sessions), [b"s1".to_vec(), b"s2".to_vec()]);
}

/// All handles of one open belong to one store.
#[test]
fn handles_of_one_open_fill_one_batch() {
    let folder = tempfile::tempdir().unwrap();
    let store = store_with(folder.path(), &["a", "b"]);
    let second = store.clone();
    let mut batch = Batch::with_capacity(100);
    batch.put(&store.keyspace("a").unwrap(), "k", "1").unwrap();
    let b = second.keyspace("b").unwrap();
    batch.put(&b.clone(), "k", "2").unwrap();
    batch
        .put(&second.create_keyspace("c").unwrap(), "k", "3")
        .unwrap();
    let mut more = Batch::new();
    more.put(b.store().keyspace("a").as_ref().unwrap(), "l", "4")
        .unwrap();
    batch.append(&more).unwrap();
    assert_eq!((batch.len(), more.len()), (4, 1));
    second.write(&batch, OPTIONS).unwrap();
    assert_eq!(
        keys(&store.keyspace("a").unwrap()),
        [b"k".to_vec(), b"l".to_vec()]
    );
    assert_eq!(
        store.keyspace("c").unwrap().get("k").unwrap().unwrap(),
        b"3"
    );
}

/// Several threads may write one batch, several times, and it does not change. The larger batch
/// never becomes part of another writer's group, and is not copied.
#[test]
fn one_batch_is_written_by_many_threads() {
    let folder = tempfile::tempdir().unwrap();
    let store = store_with(folder.path(), &["a"]);
    let a = store.keyspace("a").unwrap();
    for value_bytes in [10, 3 << 20] {
        let mut batch = Batch::new();
        batch.put(&a, "first", vec![1; value_bytes]).unwrap();
        batch.put(&a, "second", vec![2; value_bytes]).unwrap();
        let before = batch.clone();
        let number = store.stats().published;
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..5 {
                        store.write(&batch, OPTIONS).unwrap();
                    }
                });
            }
        });
        assert_eq!(batch, before);
        // Each write took two sequence numbers, one for each entry.
        assert_eq!(store.stats().published - number, 40);
        assert_eq!(a.get("second").unwrap().unwrap(), vec![2; value_bytes]);
    }
}

/// A batch without entries returned before the sync that was asked for, so earlier writes were not
/// durable.
#[test]
fn a_synced_write_without_entries_syncs_what_came_before() {
    let runtime = Runtime::threads();
    let memory = MemoryStorage::new(&runtime);
    let open = |memory: &MemoryStorage| {
        let storage: Arc<dyn Storage> = Arc::new(memory.clone());
        let options = Options {
            sync: SyncMode::Never,
            ..Options::default()
        };
        Store::open_with(Components::on(storage, runtime.clone()), options).unwrap()
    };
    let store = open(&memory);
    let keyspace = store.default_keyspace().unwrap();
    let synced = WriteOptions::SYNC;
    let writes: [&dyn Fn() -> Result<()>; 3] = [
        &|| store.write(&Batch::new(), synced),
        &|| {
            let mut batch = Batch::new();
            batch.delete_range(&keyspace, "x", "x")?;
            store.write(&batch, synced)
        },
        &|| keyspace.delete_range_with("x", "x", synced),
    ];
    for (n, write) in writes.iter().enumerate() {
        keyspace.put(format!("before {n}"), "").unwrap();
        let syncs = store.stats().counter("log_sync_count");
        store.write(&Batch::new(), OPTIONS).unwrap();
        assert_eq!(store.stats().counter("log_sync_count"), syncs);
        write().unwrap();
        assert_eq!(store.stats().counter("log_sync_count"), syncs + 1, "{n}");
        let found = open(&memory.crash(CrashPolicy::LoseUnsynced));
        let found = keys(&found.default_keyspace().unwrap());
        assert_eq!(found.len(), n + 1, "write {n}");
    }
}

/// Several threads take the same keys, beside other writers: each value goes to one of them. A get
/// followed by a delete would return some values twice.
#[test]
fn a_value_is_taken_once() {
    let folder = tempfile::tempdir().unwrap();
    let store = store_with(folder.path(), &["tasks"]);
    let tasks = store.keyspace("tasks").unwrap();
    const TASKS: u32 = 3000;
    for task in 0..TASKS {
        tasks.put(task.to_be_bytes(), task.to_string()).unwrap();
    }
    tasks.flush().unwrap();
    for task in (0..TASKS).step_by(3) {
        tasks.put(task.to_be_bytes(), task.to_string()).unwrap();
    }
    let taken: Vec<Vec<u8>> = std::thread::scope(|scope| {
        let takers: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(|| {
                    let tasks = (0..TASKS).filter_map(|n| tasks.take(n.to_be_bytes()).unwrap());
                    tasks.collect::<Vec<_>>()
                })
            })
            .collect();
        for n in 0..500u32 {
            tasks.put(format!("other {n}"), "").unwrap();
        }
        let all = takers.into_iter().flat_map(|taker| taker.join().unwrap());
        all.collect()
    });
    assert_eq!(taken.len(), TASKS as usize);
    let distinct: std::collections::BTreeSet<_> = taken.iter().collect();
    assert_eq!(distinct.len(), TASKS as usize);
    assert_eq!(keys(&tasks).len(), 500);

    // Nothing is written for a key that does not exist.
    let number = store.stats().published;
    assert_eq!(tasks.take("nobody").unwrap(), None);
    assert_eq!(store.stats().published, number);
    let error = tasks.take(vec![0; 65_536]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    store.drop_keyspace("tasks").unwrap();
    let error = tasks.take("other 1").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::KeyspaceDropped, "{error}");
}
