//! The warnings of the records of a store, as notes beside the figures.
//!
//! Threading: pure functions.

use super::Shown;
use crate::record::merged;

/// A warning of an engine, and the rows whose records have it.
pub(super) struct Warning {
    /// The note: the engine, its rows, the number of their rounds, and the warning.
    pub note: String,
    pub rows: Vec<usize>,
}

/// The warnings of an engine in these rows. Those that differ in their numbers only are one.
pub(super) fn warnings(shown: &Shown<'_>, rows: &[usize], engine: usize) -> Vec<Warning> {
    let all = rows.iter().flat_map(move |row| {
        let records = shown.records(*row, engine);
        let texts = records.flat_map(|record| &record.warnings);
        texts.map(move |text| (*row, text.as_str()))
    });
    merged(all)
        .into_iter()
        .map(|(text, places)| {
            let mut rows = places.clone();
            rows.dedup();
            let place = |row: &usize| {
                let warned = places.iter().filter(|place| *place == row).count();
                let rounds = shown.records(*row, engine).count();
                let name = &shown.results.plan.rows[*row].name;
                format!("{name}, {warned} of {rounds} rounds")
            };
            let places: Vec<String> = rows.iter().map(place).collect();
            let name = shown.engine_name(engine);
            Warning {
                note: format!("{name} ({}): {text}", places.join("; ")),
                rows,
            }
        })
        .collect()
}
