//! Flushes and compactions: how they are reserved, which sides run them, how they are built, run
//! and installed, and how a caller waits for them.
//!
//! Nothing here depends on the public API.

mod attempt;
mod begun;
pub(crate) mod build;
mod carry_over;
mod choice;
mod costs;
pub(crate) mod cpu;
pub(crate) mod deferral;
pub(crate) mod ended;
pub(crate) mod flush;
mod flush_pauses;
pub(crate) mod gate;
mod host_use;
pub(crate) mod install;
pub(crate) mod leftovers;
pub(crate) mod life;
pub(crate) mod location_states;
pub(crate) mod locations;
pub(crate) mod log_backed;
pub(crate) mod manual;
mod pauses;
pub(crate) mod rate;
mod record;
mod report;
pub(crate) mod runner;
pub(crate) mod schedule;
pub(crate) mod sides;
mod spec;
pub(crate) mod stats;
mod stream;
pub(crate) mod take;
pub(crate) mod wait;
pub(crate) mod work;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use siltstone_storage::Mutex;

use crate::catalog::Catalog;
use crate::commit::Commit;
use crate::env::Env;
use crate::jobs::leftovers::Leftovers;
use crate::jobs::runner::JobRunner;
use crate::jobs::schedule::Schedule;
use crate::tree::Tree;
use crate::wal::Wal;

/// The jobs of a store, and the executors that run them.
pub(crate) struct Jobs {
    env: Arc<Env>,
    tree: Arc<Tree>,
    wal: Arc<Wal>,
    catalog: Arc<Catalog>,
    commit: Arc<Commit>,
    runner: JobRunner,
    schedule: Mutex<Schedule>,
    leftovers: Leftovers,
    /// See [`Jobs::compactions_max`]; 0 if there is no limit.
    compactions_max: AtomicU32,
}

impl Jobs {
    pub(crate) fn new(commit: &Arc<Commit>, runner: JobRunner) -> Jobs {
        let env = commit.env().clone();
        Jobs {
            schedule: env.runtime().mutex(Schedule::new()),
            leftovers: Leftovers::new(env.runtime()),
            env,
            tree: commit.tree().clone(),
            wal: commit.wal().clone(),
            catalog: commit.catalog().clone(),
            commit: commit.clone(),
            runner,
            compactions_max: AtomicU32::new(0),
        }
    }

    /// The most compactions that the host runs at once, if the policy `adoc` limits them.
    pub(crate) fn compactions_max(&self) -> Option<u32> {
        let most = self.compactions_max.load(Ordering::Relaxed);
        (most > 0).then_some(most)
    }

    /// Sets the most compactions that the host runs at once.
    pub(crate) fn set_compactions_max(&self, most: Option<u32>) {
        self.compactions_max
            .store(most.unwrap_or(0), Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn runner(&self) -> &JobRunner {
        &self.runner
    }

    #[inline]
    pub(crate) fn env(&self) -> &Arc<Env> {
        &self.env
    }

    #[inline]
    pub(crate) fn tree(&self) -> &Arc<Tree> {
        &self.tree
    }

    #[inline]
    pub(crate) fn wal(&self) -> &Arc<Wal> {
        &self.wal
    }

    #[inline]
    pub(crate) fn catalog(&self) -> &Arc<Catalog> {
        &self.catalog
    }

    #[inline]
    pub(crate) fn commit(&self) -> &Arc<Commit> {
        &self.commit
    }

    #[inline]
    pub(crate) fn leftovers(&self) -> &Leftovers {
        &self.leftovers
    }

    /// Deletes files that attempts of other executors left and that nothing refers to.
    pub(crate) fn delete_leftovers(&self) {
        if self.runner.sides.has_others() || self.runner.has_separated() {
            self.leftovers.delete(&self.runner);
        }
    }

    /// Memory of the jobs' buffers, in bytes. This includes jobs on all sides, and abandoned
    /// attempts whose executor has not returned.
    pub(crate) fn buffer_bytes(&self) -> u64 {
        let lost = self.runner.sides.lost_buffer_bytes();
        let held = self.runner.sides.held_bytes();
        let running = self.schedule.lock().buffer_bytes();
        running.saturating_add(lost).saturating_add(held)
    }

    /// Sets the location of all further flushes on the host, for tests.
    pub(crate) fn force_location(&self, location: Option<u32>) {
        self.schedule.lock().forced_location = location;
    }

    /// Stops automatic compaction, for tests.
    pub(crate) fn set_paused(&self, paused: bool) {
        self.schedule.lock().paused = paused;
        self.env.work().notify();
    }
}
