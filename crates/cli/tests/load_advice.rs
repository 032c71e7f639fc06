//! Advice of `load` about valid inputs and flags that may not be what the user meant.

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
    let expected = "2 records span several lines because of quotes; the longest has 21 lines \
                    (lines 11 to 31)\n";
    assert!(said.ends_with(expected), "{said}");
    // Line breaks in a JSON array have nothing to do with quotes.
    let array = b"[\n{\"id\":\n1},\n{\"id\":2}]\n";
    let said = load(&store, &["-f", "json", "--key", "id"], array).fine();
    assert!(!said.contains("several lines"), "{said}");
    let said = load(&store, &["-f", "csv"], b"1,x\n2,y").fine();
    assert!(!said.contains("several lines"), "{said}");
}

/// The totals of a load that was interrupted include the runs before it.
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
        assert!(said.contains("it has no column 3"), "{said}");
        assert!(said.contains(advice), "{said}");
        // A later record differs from the others.
        let delimited = ["-f", format, "--key", "3", "--delimiter", ";"];
        let said = load(&store, &delimited, b"1;2;3\n4;5\n").failed(3);
        assert!(said.contains("only 2") && !said.contains(advice), "{said}");
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
        (";", "that contains `;`", "--delimiter ';'"),
        ("\t", "that contains a tab", "--delimiter '\\t'"),
    ] {
        let input = format!("id{delimiter}n\n1{delimiter}x\n\n2{delimiter}\"y\"\n");
        for args in [&[][..], &["--header"]] {
            let said = hint(args, &input);
            assert!(said.contains(shown) && said.contains(given), "{said}");
        }
        assert_eq!(hint(&["--delimiter", delimiter], &input), "");
        // A line without the delimiter, or a line of two columns, disproves the advice.
        assert_eq!(hint(&[], &format!("{input}3\n")), "");
        assert_eq!(hint(&[], &format!("{input}3{delimiter},\n")), "");
    }
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
        ("a.txt", "read as lines (by the extension of its name)"),
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
        said.contains("not a range of bytes") && !said.contains("--format"),
        "{said}"
    );
}

/// Two members with one name made an object of which readers of JSON keep only one.
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
    // A layout has its own names.
    run("id,id", &["--value-as", "a:u8,b:u8"]).fine();
    let shown = on("get", &store, &["1", "--value-as", "a:u8,b:u8"]).fine();
    assert_eq!(shown, "1\t1\n");
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
    let expected = "`1e39` is not a valid f32 for the field `v`: it is too large";
    assert!(ended.err.contains(expected), "{ended:?}");
    assert_eq!(
        on("scan", &store, &["--value-as", "v:f32"]).fine(),
        "b\tinf\nc\t1e38\n"
    );
    let said = on("put", &store, &["k", "1e400", "--value-as", "v:f64"]).failed(2);
    assert!(said.contains("it is too large"), "{said}");
}

#[test]
fn an_archive_is_said_to_be_one_before_flags_are_looked_at() {
    let dir = tempfile::tempdir().unwrap();
    let (store, file) = (dir.path().join("s"), dir.path().join("a.zip"));
    fs::write(&file, b"PK\x03\x04\0").unwrap();
    for flags in [&["--header"][..], &["--key", "id"]] {
        let args = [&[file.to_str().unwrap()], flags].concat();
        let said = on("load", &store, &args).failed(3);
        assert!(said.contains("it is a zip archive"), "{said}");
        // As lines, the input would be refused because of its flags.
        assert!(said.contains("--format FORMAT`, with"), "{said}");
    }
    fs::write(&file, b"text\n").unwrap();
    let args = [file.to_str().unwrap(), "--header"];
    let said = on("load", &store, &args).failed(2);
    assert!(said.contains("--header means nothing"), "{said}");
}

/// If the command before `| silt load` failed, the load reported 0 records and no warning.
#[test]
fn an_empty_standard_input_is_said() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("s");
    let ended = load(&store, &["-f", "csv"], b"");
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(ended.err.contains("the input is empty"), "{ended:?}");
    let ended = load(&store, &["-f", "csv"], b"\n");
    assert_eq!(ended.err, "", "{ended:?}");
}

#[test]
fn a_keyspace_that_load_creates_is_said() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("s");
    let run = |args: &[&str]| load(&store, &[&["-f", "csv"], args].concat(), b"a,1\n").fine();
    assert!(run(&["-k", "new"]).contains("created keyspace `new`\n"));
    assert!(!run(&["-k", "new"]).contains("created"));
    assert!(!run(&[]).contains("created"));
    assert!(run(&["-k", "other", "--json"]).starts_with('{'));
}

/// A line with several bad elements was counted once for each of them.
#[test]
fn lines_left_out_are_counted_once() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("s");
    let args = ["-f", "json", "--key", "id", "--skip-bad", "--json"];
    let elements = vec!["{\"x\":1}"; 50].join(",");
    let array = format!("[{elements},\n{elements},{{\"id\":1}},{{\"x\":1}}\n]\n");
    let ended = load(&store, &args, array.as_bytes());
    let said: serde_json::Value = serde_json::from_str(&ended.out).unwrap();
    assert_eq!(said["bad_record_count"], 101, "{said}");
    assert_eq!(said["left_out_line_count"], 2, "{said}");
    assert_eq!(said["total"]["left_out_line_count"], 2, "{said}");
}

/// One position was reported with three byte counts, and the number of records before it with two.
#[test]
fn a_place_has_one_count_of_bytes_and_records() {
    let dir = tempfile::tempdir().unwrap();
    let (store, file) = (dir.path().join("s"), dir.path().join("a.csv"));
    let good = "id,name,v\nx,\"y\"z,1\n1,a,x\n";
    fs::write(&file, format!("{good}2,\"b,y\n3,c,z\n")).unwrap();
    let path = file.to_str().unwrap();
    let said = on("load", &store, &[path, "--header"]).failed(3);
    assert!(said.contains("at byte 10: text follows"), "{said}");
    fs::write(
        &file,
        format!("{}2,\"b,y\n3,c,z\n", good.replace("x,\"y\"z,1\n", "")),
    )
    .unwrap();
    let said = on("load", &store, &[path, "--header", "--restart"]).failed(3);
    assert!(said.contains("at byte 16: the quote"), "{said}");
    assert!(
        said.contains("store: 1 record, 4 B of keys and values, from 16 B"),
        "{said}"
    );
    let said = on("load", &store, &[path, "--header"]).err;
    assert!(said.contains("stopped after 1 record (16 B)"), "{said}");
    assert!(said.contains("from 0 B of input"), "{said}");
}

/// The numbers of records at the end of a load, and in the message of the next one about where it
/// stopped.
#[test]
fn a_stopped_load_distinguishes_good_records_from_bad_ones() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("s");
    // Text that ends within a character ends the load.
    let text = "\u{feff}1,a\n\"2\"x,b\n3,c\n";
    let mut bytes: Vec<u8> = text.encode_utf16().flat_map(u16::to_le_bytes).collect();
    bytes.push(b'4');
    let args = ["-f", "csv", "--skip-bad", "--input-name", "rows"];
    let said = load(&store, &args, &bytes).err;
    assert!(said.contains("stay in the store: 2 records,"), "{said}");
    let said = load(&store, &args, &bytes).err;
    let expected = "stopped after 2 records and left out 1 bad record (15 B)";
    assert!(said.contains(expected), "{said}");
}
