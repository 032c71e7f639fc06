//! Edits: what changes the store's state, and their bytes.
//!
//! What it is: an [`Edit`] is one atomic step from one whole-store state to the next, over any number of keyspaces.
//! On disk it is a list of fields {tag u16, length u32, bytes}; bit 15 of a tag says "must understand".
//!
//! Invariants: encoding then decoding gives the same edit. Decoding arbitrary bytes never panics and allocates no
//! more than a small multiple of the input. An unknown tag with the must-understand bit is refused as
//! `Unsupported`; one without it is ignored and counted. Byte tables: `docs/format/manifest.md`.
//!
//! Threading: immutable values.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use super::meta::{BOTTOM_LEVEL, End, Key, KeyRange, KeyspaceId, SeqRange, TABLE_FLAGS, TableMeta};
use crate::error::{Error, ErrorKind, Result};
use crate::log::format::{
    MAX_SEGMENT_BYTES, MAX_SEGMENT_NUMBER, MAX_SEQUENCE, RECORD_ALIGN_BYTES, SEGMENT_HEADER_BYTES,
};

/// Bit of a tag: a reader that does not know the tag must refuse.
pub const MUST_UNDERSTAND: u16 = 0x8000;

/// Bytes before a field's value.
const FIELD_HEADER_BYTES: usize = 6;

/// Longest name of a keyspace, in bytes.
pub const MAX_KEYSPACE_NAME_BYTES: usize = 255;

/// No store is opened this often: names hold the number, and what is added to it must never wrap.
pub const MAX_OPEN_NUMBER: u64 = 1 << 48;

/// Largest id of a table or run.
pub const MAX_TABLE_ID: u64 = (1 << 56) - 1;

/// No table has so many bytes or entries.
const MAX_TABLE_COUNT: u64 = 1 << 44;

/// Tags of an edit's fields.
mod tag {
    use super::MUST_UNDERSTAND as M;
    pub const WHOLE: u16 = M | 1;
    pub const NEXT_TABLE_ID: u16 = M | 2;
    pub const SEQUENCE_CEILING: u16 = M | 3;
    pub const OPEN_NUMBER: u16 = M | 4;
    pub const LOG_START: u16 = M | 5;
    pub const LOG_SYNCED: u16 = M | 6;
    pub const CREATED_US: u16 = 7;
    pub const NEXT_KEYSPACE_ID: u16 = M | 8;
    pub const LOG_START_OFFSET: u16 = M | 10;
    pub const CLOSED: u16 = M | 11;
    pub const DROP: u16 = M | 16;
    pub const CREATE: u16 = M | 17;
    pub const CHANGE: u16 = M | 18;

    pub const CREATE_ID: u16 = M | 1;
    pub const CREATE_NAME: u16 = M | 2;
    pub const CREATE_SEQUENCE: u16 = M | 3;
    pub const CREATE_OPTIONS: u16 = M | 4;

    pub const CHANGE_ID: u16 = M | 1;
    pub const COVERED: u16 = M | 2;
    pub const COVERED_FLOOR: u16 = M | 3;
    pub const MOVED_THROUGH: u16 = M | 4;
    pub const REMOVE: u16 = M | 5;
    pub const ADD: u16 = M | 6;
    pub const OPTIONS: u16 = M | 7;

    pub const TABLE_CORE: u16 = M | 1;
    pub const TABLE_NAME: u16 = M | 2;
    pub const TABLE_SMALLEST: u16 = M | 3;
    pub const TABLE_LARGEST: u16 = M | 4;
    pub const TABLE_LEFT: u16 = M | 5;
    pub const TABLE_RIGHT: u16 = M | 6;
    pub const TABLE_OVERRIDE: u16 = M | 7;
    pub const TABLE_FLAGS: u16 = M | 8;
}

/// A field without a value and without the must-understand bit, which changes nothing: the manifest's seals are made of it.
pub const SEAL_TAG: u16 = 9;

/// Tags of a keyspace's stored options. Values are `u64` unless they say otherwise.
pub mod option {
    use super::MUST_UNDERSTAND as M;
    /// Bytes at which a memtable is sealed.
    pub const MEMTABLE_BYTES: u16 = 1;
    /// Target raw bytes of a table (T).
    pub const TABLE_BYTES: u16 = 2;
    /// Target raw bytes of a block (B).
    pub const BLOCK_BYTES: u16 = 3;
    /// Target bytes of level 1.
    pub const LEVEL1_BYTES: u16 = 4;
    /// How many times larger each further level is.
    pub const LEVEL_FACTOR: u16 = 5;
    /// Level-0 runs that make a compaction due.
    pub const L0_TRIGGER_COUNT: u16 = 6;
    /// Level-0 runs at which writers are slowed down.
    pub const L0_SLOWDOWN_COUNT: u16 = 7;
    /// Level-0 runs at which writers stop.
    pub const L0_STOP_COUNT: u16 = 8;
    /// Sealed memtables at which writers stop.
    pub const MEMTABLE_STOP_COUNT: u16 = 13;
    // 9 to 12 were given away and never written.
    /// Targets of levels: 0 fixed, 1 dynamic.
    pub const LEVEL_TARGETS: u16 = 16;
    /// Filter bits a key: a byte a level, the last one for all deeper levels.
    pub const FILTER_BITS_BY_LEVEL: u16 = 17;
    /// Codec (a number of the table format) and its level: two bytes a level, the last pair for all deeper levels.
    pub const CODECS_BY_LEVEL: u16 = 18;
    /// Shape of the keyspace: 0 levelled, 1 deferred, 2 memory-speed.
    pub const SHAPE: u16 = M | 14;
    /// Whether its writes go to the log: 1 yes, 0 no.
    pub const LOGGED: u16 = M | 15;

    /// Tags with the must-understand bit that this build knows.
    pub(super) const REQUIRED_KNOWN: [u16; 2] = [SHAPE, LOGGED];
}

/// The options of a keyspace as the manifest keeps them: values by tag. Tags that this build does not know and need
/// not understand are kept as they are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoredOptions {
    values: BTreeMap<u16, Vec<u8>>,
}

impl StoredOptions {
    /// No options: every value is the default.
    pub fn new() -> StoredOptions {
        StoredOptions::default()
    }

    /// The number stored under `tag`; `None` if there is none or it is no 8 bytes.
    pub fn get_u64(&self, tag: u16) -> Option<u64> {
        Some(u64::from_le_bytes(
            self.values.get(&tag)?.as_slice().try_into().ok()?,
        ))
    }

    /// Stores a number.
    pub fn set_u64(&mut self, tag: u16, value: u64) {
        self.values.insert(tag, value.to_le_bytes().to_vec());
    }

    /// The bytes stored under `tag`.
    pub fn get(&self, tag: u16) -> Option<&[u8]> {
        self.values.get(&tag).map(|v| v.as_slice())
    }

    /// Stores bytes.
    pub fn set(&mut self, tag: u16, value: &[u8]) {
        self.values.insert(tag, value.to_vec());
    }

    /// Forgets what is stored under `tag`.
    pub fn remove(&mut self, tag: u16) {
        self.values.remove(&tag);
    }

    /// All tags and values, by tag.
    pub fn iter(&self) -> impl Iterator<Item = (u16, &[u8])> {
        self.values
            .iter()
            .map(|(tag, value)| (*tag, value.as_slice()))
    }

    /// The options as bytes: fields {tag u16, length u32, value} by ascending tag. The log's create record uses
    /// the same bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Writer::default();
        self.encode_to(&mut out);
        out.bytes
    }

    /// Reads what [`StoredOptions::encode`] made.
    ///
    /// # Errors
    /// `Corruption` if the bytes are no fields, `Unsupported` for an unknown tag that must be understood.
    pub fn decode(bytes: &[u8]) -> Result<StoredOptions> {
        let mut options = StoredOptions::default();
        for field in Fields::new(bytes) {
            let (tag, value) = field?;
            if tag & MUST_UNDERSTAND != 0 && !option::REQUIRED_KNOWN.contains(&tag) {
                return Err(unknown_tag("a keyspace's options", tag));
            }
            if options.values.insert(tag, value.to_vec()).is_some() {
                return Err(malformed(format!("option {tag:#06x} is there twice")));
            }
        }
        Ok(options)
    }

    fn encode_to(&self, out: &mut Writer) {
        for (tag, value) in &self.values {
            out.field(*tag, value);
        }
    }
}

/// A place in the log: what was synced through it survives power loss.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LogPosition {
    /// Number of the segment.
    pub segment: u64,
    /// Byte offset in it.
    pub offset: u64,
}

impl fmt::Display for LogPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.segment, self.offset)
    }
}

/// Where the log starts: no record before this position is needed. Positions order by segment, then
/// by offset; the salt belongs to the segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LogStart {
    /// Number of the first segment that replay reads.
    pub segment: u64,
    /// Byte offset in it; 0 if the whole segment is needed, with its header.
    pub offset: u64,
    /// The salt of the chain that the segment belongs to. Replay uses it if damage has taken the
    /// segment's header and the offset says that the header is not needed. 0 where it is not known.
    pub salt: u64,
}

impl LogStart {
    /// The start of a chain's segment, with its header.
    pub fn of_segment(segment: u64, salt: u64) -> LogStart {
        LogStart {
            segment,
            offset: 0,
            salt,
        }
    }

    /// The position, without the salt.
    pub fn position(&self) -> LogPosition {
        LogPosition {
            segment: self.segment,
            offset: self.offset,
        }
    }
}

impl fmt::Display for LogStart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.position().fmt(f)
    }
}

/// The slot of a level-0 run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunSlot {
    /// The run's identity.
    pub id: u64,
    /// The run's range.
    pub seqs: SeqRange,
}

/// A table to install.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddTable {
    /// The level.
    pub level: u8,
    /// Level 0 only: the run it belongs to. All tables of a run are added by one edit.
    pub run: Option<RunSlot>,
    /// The table.
    pub table: Arc<TableMeta>,
}

/// A table to take out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RemoveTable {
    /// The level it is on.
    pub level: u8,
    /// Its identity.
    pub id: u64,
}

/// A new keyspace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreateKeyspace {
    /// Its identity: at least the state's `next_keyspace_id`.
    pub id: KeyspaceId,
    /// Its name, at most [`MAX_KEYSPACE_NAME_BYTES`].
    pub name: String,
    /// The sequence number of its creation. Smaller numbers count as covered.
    pub sequence: u64,
    /// Its options.
    pub options: StoredOptions,
}

/// What one edit does to one keyspace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyspaceEdit {
    /// Which keyspace.
    pub id: KeyspaceId,
    /// Sequence ranges of the sources that this edit installs. They must not overlap what is covered already.
    pub covered: Vec<SeqRange>,
    /// All numbers up to this one count as covered: no segment that is still replayed holds one for this keyspace.
    pub covered_floor: Option<u64>,
    /// Whole-state edits: the largest `hi` of a run that moved below level 0 (else it is derived).
    pub moved_through: Option<u64>,
    /// Tables to take out.
    pub remove: Vec<RemoveTable>,
    /// Tables to install. A table may be removed and added by one edit (it moves).
    pub add: Vec<AddTable>,
    /// New options, replacing all of the old.
    pub options: Option<StoredOptions>,
}

/// One atomic step of the store's state. Fields that are `None` stay as they are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Edit {
    /// This edit describes the whole state; it applies to nothing else.
    pub whole: bool,
    /// No table or run has this id or a greater one.
    pub next_table_id: Option<u64>,
    /// No sequence number above it was ever given.
    pub sequence_ceiling: Option<u64>,
    /// How often the store was opened for writing; part of the names of its files.
    pub open_number: Option<u64>,
    /// Where the log starts.
    pub log_start: Option<LogStart>,
    /// Through where the log is known to be synced.
    pub log_synced: Option<LogPosition>,
    /// The store was closed with this edit: the log ends exactly at the synced position.
    pub closed: bool,
    /// When the store was created, in microseconds since 1970; for people.
    pub created_us: Option<u64>,
    /// No keyspace has this id or a greater one.
    pub next_keyspace_id: Option<KeyspaceId>,
    /// Keyspaces to drop. They are dropped before those of `create` are made.
    pub drop: Vec<KeyspaceId>,
    /// Keyspaces to make, by ascending id.
    pub create: Vec<CreateKeyspace>,
    /// Changes of keyspaces, those just made included; at most one a keyspace.
    pub keyspaces: Vec<KeyspaceEdit>,
}

/// A decoded edit and how many of its fields this build skipped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decoded {
    /// The edit.
    pub edit: Edit,
    /// Fields with unknown tags without the must-understand bit.
    pub ignored_count: u64,
}

#[cold]
fn malformed(what: impl Into<String>) -> Error {
    Error::new(
        ErrorKind::Corruption,
        format!("a manifest edit is malformed: {}", what.into()),
    )
}

#[cold]
fn unknown_tag(place: &str, tag: u16) -> Error {
    Error::unsupported(format!(
        "{place} has the field {tag:#06x}, which must be understood and is not known here"
    ))
    .advice("the store was written by a newer version of siltstone: open it with that version")
}

/// Builds a list of fields.
#[derive(Default)]
struct Writer {
    bytes: Vec<u8>,
}

impl Writer {
    fn field(&mut self, tag: u16, value: &[u8]) {
        self.bytes.extend_from_slice(&tag.to_le_bytes());
        self.bytes
            .extend_from_slice(&(value.len() as u32).to_le_bytes());
        self.bytes.extend_from_slice(value);
    }

    fn u64(&mut self, tag: u16, value: u64) {
        self.field(tag, &value.to_le_bytes());
    }

    fn nested(&mut self, tag: u16, fill: impl FnOnce(&mut Writer)) {
        self.bytes.extend_from_slice(&tag.to_le_bytes());
        let at = self.bytes.len();
        self.bytes.extend_from_slice(&[0; 4]);
        fill(self);
        let len = (self.bytes.len() - at - 4) as u32;
        self.bytes[at..at + 4].copy_from_slice(&len.to_le_bytes());
    }

    fn raw(&mut self, value: &[u8]) {
        self.bytes.extend_from_slice(value);
    }
}

/// Walks a list of fields; ends after the first error.
struct Fields<'a> {
    rest: &'a [u8],
}

impl<'a> Fields<'a> {
    fn new(bytes: &'a [u8]) -> Fields<'a> {
        Fields { rest: bytes }
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<(u16, &'a [u8])>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let split = self
            .rest
            .split_at_checked(FIELD_HEADER_BYTES)
            .and_then(|(header, rest)| {
                let tag = u16::from_le_bytes([header[0], header[1]]);
                let len = u32::from_le_bytes([header[2], header[3], header[4], header[5]]);
                let (value, rest) = rest.split_at_checked(len as usize)?;
                Some((tag, value, rest))
            });
        match split {
            Some((tag, value, rest)) => {
                self.rest = rest;
                Some(Ok((tag, value)))
            }
            None => {
                let left = self.rest.len();
                self.rest = &[];
                Some(Err(malformed(format!(
                    "a field does not fit into the {left} bytes that are left"
                ))))
            }
        }
    }
}

/// Reads fixed-length numbers off the front of a value.
struct Numbers<'a> {
    rest: &'a [u8],
    what: &'static str,
}

impl<'a> Numbers<'a> {
    fn new(what: &'static str, bytes: &'a [u8], expected_bytes: usize) -> Result<Numbers<'a>> {
        if bytes.len() != expected_bytes {
            return Err(malformed(format!(
                "{what} has {} bytes instead of {expected_bytes}",
                bytes.len()
            )));
        }
        Ok(Numbers { rest: bytes, what })
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N]> {
        let (head, rest) = self
            .rest
            .split_first_chunk::<N>()
            .ok_or_else(|| malformed(format!("{} is cut short", self.what)))?;
        self.rest = rest;
        Ok(*head)
    }

    fn u8(&mut self) -> Result<u8> {
        Ok(self.take::<1>()?[0])
    }

    fn u32(&mut self) -> Result<u32> {
        Ok(u32::from_le_bytes(self.take()?))
    }

    fn u64(&mut self) -> Result<u64> {
        Ok(u64::from_le_bytes(self.take()?))
    }
}

fn one_u64(what: &'static str, value: &[u8]) -> Result<u64> {
    Numbers::new(what, value, 8)?.u64()
}

fn one_u32(what: &'static str, value: &[u8]) -> Result<u32> {
    Numbers::new(what, value, 4)?.u32()
}

fn one_seq_range(what: &'static str, value: &[u8]) -> Result<SeqRange> {
    let mut numbers = Numbers::new(what, value, 16)?;
    let range = SeqRange::new(numbers.u64()?, numbers.u64()?);
    if range.hi < range.lo {
        return Err(malformed(format!("{what} {range} runs backwards")));
    }
    Ok(range)
}

fn one_name(what: &'static str, value: &[u8]) -> Result<String> {
    match std::str::from_utf8(value) {
        Ok(name) => Ok(name.to_owned()),
        Err(_) => Err(malformed(format!("{what} is no UTF-8"))),
    }
}

/// Stores a field that may be there once.
fn once<T>(what: &'static str, slot: &mut Option<T>, value: T) -> Result<()> {
    match slot.replace(value) {
        None => Ok(()),
        Some(_) => Err(malformed(format!("{what} is there twice"))),
    }
}

fn need<T>(what: &'static str, slot: Option<T>) -> Result<T> {
    slot.ok_or_else(|| malformed(format!("{what} is missing")))
}

/// Counts or refuses an unknown field.
fn unknown(place: &'static str, tag: u16, ignored: &mut u64) -> Result<()> {
    if tag & MUST_UNDERSTAND != 0 {
        return Err(unknown_tag(place, tag));
    }
    *ignored += 1;
    Ok(())
}

/// Length of the core field of a table.
const TABLE_CORE_BYTES: usize = 112;

fn encode_table(out: &mut Writer, add: &AddTable) {
    let t = &*add.table;
    out.nested(tag::TABLE_CORE, |out| {
        let run = add.run.unwrap_or(RunSlot {
            id: 0,
            seqs: SeqRange::new(0, 0),
        });
        out.raw(&[add.level, u8::from(add.run.is_some()), 0, 0]);
        out.raw(&t.location.to_le_bytes());
        for number in [
            t.id,
            run.id,
            run.seqs.lo,
            run.seqs.hi,
            t.min_seq,
            t.max_seq,
            t.raw_bytes,
            t.file_bytes,
            t.entries,
            t.deletes,
            t.range_deletes,
        ] {
            out.raw(&number.to_le_bytes());
        }
        out.raw(&t.digest.to_le_bytes());
    });
    out.field(tag::TABLE_NAME, t.name.as_bytes());
    if let Some((smallest, largest)) = &t.points {
        out.field(tag::TABLE_SMALLEST, smallest);
        out.field(tag::TABLE_LARGEST, largest);
    }
    // Bounds that equal the point keys are left out: nearly all tables are without range deletes.
    let points = t.points.as_ref();
    if points.is_none_or(|(smallest, _)| *smallest != t.bounds.start) {
        out.field(tag::TABLE_LEFT, &t.bounds.start);
    }
    match &t.bounds.end {
        End::Included(end) if points.is_some_and(|(_, largest)| largest == end) => {}
        end => out.nested(tag::TABLE_RIGHT, |out| {
            let (kind, key): (u8, &[u8]) = match end {
                End::Included(key) => (0, key),
                End::Excluded(key) => (1, key),
                End::Unbounded => (2, &[]),
            };
            out.raw(&[kind]);
            out.raw(key);
        }),
    }
    if let Some(sequence) = t.sequence_override {
        out.u64(tag::TABLE_OVERRIDE, sequence);
    }
    if t.flags != 0 {
        out.field(tag::TABLE_FLAGS, &t.flags.to_le_bytes());
    }
}

fn decode_end(value: &[u8]) -> Result<End> {
    match value.split_first() {
        Some((0, key)) => Ok(End::Included(key.into())),
        Some((1, key)) => Ok(End::Excluded(key.into())),
        Some((2, [])) => Ok(End::Unbounded),
        Some((kind, _)) => Err(malformed(format!(
            "a table's right bound has the unknown kind {kind}"
        ))),
        None => Err(malformed("a table's right bound is empty")),
    }
}

fn decode_table(bytes: &[u8], ignored: &mut u64) -> Result<AddTable> {
    let (mut core, mut name, mut smallest, mut largest) = (None, None, None, None);
    let (mut left, mut right, mut sequence_override, mut flags) = (None, None, None, None);
    for field in Fields::new(bytes) {
        let (tag, value) = field?;
        match tag {
            tag::TABLE_CORE => once(
                "a table's core",
                &mut core,
                Numbers::new("a table's core", value, TABLE_CORE_BYTES)?,
            )?,
            tag::TABLE_NAME => once(
                "a table's name",
                &mut name,
                one_name("a table's name", value)?,
            )?,
            tag::TABLE_SMALLEST => once("a smallest key", &mut smallest, Key::from(value))?,
            tag::TABLE_LARGEST => once("a largest key", &mut largest, Key::from(value))?,
            tag::TABLE_LEFT => once("a left bound", &mut left, Key::from(value))?,
            tag::TABLE_RIGHT => once("a right bound", &mut right, decode_end(value)?)?,
            tag::TABLE_OVERRIDE => once(
                "a sequence override",
                &mut sequence_override,
                one_u64("a sequence override", value)?,
            )?,
            tag::TABLE_FLAGS => once(
                "a table's flags",
                &mut flags,
                one_u32("a table's flags", value)?,
            )?,
            _ => unknown("a table's record", tag, ignored)?,
        }
    }
    let mut core = need("a table's core", core)?;
    let (level, has_run, zeros) = (core.u8()?, core.u8()?, core.take::<2>()?);
    if level > BOTTOM_LEVEL || has_run > 1 || zeros != [0; 2] || (has_run == 1) != (level == 0) {
        return Err(malformed(format!(
            "a table has level {level} and run mark {has_run}"
        )));
    }
    let location = core.u32()?;
    let id = core.u64()?;
    let run = RunSlot {
        id: core.u64()?,
        seqs: SeqRange::new(core.u64()?, core.u64()?),
    };
    let (min_seq, max_seq) = (core.u64()?, core.u64()?);
    let (raw_bytes, file_bytes) = (core.u64()?, core.u64()?);
    let (entries, deletes, range_deletes) = (core.u64()?, core.u64()?, core.u64()?);
    let digest = u128::from_le_bytes(core.take()?);
    let points = match (smallest, largest) {
        (Some(smallest), Some(largest)) => Some((smallest, largest)),
        (None, None) => None,
        _ => {
            return Err(malformed(
                "a table has one of smallest and largest key only",
            ));
        }
    };
    let start = match (left, &points) {
        (Some(left), _) => left,
        (None, Some((smallest, _))) => smallest.clone(),
        (None, None) => return Err(malformed("a table has no left bound")),
    };
    let end = match (right, &points) {
        (Some(right), _) => right,
        (None, Some((_, largest))) => End::Included(largest.clone()),
        (None, None) => return Err(malformed("a table has no right bound")),
    };
    let flags = flags.unwrap_or(0);
    if flags & !TABLE_FLAGS != 0 {
        return Err(Error::unsupported(format!(
            "table {id} has the unknown flags {:#x}",
            flags & !TABLE_FLAGS
        ))
        .advice(
            "the store was written by a newer version of siltstone: open it with that version",
        ));
    }
    let table = TableMeta {
        id,
        location,
        name: need("a table's name", name)?,
        min_seq,
        max_seq,
        raw_bytes,
        file_bytes,
        entries,
        deletes,
        range_deletes,
        digest,
        points,
        bounds: KeyRange { start, end },
        sequence_override,
        flags,
    };
    Ok(AddTable {
        level,
        run: (has_run == 1).then_some(run),
        table: Arc::new(table),
    })
}

fn decode_create(bytes: &[u8], ignored: &mut u64) -> Result<CreateKeyspace> {
    let (mut id, mut name, mut sequence, mut options) = (None, None, None, None);
    for field in Fields::new(bytes) {
        let (tag, value) = field?;
        match tag {
            tag::CREATE_ID => once(
                "a keyspace's id",
                &mut id,
                one_u32("a keyspace's id", value)?,
            )?,
            tag::CREATE_NAME => once(
                "a keyspace's name",
                &mut name,
                one_name("a keyspace's name", value)?,
            )?,
            tag::CREATE_SEQUENCE => once(
                "a creation's number",
                &mut sequence,
                one_u64("a creation's number", value)?,
            )?,
            tag::CREATE_OPTIONS => once(
                "a keyspace's options",
                &mut options,
                StoredOptions::decode(value)?,
            )?,
            _ => unknown("a keyspace's creation", tag, ignored)?,
        }
    }
    Ok(CreateKeyspace {
        id: need("a keyspace's id", id)?,
        name: need("a keyspace's name", name)?,
        sequence: need("a creation's number", sequence)?,
        options: options.unwrap_or_default(),
    })
}

fn decode_change(bytes: &[u8], ignored: &mut u64) -> Result<KeyspaceEdit> {
    let mut id = None;
    let mut edit = KeyspaceEdit::default();
    for field in Fields::new(bytes) {
        let (tag, value) = field?;
        match tag {
            tag::CHANGE_ID => once(
                "a changed keyspace's id",
                &mut id,
                one_u32("a changed keyspace's id", value)?,
            )?,
            tag::COVERED => edit.covered.push(one_seq_range("a covered range", value)?),
            tag::COVERED_FLOOR => once(
                "a covered floor",
                &mut edit.covered_floor,
                one_u64("a covered floor", value)?,
            )?,
            tag::MOVED_THROUGH => once(
                "a moved-through mark",
                &mut edit.moved_through,
                one_u64("a moved-through mark", value)?,
            )?,
            tag::REMOVE => {
                let mut numbers = Numbers::new("a removed table", value, 9)?;
                edit.remove.push(RemoveTable {
                    level: numbers.u8()?,
                    id: numbers.u64()?,
                });
            }
            tag::ADD => edit.add.push(decode_table(value, ignored)?),
            tag::OPTIONS => once(
                "a keyspace's options",
                &mut edit.options,
                StoredOptions::decode(value)?,
            )?,
            _ => unknown("a keyspace's change", tag, ignored)?,
        }
    }
    edit.id = need("a changed keyspace's id", id)?;
    Ok(edit)
}

/// A number that a store of this build can have come to.
fn within(what: &str, number: Option<u64>, max: u64) -> Result<()> {
    match number {
        Some(number) if number > max => Err(Error::new(
            ErrorKind::Corruption,
            format!("{what} is larger than any can be"),
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

    /// An edit of `id` that does nothing yet.
    pub fn new(id: KeyspaceId) -> KeyspaceEdit {
        KeyspaceEdit {
            id,
            ..KeyspaceEdit::default()
        }
    }

    fn encode(&self, out: &mut Writer) {
        out.field(tag::CHANGE_ID, &self.id.to_le_bytes());
        if let Some(options) = &self.options {
            out.nested(tag::OPTIONS, |out| options.encode_to(out));
        }
        for range in &self.covered {
            out.nested(tag::COVERED, |out| {
                out.raw(&range.lo.to_le_bytes());
                out.raw(&range.hi.to_le_bytes());
            });
        }
        if let Some(floor) = self.covered_floor {
            out.u64(tag::COVERED_FLOOR, floor);
        }
        if let Some(moved_through) = self.moved_through {
            out.u64(tag::MOVED_THROUGH, moved_through);
        }
        for remove in &self.remove {
            out.nested(tag::REMOVE, |out| {
                out.raw(&[remove.level]);
                out.raw(&remove.id.to_le_bytes());
            });
        }
        for add in &self.add {
            out.nested(tag::ADD, |out| encode_table(out, add));
        }
    }
}

impl Edit {
    /// An edit that does nothing yet.
    pub fn new() -> Edit {
        Edit::default()
    }

    /// Whether it only drops keyspaces, and so gives space back.
    pub fn gives_space_back(&self) -> bool {
        !self.drop.is_empty() && self.create.is_empty() && self.keyspaces.is_empty()
    }

    /// Whether it may use the space that the manifest keeps written for an edit that must not fail:
    /// one that gives space back, or the edit of a close, which is the last one in its file.
    pub fn may_use_kept_space(&self) -> bool {
        self.gives_space_back() || self.closed
    }

    /// Whether its numbers are such as a store can come to: what is computed from them never wraps. Bytes with right checksums may say
    /// anything, so whoever decodes an edit and believes it asks; [`StoreState::apply`](super::StoreState::apply) does.
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
            return Err(malformed("the log's start is where no record can begin")
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

    /// The edit's bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Writer::default();
        if self.whole {
            out.field(tag::WHOLE, &[]);
        }
        let numbers = [
            (tag::NEXT_TABLE_ID, self.next_table_id),
            (tag::SEQUENCE_CEILING, self.sequence_ceiling),
            (tag::OPEN_NUMBER, self.open_number),
            (tag::LOG_START, self.log_start.map(|start| start.segment)),
            (tag::CREATED_US, self.created_us),
        ];
        for (tag, number) in numbers {
            if let Some(number) = number {
                out.u64(tag, number);
            }
        }
        if let Some(position) = self.log_synced {
            out.nested(tag::LOG_SYNCED, |out| {
                out.raw(&position.segment.to_le_bytes());
                out.raw(&position.offset.to_le_bytes());
            });
        }
        if let Some(start) = self.log_start.filter(|s| (s.offset, s.salt) != (0, 0)) {
            out.nested(tag::LOG_START_OFFSET, |out| {
                out.raw(&start.offset.to_le_bytes());
                out.raw(&start.salt.to_le_bytes());
            });
        }
        if self.closed {
            out.field(tag::CLOSED, &[]);
        }
        if let Some(id) = self.next_keyspace_id {
            out.field(tag::NEXT_KEYSPACE_ID, &id.to_le_bytes());
        }
        for id in &self.drop {
            out.field(tag::DROP, &id.to_le_bytes());
        }
        for create in &self.create {
            out.nested(tag::CREATE, |out| {
                out.field(tag::CREATE_ID, &create.id.to_le_bytes());
                out.field(tag::CREATE_NAME, create.name.as_bytes());
                out.u64(tag::CREATE_SEQUENCE, create.sequence);
                out.nested(tag::CREATE_OPTIONS, |out| create.options.encode_to(out));
            });
        }
        for change in &self.keyspaces {
            out.nested(tag::CHANGE, |out| change.encode(out));
        }
        out.bytes
    }

    /// Reads what [`Edit::encode`] made.
    ///
    /// # Errors
    /// `Corruption` for bytes that are no edit, `Unsupported` for an unknown field that must be understood. The
    /// caller adds file and offset.
    pub fn decode(bytes: &[u8]) -> Result<Decoded> {
        let mut edit = Edit::default();
        let mut start_segment = None;
        let mut start_offset = None;
        let mut ignored_count = 0;
        let ignored = &mut ignored_count;
        for field in Fields::new(bytes) {
            let (tag, value) = field?;
            match tag {
                tag::WHOLE if !value.is_empty() => {
                    return Err(malformed("the whole-state mark has a value"));
                }
                tag::WHOLE => edit.whole = true,
                tag::NEXT_TABLE_ID => once(
                    "the next table id",
                    &mut edit.next_table_id,
                    one_u64("the next table id", value)?,
                )?,
                tag::SEQUENCE_CEILING => once(
                    "the sequence ceiling",
                    &mut edit.sequence_ceiling,
                    one_u64("the sequence ceiling", value)?,
                )?,
                tag::OPEN_NUMBER => once(
                    "the open number",
                    &mut edit.open_number,
                    one_u64("the open number", value)?,
                )?,
                tag::LOG_START => once(
                    "the log's start",
                    &mut start_segment,
                    one_u64("the log's start", value)?,
                )?,
                tag::LOG_START_OFFSET => {
                    let what = "the offset of the log's start";
                    let mut numbers = Numbers::new(what, value, 16)?;
                    once(what, &mut start_offset, (numbers.u64()?, numbers.u64()?))?;
                }
                tag::CLOSED if !value.is_empty() => {
                    return Err(malformed("the mark of a close has a value"));
                }
                tag::CLOSED => edit.closed = true,
                tag::LOG_SYNCED => {
                    let mut numbers = Numbers::new("the log's synced position", value, 16)?;
                    let position = LogPosition {
                        segment: numbers.u64()?,
                        offset: numbers.u64()?,
                    };
                    once("the log's synced position", &mut edit.log_synced, position)?;
                }
                tag::CREATED_US => once(
                    "the creation time",
                    &mut edit.created_us,
                    one_u64("the creation time", value)?,
                )?,
                tag::NEXT_KEYSPACE_ID => once(
                    "the next keyspace id",
                    &mut edit.next_keyspace_id,
                    one_u32("the next keyspace id", value)?,
                )?,
                tag::DROP => edit.drop.push(one_u32("a dropped keyspace's id", value)?),
                tag::CREATE => edit.create.push(decode_create(value, ignored)?),
                tag::CHANGE => edit.keyspaces.push(decode_change(value, ignored)?),
                SEAL_TAG if value.is_empty() => {}
                _ => unknown("a manifest edit", tag, ignored)?,
            }
        }
        edit.log_start = match (start_segment, start_offset) {
            (Some(segment), offset) => {
                let (offset, salt) = offset.unwrap_or_default();
                Some(LogStart {
                    segment,
                    offset,
                    salt,
                })
            }
            (None, Some(_)) => {
                return Err(malformed("the log's start has an offset and no segment"));
            }
            (None, None) => None,
        };
        Ok(Decoded {
            edit,
            ignored_count,
        })
    }
}
