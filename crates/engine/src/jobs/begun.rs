//! A job that was begun: what its attempts share.
//!
//! Invariants: as long as it lasts the reservation of its work stands, so nothing is installed
//! where the job counted on nothing (RFC 1, V5), and it keeps its number and its snapshots: those
//! that came later are above it (V6).
//!
//! Threading: whoever runs the work owns it.

use std::sync::Arc;

use siltstone_table::exec::{Handover, Inputs, StreamSource};
use siltstone_table::job::verify::Sample;
use siltstone_table::job::{Job, OutputPrefix};

/// See the module.
#[derive(Clone)]
pub(crate) struct Begun {
    pub(crate) job: Job,
    pub(crate) inputs: Arc<dyn Inputs>,
    /// Of a flush: what its tables are compared with, and how much of them.
    pub(crate) compared: Option<(Arc<dyn StreamSource>, Sample)>,
    /// What attempts leave each other; none if each begins anew.
    pub(crate) handover: Option<Arc<Handover>>,
    /// Tables that were left when the last attempt began.
    left_count: usize,
    /// Tables that were left may have been made by an executor that is not the host's own.
    is_foreign: bool,
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
            // A memtable makes a table or two: nothing is worth being handed over.
            handover: None,
            left_count: 0,
            is_foreign: false,
        }
    }

    pub(crate) fn compaction(job: Job, inputs: Arc<dyn Inputs>, handover: Handover) -> Begun {
        Begun {
            job,
            inputs,
            compared: None,
            handover: Some(Arc::new(handover)),
            left_count: 0,
            is_foreign: false,
        }
    }

    /// The job of an attempt, whose outputs get names that begin with `output`.
    pub(crate) fn attempt(&self, output: OutputPrefix) -> Job {
        Job {
            output,
            ..self.job.clone()
        }
    }

    /// Tables that an attempt would resume behind.
    pub(crate) fn left_count(&self) -> usize {
        self.handover.as_ref().map_or(0, |h| h.left_count())
    }

    /// Whether the last attempt left tables that were not there before. Call this once per attempt.
    pub(crate) fn has_left_more(&mut self) -> bool {
        let left_count = self.left_count();
        let before = std::mem::replace(&mut self.left_count, left_count);
        left_count > before
    }

    /// An attempt of another executor than the host's own ended without an outcome. From then on
    /// the tables that it left are verified as those of an outcome from outside, whoever adopts
    /// them.
    pub(crate) fn note_foreign_attempt(&mut self) {
        self.is_foreign |= self.left_count() > 0;
    }

    pub(crate) fn is_foreign(&self) -> bool {
        self.is_foreign
    }

    /// Tables that attempts took over from those before them.
    pub(crate) fn adopted_count(&self) -> u64 {
        self.handover.as_ref().map_or(0, |h| h.adopted_count())
    }

    /// An outcome is believed, so no attempt takes anything over any more: the names of what was
    /// left.
    pub(crate) fn close(&self) -> Vec<String> {
        self.handover.as_ref().map_or(Vec::new(), |h| h.end())
    }

    /// No further attempt: the names of what the last one left.
    pub(crate) fn end(self) -> Vec<String> {
        self.handover.map_or(Vec::new(), |h| h.end())
    }
}
