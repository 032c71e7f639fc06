//! `silt bench`: measures the store with the workloads of db_bench and YCSB, and with the settings
//! of papers.

use std::io;

use siltstone_bench::command::{self, CommandError, Program};
use siltstone_bench::engine::{Driver, NullDriver, SiltstoneDriver};
use siltstone_bench::topology::{WithinArgs, within};

use super::place::refuse_url_for;
use crate::args::{BenchArgs, BenchCommand};
use crate::failure::{Failure, Outcome};
use crate::signals::Signals;

/// The engines that `silt` can measure. The others are in `bench-compare`.
fn drivers() -> Vec<Box<dyn Driver>> {
    vec![Box::new(SiltstoneDriver), Box::new(NullDriver)]
}

/// Runs the command.
pub fn run(args: &BenchArgs) -> Result<Outcome, Failure> {
    let folder = match &args.command {
        Some(BenchCommand::Within(within)) => return become_command(within),
        Some(BenchCommand::Task) => None,
        Some(BenchCommand::Paper(paper)) => paper.folder.as_ref(),
        None => args.runs.folder.as_ref(),
    };
    if let Some(folder) = folder {
        refuse_url_for(folder, "`silt bench` makes its stores in a local folder")?;
    }
    let signals = Signals::new().map_err(|e| Failure::io("the pipe of signals", &e))?;
    let watched = signals.watch();
    watched.map_err(|e| Failure::io("the handlers of signals", &e))?;
    let program = Program {
        command: "silt bench",
        drivers: &drivers(),
        file: std::env::current_exe().ok(),
        stopped: &|| signals.came().is_some(),
    };
    let mut out = io::stdout().lock();
    let result = match &args.command {
        Some(BenchCommand::Paper(paper)) => command::paper(&program, paper, &mut out),
        Some(BenchCommand::Task) => command::task(&program, &mut out),
        Some(BenchCommand::Within(_)) => Ok(()),
        None => command::bench(&program, &args.runs, &mut out),
    };
    match result {
        Ok(()) => Ok(Outcome::Fine),
        Err(error) => Err(failure(error, &signals)),
    }
}

/// Replaces this process by a command.
fn become_command(args: &WithinArgs) -> Result<Outcome, Failure> {
    match within(args) {
        Ok(never) => match never {},
        Err(error) => Err(Failure::io("the command", &error)),
    }
}

fn failure(error: CommandError, signals: &Signals) -> Failure {
    match (error, signals.came()) {
        (CommandError::OutputClosed, _) => Failure::OutputClosed,
        (CommandError::Usage(text), _) => Failure::Usage(text),
        (CommandError::Interrupted(text), Some(signal)) => {
            Failure::Stopped(signal, format!("{signal} {text}"))
        }
        (CommandError::Failed(text) | CommandError::Interrupted(text), _) => Failure::Other(text),
    }
}
