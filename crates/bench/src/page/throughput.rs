//! The charts of a group over time: throughput with stalls, the slowest calls, and the levels.
//!
//! Charts show the typical round of each entrant. A line ends with the last operation; stalls and
//! levels go on until the engine is idle.
//!
//! Threading: pure functions.

use super::chart::{self, COLUMNS, Chart, Lane, Layer};
use super::model::{Group, Runs};
use super::table::{Cell, Row, Table};
use super::thin::{self, Bin};
use crate::draw::axis::Axis;
use crate::draw::number::{DASH, Unit};
use crate::measure::Second;
use crate::record::Record;

/// The most rows of a table behind a chart.
pub const ROWS: usize = 240;

/// A series that claims more seconds than this is taken row by row.
const SECONDS_MAX: u64 = 1_000_000;

/// The rows of a series by second. A second without a row is `None`.
pub fn by_second(record: &Record) -> Vec<Option<&Second>> {
    let last = record.series.iter().map(|row| row.second).max();
    let Some(last) = last.filter(|last| *last < SECONDS_MAX) else {
        return record.series.iter().map(Some).collect();
    };
    let mut rows = vec![None; last as usize + 1];
    for row in &record.series {
        rows[row.second as usize] = Some(row);
    }
    rows
}

/// Operations a second, until the last operation. The last second is not whole: its operations are
/// divided by the part of it that passed. Less than a tenth of a second says nothing, and is left
/// out.
pub fn rates(record: &Record) -> Vec<f64> {
    let rows = by_second(record);
    let mut rates: Vec<f64> = rows
        .iter()
        .map(|row| row.map_or(0.0, |row| row.operations as f64))
        .collect();
    let until = record.until_last_s;
    if !(until.is_finite() && until > 0.0) {
        return rates;
    }
    let whole = until.floor() as usize;
    let part = until.fract();
    if rates.len() > whole {
        rates.truncate(whole + 1);
        match part < 0.1 && whole > 0 {
            true => rates.truncate(whole),
            false => rates[whole] /= part.max(0.001),
        }
    }
    rates
}

/// The part of each second that a thread of the workload waited, on average, from 0 to 1. `None` if
/// the engine does not count stalls.
pub fn stalls(record: &Record) -> Option<Vec<f64>> {
    record.stall_s_by_cause.as_ref()?;
    let threads = record.settings.get("threads").and_then(|n| n.as_f64());
    let threads = threads.unwrap_or(1.0).max(1.0);
    let stalled = |row: Option<&Second>| {
        let causes = row.and_then(|row| row.stall_s.as_ref());
        let sum: f64 = causes.map_or(0.0, |causes| causes.values().sum());
        (sum / threads).clamp(0.0, 1.0)
    };
    Some(by_second(record).into_iter().map(stalled).collect())
}

/// The longest series of a group, in seconds.
pub fn longest(group: &Group<'_>) -> usize {
    let lengths = group
        .runs
        .iter()
        .map(|runs| by_second(runs.typical()).len());
    lengths.max().unwrap_or(0)
}

/// The axis of time of a group's charts.
pub fn time_axis(group: &Group<'_>) -> Axis {
    Axis::span(longest(group) as f64, 6, Unit::Seconds)
}

/// A bin as a time, for tables.
pub fn time_text(bin: &Bin) -> String {
    match bin.to - bin.from > 1.0 {
        true => format!("{} to {} s", bin.from, bin.to),
        false => format!("{} s", bin.from),
    }
}

/// The lowest and the highest value of a bin.
pub fn range_text(unit: Unit, bin: &Bin) -> String {
    match bin.low == bin.high {
        true => unit.show(bin.low),
        false => format!("{} to {}", unit.show(bin.low), unit.show(bin.high)),
    }
}

/// Throughput by second.
pub fn throughput(group: &Group<'_>) -> Option<Chart> {
    let rates: Vec<(&Runs<'_>, Vec<f64>)> = group
        .runs
        .iter()
        .map(|runs| (runs, rates(runs.typical())))
        .collect();
    if rates.iter().all(|(_, rates)| rates.is_empty()) {
        return None;
    }
    let x = time_axis(group);
    let max = rates
        .iter()
        .flat_map(|(_, rates)| rates)
        .fold(0f64, |a, b| a.max(*b));
    let y = Axis::from_zero(max, 5, Unit::PerSecond);
    let shades = group.runs.iter().flat_map(|runs| shades(&x, runs));
    let lines = rates
        .iter()
        .flat_map(|(runs, rates)| chart::lines(&x, &y, &runs.name, runs.look, rates));
    let layers: Vec<Layer> = shades.chain(lines).collect();
    let lanes: Vec<Lane> = group.runs.iter().map(|runs| lane(&x, runs)).collect();
    Some(Chart {
        id: format!("{}-throughput", group.id),
        title: "Throughput by second".to_string(),
        note: throughput_note(group),
        description: format!("Operations in each second, for {}.", entrants(group)),
        x_name: "seconds since the start; below the plot, stalls by the engine's own account",
        y,
        height_rem: 16.0,
        layers,
        lanes,
        table: throughput_table(group, &rates, &x),
        x,
    })
}

/// The names of a group's entrants, for descriptions.
pub fn entrants(group: &Group<'_>) -> String {
    let names: Vec<&str> = group.runs.iter().map(|runs| &runs.name[..]).collect();
    names.join(", ")
}

fn throughput_note(group: &Group<'_>) -> String {
    let mut note =
        "A line ends with the last operation; the engine may be busy after that. Stalls \
                    are shaded, darker if threads waited for more of the second."
            .to_string();
    if longest(group) > COLUMNS {
        note.push_str(
            " The run has more seconds than the chart has columns: the thin line of an engine \
             spans the slowest and the fastest second of each column, and the thick one is the \
             mean.",
        );
    }
    note
}

/// Spans of stalls with their opacity, in four steps.
fn stall_marks(x: &Axis, stalls: &[f64]) -> Vec<(f64, String)> {
    let bins = thin::bins(stalls, thin::width(stalls.len(), COLUMNS));
    let step = |bin: &Bin| (bin.high * 4.0).ceil() as u32;
    (1..=4)
        .map(|wanted| {
            let spans = bins.iter().filter(|bin| step(bin) == wanted);
            let path = chart::bands(x, joined(spans.map(|bin| (bin.from, bin.to))).into_iter());
            (f64::from(wanted) / 4.0, path)
        })
        .filter(|(_, path)| !path.is_empty())
        .collect()
}

/// Spans that touch become one.
fn joined(spans: impl Iterator<Item = (f64, f64)>) -> Vec<(f64, f64)> {
    let mut joined: Vec<(f64, f64)> = Vec::new();
    for (from, to) in spans {
        match joined.last_mut() {
            Some(last) if last.1 == from => last.1 = to,
            _ => joined.push((from, to)),
        }
    }
    joined
}

fn shades(x: &Axis, runs: &Runs<'_>) -> Vec<Layer> {
    let marks = stall_marks(x, &stalls(runs.typical()).unwrap_or_default());
    let shade = |(opacity, path): (f64, String)| Layer {
        class: format!(
            "shade o{} {}",
            (opacity * 4.0) as u32,
            chart::colour(runs.look)
        ),
        path,
        ..Layer::default()
    };
    marks.into_iter().map(shade).collect()
}

fn lane(x: &Axis, runs: &Runs<'_>) -> Lane {
    let stalls = stalls(runs.typical());
    Lane {
        name: runs.name.clone(),
        colour: chart::colour(runs.look),
        instead: match stalls {
            None => "stalls not counted by the engine",
            Some(_) => "",
        },
        marks: stall_marks(x, &stalls.unwrap_or_default()),
    }
}

/// The bins of a table's rows: their times, for the longest of several rows of values.
fn row_bins(seconds: usize) -> Vec<Bin> {
    thin::bins(&vec![0.0; seconds], thin::width(seconds, ROWS))
}

fn throughput_table(group: &Group<'_>, rates: &[(&Runs<'_>, Vec<f64>)], x: &Axis) -> Table {
    let times = row_bins(longest(group));
    let width = thin::width(longest(group), ROWS);
    let columns: Vec<(Vec<Bin>, Option<Vec<f64>>)> = rates
        .iter()
        .map(|(runs, rates)| (thin::bins(rates, width), stalls(runs.typical())))
        .collect();
    let rows = times.iter().enumerate().map(|(n, time)| Row {
        head: time_text(time),
        at: Some(x.place((time.from + time.to) / 2.0)),
        cells: columns
            .iter()
            .map(|(bins, stalls)| Cell::from(rate_text(bins.get(n), stalls.as_deref(), time)))
            .collect(),
        ..Row::default()
    });
    let names = group.runs.iter().map(|runs| &runs.name[..]);
    let heads: Vec<&str> = std::iter::once("time").chain(names).collect();
    Table::new("Throughput by second", &heads, rows.collect())
}

fn rate_text(bin: Option<&Bin>, stalls: Option<&[f64]>, time: &Bin) -> String {
    let text = bin.map_or(DASH.to_string(), |bin| range_text(Unit::PerSecond, bin));
    let seconds = stalls.unwrap_or_default().iter();
    let span = (time.to - time.from) as usize;
    let stalled: f64 = seconds.skip(time.from as usize).take(span).sum();
    match stalled > 0.0 {
        true => format!("{text}, stalled {}", Unit::Seconds.show(stalled)),
        false => text,
    }
}

/// The slowest call of each second, over all kinds of operations.
pub fn slowest(group: &Group<'_>) -> Option<Chart> {
    let slowest: Vec<(&Runs<'_>, Vec<f64>)> = group
        .runs
        .iter()
        .map(|runs| (runs, slowest_ns(runs.typical())))
        .collect();
    let all = slowest
        .iter()
        .flat_map(|(_, values)| values.iter().copied());
    if !all.clone().any(|ns| ns > 0.0) {
        return None;
    }
    let x = time_axis(group);
    let y = Axis::log(all, Some(Unit::Nanoseconds));
    let lines = slowest.iter().map(|(runs, values)| Layer {
        name: runs.name.clone(),
        class: chart::line_class(runs.look),
        path: highest(
            &x,
            &y,
            &thin::bins(values, thin::width(values.len(), COLUMNS)),
        ),
        hint: String::new(),
    });
    Some(Chart {
        id: format!("{}-slowest", group.id),
        title: "Slowest call of each second".to_string(),
        note: "Of all kinds of operations and all threads. A gap is a second in which no call \
               ended; the call that caused it follows."
            .to_string(),
        description: format!(
            "The longest latency in each second, for {}.",
            entrants(group)
        ),
        x_name: "seconds since the start",
        height_rem: 11.0,
        layers: lines.collect(),
        lanes: Vec::new(),
        table: slowest_table(group, &slowest, &x),
        x,
        y,
    })
}

fn slowest_ns(record: &Record) -> Vec<f64> {
    let slowest = |row: &Second| {
        row.latency
            .values()
            .fold(0f64, |max, kind| max.max(kind.max_us))
    };
    let rows = by_second(record).into_iter();
    rows.map(|row| row.map_or(0.0, slowest) * 1e3).collect()
}

/// A line through the highest values, with gaps where there is none.
fn highest(x: &Axis, y: &Axis, bins: &[Bin]) -> String {
    let stretches = bins.split(|bin| bin.high <= 0.0);
    stretches
        .map(|bins| chart::outline(x, y, &Bin::flat(bins, |bin| bin.high)))
        .collect()
}

fn slowest_table(group: &Group<'_>, slowest: &[(&Runs<'_>, Vec<f64>)], x: &Axis) -> Table {
    let times = row_bins(longest(group));
    let width = thin::width(longest(group), ROWS);
    let columns = slowest.iter().map(|(_, values)| thin::bins(values, width));
    let columns: Vec<Vec<Bin>> = columns.collect();
    let cell = |bin: Option<&Bin>| match bin.filter(|bin| bin.high > 0.0) {
        Some(bin) => Cell::from(Unit::Nanoseconds.show(bin.high)),
        None => Cell::from(DASH.to_string()),
    };
    let rows = times.iter().enumerate().map(|(n, time)| Row {
        head: time_text(time),
        at: Some(x.place((time.from + time.to) / 2.0)),
        cells: columns.iter().map(|bins| cell(bins.get(n))).collect(),
        ..Row::default()
    });
    let names = group.runs.iter().map(|runs| &runs.name[..]);
    let heads: Vec<&str> = std::iter::once("time").chain(names).collect();
    Table::new("Slowest call of each second", &heads, rows.collect())
}
