//! Picks of level 0: its runs move down to the base level, or neighbours among them merge within
//! level 0 while the older ones cannot move down.
//!
//! Invariants: C1, C4 and C5 of `pick`.
//!
//! Threading: pure functions.

use super::*;

impl<'a> Picker<'a> {
    /// How urgent level 0 is by the number of its runs.
    pub(super) fn level0_score(&self) -> f64 {
        let (version, options) = (self.input.version, self.input.options);
        let run_count = match options.first_score {
            true => self.free_runs().count(),
            false => version.runs().len(),
        };
        run_count as f64 / options.l0_trigger_count.max(1) as f64
    }

    /// The installed runs that are older than every unsettled source, oldest first. This is the
    /// strict form of C1: an unsettled source may have any key.
    pub(super) fn settled_runs(&self) -> Vec<&'a Arc<Run>> {
        let limit = self
            .input
            .unsettled
            .iter()
            .filter(|u| !u.is_empty())
            .map(|u| u.lo)
            .min()
            .unwrap_or(u64::MAX);
        self.input
            .version
            .runs()
            .iter()
            .rev()
            .take_while(|run| run.seqs.hi <= limit)
            .collect()
    }

    /// Moves level 0 to the base level. `within` limits this to tables that overlap a range, and to
    /// tables that must move with them.
    pub(super) fn level0_down(&self, score: f64, within: Option<&KeyRange>) -> Option<Choice> {
        let (version, base) = (self.input.version, self.targets.base);
        let settled = self.settled_runs();
        let newest_settled = settled.last()?;
        // No table may come down where jobs work on the base level or on a level that it passes ...
        let mut walls = Ranges::default();
        for (level, range) in self.input.jobs.iter().flat_map(|job| &*job.spans) {
            if (1..=base).contains(level) {
                walls.add(range);
            }
        }
        for table in version
            .level(base)
            .tables()
            .iter()
            .filter(|t| self.is_reserved(t))
        {
            walls.add(&table.bounds);
        }
        // ... or where a level-0 table stays.
        let mut stays = Ranges::default();
        // From old to new, a table may move if it overlaps no table that stays. Tables that are too
        // much for one job stay too.
        let mut taken: Vec<(&Arc<Run>, Vec<Arc<TableMeta>>)> = Vec::new();
        let mut bytes = 0u64;
        for run in &settled {
            if within.is_none() && bytes >= self.input.options.max_job_bytes {
                break;
            }
            let mut tables = Vec::new();
            for table in run.tables.tables() {
                let bounds = &table.bounds;
                if self.is_reserved(table) || walls.overlaps(bounds) || stays.overlaps(bounds) {
                    stays.add(self.output_range(table).unwrap_or(bounds));
                } else {
                    tables.push(table.clone());
                }
            }
            bytes = bytes.saturating_add(file_bytes(&tables));
            if !tables.is_empty() {
                taken.push((run, tables));
            }
        }
        // The range of a job is one piece, and outputs may lie anywhere in it, so only tables
        // between two walls move together. The piece with the most bytes is taken; for a manual
        // range, only a piece that the range overlaps.
        let piece = |t: &TableMeta| {
            walls
                .ranges
                .partition_point(|r| !r.end.reaches(&t.bounds.start))
        };
        let mut pieces: Vec<(u64, bool)> = vec![(0, false); walls.ranges.len() + 1];
        for table in taken.iter().flat_map(|(_, tables)| tables) {
            let piece = &mut pieces[piece(table)];
            piece.0 = piece.0.saturating_add(table.file_bytes.max(1));
            piece.1 |= within.is_none_or(|range| range.overlaps(&table.bounds));
        }
        let (chosen, _) = pieces
            .iter()
            .enumerate()
            .filter(|(_, (bytes, wanted))| *bytes > 0 && *wanted)
            .max_by_key(|(i, (bytes, _))| (*bytes, std::cmp::Reverse(*i)))?;
        for (_, tables) in &mut taken {
            tables.retain(|t| piece(t) == chosen);
        }
        let cut = match within {
            None => self.first_part(&taken),
            Some(range) => Some(range.clone()),
        };
        if let Some(range) = &cut {
            self.keep_what_must_go(&mut taken, range);
        }
        let mut inputs: Vec<LevelInput> = taken
            .into_iter()
            .rev()
            .map(|(run, tables)| LevelInput {
                level: 0,
                run: Some((run.id, run.seqs)),
                tables,
            })
            .collect();
        let range = hull(inputs.iter().flat_map(|input| &input.tables))?;
        let below = version.level(base).overlapping_tables(&range).to_vec();
        let run_count = inputs
            .iter()
            .filter(|input| !input.tables.is_empty())
            .count();
        let seek_bytes = match within {
            None => self.level0_seek_bytes(),
            Some(_) => None,
        };
        let due = match seek_bytes {
            Some(bytes) => format!("lookups read {bytes} bytes of them in vain"),
            None => format!("due at {}", self.input.options.l0_trigger_count),
        };
        let reason = format!(
            "{run_count} of {} runs of level 0 move down ({due}), all up to {}",
            version.runs().len(),
            newest_settled.seqs.hi,
        );
        let moves = below.is_empty() && self.may_move(0, base, &inputs);
        inputs.push(LevelInput {
            level: base,
            run: None,
            tables: below,
        });
        let kind = if moves {
            ChoiceKind::TrivialMove
        } else {
            ChoiceKind::Merge
        };
        let choice = Choice::new(kind, base, inputs, score, reason)?;
        Some(Choice {
            by_seeks: seek_bytes.is_some(),
            ..choice
        })
    }

    /// Moves level 0 down because it has tables at the second location, if there is time for it.
    /// What the job makes is at location 0.
    pub(super) fn back(&self, levels: std::ops::Range<u8>) -> Option<Choice> {
        let runs = self.input.version.runs().iter();
        let mut tables = runs.flat_map(|run| run.tables.tables());
        let is_there = |t: &Arc<TableMeta>| t.location != 0 && !self.is_reserved(t);
        if !self.input.is_calm || !levels.contains(&0) || !tables.any(is_there) {
            return None;
        }
        let mut choice = self.level0_down(1.0, None)?;
        choice.reason = "level 0 has tables at the second location, which come back".to_string();
        choice.by_seeks = false;
        Some(choice)
    }

    /// If these tables are far too many for one job, a range for which they are about enough: that
    /// of the first tables of the largest run. A run that was merged within level 0 can be larger
    /// than a job. Older runs of one flush span all keys, and go down as a whole with the first
    /// part.
    fn first_part(&self, taken: &[(&Arc<Run>, Vec<Arc<TableMeta>>)]) -> Option<KeyRange> {
        let max_job_bytes = self.input.options.max_job_bytes;
        let of_run = |run: &(&Arc<Run>, Vec<Arc<TableMeta>>)| file_bytes(&run.1);
        let all: u64 = taken.iter().map(of_run).fold(0, u64::saturating_add);
        if all <= max_job_bytes.saturating_mul(2) {
            return None;
        }
        let (_, tables) = taken.iter().max_by_key(|run| of_run(run))?;
        let mut bytes = 0u64;
        let first = tables.iter().take_while(|table| {
            let is_enough = bytes >= max_job_bytes;
            bytes = bytes.saturating_add(table.file_bytes);
            !is_enough
        });
        hull(first)
    }

    /// Keeps the tables that overlap `range`, and every older table that overlaps a kept one.
    fn keep_what_must_go(&self, taken: &mut [(&Arc<Run>, Vec<Arc<TableMeta>>)], range: &KeyRange) {
        let mut wanted = Ranges::default();
        wanted.add(range);
        // From new to old, tables of an older run that a newer table overlaps must move too.
        for (_, tables) in taken.iter_mut().rev() {
            tables.retain(|t| wanted.overlaps(&t.bounds));
            for table in tables.iter() {
                wanted.add(&table.bounds);
            }
        }
    }

    /// Merges newer neighbouring runs while the older ones cannot move down (C5).
    /// Such a merge has at most `most` bytes.
    pub(super) fn within_level0(&self, score: f64, most: u64) -> Option<Choice> {
        let options = self.input.options;
        let count = match self.input.jobs.is_empty() {
            true => options.l0_intra_count,
            false => options.l0_intra_count.max(options.l0_intra_busy_count),
        };
        let run_count = self.free_runs().count();
        let free_count = match options.redirects {
            // What lookups search. Scans search all runs, also disjoint ones.
            true => depth(self.free_runs().map(|run| &run.tables)).max(run_count / 4),
            false => run_count,
        };
        if free_count < count {
            return None;
        }
        let all = self.input.version.runs();
        let (runs, max_bytes) = match options.redirects {
            true => self.mergeable(all),
            false => (all, options.max_job_bytes),
        };
        let max_bytes = max_bytes.min(most);
        let is_free = |run: &Run| run.tables.tables().iter().all(|t| !self.is_reserved(t));
        let mut best: Option<(f64, &[Arc<Run>])> = None;
        let mut start = 0;
        while start < runs.len() {
            // The longest group of neighbours from `start` on that are not reserved.
            let mut end = start;
            while end < runs.len()
                && is_free(&runs[end])
                && (end == start || self.are_neighbours(&runs[end - 1], &runs[end]))
            {
                end += 1;
            }
            // The cost is the number of bytes read for each run that the merge saves. Groups begin
            // with the newest run, because older ones are about to move down.
            let mut bytes = 0u64;
            for (count, run) in runs[start..end]
                .iter()
                .enumerate()
                .map(|(i, run)| (i + 1, run))
            {
                bytes = bytes.saturating_add(run.tables.file_bytes());
                if bytes > max_bytes {
                    break;
                }
                if count < options.l0_intra_min_count.max(2) {
                    continue;
                }
                let cost = bytes as f64 / (count - 1) as f64;
                let group = &runs[start..start + count];
                if best.is_none_or(|(other, _)| cost < other)
                    && (self.may_widen(start, group) || planted!(WidensPastMovingTables))
                {
                    best = Some((cost, group));
                }
            }
            start = end.max(start + 1);
        }
        let (_, group) = best?;
        let inputs = group
            .iter()
            .map(|run| LevelInput {
                level: 0,
                run: Some((run.id, run.seqs)),
                tables: run.tables.tables().to_vec(),
            })
            .collect();
        let reason = format!(
            "level 0 has {} runs and the oldest cannot move down now: {} newer neighbours merge",
            all.len(),
            group.len()
        );
        Choice::new(ChoiceKind::IntraL0, 0, inputs, score, reason)
    }

    /// The runs that may merge within level 0 with `redirect`, and the most bytes of one merge. The
    /// oldest runs are left out, as many as make a compaction due and at most a quarter of the
    /// largest job: the next job takes them down, and must not wait for a merge. If level 0 is very
    /// large, an eighth of it may be merged at once, so that it has few runs whatever its size is,
    /// but not more than a quarter of the free bytes.
    fn mergeable<'r>(&self, runs: &'r [Arc<Run>]) -> (&'r [Arc<Run>], u64) {
        let options = self.input.options;
        let bytes_of = |run: &Arc<Run>| run.tables.file_bytes();
        let mut oldest = 0u64;
        let kept = runs.iter().rev().take(options.l0_trigger_count);
        let kept = kept.take_while(|run| {
            oldest = oldest.saturating_add(bytes_of(run));
            oldest <= options.max_job_bytes / 4
        });
        let kept = kept.count();
        let all = runs.iter().map(bytes_of).fold(0, u64::saturating_add);
        let free = self.input.free_bytes.unwrap_or(u64::MAX);
        let most = options.max_job_bytes.max((all / 8).min(free / 4));
        (&runs[..runs.len() - kept], most)
    }

    /// Whether no other source's slot lies between two runs.
    fn are_neighbours(&self, newer: &Run, older: &Run) -> bool {
        let joint = newer.seqs.joint(older.seqs);
        self.input.version.covered().includes(joint)
            && !self.input.unsettled.iter().any(|u| u.overlaps(joint))
    }
}
