//! Soaking: one row with seeds that were never tried, one after the other on every core, until its time is up or a seed fails.
//!
//! What it is: the trials are built once; then their binary is started for each seed, so a seed costs no more than itself.
//!
//! Invariants: no seed is used twice, not by another soak either (seeds begin at the time in microseconds); what a failing seed printed is
//! shown whole, and it holds the command that repeats it.

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

/// Runs `row` for about `minutes`; seeds that are running then are finished.
///
/// # Errors
/// If the trials cannot be built, or a seed fails.
pub fn soak(root: &Path, row: &str, minutes: u64) -> Result<(), Failure> {
    let binary = built(root, row)?;
    eprintln!(
        "$ SILT_SEED=... {} --exact {row} --nocapture",
        binary.display()
    );
    let microseconds = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |d| d.as_micros() as u64);
    let next = AtomicU64::new(microseconds);
    let failed: Mutex<Option<String>> = Mutex::new(None);
    let (start, end) = (Instant::now(), Duration::from_secs(minutes * 60));
    let report_seconds = AtomicU64::new(60);
    let worker = || {
        while start.elapsed() < end && failed.lock().is_ok_and(|f| f.is_none()) {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if let Err(told) = one(root, &binary, row, seed) {
                if let Ok(mut failed) = failed.lock() {
                    failed.get_or_insert(told);
                }
                return;
            }
            let seconds = start.elapsed().as_secs();
            let due = report_seconds.load(Ordering::Relaxed);
            let turn = (due, due + 60);
            if seconds >= due
                && report_seconds
                    .compare_exchange(turn.0, turn.1, Ordering::Relaxed, Ordering::Relaxed)
                    .is_ok()
            {
                let seeds = next.load(Ordering::Relaxed) - microseconds;
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
    let seeds = next.load(Ordering::Relaxed) - microseconds;
    match failed.into_inner().unwrap_or_default() {
        Some(message) => Err(Failure { message, code: 1 }),
        None => {
            eprintln!("{row}: {seeds} seeds from {microseconds} on, no failure");
            Ok(())
        }
    }
}

/// Runs one seed; an error holds all that it printed.
fn one(root: &Path, binary: &Path, row: &str, seed: u64) -> Result<(), String> {
    let output = Command::new(binary)
        .args(["--exact", row, "--nocapture"])
        .env("SILT_SEED", seed.to_string())
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
        "{row} failed with seed {seed} ({}):\n{out}{err}",
        output.status
    ))
}

/// Builds the trials and finds the binary that has the test `row`.
fn built(root: &Path, row: &str) -> Result<PathBuf, Failure> {
    let binaries = binaries(root, &BUILD)?;
    let found = binaries
        .into_iter()
        .find(|binary| tests_of(binary).iter().any(|test| test == row));
    found.ok_or_else(|| Failure {
        message: format!("no test binary of siltstone-sim has the test `{row}`"),
        code: 1,
    })
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

/// The paths in cargo's messages, one JSON value a line. A path with a quote or a backslash is left out, not misread.
fn executables(messages: &str) -> Vec<String> {
    let field = "\"executable\":\"";
    let paths = messages
        .lines()
        .filter_map(|line| line.split_once(field)?.1.split_once('"'));
    paths
        .map(|(path, _)| path.to_string())
        .filter(|path| !path.contains('\\'))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn executables_are_found_in_cargos_messages() {
        let messages = concat!(
            "{\"reason\":\"compiler-artifact\",\"executable\":null,\"fresh\":true}\n",
            "{\"reason\":\"compiler-artifact\",\"executable\":\"/t/deps/trials-12ab\",\"fresh\":true}\n",
            "{\"reason\":\"build-finished\",\"success\":true}\n",
        );
        assert_eq!(executables(messages), ["/t/deps/trials-12ab"]);
    }

    #[test]
    fn a_seed_that_fails_is_told_with_its_output() {
        let told = one(Path::new("/"), Path::new("/nowhere"), "row", 7).unwrap_err();
        assert!(told.contains("/nowhere"), "{told}");
    }
}
