//! siltstone beside other engines in one run: A B A B, each workload in a process of its own, with
//! fresh folders in every round.
//!
//! `cargo xtask bench --engines siltstone,leveldb --size 1GiB --rounds 3`
//!
//! Settings, equal for all: 16-byte keys, memtable 64 MiB, block cache 64 MiB, 10 filter bits a
//! key, no compression, log on, no fsync of the log, one writer. Fills count until idle. Reads are
//! of a settled store, all in page cache, warmed by a full scan and a quarter of the workload. The
//! machine drifts: only ratios of one round compare, and the tables show their medians.

mod child;
mod engines;
mod keys;
mod os;
mod queue;
mod report;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use clap::Parser;
use report::Figures;

/// Workloads in the order in which they run: reads after the fills that make their store.
const WORKLOADS: [&str; 11] = [
    "fillseq",
    "fillrandom",
    "readrandom",
    "readmissing",
    "seek10",
    "seek100",
    "readseq",
    "overwrite",
    "reopen",
    "queue",
    "deletedhead",
];

/// Figures of the tables.
const FIGURES: [&str; 21] = [
    "kops_idle",
    "kops",
    "seconds",
    "p50_us",
    "p99_us",
    "p999_us",
    "max_us",
    "over_1ms_s",
    "write_amplification",
    "written_bytes_ratio",
    "cpu_s",
    "caller_cpu_us",
    "anonymous_mb",
    "operations",
    "kops_first_tenth",
    "kops_last_tenth",
    "first_seek_us",
    "second_seek_us",
    "reopened_seek_us",
    "idle_seek_us",
    "memcpy_gb_per_second",
];

/// The engine that is an earlier siltstone.
const BEFORE: &str = "before";

/// siltstone beside other engines.
#[derive(Parser)]
struct Arguments {
    /// Engines; the first one is compared with the others.
    #[arg(long, value_delimiter = ',', default_value = "siltstone,leveldb")]
    engines: Vec<String>,
    /// This program, built from another commit: its siltstone runs as the engine `before`.
    #[arg(long, value_name = "PROGRAM")]
    before: Option<PathBuf>,
    /// Raw bytes of a store: keys and values. K, M, G with or without iB.
    #[arg(long, default_value = "1GiB")]
    size: String,
    /// Rounds.
    #[arg(long, default_value_t = 3)]
    rounds: u64,
    /// Bytes of a value.
    #[arg(long, default_value_t = 128)]
    value_bytes: usize,
    /// Workloads; all if none is named.
    #[arg(long, value_delimiter = ',')]
    workloads: Vec<String>,
    /// Folder for the stores.
    #[arg(long, default_value = "/tmp/bench-compare")]
    folder: PathBuf,
    /// Where the figures of every round go, as JSON.
    #[arg(long)]
    json: Option<PathBuf>,
    /// Print the engines' own figures after each workload.
    #[arg(long)]
    verbose: bool,
    /// Keep the stores.
    #[arg(long)]
    keep: bool,
    /// Inner: run one workload of one engine in this process.
    #[arg(long, hide = true)]
    child: Option<String>,
    /// Inner: the round.
    #[arg(long, hide = true, default_value_t = 0)]
    round: u64,
}

fn bytes_of(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match &text[digits.len()..] {
        "" | "B" => 1,
        "K" | "KiB" => 1 << 10,
        "M" | "MiB" => 1 << 20,
        "G" | "GiB" => 1 << 30,
        other => {
            return Err(format!(
                "size `{text}` has the unknown unit `{other}`; use KiB, MiB or GiB"
            ));
        }
    };
    let number: u64 = digits.parse().map_err(|e| format!("size `{text}`: {e}"))?;
    Ok(number * unit)
}

fn main() -> ExitCode {
    let mut arguments = Arguments::parse();
    if arguments.before.is_some() && arguments.child.is_none() {
        arguments.engines.retain(|engine| engine != BEFORE);
        arguments.engines.push(BEFORE.to_string());
    }
    let result = match &arguments.child {
        Some(workload) => child(&arguments, workload),
        None => parent(&arguments),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn child(arguments: &Arguments, workload: &str) -> Result<(), String> {
    let entries = bytes_of(&arguments.size)? / (16 + arguments.value_bytes as u64);
    child::run(&child::Task {
        engine: &arguments.engines[0],
        workload,
        path: &arguments.folder,
        entries: entries.max(1),
        value_bytes: arguments.value_bytes,
        round: arguments.round,
        verbose: arguments.verbose,
    })
}

/// Runs a child; its figures, or `None` if it killed itself as ordered.
fn run_child(
    arguments: &Arguments,
    engine: &str,
    workload: &str,
    path: &Path,
    round: u64,
) -> Result<Vec<(String, f64)>, String> {
    let (program, engine) = match &arguments.before {
        Some(before) if engine == BEFORE => (before.clone(), "siltstone"),
        _ => (std::env::current_exe().map_err(|e| e.to_string())?, engine),
    };
    let mut command = Command::new(program);
    command.args([
        "--child",
        workload,
        "--engines",
        engine,
        "--size",
        &arguments.size,
    ]);
    command.args([
        "--value-bytes",
        &arguments.value_bytes.to_string(),
        "--round",
        &round.to_string(),
        "--folder",
    ]);
    command.arg(path).stderr(Stdio::inherit());
    if arguments.verbose {
        command.arg("--verbose");
    }
    let output = command
        .output()
        .map_err(|e| format!("starting a child: {e}"))?;
    if !output.status.success() && workload != "logfill" {
        return Err(format!(
            "{engine} {workload}: the child ended with {}",
            output.status
        ));
    }
    let figures = String::from_utf8_lossy(&output.stdout)
        .lines()
        .filter_map(|line| line.split_once(' '))
        .filter_map(|(name, value)| Some((name.to_string(), value.parse().ok()?)))
        .collect();
    Ok(figures)
}

fn clear(path: &Path) -> Result<(), String> {
    match std::fs::remove_dir_all(path) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
            Err(format!("{}: {e}", path.display()))
        }
        _ => Ok(()),
    }
}

fn parent(arguments: &Arguments) -> Result<(), String> {
    let workloads: Vec<String> = match &arguments.workloads[..] {
        [] => WORKLOADS.iter().map(|w| (*w).to_string()).collect(),
        some => some.to_vec(),
    };
    if let Some(unknown) = workloads.iter().find(|w| !WORKLOADS.contains(&w.as_str())) {
        return Err(format!(
            "there is no workload `{unknown}`; workloads: {}",
            WORKLOADS.join(", ")
        ));
    }
    std::fs::create_dir_all(&arguments.folder)
        .map_err(|e| format!("{}: {e}", arguments.folder.display()))?;
    let needs_store = |w: &str| {
        !matches!(
            w,
            "fillseq" | "fillrandom" | "reopen" | "queue" | "deletedhead"
        )
    };
    let load_before = os::load();
    let mut figures = Figures::new();
    for round in 0..arguments.rounds {
        // Who goes first changes from round to round.
        let mut engines = arguments.engines.clone();
        if round % 2 == 1 {
            engines.reverse();
        }
        let folder =
            |engine: &str, what: &str| arguments.folder.join(format!("{engine}-{what}.store"));
        let mut has_store = false;
        for workload in &workloads {
            for engine in &engines {
                let main = folder(engine, "random");
                let path = match workload.as_str() {
                    "fillseq" => folder(engine, "seq"),
                    "reopen" => folder(engine, "log"),
                    "queue" | "deletedhead" => folder(engine, "queue"),
                    _ => main.clone(),
                };
                if !needs_store(workload) {
                    clear(&path)?;
                } else if !has_store {
                    clear(&path)?;
                    run_child(arguments, engine, "fillrandom", &path, round)?;
                    run_child(arguments, engine, "settle", &path, round)?;
                }
                if workload == "reopen" {
                    run_child(arguments, engine, "logfill", &path, round)?;
                }
                let found = run_child(arguments, engine, workload, &path, round)?;
                if workload == "fillrandom" {
                    run_child(arguments, engine, "settle", &path, round)?;
                }
                if matches!(
                    workload.as_str(),
                    "fillseq" | "reopen" | "overwrite" | "queue" | "deletedhead"
                ) && !arguments.keep
                {
                    clear(&path)?;
                }
                let first =
                    |name: &str| found.iter().find(|f| f.0 == name).map_or(f64::NAN, |f| f.1);
                let rate = first("kops_idle");
                let rate = if rate.is_nan() { first("kops") } else { rate };
                eprintln!(
                    "round {round} {workload} {engine}: {rate:.1} kops/s, {:.3} s, \
                     memcpy {:.1} GB/s, load {:.1}",
                    first("seconds"),
                    first("memcpy_gb_per_second"),
                    os::load()
                );
                for (name, value) in found {
                    figures
                        .entry((workload.clone(), engine.clone(), name))
                        .or_default()
                        .push(value);
                }
            }
            has_store |= needs_store(workload) || workload == "fillrandom";
            has_store &= workload != "overwrite";
        }
        if !arguments.keep {
            for engine in &engines {
                clear(&folder(engine, "random"))?;
            }
        }
    }
    println!(
        "16-byte keys, {}-byte values, {} raw, {} rounds; load {load_before:.1} before, \
         {:.1} after. Median (lowest-highest); ratios above 1: {} is better.",
        arguments.value_bytes,
        arguments.size,
        arguments.rounds,
        os::load(),
        arguments.engines[0]
    );
    print!(
        "{}",
        report::markdown(&figures, &workloads, &arguments.engines, &FIGURES)
    );
    if let Some(path) = &arguments.json {
        let settings = [
            ("size", arguments.size.clone()),
            ("value_bytes", arguments.value_bytes.to_string()),
            ("rounds", arguments.rounds.to_string()),
            ("engines", arguments.engines.join(" ")),
        ];
        std::fs::write(path, report::json(&figures, &settings))
            .map_err(|e| format!("{}: {e}", path.display()))?;
    }
    Ok(())
}
