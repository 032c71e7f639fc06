//! How a comparison ended: what the first engine won, what it lost, and what is undecided.
//!
//! An engine may have several columns, such as RocksDB with and without maps. Here it counts with
//! the best one of each row, because its user would take that one.
//!
//! Threading: pure functions.

use super::number::three;
use super::tables::short_name;
use super::text::paragraph;
use super::{Line, Shown};
use crate::compare::{Rounds, Spread};

/// The result of one row against one engine.
struct Result<'a> {
    /// For example `128 readrandom`.
    row: String,
    column: &'a str,
    rounds: Rounds,
}

impl Result<'_> {
    fn text(&self) -> String {
        let median = three(self.rounds.spread.median);
        let interval = self.rounds.interval.map_or(String::new(), |interval| {
            format!(" ({} to {})", three(interval.from), three(interval.to))
        });
        format!("{} against {}: {median}{interval}", self.row, self.column)
    }
}

/// The sentences on top of a comparison; empty if it has nothing to judge.
pub(super) fn summary(shown: &Shown<'_>) -> String {
    let all = results(shown);
    let having = |is_better: Option<bool>| -> Vec<&Result<'_>> {
        let all = all.iter();
        all.filter(|result| result.rounds.is_better() == is_better)
            .collect()
    };
    let (won, lost, undecided) = (having(Some(true)), having(Some(false)), having(None));
    if all.is_empty() {
        return String::new();
    }
    let name = shown.engine_name(shown.baseline);
    let mut out = paragraph(&format!(
        "**{name} wins {} of {} comparisons, loses {}, and {} are undecided.** Each row counts \
         once for each other engine, against the best of its columns in that row; rows with \
         other promises or with one round do not count.",
        won.len(),
        all.len(),
        lost.len(),
        undecided.len()
    ));
    for (what, results) in [("Lost", lost), ("Undecided", undecided)] {
        if !results.is_empty() {
            let texts: Vec<String> = results.iter().map(|result| result.text()).collect();
            out.push_str(&paragraph(&format!("{what}: {}.", texts.join("; "))));
        }
    }
    out
}

fn results<'a>(shown: &Shown<'a>) -> Vec<Result<'a>> {
    let plan = &shown.results.plan;
    let own = &plan.engines[shown.baseline].driver;
    let mut found = Vec::new();
    for line in shown.lines(&plan.rows_in_order()) {
        let row = line.row;
        let mut drivers: Vec<&str> = Vec::new();
        for engine in &plan.rows[row].engines {
            let driver = plan.engines[*engine].driver.as_str();
            if driver != own && !drivers.contains(&driver) {
                drivers.push(driver);
            }
        }
        for driver in drivers {
            found.extend(best_column(shown, line, driver).and_then(|engine| {
                let rounds = shown.ratios(line, engine)?;
                rounds.interval?;
                Some(Result {
                    row: format!(
                        "{} {}",
                        plan.stores[plan.rows[row].store].name,
                        short_name(shown, line)
                    ),
                    column: shown.engine_name(engine),
                    rounds,
                })
            }));
        }
    }
    found
}

/// The column of an engine with the best median in a row, among those that promise what the first
/// engine promises.
fn best_column(shown: &Shown<'_>, line: Line, driver: &str) -> Option<usize> {
    let plan = &shown.results.plan;
    let row = line.row;
    let is_better = line.metric.more_is_better();
    let columns = plan.rows[row].engines.iter().copied();
    let medians = columns
        .filter(|engine| plan.engines[*engine].driver == driver)
        .filter(|engine| shown.other_promise(row, *engine).is_none())
        .filter_map(|engine| {
            let figures = shown.rounds(line, engine).map(|(_, figure)| figure);
            let median = Spread::of(figures)?.median;
            Some((if is_better { median } else { -median }, engine))
        });
    medians
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, engine)| engine)
}
