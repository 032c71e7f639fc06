//! The keys of a record are those of `docs/bench-record.md`.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{found, record_of};
use crate::measure::machine::{DiskRequests, Speed};

/// Objects whose keys are names of other things, not keys of the record.
const MAPS: [&str; 6] = [
    "latency",
    "stall_s_by_cause",
    "engine_settings",
    "engine_counters",
    "series[].latency",
    "series[].stall_s",
];

/// What is described elsewhere, or under another key.
const LEAVES: [&str; 3] = ["settings", "service_time.*", "series[].levels[]"];

/// Collects the keys of a value under the names of `docs/bench-record.md`.
fn collect(path: &str, value: &Value, keys: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) if path == "service_time" => {
            assert!(!fields.is_empty());
            keys.insert("service_time.*".into());
        }
        Value::Object(fields) if !LEAVES.contains(&path) => {
            for (name, field) in fields {
                let below = match (path, MAPS.contains(&path)) {
                    ("", _) => name.clone(),
                    (_, true) => format!("{path}.*"),
                    (_, false) => format!("{path}.{name}"),
                };
                collect(&below, field, keys);
            }
        }
        Value::Array(elements) if elements.first().is_some_and(Value::is_object) => {
            let below = format!("{path}[]");
            elements
                .iter()
                .for_each(|element| collect(&below, element, keys));
        }
        _ => {
            keys.insert(path.to_string());
        }
    }
}

/// The keys in the first columns of the tables.
fn documented(text: &str) -> BTreeSet<String> {
    let rows = text.lines().filter_map(|line| line.strip_prefix("| `"));
    rows.filter_map(|row| row.split_once('`'))
        .map(|(key, _)| key.to_string())
        .collect()
}

#[test]
fn every_key_is_documented_and_every_documented_key_exists() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/bench-record.md");
    let mut documented = documented(&std::fs::read_to_string(page).unwrap());
    // The object is described as one, and its fields are.
    assert!(documented.remove("open_loop"));
    let mut record = record_of(&found());
    // Only the comparison of experiments adds them.
    record.machine_speed = vec![Speed {
        core_ms: vec![4.0],
        round_trip_us: Some(20.0),
    }];
    record.machine_disk = Some(DiskRequests::default());
    let json: Value = serde_json::from_str(&record.to_json().unwrap()).unwrap();
    let mut written = BTreeSet::new();
    collect("", &json, &mut written);
    // These are null in some seconds of the series and objects in others.
    written.remove("series[].stall_s");
    written.remove("series[].levels");
    let missing: Vec<_> = written.difference(&documented).collect();
    let gone: Vec<_> = documented.difference(&written).collect();
    assert!(
        missing.is_empty() && gone.is_empty(),
        "not in docs/bench-record.md: {missing:?}; not in a record: {gone:?}"
    );
}
