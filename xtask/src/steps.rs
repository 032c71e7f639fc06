//! The processes of a command: a pure function, and the facts about the repository that it needs.

use std::fmt;
use std::path::{Path, PathBuf};

use crate::args::{Bench, Command, Names};

/// The size of `trials`, in percent of the gate's number of seeds.
const TRIAL_PERCENT: u64 = 1000;

/// The size under a sanitizer, which is many times slower.
const SANITIZED_PERCENT: u64 = 10;

/// A sanitizer needs an explicit target, because otherwise build scripts and macros would be built
/// with it too.
const TARGET: &str = if cfg!(target_arch = "aarch64") {
    "aarch64-unknown-linux-gnu"
} else {
    "x86_64-unknown-linux-gnu"
};

/// Tests that are useless under a sanitizer.
const NOT_SANITIZED: [&str; 3] = [
    "a_sigbus_outside_our_maps_still_kills",
    "anonymous_memory_is_bounded",
    "small_keyspaces_take_little_memory",
];

/// Suppressions of false races, with their reasons. The path is absolute, because a test's working
/// directory is its package's.
const SUPPRESSIONS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tsan.supp");

/// One process to start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// Variables that are added to the environment.
    pub env: Vec<(&'static str, String)>,
    /// The program.
    pub program: String,
    /// Its arguments.
    pub args: Vec<String>,
}

impl Step {
    /// The process of a command line; its words contain no spaces.
    pub fn new(line: &str) -> Step {
        let mut words = line.split_whitespace().map(String::from);
        Step {
            env: Vec::new(),
            program: words.next().unwrap_or_default(),
            args: words.collect(),
        }
    }

    /// The same step with a variable set.
    pub fn with(mut self, name: &'static str, value: impl fmt::Display) -> Step {
        self.env.push((name, value.to_string()));
        self
    }
}

impl fmt::Display for Step {
    /// The step as it could be typed at the root.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, value) in &self.env {
            write!(f, "{name}={} ", quoted(value))?;
        }
        write!(f, "{}", self.program)?;
        self.args
            .iter()
            .try_for_each(|arg| write!(f, " {}", quoted(arg)))
    }
}

/// The word in quotes if a shell would split it.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,+@".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_string();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// Where a commit's sources are laid out to be compared with, below the root; one folder a commit.
const AGAINST: &str = "target/bench-against";

/// The processes that lay out and build an earlier commit's `bench-compare`, given the commit's
/// hash, and the program that they make. Sources that are there already are not written again.
pub fn against(root: &Path, hash: &str) -> (Vec<Step>, String) {
    let source = format!("{AGAINST}/{hash}");
    let mut steps = Vec::new();
    if !root.join(&source).join("Cargo.toml").is_file() {
        steps.push(Step::new(&format!("mkdir -p {source}")));
        steps.push(Step::new(&format!(
            "git archive --format=tar -o {source}.tar {hash}"
        )));
        steps.push(Step::new(&format!("tar -xf {source}.tar -C {source}")));
    }
    // Only its siltstone is run, so it is built without the other engines.
    steps.push(
        Step::new(&format!(
            "cargo build --release --manifest-path {source}/bench-compare/Cargo.toml \
             --target-dir {AGAINST}/target -p bench-compare --no-default-features"
        ))
        .with("SILTSTONE_COMMIT", hash),
    );
    let built = root.join(AGAINST).join("target/release/bench-compare");
    (steps, built.to_string_lossy().into_owned())
}

/// The folder into which cargo builds a workspace whose own folder for that is `usual`.
pub fn target(root: &Path, usual: &str) -> PathBuf {
    let set = std::env::var_os("CARGO_TARGET_DIR");
    root.join(set.map_or(usual.into(), PathBuf::from))
}

/// Runs cargo so that RocksDB is found, which is fetched if it is not there.
pub const WITH_ROCKSDB: &str =
    "cargo run --quiet --manifest-path bench-compare/Cargo.toml -p bench-setup --";
const COMPARE: &str = "--release --manifest-path bench-compare/Cargo.toml -p bench-compare";

/// The processes of a benchmark. The program for Pebble is built if Go is there.
pub fn bench(bench: &Bench, has_go: bool) -> Vec<Step> {
    let compare = |words: &[String]| {
        let mut step = Step::new(&format!("{WITH_ROCKSDB} run {COMPARE} --"));
        step.args.extend(words.iter().cloned());
        step
    };
    let pebble = || {
        let build = "go run -C bench-compare/pebble ./build -o pebble-bench";
        has_go.then(|| Step::new(build))
    };
    match bench {
        Bench::Build => {
            let build = Step::new(&format!("{WITH_ROCKSDB} build {COMPARE}"));
            std::iter::once(build).chain(pebble()).collect()
        }
        Bench::Run { plan, words, .. } => {
            let mut all = vec!["run".to_string(), plan.clone()];
            all.extend(words.iter().cloned());
            pebble().into_iter().chain([compare(&all)]).collect()
        }
        Bench::Other { words } => vec![compare(words)],
        Bench::Paper {
            name,
            is_full,
            words,
        } => {
            let (size, within) = match is_full {
                true => ("", " --within 3h"),
                false => (" --quick", " --within 10min"),
            };
            // Another time, and another folder, may be given.
            let has = |option: &str| words.iter().any(|word| word.starts_with(option));
            let within = if has("--within") { "" } else { within };
            // Charts of all runs are too large for the repository.
            let html = match has("--html") {
                true => String::new(),
                false => format!(" --html target/{name}"),
            };
            let mut step = Step::new(&format!(
                "cargo run --release -p siltstone-cli -- bench paper {name}{size}{within} --record \
                 docs/papers/{name}.jsonl.zst --page docs/papers/{name}.md{html}"
            ));
            step.args.extend(words.iter().cloned());
            vec![step]
        }
        Bench::Member { name, words } => {
            // This one has RocksDB among its engines.
            let cargo = match name.as_str() {
                "waits-bench" => WITH_ROCKSDB,
                _ => "cargo",
            };
            let run = "run --release --manifest-path bench-compare/Cargo.toml";
            let mut step = Step::new(&format!("{cargo} {run}"));
            step.args.extend(["-p", name, "--"].map(String::from));
            step.args.extend(words.iter().cloned());
            vec![step]
        }
    }
}

/// The processes of the commands that have no module of their own, except `bench`.
pub fn of(command: &Command) -> Vec<Step> {
    match command {
        Command::Ci => vec![Step::new(".ci/run")],
        Command::Fmt => vec![Step::new("cargo fmt --all")],
        Command::Layers { upward } => {
            let mut step = Step::new("cargo run --quiet -p siltstone-layers -- .");
            if *upward {
                step.args.push("--upward".to_string());
            }
            vec![step]
        }
        Command::Trials { row } => {
            let mut step = Step::new("cargo test --release -p siltstone-sim -- --nocapture")
                .with("SILT_SEEDS", TRIAL_PERCENT);
            if let Some(row) = row {
                step.args.extend(["--exact".to_string(), row.clone()]);
            }
            vec![step]
        }
        // Leaks are not detected, because epochs and arenas are freed at the process's end. The
        // files' tests make system calls that Miri does not know, so only the modules with unsafe
        // code that do not need them run.
        Command::Miri => [
            "-p siltstone-storage --test sim_miri",
            "-p siltstone-storage --lib map::tests -- --skip write_map",
            "-p siltstone-storage --lib huge_slice::",
            "-p siltstone-table --lib coding::",
            "-p siltstone --lib memtable::",
        ]
        .map(|tests| {
            Step::new(&format!("cargo +nightly miri test {tests}"))
                .with("MIRIFLAGS", "-Zmiri-disable-isolation -Zmiri-ignore-leaks")
        })
        .to_vec(),
        Command::Loom => vec![
            Step::new(
                "cargo test --release -p siltstone \
                 --test memtable_loom --test pinning_loom --test gaps_loom",
            )
            .with("RUSTFLAGS", "--cfg loom"),
        ],
        Command::Asan { package } => vec![
            sanitized("address", "", package)
                // Leaks are not detected, because arenas, epochs and the SIGBUS registry live until
                // the process ends.
                .with("ASAN_OPTIONS", "detect_leaks=0:allow_user_segv_handler=1")
                // The C code of dependencies is built with it too: GCC 12 moves a constant array of
                // a function to static memory, and marks it as out of scope for all threads when
                // one thread leaves the function (zstd's `getAllMatchesFns`).
                .with("CFLAGS", "-fno-sanitize-address-use-after-scope"),
        ],
        // Without an instrumented standard library it reports what is synchronised inside std as
        // races.
        Command::Tsan { package } => vec![sanitized("thread", " -Zbuild-std", package).with(
            "TSAN_OPTIONS",
            format_args!("halt_on_error=1:second_deadlock_stack=1:suppressions={SUPPRESSIONS}"),
        )],
        Command::Ptx => crate::ptx::steps(),
        Command::Coverage => vec![Step::new(
            "cargo +nightly llvm-cov --workspace --html --ignore-filename-regex \
            /(tests|examples|xtask)/ --no-fail-fast",
        )],
        Command::Bench(_)
        | Command::Soak { .. }
        | Command::Planted(_)
        | Command::Fuzz(_)
        | Command::Cross
        | Command::GpuCheck(_)
        | Command::Instructions
        | Command::Sanitize
        | Command::Help => Vec::new(),
    }
}

/// The tests, of `package` alone if one is named, built with a sanitizer into a folder of their
/// own, because their objects cannot be mixed with others. The simulator's tasks are threads then,
/// because a sanitizer cannot follow a change of stacks within a thread. The tests of xtask start
/// other builds and have nothing to check. A signal that must end the process is caught by the
/// sanitizer's own handler, and most of the process's memory is the sanitizer's.
fn sanitized(sanitizer: &str, std: &str, package: &Option<String>) -> Step {
    let tests = match package {
        Some(package) => format!("-p {package}"),
        None => "--workspace --exclude xtask".to_string(),
    };
    let mut step = Step::new(&format!(
        "cargo +nightly test{std} --target {TARGET} --target-dir target/{sanitizer}-sanitizer \
        {tests} --lib --bins --tests --no-fail-fast --"
    ));
    for test in NOT_SANITIZED {
        step.args.extend(["--skip", test].map(String::from));
    }
    // System calls that bypass the C library are not seen: memory that was unmapped and mapped
    // again would be mistaken for one area that threads share.
    let flags = match sanitizer {
        "thread" => "-Zsanitizer=thread --cfg=rustix_use_libc --cfg=tsan".to_string(),
        _ => format!("-Zsanitizer={sanitizer} --cfg=rustix_use_libc"),
    };
    step.with("RUSTFLAGS", flags)
        .with("SILT_SIM_BACKEND", "threads")
        .with("SILT_SEEDS", SANITIZED_PERCENT)
}

/// The names of rows, benchmarks and targets in the repository.
pub fn names(root: &Path) -> Names {
    let entries = |folder: &str| {
        let entries = std::fs::read_dir(root.join(folder)).into_iter().flatten();
        entries.filter_map(|entry| Some(entry.ok()?.path()))
    };
    let tests =
        entries("crates/sim/tests").filter(|path| path.extension().is_some_and(|e| e == "rs"));
    let mut rows: Vec<String> = tests
        .filter_map(|path| std::fs::read_to_string(path).ok())
        .flat_map(|source| test_names(&source))
        .collect();
    rows.sort();
    let members = entries("bench-compare").filter(|path| path.join("Cargo.toml").is_file());
    let mut benches: Vec<String> = members
        .filter_map(|path| Some(path.file_name()?.to_str()?.to_string()))
        .collect();
    benches.retain(|name| name.ends_with("-bench"));
    benches.sort();
    let plans = entries("bench-compare/plans");
    let plans = plans.filter(|path| path.extension().is_some_and(|e| e == "toml"));
    let mut plans: Vec<String> = plans
        .filter_map(|path| Some(path.file_stem()?.to_str()?.to_string()))
        .collect();
    plans.sort();
    let corpora = entries("fuzz/corpora").filter(|path| path.is_dir());
    let mut fuzzed: Vec<String> = corpora
        .filter_map(|path| Some(path.file_name()?.to_str()?.to_string()))
        .collect();
    fuzzed.sort();
    Names {
        rows,
        benches,
        plans,
        fuzzed,
    }
}

/// Names of the functions right below a `#[test]`.
fn test_names(source: &str) -> Vec<String> {
    let mut names = Vec::new();
    let mut is_test = false;
    for line in source.lines().map(str::trim) {
        if line == "#[test]" {
            is_test = true;
        } else if let Some(rest) = line.strip_prefix("fn ").filter(|_| is_test) {
            names.extend(rest.split('(').next().map(String::from));
            is_test = false;
        }
    }
    names
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
            ["RUSTFLAGS='--cfg loom' cargo test --release -p siltstone \
                 --test memtable_loom --test pinning_loom --test gaps_loom"]
        );
        assert_eq!(
            typed(&Command::Trials {
                row: Some("power_loss".into())
            }),
            [
                "SILT_SEEDS=1000 cargo test --release -p siltstone-sim -- --nocapture --exact \
                power_loss"
            ]
        );
    }

    #[test]
    fn a_papers_comparison_writes_its_records_and_its_page() {
        let line = |is_full, words: [&str; 2]| {
            let paper = Bench::Paper {
                name: "prockstore".into(),
                is_full,
                words: words.map(String::from).into(),
            };
            bench(&paper, false)[0].to_string()
        };
        let rounds = ["--rounds", "2"];
        assert_eq!(
            line(false, rounds),
            "cargo run --release -p siltstone-cli -- bench paper prockstore --quick --within 10min \
             --record docs/papers/prockstore.jsonl.zst --page docs/papers/prockstore.md --html \
             target/prockstore --rounds 2"
        );
        let full = line(true, rounds);
        assert!(
            full.contains(" --within 3h ") && !full.contains("--quick"),
            "{full}"
        );
        let shorter = line(true, ["--within", "2h"]);
        assert_eq!(shorter.matches("--within").count(), 1, "{shorter}");
        let elsewhere = line(true, ["--html", "/tmp/charts"]);
        assert_eq!(elsewhere.matches("--html").count(), 1, "{elsewhere}");
    }

    #[test]
    fn a_benchmark_is_built_and_run() {
        let typed = |what: &Bench, has_go| {
            let steps = bench(what, has_go);
            steps.iter().map(Step::to_string).collect::<Vec<_>>()
        };
        let run = Bench::Run {
            plan: "standard".into(),
            against: None,
            words: vec!["a b".into(), "it's".into()],
        };
        let compare = "cargo run --quiet --manifest-path bench-compare/Cargo.toml -p bench-setup \
                       -- run --release --manifest-path bench-compare/Cargo.toml -p bench-compare \
                       -- run standard 'a b' 'it'\\''s'";
        assert_eq!(typed(&run, false), [compare]);
        let with_go = typed(&run, true);
        assert!(
            with_go[0].starts_with("go run -C bench-compare/pebble"),
            "{with_go:?}"
        );
        assert_eq!(with_go[1], compare);
        assert_eq!(typed(&Bench::Build, true).len(), 2);
        let member = Bench::Member {
            name: "table-bench".into(),
            words: vec!["x".into()],
        };
        assert_eq!(
            typed(&member, true),
            ["cargo run --release --manifest-path bench-compare/Cargo.toml -p table-bench -- x"]
        );
        let waits = Bench::Member {
            name: "waits-bench".into(),
            words: vec!["fill".into()],
        };
        let typed = typed(&waits, true);
        assert!(
            typed[0].contains("-p bench-setup -- run --release"),
            "{typed:?}"
        );
    }

    #[test]
    fn an_earlier_commit_is_laid_out_once_and_built() {
        let root = std::env::temp_dir().join(format!("xtask-against-{}", std::process::id()));
        let (steps, program) = against(&root, "1a2b");
        assert_eq!(steps.len(), 4, "{steps:?}");
        assert!(steps[1].to_string().ends_with("1a2b.tar 1a2b"), "{steps:?}");
        assert!(program.ends_with("/target/release/bench-compare"));
        let source = root.join("target/bench-against/1a2b");
        std::fs::create_dir_all(&source).unwrap();
        std::fs::write(source.join("Cargo.toml"), "").unwrap();
        assert_eq!(against(&root, "1a2b").0.len(), 1);
        std::fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn every_command_has_steps() {
        for command in [
            Command::Ci,
            Command::Fmt,
            Command::Trials { row: None },
            Command::Layers { upward: true },
            Command::Miri,
            Command::Loom,
            Command::Asan { package: None },
            Command::Tsan { package: None },
            Command::Coverage,
        ] {
            assert!(!of(&command).is_empty(), "{command:?}");
        }
    }

    #[test]
    fn rows_are_the_tests() {
        let source =
            "//! x\n#[test]\nfn one() {}\nfn helper() {}\n#[test]\n#[ignore]\n  fn two() {}\n";
        assert_eq!(test_names(source), ["one", "two"]);
        let here = names(&crate::root());
        assert!(here.benches.contains(&"table-bench".to_string()));
        assert!(!here.benches.contains(&"peers".to_string()));
        assert!(here.plans.contains(&"standard".to_string()), "{here:?}");
        let none = names(Path::new("/nowhere/at/all"));
        assert!(none.rows.is_empty() && none.benches.is_empty());
    }
}
