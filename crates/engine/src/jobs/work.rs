//! A piece of work: one flush or one compaction, from the time it is picked until it has ended.
//!
//! Threading: the task that runs it owns it. Its progress, its stage and its cancel token are
//! shared with the schedule.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Weak};

use arc_swap::ArcSwapOption;
use siltstone_storage::Instant;
use siltstone_table::exec::{CancelToken, JobSize, Progress, RemarkListener};
use siltstone_table::job::OutputPrefix;

use crate::env::failures::JobKind;
use crate::formats::version::{KeyspaceVersion, SeqRange, TableMeta};
use crate::jobs::begun::Begun;
use crate::jobs::choice::Answer;
use crate::jobs::leftovers::Leftover;
use crate::jobs::sides::SideId;
use crate::tree::pick::{Choice, ChoiceKind};
use crate::tree::view::{KeyspaceCore, MemSource};
use crate::types::limits::KeyspaceId;
use crate::types::options::Compression;

/// See the module.
pub(crate) struct Work {
    pub(crate) id: u64,
    pub(crate) keyspace: Arc<KeyspaceCore>,
    pub(crate) what: What,
    pub(crate) progress: Arc<Progress>,
    /// For statistics.
    pub(crate) stage: Arc<StageCell>,
    /// A sentence of the executor about how it runs the job. It is shown to users.
    pub(crate) remark: Arc<RemarkCell>,
    pub(crate) cancel: CancelToken,
    /// Set by the first attempt. Later attempts run the same job, if there is anything to resume.
    pub(crate) begun: Option<Begun>,
    pub(crate) placed: Placed,
    /// For each side, whether it accepts the job or has failed with it. Empty if the host is the
    /// only side.
    pub(crate) answers: Vec<Answer>,
    /// Sides that failed in a way that may be the store's own fault, and their errors. If another
    /// side completes the work, the sides were at fault.
    pub(crate) suspects: Vec<(SideId, String)>,
    /// The prefix of the names of the last attempt's outputs.
    pub(crate) last_output: Option<OutputPrefix>,
    /// Whether a side other than the host has failed with the work, and the policy does not let the
    /// host run it instead.
    pub(crate) is_kept_off_host: bool,
    /// Attempts on other sides whose outcomes were not believed.
    pub(crate) unbelieved: Vec<Leftover>,
    /// Whether an attempt that left the values on a device has failed, so that the host's cores run
    /// it.
    pub(crate) is_whole: bool,
}

/// The work that a worker takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Everything.
    All,
    /// Only flushes, so that no memtable waits for a compaction.
    Flushes,
    /// Flushes, while `stall_policy` is `redirect` and the other tasks do not suffice: two
    /// memtables wait or are being flushed, or no other task takes only flushes. If another task
    /// takes only flushes and there is no flush to do, small merges within level 0.
    MoreFlushes,
    /// Everything, while the policy is `adoc`. Then the worker ends.
    Tuned,
}

/// The side on which an attempt runs and the location of its outputs, and why.
#[derive(Clone, Debug, Default)]
pub(crate) struct Placed {
    pub(crate) side: SideId,
    /// The location of the tables that a flush makes. Compactions make theirs at location 0.
    pub(crate) location: u32,
    /// When each side would have finished the job, as text for people. Empty if there was no
    /// choice.
    pub(crate) reason: String,
    /// How long the attempt was expected to take, in nanoseconds; 0 if this is not known.
    pub(crate) expected_ns: u64,
    /// The role of the worker that runs it, if a worker does.
    pub(crate) role: Option<Role>,
    pub(crate) begun: Instant,
}

/// How far a piece of work has got ([RFC 7](../../../../docs/rfc/0007-slots.md), section 3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Stage {
    /// The work is reserved. No attempt has begun, or the last one has failed.
    #[default]
    Reserved,
    /// An executor has the job.
    Running,
    /// The executor has returned, and its outcome is being verified.
    Verifying,
    /// The outcome is being installed.
    Finishing,
}

impl Stage {
    const ALL: [Stage; 4] = [
        Stage::Reserved,
        Stage::Running,
        Stage::Verifying,
        Stage::Finishing,
    ];

    /// The word for the stage in statistics.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Stage::Reserved => "reserved",
            Stage::Running => "running",
            Stage::Verifying => "verifying",
            Stage::Finishing => "finishing",
        }
    }
}

/// The stage of a piece of work. Statistics read it while a task changes it.
#[derive(Default)]
pub(crate) struct StageCell(AtomicU8);

impl StageCell {
    pub(crate) fn set(&self, stage: Stage) {
        self.0.store(stage as u8, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> Stage {
        Stage::ALL[usize::from(self.0.load(Ordering::Relaxed)) % Stage::ALL.len()]
    }
}

/// The last remark of an executor about a piece of work. Statistics read it while the job runs.
#[derive(Default)]
pub(crate) struct RemarkCell(ArcSwapOption<String>);

impl RemarkListener for RemarkCell {
    fn remark(&self, text: &str) {
        self.0.store(Some(Arc::new(text.to_string())));
    }
}

impl RemarkCell {
    /// Forgets the last remark.
    pub(crate) fn clear(&self) {
        self.0.store(None);
    }

    /// Joins the reason why a side was chosen and the last remark into one text.
    pub(crate) fn after(&self, placement: &str) -> String {
        match &*self.0.load() {
            None => placement.to_string(),
            Some(remark) if placement.is_empty() => remark.to_string(),
            Some(remark) => format!("{placement}; {remark}"),
        }
    }
}

/// What is to be done.
pub(crate) enum What {
    /// A sealed memtable becomes a run of level 0.
    Flush(Arc<MemSource>),
    Compaction(Box<Compaction>),
}

/// A description of a piece of work, in words.
#[derive(Clone, Debug)]
pub(crate) struct Described {
    pub(super) kind: &'static str,
    pub(super) from_level: Option<u8>,
    pub(super) to_level: u8,
    pub(super) reason: String,
}

impl Described {
    pub(crate) fn of(work: &Work) -> Described {
        match &work.what {
            What::Flush(_) => Described {
                kind: "flush",
                from_level: None,
                to_level: 0,
                reason: String::new(),
            },
            What::Compaction(compaction) => Described {
                kind: match compaction.choice.kind {
                    ChoiceKind::Merge => "merge",
                    ChoiceKind::IntraL0 => "merge within level 0",
                    ChoiceKind::Rewrite => "rewrite",
                    ChoiceKind::TrivialMove => "move",
                    ChoiceKind::Drop => "drop",
                },
                from_level: Some(compaction.choice.from),
                to_level: compaction.choice.to,
                reason: compaction.choice.reason.clone(),
            },
        }
    }
}

/// Tables that are to be merged, moved, rewritten or dropped.
pub(crate) struct Compaction {
    pub(crate) choice: Choice,
    /// The version that the choice was made from: the job's cuts and the ranges of older data come
    /// from the same version.
    pub(crate) version: Arc<KeyspaceVersion>,
    /// The slots of the sources that were not installed at that time.
    pub(crate) unsettled: Vec<SeqRange>,
    pub(crate) reason: Reason,
}

/// Why a compaction is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    /// A level is due.
    Due,
    /// There are enough tombstones to make it worthwhile.
    Deletes,
    /// A user requested it.
    Manual,
}

impl Work {
    /// Work that was picked and is not reserved yet.
    pub(crate) fn new(keyspace: &Arc<KeyspaceCore>, what: What) -> Work {
        Work {
            id: 0,
            keyspace: keyspace.clone(),
            what,
            progress: Arc::default(),
            stage: Arc::default(),
            remark: Arc::default(),
            cancel: CancelToken::new(),
            begun: None,
            placed: Placed::default(),
            answers: Vec::new(),
            suspects: Vec::new(),
            is_kept_off_host: false,
            last_output: None,
            unbelieved: Vec::new(),
            is_whole: false,
        }
    }

    /// The bytes of the work's inputs: the raw bytes of a memtable's entries, or the bytes of the
    /// table files.
    pub(crate) fn bytes(&self) -> u64 {
        match &self.what {
            What::Flush(source) => source.mem.raw_bytes(),
            What::Compaction(compaction) => compaction.choice.input_bytes,
        }
    }

    /// The size of the work's inputs, as far as the time of a job depends on it.
    pub(crate) fn size(&self) -> JobSize {
        match &self.what {
            What::Flush(source) => JobSize {
                bytes: source.mem.raw_bytes(),
                entries: source.mem.entry_count(),
                packed_bytes: 0,
            },
            What::Compaction(compaction) => {
                let choice = &compaction.choice;
                let sum = |of: fn(&TableMeta) -> u64| -> u64 {
                    choice
                        .tables()
                        .map(|table| of(table))
                        .fold(0, u64::saturating_add)
                };
                let raw_bytes = sum(|table| table.raw_bytes);
                // The outputs are compressed, or the inputs are.
                let settings = self.keyspace.load_settings();
                let is_packed = settings.all.compression.at(choice.to) != Compression::None
                    || choice.input_bytes < raw_bytes / 10 * 8;
                JobSize {
                    bytes: choice.input_bytes,
                    entries: sum(|table| table.entries),
                    packed_bytes: match is_packed {
                        true => raw_bytes,
                        false => 0,
                    },
                }
            }
        }
    }

    /// The number of the work's input tables.
    pub(crate) fn table_count(&self) -> u64 {
        match &self.what {
            What::Flush(_) => 0,
            What::Compaction(compaction) => compaction.choice.tables().count() as u64,
        }
    }

    /// Whether the work is only an edit of the manifest, without a job.
    pub(crate) fn is_edit(&self) -> bool {
        match &self.what {
            What::Flush(_) => false,
            What::Compaction(compaction) => compaction.is_edit(),
        }
    }

    /// Whether the work is a compaction that is due only because of unsuccessful lookups. Nobody
    /// waits for it.
    pub(crate) fn is_by_seeks(&self) -> bool {
        match &self.what {
            What::Flush(_) => false,
            What::Compaction(compaction) => compaction.choice.by_seeks,
        }
    }

    /// Whether the work may wait for a busy side. Writers wait for flushes, and for the compaction
    /// of level 0 if level 0 has many runs. Callers wait for manual compactions. Work that was
    /// returned has waited already.
    pub(crate) fn may_wait(&self) -> bool {
        match &self.what {
            What::Flush(_) => false,
            What::Compaction(compaction) => {
                (compaction.choice.from > 0 || compaction.choice.by_seeks)
                    && compaction.reason != Reason::Manual
                    && self.last_output.is_none()
            }
        }
    }

    pub(crate) fn kind(&self) -> JobKind {
        match self.what {
            What::Flush(_) => JobKind::Flush,
            What::Compaction(_) => JobKind::Compaction,
        }
    }

    /// What the work's present attempt has reserved.
    pub(crate) fn reserved(&self) -> Reserved {
        Reserved {
            id: self.id,
            kind: self.kind(),
            keyspace: self.keyspace.id,
            attempt: self.progress.clone(),
            memtable: match &self.what {
                What::Flush(source) => Arc::downgrade(source),
                What::Compaction(_) => Weak::new(),
            },
        }
    }

    /// Why the side was chosen, and how it runs the job, as text for people.
    pub(crate) fn placement(&self) -> String {
        self.remark.after(&self.placed.reason)
    }

    /// A description of the work for people.
    pub(crate) fn describe(&self) -> String {
        let kind = self.kind().word();
        format!("a {kind} of keyspace `{}`", self.keyspace.name)
    }

    /// Whether another attempt after a failed one is worthwhile: the failed one finished tables
    /// that were not there before. Call this once per attempt.
    pub(crate) fn may_resume(&mut self) -> bool {
        let has_more = self.begun.as_mut().is_some_and(Begun::has_left_more);
        has_more && !self.cancel.is_cancelled() && !self.keyspace.is_dropped()
    }

    /// Ends the work. Returns the names of the tables that its attempts left. The caller must
    /// delete them.
    pub(crate) fn end(&mut self) -> Vec<String> {
        self.begun.take().map_or(Vec::new(), |begun| begun.end())
    }
}

/// What an attempt of a piece of work has reserved.
pub(crate) struct Reserved {
    /// The number of the work.
    pub(super) id: u64,
    pub(super) kind: JobKind,
    pub(super) keyspace: KeyspaceId,
    /// Identifies the attempt: when work is returned, it gets a new progress.
    pub(super) attempt: Arc<Progress>,
    /// The memtable that a flush writes. This reference does not keep the memtable's memory, which
    /// must be free before anybody can see that nothing runs any more.
    pub(super) memtable: Weak<MemSource>,
}

impl Compaction {
    /// Whether the compaction is only an edit of the manifest, without a job.
    pub(crate) fn is_edit(&self) -> bool {
        matches!(self.choice.kind, ChoiceKind::TrivialMove | ChoiceKind::Drop)
    }
}
