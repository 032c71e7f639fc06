//! Prints the figures about the engine's structure that the documents use: `cargo xtask layers`.
//!
//! The folder of the repository is the only argument. `--upward` lists every import that runs
//! upward.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::ExitCode;

use siltstone_layers::functions::LONGEST_FUNCTION;
use siltstone_layers::layers::{folder, runs_upward, upward_by_folders};
use siltstone_layers::{CRATES, Function, Sources, circles, functions, imports};

fn main() -> ExitCode {
    let (flags, paths): (Vec<String>, Vec<String>) = std::env::args()
        .skip(1)
        .partition(|word| word.starts_with("--"));
    let root = paths.first().map_or(".", String::as_str);
    match show(Path::new(root), flags.iter().any(|f| f == "--upward")) {
        Ok(()) => ExitCode::SUCCESS,
        Err(wrong) => {
            eprintln!("error: {wrong}");
            ExitCode::FAILURE
        }
    }
}

fn show(root: &Path, list: bool) -> Result<(), String> {
    println!(
        "{:8} {:>5} {:>7} {:>9} {:>6} {:>4} {:>4} {:>9}",
        "crate", "files", "lines", "functions", "median", "p90", "max", "above 160"
    );
    let mut engine = None;
    for (name, file) in CRATES {
        let sources = Sources::read(&root.join(file))?;
        let all = functions(&sources);
        let mut lengths: Vec<usize> = all.iter().map(|f| f.lines).collect();
        lengths.sort_unstable();
        let at = |percent: usize| lengths.get(lengths.len() * percent / 100).copied();
        let lines: usize = sources.files.iter().map(|f| f.text.lines().count()).sum();
        println!(
            "{name:8} {:5} {lines:7} {:9} {:6} {:4} {:4} {:9}",
            sources.files.len(),
            all.len(),
            at(50).unwrap_or(0),
            at(90).unwrap_or(0),
            lengths.last().unwrap_or(&0),
            all.iter().filter(|f| f.lines > LONGEST_FUNCTION).count(),
        );
        long(name, &all);
        if name == "engine" {
            engine = Some(sources);
        }
    }
    let engine = engine.ok_or("the engine is not among the crates")?;
    let found = imports(&engine);
    let upward = found.iter().filter(|i| runs_upward(i)).count();
    let pairs: BTreeSet<_> = found.iter().map(|i| (&i.from, &i.to)).collect();
    println!(
        "\nengine: {} imports between {} pairs of files, {upward} of them upward",
        found.len(),
        pairs.len()
    );
    for ((from, to), count) in upward_by_folders(&found) {
        println!("  {from} -> {to}: {count}");
    }
    if list {
        for import in found.iter().filter(|i| runs_upward(i)) {
            println!(
                "  {}:{} -> {} ({})",
                import.from, import.line, import.to, import.path
            );
        }
    }
    show_circles("circles", circles(&found));
    let within = found.iter().filter(|i| !runs_upward(i));
    show_circles("circles without upward imports", circles(within));

    let sites: Vec<usize> = engine
        .files
        .iter()
        .map(|f| f.text.matches("planted!(").count())
        .filter(|count| *count > 0)
        .collect();
    println!(
        "\nsites of planted faults: {} in {} files",
        sites.iter().sum::<usize>(),
        sites.len()
    );
    Ok(())
}

/// Prints the functions that are longer than allowed.
fn long(name: &str, all: &[Function]) {
    for function in all.iter().filter(|f| f.lines > LONGEST_FUNCTION) {
        println!(
            "  {name} {}:{} {}: {} lines",
            function.file, function.line, function.name, function.lines
        );
    }
}

fn show_circles(title: &str, all: Vec<Vec<&str>>) {
    println!("\n{title}: {}", all.len());
    for files in &all {
        let mut folders: Vec<&str> = files.iter().map(|f| folder(f)).collect();
        folders.sort_unstable();
        folders.dedup();
        println!("  {} files of {}", files.len(), folders.join(", "));
        if files.len() <= 12 {
            println!("    {}", files.join(" "));
        }
    }
}
