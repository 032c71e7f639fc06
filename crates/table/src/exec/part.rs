//! The finished tables of a subjob, and the point at which the next attempt continues, as data and
//! as bytes. `docs/format/job.md` describes the bytes.
//!
//! Invariants: a part belongs to one job, which its bytes name. Decoding never panics, and a
//! decoded part is not believed yet: [`Part::check`] says whether a job can have it, and whoever
//! adopts the tables verifies them. Only the inputs can show whether the subjob really continues at
//! the point that a part states ([`verify_ranges`](crate::job::ranges::verify_ranges)).
//!
//! Threading: plain data.

use crate::error::Damage;
use crate::fields::{Decoded, FieldReader, FieldWriter};
use crate::job::coding::{
    CODING_VERSION, get_counters, get_identity, get_table, put_counters, put_identity, put_table,
};
use crate::job::outcome::{Counters, OutputTable};
use crate::job::{Hex, Job, OutputPrefix};
use crate::layout::LayoutState;

/// The first bytes of a part.
pub const PART_MAGIC: [u8; 8] = *b"siltpart";

/// The tags of a part's fields.
mod tag {
    pub const JOB: u16 = 1;
    pub const SUBJOB: u16 = 2;
    pub const TABLES: u16 = 3;
    pub const NEXT: u16 = 4;
}

/// A lower bound for the number of bytes of an encoded table.
const TABLE_BYTES_MIN: usize = 94;

/// No count of entries or bytes of a subjob reaches this number, so sums of a few counts cannot
/// overflow.
pub(super) const COUNT_MAX: u64 = 1 << 56;

/// The point at which a subjob continues.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Point {
    /// At the subjob's first entry.
    Start,
    /// At the first entry of a new table.
    Table {
        /// The layout at that entry.
        layout: LayoutState,
        /// The start of the table's range.
        left_bound: Vec<u8>,
        /// The counts of entries read and dropped before it.
        counters: Counters,
    },
    /// The subjob is complete. These are the counts of all entries that it read and dropped.
    End(Counters),
}

/// The finished tables of a subjob.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// The subjob's number.
    pub subjob: u32,
    /// The subjob's finished and synced tables, in order.
    pub tables: Vec<OutputTable>,
    /// Where the next attempt continues.
    pub next: Point,
}

impl Part {
    /// A part without tables, at the start of a subjob.
    pub fn new(subjob: u32) -> Part {
        Part {
            subjob,
            tables: Vec::new(),
            next: Point::Start,
        }
    }

    /// Checks that the job can have this part: it belongs to a subjob of the job, its tables follow
    /// each other, and the point at which to continue comes after the last table. Names are not
    /// checked.
    ///
    /// # Errors
    /// A description of the first violated rule.
    pub fn check(&self, job: &Job) -> Result<(), String> {
        if self.subjob as usize >= job.subjobs() {
            let count = job.subjobs();
            return Err(format!("subjob {} of a job with {count}", self.subjob));
        }
        let bounds = job.subjob_bounds(self.subjob as usize);
        if let Some(table) = self.tables.iter().find(|t| t.subjob != self.subjob) {
            let name = &table.name;
            return Err(format!("table {name} is of subjob {}", table.subjob));
        }
        let mut at = Some(&bounds.start);
        for table in &self.tables {
            if at != Some(&table.left_bound) {
                let name = &table.name;
                return Err(format!(
                    "table {name} does not begin where the last one ends"
                ));
            }
            at = table.right_bound.as_ref();
        }
        let counters = match &self.next {
            Point::Start if self.tables.is_empty() => return Ok(()),
            Point::Start => return Err("it begins again behind finished tables".into()),
            Point::End(_) if !self.tables.is_empty() && at != bounds.end.as_ref() => {
                return Err("its last table does not end with the subjob".into());
            }
            Point::End(counters) => counters,
            Point::Table {
                layout,
                left_bound,
                counters,
            } => {
                let first_key = &layout.first_key;
                let last = self.tables.last().and_then(|table| table.keys.as_ref());
                if at != Some(left_bound)
                    || left_bound > first_key
                    || !bounds.contains(first_key)
                    || last.is_none_or(|(_, last)| last >= first_key)
                    || layout.table as usize != self.tables.len()
                {
                    let key = Hex(first_key);
                    return Err(format!(
                        "it cannot go on at {key} as table {}",
                        layout.table
                    ));
                }
                counters
            }
        };
        match counters.largest() < COUNT_MAX {
            true => Ok(()),
            false => Err("a count is larger than a subjob can have".into()),
        }
    }

    /// Checks that the tables have the names that the attempt with this prefix gives them, so that
    /// a part that another process reported cannot name other files.
    ///
    /// # Errors
    /// A description of the first name that is different.
    pub fn check_names(&self, output: &OutputPrefix) -> Result<(), String> {
        for (number, table) in self.tables.iter().enumerate() {
            let name = output.table_name(self.subjob, number as u32);
            if table.name != name {
                return Err(format!("table {} should be called {name}", table.name));
            }
        }
        Ok(())
    }

    /// Encodes the part of the job with this identity.
    pub fn encode(&self, job: u128) -> Vec<u8> {
        let mut out = FieldWriter::document(PART_MAGIC, CODING_VERSION);
        out.field(tag::JOB, |o| put_identity(o, job));
        out.field(tag::SUBJOB, |o| o.u32(self.subjob));
        out.field(tag::TABLES, |o| o.list(&self.tables, put_table));
        out.field(tag::NEXT, |o| match &self.next {
            Point::Start => o.u8(0),
            Point::Table {
                layout,
                left_bound,
                counters,
            } => {
                o.u8(1);
                o.bytes(&layout.first_key);
                o.u64(layout.earlier_spans_bytes);
                o.u64(layout.span_bytes);
                o.u32(layout.table);
                o.bytes(left_bound);
                put_counters(o, counters);
            }
            Point::End(counters) => {
                o.u8(2);
                put_counters(o, counters);
            }
        });
        out.finish_document()
    }

    /// Decodes a part, and the identity of the job that it belongs to. The part is not believed
    /// yet.
    ///
    /// # Errors
    /// A description of the damage and its offset.
    pub fn decode(bytes: &[u8]) -> Result<(u128, Part), Damage> {
        let mut i = FieldReader::document(bytes, PART_MAGIC, CODING_VERSION, "part of a job")?;
        let job = i.field(tag::JOB, "job identity", get_identity)?;
        let part = Part {
            subjob: i.field(tag::SUBJOB, "subjob", |i| i.u32("subjob"))?,
            tables: i.field(tag::TABLES, "tables", |i| {
                i.list("tables", TABLE_BYTES_MIN, get_table)
            })?,
            next: i.field(tag::NEXT, "point to go on", get_point)?,
        };
        i.end("part of a job")?;
        Ok((job, part))
    }
}

fn get_point(i: &mut FieldReader<'_>) -> Decoded<Point> {
    let at = i.position();
    Ok(match i.u8("point to go on")? {
        0 => Point::Start,
        1 => Point::Table {
            layout: LayoutState {
                first_key: i.bytes("first key")?.to_vec(),
                earlier_spans_bytes: i.u64("earlier spans")?,
                span_bytes: i.u64("bytes of the span")?,
                table: i.u32("table number")?,
            },
            left_bound: i.bytes("left bound")?.to_vec(),
            counters: get_counters(i)?,
        },
        2 => Point::End(get_counters(i)?),
        x => return Err(Damage::new("point to go on", at, 2, x.into())),
    })
}
