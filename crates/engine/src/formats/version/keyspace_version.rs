//! The installed sources of one keyspace at one moment, and the only function that changes them.
//!
//! [`KeyspaceVersion`] is a persistent value: level-0 runs, newest first, levels 1 to 6, and the
//! set of sequence numbers that installed sources cover. [`KeyspaceVersion::apply`] makes the next
//! version, which shares every level that did not change.
//!
//! Invariants, which `apply` checks for every edit (if one is violated, the call fails and the old
//! version stays):
//! - **K1** Runs have disjoint, non-empty sequence ranges, newest first. The range of a run is
//!   covered, so the joint range of a merge never takes the slot of a source that is not installed.
//!   The numbers of a run lie in its range.
//! - **K2** Within a run and within a level, tables have disjoint bounds. The id of a table occurs
//!   once.
//! - **K3** An edit removes only tables that exist. One edit adds the whole of a run.
//! - **K4** Nothing is installed beneath something that moved down: a newly covered range lies
//!   above [`KeyspaceVersion::moved_through`], the greatest `hi` of a run from which tables moved
//!   below level 0.
//! - **K5** No table passes older data: when tables move below level 0, no older run that stays
//!   overlaps them; when tables move from level i to level j, no table that stays on a level
//!   between overlaps them.
//! - **K6** A table never moves up.
//!
//! Two things cannot be checked here. The outcome's verification checks that an output holds the
//! newest versions of its inputs' keys. Whoever picks a job knows the sources that have sequence
//! numbers and are not installed yet: they are an input of `tree::pick`.
//!
//! Threading: immutable values.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::edit::{AddTable, KeyspaceEdit, RemoveTable, RunSlot};
use super::level::{Level, Run};
use super::meta::{KeyRange, SeqSet, TableMeta};
use crate::types::error::{Error, ErrorKind, Result};
use crate::types::limits::{BOTTOM_LEVEL, KeyspaceId, LEVEL_COUNT};

/// The installed sources of one keyspace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyspaceVersion {
    id: KeyspaceId,
    runs: Vec<Arc<Run>>,
    levels: [Arc<Level>; LEVEL_COUNT - 1],
    covered: SeqSet,
    moved_through: u64,
}

#[cold]
fn refused(id: KeyspaceId, what: impl Into<String>) -> Error {
    Error::new(
        ErrorKind::Corruption,
        format!("keyspace {id} cannot take the edit: {}", what.into()),
    )
}

impl KeyspaceVersion {
    /// The version of an empty keyspace.
    pub fn new(id: KeyspaceId) -> KeyspaceVersion {
        let empty = Arc::new(Level::default());
        KeyspaceVersion {
            id,
            runs: Vec::new(),
            levels: std::array::from_fn(|_| empty.clone()),
            covered: SeqSet::new(),
            moved_through: 0,
        }
    }

    /// The keyspace's id.
    pub fn id(&self) -> KeyspaceId {
        self.id
    }

    /// The runs of level 0, newest first.
    pub fn runs(&self) -> &[Arc<Run>] {
        &self.runs
    }

    /// One of the levels 1 to 6.
    ///
    /// # Panics
    /// For any other number. Level 0 has runs.
    pub fn level(&self, level: u8) -> &Arc<Level> {
        assert!(
            (1..=BOTTOM_LEVEL).contains(&level),
            "level {level} is not in 1 to {BOTTOM_LEVEL}"
        );
        &self.levels[usize::from(level) - 1]
    }

    /// The levels 1 to 6 with their numbers.
    pub fn levels(&self) -> impl DoubleEndedIterator<Item = (u8, &Arc<Level>)> {
        (1..=BOTTOM_LEVEL).zip(&self.levels)
    }

    /// The sequence numbers that installed sources cover. Replay skips them.
    pub fn covered(&self) -> &SeqSet {
        &self.covered
    }

    /// The greatest `hi` of a run from which tables moved below level 0.
    pub fn moved_through(&self) -> u64 {
        self.moved_through
    }

    /// All tables with their levels: runs from new to old, then the levels from 1 on.
    pub fn tables(&self) -> impl Iterator<Item = (u8, &Arc<TableMeta>)> {
        let runs = self
            .runs
            .iter()
            .flat_map(|run| run.tables.tables())
            .map(|t| (0, t));
        runs.chain(
            self.levels()
                .flat_map(|(level, l)| l.tables().iter().map(move |t| (level, t))),
        )
    }

    /// The same version with all tables at location 0, for a store in whose one folder they are.
    ///
    /// # Errors
    /// None, because the tables are as disjoint as before; those of [`Level::new`] are passed on.
    pub(crate) fn at_one_location(&self) -> Result<KeyspaceVersion> {
        let moved = |level: &Level| {
            let table = |table: &Arc<TableMeta>| match table.location {
                0 => table.clone(),
                _ => Arc::new(TableMeta {
                    location: 0,
                    ..TableMeta::clone(table)
                }),
            };
            Level::new(level.tables().iter().map(table).collect())
        };
        let run = |run: &Arc<Run>| {
            let tables = moved(&run.tables)?;
            let (id, seqs) = (run.id, run.seqs);
            Ok(Arc::new(Run { id, seqs, tables }))
        };
        let mut version = self.clone();
        version.runs = self.runs.iter().map(run).collect::<Result<_>>()?;
        for level in &mut version.levels {
            *level = Arc::new(moved(level)?);
        }
        Ok(version)
    }

    /// The number of tables.
    pub fn table_count(&self) -> usize {
        self.tables().count()
    }

    /// The bytes of all files of a level.
    pub fn level_file_bytes(&self, level: u8) -> u64 {
        match level {
            0 => self
                .runs
                .iter()
                .fold(0u64, |sum, run| sum.saturating_add(run.tables.file_bytes())),
            _ => self.level(level).file_bytes(),
        }
    }

    /// The deepest level that has a table; `None` if the keyspace is empty.
    pub fn deepest_level(&self) -> Option<u8> {
        let below = self
            .levels()
            .rev()
            .find(|(_, l)| !l.is_empty())
            .map(|(level, _)| level);
        below.or((!self.runs.is_empty()).then_some(0))
    }

    /// The version after `edit`.
    ///
    /// # Errors
    /// `Corruption` if one of K1 to K6 would be violated. The error names the keyspace and the
    /// table, and says what is wrong.
    pub fn apply(&self, edit: &KeyspaceEdit) -> Result<KeyspaceVersion> {
        let id = self.id;
        let mut next = self.clone();
        next.cover(edit, self.moved_through)?;

        let mut added_ids: Vec<u64> = edit.add.iter().map(|add| add.table.id).collect();
        added_ids.sort_unstable();
        if let Some(pair) = added_ids.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(refused(id, format!("table {} is added twice", pair[0])));
        }

        let removed = next.take_out(&edit.remove)?;
        if let Some((level, table)) = next
            .tables()
            .find(|(_, t)| added_ids.binary_search(&t.id).is_ok())
        {
            return Err(refused(
                id,
                format!(
                    "table {} is added and is on level {level} already",
                    table.id
                ),
            ));
        }
        for add in &edit.add {
            add.table
                .check()
                .map_err(|e| e.context(format!("keyspace {id}")))?;
            let moved_up = removed
                .iter()
                .find(|r| r.table.id == add.table.id && r.level > add.level);
            if let Some(old) = moved_up {
                let what = format!(
                    "table {} moves up from level {} to {}",
                    add.table.id, old.level, add.level
                );
                return Err(refused(id, what));
            }
        }
        next.check_order(&removed, &edit.add)?;
        next.put_in(&edit.add)?;

        // A removed level-0 table whose slot no added run took over has moved down, or is deleted,
        // which counts the same.
        for gone in &removed {
            let Some(slot) = gone.run else { continue };
            let stays_above = edit
                .add
                .iter()
                .any(|add| add.run.is_some_and(|run| run.seqs.includes(slot.seqs)));
            if !stays_above {
                next.moved_through = next.moved_through.max(slot.seqs.hi);
            }
        }
        next.moved_through = next.moved_through.max(edit.moved_through.unwrap_or(0));
        Ok(next)
    }

    /// Adds the ranges that the edit covers (K4).
    fn cover(&mut self, edit: &KeyspaceEdit, moved_through: u64) -> Result<()> {
        for range in &edit.covered {
            if range.is_empty() {
                continue;
            }
            if self.covered.overlaps(*range) {
                return Err(refused(
                    self.id,
                    format!("the range {range} is covered already, at least in part"),
                ));
            }
            if range.lo < moved_through {
                return Err(refused(
                    self.id,
                    format!(
                        "the source {range} is older than {moved_through}, which has moved down \
                         already"
                    ),
                ));
            }
            self.covered.insert(*range);
        }
        if let Some(floor) = edit.covered_floor {
            self.covered.insert(super::meta::SeqRange::new(0, floor));
        }
        Ok(())
    }

    /// Removes the tables that the edit removes (K3), and returns them.
    fn take_out(&mut self, remove: &[RemoveTable]) -> Result<Vec<Removed>> {
        let mut removed = Vec::new();
        if remove.is_empty() {
            return Ok(removed);
        }
        let mut wanted = remove.to_vec();
        wanted.sort_unstable();
        for r in remove {
            if r.level > BOTTOM_LEVEL {
                return Err(refused(self.id, format!("there is no level {}", r.level)));
            }
        }
        if let Some(twice) = wanted.windows(2).find(|pair| pair[0] == pair[1]) {
            let id = twice[0].id;
            return Err(refused(self.id, format!("table {id} is removed twice")));
        }
        let mut seen = vec![false; wanted.len()];
        let mut keep = |level: u8, run: Option<RunSlot>, table: &Arc<TableMeta>| {
            let id = table.id;
            match wanted.binary_search(&RemoveTable { level, id }) {
                Ok(index) => {
                    seen[index] = true;
                    removed.push(Removed {
                        level,
                        run,
                        table: table.clone(),
                    });
                    false
                }
                Err(_) => true,
            }
        };
        let mut filter =
            |level: u8, run: Option<RunSlot>, set: &Level| -> Option<Vec<Arc<TableMeta>>> {
                let kept: Vec<_> = set
                    .tables()
                    .iter()
                    .filter(|t| keep(level, run, t))
                    .cloned()
                    .collect();
                (kept.len() != set.len()).then_some(kept)
            };
        if remove.iter().any(|r| r.level == 0) {
            let mut runs = Vec::with_capacity(self.runs.len());
            for run in &self.runs {
                match filter(
                    0,
                    Some(RunSlot {
                        id: run.id,
                        seqs: run.seqs,
                    }),
                    &run.tables,
                ) {
                    None => runs.push(run.clone()),
                    Some(kept) if kept.is_empty() => {}
                    Some(kept) => runs.push(Arc::new(Run {
                        id: run.id,
                        seqs: run.seqs,
                        tables: Level::new(kept)?,
                    })),
                }
            }
            self.runs = runs;
        }
        for level in 1..=BOTTOM_LEVEL {
            if remove.iter().any(|r| r.level == level) {
                let slot = &mut self.levels[usize::from(level) - 1];
                if let Some(kept) = filter(level, None, slot) {
                    *slot = Arc::new(Level::new(kept)?);
                }
            }
        }
        match wanted.iter().zip(&seen).find(|(_, seen)| !**seen) {
            Some((missing, _)) => Err(refused(
                self.id,
                format!("table {} is not on level {}", missing.id, missing.level),
            )),
            None => Ok(removed),
        }
    }

    /// Checks K5, on the version without the removed and without the added tables.
    fn check_order(&self, removed: &[Removed], add: &[AddTable]) -> Result<()> {
        let Some(target) = add.iter().map(|a| a.level).max().filter(|level| *level > 0) else {
            return Ok(());
        };
        let below =
            |removed: &Removed| (removed.level + 1..target).map(|level| (level, self.level(level)));
        for gone in removed.iter().filter(|r| r.level < target) {
            if let Some(slot) = gone.run {
                let taken_over = add
                    .iter()
                    .any(|a| a.run.is_some_and(|run| run.seqs.includes(slot.seqs)));
                if taken_over {
                    continue;
                }
                let passed = self.runs.iter().find(|run| {
                    run.seqs.hi <= slot.seqs.lo && run.tables.overlaps(&gone.table.bounds)
                });
                if let Some(run) = passed {
                    return Err(refused(
                        self.id,
                        format!(
                            "table {} of run {} {} moves down past the older run {} {}",
                            gone.table.id, slot.id, slot.seqs, run.id, run.seqs
                        ),
                    ));
                }
            }
            for (level, tables) in below(gone) {
                if let Some(stays) = tables.overlapping_tables(&gone.table.bounds).first() {
                    return Err(refused(
                        self.id,
                        format!(
                            "table {} moves down past table {} of level {level}",
                            gone.table.id, stays.id
                        ),
                    ));
                }
            }
        }
        Ok(())
    }

    /// Adds the tables that the edit adds (K1, K2, K3).
    fn put_in(&mut self, add: &[AddTable]) -> Result<()> {
        let mut new_runs: BTreeMap<u64, (RunSlot, Vec<Arc<TableMeta>>)> = BTreeMap::new();
        for level in 1..=BOTTOM_LEVEL {
            if add.iter().any(|a| a.level == level) {
                let slot = &mut self.levels[usize::from(level) - 1];
                let new = add
                    .iter()
                    .filter(|a| a.level == level)
                    .map(|a| a.table.clone());
                let all = slot.tables().iter().cloned().chain(new).collect();
                *slot = Arc::new(
                    Level::new(all)
                        .map_err(|e| e.context(format!("keyspace {}, level {level}", self.id)))?,
                );
            }
        }
        for a in add {
            match (a.level, a.run) {
                (0, Some(slot)) => {
                    let run = new_runs
                        .entry(slot.id)
                        .or_insert_with(|| (slot, Vec::new()));
                    if run.0 != slot {
                        return Err(refused(
                            self.id,
                            format!("run {} is given two ranges", slot.id),
                        ));
                    }
                    run.1.push(a.table.clone());
                }
                (1..=BOTTOM_LEVEL, None) => {}
                (level, _) => {
                    return Err(refused(
                        self.id,
                        format!("table {} on level {level} has the wrong run", a.table.id),
                    ));
                }
            }
        }
        for (slot, tables) in new_runs.into_values() {
            self.insert_run(slot, tables)?;
        }
        Ok(())
    }

    fn insert_run(&mut self, slot: RunSlot, tables: Vec<Arc<TableMeta>>) -> Result<()> {
        let RunSlot { id, seqs } = slot;
        if seqs.is_empty() {
            return Err(refused(
                self.id,
                format!("run {id} has the empty range {seqs}"),
            ));
        }
        if !self.covered.includes(seqs) {
            return Err(refused(
                self.id,
                format!(
                    "the range {seqs} of run {id} holds numbers of a source that is not installed"
                ),
            ));
        }
        for table in &tables {
            let (min, max) = table.visible_seqs();
            if !(seqs.contains(min) && seqs.contains(max)) {
                return Err(refused(
                    self.id,
                    format!(
                        "table {} has the numbers {min} to {max}, outside run {id} {seqs}",
                        table.id
                    ),
                ));
            }
        }
        if self.runs.iter().any(|run| run.id == id) {
            return Err(refused(self.id, format!("run {id} exists already")));
        }
        let at = self.runs.partition_point(|run| run.seqs.lo > seqs.lo);
        let newer = at.checked_sub(1).and_then(|i| self.runs.get(i));
        if let Some(other) = newer
            .into_iter()
            .chain(self.runs.get(at))
            .find(|run| run.seqs.overlaps(seqs))
        {
            return Err(refused(
                self.id,
                format!(
                    "the ranges of run {id} {seqs} and run {} {} overlap",
                    other.id, other.seqs
                ),
            ));
        }
        let tables =
            Level::new(tables).map_err(|e| e.context(format!("keyspace {}, run {id}", self.id)))?;
        self.runs.insert(at, Arc::new(Run { id, seqs, tables }));
        Ok(())
    }

    /// The edit that makes this version from an empty one.
    pub fn to_edit(&self) -> KeyspaceEdit {
        let mut edit = KeyspaceEdit::new(self.id);
        edit.covered = self.covered.ranges().to_vec();
        edit.moved_through = (self.moved_through > 0).then_some(self.moved_through);
        for run in &self.runs {
            let slot = RunSlot {
                id: run.id,
                seqs: run.seqs,
            };
            edit.add_run(slot, run.tables.tables());
        }
        for (level, tables) in self.levels() {
            edit.add_to_level(level, tables.tables());
        }
        edit
    }

    /// Checks K1 and K2 of the whole version, from its contents alone.
    ///
    /// # Errors
    /// `Corruption` with the first violation.
    pub fn check(&self) -> Result<()> {
        let mut empty = KeyspaceVersion::new(self.id);
        let mut edit = self.to_edit();
        // `moved_through` is history, not contents: with it, the runs below it could not be added
        // again one by one.
        let moved_through = edit.moved_through.take().unwrap_or(0);
        empty = empty.apply(&edit)?;
        empty.moved_through = moved_through;
        if empty != *self {
            return Err(refused(
                self.id,
                "its version differs from the one that its tables make",
            ));
        }
        if self
            .covered
            .ranges()
            .windows(2)
            .any(|pair| pair[0].hi >= pair[1].lo)
        {
            return Err(refused(self.id, "its covered ranges are out of order"));
        }
        Ok(())
    }

    /// The key ranges of those tables of a level that overlap `range`.
    pub fn overlapping_bounds(&self, level: u8, range: &KeyRange) -> Vec<KeyRange> {
        let of = |set: &Level| {
            set.overlapping_tables(range)
                .iter()
                .map(|t| t.bounds.clone())
                .collect::<Vec<_>>()
        };
        match level {
            0 => self.runs.iter().flat_map(|run| of(&run.tables)).collect(),
            _ => of(self.level(level)),
        }
    }
}

/// A table that an edit removed, and where it was.
struct Removed {
    level: u8,
    run: Option<RunSlot>,
    table: Arc<TableMeta>,
}
