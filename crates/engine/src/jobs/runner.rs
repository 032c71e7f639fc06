//! What all jobs of a store share: the storage of their outputs, the open number that fences names,
//! the sides, the limits, and the numbers of attempts.
//!
//! [`crate::jobs::build`] makes jobs, and [`crate::jobs::attempt`] has them executed and verifies
//! what came back.
//!
//! Invariant: an attempt number is given once.
//!
//! Threading: shared by all workers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};

use siltstone_storage::{DirectStorage, Epoch, Runtime, Storage};
use siltstone_table::exec::Executor;
use siltstone_table::job::OutputPrefix;
use siltstone_table::job::outcome::OutputTable;
use siltstone_table::job::verify::Sample;

use crate::formats::directories::Storages;
use crate::jobs::rate::RateLimiter;
use crate::jobs::sides::{SideId, Sides};
use crate::types::event::Events;
use crate::types::options::{DirectIo, FlushVerify, Options};

/// Blocks of each flushed table that are compared with the memtable under [`FlushVerify::Sample`].
const COMPARED_BLOCKS: usize = 16;

/// A subjob is worth its overhead from this many input bytes on.
const SUBJOB_MIN_BYTES: u64 = 8 << 20;

/// See the module.
pub(crate) struct JobRunner {
    pub(super) runtime: Runtime,
    outputs: Arc<dyn Storage>,
    pub(super) epoch: Epoch,
    pub(crate) open_number: u64,
    attempts: AtomicU64,
    subjobs_max: AtomicUsize,
    /// The policy allows one subjob a job, on each side.
    has_one_subjob: bool,
    /// A [`FlushVerify`].
    flush_verify: AtomicU8,
    /// [`SUBJOB_MIN_BYTES`], less in trials, whose jobs are small.
    pub(crate) subjob_min_bytes: AtomicU64,
    pub(crate) sides: Sides,
    /// What compactions may read and write in a second.
    pub(crate) rate: Arc<RateLimiter>,
}

impl JobRunner {
    pub(crate) fn new(
        runtime: &Runtime,
        storages: &Storages,
        epoch: Epoch,
        open_number: u64,
        options: &Options,
        executors: Vec<Arc<dyn Executor>>,
        events: &Arc<Events>,
    ) -> JobRunner {
        let outputs: Arc<dyn Storage> = match options.direct_io {
            DirectIo::None => storages.tables.clone(),
            DirectIo::Compaction | DirectIo::All => {
                Arc::new(DirectStorage::new(storages.tables.clone()))
            }
        };
        // The bound is only for jobs elsewhere.
        let open_objects_max = match executors.is_empty() {
            true => None,
            false => storages.tables.open_objects_max(),
        };
        JobRunner {
            runtime: runtime.clone(),
            outputs,
            epoch,
            open_number,
            attempts: AtomicU64::new(1),
            subjobs_max: AtomicUsize::new(options.subjobs_max as usize),
            has_one_subjob: !options.schedule.multi_threading,
            flush_verify: AtomicU8::new(options.flush_verify as u8),
            subjob_min_bytes: AtomicU64::new(SUBJOB_MIN_BYTES),
            sides: Sides::new(runtime, executors, events, open_objects_max),
            rate: RateLimiter::new(runtime, options.background_bytes_per_s),
        }
    }

    /// A runner with the same settings that writes tables elsewhere, on the host's cores.
    pub(crate) fn onto(&self, outputs: &Arc<dyn Storage>, epoch: Epoch, open_number: u64) -> Self {
        JobRunner {
            runtime: self.runtime.clone(),
            outputs: outputs.clone(),
            epoch,
            open_number,
            attempts: AtomicU64::new(1),
            subjobs_max: AtomicUsize::new(self.subjobs_max.load(Ordering::Relaxed)),
            has_one_subjob: self.has_one_subjob,
            flush_verify: AtomicU8::new(self.flush_verify.load(Ordering::Relaxed)),
            subjob_min_bytes: AtomicU64::new(SUBJOB_MIN_BYTES),
            sides: self.sides.host_only(),
            rate: self.rate.clone(),
        }
    }

    /// Changes how many subjobs of one job may run at once, for the jobs to come.
    pub(crate) fn set_subjobs_max(&self, subjobs_max: usize) {
        self.subjobs_max.store(subjobs_max, Ordering::Relaxed);
    }

    /// Changes how much of a flush is compared with its memtable, for the flushes to come.
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

    /// Where tables are written.
    pub(crate) fn outputs(&self) -> &Arc<dyn Storage> {
        &self.outputs
    }

    /// The number of subjobs that a job for this side is cut into at most.
    pub(crate) fn parallelism(&self, side: SideId) -> usize {
        if self.has_one_subjob {
            return 1;
        }
        if side == self.sides.host() {
            return self.subjobs_max.load(Ordering::Relaxed);
        }
        self.sides.parallelism(side)
    }

    /// Names of an attempt that nobody else has.
    pub(crate) fn next_prefix(&self) -> OutputPrefix {
        OutputPrefix {
            epoch: self.open_number,
            attempt: self.attempts.fetch_add(1, Ordering::Relaxed),
        }
    }

    /// Deletes the tables of an outcome that will not be installed.
    pub(crate) fn discard(&self, tables: &[OutputTable]) {
        self.discard_names(tables.iter().map(|table| &table.name));
    }

    /// Deletes outputs by their names: all files of jobs that nothing will refer to are deleted
    /// here. The folder's guard repeats a deletion that fails
    /// ([`Guards`](crate::env::guard::Guards)).
    pub(crate) fn discard_names(&self, names: impl IntoIterator<Item = impl AsRef<str>>) {
        for name in names {
            let _ = self.outputs.delete(self.epoch, name.as_ref());
        }
    }
}
