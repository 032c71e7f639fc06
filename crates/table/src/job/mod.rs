//! A job: a compaction or a flush as plain data.
//!
//! A job says everything that decides its output: which inputs, which key ranges, where to cut, what may be dropped
//! and why, how to write. It holds no handle: an executor resolves inputs and outputs by name through its
//! [`ExecContext`](crate::exec::ExecContext). So it can be stored, sent, compared and run again, anywhere, with the
//! same result. `docs/format/job.md` has the bytes, `docs/rfc/0002b-jobs.md` the reasons.
//!
//! Invariants ([`Job::check`]): key bounds are not empty; hard and soft cuts are strictly ascending, inside the bounds
//! and different from each other; the published number is at least every input's largest; drop rules are sound.
//!
//! Threading: plain data.

mod blocks;
pub mod coding;
mod contents;
pub mod fragments;
pub mod outcome;
pub mod verify;

use crate::compress::Codec;
use crate::layout::LayoutLimits;
use crate::limits::{MAX_BITS_PER_KEY, MAX_BLOCK_SIZE_BYTES, MAX_KEY_BYTES, MIN_BLOCK_SIZE_BYTES};
pub use crate::retain::{DropRules, KeyRange, RangeEnd};

/// The version of layout and drop rules that this crate implements. Two executors of one version give identical
/// tables for one job.
pub const LAYOUT_VERSION: u16 = 1;

/// What an input is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum InputKind {
    /// A table: an immutable object.
    Table = 0,
    /// A stream of entries in order, resolved by id: a memtable (which does not leave the process), a device's run.
    Stream = 1,
    /// An unsorted run (number reserved).
    Unsorted = 2,
}

/// User keys from `start` to before `end` (`None`: no end).
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct KeyBounds {
    /// The first user key.
    pub start: Vec<u8>,
    /// The user key after the last.
    pub end: Option<Vec<u8>>,
}

impl KeyBounds {
    /// All user keys.
    pub fn everything() -> KeyBounds {
        KeyBounds::default()
    }

    /// Whether `key` lies inside.
    pub fn contains(&self, key: &[u8]) -> bool {
        self.start.as_slice() <= key && self.end.as_ref().is_none_or(|end| key < end.as_slice())
    }

    /// Whether no key lies inside.
    pub fn is_empty(&self) -> bool {
        self.end.as_ref().is_some_and(|end| end <= &self.start)
    }

    /// What lies inside both.
    pub fn intersect(&self, other: &KeyBounds) -> KeyBounds {
        let end = match (&self.end, &other.end) {
            (Some(a), Some(b)) => Some(a.min(b).clone()),
            (a, b) => a.as_ref().or(b.as_ref()).cloned(),
        };
        KeyBounds {
            start: self.start.as_slice().max(&other.start).to_vec(),
            end,
        }
    }
}

/// One input of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Input {
    /// What it is.
    pub kind: InputKind,
    /// Which storage or device holds it; the context resolves it.
    pub location: u32,
    /// The object's name, or the stream's id.
    pub name: String,
    /// Inputs with the same number follow each other: tables of one level, ascending and disjoint. Runs are merged.
    pub run: u32,
    /// Length of the object in bytes; 0 for a stream.
    pub len_bytes: u64,
    /// The table's digest; 0 for a stream.
    pub digest: u64,
    /// The smallest sequence number in it (of the override, if there is one).
    pub min_seq: u64,
    /// The largest sequence number in it (of the override, if there is one).
    pub max_seq: u64,
    /// Only what lies inside is an input.
    pub clip: KeyBounds,
    /// The sequence number that all its entries have, whatever they say: ingested tables.
    pub seq_override: Option<u64>,
}

/// How output tables are written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FormatOptions {
    /// Compression.
    pub codec: Codec,
    /// The codec's level, one of [`Codec::levels`].
    pub level: u8,
    /// Filter bits per user key; 0: no filter.
    pub bits_per_key: u8,
    /// Verify every input block's checksum. Off only for inputs verified by other means.
    pub verify: bool,
}

impl Default for FormatOptions {
    fn default() -> Self {
        FormatOptions {
            codec: Codec::None,
            level: 0,
            bits_per_key: 10,
            verify: true,
        }
    }
}

/// Sizes of outputs, in raw bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutputLimits {
    /// Where tables begin: `T`, `M`, `D`.
    pub layout: LayoutLimits,
    /// `B`: the size of a block; a power of two.
    pub block_bytes: u64,
}

impl OutputLimits {
    /// The limits for tables of `table_bytes` with blocks of `block_bytes`.
    pub fn new(table_bytes: u64, block_bytes: u64, has_soft_cuts: bool) -> OutputLimits {
        OutputLimits {
            layout: LayoutLimits::new(table_bytes, has_soft_cuts),
            block_bytes,
        }
    }
}

/// Something that an executor must know by name to run the job: a merge operator, a time to live, a filter, a key
/// extractor. An executor that does not know it declines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Extension {
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: u32,
    /// Its parameters.
    pub params: Vec<u8>,
}

/// The output's name: who wrote it, and which attempt. Not part of a job's identity.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct OutputPrefix {
    /// Fencing epoch of the store's writer.
    pub epoch: u64,
    /// Number of the attempt; never given twice within an epoch.
    pub attempt: u64,
}

impl OutputPrefix {
    /// The prefix as names carry it.
    pub fn text(&self) -> String {
        format!("{:08x}-{:08x}", self.epoch, self.attempt)
    }

    /// The name of a table: `<epoch>-<attempt>-<subjob>-<place>.tbl`.
    pub fn table_name(&self, subjob: u32, place: u32) -> String {
        format!(
            "{:08x}-{:08x}-{subjob:04}-{place:05}.tbl",
            self.epoch, self.attempt
        )
    }
}

/// A compaction or a flush. See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    /// The keyspace.
    pub keyspace: u32,
    /// Version of layout and drop rules: [`LAYOUT_VERSION`].
    pub layout_version: u16,
    /// The inputs. Order means nothing but for runs.
    pub inputs: Vec<Input>,
    /// The job's key range; inputs are restricted to it.
    pub bounds: KeyBounds,
    /// Subjob bounds strictly inside the job's.
    pub hard_cuts: Vec<Vec<u8>>,
    /// Boundaries of the level below, strictly inside the job's bounds.
    pub soft_cuts: Vec<Vec<u8>>,
    /// The published sequence number when the job was made: an implicit snapshot.
    pub published: u64,
    /// The snapshots.
    pub snapshots: Vec<u64>,
    /// What may be dropped.
    pub rules: DropRules,
    /// The time that rules with a clock go by, in microseconds since 1970.
    pub now_us: u64,
    /// Where older data outside the job can hold keys.
    pub older: Vec<KeyRange>,
    /// Sizes of outputs.
    pub limits: OutputLimits,
    /// Format of outputs.
    pub format: FormatOptions,
    /// What the executor must know besides.
    pub extensions: Vec<Extension>,
    /// Names of outputs.
    pub output: OutputPrefix,
}

impl Job {
    /// Number of subjobs.
    pub fn subjobs(&self) -> usize {
        self.hard_cuts.len() + 1
    }

    /// The key range of a subjob.
    pub fn subjob_bounds(&self, subjob: usize) -> KeyBounds {
        let start = match subjob.checked_sub(1) {
            Some(i) => self.hard_cuts[i].clone(),
            None => self.bounds.start.clone(),
        };
        KeyBounds {
            start,
            end: self
                .hard_cuts
                .get(subjob)
                .cloned()
                .or_else(|| self.bounds.end.clone()),
        }
    }

    /// The soft cuts strictly inside a subjob.
    pub fn subjob_soft_cuts(&self, bounds: &KeyBounds) -> &[Vec<u8>] {
        let from = self.soft_cuts.partition_point(|cut| cut <= &bounds.start);
        let to = match &bounds.end {
            Some(end) => self.soft_cuts.partition_point(|cut| cut < end),
            None => self.soft_cuts.len(),
        };
        &self.soft_cuts[from..to.max(from)]
    }

    /// What makes two jobs the same job: xxh3-128 of the coding without the output prefix.
    pub fn identity(&self) -> u128 {
        xxhash_rust::xxh3::xxh3_128(&coding::encode_identity(self))
    }

    /// The name of a subjob's table.
    pub fn table_name(&self, subjob: u32, place: u32) -> String {
        self.output.table_name(subjob, place)
    }

    /// Whether the job keeps its own invariants.
    ///
    /// # Errors
    /// The first rule that is broken, in words.
    pub fn check(&self) -> Result<(), String> {
        let fail = |what: String| Err(what);
        if self.bounds.is_empty() {
            return fail("the job's key bounds are empty".into());
        }
        for (what, cuts) in [("hard", &self.hard_cuts), ("soft", &self.soft_cuts)] {
            if !cuts.windows(2).all(|w| w[0] < w[1]) {
                return fail(format!("{what} cuts are not strictly ascending"));
            }
            if let Some(cut) = cuts
                .iter()
                .find(|c| **c <= self.bounds.start || !self.bounds.contains(c))
            {
                return fail(format!(
                    "{what} cut {} is not inside the job's bounds",
                    Hex(cut)
                ));
            }
            if cuts.iter().any(|c| c.len() > MAX_KEY_BYTES) {
                return fail(format!("a {what} cut is longer than a key may be"));
            }
        }
        if self.hard_cuts.len() > 9998 {
            return fail(format!(
                "{} subjobs, but at most 9999 are possible",
                self.subjobs()
            ));
        }
        if let Some(cut) = self
            .soft_cuts
            .iter()
            .find(|c| self.hard_cuts.binary_search(c).is_ok())
        {
            return fail(format!("soft cut {} equals a hard cut", Hex(cut)));
        }
        for input in &self.inputs {
            if input.min_seq > input.max_seq {
                return fail(format!(
                    "input {}: sequence range {}..={}",
                    input.name, input.min_seq, input.max_seq
                ));
            }
            if input.max_seq > self.published {
                return fail(format!(
                    "input {} holds sequence number {}, above the published {}",
                    input.name, input.max_seq, self.published
                ));
            }
            if let Some(seq) = input.seq_override
                && (input.min_seq, input.max_seq) != (seq, seq)
            {
                return fail(format!(
                    "input {}: its sequence range is not its override {seq}",
                    input.name
                ));
            }
        }
        if self.published > crate::key::MAX_SEQ {
            return fail(format!(
                "published number {} is out of range",
                self.published
            ));
        }
        if !self.rules.is_sound() {
            return fail(format!(
                "drop rules {:#06b} lack a rule that another stands on",
                self.rules.0
            ));
        }
        let l = &self.limits;
        if !l.layout.table_bytes.is_power_of_two() || !l.block_bytes.is_power_of_two() {
            return fail(format!(
                "table size {} and block size {} must be powers of two",
                l.layout.table_bytes, l.block_bytes
            ));
        }
        if !(MIN_BLOCK_SIZE_BYTES..=MAX_BLOCK_SIZE_BYTES).contains(&l.block_bytes) {
            return fail(format!(
                "block size {} is not within {MIN_BLOCK_SIZE_BYTES}..={MAX_BLOCK_SIZE_BYTES}",
                l.block_bytes
            ));
        }
        let f = &self.format;
        if f.bits_per_key > MAX_BITS_PER_KEY || !f.codec.levels().contains(&f.level) {
            return fail(format!(
                "{} filter bits a key (at most {MAX_BITS_PER_KEY}), level {} of codec {} (within {:?})",
                f.bits_per_key,
                f.level,
                f.codec.word(),
                f.codec.levels()
            ));
        }
        Ok(())
    }
}

/// A key in an error message: as text where it is text, cut off after 32 bytes.
pub(crate) struct Hex<'a>(pub &'a [u8]);

impl std::fmt::Display for Hex<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let shown = &self.0[..self.0.len().min(32)];
        if shown.iter().all(|b| b.is_ascii_graphic()) {
            write!(f, "\"{}\"", shown.escape_ascii())?;
        } else {
            write!(f, "0x")?;
            for b in shown {
                write!(f, "{b:02x}")?;
            }
        }
        if shown.len() < self.0.len() {
            write!(f, "... ({} bytes)", self.0.len())?;
        }
        Ok(())
    }
}
