//! One list of operations under several option sets: in the end all stores hold the same.
//!
//! Threading: one client, whose operations depend only on its own random numbers.

use siltstone::{FlushVerify, Options};

use super::media::Media;
use super::{Run, STEPS, simulate_counted};
use crate::checker::contents;
use crate::coverage::Coverage;
use crate::executors::OtherExecutors;
use crate::rng::Rng;
use crate::workload::draw_options;
use crate::world::Errors;

/// Runs one seed: up to 2,000 operations under three option sets, one of which is the default.
///
/// # Panics
/// At the first wrong answer, unexpected error, panic or hang.
pub fn same_operations_trial(seed: u64) -> Coverage {
    simulate_counted(seed, STEPS * 20, move |runtime| {
        let mut rng = Rng::new(seed ^ 0x5A3E);
        let count = 50 + rng.below(*rng.clone().pick(&[200, 200, 2000]));
        let mut first = None;
        let mut coverage = Coverage::default();
        for set in 0..3 {
            let mut own = rng.clone().fork(set);
            let options = match set {
                0 => Options {
                    flush_verify: FlushVerify::All,
                    ..Options::default()
                },
                _ => draw_options(&mut own),
            };
            let media = Media::draw(&runtime, &mut own);
            let what = format!("set {set}, {}, {options:?}", media.describe());
            let with_context = |e: String| format!("{what}: {e}");
            // All option sets use the same random numbers.
            let mut rng = rng.clone();
            let mut run = Run::new(&runtime, &mut rng);
            let other_executors = OtherExecutors::draw(&runtime, &mut own);
            let world = run
                .open_on(
                    media.main(),
                    media.storages(),
                    other_executors,
                    &options,
                    Errors::Fatal,
                )
                .map_err(|e| with_context(format!("open: {e}")))?;
            run.work(&world, 1, count, &mut rng).map_err(with_context)?;
            run.check_all(&world, &mut rng).map_err(with_context)?;
            let found = contents(&world.store).map_err(|e| with_context(e.to_string()))?;
            run.close(&world)
                .map_err(|e| with_context(format!("close: {e}")))?;
            coverage.merge(&run.coverage);
            match &first {
                None => first = Some(found),
                Some(first) => found.same_as(first).map_err(|e| {
                    with_context(format!(
                        "another content than with the default options: {e}"
                    ))
                })?,
            }
            coverage.add("same_operations.compared");
        }
        coverage.add_count("operations", 3 * count);
        Ok(coverage)
    })
}
