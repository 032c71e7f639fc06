//! What operators do wrong to a store's settings and its files, and what `silt` says of it.

mod common;

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use common::{Draw, Ended, SILT, numbered_store, on};

/// A store of two keyspaces, `default` and `other`, closed.
fn two_keyspaces(dir: &Path) -> PathBuf {
    let store = dir.join("s");
    numbered_store(&store, 100);
    on("put", &store, &["-k", "other", "k", "v"]).fine();
    store
}

/// A store with its log in `fast` and its tables in `wide` beside it.
fn split_store(dir: &Path) -> PathBuf {
    let store = dir.join("s");
    for (name, folder) in [("log_dir", "fast"), ("table_dir", "wide")] {
        let set = format!("{name}={}", dir.join(folder).display());
        on("options", &store, &["--set", &set]).fine();
    }
    numbered_store(&store, 2000);
    store
}

/// What a check that finds damage prints.
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
    // What lies there cannot be written, as on a full disk.
    let in_the_way = store.join(".OPTIONS.toml.tmp");
    fs::create_dir(&in_the_way).unwrap();
    for change in [["--set", "compression=zstd"], ["--unset", "block_bytes"]] {
        let said = on("options", &store, &[&["-k", "other"], &change[..]].concat()).failed(3);
        has_all(&said, &[".OPTIONS.toml.tmp", "nothing was changed"]);
    }
    fs::remove_dir(&in_the_way).unwrap();
    assert_eq!(on("options", &store, &["-k", "other"]).fine(), before);
    assert_eq!(fs::read(store.join("OPTIONS.toml")).unwrap(), file);
    // Nothing is left of a change that the store refuses.
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
