//! What the executors have said about works, for the searches that follow.
//!
//! Each search looks at much the same works as the one before, and most searches begin nothing. To
//! ask about a work, its job has to be built, so without this memory the searches took more of the
//! host's time than the jobs.
//!
//! Invariants: an answer is given at most [`KEPT_FOR`] after the first one that is remembered with
//! it. A refusal or an acceptance that has become wrong since then does no harm: an executor
//! declines a job that it cannot run, and the work is placed again.
//!
//! Threading: under the schedule's lock. The answers that a search has got do not change.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use siltstone_storage::Instant;

use crate::env::failures::JobKind;
use crate::jobs::choice::Answer;
use crate::types::limits::KeyspaceId;

/// How long answers are remembered.
const KEPT_FOR: Duration = Duration::from_secs(1);

/// The maximum number of works whose answers are remembered.
const KNOWN_MAX: usize = 256;

/// The identity of a pick: its tables and the level of its outputs, or the memtable of a flush.
pub(crate) type PickKey = (KeyspaceId, JobKind, Vec<u64>);

/// The answers of the sides, by work.
pub(super) type Known = BTreeMap<PickKey, Vec<Answer>>;

/// See the module.
#[derive(Default)]
pub(crate) struct Answers {
    known: Arc<Known>,
    /// When the first of them was given.
    since: Option<Instant>,
}

impl Answers {
    /// The answers that still count.
    pub(super) fn at(&mut self, now: Instant) -> Arc<Known> {
        let is_old = self.since.is_some_and(|since| now.since(since) >= KEPT_FOR);
        if is_old || self.known.len() > KNOWN_MAX {
            *self = Answers::default();
        }
        self.known.clone()
    }

    /// Remembers answers that were given now.
    pub(super) fn note(
        &mut self,
        answers: impl IntoIterator<Item = (PickKey, Vec<Answer>)>,
        now: Instant,
    ) {
        self.since.get_or_insert(now);
        Arc::make_mut(&mut self.known).extend(answers);
    }
}

#[cfg(test)]
mod tests {
    use siltstone_storage::Runtime;

    use super::*;

    fn key(table: u64) -> PickKey {
        (1, JobKind::Compaction, vec![table])
    }

    #[test]
    fn answers_are_forgotten_after_a_second_and_if_there_are_too_many() {
        let start = Runtime::threads().now();
        let after = |ms| start + Duration::from_millis(ms);
        let mut answers = Answers::default();
        answers.note([(key(1), vec![Answer::Accepts])], start);
        answers.note([(key(2), vec![Answer::Refuses])], after(900));
        let known = answers.at(after(999));
        assert_eq!(known.len(), 2);
        assert_eq!(known[&key(2)], [Answer::Refuses]);
        assert!(answers.at(after(1000)).is_empty());
        assert_eq!(known.len(), 2, "a search keeps what it has got");
        let many = (0..=KNOWN_MAX as u64).map(|table| (key(table), Vec::new()));
        answers.note(many, after(2000));
        assert!(answers.at(after(2000)).is_empty());
    }
}
