//! Flushes and compactions: what is reserved for them, who runs them, how they are built, run and
//! installed, and how a caller waits for them.
//!
//! Nothing here knows the calls of users.

pub(crate) mod build;
pub(crate) mod edits;
pub(crate) mod failures;
pub(crate) mod flush;
pub(crate) mod install;
pub(crate) mod manual;
pub(crate) mod rate;
pub mod schedule;
pub mod sides;

use siltstone_storage::Mutex;

use crate::commit::Commit;
use crate::jobs::build::JobRunner;
use crate::jobs::schedule::Schedule;

/// The jobs of a store: what runs, and what runs it.
pub(crate) struct Jobs {
    pub(crate) commit: Commit,
    pub(crate) runner: JobRunner,
    pub(crate) schedule: Mutex<Schedule>,
}

impl Jobs {
    /// Wakes flush and compaction.
    pub(crate) fn wake_background(&self) {
        let mut schedule = self.schedule.lock();
        schedule.events += 1;
        self.work.notify_all();
    }
}

/// Until all users name the parts that they need, a part stands for those below it, too.
impl std::ops::Deref for Jobs {
    type Target = Commit;

    fn deref(&self) -> &Commit {
        &self.commit
    }
}
