//! A job that is run honestly, and tables of it that are forged: their checksums, counts and bounds
//! are right, and their contents are not.

use std::sync::Arc;

use siltstone_storage::{MemoryStorage, Runtime, Storage};
use siltstone_table::block::Header;
use siltstone_table::checksum::{Digest, crc32c};
use siltstone_table::exec::{CpuExecutor, ExecContext, Executor, InputMap};
use siltstone_table::footer::Footer;
use siltstone_table::job::outcome::{Outcome, OutputTable};
use siltstone_table::job::verify::{Rejected, Sample, TrustSyncs, verify_outcome, verify_tables};
use siltstone_table::job::{Job, KeyRange, OutputLimits};
use siltstone_table::key::{Kind, trailer};
use siltstone_table::properties::Properties;
use siltstone_table::rangedel::RangeDeletes;
use siltstone_table::reader::{ReaderOptions, TableReader};
use siltstone_table::retain::RangeDelete;
use siltstone_table::writer::{TableWriter, WriterOptions};

use super::*;

/// An honest run of a job.
pub struct Honest {
    pub storage: Arc<MemoryStorage>,
    pub inputs: InputMap,
    pub job: Job,
    pub outcome: Outcome,
}

/// A job over three runs with both kinds of cuts, versions, deletes and range deletes, which is run
/// honestly.
pub fn honest() -> Honest {
    honest_with(OutputLimits::new(1 << 13, 512, true))
}

/// As [`honest`], with these limits.
pub fn honest_with(limits: OutputLimits) -> Honest {
    let runtime = Runtime::threads();
    let storage = Arc::new(MemoryStorage::new(&runtime));
    let mut inputs = InputMap::new();
    let mut job = a_job(3000);
    job.snapshots = vec![1200];
    job.hard_cuts = vec![b"k0400".to_vec()];
    job.soft_cuts = vec![b"k0100".to_vec(), b"k0250".to_vec(), b"k0600".to_vec()];
    job.limits = limits;
    job.older = vec![KeyRange::everything()];
    for run in 0..3u64 {
        let mut content = Content::default();
        for i in 0..300u64 {
            let seq = run * 1000 + i + 1;
            let key = format!("k{:04}", (i * 7 + run * 13) % 900).into_bytes();
            let kind = if i % 11 == 0 { Kind::Delete } else { Kind::Put };
            let value = if kind == Kind::Put {
                vec![seq as u8; 40 + (i % 17) as usize]
            } else {
                vec![]
            };
            content.entries.push((key, trailer(seq, kind), value));
        }
        let (start, end) = (b"k0380".to_vec(), b"k0420".to_vec());
        content.range_deletes.push(RangeDelete {
            start,
            end,
            seq: run * 1000 + 900,
        });
        let input = table_input(&mut inputs, &storage, &format!("in-{run}.tbl"), &content);
        job.inputs.push(siltstone_table::job::Input {
            run: run as u32,
            ..input
        });
    }
    Honest::of(runtime, storage, inputs, job)
}

impl Honest {
    /// Runs a job, which must make four tables at least.
    pub fn of(runtime: Runtime, storage: Arc<MemoryStorage>, inputs: InputMap, job: Job) -> Honest {
        let ctx = ExecContext::new(runtime, Arc::new(inputs.clone()), storage.clone(), epoch());
        let outcome = CpuExecutor::new().run(&job, &ctx).unwrap();
        assert!(outcome.tables.len() >= 4, "{}", outcome.tables.len());
        Honest {
            storage,
            inputs,
            job,
            outcome,
        }
    }

    pub fn verify(&self, outcome: &Outcome, sample: Sample) -> Result<(), Rejected> {
        verify_outcome(&self.job, outcome)?;
        verify_tables(&self.job, outcome, &*self.storage, &TrustSyncs, sample).unwrap()
    }
}

/// Replaces a table by one of the same name with changed entries and range deletes, and its record
/// by a record of the new table.
pub fn forge(
    h: &Honest,
    table: usize,
    change: impl Fn(&mut Vec<(Vec<u8>, u64, Vec<u8>)>, &mut Vec<RangeDelete>),
) -> Outcome {
    forge_with_end(h, table, change, None)
}

/// As [`forge`]. A block ends without padding after this many entries of the table.
pub fn forge_with_end(
    h: &Honest,
    table: usize,
    change: impl Fn(&mut Vec<(Vec<u8>, u64, Vec<u8>)>, &mut Vec<RangeDelete>),
    end: Option<usize>,
) -> Outcome {
    let mut outcome = h.outcome.clone();
    let record = &mut outcome.tables[table];
    let content = read_table(&*h.storage, &record.name);
    let mut entries = content.sorted();
    let mut range_deletes = content.range_deletes;
    change(&mut entries, &mut range_deletes);
    h.storage.delete(epoch(), &record.name).unwrap();
    let file = h.storage.create(epoch(), &record.name).unwrap();
    let mut writer = TableWriter::new(
        file,
        WriterOptions {
            block_size_bytes: h.job.limits.block_bytes,
            ..WriterOptions::default()
        },
    )
    .unwrap();
    for (i, (key, t, value)) in entries.iter().enumerate() {
        if end == Some(i) {
            writer.end_block().unwrap();
        }
        writer.add(key, *t, value).unwrap();
    }
    writer.set_left_bound(&record.left_bound);
    siltstone_table::rangedel::sort(&mut range_deletes);
    let range = RangeDeletes::new(range_deletes.clone()).unwrap();
    writer.set_range_deletes(range_deletes).unwrap();
    let summary = writer.finish().unwrap();
    let p = summary.properties;
    outcome.counters.bytes_written =
        outcome.counters.bytes_written - record.file_bytes + summary.file_bytes;
    record.raw_bytes = p.raw_bytes();
    record.file_bytes = summary.file_bytes;
    record.digest = summary.digest;
    (record.min_seq, record.max_seq) = (p.smallest_seq, p.largest_seq);
    let (puts, deletes, count) = (p.puts, p.deletes, p.entries);
    outcome.counters.entries_written = outcome.counters.entries_written - record.entries + count;
    (record.puts, record.deletes, record.entries) = (puts, deletes, count);
    record.keys = p.smallest_key.zip(p.largest_key);
    record.bounds = OutputTable::bounds_of(record.keys.as_ref(), range.range()).unwrap();
    record.fragments = p.range_deletes;
    let c = &mut outcome.counters;
    let not_shadowed = c.entries_written + c.covered + c.tombstones;
    c.shadowed = c.entries_read.saturating_sub(not_shadowed);
    outcome
}

/// Replaces the bytes of a table's block by changed ones, with right checksums and digests.
pub fn forge_block(
    h: &Honest,
    table: usize,
    block: usize,
    change: impl Fn(&mut [u8], &Header),
) -> Outcome {
    let mut outcome = h.outcome.clone();
    let record = &mut outcome.tables[table];
    let file = h.storage.open_finished(&record.name).unwrap();
    let mut all = vec![0; file.len() as usize];
    file.read_at(0, &mut all).unwrap();
    let mut footer = Footer::read(&*file).unwrap();
    let reader = TableReader::open(file, ReaderOptions::default()).unwrap();
    let mut digest = Digest::default();
    for i in 0..reader.index().len() {
        let place = reader.index().place(i);
        let (anchor, end) = (place.anchor as usize, place.end as usize);
        if i == block {
            let header = Header::parse(&all[..], anchor).unwrap();
            change(&mut all[anchor..end - 4], &header);
            let crc = crc32c(&all[anchor..end - 4]);
            all[end - 4..end].copy_from_slice(&crc.to_le_bytes());
        }
        digest.push(u32::from_le_bytes(*all[..end].last_chunk().unwrap()));
    }
    assert!(reader.range_deletes().is_empty());
    footer.digest = digest.value();
    record.digest = digest.value();
    let footer = footer.encode();
    let at = all.len() - footer.len();
    all[at..].copy_from_slice(&footer);
    h.storage.delete(epoch(), &record.name).unwrap();
    let file = h.storage.create(epoch(), &record.name).unwrap();
    file.append(&[&all]).unwrap();
    file.sync().unwrap();
    outcome
}

/// Replaces a table by one of the same name whose filter and properties were changed, with right
/// checksums, and sets the lengths in the outcome.
pub fn forge_sections(
    h: &Honest,
    table: usize,
    change: impl Fn(&mut [u8], &mut Properties),
) -> Outcome {
    let mut outcome = h.outcome.clone();
    let record = &mut outcome.tables[table];
    let file = h.storage.open_finished(&record.name).unwrap();
    let mut all = vec![0; file.len() as usize];
    file.read_at(0, &mut all).unwrap();
    let mut footer = Footer::read(&*file).unwrap();
    let mut properties = TableReader::open(file, ReaderOptions::default())
        .unwrap()
        .properties()
        .clone();
    // The sections follow each other, each with the checksum of what is before it.
    let sealed = |mut section: Vec<u8>| {
        section.extend_from_slice(&crc32c(&section).to_le_bytes());
        section
    };
    let [blocks, filter, index, range_deletes, _] = footer.sections().map(|len| len as usize);
    let mut bits = all[blocks..blocks + filter - 4].to_vec();
    change(&mut bits, &mut properties);
    let between = blocks + filter..blocks + filter + index + range_deletes;
    let mut encoded = Vec::new();
    properties.encode(&mut encoded);
    let (bits, properties) = (sealed(bits), sealed(encoded));
    footer.properties_bytes = properties.len() as u64;
    let (start, footer) = (all[..blocks].to_vec(), footer.encode());
    let parts = [&start[..], &bits, &all[between], &properties, &footer];
    h.storage.delete(epoch(), &record.name).unwrap();
    let file = h.storage.create(epoch(), &record.name).unwrap();
    file.append(&parts).unwrap();
    file.sync().unwrap();
    let len = parts.iter().map(|part| part.len() as u64).sum::<u64>();
    outcome.counters.bytes_written = outcome.counters.bytes_written - record.file_bytes + len;
    record.file_bytes = len;
    outcome
}
