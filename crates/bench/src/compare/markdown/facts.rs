//! What a reader must know beside the figures: data, promises, how the figures were made, settings.
//!
//! Threading: pure functions.

use std::collections::BTreeMap;

use super::Shown;
use super::number::{count, three};
use super::table::Table;
use super::text::{bullet, paragraph, quoted};
use crate::compare::{Spread, Step};
use crate::measure::machine::Machine;
use crate::record::Record;
use crate::settings::{Distribution, Promise, Settings, ValueBytes, Workload};

const GIB: f64 = 1024.0 * 1024.0 * 1024.0;

/// The data of a store: how it is filled, and what it has then.
pub(super) fn data_text(shown: &Shown<'_>, store: usize) -> String {
    let fill = &shown.results.plan.stores[store].fill;
    let keys = match fill.workload.has_hashed_keys() {
        true => "Keys are `user` and a hash".to_string(),
        false => format!("Keys have {} bytes", fill.key_bytes),
    };
    let values = match fill.value_bytes {
        ValueBytes::Fixed(bytes) => format!("values have {bytes} bytes"),
        other => format!("the sizes of values are `{other}`"),
    };
    let left = left_by_fill(shown, store).map(|(records, bytes)| {
        format!(
            "The store then has {} records, which are {} MB of keys and values. ",
            count(records),
            three(bytes as f64 / 1e6)
        )
    });
    format!(
        "{}. {keys}, and {values}. {}Rows that read find this store.",
        fill_text(fill),
        left.unwrap_or_default()
    )
}

/// What a fill puts.
fn fill_text(fill: &Settings) -> String {
    let records = count(fill.records);
    let what = match fill.workload {
        Workload::Queue => "puts and deletes",
        _ => "puts",
    };
    let much = match fill.operations() {
        Some(number) => format!("does {} {what}", count(number)),
        None => format!("does {what} for {}", fill.amount()),
    };
    let is_each = fill.operations() == Some(fill.records);
    let drawn = match fill.distribution() {
        Distribution::Sequential | Distribution::Permutation if is_each => {
            format!("one for each of {records} records")
        }
        Distribution::Sequential => format!("of {records} records, one after the other"),
        Distribution::Permutation => format!("of {records} records in random order"),
        Distribution::Uniform => format!(
            "each of a record drawn at random from {records}, so some records are put several \
             times and others never"
        ),
        other => format!("each of a record drawn from {records} by `{other}`"),
    };
    format!("`{}` {much}, {drawn}", fill.workload)
}

/// The records of a store and the bytes of their keys and values after its fill, by the record of a
/// process that filled it or only read it. They are the same for all engines.
fn left_by_fill(shown: &Shown<'_>, store: usize) -> Option<(u64, u64)> {
    let plan = &shown.results.plan;
    shown.results.all().find_map(|(process, outcome)| {
        let disk = outcome?.record()?.disk;
        let is_as_filled =
            plan.rows[process.row].store == store && plan.leaves(process) == Some(vec![Step::Fill]);
        disk.records.zip(disk.live_bytes).filter(|_| is_as_filled)
    })
}

/// Sentences about engines with another promise than the first one, and the notes of the plan.
pub(super) fn promises(shown: &Shown<'_>, rows: &[usize], engines: &[usize]) -> Vec<String> {
    let mut found = Vec::new();
    for engine in engines {
        let name = shown.engine_name(*engine);
        let mut rows = rows.iter();
        if let Some(promise) = rows.find_map(|row| shown.other_promise(*row, *engine)) {
            let survives = match promise {
                Promise::Memory => "may be lost if the process is killed",
                Promise::Fragile => {
                    "survives the end of the process, but a loss of power may damage the whole store"
                }
                Promise::Process => "survives the end of the process and not a loss of power",
                Promise::Power => "survives a loss of power",
            };
            found.push(format!(
                "**{name} has another promise than {}**: an acknowledged write {survives}, so its \
                 writes are not judged.",
                shown.engine_name(shown.baseline)
            ));
        }
        if let Some(note) = &shown.results.plan.engines[*engine].note {
            found.push(format!("{name}: {note}"));
        }
    }
    found
}

/// How the figures were made.
pub(super) fn section(shown: &Shown<'_>) -> String {
    let manifest = &shown.results.manifest;
    let mut out = format!("### How this was made ({})\n\n", shown.results.plan.name);
    out.push_str(&bullet(&format!(
        "Command: {}.",
        quoted(&manifest.command_line.join(" "))
    )));
    out.push_str(&bullet(&dates(shown)));
    let build = &manifest.build;
    let commit = build.commit.as_deref().unwrap_or("not known");
    let changes = match build.is_modified {
        Some(true) => ", **with changes that are not committed**",
        _ => "",
    };
    let rustc = build.rustc.as_deref().map(|rustc| format!("; {rustc}"));
    let profile = match build.profile.as_deref() {
        Some("release") | None => "",
        Some(_) => "; **a debug build, whose figures mean nothing**",
    };
    let rustc = rustc.unwrap_or_default();
    out.push_str(&bullet(&format!(
        "Commit: {commit}{changes}{rustc}{profile}."
    )));
    if let Some(before) = &manifest.before {
        out.push_str(&bullet(&format!("`before` is {}.", quoted(before))));
    }
    out.push_str(&bullet(&machine_text(&manifest.machine)));
    out.push_str(&bullet(&load_text(shown)));
    out.push('\n');
    out.push_str(&not_run(shown));
    out.push_str(&engines(shown));
    out
}

fn all_records<'a>(shown: &'a Shown<'_>) -> impl Iterator<Item = &'a Record> {
    shown
        .results
        .all()
        .filter_map(|(_, outcome)| outcome?.record())
}

fn dates(shown: &Shown<'_>) -> String {
    let mut dates: Vec<&str> = all_records(shown)
        .map(|record| record.date.as_str())
        .collect();
    dates.sort_unstable();
    let took_s: f64 = shown
        .results
        .all()
        .filter_map(|(_, outcome)| Some(outcome?.took_s))
        .sum();
    match (dates.first(), dates.last()) {
        (Some(first), Some(last)) => format!(
            "Date: {first} to {last}; the processes took {} minutes.",
            three(took_s / 60.0)
        ),
        _ => "Date: nothing has run.".into(),
    }
}

fn machine_text(machine: &Machine) -> String {
    let mut facts: Vec<String> = Vec::new();
    let cpu = machine.cpu.clone().unwrap_or("an unknown processor".into());
    let cores = machine.cores.map(|cores| format!("{cores} x "));
    facts.push(format!("{}{cpu}", cores.unwrap_or_default()));
    if machine.is_virtual == Some(true) {
        facts.push("virtual, so other machines share its hardware".into());
    }
    facts.extend(
        machine
            .memory_bytes
            .map(|bytes| format!("{} GiB of memory", three(bytes as f64 / GIB))),
    );
    facts.extend(machine.kernel.clone());
    facts.extend(machine.distribution.clone());
    facts.extend(machine.file_system.clone());
    format!("Machine: {}.", facts.join("; "))
}

fn load_text(shown: &Shown<'_>) -> String {
    let loads = all_records(shown).filter_map(|record| record.machine.load);
    let outcomes = || shown.results.all().filter_map(|(_, outcome)| outcome);
    let probes = outcomes().flat_map(|outcome| outcome.conditions.probes());
    let stolen = outcomes().filter_map(|outcome| outcome.conditions.stolen);
    let unwritten = outcomes().filter_map(|outcome| outcome.conditions.unwritten_bytes);
    let range = |spread: Option<Spread>| {
        spread.map_or("not known".into(), |spread| {
            format!("{} to {}", three(spread.lowest), three(spread.highest))
        })
    };
    format!(
        "Before each process: load of the last minute {}, which contains the process before; MB of \
         files not yet on the disk {}. Copying memory, before and after each process: {} GB/s. \
         Processor time that other machines took while a process ran: {}%.",
        range(Spread::of(loads)),
        range(Spread::of(unwritten.map(|bytes| bytes as f64 / 1e6))),
        range(Spread::of(probes)),
        range(Spread::of(stolen.map(|part| part * 100.0)))
    )
}

/// Which processes of the plan have not run.
fn not_run(shown: &Shown<'_>) -> String {
    let plan = &shown.results.plan;
    let mut missing: BTreeMap<&str, usize> = BTreeMap::new();
    for (process, outcome) in shown.results.all() {
        let failed = || shown.reason(process.row, process.engine).is_some();
        if outcome.is_none() && !failed() {
            *missing
                .entry(&plan.engines[process.engine].name)
                .or_default() += 1;
        }
    }
    if missing.is_empty() {
        return String::new();
    }
    let counts = missing
        .iter()
        .map(|(name, count)| format!("{name} {count}"));
    let counts: Vec<String> = counts.collect();
    paragraph(&format!(
        "**This comparison is not complete.** Processes of the plan that have not run: {}.",
        counts.join(", ")
    ))
}

/// Versions and settings of all engines.
fn engines(shown: &Shown<'_>) -> String {
    let mut table = Table::new(["engine", "version", "settings"].map(String::from));
    for (index, engine) in shown.results.plan.engines.iter().enumerate() {
        let mut records = shown.results.all().filter_map(|(process, outcome)| {
            let record = outcome?.record()?;
            (process.engine == index).then_some(record)
        });
        let Some(first) = records.next() else {
            continue;
        };
        let settings = first.engine_settings.iter();
        let settings: Vec<String> = settings
            .map(|(name, value)| format!("{name} = {value}"))
            .map(|text| quoted(&text))
            .collect();
        let version = first.engine_version.clone();
        table.line([engine.name.clone(), version, settings.join(", ")]);
    }
    if table.is_empty() {
        return String::new();
    }
    let text = "Versions, and the settings that each engine was given, by its own names. What is \
                not listed is the engine's default. The settings of each process, its workload's \
                included, are in its record.";
    paragraph(text) + &table.text()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fill_says_whether_it_puts_each_record() {
        for (workload, amount, expected) in [
            (
                "fillseq",
                "default",
                "`fillseq` does 1,000 puts, one for each of 1,000 records",
            ),
            (
                "fillrandom",
                "every-record",
                "`fillrandom` does 1,000 puts, one for each of 1,000 records",
            ),
            (
                "fillrandom",
                "5",
                "`fillrandom` does 5 puts, each of a record drawn at random from 1,000, so some \
                 records are put several times and others never",
            ),
            (
                "fillseq",
                "5",
                "`fillseq` does 5 puts, of 1,000 records, one after the other",
            ),
        ] {
            let mut fill = Settings::default();
            for (name, text) in [
                ("records", "1000"),
                ("workload", workload),
                ("amount", amount),
            ] {
                fill.set(name, text).unwrap();
            }
            assert_eq!(fill_text(&fill), expected);
        }
    }
}
