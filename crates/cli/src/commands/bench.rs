//! `silt bench`: measures the store with the workloads of db_bench and YCSB, and with the settings
//! of papers.

use std::io;

use siltstone_bench::command::{self, CommandError, Program};
use siltstone_bench::engine::{Driver, FirstGpu, NullDriver, SiltstoneDriver, SiltstoneWith};
use siltstone_bench::topology::{WithinArgs, within};

use super::gpu;
use super::place::refuse_url_for;
use crate::args::{BenchArgs, BenchCommand};
use crate::failure::{Failure, Outcome};
use crate::signals::Signals;

/// The engines that `silt` can measure. The others are in `bench-compare`. If a GPU is wanted, this
/// waits for it, so that no run measures the time in which its kernels are compiled.
fn drivers(args: &BenchArgs, signals: &Signals) -> Result<Vec<Box<dyn Driver>>, Failure> {
    let own: Box<dyn Driver> = match gpu::open_executors(&args.gpu, Some(signals))? {
        executors if executors.is_empty() => Box::new(SiltstoneDriver),
        executors => {
            let words = gpu::words(&args.gpu, &executors);
            Box::new(SiltstoneWith::new(executors, words))
        }
    };
    Ok(vec![own, Box::new(NullDriver)])
}

/// Runs the command.
pub fn run(args: &BenchArgs) -> Result<Outcome, Failure> {
    let folder = match &args.command {
        Some(BenchCommand::Within(within)) => return become_command(within),
        Some(BenchCommand::Task) => None,
        Some(BenchCommand::Paper(paper)) => paper.folder.as_ref(),
        None => args.runs.folder.as_ref(),
    };
    let engine = args.runs.output.engine.as_deref();
    if args.gpu.gpu.is_some() && engine.is_some_and(|name| name == NullDriver.name()) {
        return Err(Failure::Usage(
            "`--gpu` is for the engine siltstone; leave out one of `--gpu` and `--engine null`"
                .to_string(),
        ));
    }
    if let Some(folder) = folder {
        refuse_url_for(folder, "`silt bench` makes its stores in a local folder")?;
    }
    let signals = Signals::new().map_err(|e| Failure::io("the pipe of signals", &e))?;
    let watched = signals.watch();
    watched.map_err(|e| Failure::io("the handlers of signals", &e))?;
    let program = Program {
        command: "silt bench",
        drivers: &drivers(args, &signals)?,
        file: std::env::current_exe().ok(),
        gpus: &FirstGpu,
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
