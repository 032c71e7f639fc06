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
    /// A benchmark, by default of all engines; the words are passed on unchanged.
    Bench {
        /// One of `bench-compare`'s members.
        name: Option<String>,
        /// The commit to compare with.
        against: Option<String>,
        /// Its arguments.
        words: Vec<String>,
    },
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
    /// The lines that the test suite runs.
    Coverage,
    /// libFuzzer with ASan on some parsers or on all.
    Fuzz(crate::fuzz::Wish),
    /// Print the help.
    Help,
}

/// The names that arguments are checked against: those in the repository.
#[derive(Debug, Default)]
pub struct Names {
    /// The tests in `crates/sim/tests`.
    pub rows: Vec<String>,
    /// The members of `bench-compare` besides itself.
    pub benches: Vec<String>,
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
  bench [NAME] [ARGS...]  siltstone and other engines on the same work (needs their libraries)
  bench --against COMMIT [ARGS...]
                          also builds that commit of siltstone, and runs it as the engine `before`
  layers [--upward]       what the engine's folders import from each other, circles, lengths of
                          functions, sites of planted faults; --upward: each import that runs upward
  miri                    unsafe code under Miri (needs: rustup +nightly component add miri)
  loom                    the files of atomics under loom: memtable nodes, views and numbers
  asan [PACKAGE]          the tests under AddressSanitizer (needs: a nightly toolchain)
  tsan [PACKAGE]          the tests under ThreadSanitizer
                          (needs: rustup +nightly component add rust-src)
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
NAME is a member of bench-compare: {benches}; none: the store as a whole
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
        "fuzz" => crate::fuzz::Wish::parse(rest, &names.fuzzed).map(Command::Fuzz),
        "bench" => {
            let (name, words) = match rest {
                [name, words @ ..] if !name.starts_with('-') => (
                    Some(known(name, &names.benches, "benchmark", "bench-compare")?),
                    words,
                ),
                words => (None, words),
            };
            let (against, words) = match (words, &name) {
                (["--against", ..], Some(name)) => {
                    return Err(format!(
                        "`bench {name}` cannot be compared with a commit; only the store as a \
                         whole can: bench --against COMMIT"
                    ));
                }
                (["--against"], None) => return Err("`--against` needs a commit".to_string()),
                (["--against", commit, words @ ..], None) => (Some(commit.to_string()), words),
                (words, _) => (None, words),
            };
            let words = words.iter().map(|w| w.to_string()).collect();
            Ok(Command::Bench {
                name,
                against,
                words,
            })
        }
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
        assert_eq!(
            parsed("bench tables --quick x"),
            Ok(Command::Bench {
                name: Some("tables".into()),
                against: None,
                words: vec!["--quick".into(), "x".into()]
            })
        );
    }

    #[test]
    fn a_benchmark_without_a_name_is_the_store() {
        assert_eq!(
            parsed("bench --rounds 3"),
            Ok(Command::Bench {
                name: None,
                against: None,
                words: vec!["--rounds".into(), "3".into()]
            })
        );
        assert_eq!(
            parsed("bench --against 1a2b --rounds 3"),
            Ok(Command::Bench {
                name: None,
                against: Some("1a2b".into()),
                words: vec!["--rounds".into(), "3".into()]
            })
        );
        assert_eq!(
            parsed("bench"),
            Ok(Command::Bench {
                name: None,
                against: None,
                words: vec![]
            })
        );
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
            ("bench tables --against 1a2b", "`bench tables`"),
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
            "ci", "fmt", "trials", "soak", "planted", "bench", "miri", "loom", "asan", "tsan",
            "coverage", "fuzz", "crashes", "tables",
        ] {
            assert!(help.contains(word), "{word}");
        }
    }
}
