//! Cursors under range deletes: which range delete covers a key, and jumps over what it covers.
//!
//! What it is: [`RangeDeleteIndex`] asks the sources of a view that have range deletes. When a
//! cursor has met some hidden keys in a row, [`Cursor::jump`] moves the child that stands on the
//! current entry to the end of the range delete (going backward: to its start) instead of stepping.
//!
//! **Why no visible entry is passed over.** Let `d` be a range delete over `[start, end)` with
//! number `s`, at most the cursor's number. Every entry in that range with a smaller number is
//! hidden, whichever source has it: range deletes count by number, never by place. So a child may
//! be moved over a part of `[start, end)` in which all of its entries that the cursor's number can
//! see are older than `s`. Which part that is, each kind of child knows by numbers
//! ([`Child::older_until`]):
//! - a table has no entry with a number above the largest one that the manifest names for it.
//!   Numbers are given once, so an entry never has the number of a range delete; but an ingested
//!   table has one number for everything in it, and must lie below `s` with that number.
//! - a memtable knows where something was inserted after its first range delete
//!   ([`crate::memtable::Memtable::find_newer`]).
//!
//! Only that one child moves. If another child has a newer entry in the range, the merge comes to
//! it next; if it has covered ones, the cursor jumps with that child as well. An entry that a jump
//! passes over is hidden, and so are all older versions of its key, so nothing depends on having
//! seen it. The merge still has all children on the side that its direction says.
//!
//! Threading: owned by one reader.

use std::sync::Arc;

use super::Cursor;
use super::merge::EntryCursor;
use super::source::{Child, LevelCursor};
use crate::core::Core;
use crate::error::Result;
use crate::memtable::{Memtable, Newer};
use crate::planted::{self, Bug};
use crate::version::TableMeta;
use crate::view::{KeyspaceView, LevelView, Source};

/// Hidden keys in a row that a cursor steps over before it jumps: a jump costs about as much as
/// some steps, and most range deletes that a scan meets cover little.
const STEPS_BEFORE_JUMP: u32 = 8;

/// The sources of a view that have range deletes, asked by key.
#[derive(Default)]
pub(super) struct RangeDeleteIndex {
    seq: u64,
    memtables: Vec<Arc<Memtable>>,
    levels: Vec<Arc<LevelView>>,
}

/// A range delete that covers a key, with the part of its range that its source tells of.
#[derive(Default)]
pub(super) struct Covering {
    start: Vec<u8>,
    end: Vec<u8>,
    seq: u64,
}

impl RangeDeleteIndex {
    /// Makes it that of a view, at a number.
    pub(super) fn set(&mut self, view: &KeyspaceView, seq: u64) {
        self.seq = seq;
        self.memtables.clear();
        self.levels.clear();
        self.memtables
            .extend(view.sources.iter().filter_map(|s| match s {
                Source::Memtable(m) if m.mem.range_delete_count() > 0 => Some(m.mem.clone()),
                _ => None,
            }));
        let levels = view.level_views().filter(|(_, l)| l.has_range_deletes);
        self.levels.extend(levels.map(|(_, l)| l.clone()));
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.memtables.is_empty() && self.levels.is_empty()
    }

    /// The newest range delete at or below the number that covers `key`, in any source.
    pub(super) fn newest_covering(&self, core: &Core, key: &[u8]) -> Result<Option<u64>> {
        let mut newest = None;
        self.each_covering(core, key, |seq, _, _| newest = newest.max(Some(seq)))?;
        Ok(newest)
    }

    /// Gives the newest one of each source: its number, its start and its end.
    fn each_covering(
        &self,
        core: &Core,
        key: &[u8],
        mut found: impl FnMut(u64, &[u8], &[u8]),
    ) -> Result<()> {
        for mem in &self.memtables {
            if let Some(delete) = mem.range_delete_covering(key, self.seq) {
                found(delete.seq, delete.start, delete.end);
            }
        }
        for level in &self.levels {
            let Some(i) = level.level.find(key) else {
                continue;
            };
            let handle = &level.handles[i];
            let own = handle.meta.sequence_override;
            if handle.meta.range_deletes == 0 || own.is_some_and(|own| own > self.seq) {
                continue;
            }
            let reader = core.tables.reader(handle)?;
            let reader = reader.as_ref().expect("`reader` gives an open one");
            let limit = match own {
                None => self.seq,
                Some(_) => u64::MAX >> 8,
            };
            if let Some(delete) = reader.range_deletes().covering(key, limit) {
                found(own.unwrap_or(delete.seq), &delete.start, &delete.end);
            }
        }
        Ok(())
    }

    /// The same, with its range, in `covering`; false if there is none.
    fn find(&self, core: &Core, key: &[u8], covering: &mut Covering) -> Result<bool> {
        let mut is_covered = false;
        self.each_covering(core, key, |seq, start, end| {
            if !is_covered || seq > covering.seq {
                covering.seq = seq;
                covering.start.clear();
                covering.start.extend_from_slice(start);
                covering.end.clear();
                covering.end.extend_from_slice(end);
                is_covered = true;
            }
        })?;
        Ok(is_covered)
    }
}

impl Child {
    /// From the entry where it stands, how far in a range delete it has nothing newer: forward, the
    /// key at or above which it must be looked at again; backward, the key below which. `None`: it
    /// may have something newer here.
    fn older_until<'a>(&'a self, delete: &'a Covering, forward: bool) -> Option<&'a [u8]> {
        let end = if forward { &delete.end } else { &delete.start };
        match self {
            Child::Memtable(m) => match m.memtable().find_newer(m.key(), delete.seq, forward) {
                Newer::Nowhere => Some(end),
                Newer::Here => None,
                Newer::Beyond(key) if forward => Some(key.min(end)),
                Newer::Beyond(key) => Some(key.max(end)),
            },
            Child::Level(level) => level.older_until(delete, end, forward),
        }
    }

    /// Forward: goes to its first entry at or above `key`; backward: to its last entry below.
    fn go_to(&mut self, key: &[u8], forward: bool) -> Result<()> {
        match forward {
            true => self.seek(key, u64::MAX),
            false => self.seek_for_prev(key, u64::MAX),
        }
    }
}

/// Whether every entry of the table is older than a range delete with this number.
fn is_older(table: &TableMeta, delete: u64) -> bool {
    if planted::is(Bug::JumpOverNewerTable) {
        return table.visible_seqs().0 < delete;
    }
    match table.sequence_override {
        Some(own) => own < delete,
        None => table.max_seq <= delete,
    }
}

impl LevelCursor {
    /// [`Child::older_until`]; `end` is that end of the range delete to which the cursor goes. It
    /// asks the manifest's numbers of the tables on the way and opens none of them.
    fn older_until<'a>(
        &'a self,
        delete: &'a Covering,
        end: &'a [u8],
        forward: bool,
    ) -> Option<&'a [u8]> {
        let tables = self.tables();
        let here = self.position();
        if !is_older(&tables[here], delete.seq) {
            return None;
        }
        if forward {
            let newer = tables[here + 1..]
                .iter()
                .take_while(|table| table.bounds.start.as_ref() < end)
                .find(|table| !is_older(table, delete.seq));
            return Some(newer.map_or(end, |table| table.bounds.start.as_ref()));
        }
        // Going backward, what counts is where the tables after the newer one begin.
        let mut until = tables[here].bounds.start.as_ref();
        for table in tables[..here].iter().rev() {
            if until <= end || !is_older(table, delete.seq) {
                return Some(until.max(end));
            }
            until = table.bounds.start.as_ref();
        }
        Some(end)
    }
}

impl Cursor {
    /// Called after each key that was not shown. After enough of them in a row, moves children over
    /// what range deletes cover, as long as the merge stands on a covered entry.
    #[inline]
    pub(super) fn jump_covered(&mut self, forward: bool) -> Result<()> {
        self.hidden_in_a_row = self.hidden_in_a_row.saturating_add(1);
        if self.hidden_in_a_row < STEPS_BEFORE_JUMP || self.deletes.is_empty() {
            return Ok(());
        }
        while self.merged.valid() && self.jump(forward)? {}
        Ok(())
    }

    /// Moves the child that stands on the current entry to where it may have something that a range
    /// delete over that entry does not cover. False if it must be stepped instead.
    #[cold]
    fn jump(&mut self, forward: bool) -> Result<bool> {
        if !self
            .deletes
            .find(&self.core, self.merged.key(), &mut self.covering)?
        {
            self.hidden_in_a_row = 0;
            return Ok(false);
        }
        let mut target = std::mem::take(&mut self.target);
        target.clear();
        let found = self.merged.current().older_until(&self.covering, forward);
        let jumps = found.map(|until| target.extend_from_slice(until)).is_some();
        let moved = match jumps {
            true => self
                .merged
                .move_current(|child| child.go_to(&target, forward)),
            false => Ok(()),
        };
        self.target = target;
        moved?;
        if !jumps {
            // Do not try again at each of the next keys.
            self.hidden_in_a_row = 0;
        }
        Ok(jumps)
    }
}
