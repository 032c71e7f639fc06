//! `OPTIONS.toml` in a store's folder: `Options::load`, and opens whose options contradict the
//! file.
// A listener is code of the user, which uses the locks and channels of std.
#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

use std::fs;
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use siltstone::{ErrorKind, Event, EventListener, KeyspaceOptions, Options, Store, SyncMode};

/// Forwards the events about the file.
struct Listener(Mutex<Sender<Event>>);

impl EventListener for Listener {
    fn on_event(&self, event: &Event) {
        let about_the_file = matches!(
            event,
            Event::OptionsDiffer { .. }
                | Event::OptionsUnreadable { .. }
                | Event::OptionsOfNoKeyspace { .. }
        );
        // A keyspace that is created is the last event of each test.
        if about_the_file || matches!(event, Event::KeyspaceCreated { .. }) {
            let _ = self.0.lock().unwrap().send(event.clone());
        }
    }
}

fn open(path: &Path, options: Options) -> (Store, Receiver<Event>) {
    let (sender, events) = channel();
    let listener = Arc::new(Listener(Mutex::new(sender)));
    let store = Store::open_with_listener(path, options, listener).unwrap();
    (store, events)
}

/// The events about the file that the open has emitted.
fn emitted(store: &Store, events: &Receiver<Event>) -> Vec<Event> {
    store.create_keyspace("the last event").unwrap();
    let mut all = Vec::new();
    loop {
        match events.recv_timeout(Duration::from_secs(60)).unwrap() {
            Event::KeyspaceCreated { .. } => break,
            event => all.push(event),
        }
    }
    store.drop_keyspace("the last event").unwrap();
    all
}

fn differences(store: &Store) -> Vec<String> {
    let stats = store.stats();
    assert_eq!(stats.options_file_error, None);
    stats
        .option_differences
        .iter()
        .map(|d| d.to_string())
        .collect()
}

#[test]
fn load_reads_what_an_operator_has_set() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("s");
    // The folder does not exist yet, so it has no file.
    assert_eq!(Options::load(&store).unwrap(), Options::default());
    fs::create_dir(&store).unwrap();
    assert_eq!(Options::load(&store).unwrap(), Options::default());
    // A folder may have a name like that of a file.
    let folder = dir.path().join("folder.toml");
    fs::create_dir(&folder).unwrap();
    assert_eq!(Options::load(&folder).unwrap(), Options::default());
    // No folder can be below a file.
    let below = dir.path().join("file/s");
    fs::write(dir.path().join("file"), "sync = \"always\"\n").unwrap();
    assert_eq!(Options::load(below).unwrap(), Options::default());

    let file = store.join("OPTIONS.toml");
    let text = "sync = \"always\" # we lost a day once\n[keyspaces.a]\nblock_bytes = \"32 KiB\"\n";
    fs::write(&file, text).unwrap();
    let options = Options::load(&store).unwrap();
    assert_eq!(options, Options::from_toml(text).unwrap());
    assert_eq!(options.sync, SyncMode::Always);
    assert_eq!(options.keyspaces["a"].block_bytes, Some(32 << 10));
    // A path may name a file with any name.
    assert_eq!(Options::load(&file).unwrap(), options);
    let named = Options::load(dir.path().join("file")).unwrap();
    assert_eq!(named.sync, SyncMode::Always);
    let missing = Options::load(dir.path().join("missing.toml")).unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::NotFound);
    // The error named OPTIONS.toml, which was not meant.
    let text = missing.to_string();
    assert!(
        text.contains("missing.toml") && !text.contains("OPTIONS.toml"),
        "{text}"
    );
    assert!(missing.advice_text().unwrap().contains("folder"), "{text}");
}

#[test]
fn what_load_refuses_is_named_by_file_line_and_column() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("OPTIONS.toml");
    for (text, place, named) in [
        (
            "\n\n  memtable_bytes = = 3",
            "line 3, column 20",
            "not TOML",
        ),
        (
            "sync = \"always\"\n  memtable_byte = 3",
            "line 2, column 3",
            "`memtable_bytes`",
        ),
        (
            "\nmemtable_bytes = 1",
            "line 2, column 1",
            "64 KiB to 4 GiB",
        ),
        (
            "\u{feff}\nlevel_factor = 2.5",
            "line 2, column 1",
            "found 2.5",
        ),
        (
            "[keyspaces.\"wrens é\"]\n\nl0_stop_coun = 3",
            "line 3, column 1",
            "`wrens é`",
        ),
        ("keyspaces.\"é\".x = 3", "line 1, column 15", "keyspace `é`"),
        (
            "[keyspaces]\na = [1,\n2]",
            "line 2, column 5",
            "keyspaces.a",
        ),
    ] {
        fs::write(&file, text).unwrap();
        let error = Options::load(dir.path()).expect_err(text);
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        let error = error.to_string();
        let path = file.display().to_string();
        assert!(
            error.contains(&format!("{path}: {place}: ")),
            "{text}: {error}"
        );
        assert!(error.contains(named), "{text}: {error}");
    }
    fs::write(&file, b"sync = \"\xff\"").unwrap();
    let error = Options::load(dir.path()).unwrap_err().to_string();
    assert!(
        error.contains("UTF-8") && error.contains("byte 8"),
        "{error}"
    );
    fs::write(&file, vec![b'\n'; (1 << 20) + 1]).unwrap();
    let error = Options::load(dir.path()).unwrap_err().to_string();
    assert!(error.contains("too long"), "{error}");
}

#[test]
fn an_open_that_contradicts_the_file_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = open(dir.path(), Options::default());
    store.create_keyspace("birds").unwrap();
    store.close().unwrap();
    let text = "sync = \"always\"\nlevel_factor = 10\nlog_dir = \"elsewhere\"\n\
        create_if_missing = false\nmemtable_bytes = \"1 MiB\"\n\
        [keyspaces.birds]\nblock_bytes = \"32 KiB\"\n[keyspaces.gone]\nblock_bytes = \"1 KiB\"\n";
    fs::write(dir.path().join("OPTIONS.toml"), text).unwrap();

    let (store, events) = open(dir.path(), Options::default());
    let expected = [
        "sync is \"never\", but OPTIONS.toml sets \"always\"",
        "memtable_bytes is \"64 MiB\", but OPTIONS.toml sets \"1 MiB\"",
        "keyspace `birds`: block_bytes is \"4 KiB\", but OPTIONS.toml sets \"32 KiB\"",
    ];
    assert_eq!(differences(&store), expected);
    match &emitted(&store, &events)[..] {
        [
            Event::OptionsDiffer { differences, .. },
            Event::OptionsOfNoKeyspace { keyspaces, .. },
        ] => {
            assert_eq!(*differences, store.stats().option_differences);
            assert_eq!(*keyspaces, ["gone"]);
        }
        other => panic!("{other:?}"),
    }
    // The file of statistics has it too.
    let json = store.stats().to_json();
    let back: siltstone::Stats = serde_json::from_str(&json).unwrap();
    assert_eq!(back.option_differences, store.stats().option_differences);
    // Options that change while the store is open are compared with their new values.
    store.set_option("memtable_bytes", "1 MiB").unwrap();
    let own = KeyspaceOptions {
        block_bytes: Some(32 << 10),
        ..KeyspaceOptions::default()
    };
    store.keyspace("birds").unwrap().set_options(&own).unwrap();
    assert_eq!(differences(&store), expected[..1]);
    store.close().unwrap();
}

/// A mistyped name of a keyspace in the file went unnoticed.
#[test]
fn options_of_a_keyspace_that_is_not_there_are_reported_until_it_is_created() {
    let dir = tempfile::tempdir().unwrap();
    let text = "[keyspaces.default]\nlevel_factor = 4\n[keyspaces.typo]\nlevel_factor = 5\n";
    fs::write(dir.path().join("OPTIONS.toml"), text).unwrap();
    let (store, events) = open(dir.path(), Options::load(dir.path()).unwrap());
    assert_eq!(differences(&store), [""; 0]);
    assert_eq!(store.stats().options_of_no_keyspace, ["typo"]);
    match &emitted(&store, &events)[..] {
        [Event::OptionsOfNoKeyspace { keyspaces, .. }] => assert_eq!(*keyspaces, ["typo"]),
        other => panic!("{other:?}"),
    }
    let json = store.stats().to_json();
    let back: siltstone::Stats = serde_json::from_str(&json).unwrap();
    assert_eq!(back.options_of_no_keyspace, ["typo"]);
    // If the keyspace is created later, it gets these options.
    let late = store.create_keyspace("typo").unwrap();
    assert_eq!(late.options().level_factor, 5);
    assert_eq!(store.stats().options_of_no_keyspace, [""; 0]);
    store.close().unwrap();
}

/// The store keeps what a keyspace once got from the file, as the guide says.
#[test]
fn options_of_a_keyspace_outlive_the_file_until_they_are_unset() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("OPTIONS.toml");
    fs::write(&file, "[keyspaces.default]\nlevel_factor = 4\n").unwrap();
    let level_factor = || {
        let store = Store::open(dir.path(), Options::load(dir.path()).unwrap()).unwrap();
        let found = store.default_keyspace().unwrap().options().level_factor;
        store.close().unwrap();
        found
    };
    assert_eq!(level_factor(), 4);
    fs::write(&file, "").unwrap();
    assert_eq!(level_factor(), 4);
    let store = Store::open(dir.path(), Options::default()).unwrap();
    let default = store.default_keyspace().unwrap();
    default.unset_options(&["level_factor"]).unwrap();
    store.close().unwrap();
    assert_eq!(level_factor(), 10);
}

#[test]
fn an_open_that_follows_the_file_says_nothing() {
    let dir = tempfile::tempdir().unwrap();
    for text in [
        "",
        "sync = \"20 ms\"\nbloom_bits_per_key = [12, 0]\n[keyspaces.default]\nlevel_factor = 4\n",
        &Options::default().to_toml(),
    ] {
        fs::write(dir.path().join("OPTIONS.toml"), text).unwrap();
        let (store, events) = open(dir.path(), Options::load(dir.path()).unwrap());
        assert_eq!(differences(&store), [""; 0]);
        assert!(emitted(&store, &events).is_empty());
        store.close().unwrap();
    }
    // An option that only the program sets contradicts nothing.
    fs::write(dir.path().join("OPTIONS.toml"), "").unwrap();
    let options = Options {
        sync: SyncMode::Always,
        ..Options::default()
    };
    let (store, events) = open(dir.path(), options);
    assert_eq!(differences(&store), [""; 0]);
    assert!(emitted(&store, &events).is_empty());
    store.close().unwrap();
}

#[test]
fn a_file_that_cannot_be_read_is_no_error_of_the_open() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("OPTIONS.toml"), "sync = sometimes\n").unwrap();
    let (store, events) = open(dir.path(), Options::default());
    let stats = store.stats();
    let message = stats.options_file_error.unwrap();
    let path = dir.path().join("OPTIONS.toml").display().to_string();
    assert!(
        message.starts_with(&format!("{path}: line 1, column 8: ")),
        "{message}"
    );
    assert!(stats.option_differences.is_empty());
    match &emitted(&store, &events)[..] {
        [Event::OptionsUnreadable { error, .. }] => assert_eq!(error.to_string(), message),
        other => panic!("{other:?}"),
    }
    store.close().unwrap();
}
