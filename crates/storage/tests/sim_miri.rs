//! A run that is small enough for Miri, which can follow only the back end with OS threads:
//! `cargo +nightly miri test -p siltstone-storage --test sim_miri`.

use std::sync::Arc;
use std::time::Duration;

use siltstone_storage::sim::{self, Backend, Reclaim, SimConfig};

#[test]
fn locks_waits_and_kills_on_threads() {
    for seed in 0..3 {
        let config = SimConfig {
            backend: Backend::Threads,
            reclaim: Reclaim::Always,
            watchdog: None,
            ..SimConfig::new(seed)
        };
        let outcome = sim::run(config, |rt| {
            let gate = Arc::new((rt.mutex(0u32), rt.condvar()));
            let task = rt
                .spawn("opener", {
                    let gate = gate.clone();
                    move || {
                        *gate.0.lock() += 1;
                        gate.1.notify_all();
                    }
                })
                .unwrap();
            let victim = rt
                .spawn_process("victim", {
                    let gate = gate.clone();
                    move |rt| {
                        let _held = gate.0.lock();
                        rt.sleep(Duration::from_secs(9));
                    }
                })
                .unwrap();
            task.join().unwrap();
            rt.sleep(Duration::from_secs(1));
            victim.kill();
            let mut opened = gate.0.lock();
            while *opened == 0 {
                opened = gate.1.wait(opened);
            }
            *opened
        });
        assert_eq!(outcome.counters.leaked, 0);
        assert_eq!(outcome.unwrap(), 1);
    }
}
