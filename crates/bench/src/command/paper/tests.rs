//! Tests of the page of a paper's comparison, with records that a test makes and with those in the
//! sources.

use std::collections::BTreeMap;
use std::path::Path;

use super::archive::{Archive, Line, Manifest, Planned};
use super::markdown::page;
use super::verdict::Verdict;
use crate::experiment::{Experiment, Metric};
use crate::record::{Amplification, Bytes, Record};
use crate::settings::Workload;

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
            write_tables: Some(6.0),
            write_tables_by_host: Some(2.0),
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
    archive_of(name, 3, |label, _| speed(label))
}

/// An archive in which runs are as fast as `speed` says of each round.
fn archive_of(name: &str, rounds: u32, speed: impl Fn(&str, usize) -> Option<f64>) -> Archive {
    let experiment = Experiment::named(name).unwrap();
    let mut lines = Vec::new();
    for round in 0..rounds as usize {
        for (index, run) in experiment.runs.iter().enumerate() {
            let line = Line {
                experiment: name.into(),
                run: run.label.clone(),
                round,
                ..Line::default()
            };
            // The machine is a little faster in each round.
            let noise = 1.0 + 0.01 * round as f64 + 0.003 * (index % 3) as f64;
            lines.push(match speed(&run.label, round) {
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
                rounds,
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
            // It is as slow as in the paper, so a better baseline does not explain a missed ratio.
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
    let level = of("write amplification by TStore, 40 GB");
    // The host's write amplification is 2.0 in all runs. The paper's TStore has 2.2, so our
    // baseline is better, but our run is not better than that baseline.
    assert!(
        level.contains("| undecided | the paper's baseline has 2.20x, ours 2.00x;"),
        "{level}"
    );
    assert!(of("host CPU use against SocketRocksDB, 10 GB").contains("not judged"));
    let value = of("host_write_amplification of near-data 10GB");
    assert!(
        value.contains(
            "| 1.40x | 2.00x (2.00x to 2.00x) | missed | host 90%, device 50%, link up 20%"
        ),
        "{value}"
    );
    assert!(text.contains("figures of the quick size"));
    assert!(
        text.contains("- 12: The link is a string between two tins.") || text.contains("- 48:")
    );
    assert!(text.contains("Bytes over the link by purpose"));
    assert!(line(&text, "near-data 10GB").contains("40."));
    // The plain engine failed in each round, and a vertical bar in its error does not end a cell.
    assert!(text.contains("4 runs were not carried out."), "{text}");
    assert!(text.contains("- failed: `plain 10GB`, round 1: the disk is full / really"));
    let against = of("prockstore-fig9: near-data 10GB");
    assert!(
        against.contains("host-only") && against.contains("faster"),
        "{against}"
    );
    assert!(text.contains("It is slower in 0 of 4 runs."));
    for words in [
        "- *undecided*: ",
        "- *not judged*: ",
        "- *met (better baseline)*: ",
        "`spare-host`",
        "the last unsynced writes may",
    ] {
        assert!(text.contains(words), "{words}");
    }
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

/// The row of the target that the policy is never slower, and the first row of its table.
fn never_slower(found: &Archive) -> (String, String) {
    let text = page(found).unwrap();
    let never = line(
        &text,
        "`near-data` is never slower than the best other policy",
    );
    let first = line(&text, "prockstore-fig9: near-data 10GB");
    (never.to_string(), first.to_string())
}

/// The speed of the policy divided by that of the others, in each of three rounds. The others are
/// all equally fast.
fn by_rounds(factors: [f64; 3]) -> Archive {
    archive_of("prockstore-fig9", 3, |label, round| {
        Some(match label.starts_with("near-data") {
            true => 1e6 * factors[round],
            false => 1e6,
        })
    })
}

#[test]
fn the_policy_is_never_slower_if_all_runs_are_faster_or_level() {
    let everybody = "| near-data, async-single, sync-split, host-only |";
    for factors in [[1.5, 1.5, 1.5], [1.0, 1.01, 0.99]] {
        let (never, first) = never_slower(&by_rounds(factors));
        assert!(never.contains("| met |"), "{never}");
        assert!(first.contains(everybody), "{first}");
    }
    let (never, first) = never_slower(&by_rounds([1.0, 1.01, 0.99]));
    assert!(
        never.contains("| in none of 4 runs | level 4 | met |"),
        "{never}"
    );
    assert!(first.ends_with("| level |"), "{first}");
}

#[test]
fn the_policy_is_slower_if_a_whole_interval_says_so() {
    let found = archive("prockstore-fig9", |label| {
        Some(match label {
            "near-data 40GB" => 0.9e6,
            label if label.starts_with("near-data") => 1.1e6,
            _ => 1e6,
        })
    });
    let (never, _) = never_slower(&found);
    assert!(
        never.contains(
            "| faster 3, slower 1 | missed | slower in prockstore-fig9: near-data 40GB |"
        ),
        "{never}"
    );
}

#[test]
fn whether_the_policy_is_slower_is_undecided_without_all_runs_and_narrow_intervals() {
    let (never, first) = never_slower(&by_rounds([0.9, 1.3, 1.0]));
    assert!(never.contains("| undecided 4 | undecided |"), "{never}");
    assert!(first.ends_with("| undecided |"), "{first}");

    let one = archive_of("prockstore-fig9", 1, |label, _| {
        Some(match label.starts_with("near-data") {
            true => 9e6,
            false => 1e6,
        })
    });
    let (never, first) = never_slower(&one);
    assert!(never.contains("| one round 4 | undecided |"), "{never}");
    assert!(first.ends_with("| one round |"), "{first}");

    // A run of the policy itself, or of another policy, failed once.
    for (failed, said) in [
        (
            "near-data 10GB",
            "near-data (failed in round 2), async-single,",
        ),
        (
            "sync-split 10GB",
            "sync-split (failed in round 2), host-only |",
        ),
    ] {
        let found = archive_of("prockstore-fig9", 3, |label, round| {
            let fails = (label, round) == (failed, 1);
            (!fails).then_some(match label.starts_with("near-data") {
                true => 9e6,
                false => 1e6,
            })
        });
        let (never, first) = never_slower(&found);
        let counts = "| faster 4, incomplete 1 | undecided |";
        assert!(never.contains(counts), "{never}");
        assert!(
            never.contains("undecided in prockstore-fig9: near-data 10GB |"),
            "{never}"
        );
        assert!(first.contains(said), "{first}");
        assert!(first.ends_with("| faster, incomplete |"), "{first}");
    }

    // If an earlier run on the same store failed, the round of this run has no error of its own.
    let mut found = by_rounds([1.5; 3]);
    found
        .lines
        .retain(|line| (&line.run[..], line.round) != ("host-only 10GB", 2));
    let (never, first) = never_slower(&found);
    assert!(
        never.contains("| faster 4, incomplete 1 | undecided |"),
        "{never}"
    );
    assert!(first.contains("host-only (missing in round 3)"), "{first}");

    // If several runs of one experiment lack a policy, one line names them all.
    found
        .lines
        .retain(|line| (&line.run[..], line.round) != ("host-only 40GB", 2));
    let (never, _) = never_slower(&found);
    let names = "undecided in prockstore-fig9: near-data 10GB, near-data 40GB |";
    assert!(never.contains(names), "{never}");

    // If the time runs out, rounds are missing for all policies, and not for one of them.
    let mut found = by_rounds([1.5; 3]);
    found.lines.retain(|line| line.round < 2);
    let (never, _) = never_slower(&found);
    assert!(never.contains("| faster 4 | met |"), "{never}");

    // A group that was never begun.
    let mut found = by_rounds([1.5; 3]);
    found.lines.retain(|line| !line.run.ends_with("10GB"));
    let (never, first) = never_slower(&found);
    let counts = "| faster 3, no ratio 1, incomplete 1 | undecided |";
    assert!(never.contains(counts), "{never}");
    assert!(
        first.contains("near-data (not carried out), async-single (not"),
        "{first}"
    );
    found.lines.clear();
    let (never, _) = never_slower(&found);
    assert!(
        never.contains("| no ratio 4, incomplete 4 | not run |"),
        "{never}"
    );
}

/// Policies differ in nothing but their schedule, and each figure has all of them.
#[test]
fn all_policies_have_the_same_settings() {
    for name in ["fig9", "fig10", "fig11", "fig12", "fig13"] {
        let experiment = Experiment::named(&format!("prockstore-{name}")).unwrap();
        let runs = experiment.runs.iter();
        let own = runs.filter(|run| {
            let schedule = run.settings.engine.own.get("schedule");
            schedule.is_some_and(|schedule| schedule == "near-data")
        });
        let own = own.count();
        let found = archive(&experiment.name, |_| Some(1e6));
        let text = page(&found).unwrap();
        let everybody = "| near-data, async-single, sync-split, host-only |";
        assert_eq!(text.matches(everybody).count(), own, "{name}");
    }
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
fn a_ratio_of_ycsb_may_count_until_idle() {
    let text = EXPERIMENT.replace("{metric}", "ops_per_s_until_idle");
    let experiment = Experiment::parse("mine.toml", &text).unwrap();
    let metric = Metric::OpsPerSUntilIdle;
    let workloads = [Workload::YcsbA, Workload::YcsbC, Workload::YcsbE];
    for (run, workload) in experiment.runs[1..].iter().zip(workloads) {
        assert_eq!(run.settings.workload, workload);
    }
    let ratio = &experiment.ratios[0];
    assert_eq!((ratio.metric, ratio.operation), (metric, None));
    let rounds = |figure: f64| vec![Some(serde_json::json!({ "ops_per_s_until_idle": figure })); 3];
    let (of, to) = (rounds(3e4), rounds(1e4));
    let compared = super::compare::ratio(ratio, &of, &to);
    assert_eq!(
        super::verdict::of_ratio(ratio, &compared, &to, None),
        Verdict::Met
    );
    assert_eq!(compared.ratio_text(), "3.00x (3.00 to 3.00)");
}

/// Three workloads of YCSB on one store.
const EXPERIMENT: &str = r#"
title = "A small one"
compares = "Mixes."
[paper]
system = "ProckStore"
title = "A paper"
venue = "A journal"
figure = "Fig. 1"
[hardware]
paper = "A large machine."
here = "This machine."
[settings]
records = 2000
[[run]]
label = "load"
workload = "ycsb-load"
without_values = "it fills the store"
[[run]]
label = "{workload}"
workload = ["ycsb-a", "ycsb-c", "ycsb-e"]
store = "load"
[[ratio]]
of = "ycsb-a"
to = "ycsb-c"
metric = "{metric}"
paper = 2.9
system = "ProckStore"
source = "Fig. 1"
[[ratio]]
of = "ycsb-e"
to = "ycsb-c"
metric = "{metric}"
paper = 2.9
system = "ProckStore"
source = "Fig. 1"
"#;

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
    let archive = Archive::read(&file).unwrap();
    assert!(!archive.manifest.is_quick, "a quick look is no comparison");
    assert!(!archive.lines.is_empty());
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
    // The switch `fallback` is no mechanism of the engine. It is for trials of failures.
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
