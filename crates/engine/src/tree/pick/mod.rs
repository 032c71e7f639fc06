//! Chooses the tables to compact next, as a pure function of one keyspace's version.
//!
//! [`pick`] takes a version, the reservations of work that has not ended, and the sources that are
//! not installed yet, and returns a [`Choice`] or nothing. [`pick_manual`] moves a key range down
//! level by level. [`soft_cuts`], [`hard_cuts`] and [`older_ranges`] derive the job's parameters
//! besides the inputs of a choice.
//!
//! Invariants (each has its reason in RFC 1, section 5):
//! - **C1** Only the oldest suffix of installed runs moves down from level 0: the runs that are
//!   older than every unsettled source, and of these only tables that overlap no older level-0
//!   table that stays.
//! - **C2** No order of sequence numbers is assumed below level 0: only key ranges count.
//! - **C3** A choice takes every table of the output level that overlaps its range.
//! - **C4** A choice's [`Reservation`] is disjoint from those of all work that has not ended: no
//!   table is taken twice, and the key ranges of two jobs overlap on no level. Within level 0 only
//!   tables count.
//! - **C5** Runs merge within level 0 only with neighbours, and the joint range contains no slot of
//!   another source.
//!
//! Threading: pure functions.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use siltstone_storage::planted;

use crate::formats::version::{
    End, Key, KeyRange, KeyspaceVersion, RemoveTable, Run, SeqRange, TABLE_NEEDS_REWRITE, TableMeta,
};
use crate::types::limits::{BOTTOM_LEVEL, LEVEL_COUNT};

/// The tables and key ranges that a compaction keeps from other picks until it has ended: while its
/// job runs, and while it waits for another attempt. A clone shares them, because each pick gets
/// all reservations of its keyspace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reservation {
    /// The ids of the input tables, ascending.
    pub tables: Arc<[u64]>,
    /// Key ranges by level within which the job takes, makes or passes tables. It makes them on the
    /// deepest of these levels. Only a merge within level 0 has a range there: its outputs may lie
    /// anywhere in it, in the slot of the inputs.
    pub spans: Arc<[(u8, KeyRange)]>,
}

/// For each level, the first key of the last table that was picked to go down. `None` if there was
/// no such pick.
pub type LastPicked = [Option<Key>; LEVEL_COUNT];

/// The state before the first pick.
pub static NOTHING_PICKED: LastPicked = [const { None }; LEVEL_COUNT];

/// The input of [`pick`].
#[derive(Clone, Debug)]
pub struct PickInput<'a> {
    /// The keyspace's installed sources.
    pub version: &'a KeyspaceVersion,
    /// The options that decide when and how much to compact.
    pub options: &'a PickOptions,
    /// The reservations of the keyspace's compactions that have not ended.
    pub jobs: &'a [Reservation],
    /// Slots of sources that have sequence numbers and are not installed: memtables, including
    /// active ones, and unfinished ingests. These sources may have any key.
    pub unsettled: &'a [SeqRange],
    /// By the id of a table: bytes that lookups have read from its file without finding their key
    /// in it. Tables for which these are few may be left out.
    pub seek_bytes: &'a BTreeMap<u64, u64>,
    /// The overlaps of the version's tables. It only saves time: the choice is the same without it.
    pub overlaps: Option<&'a Overlaps>,
    /// The last pick of each level. Without the second score the next table in the order of keys is
    /// picked.
    pub last_picked: &'a LastPicked,
    /// Free bytes where tables are written, if they are known.
    pub free_bytes: Option<u64>,
    /// Ids of tables at the second location that could not be read. They stay where they are, as if
    /// they were reserved.
    pub unread: &'a [u64],
    /// No memtable of the store waits for long, so there is time to bring tables back from the
    /// second location.
    pub is_calm: bool,
}

/// The kind of work of a choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ChoiceKind {
    /// Merge the inputs into new tables.
    Merge,
    /// Move the inputs to the output level unchanged. This is an edit without a job.
    TrivialMove,
    /// Merge neighbouring level-0 runs into one run.
    IntraL0,
    /// Rewrite tables in place, to drop entries that no reader needs.
    Rewrite,
    /// Drop the inputs, which newer range deletes cover as a whole. This is an edit without a job.
    Drop,
}

/// The tables that a choice takes from one level-0 run, or from one other level.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LevelInput {
    /// The level.
    pub level: u8,
    /// For level 0: the run, as id and sequence range.
    pub run: Option<(u64, SeqRange)>,
    /// The tables, in ascending order.
    pub tables: Vec<Arc<TableMeta>>,
}

/// The next piece of work. It becomes a job, or an edit if it is a trivial move or a drop.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice {
    /// The kind of work.
    pub kind: ChoiceKind,
    /// The topmost input level.
    pub from: u8,
    /// The level of the outputs.
    pub to: u8,
    /// The inputs, newest first: for each user key, the versions of an earlier input are newer.
    pub inputs: Vec<LevelInput>,
    /// The smallest range that contains all inputs. It bounds the job, and so its outputs.
    pub range: KeyRange,
    /// For a merge within level 0: the slot of the output run.
    pub output_seqs: Option<SeqRange>,
    /// How urgent the work is. It is due from 1 on.
    pub score: f64,
    /// Bytes of the input files.
    pub input_bytes: u64,
    /// The compaction is due only because of lookups in vain ([`PickOptions::seek_compaction`]).
    pub by_seeks: bool,
    /// The reason, as text for people.
    pub reason: String,
}

impl Choice {
    fn new(
        kind: ChoiceKind,
        to: u8,
        inputs: Vec<LevelInput>,
        score: f64,
        reason: String,
    ) -> Option<Choice> {
        let inputs: Vec<LevelInput> = inputs
            .into_iter()
            .filter(|input| !input.tables.is_empty())
            .collect();
        let range = hull(inputs.iter().flat_map(|input| &input.tables))?;
        let input_bytes = file_bytes(inputs.iter().flat_map(|input| &input.tables));
        let from = inputs.first()?.level;
        let output_seqs = match to {
            0 => inputs
                .iter()
                .filter_map(|input| input.run)
                .map(|(_, seqs)| seqs)
                .reduce(SeqRange::joint),
            _ => None,
        };
        Some(Choice {
            kind,
            from,
            to,
            inputs,
            range,
            output_seqs,
            score,
            input_bytes,
            by_seeks: false,
            reason,
        })
    }

    /// All input tables, newest input first.
    pub fn tables(&self) -> impl Iterator<Item = &Arc<TableMeta>> {
        self.inputs.iter().flat_map(|input| &input.tables)
    }

    /// The removals of an edit that replaces the inputs.
    pub fn removals(&self) -> Vec<RemoveTable> {
        let of = |input: &LevelInput| {
            let level = input.level;
            input
                .tables
                .iter()
                .map(move |t| RemoveTable { level, id: t.id })
                .collect::<Vec<_>>()
        };
        self.inputs.iter().flat_map(of).collect()
    }

    /// The level below level 0 from which tables go down, and the first key of the last of them.
    /// `None` if the topmost inputs are runs of level 0.
    pub fn picked(&self) -> Option<(u8, &Key)> {
        let input = self.inputs.first().filter(|input| input.level > 0)?;
        Some((input.level, &input.tables.last()?.bounds.start))
    }

    /// The reservation of the choice until its work has ended (C4). The outputs will lie beneath
    /// the levels that inputs pass, so no job may put tables there.
    pub fn reservation(&self) -> Reservation {
        let mut tables: Vec<u64> = self.tables().map(|t| t.id).collect();
        tables.sort_unstable();
        let mut spans = Vec::new();
        for level in self.from.max(1)..self.to {
            // What passes or leaves this level. All levels below level 0 are passed by outputs of
            // the whole range.
            let passes = |input: &&LevelInput| {
                input.level == level || input.level < level && !planted!(PassedLevelIsNotReserved)
            };
            let range = match self.from {
                0 => Some(self.range.clone()),
                _ => hull(self.inputs.iter().filter(passes).flat_map(|i| &i.tables)),
            };
            spans.extend(range.map(|range| (level, range)));
        }
        spans.push((self.to, self.range.clone()));
        Reservation {
            tables: tables.into(),
            spans: spans.into(),
        }
    }
}

/// A range that a caller asked to compact.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ManualRange {
    /// The range of keys.
    pub range: KeyRange,
    /// Whether to rewrite the bottommost tables that are older than the request, too, to drop
    /// tombstones and old versions.
    pub rewrite_bottom: bool,
    /// The store's next table id at the time of the request. Tables with this id or a greater one
    /// are its own outputs.
    pub first_new_table_id: u64,
}

/// The next step of a manual compaction.
#[derive(Clone, Debug, PartialEq)]
pub enum ManualStep {
    /// Do this work, and call [`pick_manual`] again.
    Job(Choice),
    /// A table or source is reserved or not installed. Call [`pick_manual`] again after the next
    /// install.
    Wait,
    /// The manual compaction is done.
    Done,
}

/// The smallest range that contains all of these tables.
fn hull<'a>(tables: impl IntoIterator<Item = &'a Arc<TableMeta>>) -> Option<KeyRange> {
    tables
        .into_iter()
        .fold(None, |range: Option<KeyRange>, t| match range {
            None => Some(t.bounds.clone()),
            Some(range) => Some(range.joint(&t.bounds)),
        })
}

pub(in crate::tree) fn file_bytes<'a>(tables: impl IntoIterator<Item = &'a Arc<TableMeta>>) -> u64 {
    tables
        .into_iter()
        .fold(0, |sum, t| sum.saturating_add(t.file_bytes))
}

/// A set of key ranges for tests of overlap. Ranges that overlap are joined.
#[derive(Default)]
struct Ranges {
    ranges: Vec<KeyRange>,
}

impl Ranges {
    /// Adds a range and joins it with those that it overlaps.
    fn add(&mut self, range: &KeyRange) {
        // The ranges are disjoint and in ascending order, so both starts and ends ascend.
        let from = self
            .ranges
            .partition_point(|r| !r.end.reaches(&range.start));
        if self.ranges.get(from).is_some_and(|r| r.includes(range)) {
            return;
        }
        let to = from + self.ranges[from..].partition_point(|r| range.end.reaches(&r.start));
        let union = self.ranges[from..to]
            .iter()
            .fold(range.clone(), |a, b| a.joint(b));
        self.ranges.splice(from..to, [union]);
    }

    fn overlaps(&self, range: &KeyRange) -> bool {
        let at = self
            .ranges
            .partition_point(|r| !r.end.reaches(&range.start));
        self.ranges.get(at).is_some_and(|r| r.overlaps(range))
    }
}

/// The state of one pick.
struct Picker<'a> {
    input: &'a PickInput<'a>,
    targets: Targets,
    reserved: ReservedTables,
}

/// The tables of all reservations, and those that could not be read. A pick asks about each table
/// of the keyspace, and most tables are free. One bit, which the table's id selects, answers for
/// most of these without a search.
struct ReservedTables {
    /// The bit `id % 1024` is set for each id.
    bits: [u64; 16],
    /// Ascending.
    ids: Vec<u64>,
}

impl ReservedTables {
    fn of(jobs: &[Reservation], unread: &[u64]) -> ReservedTables {
        let of_jobs = jobs.iter().flat_map(|job| &*job.tables);
        let mut ids: Vec<u64> = of_jobs.chain(unread).copied().collect();
        ids.sort_unstable();
        let mut bits = [0; 16];
        for id in &ids {
            bits[Self::word(*id)] |= 1 << (id % 64);
        }
        ReservedTables { bits, ids }
    }

    fn word(id: u64) -> usize {
        (id / 64 % 16) as usize
    }

    fn contains(&self, id: u64) -> bool {
        self.bits[Self::word(id)] & 1 << (id % 64) != 0 && self.ids.binary_search(&id).is_ok()
    }
}

impl<'a> Picker<'a> {
    fn new(input: &'a PickInput<'a>) -> Picker<'a> {
        Picker {
            input,
            targets: targets(input.version, input.options, input.jobs),
            reserved: ReservedTables::of(input.jobs, input.unread),
        }
    }

    fn is_reserved(&self, table: &TableMeta) -> bool {
        self.reserved.contains(table.id)
    }

    /// Whether a job takes or makes tables in this range of this level.
    fn span_taken(&self, level: u8, range: &KeyRange) -> bool {
        self.input
            .jobs
            .iter()
            .flat_map(|job| &*job.spans)
            .any(|(l, r)| *l == level && r.overlaps(range))
    }

    /// The range in which the outputs of the job that merges this table within level 0 may lie. It
    /// is larger than the bounds of the job's inputs.
    fn output_range(&self, table: &TableMeta) -> Option<&'a KeyRange> {
        let job = self
            .input
            .jobs
            .iter()
            .find(|job| job.tables.binary_search(&table.id).is_ok())?;
        job.spans
            .iter()
            .find(|(level, _)| *level == 0)
            .map(|(_, range)| range)
    }

    /// Whether the runs from `start` on may be merged into one, whose tables can cover the gaps
    /// between their tables. This is refused while a job moves newer tables down past them.
    fn may_widen(&self, start: usize, group: &[Arc<Run>]) -> bool {
        let Some(range) = hull(group.iter().flat_map(|run| run.tables.tables())) else {
            return false;
        };
        let newer = &self.input.version.runs()[..start];
        newer
            .iter()
            .flat_map(|run| run.tables.overlapping_tables(&range))
            .all(|t| !self.is_reserved(t))
    }

    /// The runs with a table that is not reserved.
    fn free_runs(&self) -> impl Iterator<Item = &'a Arc<Run>> {
        self.input
            .version
            .runs()
            .iter()
            .filter(|run| run.tables.tables().iter().any(|t| !self.is_reserved(t)))
    }

    /// Priority 1: how urgent each level is. The tables that are reserved do not count, unless the
    /// options say so.
    fn scores(&self) -> [f64; LEVEL_COUNT] {
        let (version, options) = (self.input.version, self.input.options);
        let mut scores = [0.0; LEVEL_COUNT];
        scores[0] = match self.level0_seek_bytes() {
            Some(_) => 1.0,
            None => self.level0_score(),
        };
        for (level, tables) in version.levels() {
            // There is no level below the bottom.
            if level == BOTTOM_LEVEL {
                continue;
            }
            let taken = match options.first_score {
                true => file_bytes(tables.tables().iter().filter(|t| self.is_reserved(t))),
                false => 0,
            };
            let bytes = tables.file_bytes().saturating_sub(taken);
            scores[usize::from(level)] = if level >= self.targets.first_needed {
                bytes as f64 / self.targets.bytes[usize::from(level)] as f64
            } else if bytes > 0 {
                // The level is not needed, so it is emptied when no other level is more urgent.
                1.0
            } else {
                0.0
            };
        }
        scores
    }

    /// Whether inputs with nothing below them may be moved unchanged.
    fn may_move(&self, from: u8, to: u8, inputs: &[LevelInput]) -> bool {
        let (version, options) = (self.input.version, self.input.options);
        let mut tables: Vec<&Arc<TableMeta>> =
            inputs.iter().flat_map(|input| &input.tables).collect();
        tables.sort_by(|a, b| a.bounds.start.cmp(&b.bounds.start));
        let disjoint = tables
            .windows(2)
            .all(|pair| !pair[0].bounds.end.reaches(&pair[1].bounds.start));
        // Many small tables would stay small for ever.
        let raw_bytes = tables
            .iter()
            .fold(0u64, |sum, t| sum.saturating_add(t.raw_bytes));
        let large =
            tables.len() == 1 || raw_bytes / tables.len().max(1) as u64 >= options.table_bytes / 8;
        disjoint
            && large
            && options.compression.at(from) == options.compression.at(to)
            && tables.iter().all(|t| {
                let grandparents = match to + 1 {
                    below if below <= BOTTOM_LEVEL => {
                        version.level(below).overlapping(&t.bounds).len()
                    }
                    _ => 0,
                };
                // A merge drops tombstones with nothing beneath them, and a move keeps them.
                let nothing_below =
                    (to..=BOTTOM_LEVEL).all(|l| !version.level(l).overlaps(&t.bounds));
                let tombstones = t.deletes.saturating_add(t.range_deletes);
                t.flags & TABLE_NEEDS_REWRITE == 0
                    // Below level 0, all tables are at location 0.
                    && t.location == 0
                    && grandparents <= options.max_grandparent_count
                    && !(nothing_below && tombstones > 0 && tombstones >= t.entries / 4)
            })
    }

    /// Rewrites old bottommost tables within a manual range.
    fn rewrite_bottom(&self, manual: &ManualRange) -> ManualStep {
        let version = self.input.version;
        let (mut waits, mut chosen) = (false, None);
        for (level, tables) in version.levels() {
            let is_bottommost = |t: &TableMeta| {
                (level + 1..=BOTTOM_LEVEL).all(|below| !version.level(below).overlaps(&t.bounds))
            };
            let is_due = |t: &TableMeta| t.id < manual.first_new_table_id && is_bottommost(t);
            let mut group: Vec<Arc<TableMeta>> = Vec::new();
            for table in tables.overlapping_tables(&manual.range) {
                let due = is_due(table);
                let free =
                    due && !self.is_reserved(table) && !self.span_taken(level, &table.bounds);
                waits |= due && !free;
                let fits = group.is_empty()
                    || file_bytes(&group).saturating_add(table.file_bytes)
                        <= self.input.options.max_job_bytes;
                match free && fits {
                    true => group.push(table.clone()),
                    false if group.is_empty() => {}
                    false => break,
                }
            }
            if !group.is_empty() && chosen.is_none() {
                let reason = format!("level {level} is rewritten on request in {}", manual.range);
                let inputs = vec![LevelInput {
                    level,
                    run: None,
                    tables: group,
                }];
                chosen = Choice::new(ChoiceKind::Rewrite, level, inputs, 1.0, reason);
            }
        }
        match chosen {
            // The range of the group may cover a gap in which a job works.
            Some(choice) if !self.span_taken(choice.to, &choice.range) => ManualStep::Job(choice),
            None if !waits => ManualStep::Done,
            _ => ManualStep::Wait,
        }
    }
}

/// How urgent each level is: it is due from 1 on. Level 0 counts runs, and the others count bytes,
/// without tables that jobs have reserved. If lookups in vain make level 0 due, it has 1.
pub fn scores(input: &PickInput<'_>) -> [f64; LEVEL_COUNT] {
    Picker::new(input).scores()
}

/// The next piece of work of a keyspace. `None` if no level is due and no table goes down because
/// of lookups in vain or comes back from the second location, or if jobs are already working on the
/// levels that are due.
pub fn pick(input: &PickInput<'_>) -> Option<Choice> {
    pick_of(input, 0..BOTTOM_LEVEL)
}

/// Like [`pick`], for levels that are due among these.
pub fn pick_of(input: &PickInput<'_>, levels: std::ops::Range<u8>) -> Option<Choice> {
    let picker = Picker::new(input);
    let scores = picker.scores();
    let mut due: Vec<u8> = levels
        .clone()
        .filter(|level| scores[usize::from(*level)] >= 1.0)
        .collect();
    // The highest score comes first. Of equal scores the higher level comes first, since it costs
    // reads the most. (The sort is stable.)
    due.sort_by(|a, b| scores[usize::from(*b)].total_cmp(&scores[usize::from(*a)]));
    let nothing_due = scores.iter().all(|score| *score < 1.0);
    let picked = due.into_iter().find_map(|level| {
        let score = scores[usize::from(level)];
        let down = match level {
            0 => picker.level0_down(score, None),
            _ => picker.level_down(level, score, None),
        };
        match down {
            Some(choice) => Some(picker.through_next_level(choice, &scores)),
            None if level == 0 => picker.within_level0(score, u64::MAX),
            None => None,
        }
    });
    let picked = match picked {
        None if nothing_due => picker.down_by_seeks(levels.clone()),
        picked => picked,
    };
    // This has time until nothing else is to be done.
    picked.or_else(|| picker.back(levels))
}

/// The next merge within level 0 of at most `most` bytes, if one is due.
pub fn pick_within_level0(input: &PickInput<'_>, most: u64) -> Option<Choice> {
    let picker = Picker::new(input);
    let score = picker.level0_score();
    let within = || picker.within_level0(score, most);
    (score >= 1.0).then(within).flatten()
}

/// The next step of a manual compaction. Everything in the range moves down to the deepest level
/// that has data in it (from level 0 at least to the base level). Then the bottommost tables are
/// rewritten, if the request says so. The caller flushes memtables first; sources that it reports
/// as unsettled only delay the compaction.
pub fn pick_manual(input: &PickInput<'_>, manual: &ManualRange) -> ManualStep {
    let picker = Picker::new(input);
    let version = input.version;
    if version
        .runs()
        .iter()
        .any(|run| run.tables.overlaps(&manual.range))
    {
        return match picker.level0_down(1.0, Some(&manual.range)) {
            Some(mut choice) => {
                choice.reason = format!("level 0 is compacted on request in {}", manual.range);
                ManualStep::Job(choice)
            }
            None => ManualStep::Wait,
        };
    }
    let deepest = version
        .levels()
        .rev()
        .find(|(_, l)| l.overlaps(&manual.range))
        .map_or(0, |(level, _)| level);
    for level in 1..deepest {
        if !version.level(level).overlaps(&manual.range) {
            continue;
        }
        return match picker.level_down(level, 1.0, Some(&manual.range)) {
            Some(choice) => ManualStep::Job(choice),
            None => ManualStep::Wait,
        };
    }
    // A job may still be moving tables into the range.
    if input
        .jobs
        .iter()
        .flat_map(|job| &*job.spans)
        .any(|(_, range)| range.overlaps(&manual.range))
    {
        return ManualStep::Wait;
    }
    match manual.rewrite_bottom {
        true => picker.rewrite_bottom(manual),
        false => ManualStep::Done,
    }
}

mod bounds;
mod deletes;
mod depth;
mod down;
mod level0;
mod overlaps;
mod seeks;
mod targets;
mod three_levels;

pub use crate::tree::pick::targets::{PickOptions, Targets, targets};
pub use bounds::{Division, hard_cuts, older_ranges, soft_cuts};
pub use deletes::{Deletes, covered_bytes, joined_ranges, pick_deletes};
pub use depth::depth;
pub use overlaps::Overlaps;

#[cfg(test)]
pub(in crate::tree) mod tests;
