//! The page of a comparison, in Markdown.
//!
//! For each store there is a list of what each row does, a table of figures (the median of the
//! rounds, lowest and highest), a table of ratios with their intervals, and a table of what each
//! figure costs. Failures, engines that were left out, warnings of the records, weaker promises and
//! drift of the machine stand below, then how the figures were made.
//!
//! Invariants: every figure comes from a record. Wins and losses are printed in the same way. Equal
//! results give equal pages, byte for byte.
//!
//! Threading: pure functions.

mod details;
mod drift;
mod facts;
mod number;
mod rows;
mod summary;
mod table;
mod tables;
mod text;
mod warned;

use super::{Outcome, Process, Results, Rounds, Verdict};
use crate::experiment::Metric;
use crate::record::Record;
use crate::settings::Promise;
use text::{Notes, paragraph};

const HEAD: &str = "This page is written by `bench-compare page` from the records of real runs, \
     and is not edited by hand. `bench-compare/README.md` says how to make it again.";

const READING: &str = "A figure is the median of the rounds, with the lowest and the highest in \
     parentheses. Rounds are interleaved: in each round every engine of the row runs once, the \
     first one in the middle of the others, whose order changes from round to round. A ratio \
     compares two engines by their figures of one round. Above 1, the first engine is better. \
     The tables have the median of the ratios and, in parentheses, the interval in which the \
     true ratio lies with a probability of 95% (Student's t on the logarithms of the ratios). Of \
     a hundred such intervals, about five miss the truth. *wins* and *loses* stand where all of \
     the interval is above or below 1, and *undecided* where 1 is in it. A row with one round \
     has no interval, and is not judged. Rows that write are judged only if both engines promise \
     the same. All rounds of a row that reads find one store, which each engine filled once, so \
     their intervals are those of the reading alone.";

const DEFINITIONS: &str = "Fills, overwrites, deletes and compactions count until the engine is \
     idle, so the flushes and compactions that they leave behind are part of the figure. `open` \
     is judged by the time that the open takes. All other rows count until the last operation \
     has ended. Where a row is judged by something else, its name in the table says so. Every \
     read is checked: what should be there is found, what should not be there is not found, and \
     every byte of the value is compared. All figures of a process are in its record \
     (`docs/bench-record.md`).";

/// The page of these comparisons, one after the other.
pub fn page(all: &[Results]) -> String {
    let mut out = String::from("# How fast\n\n");
    out.push_str(&paragraph(HEAD));
    if let [only] = all
        && only.plan.name != "standard"
    {
        let text = format!(
            "**The figures below are those of the plan `{}`, not of the standard comparison.**",
            only.plan.name
        );
        out.push_str(&paragraph(&text));
    }
    out.push_str(&paragraph(READING));
    out.push_str(&paragraph(DEFINITIONS));
    for results in all {
        out.push_str(&section(results));
    }
    while out.ends_with("\n\n") {
        out.pop();
    }
    out
}

/// One comparison.
fn section(results: &Results) -> String {
    let shown = Shown::of(results);
    let mut out = format!("## {}\n\n", results.plan.title);
    for note in &results.plan.notes {
        out.push_str(&paragraph(note));
    }
    out.push_str(&summary::summary(&shown));
    for store in 0..results.plan.stores.len() {
        out.push_str(&shown.store(store));
    }
    out.push_str(&facts::section(&shown));
    out
}

/// One figure of a row: a line of the tables.
#[derive(Clone, Copy)]
struct Line {
    row: usize,
    metric: Metric,
}

/// Results with what the tables need of them.
struct Shown<'a> {
    results: &'a Results,
    /// The engine that is compared with the others.
    baseline: usize,
}

impl<'a> Shown<'a> {
    fn of(results: &'a Results) -> Shown<'a> {
        let plan = &results.plan;
        let has_figure = |(process, outcome): (Process, Option<&Outcome>)| {
            let row = &plan.rows[process.row];
            let record = outcome?.record()?;
            let mut metrics = std::iter::once(&row.metric).chain(&row.also);
            metrics.find_map(|metric| metric.of_record(record))?;
            Some(process.engine)
        };
        let baseline = results.all().filter_map(has_figure).min().unwrap_or(0);
        Shown { results, baseline }
    }

    /// The lines of these rows: the figure of each row, and what it is judged by also.
    fn lines(&self, rows: &[usize]) -> Vec<Line> {
        let plan = &self.results.plan;
        let of_row = |row: &usize| {
            let spec = &plan.rows[*row];
            let metrics = std::iter::once(spec.metric).chain(spec.also.iter().copied());
            let row = *row;
            metrics.map(move |metric| Line { row, metric })
        };
        rows.iter().flat_map(of_row).collect()
    }

    /// The figure of one process.
    fn figure(&self, line: Line, engine: usize, round: u32) -> Option<f64> {
        let row = line.row;
        let outcome = self.results.get(Process { row, engine, round })?;
        line.metric.of_record(outcome.record()?)
    }

    /// The figures of an engine in a line, by round.
    fn rounds(&self, line: Line, engine: usize) -> impl Iterator<Item = (u32, f64)> {
        let rounds = 1..=self.results.plan.rows[line.row].pairs;
        rounds.filter_map(move |round| Some((round, self.figure(line, engine, round)?)))
    }

    /// The ratios of the first engine to another one in a line, by round; `None` if there is no
    /// round with both.
    fn ratios(&self, line: Line, engine: usize) -> Option<Rounds> {
        let pairs = self.rounds(line, self.baseline).filter_map(|(round, own)| {
            let other = self.figure(line, engine, round)?;
            Some(match line.metric.more_is_better() {
                true => (own, other),
                false => (other, own),
            })
        });
        Rounds::of(pairs)
    }

    /// The outcomes of an engine in a row.
    fn outcomes(&self, row: usize, engine: usize) -> impl Iterator<Item = &'a Outcome> {
        let results = self.results;
        let rounds = 1..=results.plan.rows[row].pairs;
        rounds.filter_map(move |round| results.get(Process { row, engine, round }))
    }

    /// The records of an engine in a row.
    fn records(&self, row: usize, engine: usize) -> impl Iterator<Item = &'a Record> {
        self.outcomes(row, engine).filter_map(Outcome::record)
    }

    /// The rows of a store that have an outcome, in the order in which they were carried out.
    fn rows(&self, store: usize) -> Vec<usize> {
        let plan = &self.results.plan;
        let has_outcome = |row: &usize| {
            let mut engines = plan.rows[*row].engines.iter();
            engines.any(|engine| self.outcomes(*row, *engine).next().is_some())
        };
        let rows = plan.rows_in_order().into_iter();
        rows.filter(|row| plan.rows[*row].store == store)
            .filter(has_outcome)
            .collect()
    }

    /// The engines that have an outcome in one of these rows.
    fn engines(&self, rows: &[usize]) -> Vec<usize> {
        let engines = 0..self.results.plan.engines.len();
        let takes_part = |engine: &usize| {
            let mut rows = rows.iter();
            rows.any(|row| self.outcomes(*row, *engine).next().is_some())
        };
        engines.filter(takes_part).collect()
    }

    /// What writes of an engine survive in a row, if it is not what those of the baseline survive.
    /// In a row that only reads it does not matter.
    fn other_promise(&self, row: usize, engine: usize) -> Option<Promise> {
        if !self.results.plan.rows[row].settings.workload.writes() {
            return None;
        }
        let promise = |engine| self.records(row, engine).find_map(|record| record.promise);
        let own = promise(self.baseline)?;
        promise(engine).filter(|other| *other != own)
    }

    fn engine_name(&self, engine: usize) -> &'a str {
        &self.results.plan.engines[engine].name
    }

    /// Why an engine has no figure in a row, if it failed or was left out.
    fn reason(&self, row: usize, engine: usize) -> Option<(&'static str, &'a str)> {
        self.outcomes(row, engine)
            .find_map(|outcome| match &outcome.verdict {
                Verdict::Done(_) => None,
                Verdict::Failed(reason) => Some(("failed", reason.as_str())),
                Verdict::Skipped(reason) => Some(("left out", reason.as_str())),
            })
    }

    /// The tables of one store.
    fn store(&self, store: usize) -> String {
        let rows = self.rows(store);
        if rows.is_empty() {
            return String::new();
        }
        let engines = self.engines(&rows);
        let mut notes = Notes::default();
        let spec = &self.results.plan.stores[store];
        let mut out = format!("### {}\n\n", spec.title);
        out.push_str(&paragraph(&facts::data_text(self, store)));
        out.push_str(&rows::list(self, &rows));
        out.push_str(&tables::figures(self, &rows, &engines, &mut notes).text());
        let ratios = tables::ratios(self, &rows, &engines);
        if !ratios.is_empty() {
            let text = format!(
                "Ratios of {} to the others:",
                self.engine_name(self.baseline)
            );
            out.push_str(&paragraph(&text));
            out.push_str(&ratios.text());
        }
        for promise in facts::promises(self, &rows, &engines) {
            out.push_str(&paragraph(&promise));
        }
        for note in notes.lines() {
            out.push_str(&paragraph(&note));
        }
        for sentence in drift::sentences(self, &rows) {
            out.push_str(&paragraph(&sentence));
        }
        let details = details::table(self, &rows, &engines);
        if !details.is_empty() {
            out.push_str(&paragraph(details::HEAD));
            out.push_str(&details.text());
        }
        for row in rows {
            if self.results.plan.rows[row].tenths {
                out.push_str(&details::tenths(self, row));
            }
        }
        out
    }
}
