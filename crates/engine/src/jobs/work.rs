//! A piece of work: one flush or one compaction, from the moment it is picked until it has ended.
//!
//! Threading: whoever runs it owns it. Its progress, its stage and its token of cancellation are
//! shared with the schedule.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Weak};

use arc_swap::ArcSwapOption;
use siltstone_storage::Instant;
use siltstone_table::exec::{CancelToken, Progress, RemarkListener};
use siltstone_table::job::OutputPrefix;

use crate::env::failures::JobKind;
use crate::formats::version::{KeyspaceVersion, SeqRange};
use crate::jobs::begun::Begun;
use crate::jobs::choice::Answer;
use crate::jobs::leftovers::Leftover;
use crate::jobs::sides::SideId;
use crate::tree::pick::{Choice, ChoiceKind};
use crate::tree::view::{KeyspaceCore, MemSource};
use crate::types::limits::KeyspaceId;

/// See the module.
pub(crate) struct Work {
    pub(crate) id: u64,
    pub(crate) keyspace: Arc<KeyspaceCore>,
    pub(crate) what: What,
    pub(crate) progress: Arc<Progress>,
    /// For statistics.
    pub(crate) stage: Arc<StageCell>,
    /// A sentence of the executor on how it runs the job, which is shown to users.
    pub(crate) remark: Arc<RemarkCell>,
    pub(crate) cancel: CancelToken,
    /// Set by the first attempt. Those that follow run the same job, if there is anything to
    /// resume.
    pub(crate) begun: Option<Begun>,
    pub(crate) placed: Placed,
    /// What each side said to the job, or did with it. Empty if the host is the only side.
    pub(crate) answers: Vec<Answer>,
    /// Sides that failed in a way that may be the store's own fault, and what they said. It is
    /// their fault if another side does the work.
    pub(crate) suspects: Vec<(SideId, String)>,
    /// What the names of the last attempt's outputs begin with.
    pub(crate) last_output: Option<OutputPrefix>,
    /// A side other than the host has failed with it, and the policy gives it to no host.
    pub(crate) is_kept_off_host: bool,
    /// Attempts elsewhere whose outcomes were not believed.
    pub(crate) unbelieved: Vec<Leftover>,
    /// An attempt that left the values on a device has failed, so the host's cores run it.
    pub(crate) is_whole: bool,
}

/// Where an attempt runs, and why there.
#[derive(Clone, Debug, Default)]
pub(crate) struct Placed {
    pub(crate) side: SideId,
    /// When each side would have done the job, for people. Empty if there was no choice.
    pub(crate) reason: String,
    /// How long it was expected to take, in nanoseconds; 0 if that is not known.
    pub(crate) expected_ns: u64,
    pub(crate) begun: Instant,
}

/// How far a piece of work is ([RFC 7](../../../../docs/rfc/0007-slots.md), section 3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Stage {
    /// It is reserved, and no attempt has begun or the last one has failed.
    #[default]
    Reserved,
    /// An executor has the job.
    Running,
    /// The executor has returned, and what it made is verified.
    Verifying,
    /// What it made is installed.
    Finishing,
}

impl Stage {
    const ALL: [Stage; 4] = [
        Stage::Reserved,
        Stage::Running,
        Stage::Verifying,
        Stage::Finishing,
    ];

    /// The word for it in statistics.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Stage::Reserved => "reserved",
            Stage::Running => "running",
            Stage::Verifying => "verifying",
            Stage::Finishing => "finishing",
        }
    }
}

/// The stage of a piece of work, which statistics read while a task changes it.
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

/// The last remark of an executor about a piece of work, which statistics read meanwhile.
#[derive(Default)]
pub(crate) struct RemarkCell(ArcSwapOption<String>);

impl RemarkListener for RemarkCell {
    fn remark(&self, text: &str) {
        self.0.store(Some(Arc::new(text.to_string())));
    }
}

impl RemarkCell {
    /// Why a side was chosen, and what was said since, as text.
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

/// What a piece of work does, in words.
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
    /// The slots of the sources that were not installed then.
    pub(crate) unsettled: Vec<SeqRange>,
    pub(crate) reason: Reason,
}

/// Who asked for a compaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    /// A level is due.
    Due,
    /// Tombstones are worth it.
    Deletes,
    /// The user.
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

    /// Bytes of its inputs: the raw bytes of a memtable's entries, or the files of tables.
    pub(crate) fn bytes(&self) -> u64 {
        match &self.what {
            What::Flush(source) => source.mem.raw_bytes(),
            What::Compaction(compaction) => compaction.choice.input_bytes,
        }
    }

    /// The number of its input tables.
    pub(crate) fn table_count(&self) -> u64 {
        match &self.what {
            What::Flush(_) => 0,
            What::Compaction(compaction) => compaction.choice.tables().count() as u64,
        }
    }

    /// Whether it is only an edit of the manifest, without a job.
    pub(crate) fn is_edit(&self) -> bool {
        match &self.what {
            What::Flush(_) => false,
            What::Compaction(compaction) => compaction.is_edit(),
        }
    }

    /// Whether it is a compaction that is due only because of lookups in vain. Nobody waits for it.
    pub(crate) fn is_by_seeks(&self) -> bool {
        match &self.what {
            What::Flush(_) => false,
            What::Compaction(compaction) => compaction.choice.by_seeks,
        }
    }

    /// Whether it may wait for a busy side. Writers wait for flushes and for the compaction of
    /// level 0 if it has many runs, callers wait for manual compactions, and work that was returned
    /// has waited already.
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

    /// What its present attempt has reserved.
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

    /// Why its side was chosen, and how it runs the job, for people.
    pub(crate) fn placement(&self) -> String {
        self.remark.after(&self.placed.reason)
    }

    /// For people.
    pub(crate) fn describe(&self) -> String {
        let kind = self.kind().word();
        format!("a {kind} of keyspace `{}`", self.keyspace.name)
    }

    /// Whether another attempt after a failed one is worth it: the failed one finished tables that
    /// were not there before. Call this once per attempt.
    pub(crate) fn may_resume(&mut self) -> bool {
        let has_more = self.begun.as_mut().is_some_and(Begun::has_left_more);
        has_more && !self.cancel.is_cancelled() && !self.keyspace.is_dropped()
    }

    /// Ends the work. Gives the names of the tables that its attempts left, which the caller
    /// deletes.
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
    /// The attempt: work that is returned gets a new progress.
    pub(super) attempt: Arc<Progress>,
    /// The memtable that a flush writes. This does not keep its memory, which is to be free before
    /// anybody can find that nothing runs any more.
    pub(super) memtable: Weak<MemSource>,
}

impl Compaction {
    /// Whether it is only an edit of the manifest, without a job.
    pub(crate) fn is_edit(&self) -> bool {
        matches!(self.choice.kind, ChoiceKind::TrivialMove | ChoiceKind::Drop)
    }
}
