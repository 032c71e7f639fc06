//! Carries out a plan, process by process, and keeps what each of them found.
//!
//! Invariants: a process that has finished is kept before the next one begins. A process whose
//! store has another history than its row needs never runs; the store is prepared first. An engine
//! that failed in a row does not run in it again, and all others go on. No result and no store is
//! changed before this comparison holds the locks of both folders.
//!
//! Threading: the main thread. A signal sets [`STOP`].

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use siltstone_bench::compare::{
    Conditions, Manifest, Outcome, Plan, Process, Results, Step, Verdict, page,
};
use siltstone_bench::measure::machine::{Build, Machine};
use siltstone_bench::record::{Record, date};
use siltstone_bench::settings::Settings;

use crate::child::STOPPED;
use crate::engines::Engines;
use crate::lock::lock_results;
use crate::process::{End, Ended, watch};
use crate::progress::{self, Progress};
use crate::selection::Selection;
use crate::stores::{Stores, digest};
use crate::{Result, RunArguments, plans, signals, surroundings};

/// Set when the user wants an end.
static STOP: AtomicBool = AtomicBool::new(false);

fn is_stopped() -> bool {
    STOP.load(Ordering::Acquire)
}

/// Carries out a plan.
pub fn run(arguments: &RunArguments) -> Result<ExitCode> {
    let mut comparison = Comparison::begin(arguments)?;
    if !arguments.estimate {
        comparison.forget_interrupted()?;
    }
    let todo = comparison.todo();
    let forecast = comparison.forecast(&todo)?;
    if arguments.estimate {
        return Ok(ExitCode::SUCCESS);
    }
    signals::set_on_signal(&STOP)?;
    comparison.progress = Progress::new(todo.len(), forecast);
    let mut row = None;
    for (index, process) in todo.iter().enumerate() {
        if row.replace(process.row) != Some(process.row) {
            surroundings::touch_memory();
        }
        comparison.one(*process)?;
        if is_stopped() {
            comparison.say_how_to_go_on();
            return Ok(ExitCode::from(STOPPED));
        }
        comparison.clean(*process, &todo[index + 1..])?;
    }
    comparison.end()
}

/// A comparison that is carried out.
struct Comparison {
    results: Results,
    stores: Stores,
    engines: Engines,
    selection: Selection,
    progress: Progress,
    /// The lock of the results, held as long as this program runs.
    _lock: File,
}

/// What became of a process.
enum Fate {
    /// This is kept.
    Ended(Outcome),
    /// The user wanted an end.
    Stopped,
}

impl Comparison {
    fn begin(arguments: &RunArguments) -> Result<Comparison> {
        let mut plan = plans::find(&arguments.plan)?;
        if arguments.against.is_some() && !plan.add_before() {
            return Err(format!(
                "the plan `{}` has no siltstone, so --against has nothing to compare",
                plan.name
            ));
        }
        let selection = Selection::of(&plan, &arguments.engines, &arguments.rows)?;
        let (against, pebble) = (arguments.against.as_deref(), arguments.pebble.as_deref());
        let engines = Engines::find(&plan, against, pebble)?;
        let base = Path::new("bench-results");
        let default = |ending: &str| base.join(format!("{}{ending}", plan.name));
        let results = arguments.results.clone().unwrap_or_else(|| default(""));
        let folder = match (&arguments.folder, &arguments.results) {
            (Some(folder), _) => folder.clone(),
            (None, Some(results)) => beside(results),
            (None, None) => default(".stores"),
        };
        let manifest = manifest(&plan, &engines, arguments)?;
        let identity = digest(&format!("{:?}", (&manifest.plan, &manifest.programs)));
        // Both locks come before anything is deleted.
        let lock = lock_results(&results)?;
        let mut results = Results::open(&results, manifest).map_err(|e| e.to_string())?;
        let stores = Stores::open(&folder, identity)?;
        if arguments.retry {
            retry(&mut results, &selection)?;
        }
        Ok(Comparison {
            results,
            stores,
            engines,
            selection,
            progress: Progress::new(0, 0.0),
            _lock: lock,
        })
    }

    fn plan(&self) -> &Plan {
        &self.results.plan
    }

    /// The processes that are left.
    fn todo(&self) -> Vec<Process> {
        let all = self.plan().processes().into_iter();
        all.filter(|process| self.selection.has(*process))
            .filter(|process| self.results.get(*process).is_none())
            .filter(|process| !self.has_ended(*process))
            .collect()
    }

    /// Forgets what the processes of a round found that was interrupted for so long that the
    /// machine may be another one: they run again with the rest of the round.
    fn forget_interrupted(&mut self) -> Result<()> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let now_s = now.map_or(0.0, |now| now.as_secs_f64());
        let has = |process| self.selection.has(process);
        for process in self.results.interrupted(has, now_s) {
            let id = self.plan().id(process);
            eprintln!("{id} runs again: its round was interrupted for more than half an hour");
            self.results
                .forget(process)
                .map_err(|error| error.to_string())?;
        }
        Ok(())
    }

    /// Whether the engine failed in the row, or cannot take part in it.
    fn has_ended(&self, process: Process) -> bool {
        let rounds = 1..=self.plan().rows[process.row].pairs;
        let outcomes = rounds.filter_map(|round| self.results.get(Process { round, ..process }));
        outcomes
            .into_iter()
            .any(|outcome| outcome.record().is_none())
    }

    /// Prints what is expected, and refuses what the disk cannot hold. Returns the time in seconds.
    fn forecast(&self, todo: &[Process]) -> Result<f64> {
        let plan = self.plan();
        let known = |process: Process| {
            let needs = plan.needs(process)?;
            let done = self.done_of(process, &needs);
            (done > 0).then(|| needs[..done].to_vec())
        };
        let forecast = plan.forecast(todo, known);
        let free_bytes = self.stores.free_bytes()?;
        progress::forecast(plan, &forecast, free_bytes);
        if forecast.disk_bytes > free_bytes {
            return Err(format!(
                "the disk has too little room: {:.1} GB are needed and {:.1} GB are free. Give a \
                 --folder on another disk, or choose --rows",
                forecast.disk_bytes as f64 / 1e9,
                free_bytes as f64 / 1e9
            ));
        }
        Ok(forecast.seconds)
    }

    /// The names of the process's store and of the engine to which it belongs.
    fn store(&self, process: Process) -> (String, String) {
        let plan = self.plan();
        let owner = plan.owner(process.engine);
        (plan.store_name(process), plan.engines[owner].name.clone())
    }

    /// How many of the steps that a process needs have been done to its store, and nothing else.
    fn done_of(&self, process: Process, needs: &[Step]) -> usize {
        let (store, owner) = self.store(process);
        let has = |done: &usize| {
            let history = self.plan().history_text(&needs[..*done]);
            self.stores.has(&store, &owner, &history)
        };
        (1..=needs.len()).rev().find(has).unwrap_or(0)
    }

    /// Carries out one process and keeps what it found.
    fn one(&mut self, process: Process) -> Result<()> {
        let needs = self.plan().needs(process).unwrap_or_default();
        let done = self.done_of(process, &needs);
        let plan = self.plan();
        let expected_s = plan.seconds(process) + plan.preparation_s(process, &needs[done..]);
        // An earlier round may have failed since the beginning.
        if self.has_ended(process) {
            self.progress.pass(expected_s);
            return Ok(());
        }
        self.progress.begin(self.plan(), process);
        let outcome = match self.fate(process, &needs, done)? {
            Fate::Stopped => return Ok(()),
            Fate::Ended(outcome) => outcome,
        };
        self.progress
            .end(&self.results.plan, process, &outcome, expected_s);
        self.results
            .save(process, outcome)
            .map_err(|error| error.to_string())
    }

    fn fate(&mut self, process: Process, needs: &[Step], done: usize) -> Result<Fate> {
        let plan = self.plan();
        let row = &plan.rows[process.row];
        let settings = plan.settings(row, process.engine);
        let (store, owner) = self.store(process);
        let folder = self.stores.of(&store, &owner);
        let contender = &plan.engines[process.engine];
        let limit = row.memory_limit;
        let mut command = match self.engines.command(contender, &settings, &folder, limit) {
            Ok(command) => command,
            Err(reason) => return Ok(Fate::Ended(without_record(Verdict::Skipped(reason)))),
        };
        if done < needs.len() {
            match self.prepare(process, needs, done)? {
                None if is_stopped() => return Ok(Fate::Stopped),
                None => {}
                Some(reason) => {
                    let reason = format!("its store could not be prepared: {reason}");
                    return Ok(Fate::Ended(without_record(Verdict::Failed(reason))));
                }
            }
        }
        let plan = self.plan();
        let leaves = plan.leaves(process);
        let changes = leaves.is_some() && leaves != plan.needs(process);
        if changes {
            self.stores.forget(&store, &owner)?;
        }
        let before = surroundings::before(self.stores.folder())?;
        let deadline = progress::seconds(Plan::deadline_s(plan.seconds(process)));
        let ended = watch(&mut command, deadline, &STOP)?;
        let conditions = surroundings::after(&before);
        let verdict = match verdict(&ended, &settings) {
            Some(verdict) => verdict,
            None => return Ok(Fate::Stopped),
        };
        if let (true, Verdict::Done(_), Some(leaves)) = (changes, &verdict, leaves) {
            let history = self.plan().history_text(&leaves);
            self.stores.note(&store, &owner, &history)?;
        }
        Ok(Fate::Ended(Outcome {
            verdict,
            took_s: ended.took.as_secs_f64(),
            conditions,
        }))
    }

    /// Prepares the store of a process, to which the first steps have been done. Returns why it
    /// could not be done; `None` if it is as it should be, or if the user wants an end.
    fn prepare(&self, process: Process, needs: &[Step], done: usize) -> Result<Option<String>> {
        let plan = self.plan();
        let (store, owner) = self.store(process);
        let folder = self.stores.of(&store, &owner);
        let engine = plan.owner(process.engine);
        let contender = &plan.engines[engine];
        let spec = &plan.stores[plan.rows[process.row].store];
        self.progress
            .prepare(&plan.history_text(&needs[done..]), &owner);
        if done == 0 {
            self.stores.delete(&store, &owner)?;
        }
        for index in done..needs.len() {
            let step = needs[index];
            let settings = match step {
                Step::Fill => plan.fill_settings(spec, engine),
                Step::Row(row) => plan.settings(&plan.rows[row], engine),
            };
            let mut command = match self.engines.command(contender, &settings, &folder, None) {
                Ok(command) => command,
                Err(reason) => return Ok(Some(reason)),
            };
            self.stores.forget(&store, &owner)?;
            let expected_s = plan.preparation_s(process, &[step]);
            let deadline = progress::seconds(Plan::deadline_s(expected_s));
            let ended = watch(&mut command, deadline, &STOP)?;
            match verdict(&ended, &settings) {
                None => return Ok(None),
                Some(Verdict::Done(_)) => {}
                Some(Verdict::Failed(reason) | Verdict::Skipped(reason)) => {
                    return Ok(Some(format!("{}: {reason}", plan.history_text(&[step]))));
                }
            }
            let history = plan.history_text(&needs[..=index]);
            self.stores.note(&store, &owner, &history)?;
        }
        Ok(None)
    }

    /// Deletes the store that a process used, if no later one needs it.
    fn clean(&self, process: Process, later: &[Process]) -> Result<()> {
        if self.plan().is_last_use(process, later) {
            let (store, owner) = self.store(process);
            self.stores.delete(&store, &owner)?;
        }
        Ok(())
    }

    fn say_how_to_go_on(&self) {
        let command: Vec<String> = std::env::args().collect();
        eprintln!(
            "Stopped. What has finished is kept in {}; to go on, give the same command again:\n  \
             {}",
            self.results.folder().display(),
            command.join(" ")
        );
    }

    /// Prints the tables, and deletes what is left of the stores.
    fn end(self) -> Result<ExitCode> {
        let failures: Vec<String> = self
            .results
            .all()
            .filter(|(process, _)| self.selection.has(*process))
            .filter_map(|(process, outcome)| match &outcome?.verdict {
                Verdict::Failed(reason) => Some((process, reason)),
                _ => None,
            })
            .map(|(process, reason)| format!("{}: {reason}", self.plan().id(process)))
            .collect();
        let folder = self.results.folder().display().to_string();
        self.stores.delete_all()?;
        print!("{}", page(&[self.results]));
        eprintln!(
            "The records are in {folder}; `bench-compare page {folder} --write FILE` writes the \
             page."
        );
        for failure in &failures {
            eprintln!("failed: {failure}");
        }
        Ok(match failures.is_empty() {
            true => ExitCode::SUCCESS,
            false => ExitCode::FAILURE,
        })
    }
}

/// The folder of the stores, beside that of the results.
fn beside(results: &Path) -> PathBuf {
    let mut name = results.as_os_str().to_owned();
    name.push(".stores");
    PathBuf::from(name)
}

fn manifest(plan: &Plan, engines: &Engines, arguments: &RunArguments) -> Result<Manifest> {
    let folder = std::env::current_dir().map_err(|error| error.to_string())?;
    let near = arguments.folder.as_ref().or(arguments.results.as_ref());
    let near = near.and_then(|path| path.ancestors().find(|path| path.is_dir()));
    let machine = Machine::of(near.unwrap_or(&folder));
    let against = arguments.against.as_ref();
    Ok(Manifest {
        before: against.map(|program| program.display().to_string()),
        programs: engines.digests()?,
        command_line: std::env::args().collect(),
        date: date(SystemTime::now()),
        ..Manifest::new(plan, Build::of_this_program(), machine)
    })
}

/// Forgets what has failed or was left out.
fn retry(results: &mut Results, selection: &Selection) -> Result<()> {
    let without: Vec<Process> = results
        .all()
        .filter(|(process, _)| selection.has(*process))
        .filter(|(_, outcome)| outcome.is_some_and(|outcome| outcome.record().is_none()))
        .map(|(process, _)| process)
        .collect();
    for process in without {
        results.forget(process).map_err(|error| error.to_string())?;
    }
    Ok(())
}

fn without_record(verdict: Verdict) -> Outcome {
    Outcome {
        verdict,
        took_s: 0.0,
        conditions: Conditions::default(),
    }
}

/// What a process that has ended found; `None` if it was stopped.
fn verdict(ended: &Ended, settings: &Settings) -> Option<Verdict> {
    let failed = |reason: String| Some(Verdict::Failed(reason));
    match ended.end {
        End::Stopped => return None,
        End::Itself(status) if status.success() => {}
        // It got the signal that this program gets in a moment.
        End::Itself(status) if status.code() == Some(STOPPED.into()) && is_stopped() => {
            return None;
        }
        _ => {
            let reasons = [ended.how(), ended.last_errors()];
            let reasons: Vec<String> = reasons.into_iter().filter(|r| !r.is_empty()).collect();
            return failed(reasons.join(": "));
        }
    }
    let line = ended.output.lines().last().unwrap_or_default();
    let record = match Record::from_json(line) {
        Ok(record) => record,
        Err(error) => return failed(format!("its record cannot be read: {error}")),
    };
    if record.workload != settings.workload.to_string() {
        let (asked, found) = (settings.workload, &record.workload);
        return failed(format!("it was asked for `{asked}` and did `{found}`"));
    }
    if record.errors > 0 || record.verification_failures > 0 {
        return failed(format!(
            "{} calls failed and {} answers were wrong",
            record.errors, record.verification_failures
        ));
    }
    Some(Verdict::Done(Box::new(record)))
}
