//! What `load` says about inputs and flags that fit together but may not be what was meant.

mod common;

use std::ffi::OsStr;
use std::fs;
use std::path::Path;

use common::{Ended, on, silt, silt_with};

fn load(store: &Path, args: &[&str], input: &[u8]) -> Ended {
    let mut all = vec![OsStr::new("load"), store.as_os_str(), OsStr::new("-")];
    all.extend(args.iter().map(OsStr::new));
    silt_with(all, input)
}

/// Two rows that each end in a lone quote are one record, as RFC 4180 has it.
#[test]
fn records_of_several_lines_are_counted_and_the_longest_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("s");
    let mut rows: Vec<String> = (1..=40).map(|n| format!("{n},x")).collect();
    rows[2] = "3,\"two\nlines\"".to_string();
    rows[9] = "10,\"".to_string();
    rows[29] = "30,\"".to_string();
    let input = rows.join("\n") + "\n";
    let said = load(&store, &["-f", "csv"], input.as_bytes()).fine();
    assert!(said.contains("loaded 20 records"), "{said}");
    let expected = "2 records go over several lines by quotes; the longest has 21 lines \
                    (lines 11 to 31)\n";
    assert!(said.ends_with(expected), "{said}");
    // Line breaks in a JSON array are no matter of quotes.
    let array = b"[\n{\"id\":\n1},\n{\"id\":2}]\n";
    let said = load(&store, &["-f", "json", "--key", "id"], array).fine();
    assert!(!said.contains("several lines"), "{said}");
    let said = load(&store, &["-f", "csv"], b"1,x\n2,y").fine();
    assert!(!said.contains("several lines"), "{said}");
}

/// The totals of a load that was interrupted hold what the runs before it read, too.
#[test]
fn records_of_several_lines_are_counted_over_all_runs() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("s");
    let args = ["-f", "csv", "--input-name", "rows", "--json"];
    let first = "1,\"a\nb\nc\"\n";
    load(&store, &args, format!("{first}2,\"x\"y\n").as_bytes()).failed(3);
    let said = load(&store, &args, format!("{first}2,\"x\ny\"\n").as_bytes());
    assert_eq!(said.code, Some(0), "{}", said.err);
    let said: serde_json::Value = serde_json::from_str(&said.out).unwrap();
    assert_eq!(said["multi_line_record_count"], 1, "{said}");
    let longest = serde_json::json!({"first_line": 4, "line_count": 2});
    assert_eq!(said["longest_record"], longest, "{said}");
    assert_eq!(said["total"]["multi_line_record_count"], 2, "{said}");
    let longest = serde_json::json!({"first_line": 1, "line_count": 3});
    assert_eq!(said["total"]["longest_record"], longest, "{said}");
    let said = load(&store, &["-f", "csv", "--json"], b"1,x\n").fine();
    let said: serde_json::Value = serde_json::from_str(&said).unwrap();
    assert_eq!(said["longest_record"], serde_json::Value::Null);
}

#[test]
fn columns_that_the_first_record_lacks_are_explained() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("s");
    let advice = "compare --key, --value and --delimiter with the input";
    for format in ["csv", "tsv"] {
        let args = ["-f", format, "--key", "3"];
        let said = load(&store, &args, b"1;2;3\n4;5;6\n").failed(3);
        assert!(said.contains("column 3 is asked for"), "{said}");
        assert!(said.contains(advice), "{said}");
        // A later record is one that differs from the others.
        let delimited = ["-f", format, "--key", "3", "--delimiter", ";"];
        let said = load(&store, &delimited, b"1;2;3\n4;5\n").failed(3);
        assert!(
            said.contains("and it has 2") && !said.contains(advice),
            "{said}"
        );
    }
}

#[test]
fn another_delimiter_in_every_line_is_hinted_at() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("s");
    let hint = |args: &[&str], input: &str| {
        let ended = load(&store, &[&["-f", "csv"], args].concat(), input.as_bytes());
        assert_eq!(ended.code, Some(0), "{}", ended.err);
        ended.err
    };
    for (delimiter, shown, given) in [
        (";", "with `;` in it", "--delimiter ';'"),
        ("\t", "with a tab in it", "--delimiter '\\t'"),
    ] {
        let input = format!("id{delimiter}n\n1{delimiter}x\n\n2{delimiter}\"y\"\n");
        for args in [&[][..], &["--header"]] {
            let said = hint(args, &input);
            assert!(said.contains(shown) && said.contains(given), "{said}");
        }
        assert_eq!(hint(&["--delimiter", delimiter], &input), "");
        // A line without it, or one of two columns, disproves it.
        assert_eq!(hint(&[], &format!("{input}3\n")), "");
        assert_eq!(hint(&[], &format!("{input}3{delimiter},\n")), "");
    }
    assert_eq!(hint(&[], ""), "");
}

#[test]
fn names_of_columns_may_hold_commas() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("s");
    let csv = b"\"name, first\",age,\"say \"\"hi\"\"\"\nAnn,7,x\n";
    let args = ["-f", "csv", "--key", "\"name, first\",age"];
    let value = ["--value", "\"say \"\"hi\"\"\""];
    load(&store, &[&args[..], &value].concat(), csv).fine();
    assert_eq!(on("scan", &store, &[]).fine(), "Ann/7\tx\n");
    let json = b"{\"a,b\":1,\"c\":2}\n";
    let args = ["-f", "jsonl", "-k", "j", "--key", "c,\"a,b\""];
    load(&store, &args, json).fine();
    assert_eq!(on("scan", &store, &["--keys", "-k", "j"]).fine(), "2/1\n");
    let said = load(&store, &["-f", "csv", "--key", "\"name, first"], csv).failed(2);
    assert!(said.contains("does not close"), "{said}");
}

#[test]
fn ranges_that_are_none_name_the_format_and_who_chose_it() {
    let dir = tempfile::tempdir().unwrap();
    let run = |name: &str, more: &[&str]| {
        let file = dir.path().join(name);
        fs::write(&file, "id,n\n").unwrap();
        let store = dir.path().join("s");
        let mut args = vec![OsStr::new("load"), store.as_os_str(), file.as_os_str()];
        args.extend(["--key", "id"].map(OsStr::new));
        args.extend(more.iter().map(OsStr::new));
        silt(args).failed(2)
    };
    for (name, why) in [
        ("a.txt", "read as lines (by the ending of its name)"),
        ("a.zip", "read as lines (nothing says of which format it is"),
    ] {
        let said = run(name, &[]);
        assert!(
            said.contains(why) && said.contains("--format picks"),
            "{said}"
        );
    }
    let said = run("a.txt", &["--format", "lines"]);
    assert!(
        said.contains("no range of bytes") && !said.contains("--format"),
        "{said}"
    );
}

/// Two members of one name made an object of which readers of JSON keep only one.
#[test]
fn values_whose_members_would_have_one_name_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("s");
    let json = b"{\"id\":1,\"home\":{\"city\":\"A\"},\"work\":{\"city\":\"B\"}}\n";
    let run = |value: &str, more: &[&str]| {
        let args = ["-f", "jsonl", "--key", "id", "--value", value];
        load(&store, &[&args[..], more].concat(), json)
    };
    for (value, name) in [("/home/city,/work/city", "city"), ("id,id", "id")] {
        let said = run(value, &[]).failed(2);
        let both = value.replace(',', " and ");
        assert!(said.contains(&format!("{both} would both")), "{said}");
        assert!(said.contains(&format!("`{name}`")), "{said}");
        assert!(said.contains("--value rest or --value whole"), "{said}");
        assert!(!store.exists());
    }
    // A layout has names of its own.
    run("id,id", &["--value-as", "a:u8,b:u8"]).fine();
    assert_eq!(on("get", &store, &["1", "--hex"]).fine(), "0101\n");
}

/// A number too large for a float became an infinity, with exit code 0.
#[test]
fn numbers_too_large_for_a_float_are_bad_records() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("s");
    let csv = b"a,1e39\nb,inf\nc,1e38\n";
    let args = ["-f", "csv", "--value", "2", "--value-as", "v:f32"];
    let ended = load(&store, &[&args[..], &["--skip-bad"]].concat(), csv);
    assert_eq!(ended.code, Some(1), "{ended:?}");
    let expected = "`1e39` is no f32 for the field `v`: it is too large";
    assert!(ended.err.contains(expected), "{ended:?}");
    assert_eq!(
        on("scan", &store, &["--value-as", "v:f32"]).fine(),
        "b\tinf\nc\t1e38\n"
    );
    let said = on("put", &store, &["k", "1e400", "--value-as", "v:f64"]).failed(2);
    assert!(said.contains("it is too large"), "{said}");
}
