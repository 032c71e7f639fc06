//! Storages and runtimes: a store's interface to the outside world, and the arguments of
//! [`crate::tools::check`], [`crate::tools::repair`] and [`crate::Components`].
//!
//! [`FileStorage`] is a folder; [`MemoryStorage`] is one in memory, for tests. [`Runtime::threads`]
//! is the runtime of the operating system. These types are defined in the crate
//! `siltstone_storage`, on which programs need not depend.
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
    Access, Capabilities, Epoch, FileStorage, Lease, MemoryStorage, ObjectMeta, RatedStorage,
    Rates, ReadFile, ReadRange, Runtime, SharedLease, Storage, StorageError, StorageErrorKind,
    WriteFile,
};
