//! A store that a command opened. It is closed even if the command fails.
//!
//! A close records where the log ends, so that damage at the log's end is found later. A command
//! that fails must close the store as well as one that succeeds. If parts of the store are on
//! devices, the close also ends the sessions with them.

use std::ops::Deref;
use std::sync::Arc;

use siltstone::{ErrorKind, Store};
use siltstone_device::{Device, DeviceStore};

use crate::failure::of_a_command;

/// The store; see the module.
pub struct Opened(Option<Inner>);

enum Inner {
    Local(Store),
    Device(DeviceStore),
}

impl Inner {
    fn close(self) -> siltstone::Result<()> {
        match self {
            Inner::Local(store) => store.close(),
            Inner::Device(store) => store.close(),
        }
    }
}

impl From<Store> for Opened {
    fn from(store: Store) -> Opened {
        Opened(Some(Inner::Local(store)))
    }
}

impl From<DeviceStore> for Opened {
    fn from(store: DeviceStore) -> Opened {
        Opened(Some(Inner::Device(store)))
    }
}

impl Opened {
    /// Whether parts of the store are on devices, or its compactions are lent to some.
    pub fn is_on_device(&self) -> bool {
        matches!(self.0, Some(Inner::Device(_)))
    }

    /// The sessions with these devices.
    pub fn devices(&self) -> &[Arc<Device>] {
        match &self.0 {
            Some(Inner::Device(store)) => store.devices(),
            _ => &[],
        }
    }

    /// Closes the store.
    ///
    /// # Errors
    /// As [`Store::close`].
    pub fn close(mut self) -> siltstone::Result<()> {
        self.0.take().map_or(Ok(()), Inner::close)
    }
}

impl Deref for Opened {
    type Target = Store;

    fn deref(&self) -> &Store {
        match &self.0 {
            Some(Inner::Local(store)) => store,
            Some(Inner::Device(store)) => store,
            None => unreachable!("a store is there until it is closed"),
        }
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        // The command has failed, and its error says why. For a poisoned store that is the cause.
        if let Some(Err(error)) = self.0.take().map(Inner::close)
            && error.kind() != ErrorKind::Poisoned
        {
            let error = of_a_command(&error);
            eprintln!("silt: closing the store: {error}");
        }
    }
}
