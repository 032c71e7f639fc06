use std::fs;
use std::path::Path;

use super::small;
use crate::compare::{
    Conditions, Manifest, Outcome, PAUSE_MAX_S, Plan, Process, Results, ResultsError, Verdict,
};
use crate::measure::machine::{Build, Machine};
use crate::record::{Record, SCHEMA_VERSION};

pub(super) fn manifest(plan: &Plan) -> Manifest {
    let build = Build {
        commit: Some("c0ffee".into()),
        profile: Some("release".into()),
        ..Build::default()
    };
    let machine = Machine {
        cpu: Some("A processor".into()),
        cores: Some(2),
        memory_bytes: Some(24 << 30),
        kernel: Some("Linux 6.1".into()),
        ..Machine::default()
    };
    let mut manifest = Manifest::new(plan, build, machine);
    manifest.command_line = vec!["bench-compare".into(), "run".into(), "small".into()];
    manifest.date = "2026-11-24T00:00:00Z".into();
    manifest
        .programs
        .insert("bench-compare".into(), "12ab".into());
    manifest
}

pub(super) fn done(record: Record) -> Outcome {
    let record = Record {
        schema_version: SCHEMA_VERSION,
        ..record
    };
    Outcome {
        verdict: Verdict::Done(Box::new(record)),
        took_s: 1.5,
        conditions: Conditions {
            probe_before_gb_per_s: Some(10.0),
            probe_after_gb_per_s: Some(11.0),
            stolen: Some(0.0),
            unwritten_bytes: Some(0),
            ended_unix_s: None,
        },
    }
}

fn open(folder: &Path, manifest: &Manifest) -> Result<Results, ResultsError> {
    Results::open(folder, manifest.clone())
}

#[test]
fn what_has_finished_is_there_again() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().join("results");
    let manifest = manifest(&small());
    let mut results = open(&folder, &manifest).unwrap();
    let first = results.plan.processes()[0];
    assert!(results.get(first).is_none());
    let outcome = done(Record {
        ops_per_s: Some(5.0),
        ..Record::default()
    });
    results.save(first, outcome.clone()).unwrap();
    drop(results);
    // A process that was killed while it wrote left this.
    fs::write(folder.join("128.fillseq.rocksdb.1.json.new"), "{").unwrap();

    let mut results = open(&folder, &manifest).unwrap();
    assert_eq!(results.get(first), Some(&outcome));
    assert_eq!(
        results.all().filter(|(_, found)| found.is_some()).count(),
        1
    );
    results.forget(first).unwrap();
    assert!(open(&folder, &manifest).unwrap().get(first).is_none());
}

#[test]
fn results_of_something_else_are_not_mixed_in() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().join("results");
    let manifest = manifest(&small());
    open(&folder, &manifest).unwrap();
    type Change = fn(&mut Manifest);
    let changes: [(&str, Change); 6] = [
        ("commit", |m| m.build.commit = Some("bad".into())),
        ("with changes", |m| m.build.is_modified = Some(true)),
        ("machine", |m| m.machine.cores = Some(4)),
        ("plan", |m| m.plan_name = "standard".into()),
        ("plan's text", |m| m.plan.push_str("\n# a remark\n")),
        ("program", |m| {
            m.programs.insert("bench-compare".into(), "34cd".into());
        }),
    ];
    for (what, change) in changes {
        let mut other = manifest.clone();
        change(&mut other);
        let error = open(&folder, &other).unwrap_err().to_string();
        assert!(error.contains(what), "{what}: {error}");
        assert!(error.contains("--results"), "{error}");
    }
    // What does not matter for the figures.
    let mut same = manifest.clone();
    same.date = "2027-01-01T00:00:00Z".into();
    same.machine.load = Some(3.0);
    same.machine.memory_bytes = Some((24 << 30) + 4096);
    same.programs.insert("pebble".into(), "56ef".into());
    open(&folder, &same).unwrap();
    same.programs.insert("pebble".into(), "78ab".into());
    assert!(open(&folder, &same).is_err(), "another build of pebble");
}

#[test]
fn an_earlier_siltstone_can_join_later() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().join("results");
    let mut manifest = manifest(&small());
    assert_eq!(open(&folder, &manifest).unwrap().plan.engines.len(), 3);
    manifest.before = Some("/tmp/bench-compare".into());
    assert_eq!(open(&folder, &manifest).unwrap().plan.engines.len(), 4);
    assert_eq!(Results::read(&folder).unwrap().plan.engines.len(), 4);
}

#[test]
fn a_folder_of_somebody_else_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("letter"), "x").unwrap();
    let error = open(folder.path(), &manifest(&small())).unwrap_err();
    assert!(matches!(error, ResultsError::Foreign(_)), "{error}");
    let error = Results::read(folder.path()).unwrap_err();
    assert!(matches!(error, ResultsError::None(_)), "{error}");
}

#[test]
fn a_damaged_file_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().join("results");
    let manifest = manifest(&small());
    open(&folder, &manifest).unwrap();
    fs::write(folder.join("128.fillseq.rocksdb.1.json"), "{").unwrap();
    let error = Results::read(&folder).unwrap_err().to_string();
    assert!(
        error.contains("128.fillseq.rocksdb.1.json is damaged"),
        "{error}"
    );
}

#[test]
fn every_process_has_a_file_of_its_own() {
    let plan = small();
    let ids = plan
        .processes()
        .into_iter()
        .map(|process: Process| plan.id(process));
    let ids: std::collections::BTreeSet<String> = ids.collect();
    assert_eq!(ids.len(), plan.processes().len());
}

#[test]
fn a_round_that_was_interrupted_for_long_runs_again() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().join("results");
    let mut results = open(&folder, &manifest(&small())).unwrap();
    let all = results.plan.processes();
    let of = |name: &str| {
        let plan = &results.plan;
        let rows = all.iter().copied();
        let found: Vec<Process> = rows
            .filter(|process| plan.rows[process.row].name == name && process.round == 1)
            .collect();
        found
    };
    let (whole, open_round) = (of("fillrandom"), of("seekrandom-10"));
    let ended = |ended_s: f64| {
        let mut outcome = done(Record::default());
        outcome.conditions.ended_unix_s = Some(ended_s);
        outcome
    };
    results.save(whole[0], ended(1000.0)).unwrap();
    results.save(whole[1], ended(1010.0)).unwrap();
    results.save(open_round[0], ended(1020.0)).unwrap();
    assert_eq!(results.interrupted(|_| true, 1020.0 + PAUSE_MAX_S), []);
    let later_s = 1023.0 + PAUSE_MAX_S;
    let found = results.interrupted(|_| true, later_s);
    assert_eq!(found, [open_round[0]], "whole rounds stay");
    let without = results.interrupted(|process| process.engine != open_round[0].engine, later_s);
    assert_eq!(without, [], "engines that are not chosen stay");
    // The second process ran after a long pause, and the third one has not run.
    results.save(open_round[1], ended(later_s)).unwrap();
    assert_eq!(results.interrupted(|_| true, later_s).len(), 2);
}
