//! Cursors and range deletes: finds the range delete that covers a key, and jumps over the keys
//! that it covers.
//!
//! [`RangeDeleteIndex`] looks a key up in those sources of a view that have range deletes. When a
//! cursor has met some hidden keys in a row, [`Cursor::jump`] moves the child that stands on the
//! current entry to the end of the range delete (backward: to its start) instead of stepping. A
//! seek jumps before it opens a table: [`Search`] skips tables whose entries are all covered by a
//! range delete that is found without opening anything, and tables beyond the bounds.
//!
//! **Why no visible entry is skipped.** Let `d` be a range delete over `[start, end)` with the
//! number `s`, which is not above the cursor's number. Every entry in that range with a smaller
//! number is hidden, whichever source has it, because range deletes count by number alone. So a
//! child may be moved over a part of `[start, end)` in which all of its entries that the cursor can
//! see are older than `s`. [`Child::older_until`] finds that part by numbers alone:
//! - A table has no entry with a number above the largest one that the manifest has for it. Numbers
//!   are given once, so an entry never has the number of a range delete. An ingested table has one
//!   number for everything in it, and this number must be below `s`.
//! - A memtable has stamps that say where entries were inserted after its first range delete
//!   ([`crate::tree::memtable::Memtable::find_newer`]).
//!
//! The same proof holds for a table that a seek skips: all of its entries on the way, from the
//! target of the seek to the table's end (backward: to its left bound), lie within the range
//! delete, and by the manifest's number they are older.
//!
//! Only that one child moves. If another child has a newer entry in the range, the merge comes to
//! it next; if it has covered ones, the cursor jumps with that child as well. An entry that a jump
//! skips is hidden, and so are all older versions of its key, so nothing depends on having seen it.
//! All children of the merge are still at or behind its current entry, in its direction.
//!
//! Threading: owned by one reader.

use std::sync::Arc;

use siltstone_table::key::MAX_SEQ;

use super::child::{Child, LevelCursor};
use super::merge::{EntryCursor, MergeCursor};
use super::{Cursor, IterOptions};
use crate::formats::version::{End, TableMeta};
use crate::tree::Tree;
use crate::tree::memtable::{Memtable, Newer};
use crate::tree::view::{KeyspaceView, LevelView, Source};
use crate::types::error::Result;

/// A cursor steps over this many hidden keys in a row before it jumps: a jump costs about as much
/// as some steps, and most range deletes that a scan meets cover little.
const STEPS_BEFORE_JUMP: u32 = 8;

/// The maximum number of tables of one source that a seek skips before it opens one. Looking up
/// this many costs less than opening a table.
const SKIPPED_MAX: u32 = 64;

/// The sources of a view that have range deletes.
#[derive(Default)]
pub(super) struct RangeDeleteIndex {
    seq: u64,
    memtables: Vec<Arc<Memtable>>,
    levels: Vec<Arc<LevelView>>,
}

/// A range delete that covers a key, with the part of its range that its source has.
#[derive(Default)]
pub(super) struct Covering {
    start: Vec<u8>,
    end: Vec<u8>,
    seq: u64,
}

impl RangeDeleteIndex {
    /// Makes this the index of `view`, for reads at the number `seq`.
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
    pub(super) fn newest_covering(&self, tree: &Tree, key: &[u8]) -> Result<Option<u64>> {
        let mut newest = None;
        self.each_covering(tree, key, true, |seq, _, _| newest = newest.max(Some(seq)))?;
        Ok(newest)
    }

    /// Calls `found` with the number, start and end of the newest range delete of each source that
    /// covers `key`. Without `opens`, tables that are not open are ignored.
    fn each_covering(
        &self,
        tree: &Tree,
        key: &[u8],
        opens: bool,
        mut found: impl FnMut(u64, &[u8], &[u8]),
    ) -> Result<()> {
        let seq = self.seq;
        for mem in &self.memtables {
            if let Some(delete) = mem.range_delete_covering(key, seq) {
                found(delete.seq, delete.start, delete.end);
            }
        }
        for level in &self.levels {
            let Some(i) = level.level.find(key) else {
                continue;
            };
            let handle = &level.handles[i];
            let own = handle.meta.sequence_override;
            if handle.meta.range_deletes == 0 || own.is_some_and(|own| own > seq) {
                continue;
            }
            let reader = match opens {
                true => tree.tables.reader(handle)?,
                false => tree.tables.reader_if_open(handle),
            };
            let Some(reader) = reader.as_ref() else {
                continue;
            };
            let limit = match own {
                None => seq,
                Some(_) => MAX_SEQ,
            };
            if let Some(delete) = reader.range_deletes().covering(key, limit) {
                found(own.unwrap_or(delete.seq), &delete.start, &delete.end);
            }
        }
        Ok(())
    }

    /// Puts the newest range delete of all sources that covers `key` into `covering`. Returns false
    /// if there is none.
    fn find(&self, tree: &Tree, key: &[u8], opens: bool, covering: &mut Covering) -> Result<bool> {
        let mut is_covered = false;
        self.each_covering(tree, key, opens, |seq, start, end| {
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
    /// The key up to which this child has nothing newer than a range delete, from the entry where
    /// it stands. Forward, the key is excluded; backward, it is included. `None` if this entry may
    /// be newer.
    fn older_until<'a>(&'a self, delete: &'a Covering, forward: bool) -> Option<&'a [u8]> {
        let end = if forward { &delete.end } else { &delete.start };
        match self {
            Child::Memtable(m) => match m.memtable().find_newer(m.key(), delete.seq, forward) {
                Newer::Nowhere => Some(end),
                Newer::Here => None,
                Newer::Beyond(key) if forward => Some(key.min(end)),
                Newer::Beyond(key) => Some(key.max(end)),
            },
            Child::Level(level) => level.older_until(level.position(), delete, end, forward),
        }
    }

    /// A key above which the child has no entry. `None` if the child is a memtable, or if that key
    /// is not known.
    fn last_bound(&self) -> Option<Vec<u8>> {
        match self {
            Child::Memtable(_) => None,
            Child::Level(level) => level.tables().last()?.bounds.end.key().map(<[u8]>::to_vec),
        }
    }

    /// Whether a seek would open a table.
    fn would_open(&self, key: &[u8], trailer: u64, forward: bool) -> bool {
        match self {
            Child::Memtable(_) => false,
            Child::Level(level) => level.would_open(key, trailer, forward).is_some(),
        }
    }

    /// Goes forward to its first entry at or after the position, or backward to its last entry at
    /// or before it.
    fn go_to(&mut self, key: &[u8], trailer: u64, forward: bool) -> Result<()> {
        match forward {
            true => self.seek(key, trailer),
            false => self.seek_for_prev(key, trailer),
        }
    }
}

/// The parts of a cursor by which a seek decides what it may skip.
pub(super) struct Search<'a> {
    pub(super) tree: &'a Tree,
    pub(super) deletes: &'a RangeDeleteIndex,
    pub(super) options: &'a IterOptions,
    pub(super) forward: bool,
}

/// The [`Search`] of a cursor. This is a macro because a method would borrow the whole cursor,
/// while the seek changes another part of it.
macro_rules! search {
    ($cursor:ident, $forward:expr) => {
        $crate::tree::iter::covered::Search {
            tree: &$cursor.tree,
            deletes: &$cursor.deletes,
            options: &$cursor.options,
            forward: $forward,
        }
    };
}
pub(super) use search;

/// The entries of a level that a seek may skip without opening their tables.
enum Skipped {
    /// The seek may skip no entries.
    Nothing,
    /// The seek may skip the entries before this key (backward: at or above it).
    Until(Vec<u8>),
    /// The seek may skip all entries within the bounds.
    All,
}

impl Search<'_> {
    /// Seeks all sources, each of which may skip tables.
    pub(super) fn seek(
        &self,
        merged: &mut MergeCursor<Child>,
        key: &[u8],
        trailer: u64,
    ) -> Result<()> {
        let would_open = |child: &Child| child.would_open(key, trailer, self.forward);
        if !self.deletes.is_empty() && merged.children().iter().any(would_open) {
            // The newest sources come first. They may open tables whose range deletes cover the
            // tables that older sources would open.
            return merged.seek_each(self.forward, |child| self.seek_child(child, key, trailer));
        }
        match self.forward {
            true => merged.seek(key, trailer),
            false => merged.seek_for_prev(key, trailer),
        }
    }

    /// Seeks all sources to their last entries.
    pub(super) fn seek_to_last(&self, merged: &mut MergeCursor<Child>) -> Result<()> {
        if self.deletes.is_empty() {
            return merged.seek_to_last();
        }
        merged.seek_each(false, |child| match child.last_bound() {
            Some(key) => self.seek_child(child, &key, 0),
            None => child.seek_to_last(),
        })
    }

    /// Seeks one source, which may skip tables.
    fn seek_child(&self, child: &mut Child, key: &[u8], trailer: u64) -> Result<()> {
        if let Child::Level(level) = child {
            match self.skipped(level, key, trailer)? {
                Skipped::Nothing => {}
                Skipped::Until(until) => return child.go_to(&until, u64::MAX, self.forward),
                Skipped::All => {
                    level.finish();
                    return Ok(());
                }
            }
        }
        child.go_to(key, trailer, self.forward)
    }

    /// The entries that a level may skip on the way to a position.
    fn skipped(&self, level: &LevelCursor, key: &[u8], trailer: u64) -> Result<Skipped> {
        let mut until: Option<Vec<u8>> = None;
        let mut covering = Covering::default();
        for _ in 0..SKIPPED_MAX {
            let (key, trailer) = match &until {
                Some(until) => (&until[..], u64::MAX),
                None => (key, trailer),
            };
            let Some(at) = level.would_open(key, trailer, self.forward) else {
                break;
            };
            let bounds = &level.tables()[at].bounds;
            let start = &bounds.start[..];
            // The lowest key of the table that the seek could meet.
            let from = if self.forward { key.max(start) } else { start };
            let is_out = match (&self.options.lower, &self.options.upper) {
                (_, Some(upper)) if self.forward => from >= &upper[..],
                (Some(lower), _) if !self.forward => key <= &lower[..] && trailer == u64::MAX,
                _ => false,
            };
            if is_out {
                return Ok(Skipped::All);
            }
            if !self.deletes.find(self.tree, from, false, &mut covering)? {
                break;
            }
            // Whether all of the table's entries on the way lie before the end of the range delete.
            let end = &covering.end[..];
            let is_covered = match (&bounds.end, self.forward) {
                (_, false) if key < end || key == end && trailer == u64::MAX => true,
                (End::Included(last), _) => &last[..] < end,
                (End::Excluded(last), _) => &last[..] <= end,
                (End::Unbounded, _) => false,
            };
            let to = if self.forward { end } else { &covering.start };
            let next = level.older_until(at, &covering, to, self.forward);
            let Some(next) = next.filter(|_| is_covered) else {
                break;
            };
            until = Some(next.to_vec());
        }
        Ok(until.map_or(Skipped::Nothing, Skipped::Until))
    }
}

/// Whether every entry of the table is older than a range delete with this number.
fn is_older(table: &TableMeta, delete: u64) -> bool {
    match table.sequence_override {
        Some(own) => own < delete,
        None => table.max_seq <= delete,
    }
}

impl LevelCursor {
    /// [`Child::older_until`] from table `here` on. `end` is the end of the range delete in the
    /// cursor's direction. This compares the manifest's numbers and opens no table.
    fn older_until<'a>(
        &'a self,
        here: usize,
        delete: &'a Covering,
        end: &'a [u8],
        forward: bool,
    ) -> Option<&'a [u8]> {
        let tables = self.tables();
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
        // Going backward, everything is older down to the start of the table after the newer one.
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
    /// Must be called after each key that was not shown. After enough of these in a row, this moves
    /// children over the keys that range deletes cover, as long as the merge stands on a covered
    /// entry.
    #[inline]
    pub(super) fn jump_covered(&mut self, forward: bool) -> Result<()> {
        self.hidden_in_a_row = self.hidden_in_a_row.saturating_add(1);
        if self.hidden_in_a_row < STEPS_BEFORE_JUMP || self.deletes.is_empty() {
            return Ok(());
        }
        while self.merged.valid() && self.jump(forward)? {}
        Ok(())
    }

    /// Moves the child that stands on the current entry to its next position that the newest range
    /// delete over that entry may not cover. Returns false if the child must be stepped instead.
    #[cold]
    fn jump(&mut self, forward: bool) -> Result<bool> {
        if !self
            .deletes
            .find(&self.tree, self.merged.key(), true, &mut self.covering)?
        {
            self.hidden_in_a_row = 0;
            return Ok(false);
        }
        let mut target = std::mem::take(&mut self.target);
        target.clear();
        let found = self.merged.current().older_until(&self.covering, forward);
        let jumps = found.map(|until| target.extend_from_slice(until)).is_some();
        let search = search!(self, forward);
        let moved = match jumps {
            true => self
                .merged
                .move_current(|child| search.seek_child(child, &target, u64::MAX)),
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
