//! The store's inside: who owns what, and the few operations that several parts need.
//!
//! What it is: [`Core`] holds every part of an open store. Each part guards itself; the table of
//! owners and locks is RFC 1, section 9. Lock order: manifest role > schedule > a keyspace's
//! `change` > snapshots > stalls > health > events. The leader's role precedes `change` and waits
//! for the manifest role only to raise an exhausted ceiling; nobody waits for the leader while
//! holding the manifest role.
//!
//! Threading: shared by all handles and background tasks.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use siltstone_storage::Mutex;

use crate::catalog::Catalog;
use crate::commit::Commit;
use crate::env::Env;
use crate::jobs::Jobs;
use crate::tree::Tree;
use crate::wal::Wal;

/// See the module. It stands for all parts below it.
pub(crate) struct Core {
    pub(crate) env: Arc<Env>,
    pub(crate) tree: Arc<Tree>,
    pub(crate) wal: Arc<Wal>,
    pub(crate) catalog: Arc<Catalog>,
    pub(crate) commit: Arc<Commit>,
    pub(crate) jobs: Arc<Jobs>,
    /// A table that an ingest linked could not be synced: from then on they are copied.
    pub(crate) links_fail: AtomicBool,
    pub(crate) rest: Mutex<Option<crate::services::recovery::Rest>>,
    pub(crate) tasks: Mutex<crate::background::Tasks>,
    /// There is a file of published statistics that is this open's.
    pub(crate) published: AtomicBool,
}
