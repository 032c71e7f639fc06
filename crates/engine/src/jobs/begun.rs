//! A job that has begun: the state that its attempts share.
//!
//! Invariants: while the job lasts, its work stays reserved, so nothing is installed in a range
//! that the job assumed to be empty (RFC 1, V5). The job keeps its published number and its
//! snapshots: snapshots taken later are not below that number (V6).
//!
//! Threading: the task that runs the work owns it.

use std::collections::BTreeSet;
use std::sync::Arc;

use siltstone_table::exec::{Handover, Inputs, StreamSource};
use siltstone_table::job::verify::Sample;
use siltstone_table::job::{Job, OutputPrefix};

use crate::env::flush_load::FlushLoad;
use crate::env::notify::Notify;
use crate::jobs::flush_pauses::FlushPauses;
use crate::jobs::sides::SideId;

/// See the module.
#[derive(Clone)]
pub(crate) struct Begun {
    pub(crate) job: Job,
    pub(crate) inputs: Arc<dyn Inputs>,
    /// For a flush: the stream that its tables are compared with, and the sample of it.
    pub(crate) compared: Option<(Arc<dyn StreamSource>, Sample)>,
    /// The tables that attempts leave to each other. `None` if each attempt starts again.
    pub(crate) handover: Option<Arc<Handover>>,
    /// The number of tables in the handover when [`Begun::has_left_more`] was last called.
    left_count: usize,
    /// The sides that may have made tables in the handover, other than the host's own executor.
    left_by: BTreeSet<SideId>,
    /// For a flush: whom its progress wakes.
    pub(crate) relief: Option<Relief>,
    /// For a compaction: when the host's cores pause it.
    pub(crate) pauses: Option<Arc<FlushPauses>>,
}

/// Notes how a flush progresses, and wakes writers that wait for the memory of memtables.
#[derive(Clone)]
pub(crate) struct Relief {
    pub(crate) load: Arc<FlushLoad>,
    pub(crate) pressure: Arc<Notify>,
    /// They are woken each time when the job has read and written this many bytes.
    pub(crate) every_bytes: u64,
}

impl Begun {
    pub(crate) fn flush(
        job: Job,
        inputs: Arc<dyn Inputs>,
        stream: Arc<dyn StreamSource>,
        sample: Sample,
    ) -> Begun {
        Begun {
            job,
            inputs,
            compared: Some((stream, sample)),
            // A flush makes only one or two tables, so a failed flush starts again.
            handover: None,
            left_count: 0,
            left_by: BTreeSet::new(),
            relief: None,
            pauses: None,
        }
    }

    pub(crate) fn compaction(job: Job, inputs: Arc<dyn Inputs>, handover: Handover) -> Begun {
        Begun {
            job,
            inputs,
            compared: None,
            handover: Some(Arc::new(handover)),
            left_count: 0,
            left_by: BTreeSet::new(),
            relief: None,
            pauses: None,
        }
    }

    /// The job of an attempt. The names of its output tables begin with `output`.
    pub(crate) fn attempt(&self, output: OutputPrefix) -> Job {
        Job {
            output,
            ..self.job.clone()
        }
    }

    /// The number of finished tables after which an attempt would resume.
    pub(crate) fn left_count(&self) -> usize {
        self.handover.as_ref().map_or(0, |h| h.left_count())
    }

    /// The names of the tables after which an attempt would resume.
    pub(crate) fn left_names(&self) -> Vec<String> {
        let handover = self.handover.as_ref();
        handover.map_or_else(Vec::new, |handover| handover.left_names())
    }

    /// Whether the last attempt left more tables than there were before. Call this once per
    /// attempt.
    pub(crate) fn has_left_more(&mut self) -> bool {
        let left_count = self.left_count();
        let before = std::mem::replace(&mut self.left_count, left_count);
        left_count > before
    }

    /// Notes that an attempt on this side, by an executor other than the host's own, ended without
    /// an outcome. From then on the tables that it left are verified as foreign ones, whichever
    /// executor adopts them, and the side is at fault if they are wrong.
    pub(crate) fn note_foreign_attempt(&mut self, side: SideId) {
        if self.left_count() > 0 {
            self.left_by.insert(side);
        }
    }

    pub(crate) fn is_foreign(&self) -> bool {
        !self.left_by.is_empty()
    }

    /// The sides that [`Begun::note_foreign_attempt`] noted.
    pub(crate) fn left_by(&self) -> impl Iterator<Item = SideId> {
        self.left_by.iter().copied()
    }

    /// The number of tables that attempts took over from earlier ones.
    pub(crate) fn adopted_count(&self) -> u64 {
        self.handover.as_ref().map_or(0, |h| h.adopted_count())
    }

    /// Closes the handover after an outcome was believed, and returns the names of the tables that
    /// were left in it.
    pub(crate) fn close(&self) -> Vec<String> {
        self.handover.as_ref().map_or(Vec::new(), |h| h.end())
    }

    /// Ends the job when no further attempt follows, and returns the names of the tables that the
    /// last attempt left.
    pub(crate) fn end(self) -> Vec<String> {
        self.handover.map_or(Vec::new(), |h| h.end())
    }
}
