//! The loop in which all callers of a flush or compaction wait for jobs.
//!
//! Threading: the caller's task; no lock is held while it waits.

use std::time::Duration;

use crate::catalog::obsolete::delete_all_obsolete;
use crate::jobs::Jobs;
use crate::jobs::schedule::is_idle;
use crate::types::error::Result;

/// The longest wait of a caller before it checks again and wakes the workers.
const WAKE_INTERVAL: Duration = Duration::from_millis(20);

impl Jobs {
    /// Waits until `is_done` returns true. The condition is checked whenever a job ends or a worker
    /// finds nothing to do.
    ///
    /// # Errors
    /// The error of `is_done`; `Closed`; the error that poisoned the store; the last job's error if
    /// jobs fail repeatedly; or `Unreachable` if the jobs wait too long for a storage.
    pub(crate) fn wait_until(&self, mut is_done: impl FnMut() -> Result<bool>) -> Result<()> {
        self.env.failures().forget_earlier();
        let began = self.env.now();
        // Idle workers notify `job_ended`. Waking them on each of those notifications would make
        // them spin.
        let mut wake = true;
        loop {
            let seen = self.env.job_ended().count();
            if is_done()? {
                return Ok(());
            }
            self.env.check_open()?;
            self.env.health().check_manifest()?;
            if let Some(error) = self.env.failures().failing() {
                return Err(error);
            }
            if let Some(error) = self.env.outage().caller_waited_too_long(began) {
                return Err(error);
            }
            if wake {
                self.env.work().notify();
            }
            wake = !self.env.job_ended().wait_past(seen, WAKE_INTERVAL);
        }
    }

    /// Waits until nothing is due, nothing runs and nothing is sealed.
    pub(crate) fn wait_until_idle(&self) -> Result<()> {
        self.wait_until(|| {
            // The health is checked after the schedule. A job that fails because the disk is full
            // sets the health before the schedule shows that it has ended.
            let is_done = is_idle(self);
            self.env.health().check()?;
            self.env.check_open()?;
            Ok(is_done)
        })?;
        self.env.failures().forget_kinds();
        delete_all_obsolete(&self.catalog);
        Ok(())
    }
}
