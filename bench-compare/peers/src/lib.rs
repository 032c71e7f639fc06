//! Drivers of other engines for siltstone's benchmark: RocksDB, LevelDB, LMDB and fjall.
//!
//! Each engine is a feature of this crate, and all are on by default. The module of an engine says
//! what it promises, which settings it gets and why these are fair. In short: settings that an
//! engine has are as asked, all others are its defaults, except what every user of such a store
//! would set. Of the calls that an engine offers, its driver uses the fastest with the same
//! promise. `README.md` has all of this in tables, with what can be said against it.
//!
//! What the build needs, on Debian: `apt-get install g++ libclang-dev libleveldb-dev`, and for the
//! release library of RocksDB `maven` and `unzip`. In `bench-compare`, `cargo peers` fetches that
//! library once, and runs cargo with it:
//!
//! ```text
//! cargo peers test -p bench-peers
//! ```
//!
//! Invariant: a driver refuses a codec that the engine does not have, and a setting of the engine's
//! own that the engine does not have.
//!
//! Threading: as the traits of `siltstone_bench::engine` say.

use siltstone_bench::engine::Driver;

#[cfg(feature = "fjall")]
mod fjall;
#[cfg(feature = "leveldb")]
mod leveldb;
#[cfg(feature = "lmdb")]
mod lmdb;
#[cfg(any(feature = "fjall", feature = "leveldb", feature = "lmdb"))]
mod own;
#[cfg(feature = "rocksdb")]
mod rocksdb;

#[cfg(feature = "fjall")]
pub use fjall::FjallDriver;
#[cfg(feature = "leveldb")]
pub use leveldb::LevelDbDriver;
#[cfg(feature = "lmdb")]
pub use lmdb::LmdbDriver;
#[cfg(feature = "rocksdb")]
pub use rocksdb::{RocksDbDriver, RocksDbMerge, RocksDbRuns, RocksDbTable};

/// A driver of each engine that this build has.
pub fn drivers() -> Vec<Box<dyn Driver>> {
    vec![
        #[cfg(feature = "rocksdb")]
        Box::new(RocksDbDriver),
        #[cfg(feature = "leveldb")]
        Box::new(LevelDbDriver),
        #[cfg(feature = "lmdb")]
        Box::new(LmdbDriver),
        #[cfg(feature = "fjall")]
        Box::new(FjallDriver),
    ]
}
