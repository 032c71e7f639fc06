//! Runs an experiment and prints its figures beside those of the paper.
//!
//! [`paper()`] finds the experiment, plans it, carries out its runs, each on its store, and deletes
//! a store after its last run. `compare` computes what is printed and written as JSON, `show`
//! prints it, and `tables` is its part of the page of charts.
//!
//! Invariants: all runs are checked before the first one begins. Beside every result stands what
//! was shrunk. What the paper says of a mechanism that does not exist here is listed as not
//! measured.
//!
//! Threading: one thread calls.

mod compare;
mod show;
mod tables;

use std::io::Write;
use std::path::{Path, PathBuf};

use super::output::Output;
use super::place::Place;
use super::runs::Runner;
use super::{CommandError, PaperArgs, Program, Result, check_own, file_error, refusal_text};
use crate::engine::Driver;
use crate::experiment::{Experiment, Plan, PlannedRun, embedded_names};
use crate::record::{Context, Record};
use crate::run::RunError;
use crate::run::store::Fixture;

/// Runs the experiment that the arguments name, and writes what it found to `out`; without a name,
/// lists all experiments.
///
/// # Errors
/// See [`CommandError`]. What was found before is written.
pub fn paper(program: &Program<'_>, args: &PaperArgs, out: &mut dyn Write) -> Result<()> {
    let Some(figure) = &args.figure else {
        return list(program, args, out);
    };
    let driver = program.driver(args.output.engine.as_deref())?;
    let experiment = find(figure)?;
    let plan = experiment.plan(args.scale);
    let plan = plan.map_err(|error| CommandError::Usage(error.to_string()))?;
    check(driver, &plan)?;
    let mut output = Output::new(&args.output, experiment.title.clone(), out)?;
    let place = Place::of(args.folder.as_deref(), args.keep)?;
    let mut context = Context::of_this_process(place.folder());
    context.stand_ins = show::stand_ins(&experiment, &plan);
    let runner = Runner {
        program,
        driver,
        context,
    };
    if runner.uses_disk() {
        let needed = disk_bytes(&plan, args.keep);
        place.check_room(needed, 0, "a smaller --scale")?;
    }
    show::head(&mut output, &experiment, &plan)?;
    runner.head(&mut output)?;
    let mut trial = Trial {
        experiment: &experiment,
        plan: &plan,
        runner,
        place,
        keep: args.keep,
        records: vec![None; experiment.runs.len()],
    };
    let result = trial.run(&mut output);
    if !matches!(result, Err(CommandError::OutputClosed)) {
        output.text("\n")?;
        output.set_part(tables::part(&experiment, &plan, &trial.records));
        output.finish()?;
    }
    result?;
    trial.say_where(&mut output)
}

/// Lists the experiments of the program.
fn list(program: &Program<'_>, args: &PaperArgs, out: &mut dyn Write) -> Result<()> {
    let needs_figure = args.scale.is_some()
        || args.folder.is_some()
        || args.keep
        || args.output.html.is_some()
        || args.output.engine.is_some();
    if needs_figure {
        return Err(CommandError::Usage(format!(
            "which experiment? `{} paper` lists all of them",
            program.command
        )));
    }
    let mut output = Output::new(&args.output, String::new(), out)?;
    for name in embedded_names() {
        let found = Experiment::named(name);
        let experiment = found.map_err(|error| CommandError::Failed(error.to_string()))?;
        show::listed(&mut output, &experiment)?;
    }
    output.text(&format!(
        "\n`{} paper NAME --scale 0.001` runs one in small.\n",
        program.command
    ))
}

/// The experiment of a file or of the program.
fn find(figure: &str) -> Result<Experiment> {
    let is_file = figure.ends_with(".toml") || figure.contains('/');
    if !is_file {
        let found = Experiment::named(figure);
        return found.map_err(|error| CommandError::Usage(error.to_string()));
    }
    let text = std::fs::read_to_string(figure).map_err(file_error(Path::new(figure)))?;
    let found = Experiment::parse(figure, &text);
    found.map_err(|error| CommandError::Failed(error.to_string()))
}

/// Refuses what the engine cannot carry out, before the first run.
fn check(driver: &dyn Driver, plan: &Plan) -> Result<()> {
    for run in &plan.runs {
        let checked = run.settings.check(&driver.abilities());
        checked.map_err(|refusal| {
            CommandError::Usage(format!(
                "{} cannot do the run `{}`: {}",
                driver.name(),
                run.label,
                refusal_text(&refusal)
            ))
        })?;
        check_own(driver, &run.settings.engine)?;
    }
    Ok(())
}

/// The most bytes that the stores take at once.
fn disk_bytes(plan: &Plan, keep: bool) -> u64 {
    if !keep {
        return plan.disk_bytes();
    }
    let last_uses = plan.runs.iter().filter(|run| run.is_last_use);
    let sizes = last_uses.map(|run| run.estimate.store_bytes);
    sizes.fold(0, u64::saturating_add)
}

/// An experiment that is carried out.
struct Trial<'a> {
    experiment: &'a Experiment,
    plan: &'a Plan,
    runner: Runner<'a>,
    place: Place,
    keep: bool,
    /// What was found, by the index of the run in the experiment.
    records: Vec<Option<Record>>,
}

impl Trial<'_> {
    fn run(&mut self, output: &mut Output<'_>) -> Result<()> {
        let plan = self.plan;
        for (position, run) in plan.runs.iter().enumerate() {
            let folder = self.folder_of(run);
            std::fs::create_dir_all(&folder).map_err(file_error(&folder))?;
            let label = format!("{}/{} {}", position + 1, plan.runs.len(), run.label);
            let found = self.runner.run(&folder, &run.settings, &label);
            if run.is_last_use || found.is_err() {
                self.delete(&folder);
            }
            let record = found.map_err(|error| self.ended(&error, position))?;
            show::run(output, self.experiment, plan, position, &record)?;
            output.keep(record.clone());
            self.records[run.index] = Some(record);
        }
        show::end(output, self.experiment, &self.records)
    }

    /// The end of an experiment by a failure or a signal.
    fn ended(&self, error: &RunError, position: usize) -> CommandError {
        let (run, all) = (&self.plan.runs[position], self.plan.runs.len());
        let place = format!("run {} of {all}, `{}`", position + 1, run.label);
        match error {
            RunError::Interrupted => CommandError::Interrupted(format!("during {place}")),
            other => CommandError::Failed(format!("{place}: {other}")),
        }
    }

    /// The folder of a run's store and of the files beside it.
    fn folder_of(&self, run: &PlannedRun) -> PathBuf {
        let name = format!("{}-store{}", self.plan.experiment, run.store + 1);
        self.place.folder().join(name)
    }

    /// Deletes a store and the files beside it, and nothing else.
    fn delete(&self, folder: &Path) {
        if self.keep {
            return;
        }
        // A store that cannot be deleted is reported by the next run that needs the space.
        let _ = Fixture::delete(self.runner.driver, folder);
        let _ = std::fs::remove_dir(folder);
    }

    fn say_where(&self, output: &mut Output<'_>) -> Result<()> {
        if !self.keep {
            return Ok(());
        }
        let folder = self.place.folder().display();
        if output.is_json() {
            eprintln!("the stores are kept in {folder}");
        }
        output.row("stores", &[format!("they are kept in {folder}")])
    }
}
