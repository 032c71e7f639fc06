//! LevelDB and RocksDB. LevelDB maps its tables by default on 64-bit hosts (up to 1000 files) and
//! does not verify checksums on reads; RocksDB verifies them and has two background jobs. Both sync
//! each table that they finish, as we do, and do not sync their logs.

use std::path::Path;
use std::time::{Duration, Instant};

use bench_compare::c_engine::{Database, OtherEngine, Settings, TableSettings};

use super::{CACHE_BYTES, Engine, FILTER_BITS, MEMTABLE_BYTES, Result};
use crate::os;

struct CEngine {
    engine: OtherEngine,
    database: Database,
}

/// Size of LevelDB's files; its default of 2 MiB unless `LEVELDB_FILE_MIB` says otherwise.
fn file_bytes() -> Option<usize> {
    std::env::var("LEVELDB_FILE_MIB")
        .ok()?
        .parse::<usize>()
        .ok()
        .map(|mib| mib << 20)
}

pub(super) fn open(engine: OtherEngine, path: &Path) -> Result<Box<dyn Engine>> {
    let settings = Settings {
        memtable_bytes: MEMTABLE_BYTES,
        tables: Some(TableSettings {
            cache_bytes: CACHE_BYTES,
            filter_bits: FILTER_BITS,
            file_bytes: file_bytes(),
        }),
    };
    let database = Database::open(engine, &engine.library()?, path, &settings)?;
    Ok(Box::new(CEngine { engine, database }))
}

impl CEngine {
    /// Whether RocksDB says that work is pending or under way; LevelDB cannot be asked.
    fn is_busy(&self) -> bool {
        let counts = [
            c"rocksdb.mem-table-flush-pending",
            c"rocksdb.num-running-flushes",
            c"rocksdb.compaction-pending",
            c"rocksdb.num-running-compactions",
        ];
        counts.iter().any(|name| self.database.number(name) > 0)
    }
}

impl Engine for CEngine {
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.database.put(key, value)
    }

    fn delete(&mut self, key: &[u8]) -> Result<()> {
        self.database.delete(key)
    }

    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        self.database.get(key, value)
    }

    fn scan(&mut self, key: Option<&[u8]>, count: u64, pair: &mut Vec<u8>) -> Result<(u64, u64)> {
        let (mut seen, mut bytes) = (0, 0);
        let mut iter = self.database.iterator(None);
        match key {
            Some(key) => iter.seek(key),
            None => iter.seek_to_first(),
        }
        while seen < count
            && let Some((key, value)) = iter.entry()
        {
            pair.clear();
            pair.extend_from_slice(key);
            pair.extend_from_slice(value);
            bytes += pair.len() as u64;
            seen += 1;
            if seen < count {
                // SAFETY: the iterator is positioned at the entry that was read above.
                unsafe { iter.next() };
            }
        }
        iter.check()?;
        Ok((seen, bytes))
    }

    /// Idle when the process has used next to no processor time for a third of a second, and
    /// RocksDB says that nothing is pending. The caller subtracts that time (`os::QUIET`).
    fn wait_until_idle(&mut self) -> Result<()> {
        let mut quiet_since = Instant::now();
        let mut cpu = os::cpu_seconds();
        while quiet_since.elapsed() < os::QUIET {
            std::thread::sleep(Duration::from_millis(10));
            let now = os::cpu_seconds();
            if now - cpu > 0.0007 || self.is_busy() {
                quiet_since = Instant::now();
            }
            cpu = now;
        }
        Ok(())
    }

    /// RocksDB's C interface does not count them.
    fn table_bytes_written(&mut self) -> u64 {
        // "Level  Files Size(MB) Time(sec) Read(MB) Write(MB)", a line a level; megabytes of 2^20.
        let stats = self.database.property(c"leveldb.stats");
        let mib: f64 = stats
            .lines()
            .map(|line| line.split_whitespace().collect::<Vec<_>>())
            .filter(|columns| columns.len() == 6 && columns[0].parse::<u32>().is_ok())
            .filter_map(|columns| columns[5].parse::<f64>().ok())
            .sum();
        (mib * (1 << 20) as f64) as u64
    }

    fn describe(&mut self) -> String {
        let (stats, heading_lines) = match self.engine {
            OtherEngine::LevelDb => (self.database.property(c"leveldb.stats"), 3),
            OtherEngine::RocksDb => (self.database.property(c"rocksdb.levelstats"), 0),
        };
        stats
            .lines()
            .skip(heading_lines)
            .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
            .collect::<Vec<_>>()
            .join("; ")
    }
}
