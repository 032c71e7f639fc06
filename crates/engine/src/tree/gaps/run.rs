//! A run of hidden entries that a cursor steps over: their count, the gaps that the cursor jumps
//! over, and the gap that it leaves behind.
//!
//! Threading: owned by one cursor.

use std::sync::Arc;

use super::map::Gap;
use super::state::Way;
use super::{Gaps, LOOK_EVERY};
use crate::env::Env;
use crate::tree::Tree;

/// A registered watch. Dropping it abandons it.
struct Watching {
    gaps: Arc<Gaps>,
    id: u64,
}

impl Drop for Watching {
    fn drop(&mut self) {
        self.gaps.abandon(self.id);
    }
}

/// What a cursor does with a hidden entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hidden {
    /// The cursor steps on.
    Step,
    /// The cursor looks for a gap first, and may ask for a watch.
    Look,
}

/// Hidden entries in a row: those that a cursor steps over between two entries that it shows, or
/// between the target of a seek and the first entry that it shows.
pub(crate) struct HiddenRun {
    /// The number of hidden entries that the cursor stepped over.
    hidden: u64,
    /// The number of gaps that it jumped over.
    jumps: u64,
    /// The first hidden key.
    first: Vec<u8>,
    /// The far end of the run so far: forward a key above all hidden ones, backward the last hidden
    /// one. It is current only while there is a watch, and after a jump.
    far: Vec<u8>,
    watching: Option<Watching>,
    /// The cursor asked for a watch and got none.
    refused: bool,
    /// The run ends after this many hidden entries.
    limit: u64,
    /// This many hidden entries make a gap.
    min: u64,
}

impl HiddenRun {
    /// `min` is the number of hidden entries that make a gap.
    pub(crate) fn new(min: u64) -> HiddenRun {
        HiddenRun {
            hidden: 0,
            jumps: 0,
            first: Vec::new(),
            far: Vec::new(),
            watching: None,
            refused: false,
            limit: u64::MAX,
            min,
        }
    }

    /// Lets every run end after this many hidden entries.
    pub(crate) fn set_limit(&mut self, limit: u64) {
        self.limit = limit;
    }

    /// Whether this is a run of the maintenance task, which no statistics count.
    pub(crate) fn is_limited(&self) -> bool {
        self.limit != u64::MAX
    }

    /// Whether a run with a limit ends here, because it has reached the limit, or because it got no
    /// watch and so cannot leave a gap.
    pub(crate) fn is_over(&self) -> bool {
        self.is_limited() && (self.hidden >= self.limit || self.refused)
    }

    /// Starts over with no hidden entries.
    #[inline]
    pub(crate) fn begin(&mut self) {
        if self.hidden > 0 {
            self.hidden = 0;
            self.jumps = 0;
            self.watching = None;
            self.refused = false;
        }
    }

    /// Counts `key`, whose newest entry the cursor does not show.
    #[inline]
    pub(crate) fn hide(&mut self, key: &[u8], way: Way) -> Hidden {
        self.hidden += 1;
        if self.hidden == 1 {
            self.first.clear();
            self.first.extend_from_slice(key);
        }
        if self.watching.is_some() {
            self.set_far(key, way);
        }
        match self.hidden.is_multiple_of(LOOK_EVERY.min(self.min)) {
            true => Hidden::Look,
            false => Hidden::Step,
        }
    }

    fn set_far(&mut self, key: &[u8], way: Way) {
        self.far.clear();
        self.far.extend_from_slice(key);
        if way == Way::Forward {
            self.far.push(0);
        }
    }

    /// Counts a gap that the cursor jumps over.
    pub(crate) fn jump(&mut self, gap: &Gap, way: Way) {
        self.jumps += 1;
        self.far.clone_from(match way {
            Way::Forward => &gap.end,
            Way::Backward => &gap.start,
        });
    }

    /// Asks for a watch if a gap would pay: after many hidden entries, or between two gaps, which
    /// then become one. `key` is the hidden key where the cursor stands, unless it has just jumped.
    pub(crate) fn look(
        &mut self,
        tree: &Tree,
        gaps: &Arc<Gaps>,
        number: u64,
        key: Option<&[u8]>,
        way: Way,
    ) {
        let is_worth_it = self.hidden >= self.min || self.jumps >= 2;
        if self.watching.is_some() || self.refused || !is_worth_it {
            return;
        }
        gaps.arm(|quiet| {
            tree.leader_watch.with_led(&mut |led| {
                quiet((!led).then(|| tree.snapshots.published()));
            });
        });
        match gaps.watch(number, way, &self.first) {
            Some(id) => {
                let gaps = gaps.clone();
                self.watching = Some(Watching { gaps, id });
                if let Some(key) = key {
                    self.set_far(key, way);
                }
            }
            None => self.refused = true,
        }
    }

    /// Ends the run, because the cursor, which reads at `number`, shows an entry or has come to an
    /// end. No key from the first hidden one to the last is alive.
    #[inline]
    pub(crate) fn end(&mut self, env: &Env, number: u64) {
        if self.hidden > 0 {
            self.finish(env, number);
        }
    }

    fn finish(&mut self, env: &Env, number: u64) {
        if !self.is_limited() {
            env.metrics().hidden_count.add(self.hidden);
        }
        let Some(watching) = self.watching.take() else {
            return;
        };
        if watching
            .gaps
            .finish(watching.id, number, &self.far, self.hidden)
        {
            env.metrics().gap_count.add(1);
        }
    }

    /// The key at which to continue, if the run has ended at its limit.
    pub(crate) fn gave_up(&self) -> Option<&[u8]> {
        let is_at_limit = self.is_limited() && self.hidden >= self.limit;
        is_at_limit.then_some(&self.far)
    }
}
