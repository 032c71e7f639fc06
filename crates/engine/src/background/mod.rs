//! The background tasks of a store. They are started here and ended by [`close`].
//!
//! `background_tasks` workers ([`worker`]) take work from the schedule. If there are two or more,
//! the first one takes only flushes, so that long compactions never delay a flush. One worker more
//! takes flushes with `stall_policy = "redirect"`, and with `"adoc"` maintenance starts more
//! workers for compactions ([`adoc`]). One task does the maintenance ([`maintenance`]), and one
//! prepares what leaders need ([`supplies`]), and one leaves values in the log while flushes are
//! behind ([`log_values`]). A store with a second location of tables has a task
//! for its files ([`second_location`]), and workers that stand in for those that hang there
//! ([`stand_ins`]). The sync that `SyncMode::Interval` promises has a
//! deadline, so it has a task of its own ([`crate::wal::interval`]).
//!
//! Invariants: a task holds the parts that it needs, and ends by itself once the store is being
//! closed. Nobody waits for a task while holding a lock that the task may want. Workers, the
//! placing task and maintenance wait for at most a second, so a missed notification only costs a
//! delay. The following waits have no limit:
//! - The sync task waits for a record. [`crate::wal::interval`] says why it misses none.
//! - A slot waits for the calls that its executor left in progress.
//! - A close waits for such calls, for jobs on other sides that are being verified or installed,
//!   and for ingests in flight, because nothing may change once the lease is released. It does not
//!   wait for a task that hangs at the second location of tables: such a task can only make and
//!   delete files that nothing names, whose names no other open uses.
//!
//! Threading: runtime tasks.

mod adoc;
mod close;
mod log_values;
mod maintenance;
mod panics;
mod second_location;
mod slots;
mod stand_ins;
mod supplies;
mod worker;

use std::sync::Arc;

use adoc::Tuner;
use panics::guarded;
use siltstone_storage::{JoinHandle, Mutex};
use slots::Slots;
use stand_ins::StandIns;

use crate::jobs::deferral::has_task;
use crate::jobs::work::Role;
use crate::services::parts::Parts;
use crate::stats::stats_file::{self, OwnFile};
use crate::types::error::{Error, ErrorKind, Result};

/// The tasks of an open store.
pub(crate) struct Background {
    parts: Parts,
    own_file: Arc<OwnFile>,
    /// The slots of the sides besides the host; `None` if there are no such sides.
    slots: Option<Arc<Slots>>,
    handles: Arc<Mutex<Vec<JoinHandle<()>>>>,
    /// The task of the second location, which may hang.
    second_location: Mutex<Option<JoinHandle<()>>>,
}

impl Background {
    /// The value for a store that is open for reading, which has no tasks.
    pub(crate) fn without_tasks(parts: &Parts) -> Background {
        Background {
            parts: parts.clone(),
            own_file: Arc::default(),
            slots: None,
            handles: Arc::new(parts.env.runtime().mutex(Vec::new())),
            second_location: parts.env.runtime().mutex(None),
        }
    }

    /// Starts the tasks.
    ///
    /// # Errors
    /// `Io` if the process may not start more threads. The store is then closed.
    pub(crate) fn start(parts: &Parts) -> Result<Background> {
        stats_file::delete_inherited(&parts.env);
        let has_others = parts.jobs.runner().sides.has_others();
        let background = Background {
            slots: has_others.then(|| Slots::new(&parts.jobs)),
            ..Background::without_tasks(parts)
        };
        match background.spawn_all() {
            Ok(()) => Ok(background),
            Err(error) => {
                // This ends the tasks that were started.
                background.stop();
                Err(error)
            }
        }
    }

    fn spawn_all(&self) -> Result<()> {
        let parts = &self.parts;
        let workers = parts.env.options().background_tasks;
        let roles = (0..workers).map(|i| match i {
            0 if workers > 1 => Role::Flushes,
            _ => Role::All,
        });
        let roles = roles.chain([Role::MoreFlushes]);
        for (i, role) in roles.enumerate() {
            let jobs = parts.jobs.clone();
            let slots = self.slots.clone();
            self.spawn(&format!("silt-worker-{i}"), move || {
                worker::worker(&jobs, slots.as_ref(), role, None);
            })?;
        }
        if let Some(slots) = self.slots.clone() {
            self.spawn("silt-place", move || slots.place())?;
        }
        let (all, own_file) = (parts.clone(), self.own_file.clone());
        let tuner = Tuner::new(parts, self.slots.clone(), self.handles.clone());
        let stand_ins = StandIns::new(parts, self.slots.clone(), self.handles.clone());
        self.spawn("silt-maintenance", move || {
            maintenance::maintain(&all, &own_file, tuner, stand_ins);
        })?;
        let all = parts.clone();
        self.spawn("silt-supplies", move || supplies::supply(&all))?;
        if has_task(&parts.env) {
            let all = parts.clone();
            self.spawn("silt-log-values", move || log_values::serve(&all))?;
        }
        if parts.env.locations().exists() {
            let all = parts.clone();
            let task = self.task("silt-location", move || second_location::serve(&all))?;
            *self.second_location.lock() = Some(task);
        }
        let Some(interval) = parts.wal.sync_interval() else {
            return Ok(());
        };
        let wal = parts.wal.clone();
        self.spawn("silt-sync", move || {
            let run = || crate::wal::interval::run(&wal, interval);
            // It is unknown whether the sync that panicked has succeeded.
            if let Err(error) = guarded(wal.env(), || "the sync of the log".into(), run) {
                let error = error.with_kind(ErrorKind::Poisoned);
                wal.env().health().poison(&error);
            }
        })
    }

    fn spawn(&self, name: &str, run: impl FnOnce() + Send + 'static) -> Result<()> {
        let handle = self.task(name, run)?;
        self.handles.lock().push(handle);
        Ok(())
    }

    fn task(&self, name: &str, run: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>> {
        let spawned = self.parts.env.runtime().spawn(name, run);
        spawned.map_err(|e| {
            Error::new(
                ErrorKind::Io,
                format!("a background task could not be started: {e}"),
            )
            .advice("raise the process's limit of threads")
        })
    }
}
