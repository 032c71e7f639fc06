//! Compares ranges of an outcome's tables with what the job keeps of its inputs there.
//!
//! No check of the tables alone can show a value that belongs to another key, or an entry that is
//! missing together with its count. [`verify_ranges`] takes places in the key space, reads the
//! inputs around each place again, applies the job's drop rules, and compares what they keep with
//! the table, entry by entry: key, number, kind and value. The places are drawn from the caller's
//! seed, after the outcome arrived, so whoever made it could not know them.
//!
//! Half of the places are drawn among the blocks of the output. Such a place is the range between
//! the separators before and after the block in the index. So the places of all blocks together
//! cover the whole range of a table, and an entry that is missing between two blocks belongs to one
//! of their places. The other half is drawn among the blocks of the inputs. These places find what
//! is missing from a part of the range where the output has few blocks or none.
//!
//! If the values of the inputs are large and not compressed, a sample reads only the columns of the
//! blocks. The columns have everything about the entries except the values. At each place, one
//! window of at most 4 KiB of one drawn value is compared. (If the entries of a place are small
//! nevertheless, all of the place is compared.) So an executor that changes one value of a place
//! with `n` entries is found there with a probability of at most `1 / n`, and one that changes all
//! bytes of all values is always found.
//!
//! A sample reads about [`SAMPLED_PER_MILLE`] of the bytes of the inputs and of the outputs, and at
//! least one place of each kind in each table, and in each subjob without tables. So an executor
//! that changes a share `s` of the blocks at random is found with the probability
//! `1 - (1 - s)^places`; one changed block of thousands is probably not found.
//!
//! Threading: pure functions, except that they read tables and streams.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use siltstone_storage::{ReadFile, ReadRange, Storage, StorageErrorKind, planted};

use super::contents::entry_text;
use super::fetched::{FETCH_BYTES, Fetched, FetchedInputs};
use super::outcome::{Outcome, OutputTable};
use super::verify::Rejected;
use super::{Job, KeyBounds};
use crate::block::{Decoded, open_columns, open_stored};
use crate::compress::Codec;
use crate::error::TableError;
use crate::exec::inputs::JobInputs;
use crate::exec::{CancelToken, ExecError, Inputs};
use crate::key::{compare_internal, hash, raw_bytes, seq_of};
use crate::merge::Merge;
use crate::merge::input_run::Reads;
use crate::merge::table::InputTable;
use crate::retain::{Retain, Stripes, Verdict, fragment};

/// The share of the bytes of a job that [`RangeSample::drawn`] compares, in thousandths.
pub const SAMPLED_PER_MILLE: u32 = 20;

/// The maximum number of raw bytes of input entries that are read for one place of a sample. This
/// bounds the cost of a place where the job dropped nearly everything.
const PLACE_BYTES_MAX: u64 = 4 << 20;

/// Values count as large if key and value of an entry have at least this many bytes together, on
/// average over the inputs.
const LARGE_ENTRY: u64 = 1 << 10;

/// The maximum number of bytes of a large value that are compared.
const WINDOW_BYTES: u64 = 4 << 10;

/// The blocks of a place in an input are fetched together with those of other places if there are
/// at most this many.
const PLACE_BLOCKS_MAX: usize = 4;

/// The maximum number of pairs whose values are not compared yet: 1 MiB of windows.
const PAIRS_MAX: usize = 256;

/// Which ranges are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RangeSample {
    /// Places that are drawn from a seed.
    Drawn {
        /// The share of the job's bytes, in thousandths.
        per_mille: u32,
        /// Different seeds select different places.
        seed: u64,
    },
    /// Everything. It costs as much as the job.
    All,
}

impl RangeSample {
    /// The usual share of the job's bytes, drawn from `seed`.
    pub fn drawn(seed: u64) -> RangeSample {
        RangeSample::Drawn {
            per_mille: SAMPLED_PER_MILLE,
            seed,
        }
    }
}

/// What was compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RangesChecked {
    /// The number of places.
    pub places: u64,
    /// The number of entries of the tables that were compared and are what the job keeps.
    pub entries: u64,
    /// The stored bytes of the blocks that were read, of inputs and outputs.
    pub bytes: u64,
}

/// Compares ranges of the outcome's tables with the inputs. Call
/// [`super::verify::verify_tables`] first. `cancel` is checked before each input and each place.
///
/// # Errors
/// `Ok(Err(..))` if a table differs from what the job keeps, or is damaged. `Err` if the storage or
/// an input fails, or if `cancel` was cancelled.
pub fn verify_ranges(
    job: &Job,
    outcome: &Outcome,
    inputs: &dyn Inputs,
    storage: &dyn Storage,
    sample: RangeSample,
    cancel: &CancelToken,
) -> Result<Result<RangesChecked, Rejected>, ExecError> {
    let inputs = FetchedInputs::open(job, inputs, cancel)?;
    let mut checking = Checking {
        job,
        inputs: JobInputs::open(job, &inputs, cancel)?,
        input_files: inputs,
        storage,
        sample,
        cancel,
        drawn: 0,
        reads: Reads::All,
        seqs: 0..=u64::MAX,
        pairs: Vec::new(),
        checked: RangesChecked::default(),
    };
    let mut units = Vec::new();
    for subjob in 0..job.subjobs() {
        let of_subjob = |t: &&OutputTable| t.subjob as usize == subjob;
        let tables: Vec<&OutputTable> = outcome.tables.iter().filter(of_subjob).collect();
        match tables.is_empty() {
            true => units.push((job.subjob_bounds(subjob), None)),
            false => units.extend(tables.into_iter().map(|record| {
                let range = KeyBounds {
                    start: record.left_bound.clone(),
                    end: record.right_bound.clone(),
                };
                (range, Some(record))
            })),
        }
    }
    match checking.all(units) {
        Ok(()) => Ok(Ok(checking.checked)),
        Err(Failure::Rejected(rejected)) => Ok(Err(rejected)),
        Err(Failure::Exec(error)) => Err(error),
    }
}

/// Why the comparison ends early.
enum Failure {
    Rejected(Rejected),
    Exec(ExecError),
}

impl From<ExecError> for Failure {
    fn from(error: ExecError) -> Failure {
        Failure::Exec(error)
    }
}

fn reject<T>(reason: String) -> Result<T, Failure> {
    Err(Failure::Rejected(Rejected { reason }))
}

/// Classifies a failed read of an output. Damage counts as a lie of the executor, and so does a
/// table that does not exist.
fn of_output(error: impl Into<TableError>) -> Failure {
    match error.into() {
        TableError::Storage(error) if error.kind != StorageErrorKind::NotFound => {
            Failure::Exec(error.into())
        }
        damage => Failure::Rejected(Rejected {
            reason: damage.to_string(),
        }),
    }
}

/// An internal key.
type Separator = (Vec<u8>, u64);

/// The unit of comparison: the entries between two separators of an output table.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    /// The block that has the entries. `None` if no block can have them.
    block: Option<usize>,
    /// Entries of smaller user keys are not compared.
    start: Vec<u8>,
    /// The entries come after this.
    after: Option<Separator>,
    /// The last possible entry. `None` if the table's range ends before.
    through: Option<Separator>,
}

impl Place {
    /// The user keys of the entries.
    fn bounds(&self, range: &KeyBounds) -> KeyBounds {
        let end = self.through.as_ref();
        KeyBounds {
            start: self.start.clone(),
            // The key right after the separator's, because that one belongs to the place.
            end: end.map_or_else(
                || range.end.clone(),
                |(key, _)| Some([key, &[0][..]].concat()),
            ),
        }
        .intersect(range)
    }
}

/// The blocks of an input that can have keys of a range.
struct InputBlocks {
    input: usize,
    blocks: std::ops::Range<usize>,
    bytes: u64,
}

/// One table that is compared, or a subjob without tables. The table or the subjob is responsible
/// for `range`.
struct Unit<'u> {
    range: KeyBounds,
    record: Option<&'u OutputTable>,
    table: Option<(InputTable, Arc<Fetched>)>,
    /// Which parts of its blocks are read.
    reads: Reads,
    places: Vec<Place>,
}

impl Unit<'_> {
    /// The table, if it has blocks.
    fn table(&self) -> Option<&InputTable> {
        self.table.as_ref().map(|(table, _)| table)
    }
}

struct Checking<'a> {
    job: &'a Job,
    inputs: JobInputs,
    /// The files of the inputs.
    input_files: FetchedInputs<'a>,
    storage: &'a dyn Storage,
    sample: RangeSample,
    cancel: &'a CancelToken,
    /// The number of random numbers that were drawn.
    drawn: u64,
    /// Which parts of the blocks of the present table are read.
    reads: Reads,
    /// The sequence numbers that the present table may have.
    seqs: std::ops::RangeInclusive<u64>,
    /// The pairs whose values are not compared yet, each with the number of its unit.
    pairs: Vec<(usize, Pair)>,
    checked: RangesChecked,
}

/// The entries of a place that were compared.
#[derive(Default)]
struct Compared {
    entries: u64,
    /// The bytes of their keys and values.
    bytes: u64,
}

impl Compared {
    fn has_small_values(&self) -> bool {
        self.entries > 0 && self.bytes / self.entries < LARGE_ENTRY
    }
}

/// An entry of an output, and the same entry in the inputs.
struct Pair {
    key: Vec<u8>,
    trailer: u64,
    /// Where the output's value is in its file.
    found_at: u64,
    /// The number of the input, and where its value is.
    input: usize,
    kept_at: u64,
    /// The first byte of the value that is compared, and the number of bytes.
    at: u64,
    len: u64,
}

impl Checking<'_> {
    /// A number below `bound` that follows from the seed and the number of calls.
    fn draw(&mut self, seed: u64, bound: u64) -> u64 {
        self.drawn += 1;
        let at = [seed, self.drawn].map(u64::to_le_bytes).concat();
        hash(&at) % bound.max(1)
    }

    /// Compares places of all units. What is read of several units is fetched together.
    fn all<'u>(
        &mut self,
        units: impl IntoIterator<Item = (KeyBounds, Option<&'u OutputTable>)>,
    ) -> Result<(), Failure> {
        let (mut together, mut bytes) = (Vec::new(), 0);
        for (range, record) in units {
            if self.cancel.is_cancelled() {
                return Err(ExecError::Cancelled.into());
            }
            let unit = self.open(range, record)?;
            let table = unit.table();
            let blocks = unit.places.iter().filter_map(|place| place.block);
            let sizes = blocks.filter_map(|b| Some(read_range(table?, b, unit.reads).1));
            bytes += sizes.sum::<u64>();
            together.push(unit);
            if bytes >= FETCH_BYTES {
                self.units(&together)?;
                (together, bytes) = (Vec::new(), 0);
            }
        }
        self.units(&together)
    }

    /// Opens the table of a unit, and draws the places to compare.
    fn open<'u>(
        &mut self,
        range: KeyBounds,
        record: Option<&'u OutputTable>,
    ) -> Result<Unit<'u>, Failure> {
        let table = match record {
            Some(record) => {
                let opened = self.storage.open_finished(&record.name);
                let file = Fetched::of(opened.map_err(of_output)?);
                let table = InputTable::open(file.clone()).map_err(of_output)?;
                Some((table, file))
            }
            None => None,
        };
        let table = table.filter(|(table, _)| table.block_count() > 0);
        let reads = match (record, &table) {
            (Some(_), Some((table, _))) if self.has_large_values(table) => Reads::Columns,
            _ => Reads::All,
        };
        let places = self.places(&range, table.as_ref().map(|(table, _)| table));
        Ok(Unit {
            range,
            record,
            table,
            reads,
            places,
        })
    }

    /// Fetches what the comparison of these units reads first: the ends of the tables, and the
    /// blocks of all places, of the tables and of the inputs.
    fn fetch(&self, units: &[Unit<'_>]) -> Result<(), Failure> {
        let mut of_inputs: BTreeMap<usize, BTreeSet<(u64, u64)>> = BTreeMap::new();
        for unit in units {
            for place in &unit.places {
                let all = self.input_blocks(&place.bounds(&unit.range));
                for InputBlocks { input, blocks, .. } in all {
                    let table = self.inputs.table(input);
                    // Few places have so many blocks, and those are read in larger pieces.
                    if let Some(table) = table.filter(|_| blocks.len() <= PLACE_BLOCKS_MAX) {
                        let ranges = blocks.map(|b| read_range(table, b, unit.reads));
                        of_inputs.entry(input).or_default().extend(ranges);
                    }
                }
            }
            if let Some((table, file)) = &unit.table {
                let ends = [0, table.block_count() - 1];
                let ends = ends.map(|block| read_range(table, block, Reads::Columns));
                let blocks = unit.places.iter().filter_map(|place| place.block);
                let blocks = blocks.map(|block| read_range(table, block, unit.reads));
                let ranges: BTreeSet<(u64, u64)> = ends.into_iter().chain(blocks).collect();
                file.fetch(ranges).map_err(of_output)?;
            }
        }
        for (input, ranges) in of_inputs {
            let input = &self.job.inputs[input];
            if let Some(file) = self.input_files.file(input.location, &input.name) {
                let fetched = file.fetch(ranges).map_err(TableError::from);
                fetched.map_err(ExecError::from)?;
            }
        }
        Ok(())
    }

    /// Compares places of some units.
    fn units(&mut self, units: &[Unit<'_>]) -> Result<(), Failure> {
        if self.sample != RangeSample::All {
            self.fetch(units)?;
        }
        for (number, unit) in units.iter().enumerate() {
            self.unit(number, unit)?;
            if self.pairs.len() >= PAIRS_MAX {
                self.compare_values(units)?;
            }
        }
        self.compare_values(units)
    }

    fn unit(&mut self, number: usize, unit: &Unit<'_>) -> Result<(), Failure> {
        let (range, record, table) = (&unit.range, unit.record, unit.table());
        let name = record.map_or("none of the subjob", |record| &record.name);
        self.reads = unit.reads;
        self.seqs = record.map_or(0..=u64::MAX, |record| record.min_seq..=record.max_seq);
        if let (Some(record), Some(table)) = (record, table) {
            self.check_ends(record, table)?;
        }
        for place in &unit.places {
            if self.cancel.is_cancelled() {
                return Err(ExecError::Cancelled.into());
            }
            let (entries_before, pairs_before) = (self.checked.entries, self.pairs.len());
            let (compared, pair) = self.compare(range, name, table, place)?;
            self.pairs.extend(pair.map(|pair| (number, pair)));
            if self.reads == Reads::Columns && compared.has_small_values() {
                // The values of this place are not large, whatever the properties say.
                self.checked.entries = entries_before;
                self.pairs.truncate(pairs_before);
                self.reads = Reads::All;
                self.compare(range, name, table, place)?;
                self.reads = Reads::Columns;
            }
            self.checked.places += 1;
        }
        Ok(())
    }

    /// Checks that the first and the last entry have the keys that the outcome says. Readers skip a
    /// table by these keys, and the next compaction takes no entries outside them, so a wrong one
    /// loses entries. Only the columns of two blocks are read.
    fn check_ends(&mut self, record: &OutputTable, table: &InputTable) -> Result<(), Failure> {
        let last = table.block_count() - 1;
        let (mut first_key, mut last_key) = (None, None);
        for block in BTreeSet::from([0, last]) {
            let mut found = Found::default();
            let read = found.read(table, block, Reads::Columns);
            self.checked.bytes += read.map_err(of_output)?;
            let entries = &found.entries;
            let Some(end) = entries.len().checked_sub(1) else {
                continue;
            };
            if block == 0 {
                first_key = Some(entries.key(0).to_vec());
            }
            if block == last {
                last_key = Some(entries.key(end).to_vec());
            }
        }
        if first_key.zip(last_key) != record.keys && !planted!(EndsAreBelieved) {
            return reject(format!(
                "table {} has another first or last key than the outcome says",
                record.name
            ));
        }
        Ok(())
    }

    /// Whether values are so large that only parts of some of them are read. This is possible only
    /// if all inputs are tables, because a stream has no columns, and if nothing is compressed,
    /// because a part of a compressed value cannot be read.
    ///
    /// The size of values is taken from the inputs. The outcome's counts come from the executor,
    /// which must not choose how much of its values is compared. The inputs and their properties
    /// may have been made by the same executor in an earlier job, so the entries of each place are
    /// checked, too.
    fn has_large_values(&self, table: &InputTable) -> bool {
        let is_plain = |table: &InputTable| table.properties().codec == Codec::None;
        if self.sample == RangeSample::All || !is_plain(table) {
            return false;
        }
        let (mut bytes, mut entries) = (0u64, 0u64);
        for input in 0..self.job.inputs.len() {
            let Some(table) = self.inputs.table(input).filter(|table| is_plain(table)) else {
                return false;
            };
            let p = table.properties();
            bytes = bytes.saturating_add(p.key_bytes.saturating_add(p.value_bytes));
            entries = entries.saturating_add(p.entries);
        }
        bytes / entries.max(1) >= LARGE_ENTRY
    }

    /// The places to compare, in ascending order.
    fn places(&mut self, range: &KeyBounds, table: Option<&InputTable>) -> Vec<Place> {
        let blocks = table.map_or(0, InputTable::block_count);
        let (per_mille, seed) = match self.sample {
            RangeSample::All if blocks == 0 => return vec![place_at(range, table, None)],
            RangeSample::All => {
                return (0..blocks)
                    .map(|b| place_at(range, table, Some(b)))
                    .collect();
            }
            RangeSample::Drawn { per_mille, seed } => (per_mille, seed),
        };
        let input_blocks = self.input_blocks(range);
        let input_bytes: u64 = input_blocks.iter().map(|i| i.bytes).sum();
        let output_bytes = table.map_or(0, |table| table.place(blocks - 1).end);
        let all = u128::from(input_bytes) + u128::from(output_bytes);
        let budget = u64::try_from(all * u128::from(per_mille) / 1000).unwrap_or(u64::MAX);
        let mut places = BTreeSet::new();
        let mut bytes = 0u64;
        // A place may be drawn again, so the number of draws is bounded, too.
        for n in 0..2 + 4 * blocks.max(16) {
            if n >= 2 && bytes >= budget {
                break;
            }
            let place = if n % 2 == 0 && blocks > 0 {
                let at = self.draw(seed, output_bytes);
                let ends_after = |b: usize| table.is_some_and(|t| t.place(b).end <= at);
                let block = crate::coding::partition_point(blocks, ends_after);
                place_at(range, table, Some(block))
            } else if input_bytes > 0 {
                let at = self.draw(seed, input_bytes);
                let start = self.input_key(range, &input_blocks, at);
                place_from(range, table, start)
            } else if blocks == 0 {
                // The inputs are streams, of which no blocks are known.
                place_at(range, table, None)
            } else {
                continue;
            };
            let bounds = place.bounds(range);
            let cost = self.inputs.table_bytes(self.job, &bounds);
            if places.insert(place.clone()) {
                let own = place
                    .block
                    .and_then(|b| Some(table?.place(b).stored_bytes()));
                let cost = cost.min(PLACE_BYTES_MAX).saturating_add(own.unwrap_or(0));
                bytes = bytes.saturating_add(cost);
            }
        }
        places.into_iter().collect()
    }

    /// The blocks of each input table that can have keys of `range`.
    fn input_blocks(&self, range: &KeyBounds) -> Vec<InputBlocks> {
        let mut all = Vec::new();
        for (i, input) in self.job.inputs.iter().enumerate() {
            let clip = input.clip.intersect(range);
            if let Some(table) = self.inputs.table(i).filter(|_| !clip.is_empty()) {
                let (blocks, bytes) = (table.blocks_of(&clip), table.stored_bytes(&clip));
                all.push(InputBlocks {
                    input: i,
                    blocks,
                    bytes,
                });
            }
        }
        all
    }

    /// A key from which on the input block at byte `at` of all these blocks has entries.
    fn input_key(&self, range: &KeyBounds, all: &[InputBlocks], mut at: u64) -> Vec<u8> {
        for one in all {
            if at >= one.bytes {
                at -= one.bytes;
                continue;
            }
            let Some(table) = self.inputs.table(one.input) else {
                break;
            };
            let at = table.place(one.blocks.start).start + at;
            let block =
                crate::coding::partition_point(one.blocks.end, |b| table.place(b).end <= at);
            if let Some(before) = block.checked_sub(1) {
                let (key, _) = table.separator(before);
                return key.max(range.start.clone());
            }
            break;
        }
        range.start.clone()
    }

    /// Compares one place of the table called `name` with the inputs. Returns what was compared,
    /// and the pair whose values are to be compared as well, if they were not read.
    fn compare(
        &mut self,
        range: &KeyBounds,
        name: &str,
        table: Option<&InputTable>,
        place: &Place,
    ) -> Result<(Compared, Option<Pair>), Failure> {
        let mut found = Found::default();
        let mut compared = Compared::default();
        if let (Some(table), Some(block)) = (table, place.block) {
            let read = found.read(table, block, self.reads);
            self.checked.bytes += read.map_err(of_output)?;
            // Only if the place begins within the block, entries before it are left out. Entries
            // before the block's own range would be wrong, so they are compared.
            if place.start > place_at(range, Some(table), place.block).start {
                found.skip_below(&place.start);
            }
        }
        let job = self.job;
        let bounds = place.bounds(range);
        let mut restricted = self.inputs.restrict(job, &bounds, None)?;
        let range_deletes = std::mem::take(&mut restricted.range_deletes);
        let stripes = Stripes::new(&job.snapshots, job.published);
        let (start, end) = (&bounds.start[..], bounds.end.as_deref());
        let fragments = fragment(&range_deletes, &stripes, start, end);
        let mut retain = Retain::new(job.rules, stripes, &job.older, fragments);
        let mut merge = Merge::new(restricted.into_runs(true, self.reads))?;
        // The pair whose values are compared, and the number of pairs from which it was drawn.
        let (mut pair, mut pairs) = (None, 0);
        let mut left_bytes = match self.sample {
            RangeSample::All => u64::MAX,
            RangeSample::Drawn { .. } => PLACE_BYTES_MAX,
        };
        let is_through = |key: &[u8], trailer: u64| {
            let past = |(k, t): &Separator| compare_internal(key, trailer, k, *t).is_gt();
            place.through.as_ref().is_some_and(past)
        };
        let is_before = |key: &[u8], trailer: u64| {
            let not_after = |(k, t): &Separator| compare_internal(key, trailer, k, *t).is_le();
            place.after.as_ref().is_some_and(not_after)
        };
        while merge.current().is_some() {
            let new_key = merge.note()?;
            let Some(entry) = merge.current() else { break };
            let (key, trailer, len) = (entry.key(), entry.trailer(), entry.value_len());
            if is_through(key, trailer) {
                break;
            }
            if new_key {
                retain.start_key(key);
            }
            if retain.judge(key, trailer) == Verdict::Keep && !is_before(key, trailer) {
                let value = match self.reads {
                    Reads::All => Ok(entry.value()),
                    Reads::Columns => Err(len),
                };
                let found_at = found.compare(name, key, trailer, value)?;
                self.checked.entries += 1;
                compared.entries += 1;
                compared.bytes += (key.len() + len) as u64;
                if !self.seqs.contains(&seq_of(trailer)) {
                    return reject(format!(
                        "table {name}: the sequence number of {} is out of its range",
                        entry_text(key, trailer)
                    ));
                }
                if self.reads == Reads::Columns && len > 0 {
                    pairs += 1;
                    if self.draw_of(pairs) == 0 {
                        let window = (len as u64).min(WINDOW_BYTES);
                        let at = self.draw_of(len as u64 - window + 1);
                        let (input, block, _) = entry.position();
                        let start = self
                            .inputs
                            .table(input as usize)
                            .map_or(0, |table| table.place(block as usize).start);
                        pair = Some(Pair {
                            key: key.to_vec(),
                            trailer,
                            found_at,
                            input: input as usize,
                            kept_at: start + entry.value_range().start as u64,
                            at,
                            len: window,
                        });
                    }
                }
            }
            let raw = raw_bytes(key.len(), len);
            match left_bytes.checked_sub(raw) {
                Some(left) => left_bytes = left,
                None => {
                    // The remaining entries of the place are not compared.
                    self.checked.bytes += merge.take_counts().2;
                    return Ok((compared, pair));
                }
            }
            merge.advance()?;
        }
        self.checked.bytes += merge.take_counts().2;
        found.end(name)?;
        Ok((compared, pair))
    }

    /// A number below `bound`, drawn from the seed of the sample.
    fn draw_of(&mut self, bound: u64) -> u64 {
        match self.sample {
            RangeSample::Drawn { seed, .. } => self.draw(seed, bound),
            RangeSample::All => 0,
        }
    }

    /// Compares a window of the values of each pair. Those of one file are read together.
    fn compare_values(&mut self, units: &[Unit<'_>]) -> Result<(), Failure> {
        let pairs = std::mem::take(&mut self.pairs);
        let mut found: Vec<Vec<u8>> = vec![Vec::new(); pairs.len()];
        let mut kept = found.clone();
        for (number, unit) in units.iter().enumerate() {
            if let Some(table) = unit.table() {
                let is_its = |(unit, _): &(usize, Pair)| *unit == number;
                read_windows(&**table.file(), &pairs, &mut found, is_its, |p| p.found_at)
                    .map_err(of_output)?;
            }
        }
        let inputs: BTreeSet<usize> = pairs.iter().map(|(_, pair)| pair.input).collect();
        for number in inputs {
            if let Some(table) = self.inputs.table(number) {
                let is_its = |(_, pair): &(usize, Pair)| pair.input == number;
                read_windows(&**table.file(), &pairs, &mut kept, is_its, |p| p.kept_at)
                    .map_err(|error| ExecError::from(TableError::from(error)))?;
            }
        }
        for ((unit, pair), (found, kept)) in pairs.iter().zip(found.iter().zip(&kept)) {
            self.checked.bytes += (found.len() + kept.len()) as u64;
            if found != kept {
                let name = units[*unit].record.map_or("", |record| &record.name);
                return reject(format!(
                    "table {name}: the value of {} differs from that of the inputs, in the {} \
                     bytes from byte {} on",
                    entry_text(&pair.key, pair.trailer),
                    pair.len,
                    pair.at
                ));
            }
        }
        Ok(())
    }
}

/// Reads the windows of those pairs that belong to this file.
fn read_windows(
    file: &dyn ReadFile,
    pairs: &[(usize, Pair)],
    windows: &mut [Vec<u8>],
    is_its: impl Fn(&(usize, Pair)) -> bool,
    value_at: impl Fn(&Pair) -> u64,
) -> siltstone_storage::Result<()> {
    let both = pairs.iter().zip(windows).filter(|(pair, _)| is_its(pair));
    let range = |((_, pair), buf): (&(usize, Pair), _)| {
        let buf: &mut Vec<u8> = buf;
        buf.resize(pair.len as usize, 0);
        let offset = value_at(pair) + pair.at;
        ReadRange { offset, buf }
    };
    let mut ranges: Vec<ReadRange<'_>> = both.map(range).collect();
    match ranges.is_empty() {
        true => Ok(()),
        false => file.read_ranges(&mut ranges),
    }
}

/// Where a block is in its file, or its columns: the offset and the length.
fn read_range(table: &InputTable, block: usize, reads: Reads) -> (u64, u64) {
    let place = table.place(block);
    match reads {
        Reads::All => (place.start, place.stored_bytes()),
        Reads::Columns => (place.anchor, place.end - place.anchor),
    }
}

/// The place of a block of the table, or the whole range if it has none.
fn place_at(range: &KeyBounds, table: Option<&InputTable>, block: Option<usize>) -> Place {
    let (Some(table), Some(block)) = (table, block) else {
        return Place {
            block: None,
            start: range.start.clone(),
            after: None,
            through: None,
        };
    };
    let after = block.checked_sub(1).map(|before| table.separator(before));
    let is_last = block + 1 == table.block_count();
    let start = after.as_ref().map_or(&range.start, |(key, _)| key);
    Place {
        block: Some(block),
        start: start.max(&range.start).clone(),
        after,
        through: (!is_last).then(|| table.separator(block)),
    }
}

/// The place of the block that can have `start`, without the keys before `start`.
fn place_from(range: &KeyBounds, table: Option<&InputTable>, start: Vec<u8>) -> Place {
    let block = table.map(|t| t.seek_block(&start).min(t.block_count() - 1));
    let place = place_at(range, table, block);
    Place {
        start: start.max(place.start),
        ..place
    }
}

/// The entries of an output block that were not compared yet.
#[derive(Default)]
struct Found {
    entries: Decoded,
    /// The stored or the uncompressed bytes, and the offset of the first value in them. No bytes if
    /// only columns were read.
    bytes: Vec<u8>,
    values_at: usize,
    /// Where the block begins in its file.
    start: u64,
    next: usize,
}

impl Found {
    /// Reads a block, or its columns. Returns the number of bytes that were read.
    fn read(&mut self, table: &InputTable, block: usize, reads: Reads) -> Result<u64, TableError> {
        let place = table.place(block);
        self.start = place.start;
        if reads == Reads::Columns {
            let mut columns = vec![0; (place.end - place.anchor) as usize];
            table.file().read_at(place.anchor, &mut columns)?;
            let damaged = |d: crate::error::Damage| d.in_file(table.file().name(), place.anchor);
            let values_len = (place.anchor - place.start) as usize;
            let mut scratch = Vec::new();
            let view = open_columns(&columns, values_len, true, &mut scratch).map_err(damaged)?;
            view.decode_all(&mut self.entries).map_err(damaged)?;
            return Ok(place.end - place.anchor);
        }
        let mut stored = vec![0; place.stored_bytes() as usize];
        table.file().read_at(place.start, &mut stored)?;
        let anchor = (place.anchor - place.start) as usize;
        let damaged = |d: crate::error::Damage| d.in_file(table.file().name(), place.start);
        let mut scratch = Vec::new();
        let view = open_stored(&stored, anchor, true, &mut scratch).map_err(damaged)?;
        view.decode_all(&mut self.entries).map_err(damaged)?;
        let is_stored = std::ptr::eq(view.bytes(), &stored[..]);
        self.values_at = view.values();
        self.bytes = if is_stored { stored } else { scratch };
        Ok(place.stored_bytes())
    }

    /// Leaves out the entries of smaller user keys.
    fn skip_below(&mut self, start: &[u8]) {
        let entries = &self.entries;
        self.next = crate::coding::partition_point(entries.len(), |i| entries.key(i) < start);
    }

    /// Compares the next entry with one that the job keeps. `value` is the value of that one, or
    /// only its length. Returns where the value is in the file, if the table is not compressed.
    fn compare(
        &mut self,
        name: &str,
        key: &[u8],
        trailer: u64,
        value: Result<&[u8], usize>,
    ) -> Result<u64, Failure> {
        let lacks = || reject(format!("table {name} lacks {}", entry_text(key, trailer)));
        if self.next >= self.entries.len() {
            return lacks();
        }
        let (found, found_trailer) = (
            self.entries.key(self.next),
            self.entries.trailers[self.next],
        );
        match compare_internal(found, found_trailer, key, trailer) {
            std::cmp::Ordering::Less => self.end(name).map(|()| 0),
            std::cmp::Ordering::Greater => lacks(),
            std::cmp::Ordering::Equal => {
                let range = self.entries.value_range(self.next);
                let (is_same, len) = match value {
                    Ok(value) => {
                        let (start, end) = (range.start, range.end);
                        let found = &self.bytes[self.values_at + start..self.values_at + end];
                        (found == value, value.len())
                    }
                    Err(len) => (range.len() == len, len),
                };
                if !is_same {
                    return reject(format!(
                        "table {name}: the value of {} has {} bytes and differs from the {len} \
                         bytes of the inputs",
                        entry_text(key, trailer),
                        range.len()
                    ));
                }
                self.next += 1;
                Ok(self.start + range.start as u64)
            }
        }
    }

    /// Ends the place: no entry may be left.
    fn end(&self, name: &str) -> Result<(), Failure> {
        if self.next >= self.entries.len() {
            return Ok(());
        }
        let (key, trailer) = (
            self.entries.key(self.next),
            self.entries.trailers[self.next],
        );
        let entry = entry_text(key, trailer);
        reject(format!(
            "table {name} holds {entry}, which the job does not keep"
        ))
    }
}
