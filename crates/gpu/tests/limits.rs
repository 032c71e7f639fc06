//! Random jobs at the limits of what there may be: the empty key, keys of 65,535 bytes, keys of
//! zeros or of 255s, tables of one entry, values larger than a block or than a part that the device
//! decodes, sequence numbers up to the largest one, range deletes over everything, and every size
//! of blocks and tables. Each job is also run with less and less memory, down to where it is
//! declined.

#[path = "../../table/tests/common/mod.rs"]
mod common;
#[path = "generate/random.rs"]
mod random;
mod same;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use common::{a_job, epoch, files};
use random::Random;
use siltstone_gpu::device::emulated::EmulatedDevice;
use siltstone_gpu::{GpuExecutor, GpuOptions, Strategy, Transfer};
use siltstone_storage::{MemoryStorage, Runtime, Storage};
use siltstone_table::compress::Codec;
use siltstone_table::exec::{CpuExecutor, ExecContext, ExecError, Executor, InputMap, Inputs};
use siltstone_table::job::outcome::{Outcome, OutputTable};
use siltstone_table::job::{
    DropRules, Input, InputKind, Job, KeyBounds, KeyRange, LOCATION, OutputLimits,
};
use siltstone_table::key::{Kind, MAX_SEQ, trailer};
use siltstone_table::limits::MAX_KEY_BYTES;
use siltstone_table::rangedel::joined;
use siltstone_table::writer::{TableWriter, WriterOptions};

const KEY_FORMS: u64 = 8;
const VALUE_FORMS: u64 = 7;

/// A key of some form.
fn a_key(random: &mut Random, form: u64, space: u64) -> Vec<u8> {
    let number = random.below(space);
    let at = number as usize;
    match form {
        0 => vec![0xff; at % 40],
        1 => vec![0; at % 40],
        // The lengths around those of heads and words.
        2 => {
            let lens = [0, 1, 7, 8, 9, 14, 15, 16, 17, 23, 24, 25];
            let mut key = vec![b'a'; lens[at % lens.len()]];
            key.extend((number / 12 > 0).then_some((number / 12) as u8));
            key
        }
        3 => {
            let lens = [4095, 4096, 4097, MAX_KEY_BYTES - 1, MAX_KEY_BYTES];
            let mut key = vec![b'k'; lens[at % lens.len()]];
            let place = at / lens.len() * 3001 % key.len();
            key[place] = b'a' + (number % 26) as u8;
            key
        }
        // Keys that differ only after a long prefix, or not at all up to the end of one.
        4 => {
            let mut key = [&vec![b'p'; 5000][..], &number.to_be_bytes()].concat();
            key.truncate(5000 + at % 9);
            key
        }
        5 => number.to_be_bytes()[4..].to_vec(),
        6 => {
            let mut key = format!("{number:06}").into_bytes();
            key.resize(6 + at * 7 % 12, b'x');
            key
        }
        _ => {
            let form = random.below(KEY_FORMS - 1);
            a_key(random, form, space)
        }
    }
}

/// A value of some form.
fn a_value(random: &mut Random, form: u64) -> Vec<u8> {
    let len = match form {
        0 => random.of(&[0, 1, 2, 5]),
        1 => random.of(&[0, 3500, 4000, 4040, 4060, 4096, 8192]),
        2 => random.of(&[0, 1, 65_534, 65_535, 65_536]),
        3 => match random.one_in(40) {
            true => 1_000_000 + random.below(1_500_000) as usize,
            false => 30,
        },
        // Around the length of a part that the device decodes.
        4 => match random.one_in(4) {
            true => random.of(&[(256 << 10) - 1, 256 << 10, (256 << 10) + 1]),
            false => 20,
        },
        5 => 100,
        _ => {
            let form = random.below(VALUE_FORMS - 1);
            return a_value(random, form);
        }
    };
    // One half cannot be compressed.
    match random.one_in(2) {
        true => random.bytes(len),
        false => (0..len).map(|i| (i / 100) as u8).collect(),
    }
}

type Entries = BTreeMap<(Vec<u8>, u64), (u64, Vec<u8>)>;
type Deletes = Vec<(Vec<u8>, Vec<u8>, u64)>;

/// What the tables of a job are made of.
struct Maker<'a> {
    random: &'a mut Random,
    storage: &'a Arc<MemoryStorage>,
    inputs: InputMap,
    key_form: u64,
    space: u64,
    seq: u64,
    seqs: Vec<u64>,
}

impl Maker<'_> {
    fn key(&mut self) -> Vec<u8> {
        a_key(self.random, self.key_form, self.space)
    }

    /// Two keys in order.
    fn two_keys(&mut self) -> (Vec<u8>, Vec<u8>) {
        let (a, b) = (self.key(), self.key());
        if a <= b { (a, b) } else { (b, a) }
    }

    /// Keys within bounds, in order.
    fn cuts(&mut self, most: u64, bounds: &KeyBounds) -> Vec<Vec<u8>> {
        let count = self.random.below(most);
        let keys: BTreeSet<Vec<u8>> = (0..count).map(|_| self.key()).collect();
        let is_inside = |key: &Vec<u8>| *key > bounds.start && bounds.contains(key);
        keys.into_iter().filter(is_inside).collect()
    }

    /// The tables of a run, as inputs of a job.
    fn run(&mut self, run: u32, count: u64, value_form: u64) -> Vec<Input> {
        let first = self.seq;
        let (mut entries, mut deletes) = (Entries::new(), Deletes::new());
        for _ in 0..count {
            self.seq = (self.seq + 1).min(MAX_SEQ);
            self.seqs.push(self.seq);
            let key = self.key();
            let (kind, value) = match self.random.one_in(4) {
                true => (Kind::Delete, Vec::new()),
                false => (Kind::Put, a_value(self.random, value_form)),
            };
            entries.insert((key, u64::MAX - self.seq), (trailer(self.seq, kind), value));
            if self.random.one_in(60) {
                let (start, end) = match self.random.one_in(3) {
                    true => (Vec::new(), vec![0xff; MAX_KEY_BYTES]),
                    false => self.two_keys(),
                };
                deletes.extend((start < end).then_some((start, end, self.seq)));
            }
        }
        let seq_override = self.random.one_in(5).then_some(self.seq);
        if seq_override.is_some() {
            // An ingested table has one version of each key.
            let mut last = None;
            entries.retain(|(key, _), _| last.replace(key.clone()).as_ref() != Some(key));
        }
        let keys: Vec<_> = entries.keys().map(|(key, _)| key.clone()).collect();
        let mut borders: BTreeSet<Vec<u8>> = (0..self.random.below(4))
            .filter_map(|_| keys.get(self.random.below(keys.len() as u64) as usize))
            .cloned()
            .collect();
        borders.remove(&Vec::new());
        let is_clipped = self.random.one_in(3);
        let mut start = Vec::new();
        let mut list = Vec::new();
        for end in borders.into_iter().map(Some).chain([None]) {
            let range = KeyBounds {
                start: std::mem::take(&mut start),
                end: end.clone(),
            };
            start = end.unwrap_or_default();
            let is_own = |key: &Vec<u8>| is_clipped || range.contains(key);
            let own = entries.iter().filter(|((key, _), _)| is_own(key));
            let within = |(a, b, seq): &(Vec<u8>, Vec<u8>, u64)| {
                let a = a.max(&range.start).clone();
                let b = range.end.as_ref().map_or(b, |end| b.min(end)).clone();
                (a < b).then_some((a, b, *seq))
            };
            let own_deletes: Deletes = deletes.iter().filter_map(within).collect();
            if own.clone().next().is_none() && own_deletes.is_empty() {
                continue;
            }
            let name = format!("in-{run}-{}.tbl", list.len());
            let file = self.storage.create(epoch(), &name).unwrap();
            let codecs = [Codec::None, Codec::None, Codec::Lz4, Codec::Zstd];
            let codec = self.random.of(&codecs);
            let options = WriterOptions {
                block_size_bytes: self.random.of(&[512, 1024, 4096, 32768]),
                codec,
                level: *codec.levels().start(),
                ..WriterOptions::default()
            };
            let mut writer = TableWriter::new(file.clone(), options).unwrap();
            own.for_each(|((key, _), (trailer, value))| writer.add(key, *trailer, value).unwrap());
            writer.set_range_deletes(joined(own_deletes)).unwrap();
            let summary = writer.finish().unwrap();
            file.sync().unwrap();
            let table = self.storage.open(&name).unwrap();
            self.inputs.add_table(LOCATION, &name, table);
            list.push(Input {
                kind: InputKind::Table,
                location: LOCATION,
                name,
                run,
                len_bytes: summary.file_bytes,
                digest: summary.digest,
                min_seq: seq_override.unwrap_or(first),
                max_seq: seq_override.unwrap_or(self.seq),
                clip: match is_clipped {
                    true => range,
                    false => KeyBounds::everything(),
                },
                seq_override,
            });
        }
        list
    }
}

/// A job, its inputs, and what it is like.
fn a_world(random: &mut Random, storage: &Arc<MemoryStorage>) -> (Job, Arc<dyn Inputs>, String) {
    let (key_form, value_form) = (random.below(KEY_FORMS), random.below(VALUE_FORMS));
    let count = match (key_form, value_form) {
        (3 | 4, _) => random.of(&[1, 2, 5, 40, 200]),
        (_, 1..=4) => random.of(&[1, 2, 40, 300]),
        _ => random.of(&[1, 2, 3, 100, 1000]),
    };
    let space = random.of(&[1, 2, 8, count + 1, 4 * count + 1]);
    let run_count = random.of(&[1, 1, 2, 3, 4, 7, 12]);
    let begin = random.of(&[0, 5, 1 << 40, MAX_SEQ - count]);
    let mut make = Maker {
        random,
        storage,
        inputs: InputMap::new(),
        key_form,
        space,
        seq: begin,
        seqs: Vec::new(),
    };
    let runs =
        (0..run_count).map(|run| make.run(run, count / u64::from(run_count) + 1, value_form));
    let inputs: Vec<Input> = runs.flatten().collect();
    let mut job = a_job(match make.random.one_in(3) {
        true => MAX_SEQ,
        false => make.seq,
    });
    job.inputs = inputs;
    job.snapshots = match make.random.below(3) {
        0 => make.seqs.clone(),
        1 => vec![0, begin, make.seq, MAX_SEQ],
        _ => Vec::new(),
    };
    job.rules = make.random.of(&[
        DropRules::ALL,
        DropRules::ALL,
        DropRules::QUICK,
        DropRules::SHADOWED.with(DropRules::TOMBSTONES),
        DropRules::COVERED.with(DropRules::FRAGMENTS),
    ]);
    if make.random.one_in(4) {
        let (start, end) = make.two_keys();
        let end = (start < end && make.random.one_in(2)).then_some(end);
        job.bounds = KeyBounds { start, end };
    }
    let bounds = job.bounds.clone();
    let most = make.random.of(&[1, 1, 1, 6]);
    job.hard_cuts = make.cuts(most, &bounds);
    let most = make.random.of(&[1, 6, 300]);
    job.soft_cuts = make.cuts(most, &bounds);
    let hard = job.hard_cuts.clone();
    job.soft_cuts.retain(|cut| !hard.contains(cut));
    let logs = [0, 6, 12, 14, 16, 20, 40, 63];
    job.limits = OutputLimits::new(
        1 << make.random.of(&logs),
        512 << make.random.below(7),
        !job.soft_cuts.is_empty(),
    );
    job.format.codec = make.random.of(&[Codec::None, Codec::None, Codec::Lz4]);
    job.format.bits_per_key = make.random.of(&[0, 1, 10, 20]);
    job.format.verify = !make.random.one_in(4);
    job.older = match make.random.below(3) {
        0 => vec![KeyRange::everything()],
        1 => Vec::new(),
        _ => {
            let ranges = (0..4).map(|_| make.two_keys());
            ranges.map(|(a, b)| KeyRange::inclusive(&a, &b)).collect()
        }
    };
    let text = format!(
        "keys {key_form}, values {value_form}, {count} entries, {run_count} runs, tables of {}, \
         blocks of {}, {} hard and {} soft cuts, {}",
        job.limits.layout.table_bytes,
        job.limits.block_bytes,
        job.hard_cuts.len(),
        job.soft_cuts.len(),
        job.format.codec.word()
    );
    (job, Arc::new(make.inputs), text)
}

/// A job with the tables that the host's executor makes of it.
struct Setting {
    runtime: Runtime,
    storage: Arc<MemoryStorage>,
    inputs: Arc<dyn Inputs>,
    job: Job,
    want: Outcome,
    count: usize,
}

impl Setting {
    fn context(&self) -> ExecContext {
        let (runtime, inputs) = (self.runtime.clone(), Arc::clone(&self.inputs));
        ExecContext {
            max_parallel: 2,
            ..ExecContext::new(runtime, inputs, self.storage.clone(), epoch())
        }
    }

    /// Runs the job with so much memory. Returns whether it was not too little.
    fn fits(&self, random: &mut Random, memory_bytes: u64, attempt: u64) -> bool {
        let (runtime, seed) = (&self.runtime, random.below(3));
        let device = Arc::new(EmulatedDevice::new(runtime, memory_bytes, seed));
        let options = GpuOptions {
            memory_bytes_max: memory_bytes,
            pinned_bytes_max: random.of(&[128 << 10, 300_001, 1 << 20]),
            strategy: random.of(&[Strategy::Full, Strategy::Luda, Strategy::Hierarchical]),
            transfer: random.of(&[Transfer::Plain, Transfer::Pipeline]),
            jobs: 1,
            lanes: 1 + random.below(2) as usize,
            verifies_all: random.one_in(2),
            job_bytes_min: 0,
            rank_runs_max: random.of(&[0, 100]),
            ..GpuOptions::default()
        };
        let gpu = GpuExecutor::open("gpu0", device, runtime, options).unwrap();
        let mut job = self.job.clone();
        job.output.attempt += attempt;
        let fits = match gpu.run(&job, &self.context()) {
            Ok(found) => {
                self.compare(&found);
                let delete = |t: &OutputTable| self.storage.delete(epoch(), &t.name).unwrap();
                found.tables.iter().for_each(delete);
                true
            }
            Err(ExecError::Declined { reason }) => {
                assert!(reason.contains("does not fit"), "{reason}");
                false
            }
            Err(error) => panic!("{error}"),
        };
        assert_eq!(
            self.storage.list().unwrap().len(),
            self.count,
            "left behind"
        );
        fits
    }

    fn compare(&self, found: &Outcome) {
        let is_compressed = self.job.format.codec != Codec::None;
        // The names differ, and so do compressed bytes.
        let tables = |outcome: &Outcome| -> Vec<OutputTable> {
            let strip = |table: &OutputTable| OutputTable {
                name: String::new(),
                file_bytes: if is_compressed { 0 } else { table.file_bytes },
                digest: if is_compressed { 0 } else { table.digest },
                ..table.clone()
            };
            outcome.tables.iter().map(strip).collect()
        };
        assert!(tables(found) == tables(&self.want), "the tables differ");
        let counters = |outcome: &Outcome| {
            let mut counters = outcome.counters;
            counters.cpu_ns = 0;
            if is_compressed {
                counters.bytes_written = 0;
            }
            counters
        };
        assert_eq!(counters(found), counters(&self.want));
        if is_compressed {
            let pairs = found.tables.iter().zip(&self.want.tables);
            pairs.for_each(|(a, b)| same::assert_same(&*self.storage, &a.name, &b.name));
        } else {
            let are_same = files(&*self.storage, found) == files(&*self.storage, &self.want);
            assert!(are_same, "the files differ");
        }
    }
}

#[test]
fn jobs_at_the_limits_make_the_same_tables() {
    let (mut fitting, mut declined) = (0, 0);
    for seed in 0..30 {
        let mut random = Random::new(seed);
        let runtime = Runtime::threads();
        let storage = Arc::new(MemoryStorage::new(&runtime));
        let (job, inputs, text) = a_world(&mut random, &storage);
        eprintln!("seed {seed}: {text}");
        let ctx = ExecContext::new(runtime.clone(), inputs.clone(), storage.clone(), epoch());
        let setting = Setting {
            want: CpuExecutor::new().run(&job, &ctx).unwrap(),
            count: storage.list().unwrap().len(),
            runtime,
            storage,
            inputs,
            job,
        };
        assert!(setting.fits(&mut random, 256 << 20, 1), "seed {seed}");
        let (mut too_little, mut enough) = (256u64 << 10, 256 << 20);
        for attempt in 2..9 {
            let memory_bytes = (too_little * enough).isqrt();
            match setting.fits(&mut random, memory_bytes, attempt) {
                true => (enough, fitting) = (memory_bytes, fitting + 1),
                false => (too_little, declined) = (memory_bytes, declined + 1),
            }
        }
    }
    assert!(fitting > 60 && declined > 20, "{fitting} {declined}");
}
