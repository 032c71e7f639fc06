//! A second location of tables on the command line: what `stats`, `levels` and `check` show of it,
//! how it is added and taken out, and the errors for folders that cannot be it.

mod common;

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use siltstone::{Options, Store};

use common::{files, numbered_store, on};

/// Gives a store the second location `folder` from its next open on.
fn set_location(store: &Path, folder: &Path) {
    let set = format!("redirect_dir={}", folder.display());
    on("options", store, &["--set", &set]).fine();
}

/// A store `s` with one table in its own folder, and two in `wide` beside it.
fn redirected_store(dir: &Path) -> (PathBuf, PathBuf) {
    let (store, wide) = (dir.join("s"), dir.join("wide"));
    set_location(&store, &wide);
    let open = Store::open(&store, Options::load(&store).unwrap()).unwrap();
    let hooks = open.test_hooks();
    hooks.pause_compaction(true);
    let keyspace = open.default_keyspace().unwrap();
    for (round, location) in [1, 0, 1].into_iter().enumerate() {
        hooks.force_location(Some(location));
        for i in 0..100 {
            let key = format!("key {}", round * 50 + i);
            keyspace.put(key.as_bytes(), [b'v'; 300]).unwrap();
        }
        open.flush().unwrap();
    }
    drop((hooks, keyspace));
    open.close().unwrap();
    assert_eq!(files(&store, ".tbl").len(), 1);
    assert_eq!(files(&wide, ".tbl").len(), 2);
    (store, wide)
}

fn json(command: &str, store: &Path) -> Value {
    serde_json::from_str(&on(command, store, &["--json"]).fine()).unwrap()
}

fn bytes_of(paths: &[PathBuf]) -> u64 {
    paths.iter().map(|p| fs::metadata(p).unwrap().len()).sum()
}

#[test]
fn both_locations_are_shown() {
    let dir = tempfile::tempdir().unwrap();
    let (store, wide) = redirected_store(dir.path());
    let resolved = |path: &Path| fs::canonicalize(path).unwrap().display().to_string();
    let lines = [
        "locations of tables".to_string(),
        format!("  0  {}: 1 table in ", resolved(&store)),
        format!("  1  {}: 2 tables in ", resolved(&wide)),
        "     0 B flushed there, 0 B brought back".to_string(),
    ];
    for command in ["stats", "levels"] {
        let said = on(command, &store, &[]).fine();
        let shown = said.lines().skip_while(|line| *line != lines[0]);
        let shown: Vec<&str> = shown.take(lines.len()).collect();
        assert_eq!(shown.len(), lines.len(), "{said}");
        for (shown, wanted) in shown.iter().zip(&lines) {
            assert!(shown.starts_with(wanted), "`{shown}` is not `{wanted}`");
        }
        assert!(
            !said.contains("suspended") && !said.contains("not used"),
            "{said}"
        );
    }
    let stats = json("stats", &store);
    let locations = stats["locations"].as_array().unwrap();
    assert_eq!(locations.len(), 2);
    for (at, (location, folder)) in locations.iter().zip([&store, &wide]).enumerate() {
        let tables = files(folder, ".tbl");
        assert_eq!(location["location"], at);
        assert_eq!(location["path"], resolved(folder));
        assert_eq!(location["table_count"], tables.len());
        assert_eq!(location["table_bytes"], bytes_of(&tables));
        assert_eq!(location["is_lost"], false);
        assert_eq!(location["is_suspended"], false);
    }
    // A store with one location shows none.
    let plain = dir.path().join("plain");
    numbered_store(&plain, 10);
    for command in ["stats", "levels"] {
        let said = on(command, &plain, &[]).fine();
        assert!(!said.contains("locations of tables"), "{said}");
    }
    let none = &json("stats", &plain)["locations"];
    assert!(none.as_array().is_none_or(Vec::is_empty), "{none}");
}

#[test]
fn check_looks_at_both_locations() {
    let dir = tempfile::tempdir().unwrap();
    let (store, wide) = redirected_store(dir.path());
    let orphan = "00000001-0000ffff-0000-00000.tbl";
    fs::write(wide.join(orphan), b"left over").unwrap();
    let said = on("check", &store, &[]).fine();
    assert!(said.contains("sound: nothing is wrong"), "{said}");
    let found = json("check", &store);
    let tables = [files(&store, ".tbl"), files(&wide, ".tbl")].concat();
    let named: Vec<_> = tables
        .into_iter()
        .filter(|p| !p.ends_with(orphan))
        .collect();
    assert_eq!(found["table_count"], 3);
    assert_eq!(found["table_bytes"], bytes_of(&named));
    let left = found["orphans"].as_array().unwrap();
    assert_eq!(left.len(), 1, "{found}");
    let name = left[0]["name"].as_str().unwrap();
    assert!(name.ends_with(&format!("wide/{orphan}")), "{name}");

    // A damaged table is named with its path.
    let damaged = named.last().unwrap();
    let whole = fs::read(damaged).unwrap();
    let mut bytes = whole.clone();
    bytes[100] ^= 1;
    fs::write(damaged, bytes).unwrap();
    let ended = on("check", &store, &["--json"]);
    assert_eq!(ended.code, Some(1), "{ended:?}");
    let found: Value = serde_json::from_str(&ended.out).unwrap();
    assert_eq!(found["is_sound"], false);
    let path = found["problems"][0]["path"].as_str().unwrap();
    assert_eq!(
        fs::canonicalize(path).unwrap(),
        fs::canonicalize(damaged).unwrap()
    );
    fs::write(damaged, whole).unwrap();
    on("check", &store, &[]).fine();
}

#[test]
fn compactions_bring_the_tables_back_and_the_location_is_taken_out() {
    let dir = tempfile::tempdir().unwrap();
    let (store, wide) = redirected_store(dir.path());
    let before = on("scan", &store, &[]).fine();
    let no = on("options", &store, &["--set", "redirect_dir=none"]).fine();
    let error = on("put", &store, &["a", "1"]).failed(3);
    assert!(error.contains("2 tables are there"), "{no}{error}");
    set_location(&store, &wide);
    on("compact", &store, &[]).fine();
    assert_eq!(files(&wide, ".tbl"), [] as [PathBuf; 0]);
    let said = on("levels", &store, &[]).fine();
    assert!(said.contains("wide: 0 tables in 0 B"), "{said}");
    assert_eq!(on("scan", &store, &[]).fine(), before);
    // An open for writing takes it out.
    on("options", &store, &["--set", "redirect_dir=none"]).fine();
    on("put", &store, &["key 0", "new"]).fine();
    assert!(!wide.join("OWNER").exists());
    let said = on("levels", &store, &[]).fine();
    assert!(!said.contains("locations of tables"), "{said}");
    assert_eq!(on("get", &store, &["key 0"]).fine(), "new\n");
    on("check", &store, &[]).fine();
}

#[test]
fn the_folder_of_another_store_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (store, wide) = redirected_store(dir.path());
    let other = dir.path().join("other");
    numbered_store(&other, 10);
    for (folder, why) in [
        (&wide, "another store"),
        (&store, "another store"),
        (&other, "the store's own folder"),
    ] {
        set_location(&other, folder);
        let error = on("put", &other, &["a", "1"]).failed(3);
        let path = fs::canonicalize(folder).unwrap();
        assert!(error.contains(&*path.to_string_lossy()), "{why}: {error}");
        // Nothing was changed, and the commands that only read go on.
        assert_eq!(on("count", &other, &[]).fine(), "10\n");
    }
    on("options", &other, &["--unset", "redirect_dir"]).fine();
    on("put", &other, &["a", "1"]).fine();
    for store in [&store, &other] {
        on("check", store, &[]).fine();
    }
}

#[test]
fn a_folder_that_is_gone_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let (store, wide) = redirected_store(dir.path());
    let path = fs::canonicalize(&wide).unwrap().display().to_string();
    let away = dir.path().join("away");
    fs::rename(&wide, &away).unwrap();
    let error = on("put", &store, &["a", "1"]).failed(3);
    for part in ["2 tables of the store", &path, "mount its disk"] {
        assert!(error.contains(part), "{error}");
    }
    // Commands that only read go on, and say what they miss.
    let said = on("levels", &store, &[]).fine();
    let line = format!("  1  {path}: 2 tables in ");
    let line = said.lines().find(|shown| shown.starts_with(&line));
    let line = line.unwrap_or_else(|| panic!("{said}"));
    assert!(
        line.ends_with(", not used until the store is opened again"),
        "{line}"
    );
    let error = on("scan", &store, &[]).failed(3);
    assert!(error.contains(&path), "{error}");
    let ended = on("check", &store, &[]);
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.out.contains("DAMAGED: 2 problems"), "{ended:?}");
    assert!(ended.out.contains(&path), "{ended:?}");
    // When it is back, nothing has changed.
    fs::rename(&away, &wide).unwrap();
    on("check", &store, &[]).fine();
    on("compact", &store, &[]).fine();
    // Without tables there, the store does not need it.
    fs::rename(&wide, &away).unwrap();
    on("put", &store, &["a", "1"]).fine();
    assert_eq!(on("get", &store, &["a"]).fine(), "1\n");
    assert_eq!(on("count", &store, &[]).fine(), "201\n");
}
