//! Carries out the runs of experiments in interleaved rounds.
//!
//! All runs on one store are a chain, in the order of the plan. A group consists of all chains that
//! are compared with each other: those that differ only in their schedule and topology, and those
//! that a ratio of the experiment joins, directly or through other chains. In each round, the
//! chains of a group follow each other. The next round has them in the opposite order, and every
//! second round begins one chain later. So no run always comes before the run that it is compared
//! with. The second round of a group comes after the first round of all groups. So if the time runs
//! out, there are fewer rounds, but no figure is missing.
//!
//! The machine is probed before and after each run. In the comparison of a whole paper, a chain
//! with an unusually slow probe is carried out once more, and then the second figures count,
//! whether they are better or worse. A chain for which a flush of the disk took much longer than
//! for the chains that it is compared with is carried out once more, too. Only the probes and the
//! disk decide this, and never the figures.
//!
//! Invariants: a group begins only before the limit of time, and is then carried out whole, so each
//! round has both runs of every ratio, unless a run fails. Each chain finds its store as its own
//! runs left it, so the runs of one chain never change their order.
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
use crate::experiment::{Experiment, Plan, PlannedRun, Ratio};
use crate::measure::machine::{DiskRequests, Speed};
use crate::record::Record;
use crate::run::RunError;
use crate::run::store::Fixture;
use crate::settings::{Settings, Topology};
use crate::topology::{Awake, Placed, PlacedDriver};

/// If a probe took at least this many times as long as usual, the machine was slow.
const SLOW: f64 = 1.25;
/// The number of probes that must be known before the machine can count as slow.
const USUAL_AFTER: usize = 8;
/// If a flush took at least this many times as long on average as for the other chains of its
/// group, the disk was slow. The difference between policies is usually smaller.
const SLOW_DISK: f64 = 3.0;

/// An experiment and its results.
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

    /// One record of each run, in the order of the plan: that of the round with the median rate.
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

/// A record without the fields that only charts need.
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

/// The settings that two runs have in common if they compare policies or topologies: all except
/// schedule and topology.
fn key(run: &PlannedRun) -> Settings {
    let mut settings = run.settings.clone();
    settings.topology = Topology::default();
    settings.engine.own.remove("schedule");
    settings
}

/// The chains of a plan in groups.
fn groups(piece: usize, plan: &Plan, ratios: &[Ratio]) -> Vec<Vec<Chain>> {
    let mut chains: Vec<Chain> = Vec::new();
    let mut stores: Vec<usize> = plan.runs.iter().map(|run| run.store).collect();
    stores.dedup();
    for store in stores {
        let positions = (0..plan.runs.len()).filter(|p| plan.runs[*p].store == store);
        let positions = positions.collect();
        chains.push(Chain { piece, positions });
    }
    let keys = |chain: &Chain| -> Vec<Settings> {
        let positions = chain.positions.iter();
        positions.map(|p| key(&plan.runs[*p])).collect()
    };
    let keys: Vec<Vec<Settings>> = chains.iter().map(keys).collect();
    let chain_of = |run: usize| {
        let has = |chain: &Chain| chain.positions.iter().any(|p| plan.runs[*p].index == run);
        chains.iter().position(has)
    };
    let same = (0..chains.len()).filter_map(|chain| {
        let first = keys.iter().position(|known| *known == keys[chain])?;
        Some((first, chain))
    });
    let joined = ratios
        .iter()
        .filter_map(|ratio| Some((chain_of(ratio.of)?, chain_of(ratio.to)?)));
    // The group of each chain, named by the first chain in it.
    let mut group_of: Vec<usize> = (0..chains.len()).collect();
    for (a, b) in same.chain(joined) {
        let (a, b) = (group_of[a], group_of[b]);
        let united = group_of.iter_mut().filter(|group| **group == a.max(b));
        united.for_each(|group| *group = a.min(b));
    }
    let mut groups: Vec<Vec<Chain>> = vec![Vec::new(); chains.len()];
    for (chain, group) in chains.into_iter().zip(group_of) {
        groups[group].push(chain);
    }
    groups.retain(|group| !group.is_empty());
    groups
}

/// The order in which a round carries out the chains of a group, by their positions in the group.
///
/// Rotation alone is not enough: of two chains in the middle of a large group, the same one would
/// come first in all rounds but one.
fn order(chains: usize, round: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..chains).collect();
    order.rotate_left(round / 2 % chains.max(1));
    if round % 2 == 1 {
        order.reverse();
    }
    order
}

/// The positions of those that are at least [`SLOW_DISK`] times the median, with that factor.
fn slow_ones(times: &[Option<f64>]) -> Vec<(usize, f64)> {
    let mut known: Vec<f64> = times.iter().copied().flatten().collect();
    known.sort_by(f64::total_cmp);
    // Of two, nobody knows which one is unusual.
    if known.len() < 3 {
        return Vec::new();
    }
    let usual = known[known.len() / 2];
    let factors = times.iter().enumerate();
    let factors = factors.filter_map(|(at, time)| Some((at, (*time)? / usual)));
    factors.filter(|(_, factor)| *factor >= SLOW_DISK).collect()
}

/// Carries out the runs of experiments, and has the results.
pub struct Trial<'a> {
    pub runner: Runner<'a>,
    pub place: Place,
    pub keep: bool,
    /// Whether this is the comparison of a whole paper. If it is, a run that fails ends only its
    /// chain.
    pub goes_on: bool,
    /// The time from which on no further group begins.
    pub until: Option<Instant>,
    pub pieces: Vec<Piece>,
    /// Keeps the cores from sleeping.
    pub awake: Option<Awake>,
    /// All probes of the machine.
    pub speeds: Vec<Speed>,
}

impl Trial<'_> {
    /// Carries out all runs. Calls `keep` after each round but the last one, so that a program that
    /// is killed loses one round at most.
    pub fn run(
        &mut self,
        output: &mut Output<'_>,
        keep: &mut dyn FnMut(&Trial<'_>) -> Result<()>,
    ) -> Result<()> {
        let pieces = self.pieces.iter().enumerate();
        let groups: Vec<Vec<Chain>> = pieces
            .flat_map(|(i, p)| groups(i, &p.plan, &p.experiment.ratios))
            .collect();
        let rounds = self.pieces.iter().map(|piece| piece.rounds as usize).max();
        for round in 0..rounds.unwrap_or(0) {
            if round > 0 {
                keep(self)?;
            }
            for group in &groups {
                let has_round = group
                    .first()
                    .is_some_and(|chain| round < self.pieces[chain.piece].rounds as usize);
                if !has_round || self.is_complete(group, round) {
                    continue;
                }
                if self.until.is_some_and(|until| Instant::now() >= until) {
                    return output.row("time", &[format!("it is up in round {}", round + 1)]);
                }
                for position in order(group.len(), round) {
                    self.chain_or_again(&group[position], round, output)?;
                }
                for (position, factor) in self.slow_disks(group, round) {
                    let why =
                        format!("a flush of the disk took {factor:.2} times as long as usual");
                    self.again(&group[position], round, &why, output)?;
                }
            }
        }
        Ok(())
    }

    /// Whether all runs of a group have a record of this round, which an earlier call made.
    fn is_complete(&self, group: &[Chain], round: usize) -> bool {
        group.iter().all(|chain| {
            let piece = &self.pieces[chain.piece];
            let mut runs = chain.positions.iter().map(|p| piece.plan.runs[*p].index);
            runs.all(|run| piece.records[run][round].is_some())
        })
    }

    /// Carries out the runs on one store, and repeats them once if the machine was slow.
    fn chain_or_again(
        &mut self,
        chain: &Chain,
        round: usize,
        output: &mut Output<'_>,
    ) -> Result<()> {
        self.chain(chain, round, output)?;
        let slowness = self.slowness(chain, round);
        // A store that is kept already contains what the first runs wrote.
        if !self.goes_on || self.keep || slowness < SLOW {
            return Ok(());
        }
        let why = format!("a probe of the machine took {slowness:.2} times as long as usual");
        self.again(chain, round, &why, output)
    }

    /// Repeats the runs on one store.
    fn again(
        &mut self,
        chain: &Chain,
        round: usize,
        why: &str,
        output: &mut Output<'_>,
    ) -> Result<()> {
        output.row("once more", &[why.to_string()])?;
        self.chain(chain, round, output)?;
        for run in self.runs_of(chain) {
            let piece = &mut self.pieces[chain.piece];
            if let Some(record) = &mut piece.records[run][round] {
                record.is_repeated = true;
            }
        }
        Ok(())
    }

    /// The runs of a chain, by their index in the experiment.
    fn runs_of(&self, chain: &Chain) -> Vec<usize> {
        let plan = &self.pieces[chain.piece].plan;
        let positions = chain.positions.iter();
        positions.map(|p| plan.runs[*p].index).collect()
    }

    /// The factor by which the slowest probe of a chain's runs took longer than usual.
    fn slowness(&self, chain: &Chain, round: usize) -> f64 {
        if self.speeds.len() < USUAL_AFTER {
            return 1.0;
        }
        let usual = Speed::median_of(&self.speeds);
        let records = &self.pieces[chain.piece].records;
        let runs = self.runs_of(chain).into_iter();
        let runs = runs.filter_map(|run| records[run][round].as_ref());
        let probes = runs.flat_map(|record| &record.machine_speed);
        probes.fold(1.0, |most, probe| f64::max(most, probe.slowness(&usual)))
    }

    /// The positions of the chains in a group for which the disk was slow in this round, and the
    /// factors by which a flush took longer than for the median of the group.
    fn slow_disks(&self, group: &[Chain], round: usize) -> Vec<(usize, f64)> {
        if !self.goes_on || self.keep {
            return Vec::new();
        }
        let requests = |chain: &Chain| {
            let records = &self.pieces[chain.piece].records;
            let runs = self.runs_of(chain).into_iter();
            let disks = runs.filter_map(|run| records[run][round].as_ref()?.machine_disk);
            disks.reduce(|all, disk| all.plus(&disk))
        };
        let flush_ms: Vec<Option<f64>> = group
            .iter()
            .map(|chain| requests(chain)?.mean_flush_ms())
            .collect();
        slow_ones(&flush_ms)
    }

    /// Forgets what a chain has found in this round.
    fn forget(&mut self, chain: &Chain, round: usize) {
        let runs = self.runs_of(chain);
        let piece = &mut self.pieces[chain.piece];
        runs.iter()
            .for_each(|run| piece.records[*run][round] = None);
        let failures = &mut piece.failures;
        failures.retain(|(run, at, _)| *at != round || !runs.contains(run));
    }

    /// Carries out the runs on one store.
    fn chain(&mut self, chain: &Chain, round: usize, output: &mut Output<'_>) -> Result<()> {
        self.forget(chain, round);
        for &position in &chain.positions {
            let piece = &self.pieces[chain.piece];
            let run = &piece.plan.runs[position];
            let index = run.index;
            let folder = self.folder_of(piece, run);
            std::fs::create_dir_all(&folder).map_err(file_error(&folder))?;
            let label = format!("{}/{} {}", position + 1, piece.plan.runs.len(), run.label);
            let before = Speed::now();
            let disk = DiskRequests::of(&folder);
            let mut found = self.runner.run(&folder, &run.settings, &label);
            let disk = disk.zip(DiskRequests::of(&folder));
            let speeds = vec![before, Speed::now()];
            self.speeds.extend_from_slice(&speeds);
            if let Ok(record) = &mut found {
                record.machine_speed = speeds;
                record.machine_disk = disk.map(|(before, after)| after.since(&before));
                let stand_ins = show::stand_ins(&piece.experiment, &piece.plan, run);
                record.stand_ins.splice(..0, stand_ins);
                let awake = self.awake.as_ref().map(|_| Awake::STAND_IN.to_string());
                record.stand_ins.extend(awake);
                let disk = show::disk_stand_in(record.machine.file_system.as_deref());
                record.stand_ins.extend(disk);
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
                // The machine lacks what the run needs, and other runs do not need it.
                Err(RunError::NotRun(why)) => {
                    return self.not_run(chain, position, round, why, output);
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

    /// Notes that a run, and those after it on the same store, are not carried out.
    fn not_run(
        &mut self,
        chain: &Chain,
        first: usize,
        round: usize,
        why: String,
        output: &mut Output<'_>,
    ) -> Result<()> {
        let left = chain.positions.iter().skip_while(|p| **p != first);
        for &position in left {
            let piece = &mut self.pieces[chain.piece];
            show::not_run(
                output,
                &piece.experiment,
                &piece.plan,
                (position, round),
                &why,
            )?;
            let index = piece.plan.runs[position].index;
            let why = RunError::NotRun(why.clone()).to_string();
            piece.failures.push((index, round, why));
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
            show::end(output, &piece.experiment, &piece.records, &piece.failures)?;
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

    /// Deletes a store that was made with this topology, and the files beside it. Deletes nothing
    /// else.
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
        // If the store cannot be deleted, the next run that needs the space reports that.
        let _ = Fixture::delete(driver, folder);
        // A device keeps a folder of its own beside the stores.
        let _ = std::fs::remove_dir_all(folder.join(".device"));
        let _ = std::fs::remove_dir(folder);
    }

    /// Says where the stores are, if they are kept.
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

/// The error of an experiment that a failure or a signal ended.
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
    use std::collections::BTreeSet;

    use super::*;
    use crate::experiment::embedded_names;

    #[test]
    fn what_is_compared_with_each_other_is_a_group() {
        let experiment = Experiment::named("prockstore-fig9").unwrap();
        let plan = experiment.plan(Some(0.001)).unwrap();
        let groups = groups(3, &plan, &experiment.ratios);
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
        let groups = groups(0, &plan, &experiment.ratios);
        assert_eq!(groups.len(), 1);
        assert_eq!(groups[0].len(), 5);
        // Load, and A to F.
        assert!(groups[0].iter().all(|chain| chain.positions.len() == 7));
    }
    #[test]
    fn the_runs_of_a_ratio_are_in_one_group_whatever_their_settings() {
        for name in embedded_names() {
            let experiment = Experiment::named(name).unwrap();
            let plan = experiment.plan(Some(0.001)).unwrap();
            let groups = groups(0, &plan, &experiment.ratios);
            let group_of = |run: usize| {
                let has_run = |chain: &Chain| {
                    let mut positions = chain.positions.iter();
                    positions.any(|p| plan.runs[*p].index == run)
                };
                let found = groups.iter().position(|group| group.iter().any(has_run));
                found.unwrap()
            };
            for ratio in &experiment.ratios {
                assert_eq!(group_of(ratio.of), group_of(ratio.to), "{name}");
            }
            // Each run is carried out once, and a store has all its runs in one chain.
            let chains: Vec<&Chain> = groups.iter().flatten().collect();
            let positions = chains.iter().flat_map(|chain| chain.positions.clone());
            let mut positions: Vec<usize> = positions.collect();
            positions.sort_unstable();
            assert_eq!(
                positions,
                (0..plan.runs.len()).collect::<Vec<_>>(),
                "{name}"
            );
            let stores = chains
                .iter()
                .map(|chain| plan.runs[chain.positions[0]].store);
            let stores: BTreeSet<usize> = stores.collect();
            assert_eq!(stores.len(), chains.len(), "{name}");
        }
        // Threads differ here, and every ratio joins two of the chains.
        let experiment = Experiment::named("prockstore-fig17").unwrap();
        let plan = experiment.plan(Some(0.001)).unwrap();
        let sizes: Vec<usize> = groups(0, &plan, &experiment.ratios)
            .iter()
            .map(Vec::len)
            .collect();
        assert_eq!(sizes, [12]);
    }

    #[test]
    fn a_slow_disk_is_noticed_among_at_least_three_chains() {
        let found = slow_ones(&[Some(0.4), None, Some(1.5), Some(0.5), Some(0.4)]);
        assert_eq!(found, [(2, 3.0)]);
        assert_eq!(slow_ones(&[Some(0.4), Some(4.0), None]), []);
        assert_eq!(slow_ones(&[]), []);
    }

    #[test]
    fn each_chain_comes_both_before_and_after_every_other_one() {
        let rounds = |chains| (0..3).map(move |round| order(chains, round));
        let three: Vec<Vec<usize>> = rounds(3).collect();
        assert_eq!(three, [[0, 1, 2], [2, 1, 0], [1, 2, 0]]);
        let two: Vec<Vec<usize>> = rounds(2).collect();
        assert_eq!(two, [[0, 1], [1, 0], [1, 0]]);
        for chains in 2..=13 {
            let at = |order: &[usize], chain| order.iter().position(|c| *c == chain).unwrap();
            for (a, b) in (0..chains).flat_map(|b| (0..b).map(move |a| (a, b))) {
                let firsts = rounds(chains).filter(|order| at(order, a) < at(order, b));
                assert!((1..3).contains(&firsts.count()), "{a} and {b} of {chains}");
            }
        }
        assert_eq!(order(0, 3), Vec::<usize>::new());
        assert_eq!(order(1, 3), [0]);
    }
}
