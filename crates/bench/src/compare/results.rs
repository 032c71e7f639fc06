//! The folder of a comparison's results: one file for each process that has finished.
//!
//! `manifest.json` says from what the results are: the plan, the program and the machine. The other
//! files have the names of processes, such as `128.readrandom.rocksdb.2.json`. Each is written
//! beside its place, synced and renamed, so a file that is there is whole.
//!
//! A comparison that is complete can be packed into one file (`archive.rs`).
//!
//! Invariant: all results of a folder are of one plan, one program and one machine.
//!
//! Threading: one thread of one process writes; the program takes a lock.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::{Conditions, PAUSE_MAX_S, Plan, Process, archive, longest_pause_s};
use crate::measure::machine::{Build, Machine};
use crate::record::Record;

const FORMAT: &str = "siltstone comparison 1";
const MANIFEST: &str = "manifest.json";
const ENDING: &str = ".json";
/// What files are called while they are written.
const UNFINISHED: &str = ".new";

/// From what results are.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// The version of the folder's form.
    pub format: String,
    /// The name of the plan.
    pub plan_name: String,
    /// The text of the plan's file.
    pub plan: String,
    /// Whether an earlier siltstone takes part, and which program it is.
    pub before: Option<String>,
    /// The digest of this program, and those of the other programs that carry out workloads, by the
    /// names of their engines.
    pub programs: BTreeMap<String, String>,
    /// How this program was built, and from which commit.
    pub build: Build,
    /// The machine at the first start.
    pub machine: Machine,
    /// The command that began the comparison.
    pub command_line: Vec<String>,
    /// When it began, in UTC, in the form of RFC 3339.
    pub date: String,
}

impl Manifest {
    /// The manifest of a comparison that begins now. The format is filled in.
    pub fn new(plan: &Plan, build: Build, machine: Machine) -> Manifest {
        Manifest {
            format: FORMAT.into(),
            plan_name: plan.name.clone(),
            plan: plan.text.clone(),
            before: None,
            programs: BTreeMap::new(),
            build,
            machine,
            command_line: Vec::new(),
            date: String::new(),
        }
    }

    /// The first thing in which results of the two manifests must not be mixed: what it is, what
    /// the folder has, and what this run has.
    fn difference(&self, now: &Manifest) -> Option<(&'static str, String, String)> {
        let text = |value: &dyn std::fmt::Debug| format!("{value:?}");
        let build = |m: &Manifest| {
            let commit = m.build.commit.clone().unwrap_or("an unknown commit".into());
            match m.build.is_modified {
                Some(true) => format!("{commit} with changes"),
                _ => commit,
            }
        };
        // Main memory differs by some pages from boot to boot.
        let machine = |m: &Manifest| {
            let memory = m.machine.memory_bytes.map(|bytes| bytes >> 28);
            let (cpu, cores) = (&m.machine.cpu, m.machine.cores);
            text(&(
                cpu,
                cores,
                memory,
                &m.machine.kernel,
                &m.machine.file_system,
            ))
        };
        let pairs = [
            ("form", self.format.clone(), now.format.clone()),
            ("plan", self.plan_name.clone(), now.plan_name.clone()),
            ("commit", build(self), build(now)),
            ("machine", machine(self), machine(now)),
        ];
        if let Some((what, had, has)) = pairs.into_iter().find(|(_, had, has)| had != has) {
            return Some((what, had, has));
        }
        if self.plan != now.plan {
            return Some(("plan's text", "an earlier one".into(), "another one".into()));
        }
        let others = self.programs.iter().find_map(|(name, digest)| {
            let other = now.programs.get(name).filter(|other| *other != digest)?;
            Some((name, digest, other))
        });
        others.map(|(name, had, has)| ("program", format!("{name} {had}"), has.clone()))
    }
}

/// How a process ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// It found figures.
    Done(Box<Record>),
    /// It failed, hung or was answered wrongly. No further process of the row runs for the engine.
    Failed(String),
    /// The engine cannot take part in the row, for this reason.
    Skipped(String),
}

/// What one process found.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// How it ended.
    pub verdict: Verdict,
    /// Its time from start to end, in seconds.
    pub took_s: f64,
    /// What the machine was like around it.
    pub conditions: Conditions,
}

impl Outcome {
    /// The record, if it found figures.
    pub fn record(&self) -> Option<&Record> {
        match &self.verdict {
            Verdict::Done(record) => Some(record),
            _ => None,
        }
    }
}

/// Why a folder of results cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ResultsError {
    /// Files cannot be read or written.
    #[error("{}: {error}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
    /// A file is not what was written.
    #[error("{} is damaged ({error}); delete it, and its process runs again", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        error: serde_json::Error,
    },
    /// A file with the results of a whole comparison is not what was written.
    #[error("{}, line {line} of its unpacked text: {what}", path.display())]
    Archive {
        /// The file.
        path: PathBuf,
        /// The number of the line, from 1.
        line: u64,
        /// What was expected and found there.
        what: String,
    },
    /// The folder has no manifest.
    #[error(
        "{0} has no results of a comparison; `bench-compare run PLAN --results {0}` makes some"
    )]
    None(PathBuf),
    /// The folder has other files.
    #[error("{} has files, and no results of a comparison; give another --results", .0.display())]
    Foreign(PathBuf),
    /// The results are of something else.
    #[error(
        "{} has results whose {what} is {had}, and now it is {has}; figures of both must not be \
         mixed. Give another --results, or delete the folder to begin again", folder.display()
    )]
    Other {
        /// The folder.
        folder: PathBuf,
        /// What differs.
        what: &'static str,
        /// What the folder has.
        had: String,
        /// What this run has.
        has: String,
    },
    /// A file with results has a process that its plan does not have.
    #[error("{} has the process {process}, which its plan does not have", path.display())]
    Unknown {
        /// The file.
        path: PathBuf,
        /// The name of the process.
        process: String,
    },
    /// The plan in the manifest cannot be read by this program.
    #[error("the plan of {} cannot be read by this program: {error}", folder.display())]
    Plan {
        /// The folder.
        folder: PathBuf,
        /// What is wrong.
        error: super::PlanFileError,
    },
}

/// The results of a comparison.
#[derive(Debug)]
pub struct Results {
    folder: PathBuf,
    /// From what they are.
    pub manifest: Manifest,
    /// The plan, with `before` if it takes part.
    pub plan: Plan,
    outcomes: BTreeMap<String, Outcome>,
}

pub(super) fn about(path: &Path) -> impl FnOnce(io::Error) -> ResultsError + '_ {
    |error| ResultsError::Io {
        path: path.into(),
        error,
    }
}

/// Reads a file of JSON.
fn read_json<T: for<'a> Deserialize<'a>>(path: &Path) -> Result<T, ResultsError> {
    let bytes = fs::read(path).map_err(about(path))?;
    serde_json::from_slice(&bytes).map_err(|error| ResultsError::Damaged {
        path: path.into(),
        error,
    })
}

/// Writes a file that is there as a whole or not at all, also after a loss of power.
fn write_json(path: &Path, value: &impl Serialize) -> Result<(), ResultsError> {
    let mut name = path.as_os_str().to_owned();
    name.push(UNFINISHED);
    let unfinished = PathBuf::from(name);
    let write = || {
        let mut bytes = serde_json::to_vec(value)?;
        bytes.push(b'\n');
        let mut file = fs::File::create(&unfinished)?;
        file.write_all(&bytes)?;
        file.sync_all()?;
        fs::rename(&unfinished, path)?;
        match path.parent() {
            Some(folder) => fs::File::open(folder)?.sync_all(),
            None => Ok(()),
        }
    };
    write().map_err(about(path))
}

/// The plan of results, with `before` if it takes part.
fn plan_of(folder: &Path, manifest: &Manifest) -> Result<Plan, ResultsError> {
    let plan = Plan::parse(&format!("{}.toml", manifest.plan_name), &manifest.plan);
    let mut plan = plan.map_err(|error| ResultsError::Plan {
        folder: folder.into(),
        error,
    })?;
    if manifest.before.is_some() {
        plan.add_before();
    }
    Ok(plan)
}

impl Results {
    /// Begins a comparison in a folder, or goes on with the one that is there.
    ///
    /// # Errors
    /// If the folder has other files, or results of another plan, program or machine.
    pub fn open(folder: &Path, manifest: Manifest) -> Result<Results, ResultsError> {
        let path = folder.join(MANIFEST);
        if path.exists() {
            let mut results = Results::read(folder)?;
            if let Some((what, had, has)) = results.manifest.difference(&manifest) {
                return Err(ResultsError::Other {
                    folder: folder.into(),
                    what,
                    had,
                    has,
                });
            }
            // An engine that was not there at first may be there now.
            let known = results.manifest.programs.len();
            results.manifest.programs.extend(manifest.programs);
            let has_before = results.manifest.before.is_none() && manifest.before.is_some();
            if has_before {
                results.manifest.before = manifest.before;
                results.plan.add_before();
            }
            if has_before || results.manifest.programs.len() != known {
                write_json(&path, &results.manifest)?;
            }
            return Ok(results);
        }
        fs::create_dir_all(folder).map_err(about(folder))?;
        let mut entries = fs::read_dir(folder).map_err(about(folder))?;
        if entries.next().is_some() {
            return Err(ResultsError::Foreign(folder.into()));
        }
        write_json(&path, &manifest)?;
        Results::read(folder)
    }

    /// Reads the results in a folder, or those in a file that [`Results::write_archive`] wrote.
    ///
    /// # Errors
    /// If there are none, or if a file is damaged.
    pub fn read(path: &Path) -> Result<Results, ResultsError> {
        match path.is_file() {
            true => Results::read_file(path),
            false => Results::read_folder(path),
        }
    }

    fn read_file(path: &Path) -> Result<Results, ResultsError> {
        let (manifest, outcomes) = archive::read(path)?;
        let plan = plan_of(path, &manifest)?;
        let names: BTreeSet<String> = plan.processes().into_iter().map(|p| plan.id(p)).collect();
        match outcomes.keys().find(|process| !names.contains(*process)) {
            Some(unknown) => Err(ResultsError::Unknown {
                path: path.into(),
                process: unknown.clone(),
            }),
            None => Ok(Results {
                folder: path.into(),
                manifest,
                plan,
                outcomes,
            }),
        }
    }

    fn read_folder(folder: &Path) -> Result<Results, ResultsError> {
        let path = folder.join(MANIFEST);
        if !path.exists() {
            return Err(ResultsError::None(folder.into()));
        }
        let manifest: Manifest = read_json(&path)?;
        let plan = plan_of(folder, &manifest)?;
        let mut outcomes = BTreeMap::new();
        for process in plan.processes() {
            let id = plan.id(process);
            let path = folder.join(format!("{id}{ENDING}"));
            if path.exists() {
                outcomes.insert(id, read_json(&path)?);
            }
        }
        Ok(Results {
            folder: folder.into(),
            manifest,
            plan,
            outcomes,
        })
    }

    /// What a process found, if it has finished.
    pub fn get(&self, process: Process) -> Option<&Outcome> {
        self.outcomes.get(&self.plan.id(process))
    }

    /// All processes of the plan, in their order, and what they found.
    pub fn all(&self) -> impl Iterator<Item = (Process, Option<&Outcome>)> {
        let processes = self.plan.processes();
        processes
            .into_iter()
            .map(|process| (process, self.get(process)))
    }

    /// Keeps what a process found.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn save(&mut self, process: Process, outcome: Outcome) -> Result<(), ResultsError> {
        let id = self.plan.id(process);
        write_json(&self.folder.join(format!("{id}{ENDING}")), &outcome)?;
        self.outcomes.insert(id, outcome);
        Ok(())
    }

    /// Forgets what a process found, so that it runs again.
    ///
    /// # Errors
    /// If the file cannot be deleted.
    pub fn forget(&mut self, process: Process) -> Result<(), ResultsError> {
        let id = self.plan.id(process);
        let path = self.folder.join(format!("{id}{ENDING}"));
        if self.outcomes.remove(&id).is_some() {
            fs::remove_file(&path).map_err(about(&path))?;
        }
        Ok(())
    }

    /// The rounds that were interrupted for longer than [`PAUSE_MAX_S`]: some of their processes
    /// have finished, and others have not. `has` says which processes are to be looked at, and
    /// `now_s` is the present time in seconds since 1970. The processes that have finished are
    /// returned, because they have to run again to be compared with the rest of their round.
    pub fn interrupted(&self, has: impl Fn(Process) -> bool, now_s: f64) -> Vec<Process> {
        let mut rounds: BTreeMap<(usize, u32), Vec<Process>> = BTreeMap::new();
        for process in self.plan.processes().into_iter().filter(|p| has(*p)) {
            let round = rounds.entry((process.row, process.round)).or_default();
            round.push(process);
        }
        let mut found = Vec::new();
        for processes in rounds.into_values() {
            let outcomes = processes.iter().filter_map(|process| self.get(*process));
            let done: Vec<Process> = processes
                .iter()
                .copied()
                .filter(|process| self.get(*process).is_some_and(|o| o.record().is_some()))
                .collect();
            let is_open = processes.iter().any(|process| self.get(*process).is_none());
            let pause_s = longest_pause_s(outcomes, Some(now_s).filter(|_| is_open));
            if is_open && pause_s.is_some_and(|pause_s| pause_s > PAUSE_MAX_S) {
                found.extend(done);
            }
        }
        found
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }
}
