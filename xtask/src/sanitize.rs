//! `cargo xtask sanitize`: runs the jobs of `crates/gpu` with the host's kernels under the checks
//! of the C compiler: first addresses and undefined behaviour, then threads.
//!
//! With the checks of threads, the blocks of a kernel run on several threads of the system, so that
//! two threads of a kernel that use one place are found. The Rust code around the kernels is
//! compiled without these checks, so reports about it mean nothing: only those count whose two
//! accesses both lie in kernels.

use std::path::Path;
use std::process::Command;

use crate::Failure;

/// The libraries of each kind of checks, which the test is started with, and the part of the names
/// of the tests that are run. Threads make each kernel slow to start, so they get fewer jobs.
const CHECKS: [(&str, &[&str], &str); 2] = [
    ("address", &["libasan.so", "libubsan.so"], "jobs"),
    ("thread", &["libtsan.so"], "large_jobs"),
];

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

/// Runs both kinds of checks.
pub(crate) fn sanitize(root: &Path) -> Result<(), Failure> {
    for (checks, libraries, tests) in CHECKS {
        let target = root.join("target/sanitize");
        let mut build = Command::new("cargo");
        build
            .args(["test", "-p", "siltstone-gpu", "--test", "jobs", "--no-run"])
            .env("SILT_GPU_SANITIZE", checks)
            .env("CARGO_TARGET_DIR", &target)
            .current_dir(root);
        let (is_built, log) = output(&mut build)?;
        let program = log.lines().find_map(|line| {
            let at = line.find("Executable")?;
            line[at..].split_once('(')?.1.strip_suffix(')')
        });
        let Some(program) = program.filter(|_| is_built) else {
            return Err(failed(format!("the test was not built:\n{log}")));
        };
        let mut preload = Vec::new();
        for library in libraries {
            let mut find = Command::new("cc");
            find.arg(format!("-print-file-name={library}"));
            preload.push(output(&mut find)?.1.trim().to_string());
        }
        // These checks need addresses that do not change from run to run.
        let mut test = Command::new("setarch");
        test.arg("-R")
            .arg(root.join(program))
            .arg(tests)
            .env("LD_PRELOAD", preload.join(" "))
            .env("ASAN_OPTIONS", "detect_leaks=0")
            .env("TSAN_OPTIONS", "report_bugs=1:exitcode=0")
            .current_dir(root.join("crates/gpu"));
        let (has_passed, log) = output(&mut test)?;
        let found = races(&log);
        if let Some(race) = found.first() {
            return Err(failed(format!(
                "{} races in kernels, such as:\n{race}",
                found.len()
            )));
        }
        if !has_passed || !log.contains("test result: ok") {
            return Err(failed(format!(
                "the jobs failed with checks of {checks}:\n{log}"
            )));
        }
        println!("checks of {checks}: nothing found in kernels");
    }
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
