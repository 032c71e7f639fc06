//! Planted bugs that the simulated runtime must find: each within a bounded number of seeds, and
//! none in the correct version of the program.

use std::sync::Arc;

use siltstone_storage::sim::{self, Failure, SimConfig};
use siltstone_storage::{Condvar, Mutex, Runtime};

const SEEDS: u64 = 400;

/// Runs `program` with `buggy` true and false. The buggy one must fail within `SEEDS` seeds, the
/// correct one never.
fn find(name: &str, program: fn(Runtime, bool)) -> Failure {
    let run = |seed, buggy| {
        let config = SimConfig {
            max_steps: 20_000,
            ..SimConfig::new(seed)
        };
        sim::run(config, move |rt| program(rt, buggy)).result
    };
    for seed in 0..SEEDS {
        if let Err(failure) = run(seed, false) {
            panic!("{name}: the correct program fails with seed {seed}: {failure}");
        }
    }
    let first = (0..SEEDS).find_map(|seed| run(seed, true).err().map(|failure| (seed, failure)));
    let (seed, failure) = first.unwrap_or_else(|| panic!("{name}: not found in {SEEDS} seeds"));
    println!("{name}: found with seed {seed}");
    failure
}

fn pair<T>(rt: &Runtime, shared: T, body: fn(&Runtime, &T, u32)) -> Arc<T>
where
    T: Send + Sync + 'static,
{
    let shared = Arc::new(shared);
    let tasks: Vec<_> = (0..2)
        .map(|n| {
            let (rt2, shared) = (rt.clone(), shared.clone());
            rt.spawn(&format!("task {n}"), move || body(&rt2, &shared, n))
                .unwrap()
        })
        .collect();
    tasks.into_iter().for_each(|task| task.join().unwrap());
    shared
}

/// The program checks in one critical section and acts in the next.
#[test]
fn check_then_act_across_a_lock() {
    find("check then act across a lock", |rt, buggy| {
        let shared = pair(&rt, (rt.mutex(10i32), buggy), |_, (balance, buggy), _| {
            if *buggy {
                let enough = *balance.lock() >= 10;
                if enough {
                    *balance.lock() -= 10;
                }
            } else {
                let mut balance = balance.lock();
                if *balance >= 10 {
                    *balance -= 10;
                }
            }
        });
        assert_eq!(*shared.0.lock(), 0, "overdrawn");
    });
}

/// The program reads, makes a storage call and writes back, so an update is lost.
#[test]
fn lost_update_across_a_storage_call() {
    find("lost update across a storage call", |rt, buggy| {
        let shared = pair(&rt, (rt.mutex(0u32), buggy), |rt, (count, buggy), _| {
            let mut guard = count.lock();
            let seen = *guard;
            if *buggy {
                drop(guard);
                rt.yield_point();
                guard = count.lock();
            } else {
                rt.yield_point();
            }
            *guard = seen + 1;
        });
        assert_eq!(*shared.0.lock(), 2, "lost update");
    });
}

/// Two tasks decide without a lock which one creates a file. Only storage calls are points.
#[test]
fn exists_then_create() {
    use std::sync::atomic::{AtomicU32, Ordering};
    find("exists then create", |rt, buggy| {
        let shared = pair(
            &rt,
            (AtomicU32::new(0), buggy),
            |rt, (created, buggy), _| {
                rt.yield_point();
                if *buggy {
                    let exists = created.load(Ordering::SeqCst) > 0;
                    rt.yield_point();
                    if !exists {
                        created.fetch_add(1, Ordering::SeqCst);
                    }
                } else {
                    let _ = created.compare_exchange(0, 1, Ordering::SeqCst, Ordering::SeqCst);
                }
            },
        );
        assert_eq!(shared.0.load(Ordering::SeqCst), 1, "created twice");
    });
}

/// A reader takes its number before its view, and a job in between drops entries that the reader
/// needs.
#[test]
fn number_before_view() {
    struct Store {
        published: Mutex<u64>,
        /// The oldest version that is in the view.
        view: Mutex<u64>,
        buggy: bool,
    }
    find("number before view", |rt, buggy| {
        let store = Store {
            published: rt.mutex(1),
            view: rt.mutex(1),
            buggy,
        };
        pair(&rt, store, |_, store, n| {
            if n == 0 {
                for number in 2..5 {
                    *store.published.lock() = number;
                    *store.view.lock() = number;
                }
            } else if store.buggy {
                let number = *store.published.lock();
                let oldest = *store.view.lock();
                assert!(
                    oldest <= number,
                    "the view at {oldest} lacks entries for a read at {number}"
                );
            } else {
                let oldest = *store.view.lock();
                let number = *store.published.lock();
                assert!(
                    oldest <= number,
                    "the view at {oldest} lacks entries for a read at {number}"
                );
            }
        });
    });
}

/// The leader of a sync answers the followers before it checks whether the log was poisoned.
#[test]
fn acknowledged_before_poisoned() {
    struct Log {
        poisoned: Mutex<bool>,
        /// The kernel reports a write-back error only once.
        error_pending: Mutex<bool>,
        acknowledged: Mutex<bool>,
        role: Mutex<()>,
        buggy: bool,
    }
    find("acknowledged before poisoned", |rt, buggy| {
        let log = Log {
            poisoned: rt.mutex(false),
            error_pending: rt.mutex(true),
            acknowledged: rt.mutex(false),
            role: rt.mutex(()),
            buggy,
        };
        let log = pair(&rt, log, |rt, log, _| {
            let _role = (!log.buggy).then(|| log.role.lock());
            if *log.poisoned.lock() {
                return;
            }
            rt.yield_point();
            let failed = std::mem::take(&mut *log.error_pending.lock());
            if failed {
                *log.poisoned.lock() = true;
            } else if !*log.poisoned.lock() {
                *log.acknowledged.lock() = true;
            }
        });
        assert!(!*log.acknowledged.lock(), "acknowledged lost data");
    });
}

/// Two locks are updated one after the other, and another task sees a wrong sum.
#[test]
fn torn_invariant_over_two_locks() {
    find("torn invariant over two locks", |rt, buggy| {
        let shared = (rt.mutex(5i32), rt.mutex(5i32), rt.mutex(()), buggy);
        pair(&rt, shared, |_, (a, b, both, buggy), n| {
            let _both = (!buggy).then(|| both.lock());
            if n == 0 {
                *a.lock() -= 3;
                *b.lock() += 3;
            } else {
                let sum = *a.lock() + *b.lock();
                assert_eq!(sum, 10, "a transfer seen by half");
            }
        });
    });
}

struct Gate {
    open: Mutex<bool>,
    changed: Condvar,
    buggy: bool,
}

/// The task checks the flag, releases the lock and then waits. The notification in between is lost,
/// and no task can run any more.
#[test]
fn lost_wake_up_is_a_deadlock() {
    let failure = find("lost wake-up", |rt, buggy| {
        let gate = Gate {
            open: rt.mutex(false),
            changed: rt.condvar(),
            buggy,
        };
        pair(&rt, gate, |_, gate, n| {
            if n == 0 {
                *gate.open.lock() = true;
                gate.changed.notify_all();
            } else if gate.buggy {
                let open = *gate.open.lock();
                if !open {
                    drop(gate.changed.wait(gate.open.lock()));
                }
            } else {
                let mut open = gate.open.lock();
                while !*open {
                    open = gate.changed.wait(open);
                }
            }
        });
    });
    assert!(matches!(failure, Failure::Deadlock { .. }), "{failure}");
    assert!(
        failure
            .to_string()
            .contains("waits for a notification of the condition variable made at"),
        "{failure}"
    );
}

/// The program has `if` where `while` is needed. This is found because some waits wake spuriously,
/// and because a third task takes what the notification announced.
#[test]
fn a_wait_without_a_loop() {
    find("a wait without a loop", |rt, buggy| {
        let gate = Gate {
            open: rt.mutex(false),
            changed: rt.condvar(),
            buggy,
        };
        pair(&rt, gate, |rt, gate, n| {
            let mut open = gate.open.lock();
            if n == 0 {
                rt.yield_point();
                *open = true;
                gate.changed.notify_one();
            } else if gate.buggy {
                if !*open {
                    open = gate.changed.wait(open);
                }
                assert!(*open, "went on through a closed gate");
            } else {
                while !*open {
                    open = gate.changed.wait(open);
                }
            }
        });
    });
}
