//! The page as a whole.

use super::model::Report;
use super::{number, sections, timeline};
use crate::failure::Failure;
use siltstone_bench::draw::html::Html;
use siltstone_bench::draw::{SCRIPT, STYLE};

/// A page of the report.
///
/// # Errors
/// The data cannot be JSON.
pub fn render(report: &Report) -> Result<String, Failure> {
    let data = serde_json::to_string(report)
        .map_err(|e| Failure::Other(format!("the report's data as JSON: {e}")))?;
    let mut h = Html::new();
    h.source("<!DOCTYPE html>\n");
    h.within("html", &[("lang", &"en")], |h| {
        h.within("head", &[], |h| {
            h.source("<meta charset=\"utf-8\">");
            h.source("<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">");
            h.source("<meta name=\"color-scheme\" content=\"light dark\">");
            // The empty icon keeps browsers from requesting one.
            h.source("<link rel=\"icon\" href=\"data:,\">");
            h.element("title", &[], &report.title);
            h.within("style", &[], |h| {
                h.source(STYLE);
                h.source(include_str!("style.css"));
            });
        });
        h.line();
        h.within("body", &[], |h| {
            header(h, report);
            h.within("main", &[], |h| {
                timeline::section(h, &report.timeline);
                sections::kills(h, &report.kills);
                sections::latencies(h, &report.latencies);
                sections::writes(h, &report.writes);
                if let Some(plasma) = &report.plasma {
                    sections::plasma(h, plasma);
                }
                sections::facts(h, &report.facts);
            });
            h.line();
            footer(h);
            h.json("data", &data);
            h.line();
            h.within("script", &[], |h| h.source(SCRIPT));
        });
    });
    h.line();
    Ok(h.into_string())
}

fn footer(h: &mut Html) {
    let text = "The data of this page, except the pictures, is in it as JSON: the script element \
                with the id “data”.";
    h.element("footer", &[], text);
}

fn header(h: &mut Html, report: &Report) {
    h.within("header", &[], |h| {
        h.within("div", &[("class", &"title")], |h| {
            h.element("h1", &[], &report.title);
            h.element(
                "p",
                &[("class", &"date")],
                number::date_utc(report.made_unix_s),
            );
        });
        if !report.verdict.is_empty() {
            h.element("p", &[("class", &"verdict")], &report.verdict);
        }
        h.within("dl", &[("class", &"tiles")], |h| {
            for headline in &report.headlines {
                h.within("div", &[], |h| {
                    h.element("dt", &[], &headline.label);
                    h.within("dd", &[], |h| {
                        h.element("b", &[], &headline.value);
                        h.element("span", &[], &headline.note);
                    });
                });
            }
        });
        h.within("nav", &[("aria-label", &"Parts of this page")], |h| {
            let plasma = report.plasma.as_ref().map(|_| ("#plasma", "Plasma"));
            let parts = [
                Some(("#time", "Second by second")),
                Some(("#kills", "Kills")),
                Some(("#latency", "Latencies")),
                Some(("#bytes", "Bytes by cause")),
                plasma,
                Some(("#facts", "Machine and settings")),
            ];
            for (place, name) in parts.into_iter().flatten() {
                h.element("a", &[("href", &place)], name);
            }
        });
    });
}
