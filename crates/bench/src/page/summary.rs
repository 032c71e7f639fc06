//! The table of all workloads and engines, and what must be known before its figures are read.
//!
//! Threading: pure functions.

use std::collections::BTreeSet;

use super::model::{Group, Runs};
use super::table::{Body, Cell, Row, Table};
use crate::draw::number::{DASH, Unit, count};
use crate::record::{Record, merged};

/// A column: its head, its unit, and its figure.
type Column = (&'static str, Unit, fn(&Record) -> Option<f64>);

/// Nanoseconds of a figure in microseconds.
fn ns(us: Option<f64>) -> Option<f64> {
    us.map(|us| us * 1e3)
}

const COLUMNS: [Column; 10] = [
    ("operations/s", Unit::PerSecond, |record| record.ops_per_s),
    ("p50", Unit::Nanoseconds, |record| ns(record.p50_us)),
    ("p99", Unit::Nanoseconds, |record| ns(record.p99_us)),
    ("p99.9", Unit::Nanoseconds, |record| ns(record.p999_us)),
    ("max", Unit::Nanoseconds, |record| ns(record.max_us)),
    ("write amp.", Unit::Factor, |record| {
        record.write_amplification
    }),
    ("space amp.", Unit::Factor, |record| {
        record.space_amplification
    }),
    ("CPU", Unit::Seconds, |record| record.cpu_s),
    ("memory", Unit::Bytes, |record| {
        record.rss_bytes.map(|bytes| bytes as f64)
    }),
    ("stalls", Unit::Seconds, |record| record.stall_s),
];

/// Explanations of the columns.
pub const GLOSS: [(&str, &str); 7] = [
    (
        "operations/s",
        "of the measured threads, until the last operation",
    ),
    (
        "p50 to max",
        "latency of the calls of all kinds; an open loop counts from the intended start",
    ),
    (
        "write amp.",
        "bytes that the engine wrote (log, flushes, compactions) for each byte of the user",
    ),
    (
        "space amp.",
        "bytes of all files, log included, for each byte of live keys and values",
    ),
    (
        "CPU",
        "processor time of all threads until the engine was idle",
    ),
    (
        "memory",
        "the highest anonymous memory, without the page cache",
    ),
    (
        "stalls",
        "how long writers waited, summed over all threads, by the engine's own account",
    ),
];

/// The summary.
pub fn table(groups: &[Group<'_>]) -> Table {
    let heads = COLUMNS.iter().map(|(head, _, _)| head.to_string());
    let rounds = groups
        .iter()
        .flat_map(|group| &group.runs)
        .map(|runs| runs.rounds.len());
    let caption = match rounds.max() {
        Some(2..) => "Medians of the rounds, with the lowest and the highest figure below them",
        _ => "All figures are of one round",
    };
    Table {
        caption: caption.to_string(),
        heads: std::iter::once("engine".to_string()).chain(heads).collect(),
        bodies: groups.iter().map(body).collect(),
    }
}

fn body(group: &Group<'_>) -> Body {
    Body {
        title: Some((group.title.clone(), Some(format!("#{}", group.id)))),
        rows: group.runs.iter().map(|runs| row(group, runs)).collect(),
    }
}

fn row(group: &Group<'_>, runs: &Runs<'_>) -> Row {
    let cell = |(_, unit, figure): &Column| spread_cell(runs, *unit, *figure);
    let mut cells: Vec<Cell> = COLUMNS.iter().map(cell).collect();
    if let (Some(weaker), Some(rate)) = (group.weaker_promise(runs), cells.first_mut()) {
        rate.notes.push(weaker);
    }
    Row {
        head: runs.name.clone(),
        note: match runs.rounds.len() {
            1 => String::new(),
            rounds => format!("{} rounds", count(rounds as u64)),
        },
        look: Some(runs.look),
        at: None,
        cells,
    }
}

/// The median of the rounds, with their range if there are several.
fn spread_cell(runs: &Runs<'_>, unit: Unit, figure: fn(&Record) -> Option<f64>) -> Cell {
    let Some(spread) = runs.spread(figure) else {
        return Cell::from(DASH.to_string());
    };
    let range = format!("{} to {}", unit.show(spread.low), unit.show(spread.high));
    let has_range = spread.low < spread.high;
    Cell {
        text: unit.show(spread.median),
        notes: has_range.then_some(range).into_iter().collect(),
        bar: None,
    }
}

/// Every round for itself.
pub fn rounds_table(group: &Group<'_>) -> Table {
    let heads: Vec<&str> = std::iter::once("round")
        .chain(COLUMNS.iter().map(|(head, _, _)| *head))
        .collect();
    let mut rows = Vec::new();
    for runs in &group.runs {
        for (n, record) in runs.rounds.iter().enumerate() {
            let text = |(_, unit, figure): &Column| {
                let figure = figure(record);
                Cell::from(figure.map_or(DASH.to_string(), |figure| unit.show(figure)))
            };
            rows.push(Row {
                head: format!("{}, round {}", runs.name, n + 1),
                look: Some(runs.look),
                cells: COLUMNS.iter().map(text).collect(),
                ..Row::default()
            });
        }
    }
    Table::new("Figures of each round", &heads, rows)
}

/// Sentences about what makes figures doubtful: failures, warnings of the records, debug builds,
/// several machines.
pub fn warnings(groups: &[Group<'_>]) -> Vec<String> {
    let mut warnings = Vec::new();
    for group in groups {
        for runs in &group.runs {
            for (n, record) in runs.rounds.iter().enumerate() {
                let run = format!("{} on {}, round {}", group.title, runs.name, n + 1);
                warnings.extend(failures(&run, record));
            }
            warnings.extend(warnings_of_records(group, runs));
        }
    }
    let records = || {
        groups
            .iter()
            .flat_map(|group| &group.runs)
            .flat_map(|runs| &runs.rounds)
    };
    let is_debug = |record: &&&Record| record.build.profile.as_deref() == Some("debug");
    let debug = records().filter(is_debug).count();
    if debug > 0 {
        let all = records().count();
        warnings.push(format!(
            "{debug} of {all} runs were made by a debug build, whose figures mean nothing."
        ));
    }
    let machines: BTreeSet<String> = records()
        .map(|record| format!("{:?}", super::facts::machine_without_load(record)))
        .collect();
    if machines.len() > 1 {
        warnings.push(format!(
            "The runs were made on {} machines, which are described below.",
            machines.len()
        ));
    }
    warnings
}

fn failures(run: &str, record: &Record) -> Option<String> {
    if record.errors == 0 && record.verification_failures == 0 {
        return None;
    }
    Some(format!(
        "{run}: {} calls failed and {} answers were wrong. Its figures are not valid.",
        count(record.errors),
        count(record.verification_failures)
    ))
}

/// The warnings of an entrant's records, each with the number of rounds that have it. Those that
/// differ in their numbers only are one.
fn warnings_of_records(group: &Group<'_>, runs: &Runs<'_>) -> Vec<String> {
    let all = runs.rounds.iter().flat_map(|record| &record.warnings);
    let all = merged(all.map(|text| ((), text.as_str())));
    let sentence = |(text, places): (String, Vec<()>)| {
        let rounds = match runs.rounds.len() {
            1 => String::new(),
            rounds => format!(", {} of {rounds} rounds", places.len()),
        };
        format!("{} on {}{rounds}: {text}", group.title, runs.name)
    };
    all.into_iter().map(sentence).collect()
}

/// The hardware that something else stood in for, each with the runs that say so.
pub fn stand_ins(group: &Group<'_>) -> Vec<String> {
    let rounds = group.runs.iter().flat_map(|runs| &runs.rounds);
    let all: BTreeSet<&String> = rounds.flat_map(|record| &record.stand_ins).collect();
    let who = |sentence: &&String| {
        let says = |runs: &&Runs<'_>| {
            let mut rounds = runs.rounds.iter();
            rounds.any(|record| record.stand_ins.contains(sentence))
        };
        let names: Vec<&str> = group
            .runs
            .iter()
            .filter(says)
            .map(|runs| &runs.name[..])
            .collect();
        match names.len() == group.runs.len() {
            true => sentence.to_string(),
            false => format!("{}: {sentence}", names.join(", ")),
        }
    };
    all.iter().map(who).collect()
}
