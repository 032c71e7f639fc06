//! The processor time of flushes and compactions.
//!
//! It is the time of the task that does the work, from the beginning of the work to its end, and of
//! the helpers of its executor. So it includes building, verifying and installing, and attempts
//! that failed. For a job on another side, it is the time that the host spent on the job. Attempts
//! that were abandoned do not count. In the costs of the sides, the host's part of a divided
//! compaction counts for the host, and all other time for the side on which the work was placed.
//!
//! Threading: a [`CpuUse`] belongs to the task that began it.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use siltstone_table::exec::Progress;

use crate::env::Env;
use crate::env::failures::JobKind;
use crate::jobs::Jobs;
use crate::jobs::sides::SideId;
use crate::jobs::work::Work;

/// What a task and its helpers use for one attempt of a piece of work.
pub(crate) struct CpuUse {
    kind: JobKind,
    side: SideId,
    began_ns: u64,
    progress: Arc<Progress>,
    helpers_began_ns: u64,
}

impl CpuUse {
    /// Begins to count for this task.
    pub(crate) fn begin(env: &Env, work: &Work) -> CpuUse {
        CpuUse {
            kind: work.kind(),
            side: work.placed.side,
            began_ns: env.runtime().task_cpu_ns(),
            progress: work.progress.clone(),
            helpers_began_ns: helpers_ns(&work.progress),
        }
    }

    /// Adds what was used to the counters of the store. The task that called `begin` calls this.
    pub(crate) fn end(self, jobs: &Jobs) {
        let env = jobs.env();
        let task_ns = env.runtime().task_cpu_ns().saturating_sub(self.began_ns);
        let helpers_ns = helpers_ns(&self.progress).saturating_sub(self.helpers_began_ns);
        let used_ns = task_ns.saturating_add(helpers_ns);
        let metrics = env.metrics();
        let counter = match self.kind {
            JobKind::Flush => &metrics.flush_cpu_us,
            JobKind::Compaction => &metrics.compaction_cpu_us,
        };
        counter.add(used_ns / 1000);
        if self.kind == JobKind::Compaction {
            let sides = &jobs.runner().sides;
            let [own_part, _] = &self.progress.divided;
            let own_ns = own_part.cpu_ns.load(Ordering::Relaxed).min(used_ns);
            sides.count_host_cpu(sides.host(), own_ns);
            sides.count_host_cpu(self.side, used_ns - own_ns);
        }
    }
}

fn helpers_ns(progress: &Progress) -> u64 {
    progress.helpers_cpu_ns.load(Ordering::Relaxed)
}
