//! The project's own engine, with default options: they are what the other engines are set to.

use std::path::Path;

use siltstone::{IterOptions, Keyspace, Options, Store};

use super::{CACHE_BYTES, Engine, FILTER_BITS, MEMTABLE_BYTES, Result};

struct Siltstone {
    store: Store,
    keyspace: Keyspace,
}

pub(super) fn open(path: &Path) -> Result<Box<dyn Engine>> {
    let options = Options {
        memtable_bytes: MEMTABLE_BYTES as u64,
        block_cache_bytes: CACHE_BYTES as u64,
        bloom_bits_per_key: FILTER_BITS.into(),
        ..Options::default()
    };
    let store = Store::open(path, options).map_err(|e| e.to_string())?;
    let keyspace = store.default_keyspace().map_err(|e| e.to_string())?;
    Ok(Box::new(Siltstone { store, keyspace }))
}

impl Engine for Siltstone {
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.keyspace.put(key, value).map_err(|e| e.to_string())
    }

    fn delete(&mut self, key: &[u8]) -> Result<()> {
        self.keyspace.delete(key).map_err(|e| e.to_string())
    }

    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        self.keyspace
            .get_into(key, value)
            .map_err(|e| e.to_string())
    }

    fn scan(&mut self, key: Option<&[u8]>, count: u64, pair: &mut Vec<u8>) -> Result<(u64, u64)> {
        let walk = |pair: &mut Vec<u8>| {
            let mut cursor = self.keyspace.cursor(IterOptions::default())?;
            match key {
                Some(key) => cursor.seek(key)?,
                None => cursor.seek_to_first()?,
            }
            let (mut seen, mut bytes) = (0, 0);
            while cursor.valid() && seen < count {
                pair.clear();
                pair.extend_from_slice(cursor.key());
                pair.extend_from_slice(cursor.value());
                bytes += pair.len() as u64;
                seen += 1;
                if seen < count {
                    cursor.next()?;
                }
            }
            Ok((seen, bytes))
        };
        walk(pair).map_err(|e: siltstone::Error| e.to_string())
    }

    fn wait_until_idle(&mut self) -> Result<()> {
        self.store.wait_until_idle().map_err(|e| e.to_string())
    }

    fn table_bytes_written(&mut self) -> u64 {
        let stats = self.store.stats();
        stats.counter("flush_out_bytes") + stats.counter("compaction_out_bytes")
    }

    fn describe(&mut self) -> String {
        let stats = self.store.stats();
        let mut text = String::new();
        for keyspace in &stats.keyspaces {
            for (number, level) in keyspace
                .levels
                .iter()
                .enumerate()
                .filter(|(_, l)| l.table_count > 0)
            {
                text += &format!(
                    "level {number}: {} runs, {} tables, {:.1} MB; ",
                    level.run_count,
                    level.table_count,
                    level.file_bytes as f64 / 1e6
                );
            }
        }
        for name in ["flush", "compaction", "put"] {
            if let Some(l) = stats.latencies.get(name) {
                text += &format!(
                    "{name}: {} times, mean {} us, max {} us; ",
                    l.count,
                    l.mean_ns / 1000,
                    l.max_ns / 1000
                );
            }
        }
        for (cause, total) in &stats.delay_totals {
            text += &format!("delay {cause:?}: {total:?}; ");
        }
        text + &format!("{:?}; memory {:?}", stats.counters, stats.memory)
    }
}
