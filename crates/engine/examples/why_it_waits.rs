//! Gives a store too little memory, so that its writers wait, and shows what it reports about each
//! wait.
//! `cargo run --release --example why_it_waits -p siltstone [FOLDER]`; a test (`tests/examples.rs`)
//! runs it.
#![allow(missing_docs)] // `run` is public for that test.

use std::path::Path;

use siltstone::{Batch, KeyspaceOptions, Options, Result, Store, WriteOptions};

pub fn run(path: &Path) -> Result<()> {
    let options = Options {
        memtable_bytes: 256 << 10, // 64 MiB would be usual
        sealed_memtables_max: 1,
        background_tasks: 1,
        ..Options::default()
    };
    let store = Store::open(path, options)?;
    let data = store.default_keyspace()?;
    let write = |rounds: u32| -> Result<()> {
        let mut batch = Batch::new();
        for round in 0..rounds {
            batch.clear();
            for i in 0..200u32 {
                let key = (round * 200 + i).wrapping_mul(2_654_435_761);
                batch.put(&data, &key.to_be_bytes(), &[7; 200])?;
            }
            store.write(&batch, WriteOptions::default())?;
        }
        Ok(())
    };
    write(200)?;
    let stats = store.stats();
    for (cause, total) in &stats.delay_totals {
        println!("{cause:?}: {total:?}");
    }
    for delay in stats.delays.iter().rev().take(3) {
        println!("for example: {delay:?}");
    }
    for name in ["put", "commit", "flush", "compaction"] {
        if let Some(latency) = stats.latencies.get(name) {
            println!("{name}: {latency:?}");
        }
    }

    // Give this keyspace more memory while it is open. The next memtable uses it.
    data.set_options(&KeyspaceOptions {
        memtable_bytes: Some(8 << 20),
        sealed_memtables_max: Some(4),
        ..KeyspaceOptions::default()
    })?;
    write(200)?;
    println!(
        "write amplification: {:.2}",
        store.stats().write_amplification()
    );
    let keys = data.iter()?.count();
    assert_eq!(keys, 40_000);
    store.close()
}

fn main() -> Result<()> {
    let folder = std::env::args()
        .nth(1)
        .unwrap_or("why_it_waits.store".into());
    run(Path::new(&folder))
}
