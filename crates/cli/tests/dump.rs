//! `silt dump` of every file of a store: sound, damaged, cut, and while a writer has the store
//! open.

mod common;

use std::fs;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use common::{Draw, Ended, SILT, files, numbered_store, on, silt};

fn dump(file: &Path, args: &[&str]) -> Ended {
    on("dump", file, args)
}

/// The objects of a dump with --json.
fn objects(file: &Path, args: &[&str]) -> Vec<serde_json::Value> {
    let ended = dump(file, &[args, &["--json"]].concat());
    assert!(
        ended.err.is_empty() && matches!(ended.code, Some(0 | 1)),
        "{}",
        ended.err
    );
    let lines = ended.out.lines();
    lines
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

fn of_type<'a>(all: &'a [serde_json::Value], kind: &str) -> Vec<&'a serde_json::Value> {
    all.iter().filter(|o| o["type"] == kind).collect()
}

fn store_of(dir: &Path) -> PathBuf {
    let store = dir.join("s");
    numbered_store(&store, 5000);
    on("put", &store, &["wren", "9 g", "-k", "birds"]).fine();
    on("put", &store, &["--hex", "00ff", "c0ffee", "-k", "birds"]).fine();
    on("del", &store, &["--prefix", "key 001", "--yes"]).fine();
    store
}

#[test]
fn every_file_of_a_store_is_dumped() {
    let dir = tempfile::tempdir().unwrap();
    let store = store_of(dir.path());
    let manifest = files(&store, "")
        .into_iter()
        .find(|p| p.to_string_lossy().contains("MANIFEST-"))
        .unwrap();
    let said = dump(&store.join("CURRENT"), &[]).fine();
    let name = manifest.file_name().unwrap().to_str().unwrap();
    assert!(said.contains(name), "{said}");
    let said = dump(&manifest, &[]).fine();
    for word in ["whole state", "create keyspace", "`birds`", "level 0: "] {
        assert!(said.contains(word), "{word}: {said}");
    }
    let state = objects(&manifest, &[]);
    let state = of_type(&state, "state")[0];
    assert_eq!(state["is_whole"], true);
    assert_eq!(state["state"]["create"].as_array().unwrap().len(), 2);
    assert!(state["state"]["created_us"].as_u64().unwrap() > 1_600_000_000_000_000);

    let mut of_logs = String::new();
    for log in files(&store, ".log") {
        of_logs += &dump(&log, &["--entries", "--key-as", "text"]).fine();
    }
    assert!(of_logs.contains("range delete in 1\tkey 001\tkey 002"));

    let mut tables = files(&store, ".tbl");
    tables.sort_by_key(|t| fs::metadata(t).unwrap().len());
    let table = tables.last().unwrap();
    let said = dump(table, &[]).fine();
    for word in [
        "5,000 (5,000 puts, 0 deletes) of 5,000 keys",
        "footer",
        "`key 000000`",
        "block at",
    ] {
        assert!(said.contains(word), "{word}: {said}");
    }
    let all = objects(table, &[]);
    let blocks = of_type(&all, "block");
    let sum = |name: &str| -> u64 { blocks.iter().map(|b| b[name].as_u64().unwrap()).sum() };
    assert!(blocks.len() > 5);
    assert_eq!(sum("entry_count"), 5000);
    assert_eq!(of_type(&all, "properties")[0]["key_count"], 5000);
    assert_eq!(blocks[1]["offset"], blocks[0]["end"]);

    // Entries in the forms of `scan`, within bounds.
    let lines = dump(table, &["--entries", "--from", "key 000998", "-n", "3"]).fine();
    let entries: Vec<_> = lines.lines().filter(|l| l.contains(" put\t")).collect();
    assert_eq!(entries.len(), 3, "{lines}");
    assert!(entries[0].ends_with(" 999 put\tkey 000998\t999"));
    assert!(lines.contains("3,999 more entries") || lines.contains("more entries"));
    let found = objects(table, &["--entries", "--prefix", "key 00123"]);
    let entries = of_type(&found, "entry");
    assert_eq!(entries.len(), 10);
    assert_eq!(entries[9]["key"], "key 001239");
    assert_eq!(entries[9]["value"], "1240");
    let small = tables
        .iter()
        .flat_map(|t| objects(t, &["--keys", "--hex"]))
        .find(|o| o["key"] == "00ff")
        .unwrap();
    assert!(small.get("value").is_none() && small["kind"] == "put");

    // Print the contents of the small files.
    on("options", &store, &["--set", "compression=lz4"]).fine();
    for file in ["OPTIONS.toml", "RESERVE", "LOCK.store"] {
        dump(&store.join(file), &[]).fine();
    }
    fs::write(store.join("OPTIONS.toml"), "memtable_byte = 1\n").unwrap();
    let ended = dump(&store.join("OPTIONS.toml"), &[]);
    assert!(ended.code == Some(1) && ended.out.contains("memtable_bytes"));
}

#[test]
fn where_the_parts_of_a_store_lie_is_no_damaged_pointer() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("s");
    on("options", &store, &["--set", "log_dir=log"]).fine();
    on("put", &store, &["wren", "9 g"]).fine();
    for (file, word) in [
        ("DIRECTORIES", "the folders of log and tables"),
        ("log/OWNER", "whose log"),
        ("OPENED", "the opens by which"),
        ("log/OPENED", "the opens by which"),
    ] {
        let said = dump(&store.join(file), &[]).fine();
        assert!(said.contains(word), "{said}");
        assert_eq!(of_type(&objects(&store.join(file), &[]), "text").len(), 1);
    }
    // The pointer is recognised under any name, and by its name with any content.
    let other = dir.path().join("other");
    fs::copy(store.join("CURRENT"), &other).unwrap();
    assert!(dump(&other, &[]).fine().contains("the pointer"));
    fs::copy(store.join("DIRECTORIES"), store.join("CURRENT")).unwrap();
    assert_eq!(dump(&store.join("CURRENT"), &[]).code, Some(1));
}

#[test]
fn content_counts_more_than_names_and_what_is_no_file_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let store = store_of(dir.path());
    let table = files(&store, ".tbl").remove(0);
    let odd = dir.path().join("an odd name (1)");
    fs::copy(&table, &odd).unwrap();
    assert!(dump(&odd, &[]).fine().contains("table of"));
    let log = files(&store, ".log").remove(0);
    fs::copy(&log, &odd).unwrap();
    assert!(dump(&odd, &[]).fine().contains("log segment"));
    let said = dump(&store, &[]).failed(2);
    assert!(said.contains("CURRENT"), "{said}");
    let said = dump(&dir.path().join("none"), &[]).failed(3);
    assert!(said.contains("none"), "{said}");
    fs::write(&odd, "text").unwrap();
    let said = dump(&odd, &[]).failed(3);
    assert!(said.contains("--kind"), "{said}");
    assert_eq!(dump(&odd, &["--kind", "table"]).code, Some(1));
    let said = dump(Path::new("/dev/null"), &[]).failed(3);
    assert!(said.contains("regular file"), "{said}");
    // If a layout does not fit, the dump says so and prints everything all the same.
    let found = dump(&table, &["--entries", "-n", "1", "--key-as", "id:u64be"]).fine();
    assert!(found.contains("(no such record)"), "{found}");
}

/// The offsets of the damage that a dump names.
fn damage(file: &Path) -> Vec<u64> {
    let all = objects(file, &[]);
    let damage = of_type(&all, "damage");
    for one in &damage {
        assert!(one["what"].is_string());
    }
    damage
        .iter()
        .map(|d| d["offset"].as_u64().unwrap())
        .collect()
}

#[test]
fn a_damaged_file_is_dumped_as_far_as_it_is_sound() {
    let dir = tempfile::tempdir().unwrap();
    let store = store_of(dir.path());
    let hurt = |file: &Path, at: usize| {
        let mut bytes = fs::read(file).unwrap();
        bytes[at] ^= 0x10;
        let copy = dir.path().join(file.file_name().unwrap());
        fs::write(&copy, bytes).unwrap();
        copy
    };
    let mut tables = files(&store, ".tbl");
    tables.sort_by_key(|t| fs::metadata(t).unwrap().len());
    let table = tables.pop().unwrap();
    let blocks = objects(&table, &[]);
    let blocks: Vec<_> = of_type(&blocks, "block").into_iter().cloned().collect();
    let at = blocks[2]["offset"].as_u64().unwrap();
    let copy = hurt(&table, at as usize + 3);
    let places = damage(&copy);
    assert_eq!(places.len(), 1);
    let end = blocks[2]["end"].as_u64().unwrap();
    assert!((at..end).contains(&places[0]), "{places:?}");
    let left = objects(&copy, &[]);
    assert_eq!(of_type(&left, "block").len(), blocks.len() - 1);
    let ended = dump(&copy, &["--entries"]);
    assert_eq!(ended.code, Some(1));
    assert!(ended.out.contains("DAMAGED") && ended.out.contains("expected 0x"));
    assert!(ended.out.lines().count() > 4000);
    // Without a footer the blocks are found one by one.
    let len = fs::metadata(&table).unwrap().len() as usize;
    let copy = hurt(&table, len - 3);
    assert_eq!(of_type(&objects(&copy, &[]), "block").len(), blocks.len());

    // The open after the load has flushed what the log held of it.
    let loaded = dir.path().join("loaded");
    numbered_store(&loaded, 5000);
    let log = files(&loaded, ".log")
        .into_iter()
        .find(|log| {
            let all = objects(log, &[]);
            of_type(&all, "record").len() >= 2
        })
        .unwrap();
    let copy = hurt(&log, 64 + 33);
    assert_eq!(damage(&copy), [64]);
    let all = objects(&copy, &[]);
    assert!(!of_type(&all, "record").is_empty());
    assert!(of_type(&all, "end")[0]["chained_checksum"].is_null());
}

/// Whatever is flipped or cut, the dump prints an answer and does not panic.
#[test]
fn no_bytes_make_it_panic() {
    let dir = tempfile::tempdir().unwrap();
    let store = store_of(dir.path());
    let all: Vec<_> = files(&store, "")
        .into_iter()
        .filter(|p| !p.to_string_lossy().contains("RESERVE"))
        .collect();
    let mut draw = Draw(20);
    for file in &all {
        let sound = fs::read(file).unwrap();
        let copy = dir.path().join(file.file_name().unwrap());
        for round in 0..12 {
            let mut bytes = sound.clone();
            if round % 3 == 0 {
                bytes.truncate(draw.below(sound.len() as u64) as usize);
            } else {
                for _ in 0..=draw.below(4) {
                    // Most hits are where the file has data.
                    let most = [512, sound.len() as u64][draw.below(2) as usize];
                    let at = draw.below(most.min(sound.len() as u64)) as usize;
                    bytes[at] ^= 1 << draw.below(8);
                }
            }
            fs::write(&copy, &bytes).unwrap();
            for args in [&["--entries", "--blocks"][..], &["--json", "--entries"]] {
                let ended = dump(&copy, args);
                assert!(
                    matches!(ended.code, Some(0 | 1)) && ended.err.is_empty(),
                    "{} round {round}: {:?} {}",
                    copy.display(),
                    ended.code,
                    ended.err
                );
            }
        }
    }
}

/// Every file can be dumped while another process writes to the store.
#[test]
fn it_needs_no_lease() {
    let dir = tempfile::tempdir().unwrap();
    let store = store_of(dir.path());
    let mut writer = Command::new(SILT)
        .args(["load".as_ref(), store.as_os_str()])
        .args(["-", "--format", "tsv", "--input-name", "slow"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = writer.stdin.take().unwrap();
    // Wait for more than one batch, so that the writer's open is finished.
    let lines: String = (0..30_000).map(|n| format!("new {n}\t{n}\n")).collect();
    input.write_all(lines.as_bytes()).unwrap();
    let said = on("count", &store, &[]).failed(3);
    assert!(said.contains("writer"), "{said}");
    let mut found = String::new();
    for file in files(&store, "") {
        let ended = dump(&file, &["--entries"]);
        // A compaction of the writer may have deleted the file since.
        let is_gone = ended.code == Some(3) && !file.exists();
        assert!(
            is_gone || matches!(ended.code, Some(0 | 1)),
            "{}",
            ended.err
        );
        found += &ended.out;
    }
    assert!(found.contains("new 1\t1"));
    drop(input);
    let mut said = String::new();
    writer
        .stderr
        .take()
        .unwrap()
        .read_to_string(&mut said)
        .unwrap();
    assert!(writer.wait().unwrap().success(), "{said}");
    on("check", &store, &[]).fine();
    let help = silt(["dump", "--help"]).fine();
    assert!(help.contains("Examples:") && help.contains("--kind"));
}
