//! `cargo xtask sanitize`: runs the jobs of `crates/gpu` with the host's kernels under the checks
//! of the C compiler: first addresses and undefined behaviour, then threads.
//!
//! With the checks of threads, the threads of a kernel run on several threads of the system, so
//! that two threads of a kernel that use one place are found. Kernels are ordered among each other
//! by a lock of their workers. The Rust code around the kernels is compiled without these checks
//! and has locks that they do not see. So what it does is not looked at: its accesses leave no
//! trace, but for copies and fills, which go through functions of the C library, and these are
//! excluded by an option. Without that option nearly all time went into wrong reports about copies.
//! A report counts only if both of its accesses lie in kernels.

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use crate::Failure;

/// The libraries of each kind of checks, which the tests are started with.
const CHECKS: [(&str, &[&str]); 2] = [
    ("address", &["libasan.so", "libubsan.so"]),
    ("thread", &["libtsan.so"]),
];

/// The tests that are run, and the part of the names of their functions.
const TESTS: [(&str, &str); 2] = [("jobs", "jobs"), ("layout", "")];

/// The options of the checks of threads. See the module for the last one.
const THREAD_OPTIONS: &str = "report_bugs=1:exitcode=0:ignore_interceptors_accesses=1";

/// What the name of a kernel's function ends with, in the host's build.
const KERNEL: &str = "_emulated";

fn failed(message: String) -> Failure {
    Failure { message, code: 1 }
}

/// Starts a program and returns what it printed.
fn output(command: &mut Command) -> Result<(bool, String), Failure> {
    let text = format!("{command:?}");
    println!("$ {text}");
    let output = command
        .output()
        .map_err(|e| failed(format!("`{text}` could not be started: {e}")))?;
    let all = [output.stdout, output.stderr].concat();
    let all = String::from_utf8_lossy(&all).into_owned();
    Ok((output.status.success(), all))
}

/// The reports of two accesses that both lie in kernels.
fn races(log: &str) -> Vec<&str> {
    let is_access = |part: &&str| {
        let part = part.to_lowercase();
        ["read of size", "write of size"]
            .iter()
            .any(|word| part.contains(word))
    };
    let is_race = |report: &&str| {
        let accesses: Vec<&str> = report.split("\n\n").filter(is_access).take(2).collect();
        accesses.len() == 2 && accesses.iter().all(|part| part.contains(KERNEL))
    };
    let reports = log.split("==================");
    reports
        .filter(|report| report.contains("WARNING"))
        .filter(is_race)
        .collect()
}

/// Builds the tests with a kind of checks, and returns their programs in the order of [`TESTS`].
fn build(root: &Path, checks: &str) -> Result<Vec<String>, Failure> {
    let mut build = Command::new("cargo");
    build.args(["test", "-p", "siltstone-gpu", "--no-run"]);
    for (test, _) in TESTS {
        build.args(["--test", test]);
    }
    build
        .env("SILT_GPU_SANITIZE", checks)
        // Reports name lines of the kernels, whatever else the profile says.
        .env("CARGO_PROFILE_DEV_STRIP", "none")
        .env("CARGO_TARGET_DIR", root.join("target/sanitize"))
        .current_dir(root);
    let (is_built, log) = output(&mut build)?;
    let program = |test: &str| {
        let name = format!("tests/{test}.rs");
        let line = log.lines().find(|line| line.contains(&name))?;
        Some(line.split_once('(')?.1.strip_suffix(')')?.to_string())
    };
    let programs: Option<Vec<String>> = TESTS.iter().map(|(test, _)| program(test)).collect();
    programs
        .filter(|_| is_built)
        .ok_or_else(|| failed(format!("the tests were not built:\n{log}")))
}

/// Runs both kinds of checks.
pub(crate) fn sanitize(root: &Path) -> Result<(), Failure> {
    for (checks, libraries) in CHECKS {
        let programs = build(root, checks)?;
        let mut preload = Vec::new();
        for library in libraries {
            let mut find = Command::new("cc");
            find.arg(format!("-print-file-name={library}"));
            preload.push(output(&mut find)?.1.trim().to_string());
        }
        let preload = preload.join(" ");
        for (program, (_, functions)) in programs.iter().zip(TESTS) {
            try_test(root, (checks, &preload), &root.join(program), functions)?;
        }
        println!("checks of {checks}: nothing found in kernels");
    }
    Ok(())
}

/// Runs the functions of a test whose names have a part, with the library of a kind of checks.
fn try_test(
    root: &Path,
    (checks, preload): (&str, &str),
    program: &Path,
    functions: &str,
) -> Result<(), Failure> {
    // These checks need addresses that do not change from run to run.
    let mut test = Command::new("setarch");
    test.arg("-R")
        .arg(program)
        .arg(functions)
        .env("LD_PRELOAD", preload)
        .env("ASAN_OPTIONS", "detect_leaks=0")
        .env("TSAN_OPTIONS", THREAD_OPTIONS)
        .current_dir(root.join("crates/gpu"));
    let start = Instant::now();
    let (has_passed, log) = output(&mut test)?;
    let found = races(&log);
    if let Some(race) = found.first() {
        return Err(failed(format!(
            "{} races in kernels, such as:\n{race}",
            found.len()
        )));
    }
    let results = log.lines().find(|line| line.starts_with("test result: ok"));
    let Some(results) = results.filter(|_| has_passed) else {
        return Err(failed(format!(
            "the jobs failed with checks of {checks}:\n{log}"
        )));
    };
    println!("{results} ({:.0} s)", start.elapsed().as_secs_f64());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_reports_within_kernels_count() {
        let report = |first: &str, second: &str| {
            format!(
                "==================\nWARNING: ThreadSanitizer: data race\n  \
                 Write of size 4 by T1:\n    #0 {first}\n\n  \
                 Previous read of size 4 by T2:\n    #0 {second}\n\n"
            )
        };
        let log = report("judge_emulated", "judge_emulated")
            + &report("alloc", "judge_emulated")
            + &report("memmove", "malloc");
        assert_eq!(races(&log).len(), 1);
        assert_eq!(races("test result: ok"), Vec::<&str>::new());
    }
}
