//! Edits: the changes of a store's state.
//!
//! An [`Edit`] is one atomic step from one state of the whole store to the next, over any number of
//! keyspaces. Its bytes are a list of fields (`codec.rs`).
//!
//! Invariant: [`Edit::check_limits`] accepts only numbers with which no later computation
//! overflows.
//!
//! Threading: immutable values.

use std::sync::Arc;

use siltstone_table::limits::MAX_TABLE_COUNT;

pub use crate::formats::version::codec::SEAL_TAG;
pub use crate::types::fields::MUST_UNDERSTAND;
use crate::types::fields::malformed;
pub use crate::types::options::stored::{StoredOptions, option};

use super::level::Run;
use super::meta::{SeqRange, TableMeta};
use crate::formats::log::format::{
    MAX_SEGMENT_BYTES, MAX_SEGMENT_NUMBER, MAX_SEQUENCE, RECORD_ALIGN_BYTES, SEGMENT_HEADER_BYTES,
};
use crate::formats::log::position::{LogPosition, LogStart};
use crate::types::error::{Error, ErrorKind, Result};
use crate::types::limits::KeyspaceId;

/// The longest name of a keyspace, in bytes.
pub const MAX_KEYSPACE_NAME_BYTES: usize = 255;

/// The most opens of a store. Names of files contain the number, and additions to it must never
/// overflow.
pub const MAX_OPEN_NUMBER: u64 = 1 << 48;

/// The largest id of a table or run.
pub const MAX_TABLE_ID: u64 = (1 << 56) - 1;

/// The slot of a level-0 run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunSlot {
    /// The run's id.
    pub id: u64,
    /// The range of sequence numbers that the run covers.
    pub seqs: SeqRange,
}

/// A table that an edit adds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddTable {
    /// The level.
    pub level: u8,
    /// The run it belongs to, for level 0 only. One edit adds all tables of a run.
    pub run: Option<RunSlot>,
    /// The table.
    pub table: Arc<TableMeta>,
}

/// A table that an edit removes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RemoveTable {
    /// The level it is on.
    pub level: u8,
    /// Its id.
    pub id: u64,
}

/// A keyspace that an edit creates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreateKeyspace {
    /// Its id: at least the state's `next_keyspace_id`.
    pub id: KeyspaceId,
    /// Its name, at most [`MAX_KEYSPACE_NAME_BYTES`].
    pub name: String,
    /// The sequence number of the creation. Smaller numbers count as covered.
    pub sequence: u64,
    /// Its options.
    pub options: StoredOptions,
}

/// The changes of one keyspace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyspaceEdit {
    /// The keyspace.
    pub id: KeyspaceId,
    /// Sequence ranges of the sources that this edit installs. They must not overlap what is
    /// covered already.
    pub covered: Vec<SeqRange>,
    /// All numbers up to this one count as covered, because no segment that is still replayed holds
    /// one of them for this keyspace.
    pub covered_floor: Option<u64>,
    /// For whole-state edits: the largest `hi` of a run that moved below level 0. Other edits
    /// derive it.
    pub moved_through: Option<u64>,
    /// Tables to remove.
    pub remove: Vec<RemoveTable>,
    /// Tables to add. An edit that moves a table removes and adds it.
    pub add: Vec<AddTable>,
    /// New options, which replace all old ones.
    pub options: Option<StoredOptions>,
}

/// One atomic change of the store's state. Fields that are `None` stay as they are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Edit {
    /// Whether this edit describes the whole state. It then applies only to the empty state.
    pub whole: bool,
    /// Every id of a table or run is less than this.
    pub next_table_id: Option<u64>,
    /// No sequence number above this was ever given.
    pub sequence_ceiling: Option<u64>,
    /// How often the store was opened for writing. The names of its files contain this number.
    pub open_number: Option<u64>,
    /// Where the log starts.
    pub log_start: Option<LogStart>,
    /// The position through which the log is known to be synced.
    pub log_synced: Option<LogPosition>,
    /// Whether this edit closes the store: the log ends exactly at the synced position.
    pub closed: bool,
    /// When the store was created, in microseconds since 1970. Only people use it.
    pub created_us: Option<u64>,
    /// Every id of a keyspace is less than this.
    pub next_keyspace_id: Option<KeyspaceId>,
    /// Keyspaces to drop. They are dropped before those in `create` are created.
    pub drop: Vec<KeyspaceId>,
    /// Keyspaces to create, in ascending order of ids.
    pub create: Vec<CreateKeyspace>,
    /// Changes of keyspaces, including those that this edit creates; at most one for each.
    pub keyspaces: Vec<KeyspaceEdit>,
}

/// A decoded edit, and the number of its fields that this build ignored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decoded {
    /// The edit.
    pub edit: Edit,
    /// The number of fields with an unknown tag that need not be understood.
    pub ignored_count: u64,
}

/// Refuses a number that is larger than a store can reach.
fn within(what: &str, number: Option<u64>, max: u64) -> Result<()> {
    match number {
        Some(number) if number > max => Err(Error::new(
            ErrorKind::Corruption,
            format!("{what} is larger than a store can reach"),
        )
        .expected(format!("at most {max}"))
        .found(number)),
        _ => Ok(()),
    }
}

fn check_table(add: &AddTable) -> Result<()> {
    let t = &*add.table;
    within("a table's id", Some(t.id), MAX_TABLE_ID)?;
    if let Some(run) = add.run {
        within("a run's id", Some(run.id), MAX_TABLE_ID)?;
        within("a run's last number", Some(run.seqs.hi), MAX_SEQUENCE)?;
    }
    for (what, number) in [
        ("a table's smallest sequence number", Some(t.min_seq)),
        ("a table's largest sequence number", Some(t.max_seq)),
        ("a table's sequence override", t.sequence_override),
    ] {
        within(what, number, MAX_SEQUENCE)?;
    }
    for (what, number) in [
        ("a table's raw length", t.raw_bytes),
        ("a table's length", t.file_bytes),
        ("a table's count of entries", t.entries),
        ("a table's count of deletes", t.deletes),
        ("a table's count of range deletes", t.range_deletes),
    ] {
        within(what, Some(number), MAX_TABLE_COUNT)?;
    }
    Ok(())
}

impl KeyspaceEdit {
    fn check_limits(&self) -> Result<()> {
        let highest = self.covered.iter().map(|range| range.hi).max();
        within("the end of a covered range", highest, MAX_SEQUENCE)?;
        within("a covered floor", self.covered_floor, MAX_SEQUENCE)?;
        within("a moved-through mark", self.moved_through, MAX_SEQUENCE)?;
        self.add.iter().try_for_each(check_table)
    }

    /// An edit of `id` that changes nothing yet.
    pub fn new(id: KeyspaceId) -> KeyspaceEdit {
        KeyspaceEdit {
            id,
            ..KeyspaceEdit::default()
        }
    }

    /// The edit that a flush, an ingest or a recovery commits: it installs new runs of level 0 and
    /// covers their ranges, so that no replay brings back their entries.
    pub fn adding(id: KeyspaceId, runs: &[Run]) -> KeyspaceEdit {
        let mut edit = KeyspaceEdit::new(id);
        for run in runs {
            edit.covered.push(run.seqs);
            let slot = RunSlot {
                id: run.id,
                seqs: run.seqs,
            };
            edit.add_run(slot, run.tables.tables());
        }
        edit
    }

    /// As [`KeyspaceEdit::adding`], for runs that are all that the keyspace holds up to the number
    /// `published`: everything up to it is then covered.
    pub fn adding_through(id: KeyspaceId, runs: &[Run], published: u64) -> KeyspaceEdit {
        KeyspaceEdit {
            covered_floor: Some(published),
            ..KeyspaceEdit::adding(id, runs)
        }
    }

    /// Adds the tables of a run of level 0. Its range is not added to what is covered: a merge
    /// within level 0 makes a run of numbers that are covered already.
    pub fn add_run(&mut self, run: RunSlot, tables: &[Arc<TableMeta>]) {
        self.add.extend(tables.iter().map(|table| AddTable {
            level: 0,
            run: Some(run),
            table: table.clone(),
        }));
    }

    /// Adds tables to a level below level 0.
    pub fn add_to_level(&mut self, level: u8, tables: &[Arc<TableMeta>]) {
        self.add.extend(tables.iter().map(|table| AddTable {
            level,
            run: None,
            table: table.clone(),
        }));
    }
}

impl Edit {
    /// An edit that changes nothing yet.
    pub fn new() -> Edit {
        Edit::default()
    }

    /// Whether it only drops keyspaces, which gives space back.
    pub fn gives_space_back(&self) -> bool {
        !self.drop.is_empty() && self.create.is_empty() && self.keyspaces.is_empty()
    }

    /// Whether it may use the space that the manifest keeps for edits that must not fail: those
    /// that give space back, and the edit of a close, which is the last one in its file.
    pub fn may_use_kept_space(&self) -> bool {
        self.gives_space_back() || self.closed
    }

    /// Refuses numbers that are larger than a store can reach, so that no later computation
    /// overflows. Bytes with good checksums may contain any number, so every decoded edit must pass
    /// this check before it is used; [`StoreState::apply`](super::StoreState::apply) calls it.
    ///
    /// # Errors
    /// `Corruption` that names the field.
    pub fn check_limits(&self) -> Result<()> {
        let (start, synced) = (self.log_start, self.log_synced);
        for (what, number, max) in [
            ("the next table id", self.next_table_id, MAX_TABLE_ID + 1),
            ("the sequence ceiling", self.sequence_ceiling, MAX_SEQUENCE),
            ("the open number", self.open_number, MAX_OPEN_NUMBER),
            (
                "the log's start",
                start.map(|s| s.segment),
                MAX_SEGMENT_NUMBER.into(),
            ),
            (
                "the offset of the log's start",
                start.map(|s| s.offset),
                MAX_SEGMENT_BYTES,
            ),
            (
                "the segment of the log's synced position",
                synced.map(|p| p.segment),
                MAX_SEGMENT_NUMBER.into(),
            ),
            (
                "the offset of the log's synced position",
                synced.map(|p| p.offset),
                MAX_SEGMENT_BYTES,
            ),
        ] {
            within(what, number, max)?;
        }
        let boundary = |at: u64| {
            at == 0
                || at >= SEGMENT_HEADER_BYTES as u64 && at.is_multiple_of(RECORD_ALIGN_BYTES as u64)
        };
        if let Some(start) = start.filter(|start| !boundary(start.offset)) {
            return Err(malformed("no record can begin at the log's start")
                .expected(format!(
                    "0, or a multiple of {RECORD_ALIGN_BYTES} from {SEGMENT_HEADER_BYTES} on"
                ))
                .found(start.offset));
        }
        for create in &self.create {
            within("a creation's number", Some(create.sequence), MAX_SEQUENCE)?;
        }
        self.keyspaces
            .iter()
            .try_for_each(KeyspaceEdit::check_limits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::formats::version::tests::table;
    use crate::formats::version::{KeyspaceVersion, Level};

    #[test]
    fn added_runs_are_covered_and_make_sources() {
        let run = |id, lo, hi, tables: Vec<TableMeta>| Run {
            id,
            seqs: SeqRange::new(lo, hi),
            tables: Level::new(tables.into_iter().map(Arc::new).collect()).unwrap(),
        };
        let runs = [
            run(
                3,
                0,
                5,
                vec![table(1, b"a", b"c", (1, 4)), table(2, b"d", b"f", (2, 4))],
            ),
            run(5, 5, 6, vec![table(4, b"a", b"z", (6, 6))]),
        ];
        let edit = KeyspaceEdit::adding(1, &runs);
        assert_eq!(edit.id, 1);
        assert_eq!((edit.covered_floor, edit.moved_through), (None, None));
        let version = KeyspaceVersion::new(1).apply(&edit).unwrap();
        let oldest_first = version.runs().iter().rev();
        let installed: Vec<Run> = oldest_first.map(|run| (**run).clone()).collect();
        assert_eq!(installed, runs);
        assert!((1..=6).all(|number| version.covered().contains(number)));
        assert!(!version.covered().contains(7));
        // What is covered is not installed again.
        version.apply(&edit).unwrap_err();
        // A merge of the two adds a run that covers nothing new, or tables below level 0.
        let mut merged = KeyspaceEdit {
            remove: [1, 2, 4].map(|id| RemoveTable { level: 0, id }).to_vec(),
            ..KeyspaceEdit::new(1)
        };
        let mut down = merged.clone();
        let tables = [Arc::new(table(6, b"a", b"z", (1, 6)))];
        let slot = RunSlot {
            id: 7,
            seqs: SeqRange::new(0, 6),
        };
        merged.add_run(slot, &tables);
        let merged = version.apply(&merged).unwrap();
        assert_eq!((merged.runs().len(), merged.runs()[0].id), (1, 7));
        assert_eq!(merged.covered(), version.covered());
        down.add_to_level(3, &tables);
        let down = version.apply(&down).unwrap();
        assert_eq!(down.level(3).tables(), tables);
        assert!(down.runs().is_empty());
    }
}
