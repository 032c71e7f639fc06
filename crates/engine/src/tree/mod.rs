//! The data of a keyspace: memtables, tables and the views over them, point reads, cursors, and the
//! choice of the next compaction.
//!
//! Nothing here writes the log or the manifest, or depends on its callers.

pub(crate) mod atomics;
pub(crate) mod cache;
pub(crate) mod gaps;
pub(crate) mod iter;
#[allow(unsafe_code)] // An island: see the module for the argument.
pub mod memtable;
pub(crate) mod pending;
pub mod pick;
pub(crate) mod pinning;
pub(crate) mod read;
pub(crate) mod seeks;
pub(crate) mod settings;
pub(crate) mod snapshot;
pub(crate) mod tables;
pub(crate) mod view;
pub(crate) mod watch;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::env::Env;
use crate::tree::gaps::LeaderWatch;
use crate::tree::settings::Arenas;
use crate::tree::snapshot::SnapshotRegistry;
use crate::tree::tables::TableSet;

/// The state that all keyspaces share: tables, snapshots and memory for memtables.
pub(crate) struct Tree {
    env: Arc<Env>,
    tables: Arc<TableSet>,
    snapshots: Arc<SnapshotRegistry>,
    arenas: Arenas,
    /// The number of hidden entries from which on a cursor records a gap. Tests change it.
    gap_min: AtomicU64,
    /// The queue of writers, for rule G2 of gaps.
    leader_watch: Arc<dyn LeaderWatch>,
}

impl Tree {
    pub(crate) fn new(
        env: &Arc<Env>,
        tables: Arc<TableSet>,
        published: u64,
        arenas: Arenas,
        leader_watch: Arc<dyn LeaderWatch>,
    ) -> Tree {
        Tree {
            env: env.clone(),
            tables,
            snapshots: SnapshotRegistry::new(env.runtime(), published),
            arenas,
            gap_min: AtomicU64::new(gaps::HIDDEN_MIN),
            leader_watch,
        }
    }

    #[inline]
    pub(crate) fn env(&self) -> &Arc<Env> {
        &self.env
    }

    #[inline]
    pub(crate) fn tables(&self) -> &Arc<TableSet> {
        &self.tables
    }

    #[inline]
    pub(crate) fn snapshots(&self) -> &Arc<SnapshotRegistry> {
        &self.snapshots
    }

    #[inline]
    pub(crate) fn arenas(&self) -> &Arenas {
        &self.arenas
    }

    pub(crate) fn set_gap_min(&self, hidden: u64) {
        self.gap_min.store(hidden, Ordering::Relaxed);
    }

    /// The number of hidden entries from which on a cursor records a gap ([`crate::tree::gaps`]).
    #[inline]
    pub(crate) fn gap_min(&self) -> u64 {
        self.gap_min.load(Ordering::Relaxed)
    }
}
