//! The page of a paper's comparison, made from its records alone.
//!
//! Invariants: equal records give an equal page. Every figure of the paper has a line, even if it
//! was not measured. The page says what was used in place of the paper's hardware before it shows
//! the first figure.
//!
//! Threading: pure functions.

use super::archive::Archive;
use super::carried::Carried;
use super::figures::{self, Grid};
use super::verdict::Verdict;
use super::{intro, policies, rows};
use crate::record::number;

/// The page.
///
/// # Errors
/// If the program lacks an experiment or a run of the records.
pub fn page(archive: &Archive) -> Result<String, String> {
    let all = Carried::all(archive)?;
    let against = policies::against(&all);
    let mut page = Page::default();
    page.head(archive, &all);
    for table in rows::verdicts(&all, &against) {
        page.line(&format!("## {}\n", table.title));
        page.paragraph(&table.summary);
        page.table(&table.grid);
    }
    if !against.is_empty() {
        page.line(&format!("## {}\n", policies::title()));
        page.paragraph(&policies::explanation(&against));
        page.table(&policies::grid(&against));
    }
    for carried in &all {
        page.experiment(carried);
    }
    Ok(page.text)
}

#[derive(Default)]
struct Page {
    text: String,
}

/// The text of a cell, without characters that would end the cell.
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

    fn item(&mut self, text: &str) {
        self.line(&format!("- {text}"));
    }

    fn table(&mut self, grid: &Grid) {
        self.line(&format!("| {} |", grid.heads.join(" | ")));
        self.line(&format!("|{}", " --- |".repeat(grid.heads.len())));
        for row in &grid.rows {
            let cells: Vec<String> = row.iter().map(|text| cell(text)).collect();
            self.line(&format!("| {} |", cells.join(" | ")));
        }
        self.line("");
    }

    fn head(&mut self, archive: &Archive, all: &[Carried]) {
        let manifest = &archive.manifest;
        let paper = all.first().map(|carried| &carried.experiment.paper);
        let system = paper.map_or("", |paper| &paper.system);
        self.line(&format!("# The comparison of {system}\n"));
        let name = &manifest.name;
        self.paragraph(&format!(
            "This page is written by `silt bench paper` from the records of real runs \
             (`docs/papers/{name}.jsonl.zst`), and is not edited by hand. `cargo xtask bench \
             {name}` makes the records and the page again, and pages with charts in \
             `target/{name}`; `silt bench paper --from FILE --page FILE` makes the page from the \
             records."
        ));
        for text in intro::paragraphs(all) {
            self.paragraph(&text);
        }
        if manifest.is_quick {
            self.paragraph(
                "**These are figures of the quick size.** Stores are small, and runs take seconds.",
            );
        }
        self.hardware(archive);
        let rows = all.iter().map(|carried| {
            vec![
                carried.experiment.name.clone(),
                carried.experiment.title.clone(),
                carried.plan.scale.to_string(),
                format!("{} of {}", carried.rounds_done(), carried.rounds),
            ]
        });
        self.table(&Grid {
            heads: ["experiment", "what", "scale", "rounds"]
                .map(String::from)
                .to_vec(),
            rows: rows.collect(),
        });
        let scaled = all.iter().find_map(|carried| {
            let planned = carried
                .plan
                .runs
                .iter()
                .max_by_key(|run| run.shrunk.len())?;
            (!planned.shrunk.is_empty()).then_some((carried, planned))
        });
        if let Some((carried, planned)) = scaled {
            let shrunk: Vec<String> = planned.shrunk.iter().map(ToString::to_string).collect();
            let note = carried.plan.scale_note().unwrap_or_default();
            self.paragraph(&format!(
                "{note} For example `{}` of {}: {}.",
                planned.label,
                carried.experiment.name,
                shrunk.join(", ")
            ));
        }
        let took = number::seconds(Some(manifest.took_s)).replace('\u{a0}', " ");
        let within = manifest.within_s.map_or_else(String::new, |seconds| {
            let limit = number::seconds(Some(seconds)).replace('\u{a0}', " ");
            format!(" No round of a figure was begun after {limit}.")
        });
        self.paragraph(&format!("All of it took {took}.{within}"));
        self.line("## What a verdict says\n");
        for verdict in Verdict::ALL {
            self.item(&format!("*{verdict}*: {}", verdict.meaning()));
        }
        self.line("");
    }

    /// Says which hardware was real, and what was used in place of the paper's hardware.
    fn hardware(&mut self, archive: &Archive) {
        self.line("## Hardware\n");
        let records = || {
            archive
                .lines
                .iter()
                .filter_map(|line| line.record.as_deref())
        };
        if let Some(first) = records().next() {
            self.paragraph(&intro::machine(first));
        }
        if let Some(text) = intro::steadiness(records()) {
            self.paragraph(&text);
        }
        self.line("Stand-ins, with the number of runs that had them:\n");
        for (count, text) in intro::stand_ins(records()) {
            self.item(&format!("{count}: {text}"));
        }
        self.line("");
    }

    fn experiment(&mut self, carried: &Carried) {
        let experiment = &carried.experiment;
        self.line(&format!("## {}: {}\n", experiment.name, experiment.title));
        self.paragraph(&experiment.compares);
        let runs = figures::runs(carried);
        if !runs.rows.is_empty() {
            self.table(&runs);
        }
        let purposes = figures::purposes(carried);
        if !purposes.rows.is_empty() {
            self.paragraph("Bytes over the link by purpose, for each byte that was put:");
            self.table(&purposes);
        }
        let missing = carried.missing();
        if missing > 0 {
            self.paragraph(&format!("{missing} runs were not carried out."));
        }
        for failure in carried.failed() {
            self.item(&format!("failed: {}", cell(&failure)));
        }
        if !carried.failures.is_empty() {
            self.line("");
        }
    }
}
