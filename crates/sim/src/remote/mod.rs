//! A device and its hosts as processes of a simulated run (`docs/rfc/0009-device.md`).
//!
//! [`Machine`] is the device's machine. It starts the device's process, and restarts it after it
//! was killed or has lost power, with what the storages contain then. [`Tap`] is the link. It sees
//! each message, and can end the connection or kill one of the two sides at any message. [`Ghost`]
//! repeats requests that were made long ago. [`Watch`] sees every change of the device's folders,
//! and whether it was made under a lease that is still held.
//!
//! Threading: shared by the processes of a run. States are protected by std mutexes that are never
//! held at a point where tasks can be switched, so a killed process holds none of them.

mod ghost;
mod machine;
mod tap;
mod watch;

pub use ghost::Ghost;
pub use machine::{Machine, MachineOptions, draw_losses};
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

/// Locks a mutex that is never held at a point where tasks can be switched.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
