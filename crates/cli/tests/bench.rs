//! `silt bench`: every workload in small, the store that it leaves, its page, mistakes and signals.

mod common;
#[path = "common/page.rs"]
mod page;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::{Ended, SILT, on, silt};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use siltstone_bench::settings::Workload;

/// Options that make a workload small.
const SMALL: [&str; 10] = [
    "--records",
    "2000",
    "--value-bytes",
    "100",
    "--memtable-bytes",
    "1MiB",
    "--cache-bytes",
    "1MiB",
    "--batch",
    "16",
];

/// Runs workloads in small, in this folder.
fn bench(folder: &Path, workloads: &str, more: &[&str]) -> Ended {
    let folder = folder.to_str().unwrap();
    let args = ["bench", workloads, "--folder", folder];
    silt(args.iter().chain(&SMALL).chain(more))
}

fn records(text: &str) -> Vec<Value> {
    let objects = text.lines().map(|line| serde_json::from_str(line).unwrap());
    objects.collect()
}

/// Every record has these keys, and a number where the engine has a figure.
fn has_required_keys(record: &Value) {
    let workload = record["workload"].as_str().unwrap();
    for key in [
        "ops_per_s",
        "p50_us",
        "p99_us",
        "p999_us",
        "max_us",
        "space_amplification",
        "cpu_s",
        "rss_bytes",
        "stall_s",
    ] {
        let figure = record
            .get(key)
            .unwrap_or_else(|| panic!("{workload} has no {key}"));
        // While a store is opened, there is none to ask for its stalls.
        let is_unknown = workload == "open" && key == "stall_s";
        assert_eq!(
            figure.is_number(),
            !is_unknown,
            "{workload} {key}: {figure}"
        );
    }
    let writes = !record["bytes"]["user_written_bytes"].is_null()
        && record["bytes"]["user_written_bytes"] != 0
        && workload != "ingest";
    let amplification = &record["write_amplification"];
    assert_eq!(
        amplification.is_number(),
        writes,
        "{workload}: {amplification}"
    );
    assert_eq!(record["engine"], "siltstone");
    assert_eq!(
        (&record["errors"], &record["verification_failures"]),
        (&0.into(), &0.into())
    );
}

#[test]
fn every_workload_runs_in_small_and_its_store_is_sound() {
    let mut seen = BTreeSet::new();
    for workloads in [
        "fillseq,readseq,readreverse,readrandom,readmissing,seekrandom,multireadrandom,\
         readwhilewriting,seekrandomwhilewriting,readrandomwriterandom,overwrite,mixgraph,peaks,\
         open,compact,deleterandom,readrandom",
        "fillrandom,fillsync,fillbatch,readseq",
        "ingest,readrandom",
        "queue",
        "ycsb-load,ycsb-a,ycsb-b,ycsb-c,ycsb-d,ycsb-e,ycsb-f",
    ] {
        let dir = tempfile::tempdir().unwrap();
        let out = bench(dir.path(), workloads, &["--for", "1500", "--json"]).fine();
        let records = records(&out);
        let names: Vec<&str> = records
            .iter()
            .map(|r| r["workload"].as_str().unwrap())
            .collect();
        assert_eq!(names.join(","), workloads);
        records.iter().for_each(has_required_keys);
        seen.extend(names.iter().map(|name| name.to_string()));
        let checked = on("check", &dir.path().join("siltstone"), &[]).fine();
        assert!(checked.contains("sound"), "{checked}");
    }
    let all: BTreeSet<String> = Workload::NAMES.iter().map(|n| n.to_string()).collect();
    assert_eq!(seen, all);
}

#[test]
fn a_store_is_kept_and_read_again_with_its_own_sizes() {
    let dir = tempfile::tempdir().unwrap();
    let said = bench(dir.path(), "fillseq", &[]).fine();
    let store = dir.path().join("siltstone");
    assert!(
        said.contains(&format!("silt check {}", store.display())),
        "{said}"
    );
    assert!(said.contains("is kept"), "{said}");
    // Records and sizes are those of the fill.
    let folder = dir.path().to_str().unwrap();
    let out = silt(["bench", "readseq", "--folder", folder, "--json"]).fine();
    let record = &records(&out)[0];
    assert_eq!(record["operations"], 2000);
    assert_eq!(record["settings"]["value_bytes"], "100");
    let differs = silt(["bench", "readseq", "--folder", folder, "--value-bytes", "7"]).failed(3);
    assert!(
        differs.contains("filled with value_bytes = 100, and this run has 7"),
        "{differs}"
    );
}

#[test]
fn a_temporary_folder_is_removed_unless_it_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    let run = |more: &[&str]| {
        let mut command = Command::new(SILT);
        command
            .args(["bench", "readmissing", "--for", "100"])
            .args(SMALL)
            .args(more);
        let ended: Ended = command.env("TMPDIR", dir.path()).output().unwrap().into();
        ended
    };
    let left = || fs::read_dir(dir.path()).unwrap().count();
    let said = run(&[]).fine();
    assert!(
        said.contains("the store was filled with fillrandom first"),
        "{said}"
    );
    assert_eq!(left(), 0);
    let said = run(&["--keep"]).fine();
    assert_eq!(left(), 1);
    let store = said
        .lines()
        .find_map(|line| line.trim().strip_prefix("verify it   silt check "));
    on("check", Path::new(store.unwrap()), &[]).fine();
    // Standard output has the record only.
    let said = run(&["--keep", "--json"]);
    assert_eq!(records(&said.out).len(), 1);
    assert!(
        said.err.starts_with("the store is kept in "),
        "{}",
        said.err
    );
}

#[test]
fn a_page_shows_all_workloads_and_refers_to_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("page.html");
    let html = ["--html", file.to_str().unwrap(), "--for", "1500"];
    bench(dir.path(), "fillrandom,readrandom", &html).fine();
    let page = page::read(&fs::read_to_string(&file).unwrap());
    assert!(page.count("svg") >= 2);
    for name in ["fillrandom", "readrandom", "siltstone"] {
        assert!(page.text.contains(name), "{name}");
    }
    let missing = dir.path().join("no/page.html");
    let args = ["bench", "fillseq", "--html", missing.to_str().unwrap()];
    assert!(silt(args).failed(3).contains("its folder does not exist"));
}

#[test]
fn help_has_a_line_for_each_workload_and_fits_on_a_terminal() {
    let mut command = Command::new(SILT);
    command.args(["bench", "--help"]).env("COLUMNS", "100");
    let ended: Ended = command.output().unwrap().into();
    let help = ended.fine();
    let flat = help.split_whitespace().collect::<Vec<_>>().join(" ");
    for workload in Workload::ALL {
        let start = format!("  {:<24}", workload.name());
        let line = help.lines().find(|line| line.starts_with(&start));
        let line = line.unwrap_or_else(|| panic!("{workload} is not in the help: {help}"));
        assert!((30..=80).contains(&line.len()), "{line}");
    }
    for words in [
        "silt bench peaks",
        "silt bench mixgraph",
        "silt bench queue",
        "--write-rate 20K",
        "[default: 16; 48 for mixgraph]",
        "[default: 128; 1KiB for ycsb-* and peaks; pareto:1KiB for mixgraph]",
    ] {
        assert!(flat.contains(words), "{words}: {help}");
    }
    let is_short = |line: &str| line.chars().count() <= 100;
    assert!(help.lines().all(is_short), "{help}");
}

#[test]
fn mistakes_are_answered_with_what_was_meant() {
    for (args, expected) in [
        (&["fillrandm"][..], "did you mean `fillrandom`?"),
        (&["fillseq", "--vaule-bytes", "7"], "--value-bytes"),
        (
            &["fillseq", "--value-bytes", "7q"],
            "expected a size such as 128",
        ),
        (
            &["fillseq", "--engine", "siltsone"],
            "did you mean `siltstone`?",
        ),
        (
            &["fillseq", "--for", "3s"],
            "`--for 3s`: `fillseq` ends when its work is done",
        ),
        (&["fillseq", "--own", "subjobs_mox=2"], "subjobs_max"),
        (
            &["fillseq,ycsb-a"],
            "give: silt bench fillseq,ycsb-load,ycsb-a",
        ),
        (&["fillseq", "--keep", "--folder", "x"], "--folder"),
        (&["papr", "hpdk-fig5"], "did you mean `paper`?"),
        (&["paper", "hpdk-fig55"], "did you mean `hpdk-fig5`?"),
        (
            &["paper", "hpdk-fig5", "--scale", "7"],
            "above 0 and at most 1",
        ),
    ] {
        let error = silt(["bench"].iter().chain(args)).failed(2);
        assert!(error.contains(expected), "{args:?}: {error}");
    }
    let dir = tempfile::tempdir().unwrap();
    let empty = bench(dir.path(), "readseq", &[]).failed(3);
    assert!(empty.contains("has none; give: silt bench fillrandom,readseq --records=2000"));
}

/// A fill that takes longer than any test.
fn long_fill(folder: &Path, more: &[&str]) -> Child {
    Command::new(SILT)
        .args([
            "bench",
            "fillrandom",
            "--for",
            "5min",
            "--folder",
            folder.to_str().unwrap(),
        ])
        .args(SMALL)
        .args(more)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Waits until the store has a table, so that the workload is running.
fn wait_for_table(folder: &Path) {
    let start = Instant::now();
    let store = folder.join("siltstone");
    while !store.exists() || common::files(&store, ".tbl").is_empty() {
        assert!(start.elapsed() < Duration::from_secs(60));
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_signal_ends_a_run_and_closes_its_store() {
    for (signal, name, code) in [(Signal::INT, "SIGINT", 130), (Signal::TERM, "SIGTERM", 143)] {
        let dir = tempfile::tempdir().unwrap();
        let child = long_fill(dir.path(), &["--json"]);
        wait_for_table(dir.path());
        kill_process(Pid::from_child(&child), signal).unwrap();
        let ended: Ended = child.wait_with_output().unwrap().into();
        assert_eq!(
            (ended.code, &ended.out[..]),
            (Some(code), ""),
            "{}",
            ended.err
        );
        let said = format!("silt: stopped by {name} during `fillrandom`; the store in ");
        assert!(ended.err.starts_with(&said), "{}", ended.err);
        // Nobody knows what the store has, but it is sound.
        let read = bench(dir.path(), "readrandom", &[]).failed(3);
        assert!(
            read.contains("give: silt bench fillrandom,readrandom"),
            "{read}"
        );
        on("check", &dir.path().join("siltstone"), &[]).fine();
    }
}

/// An experiment of two runs on one store.
const EXPERIMENT: &str = r#"
title = "A small one"
compares = "A fill with reads."

[paper]
system = "LevelDB"
title = "A paper"
venue = "A journal"
figure = "Fig. 1"

[hardware]
paper = "A large machine."
here = "This machine."

[settings]
records = 2000
value_bytes = 100
engine.memtable_bytes = "1MiB"

[[run]]
label = "fill"
workload = "fillrandom"
without_values = "it fills the store"

[[run]]
label = "read"
workload = "readrandom"
amount = 1000
store = "fill"

[[run]]
label = "miss"
workload = "readmissing"
amount = 1000
store = "fill"

[[value]]
run = "read"
system = "LevelDB 1.23"
source = "Fig. 1(a)"
ops_per_s = 1000

[[ratio]]
of = "read"
to = "miss"
metric = "ops_per_s"
paper = 0.5
system = "LevelDB 1.23"
source = "Fig. 1(b)"
"#;

#[test]
fn an_experiment_of_a_file_is_run_beside_the_paper() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("mine.toml");
    fs::write(&file, EXPERIMENT).unwrap();
    let page = dir.path().join("page.html");
    let [file, page] = [&file, &page].map(|path| path.to_str().unwrap());
    let said = silt(["bench", "paper", file, "--html", page]).fine();
    for words in [
        "mine: A small one",
        "2 of 3: read",
        "1.00 kops/s",
        "paper 0.50x, ours",
    ] {
        assert!(said.contains(words), "{words}: {said}");
    }
    page::read(&fs::read_to_string(page).unwrap());
    let out = silt(["bench", "paper", file, "--json"]).fine();
    let lines = records(&out);
    assert_eq!(lines.len(), 4);
    lines[..3].iter().for_each(has_required_keys);
    assert_eq!(lines[1]["experiment"]["values"][0]["figure"], "ops_per_s");
}

#[test]
fn a_typing_error_in_a_file_is_refused_with_its_line() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("mine.toml");
    let text = EXPERIMENT.replace("amount = 1000", "amuont = 1000");
    fs::write(&file, &text).unwrap();
    let line = text.lines().position(|l| l.contains("amuont")).unwrap() + 1;
    let file = file.to_str().unwrap();
    let error = silt(["bench", "paper", file]).failed(3);
    assert!(error.contains(&format!("{file}:{line}:1: ")), "{error}");
    assert!(error.contains("did you mean `amount`?"), "{error}");
}

#[test]
fn a_figure_of_the_program_runs_in_small() {
    let list = silt(["bench", "paper"]).fine();
    assert!(list.contains("\nprockstore-fig16 "), "{list}");
    let args = [
        "bench",
        "paper",
        "prockstore-fig16",
        "--scale",
        "0.0002",
        "--rounds",
        "1",
        "--json",
    ];
    let lines = records(&silt(args).fine());
    let runs = lines.iter().filter(|line| line["workload"].is_string());
    // Four numbers of sub-compactions, and three other policies.
    assert_eq!(runs.count(), 7);
    let last = lines.last().unwrap();
    assert_eq!(last["ratios"].as_array().unwrap().len(), 6);
}
