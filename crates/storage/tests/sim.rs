//! The simulated runtime: replay, back ends, locks, waits, time, failures.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use siltstone_storage::Runtime;
use siltstone_storage::sim::{self, Backend, Failure, Point, Reclaim, SimConfig, check_replay};

fn on(seed: u64, backend: Backend) -> SimConfig {
    SimConfig {
        backend,
        max_steps: 100_000,
        ..SimConfig::new(seed)
    }
}

/// A run with all features: locks, waits with and without a timeout, sleeps, joins, random numbers,
/// a killed process.
fn mixed(rt: Runtime) -> u64 {
    let total = Arc::new(rt.mutex(0u64));
    let queue = Arc::new((rt.mutex(Vec::new()), rt.condvar()));
    let consumer = {
        let (rt2, queue, total) = (rt.clone(), queue.clone(), total.clone());
        rt.spawn("consumer", move || {
            let mut taken = 0;
            while taken < 40 {
                let mut items = queue.0.lock();
                while items.is_empty() {
                    items = queue.1.wait(items);
                }
                let item: u64 = items.remove(0);
                taken += 1;
                rt2.yield_point_at(item);
                drop(items);
                *total.lock() += item;
            }
        })
        .unwrap()
    };
    let producers: Vec<_> = (0..4)
        .map(|n| {
            let (rt2, queue) = (rt.clone(), queue.clone());
            rt.spawn(&format!("producer {n}"), move || {
                for i in 0..10 {
                    rt2.yield_point();
                    if rt2.random_u64().is_multiple_of(4) {
                        rt2.sleep(Duration::from_micros(rt2.random_u64() % 50));
                    }
                    queue.0.lock().push(n * 10 + i);
                    queue.1.notify_one();
                }
            })
            .unwrap()
        })
        .collect();
    let victim = {
        let total = total.clone();
        rt.spawn_process("victim", move |rt| {
            let inner = rt.clone();
            let _child = rt.spawn("child", move || {
                loop {
                    inner.sleep(Duration::from_micros(7));
                }
            });
            loop {
                let held = total.lock();
                rt.yield_point();
                drop(held);
                // Without a wait, this loop would run for ever, because time stands still while any
                // task can run.
                rt.sleep(Duration::from_micros(1));
            }
        })
        .unwrap()
    };
    rt.sleep(Duration::ZERO);
    for producer in producers {
        producer.join().unwrap();
        victim.kill();
    }
    consumer.join().unwrap();
    rt.yield_point();
    Arc::try_unwrap(total).unwrap().get_mut().to_owned()
}

#[test]
fn one_seed_one_trace_on_both_back_ends() {
    let mut digests = std::collections::BTreeSet::new();
    for seed in 0..60 {
        let a = sim::run(on(seed, Backend::Coroutines), mixed);
        let again = sim::run(on(seed, Backend::Coroutines), mixed);
        let b = sim::run(on(seed, Backend::Threads), mixed);
        assert_eq!(a.digest, again.digest, "seed {seed} twice");
        assert_eq!(a.digest, b.digest, "seed {seed} on both back ends");
        assert_eq!(
            (a.counters, a.simulated_time),
            (b.counters, b.simulated_time),
            "seed {seed}"
        );
        digests.insert(a.digest);
        assert_eq!(a.unwrap(), 780);
        assert_eq!(b.unwrap(), 780);
    }
    assert_eq!(digests.len(), 60, "every seed has a trace of its own");
}

const BOTH: [Backend; 2] = [Backend::Coroutines, Backend::Threads];

#[test]
fn the_first_decisions_that_differ_are_named() {
    let outcome =
        check_replay(on(3, Backend::Coroutines), mixed).expect("everything comes from the seed");
    let events = outcome.trace.unwrap();
    assert!(
        events.iter().any(|e| e.point == Point::Kill),
        "the kill is in the trace"
    );
    assert!(
        events.iter().any(|e| e.point == Point::Note),
        "notes are in the trace"
    );

    // Storage calls in the order of a randomly seeded map: the tasks alternate alike, and only the
    // notes differ.
    let order_of_a_map = |rt: Runtime| {
        let map: std::collections::HashMap<u64, ()> = (0..64).map(|n| (n, ())).collect();
        map.keys().for_each(|&n| rt.yield_point_at(n));
    };
    let found = check_replay(on(3, Backend::Coroutines), order_of_a_map).unwrap_err();
    assert_eq!(found.seed, 3);
    assert_eq!(found.first.unwrap().point, Point::Note);
}

/// The program reads a clock without the runtime, and so decides the order of two storage calls.
#[test]
fn a_foreign_clock_is_caught() {
    let start = std::time::Instant::now();
    let peeks = move |rt: Runtime| {
        for _ in 0..64 {
            let odd = start.elapsed().as_nanos() & 16 != 0;
            rt.yield_point_at(u64::from(odd));
            rt.yield_point_at(u64::from(!odd));
        }
    };
    // 64 bits of the clock, twice: if its bits were fair, they would agree once in 2^64 runs. Ten
    // seeds make up for a coarse clock.
    let caught = (0..10)
        .filter(|&seed| check_replay(on(seed, Backend::Coroutines), peeks).is_err())
        .count();
    assert!(
        caught > 0,
        "a program that reads std's clock replayed alike for ten seeds"
    );
}

#[test]
fn a_mutex_excludes_across_task_switches() {
    for seed in 0..100 {
        sim::run(on(seed, Backend::Coroutines), |rt| {
            let cell = Arc::new((rt.mutex(0u32), AtomicU64::new(0)));
            let tasks: Vec<_> = (0..5)
                .map(|i| {
                    let (rt2, cell) = (rt.clone(), cell.clone());
                    rt.spawn(&format!("adder {i}"), move || {
                        for _ in 0..20 {
                            let mut value = cell.0.lock();
                            assert_eq!(
                                cell.1.fetch_add(1, Ordering::SeqCst),
                                0,
                                "two tasks hold one mutex"
                            );
                            let seen = *value;
                            rt2.yield_point();
                            *value = seen + 1;
                            cell.1.fetch_sub(1, Ordering::SeqCst);
                            drop(value);
                            if let Some(mut value) = cell.0.try_lock() {
                                *value += 0;
                            }
                        }
                    })
                    .unwrap()
                })
                .collect();
            tasks.into_iter().for_each(|task| task.join().unwrap());
            assert_eq!(*cell.0.lock(), 100);
        })
        .unwrap();
    }
}

#[test]
fn timers_fire_in_order_and_time_stands_still_while_tasks_run() {
    for backend in BOTH {
        for seed in 0..30 {
            let outcome = sim::run(on(seed, backend), |rt| {
                let log = Arc::new(rt.mutex(Vec::new()));
                let tasks: Vec<_> = [30u64, 10, 20, 10, 50]
                    .iter()
                    .map(|&ms| {
                        let (rt2, log) = (rt.clone(), log.clone());
                        rt.spawn("sleeper", move || {
                            rt2.sleep(Duration::from_millis(ms));
                            assert_eq!(
                                rt2.now().as_nanos(),
                                ms * 1_000_000,
                                "woke at its time, not later"
                            );
                            log.lock().push(ms);
                        })
                        .unwrap()
                    })
                    .collect();
                let before = (rt.now(), rt.unix_micros());
                for _ in 0..50 {
                    rt.yield_point();
                }
                assert_eq!(
                    (rt.now(), rt.unix_micros()),
                    before,
                    "time moved while a task could run"
                );
                // This wait is never notified.
                let (lock, condvar) = (rt.mutex(()), rt.condvar());
                let mut guard = lock.lock();
                loop {
                    let (again, timed_out) = condvar.wait_timeout(guard, Duration::from_millis(25));
                    guard = again;
                    if timed_out {
                        break;
                    }
                }
                assert!(rt.now().as_nanos() >= 25_000_000);
                drop(guard);
                tasks.into_iter().for_each(|task| task.join().unwrap());
                std::mem::take(&mut *log.lock())
            });
            assert!(outcome.simulated_time >= Duration::from_millis(50));
            assert_eq!(outcome.unwrap(), [10, 10, 20, 30, 50], "seed {seed}");
        }
    }
}

#[test]
fn random_numbers_and_dates_come_from_the_seed() {
    let draw = |rt: Runtime| (rt.random_u64(), rt.random_u64(), rt.unix_micros());
    let a = sim::run(SimConfig::new(1), draw).unwrap();
    assert_eq!(a, sim::run(SimConfig::new(1), draw).unwrap());
    assert_ne!(a, sim::run(SimConfig::new(2), draw).unwrap());
}

#[test]
fn a_deadlock_names_tasks_locations_and_holders() {
    for backend in BOTH {
        let crossed = |rt: Runtime| {
            let locks = Arc::new((rt.mutex(()), rt.mutex(())));
            let (rt2, other) = (rt.clone(), locks.clone());
            let task = rt
                .spawn("other way round", move || {
                    let _b = other.1.lock();
                    rt2.yield_point();
                    let _a = other.0.lock();
                })
                .unwrap();
            let a = locks.0.lock();
            rt.yield_point();
            let b = locks.1.lock();
            drop((a, b));
            task.join().unwrap();
        };
        let failures: Vec<_> = (0..300)
            .filter_map(|seed| sim::run(on(seed, backend), crossed).result.err())
            .collect();
        assert!(!failures.is_empty(), "no seed of 300 crossed the two locks");
        for failure in failures {
            let text = failure.to_string();
            assert!(
                matches!(&failure, Failure::Deadlock { tasks } if tasks.len() == 2),
                "{text}"
            );
            for part in [
                "`main`",
                "`other way round`",
                "held by task 1",
                "held by task 0",
                "sim.rs:",
            ] {
                assert!(text.contains(part), "`{part}` in {text}");
            }
        }
    }
}

#[test]
fn points_are_bounded() {
    for backend in BOTH {
        let outcome = sim::run(
            SimConfig {
                max_steps: 500,
                ..on(1, backend)
            },
            |rt| {
                loop {
                    rt.sleep(Duration::from_secs(1));
                }
            },
        );
        let counters = outcome.counters;
        let Err::<(), _>(Failure::Steps { limit: 500, tasks }) = outcome.result else {
            panic!("no bound")
        };
        assert!(tasks[0].to_string().contains("`main`"));
        assert_eq!(counters.steps, 501);
    }
}

#[test]
fn a_panic_ends_the_run_and_says_where() {
    for backend in BOTH {
        for reclaim in [Reclaim::Never, Reclaim::Clean, Reclaim::Always] {
            let outcome = sim::run(
                SimConfig {
                    reclaim,
                    ..on(5, backend)
                },
                |rt| {
                    let lock = Arc::new(rt.mutex(()));
                    let (rt2, lock2) = (rt.clone(), lock.clone());
                    let task = rt.spawn("faulty", move || {
                        let _held = lock2.lock();
                        rt2.yield_point();
                        panic!("as {}", "planned");
                    });
                    task.unwrap().join().unwrap();
                },
            );
            let leaked = outcome.counters.leaked;
            let text = outcome.result.unwrap_err().to_string();
            assert!(
                text.contains("`faulty` panicked at") && text.contains("sim.rs:"),
                "{text}"
            );
            assert!(text.contains("as planned"), "{text}");
            assert_eq!(
                leaked,
                u64::from(reclaim != Reclaim::Always),
                "the first task, which waited"
            );
        }
    }
}

/// A destructor that runs during a panic asks for a lock that another task holds.
#[test]
fn a_destructor_that_must_wait_during_a_panic_ends_the_run() {
    struct Locks(Arc<siltstone_storage::Mutex<()>>);
    impl Drop for Locks {
        fn drop(&mut self) {
            drop(self.0.lock());
        }
    }
    for backend in BOTH {
        let outcome = sim::run(on(5, backend), |rt| {
            let lock = Arc::new(rt.mutex(()));
            let held = lock.lock();
            let faulty = rt.spawn("faulty", {
                let lock = lock.clone();
                move || {
                    let _in_the_way = Locks(lock);
                    panic!("the cause");
                }
            });
            let _ = faulty.unwrap().join();
            drop(held);
        });
        let Err(Failure::Panic { task, message, .. }) = outcome.result else {
            panic!("no failure")
        };
        assert_eq!((task.as_str(), message.as_str()), ("faulty", "the cause"));
    }
    // The OS threads of these runs have ended, and the next run is not affected.
    assert_eq!(sim::run(on(1, Backend::Coroutines), mixed).unwrap(), 780);
}

#[test]
fn a_foreign_thread_is_refused() {
    let outcome = sim::run(SimConfig::new(9), |rt| {
        let foreign = std::thread::spawn(move || rt.yield_point());
        let message = *foreign.join().unwrap_err().downcast::<String>().unwrap();
        assert!(message.contains("seed 9"), "{message}");
    });
    outcome.unwrap();
}

#[test]
fn objects_outlive_their_run() {
    for backend in BOTH {
        let (rt, lock) = sim::run(on(2, backend), |rt| (rt.clone(), rt.mutex(7))).unwrap();
        *lock.lock() += 1;
        assert_eq!(lock.try_lock().map(|v| *v), Some(8));
        rt.yield_point();
        assert!(rt.spawn("late", || ()).is_err());
    }
}

#[test]
fn the_production_half_counts_waiters() {
    let rt = Runtime::threads();
    assert!(!rt.is_simulated());
    let shared = Arc::new((rt.mutex(false), rt.condvar()));
    shared.1.notify_all();
    let waiter = rt.spawn("waiter", {
        let shared = shared.clone();
        move || {
            let mut ready = shared.0.lock();
            while !*ready {
                ready = shared.1.wait(ready);
            }
        }
    });
    *shared.0.lock() = true;
    shared.1.notify_one();
    waiter.unwrap().join().unwrap();
    let (ready, _) = shared
        .1
        .wait_timeout(shared.0.lock(), Duration::from_nanos(1));
    assert!(*ready, "the lock is held again after a wait");
}
