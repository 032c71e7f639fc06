//! The bytes of edits: tags, encoding and decoding. `docs/format/manifest.md` has the byte tables.
//!
//! Invariants: encoding and decoding gives the same edit. Decoding arbitrary bytes never panics,
//! and allocates no more than a small multiple of the input. An unknown tag with the
//! must-understand bit is refused as `Unsupported`; one without it is ignored and counted.
//!
//! Threading: plain values.

use std::sync::Arc;

use crate::formats::log::position::{LogPosition, LogStart};
use crate::formats::version::edit::{
    AddTable, CreateKeyspace, Decoded, Edit, KeyspaceEdit, RemoveTable, RunSlot,
};
use crate::formats::version::meta::{End, Key, KeyRange, SeqRange, TABLE_FLAGS, TableMeta};
use crate::types::error::Result;
use crate::types::fields::{
    Fields, Numbers, Writer, malformed, need, once, one_name, one_u32, one_u64, unknown,
    unsupported_feature,
};
use crate::types::limits::BOTTOM_LEVEL;
use crate::types::options::stored::StoredOptions;

/// Tags of an edit's fields.
mod tag {
    use crate::types::fields::MUST_UNDERSTAND as M;
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
    /// Reserved for runs that are no tables: unsorted ones, and those that a device holds.
    pub const OTHER_RUN: u16 = M | 8;

    pub const TABLE_CORE: u16 = M | 1;
    pub const TABLE_NAME: u16 = M | 2;
    pub const TABLE_SMALLEST: u16 = M | 3;
    pub const TABLE_LARGEST: u16 = M | 4;
    pub const TABLE_LEFT: u16 = M | 5;
    pub const TABLE_RIGHT: u16 = M | 6;
    pub const TABLE_OVERRIDE: u16 = M | 7;
    pub const TABLE_FLAGS: u16 = M | 8;
}

/// A field without a value and without the must-understand bit, which changes nothing. The
/// manifest's seals consist of it.
pub const SEAL_TAG: u16 = 9;

/// The length of a table's core field.
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
    // Bounds that equal the point keys are left out, since nearly all tables have no range deletes.
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
    if location > super::meta::LOCATION_MAX {
        return Err(
            unsupported_feature(&format!("table {id}"), "another location of tables")
                .expected(format_args!("location 0 or {}", super::meta::LOCATION_MAX))
                .found(format_args!("location {location}")),
        );
    }
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
                "a table has only one of smallest and largest key",
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
        let unknown = format!("table flags {:#x}", flags & !TABLE_FLAGS);
        return Err(unsupported_feature(&format!("table {id}"), &unknown));
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
            tag::OTHER_RUN => {
                return Err(unsupported_feature(
                    "a keyspace's change",
                    "runs that are no tables",
                ));
            }
            _ => unknown("a keyspace's change", tag, ignored)?,
        }
    }
    edit.id = need("a changed keyspace's id", id)?;
    Ok(edit)
}

impl KeyspaceEdit {
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
    /// The bytes of the edit.
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
    /// `Corruption` for bytes that are not an edit, `Unsupported` for an unknown field that must be
    /// understood. The caller adds the file and the offset.
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
                return Err(malformed("the log's start has an offset but no segment"));
            }
            (None, None) => None,
        };
        Ok(Decoded {
            edit,
            ignored_count,
        })
    }
}

pub(crate) fn one_seq_range(what: &'static str, value: &[u8]) -> Result<SeqRange> {
    let mut numbers = Numbers::new(what, value, 16)?;
    let range = SeqRange::new(numbers.u64()?, numbers.u64()?);
    if range.hi < range.lo {
        return Err(malformed(format!("{what} {range} runs backwards")));
    }
    Ok(range)
}
