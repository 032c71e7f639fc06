//! What the benchmark calls on an engine.
//!
//! Threading: one thread calls; engines have background threads of their own.

mod c_engine;
mod siltstone;

use std::path::Path;

use bench_compare::c_engine::OtherEngine;

/// A failure with its text: the driver prints it and gives up.
pub type Result<T> = std::result::Result<T, String>;

/// The memtable (or write buffer) of every engine, in bytes.
pub const MEMTABLE_BYTES: usize = 64 << 20;
/// The block cache of every engine, in bytes.
pub const CACHE_BYTES: usize = 64 << 20;
/// Filter bits a key of every engine.
pub const FILTER_BITS: u32 = 10;

/// An open store: log on, no fsync of it, no compression.
pub trait Engine {
    /// Sets a key.
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()>;
    /// Deletes a key.
    fn delete(&mut self, key: &[u8]) -> Result<()>;
    /// Copies the value of a key into `value` (cleared first); false if there is none.
    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool>;
    /// With a new iterator: seeks `key` (or the first one) and copies up to `count` pairs, one
    /// after the other, over `pair`. Returns the number of pairs and the sum of their bytes.
    fn scan(&mut self, key: Option<&[u8]>, count: u64, pair: &mut Vec<u8>) -> Result<(u64, u64)>;
    /// Waits until no flush and no compaction runs or is due.
    fn wait_until_idle(&mut self) -> Result<()>;
    /// Bytes written to tables since open, by the engine's own count.
    fn table_bytes_written(&mut self) -> u64;
    /// The shape of the store, for people.
    fn describe(&mut self) -> String;
}

/// Opens (or creates) a store of the named engine in `path`.
pub fn open(engine: &str, path: &Path) -> Result<Box<dyn Engine>> {
    match engine {
        "siltstone" => siltstone::open(path),
        "leveldb" => c_engine::open(OtherEngine::LevelDb, path),
        "rocksdb" => c_engine::open(OtherEngine::RocksDb, path),
        other => Err(format!(
            "there is no engine `{other}`; engines: siltstone, leveldb, rocksdb"
        )),
    }
}
