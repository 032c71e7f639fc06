//! The distributions of latencies: a chart for each kind of operation.
//!
//! Threading: pure functions.

use std::collections::BTreeSet;

use super::chart::{self, Chart, Layer};
use super::model::{Group, Runs};
use super::table::{Cell, Row, Table};
use super::throughput::entrants;
use crate::draw::axis::Axis;
use crate::draw::number::{DASH, Unit, count, micros};
use crate::draw::plot;
use crate::measure::LatencySummary;

/// The figures that are marked on a curve: their parts of all calls, and their names.
const MARKS: [(f64, &str); 5] = [
    (0.5, "p50"),
    (0.99, "p99"),
    (0.999, "p99.9"),
    (0.9999, "p99.99"),
    (1.0, "max"),
];

/// The kinds of operations of a group.
fn kinds<'a>(group: &'a Group<'_>) -> BTreeSet<&'a str> {
    let rounds = group.runs.iter().map(|runs| runs.typical());
    rounds
        .flat_map(|record| record.latency.keys().map(|kind| &kind[..]))
        .collect()
}

/// The charts of a group.
pub fn charts(group: &Group<'_>) -> Vec<Chart> {
    let kinds = kinds(group).into_iter().enumerate();
    kinds
        .filter_map(|(n, kind)| distribution(group, n, kind))
        .collect()
}

fn distribution(group: &Group<'_>, n: usize, kind: &str) -> Option<Chart> {
    let all: Vec<(&Runs<'_>, &LatencySummary)> = group
        .runs
        .iter()
        .filter_map(|runs| Some((runs, runs.typical().latency.get(kind)?)))
        .collect();
    let calls = all.iter().map(|(_, found)| found.count).max()?;
    let values = all.iter().flat_map(|(_, found)| {
        let curve = found.cdf.iter().map(|(us, _)| *us);
        curve.chain([found.min_us, found.p50_us, found.max_us])
    });
    let x = Axis::log(values.map(|us| us * 1e3), Some(Unit::Nanoseconds));
    let y = Axis::nines(calls);
    let mut layers = Vec::new();
    for (runs, found) in &all {
        layers.push(Layer {
            name: runs.name.clone(),
            class: chart::line_class(runs.look),
            path: plot::line(&x, &y, curve(found)),
            hint: String::new(),
        });
    }
    layers.extend(
        all.iter()
            .flat_map(|(runs, found)| dots(&x, &y, runs, found)),
    );
    Some(Chart {
        id: format!("{}-latency-{n}", group.id),
        title: format!("Latency of {}", kind.replace('_', " ")),
        note: "How many of the calls took no longer. The dots are p50, p99, p99.9, p99.99 and the \
               slowest call; a curve further left is faster."
            .to_string(),
        description: format!(
            "Distribution of the latencies of {kind}, for {}.",
            entrants(group)
        ),
        x_name: "latency",
        height_rem: 16.0,
        layers,
        lanes: Vec::new(),
        table: table(group, kind),
        x,
        y,
    })
}

/// The points of a distribution, from its shortest call to its longest one.
fn curve(found: &LatencySummary) -> impl Iterator<Item = (f64, f64)> {
    let first = (found.min_us * 1e3, 0.0);
    let last = (found.max_us * 1e3, 1.0);
    let inner = found.cdf.iter().map(|(us, part)| (us * 1e3, *part));
    std::iter::once(first)
        .chain(inner)
        .chain(std::iter::once(last))
}

fn dots(x: &Axis, y: &Axis, runs: &Runs<'_>, found: &LatencySummary) -> Vec<Layer> {
    let figures = [
        found.p50_us,
        found.p99_us,
        found.p999_us,
        found.p9999_us,
        found.max_us,
    ];
    let marks = MARKS.iter().zip(figures);
    marks
        .map(|((part, name), us)| Layer {
            name: String::new(),
            class: format!("stroke dots {}", chart::colour(runs.look)),
            path: plot::dot(x, y, us * 1e3, *part),
            hint: format!("{}, {name}: {}", runs.name, micros(Some(us))),
        })
        .collect()
}

/// The table behind a chart. In an open loop it has the service times too.
fn table(group: &Group<'_>, kind: &str) -> Table {
    let mut rows = Vec::new();
    for runs in &group.runs {
        let record = runs.typical();
        rows.push(row(runs, "", record.latency.get(kind)));
        if let Some(found) = record.service_time.get(kind) {
            rows.push(row(runs, "from the real start of each call", Some(found)));
        }
    }
    let heads = [
        "engine",
        "calls",
        "mean",
        "shortest",
        "p50",
        "p90",
        "p99",
        "p99.9",
        "p99.99",
        "max",
        "sum above 1 ms",
    ];
    let caption = format!("Latency of {}", kind.replace('_', " "));
    Table::new(&caption, &heads, rows)
}

fn row(runs: &Runs<'_>, note: &str, found: Option<&LatencySummary>) -> Row {
    let us = |figure: fn(&LatencySummary) -> f64| Cell::from(micros(found.map(figure)));
    let calls = found.map_or(DASH.to_string(), |found| count(found.count));
    let slow = found.map_or(DASH.to_string(), |found| Unit::Seconds.show(found.slow_s));
    Row {
        head: runs.name.clone(),
        note: note.to_string(),
        look: Some(runs.look),
        at: None,
        cells: vec![
            Cell::from(calls),
            us(|found| found.mean_us),
            us(|found| found.min_us),
            us(|found| found.p50_us),
            us(|found| found.p90_us),
            us(|found| found.p99_us),
            us(|found| found.p999_us),
            us(|found| found.p9999_us),
            us(|found| found.max_us),
            Cell::from(slow),
        ],
    }
}
