//! A device and its hosts as processes of a simulated run (`docs/rfc/0009-device.md`).
//!
//! [`Machine`] is the device's machine: it starts the device's process, and starts it again after
//! it was killed, on what the storages have then. [`Tap`] is the link: it sees each message, and
//! can end the connection or kill one of the two sides at any of them. [`Ghost`] makes requests
//! again that were made long ago. [`Watch`] sees every change of the device's folders, and whether
//! it was made under a lease that is still held.
//!
//! Threading: shared by the processes of a run. States are under std mutexes that are not held over
//! a point, so no process that is killed holds one.

mod ghost;
mod machine;
mod tap;
mod watch;

pub use ghost::Ghost;
pub use machine::{Machine, MachineOptions};
pub use tap::{Act, Moment, Tap, name_of};
pub use watch::{Watch, WatchedFolders};

use std::sync::{Mutex, MutexGuard, PoisonError};

use siltstone_storage::link::Address;

/// The address of the device.
///
/// # Panics
/// Never: it is a valid address.
pub fn address() -> Address {
    "memory:device".parse().expect("an address")
}

/// A lock that is never held over a point.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
