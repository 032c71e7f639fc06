//! The page of a paper's comparison, from its records alone.
//!
//! Invariants: equal records give an equal page. Every figure of the paper has a line, also those
//! that were not measured. What stood in for hardware is said before the first figure.
//!
//! Threading: pure functions.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde_json::Value as Json;

use super::archive::{Archive, Planned};
use super::compare::{self, Compared, RoundsOf, all_json, pairs, paper_text, text};
use super::verdict::{self, Verdict, median};
use crate::compare::Rounds;
use crate::experiment::{Experiment, Metric, Plan, Value};
use crate::record::{Record, number};
use crate::settings::{Settings, Topology};

/// Experiments with these names measure targets of this project, and not figures of the paper.
const TARGETS: [&str; 2] = ["-target-", "-ablation"];
/// The policy whose place among the others is shown.
const POLICY: &str = "near-data";

/// An experiment with its records.
struct Part {
    experiment: Experiment,
    plan: Plan,
    planned: Planned,
    /// By the index of the run, and then by round.
    records: Vec<Vec<Option<Json>>>,
    failures: Vec<String>,
}

impl Part {
    fn of(planned: &Planned, archive: &Archive) -> Result<Part, String> {
        let experiment = Experiment::named(&planned.name).map_err(|error| error.to_string())?;
        let plan = experiment
            .plan(Some(planned.scale))
            .map_err(|error| error.to_string())?;
        let mut records = vec![vec![None; planned.rounds as usize]; experiment.runs.len()];
        let mut failures = Vec::new();
        for line in archive
            .lines
            .iter()
            .filter(|line| line.experiment == planned.name)
        {
            let index = experiment.runs.iter().position(|run| run.label == line.run);
            let place = index.and_then(|index| records[index].get_mut(line.round));
            let place: &mut Option<Record> =
                place.ok_or_else(|| format!("{}: there is no run `{}`", planned.name, line.run))?;
            *place = line.record.as_deref().cloned();
            if let Some(error) = &line.error {
                failures.push(format!("`{}`, round {}: {error}", line.run, line.round + 1));
            }
        }
        Ok(Part {
            records: all_json(&records),
            planned: planned.clone(),
            failures,
            plan,
            experiment,
        })
    }

    fn rounds(&self, run: usize) -> &RoundsOf {
        self.records.get(run).map(Vec::as_slice).unwrap_or_default()
    }

    fn is_target(&self) -> bool {
        TARGETS
            .iter()
            .any(|name| self.experiment.name.contains(name))
    }

    /// The rounds of the run that has the most.
    fn rounds_done(&self) -> usize {
        let count = |rounds: &Vec<Option<Json>>| rounds.iter().flatten().count();
        self.records.iter().map(count).max().unwrap_or(0)
    }
}

/// A line of the first table.
struct Row {
    what: String,
    paper: String,
    ours: String,
    verdict: Verdict,
    why: String,
    source: String,
}

/// The page.
///
/// # Errors
/// If the records are those of experiments that this program does not have.
pub fn page(archive: &Archive) -> Result<String, String> {
    let parts = archive.manifest.experiments.iter();
    let parts = parts.map(|planned| Part::of(planned, archive));
    let parts = parts.collect::<Result<Vec<Part>, String>>()?;
    let mut page = Page::default();
    page.head(archive, &parts);
    page.verdicts(&parts);
    page.policies(&parts);
    for part in &parts {
        page.experiment(part);
    }
    Ok(page.text)
}

#[derive(Default)]
struct Page {
    text: String,
}

/// A cell: without what would end it.
fn cell(text: &str) -> String {
    text.replace('|', "/").replace(['\u{a0}', '\n'], " ")
}

impl Page {
    fn line(&mut self, text: &str) {
        self.text.push_str(text);
        self.text.push('\n');
    }

    /// A paragraph of at most 100 columns.
    fn paragraph(&mut self, text: &str) {
        let mut column = 0;
        for word in text.split_whitespace() {
            let width = word.chars().count();
            if column > 0 && column + 1 + width > 100 {
                self.text.push('\n');
                column = 0;
            } else if column > 0 {
                self.text.push(' ');
                column += 1;
            }
            self.text.push_str(word);
            column += width;
        }
        self.text.push_str("\n\n");
    }

    fn table(&mut self, heads: &[&str], rows: impl IntoIterator<Item = Vec<String>>) {
        self.line(&format!("| {} |", heads.join(" | ")));
        self.line(&format!("|{}", " --- |".repeat(heads.len())));
        for row in rows {
            let cells: Vec<String> = row.iter().map(|text| cell(text)).collect();
            self.line(&format!("| {} |", cells.join(" | ")));
        }
        self.line("");
    }

    fn head(&mut self, archive: &Archive, parts: &[Part]) {
        let manifest = &archive.manifest;
        let paper = parts.first().map(|part| &part.experiment.paper);
        let system = paper.map_or("", |paper| &paper.system);
        self.line(&format!("# The comparison of {system}\n"));
        let name = &manifest.name;
        self.paragraph(&format!(
            "This page is written by `silt bench paper` from the records of real runs \
             (`docs/papers/{name}.jsonl.zst`), and is not edited by hand. `cargo xtask bench \
             {name}` makes the records and the page again; `silt bench paper --from FILE --page \
             FILE` makes the page from the records."
        ));
        if let Some(paper) = paper {
            self.paragraph(&format!("The paper: {}, {}.", paper.title, paper.venue));
        }
        self.paragraph(
            "Each policy of the option `schedule` stands for a system: `near-data` for ProckStore, \
             `async-single` for PStore, `sync-split` for TStore, `host-only` for SocketRocksDB. All \
             have the same engine, files and settings, and differ in the schedule of compactions \
             only. `plain` is this engine without a device, with the files on a local disk. A \
             figure is the median of the rounds. A ratio compares two runs of one round; the \
             table has the median of the ratios and, in parentheses, the interval of 95% \
             (Student's t on the logarithms). Throughput counts until all flushes and compactions \
             are done. *met (better baseline)* stands where the ratio of the paper is not reached, \
             and the system by which it is divided is better here than in the paper, over a link \
             of the same speed and with fewer cores.",
        );
        if manifest.is_quick {
            self.paragraph(
                "**These are figures of the quick size.** Stores are small, and runs take seconds.",
            );
        }
        self.hardware(archive);
        let rows = parts.iter().map(|part| {
            vec![
                part.experiment.name.clone(),
                part.experiment.title.clone(),
                part.planned.scale.to_string(),
                format!("{} of {}", part.rounds_done(), part.planned.rounds),
            ]
        });
        self.table(&["experiment", "what", "scale", "rounds"], rows);
        let scaled = parts.iter().find_map(|part| {
            let planned = part.plan.runs.iter().max_by_key(|run| run.shrunk.len())?;
            (!planned.shrunk.is_empty()).then_some((part, planned))
        });
        if let Some((part, planned)) = scaled {
            let shrunk: Vec<String> = planned.shrunk.iter().map(ToString::to_string).collect();
            let note = part.plan.scale_note().unwrap_or_default();
            self.paragraph(&format!(
                "{note} For example `{}` of {}: {}.",
                planned.label,
                part.experiment.name,
                shrunk.join(", ")
            ));
        }
        let took = number::seconds(Some(manifest.took_s)).replace('\u{a0}', " ");
        let within = manifest.within_s.map_or_else(String::new, |seconds| {
            let limit = number::seconds(Some(seconds)).replace('\u{a0}', " ");
            format!(" No round of a figure was begun after {limit}.")
        });
        self.paragraph(&format!("All of it took {took}.{within}"));
    }

    /// Which hardware was real, and what stood in.
    fn hardware(&mut self, archive: &Archive) {
        self.line("## Hardware\n");
        let records = || {
            archive
                .lines
                .iter()
                .filter_map(|line| line.record.as_deref())
        };
        if let Some(first) = records().next() {
            let machine = &first.machine;
            let cpu = machine.cpu.as_deref().unwrap_or("an unknown processor");
            let cores = machine.cores.map_or("-".into(), number::count);
            let memory = number::bytes(machine.memory_bytes.map(|bytes| bytes as f64));
            let commit = first.build.commit.as_deref().unwrap_or("unknown");
            self.paragraph(&format!(
                "Real: {cpu}, {cores} cores, {}, stores on {}. Commit {commit}, {}.",
                memory.replace('\u{a0}', " "),
                machine
                    .file_system
                    .as_deref()
                    .unwrap_or("an unknown file system"),
                first.date
            ));
        }
        let mut said: BTreeMap<&str, usize> = BTreeMap::new();
        for text in records().flat_map(|record| &record.stand_ins) {
            *said.entry(text).or_default() += 1;
        }
        self.line("Stand-ins, with the number of runs that had them:\n");
        for (text, count) in said {
            self.line(&format!("- {count}: {}", text.replace('\n', " ")));
        }
        self.line("");
    }

    fn verdicts(&mut self, parts: &[Part]) {
        for (title, is_target) in [
            ("The paper's figures beside ours", false),
            ("Targets of our own", true),
        ] {
            let of_kind = parts.iter().filter(|part| part.is_target() == is_target);
            let rows: Vec<Row> = of_kind.flat_map(rows_of).collect();
            if rows.is_empty() {
                continue;
            }
            self.line(&format!("## {title}\n"));
            let count = |verdict| rows.iter().filter(|row| row.verdict == verdict).count();
            let counts: Vec<String> = Verdict::ALL
                .into_iter()
                .filter(|verdict| count(*verdict) > 0)
                .map(|verdict| format!("{verdict} {}", count(verdict)))
                .collect();
            self.paragraph(&format!(
                "Of {} figures: {}.",
                rows.len(),
                counts.join(", ")
            ));
            let head = if is_target { "target" } else { "paper" };
            let heads = [
                "what",
                head,
                "ours",
                "verdict",
                "what each run used, if missed",
                "source",
            ];
            let cells = |row: Row| {
                let verdict = row.verdict.to_string();
                vec![row.what, row.paper, row.ours, verdict, row.why, row.source]
            };
            self.table(&heads, rows.into_iter().map(cells));
        }
    }

    /// Whether the policy is never slower than the best of the others.
    fn policies(&mut self, parts: &[Part]) {
        let mut rows = Vec::new();
        let (mut slower, mut all) = (0, 0);
        for part in parts.iter().filter(|part| !part.is_target()) {
            for (index, run) in part.experiment.runs.iter().enumerate() {
                let Some(row) = against_best(part, index) else {
                    continue;
                };
                all += 1;
                slower += usize::from(row.2 == "slower");
                let name = format!("{}: {}", part.experiment.name, run.label);
                rows.push(vec![name, row.0, row.1, row.2.to_string()]);
            }
        }
        if rows.is_empty() {
            return;
        }
        self.line(&format!("## `{POLICY}` against the best other policy\n"));
        self.paragraph(&format!(
            "It is slower in {slower} of {all} runs. *slower* stands where all of the interval is \
             below 1, *faster* where all of it is above, and *level* where 1 is in it; with one \
             round there is no interval, and nothing is judged. Runs that write are compared until \
             idle, others by their operations a second."
        ));
        self.table(&["run", "best other policy", "ratio", ""], rows);
    }

    fn experiment(&mut self, part: &Part) {
        let experiment = &part.experiment;
        self.line(&format!("## {}: {}\n", experiment.name, experiment.title));
        self.paragraph(&experiment.compares);
        let rows = part.plan.runs.iter().filter_map(|planned| {
            let records = part.rounds(planned.index);
            records.iter().flatten().next()?;
            let figure = |metric: Metric| {
                let found = median(metric, records);
                found.map_or("-".into(), |found| text(metric.name(), found))
            };
            let mut cells = vec![planned.label.clone()];
            cells.extend(COLUMNS.map(|(_, metric)| figure(metric)));
            Some(cells)
        });
        let rows: Vec<Vec<String>> = rows.collect();
        if !rows.is_empty() {
            let heads: Vec<&str> = ["run"]
                .into_iter()
                .chain(COLUMNS.map(|(head, _)| head))
                .collect();
            self.table(&heads, rows);
        }
        self.purposes(part);
        let missing = part
            .records
            .iter()
            .filter(|rounds| rounds.iter().all(Option::is_none));
        let missing = missing.count();
        if missing > 0 {
            self.paragraph(&format!("{missing} runs were not carried out."));
        }
        for failure in &part.failures {
            self.line(&format!("- failed: {}", cell(failure)));
        }
        if !part.failures.is_empty() {
            self.line("");
        }
    }

    /// Bytes over the link by purpose, where the engine counts them.
    fn purposes(&mut self, part: &Part) {
        let mut names: Vec<String> = Vec::new();
        let first = |index: usize| part.rounds(index).iter().flatten().next();
        for index in 0..part.experiment.runs.len() {
            let counters =
                first(index).and_then(|record| record.get("engine_counters")?.as_object());
            let used = counters.into_iter().flatten();
            let used = used.filter(|(_, bytes)| bytes.as_u64() != Some(0));
            for name in used.map(|(name, _)| name) {
                if name.starts_with(PURPOSE) && !names.contains(name) {
                    names.push(name.clone());
                }
            }
        }
        if names.is_empty() {
            return;
        }
        self.paragraph("Bytes over the link by purpose, for each byte that was put:");
        let rows = part.plan.runs.iter().filter_map(|planned| {
            let record = first(planned.index)?;
            let written = record.pointer("/bytes/user_written_bytes")?.as_f64()?;
            let mut cells = vec![planned.label.clone()];
            for name in &names {
                let bytes = record
                    .get("engine_counters")?
                    .get(name)
                    .and_then(Json::as_f64);
                let part = bytes
                    .map(|bytes| bytes / written)
                    .filter(|part| part.is_finite());
                cells.push(part.map_or("-".into(), |part| format!("{part:.3}")));
            }
            Some(cells)
        });
        let rows: Vec<Vec<String>> = rows.collect();
        let short = names
            .iter()
            .map(|name| name.trim_start_matches(PURPOSE).trim_end_matches("_bytes"));
        let heads: Vec<&str> = ["run"].into_iter().chain(short).collect();
        self.table(&heads, rows);
    }
}

/// What the names of counters of the link's bytes by purpose begin with.
const PURPOSE: &str = "link_purpose_";

/// The figures of each run.
const COLUMNS: [(&str, Metric); 11] = [
    ("bytes until idle", Metric::BytesPerSUntilIdle),
    ("bytes", Metric::BytesPerS),
    ("WA of tables", Metric::TableWriteAmplification),
    ("mean", Metric::MeanUs),
    ("p90", Metric::P90Us),
    ("p99", Metric::P99Us),
    ("p99.9", Metric::P999Us),
    ("host", Metric::HostCpu),
    ("device", Metric::DeviceCpu),
    ("compacted by the host", Metric::HostCompactionBytesPerS),
    ("link bytes a byte", Metric::LinkAmplification),
];

/// The lines of an experiment in the first table.
fn rows_of(part: &Part) -> Vec<Row> {
    let experiment = &part.experiment;
    let label = |index| compare::label(experiment, index);
    let mut rows = Vec::new();
    for ratio in &experiment.ratios {
        let (of, to) = (part.rounds(ratio.of), part.rounds(ratio.to));
        let compared = compare::ratio(ratio, of, to);
        let verdict = verdict::of_ratio(ratio, &compared, to);
        let what = ratio.what.clone().unwrap_or_else(|| {
            format!(
                "{} of {} by {}",
                compared.name,
                label(ratio.of),
                label(ratio.to)
            )
        });
        rows.push(Row {
            what,
            ours: ours(&compared),
            paper: paper_text("ratio", compared.paper),
            why: verdict::why(verdict, ratio, of, to),
            verdict,
            source: compared.source,
        });
    }
    for (index, run) in experiment.runs.iter().enumerate() {
        // Of the paper, amplifications of its own system compare; other figures are absolute.
        let is_amplification = |value: &&Value| {
            value.metric == Metric::TableWriteAmplification
                && value.system == experiment.paper.system
        };
        let judged = |value: &&Value| part.is_target() || is_amplification(value);
        for value in run.values.iter().filter(judged) {
            let compared = compare::value(value, part.rounds(index));
            let verdict = verdict::of_target(value.metric, &compared);
            let ours = compared
                .ours
                .map_or("-".into(), |ours| text(&compared.name, ours));
            let is_missed = verdict == Verdict::Missed;
            rows.push(Row {
                what: format!("{} of {}", compared.name, run.label),
                paper: paper_text(&compared.name, compared.paper),
                ours,
                verdict,
                why: match is_missed {
                    true => verdict::used(part.rounds(index)),
                    false => String::new(),
                },
                source: compared.source,
            });
        }
    }
    for claim in &experiment.claims {
        let mut why = String::new();
        let _ = write!(why, "it needs {}", claim.needs);
        rows.push(Row {
            what: claim.what.clone(),
            paper: claim.paper.to_string(),
            ours: "-".into(),
            verdict: Verdict::NotRun,
            why,
            source: claim.source.clone(),
        });
    }
    rows
}

fn ours(compared: &Compared) -> String {
    match compared.ours {
        None => "-".into(),
        Some(_) => compared.ratio_text(),
    }
}

/// The schedule of a run with a device.
fn policy(settings: &Settings) -> Option<&str> {
    let schedule = settings.engine.own.get("schedule")?;
    settings.topology.has_device().then_some(schedule.as_str())
}

/// The best other policy of a run of the policy, the ratio, and what it says.
fn against_best(part: &Part, index: usize) -> Option<(String, String, &'static str)> {
    let run = &part.experiment.runs[index];
    (policy(&run.settings)? == POLICY).then_some(())?;
    let metric = match run.settings.workload.writes() {
        true => Metric::OpsPerSUntilIdle,
        false => Metric::OpsPerS,
    };
    let bare = |settings: &Settings| {
        let mut settings = settings.clone();
        settings.topology = Topology::default();
        settings.engine.own.remove("schedule");
        settings
    };
    let own = bare(&run.settings);
    let others = part
        .experiment
        .runs
        .iter()
        .enumerate()
        .filter(|(_, other)| {
            policy(&other.settings).is_some_and(|name| !name.starts_with(POLICY))
                && bare(&other.settings) == own
        });
    let best = others
        .filter_map(|(other, found)| {
            let rate = median(metric, part.rounds(other))?;
            Some((rate, other, policy(&found.settings)?))
        })
        .max_by(|a, b| a.0.total_cmp(&b.0));
    let (_, other, name) = best?;
    let rounds = Rounds::of(pairs(
        metric,
        None,
        (part.rounds(index), part.rounds(other)),
    ))?;
    let says = match (rounds.is_better(), rounds.interval) {
        (Some(true), _) => "faster",
        (Some(false), _) => "slower",
        (None, Some(_)) => "level",
        (None, None) => "one round",
    };
    let ratio = number::factor(Some(rounds.spread.median));
    let ratio = match rounds.interval {
        None => ratio,
        Some(interval) => format!("{ratio} ({:.2} to {:.2})", interval.from, interval.to),
    };
    Some((name.to_string(), ratio, says))
}
