//! A cursor's way over hidden entries: it counts them, jumps over gaps, and leaves one behind.
//!
//! Threading: owned by one cursor.

use std::sync::Arc;

use super::map::Gap;
use super::state::Way;
use super::{Gaps, LOOK_EVERY};
use crate::core::Core;
use crate::view::KeyspaceCore;

/// A registered watch; letting it go abandons it.
struct Watching {
    keyspace: Arc<KeyspaceCore>,
    id: u64,
}

impl Drop for Watching {
    fn drop(&mut self) {
        self.keyspace.gaps.abandon(self.id);
    }
}

/// What a cursor does with a hidden entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hidden {
    /// It steps on.
    Step,
    /// It looks for a gap first, and may want a watch.
    Look,
}

/// Hidden entries in a row: those that a cursor steps over from where it was placed, or from an
/// entry that it showed, to the next one that it shows.
pub(crate) struct Run {
    /// Hidden entries that it stepped over.
    hidden: u64,
    /// Gaps that it jumped over.
    jumps: u64,
    /// The first hidden key.
    first: Vec<u8>,
    /// How far it came: forward a key above all hidden ones, backward the last hidden one. It is
    /// kept while there is a watch, and after a jump.
    far: Vec<u8>,
    watching: Option<Watching>,
    /// It asked for a watch and got none.
    refused: bool,
    /// It stops after this many hidden entries.
    limit: u64,
    /// Of so many hidden entries it makes a gap.
    min: u64,
}

impl Run {
    /// `min`: how many hidden entries make a gap.
    pub(crate) fn new(min: u64) -> Run {
        Run {
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

    /// Has runs end after this many hidden entries.
    pub(crate) fn set_limit(&mut self, limit: u64) {
        self.limit = limit;
    }

    /// Whether it is one of the store's own, which no statistics count.
    pub(crate) fn is_limited(&self) -> bool {
        self.limit != u64::MAX
    }

    /// Whether it ends here: at its limit, or because with a limit it is there only to leave a gap
    /// behind, and may not.
    pub(crate) fn is_over(&self) -> bool {
        self.is_limited() && (self.hidden >= self.limit || self.refused)
    }

    /// Forgets the last run.
    #[inline]
    pub(crate) fn begin(&mut self) {
        if self.hidden > 0 {
            self.hidden = 0;
            self.jumps = 0;
            self.watching = None;
            self.refused = false;
        }
    }

    /// The cursor does not show the newest entry of `key`.
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

    /// The cursor jumps over a gap.
    pub(crate) fn jump(&mut self, gap: &Gap, way: Way) {
        self.jumps += 1;
        self.far.clone_from(match way {
            Way::Forward => &gap.end,
            Way::Backward => &gap.start,
        });
    }

    /// Asks for a watch when it is worth one: after many hidden entries, or between two gaps, which
    /// then become one. `key` is the hidden one where the cursor stands, unless it has jumped.
    pub(crate) fn look(
        &mut self,
        core: &Core,
        keyspace: &Arc<KeyspaceCore>,
        number: u64,
        key: Option<&[u8]>,
        way: Way,
    ) {
        let gaps: &Gaps = &keyspace.gaps;
        let is_worth_it = self.hidden >= self.min || self.jumps >= 2;
        if self.watching.is_some() || self.refused || !is_worth_it {
            return;
        }
        gaps.arm(|quiet| {
            core.queue.with_led(|led| {
                quiet((!led).then(|| core.snapshots.published()));
            });
        });
        match gaps.watch(number, way, &self.first) {
            Some(id) => {
                let keyspace = keyspace.clone();
                self.watching = Some(Watching { keyspace, id });
                if let Some(key) = key {
                    self.set_far(key, way);
                }
            }
            None => self.refused = true,
        }
    }

    /// The cursor, at `number`, shows an entry or has come to an end: nothing from the first hidden
    /// key to the last is alive.
    #[inline]
    pub(crate) fn end(&mut self, core: &Core, number: u64) {
        if self.hidden > 0 {
            self.finish(core, number);
        }
    }

    fn finish(&mut self, core: &Core, number: u64) {
        if !self.is_limited() {
            core.metrics.hidden_count.add(self.hidden);
        }
        let Some(watching) = self.watching.take() else {
            return;
        };
        let gaps = &watching.keyspace.gaps;
        if gaps.finish(watching.id, number, &self.far, self.hidden) {
            core.metrics.gap_count.add(1);
        }
    }

    /// Whether it ended at its limit, and where it can be taken up again.
    pub(crate) fn gave_up(&self) -> Option<&[u8]> {
        let is_at_limit = self.is_limited() && self.hidden >= self.limit;
        is_at_limit.then_some(&self.far)
    }
}
