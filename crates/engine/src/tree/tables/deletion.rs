//! The deletion of tables that nothing holds any more.
//!
//! Invariant: destructors make no storage calls. The last holder of a handle only lets it go, and
//! the next sweep deletes the file.
//!
//! Each location of tables is swept by itself, so if one cannot be reached or hangs, the files of
//! the others are deleted all the same.
//!
//! Threading: sweeps of one location wait for each other, over I/O. Nothing else waits for a sweep.

use std::sync::Arc;

use siltstone_storage::{Epoch, Mutex, Runtime, StorageErrorKind};

use crate::formats::directories::Storages;
use crate::types::event::{Event, Events};

/// The location and the name of a table's file.
pub(super) type FileAt = (u32, String);

/// See the module.
pub(super) struct Deletion {
    storages: Storages,
    events: Arc<Events>,
    /// Files to be deleted by the next sweep of their location.
    names: Mutex<Vec<FileAt>>,
    /// Held over a sweep of each location.
    sweeping: [Mutex<()>; 2],
}

impl Deletion {
    pub(super) fn new(runtime: &Runtime, events: Arc<Events>, storages: &Storages) -> Deletion {
        Deletion {
            storages: storages.clone(),
            events,
            names: runtime.mutex(Vec::new()),
            sweeping: [runtime.mutex(()), runtime.mutex(())],
        }
    }

    /// Takes the names of files at a location that were added.
    fn take_added(&self, location: u32) -> Vec<FileAt> {
        let mut names = self.names.lock();
        let all = std::mem::take(&mut *names).into_iter();
        let (there, others) = all.partition(|(at, _)| *at == location);
        *names = others;
        there
    }

    /// Lets the next sweep delete these files.
    pub(super) fn add(&self, mut names: Vec<FileAt>) {
        if !names.is_empty() {
            self.names.lock().append(&mut names);
        }
    }

    /// Deletes the files at a location that were added and those of which `take_unheld` says that nothing holds
    /// them, unless `in_doubt` says afterwards that nothing may be deleted. Returns how many it
    /// deleted.
    pub(super) fn sweep(
        &self,
        location: u32,
        epoch: Epoch,
        take_unheld: impl FnOnce() -> Vec<FileAt>,
        in_doubt: impl Fn() -> bool,
    ) -> u64 {
        let _sweeping = self.sweeping[location as usize].lock();
        let mut names = self.take_added(location);
        names.append(&mut take_unheld());
        if in_doubt() {
            self.names.lock().append(&mut names);
            return 0;
        }
        let mut deleted = 0;
        let mut is_unreachable = false;
        for (location, name) in names {
            if is_unreachable {
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
                    is_unreachable = true;
                }
                Err(_) => {}
            }
        }
        deleted
    }
}
