//! Which segments of the log are read by memtables whose values are in the log (RFC 13, section
//! 11). Such a segment is neither deleted nor recycled, even if it lies below the log's start.
//!
//! Pins are counts in memory: an open begins without any. Whoever pins a segment also holds the log
//! from there on until the pin is taken, so a pinned segment exists.
//!
//! Threading: a mutex, which is held over nothing else. A pin may be dropped on any thread.

use std::collections::BTreeMap;
use std::sync::Arc;

use siltstone_storage::{Mutex, Runtime};

use crate::env::Env;

/// See the module.
pub(crate) struct SegmentPins {
    counts: Mutex<BTreeMap<u32, usize>>,
}

impl SegmentPins {
    pub(super) fn new(runtime: &Runtime) -> SegmentPins {
        SegmentPins {
            counts: runtime.mutex(BTreeMap::new()),
        }
    }

    /// Whether somebody has pinned the segment.
    pub(crate) fn is_pinned(&self, segment: u32) -> bool {
        self.counts.lock().contains_key(&segment)
    }

    /// The number of pins: that of open files of the log.
    pub(crate) fn count(&self) -> usize {
        self.counts.lock().values().sum()
    }
}

/// A pin of one segment, which ends when it is dropped.
pub(crate) struct SegmentPin {
    env: Arc<Env>,
    segment: u32,
}

impl SegmentPin {
    pub(crate) fn new(env: &Arc<Env>, segment: u32) -> SegmentPin {
        let mut counts = env.segment_pins().counts.lock();
        *counts.entry(segment).or_default() += 1;
        SegmentPin {
            env: env.clone(),
            segment,
        }
    }
}

impl Drop for SegmentPin {
    fn drop(&mut self) {
        let mut counts = self.env.segment_pins().counts.lock();
        let Some(count) = counts.get_mut(&self.segment) else {
            return;
        };
        *count -= 1;
        if *count > 0 {
            return;
        }
        counts.remove(&self.segment);
        drop(counts);
        // Maintenance deletes the segment if it lies below the log's start.
        self.env.maintenance().notify();
    }
}
