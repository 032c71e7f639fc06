//! `cargo xtask`: the project's commands. They are written in Rust, so that they need no shell
//! dialect and no additional tools.
//!
//! [`args`] parses the command line into an [`args::Command`], [`steps`] turns it into processes to
//! start (by a pure function that can be tested), and this file starts them and prints each exactly
//! as it could be typed. [`soak`] repeats one trial until its time is up, [`planted`] runs the
//! trials with faults that they must find, [`cross`] checks the code for the other architecture,
//! [`instructions`] counts those of the hot paths, [`fuzz`] runs libFuzzer on the parsers, [`ptx`]
//! compiles kernels for GPUs, [`sanitize`] runs them on the host under the checks of a compiler,
//! and [`gpu_check`] measures the executor of a GPU.
//!
//! Invariants: every step is printed before it runs; the first step that fails ends the run with
//! its exit code; there are no dependencies, so building it takes a second.

mod args;
mod cross;
mod fuzz;
mod gpu_check;
mod instructions;
mod planted;
mod ptx;
mod sanitize;
mod soak;
mod steps;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use args::{Bench, Command};
use steps::Step;

/// The repository's root: this crate is its folder `xtask/`.
fn root() -> PathBuf {
    let here = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    here.parent().map_or(here.clone(), PathBuf::from)
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let names = steps::names(&root());
    let command = match args::parse(&words, &names) {
        Ok(Command::Help) => {
            print!("{}", args::help(&names));
            return ExitCode::SUCCESS;
        }
        Ok(command) => command,
        Err(wrong) => {
            eprintln!("error: {wrong}\n");
            eprint!("{}", args::help(&names));
            return ExitCode::from(2);
        }
    };
    let result = match &command {
        Command::Soak { rows, minutes } => soak::soak(&root(), rows, *minutes),
        Command::Planted(wish) => planted::planted(&root(), wish),
        Command::Fuzz(wish) => fuzz::fuzz(&root(), wish),
        Command::Bench(what) => bench(&root(), what),
        Command::Cross => cross::cross(&root()),
        Command::GpuCheck(wish) => gpu_check::gpu_check(&root(), wish),
        Command::Instructions => instructions::instructions(&root()),
        Command::Sanitize => sanitize::sanitize(&root()),
        _ => steps::of(&command)
            .iter()
            .try_for_each(|step| run(step, &root())),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("error: {}", failure.message);
            ExitCode::from(failure.code)
        }
    }
}

/// Runs a benchmark. An earlier commit of siltstone is built before, and runs as one more engine.
fn bench(root: &Path, what: &Bench) -> Result<(), Failure> {
    let mut what = what;
    let with_before;
    if let Bench::Run {
        plan,
        against: Some(commit),
        words,
    } = what
    {
        let (steps, program) = steps::against(root, &hash_of(root, commit)?);
        steps.iter().try_for_each(|step| run(step, root))?;
        let mut all = vec!["--against".to_string(), program];
        all.extend(words.iter().cloned());
        with_before = Bench::Run {
            plan: plan.clone(),
            against: None,
            words: all,
        };
        what = &with_before;
    }
    let go = std::process::Command::new("go").arg("version").output();
    let has_go = go.is_ok_and(|output| output.status.success());
    steps::bench(what, has_go)
        .iter()
        .try_for_each(|step| run(step, root))
}

/// The short hash of a commit.
fn hash_of(root: &Path, commit: &str) -> Result<String, Failure> {
    let output = std::process::Command::new("git")
        .args(["rev-parse", "--verify", "--quiet", "--short=12"])
        .arg(format!("{commit}^{{commit}}"))
        .current_dir(root)
        .output();
    let output = output.ok().filter(|output| output.status.success());
    let hash = output.and_then(|output| String::from_utf8(output.stdout).ok());
    hash.map(|hash| hash.trim().to_string())
        .ok_or_else(|| Failure {
            message: format!("git knows no commit `{commit}` here"),
            code: 2,
        })
}

/// The reason why a run ended early.
struct Failure {
    message: String,
    code: u8,
}

/// Prints the step, starts it at the root and waits.
fn run(step: &Step, root: &Path) -> Result<(), Failure> {
    eprintln!("$ {step}");
    let status = std::process::Command::new(&step.program)
        .args(&step.args)
        .envs(step.env.iter().map(|(name, value)| (*name, value)))
        .current_dir(root)
        .status()
        .map_err(|e| Failure {
            message: format!("`{}` could not be started: {e}", step.program),
            code: 127,
        })?;
    if status.success() {
        return Ok(());
    }
    // Without an exit code the process was ended by a signal; the exit code is then 1.
    let code = status
        .code()
        .and_then(|c| u8::try_from(c).ok())
        .unwrap_or(1);
    Err(Failure {
        message: format!("`{step}` failed: {status}"),
        code,
    })
}
