//! Tests of the reader of arrays.

use super::super::make::{KeyFrom, Maker, ValueFrom, key_from};
use super::super::testing::{Read, pair};
use super::*;
use crate::load::json::Pointer;

fn element(limit: usize) -> JsonLines {
    let key: KeyFrom<Pointer> = key_from("/id", &Pointer::parse).unwrap();
    let plain = Maker::plain(b"/");
    JsonLines::new(key, ValueFrom::Whole, plain.clone(), plain, limit).unwrap()
}

fn read_by(buffer: usize, limit: usize, text: &[u8]) -> Vec<Read> {
    let mut source = Source::with_buffer(text, buffer);
    let mut array = Array::new(element(limit), limit, &mut source).unwrap();
    let mut pair = Pair::default();
    let mut found = Vec::new();
    loop {
        found.push(match array.next(&mut source, &mut pair).unwrap() {
            Step::Record => Ok((pair.key.clone(), pair.value.clone())),
            Step::Bad(bad) => Err(bad),
            Step::End => break,
        });
        assert_eq!(source.place.records, found.len() as u64);
    }
    assert_eq!(source.offset(), text.len() as u64);
    found
}

fn read(text: &[u8]) -> Vec<Read> {
    let found = read_by(1 << 16, 1 << 10, text);
    for buffer in [1, 2, 3, 7, 64] {
        assert_eq!(read_by(buffer, 1 << 10, text), found, "buffer of {buffer}");
    }
    found
}

/// The keys of the good records, and words that represent the bad ones.
fn keys(found: &[Read]) -> Vec<String> {
    let key = |read: &Read| match read {
        Ok((key, _)) => String::from_utf8(key.clone()).unwrap(),
        Err(bad) => format!("bad at {}", bad.offset),
    };
    found.iter().map(key).collect()
}

#[test]
fn elements_are_records() {
    assert_eq!(read(b"[]"), []);
    assert_eq!(read(b" \n[ \r\n ] \n"), []);
    let text = b"[{\"id\":1,\"x\":\"a,]}\\\"[{\"}, {\"id\":[2]},\n7,\"a\",[{\"id\":3}],null]\n";
    let found = read(text);
    assert_eq!(found[0], pair(b"1", b"{\"id\":1,\"x\":\"a,]}\\\"[{\"}"));
    assert_eq!(found.len(), 6);
    let whats = found[1..].iter().map(|f| &f.as_ref().unwrap_err().what[..]);
    for (what, word) in whats.zip(["an array", "no /id", "no /id", "no /id", "no /id"]) {
        assert!(what.contains(word), "{what}");
    }
    assert_eq!(found[2].as_ref().unwrap_err().line, Some(2));
    let text = b"[\n  {\n    \"id\": 1\n  },\n  {\n    \"id\": \"b\"\n  }\n]\n[{\"id\":3}]";
    let found = read(text);
    assert_eq!(keys(&found), ["1", "b", "3"]);
    assert_eq!(found[0], pair(b"1", b"{\n    \"id\": 1\n  }"));
}

#[test]
fn what_is_cut_off_or_follows_is_bad() {
    let text = b"[{\"id\":1},\n{\"id\":2}\n]";
    for cut in 1..text.len() {
        let found = read(&text[..cut]);
        assert!(found.last().unwrap().is_err(), "{cut}: {found:?}");
    }
    let found = read(b"[{\"id\":1}] {\"id\":2}\n{\"id\":3}\n");
    assert_eq!(keys(&found), ["1", "bad at 11", "3", "bad at 29"]);
    assert_eq!(found[1].as_ref().unwrap_err().left_out.bytes, 8);
}

/// A broken element, of whatever kind, costs only itself.
#[test]
fn reading_goes_on_at_the_next_element() {
    let breaks = [
        "{\"id\": \"x}",
        "{\"id\": x\"}",
        "{\"id\": 1, \"n\": \"a\"b\"}",
        "{\"id\": 1",
        "\"id\": 1}",
        "{\"id\": [1, 2}",
        "{\"id\": 1]}",
        "{\"id\": {\"a\": 1}",
        "{\"id\": \"\\",
        "{\"id\":}",
        "{\"id\" 1}",
    ];
    for broken in breaks {
        for (before, between, after) in [
            ("[\n  ", ",\n  ", "\n]\n"),
            ("[\n", ",\n", "\n]"),
            ("[", ",", "]"),
            ("[", ", ", "]\n"),
        ] {
            let good = |n: u32| format!("{{\"id\": {n}, \"t\": [{{\"u\": \"v\"}}]}}");
            let parts = [
                good(1),
                good(2),
                broken.to_string(),
                good(4),
                good(5),
                good(6),
            ];
            let text = format!("{before}{}{after}", parts.join(between));
            let found = read(text.as_bytes());
            let keys = keys(&found);
            // Without lines, nothing shows where the next element begins, unless the broken one is
            // balanced.
            let has_lines = between.contains('\n');
            let is_balanced = broken == "{\"id\":}";
            let expected: &[&str] = match has_lines || is_balanced {
                true => &["1", "2", "4", "5", "6"],
                false => &["1", "2"],
            };
            let good: Vec<_> = keys.iter().filter(|k| !k.starts_with("bad")).collect();
            assert_eq!(good, expected, "{text}");
            assert!(
                keys.iter().any(|k| k.starts_with("bad")),
                "{text}: {keys:?}"
            );
            let left_out: u64 = found
                .iter()
                .filter_map(|f| f.as_ref().err())
                .map(|bad| bad.left_out.bytes)
                .sum();
            assert!(left_out >= broken.len() as u64, "{text}: {left_out}");
        }
    }
    // Elements span several lines.
    let good = |n: u32| format!("  {{\n    \"id\": {n},\n    \"t\": [\n      {{}}\n    ]\n  }}");
    for broken in [
        "    \"id\": \"3,",
        "    \"id\": {",
        "    \"id\": 3, \"\"\"",
        "  }",
    ] {
        let lost = format!("  {{\n{broken}\n    \"t\": [\n      {{}}\n    ]\n  }}");
        let parts = [good(1), good(2), lost, good(4), good(5)];
        let text = format!("[\n{}\n]\n", parts.join(",\n"));
        let keys = keys(&read(text.as_bytes()));
        for key in ["1", "2", "4", "5"] {
            assert!(keys.contains(&key.to_string()), "{key} of {text}: {keys:?}");
        }
    }
}

/// Each of these was loaded with exit code 0, or parts of an element became records.
#[test]
fn what_stands_between_elements_is_checked() {
    for (text, expected) in [
        ("[{'id':1} {'id':2},{'id':3}]", "bad at 1 2 3"),
        ("[{'id':1},,{'id':2}]", "1 bad at 10 2"),
        ("[{'id':1},{'id':2},]", "1 2 bad at 18"),
        ("[{'id':1},{'id':2},\n]\n", "1 2 bad at 18"),
        ("[,{'id':1}]", "bad at 1 1"),
        ("[{'id':0}1,{'id':2},{'id':3}]", "bad at 1"),
        ("[{'id':0}1,\n{'id':2},\n{'id':3}]\n", "bad at 1 2 3"),
        ("['id':1,'s':'x'},{'id':2},{'id':3}]", "bad at 1"),
        ("['id':1,'s':'x'},\n{'id':2},\n{'id':3}]\n", "bad at 1 2 3"),
        ("[{'id':1},'id':2,'s':'x'},{'id':3}]", "1 bad at 10"),
        ("[{'id':1}],{'id':2},{'id':3}]", "1 bad at 10"),
        ("[{'id':1},[{'id':2},{'id':3}]", "1 bad at 10"),
        ("[1,tru{'a':[2,3]},4]", "bad at 1 bad at 3"),
        (
            "[{'id':1},[{'id':2},{'n':[{'id':8},{'id':9}]},{'id':3}]",
            "1 bad at 10",
        ),
        (
            "[{'id':1},{'id':2,'n':[{'id':7},{'id':8},{'id':9},{'id':4}]",
            "1 bad at 10",
        ),
        // `],` in a line of its own may end an array within an element.
        ("[\n{'id':1}\n],\n{'id':2},\n{'id':3}\n]", "1 bad at 12"),
        (
            "[\n{'id':1},\n[{'id':2},\n{'id':3},\n{'id':4}\n]",
            "1 bad at 12 3 4",
        ),
        ("[{'id':1},\n{'id':2}],\n{'id':3}]", "1 2 bad at 20 3"),
        ("[1,2 3,4]", "bad at 1 bad at 3 bad at 7"),
    ] {
        let text = text.replace('\'', "\"");
        let found = read(text.as_bytes());
        assert_eq!(keys(&found).join(" "), expected, "{text}");
    }
    // The lines that are left out are counted too.
    let found = read(b"[\n{\"id\":1},\n{\"id\":\"2},\n  \n{\"id\":3}\n]\n");
    assert_eq!(keys(&found), ["1", "bad at 12", "3"]);
    let left_out = found[1].as_ref().unwrap_err().left_out;
    assert_eq!((left_out.lines, left_out.bytes), (2, 13));
}

/// Objects within a broken element became records, which replaced good ones with the same key.
#[test]
fn what_lies_within_a_broken_element_is_never_a_record() {
    let element = |n: u32, mark: &str, line: &str| {
        let item = |id: u32| format!("{{{line}'id':{id}{line}}}");
        let items = [item(1), item(2)].join(&format!(",{line}"));
        format!(
            "{{{line}'id':{n},{line}'who':'u{n}{mark},{line}'items':[{line}{items}{line}]{line}}}"
        )
    };
    for (line, between, expected) in [
        ("", ",", "7 8"),
        ("\n", ",\n", "7 8"),
        ("", ",\n", "7 8 10"),
        ("\n  ", ",\n", "7 8 10"),
    ] {
        // A quote is missing, a bracket is extra, or one is missing.
        for mark in ["", "'}", "'{", "']", "'["] {
            let parts = [
                element(7, "'", line),
                element(8, "'", line),
                element(9, mark, line),
                element(10, "'", line),
            ];
            let text = format!("[\n{}\n]\n", parts.join(between)).replace('\'', "\"");
            let found = read(text.as_bytes());
            let mut keys = keys(&found);
            keys.retain(|key| !key.starts_with("bad"));
            // A closing bracket too many makes a shorter element of the first part.
            keys.retain(|key| mark != "'}" || key != "9");
            assert_eq!(keys.join(" "), expected, "{mark}: {text}");
        }
    }
    // Everything that follows is left out, and the message says so.
    let text = b"[{\"id\":1},{\"id\":\"2},{\"id\":3},\n{\"id\":4}]\n";
    let found = read(text);
    let bad = found[1].as_ref().unwrap_err();
    assert_eq!(found.len(), 2);
    assert!(bad.what.contains("everything that follows"), "{bad}");
    assert_eq!(bad.left_out.bytes, text.len() as u64 - 10);
    assert_eq!(bad.left_out.lines, 2);
}

/// Elements of JSON lines may be nested to any depth, and those of arrays had to end at 128 levels.
#[test]
fn elements_may_be_nested_deeply() {
    for depth in [1, 63, 64, 65, 127, 128, 129, 5_000] {
        let (open, close) = ("{\"a\":[".repeat(depth), "]}".repeat(depth));
        let text = format!("[{{\"id\":1,\"n\":{open}{close}}},{{\"id\":2}}]");
        let found = read_by(64, 1 << 20, text.as_bytes());
        assert_eq!(keys(&found), ["1", "2"], "{depth}");
    }
}

/// One extra bracket cost all elements that followed it.
#[test]
fn a_stray_bracket_costs_no_more_than_its_element() {
    for (at, bracket) in [(500, "["), (500, "]"), (0, "]")] {
        let line = |n: usize| match (n == at, bracket) {
            (true, "[") => format!("[{{\"id\":{n}}}"),
            (true, _) => format!("{{\"id\":{n}}}]"),
            _ => format!("{{\"id\":{n}}}"),
        };
        let all: Vec<String> = (0..1_000).map(line).collect();
        let text = format!("[{}]", all.join(",\n"));
        let found = read_by(64, 1 << 20, text.as_bytes());
        let good = found.iter().filter(|read| read.is_ok()).count();
        assert!(good >= 999 && found.len() - good == 1, "{good} {bracket}");
    }
}

#[test]
fn long_elements_take_no_memory_and_end_where_they_end() {
    let long = format!("{{\"id\":2,\"x\":\"{}\"}}", "]},{".repeat(3_000));
    let text = format!("[{{\"id\":1}},{long},{{\"id\":3}}]");
    for buffer in [1, 16, 1 << 16] {
        let found = read_by(buffer, 100, text.as_bytes());
        assert_eq!(keys(&found), ["1", "bad at 10", "3"]);
        let bad = found[1].as_ref().unwrap_err();
        assert!(bad.what.contains(&long.len().to_string()), "{bad}");
    }
    let deep = format!("[{},{{\"id\":1}}]", "[".repeat(200_000));
    let found = read_by(64, 1 << 20, deep.as_bytes());
    assert!(found[0].is_err());
}

#[test]
fn shapes() {
    let of = |text: &[u8], is_json: bool| {
        let mut source = Source::with_buffer(text, 4);
        shape(&mut source, is_json).unwrap()
    };
    for (text, as_json, as_lines) in [
        (&b""[..], Shape::Lines, Shape::Lines),
        (b"{\"id\":1}\n{\"id\":2}", Shape::Lines, Shape::Lines),
        (b"{\"id\":1\n{\"id\":2}", Shape::Lines, Shape::Lines),
        (b"[1]\n[2]\n", Shape::Lines, Shape::Lines),
        (b"[{\"id\":1}]\n", Shape::Array, Shape::Lines),
        (b"\n[\n{\"id\":1}\n]\n", Shape::Array, Shape::Array),
        (b"[{\"id\":1},\n{\"id\":2}]", Shape::Array, Shape::Array),
        (
            b"[{\"id\":1}, oops\n{\"id\":2}]",
            Shape::Array,
            Shape::Lines,
        ),
        (b"{\n  \"id\": 1\n}\n", Shape::Spread, Shape::Spread),
        (b"{\"a\": [\n  1\n]}\n", Shape::Spread, Shape::Spread),
        (b"text\n", Shape::Lines, Shape::Lines),
    ] {
        let name = String::from_utf8_lossy(text).into_owned();
        assert_eq!(
            (of(text, true), of(text, false)),
            (as_json, as_lines),
            "{name}"
        );
    }
    let wide = format!("[{{\"id\":\"{}\"}}]", "x".repeat(SHAPE_BYTES));
    assert_eq!(of(wide.as_bytes(), true), Shape::Array);
    assert_eq!(of(wide.as_bytes(), false), Shape::Lines);
}
