//! The demo, small; and writers that die by SIGKILL in the middle of their work.

mod common;

use std::ffi::OsStr;
use std::io::Write;
use std::process::{Command, Stdio};
use std::time::Duration;

use common::{Draw, SILT, numbered, on, silt};

#[test]
fn a_small_demo_survives_ten_kills_and_says_what_it_measured() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("demo");
    let args = [
        "demo", "--quick", "--pairs", "20000", "--kills", "10", "--seed", "7", "--store",
    ];
    let said = silt(args.iter().map(OsStr::new).chain([store.as_os_str()])).fine();
    for expected in [
        "20,000 pairs",
        "phase space",
        "random keys:",
        "all of it:    20,000 pairs",
        "it saw 20,000 pairs, all the old ones",
        "kill 10 after",
        "killed                10 times",
        "point reads",
        "writers delayed",
        &format!("silt check {}", store.display()),
    ] {
        assert!(said.contains(expected), "{expected:?} in {said}");
    }
    let checked = on("check", &store, &[]).fine();
    assert!(checked.contains("ledger-a"), "{checked}");
    // Of the 5,000 keys of dump 0, 250 went by a range delete and a quarter of the others one by one.
    assert_eq!(on("count", &store, &[]).fine(), "18563\n");
    assert_eq!(
        on("count", &store, &["--hex", "--prefix", "0000000000000003"]).fine(),
        "5000\n"
    );
    assert!(
        on("scan", &store, &["-k", "ledger-a", "--limit", "1"])
            .fine()
            .starts_with("_operations of lane a\t")
    );
}

#[test]
fn the_same_seed_draws_the_same_picture() {
    let dir = tempfile::tempdir().unwrap();
    let run = |name: &str| {
        let store = dir.path().join(name);
        let args = [
            "demo", "--quick", "--pairs", "4000", "--kills", "0", "--store",
        ];
        let said = silt(args.iter().map(OsStr::new).chain([store.as_os_str()])).fine();
        let picture: Vec<String> = said
            .lines()
            .filter(|l| l.starts_with("  |"))
            .map(String::from)
            .collect();
        assert_eq!(picture.len(), 12, "{said}");
        (picture, on("scan", &store, &["--hex"]).fine())
    };
    assert!(run("a") == run("b"));
}

/// A load is no demo: its only promise is that a kill leaves a prefix of whole batches. Ten of them, one on top of the other.
#[test]
fn a_killed_load_leaves_a_prefix() {
    const RECORDS: u64 = 60_000;
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("s");
    let input = numbered(RECORDS);
    let mut draw = Draw(3);
    let mut cut_short = 0;
    for round in 0..10 {
        let keyspace = format!("round{round}");
        let mut child = Command::new(SILT)
            .arg("load")
            .arg(&store)
            .args(["-k", &keyspace])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut pipe = child.stdin.take().unwrap();
        // Fed up to some point, then killed while it is at work on it.
        let fed = draw.below(input.len() as u64) as usize;
        pipe.write_all(&input[..fed]).unwrap();
        std::thread::sleep(Duration::from_micros(draw.below(40_000)));
        child.kill().unwrap();
        child.wait().unwrap();
        if !store.join("CURRENT").exists() {
            // Killed before the store was there: looking at it says so.
            on("check", &store, &[]).failed(3);
            continue;
        }
        on("check", &store, &[]).fine();
        let ended = on("scan", &store, &["--keys", "-k", &keyspace]);
        if ended.code == Some(3) {
            assert!(
                ended.err.contains("no keyspace"),
                "round {round}: {}",
                ended.err
            );
            continue;
        }
        let keys = ended.fine();
        let count = keys.lines().count() as u64;
        assert!(
            count.is_multiple_of(1000),
            "round {round}: {count} records are no whole batches"
        );
        assert_eq!(keys.as_bytes(), numbered(count), "round {round}");
        cut_short += u64::from(count > 0);
        // What earlier rounds left is still there.
        on("check", &store, &[]).fine();
    }
    println!("{cut_short} loads were killed after their first batch");
}
