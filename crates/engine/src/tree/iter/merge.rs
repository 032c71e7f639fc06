//! Merges memtables, level-0 runs and levels, its children, into one stream of entries in internal
//! key order, which can be read in both directions.
//!
//! Invariants: going forward, every child stands at or after the current entry; going backward, at
//! or before it. `order` has the valid children, sorted, and the current one first. Internal keys
//! are unique over all children, so no two valid children stand at equal ones.
//!
//! Cost: a step that stays in one child compares once. Any other step takes a binary search over
//! the children and a short move.
//!
//! Threading: owned by one reader.

use std::cmp::Ordering;

use crate::types::error::Result;

/// A stream of entries in internal key order (user key ascending, then trailer descending) that can
/// be positioned.
///
/// After a failed call the cursor is invalid. `key`, `trailer` and `value_into` may be called only
/// while it is valid.
pub(crate) trait EntryCursor {
    fn valid(&self) -> bool;
    fn key(&self) -> &[u8];
    /// Sequence number << 8 | kind.
    fn trailer(&self) -> u64;
    /// The key and the trailer.
    #[inline(always)]
    fn entry(&self) -> (&[u8], u64) {
        (self.key(), self.trailer())
    }
    /// Copies the value to the end of `out`.
    fn value_into(&mut self, out: &mut Vec<u8>) -> Result<()>;
    /// Does a part of a seek to this position, which must follow, and prefetches the memory that
    /// the next part needs. The merge calls each of the [`PREPARE_STAGES`], in order from 0, for
    /// all children before it calls the next one, so that their cache misses overlap.
    fn prepare_seek(&mut self, _stage: usize, _key: &[u8], _trailer: u64) {}
    fn seek_to_last(&mut self) -> Result<()>;
    /// Goes to the first entry at or after (`key`, `trailer`). No entry is before the empty key
    /// with the highest trailer.
    fn seek(&mut self, key: &[u8], trailer: u64) -> Result<()>;
    /// Goes to the last entry at or before (`key`, `trailer`).
    fn seek_for_prev(&mut self, key: &[u8], trailer: u64) -> Result<()>;
    fn next(&mut self) -> Result<()>;
    fn prev(&mut self) -> Result<()>;
}

/// The number of parts of a seek before its last one.
pub(crate) const PREPARE_STAGES: usize = 4;

/// Internal key order.
#[inline]
pub(crate) fn compare_internal(a: (&[u8], u64), b: (&[u8], u64)) -> Ordering {
    compare_keys(a.0, b.0).then(b.1.cmp(&a.1))
}

/// Bytewise order, eight bytes at a time: for the short keys that most stores have, a call costs
/// more than the comparison.
#[inline]
fn compare_keys(mut a: &[u8], mut b: &[u8]) -> Ordering {
    while let (Some((x, rest_a)), Some((y, rest_b))) =
        (a.split_first_chunk::<8>(), b.split_first_chunk::<8>())
    {
        if x != y {
            return u64::from_be_bytes(*x).cmp(&u64::from_be_bytes(*y));
        }
        (a, b) = (rest_a, rest_b);
    }
    if a.is_empty() || b.is_empty() {
        return a.len().cmp(&b.len());
    }
    a.cmp(b)
}

/// Whether the keys are equal. Neighbours differ near their ends, so the ends are compared first.
/// Keys of 8 to 16 bytes need no call.
#[inline]
pub(crate) fn same_key(a: &[u8], b: &[u8]) -> bool {
    if a.len() != b.len() {
        return false;
    }
    match (a.last_chunk::<8>(), b.last_chunk::<8>()) {
        (Some(x), Some(y)) => {
            x == y
                && if a.len() <= 16 {
                    a.first_chunk::<8>() == b.first_chunk::<8>()
                } else {
                    a == b
                }
        }
        _ => a == b,
    }
}

/// Replaces `out` by `key`. A key of 8 to 16 bytes that is as long as the one before needs no call.
#[inline]
pub(crate) fn copy_key(out: &mut Vec<u8>, key: &[u8]) {
    if out.len() == key.len()
        && key.len() <= 16
        && let (Some(first), Some(last)) = (key.first_chunk::<8>(), key.last_chunk::<8>())
    {
        let n = out.len();
        out[..8].copy_from_slice(first);
        out[n - 8..].copy_from_slice(last);
        return;
    }
    out.clear();
    out.extend_from_slice(key);
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    Forward,
    Backward,
}

/// See the module.
pub(crate) struct MergeCursor<C> {
    children: Vec<C>,
    order: Vec<u32>,
    direction: Direction,
    /// Scratch for the current key while other children are moved.
    scratch: Vec<u8>,
    /// How often a child was moved. Tests count this instead of time.
    moves: u64,
}

impl<C: EntryCursor> MergeCursor<C> {
    pub(crate) fn new(children: Vec<C>) -> Self {
        MergeCursor {
            order: Vec::with_capacity(children.len()),
            children,
            direction: Direction::Forward,
            scratch: Vec::new(),
            moves: 0,
        }
    }

    /// Adds, removes or reorders children. The merge stands nowhere until the next seek.
    pub(crate) fn change_children(&mut self, change: impl FnOnce(&mut Vec<C>)) {
        self.order.clear();
        change(&mut self.children);
    }

    /// Lets the merge stand at no entry until the next seek.
    pub(crate) fn stop(&mut self) {
        self.order.clear();
    }

    #[inline(always)]
    fn before(&self, a: u32, b: u32) -> bool {
        let (a, b) = (&self.children[a as usize], &self.children[b as usize]);
        let order = compare_internal(a.entry(), b.entry());
        match self.direction {
            Direction::Forward => order == Ordering::Less,
            Direction::Backward => order == Ordering::Greater,
        }
    }

    fn rebuild(&mut self, direction: Direction) {
        self.direction = direction;
        let mut order = std::mem::take(&mut self.order);
        order.clear();
        order
            .extend((0..self.children.len() as u32).filter(|&i| self.children[i as usize].valid()));
        order.sort_unstable_by(|&a, &b| {
            if self.before(a, b) {
                Ordering::Less
            } else {
                Ordering::Greater
            }
        });
        self.order = order;
    }

    /// Moves the current child, which was stepped, to where it belongs in `order`. Every step of a
    /// scan ends here: a call instead of inlining costs a scan 5 % of its time.
    #[inline(always)]
    fn sort_current(&mut self) {
        let first = self.order[0];
        let is_valid = self.children[first as usize].valid();
        let stays = is_valid
            && match self.order.get(1) {
                Some(second) => self.before(first, *second),
                None => true,
            };
        if !stays {
            self.resort_current(first, is_valid);
        }
    }

    /// The part of [`MergeCursor::sort_current`] for a child that is no longer the first one.
    #[inline(never)]
    fn resort_current(&mut self, first: u32, is_valid: bool) {
        if !is_valid {
            self.order.remove(0);
            return;
        }
        // `order[1]` is before `first`. Find how many others are.
        let (mut low, mut high) = (2, self.order.len());
        while low < high {
            let middle = (low + high) / 2;
            if self.before(self.order[middle], first) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        self.order.copy_within(1..low, 0);
        self.order[low - 1] = first;
    }

    /// The children, in the order in which they were given.
    pub(crate) fn children(&self) -> &[C] {
        &self.children
    }

    /// Moves each child with `seek`, in the order in which the children were given. Forward, `seek`
    /// must move a child to its first entry at or after the target, or further if the entries in
    /// between are not needed; backward, the same in the other direction.
    pub(crate) fn seek_each(
        &mut self,
        forward: bool,
        seek: impl FnMut(&mut C) -> Result<()>,
    ) -> Result<()> {
        let direction = match forward {
            true => Direction::Forward,
            false => Direction::Backward,
        };
        self.each(direction, seek)
    }

    fn each(
        &mut self,
        direction: Direction,
        mut f: impl FnMut(&mut C) -> Result<()>,
    ) -> Result<()> {
        self.order.clear();
        self.moves += self.children.len() as u64;
        for child in &mut self.children {
            f(child)?;
        }
        self.rebuild(direction);
        Ok(())
    }

    /// Turns around at the current entry: every other child goes to its nearest entry on the other
    /// side.
    #[cold]
    #[inline(never)]
    fn turn(&mut self, direction: Direction) -> Result<()> {
        let current = self.order[0] as usize;
        self.moves += self.children.len() as u64;
        let mut key = std::mem::take(&mut self.scratch);
        key.clear();
        key.extend_from_slice(self.children[current].key());
        let trailer = self.children[current].trailer();
        for i in (0..self.children.len()).filter(|&i| i != current) {
            let child = &mut self.children[i];
            match direction {
                Direction::Forward => child.seek(&key, trailer),
                Direction::Backward => child.seek_for_prev(&key, trailer),
            }
            .inspect_err(|_| self.order.clear())?;
        }
        self.scratch = key;
        self.rebuild(direction);
        Ok(())
    }

    /// The child that stands on the current entry, if there is one.
    #[inline(always)]
    pub(crate) fn current_mut(&mut self) -> Option<&mut C> {
        let first = *self.order.first()?;
        self.children.get_mut(first as usize)
    }

    /// The child that stands on the current entry.
    pub(crate) fn current(&self) -> &C {
        &self.children[self.order[0] as usize]
    }

    /// Moves the child that stands on the current entry further in the direction of the merge.
    #[inline(always)]
    pub(crate) fn move_current(&mut self, go: impl FnOnce(&mut C) -> Result<()>) -> Result<()> {
        self.moves += 1;
        if let Err(error) = go(&mut self.children[self.order[0] as usize]) {
            self.order.clear();
            return Err(error);
        }
        self.sort_current();
        Ok(())
    }

    /// How often a child was moved, by a step or by a seek.
    pub(crate) fn moves(&self) -> u64 {
        self.moves
    }
}

impl<C: EntryCursor> EntryCursor for MergeCursor<C> {
    #[inline]
    fn valid(&self) -> bool {
        !self.order.is_empty()
    }

    #[inline]
    fn key(&self) -> &[u8] {
        self.children[self.order[0] as usize].key()
    }

    #[inline]
    fn trailer(&self) -> u64 {
        self.children[self.order[0] as usize].trailer()
    }

    /// Inlined for the same reason as [`MergeCursor::sort_current`].
    #[inline(always)]
    fn value_into(&mut self, out: &mut Vec<u8>) -> Result<()> {
        self.children[self.order[0] as usize].value_into(out)
    }

    fn seek_to_last(&mut self) -> Result<()> {
        self.each(Direction::Backward, |c| c.seek_to_last())
    }

    fn seek(&mut self, key: &[u8], trailer: u64) -> Result<()> {
        self.order.clear();
        for stage in 0..PREPARE_STAGES {
            self.children
                .iter_mut()
                .for_each(|c| c.prepare_seek(stage, key, trailer));
        }
        // Every child seeks, even after an error, so that no later seek finds the part prepared for
        // this one.
        let mut sought = Ok(());
        self.moves += self.children.len() as u64;
        for child in &mut self.children {
            sought = child.seek(key, trailer).and(sought);
        }
        sought?;
        self.rebuild(Direction::Forward);
        Ok(())
    }

    fn seek_for_prev(&mut self, key: &[u8], trailer: u64) -> Result<()> {
        self.each(Direction::Backward, |c| c.seek_for_prev(key, trailer))
    }

    /// Inlined for the same reason as [`MergeCursor::sort_current`].
    #[inline(always)]
    fn next(&mut self) -> Result<()> {
        if self.direction != Direction::Forward {
            self.turn(Direction::Forward)?;
        }
        self.move_current(C::next)
    }

    #[inline]
    fn prev(&mut self) -> Result<()> {
        if self.direction != Direction::Backward {
            self.turn(Direction::Backward)?;
        }
        self.move_current(C::prev)
    }
}

#[cfg(test)]
mod tests;
