//! A store that a command opened to change it. It is closed even if the command fails.
//!
//! A close records where the log ends, so that damage at the log's end is found later. A command
//! that fails must close the store as well as one that succeeds.

use std::ops::Deref;

use siltstone::{ErrorKind, Store};

use crate::failure::of_a_command;

/// The store; see the module.
pub struct Opened(Option<Store>);

impl Opened {
    /// Takes over the store, to close it.
    pub fn new(store: Store) -> Opened {
        Opened(Some(store))
    }

    /// Closes the store.
    ///
    /// # Errors
    /// As [`Store::close`].
    pub fn close(mut self) -> siltstone::Result<()> {
        self.0.take().map_or(Ok(()), Store::close)
    }
}

impl Deref for Opened {
    type Target = Store;

    fn deref(&self) -> &Store {
        self.0
            .as_ref()
            .expect("a store is there until it is closed")
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        // The command has failed, and its error says why. For a poisoned store that is the cause.
        if let Some(Err(error)) = self.0.take().map(Store::close)
            && error.kind() != ErrorKind::Poisoned
        {
            let error = of_a_command(&error);
            eprintln!("silt: closing the store: {error}");
        }
    }
}
