//! Mistakes of users and faults of disks: each is refused with a clear error and the right exit
//! code, and nothing is lost.

mod common;
#[path = "../../storage/tests/common/tmpfs.rs"]
mod tmpfs;

use std::ffi::OsStr;
use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::{Draw, Ended, SILT, files, numbered, numbered_store, on, silt, silt_with};
use tmpfs::on_tmpfs;

#[test]
fn wrong_usage_is_exit_code_2() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("s");
    let s = store.to_str().unwrap();
    for args in [
        &[][..],
        &["frobnicate"],
        &["get", s],
        &["get", s, "k", "--nonsense"],
        &["get", s, "\\x4"],
        &["get", s, "abc", "--hex"],
        &["get", s, "ab", "--hex", "--raw"],
        &["scan", s, "--limit", "many"],
        &["scan", s, "-k", ""],
        &["put", s, "k", "v", "-k", ""],
        &["keyspace", "create", s, "-k", ""],
        &["scan", s, "--prefix", "a", "--from", "b"],
        &["scan", s, "--from", "b", "--to", "a"],
        &["load", s, "--format", "xml"],
        &["load", s, "--format", "fixed"],
        &[
            "load", s, "--format", "fixed", "--record", "4", "--key", "2..9",
        ],
        &[
            "load", s, "--format", "fixed", "--record", "4", "--key", "2",
        ],
        &[
            "load", s, "--format", "fixed", "--record", "0", "--key", "0..1",
        ],
        &["load", s, "--format", "lines", "--header"],
        &["load", s, "--format", "csv", "--record", "8"],
        &["load", s, "--format", "csv", "--delimiter", "\""],
        &["demo", "--pairs", "3"],
    ] {
        let said = silt(args).failed(2);
        assert!(!said.trim().is_empty(), "{args:?}");
    }
    assert!(!store.exists(), "a wrong flag must not create a store");
}

#[test]
fn an_argument_that_is_no_utf_8_is_named_with_what_to_do() {
    use std::os::unix::ffi::OsStrExt;
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("s");
    let put = [OsStr::new("put"), store.as_os_str()];
    let said = silt(
        put.into_iter()
            .chain([b"a\xfe", b"vv"].map(|b| OsStr::from_bytes(b))),
    )
    .failed(2);
    assert!(
        said.contains(r"`a\xfe`") && said.contains(r"\xNN"),
        "{said}"
    );
    assert!(!store.exists());
    // Do what the message says.
    on("put", &store, &[r"a\xfe", "v"]).fine();
    assert_eq!(on("get", &store, &["--hex", "61fe"]).fine(), "76\n");
}

#[test]
fn no_store_there() {
    let dir = tempfile::tempdir().unwrap();
    let missing = dir.path().join("missing");
    let (empty, file) = (dir.path().join("empty"), dir.path().join("file"));
    fs::create_dir(&empty).unwrap();
    fs::write(&file, "text").unwrap();
    let commands: [(&str, &[&str]); 5] = [
        ("get", &["k"]),
        ("scan", &[]),
        ("count", &[]),
        ("stats", &[]),
        ("check", &[]),
    ];
    for (command, args) in commands {
        let said = on(command, &missing, args).failed(3);
        assert!(said.contains("missing"), "{said}");
        let said = on(command, &empty, args).failed(3);
        assert!(
            said.contains("no store") && said.contains("empty"),
            "{said}"
        );
        let said = on(command, &file, args).failed(3);
        assert!(
            said.contains("not a directory") && said.contains("file"),
            "{said}"
        );
    }
    assert!(!missing.exists());
    assert_eq!(
        fs::read_dir(&empty).unwrap().count(),
        0,
        "looking must leave nothing behind"
    );
    assert_eq!(fs::read(&file).unwrap(), b"text");
    on("load", &file, &[]).failed(3);
    assert_eq!(fs::read(&file).unwrap(), b"text");
    // A wrong input path creates no store.
    let said = on("load", &missing, &["/nowhere/at/all"]).failed(3);
    assert!(said.contains("/nowhere/at/all"), "{said}");
    let said = on("load", &missing, &[empty.to_str().unwrap()]).failed(3);
    assert!(said.contains("folder"), "{said}");
    assert!(!missing.exists());
    // The keyspace does not exist.
    numbered_store(&missing, 10);
    let said = on("scan", &missing, &["-k", "people"]).failed(3);
    assert!(
        said.contains("`people`") && said.contains("default"),
        "{said}"
    );
    // The demo does not touch a folder with files in it.
    let said = silt([
        OsStr::new("demo"),
        OsStr::new("--store"),
        missing.as_os_str(),
    ])
    .failed(3);
    assert!(said.contains("not empty"), "{said}");
    assert_eq!(on("count", &missing, &[]).fine(), "10\n");
    let said = silt([OsStr::new("demo"), OsStr::new("--store"), file.as_os_str()]).failed(3);
    assert!(said.contains("not a folder"), "{said}");
}

/// If a path lacks its last part, a store's files must not be mixed with other files. The files of
/// a new file system and a mount's hidden files do not count.
#[test]
fn no_store_is_created_among_other_files() {
    let dir = tempfile::tempdir().unwrap();
    let home = dir.path().join("home");
    fs::create_dir_all(home.join("lost+found")).unwrap();
    fs::write(home.join("letter.txt"), "dear").unwrap();
    for (command, args) in [("put", &["k", "v"][..]), ("load", &["/dev/null"])] {
        let said = on(command, &home, args).failed(3);
        assert!(
            said.contains("`letter.txt`") && said.contains("home/store"),
            "{said}"
        );
        assert_eq!(fs::read_dir(&home).unwrap().count(), 2);
    }
    fs::rename(home.join("letter.txt"), home.join(".letter.txt")).unwrap();
    on("put", &home, &["k", "v"]).fine();
    // Other files may lie in a store's folder.
    fs::write(home.join("letter.txt"), "dear").unwrap();
    on("put", &home, &["l", "w"]).fine();
    assert_eq!(on("count", &home, &[]).fine(), "2\n");
}

/// `ulimit -f` is like a full disk: an error, and what was written stays. (Formerly the kernel's
/// signal killed the process.)
#[test]
fn a_limit_of_file_sizes_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    let limited = |blocks: u32, store: &Path, input: &Path| -> Ended {
        std::process::Command::new("sh")
            .arg("-c")
            .arg(format!(
                "ulimit -f {blocks}; exec \"$0\" load \"$1\" \"$2\""
            ))
            .args([OsStr::new(SILT), store.as_os_str(), input.as_os_str()])
            .output()
            .unwrap()
            .into()
    };
    let input = dir.path().join("input");
    let wide = "x".repeat(1000);
    let text: Vec<u8> = (0..20_000)
        .flat_map(|n| format!("{n:06} {wide}\n").into_bytes())
        .collect();
    fs::write(&input, text).unwrap();
    for blocks in [1, 100, 10_000] {
        let store = dir.path().join(blocks.to_string());
        let said = limited(blocks, &store, &input).failed(3);
        assert!(said.contains("ulimit -f"), "{blocks}: {said}");
        // Without the limit the load continues.
        let loaded = on("load", &store, &[input.to_str().unwrap()]);
        assert_eq!(loaded.code, Some(0), "{loaded:?}");
        assert_eq!(on("count", &store, &[]).fine(), "20000\n");
    }
}

#[test]
fn a_second_writer_is_refused_and_the_error_names_the_holder() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("s");
    numbered_store(&store, 1000);
    let pointer = || fs::read(store.join("CURRENT")).unwrap();
    let before = pointer();
    let mut writer = Command::new(SILT)
        .arg("load")
        .arg(&store)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    // It opens the store once it has detected what its input is.
    let mut input = writer.stdin.take().unwrap();
    input.write_all(&numbered(1_000)).unwrap();
    let start = Instant::now();
    // Every open writes a new manifest, so the writer has the store open once the pointer names
    // another manifest.
    while pointer() == before {
        assert!(
            start.elapsed() < Duration::from_secs(60),
            "the writer never opened the store"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
    let said = on("count", &store, &[]).failed(3);
    assert!(
        said.contains(&format!("pid {}", writer.id())) && said.contains("close"),
        "{said}"
    );
    let said = on("check", &store, &[]).failed(3);
    assert!(said.contains("writer holds it"), "{said}");
    let said = silt_with([OsStr::new("load"), store.as_os_str()], b"x\n").failed(3);
    assert!(said.contains("another writer"), "{said}");
    input.write_all(b"more\n").unwrap();
    drop(input);
    assert!(writer.wait().unwrap().success());
    assert_eq!(on("count", &store, &[]).fine(), "1001\n");
}

/// Runs `silt` as a user who may not read what this test owns.
fn as_nobody(dir: &Path, args: &[&OsStr]) -> Option<Ended> {
    let mut command;
    if rustix::process::geteuid().is_root() {
        let copy = dir.join("silt");
        if !copy.exists() {
            fs::copy(SILT, &copy).unwrap();
            fs::set_permissions(&copy, fs::Permissions::from_mode(0o755)).unwrap();
        }
        command = Command::new(copy);
        command.uid(65534).gid(65534);
    } else {
        command = Command::new(SILT);
    }
    match command.args(args).stdin(Stdio::null()).output() {
        Ok(output) => Some(output.into()),
        Err(e) => {
            println!("skipped: a process without rights cannot be started here: {e}");
            None
        }
    }
}

#[test]
fn missing_permissions() {
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let store = dir.path().join("s");
    numbered_store(&store, 100);
    let list = || {
        let mut all: Vec<_> = files(&store, "")
            .into_iter()
            .map(|p| (p.clone(), fs::read(p).unwrap()))
            .collect();
        all.sort();
        all
    };
    let before = list();
    for mode in [0o555, 0o000] {
        fs::set_permissions(&store, fs::Permissions::from_mode(mode)).unwrap();
        for (command, extra) in [
            ("get", "key 000001"),
            ("count", "--keyspace=default"),
            ("check", ""),
            ("del", "key 000001"),
        ] {
            let mut args = vec![OsStr::new(command), store.as_os_str()];
            if !extra.is_empty() {
                args.push(OsStr::new(extra));
            }
            let Some(ended) = as_nobody(dir.path(), &args) else {
                return;
            };
            if mode == 0o555 && command != "del" {
                // A reader needs only permission to read.
                ended.fine();
                continue;
            }
            let said = ended.failed(3);
            assert!(
                said.contains("ermission") && said.contains(store.to_str().unwrap()),
                "{mode:o} {command}: {said}"
            );
        }
    }
    fs::set_permissions(&store, fs::Permissions::from_mode(0o755)).unwrap();
    assert_eq!(list(), before);
    assert_eq!(on("count", &store, &[]).fine(), "100\n");
}

#[test]
fn a_store_of_a_newer_format_is_refused_and_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("s");
    numbered_store(&store, 100);
    let current = store.join("CURRENT");
    let good = fs::read_to_string(&current).unwrap();
    let (head, _) = good.rsplit_once("crc32c").unwrap();
    let head = head.replace("siltstone-current 2", "siltstone-current 9");
    assert_ne!(head, good);
    fs::write(
        &current,
        format!("{head}crc32c {:08x}\n", crc32c::crc32c(head.as_bytes())),
    )
    .unwrap();
    let before = files(&store, "");
    for (command, args) in [
        ("get", &["key 000001"][..]),
        ("count", &[]),
        ("check", &[]),
        ("load", &["/dev/null"]),
    ] {
        let said = on(command, &store, args).failed(3);
        assert!(
            said.contains("version") && said.contains("CURRENT"),
            "{command}: {said}"
        );
    }
    assert_eq!(files(&store, ""), before);
    fs::write(&current, good).unwrap();
    assert_eq!(on("count", &store, &[]).fine(), "100\n");
}

/// Checks a store that must be damaged in `file`, and returns the output.
fn damaged(store: &Path, file: &Path, what: &str) -> String {
    let ended = on("check", store, &[]);
    let name = file.file_name().unwrap().to_str().unwrap();
    assert_eq!(ended.code, Some(1), "{what}: {ended:?}");
    assert!(
        ended.out.contains("DAMAGED") && ended.out.contains(name),
        "{what}: {}",
        ended.out
    );
    ended.out
}

#[test]
fn every_damaged_byte_of_a_table_is_found_and_named() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("s");
    numbered_store(&store, 3000);
    let tables = files(&store, ".tbl");
    let table = &tables[0];
    let good = fs::read(table).unwrap();
    let mut draw = Draw(1);
    for round in 0..60 {
        // Half of the hits are at the end, where properties and footer are.
        let from = if round % 2 == 0 {
            0
        } else {
            good.len() as u64 - 300
        };
        let at = (from + draw.below(good.len() as u64 - from)) as usize;
        let mut bad = good.clone();
        bad[at] ^= 1 << draw.below(8);
        fs::write(table, &bad).unwrap();
        let said = damaged(&store, table, &format!("byte {at} of {}", good.len()));
        assert!(said.contains("byte "), "an offset is named: {said}");
    }
    for keep in [0, 1, good.len() / 2, good.len() - 1] {
        fs::write(table, &good[..keep]).unwrap();
        damaged(&store, table, &format!("cut to {keep} bytes"));
    }
    fs::remove_file(table).unwrap();
    let said = damaged(&store, table, "missing");
    assert!(said.contains("missing"), "{said}");
    fs::write(table, &good).unwrap();
    on("check", &store, &[]).fine();
    assert_eq!(on("count", &store, &[]).fine(), "3000\n");
}

#[test]
fn a_damaged_block_is_named_with_all_of_its_bytes_and_keys() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("s");
    numbered_store(&store, 3000);
    let table = files(&store, ".tbl").remove(0);
    let good = fs::read(&table).unwrap();
    let problem = |bytes: &[u8]| -> serde_json::Value {
        fs::write(&table, bytes).unwrap();
        let ended = on("check", &store, &["--json"]);
        assert_eq!(ended.code, Some(1), "{ended:?}");
        let said: serde_json::Value = serde_json::from_str(&ended.out).unwrap();
        assert_eq!(said["problems"].as_array().unwrap().len(), 1, "{said}");
        said["problems"][0].clone()
    };
    // The lost ranges of neighbouring blocks, and their keys, meet without a gap.
    let (mut at, mut key) = (0, "key 000000".to_string());
    for block in 0..3 {
        let mut bad = good.clone();
        bad[at as usize + 10] ^= 0x40;
        let said = problem(&bad);
        let range = [&said["byte_range"][0], &said["byte_range"][1]].map(|n| n.as_u64().unwrap());
        assert_eq!(range[0], at, "block {block}: {said}");
        assert!(
            said["keys"]
                .as_str()
                .unwrap()
                .starts_with(&format!("[{key}..")),
            "{said}"
        );
        let text = on("check", &store, &[]).out;
        let named = format!("of bytes {} to {}, keys [{key}..", range[0], range[1]);
        assert!(text.contains(&named), "{named}: {text}");
        let keys = said["keys"].as_str().unwrap();
        key = keys[1..keys.len() - 1]
            .split_once("..")
            .unwrap()
            .1
            .to_string();
        assert!(keys.ends_with(')') && key.starts_with("key 00"), "{said}");
        // Keys that are not in the range can be read.
        assert_eq!(on("get", &store, &["key 002999"]).fine(), "3000\n");
        at = range[1];
    }
    // A table without its end is lost with all of its keys.
    let said = problem(&[&good[..good.len() - 1], &[!good[good.len() - 1]]].concat());
    assert_eq!(said["keys"], "[key 000000..key 002999]", "{said}");
}

#[test]
fn without_its_pointer_a_store_is_repaired() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("s");
    numbered_store(&store, 100);
    fs::remove_file(store.join("CURRENT")).unwrap();
    let ended = on("check", &store, &[]);
    assert!(
        ended.code == Some(1) && ended.out.contains("`silt repair`"),
        "{ended:?}"
    );
    let said = on("put", &store, &["k", "v"]).failed(3);
    assert!(
        said.contains("CURRENT") && said.contains("`silt repair`"),
        "{said}"
    );
    on("repair", &store, &[]).fine();
    assert_eq!(
        on("count", &dir.path().join("s.repaired"), &[]).fine(),
        "100\n"
    );
}

#[test]
fn reads_of_a_torn_table_fail_and_name_it() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("s");
    numbered_store(&store, 3000);
    let table = files(&store, ".tbl").remove(0);
    let good = fs::read(&table).unwrap();
    let name = table.file_name().unwrap().to_str().unwrap();
    fs::write(&table, &good[..good.len() / 2]).unwrap();
    for (command, args) in [("get", &["key 001234"][..]), ("count", &[])] {
        let said = on(command, &store, args).failed(3);
        assert!(said.contains(name), "{command}: {said}");
    }
    // A damaged block affects its own keys only.
    let mut bad = good.clone();
    bad[10] ^= 0x40;
    fs::write(&table, &bad).unwrap();
    let said = on("get", &store, &["key 000000"]).failed(3);
    assert!(said.contains(name) && said.contains("silt check"), "{said}");
    assert_eq!(on("get", &store, &["key 002999"]).fine(), "3000\n");
    fs::write(&table, &good).unwrap();
    assert_eq!(on("count", &store, &[]).fine(), "3000\n");
}

#[test]
fn a_damaged_manifest_or_pointer_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("s");
    numbered_store(&store, 100);
    let manifest = || {
        files(&store, "")
            .into_iter()
            .rfind(|p| p.to_string_lossy().contains("MANIFEST-"))
            .unwrap()
    };
    for pointer in [true, false] {
        // Every open writes a new manifest under another name.
        let file = if pointer {
            store.join("CURRENT")
        } else {
            manifest()
        };
        let good = fs::read(&file).unwrap();
        let name = file.file_name().unwrap().to_str().unwrap();
        let mut bad = good.clone();
        bad[20] ^= 4;
        for torn in [&bad[..], &good[..10], &[]] {
            fs::write(&file, torn).unwrap();
            damaged(&store, &file, name);
            let said = on("count", &store, &[]).failed(3);
            assert!(said.contains(name), "{said}");
        }
        fs::write(&file, good).unwrap();
        assert_eq!(on("count", &store, &[]).fine(), "100\n");
    }
    // Data in a folder without a pointer does not belong to a new store.
    let current = store.join("CURRENT");
    let good = fs::read(&current).unwrap();
    fs::remove_file(&current).unwrap();
    damaged(&store, &current, "no CURRENT");
    let said = on("load", &store, &["/dev/null"]).failed(3);
    assert!(said.contains("CURRENT"), "{said}");
    fs::write(&current, good).unwrap();
    assert_eq!(on("count", &store, &[]).fine(), "100\n");
}

/// A full disk: a small tmpfs in a mount namespace of a child of this test.
#[test]
fn a_full_disk_loses_nothing() {
    on_tmpfs("a_full_disk_loses_nothing", 240, fill);
}

fn fill(dir: &Path) {
    let store = dir.join("s");
    let ballast = dir.join("ballast");
    fs::write(&ballast, vec![1; 100 << 20]).unwrap();
    // 140 MiB are left; the input is larger.
    let wide = "x".repeat(1000);
    let input: Vec<u8> = (0..200_000)
        .flat_map(|n| format!("{n:06} {wide}\n").into_bytes())
        .collect();
    let said = silt_with([OsStr::new("load"), store.as_os_str()], &input).failed(3);
    assert!(
        said.contains("space") && said.contains("give the command again"),
        "{said}"
    );
    let (_, kept) = said.split_once("stay in the store: ").unwrap();
    let kept: u64 = kept
        .split_once(' ')
        .unwrap()
        .0
        .replace(',', "")
        .parse()
        .unwrap();
    assert!(kept > 10_000, "{said}");
    fs::remove_file(&ballast).unwrap();
    on("check", &store, &[]).fine();
    let found: u64 = on("count", &store, &[]).fine().trim().parse().unwrap();
    // A batch that returned an error may be in the store.
    assert!((kept..=kept + 1000).contains(&found), "{kept} {found}");
    let last = on("scan", &store, &["--reverse", "--limit", "1", "--keys"]).fine();
    assert_eq!(last, format!("{:06} {wide}\n", found - 1));
}

#[test]
fn a_cut_log_gives_a_prefix_or_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("s");
    // A killed load leaves its data in the log.
    let mut writer = Command::new(SILT)
        .arg("load")
        .arg(&store)
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = writer.stdin.take().unwrap();
    input.write_all(&numbered(20_000)).unwrap();
    input.flush().unwrap();
    let start = Instant::now();
    let written =
        |log: &Path| fs::read(log).is_ok_and(|b| b.windows(10).any(|w| w == b"key 015000"));
    while !files(&store, ".log").iter().any(|log| written(log)) {
        assert!(
            start.elapsed() < Duration::from_secs(60),
            "nothing came into the log"
        );
        std::thread::sleep(Duration::from_millis(10));
    }
    writer.kill().unwrap();
    writer.wait().unwrap();
    drop(input);
    let log = files(&store, ".log")
        .into_iter()
        .find(|log| written(log))
        .unwrap();
    let good = fs::read(&log).unwrap();
    let used = good.iter().rposition(|b| *b != 0).unwrap();
    let mut draw = Draw(2);
    for round in 0..12 {
        let copy = dir.path().join(format!("copy{round}"));
        fs::create_dir(&copy).unwrap();
        for file in files(&store, "") {
            fs::copy(&file, copy.join(file.file_name().unwrap())).unwrap();
        }
        let cut = draw.below(used as u64) as usize;
        let torn = copy.join(log.file_name().unwrap());
        if round % 2 == 0 {
            fs::write(&torn, &good[..cut]).unwrap();
        } else {
            let mut bad = good.clone();
            bad[cut] ^= 0x10;
            fs::write(&torn, &bad).unwrap();
        }
        let checked = on("check", &copy, &[]);
        match checked.code {
            Some(0) => {
                let scanned = on("scan", &copy, &["--keys"]);
                assert_eq!(
                    scanned.err.contains("discarded"),
                    checked.out.contains("discards"),
                    "round {round}, byte {cut}: {scanned:?}, {checked:?}"
                );
                assert_eq!(
                    scanned.code,
                    Some(0),
                    "round {round}, byte {cut}: {scanned:?}"
                );
                let keys = scanned.out;
                let count = keys.lines().count() as u64;
                assert!(
                    count <= 20_000 && count.is_multiple_of(1000),
                    "round {round}, byte {cut}: {count}"
                );
                assert_eq!(
                    keys.as_bytes(),
                    numbered(count),
                    "round {round}, byte {cut}"
                );
                on("check", &copy, &[]).fine();
            }
            // Data that was synced is lost: the error names it, and an open refuses it too.
            Some(1) => {
                assert!(
                    checked.out.contains(".log"),
                    "round {round}: {}",
                    checked.out
                );
                assert!(on("count", &copy, &[]).failed(3).contains(".log"));
            }
            _ => panic!("round {round}, byte {cut}: {checked:?}"),
        }
    }
}

/// A folder with data and without a pointer is not empty: every command says so, and none creates a
/// new store over it.
#[test]
fn a_lost_pointer_is_distinguished_from_no_store() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("s");
    numbered_store(&store, 100);
    fs::remove_file(store.join("CURRENT")).unwrap();
    let before = files(&store, "");
    for (command, args) in [
        ("get", &["key 000001"][..]),
        ("scan", &[]),
        ("load", &["/dev/null"]),
    ] {
        let said = on(command, &store, args).failed(3);
        assert!(said.contains("no file CURRENT"), "{command}: {said}");
    }
    assert!(on("check", &store, &[]).code == Some(1));
    let mut after = files(&store, "");
    after.retain(|f| !f.ends_with("LOCK.store"));
    assert!(
        before
            .iter()
            .filter(|f| !f.ends_with("LOCK.store"))
            .eq(&after)
    );
}
