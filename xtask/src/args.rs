//! The command line: parses the arguments into a value, or returns a sentence that says what is
//! wrong with them.

/// A command.
#[derive(Debug, PartialEq, Eq)]
pub enum Command {
    /// The gate.
    Ci,
    /// Format everything.
    Fmt,
    /// Trials of one row, or of all rows, in the trials' size.
    Trials { row: Option<String> },
    /// Each of these rows with new seeds until its time is up.
    Soak { rows: Vec<String>, minutes: u64 },
    /// The rows with planted faults, to test that each is caught.
    Planted(crate::planted::Wish),
    /// A benchmark.
    Bench(Bench),
    /// What the engine's folders import from each other, circles, lengths of functions.
    Layers {
        /// Whether to list each import that runs upward.
        upward: bool,
    },
    /// The unsafe islands and the simulator's thread back end under Miri.
    Miri,
    /// The files that consist of atomics under loom: the memtable's nodes, views and numbers.
    Loom,
    /// The test suite, or one package's, under AddressSanitizer.
    Asan { package: Option<String> },
    /// The test suite, or one package's, under ThreadSanitizer.
    Tsan { package: Option<String> },
    /// Whether everything compiles for the other architecture.
    Cross,
    /// The instructions of the hot paths, and the page that has them.
    Instructions,
    /// Run the GPU's kernels on the host under the checks of the C compiler.
    Sanitize,
    /// The kernels, as PTX.
    Ptx,
    /// The program that measures the executor of a GPU, or a bundle of it.
    GpuCheck(crate::gpu_check::Wish),
    /// The lines that the test suite runs.
    Coverage,
    /// libFuzzer with ASan on some parsers or on all.
    Fuzz(crate::fuzz::Wish),
    /// Print the help.
    Help,
}

/// A benchmark; the words are passed on unchanged.
#[derive(Debug, PartialEq, Eq)]
pub enum Bench {
    /// Builds the comparison and the programs of all engines.
    Build,
    /// Carries out a plan of the comparison.
    Run {
        /// The name of the plan, or the path of its file.
        plan: String,
        /// The commit to compare with.
        against: Option<String>,
        /// Further arguments of `bench-compare run`.
        words: Vec<String>,
    },
    /// Another command of `bench-compare`, which comes first.
    Other {
        /// The command and its arguments.
        words: Vec<String>,
    },
    /// The comparison of a paper: all its experiments, their records and their page in
    /// `docs/papers`.
    Paper {
        /// The name of the paper's system.
        name: String,
        /// Whether stores are large, and the time is three hours instead of ten minutes.
        is_full: bool,
        /// Further arguments of `silt bench paper`.
        words: Vec<String>,
    },
    /// A small benchmark of its own.
    Member {
        /// One of `bench-compare`'s members.
        name: String,
        /// Its arguments.
        words: Vec<String>,
    },
}

/// The papers whose comparison has a page.
const PAPERS: [&str; 2] = ["gpu", "prockstore"];

/// The plan that is carried out if none is named.
const DAILY_PLAN: &str = "quick";

/// The names that arguments are checked against: those in the repository.
#[derive(Debug, Default)]
pub struct Names {
    /// The tests in `crates/sim/tests`.
    pub rows: Vec<String>,
    /// The small benchmarks in `bench-compare`.
    pub benches: Vec<String>,
    /// The plans in `bench-compare/plans`.
    pub plans: Vec<String>,
    /// The folders of `fuzz/corpora`.
    pub fuzzed: Vec<String>,
}

/// The output of `cargo xtask help`.
pub fn help(names: &Names) -> String {
    let list = |names: &[String]| {
        if names.is_empty() {
            "none found".to_string()
        } else {
            names.join(", ")
        }
    };
    let (rows, benches) = (list(&names.rows), list(&names.benches));
    let plans = list(&names.plans);
    let fuzzed = list(&names.fuzzed);
    format!(
        "\
cargo xtask COMMAND

  ci                      the gate, .ci/run: it must pass before a change is merged
  fmt                     format the workspace
  trials [ROW]            the trials in release, with more seeds than in the gate
  soak ROW... --minutes N each row with new seeds for N minutes, on every core; prints the seed that
                          failed, or seeds and core-minutes
  planted [NUMBER...] [--tenth | --gate] [--jobs N] [--write]
                          builds all planted faults (crates/storage/src/planted.rs, and the patches
                          in xtask/planted) in a copy of the sources, target/planted-tree; plays the
                          stories of single rules, then runs the rows with each fault until one
                          catches it; --gate: at most the gate's seeds, --tenth: a tenth of them;
                          --write: writes the table to docs/reliability.md
  planted --stories [NUMBER...]
                          the stories alone
  planted --check         whether all patches apply and all sites are short; builds nothing
  planted --edit NUMBER   lays a fault's patch out in target/planted-edit, to be edited there
  planted --renew NUMBER  writes the patch from what was edited
  bench build             builds the comparison with other engines, fetches RocksDB, and builds the
                          program for Pebble if Go is there (needs: see bench-compare/README.md)
  bench [PLAN] [ARGS...]  carries out a plan, or goes on with one that was interrupted; without PLAN
                          the quick one
  bench [PLAN] --against COMMIT [ARGS...]
                          also builds that commit of siltstone, and runs it as the engine `before`
  bench page RESULTS... [--write FILE]
                          the tables of results
  bench prockstore [--full] [ARGS...]
                          the experiments of that paper, in ten minutes or, in full, in three hours
                          (needs root for namespaces, else a limiter stands in for the link); writes
                          docs/papers/prockstore.jsonl.zst and docs/papers/prockstore.md, and pages
                          with charts in target/prockstore (index.html has all verdicts)
  bench gpu [--full] [ARGS...]
                          the same for the paper on GPU compaction (without a GPU only the runs on
                          the host are carried out)
  bench NAME [ARGS...]    a small benchmark of its own
  layers [--upward]       what the engine's folders import from each other, circles, lengths of
                          functions, sites of planted faults; --upward: each import that runs upward
  miri                    unsafe code under Miri (needs: rustup +nightly component add miri)
  loom                    the files of atomics under loom: memtable nodes, views and numbers
  asan [PACKAGE]          the tests under AddressSanitizer (needs: a nightly toolchain)
  tsan [PACKAGE]          the tests under ThreadSanitizer
                          (needs: rustup +nightly component add rust-src)
  cross                   whether everything compiles for aarch64 (on aarch64: for x86-64); says
                          what is missing (needs: the target's standard library, a C compiler)
  instructions            counts the instructions of puts, gets, seeks, flushes and merges, and
                          writes them to docs/instructions.md (needs: apt-get install valgrind)
  sanitize                runs jobs on the emulated GPU with kernels that are compiled with the
                          checks of the C compiler for addresses and threads
  ptx                     compiles crates/gpu/kernels to siltstone.ptx, and writes the registers of
                          each kernel to registers.md (needs: python3 with venv, PyPI)
  gpu-check [OUT] [ARGS...]
                          measures the executor of a GPU here, and compares its tables with those of
                          the host's executor; --emulated: without a GPU, and no figure is a speed
  gpu-check --bundle DIR  makes a folder that does this on a machine without Rust: DIR/run OUT
  coverage                the lines that tests run, as HTML in target/llvm-cov/html and a summary
                          (needs: cargo install cargo-llvm-cov,
                          rustup +nightly component add llvm-tools)
  fuzz [TARGET...] [--seconds N] [--runs N] [--keep]
                          libFuzzer with ASan on some or all parsers, each for 30 seconds and a
                          million runs by default, but at most ten times the seconds; --keep: adds
                          findings to the corpora (needs: rustup toolchain install nightly, and a
                          C++ compiler); the gate only replays the corpora
  help                    this text

ROW is a test of crates/sim/tests: {rows}
PLAN is a file of bench-compare/plans: {plans}; or the path of another one
NAME is a member of bench-compare: {benches}
TARGET is a folder of fuzz/corpora: {fuzzed}
"
    )
}

/// Parses the command line.
///
/// # Errors
/// A sentence for the user.
pub fn parse(words: &[String], names: &Names) -> Result<Command, String> {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let Some((&command, rest)) = words.split_first() else {
        return Ok(Command::Help);
    };
    let alone = |value: Command| match rest {
        [] => Ok(value),
        [word, ..] => Err(format!("`{command}` takes no arguments, found `{word}`")),
    };
    match command {
        "ci" => alone(Command::Ci),
        "fmt" => alone(Command::Fmt),
        "layers" => match rest {
            [] => Ok(Command::Layers { upward: false }),
            ["--upward"] => Ok(Command::Layers { upward: true }),
            [word, ..] => Err(format!("`layers` takes `--upward` alone, found `{word}`")),
        },
        "miri" => alone(Command::Miri),
        "loom" => alone(Command::Loom),
        "coverage" => alone(Command::Coverage),
        "cross" => alone(Command::Cross),
        "instructions" => alone(Command::Instructions),
        "sanitize" => alone(Command::Sanitize),
        "ptx" => alone(Command::Ptx),
        "asan" | "tsan" => {
            let package = match rest {
                [] => None,
                [package] => Some(package.to_string()),
                [_, more, ..] => {
                    return Err(format!(
                        "`{command}` takes one package at most, found also `{more}`"
                    ));
                }
            };
            Ok(match command {
                "asan" => Command::Asan { package },
                _ => Command::Tsan { package },
            })
        }
        "help" | "-h" | "--help" => alone(Command::Help),
        "gpu-check" => crate::gpu_check::Wish::parse(rest).map(Command::GpuCheck),
        "fuzz" => crate::fuzz::Wish::parse(rest, &names.fuzzed).map(Command::Fuzz),
        "bench" => bench(rest, names).map(Command::Bench),
        "planted" => crate::planted::Wish::parse(rest).map(Command::Planted),
        "trials" => match rest {
            [] => Ok(Command::Trials { row: None }),
            [row] => Ok(Command::Trials {
                row: Some(known(row, &names.rows, "row", "crates/sim/tests")?),
            }),
            [_, more, ..] => Err(format!(
                "`trials` takes one row at most, found also `{more}`"
            )),
        },
        "soak" => {
            let (rows, minutes) = match rest {
                [rows @ .., "--minutes", minutes] if !rows.is_empty() => (rows, minutes),
                _ => return Err("`soak` is used as: soak ROW... --minutes N".to_string()),
            };
            let rows = rows
                .iter()
                .map(|row| known(row, &names.rows, "row", "crates/sim/tests"))
                .collect::<Result<_, _>>()?;
            match minutes.parse() {
                Ok(minutes) if (1..=60 * 24 * 7).contains(&minutes) => {
                    Ok(Command::Soak { rows, minutes })
                }
                _ => Err(format!(
                    "--minutes is a whole number from 1 to 10080 (a week), found `{minutes}`"
                )),
            }
        }
        other => Err(format!("there is no command `{other}`")),
    }
}

fn bench(words: &[&str], names: &Names) -> Result<Bench, String> {
    let owned = |words: &[&str]| words.iter().map(|word| word.to_string()).collect();
    let has = |names: &[String], name: &str| names.iter().any(|known| known == name);
    let (plan, words) = match words {
        ["build"] => return Ok(Bench::Build),
        ["build", word, ..] => {
            return Err(format!("`bench build` takes no arguments, found `{word}`"));
        }
        ["page" | "pack" | "list", ..] => {
            return Ok(Bench::Other {
                words: owned(words),
            });
        }
        [name, words @ ..] if PAPERS.contains(name) => {
            let others: Vec<&str> = words.iter().copied().filter(|w| *w != "--full").collect();
            return Ok(Bench::Paper {
                name: name.to_string(),
                is_full: others.len() < words.len(),
                words: owned(&others),
            });
        }
        [name, words @ ..] if has(&names.benches, name) => {
            if words.contains(&"--against") {
                return Err(format!(
                    "`bench {name}` cannot be compared with a commit; only a plan can: bench PLAN \
                     --against COMMIT"
                ));
            }
            return Ok(Bench::Member {
                name: name.to_string(),
                words: owned(words),
            });
        }
        [plan, words @ ..] if has(&names.plans, plan) || plan.ends_with(".toml") => (*plan, words),
        [name, ..] if !name.starts_with('-') => {
            return Err(format!(
                "there is no plan and no benchmark `{name}` in bench-compare"
            ));
        }
        words => (DAILY_PLAN, words),
    };
    let at = words.iter().position(|word| *word == "--against");
    let (against, words) = match at.map(|at| (at, words.get(at + 1))) {
        None => (None, owned(words)),
        Some((_, None)) => return Err("`--against` needs a commit".to_string()),
        Some((at, Some(commit))) => {
            let others = [&words[..at], &words[at + 2..]].concat();
            (Some(commit.to_string()), owned(&others))
        }
    };
    match (&against, words.first()) {
        // `bench --against COMMIT PLAN` is as natural.
        (Some(_), Some(plan)) if has(&names.plans, plan) || plan.ends_with(".toml") => {
            Ok(Bench::Run {
                plan: plan.clone(),
                against,
                words: words[1..].to_vec(),
            })
        }
        _ => Ok(Bench::Run {
            plan: plan.to_string(),
            against,
            words,
        }),
    }
}

fn known(name: &str, names: &[String], what: &str, place: &str) -> Result<String, String> {
    if names.iter().any(|known| known == name) {
        return Ok(name.to_string());
    }
    Err(format!("there is no {what} `{name}` in {place}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names() -> Names {
        let owned = |names: &[&str]| names.iter().map(|n| n.to_string()).collect();
        Names {
            rows: owned(&["crashes", "model"]),
            benches: owned(&["tables"]),
            plans: owned(&["quick", "standard"]),
            fuzzed: owned(&["batch", "table"]),
        }
    }

    fn parsed(line: &str) -> Result<Command, String> {
        let words: Vec<String> = line.split_whitespace().map(String::from).collect();
        parse(&words, &names())
    }

    #[test]
    fn commands_are_read() {
        assert_eq!(parsed(""), Ok(Command::Help));
        assert_eq!(parsed("ci"), Ok(Command::Ci));
        assert_eq!(parsed("trials"), Ok(Command::Trials { row: None }));
        assert_eq!(
            parsed("trials model"),
            Ok(Command::Trials {
                row: Some("model".into())
            })
        );
        assert_eq!(
            parsed("soak crashes model --minutes 5"),
            Ok(Command::Soak {
                rows: vec!["crashes".into(), "model".into()],
                minutes: 5
            })
        );
        let package = Some("siltstone".to_string());
        assert_eq!(parsed("asan"), Ok(Command::Asan { package: None }));
        assert_eq!(parsed("tsan siltstone"), Ok(Command::Tsan { package }));
        assert_eq!(parsed("coverage"), Ok(Command::Coverage));
        assert_eq!(parsed("cross"), Ok(Command::Cross));
        assert_eq!(parsed("instructions"), Ok(Command::Instructions));
        assert_eq!(parsed("sanitize"), Ok(Command::Sanitize));
        assert_eq!(parsed("ptx"), Ok(Command::Ptx));
    }

    #[test]
    fn a_benchmark_is_a_plan_or_a_small_one() {
        let words = |words: &[&str]| words.iter().map(|w| w.to_string()).collect::<Vec<_>>();
        let run = |plan: &str, against: Option<&str>, rest: &[&str]| {
            Ok(Command::Bench(Bench::Run {
                plan: plan.into(),
                against: against.map(String::from),
                words: words(rest),
            }))
        };
        for (line, expected) in [
            ("bench", run("quick", None, &[])),
            ("bench standard", run("standard", None, &[])),
            (
                "bench my/own.toml --retry",
                run("my/own.toml", None, &["--retry"]),
            ),
            ("bench --rows a", run("quick", None, &["--rows", "a"])),
            ("bench --against 1a2b", run("quick", Some("1a2b"), &[])),
            (
                "bench --against 1a2b standard",
                run("standard", Some("1a2b"), &[]),
            ),
            (
                "bench standard --rows a --against 1a2b --retry",
                run("standard", Some("1a2b"), &["--rows", "a", "--retry"]),
            ),
            ("bench build", Ok(Command::Bench(Bench::Build))),
            (
                "bench page x --write y",
                Ok(Command::Bench(Bench::Other {
                    words: words(&["page", "x", "--write", "y"]),
                })),
            ),
            (
                "bench prockstore --rounds 2",
                Ok(Command::Bench(Bench::Paper {
                    name: "prockstore".into(),
                    is_full: false,
                    words: words(&["--rounds", "2"]),
                })),
            ),
            (
                "bench gpu --full",
                Ok(Command::Bench(Bench::Paper {
                    name: "gpu".into(),
                    is_full: true,
                    words: Vec::new(),
                })),
            ),
            (
                "bench prockstore --folder /data --full",
                Ok(Command::Bench(Bench::Paper {
                    name: "prockstore".into(),
                    is_full: true,
                    words: words(&["--folder", "/data"]),
                })),
            ),
            (
                "bench tables --quick x",
                Ok(Command::Bench(Bench::Member {
                    name: "tables".into(),
                    words: words(&["--quick", "x"]),
                })),
            ),
        ] {
            assert_eq!(parsed(line), expected, "{line}");
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (line, named) in [
            ("fly", "`fly`"),
            ("ci now", "`now`"),
            ("trials crash", "`crash`"),
            ("trials model crashes", "`crashes`"),
            ("soak model", "--minutes N"),
            ("soak --minutes 5", "soak ROW"),
            ("soak models --minutes 5", "`models`"),
            ("soak model --minutes 0", "`0`"),
            ("soak model --minutes 10081", "`10081`"),
            ("soak model --minutes soon", "`soon`"),
            ("bench table", "`table`"),
            ("bench --against", "`--against`"),
            ("bench standard --against", "`--against`"),
            ("bench tables --against 1a2b", "`bench tables`"),
            ("bench build now", "`now`"),
            ("tsan a b", "`b`"),
            ("coverage all", "`all`"),
            ("fuzz log", "`log`"),
            ("fuzz table --seconds 0", "--seconds N"),
        ] {
            let wrong = parsed(line).unwrap_err();
            assert!(wrong.contains(named), "{line}: {wrong}");
        }
    }

    #[test]
    fn the_help_names_every_command_and_every_row() {
        let help = help(&names());
        for word in [
            "ci",
            "fmt",
            "trials",
            "soak",
            "planted",
            "bench",
            "miri",
            "loom",
            "asan",
            "tsan",
            "ptx",
            "sanitize",
            "gpu-check",
            "coverage",
            "fuzz",
            "crashes",
            "tables",
            "standard",
            "--against",
        ] {
            assert!(help.contains(word), "{word}");
        }
    }
}
