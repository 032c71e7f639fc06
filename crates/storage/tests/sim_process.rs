//! Simulated processes are killed at any point, with locks held, while the rest of the run
//! continues.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use siltstone_storage::sim::{self, Backend, Failure, Killed, Reclaim, SimConfig};
use siltstone_storage::{JoinHandle, Mutex, Runtime};

fn configs(seed: u64) -> impl Iterator<Item = SimConfig> {
    let backends = [Backend::Coroutines, Backend::Threads];
    let reclaims = [Reclaim::Never, Reclaim::Clean, Reclaim::Always];
    backends.into_iter().flat_map(move |backend| {
        reclaims.map(|reclaim| SimConfig {
            backend,
            reclaim,
            max_steps: 50_000,
            ..SimConfig::new(seed)
        })
    })
}

/// A model of a store: background tasks, and a destructor that stops and joins them.
struct Engine {
    shared: Arc<Shared>,
    tasks: Vec<JoinHandle<()>>,
}

struct Shared {
    stop: Mutex<bool>,
    work: Mutex<u64>,
    calls: Arc<AtomicU64>,
    alive: Arc<AtomicU64>,
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.alive.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Engine {
    fn open(rt: &Runtime, calls: &Arc<AtomicU64>, alive: &Arc<AtomicU64>, dies_at: u64) -> Engine {
        alive.fetch_add(1, Ordering::SeqCst);
        let shared = Arc::new(Shared {
            stop: rt.mutex(false),
            work: rt.mutex(0),
            calls: calls.clone(),
            alive: alive.clone(),
        });
        let tasks = (0..3)
            .map(|n| {
                let (rt2, shared) = (rt.clone(), shared.clone());
                rt.spawn(&format!("background {n}"), move || {
                    while !*shared.stop.lock() {
                        shared.storage_call(&rt2, dies_at);
                        rt2.sleep(Duration::from_micros(3));
                    }
                })
                .unwrap()
            })
            .collect();
        Engine { shared, tasks }
    }
}

impl Shared {
    /// Makes a storage call while it holds a runtime lock.
    fn storage_call(&self, rt: &Runtime, dies_at: u64) {
        let mut work = self.work.lock();
        let call = self.calls.fetch_add(1, Ordering::SeqCst);
        if call == dies_at {
            rt.die();
        }
        rt.yield_point_at(call);
        *work += 1;
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        *self.shared.stop.lock() = true;
        for task in self.tasks.drain(..) {
            let _ = task.join();
        }
    }
}

#[test]
fn dies_at_every_storage_call() {
    for config in (0..8).flat_map(configs) {
        for dies_at in [0, 1, 7, 20] {
            let calls = Arc::new(AtomicU64::new(0));
            let alive = Arc::new(AtomicU64::new(0));
            let seen = (calls.clone(), alive.clone());
            let outcome = sim::run(config.clone(), move |rt| {
                let process = rt.spawn_process("store", move |rt| {
                    let engine = Engine::open(&rt, &calls, &alive, dies_at);
                    loop {
                        engine.shared.storage_call(&rt, dies_at);
                        rt.sleep(Duration::from_micros(1));
                    }
                });
                let process = process.unwrap();
                let group = process.group();
                assert_eq!(process.join(), Err::<(), _>(Killed));
                assert!(!rt.is_group_alive(group));
                // The run continues, and time advances, but nothing of the process runs.
                rt.sleep(Duration::from_secs(1));
            });
            let counters = outcome.counters;
            let seed = outcome.seed;
            outcome.unwrap();
            assert_eq!(
                seen.0.load(Ordering::SeqCst),
                dies_at + 1,
                "seed {seed}: a call after death"
            );
            let leaks = config.reclaim == Reclaim::Never;
            assert_eq!(
                seen.1.load(Ordering::SeqCst),
                u64::from(leaks),
                "seed {seed}: {config:?}"
            );
            assert_eq!(counters.leaked > 0, leaks, "seed {seed}: {config:?}");
            assert_eq!(
                counters.killed + 1,
                counters.tasks,
                "seed {seed}: all but the harness"
            );
        }
    }
}

#[test]
fn killed_from_outside_with_locks_held() {
    for config in (0..20).flat_map(configs) {
        let reclaim = config.reclaim;
        let outcome = sim::run(config, |rt| {
            let lock = Arc::new(rt.mutex(0));
            let held = lock.clone();
            let process = rt
                .spawn_process("holder", move |rt| {
                    let mut value = held.lock();
                    *value = 1;
                    rt.sleep(Duration::from_secs(3600));
                })
                .unwrap();
            rt.sleep(Duration::from_millis(1));
            assert!(process.is_alive() && lock.try_lock().is_none());
            process.kill();
            process.kill();
            assert!(!process.is_alive());
            std::mem::take(&mut *lock.lock())
        });
        if reclaim == Reclaim::Never {
            let text = outcome.result.unwrap_err().to_string();
            assert!(
                text.contains("held by task 1 `holder`, which was killed"),
                "{text}"
            );
        } else {
            assert_eq!(
                outcome.unwrap(),
                1,
                "unwinding the holder released the lock"
            );
        }
    }
}

#[test]
fn a_process_exits_with_its_main() {
    for config in (0..10).flat_map(configs) {
        let ticks = Arc::new(AtomicU64::new(0));
        let counted = ticks.clone();
        let outcome = sim::run(config, move |rt| {
            let process = rt.spawn_process("short", move |rt| {
                let inner = rt.clone();
                let child = rt.spawn("child", move || {
                    loop {
                        inner.sleep(Duration::from_millis(1));
                        counted.fetch_add(1, Ordering::SeqCst);
                    }
                });
                rt.sleep(Duration::from_micros(5500));
                drop(child);
                rt.group()
            });
            let process = process.unwrap();
            let group = process.group();
            assert_ne!(group, rt.group());
            assert_eq!(process.join(), Ok(group));
            rt.sleep(Duration::from_secs(1));
        });
        outcome.unwrap();
        assert_eq!(ticks.load(Ordering::SeqCst), 5);
    }
}

/// A task that catches the unwinding is unwound again at the next point.
#[test]
fn a_killed_task_cannot_catch_its_death() {
    for backend in [Backend::Coroutines, Backend::Threads] {
        let outcome = sim::run(
            SimConfig {
                backend,
                ..SimConfig::new(1)
            },
            |rt| {
                let process = rt.spawn_process("stubborn", |rt| {
                    loop {
                        let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                            rt.sleep(Duration::from_secs(1))
                        }));
                        rt.yield_point();
                    }
                });
                let process = process.unwrap();
                rt.sleep(Duration::from_millis(1500));
                process.kill();
                assert_eq!(process.join(), Err::<(), _>(Killed));
            },
        );
        assert_eq!(outcome.counters.leaked, 0);
        outcome.unwrap();
    }
}

/// While its task is unwound, a destructor asks for a lock that a living task holds.
#[test]
fn a_destructor_that_cannot_be_granted_fails_clearly() {
    struct Locks(Arc<Mutex<()>>);
    impl Drop for Locks {
        fn drop(&mut self) {
            drop(self.0.lock());
        }
    }
    for backend in [Backend::Coroutines, Backend::Threads] {
        let outcome = sim::run(
            SimConfig {
                backend,
                ..SimConfig::new(1)
            },
            |rt| {
                let lock = Arc::new(rt.mutex(()));
                let theirs = lock.clone();
                let process = rt.spawn_process("victim", move |rt| {
                    let _locks = Locks(theirs);
                    rt.sleep(Duration::from_secs(1));
                });
                rt.sleep(Duration::from_millis(1));
                let held = lock.lock();
                process.unwrap().kill();
                drop(held);
            },
        );
        let Err(Failure::Panic { message, .. }) = outcome.result else {
            panic!("no failure")
        };
        assert!(
            message.contains("`victim`") && message.contains("Reclaim::Never"),
            "{message}"
        );
    }
}
