//! Range deletes and versions beside other engines in one run, A B A B, fresh folders every round.
//!
//! `cargo xtask bench deletes-bench --rounds 3`
//!
//! - `range`: one range delete covers all entries of a compacted store but the first and the last.
//!   A new iterator then moves from the first entry forward to the last one, or from the last one
//!   backward to the first.
//! - `reopened`: the same store is closed and opened before each of the figures. A seek into the
//!   middle of the range and the open itself are also measured.
//! - `versions`: a key between two others is written many times. Measured are `next` and `prev` to
//!   it, and over it by a reader of a snapshot that is older than all versions.
//! - `overlap`: range deletes that overlap are written, with a snapshot after each. Measured are a
//!   flush and a compaction.
//! - `memtable`: range deletes that overlap are written and not flushed. Measured are the writes,
//!   and gets.
//!
//! LevelDB and RocksDB are loaded at run time (`LEVELDB_LIBRARY`, `ROCKSDB_LIBRARY`). An engine
//! whose library is not found is left out, and so is LevelDB where range deletes are measured.
//! Settings are the defaults, without compression, with write buffers of 256 MiB.

mod c_database;
mod c_engine;
mod c_library;
mod siltstone_engine;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use c_database::OtherEngine;
use clap::Parser;

type Result<T> = std::result::Result<T, String>;

/// The write buffer of every engine, in bytes.
const MEMTABLE_BYTES: u64 = 256 << 20;

/// What the workloads call on an engine. Snapshots are numbered from 0, in the order in which they
/// are taken.
trait Engine {
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()>;
    /// False if the engine has no range deletes.
    fn delete_range(&mut self, start: &[u8], end: &[u8]) -> Result<bool>;
    fn get(&mut self, key: &[u8]) -> Result<bool>;
    fn snapshot(&mut self) -> Result<usize>;
    fn flush(&mut self) -> Result<()>;
    /// Compacts everything, and waits until no other compaction is due.
    fn compact(&mut self) -> Result<()>;
    /// A new iterator, at a snapshot or at the newest state. It is not positioned.
    fn iterator(&mut self, snapshot: Option<usize>) -> Result<Box<dyn Iter + '_>>;
}

/// An iterator.
trait Iter {
    fn seek(&mut self, key: &[u8]) -> Result<()>;
    fn seek_to_first(&mut self) -> Result<()>;
    fn seek_to_last(&mut self) -> Result<()>;
    fn next(&mut self) -> Result<()>;
    fn prev(&mut self) -> Result<()>;
    /// The key at which it is positioned; empty if it is not positioned.
    fn key(&mut self) -> Vec<u8>;
}

/// Range deletes and versions beside other engines.
#[derive(Parser)]
struct Arguments {
    /// Engines; those whose library is not found are left out.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "siltstone,rocksdb,leveldb"
    )]
    engines: Vec<String>,
    /// Workloads.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "range,reopened,versions,overlap,memtable"
    )]
    workloads: Vec<String>,
    /// Rounds.
    #[arg(long, default_value_t = 3)]
    rounds: u64,
    /// Entries under the range delete.
    #[arg(long, default_value_t = 10_000_000)]
    entries: u64,
    /// Versions of the one key.
    #[arg(long, default_value_t = 500_000)]
    versions: u64,
    /// Range deletes that overlap, with a snapshot each.
    #[arg(long, default_value_t = 3_000)]
    deletes: u64,
    /// Range deletes that overlap in a memtable.
    #[arg(long, default_value_t = 100_000)]
    memtable_deletes: u64,
    /// Folder for the stores.
    #[arg(long, default_value = "/tmp/deletes-bench")]
    folder: PathBuf,
}

/// Figures by name.
type Figures = Vec<(&'static str, f64)>;

fn key(i: u64) -> [u8; 16] {
    let mut key = [b'k'; 16];
    key[8..].copy_from_slice(&i.to_be_bytes());
    key
}

fn micros(from: Instant) -> f64 {
    from.elapsed().as_secs_f64() * 1e6
}

fn open(engine: &str, folder: &Path) -> Result<Option<Box<dyn Engine>>> {
    match engine {
        "siltstone" => siltstone_engine::open(folder).map(Some),
        "leveldb" => c_engine::open(OtherEngine::LevelDb, folder),
        "rocksdb" => c_engine::open(OtherEngine::RocksDb, folder),
        other => Err(format!(
            "there is no engine `{other}`; engines: siltstone, rocksdb, leveldb"
        )),
    }
}

/// Checks that an iterator is at the entry where it should be; otherwise the figures mean nothing.
fn check_at(iter: &mut dyn Iter, wanted: u64) -> Result<()> {
    match iter.key() == key(wanted) {
        true => Ok(()),
        false => Err(format!("the iterator is not at entry {wanted}")),
    }
}

/// The time of a walk from one end of the range delete to the other.
fn walk(engine: &mut dyn Engine, last: u64, forward: bool) -> Result<f64> {
    let start = Instant::now();
    let mut iter = engine.iterator(None)?;
    if forward {
        iter.seek_to_first()?;
        iter.next()?;
    } else {
        iter.seek_to_last()?;
        iter.prev()?;
    }
    let time = micros(start);
    check_at(&mut *iter, if forward { last } else { 0 })?;
    Ok(time)
}

/// Puts the entries 0 to `last`, and compacts them.
fn fill(engine: &mut dyn Engine, last: u64) -> Result<()> {
    for i in 0..=last {
        engine.put(&key(i), b"a value!")?;
    }
    engine.compact()
}

fn reopened(
    mut engine: Box<dyn Engine>,
    open: &dyn Fn() -> Result<Option<Box<dyn Engine>>>,
    arguments: &Arguments,
) -> Result<Option<Figures>> {
    let last = arguments.entries - 1;
    fill(&mut *engine, last)?;
    if !engine.delete_range(&key(1), &key(last))? {
        return Ok(None);
    }
    let middle = |engine: &mut dyn Engine| -> Result<f64> {
        let start = Instant::now();
        let mut iter = engine.iterator(None)?;
        iter.seek(&key(last / 2))?;
        let time = micros(start);
        check_at(&mut *iter, last)?;
        Ok(time)
    };
    let mut figures = Figures::new();
    let mut open_ms = Vec::new();
    let mut again = |engine: &mut Option<Box<dyn Engine>>| -> Result<()> {
        drop(engine.take());
        let start = Instant::now();
        *engine = open()?;
        open_ms.push(micros(start) / 1e3);
        Ok(())
    };
    let mut engine = Some(engine);
    let gone = || "the store does not open again".to_string();
    again(&mut engine)?;
    let store = &mut **engine.as_mut().ok_or_else(gone)?;
    figures.push(("a seek into the middle, us", middle(store)?));
    again(&mut engine)?;
    let store = &mut **engine.as_mut().ok_or_else(gone)?;
    figures.push(("forward, us", walk(store, last, true)?));
    figures.push(("forward again, us", walk(store, last, true)?));
    again(&mut engine)?;
    let store = &mut **engine.as_mut().ok_or_else(gone)?;
    figures.push(("backward, us", walk(store, last, false)?));
    figures.push(("the open, ms", median(&mut open_ms)));
    Ok(Some(figures))
}

fn range(engine: &mut dyn Engine, arguments: &Arguments) -> Result<Option<Figures>> {
    let last = arguments.entries - 1;
    fill(engine, last)?;
    let mut figures = Figures::new();
    // The first seeks open the tables, which the figures below are not to include.
    let start = Instant::now();
    let mut iter = engine.iterator(None)?;
    iter.seek_to_first()?;
    iter.seek_to_last()?;
    figures.push((
        "the first seeks of all, before the delete, us",
        micros(start),
    ));
    drop(iter);
    if !engine.delete_range(&key(1), &key(last))? {
        return Ok(None);
    }
    figures.push(("forward, us", walk(engine, last, true)?));
    figures.push(("backward, us", walk(engine, last, false)?));
    figures.push(("forward again, us", walk(engine, last, true)?));
    engine.flush()?;
    figures.push(("forward after a flush, us", walk(engine, last, true)?));
    figures.push(("backward after a flush, us", walk(engine, last, false)?));
    Ok(Some(figures))
}

fn versions(engine: &mut dyn Engine, arguments: &Arguments) -> Result<Option<Figures>> {
    engine.put(&key(1), b"first")?;
    engine.put(&key(3), b"last")?;
    let before = engine.snapshot()?;
    for i in 0..arguments.versions {
        engine.put(&key(2), &i.to_be_bytes())?;
    }
    let mut figures = Figures::new();
    let mut iter = engine.iterator(None)?;
    iter.seek_to_last()?;
    let start = Instant::now();
    iter.prev()?;
    figures.push(("prev to the key, us", micros(start)));
    check_at(&mut *iter, 2)?;
    let start = Instant::now();
    iter.prev()?;
    figures.push(("prev from the key, us", micros(start)));
    check_at(&mut *iter, 1)?;
    let start = Instant::now();
    iter.next()?;
    figures.push(("next to the key, us", micros(start)));
    let start = Instant::now();
    iter.next()?;
    figures.push(("next from the key, us", micros(start)));
    check_at(&mut *iter, 3)?;
    drop(iter);
    let mut iter = engine.iterator(Some(before))?;
    iter.seek_to_first()?;
    let start = Instant::now();
    iter.next()?;
    figures.push(("next over versions that are too new, us", micros(start)));
    check_at(&mut *iter, 3)?;
    let start = Instant::now();
    iter.prev()?;
    figures.push(("prev over versions that are too new, us", micros(start)));
    check_at(&mut *iter, 1)?;
    Ok(Some(figures))
}

/// Bytes of the files of a folder.
fn bytes_in(folder: &Path) -> u64 {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .filter_map(|entry| {
            let path = entry.path();
            let is_table = path
                .extension()
                .is_some_and(|e| e == "tbl" || e == "sst" || e == "ldb");
            match entry.metadata().ok()? {
                m if m.is_dir() => Some(bytes_in(&path)),
                m => is_table.then_some(m.len()),
            }
        })
        .sum()
}

fn overlap(
    engine: &mut dyn Engine,
    folder: &Path,
    arguments: &Arguments,
) -> Result<Option<Figures>> {
    let count = arguments.deletes;
    for i in (0..2 * count).step_by(2) {
        engine.put(&key(i), b"a value!")?;
    }
    engine.flush()?;
    for i in 0..count {
        if !engine.delete_range(&key(i), &key(count + i))? {
            return Ok(None);
        }
        engine.snapshot()?;
    }
    let mut figures = Figures::new();
    let start = Instant::now();
    engine.flush()?;
    figures.push(("flush, ms", micros(start) / 1e3));
    let start = Instant::now();
    engine.compact()?;
    figures.push(("compaction, ms", micros(start) / 1e3));
    figures.push(("tables, MB", bytes_in(folder) as f64 / 1e6));
    gets(engine, 2 * count, &mut figures)?;
    Ok(Some(figures))
}

/// The mean time of a get, of any of `keys` keys.
fn gets(engine: &mut dyn Engine, keys: u64, figures: &mut Figures) -> Result<()> {
    const GETS: u64 = 100_000;
    let start = Instant::now();
    for i in 0..GETS {
        engine.get(&key(i * 7919 % keys))?;
    }
    figures.push(("a get, us", micros(start) / GETS as f64));
    Ok(())
}

fn memtable(engine: &mut dyn Engine, arguments: &Arguments) -> Result<Option<Figures>> {
    let count = arguments.memtable_deletes;
    let mut figures = Figures::new();
    let start = Instant::now();
    for i in 0..count {
        if !engine.delete_range(&key(i), &key(count + i))? {
            return Ok(None);
        }
    }
    figures.push(("a range delete, us", micros(start) / count as f64));
    gets(engine, 2 * count, &mut figures)?;
    let start = Instant::now();
    engine.flush()?;
    figures.push(("flush, ms", micros(start) / 1e3));
    Ok(Some(figures))
}

fn run(engine: &str, workload: &str, arguments: &Arguments) -> Result<Option<Figures>> {
    let folder = arguments.folder.join(format!("{engine}-{workload}"));
    let clear = || match std::fs::remove_dir_all(&folder) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
            Err(format!("{}: {e}", folder.display()))
        }
        _ => Ok(()),
    };
    clear()?;
    std::fs::create_dir_all(&arguments.folder)
        .map_err(|e| format!("{}: {e}", arguments.folder.display()))?;
    let Some(mut store) = open(engine, &folder)? else {
        return Ok(None);
    };
    let figures = match workload {
        "reopened" => {
            let figures = reopened(store, &|| open(engine, &folder), arguments);
            clear()?;
            return figures.map_err(|e| format!("{engine} {workload}: {e}"));
        }
        "range" => range(&mut *store, arguments),
        "versions" => versions(&mut *store, arguments),
        "overlap" => overlap(&mut *store, &folder, arguments),
        "memtable" => memtable(&mut *store, arguments),
        other => Err(format!(
            "there is no workload `{other}`; \
             workloads: range, reopened, versions, overlap, memtable"
        )),
    };
    drop(store);
    clear()?;
    figures.map_err(|e| format!("{engine} {workload}: {e}"))
}

fn median(all: &mut [f64]) -> f64 {
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}

fn measure(arguments: &Arguments) -> Result<()> {
    let mut all: BTreeMap<(usize, usize, usize), Vec<f64>> = BTreeMap::new();
    let mut names: Vec<Vec<&str>> = vec![Vec::new(); arguments.workloads.len()];
    for round in 0..arguments.rounds {
        for (w, workload) in arguments.workloads.iter().enumerate() {
            for turn in 0..arguments.engines.len() {
                // Every other round runs the engines in reverse order.
                let e = match round % 2 {
                    0 => turn,
                    _ => arguments.engines.len() - 1 - turn,
                };
                let Some(figures) = run(&arguments.engines[e], workload, arguments)? else {
                    continue;
                };
                eprintln!(
                    "round {round} {workload} {}: {figures:?}",
                    arguments.engines[e]
                );
                for (name, value) in figures {
                    let n = names[w].iter().position(|known| *known == name);
                    let n = n.unwrap_or_else(|| {
                        names[w].push(name);
                        names[w].len() - 1
                    });
                    all.entry((w, n, e)).or_default().push(value);
                }
            }
        }
    }
    println!(
        "| median (lowest-highest) of {} | {} |",
        arguments.rounds,
        arguments.engines.join(" | ")
    );
    println!("| --- |{}", " --- |".repeat(arguments.engines.len()));
    for (w, workload) in arguments.workloads.iter().enumerate() {
        for (n, name) in names[w].iter().enumerate() {
            print!("| {workload}: {name} |");
            for e in 0..arguments.engines.len() {
                match all.get_mut(&(w, n, e)) {
                    Some(found) => {
                        let middle = median(found);
                        print!(
                            " {middle:.1} ({:.1}-{:.1}) |",
                            found[0],
                            found[found.len() - 1]
                        );
                    }
                    None => print!(" - |"),
                }
            }
            println!();
        }
    }
    Ok(())
}

fn main() -> ExitCode {
    match measure(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
