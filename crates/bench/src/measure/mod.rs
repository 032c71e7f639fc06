//! Measurements of a run: latencies, a series by second, and readings of the process, the store's
//! folder and the machine.
//!
//! Threads of a workload record into a [`Recorder`] of their own. A [`Sampler`] collects what they
//! recorded and reads everything else, once a second, on its own thread.
//!
//! How time is read: by `std::time::Instant`, which is `CLOCK_MONOTONIC` on Linux and costs 20 to
//! 50 ns on a usual machine. A closed loop reads it once for each operation: the end of one
//! operation is the start of the next ([`Recorder::lap`]). Its latencies therefore contain the
//! drawing of the next key and value and the check of the answer, as those of db_bench do.
//!
//! Invariant: a figure that could not be found out is `None`, and never 0.
//!
//! Threading: a recorder belongs to one thread, and never waits for another one.

pub mod files;
pub mod idle;
pub mod latency;
pub mod machine;
pub mod process;
pub mod recorder;
pub mod series;

pub use idle::{Quiet, wait_until_quiet};
pub use latency::{Latencies, LatencySummary};
pub use machine::Machine;
pub use recorder::{Done, Meter, Recorder, Role, Times};
pub use series::{Ask, Measured, Probe, Sampler, Second};

/// A quotient, or `None` if it is not a finite number. The quotient of nothing is `None`.
pub fn ratio(of: f64, to: f64) -> Option<f64> {
    Some(of / to).filter(|quotient| to != 0.0 && quotient.is_finite())
}
