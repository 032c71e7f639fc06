//! A guide, from a first store to moving a service from another engine. All of its code runs as
//! tests.
//!
//! 1. [A first store](first_store): open, put, get, scan, errors, close.
//! 2. [Keyspaces](keyspaces): separate maps with their own settings; numbers as keys.
//! 3. [Batches and snapshots](batches_and_snapshots): atomic writes, and reads of one moment.
//! 4. [Bulk data](bulk): loading tables that were built elsewhere, exports, checkpoints, freeing
//!    space.
//! 5. [Durability](durability): what each sync mode can lose, which errors stop a store, damage.
//! 6. [Tuning by measurement](tuning): which figures to look at, and which setting to change.
//! 7. [Watching a store](watching): statistics, events, and the `metrics` facade.
//! 8. [Moving from RocksDB](moving_from_rocksdb): a table of calls and settings, and what is
//!    missing.
//!
//! Longer programs are in `examples/` of this crate. They also run as tests.

pub mod first_store {
    #![doc = include_str!("first_store.md")]
}
pub mod keyspaces {
    #![doc = include_str!("keyspaces.md")]
}
pub mod batches_and_snapshots {
    #![doc = include_str!("batches_and_snapshots.md")]
}
pub mod bulk {
    #![doc = include_str!("bulk.md")]
}
pub mod durability {
    #![doc = include_str!("durability.md")]
}
pub mod tuning {
    #![doc = include_str!("tuning.md")]
}
pub mod watching {
    #![doc = include_str!("watching.md")]
}
pub mod moving_from_rocksdb {
    #![doc = include_str!("moving_from_rocksdb.md")]
}
