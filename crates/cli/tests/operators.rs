//! What operators do to stores by hand, and how `silt` reports it.

mod common;

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use common::{Ended, SILT, files, numbered_store, on, silt, silt_with, split_store};

fn path(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn a_folder_that_is_not_mounted_is_named_by_every_command() {
    let dir = tempfile::tempdir().unwrap();
    let store = split_store(dir.path());
    for (folder, part) in [("fast", "log lies"), ("wide", "tables lie")] {
        let away = dir.path().join("away");
        fs::rename(dir.path().join(folder), &away).unwrap();
        for (command, args) in [
            ("get", &["key 000001"][..]),
            ("put", &["k", "v"]),
            ("check", &[]),
        ] {
            let said = on(command, &store, args).failed(3);
            assert!(
                said.contains("mount its disk") && said.contains(part),
                "{command}: {said}"
            );
            assert!(!said.contains("create a store"), "{command}: {said}");
        }
        fs::rename(&away, dir.path().join(folder)).unwrap();
    }
    assert_eq!(on("count", &store, &[]).fine(), "2000\n");
}

#[test]
fn a_moved_store_with_a_relative_log_dir_is_explained_by_every_command() {
    let dir = tempfile::tempdir().unwrap();
    let (store, moved) = (dir.path().join("s"), dir.path().join("moved"));
    on("options", &store, &["--set", "log_dir=log"]).fine();
    numbered_store(&store, 10);
    fs::rename(&store, &moved).unwrap();
    for (command, args) in [("get", &["key 000001"][..]), ("check", &[])] {
        let said = on(command, &moved, args).failed(3);
        for word in ["DIRECTORIES", "if it was moved", "crc32c edited"] {
            assert!(said.contains(word), "{command}: {word}: {said}");
        }
    }
}

#[test]
fn a_lost_file_of_directories_is_missed_and_can_be_written_again() {
    let dir = tempfile::tempdir().unwrap();
    let store = split_store(dir.path());
    let file = store.join("DIRECTORIES");
    fs::remove_file(&file).unwrap();
    let new = dir.path().join("new");
    let checked = on("check", &store, &[]);
    assert_eq!(checked.code, Some(1), "{checked:?}");
    let all = [
        checked.out,
        on("get", &store, &["key 000001"]).failed(3),
        on("put", &store, &["k", "v"]).failed(3),
        on("repair", &store, &["--to", path(&new)]).failed(3),
    ];
    for said in &all {
        for word in ["DIRECTORIES", "log and tables", "OWNER", "`crc32c edited`"] {
            assert!(said.contains(word), "{word}: {said}");
        }
    }
    assert!(!new.exists());
    // Do what the message says.
    let (_, lines) = all[1].split_once("lines: ").unwrap();
    let (lines, _) = lines.split_once(';').unwrap();
    let lines: String = lines
        .split(", ")
        .map(|line| format!("{}\n", line.trim_matches('`')))
        .collect();
    fs::write(&file, lines).unwrap();
    assert_eq!(on("count", &store, &[]).fine(), "2000\n");
    // The log's disk is missing too.
    fs::remove_file(&file).unwrap();
    fs::rename(dir.path().join("fast"), dir.path().join("away")).unwrap();
    let said = on("get", &store, &["key 000001"]).failed(3);
    assert!(
        said.contains("DIRECTORIES") && said.contains("fast"),
        "{said}"
    );
    // Nothing shows where the parts are: a repair says that there may be some.
    fs::remove_file(store.join("OPTIONS.toml")).unwrap();
    let checked = on("check", &store, &[]);
    assert!(
        checked.out.contains("put DIRECTORIES back first"),
        "{}",
        checked.out
    );
    let repaired = on("repair", &store, &["--to", path(&new)]);
    assert_eq!(repaired.code, Some(1), "{repaired:?}");
    assert!(repaired.out.contains("DIRECTORIES"), "{}", repaired.out);
}

#[test]
fn settings_that_cannot_be_read_are_a_problem_with_advice() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("s");
    numbered_store(&store, 100);
    let file = store.join("OPTIONS.toml");
    for text in [&b"verify = \"once\"\nmemtable_bytes = \n"[..], b"# \xff\n"] {
        fs::write(&file, text).unwrap();
        let checked = on("check", &store, &[]);
        assert_eq!(checked.code, Some(1), "{checked:?}");
        let got = on("get", &store, &["key 000001"]).failed(3);
        for said in [&checked.out, &got] {
            assert!(
                said.contains("OPTIONS.toml") && said.contains("delete the file"),
                "{said}"
            );
        }
        assert!(text[0] == b'#' || got.contains("line 2"), "{got}");
    }
    // A link stays a link.
    let real = dir.path().join("real.toml");
    fs::write(&real, "# mine\n").unwrap();
    fs::remove_file(&file).unwrap();
    symlink(&real, &file).unwrap();
    on("options", &store, &["--set", "verify=always"]).fine();
    assert!(file.is_symlink());
    let text = fs::read_to_string(&real).unwrap();
    assert!(text.contains("# mine") && text.contains("always"), "{text}");
    // Settings of a keyspace that does not exist are reported.
    fs::remove_file(&file).unwrap();
    fs::write(&file, "[keyspaces.tow]\nlevel_factor = 4\n").unwrap();
    let said = on("check", &store, &[]).fine();
    assert!(said.contains("`tow`, which is not a keyspace"), "{said}");
    let said = on("options", &store, &[]).fine();
    assert!(
        said.starts_with("# OPTIONS.toml has settings for `tow`"),
        "{said}"
    );
    fs::write(&file, "[keyspace.two]\nlevel_factor = 4\n").unwrap();
    let said = on("get", &store, &["key 000001"]).failed(3);
    assert!(said.contains("[keyspaces.NAME]"), "{said}");
}

#[test]
fn wrong_settings_on_the_command_line_are_wrong_usage() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("s");
    numbered_store(&store, 10);
    for (set, word) in [
        ("compresion=lz4", "`compression`"),
        ("memtable_bytes=100MB", "KiB, MiB, GiB"),
        ("memtable_bytes=-1", "64 KiB to"),
        ("memtable_bytes=2.5", "64 KiB to"),
        ("compression=best", "lz4"),
    ] {
        let said = on("options", &store, &["--set", set]).failed(2);
        assert!(said.contains(word), "{set}: {said}");
    }
    let said = on(
        "options",
        &store,
        &["-k", "nobody", "--set", "level_factor=4"],
    )
    .failed(2);
    assert!(said.contains("`nobody`"), "{said}");
    fs::write(store.join("OPTIONS.toml"), "memtable_bytes = -1\n").unwrap();
    let said = on("count", &store, &[]).failed(3);
    assert!(said.contains("64 KiB to"), "{said}");
}

#[test]
fn rescued_keyspaces_are_shown_and_hidden_names_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("s");
    on("put", &store, &["wren", "9 g", "-k", "birds"]).fine();
    // The manifest is lost, and with it the names of the keyspaces; the tables have their ids.
    on("compact", &store, &[]).fine();
    for lost in files(&store, ".log")
        .into_iter()
        .chain([store.join("CURRENT")])
    {
        fs::remove_file(lost).unwrap();
    }
    let manifests = fs::read_dir(&store).unwrap().map(|e| e.unwrap().path());
    for manifest in manifests.filter(|p| p.to_string_lossy().contains("MANIFEST-")) {
        fs::remove_file(manifest).unwrap();
    }
    let new = dir.path().join("new");
    assert_eq!(on("repair", &store, &["--to", path(&new)]).code, Some(1));
    let names = silt(["keyspace", "list", path(&new)]).fine();
    assert!(names.contains("repaired-2\n"), "{names}");
    assert_eq!(
        on("get", &new, &["wren", "-k", "repaired-2"]).fine(),
        "9 g\n"
    );
    // Keyspaces with this name would never be shown.
    let none = dir.path().join("none");
    for at in [&new, &none] {
        let said = silt(["keyspace", "create", path(at), "-k", "silt.mine"]).failed(2);
        assert!(said.contains("`silt.`"), "{said}");
        let said = on("put", at, &["k", "v", "-k", "silt.mine"]).failed(2);
        assert!(said.contains("not shown"), "{said}");
    }
    assert!(!none.exists());
}

#[test]
fn a_repair_that_was_cut_off_is_named_and_targets_within_the_store_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (store, new) = (dir.path().join("s"), dir.path().join("new"));
    numbered_store(&store, 100);
    // This is the state that a repair leaves before it writes the pointer.
    on("repair", &store, &["--to", path(&new)]).fine();
    fs::remove_file(new.join("CURRENT")).unwrap();
    fs::write(
        new.join("PARTIAL"),
        "a repair is making this store\nstore 00\n",
    )
    .unwrap();
    for (command, args) in [("get", &["key 000001"][..]), ("check", &[])] {
        let said = on(command, &new, args).failed(3);
        assert!(
            said.contains("unfinished repair") && said.contains("same `silt repair` again"),
            "{command}: {said}"
        );
    }
    on("repair", &store, &["--to", path(&new)]).fine();
    assert_eq!(on("count", &new, &[]).fine(), "100\n");
    let inner = store.join("inner/new");
    for (command, target, word) in [
        ("repair", &store, "the folder of the store itself"),
        ("repair", &inner, "it lies in"),
        ("checkpoint", &inner, "it lies in"),
    ] {
        let args = match command {
            "repair" => vec!["--to", path(target)],
            _ => vec![path(target)],
        };
        let said = on(command, &store, &args).failed(3);
        assert!(said.contains(word), "{command}: {said}");
    }
    assert!(!store.join("inner").exists());
}

#[test]
fn what_lies_in_the_place_of_a_table_is_named_once() {
    let dir = tempfile::tempdir().unwrap();
    let (store, other) = (dir.path().join("s"), dir.path().join("other"));
    numbered_store(&store, 3000);
    numbered_store(&other, 2000);
    let table = files(&store, ".tbl").remove(0);
    let sound = dir.path().join("sound.tbl");
    fs::rename(&table, &sound).unwrap();
    let problems = || {
        let ended = on("check", &store, &["--json"]);
        assert_eq!(ended.code, Some(1), "{ended:?}");
        let found: serde_json::Value = serde_json::from_str(&ended.out).unwrap();
        found["problems"].as_array().unwrap().clone()
    };
    fs::create_dir(&table).unwrap();
    let found = problems();
    assert!(
        found[0]["what"]
            .to_string()
            .contains("a directory lies where"),
        "{found:?}"
    );
    fs::remove_dir(&table).unwrap();
    symlink(&sound, &table).unwrap();
    let found = problems();
    assert!(
        found[0]["what"]
            .to_string()
            .contains("a symbolic link lies where"),
        "{found:?}"
    );
    fs::remove_file(&table).unwrap();
    fs::copy(files(&other, ".tbl").remove(0), &table).unwrap();
    let found = problems();
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(
        found[0]["what"].to_string().contains("another table"),
        "{found:?}"
    );
    let details = found[0]["expected"].to_string();
    for word in ["length", "digest", "entry count 3000"] {
        assert!(details.contains(word), "{word}: {details}");
    }
    let shown = fs::canonicalize(&table).unwrap();
    assert_eq!(found[0]["path"], path(&shown));
}

#[test]
fn tables_that_cannot_be_ingested_create_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (store, new) = (dir.path().join("s"), dir.path().join("new"));
    numbered_store(&store, 100);
    let bad = dir.path().join("bad.table");
    fs::write(&bad, "no table").unwrap();
    on("ingest", &new, &[path(&bad)]).failed(3);
    assert!(!new.exists());
    on("ingest", &store, &[path(&bad), "-k", "birds"]).failed(3);
    assert_eq!(silt(["keyspace", "list", path(&store)]).fine(), "default\n");
}

/// The tables of an export that was killed between two of them were accepted as the whole export: a
/// second export said only that they existed, and an ingest accepted them.
#[test]
fn an_export_that_was_killed_is_neither_repeated_nor_ingested() {
    let dir = tempfile::tempdir().unwrap();
    let (store, new) = (dir.path().join("s"), dir.path().join("new"));
    on("options", &store, &["--set", "table_bytes=65536"]).fine();
    numbered_store(&store, 30_000);
    // If the export ends before it is killed, try again.
    let killed = (0..50).find_map(|round| {
        let out = dir.path().join(format!("out{round}"));
        let mut child = Command::new(SILT)
            .args([OsStr::new("export"), store.as_os_str(), out.as_os_str()])
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        while !out.join("default-00001.table").exists() && child.try_wait().unwrap().is_none() {
            std::thread::sleep(Duration::from_millis(1));
        }
        child.kill().unwrap();
        let is_done = child.wait().unwrap().success();
        assert_eq!(files(&out, "-unfinished.export").is_empty(), is_done);
        (!is_done).then_some(out)
    });
    let out = killed.expect("an export that takes longer than a kill");
    let table = out.join("default-00000.table");
    assert!(table.exists());
    for said in [
        on("export", &store, &[path(&out)]).failed(3),
        on("ingest", &new, &[path(&out)]).failed(3),
        on("ingest", &new, &[path(&table)]).failed(3),
    ] {
        for word in [
            "was interrupted",
            "default-unfinished.export",
            "export again",
        ] {
            assert!(said.contains(word), "{word}: {said}");
        }
    }
    assert!(!new.exists());
    // Another export into the folder works, but the killed export is still refused.
    on("export", &store, &[path(&out), "--name", "other"]).fine();
    on("ingest", &new, &[path(&out)]).failed(3);
    // Do what the message says.
    for file in fs::read_dir(&out).unwrap().map(|e| e.unwrap().path()) {
        fs::remove_file(file).unwrap();
    }
    on("export", &store, &[path(&out)]).fine();
    assert!(files(&out, ".export").is_empty());
    on("ingest", &new, &[path(&out)]).fine();
    assert_eq!(on("count", &new, &[]).fine(), "30000\n");
}

/// An export that fails leaves neither tables nor its mark.
#[test]
fn an_export_that_fails_leaves_no_mark() {
    let dir = tempfile::tempdir().unwrap();
    let (store, out) = (dir.path().join("s"), dir.path().join("out"));
    numbered_store(&store, 3_000);
    fs::create_dir(&out).unwrap();
    let limited: Ended = Command::new("sh")
        .args(["-c", "ulimit -f 1; exec \"$0\" export \"$1\" \"$2\""])
        .args([OsStr::new(SILT), store.as_os_str(), out.as_os_str()])
        .output()
        .unwrap()
        .into();
    limited.failed(3);
    assert_eq!(fs::read_dir(&out).unwrap().count(), 0);
    on("export", &store, &[path(&out)]).fine();
}

#[test]
fn a_command_without_room_is_to_be_given_again() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("s");
    let limited: Ended = Command::new("sh")
        .args(["-c", "ulimit -f 1; exec \"$0\" put \"$1\" k v"])
        .args([OsStr::new(SILT), store.as_os_str()])
        .output()
        .unwrap()
        .into();
    let said = limited.failed(3);
    assert!(said.contains("give the command again"), "{said}");
    assert!(!said.contains("goes on by itself"), "{said}");
}

#[test]
fn a_closed_store_keeps_no_segments_that_nothing_needs() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("s");
    for set in ["log_segment_bytes=65536", "memtable_bytes=1048576"] {
        on("options", &store, &["--set", set]).fine();
    }
    let lines: String = (0..40_000).map(|n| format!("{n:06}{:040}\n", 0)).collect();
    let args = [
        OsStr::new("load"),
        store.as_os_str(),
        OsStr::new("--format=lines"),
    ];
    silt_with(args, lines.as_bytes()).fine();
    let checked: serde_json::Value =
        serde_json::from_str(&on("check", &store, &["--json"]).fine()).unwrap();
    let needed = checked["log"]["segment_count"].as_u64().unwrap();
    assert_eq!(files(&store, ".log").len() as u64, needed, "{checked}");
}

#[test]
fn space_that_is_kept_is_not_dumped_byte_by_byte() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("s");
    numbered_store(&store, 10);
    let said = silt(["dump", "--json", path(&store.join("RESERVE"))]).fine();
    assert!(
        said.contains("\"zero_count\":65536") && said.len() < 1000,
        "{said}"
    );
}
