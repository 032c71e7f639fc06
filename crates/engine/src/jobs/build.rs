//! Turns a memtable or a [`Choice`] into a [`Job`], which is everything that decides its output.
//!
//! Invariants: a job holds everything that decides its output. Its published number and its
//! snapshots were taken together (RFC 1, V6).
//!
//! Threading: shared by all workers.

use std::sync::Arc;

use siltstone_table::compress::Codec;
use siltstone_table::exec::{InputMap, StreamSource};
use siltstone_table::job::{
    DropRules, FormatOptions, Input, InputKind, Job, KeyBounds, LAYOUT_VERSION, OutputLimits,
    OutputPrefix,
};
use siltstone_table::retain::{KeyRange as JobRange, RangeEnd};

use crate::formats::version::{End, Key, KeyRange, KeyspaceVersion, TableMeta};
use crate::jobs::begun::Begun;
use crate::jobs::runner::JobRunner;
use crate::jobs::stream::MemtableSource;
use crate::tree::memtable::Memtable;
use crate::tree::pick::{Choice, Division, hard_cuts, soft_cuts};
use crate::types::limits::KeyspaceId;
use crate::types::options::{Compression, KeyspaceSettings};

/// The name of a flush's only input.
const STREAM: &str = "memtable";

/// The input of a flush: the memtable, and everything else that its job is made from.
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
            // Each attempt gets an output prefix of its own.
            output: OutputPrefix {
                epoch: self.open_number,
                attempt: 0,
            },
        }
    }

    /// The job of a flush. Its only input is a stream, and older data may have any key. `None` if
    /// the memtable is empty.
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

    /// Begins a flush. `None` if the memtable is empty.
    pub(crate) fn begin_flush(&self, spec: &FlushSpec<'_>) -> Option<Begun> {
        let job = self.flush_job(spec)?;
        let stream: Arc<dyn StreamSource> = Arc::new(MemtableSource::new(spec.mem.clone()));
        let mut inputs = InputMap::new();
        inputs.add_stream(0, STREAM, stream.clone());
        let sample = self.flush_sample();
        Some(Begun::flush(job, Arc::new(inputs), stream, sample))
    }

    /// The job of a compaction, cut into subjobs. `anchors` gives keys that divide a table into
    /// parts of about equal size.
    pub(crate) fn compaction_job(
        &self,
        spec: &CompactionSpec<'_>,
        division: Division,
        anchors: &dyn Fn(&TableMeta) -> Vec<Key>,
    ) -> Job {
        let (version, choice) = (spec.version, spec.choice);
        let bounds = bounds_of(&choice.range);
        let inside = |key: &Key| key[..] > bounds.start[..] && bounds.contains(key);
        let min_bytes = self.subjob_min_bytes(division, spec.settings.table_bytes);
        let hard: Vec<Vec<u8>> = hard_cuts(choice, division, min_bytes, anchors)
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
