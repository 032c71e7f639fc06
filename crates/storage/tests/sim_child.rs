//! Tests that need a second process of the operating system: replay across processes, and the
//! watchdog, which aborts.

use std::process::{Command, Output};
use std::sync::Arc;
use std::time::Duration;

use siltstone_storage::Runtime;
use siltstone_storage::sim::{self, SimConfig};

/// The environment variable with the scenario that a child runs instead of the test.
const CHILD: &str = "SILTSTONE_SIM_CHILD";

/// Runs the test `test` of this file in a child process that runs `scenario`.
fn child(test: &str, scenario: &str) -> Output {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args([test, "--exact", "--nocapture"])
        .env(CHILD, scenario)
        .env("RUST_BACKTRACE", "0");
    command.output().unwrap()
}

fn scenario() -> Option<String> {
    std::env::var(CHILD).ok()
}

fn work(rt: Runtime, order: Vec<u64>) {
    let lock = Arc::new(rt.mutex(0u64));
    let tasks: Vec<_> = (0..3)
        .map(|n| {
            let (rt2, lock, order) = (rt.clone(), lock.clone(), order.clone());
            let body = move || {
                for name in order {
                    let mut held = lock.lock();
                    rt2.yield_point_at(name);
                    *held ^= rt2.random_u64();
                }
            };
            rt.spawn(&format!("task {n}"), body).unwrap()
        })
        .collect();
    tasks.into_iter().for_each(|task| task.join().unwrap());
}

/// One line with the digests of several seeds.
fn digests(order: impl Fn() -> Vec<u64>) -> String {
    let digest = |seed| {
        let order = order();
        let outcome = sim::run(SimConfig::new(seed), move |rt| work(rt, order));
        format!("{:016x}", outcome.digest)
    };
    format!(
        "digests {}",
        (0..20).map(digest).collect::<Vec<_>>().join(" ")
    )
}

fn line_of(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stdout);
    let start = text
        .find("digests ")
        .unwrap_or_else(|| panic!("no digests in {text}"));
    text[start..].lines().next().unwrap().to_string()
}

#[test]
fn a_seed_replays_in_another_process() {
    let fixed = || (0..16).collect::<Vec<u64>>();
    // The order of a map with random state. It differs in each process, and in each map.
    let random = || {
        fixed()
            .into_iter()
            .collect::<std::collections::HashSet<u64>>()
            .into_iter()
            .collect()
    };
    match scenario().as_deref() {
        Some("fixed") => return println!("\n{}", digests(fixed)),
        Some(_) => return println!("\n{}", digests(random)),
        None => {}
    }
    let test = "a_seed_replays_in_another_process";
    let (a, b) = (
        line_of(&child(test, "fixed")),
        line_of(&child(test, "fixed")),
    );
    assert_eq!(a, b);
    assert_eq!(a, digests(fixed), "and in this one");
    let (a, b) = (
        line_of(&child(test, "random")),
        line_of(&child(test, "random")),
    );
    assert_ne!(a, b, "storage calls in a map's random order replayed alike");
}

/// A std mutex that is held over a storage call stops the whole run; a runtime mutex does not.
#[test]
fn the_watchdog_catches_a_std_mutex_that_is_held_over_a_storage_call() {
    let config = SimConfig {
        watchdog: Some(Duration::from_millis(200)),
        ..SimConfig::new(77)
    };
    if scenario().is_some() {
        let outcome = sim::run(config, |rt| {
            let plain = Arc::new(std::sync::Mutex::new(0));
            let tasks: Vec<_> = (0..2)
                .map(|n| {
                    let (rt2, plain) = (rt.clone(), plain.clone());
                    let body = move || {
                        for _ in 0..1000 {
                            let mut held = plain.lock().unwrap();
                            rt2.yield_point();
                            *held += 1;
                        }
                    };
                    rt.spawn(&format!("writer {n}"), body).unwrap()
                })
                .collect();
            tasks.into_iter().for_each(|task| task.join().unwrap());
        });
        outcome.unwrap();
        return;
    }
    let output = child(
        "the_watchdog_catches_a_std_mutex_that_is_held_over_a_storage_call",
        "plain",
    );
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "the child ended well: {text}");
    assert!(
        text.contains("simulation seed 77: task") && text.contains("`writer"),
        "{text}"
    );
    assert!(text.contains("blocks outside the runtime"), "{text}");

    // The same program with a runtime mutex runs to its end.
    let outcome = sim::run(
        SimConfig {
            watchdog: Some(Duration::from_secs(30)),
            ..config
        },
        |rt| work(rt, vec![1; 1000]),
    );
    assert!(outcome.counters.switches > 3);
    outcome.unwrap();
}
