//! Jobs over three levels: a choice that would write to a level that is due itself writes to the
//! level below that one at once.
//!
//! What would come to rest in the level between is not written twice. [RFC
//! 10](../../../../../docs/rfc/0010-schedule.md), section 5, has the proof that such a choice keeps
//! C3 and C4 and passes no older data.
//!
//! Threading: pure functions.

use super::*;

impl Picker<'_> {
    /// The choice with the tables of the next level that it overlaps, if jobs over three levels are
    /// on, the level to which it writes is due itself, and nothing is in the way. Otherwise the
    /// choice as it was.
    pub(super) fn through_next_level(&self, choice: Choice, scores: &[f64; LEVEL_COUNT]) -> Choice {
        let is_wanted = self.input.options.three_levels
            && choice.kind == ChoiceKind::Merge
            && choice.to < BOTTOM_LEVEL
            && scores[usize::from(choice.to)] > 1.0;
        match is_wanted.then(|| self.deepened(&choice)).flatten() {
            Some(deepened) => deepened,
            None => choice,
        }
    }

    /// The choice with the tables of one more level. `None` if there are none, or if the job would
    /// be too large or in conflict with another one.
    fn deepened(&self, choice: &Choice) -> Option<Choice> {
        let (passed, to) = (choice.to, choice.to + 1);
        let below = self
            .input
            .version
            .level(to)
            .overlapping_tables(&choice.range);
        if below.is_empty() || below.iter().any(|table| self.is_reserved(table)) {
            return None;
        }
        // The job rewrites the tables of the lowest level, and saves that the others are written
        // once more. If the lowest level has more bytes than the others, that costs more than it
        // saves. The job also takes long, and other jobs, above all those of level 0, have to wait
        // for the tables of all three levels.
        if file_bytes(below) > choice.input_bytes {
            return None;
        }
        let mut inputs = choice.inputs.clone();
        inputs.push(LevelInput {
            level: to,
            run: None,
            tables: below.to_vec(),
        });
        let reason = format!(
            "{}; level {passed} is due too, so the job goes on to level {to}",
            choice.reason
        );
        let deepened = Choice {
            by_seeks: choice.by_seeks,
            ..Choice::new(choice.kind, to, inputs, choice.score, reason)?
        };
        let is_free = |(level, range): &(u8, KeyRange)| !self.span_taken(*level, range);
        let fits = deepened.input_bytes <= self.input.options.max_job_bytes;
        // The range has grown, so it is checked again on all levels.
        (fits && deepened.reservation().spans.iter().all(is_free)).then_some(deepened)
    }
}
