//! Compares the merge with a sorted vector, with random walks in both directions.

use proptest::prelude::*;

use super::*;

/// A cursor over a sorted vector.
struct VecCursor {
    entries: Vec<(Vec<u8>, u64)>,
    at: Option<usize>,
}

impl EntryCursor for VecCursor {
    fn valid(&self) -> bool {
        self.at.is_some()
    }
    fn key(&self) -> &[u8] {
        &self.entries[self.at.unwrap()].0
    }
    fn trailer(&self) -> u64 {
        self.entries[self.at.unwrap()].1
    }
    fn value_into(&mut self, out: &mut Vec<u8>) -> Result<()> {
        out.extend_from_slice(&self.trailer().to_le_bytes());
        Ok(())
    }
    fn seek_to_last(&mut self) -> Result<()> {
        self.at = self.entries.len().checked_sub(1);
        Ok(())
    }
    fn seek(&mut self, key: &[u8], trailer: u64) -> Result<()> {
        let i = self
            .entries
            .partition_point(|(k, t)| compare_internal((k, *t), (key, trailer)) == Ordering::Less);
        self.at = (i < self.entries.len()).then_some(i);
        Ok(())
    }
    fn seek_for_prev(&mut self, key: &[u8], trailer: u64) -> Result<()> {
        let i = self.entries.partition_point(|(k, t)| {
            compare_internal((k, *t), (key, trailer)) != Ordering::Greater
        });
        self.at = i.checked_sub(1);
        Ok(())
    }
    fn next(&mut self) -> Result<()> {
        self.at = self.at.map(|i| i + 1).filter(|&i| i < self.entries.len());
        Ok(())
    }
    fn prev(&mut self) -> Result<()> {
        self.at = self.at.and_then(|i| i.checked_sub(1));
        Ok(())
    }
}

fn sorted(mut entries: Vec<(Vec<u8>, u64)>) -> Vec<(Vec<u8>, u64)> {
    entries.sort_by(|a, b| compare_internal((&a.0, a.1), (&b.0, b.1)));
    entries
}

proptest! {
    #[test]
    fn keys_compare_and_copy_as_slices_do(
        a in proptest::collection::vec(0u8..2, 0..24),
        b in proptest::collection::vec(0u8..2, 0..24),
        changed in 0usize..24,
    ) {
        let mut near = a.clone();
        if let Some(byte) = near.get_mut(changed) {
            *byte ^= 0x80;
        }
        for other in [&a, &b, &near] {
            prop_assert_eq!(same_key(&a, other), &a == other);
            prop_assert_eq!(compare_keys(&a, other), a.cmp(other));
            let mut copy = a.clone();
            copy_key(&mut copy, other);
            prop_assert_eq!(&copy, other);
        }
    }

    #[test]
    fn walks_equal_the_sorted_vector(
        keys in proptest::collection::vec(
            (proptest::collection::vec(0u8..4, 0..3), 0usize..6),
            0..60,
        ),
        walk in proptest::collection::vec(
            (0u8..8, proptest::collection::vec(0u8..4, 0..3)),
            1..60,
        ),
    ) {
        // Trailers are unique, as sequence numbers are.
        let numbered = keys.iter().enumerate();
        let all: Vec<_> = numbered.map(|(i, (k, c))| ((k.clone(), i as u64), *c)).collect();
        let mut parts: Vec<Vec<(Vec<u8>, u64)>> = vec![Vec::new(); 6];
        for (entry, child) in &all {
            parts[*child].push(entry.clone());
        }
        let mut merged = MergeCursor::new(
            parts.into_iter().map(|p| VecCursor { entries: sorted(p), at: None }).collect(),
        );
        let entries = sorted(all.into_iter().map(|(e, _)| e).collect());
        let mut model = VecCursor { entries, at: None };
        for (op, key) in walk {
            let trailer = u64::from(op) * 7;
            for c in [&mut merged as &mut dyn EntryCursor, &mut model] {
                match op {
                    0 => c.seek(&[], u64::MAX)?,
                    1 => c.seek_to_last()?,
                    2 => c.seek(&key, trailer)?,
                    3 => c.seek_for_prev(&key, trailer)?,
                    4 | 5 if c.valid() => c.next()?,
                    6 | 7 if c.valid() => c.prev()?,
                    _ => {}
                }
            }
            prop_assert_eq!(merged.valid(), model.valid());
            if model.valid() {
                prop_assert_eq!((merged.key(), merged.trailer()), (model.key(), model.trailer()));
            }
        }
    }
}
