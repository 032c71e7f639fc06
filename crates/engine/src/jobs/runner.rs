//! What all jobs of a store share: the storage of their outputs, the open number that fences names,
//! the sides, the limits, and the numbers of attempts.
//!
//! [`crate::jobs::build`] makes jobs. [`crate::jobs::attempt`] has them executed, and verifies
//! their outcomes.
//!
//! Invariant: each attempt number is given out once.
//!
//! Threading: shared by all workers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};

use siltstone_storage::{DirectStorage, Epoch, Mutex, Runtime, Storage};
use siltstone_table::exec::{CpuExecutor, Executor, SplitExecutor, SubjobOrder};
use siltstone_table::job::OutputPrefix;
use siltstone_table::job::outcome::OutputTable;
use siltstone_table::job::verify::Sample;

use crate::env::outage::Outage;
use crate::env::repeating::not_waiting;
use crate::formats::directories::{REDIRECT, Storages};
use crate::formats::manifest::StoreId;
use crate::jobs::carry_over::CarriedOver;
use crate::jobs::pauses::Pauses;
use crate::jobs::rate::RateLimiter;
use crate::jobs::sides::{SideId, Sides};
use crate::tree::pick::Division;
use crate::types::event::Events;
use crate::types::metrics::Counter;
use crate::types::options::{DirectIo, FlushVerify, Options, StallPolicy, ThirdScore};

/// Blocks of each flushed table that are compared with the memtable under [`FlushVerify::Sample`].
const COMPARED_BLOCKS: usize = 16;

/// Whether each side's next outcome is checked completely: at first false, because no side has
/// lied.
fn checks_whole(sides: &Sides) -> Vec<AtomicBool> {
    (0..=sides.host()).map(|_| AtomicBool::new(false)).collect()
}

/// A subjob is worth its overhead if it has at least this many input bytes. In a store with small
/// tables, whose compactions are small, two tables are enough.
const SUBJOB_MIN_BYTES: u64 = 8 << 20;

/// The least that this limit becomes, however small the tables are.
const SUBJOB_LEAST_BYTES: u64 = 1 << 20;

/// The smallest part of a job that is divided between two sides.
const DIVIDED_LEAST_BYTES: u64 = 64 << 10;

/// Counts of what was compared with the inputs, for tables of executors other than the host's own.
#[derive(Default)]
pub(crate) struct Checked {
    /// Ranges of tables whose contents were derived again from the inputs.
    pub(crate) place_count: Counter,
    /// The bytes of inputs and tables that were read for them.
    pub(crate) bytes: Counter,
}

/// The executors that a store is given.
#[derive(Default)]
pub(crate) struct Executors {
    /// The sides other than the host.
    pub(crate) others: Vec<Arc<dyn Executor>>,
    /// The executor that may run compactions in place of the host's cores.
    pub(crate) separated: Option<Arc<dyn Executor>>,
}

/// See the module.
pub(crate) struct JobRunner {
    pub(super) runtime: Runtime,
    /// The storage of the outputs at each location.
    outputs: Vec<Arc<dyn Storage>>,
    /// Whether a flush of recovered data may go to the second location if the first one is full.
    recovers_elsewhere: bool,
    /// The storage of location 0, for jobs on other sides. Its calls do not wait until it can be
    /// reached.
    outputs_elsewhere: Arc<dyn Storage>,
    pub(super) outage: Arc<Outage>,
    pub(super) epoch: Epoch,
    /// The id of the store, for executors on other machines.
    pub(super) store: [u8; 16],
    pub(crate) open_number: u64,
    attempts: AtomicU64,
    subjobs_max: AtomicUsize,
    /// Whether the policy allows only one subjob per job, on each side.
    has_one_subjob: bool,
    /// Whether the policy divides each job between two sides.
    pub(super) is_divided: bool,
    /// The order in which subjobs begin.
    pub(crate) subjob_order: SubjobOrder,
    /// A [`FlushVerify`].
    flush_verify: AtomicU8,
    /// [`SUBJOB_MIN_BYTES`], or less in trials, whose jobs are small.
    pub(crate) subjob_min_bytes: AtomicU64,
    pub(crate) sides: Sides,
    /// The executor that may run compactions in place of the host's cores, if the policy allows it.
    pub(super) separated: Option<Arc<dyn Executor>>,
    /// When that executor is not asked, because it failed several times in a row.
    pub(super) separated_pauses: Mutex<Pauses>,
    /// Whether compactions of the host read columns first.
    pub(super) columns_first: bool,
    /// For each side, whether its next outcome is checked completely.
    checks_whole: Vec<AtomicBool>,
    /// What was compared with the inputs of jobs.
    pub(crate) checked: Checked,
    /// Counts of what was carried over to tables of jobs on other sides.
    pub(crate) carried_over: CarriedOver,
    /// The maximum number of bytes of blocks that are carried over for one job.
    carry_over_bytes: AtomicU64,
    /// Limits how much compactions read and write per second.
    pub(crate) rate: Arc<RateLimiter>,
}

/// Wraps each executor in one that divides its jobs between the host and that executor.
fn split(runtime: &Runtime, executors: Vec<Arc<dyn Executor>>) -> Vec<Arc<dyn Executor>> {
    let divided = |other: Arc<dyn Executor>| {
        let host = Arc::new(CpuExecutor::new());
        let name = format!("{}+cpu", other.name());
        Arc::new(SplitExecutor::new(runtime, &name, host, other)) as Arc<dyn Executor>
    };
    executors.into_iter().map(divided).collect()
}

impl JobRunner {
    pub(crate) fn new(
        runtime: &Runtime,
        (storages, at_once, outage): (&Storages, &Storages, &Arc<Outage>),
        epoch: Epoch,
        open_number: u64,
        options: &Options,
        executors: Executors,
        events: &Arc<Events>,
    ) -> JobRunner {
        let Executors {
            others: executors,
            separated,
        } = executors;
        // Tables behind a link are not read in this way, because blocks of which some entries are
        // kept would cross the link twice.
        let columns_first = options.schedule.columns_first && separated.is_none();
        let separated = separated.filter(|_| options.schedule.separated_transfer);
        let outputs = |tables: &Arc<dyn Storage>| -> Arc<dyn Storage> {
            match options.direct_io {
                DirectIo::None => tables.clone(),
                DirectIo::Compaction | DirectIo::All => {
                    Arc::new(DirectStorage::new(tables.clone()))
                }
            }
        };
        // The limit of open files is needed only for jobs on other sides.
        let open_objects_max = match executors.is_empty() {
            true => None,
            false => storages.tables.open_objects_max(),
        };
        let executors = match options.schedule.third_score {
            ThirdScore::Split => split(runtime, executors),
            _ => executors,
        };
        let sides = Sides::new(runtime, executors, events, open_objects_max);
        JobRunner {
            runtime: runtime.clone(),
            outputs: storages
                .locations()
                .map(|(_, tables)| outputs(tables))
                .collect(),
            recovers_elsewhere: options.stall_policy == StallPolicy::Redirect
                && storages.usable_redirect().is_some(),
            outputs_elsewhere: not_waiting(&outputs(&at_once.tables), outage),
            outage: outage.clone(),
            epoch,
            store: [0; 16],
            open_number,
            attempts: AtomicU64::new(1),
            subjobs_max: AtomicUsize::new(options.subjobs_max as usize),
            is_divided: options.schedule.third_score == ThirdScore::Split,
            has_one_subjob: !options.schedule.multi_threading,
            subjob_order: match options.schedule.fourth_score {
                true => SubjobOrder::Sizes,
                false => SubjobOrder::Keys,
            },
            flush_verify: AtomicU8::new(options.flush_verify as u8),
            subjob_min_bytes: AtomicU64::new(SUBJOB_MIN_BYTES),
            checks_whole: checks_whole(&sides),
            checked: Checked::default(),
            carried_over: CarriedOver::default(),
            carry_over_bytes: AtomicU64::new(options.carry_over_bytes),
            sides,
            separated,
            separated_pauses: runtime.mutex(Pauses::default()),
            columns_first,
            rate: RateLimiter::new(runtime, options.background_bytes_per_s),
        }
    }

    /// Whether an executor may stand in for the host's cores.
    pub(crate) fn has_separated(&self) -> bool {
        self.separated.is_some()
    }

    /// The same runner for the jobs of the store with this id.
    pub(crate) fn of_store(self, id: StoreId) -> JobRunner {
        JobRunner {
            store: id.0.to_be_bytes(),
            ..self
        }
    }

    /// A runner with the same settings that writes tables to another storage, on the host's cores.
    pub(crate) fn onto(&self, outputs: &Arc<dyn Storage>, epoch: Epoch, open_number: u64) -> Self {
        let sides = self.sides.host_only();
        JobRunner {
            runtime: self.runtime.clone(),
            outputs: vec![outputs.clone()],
            recovers_elsewhere: false,
            outputs_elsewhere: outputs.clone(),
            outage: self.outage.clone(),
            epoch,
            store: self.store,
            open_number,
            attempts: AtomicU64::new(1),
            subjobs_max: AtomicUsize::new(self.subjobs_max.load(Ordering::Relaxed)),
            has_one_subjob: self.has_one_subjob,
            is_divided: false,
            subjob_order: self.subjob_order,
            flush_verify: AtomicU8::new(self.flush_verify.load(Ordering::Relaxed)),
            subjob_min_bytes: AtomicU64::new(SUBJOB_MIN_BYTES),
            checks_whole: checks_whole(&sides),
            checked: Checked::default(),
            carried_over: CarriedOver::default(),
            carry_over_bytes: AtomicU64::new(0),
            sides,
            separated: None,
            separated_pauses: self.runtime.mutex(Pauses::default()),
            columns_first: false,
            rate: self.rate.clone(),
        }
    }

    /// Changes how many subjobs of one job may run at once, for later jobs.
    pub(crate) fn set_subjobs_max(&self, subjobs_max: usize) {
        self.subjobs_max.store(subjobs_max, Ordering::Relaxed);
    }

    /// The smallest subjob of a job that makes tables of `table_bytes`.
    pub(super) fn subjob_min_bytes(&self, division: Division, table_bytes: u64) -> u64 {
        let enough = match division {
            Division::InTwo { .. } => DIVIDED_LEAST_BYTES,
            Division::Equal(_) => table_bytes.saturating_mul(2).max(SUBJOB_LEAST_BYTES),
        };
        self.subjob_min_bytes.load(Ordering::Relaxed).min(enough)
    }

    /// Changes how many bytes of blocks are carried over, for later jobs.
    pub(crate) fn set_carry_over_bytes(&self, bytes: u64) {
        self.carry_over_bytes.store(bytes, Ordering::Relaxed);
    }

    /// The maximum number of bytes of blocks that are carried over for one job.
    pub(super) fn carry_over_bytes(&self) -> u64 {
        self.carry_over_bytes.load(Ordering::Relaxed)
    }

    /// Changes how much of a flush is compared with its memtable, for later flushes.
    pub(crate) fn set_flush_verify(&self, flush_verify: FlushVerify) {
        self.flush_verify
            .store(flush_verify as u8, Ordering::Relaxed);
    }

    /// How much of a flush's tables is compared with the memtable.
    pub(super) fn flush_sample(&self) -> Sample {
        match self.flush_verify.load(Ordering::Relaxed) {
            all if all == FlushVerify::All as u8 => Sample::All,
            sample if sample == FlushVerify::Sample as u8 => Sample::Drawn {
                blocks: COMPARED_BLOCKS,
                seed: self.runtime.random_u64(),
            },
            _ => Sample::None,
        }
    }

    /// Whether the next outcome of this side is checked completely: because its executor says so,
    /// or because an outcome of this side was rejected, and none was believed after a complete
    /// check since then.
    pub(super) fn checks_whole(&self, side: SideId) -> bool {
        self.checks_whole[side].load(Ordering::Relaxed) || self.sides.is_verified_whole(side)
    }

    pub(super) fn set_checks_whole(&self, side: SideId, checks_whole: bool) {
        self.checks_whole[side].store(checks_whole, Ordering::Relaxed);
    }

    /// The storage that tables are written to, at location 0.
    pub(crate) fn outputs(&self) -> &Arc<dyn Storage> {
        self.outputs_at(0)
    }

    /// The storage that tables at a location are written to.
    pub(crate) fn outputs_at(&self, location: u32) -> &Arc<dyn Storage> {
        // The store has every location that a flush is given. Tables that were written to one
        // location and recorded at another would be lost.
        &self.outputs[location as usize]
    }

    /// The location for a flush of recovered data if there is no room at the first one.
    pub(super) fn other_location(&self) -> Option<u32> {
        self.recovers_elsewhere.then_some(REDIRECT)
    }

    /// The storage that executors other than the host's own write tables to. They must be able to
    /// stop at any time, and their jobs run on the host if the storage cannot be reached.
    pub(super) fn outputs_elsewhere(&self) -> &Arc<dyn Storage> {
        &self.outputs_elsewhere
    }

    /// The maximum number of subjobs that a job for this side is cut into.
    pub(crate) fn parallelism(&self, side: SideId) -> usize {
        if self.has_one_subjob {
            return 1;
        }
        if side == self.sides.host() {
            return self.subjobs_max.load(Ordering::Relaxed);
        }
        self.sides.parallelism(side)
    }

    /// The number of tasks that a job on this side may use at once. A side may use several tasks
    /// for one subjob, which then overlap.
    pub(crate) fn tasks(&self, side: SideId) -> usize {
        let parallelism = self.parallelism(side);
        match side == self.sides.host() {
            true => parallelism,
            false => self.sides.tasks(side).max(parallelism),
        }
    }

    /// How a job for this side is cut into subjobs.
    pub(crate) fn division(&self, side: SideId) -> Division {
        match self.sides.first_share(side) {
            Some(first_share) => Division::InTwo { first_share },
            None => Division::Equal(self.parallelism(side)),
        }
    }

    /// A new prefix for the names of an attempt. No other attempt has the same one.
    pub(crate) fn next_prefix(&self) -> OutputPrefix {
        OutputPrefix {
            epoch: self.open_number,
            attempt: self.attempts.fetch_add(1, Ordering::Relaxed),
        }
    }

    /// Deletes the tables of an outcome at a location, which will not be installed.
    pub(crate) fn discard(&self, location: u32, tables: &[OutputTable]) {
        self.discard_names(location, tables.iter().map(|table| &table.name));
    }

    /// Deletes outputs at a location by their names: all files of jobs that nothing will refer to
    /// are deleted here. The folder's guard repeats a deletion that fails
    /// ([`Guards`](crate::env::guard::Guards)).
    pub(crate) fn discard_names(
        &self,
        location: u32,
        names: impl IntoIterator<Item = impl AsRef<str>>,
    ) {
        for name in names {
            let _ = self.outputs_at(location).delete(self.epoch, name.as_ref());
        }
    }
}
