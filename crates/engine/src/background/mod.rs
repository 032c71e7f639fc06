//! The store's own tasks: they are started here, and ended by [`close`].
//!
//! What it is: `background_tasks` workers ([`worker`]) take work from the schedule. With two or
//! more, the first takes flushes only, so that a long compaction never keeps a memtable from its
//! flush. One task does the maintenance ([`maintenance`]). The sync that `SyncMode::Interval`
//! promises has to be done in time, so it is a task of its own ([`crate::wal::interval`]).
//!
//! Invariants: tasks hold the parts that they need, and end by themselves once the store is being
//! closed; nothing waits for a task while it holds a lock that the task may want. Every wait here
//! has a bound, so a missed notification costs a delay, never a hang.
//!
//! Threading: runtime tasks.

mod close;
mod maintenance;
mod panics;
mod worker;

use std::sync::Arc;

use panics::guarded;
use siltstone_storage::{JoinHandle, Mutex};

use crate::services::parts::Parts;
use crate::stats::published::{self, OwnFile};
use crate::types::error::{Error, ErrorKind, Result};

/// The tasks of an open store.
pub(crate) struct Background {
    parts: Parts,
    own_file: Arc<OwnFile>,
    handles: Mutex<Vec<JoinHandle<()>>>,
}

impl Background {
    /// Of a store that is opened for reading: there are no tasks.
    pub(crate) fn without_tasks(parts: &Parts) -> Background {
        Background {
            parts: parts.clone(),
            own_file: Arc::default(),
            handles: parts.env.runtime().mutex(Vec::new()),
        }
    }

    /// Starts the tasks.
    ///
    /// # Errors
    /// `Io` if the process may have no more threads. The store is closed then.
    pub(crate) fn start(parts: &Parts) -> Result<Background> {
        published::forget_inherited(&parts.env);
        let background = Background::without_tasks(parts);
        match background.spawn_all() {
            Ok(()) => Ok(background),
            Err(error) => {
                // Those that have begun are waited for.
                background.stop();
                Err(error)
            }
        }
    }

    fn spawn_all(&self) -> Result<()> {
        let parts = &self.parts;
        let workers = parts.env.options().background_tasks;
        for i in 0..workers {
            let jobs = parts.jobs.clone();
            let flush_only = i == 0 && workers > 1;
            self.spawn(&format!("silt-worker-{i}"), move || {
                worker::worker(&jobs, flush_only);
            })?;
        }
        let (all, own_file) = (parts.clone(), self.own_file.clone());
        self.spawn("silt-maintenance", move || {
            maintenance::maintain(&all, &own_file);
        })?;
        let Some(interval) = parts.wal.sync_interval() else {
            return Ok(());
        };
        let wal = parts.wal.clone();
        self.spawn("silt-sync", move || {
            let run = || crate::wal::interval::run(&wal, interval);
            // The sync that it was in is of unknown outcome.
            if let Err(error) = guarded(wal.env(), || "the sync of the log".into(), run) {
                let error = error.with_kind(ErrorKind::Poisoned);
                wal.env().health().poison(&error);
            }
        })
    }

    fn spawn(&self, name: &str, run: impl FnOnce() + Send + 'static) -> Result<()> {
        let spawned = self.parts.env.runtime().spawn(name, run);
        let handle = spawned.map_err(|e| {
            Error::new(
                ErrorKind::Io,
                format!("a background task could not be started: {e}"),
            )
            .advice("raise the process's limit of threads")
        })?;
        self.handles.lock().push(handle);
        Ok(())
    }
}
