//! What the figures come from: settings, builds, machines and command lines.
//!
//! Threading: pure functions.

use std::collections::{BTreeMap, BTreeSet};

use super::model::{Group, Runs, flat, promise_text};
use super::table::{self, Cell, Row, Table};
use crate::draw::html::Html;
use crate::draw::number::{DASH, bytes, grouped};
use crate::measure::Machine;
use crate::record::Record;

/// The machine without what differs from run to run.
pub fn machine_without_load(record: &Record) -> Machine {
    Machine {
        load: None,
        memcpy_gb_per_s: None,
        ..record.machine.clone()
    }
}

/// The settings of a group, folded.
pub fn settings(h: &mut Html, group: &Group<'_>) {
    h.line();
    h.within("details", &[("class", &"card")], |h| {
        h.element("summary", &[], "Settings of these runs");
        let rows = group.settings.iter().map(|(name, value)| Row {
            head: name.clone(),
            cells: vec![Cell::from(value.clone())],
            ..Row::default()
        });
        let mut rows: Vec<Row> = rows.collect();
        rows.push(Row {
            head: "seed".to_string(),
            cells: vec![Cell::from(seeds(group))],
            ..Row::default()
        });
        let common = Table::new("Settings of the workload", &["setting", "value"], rows);
        table::draw(h, "numbers words", &common);
        for runs in &group.runs {
            engine_settings(h, runs);
        }
    });
}

/// The seeds of all rounds.
fn seeds(group: &Group<'_>) -> String {
    let rounds = group.runs.iter().flat_map(|runs| &runs.rounds);
    let seed = |record: &&Record| flat(&record.settings).remove("seed");
    let seeds: BTreeSet<String> = rounds.filter_map(seed).collect();
    match seeds.is_empty() {
        true => DASH.to_string(),
        false => seeds.into_iter().collect::<Vec<_>>().join(", "),
    }
}

/// What an engine got and what it counted, by its own names.
fn engine_settings(h: &mut Html, runs: &Runs<'_>) {
    let record = runs.typical();
    let text = |(name, value): (&String, String)| Row {
        head: name.clone(),
        cells: vec![Cell::from(value)],
        ..Row::default()
    };
    let settings = record.engine_settings.iter();
    let settings: Vec<Row> = settings.map(|(n, v)| text((n, v.clone()))).collect();
    let counters = record.engine_counters.iter();
    let counters = counters.map(|(n, v)| text((n, crate::draw::number::count(*v))));
    let counters: Vec<Row> = counters.collect();
    let tables = [
        (
            format!("What {} was opened with", runs.name),
            "setting",
            settings,
        ),
        (format!("Counters of {}", runs.name), "counter", counters),
    ];
    for (caption, head, rows) in tables {
        if !rows.is_empty() {
            let own = Table::new(&caption, &[head, "value"], rows);
            table::draw(h, "numbers words", &own);
        }
    }
}

/// Builds, machines and command lines of all runs.
pub fn section(h: &mut Html, groups: &[Group<'_>]) {
    h.line();
    h.within("section", &[("id", &"facts")], |h| {
        h.element("h2", &[], "Builds and machines");
        table::draw(h, "figures words", &builds(groups));
        h.within("div", &[("class", &"facts")], |h| machines(h, groups));
        commands(h, groups);
    });
}

/// All records with the styles and names of their entrants.
fn all<'a>(groups: &'a [Group<'a>]) -> impl Iterator<Item = (&'a Runs<'a>, &'a Record)> {
    let runs = groups.iter().flat_map(|group| &group.runs);
    runs.flat_map(|runs| runs.rounds.iter().map(move |record| (runs, *record)))
}

fn builds(groups: &[Group<'_>]) -> Table {
    let mut entrants: BTreeMap<usize, (&str, Vec<&Record>)> = BTreeMap::new();
    for (runs, record) in all(groups) {
        let entrant = entrants
            .entry(runs.look)
            .or_insert((&runs.name, Vec::new()));
        entrant.1.push(record);
    }
    let rows = entrants.into_iter().map(|(look, (name, records))| Row {
        head: name.to_string(),
        look: Some(look),
        cells: build_cells(&records),
        ..Row::default()
    });
    let heads = [
        "engine",
        "version",
        "promise",
        "commit",
        "profile",
        "compiler",
        "runs ended",
    ];
    Table::new("Builds", &heads, rows.collect())
}

fn build_cells(records: &[&Record]) -> Vec<Cell> {
    let distinct = |text: &dyn Fn(&Record) -> String| {
        let texts: BTreeSet<String> = records.iter().map(|record| text(record)).collect();
        let texts: Vec<String> = texts.into_iter().filter(|text| !text.is_empty()).collect();
        match texts.is_empty() {
            true => Cell::from(DASH.to_string()),
            false => Cell::from(texts.join("; ")),
        }
    };
    let dates: BTreeSet<&str> = records.iter().map(|record| &record.date[..]).collect();
    let dates = match (dates.first(), dates.last()) {
        (Some(first), Some(last)) if first != last => format!("{first} to {last}"),
        (Some(only), _) if !only.is_empty() => only.to_string(),
        _ => DASH.to_string(),
    };
    let profile = |record: &Record| record.build.profile.clone().unwrap_or_default();
    let rustc = |record: &Record| record.build.rustc.clone().unwrap_or_default();
    let promise = |record: &Record| record.promise.map_or("", promise_text).to_string();
    vec![
        distinct(&|record| record.engine_version.clone()),
        distinct(&promise),
        distinct(&commit),
        distinct(&profile),
        distinct(&rustc),
        Cell::from(dates),
    ]
}

fn commit(record: &Record) -> String {
    let commit = record.build.commit.as_deref().unwrap_or_default();
    let short: String = commit.chars().take(12).collect();
    match record.build.is_modified {
        Some(true) => format!("{short} with changes that are not committed"),
        _ => short,
    }
}

fn machines(h: &mut Html, groups: &[Group<'_>]) {
    let mut found: Vec<(Machine, Vec<(&Runs<'_>, &Record)>)> = Vec::new();
    for (runs, record) in all(groups) {
        let machine = machine_without_load(record);
        match found.iter_mut().find(|(known, _)| *known == machine) {
            Some((_, records)) => records.push((runs, record)),
            None => found.push((machine, vec![(runs, record)])),
        }
    }
    let several = found.len() > 1;
    for (n, (machine, records)) in found.iter().enumerate() {
        h.within("div", &[("class", &"card")], |h| {
            match several {
                true => h.element("h3", &[], format!("Machine {}", n + 1)),
                false => h.element("h3", &[], "Machine"),
            }
            h.within("dl", &[], |h| {
                for (name, value) in machine_facts(machine, records, several) {
                    h.element("dt", &[], name);
                    h.element("dd", &[], value);
                }
            });
        });
    }
}

fn machine_facts(
    machine: &Machine,
    records: &[(&Runs<'_>, &Record)],
    several: bool,
) -> Vec<(&'static str, String)> {
    let text = |value: &Option<String>| value.clone().unwrap_or_else(|| DASH.to_string());
    let number = |value: Option<u64>| value.map_or(DASH.to_string(), crate::draw::number::count);
    let is_virtual = match machine.is_virtual {
        Some(true) => "yes",
        Some(false) => "no",
        None => DASH,
    };
    let limits = machine
        .cgroup
        .as_ref()
        .map_or("none".to_string(), |limits| {
            let cpus = limits
                .cpus
                .map_or(DASH.to_string(), |cpus| grouped(cpus, 1));
            format!(
                "{} of memory, {cpus} processors",
                bytes(limits.memory_bytes)
            )
        });
    let mut facts = vec![
        ("Processor", text(&machine.cpu)),
        ("Cores", number(machine.cores)),
        ("Memory", bytes(machine.memory_bytes)),
        ("Virtual", is_virtual.to_string()),
        ("Kernel", text(&machine.kernel)),
        ("Distribution", text(&machine.distribution)),
        ("File system", text(&machine.file_system)),
        ("Device", text(&machine.device)),
        ("Limits of the cgroup", limits),
        (
            "Load before",
            range(records, "", |record| record.machine.load),
        ),
        (
            "Copying memory",
            range(records, "\u{a0}GB/s", |record| {
                record.machine.memcpy_gb_per_s
            }),
        ),
    ];
    if several {
        let names: BTreeSet<&str> = records.iter().map(|(runs, _)| &runs.name[..]).collect();
        facts.push(("Engines", names.into_iter().collect::<Vec<_>>().join(", ")));
    }
    facts
}

/// The lowest and the highest of a figure.
fn range(
    records: &[(&Runs<'_>, &Record)],
    unit: &str,
    figure: fn(&Record) -> Option<f64>,
) -> String {
    let figures = records.iter().filter_map(|(_, record)| figure(record));
    let figures: Vec<f64> = figures.filter(|figure| figure.is_finite()).collect();
    let low = figures.iter().copied().reduce(f64::min);
    let high = figures.iter().copied().reduce(f64::max);
    match (low, high) {
        (Some(low), Some(high)) if low < high => {
            format!("{} to {}{unit}", grouped(low, 1), grouped(high, 1))
        }
        (Some(only), _) => format!("{}{unit}", grouped(only, 1)),
        _ => DASH.to_string(),
    }
}

fn commands(h: &mut Html, groups: &[Group<'_>]) {
    let lines: BTreeSet<String> = all(groups)
        .map(|(_, record)| record.command_line.join(" "))
        .filter(|line| !line.is_empty())
        .collect();
    if lines.is_empty() {
        return;
    }
    h.within("details", &[("class", &"card")], |h| {
        h.element("summary", &[], "Command lines");
        for line in &lines {
            h.element("pre", &[], line);
        }
    });
}
