//! The page of a paper's comparison, from records that a test makes, and from those that are kept.

use std::collections::BTreeMap;
use std::path::Path;

use super::archive::{Archive, Line, Manifest, Planned};
use super::markdown::page;
use crate::experiment::Experiment;
use crate::record::{Amplification, Bytes, Record};

/// A record of a run with this throughput.
fn record(experiment: &Experiment, run: usize, bytes_per_s: f64) -> Record {
    Record {
        workload: "fillrandom".into(),
        engine: "siltstone".into(),
        bytes_per_s: Some(bytes_per_s),
        bytes_per_s_until_idle: Some(bytes_per_s),
        ops_per_s: Some(bytes_per_s / 1024.0),
        ops_per_s_until_idle: Some(bytes_per_s / 1024.0),
        host_cpu: Some(0.9),
        device_cpu: Some(0.5),
        until_idle_s: 1.0,
        amplification: Amplification {
            write_tables: Some(2.0),
            ..Amplification::default()
        },
        bytes: Bytes {
            user_written_bytes: 1000,
            ..Bytes::default()
        },
        engine_counters: BTreeMap::from([
            ("wire_sent_bytes".to_string(), 25_000_000),
            ("link_purpose_log_bytes".to_string(), 1500),
        ]),
        settings: serde_json::to_value(&experiment.runs[run].settings).unwrap(),
        stand_ins: vec!["The link is a string between two tins.".into()],
        ..Record::default()
    }
}

/// An archive of three rounds of an experiment, in which runs are as fast as `speed` says.
fn archive(name: &str, speed: impl Fn(&str) -> Option<f64>) -> Archive {
    let experiment = Experiment::named(name).unwrap();
    let mut lines = Vec::new();
    for round in 0..3 {
        for (index, run) in experiment.runs.iter().enumerate() {
            let line = Line {
                experiment: name.into(),
                run: run.label.clone(),
                round,
                ..Line::default()
            };
            // The machine is a little faster in each round.
            let noise = 1.0 + 0.01 * round as f64 + 0.003 * (index % 3) as f64;
            lines.push(match speed(&run.label) {
                Some(speed) => Line {
                    record: Some(Box::new(record(&experiment, index, speed * noise))),
                    ..line
                },
                None => Line {
                    error: Some("the disk is full | really".into()),
                    ..line
                },
            });
        }
    }
    Archive {
        manifest: Manifest {
            name: "prockstore".into(),
            is_quick: true,
            within_s: Some(600.0),
            took_s: 12.5,
            experiments: vec![Planned {
                name: name.into(),
                scale: 0.002,
                rounds: 3,
            }],
            ..Manifest::default()
        },
        lines,
    }
}

/// The line of the page that begins with this cell.
fn line<'a>(page: &'a str, first: &str) -> &'a str {
    let start = format!("| {first} |");
    let found = page.lines().find(|line| line.starts_with(&start));
    found.unwrap_or_else(|| panic!("no line `{start}` in\n{page}"))
}

#[test]
fn a_page_has_each_figure_with_its_verdict_and_what_stood_in() {
    let found = archive("prockstore-fig9", |label| {
        let speed = match label.split(' ').next().unwrap() {
            "near-data" => 40e6,
            "async-single" => 20e6,
            // As slow as in the paper, so a ratio that is missed has no excuse.
            "sync-split" => 0.5e6,
            "host-only" => 30e6,
            _ => return None,
        };
        Some(speed)
    });
    let text = page(&found).unwrap();
    let of = |first: &str| line(&text, first).to_string();
    assert!(of("throughput against TStore, 40 GB").contains("| met |"));
    assert!(of("throughput against PStore, 40 GB").contains("| met |"));
    let better = of("throughput against SocketRocksDB, 40 GB");
    assert!(better.contains("| met (better baseline) |"), "{better}");
    assert!(
        better.contains("1.45 MB/s") && better.contains("30."),
        "{better}"
    );
    let missed = of("write amplification by TStore, 40 GB");
    // The tables' write amplification is 2.0 in all runs, and the paper's TStore has 2.2.
    assert!(missed.contains("| met (better baseline) |"), "{missed}");
    assert!(of("host CPU use against SocketRocksDB, 10 GB").contains("not judged"));
    let value = of("table_write_amplification of near-data 10GB");
    assert!(
        value.contains("| 1.40x | 2.00x | missed | host 90%, device 50%, link up 20%"),
        "{value}"
    );
    assert!(text.contains("figures of the quick size"));
    assert!(
        text.contains("- 12: The link is a string between two tins.") || text.contains("- 48:")
    );
    assert!(text.contains("Bytes over the link by purpose"));
    assert!(line(&text, "near-data 10GB").contains("40."));
    // The plain engine failed in each round, and a bar in its error ends no cell.
    assert!(text.contains("4 runs were not carried out."), "{text}");
    assert!(text.contains("- failed: `plain 10GB`, round 1: the disk is full / really"));
    let against = of("prockstore-fig9: near-data 10GB");
    assert!(
        against.contains("host-only") && against.contains("faster"),
        "{against}"
    );
    assert!(text.contains("It is slower in 0 of 4 runs."));
    for (number, line) in text.lines().enumerate() {
        let is_row = line.starts_with('|') || line.starts_with("- ");
        assert!(
            is_row || line.chars().count() <= 100,
            "line {number}: {line}"
        );
    }
    assert_eq!(text, page(&found).unwrap());
}

#[test]
fn a_policy_that_is_slower_is_named_and_a_miss_says_what_was_used() {
    let found = archive("prockstore-fig9", |label| {
        Some(if label.starts_with("near-data") {
            0.3e6
        } else {
            0.9e6
        })
    });
    let text = page(&found).unwrap();
    assert!(text.contains("It is slower in 4 of 4 runs."));
    let missed = line(&text, "throughput against TStore, 40 GB");
    assert!(missed.contains("| missed |"), "{missed}");
    assert!(
        missed.contains("host 90%, device 50%, link up 20%; divided by: host 90%"),
        "{missed}"
    );
}

#[test]
fn targets_have_a_table_of_their_own_and_their_values_are_judged() {
    let found = archive("prockstore-target-link", |_| Some(1e6));
    let text = page(&found).unwrap();
    assert!(text.contains("## Targets of our own"));
    assert!(!text.contains("## The paper's figures beside ours"));
    // The records have no bytes of a link.
    let row = line(&text, "link_amplification of held, near-data");
    assert!(row.contains("| 2.40x | - | not run |"), "{row}");
}

#[test]
fn records_of_runs_that_do_not_exist_are_refused() {
    let mut found = archive("prockstore-target-local", |_| Some(1e6));
    found.lines[0].run = "another".into();
    let error = page(&found).unwrap_err();
    assert!(error.contains("there is no run `another`"), "{error}");
    found.manifest.experiments[0].name = "prockstore-fig99".into();
    assert!(page(&found).unwrap_err().contains("prockstore-fig99"));
}

#[test]
fn the_page_of_the_documentation_is_that_of_its_records() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/papers");
    let (file, page_file) = (
        docs.join("prockstore.jsonl.zst"),
        docs.join("prockstore.md"),
    );
    assert_eq!(
        file.exists(),
        page_file.exists(),
        "the records and the page belong together"
    );
    if !file.exists() {
        return;
    }
    let archive = Archive::read(&file).unwrap();
    for line in &archive.lines {
        let build = line.record.as_ref().map(|record| &record.build);
        let is_modified = build.and_then(|build| build.is_modified);
        assert_ne!(
            is_modified,
            Some(true),
            "{}: figures of changes that nobody can look up",
            line.run
        );
    }
    let found = page(&archive).unwrap();
    if found != std::fs::read_to_string(&page_file).unwrap() {
        let copy = std::env::temp_dir().join("siltstone-prockstore.md");
        std::fs::write(&copy, &found).unwrap();
        panic!(
            "{} is not the page of its records; copy {} there",
            page_file.display(),
            copy.display()
        );
    }
}

/// A mechanism that the engine can switch off is in the ablation.
#[test]
fn the_ablation_has_every_switch_that_the_engine_knows() {
    let setting = siltstone::setting("schedule").unwrap();
    let experiment = Experiment::named("prockstore-ablation").unwrap();
    let is_off = |name: &str| {
        let label = format!("near-data, {name}=off");
        experiment.runs.iter().any(|run| run.label == label)
    };
    // The text lists them: `each first-score, second-score or third (=on or =off)`.
    let text: String = setting
        .range()
        .split_whitespace()
        .collect::<Vec<_>>()
        .join(" ");
    let (_, rest) = text.split_once("each ").unwrap();
    let (list, _) = rest.split_once(" (=on or =off)").unwrap();
    let list = list.replace(" or ", ", ");
    let switches: Vec<&str> = list.split(", ").map(str::trim).collect();
    assert!(switches.len() >= 5, "{text}");
    // Whether the host takes what a side failed with is no mechanism: it is for trials of failures.
    for name in switches.into_iter().filter(|name| *name != "fallback") {
        assert!(is_off(name), "{name} is no run of the ablation");
    }
}

#[test]
fn a_paper_has_all_its_experiments_in_order() {
    let found = super::find("prockstore").unwrap();
    let names: Vec<&str> = found.iter().map(|e| e.name.as_str()).collect();
    let first = ["prockstore-fig9", "prockstore-fig10", "prockstore-fig11"];
    assert_eq!(names[..3], first);
    assert!(names.contains(&"prockstore-ablation"));
    assert!(names.contains(&"prockstore-target-tail"));
    assert_eq!(super::find("prockstore-fig9").unwrap().len(), 1);
    let error = super::find("prockstor").unwrap_err().to_string();
    assert!(error.contains("prockstor"), "{error}");
}
