//! Pauses of compactions for flushes (RFC 13, section 5).
//!
//! While memtables fill faster than they are flushed, writers wait for the flushes. A compaction of
//! the host takes processor time and bandwidth from them, and can wait as long as level 0 is short.
//! If flushes and one writer occupy all cores, a compaction would take the core from the writer for
//! some milliseconds at a time. So it also pauses then, while level 0 is so short that no writer
//! waits for it soon. While a burst goes on, flushes may be deferred (`jobs/deferral.rs`). The log
//! needs the bandwidth then, and a compaction pauses as it does for a flush.
//!
//! Invariants: a pause ends when no flush runs, when the flushes that run do not progress for a
//! second (the next one begins when they do again), when level 0 gets deep, when space is short, and
//! when the job should end. A compaction pauses for at most three quarters of the time, whatever the
//! flushes do.
//!
//! Threading: the subjobs of a compaction call it. One mutex for each job, which is held over
//! nothing else.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use siltstone_storage::{Instant, Mutex};
use siltstone_table::exec::Progress;

use crate::env::Env;
use crate::tree::view::KeyspaceCore;
use crate::types::options::StallPolicy;

/// The interval at which a pause looks again. The end of a flush wakes it earlier.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// A flush that has not progressed for this time is not waited for.
const STILL: Duration = Duration::from_secs(1);

/// In each such span of time ...
const SPAN: Duration = Duration::from_secs(4);

/// ... a job pauses for at most this time.
const SPAN_MAX: Duration = Duration::from_secs(3);

/// The pauses of the current span. Several subjobs may pause at once.
struct Span {
    begun: Instant,
    paused: Duration,
    pausing: u32,
    since: Instant,
    /// What flushes had reported when a pause ended because they did not progress.
    still_at: Option<u64>,
}

/// The pauses of one compaction.
pub(crate) struct FlushPauses {
    env: Arc<Env>,
    keyspace: Arc<KeyspaceCore>,
    span: Mutex<Span>,
}

impl FlushPauses {
    pub(crate) fn new(env: &Arc<Env>, keyspace: &Arc<KeyspaceCore>) -> Arc<FlushPauses> {
        let now = env.now();
        Arc::new(FlushPauses {
            env: env.clone(),
            keyspace: keyspace.clone(),
            span: env.runtime().mutex(Span {
                begun: now,
                paused: Duration::ZERO,
                pausing: 0,
                since: now,
                still_at: None,
            }),
        })
    }

    /// Whether the compaction should pause now, apart from how long it has.
    fn is_due(&self) -> bool {
        let load = self.env.flush_load();
        let (is_behind, is_crowded) = (load.is_behind(), load.leaves_no_core());
        let comes_first = load.is_flushing() || load.is_deferring(self.env.now());
        if !comes_first || !(is_behind || is_crowded) {
            return false;
        }
        let limits = self.keyspace.limits();
        let depth = self.keyspace.view().l0_depth as u64;
        let flushes_first = is_behind
            && limits.policy == StallPolicy::Redirect
            && depth < limits.l0_stop.saturating_mul(5) / 6;
        let writers_first = is_crowded && depth <= limits.calm_depth();
        (flushes_first || writers_first) && self.keyspace.short_space().0.is_none()
    }

    /// Waits while flushes come first, until `stop` returns true.
    pub(crate) fn wait(&self, progress: &Progress, stop: &dyn Fn() -> bool) {
        if !self.is_due() {
            return;
        }
        let load = self.env.flush_load();
        let bytes = load.progressed_bytes();
        if self.span.lock().still_at == Some(bytes) {
            return;
        }
        let mut moved = (bytes, self.begin(progress));
        loop {
            let seen = self.env.job_ended().count();
            let now = self.env.now();
            let bytes = load.progressed_bytes();
            if bytes != moved.0 {
                moved = (bytes, now);
            }
            let is_still = now.since(moved.1) >= STILL;
            if is_still {
                self.span.lock().still_at = Some(bytes);
            }
            let ends = is_still || !self.is_due() || self.is_long(now) || stop();
            if ends {
                break;
            }
            self.env.job_ended().wait_past(seen, LOOK_AGAIN);
        }
        self.end(progress);
    }

    /// Whether the job has paused for as long as it may.
    fn is_long(&self, now: Instant) -> bool {
        let mut span = self.span.lock();
        if now.since(span.begun) >= SPAN {
            *span = Span {
                begun: now,
                paused: Duration::ZERO,
                pausing: span.pausing,
                since: now,
                still_at: span.still_at,
            };
        }
        span.paused + now.since(span.since) >= SPAN_MAX
    }

    fn begin(&self, progress: &Progress) -> Instant {
        let now = self.env.now();
        let mut span = self.span.lock();
        if span.pausing == 0 {
            span.since = now;
            progress.is_paused.store(true, Ordering::Relaxed);
        }
        span.pausing += 1;
        now
    }

    fn end(&self, progress: &Progress) {
        let now = self.env.now();
        let mut span = self.span.lock();
        span.pausing -= 1;
        if span.pausing > 0 {
            return;
        }
        let paused = now.since(span.since);
        span.paused += paused;
        span.since = now;
        progress.is_paused.store(false, Ordering::Relaxed);
        let ns = paused.as_nanos() as u64;
        progress.paused_ns.fetch_add(ns, Ordering::Relaxed);
        let metrics = self.env.metrics();
        metrics.pause_count.add(1);
        metrics.pause_us.add(ns / 1000);
    }
}
