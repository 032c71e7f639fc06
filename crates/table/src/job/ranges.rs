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

use std::collections::BTreeSet;

use siltstone_storage::{Storage, StorageErrorKind, planted};

use super::contents::entry_text;
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
    let mut checking = Checking {
        job,
        inputs: JobInputs::open(job, inputs, cancel)?,
        storage,
        sample,
        cancel,
        drawn: 0,
        reads: Reads::All,
        seqs: 0..=u64::MAX,
        checked: RangesChecked::default(),
    };
    for subjob in 0..job.subjobs() {
        let of_subjob = |t: &&OutputTable| t.subjob as usize == subjob;
        let tables: Vec<&OutputTable> = outcome.tables.iter().filter(of_subjob).collect();
        let checked = match tables.is_empty() {
            true => checking.unit(job.subjob_bounds(subjob), None),
            false => tables.into_iter().try_for_each(|record| {
                let range = KeyBounds {
                    start: record.left_bound.clone(),
                    end: record.right_bound.clone(),
                };
                checking.unit(range, Some(record))
            }),
        };
        match checked {
            Ok(()) => {}
            Err(Failure::Rejected(rejected)) => return Ok(Err(rejected)),
            Err(Failure::Exec(error)) => return Err(error),
        }
    }
    Ok(Ok(checking.checked))
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

struct Checking<'a> {
    job: &'a Job,
    inputs: JobInputs,
    storage: &'a dyn Storage,
    sample: RangeSample,
    cancel: &'a CancelToken,
    /// The number of random numbers that were drawn.
    drawn: u64,
    /// Which parts of the blocks of the present table are read.
    reads: Reads,
    /// The sequence numbers that the present table may have.
    seqs: std::ops::RangeInclusive<u64>,
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
    len: u64,
}

impl Checking<'_> {
    /// A number below `bound` that follows from the seed and the number of calls.
    fn draw(&mut self, seed: u64, bound: u64) -> u64 {
        self.drawn += 1;
        let at = [seed, self.drawn].map(u64::to_le_bytes).concat();
        hash(&at) % bound.max(1)
    }

    /// Compares places of one table, or of a subjob without tables. The table or the subjob is
    /// responsible for `range`.
    fn unit(&mut self, range: KeyBounds, record: Option<&OutputTable>) -> Result<(), Failure> {
        let table = match record {
            Some(record) => {
                let file = self
                    .storage
                    .open_finished(&record.name)
                    .map_err(of_output)?;
                Some(InputTable::open(file).map_err(of_output)?)
            }
            None => None,
        };
        let table = table.as_ref().filter(|table| table.block_count() > 0);
        let name = record.map_or("none of the subjob", |record| &record.name);
        self.reads = match (record, table) {
            (Some(_), Some(table)) if self.has_large_values(table) => Reads::Columns,
            _ => Reads::All,
        };
        self.seqs = record.map_or(0..=u64::MAX, |record| record.min_seq..=record.max_seq);
        if let (Some(record), Some(table)) = (record, table) {
            self.check_ends(record, table)?;
        }
        for place in self.places(&range, table) {
            if self.cancel.is_cancelled() {
                return Err(ExecError::Cancelled.into());
            }
            let entries_before = self.checked.entries;
            let compared = self.compare(&range, name, table, &place)?;
            if self.reads == Reads::Columns && compared.has_small_values() {
                // The values of this place are not large, whatever the properties say.
                self.checked.entries = entries_before;
                self.reads = Reads::All;
                self.compare(&range, name, table, &place)?;
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

    /// Compares one place of the table called `name` with the inputs. Returns what was compared.
    fn compare(
        &mut self,
        range: &KeyBounds,
        name: &str,
        table: Option<&InputTable>,
        place: &Place,
    ) -> Result<Compared, Failure> {
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
                            len: len as u64,
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
                    self.compare_values(name, table, pair)?;
                    return Ok(compared);
                }
            }
            merge.advance()?;
        }
        self.checked.bytes += merge.take_counts().2;
        found.end(name)?;
        self.compare_values(name, table, pair)?;
        Ok(compared)
    }

    /// A number below `bound`, drawn from the seed of the sample.
    fn draw_of(&mut self, bound: u64) -> u64 {
        match self.sample {
            RangeSample::Drawn { seed, .. } => self.draw(seed, bound),
            RangeSample::All => 0,
        }
    }

    /// Compares a window of the values of a pair, if there is one.
    fn compare_values(
        &mut self,
        name: &str,
        table: Option<&InputTable>,
        pair: Option<Pair>,
    ) -> Result<(), Failure> {
        let (Some(table), Some(pair)) = (table, pair) else {
            return Ok(());
        };
        let Some(input) = self
            .inputs
            .table(pair.input)
            .map(|table| table.file().clone())
        else {
            return Ok(());
        };
        let len = pair.len.min(WINDOW_BYTES);
        let at = self.draw_of(pair.len - len + 1);
        let (mut found, mut kept) = (vec![0; len as usize], vec![0; len as usize]);
        let read = table.file().read_at(pair.found_at + at, &mut found);
        read.map_err(of_output)?;
        let read = input.read_at(pair.kept_at + at, &mut kept);
        read.map_err(|error| ExecError::from(TableError::from(error)))?;
        self.checked.bytes += 2 * len;
        if found != kept {
            return reject(format!(
                "table {name}: the value of {} differs from that of the inputs, in the {len} bytes \
                 from byte {at} on",
                entry_text(&pair.key, pair.trailer)
            ));
        }
        Ok(())
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
