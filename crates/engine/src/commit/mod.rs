//! The path of a write: the queue of writers, its leader, and stalls.
//!
//! Nothing here knows jobs.

pub(crate) mod pace;
pub(crate) mod queue;
pub mod stalls;
pub(crate) mod write;

use crate::catalog::Catalog;
use crate::commit::stalls::Stalls;
use crate::commit::write::WriteQueue;

/// The writers of a store: those who wait in the queue, and those who wait before it.
pub(crate) struct Commit {
    pub(crate) catalog: Catalog,
    pub(crate) queue: WriteQueue,
    pub(crate) stalls: Stalls,
}

/// Until all users name the parts that they need, a part stands for those below it, too.
impl std::ops::Deref for Commit {
    type Target = Catalog;

    fn deref(&self) -> &Catalog {
        &self.catalog
    }
}
