//! Mistakes of operators with a store's settings and files, and how `silt` reports them.

mod common;

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use common::{Draw, Ended, SILT, numbered_store, on, split_store};

/// A closed store with two keyspaces, `default` and `other`.
fn two_keyspaces(dir: &Path) -> PathBuf {
    let store = dir.join("s");
    numbered_store(&store, 100);
    on("put", &store, &["-k", "other", "k", "v"]).fine();
    store
}

/// The output of a check that finds damage.
#[track_caller]
fn damaged(store: &Path) -> String {
    let checked = on("check", store, &[]);
    assert_eq!(
        (checked.code, &checked.err[..]),
        (Some(1), ""),
        "{checked:?}"
    );
    checked.out
}

#[track_caller]
fn has_all(said: &str, words: &[&str]) {
    for word in words {
        assert!(said.contains(word), "{word}: {said}");
    }
}

#[test]
fn a_folder_in_the_settings_that_the_store_does_not_have_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let store = two_keyspaces(dir.path());
    fs::write(store.join("OPTIONS.toml"), "log_dir = \"/elsewhere\"\n").unwrap();
    for said in [
        damaged(&store),
        on("get", &store, &["key 000001"]).failed(3),
        on("put", &store, &["k", "v"]).failed(3),
    ] {
        has_all(
            &said,
            &["OPTIONS.toml", "log_dir", "remove the line", "/elsewhere"],
        );
        assert!(!said.contains("DIRECTORIES"), "{said}");
    }
    // The command can do what the advice says.
    on("options", &store, &["--unset", "log_dir"]).fine();
    on("check", &store, &[]).fine();
    assert_eq!(on("count", &store, &[]).fine(), "100\n");
    // The same holds if another folder was recorded.
    let dir = tempfile::tempdir().unwrap();
    let store = split_store(dir.path());
    on("check", &store, &[]).fine();
    fs::write(store.join("OPTIONS.toml"), "table_dir = \"/elsewhere\"\n").unwrap();
    let said = damaged(&store);
    has_all(
        &said,
        &[
            "OPTIONS.toml",
            "table_dir",
            "remove the line",
            "DIRECTORIES",
        ],
    );
}

#[test]
fn settings_that_contradict_what_the_store_keeps_are_named_with_their_origins() {
    let dir = tempfile::tempdir().unwrap();
    let store = two_keyspaces(dir.path());
    on(
        "options",
        &store,
        &["-k", "other", "--set", "l0_trigger_count=30"],
    )
    .fine();
    fs::write(
        store.join("OPTIONS.toml"),
        "[keyspaces.other]\nl0_slowdown_count = 20\n",
    )
    .unwrap();
    assert_eq!(on("get", &store, &["-k", "other", "k"]).fine(), "v\n");
    let copy = dir.path().join("copy");
    for said in [
        damaged(&store),
        on("put", &store, &["k", "v"]).failed(3),
        on("checkpoint", &store, &[copy.to_str().unwrap()]).failed(3),
    ] {
        has_all(
            &said,
            &[
                "OPTIONS.toml",
                "l0_trigger_count (kept by the store)",
                "20 (set in OPTIONS.toml)",
                "at least 30",
                "-k other --unset l0_trigger_count",
            ],
        );
    }
    // A change that makes the settings valid is accepted, and another one is refused.
    let refused = on(
        "options",
        &store,
        &["-k", "other", "--set", "l0_stop_count=25"],
    );
    has_all(&refused.failed(3), &["l0_trigger_count"]);
    on(
        "options",
        &store,
        &["-k", "other", "--unset", "l0_trigger_count"],
    )
    .fine();
    on("check", &store, &[]).fine();
    on("put", &store, &["k", "v"]).fine();
    let shown = on("options", &store, &["-k", "other"]).fine();
    has_all(&shown, &["l0_slowdown_count = 20  # set for the keyspace"]);
}

#[test]
fn a_change_whose_file_cannot_be_written_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let store = two_keyspaces(dir.path());
    on(
        "options",
        &store,
        &["-k", "other", "--set", "block_bytes=8192"],
    )
    .fine();
    let before = on("options", &store, &["-k", "other"]).fine();
    let file = fs::read(store.join("OPTIONS.toml")).unwrap();
    // The file at this path cannot be written, as on a full disk.
    let in_the_way = store.join(".OPTIONS.toml.tmp");
    fs::create_dir(&in_the_way).unwrap();
    for change in [["--set", "compression=zstd"], ["--unset", "block_bytes"]] {
        let said = on("options", &store, &[&["-k", "other"], &change[..]].concat()).failed(3);
        has_all(&said, &[".OPTIONS.toml.tmp", "nothing was changed"]);
    }
    fs::remove_dir(&in_the_way).unwrap();
    assert_eq!(on("options", &store, &["-k", "other"]).fine(), before);
    assert_eq!(fs::read(store.join("OPTIONS.toml")).unwrap(), file);
    // A change that the store refuses leaves no traces.
    on(
        "options",
        &store,
        &["-k", "missing", "--set", "block_bytes=8192"],
    )
    .failed(2);
    assert!(!in_the_way.exists());
}

#[test]
fn a_store_that_cannot_be_read_keeps_its_settings() {
    for lost in ["CURRENT", "DIRECTORIES"] {
        for is_damaged in [false, true] {
            let dir = tempfile::tempdir().unwrap();
            let store = split_store(dir.path());
            let file = fs::read(store.join("OPTIONS.toml")).unwrap();
            match is_damaged {
                true => fs::write(store.join(lost), "junk\n").unwrap(),
                false => fs::remove_file(store.join(lost)).unwrap(),
            }
            let said = on("options", &store, &["--set", "background_tasks=3"]).failed(3);
            has_all(&said, &[lost]);
            assert_eq!(
                fs::read(store.join("OPTIONS.toml")).unwrap(),
                file,
                "{said}"
            );
        }
    }
}

#[test]
fn a_setting_is_not_both_set_and_unset() {
    let dir = tempfile::tempdir().unwrap();
    let store = two_keyspaces(dir.path());
    let change = ["--set", "compression=zstd", "--unset", "compression"];
    let said = on("options", &store, &change).failed(2);
    has_all(&said, &["compression cannot be both set and unset"]);
    assert!(!store.join("OPTIONS.toml").exists());
}

#[test]
fn a_split_store_that_lost_both_pointers_is_not_made_anew() {
    let dir = tempfile::tempdir().unwrap();
    let store = split_store(dir.path());
    let new = dir.path().join("new");
    let lines = {
        let said = fs::read_to_string(store.join("DIRECTORIES")).unwrap();
        let (lines, _) = said.split_once("crc32c").unwrap();
        format!("{lines}crc32c edited\n")
    };
    let current = fs::read(store.join("CURRENT")).unwrap();
    for file in ["CURRENT", "DIRECTORIES"] {
        fs::remove_file(store.join(file)).unwrap();
    }
    for said in [
        damaged(&store),
        on("repair", &store, &["--to", new.to_str().unwrap()]).failed(3),
        on("count", &store, &[]).failed(3),
        on("put", &store, &["k", "v"]).failed(3),
    ] {
        has_all(
            &said,
            &["DIRECTORIES", "log_dir in OPTIONS.toml", "OWNER", "5 lines"],
        );
        for line in lines.lines() {
            has_all(&said, &[line]);
        }
        assert!(!said.contains("create a store"), "{said}");
    }
    assert!(!new.exists() && !store.join("CURRENT").exists());
    // With these lines, and without CURRENT, a repair finds everything.
    fs::write(store.join("DIRECTORIES"), lines).unwrap();
    on("repair", &store, &["--to", new.to_str().unwrap()]);
    assert_eq!(on("count", &new, &[]).fine(), "2000\n");
    fs::write(store.join("CURRENT"), current).unwrap();
    assert_eq!(on("count", &store, &[]).fine(), "2000\n");
}

#[test]
fn a_manifest_without_its_pointer_is_no_place_for_a_new_store() {
    let dir = tempfile::tempdir().unwrap();
    let store = split_store(dir.path());
    for file in ["CURRENT", "DIRECTORIES", "OPTIONS.toml"] {
        fs::remove_file(store.join(file)).unwrap();
    }
    for (command, args) in [("count", &[][..]), ("put", &["k", "v"])] {
        let said = on(command, &store, args).failed(3);
        has_all(&said, &["MANIFEST", "CURRENT"]);
        assert!(!said.contains("create a store"), "{said}");
    }
    assert!(!store.join("CURRENT").exists());
    // A folder with settings only is that of a store that will be created.
    let store = dir.path().join("new");
    on("options", &store, &["--set", "background_tasks=3"]).fine();
    on("put", &store, &["k", "v"]).fine();
}

#[test]
fn an_emptied_file_of_directories_is_written_again_like_a_missing_one() {
    let dir = tempfile::tempdir().unwrap();
    let store = split_store(dir.path());
    let file = store.join("DIRECTORIES");
    fs::write(&file, "").unwrap();
    let said = damaged(&store);
    has_all(
        &said,
        &["5 lines: `siltstone-directories 1`", "`crc32c edited`"],
    );
    let dumped = on("dump", &file, &[]);
    assert_eq!(dumped.code, Some(1), "{dumped:?}");
    has_all(&dumped.out, &["DAMAGED"]);
    fs::write(&file, "junk\n").unwrap();
    assert_eq!(on("dump", &file, &[]).code, Some(1));
    let owner = dir.path().join("fast/OWNER");
    on("dump", &owner, &[]).fine();
    fs::write(&owner, "").unwrap();
    assert_eq!(on("dump", &owner, &[]).code, Some(1));
    fs::remove_file(&file).unwrap();
    has_all(
        &damaged(&store),
        &["log and tables of the store", "lie is missing"],
    );
}

#[test]
fn a_load_that_fails_after_its_last_record_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("s");
    for set in ["log_segment_bytes=65536", "compression=none"] {
        on("options", &store, &["--set", set]).fine();
    }
    let input = dir.path().join("lines.txt");
    let mut draw = Draw(7);
    let lines: String = (0..5000)
        .map(|n| format!("{n:06} {:060}\n", draw.below(u64::MAX)))
        .collect();
    fs::write(&input, lines).unwrap();
    // Each segment of the log fits into 128 KiB; the table that the load writes at its end does
    // not.
    let limited: Ended = Command::new("sh")
        .args(["-c", "ulimit -f 256; exec \"$0\" load \"$1\" \"$2\""])
        .args([OsStr::new(SILT), store.as_os_str(), input.as_os_str()])
        .output()
        .unwrap()
        .into();
    let said = limited.failed(3);
    has_all(
        &said,
        &[
            "all records were loaded",
            "5,000 records",
            "only the close of the store",
        ],
    );
    assert!(!said.contains("give the command again"), "{said}");
    assert_eq!(on("count", &store, &[]).fine(), "5000\n");
}
