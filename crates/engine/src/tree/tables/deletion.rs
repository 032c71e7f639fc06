//! The deletion of tables that nothing holds any more.
//!
//! Invariant: destructors make no storage calls. The last holder of a handle only lets it go, and
//! the next sweep deletes the file.
//!
//! If one location of tables cannot be reached, the files of the others are deleted all the same.
//!
//! Threading: sweeps wait for each other, over I/O. Nothing else waits for a sweep.

use std::sync::Arc;

use siltstone_storage::{Epoch, Mutex, Runtime, StorageErrorKind};

use crate::formats::directories::Storages;
use crate::types::event::{Event, Events};

/// The location and the name of a table's file.
pub(super) type Place = (u32, String);

/// See the module.
pub(super) struct Deletion {
    storages: Storages,
    events: Arc<Events>,
    /// Files to be deleted by the next sweep.
    names: Mutex<Vec<Place>>,
    /// Held over a sweep.
    sweeping: Mutex<()>,
}

impl Deletion {
    pub(super) fn new(runtime: &Runtime, events: Arc<Events>, storages: &Storages) -> Deletion {
        Deletion {
            storages: storages.clone(),
            events,
            names: runtime.mutex(Vec::new()),
            sweeping: runtime.mutex(()),
        }
    }

    /// Lets the next sweep delete these files.
    pub(super) fn add(&self, mut names: Vec<Place>) {
        if !names.is_empty() {
            self.names.lock().append(&mut names);
        }
    }

    /// Deletes the files that were added and those of which `take_unheld` says that nothing holds
    /// them, unless `in_doubt` says afterwards that nothing may be deleted. Returns how many it
    /// deleted.
    pub(super) fn sweep(
        &self,
        epoch: Epoch,
        take_unheld: impl FnOnce() -> Vec<Place>,
        in_doubt: impl Fn() -> bool,
    ) -> u64 {
        let _sweeping = self.sweeping.lock();
        let mut names = std::mem::take(&mut *self.names.lock());
        names.append(&mut take_unheld());
        if in_doubt() {
            self.names.lock().append(&mut names);
            return 0;
        }
        let mut deleted = 0;
        let mut unreachable = Vec::new();
        for (location, name) in names {
            if unreachable.contains(&location) {
                // Each further call would wait for its own time limit. A later sweep or open
                // deletes the others.
                self.names.lock().push((location, name));
                continue;
            }
            // The folder's guard repeats a failed deletion.
            match self.storages.tables_at(location).delete(epoch, &name) {
                Ok(()) => {
                    deleted += 1;
                    self.events.emit(|| Event::TableDeleted { name });
                }
                Err(error) if error.kind == StorageErrorKind::Unreachable => {
                    unreachable.push(location);
                }
                Err(_) => {}
            }
        }
        deleted
    }
}
