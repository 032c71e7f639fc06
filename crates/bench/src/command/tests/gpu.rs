//! Experiments whose runs have a GPU: on a machine without one, and on the emulated device, whose
//! times are no speeds.

use std::path::Path;
use std::sync::Arc;

use clap::Parser;
use serde_json::Value as Json;
use siltstone_gpu::device::Device;
use siltstone_gpu::device::emulated::EmulatedDevice;
use siltstone_gpu::{GpuOptions, OpeningExecutor};
use siltstone_storage::Runtime;
use siltstone_table::exec::Executor;

use super::super::{CommandError, Program, paper};
use super::{Paper, drivers, experiment_in};
use crate::engine::Gpus;

/// The paper's four runs and ours, with tables of 64 KiB.
const SMALL: &str = r#"
title = "Small writes"
compares = "Compaction on the host with that on a GPU."
notes = ["It is a test."]

[paper]
system = "GPU Comp-GDS"
title = "A paper"
venue = "A journal"
figure = "Fig. 11"

[hardware]
paper = "A large machine."
here = "This machine."

[settings]
workload = "fillrandom"
records = "20K"
value_bytes = 64
engine.memtable_bytes = "128KiB"
engine.background_threads = 1
engine.own.subjobs_max = 1
engine.own.table_bytes = "64KiB"
engine.own.level1_bytes = "256KiB"
engine.own.l0_trigger_count = 2

[[run]]
label = "cpu"

[[run]]
label = "{gpu.strategy}+{gpu.transfer}"
gpu.strategy = "luda"
gpu.transfer = "plain"
gpu.profiles = true

[[run]]
label = "{gpu.strategy}+{gpu.transfer}"
gpu.strategy = ["hierarchical", "full"]
gpu.transfer = ["pipeline", "direct"]

[[run]]
label = "read after full+pipeline"
workload = "readrandom"
amount = "1K"
gpu.strategy = "full"
store = "full+pipeline"
without_values = "it shows that the store can be read"

[[value]]
run = "hierarchical+direct"
system = "GPU Comp-GDS"
source = "Table I"
p999_us = 13.503

[[ratio]]
of = "luda+plain"
to = "cpu"
metric = "compaction_bytes_per_s"
paper = 1.61
system = "LUDA"
source = "Fig. 10"

[[ratio]]
of = "full+pipeline"
to = "hierarchical+pipeline"
metric = "ops_per_s"
paper = 1.5
system = "GPU Comp-GDS"
source = "Fig. 11"

[[ratio]]
of = "full+direct"
to = "hierarchical+direct"
metric = "ops_per_s"
paper = 1.25
system = "GPU Comp-GDS"
source = "Fig. 11"
"#;

/// The line that `silt gpu` prints where there is none.
const NO_GPU: &str = "no GPU can be used: the library of the driver was not found";

struct NoGpu;

impl Gpus for NoGpu {
    fn open(&self, _options: GpuOptions) -> Result<Arc<dyn Executor>, String> {
        Err(NO_GPU.into())
    }
}

/// A device that the host emulates.
struct Emulated;

impl Gpus for Emulated {
    fn open(&self, options: GpuOptions) -> Result<Arc<dyn Executor>, String> {
        let options = GpuOptions {
            memory_bytes_max: 64 << 20,
            pinned_bytes_max: 4 << 20,
            job_bytes_min: 0,
            ..options
        };
        let runtime = Runtime::threads();
        let of_device = runtime.clone();
        let make = move || {
            let device = EmulatedDevice::new(&of_device, 256 << 20, 1);
            Ok(Arc::new(device) as Arc<dyn Device>)
        };
        let opening = OpeningExecutor::start("gpu0", &runtime, options, make);
        Ok(Arc::new(opening.map_err(|error| error.to_string())?))
    }

    fn stand_in(&self) -> Option<String> {
        Some("The host emulated a GPU, so no figure is a speed.".into())
    }
}

fn said(gpus: &dyn Gpus, folder: &Path, words: &str) -> (String, Result<(), CommandError>) {
    let file = experiment_in(folder, SMALL);
    let words = ["paper", &file].into_iter().chain(words.split_whitespace());
    let args = Paper::try_parse_from(words).unwrap().args;
    let drivers = drivers();
    let program = Program {
        command: "silt bench",
        drivers: &drivers,
        file: None,
        gpus,
        stopped: &|| false,
    };
    let mut out = Vec::new();
    let result = paper(&program, &args, &mut out);
    (String::from_utf8(out).unwrap(), result)
}

fn lines(out: &str) -> Vec<Json> {
    let line = |line: &str| serde_json::from_str(line).unwrap();
    out.lines().map(line).collect()
}

/// The object of a run.
fn of<'a>(lines: &'a [Json], label: &str) -> &'a Json {
    let is_it = |line: &&Json| line["experiment"]["run"] == label;
    lines
        .iter()
        .find(is_it)
        .unwrap_or_else(|| panic!("{label}"))
}

const ON_GPU: [&str; 5] = [
    "luda+plain",
    "hierarchical+pipeline",
    "hierarchical+direct",
    "full+pipeline",
    "full+direct",
];

#[test]
fn without_a_gpu_its_runs_are_not_run_and_the_others_are() {
    let folder = tempfile::tempdir().unwrap();
    let (out, result) = said(&NoGpu, folder.path(), "");
    result.unwrap();
    let flat = out.split_whitespace().collect::<Vec<_>>().join(" ");
    assert_eq!(
        flat.matches(&format!("not run {NO_GPU}")).count(),
        6,
        "{out}"
    );
    for words in [
        "1 of 7: cpu (fillrandom on siltstone) measured ",
        "2 of 7: luda+plain not run no GPU can be used",
        "p999_us 13.5us - - GPU Comp-GDS",
        "6 of 7: read after full+pipeline not run",
        "compaction_bytes_per_s of `luda+plain` by that of `cpu`; paper 1.61x, ours not run",
    ] {
        assert!(flat.contains(words), "{words}: {out}");
    }
    assert!(out.lines().all(|line| line.chars().count() <= 100), "{out}");

    let (out, result) = said(&NoGpu, folder.path(), "--json");
    result.unwrap();
    let lines = lines(&out);
    assert_eq!(lines.len(), 8, "{out}");
    let host = of(&lines, "cpu");
    assert!(
        host["compaction_bytes_per_s"].as_f64().unwrap() > 0.0,
        "{host}"
    );
    assert_eq!(host["gpu_utilisation"], Json::Null);
    for label in ON_GPU {
        assert_eq!(of(&lines, label)["not_run"], NO_GPU);
    }
    let not_run = lines[7]["not_run"].as_array().unwrap();
    assert_eq!(not_run.len(), 6);
    assert_eq!(not_run[0]["run"], "luda+plain");
    assert_eq!(not_run[0]["why"], NO_GPU);
}

#[test]
fn another_engine_has_no_compaction_on_a_gpu() {
    let folder = tempfile::tempdir().unwrap();
    let (out, result) = said(&Emulated, folder.path(), "--engine null --json");
    result.unwrap();
    let lines = lines(&out);
    assert_eq!(of(&lines, "cpu")["engine"], "null");
    let why = &of(&lines, "full+pipeline")["not_run"];
    assert_eq!(why, "null has no compaction on a GPU");
}

/// A stand-in: all is real but the GPU, and no figure is compared.
#[test]
fn an_experiment_runs_on_the_emulated_device() {
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("page.md");
    let words = format!("--json --page {}", page.display());
    let (out, result) = said(&Emulated, folder.path(), &words);
    // A page is made of the program's own experiments only.
    assert!(result.is_err() || page.exists());
    let lines = lines(&out);
    assert_eq!(lines.len(), 8, "{out}");
    assert_eq!(
        of(&lines, "cpu")["engine_counters"]["gpu_compaction_count"],
        Json::Null
    );
    for label in ON_GPU {
        let line = of(&lines, label);
        if label.ends_with("+direct") && line.get("not_run").is_some() {
            // The executor has refused to open with it, and says why.
            assert!(
                line["not_run"].as_str().unwrap().contains("direct"),
                "{line}"
            );
            continue;
        }
        let counters = &line["engine_counters"];
        assert!(
            counters["gpu_compaction_count"].as_u64().unwrap() > 0,
            "{counters}"
        );
        assert_eq!(counters["gpu_mismatches"], 0, "{label}");
        assert!(line["compaction_bytes_per_s"].as_f64().unwrap() > 0.0);
        let executors = line["engine_settings"]["executors"].as_str().unwrap();
        let (strategy, transfer) = label.split_once('+').unwrap();
        let expected = format!("gpu0: strategy {strategy}, transfer {transfer}");
        assert_eq!(executors, expected);
        assert_eq!(line["settings"]["gpu"]["strategy"], strategy);
        let stand_ins = line["stand_ins"].to_string();
        assert!(stand_ins.contains("emulated a GPU"), "{stand_ins}");
        // The emulated device has no clock, so nothing is known of its use.
        assert_eq!(line["gpu_utilisation"], Json::Null);
        let profiles = label == "luda+plain";
        assert_eq!(counters.get("gpu_busy_us").is_some(), profiles, "{label}");
    }
    let read = of(&lines, "read after full+pipeline");
    assert_eq!(read["verification_failures"], 0);
    assert_eq!(read["operations"], 1000);
    let ratios = lines[7]["ratios"].as_array().unwrap();
    assert!(ratios[0]["ours"].as_f64().unwrap() > 0.0, "{ratios:?}");
    assert_eq!(ratios[1]["of"], "full+pipeline");
}
