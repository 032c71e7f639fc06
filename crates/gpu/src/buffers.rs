//! The memory of this process that a job uses, in the job's progress. Pinned memory is not part of
//! it: an executor holds that whether it runs jobs or not.
//!
//! Invariant: what was counted is subtracted when its owner is dropped.
//!
//! Threading: each owner counts its own memory; the sum is an atomic number.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use siltstone_table::exec::Progress;

/// An owner's share of the memory of a job. See the module.
pub(crate) struct Buffers {
    progress: Arc<Progress>,
    own_bytes: u64,
}

impl Buffers {
    pub fn new(progress: &Arc<Progress>) -> Buffers {
        Buffers {
            progress: Arc::clone(progress),
            own_bytes: 0,
        }
    }

    /// Sets how many bytes the owner has now.
    pub fn set(&mut self, bytes: u64) {
        let all = &self.progress.buffer_bytes;
        all.fetch_add(bytes.wrapping_sub(self.own_bytes), Ordering::Relaxed);
        self.own_bytes = bytes;
    }
}

impl Drop for Buffers {
    fn drop(&mut self) {
        self.set(0);
    }
}
