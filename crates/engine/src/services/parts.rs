//! The parts of an open store.
//!
//! Each part guards its own state, and holds the parts below it that it needs. Only tasks and
//! handles hold all of them. The table of owners and locks is RFC 1, section 9; the order of locks
//! is in RFC 6.
//!
//! Threading: shared by all handles and background tasks.

use std::sync::Arc;

use crate::catalog::Catalog;
use crate::commit::Commit;
use crate::env::Env;
use crate::jobs::Jobs;
use crate::services::recovery::unflushed::Unflushed;
use crate::tree::Tree;
use crate::wal::Wal;

/// See the module.
#[derive(Clone)]
pub(crate) struct Parts {
    pub(crate) env: Arc<Env>,
    pub(crate) tree: Arc<Tree>,
    pub(crate) wal: Arc<Wal>,
    pub(crate) catalog: Arc<Catalog>,
    pub(crate) commit: Arc<Commit>,
    pub(crate) jobs: Arc<Jobs>,
    /// Replayed data that waits for room.
    pub(crate) unflushed: Arc<Unflushed>,
}
