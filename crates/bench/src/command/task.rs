//! The call of a program to itself that carries out one run of a topology.
//!
//! Threading: one thread calls; the run starts threads of its own.

use std::io::{self, Write};

use super::runs::Runner;
use super::{CommandError, Program, Result};
use crate::engine::{Driver, SiltstoneDriver};
use crate::record::Context;
use crate::run::RunError;
use crate::topology::{Outcome, PlacedDriver, Task, carry_out};

/// Reads a task from standard input, carries it out, and writes the answer to `out`.
///
/// # Errors
/// If there is no task, or the answer cannot be written. That the run failed is an answer.
pub fn task(program: &Program<'_>, out: &mut dyn Write) -> Result<()> {
    let answer = carry_out(&mut io::stdin(), |task| outcome(program, task));
    let answer = answer.map_err(CommandError::Usage)?;
    writeln!(out, "{answer}")
        .and_then(|()| out.flush())
        .map_err(|error| CommandError::Failed(format!("standard output: {error}")))
}

fn outcome(program: &Program<'_>, task: &Task) -> Outcome {
    if task.engine != SiltstoneDriver.name() {
        return Outcome {
            error: Some(format!(
                "there is no device for the engine `{}`",
                task.engine
            )),
            ..Outcome::default()
        };
    }
    let runner = Runner {
        program,
        driver: &PlacedDriver::new(&task.settings.topology, &task.placed),
        context: Context::of_this_process(&task.folder),
    };
    match runner.run_here(&task.folder, &task.settings, &task.label) {
        Ok(record) => Outcome {
            record: Some(Box::new(record)),
            ..Outcome::default()
        },
        Err(RunError::Interrupted) => Outcome {
            is_interrupted: true,
            ..Outcome::default()
        },
        Err(error) => Outcome {
            error: Some(error.to_string()),
            ..Outcome::default()
        },
    }
}
