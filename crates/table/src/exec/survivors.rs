//! The entries that a subjob keeps, as data and as bytes. `docs/format/job.md` describes the bytes.
//!
//! One side reads the columns of the inputs, merges keys and applies the drop rules. It describes
//! what it keeps by [`Extent`]s: neighbouring entries of one block of one input. Another side,
//! which has the inputs, makes the tables from these ([RFC
//! 11](../../../../docs/rfc/0011-separated.md)). So no keys or values are sent between the two, and
//! the values of dropped entries are not read at all unless another entry of their block is kept.
//!
//! The list is cut into chunks of at most [`EXTENTS_MAX`] extents, so that neither side ever has
//! the whole list in memory.
//!
//! Invariants: the extents of all chunks of a subjob are its output, in order. Decoding never
//! panics, and a decoded chunk is not believed yet: [`Survivors::check`] says whether a job can
//! have it, and the side that rebuilds checks blocks, entries, bounds and order.
//!
//! Threading: plain data.

use super::part::COUNT_MAX;
use crate::error::Damage;
use crate::fields::{Decoded, FieldReader, FieldWriter};
use crate::job::coding::{CODING_VERSION, get_counters, get_identity, put_counters, put_identity};
use crate::job::outcome::Counters;
use crate::job::{InputKind, Job};
use crate::limits::MAX_BLOCK_ENTRIES;

/// The first bytes of a chunk of survivors.
pub const SURVIVORS_MAGIC: [u8; 8] = *b"siltsurv";

/// The maximum number of extents of a chunk. In memory they take 1 MiB.
pub const EXTENTS_MAX: usize = 1 << 16;

/// The minimum number of bytes of an encoded extent, and of the encoded begin of a table.
const EXTENT_BYTES_MIN: usize = 4;
const TABLE_BYTES_MIN: usize = 4 + 11 * 8;

/// The tags of the fields.
mod tag {
    pub const JOB: u16 = 1;
    pub const SUBJOB: u16 = 2;
    pub const EXTENTS: u16 = 3;
    pub const TABLES: u16 = 4;
    pub const END: u16 = 5;
}

/// Neighbouring entries of a block that are also neighbours in the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// The number of the input in the job.
    pub input: u32,
    /// The number of the block in the input.
    pub block: u32,
    /// The number of the first entry in the block.
    pub first: u32,
    /// The number of entries, at least 1.
    pub count: u32,
}

/// A chunk of the entries that a subjob keeps.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Survivors {
    /// The number of the subjob.
    pub subjob: u32,
    /// The number of the chunk. The first chunk after the point at which the subjob continues has
    /// number 0.
    pub chunk: u32,
    /// The entries, in order.
    pub extents: Vec<Extent>,
    /// The tables that begin in this chunk: the index of the extent with which each begins, and the
    /// counts of what was read and dropped before it.
    pub tables: Vec<(u32, Counters)>,
    /// In the last chunk, the counts of everything that the subjob read and dropped.
    pub end: Option<Counters>,
}

impl Survivors {
    /// Checks that the job can have this chunk.
    ///
    /// # Errors
    /// A description of the first violated rule.
    pub fn check(&self, job: &Job) -> Result<(), String> {
        if self.subjob as usize >= job.subjobs() {
            let count = job.subjobs();
            return Err(format!("subjob {} of a job with {count}", self.subjob));
        }
        for extent in &self.extents {
            let input = job.inputs.get(extent.input as usize);
            if input.is_none_or(|input| input.kind != InputKind::Table) {
                return Err(format!("input {} is no table of the job", extent.input));
            }
            let end = u64::from(extent.first) + u64::from(extent.count);
            if extent.count == 0 || end > MAX_BLOCK_ENTRIES as u64 {
                return Err(format!(
                    "{} entries of a block from entry {} on",
                    extent.count, extent.first
                ));
            }
        }
        if self.extents.is_empty() && self.end.is_none() {
            return Err("nothing survives in it, and others follow".into());
        }
        let at: Vec<u32> = self.tables.iter().map(|(extent, _)| *extent).collect();
        let ascend = at.windows(2).all(|pair| pair[0] < pair[1]);
        if !ascend
            || at
                .last()
                .is_some_and(|at| *at as usize >= self.extents.len())
        {
            return Err("a table does not begin with an extent, or not in order".into());
        }
        let counters = self.tables.iter().map(|(_, counters)| counters);
        match counters.chain(&self.end).all(|c| c.largest() < COUNT_MAX) {
            true => Ok(()),
            false => Err("a count is larger than a subjob can have".into()),
        }
    }

    /// Encodes a chunk for the job with this identity.
    pub fn encode(&self, job: u128) -> Vec<u8> {
        let mut out = FieldWriter::document(SURVIVORS_MAGIC, CODING_VERSION);
        out.field(tag::JOB, |o| put_identity(o, job));
        out.field(tag::SUBJOB, |o| {
            o.u32(self.subjob);
            o.u32(self.chunk);
        });
        out.field(tag::EXTENTS, |o| {
            o.list(&self.extents, |o, e| {
                for x in [e.input, e.block, e.first, e.count] {
                    o.var(x);
                }
            });
        });
        out.field(tag::TABLES, |o| {
            o.list(&self.tables, |o, (extent, counters)| {
                o.u32(*extent);
                put_counters(o, counters);
            });
        });
        out.field(tag::END, |o| {
            o.flag(self.end.is_some());
            if let Some(counters) = &self.end {
                put_counters(o, counters);
            }
        });
        out.finish_document()
    }

    /// Decodes a chunk, and the identity of the job that it belongs to. The chunk is not believed
    /// yet.
    ///
    /// # Errors
    /// A description of the damage and its offset.
    pub fn decode(bytes: &[u8]) -> Result<(u128, Survivors), Damage> {
        let mut i = FieldReader::document(bytes, SURVIVORS_MAGIC, CODING_VERSION, "survivors")?;
        let job = i.field(tag::JOB, "job identity", get_identity)?;
        let (subjob, chunk) = i.field(tag::SUBJOB, "subjob and chunk", |i| {
            Ok((i.u32("subjob")?, i.u32("number of the chunk")?))
        })?;
        let survivors = Survivors {
            subjob,
            chunk,
            extents: i.field(tag::EXTENTS, "extents", get_extents)?,
            tables: i.field(tag::TABLES, "tables that begin", |i| {
                i.list("tables that begin", TABLE_BYTES_MIN, |i| {
                    Ok((i.u32("first extent")?, get_counters(i)?))
                })
            })?,
            end: i.field(tag::END, "end of the subjob", |i| {
                Ok(match i.flag("end of the subjob")? {
                    true => Some(get_counters(i)?),
                    false => None,
                })
            })?,
        };
        i.end("survivors")?;
        Ok((job, survivors))
    }
}

fn get_extents(i: &mut FieldReader<'_>) -> Decoded<Vec<Extent>> {
    let at = i.position();
    let count = i.clone().u32("extents")? as usize;
    if count > EXTENTS_MAX {
        return Err(Damage::new("extents", at, EXTENTS_MAX as u64, count as u64));
    }
    i.list("extents", EXTENT_BYTES_MIN, |i| {
        Ok(Extent {
            input: i.var("input of an extent")?,
            block: i.var("block of an extent")?,
            first: i.var("first entry of an extent")?,
            count: i.var("number of entries of an extent")?,
        })
    })
}
