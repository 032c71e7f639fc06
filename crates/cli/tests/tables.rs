//! `export` and `ingest`: between stores, over keyspaces, by link, copy and move; `check --json`.

mod common;

use std::fs;

use common::{files, numbered_store, on, silt};

#[test]
fn what_is_exported_is_ingested() {
    let dir = tempfile::tempdir().unwrap();
    let (store, out) = (dir.path().join("s"), dir.path().join("out"));
    numbered_store(&store, 3000);
    on("del", &store, &["key 000007"]).fine();
    let o = out.to_str().unwrap();
    let said = on("export", &store, &[o]).fine();
    assert!(
        said.contains("default-00000.table") && said.contains("2,999 keys"),
        "{said}"
    );
    let said = on("export", &store, &[o]).failed(3);
    assert!(said.contains("default-00000.table"), "{said}");
    let args = [o, "--prefix", "key 0001", "--name", "some", "--json"];
    let said = on("export", &store, &args).fine();
    let said: serde_json::Value = serde_json::from_str(&said).unwrap();
    assert_eq!(said["entry_count"], 100, "{said}");
    assert_eq!(said["tables"][0]["smallest_key"], "key 000100");
    assert_eq!(said["tables"][0]["name"], "some-00000.table");
    let said = on("export", &store, &[o, "--from", "x", "--name", "none"]).fine();
    assert!(said.contains("nothing to export"), "{said}");
    // An exported table can be inspected like any other.
    let said = on("dump", &out.join("some-00000.table"), &[]).fine();
    assert!(said.contains("belongs to no store"), "{said}");

    // The folder has both tables: the range of the second lies within the first, so it is ingested
    // above it.
    let copy = dir.path().join("copy");
    let said = on("ingest", &copy, &[o, "--json"]).fine();
    let said: serde_json::Value = serde_json::from_str(&said).unwrap();
    assert_eq!(
        (&said["entry_count"], &said["run_count"]),
        (&3099.into(), &2.into())
    );
    assert_eq!(
        on("scan", &copy, &[]).fine(),
        on("scan", &store, &[]).fine()
    );
    on("check", &copy, &[]).fine();
    assert!(out.join("some-00000.table").exists());

    // A wrong argument creates no store.
    let none = dir.path().join("none");
    for (args, code, word) in [
        (&[][..], 2, "FILE"),
        (&[dir.path().to_str().unwrap()], 3, "no tables"),
        (&["/nowhere/x.table"], 3, "/nowhere/x.table"),
        (&["--into", "birds"], 2, "NAME=FILE"),
        (&[o, "--copy", "--move"], 2, "--move"),
    ] {
        let said = on("ingest", &none, args).failed(code);
        assert!(said.contains(word), "{args:?}: {said}");
    }
    let said = on("export", &none, &[o]).failed(3);
    assert!(said.contains("none"), "{said}");
    let said = on("export", &store, &[o, "--name", "a/b"]).failed(2);
    assert!(said.contains("a/b"), "{said}");
    assert!(!none.exists());
}

#[test]
fn several_keyspaces_are_one_step() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("s");
    numbered_store(&store, 200);
    on("put", &store, &["wren", "9 g", "-k", "birds"]).fine();
    let out = dir.path().join("out");
    let o = out.to_str().unwrap();
    on("export", &store, &[o]).fine();
    on("export", &store, &[o, "-k", "birds"]).fine();
    let (numbers, birds) = (
        format!("{o}/default-00000.table"),
        format!("{o}/birds-00000.table"),
    );
    let new = dir.path().join("new");
    let into = |name: &str, path: &str| format!("--into={name}={path}");
    // One table is damaged, so none of them is ingested.
    let sound = fs::read(&birds).unwrap();
    let mut bad = sound.clone();
    bad[3] ^= 1;
    fs::write(&birds, &bad).unwrap();
    let args = [
        numbers.clone(),
        into("birds", &birds),
        into("third", &numbers),
    ];
    let args: Vec<_> = args.iter().map(|a| &a[..]).collect();
    let said = on("ingest", &new, &args).failed(3);
    assert!(
        said.contains("birds-00000.table") && said.contains("damaged"),
        "{said}"
    );
    assert!(!new.exists());
    fs::write(&birds, &sound).unwrap();
    let said = on("ingest", &new, &args).fine();
    assert!(
        said.contains("401 entries")
            && said.contains("birds (1 table)")
            && said.contains("third (1 table)"),
        "{said}"
    );
    for (name, count) in [("default", "200\n"), ("birds", "1\n"), ("third", "200\n")] {
        assert_eq!(on("count", &new, &["-k", name]).fine(), count, "{name}");
    }
    // Ingest them again on top, with --move, which removes the files.
    on("put", &new, &["wren", "lost", "-k", "birds"]).fine();
    on("ingest", &new, &[&birds, "-k", "birds", "--move"]).fine();
    assert_eq!(on("get", &new, &["wren", "-k", "birds"]).fine(), "9 g\n");
    assert!(!out.join("birds-00000.table").exists());
    on("ingest", &new, &[&numbers, "-k", "fourth", "--copy"]).fine();
    assert!(out.join("default-00000.table").exists());
    // A store's own table is refused, because it has sequence numbers and a keyspace id.
    on("compact", &new, &[]).fine();
    let own = files(&store, ".tbl").remove(0);
    let said = on("ingest", &new, &[own.to_str().unwrap()]).failed(3);
    assert!(said.contains(".tbl"), "{said}");
    on("check", &new, &[]).fine();
}

#[test]
fn a_check_as_json() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("s");
    numbered_store(&store, 3000);
    let read = |out: &str| -> serde_json::Value { serde_json::from_str(out).unwrap() };
    let found = read(&on("check", &store, &["--json"]).fine());
    assert_eq!(
        (&found["is_sound"], &found["entry_count"]),
        (&true.into(), &3000.into())
    );
    assert!(found["problems"].as_array().unwrap().is_empty());
    let table = files(&store, ".tbl").remove(0);
    let mut bytes = fs::read(&table).unwrap();
    bytes[100] ^= 1;
    fs::write(&table, bytes).unwrap();
    let ended = on("check", &store, &["--json"]);
    assert_eq!(ended.code, Some(1));
    let found = read(&ended.out);
    assert_eq!(found["is_sound"], false);
    let problem = &found["problems"][0];
    assert_eq!(
        problem["file"],
        table.file_name().unwrap().to_str().unwrap()
    );
    assert!(problem["offset"].is_u64() && problem["what"].is_string());
}

/// If something cannot be exported or ingested, the message says why and what to do.
#[test]
fn exports_over_files_and_ingests_of_no_tables_say_so() {
    let dir = tempfile::tempdir().unwrap();
    let (store, out) = (dir.path().join("s"), dir.path().join("out"));
    numbered_store(&store, 100);
    let folder = out.to_str().unwrap();
    on("export", &store, &[folder]).fine();
    let table = out.join("default-00000.table");
    let whole = fs::read(&table).unwrap();
    let said = on("export", &store, &[folder]).failed(3);
    let name = table.display().to_string();
    for word in [&name[..], "exists already", "replaces nothing", "--name"] {
        assert!(said.contains(word), "{word}: {said}");
    }
    assert_eq!(fs::read(&table).unwrap(), whole);
    on("export", &store, &[folder, "--name", "other"]).fine();
    let said = on("export", &store, &[&name]).failed(3);
    assert!(
        said.contains("this is a file") && said.contains("folder"),
        "{said}"
    );

    let other = dir.path().join("words.txt");
    for bytes in [
        &b"some words\n"[..],
        &[b'x'; 5_000],
        b"",
        &whole[..whole.len() - 1],
    ] {
        fs::write(&other, bytes).unwrap();
        let said = on("ingest", &store, &[other.to_str().unwrap()]).failed(3);
        for word in ["words.txt", "no table, or not a whole one", "`silt load`"] {
            assert!(said.contains(word), "{word}: {said}");
        }
        assert!(!said.contains("silt check"), "{said}");
    }
    assert_eq!(on("count", &store, &[]).fine(), "100\n");
    // A mistyped name creates a keyspace, and the output says so.
    let said = on("ingest", &store, &[&name, "-k", "brids"]).fine();
    assert!(
        said.starts_with("created keyspace `brids`\ningested 100 entries"),
        "{said}"
    );
    assert_eq!(
        on("put", &store, &["k", "v", "-k", "beetles"]).fine(),
        "created keyspace `beetles`\n"
    );
    assert_eq!(on("put", &store, &["k", "v", "-k", "beetles"]).fine(), "");
}

/// Every command has examples, and everything that prints figures prints JSON.
#[test]
fn help_teaches_by_example() {
    let dir = tempfile::tempdir().unwrap();
    let pages = dir.path().join("man1");
    silt(["man", "--folder", pages.to_str().unwrap()]).fine();
    let mut seen = 0;
    for page in fs::read_dir(&pages).unwrap() {
        let name = page.unwrap().file_name().into_string().unwrap();
        let command: Vec<_> = name
            .trim_end_matches(".1")
            .split('-')
            .skip(1)
            .filter(|word| !word.is_empty())
            .collect();
        if command.is_empty() || command == ["keyspace"] || command.contains(&"help") {
            continue;
        }
        let help = silt(command.iter().chain(&["--help"])).fine();
        assert!(help.contains("Example"), "{command:?}: {help}");
        let silent = [
            "put",
            "del",
            "man",
            "completions",
            "demo",
            "create",
            "drop",
            "options",
            "destroy",
        ];
        if !silent.contains(command.last().unwrap()) {
            assert!(help.contains("--json"), "{command:?}: {help}");
        }
        seen += 1;
    }
    assert!(seen >= 20, "{seen}");
}
