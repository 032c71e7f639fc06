//! `options` and `checkpoint`.

mod common;

use std::fs;

use common::{numbered_store, on};

#[test]
fn settings_are_printed_changed_and_followed() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("s");
    let said = on("options", &store, &[]).failed(3);
    assert!(said.contains("--set"), "{said}");
    assert!(!store.exists());
    // Before the store is there.
    on("options", &store, &["--set", "memtable_bytes=1048576"]).fine();
    on("options", &store, &["--set", "compression=lz4"]).fine();
    on(
        "options",
        &store,
        &["-k", "birds", "--set", "bloom_bits_per_key = 12"],
    )
    .fine();
    let printed = on("options", &store, &[]).fine();
    for line in ["memtable_bytes = \"1 MiB\"", "[keyspaces.birds]", "# "] {
        assert!(printed.contains(line), "{line}: {printed}");
    }
    assert_eq!(
        printed,
        fs::read_to_string(store.join("OPTIONS.toml")).unwrap()
    );
    let said = on("options", &store, &["-k", "birds"]).fine();
    assert!(said.contains("bloom_bits_per_key = 12"), "{said}");
    // A memtable of 1 MiB is flushed several times where one of 64 MiB never would be.
    let wide = "x".repeat(90);
    let lines: String = (0..40_000).map(|n| format!("{n:06}{wide}\n")).collect();
    let file = dir.path().join("lines");
    fs::write(&file, lines).unwrap();
    on("load", &store, &[file.to_str().unwrap()]).fine();
    let levels = on("levels", &store, &["--json"]).fine();
    let levels: serde_json::Value = serde_json::from_str(&levels).unwrap();
    let bytes = |what: &str| -> u64 {
        let levels = levels[0]["levels"].as_array().unwrap().iter();
        levels.map(|level| level[what].as_u64().unwrap()).sum()
    };
    assert!(bytes("table_count") > 1, "{levels}");
    assert!(
        bytes("file_bytes") < bytes("raw_bytes") / 2,
        "lz4: {levels}"
    );
    on("options", &store, &["--unset", "memtable_bytes"]).fine();
    assert!(
        !on("options", &store, &[])
            .fine()
            .contains("memtable_bytes = \"1 MiB\"")
    );
    let before = on("options", &store, &[]).fine();
    for (args, code, word) in [
        (["--set", "memtable_byte=1"], 3, "memtable_bytes"),
        (["--set", "memtable_bytes=1"], 3, "memtable_bytes"),
        (["--set", "memtable_bytes"], 2, "NAME=VALUE"),
        (["--set", "compression=best"], 3, "lz4"),
        (["--unset", "nothing"], 3, "nothing"),
    ] {
        let said = on("options", &store, &args).failed(code);
        assert!(said.contains(word), "{args:?}: {said}");
    }
    assert_eq!(on("options", &store, &[]).fine(), before);
    // What is wrong in the file is named by every command.
    fs::write(store.join("OPTIONS.toml"), "memtable_bytes = 1\n").unwrap();
    for (command, args) in [("count", &[][..]), ("put", &["k", "v"]), ("options", &[])] {
        let said = on(command, &store, args).failed(3);
        assert!(
            said.contains("OPTIONS.toml") && said.contains("memtable_bytes"),
            "{command}: {said}"
        );
    }
}

#[test]
fn a_checkpoint_is_a_store_of_its_own() {
    let dir = tempfile::tempdir().unwrap();
    let (store, copy) = (dir.path().join("s"), dir.path().join("copy"));
    numbered_store(&store, 500);
    on("put", &store, &["k", "in the log", "-k", "birds"]).fine();
    on("options", &store, &["--set", "compression=lz4"]).fine();
    let said = on("checkpoint", &store, &[copy.to_str().unwrap(), "--json"]).fine();
    let said: serde_json::Value = serde_json::from_str(&said).unwrap();
    assert_eq!(said["keyspace_count"], 2, "{said}");
    on("del", &store, &["--prefix", "", "--yes"]).fine();
    on("compact", &store, &[]).fine();
    assert_eq!(on("count", &store, &[]).fine(), "0\n");
    assert_eq!(on("count", &copy, &[]).fine(), "500\n");
    assert_eq!(
        on("get", &copy, &["k", "-k", "birds"]).fine(),
        "in the log\n"
    );
    assert!(copy.join("OPTIONS.toml").exists());
    on("check", &copy, &[]).fine();
    let said = on("checkpoint", &store, &[copy.to_str().unwrap()]).failed(3);
    assert!(said.contains("copy"), "{said}");
    assert_eq!(on("count", &copy, &[]).fine(), "500\n");
    let missing = dir.path().join("missing");
    on(
        "checkpoint",
        &missing,
        &[dir.path().join("x").to_str().unwrap()],
    )
    .failed(3);
    assert!(!missing.exists() && !dir.path().join("x").exists());
}
