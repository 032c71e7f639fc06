//! Storages and runtimes: what a store asks of the outside world, and what [`crate::check`],
//! [`crate::repair`] and [`crate::Components`] take.
//!
//! [`FileStorage`] is a folder, [`MemoryStorage`] one in memory, for tests. [`Runtime::threads`] is
//! the runtime of the operating system. The types are defined in the crate `siltstone_storage`,
//! which programs need not name.
//!
//! ```
//! use std::sync::Arc;
//!
//! use siltstone::check::{CheckStorages, check};
//! use siltstone::storage::{FileStorage, MemoryStorage, Runtime, Storage};
//! use siltstone::{Components, Options, Store};
//!
//! # let folder = tempfile::tempdir().unwrap();
//! let path = folder.path().join("a.store");
//! Store::open(&path, Options::default())?.close()?;
//! let storage = FileStorage::open_existing(&path)?;
//! assert!(check(&CheckStorages::on(&storage), &mut |_| {})?.is_sound());
//!
//! // A store without files.
//! let runtime = Runtime::threads();
//! let memory: Arc<dyn Storage> = Arc::new(MemoryStorage::new(&runtime));
//! let store = Store::open_with(Components::on(memory, runtime), Options::default())?;
//! store.default_keyspace()?.put("wren", "9 g")?;
//! store.close()?;
//! # siltstone::Result::Ok(())
//! ```

#[doc(inline)]
pub use siltstone_storage::files::ignore_file_size_signal;
#[doc(inline)]
pub use siltstone_storage::{
    Access, Capabilities, Epoch, FileStorage, Lease, MemoryStorage, ObjectMeta, ReadFile,
    ReadRange, Runtime, SharedLease, Storage, StorageError, StorageErrorKind, WriteFile,
};
