//! The options of iterators: bounds of keys, and the parts of entries that are read.
//!
//! Invariant: every call that takes a range takes it as [`IterOptions`], and refuses reversed
//! bounds with the same error ([`IterOptions::check`]).
//!
//! Threading: plain values.

use std::ops::{self, Bound, RangeBounds};

use crate::types::error::{Result, reversed_range};

/// The keys that an iterator shows, and the parts of their entries that it reads.
///
/// Calls that take a range take `impl Into<IterOptions>`: a range of anything that is bytes (`..`,
/// `"a".."c"`, `key..=last`, a pair of [`Bound`]s), or `IterOptions` for more. The key `lower` is
/// shown, the key `upper` is not. Every call that takes a range refuses one that ends before it
/// starts with `InvalidArgument`; a range that ends where it starts is empty.
///
/// ```
/// use siltstone::IterOptions;
/// let all_of_a = IterOptions::prefix("a/");
/// assert_eq!(all_of_a.upper.as_deref(), Some(b"a0".as_slice())); // `0` follows `/`
/// let keys_only = IterOptions { values: false, ..("a".."c").into() };
/// # let _ = keys_only;
/// ```
#[derive(Clone, Debug)]
pub struct IterOptions {
    /// The smallest key shown; all if `None`.
    pub lower: Option<Vec<u8>>,
    /// Keys below this one are shown; all if `None`.
    pub upper: Option<Vec<u8>>,
    /// Read values (default true). Without this, `value` is empty and less memory is touched.
    pub values: bool,
    /// Keep blocks that are read in the block cache (default true). Without this, the cache does
    /// not change: blocks in it are used, and others are read without being kept. This suits large
    /// scans of data that will not be read again soon. It makes no difference for tables that are
    /// read through maps.
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
    pub fn prefix(prefix: impl AsRef<[u8]>) -> IterOptions {
        let prefix = prefix.as_ref();
        IterOptions {
            lower: Some(prefix.to_vec()),
            upper: prefix_end(prefix),
            ..IterOptions::default()
        }
    }

    /// All keys in `range`, for types of ranges that have no [`From`]. For `..` alone, take
    /// [`IterOptions::default`].
    pub fn range<K: AsRef<[u8]>>(range: impl RangeBounds<K>) -> IterOptions {
        let bytes = |bound: Bound<&K>| bound.map(|key| key.as_ref().to_vec());
        let (start, end) = (bytes(range.start_bound()), bytes(range.end_bound()));
        let lower = match start {
            // No key lies between the bounds, so this range is empty and not reversed.
            Bound::Excluded(key) if end == Bound::Excluded(key.clone()) => Some(key),
            Bound::Excluded(key) => Some(successor(key)),
            Bound::Included(key) => Some(key),
            Bound::Unbounded => None,
        };
        let upper = match end {
            Bound::Included(key) => Some(successor(key)),
            Bound::Excluded(key) => Some(key),
            Bound::Unbounded => None,
        };
        IterOptions {
            lower,
            upper,
            ..IterOptions::default()
        }
    }

    /// Refuses an upper bound below the lower one.
    pub(crate) fn check(&self) -> Result<()> {
        match (&self.lower, &self.upper) {
            (Some(lower), Some(upper)) if lower > upper => {
                Err(reversed_range("the range", lower, upper))
            }
            _ => Ok(()),
        }
    }
}

impl From<&IterOptions> for IterOptions {
    fn from(options: &IterOptions) -> IterOptions {
        options.clone()
    }
}

/// Here `..` needs no type of keys, which [`RangeBounds`] would require.
impl From<ops::RangeFull> for IterOptions {
    fn from(_: ops::RangeFull) -> IterOptions {
        IterOptions::default()
    }
}

macro_rules! from_ranges {
    ($($range:ty),+ $(,)?) => {$(
        impl<K: AsRef<[u8]>> From<$range> for IterOptions {
            fn from(range: $range) -> IterOptions {
                IterOptions::range(range)
            }
        }
    )+};
}

from_ranges!(
    ops::Range<K>,
    ops::RangeFrom<K>,
    ops::RangeInclusive<K>,
    ops::RangeTo<K>,
    ops::RangeToInclusive<K>,
    (Bound<K>, Bound<K>),
);

/// The smallest key above `key`.
fn successor(mut key: Vec<u8>) -> Vec<u8> {
    key.push(0);
    key
}

/// The smallest key above all keys that begin with `prefix`. `None` if no key is above them.
pub fn prefix_end(prefix: &[u8]) -> Option<Vec<u8>> {
    let last = prefix.iter().rposition(|&b| b != 0xff)?;
    let mut end = prefix[..=last].to_vec();
    end[last] += 1;
    Some(end)
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
    }

    #[test]
    fn bounds_of_all_kinds() {
        let bounds = |options: IterOptions| {
            options.check().unwrap();
            (options.lower, options.upper)
        };
        let key = |key: &[u8]| Some(key.to_vec());
        assert_eq!(bounds((..).into()), (None, None));
        assert_eq!(bounds(("a".."c").into()), (key(b"a"), key(b"c")));
        assert_eq!(bounds(("a"..="c").into()), (key(b"a"), key(b"c\0")));
        assert_eq!(bounds((b"a".to_vec()..).into()), (key(b"a"), None));
        assert_eq!(bounds((..[7u8]).into()), (None, key(&[7])));
        assert_eq!(bounds((..=[7u8]).into()), (None, key(&[7, 0])));
        let excluded = (Bound::Excluded("a"), Bound::Included("c"));
        assert_eq!(bounds(excluded.into()), (key(b"a\0"), key(b"c\0")));
        // Empty, and not reversed.
        for (start, end) in [
            (Bound::Included("a"), Bound::Excluded("a")),
            (Bound::Excluded("a"), Bound::Excluded("a")),
            (Bound::Excluded("a"), Bound::Included("a")),
        ] {
            let (lower, upper) = bounds((start, end).into());
            assert_eq!(lower, upper);
        }
        assert!(IterOptions::from("b".."a").check().is_err());
        assert!(IterOptions::from("b"..="a").check().is_err());
    }
}
