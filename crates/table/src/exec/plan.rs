//! What a job's subjobs are made of: the plan that every executor works from.
//!
//! A [`JobPlan`] has the open inputs of a job. Its [`SubjobPlan`]s say, before any entry is read,
//! what a subjob reads, what it may drop and where its tables begin: the runs with their inputs and
//! key bounds, the rules with the fragments of all range deletes, the fragments that the tables
//! get, and the layout. The host's executor merges from these plans, and so do its two halves
//! ([`super::planner`] and `rebuild.rs`). An executor that computes elsewhere uses the same plans
//! and reports damage with the same checks ([`check_block`]), so that its tables and its errors are
//! those of the host.
//!
//! A subjob may be worked on in *pieces*, key ranges that follow each other
//! ([`SubjobPlan::runs_in`], [`JobPlan::piece`]). Only the inputs are restricted to a piece. Range
//! deletes, fragments, rules, bounds and layout are those of the whole subjob, because its tables
//! are.
//!
//! Invariants:
//! - Each input of a plan has keys within its bounds, according to its first and last key.
//! - The inputs of a run are in the order of their keys.
//! - All keys that are read begin with the prefix of the plan, or their input is damaged. A piece
//!   has the prefix of its subjob.
//!
//! Threading: a [`JobPlan`] is immutable and shared by the tasks of a job. A [`SubjobPlan`] has one
//! owner.

use std::ops::Range;
use std::sync::Arc;

use super::inputs::JobInputs;
use super::part::Point;
use super::{ExecContext, ExecError, StreamSource};
use crate::block::Decoded;
use crate::error::{Damage, TableError};
use crate::job::outcome::Counters;
use crate::job::{Job, KeyBounds};
use crate::layout::{Layout, LayoutState};
use crate::merge::input_run::{Reads, check_prefix, check_trailers, decode_block};
use crate::merge::table::InputTable;
use crate::retain::{RangeDelete, Retain, Stripes, fragment};

/// Where the entries of an input come from.
#[derive(Clone)]
pub enum Origin {
    /// A table.
    Table(Arc<InputTable>),
    /// A stream.
    Stream(Arc<dyn StreamSource>),
}

/// An input of a run, restricted to the keys that are read.
#[derive(Clone)]
pub struct PlannedInput {
    /// The number of the input in the job.
    pub number: u32,
    /// The input's name, for errors.
    pub name: String,
    /// Where its entries come from.
    pub origin: Origin,
    /// The key range that is read.
    pub bounds: KeyBounds,
    /// The smallest and the largest of its sequence numbers.
    pub seqs: (u64, u64),
    /// The sequence number that replaces those of all its entries, if the job has one for it.
    pub seq_override: Option<u64>,
    /// A common prefix of all keys that the subjob reads.
    pub prefix: Arc<[u8]>,
}

impl PlannedInput {
    /// The open table, unless the input is a stream.
    pub fn table(&self) -> Option<&Arc<InputTable>> {
        match &self.origin {
            Origin::Table(table) => Some(table),
            Origin::Stream(_) => None,
        }
    }

    /// The blocks of the table that are read, which are those that can have keys within the bounds.
    /// Empty for a stream.
    pub fn blocks(&self) -> Range<usize> {
        self.table().map_or(0..0, |t| t.blocks_of(&self.bounds))
    }

    /// The same input, restricted to `keys`. `None` if it has no keys there.
    pub fn within(&self, keys: &KeyBounds) -> Option<PlannedInput> {
        let bounds = self.bounds.intersect(keys);
        let has_keys = self.table().is_none_or(|table| table.overlaps(&bounds));
        (has_keys && !bounds.is_empty()).then(|| PlannedInput {
            bounds,
            ..self.clone()
        })
    }

    /// The error of a merge that finds that an entry with this trailer does not come after the one
    /// before it, although the checksum of its block is right.
    pub fn disorder(&self, trailer: u64) -> ExecError {
        disorder(&self.name, trailer)
    }
}

/// The error for an entry with this trailer that is out of order in the input `name`.
#[cold]
pub(crate) fn disorder(name: &str, trailer: u64) -> ExecError {
    let damage = Damage::new("order of an input's entries", 0, 0, trailer >> 8);
    ExecError::Failed(damage.in_file(name, 0))
}

/// Carries out the checks that the host's merge makes when it loads a block of an input, and
/// returns its error if one of them fails. `stored` are the stored bytes of the block, and `verify`
/// says whether its checksums are verified ([`crate::job::FormatOptions::verify`]). An executor
/// that finds anything wrong with a block calls this, to fail with the error that the host's merge
/// has. Of several damaged blocks, the merge names the one that it loads first.
///
/// # Errors
/// `Failed` if the block is damaged or needs what this build does not have, `Declined` if it has
/// entries of a reserved kind. `Failed` with a `Misuse` if the input is not a table, does not have
/// the block, or if `stored` does not have its length.
pub fn check_block(
    input: &PlannedInput,
    block: usize,
    stored: &[u8],
    verify: bool,
) -> Result<(), ExecError> {
    let misuse = |what| Err(TableError::Misuse(what).into());
    let Some(table) = input.table().filter(|t| block < t.block_count()) else {
        return misuse("only blocks that an input table has can be checked");
    };
    let place = table.place(block);
    if stored.len() as u64 != place.stored_bytes() {
        return misuse("the bytes of a block do not have its length");
    }
    let (mut scratch, mut entries) = (Vec::new(), Decoded::default());
    let reads = Reads::All;
    decode_block(
        table,
        place,
        stored,
        reads,
        verify,
        &mut scratch,
        &mut entries,
    )?;
    check_trailers(input, &mut entries.trailers)?;
    check_prefix(input, &entries)
}

/// A subjob before its first entry.
pub struct SubjobPlan<'a> {
    /// The number of the subjob.
    pub subjob: u32,
    /// Its key range. The outermost tables extend to these bounds.
    pub bounds: KeyBounds,
    /// The counts of what was read and dropped before the point at which the subjob begins. They
    /// contain the range deletes of the subjob and the fragments that are dropped.
    pub counters: Counters,
    /// The runs that are merged, in the order of their numbers in the job, each with its inputs in
    /// the order of their keys. Of two equal internal keys, which no two inputs should have, that
    /// of the earlier run comes first.
    pub runs: Vec<Vec<PlannedInput>>,
    /// A common prefix of all keys that are read.
    pub prefix: Arc<[u8]>,
    /// Decides which entries are kept.
    pub retain: Retain,
    /// The range deletes that the subjob's tables get, in the order of the format.
    pub surviving: Vec<RangeDelete>,
    /// Says where tables begin, from the first entry that is read.
    pub layout: Layout<'a>,
    /// The state of the layout at the first entry, if the subjob continues after finished tables.
    /// Without it, the layout begins with empty sums.
    pub continues_at: Option<LayoutState>,
}

impl SubjobPlan<'_> {
    /// The runs, restricted to `keys`. Runs without keys there are left out.
    pub fn runs_in(&self, keys: &KeyBounds) -> Vec<Vec<PlannedInput>> {
        let within = |run: &Vec<PlannedInput>| -> Vec<PlannedInput> {
            run.iter().filter_map(|input| input.within(keys)).collect()
        };
        let runs = self.runs.iter().map(within);
        runs.filter(|run| !run.is_empty()).collect()
    }

    /// The bytes of the blocks that are read, as stored. Streams count nothing.
    pub fn stored_bytes(&self) -> u64 {
        let inputs = self.runs.iter().flatten();
        let bytes = |input: &PlannedInput| input.table().map(|t| t.stored_bytes(&input.bounds));
        inputs.filter_map(bytes).fold(0, u64::saturating_add)
    }
}

/// The open inputs of a job, from which its subjobs are planned. See the module.
pub struct JobPlan {
    inputs: JobInputs,
}

impl JobPlan {
    /// Opens the inputs of a job through the context, each once: footer, index, range deletes and
    /// properties of every table are read and verified.
    ///
    /// # Errors
    /// `Declined` if the job is malformed or has an input of an unknown kind. `Cancelled` if the
    /// context says so. Others if an input cannot be opened or is not the one that the job names.
    pub fn open(job: &Job, ctx: &ExecContext) -> Result<JobPlan, ExecError> {
        job.check().map_err(ExecError::declined)?;
        Ok(JobPlan {
            inputs: JobInputs::open(job, &*ctx.inputs, &ctx.cancel)?,
        })
    }

    /// The open table of an input, if it is one and has keys of the job.
    pub fn table(&self, input: usize) -> Option<&Arc<InputTable>> {
        self.inputs.table(input)
    }

    /// Whether all inputs are tables.
    pub fn are_tables(&self) -> bool {
        self.inputs.are_tables()
    }

    /// The bytes of the blocks that a merge of this key range reads, according to the indexes.
    /// Streams count nothing, because their size is not known.
    pub fn table_bytes(&self, job: &Job, bounds: &KeyBounds) -> u64 {
        self.inputs.table_bytes(job, bounds)
    }

    /// Plans a subjob that continues at `next`, or returns `None` if it is complete. `job` must be
    /// the job with which the plan was opened. This reads nothing but the range deletes of streams.
    ///
    /// # Errors
    /// `Declined` if the job does not have the subjob. Others if an input is wrong.
    pub fn subjob<'a>(
        &self,
        job: &'a Job,
        subjob: usize,
        next: &Point,
    ) -> Result<Option<SubjobPlan<'a>>, ExecError> {
        if subjob >= job.subjobs() {
            return Err(ExecError::declined("the job does not have this subjob"));
        }
        let bounds = job.subjob_bounds(subjob);
        let (continues_at, mut counters) = match next {
            Point::Start => (None, Counters::default()),
            Point::Table {
                layout, counters, ..
            } => (Some(layout), *counters),
            Point::End(_) => return Ok(None),
        };
        let first_key = continues_at.map(|layout| &layout.first_key[..]);
        let restricted = self.inputs.restrict(job, &bounds, first_key)?;
        let (runs, range_deletes, prefix) = restricted.into_parts();
        counters.range_deletes_read = range_deletes.len() as u64;
        let stripes = Stripes::new(&job.snapshots, job.published);
        let fragments = fragment(
            &range_deletes,
            &stripes,
            &bounds.start,
            bounds.end.as_deref(),
        );
        drop(range_deletes);
        let retain = Retain::new(job.rules, stripes, &job.older, fragments);
        let (surviving, dropped) = retain.surviving_fragments();
        counters.fragments_dropped = dropped;
        let soft_cuts = job.subjob_soft_cuts(&bounds);
        let layout = match continues_at {
            None => Layout::new(job.limits.layout, soft_cuts),
            Some(state) => Layout::resume(job.limits.layout, soft_cuts, state),
        };
        Ok(Some(SubjobPlan {
            subjob: subjob as u32,
            bounds,
            counters,
            runs,
            prefix,
            retain,
            surviving,
            layout,
            continues_at: continues_at.cloned(),
        }))
    }

    /// As [`JobPlan::subjob`], with inputs restricted to `keys`, which is a piece of the subjob.
    /// Everything else is that of the whole subjob. In particular, layout and counters are those at
    /// `next`: whoever works on pieces takes them from one piece to the next.
    ///
    /// # Errors
    /// As [`JobPlan::subjob`].
    pub fn piece<'a>(
        &self,
        job: &'a Job,
        subjob: usize,
        next: &Point,
        keys: &KeyBounds,
    ) -> Result<Option<SubjobPlan<'a>>, ExecError> {
        let plan = self.subjob(job, subjob, next)?;
        Ok(plan.map(|plan| SubjobPlan {
            runs: plan.runs_in(keys),
            ..plan
        }))
    }
}
