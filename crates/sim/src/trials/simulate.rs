//! One seed of a trial on the simulated runtime.
//!
//! [`simulate`] runs a trial as the first task of a run. `simulate_counted` also counts the points
//! at which tasks could have switched, and adds the digest of the schedule.
//!
//! Invariants: a seed decides the whole run. The cut that is in force in the caller's thread
//! ([`crate::reduce`]) is in force in the run as well.
//!
//! Threading: a run has its own thread.

use siltstone_storage::Runtime;
use siltstone_storage::sim::{Counters, Point, SimConfig, run};

use crate::coverage::Coverage;
use crate::reduce::InForce;

/// The number of points after which a run of the usual length counts as a livelock.
pub(super) const STEPS: u64 = 3_000_000;

/// Runs `trial` as the first task of a simulated run of `seed`.
///
/// # Panics
/// If the run fails, with its failure: a wrong answer, a panic, a deadlock or a livelock.
pub fn simulate<T: Send + 'static>(
    seed: u64,
    trial: impl FnOnce(Runtime) -> Result<T, String> + Send + 'static,
) -> T {
    simulate_long(seed, STEPS, trial).0
}

/// Does the same as [`simulate`] with at most `max_steps` points. Also returns how often tasks
/// could have switched, by kind of point, and the digest of the whole schedule.
fn simulate_long<T: Send + 'static>(
    seed: u64,
    max_steps: u64,
    trial: impl FnOnce(Runtime) -> Result<T, String> + Send + 'static,
) -> (T, Counters, u64) {
    let config = SimConfig {
        max_steps,
        ..SimConfig::new(seed)
    };
    let in_force = InForce::present();
    let outcome = run(config, |runtime| {
        in_force.take_along();
        trial(runtime).unwrap_or_else(|e| panic!("{e}"))
    });
    let (counters, digest) = (outcome.counters, outcome.digest);
    (outcome.unwrap(), counters, digest)
}

/// Does the same as [`simulate`] and counts the points at which tasks could have switched. The sum
/// of digests is equal for two builds of the engine that take the same steps in the same order, so
/// a change of only the code's structure must not change it.
pub(super) fn simulate_counted(
    seed: u64,
    max_steps: u64,
    trial: impl FnOnce(Runtime) -> Result<Coverage, String> + Send + 'static,
) -> Coverage {
    let (mut coverage, counters, digest) = simulate_long(seed, max_steps, trial);
    let points = [
        ("point.storage_call", Point::Yield),
        ("point.lock", Point::Lock),
        ("point.lock_wait", Point::LockWait),
        ("point.condvar_wait", Point::CondvarWait),
        ("point.sleep", Point::Sleep),
        ("point.join", Point::Join),
    ];
    for (name, point) in points {
        coverage.add_count(name, counters.at(point));
    }
    coverage.add_count("point.switches", counters.switches);
    // Only half of the digest's bits are added, so that the sum over many seeds does not overflow.
    coverage.add_count("schedule.digests", digest & 0xFFFF_FFFF);
    coverage
}

#[cfg(test)]
mod tests {
    use std::panic::catch_unwind;

    use siltstone::Options;
    use siltstone_storage::MemoryStorage;

    use super::simulate;
    use crate::model::{Event, Op};
    use crate::reduce::{Cut, as_test, reduce};
    use crate::rng::Rng;
    use crate::trials::Run;

    /// A run with two clients that fails if one of them deletes a range.
    fn fails() -> Option<String> {
        let run = || {
            simulate(3, |runtime| {
                let mut rng = Rng::new(3);
                let run = Run::new(&runtime, &mut rng);
                let medium = MemoryStorage::new(&runtime);
                let world = run.must_open(&medium, &Options::default(), "open")?;
                run.work(&world, 2, 40, &mut rng)?;
                let model = run.model();
                let deletes = |op: &Op| matches!(op, Op::DeleteRange(..));
                let has =
                    |event: &Event| matches!(event, Event::Group(ops) if ops.iter().any(deletes));
                match model.records().iter().any(|record| has(&record.event)) {
                    true => Err("somebody deleted a range".into()),
                    false => Ok(()),
                }
            })
        };
        let payload = catch_unwind(run).err()?;
        payload.downcast_ref::<String>().cloned()
    }

    #[test]
    fn a_simulated_run_is_made_small() {
        let (cut, how) = reduce(200, fails).expect("the whole run fails");
        assert!(how.contains("somebody deleted a range"), "{how}");
        let only = cut.only.clone().unwrap_or_default();
        assert_eq!(only.len(), 1, "{cut}");
        assert!(cut.during(fails).is_some(), "as it is printed, it fails");
        let nothing = Cut::only(&[]);
        assert!(
            nothing.during(fails).is_none(),
            "what is left out is not done"
        );
        let text = as_test("a_trial", 3, &cut, &how);
        assert!(
            text.contains("// DeleteRange") || text.contains("// Batch"),
            "{text}"
        );
    }
}
