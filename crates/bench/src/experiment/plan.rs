//! What an experiment does, in order: each run with its final settings, its store, how it was
//! shrunk, and an estimate of what it writes.
//!
//! Threading: plain data.

use super::{Experiment, Number};
use crate::settings::{Abilities, Amount, Arrival, Refusal, Settings, Workload};
use crate::settings::{parse_size, seconds_text, size_text};

/// What a closed loop is assumed to write in a second when a time decides its end. The estimate is
/// for the disk, so it is high.
pub const ASSUMED_BYTES_PER_S: f64 = 256.0 * 1024.0 * 1024.0;
/// The target of level 1 in the estimate, and how much larger each further level is.
const LEVEL1_BYTES: f64 = 256.0 * 1024.0 * 1024.0;
const LEVEL_FACTOR: f64 = 10.0;
/// How often a byte is rewritten on its way through one level: on average half the factor, since
/// the target of a level is half full.
const REWRITES_A_LEVEL: f64 = LEVEL_FACTOR / 2.0;
/// The space of a store while compactions run, for each byte of its records.
const SPACE_FACTOR: f64 = 1.5;
/// Log segments, memtables that are flushed and metadata.
const SPACE_BESIDE_TABLES: u64 = 512 << 20;

/// The runs of an experiment with all settings decided.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// The name of the experiment.
    pub experiment: String,
    /// The scale of records, operations and times; 1 is the size of the paper.
    pub scale: f64,
    /// The runs in the order in which they are carried out: all those of one store, in the order of
    /// the file, then those of the next one, so that few stores exist at a time.
    pub runs: Vec<PlannedRun>,
    /// Whether sizes of the engine are scaled as well.
    pub is_engine_scaled: bool,
}

/// One run of a plan.
#[derive(Debug, Clone, PartialEq)]
pub struct PlannedRun {
    /// The index of the run in [`Experiment::runs`].
    pub index: usize,
    /// The label of the run.
    pub label: String,
    /// All settings, with the workload's own where none were given.
    pub settings: Settings,
    /// The number of the store, from 0 in the order in which stores are made.
    pub store: usize,
    /// What the run does with it.
    pub store_use: StoreUse,
    /// Whether no later run uses the store, so that it can be deleted.
    pub is_last_use: bool,
    /// What is smaller than in the paper.
    pub shrunk: Vec<Shrunk>,
    /// What the run writes.
    pub estimate: Estimate,
}

/// What a run does with its store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoreUse {
    /// It makes the store.
    Makes,
    /// It changes a store, for which the file names the run of this index.
    Changes(usize),
    /// It reads a store, for which the file names the run of this index.
    Reads(usize),
}

/// A setting that was shrunk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shrunk {
    /// The name of the setting.
    pub setting: &'static str,
    /// The text of its value in the paper.
    pub paper: String,
    /// The text of its value here.
    pub here: String,
}

impl std::fmt::Display for Shrunk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{}: {} instead of {}",
            self.setting, self.here, self.paper
        )
    }
}

/// What a run is expected to write, at most.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Estimate {
    /// Bytes of keys and values that the workload writes.
    pub user_bytes: u64,
    /// Bytes that the engine writes for them to log and tables.
    pub written_bytes: u64,
    /// Bytes of the store at the end of the run, with the space that compactions need.
    pub store_bytes: u64,
}

/// Why there is no plan.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum PlanError {
    /// The scale is no part of the whole.
    #[error("the scale is {0}; it must be above 0 and at most 1")]
    Scale(f64),
    /// A run that was shrunk makes no sense.
    #[error("run `{label}` at scale {scale}: {refusal}")]
    Refused {
        /// The label of the run.
        label: String,
        /// The scale.
        scale: f64,
        /// What is wrong with its settings.
        refusal: Refusal,
    },
}

impl Experiment {
    /// The runs at this scale; without one, at that of the file. Records, given numbers of
    /// operations and given times become smaller. Memtables, caches and rates stay as they are.
    ///
    /// # Errors
    /// If the scale is not above 0 and at most 1, or if a run makes no sense at it.
    pub fn plan(&self, scale: Option<f64>) -> Result<Plan, PlanError> {
        let scale = scale.unwrap_or(self.scale);
        if !(scale > 0.0 && scale <= 1.0) {
            return Err(PlanError::Scale(scale));
        }
        let mut runs: Vec<PlannedRun> = Vec::new();
        let mut stores = 0;
        for (index, run) in self.runs.iter().enumerate() {
            let mut settings = scaled(&run.settings, scale);
            if self.scale_engine && scale < 1.0 {
                scale_engine(&mut settings, scale);
            }
            settings
                .check(&Abilities::ALL)
                .map_err(|refusal| PlanError::Refused {
                    label: run.label.clone(),
                    scale,
                    refusal,
                })?;
            let store = match run.store {
                Some(made_by) => runs[made_by].store,
                None => {
                    stores += 1;
                    stores - 1
                }
            };
            let store_use = store_use(run.store, settings.workload);
            let before = self.bytes_before(run.store, &runs);
            runs.push(PlannedRun {
                index,
                label: run.label.clone(),
                shrunk: shrunk(&run.settings.resolved(), &settings.resolved()),
                estimate: Estimate::of(&settings, before),
                settings: settings.resolved(),
                store,
                store_use,
                is_last_use: true,
            });
        }
        runs.sort_by_key(|run| run.store);
        mark_last_uses(&mut runs);
        Ok(Plan {
            experiment: self.name.clone(),
            scale,
            runs,
            is_engine_scaled: self.scale_engine && scale < 1.0,
        })
    }

    /// The bytes of the store that a run uses, after the last run on it.
    fn bytes_before(&self, made_by: Option<usize>, runs: &[PlannedRun]) -> u64 {
        let Some(made_by) = made_by else { return 0 };
        let store = runs[made_by].store;
        let same = runs.iter().rev().find(|run| run.store == store);
        same.map_or(0, |run| run.estimate.store_bytes)
    }
}

fn mark_last_uses(runs: &mut [PlannedRun]) {
    for index in 0..runs.len() {
        let store = runs[index].store;
        runs[index].is_last_use = runs[index + 1..].iter().all(|later| later.store != store);
    }
}

fn store_use(made_by: Option<usize>, workload: Workload) -> StoreUse {
    match made_by {
        None => StoreUse::Makes,
        Some(run) if workload.writes() || workload == Workload::Compact => StoreUse::Changes(run),
        Some(run) => StoreUse::Reads(run),
    }
}

/// The settings with fewer records, operations and seconds. What the workload decides by itself
/// follows from the number of records.
fn scaled(settings: &Settings, scale: f64) -> Settings {
    let count = |count: u64| ((count as f64 * scale).round() as u64).clamp(1, count.max(1));
    Settings {
        records: count(settings.records),
        amount: settings.amount.map(|amount| match amount {
            _ if scale == 1.0 => amount,
            Amount::Operations(operations) => Amount::Operations(count(operations)),
            Amount::Seconds(seconds) => Amount::Seconds(shorter(seconds, scale)),
            Amount::EveryRecord => Amount::EveryRecord,
        }),
        ..settings.clone()
    }
}

/// The sizes of the engine that are scaled, with the smallest that still makes sense: an entry of
/// 64 KiB has to fit in a memtable several times, and level 1 has several tables. All are given in
/// files by these names.
const SCALED_SIZES: [(&str, u64); 4] = [
    ("engine.memtable_bytes", 512 << 10),
    ("engine.cache_bytes", 512 << 10),
    ("engine.own.table_bytes", 512 << 10),
    ("engine.own.level1_bytes", 2 << 20),
];

/// Scales sizes of the engine as its data, so that a small store has the levels of a large one.
fn scale_engine(settings: &mut Settings, scale: f64) {
    for (name, least) in SCALED_SIZES {
        // An own setting that is not given stays the engine's default.
        let size = settings
            .get(name)
            .ok()
            .and_then(|text| parse_size(&text).ok());
        let Some(size) = size.filter(|size| *size > least) else {
            continue;
        };
        let smaller = ((size as f64 * scale) as u64).max(least);
        // Sizes of tables are powers of two, and others may be.
        let _ = settings.set(name, &size_text(smaller.next_power_of_two()));
    }
}

/// A shorter time, in whole seconds if it is longer than one.
fn shorter(seconds: f64, scale: f64) -> f64 {
    let shorter = seconds * scale;
    if shorter >= 1.0 {
        shorter.round()
    } else {
        shorter
    }
}

fn shrunk(paper: &Settings, here: &Settings) -> Vec<Shrunk> {
    let differs = |setting: &'static str| {
        let text = |settings: &Settings| settings.get(setting).unwrap_or_default();
        let (paper, here) = (text(paper), text(here));
        (paper != here).then_some(Shrunk {
            setting,
            paper,
            here,
        })
    };
    let names = ["records", "amount"].into_iter();
    let sizes = SCALED_SIZES.into_iter().map(|(name, _)| name);
    names.chain(sizes).filter_map(differs).collect()
}

impl Estimate {
    /// The estimate of a run on a store of this size.
    pub fn of(settings: &Settings, store_bytes: u64) -> Estimate {
        estimate(settings, store_bytes)
    }
}

fn estimate(settings: &Settings, store_bytes: u64) -> Estimate {
    let entry = settings.entry_bytes();
    let operations = operations_expected(settings, entry);
    let user = operations * written_part(settings) * entry;
    let data = settings.records as f64 * entry * stored_part(settings);
    let levels = (data / LEVEL1_BYTES).log(LEVEL_FACTOR).ceil().max(0.0) + 1.0;
    // Once to the log, once by the flush, and then through the levels.
    let written = match settings.workload {
        Workload::Ingest => user,
        Workload::Compact => data,
        _ => user * (2.0 + REWRITES_A_LEVEL * levels),
    };
    let inserted = if settings.workload.inserts() {
        user
    } else {
        0.0
    };
    let full = (data + inserted) * SPACE_FACTOR;
    let beside = if settings.workload.writes() {
        SPACE_BESIDE_TABLES
    } else {
        0
    };
    let own = if settings.workload.makes_store() || settings.workload.writes() {
        (full as u64).saturating_add(beside)
    } else {
        0
    };
    Estimate {
        user_bytes: user as u64,
        written_bytes: written as u64,
        store_bytes: store_bytes.max(own),
    }
}

/// The operations of a run, or a high guess if a time decides.
fn operations_expected(settings: &Settings, entry: f64) -> f64 {
    if let Some(operations) = settings.operations() {
        return operations as f64;
    }
    let Amount::Seconds(seconds) = settings.amount() else {
        return 0.0;
    };
    let guess = ASSUMED_BYTES_PER_S / entry;
    let rate = match settings.arrival() {
        Arrival::Closed => guess,
        Arrival::Constant(rate) | Arrival::Poisson(rate) => rate,
        Arrival::Phases(phases) => {
            let cycle: f64 = phases.iter().map(|(seconds, _)| seconds).sum();
            phases
                .iter()
                .map(|(seconds, rate)| seconds * rate)
                .sum::<f64>()
                / cycle
        }
    };
    rate.min(guess) * seconds
}

/// The part of operations that write an entry.
fn written_part(settings: &Settings) -> f64 {
    match settings.workload {
        Workload::YcsbA | Workload::YcsbF | Workload::Queue => 0.5,
        Workload::YcsbB | Workload::YcsbD | Workload::YcsbE => 0.05,
        Workload::Mixgraph => 0.14,
        Workload::ReadRandomWriteRandom => 1.0 - settings.read_ratio,
        // Opening the store, and compacting it, write nothing of the user's.
        workload if workload.writes() => 1.0,
        _ => 0.0,
    }
}

/// The part of its size that an entry takes on disk.
fn stored_part(settings: &Settings) -> f64 {
    use crate::settings::Compression;
    match settings.engine.compression {
        Compression::None => 1.0,
        Compression::Lz4 | Compression::Zstd => settings.compression_ratio,
    }
}

impl Plan {
    /// The bytes that all runs together are expected to write.
    pub fn written_bytes(&self) -> u64 {
        let all = self.runs.iter().map(|run| run.estimate.written_bytes);
        all.fold(0, u64::saturating_add)
    }

    /// The most bytes that the stores take at once, if each is deleted after its last use.
    pub fn disk_bytes(&self) -> u64 {
        let mut sizes = vec![0; self.runs.len()];
        let mut most = 0;
        for run in &self.runs {
            sizes[run.store] = run.estimate.store_bytes;
            most = most.max(sizes.iter().copied().fold(0, u64::saturating_add));
            if run.is_last_use {
                sizes[run.store] = 0;
            }
        }
        most
    }

    /// The time that is certain: that of runs which a time or a rate ends, in seconds. The other
    /// runs take as long as the engine needs.
    pub fn seconds_at_least(&self) -> f64 {
        let seconds = |run: &PlannedRun| match run.settings.amount() {
            Amount::Seconds(seconds) => seconds,
            _ => 0.0,
        };
        self.runs.iter().map(seconds).sum()
    }

    /// A line about the scale to print beside results; `None` at the size of the paper.
    pub fn scale_note(&self) -> Option<String> {
        (self.scale < 1.0).then(|| {
            let least = match self.seconds_at_least() {
                0.0 => String::new(),
                seconds => format!(" At least {} of runs.", seconds_text(seconds)),
            };
            let engine = match self.is_engine_scaled {
                false => "memtables and caches are as in the file",
                true => {
                    "memtables, tables, levels and caches are smaller as well, so that the store \
                     has as many levels"
                }
            };
            format!(
                "Scaled to {} of the paper's records and times; {engine}.{least}",
                self.scale
            )
        })
    }
}

impl Number {
    /// The number, or the middle of the range.
    pub fn middle(self) -> f64 {
        match self {
            Number::Exact(number) => number,
            Number::Range(from, to) => (from + to) / 2.0,
        }
    }
}
