//! An executor that uses nothing but the public interface of the crate, in the way in which one
//! that computes blocks elsewhere does: it plans subjobs with `JobPlan`, decodes blocks, sorts all
//! entries of a piece, makes the blocks of a whole table in memory, and gives them to `JobOutput`.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use siltstone_table::Codec;
use siltstone_table::assembly::{EntryCounts, FilterBytes, FinishedBlock, TableAssembler};
use siltstone_table::block::{BlockBuilder, BlockEnd, BlockRule, Decoded, Stored, open_stored};
use siltstone_table::checksum::crc32c;
use siltstone_table::exec::part::Part;
use siltstone_table::exec::plan::{JobPlan, PlannedInput, check_block};
use siltstone_table::exec::{
    CpuExecutor, ExecContext, ExecError, Executor, JobOutput, Side, SubjobOutput,
};
use siltstone_table::filter::Filter;
use siltstone_table::job::outcome::{Counters, Outcome};
use siltstone_table::job::{Job, KeyBounds};
use siltstone_table::key::{HIGHEST_TRAILER, Kind, common_prefix, compare_internal, hash};
use siltstone_table::key::{raw_bytes, seek_trailer};
use siltstone_table::retain::Verdict;
use siltstone_table::writer::WriterOptions;

/// User key, trailer, value.
type Entry = (Vec<u8>, u64, Vec<u8>);

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct ForeignExecutor {
    /// Subjobs are divided into pieces at these keys, which ascend.
    pub cuts: Vec<Vec<u8>>,
    /// The sizes of the pieces in which the blocks of a table are appended, again and again.
    pub appends: Vec<usize>,
    /// Whether filters are given as hashes.
    pub gives_hashes: bool,
    /// Whether what earlier attempts left is not looked at.
    pub begins_again: bool,
}

impl Executor for ForeignExecutor {
    fn name(&self) -> &str {
        "foreign"
    }

    fn side(&self) -> Side {
        Side::Gpu
    }

    fn accepts(&self, job: &Job) -> Result<(), String> {
        CpuExecutor::new().accepts(job)
    }

    fn run(&self, job: &Job, ctx: &ExecContext) -> Result<Outcome, ExecError> {
        self.accepts(job).map_err(ExecError::declined)?;
        let plan = JobPlan::open(job, ctx).map_err(ExecError::declined_if_unsupported)?;
        if !plan.are_tables() {
            return Err(ExecError::declined("an input is a stream"));
        }
        let output = JobOutput::new(job, ctx);
        let mut adopted = match self.begins_again {
            true => BTreeMap::new(),
            false => output.adopt(),
        };
        let mut parts = Vec::new();
        for subjob in 0..job.subjobs() {
            let adopted_part = adopted.remove(&(subjob as u32));
            let mut part = adopted_part.unwrap_or_else(|| Part::new(subjob as u32));
            let result = self.subjob(&plan, &output, &mut part);
            parts.push(part);
            if let Err(error) = result {
                parts.extend(adopted.into_values());
                output.leave(&error, parts);
                return Err(error.declined_if_unsupported());
            }
        }
        output.finish(parts)
    }
}

impl ForeignExecutor {
    /// The pieces into which keys are divided.
    fn pieces(&self) -> Vec<KeyBounds> {
        let mut pieces = vec![KeyBounds::everything()];
        for cut in &self.cuts {
            pieces.last_mut().unwrap().end = Some(cut.clone());
            pieces.push(KeyBounds {
                start: cut.clone(),
                end: None,
            });
        }
        pieces
    }

    fn subjob(&self, plan: &JobPlan, output: &JobOutput, part: &mut Part) -> Result<(), ExecError> {
        let (job, ctx) = (output.job(), output.context());
        let Some(mut plan) = plan.subjob(job, part.subjob as usize, &part.next)? else {
            return Ok(());
        };
        let mut output = output.subjob(&plan, part);
        let mut counters = plan.counters;
        // The counts before the current user key, and whether a version of it was kept.
        let (mut before, mut in_table) = (counters, false);
        let mut last: Option<Vec<u8>> = None;
        let mut table = Vec::new();
        for keys in self.pieces() {
            if ctx.cancel.is_cancelled() {
                return Err(ExecError::Cancelled);
            }
            let entries = read(&plan.runs_in(&keys), job.format.verify, &mut counters)?;
            let read = entries.len() as u64;
            ctx.progress.entries.fetch_add(read, Ordering::Relaxed);
            for (key, trailer, value) in entries {
                if last.as_ref() != Some(&key) {
                    plan.retain.start_key(&key);
                    (before, in_table) = (counters, false);
                    last = Some(key.clone());
                }
                let raw = raw_bytes(key.len(), value.len());
                counters.entries_read += 1;
                counters.raw_bytes_read += raw;
                match plan.retain.judge(&key, trailer) {
                    Verdict::Shadowed => counters.shadowed += 1,
                    Verdict::Covered => counters.covered += 1,
                    Verdict::Tombstone => counters.tombstones += 1,
                    Verdict::Keep => {
                        if !in_table && let Some(start) = plan.layout.start_key(&key) {
                            let state = plan.layout.state(&key);
                            self.end_table(&mut output, std::mem::take(&mut table))?;
                            output.start_table(start, state, before)?;
                        }
                        in_table = true;
                        plan.layout.add(raw);
                        table.push((key, trailer, value));
                    }
                }
            }
        }
        self.end_table(&mut output, table)?;
        output.finish(counters)?;
        Ok(())
    }

    /// Gives the open table its entries.
    fn end_table(
        &self,
        output: &mut SubjobOutput<'_>,
        entries: Vec<Entry>,
    ) -> Result<(), ExecError> {
        let Some(table) = output.table() else {
            assert!(entries.is_empty());
            return Ok(());
        };
        let blocks = Blocks::of(&entries, *table.options());
        self.append(table, &blocks)?;
        let (counts, hashes) = counts(&entries);
        table.set_entries(counts);
        let mut filter = Vec::new();
        let bits_per_key = table.options().bits_per_key;
        Filter::build(&hashes, bits_per_key).encode(&mut filter);
        table.write_filter(match self.gives_hashes && bits_per_key > 0 {
            true => FilterBytes::Hashes(&hashes),
            false => FilterBytes::Stored(&filter),
        })?;
        Ok(())
    }

    fn append(&self, table: &mut TableAssembler, blocks: &Blocks) -> Result<(), ExecError> {
        let mut rest = &blocks.bytes[..];
        let mut sizes = self.appends.iter().copied().cycle();
        while !rest.is_empty() {
            let size = sizes.next().unwrap_or(rest.len());
            let (piece, after) = rest.split_at(size.clamp(1, rest.len()));
            table.append(piece)?;
            rest = after;
        }
        for (anchor, end, checksum, (separator, separator_trailer)) in &blocks.blocks {
            table.push_block(&FinishedBlock {
                anchor: *anchor,
                end: *end,
                checksum: *checksum,
                separator,
                separator_trailer: *separator_trailer,
            })?;
        }
        Ok(())
    }
}

/// All entries that a merge of the runs reads, in order.
fn read(
    runs: &[Vec<PlannedInput>],
    verify: bool,
    counters: &mut Counters,
) -> Result<Vec<Entry>, ExecError> {
    let mut all = Vec::new();
    for input in runs.iter().flatten() {
        let table = input.table().expect("all inputs are tables");
        for block in input.blocks() {
            let place = table.place(block);
            let mut stored = vec![0; place.stored_bytes() as usize];
            table.file().read_at(place.start, &mut stored)?;
            counters.bytes_read += place.stored_bytes();
            check_block(input, block, &stored, verify)?;
            let anchor = (place.anchor - place.start) as usize;
            let (mut scratch, mut entries) = (Vec::new(), Decoded::default());
            let view = open_stored(&stored, anchor, verify, &mut scratch).unwrap();
            view.decode_all(&mut entries).unwrap();
            for i in 0..entries.len() {
                let kind = entries.trailers[i] & 0xff;
                let trailer = match input.seq_override {
                    Some(seq) => seek_trailer(seq) & !0xff | kind,
                    None => entries.trailers[i],
                };
                let value = view.value(i).unwrap();
                if input.bounds.contains(entries.key(i)) {
                    all.push((entries.key(i).to_vec(), trailer, value.to_vec()));
                }
            }
        }
    }
    // The sort is stable, so that of the earlier run comes first.
    all.sort_by(|a, b| compare_internal(&a.0, a.1, &b.0, b.1));
    Ok(all)
}

/// The counts of entries in order, and the hashes of their user keys.
fn counts(entries: &[Entry]) -> (EntryCounts, Vec<u64>) {
    let mut keys: Vec<&[u8]> = entries.iter().map(|e| e.0.as_slice()).collect();
    keys.dedup();
    let of_kind = |kind: Kind| entries.iter().filter(|e| e.1 as u8 == kind as u8).count() as u64;
    let seqs = || entries.iter().map(|e| e.1 >> 8);
    let counts = EntryCounts {
        entries: entries.len() as u64,
        puts: of_kind(Kind::Put),
        deletes: of_kind(Kind::Delete),
        user_keys: keys.len() as u64,
        key_bytes: entries.iter().map(|e| e.0.len() as u64).sum(),
        value_bytes: entries.iter().map(|e| e.2.len() as u64).sum(),
        smallest_seq: seqs().min().unwrap_or(u64::MAX),
        largest_seq: seqs().max().unwrap_or(0),
        smallest_key: entries.first().map(|e| e.0.clone()),
        largest_key: entries.last().map(|e| e.0.clone()),
    };
    (counts, keys.into_iter().map(hash).collect())
}

/// A block: the offsets of its header and its end, its checksum and its separator.
type OwnedBlock = (u64, u64, u32, (Vec<u8>, u64));

/// The blocks of a table, with their bytes.
struct Blocks {
    options: WriterOptions,
    bytes: Vec<u8>,
    /// Where the current block begins.
    start: usize,
    builder: BlockBuilder,
    blocks: Vec<OwnedBlock>,
}

impl Blocks {
    fn of(entries: &[Entry], options: WriterOptions) -> Blocks {
        let mut all = Blocks {
            options,
            bytes: Vec::new(),
            start: 0,
            builder: BlockBuilder::new(),
            blocks: Vec::new(),
        };
        let rule = BlockRule::new(options.block_size_bytes, options.codec != Codec::None);
        let mut last: Option<&Entry> = None;
        for entry in entries {
            let (key, trailer, value) = entry;
            let shared = last.map_or(0, |last| common_prefix(&last.0, key));
            let extent = |builder: &BlockBuilder| {
                builder.extent_with(key.len(), *trailer, value.len(), shared)
            };
            let then = extent(&all.builder);
            if let Some(now) = all.builder.extent()
                && let Some(last) = last
                && let Some(end) = rule.end(all.start as u64, now, &then)
            {
                let separator = match last.0 == *key {
                    true => (last.0.clone(), last.1),
                    false => (key[..shared + 1].to_vec(), HIGHEST_TRAILER),
                };
                all.end(end, separator);
            }
            let then = extent(&all.builder);
            all.builder.push(key, *trailer, then);
            all.bytes.extend_from_slice(value);
            last = Some(entry);
        }
        if let Some((key, trailer, _)) = last {
            all.end(BlockEnd::Size, (key.clone(), *trailer));
        }
        all
    }

    fn end(&mut self, end: BlockEnd, separator: (Vec<u8>, u64)) {
        let WriterOptions { codec, level, .. } = self.options;
        let mut compressed = Vec::new();
        let values = &self.bytes[self.start..];
        let values_compressed =
            codec != Codec::None && codec.compress(level, values, &mut compressed);
        if values_compressed {
            self.bytes.truncate(self.start);
            self.bytes.extend_from_slice(&compressed);
        }
        let anchor = self.bytes.len() as u64;
        let stored = Stored {
            values_crc: crc32c(&self.bytes[self.start..]),
            values_compressed,
            codec,
            level,
            offset: anchor,
            end,
        };
        let checksum = self.builder.encode(stored, &mut self.bytes);
        self.builder.clear();
        self.start = self.bytes.len();
        let end = self.start as u64;
        self.blocks.push((anchor, end, checksum, separator));
    }
}
