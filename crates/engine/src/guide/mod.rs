//! A guide, from a first store to moving a service from another engine. Every piece of code in it runs as a test.
//!
//! 1. [A first store](first_store): open, put, get, scan, errors, close.
//! 2. [Keyspaces](keyspaces): maps of their own, with settings of their own; keys that sort as you mean.
//! 3. [Batches and snapshots](batches_and_snapshots): all or nothing, and a moment that stays.
//! 4. [Bulk data](bulk): loading tables built outside, exporting, checkpoints, giving space back.
//! 5. [Durability](durability): what each sync mode loses, errors that stop a store and errors that do not, damage.
//! 6. [Tuning by measurement](tuning): which figures to look at, and which setting each of them asks for.
//! 7. [Watching a store](watching): statistics, events, and the `metrics` facade.
//! 8. [Moving from RocksDB](moving_from_rocksdb): a table of calls, and what there is none of.
//!
//! Longer programs are in `examples/` of this crate; each runs in the tests.

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
