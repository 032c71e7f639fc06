//! The paper's figures beside those that were measured, as tables of the page of charts.
//!
//! Threading: pure functions.

use serde_json::Value as Json;

use super::compare::{self, Compared, all_json, paper_text};
use crate::experiment::{Experiment, Plan, PlannedRun};
use crate::page::{Body, Cell, Part, Row, Table};
use crate::record::Record;

const NONE: &str = "–";

/// What the page has beside the charts. `records` are those of the experiment's runs, as far as
/// they were carried out, round by round.
pub fn part(experiment: &Experiment, plan: &Plan, records: &[Vec<Option<Record>>]) -> Part {
    let records = all_json(records);
    let paper = &experiment.paper;
    Part {
        id: "paper",
        title: format!("What the paper has: {}, {}", paper.system, paper.figure),
        text: experiment.compares.clone(),
        tables: vec![
            values(experiment, plan, &records),
            ratios(experiment, &records),
            claims(experiment),
        ],
    }
}

/// A body for each run that was carried out.
fn values(experiment: &Experiment, plan: &Plan, records: &[Vec<Option<Json>>]) -> Table {
    let body = |planned: &PlannedRun| {
        let run = &experiment.runs[planned.index];
        let rounds = records.get(planned.index)?;
        rounds.iter().flatten().next()?;
        let mut rows: Vec<Row> = run
            .values
            .iter()
            .map(|value| {
                let compared = compare::value(value, rounds);
                row(compared.name.clone(), &compared)
            })
            .collect();
        if rows.is_empty() {
            let why = run.without_values.clone().unwrap_or_default();
            rows.push(Row {
                head: "no value in the paper".into(),
                note: why,
                cells: vec![Cell::from(NONE.to_string()); HEADS.len() - 1],
                ..Row::default()
            });
        }
        let shrunk: Vec<String> = planned.shrunk.iter().map(ToString::to_string).collect();
        let title = match shrunk.is_empty() {
            true => run.label.clone(),
            false => format!("{} ({})", run.label, shrunk.join(", ")),
        };
        Some(Body {
            title: Some((title, None)),
            rows,
        })
    };
    Table {
        caption: "The paper's values beside those of these runs".into(),
        heads: HEADS.map(String::from).to_vec(),
        bodies: plan.runs.iter().filter_map(body).collect(),
    }
}

const HEADS: [&str; 6] = [
    "figure",
    "paper",
    "ours",
    "ours/paper",
    "measured in the paper",
    "source",
];

fn ratios(experiment: &Experiment, records: &[Vec<Option<Json>>]) -> Table {
    let rows = compare::ratios(experiment, records).map(|(ratio, compared)| {
        let label = |index| compare::label(experiment, index);
        let (of, to) = (label(ratio.of), label(ratio.to));
        let name = format!("{} of {of} by that of {to}", compared.name);
        Row {
            cells: cells("ratio", &compared),
            ..row(name, &compared)
        }
    });
    let rows = rows.collect();
    Table::new("Ratios between two runs", &HEADS, rows)
}

/// What the paper says of mechanisms that the runs do not have.
fn claims(experiment: &Experiment) -> Table {
    let rows = experiment.claims.iter().map(|claim| {
        let cells = [
            claim.paper.to_string(),
            claim.needs.clone(),
            claim.source.clone(),
        ];
        Row {
            head: claim.what.clone(),
            cells: cells.map(Cell::from).to_vec(),
            ..Row::default()
        }
    });
    let caption = "Not measured, because what it needs is not built";
    let heads = ["claim", "paper", "needs", "source"];
    Table::new(caption, &heads, rows.collect())
}

fn row(head: String, compared: &Compared) -> Row {
    Row {
        head,
        cells: cells(&compared.name, compared),
        ..Row::default()
    }
}

/// The cells of a figure whose name decides the unit.
fn cells(name: &str, compared: &Compared) -> Vec<Cell> {
    let ours = match name {
        "ratio" => compared.ours.map(|_| compared.ratio_text()),
        _ => compared.ours.map(|ours| compare::text(name, ours)),
    };
    let texts = [
        paper_text(name, compared.paper),
        ours.unwrap_or(NONE.into()),
        compared.quotient_text(),
        compared.system.clone(),
        compared.source.clone(),
    ];
    texts.map(Cell::from).to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::page_with;

    /// A record of a run that has all figures of which the paper has a value.
    fn record() -> Record {
        Record {
            workload: "fillrandom".into(),
            engine: "siltstone".into(),
            amplification: crate::record::Amplification {
                write_tables: Some(1.4),
                ..Default::default()
            },
            bytes_per_s_until_idle: Some(1e6),
            mean_us: Some(47.25),
            ..Record::default()
        }
    }

    #[test]
    fn the_page_has_the_papers_values_beside_ours() {
        let experiment = Experiment::named("prockstore-fig11").unwrap();
        let plan = experiment.plan(None).unwrap();
        let records = vec![vec![Some(record())]; experiment.runs.len()];
        let part = part(&experiment, &plan, &records);
        let [values, ratios, claims] = &part.tables[..] else {
            panic!("three tables");
        };
        assert_eq!(values.bodies.len(), experiment.runs.len());
        let first = &values.bodies[0];
        let title = &first.title.as_ref().unwrap().0;
        assert!(title.contains("near-data 1KiB (records"), "{title}");
        assert_eq!(first.rows[0].head, "table_write_amplification");
        let texts: Vec<&str> = first.rows[0].cells.iter().map(|c| &c.text[..]).collect();
        assert_eq!(texts[..3], ["1.40x", "1.40x", "1.00x"]);
        assert_eq!(values.bodies[1].rows[0].head, "no value in the paper");
        assert_eq!(ratios.bodies[0].rows.len(), experiment.ratios.len());
        assert_eq!(ratios.bodies[0].rows[0].cells[1].text, "1.00x");
        assert_eq!(claims.bodies[0].rows.len(), experiment.claims.len());

        let text = page_with(&[record()], "Fig. 9", Some(&part));
        assert!(text.contains("values beside those of these runs"));
        assert!(text.contains("Not measured, because what it needs is not built"));
        roxmltree::Document::parse(text.trim_start_matches("<!DOCTYPE html>")).unwrap();
    }

    #[test]
    fn a_run_that_was_not_carried_out_has_no_line() {
        let experiment = Experiment::named("prockstore-fig11").unwrap();
        let plan = experiment.plan(None).unwrap();
        let mut records = vec![vec![None]; experiment.runs.len()];
        records[0] = vec![Some(record())];
        let part = part(&experiment, &plan, &records);
        assert_eq!(part.tables[0].bodies.len(), 1);
        assert!(part.tables[1].is_empty());
        let text = page_with(&[record()], "Fig. 9", Some(&part));
        assert!(!text.contains("Ratios between two runs"));
    }
}
