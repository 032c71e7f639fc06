//! The depth of level 0: how many of its runs lie over one and the same key.
//!
//! Threading: a pure function.

use crate::formats::version::{End, Level};

/// The most runs of level 0 that have a table over one and the same key. Runs beside each other
/// (ingests of neighbouring ranges, a fill in ascending order) have depth 1. A lookup of a key asks
/// at most this many tables of level 0.
pub fn depth<'a>(runs: impl IntoIterator<Item = &'a Level>) -> usize {
    let mut starts: Vec<&[u8]> = Vec::new();
    let mut ends: Vec<&End> = Vec::new();
    for table in runs.into_iter().flat_map(Level::tables) {
        starts.push(&table.bounds.start);
        ends.push(&table.bounds.end);
    }
    starts.sort_unstable();
    ends.sort_unstable();
    let (mut begun, mut ended, mut most) = (0, 0, 0);
    for start in starts {
        begun += 1;
        ended += ends[ended..]
            .iter()
            .take_while(|end| !end.reaches(start))
            .count();
        most = most.max(begun - ended);
    }
    most
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::formats::version::{KeyRange, TableMeta};

    /// A table over the keys from `first` on, `len` of them. Half of the tables exclude their end,
    /// as those with range deletes do.
    fn range(first: u8, len: u8, closed: bool) -> KeyRange {
        match closed {
            true => KeyRange::closed(&[first], &[first + len - 1]),
            false => KeyRange::half_open(&[first], &[first + len]),
        }
    }

    fn run(tables: &[(u8, u8, bool)]) -> Level {
        let mut next = 0;
        let mut metas = Vec::new();
        for (id, &(gap, len, closed)) in (1..).zip(tables) {
            let first = next + gap;
            next = first + len;
            metas.push(std::sync::Arc::new(TableMeta {
                id,
                location: 0,
                name: format!("{id}"),
                min_seq: 1,
                max_seq: 1,
                raw_bytes: 1,
                file_bytes: 1,
                entries: 1,
                deletes: 0,
                range_deletes: 0,
                digest: 0,
                points: None,
                bounds: range(first, len, closed),
                sequence_override: None,
                flags: 0,
            }));
        }
        Level::new(metas).expect("the tables stand beside each other")
    }

    fn tables() -> impl Strategy<Value = Vec<(u8, u8, bool)>> {
        prop::collection::vec((0..4u8, 1..6u8, any::<bool>()), 1..5)
    }

    proptest! {
        #[test]
        fn depth_is_the_most_runs_that_hold_a_key(
            runs in prop::collection::vec(tables(), 0..8),
        ) {
            let runs: Vec<Level> = runs.iter().map(|tables| run(tables)).collect();
            let holds = |run: &&Level, key: u8| {
                run.tables().iter().any(|t| t.bounds.contains(&[key]))
            };
            let at = |key| runs.iter().filter(|run| holds(run, key)).count();
            let most = (0..=u8::MAX).map(at).max();
            prop_assert_eq!(Some(depth(&runs)), most);
        }
    }
}
