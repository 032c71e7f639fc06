//! A place in the log: a segment's number and a byte offset in it.
//!
//! Invariants: positions order by segment, then by offset; both parts are below 2^32, so that a position fits one
//! atomic word and is read and raised without a lock.
//!
//! Threading: [`Position`] is a value; [`AtomicPosition`] has one raiser at a time and any number of readers.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

/// A place in the log. What was synced, where a record ends, where history ends: all are positions, never sequence
/// numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Position {
    /// The segment's number; 0 stands before every segment.
    pub segment: u32,
    /// Offset in the segment, in bytes.
    pub offset: u32,
}

impl Position {
    /// Before every segment.
    pub const ZERO: Position = Position {
        segment: 0,
        offset: 0,
    };

    /// The place `offset` bytes into segment `segment`.
    pub const fn new(segment: u32, offset: u32) -> Position {
        Position { segment, offset }
    }

    /// Both parts in one word that orders as positions do.
    pub const fn to_u64(self) -> u64 {
        (self.segment as u64) << 32 | self.offset as u64
    }

    /// The inverse of [`Position::to_u64`].
    pub const fn from_u64(word: u64) -> Position {
        Position {
            segment: (word >> 32) as u32,
            offset: word as u32,
        }
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.segment, self.offset)
    }
}

/// A position that is raised by one owner and read by all.
#[derive(Debug)]
pub(super) struct AtomicPosition(AtomicU64);

impl AtomicPosition {
    pub(super) fn new(position: Position) -> AtomicPosition {
        AtomicPosition(AtomicU64::new(position.to_u64()))
    }

    /// Everything that happened before the position was raised to this value is visible to the caller.
    #[inline]
    pub(super) fn load(&self) -> Position {
        Position::from_u64(self.0.load(Ordering::Acquire))
    }

    #[inline]
    pub(super) fn raise(&self, position: Position) {
        debug_assert!(position >= self.load());
        self.0.store(position.to_u64(), Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_orders_as_the_position_does() {
        let places = [
            Position::ZERO,
            Position::new(0, 1),
            Position::new(1, 0),
            Position::new(1, u32::MAX),
            Position::new(2, 64),
            Position::new(u32::MAX, u32::MAX),
        ];
        for a in places {
            assert_eq!(Position::from_u64(a.to_u64()), a);
            for b in places {
                assert_eq!(a.cmp(&b), a.to_u64().cmp(&b.to_u64()), "{a} against {b}");
            }
        }
    }
}
