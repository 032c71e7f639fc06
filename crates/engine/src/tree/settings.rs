//! The settings that count right now: a store's, and each keyspace's, which may change while the
//! store is open.
//!
//! What it is: [`Settings`] is what one keyspace works by, made of what was set for it and of the
//! store's options, with everything that is derived from it (limits of writers, what `pick` looks
//! at, where arenas come from). A keyspace holds the present one behind an atomic pointer: who
//! needs several values takes it once and uses that. [`set_store`] and [`set_keyspace`] replace it.
//!
//! Invariants: what was set for a keyspace is durable before it counts: its edit is synced first.
//! What counts is consistent whatever was set ([`KeyspaceOptions::over`]). A change holds for the
//! next memtable, job and decision, and wakes writers that wait.
//!
//! Threading: changes are made one at a time, under `changes`; the present values are read without a
//! lock.

use std::collections::BTreeMap;
use std::sync::Arc;

use siltstone_storage::{Mutex, Runtime};

use crate::tree::memtable::{ArenaPool, Memtable};
use crate::tree::pick::PickOptions;
use crate::types::error::{Error, ErrorKind, Result};
use crate::types::options::{KeyspaceOptions, KeyspaceSettings, Options};
use crate::types::pressure::Limits;

/// What a keyspace works by. Immutable.
pub(crate) struct Settings {
    /// What was set for the keyspace.
    pub(crate) own: KeyspaceOptions,
    /// What counts.
    pub(crate) all: KeyspaceSettings,
    /// When its writers are delayed.
    pub(crate) limits: Limits,
    /// When and how much is compacted.
    pub(crate) pick: PickOptions,
    /// Where its memtables' memory comes from.
    pub(crate) arenas: ArenaPool,
    /// Memory is counted: no arena is taken that is in memory whole before it is written.
    pub(crate) lean: bool,
}

impl Settings {
    /// What counts for a keyspace that set `own` in a store with these options.
    pub(crate) fn new(own: KeyspaceOptions, options: &Options, arenas: &Arenas) -> Arc<Settings> {
        let all = own.over(&options.keyspace_defaults());
        Arc::new(Settings {
            limits: Limits::of(&all, options),
            pick: PickOptions::of(&all),
            arenas: arenas.of(all.memtable_bytes),
            lean: options.memory_bytes_max > 0,
            own,
            all,
        })
    }
}

/// Pools of arenas, one for each size of memtable in use.
pub(crate) struct Arenas {
    pools: Mutex<BTreeMap<u64, ArenaPool>>,
    prefault: bool,
}

/// Arenas that a pool keeps for reuse.
const KEPT_ARENAS: usize = 3;

/// Memtables from this size on are worth the milliseconds that faulting all of one in takes.
const PREFAULT_MIN_BYTES: u64 = 4 << 20;

impl Arenas {
    pub(crate) fn new(runtime: &Runtime) -> Arenas {
        Arenas {
            pools: runtime.mutex(BTreeMap::new()),
            prefault: !runtime.is_simulated(),
        }
    }

    /// The pool of a size. Those that nobody uses any more are let go.
    fn of(&self, memtable_bytes: u64) -> ArenaPool {
        let mut pools = self.pools.lock();
        pools.retain(|bytes, pool| *bytes == memtable_bytes || pool.is_in_use());
        pools
            .entry(memtable_bytes)
            .or_insert_with(|| {
                let prefault = self.prefault && memtable_bytes >= PREFAULT_MIN_BYTES;
                ArenaPool::new(memtable_bytes as usize, KEPT_ARENAS, prefault)
            })
            .clone()
    }

    /// Refuses new arenas from this size on, as a system without memory would. For tests.
    pub(crate) fn refuse_from(&self, bytes: usize) {
        for pool in self.pools.lock().values() {
            pool.refuse_from(bytes);
        }
    }

    /// Bytes of the arenas that are in memory whole.
    pub(crate) fn whole_bytes(&self) -> u64 {
        self.pools.lock().values().map(ArenaPool::whole_bytes).sum()
    }

    /// Gives back the arenas that are kept for reuse.
    pub(crate) fn release_kept(&self) {
        self.pools.lock().values().for_each(ArenaPool::release_kept);
    }

    /// Bytes of all arenas that exist: in use, and kept for reuse.
    pub(crate) fn held_bytes(&self) -> u64 {
        self.pools.lock().values().map(ArenaPool::held_bytes).sum()
    }
}

/// An empty memtable with room for at least `min_bytes`.
pub(crate) fn new_memtable(settings: &Settings, min_bytes: usize) -> Result<Arc<Memtable>> {
    let arena = settings.arenas.take(min_bytes).map_err(no_memory)?;
    Ok(Arc::new(Memtable::new(arena)))
}

/// The first memtable of a keyspace: memory comes as it is written.
pub(crate) fn first_memtable(settings: &Settings) -> Result<Arc<Memtable>> {
    let arena = settings.arenas.take_lazily(0).map_err(no_memory)?;
    Ok(Arc::new(Memtable::new(arena)))
}

/// An empty memtable with room for at least `min_bytes`, to go on where `last` was filled. What was
/// sealed nearly empty, to bound the log or because somebody asked, is likely to stay so: among a
/// thousand keyspaces each would come to hold a whole arena in memory.
pub(crate) fn next_memtable(
    settings: &Settings,
    last: &Memtable,
    min_bytes: usize,
) -> Result<Arc<Memtable>> {
    if !settings.lean && last.used_bytes() >= settings.arenas.arena_bytes() as u64 / 4 {
        return new_memtable(settings, min_bytes);
    }
    let arena = settings.arenas.take_lazily(min_bytes).map_err(no_memory)?;
    Ok(Arc::new(Memtable::new(arena)))
}

/// The system gave no arena.
#[cold]
pub(crate) fn no_memory(cause: crate::tree::memtable::ArenaError) -> Error {
    Error::new(
        ErrorKind::NoSpace,
        format!("no memory for a memtable: {cause}"),
    )
    .advice("give the process more memory, or open with a smaller memtable_bytes")
}
