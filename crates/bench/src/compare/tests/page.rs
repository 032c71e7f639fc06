use std::collections::BTreeMap;

use super::results::{done, manifest};
use super::small;
use crate::compare::{Conditions, Outcome, Plan, Process, Results, Verdict, page};
use crate::measure::Second;
use crate::measure::files::{Part, Sizes};
use crate::record::{Bytes, Disk, Record};
use crate::settings::Promise;

/// A record in which every figure follows from the engine and the round.
fn record(results: &Results, process: Process) -> Record {
    let plan = &results.plan;
    let row = &plan.rows[process.row];
    let engine = &plan.engines[process.engine];
    let speed = match (engine.name.as_str(), row.name.as_str()) {
        ("siltstone", "seekrandom-100") => 0.8,
        ("siltstone", _) | ("rocksdb-mmap", "seekrandom-10") => 3.0,
        _ => 1.0,
    };
    let rate = 100_000.0 * speed * (1.0 + 0.01 * f64::from(process.round));
    let part = |bytes| Part {
        files: 1,
        bytes,
        allocated_bytes: bytes,
    };
    let seconds = (0..10).map(|second| Second {
        second,
        operations: 1000 - 50 * second,
        written_bytes: 144_000,
        log_bytes: Some(150_000),
        flush_bytes: Some(140_000),
        compaction_bytes: Some(10_000 * second),
        cpu_s: Some(0.5),
        ..Second::default()
    });
    let is_warned = engine.name == "rocksdb"
        && (row.name == "seekrandom-10" || (row.name == "seekrandom-100" && process.round == 2));
    let warning = || {
        let bytes = 1000 * process.round;
        format!("The engine compacted {bytes} bytes while the workload only read.")
    };
    Record {
        workload: row.settings.workload.to_string(),
        engine: engine.driver.clone(),
        engine_version: "1.2.3".into(),
        promise: Some(match engine.name.as_str() {
            "rocksdb" if row.name == "fillrandom" => Promise::Memory,
            _ => Promise::Process,
        }),
        ops_per_s: Some(rate * 1.1),
        ops_per_s_until_idle: Some(rate),
        p50_us: Some(3.0 / speed),
        p99_us: Some(9.0 / speed),
        p999_us: Some(40.0),
        max_us: Some(12_345.6),
        slow_s: Some(0.25),
        write_amplification: row.settings.workload.writes().then_some(4.567),
        space_amplification: Some(1.25),
        cpu_s: Some(12.0),
        rss_bytes: Some(140_000_000),
        operations: 1_000_000,
        warnings: is_warned.then(warning).into_iter().collect(),
        bytes: Bytes::default(),
        disk: Disk {
            files_closed: Sizes {
                tables: part(800_000_000),
                log: part(64_000_000),
                other: Part::default(),
            },
            records: Some(6_321),
            live_bytes: Some(910_224),
            ..Disk::default()
        },
        series: seconds.collect(),
        engine_settings: BTreeMap::from([
            ("cache".into(), "64 MiB".into()),
            ("a|b".into(), "`c`".into()),
        ]),
        date: format!("2026-11-24T0{}:00:00Z", process.round),
        ..Record::default()
    }
}

fn without(verdict: Verdict) -> Outcome {
    Outcome {
        verdict,
        took_s: 0.0,
        conditions: Conditions::default(),
    }
}

/// Results with wins, losses, a failure, an engine that is left out, and rows that have not run.
fn results(folder: &std::path::Path) -> Results {
    let mut results = Results::open(&folder.join("results"), manifest(&small())).unwrap();
    for process in results.plan.processes() {
        let id = results.plan.id(process);
        let outcome = match id.as_str() {
            "128.overwrite.rocksdb.2" => without(Verdict::Failed(
                "rocksdb: put: the `disk` is on fire".into(),
            )),
            "128.fillseq.rocksdb.1" => {
                without(Verdict::Skipped("this build has no rocksdb".into()))
            }
            _ if id.starts_with("128.readwhilewriting") => continue,
            _ => {
                let mut outcome = done(record(&results, process));
                if id == "128.fillrandom.siltstone.2" {
                    outcome.conditions.probe_before_gb_per_s = Some(13.0);
                }
                outcome
            }
        };
        results.save(process, outcome).unwrap();
    }
    results
}

#[test]
fn a_page_is_the_same_for_the_same_results() {
    let folder = tempfile::tempdir().unwrap();
    let found = page(&[results(folder.path())]);
    let expected = include_str!("page.md");
    if found != expected {
        let path = std::env::temp_dir().join("siltstone-compare-page.md");
        std::fs::write(&path, &found).unwrap();
        panic!(
            "the page is another one; if it is right, copy {} to {}/src/compare/tests/page.md",
            path.display(),
            env!("CARGO_MANIFEST_DIR")
        );
    }
    let again = Results::read(&folder.path().join("results")).unwrap();
    assert_eq!(page(&[again]), expected);
}

#[test]
fn a_row_with_further_figures_has_a_line_for_each_and_each_is_judged() {
    let text = super::SMALL.replace(
        "metric = \"p99_us\"",
        "metric = \"p99_us\"\npairs = 3\nalso = [\"max_us\", \"compaction_bytes_per_cpu_s\"]",
    );
    let plan = Plan::parse("plans/small.toml", &text).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let mut results = Results::open(&folder.path().join("results"), manifest(&plan)).unwrap();
    let row = super::row(&plan, "readwhilewriting");
    for process in plan.processes().into_iter().filter(|p| p.row == row) {
        let mut record = record(&results, process);
        record.promise = Some(Promise::Process);
        let round = f64::from(process.round);
        let (max_us, bytes) = match process.engine {
            0 => (1000.0 + round, 24_000_000),
            _ => (
                2000.0 + round * round,
                48_000_000 + u64::from(process.round),
            ),
        };
        record.max_us = Some(max_us);
        record.bytes.compaction_read_bytes = Some(bytes);
        results.save(process, done(record)).unwrap();
    }
    let page = page(&[results]);
    for line in [
        "| readwhilewriting, p99_us, memory 64MiB, us |",
        "| readwhilewriting, max_us, memory 64MiB, us | 1,002 (1,001 to 1,003) | 2,004 (",
        "| readwhilewriting, input of compactions, memory 64MiB, MB per CPU-second | 2.00 (",
        "| readwhilewriting max_us | wins 2.00 (",
        "| readwhilewriting compaction_bytes_per_cpu_s | loses 0.50 (",
    ] {
        assert!(page.contains(line), "{line}: {page}");
    }
    assert!(page.contains("wins 2 of 3 comparisons, loses 1"), "{page}");
    assert_eq!(page.matches("wins 2.00").count(), 1, "{page}");
}

#[test]
fn losses_are_printed_like_wins() {
    let folder = tempfile::tempdir().unwrap();
    let page = page(&[results(folder.path())]);
    let line = |name: &str| {
        let mut lines = page.lines().skip_while(|line| !line.starts_with("Ratios"));
        lines
            .find(|line| line.starts_with(&format!("| {name} ")))
            .unwrap()
    };
    for (row, cell) in [
        ("seekrandom-10", "| wins 3.00 ("),
        ("seekrandom-10", "| undecided 1.00 ("),
        ("seekrandom-100", "| loses 0.80 ("),
        ("fillrandom", "| 3.00 (3.00 to 3.00), another promise |"),
        ("overwrite", "| 3.00, one round |"),
    ] {
        assert!(line(row).contains(cell), "{cell}: {}", line(row));
    }
}

#[test]
fn nothing_is_hidden() {
    let folder = tempfile::tempdir().unwrap();
    let page = page(&[results(folder.path())]).replace('\n', " ");
    for text in [
        "failed (note",
        "``rocksdb: put: the `disk` is on fire``",
        "left out (note",
        "this build has no rocksdb",
        "1 of 2 rounds",
        "rocksdb has another promise than siltstone",
        "rocksdb (seekrandom-10, 2 of 2 rounds; seekrandom-100, 1 of 2 rounds): The engine \
         compacted 1000 to 2000 bytes",
        "fillrandom (1 of 3 rounds, 10.0 to 13.0 GB/s)",
        "The store then has 6,321 records, which are 0.91 MB",
        "is that of up to 1,024 entries",
        "deletes and compactions count until the engine is idle",
        "What is not listed is the engine's default",
        "is not complete",
        "those of the plan `small`, not of the standard comparison",
        "a\\|b",
    ] {
        assert!(page.contains(text), "{text}");
    }
}

#[test]
fn a_figure_whose_record_warns_has_a_note() {
    let folder = tempfile::tempdir().unwrap();
    let page = page(&[results(folder.path())]);
    let line = |name: &str| page.lines().find(|line| line.starts_with(name)).unwrap();
    for row in ["| seekrandom-10, ", "| seekrandom-100, "] {
        let cells: Vec<&str> = line(row).split(" | ").collect();
        assert_eq!(cells[2], "112 (111 to 112) (note 2)");
        assert!(!cells[1].contains("note") && !cells[3].contains("note"));
    }
    assert!(line("Note 2: ").contains("rocksdb (seekrandom-10"));
}

/// With many rows and rounds, a list of all rounds would be longer than the tables.
#[test]
fn rounds_in_which_the_machine_changed_are_counted_by_row() {
    let folder = tempfile::tempdir().unwrap();
    let mut results = results(folder.path());
    for process in results.plan.processes() {
        let Some(mut outcome) = results.get(process).cloned() else {
            continue;
        };
        if process.round > 1 {
            let round = f64::from(process.round);
            outcome.conditions.probe_before_gb_per_s = Some(10.0);
            outcome.conditions.probe_after_gb_per_s = Some(10.0 * round);
            outcome.conditions.stolen = Some(0.02 * round);
            // Each process lasts 1.5 seconds, so that two follow each other after an hour.
            let engine = process.engine as f64;
            outcome.conditions.ended_unix_s = Some(engine * 3601.5);
            results.save(process, outcome).unwrap();
        }
    }
    let page = page(&[results]).replace('\n', " ");
    for (sentence, rows) in [
        (
            "each with its widest range",
            "fillrandom (2 of 3 rounds, 10.0 to 30.0 GB/s), seekrandom-10 (1 of 2 rounds, 10.0 to \
             20.0 GB/s), ",
        ),
        (
            "Other machines took more than 2% of the processors from a process in these rows",
            "fillrandom (2 of 3 rounds, up to 6.00%), seekrandom-10 (1 of 2 rounds, up to 4.00%), ",
        ),
        (
            "More than half an hour lies between two processes of one round in these rows",
            "fillrandom (2 of 3 rounds, up to 60.0 minutes), ",
        ),
    ] {
        let expected = format!("{sentence}: {rows}");
        assert!(page.contains(&expected), "{expected}");
    }
}

#[test]
fn no_results_make_a_page_too() {
    let folder = tempfile::tempdir().unwrap();
    let results = Results::open(&folder.path().join("results"), manifest(&small())).unwrap();
    let page = page(&[results]);
    assert!(page.contains("nothing has run"), "{page}");
    assert!(page.contains("is not complete"), "{page}");
}
