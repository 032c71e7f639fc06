//! `cargo xtask instructions`: counts the instructions of the hot paths with callgrind, and writes
//! them to a page.
//!
//! The program that is counted is `crates/engine/examples/hot_paths.rs`; it lists its operations
//! and the function while which callgrind counts. A count hardly changes from run to run, so a
//! change of a few percent is seen on any machine, and the page shows what a commit changed.

use std::fmt::Write;
use std::path::Path;
use std::process::Command;

use crate::Failure;
use crate::steps::{Step, target};

/// Where the program lies after it was built, below the folder of what is built.
const PROGRAM: &str = "release/examples/hot_paths";

/// The page, below the root.
const PAGE: &str = "docs/instructions.md";

/// The count of one operation.
#[derive(Clone, Debug, PartialEq)]
struct Count {
    name: String,
    instructions: u64,
    operations: u64,
}

fn failed(message: String) -> Failure {
    Failure { message, code: 1 }
}

/// The number behind `label` in the output of a program.
fn number(output: &str, label: &str) -> Option<u64> {
    let line = output.lines().find(|line| line.contains(label))?;
    let text = line.split(label).nth(1)?;
    let digits: String = text.chars().filter(char::is_ascii_digit).collect();
    digits.parse().ok()
}

/// The page's text.
fn page(counts: &[Count], versions: &[String]) -> String {
    let mut text = String::from(
        "# Instructions of the hot paths\n\n\
         This page is written by `cargo xtask instructions`, and is not edited by hand. It has the \
         user-mode\ninstructions of each operation, counted by callgrind in\n\
         `crates/engine/examples/hot_paths.rs`: keys of 16 bytes, values of 128 if nothing else \
         is said,\neverything in memory, one thread. A count does not show what waits for memory \
         or for the system;\n[performance.md](performance.md) does.\n\n\
         | operation | instructions |\n| --- | --- |\n",
    );
    for count in counts {
        let each = count.instructions / count.operations.max(1);
        let _ = writeln!(text, "| {} | {each} |", count.name);
    }
    text.push_str("\nMade with:\n\n");
    for version in versions {
        let _ = writeln!(text, "- {version}");
    }
    text
}

/// The output of a program, standard error after standard output.
fn output(program: &str, args: &[&str], root: &Path) -> Result<String, Failure> {
    let output = Command::new(program)
        .args(args)
        .current_dir(root)
        .output()
        .map_err(|e| failed(format!("`{program}` could not be started: {e}")))?;
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text).into_owned();
    match output.status.success() {
        true => Ok(text),
        false => Err(failed(format!(
            "`{program} {}` failed: {}\n{text}",
            args.join(" "),
            output.status
        ))),
    }
}

/// Counts one operation.
fn count(root: &Path, program: &str, name: &str, function: &str) -> Result<Count, Failure> {
    eprintln!("counting: {name}");
    let args = [
        "--tool=callgrind",
        "--callgrind-out-file=/dev/null",
        "--collect-atstart=no",
        &format!("--toggle-collect={function}*"),
        program,
        name,
    ];
    let text = output("valgrind", &args, root)?;
    let read = |label| {
        number(&text, label).ok_or_else(|| {
            failed(format!(
                "the output of valgrind has no `{label}`, or no number behind it:\n{text}"
            ))
        })
    };
    Ok(Count {
        name: name.to_string(),
        instructions: read("Collected :")?,
        operations: read("operations\t")?,
    })
}

/// Builds the program, counts each operation and writes the page.
pub(crate) fn instructions(root: &Path) -> Result<(), Failure> {
    let build = Step::new("cargo build --release --locked -p siltstone --example hot_paths");
    crate::run(&build, root)?;
    let version = |program: &str| output(program, &["--version"], root);
    let valgrind = version("valgrind").map_err(|failure| Failure {
        message: format!("{}; install valgrind", failure.message),
        code: 127,
    })?;
    let rustc = version("rustc")?;
    let program = target(root, "target").join(PROGRAM);
    let program = program.to_string_lossy();
    let mut counts = Vec::new();
    for line in output(&program, &[], root)?.lines() {
        let Some((name, function)) = line.split_once('\t') else {
            return Err(failed(format!("`{program}` printed `{line}`")));
        };
        let count = count(root, &program, name, function)?;
        if count.instructions == 0 {
            return Err(failed(format!(
                "callgrind counted nothing for `{name}`: is `{function}` a function of its own?"
            )));
        }
        counts.push(count);
    }
    let versions = [rustc, valgrind].map(|text| text.trim().to_string());
    let text = page(&counts, &versions);
    std::fs::write(root.join(PAGE), &text)
        .map_err(|e| failed(format!("{PAGE} could not be written: {e}")))?;
    print!("{text}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_from_the_output() {
        let text = "operations\t50000\n==1== Events    : Ir\n==1== Collected : 1,234,567\n";
        assert_eq!(number(text, "Collected :"), Some(1_234_567));
        assert_eq!(number(text, "operations\t"), Some(50_000));
        assert_eq!(number(text, "Events    :"), None);
        assert_eq!(number(text, "none"), None);
    }

    #[test]
    fn the_page_has_a_line_for_each_operation() {
        let counts = [("put", 1000, 10), ("get", 70, 7)].map(|(name, instructions, operations)| {
            let name = name.to_string();
            Count {
                name,
                instructions,
                operations,
            }
        });
        let text = page(&counts, &["a version".to_string()]);
        assert!(text.contains("| put | 100 |\n| get | 10 |\n"), "{text}");
        assert!(text.ends_with("- a version\n"));
        assert!(text.lines().all(|line| line.len() <= 100), "{text}");
    }
}
