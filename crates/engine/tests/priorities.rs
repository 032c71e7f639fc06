//! Compactions, and what is made ready for writers, run with a lower priority than the threads of
//! the program, and flushes with a slightly lower one.
#![cfg(target_os = "linux")]
// Real threads and files: simulated tasks have no priorities.
#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

use std::collections::BTreeMap;
use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use siltstone::{Options, Store};

/// The highest nice value of each name of a thread of this process that was seen.
fn nice_values(seen: &mut BTreeMap<String, i32>) {
    let Ok(tasks) = fs::read_dir("/proc/self/task") else {
        return;
    };
    for task in tasks.flatten() {
        // A thread may end at any time.
        if let Ok(stat) = fs::read_to_string(task.path().join("stat")) {
            let (name, nice) = name_and_nice(&stat);
            let highest = seen.entry(name.into()).or_insert(nice);
            *highest = nice.max(*highest);
        }
    }
}

/// The name and the nice value of a thread, from its line in `/proc`.
fn name_and_nice(stat: &str) -> (&str, i32) {
    let (name, fields) = stat.rsplit_once(')').expect("a name in parentheses");
    let name = name.split_once('(').expect("a name in parentheses").1;
    // The nice value is field 19, and the first of these is field 3.
    let nice = fields.split_whitespace().nth(16).expect("a nice value");
    (name, nice.parse().expect("a number"))
}

/// The nice values while a store is written and compacted 20 times.
fn while_compacting(compaction_nice: u32) -> BTreeMap<String, i32> {
    let folder = tempfile::tempdir().unwrap();
    let options = Options {
        compaction_nice,
        memtable_bytes: 1 << 20,
        ..Options::default()
    };
    let store = Store::open(folder.path(), options).unwrap();
    let keyspace = store.default_keyspace().unwrap();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let watch = scope.spawn(|| {
            let mut seen = BTreeMap::new();
            while !done.load(Ordering::Acquire) {
                nice_values(&mut seen);
                thread::sleep(Duration::from_micros(200));
            }
            seen
        });
        for round in 0..20u64 {
            for i in 0..20_000u64 {
                let key = (i.wrapping_mul(0x9e37_79b9_7f4a_7c15)).to_be_bytes();
                keyspace.put(key, [round as u8; 100]).unwrap();
            }
            keyspace.compact_range(None, None).unwrap();
        }
        done.store(true, Ordering::Release);
        watch.join().unwrap()
    })
}

/// A store that lowers the priority of compactions, and one that does not. They run one after the
/// other, because threads of both have the same names.
#[test]
fn compactions_yield_to_the_program_and_flushes_a_little() {
    let own = fs::read_to_string("/proc/thread-self/stat").unwrap();
    let own = name_and_nice(&own).1;
    let lowered = while_compacting(7);
    assert_eq!(
        lowered.get("silt-compaction"),
        Some(&(own + 7).min(19)),
        "{lowered:?}"
    );
    for (name, nice) in lowered {
        let most = match &*name {
            // The last worker takes flushes only if there are many.
            "silt-compaction" | "silt-worker-2" => 7,
            name if name.starts_with("subjob-") => 7,
            "silt-supplies" | "silt-log-values" => 3,
            name if name.starts_with("silt-worker") => 3,
            _ => 0,
        };
        assert!(
            (own..=own + most).contains(&nice),
            "{name} has {nice}, and not {own} to {}",
            own + most
        );
    }
    for (name, nice) in while_compacting(0) {
        assert_ne!(name, "silt-compaction");
        assert_eq!(nice, own, "{name}");
    }
}
