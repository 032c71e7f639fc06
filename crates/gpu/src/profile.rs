//! How long each kernel, copy and fill takes on the device, if an executor is opened with
//! `GpuOptions::profiles`.
//!
//! A lane puts an event before and one after each of them ([`LaneProfile::timed`]). When it has
//! waited for everything, it asks for the time between the two ([`LaneProfile::settle`]). This
//! costs some microseconds for each launch, so it is for measurements only. Without it nothing is
//! recorded.
//!
//! The time in which the device is *busy* is that in which at least one of them runs, in whatever
//! lane. To compare lanes, each event gets a time on one axis: its distance from an earlier event,
//! the anchor, whose time is known. The driver gives a distance as a 32-bit number of milliseconds,
//! which is less exact the longer it is, so an event that is [`ANCHOR_S`] after the anchor becomes
//! the next anchor. A time becomes known when its lane settles, which is at the end of a piece.
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

/// An event this many seconds after the anchor becomes the next anchor. A distance of ten seconds
/// is exact to a microsecond.
const ANCHOR_S: f64 = 10.0;

/// The most spans of time that are kept.
const SPANS_MAX: usize = 1 << 16;

/// A set of times, whose length is known. Spans that begin before old ones that were forgotten are
/// cut off there, so nothing counts twice.
#[derive(Debug, Default)]
struct Covered {
    /// The start and the end of each span, in nanoseconds. Spans neither overlap nor touch.
    spans: BTreeMap<u64, u64>,
    /// What is before this is forgotten.
    floor_ns: u64,
    /// The length of all spans, also of those that are forgotten.
    sum_ns: u64,
}

impl Covered {
    fn add(&mut self, from: u64, to: u64) {
        let (mut from, mut to) = (from.max(self.floor_ns), to);
        if from >= to {
            return;
        }
        // Those that overlap or touch become a part of the new one.
        while let Some((&begin, &end)) = self.spans.range(..=to).next_back() {
            if end < from {
                break;
            }
            self.spans.remove(&begin);
            self.sum_ns -= end - begin;
            (from, to) = (from.min(begin), to.max(end));
        }
        self.spans.insert(from, to);
        self.sum_ns += to - from;
        if self.spans.len() > SPANS_MAX {
            let old = self.spans.keys().nth(SPANS_MAX / 2).copied();
            if let Some(old) = old {
                let kept = self.spans.split_off(&old);
                let last = self.spans.last_key_value();
                self.floor_ns = last.map_or(self.floor_ns, |(_, end)| *end);
                self.spans = kept;
            }
        }
    }
}

/// What is known of all lanes.
#[derive(Default)]
struct Sums {
    by_name: BTreeMap<&'static str, KernelTime>,
    busy: Covered,
    /// An event that is not released, and its time in seconds.
    anchor: Option<(Event, f64)>,
}

impl Sums {
    /// Adds work that has ended.
    fn add(&mut self, device: &dyn Device, one: &Unsettled) -> Result<(), DeviceError> {
        let (before, after) = one.events;
        let seconds = device.seconds_between(before, after)?;
        let sum = self.by_name.entry(one.name).or_default();
        sum.launches += 1;
        sum.seconds += seconds;
        sum.items += one.items;
        let begin_s = match self.anchor {
            None => 0.0,
            // Work that began before the anchor has a negative distance.
            Some((anchor, at_s)) => at_s + device.seconds_between(anchor, before)?,
        };
        let ns = |seconds: f64| (seconds.max(0.0) * 1e9) as u64;
        self.busy.add(ns(begin_s), ns(begin_s + seconds));
        let is_next = self
            .anchor
            .is_none_or(|(_, at_s)| begin_s >= at_s + ANCHOR_S);
        match (is_next, self.anchor) {
            (true, old) => {
                if let Some((old, _)) = old {
                    device.release(old);
                }
                self.anchor = Some((before, begin_s));
            }
            (false, _) => device.release(before),
        }
        device.release(after);
        Ok(())
    }
}

/// The sums of an executor.
pub(crate) struct Profile {
    sums: Mutex<Sums>,
}

impl Profile {
    pub fn new(runtime: &Runtime) -> Profile {
        Profile {
            sums: runtime.mutex(Sums::default()),
        }
    }

    /// The sums so far, by name.
    pub fn sums(&self) -> Vec<(&'static str, KernelTime)> {
        let sums = self.sums.lock();
        let all = sums.by_name.iter();
        all.map(|(name, sum)| (*name, *sum)).collect()
    }

    /// The time in which the device was busy, in microseconds.
    pub fn busy_us(&self) -> u64 {
        self.sums.lock().busy.sum_ns / 1000
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
            // A device that fails says so at its next call.
            if sums.add(device, &one).is_err() {
                device.release(one.events.0);
                device.release(one.events.1);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_that_is_covered_twice_counts_once() {
        let mut covered = Covered::default();
        let mut sum = |from, to| {
            covered.add(from, to);
            covered.sum_ns
        };
        assert_eq!(sum(10, 20), 10);
        assert_eq!(sum(30, 40), 20);
        assert_eq!(sum(12, 18), 20);
        assert_eq!(sum(5, 11), 25);
        assert_eq!(sum(20, 30), 35);
        assert_eq!(sum(0, 100), 100);
        assert_eq!(sum(50, 50), 100);
        assert_eq!(sum(60, 50), 100);
        assert_eq!(sum(100, 101), 101);
        assert_eq!(sum(200, 300), 201);
        assert_eq!(covered.spans, BTreeMap::from([(0, 101), (200, 300)]));
    }

    #[test]
    fn random_spans_have_the_length_of_their_union() {
        let (mut covered, mut is_covered) = (Covered::default(), vec![false; 5000]);
        let mut state = 7u64;
        let mut draw = |most: u64| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 33) % most
        };
        for _ in 0..400 {
            let from = draw(4900);
            let to = from + draw(100);
            covered.add(from, to);
            is_covered[from as usize..to as usize].fill(true);
            let expected = is_covered.iter().filter(|is| **is).count();
            assert_eq!(covered.sum_ns, expected as u64);
        }
    }

    #[test]
    fn old_spans_are_forgotten_and_their_time_stays() {
        let mut covered = Covered::default();
        let count = 3 * SPANS_MAX as u64;
        for span in 0..count {
            covered.add(10 * span, 10 * span + 4);
        }
        assert_eq!(covered.sum_ns, 4 * count);
        assert!(covered.spans.len() <= SPANS_MAX);
        // What lies before the floor is not counted once more.
        let floor = covered.floor_ns;
        covered.add(0, floor);
        assert_eq!(covered.sum_ns, 4 * count);
    }
}
