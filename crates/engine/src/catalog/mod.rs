//! The durable state of a store: the manifest, the keyspaces, the numbers that were given, where
//! the log starts, and the space that is reserved so that the manifest can be written on a full
//! disk.
//!
//! Nothing here depends on the queue of writers or on jobs.

pub(crate) mod edits;
pub(crate) mod log_start;
pub(crate) mod obsolete;
pub(crate) mod pending;
pub(crate) mod reserve;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use arc_swap::{ArcSwap, Guard};
use litemap::LiteMap;
use siltstone_storage::{Mutex, MutexGuard};

use crate::catalog::pending::PendingEdit;
use crate::catalog::reserve::ManifestReserve;
use crate::env::Env;
use crate::formats::log::Position;
use crate::formats::manifest::Manifest;
use crate::formats::version::{CreateKeyspace, StoreState};
use crate::tree::Tree;
use crate::tree::view::KeyspaceCore;
use crate::types::error::{Error, Result, dropped_keyspace};
use crate::types::limits::KeyspaceId;
use crate::wal::Wal;

/// The manifest of a store, its keyspaces, and the numbers that were given.
pub(crate) struct Catalog {
    env: Arc<Env>,
    tree: Arc<Tree>,
    wal: Arc<Wal>,
    keyspaces: ArcSwap<KeyspaceMap>,
    /// Held over a create, drop or ingest, from before its record until after its edit, and over a
    /// change of settings.
    changes: Mutex<()>,
    log_holds: Mutex<LogHolds>,
    manifest: Mutex<ManifestRole>,
    /// The highest number that may be given.
    ceiling: AtomicU64,
    next_table_id: AtomicU64,
    /// The id of the next keyspace. It is raised with the record of a create, whether or not its
    /// edit succeeds. `changes` guards it.
    next_keyspace_id: AtomicU32,
    /// The store was opened on a full disk. Replayed data is only in memory and in the log that the
    /// open found, not in the log that is written now.
    waits_for_room: AtomicBool,
    /// The log bytes that a replay would read, for the policy of stalls. The maintenance task
    /// counts them in each round.
    log_bytes: AtomicU64,
    /// The bytes that log-backed memtables had in memory, and have in the log. Maintenance counts
    /// them with the log.
    log_backed_bytes: AtomicU64,
    /// While the log is longer than `log_bytes_max`: the last segment of its oldest quarter, else
    /// 0.
    overdue_segment: AtomicU32,
}

/// The manifest's file and its state. The task that holds the lock has the manifest role.
pub(crate) struct ManifestRole {
    manifest: Manifest,
    /// The edits of creates, drops and ingests for which the manifest had no room. They are
    /// committed before the next edit.
    pending: Vec<PendingEdit>,
    /// An edit is being written. If a task gets the role and this is set, the task before it has
    /// panicked while it wrote.
    writing: bool,
    /// The space reserved for a manifest on a full disk.
    reserve: ManifestReserve,
}

impl ManifestRole {
    /// The state of the whole store as of the manifest.
    pub(crate) fn state(&self) -> &Arc<StoreState> {
        self.manifest.state()
    }

    /// The creates among the edits that wait for room.
    pub(crate) fn pending_creates(&self) -> impl Iterator<Item = &CreateKeyspace> {
        self.pending.iter().flat_map(|pending| &pending.edit.create)
    }

    /// The number of edits that wait for room.
    pub(crate) fn pending_count(&self) -> usize {
        self.pending.len()
    }

    /// Releases the manifest's file.
    pub(crate) fn release(&mut self) {
        self.manifest.release();
    }

    /// Sets the minimum length in bytes at which the manifest is rewritten, for tests.
    pub(crate) fn set_roll_min_bytes(&mut self, bytes: u64) {
        self.manifest.set_roll_min_bytes(bytes);
    }

    /// How many times the manifest was rewritten because it had grown.
    pub(crate) fn roll_count(&self) -> u64 {
        self.manifest.roll_count()
    }
}

/// Live keyspaces by id and by name.
#[derive(Default, Clone)]
pub(crate) struct KeyspaceMap {
    pub(crate) by_id: BTreeMap<KeyspaceId, Arc<KeyspaceCore>>,
    pub(crate) by_name: BTreeMap<String, KeyspaceId>,
    /// The names of the keyspaces that were dropped last, for error messages: a batch has only ids.
    pub(crate) dropped: LiteMap<KeyspaceId, String>,
}

/// The maximum number of names of dropped keyspaces that are remembered.
pub(crate) const DROPPED_NAMES_MAX: usize = 64;

/// The holds of the log other than those of memtables, with the first position that each holds:
/// creates, drops and ingests without a durable edit, and replayed data that waits for room after
/// an open on a full disk.
#[derive(Default)]
pub(crate) struct LogHolds {
    pub(crate) next: u64,
    pub(crate) held: LiteMap<u64, Position>,
}

impl Catalog {
    /// `ceiling` is the highest number that the manifest allows to be given. `waits_for_room`:
    /// replayed data could not be installed.
    pub(crate) fn new(
        tree: &Arc<Tree>,
        wal: &Arc<Wal>,
        keyspaces: KeyspaceMap,
        manifest: Manifest,
        ceiling: u64,
        waits_for_room: bool,
    ) -> Catalog {
        let env = tree.env().clone();
        let runtime = env.runtime().clone();
        let state = manifest.state().clone();
        Catalog {
            env,
            tree: tree.clone(),
            wal: wal.clone(),
            keyspaces: ArcSwap::from_pointee(keyspaces),
            changes: runtime.mutex(()),
            log_holds: runtime.mutex(LogHolds::default()),
            manifest: runtime.mutex(ManifestRole {
                manifest,
                pending: Vec::new(),
                writing: false,
                reserve: ManifestReserve::default(),
            }),
            ceiling: AtomicU64::new(ceiling),
            next_table_id: AtomicU64::new(state.next_table_id),
            next_keyspace_id: AtomicU32::new(state.next_keyspace_id),
            waits_for_room: AtomicBool::new(waits_for_room),
            log_bytes: AtomicU64::new(0),
            log_backed_bytes: AtomicU64::new(0),
            overdue_segment: AtomicU32::new(0),
        }
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

    /// The live keyspaces.
    #[inline]
    pub(crate) fn keyspaces(&self) -> Guard<Arc<KeyspaceMap>> {
        self.keyspaces.load()
    }

    /// Replaces the map of keyspaces. The caller leads the writers.
    pub(crate) fn change_keyspaces(&self, change: impl FnOnce(&mut KeyspaceMap)) {
        let mut map = KeyspaceMap::clone(&self.keyspaces.load());
        change(&mut map);
        self.keyspaces.store(Arc::new(map));
    }

    /// The lock of changes: of creates, drops, ingests, and changes of settings. It is the first in
    /// the order of locks.
    pub(crate) fn changes(&self) -> MutexGuard<'_, ()> {
        self.changes.lock()
    }

    /// The manifest role.
    pub(crate) fn role(&self) -> MutexGuard<'_, ManifestRole> {
        self.manifest.lock()
    }

    /// The highest number that may be given.
    pub(crate) fn ceiling(&self) -> u64 {
        self.ceiling.load(Ordering::Acquire)
    }

    /// Takes `count` ids for tables or runs, and returns the first of them.
    pub(crate) fn take_table_ids(&self, count: u64) -> u64 {
        self.next_table_id.fetch_add(count, Ordering::AcqRel)
    }

    /// The id that the next table or run gets.
    pub(crate) fn next_table_id(&self) -> u64 {
        self.next_table_id.load(Ordering::Acquire)
    }

    /// The id that the next keyspace gets. The caller holds [`Catalog::changes`].
    pub(crate) fn next_keyspace_id(&self) -> KeyspaceId {
        self.next_keyspace_id.load(Ordering::Acquire)
    }

    /// Notes that all ids of keyspaces below `next` were given. The caller holds
    /// [`Catalog::changes`].
    pub(crate) fn raise_next_keyspace_id(&self, next: KeyspaceId) {
        self.next_keyspace_id.fetch_max(next, Ordering::AcqRel);
    }

    /// Whether replayed data waits for room. It is in the log that the open found, not in the one
    /// that is written now.
    pub(crate) fn waits_for_room(&self) -> bool {
        self.waits_for_room.load(Ordering::Acquire)
    }

    /// Called when the replayed data is installed.
    pub(crate) fn stop_waiting_for_room(&self) {
        self.waits_for_room.store(false, Ordering::Release);
    }

    /// The log bytes that a replay would read, as the maintenance task counted them last.
    #[inline]
    pub(crate) fn log_bytes(&self) -> u64 {
        self.log_bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn set_log_bytes(&self, bytes: u64) {
        self.log_bytes.store(bytes, Ordering::Relaxed);
    }

    /// About the bytes of the log that log-backed memtables need, as maintenance counted them last.
    #[inline]
    pub(crate) fn log_backed_bytes(&self) -> u64 {
        self.log_backed_bytes.load(Ordering::Relaxed)
    }

    /// Counts the bytes of all log-backed memtables.
    pub(crate) fn count_log_backed(&self) {
        let mut bytes = 0;
        for keyspace in self.keyspaces().by_id.values() {
            let view = keyspace.view();
            if view.log_backed_count > 0 {
                let backed = view.sealed().filter(|m| m.mem.is_log_backed());
                bytes += backed.map(|m| m.mem.data_bytes()).sum::<u64>();
            }
        }
        self.log_backed_bytes.store(bytes, Ordering::Relaxed);
    }

    /// The end of the oldest quarter of the log, if the log is longer than `log_bytes_max`:
    /// memtables that hold the log before it are flushed first.
    pub(crate) fn overdue_log(&self) -> Option<Position> {
        match self.overdue_segment.load(Ordering::Relaxed) {
            0 => None,
            segment => Some(Position::new(segment, u32::MAX)),
        }
    }

    /// Notes that the log is too long and begins at `start`, or that it is not too long.
    pub(crate) fn set_log_overdue(&self, start: Option<Position>) {
        let quarter = |start: Position| {
            let segments = self.wal.end().segment.saturating_sub(start.segment);
            start.segment + segments / 4
        };
        let segment = start.map_or(0, quarter);
        self.overdue_segment.store(segment, Ordering::Relaxed);
    }

    /// A live keyspace.
    #[inline]
    pub(crate) fn keyspace_by_id(&self, id: KeyspaceId) -> Result<Arc<KeyspaceCore>> {
        let map = self.keyspaces.load();
        match map.by_id.get(&id) {
            Some(keyspace) => Ok(keyspace.clone()),
            None => Err(no_keyspace(&map, id)),
        }
    }
}

#[cold]
fn no_keyspace(map: &KeyspaceMap, id: KeyspaceId) -> Error {
    let name = match map.dropped.get(&id) {
        Some(name) => format!("`{name}`"),
        None => format!("number {id}"),
    };
    dropped_keyspace(&name)
}
