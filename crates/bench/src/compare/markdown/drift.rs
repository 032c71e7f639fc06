//! Rounds whose figures are worth less, because the machine changed meanwhile.
//!
//! A plan of many rows can have many such rounds. So a sentence names each row once, with the
//! number of such rounds and their widest range.
//!
//! Threading: pure functions.

use super::number::three;
use super::{Outcome, Process, Shown};
use crate::compare::conditions::STOLEN_MAX;
use crate::compare::statistics::drift;
use crate::compare::{PAUSE_MAX_S, longest_pause_s};

/// Sentences that name the rows of which the machine changed in some rounds.
pub(super) fn sentences(shown: &Shown<'_>, rows: &[usize]) -> Vec<String> {
    let (mut drifted, mut stolen, mut paused) = (Vec::new(), Vec::new(), Vec::new());
    for row in rows {
        let name = &shown.results.plan.rows[*row].name;
        let rounds = by_round(shown, *row);
        let of = |marked: usize| format!("{marked} of {} rounds", rounds.len());

        let ranges = rounds.iter().filter_map(|outcomes| {
            let probes = outcomes.iter().flat_map(|o| o.conditions.probes());
            drift(probes)
        });
        let ranges: Vec<(f64, f64)> = ranges.collect();
        let widest = ranges
            .iter()
            .max_by(|a, b| (a.1 / a.0).total_cmp(&(b.1 / b.0)));
        if let Some((lowest, highest)) = widest {
            let (marked, lowest, highest) = (of(ranges.len()), three(*lowest), three(*highest));
            drifted.push(format!("{name} ({marked}, {lowest} to {highest} GB/s)"));
        }

        let parts = rounds.iter().filter_map(|outcomes| {
            let parts = outcomes.iter().filter_map(|o| o.conditions.stolen);
            parts.max_by(f64::total_cmp)
        });
        if let Some((marked, most)) = above(STOLEN_MAX, parts) {
            let (marked, most) = (of(marked), three(most * 100.0));
            stolen.push(format!("{name} ({marked}, up to {most}%)"));
        }

        let pauses = rounds
            .iter()
            .filter_map(|outcomes| longest_pause_s(outcomes.iter().copied(), None));
        if let Some((marked, most)) = above(PAUSE_MAX_S, pauses) {
            let (marked, most) = (of(marked), three(most / 60.0));
            paused.push(format!("{name} ({marked}, up to {most} minutes)"));
        }
    }
    let told = [
        (
            "The machine drifted: the probes of memory bandwidth before and after the processes \
             of one round differ by more than 20% in these rows, each with its widest range",
            drifted,
        ),
        (
            "Other machines took more than 2% of the processors from a process in these rows",
            stolen,
        ),
        (
            "More than half an hour lies between two processes of one round in these rows",
            paused,
        ),
    ];
    told.into_iter()
        .filter(|(_, rows)| !rows.is_empty())
        .map(|(what, rows)| format!("{what}: {}.", rows.join(", ")))
        .collect()
}

/// The outcomes of each round of a row that has any.
fn by_round<'a>(shown: &Shown<'a>, row: usize) -> Vec<Vec<&'a Outcome>> {
    let results = shown.results;
    let spec = &results.plan.rows[row];
    let outcomes = |round| -> Vec<&'a Outcome> {
        let engines = spec.engines.iter();
        engines
            .filter_map(|engine| {
                let engine = *engine;
                results.get(Process { row, engine, round })
            })
            .collect()
    };
    (1..=spec.pairs)
        .map(outcomes)
        .filter(|outcomes| !outcomes.is_empty())
        .collect()
}

/// How many figures are above a limit, and the highest of them; `None` if there are none.
fn above(limit: f64, figures: impl Iterator<Item = f64>) -> Option<(usize, f64)> {
    let figures: Vec<f64> = figures.filter(|figure| *figure > limit).collect();
    let most = figures.iter().copied().max_by(f64::total_cmp)?;
    Some((figures.len(), most))
}
