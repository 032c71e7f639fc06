//! Which processes a command means: a pure function, and what it needs to know of the repository.

use std::fmt;
use std::path::Path;

use crate::args::{Command, Names};

/// Seeds that `trials` gives each trial; what runs in the gate is a tenth of it or less.
const TRIAL_SEEDS: u64 = 2000;

/// One process to start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// Set on top of our own environment.
    pub env: Vec<(&'static str, String)>,
    /// What to start.
    pub program: String,
    /// Its arguments.
    pub args: Vec<String>,
    /// Where, from the root; empty for the root itself.
    pub folder: String,
}

impl Step {
    fn new(line: &str) -> Step {
        let mut words = line.split_whitespace().map(String::from);
        Step {
            env: Vec::new(),
            program: words.next().unwrap_or_default(),
            args: words.collect(),
            folder: String::new(),
        }
    }

    fn with(mut self, name: &'static str, value: impl fmt::Display) -> Step {
        self.env.push((name, value.to_string()));
        self
    }
}

impl fmt::Display for Step {
    /// As it could be typed at the root.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.folder.is_empty() {
            write!(f, "cd {} && ", self.folder)?;
        }
        for (name, value) in &self.env {
            write!(f, "{name}={} ", quoted(value))?;
        }
        write!(f, "{}", self.program)?;
        self.args
            .iter()
            .try_for_each(|arg| write!(f, " {}", quoted(arg)))
    }
}

/// In quotes if a shell would take it apart.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,+@".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_string();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// The processes of every command but `soak` and `help`.
pub fn of(command: &Command) -> Vec<Step> {
    match command {
        Command::Ci => vec![Step::new(".ci/run")],
        Command::Fmt => vec![Step::new("cargo fmt --all")],
        Command::Trials { row } => vec![trial(row.as_deref(), None, TRIAL_SEEDS)],
        Command::Bench { name, words } => {
            let mut step = Step::new("cargo run --release --");
            step.args.extend(words.iter().cloned());
            step.folder = format!("bench-compare/{name}");
            vec![step]
        }
        // Leaks are not looked for: epochs and arenas are handed back at the process's end. The files' tests make system calls that Miri
        // has none of, so only what holds unsafe code without them runs.
        Command::Miri => vec![
            Step::new("cargo +nightly miri test -p siltstone-storage --test sim_miri")
                .with("MIRIFLAGS", "-Zmiri-disable-isolation -Zmiri-ignore-leaks"),
            Step::new("cargo +nightly miri test -p siltstone --lib memtable::")
                .with("MIRIFLAGS", "-Zmiri-disable-isolation -Zmiri-ignore-leaks"),
        ],
        Command::Loom => vec![
            Step::new("cargo test --release -p siltstone --test memtable_loom")
                .with("RUSTFLAGS", "--cfg loom"),
        ],
        Command::Soak { .. } | Command::Help => Vec::new(),
    }
}

/// A run of the trials: one row or all, from a given first seed or the usual one.
pub fn trial(row: Option<&str>, first_seed: Option<u64>, seeds: u64) -> Step {
    let mut step = Step::new("cargo test --release -p siltstone-sim").with("SILT_SEEDS", seeds);
    if let Some(seed) = first_seed {
        step = step.with("SILT_SEED", seed);
    }
    if let Some(row) = row {
        step.args.extend(["--test".to_string(), row.to_string()]);
    }
    step
}

/// What there is to try and to measure.
pub fn names(root: &Path) -> Names {
    let list = |folder: &str, keep: fn(&std::fs::DirEntry) -> Option<String>| {
        let entries = std::fs::read_dir(root.join(folder)).into_iter().flatten();
        let mut names: Vec<String> = entries.filter_map(|e| keep(&e.ok()?)).collect();
        names.sort();
        names
    };
    Names {
        rows: list("crates/sim/tests", |e| {
            e.file_name()
                .to_str()?
                .strip_suffix(".rs")
                .map(String::from)
        }),
        benches: list("bench-compare", |e| {
            e.path()
                .join("Cargo.toml")
                .is_file()
                .then(|| e.file_name().to_str().map(String::from))?
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_print_as_they_could_be_typed() {
        let typed = |command: &Command| of(command).iter().map(Step::to_string).collect::<Vec<_>>();
        assert_eq!(typed(&Command::Ci), [".ci/run"]);
        assert_eq!(
            typed(&Command::Loom),
            ["RUSTFLAGS='--cfg loom' cargo test --release -p siltstone --test memtable_loom"]
        );
        assert_eq!(
            typed(&Command::Bench {
                name: "tables".into(),
                words: vec!["a b".into(), "it's".into()]
            }),
            [r"cd bench-compare/tables && cargo run --release -- 'a b' 'it'\''s'"]
        );
        assert_eq!(
            trial(Some("model"), Some(7), 3).to_string(),
            "SILT_SEEDS=3 SILT_SEED=7 cargo test --release -p siltstone-sim --test model"
        );
    }

    #[test]
    fn every_command_has_steps() {
        for command in [
            Command::Ci,
            Command::Fmt,
            Command::Trials { row: None },
            Command::Miri,
            Command::Loom,
        ] {
            assert!(!of(&command).is_empty(), "{command:?}");
        }
    }

    #[test]
    fn names_are_those_of_the_repository() {
        let names = names(&crate::root());
        assert!(
            names.rows.iter().all(|row| !row.ends_with(".rs")),
            "{names:?}"
        );
        assert!(names.rows.is_sorted() && names.benches.is_sorted());
        let none = super::names(Path::new("/nowhere/at/all"));
        assert!(none.rows.is_empty() && none.benches.is_empty());
    }
}
