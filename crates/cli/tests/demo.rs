//! A small demo, and writers that are killed with SIGKILL in the middle of their work.

mod common;
#[path = "common/page.rs"]
mod page;

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
        "it saw 20,000 pairs, all of them old ones",
        "kill 10 after",
        "killed                10 times",
        "point reads",
        "writers delayed",
        &format!("silt check {}", store.display()),
    ] {
        assert!(said.contains(expected), "{expected:?} in {said}");
    }
    let file = dir.path().join("demo.html");
    let (_, last) = said
        .trim_end()
        .rsplit_once("\nThe report, ")
        .expect("a report");
    assert!(
        last.contains(&format!("{}\n", file.display())) && last.contains("file:///"),
        "{last}"
    );
    let html = std::fs::read_to_string(&file).unwrap();
    report_is_whole(&html);
    // Text and report count the same delays: those of the whole run.
    let delays = said
        .lines()
        .filter_map(|l| l.trim().strip_prefix("writers delayed"));
    let delays: u64 = delays
        .filter_map(|l| {
            l.trim()
                .split(' ')
                .next()?
                .replace(',', "")
                .parse::<u64>()
                .ok()
        })
        .sum();
    let data: serde_json::Value = serde_json::from_str(&page::read(&html).json).unwrap();
    let totals = data
        .pointer("/timeline/delay_totals")
        .unwrap()
        .as_array()
        .unwrap();
    let counts = totals.iter().map(|t| t["count"].as_u64().unwrap());
    assert_eq!(delays, counts.sum::<u64>(), "{said}");
    let checked = on("check", &store, &[]).fine();
    assert!(checked.contains("ledger-a"), "{checked}");
    // Of the 5,000 keys of dump 0, a range delete removed 250, and single deletes removed a quarter
    // of the others.
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
fn a_demo_with_a_device_says_what_moved_there() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("demo");
    let args = [
        "demo", "--quick", "--device", "--pairs", "200000", "--kills", "1", "--store",
    ];
    let said = silt(args.iter().map(OsStr::new).chain([store.as_os_str()])).fine();
    let pid = said.split("device: process ").nth(1).expect("a device");
    let pid = pid.split(',').next().unwrap();
    assert!(pid.parse::<u32>().is_ok(), "{pid}");
    let row = said.lines().find(|l| l.contains("compactions on device"));
    let row = row.unwrap_or_else(|| panic!("no row of the device in {said}"));
    assert!(
        row.contains(" of ") && row.contains("processor time"),
        "{row}"
    );
    assert!(said.contains("compactions done: device "), "{said}");
    let html = std::fs::read_to_string(dir.path().join("demo.html")).unwrap();
    let page = page::read(&html);
    for expected in ["Jobs that moved to the device", "compactions on the device"] {
        assert!(page.json.contains(expected), "{expected}");
    }
    // The process and its folder have gone.
    assert!(!std::path::Path::new(&format!("/proc/{pid}/comm")).exists());
    let left = std::fs::read_dir(std::env::temp_dir()).unwrap();
    let left = left.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    // Other tests may run a demo of their own at the same time, but not with this device.
    let prefix = "silt-demo-device-";
    for name in left.filter(|name| name.starts_with(prefix)) {
        let owner = name[prefix.len()..].split('-').next().unwrap();
        let alive = std::path::Path::new(&format!("/proc/{owner}")).exists();
        assert!(alive, "{name} was left behind");
    }
    on("check", &store, &[]).fine();
}

/// The report of ten kills and 20,000 pairs: checks its data, and that the page shows them.
fn report_is_whole(html: &str) {
    assert!(html.len() < 2 << 20, "{} bytes", html.len());
    let page = page::read(html);
    let data: serde_json::Value = serde_json::from_str(&page.json).unwrap();
    let list = |pointer: &str| data.pointer(pointer).unwrap().as_array().unwrap().clone();
    let number = |value: &serde_json::Value, name: &str| value[name].as_u64().unwrap();
    // Every particle was written once, followed by the changes; writes before the kills belong to
    // the first opening.
    let samples = list("/timeline/samples");
    let plasma = samples.iter().rfind(|s| s["opening"] == 0).unwrap();
    // The changes are 950 overwrites, 950 deletes less the 250 in the range, and the range delete.
    let written = number(plasma, "written_count");
    assert!(
        (20_000 + 2_000..=20_000 + 2_501).contains(&written),
        "{written}"
    );
    assert!(
        samples.iter().any(|s| s["opening"] != 0),
        "a writer that died was heard"
    );
    let kills = list("/kills");
    assert_eq!((kills.len(), list("/timeline/marks").len()), (10, 10));
    for kill in &kills {
        let more = number(kill, "found_count") - number(kill, "acknowledged_count");
        assert!(more <= 2, "{kill}");
        let open = number(kill, "open_us");
        assert!(open > 0 && number(kill, "compared_count") > 0, "{kill}");
    }
    let reads = list("/timeline/reads").last().unwrap()[1].as_u64().unwrap();
    assert!(reads > 5 * 20_000, "{reads}");
    assert_eq!(list("/plasma/dumps").len(), 4);
    assert_eq!(data.pointer("/plasma/pair_count").unwrap(), 20_000);
    // The fields of the stored particles have the energy that the simulation had.
    let energies = list("/plasma/field_energy");
    for dump in list("/plasma/dumps") {
        let at = energies
            .iter()
            .find(|e| e[0] == dump["time"])
            .expect("its step");
        let (stored, had) = (
            dump["field_energy"].as_f64().unwrap(),
            at[1].as_f64().unwrap(),
        );
        assert!((stored / had - 1.0).abs() < 0.25, "{stored} and {had}");
    }
    for id in [
        "throughput",
        "written",
        "levels",
        "kills",
        "percentiles",
        "bytes",
        "plasma",
        "growth",
        "facts",
    ] {
        assert!(page.has("id", id), "{id}");
    }
    assert_eq!(page.count("img"), 4);
    let names: Vec<_> = list("/latencies")
        .iter()
        .map(|l| l["name"].as_str().unwrap().to_string())
        .collect();
    for name in ["get, found", "get, absent", "put", "flush"] {
        assert!(names.iter().any(|n| n == name), "{name} in {names:?}");
    }
    for shown in [&kills[3]["compared_count"], &kills[7]["acknowledged_count"]] {
        let digits = shown.to_string();
        let grouped = match digits.len() {
            4.. => format!(
                "{},{}",
                &digits[..digits.len() - 3],
                &digits[digits.len() - 3..]
            ),
            _ => digits,
        };
        assert!(page.text.contains(&grouped), "{grouped}");
    }
    assert!(page.text.contains("7"), "the seed");
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

/// `load` promises less than the demo: a kill leaves a prefix of whole batches. This test does ten
/// such loads into one store.
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
        // The load gets a part of the input, and is killed while it works on it.
        let fed = draw.below(input.len() as u64) as usize;
        pipe.write_all(&input[..fed]).unwrap();
        std::thread::sleep(Duration::from_micros(draw.below(40_000)));
        child.kill().unwrap();
        child.wait().unwrap();
        if !store.join("CURRENT").exists() {
            // If it was killed before the store existed, looking at the store says so.
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
        // The records of earlier rounds are still there.
        on("check", &store, &[]).fine();
    }
    println!("{cut_short} loads were killed after their first batch");
}
