//! The inputs of a job, opened once for all of its subjobs.
//!
//! [`JobInputs`] reads the footer, the index, the range deletes and the properties of every input
//! table once, and checks that each is the table that the job names. [`JobInputs::restrict`] then
//! returns what one key range of the job reads from them, without I/O: the runs that are merged,
//! the range deletes, and the common prefix of all keys.
//!
//! Threading: immutable and shared by the tasks of a job.

use std::sync::Arc;

use super::plan::{Origin, PlannedInput};
use super::{CancelToken, ExecError, Inputs};
use crate::error::{Damage, TableError};
use crate::job::{Input, InputKind, Job, KeyBounds};
use crate::key::common_prefix;
use crate::merge::input_run::{InputRun, Reads};
use crate::merge::table::InputTable;
use crate::retain::RangeDelete;

/// The open inputs of a job. See the module.
pub(crate) struct JobInputs {
    /// In the order of the job's inputs. `None` for an input that has no key of the job.
    origins: Vec<Option<Origin>>,
}

/// What a key range of a job reads.
pub(crate) struct Restricted {
    runs: Vec<Vec<PlannedInput>>,
    /// The range deletes of the inputs in this key range, clipped to it.
    pub range_deletes: Vec<RangeDelete>,
    prefix: Arc<[u8]>,
}

/// A common prefix of all keys, computed from first and last keys.
#[derive(Default)]
struct Prefix(Option<Vec<u8>>);

impl Prefix {
    fn include(&mut self, key: &[u8]) {
        match &mut self.0 {
            Some(prefix) => prefix.truncate(common_prefix(prefix, key)),
            None => self.0 = Some(key.to_vec()),
        }
    }
}

/// A range without keys.
fn no_keys() -> KeyBounds {
    KeyBounds {
        start: Vec::new(),
        end: Some(Vec::new()),
    }
}

impl JobInputs {
    /// Opens the inputs that have keys of the job. `cancel` is checked before each of them, because
    /// they may lie behind a slow link.
    pub fn open(
        job: &Job,
        inputs: &dyn Inputs,
        cancel: &CancelToken,
    ) -> Result<JobInputs, ExecError> {
        let open = |input: &Input| -> Result<Option<Origin>, ExecError> {
            if cancel.is_cancelled() {
                return Err(ExecError::Cancelled);
            }
            if input.clip.intersect(&job.bounds).is_empty() {
                return Ok(None);
            }
            Ok(Some(match input.kind {
                InputKind::Table => {
                    let file = inputs.table(input.location, &input.name)?;
                    let table = InputTable::open(file)?;
                    check_identity(input, &table)?;
                    Origin::Table(Arc::new(table))
                }
                InputKind::Stream => Origin::Stream(inputs.stream(input.location, &input.name)?),
                InputKind::Unknown(_) => {
                    return Err(ExecError::declined(
                        "an input has a kind that is not known here",
                    ));
                }
            }))
        };
        Ok(JobInputs {
            origins: job.inputs.iter().map(open).collect::<Result<_, _>>()?,
        })
    }

    /// The open table of an input, if it is one and has keys of the job.
    pub fn table(&self, input: usize) -> Option<&Arc<InputTable>> {
        match self.origins.get(input)? {
            Some(Origin::Table(table)) => Some(table),
            _ => None,
        }
    }

    /// The bytes of the blocks that a merge of this key range reads, according to the indexes.
    /// Streams count nothing, because their size is not known.
    pub fn table_bytes(&self, job: &Job, bounds: &KeyBounds) -> u64 {
        let mut sum = 0u64;
        for (i, input) in job.inputs.iter().enumerate() {
            let clip = input.clip.intersect(bounds);
            if let Some(table) = self.table(i).filter(|_| !clip.is_empty()) {
                sum = sum.saturating_add(table.stored_bytes(&clip));
            }
        }
        sum
    }

    /// Whether all inputs are tables, so that their columns can be read without their values.
    pub fn are_tables(&self) -> bool {
        let is_stream = |origin: &Option<Origin>| matches!(origin, Some(Origin::Stream(_)));
        !self.origins.iter().any(is_stream)
    }

    /// What the key range `bounds` reads. If a subjob continues an earlier attempt, entries before
    /// `first_key` are left out, but range deletes are not.
    pub fn restrict(
        &self,
        job: &Job,
        bounds: &KeyBounds,
        first_key: Option<&[u8]>,
    ) -> Result<Restricted, ExecError> {
        let ahead = KeyBounds {
            start: first_key.unwrap_or(&[]).to_vec(),
            end: None,
        };
        // Runs are sorted by their numbers, so that a job's tables do not depend on the order in
        // which its inputs are listed.
        let mut order: Vec<usize> = (0..job.inputs.len()).collect();
        order.sort_by_key(|i| job.inputs[*i].run);
        let mut runs: Vec<Vec<PlannedInput>> = Vec::new();
        let mut last_run = None;
        let mut range_deletes = Vec::new();
        let mut prefix = Prefix::default();
        for i in order {
            let input = &job.inputs[i];
            let clip = input.clip.intersect(bounds);
            let Some(origin) = self.origins.get(i).and_then(Option::as_ref) else {
                continue;
            };
            if clip.is_empty() {
                continue;
            }
            let mut planned = PlannedInput {
                number: i as u32,
                name: input.name.clone(),
                origin: origin.clone(),
                bounds: clip.intersect(&ahead),
                seqs: (input.min_seq, input.max_seq),
                seq_override: input.seq_override,
                prefix: Arc::default(),
            };
            let found: Vec<RangeDelete>;
            match origin {
                Origin::Table(table) => {
                    let is_read = table.overlaps(&planned.bounds);
                    match table.key_bounds().filter(|_| is_read) {
                        Some((first, last)) => {
                            prefix.include(first);
                            prefix.include(last);
                        }
                        None => planned.bounds = no_keys(),
                    }
                    // A caller may ask for many small ranges, so only range deletes that overlap
                    // are copied.
                    let end = clip.end.as_deref();
                    let overlaps = |r: &&RangeDelete| {
                        r.end > clip.start && end.is_none_or(|end| r.start.as_slice() < end)
                    };
                    let all = table.range_deletes().fragments().iter();
                    found = all.filter(overlaps).cloned().collect();
                }
                Origin::Stream(stream) => {
                    match stream.key_bounds() {
                        Some((first, last)) => {
                            prefix.include(&first);
                            prefix.include(&last);
                        }
                        None => prefix.include(&[]),
                    }
                    found = stream.range_deletes()?;
                }
            }
            range_deletes.extend(input_range_deletes(input, &clip, found)?);
            if planned.bounds.is_empty() {
                continue;
            }
            if last_run == Some(input.run)
                && let Some(run) = runs.last_mut()
            {
                run.push(planned);
            } else {
                runs.push(vec![planned]);
                last_run = Some(input.run);
            }
        }
        let prefix: Arc<[u8]> = prefix.0.unwrap_or_default().into();
        for run in &mut runs {
            sort_run(run)?;
            run.iter_mut().for_each(|i| i.prefix = prefix.clone());
        }
        Ok(Restricted {
            runs,
            range_deletes,
            prefix,
        })
    }
}

/// The runs and their inputs, the range deletes, and the common prefix of all keys.
type Parts = (Vec<Vec<PlannedInput>>, Vec<RangeDelete>, Arc<[u8]>);

impl Restricted {
    /// The runs to merge. Their block checksums are verified if `verify` is set.
    pub fn into_runs(self, verify: bool, reads: Reads) -> Vec<InputRun> {
        merge_runs(self.runs, &self.prefix, verify, reads)
    }

    /// Everything in it.
    pub fn into_parts(self) -> Parts {
        (self.runs, self.range_deletes, self.prefix)
    }
}

/// The runs of a plan, to be merged. All keys begin with `prefix`. Block checksums are verified if
/// `verify` is set.
pub(super) fn merge_runs(
    runs: Vec<Vec<PlannedInput>>,
    prefix: &Arc<[u8]>,
    verify: bool,
    reads: Reads,
) -> Vec<InputRun> {
    let run = |inputs| InputRun::new(inputs, prefix.clone(), verify, reads);
    runs.into_iter().map(run).collect()
}

/// Checks that an open table is the one that the job names.
fn check_identity(input: &Input, table: &InputTable) -> Result<(), ExecError> {
    let damage = |what, expected, found| {
        ExecError::Failed(Damage::new(what, 0, expected, found).in_file(&input.name, 0))
    };
    if input.len_bytes != table.file_bytes() {
        return Err(damage(
            "length of an input table",
            input.len_bytes,
            table.file_bytes(),
        ));
    }
    if input.digest != table.digest() {
        return Err(damage(
            "digest of an input table",
            input.digest,
            table.digest(),
        ));
    }
    Ok(())
}

/// The range deletes `found` in an input as its job sees them: clipped to `clip`, and with the
/// sequence number that the job gives to all entries of the input, if it gives one.
///
/// # Errors
/// `TableError::Corruption` if a number is not in the range that the job states for the input.
pub(crate) fn input_range_deletes(
    input: &Input,
    clip: &KeyBounds,
    found: Vec<RangeDelete>,
) -> Result<Vec<RangeDelete>, TableError> {
    let mut own = Vec::with_capacity(found.len());
    for mut r in found {
        r.start = r.start.max(clip.start.clone());
        if let Some(end) = &clip.end {
            r.end = r.end.min(end.clone());
        }
        r.seq = input.seq_override.unwrap_or(r.seq);
        if r.seq > input.max_seq || r.seq < input.min_seq {
            let what = "sequence number of a range delete";
            let damage = Damage::new(what, 0, input.max_seq, r.seq);
            return Err(damage.in_file(&input.name, 0));
        }
        if r.start < r.end {
            own.push(r);
        }
    }
    Ok(own)
}

/// Sorts the tables of a run by key. A stream must be a run of its own.
fn sort_run(run: &mut [PlannedInput]) -> Result<(), ExecError> {
    if run.len() < 2 {
        return Ok(());
    }
    let first = |input: &PlannedInput| match &input.origin {
        Origin::Table(table) => table.key_bounds().map(|(first, _)| first.to_vec()),
        Origin::Stream(_) => None,
    };
    if run.iter().any(|input| first(input).is_none()) {
        return Err(TableError::Misuse(
            "a stream shares its run number with another input of the job",
        )
        .into());
    }
    run.sort_by_cached_key(|input| (first(input), input.bounds.start.clone()));
    Ok(())
}
