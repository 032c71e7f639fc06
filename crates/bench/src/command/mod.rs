//! The command line of the benchmark, which `silt bench` and the programs of `bench-compare` share.
//!
//! [`RunArgs`] and [`PaperArgs`] are the options, made from the list of all settings. [`bench()`]
//! runs workloads one after the other on one store, and [`paper()`] runs an experiment and prints
//! the paper's figures beside those that it measured. What a program gives is in [`Program`]: its
//! engines, and whether a signal came.
//!
//! Invariants: what can be refused is refused before a store is made. Standard output has the
//! results, and with `--json` nothing but records; progress goes to standard error. A folder that
//! the user named is never deleted, and in it only stores that a benchmark made.
//!
//! Threading: one thread calls; a run starts threads of its own.

mod args;
mod list;
mod output;
mod paper;
mod place;
mod progress;
mod runs;
mod settings;
mod task;

#[cfg(test)]
mod tests;

use std::io;
use std::path::{Path, PathBuf};

use crate::engine::{Driver, Gpus};
use crate::run::RunError;
use crate::settings::{EngineSettings, Refusal, Setting, nearest};

pub use args::{OutputArgs, PaperArgs, RunArgs};
pub use paper::paper;
pub use runs::bench;
pub use settings::SettingsArgs;
pub use task::task;

/// What a program gives to its command.
pub struct Program<'a> {
    /// How a user calls the command, for messages: `silt bench`.
    pub command: &'a str,
    /// The engines. The first one is used if the user names none.
    pub drivers: &'a [Box<dyn Driver>],
    /// The file of the program, which is started again for runs whose host and device are processes
    /// of their own. Without it, such runs are refused.
    pub file: Option<PathBuf>,
    /// What opens the GPU of a run that should use one.
    pub gpus: &'a dyn Gpus,
    /// Whether a signal has asked the program to end. It is asked ten times a second.
    pub stopped: &'a (dyn Fn() -> bool + Sync),
}

/// Why a command ended early.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    /// Arguments that make no sense together, or settings that cannot be carried out.
    #[error("{0}")]
    Usage(String),
    /// Anything else that failed.
    #[error("{0}")]
    Failed(String),
    /// The program was asked to end. The text says how far it came.
    #[error("{0}")]
    Interrupted(String),
    /// The reader of standard output has closed it.
    #[error("the output was closed")]
    OutputClosed,
}

type Result<T> = std::result::Result<T, CommandError>;

/// The error of a file or folder.
fn file_error(path: &Path) -> impl FnOnce(io::Error) -> CommandError {
    let name = path.display().to_string();
    move |error| CommandError::Failed(format!("{name}: {error}"))
}

impl From<RunError> for CommandError {
    fn from(error: RunError) -> CommandError {
        match error {
            RunError::Settings(refusal) => refused(&refusal),
            RunError::Interrupted => CommandError::Interrupted("the run was interrupted".into()),
            other => CommandError::Failed(other.to_string()),
        }
    }
}

/// The refusal of a setting, with the name of its option.
fn refused(refusal: &Refusal) -> CommandError {
    CommandError::Usage(refusal_text(refusal))
}

fn refusal_text(refusal: &Refusal) -> String {
    let Refusal {
        setting,
        found,
        expected,
    } = refusal;
    match *setting {
        "workload" => format!("`{found}`: {expected}"),
        setting => format!("`{} {found}`: {expected}", option_of(setting)),
    }
}

/// The option of a setting.
fn option_of(name: &str) -> String {
    Setting::named(name).map_or_else(|_| format!("--{name}"), Setting::option)
}

impl Program<'_> {
    /// The engine of this name; without a name, the first one.
    fn driver(&self, name: Option<&str>) -> Result<&dyn Driver> {
        let Some(name) = name else {
            let first = self.drivers.first().map(|driver| &**driver);
            return first.ok_or_else(|| CommandError::Failed("the program has no engine".into()));
        };
        let found = self.drivers.iter().find(|driver| driver.name() == name);
        let names = || self.drivers.iter().map(|driver| driver.name());
        found.map(|driver| &**driver).ok_or_else(|| {
            let meant = nearest(name, names()).map(|near| format!("; did you mean `{near}`?"));
            CommandError::Usage(format!(
                "`{}` has no engine `{name}`{}; its engines are {}",
                self.command,
                meant.unwrap_or_default(),
                names().collect::<Vec<_>>().join(", ")
            ))
        })
    }
}

/// Refuses settings of the engine's own that it does not know.
fn check_own(driver: &dyn Driver, settings: &EngineSettings) -> Result<()> {
    match driver.settings(settings).get(crate::engine::SETTINGS_ERROR) {
        Some(error) => Err(CommandError::Usage(format!(
            "`--own`: {} refuses its settings: {error}",
            driver.name()
        ))),
        None => Ok(()),
    }
}
