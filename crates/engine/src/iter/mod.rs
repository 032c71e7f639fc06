//! Iterators: a keyspace in key order at one published number, both ways, with bounds.
//!
//! What it is: [`Cursor`] pins a view and a number, merges the view's sources ([`merge`]), and shows per user key the newest entry at or
//! below the number, unless it is a delete or a newer range delete covers it. [`Range`] wraps two cursors as a standard
//! double-ended iterator.
//!
//! Invariants: going forward, the merged stream stands on the shown entry; going backward, it stands before all versions of the shown
//! key, which are kept in `key` and `value`. Range deletes are asked by number, never by place: any source may hold the newest one.
//!
//! Threading: owned by one reader; a cursor may be sent to another thread.

pub(crate) mod merge;
pub(crate) mod source;

use std::ops::{Bound, RangeBounds};
use std::sync::Arc;

use merge::{EntryCursor, MergeCursor, copy_key, same_key};
use source::{Child, RangeDeleteIndex};

use crate::core::Core;
use crate::error::{Error, Result};
use crate::planted::{self, Bug};
use crate::view::{KeyspaceCore, KeyspaceView};

const DELETE: u8 = 0;
const PUT: u8 = 1;

/// What an iterator shows.
///
/// ```
/// use siltstone::IterOptions;
/// let all_of_a = IterOptions::prefix(b"a/");
/// assert_eq!(all_of_a.upper.as_deref(), Some(b"a0".as_slice())); // `0` follows `/`
/// let keys_only = IterOptions { values: false, ..IterOptions::range("a".."c") };
/// # let _ = keys_only;
/// ```
#[derive(Clone, Debug)]
pub struct IterOptions {
    /// The smallest key shown; all if `None`.
    pub lower: Option<Vec<u8>>,
    /// Keys below this one are shown; all if `None`.
    pub upper: Option<Vec<u8>>,
    /// Read values (default true). Without, `value` is empty and less memory is touched.
    pub values: bool,
    /// Keep blocks that are read in the block cache (default true). Without, the cache stays as it is: what is in it is used, what is not is
    /// read and forgotten. For scans of much that will not be read again soon. No difference where tables are read through maps.
    pub fill_cache: bool,
}

impl Default for IterOptions {
    fn default() -> Self {
        IterOptions {
            lower: None,
            upper: None,
            values: true,
            fill_cache: true,
        }
    }
}

impl IterOptions {
    /// All keys that begin with `prefix`.
    pub fn prefix(prefix: &[u8]) -> IterOptions {
        IterOptions {
            lower: Some(prefix.to_vec()),
            upper: prefix_end(prefix),
            ..IterOptions::default()
        }
    }

    /// All keys in `range`.
    pub fn range<K: AsRef<[u8]>>(range: impl RangeBounds<K>) -> IterOptions {
        let lower = match range.start_bound() {
            Bound::Included(k) => Some(k.as_ref().to_vec()),
            Bound::Excluded(k) => Some(successor(k.as_ref())),
            Bound::Unbounded => None,
        };
        let upper = match range.end_bound() {
            Bound::Included(k) => Some(successor(k.as_ref())),
            Bound::Excluded(k) => Some(k.as_ref().to_vec()),
            Bound::Unbounded => None,
        };
        IterOptions {
            lower,
            upper,
            ..IterOptions::default()
        }
    }
}

/// The smallest key above `key`.
fn successor(key: &[u8]) -> Vec<u8> {
    let mut next = Vec::with_capacity(key.len() + 1);
    next.extend_from_slice(key);
    next.push(0);
    next
}

/// The smallest key above all keys that begin with `prefix`; none if there is no such key.
pub fn prefix_end(prefix: &[u8]) -> Option<Vec<u8>> {
    let last = prefix.iter().rposition(|&b| b != 0xff)?;
    let mut end = prefix[..=last].to_vec();
    end[last] += 1;
    Some(end)
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// Before anything was asked, or past an end.
    Invalid,
    Forward,
    Backward,
}

/// A position in a keyspace at one published number. See the module.
///
/// It is invalid until a seek, past either end, and after an error. It pins its view: obsolete tables stay on disk while it lives.
///
/// A seek costs one search in each memtable, run of level 0 and deeper level; a step one comparison for each of those that are near. Nothing is
/// allocated for a pair.
///
/// ```
/// # let folder = tempfile::tempdir().unwrap();
/// let store = siltstone::Store::open(folder.path(), siltstone::Options::default())?;
/// let numbers = store.default_keyspace()?;
/// for n in 0..100u8 {
///     numbers.put(&[n], &[n, n])?;
/// }
/// let mut cursor = numbers.cursor(siltstone::IterOptions::range([20u8]..[30u8]))?;
/// cursor.seek(&[25])?;
/// let mut sum = 0;
/// while cursor.valid() {
///     sum += u32::from(cursor.value()[0]);
///     cursor.next()?;
/// }
/// assert_eq!(sum, 25 + 26 + 27 + 28 + 29);
/// cursor.seek_for_prev(&[99])?; // the last one within the bounds
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
    /// Where it stood before a refresh.
    stood: Vec<u8>,
    core: Arc<Core>,
    keyspace: Arc<KeyspaceCore>,
    _view: Arc<KeyspaceView>,
}

impl Cursor {
    pub(crate) fn new(
        core: &Arc<Core>,
        keyspace: &Arc<KeyspaceCore>,
        snapshot: Option<u64>,
        options: IterOptions,
    ) -> Result<Cursor> {
        let (view, seq) = crate::read::pin(core, keyspace, snapshot)?;
        let mut children = Vec::with_capacity(view.sources.len() + view.levels.len());
        source::set_children(core, &view, options.fill_cache, &mut children);
        let mut deletes = RangeDeleteIndex::default();
        deletes.set(&view, seq);
        core.metrics.seek_count.add(1);
        Ok(Cursor {
            merged: MergeCursor::new(children),
            deletes,
            seq,
            options,
            state: State::Invalid,
            key: Vec::new(),
            value: Vec::new(),
            stood: Vec::new(),
            core: core.clone(),
            keyspace: keyspace.clone(),
            _view: view,
        })
    }

    /// Goes on to the keyspace's present state, also from a snapshot's. If it stands on a key, it then stands on that key as it is now, or, if
    /// that is gone, on the next one within the bounds. What it let go may be deleted; what it still needs, buffers included, it keeps, so
    /// this costs a seek, not a new cursor.
    ///
    /// # Errors
    /// `Closed` or `KeyspaceDropped`: the cursor stays as it was. Corruption or I/O: it is invalid then.
    pub fn refresh(&mut self) -> Result<()> {
        self.core.check_open()?;
        let (view, seq) = crate::read::pin(&self.core, &self.keyspace, None)?;
        let stood = std::mem::replace(&mut self.state, State::Invalid) != State::Invalid;
        let (core, fill_cache) = (&self.core, self.options.fill_cache);
        self.merged
            .change_children(|children| source::set_children(core, &view, fill_cache, children));
        if !planted::is(Bug::RefreshKeepsRangeDeletes) {
            self.deletes.set(&view, seq);
        }
        self.seq = seq;
        self._view = view;
        self.core.metrics.seek_count.add(1);
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

    /// Whether it stands on an entry.
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

    /// The sequence number that it reads at.
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
                self.merged.seek_to_first()?;
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
            // The largest trailer sorts first, so this stands on the last entry before every version of `upper`.
            Some(upper) => {
                self.merged.seek_for_prev(upper, u64::MAX)?;
            }
            None => self.merged.seek_to_last()?,
        }
        self.show_prev()
    }

    /// Goes to the first key at or after `key` within the bounds.
    ///
    /// # Errors
    /// Corruption or I/O; the cursor is invalid then.
    pub fn seek(&mut self, key: &[u8]) -> Result<()> {
        self.state = State::Invalid;
        let from = match &self.options.lower {
            Some(lower) if key < &lower[..] => lower,
            _ => key,
        };
        self.merged.seek(from, self.seq << 8 | 0xff)?;
        self.show_next()
    }

    /// Goes to the last key at or before `key` within the bounds.
    ///
    /// # Errors
    /// Corruption or I/O; the cursor is invalid then.
    pub fn seek_for_prev(&mut self, key: &[u8]) -> Result<()> {
        self.state = State::Invalid;
        match &self.options.upper {
            Some(upper) if key >= &upper[..] => self.merged.seek_for_prev(upper, u64::MAX)?,
            _ => self.merged.seek_for_prev(key, 0)?,
        }
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
                // The stream stands before the key's versions.
                self.merged.seek(&self.key, 0)?;
                if self.merged.valid() && self.merged.key() == &self.key[..] {
                    self.merged.next()?;
                }
                return self.show_next();
            }
        }
        self.skip_key()?;
        self.show_next()
    }

    /// Goes to the key before.
    ///
    /// # Errors
    /// `InvalidArgument` on an invalid cursor; corruption or I/O, the cursor is invalid then.
    pub fn prev(&mut self) -> Result<()> {
        match std::mem::replace(&mut self.state, State::Invalid) {
            State::Invalid => return Err(not_positioned()),
            State::Backward => {}
            State::Forward => self.merged.seek_for_prev(&self.key, u64::MAX)?,
        }
        self.show_prev()
    }

    /// Leaves all versions of the shown key, going forward.
    #[inline]
    fn skip_key(&mut self) -> Result<()> {
        self.merged.next()?;
        if self.merged.valid() && same_key(self.merged.key(), &self.key) {
            return self.skip_older();
        }
        Ok(())
    }

    /// Leaves the versions of the shown key from the one where the stream stands.
    #[cold]
    fn skip_older(&mut self) -> Result<()> {
        let mut steps = 1;
        loop {
            self.merged.next()?;
            if !self.merged.valid() || !same_key(self.merged.key(), &self.key) {
                return Ok(());
            }
            steps += 1;
            if steps == 16 {
                // Many versions: jump over the rest.
                self.merged.seek(&self.key, 0)?;
                if self.merged.valid() && self.merged.key() == &self.key[..] {
                    self.merged.next()?;
                }
                return Ok(());
            }
        }
    }

    /// Shows the first visible entry from where the stream stands, forward.
    fn show_next(&mut self) -> Result<()> {
        while self.merged.valid() {
            if let Some(upper) = &self.options.upper
                && self.merged.key() >= &upper[..]
            {
                return Ok(());
            }
            let trailer = self.merged.trailer();
            if trailer >> 8 > self.seq {
                self.merged.next()?;
                continue;
            }
            copy_key(&mut self.key, self.merged.key());
            // The newest entry that the number sees; older versions of the key do not matter.
            if self.shows(trailer)? {
                self.value.clear();
                if self.options.values {
                    self.merged.value_into(&mut self.value)?;
                }
                self.state = State::Forward;
                return Ok(());
            }
            self.skip_key()?;
        }
        Ok(())
    }

    /// Shows the last visible entry from where the stream stands, backward.
    fn show_prev(&mut self) -> Result<()> {
        while self.merged.valid() {
            if let Some(lower) = &self.options.lower
                && self.merged.key() < &lower[..]
            {
                return Ok(());
            }
            self.key.clear();
            self.key.extend_from_slice(self.merged.key());
            // Versions come oldest first: the last one at or below the number is the newest that it sees.
            let mut newest: Option<u64> = None;
            while self.merged.valid() && self.merged.key() == &self.key[..] {
                let trailer = self.merged.trailer();
                let is_late = planted::is(Bug::ReverseShowsOldest) && newest.is_some();
                if trailer >> 8 <= self.seq && !is_late {
                    newest = Some(trailer);
                    if self.options.values && trailer as u8 == PUT {
                        self.value.clear();
                        self.merged.value_into(&mut self.value)?;
                    }
                }
                self.merged.prev()?;
            }
            if let Some(trailer) = newest
                && self.shows(trailer)?
            {
                if !self.options.values {
                    self.value.clear();
                }
                self.state = State::Backward;
                return Ok(());
            }
        }
        Ok(())
    }

    /// Whether the entry of `self.key` with this trailer is a value that no range delete covers.
    fn shows(&mut self, trailer: u64) -> Result<bool> {
        match trailer as u8 {
            DELETE => return Ok(false),
            PUT => {}
            other => return Err(crate::read::unknown_kind(other)),
        }
        Ok(self.deletes.is_empty()
            || self
                .deletes
                .newest_covering(&self.core, &self.key)?
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
        .advice("seek first, and ask `valid` before every step")
}

/// A range of a keyspace as a standard iterator over copied pairs, from both ends, which see the same moment.
///
/// Allocates two vectors a pair; where that counts, take a [`Cursor`].
///
/// It stops after the first error.
pub struct Range {
    front: Cursor,
    back: Option<Box<Cursor>>,
    make_back: Option<Box<dyn FnOnce() -> Result<Cursor> + Send>>,
    front_started: bool,
    done: bool,
}

impl Range {
    pub(crate) fn new(
        front: Cursor,
        make_back: Box<dyn FnOnce() -> Result<Cursor> + Send>,
    ) -> Range {
        Range {
            front,
            back: None,
            make_back: Some(make_back),
            front_started: false,
            done: false,
        }
    }

    fn step_front(&mut self) -> Result<Option<(Vec<u8>, Vec<u8>)>> {
        if self.front_started {
            self.front.next()?;
        } else {
            self.front_started = true;
            self.front.seek_to_first()?;
        }
        let met =
            |back: &Cursor| back.valid() && self.front.valid() && self.front.key() >= back.key();
        if !self.front.valid() || self.back.as_deref().is_some_and(met) {
            return Ok(None);
        }
        Ok(Some((
            self.front.key().to_vec(),
            self.front.value().to_vec(),
        )))
    }

    fn step_back(&mut self) -> Result<Option<(Vec<u8>, Vec<u8>)>> {
        match (&mut self.back, self.make_back.take()) {
            (Some(back), _) => back.prev()?,
            (None, Some(make)) => {
                let mut back = make()?;
                back.seek_to_last()?;
                self.back = Some(Box::new(back));
            }
            (None, None) => return Ok(None),
        }
        let Some(back) = self.back.as_deref() else {
            return Ok(None);
        };
        if !back.valid()
            || (self.front_started && self.front.valid() && back.key() <= self.front.key())
        {
            return Ok(None);
        }
        Ok(Some((back.key().to_vec(), back.value().to_vec())))
    }

    fn finish(
        &mut self,
        step: Result<Option<(Vec<u8>, Vec<u8>)>>,
    ) -> Option<Result<(Vec<u8>, Vec<u8>)>> {
        match step {
            Ok(Some(pair)) => Some(Ok(pair)),
            Ok(None) => {
                self.done = true;
                None
            }
            Err(error) => {
                self.done = true;
                Some(Err(error))
            }
        }
    }
}

impl Iterator for Range {
    type Item = Result<(Vec<u8>, Vec<u8>)>;
    fn next(&mut self) -> Option<Self::Item> {
        if self.done {
            return None;
        }
        let step = self.step_front();
        self.finish(step)
    }
}

impl DoubleEndedIterator for Range {
    fn next_back(&mut self) -> Option<Self::Item> {
        if self.done {
            return None;
        }
        let step = self.step_back();
        self.finish(step)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_of_prefixes() {
        assert_eq!(prefix_end(b"ab"), Some(b"ac".to_vec()));
        assert_eq!(prefix_end(b"a\xff"), Some(b"b".to_vec()));
        assert_eq!(prefix_end(b"\xff\xff"), None);
        assert_eq!(prefix_end(b""), None);
        let range =
            IterOptions::range::<&[u8]>((Bound::Excluded(&b"a"[..]), Bound::Included(&b"c"[..])));
        assert_eq!(
            (range.lower, range.upper),
            (Some(b"a\0".to_vec()), Some(b"c\0".to_vec()))
        );
    }
}
