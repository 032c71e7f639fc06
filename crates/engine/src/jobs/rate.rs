//! The rate at which compactions read and write: one token bucket for all of a store's jobs.
//!
//! Executors report the bytes that they have read and written since their last report
//! ([`Throttle`]). A compaction then waits until the bucket is out of debt. A flush does not wait,
//! but its bytes count, so compactions wait longer. Flushes take at most half of the rate, so
//! compactions always get the other half, and level 0 does not grow without end. Reports follow the
//! reads and writes, so the sums are exact and no size has to be known in advance.
//!
//! Invariants: over any span of time, compactions read and write at most the rate times the span,
//! plus [`BURST`] at that rate, plus one report's bytes for each task; and if they wait, they read
//! and write at least half of that. Waits use the runtime's clock, end when the job should end, and
//! notice a changed rate.
//!
//! Threading: one mutex, taken once per block of a job; nothing is called under it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use siltstone_storage::{Condvar, Instant, Mutex, Runtime};
use siltstone_table::exec::{Progress, Throttle};

use crate::jobs::begun::Relief;
use crate::jobs::flush_pauses::FlushPauses;
use crate::types::metrics::Counter;
use siltstone_storage::token_bucket::TokenBucket;

/// The burst that is allowed after a pause, as time at the full rate.
const BURST: Duration = Duration::from_millis(100);

/// The burst of flushes that is counted after a pause, as time at half of the rate.
const FLUSH_BURST: Duration = Duration::from_secs(2);

/// The interval at which a wait checks whether the job should end.
const STOP_CHECK_INTERVAL: Duration = Duration::from_millis(50);

struct Buckets {
    /// What compactions wait for.
    all: TokenBucket,
    /// What flushes may take from it: it fills at half of the rate.
    flushes: TokenBucket,
}

impl Buckets {
    fn fill(&mut self, now: Instant, bytes_per_s: u64) {
        self.all.fill(now, bytes_per_s);
        self.flushes.fill(now, bytes_per_s / 2);
    }
}

/// See the module.
pub(crate) struct RateLimiter {
    runtime: Runtime,
    /// 0 means no limit.
    bytes_per_s: AtomicU64,
    buckets: Mutex<Buckets>,
    changed: Condvar,
    /// Bytes that jobs read and wrote while there was a limit.
    pub(crate) limited_bytes: Counter,
    /// The number of waits, and their total time.
    pub(crate) wait_count: Counter,
    pub(crate) wait_us: Counter,
}

impl RateLimiter {
    pub(crate) fn new(runtime: &Runtime, bytes_per_s: u64) -> Arc<RateLimiter> {
        Arc::new(RateLimiter {
            runtime: runtime.clone(),
            bytes_per_s: AtomicU64::new(bytes_per_s),
            buckets: runtime.mutex(Buckets {
                all: TokenBucket::new(runtime.now(), BURST),
                flushes: TokenBucket::new(runtime.now(), FLUSH_BURST),
            }),
            changed: runtime.condvar(),
            limited_bytes: Counter::default(),
            wait_count: Counter::default(),
            wait_us: Counter::default(),
        })
    }

    /// Bytes per second; 0 means no limit.
    pub(crate) fn bytes_per_s(&self) -> u64 {
        self.bytes_per_s.load(Ordering::Relaxed)
    }

    /// Changes the rate, also for waits that have begun.
    pub(crate) fn set(&self, bytes_per_s: u64) {
        let mut buckets = self.buckets.lock();
        // The time until now is credited at the old rate.
        buckets.fill(self.runtime.now(), self.bytes_per_s());
        self.bytes_per_s.store(bytes_per_s, Ordering::Relaxed);
        if bytes_per_s == 0 {
            buckets.all.clear();
            buckets.flushes.clear();
        }
        self.changed.notify_all();
    }

    /// Counts bytes. If `waits`, waits until the bucket is out of debt or `stop` returns true.
    fn spend(&self, bytes: u64, waits: bool, stop: &dyn Fn() -> bool) {
        if self.bytes_per_s() == 0 || bytes == 0 {
            return;
        }
        self.limited_bytes.add(bytes);
        let mut buckets = self.buckets.lock();
        buckets.fill(self.runtime.now(), self.bytes_per_s());
        let counted = match waits {
            true => bytes,
            false => buckets.flushes.take(bytes),
        };
        buckets.all.spend(counted);
        if !waits || !buckets.all.is_in_debt() {
            return;
        }
        let begin = self.runtime.now();
        while buckets.all.is_in_debt() {
            // `stop` comes from the executor, so it is not called under the lock.
            drop(buckets);
            let is_stopped = stop();
            buckets = self.buckets.lock();
            let rate = self.bytes_per_s();
            if is_stopped || rate == 0 {
                break;
            }
            let wait = buckets.all.debt_takes(rate).min(STOP_CHECK_INTERVAL);
            buckets = self.changed.wait_timeout(buckets, wait).0;
            buckets.fill(self.runtime.now(), self.bytes_per_s());
        }
        drop(buckets);
        self.wait_count.add(1);
        let waited = self.runtime.now().since(begin);
        self.wait_us.add(waited.as_micros() as u64);
    }
}

/// The rate limiter as one attempt of a job uses it.
pub(crate) struct Spender {
    pub(crate) limit: Arc<RateLimiter>,
    /// Whether the job waits for the rate. Flushes do not.
    pub(crate) waits: bool,
    /// A wait for the rate counts as a sign of life here.
    pub(crate) progress: Arc<Progress>,
    /// Whom the progress of a flush wakes.
    pub(crate) relief: Option<Relief>,
    /// When a compaction of the host pauses.
    pub(crate) pauses: Option<Arc<FlushPauses>>,
    /// Bytes that were reported.
    pub(crate) reported_bytes: AtomicU64,
}

impl Throttle for Spender {
    fn spent(&self, bytes: u64, stop: &dyn Fn() -> bool) {
        let before = self.reported_bytes.fetch_add(bytes, Ordering::Relaxed);
        if let Some(relief) = &self.relief {
            relief.load.progressed(bytes);
            let steps = |bytes: u64| bytes / relief.every_bytes;
            if steps(before) != steps(before.saturating_add(bytes)) {
                relief.pressure.notify();
            }
        }
        let stop = || {
            self.progress.beat();
            stop()
        };
        if let Some(pauses) = &self.pauses {
            pauses.wait(&self.progress, &stop);
        }
        self.limit.spend(bytes, self.waits, &stop);
    }

    fn bytes_per_s(&self) -> u64 {
        match self.waits {
            true => self.limit.bytes_per_s(),
            false => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use siltstone_storage::sim::{SimConfig, run};

    use super::*;

    fn simulated(story: impl FnOnce(Runtime) + Send + 'static) {
        let report = run(SimConfig::new(5), story);
        report.result.unwrap();
    }

    #[test]
    fn tasks_share_the_rate() {
        simulated(|rt| {
            let limit = RateLimiter::new(&rt, 1_000_000);
            let begin = rt.now();
            let tasks: Vec<_> = (0..3u64)
                .map(|task| {
                    let limit = limit.clone();
                    let work = move || {
                        (0..100).for_each(|_| limit.spend(10_000 * (task + 1), true, &|| false));
                    };
                    rt.spawn("job", work).unwrap()
                })
                .collect();
            tasks.into_iter().for_each(|t| t.join().unwrap());
            // 6 MB in all; the clock began with an empty bucket.
            let took = rt.now().since(begin).as_millis();
            assert!((5_900..=6_100).contains(&took), "{took} ms");
            assert_eq!(limit.limited_bytes.get(), 6_000_000);
            assert!(limit.wait_count.get() > 0 && limit.wait_us.get() >= 5_900_000);
        });
    }

    #[test]
    fn a_pause_buys_a_burst_and_no_more() {
        simulated(|rt| {
            let limit = RateLimiter::new(&rt, 1_000_000);
            rt.sleep(Duration::from_secs(3600));
            let begin = rt.now();
            (0..20).for_each(|_| limit.spend(100_000, true, &|| false));
            let took = rt.now().since(begin).as_millis();
            assert!((1_890..=1_910).contains(&took), "{took} ms");
        });
    }

    #[test]
    fn flushes_do_not_wait_and_compactions_pay_for_them() {
        simulated(|rt| {
            let limit = RateLimiter::new(&rt, 1_000_000);
            rt.sleep(Duration::from_secs(3600));
            let begin = rt.now();
            // Of these, the bytes of two seconds at half of the rate count.
            limit.spend(2_000_000, false, &|| false);
            assert_eq!(rt.now(), begin);
            limit.spend(1, true, &|| false);
            let took = rt.now().since(begin).as_millis();
            assert!((899..=901).contains(&took), "{took} ms");
        });
    }

    #[test]
    fn beside_flushes_compactions_get_half_of_the_rate() {
        simulated(|rt| {
            let limit = RateLimiter::new(&rt, 1_000_000);
            let over = Arc::new(AtomicBool::new(false));
            let flushes = {
                let (of_task, limit, over) = (rt.clone(), limit.clone(), over.clone());
                let flush = move || {
                    while !over.load(Ordering::Relaxed) {
                        limit.spend(200_000, false, &|| false);
                        of_task.sleep(Duration::from_millis(100));
                    }
                };
                rt.spawn("flushes", flush).unwrap()
            };
            let begin = rt.now();
            let mut bytes = 0;
            while rt.now().since(begin) < Duration::from_secs(20) {
                limit.spend(50_000, true, &|| false);
                bytes += 50_000;
            }
            over.store(true, Ordering::Relaxed);
            flushes.join().unwrap();
            assert!((9_500_000..=10_500_000).contains(&bytes), "{bytes}");
        });
    }

    #[test]
    fn a_wait_is_a_sign_of_life() {
        simulated(|rt| {
            let spender = Spender {
                limit: RateLimiter::new(&rt, 1000),
                waits: true,
                progress: Arc::default(),
                relief: None,
                pauses: None,
                reported_bytes: AtomicU64::new(0),
            };
            let progress = spender.progress.clone();
            let task = rt
                .spawn("job", move || spender.spent(100_000, &|| false))
                .unwrap();
            for second in 0..99 {
                let before = progress.signs_of_life();
                rt.sleep(Duration::from_secs(1));
                assert!(progress.signs_of_life() > before, "{second}");
            }
            task.join().unwrap();
        });
    }

    #[test]
    fn a_wait_ends_when_the_job_ends_or_the_rate_changes() {
        simulated(|rt| {
            let limit = RateLimiter::new(&rt, 1000);
            let begin = rt.now();
            let end = begin + Duration::from_secs(1);
            limit.spend(1 << 40, true, &|| rt.now() >= end);
            assert!(rt.now().since(begin) <= Duration::from_millis(1051));
            let task = {
                let limit = limit.clone();
                rt.spawn("job", move || limit.spend(1, true, &|| false))
                    .unwrap()
            };
            rt.sleep(Duration::from_secs(1));
            limit.set(1 << 41);
            task.join().unwrap();
            assert!(rt.now().since(begin) <= Duration::from_secs(3));
            // And to none at all.
            limit.set(1);
            let task = {
                let limit = limit.clone();
                rt.spawn("job", move || limit.spend(1 << 50, true, &|| false))
                    .unwrap()
            };
            rt.sleep(Duration::from_secs(1));
            limit.set(0);
            task.join().unwrap();
            limit.spend(1 << 60, true, &|| false);
            assert!(rt.now().since(begin) <= Duration::from_secs(4));
        });
    }
}
