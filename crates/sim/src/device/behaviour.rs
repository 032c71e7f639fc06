//! The behaviour of a device in the random trials. The device decides by itself, from its own
//! random numbers, which jobs it accepts, when it is ready for jobs, and how each job ends.
//!
//! Threading: owned by its device, under its lock.

use std::time::Duration;

use siltstone_storage::{Instant, OpKind};
use siltstone_table::exec::ExecutorState;

use super::endings::{Ending, Hang, Late, WrongField};
use super::{Fate, Plan};
use crate::rng::Rng;

/// The lengths of a hang. A flush is cancelled after two seconds without a sign of life, a
/// compaction after thirty, and both are abandoned two seconds later, so some of these hangs end at
/// exactly that moment. Callers that wait for a job check it fifty times a second, so most hangs
/// are short.
const SILENCES_MS: [u64; 8] = [900, 2000, 4000, 4000, 4000, 5000, 32_000, 300_000];

/// See the module.
#[derive(Clone, Debug)]
pub struct Behaviour {
    rng: Rng,
    /// The percentage of jobs in which the device misbehaves.
    misbehaves_percent: u64,
    /// The percentage of these jobs in which it hangs.
    hangs_percent: u64,
    /// The percentage of jobs that it does not accept.
    refuses_percent: u64,
    /// The maximum time of a job, in milliseconds.
    job_ms_max: u64,
    /// When the device's state changes next. `None` if it never changes.
    changes: Option<Instant>,
    is_ready: bool,
}

impl Behaviour {
    /// A random behaviour with a plan for it.
    pub fn draw(mut rng: Rng, misbehaves_percent: u64) -> (Behaviour, Plan) {
        let plan = Plan {
            slots: 1 + rng.index(3),
            parallelism: 1 + rng.index(4),
            takes_flushes: rng.chance(80),
            bytes_max: *rng.pick(&[u64::MAX, u64::MAX, 100_000, 20_000]),
            ..Plan::default()
        };
        let behaviour = Behaviour {
            misbehaves_percent,
            hangs_percent: *rng.pick(&[0, 30, 60]),
            refuses_percent: *rng.pick(&[0, 0, 20]),
            job_ms_max: *rng.pick(&[1, 50, 1000]),
            changes: rng.chance(40).then(Instant::default),
            is_ready: true,
            rng,
        };
        (behaviour, plan)
    }

    /// Whether the device refuses a job.
    pub(super) fn refuses(&mut self) -> bool {
        self.refuses_percent > 0 && self.rng.chance(self.refuses_percent)
    }

    /// The device's new state, if it changes now.
    pub(super) fn state(&mut self, now: Instant) -> Option<ExecutorState> {
        if self.changes.is_none_or(|until| now < until) {
            return None;
        }
        let most = if self.is_ready { 2000 } else { 5000 };
        self.changes = Some(now + Duration::from_millis(self.rng.below(most)));
        self.is_ready = !self.is_ready;
        Some(match (self.is_ready, self.rng.chance(50)) {
            (true, _) => ExecutorState::Ready,
            (_, true) => ExecutorState::Down("its link is down".into()),
            _ => ExecutorState::Starting("it compiles its kernels".into()),
        })
    }

    /// The course of its next job.
    pub(super) fn fate(&mut self) -> Fate {
        let rng = &mut self.rng;
        let time = Duration::from_millis(rng.below(self.job_ms_max));
        let tasks = rng.chance(50).then(|| 1 + rng.index(4));
        let adopts = rng.chance(50);
        let ending = match rng.chance(self.misbehaves_percent) {
            true => self.misbehaviour(),
            false => Ending::Done,
        };
        Fate {
            time,
            ending,
            tasks,
            adopts,
        }
    }

    fn misbehaviour(&mut self) -> Ending {
        let rng = &mut self.rng;
        if rng.chance(self.hangs_percent) {
            return match rng.below(8) {
                0 => Ending::Uncancellable(Duration::from_millis(rng.below(6000))),
                1 => Ending::Detached(hang(rng)),
                _ => Ending::HangIn(hang(rng)),
            };
        }
        match rng.below(8) {
            0 => Ending::Declined,
            1 => Ending::Failed,
            2 => Ending::LeavesOrphans,
            3..6 => Ending::FailedAfter(1 + rng.below(3)),
            _ => Ending::Lie(*rng.pick(&WrongField::ALL)),
        }
    }
}

fn hang(rng: &mut Rng) -> Hang {
    let late = match rng.below(4) {
        0 => Late::GoesOn,
        1 => Late::Leaves(1 + rng.below(2)),
        _ => Late::Attacks,
    };
    let kind = *rng.pick(&[
        OpKind::Create,
        OpKind::Append,
        OpKind::Sync,
        OpKind::SyncDir,
    ]);
    let nth = rng.below(3);
    Hang {
        at: (late != Late::Attacks && rng.chance(60)).then_some((kind, nth)),
        silence: Duration::from_millis(*rng.pick(&SILENCES_MS)),
        late,
    }
}
