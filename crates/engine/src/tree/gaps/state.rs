//! The gaps and the watches of a keyspace: the value that [`super::shared`] keeps behind a mutex.
//!
//! The argument for exactness is at the head of the module `gaps`; rules G1 to G4 there are kept
//! here. This file and `map.rs` use nothing of the store, so that `tests/gaps_loom.rs` can compile
//! them without it.
//!
//! Threading: a value behind a mutex.

use std::sync::Arc;

use siltstone_storage::planted;

use super::map::{Gap, GapMap, after};

/// The maximum number of gaps of a keyspace.
const GAPS_MAX: usize = 4096;

/// The maximum number of bytes of their keys.
const KEY_BYTES_MAX: usize = 1 << 20;

/// The maximum number of readers that have a watch at the same time.
const WATCHES_MAX: usize = 16;

/// Gaps that nobody uses are forgotten when more keys have come to life than this times the number
/// of entries that the gaps hide. By then it costs more to invalidate keys than to find the gaps
/// again.
const IDLE_TIMES: u64 = 8;

/// Gaps are not forgotten before this many keys have come to life for each hidden entry that a gap
/// needs.
const IDLE_MIN_TIMES: u64 = 256;

/// The direction of a reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Forward,
    Backward,
}

/// A run of hidden entries that a reader is passing through. Keys that come to life ahead of the
/// anchor bound the gap that the reader may leave behind.
#[derive(Debug)]
struct Watch {
    id: u64,
    way: Way,
    /// The first hidden key that the reader met.
    anchor: Vec<u8>,
    /// Forward: the gap ends here at the latest. Backward: it starts here at the earliest.
    bound: Option<Vec<u8>>,
}

impl Watch {
    /// Bounds the gap, because the keys from `first` to `last`, both included, may be alive.
    fn cut(&mut self, first: &[u8], last: &[u8]) {
        let anchor = &self.anchor[..];
        match self.way {
            Way::Forward if last >= anchor => {
                let bound = first.max(anchor);
                if self.bound.as_deref().is_none_or(|old| bound < old) {
                    self.bound = Some(bound.to_vec());
                }
            }
            Way::Backward if first <= anchor => {
                let bound = after(last.min(anchor));
                if self.bound.as_ref().is_none_or(|old| &bound > old) {
                    self.bound = Some(bound);
                }
            }
            _ => {}
        }
    }
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct State {
    armed: bool,
    /// The last number of the last group that invalidated keys. Initially it is the first number
    /// from which every leader invalidates keys. `None` if a leader that does not invalidate keys
    /// may still be running.
    invalidated: Option<u64>,
    watches: Vec<Watch>,
    next_watch: u64,
    map: Arc<GapMap>,
    /// Keys that came to life since a gap was used.
    idle: u64,
}

/// What [`State::invalidate`] has changed for readers and leaders.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Invalidated {
    /// The map is the same as before.
    Nothing,
    /// The map has changed and must be shown to readers.
    Map,
    /// All gaps are forgotten, and leaders need not invalidate keys any more.
    Disarmed,
}

impl State {
    /// The gaps that readers are shown.
    pub(crate) fn map(&self) -> &Arc<GapMap> {
        &self.map
    }

    /// Makes leaders invalidate keys from now on. `quiet` is the published number if nobody leads:
    /// then every later leader invalidates keys (G2). Otherwise this is known from the next call of
    /// [`State::invalidate`] on.
    pub(crate) fn arm(&mut self, quiet: Option<u64>) {
        self.armed = true;
        self.invalidated = self.invalidated.or(quiet);
    }

    /// Whether every leader invalidates the keys that it brings to life.
    pub(crate) fn is_complete(&self) -> bool {
        self.invalidated.is_some()
    }

    /// Takes the keys of these closed ranges, which come to life with the group that ends with the
    /// number `last`, out of the gaps, and bounds the watches by them. `last` is not published yet.
    /// `used` says whether a gap was used since the previous call. `gap_min` is the number of
    /// hidden entries that make a gap.
    pub(crate) fn invalidate<'k>(
        &mut self,
        alive: impl Iterator<Item = (&'k [u8], &'k [u8])>,
        last: u64,
        used: bool,
        gap_min: u64,
    ) -> Invalidated {
        // This leader read the flag before another one cleared it.
        if !self.armed {
            return Invalidated::Nothing;
        }
        // All later leaders come here as well, whether or not this one brings anything to life.
        self.invalidated.get_or_insert(last);
        let mut changed: Option<GapMap> = None;
        let mut count = 0;
        for (first, last) in alive {
            count += 1;
            for watch in &mut self.watches {
                watch.cut(first, last);
            }
            let map = changed.as_ref().unwrap_or(&self.map);
            if !planted!(GapOutlivesPut) && map.overlaps(first, last) {
                let map = changed.get_or_insert_with(|| (*self.map).clone());
                map.cut(first, last);
                // A key in the middle makes two gaps of one.
                keep_bounds(map);
            }
        }
        if count == 0 {
            return Invalidated::Nothing;
        }
        self.invalidated = Some(last);
        self.idle = if used { 0 } else { self.idle + count };
        let idle_min = gap_min.saturating_mul(IDLE_MIN_TIMES);
        if self.watches.is_empty()
            && self.idle > idle_min.max(self.map.hidden().saturating_mul(IDLE_TIMES))
        {
            let next_watch = self.next_watch;
            *self = State {
                next_watch,
                ..State::default()
            };
            return Invalidated::Disarmed;
        }
        match changed {
            Some(map) => {
                self.map = Arc::new(map);
                Invalidated::Map
            }
            None => Invalidated::Nothing,
        }
    }

    /// Registers a watch for a reader at `number` that met a run of hidden entries, beginning with
    /// `anchor`, and wants to leave a gap behind. Returns `None` if it may not (G3), or if too many
    /// others have a watch.
    pub(crate) fn watch(&mut self, number: u64, way: Way, anchor: &[u8]) -> Option<u64> {
        let invalidated = self.invalidated?;
        if invalidated > number && !planted!(GapIgnoresEarlierPuts)
            || self.watches.len() >= WATCHES_MAX
        {
            return None;
        }
        self.idle = 0;
        let id = self.next_watch;
        self.next_watch += 1;
        self.watches.push(Watch {
            id,
            way,
            anchor: anchor.to_vec(),
            bound: None,
        });
        Some(id)
    }

    /// The reader of a watch, at `number`, has found no live key from its anchor to `far`: forward
    /// the gap ends there, backward it starts there. Returns true if there is a new gap to show.
    pub(crate) fn finish(&mut self, id: u64, number: u64, far: &[u8], hidden: u64) -> bool {
        let Some(watch) = self.unwatch(id) else {
            return false;
        };
        let (start, end) = match watch.way {
            Way::Forward => {
                let end = match watch.bound {
                    Some(bound) if &bound[..] < far => bound,
                    _ => far.to_vec(),
                };
                (watch.anchor, end)
            }
            Way::Backward => {
                let start = match watch.bound {
                    Some(bound) if &bound[..] > far => bound,
                    _ => far.to_vec(),
                };
                (start, after(&watch.anchor))
            }
        };
        if start >= end {
            return false;
        }
        let mut map = (*self.map).clone();
        map.join(Gap {
            start,
            end,
            number,
            hidden,
        });
        keep_bounds(&mut map);
        self.map = Arc::new(map);
        true
    }

    /// Removes a watch whose reader leaves no gap behind.
    pub(crate) fn abandon(&mut self, id: u64) {
        self.unwatch(id);
    }

    fn unwatch(&mut self, id: u64) -> Option<Watch> {
        let at = self.watches.iter().position(|watch| watch.id == id)?;
        Some(self.watches.swap_remove(at))
    }
}

/// Forgets gaps until the rest is within the bounds.
fn keep_bounds(map: &mut GapMap) {
    while map.len() > GAPS_MAX || map.key_bytes() > KEY_BYTES_MAX {
        map.drop_oldest();
    }
}
