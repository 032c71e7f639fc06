//! Carries the runs of experiments out, in interleaved rounds.
//!
//! All runs on one store are a chain. Chains that differ only in their schedule and topology are a
//! group: what is compared with each other. In each round, the chains of a group follow each other,
//! and each round begins with another one of them. The second round of a group comes after the
//! first round of all groups, so a limit of time takes rounds away, and not figures.
//!
//! Invariants: a group is begun only before the limit of time, and then carried out whole, so each
//! round has all runs that are compared. Each chain finds its store as its own runs left it.
//!
//! Threading: one thread calls.

use std::path::{Path, PathBuf};
use std::time::Instant;

use super::archive::Line;
use super::carried::Carried;
use super::{show, tables};
use crate::command::output::Output;
use crate::command::place::Place;
use crate::command::runs::Runner;
use crate::command::{CommandError, Result, file_error};
use crate::engine::Driver;
use crate::experiment::{Experiment, Plan, PlannedRun};
use crate::record::Record;
use crate::run::RunError;
use crate::run::store::Fixture;
use crate::settings::{Settings, Topology};
use crate::topology::{Placed, PlacedDriver};

/// An experiment, and what was found.
pub struct Piece {
    pub experiment: Experiment,
    pub plan: Plan,
    pub rounds: u32,
    /// By the index of the run in the experiment, and then by round.
    pub records: Vec<Vec<Option<Record>>>,
    /// The runs that failed: their index, their round, and why.
    pub failures: Vec<(usize, usize, String)>,
}

impl Piece {
    /// An experiment without results.
    pub fn new(experiment: Experiment, plan: Plan, rounds: Option<u32>) -> Piece {
        let rounds = rounds.unwrap_or(experiment.rounds);
        Piece {
            records: vec![vec![None; rounds as usize]; experiment.runs.len()],
            failures: Vec::new(),
            experiment,
            plan,
            rounds,
        }
    }

    /// One record of each run, in the order of the plan: that of the round in the middle.
    pub fn representatives(&self) -> Vec<Record> {
        let middle = |run: &PlannedRun| {
            let mut rounds: Vec<&Record> = self.records[run.index].iter().flatten().collect();
            let rate = |record: &&Record| record.ops_per_s.unwrap_or(0.0);
            rounds.sort_by(|a, b| rate(a).total_cmp(&rate(b)));
            rounds.get(rounds.len() / 2).map(|record| (*record).clone())
        };
        self.plan.runs.iter().filter_map(middle).collect()
    }

    /// All results, for the file of records.
    pub fn lines(&self) -> impl Iterator<Item = Line> {
        let line = |index: usize, round: usize| Line {
            experiment: self.experiment.name.clone(),
            run: self.experiment.runs[index].label.clone(),
            round,
            ..Line::default()
        };
        let runs = self.records.iter().enumerate();
        let found = runs.flat_map(move |(index, rounds)| {
            let rounds = rounds.iter().enumerate();
            rounds.filter_map(move |(round, record)| {
                Some(Line {
                    record: Some(Box::new(slim(record.as_ref()?))),
                    ..line(index, round)
                })
            })
        });
        let failures = self.failures.iter().map(move |(index, round, why)| Line {
            error: Some(why.clone()),
            ..line(*index, *round)
        });
        found.chain(failures)
    }
}

/// A record without what is only for charts.
fn slim(record: &Record) -> Record {
    Record {
        series: Vec::new(),
        command_line: Vec::new(),
        service_time: Default::default(),
        ..record.clone()
    }
}

/// The runs of a piece on one store.
#[derive(Debug, Clone, PartialEq)]
struct Chain {
    piece: usize,
    /// Positions in the plan.
    positions: Vec<usize>,
}

/// What runs of a group have in common: everything but schedule and topology.
fn key(run: &PlannedRun) -> Settings {
    let mut settings = run.settings.clone();
    settings.topology = Topology::default();
    settings.engine.own.remove("schedule");
    settings
}

/// The chains of a plan in groups.
fn groups(piece: usize, plan: &Plan) -> Vec<Vec<Chain>> {
    let mut chains: Vec<(Vec<Settings>, Chain)> = Vec::new();
    let mut stores: Vec<usize> = plan.runs.iter().map(|run| run.store).collect();
    stores.dedup();
    for store in stores {
        let positions = (0..plan.runs.len()).filter(|p| plan.runs[*p].store == store);
        let positions: Vec<usize> = positions.collect();
        let keys = positions.iter().map(|p| key(&plan.runs[*p])).collect();
        chains.push((keys, Chain { piece, positions }));
    }
    let mut groups: Vec<(Vec<Settings>, Vec<Chain>)> = Vec::new();
    for (keys, chain) in chains {
        match groups.iter_mut().find(|(known, _)| *known == keys) {
            Some((_, group)) => group.push(chain),
            None => groups.push((keys, vec![chain])),
        }
    }
    groups.into_iter().map(|(_, group)| group).collect()
}

/// Experiments that are carried out.
pub struct Trial<'a> {
    pub runner: Runner<'a>,
    pub place: Place,
    pub keep: bool,
    /// Whether a run that fails ends only its chain.
    pub goes_on: bool,
    /// When no further group begins.
    pub until: Option<Instant>,
    pub pieces: Vec<Piece>,
}

impl Trial<'_> {
    /// Carries out all runs.
    pub fn run(&mut self, output: &mut Output<'_>) -> Result<()> {
        let pieces = self.pieces.iter().enumerate();
        let groups: Vec<Vec<Chain>> = pieces.flat_map(|(i, p)| groups(i, &p.plan)).collect();
        let rounds = self.pieces.iter().map(|piece| piece.rounds as usize).max();
        for round in 0..rounds.unwrap_or(0) {
            for group in &groups {
                let has_round = group
                    .first()
                    .is_some_and(|chain| round < self.pieces[chain.piece].rounds as usize);
                if !has_round {
                    continue;
                }
                if self.until.is_some_and(|until| Instant::now() >= until) {
                    return output.row("time", &[format!("it is up in round {}", round + 1)]);
                }
                for step in 0..group.len() {
                    // Each round begins with another one.
                    self.chain(&group[(step + round) % group.len()], round, output)?;
                }
            }
        }
        Ok(())
    }

    /// Carries out the runs on one store.
    fn chain(&mut self, chain: &Chain, round: usize, output: &mut Output<'_>) -> Result<()> {
        for &position in &chain.positions {
            let piece = &self.pieces[chain.piece];
            let run = &piece.plan.runs[position];
            let index = run.index;
            let folder = self.folder_of(piece, run);
            std::fs::create_dir_all(&folder).map_err(file_error(&folder))?;
            let label = format!("{}/{} {}", position + 1, piece.plan.runs.len(), run.label);
            let mut found = self.runner.run(&folder, &run.settings, &label);
            if let Ok(record) = &mut found {
                let stand_ins = show::stand_ins(&piece.experiment, &piece.plan, run);
                record.stand_ins.splice(..0, stand_ins);
            }
            if run.is_last_use || found.is_err() {
                // The first run of a chain made the store and all its folders.
                let maker = &piece.plan.runs[chain.positions[0]];
                self.delete(&folder, &maker.settings.topology);
            }
            match found {
                Ok(record) => {
                    let (experiment, plan) = (&piece.experiment, &piece.plan);
                    show::run(output, experiment, plan, (position, round), &record)?;
                    self.pieces[chain.piece].records[index][round] = Some(record);
                }
                Err(error) if self.goes_on && !matches!(error, RunError::Interrupted) => {
                    let why = error.to_string();
                    output.row("failed", &[format!("{}: {why}", run.label)])?;
                    self.pieces[chain.piece].failures.push((index, round, why));
                    return Ok(());
                }
                Err(error) => return Err(ended(&error, piece, position)),
            }
        }
        Ok(())
    }

    /// Shows ratios and claims, and writes the page of charts.
    ///
    /// # Errors
    /// Those of the output.
    pub fn ended(&self, output: &mut Output<'_>, is_closed: bool) -> Result<()> {
        if is_closed {
            return Ok(());
        }
        for piece in &self.pieces {
            show::end(output, &piece.experiment, &piece.records)?;
        }
        output.text("\n")?;
        if let [piece] = &self.pieces[..] {
            output.set_part(tables::part(&Carried::of(piece)));
            for record in piece.representatives() {
                output.keep(record);
            }
        }
        output.finish()
    }

    /// The folder of a run's store and of the files beside it.
    fn folder_of(&self, piece: &Piece, run: &PlannedRun) -> PathBuf {
        let name = format!("{}-store{}", piece.plan.experiment, run.store + 1);
        self.place.folder().join(name)
    }

    /// Deletes a store that was made with this topology and the files beside it, and nothing else.
    fn delete(&self, folder: &Path, topology: &Topology) {
        if self.keep {
            return;
        }
        // Where a device holds the tables, they have a folder of their own.
        let placed = PlacedDriver::new(topology, &Placed::default());
        let driver: &dyn Driver = match topology.is_plain() {
            true => self.runner.driver,
            false => &placed,
        };
        // A store that cannot be deleted is reported by the next run that needs the space.
        let _ = Fixture::delete(driver, folder);
        // A device has notes beside its stores.
        let _ = std::fs::remove_dir_all(folder.join(".device"));
        let _ = std::fs::remove_dir(folder);
    }

    /// Says where stores are that are kept.
    ///
    /// # Errors
    /// Those of the output.
    pub fn say_where(&self, output: &mut Output<'_>) -> Result<()> {
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

/// The end of an experiment by a failure or a signal.
fn ended(error: &RunError, piece: &Piece, position: usize) -> CommandError {
    let (run, all) = (&piece.plan.runs[position], piece.plan.runs.len());
    let place = format!("run {} of {all}, `{}`", position + 1, run.label);
    match error {
        RunError::Interrupted => CommandError::Interrupted(format!("during {place}")),
        other => CommandError::Failed(format!("{place}: {other}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_compared_with_each_other_is_a_group() {
        let experiment = Experiment::named("prockstore-fig9").unwrap();
        let plan = experiment.plan(Some(0.001)).unwrap();
        let groups = groups(3, &plan);
        // Four sizes, each with four policies and the plain engine.
        assert_eq!(groups.len(), 4);
        for group in &groups {
            assert_eq!(group.len(), 5);
            assert!(
                group
                    .iter()
                    .all(|chain| chain.piece == 3 && chain.positions.len() == 1)
            );
        }
        let mut positions: Vec<usize> = groups
            .iter()
            .flatten()
            .flat_map(|chain| chain.positions.clone())
            .collect();
        positions.sort_unstable();
        assert_eq!(positions, (0..plan.runs.len()).collect::<Vec<_>>());
    }

    #[test]
    fn all_runs_on_a_store_are_one_chain() {
        let experiment = Experiment::named("prockstore-fig12").unwrap();
        let plan = experiment.plan(Some(0.001)).unwrap();
        let groups = groups(0, &plan);
        assert_eq!(groups.len(), 1);
        assert_eq!(groups[0].len(), 5);
        // Load, and A to F.
        assert!(groups[0].iter().all(|chain| chain.positions.len() == 7));
    }
}
