//! Columns that are read ahead of a merge are those that it would have read itself.

mod common;

use common::cases::*;
use proptest::prelude::*;
use siltstone_table::exec::part::Point;
use siltstone_table::exec::planner::{ColumnsAhead, Planner, Plans};
use siltstone_table::exec::separated::SurvivorStream;
use siltstone_table::exec::survivors::Survivors;
use siltstone_table::exec::{ExecContext, ExecError};

fn chunks(mut planner: Planner<'_>, chunk_extents: usize) -> Vec<Survivors> {
    planner.set_chunk_extents(chunk_extents);
    std::iter::from_fn(|| planner.next_chunk().unwrap()).collect()
}

/// The chunks of a subjob whose columns a task reads ahead.
fn chunks_ahead(
    (plans, w, ctx): (&Plans, &World, &ExecContext),
    subjob: u32,
    extents: usize,
) -> Vec<Survivors> {
    let reader = ColumnsAhead::new(&ctx.runtime, &ctx.cancel);
    let reading = {
        let reader = reader.clone();
        ctx.runtime.spawn("columns", move || reader.run()).unwrap()
    };
    let planner = plans.subjob_ahead(&w.job, subjob, &Point::Start, ctx, &reader);
    let chunks = chunks(planner.unwrap(), extents);
    reader.close();
    reading.join().unwrap();
    chunks
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if cfg!(debug_assertions) { 300 } else { 5000 },
        ..ProptestConfig::default()
    })]

    #[test]
    fn a_planner_that_reads_ahead_decides_the_same(case in a_case(), extents in 1usize..20) {
        let mut case = case;
        case.inputs_as_streams = vec![false; 12];
        let w = world(&case);
        let ctx = w.context();
        let plans = Plans::open(&w.job, &ctx).unwrap();
        for subjob in 0..w.job.subjobs() as u32 {
            let alone = plans.subjob(&w.job, subjob, &Point::Start, &ctx).unwrap();
            let ahead = chunks_ahead((&plans, &w, &ctx), subjob, extents);
            prop_assert_eq!(chunks(alone, extents), ahead);
        }
    }

    /// A planner whose reader has ended, or whose job is cancelled, does not wait for ever.
    #[test]
    fn a_reader_that_has_ended_is_noticed(case in a_case(), is_cancelled in any::<bool>()) {
        let mut case = case;
        case.inputs_as_streams = vec![false; 12];
        let w = world(&case);
        let ctx = w.context();
        let plans = Plans::open(&w.job, &ctx).unwrap();
        let has_blocks = plans.bytes(&w.job).0 > 0;
        let reader = ColumnsAhead::new(&ctx.runtime, &ctx.cancel);
        match is_cancelled {
            true => ctx.cancel.cancel(),
            false => reader.close(),
        }
        // Subjobs without entries have nothing to wait for.
        let planned = (0..w.job.subjobs() as u32).map(|subjob| {
            let planner = plans.subjob_ahead(&w.job, subjob, &Point::Start, &ctx, &reader);
            planner.map(drop)
        });
        // Only a job that was cancelled fails with that: a reader that has panicked is closed, too.
        let ended = |p: &Result<(), ExecError>| match p {
            Err(ExecError::Cancelled) => is_cancelled,
            Err(ExecError::Failed(error)) => {
                !is_cancelled && error.to_string().contains("has ended early")
            }
            _ => false,
        };
        let planned: Vec<_> = planned.collect();
        prop_assert!(planned.iter().all(|p| p.is_ok() || ended(p)), "{planned:?}");
        prop_assert!(!has_blocks || planned.iter().any(ended), "{planned:?}");
    }
}
