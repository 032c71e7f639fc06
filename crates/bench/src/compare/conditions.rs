//! What the machine was like around one process, and when a round was not one round.
//!
//! Invariant: what could not be found out is `None`, and never 0.
//!
//! Threading: plain data and pure functions.

use serde::{Deserialize, Serialize};

use super::Outcome;

/// Processes of one round with a longer pause between them are not comparable: the machine is
/// another one by then. In seconds.
pub const PAUSE_MAX_S: f64 = 30.0 * 60.0;
/// A process that lost more than this part of the machine's processor time to other machines is
/// named.
pub(super) const STOLEN_MAX: f64 = 0.02;

/// What the machine was like around one process.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Conditions {
    /// What copying memory reached right before the process, in GB (10^9 bytes) a second.
    pub probe_before_gb_per_s: Option<f64>,
    /// The same, right after it.
    pub probe_after_gb_per_s: Option<f64>,
    /// The part of the processor time of all cores that the hypervisor gave to other machines while
    /// the process ran.
    pub stolen: Option<f64>,
    /// Bytes of files that the kernel had not written to the disk when the process began.
    pub unwritten_bytes: Option<u64>,
    /// When the process ended, in seconds since 1970.
    pub ended_unix_s: Option<f64>,
}

impl Conditions {
    /// Both probes that there are.
    pub fn probes(&self) -> impl Iterator<Item = f64> {
        [self.probe_before_gb_per_s, self.probe_after_gb_per_s]
            .into_iter()
            .flatten()
    }
}

/// The longest pause between two processes that follow each other, in seconds: from the end of one
/// to the start of the next. `until_s` is a last point in time, such as now. Outcomes without a
/// time are left out; `None` if there are fewer than two points in time.
pub fn longest_pause_s<'a>(
    outcomes: impl IntoIterator<Item = &'a Outcome>,
    until_s: Option<f64>,
) -> Option<f64> {
    let times = outcomes.into_iter().filter_map(|outcome| {
        let ended_s = outcome.conditions.ended_unix_s?;
        Some((ended_s - outcome.took_s, ended_s))
    });
    let mut times: Vec<(f64, f64)> = times.chain(until_s.map(|now_s| (now_s, now_s))).collect();
    times.sort_by(|a, b| a.1.total_cmp(&b.1));
    let pauses = times.windows(2).map(|pair| pair[1].0 - pair[0].1);
    pauses.max_by(f64::total_cmp)
}
