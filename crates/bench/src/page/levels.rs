//! The charts of the levels over time: bytes by level, a chart for each entrant with levels, and
//! the runs of level 0 of all of them.
//!
//! A second without a sample shows the levels of the second before it. The first second of a record
//! has levels. Records of earlier programs have none there, so their charts begin with an empty
//! tree.
//!
//! Threading: pure functions.

use super::chart::{self, COLUMNS, Chart, Layer};
use super::model::{Group, Runs};
use super::table::{Cell, Row, Table};
use super::thin;
use super::throughput::{ROWS, by_second, entrants, time_axis, time_text};
use crate::draw::axis::Axis;
use crate::draw::number::{DASH, Unit, bytes, count};
use crate::engine::Level;
use crate::record::Record;

/// The deepest level that has a colour of its own; deeper ones are drawn as one.
const DEEPEST: usize = 7;

/// Bytes and runs of the levels in one second.
#[derive(Clone, Debug, Default, PartialEq)]
struct Shape {
    bytes: Vec<u64>,
    runs: Vec<u64>,
}

impl Shape {
    fn of(levels: &[Level]) -> Shape {
        let mut shape = Shape::default();
        for level in levels {
            let place = (level.level as usize).min(DEEPEST);
            let length = shape.bytes.len().max(place + 1);
            shape.bytes.resize(length, 0);
            shape.runs.resize(length, 0);
            shape.bytes[place] = shape.bytes[place].saturating_add(level.bytes);
            shape.runs[place] = shape.runs[place].saturating_add(level.runs);
        }
        shape
    }

    fn total(&self) -> f64 {
        self.bytes.iter().map(|bytes| *bytes as f64).sum()
    }
}

/// The shapes by second; none if the engine has no levels.
fn shapes(record: &Record) -> Vec<Shape> {
    let rows = by_second(record);
    let sample = |row: &Option<_>| -> Option<Shape> {
        let row: &crate::measure::Second = (*row)?;
        row.levels.as_deref().map(Shape::of)
    };
    let samples: Vec<Option<Shape>> = rows.iter().map(sample).collect();
    if samples.iter().flatten().all(|shape| shape.bytes.is_empty()) {
        return Vec::new();
    }
    let mut last = Shape::default();
    let follow = |sample: Option<Shape>| {
        last = sample.unwrap_or_else(|| last.clone());
        last.clone()
    };
    samples.into_iter().map(follow).collect()
}

/// All charts of a group's levels, and the names of the entrants that have none.
pub fn charts(group: &Group<'_>) -> (Vec<Chart>, Vec<String>) {
    let all: Vec<(&Runs<'_>, Vec<Shape>)> = group
        .runs
        .iter()
        .map(|runs| (runs, shapes(runs.typical())))
        .collect();
    let without = all.iter().filter(|(_, shapes)| shapes.is_empty());
    let without = without.map(|(runs, _)| runs.name.clone()).collect();
    let all: Vec<(&Runs<'_>, Vec<Shape>)> = all
        .into_iter()
        .filter(|(_, shapes)| !shapes.is_empty())
        .collect();
    let totals = all.iter().flat_map(|(_, shapes)| shapes).map(Shape::total);
    let max = totals.fold(0f64, f64::max);
    let mut charts: Vec<Chart> = all
        .iter()
        .map(|(runs, shapes)| bytes_chart(group, runs, shapes, max))
        .collect();
    if !all.is_empty() {
        charts.push(runs_chart(group, &all));
    }
    (charts, without)
}

/// Of each bin the second with the most bytes.
fn largest(shapes: &[Shape], width: usize) -> Vec<(f64, f64, &Shape)> {
    let pick = |(n, chunk): (usize, &'_ [Shape])| -> (f64, f64, usize) {
        let mut best = 0;
        for position in 1..chunk.len() {
            if chunk[position].total() > chunk[best].total() {
                best = position;
            }
        }
        let from = (n * width) as f64;
        (from, from + chunk.len() as f64, n * width + best)
    };
    let chunks = shapes.chunks(width.max(1)).enumerate();
    chunks
        .map(pick)
        .map(|(from, to, best)| (from, to, &shapes[best]))
        .collect()
}

fn level_name(level: usize) -> String {
    match level {
        DEEPEST => format!("level {DEEPEST} and deeper"),
        level => format!("level {level}"),
    }
}

fn bytes_chart(group: &Group<'_>, runs: &Runs<'_>, shapes: &[Shape], max: f64) -> Chart {
    let x = time_axis(group);
    let y = Axis::from_zero(max, 4, Unit::Bytes);
    let bins = largest(shapes, thin::width(shapes.len(), COLUMNS));
    let levels = shapes
        .iter()
        .map(|shape| shape.bytes.len())
        .max()
        .unwrap_or(0);
    let mut floor = vec![0.0; bins.len()];
    let mut layers = Vec::new();
    // The deepest level is at the bottom, and level 0 on top, where new data arrives.
    for level in (0..levels).rev() {
        let mut spans = Vec::new();
        for ((from, to, shape), floor) in bins.iter().zip(&mut floor) {
            let low = *floor;
            *floor += shape.bytes.get(level).copied().unwrap_or(0) as f64;
            spans.push((*from, *to, low, *floor));
        }
        if spans.iter().all(|(_, _, low, high)| low == high) {
            continue;
        }
        layers.push(Layer {
            name: level_name(level),
            class: format!("fill c-l{level}"),
            path: chart::area(&x, &y, &spans),
            hint: String::new(),
        });
    }
    Chart {
        id: format!("{}-levels-{}", group.id, runs.look),
        title: format!("Levels over time, {}", runs.name),
        note: String::new(),
        description: format!("Bytes of each level in each second, of {}.", runs.name),
        x_name: "seconds since the start",
        height_rem: 11.0,
        layers,
        lanes: Vec::new(),
        table: bytes_table(runs, shapes, levels, &x),
        x,
        y,
    }
}

fn bytes_table(runs: &Runs<'_>, shapes: &[Shape], levels: usize, x: &Axis) -> Table {
    let bins = largest(shapes, thin::width(shapes.len(), ROWS));
    let cell = |shape: &Shape, level: usize| {
        let runs = shape.runs.get(level).copied().unwrap_or(0);
        let runs = match runs {
            1 => "1 run".to_string(),
            runs => format!("{} runs", count(runs)),
        };
        let size = bytes(Some(shape.bytes.get(level).copied().unwrap_or(0)));
        Cell::from(format!("{size}, {runs}"))
    };
    let rows = bins.iter().map(|(from, to, shape)| Row {
        head: match to - from > 1.0 {
            true => format!("{from} to {to} s"),
            false => format!("{from} s"),
        },
        at: Some(x.place((from + to) / 2.0)),
        cells: (0..levels).map(|level| cell(shape, level)).collect(),
        ..Row::default()
    });
    let names: Vec<String> = (0..levels).map(level_name).collect();
    let names = names.iter().map(|name| &name[..]);
    let heads: Vec<&str> = std::iter::once("time").chain(names).collect();
    let caption = format!("Levels over time, {}", runs.name);
    Table::new(&caption, &heads, rows.collect())
}

fn runs_chart(group: &Group<'_>, all: &[(&Runs<'_>, Vec<Shape>)]) -> Chart {
    let runs_of = |shape: &Shape| shape.runs.first().copied().unwrap_or(0) as f64;
    let values: Vec<(&Runs<'_>, Vec<f64>)> = all
        .iter()
        .map(|(runs, shapes)| (*runs, shapes.iter().map(runs_of).collect()))
        .collect();
    let max = values
        .iter()
        .flat_map(|(_, values)| values)
        .fold(0f64, |a, b| a.max(*b));
    let x = time_axis(group);
    let y = Axis::from_zero(max.max(4.0), 4, Unit::Plain);
    let lines = values
        .iter()
        .flat_map(|(runs, values)| chart::lines(&x, &y, &runs.name, runs.look, values));
    Chart {
        id: format!("{}-runs", group.id),
        title: "Sorted runs of level 0".to_string(),
        note: "Reads look into each run, and many of them make writers wait.".to_string(),
        description: format!("Runs of level 0 in each second, of {}.", entrants(group)),
        x_name: "seconds since the start",
        height_rem: 11.0,
        layers: lines.collect(),
        lanes: Vec::new(),
        table: runs_table(&values, &x),
        x,
        y,
    }
}

fn runs_table(values: &[(&Runs<'_>, Vec<f64>)], x: &Axis) -> Table {
    let seconds = values
        .iter()
        .map(|(_, values)| values.len())
        .max()
        .unwrap_or(0);
    let width = thin::width(seconds, ROWS);
    let columns = values.iter().map(|(_, values)| thin::bins(values, width));
    let columns: Vec<Vec<thin::Bin>> = columns.collect();
    let times = thin::bins(&vec![0.0; seconds], width);
    let text = |bin: Option<&thin::Bin>| match bin {
        Some(bin) if bin.low == bin.high => count(bin.low as u64),
        Some(bin) => format!("{} to {}", count(bin.low as u64), count(bin.high as u64)),
        None => DASH.to_string(),
    };
    let rows = times.iter().enumerate().map(|(n, time)| Row {
        head: time_text(time),
        at: Some(x.place((time.from + time.to) / 2.0)),
        cells: columns
            .iter()
            .map(|bins| Cell::from(text(bins.get(n))))
            .collect(),
        ..Row::default()
    });
    let names = values.iter().map(|(runs, _)| &runs.name[..]);
    let heads: Vec<&str> = std::iter::once("time").chain(names).collect();
    Table::new("Sorted runs of level 0", &heads, rows.collect())
}
