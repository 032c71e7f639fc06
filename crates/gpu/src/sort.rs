//! The phase that merges the runs of a piece.
//!
//! Threading: see `lane`.

use crate::error::Result;
use crate::kernels::{GatherItems, Items, MergePairs};
use crate::lane::{Batch, Work};
use crate::piece::{Found, PieceInput};
use crate::unpack::Unpacked;

/// The number of items that a thread of `merge_pairs` makes: `MERGE_ITEMS` of the kernels.
const MERGE_ITEMS: u64 = 8;

/// The entries within bounds, in the order of the output before anything is dropped.
pub(crate) struct Sorted {
    pub items: Items,
    pub count: u64,
}

fn items(work: &mut Work, count: u64) -> Result<Items> {
    Ok(Items {
        high: work.take(count + 1)?,
        low: work.take(count + 1)?,
        entries: work.take(count + 1)?,
    })
}

/// Merges the runs of the inputs, of which those of one run follow each other. Up to
/// `rank_runs_max` runs are sorted by rank, and more in pairs.
pub(crate) fn sort(
    work: &mut Work,
    inputs: &[PieceInput],
    unpacked: &Unpacked,
    rank_runs_max: usize,
) -> Result<Sorted> {
    let ranges = &unpacked.host_ranges;
    let mut firsts = Vec::with_capacity(inputs.len() + 1);
    let mut bounds = Vec::new();
    let mut count = 0u32;
    for (input, range) in inputs.iter().zip(ranges.chunks(2)) {
        let [from, to] = range else { continue };
        if input.begins_run {
            bounds.push(count);
        }
        firsts.push(count);
        count = count.saturating_add(to.saturating_sub(*from));
    }
    firsts.push(count);
    bounds.push(count);
    let starts: Vec<u32> = inputs.iter().map(|i| u32::from(i.begins_run)).collect();
    let mut batch = Batch::default();
    let firsts = batch.add(&firsts);
    let starts = batch.add(&starts);
    // The bounds of the runs in each round: every second one of the round before.
    let mut rounds = Vec::new();
    let mut runs = bounds.len() - 1;
    let by_rank = runs <= rank_runs_max;
    let mut now = bounds;
    while runs > 1 {
        rounds.push((batch.add(&now), runs));
        if by_rank {
            break;
        }
        let last = now[runs];
        now = now[..runs].iter().copied().step_by(2).collect();
        now.push(last);
        runs = now.len() - 1;
    }
    let batch = work.upload_batch(&batch)?;
    let count = u64::from(count);
    let mut from = items(work, count)?;
    let errors = work.take(1)?;
    work.fill(errors, 0xff)?;
    let args = GatherItems {
        heads_high: unpacked.heads_high,
        heads_low: unpacked.heads_low,
        items: from,
        firsts: firsts.of(batch),
        ranges: unpacked.ranges,
        entries: unpacked.entries,
        run_starts: starts.of(batch),
        errors,
        inputs: inputs.len() as u32,
        unused: 0,
        count,
    };
    work.launch("gather_items", count, &args)?;
    let found = work.download(&[errors.cast()])?;
    Found::new(&found).check_entries()?;
    if rounds.is_empty() {
        return Ok(Sorted { items: from, count });
    }
    let mut to = items(work, count)?;
    for (bounds, runs) in &rounds {
        let args = MergePairs {
            from,
            to,
            bounds: bounds.of(batch),
            entries: unpacked.entries,
            runs: *runs as u32,
            unused: 0,
            count,
        };
        match by_rank {
            true => work.launch("rank_items", count, &args)?,
            false => work.launch("merge_pairs", count.div_ceil(MERGE_ITEMS), &args)?,
        }
        std::mem::swap(&mut from, &mut to);
    }
    Ok(Sorted { items: from, count })
}
