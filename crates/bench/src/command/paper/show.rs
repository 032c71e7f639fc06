//! Prints an experiment for people.
//!
//! Threading: pure functions.

use serde_json::{Value as Json, json};

use super::compare::{self, Compared, paper_text};
use crate::command::Result;
use crate::command::output::Output;
use crate::experiment::{Experiment, Plan, PlannedRun, other_names};
use crate::record::{Record, number};
use crate::settings::Settings;

/// A line of the list of experiments, and one for each other name.
pub fn listed(output: &mut Output<'_>, experiment: &Experiment) -> Result<()> {
    let Experiment {
        name, title, paper, ..
    } = experiment;
    let own: Vec<_> = other_names().filter(|(_, of, _)| of == name).collect();
    let others: Vec<&str> = own.iter().map(|(other, ..)| *other).collect();
    output.json(&json!({
        "name": name,
        "other_names": others,
        "title": title,
        "system": paper.system,
        "paper": paper.title,
        "figure": paper.figure,
        "scale": experiment.scale,
        "runs": experiment.runs.len(),
    }))?;
    output.text(&format!("{name:<24}{title} ({})\n", paper.system))?;
    for (other, of, figure) in own {
        let what = format!("the runs of {of}, with only the ratios of {figure}");
        output.text(&format!("{other:<24}{what}\n"))?;
    }
    Ok(())
}

/// Says what is used in place of the paper's hardware in a run, and at which scale.
///
/// If some runs of an experiment have a device, the sentence of the experiment is about the device,
/// its link and its cores. A run without a device has none of these, so it gets no such sentence.
pub fn stand_ins(experiment: &Experiment, plan: &Plan, run: &PlannedRun) -> Vec<String> {
    let has_device = |settings: &Settings| settings.topology.has_device();
    let is_about_devices = experiment.runs.iter().any(|run| has_device(&run.settings));
    let is_there = has_device(&run.settings) || !is_about_devices;
    let here = is_there.then(|| experiment.hardware.here.clone());
    here.into_iter().chain(plan.scale_note()).collect()
}

/// What is said of a run whose stores are on this kind of file system.
pub fn disk_stand_in(file_system: Option<&str>) -> Option<String> {
    let is_memory = matches!(file_system, Some("tmpfs" | "ramfs"));
    is_memory.then(|| {
        "The stores are in memory (`tmpfs`), so the speed of a disk plays no part and a sync costs \
         almost nothing."
            .to_string()
    })
}

/// Prints what a reader needs to know before the figures.
pub fn head(
    output: &mut Output<'_>,
    experiment: &Experiment,
    plan: &Plan,
    rounds: u32,
) -> Result<()> {
    let paper = &experiment.paper;
    let year = paper.year.map(|year| year.to_string());
    let year = year.filter(|year| !paper.venue.contains(year));
    let year = year.map_or_else(String::new, |year| format!(", {year}"));
    output.text(&format!("{}: {}\n", experiment.name, experiment.title))?;
    let mut rows = vec![
        ("paper", format!("{}, {}{year}", paper.title, paper.venue)),
        ("figure", paper.figure.clone()),
        ("compares", experiment.compares.clone()),
    ];
    rows.extend(experiment.notes.iter().map(|note| ("note", note.clone())));
    rows.push(("hardware", experiment.hardware.paper.clone()));
    rows.push(("stands in", experiment.hardware.here.clone()));
    rows.extend(plan.scale_note().map(|note| ("scale", note)));
    let most = number::bytes(Some(plan.disk_bytes() as f64));
    let runs = plan.runs.len();
    let in_rounds = match rounds {
        1 => String::new(),
        rounds => format!(" in {rounds} rounds"),
    };
    rows.push((
        "runs",
        format!("{runs}{in_rounds}, at most {most} on disk at once"),
    ));
    for (label, text) in rows {
        output.row(label, &[text])?;
    }
    Ok(())
}

/// Prints one run, with the paper's values beside its own.
pub fn run(
    output: &mut Output<'_>,
    experiment: &Experiment,
    plan: &Plan,
    (position, round): (usize, usize),
    record: &Record,
) -> Result<()> {
    let planned = &plan.runs[position];
    let asked = &experiment.runs[planned.index];
    let json = compare::run_json(experiment, plan, (planned, round), record);
    output.json(&json)?;
    let own = [Some(json)];
    let in_round = match round {
        0 => String::new(),
        round => format!(", round {}", round + 1),
    };
    output.text(&format!(
        "\n{} of {}{in_round}: {} ({} on {})\n",
        position + 1,
        plan.runs.len(),
        asked.label,
        record.workload,
        record.engine
    ))?;
    let shrunk: Vec<String> = planned.shrunk.iter().map(ToString::to_string).collect();
    output.row("shrunk", &shrunk)?;
    output.row("measured", &measured(record))?;
    let values: Vec<Compared> = asked
        .values
        .iter()
        .map(|value| compare::value(value, &own))
        .collect();
    output.text(&table("figure", &values, |compared| compared.name.clone()))?;
    let why = asked.without_values.iter().filter(|_| values.is_empty());
    let why: Vec<String> = why
        .map(|why| format!("the paper has none: {why}"))
        .collect();
    output.row("values", &why)
}

/// Says that a run was not carried out, and why.
pub fn not_run(
    output: &mut Output<'_>,
    experiment: &Experiment,
    plan: &Plan,
    (position, round): (usize, usize),
    why: &str,
) -> Result<()> {
    let asked = &experiment.runs[plan.runs[position].index];
    output.json(&json!({
        "experiment": { "name": experiment.name, "run": asked.label, "round": round + 1 },
        "not_run": why,
    }))?;
    output.text(&format!(
        "\n{} of {}: {}\n",
        position + 1,
        plan.runs.len(),
        asked.label
    ))?;
    output.row("not run", &[why.to_string()])?;
    let values: Vec<Compared> = asked
        .values
        .iter()
        .map(|value| compare::value(value, &[]))
        .collect();
    output.text(&table("figure", &values, |compared| compared.name.clone()))
}

/// The most important figures of a run.
fn measured(record: &Record) -> Vec<String> {
    let latency = |us: Option<f64>| us.map_or("-".into(), number::latency);
    let bytes = number::bytes(record.bytes_per_s);
    let mut facts = vec![
        format!("{}, {bytes}/s", number::rate(record.ops_per_s)),
        format!(
            "p50 {}, p99 {}, p99.9 {}, max {}",
            latency(record.p50_us),
            latency(record.p99_us),
            latency(record.p999_us),
            latency(record.max_us)
        ),
    ];
    if record.write_amplification.is_some() {
        let written = number::factor(record.write_amplification);
        facts.push(format!("write amplification {written}"));
    }
    facts.extend(of_compactions(record));
    if let Some(link) = record.link_amplification {
        let cores = |cores: Option<f64>| cores.map_or("-".into(), |cores| format!("{cores:.2}"));
        facts.push(format!(
            "cores of host {} and device {}, link bytes {link:.2} a byte",
            cores(record.host_cpu),
            cores(record.device_cpu)
        ));
    }
    facts
}

/// What the compactions of a run with a GPU did, in sentences.
fn of_compactions(record: &Record) -> Vec<String> {
    let count = |side: &str| {
        let name = format!("{side}_compaction_count");
        record.engine_counters.get(&name).copied()
    };
    let Some(on_gpu) = count("gpu") else {
        return Vec::new();
    };
    let all = on_gpu + count("host").unwrap_or(0);
    let speed = record.compaction_bytes_per_s;
    let speed = speed.map(|speed| format!(" at {}", compare::text("bytes_per_s", speed)));
    let mut facts = match on_gpu {
        // A warning says so.
        0 => Vec::new(),
        _ => vec![format!(
            "the GPU ran {on_gpu} of {all} compactions{}",
            speed.unwrap_or_default()
        )],
    };
    if let Some(part) = record.gpu_utilisation {
        let peak = record.gpu_utilisation_peak;
        let peak = peak.map_or("-".into(), |peak| compare::text("gpu_utilisation", peak));
        let part = compare::text("gpu_utilisation", part);
        facts.push(format!(
            "GPU busy {part} of the time, at most {peak} of a second"
        ));
    }
    facts.extend(record.warnings.iter().cloned());
    facts
}

/// Figures of the paper beside ours. The sources follow the table. If several figures in a row have
/// the same source, it appears once.
fn table(head: &str, rows: &[Compared], name: impl Fn(&Compared) -> String) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let mut text = line(head, ["paper", "ours", "ours/paper"], "paper's system");
    for row in rows {
        let ours = row
            .ours
            .map_or("-".into(), |ours| compare::text(&row.name, ours));
        let paper = paper_text(&row.name, row.paper);
        text.push_str(&line(
            &name(row),
            [&paper, &ours, &row.quotient_text()],
            &row.system,
        ));
    }
    let mut sources: Vec<String> = rows.iter().map(|row| row.source.clone()).collect();
    sources.dedup();
    text + &crate::record::row("source", &sources)
}

fn line(name: &str, [paper, ours, quotient]: [&str; 3], system: &str) -> String {
    let text = format!("  {name:<25}{paper:>24}{ours:>14}{quotient:>16}  {system}");
    text.trim_end().to_string() + "\n"
}

/// The runs that failed or were not begun, each with its round and why.
fn not_run_json(experiment: &Experiment, failures: &[(usize, usize, String)]) -> Json {
    let entry = |(index, round, why): &(usize, usize, String)| {
        json!({
            "run": compare::label(experiment, *index),
            "round": round + 1,
            "why": why.trim_start_matches("not run: "),
        })
    };
    failures.iter().map(entry).collect()
}

/// Prints the ratios between runs, and what was not measured.
pub fn end(
    output: &mut Output<'_>,
    experiment: &Experiment,
    records: &[Vec<Option<Record>>],
    failures: &[(usize, usize, String)],
) -> Result<()> {
    let records = compare::all_json(records);
    let mut json = compare::end_json(experiment, &records);
    json["not_run"] = not_run_json(experiment, failures);
    output.json(&json)?;
    if !experiment.ratios.is_empty() {
        output.text("\nratios between runs\n")?;
    }
    for ratio in &experiment.ratios {
        let label = |index| compare::label(experiment, index);
        let (of, to) = (label(ratio.of), label(ratio.to));
        let rounds = |index: usize| records.get(index).map(Vec::as_slice).unwrap_or_default();
        let compared = compare::ratio(ratio, rounds(ratio.of), rounds(ratio.to));
        let was_run = |index| rounds(index).iter().any(Option::is_some);
        let ours = match was_run(ratio.of) && was_run(ratio.to) {
            true => compared.ratio_text(),
            false => "not run".into(),
        };
        let paper = paper_text("ratio", compared.paper);
        output.row(
            "ratio",
            &[
                format!("{} of `{of}` by that of `{to}`", compared.name),
                format!("paper {paper}, ours {ours}"),
                format!("{}, {}", compared.system, compared.source),
            ],
        )?;
    }
    if !experiment.claims.is_empty() {
        output.text("\nnot measured, because what it needs is not built\n")?;
    }
    for claim in &experiment.claims {
        output.row(
            "claim",
            &[
                format!("{}: {}", claim.what, claim.paper),
                format!("needs {}", claim.needs),
                claim.source.clone(),
            ],
        )?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The sentences of the runs of an experiment, by whether a run has a device.
    fn said(name: &str) -> [Vec<Vec<String>>; 2] {
        let experiment = Experiment::named(name).unwrap();
        let plan = experiment.plan(None).unwrap();
        [true, false].map(|with_device| {
            let runs = plan.runs.iter();
            runs.filter(|run| run.settings.topology.has_device() == with_device)
                .map(|run| stand_ins(&experiment, &plan, run))
                .collect()
        })
    }

    #[test]
    fn a_run_without_a_device_has_no_stand_in_for_one() {
        let [with, without] = said("prockstore-fig9");
        assert_eq!((with.len(), without.len()), (16, 4));
        assert!(
            with.iter()
                .all(|run| run.len() == 2 && run[0].contains("link"))
        );
        assert!(
            without
                .iter()
                .all(|run| run.len() == 1 && !run[0].contains("link"))
        );
        // Where no run has a device, the sentence is about other hardware, and about all runs.
        let [with, without] = said("kvaccel-table4");
        assert_eq!(with.len(), 0);
        assert!(without.iter().all(|run| run.len() == 2));
    }
}
