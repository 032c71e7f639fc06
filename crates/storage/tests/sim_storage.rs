//! Storages on the simulated runtime: tasks are switched at storage calls, one seed gives one run,
//! and a sync covers what came before it and nothing more.

use std::sync::Arc;
use std::time::Duration;

use siltstone_storage::fault::{Fault, FaultStorage, Rule};
use siltstone_storage::sim::{self, SimConfig, check_replay};
use siltstone_storage::{CrashPolicy, MemoryStorage, OpKind, Runtime, Storage, StorageErrorKind};

/// Three tasks work on one storage with faults. Returns the digest of all calls and the contents
/// after a power loss.
fn busy(rt: Runtime) -> (u64, Vec<(String, Vec<u8>)>) {
    let memory = MemoryStorage::new(&rt);
    let faults = FaultStorage::new(Arc::new(memory.clone()), &rt);
    faults.start_trace(false);
    let e = faults.lease("writer").unwrap().epoch();
    faults.add(Rule::on(OpKind::Sync, Fault::Fail(StorageErrorKind::Io)).nth(4));
    faults.add(
        Rule::on_any(Fault::Delay(Duration::from_micros(30)))
            .nth(9)
            .times(3),
    );
    let tasks: Vec<_> = (0..3)
        .map(|n| {
            let (faults, name) = (faults.clone(), format!("{n}.log"));
            rt.spawn(&name.clone(), move || {
                let w = faults.create(e, &name).unwrap();
                faults.sync_dir(e).unwrap();
                for i in 0..6u8 {
                    w.append(&[&[i + 1; 700]]).unwrap();
                    let _ = w.sync();
                }
            })
            .unwrap()
        })
        .collect();
    for task in tasks {
        task.join().unwrap();
    }
    let image = memory.crash(CrashPolicy::Seeded(rt.random_u64()));
    let names = image.list().unwrap().into_iter().map(|o| o.name);
    let contents = names
        .map(|n| (n.clone(), image.read_small(&n).unwrap()))
        .collect();
    (faults.trace_digest().unwrap(), contents)
}

#[test]
fn one_seed_one_run() {
    let mut digests = std::collections::BTreeSet::new();
    for seed in 0..40 {
        let first = sim::run(SimConfig::new(seed), busy).unwrap();
        let second = check_replay(SimConfig::new(seed), busy).unwrap_or_else(|d| panic!("{d}"));
        assert_eq!(first, second.unwrap(), "seed {seed}");
        digests.insert(first.0);
    }
    assert!(
        digests.len() > 20,
        "tasks are switched at storage calls: {}",
        digests.len()
    );
}

/// A sync covers the appends that returned before it was called. It may or may not cover an append
/// that returns while it runs.
#[test]
fn a_sync_covers_what_was_appended_before_it() {
    let (mut missed, mut covered) = (0, 0);
    for seed in 0..300 {
        let run = move |rt: Runtime| {
            let s = MemoryStorage::new(&rt);
            let e = s.lease("writer").unwrap().epoch();
            let w = s.create(e, "log").unwrap();
            s.sync_dir(e).unwrap();
            s.start_journal();
            let appender = {
                let (w, s) = (w.clone(), s.clone());
                rt.spawn("appender", move || {
                    for _ in 0..8 {
                        w.append(&[&[7; 1000]]).unwrap();
                        s.mark("appended");
                    }
                })
                .unwrap()
            };
            let before = w.position();
            w.sync().unwrap();
            let after = w.position();
            let durable = s
                .crash(CrashPolicy::LoseUnsynced)
                .read_small("log")
                .unwrap();
            appender.join().unwrap();
            // The journal replays to the same result.
            let mut replay = s.replay();
            let sync_at = (0..replay.len())
                .find(|n| replay.kind(*n) == Some(OpKind::Sync))
                .unwrap();
            replay.advance_to(sync_at + 1);
            let (image, _) = replay.crash_in(&rt, CrashPolicy::LoseUnsynced);
            assert_eq!(image.read_small("log").unwrap(), durable);
            w.sync().unwrap();
            assert_eq!(
                s.crash(CrashPolicy::LoseUnsynced)
                    .read_small("log")
                    .unwrap()
                    .len(),
                8000
            );
            (before, durable, after)
        };
        let (before, durable, after) = sim::run(SimConfig::new(seed), run).unwrap();
        assert!(
            durable.len() as u64 >= before,
            "seed {seed}: appended before the sync, lost by a crash after it"
        );
        assert!(durable.iter().all(|b| *b == 7), "seed {seed}");
        missed += u64::from((durable.len() as u64) < after);
        covered += u64::from(durable.len() as u64 == after && after > 0);
    }
    assert!(
        missed > 0 && covered > 0,
        "both must happen: missed {missed}, covered {covered}"
    );
}

/// A delay passes on the simulated clock, so the test does not wait for it.
#[test]
fn delays_cost_no_real_time() {
    let run = |rt: Runtime| {
        let faults = FaultStorage::new(Arc::new(MemoryStorage::new(&rt)), &rt);
        faults.add(Rule::on(
            OpKind::Create,
            Fault::Delay(Duration::from_secs(3600)),
        ));
        let e = faults.lease("writer").unwrap().epoch();
        let start = rt.now();
        drop(faults.create(e, "slow").unwrap());
        rt.now().since(start)
    };
    assert!(sim::run(SimConfig::new(1), run).unwrap() >= Duration::from_secs(3600));
}
