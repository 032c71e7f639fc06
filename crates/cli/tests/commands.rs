//! Every command on sound stores: its output and its exit code.

mod common;

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};

use common::{SILT, numbered_store, on, silt, silt_with};

#[test]
fn help_of_every_command() {
    let all = silt(["--help"]).fine();
    for command in [
        "load", "put", "get", "del", "scan", "count", "stats", "check", "bench", "demo",
    ] {
        assert!(all.contains(&format!("\n  {command} ")), "{command}: {all}");
        let help = silt([command, "--help"]).fine();
        assert!(help.contains("Usage: silt"), "{help}");
        if !["stats", "check", "bench", "demo"].contains(&command) {
            assert!(
                help.contains("Example") && help.contains("--keyspace"),
                "{help}"
            );
        }
    }
    assert!(!all.contains("demo-writer"), "{all}");
    assert!(silt(["--version"]).fine().starts_with("silt "));
}

#[test]
fn lines_in_and_out() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("s");
    let said = silt_with(
        [OsStr::new("load"), store.as_os_str()],
        b"pear\napple\n\xff\n\nfig\tdry\napple\n",
    )
    .fine();
    assert!(said.contains("\nloaded 6 records"), "{said}");
    // The last of equal lines stays; an empty line is a key.
    assert_eq!(
        on("scan", &store, &[]).fine(),
        "\t4\napple\t6\nfig\\tdry\t5\npear\t1\n\\xff\t3\n"
    );
    assert_eq!(
        on("scan", &store, &["--reverse", "--limit", "2"]).fine(),
        "\\xff\t3\npear\t1\n"
    );
    assert_eq!(
        on(
            "scan",
            &store,
            &["--keys", "--from", "apple", "--to", "pear"]
        )
        .fine(),
        "apple\nfig\\tdry\n"
    );
    assert_eq!(
        on("scan", &store, &["--prefix", "f", "--hex"])
            .failed(2)
            .lines()
            .count(),
        1
    );
    assert_eq!(
        on("scan", &store, &["--prefix", "66", "--hex"]).fine(),
        "66696709647279\t35\n"
    );
    assert_eq!(on("scan", &store, &["--limit", "0"]).fine(), "");
    assert_eq!(on("count", &store, &[]).fine(), "5\n");
    assert_eq!(
        on("count", &store, &["--from", "b", "--to", "q"]).fine(),
        "2\n"
    );
    assert_eq!(on("get", &store, &["apple"]).fine(), "6\n");
    assert_eq!(on("get", &store, &["fig\\tdry"]).fine(), "5\n");
    assert_eq!(on("get", &store, &["\\xff"]).fine(), "3\n");
    assert_eq!(on("get", &store, &["--hex", "ff"]).fine(), "33\n");
    assert_eq!(on("get", &store, &["--raw", "apple"]).fine(), "6");
    assert_eq!(on("get", &store, &[""]).fine(), "4\n");
    let missing = on("get", &store, &["plum"]);
    assert_eq!((missing.code, &missing.out[..]), (Some(1), ""));
    assert!(missing.err.contains("plum"), "{}", missing.err);
}

#[test]
fn csv_with_header_quotes_and_keyspaces() {
    let dir = tempfile::tempdir().unwrap();
    let (store, file) = (dir.path().join("s"), dir.path().join("people.csv"));
    std::fs::write(
        &file,
        "name,age,says\r\n\"Doe, Jane\",41,\"two\nlines\"\r\nBob,7,\"\"\"hi\"\"\"\r\n",
    )
    .unwrap();
    let file = file.to_str().unwrap();
    let said = on(
        "load",
        &store,
        &[file, "--format", "csv", "--header", "-k", "people"],
    )
    .fine();
    assert!(said.contains("\nloaded 2 records"), "{said}");
    assert_eq!(
        on("get", &store, &["Doe, Jane", "-k", "people"]).fine(),
        "41,\"two\\nlines\"\n"
    );
    assert_eq!(
        on("get", &store, &["Bob", "-k", "people", "--raw"]).fine(),
        "7,\"\"\"hi\"\"\""
    );
    assert_eq!(on("count", &store, &[]).fine(), "0\n");
    on("load", &store, &[file, "-f", "csv", "--whole"]).fine();
    assert_eq!(on("get", &store, &["name"]).fine(), "name,age,says\n");
    let said = on("stats", &store, &[]).fine();
    assert!(
        said.contains("keyspace `default`") && said.contains("keyspace `people`"),
        "{said}"
    );
    let said = on("stats", &store, &["-k", "people"]).fine();
    assert!(
        !said.contains("keyspace `default`") && said.contains("file bytes"),
        "{said}"
    );
    // Load with another delimiter.
    let tabs = [
        OsStr::new("load"),
        store.as_os_str(),
        OsStr::new("-k"),
        OsStr::new("tabs"),
    ];
    let tabs = tabs
        .into_iter()
        .chain(["--format", "csv", "--delimiter", "\\t"].map(OsStr::new));
    silt_with(tabs, b"a,b\tc\n").fine();
    assert_eq!(on("scan", &store, &["-k", "tabs"]).fine(), "a,b\tc\n");
}

#[test]
fn fixed_records() {
    let dir = tempfile::tempdir().unwrap();
    let (store, file) = (dir.path().join("s"), dir.path().join("dump.bin"));
    let records: Vec<u8> = (0..1000u32)
        .flat_map(|n| [n.to_le_bytes(), n.to_be_bytes()].concat())
        .collect();
    std::fs::write(&file, &records).unwrap();
    let file = file.to_str().unwrap();
    on(
        "load",
        &store,
        &[file, "--format", "fixed", "--record", "8", "--key", "4..8"],
    )
    .fine();
    assert_eq!(on("count", &store, &[]).fine(), "1000\n");
    assert_eq!(
        on("get", &store, &["--hex", "00000102"]).fine(),
        "02010000\n"
    );
    let said = on("scan", &store, &["--hex", "--from", "000003e6"]).fine();
    assert_eq!(said, "000003e6\te6030000\n000003e7\te7030000\n");
}

#[test]
fn a_larger_load_is_counted_and_checked() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("s");
    numbered_store(&store, 30_000);
    assert_eq!(on("count", &store, &[]).fine(), "30000\n");
    assert_eq!(
        on("count", &store, &["--prefix", "key 0123"]).fine(),
        "100\n"
    );
    let said = on("check", &store, &[]).fine();
    assert!(
        said.contains("30,000 entries") && said.contains("sound"),
        "{said}"
    );
    let forward = on("scan", &store, &[]).fine();
    let mut lines: Vec<&str> = forward.lines().collect();
    assert_eq!(lines[123], "key 000123\t124");
    let backward = on("scan", &store, &["--reverse"]).fine();
    lines.reverse();
    assert!(lines.iter().copied().eq(backward.lines()));
    // A second load adds to the first.
    silt_with(
        [OsStr::new("load"), store.as_os_str()],
        b"key 000123\nnew\n",
    )
    .fine();
    assert_eq!(on("count", &store, &[]).fine(), "30001\n");
    assert_eq!(on("get", &store, &["key 000123"]).fine(), "1\n");
}

#[test]
fn a_closed_pipe_ends_a_scan_quietly() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("s");
    numbered_store(&store, 50_000);
    let mut child = Command::new(SILT)
        .arg("scan")
        .arg(&store)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap());
    let mut first = String::new();
    lines.read_line(&mut first).unwrap();
    assert_eq!(first, "key 000000\t1\n");
    drop(lines);
    let mut said = String::new();
    child
        .stderr
        .take()
        .unwrap()
        .read_to_string(&mut said)
        .unwrap();
    assert_eq!((child.wait().unwrap().code(), &said[..]), (Some(0), ""));
}

#[test]
fn bad_records_end_a_load_or_are_left_out() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("s");
    let long = [b"first\n", &vec![b'x'; 70_000][..], b"\nlast\n"].concat();
    let load = |extra: &[&str], input: &[u8]| {
        let args = [OsStr::new("load"), store.as_os_str()];
        silt_with(args.into_iter().chain(extra.iter().map(OsStr::new)), input)
    };
    let said = load(&[], &long).failed(3);
    assert!(
        said.contains("record 2 (line 2)") && said.contains("70000") && said.contains("1 record, "),
        "{said}"
    );
    // The records before it stay.
    assert_eq!(on("scan", &store, &[]).fine(), "first\t1\n");
    let ended = load(&["--skip-bad"], &long);
    assert_eq!(ended.code, Some(1));
    assert!(
        ended.out.contains("loaded 2 records") && ended.out.contains("left out 1 bad record"),
        "{}",
        ended.out
    );
    assert!(ended.err.contains("record 2"), "{}", ended.err);
    assert_eq!(on("scan", &store, &["--keys"]).fine(), "first\nlast\n");

    let said = load(&["-f", "csv"], b"a,1\n\"torn,2\nb,3\n").failed(3);
    assert!(
        said.contains("record 2 (line 2)") && said.contains("line 2 never closes"),
        "{said}"
    );
    assert_eq!(on("get", &store, &["a"]).fine(), "1\n");
    let said = load(
        &["-f", "fixed", "--record", "4", "--key", "0..2"],
        b"aabbcc",
    )
    .failed(3);
    assert!(
        said.contains("record 2") && said.contains("2 of the 4 bytes"),
        "{said}"
    );
    assert_eq!(on("get", &store, &["aa"]).fine(), "bb\n");
}

#[test]
fn a_keyspace_is_one_line_whatever_its_name() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("s");
    let name = "two\nlines\t\u{1b}[31m ä\\";
    on("put", &store, &["-k", name, "a", "1"]).fine();
    let said = silt([
        OsStr::new("keyspace"),
        OsStr::new("list"),
        store.as_os_str(),
    ])
    .fine();
    assert_eq!(said, "default\ntwo\\nlines\\t\\u{1b}[31m ä\\\n");
    let said = on("levels", &store, &[]).fine();
    assert!(said.contains("`two\\nlines\\t"), "{said}");
    // The value is stored unchanged.
    assert_eq!(on("get", &store, &["-k", name, "a"]).fine(), "1\n");
}

/// A command that fails closes the store too, so that damage to its log is found later.
#[test]
fn a_command_that_fails_closes_the_store() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("s");
    numbered_store(&store, 3);
    let closed = || {
        let storage = siltstone_storage::FileStorage::open_existing(&store).unwrap();
        let found = siltstone::manifest::recover(&storage).unwrap().unwrap();
        found.state.closed
    };
    assert!(closed(), "after a load");
    let listed = silt([
        OsStr::new("keyspace"),
        OsStr::new("list"),
        store.as_os_str(),
    ]);
    let said = listed.fine();
    assert!(closed(), "after a look: {said}");
    let failed = silt([
        OsStr::new("keyspace"),
        OsStr::new("drop"),
        store.as_os_str(),
        OsStr::new("-k"),
        OsStr::new("nobody"),
        OsStr::new("--yes"),
    ]);
    let said = failed.failed(3);
    assert!(closed(), "after a failure: {said}");
}
