//! How long each kernel, copy and fill takes on the device, if an executor is opened with
//! `GpuOptions::profiles`.
//!
//! A lane puts an event before and one after each of them ([`LaneProfile::timed`]). When it has
//! waited for everything, it asks for the time between the two ([`LaneProfile::settle`]). This
//! costs some microseconds for each launch, so it is for measurements only. Without it nothing is
//! recorded.
//!
//! Threading: the sums are shared by the lanes of an executor, under a lock. What is not settled
//! yet belongs to one lane.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;

use siltstone_storage::{Mutex, Runtime};

use crate::device::{Device, DeviceError, Event, Stream};

/// The sums of one kernel, or of `copy in`, `copy out` or `fill`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct KernelTime {
    /// How often it was started.
    pub launches: u64,
    /// The time of the device for it, in seconds.
    pub seconds: f64,
    /// The number of items: of threads for a kernel with a thread for each item, of CUDA blocks for
    /// one with a block for each block of a table, and of bytes for copies and fills.
    pub items: u64,
}

/// The sums of an executor, by name.
pub(crate) struct Profile {
    sums: Mutex<BTreeMap<&'static str, KernelTime>>,
}

impl Profile {
    pub fn new(runtime: &Runtime) -> Profile {
        Profile {
            sums: runtime.mutex(BTreeMap::new()),
        }
    }

    /// The sums so far.
    pub fn sums(&self) -> Vec<(&'static str, KernelTime)> {
        let sums = self.sums.lock();
        sums.iter().map(|(name, sum)| (*name, *sum)).collect()
    }
}

/// Work of a lane whose events may not have passed.
struct Unsettled {
    name: &'static str,
    items: u64,
    events: (Event, Event),
}

/// The part of a profile that belongs to a lane.
pub(crate) struct LaneProfile {
    profile: Option<Arc<Profile>>,
    unsettled: RefCell<Vec<Unsettled>>,
}

impl LaneProfile {
    /// Without a profile, nothing is recorded.
    pub fn new(profile: Option<&Arc<Profile>>) -> LaneProfile {
        LaneProfile {
            profile: profile.cloned(),
            unsettled: RefCell::default(),
        }
    }

    /// Does `work`, which puts something into the stream, between two events.
    pub fn timed(
        &self,
        device: &dyn Device,
        stream: Stream,
        (name, items): (&'static str, u64),
        work: impl FnOnce() -> Result<(), DeviceError>,
    ) -> Result<(), DeviceError> {
        if self.profile.is_none() {
            return work();
        }
        let before = device.record(stream)?;
        let done = work().and_then(|()| device.record(stream));
        let after = done.inspect_err(|_| device.release(before))?;
        self.unsettled.borrow_mut().push(Unsettled {
            name,
            items,
            events: (before, after),
        });
        Ok(())
    }

    /// Adds everything that was recorded to the sums. All of its events have passed.
    pub fn settle(&self, device: &dyn Device) {
        let Some(profile) = &self.profile else { return };
        let all = self.unsettled.take();
        let mut sums = profile.sums.lock();
        for one in all {
            let (before, after) = one.events;
            // A device that fails says so at its next call.
            if let Ok(seconds) = device.seconds_between(before, after) {
                let sum = sums.entry(one.name).or_default();
                sum.launches += 1;
                sum.seconds += seconds;
                sum.items += one.items;
            }
            device.release(before);
            device.release(after);
        }
    }
}
