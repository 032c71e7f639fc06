use serde_json::json;

use super::*;

fn record(engine: &str, ops_per_s: f64) -> Record {
    Record {
        workload: "fillrandom".into(),
        engine: engine.into(),
        ops_per_s: Some(ops_per_s),
        settings: json!({"records": 1000, "value_bytes": "128B", "seed": 1}),
        ..Record::default()
    }
}

fn with_setting(name: &str, value: Value) -> Record {
    let mut record = record("a", 1.0);
    record.settings[name] = value;
    record
}

#[test]
fn equal_settings_are_compared_and_the_seed_may_differ() {
    let records = [
        record("a", 1.0),
        record("b", 1.0),
        with_setting("seed", json!(2)),
        with_setting("operation_seed", json!(2)),
        with_setting("value_bytes", json!("1KiB")),
        with_setting("engine", json!({"own": {"x": "1"}})),
    ];
    let groups = groups(&records);
    let titles: Vec<&str> = groups.iter().map(|group| &group.title[..]).collect();
    assert_eq!(
        titles,
        [
            "fillrandom, value bytes 128B",
            "fillrandom, value bytes 1KiB"
        ]
    );
    let names = |group: &Group<'_>| -> Vec<(String, usize)> {
        let runs = group.runs.iter();
        runs.map(|runs| (runs.name.clone(), runs.rounds.len()))
            .collect()
    };
    assert_eq!(
        names(&groups[0]),
        [
            ("a by default".into(), 3),
            ("b".into(), 1),
            ("a x = 1".into(), 1)
        ]
    );
    assert_eq!(names(&groups[1]), [("a by default".into(), 1)]);
    assert_eq!(groups[0].runs[0].look, groups[1].runs[0].look);
}

#[test]
fn names_say_what_differs() {
    let mut records = [record("a", 1.0), record("a", 1.0), record("b", 1.0)];
    records[0].build.commit = Some("0123456789".into());
    records[1].build.commit = Some("äöü 3456789".into());
    let groups = groups(&records);
    let names: Vec<&str> = groups[0].runs.iter().map(|runs| &runs.name[..]).collect();
    assert_eq!(names, ["a 01234567", "a äöü 3456", "b"]);
}

#[test]
fn the_summary_is_the_median_and_the_charts_show_that_round() {
    let records: Vec<Record> = [5.0, 1.0, 3.0].map(|rate| record("a", rate)).into();
    let found = groups(&records);
    let runs = &found[0].runs[0];
    assert_eq!(runs.typical().ops_per_s, Some(3.0));
    assert_eq!(runs.typical_number(), 3);
    let spread = runs.spread(|record| record.ops_per_s).unwrap();
    assert_eq!((spread.low, spread.median, spread.high), (1.0, 3.0, 5.0));
    assert_eq!(runs.spread(|record| record.p50_us), None);
    let two = groups(&records[..2]);
    let spread = two[0].runs[0].spread(|record| record.ops_per_s).unwrap();
    assert_eq!(spread.median, 3.0);
    assert_eq!(two[0].runs[0].typical().ops_per_s, Some(1.0));
}

#[test]
fn only_a_weaker_promise_is_named() {
    let mut records = [record("a", 1.0), record("b", 1.0), record("c", 1.0)];
    records[0].promise = Some(Promise::Process);
    records[1].promise = Some(Promise::Memory);
    let groups = groups(&records);
    let group = &groups[0];
    let said = |n: usize| group.weaker_promise(&group.runs[n]);
    assert_eq!(said(0), None);
    assert!(
        said(1)
            .unwrap()
            .contains("weaker promise: writes may be lost")
    );
    assert_eq!(said(2).unwrap(), "its promise is not known");
}
