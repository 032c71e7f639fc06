//! The rows of the tables of verdicts: each figure of the paper, or each target, beside ours.
//!
//! Threading: pure functions.

use super::carried::Carried;
use super::compare::{self, paper_text};
use super::figures::Grid;
use super::policies::{self, Against};
use super::verdict::{self, Verdict};
use crate::experiment::{Metric, Value};

/// A figure with its verdict.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    pub what: String,
    pub paper: String,
    pub ours: String,
    pub verdict: Verdict,
    /// Why the figure was not reached, or was easier to reach than in the paper.
    pub why: String,
    pub source: String,
}

/// The ratios and the values of an experiment that are judged.
pub fn judged(carried: &Carried) -> Vec<Row> {
    let experiment = &carried.experiment;
    let label = |index| compare::label(experiment, index);
    let mut rows = Vec::new();
    for ratio in &experiment.ratios {
        let (of, to) = (carried.rounds_of(ratio.of), carried.rounds_of(ratio.to));
        let compared = compare::ratio(ratio, of, to);
        let rounds = |run| carried.rounds_of(run);
        let factor = verdict::machine_factor(ratio, &experiment.ratios, rounds);
        let verdict = match verdict::of_ratio(ratio, &compared, to, factor) {
            Verdict::NotRun => Verdict::NotRun,
            _ if !carried.is_target() && ratio.system != experiment.paper.system => {
                Verdict::Described
            }
            verdict => verdict,
        };
        let what = ratio.what.clone().unwrap_or_else(|| {
            let name = &compared.name;
            format!("{name} of {} by {}", label(ratio.of), label(ratio.to))
        });
        rows.push(Row {
            what,
            paper: paper_text("ratio", compared.paper),
            ours: compared.ratio_text(),
            why: verdict::why(verdict, ratio, of, to, factor),
            verdict,
            source: compared.source,
        });
    }
    for (index, run) in experiment.runs.iter().enumerate() {
        // Of the paper's values, only the write amplification of its own system is compared. Other
        // values depend on the paper's machines.
        let is_amplification = |value: &&Value| {
            value.metric == Metric::HostWriteAmplification
                && value.system == experiment.paper.system
        };
        let is_judged = |value: &&Value| carried.is_target() || is_amplification(value);
        for value in run.values.iter().filter(is_judged) {
            let rounds = carried.rounds_of(index);
            let compared = compare::value(value, rounds);
            let verdict = verdict::of_target(value.metric, &compared);
            let is_open = matches!(verdict, Verdict::Missed | Verdict::Undecided);
            rows.push(Row {
                what: format!("{} of {}", compared.name, run.label),
                paper: paper_text(&compared.name, compared.paper),
                ours: compared.value_text(),
                verdict,
                why: match is_open {
                    true => verdict::used(rounds),
                    false => String::new(),
                },
                source: compared.source,
            });
        }
    }
    rows
}

/// The rows of figures that need mechanisms which the runs do not have.
pub fn claimed(carried: &Carried) -> Vec<Row> {
    let claims = carried.experiment.claims.iter();
    let row = |claim: &crate::experiment::Claim| Row {
        what: claim.what.clone(),
        paper: claim.paper.to_string(),
        ours: "-".into(),
        verdict: Verdict::NotRun,
        why: format!("it needs {}", claim.needs),
        source: claim.source.clone(),
    };
    claims.map(row).collect()
}

/// A table of verdicts.
#[derive(Debug)]
pub struct Verdicts {
    pub title: &'static str,
    /// The number of figures with each verdict, as text.
    pub summary: String,
    pub grid: Grid,
}

/// All verdicts: those on the paper's figures, and those on targets of this project. A table
/// without rows is left out.
pub fn verdicts(all: &[Carried], against: &[Against<'_>]) -> Vec<Verdicts> {
    let of_kind = |is_target| {
        let kind = all
            .iter()
            .filter(move |carried| carried.is_target() == is_target);
        kind.flat_map(|carried| judged(carried).into_iter().chain(claimed(carried)))
    };
    let tables = [
        table(
            "The paper's figures beside ours",
            "paper",
            of_kind(false).collect(),
        ),
        table(
            "Targets of our own",
            "target",
            policies::row(against)
                .into_iter()
                .chain(of_kind(true))
                .collect(),
        ),
    ];
    tables.into_iter().flatten().collect()
}

/// The table of these rows.
pub fn table(title: &'static str, head: &str, rows: Vec<Row>) -> Option<Verdicts> {
    let count = |verdict| rows.iter().filter(|row| row.verdict == verdict).count();
    let counts = Verdict::ALL
        .into_iter()
        .filter(|verdict| count(*verdict) > 0)
        .map(|verdict| format!("{verdict} {}", count(verdict)));
    let counts: Vec<String> = counts.collect();
    let heads = [
        "what",
        head,
        "ours",
        "verdict",
        "the baseline, and what each run used if it is not met",
        "source",
    ];
    (!rows.is_empty()).then(|| Verdicts {
        title,
        summary: format!("Of {} figures: {}.", rows.len(), counts.join(", ")),
        grid: Grid {
            heads: heads.map(String::from).to_vec(),
            rows: rows.into_iter().map(cells).collect(),
        },
    })
}

fn cells(row: Row) -> Vec<String> {
    let verdict = row.verdict.to_string();
    vec![row.what, row.paper, row.ours, verdict, row.why, row.source]
}
