//! Measures how many simulated runs one core makes in a second:
//! `cargo run --release -p siltstone-storage --example sim_throughput`. A run has four tasks that
//! together make 2,000 storage calls under a runtime lock (so it has 4,000 yield points). The seed
//! determines the rates.

use std::sync::Arc;
use std::time::{Duration, Instant};

use siltstone_storage::sim::{self, Backend, Counters, SimConfig};

fn run(seed: u64, backend: Backend) -> Counters {
    let outcome = sim::run(
        SimConfig {
            backend,
            ..SimConfig::new(seed)
        },
        |rt| {
            let lock = Arc::new(rt.mutex(0u64));
            let tasks: Vec<_> = (0..4)
                .map(|_| {
                    let (rt2, lock) = (rt.clone(), lock.clone());
                    let body = move || {
                        for call in 0..500 {
                            *lock.lock() += 1;
                            rt2.yield_point_at(call);
                        }
                    };
                    rt.spawn("writer", body).expect("a stack")
                })
                .collect();
            tasks
                .into_iter()
                .for_each(|task| task.join().expect("no task is killed"));
        },
    );
    let counters = outcome.counters;
    outcome.unwrap();
    counters
}

fn main() {
    for (backend, limit) in [(Backend::Coroutines, 3), (Backend::Threads, 2)] {
        let start = Instant::now();
        let (mut runs, mut steps, mut switches) = (0u64, 0, 0);
        while start.elapsed() < Duration::from_secs(limit) {
            let counters = run(runs, backend);
            runs += 1;
            steps += counters.steps;
            switches += counters.switches;
        }
        let seconds = start.elapsed().as_secs_f64();
        println!(
            "{backend:?}: {:.0} runs/s, {:.0} points and {:.0} switches a run, {:.0} ns a point",
            runs as f64 / seconds,
            steps as f64 / runs as f64,
            switches as f64 / runs as f64,
            seconds * 1e9 / steps as f64
        );
    }
}
