//! Keys: kinds of entry, trailers, the order of entries, and values derived from a user key (hash,
//! separators).
//!
//! An entry is a user key, a trailer (`sequence number << 8 | kind`) and a value. Entries are
//! ordered by user key, ascending and bytewise, then by trailer, descending: the newest version of
//! a user key comes first. There are no custom comparators, because a device or a GPU could not run
//! them.
//!
//! Invariants: a sequence number is below 2^56. The low byte of a trailer is a number of [`Kind`].
//! The low byte 0xff appears only in seeks, where it means "any kind of this sequence number".
//!
//! Threading: pure functions.

use std::cmp::Ordering;

/// The largest sequence number.
pub const MAX_SEQ: u64 = (1 << 56) - 1;

/// The highest trailer. It sorts before every version of a user key and is allowed only in seeks
/// and separators.
pub const HIGHEST_TRAILER: u64 = u64::MAX;

/// The raw size of an entry without its user key and value, in bytes.
pub const ENTRY_OVERHEAD_BYTES: u64 = 12;

/// The kind of an entry. The numbers are part of the format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Kind {
    /// The user key has no value from this sequence number on.
    Delete = 0,
    /// The user key has this value.
    Put = 1,
    /// All user keys of a range have no value from this sequence number on. It never occurs in a
    /// block of entries.
    RangeDelete = 2,
    /// An operand of a merge operator (number reserved).
    Merge = 3,
    /// The address of a value in a value log (number reserved).
    ValueAddress = 4,
}

impl Kind {
    /// The kind with this number, if there is one.
    #[inline]
    pub const fn from_u8(number: u8) -> Option<Kind> {
        Some(match number {
            0 => Kind::Delete,
            1 => Kind::Put,
            2 => Kind::RangeDelete,
            3 => Kind::Merge,
            4 => Kind::ValueAddress,
            _ => return None,
        })
    }
}

/// The trailer of an entry. `seq` must be at most [`MAX_SEQ`].
#[inline]
pub const fn trailer(seq: u64, kind: Kind) -> u64 {
    debug_assert!(seq <= MAX_SEQ);
    seq << 8 | kind as u64
}

/// The trailer to seek with: it sorts at or before every entry whose sequence number is at most
/// `seq`.
#[inline]
pub const fn seek_trailer(seq: u64) -> u64 {
    seq << 8 | 0xff
}

/// The sequence number of a trailer.
#[inline]
pub const fn seq_of(trailer: u64) -> u64 {
    trailer >> 8
}

/// The kind of a trailer, if its number is known.
#[inline]
pub const fn kind_of(trailer: u64) -> Option<Kind> {
    Kind::from_u8(trailer as u8)
}

/// The order of entries: user key ascending, then trailer descending.
#[inline]
pub fn compare_internal(a_key: &[u8], a_trailer: u64, b_key: &[u8], b_trailer: u64) -> Ordering {
    a_key.cmp(b_key).then_with(|| b_trailer.cmp(&a_trailer))
}

/// The raw size of an entry in bytes. Cuts and tables are measured in raw bytes.
#[inline]
pub const fn raw_bytes(key_len: usize, value_len: usize) -> u64 {
    key_len as u64 + value_len as u64 + ENTRY_OVERHEAD_BYTES
}

/// The length of the longest common prefix in bytes.
#[inline]
pub fn common_prefix(a: &[u8], b: &[u8]) -> usize {
    let n = a.len().min(b.len());
    let mut i = 0;
    while i + 8 <= n {
        let x = u64::from_le_bytes(a[i..i + 8].try_into().unwrap_or_default());
        let y = u64::from_le_bytes(b[i..i + 8].try_into().unwrap_or_default());
        if x != y {
            return i + ((x ^ y).trailing_zeros() / 8) as usize;
        }
        i += 8;
    }
    while i < n && a[i] == b[i] {
        i += 1;
    }
    i
}

/// The hash of a user key that filters use: 64-bit xxh3 without a seed.
#[inline]
pub fn hash(user_key: &[u8]) -> u64 {
    xxhash_rust::xxh3::xxh3_64(user_key)
}

/// The length of the separator between two neighbouring blocks: the first bytes of `right`, up to
/// and including the first that differs from `left`. `left` must be less than `right`.
#[inline]
pub fn separator_len(left: &[u8], right: &[u8]) -> usize {
    debug_assert!(left < right);
    common_prefix(left, right) + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_order_by_key_ascending_then_trailer_descending() {
        let new = trailer(7, Kind::Put);
        let old = trailer(6, Kind::ValueAddress);
        assert_eq!(compare_internal(b"a", new, b"a", old), Ordering::Less);
        assert_eq!(compare_internal(b"a", old, b"b", new), Ordering::Less);
        assert_eq!(compare_internal(b"a\0", new, b"a", old), Ordering::Greater);
        assert_eq!(
            compare_internal(b"", HIGHEST_TRAILER, b"", new),
            Ordering::Less
        );
        assert!(seek_trailer(7) >= new && seek_trailer(6) < new);
    }

    #[test]
    fn a_trailer_splits_into_number_and_kind() {
        for kind in [
            Kind::Delete,
            Kind::Put,
            Kind::RangeDelete,
            Kind::Merge,
            Kind::ValueAddress,
        ] {
            let t = trailer(MAX_SEQ, kind);
            assert_eq!((seq_of(t), kind_of(t)), (MAX_SEQ, Some(kind)));
        }
        assert_eq!(kind_of(5), None);
    }

    #[test]
    fn common_prefix_ends_at_the_first_difference() {
        for n in 0..40usize {
            for m in 0..40usize {
                let a: Vec<u8> = (0..n as u8).collect();
                let mut b: Vec<u8> = (0..m as u8).collect();
                assert_eq!(common_prefix(&a, &b), n.min(m));
                for at in 0..m.min(n) {
                    b[at] ^= 0x80;
                    assert_eq!(common_prefix(&a, &b), at);
                    b[at] ^= 0x80;
                }
            }
        }
    }

    #[test]
    fn a_separator_lies_between_its_keys() {
        for (left, right, want) in [
            ("", "a", "a"),
            ("abc", "abd", "abd"),
            ("abc", "abcde", "abcd"),
            ("a", "cde", "c"),
        ] {
            let len = separator_len(left.as_bytes(), right.as_bytes());
            assert_eq!(&right[..len], want);
            assert!(left < want && want <= right);
        }
    }
}
