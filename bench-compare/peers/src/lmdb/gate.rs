//! What LMDB needs beside its safe interface: a gate that stops all sessions while the map grows,
//! and the two functions that the crate does not wrap.
//!
//! Invariant: whatever opens a transaction or reads the map does it within a [`Passage`]. While
//! [`Gate::close`] runs nobody is within one, as `mdb_env_set_mapsize` demands.
//!
//! Threading: a passage is locked by its session for each operation. Nobody else touches that lock
//! unless the map grows, so it costs a few nanoseconds and no line of a cache moves between cores.

use std::sync::{Arc, Mutex, MutexGuard};

use lmdb::Environment;
use lmdb_sys as ffi;
use siltstone_bench::engine::{EngineError, Result};

/// Stops all sessions of a store.
#[derive(Default)]
pub(super) struct Gate {
    passages: Mutex<Vec<Arc<Passage>>>,
}

/// Lets one session through the gate.
#[derive(Default)]
pub(super) struct Passage {
    is_within: Mutex<()>,
}

/// The error of a lock whose holder panicked.
pub(super) fn poisoned(_: impl Sized) -> EngineError {
    EngineError::new("lock the environment", "another thread panicked")
}

impl Gate {
    /// A passage for a new session. Passages whose session has ended are dropped here.
    pub fn passage(&self) -> Result<Arc<Passage>> {
        let mut passages = self.passages.lock().map_err(poisoned)?;
        passages.retain(|passage| Arc::strong_count(passage) > 1);
        let passage = Arc::<Passage>::default();
        passages.push(Arc::clone(&passage));
        Ok(passage)
    }

    /// Does `work` while no session is within an operation. The caller is not within one either.
    pub fn close(&self, work: impl FnOnce() -> Result<()>) -> Result<()> {
        let passages = self.passages.lock().map_err(poisoned)?;
        let stopped: Result<Vec<_>> = passages.iter().map(|passage| passage.enter()).collect();
        let _stopped = stopped?;
        work()
    }
}

impl Passage {
    /// The operation lasts as long as what is returned.
    pub fn enter(&self) -> Result<MutexGuard<'_, ()>> {
        self.is_within.lock().map_err(poisoned)
    }
}

/// The version of the library, as `0.9.24`.
pub(super) fn version() -> String {
    let (mut major, mut minor, mut patch) = (0, 0, 0);
    // SAFETY: the function stores three integers, and returns a constant text.
    unsafe {
        let text = ffi::mdb_version(&mut major, &mut minor, &mut patch);
        debug_assert!(!text.is_null());
    }
    format!("{major}.{minor}.{patch}")
}

/// Sets or clears `NOSYNC`. The caller holds the lock of the writer.
pub(super) fn set_no_sync(environment: &Environment, is_set: bool) -> lmdb::Result<()> {
    // SAFETY: the environment is open, and LMDB allows this flag to change at any time if calls do
    // not overlap, which the lock of the writer ensures.
    let code = unsafe { ffi::mdb_env_set_flags(environment.env(), ffi::MDB_NOSYNC, is_set.into()) };
    match code {
        0 => Ok(()),
        code => Err(lmdb::Error::from_err_code(code)),
    }
}
