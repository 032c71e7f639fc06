//! The settings in force for a keyspace, which may change while the store is open, and the memory
//! for its memtables.
//!
//! [`Settings`] combines the keyspace's own settings and the store's options with the values
//! derived from both: the limits of writers, the options of `pick`, and the pool of arenas. A
//! keyspace has them behind an atomic pointer; `services/settings.rs` replaces them.
//!
//! Invariants: a keyspace's own settings are durable before they are in force, because their edit
//! is synced first. Settings are always consistent ([`KeyspaceOptions::over`]).
//!
//! Threading: settings are replaced under the lock `Catalog::changes` and read without a lock.

use std::sync::Arc;

use litemap::LiteMap;
use siltstone_storage::{Mutex, Runtime};

use crate::tree::memtable::{ArenaPool, Memtable};
use crate::tree::pick::PickOptions;
use crate::types::error::{Error, ErrorKind, Result};
use crate::types::options::{KeyspaceOptions, KeyspaceSettings, Options};
use crate::types::pressure::Limits;

/// The settings in force for a keyspace. Immutable.
pub(crate) struct Settings {
    /// The settings that the keyspace itself has.
    pub(crate) own: KeyspaceOptions,
    /// All settings: the keyspace's own, and the store's where the keyspace has none.
    pub(crate) all: KeyspaceSettings,
    /// The limits at which its writers are delayed.
    pub(crate) limits: Limits,
    /// When and how much is compacted.
    pub(crate) pick: PickOptions,
    /// The pool of its memtables' arenas.
    pub(crate) arenas: ArenaPool,
    /// The store's memory is limited, so no arena is faulted in before it is written.
    pub(crate) lean: bool,
}

impl Settings {
    /// The settings of a keyspace with these options of its own, in a store with these options.
    pub(crate) fn new(own: KeyspaceOptions, options: &Options, arenas: &Arenas) -> Arc<Settings> {
        let all = own.over(&options.keyspace_defaults());
        Arc::new(Settings {
            limits: Limits::of(&all, options),
            pick: PickOptions::of(&all, options),
            arenas: arenas.of(all.memtable_bytes),
            lean: options.memory_bytes_max > 0,
            own,
            all,
        })
    }
}

/// Pools of arenas, one for each size of memtable in use.
pub(crate) struct Arenas {
    pools: Mutex<LiteMap<u64, ArenaPool>>,
    prefault: bool,
}

/// The number of arenas that a pool keeps for reuse.
const KEPT_ARENAS: usize = 3;

/// The minimum size of a memtable for which faulting it in, which takes milliseconds, pays.
const PREFAULT_MIN_BYTES: u64 = 4 << 20;

impl Arenas {
    pub(crate) fn new(runtime: &Runtime) -> Arenas {
        Arenas {
            pools: runtime.mutex(LiteMap::new()),
            prefault: !runtime.is_simulated(),
        }
    }

    /// The pool for a size of memtables. Drops pools that no keyspace uses any more.
    pub(crate) fn of(&self, memtable_bytes: u64) -> ArenaPool {
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

    /// Refuses new arenas of at least this size, as a system without memory would. For tests.
    pub(crate) fn refuse_from(&self, bytes: usize) {
        for pool in self.pools.lock().values() {
            pool.refuse_from(bytes);
        }
    }

    /// Bytes of the arenas that were faulted in as a whole.
    pub(crate) fn whole_bytes(&self) -> u64 {
        self.pools.lock().values().map(ArenaPool::whole_bytes).sum()
    }

    /// Frees the arenas that are kept for reuse.
    pub(crate) fn release_kept(&self) {
        self.pools.lock().values().for_each(ArenaPool::release_kept);
    }

    /// Bytes of all arenas that exist: in use, and kept for reuse.
    pub(crate) fn held_bytes(&self) -> u64 {
        self.pools.lock().values().map(ArenaPool::held_bytes).sum()
    }
}

/// The first memtable of a keyspace. Its memory is allocated as it is written.
pub(crate) fn first_memtable(settings: &Settings) -> Result<Arc<Memtable>> {
    let arena = settings.arenas.take_lazily(0).map_err(no_memory)?;
    Ok(Arc::new(Memtable::new(arena)))
}

/// An empty memtable with room for at least `min_bytes`, which follows `last`. If `last` was sealed
/// while it was nearly empty (to bound the log, or because a caller asked for a flush), the next
/// one is likely to stay nearly empty too. It is not faulted in then, or each of a thousand
/// keyspaces would hold a whole arena in memory.
pub(crate) fn next_memtable(
    settings: &Settings,
    arenas: &ArenaPool,
    last: &Memtable,
    min_bytes: usize,
) -> Result<Arc<Memtable>> {
    let is_likely_filled = last.used_bytes() >= arenas.arena_bytes() as u64 / 4;
    let arena = match !settings.lean && is_likely_filled {
        true => arenas.take(min_bytes),
        false => arenas.take_lazily(min_bytes),
    };
    Ok(Arc::new(Memtable::new(arena.map_err(no_memory)?)))
}

/// The error when the system has no memory for an arena.
#[cold]
pub(crate) fn no_memory(cause: crate::tree::memtable::ArenaError) -> Error {
    Error::new(
        ErrorKind::NoSpace,
        format!("no memory for a memtable: {cause}"),
    )
    .advice("give the process more memory, or open with a smaller memtable_bytes")
}
