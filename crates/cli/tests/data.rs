//! `put`, `get`, `del`, `scan`, `count` and `keyspace`: forms of keys and values, ranges,
//! questions, pages.

mod common;

use std::fs;

use common::{numbered_store, on, silt, silt_with};

/// A layout of keys and one of values, as a particle store has them.
const LAYOUTS: [&str; 4] = [
    "--key-as",
    "cell:u32be,id:u64be",
    "--value-as",
    "x:f32,v:f32,tag:text4",
];

fn with<'a>(first: &[&'a str], more: &[&'a str]) -> Vec<&'a str> {
    [first, more].concat()
}

#[test]
fn put_creates_and_every_form_comes_back() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("s");
    for (key, value, forms) in [
        ("wren", "9 g", &[][..]),
        ("tab\\tand \\\\", "\\xff\\x00", &[]),
        ("00ff", "deadbeef", &["--hex"]),
        ("AAE=", "/w==", &["--base64"]),
        ("plain", "c0ffee", &["--value-as", "hex"]),
        ("7,12", "0.5\t-2.25\tab", &LAYOUTS),
        ("", "", &[]),
    ] {
        let given = value.replace('\t', ",");
        on("put", &store, &with(&[key, &given], forms)).fine();
        assert_eq!(
            on("get", &store, &with(&[key], forms)).fine(),
            format!("{value}\n")
        );
    }
    assert_eq!(on("count", &store, &[]).fine(), "7\n");
    assert_eq!(on("count", &store, &["--json"]).fine(), "{\"count\":7}\n");
    assert_eq!(
        on("get", &store, &["--hex", "00000007000000000000000c"]).fine(),
        "0000003f000010c061620000\n"
    );
    // Values from files are stored unchanged.
    let file = dir.path().join("v");
    fs::write(&file, b"\xff\nraw\\n").unwrap();
    on("put", &store, &["f", "--file", file.to_str().unwrap()]).fine();
    assert_eq!(on("get", &store, &["f"]).fine(), "\\xff\\nraw\\\\n\n");
    let s = store.to_str().unwrap();
    silt_with(["put", s, "g", "--file", "-"], b"piped").fine();
    assert_eq!(on("get", &store, &["g", "--raw"]).fine(), "piped");
    on("put", &store, &["--", "-minus", "-1.5"]).fine();
    assert_eq!(on("get", &store, &["--", "-minus"]).fine(), "-1.5\n");
    on("put", &store, &["k", "v", "-k", "other"]).fine();
    assert_eq!(on("get", &store, &["k", "-k", "other"]).fine(), "v\n");
    assert_eq!(on("get", &store, &["k"]).code, Some(1));
}

#[test]
fn json_of_pairs() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("s");
    on("put", &store, &["a\"b", "{\"n\": [1, 2.50]}"]).fine();
    on("put", &store, &["\\xff", "no json"]).fine();
    assert_eq!(
        on("scan", &store, &["--json"]).fine(),
        "{\"key\":\"a\\\"b\",\"value\":\"{\\\"n\\\": [1, \
        2.50]}\"}\n{\"key\":{\"hex\":\"ff\"},\"value\":\"no json\"}\n"
    );
    assert_eq!(
        on("get", &store, &["a\"b", "--json", "--value-as", "json"]).fine(),
        "{\"key\":\"a\\\"b\",\"value\":{\"n\": [1, 2.50]}}\n"
    );
    assert_eq!(
        on("scan", &store, &["--json", "--keys", "--base64"]).fine(),
        "{\"key\":\"YSJi\"}\n{\"key\":\"/w==\"}\n"
    );
    // A value that is not JSON is printed as text and marked, and the scan continues.
    on("put", &store, &["a", "\\xfe"]).fine();
    let ended = on("scan", &store, &["--json", "--value-as", "json"]);
    assert_eq!(
        ended.out,
        "{\"key\":\"a\",\"value\":{\"hex\":\"fe\"},\"value_is_json\":false}\n\
         {\"key\":\"a\\\"b\",\"value\":{\"n\": [1, 2.50]}}\n\
         {\"key\":{\"hex\":\"ff\"},\"value\":\"no json\",\"value_is_json\":false}\n"
    );
    let said = ended.failed(1);
    assert!(
        said.contains("2 pairs") && said.contains("value_is_json"),
        "{said}"
    );
    let ended = on(
        "scan",
        &store,
        &["--json", "--keys", "--key-as", "json", "-n1"],
    );
    assert_eq!(ended.out, "{\"key\":\"a\",\"key_is_json\":false}\n");
    assert!(ended.failed(1).contains("1 pair has"));
    // A single value that is not JSON is an error, because exit code 1 would mean that it does not
    // exist.
    let said = on("get", &store, &["a", "--json", "--value-as", "json"]).failed(3);
    assert!(said.contains("--value-as hex"), "{said}");
}

#[test]
fn layouts_order_prefixes_and_misfits() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("s");
    for (cell, id) in [(256, 1), (7, 300), (7, 2)] {
        let key = format!("{cell},{id}");
        let value = format!("{cell}.5,-1,{id}");
        on("put", &store, &with(&[&key, &value], &LAYOUTS)).fine();
    }
    // The keys sort by number, although 256 would sort first in the other byte order.
    assert_eq!(
        on("scan", &store, &LAYOUTS).fine(),
        "7\t2\t7.5\t-1.0\t2\n7\t300\t7.5\t-1.0\t300\n256\t1\t256.5\t-1.0\t1\n"
    );
    assert_eq!(
        on(
            "scan",
            &store,
            &with(&["--prefix", "7", "--json"], &LAYOUTS)
        )
        .fine(),
        "{\"key\":{\"cell\":7,\"id\":2},\"value\":{\"x\":7.5,\"v\":-1.0,\"tag\":\"2\"}}\n\
         {\"key\":{\"cell\":7,\"id\":300},\"value\":{\"x\":7.5,\"v\":-1.0,\"tag\":\"300\"}}\n"
    );
    let range = ["--from", "7,3", "--to", "8", "--keys"];
    assert_eq!(
        on("scan", &store, &with(&range, &LAYOUTS)).fine(),
        "7\t300\n"
    );
    assert_eq!(
        on("count", &store, &["--key-as", LAYOUTS[1], "--from", "256"]).fine(),
        "1\n"
    );
    on("put", &store, &["short", "x"]).fine();
    let said = on("scan", &store, &LAYOUTS).failed(3);
    assert!(
        said.contains("5 bytes") && said.contains("--key-as"),
        "{said}"
    );
    for (args, word) in [
        (with(&["7"], &LAYOUTS), "cell, id"),
        (with(&["7,x"], &LAYOUTS), "`id`"),
        (with(&["4294967296,1"], &LAYOUTS), "too large"),
        (vec!["k", "--key-as", "id:u63"], "u63"),
        (vec!["k", "--key-as", "octal"], "layout"),
        (vec!["k", "--key-as", "a:text,b:u8"], "last"),
        (vec!["k", "--hex", "--base64"], "--base64"),
        (vec!["k", "--raw", "--json"], "--json"),
    ] {
        let said = on("get", &store, &args).failed(2);
        assert!(said.contains(word), "{args:?}: {said}");
    }
}

#[test]
fn keys_and_ranges_are_removed() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("s");
    numbered_store(&store, 1000);
    let count = || {
        on("count", &store, &[])
            .fine()
            .trim()
            .parse::<u64>()
            .unwrap()
    };
    on("del", &store, &["key 000001", "key 000002", "not there"]).fine();
    assert_eq!(count(), 998);
    // There is no terminal to ask on.
    let said = on("del", &store, &["--prefix", "key 0001"]).failed(2);
    assert!(
        said.contains("(100 keys)") && said.contains("--yes"),
        "{said}"
    );
    assert_eq!(count(), 998);
    let said = on("del", &store, &["--prefix", "key 0001", "--yes"]).fine();
    assert_eq!(said, "removed all keys that begin with `key 0001`\n");
    assert_eq!(count(), 898);
    on("del", &store, &["--from", "key 000990", "--yes"]).fine();
    assert_eq!(count(), 888);
    on("del", &store, &["--to", "key 000010", "--yes"]).fine();
    assert_eq!(count(), 880);
    // Neither a key nor a bound is given, or both are.
    on("del", &store, &[]).failed(2);
    on("del", &store, &["k", "--prefix", "k"]).failed(2);
    on("del", &store, &["--from", "b", "--to", "a", "--yes"]).failed(2);
    assert_eq!(count(), 880);
    // An open range reaches to the end, whatever the last key is; this one has 131,070 digits.
    let greatest = "ff".repeat(65_535);
    on("put", &store, &["--hex", &greatest[..100_000], "00"]).fine();
    on("put", &store, &["--hex", &greatest, "00"]).fine();
    assert_eq!(count(), 882);
    on("del", &store, &["--hex", "--from", "ff", "--yes"]).fine();
    assert_eq!(count(), 880);
    on("put", &store, &["--hex", &greatest, "00"]).fine();
    on("del", &store, &["--hex", "--prefix", "ffff", "--yes"]).fine();
    assert_eq!(count(), 880);
    on("del", &store, &["--prefix", "", "--yes"]).fine();
    assert_eq!(count(), 0);
    on("del", &store, &["--prefix", "", "--yes"]).fine();
    on("check", &store, &[]).fine();
}

#[test]
fn keyspaces_come_and_go() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("s");
    let s = store.to_str().unwrap();
    let list = |more: &[&str]| silt(with(&["keyspace", "list", s], more)).fine();
    silt(["keyspace", "create", s, "-k", "birds"]).fine();
    on("put", &store, &["wren", "9 g", "-k", "birds"]).fine();
    assert_eq!(list(&[]), "birds\ndefault\n");
    common::tools_keyspace(&store, "silt.load");
    assert_eq!(list(&[]), "birds\ndefault\n");
    assert_eq!(list(&["--all"]), "birds\ndefault\nsilt.load\n");
    let all: serde_json::Value = serde_json::from_str(&list(&["--json"])).unwrap();
    assert_eq!(all.as_array().unwrap().len(), 2);
    assert_eq!(all[0]["name"], "birds");
    assert!(all[0]["memtable_bytes"].is_u64() && all[0]["table_entry_count"].is_u64());
    let said = silt(["keyspace", "create", s, "-k", "birds"]).failed(3);
    assert!(said.contains("birds"), "{said}");
    let said = silt(["keyspace", "drop", s, "-k", "birds"]).failed(2);
    assert!(said.contains("--yes"), "{said}");
    assert_eq!(on("count", &store, &["-k", "birds"]).fine(), "1\n");
    silt(["keyspace", "drop", s, "-k", "birds", "--yes"]).fine();
    assert_eq!(list(&[]), "default\n");
    let said = silt(["keyspace", "drop", s, "-k", "birds", "--yes"]).failed(3);
    assert!(said.contains("birds") && said.contains("default"), "{said}");
    silt(["keyspace", "create", s]).failed(2);
    silt(["keyspace", "create", s, "-k", ""]).failed(2);
    silt(["keyspace", "create", s, "-k", &"x".repeat(256)]).failed(3);
    let missing = dir.path().join("missing");
    silt(["keyspace", "list", missing.to_str().unwrap()]).failed(3);
    assert!(!missing.exists());
}

#[test]
fn what_cannot_be_a_pair_creates_no_store() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("s");
    on("put", &store, &["k"]).failed(2);
    on("put", &store, &["k", "v", "--file", "f"]).failed(2);
    on("put", &store, &["k", "\\q"]).failed(2);
    on("put", &store, &["k", "1", "--value-as", "n:u8,m:u8"]).failed(2);
    let said = on("put", &store, &["k", "--file", "/nowhere/at/all"]).failed(3);
    assert!(said.contains("/nowhere/at/all"), "{said}");
    let said = on("put", &store, &[&"x".repeat(65_536), "v"]).failed(3);
    assert!(said.contains("65535"), "{said}");
    assert!(!store.exists());
    on("del", &store, &["k"]).failed(3);
    assert!(!store.exists());
}

#[test]
fn a_value_that_is_put_as_json_is_json() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("s");
    for (wrong, place) in [
        ("{\"a\":}", "column 6"),
        ("[1,\\n2,", "line 2"),
        ("", "EOF"),
    ] {
        let said = on("put", &store, &["k", wrong, "--value-as", "json"]).failed(2);
        assert!(said.contains("not JSON") && said.contains(place), "{said}");
        assert!(!store.exists(), "nothing is created for it");
    }
    for (given, printed) in [("[1, 2]", "[1, 2]"), ("\"a\\\\nb\"", "\"a\\nb\"")] {
        on("put", &store, &["k", given, "--value-as", "json"]).fine();
        let said = on("get", &store, &["k", "--json", "--value-as", "json"]).fine();
        assert_eq!(said, format!("{{\"key\":\"k\",\"value\":{printed}}}\n"));
    }
}

#[test]
fn limits_and_names_that_are_given_wrongly_are_explained() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("s");
    on("put", &store, &["k", "v", "-k", "birds"]).fine();
    for limit in [&["--limit", "-1"][..], &["-n", "-1"], &["--limit=x"]] {
        let said = on("scan", &store, &with(limit, &["-k", "birds"])).failed(2);
        assert!(said.contains("expected a number, 0 or more"), "{said}");
    }
    for what in ["drop", "create"] {
        let said = silt(["keyspace", what, store.to_str().unwrap(), "birds"]).failed(2);
        assert!(said.contains("given with -k NAME"), "{said}");
    }
    assert_eq!(on("get", &store, &["k", "-k", "birds"]).fine(), "v\n");
}
