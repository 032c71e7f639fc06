//! The program `gpu-check` on the emulated device, and on a machine without a GPU.

use std::process::{Command, Output};

use serde_json::Value;

fn gpu_check(words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gpu-check"));
    command.args(words).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// All objects with this member, wherever they are.
fn all_with<'a>(value: &'a Value, name: &str, found: &mut Vec<&'a Value>) {
    match value {
        Value::Object(members) => {
            if members.contains_key(name) {
                found.push(value);
            }
            members.values().for_each(|v| all_with(v, name, found));
        }
        Value::Array(items) => items.iter().for_each(|v| all_with(v, name, found)),
        _ => {}
    }
}

#[test]
fn everything_runs_on_the_emulated_device() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let missing = folder.path().join("rocksdb-merge");
    let ran = gpu_check(&[
        out.to_str().unwrap(),
        "--emulated",
        "--small",
        "--seconds",
        "300",
        "--rocksdb",
        missing.to_str().unwrap(),
    ]);
    let said = text(&ran.stdout) + &text(&ran.stderr);
    assert!(ran.status.success(), "{said}");

    let json = std::fs::read_to_string(out.join("gpu-check.json")).unwrap();
    let report: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(report["is_emulated"], true);
    let sections = report["sections"].as_array().unwrap();
    let names: Vec<_> = sections
        .iter()
        .map(|s| s["name"].as_str().unwrap())
        .collect();
    assert_eq!(
        names,
        ["device", "equality", "speed", "kernels", "rank", "store"]
    );
    for section in sections {
        assert_eq!(section["state"], "done", "{section}\n{said}");
        assert_eq!(section["is_cut"], false, "{section}");
    }
    let rows = |name: &str| report[name].as_array().unwrap().clone();
    for (name, least) in [
        ("equality", 12),
        ("speed", 10),
        ("kernels", 100),
        ("rank", 2),
        ("memory", 1),
        ("store", 4),
    ] {
        assert!(
            rows(name).len() >= least,
            "{name}: {} rows",
            rows(name).len()
        );
    }
    // Without RocksDB's program one line says so, and the others are measured.
    let left_out = format!("RocksDB is left out: {} is not there", missing.display());
    assert_eq!(said.matches(&left_out).count(), 1, "{said}");
    assert!(rows("speed").iter().all(|row| row["side"] != "rocksdb"));
    for row in rows("equality") {
        assert_eq!(row["is_equal"], true, "{row}");
        assert_eq!(row["difference"], Value::Null);
    }
    assert!(rows("kernels").iter().any(|row| row["kernel"] == "judge"));
    let gpu_jobs = rows("store")
        .iter()
        .map(|row| row["gpu_jobs"].as_u64().unwrap())
        .sum::<u64>();
    assert!(gpu_jobs > 0, "no job of a store ran on the GPU: {said}");

    // No figure of an emulated device may be taken for a speed.
    let mut labelled = Vec::new();
    all_with(&report, "label", &mut labelled);
    assert!(labelled.len() > 100);
    for value in labelled {
        assert_eq!(value["label"], "emulated: not a speed", "{value}");
    }
    let page = std::fs::read_to_string(out.join("gpu-check.html")).unwrap();
    let document = page.strip_prefix("<!DOCTYPE html>\n").unwrap();
    roxmltree::Document::parse(document).unwrap();
    assert!(page.matches("emulated: not a speed").count() > 100);
    assert!(!page.contains("http://") || page.matches("http://").count() == 1);
}

/// A program of the shell stands in for RocksDB's: its times are made up here, and what is tried is
/// that they arrive beside those of the executors, and only if it kept as many entries.
#[cfg(unix)]
#[test]
fn what_rocksdb_says_is_beside_the_executors() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let speed_with = |kept: &str, name: &str| {
        let program = folder.path().join(name);
        let script = format!(
            "#!/bin/sh\nwhile read line; do case $line in\n\
             *write*) echo '{{\"written\":\"9.9.9\"}}' ;;\n\
             *) echo '{{\"merged\":{{\"wall_s\":0.5,\"cpu_s\":0.25,\"read_bytes\":7,\
             \"written_bytes\":5,\"entries\":{kept}}}}}' ;;\nesac; done\n"
        );
        std::fs::write(&program, script).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        let out = folder.path().join(format!("{name}-out"));
        let ran = gpu_check(&[
            out.to_str().unwrap(),
            "--emulated",
            "--small",
            "--only",
            "speed",
            "--rocksdb",
            program.to_str().unwrap(),
        ]);
        assert!(ran.status.success(), "{}", text(&ran.stderr));
        let json = std::fs::read_to_string(out.join("gpu-check.json")).unwrap();
        let page = std::fs::read_to_string(out.join("gpu-check.html")).unwrap();
        (
            serde_json::from_str::<Value>(&json).unwrap(),
            page,
            text(&ran.stdout),
        )
    };
    let (report, _, said) = speed_with("1", "wrong");
    let of_rocksdb = |report: &Value| -> Vec<Value> {
        let rows = report["speed"].as_array().unwrap().iter();
        rows.filter(|row| row["side"] == "rocksdb")
            .cloned()
            .collect()
    };
    assert_eq!(of_rocksdb(&report).len(), 0, "{said}");
    let (_, after) = said
        .split_once("RocksDB kept 1 entries and the host ")
        .unwrap();
    let kept = after.split(',').next().unwrap();

    let (report, page, said) = speed_with(kept, "right");
    let rows = of_rocksdb(&report);
    assert!(!rows.is_empty(), "{said}");
    for row in &rows {
        assert_eq!((&row["place"], &row["runs"]), (&"memory".into(), &4.into()));
        let rate = row["input_bytes"].as_f64().unwrap() / 1e6 / 0.5;
        let found = row["mb_per_s"]["median"].as_f64().unwrap();
        assert!((found - rate).abs() < 1e-9, "{row}");
        assert_eq!(row["output_bytes"], 5);
        assert_eq!(row["label"], "emulated: not a speed");
    }
    assert_eq!(report["rocksdb"], "RocksDB has version 9.9.9.");
    assert!(page.contains("rocksdb, 1 thread") && page.contains("RocksDB has version 9.9.9."));
}

/// On a machine with a GPU the small jobs are run.
#[test]
fn without_a_gpu_one_line_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let words = [out.to_str().unwrap(), "--small", "--only", "device"];
    let ran = gpu_check(&words);
    let said = text(&ran.stdout);
    assert!(ran.status.success(), "{said}{}", text(&ran.stderr));
    if said.contains("nothing was measured") {
        assert_eq!(said.lines().count(), 1, "{said}");
        assert!(!out.exists());
    }
}

#[test]
fn wrong_arguments_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    for wrong in ["inf", "1e30", "-1", "nan", "ten"] {
        let time = format!("--seconds={wrong}");
        let ran = gpu_check(&[folder.path().to_str().unwrap(), &time]);
        assert_eq!(ran.status.code(), Some(2));
        let said = text(&ran.stderr);
        assert!(said.contains("expected seconds from 0 to 86400"), "{said}");
    }
    let ran = gpu_check(&[folder.path().to_str().unwrap(), "--only", "everything"]);
    assert_eq!(ran.status.code(), Some(2));
    let said = text(&ran.stderr);
    assert!(said.contains("the names are device, equality,"), "{said}");
}
