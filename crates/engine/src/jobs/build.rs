//! Building jobs.
//!
//! [`JobRunner`] knows what all jobs of a store share (storages, format, the open
//! number that fences names) and numbers attempts. It turns a memtable or a [`Choice`] into a
//! [`Job`]. How a job is executed and verified is in [`crate::jobs::attempt`].
//!
//! Invariants: a job holds everything that decides its output; published number and snapshots were
//! taken together (RFC 1, V6); an attempt number is given once.
//!
//! Threading: shared by all workers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};

use siltstone_storage::{DirectStorage, Epoch, Runtime, Storage};
use siltstone_table::compress::Codec;
use siltstone_table::exec::{CancelToken, Executor, InputMap, StreamSource};
use siltstone_table::job::outcome::OutputTable;
use siltstone_table::job::verify::Sample;
use siltstone_table::job::{
    DropRules, FormatOptions, Input, InputKind, Job, KeyBounds, LAYOUT_VERSION, OutputLimits,
    OutputPrefix,
};
use siltstone_table::retain::{KeyRange as JobRange, RangeEnd};

use super::rate::RateLimiter;
use crate::formats::directories::Storages;
use crate::formats::version::{End, Key, KeyRange, KeyspaceVersion, TableMeta};
use crate::jobs::attempt::Attempt;
use crate::jobs::begun::Begun;
use crate::jobs::ended::Ended;
use crate::jobs::sides::{SideId, Sides};
use crate::jobs::stream::MemtableSource;
use crate::tree::memtable::Memtable;
use crate::tree::pick::{Choice, hard_cuts, soft_cuts};
use crate::types::error::Result;
use crate::types::event::Events;
use crate::types::limits::KeyspaceId;
use crate::types::options::{Compression, DirectIo, FlushVerify, KeyspaceSettings, Options};

/// The name of a flush's only input.
const STREAM: &str = "memtable";

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
    /// A [`FlushVerify`].
    flush_verify: AtomicU8,
    /// [`SUBJOB_MIN_BYTES`], less in trials, whose jobs are small.
    pub(crate) subjob_min_bytes: AtomicU64,
    pub(crate) sides: Sides,
    /// What compactions may read and write in a second.
    pub(crate) rate: Arc<RateLimiter>,
}

/// Everything of a flush that is not the memtable.
pub(crate) struct FlushSpec<'a> {
    pub(crate) keyspace: KeyspaceId,
    pub(crate) settings: &'a KeyspaceSettings,
    pub(crate) mem: &'a Arc<Memtable>,
    pub(crate) published: u64,
    pub(crate) snapshots: Vec<u64>,
    /// Boundaries that later merges will meet: those of level 1.
    pub(crate) soft_cuts: Vec<Vec<u8>>,
}

/// Everything that the job of a compaction is made from.
pub(crate) struct CompactionSpec<'a> {
    pub(crate) version: &'a KeyspaceVersion,
    pub(crate) settings: &'a KeyspaceSettings,
    pub(crate) choice: &'a Choice,
    pub(crate) published: u64,
    pub(crate) snapshots: Vec<u64>,
    /// Where older data outside the job may lie.
    pub(crate) older: Vec<KeyRange>,
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
    fn flush_sample(&self) -> Sample {
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

    fn job(
        &self,
        keyspace: KeyspaceId,
        settings: &KeyspaceSettings,
        to: u8,
        published: u64,
        snapshots: Vec<u64>,
        has_soft_cuts: bool,
    ) -> Job {
        Job {
            keyspace,
            layout_version: LAYOUT_VERSION,
            inputs: Vec::new(),
            bounds: KeyBounds::everything(),
            hard_cuts: Vec::new(),
            soft_cuts: Vec::new(),
            published,
            snapshots,
            rules: DropRules::ALL,
            now_us: self.runtime.unix_micros(),
            older: Vec::new(),
            limits: OutputLimits::new(
                settings.table_bytes,
                settings.block_bytes.into(),
                has_soft_cuts,
            ),
            format: format_of(settings, to),
            extensions: Vec::new(),
            // Each attempt gets one.
            output: OutputPrefix {
                epoch: self.open_number,
                attempt: 0,
            },
        }
    }

    /// The job of a flush: one stream, and everything older may hold anything. None if there is
    /// nothing in the memtable.
    pub(crate) fn flush_job(&self, spec: &FlushSpec<'_>) -> Option<Job> {
        let (min_seq, max_seq) = spec.mem.min_seq().zip(spec.mem.max_seq())?;
        let mut job = self.job(
            spec.keyspace,
            spec.settings,
            0,
            spec.published,
            spec.snapshots.clone(),
            !spec.soft_cuts.is_empty(),
        );
        job.older = vec![JobRange::everything()];
        job.soft_cuts = spec.soft_cuts.clone();
        job.inputs.push(Input::of_stream(STREAM, min_seq..=max_seq));
        Some(job)
    }

    /// Begins a flush. None if there is nothing in the memtable.
    pub(crate) fn begin_flush(&self, spec: &FlushSpec<'_>) -> Option<Begun> {
        let job = self.flush_job(spec)?;
        let stream: Arc<dyn StreamSource> = Arc::new(MemtableSource {
            mem: spec.mem.clone(),
        });
        let mut inputs = InputMap::new();
        inputs.add_stream(0, STREAM, stream.clone());
        let sample = self.flush_sample();
        Some(Begun::flush(job, Arc::new(inputs), stream, sample))
    }

    /// A flush before the store exists: nobody reads, no snapshots.
    pub(crate) fn flush_for_recovery(
        &self,
        keyspace: KeyspaceId,
        settings: &KeyspaceSettings,
        mem: &Arc<Memtable>,
        published: u64,
    ) -> Result<Vec<OutputTable>> {
        let spec = FlushSpec {
            keyspace,
            settings,
            mem,
            published,
            snapshots: Vec::new(),
            soft_cuts: Vec::new(),
        };
        let Some(begun) = self.begin_flush(&spec) else {
            return Ok(Vec::new());
        };
        let attempt = Attempt {
            side: self.sides.host(),
            output: self.next_prefix(),
            progress: Arc::default(),
            cancel: CancelToken::new(),
            gate: None,
            adopted_before: 0,
        };
        let outcome = self.run_attempt(&attempt, &begun);
        Ok(outcome.map_err(Ended::into_error)?.tables)
    }

    /// The job of a compaction, cut into at most `parallelism` subjobs. `anchors` gives keys that
    /// divide a table into parts of about equal size.
    pub(crate) fn compaction_job(
        &self,
        spec: &CompactionSpec<'_>,
        parallelism: usize,
        anchors: &dyn Fn(&TableMeta) -> Vec<Key>,
    ) -> Job {
        let (version, choice) = (spec.version, spec.choice);
        let bounds = bounds_of(&choice.range);
        let inside = |key: &Key| key[..] > bounds.start[..] && bounds.contains(key);
        let min_bytes = self.subjob_min_bytes.load(Ordering::Relaxed);
        let hard: Vec<Vec<u8>> = hard_cuts(choice, parallelism, min_bytes, anchors)
            .into_iter()
            .filter(inside)
            .map(Vec::from)
            .collect();
        let soft: Vec<Vec<u8>> = soft_cuts(version, choice.to, &choice.range)
            .into_iter()
            .filter(|key| inside(key) && hard.binary_search_by(|h| h[..].cmp(key)).is_err())
            .map(Vec::from)
            .collect();
        let mut job = self.job(
            version.id(),
            spec.settings,
            choice.to,
            spec.published,
            spec.snapshots.clone(),
            !soft.is_empty(),
        );
        for (run, input) in choice.inputs.iter().enumerate() {
            for table in &input.tables {
                let (min_seq, max_seq) = table.visible_seqs();
                job.inputs.push(Input {
                    kind: InputKind::Table,
                    location: table.location,
                    name: table.name.clone(),
                    run: run as u32,
                    len_bytes: table.file_bytes,
                    digest: table.digest as u64,
                    min_seq,
                    max_seq,
                    clip: KeyBounds::everything(),
                    seq_override: table.sequence_override,
                });
            }
        }
        job.older = spec.older.iter().map(job_range).collect();
        job.bounds = bounds;
        job.hard_cuts = hard;
        job.soft_cuts = soft;
        job
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

/// The table format's codec and its level.
pub(crate) fn codec_of(compression: Compression) -> (Codec, u8) {
    match compression {
        Compression::None => (Codec::None, 0),
        Compression::Lz4 => (Codec::Lz4, 0),
        Compression::Zstd(level) => (Codec::Zstd, level),
    }
}

/// How tables of a level are written.
fn format_of(settings: &KeyspaceSettings, level: u8) -> FormatOptions {
    let (codec, codec_level) = codec_of(settings.compression.at(level));
    FormatOptions {
        codec,
        level: codec_level,
        bits_per_key: settings.bloom_bits_per_key.at(level) as u8,
        verify: true,
    }
}

/// Half-open bounds that hold exactly a key range.
fn bounds_of(range: &KeyRange) -> KeyBounds {
    let end = match &range.end {
        End::Included(key) => {
            let mut after = key.to_vec();
            after.push(0);
            Some(after)
        }
        End::Excluded(key) => Some(key.to_vec()),
        End::Unbounded => None,
    };
    KeyBounds {
        start: range.start.to_vec(),
        end,
    }
}

fn job_range(range: &KeyRange) -> JobRange {
    JobRange {
        start: range.start.to_vec(),
        end: match &range.end {
            End::Included(key) => RangeEnd::With(key.to_vec()),
            End::Excluded(key) => RangeEnd::Before(key.to_vec()),
            End::Unbounded => RangeEnd::Unbounded,
        },
    }
}
