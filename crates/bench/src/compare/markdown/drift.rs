//! Rounds whose figures are worth less, because the machine changed meanwhile.
//!
//! Threading: pure functions.

use super::number::three;
use super::{Outcome, Process, Shown};
use crate::compare::conditions::STOLEN_MAX;
use crate::compare::statistics::drift;
use crate::compare::{PAUSE_MAX_S, longest_pause_s};

/// Sentences that name the rounds of these rows in which the machine changed.
pub(super) fn sentences(shown: &Shown<'_>, rows: &[usize]) -> Vec<String> {
    let (mut drifted, mut stolen, mut paused) = (Vec::new(), Vec::new(), Vec::new());
    for row in rows {
        let spec = &shown.results.plan.rows[*row];
        for round in 1..=spec.pairs {
            let outcome = |engine: &usize| -> Option<&Outcome> {
                shown.results.get(Process {
                    row: *row,
                    engine: *engine,
                    round,
                })
            };
            let outcomes: Vec<&Outcome> = spec.engines.iter().filter_map(outcome).collect();
            let name = format!("{} round {round}", spec.name);
            let probes = outcomes.iter().flat_map(|o| o.conditions.probes());
            if let Some((lowest, highest)) = drift(probes) {
                let (lowest, highest) = (three(lowest), three(highest));
                drifted.push(format!("{name} ({lowest} to {highest} GB/s)"));
            }
            let parts = outcomes.iter().filter_map(|o| o.conditions.stolen);
            if let Some(most) = parts.max_by(f64::total_cmp).filter(|p| *p > STOLEN_MAX) {
                stolen.push(format!("{name} ({}%)", three(most * 100.0)));
            }
            let pause_s = longest_pause_s(outcomes.iter().copied(), None);
            if let Some(pause_s) = pause_s.filter(|pause_s| *pause_s > PAUSE_MAX_S) {
                paused.push(format!("{name} ({} minutes)", three(pause_s / 60.0)));
            }
        }
    }
    let told = [
        (
            "The machine drifted: the probes of memory bandwidth before and after the processes \
             of one round differ by more than 20% in",
            drifted,
        ),
        (
            "Other machines took more than 2% of the processors from a process of",
            stolen,
        ),
        ("Two processes of one round lie far apart in", paused),
    ];
    told.into_iter()
        .filter(|(_, rounds)| !rounds.is_empty())
        .map(|(what, rounds)| format!("{what} {}.", rounds.join(", ")))
        .collect()
}
