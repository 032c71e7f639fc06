//! Soaking: runs a row with new seeds, one after the other on every core, until its time is up or a
//! seed fails.
//!
//! The trials are built once. Then their binary is started repeatedly, for one seed or, if seeds
//! are short, for about a second's worth of seeds.
//!
//! Invariants: no seed is used twice, not even by another soak (seeds begin at the time in
//! microseconds). The whole output of a failing seed is printed, which has the command that repeats
//! it.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::Failure;

/// The command that builds the trials and prints the paths of their binaries.
const BUILD: [&str; 6] = [
    "test",
    "--release",
    "-p",
    "siltstone-sim",
    "--no-run",
    "--message-format=json-render-diagnostics",
];

/// The desired duration of a process: several short seeds are run by one process, because otherwise
/// starting processes would take most of the time.
const BATCH: Duration = Duration::from_secs(1);

/// The maximum number of seeds of one process.
const BATCH_SEEDS_MAX: u64 = 4096;

/// Runs each of `rows` for about `minutes`; seeds that are running then are finished.
///
/// # Errors
/// The trials cannot be built, or a seed fails; then no further row is started.
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
            if let Err(error) = some(root, binary, row, seed, count) {
                if let Ok(mut failed) = failed.lock() {
                    failed.get_or_insert(error);
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

/// The processor time in seconds of all processes that ended and were waited for, by this process
/// or by those, if the system reports it.
fn core_seconds() -> Option<f64> {
    /// The unit of `/proc`'s times, a constant of Linux's interface to programs.
    const TICKS_A_SECOND: f64 = 100.0;
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    // The name of the program, in parentheses, may contain any characters; the fields after it are
    // numbers. User and system time of children are the fields 16 and 17, which are 14 and 15 after
    // the name.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks = |field: usize| fields.get(field)?.parse::<f64>().ok();
    Some((ticks(13)? + ticks(14)?) / TICKS_A_SECOND)
}

/// Runs this number of seeds from `seed` on; an error has all of their output.
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

/// The names of a test binary's tests; none if it prints none.
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

/// Runs cargo with these arguments, and returns the binaries that it built.
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

/// The paths in cargo's messages, one JSON value a line. A path with a quote or a backslash is
/// skipped, not misread.
fn executables(messages: &str) -> Vec<String> {
    let field = "\"executable\":\"";
    let paths = messages
        .lines()
        .filter_map(|line| line.split_once(field)?.1.split_once('"'));
    paths
        .map(|(path, _)| path.to_string())
        // Examples are not tests: an example that is asked for its tests mistakes `--list` for a
        // folder, and writes it.
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
    fn a_seed_that_fails_is_reported_with_its_output() {
        let error = some(Path::new("/"), Path::new("/nowhere"), "row", 7, 1).unwrap_err();
        assert!(error.contains("/nowhere"), "{error}");
    }
}
