//! Loads sorted data without the log: several threads build tables, one ingest adds them to two
//! keyspaces, and a part is exported into another store.
#![allow(missing_docs)]
// `run` is public for that test.
// A user's threads are those of the standard library; the engine's own come from its runtime.
#![allow(clippy::disallowed_methods)]

use std::path::Path;

use siltstone::{
    BuiltTable, IngestMode, IterOptions, Options, Result, Store, TableBuilder, TableFile,
    TableFolder, TableOptions,
};

const ROWS: u64 = 40_000;
const THREADS: u64 = 4;

/// Builds rows of a table of users, and an index of them by name.
fn build(folder: &TableFolder, part: u64) -> Result<(Vec<BuiltTable>, Vec<BuiltTable>)> {
    let ids = part * ROWS / THREADS..(part + 1) * ROWS / THREADS;
    let mut rows = TableBuilder::new(folder, &format!("rows-{part}"), TableOptions::default())?;
    for id in ids.clone() {
        rows.put(&id.to_be_bytes(), format!("user {id}").as_bytes())?;
    }
    let mut names: Vec<(String, u64)> = ids.map(|id| (format!("user {id}"), id)).collect();
    names.sort(); // a builder takes only ascending keys
    let mut index = TableBuilder::new(folder, &format!("index-{part}"), TableOptions::default())?;
    for (name, id) in names {
        index.put(name.as_bytes(), &id.to_be_bytes())?;
    }
    Ok((rows.finish()?, index.finish()?))
}

fn files(tables: Vec<BuiltTable>) -> impl Iterator<Item = TableFile> {
    tables.into_iter().map(|table| table.file)
}

pub fn run(path: &Path) -> Result<()> {
    let folder = TableFolder::create(path.join("built"))?;
    let built: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|part| {
                let folder = &folder;
                scope.spawn(move || build(folder, part))
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().expect("a builder's thread does not panic"))
            .collect()
    });

    let store = Store::open(path.join("users.store"), Options::default())?;
    let rows = store.open_keyspace("rows")?;
    let index = store.open_keyspace("index")?;
    let (mut row_files, mut index_files) = (Vec::new(), Vec::new());
    for part in built {
        let (r, i) = part?;
        row_files.extend(files(r));
        index_files.extend(files(i)); // these overlap each other: they become several runs
    }
    let report = store.ingest(
        &[(&rows, row_files), (&index, index_files)],
        IngestMode::Move,
    )?;
    println!(
        "{} tables, {} entries, {} bytes ingested at sequence number {}",
        report.table_count, report.entry_count, report.file_bytes, report.number
    );
    let id = index.get(b"user 31415")?.expect("it was loaded");
    assert_eq!(rows.get(&id)?, Some(b"user 31415".to_vec()));

    // Copy a part of it to another store.
    let out = TableFolder::create(path.join("exported"))?;
    let range = IterOptions::range(1_000u64.to_be_bytes()..2_000u64.to_be_bytes());
    let tables = rows.export(range, &out, "thousand")?;
    let other = Store::open(path.join("other.store"), Options::default())?;
    let there = other.open_keyspace("rows")?;
    other.ingest(&[(&there, files(tables).collect())], IngestMode::Link)?;
    assert_eq!(there.iter()?.count(), 1_000);
    other.close()?;
    store.close()
}

fn main() -> Result<()> {
    let folder = std::env::args().nth(1).unwrap_or("bulk_load".into());
    run(Path::new(&folder))
}
