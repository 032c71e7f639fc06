//! Flushes and compactions: what is reserved for them, who runs them, how they are built, run and
//! installed, and how a caller waits for them.
//!
//! Nothing here knows the calls of users.

pub(crate) mod build;
pub(crate) mod flush;
pub(crate) mod install;
pub(crate) mod manual;
pub(crate) mod rate;
pub mod schedule;
pub mod sides;
pub(crate) mod wait;

use std::sync::Arc;

use siltstone_storage::Mutex;

use crate::catalog::Catalog;
use crate::commit::Commit;
use crate::env::Env;
use crate::jobs::build::JobRunner;
use crate::jobs::schedule::Schedule;
use crate::tree::Tree;
use crate::wal::Wal;

/// The jobs of a store: what runs, and what runs it.
pub(crate) struct Jobs {
    pub(crate) env: Arc<Env>,
    pub(crate) tree: Arc<Tree>,
    pub(crate) wal: Arc<Wal>,
    pub(crate) catalog: Arc<Catalog>,
    pub(crate) commit: Arc<Commit>,
    pub(crate) runner: JobRunner,
    pub(crate) schedule: Mutex<Schedule>,
}

impl Jobs {
    pub(crate) fn new(commit: &Arc<Commit>, runner: JobRunner) -> Jobs {
        let env = commit.env.clone();
        Jobs {
            schedule: env.runtime.mutex(Schedule::new()),
            env,
            tree: commit.tree.clone(),
            wal: commit.wal.clone(),
            catalog: commit.catalog.clone(),
            commit: commit.clone(),
            runner,
        }
    }
}
