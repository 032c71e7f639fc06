//! One HTML page of what runs found.
//!
//! [`page()`] groups records that can be compared and draws them: a summary of all runs, and for
//! each workload throughput and stalls by second, latencies, levels, amplification, processor time,
//! memory, bytes and settings. `model` is the grouping. `throughput`, `levels`, `latency`,
//! `resources`, `summary` and `facts` turn a group into charts and tables, which `chart`, `bars`
//! and `table` draw. `thin` and the module [`crate::draw`] are their tools.
//!
//! Invariants: the page refers to nothing outside of itself. Every text that is not a literal of
//! this program is escaped. A chart shows its numbers as a table too. A figure that is missing is a
//! dash. All engines are drawn in the same way. Any records can be drawn: none, without seconds,
//! with zeros, with the largest numbers.
//!
//! Threading: pure functions.

mod bars;
mod chart;
mod facts;
mod latency;
mod levels;
mod model;
mod resources;
mod summary;
mod table;
mod thin;
mod throughput;

#[cfg(test)]
mod tests;

use std::fmt::Display;

use crate::draw::html::Html;
use crate::draw::{SCRIPT, STYLE, number};
use crate::record::Record;
use chart::Chart;
use model::{Group, spaced};

pub use table::{Body, Cell, Row, Table, with_bars};

/// The settings that stand under the name of a workload; the others are folded.
const MAIN_SETTINGS: [&str; 11] = [
    "records",
    "key_bytes",
    "value_bytes",
    "distribution",
    "amount",
    "arrival",
    "threads",
    "sync",
    "cache",
    "engine.memtable_bytes",
    "engine.cache_bytes",
];

/// A part of the page with tables of the caller, such as what a paper has beside these runs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Part {
    /// The name of its place on the page.
    pub id: String,
    /// The heading.
    pub title: String,
    /// What stands below the heading, in paragraphs.
    pub texts: Vec<String>,
    /// The tables. Those without rows are not shown.
    pub tables: Vec<Table>,
    /// Words of the tables with their meanings, which stand below them.
    pub gloss: Vec<(String, String)>,
}

/// A page of records, one or more. Records with equal workloads and settings are compared: several
/// of one engine are rounds, of which the summary shows medians. Nothing is downloaded when the
/// page is opened.
pub fn page(records: &[Record], title: &str) -> String {
    page_with(records, title, &[])
}

/// A page of records with parts of the caller before the charts. Without records, it has only
/// these parts.
pub fn page_with(records: &[Record], title: &str, parts: &[Part]) -> String {
    let groups = model::groups(records);
    let mut h = Html::new();
    h.source("<!DOCTYPE html>\n");
    let language = (
        "xmlns",
        &"http://www.w3.org/1999/xhtml" as &dyn std::fmt::Display,
    );
    h.within("html", &[language, ("lang", &"en")], |h| {
        h.within("head", &[], |h| head(h, title));
        h.line();
        h.within("body", &[], |h| {
            match groups.is_empty() && !parts.is_empty() {
                true => h.within("header", &[], |h| h.element("h1", &[], title)),
                false => header(h, title, &groups),
            }
            h.within("main", &[], |h| {
                for part in parts {
                    callers_part(h, part);
                }
                for group in &groups {
                    section(h, group);
                }
                if !groups.is_empty() {
                    facts::section(h, &groups);
                }
            });
            h.line();
            h.within("script", &[], |h| h.source(SCRIPT));
        });
    });
    h.line();
    h.into_string()
}

fn head(h: &mut Html, title: &str) {
    h.source("<meta charset=\"utf-8\"/>");
    h.source("<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>");
    h.source("<meta name=\"color-scheme\" content=\"light dark\"/>");
    // The empty icon keeps browsers from requesting one.
    h.source("<link rel=\"icon\" href=\"data:,\"/>");
    h.element("title", &[], title);
    h.within("style", &[], |h| {
        h.source(STYLE);
        h.source(include_str!("style.css"));
    });
}

fn header(h: &mut Html, title: &str, groups: &[Group<'_>]) {
    h.within("header", &[], |h| {
        h.element("h1", &[], title);
        if groups.is_empty() {
            let text = "There are no records, so there is nothing to show. Give the page the \
                        records of at least one run, which `silt bench --json` writes.";
            h.element("p", &[("class", &"note")], text);
            return;
        }
        notices(h, "Warnings", &summary::warnings(groups));
        table::draw(h, "figures summary", &summary::table(groups));
        gloss(h, summary::GLOSS);
    });
}

/// Words with their meanings.
fn gloss(h: &mut Html, all: impl IntoIterator<Item = (impl Display, impl Display)>) {
    h.within("dl", &[("class", &"gloss")], |h| {
        for (name, meaning) in all {
            h.element("dt", &[], name);
            h.element("dd", &[], meaning);
        }
    });
}

/// Sentences that must not be missed.
fn notices(h: &mut Html, name: &'static str, sentences: &[String]) {
    if sentences.is_empty() {
        return;
    }
    h.within("div", &[("class", &"notices"), ("role", &"note")], |h| {
        h.element("strong", &[], name);
        h.within("ul", &[], |h| {
            for sentence in sentences {
                h.element("li", &[], sentence);
            }
        });
    });
}

fn callers_part(h: &mut Html, part: &Part) {
    h.line();
    h.within("section", &[("id", &part.id)], |h| {
        h.element("h2", &[], &part.title);
        for text in &part.texts {
            h.element("p", &[("class", &"note")], text);
        }
        for table in part.tables.iter().filter(|table| !table.is_empty()) {
            // Most cells are words.
            table::draw(h, "figures words", table);
        }
        if !part.gloss.is_empty() {
            gloss(h, part.gloss.iter().map(|(name, meaning)| (name, meaning)));
        }
    });
}

fn section(h: &mut Html, group: &Group<'_>) {
    h.line();
    h.within("section", &[("id", &group.id)], |h| {
        h.element("h2", &[], &group.title);
        h.element("p", &[("class", &"note")], setting_text(group));
        notices(h, "Stand-ins", &summary::stand_ins(group));
        if let Some(text) = rounds_text(group) {
            h.element("p", &[("class", &"note")], text);
            h.within("details", &[], |h| {
                h.element("summary", &[], "Figures of each round");
                table::draw(h, "numbers", &summary::rounds_table(group));
            });
        }
        over_time(h, group);
        grid(h, &latency::charts(group));
        shape(h, group);
        costs(h, group);
        facts::settings(h, group);
    });
}

fn setting_text(group: &Group<'_>) -> String {
    let setting = |name: &&str| {
        let value = group.settings.get(*name)?;
        (value != number::DASH).then(|| format!("{} {value}", spaced(name)))
    };
    let settings: Vec<String> = MAIN_SETTINGS.iter().filter_map(setting).collect();
    settings.join(" · ")
}

/// Which rounds the charts show.
fn rounds_text(group: &Group<'_>) -> Option<String> {
    if group.runs.iter().all(|runs| runs.rounds.len() == 1) {
        return None;
    }
    let round = |runs: &model::Runs<'_>| {
        let (number, all) = (runs.typical_number(), runs.rounds.len());
        format!("round {number} of {all} of {}", runs.name)
    };
    let rounds: Vec<String> = group.runs.iter().map(round).collect();
    Some(format!(
        "Charts and tables below show the median round by throughput: {}.",
        rounds.join(", ")
    ))
}

fn over_time(h: &mut Html, group: &Group<'_>) {
    match throughput::throughput(group) {
        Some(chart) => chart::draw(h, &chart),
        None => h.element(
            "p",
            &[("class", &"note")],
            "These runs have no series by second.",
        ),
    }
    if let Some(table) = resources::open_loop(group) {
        table::draw(h, "figures", &table);
    }
    if let Some(chart) = throughput::slowest(group) {
        chart::draw(h, &chart);
    }
}

fn shape(h: &mut Html, group: &Group<'_>) {
    let (charts, without) = levels::charts(group);
    grid(h, &charts);
    if !without.is_empty() && !charts.is_empty() {
        let text = format!("Without levels: {}.", without.join(", "));
        h.element("p", &[("class", &"note")], text);
    }
}

/// Charts side by side where there is room.
fn grid(h: &mut Html, charts: &[Chart]) {
    if charts.is_empty() {
        return;
    }
    h.within("div", &[("class", &"grid-of-charts")], |h| {
        for chart in charts {
            chart::draw(h, chart);
        }
    });
}

fn costs(h: &mut Html, group: &Group<'_>) {
    h.within("div", &[("class", &"grid-of-charts")], |h| {
        bars::draw(h, &resources::cpu(group));
        bars::draw(h, &resources::written(group));
    });
    let tables = [
        resources::amplification(group),
        resources::stalls(group),
        resources::memory(group),
        resources::disk(group),
        resources::system(group),
    ];
    for table in &tables {
        table::draw(h, "figures", table);
    }
}
