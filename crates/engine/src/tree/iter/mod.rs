//! Iterators: a keyspace in key order at one published number, both ways, with bounds.
//!
//! [`Cursor`] pins a view and a number, merges the view's sources ([`merge`]), and shows for each
//! user key the newest entry at or below the number, unless it is a delete or a newer range delete
//! covers it. [`Range`] wraps two cursors as a standard double-ended iterator.
//!
//! Invariants: going forward, the merged stream stands on the shown entry; going backward, it
//! stands before all versions of the shown key, which are kept in `key` and `value`. Range deletes
//! count by number, whichever source has them: any source may have the newest one.
//!
//! Threading: owned by one reader; a cursor may be sent to another thread.

pub(crate) mod ahead;
pub(crate) mod child;
mod covered;
pub(crate) mod merge;
mod options;
mod range;

use std::sync::Arc;

use child::Child;
use covered::{Covering, RangeDeleteIndex, search};
use merge::{EntryCursor, MergeCursor, copy_key, same_key};
pub use options::{IterOptions, prefix_end};
pub use range::Range;

use crate::tree::Tree;
use crate::tree::gaps::run::{Hidden, HiddenRun};
use crate::tree::gaps::state::Way;
use crate::tree::view::{KeyspaceCore, KeyspaceView};
use crate::types::error::{Error, Result};

const DELETE: u8 = 0;
const PUT: u8 = 1;

/// A cursor steps over this many versions of one key before it seeks past the others.
const STEPS_BEFORE_SEEK: u32 = 16;

/// Room for most keys and for small values. The buffers grow for larger ones.
const KEY_CAPACITY_BYTES: usize = 64;
const VALUE_CAPACITY_BYTES: usize = 256;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// Before the first seek, past an end, or after an error.
    Invalid,
    Forward,
    Backward,
}

/// A position in a keyspace as it was at one moment. It moves in key order, in both directions, and
/// shows for each key the newest value of that moment. [`Range`] does the same as a standard
/// iterator.
///
/// A cursor is invalid before the first seek, past either end, and after an error. It pins its
/// view: obsolete tables stay on disk while it lives.
///
/// A seek costs one search in each memtable, run of level 0 and deeper level. A step costs one
/// comparison for each of these that is near. Nothing is allocated for a pair.
///
/// ```
/// # let folder = tempfile::tempdir().unwrap();
/// let store = siltstone::Store::open(folder.path(), siltstone::Options::default())?;
/// let numbers = store.default_keyspace()?;
/// for n in 0..100u8 {
///     numbers.put([n], [n, n])?;
/// }
/// let mut cursor = numbers.cursor([20u8]..[30u8])?;
/// cursor.seek([25])?;
/// let mut sum = 0;
/// while cursor.valid() {
///     sum += u32::from(cursor.value()[0]);
///     cursor.next()?;
/// }
/// assert_eq!(sum, 25 + 26 + 27 + 28 + 29);
/// cursor.seek_for_prev([99])?; // the last one within the bounds
/// assert_eq!(cursor.key(), [29]);
/// # siltstone::Result::Ok(())
/// ```
pub struct Cursor {
    merged: MergeCursor<Child>,
    deletes: RangeDeleteIndex,
    seq: u64,
    options: IterOptions,
    state: State,
    key: Vec<u8>,
    value: Vec<u8>,
    /// Scratch: the key on which the cursor stood before a refresh.
    stood: Vec<u8>,
    /// The number of hidden keys since one was shown, or since the last attempt to jump failed.
    hidden_in_a_row: u32,
    /// Scratch: the range delete that covers the current entry, and the target of a jump.
    covering: Covering,
    target: Vec<u8>,
    /// The hidden entries that the cursor is stepping over.
    run: HiddenRun,
    tree: Arc<Tree>,
    keyspace: Arc<KeyspaceCore>,
    _view: Arc<KeyspaceView>,
}

impl Cursor {
    pub(crate) fn new(
        tree: &Arc<Tree>,
        keyspace: &Arc<KeyspaceCore>,
        snapshot: Option<u64>,
        options: IterOptions,
    ) -> Result<Cursor> {
        let cursor = Cursor::unlisted(tree, keyspace, snapshot, options)?;
        tree.env.metrics().seek_count.add(1);
        Ok(cursor)
    }

    /// A cursor of the store itself, which is not counted in the statistics.
    pub(crate) fn unlisted(
        tree: &Arc<Tree>,
        keyspace: &Arc<KeyspaceCore>,
        snapshot: Option<u64>,
        options: IterOptions,
    ) -> Result<Cursor> {
        options.check()?;
        let (view, seq) = crate::tree::read::pin(tree, keyspace, snapshot)?;
        let levels = view.levels.iter().filter(|l| !l.level.is_empty()).count();
        let mut children = Vec::with_capacity(view.sources.len() + levels);
        child::set_children(tree, &view, options.fill_cache, &mut children);
        let mut deletes = RangeDeleteIndex::default();
        deletes.set(&view, seq);
        Ok(Cursor {
            merged: MergeCursor::new(children),
            deletes,
            seq,
            options,
            state: State::Invalid,
            key: Vec::with_capacity(KEY_CAPACITY_BYTES),
            value: Vec::with_capacity(VALUE_CAPACITY_BYTES),
            stood: Vec::new(),
            hidden_in_a_row: 0,
            covering: Covering::default(),
            target: Vec::new(),
            run: HiddenRun::new(tree.gap_min()),
            tree: tree.clone(),
            keyspace: keyspace.clone(),
            _view: view,
        })
    }

    /// Moves the cursor to the keyspace's present state, also from that of a snapshot. If the
    /// cursor stands on a key, it then stands on the present entry of that key or, if the key is
    /// gone, on the next one within the bounds. It keeps its buffers and the sources that are still
    /// in use, so this costs a seek and not a new cursor. Tables that it no longer needs may be
    /// deleted.
    ///
    /// # Errors
    /// `Closed` or `KeyspaceDropped`, which leave the cursor unchanged. Corruption or I/O, after
    /// which it is invalid.
    pub fn refresh(&mut self) -> Result<()> {
        self.tree.env.check_open()?;
        let (view, seq) = crate::tree::read::pin(&self.tree, &self.keyspace, None)?;
        let stood = std::mem::replace(&mut self.state, State::Invalid) != State::Invalid;
        let (tree, fill_cache) = (&self.tree, self.options.fill_cache);
        self.merged
            .change_children(|children| child::set_children(tree, &view, fill_cache, children));
        self.deletes.set(&view, seq);
        self.seq = seq;
        // The old view is released at the end, when the cursor stands in the new one.
        let _old = std::mem::replace(&mut self._view, view);
        self.tree.env.metrics().seek_count.add(1);
        if !stood {
            return Ok(());
        }
        let mut key = std::mem::take(&mut self.stood);
        key.clear();
        key.extend_from_slice(&self.key);
        let sought = self.seek(&key);
        self.stood = key;
        sought
    }

    /// Whether the cursor stands on an entry.
    pub fn valid(&self) -> bool {
        self.state != State::Invalid
    }

    /// The key. Empty while the cursor is invalid.
    pub fn key(&self) -> &[u8] {
        if self.valid() { &self.key } else { &[] }
    }

    /// The value. Empty while the cursor is invalid and without [`IterOptions::values`].
    pub fn value(&self) -> &[u8] {
        if self.valid() { &self.value } else { &[] }
    }

    /// Copies of the key and the value; `None` while the cursor is invalid.
    pub(crate) fn pair(&self) -> Option<(Vec<u8>, Vec<u8>)> {
        let pair = || (self.key.clone(), self.value.clone());
        self.valid().then(pair)
    }

    /// The sequence number at which the cursor reads.
    pub fn number(&self) -> u64 {
        self.seq
    }

    /// Goes to the first key within the bounds.
    ///
    /// # Errors
    /// Corruption or I/O; the cursor is invalid then.
    pub fn seek_to_first(&mut self) -> Result<()> {
        match self.options.lower.take() {
            Some(lower) => {
                let result = self.seek(&lower);
                self.options.lower = Some(lower);
                result
            }
            None => {
                self.state = State::Invalid;
                // The highest trailer sorts first, so this position is before every entry.
                search!(self, true).seek(&mut self.merged, &[], u64::MAX)?;
                self.show_next()
            }
        }
    }

    /// Goes to the last key within the bounds.
    ///
    /// # Errors
    /// Corruption or I/O; the cursor is invalid then.
    pub fn seek_to_last(&mut self) -> Result<()> {
        self.state = State::Invalid;
        match &self.options.upper {
            // The largest trailer sorts first, so this is the last entry before all of `upper`.
            Some(upper) => {
                search!(self, false).seek(&mut self.merged, upper, u64::MAX)?;
            }
            None => search!(self, false).seek_to_last(&mut self.merged)?,
        }
        self.show_prev()
    }

    /// Goes to the first key at or after `key` within the bounds.
    ///
    /// # Errors
    /// Corruption or I/O; the cursor is invalid then.
    pub fn seek(&mut self, key: impl AsRef<[u8]>) -> Result<()> {
        self.seek_bytes(key.as_ref())
    }

    fn seek_bytes(&mut self, key: &[u8]) -> Result<()> {
        self.state = State::Invalid;
        let from = match &self.options.lower {
            Some(lower) if key < &lower[..] => lower,
            _ => key,
        };
        let trailer = self.seq << 8 | 0xff;
        search!(self, true).seek(&mut self.merged, from, trailer)?;
        self.show_next()
    }

    /// Goes to the last key at or before `key` within the bounds.
    ///
    /// # Errors
    /// Corruption or I/O; the cursor is invalid then.
    pub fn seek_for_prev(&mut self, key: impl AsRef<[u8]>) -> Result<()> {
        self.seek_for_prev_bytes(key.as_ref())
    }

    fn seek_for_prev_bytes(&mut self, key: &[u8]) -> Result<()> {
        self.state = State::Invalid;
        let (from, trailer) = match &self.options.upper {
            Some(upper) if key >= &upper[..] => (&upper[..], u64::MAX),
            _ => (key, 0),
        };
        search!(self, false).seek(&mut self.merged, from, trailer)?;
        self.show_prev()
    }

    /// Goes to the next key.
    ///
    /// # Errors
    /// `InvalidArgument` on an invalid cursor; corruption or I/O, the cursor is invalid then.
    #[allow(clippy::should_implement_trait)] // A cursor lends; `Range` is the iterator.
    pub fn next(&mut self) -> Result<()> {
        match std::mem::replace(&mut self.state, State::Invalid) {
            State::Invalid => return Err(not_positioned()),
            State::Forward => {}
            State::Backward => {
                // The stream stands before all versions of the key.
                search!(self, true).seek(&mut self.merged, &self.key, 0)?;
                if self.merged.valid() && self.merged.key() == &self.key[..] {
                    self.merged.next()?;
                }
                return self.show_next();
            }
        }
        self.skip_key_inlined()?;
        self.show_next_inlined()
    }

    /// Goes to the previous key.
    ///
    /// # Errors
    /// `InvalidArgument` on an invalid cursor; corruption or I/O, the cursor is invalid then.
    pub fn prev(&mut self) -> Result<()> {
        match std::mem::replace(&mut self.state, State::Invalid) {
            State::Invalid => return Err(not_positioned()),
            State::Backward => {}
            State::Forward => {
                search!(self, false).seek(&mut self.merged, &self.key, u64::MAX)?;
            }
        }
        self.show_prev()
    }

    /// Goes forward past all versions of the shown key.
    fn skip_key(&mut self) -> Result<()> {
        self.skip_key_inlined()
    }

    /// [`Cursor::skip_key`] for a step, which a call would make slower.
    #[inline(always)]
    fn skip_key_inlined(&mut self) -> Result<()> {
        self.merged.next()?;
        if let Some(child) = self.merged.current_mut()
            && same_key(child.key(), &self.key)
        {
            return self.skip_older();
        }
        Ok(())
    }

    /// Goes forward past the remaining versions of the shown key.
    #[cold]
    fn skip_older(&mut self) -> Result<()> {
        let mut steps = 1;
        loop {
            self.merged.next()?;
            if !self.merged.valid() || !same_key(self.merged.key(), &self.key) {
                return Ok(());
            }
            steps += 1;
            if steps == STEPS_BEFORE_SEEK {
                self.merged.seek(&self.key, 0)?;
                if self.merged.valid() && self.merged.key() == &self.key[..] {
                    self.merged.next()?;
                }
                return Ok(());
            }
        }
    }

    /// Goes from a version that is too new to the newest visible version of the same key, or past
    /// the key if there is none.
    #[cold]
    fn skip_newer(&mut self) -> Result<()> {
        copy_key(&mut self.key, self.merged.key());
        for _ in 0..STEPS_BEFORE_SEEK {
            self.merged.next()?;
            if !self.merged.valid()
                || !same_key(self.merged.key(), &self.key)
                || self.merged.trailer() >> 8 <= self.seq
            {
                return Ok(());
            }
        }
        self.merged.seek(&self.key, self.seq << 8 | 0xff)
    }

    /// Shows the first visible entry from where the stream stands, forward.
    fn show_next(&mut self) -> Result<()> {
        self.show_next_inlined()
    }

    /// [`Cursor::show_next`] for a step, which a call would make slower. Nearly always the entry on
    /// which the stream stands is shown, without a look at range deletes or hidden entries.
    #[inline(always)]
    fn show_next_inlined(&mut self) -> Result<()> {
        self.hidden_in_a_row = 0;
        self.run.begin();
        if let Some(child) = self.merged.current_mut() {
            let (key, trailer) = child.entry();
            let is_within = match &self.options.upper {
                Some(upper) => key < &upper[..],
                None => true,
            };
            let is_shown = trailer as u8 == PUT && trailer >> 8 <= self.seq;
            if is_within && is_shown && self.deletes.is_empty() {
                copy_key(&mut self.key, key);
                self.value.clear();
                if self.options.values {
                    child.value_into(&mut self.value)?;
                }
                self.state = State::Forward;
                return Ok(());
            }
        }
        self.show_next_visible()
    }

    /// The part of [`Cursor::show_next`] for an entry that may be hidden.
    #[inline(never)]
    fn show_next_visible(&mut self) -> Result<()> {
        let found = self.find_next();
        self.end_run(&found);
        found
    }

    fn find_next(&mut self) -> Result<()> {
        while self.merged.valid() {
            if let Some(upper) = &self.options.upper
                && self.merged.key() >= &upper[..]
            {
                return Ok(());
            }
            let trailer = self.merged.trailer();
            if trailer >> 8 > self.seq {
                self.skip_newer()?;
                continue;
            }
            copy_key(&mut self.key, self.merged.key());
            // This is the newest entry that the number sees. Older versions do not matter.
            if self.shows(trailer)? {
                self.value.clear();
                if self.options.values {
                    self.merged.value_into(&mut self.value)?;
                }
                self.state = State::Forward;
                return Ok(());
            }
            if self.run.hide(&self.key, Way::Forward) == Hidden::Look
                && self.jump_gap(Way::Forward)?
            {
                continue;
            }
            self.skip_key()?;
            self.jump_covered(true)?;
        }
        Ok(())
    }

    /// Shows the last visible entry from where the stream stands, backward.
    fn show_prev(&mut self) -> Result<()> {
        self.hidden_in_a_row = 0;
        self.run.begin();
        let found = self.find_prev();
        self.end_run(&found);
        found
    }

    /// Ends the run of hidden entries, and leaves a gap behind if it was long enough and the seek
    /// or step did not fail.
    #[inline]
    fn end_run(&mut self, found: &Result<()>) {
        match found {
            Ok(()) => self.run.end(&self.tree.env, self.seq),
            // There are few watches. If this one stayed registered, no other cursor could use it
            // while this cursor lives.
            Err(_) => self.run.begin(),
        }
    }

    fn find_prev(&mut self) -> Result<()> {
        while self.merged.valid() {
            if let Some(lower) = &self.options.lower
                && self.merged.key() < &lower[..]
            {
                return Ok(());
            }
            self.key.clear();
            self.key.extend_from_slice(self.merged.key());
            if let Some(trailer) = self.take_newest()?
                && self.shows(trailer)?
            {
                if !self.options.values {
                    self.value.clear();
                }
                self.state = State::Backward;
                return Ok(());
            }
            let looks = self.run.hide(&self.key, Way::Backward) == Hidden::Look;
            if looks && self.jump_gap(Way::Backward)? {
                continue;
            }
            self.jump_covered(false)?;
        }
        Ok(())
    }

    /// Goes backward from the oldest version of `self.key` to before all of them. Returns the
    /// trailer of the newest version that the number sees, and puts its value into `self.value`.
    fn take_newest(&mut self) -> Result<Option<u64>> {
        // The oldest version comes first, so the last one at or below the number is the newest.
        let mut newest: Option<u64> = None;
        let mut steps = 0;
        while self.merged.valid() && self.merged.key() == &self.key[..] {
            if steps == STEPS_BEFORE_SEEK {
                return self.seek_newest();
            }
            steps += 1;
            let trailer = self.merged.trailer();
            if trailer >> 8 <= self.seq {
                newest = Some(trailer);
                self.take_value(trailer)?;
            }
            self.merged.prev()?;
        }
        Ok(newest)
    }

    /// Does the same as `take_newest` with two seeks, however many versions there are.
    #[cold]
    fn seek_newest(&mut self) -> Result<Option<u64>> {
        self.merged.seek(&self.key, self.seq << 8 | 0xff)?;
        let mut newest = None;
        if self.merged.valid() && self.merged.key() == &self.key[..] {
            let trailer = self.merged.trailer();
            newest = Some(trailer);
            self.take_value(trailer)?;
        }
        self.merged.seek_for_prev(&self.key, u64::MAX)?;
        Ok(newest)
    }

    /// Copies the value of the entry where the stream stands, if it is a put and the options ask
    /// for values. This is not inlined, so that the copy in the forward scan is.
    #[inline(never)]
    fn take_value(&mut self, trailer: u64) -> Result<()> {
        if self.options.values && trailer as u8 == PUT {
            self.value.clear();
            self.merged.value_into(&mut self.value)?;
        }
        Ok(())
    }

    /// How often the cursor has moved one of its sources, by a step or by a seek. Tests count this
    /// instead of time.
    #[doc(hidden)]
    pub fn moves_for_tests(&self) -> u64 {
        self.merged.moves()
    }

    /// At a hidden entry of `self.key`, goes to the end of the gap that contains the key, if there
    /// is a gap that may be used at this number ([`crate::tree::gaps`]). Forward, the stream then
    /// stands at or after the gap's end; backward, before its start. Returns true if the stream
    /// moved.
    #[cold]
    fn jump_gap(&mut self, way: Way) -> Result<bool> {
        let gap = self.keyspace.gaps.at(&self.key, self.seq);
        if let Some(gap) = &gap {
            match way {
                Way::Forward => {
                    let trailer = self.seq << 8 | 0xff;
                    search!(self, true).seek(&mut self.merged, &gap.end, trailer)?;
                }
                // The largest trailer sorts first, so this is the last entry before all versions of
                // the key.
                Way::Backward => {
                    search!(self, false).seek(&mut self.merged, &gap.start, u64::MAX)?;
                }
            }
            self.run.jump(gap, way);
            if !self.run.is_limited() {
                self.tree.env.metrics().gap_jump_count.add(1);
            }
        }
        let key = gap.is_none().then_some(&self.key[..]);
        self.run
            .look(&self.tree, &self.keyspace.gaps, self.seq, key, way);
        if self.run.is_over() {
            // This ends the caller's loop without showing an entry.
            self.merged.stop();
            return Ok(true);
        }
        Ok(gap.is_some())
    }

    /// Makes every further seek and step stop after `count` hidden entries.
    pub(crate) fn set_hidden_limit(&mut self, count: u64) {
        self.run.set_limit(count);
    }

    /// The key at which to continue, if the last seek or step stopped at the limit.
    pub(crate) fn gave_up(&self) -> Option<&[u8]> {
        self.run.gave_up()
    }

    /// Whether the entry of `self.key` with this trailer is a put that no range delete covers.
    fn shows(&mut self, trailer: u64) -> Result<bool> {
        match trailer as u8 {
            DELETE => return Ok(false),
            PUT => {}
            other => return Err(crate::tree::read::unknown_kind(other)),
        }
        Ok(self.deletes.is_empty()
            || self
                .deletes
                .newest_covering(&self.tree, &self.key)?
                .is_none_or(|deleted| deleted <= trailer >> 8))
    }
}

impl std::fmt::Debug for Cursor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cursor")
            .field("number", &self.seq)
            .field("state", &self.state)
            .finish()
    }
}

#[cold]
fn not_positioned() -> Error {
    Error::invalid_argument("the cursor stands on no entry")
        .advice("seek first, and call `valid` before every step")
}
