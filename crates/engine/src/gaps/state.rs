//! What is known of gaps, and when it holds: the part that needs a lock, without the lock.
//!
//! The argument for exactness is at the head of the module `gaps`; rules G1 to G4 there are kept
//! here. This file and `map.rs` know nothing of the store, so that `tests/gaps_loom.rs` compiles
//! them as they are.
//!
//! Threading: a value behind a mutex.

use std::sync::Arc;

use siltstone_storage::planted::{self, Bug};

use super::map::{Gap, GapMap, after};

/// Gaps that a keyspace remembers, at most.
const GAPS_MAX: usize = 4096;

/// Bytes of their keys, at most.
const KEY_BYTES_MAX: usize = 1 << 20;

/// Readers that may look for a gap at the same time.
const WATCHES_MAX: usize = 16;

/// Gaps are forgotten when nobody has used one while this many times as many keys came to life as
/// the gaps hide entries: by then telling of the keys costs more than finding the gaps again.
const IDLE_TIMES: u64 = 8;

/// As many keys as this, for each hidden entry that a gap needs, may come to life at least before
/// gaps that nobody uses are forgotten.
const IDLE_MIN_TIMES: u64 = 256;

/// Where a reader goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Forward,
    Backward,
}

/// A run of hidden entries that a reader is passing through. What comes to life ahead of the anchor
/// bounds the gap that the reader may leave behind.
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
    /// The keys from `first` up to and with `last` may be alive.
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
    /// From this number on the leaders have told of every key that came to life, and it is the
    /// number of the last group that they told of. None: it is not known that they tell.
    told: Option<u64>,
    watches: Vec<Watch>,
    next_watch: u64,
    map: Arc<GapMap>,
    /// Keys that came to life since a gap was used.
    idle: u64,
}

/// What came of telling.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Told {
    /// The map is what it was.
    Same,
    /// There is another map to show.
    Changed,
    /// Nothing is remembered any more, and nobody needs to tell.
    Disarmed,
}

impl State {
    /// The gaps, to be shown to readers.
    pub(crate) fn map(&self) -> &Arc<GapMap> {
        &self.map
    }

    /// Leaders are asked to tell from now on. `quiet` is the published number if nobody leads: then
    /// every later leader tells (G2). Otherwise the next leader that tells says so.
    pub(crate) fn arm(&mut self, quiet: Option<u64>) {
        self.armed = true;
        self.told = self.told.or(quiet);
    }

    /// Whether every leader tells.
    pub(crate) fn is_told(&self) -> bool {
        self.told.is_some()
    }

    /// The leader tells that these closed ranges of keys come to life with the group that ends with
    /// the number `last`, which is not published yet. `used`: a gap was used since a leader last
    /// told. `gap_min`: of how many hidden entries cursors make a gap.
    pub(crate) fn tell<'k>(
        &mut self,
        alive: impl Iterator<Item = (&'k [u8], &'k [u8])>,
        last: u64,
        used: bool,
        gap_min: u64,
    ) -> Told {
        // A leader that looked before the last one disarmed.
        if !self.armed {
            return Told::Same;
        }
        // All later leaders tell as well, whether or not this one brings anything to life.
        self.told.get_or_insert(last);
        let mut changed: Option<GapMap> = None;
        let mut count = 0;
        for (first, end) in alive {
            count += 1;
            if !planted::is(Bug::WatchOutlivesPut) {
                for watch in &mut self.watches {
                    watch.cut(first, end);
                }
            }
            let map = changed.as_ref().unwrap_or(&self.map);
            if !planted::is(Bug::GapOutlivesPut) && map.overlaps(first, end) {
                let map = changed.get_or_insert_with(|| (*self.map).clone());
                map.cut(first, end);
                // A key in the middle makes two gaps of one.
                keep_bounds(map);
            }
        }
        if count == 0 {
            return Told::Same;
        }
        self.told = Some(last);
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
            return Told::Disarmed;
        }
        match changed {
            Some(map) => {
                self.map = Arc::new(map);
                Told::Changed
            }
            None => Told::Same,
        }
    }

    /// A reader at `number` met a run of hidden entries that begins with `anchor`, and wants to
    /// leave a gap behind. None: it may not (G3), or too many others do.
    pub(crate) fn watch(&mut self, number: u64, way: Way, anchor: &[u8]) -> Option<u64> {
        let told = self.told?;
        if told > number && !planted::is(Bug::GapIgnoresEarlierPuts)
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
    /// that is where the gap ends, backward where it starts. True if there is a new gap to show.
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

    /// The reader of a watch went elsewhere.
    pub(crate) fn abandon(&mut self, id: u64) {
        self.unwatch(id);
    }

    fn unwatch(&mut self, id: u64) -> Option<Watch> {
        let at = self.watches.iter().position(|watch| watch.id == id)?;
        Some(self.watches.swap_remove(at))
    }
}

/// Forgets gaps until the rest keeps to the bounds.
fn keep_bounds(map: &mut GapMap) {
    while map.len() > GAPS_MAX || map.key_bytes() > KEY_BYTES_MAX {
        map.drop_oldest();
    }
}
