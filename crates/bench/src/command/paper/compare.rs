//! The paper's figures beside those that were measured, as numbers, texts and JSON.
//!
//! Threading: pure functions.

use serde_json::{Value as Json, json};

use crate::compare::{Interval, Rounds, Spread};
use crate::experiment::{Experiment, Metric, Number, Plan, PlannedRun, Ratio, Value};
use crate::record::{Record, number};
use crate::settings::Kind;

/// A figure of the paper beside one that was measured.
#[derive(Debug, Clone, PartialEq)]
pub struct Compared {
    /// The name of the figure, with its kind of operation.
    pub name: String,
    /// The figure of the paper.
    pub paper: Number,
    /// The median of the rounds that were measured. `None` if no round has the figure.
    pub ours: Option<f64>,
    /// The interval in which the true figure probably lies, if there are several rounds.
    pub interval: Option<Interval>,
    /// The number of rounds that have the figure.
    pub rounds: usize,
    /// The system that was measured in the paper.
    pub system: String,
    /// The place in the paper.
    pub source: String,
}

/// The name of a figure: `p99_us`, or `get.p99_us` of one kind of operation.
pub fn name_of(metric: Metric, operation: Option<Kind>) -> String {
    match operation {
        None => metric.to_string(),
        Some(kind) => format!("{}.{metric}", kind.name()),
    }
}

/// The records of the rounds of a run, as JSON. A round that was not carried out has none.
pub type RoundsOf = [Option<Json>];

/// A value of the paper beside that of a run.
pub fn value(value: &Value, records: &RoundsOf) -> Compared {
    let figures = || {
        let records = records.iter().flatten();
        records.filter_map(|record| value.metric.of(record, value.operation))
    };
    let spread = Spread::of(figures());
    Compared {
        name: name_of(value.metric, value.operation),
        paper: value.paper,
        ours: spread.map(|spread| spread.median),
        interval: Interval::of(figures()),
        rounds: spread.map_or(0, |spread| spread.count),
        system: value.system.clone(),
        source: value.source.clone(),
    }
}

/// All records as JSON.
pub fn all_json(records: &[Vec<Option<Record>>]) -> Vec<Vec<Option<Json>>> {
    let json = |record: &Record| serde_json::to_value(record).unwrap_or_default();
    let rounds = |rounds: &Vec<Option<Record>>| {
        let rounds = rounds.iter();
        rounds.map(|record| record.as_ref().map(json)).collect()
    };
    records.iter().map(rounds).collect()
}

/// The figures of two runs in the rounds that both have.
pub fn pairs<'a>(
    metric: Metric,
    operation: Option<Kind>,
    (of, to): (&'a RoundsOf, &'a RoundsOf),
) -> impl Iterator<Item = (f64, f64)> + 'a {
    let figure = move |record: &Option<Json>| metric.of(record.as_ref()?, operation);
    of.iter()
        .zip(to)
        .filter_map(move |(of, to)| figure(of).zip(figure(to)))
}

/// A ratio of the paper beside that of two runs.
pub fn ratio(ratio: &Ratio, of: &RoundsOf, to: &RoundsOf) -> Compared {
    let rounds = Rounds::of(pairs(ratio.metric, ratio.operation, (of, to)));
    Compared {
        name: name_of(ratio.metric, ratio.operation),
        paper: ratio.paper,
        ours: rounds.as_ref().map(|rounds| rounds.spread.median),
        interval: rounds.as_ref().and_then(|rounds| rounds.interval),
        rounds: rounds.as_ref().map_or(0, |rounds| rounds.spread.count),
        system: ratio.system.clone(),
        source: ratio.source.clone(),
    }
}

/// The ends of a number of the paper.
pub fn ends(number: Number) -> (f64, f64) {
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

    /// Ours as a factor, with its interval.
    pub fn ratio_text(&self) -> String {
        let ours = number::factor(self.ours);
        match self.interval {
            None => ours,
            Some(interval) => format!(
                "{ours} ({} to {})",
                number::factor(Some(interval.from)).trim_end_matches('x'),
                number::factor(Some(interval.to)).trim_end_matches('x')
            ),
        }
    }

    /// Ours with its unit and its interval, of a figure that is no ratio.
    pub fn value_text(&self) -> String {
        let Some(ours) = self.ours else {
            return "-".into();
        };
        let ours = text(&self.name, ours);
        match self.interval {
            None => ours,
            Some(Interval { from, to }) => {
                let [from, to] = [from, to].map(|end| text(&self.name, end));
                format!("{ours} ({from} to {to})")
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
            "ours_low": self.interval.map(|interval| interval.from),
            "ours_high": self.interval.map(|interval| interval.to),
            "rounds": self.rounds,
            "ratio_low": quotients.map(|(low, _)| low),
            "ratio_high": quotients.map(|(_, high)| high),
            "system": self.system,
            "source": self.source,
        })
    }
}

/// A figure with its unit. Rates have decimal units, as in the papers.
pub fn text(name: &str, value: f64) -> String {
    let metric = name.rsplit('.').next().unwrap_or(name);
    let text = match metric {
        name if name.contains("bytes_per_s") => number::scaled(
            value,
            &[
                (1.0, " B/s"),
                (1e3, " kB/s"),
                (1e6, " MB/s"),
                (1e9, " GB/s"),
            ],
        ),
        name if name.contains("_per_s") => number::rate(Some(value)),
        name if name.contains("_utilisation") => format!("{:.1}%", 100.0 * value),
        name if name.ends_with("_us") => number::latency(value),
        name if name.ends_with("_cpu") => format!("{value:.2} cores"),
        name if name.ends_with("_s_per_gib") => format!("{}/GiB", number::seconds(Some(value))),
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

/// The record of a run and its part in the experiment, as one object.
pub fn run_json(
    experiment: &Experiment,
    plan: &Plan,
    (run, round): (&PlannedRun, usize),
    record: &Record,
) -> Json {
    let mut json = serde_json::to_value(record).unwrap_or_default();
    let own = [Some(json.clone())];
    let asked = &experiment.runs[run.index];
    let values: Vec<Json> = asked.values.iter().map(|v| value(v, &own).json()).collect();
    let shrunk: Vec<Json> = run
        .shrunk
        .iter()
        .map(|s| json!({ "setting": s.setting, "paper": s.paper, "here": s.here }))
        .collect();
    json["experiment"] = json!({
        "name": experiment.name,
        "run": asked.label,
        "round": round + 1,
        "scale": plan.scale,
        "shrunk": shrunk,
        "values": values,
        "without_values": asked.without_values,
    });
    json
}

/// Ratios and claims as one object: the last line of an experiment.
pub fn end_json(experiment: &Experiment, records: &[Vec<Option<Json>>]) -> Json {
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
    records: &'a [Vec<Option<Json>>],
) -> impl Iterator<Item = (&'a Ratio, Compared)> {
    let rounds = |index: usize| {
        let rounds = records.get(index).map(Vec::as_slice).unwrap_or_default();
        rounds.iter().any(Option::is_some).then_some(rounds)
    };
    experiment.ratios.iter().filter_map(move |found| {
        let compared = ratio(found, rounds(found.of)?, rounds(found.to)?);
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
            interval: None,
            rounds: 1,
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
    fn a_ratio_is_the_median_of_the_rounds_that_both_runs_have() {
        let rounds = |figures: &[Option<f64>]| -> Vec<Option<Json>> {
            let record = |figure: &f64| json!({ "ops_per_s": figure });
            figures.iter().map(|f| f.as_ref().map(record)).collect()
        };
        let asked = Ratio {
            of: 0,
            to: 1,
            metric: Metric::OpsPerS,
            operation: None,
            paper: Number::Exact(2.0),
            baseline: None,
            what: None,
            system: "LevelDB".into(),
            source: "Fig. 1".into(),
        };
        let of = rounds(&[Some(3.0), Some(4.0), None, Some(8.0)]);
        let to = rounds(&[Some(1.0), Some(2.0), Some(1.0), Some(2.0)]);
        let found = ratio(&asked, &of, &to);
        assert_eq!((found.ours, found.rounds), (Some(3.0), 3));
        let interval = found.interval.unwrap();
        assert!(interval.from < 3.0 && interval.to > 3.0);
        assert!(
            found.ratio_text().starts_with("3.00x ("),
            "{}",
            found.ratio_text()
        );
        // One round decides nothing, and no round has no ratio.
        let one = ratio(&asked, &of[..1], &to[..1]);
        assert_eq!(
            (one.ours, one.interval, one.ratio_text()),
            (Some(3.0), None, "3.00x".into())
        );
        assert_eq!(ratio(&asked, &of[2..3], &to[2..3]).ours, None);
    }

    #[test]
    fn a_value_has_the_interval_of_its_rounds() {
        let asked = Value {
            metric: Metric::LinkAmplification,
            operation: None,
            paper: Number::Exact(2.4),
            system: "our target".into(),
            source: "Fig. 1".into(),
        };
        let record = |figure: f64| Some(json!({ "link_amplification": figure }));
        let found = value(&asked, &[record(2.0), None, record(2.2), record(1.9)]);
        assert_eq!((found.ours, found.rounds), (Some(2.0), 3));
        assert_eq!(found.value_text(), "2.00x (1.69x to 2.44x)");
        let one = value(&asked, &[record(2.0), None]);
        assert_eq!((one.interval, one.value_text()), (None, "2.00x".into()));
        assert_eq!(value(&asked, &[None]).value_text(), "-");
    }

    #[test]
    fn figures_have_the_units_of_their_names() {
        for (name, value, expected) in [
            ("bytes_per_s", 2.33e6, "2.33 MB/s"),
            ("host_compaction_bytes_per_s", 2e7, "20.0 MB/s"),
            ("host_cpu", 0.5, "0.50 cores"),
            ("ops_per_s_until_idle", 45_100.0, "45.1 kops/s"),
            ("get.p99_us", 5.5, "5.50us"),
            ("stall_s", 3.0, "3.00 s"),
            ("cpu_s_per_gib", 3.0, "3.00 s/GiB"),
            ("rss_bytes", 1024.0, "1.00 KiB"),
            ("write_amplification", 3.2, "3.20x"),
            ("gpu_utilisation_peak", 0.2251, "22.5%"),
            ("compaction_bytes_per_s", 1.5e9, "1.50 GB/s"),
        ] {
            assert_eq!(text(name, value), expected);
        }
        let range = Number::Range(1e3, 2e6);
        assert_eq!(paper_text("bytes_per_s", range), "1.00 kB/s to 2.00 MB/s");
    }
}
