//! An experiment with its results, from which all tables of a comparison are made.
//!
//! Threading: plain data.

use serde_json::Value as Json;

use super::archive::{Archive, Planned};
use super::compare::{RoundsOf, all_json};
use super::rounds::Piece;
use crate::experiment::{Experiment, Plan};
use crate::record::Record;

/// Experiments with these names measure targets of this project, and not figures of the paper.
const TARGETS: [&str; 2] = ["-target-", "-ablation"];

/// A run that failed in a round.
#[derive(Debug, Clone, PartialEq)]
pub struct Failure {
    /// The index of the run in the experiment.
    pub run: usize,
    /// The round, from 0.
    pub round: usize,
    /// Why.
    pub why: String,
}

/// An experiment with the runs of it that were carried out.
#[derive(Debug)]
pub struct Carried {
    pub experiment: Experiment,
    pub plan: Plan,
    /// The rounds that were planned.
    pub rounds: u32,
    /// By the index of the run, and then by round.
    pub records: Vec<Vec<Option<Json>>>,
    pub failures: Vec<Failure>,
}

impl Carried {
    /// The experiment of this call, from memory.
    pub fn of(piece: &Piece) -> Carried {
        let failure = |(run, round, why): &(usize, usize, String)| Failure {
            run: *run,
            round: *round,
            why: why.clone(),
        };
        Carried {
            experiment: piece.experiment.clone(),
            plan: piece.plan.clone(),
            rounds: piece.rounds,
            records: all_json(&piece.records),
            failures: piece.failures.iter().map(failure).collect(),
        }
    }

    /// All experiments of an archive.
    ///
    /// # Errors
    /// If the program lacks an experiment or a run of the archive.
    pub fn all(archive: &Archive) -> Result<Vec<Carried>, String> {
        let planned = archive.manifest.experiments.iter();
        planned
            .map(|planned| Carried::archived(planned, archive))
            .collect()
    }

    fn archived(planned: &Planned, archive: &Archive) -> Result<Carried, String> {
        let experiment = Experiment::named(&planned.name).map_err(|error| error.to_string())?;
        let plan = experiment
            .plan(Some(planned.scale))
            .map_err(|error| error.to_string())?;
        let mut records = vec![vec![None; planned.rounds as usize]; experiment.runs.len()];
        let mut failures = Vec::new();
        let lines = archive.lines.iter();
        for line in lines.filter(|line| line.experiment == planned.name) {
            let no_run = || format!("{}: there is no run `{}`", planned.name, line.run);
            let mut runs = experiment.runs.iter();
            let run = runs.position(|run| run.label == line.run);
            let run = run.ok_or_else(no_run)?;
            let place: Option<&mut Option<Record>> = records[run].get_mut(line.round);
            *place.ok_or_else(no_run)? = line.record.as_deref().cloned();
            if let Some(why) = &line.error {
                failures.push(Failure {
                    run,
                    round: line.round,
                    why: why.clone(),
                });
            }
        }
        Ok(Carried {
            records: all_json(&records),
            rounds: planned.rounds,
            failures,
            plan,
            experiment,
        })
    }

    /// The rounds of a run.
    pub fn rounds_of(&self, run: usize) -> &RoundsOf {
        self.records.get(run).map(Vec::as_slice).unwrap_or_default()
    }

    /// Whether it measures targets of this project.
    pub fn is_target(&self) -> bool {
        let name = &self.experiment.name;
        TARGETS.iter().any(|target| name.contains(target))
    }

    /// The largest number of rounds in which a run was carried out.
    pub fn rounds_done(&self) -> usize {
        let count = |rounds: &Vec<Option<Json>>| rounds.iter().flatten().count();
        self.records.iter().map(count).max().unwrap_or(0)
    }

    /// The number of runs that were carried out in no round.
    pub fn missing(&self) -> usize {
        let rounds = self.records.iter();
        rounds
            .filter(|rounds| rounds.iter().all(Option::is_none))
            .count()
    }

    /// The runs that failed, in sentences.
    pub fn failed(&self) -> impl Iterator<Item = String> {
        self.failures.iter().map(|failure| {
            let label = super::compare::label(&self.experiment, failure.run);
            format!("`{label}`, round {}: {}", failure.round + 1, failure.why)
        })
    }
}
