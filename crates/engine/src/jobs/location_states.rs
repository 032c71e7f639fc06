//! What the schedule remembers of the locations of tables: how fast flushes at each of them are,
//! when one is full or suspended, and which tables could not be read. `jobs/locations.rs` decides
//! with it.
//!
//! Threading: a plain value under the lock of the schedule. No I/O.

use std::collections::BTreeMap;
use std::time::Duration;

use siltstone_storage::Instant;

use crate::commit::flush_meter::FlushMeter;
use crate::formats::directories::REDIRECT;
use crate::jobs::pauses::Pauses;

/// How long a location counts as full after a flush or a compaction had no room there.
const FULL_FOR: Duration = Duration::from_secs(1);

/// The first time for which a table is left out that could not be read; each further failure
/// doubles it.
const UNREAD_FIRST: Duration = Duration::from_secs(1);

/// After this many failures of compactions that name no table, their tables are left out.
const UNEXPLAINED_MAX: u32 = 3;

/// The longest such time.
const UNREAD_LONGEST: Duration = Duration::from_secs(300);

/// How long the rate of the second location is believed after a flush that measured it. Then one
/// flush measures it again, because a location that seemed slow may not be slow any more. Each time
/// that nothing went there meanwhile because it was slow doubles this time.
const BELIEVED_FIRST: Duration = Duration::from_secs(2);

/// The longest such time.
const BELIEVED_LONGEST: Duration = Duration::from_secs(300);

/// A table that a compaction could not read.
#[derive(Clone, Copy)]
struct Unread {
    failures: u32,
    until: Instant,
}

/// Why no flush goes to the second location.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unused {
    /// Flushes there have failed, so none goes there before this time.
    Until(Instant),
    /// Its folder cannot be used until the store is opened again.
    Lost,
}

/// The time in which flushes go to the second location.
pub(super) struct Redirecting {
    pub(super) since: Instant,
    pub(super) flushed_bytes: u64,
}

/// What is remembered of the locations.
#[derive(Default)]
pub(crate) struct LocationStates {
    /// How fast flushes at each location are.
    meters: [FlushMeter; 2],
    /// How long the rate of the second location is believed after a flush; zero before the first.
    believed_for: Duration,
    /// Until when it is believed.
    believed_until: Option<Instant>,
    /// Whether a flush has gone there by its measured rate since it was last measured anew.
    is_chosen: bool,
    /// When nothing is flushed to the second location, because flushes there have failed.
    pub(super) pauses: Pauses,
    /// What the last event has said about the second location, if it said that it is not used.
    pub(super) reported: Option<Unused>,
    /// Until when each location counts as full.
    full_until: [Option<Instant>; 2],
    /// By id, tables that a compaction could not read.
    unread: BTreeMap<u64, Unread>,
    /// By id, tables of compactions that failed for an unknown reason, with the number of failures.
    unexplained: BTreeMap<u64, u32>,
    /// Bytes of the memtables that were flushed to each location.
    flushed_bytes: [u64; 2],
    pub(super) redirecting: Option<Redirecting>,
}

/// The load of one location when a flush is placed.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Load {
    /// Bytes of the memtables that are flushed there now.
    pub(super) running_bytes: u64,
    pub(super) bytes_per_s: u64,
}

impl Load {
    /// When a further flush of these bytes would end, in nanoseconds from now.
    pub(super) fn ends_ns(self, bytes: u64) -> u128 {
        let all = u128::from(self.running_bytes.saturating_add(bytes));
        all * 1_000_000_000 / u128::from(self.bytes_per_s.max(1))
    }
}

/// The location at which a flush of these bytes ends first. Of equal ones it is location 0.
pub(super) fn ends_first(first: Load, redirect: Load, bytes: u64) -> u32 {
    match redirect.ends_ns(bytes) < first.ends_ns(bytes) {
        true => REDIRECT,
        false => 0,
    }
}

impl LocationStates {
    /// The rate of flushes at a location, if it is measured.
    pub(crate) fn bytes_per_s(&self, location: u32) -> Option<u64> {
        self.meters.get(location as usize)?.bytes_per_s()
    }

    /// Bytes of the memtables that were flushed to a location since the open.
    pub(crate) fn flushed_bytes(&self, location: u32) -> u64 {
        let bytes = self.flushed_bytes.get(location as usize);
        bytes.copied().unwrap_or(0)
    }

    /// The rate of flushes at the second location, if it was measured lately.
    pub(super) fn believed_bytes_per_s(&self, now: Instant) -> Option<u64> {
        let is_believed = self.believed_until.is_some_and(|until| now < until);
        self.bytes_per_s(REDIRECT).filter(|_| is_believed)
    }

    /// A flush goes to the second location by its measured rate.
    pub(super) fn note_chosen(&mut self) {
        self.is_chosen = true;
    }

    /// Adds a flush to the rate of a location.
    fn measure(&mut self, location: u32, (begun, ended): (Instant, Instant), bytes: u64) {
        if location == REDIRECT {
            if self.believed_bytes_per_s(ended).is_none() {
                self.meters[REDIRECT as usize] = FlushMeter::default();
                self.believed_for = match std::mem::take(&mut self.is_chosen) {
                    true => BELIEVED_FIRST,
                    false => self.believed_for.saturating_mul(2),
                };
                self.believed_for = self.believed_for.clamp(BELIEVED_FIRST, BELIEVED_LONGEST);
            }
            self.believed_until = Some(ended + self.believed_for);
        }
        self.meters[location as usize].ended(begun, ended, bytes);
    }

    /// The tables that picks leave out now.
    pub(super) fn unread(&self, now: Instant) -> Vec<u64> {
        let unread = self.unread.iter().filter(|(_, unread)| now < unread.until);
        unread.map(|(id, _)| *id).collect()
    }

    /// A compaction could not read this table.
    pub(super) fn note_unread(&mut self, id: u64, now: Instant) {
        let unread = self.unread.entry(id).or_insert(Unread {
            failures: 0,
            until: now,
        });
        let pause = UNREAD_FIRST.saturating_mul(1 << unread.failures.min(16));
        unread.failures = unread.failures.saturating_add(1);
        unread.until = now + pause.min(UNREAD_LONGEST);
    }

    /// A compaction with these inputs at the second location has failed, and its error names none
    /// of them. If that happens again and again, they are left out all the same, so that other
    /// compactions come to their turn.
    pub(super) fn note_unexplained(&mut self, ids: impl Iterator<Item = u64>, now: Instant) {
        for id in ids {
            let count = self.unexplained.entry(id).or_insert(0);
            *count += 1;
            if *count >= UNEXPLAINED_MAX {
                self.unexplained.remove(&id);
                self.note_unread(id, now);
            }
        }
    }

    /// These tables were compacted.
    pub(super) fn forget_unread(&mut self, ids: impl Iterator<Item = u64>) {
        if self.unread.is_empty() && self.unexplained.is_empty() {
            return;
        }
        for id in ids {
            self.unread.remove(&id);
            self.unexplained.remove(&id);
        }
    }

    pub(super) fn is_full(&self, location: u32, now: Instant) -> bool {
        self.full_until[location as usize].is_some_and(|until| now < until)
    }

    pub(super) fn set_full(&mut self, location: u32, now: Instant) {
        self.full_until[location as usize] = Some(now + FULL_FOR);
    }

    /// Whether flushes are not sent to the second location for a while, because they have failed.
    pub(crate) fn is_suspended(&self, now: Instant) -> bool {
        self.pauses.is_paused(now)
    }

    /// A flush at this location was installed. `measures` says whether it is large enough to
    /// measure the rate.
    pub(super) fn flushed(
        &mut self,
        location: u32,
        (begun, now): (Instant, Instant),
        bytes: u64,
        measures: bool,
    ) {
        self.full_until[location as usize] = None;
        let flushed = &mut self.flushed_bytes[location as usize];
        *flushed = flushed.saturating_add(bytes);
        if measures {
            self.measure(location, (begun, now), bytes);
        }
        if location == REDIRECT {
            self.pauses.ended(true, now);
            if let Some(redirecting) = &mut self.redirecting {
                redirecting.flushed_bytes = redirecting.flushed_bytes.saturating_add(bytes);
            }
        }
    }
}

/// Whose failure it is that work failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Blame {
    /// The store's.
    Store,
    /// There was no room at location 0, and flushes have room at the second one. Writes are not
    /// refused.
    Room,
    /// That of the second location, or of a full location 0: a flush runs again at the other one at
    /// once, and this is no failure of flushes.
    Location,
    /// That of tables at the second location that cannot be read. Picks leave them out.
    Tables,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at_ms(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    #[test]
    fn a_flush_goes_where_it_ends_first() {
        let load = |running_bytes, bytes_per_s| Load {
            running_bytes,
            bytes_per_s,
        };
        assert_eq!(ends_first(load(0, 100), load(0, 100), 10), 0);
        assert_eq!(ends_first(load(10, 100), load(0, 100), 10), REDIRECT);
        // A slow disk gets a flush only if several wait for the fast one.
        assert_eq!(ends_first(load(10, 100), load(0, 25), 10), 0);
        assert_eq!(ends_first(load(40, 100), load(0, 25), 10), REDIRECT);
        assert_eq!(
            ends_first(load(u64::MAX, 0), load(u64::MAX, 0), u64::MAX),
            0
        );
    }

    #[test]
    fn a_table_that_cannot_be_read_is_left_out_for_longer_each_time() {
        let mut states = LocationStates::default();
        assert!(states.unread(at_ms(0)).is_empty());
        for (at, until) in [(0, 1000), (1000, 3000), (3000, 7000)] {
            states.note_unread(7, at_ms(at));
            assert_eq!(states.unread(at_ms(until - 1)), [7]);
            assert!(states.unread(at_ms(until)).is_empty());
        }
        for _ in 0..40 {
            states.note_unread(7, at_ms(7000));
        }
        assert!(states.unread(at_ms(307_000)).is_empty());
        states.forget_unread([7].into_iter());
        assert!(states.unread(at_ms(7000)).is_empty());
    }

    #[test]
    fn the_rate_of_the_second_location_is_forgotten_after_a_while() {
        let mut states = LocationStates::default();
        let rate = |states: &LocationStates, ms| states.believed_bytes_per_s(at_ms(ms));
        assert_eq!(rate(&states, 0), None);
        states.flushed(REDIRECT, (at_ms(0), at_ms(1000)), 100, false);
        assert_eq!(rate(&states, 1000), None, "too small");
        // It is slow, so nothing goes there before the rate is forgotten.
        for (ended, until) in [(1000, 3000), (4000, 8000), (9000, 17_000)] {
            states.flushed(REDIRECT, (at_ms(ended - 1000), at_ms(ended)), ended, true);
            assert_eq!(
                rate(&states, until - 1),
                Some(ended),
                "without earlier ones"
            );
            assert_eq!(rate(&states, until), None);
            assert_eq!(
                states.bytes_per_s(REDIRECT),
                Some(ended),
                "it is still shown"
            );
        }
        // Flushes go there by its rate.
        states.flushed(REDIRECT, (at_ms(17_000), at_ms(18_000)), 5, true);
        states.note_chosen();
        states.flushed(REDIRECT, (at_ms(18_000), at_ms(19_000)), 5, true);
        assert_eq!(rate(&states, 19_000 + 15_999), Some(5));
        states.flushed(REDIRECT, (at_ms(50_000), at_ms(51_000)), 5, true);
        assert_eq!(
            (rate(&states, 52_999), rate(&states, 53_000)),
            (Some(5), None)
        );
    }

    #[test]
    fn tables_of_failures_that_nothing_explains_are_left_out_after_three() {
        let mut states = LocationStates::default();
        for _ in 0..2 {
            states.note_unexplained([7, 8].into_iter(), at_ms(0));
        }
        states.forget_unread([8].into_iter());
        assert!(states.unread(at_ms(0)).is_empty());
        states.note_unexplained([7, 8].into_iter(), at_ms(0));
        assert_eq!(states.unread(at_ms(0)), [7]);
    }

    #[test]
    fn a_full_location_is_tried_again() {
        let mut states = LocationStates::default();
        states.set_full(0, at_ms(10));
        assert!(states.is_full(0, at_ms(1009)) && !states.is_full(0, at_ms(1010)));
        assert!(!states.is_full(REDIRECT, at_ms(10)));
        states.set_full(0, at_ms(2000));
        states.flushed(0, (at_ms(2000), at_ms(2001)), 5, true);
        assert!(!states.is_full(0, at_ms(2002)));
    }
}
