//! Jobs of a given shape and size: tables with generated entries in a folder, and the job that
//! merges them.
//!
//! Invariant: inputs and job are a function of shape, size and seed.
//!
//! Threading: each run of the inputs is written by a thread of its own.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use siltstone_storage::{DirectStorage, Epoch, FileStorage, Storage};
use siltstone_table::compress::Codec;
use siltstone_table::exec::{InputMap, Inputs};
use siltstone_table::job::{
    DropRules, FormatOptions, Input, InputKind, Job, KeyBounds, KeyRange, LAYOUT_VERSION, LOCATION,
    OutputLimits, OutputPrefix,
};
use siltstone_table::key::{Kind, trailer};
use siltstone_table::rangedel::joined;
use siltstone_table::writer::{TableWriter, WriterOptions};

/// The epoch of all files.
pub const EPOCH: Epoch = Epoch(1);

/// The bytes that an entry takes beside its key and its value.
const ENTRY_BYTES: u64 = 12;

/// The range deletes of a run get numbers after those of its entries; there are fewer than this.
const RANGE_DELETES_MAX: u64 = 1000;

/// How keys look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keys {
    /// 16 bytes: a number, and its hash.
    Sixteen,
    /// A common text, a number, and up to 23 bytes that differ in length.
    Variable,
    /// This many bytes (8 or more). In longer keys, neighbours differ only in their last bytes.
    Of(usize),
}

/// How a job looks.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// How keys look.
    pub keys: Keys,
    /// The length of values.
    pub value_bytes: usize,
    /// Whether lengths of values vary from 0 to twice that.
    pub is_variable: bool,
    /// The number of runs.
    pub runs: usize,
    /// One entry in this many has an older version in the same run; 0: none.
    pub versions_share: u64,
    /// One entry in this many is a delete; 0: none.
    pub deletes_share: u64,
    /// The range deletes of each run.
    pub range_deletes: u64,
    /// The number of snapshots.
    pub snapshots: u64,
    /// Bounds between subjobs.
    pub hard_cuts: u64,
    /// Boundaries of the level below.
    pub soft_cuts: u64,
    /// The compression of inputs and outputs.
    pub codec: Codec,
    /// The size of a block.
    pub block_bytes: u64,
    /// The size of a table.
    pub table_bytes: u64,
    /// What may be dropped.
    pub rules: DropRules,
    /// Whether older data can have any key, so that deletes are kept.
    pub has_older: bool,
}

impl Shape {
    /// 16-byte keys and values of one length, without deletes and cuts.
    pub fn plain(value_bytes: usize, runs: usize) -> Shape {
        Shape {
            keys: Keys::Sixteen,
            value_bytes,
            is_variable: false,
            runs,
            versions_share: 0,
            deletes_share: 0,
            range_deletes: 0,
            snapshots: 0,
            hard_cuts: 0,
            soft_cuts: 0,
            codec: Codec::None,
            block_bytes: 4096,
            table_bytes: 64 << 20,
            rules: DropRules::ALL,
            has_older: true,
        }
    }

    /// Whether the runs of both have the same entries.
    pub fn has_the_inputs_of(&self, other: &Shape) -> bool {
        let inputs = |shape: &Shape| {
            let Shape {
                keys,
                value_bytes,
                is_variable,
                runs,
                versions_share,
                deletes_share,
                range_deletes,
                codec,
                ..
            } = *shape;
            let shares = (versions_share, deletes_share, range_deletes);
            (keys, value_bytes, is_variable, runs, shares, codec)
        };
        inputs(self) == inputs(other)
    }

    fn key_bytes(&self) -> u64 {
        match self.keys {
            Keys::Sixteen => 16,
            Keys::Variable => 4 + 12 + 12,
            Keys::Of(bytes) => bytes as u64,
        }
    }

    fn key(&self, number: u64) -> Vec<u8> {
        let whole = number.to_be_bytes();
        match self.keys {
            Keys::Sixteen => [whole, mix(number).to_be_bytes()].concat(),
            Keys::Variable => {
                let mut key = format!("user{number:012}").into_bytes();
                let hash = mix(number);
                key.extend((0..hash % 24).map(|i| (hash >> (i % 8 * 8)) as u8));
                key
            }
            Keys::Of(bytes) if bytes < 16 => whole.to_vec(),
            Keys::Of(bytes) => {
                let mut key = (number / 64).to_be_bytes().to_vec();
                key.resize(bytes - 8, 0);
                key.extend(whole);
                key
            }
        }
    }

    /// The numbers of a run's keys have this distance on average, so that a fifth of all keys are
    /// in more than one run.
    fn step(&self) -> u64 {
        5 * self.runs as u64 / 2 + 1
    }

    /// The text of a codec in tables.
    pub fn codec_word(&self) -> &'static str {
        self.codec.word()
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.keys {
            Keys::Sixteen => write!(f, "16-byte keys")?,
            Keys::Variable => write!(f, "keys of 16 to 39 bytes")?,
            Keys::Of(bytes) => write!(f, "{bytes}-byte keys")?,
        }
        let upto = if self.is_variable { "about " } else { "" };
        let runs = match self.runs {
            1 => "1 run".to_string(),
            runs => format!("{runs} runs"),
        };
        write!(f, ", values of {upto}{} bytes, {runs}", self.value_bytes)?;
        for (count, what) in [
            (self.versions_share.min(1), "versions"),
            (self.deletes_share.min(1), "deletes"),
        ] {
            if count > 0 {
                write!(f, ", {what}")?;
            }
        }
        for (count, what) in [
            (self.range_deletes, "range deletes a run"),
            (self.snapshots, "snapshots"),
            (self.hard_cuts, "hard cuts"),
            (self.soft_cuts, "soft cuts"),
        ] {
            if count > 0 {
                write!(f, ", {count} {what}")?;
            }
        }
        if self.rules != DropRules::ALL {
            write!(f, ", rules {}", self.rules.0)?;
        }
        write!(f, ", codec {}", self.codec_word())
    }
}

/// A hash of a number.
pub fn mix(x: u64) -> u64 {
    let mut z = x.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// A job with its inputs in a folder, which is deleted when this is dropped.
pub struct World {
    /// The shape.
    pub shape: Shape,
    /// The seed.
    pub seed: u64,
    /// The folder of inputs, and of outputs unless others are named.
    pub storage: Arc<dyn Storage>,
    /// The inputs.
    pub inputs: Arc<dyn Inputs>,
    /// All bytes of the inputs' files.
    pub input_bytes: u64,
    /// The entries of each run; there is one more if the last key has two versions.
    pub entries: u64,
    job: Job,
    attempts: AtomicU64,
    _folder: tempfile::TempDir,
}

/// A run of a shape.
pub struct Run<'a> {
    shape: &'a Shape,
    number: usize,
    seed: u64,
    entries: u64,
    /// The numbers of its entries are `first_seq + n` for n below `seqs`, a power of two.
    first_seq: u64,
    seqs: u64,
}

/// An entry of a run.
pub struct Entry<'a> {
    /// The number of its key.
    pub number: u64,
    /// Its key.
    pub key: &'a [u8],
    /// Its number among all entries.
    pub seq: u64,
    /// What it is.
    pub kind: Kind,
    /// Its value.
    pub value: &'a [u8],
    /// Whether it is the newest one of its key in this run.
    pub is_newest: bool,
}

/// Draws the numbers of a run, in the order in which it asks for them.
pub struct Draws(u64);

impl Draws {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(1);
        mix(self.0) % n.max(1)
    }
}

/// The runs of a shape with this many entries each.
pub fn runs_of(shape: &Shape, entries: u64, seed: u64) -> Vec<Run<'_>> {
    let seqs = (entries + 2).next_power_of_two();
    let run = |number: usize| Run {
        shape,
        number,
        seed: mix(seed ^ mix(number as u64)),
        entries,
        first_seq: 1 + number as u64 * (seqs + RANGE_DELETES_MAX),
        seqs,
    };
    (0..shape.runs).map(run).collect()
}

impl Run<'_> {
    /// What the run draws.
    pub fn random(&self) -> Draws {
        Draws(self.seed)
    }

    /// Gives all entries to `take`, in their order.
    ///
    /// # Errors
    /// The first one of `take`.
    pub fn each(
        &self,
        random: &mut Draws,
        take: &mut dyn FnMut(&Entry<'_>) -> Result<(), String>,
    ) -> Result<(), String> {
        let shape = self.shape;
        let (mut number, mut done) = (0, 0);
        let mut value = Vec::new();
        while done < self.entries {
            number += 1 + random.below(2 * shape.step() - 1);
            let key = shape.key(number);
            let one_in = |n: u64, random: u64| n > 0 && random.is_multiple_of(n);
            let versions = 1 + u64::from(one_in(shape.versions_share, random.below(u64::MAX)));
            // A permutation, so that numbers do not ascend with the keys.
            let seq_of = |n: u64| self.first_seq + (n.wrapping_mul(0x9E37_79B1) & (self.seqs - 1));
            let mut seqs: Vec<u64> = (done..done + versions).map(seq_of).collect();
            seqs.sort_unstable_by(|a, b| b.cmp(a));
            for (version, seq) in seqs.into_iter().enumerate() {
                let kind = match one_in(shape.deletes_share, random.below(u64::MAX)) {
                    true => Kind::Delete,
                    false => Kind::Put,
                };
                let len = match (kind, shape.is_variable) {
                    (Kind::Delete, _) => 0,
                    (_, true) => random.below(2 * shape.value_bytes as u64 + 1) as usize,
                    (_, false) => shape.value_bytes,
                };
                fill(&mut value, len, seq);
                take(&Entry {
                    number,
                    key: &key,
                    seq,
                    kind,
                    value: &value,
                    is_newest: version == 0,
                })?;
            }
            done += versions;
        }
        Ok(())
    }
}

/// A run while it is written.
struct Writing<'a> {
    run: &'a Run<'a>,
    shape: &'a Shape,
    storage: &'a dyn Storage,
}

/// A range delete as numbers of keys, and its sequence number.
type RangeNumbers = (u64, u64, u64);

/// A table that was written.
struct Written {
    name: String,
    input: Input,
}

impl Writing<'_> {
    fn write(&self) -> Result<Vec<Written>, String> {
        let (shape, run) = (self.shape, self.run);
        let mut random = run.random();
        let numbers_max = run.entries * shape.step();
        let deletes: Vec<RangeNumbers> = (0..shape.range_deletes.min(RANGE_DELETES_MAX - 1))
            .map(|i| {
                let from = random.below(numbers_max);
                let len = 1 + random.below(numbers_max / 200 + 1);
                (from, from + len, run.first_seq + run.seqs + i)
            })
            .collect();
        let mut written = Vec::new();
        let mut table: Option<(TableWriter, String, u64)> = None;
        let mut bytes = 0;
        run.each(&mut random, &mut |entry| {
            if entry.is_newest
                && bytes >= shape.table_bytes
                && let Some(full) = table.take()
            {
                written.push(self.finish(full, entry.number, &deletes)?);
                bytes = 0;
            }
            let (writer, ..) = match &mut table {
                Some(table) => table,
                none => none.insert(self.begin(written.len(), entry.number)?),
            };
            writer
                .add(entry.key, trailer(entry.seq, entry.kind), entry.value)
                .map_err(|e| e.to_string())?;
            bytes += entry.key.len() as u64 + entry.value.len() as u64 + ENTRY_BYTES;
            Ok(())
        })?;
        if let Some(last) = table {
            written.push(self.finish(last, u64::MAX, &deletes)?);
        }
        Ok(written)
    }

    fn begin(&self, table: usize, number: u64) -> Result<(TableWriter, String, u64), String> {
        let name = format!("in-{}-{table}.tbl", self.run.number);
        let file = self
            .storage
            .create(EPOCH, &name)
            .map_err(|e| e.to_string())?;
        let options = WriterOptions {
            block_size_bytes: self.shape.block_bytes,
            codec: self.shape.codec,
            ..WriterOptions::default()
        };
        let writer = TableWriter::new(file, options).map_err(|e| e.to_string())?;
        // The first table has everything before its first key too.
        Ok((writer, name, if table == 0 { 0 } else { number }))
    }

    /// Finishes a table, which has the range deletes up to the key with the number `end`.
    fn finish(
        &self,
        (mut writer, name, start): (TableWriter, String, u64),
        end: u64,
        deletes: &[RangeNumbers],
    ) -> Result<Written, String> {
        let key = |number| self.shape.key(number);
        let own = deletes.iter().filter_map(|(from, to, seq)| {
            let (from, to) = ((*from).max(start), (*to).min(end));
            (from < to).then(|| (key(from), key(to), *seq))
        });
        let text = |e: siltstone_table::TableError| e.to_string();
        writer.set_range_deletes(joined(own)).map_err(text)?;
        let summary = writer.finish().map_err(text)?;
        let input = Input {
            kind: InputKind::Table,
            location: LOCATION,
            name: name.clone(),
            run: self.run.number as u32,
            len_bytes: summary.file_bytes,
            digest: summary.digest,
            min_seq: self.run.first_seq,
            max_seq: self.run.first_seq + self.run.seqs + RANGE_DELETES_MAX - 1,
            clip: KeyBounds::everything(),
            seq_override: None,
        };
        Ok(Written { name, input })
    }
}

/// Fills a value: half of it is random, and half is text, which can be compressed.
fn fill(value: &mut Vec<u8>, len: usize, seed: u64) {
    value.clear();
    let mut word = seed;
    while value.len() < len / 2 {
        word = mix(word);
        value.extend_from_slice(&word.to_le_bytes());
    }
    value.truncate(len / 2);
    value.resize(len, b'v');
}

impl World {
    /// Writes inputs of about `bytes` raw bytes in a new folder below `parent`.
    ///
    /// # Errors
    /// What could not be written, as text.
    pub fn write(parent: &Path, shape: Shape, bytes: u64, seed: u64) -> Result<World, String> {
        let folder = tempfile::Builder::new()
            .prefix("siltstone-gpu-check-")
            .tempdir_in(parent)
            .map_err(|e| format!("no folder can be made in {}: {e}", parent.display()))?;
        let storage = FileStorage::open_or_create(folder.path()).map_err(|e| e.to_string())?;
        let storage: Arc<dyn Storage> = Arc::new(storage);
        let entry_bytes = shape.key_bytes() + shape.value_bytes as u64 + ENTRY_BYTES;
        let entries = (bytes / entry_bytes / shape.runs as u64).max(1);
        let seqs = (entries + 2).next_power_of_two();
        let span = seqs + RANGE_DELETES_MAX;
        let all = runs_of(&shape, entries, seed);
        let write = |run| {
            let (shape, storage) = (&shape, &*storage);
            Writing {
                run,
                shape,
                storage,
            }
            .write()
        };
        let runs: Vec<_> = std::thread::scope(|scope| {
            let write = &write;
            let threads: Vec<_> = all
                .iter()
                .map(|run| scope.spawn(move || write(run)))
                .collect();
            let ended = || Err("the thread that writes a run panicked".to_string());
            let join = |thread: std::thread::ScopedJoinHandle<'_, _>| thread.join();
            threads
                .into_iter()
                .map(|thread| join(thread).unwrap_or_else(|_| ended()))
                .collect()
        });
        let mut inputs = InputMap::new();
        let mut job = a_job(&shape, entries, shape.runs as u64 * span);
        for table in runs
            .into_iter()
            .collect::<Result<Vec<_>, _>>()?
            .into_iter()
            .flatten()
        {
            let file = storage.open(&table.name).map_err(|e| e.to_string())?;
            inputs.add_table(LOCATION, &table.name, file);
            job.inputs.push(table.input);
        }
        Ok(World {
            shape,
            seed,
            entries,
            input_bytes: job.inputs.iter().map(|input| input.len_bytes).sum(),
            storage,
            inputs: Arc::new(inputs),
            job,
            attempts: AtomicU64::new(1),
            _folder: folder,
        })
    }

    /// The same inputs, read past the page cache. Outputs in the world's folder are written in this
    /// way, too.
    ///
    /// # Errors
    /// The file system does not allow it, or what could not be opened, as text.
    pub fn with_direct_io(mut self) -> Result<World, String> {
        self.storage.check_direct().map_err(|e| e.to_string())?;
        let storage: Arc<dyn Storage> = Arc::new(DirectStorage::new(self.storage));
        let mut inputs = InputMap::new();
        for input in &self.job.inputs {
            let file = storage.open(&input.name).map_err(|e| e.to_string())?;
            inputs.add_table(LOCATION, &input.name, file);
        }
        (self.storage, self.inputs) = (storage, Arc::new(inputs));
        Ok(self)
    }

    /// The number of keys that a merge of plain entries keeps.
    #[cfg(test)]
    pub fn kept(&self) -> u64 {
        let mut keys = std::collections::BTreeSet::new();
        for run in runs_of(&self.shape, self.entries, self.seed) {
            let keep = &mut |entry: &Entry<'_>| {
                keys.insert(entry.key.to_vec());
                Ok(())
            };
            // It has no error of its own.
            let _ = run.each(&mut run.random(), keep);
        }
        keys.len() as u64
    }

    /// The job, as a new attempt.
    pub fn job(&self) -> Job {
        let mut job = self.job.clone();
        job.output.attempt = self.attempts.fetch_add(1, Ordering::Relaxed);
        job
    }

    /// The job with this number of subjobs of about equal sizes, for executors that have many
    /// tasks.
    pub fn divided_job(&self, subjobs: u64) -> Job {
        let entries = self.input_bytes / self.shape.runs as u64;
        let entry_bytes = self.shape.key_bytes() + self.shape.value_bytes as u64 + ENTRY_BYTES;
        let numbers = entries / entry_bytes * self.shape.step();
        Job {
            hard_cuts: cuts(&self.shape, numbers, subjobs.saturating_sub(1), 0),
            soft_cuts: Vec::new(),
            ..self.job()
        }
    }
}

/// Keys that divide the numbers from 0 to `numbers` in equal parts.
fn cuts(shape: &Shape, numbers: u64, count: u64, offset: u64) -> Vec<Vec<u8>> {
    let number = |i| numbers / (count + 1) * i + offset;
    let mut cuts: Vec<Vec<u8>> = (1..=count).map(|i| shape.key(number(i))).collect();
    cuts.dedup();
    cuts
}

fn a_job(shape: &Shape, entries: u64, published: u64) -> Job {
    let numbers = entries * shape.step();
    let hard_cuts = cuts(shape, numbers, shape.hard_cuts, 0);
    let mut soft_cuts = cuts(shape, numbers, shape.soft_cuts, 1);
    soft_cuts.retain(|cut| !hard_cuts.contains(cut));
    let snapshot = |i: u64| published / (shape.snapshots + 1) * i;
    Job {
        keyspace: 1,
        layout_version: LAYOUT_VERSION,
        inputs: Vec::new(),
        bounds: KeyBounds::everything(),
        hard_cuts,
        published,
        snapshots: (1..=shape.snapshots).map(snapshot).collect(),
        rules: shape.rules,
        now_us: 0,
        older: match shape.has_older {
            true => vec![KeyRange::everything()],
            false => Vec::new(),
        },
        limits: OutputLimits::new(shape.table_bytes, shape.block_bytes, !soft_cuts.is_empty()),
        soft_cuts,
        format: FormatOptions {
            codec: shape.codec,
            level: *shape.codec.levels().start(),
            ..FormatOptions::default()
        },
        extensions: Vec::new(),
        output: OutputPrefix {
            epoch: EPOCH.0,
            attempt: 0,
        },
    }
}
