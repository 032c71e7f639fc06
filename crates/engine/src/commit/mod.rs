//! The path of a write: the queue of writers, its leader, and stalls.
//!
//! Nothing here knows jobs.

pub(crate) mod pace;
pub(crate) mod queue;
pub mod stalls;
pub(crate) mod write;

use std::sync::Arc;

use crate::catalog::Catalog;
use crate::commit::stalls::Stalls;
use crate::commit::write::WriteQueue;
use crate::env::Env;
use crate::tree::Tree;
use crate::wal::Wal;

/// The writers of a store: those who wait in the queue, and those who wait before it.
pub(crate) struct Commit {
    pub(crate) env: Arc<Env>,
    pub(crate) tree: Arc<Tree>,
    pub(crate) wal: Arc<Wal>,
    pub(crate) catalog: Arc<Catalog>,
    pub(crate) queue: Arc<WriteQueue>,
    pub(crate) stalls: Stalls,
}

impl Commit {
    pub(crate) fn new(catalog: &Arc<Catalog>, queue: Arc<WriteQueue>) -> Commit {
        let env = catalog.env.clone();
        Commit {
            stalls: Stalls::new(&env.runtime, env.events.clone(), env.pressure.clone()),
            env,
            tree: catalog.tree.clone(),
            wal: catalog.wal.clone(),
            catalog: catalog.clone(),
            queue,
        }
    }
}
