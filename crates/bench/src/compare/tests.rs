mod archive;
mod order;
mod page;
mod performance;
mod plans;
mod results;

use super::Plan;

/// A plan that has everything.
const SMALL: &str = r#"title = "Small"
notes = ["One.", "Two."]

[settings]
key_bytes = 16
engine.memtable_bytes = "8MiB"

[[engine]]
name = "siltstone"

[[engine]]
name = "rocksdb"
note = "Another engine."

[[engine]]
name = "rocksdb-mmap"
shares = "rocksdb"
engine.mmap_reads = true

[[store]]
name = "128"
workload = "fillrandom"
records = 10_000
value_bytes = 128
expected = { siltstone = 1_000, rocksdb = 500 }

[[row]]
store = "128"
workload = "overwrite"
engines = ["siltstone", "rocksdb"]
amount = 1_000
pairs = 2

[[row]]
store = "128"
name = "{workload}-{nexts}"
workload = "seekrandom"
nexts = [10, 100]
amount = "2s"
pairs = 2

[[row]]
store = "128"
workload = "fillrandom"
engines = ["siltstone", "rocksdb"]
pairs = 3

[[row]]
store = "128"
workload = "fillseq"
records = 5_000
engines = ["siltstone", "rocksdb"]
tenths = true
expected = { siltstone = 5_000 }

[[row]]
store = "128"
workload = "readwhilewriting"
amount = "2s"
engines = ["siltstone", "rocksdb"]
metric = "p99_us"
memory_limit = "64MiB"
"#;

fn small() -> Plan {
    Plan::parse("plans/small.toml", SMALL).unwrap()
}

/// The message for the small plan with one text replaced.
fn refused(from: &str, to: &str) -> String {
    assert!(SMALL.contains(from), "{from}");
    let text = SMALL.replacen(from, to, 1);
    match Plan::parse("plans/x.toml", &text) {
        Ok(_) => "accepted".into(),
        Err(error) => error.to_string(),
    }
}

/// The index of the row of this name.
fn row(plan: &Plan, name: &str) -> usize {
    plan.rows.iter().position(|row| row.name == name).unwrap()
}
