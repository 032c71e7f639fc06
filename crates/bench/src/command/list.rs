//! The runs of a call: each workload of the list with its settings.
//!
//! Options are those of all workloads. If one that says how much is done, how records are drawn or
//! when operations start makes no sense for a workload of a list, that workload ignores it, and the
//! output says so.
//!
//! Some workloads have defaults of their own (`Workload::own_defaults`). Those of records, keys and
//! values hold for every workload of the store, and for the fill that makes it. The output names
//! them. A store that an earlier call left keeps what it has.
//!
//! Invariants: every run passes [`Settings::check`]; an option that no workload of the list can
//! follow is refused; a workload that needs a store finds one that has its kind of keys, if the
//! list alone can say so.
//!
//! Threading: plain data.

use std::path::Path;

use super::{CommandError, Program, Result, RunArgs, check_own, option_of, refused};
use crate::engine::Driver;
use crate::experiment::Estimate;
use crate::run::store::Data;
use crate::settings::{Amount, Distribution, Refusal, Settings, Workload};

/// What is done if no workload is named.
const DEFAULT_WORKLOADS: [Workload; 5] = [
    Workload::FillRandom,
    Workload::ReadRandom,
    Workload::ReadMissing,
    Workload::SeekRandom,
    Workload::ReadSeq,
];

/// The settings that a workload of a list may ignore.
const MAY_BE_IGNORED: [&str; 3] = ["amount", "distribution", "arrival"];

/// The settings that decide what a store has. They are the same for all workloads of a store.
const OF_THE_STORE: [&str; 3] = ["records", "key_bytes", "value_bytes"];

/// A run of a call.
#[derive(Debug, Clone, PartialEq)]
pub struct Step {
    /// All settings, with the workload's own where none were given.
    pub settings: Settings,
    /// Whether the user named the workload. One that was not named fills the store for the others,
    /// and its record is not part of the results.
    pub is_asked: bool,
}

/// The runs of a call, in order.
#[derive(Debug, Clone, PartialEq)]
pub struct List {
    /// The runs.
    pub steps: Vec<Step>,
    /// Which workload ignores which option, and which defaults are those of a workload, in
    /// sentences.
    pub notes: Vec<String>,
}

/// The store with which a call begins.
#[derive(Debug, Clone, PartialEq)]
pub enum Begin {
    /// An empty folder of the call's own, which is filled if the first workload reads.
    Fresh,
    /// A folder of the user's, with a store that a benchmark left in it, or without one.
    Given(Option<Data>),
}

impl List {
    /// The runs that the arguments ask for.
    ///
    /// # Errors
    /// Settings that cannot be carried out, and a workload without the store that it needs.
    pub fn of(
        program: &Program<'_>,
        driver: &dyn Driver,
        args: &RunArgs,
        begin: &Begin,
    ) -> Result<List> {
        let mut base = Settings::default();
        args.settings.apply(&mut base)?;
        check_own(driver, &base.engine)?;
        let named = match &args.workloads[..] {
            [] => &DEFAULT_WORKLOADS,
            named => named,
        };
        check_order(program, args, named, begin)?;
        let mut list = List {
            steps: Vec::new(),
            notes: Vec::new(),
        };
        if let Some(fill) = fill_needed(named, begin) {
            let mut data = base.clone();
            let own = own_defaults(named, 0, args);
            own.iter().try_for_each(|own| own.set(&mut data))?;
            let settings = fill_settings(&data, fill);
            settings
                .check(&driver.abilities())
                .map_err(|r| refused(&r))?;
            list.push(settings, false);
        }
        let mut ignored: Vec<Vec<Refusal>> = Vec::new();
        let mut is_store_given = matches!(begin, Begin::Given(_));
        for (position, workload) in named.iter().enumerate() {
            is_store_given &= !workload.makes_store();
            let mut settings = Settings {
                workload: *workload,
                ..base.clone()
            };
            let begins_store = position == 0 || workload.makes_store();
            for own in own_defaults(named, position, args) {
                own.set(&mut settings)?;
                let is_of_the_store = OF_THE_STORE.contains(&own.name);
                if !is_of_the_store || (begins_store && !is_store_given) {
                    list.notes.push(own.note());
                }
            }
            // What the store has takes the place of the defaults.
            if let (true, Begin::Given(Some(data))) = (is_store_given, begin) {
                data.apply(&mut settings, |name| args.settings.has(name));
            }
            let fitted = fit(settings, args, driver, named.len() > 1);
            let (settings, refusals) = fitted.map_err(|refusal| refused(&refusal))?;
            for refusal in &refusals {
                list.notes.push(note(*workload, refusal));
            }
            ignored.push(refusals);
            list.push(settings, true);
        }
        refuse_useless(&ignored)?;
        Ok(list)
    }

    fn push(&mut self, settings: Settings, is_asked: bool) {
        self.steps.push(Step {
            settings: settings.resolved(),
            is_asked,
        });
    }

    /// The most bytes that the store takes on disk, above what is there before the first run.
    pub fn disk_bytes(&self) -> u64 {
        let mut bytes = 0;
        let mut most = 0;
        for step in &self.steps {
            let before = match step.settings.workload.makes_store() {
                true => 0,
                false => bytes,
            };
            bytes = Estimate::of(&step.settings, before).store_bytes;
            most = most.max(bytes);
        }
        most
    }
}

/// A default that a workload has of its own.
struct OwnDefault {
    name: &'static str,
    text: &'static str,
    workload: Workload,
}

impl OwnDefault {
    fn set(&self, settings: &mut Settings) -> Result<()> {
        let set = settings.set(self.name, self.text);
        set.map_err(|error| CommandError::Failed(error.to_string()))
    }

    fn note(&self) -> String {
        let option = option_of(self.name);
        format!(
            "{option} is {}, the default of {}",
            self.text, self.workload
        )
    }
}

/// The defaults that the workload at this position takes for settings that were not given: those
/// of its store, and its own. If several workloads have one for the store, the first one decides.
fn own_defaults(named: &[Workload], position: usize, args: &RunArgs) -> Vec<OwnDefault> {
    let mut found: Vec<OwnDefault> = Vec::new();
    for workload in sharing(named, position) {
        for &(name, text) in workload.own_defaults() {
            let holds = OF_THE_STORE.contains(&name) || *workload == named[position];
            let is_first = found.iter().all(|own| own.name != name);
            if holds && is_first && !args.settings.has(name) {
                found.push(OwnDefault {
                    name,
                    text,
                    workload: *workload,
                });
            }
        }
    }
    found
}

/// The workloads that share a store with the one at this position: from the fill that makes it
/// until the next one.
fn sharing(named: &[Workload], position: usize) -> &[Workload] {
    let makes_store = |workload: &Workload| workload.makes_store();
    let first = named[..=position].iter().rposition(makes_store);
    let next = named[position + 1..].iter().position(makes_store);
    let end = next.map_or(named.len(), |next| position + 1 + next);
    &named[first.unwrap_or(0)..end]
}

/// Settings that the engine can carry out, without what this workload cannot follow.
fn fit(
    mut settings: Settings,
    args: &RunArgs,
    driver: &dyn Driver,
    may_ignore: bool,
) -> std::result::Result<(Settings, Vec<Refusal>), Refusal> {
    let mut ignored: Vec<Refusal> = Vec::new();
    while let Err(refusal) = settings.check(&driver.abilities()) {
        let name = refusal.setting;
        let is_known = ignored.iter().any(|known| known.setting == name);
        let is_option = MAY_BE_IGNORED.contains(&name) && args.settings.has(name);
        if !may_ignore || !is_option || is_known {
            return Err(refusal);
        }
        match name {
            "amount" => settings.amount = None,
            "distribution" => settings.distribution = None,
            _ => settings.arrival = Settings::default().arrival,
        }
        ignored.push(refusal);
    }
    Ok((settings, ignored))
}

fn note(workload: Workload, refusal: &Refusal) -> String {
    let option = option_of(refusal.setting);
    format!(
        "{workload} ignores {option} {}: {}",
        refusal.found, refusal.expected
    )
}

/// Refuses an option that every workload ignores.
fn refuse_useless(ignored: &[Vec<Refusal>]) -> Result<()> {
    for name in MAY_BE_IGNORED {
        let of = |refusals: &Vec<Refusal>| refusals.iter().find(|r| r.setting == name).cloned();
        let all: Vec<Refusal> = ignored.iter().filter_map(of).collect();
        if let (true, Some(first)) = (all.len() == ignored.len(), all.first()) {
            return Err(refused(first));
        }
    }
    Ok(())
}

/// The workload that fills a store for others of the same kind of keys.
fn fill_for(workload: Workload) -> Workload {
    match workload.has_hashed_keys() {
        true => Workload::YcsbLoad,
        false => Workload::FillRandom,
    }
}

/// What has to be done first so that the first workload finds a store.
fn fill_needed(named: &[Workload], begin: &Begin) -> Option<Workload> {
    let first = named.first().filter(|first| !first.makes_store())?;
    (*begin == Begin::Fresh).then(|| fill_for(*first))
}

/// A fill that leaves out no record.
fn fill_settings(base: &Settings, fill: Workload) -> Settings {
    Settings {
        workload: fill,
        amount: Some(Amount::EveryRecord),
        distribution: fill.draws_records().then_some(Distribution::Permutation),
        arrival: Settings::default().arrival,
        threads: 1,
        sync: false,
        ..base.clone()
    }
}

/// Refuses a workload that finds no store, or one with keys of another kind.
fn check_order(
    program: &Program<'_>,
    args: &RunArgs,
    named: &[Workload],
    begin: &Begin,
) -> Result<()> {
    let mut maker = fill_needed(named, begin);
    for (position, workload) in named.iter().enumerate() {
        if workload.makes_store() {
            maker = Some(*workload);
            continue;
        }
        let with = |fill: Workload| {
            let mut fixed = named.to_vec();
            fixed.insert(position, fill);
            command_line(program, args, &fixed)
        };
        match (maker, begin) {
            (None, Begin::Given(None)) => {
                let folder = args.folder.as_deref().unwrap_or(Path::new("."));
                return Err(CommandError::Failed(format!(
                    "`{workload}` reads a store that a fill has made, and {} has none; give: {}",
                    folder.display(),
                    with(fill_for(*workload))
                )));
            }
            (None, Begin::Given(Some(data)))
                if data.has_hashed_keys() != workload.has_hashed_keys() =>
            {
                return Err(CommandError::Usage(format!(
                    "`{workload}` has other keys than the store in the folder; give: {}",
                    with(fill_for(*workload))
                )));
            }
            (Some(maker), _) if maker.has_hashed_keys() != workload.has_hashed_keys() => {
                return Err(CommandError::Usage(format!(
                    "`{workload}` has other keys than the store that `{maker}` makes; give: {}",
                    with(fill_for(*workload))
                )));
            }
            _ => {}
        }
    }
    Ok(())
}

/// The command with these workloads and all options that decide what is done.
fn command_line(program: &Program<'_>, args: &RunArgs, workloads: &[Workload]) -> String {
    let names: Vec<&str> = workloads.iter().map(|workload| workload.name()).collect();
    let mut line = format!("{} {}", program.command, names.join(","));
    if let Some(engine) = &args.output.engine {
        line.push_str(&format!(" --engine {engine}"));
    }
    for (option, text) in args.settings.words() {
        line.push_str(&format!(" {option}={}", quoted(text)));
    }
    if let Some(folder) = &args.folder {
        line.push_str(&format!(" --folder {}", quoted(&folder.to_string_lossy())));
    }
    line
}

/// A word as a shell reads it.
pub fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || "_-.,:/@%+=".contains(c);
    match !word.is_empty() && word.chars().all(is_plain) {
        true => word.into(),
        false => format!("'{}'", word.replace('\'', "'\\''")),
    }
}
