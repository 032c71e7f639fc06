//! `silt bench` with host and device as processes of their own: what runs, and that nothing is left
//! behind, whatever ends it.

mod common;

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::{Ended, SILT, silt};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// Options that make a workload small.
const SMALL: [&str; 8] = [
    "--records",
    "3000",
    "--value-bytes",
    "100",
    "--memtable-bytes",
    "64KiB",
    "--own",
    "table_bytes=65536,level1_bytes=131072,log_segment_bytes=131072",
];

fn args<'a>(folder: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let first = ["bench", "fillrandom", "--folder", folder];
    first.iter().chain(&SMALL).chain(more).copied().collect()
}

/// The processes that have this text in their command lines, without this one.
fn processes(text: &str) -> Vec<String> {
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let lines = entries.filter_map(|entry| {
        let name = entry.file_name().into_string().ok()?;
        let pid: u32 = name.parse().ok()?;
        let line = fs::read(entry.path().join("cmdline")).ok()?;
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        (pid != std::process::id() && line.contains(text)).then_some(line)
    });
    lines.collect()
}

/// The network namespaces that a process has made.
fn namespaces(pid: u32) -> Vec<String> {
    let listed = Command::new("ip").args(["netns", "list"]).output();
    let listed = listed.map_or_else(|_| Vec::new(), |output| output.stdout);
    let own = format!("siltb-{pid}-");
    let text = String::from_utf8_lossy(&listed).into_owned();
    text.lines()
        .filter(|line| line.starts_with(&own))
        .map(String::from)
        .collect()
}

/// Waits until no process has this text in its command line.
fn wait_until_gone(text: &str) {
    let start = Instant::now();
    loop {
        let left = processes(text);
        if left.is_empty() {
            return;
        }
        assert!(start.elapsed() < Duration::from_secs(60), "{left:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_device_holds_shares_or_is_lent_and_the_record_says_what_it_did() {
    for files in ["held", "held-local-log", "shared", "lent"] {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().to_str().unwrap();
        let more = [
            "--topology-files",
            files,
            "--topology-host-cores",
            "0",
            "--json",
        ];
        let out = silt(args(folder, &more)).fine();
        let record: Value = serde_json::from_str(out.trim()).unwrap();
        assert_eq!(record["operations"], 3000, "{files}");
        assert_eq!(record["settings"]["topology"]["files"], files);
        assert!(record["device_cpu"].is_number(), "{files}");
        assert!(record["link_bytes"].as_u64().is_some(), "{files}");
        assert!(record["space_amplification"].is_number(), "{files}");
        let counters = record["engine_counters"].as_object().unwrap();
        for name in [
            "host_compaction_count",
            "device_compaction_count",
            "device_cpu_us",
        ] {
            assert!(counters.contains_key(name), "{files}: {name}");
        }
        let held = matches!(files, "held" | "held-local-log");
        let by_table = counters["link_purpose_table_bytes"].as_u64().unwrap();
        assert_eq!(
            by_table > 0,
            held,
            "{files}: {by_table} bytes of tables that the host wrote"
        );
        let said = record["stand_ins"][0].as_str().unwrap();
        assert!(said.contains(&format!("files: {files}")), "{said}");
        wait_until_gone(folder);
    }
}

#[test]
fn a_shaped_link_says_by_what_it_is_shaped() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().to_str().unwrap();
    let more = [
        "--topology-files",
        "held",
        "--topology-link",
        "1Gbit",
        "--json",
    ];
    let out = silt(args(folder, &more)).fine();
    let record: Value = serde_json::from_str(out.trim()).unwrap();
    let said = record["stand_ins"].to_string();
    let counted = record["engine_counters"]["wire_sent_bytes"].as_u64();
    match said.contains("network namespaces, which `tc` shapes to 1Gbit") {
        // Headers come on top of what the client counts.
        true => assert!(counted > record["engine_counters"]["link_sent_bytes"].as_u64()),
        false => {
            assert!(said.contains("a limiter in the client stands in"), "{said}");
            assert_eq!(counted, None);
        }
    }
    wait_until_gone(folder);
}

/// A fill over a shaped link that takes longer than the tests need. The link is slow, so that a
/// small store is enough for that: the test also runs on a disk that builds have nearly filled.
fn long_fill(folder: &str) -> Child {
    let mut args = args(
        folder,
        &["--topology-files", "held", "--topology-link", "50Mbit"],
    );
    let records = args.iter().position(|arg| *arg == "3000").unwrap();
    args[records] = "400k";
    Command::new(SILT)
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Waits until the fill has written a table. If the fill ends or hangs before that, the test fails
/// with what the fill printed, the processes that run, and the names of the files.
fn wait_for_table(mut fill: Child, folder: &Path) -> Child {
    let start = Instant::now();
    let store = folder.join("siltstone");
    while !store.exists() || common::files(&store, ".tbl").is_empty() {
        let ended = fill.try_wait().unwrap();
        if ended.is_some() || start.elapsed() > Duration::from_secs(60) {
            let files = store.exists().then(|| common::files(&store, ""));
            let running = processes(folder.to_str().unwrap());
            fill.kill().unwrap();
            let fill: Ended = fill.wait_with_output().unwrap().into();
            panic!("no table: {fill:?}; running: {running:?}; files: {files:?}");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    fill
}

#[test]
fn a_signal_leaves_no_process_and_no_namespace() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().to_str().unwrap();
    let fill = wait_for_table(long_fill(folder), dir.path());
    let pid = fill.id();
    kill_process(Pid::from_child(&fill), Signal::TERM).unwrap();
    let ended: Ended = fill.wait_with_output().unwrap().into();
    assert_eq!(ended.code, Some(143), "{}", ended.err);
    assert_eq!(processes(folder), Vec::<String>::new());
    assert_eq!(namespaces(pid), Vec::<String>::new());
}

#[test]
fn a_kill_leaves_no_process_and_the_next_call_deletes_the_namespaces() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().to_str().unwrap();
    let mut fill = wait_for_table(long_fill(folder), dir.path());
    let pid = fill.id();
    kill_process(Pid::from_child(&fill), Signal::KILL).unwrap();
    fill.wait().unwrap();
    wait_until_gone(folder);
    let other = tempfile::tempdir().unwrap();
    let more = ["--topology-files", "held", "--topology-link", "1Gbit"];
    silt(args(other.path().to_str().unwrap(), &more)).fine();
    assert_eq!(namespaces(pid), Vec::<String>::new());
}

#[test]
fn topologies_that_make_no_sense_are_refused() {
    for (more, expected) in [
        (&["--topology-link", "1Gbit"][..], "it belongs to a device"),
        (&["--topology-files", "hold"], "did you mean `held`?"),
        (
            &["--topology-host-cores", "9-1"],
            "numbers of cores such as",
        ),
        (
            &["--topology-files", "shared", "--topology-link", "1Gbit"],
            "are on one machine",
        ),
        (
            &["--topology-files", "held", "--engine", "null"],
            "only siltstone has a topology",
        ),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let args = args(dir.path().to_str().unwrap(), more);
        let error = silt(args).failed(2);
        assert!(error.contains(expected), "{more:?}: {error}");
    }
    let dir = tempfile::tempdir().unwrap();
    let missing = ["--topology-host-cores", "1000"];
    let error = silt(args(dir.path().to_str().unwrap(), &missing)).failed(3);
    assert!(error.contains("cannot use core 1000"), "{error}");
}

#[test]
fn rounds_make_records_and_a_page_that_is_made_again_from_them() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str| dir.path().join(name).to_str().unwrap().to_string();
    let (packed, page, again) = (file("r.jsonl.zst"), file("page.md"), file("again.md"));
    let out = silt([
        "bench",
        "paper",
        "prockstore-target-local",
        "--scale",
        "0.0001",
        "--rounds",
        "2",
        "--record",
        &packed,
        "--page",
        &page,
        "--json",
    ])
    .fine();
    let lines: Vec<Value> = out
        .lines()
        .map(|l| serde_json::from_str(l).unwrap())
        .collect();
    let runs: Vec<&Value> = lines
        .iter()
        .filter(|line| line["workload"].is_string())
        .collect();
    let order: Vec<(&str, u64)> = runs
        .iter()
        .map(|run| &run["experiment"])
        .map(|e| (e["run"].as_str().unwrap(), e["round"].as_u64().unwrap()))
        .collect();
    // Each round begins with another run.
    let expected = [
        ("plain", 1),
        ("host-only", 1),
        ("host-only", 2),
        ("plain", 2),
    ];
    assert_eq!(order, expected);
    assert_eq!(lines.last().unwrap()["ratios"][0]["rounds"], 2);
    silt(["bench", "paper", "--from", &packed, "--page", &again]).fine();
    let text = fs::read_to_string(&page).unwrap();
    assert!(text.contains("host-only on a local path against the plain engine"));
    assert_eq!(text, fs::read_to_string(&again).unwrap());
    let none = silt(["bench", "paper", "--from", &page, "--page", &again]).failed(3);
    assert!(none.contains("page.md"), "{none}");
}

/// A store whose tables a device holds, while its log is local.
const LOCAL_LOG: &str = r#"
title = "A log on the host"
compares = "Nothing."
rounds = 2
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
workload = "fillrandom"
engine.memtable_bytes = "64KiB"
engine.own.log_segment_bytes = "128KiB"
topology.files = "held-local-log"
[[run]]
label = "fill"
without_values = "it fills the store"
"#;

#[test]
fn the_tables_on_a_device_are_deleted_with_their_store() {
    let dir = tempfile::tempdir().unwrap();
    let (file, stores) = (dir.path().join("local.toml"), dir.path().join("stores"));
    fs::write(&file, LOCAL_LOG).unwrap();
    let stores_text = stores.to_str().unwrap();
    let words = [
        "bench",
        "paper",
        file.to_str().unwrap(),
        "--folder",
        stores_text,
    ];
    silt(words.iter().chain(&["--keep"])).fine();
    let kept = stores.join("local-store1");
    assert!(!common::files(&kept.join("siltstone-tables"), ".tbl").is_empty());
    // The next call makes the store again in this folder, and leaves nothing of it.
    silt(words).fine();
    assert_eq!(fs::read_dir(&stores).unwrap().count(), 0);
}
