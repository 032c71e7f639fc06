//! `load` of inputs that are not plain text: compressed, in other encodings, JSON of every shape,
//! and files that cannot be loaded.

mod common;

use std::ffi::OsStr;
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::{Ended, SILT, files, on, silt_with};

fn gzip(text: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(text).unwrap();
    encoder.finish().unwrap()
}

fn zstd(text: &[u8]) -> Vec<u8> {
    let mut encoder = zstd::Encoder::new(Vec::new(), 3).unwrap();
    encoder.include_checksum(true).unwrap();
    encoder.write_all(text).unwrap();
    encoder.finish().unwrap()
}

fn utf16(text: &str, mark: &str) -> Vec<u8> {
    let units: Vec<u16> = text.encode_utf16().collect();
    match mark {
        "LE" => units.iter().flat_map(|u| u.to_le_bytes()).collect(),
        _ => units.iter().flat_map(|u| u.to_be_bytes()).collect(),
    }
}

/// Rows of CSV with a different key each.
fn rows(count: u64) -> String {
    (0..count)
        .map(|n| format!("k{n:06},\"Zoë 😀\",{}\n", n * 7919))
        .collect()
}

/// Such input was loaded as garbage, or refused with advice to read it as lines instead of CSV.
#[test]
fn compressed_and_encoded_text_is_read_as_what_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let text = rows(2_000);
    let wide = |mark| utf16(&format!("\u{feff}{text}"), mark);
    let plain = dir.path().join("plain");
    silt_with(
        [
            OsStr::new("load"),
            plain.as_os_str(),
            OsStr::new("-f"),
            OsStr::new("csv"),
        ],
        text.as_bytes(),
    )
    .fine();
    let expected = on("scan", &plain, &[]).fine();
    assert_eq!(expected.lines().count(), 2_000);
    for (name, bytes, how) in [
        ("a.csv", text.clone().into_bytes(), "as csv (by"),
        (
            "mark.csv",
            format!("\u{feff}{text}").into_bytes(),
            "as csv (by",
        ),
        (
            "a.csv.gz",
            gzip(text.as_bytes()),
            "as csv, decompressed from gzip (by",
        ),
        (
            "a.csv.zst",
            zstd(text.as_bytes()),
            "as csv, decompressed from zstd (by",
        ),
        ("le.csv", wide("LE"), "as csv, decoded from UTF-16LE (by"),
        ("be.CSV", wide("BE"), "as csv, decoded from UTF-16BE (by"),
        (
            "le.csv.gz",
            gzip(&wide("LE")),
            "as csv, decompressed from gzip, decoded from UTF-16LE (by",
        ),
        // The name of the file suggests something else, or nothing.
        (
            "b.csv",
            gzip(text.as_bytes()),
            "as csv, decompressed from gzip (by",
        ),
        ("b.csv.gz", text.clone().into_bytes(), "as csv (by"),
    ] {
        let (store, file) = (
            dir.path().join(format!("{name}.silt")),
            dir.path().join(name),
        );
        fs::write(&file, &bytes).unwrap();
        let said = on("load", &store, &[file.to_str().unwrap()]).fine();
        let first = said.lines().next().unwrap();
        assert!(first.contains(how), "{name}: {first}");
        assert!(on("scan", &store, &[]).fine() == expected, "{name}");
        // Standard input has no name.
        let store = dir.path().join(format!("{name}.piped"));
        let args = [OsStr::new("load"), store.as_os_str()];
        let args = args.into_iter().chain(["-", "-f", "csv"].map(OsStr::new));
        silt_with(args, &bytes).fine();
        assert!(on("scan", &store, &[]).fine() == expected, "{name}");
    }
    // Records of one length are decompressed by their content, too.
    let file = dir.path().join("a.bin");
    fs::write(&file, gzip(b"aKvbLw")).unwrap();
    let store = dir.path().join("fixed");
    let args = ["-f", "fixed", "--record", "3", "--key", "1..2"];
    on(
        "load",
        &store,
        &[&[file.to_str().unwrap()], &args[..]].concat(),
    )
    .fine();
    assert_eq!(on("scan", &store, &[]).fine(), "K\tav\nL\tbw\n");
}

/// Runs the command that the message advises in a shell.
fn follow(said: &str, dir: &Path) -> Ended {
    let advice = said.split('`').nth(1).unwrap();
    let bin = Path::new(SILT).parent().unwrap().to_str().unwrap();
    let path = format!("{bin}:{}", std::env::var("PATH").unwrap());
    let output = Command::new("sh")
        .args(["-c", advice])
        .current_dir(dir)
        .env("PATH", path)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    output.into()
}

fn is_there(program: &str) -> bool {
    let found = Command::new("sh")
        .args(["-c", &format!("command -v {program}")])
        .output();
    found.is_ok_and(|output| output.status.success())
}

#[test]
fn what_is_refused_is_loaded_by_the_command_that_is_advised() {
    let dir = tempfile::tempdir().unwrap();
    let text = rows(300);
    let (returns, spaced) = (text.replace('\n', "\r"), "it's a file.csv");
    let json: String = (0..300)
        .map(|n| format!("{{\n  \"id\": \"k{n:06}\",\n  \"of\": [1]\n}}\n"))
        .collect();
    for (name, bytes, what, program, extra) in [
        (
            "le.csv",
            utf16(&text, "LE"),
            "UTF-16LE without",
            "iconv",
            &[][..],
        ),
        (
            "be.csv",
            utf16(&text, "BE"),
            "UTF-16BE without",
            "iconv",
            &["--key", "1,3"],
        ),
        (
            spaced,
            utf16(&text, "LE"),
            "UTF-16LE without",
            "iconv",
            &["-fcsv"],
        ),
        (
            "mac.csv",
            returns.into_bytes(),
            "carriage returns",
            "tr",
            &[],
        ),
        (
            "twice.csv.gz",
            gzip(&gzip(text.as_bytes())),
            "compressed twice",
            "gzip",
            &[],
        ),
        (
            "mac16.csv",
            utf16(&format!("\u{feff}{}", text.replace('\n', "\r")), "LE"),
            "carriage returns",
            "iconv",
            &[],
        ),
        (
            "le.csv.gz",
            gzip(&utf16(&text, "LE")),
            "UTF-16LE without",
            "iconv",
            &[],
        ),
        (
            "mac.csv.gz",
            gzip(text.replace('\n', "\r").as_bytes()),
            "carriage returns",
            "tr",
            &[],
        ),
        (
            "pretty16.json.gz",
            gzip(&utf16(&format!("\u{feff}{json}"), "BE")),
            "several lines",
            "jq",
            &["--key", "id"],
        ),
        (
            "pretty.json",
            json.into_bytes(),
            "several lines",
            "jq",
            &["--key", "id"],
        ),
    ] {
        fs::write(dir.path().join(name), bytes).unwrap();
        let args = [&["load", "a store", name][..], extra].concat();
        let load = Command::new(SILT)
            .args(&args)
            .current_dir(dir.path())
            .output();
        let said = Ended::from(load.unwrap()).failed(3);
        let store = dir.path().join("a store");
        assert!(said.contains(what) && said.contains(name), "{name}: {said}");
        assert!(!store.exists(), "{name}");
        if is_there(program) {
            let ended = follow(&said, dir.path());
            assert_eq!(ended.code, Some(0), "{said}: {ended:?}");
            assert_eq!(
                on("count", &store, &["--prefix", "k"]).fine(),
                "300\n",
                "{name}"
            );
            fs::remove_dir_all(&store).unwrap();
        }
    }
    // The text has half a character: the advised command loads all whole characters.
    let mut halved = utf16(&format!("\u{feff}{text}"), "LE");
    let at = halved.len() - 4;
    halved.splice(at..at, [0, 0xd8]);
    for (name, bytes) in [("half.csv", halved.clone()), ("half.csv.gz", gzip(&halved))] {
        fs::write(dir.path().join(name), bytes).unwrap();
        let load = Command::new(SILT)
            .args(["load", "a store", name])
            .current_dir(dir.path())
            .output();
        let said = Ended::from(load.unwrap()).failed(3);
        assert!(said.contains("half a surrogate pair"), "{said}");
        if is_there("iconv") {
            let ended = follow(&said, dir.path());
            // Here iconv itself fails, and silt does not notice this.
            assert_eq!(ended.code, Some(0), "{said}: {ended:?}");
            let store = dir.path().join("a store");
            assert_eq!(on("count", &store, &[]).fine(), "300\n", "{said}");
        }
        fs::remove_dir_all(dir.path().join("a store")).unwrap();
    }
    // Files that silt does not decompress are recognised by their first bytes.
    let store = dir.path().join("s");
    let zip = [&b"PK\x03\x04"[..], &[0; 40], b"[Content_Types].xml"].concat();
    for (start, what) in [
        (&b"\xfd7zXZ\0\0\x04"[..], "xz"),
        (b"BZh91AY&SY\xff", "bzip2"),
        (b"\x04\x22\x4d\x18", "lz4"),
        (b"PK\x03\x04\0", "MEMBER (`unzip -l` lists them)"),
        (b"PAR1", "words')\" | silt load"),
        (
            b"SQLite format 3\0",
            "'select * from \"TABLE\"' | silt load",
        ),
        (&zip, "Office"),
        (b"SQLite format 3\0", "SQLite"),
        (b"\xff\xfe\0\0a\0\0\0", "UTF-32"),
    ] {
        let file = dir.path().join("words");
        fs::write(&file, start).unwrap();
        for format in ["lines", "csv"] {
            let load = [file.to_str().unwrap(), "--format", format];
            let said = on("load", &store, &load).failed(3);
            assert!(said.contains(what) && said.contains("words"), "{said}");
            assert!(said.contains("--format "), "{said}");
            assert!(!store.exists());
        }
        // --raw loads it all the same.
        let load = [file.to_str().unwrap(), "--format", "lines", "--raw"];
        on("load", &store, &load).fine();
        assert_eq!(on("count", &store, &[]).fine(), "1\n");
        fs::remove_dir_all(&store).unwrap();
    }
    let file = dir.path().join("words");
    fs::write(&file, "BZhang\n").unwrap();
    on("load", &store, &[file.to_str().unwrap()]).fine();
    assert_eq!(on("get", &store, &["BZhang"]).fine(), "1\n");
}

#[test]
fn a_name_says_the_format_or_the_flag_must() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("s");
    for name in ["a.dat", "a.csv.bak", "a.parquet", "a.2024"] {
        let file = dir.path().join(name);
        fs::write(&file, "k,v\n").unwrap();
        let file = file.to_str().unwrap();
        let said = on("load", &store, &[file]).failed(2);
        assert!(
            said.contains("--format lines") && said.contains(name),
            "{said}"
        );
        assert!(!store.exists());
        let said = on("load", &store, &[file, "--format", "csv", "-k", name]).fine();
        assert!(
            said.starts_with(&format!(
                "reading {file} as csv\ncreated keyspace `{name}`\nloaded 1 record"
            )),
            "{said}"
        );
        fs::remove_dir_all(&store).unwrap();
    }
    // Without an extension, text is read as lines, and the output says so; other content is not
    // loaded as lines.
    let file = dir.path().join("words");
    fs::write(&file, b"zebra\n\xff\n").unwrap();
    let said = on("load", &store, &[file.to_str().unwrap()]).fine();
    let first = said.lines().next().unwrap();
    assert!(
        first.contains("as lines (nothing says") && first.contains("--format"),
        "{said}"
    );
    fs::write(&file, b"\x7fELF\x02\x01\0\0\0\0").unwrap();
    let said = on("load", &store, &[file.to_str().unwrap()]).failed(3);
    assert!(
        said.contains("binary") && said.contains("--format fixed"),
        "{said}"
    );
    let ended = follow(&said, dir.path());
    assert_eq!(ended.code, Some(0), "{ended:?}");
    // With --json the output is a single object.
    let said = on(
        "load",
        &store,
        &[file.to_str().unwrap(), "-f", "lines", "--json"],
    )
    .fine();
    let said: serde_json::Value = serde_json::from_str(&said).unwrap();
    assert_eq!(
        (&said["format"], &said["decoded"]),
        (&"lines".into(), &().into())
    );
}

/// If compressed data is incomplete or damaged, the load ends with an error, and the records before
/// it are in the store.
#[test]
fn damaged_compressed_text_is_never_a_shorter_one() {
    let dir = tempfile::tempdir().unwrap();
    let text = rows(60_000);
    for (name, bytes) in [
        ("a.csv.gz", gzip(text.as_bytes())),
        ("a.csv.zst", zstd(text.as_bytes())),
    ] {
        let (store, file) = (
            dir.path().join(format!("{name}.silt")),
            dir.path().join(name),
        );
        let path = file.to_str().unwrap();
        for (cut, word) in [(bytes.len() - 3, "cut off"), (bytes.len() / 2, "cut off")] {
            fs::write(&file, &bytes[..cut]).unwrap();
            let said = on("load", &store, &[path, "--restart"]).failed(3);
            assert!(
                said.contains(word) && said.contains("stay in the store"),
                "{said}"
            );
        }
        let mut damaged = bytes.clone();
        damaged[bytes.len() / 2..][..4].fill(0x5a);
        fs::write(&file, &damaged).unwrap();
        // A damaged stream may decode to bad records before its checksum is reached.
        let said = on("load", &store, &[path, "--skip-bad", "-k", "damaged"]);
        assert_eq!(said.code, Some(3), "{said:?}");
        let last = said.err.lines().last().unwrap();
        assert!(last.contains("damaged somewhere before byte"), "{last}");
        assert!(
            last.contains("--restart") && !last.contains("continues there"),
            "{last}"
        );
        let found: u64 = on("count", &store, &[]).fine().trim().parse().unwrap();
        assert!((1_000..=60_000).contains(&found), "{found}");
        // The same command continues with the whole file.
        fs::write(&file, [&bytes[..], &bytes[..]].concat()).unwrap();
        let ended = on("load", &store, &[path, "--json"]);
        assert!(ended.err.contains("continuing from there"), "{ended:?}");
        let said: serde_json::Value = serde_json::from_str(&ended.out).unwrap();
        assert_eq!(said["total"]["record_count"], 120_000, "{said}");
        assert_eq!(on("count", &store, &[]).fine(), "60000\n");
        fs::write(&file, [&bytes[..], b"more"].concat()).unwrap();
        let ended = on("load", &store, &[path, "--json"]);
        assert_eq!(ended.code, Some(1), "{ended:?}");
        assert!(
            ended.err.contains("4 bytes after the compressed data"),
            "{ended:?}"
        );
        assert!(ended.out.contains("\"trailing_bytes\":4"), "{ended:?}");
        assert_eq!(on("count", &store, &[]).fine(), "60000\n");
    }
}

/// Of a log that was emptied in place while it was read, a third of the records were loaded, with
/// exit code 0.
#[test]
fn a_file_that_gets_shorter_while_it_is_read_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let text = rows(60_000);
    for cut in [0, 1_000_003] {
        let (store, file) = (
            dir.path().join(format!("{cut}.silt")),
            dir.path().join(format!("{cut}.csv")),
        );
        fs::write(&file, &text).unwrap();
        // The first line of output waits for space in the pipe, and so does the load.
        let (mut output, mut filled) = std::io::pipe().unwrap();
        let full = [b'x'; 1 << 16];
        filled.write_all(&full).unwrap();
        let child = Command::new(SILT)
            .args([OsStr::new("load"), store.as_os_str(), file.as_os_str()])
            .stdout(filled)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let process = format!("/proc/{}", child.id());
        let is_read = || -> Option<bool> {
            let open = fs::read_dir(format!("{process}/fd")).ok()?.flatten();
            let mut ours = open.filter(|fd| fs::read_link(fd.path()).is_ok_and(|to| to == file));
            let name = ours.next()?.file_name().into_string().ok()?;
            let info = fs::read_to_string(format!("{process}/fdinfo/{name}")).ok()?;
            Some(!info.starts_with("pos:\t0\n"))
        };
        let begun = Instant::now();
        while is_read() != Some(true) {
            assert!(begun.elapsed() < Duration::from_secs(60));
            std::thread::sleep(Duration::from_millis(5));
        }
        fs::File::options()
            .write(true)
            .open(&file)
            .unwrap()
            .set_len(cut)
            .unwrap();
        let mut said = Vec::new();
        std::io::Read::read_to_end(&mut output, &mut said).unwrap();
        let ended: Ended = child.wait_with_output().unwrap().into();
        let said = ended.failed(3);
        let began = format!("it began with {} bytes and now has {cut};", text.len());
        assert!(
            said.contains(&began) && said.contains("--restart"),
            "{said}"
        );
        assert!(!said.contains("continues there"), "{said}");
        // None of the loaded records is cut.
        if store.exists() {
            for line in on("scan", &store, &[]).fine().lines() {
                assert!(text.contains(&line.replacen('\t', ",", 1)), "{line}");
            }
        }
    }
}

#[test]
fn places_are_those_of_the_decoded_text() {
    let dir = tempfile::tempdir().unwrap();
    let (store, file) = (dir.path().join("s"), dir.path().join("a.csv"));
    let text = "\u{feff}ä,1\nb,\"2\nc,3\n";
    fs::write(&file, utf16(text, "LE")).unwrap();
    let said = on("load", &store, &[file.to_str().unwrap()]).failed(3);
    assert!(
        said.contains("record 2 (line 2) at byte 5 of the decoded text: the quote that opens"),
        "{said}"
    );
}

/// Kills loads of compressed text that contains stray quotes. In the end everything is in the store
/// once, and the counts equal those of a load without interruption.
#[test]
fn a_killed_load_of_compressed_text_goes_on_and_counts_alike() {
    let dir = tempfile::tempdir().unwrap();
    let row = |n: u64| match n {
        n if n % 4_000 == 777 => format!("k{n:06},\"stray\n"),
        n => format!("k{n:06},{}\n", n * 7919),
    };
    let text: String = (0..60_000).map(row).collect();
    let bytes = gzip(text.as_bytes());
    let (whole, killed) = (dir.path().join("whole"), dir.path().join("killed"));
    let args = ["-", "-f", "csv", "--skip-bad", "--input-name", "rows"];
    let load = |store: &Path| {
        let mut command = Command::new(SILT);
        command.arg("load").arg(store).args(args);
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command.spawn().unwrap()
    };
    let finished = |store: &Path| -> Ended {
        let mut child = load(store);
        child.stdin.take().unwrap().write_all(&bytes).unwrap();
        child.wait_with_output().unwrap().into()
    };
    let said = "left out 15 bad records (15 lines, 225 bytes)";
    let ended = finished(&whole);
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.out.contains(said), "{ended:?}");
    for round in 1..=3 {
        let mut child = load(&killed);
        let mut input = child.stdin.take().unwrap();
        input.write_all(&bytes[..bytes.len() / 4 * round]).unwrap();
        // The load is killed when it has written most of what it was given.
        let mark = format!("k{:06}", 15_000 * round - 6_000);
        let is_written =
            |log: &Path| fs::read(log).is_ok_and(|b| b.windows(7).any(|w| w == mark.as_bytes()));
        let begun = Instant::now();
        while !killed.exists() || !files(&killed, ".log").iter().any(|log| is_written(log)) {
            assert!(begun.elapsed() < Duration::from_secs(60), "round {round}");
            std::thread::sleep(Duration::from_millis(20));
        }
        child.kill().unwrap();
        drop(input);
        let ended: Ended = child.wait_with_output().unwrap().into();
        assert_eq!(
            ended.err.contains("continuing from there"),
            round > 1,
            "{ended:?}"
        );
    }
    let ended = finished(&killed);
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.err.contains("continuing from there"), "{ended:?}");
    assert!(
        ended.out.contains(said) && ended.out.contains("before: 59,985 records"),
        "{ended:?}"
    );
    assert!(on("scan", &killed, &[]).fine() == on("scan", &whole, &[]).fine());
}

#[test]
fn json_of_every_shape() {
    let dir = tempfile::tempdir().unwrap();
    let one = |n: u32| format!("{{\"id\":\"k{n}\",\"of\":[{n}]}}");
    let pretty =
        |n: u32| format!("  {{\n    \"id\": \"k{n}\",\n    \"of\": [\n      {n}\n    ]\n  }}");
    let all = |one: &dyn Fn(u32) -> String, between: &str| -> String {
        (1..=50).map(one).collect::<Vec<_>>().join(between)
    };
    for (i, (name, text, format)) in [
        ("a.json", all(&one, "\n"), "jsonl"),
        ("b.json", format!("[{}]", all(&one, ",")), "json"),
        ("c.json", format!("[\n{}\n]\n", all(&pretty, ",\n")), "json"),
        ("d.jsonl", format!("[\n{}\n]\n", all(&one, ",\n")), "json"),
        ("e.json", format!("\u{feff}[{}]", all(&one, ", ")), "json"),
    ]
    .into_iter()
    .enumerate()
    {
        let (store, file) = (dir.path().join(format!("s{i}")), dir.path().join(name));
        fs::write(&file, &text).unwrap();
        let said = on("load", &store, &[file.to_str().unwrap(), "--key", "id"]).fine();
        assert!(said.contains(&format!(" as {format} ")), "{name}: {said}");
        assert_eq!(on("count", &store, &[]).fine(), "50\n", "{name}");
        // A record in the middle lost a quote.
        let bad = text.replacen("\"k25\"", "\"k25", 1);
        fs::write(&file, &bad).unwrap();
        let args = [file.to_str().unwrap(), "--key", "id", "-k", "bad"];
        let said = on("load", &store, &args).failed(3);
        assert!(said.contains("record 25"), "{name}: {said}");
        let ended = on("load", &store, &[&args[..], &["--skip-bad"]].concat());
        assert_eq!(ended.code, Some(1), "{name}: {ended:?}");
        assert!(
            ended.out.contains("left out 1 bad record ("),
            "{name}: {ended:?}"
        );
        // If the array is one line, nothing shows where the next element begins.
        let is_one_line = ["b.json", "e.json"].contains(&name);
        let left = if is_one_line { "24\n" } else { "49\n" };
        assert_eq!(on("count", &store, &["-k", "bad"]).fine(), left, "{name}");
        let is_said = ended
            .err
            .contains("everything that follows belongs to this bad record");
        assert_eq!(is_said, is_one_line, "{name}: {ended:?}");
        // The file was cut off.
        fs::write(&file, &text[..text.len() - 8]).unwrap();
        let args = [file.to_str().unwrap(), "--key", "id", "-k", "cut"];
        on("load", &store, &args).failed(3);
    }
}
