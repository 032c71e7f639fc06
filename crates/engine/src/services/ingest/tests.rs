//! Tests of the division into runs.

use super::*;
use crate::formats::log::bodies::tests::table;
use crate::formats::version::Level;

fn ids(runs: &[Vec<Arc<TableMeta>>]) -> Vec<Vec<u64>> {
    runs.iter()
        .map(|run| run.iter().map(|t| t.id).collect())
        .collect()
}

#[test]
fn disjoint_tables_are_one_run_and_later_ones_lie_above() {
    let of = |tables: &[(&str, &str)]| {
        let tables = (0..).zip(tables).map(|(i, (a, b))| table(i, a, b));
        ids(&runs_of(tables.collect()))
    };
    assert_eq!(of(&[("c", "d"), ("a", "b"), ("e", "e")]), [vec![0, 1, 2]]);
    // One key in common is an overlap.
    assert_eq!(of(&[("a", "b"), ("b", "c")]), [vec![0], vec![1]]);
    // The third lies above the second only; the fourth above nothing.
    assert_eq!(
        of(&[("a", "c"), ("b", "f"), ("d", "g"), ("x", "y")]),
        [vec![0, 3], vec![1], vec![2]]
    );
    // Inside a table, and around several.
    assert_eq!(
        of(&[("a", "z"), ("c", "d"), ("e", "f"), ("b", "y")]),
        [vec![0], vec![1, 2], vec![3]]
    );
    assert!(runs_of(Vec::new()).is_empty());
}

#[test]
fn a_table_lies_above_exactly_what_it_overlaps() {
    let mut seed = 1u64;
    let mut next = |n: u64| {
        seed = seed
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (seed >> 33) % n
    };
    for _ in 0..300 {
        let tables: Vec<_> = (0..1 + next(12))
            .map(|id| {
                let (a, b) = (next(30), next(6));
                table(id, &format!("{a:03}"), &format!("{:03}", a + b))
            })
            .collect();
        let runs = runs_of(tables.clone());
        let run_of = |id: u64| {
            runs.iter()
                .position(|r| r.iter().any(|t| t.id == id))
                .unwrap()
        };
        for (i, t) in tables.iter().enumerate() {
            let below = tables[..i]
                .iter()
                .filter(|o| o.bounds.overlaps(&t.bounds))
                .map(|o| run_of(o.id) + 1)
                .max();
            assert_eq!(run_of(t.id), below.unwrap_or(0));
        }
        for run in runs {
            Level::new(run).unwrap();
        }
    }
}
