//! The `metrics` facade: a recorder gets the figures of `Store::stats`. The test has a process of
//! its own, because a recorder is for the whole process.
// A recorder is the user's code, and real threads run here.
#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::{key, small};
use metrics::{Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit};
use siltstone::{Options, Store};

/// All figures by name and labels. Gauges have the bits of their numbers.
#[derive(Clone, Default)]
struct Figures(Arc<Mutex<BTreeMap<String, Arc<AtomicU64>>>>);

impl Figures {
    fn of(&self, key: &Key) -> Arc<AtomicU64> {
        let labels = key.labels().map(|l| format!("{}={}", l.key(), l.value()));
        let name = format!("{} {}", key.name(), labels.collect::<Vec<_>>().join(" "));
        self.0.lock().unwrap().entry(name).or_default().clone()
    }

    fn get(&self, name: &str) -> u64 {
        let figures = self.0.lock().unwrap();
        let figure = figures.get(name).unwrap_or_else(|| panic!("no {name}"));
        figure.load(Ordering::Relaxed)
    }
}

impl Recorder for Figures {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(self.of(key))
    }
    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(self.of(key))
    }
    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}

/// The names in the guide's table of metrics.
fn documented() -> BTreeSet<&'static str> {
    let guide = include_str!("../src/guide/watching.md");
    let rows = guide.lines().filter_map(|line| line.strip_prefix("| `"));
    let names = rows.filter_map(|row| row.split('`').next());
    names
        .filter(|name| name.starts_with("siltstone_"))
        .collect()
}

/// Metrics that a store has only with another executor, or once a compaction was measured.
const NOT_ALWAYS: [&str; 6] = [
    "siltstone_side_compaction_bytes_per_s",
    "siltstone_side_compaction_ns_per_byte",
    "siltstone_side_has_small_end",
    "siltstone_side_link_bytes",
    "siltstone_side_saved_cpu_us",
    "siltstone_side_saved_link_bytes",
];

#[test]
fn a_recorder_gets_the_figures_of_stats() {
    let figures = Figures::default();
    metrics::set_global_recorder(figures.clone()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let options = Options {
        // The recorder is updated whether or not a file is published.
        stats_file_ms: 0,
        ..small()
    };
    let store = Store::open(folder.path(), options).unwrap();
    let ks = store.create_keyspace("a").unwrap();
    for i in 0..500 {
        ks.put(&key(i), &[1; 100]).unwrap();
    }
    store.flush().unwrap();
    store.wait_until_idle().unwrap();
    let at = format!("store={}", folder.path().display());
    let rt = siltstone_storage::Runtime::threads();
    // It happens soon; how soon depends on the scheduler.
    let flushes = format!("siltstone_flush_count {at}");
    let fed = (0..6000).any(|_| {
        rt.sleep(Duration::from_millis(10));
        let there = figures.0.lock().unwrap().contains_key(&flushes);
        there && figures.get(&flushes) == 1
    });
    assert!(fed, "{:?}", figures.0.lock().unwrap().keys());
    let stats = store.stats();
    for name in ["put_count", "user_bytes", "flush_out_bytes", "get_count"] {
        let found = figures.get(&format!("siltstone_{name} {at}"));
        assert_eq!(found, stats.counter(name), "{name}");
    }
    let gauge = |name: &str| f64::from_bits(figures.get(name));
    let keyspace = stats.keyspaces.iter().find(|k| k.name == "a").unwrap();
    let level = &keyspace.levels[0];
    assert_eq!(level.table_count, 1);
    let score = gauge(&format!("siltstone_level_score {at} keyspace=a level=0"));
    assert!(score > 0.0 && score < 1.0, "{score}");
    assert_eq!(score, keyspace.level_scores[0]);
    for (name, expected) in [
        ("run_count", level.run_count),
        ("table_count", level.table_count),
        ("file_bytes", level.file_bytes),
        ("running_job_count", 0),
        ("waiting_job_count", 0),
        ("waiting_bytes", 0),
    ] {
        let found = gauge(&format!("siltstone_level_{name} {at} keyspace=a level=0"));
        assert_eq!(found, expected as f64, "{name}");
    }
    let flush = stats.latencies["flush"];
    let quantile = |q| {
        gauge(&format!(
            "siltstone_latency_ns {at} call=flush quantile={q}"
        ))
    };
    assert_eq!(quantile("0.99"), flush.p99_ns as f64);
    assert_eq!(quantile("1"), flush.max_ns as f64);
    assert_eq!(
        figures.get(&format!("siltstone_delay_count {at} cause=l0_stop")),
        0
    );
    assert_eq!(gauge(&format!("siltstone_writable {at}")), 1.0);
    let host = &stats.sides[0];
    for (name, expected) in [
        ("slot_count", host.slot_count),
        ("lost_slot_count", 0),
        ("running_job_count", 0),
        ("running_in_bytes", 0),
        ("running_read_bytes", 0),
        ("running_out_bytes", 0),
        ("running_left_us", 0),
        ("waiting_job_count", 0),
        ("suspended_us", 0),
    ] {
        let labels = format!("{at} executor=cpu side=host");
        let found = gauge(&format!("siltstone_side_{name} {labels}"));
        assert_eq!(found, expected as f64, "{name}");
    }
    for (name, expected) in [
        ("compaction_count", host.compaction_count),
        ("compaction_in_bytes", host.compaction_in_bytes),
        ("host_cpu_us", host.host_cpu_us),
        ("failed_count", 0),
        ("declined_count", 0),
        ("rejected_count", 0),
        ("suspended_count", 0),
    ] {
        let labels = format!("{at} executor=cpu side=host");
        assert_eq!(
            figures.get(&format!("siltstone_side_{name} {labels}")),
            expected,
            "{name}"
        );
    }
    let speed = gauge(&format!(
        "siltstone_side_flush_bytes_per_s {at} executor=cpu side=host"
    ));
    assert_eq!(Some(speed), host.flush_bytes_per_s);
    // The guide lists all of them, and no others.
    let keys: Vec<String> = figures.0.lock().unwrap().keys().cloned().collect();
    let recorded: BTreeSet<&str> = keys
        .iter()
        .filter_map(|key| key.split(' ').next())
        .collect();
    let documented = documented();
    let is_counter = |name: &str| {
        let counter = name.strip_prefix("siltstone_");
        counter.is_some_and(|counter| stats.counters.contains_key(counter))
    };
    for name in &recorded {
        let is_known = documented.contains(*name) || is_counter(name);
        assert!(is_known, "the guide does not list {name}");
    }
    for name in documented.difference(&recorded) {
        let is_expected = *name == "siltstone_NAME" || NOT_ALWAYS.contains(name);
        assert!(is_expected, "no recorder gets {name}");
    }
    store.close().unwrap();
}
