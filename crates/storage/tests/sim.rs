//! The simulated runtime: replay, back ends, locks, waits, time, failures.

use std::sync::Arc;
use std::time::Duration;

use siltstone_storage::Runtime;
use siltstone_storage::sim::{self, Backend, SimConfig};

fn on(seed: u64, backend: Backend) -> SimConfig {
    SimConfig {
        backend,
        max_steps: 100_000,
        ..SimConfig::new(seed)
    }
}

/// A run with everything in it: locks, waits with and without time, sleeps, joins, random numbers, a killed process.
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
                // Without a wait in its loop it would run for ever: time stands while anybody can run.
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
