//! Draws the moment at which a run ends. Most calls of a run are appends to the log, so a uniform
//! choice would seldom hit rare operations or the moments right after a promise.
//!
//! [`draw`] chooses from a journal any call (four times in ten); a moment inside an operation that
//! ends with a promise, with each kind equally often (four in ten); or the moment right after a
//! promise, at which no later work can have hidden an omission.
//!
//! Threading: plain functions over a journal.

use std::collections::BTreeMap;

use siltstone_storage::{CrashPolicy, Mark};

use crate::rng::Rng;
use crate::world::PROMISES;

/// A moment: after this number of changes of the main medium and, if that is known, after this
/// number of marks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Moment {
    pub(crate) at: u64,
    pub(crate) mark_count: Option<usize>,
    /// Whether a promise was made right before it.
    pub(crate) is_after_promise: bool,
}

/// Draws a moment of a journal of `len` changes with these marks, at which at least `least` changes
/// were made.
pub(crate) fn draw(marks: &[Mark], len: u64, least: u64, rng: &mut Rng) -> Moment {
    let anywhere = Moment {
        at: least + rng.below(len.saturating_sub(least) + 1),
        mark_count: None,
        is_after_promise: false,
    };
    let first = marks.partition_point(|mark| mark.at < least);
    let chosen = match rng.below(10) {
        0..4 => None,
        4..8 => within(marks, first, rng),
        _ => after_a_promise(marks, first, rng),
    };
    chosen.unwrap_or(anywhere)
}

/// Draws the losses. Right after a promise these are often all unsynced changes.
pub(crate) fn draw_policy(moment: Moment, rng: &mut Rng) -> CrashPolicy {
    let policy = CrashPolicy::Seeded(rng.draw());
    match rng.below(8) {
        0 => CrashPolicy::LoseUnsynced,
        1 => CrashPolicy::KeepUnsynced,
        2..5 if moment.is_after_promise => CrashPolicy::LoseUnsynced,
        _ => policy,
    }
}

/// Draws a moment within an operation that ends with a promise: first the kind of operation, then
/// one operation of this kind.
fn within(marks: &[Mark], first: usize, rng: &mut Rng) -> Option<Moment> {
    let mut ends = BTreeMap::new();
    let mut kinds: BTreeMap<u64, Vec<(usize, usize)>> = BTreeMap::new();
    for (i, mark) in marks.iter().enumerate().skip(first).rev() {
        let (kind, number) = mark.label.split_at(1);
        let number: u64 = number.parse().ok()?;
        match kind {
            "e" => drop(ends.insert(number, i)),
            "b" => {
                // An operation without an end was cut off with the run.
                let end = ends.remove(&number).unwrap_or(marks.len() - 1);
                kinds.entry(number % PROMISES).or_default().push((i, end));
            }
            _ => {}
        }
    }
    let kinds: Vec<_> = kinds.into_values().collect();
    if kinds.is_empty() {
        return None;
    }
    let of_kind = rng.pick(&kinds);
    let (begin, end) = *rng.pick(of_kind);
    // Ordered by the changes of this medium, or by the marks, which include the changes of others.
    if rng.chance(50) {
        let from = marks[begin].at;
        return Some(Moment {
            at: from + rng.below(marks[end].at - from + 1),
            mark_count: None,
            is_after_promise: false,
        });
    }
    let last = begin + rng.index(end - begin + 1);
    Some(Moment {
        at: marks[last].at,
        mark_count: Some(last + 1),
        is_after_promise: false,
    })
}

fn after_a_promise(marks: &[Mark], first: usize, rng: &mut Rng) -> Option<Moment> {
    let promises: Vec<usize> = (first..marks.len())
        .filter(|i| marks[*i].label.starts_with('s'))
        .collect();
    if promises.is_empty() {
        return None;
    }
    let last = *rng.pick(&promises);
    Some(Moment {
        at: marks[last].at,
        mark_count: Some(last + 1),
        is_after_promise: true,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_lie_where_they_should() {
        let mark = |at, label: &str| Mark {
            at,
            label: label.into(),
        };
        // An operation of kind 1 runs from 10 to 20, and one of kind 2 from 90 on. A promise is
        // made at 20.
        let marks = [
            mark(5, "a1"),
            mark(10, "b1"),
            mark(15, "l3"),
            mark(20, "s1"),
            mark(20, "e1"),
            mark(90, "b10"),
            mark(95, "a7"),
        ];
        let mut rng = Rng::new(1);
        let all: Vec<Moment> = (0..2000).map(|_| draw(&marks, 1000, 0, &mut rng)).collect();
        let share = |f: &dyn Fn(&Moment) -> bool| all.iter().filter(|m| f(m)).count();
        assert!(all.iter().all(|m| m.at <= 1000));
        let after = share(&|m| m.is_after_promise);
        assert!((300..500).contains(&after), "{after}");
        assert!(
            all.iter()
                .all(|m| !m.is_after_promise || (m.at, m.mark_count) == (20, Some(4)))
        );
        let inside = share(&|m| !m.is_after_promise && (10..=20).contains(&m.at));
        assert!((300..520).contains(&inside), "{inside}");
        let open = share(&|m| (90..=95).contains(&m.at));
        assert!((300..520).contains(&open), "{open}");
        for _ in 0..200 {
            assert!((30..=1000).contains(&draw(&marks, 1000, 30, &mut rng).at));
        }
        assert_eq!(draw(&[], 0, 0, &mut rng).at, 0);
    }
}
