//! Storage and runtime of siltstone: everything that the store asks of the outside world, behind
//! traits and a runtime layer, so that whole runs can be replayed from a seed and every fault can
//! be injected.

#![deny(unsafe_code)]

mod direct;
pub mod error;
pub mod fault;
pub mod files;
mod huge_slice;
pub mod link;
pub mod map;
pub mod memory;
pub mod name;
pub mod op;
#[doc(hidden)]
pub mod planted;
mod prefetch;
mod prng;
pub mod rated;
mod sigbus;
pub mod storage;
mod thread_number;
pub mod token_bucket;
pub mod wrapped;

pub use direct::DirectStorage;
pub use error::{Result, StorageError, StorageErrorKind};
pub use fault::FaultStorage;
pub use files::FileStorage;
pub use huge_slice::HugeSlice;
pub use map::{Map, MapOwner, MapView};
pub use memory::{CrashPolicy, CrashReport, JournalReplay, Mark, MemoryStorage};
pub use op::{CallCounts, OpKind};
pub use prefetch::{prefetch_address, prefetch_line};
pub use rated::{RatedStorage, Rates};
pub use storage::{
    Access, Capabilities, DirectFile, Epoch, InjectedFault, Lease, ObjectMeta, ReadByDescriptor,
    ReadFile, ReadPurpose, ReadRange, SharedLease, Storage, WriteByDescriptor, WriteFile,
    copy_object,
};
pub use thread_number::thread_number;
pub mod runtime;
pub mod sim;
pub use runtime::{Condvar, Instant, JoinHandle, Mutex, MutexGuard, Runtime};
