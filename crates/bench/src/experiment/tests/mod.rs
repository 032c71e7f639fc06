mod embedded;
mod errors;
mod plans;

use super::Experiment;

/// A file that has everything.
const SMALL: &str = r#"title = "Reads by size"
compares = "The paper compares A with B."
notes = ["One.", "Two."]
scale = 0.5

[paper]
system = "A"
title = "A paper"
venue = "A journal"
year = 2025
figure = "Fig. 1"

[hardware]
paper = "A machine."
here = "Another one."

[settings]
records = "10K"
key_bytes = 16
engine.memtable_bytes = "8MiB"

[[run]]
label = "fill {value_bytes}"
workload = "fillrandom"
value_bytes = [128, "1KiB"]
without_values = "it fills the store"

[[run]]
label = "{workload} {value_bytes}"
workload = ["readrandom", "readmissing"]
value_bytes = [128, "1KiB"]
amount = "20s"
store = "fill {value_bytes}"

[[value]]
run = "readrandom 128"
system = "B 1.0"
source = "Table 1"
get.p99_us = 5.5
ops_per_s = [1000, 2000]

[[ratio]]
of = "readmissing 128"
to = "readrandom 128"
metric = "ops_per_s"
paper = 2
system = "B 1.0"
source = "Fig. 1(a)"

[[ratio]]
of = "readmissing 1KiB"
to = "readrandom 1KiB"
metric = "p99_us"
operation = "get_missing"
paper = 3
system = "B 1.0"
source = "Fig. 1(b)"

[[claim]]
what = "throughput of A over B"
paper = 4.15
needs = "a device"
source = "Fig. 1(a)"
"#;

fn small() -> Experiment {
    Experiment::parse("experiments/small.toml", SMALL).unwrap()
}

/// The message for the small file with one text replaced.
fn refused(from: &str, to: &str) -> String {
    assert!(SMALL.contains(from), "{from}");
    let text = SMALL.replacen(from, to, 1);
    match Experiment::parse("experiments/x.toml", &text) {
        Ok(_) => "accepted".into(),
        Err(error) => error.to_string(),
    }
}
