//! The paper's figures beside those that were measured, as numbers, texts and JSON.
//!
//! Threading: pure functions.

use serde_json::{Value as Json, json};

use crate::experiment::{Experiment, Metric, Number, Plan, PlannedRun, Ratio, Value};
use crate::record::{Record, number};
use crate::settings::Kind;

/// A figure of the paper beside one that was measured.
#[derive(Debug, Clone, PartialEq)]
pub struct Compared {
    /// The figure, with its kind of operation.
    pub name: String,
    /// The paper's.
    pub paper: Number,
    /// What was measured, if the run has it.
    pub ours: Option<f64>,
    /// The system that was measured in the paper.
    pub system: String,
    /// Where the paper has it.
    pub source: String,
}

/// The name of a figure: `p99_us`, or `get.p99_us` of one kind of operation.
pub fn name_of(metric: Metric, operation: Option<Kind>) -> String {
    match operation {
        None => metric.to_string(),
        Some(kind) => format!("{}.{metric}", kind.name()),
    }
}

/// A value of the paper beside that of a run.
pub fn value(value: &Value, record: &Json) -> Compared {
    Compared {
        name: name_of(value.metric, value.operation),
        paper: value.paper,
        ours: value.metric.of(record, value.operation),
        system: value.system.clone(),
        source: value.source.clone(),
    }
}

/// A ratio of the paper beside that of two runs.
pub fn ratio(ratio: &Ratio, of: &Json, to: &Json) -> Compared {
    let figure = |record: &Json| ratio.metric.of(record, ratio.operation);
    let quotient = figure(of).zip(figure(to)).map(|(of, to)| of / to);
    Compared {
        name: name_of(ratio.metric, ratio.operation),
        paper: ratio.paper,
        ours: quotient.filter(|quotient| quotient.is_finite()),
        system: ratio.system.clone(),
        source: ratio.source.clone(),
    }
}

/// The ends of a number of the paper.
fn ends(number: Number) -> (f64, f64) {
    match number {
        Number::Exact(number) => (number, number),
        Number::Range(from, to) => (from, to),
    }
}

impl Compared {
    /// Ours divided by the paper's: the lowest and the highest quotient if the paper has a range.
    pub fn quotients(&self) -> Option<(f64, f64)> {
        let (from, to) = ends(self.paper);
        let ours = self.ours?;
        Some((ours / to, ours / from))
    }

    /// The quotients as a text.
    pub fn quotient_text(&self) -> String {
        match self.quotients() {
            None => "-".into(),
            Some((low, high)) if low == high => number::factor(Some(low)),
            Some((low, high)) => {
                let low = number::factor(Some(low));
                format!(
                    "{} to {}",
                    low.trim_end_matches('x'),
                    number::factor(Some(high))
                )
            }
        }
    }

    /// The keys that values and ratios have in common.
    fn json(&self) -> Json {
        let (paper_low, paper_high) = ends(self.paper);
        let quotients = self.quotients();
        json!({
            "figure": self.name,
            "paper_low": paper_low,
            "paper_high": paper_high,
            "ours": self.ours,
            "ratio_low": quotients.map(|(low, _)| low),
            "ratio_high": quotients.map(|(_, high)| high),
            "system": self.system,
            "source": self.source,
        })
    }
}

/// A figure with its unit. Units are decimal, as in the papers.
pub fn text(name: &str, value: f64) -> String {
    let metric = name.rsplit('.').next().unwrap_or(name);
    let text = match metric {
        name if name.starts_with("bytes_per_s") => number::scaled(
            value,
            &[
                (1.0, " B/s"),
                (1e3, " kB/s"),
                (1e6, " MB/s"),
                (1e9, " GB/s"),
            ],
        ),
        name if name.contains("_per_s") => number::rate(Some(value)),
        name if name.ends_with("_us") => number::latency(value),
        name if name.ends_with("_s") => number::seconds(Some(value)),
        name if name.ends_with("_bytes") => number::bytes(Some(value)),
        _ => number::factor(Some(value)),
    };
    text.replace('\u{a0}', " ")
}

/// A number of the paper, or a range of two, with its unit.
pub fn paper_text(name: &str, number: Number) -> String {
    match number {
        Number::Exact(number) => text(name, number),
        Number::Range(from, to) => format!("{} to {}", text(name, from), text(name, to)),
    }
}

/// The record of a run with what belongs to the experiment, as one object.
pub fn run_json(experiment: &Experiment, plan: &Plan, run: &PlannedRun, record: &Record) -> Json {
    let mut json = serde_json::to_value(record).unwrap_or_default();
    let asked = &experiment.runs[run.index];
    let values: Vec<Json> = asked
        .values
        .iter()
        .map(|v| value(v, &json).json())
        .collect();
    let shrunk: Vec<Json> = run
        .shrunk
        .iter()
        .map(|s| json!({ "setting": s.setting, "paper": s.paper, "here": s.here }))
        .collect();
    json["experiment"] = json!({
        "name": experiment.name,
        "run": asked.label,
        "scale": plan.scale,
        "shrunk": shrunk,
        "values": values,
        "without_values": asked.without_values,
    });
    json
}

/// Ratios and claims as one object: the last line of an experiment.
pub fn end_json(experiment: &Experiment, records: &[Option<Json>]) -> Json {
    let ratios: Vec<Json> = ratios(experiment, records)
        .map(|(ratio, compared)| {
            let mut json = compared.json();
            json["of"] = label(experiment, ratio.of).into();
            json["to"] = label(experiment, ratio.to).into();
            json
        })
        .collect();
    let claims = experiment.claims.iter().map(|claim| {
        let (paper_low, paper_high) = ends(claim.paper);
        json!({
            "what": claim.what,
            "paper_low": paper_low,
            "paper_high": paper_high,
            "needs": claim.needs,
            "source": claim.source,
        })
    });
    json!({
        "experiment": experiment.name,
        "ratios": ratios,
        "not_measured": claims.collect::<Vec<_>>(),
        "hardware": { "paper": experiment.hardware.paper, "here": experiment.hardware.here },
    })
}

/// The label of a run.
pub fn label(experiment: &Experiment, index: usize) -> &str {
    let run = experiment.runs.get(index);
    run.map_or("", |run| run.label.as_str())
}

/// All ratios whose runs were carried out.
pub fn ratios<'a>(
    experiment: &'a Experiment,
    records: &'a [Option<Json>],
) -> impl Iterator<Item = (&'a Ratio, Compared)> {
    let record = |index: usize| records.get(index)?.as_ref();
    experiment.ratios.iter().filter_map(move |found| {
        let compared = ratio(found, record(found.of)?, record(found.to)?);
        Some((found, compared))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compared(paper: Number, ours: Option<f64>) -> Compared {
        Compared {
            name: "bytes_per_s".into(),
            paper,
            ours,
            system: "LevelDB".into(),
            source: "Fig. 1".into(),
        }
    }

    #[test]
    fn a_quotient_is_ours_by_the_papers() {
        let exact = compared(Number::Exact(2e6), Some(5e6));
        assert_eq!(exact.quotient_text(), "2.50x");
        let range = compared(Number::Range(1e6, 2e6), Some(4e6));
        assert_eq!(range.quotients(), Some((2.0, 4.0)));
        assert_eq!(range.quotient_text(), "2.00 to 4.00x");
        assert_eq!(compared(Number::Exact(1.0), None).quotient_text(), "-");
    }

    #[test]
    fn figures_have_the_units_of_their_names() {
        for (name, value, expected) in [
            ("bytes_per_s", 2.33e6, "2.33 MB/s"),
            ("ops_per_s_until_idle", 45_100.0, "45.1 kops/s"),
            ("get.p99_us", 5.5, "5.50us"),
            ("stall_s", 3.0, "3.00 s"),
            ("rss_bytes", 1024.0, "1.00 KiB"),
            ("write_amplification", 3.2, "3.20x"),
        ] {
            assert_eq!(text(name, value), expected);
        }
        let range = Number::Range(1e3, 2e6);
        assert_eq!(paper_text("bytes_per_s", range), "1.00 kB/s to 2.00 MB/s");
    }
}
