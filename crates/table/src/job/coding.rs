//! Jobs and outcomes as bytes: documents of tagged fields ([`crate::fields`]). `docs/format/job.md`
//! describes them.
//!
//! Decoding never panics. Every count is bounded by the remaining bytes before memory is allocated
//! for it.
//!
//! Threading: pure functions.

use super::outcome::{Counters, Outcome, OutputTable};
use super::{
    Extension, FormatOptions, Input, InputKind, Job, KeyBounds, OutputLimits, OutputPrefix,
};
use crate::compress::Codec;
use crate::error::Damage;
use crate::fields::{Decoded, FieldReader, FieldWriter};
use crate::layout::LayoutLimits;
use crate::retain::{DropRules, KeyRange, RangeEnd};

/// The first bytes of a job.
pub const JOB_MAGIC: [u8; 8] = *b"siltjob\0";
/// The first bytes of an outcome.
pub const OUTCOME_MAGIC: [u8; 8] = *b"siltout\0";
/// The version of both encodings.
pub const CODING_VERSION: u16 = 1;

/// The tags of a job's fields.
mod tag {
    pub const KEYSPACE: u16 = 1;
    pub const LAYOUT_VERSION: u16 = 2;
    pub const INPUTS: u16 = 3;
    pub const BOUNDS: u16 = 4;
    pub const HARD_CUTS: u16 = 5;
    pub const SOFT_CUTS: u16 = 6;
    pub const NUMBERS: u16 = 7;
    pub const RULES: u16 = 8;
    pub const NOW: u16 = 9;
    pub const OLDER: u16 = 10;
    pub const LIMITS: u16 = 11;
    pub const FORMAT: u16 = 12;
    pub const EXTENSIONS: u16 = 13;
    pub const OUTPUT: u16 = 14;
    /// The tags of an outcome's fields.
    pub const OUT_JOB: u16 = 1;
    pub const OUT_OUTPUT: u16 = 2;
    pub const OUT_TABLES: u16 = 3;
    pub const OUT_COUNTERS: u16 = 4;
    pub const OUT_VALUES: u16 = 5;
}

fn put_bounds(out: &mut FieldWriter, x: &KeyBounds) {
    out.bytes(&x.start);
    out.option(x.end.as_deref());
}

fn get_bounds(i: &mut FieldReader<'_>, what: &'static str) -> Decoded<KeyBounds> {
    Ok(KeyBounds {
        start: i.bytes(what)?.to_vec(),
        end: i.option(what)?.map(<[u8]>::to_vec),
    })
}

fn put_range(out: &mut FieldWriter, x: &KeyRange) {
    out.bytes(&x.start);
    match &x.end {
        RangeEnd::Unbounded => out.u8(0),
        RangeEnd::Before(key) => {
            out.u8(1);
            out.bytes(key);
        }
        RangeEnd::With(key) => {
            out.u8(2);
            out.bytes(key);
        }
    }
}

fn get_range(i: &mut FieldReader<'_>, what: &'static str) -> Decoded<KeyRange> {
    let start = i.bytes(what)?.to_vec();
    let at = i.position();
    let end = match i.u8(what)? {
        0 => RangeEnd::Unbounded,
        1 => RangeEnd::Before(i.bytes(what)?.to_vec()),
        2 => RangeEnd::With(i.bytes(what)?.to_vec()),
        x => return Err(Damage::new(what, at, 2, x.into())),
    };
    Ok(KeyRange { start, end })
}

fn put_output(out: &mut FieldWriter, x: &OutputPrefix) {
    out.u64(x.epoch);
    out.u64(x.attempt);
}

fn get_output(i: &mut FieldReader<'_>) -> Decoded<OutputPrefix> {
    Ok(OutputPrefix {
        epoch: i.u64("output epoch")?,
        attempt: i.u64("output attempt")?,
    })
}

/// The minimum number of bytes of an encoded input: that of an input with an empty name.
const INPUT_BYTES_MIN: usize = 51;

fn put_input(out: &mut FieldWriter, x: &Input) {
    out.u8(x.kind.number());
    out.u32(x.location);
    out.bytes(x.name.as_bytes());
    out.u32(x.run);
    out.u64(x.len_bytes);
    out.u64(x.digest);
    out.u64(x.min_seq);
    out.u64(x.max_seq);
    put_bounds(out, &x.clip);
    out.u8(x.seq_override.is_some() as u8);
    if let Some(seq) = x.seq_override {
        out.u64(seq);
    }
}

fn get_input(i: &mut FieldReader<'_>) -> Decoded<Input> {
    Ok(Input {
        kind: InputKind::from_number(i.u8("input kind")?),
        location: i.u32("input location")?,
        name: i.text("input name")?,
        run: i.u32("input run")?,
        len_bytes: i.u64("input length")?,
        digest: i.u64("input digest")?,
        min_seq: i.u64("input sequence range")?,
        max_seq: i.u64("input sequence range")?,
        clip: get_bounds(i, "input clip bounds")?,
        seq_override: if i.flag("input override")? {
            Some(i.u64("input override")?)
        } else {
            None
        },
    })
}

fn encode_fields(job: &Job, out: &mut FieldWriter) {
    out.field(tag::KEYSPACE, |o| o.u32(job.keyspace));
    out.field(tag::LAYOUT_VERSION, |o| o.u16(job.layout_version));
    out.field(tag::INPUTS, |o| o.list(&job.inputs, put_input));
    out.field(tag::BOUNDS, |o| put_bounds(o, &job.bounds));
    out.field(tag::HARD_CUTS, |o| {
        o.list(&job.hard_cuts, |o, c| o.bytes(c))
    });
    out.field(tag::SOFT_CUTS, |o| {
        o.list(&job.soft_cuts, |o, c| o.bytes(c))
    });
    out.field(tag::NUMBERS, |o| {
        o.u64(job.published);
        o.list(&job.snapshots, |o, s| o.u64(*s));
    });
    out.field(tag::RULES, |o| o.u8(job.rules.0));
    out.field(tag::NOW, |o| o.u64(job.now_us));
    out.field(tag::OLDER, |o| o.list(&job.older, put_range));
    out.field(tag::LIMITS, |o| {
        o.u64(job.limits.layout.table_bytes);
        o.u64(job.limits.layout.min_span_bytes);
        o.u64(job.limits.layout.delay_bytes);
        o.u64(job.limits.block_bytes);
    });
    out.field(tag::FORMAT, |o| {
        o.u8(job.format.codec as u8);
        o.u8(job.format.level);
        o.u8(job.format.bits_per_key);
        o.u8(job.format.verify as u8);
    });
    out.field(tag::EXTENSIONS, |o| {
        o.list(&job.extensions, |o, e| {
            o.bytes(e.name.as_bytes());
            o.u32(e.version);
            o.bytes(&e.params);
        });
    });
}

/// The bytes that [`Job::identity`] hashes: the job without its output prefix.
pub(super) fn encode_identity(job: &Job) -> Vec<u8> {
    let mut out = FieldWriter::document(JOB_MAGIC, CODING_VERSION);
    encode_fields(job, &mut out);
    out.into_bytes()
}

impl Job {
    /// Encodes the job.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = FieldWriter::document(JOB_MAGIC, CODING_VERSION);
        encode_fields(self, &mut out);
        out.field(tag::OUTPUT, |o| put_output(o, &self.output));
        out.finish_document()
    }

    /// Decodes a job. It may still violate its invariants: see [`Job::check`].
    ///
    /// # Errors
    /// A description of the damage and its offset.
    pub fn decode(bytes: &[u8]) -> Result<Job, Damage> {
        let mut i = FieldReader::document(bytes, JOB_MAGIC, CODING_VERSION, "job")?;
        let job = Job {
            keyspace: i.field(tag::KEYSPACE, "keyspace", |i| i.u32("keyspace"))?,
            layout_version: i.field(tag::LAYOUT_VERSION, "layout version", |i| {
                i.u16("layout version")
            })?,
            inputs: i.field(tag::INPUTS, "inputs", |i| {
                i.list("inputs", INPUT_BYTES_MIN, get_input)
            })?,
            bounds: i.field(tag::BOUNDS, "bounds", |i| get_bounds(i, "bounds"))?,
            hard_cuts: i.field(tag::HARD_CUTS, "hard cuts", |i| {
                i.list("hard cuts", 4, |i| Ok(i.bytes("hard cut")?.to_vec()))
            })?,
            soft_cuts: i.field(tag::SOFT_CUTS, "soft cuts", |i| {
                i.list("soft cuts", 4, |i| Ok(i.bytes("soft cut")?.to_vec()))
            })?,
            published: 0,
            snapshots: Vec::new(),
            rules: DropRules::QUICK,
            now_us: 0,
            older: Vec::new(),
            limits: OutputLimits::new(1, 1, false),
            format: FormatOptions::default(),
            extensions: Vec::new(),
            output: OutputPrefix::default(),
        };
        let (published, snapshots) =
            i.field(tag::NUMBERS, "published number and snapshots", |i| {
                Ok((
                    i.u64("published number")?,
                    i.list("snapshots", 8, |i| i.u64("snapshot"))?,
                ))
            })?;
        let job = Job {
            published,
            snapshots,
            rules: i.field(tag::RULES, "drop rules", |i| {
                Ok(DropRules(i.u8("drop rules")?))
            })?,
            now_us: i.field(tag::NOW, "now", |i| i.u64("now"))?,
            older: i.field(tag::OLDER, "older ranges", |i| {
                i.list("older ranges", 5, |i| get_range(i, "older range"))
            })?,
            limits: i.field(tag::LIMITS, "output limits", |i| {
                Ok(OutputLimits {
                    layout: LayoutLimits {
                        table_bytes: i.u64("table size")?,
                        min_span_bytes: i.u64("least span weight")?,
                        delay_bytes: i.u64("cut delay")?,
                    },
                    block_bytes: i.u64("block size")?,
                })
            })?,
            format: i.field(tag::FORMAT, "format options", |i| {
                let codec = i.u8("codec")?;
                Ok(FormatOptions {
                    codec: Codec::from_u8(codec).ok_or(Damage::new("codec", 0, 2, codec as u64))?,
                    level: i.u8("codec level")?,
                    bits_per_key: i.u8("bits per key")?,
                    verify: i.flag("verify")?,
                })
            })?,
            extensions: i.field(tag::EXTENSIONS, "extensions", |i| {
                i.list("extensions", 12, |i| {
                    Ok(Extension {
                        name: i.text("extension name")?,
                        version: i.u32("extension version")?,
                        params: i.bytes("extension parameters")?.to_vec(),
                    })
                })
            })?,
            output: i.field(tag::OUTPUT, "output prefix", get_output)?,
            ..job
        };
        i.end("job")?;
        Ok(job)
    }
}

pub(crate) fn put_table(out: &mut FieldWriter, x: &OutputTable) {
    out.bytes(x.name.as_bytes());
    out.u32(x.subjob);
    for n in [
        x.raw_bytes,
        x.file_bytes,
        x.entries,
        x.puts,
        x.deletes,
        x.fragments,
    ] {
        out.u64(n);
    }
    out.u8(x.keys.is_some() as u8);
    if let Some((first, last)) = &x.keys {
        out.bytes(first);
        out.bytes(last);
    }
    out.bytes(&x.left_bound);
    out.option(x.right_bound.as_deref());
    put_range(out, &x.bounds);
    out.u64(x.min_seq);
    out.u64(x.max_seq);
    out.u64(x.digest);
}

pub(crate) fn get_table(i: &mut FieldReader<'_>) -> Decoded<OutputTable> {
    Ok(OutputTable {
        name: i.text("table name")?,
        subjob: i.u32("subjob")?,
        raw_bytes: i.u64("raw bytes")?,
        file_bytes: i.u64("file bytes")?,
        entries: i.u64("entries")?,
        puts: i.u64("puts")?,
        deletes: i.u64("deletes")?,
        fragments: i.u64("fragments")?,
        keys: if i.flag("keys")? {
            Some((
                i.bytes("first key")?.to_vec(),
                i.bytes("last key")?.to_vec(),
            ))
        } else {
            None
        },
        left_bound: i.bytes("left bound")?.to_vec(),
        right_bound: i.option("right bound")?.map(<[u8]>::to_vec),
        bounds: get_range(i, "bounds")?,
        min_seq: i.u64("sequence range")?,
        max_seq: i.u64("sequence range")?,
        digest: i.u64("digest")?,
    })
}

/// A job's identity.
pub(crate) fn put_identity(out: &mut FieldWriter, x: u128) {
    out.u64(x as u64);
    out.u64((x >> 64) as u64);
}

pub(crate) fn get_identity(i: &mut FieldReader<'_>) -> Decoded<u128> {
    let low = i.u64("job identity")?;
    let high = i.u64("job identity")?;
    Ok(u128::from(low) | u128::from(high) << 64)
}

pub(crate) fn put_counters(out: &mut FieldWriter, x: &Counters) {
    for n in [
        x.entries_read,
        x.shadowed,
        x.tombstones,
        x.covered,
        x.range_deletes_read,
        x.fragments_dropped,
        x.entries_written,
        x.raw_bytes_read,
        x.bytes_read,
        x.bytes_written,
        x.cpu_ns,
    ] {
        out.u64(n);
    }
}

pub(crate) fn get_counters(i: &mut FieldReader<'_>) -> Decoded<Counters> {
    let mut next = || i.u64("counters");
    Ok(Counters {
        entries_read: next()?,
        shadowed: next()?,
        tombstones: next()?,
        covered: next()?,
        range_deletes_read: next()?,
        fragments_dropped: next()?,
        entries_written: next()?,
        raw_bytes_read: next()?,
        bytes_read: next()?,
        bytes_written: next()?,
        cpu_ns: next()?,
    })
}

impl Outcome {
    /// Encodes the outcome.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = FieldWriter::document(OUTCOME_MAGIC, CODING_VERSION);
        out.field(tag::OUT_JOB, |o| put_identity(o, self.job));
        out.field(tag::OUT_OUTPUT, |o| put_output(o, &self.output));
        out.field(tag::OUT_TABLES, |o| o.list(&self.tables, put_table));
        out.field(tag::OUT_COUNTERS, |o| put_counters(o, &self.counters));
        out.field(tag::OUT_VALUES, |o| {
            o.list(&self.dropped_value_bytes, |o, (log, bytes)| {
                o.u64(*log);
                o.u64(*bytes);
            });
        });
        out.finish_document()
    }

    /// Decodes an outcome. Nothing in it is trusted yet.
    ///
    /// # Errors
    /// A description of the damage and its offset.
    pub fn decode(bytes: &[u8]) -> Result<Outcome, Damage> {
        let mut i = FieldReader::document(bytes, OUTCOME_MAGIC, CODING_VERSION, "outcome")?;
        let outcome = Outcome {
            job: i.field(tag::OUT_JOB, "job identity", get_identity)?,
            output: i.field(tag::OUT_OUTPUT, "output prefix", get_output)?,
            tables: i.field(tag::OUT_TABLES, "tables", |i| {
                i.list("tables", 94, get_table)
            })?,
            counters: i.field(tag::OUT_COUNTERS, "counters", get_counters)?,
            dropped_value_bytes: i.field(tag::OUT_VALUES, "dropped value bytes", |i| {
                i.list("dropped value bytes", 16, |i| {
                    Ok((i.u64("value log")?, i.u64("dropped bytes")?))
                })
            })?,
        };
        i.end("outcome")?;
        Ok(outcome)
    }
}
