//! Which segments of the log are read by memtables whose values are in the log (RFC 13, section
//! 11). Such a segment is neither deleted nor recycled, even if it lies below the log's start.
//!
//! Pins are counts in memory: an open begins without any. Whoever pins a segment also holds the log
//! from there on until the pin is taken, so a pinned segment exists.
//!
//! A pinned segment has one open file, which all pins share, unless it was too short for a later
//! pin.
//!
//! Threading: a mutex, which is held over nothing else. A pin may be dropped on any thread.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use siltstone_storage::{Mutex, ReadFile, Result, Runtime};

use crate::env::Env;

/// See the module.
pub(crate) struct SegmentPins {
    pinned: Mutex<BTreeMap<u32, Pinned>>,
    /// The number of pins, so that a store without any takes no lock.
    pins: AtomicUsize,
}

struct Pinned {
    count: usize,
    file: Option<Weak<dyn ReadFile>>,
}

impl SegmentPins {
    pub(super) fn new(runtime: &Runtime) -> SegmentPins {
        SegmentPins {
            pinned: runtime.mutex(BTreeMap::new()),
            pins: AtomicUsize::new(0),
        }
    }

    /// Whether somebody has pinned the segment.
    pub(crate) fn is_pinned(&self, segment: u32) -> bool {
        self.pins.load(Ordering::SeqCst) > 0 && self.pinned.lock().contains_key(&segment)
    }

    /// The number of pinned segments, which is about that of their open files.
    pub(crate) fn count(&self) -> usize {
        self.pinned.lock().len()
    }
}

/// A pin of one segment, which ends when it is dropped.
pub(crate) struct SegmentPin {
    env: Arc<Env>,
    segment: u32,
}

impl SegmentPin {
    pub(crate) fn new(env: &Arc<Env>, segment: u32) -> SegmentPin {
        let pins = env.segment_pins();
        pins.pins.fetch_add(1, Ordering::SeqCst);
        let mut pinned = pins.pinned.lock();
        let new = || Pinned {
            count: 0,
            file: None,
        };
        pinned.entry(segment).or_insert_with(new).count += 1;
        drop(pinned);
        SegmentPin {
            env: env.clone(),
            segment,
        }
    }

    /// The segment's file, which has at least `len` bytes. If no pin has such a file open, `open` is
    /// called.
    ///
    /// # Errors
    /// Those of `open`.
    pub(crate) fn file(
        &self,
        len: u64,
        open: impl FnOnce() -> Result<Arc<dyn ReadFile>>,
    ) -> Result<Arc<dyn ReadFile>> {
        let pins = self.env.segment_pins();
        let known = || {
            let pinned = pins.pinned.lock();
            pinned.get(&self.segment)?.file.as_ref()?.upgrade()
        };
        if let Some(file) = known().filter(|file| file.len() >= len) {
            return Ok(file);
        }
        let file = open()?;
        if let Some(pinned) = pins.pinned.lock().get_mut(&self.segment) {
            pinned.file = Some(Arc::downgrade(&file));
        }
        Ok(file)
    }

    /// Whether the store is being closed.
    pub(crate) fn is_closing(&self) -> bool {
        self.env.is_closing()
    }
}

impl Drop for SegmentPin {
    fn drop(&mut self) {
        let pins = self.env.segment_pins();
        pins.pins.fetch_sub(1, Ordering::SeqCst);
        let mut pinned = pins.pinned.lock();
        let Some(own) = pinned.get_mut(&self.segment) else {
            return;
        };
        own.count -= 1;
        if own.count > 0 {
            return;
        }
        pinned.remove(&self.segment);
        drop(pinned);
        // Maintenance deletes the segment if it lies below the log's start.
        self.env.maintenance().notify();
    }
}
