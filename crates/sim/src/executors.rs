//! Executors beside the host's own that are slow, decline, fail, or lie: whatever they do, the
//! store's contents are what the model says.
//!
//! Threading: as executors are; what one does with a job is drawn from the run's own random
//! numbers.

use std::sync::Arc;
use std::time::Duration;

use siltstone_table::error::TableError;
use siltstone_table::exec::{CpuExecutor, ExecContext, ExecError, Executor, Side};
use siltstone_table::job::Job;
use siltstone_table::job::outcome::Outcome;

use crate::rng::Rng;

/// An executor of another machine, as far as the engine can tell.
pub struct Stranger {
    name: String,
    host: CpuExecutor,
    /// In how many of a hundred jobs it misbehaves.
    misbehaves_percent: u64,
}

/// None to two of them.
pub(crate) fn draw(rng: &mut Rng) -> Vec<Arc<dyn Executor>> {
    let count = rng.below(4).saturating_sub(1);
    let strangers = (0..count).map(|i| -> Arc<dyn Executor> {
        Arc::new(Stranger {
            name: format!("stranger-{i}"),
            host: CpuExecutor::new(),
            misbehaves_percent: *rng.pick(&[0, 30, 100]),
        })
    });
    strangers.collect()
}

/// Says something that does not hold of what was made.
fn lie(outcome: &mut Outcome, rng: &mut Rng) {
    let index = rng.index(outcome.tables.len().max(1));
    let kind = rng.below(9);
    let Some(table) = outcome.tables.get_mut(index) else {
        outcome.job ^= 1;
        return;
    };
    match kind {
        0 => table.entries += 1,
        1 => table.digest ^= 1,
        2 => table.max_seq += 1,
        3 => table.file_bytes += 1,
        4 => table.left_bound.push(1),
        5 => table.name.push_str("-other"),
        6 => table.raw_bytes = table.raw_bytes.saturating_sub(1),
        7 => {
            table.puts += 1;
            table.entries += 1;
        }
        _ => outcome.job ^= 1,
    }
}

impl Executor for Stranger {
    fn name(&self) -> &str {
        &self.name
    }

    fn side(&self) -> Side {
        Side::Device
    }

    fn run(&self, job: &Job, ctx: &ExecContext) -> Result<Outcome, ExecError> {
        let mut rng = Rng::new(ctx.runtime.random_u64());
        let own = ExecContext {
            max_parallel: 1 + rng.index(4),
            handover: None,
            ..ctx.clone()
        };
        if !rng.chance(self.misbehaves_percent) {
            return self.host.run(job, &own);
        }
        let failed = || ExecError::Failed(TableError::Misuse("a stranger failed"));
        match rng.below(6) {
            0 => Err(ExecError::declined("a stranger has no mind to")),
            1 => Err(failed()),
            2 => {
                ctx.runtime.sleep(Duration::from_millis(rng.below(50)));
                self.host.run(job, &own)
            }
            3 => {
                // What it made stays where it is.
                self.host.run(job, &own)?;
                Err(failed())
            }
            _ => {
                let mut outcome = self.host.run(job, &own)?;
                lie(&mut outcome, &mut rng);
                Ok(outcome)
            }
        }
    }
}
