//! A piece of work: one flush or one compaction, from the moment it is picked until it has ended.
//!
//! Threading: whoever runs it owns it. Its progress and its token of cancellation are shared with
//! the schedule.

use std::sync::Arc;

use siltstone_storage::Instant;
use siltstone_table::exec::{CancelToken, Progress};
use siltstone_table::job::OutputPrefix;

use crate::env::failures::JobKind;
use crate::formats::version::{KeyspaceVersion, SeqRange};
use crate::jobs::begun::Begun;
use crate::jobs::sides::SideId;
use crate::tree::pick::{Choice, ChoiceKind};
use crate::tree::view::{KeyspaceCore, MemSource};

/// See the module.
pub(crate) struct Work {
    pub(crate) id: u64,
    pub(crate) keyspace: Arc<KeyspaceCore>,
    pub(crate) what: What,
    pub(crate) progress: Arc<Progress>,
    pub(crate) cancel: CancelToken,
    /// Set by the first attempt. Those that follow run the same job, if there is anything to
    /// resume.
    pub(crate) begun: Option<Begun>,
    pub(crate) placed: Placed,
    /// For each side, whether it accepts the job and has not failed with it. Empty if the host is
    /// the only side.
    pub(crate) allowed: Vec<bool>,
    /// Sides that failed in a way that may be the store's own fault. It is theirs if another side
    /// does the work.
    pub(crate) suspects: Vec<SideId>,
    /// What the names of the last attempt's outputs begin with.
    pub(crate) last_output: Option<OutputPrefix>,
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

/// What is to be done.
pub(crate) enum What {
    /// A sealed memtable becomes a run of level 0.
    Flush(Arc<MemSource>),
    Compaction(Box<Compaction>),
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
            cancel: CancelToken::new(),
            begun: None,
            placed: Placed::default(),
            allowed: Vec::new(),
            suspects: Vec::new(),
            last_output: None,
        }
    }

    /// Bytes of its inputs.
    pub(crate) fn bytes(&self) -> u64 {
        match &self.what {
            What::Flush(source) => source.mem.used_bytes(),
            What::Compaction(compaction) => compaction.choice.input_bytes,
        }
    }

    /// Whether it is only an edit of the manifest, without a job.
    pub(crate) fn is_edit(&self) -> bool {
        match &self.what {
            What::Flush(_) => false,
            What::Compaction(compaction) => compaction.is_edit(),
        }
    }

    /// Whether it may wait for a busy side. Writers wait for flushes and for the compaction of
    /// level 0, callers wait for manual compactions, and work that was returned has waited
    /// already.
    pub(crate) fn may_wait(&self) -> bool {
        match &self.what {
            What::Flush(_) => false,
            What::Compaction(compaction) => {
                compaction.choice.from > 0
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

    /// For people.
    pub(crate) fn describe(&self) -> String {
        let kind = match self.kind() {
            JobKind::Flush => "flush",
            JobKind::Compaction => "compaction",
        };
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

impl Compaction {
    /// Whether it is only an edit of the manifest, without a job.
    pub(crate) fn is_edit(&self) -> bool {
        matches!(self.choice.kind, ChoiceKind::TrivialMove | ChoiceKind::Drop)
    }
}
