//! Measures what fixed and dynamic targets of levels cost while keys are overwritten at random:
//! bytes written by flushes and compactions for each byte of the user, and bytes of tables for each
//! byte of live data.
//!
//! `cargo run --release -p siltstone --example amplification [times overwritten] [keys]`

use std::sync::Arc;

use siltstone::storage::{MemoryStorage, Runtime};
use siltstone::{Components, LevelTargets, Options, Store};

/// Bytes of a value.
const VALUE_BYTES: usize = 112;

fn main() -> siltstone::Result<()> {
    let number = |i, default| {
        let text = std::env::args().nth(i);
        text.and_then(|n| n.parse::<u64>().ok()).unwrap_or(default)
    };
    let (times, keys) = (number(1, 3), number(2, 1 << 18));
    println!(
        "| targets | written a byte | most space a live byte | mean space \
         | levels in use at the end |"
    );
    println!("| --- | --- | --- | --- | --- |");
    for level_targets in [LevelTargets::Fixed, LevelTargets::Dynamic] {
        let runtime = Runtime::threads();
        let storage = Arc::new(MemoryStorage::new(&runtime));
        let options = Options {
            memtable_bytes: 512 << 10,
            table_bytes: 256 << 10,
            level1_bytes: 1 << 20,
            level_factor: 8,
            log_segment_bytes: 1 << 20,
            log_bytes_max: 16 << 20,
            level_targets,
            ..Options::default()
        };
        let store = Store::open_with(Components::on(storage, runtime), options)?;
        let ks = store.default_keyspace()?;
        let value = [7; VALUE_BYTES];
        let live = (keys * (8 + VALUE_BYTES as u64 + 12)) as f64;
        let mut x = 1u64;
        let (mut most, mut sum, mut samples) = (0.0f64, 0.0, 0u64);
        for i in 0..keys * (1 + times) {
            // Every key is written once, then random ones.
            let key = if i < keys {
                i.wrapping_mul(0x9e37_79b9_7f4a_7c15) % keys
            } else {
                x = x
                    .wrapping_mul(6364136223846793005)
                    .wrapping_add(1442695040888963407);
                (x >> 33) % keys
            };
            ks.put(&key.to_be_bytes(), &value)?;
            if i % 4096 == 4095 {
                store.wait_until_idle()?;
                if i >= keys {
                    let stats = store.stats();
                    let raw: u64 = stats.keyspaces[0].levels.iter().map(|l| l.raw_bytes).sum();
                    let space = raw as f64 / live;
                    most = most.max(space);
                    (sum, samples) = (sum + space, samples + 1);
                }
            }
        }
        store.flush()?;
        store.wait_until_idle()?;
        let stats = store.stats();
        let written = stats.counter("flush_out_bytes") + stats.counter("compaction_out_bytes");
        let levels: Vec<usize> = stats.keyspaces[0]
            .levels
            .iter()
            .enumerate()
            .filter(|(_, l)| l.table_count > 0)
            .map(|(i, _)| i)
            .collect();
        println!(
            "| {level_targets:?} | {:.1} | {most:.2} | {:.2} | {levels:?} |",
            written as f64 / stats.counter("user_bytes") as f64,
            sum / samples as f64,
        );
        store.close()?;
    }
    Ok(())
}
