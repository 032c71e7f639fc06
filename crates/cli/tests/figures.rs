//! `levels`, `stats` and `compact`; and reading without writing.

mod common;

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;
use siltstone::{Options, Store};

use common::{SILT, files, numbered_store, on, silt};

#[test]
fn levels_and_stats_for_people_and_programs() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("s");
    numbered_store(&store, 2_000);
    on("put", &store, &["k", "v", "-k", "birds"]).fine();
    let said = on("levels", &store, &[]).fine();
    assert!(
        said.contains("keyspace `birds`") && said.contains("2,000"),
        "{said}"
    );
    let said = on("levels", &store, &["-k", "default"]).fine();
    assert!(!said.contains("birds"), "{said}");
    let json = |command: &str, more: &[&str]| -> serde_json::Value {
        let said = on(command, &store, &[&["--json"][..], more].concat()).fine();
        assert_eq!(said.lines().count(), 1);
        serde_json::from_str(&said).unwrap()
    };
    let levels = json("levels", &["-k", "default"]);
    assert_eq!(levels.as_array().unwrap().len(), 1);
    assert_eq!(levels[0]["name"], "default");
    let entries: u64 = levels[0]["levels"]
        .as_array()
        .unwrap()
        .iter()
        .map(|level| level["entry_count"].as_u64().unwrap())
        .sum();
    assert_eq!(entries, 2_000);
    let stats = json("stats", &[]);
    assert_eq!(stats["health"], "read only");
    assert_eq!(stats["keyspaces"].as_array().unwrap().len(), 2);
    assert!(stats["counters"]["log_bytes"].is_u64() && stats["latencies"]["get"].is_object());
    for command in ["stats", "levels"] {
        let said = on(command, &store, &["-k", "fish"]).failed(3);
        assert!(said.contains("`fish`") && said.contains("birds"), "{said}");
    }
}

/// The space that the files of a folder take: their lengths, and their blocks on the disk.
fn on_disk(store: &Path) -> (u64, u64, u64) {
    use std::os::unix::fs::MetadataExt;
    let all = fs::read_dir(store).unwrap().map(|e| e.unwrap());
    // The lease's file is not data.
    let all = all.filter(|e| !e.file_name().to_string_lossy().starts_with("LOCK."));
    all.fold((0, 0, 0), |(count, bytes, blocks), e| {
        let meta = e.metadata().unwrap();
        (count + 1, bytes + meta.len(), blocks + 512 * meta.blocks())
    })
}

#[test]
fn stats_count_every_file_on_the_disk() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("s");
    numbered_store(&store, 20_000);
    fs::write(store.join("OPTIONS.toml"), "stats_file_ms = 100\n").unwrap();
    let space = || -> Value {
        let said = on("stats", &store, &["--json"]).fine();
        serde_json::from_str::<Value>(&said).unwrap()["space"].clone()
    };
    let sums = |space: &Value| {
        let parts = space.as_object().unwrap().values();
        parts.fold((0, 0), |(count, bytes), part| {
            let of = |name: &str| part[name].as_u64().unwrap();
            (count + of("file_count"), bytes + of("file_bytes"))
        })
    };
    // A closed store, opened for reading.
    let closed = space();
    let (count, bytes, blocks) = on_disk(&store);
    assert_eq!(sums(&closed), (count, bytes), "{closed}");
    assert!(
        blocks.abs_diff(bytes) <= 4096 * count,
        "{blocks} on the disk: {closed}"
    );
    for part in ["tables", "log_live", "manifests", "reserves"] {
        assert!(
            closed[part]["file_bytes"].as_u64().unwrap() > 0,
            "{part}: {closed}"
        );
    }
    let said = on("stats", &store, &[]).fine();
    assert!(
        said.contains("\non disk    ") && said.contains("log, live"),
        "{said}"
    );
    // An open store, from the statistics that its writer publishes. Publishing changes the length
    // of the file itself.
    let open = Store::open(&store, Options::load(&store).unwrap()).unwrap();
    let own = open.stats().space;
    let (count, bytes, _) = on_disk(&store);
    assert_eq!(
        (own.total().file_count, own.total().file_bytes),
        (count, bytes),
        "{own:?}"
    );
    let log = open.stats().log;
    assert_eq!(own.log_live.file_count, log.live_segment_count as u64);
    assert_eq!(
        own.log_prepared.file_count,
        log.prepared_segment_count as u64
    );
    open.close().unwrap();
}

#[test]
fn keyspaces_of_tools_are_shown_by_their_names_only() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("s");
    numbered_store(&store, 100);
    common::tools_keyspace(&store, "silt.own");
    on("put", &store, &["k", "v", "-k", "silt.own"]).fine();
    on(
        "options",
        &store,
        &["-k", "silt.own", "--set", "level_factor=4"],
    )
    .fine();
    let copy = dir.path().join("copy");
    for (command, args) in [
        ("stats", &[][..]),
        ("stats", &["--json"]),
        ("levels", &[]),
        ("levels", &["--json"]),
        ("check", &[]),
        ("check", &["--json"]),
        ("compact", &[]),
        ("compact", &["--json"]),
        ("options", &[]),
        ("options", &["--json"]),
        ("checkpoint", &[copy.to_str().unwrap()]),
    ] {
        let said = on(command, &store, args).fine();
        let hidden = !said.contains("silt.own") && !said.contains("2 keyspaces");
        assert!(hidden, "{command} {args:?}: {said}");
    }
    let list = |more: &[&str]| {
        let args = ["keyspace", "list", store.to_str().unwrap()];
        silt(args.iter().chain(more)).fine()
    };
    assert_eq!(list(&[]), "default\n");
    assert_eq!(list(&["--all"]), "default\nsilt.own\n");
    for command in ["count", "scan", "stats", "levels"] {
        let said = on(command, &store, &["-k", "fish"]).failed(3);
        assert!(
            !said.contains("silt.own") && said.contains("one of: default;"),
            "{said}"
        );
    }
    // By its name it can be used like any other keyspace.
    assert_eq!(on("count", &store, &["-k", "silt.own"]).fine(), "1\n");
    for command in ["stats", "levels", "compact"] {
        let said = on(command, &store, &["-k", "silt.own"]).fine();
        assert!(said.contains("silt.own"), "{command}: {said}");
    }
    // Damage in it is reported.
    let table = files(&store, ".tbl")
        .into_iter()
        .min_by_key(|p| fs::metadata(p).unwrap().len());
    let table = table.unwrap();
    let mut bytes = fs::read(&table).unwrap();
    bytes[2] ^= 1;
    fs::write(&table, bytes).unwrap();
    let ended = on("check", &store, &[]);
    assert!(
        ended.code == Some(1) && ended.out.contains("silt.own"),
        "{ended:?}"
    );
}

/// The command ended at once, with exit code 3, if it was started before the program that creates
/// the store.
#[test]
fn watching_waits_for_a_store_that_is_not_there_yet() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("s");
    let mut child = Command::new(SILT)
        .args(["stats", store.to_str().unwrap(), "--watch=0.1", "--json"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = String::new();
    let mut errors = BufReader::new(child.stderr.take().unwrap());
    errors.read_line(&mut said).unwrap();
    assert!(said.contains("there is no store yet; waiting"), "{said}");
    assert!(!store.exists());
    numbered_store(&store, 10);
    let mut line = String::new();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    out.read_line(&mut line).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    let figures: Value = serde_json::from_str(&line).unwrap_or_else(|e| panic!("{e}: {line}"));
    assert_eq!(figures["keyspaces"][0]["name"], "default", "{line}");
    // Without --watch the command does not wait.
    on("stats", &dir.path().join("none"), &[]).failed(3);
}

#[test]
fn watching_ends_with_its_reader() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("s");
    numbered_store(&store, 10);
    let mut child = Command::new(SILT)
        .args(["levels", store.to_str().unwrap(), "--watch", "--json"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    for _ in 0..2 {
        let line = lines.next().unwrap().unwrap();
        let shown: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!(shown["keyspaces"][0]["name"], "default", "{line}");
        for name in ["source", "jobs", "queues", "waiting_jobs", "sides"] {
            assert!(!shown[name].is_null(), "{name}: {line}");
        }
    }
    drop(lines);
    assert_eq!(child.wait().unwrap().code(), Some(0));
    // An error at the first look ends the command.
    on("stats", &store, &["--watch", "-k", "nobody"]).failed(3);
}

#[test]
fn a_compaction_gives_space_back() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("s");
    numbered_store(&store, 5_000);
    numbered_store(&store, 5_000);
    // These are less than an eighth of all entries; otherwise they would be compacted in the
    // background, perhaps before the command looks at them.
    on("del", &store, &["--from", "key 004700", "--yes"]).fine();
    let said = on("compact", &store, &["--json"]).fine();
    let said: serde_json::Value = serde_json::from_str(&said).unwrap();
    let (before, after) = (
        &said["keyspaces"][0]["before"],
        &said["keyspaces"][0]["after"],
    );
    assert_eq!(before["entry_count"], 10_000, "{said}");
    assert_eq!(after["entry_count"], 4_700, "{said}");
    assert!(after["file_bytes"].as_u64() < before["file_bytes"].as_u64());
    assert_eq!(on("count", &store, &[]).fine(), "4700\n");
    on("put", &store, &["key 000001", "new"]).fine();
    let said = on(
        "compact",
        &store,
        &["-k", "default", "--prefix", "key 0000"],
    )
    .fine();
    assert!(
        said.contains("4,700 entries") && said.contains("4,701 entries"),
        "{said}"
    );
    assert_eq!(on("get", &store, &["key 000001"]).fine(), "new\n");
    on("compact", &store, &["-k", "fish"]).failed(3);
    on("compact", &store, &["--from", "b", "--to", "a"]).failed(2);
    on("compact", &dir.path().join("missing"), &[]).failed(3);
    on("check", &store, &[]).fine();
}

#[test]
fn reading_changes_nothing_and_readers_share() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("s");
    numbered_store(&store, 100);
    // The entries are only in the log.
    on("put", &store, &["key 000005", "in the log"]).fine();
    let list = || -> Vec<_> {
        let read = |p: std::path::PathBuf| (fs::read(&p).unwrap(), p);
        files(&store, "").into_iter().map(read).collect()
    };
    let before = list();
    let s = store.to_str().unwrap();
    assert_eq!(on("get", &store, &["key 000005"]).fine(), "in the log\n");
    assert_eq!(on("count", &store, &[]).fine(), "100\n");
    assert!(
        on("scan", &store, &["--json"])
            .fine()
            .contains("in the log")
    );
    for command in [
        &["levels", s][..],
        &["stats", s, "--json"],
        &["keyspace", "list", s],
        &["check", s],
    ] {
        silt(command).fine();
    }
    assert!(
        list() == before,
        "reading left the store's files as they were"
    );
    // One reader waits until its pipe is read. Another reader and a check can open the store
    // meanwhile, and a writer cannot.
    let mut reader = Command::new(SILT)
        .args(["stats", s, "--watch", "--json"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    assert_eq!(on("count", &store, &[]).fine(), "100\n");
    let _ = reader.kill();
    reader.wait().unwrap();
}

/// The JSON that `silt` prints.
fn json_of(command: &str, store: &Path, more: &[&str]) -> Value {
    let said = on(command, store, &[&["--json"][..], more].concat()).fine();
    serde_json::from_str(&said).unwrap()
}

#[test]
fn beside_a_live_writer() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let options = Options {
        stats_file_ms: 50,
        ..Options::default()
    };
    let store = Store::open(&path, options).unwrap();
    let keyspace = store.default_keyspace().unwrap();
    for i in 0..1000u32 {
        keyspace.put(&i.to_be_bytes(), &[7; 100]).unwrap();
    }
    store.flush().unwrap();
    store.create_keyspace("birds").unwrap();
    // Wait until the writer has written all that.
    let stats = loop {
        let stats = json_of("stats", &path, &[]);
        if stats["keyspaces"].as_array().unwrap().len() == 2 {
            break stats;
        }
    };
    let pid = std::process::id();
    assert_eq!(stats["source"]["kind"], "written");
    assert_eq!(stats["source"]["pid"], pid);
    assert!(stats["source"]["stale"].is_null(), "{stats}");
    assert_eq!(stats["counters"]["put_count"], 1000);
    assert_eq!(stats["health"], "good");
    for name in ["get", "put", "commit", "flush", "compaction", "sync"] {
        let latency = &stats["latencies"][name];
        for figure in ["p50_ns", "p90_ns", "p99_ns", "p999_ns", "max_ns"] {
            assert!(latency[figure].is_u64(), "{name} {figure}: {latency}");
        }
    }
    assert_eq!(stats["latencies"]["flush"]["count"], 1);
    let said = on("stats", &path, &[]).fine();
    let by = format!("written by process {pid} (siltstone ");
    assert!(said.contains(&by) && !said.contains("STALE"), "{said}");
    assert!(
        said.contains("compaction ") && said.contains("p99.9"),
        "{said}"
    );
    let said = on("levels", &path, &["-k", "default"]).fine();
    assert!(said.contains(&by) && said.contains("1,000"), "{said}");
    assert_eq!(
        json_of("levels", &path, &["-k", "birds"])[0]["name"],
        "birds"
    );
    assert!(
        on("levels", &path, &["-k", "fish"])
            .failed(3)
            .contains("birds")
    );
    // Other processes are excluded as before.
    assert!(
        on("get", &path, &["k"])
            .failed(3)
            .contains(&pid.to_string())
    );

    // Without a terminal it prints a block each time, with rates from the second sample on.
    let mut child = Command::new(SILT)
        .args(["stats", path.to_str().unwrap(), "--watch=0.2"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let rates = loop {
        keyspace.put(b"more", &[7; 100]).unwrap();
        let line = lines.next().unwrap().unwrap();
        if line.starts_with("a second") {
            break line;
        }
    };
    assert!(
        rates.contains("puts ") && rates.contains("gets "),
        "{rates}"
    );
    drop(lines);
    assert_eq!(child.wait().unwrap().code(), Some(0));

    // The last figures of a writer that stopped publishing are shown.
    store.set_option("stats_file_ms", 0u64).unwrap();
    std::thread::sleep(Duration::from_millis(1100));
    let file = path.join("STATS.json");
    let mut old: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    let written_us = old["written_us"].as_u64().unwrap();
    old["written_us"] = (written_us - 3_600_000_000).into();
    fs::write(&file, old.to_string()).unwrap();
    let said = on("stats", &path, &[]).fine();
    assert!(
        said.contains("60 min ago; STALE: it publishes every"),
        "{said}"
    );
    fs::remove_file(&file).unwrap();
    let said = on("stats", &path, &[]).failed(3);
    assert!(said.contains("stats_file_ms"), "{said}");
    store.close().unwrap();

    // After a kill of the writer the store can be read, and its last figures are reported.
    let said = on("levels", &path, &[]).fine();
    assert!(
        said.starts_with("read from the store; nobody has it open"),
        "{said}"
    );
    let mut gone = Command::new(SILT)
        .arg("--version")
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    gone.wait().unwrap();
    old["pid"] = gone.id().into();
    fs::write(&file, old.to_string()).unwrap();
    let said = on("stats", &path, &[]).fine();
    assert!(
        said.contains(&format!("process {} ended without closing it", gone.id())),
        "{said}"
    );
    let stats = json_of("stats", &path, &[]);
    assert_eq!(stats["source"]["kind"], "opened");
    assert_eq!(stats["source"]["left_behind"]["pid"], gone.id());
    assert_eq!(stats["keyspaces"].as_array().unwrap().len(), 2);
    // Garbage in the file does not keep the store from being read.
    fs::write(&file, "nonsense").unwrap();
    assert_eq!(json_of("stats", &path, &[])["source"]["kind"], "opened");
    on("put", &path, &["k", "v"]).fine();
    assert!(!file.exists(), "the next writer took it away");
    for bad in ["--watch=0", "--watch=x", "--watch=-1"] {
        on("stats", &path, &[bad]).failed(2);
    }
}

#[test]
fn what_the_store_does_is_said_on_request() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("s");
    let said = on("put", &store, &["k", "v", "--log", "info"]);
    assert_eq!((said.code, &said.out[..]), (Some(0), ""));
    assert!(
        said.err.contains(" INFO  open store=") && said.err.contains(": opened "),
        "{}",
        said.err
    );
    assert!(said.err.contains("closed"), "{}", said.err);
    let said = on("compact", &store, &["--log=debug"]);
    assert!(
        said.err
            .contains("DEBUG compaction keyspace=\"default\" from_level=0 "),
        "{}",
        said.err
    );
    // A line has the seconds since the start, the level, the spans with their fields, and the
    // message with its fields.
    for line in said.err.lines() {
        let (seconds, rest) = line.trim_start().split_once(' ').unwrap();
        assert!(seconds.parse::<f64>().is_ok(), "{line}");
        assert!(
            rest.starts_with("DEBUG ") || rest.starts_with("INFO  "),
            "{line}"
        );
    }
    let line = said
        .err
        .lines()
        .find(|line| line.contains(" compaction "))
        .unwrap();
    let (span, event) = line.split_once("\": ").unwrap();
    assert!(span.contains(" to_level=1 in_bytes="), "{line}");
    assert!(event.starts_with("compacted out_bytes="), "{line}");
    let said = on("get", &store, &["k", "--log", "error"]);
    assert_eq!((&said.out[..], &said.err[..]), ("v\n", ""));
    on("get", &store, &["k", "--log", "loud"]).failed(2);
}
