//! Backs up a store while it is written, checks and reads the backup, and repairs a damaged copy of
//! it.
//! `cargo run --example backup -p siltstone [FOLDER]`; a test (`tests/examples.rs`) runs it.
#![allow(missing_docs)]
// `run` is public for that test.
// A user's threads are those of the standard library; the engine's own come from its runtime.
#![allow(clippy::disallowed_methods)]

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use siltstone::check::{CheckStorages, check};
use siltstone::repair::{RepairOptions, RepairSource, repair};
use siltstone::storage::{FileStorage, Runtime, Storage};
use siltstone::{Options, Result, Store};

fn folder(path: &Path) -> Result<Arc<dyn Storage>> {
    Ok(Arc::new(FileStorage::open_or_create(path)?))
}

pub fn run(path: &Path) -> Result<()> {
    let store = Store::open(path.join("live.store"), Options::default())?;
    let orders = store.open_keyspace("orders")?;
    for id in 0..20_000u32 {
        orders.put(&id.to_be_bytes(), format!("order {id}").as_bytes())?;
    }

    // Writers continue while the checkpoint is made. It has the state of the whole store at one
    // moment.
    let done = AtomicBool::new(false);
    let backup = path.join("backup.store");
    std::thread::scope(|scope| -> Result<()> {
        let writer = scope.spawn(|| -> Result<u32> {
            let mut id = 20_000u32;
            while !done.load(Ordering::Relaxed) && id < 1_000_000 {
                orders.put(&id.to_be_bytes(), format!("order {id}").as_bytes())?;
                id += 1;
            }
            Ok(id)
        });
        let report = store.checkpoint(&backup);
        done.store(true, Ordering::Relaxed);
        let written = writer.join().expect("the writer does not panic")?;
        println!("{:?} while {written} orders were written", report?);
        Ok(())
    })?;
    store.close()?;

    // The backup is a store: every checksum and every invariant holds, and it can be read without
    // being changed.
    let report = check(&CheckStorages::on(folder(&backup)?.as_ref()), &mut |_| {})?;
    assert!(report.is_sound(), "{report:?}");
    let old = Store::open_read_only(&backup, Options::default())?;
    let count = old.keyspace("orders")?.iter()?.count();
    assert!(count >= 20_000);
    old.close()?;

    // Overwrite the middle of its largest table. (The file is a link to the live store's, so copy
    // it first, as one does with a backup.)
    let copy = path.join("copy.store");
    std::fs::create_dir_all(&copy).expect("a folder");
    let mut largest = (0, copy.clone());
    for entry in std::fs::read_dir(&backup).expect("the backup") {
        let from = entry.expect("an entry").path();
        let to = copy.join(from.file_name().expect("a name"));
        let bytes = std::fs::copy(&from, &to).expect("a copy");
        largest = largest.max((bytes, to));
    }
    let (bytes, file) = largest;
    let mut content = std::fs::read(&file).expect("the file");
    let middle = bytes as usize / 2;
    content[middle..middle + 100].fill(0xaa);
    std::fs::write(&file, content).expect("written");

    // Repair makes a new store from everything with a valid checksum, and reports what was lost.
    let repaired = path.join("repaired.store");
    std::fs::create_dir_all(&repaired).expect("a folder");
    let report = repair(
        &RepairSource::on(folder(&copy)?),
        &folder(&repaired)?,
        &Runtime::threads(),
        &RepairOptions::default(),
        &mut |_| {},
    )?;
    println!("{report}");
    let store = Store::open(&repaired, Options::default())?;
    let left = store.keyspace("orders")?.iter()?.count();
    assert!(left < count && left + 2_000 > count, "{left} of {count}");
    println!("{left} of {count} orders could be read");
    store.close()
}

fn main() -> Result<()> {
    let folder = std::env::args().nth(1).unwrap_or("backup".into());
    run(Path::new(&folder))
}
