//! The end of a command: its exit code, and the one line that says why it failed.

use std::fmt;
use std::io;
use std::path::Path;
use std::process::ExitCode;

use crate::signals::Signal;

/// The result of a command that could do its work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The command succeeded.
    Fine,
    /// `get` found no such key.
    NotFound,
    /// `check` or `dump` found damage, or `repair` could not recover everything.
    Damaged,
    /// `load` left bad records out, or bytes after compressed data.
    LeftOut,
    /// `scan --json` printed keys or values that should be JSON and are not.
    NoJson,
}

impl Outcome {
    /// The exit code.
    pub fn code(self) -> ExitCode {
        match self {
            Outcome::Fine => ExitCode::SUCCESS,
            Outcome::NotFound | Outcome::Damaged | Outcome::LeftOut | Outcome::NoJson => {
                ExitCode::from(1)
            }
        }
    }
}

/// Why a command could not do its work.
#[derive(Debug)]
pub enum Failure {
    /// The store returned an error.
    Store(siltstone::Error),
    /// Arguments that make no sense together. Clap refuses other wrong arguments.
    Usage(String),
    /// Anything else.
    Other(String),
    /// A signal stopped the command. The text says how far it came.
    Stopped(Signal, String),
    /// The reader of our output has closed the pipe.
    OutputClosed,
}

impl Failure {
    /// An input or output error on `what`.
    pub fn io(what: impl fmt::Display, error: &io::Error) -> Failure {
        Failure::Other(format!("{what}: {error}"))
    }

    /// An error of reading the input `name`, or the signal that stopped the reading.
    pub fn input(name: &str, error: &io::Error) -> Failure {
        match Signal::of(error) {
            Some(signal) => Failure::Stopped(signal, signal.to_string()),
            None => Failure::io(name, error),
        }
    }

    /// An input or output error on a file.
    pub fn file(path: &Path, error: &io::Error) -> Failure {
        Failure::io(path.display(), error)
    }

    /// An error of standard output.
    pub fn output(error: &io::Error) -> Failure {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Failure::OutputClosed,
            _ => Failure::io("standard output", error),
        }
    }

    /// Prints the reason to standard error, and returns the exit code.
    pub fn report(&self) -> ExitCode {
        let code = match self {
            Failure::OutputClosed => return ExitCode::SUCCESS,
            Failure::Usage(_) => 2,
            Failure::Store(_) | Failure::Other(_) => 3,
            Failure::Stopped(signal, _) => signal.exit_code(),
        };
        eprintln!("silt: {self}");
        ExitCode::from(code)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Store(error) => write!(f, "{}", of_a_command(error)),
            Failure::Usage(text) | Failure::Other(text) | Failure::Stopped(_, text) => {
                f.write_str(text)
            }
            Failure::OutputClosed => f.write_str("the output was closed"),
        }
    }
}

/// The error with advice for a command line. The store of a running program resumes by itself once
/// there is space, but a command has ended and must be given again. A program passes executors as
/// values, and a user of a command gives the address of a device.
pub fn of_a_command(error: &siltstone::Error) -> siltstone::Error {
    let advice = error.advice_text().unwrap_or_default();
    if advice.contains("`Components::executors`") {
        return error.clone().advice(
            "choose another policy with `silt options STORE --set schedule=POLICY`, or `--unset \
             schedule`; `silt load` can get another executor, by --device ADDR or --gpu, and `silt \
             compact` by --gpu",
        );
    }
    match advice.split_once("; the store goes on by itself") {
        Some((first, _)) => {
            let advice = format!("{first} and give the command again");
            error.clone().advice(advice)
        }
        None => error.clone(),
    }
}

impl From<siltstone::Error> for Failure {
    fn from(error: siltstone::Error) -> Failure {
        Failure::Store(error)
    }
}
