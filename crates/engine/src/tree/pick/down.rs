//! Moves tables of a level below level 0 down by one level: which table goes (priority 2), and
//! which neighbours go with it.
//!
//! Invariants: C3 and C4 of `pick`. The index of overlaps and a sweep of both levels find the same
//! table.
//!
//! Threading: pure functions.

use super::overlaps::{Order, sums};
use super::*;

impl Picker<'_> {
    /// Priority 2: takes the table with the fewest overlapping tables below, and neighbours that
    /// cost nothing more.
    pub(super) fn level_down(
        &self,
        level: u8,
        score: f64,
        within: Option<&KeyRange>,
    ) -> Option<Choice> {
        let version = self.input.version;
        let (upper, lower) = (version.level(level), version.level(level + 1));
        let candidates = match within {
            Some(range) => upper.overlapping(range),
            None => 0..upper.len(),
        };
        let by_overlaps = self.input.options.second_score;
        let index = match (within, self.input.overlaps) {
            (None, _) if !by_overlaps => self.next_free(level),
            (None, Some(overlaps)) if overlaps.is_of(version) => {
                self.fewest_by_index(level, overlaps)
            }
            _ => self.fewest_by_sweep(level, candidates.clone()),
        }?;
        let table = &upper.tables()[index];
        let reason = match within {
            Some(range) => format!("level {level} is compacted on request in {range}"),
            None => format!(
                "level {level} has {} bytes of {}; table {} overlaps {} below, {}",
                upper.file_bytes(),
                self.targets.bytes[usize::from(level)],
                table.id,
                lower.overlapping(&table.bounds).len(),
                match by_overlaps {
                    true => "the fewest",
                    false => "and is the next one that is free",
                },
            ),
        };
        self.down_from(level, index, candidates, within, (score, reason))
    }

    /// Whether a table may go down now: no job has it or one of these tables below it, and none
    /// works in its range.
    fn is_free(&self, level: u8, index: usize) -> bool {
        let table = &self.input.version.level(level).tables()[index];
        !self.is_reserved(table) && self.can_go(level, index..index + 1)
    }

    /// The next table of a level that may go down, after the keys of the last pick. So the picks go
    /// through all keys in turn, as with the pointer of LevelDB.
    fn next_free(&self, level: u8) -> Option<usize> {
        let tables = self.input.version.level(level).tables();
        let next = match &self.input.last_picked[usize::from(level)] {
            Some(last) => tables.partition_point(|table| table.bounds.start <= *last),
            None => 0,
        };
        let mut in_turn = (next..tables.len()).chain(0..next);
        in_turn.find(|index| self.is_free(level, *index))
    }

    /// The table with the fewest overlaps of those that may go down, by the index of overlaps.
    fn fewest_by_index(&self, level: u8, overlaps: &Overlaps) -> Option<usize> {
        let upper = self.input.version.level(level);
        overlaps
            .in_order(level)
            .filter_map(|(_, table)| upper.find(&table.bounds.start))
            .find(|index| self.is_free(level, *index))
    }

    /// The table with the fewest overlaps of those that may go down, by one pass over both levels:
    /// bounds ascend, so the overlapping ranges ascend too.
    fn fewest_by_sweep(&self, level: u8, candidates: std::ops::Range<usize>) -> Option<usize> {
        let version = self.input.version;
        let (upper, lower) = (version.level(level), version.level(level + 1));
        let mut best: Option<(Order, usize)> = None;
        let mut first = 0;
        for i in candidates {
            let table = &upper.tables()[i];
            while lower
                .tables()
                .get(first)
                .is_some_and(|t| !t.bounds.end.reaches(&table.bounds.start))
            {
                first += 1;
            }
            let below = &lower.tables()[first..];
            let below =
                &below[..below.partition_point(|t| table.bounds.end.reaches(&t.bounds.start))];
            let (count, bytes) = sums(below);
            let order = (count, bytes, table.id);
            if best.is_none_or(|(other, _)| order < other) && self.is_free(level, i) {
                best = Some((order, i));
            }
        }
        best.map(|(_, index)| index)
    }

    /// Moves a table of a level down, with neighbours among the candidates that cost nothing more.
    pub(super) fn down_from(
        &self,
        level: u8,
        index: usize,
        candidates: std::ops::Range<usize>,
        within: Option<&KeyRange>,
        (score, reason): (f64, String),
    ) -> Option<Choice> {
        let (version, options) = (self.input.version, self.input.options);
        let (upper, lower) = (version.level(level), version.level(level + 1));
        let mut chosen = index..index + 1;
        // Neighbours whose overlapping tables below are taken anyway, as long as the job stays
        // small.
        let below_of =
            |indices: &std::ops::Range<usize>| match hull(&upper.tables()[indices.clone()]) {
                Some(range) => lower.overlapping(&range),
                None => 0..0,
            };
        let below = below_of(&chosen);
        let cost = |indices: &std::ops::Range<usize>| {
            file_bytes(&upper.tables()[indices.clone()])
                .saturating_add(file_bytes(&lower.tables()[below.clone()]))
        };
        let grows = |indices: &std::ops::Range<usize>| {
            let wider = below_of(indices);
            (wider == below || wider.is_empty() && below.is_empty())
                && cost(indices) <= options.max_job_bytes
                && upper.tables()[indices.clone()]
                    .iter()
                    .all(|t| !self.is_reserved(t))
                && self.can_go(level, indices.clone())
        };
        // If no table lies below, every table moves by itself at no cost.
        if !below.is_empty() || within.is_some() {
            while chosen.end < candidates.end && grows(&(chosen.start..chosen.end + 1)) {
                chosen.end += 1;
            }
            while chosen.start > candidates.start && grows(&(chosen.start - 1..chosen.end)) {
                chosen.start -= 1;
            }
        }
        let tables = upper.tables()[chosen].to_vec();
        let mut inputs = vec![LevelInput {
            level,
            run: None,
            tables,
        }];
        let moves = (below.is_empty() || planted!(MoveIntoOverlap))
            && self.may_move(level, level + 1, &inputs);
        let below = if moves { 0..0 } else { below };
        inputs.push(LevelInput {
            level: level + 1,
            run: None,
            tables: lower.tables()[below].to_vec(),
        });
        let kind = if moves {
            ChoiceKind::TrivialMove
        } else {
            ChoiceKind::Merge
        };
        Choice::new(kind, level + 1, inputs, score, reason)
    }

    /// Whether no job is in conflict with these tables of a level moving down (C4).
    pub(super) fn can_go(&self, level: u8, indices: std::ops::Range<usize>) -> bool {
        let version = self.input.version;
        let Some(range) = hull(&version.level(level).tables()[indices]) else {
            return false;
        };
        let below = version.level(level + 1).overlapping_tables(&range);
        let out = below
            .iter()
            .fold(range.clone(), |range, t| range.joint(&t.bounds));
        below.iter().all(|t| !self.is_reserved(t))
            && !self.span_taken(level, &range)
            && !self.span_taken(level + 1, &out)
    }
}
