//! Random jobs of some size: many shapes of keys, values, versions, runs and options.
#![allow(dead_code)]

mod random;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use siltstone_storage::Storage;
use siltstone_table::compress::Codec;
use siltstone_table::exec::{InputMap, Inputs};
use siltstone_table::job::{DropRules, Input, InputKind, Job, KeyBounds, KeyRange, OutputLimits};
use siltstone_table::key::{Kind, trailer};
use siltstone_table::rangedel::joined;
use siltstone_table::writer::{TableWriter, WriterOptions};

use crate::common::{a_job, epoch};
pub use random::Random;

/// How keys look.
#[derive(Clone, Copy, Debug)]
enum KeyForm {
    Fixed16,
    Text,
    Short,
    Any,
    LongPrefix,
    Long,
    Nested,
}

/// How long values are.
#[derive(Clone, Copy, Debug)]
enum ValueForm {
    Fixed(usize),
    Upto(usize),
    Empty,
    Mixed,
    /// Text that can be compressed.
    Words(usize),
}

type Entry = (Vec<u8>, u64, Vec<u8>);
type Deletes = Vec<(Vec<u8>, Vec<u8>, u64)>;

/// A table of a run.
struct Table {
    entries: Vec<Entry>,
    range_deletes: Deletes,
    clip: KeyBounds,
    seq_override: Option<u64>,
    seqs: (u64, u64),
    block_bytes: u64,
    codec: Codec,
}

/// The inputs of a job, and the job.
pub struct World {
    text: String,
    runs: Vec<Vec<Table>>,
    job: Job,
}

impl fmt::Display for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

fn a_key(random: &mut Random, form: KeyForm, space: u64) -> Vec<u8> {
    let number = random.below(space);
    let text = |prefix: &str| format!("{prefix}{number:010}").into_bytes();
    match form {
        KeyForm::Fixed16 => [
            (number.wrapping_mul(0x9e37_79b9_7f4a_7c15)).to_be_bytes(),
            number.to_be_bytes(),
        ]
        .concat(),
        KeyForm::Text => text("user"),
        KeyForm::Short => number.to_be_bytes()[6..].to_vec(),
        KeyForm::Any => {
            let len = random.below(30) as usize;
            (0..len).map(|_| (random.below(3) * 100) as u8).collect()
        }
        KeyForm::LongPrefix => [&[b'p'; 300][..], &text("")].concat(),
        KeyForm::Long => {
            let len = random.below(4096) as usize;
            let mut key = text("");
            key.truncate(8 + (number % 3) as usize);
            key.resize(key.len() + len, number as u8);
            key
        }
        // Keys that are prefixes of others.
        KeyForm::Nested => {
            let whole = text("nested/");
            whole[..whole.len() - (number % 6) as usize].to_vec()
        }
    }
}

fn a_value(random: &mut Random, form: ValueForm) -> Vec<u8> {
    let len = match form {
        ValueForm::Fixed(len) => len,
        ValueForm::Upto(len) => random.below(len as u64) as usize,
        ValueForm::Empty => 0,
        ValueForm::Mixed => match random.below(400) {
            0 => return words(random, 300_000),
            1..10 => 70_000,
            10..20 => 5_000,
            20..100 => 0,
            _ => random.below(200) as usize,
        },
        ValueForm::Words(most) => {
            let len = random.below(most as u64) as usize;
            return words(random, len);
        }
    };
    let seed = random.next();
    (0..len)
        .map(|i| (seed >> (i % 8 * 8)) as u8 ^ (i / 7) as u8)
        .collect()
}

/// A random job of some hundred entries whose inputs are verified.
pub fn a_small_world(random: &mut Random) -> World {
    let mut world = a_world_of(random, 60, 600);
    world.job.format.verify = true;
    world
}

/// So many bytes of words.
fn words(random: &mut Random, len: usize) -> Vec<u8> {
    let mut text = Vec::new();
    while text.len() < len {
        let word = random.of(&[
            "layer ", "of ", "silt", "stone ", "sand", " ", "; ", "water ",
        ]);
        text.extend(word.bytes());
        if random.one_in(6) {
            text.extend(random.below(1000).to_string().bytes());
        }
    }
    text.truncate(len);
    text
}

/// How a table of an input is compressed.
fn a_codec(random: &mut Random) -> Codec {
    random.of(&[Codec::None, Codec::Lz4, Codec::Lz4, Codec::Zstd])
}

/// A random job.
pub fn a_world(random: &mut Random) -> World {
    a_world_of(random, 100, 6000)
}

fn a_world_of(random: &mut Random, least: u64, most: u64) -> World {
    let key_form = random.of(&[
        KeyForm::Fixed16,
        KeyForm::Text,
        KeyForm::Short,
        KeyForm::Any,
        KeyForm::LongPrefix,
        KeyForm::Long,
        KeyForm::Nested,
    ]);
    let value_form = random.of(&[
        ValueForm::Fixed(32),
        ValueForm::Fixed(128),
        ValueForm::Fixed(1000),
        ValueForm::Upto(300),
        ValueForm::Upto(40),
        ValueForm::Empty,
        ValueForm::Mixed,
        ValueForm::Words(200),
        ValueForm::Words(3000),
    ]);
    let count = match key_form {
        KeyForm::Long => least + random.below(most / 12),
        _ => least + random.below(most),
    };
    let space = count / random.of(&[1, 2, 8]) + 1;
    let run_count = 1 + random.below(9);
    let has_deletes = random.one_in(2);
    let range_delete_share = random.of(&[0, 0, 200, 40]);
    let mut seq = 1;
    let mut runs = Vec::new();
    let mut snapshots = Vec::new();
    for _ in 0..run_count {
        let first_seq = seq;
        let mut entries = BTreeMap::new();
        let mut deletes = Deletes::new();
        for _ in 0..count / run_count + 1 {
            seq += 1 + random.below(3);
            let key = a_key(random, key_form, space);
            let is_delete = has_deletes && random.one_in(4);
            let (kind, value) = match is_delete {
                true => (Kind::Delete, Vec::new()),
                false => (Kind::Put, a_value(random, value_form)),
            };
            entries.insert((key, u64::MAX - seq), (trailer(seq, kind), value));
            if range_delete_share > 0 && random.one_in(range_delete_share) {
                seq += 1;
                let (a, b) = (
                    a_key(random, key_form, space),
                    a_key(random, key_form, space),
                );
                if a < b {
                    deletes.push((a, b, seq));
                }
            }
            if random.one_in(count / 4 + 1) {
                snapshots.push(seq);
            }
        }
        let entries: Vec<Entry> = entries
            .into_iter()
            .map(|((key, _), (trailer, value))| (key, trailer, value))
            .collect();
        runs.push(split(random, entries, deletes, (first_seq, seq)));
    }
    // An ingested table is the newest run.
    if random.one_in(4) {
        seq += 1;
        let keys: std::collections::BTreeSet<Vec<u8>> = (0..count / 4 + 1)
            .map(|_| a_key(random, key_form, space))
            .collect();
        let entries = keys
            .into_iter()
            .map(|key| (key, trailer(0, Kind::Put), a_value(random, value_form)))
            .collect();
        runs.push(vec![Table {
            entries,
            range_deletes: Deletes::new(),
            clip: KeyBounds::everything(),
            seq_override: Some(seq),
            seqs: (seq, seq),
            block_bytes: 4096,
            codec: a_codec(random),
        }]);
    }
    let mut job = a_job(seq);
    job.snapshots = snapshots;
    job.rules = random.of(&[
        DropRules::ALL,
        DropRules::ALL,
        DropRules::ALL,
        DropRules::QUICK,
        DropRules::SHADOWED,
        DropRules::SHADOWED.with(DropRules::TOMBSTONES),
        DropRules::COVERED.with(DropRules::FRAGMENTS),
    ]);
    let cuts = |random: &mut Random, most| -> Vec<Vec<u8>> {
        let count = random.below(most);
        let keys = (0..count).map(|_| a_key(random, key_form, space));
        let keys: std::collections::BTreeSet<_> = keys.filter(|k| !k.is_empty()).collect();
        keys.into_iter().collect()
    };
    let most = random.of(&[1, 1, 4]);
    job.hard_cuts = cuts(random, most);
    let most = random.of(&[1, 6, 60]);
    job.soft_cuts = cuts(random, most);
    let hard = job.hard_cuts.clone();
    job.soft_cuts.retain(|cut| !hard.contains(cut));
    let block_bytes = random.of(&[512, 1024, 4096, 4096, 4096, 8192, 32768]);
    let table_bytes = random.of(&[1 << 12, 1 << 14, 1 << 16, 1 << 20]);
    job.limits = OutputLimits::new(table_bytes, block_bytes, !job.soft_cuts.is_empty());
    job.format.codec = random.of(&[Codec::None, Codec::Lz4]);
    job.format.bits_per_key = random.of(&[0, 1, 8, 10, 10, 13, 20]);
    job.format.verify = !random.one_in(8);
    let ranges = random.below(5);
    job.older = match random.below(3) {
        0 => vec![KeyRange::everything()],
        1 => Vec::new(),
        _ => (0..ranges)
            .filter_map(|i| {
                let (a, b) = (
                    a_key(random, key_form, space),
                    a_key(random, key_form, space),
                );
                let (a, b) = if a <= b { (a, b) } else { (b, a) };
                match i % 2 {
                    0 => Some(KeyRange::inclusive(&a, &b)),
                    _ => (a < b).then(|| KeyRange::before(&a, &b)),
                }
            })
            .collect(),
    };
    let text = format!(
        "{count} entries, {key_form:?}, {value_form:?}, {} runs, blocks of {block_bytes}, tables \
         of {table_bytes}, {} hard and {} soft cuts, {} snapshots, rules {:?}, {} bits, {}",
        runs.len(),
        job.hard_cuts.len(),
        job.soft_cuts.len(),
        job.snapshots.len(),
        job.rules,
        job.format.bits_per_key,
        job.format.codec.word(),
    );
    World { text, runs, job }
}

/// Divides a run into tables, some of which are clipped: what the clip leaves out is not in the
/// run.
fn split(
    random: &mut Random,
    entries: Vec<Entry>,
    deletes: Deletes,
    seqs: (u64, u64),
) -> Vec<Table> {
    let mut cuts: Vec<Vec<u8>> = (0..random.below(4))
        .filter_map(|_| {
            let at = random.below(entries.len() as u64) as usize;
            entries.get(at).map(|entry| entry.0.clone())
        })
        .collect();
    cuts.sort();
    cuts.dedup();
    let is_clipped = random.one_in(3);
    let mut tables = Vec::new();
    let mut start = Vec::new();
    for end in cuts.into_iter().map(Some).chain([None]) {
        let range = KeyBounds {
            start: std::mem::take(&mut start),
            end: end.clone(),
        };
        let own: Vec<Entry> = match is_clipped {
            // The table has all entries, and the clip says which belong to the run.
            true => entries.clone(),
            false => entries
                .iter()
                .filter(|e| range.contains(&e.0))
                .cloned()
                .collect(),
        };
        let within = |(a, b, seq): &(Vec<u8>, Vec<u8>, u64)| {
            let a = a.max(&range.start).clone();
            let b = range.end.as_ref().map_or(b, |end| b.min(end)).clone();
            (a < b).then_some((a, b, *seq))
        };
        let range_deletes: Deletes = deletes.iter().filter_map(within).collect();
        if !own.is_empty() || !range_deletes.is_empty() {
            tables.push(Table {
                entries: own,
                range_deletes,
                clip: match is_clipped {
                    true => range,
                    false => KeyBounds::everything(),
                },
                seq_override: None,
                seqs,
                block_bytes: random.of(&[512, 4096, 8192]),
                codec: a_codec(random),
            });
        }
        start = end.unwrap_or_default();
    }
    tables
}

impl World {
    /// Writes the inputs. Returns the job and its inputs.
    pub fn write<S: Storage + ?Sized>(&self, storage: &Arc<S>) -> (Job, Arc<dyn Inputs>) {
        let mut inputs = InputMap::new();
        let mut job = self.job.clone();
        for (run, tables) in self.runs.iter().enumerate() {
            for (number, table) in tables.iter().enumerate() {
                let name = format!("in-{run}-{number}.tbl");
                let file = storage.create(epoch(), &name).unwrap();
                let options = WriterOptions {
                    block_size_bytes: table.block_bytes,
                    codec: table.codec,
                    level: *table.codec.levels().start(),
                    ..WriterOptions::default()
                };
                let mut writer = TableWriter::new(file.clone(), options).unwrap();
                for (key, trailer, value) in &table.entries {
                    writer.add(key, *trailer, value).unwrap();
                }
                writer
                    .set_range_deletes(joined(table.range_deletes.iter().cloned()))
                    .unwrap();
                let summary = writer.finish().unwrap();
                file.sync().unwrap();
                inputs.add_table(0, &name, storage.open(&name).unwrap());
                job.inputs.push(Input {
                    kind: InputKind::Table,
                    location: 0,
                    name,
                    run: run as u32,
                    len_bytes: summary.file_bytes,
                    digest: summary.digest,
                    min_seq: table.seqs.0,
                    max_seq: table.seqs.1,
                    clip: table.clip.clone(),
                    seq_override: table.seq_override,
                });
            }
        }
        (job, Arc::new(inputs))
    }
}
