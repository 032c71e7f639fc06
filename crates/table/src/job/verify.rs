//! Verifying an outcome before it is installed: structural checks without I/O, then the tables
//! themselves.
//!
//! [`verify_outcome`] reads nothing and is called for every outcome. [`verify_tables`] opens the
//! tables that the outcome names and reads a [`Sample`] of their blocks back. With [`Sample::All`]
//! it reads every entry in order and computes the layout again. [`verify_stream`] does the same for
//! a job whose inputs are streams, such as a flush, and compares what it reads with the streams.
//! That finds what no check of the tables alone can find: an entry that was encoded wrongly,
//! swapped with another, or left out together with its count. `tests/job_lies.rs` shows what each
//! of them finds.
//!
//! [`super::ranges::verify_ranges`] finds the same for jobs that merge tables.
//!
//! None of them can see whether the tables are synced, which only the owner of the storage knows
//! (see [`Synced`]).
//!
//! Threading: pure functions, except that they read tables.

use std::collections::BTreeSet;
use std::fmt;

use siltstone_storage::{Epoch, Storage, StorageError, StorageErrorKind};

use super::blocks::TableBlocks;
use super::contents::Contents;
use super::fetched::{FETCH_BYTES, Fetched};
use super::outcome::{Outcome, OutputTable};
use super::{Hex, Job, KeyBounds};
use crate::error::TableError;
use crate::exec::{CancelToken, ExecError, StreamSource};
use crate::key::{ENTRY_OVERHEAD_BYTES, hash};
use crate::layout::Layout;
use crate::limits::MAX_TABLE_COUNT;
use crate::reader::{ReaderOptions, TableReader};
use crate::retain::{KeyRange, RangeEnd};

/// The reason why an outcome is not installed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejected {
    /// A description of the violated rule.
    pub reason: String,
}

impl fmt::Display for Rejected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "outcome rejected: {}", self.reason)
    }
}

impl std::error::Error for Rejected {}

pub(super) fn reject<T>(reason: String) -> Result<T, Rejected> {
    Err(Rejected { reason })
}

/// How much of the tables is read back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sample {
    /// Only footer, index, range deletes and properties.
    None,
    /// This many blocks of each table, spread evenly, including the first and the last one.
    Blocks(usize),
    /// At most this many blocks of each table: the first, the last, and others drawn from the seed.
    Drawn {
        /// The number of blocks of each table.
        blocks: usize,
        /// Different seeds select different blocks.
        seed: u64,
    },
    /// A share of the blocks of each table, at least one and at most `most`, drawn from the seed.
    Share {
        /// The share, in thousandths.
        per_mille: u32,
        /// The most blocks of a table.
        most: usize,
        /// Different seeds select different blocks.
        seed: u64,
    },
    /// Everything. Digests, counts and the starts of tables are computed again.
    All,
}

/// The block that draw number `i` selects in table number `table`, which has `n` blocks.
fn drawn(seed: u64, table: usize, i: usize, n: usize) -> usize {
    let at = [seed, table as u64, i as u64].map(u64::to_le_bytes);
    (hash(&at.concat()) % n as u64) as usize
}

impl Sample {
    /// The blocks to read of table number `table`, which has `n` blocks, in ascending order.
    fn choose(self, table: usize, n: usize) -> Vec<usize> {
        match self {
            Sample::None => Vec::new(),
            Sample::All => (0..n).collect(),
            Sample::Blocks(count) | Sample::Drawn { blocks: count, .. } if count >= n => {
                (0..n).collect()
            }
            Sample::Blocks(0) | Sample::Drawn { blocks: 0, .. } => Vec::new(),
            Sample::Blocks(1) => vec![n / 2],
            Sample::Blocks(count) => (0..count).map(|i| i * (n - 1) / (count - 1)).collect(),
            Sample::Share {
                per_mille,
                most,
                seed,
            } => {
                let share = n as u64 * u64::from(per_mille) / 1000;
                let count = usize::try_from(share).unwrap_or(most).clamp(1, most.max(1));
                let chosen: BTreeSet<usize> = match count >= n {
                    true => (0..n).collect(),
                    false => (0..count).map(|i| drawn(seed, table, i, n)).collect(),
                };
                chosen.into_iter().collect()
            }
            Sample::Drawn { blocks, seed } => {
                let mut chosen = vec![0, n - 1];
                // There are at least two blocks, because `blocks` is less than their number.
                chosen.truncate(blocks);
                for i in chosen.len()..blocks {
                    chosen.push(drawn(seed, table, i, n));
                }
                chosen.sort_unstable();
                chosen.dedup();
                chosen
            }
        }
    }
}

/// Implemented by the owner of the storage, who knows whether an object (its name and its bytes up
/// to a length) is durable.
pub trait Synced {
    /// Returns whether the object is durable and has this length.
    ///
    /// # Errors
    /// If the storage cannot say. That is no lie of the executor.
    fn is_synced(&self, name: &str, len_bytes: u64) -> Result<bool, StorageError>;
}

/// For storages whose executor is part of this process and keeps promise E1.
pub struct TrustSyncs;

impl Synced for TrustSyncs {
    fn is_synced(&self, _name: &str, _len_bytes: u64) -> Result<bool, StorageError> {
        Ok(true)
    }
}

/// For tables of another process: has the storage sync each of them, so that the answer does not
/// depend on what the executor says. For a table that was synced before, as E1 requires, this costs
/// one call.
pub struct AskStorage<'a> {
    /// The storage of the tables.
    pub storage: &'a dyn Storage,
    /// The writer's lease.
    pub epoch: Epoch,
}

impl Synced for AskStorage<'_> {
    fn is_synced(&self, name: &str, len_bytes: u64) -> Result<bool, StorageError> {
        let synced = self.storage.sync_object(self.epoch, name);
        match synced.and_then(|()| self.storage.open_finished(name)) {
            Ok(file) => Ok(file.len() == len_bytes),
            Err(error) if error.kind == StorageErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }
}

fn end_of(bounds: &KeyBounds) -> RangeEnd {
    bounds
        .end
        .clone()
        .map_or(RangeEnd::Unbounded, RangeEnd::Before)
}

/// Counts of an outcome are below this. Nanoseconds are the largest, and these are two years.
const COUNT_END: u64 = 1 << 56;

/// Checks that an outcome can be one of this job and this attempt.
///
/// # Errors
/// The first violated rule.
pub fn verify_outcome(job: &Job, outcome: &Outcome) -> Result<(), Rejected> {
    if outcome.output != job.output {
        return reject(format!(
            "attempt {} was expected, not {}",
            job.output.text(),
            outcome.output.text()
        ));
    }
    if outcome.job != job.identity() {
        return reject(format!(
            "it is of job {:032x}, not of {:032x}",
            outcome.job,
            job.identity()
        ));
    }
    if let Some((log, _)) = outcome.dropped_value_bytes.first() {
        return reject(format!(
            "it drops bytes of value log {log}, but no input refers to one"
        ));
    }
    let min_seq = job
        .inputs
        .iter()
        .map(|i| i.min_seq)
        .min()
        .unwrap_or(u64::MAX);
    let max_seq = job.inputs.iter().map(|i| i.max_seq).max().unwrap_or(0);
    let (mut subjob, mut number) = (0, 0);
    let (mut entries, mut file_bytes) = (0u64, 0u64);
    for (i, table) in outcome.tables.iter().enumerate() {
        let previous = i.checked_sub(1).map(|p| &outcome.tables[p]);
        if table.subjob as usize >= job.subjobs() || table.subjob < subjob {
            return reject(format!(
                "table {} claims subjob {} after {subjob}",
                table.name, table.subjob
            ));
        }
        if table.subjob != subjob {
            (subjob, number) = (table.subjob, 0);
        }
        let name = job.table_name(subjob, number);
        if table.name != name {
            return reject(format!("table {i} is called {}, not {name}", table.name));
        }
        let same_subjob = previous.filter(|p| p.subjob == subjob);
        check_table(job, table, same_subjob, (min_seq, max_seq))?;
        // Only the tables themselves know their cuts. Here it can be checked that the range of a
        // table ends where the next one's begins.
        let bounds = job.subjob_bounds(subjob as usize);
        let next = outcome.tables.get(i + 1).filter(|n| n.subjob == subjob);
        let right = next.map(|n| n.left_bound.clone()).or(bounds.end);
        if table.right_bound != right {
            return reject(format!(
                "the range of table {name} does not end where the next one begins"
            ));
        }
        number += 1;
        entries = entries.saturating_add(table.entries);
        file_bytes = file_bytes.saturating_add(table.file_bytes);
    }
    let c = &outcome.counters;
    // They are added to counters of the store, which only rise.
    if let Some(count) = c.all().into_iter().find(|count| *count >= COUNT_END) {
        return reject(format!("it has a count of {count}, which no job has"));
    }
    if c.entries_written != entries || c.bytes_written != file_bytes {
        return reject(format!(
            "it counts {} entries and {} bytes written, its tables {entries} and {file_bytes}",
            c.entries_written, c.bytes_written
        ));
    }
    if entries.checked_add(c.dropped()) != Some(c.entries_read) {
        return reject(format!(
            "{} entries read, but {entries} kept and {} dropped",
            c.entries_read,
            c.dropped()
        ));
    }
    use crate::retain::DropRules;
    for (rule, count, what) in [
        (DropRules::SHADOWED, c.shadowed, "shadowed entries"),
        (DropRules::TOMBSTONES, c.tombstones, "tombstones"),
        (DropRules::COVERED, c.covered, "covered entries"),
        (DropRules::FRAGMENTS, c.fragments_dropped, "range deletes"),
    ] {
        if count > 0 && !job.rules.has(rule) {
            return reject(format!(
                "{count} {what} were dropped, which the job does not allow"
            ));
        }
    }
    Ok(())
}

/// Checks the record of one table against the job and the previous table of its subjob.
fn check_table(
    job: &Job,
    t: &OutputTable,
    previous: Option<&OutputTable>,
    seqs: (u64, u64),
) -> Result<(), Rejected> {
    let name = &t.name;
    let bounds = job.subjob_bounds(t.subjob as usize);
    let least = match t.entries.checked_mul(ENTRY_OVERHEAD_BYTES) {
        Some(least) => least,
        None => return reject(format!("table {name}: {} entries", t.entries)),
    };
    // The manifest takes no larger counts.
    let counts = [t.raw_bytes, t.file_bytes, t.entries, t.fragments];
    if counts.iter().any(|count| *count > MAX_TABLE_COUNT) {
        return reject(format!(
            "table {name} has a count above {MAX_TABLE_COUNT}: {} raw bytes, {} bytes, {} entries \
             and {} range deletes",
            t.raw_bytes, t.file_bytes, t.entries, t.fragments
        ));
    }
    if t.raw_bytes < least || (t.entries == 0 && t.raw_bytes > 0) || t.file_bytes == 0 {
        return reject(format!(
            "table {name}: {} raw bytes for {} entries",
            t.raw_bytes, t.entries
        ));
    }
    if t.puts.checked_add(t.deletes) != Some(t.entries) {
        return reject(format!(
            "table {name}: {} entries, but {} puts and {} deletes",
            t.entries, t.puts, t.deletes
        ));
    }
    if t.entries == 0 && t.fragments == 0 {
        return reject(format!("table {name} is empty"));
    }
    if t.entries == 0 && previous.is_some() {
        return reject(format!(
            "table {name} has no entries, but is not alone in its subjob"
        ));
    }
    if t.min_seq > t.max_seq || t.min_seq < seqs.0 || t.max_seq > seqs.1 {
        return reject(format!(
            "table {name}: sequence numbers {}..={} are not within the inputs' {}..={}",
            t.min_seq, t.max_seq, seqs.0, seqs.1
        ));
    }
    let range = KeyBounds {
        start: t.left_bound.clone(),
        end: t.right_bound.clone(),
    };
    let range_end = end_of(&range);
    if range.is_empty() || t.left_bound < bounds.start || !end_of(&bounds).at_least(&range_end) {
        return reject(format!(
            "table {name}: its range from {} leaves its subjob's",
            Hex(&t.left_bound)
        ));
    }
    match previous {
        None if t.left_bound != bounds.start => {
            return reject(format!(
                "table {name} is its subjob's first, but does not begin at its bound"
            ));
        }
        Some(p) if t.left_bound <= p.left_bound => {
            return reject(format!("table {name} does not come after {}", p.name));
        }
        _ => {}
    }
    match &t.keys {
        None if t.entries > 0 => {
            return reject(format!(
                "table {name} has entries, but no first and last key"
            ));
        }
        Some(_) if t.entries == 0 => {
            return reject(format!(
                "table {name} has no entries, but a first and last key"
            ));
        }
        Some((first, last)) if first > last || !range.contains(first) || !range.contains(last) => {
            return reject(format!(
                "table {name}: keys {} to {} are not within its range from {}",
                Hex(first),
                Hex(last),
                Hex(&t.left_bound)
            ));
        }
        _ => {}
    }
    // A left bound is the first key or a soft cut, and no cut lies between them.
    if let (Some((first, _)), Some(_)) = (&t.keys, previous)
        && t.left_bound != *first
    {
        let below = job.soft_cuts.partition_point(|c| c <= first).checked_sub(1);
        if below.map(|i| &job.soft_cuts[i]) != Some(&t.left_bound) {
            return reject(format!(
                "table {name}: its left bound {} is not a cut below its keys",
                Hex(&t.left_bound)
            ));
        }
    }
    let keys = t
        .keys
        .as_ref()
        .map(|(first, last)| KeyRange::inclusive(first, last));
    let exact = keys.as_ref().is_some_and(|k| *k == t.bounds);
    let covers = keys.is_none_or(|k| t.bounds.start <= k.start && t.bounds.end.at_least(&k.end));
    if !covers || (t.fragments == 0 && !exact) {
        return reject(format!(
            "table {name}: its bounds are not those of its contents"
        ));
    }
    if t.bounds.start < t.left_bound || !range_end.at_least(&t.bounds.end) {
        return reject(format!("table {name}: its bounds reach beyond its range"));
    }
    Ok(())
}

/// Opens the outcome's tables and checks them against the outcome: that they are synced, their
/// lengths, footers, digests, properties and range deletes, and a sample of their blocks. Call
/// [`verify_outcome`] first.
///
/// # Errors
/// `Ok(Err(..))` if a rule is violated, including damage. `Err` if the storage itself fails.
pub fn verify_tables(
    job: &Job,
    outcome: &Outcome,
    storage: &dyn Storage,
    synced: &dyn Synced,
    sample: Sample,
) -> Result<Result<(), Rejected>, TableError> {
    match verify_tables_until(job, outcome, storage, synced, sample, &CancelToken::new()) {
        Ok(verified) => Ok(verified),
        Err(ExecError::Failed(error)) => Err(error),
        Err(_) => Err(TableError::Misuse("a private cancel token was cancelled")),
    }
}

/// As [`verify_tables`], but ends if `cancel` is cancelled, which is checked before each block.
///
/// # Errors
/// As [`verify_tables`], and `Err` with [`ExecError::Cancelled`].
pub fn verify_tables_until(
    job: &Job,
    outcome: &Outcome,
    storage: &dyn Storage,
    synced: &dyn Synced,
    sample: Sample,
    cancel: &CancelToken,
) -> Result<Result<(), Rejected>, ExecError> {
    for record in &outcome.tables {
        let is_synced = synced.is_synced(&record.name, record.file_bytes);
        if !is_synced.map_err(TableError::from)? {
            return Ok(reject(format!("table {} is not synced", record.name)));
        }
    }
    let reading = Reading {
        job,
        storage,
        sample,
        cancel,
    };
    match reading.verify(outcome, None) {
        Ok(()) => Ok(Ok(())),
        Err(Failure::Rejected(rejected)) => Ok(Err(rejected)),
        Err(Failure::Table(error)) => Err(error.into()),
        Err(Failure::Cancelled) => Err(ExecError::Cancelled),
    }
}

/// As [`verify_tables`], for a job whose only input is `stream`. Compares what is read back with
/// what the job's drop rules keep of the stream: the range deletes of all tables, and for each
/// block in the sample the key, number, kind and value of every entry. No entry may be missing in a
/// block, between two neighbouring blocks of the sample, or (if these are in the sample) before the
/// first block of the tables or after the last one. The filter, the index and both searches of a
/// block must lead to each entry.
///
/// # Errors
/// `Ok(Err(..))` if a rule is violated, including damage. `Err` if the storage or the stream fails,
/// or if `cancel` was cancelled, which is checked before each block.
pub fn verify_stream(
    job: &Job,
    outcome: &Outcome,
    stream: &dyn StreamSource,
    storage: &dyn Storage,
    sample: Sample,
    cancel: &CancelToken,
) -> Result<Result<(), Rejected>, ExecError> {
    let reading = Reading {
        job,
        storage,
        sample,
        cancel,
    };
    match reading.verify(outcome, Some(stream)) {
        Ok(()) => Ok(Ok(())),
        Err(Failure::Rejected(rejected)) => Ok(Err(rejected)),
        Err(Failure::Table(error)) => Err(error.into()),
        Err(Failure::Cancelled) => Err(ExecError::Cancelled),
    }
}

/// Why a table is not accepted.
pub(super) enum Failure {
    /// It is not a table that the job makes.
    Rejected(Rejected),
    /// The storage failed, or a part of the table is damaged.
    Table(TableError),
    /// The check was cancelled.
    Cancelled,
}

impl From<Rejected> for Failure {
    fn from(rejected: Rejected) -> Failure {
        Failure::Rejected(rejected)
    }
}

impl<E: Into<TableError>> From<E> for Failure {
    fn from(error: E) -> Failure {
        Failure::Table(error.into())
    }
}

/// The parameters for reading the tables of an outcome.
struct Reading<'a> {
    job: &'a Job,
    storage: &'a dyn Storage,
    sample: Sample,
    cancel: &'a CancelToken,
}

impl Reading<'_> {
    /// Checks the tables of each subjob. `Failure::Table` is then an error of the storage.
    fn verify(&self, outcome: &Outcome, stream: Option<&dyn StreamSource>) -> Result<(), Failure> {
        for subjob in 0..self.job.subjobs() {
            let of_subjob = |t: &&OutputTable| t.subjob as usize == subjob;
            let tables: Vec<&OutputTable> = outcome.tables.iter().filter(of_subjob).collect();
            self.subjob(subjob, &tables, stream)
                .map_err(|failure| match failure {
                    Failure::Table(TableError::Storage(error))
                        if error.kind != StorageErrorKind::NotFound =>
                    {
                        Failure::Table(error.into())
                    }
                    Failure::Table(damage) => Failure::Rejected(Rejected {
                        reason: damage.to_string(),
                    }),
                    failure => failure,
                })?;
        }
        Ok(())
    }

    fn subjob(
        &self,
        subjob: usize,
        tables: &[&OutputTable],
        stream: Option<&dyn StreamSource>,
    ) -> Result<(), Failure> {
        // The layout and the contents of each subjob are computed from its own entries.
        let bounds = self.job.subjob_bounds(subjob);
        let soft_cuts = self.job.subjob_soft_cuts(&bounds);
        let mut layout = Layout::new(self.job.limits.layout, soft_cuts);
        let mut contents = match stream.filter(|_| self.sample != Sample::None) {
            Some(stream) => Some(Contents::new(self.job, subjob, stream)?),
            None => None,
        };
        for (number, record) in tables.iter().enumerate() {
            self.table(record, number, &mut layout, contents.as_mut())?;
        }
        contents.map_or(Ok(()), |contents| contents.end(tables.len()))
    }
}

/// Compares what an outcome says about a table with the table.
pub(super) fn expect<T: PartialEq + fmt::Debug>(
    name: &str,
    what: &str,
    record: T,
    table: T,
) -> Result<(), Rejected> {
    if record != table {
        return reject(format!(
            "table {name}: {what} is {record:?} by the outcome, {table:?} by the table"
        ));
    }
    Ok(())
}

impl Reading<'_> {
    /// Checks one table, number `number` of its subjob.
    fn table(
        &self,
        record: &OutputTable,
        number: usize,
        layout: &mut Layout<'_>,
        mut contents: Option<&mut Contents<'_>>,
    ) -> Result<(), Failure> {
        let (job, sample, name) = (self.job, self.sample, record.name.as_str());
        let file = self.storage.open_finished(name)?;
        expect(name, "length in bytes", record.file_bytes, file.len())?;
        let options = ReaderOptions {
            map: false,
            ..ReaderOptions::default()
        };
        let file = Fetched::of(file);
        let table = TableReader::open(file.clone(), options)?;
        let fragments = table.range_deletes().fragments();
        check_record(job, record, &table)?;
        if let Some(contents) = &contents {
            let range = (&record.left_bound[..], record.right_bound.as_deref());
            contents.begin_table(name, range, fragments)?;
        }
        let layout = (sample == Sample::All).then_some(layout);
        let mut blocks = TableBlocks::new(job, record, &table, layout);
        let n = table.index().len();
        let chosen = sample.choose(number, n);
        let mut fetched_to = 0;
        for (at, &block) in chosen.iter().enumerate() {
            if self.cancel.is_cancelled() {
                return Err(Failure::Cancelled);
            }
            if at == fetched_to {
                let mut left = FETCH_BYTES;
                let place = |block: &usize| table.index().place(*block);
                let fits = |block: &&usize| {
                    let rest = left.checked_sub(place(block).stored_bytes());
                    left = rest.unwrap_or(0);
                    rest.is_some()
                };
                let next: Vec<_> = chosen[at..].iter().take_while(fits).map(place).collect();
                file.fetch(next.iter().map(|p| (p.start, p.stored_bytes())))?;
                fetched_to += next.len().max(1);
            }
            blocks.check(block, number, contents.as_deref_mut())?;
        }
        if let Some(contents) = contents {
            contents.end_table(number, n);
        }
        if sample == Sample::All {
            blocks.check_sums()?;
        }
        Ok(())
    }
}

/// Checks that the sections of a table match what the outcome says about it.
fn check_record(job: &Job, record: &OutputTable, table: &TableReader) -> Result<(), Rejected> {
    let (name, p) = (record.name.as_str(), table.properties());
    expect(name, "digest", record.digest, table.footer().digest)?;
    expect(name, "entry count", record.entries, p.entries)?;
    expect(name, "put count", record.puts, p.puts)?;
    expect(name, "delete count", record.deletes, p.deletes)?;
    expect(
        name,
        "range delete count",
        record.fragments,
        table.range_deletes().fragments().len() as u64,
    )?;
    expect(name, "raw bytes", record.raw_bytes, p.raw_bytes())?;
    let keys = p.smallest_key.clone().zip(p.largest_key.clone());
    expect(name, "first and last key", &record.keys, &keys)?;
    expect(
        name,
        "left bound",
        Some(record.left_bound.as_slice()),
        p.left_bound(),
    )?;
    expect(
        name,
        "sequence range",
        (record.min_seq, record.max_seq),
        (p.smallest_seq, p.largest_seq),
    )?;
    expect(name, "codec", job.format.codec, p.codec)?;
    expect(
        name,
        "filter bits per key",
        job.format.bits_per_key,
        p.bits_per_key,
    )?;
    expect(
        name,
        "block size",
        job.limits.block_bytes,
        p.block_size_bytes,
    )?;
    let deletes = table.range_deletes().range();
    expect(
        name,
        "bounds",
        Some(&record.bounds),
        OutputTable::bounds_of(keys.as_ref(), deletes).as_ref(),
    )?;
    Ok(())
}
