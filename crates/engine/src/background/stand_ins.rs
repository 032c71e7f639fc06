//! Stand-ins: a worker whose call at the second location of tables hangs cannot do other work, so
//! another worker takes over its role until the call returns.
//!
//! Invariant: a worker that hangs has one stand-in, which ends by itself after the hang.
//!
//! Threading: the maintenance task starts them.

use std::sync::Arc;

use siltstone_storage::{JoinHandle, Mutex};

use super::slots::Slots;
use super::worker::worker;
use crate::services::parts::Parts;

/// See the module.
pub(super) struct StandIns {
    parts: Parts,
    slots: Option<Arc<Slots>>,
    /// The tasks of the store, which a close waits for.
    handles: Arc<Mutex<Vec<JoinHandle<()>>>>,
}

impl StandIns {
    pub(super) fn new(
        parts: &Parts,
        slots: Option<Arc<Slots>>,
        handles: Arc<Mutex<Vec<JoinHandle<()>>>>,
    ) -> StandIns {
        StandIns {
            parts: parts.clone(),
            slots,
            handles,
        }
    }

    /// Starts a worker for each one that hangs and has no stand-in.
    pub(super) fn step(&self) {
        let jobs = &self.parts.jobs;
        jobs.abandon_hanging();
        for (hanging, role) in jobs.without_stand_in() {
            let (jobs, slots) = (jobs.clone(), self.slots.clone());
            let run = move || worker(&jobs, slots.as_ref(), role, Some(hanging));
            let env = &self.parts.env;
            let mut handles = self.handles.lock();
            // A close takes the handles after it has said that it closes.
            if env.is_closing() {
                return;
            }
            match env.runtime().spawn("silt-stand-in", run) {
                Ok(handle) => {
                    // Those of earlier stand-ins would gather here.
                    handles.retain(|handle| !handle.is_finished());
                    handles.push(handle);
                }
                // The other workers do the work.
                Err(error) => {
                    tracing::warn!(%error, "no worker takes over from one that hangs");
                }
            }
        }
    }
}
