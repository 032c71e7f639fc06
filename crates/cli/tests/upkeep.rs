//! `options` and `checkpoint`.

mod common;

use std::fs;

use common::{numbered_store, on, silt};

#[test]
fn settings_are_printed_changed_and_followed() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("s");
    let said = on("options", &store, &[]).failed(3);
    assert!(said.contains("--set"), "{said}");
    assert!(!store.exists());
    // The store does not exist yet.
    on("options", &store, &["--set", "memtable_bytes=1048576"]).fine();
    on("options", &store, &["--set", "compression=lz4"]).fine();
    let written = || fs::read_to_string(store.join("OPTIONS.toml")).unwrap();
    assert_eq!(
        written(),
        "memtable_bytes = \"1 MiB\"\ncompression = \"lz4\"\n"
    );
    let printed = on("options", &store, &[]).fine();
    for line in [
        "\nmemtable_bytes = \"1 MiB\"  # OPTIONS.toml\n",
        "\nverify = \"once\"  # default\n",
        "\n# Size of a memtable.",
    ] {
        assert!(printed.contains(line), "{line}: {printed}");
    }
    assert!(
        printed.lines().all(|line| line.chars().count() <= 100),
        "{printed}"
    );
    // The output is a valid file of settings.
    siltstone::Options::from_toml(&printed).unwrap();
    // A memtable of 1 MiB is flushed several times; one of 64 MiB never would be.
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
    let said = on("options", &store, &["--unset", "memtable_bytes"]).fine();
    assert_eq!(said, "memtable_bytes = \"64 MiB\"  # default\n");
    assert_eq!(written(), "compression = \"lz4\"\n");
    let before = on("options", &store, &[]).fine();
    for (args, code, word) in [
        (["--set", "memtable_byte=1"], 2, "memtable_bytes"),
        (["--set", "memtable_bytes=1"], 2, "memtable_bytes"),
        (["--set", "memtable_bytes"], 2, "NAME=VALUE"),
        (["--set", "compression=best"], 2, "lz4"),
        (["--unset", "nothing"], 2, "nothing"),
    ] {
        let said = on("options", &store, &args).failed(code);
        assert!(said.contains(word), "{args:?}: {said}");
    }
    assert_eq!(on("options", &store, &[]).fine(), before);
    // Every command reports errors in the file.
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
fn a_setting_is_shown_with_its_source_and_taken_away_everywhere() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("s");
    // A keyspace has settings only once it exists.
    for args in [["--set", "block_bytes=32768"], ["--unset", "block_bytes"]] {
        let args = ["-k", "birds", args[0], args[1]];
        let said = on("options", &store, &args).failed(3);
        assert!(said.contains("silt keyspace create"), "{said}");
        assert!(!store.exists());
    }
    on("put", &store, &["wren", "9 g"]).fine();
    let keyspace = ["create", store.to_str().unwrap(), "-k", "birds"];
    silt(["keyspace"].into_iter().chain(keyspace)).fine();
    for args in [
        &["-k", "brids"][..],
        &["-k", "brids", "--set", "block_bytes=32768"],
    ] {
        let said = on("options", &store, args).failed(2);
        assert!(
            said.contains("`brids`") && said.contains("one of: birds, default"),
            "{said}"
        );
    }
    assert!(!store.join("OPTIONS.toml").exists());
    let line = |name: &str| -> String {
        let said = on("options", &store, &["-k", "birds"]).fine();
        let found = said.lines().find(|l| l.starts_with(&format!("{name} = ")));
        found
            .unwrap_or_else(|| panic!("{name}: {said}"))
            .to_string()
    };
    assert_eq!(line("block_bytes"), "block_bytes = \"4 KiB\"  # default");
    let said = on("options", &store, &["--set", "block_bytes=16384"]).fine();
    assert_eq!(said, "block_bytes = \"16 KiB\"  # OPTIONS.toml\n");
    assert_eq!(
        line("block_bytes"),
        "block_bytes = \"16 KiB\"  # OPTIONS.toml"
    );
    // The store keeps the setting at once: a program that does not read the file has it too.
    let said = on(
        "options",
        &store,
        &["-k", "birds", "--set", "block_bytes=32768"],
    )
    .fine();
    let kept = "block_bytes = \"32 KiB\"  # set for the keyspace, kept by the store";
    assert_eq!(said, format!("{kept}\n"));
    let block_bytes = || {
        let options = siltstone::Options::default();
        let opened = siltstone::Store::open(&store, options).unwrap();
        let own = opened.keyspace("birds").unwrap().own_options();
        opened.close().unwrap();
        own.block_bytes
    };
    assert_eq!(block_bytes(), Some(32 << 10));
    let said = on("options", &store, &["--unset", "block_bytes"]).fine();
    assert_eq!(
        said,
        format!("block_bytes = \"4 KiB\"  # default\n[keyspaces.\"birds\"]\n{kept}\n")
    );
    let all = on("options", &store, &["--json"]).fine();
    let all: serde_json::Value = serde_json::from_str(&all).unwrap();
    assert_eq!(all["keyspaces"][0]["name"], "birds", "{all}");
    assert_eq!(all["keyspaces"][0]["settings"][0]["value"], 32768, "{all}");
    assert_eq!(
        all["keyspaces"][0]["settings"][0]["source"], "keyspace",
        "{all}"
    );
    // The file alone does not show what the store keeps.
    fs::remove_file(store.join("OPTIONS.toml")).unwrap();
    assert_eq!(line("block_bytes"), kept);
    let said = on(
        "options",
        &store,
        &["-k", "birds", "--unset", "block_bytes"],
    )
    .fine();
    assert_eq!(said, "block_bytes = \"4 KiB\"  # default\n");
    assert_eq!(block_bytes(), None);
    assert_eq!(line("block_bytes"), "block_bytes = \"4 KiB\"  # default");
    // Settings written by hand take effect at the next open for writing.
    let text = "# by hand\n[keyspaces.birds]\nlevel_factor = 4\n[keyspaces.gone]\n";
    fs::write(store.join("OPTIONS.toml"), text).unwrap();
    assert!(line("level_factor").ends_with("when the store is next opened for writing"));
    let said = on("options", &store, &[]).fine();
    assert!(
        said.contains("`gone`, which is not a keyspace of the store"),
        "{said}"
    );
    on("put", &store, &["wren", "10 g"]).fine();
    assert!(line("level_factor").ends_with("kept by the store"));
    let impossible = [
        "-k",
        "birds",
        "--set",
        "l0_stop_count=3",
        "--set",
        "l0_trigger_count=4",
    ];
    let said = on("options", &store, &impossible).failed(2);
    assert!(
        said.contains("the value of option l0_stop_count is not valid"),
        "{said}"
    );
    assert_eq!(
        fs::read_to_string(store.join("OPTIONS.toml")).unwrap(),
        text
    );
}

#[test]
fn settings_beside_a_program_that_has_others() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("s");
    on("options", &store, &["--set", "sync=always"]).fine();
    let options = siltstone::Options {
        stats_file_ms: 100,
        ..siltstone::Options::default()
    };
    let open = siltstone::Store::open(&store, options).unwrap();
    while !store.join("STATS.json").exists() {
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    let said = on("options", &store, &[]).fine();
    let pid = std::process::id();
    assert!(
        said.contains(&format!("\nsync = \"never\"  # process {pid}")),
        "{said}"
    );
    let said = on("stats", &store, &[]).fine();
    assert!(
        said.contains("sync is \"never\", but OPTIONS.toml sets \"always\""),
        "{said}"
    );
    // What the store keeps can be changed by the program that has it open, or when it is closed.
    let said = on(
        "options",
        &store,
        &["-k", "default", "--set", "level_factor=4"],
    )
    .failed(3);
    assert!(said.contains("Keyspace::set_options"), "{said}");
    let said = on("options", &store, &["--set", "sync=never"]).fine();
    assert!(said.contains("next open"), "{said}");
    open.close().unwrap();
}

#[test]
fn silt_never_contradicts_its_file() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("s");
    on("options", &store, &["--write"]).fine();
    for (command, args) in [
        ("put", &["k", "v"][..]),
        ("load", &["/dev/null"]),
        ("compact", &[]),
    ] {
        let log = ["--log", "warn"];
        let all: Vec<&str> = args.iter().chain(&log).copied().collect();
        on(command, &store, &all).fine();
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

#[test]
fn a_store_is_destroyed_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let (store, at) = (dir.path().join("s"), |name: &str| dir.path().join(name));
    // They can be set before the store exists, and never after.
    let fast = format!("log_dir={}", at("fast").display());
    on("options", &store, &["--set", &fast]).fine();
    on("options", &store, &["--set", "table_dir=tables"]).fine();
    numbered_store(&store, 2000);
    assert!(at("fast/OWNER").exists() && store.join("tables/OWNER").exists());
    let said = on("options", &store, &["--set", &fast]).failed(2);
    assert!(said.contains("log_dir"), "{said}");
    // Every command finds the parts of the store.
    assert_eq!(on("count", &store, &[]).fine().trim(), "2000");
    let said = on("check", &store, &[]).fine();
    assert!(said.contains("sound") && !said.contains("also"), "{said}");
    on("put", &store, &["new", "value"]).fine();
    let copy = at("copy");
    on("checkpoint", &store, &[copy.to_str().unwrap()]).fine();
    assert_eq!(on("count", &copy, &[]).fine().trim(), "2001");
    assert!(!copy.join("DIRECTORIES").exists());
    let repaired = at("repaired");
    on("repair", &store, &["--to", repaired.to_str().unwrap()]).fine();
    assert_eq!(on("count", &repaired, &[]).fine().trim(), "2001");
    // There is no terminal to ask on.
    let said = on("destroy", &store, &[]).failed(2);
    assert!(said.contains("--yes"), "{said}");
    assert_eq!(on("count", &store, &[]).fine().trim(), "2001");
    let said = on("destroy", &store, &["--yes"]).fine();
    assert!(said.contains("deleted") && !said.contains("left"), "{said}");
    assert!(!store.exists() && !at("fast").exists());
    let said = on("destroy", &store, &["--yes"]).failed(3);
    assert!(said.contains("no such directory"), "{said}");
    // The user's files stay.
    fs::write(copy.join("letter.txt"), "dear").unwrap();
    let said = on("destroy", &copy, &["--yes"]).fine();
    assert!(said.contains("letter.txt"), "{said}");
    assert_eq!(fs::read_to_string(copy.join("letter.txt")).unwrap(), "dear");
    let said = on("destroy", &copy, &["--yes"]).failed(3);
    assert!(said.contains("no siltstone store"), "{said}");
    // The file that says where the parts are can be damaged too.
    let store = at("s2");
    on("options", &store, &["--set", "log_dir=log"]).fine();
    numbered_store(&store, 10);
    let file = store.join("DIRECTORIES");
    let text = fs::read_to_string(&file).unwrap();
    fs::write(&file, text.replace("log /", "log //")).unwrap();
    let ended = on("check", &store, &[]);
    assert_eq!(ended.code, Some(1), "{}{}", ended.out, ended.err);
    assert!(
        ended.out.contains("DAMAGED") && ended.out.contains("DIRECTORIES"),
        "{}",
        ended.out
    );
    let ended = on("check", &store, &["--json"]);
    assert_eq!(ended.code, Some(1), "{}{}", ended.out, ended.err);
    let said: serde_json::Value = serde_json::from_str(&ended.out).unwrap();
    assert_eq!(said["is_sound"], false);
    assert_eq!(said["problems"][0]["file"], "DIRECTORIES");
    fs::write(&file, text).unwrap();
    on("check", &store, &[]).fine();
    // If something else is in the place of a file, check and an open report what it is.
    fs::remove_file(store.join("RESERVE")).unwrap();
    fs::create_dir(store.join("RESERVE")).unwrap();
    let ended = on("check", &store, &[]);
    assert!(
        ended.code == Some(1) && ended.out.contains("a directory lies where"),
        "{}",
        ended.out
    );
    let said = on("put", &store, &["k", "v"]).failed(3);
    assert!(
        said.contains("RESERVE") && said.contains("move it away"),
        "{said}"
    );
    std::os::unix::fs::symlink(at("nowhere"), at("link")).unwrap();
    let said = on("put", &at("link"), &["k", "v"]).failed(3);
    assert!(said.contains("symbolic link to"), "{said}");
}
