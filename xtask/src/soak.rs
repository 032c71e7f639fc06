//! Soaking: a row with seeds that were never tried, one after the other on every core, until its
//! time is up or a seed fails.
//!
//! What it is: the trials are built once; then their binary is started again and again, for one
//! seed or, where seeds are short, for a second's worth.
//!
//! Invariants: no seed is used twice, not by another soak either (seeds begin at the time in
//! microseconds); what a failing seed printed is shown whole, and it holds the command that repeats
//! it.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::Failure;

/// What builds the trials and tells where their binaries are.
const BUILD: [&str; 6] = [
    "test",
    "--release",
    "-p",
    "siltstone-sim",
    "--no-run",
    "--message-format=json-render-diagnostics",
];

/// How long a process should take: seeds that are done sooner are taken several at a time, or
/// starting it would be most of the work.
const BATCH: Duration = Duration::from_secs(1);

/// Most seeds of one process.
const BATCH_SEEDS_MAX: u64 = 4096;

/// Runs each of `rows` for about `minutes`; seeds that are running then are finished.
///
/// # Errors
/// If the trials cannot be built, or a seed fails: no further row is begun.
pub fn soak(root: &Path, rows: &[String], minutes: u64) -> Result<(), Failure> {
    let built = built(root, rows)?;
    rows.iter()
        .zip(&built)
        .try_for_each(|(row, binary)| soak_row(root, binary, row, minutes))
}

fn soak_row(root: &Path, binary: &Path, row: &str, minutes: u64) -> Result<(), Failure> {
    eprintln!(
        "$ SILT_SEED=... {} --exact {row} --nocapture",
        binary.display()
    );
    let microseconds = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |d| d.as_micros() as u64);
    let next = AtomicU64::new(microseconds);
    let done = AtomicU64::new(0);
    let failed: Mutex<Option<String>> = Mutex::new(None);
    let (start, end) = (Instant::now(), Duration::from_secs(minutes * 60));
    let busy = core_seconds();
    let report_seconds = AtomicU64::new(60);
    let worker = || {
        let mut count = 1;
        while start.elapsed() < end && failed.lock().is_ok_and(|f| f.is_none()) {
            let seed = next.fetch_add(count, Ordering::Relaxed);
            let begun = Instant::now();
            if let Err(told) = some(root, binary, row, seed, count) {
                if let Ok(mut failed) = failed.lock() {
                    failed.get_or_insert(told);
                }
                return;
            }
            done.fetch_add(count, Ordering::Relaxed);
            count = match begun.elapsed() {
                took if took < BATCH / 2 => (count * 2).min(BATCH_SEEDS_MAX),
                took if took > BATCH * 2 => (count / 2).max(1),
                _ => count,
            };
            let seconds = start.elapsed().as_secs();
            let due = report_seconds.load(Ordering::Relaxed);
            let turn = (due, seconds / 60 * 60 + 60);
            if seconds >= due
                && report_seconds
                    .compare_exchange(turn.0, turn.1, Ordering::Relaxed, Ordering::Relaxed)
                    .is_ok()
            {
                let seeds = done.load(Ordering::Relaxed);
                eprintln!("{row}: {seeds} seeds in {} minutes", seconds / 60);
            }
        }
    };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        (0..cores).for_each(|_| {
            scope.spawn(worker);
        });
    });
    let took = start.elapsed().as_secs_f64() / 60.0;
    let core_minutes = match (busy, core_seconds()) {
        (Some(before), Some(after)) => format!("{:.1} core-minutes", (after - before) / 60.0),
        _ => "core-minutes unknown on this system".to_string(),
    };
    match failed.into_inner().unwrap_or_default() {
        Some(message) => Err(Failure { message, code: 1 }),
        None => {
            let seeds = done.load(Ordering::Relaxed);
            println!(
                "{row}: {seeds} seeds from {microseconds} on, {took:.1} minutes, {core_minutes}, \
                no failure"
            );
            Ok(())
        }
    }
}

/// Processor time of all processes that ended and were waited for, by us or by those, in seconds;
/// where the system tells it.
fn core_seconds() -> Option<f64> {
    /// The unit of `/proc`'s times, a constant of Linux's interface to programs.
    const TICKS_A_SECOND: f64 = 100.0;
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    // The name of the program, in parentheses, may hold anything; the fields behind it are numbers.
    // User and system time of children are the 16th and 17th of all, the 14th and 15th behind the
    // name.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks = |field: usize| fields.get(field)?.parse::<f64>().ok();
    Some((ticks(13)? + ticks(14)?) / TICKS_A_SECOND)
}

/// Runs so many seeds from `seed` on; an error holds all that they printed.
fn some(root: &Path, binary: &Path, row: &str, seed: u64, count: u64) -> Result<(), String> {
    let output = Command::new(binary)
        .args(["--exact", row, "--nocapture"])
        .env("SILT_SEED", seed.to_string())
        .env("SILT_COUNT", count.to_string())
        .current_dir(root.join("crates/sim"))
        .stdin(Stdio::null())
        .output()
        .map_err(|e| format!("`{}` could not be started: {e}", binary.display()))?;
    if output.status.success() {
        return Ok(());
    }
    let (out, err) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    Err(format!(
        "{row} failed with one of {count} seeds from {seed} on ({}):\n{out}{err}",
        output.status
    ))
}

/// Builds the trials and finds the binary that has each of the tests `rows`.
fn built(root: &Path, rows: &[String]) -> Result<Vec<PathBuf>, Failure> {
    let tests: Vec<(PathBuf, Vec<String>)> = binaries(root, &BUILD)?
        .into_iter()
        .map(|binary| {
            let tests = tests_of(&binary);
            (binary, tests)
        })
        .collect();
    let found = rows.iter().map(|row| {
        let binary = tests.iter().find(|(_, tests)| tests.contains(row));
        binary.map(|(path, _)| path.clone()).ok_or_else(|| Failure {
            message: format!("no test binary of siltstone-sim has the test `{row}`"),
            code: 1,
        })
    });
    found.collect()
}

/// Names of a test binary's tests; none if it tells none.
pub(crate) fn tests_of(binary: &Path) -> Vec<String> {
    let listed = Command::new(binary)
        .args(["--list", "--format", "terse"])
        .stderr(Stdio::null())
        .output();
    let listed = listed.map(|l| String::from_utf8_lossy(&l.stdout).into_owned());
    let listed = listed.unwrap_or_default();
    let names = listed
        .lines()
        .filter_map(|line| line.strip_suffix(": test"));
    names.map(String::from).collect()
}

/// Runs cargo with these words and gives the binaries that it built.
pub(crate) fn binaries(root: &Path, words: &[&str]) -> Result<Vec<PathBuf>, Failure> {
    let failure = |message: String| Failure { message, code: 1 };
    eprintln!("$ cargo {}", words.join(" "));
    let output = Command::new("cargo")
        .args(words)
        .current_dir(root)
        .stderr(Stdio::inherit())
        .output()
        .map_err(|e| failure(format!("cargo could not be started: {e}")))?;
    if !output.status.success() {
        return Err(failure(format!(
            "the trials could not be built: {}",
            output.status
        )));
    }
    let found = executables(&String::from_utf8_lossy(&output.stdout));
    Ok(found.into_iter().map(PathBuf::from).collect())
}

/// The paths in cargo's messages, one JSON value a line. A path with a quote or a backslash is left
/// out, not misread.
fn executables(messages: &str) -> Vec<String> {
    let field = "\"executable\":\"";
    let paths = messages
        .lines()
        .filter_map(|line| line.split_once(field)?.1.split_once('"'));
    paths
        .map(|(path, _)| path.to_string())
        // Examples are no tests: one that is asked for its tests takes `--list` for a folder, and
        // writes it.
        .filter(|path| !path.contains('\\') && !path.contains("/examples/"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn executables_are_found_in_cargos_messages() {
        let messages = concat!(
            "{\"reason\":\"compiler-artifact\",\"executable\":null,\"fresh\":true}\n",
            "{\"reason\":\"compiler-artifact\",\
             \"executable\":\"/t/deps/trials-12ab\",\"fresh\":true}\n",
            "{\"reason\":\"build-finished\",\"success\":true}\n",
        );
        assert_eq!(executables(messages), ["/t/deps/trials-12ab"]);
    }

    #[test]
    fn a_seed_that_fails_is_told_with_its_output() {
        let told = some(Path::new("/"), Path::new("/nowhere"), "row", 7, 1).unwrap_err();
        assert!(told.contains("/nowhere"), "{told}");
    }
}
