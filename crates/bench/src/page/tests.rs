use std::collections::BTreeMap;

use roxmltree::{Document, Node, ParsingOptions};
use serde_json::json;

use super::*;
use crate::engine::Level;
use crate::measure::series::SecondLatency;
use crate::measure::{LatencySummary, Second};
use crate::record::OpenLoop;
use crate::settings::Promise;

/// Seconds of which the fourth stalls.
fn seconds(count: u64) -> Vec<Second> {
    let second = |n: u64| {
        let is_stalled = n == 3;
        let latency = SecondLatency {
            count: 100,
            p50_us: 2.0,
            p99_us: 9.0,
            max_us: 50.0 + n as f64,
        };
        let level = |level, runs| Level {
            level,
            runs,
            tables: 2,
            bytes: 1 << 20,
        };
        Second {
            second: n,
            operations: if is_stalled { 0 } else { 1000 + n % 7 },
            latency: match is_stalled {
                true => BTreeMap::new(),
                false => BTreeMap::from([("put".into(), latency)]),
            },
            stall_s: Some(BTreeMap::from([(
                "level 0".into(),
                if is_stalled { 1.0 } else { 0.0 },
            )])),
            levels: n
                .is_multiple_of(2)
                .then(|| vec![level(0, 1 + n % 4), level(1, 1), level(200, 1)]),
            ..Second::default()
        }
    };
    (0..count).map(second).collect()
}

/// A run in which everything that the page draws is known.
fn full(engine: &str, count: u64) -> Record {
    let summary = LatencySummary {
        count: 100_000,
        mean_us: 3.0,
        min_us: 1.0,
        p50_us: 2.0,
        p90_us: 4.0,
        p99_us: 9.0,
        p999_us: 90.0,
        p9999_us: 900.0,
        max_us: 2_500.0,
        slow_s: 0.01,
        cdf: vec![(2.0, 0.5), (9.0, 0.99), (900.0, 0.9999), (2_500.0, 1.0)],
    };
    let mut record = Record {
        workload: "fillrandom".into(),
        engine: engine.into(),
        engine_version: "1.2.3".into(),
        promise: Some(Promise::Process),
        ops_per_s: Some(123_456.0),
        operations: 1_000_000,
        until_last_s: count as f64 - 0.5,
        p50_us: Some(2.0),
        max_us: Some(2_500.0),
        write_amplification: Some(3.25),
        rss_bytes: Some(64 << 20),
        cpu_s: Some(9.0),
        stall_s: Some(1.0),
        stall_s_by_cause: Some(BTreeMap::from([("level 0".into(), 1.0)])),
        latency: BTreeMap::from([("put".into(), summary.clone()), ("get".into(), summary)]),
        series: seconds(count),
        settings: json!({"workload": "fillrandom", "records": 1000, "threads": 1, "seed": 7}),
        engine_settings: BTreeMap::from([("cache".into(), "1 MiB".into())]),
        ..Record::default()
    };
    record.cpu.process_s = Some(9.0);
    record.cpu.foreground_s = Some(6.0);
    record.cpu.compaction_s = Some(3.0);
    record.bytes.log_bytes = Some(1 << 20);
    record.bytes.compaction_bytes = Some(2 << 20);
    record
}

/// Runs `check` on the page of these records, parsed by a strict parser.
fn parsed(records: &[Record], check: impl FnOnce(&Document<'_>)) {
    let text = page(records, "A title");
    let options = ParsingOptions {
        allow_dtd: true,
        ..ParsingOptions::default()
    };
    match Document::parse_with_options(&text, options) {
        Ok(document) => check(&document),
        Err(e) => panic!("the page is not well-formed: {e}"),
    }
}

fn text(node: Node<'_, '_>) -> String {
    let texts = node.descendants().filter(|inner| inner.is_text());
    texts.filter_map(|inner| inner.text()).collect()
}

/// The elements of this name and, unless it is empty, with this class.
fn elements<'a>(document: &'a Document<'_>, name: &str, class: &str) -> Vec<Node<'a, 'a>> {
    let has_class = |node: &Node<'_, '_>| {
        let classes = node.attribute("class").unwrap_or_default();
        class.is_empty() || classes.split(' ').any(|one| one == class)
    };
    let all = document.descendants();
    all.filter(|node| node.tag_name().name() == name && has_class(node))
        .collect()
}

/// The rows of the summary: engine and figures.
fn summary_rows(document: &Document<'_>) -> Vec<Vec<String>> {
    let table = elements(document, "table", "summary")[0];
    let rows = table
        .descendants()
        .filter(|node| node.tag_name().name() == "tr");
    let cells = |row: Node<'_, '_>| {
        let cells = row.children().filter(|cell| cell.is_element());
        cells.map(text).collect()
    };
    rows.map(cells).collect()
}

/// Texts with ordinary blanks.
fn plain(text: &str) -> String {
    text.replace('\u{a0}', " ")
}

#[test]
fn a_page_shows_all_engines_of_a_workload_side_by_side() {
    let records = [
        full("one", 20),
        full("two", 12),
        full("three", 20),
        full("one", 21),
    ];
    parsed(&records, |document| {
        assert_eq!(elements(document, "section", "").len(), 2);
        let rows = summary_rows(document);
        assert_eq!(rows.len(), 5);
        assert_eq!(rows[1], ["fillrandom"]);
        let names: Vec<&str> = rows[2..].iter().map(|row| &row[0][..]).collect();
        assert_eq!(names, ["one2 rounds", "two", "three"]);
        assert_eq!(plain(&rows[3][1]), "123 k/s");
        assert_eq!(plain(&rows[3][6]), "3.25 ×");

        let charts = elements(document, "figure", "chart");
        let titles: Vec<String> = charts
            .iter()
            .filter_map(|chart| chart.descendants().find(|n| n.tag_name().name() == "h3"))
            .map(text)
            .collect();
        assert_eq!(
            titles,
            [
                "Throughput by second",
                "Slowest call of each second",
                "Latency of get",
                "Latency of put",
                "Levels over time, one",
                "Levels over time, two",
                "Levels over time, three",
                "Sorted runs of level 0",
            ]
        );
        // A line an engine, each with its own pattern.
        for pattern in ["d0", "d1", "d2"] {
            let lines = elements(document, "path", pattern);
            let inside = |line: &&Node<'_, '_>| line.ancestors().any(|node| node == charts[0]);
            assert_eq!(lines.iter().filter(inside).count(), 2, "line and legend");
        }
    });
}

#[test]
fn every_chart_has_a_title_a_description_and_a_table() {
    parsed(&[full("one", 20), full("two", 20)], |document| {
        let ids: Vec<&str> = document
            .descendants()
            .filter_map(|n| n.attribute("id"))
            .collect();
        let mut distinct = ids.clone();
        distinct.sort_unstable();
        distinct.dedup();
        assert_eq!(distinct.len(), ids.len());
        for link in document.descendants().filter_map(|n| n.attribute("href")) {
            let id = link.strip_prefix('#');
            assert!(
                link == "data:," || id.is_some_and(|id| ids.contains(&id)),
                "{link}"
            );
        }
        for chart in elements(document, "figure", "") {
            let has = |name: &str| chart.descendants().any(|n| n.tag_name().name() == name);
            assert!(has("table") && has("details") && has("h3"));
        }
        let pictures = document
            .descendants()
            .filter(|n| n.attribute("role") == Some("img"));
        for picture in pictures {
            let labels = picture.attribute("aria-labelledby").unwrap();
            assert!(labels.split(' ').all(|label| ids.contains(&label)));
        }
    });
}

#[test]
fn nothing_is_loaded_from_elsewhere() {
    let text = page(&[full("one", 20)], "A title");
    let text = text.replace("http://www.w3.org/1999/xhtml", "");
    for forbidden in ["http:", "https:", "src=", "@import", "url("] {
        assert!(!text.contains(forbidden), "{forbidden}");
    }
}

#[test]
fn hostile_names_stay_text() {
    let hostile = "</style><script>alert('\"&\u{0}\u{ffff}')</script>]]>";
    let mut record = full(hostile, 20);
    record.workload = hostile.into();
    record.engine_version = hostile.into();
    record.stand_ins = vec![hostile.into()];
    record.command_line = vec![hostile.into()];
    record.machine.cpu = Some(hostile.into());
    record.build.commit = Some(hostile.into());
    record.date = hostile.into();
    record.settings =
        json!({hostile: hostile, "threads": hostile, "engine": {"own": {hostile: 1}}});
    record.engine_settings = BTreeMap::from([(hostile.into(), hostile.into())]);
    record.engine_counters = BTreeMap::from([(hostile.into(), u64::MAX)]);
    record.stall_s_by_cause = Some(BTreeMap::from([(hostile.into(), 1.0)]));
    let latency = record.latency.remove("put").unwrap();
    record.latency.insert(hostile.into(), latency);
    let mut other = record.clone();
    other.settings[hostile] = json!("other");
    parsed(&[record, other, full("one", 20)], |document| {
        assert_eq!(elements(document, "script", "").len(), 1);
        assert_eq!(elements(document, "style", "").len(), 1);
        let shown = "</style><script>alert('\"&\u{fffd}\u{fffd}')</script>]]>";
        assert!(
            summary_rows(document)
                .iter()
                .flatten()
                .any(|cell| cell.contains(shown))
        );
    });
    let text = page(&[], hostile);
    assert_eq!(text.matches("<script>").count(), 1);
}

#[test]
fn missing_figures_are_dashes() {
    let record = Record {
        workload: "readrandom".into(),
        engine: "one".into(),
        ..Record::default()
    };
    parsed(&[record], |document| {
        let rows = summary_rows(document);
        assert_eq!(rows[2][0], "one");
        assert_eq!(rows[2][1..], ["–"; 10]);
        assert!(elements(document, "figure", "chart").is_empty());
    });
}

#[test]
fn no_records_make_a_page_that_says_so() {
    parsed(&[], |document| {
        let body = elements(document, "body", "")[0];
        assert!(text(body).contains("There are no records"));
        assert!(elements(document, "section", "").is_empty());
    });
}

#[test]
fn a_stall_stays_visible_in_a_run_of_hours() {
    parsed(&[full("one", 10_000)], |document| {
        let line = |class| elements(document, "path", class)[..].to_vec();
        let chart = elements(document, "figure", "chart")[0];
        let inside = |line: &Node<'_, '_>| line.ancestors().any(|node| node == chart);
        let lines: Vec<Node<'_, '_>> = line("d0").into_iter().filter(inside).collect();
        assert_eq!(lines.len(), 2, "legend and mean");
        let spans: Vec<Node<'_, '_>> = line("thin").into_iter().filter(inside).collect();
        let outline = spans[0].attribute("d").unwrap();
        // The plot's lower edge is 1000.
        assert_eq!(outline.matches(" 1000").count(), 1);
        assert!(outline.len() < 40_000);
        let shades: Vec<Node<'_, '_>> = line("shade").into_iter().filter(inside).collect();
        assert_eq!(shades.len(), 1);
        let rows = chart
            .descendants()
            .filter(|row| row.attribute("data-at").is_some());
        let rows: Vec<String> = rows.map(|row| plain(&text(row))).collect();
        assert!(rows.len() <= throughput::ROWS);
        assert_eq!(rows[0], "0 to 42 s0 /s to 1.01 k/s, stalled 1.00 s");
    });
}

#[test]
fn a_weaker_promise_failures_and_stand_ins_are_said() {
    let mut weaker = full("two", 20);
    weaker.promise = Some(Promise::Memory);
    weaker.errors = 3;
    weaker.build.profile = Some("debug".into());
    weaker.stand_ins = vec!["A file stood in for the device.".into()];
    weaker.machine.cpu = Some("another".into());
    parsed(&[full("one", 20), weaker], |document| {
        let rows = summary_rows(document);
        assert!(!rows[2][1].contains("promise"));
        assert!(rows[3][1].contains("weaker promise: writes may be lost"));
        let notices: String = elements(document, "div", "notices")
            .into_iter()
            .map(text)
            .collect();
        for said in [
            "3 calls failed",
            "1 of 2 runs were made by a debug build",
            "2 machines",
            "two: A file stood in for the device.",
        ] {
            assert!(notices.contains(said), "{said} in {notices}");
        }
    });
}

#[test]
fn warnings_of_records_and_operations_that_never_began_are_said() {
    let mut records = [full("one", 20), full("one", 20), full("two", 20)];
    for (record, bytes) in records.iter_mut().zip([1_000, 2_500]) {
        record.warnings = vec![format!("The engine compacted {bytes} bytes.")];
    }
    records[2].warnings = vec!["The quantiles are lower bounds.".into()];
    records[2].open_loop = Some(OpenLoop {
        censored_operations: 4_321,
        ..OpenLoop::default()
    });
    parsed(&records, |document| {
        let notices = elements(document, "div", "notices");
        let notices: String = notices.into_iter().map(text).collect();
        for said in [
            "fillrandom on one, 2 of 2 rounds: The engine compacted 1000 to 2500 bytes.",
            "fillrandom on two: The quantiles are lower bounds.",
        ] {
            assert!(notices.contains(said), "{said} in {notices}");
        }
        let tables = elements(document, "table", "");
        let mut tables = tables.into_iter().map(text);
        let open_loop = tables.find(|table| table.contains("never begun")).unwrap();
        assert!(open_loop.contains("4,321"), "{open_loop}");
    });
}

#[test]
fn the_last_second_is_measured_by_its_part_and_the_calm_after_it_is_no_stall() {
    let mut record = full("one", 6);
    record.until_last_s = 4.5;
    assert_eq!(
        throughput::rates(&record),
        [1000.0, 1001.0, 1002.0, 0.0, 2008.0]
    );
    record.until_last_s = 4.05;
    assert_eq!(throughput::rates(&record).len(), 4);
    record.until_last_s = 0.0;
    assert_eq!(throughput::rates(&record).len(), 6);
    record.series.retain(|row| row.second != 1);
    assert_eq!(throughput::rates(&record)[..3], [1000.0, 0.0, 1002.0]);
}

#[test]
fn the_largest_and_strangest_numbers_can_be_drawn() {
    let mut record = full("one", 4);
    let strange = [f64::NAN, f64::INFINITY, -1.0, f64::MAX];
    for (row, number) in record.series.iter_mut().zip(strange) {
        row.second = u64::MAX;
        row.operations = u64::MAX;
        row.stall_s = Some(BTreeMap::from([("x".into(), number)]));
        for kind in row.latency.values_mut() {
            kind.max_us = number;
        }
    }
    for summary in record.latency.values_mut() {
        (summary.count, summary.min_us, summary.max_us) = (u64::MAX, f64::NAN, f64::INFINITY);
        summary.cdf = vec![(f64::NAN, f64::NAN), (-1.0, 7.0)];
    }
    record.cpu.process_s = Some(f64::INFINITY);
    record.cpu.flush_s = Some(f64::NAN);
    record.bytes.log_bytes = Some(u64::MAX);
    record.until_last_s = f64::NAN;
    (record.ops_per_s, record.p50_us) = (Some(f64::NAN), Some(-1.0));
    parsed(&[record.clone(), record], |document| {
        // The parts of an SVG picture that have numbers.
        let names = [
            "d", "x", "y", "x1", "y1", "x2", "y2", "cx", "cy", "r", "width", "height", "points",
        ];
        let drawn = |name| {
            let nodes = document.descendants();
            nodes.filter_map(move |node| node.attribute(name))
        };
        assert!(drawn("d").count() > 0, "no path is drawn");
        for number in names.into_iter().flat_map(drawn) {
            let is_number = !number.contains("NaN") && !number.contains("inf");
            assert!(is_number, "{number}");
        }
    });
}
