//! The paper's figures beside those that were measured, as tables for pages with charts.
//!
//! Threading: pure functions.

use serde_json::Value as Json;

use super::carried::Carried;
use super::compare::{self, Compared, paper_text};
use super::figures::{self, Grid};
use super::intro::{self, plain};
use super::verdict::Verdict;
use super::{policies, rows};
use crate::experiment::{Experiment, Plan, PlannedRun};
use crate::page::{Body, Cell, Part, Row, Table};
use crate::record::Record;

const NONE: &str = "–";

/// Makes the tables of an experiment's page: the verdicts, the figures of all runs, and the paper's
/// values beside ours.
pub fn part(carried: &Carried) -> Part {
    let experiment = &carried.experiment;
    let paper = &experiment.paper;
    let one = std::slice::from_ref(carried);
    let against = policies::against(one);
    let head = if carried.is_target() {
        "target"
    } else {
        "paper"
    };
    let mut judged = rows::judged(carried);
    judged.extend(policies::row(&against));
    let verdicts = rows::table("Verdicts", head, judged);
    let mut texts = vec![experiment.compares.clone()];
    texts.extend(verdicts.iter().map(|table| table.summary.clone()));
    let mut tables: Vec<Table> = verdicts
        .iter()
        .map(|table| drawn(table.title, &table.grid))
        .collect();
    if !against.is_empty() {
        texts.push(plain(&policies::explanation(&against)));
        tables.push(drawn(&policies::title(), &policies::grid(&against)));
    }
    tables.extend([
        drawn(RUNS, &figures::runs(carried)),
        drawn(PURPOSES, &figures::purposes(carried)),
        values(experiment, &carried.plan, &carried.records),
        ratios(experiment, &carried.records),
        claims(experiment),
    ]);
    Part {
        id: "paper".into(),
        title: format!("What the paper has: {}, {}", paper.system, paper.figure),
        texts,
        tables,
        gloss: gloss(),
    }
}

const RUNS: &str = "Medians of all runs";
const PURPOSES: &str = "Bytes over the link by purpose, for each byte that was put";

/// The parts of a page of all experiments of a paper, which has no charts: verdicts, the policies,
/// and the figures of all runs. `records` are those of all of them.
pub fn parts<'a>(all: &[Carried], records: impl Iterator<Item = &'a Record> + Clone) -> Vec<Part> {
    let against = policies::against(all);
    let mut texts = intro::paragraphs(all);
    texts.push("Charts of each experiment are in a page of its own beside this one.".into());
    texts.extend(records.clone().next().map(intro::machine));
    let stand_in = |(count, text): (usize, String)| Row {
        head: text,
        cells: vec![Cell::from(count.to_string())],
        ..Row::default()
    };
    let stand_ins = intro::stand_ins(records).into_iter().map(stand_in);
    let mut parts = vec![Part {
        id: "about".into(),
        title: "What is compared".into(),
        texts: texts.iter().map(|text| plain(text)).collect(),
        tables: vec![Table::new(
            "What stood in for hardware",
            &["stand-in", "runs"],
            stand_ins.collect(),
        )],
        gloss: gloss(),
    }];
    for (number, table) in rows::verdicts(all, &against).iter().enumerate() {
        parts.push(Part {
            id: format!("verdicts{}", number + 1),
            title: table.title.into(),
            texts: vec![table.summary.clone()],
            tables: vec![drawn(table.title, &table.grid)],
            ..Part::default()
        });
    }
    if !against.is_empty() {
        parts.push(Part {
            id: "policies".into(),
            title: plain(&policies::title()),
            texts: vec![plain(&policies::explanation(&against))],
            tables: vec![drawn(&policies::title(), &policies::grid(&against))],
            ..Part::default()
        });
    }
    parts.extend(all.iter().map(|carried| {
        let experiment = &carried.experiment;
        let failed = carried.failed().map(|failure| format!("Failed: {failure}"));
        let mut texts = vec![experiment.compares.clone()];
        texts.extend(match carried.missing() {
            0 => None,
            missing => Some(format!("{missing} runs were not carried out.")),
        });
        texts.extend(failed);
        Part {
            id: experiment.name.clone(),
            title: format!("{}: {}", experiment.name, experiment.title),
            texts: texts.iter().map(|text| plain(text)).collect(),
            tables: vec![
                drawn(RUNS, &figures::runs(carried)),
                drawn(PURPOSES, &figures::purposes(carried)),
            ],
            ..Part::default()
        }
    }));
    parts
}

/// An explanation of the words for verdicts.
fn gloss() -> Vec<(String, String)> {
    let meaning = |verdict: Verdict| (verdict.to_string(), plain(verdict.meaning()));
    Verdict::ALL.map(meaning).to_vec()
}

fn drawn(caption: &str, grid: &Grid) -> Table {
    let row = |cells: &Vec<String>| {
        let mut cells = cells.iter().map(|text| plain(text));
        Row {
            head: cells.next().unwrap_or_default(),
            cells: cells.map(Cell::from).collect(),
            ..Row::default()
        }
    };
    let heads: Vec<&str> = grid.heads.iter().map(String::as_str).collect();
    let rows = grid.rows.iter().map(row).collect();
    Table::new(&plain(caption), &heads, rows)
}

/// The table of the paper's values, with one body for each run that was carried out.
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

/// The table of figures that need mechanisms which the runs do not have.
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

/// The cells of a figure. Its name decides the unit.
fn cells(name: &str, compared: &Compared) -> Vec<Cell> {
    let ours = match name {
        "ratio" => compared.ours.map(|_| compared.ratio_text()),
        _ => compared.ours.map(|_| compared.value_text()),
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
                write_tables: Some(6.0),
                write_tables_by_host: Some(1.4),
                ..Default::default()
            },
            bytes_per_s_until_idle: Some(1e6),
            ops_per_s_until_idle: Some(1e3),
            mean_us: Some(47.25),
            host_cpu: Some(0.75),
            device_cpu: Some(0.5),
            host_compaction_bytes_per_s: Some(2e7),
            link_amplification: Some(2.25),
            bytes: crate::record::Bytes {
                user_written_bytes: 1000,
                ..Default::default()
            },
            engine_counters: [("link_purpose_log_bytes".to_string(), 1500)].into(),
            ..Record::default()
        }
    }

    /// An experiment whose runs all have this record, or only the first one.
    fn carried(is_whole: bool) -> Carried {
        let experiment = Experiment::named("prockstore-fig11").unwrap();
        let plan = experiment.plan(None).unwrap();
        let json = serde_json::to_value(record()).unwrap();
        let runs = 0..experiment.runs.len();
        Carried {
            records: runs
                .map(|run| vec![(is_whole || run == 0).then(|| json.clone())])
                .collect(),
            rounds: 1,
            failures: Vec::new(),
            plan,
            experiment,
        }
    }

    fn table<'a>(part: &'a Part, caption: &str) -> &'a Table {
        let table = part.tables.iter().find(|table| table.caption == caption);
        table.unwrap_or_else(|| panic!("no table `{caption}`"))
    }

    fn texts(row: &Row) -> Vec<&str> {
        row.cells.iter().map(|cell| &cell.text[..]).collect()
    }

    const VALUES: &str = "The paper's values beside those of these runs";
    const RATIOS: &str = "Ratios between two runs";

    #[test]
    fn the_page_has_the_papers_values_beside_ours() {
        let carried = carried(true);
        let experiment = &carried.experiment;
        let part = part(&carried);
        let values = table(&part, VALUES);
        assert_eq!(values.bodies.len(), experiment.runs.len());
        let first = &values.bodies[0];
        let title = &first.title.as_ref().unwrap().0;
        assert!(title.contains("near-data 1KiB (records"), "{title}");
        assert_eq!(first.rows[0].head, "host_write_amplification");
        assert_eq!(texts(&first.rows[0])[..3], ["1.40x", "1.40x", "1.00x"]);
        assert_eq!(values.bodies[1].rows[0].head, "no value in the paper");
        let ratios = table(&part, RATIOS);
        assert_eq!(ratios.bodies[0].rows.len(), experiment.ratios.len());
        assert_eq!(ratios.bodies[0].rows[0].cells[1].text, "1.00x");
        let claims = table(&part, "Not measured, because what it needs is not built");
        assert_eq!(claims.bodies[0].rows.len(), experiment.claims.len());

        let text = page_with(&[record()], "Fig. 9", &[part]);
        assert!(text.contains("values beside those of these runs"));
        assert!(text.contains("Not measured, because what it needs is not built"));
        roxmltree::Document::parse(text.trim_start_matches("<!DOCTYPE html>")).unwrap();
    }

    #[test]
    fn the_page_has_verdicts_policies_and_what_host_device_and_link_did() {
        let part = part(&carried(true));
        let verdicts = &table(&part, "Verdicts").bodies[0].rows;
        let value = verdicts
            .iter()
            .find(|row| row.head == "host_write_amplification of near-data 1KiB");
        // One round decides nothing.
        assert_eq!(texts(value.unwrap())[..3], ["1.40x", "1.40x", "undecided"]);
        let policies = table(&part, "near-data against the best other policy");
        let first = texts(&policies.bodies[0].rows[0]).join(" | ");
        assert_eq!(
            first,
            "near-data, async-single, sync-split, host-only | host-only | 1.00x | one round"
        );
        let never = verdicts.last().unwrap();
        assert_eq!(
            never.head,
            "near-data is never slower than the best other policy"
        );
        let runs = table(&part, "Medians of all runs");
        let at = |head: &str| runs.heads.iter().position(|h| h == head).unwrap() - 1;
        let first = texts(&runs.bodies[0].rows[0]);
        for (head, figure) in [
            ("host CPU", "0.75 cores"),
            ("device CPU", "0.50 cores"),
            ("host compaction bandwidth", "20.0 MB/s"),
            ("link bytes a byte", "2.25x"),
        ] {
            assert_eq!(first[at(head)], figure, "{head}");
        }
        let purposes = table(&part, PURPOSES);
        assert_eq!(purposes.heads, ["run", "log"]);
        assert_eq!(texts(&purposes.bodies[0].rows[0]), ["1.500"]);
        let words: Vec<&str> = part.gloss.iter().map(|(word, _)| &word[..]).collect();
        assert!(words.contains(&"not judged") && words.contains(&"undecided"));
    }

    #[test]
    fn a_run_that_was_not_carried_out_has_no_line() {
        let part = part(&carried(false));
        assert_eq!(table(&part, VALUES).bodies.len(), 1);
        assert_eq!(table(&part, "Medians of all runs").bodies[0].rows.len(), 1);
        assert!(table(&part, RATIOS).is_empty());
        let text = page_with(&[record()], "Fig. 9", &[part]);
        assert!(!text.contains("Ratios between two runs"));
    }

    #[test]
    fn the_page_of_all_experiments_stands_alone() {
        let records = [Record {
            stand_ins: vec!["A string is <the> link.".into()],
            ..record()
        }];
        let parts = parts(&[carried(true)], records.iter());
        let text = page_with(&[], "The comparison of x", &parts);
        let whole = text.trim_start_matches("<!DOCTYPE html>");
        let document = roxmltree::Document::parse(whole).unwrap();
        let mut nodes = document.descendants();
        let main = nodes.find(|node| node.has_tag_name(("http://www.w3.org/1999/xhtml", "main")));
        let said: String = main
            .unwrap()
            .descendants()
            .filter_map(|node| node.text())
            .collect();
        for words in [
            "A string is <the> link.",
            "The paper's figures beside ours",
            "Targets of our own",
            "near-data against the best other policy",
            "prockstore-fig11: ",
            "host compaction bandwidth",
            "the last unsynced writes may be lost",
        ] {
            assert!(said.contains(words), "{words}");
        }
        assert!(!said.contains("There are no records"));
        assert!(!said.contains('`') && !said.contains("*missed*"));
        let links = document
            .descendants()
            .filter_map(|node| node.attribute("href"));
        assert!(links.into_iter().all(|link| link.starts_with("data:")));
    }
}
