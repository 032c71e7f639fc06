//! Jobs and outcomes as bytes: a header, tagged fields, a checksum. `docs/format/job.md` describes
//! them.
//!
//! ```text
//! magic 8 bytes | version u16 | fields: tag u16, length u32, bytes ...
//!               | crc32c u32 of everything before
//! ```
//! Fields come in ascending order of tags, each exactly once. A reader may skip a field that it
//! does not know if its tag has the high bit set. Any other unknown tag is an error, because
//! guessing what a job means would corrupt data.
//!
//! Decoding never panics. Every count is bounded by the remaining bytes before memory is allocated
//! for it.
//!
//! Threading: pure functions.

use super::outcome::{Counters, Outcome, OutputTable};
use super::{
    Extension, FormatOptions, Input, InputKind, Job, KeyBounds, OutputLimits, OutputPrefix,
};
use crate::checksum::crc32c;
use crate::coding::Cursor;
use crate::compress::Codec;
use crate::error::Damage;
use crate::layout::LayoutLimits;
use crate::retain::{DropRules, KeyRange, RangeEnd};

/// The first bytes of a job.
pub const JOB_MAGIC: [u8; 8] = *b"siltjob\0";
/// The first bytes of an outcome.
pub const OUTCOME_MAGIC: [u8; 8] = *b"siltout\0";
/// The version of both encodings.
pub const CODING_VERSION: u16 = 1;
/// Fields whose tag has this bit may be skipped by readers that do not know them.
pub const MAY_SKIP: u16 = 0x8000;

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

type R<T> = Result<T, Damage>;

/// Appends primitive values.
#[derive(Default)]
struct Out(Vec<u8>);

impl Out {
    fn u8(&mut self, x: u8) {
        self.0.push(x);
    }
    fn u16(&mut self, x: u16) {
        self.0.extend_from_slice(&x.to_le_bytes());
    }
    fn u32(&mut self, x: u32) {
        self.0.extend_from_slice(&x.to_le_bytes());
    }
    fn u64(&mut self, x: u64) {
        self.0.extend_from_slice(&x.to_le_bytes());
    }
    fn bytes(&mut self, x: &[u8]) {
        self.u32(x.len() as u32);
        self.0.extend_from_slice(x);
    }
    fn option(&mut self, x: Option<&[u8]>) {
        self.u8(x.is_some() as u8);
        if let Some(x) = x {
            self.bytes(x);
        }
    }
    fn bounds(&mut self, x: &KeyBounds) {
        self.bytes(&x.start);
        self.option(x.end.as_deref());
    }
    fn range(&mut self, x: &KeyRange) {
        self.bytes(&x.start);
        match &x.end {
            RangeEnd::Unbounded => self.u8(0),
            RangeEnd::Before(key) => {
                self.u8(1);
                self.bytes(key);
            }
            RangeEnd::With(key) => {
                self.u8(2);
                self.bytes(key);
            }
        }
    }
    fn list<T>(&mut self, items: &[T], mut each: impl FnMut(&mut Out, &T)) {
        self.u32(items.len() as u32);
        for item in items {
            each(self, item);
        }
    }
    fn field(&mut self, tag: u16, fill: impl FnOnce(&mut Out)) {
        self.u16(tag);
        let at = self.0.len();
        self.u32(0);
        fill(self);
        let len = (self.0.len() - at - 4) as u32;
        self.0[at..at + 4].copy_from_slice(&len.to_le_bytes());
    }
    fn start(magic: [u8; 8]) -> Out {
        let mut out = Out(magic.to_vec());
        out.u16(CODING_VERSION);
        out
    }
    fn finish(mut self) -> Vec<u8> {
        let crc = crc32c(&self.0);
        self.u32(crc);
        self.0
    }
}

/// Reads primitive values.
struct In<'a>(Cursor<'a>);

impl<'a> In<'a> {
    fn u8(&mut self, what: &'static str) -> R<u8> {
        Ok(self.0.take(what, 1)?[0])
    }
    fn flag(&mut self, what: &'static str) -> R<bool> {
        let at = self.0.position() as u64;
        match self.u8(what)? {
            x @ (0 | 1) => Ok(x == 1),
            x => Err(Damage::new(what, at, 1, x as u64)),
        }
    }
    fn bytes(&mut self, what: &'static str) -> R<Vec<u8>> {
        let len = self.0.u32(what)? as usize;
        Ok(self.0.take(what, len)?.to_vec())
    }
    fn text(&mut self, what: &'static str) -> R<String> {
        let at = self.0.position() as u64;
        let bytes = self.bytes(what)?;
        String::from_utf8(bytes)
            .map_err(|e| Damage::new(what, at, 0, e.utf8_error().valid_up_to() as u64))
    }
    fn option(&mut self, what: &'static str) -> R<Option<Vec<u8>>> {
        Ok(if self.flag(what)? {
            Some(self.bytes(what)?)
        } else {
            None
        })
    }
    fn bounds(&mut self, what: &'static str) -> R<KeyBounds> {
        Ok(KeyBounds {
            start: self.bytes(what)?,
            end: self.option(what)?,
        })
    }
    fn range(&mut self, what: &'static str) -> R<KeyRange> {
        let start = self.bytes(what)?;
        let at = self.0.position() as u64;
        let end = match self.u8(what)? {
            0 => RangeEnd::Unbounded,
            1 => RangeEnd::Before(self.bytes(what)?),
            2 => RangeEnd::With(self.bytes(what)?),
            x => return Err(Damage::new(what, at, 2, x as u64)),
        };
        Ok(KeyRange { start, end })
    }
    /// A list whose items take at least `least` bytes each.
    fn list<T>(
        &mut self,
        what: &'static str,
        least: usize,
        mut each: impl FnMut(&mut Self) -> R<T>,
    ) -> R<Vec<T>> {
        let at = self.0.position() as u64;
        let n = self.0.u32(what)? as usize;
        let possible = self.0.remaining() / least;
        if n > possible {
            return Err(Damage::new(what, at, possible as u64, n as u64));
        }
        let mut items = Vec::with_capacity(n);
        for _ in 0..n {
            items.push(each(self)?);
        }
        Ok(items)
    }
    /// Skips optional fields until the field `tag`, and decodes all of it.
    fn field<T>(
        &mut self,
        tag: u16,
        what: &'static str,
        fill: impl FnOnce(&mut In<'a>) -> R<T>,
    ) -> R<T> {
        loop {
            let at = self.0.position() as u64;
            let found = self.0.u16(what)?;
            let len = self.0.u32(what)? as usize;
            let start = self.0.position() as u64;
            let bytes = self.0.take(what, len)?;
            if found == tag {
                let mut field = In(Cursor::new(bytes));
                let value = fill(&mut field).map_err(|d| d.shifted(start))?;
                field.0.finish(what).map_err(|d| d.shifted(start))?;
                return Ok(value);
            }
            if found & MAY_SKIP == 0 {
                return Err(Damage::new(what, at, tag as u64, found as u64));
            }
        }
    }
    /// Checks the magic number, the checksum and the version.
    fn open(bytes: &'a [u8], magic: [u8; 8], what: &'static str) -> R<In<'a>> {
        let Some(end) = bytes.len().checked_sub(4).filter(|end| *end >= 10) else {
            return Err(Damage::new(what, 0, 14, bytes.len() as u64));
        };
        let want = u32::from_le_bytes(bytes[end..].try_into().unwrap_or_default());
        let found = crc32c(&bytes[..end]);
        if bytes[..8] != magic {
            let number = |b: &[u8]| u64::from_le_bytes(b.try_into().unwrap_or_default());
            return Err(Damage::new(what, 0, number(&magic), number(&bytes[..8])));
        }
        if want != found {
            return Err(Damage::new(
                "checksum of a job or an outcome",
                end as u64,
                want as u64,
                found as u64,
            ));
        }
        let mut cursor = Cursor::new(&bytes[..end]);
        cursor.take(what, 8)?;
        let version = cursor.u16(what)?;
        if version != CODING_VERSION {
            return Err(Damage::new(
                "coding version",
                8,
                CODING_VERSION as u64,
                version as u64,
            ));
        }
        Ok(In(cursor))
    }
    /// Skips the remaining optional fields.
    fn end(mut self, what: &'static str) -> R<()> {
        while self.0.remaining() > 0 {
            let at = self.0.position() as u64;
            let found = self.0.u16(what)?;
            let len = self.0.u32(what)? as usize;
            self.0.take(what, len)?;
            if found & MAY_SKIP == 0 {
                return Err(Damage::new("unknown field", at, 0, found as u64));
            }
        }
        Ok(())
    }
}

fn put_output(out: &mut Out, x: &OutputPrefix) {
    out.u64(x.epoch);
    out.u64(x.attempt);
}

fn get_output(i: &mut In<'_>) -> R<OutputPrefix> {
    Ok(OutputPrefix {
        epoch: i.0.u64("output epoch")?,
        attempt: i.0.u64("output attempt")?,
    })
}

fn put_input(out: &mut Out, x: &Input) {
    out.u8(x.kind as u8);
    out.u32(x.location);
    out.bytes(x.name.as_bytes());
    out.u32(x.run);
    out.u64(x.len_bytes);
    out.u64(x.digest);
    out.u64(x.min_seq);
    out.u64(x.max_seq);
    out.bounds(&x.clip);
    out.u8(x.seq_override.is_some() as u8);
    if let Some(seq) = x.seq_override {
        out.u64(seq);
    }
}

fn get_input(i: &mut In<'_>) -> R<Input> {
    let at = i.0.position() as u64;
    let kind = match i.u8("input kind")? {
        0 => InputKind::Table,
        1 => InputKind::Stream,
        2 => InputKind::Unsorted,
        x => return Err(Damage::new("input kind", at, 2, x as u64)),
    };
    Ok(Input {
        kind,
        location: i.0.u32("input location")?,
        name: i.text("input name")?,
        run: i.0.u32("input run")?,
        len_bytes: i.0.u64("input length")?,
        digest: i.0.u64("input digest")?,
        min_seq: i.0.u64("input sequence range")?,
        max_seq: i.0.u64("input sequence range")?,
        clip: i.bounds("input clip bounds")?,
        seq_override: if i.flag("input override")? {
            Some(i.0.u64("input override")?)
        } else {
            None
        },
    })
}

fn encode_fields(job: &Job, out: &mut Out) {
    out.field(tag::KEYSPACE, |o| o.u32(job.keyspace));
    out.field(tag::LAYOUT_VERSION, |o| o.u16(job.layout_version));
    out.field(tag::INPUTS, |o| o.list(&job.inputs, put_input));
    out.field(tag::BOUNDS, |o| o.bounds(&job.bounds));
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
    out.field(tag::OLDER, |o| o.list(&job.older, |o, r| o.range(r)));
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
    let mut out = Out::start(JOB_MAGIC);
    encode_fields(job, &mut out);
    out.0
}

impl Job {
    /// Encodes the job.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Out::start(JOB_MAGIC);
        encode_fields(self, &mut out);
        out.field(tag::OUTPUT, |o| put_output(o, &self.output));
        out.finish()
    }

    /// Decodes a job. It may still violate its invariants: see [`Job::check`].
    ///
    /// # Errors
    /// A description of the damage and its offset.
    pub fn decode(bytes: &[u8]) -> Result<Job, Damage> {
        let mut i = In::open(bytes, JOB_MAGIC, "job")?;
        let job = Job {
            keyspace: i.field(tag::KEYSPACE, "keyspace", |i| i.0.u32("keyspace"))?,
            layout_version: i.field(tag::LAYOUT_VERSION, "layout version", |i| {
                i.0.u16("layout version")
            })?,
            inputs: i.field(tag::INPUTS, "inputs", |i| i.list("inputs", 55, get_input))?,
            bounds: i.field(tag::BOUNDS, "bounds", |i| i.bounds("bounds"))?,
            hard_cuts: i.field(tag::HARD_CUTS, "hard cuts", |i| {
                i.list("hard cuts", 4, |i| i.bytes("hard cut"))
            })?,
            soft_cuts: i.field(tag::SOFT_CUTS, "soft cuts", |i| {
                i.list("soft cuts", 4, |i| i.bytes("soft cut"))
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
                    i.0.u64("published number")?,
                    i.list("snapshots", 8, |i| i.0.u64("snapshot"))?,
                ))
            })?;
        let job = Job {
            published,
            snapshots,
            rules: i.field(tag::RULES, "drop rules", |i| {
                Ok(DropRules(i.u8("drop rules")?))
            })?,
            now_us: i.field(tag::NOW, "now", |i| i.0.u64("now"))?,
            older: i.field(tag::OLDER, "older ranges", |i| {
                i.list("older ranges", 5, |i| i.range("older range"))
            })?,
            limits: i.field(tag::LIMITS, "output limits", |i| {
                Ok(OutputLimits {
                    layout: LayoutLimits {
                        table_bytes: i.0.u64("table size")?,
                        min_span_bytes: i.0.u64("least span weight")?,
                        delay_bytes: i.0.u64("cut delay")?,
                    },
                    block_bytes: i.0.u64("block size")?,
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
                        version: i.0.u32("extension version")?,
                        params: i.bytes("extension parameters")?,
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

fn put_table(out: &mut Out, x: &OutputTable) {
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
    out.range(&x.bounds);
    out.u64(x.min_seq);
    out.u64(x.max_seq);
    out.u64(x.digest);
}

fn get_table(i: &mut In<'_>) -> R<OutputTable> {
    Ok(OutputTable {
        name: i.text("table name")?,
        subjob: i.0.u32("subjob")?,
        raw_bytes: i.0.u64("raw bytes")?,
        file_bytes: i.0.u64("file bytes")?,
        entries: i.0.u64("entries")?,
        puts: i.0.u64("puts")?,
        deletes: i.0.u64("deletes")?,
        fragments: i.0.u64("fragments")?,
        keys: if i.flag("keys")? {
            Some((i.bytes("first key")?, i.bytes("last key")?))
        } else {
            None
        },
        left_bound: i.bytes("left bound")?,
        right_bound: i.option("right bound")?,
        bounds: i.range("bounds")?,
        min_seq: i.0.u64("sequence range")?,
        max_seq: i.0.u64("sequence range")?,
        digest: i.0.u64("digest")?,
    })
}

impl Outcome {
    /// Encodes the outcome.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Out::start(OUTCOME_MAGIC);
        out.field(tag::OUT_JOB, |o| {
            o.u64(self.job as u64);
            o.u64((self.job >> 64) as u64);
        });
        out.field(tag::OUT_OUTPUT, |o| put_output(o, &self.output));
        out.field(tag::OUT_TABLES, |o| o.list(&self.tables, put_table));
        out.field(tag::OUT_COUNTERS, |o| {
            let c = &self.counters;
            for n in [
                c.entries_read,
                c.shadowed,
                c.tombstones,
                c.covered,
                c.range_deletes_read,
                c.fragments_dropped,
                c.entries_written,
                c.raw_bytes_read,
                c.bytes_read,
                c.bytes_written,
                c.cpu_ns,
            ] {
                o.u64(n);
            }
        });
        out.field(tag::OUT_VALUES, |o| {
            o.list(&self.dropped_value_bytes, |o, (log, bytes)| {
                o.u64(*log);
                o.u64(*bytes);
            });
        });
        out.finish()
    }

    /// Decodes an outcome, of which nothing is trusted yet.
    ///
    /// # Errors
    /// A description of the damage and its offset.
    pub fn decode(bytes: &[u8]) -> Result<Outcome, Damage> {
        let mut i = In::open(bytes, OUTCOME_MAGIC, "outcome")?;
        let outcome = Outcome {
            job: i.field(tag::OUT_JOB, "job identity", |i| {
                Ok(i.0.u64("job identity")? as u128 | (i.0.u64("job identity")? as u128) << 64)
            })?,
            output: i.field(tag::OUT_OUTPUT, "output prefix", get_output)?,
            tables: i.field(tag::OUT_TABLES, "tables", |i| {
                i.list("tables", 94, get_table)
            })?,
            counters: i.field(tag::OUT_COUNTERS, "counters", |i| {
                let mut next = || i.0.u64("counters");
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
            })?,
            dropped_value_bytes: i.field(tag::OUT_VALUES, "dropped value bytes", |i| {
                i.list("dropped value bytes", 16, |i| {
                    Ok((i.0.u64("value log")?, i.0.u64("dropped bytes")?))
                })
            })?,
        };
        i.end("outcome")?;
        Ok(outcome)
    }
}
