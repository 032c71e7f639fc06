//! `silt repair` and `silt check` on stores that were damaged by hand.

mod common;

use common::{files, numbered_store, on, silt};

#[test]
fn a_damaged_store_is_repaired_into_a_new_one() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("words.silt");
    numbered_store(&store, 20_000);
    // After the second open the log holds only entries that the first one wrote to tables.
    on("count", &store, &[]).fine();
    let table = files(&store, ".tbl").pop().unwrap();
    let sound = std::fs::read(&table).unwrap();
    let mut bytes = sound.clone();
    bytes[5000] ^= 1;
    std::fs::write(&table, &bytes).unwrap();
    assert_eq!(on("check", &store, &[]).code, Some(1));

    let report = dir.path().join("lost.json");
    let ended = on("repair", &store, &["--report", report.to_str().unwrap()]);
    assert_eq!(ended.code, Some(1), "{}{}", ended.out, ended.err);
    assert!(ended.out.contains("LOST      blocks of "), "{}", ended.out);
    assert!(ended.out.contains("LOST DATA"), "{}", ended.out);
    assert_eq!(
        std::fs::read(&table).unwrap(),
        bytes,
        "the source was changed"
    );
    let json: serde_json::Value = serde_json::from_slice(&std::fs::read(&report).unwrap()).unwrap();
    assert_eq!(json["lost_nothing"], false);
    assert_eq!(
        json["lost"][0]["offset"].as_u64().map(|at| at <= 5000),
        Some(true)
    );
    let lost = json["lost"][0]["entry_count"].as_u64().unwrap();
    assert!((1..2000).contains(&lost));
    let start = json["lost"][0]["start"].as_str().unwrap();
    assert!(start.starts_with("6b657920"), "{start}");

    let new = dir.path().join("words.silt.repaired");
    assert!(on("check", &new, &[]).fine().contains("sound"));
    let count: u64 = on("count", &new, &[]).fine().trim().parse().unwrap();
    // Entries of a lost range that are still in the log are taken from it.
    assert!(
        (20_000 - lost..=20_000).contains(&count),
        "{count}, lost {lost}"
    );
    assert_eq!(on("get", &new, &["key 019999"]).fine().trim(), "20000");

    // Now the folder is not empty.
    let err = on("repair", &store, &[]).failed(3);
    assert!(
        err.contains("not empty") && err.contains("does not exist yet"),
        "{err}"
    );

    // With the block restored and the pointer lost, nothing else is lost.
    std::fs::write(&table, &sound).unwrap();
    std::fs::remove_file(store.join("CURRENT")).unwrap();
    let whole = dir.path().join("whole.silt");
    let out = on("repair", &store, &["--to", whole.to_str().unwrap()]).fine();
    assert!(
        out.contains("nothing is lost") && out.contains("CURRENT"),
        "{out}"
    );
    assert_eq!(on("count", &whole, &[]).fine().trim(), "20000");
    let strict = dir.path().join("strict.silt");
    let out = on(
        "repair",
        &store,
        &["--to", strict.to_str().unwrap(), "--strict", "--json"],
    )
    .fine();
    let json: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!(json["keyspaces"][0]["key_count"], 20_000);
}

/// A kill leaves a last record that is not whole. `check` mentioned it and ended with exit code 0;
/// `repair` printed "LOST DATA" and ended with 1.
#[test]
fn check_and_repair_agree_about_a_torn_last_record() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("killed.silt");
    let open = siltstone::Store::open(&store, siltstone::Options::default()).unwrap();
    let keyspace = open.default_keyspace().unwrap();
    keyspace.put(b"first", b"1").unwrap();
    keyspace.put(b"second", [7; 100]).unwrap();
    // The store is not closed.
    drop((keyspace, open));
    let [log] = &files(&store, ".log")
        .into_iter()
        .filter(|log| {
            std::fs::read(log)
                .unwrap()
                .windows(100)
                .any(|w| w == [7; 100])
        })
        .collect::<Vec<_>>()[..]
    else {
        panic!("one segment has the record");
    };
    let mut bytes = std::fs::read(log).unwrap();
    let last = bytes.iter().rposition(|b| *b == 7).unwrap();
    bytes[last] ^= 1;
    std::fs::write(log, bytes).unwrap();
    let words = "either a write was not synced when the process or the power failed, or the last \
                 record is damaged";
    let checked = on("check", &store, &[]).fine();
    assert!(checked.contains(words), "{checked}");
    assert!(
        checked.contains("sound: nothing that was synced is damaged"),
        "{checked}"
    );
    let repaired = on("repair", &store, &[]).fine();
    assert!(repaired.contains(words), "{repaired}");
    assert!(
        repaired.contains("nothing that was synced is lost"),
        "{repaired}"
    );
    assert!(
        !repaired.contains("LOST") && !repaired.contains("damaged   "),
        "{repaired}"
    );
    let new = dir.path().join("killed.silt.repaired");
    assert_eq!(on("count", &new, &[]).fine().trim(), "1");
}

#[test]
fn what_cannot_be_repaired_leaves_nothing_behind() {
    let dir = tempfile::tempdir().unwrap();
    let empty = dir.path().join("empty");
    std::fs::create_dir(&empty).unwrap();
    let err = on("repair", &empty, &[]).failed(3);
    assert!(err.contains("nothing of a store"), "{err}");
    assert!(!dir.path().join("empty.repaired").exists());
    let err = on("repair", &dir.path().join("none"), &[]).failed(3);
    assert!(err.contains("none"), "{err}");
    assert!(!dir.path().join("none.repaired").exists());
    let help = silt(["repair", "--help"]).fine();
    assert!(
        help.contains("--strict") && help.contains("Examples:"),
        "{help}"
    );
}
