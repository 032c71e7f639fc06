//! Reads an experiment's file.

use std::path::Path;

use toml::de::{DeTable, DeValue};

use super::error::{ExperimentError, Source, did_you_mean};
use super::product::{Assigned, Assignment, assignments, fill_in, product};
use super::section::{At, Section};
use super::stores::store_of;
use super::{Claim, Experiment, Hardware, Metric, Paper, Ratio, Run, Value};
use crate::settings::{Abilities, Kind, nearest};

type Read<T> = Result<T, ExperimentError>;

const TOP: [&str; 14] = [
    "title",
    "compares",
    "notes",
    "scale",
    "quick_scale",
    "rounds",
    "scale_engine",
    "paper",
    "hardware",
    "settings",
    "run",
    "value",
    "ratio",
    "claim",
];
/// The most rounds of an experiment.
pub const ROUNDS_MAX: u32 = 100;
/// The keys of a run that are no settings.
const RUN: [&str; 3] = ["label", "store", "without_values"];

impl Experiment {
    /// Reads an experiment. `file` is its name for messages; the name of the experiment is that of
    /// the file without folder and ending.
    ///
    /// # Errors
    /// The first thing that is wrong, with its line and column: TOML that cannot be read, a name
    /// that does not exist (with the nearest one), a value that a setting does not have, runs with
    /// equal labels, a store that no earlier run fills, settings that contradict each other, and
    /// values or ratios of runs that do not exist.
    pub fn parse(file: &str, text: &str) -> Result<Experiment, ExperimentError> {
        let source = Source { file, text };
        let table = DeTable::parse(text).map_err(|error| {
            let message = error.message().trim().replace('\n', ", ");
            source.error(error.span().unwrap_or(0..0), message)
        })?;
        let top = Section {
            source,
            name: "the file".into(),
            span: 0..0,
            table: table.get_ref(),
        };
        top.refuse_others(&TOP)?;
        let stem = Path::new(file).file_stem().unwrap_or_default();
        let mut runs = read_runs(&top)?;
        read_values(&top, &mut runs)?;
        let ratios = read_ratios(&top, &runs.list)?;
        runs.refuse_unexplained(&ratios)?;
        Ok(Experiment {
            name: stem.to_string_lossy().into_owned(),
            title: top.required_text("title")?.0,
            compares: top.required_text("compares")?.0,
            paper: read_paper(&top)?,
            hardware: read_hardware(&top)?,
            notes: top.texts("notes")?,
            scale: read_scale(&top, "scale")?.unwrap_or(1.0),
            quick_scale: read_scale(&top, "quick_scale")?,
            rounds: read_rounds(&top)?,
            scale_engine: top.switch("scale_engine")?,
            runs: runs.list,
            ratios,
            claims: read_claims(&top)?,
        })
    }
}

fn read_paper(top: &Section<'_>) -> Read<Paper> {
    let section = top.required_section("paper")?;
    section.refuse_others(&["system", "title", "venue", "year", "figure"])?;
    let year = section.positive("year")?.map(|(year, span)| {
        let is_year = year.fract() == 0.0 && (1900.0..2200.0).contains(&year);
        let message = "`year` in [paper] is no year";
        is_year
            .then_some(year as u32)
            .ok_or_else(|| section.error(span, message))
    });
    Ok(Paper {
        system: section.required_text("system")?.0,
        title: section.required_text("title")?.0,
        venue: section.required_text("venue")?.0,
        year: year.transpose()?,
        figure: section.required_text("figure")?.0,
    })
}

fn read_hardware(top: &Section<'_>) -> Read<Hardware> {
    let section = top.required_section("hardware")?;
    section.refuse_others(&["paper", "here"])?;
    Ok(Hardware {
        paper: section.required_text("paper")?.0,
        here: section.required_text("here")?.0,
    })
}

fn read_scale(top: &Section<'_>, key: &str) -> Read<Option<f64>> {
    let Some((scale, span)) = top.positive(key)? else {
        return Ok(None);
    };
    if scale > 1.0 {
        return Err(top.error(span, format!("`{key}` must be above 0 and at most 1")));
    }
    Ok(Some(scale))
}

fn read_rounds(top: &Section<'_>) -> Read<u32> {
    let Some((rounds, span)) = top.positive("rounds")? else {
        return Ok(1);
    };
    match rounds.fract() == 0.0 && rounds <= f64::from(ROUNDS_MAX) {
        true => Ok(rounds as u32),
        false => Err(top.error(
            span,
            format!("`rounds` must be a whole number from 1 to {ROUNDS_MAX}"),
        )),
    }
}

/// The runs with the sections that they come from.
struct Runs<'a> {
    list: Vec<Run>,
    sections: Vec<Section<'a>>,
    /// Of each section, its `without_values`.
    reasons: Vec<Option<At<String>>>,
    /// Of each run, the index of its section.
    section_of: Vec<usize>,
}

/// A run that has its settings and its label.
struct Labelled {
    label: String,
    assigned: Assigned,
    section: usize,
}

fn read_runs<'a>(top: &Section<'a>) -> Read<Runs<'a>> {
    let base = match top.section("settings")? {
        Some(section) => assignments(&section, &[])?,
        None => Vec::new(),
    };
    let sections = top.sections("run")?;
    if sections.is_empty() {
        return Err(top.error(0..0, "the file has no table `[[run]]`"));
    }
    let mut labelled = Vec::new();
    for (index, section) in sections.iter().enumerate() {
        label_runs(section, &base, index, &mut labelled)?;
    }
    let mut runs = Runs {
        list: Vec::new(),
        reasons: Vec::new(),
        section_of: Vec::new(),
        sections,
    };
    for section in &runs.sections {
        runs.reasons.push(section.text("without_values")?);
    }
    let labels: Vec<String> = labelled.iter().map(|run| run.label.clone()).collect();
    for run in labelled {
        runs.add(run, &labels)?;
    }
    Ok(runs)
}

/// Adds the runs of a section; two with the same label are refused.
fn label_runs(
    section: &Section<'_>,
    base: &[Assignment],
    index: usize,
    labelled: &mut Vec<Labelled>,
) -> Read<()> {
    let template = section.required_text("label")?;
    let own = assignments(section, &RUN)?;
    for assigned in product(section, base, &own)? {
        let label = fill_in(section, &template, &assigned.settings)?;
        let same = labelled.iter().find(|run| run.label == label);
        if let Some(same) = same {
            let listed = assigned
                .listed
                .iter()
                .find(|name| !template.0.contains(name.as_str()));
            let advice = match listed {
                Some(name) if same.section == index => {
                    format!("; `{name}` is a list, so write `{{{name}}}` into the label")
                }
                _ => String::new(),
            };
            let message = format!("two runs have the label `{label}`{advice}");
            return Err(section.error(template.1, message));
        }
        labelled.push(Labelled {
            label,
            assigned,
            section: index,
        });
    }
    Ok(())
}

impl Runs<'_> {
    /// Checks a run's settings and its store.
    fn add(&mut self, run: Labelled, labels: &[String]) -> Read<()> {
        let section = &self.sections[run.section];
        let settings = &run.assigned.settings;
        settings.check(&Abilities::ALL).map_err(|refusal| {
            let found = run.assigned.position(refusal.setting);
            // What is not in the file is a default, which something else in the run contradicts.
            let workload = || run.assigned.position("workload");
            let span = found.or_else(workload).unwrap_or(section.span.clone());
            section.error(span, format!("run `{}`: {refusal}", run.label))
        })?;
        let named = match section.text("store")? {
            Some(template) => {
                let name = fill_in(section, &template, settings)?;
                Some((name, template.1))
            }
            None => None,
        };
        let store = store_of(section, &self.list, labels, named.as_ref(), &run.assigned)?;
        self.list.push(Run {
            label: run.label,
            settings: run.assigned.settings,
            store,
            values: Vec::new(),
            without_values: None,
        });
        self.section_of.push(run.section);
        Ok(())
    }

    /// Gives each run without a value or ratio the reason of its section; there must be one exactly
    /// if it is needed.
    fn refuse_unexplained(&mut self, ratios: &[Ratio]) -> Read<()> {
        let mut used = vec![false; self.sections.len()];
        for (index, run) in self.list.iter_mut().enumerate() {
            let in_ratio = ratios
                .iter()
                .any(|ratio| ratio.of == index || ratio.to == index);
            if in_ratio || !run.values.is_empty() {
                continue;
            }
            let number = self.section_of[index];
            let section = &self.sections[number];
            let Some((reason, _)) = &self.reasons[number] else {
                let message = format!(
                    "run `{}` has no value of the paper; add a `[[value]]` or a `[[ratio]]`, or \
                     say why in `without_values`",
                    run.label
                );
                return Err(section.error(section.required_text("label")?.1, message));
            };
            run.without_values = Some(reason.clone());
            used[number] = true;
        }
        for (reason, used) in self.reasons.iter().zip(used) {
            if let (Some((_, span)), false) = (reason, used) {
                let message = "all runs of this table have values or ratios of the paper, so \
                               `without_values` is wrong";
                return Err(self.sections[0].error(span.clone(), message));
            }
        }
        Ok(())
    }
}

/// The index of the run that a table names.
fn run_named(section: &Section<'_>, key: &str, runs: &[Run]) -> Read<usize> {
    let (label, span) = section.required_text(key)?;
    runs.iter()
        .position(|run| run.label == label)
        .ok_or_else(|| {
            let nearest = nearest(&label, runs.iter().map(|run| run.label.as_str()));
            let message = format!("no run has the label `{label}`{}", did_you_mean(nearest));
            section.error(span, message)
        })
}

/// Each table `[[value]]` has the values of one run: `p99_us = 5`, or `get.p99_us = 5` for one
/// kind of operation.
fn read_values(top: &Section<'_>, runs: &mut Runs<'_>) -> Read<()> {
    const OTHERS: [&str; 3] = ["run", "system", "source"];
    for section in top.sections("value")? {
        let run = run_named(&section, "run", &runs.list)?;
        let mut read = Values {
            system: section.required_text("system")?.0,
            source: section.required_text("source")?.0,
            section: &section,
            values: &mut runs.list[run].values,
        };
        let before = read.values.len();
        for (key, value) in section.table {
            let name = key.get_ref().as_ref();
            let kind = Kind::ALL.into_iter().find(|kind| kind.name() == name);
            match (kind, value.get_ref()) {
                _ if OTHERS.contains(&name) => {}
                (Some(kind), DeValue::Table(table)) => read.table(table, Some(kind), &[])?,
                _ => read.one(key, value, None, &OTHERS)?,
            }
        }
        if read.values.len() == before {
            let message = "[[value]] has no value, for example `p99_us = 5`";
            return Err(section.error(section.span.clone(), message));
        }
    }
    Ok(())
}

/// The values of one run that are being read.
struct Values<'a> {
    system: String,
    source: String,
    section: &'a Section<'a>,
    values: &'a mut Vec<Value>,
}

type Key<'i> = toml::Spanned<toml::de::DeString<'i>>;

impl Values<'_> {
    fn table(&mut self, table: &DeTable<'_>, kind: Option<Kind>, others: &[&str]) -> Read<()> {
        for (key, value) in table {
            self.one(key, value, kind, others)?;
        }
        Ok(())
    }

    fn one(
        &mut self,
        key: &Key<'_>,
        value: &toml::Spanned<DeValue<'_>>,
        operation: Option<Kind>,
        others: &[&str],
    ) -> Read<()> {
        let name = key.get_ref().as_ref();
        let Some(metric) = Metric::named(name) else {
            let metrics = Metric::ALL.iter().map(|metric| metric.name());
            let kinds = Kind::ALL.iter().map(|kind| kind.name());
            let known: Vec<&str> = match operation {
                Some(_) => metrics.collect(),
                None => metrics.chain(kinds).chain(others.iter().copied()).collect(),
            };
            return Err(self.section.unknown(key, &known));
        };
        if let (Some(kind), false) = (operation, metric.is_by_operation()) {
            let message = format!(
                "`{metric}` is a figure of the whole run, so it cannot be that of `{}` alone",
                kind.name()
            );
            return Err(self.section.error(key.span(), message));
        }
        let is_same = |other: &&Value| {
            other.metric == metric && other.operation == operation && other.system == self.system
        };
        if self.values.iter().any(|other| is_same(&other)) {
            let message = format!("`{metric}` of {} is given twice for this run", self.system);
            return Err(self.section.error(key.span(), message));
        }
        self.values.push(Value {
            metric,
            operation,
            paper: self.section.paper_number_of(name, value)?,
            system: self.system.clone(),
            source: self.source.clone(),
        });
        Ok(())
    }
}

fn read_metric(section: &Section<'_>) -> Read<Metric> {
    let (name, span) = section.required_text("metric")?;
    Metric::named(&name).ok_or_else(|| {
        let nearest = nearest(&name, Metric::ALL.iter().map(|metric| metric.name()));
        section.error(
            span,
            format!("unknown metric `{name}`{}", did_you_mean(nearest)),
        )
    })
}

fn read_operation(section: &Section<'_>, metric: Metric) -> Read<Option<Kind>> {
    let Some((name, span)) = section.text("operation")? else {
        return Ok(None);
    };
    let kind = Kind::ALL.into_iter().find(|kind| kind.name() == name);
    let Some(kind) = kind else {
        let nearest = nearest(&name, Kind::ALL.iter().map(|kind| kind.name()));
        let message = format!("unknown operation `{name}`{}", did_you_mean(nearest));
        return Err(section.error(span, message));
    };
    if !metric.is_by_operation() {
        let message = format!("`{metric}` is a figure of the whole run");
        return Err(section.error(span, message));
    }
    Ok(Some(kind))
}

fn read_ratios(top: &Section<'_>, runs: &[Run]) -> Read<Vec<Ratio>> {
    let read = |section: &Section<'_>| {
        section.refuse_others(&[
            "of",
            "to",
            "metric",
            "operation",
            "paper",
            "baseline",
            "what",
            "system",
            "source",
        ])?;
        let metric = read_metric(section)?;
        let (of, to) = (
            run_named(section, "of", runs)?,
            run_named(section, "to", runs)?,
        );
        if of == to {
            let message = format!("the ratio is that of `{}` to itself", runs[of].label);
            return Err(section.error(section.required_text("to")?.1, message));
        }
        Ok(Ratio {
            of,
            to,
            metric,
            operation: read_operation(section, metric)?,
            paper: section.paper_number("paper")?,
            baseline: section.positive("baseline")?.map(|(baseline, _)| baseline),
            what: section.text("what")?.map(|(what, _)| what),
            system: section.required_text("system")?.0,
            source: section.required_text("source")?.0,
        })
    };
    top.sections("ratio")?.iter().map(read).collect()
}

fn read_claims(top: &Section<'_>) -> Read<Vec<Claim>> {
    let read = |section: &Section<'_>| {
        section.refuse_others(&["what", "paper", "needs", "source"])?;
        Ok(Claim {
            what: section.required_text("what")?.0,
            paper: section.paper_number("paper")?,
            needs: section.required_text("needs")?.0,
            source: section.required_text("source")?.0,
        })
    };
    top.sections("claim")?.iter().map(read).collect()
}
