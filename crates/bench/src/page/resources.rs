//! What a group's runs cost: amplification, processor time, memory, bytes by cause, stalls.
//!
//! The figures are those of the typical round, so that parts add up.
//!
//! Threading: pure functions.

use super::bars::{Bar, Bars, Part};
use super::model::Group;
use super::table::{Cell, Row, Table, with_bars};
use crate::draw::axis::Axis;
use crate::draw::number::{DASH, Unit, bytes, count, or_dash, seconds};
use crate::record::Record;

/// A column: its head, its unit, and its figure.
type Column = (&'static str, Unit, fn(&Record) -> Option<f64>);

/// A part of a bar: its name, the class of its colour, and its figure.
type Measure = (&'static str, &'static str, fn(&Record) -> Option<f64>);

/// Bytes as a figure.
fn size(bytes: Option<u64>) -> Option<f64> {
    bytes.map(|bytes| bytes as f64)
}

const AMPLIFICATION: [Column; 7] = [
    ("write, with log", Unit::Factor, |r| {
        r.amplification.write_with_log
    }),
    ("write, tables only", Unit::Factor, |r| {
        r.amplification.write_tables
    }),
    ("write calls", Unit::Factor, |r| r.amplification.write_calls),
    ("device writes", Unit::Factor, |r| {
        r.amplification.write_device
    }),
    ("device reads", Unit::Factor, |r| {
        r.amplification.read_device
    }),
    ("space, with log", Unit::Factor, |r| r.amplification.space),
    ("space, without", Unit::Factor, |r| {
        r.amplification.space_without_log
    }),
];

const MEMORY: [Column; 6] = [
    ("highest anonymous", Unit::Bytes, |r| {
        size(r.memory.peak_anonymous_bytes)
    }),
    ("highest resident", Unit::Bytes, |r| {
        size(r.memory.peak_resident_bytes)
    }),
    ("resident when idle", Unit::Bytes, |r| {
        size(r.memory.resident_bytes)
    }),
    ("anonymous", Unit::Bytes, |r| size(r.memory.anonymous_bytes)),
    ("mapped files", Unit::Bytes, |r| size(r.memory.file_bytes)),
    ("shared", Unit::Bytes, |r| size(r.memory.shared_bytes)),
];

const DISK: [Column; 6] = [
    ("tables", Unit::Bytes, |r| {
        Some(r.disk.files_closed.tables.allocated_bytes as f64)
    }),
    ("log", Unit::Bytes, |r| {
        Some(r.disk.files_closed.log.allocated_bytes as f64)
    }),
    ("other files", Unit::Bytes, |r| {
        Some(r.disk.files_closed.other.allocated_bytes as f64)
    }),
    ("live keys and values", Unit::Bytes, |r| {
        size(r.disk.live_bytes)
    }),
    ("page cache before", Unit::Percent, |r| r.disk.cached_before),
    ("page cache after", Unit::Percent, |r| r.disk.cached_after),
];

const SYSTEM: [Column; 4] = [
    ("minor faults", Unit::Count, |r| size(r.system.minor_faults)),
    ("major faults", Unit::Count, |r| size(r.system.major_faults)),
    ("gave the processor up", Unit::Count, |r| {
        size(r.system.voluntary_switches)
    }),
    ("lost the processor", Unit::Count, |r| {
        size(r.system.involuntary_switches)
    }),
];

/// A table of columns; those in `barred` get bars.
fn columns(group: &Group<'_>, caption: &str, columns: &[Column], barred: &[usize]) -> Table {
    let cell =
        |record: &Record, (_, unit, figure): &Column| Cell::from(or_dash(*unit, figure(record)));
    let row = |record: &Record| columns.iter().map(|c| cell(record, c)).collect();
    let mut rows = rows(group, row);
    for column in barred {
        let (_, _, figure) = columns[*column];
        let figures = group.runs.iter().map(|runs| figure(runs.typical()));
        with_bars(&mut rows, *column, &figures.collect::<Vec<_>>());
    }
    let heads: Vec<&str> = std::iter::once("engine")
        .chain(columns.iter().map(|(head, _, _)| *head))
        .collect();
    Table::new(caption, &heads, rows)
}

fn rows(group: &Group<'_>, cells: impl Fn(&Record) -> Vec<Cell>) -> Vec<Row> {
    let row = |runs: &super::model::Runs<'_>| Row {
        head: runs.name.clone(),
        look: Some(runs.look),
        cells: cells(runs.typical()),
        ..Row::default()
    };
    group.runs.iter().map(row).collect()
}

/// Write, read and space amplification.
pub fn amplification(group: &Group<'_>) -> Table {
    columns(group, "Amplification", &AMPLIFICATION, &[0, 5])
}

/// Memory.
pub fn memory(group: &Group<'_>) -> Table {
    columns(group, "Memory of the process", &MEMORY, &[0])
}

/// Files and the page cache.
pub fn disk(group: &Group<'_>) -> Table {
    columns(group, "Files when idle", &DISK, &[0])
}

/// Page faults and switches.
pub fn system(group: &Group<'_>) -> Table {
    columns(group, "Page faults and switches", &SYSTEM, &[])
}

/// Stalls by cause.
pub fn stalls(group: &Group<'_>) -> Table {
    let cells = |record: &Record| {
        let causes = record.stall_s_by_cause.as_ref().map(|causes| {
            let causes = causes.iter().filter(|(_, cause_s)| **cause_s > 0.0);
            let causes: Vec<String> = causes
                .map(|(cause, cause_s)| format!("{cause} {}", Unit::Seconds.show(*cause_s)))
                .collect();
            match causes.is_empty() {
                true => "none".to_string(),
                false => causes.join(", "),
            }
        });
        vec![
            Cell::from(seconds(record.stall_s)),
            Cell::from(causes.unwrap_or_else(|| "not counted by the engine".to_string())),
            Cell::from(seconds(record.slow_s)),
            Cell::from(count(record.silent_seconds)),
        ]
    };
    let heads = [
        "engine",
        "stalls, all threads",
        "by cause",
        "in calls above 1 ms",
        "seconds without operations",
    ];
    let mut rows = rows(group, cells);
    let figures = group.runs.iter().map(|runs| runs.typical().stall_s);
    with_bars(&mut rows, 0, &figures.collect::<Vec<_>>());
    Table::new("Stalls", &heads, rows)
}

/// What was due in an open loop; `None` if all loops were closed.
pub fn open_loop(group: &Group<'_>) -> Option<Table> {
    let mut loops = group.runs.iter().map(|runs| runs.typical().open_loop);
    if loops.all(|open| open.is_none()) {
        return None;
    }
    let cells = |record: &Record| {
        let open = record.open_loop;
        let rate = |rate: Option<f64>| Cell::from(or_dash(Unit::PerSecond, rate));
        let number = |n: Option<u64>| Cell::from(n.map_or(DASH.to_string(), count));
        vec![
            rate(open.and_then(|open| open.intended_ops_per_s)),
            rate(open.and_then(|open| open.achieved_ops_per_s)),
            number(open.map(|open| open.due_operations)),
            number(open.map(|open| open.backlog_operations)),
            number(open.map(|open| open.censored_operations)),
        ]
    };
    let heads = [
        "engine",
        "intended",
        "achieved",
        "due",
        "not done at the end",
        "never begun",
    ];
    Some(Table::new("Open loop", &heads, rows(group, cells)))
}

/// Processor time by purpose.
pub fn cpu(group: &Group<'_>) -> Bars {
    let parts: [Measure; 5] = [
        ("workload", "c-read", |r| r.cpu.foreground_s),
        ("flushes", "c-flush", |r| r.cpu.flush_s),
        ("compactions", "c-compaction", |r| r.cpu.compaction_s),
        ("other threads", "c-rest", |r| r.cpu.other_background_s),
        ("sampler", "c-verify", |r| r.cpu.sampler_s),
    ];
    let total = |record: &Record| {
        let each = record.cpu.process_s.filter(|_| record.operations > 0);
        let each = each.map(|all_s| all_s * 1e9 / record.operations as f64);
        let each = each.map(|ns| format!(", {} an operation", Unit::Nanoseconds.show(ns)));
        format!(
            "{}{}",
            seconds(record.cpu.process_s),
            each.unwrap_or_default()
        )
    };
    let extra: [Column; 2] = [
        ("outside the kernel", Unit::Seconds, |r| r.cpu.user_s),
        ("in the kernel", Unit::Seconds, |r| r.cpu.system_s),
    ];
    bars(
        group,
        "Processor time",
        Unit::Seconds,
        &parts,
        total,
        &extra,
    )
    .noted(
        "Until the engine was idle. If an engine does not tell flushes and compactions apart, they \
         are in “other threads”.",
    )
}

/// Bytes written by cause.
pub fn written(group: &Group<'_>) -> Bars {
    let parts: [Measure; 3] = [
        ("log", "c-log", |r| size(r.bytes.log_bytes)),
        ("flushes", "c-flush", |r| size(r.bytes.flush_bytes)),
        ("compactions", "c-compaction", |r| {
            size(r.bytes.compaction_bytes)
        }),
    ];
    let total = |record: &Record| {
        let written = &record.bytes;
        let known = [
            written.log_bytes,
            written.flush_bytes,
            written.compaction_bytes,
        ];
        let sum = known
            .iter()
            .flatten()
            .map(|bytes| *bytes as f64)
            .reduce(|a, b| a + b);
        format!(
            "{} for {} of keys and values",
            or_dash(Unit::Bytes, sum),
            bytes(Some(written.user_written_bytes))
        )
    };
    let extra: [Column; 7] = [
        ("user wrote", Unit::Bytes, |r| {
            Some(r.bytes.user_written_bytes as f64)
        }),
        ("user read", Unit::Bytes, |r| {
            Some(r.bytes.user_read_bytes as f64)
        }),
        ("compactions read", Unit::Bytes, |r| {
            size(r.bytes.compaction_read_bytes)
        }),
        ("write calls", Unit::Bytes, |r| {
            size(r.bytes.write_call_bytes)
        }),
        ("device writes", Unit::Bytes, |r| {
            size(r.bytes.device_write_bytes)
        }),
        ("read calls", Unit::Bytes, |r| size(r.bytes.read_call_bytes)),
        ("device reads", Unit::Bytes, |r| {
            size(r.bytes.device_read_bytes)
        }),
    ];
    bars(
        group,
        "Bytes written by cause",
        Unit::Bytes,
        &parts,
        total,
        &extra,
    )
    .noted("By the engine's own account. What an engine does not count is missing in its bar.")
}

/// Bars of parts, and the table of the same figures and some more.
fn bars(
    group: &Group<'_>,
    title: &'static str,
    unit: Unit,
    parts: &[Measure],
    total: impl Fn(&Record) -> String,
    extra: &[Column],
) -> Bars {
    let bar = |runs: &super::model::Runs<'_>| {
        let record = runs.typical();
        let part = |(name, class, figure): &Measure| {
            let value = figure(record).filter(|value| value.is_finite() && *value > 0.0)?;
            Some(Part { name, class, value })
        };
        Bar {
            name: format!("{}: {}", runs.name, total(record)),
            parts: parts.iter().filter_map(part).collect(),
            is_known: parts.iter().any(|(_, _, figure)| figure(record).is_some()),
        }
    };
    let all: Vec<Bar> = group.runs.iter().map(bar).collect();
    let max = all.iter().map(Bar::total).fold(0f64, f64::max);
    let figures = parts.iter().map(|(name, _, figure)| (*name, unit, *figure));
    let figures: Vec<Column> = figures.chain(extra.iter().copied()).collect();
    Bars {
        title,
        note: "",
        unit,
        axis: Axis::span(max, 5, unit),
        max,
        legend: parts
            .iter()
            .map(|(name, class, _)| (*name, *class))
            .collect(),
        bars: all,
        table: columns(group, title, &figures, &[]),
    }
}
