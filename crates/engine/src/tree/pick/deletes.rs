//! Chooses tables to compact because of their tombstones, so that deleting frees space without any
//! call.
//!
//! [`pick_deletes`] is called when no level is due. For each table with tombstones, it estimates
//! what share of the entries *in its reach* they delete: its own entries, and the entries of all
//! older tables that it overlaps. If the share is at least [`WORTH_SHARE`], the table moves down a
//! level, or is rewritten in place if nothing lies beneath it. Tables that a newer range delete
//! covers as a whole are dropped without being read.
//!
//! Why it ends: each choice brings tombstones a level down, or drops tombstones or tables; nothing
//! brings tombstones up. The share of *all* entries in reach, not only of the table's own, limits
//! the cost of a tombstone to at most `1 / WORTH_SHARE` rewritten entries per level. Tombstones
//! that a reader may still need to ignore ([`Deletes::oldest_read`]) do not count, and neither do
//! tables that were rewritten once without effect.
//!
//! Invariants: C1 to C5 of `pick` hold for these choices. **C6** A table is dropped only if one
//! source above it deletes all of its bounds for every reader. That range delete also hides the
//! older entries that the table hides, and it is kept as long as it overlaps anything older.
//!
//! Threading: pure functions.

use super::*;

/// The share of the entries in reach that must be deleted. Levels that are ten times larger than
/// the one above waste about an eighth too.
const WORTH_SHARE: f64 = 0.125;

/// The input of [`pick_deletes`] besides the version.
#[derive(Clone, Debug, Default)]
pub struct Deletes {
    /// The smallest sequence number at which a reader may still read: that of the oldest snapshot,
    /// or the published number.
    pub oldest_read: u64,
    /// For each table the key ranges that its range deletes cover, disjoint and in ascending order.
    /// A table that is not in the map has no ranges that count.
    pub ranges: BTreeMap<u64, Arc<Vec<KeyRange>>>,
    /// Tables that were rewritten without freeing any space.
    pub unproductive: BTreeSet<u64>,
}

/// Joins ranges that overlap, as [`Deletes::ranges`] requires.
pub fn joined_ranges(ranges: impl IntoIterator<Item = KeyRange>) -> Vec<KeyRange> {
    let mut joined: Vec<KeyRange> = Vec::new();
    let mut sorted: Vec<KeyRange> = ranges.into_iter().collect();
    sorted.sort_by(|a, b| a.start.cmp(&b.start));
    for range in sorted {
        match joined.last_mut() {
            // Half-open neighbours meet where one ends. Together they cover a range that lies over
            // both.
            Some(last)
                if last.end.reaches(&range.start) || last.end.key() == Some(&range.start[..]) =>
            {
                if range.end > last.end {
                    last.end = range.end;
                }
            }
            _ => joined.push(range),
        }
    }
    joined
}

/// The share of `range` that `part` covers, 0 to 1, estimated from the eight bytes that follow the
/// common prefix of both ends of `range`. How keys are distributed inside a table is not known
/// without reading it.
fn share_of(range: &KeyRange, part: &KeyRange) -> f64 {
    if part.includes(range) {
        return 1.0;
    }
    let Some(common) = range.common(part) else {
        return 0.0;
    };
    let Some(end) = range.end.key() else {
        return 0.5;
    };
    let prefix = range
        .start
        .iter()
        .zip(end)
        .take_while(|(a, b)| a == b)
        .count();
    let place = |key: &[u8]| {
        let tail = key.get(prefix..).unwrap_or_default();
        (0..8).fold(0u64, |sum, i| {
            sum << 8 | u64::from(tail.get(i).copied().unwrap_or(0))
        }) as f64
    };
    let (from, to) = (place(&range.start), place(end));
    let (first, last) = (
        place(&common.start),
        common.end.key().map_or(to, place).min(to),
    );
    if to <= from {
        return 0.5;
    }
    ((last - first) / (to - from)).clamp(0.0, 1.0)
}

/// The bytes of the version's tables that lie in these disjoint, ascending ranges, estimated from
/// the tables' bounds.
pub fn covered_bytes(version: &KeyspaceVersion, ranges: &[KeyRange]) -> u64 {
    let of = |table: &TableMeta| {
        let from = ranges.partition_point(|r| !r.end.reaches(&table.bounds.start));
        let overlapping = ranges[from..]
            .iter()
            .take_while(|r| table.bounds.end.reaches(&r.start));
        let share: f64 = overlapping.map(|r| share_of(&table.bounds, r)).sum();
        (share.min(1.0) * table.file_bytes as f64) as u64
    };
    version.tables().map(|(_, table)| of(table)).sum()
}

/// Whether one of these disjoint, ascending ranges contains all of `bounds`.
fn covers(ranges: &[KeyRange], bounds: &KeyRange) -> bool {
    let at = ranges.partition_point(|r| !r.end.reaches(&bounds.start));
    ranges.get(at).is_some_and(|r| r.includes(bounds))
}

/// The estimated gain of compacting a group of tables.
#[derive(Default)]
struct Worth {
    deletes: u64,
    entries: u64,
    bytes: u64,
    covered_bytes: f64,
}

impl Worth {
    fn add(&mut self, table: &TableMeta) {
        self.entries = self
            .entries
            .saturating_add(table.entries)
            .saturating_add(table.range_deletes);
        self.bytes = self.bytes.saturating_add(table.file_bytes);
    }

    fn share(&self) -> f64 {
        let points = self.deletes as f64 / self.entries.max(1) as f64;
        (points + self.covered_bytes / self.bytes.max(1) as f64).min(1.0)
    }
}

impl Deletes {
    /// Whether every reader sees all of the table's tombstones.
    fn is_seen_by_all(&self, table: &TableMeta) -> bool {
        let (_, newest) = table.visible_seqs();
        newest <= self.oldest_read
    }

    /// Whether the table has tombstones that may be worth a compaction.
    fn counts(&self, table: &TableMeta) -> bool {
        table.deletes.saturating_add(table.range_deletes) > 0
            && self.is_seen_by_all(table)
            && !self.unproductive.contains(&table.id)
    }

    fn ranges_of(&self, table: &TableMeta) -> &[KeyRange] {
        self.ranges.get(&table.id).map_or(&[], |ranges| &ranges[..])
    }

    /// The ranges of a table that overlap `range`.
    fn overlapping<'a>(
        &'a self,
        table: &TableMeta,
        range: &'a KeyRange,
    ) -> impl Iterator<Item = &'a KeyRange> + use<'a> {
        let ranges = self.ranges_of(table);
        let from = ranges.partition_point(|r| !r.end.reaches(&range.start));
        ranges[from..]
            .iter()
            .take_while(|r| range.end.reaches(&r.start))
    }
}

impl Picker<'_> {
    /// Estimates the gain from the tombstones of some tables (newest first), counting all older
    /// entries that they overlap.
    fn worth(&self, deletes: &Deletes, group: &[&Arc<TableMeta>], level: u8) -> Option<Worth> {
        let range = hull(group.iter().copied())?;
        let mut worth = Worth::default();
        let deletes_of: Vec<&Arc<TableMeta>> = group
            .iter()
            .copied()
            .filter(|t| deletes.counts(t))
            .collect();
        for table in group {
            worth.add(table);
        }
        for table in &deletes_of {
            worth.deletes = worth.deletes.saturating_add(table.deletes);
        }
        let below = (level + 1..=BOTTOM_LEVEL)
            .flat_map(|l| self.input.version.level(l).overlapping_tables(&range));
        let mut bottommost = true;
        for table in below {
            bottommost = false;
            worth.add(table);
        }
        // Range deletes cover whatever is older. In level 0, older tables may be in the group
        // itself.
        let older = (level + 1..=BOTTOM_LEVEL)
            .flat_map(|l| self.input.version.level(l).overlapping_tables(&range));
        let within: &[&Arc<TableMeta>] = if level == 0 { group } else { &[] };
        for old in older.chain(within.iter().copied()) {
            let share: f64 = deletes_of
                .iter()
                .filter(|t| t.id != old.id)
                .flat_map(|t| deletes.overlapping(t, &old.bounds))
                .map(|r| share_of(&old.bounds, r))
                .sum();
            worth.covered_bytes += share.min(1.0) * old.file_bytes as f64;
        }
        if bottommost {
            // These range deletes hide nothing any more, so dropping them is a gain too.
            let own: u64 = deletes_of.iter().map(|t| t.range_deletes).sum();
            worth.deletes = worth.deletes.saturating_add(own);
        }
        Some(worth)
    }

    /// Tables that a newer range delete covers as a whole (C6), from the level in which they take
    /// the most bytes.
    fn covered_whole(&self, deletes: &Deletes) -> Option<Choice> {
        let version = self.input.version;
        let settled: BTreeSet<u64> = self.settled_runs().iter().map(|run| run.id).collect();
        // The walk goes from new to old, so it has seen everything above a table.
        let mut above: Vec<&[KeyRange]> = Vec::new();
        let mut best: Option<(u64, LevelInput)> = None;
        let mut look = |level: u8, run: Option<(u64, SeqRange)>, tables: &[Arc<TableMeta>]| {
            // Tables that leave level 0 count as moved down, so nothing older may be unsettled
            // (C1).
            let may_go = run.is_none_or(|(id, _)| settled.contains(&id));
            let covered: Vec<Arc<TableMeta>> = tables
                .iter()
                .filter(|_| may_go)
                .filter(|t| !self.is_reserved(t) && above.iter().any(|r| covers(r, &t.bounds)))
                .cloned()
                .collect();
            let bytes = file_bytes(&covered);
            if bytes > best.as_ref().map_or(0, |(bytes, _)| *bytes) {
                best = Some((
                    bytes,
                    LevelInput {
                        level,
                        run,
                        tables: covered,
                    },
                ));
            }
            above.extend(
                tables
                    .iter()
                    .filter(|t| deletes.is_seen_by_all(t))
                    .map(|t| deletes.ranges_of(t))
                    .filter(|ranges| !ranges.is_empty()),
            );
        };
        for run in version.runs() {
            look(0, Some((run.id, run.seqs)), run.tables.tables());
        }
        for (level, tables) in version.levels() {
            look(level, None, tables.tables());
        }
        let (bytes, input) = best?;
        let reason = format!(
            "{} tables ({bytes} bytes) of level {} are covered as a whole by newer range deletes",
            input.tables.len(),
            input.level
        );
        let level = input.level;
        Choice::new(ChoiceKind::Drop, level, vec![input], 1.0, reason)
    }

    /// A move of level 0 down, as if the level were due, if its tombstones are worth it.
    fn deletes_in_level0(&self, deletes: &Deletes) -> Option<(f64, Choice)> {
        let mut choice = self.level0_down(0.0, None)?;
        let group: Vec<&Arc<TableMeta>> = choice
            .inputs
            .iter()
            .filter(|input| input.level == 0)
            .flat_map(|input| &input.tables)
            .collect();
        if !group.iter().any(|t| deletes.counts(t)) {
            return None;
        }
        let worth = self.worth(deletes, &group, 0)?;
        choice.reason = deletes_reason("level 0", &worth);
        choice.score = worth.share();
        (worth.share() >= WORTH_SHARE).then_some((worth.share(), choice))
    }

    /// The table of a level whose tombstones are worth the most, with their worth.
    fn deletes_in_level(&self, deletes: &Deletes, level: u8) -> Option<(Worth, usize)> {
        let tables = self.input.version.level(level).tables();
        let mut best: Option<(Worth, usize)> = None;
        for (i, table) in tables.iter().enumerate() {
            if !deletes.counts(table) || self.is_reserved(table) {
                continue;
            }
            let Some(worth) = self.worth(deletes, &[table], level) else {
                continue;
            };
            let better = best
                .as_ref()
                .is_none_or(|(other, _)| worth.share() > other.share());
            if worth.share() >= WORTH_SHARE && better && self.can_leave(level, i) {
                best = Some((worth, i));
            }
        }
        best
    }

    fn is_bottommost(&self, level: u8, table: &TableMeta) -> bool {
        (level + 1..=BOTTOM_LEVEL).all(|l| !self.input.version.level(l).overlaps(&table.bounds))
    }

    /// Whether this table can be compacted now, without a conflict with a job.
    fn can_leave(&self, level: u8, index: usize) -> bool {
        let table = &self.input.version.level(level).tables()[index];
        match self.is_bottommost(level, table) {
            true => !self.span_taken(level, &table.bounds),
            false => self.can_go(level, index..index + 1),
        }
    }

    /// Rewrites a bottommost table in place, with neighbours that are worth it too: their remaining
    /// entries fit into fewer tables.
    fn rewrite_for_deletes(
        &self,
        deletes: &Deletes,
        level: u8,
        index: usize,
        worth: &Worth,
    ) -> Option<Choice> {
        let tables = self.input.version.level(level).tables();
        let fits = |from: usize, to: usize| {
            let group = &tables[from..to];
            file_bytes(group) <= self.input.options.max_job_bytes
                && hull(group).is_some_and(|range| !self.span_taken(level, &range))
        };
        let joins = |i: usize| {
            deletes.counts(&tables[i])
                && !self.is_reserved(&tables[i])
                && self.is_bottommost(level, &tables[i])
                && self
                    .worth(deletes, &[&tables[i]], level)
                    .is_some_and(|w| w.share() >= WORTH_SHARE)
        };
        let (mut from, mut to) = (index, index + 1);
        while to < tables.len() && joins(to) && fits(from, to + 1) {
            to += 1;
        }
        while from > 0 && joins(from - 1) && fits(from - 1, to) {
            from -= 1;
        }
        let inputs = vec![LevelInput {
            level,
            run: None,
            tables: tables[from..to].to_vec(),
        }];
        let what = format!("level {level}, table {}", tables[index].id);
        Choice::new(
            ChoiceKind::Rewrite,
            level,
            inputs,
            worth.share(),
            deletes_reason(&what, worth),
        )
    }
}

fn deletes_reason(what: &str, worth: &Worth) -> String {
    format!(
        "{what}: tombstones delete about {:.0}% of the {} entries in their reach",
        100.0 * worth.share(),
        worth.entries
    )
}

/// The next choice because of tombstones. `None` if a level is due ([`pick`] comes first), if no
/// compaction is worth it, or if jobs already work on those that are.
pub fn pick_deletes(input: &PickInput<'_>, deletes: &Deletes) -> Option<Choice> {
    let picker = Picker::new(input);
    if picker.scores().iter().any(|score| *score >= 1.0) {
        return None;
    }
    if let Some(choice) = picker.covered_whole(deletes) {
        return Some(choice);
    }
    let best = (1..=BOTTOM_LEVEL)
        .filter_map(|level| {
            let (worth, index) = picker.deletes_in_level(deletes, level)?;
            Some((level, worth, index))
        })
        // Of equal shares the higher level is taken, because its compaction may make that of the
        // lower one needless.
        .reduce(|best, next| match next.1.share() > best.1.share() {
            true => next,
            false => best,
        });
    let level0 = picker.deletes_in_level0(deletes);
    match (level0, best) {
        (Some((share, choice)), best)
            if best.as_ref().is_none_or(|(_, w, _)| share >= w.share()) =>
        {
            Some(choice)
        }
        (_, Some((level, worth, index))) => {
            let table = &input.version.level(level).tables()[index];
            match picker.is_bottommost(level, table) {
                true => picker.rewrite_for_deletes(deletes, level, index, &worth),
                false => {
                    let what = format!("level {level}, table {}", table.id);
                    picker.down_from(
                        level,
                        index,
                        0..input.version.level(level).len(),
                        None,
                        (worth.share(), deletes_reason(&what, &worth)),
                    )
                }
            }
        }
        _ => None,
    }
}
