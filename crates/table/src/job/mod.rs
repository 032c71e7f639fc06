//! A job: a compaction or a flush as plain data.
//!
//! A job contains everything that decides its output: the inputs, the key ranges, where to cut,
//! what may be dropped and why, and how to write. It contains no handles: an executor resolves
//! inputs and outputs by name through its [`ExecContext`](crate::exec::ExecContext). So a job can
//! be stored, sent, compared and run again anywhere, with the same result. `docs/format/job.md`
//! describes the bytes, `docs/rfc/0002b-jobs.md` the reasons.
//!
//! Invariants ([`Job::check`]): key bounds are not empty. Hard and soft cuts are strictly
//! ascending, inside the bounds, and different from each other. The published number is at least
//! the largest of every input. The drop rules are sound.
//!
//! Threading: plain data.

mod blocks;
pub mod coding;
mod contents;
mod fetched;
pub mod fragments;
pub mod outcome;
pub mod ranges;
pub mod verify;

use std::ops::RangeInclusive;

use crate::compress::Codec;
use crate::layout::LayoutLimits;
use crate::limits::{MAX_BITS_PER_KEY, MAX_BLOCK_SIZE_BYTES, MAX_KEY_BYTES, MIN_BLOCK_SIZE_BYTES};
pub use crate::retain::{DropRules, KeyRange, RangeEnd};

/// The version of the layout and drop rules that this crate implements. Two executors of the same
/// version make identical tables for the same job.
pub const LAYOUT_VERSION: u16 = 2;

/// The kind of an input.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum InputKind {
    /// A table: an immutable object. Its number is 0.
    Table,
    /// A stream of entries in order, resolved by id: a memtable (which does not leave the process),
    /// or a run of a device. Its number is 1.
    Stream,
    /// A kind that this build does not know, with its number, which is at least 2. (2 is reserved
    /// for unsorted runs.) An executor declines a job with such an input.
    Unknown(u8),
}

impl InputKind {
    /// The kind with this number.
    pub fn from_number(number: u8) -> InputKind {
        match number {
            0 => InputKind::Table,
            1 => InputKind::Stream,
            number => InputKind::Unknown(number),
        }
    }

    /// The number of the kind.
    pub fn number(self) -> u8 {
        match self {
            InputKind::Table => 0,
            InputKind::Stream => 1,
            InputKind::Unknown(number) => number,
        }
    }
}

/// The location of the inputs that every executor can read: the storage of the store's tables. A
/// store may have tables at another location, which its host reads.
pub const LOCATION: u32 = 0;

/// The user keys from `start` to before `end` (`None`: no end).
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct KeyBounds {
    /// The first user key.
    pub start: Vec<u8>,
    /// The first user key after the range.
    pub end: Option<Vec<u8>>,
}

impl KeyBounds {
    /// All user keys.
    pub fn everything() -> KeyBounds {
        KeyBounds::default()
    }

    /// Whether the range contains `key`.
    pub fn contains(&self, key: &[u8]) -> bool {
        self.start.as_slice() <= key && self.end.as_ref().is_none_or(|end| key < end.as_slice())
    }

    /// Whether the range contains no key.
    pub fn is_empty(&self) -> bool {
        self.end.as_ref().is_some_and(|end| end <= &self.start)
    }

    /// The intersection of both ranges.
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
    /// The kind of the input.
    pub kind: InputKind,
    /// The number of the storage that has it: [`LOCATION`], that of the store's tables. Executors
    /// decline a job with another one.
    pub location: u32,
    /// The object's name, or the stream's id.
    pub name: String,
    /// Inputs with the same run number follow each other: tables of one level, ascending and
    /// disjoint. Different runs are merged.
    pub run: u32,
    /// The length of the object in bytes, or 0 for a stream.
    pub len_bytes: u64,
    /// The digest of the table, or 0 for a stream.
    pub digest: u64,
    /// The smallest sequence number in it. With an override, that number.
    pub min_seq: u64,
    /// The largest sequence number in it. With an override, that number.
    pub max_seq: u64,
    /// The key range that is an input. Everything outside is ignored.
    pub clip: KeyBounds,
    /// The sequence number that replaces those of all its entries (for ingested tables).
    pub seq_override: Option<u64>,
}

impl Input {
    /// A stream with this id, whose entries have sequence numbers within `seqs`.
    pub fn of_stream(id: &str, seqs: RangeInclusive<u64>) -> Input {
        Input {
            kind: InputKind::Stream,
            location: LOCATION,
            name: id.to_string(),
            run: 0,
            len_bytes: 0,
            digest: 0,
            min_seq: *seqs.start(),
            max_seq: *seqs.end(),
            clip: KeyBounds::everything(),
            seq_override: None,
        }
    }
}

/// How output tables are written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FormatOptions {
    /// The compression of blocks.
    pub codec: Codec,
    /// The codec's level, one of [`Codec::levels`].
    pub level: u8,
    /// Filter bits per user key. 0 means no filter.
    pub bits_per_key: u8,
    /// Whether the checksums of all input blocks are verified. Off only for inputs that are
    /// verified by other means.
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

/// The sizes of outputs: of tables in raw bytes, of blocks in bytes before compression.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutputLimits {
    /// The parameters that decide where tables begin: `T`, `M`, `D`.
    pub layout: LayoutLimits,
    /// `B`: the size of a block, a power of two.
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

/// Something that an executor must know by name to run the job: a merge operator, a time to live, a
/// filter, a key extractor. An executor that does not know it declines the job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Extension {
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: u32,
    /// Its parameters.
    pub params: Vec<u8>,
}

/// The prefix of output names: which writer and which attempt. It is not part of a job's identity.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct OutputPrefix {
    /// The fencing epoch of the store's writer.
    pub epoch: u64,
    /// The number of the attempt. It is never reused within an epoch.
    pub attempt: u64,
}

/// The bit of an attempt's number that distinguishes the second part of a divided job from the
/// first one. No attempt has this bit in its own number, because a store makes fewer attempts than
/// that between its open and its close.
const SECOND_PART: u64 = 1 << 31;

impl OutputPrefix {
    /// The prefix of the second part, if the attempt divides its job between two executors.
    pub fn second_part(&self) -> OutputPrefix {
        OutputPrefix {
            attempt: self.attempt | SECOND_PART,
            ..self.clone()
        }
    }

    /// The prefix as it appears in names.
    pub fn text(&self) -> String {
        format!("{:08x}-{:08x}", self.epoch, self.attempt)
    }

    /// The name of a table: `<epoch>-<attempt>-<subjob>-<number>.tbl`.
    pub fn table_name(&self, subjob: u32, number: u32) -> String {
        format!(
            "{:08x}-{:08x}-{subjob:04}-{number:05}.tbl",
            self.epoch, self.attempt
        )
    }
}

/// A compaction or a flush. See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    /// The keyspace.
    pub keyspace: u32,
    /// The version of layout and drop rules: [`LAYOUT_VERSION`].
    pub layout_version: u16,
    /// The inputs. Only the order of runs matters, which their numbers state.
    pub inputs: Vec<Input>,
    /// The key range of the job, to which inputs are restricted.
    pub bounds: KeyBounds,
    /// The bounds between subjobs, strictly inside the job's bounds.
    pub hard_cuts: Vec<Vec<u8>>,
    /// Boundaries of the level below, strictly inside the job's bounds.
    pub soft_cuts: Vec<Vec<u8>>,
    /// The published sequence number when the job was made. It is an implicit snapshot.
    pub published: u64,
    /// The snapshots.
    pub snapshots: Vec<u64>,
    /// The rules by which entries may be dropped.
    pub rules: DropRules,
    /// The time for rules that depend on a clock, in microseconds since 1970.
    pub now_us: u64,
    /// The key ranges in which older data outside the job can hold keys.
    pub older: Vec<KeyRange>,
    /// The sizes of outputs.
    pub limits: OutputLimits,
    /// The format of outputs.
    pub format: FormatOptions,
    /// Other things that the executor must know.
    pub extensions: Vec<Extension>,
    /// The prefix of output names.
    pub output: OutputPrefix,
}

impl Job {
    /// The job that writes one stream as tables, such as a flush. It keeps the newest version of
    /// every key, and deletes too, because older data may hold any key; the published number is the
    /// last one of the stream. A caller that knows more sets fields of it: the snapshots whose
    /// versions are kept, the time, cuts, and what older data can hold (nothing, if there is none).
    ///
    /// ```
    /// use siltstone_table::job::{FormatOptions, Input, Job, OutputLimits, OutputPrefix};
    ///
    /// let job = Job {
    ///     snapshots: vec![7],
    ///     ..Job::of_stream(
    ///         1,
    ///         Input::of_stream("memtable", 5..=9),
    ///         OutputLimits::new(1 << 20, 4096, false),
    ///         FormatOptions::default(),
    ///         OutputPrefix::default(),
    ///     )
    /// };
    /// assert_eq!(job.check(), Ok(()));
    /// assert_eq!(job.published, 9);
    /// ```
    pub fn of_stream(
        keyspace: u32,
        stream: Input,
        limits: OutputLimits,
        format: FormatOptions,
        output: OutputPrefix,
    ) -> Job {
        Job {
            keyspace,
            layout_version: LAYOUT_VERSION,
            published: stream.max_seq,
            inputs: vec![stream],
            bounds: KeyBounds::everything(),
            hard_cuts: Vec::new(),
            soft_cuts: Vec::new(),
            snapshots: Vec::new(),
            rules: DropRules::ALL,
            now_us: 0,
            older: vec![KeyRange::everything()],
            limits,
            format,
            extensions: Vec::new(),
            output,
        }
    }

    /// The number of subjobs.
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

    /// The job with these of its subjobs, of which there is at least one. Its tables are the same
    /// that the whole job makes, except for their names.
    pub fn part(&self, subjobs: std::ops::Range<usize>, output: OutputPrefix) -> Job {
        let last = subjobs.end - 1;
        let mut bounds = self.subjob_bounds(subjobs.start);
        bounds.end = self.subjob_bounds(last).end;
        let soft_cuts = self.subjob_soft_cuts(&bounds).to_vec();
        Job {
            hard_cuts: self.hard_cuts[subjobs.start..last].to_vec(),
            soft_cuts,
            bounds,
            output,
            ..self.clone()
        }
    }

    /// The identity of the job: the xxh3-128 hash of its encoded form without the output prefix.
    pub fn identity(&self) -> u128 {
        xxhash_rust::xxh3::xxh3_128(&coding::encode_identity(self))
    }

    /// The name of a table of a subjob.
    pub fn table_name(&self, subjob: u32, number: u32) -> String {
        self.output.table_name(subjob, number)
    }

    /// Checks the invariants of the job.
    ///
    /// # Errors
    /// A description of the first violated rule.
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
                "drop rules {:#06b} lack a rule that another one requires",
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
                "{} filter bits per key (at most {MAX_BITS_PER_KEY}), level {} of codec {} \
                 (within {:?})",
                f.bits_per_key,
                f.level,
                f.codec.word(),
                f.codec.levels()
            ));
        }
        Ok(())
    }
}

/// A key in an error message, as text if it is printable, and truncated after 32 bytes.
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
