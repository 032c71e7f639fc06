//! The tables of figures and of ratios.
//!
//! Threading: pure functions.

use super::number::{three, unit};
use super::table::Table;
use super::text::{Notes, quoted};
use super::warned::{Warning, warnings};
use super::{Line, Shown};
use crate::compare::Spread;
use crate::experiment::Metric;
use crate::settings::size_text;

/// The part of its rate that a writer beside readers has to reach.
const RATE_KEPT: f64 = 0.98;

/// What a line is called in tables.
fn line_name(shown: &Shown<'_>, line: Line) -> String {
    let row = &shown.results.plan.rows[line.row];
    let (unit, _) = unit(line.metric);
    let until = match line.metric {
        Metric::OpsPerSUntilIdle | Metric::BytesPerSUntilIdle => ", until idle",
        Metric::OpsPerS | Metric::BytesPerS => "",
        Metric::CompactionBytesPerCpuS => ", input of compactions",
        other => &format!(", {other}"),
    };
    let limit = row
        .memory_limit
        .map(|bytes| format!(", memory {}", size_text(bytes)));
    format!("{}{until}{}, {unit}", row.name, limit.unwrap_or_default())
}

/// Medians, lowest and highest figures.
pub(super) fn figures(
    shown: &Shown<'_>,
    rows: &[usize],
    engines: &[usize],
    notes: &mut Notes,
) -> Table {
    let names = engines.iter().map(|engine| {
        let mut rows = rows.iter();
        let is_other = rows.any(|row| shown.other_promise(*row, *engine).is_some());
        let promise = if is_other { " (another promise)" } else { "" };
        format!("{}{promise}", shown.engine_name(*engine))
    });
    let mut table = Table::new(std::iter::once(String::new()).chain(names));
    let warned = engines.iter().map(|e| warnings(shown, rows, *e));
    let warned: Vec<Vec<Warning>> = warned.collect();
    for line in shown.lines(rows) {
        let cells = engines.iter().zip(&warned).map(|(engine, warned)| {
            let mut cell = figure(shown, line, *engine, notes);
            for warning in warned
                .iter()
                .filter(|warning| warning.rows.contains(&line.row))
            {
                let number = notes.number(warning.note.clone());
                cell.push_str(&format!(" (note {number})"));
            }
            cell
        });
        let cells: Vec<String> = cells.collect();
        table.line(std::iter::once(line_name(shown, line)).chain(cells));
    }
    table
}

fn figure(shown: &Shown<'_>, line: Line, engine: usize, notes: &mut Notes) -> String {
    let row = line.row;
    let spec = &shown.results.plan.rows[row];
    if !spec.engines.contains(&engine) {
        return String::new();
    }
    let reason = shown.reason(row, engine).map(|(what, reason)| {
        let name = shown.engine_name(engine);
        let number = notes.number(format!("{name} {what}: {}", quoted(reason)));
        format!("{what} (note {number})")
    });
    let (_, scale) = unit(line.metric);
    let figures = shown.rounds(line, engine).map(|(_, figure)| figure / scale);
    let Some(spread) = Spread::of(figures) else {
        let is_done = shown.records(row, engine).next().is_some();
        let nothing = if is_done { "not counted" } else { "not run" };
        return reason.unwrap_or(nothing.into());
    };
    let mut cell = match spread.count {
        1 => three(spread.median),
        _ => {
            let (lowest, highest) = (three(spread.lowest), three(spread.highest));
            format!("{} ({lowest} to {highest})", three(spread.median))
        }
    };
    if let Some(rate) = spec.settings.write_rate {
        let achieved = shown.records(row, engine);
        let achieved = achieved.filter_map(|record| record.beside_ops_per_s);
        let lowest = Spread::of(achieved).map(|spread| spread.lowest);
        if let Some(lowest) = lowest.filter(|lowest| *lowest < rate * RATE_KEPT) {
            let number = notes.number(format!(
                "the writer of {} reached only {} of the {} writes a second that all writers \
                 were to do, so its readers had less to wait for",
                shown.engine_name(engine),
                three(lowest),
                three(rate)
            ));
            cell.push_str(&format!(" (note {number})"));
        }
    }
    if spread.count < spec.pairs as usize {
        cell.push_str(&format!(", {} of {} rounds", spread.count, spec.pairs));
    }
    if let Some(reason) = reason {
        cell.push_str(&format!(", {reason}"));
    }
    cell
}

/// Ratios of the baseline to all other engines.
pub(super) fn ratios(shown: &Shown<'_>, rows: &[usize], engines: &[usize]) -> Table {
    let others: Vec<usize> = engines
        .iter()
        .copied()
        .filter(|engine| *engine != shown.baseline)
        .collect();
    let names = others
        .iter()
        .map(|engine| shown.engine_name(*engine).to_string());
    let mut table = Table::new(std::iter::once(String::new()).chain(names));
    for line in shown.lines(rows) {
        let cells: Vec<String> = others
            .iter()
            .map(|engine| ratio(shown, line, *engine))
            .collect();
        if cells.iter().any(|cell| !cell.is_empty()) {
            let name = short_name(shown, line);
            table.line(std::iter::once(name).chain(cells));
        }
    }
    table
}

/// The name of a row, with the figure if the row has several.
pub(super) fn short_name(shown: &Shown<'_>, line: Line) -> String {
    let row = &shown.results.plan.rows[line.row];
    match row.also.is_empty() {
        true => row.name.clone(),
        false => format!("{} {}", row.name, line.metric),
    }
}

fn ratio(shown: &Shown<'_>, line: Line, engine: usize) -> String {
    let Some(rounds) = shown.ratios(line, engine) else {
        return String::new();
    };
    let median = three(rounds.spread.median);
    let Some(interval) = rounds.interval else {
        return format!("{median}, one round");
    };
    let interval = format!("({} to {})", three(interval.from), three(interval.to));
    if shown.other_promise(line.row, engine).is_some() {
        return format!("{median} {interval}, another promise");
    }
    let word = match rounds.is_better() {
        Some(true) => "wins",
        Some(false) => "loses",
        None => "undecided",
    };
    format!("{word} {median} {interval}")
}
