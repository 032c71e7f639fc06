//! Runs libFuzzer on the parsers, one after the other, and adds its findings to the corpora.
//!
//! There is one binary for all targets, built with the address sanitizer. Each target runs in
//! pieces until both its seconds and its runs are reached, or until ten times its seconds have
//! passed, because some targets open a whole store in each run. libFuzzer counts the runs and
//! prints them.
//!
//! Invariants: a piece that fails ends the whole run, and its input lies in `fuzz/artifacts`. Files
//! are only added to corpora, never replaced: seeds and inputs that once failed stay.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::Failure;
use crate::steps::Step;

/// The instrumentation that libFuzzer needs: counters of edges, compared values, and the address
/// sanitizer. cargo-fuzz sets the same flags.
const FLAGS: &str = "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares --cfg fuzzing -Zsanitizer=address";

/// The limits of one input: its bytes, seconds, and total and single allocations (MiB). Leaks are
/// not detected, because runtimes and statics live until the process ends.
const LIMITS: &str =
    "-max_len=65536 -timeout=20 -rss_limit_mb=4096 -malloc_limit_mb=64 -detect_leaks=0";

/// The factor by which a slow target may exceed its seconds to reach its runs.
const PATIENCE: u64 = 10;

/// The largest size and number of files that are added to a corpus. The gate replays all of them.
const KEPT_BYTES: u64 = 4096;
const KEPT_FILES: usize = 120;

/// The targets, and the amount of fuzzing.
#[derive(Debug, PartialEq, Eq)]
pub struct Wish {
    /// The folders of `fuzz/corpora`.
    pub targets: Vec<String>,
    /// The minimum time of each target,
    pub seconds: u64,
    /// and its minimum number of runs, if that takes no more than ten times as long.
    pub runs: u64,
    /// Whether to add to the corpora the smallest inputs that reach code which the corpora do not
    /// reach.
    pub keep: bool,
}

impl Wish {
    /// Parses the words after `fuzz`; `known` are the targets.
    ///
    /// # Errors
    /// A sentence for the user.
    pub fn parse(words: &[&str], known: &[String]) -> Result<Wish, String> {
        let mut wish = Wish {
            targets: Vec::new(),
            seconds: 30,
            runs: 1_000_000,
            keep: false,
        };
        let usage = "`fuzz` is used as: fuzz [TARGET...] [--seconds N] [--runs N] [--keep], N of \
            seconds from 1 to 86400";
        let mut words = words.iter();
        while let Some(&word) = words.next() {
            let mut number = || words.next().and_then(|n| n.parse().ok()).ok_or(usage);
            match word {
                "--seconds" => wish.seconds = number()?,
                "--runs" => wish.runs = number()?,
                "--keep" => wish.keep = true,
                _ if word.starts_with('-') => return Err(usage.to_string()),
                name if known.iter().any(|k| k == name) => wish.targets.push(name.to_string()),
                name => return Err(format!("there is no target `{name}` in fuzz/corpora")),
            }
        }
        if !(1..=86_400).contains(&wish.seconds) {
            return Err(usage.to_string());
        }
        if wish.targets.is_empty() {
            wish.targets = known.to_vec();
        }
        Ok(wish)
    }
}

/// The result of a target.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Reached {
    runs: u64,
    /// The number of edges of the program's graph that were run.
    edges: u64,
}

impl Reached {
    /// Parses a line of libFuzzer's output.
    fn line(&mut self, line: &str) {
        if let Some(runs) = line.strip_prefix("stat::number_of_executed_units:") {
            self.runs += runs.trim().parse::<u64>().unwrap_or(0);
        }
        let mut words = line.split_whitespace();
        if words.any(|word| word == "cov:") {
            let edges = words.next().and_then(|n| n.parse().ok());
            self.edges = edges.unwrap_or(self.edges);
        }
    }
}

/// Builds the fuzzer and runs it on each target.
///
/// # Errors
/// It cannot be built, or an input breaks a promise.
pub fn fuzz(root: &Path, wish: &Wish) -> Result<(), Failure> {
    // The target is named, so that build scripts are not built for the fuzzer.
    let host = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let build = Step::new(&format!(
        "cargo +nightly build --release --manifest-path fuzz/Cargo.toml --target-dir fuzz/target \
        --target {host}"
    ));
    crate::run(&build.with("RUSTFLAGS", FLAGS), root)?;
    let binary = format!("fuzz/target/{host}/release/parsers");
    let mut lines = Vec::new();
    for target in &wish.targets {
        let (reached, took) = one(root, &binary, target, wish)?;
        let of_both = if reached.runs < wish.runs {
            "fewer runs than asked"
        } else {
            ""
        };
        let line = format!(
            "fuzz: {target:16} {:>9} runs, {:>4} s, {:>6} edges {of_both}",
            reached.runs,
            took.as_secs(),
            reached.edges
        );
        eprintln!("{line}");
        lines.push(line);
        if wish.keep {
            keep(root, &binary, target)?;
        }
    }
    lines
        .iter()
        .for_each(|line| println!("{}", line.trim_end()));
    Ok(())
}

/// Runs a target until its seconds and its runs are reached.
fn one(
    root: &Path,
    binary: &str,
    target: &str,
    wish: &Wish,
) -> Result<(Reached, Duration), Failure> {
    let found = format!("fuzz/found/{target}");
    for folder in [&found, "fuzz/artifacts"] {
        make(&root.join(folder))?;
    }
    let start = Instant::now();
    let mut reached = Reached::default();
    loop {
        let seconds = start.elapsed().as_secs();
        // The first piece is bounded by time alone; later pieces do the remaining runs, also
        // bounded by time.
        let (time, runs) = if seconds < wish.seconds {
            (wish.seconds - seconds, None)
        } else if reached.runs < wish.runs && seconds < wish.seconds * PATIENCE {
            let left = wish.seconds * PATIENCE - seconds;
            (left, Some(wish.runs - reached.runs))
        } else {
            return Ok((reached, start.elapsed()));
        };
        let runs = runs.map_or(String::new(), |n| format!(" -runs={n}"));
        let step = Step::new(&format!(
            "{binary} {found} fuzz/corpora/{target} -max_total_time={time}{runs} \
            -print_final_stats=1 \
             -artifact_prefix=fuzz/artifacts/{target}- {LIMITS}"
        ));
        let before = reached.runs;
        leg(root, &step.with("SILT_FUZZ_TARGET", target), &mut reached)?;
        if reached.runs == before {
            return Err(Failure {
                message: format!("{target}: libFuzzer printed no number of runs"),
                code: 1,
            });
        }
    }
}

/// Runs one process, and prints its output at once.
fn leg(root: &Path, step: &Step, reached: &mut Reached) -> Result<(), Failure> {
    eprintln!("$ {step}");
    let not_started = |e| Failure {
        message: format!("`{}` could not be started: {e}", step.program),
        code: 127,
    };
    let mut child = Command::new(&step.program)
        .args(&step.args)
        .envs(step.env.iter().map(|(name, value)| (*name, value)))
        .current_dir(root)
        .stderr(Stdio::piped())
        .spawn()
        .map_err(not_started)?;
    if let Some(said) = child.stderr.take() {
        for line in BufReader::new(said).split(b'\n') {
            let Ok(line) = line else { break };
            let line = String::from_utf8_lossy(&line);
            reached.line(&line);
            let _ = writeln!(std::io::stderr(), "{line}");
        }
    }
    let status = child.wait().map_err(not_started)?;
    if status.success() {
        return Ok(());
    }
    Err(Failure {
        message: format!("`{step}` failed: {status}; the input lies in fuzz/artifacts"),
        code: 1,
    })
}

fn make(folder: &Path) -> Result<(), Failure> {
    fs::create_dir_all(folder).map_err(|e| failed(folder, &e))
}

fn failed(path: &Path, error: &std::io::Error) -> Failure {
    Failure {
        message: format!("{}: {error}", path.display()),
        code: 1,
    }
}

/// The files of a folder with their lengths, smallest first.
fn files(folder: &Path) -> Result<Vec<(u64, PathBuf)>, Failure> {
    let read = || -> std::io::Result<Vec<(u64, PathBuf)>> {
        fs::read_dir(folder)?
            .map(|entry| {
                let entry = entry?;
                Ok((entry.metadata()?.len(), entry.path()))
            })
            .collect()
    };
    let mut files = read().map_err(|e| failed(folder, &e))?;
    files.sort();
    Ok(files)
}

/// Adds to the corpus the smallest inputs that together reach code which the corpus does not reach.
fn keep(root: &Path, binary: &str, target: &str) -> Result<(), Failure> {
    let (corpus, merged) = (
        root.join("fuzz/corpora").join(target),
        root.join("fuzz/found").join(format!("{target}.merged")),
    );
    let _ = fs::remove_dir_all(&merged);
    make(&merged)?;
    for (_, file) in files(&corpus)? {
        let name = file.file_name().unwrap_or_default();
        fs::copy(&file, merged.join(name)).map_err(|e| failed(&file, &e))?;
    }
    let step = Step::new(&format!(
        "{binary} -merge=1 fuzz/found/{target}.merged fuzz/found/{target} \
        -artifact_prefix=fuzz/artifacts/{target}- {LIMITS}"
    ));
    leg(
        root,
        &step.with("SILT_FUZZ_TARGET", target),
        &mut Reached::default(),
    )?;
    let mut count = files(&corpus)?.len();
    for (len, file) in files(&merged)? {
        let name = file.file_name().unwrap_or_default();
        let is_new = !corpus.join(name).exists();
        if is_new && len <= KEPT_BYTES && count < KEPT_FILES {
            count += 1;
            fs::copy(&file, corpus.join(name)).map_err(|e| failed(&file, &e))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_names_all_targets_are_run() {
        let known = ["batch".to_string(), "table".to_string()];
        let parsed = |line: &str| {
            let words: Vec<&str> = line.split_whitespace().collect();
            Wish::parse(&words, &known)
        };
        let all = parsed("").unwrap();
        assert_eq!((all.seconds, all.runs, all.keep), (30, 1_000_000, false));
        assert_eq!(all.targets, known);
        let some = parsed("table --seconds 9 --runs 7 --keep").unwrap();
        assert_eq!((some.seconds, some.runs, some.keep), (9, 7, true));
        assert_eq!(some.targets, ["table"]);
        for (wrong, named) in [
            ("log", "`log`"),
            ("--seconds", "--seconds N"),
            ("--runs many", "--runs N"),
            ("--minutes 3", "--seconds N"),
            ("--seconds 86401", "86400"),
        ] {
            let said = parsed(wrong).unwrap_err();
            assert!(said.contains(named), "{wrong}: {said}");
        }
    }

    #[test]
    fn what_libfuzzer_says_is_counted_over_legs() {
        let mut reached = Reached::default();
        for line in [
            "#2\tINITED cov: 120 ft: 121 corp: 1/1b exec/s: 0 rss: 40Mb",
            "#65536\tpulse  cov: 340 ft: 900 corp: 60/2Kb lim: 4096",
            "stat::number_of_executed_units: 70000",
            "stat::average_exec_per_sec:     2000",
            "#9\tINITED cov: 341 ft: 900 corp: 1/1b exec/s: 0 rss: 40Mb",
            "stat::number_of_executed_units: 5",
        ] {
            reached.line(line);
        }
        let both = Reached {
            runs: 70_005,
            edges: 341,
        };
        assert_eq!(reached, both);
    }
}
