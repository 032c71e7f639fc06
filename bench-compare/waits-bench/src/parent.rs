//! Starts the children in interleaved rounds, and prints what they measured.
//!
//! Threading: one child at a time.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::Path;
use std::process::Command;

use crate::samples::Figures;
use crate::{Arguments, Result};

pub fn run(arguments: &Arguments) -> Result<()> {
    let mut all: BTreeMap<&str, Vec<Figures>> = BTreeMap::new();
    let path = Path::new(&arguments.results);
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    }
    let mut options = std::fs::OpenOptions::new();
    let file = options.create(true).append(true).open(path);
    let mut file = file.map_err(|e| format!("{}: {e}", path.display()))?;
    // The first run of several has been half as fast as the same one later, whichever engine it
    // was.
    if let Some(first) = arguments.engines.first() {
        eprintln!("a run that is not counted: {first}");
        child(first)?;
    }
    for round in 0..arguments.rounds {
        // Every second round is in the opposite order.
        let mut engines: Vec<&String> = arguments.engines.iter().collect();
        if round % 2 == 1 {
            engines.reverse();
        }
        for engine in engines {
            eprintln!("round {} of {}: {engine}", round + 1, arguments.rounds);
            let figures = child(engine)?;
            let line = serde_json::json!({
                "arguments": arguments, "engine": engine, "round": round, "figures": figures,
            });
            writeln!(file, "{line}").map_err(|e| format!("{}: {e}", path.display()))?;
            all.entry(engine).or_default().push(figures);
        }
    }
    print(arguments, &all);
    Ok(())
}

/// Runs this program again, with the same arguments, for one engine.
fn child(engine: &str) -> Result<Figures> {
    let program = std::env::current_exe().map_err(|e| e.to_string())?;
    let child = Command::new(program)
        .args(std::env::args_os().skip(1))
        .args(["--child", engine])
        .stderr(std::process::Stdio::inherit())
        .output()
        .map_err(|e| e.to_string())?;
    if !child.status.success() {
        return Err(format!("{engine} failed: {}", child.status));
    }
    let text = String::from_utf8_lossy(&child.stdout);
    let line = text.lines().last().unwrap_or_default();
    serde_json::from_str(line).map_err(|e| format!("{engine} printed `{line}`: {e}"))
}

/// The median, the lowest and the highest.
fn spread(mut values: Vec<f64>) -> (f64, f64, f64) {
    values.sort_unstable_by(f64::total_cmp);
    let (first, last) = (values[0], values[values.len() - 1]);
    (values[values.len() / 2], first, last)
}

fn print(arguments: &Arguments, all: &BTreeMap<&str, Vec<Figures>>) {
    let mut names: Vec<&String> = all.values().flatten().flat_map(Figures::keys).collect();
    names.sort_unstable();
    names.dedup();
    let disk = match arguments.write_bytes_per_s {
        Some(rate) => format!("a shaped stand-in that writes {} MB/s", rate / 1_000_000),
        None => "the machine's disk".to_string(),
    };
    println!(
        "{:?}, values of {} bytes, memtables of {} MiB, {} background threads, on {disk}",
        arguments.scenario,
        arguments.value_bytes,
        arguments.memtable_bytes >> 20,
        arguments.background_threads,
    );
    println!("medians of {} rounds (lowest to highest)", arguments.rounds);
    for name in names {
        println!("{name}");
        for engine in &arguments.engines {
            let own = all[&engine[..]].iter();
            let values: Vec<f64> = own
                .filter_map(|figures| figures.get(name).copied())
                .collect();
            if !values.is_empty() {
                let (median, low, high) = spread(values);
                println!("  {engine:<14} {median:>14.2}  ({low:.2} to {high:.2})");
            }
        }
    }
}
