//! `load`: every format, keys and values, bad records, and interrupted loads that are resumed.

mod common;

use std::ffi::OsStr;
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::{Draw, Ended, SILT, files, on, silt_with};

fn load(store: &Path, args: &[&str], input: &[u8]) -> Ended {
    let mut all = vec![OsStr::new("load"), store.as_os_str(), OsStr::new("-")];
    all.extend(args.iter().map(OsStr::new));
    silt_with(all, input)
}

#[test]
fn keys_and_values_of_every_format() {
    let dir = tempfile::tempdir().unwrap();
    let csv = &b"id,name,says\n1,\"Doe, J\",\"a \"\"b\"\"\"\n2,Bob,\n"[..];
    let json = &b"{\"id\":10,\"u\":{\"n\":\"x\\u00e9\"}}\n\n{\"id\":9,\"u\":{\"n\":\"y\"}}\n"[..];
    for (i, (input, args, expected)) in [
        (
            csv,
            &["--format", "csv", "--key", "name"][..],
            "Bob\t2,\nDoe, J\t1,\"a \"\"b\"\"\"\n",
        ),
        (
            csv,
            &["-f", "csv", "--key", "3,1", "--header", "--join", "\\x00"],
            "\\x002\tBob\na \"b\"\\x001\t\"Doe, J\"\n",
        ),
        (
            csv,
            &["-f", "csv", "--key", "id", "--value", "name"],
            "1\tDoe, J\n2\tBob\n",
        ),
        (
            csv,
            &["-f", "csv", "--key", "number", "--header", "--whole"],
            "000000000001\t1,\"Doe, J\",\"a \"\"b\"\"\"\n000000000002\t2,Bob,\n",
        ),
        (
            b"\xef\xbb\xbfa\tb\\tc\td\n\xff\t\t\n",
            &["-f", "tsv"],
            "a\tb\\\\tc\\td\n\\xff\t\\t\n",
        ),
        (
            b"a\\\\\tb\\tc\n",
            &["-f", "tsv", "--escapes"],
            "a\\\\\tb\\tc\n",
        ),
        (
            b"k\tv\nb\ta\n",
            &["-f", "tsv", "--key", "v", "--value", "k"],
            "a\tb\n",
        ),
        (
            json,
            &["-f", "jsonl", "--key", "/id"],
            "10\t{\"id\":10,\"u\":{\"n\":\"x\\\\u00e9\"}}\n9\t{\"id\":9,\"u\":{\"n\":\"y\"}}\n",
        ),
        (
            json,
            &["-f", "jsonl", "--key", "/u/n,id", "--value", "rest,id"],
            "",
        ),
        (
            json,
            &["-f", "jsonl", "--key", "/u/n,id", "--value", "/u"],
            "xé/10\t{\"n\":\"x\\\\u00e9\"}\ny/9\t{\"n\":\"y\"}\n",
        ),
        (
            json,
            &["-f", "jsonl", "--key", "id", "--value", "rest"],
            "10\t{\"u\":{\"n\":\"x\\\\u00e9\"}}\n9\t{\"u\":{\"n\":\"y\"}}\n",
        ),
        (b"b\na\nb\n", &[], "a\t2\nb\t3\n"),
        (
            b"b\na\n",
            &["--key", "number"],
            "000000000001\tb\n000000000002\ta\n",
        ),
        (
            b"01:x y\n02:z\n",
            &["--key", "0..2", "--value", "whole"],
            "01\t01:x y\n02\t02:z\n",
        ),
        (b"01:x y\n", &["--key", "3..4,0..2"], "x/01\t: y\n"),
        (
            b"aKvbLw",
            &["-f", "fixed", "--record", "3", "--key", "1..2,0..1"],
            "Ka\tv\nLb\tw\n",
        ),
        (
            b"aKvbLw",
            &[
                "-f",
                "fixed",
                "--record",
                "3",
                "--key",
                "1..2",
                "--value",
                "2..3,0..1",
            ],
            "K\tva\nL\twb\n",
        ),
    ]
    .into_iter()
    .enumerate()
    {
        let store = dir.path().join(i.to_string());
        let ended = load(&store, args, input);
        if expected.is_empty() {
            // Here "rest" is the name of a member.
            ended.fine();
            assert_eq!(
                on("scan", &store, &["-n", "1"]).fine(),
                "xé/10\t{\"id\":10}\n"
            );
            continue;
        }
        ended.fine();
        assert_eq!(on("scan", &store, &[]).fine(), expected, "{args:?}");
    }
}

#[test]
fn numbers_become_keys_that_sort() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("s");
    let json = b"{\"id\":300,\"x\":1.5,\"y\":-2}\n{\"id\":\"20\",\"x\":0.25,\"y\":1e3}\n\
        {\"id\":-1,\"x\":0,\"y\":0}\n";
    let args = [
        "-f",
        "jsonl",
        "--key",
        "id",
        "--value",
        "x,y",
        "--key-as",
        "id:u64be",
        "--value-as",
        "x:f32,y:f64be",
        "--skip-bad",
    ];
    let ended = load(&store, &args, json);
    assert_eq!(ended.code, Some(1));
    assert!(
        ended.err.contains("record 3 (line 3) at byte 55") && ended.err.contains("`-1`"),
        "{}",
        ended.err
    );
    let forms = ["--key-as", "id:u64be", "--value-as", "x:f32,y:f64be"];
    assert_eq!(
        on("scan", &store, &forms).fine(),
        "20\t0.25\t1000.0\n300\t1.5\t-2.0\n"
    );
    // A printed scan can be loaded again, and base64 and hexadecimal columns become bytes.
    let store2 = dir.path().join("s2");
    let printed = on("scan", &store, &[]).fine();
    load(&store2, &["-f", "tsv", "--escapes"], printed.as_bytes()).fine();
    let printed = on("scan", &store2, &["--hex"]).fine();
    let store3 = dir.path().join("s3");
    let args = ["-f", "tsv", "--key-as", "hex", "--value-as", "hex"];
    load(&store3, &args, printed.as_bytes()).fine();
    assert_eq!(
        on("scan", &store3, &forms).fine(),
        on("scan", &store, &forms).fine()
    );
}

#[test]
fn formats_by_name_and_flags_that_mean_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("s");
    for (name, text, args) in [
        ("a.csv", "k,v\n", &[][..]),
        ("a.TSV", "k\tv\n", &[]),
        (
            "a.ndjson",
            "{\"id\":\"k\"}",
            &["--key", "id", "--value", "id"],
        ),
        ("a.txt", "k", &[]),
    ] {
        let file = dir.path().join(name);
        fs::write(&file, text).unwrap();
        let all = [&[file.to_str().unwrap(), "-k", name][..], args].concat();
        on("load", &store, &all).fine();
        assert_eq!(
            on("scan", &store, &["-k", name, "--keys"]).fine(),
            "k\n",
            "{name}"
        );
    }
    let missing = dir.path().join("missing");
    for (args, word) in [
        (&["-f", "jsonl"][..], "--key"),
        (&["-f", "lines", "--whole"], "without --key"),
        (&["-f", "lines", "--key", "a"], "A..B"),
        (&["-f", "csv", "--escapes"], "--escapes"),
        (&["-f", "csv", "--key", "0"], "from 1"),
        (
            &["-f", "csv", "--whole", "--value-as", "a:u8"],
            "--value-as",
        ),
        (&["-f", "jsonl", "--key", "/a/b", "--value", "rest"], "/a/b"),
        (
            &["-f", "jsonl", "--key", "a", "--value-as", "a:u8"],
            "--value-as",
        ),
        (
            &[
                "-f", "fixed", "--record", "4", "--key", "0..2", "--key-as", "hex",
            ],
            "--key-as",
        ),
        (&["--max-record", "0"], "1 to"),
        (&["--join", "\\q"], "backslash"),
    ] {
        let said = load(&missing, args, b"").failed(2);
        assert!(said.contains(word), "{args:?}: {said}");
    }
    let said = load(&missing, &["-f", "csv", "--key", "nme"], b"id,name\n1,2\n").failed(2);
    assert!(
        said.contains("`nme`") && said.contains("id, name"),
        "{said}"
    );
    load(&missing, &["-f", "csv", "--key", "name"], b"").failed(3);
    assert!(!missing.exists());
}

#[test]
fn every_kind_of_bad_record_is_named_and_can_be_left_out() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("s");
    let long = format!("{{\"id\":\"{}\"}}", "x".repeat(3_000));
    let bad: [(&[u8], &str); 6] = [
        (b"{\"id\":}", "not JSON"),
        (b"{\"id\":\"\xff\"}", "UTF-8"),
        (b"{\"ID\":1}", "no id"),
        (b"{\"id\":[1]}", "an array"),
        (b"text", "not JSON"),
        (long.as_bytes(), "--max-record"),
    ];
    let mut input = b"{\"id\":\"first\"}\n".to_vec();
    let mut places = Vec::new();
    for (text, _) in bad {
        places.push(input.len());
        input.extend([text, b"\n\n"].concat());
    }
    input.extend(b"{\"id\":\"last\"}");
    let args = ["-f", "jsonl", "--key", "id", "--max-record", "2000"];
    let ended = load(&store, &with(&args, &["--skip-bad", "--json"]), &input);
    assert_eq!(ended.code, Some(1), "{}", ended.err);
    for ((i, place), (line, (_, word))) in places.iter().enumerate().zip(ended.err.lines().zip(bad))
    {
        let at = format!("record {} (line {}) at byte {place}:", i + 2, 2 * i + 2);
        assert!(line.contains(&at) && line.contains(word), "{at}: {line}");
    }
    let said: serde_json::Value = serde_json::from_str(&ended.out).unwrap();
    assert_eq!(
        (&said["record_count"], &said["bad_record_count"]),
        (&2.into(), &6.into())
    );
    assert_eq!(said["end_offset"], input.len());
    assert_eq!(on("scan", &store, &["--keys"]).fine(), "first\nlast\n");
    let said = load(&store, &args, &input).failed(3);
    assert!(
        said.contains("record 2") && said.contains("--skip-bad"),
        "{said}"
    );
}

fn with<'a>(first: &[&'a str], more: &[&'a str]) -> Vec<&'a str> {
    [first, more].concat()
}

/// The object that a command printed.
fn said(ended: &Ended) -> serde_json::Value {
    serde_json::from_str(&ended.out).unwrap_or_else(|e| panic!("{e}: {ended:?}"))
}

/// A quote that was never closed dropped everything after it as "1 bad record", with exit code 0.
#[test]
fn a_stray_quote_costs_its_line_and_the_exit_code_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let (store, file) = (dir.path().join("s"), dir.path().join("a.csv"));
    let path = file.to_str().unwrap();
    let stray = [7_000, 12_345, 29_990];
    let text: String = (1..=30_000)
        .map(|n| match n {
            n if stray.contains(&n) => format!("k{n:05},\"open\n"),
            n if n % 1_000 == 500 => format!("k{n:05},\"two\nlines, \"\"{n}\"\"\"\n"),
            _ => format!("k{n:05},{n}\n"),
        })
        .collect();
    fs::write(&file, &text).unwrap();
    let why = on("load", &store, &[path]).failed(3);
    assert!(
        why.contains("record 7000 (line 7007) at byte ") && why.contains("line 7007 never closes"),
        "{why}"
    );
    assert!(why.contains("--skip-bad"), "{why}");
    let ended = on("load", &store, &[path, "--skip-bad"]);
    assert_eq!(ended.code, Some(1), "{ended:?}");
    for line in [7_007, 12_357, 30_020] {
        let named = format!("(line {line}) at byte ");
        assert!(ended.err.contains(&named), "{line}: {}", ended.err);
    }
    assert!(
        ended
            .out
            .contains("left out 3 bad records (3 lines, 39 bytes)")
            && ended.out.contains("before: 29,997 records"),
        "{}",
        ended.out
    );
    assert_eq!(on("count", &store, &[]).fine(), "29997\n");
    assert_eq!(
        on("get", &store, &["k07500"]).fine(),
        "\"two\\nlines, \"\"7500\"\"\"\n"
    );
    for n in stray {
        assert_eq!(on("get", &store, &[&format!("k{n:05}")]).code, Some(1));
    }
    // With a bound that is too small for the long fields, their lines are bad.
    let args = [
        path,
        "--skip-bad",
        "--json",
        "-k",
        "b",
        "--max-quoted-lines",
        "0",
    ];
    let ended = on("load", &store, &args);
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert_eq!(said(&ended)["bad_record_count"], 33, "{ended:?}");
    assert_eq!(said(&ended)["left_out_line_count"], 33, "{ended:?}");
}

/// Lines with a different key each.
fn people(count: u64, seed: u64) -> Vec<u8> {
    let mut draw = Draw(seed);
    (0..count)
        .flat_map(|n| {
            let wide = "x".repeat(draw.below(60) as usize);
            format!("{n:06},\"{wide}\n\"\"{seed}\"\n").into_bytes()
        })
        .collect()
}

#[test]
fn a_load_goes_on_behind_a_record_that_was_bad() {
    let dir = tempfile::tempdir().unwrap();
    let (store, file) = (dir.path().join("s"), dir.path().join("a.csv"));
    let path = file.to_str().unwrap();
    let good = people(3_000, 1);
    let mut torn = good.clone();
    let at = torn.windows(7).position(|w| w == b"\n002345").unwrap() + 7;
    torn.splice(at..at, *b"\"x");
    fs::write(&file, &torn[..at]).unwrap();
    // The record is incomplete: the records before it are in the store, and the message says how to
    // continue.
    fs::write(
        &file,
        [&torn[..at - 6], b"\"002345\"x,1\n", &good[at + 1..]].concat(),
    )
    .unwrap();
    let said = on("load", &store, &[path]).failed(3);
    assert!(
        said.contains("record 2346 ") && said.contains("continues there"),
        "{said}"
    );
    assert_eq!(on("count", &store, &[]).fine(), "2345\n");
    assert_eq!(on("count", &store, &["-k", "silt.load"]).fine(), "1\n");
    // With other flags the records would be cut differently.
    let said = on("load", &store, &[path, "--whole"]).failed(3);
    assert!(
        said.contains("other flags") && said.contains("--restart"),
        "{said}"
    );
    let layout = "id:u64be,_:f32le,x:i16,n:text4,y:bytes";
    let said = on("load", &store, &[path, "--key-as", layout]).failed(3);
    assert!(
        said.contains("now --format csv --key-as id:u64be,_:f32,x:i16,n:text4,y:bytes)"),
        "{said}"
    );
    // Giving the default explicitly does not count as another flag.
    let ended = on("load", &store, &[path, "--value", "rest"]);
    assert_eq!(ended.code, Some(3));
    assert!(
        ended.err.contains("continuing from there") && ended.err.contains("record 2346 "),
        "{}",
        ended.err
    );
    // A load into another keyspace is another load.
    let said = on("load", &store, &[path, "-k", "other"]).failed(3);
    assert!(said.contains("record 2346 "), "{said}");
    // The input before the position has changed, or is missing.
    let mut changed = good.clone();
    changed[20] ^= 1;
    for text in [&changed[..], &good[..1000], b""] {
        fs::write(&file, text).unwrap();
        let said = on("load", &store, &[path]).failed(3);
        assert!(
            said.contains("has changed") && said.contains("--restart"),
            "{said}"
        );
    }
    assert_eq!(on("count", &store, &[]).fine(), "2345\n");
    // The bad record is corrected in place.
    fs::write(&file, &good).unwrap();
    let ended = on("load", &store, &[path, "--json"]);
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    assert!(ended.err.contains("after 2,345 records"), "{}", ended.err);
    let said: serde_json::Value = serde_json::from_str(&ended.out).unwrap();
    assert_eq!(said["record_count"], 655);
    assert_eq!(on("count", &store, &[]).fine(), "3000\n");
    assert_eq!(
        on("get", &store, &["002999"]).fine().matches('1').count(),
        1
    );
    // The load is finished, so the next one starts from the beginning.
    assert_eq!(
        on("count", &store, &["-k", "silt.load"]).fine(),
        "1\n",
        "of `other`"
    );
    let said = on("load", &store, &[path]).fine();
    assert!(said.contains("3,000 records"), "{said}");
    on("load", &store, &[path, "-k", "other", "--restart"]).fine();
    let said = on("count", &store, &["-k", "silt.load"]).failed(3);
    assert!(
        said.contains("no keyspace"),
        "nothing is left of it: {said}"
    );
}

#[test]
fn standard_input_goes_on_by_its_name() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("s");
    let torn = [&people(1_500, 1)[..], b"\"open"].concat();
    let args = ["-f", "csv", "--input-name", "people"];
    load(&store, &args, &torn).failed(3);
    let ended = load(&store, &with(&args, &["--json"]), &people(2_000, 1));
    assert!(ended.out.contains("\"record_count\":500,"), "{}", ended.out);
    assert_eq!(on("count", &store, &[]).fine(), "2000\n");
    // A load without a name cannot be resumed.
    let said = load(&store, &["-f", "csv", "-k", "b"], &torn).failed(3);
    assert!(!said.contains("continues"), "{said}");
    on("count", &store, &["-k", "silt.load"]).failed(3);
}

#[test]
fn a_killed_load_goes_on_and_nothing_is_lost_or_doubled() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("s");
    let mut draw = Draw(3);
    // The number of a line is its key, so a record that was loaded twice would shift all others.
    let lines: Vec<Vec<u8>> = (0..40_000)
        .map(|n| format!("{n} {:x}\n", draw.below(u64::MAX)).into_bytes())
        .collect();
    let start = || {
        Command::new(SILT)
            .args(["load", store.to_str().unwrap(), "-"])
            .args(["--key", "number", "--input-name", "lines"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    };
    for round in 1..=4 {
        let fed = round * 8_000 + draw.below(2_000) as usize;
        let mut child = start();
        let mut input = child.stdin.take().unwrap();
        input.write_all(&lines[..fed].concat()).unwrap();
        // The load is killed when the log has the batch that holds the last record but one or two
        // thousand; the store may hold more.
        let mark = format!("{:012}", fed - 2_000);
        let written =
            |log: &Path| fs::read(log).is_ok_and(|b| b.windows(12).any(|w| w == mark.as_bytes()));
        let begun = Instant::now();
        while !store.exists() || !files(&store, ".log").iter().any(|log| written(log)) {
            assert!(begun.elapsed() < Duration::from_secs(60), "round {round}");
            std::thread::sleep(Duration::from_millis(20));
        }
        child.kill().unwrap();
        drop(input);
        let ended = child.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert_eq!(
            said.contains("continuing from there"),
            round > 1,
            "round {round}: {said}"
        );
    }
    let mut child = start();
    let mut input = child.stdin.take().unwrap();
    input.write_all(&lines.concat()).unwrap();
    drop(input);
    let ended: Ended = child.wait_with_output().unwrap().into();
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    assert!(ended.err.contains("continuing from there"), "{}", ended.err);
    let expected: Vec<u8> = lines
        .iter()
        .enumerate()
        .flat_map(|(n, line)| [format!("{:012}\t", n + 1).as_bytes(), line].concat())
        .collect();
    let found = on("scan", &store, &[]).fine();
    assert!(found.as_bytes() == expected, "the store holds the lines");
    on("check", &store, &[]).fine();
}
