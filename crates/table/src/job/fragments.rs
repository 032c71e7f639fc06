//! Computes from a job's inputs the range deletes that its tables must have.
//!
//! `Fragments` are those of one subjob. A range delete that is too wide deletes entries that were
//! not deleted, and one that is too narrow or missing brings deleted entries back, so they are
//! compared one by one and not by count. [`verify_range_deletes`] compares the tables of an
//! executor outside this process with the range deletes of all inputs.
//!
//! Threading: pure functions, except that they read tables.

use std::cmp::Ordering;

use siltstone_storage::Storage;

use super::outcome::{Outcome, OutputTable};
use super::verify::Rejected;
use super::{Hex, InputKind, Job, KeyBounds};
use crate::error::TableError;
use crate::exec::{Inputs, input_range_deletes};
use crate::merge::table::InputTable;
use crate::retain::{RangeDelete, Retain, Stripes, fragment};

/// The range deletes that the tables of a subjob must contain together.
pub(super) struct Fragments(Vec<RangeDelete>);

impl Fragments {
    /// The range deletes that the drop rules keep of `range_deletes` within `bounds`, and the rules
    /// for the entries there.
    pub fn of(job: &Job, bounds: &KeyBounds, range_deletes: &[RangeDelete]) -> (Fragments, Retain) {
        let stripes = Stripes::new(&job.snapshots, job.published);
        let all = fragment(
            range_deletes,
            &stripes,
            &bounds.start,
            bounds.end.as_deref(),
        );
        let retain = Retain::new(job.rules, stripes, &job.older, all);
        (Fragments(retain.surviving_fragments().0), retain)
    }

    /// Compares those between `start` and `end` with the range deletes `found` in a table that is
    /// responsible for this range.
    pub fn compare(
        &self,
        name: &str,
        (start, end): (&[u8], Option<&[u8]>),
        found: &[RangeDelete],
    ) -> Result<(), Rejected> {
        let overlap = |f: &&RangeDelete| {
            f.end.as_slice() > start && end.is_none_or(|end| f.start.as_slice() < end)
        };
        let mut expected: Vec<RangeDelete> = self
            .0
            .iter()
            .filter(overlap)
            .map(|f| RangeDelete {
                start: f.start.as_slice().max(start).to_vec(),
                end: match end {
                    Some(end) => f.end.as_slice().min(end).to_vec(),
                    None => f.end.clone(),
                },
                seq: f.seq,
            })
            .collect();
        let mut found = found.to_vec();
        expected.sort();
        found.sort();
        let differs = |(e, f): &(&RangeDelete, &RangeDelete)| e != f;
        let different = expected.iter().zip(&found).find(differs);
        let reason = match (different, expected.len().cmp(&found.len())) {
            (Some((expected, found)), _) => {
                format!("has {} in place of {}", text(found), text(expected))
            }
            (None, Ordering::Equal) => return Ok(()),
            (None, Ordering::Less) => {
                let extra = text(&found[expected.len()]);
                format!("has {extra}, which was never written")
            }
            (None, Ordering::Greater) => format!("lacks {}", text(&expected[found.len()])),
        };
        Err(Rejected {
            reason: format!("table {name} {reason}"),
        })
    }

    /// Ends the subjob, which has `tables` tables. Their ranges meet and fill its bounds
    /// ([`super::verify::verify_outcome`]), so each range delete was compared unless there is no
    /// table.
    pub fn compare_end(&self, tables: usize) -> Result<(), Rejected> {
        match self.0.first() {
            Some(first) if tables == 0 => Err(Rejected {
                reason: format!("no table has {}", text(first)),
            }),
            _ => Ok(()),
        }
    }
}

fn text(r: &RangeDelete) -> String {
    let (start, end) = (Hex(&r.start), Hex(&r.end));
    format!("the range delete from {start} to {end} at number {}", r.seq)
}

/// Compares the range deletes of the outcome's tables with those that the job keeps of its inputs.
/// Call [`super::verify::verify_tables`] first. This reads the index, the range deletes and the
/// properties of each input and of each table.
///
/// # Errors
/// `Ok(Err(..))` if they differ; `Err` if the storage or an input fails.
pub fn verify_range_deletes(
    job: &Job,
    outcome: &Outcome,
    inputs: &dyn Inputs,
    storage: &dyn Storage,
) -> Result<Result<(), Rejected>, TableError> {
    let mut all = Vec::new();
    for input in &job.inputs {
        let found = match input.kind {
            InputKind::Table => {
                let table = InputTable::open(inputs.table(input.location, &input.name)?)?;
                table.range_deletes().fragments().to_vec()
            }
            InputKind::Stream => inputs
                .stream(input.location, &input.name)?
                .range_deletes()?,
            InputKind::Unknown(_) => Vec::new(),
        };
        all.extend(input_range_deletes(input, &input.clip, found)?);
    }
    for subjob in 0..job.subjobs() {
        let (fragments, _) = Fragments::of(job, &job.subjob_bounds(subjob), &all);
        let of_subjob = |t: &&OutputTable| t.subjob as usize == subjob;
        let mut tables = 0;
        for record in outcome.tables.iter().filter(of_subjob) {
            let table = InputTable::open(storage.open_finished(&record.name)?)?;
            let range = (&record.left_bound[..], record.right_bound.as_deref());
            let found = table.range_deletes().fragments();
            if let Err(rejected) = fragments.compare(&record.name, range, found) {
                return Ok(Err(rejected));
            }
            tables += 1;
        }
        if let Err(rejected) = fragments.compare_end(tables) {
            return Ok(Err(rejected));
        }
    }
    Ok(Ok(()))
}
