//! A position in the log: the number of a segment and a byte offset in it.
//!
//! Invariants: positions are ordered by segment, then by offset. Both parts are below 2^32, so a
//! position fits into one atomic word, and is read and raised without a lock.
//!
//! Threading: [`Position`] is a value. [`AtomicPosition`] has one writer at a time and any number
//! of readers.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

/// A position in the log. What was synced, where a record ends, and where history ends are
/// positions, never sequence numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Position {
    /// The segment's number; 0 is before every segment.
    pub segment: u32,
    /// The offset in the segment, in bytes.
    pub offset: u32,
}

impl Position {
    /// The position before every segment.
    pub const ZERO: Position = Position {
        segment: 0,
        offset: 0,
    };

    /// The position `offset` bytes into segment `segment`.
    pub const fn new(segment: u32, offset: u32) -> Position {
        Position { segment, offset }
    }

    /// Both parts in one word, which is ordered as positions are.
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

/// A position in the log, as the manifest states it: what was synced through it survives power
/// loss.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LogPosition {
    /// Number of the segment.
    pub segment: u64,
    /// Byte offset in it.
    pub offset: u64,
}

impl fmt::Display for LogPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.segment, self.offset)
    }
}

impl From<Position> for LogPosition {
    fn from(at: Position) -> LogPosition {
        LogPosition {
            segment: at.segment.into(),
            offset: at.offset.into(),
        }
    }
}

/// Where the log starts: no record before this position is needed. Positions order by segment, then
/// by offset; the salt belongs to the segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LogStart {
    /// Number of the first segment that replay reads.
    pub segment: u64,
    /// Byte offset in it; 0 if the whole segment is needed, with its header.
    pub offset: u64,
    /// The salt of the chain that the segment belongs to. Replay uses it if damage has taken the
    /// segment's header and the offset says that the header is not needed. 0 where it is not known.
    pub salt: u64,
}

impl LogStart {
    /// The start of a chain's segment, with its header.
    pub fn of_segment(segment: u64, salt: u64) -> LogStart {
        LogStart {
            segment,
            offset: 0,
            salt,
        }
    }

    /// The position, without the salt.
    pub fn position(&self) -> LogPosition {
        LogPosition {
            segment: self.segment,
            offset: self.offset,
        }
    }
}

impl fmt::Display for LogStart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.position().fmt(f)
    }
}

/// A position that is raised by one owner and read by all.
#[derive(Debug)]
pub(super) struct AtomicPosition(AtomicU64);

impl AtomicPosition {
    pub(super) fn new(position: Position) -> AtomicPosition {
        AtomicPosition(AtomicU64::new(position.to_u64()))
    }

    /// Everything that happened before the position was raised to this value is visible to the
    /// caller.
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
    fn a_word_is_ordered_as_its_position_is() {
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
