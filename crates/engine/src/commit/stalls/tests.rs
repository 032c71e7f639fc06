//! Writers that are slowed down together, in simulated time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};

use siltstone_storage::sim::{SimConfig, run};

use super::*;
use crate::types::options::StallPolicy;
use crate::types::pressure;

const MIB: u64 = 1 << 20;

const LIMITS: Limits = Limits {
    policy: StallPolicy::Slowdown,
    sealed_memtables: 3,
    l0_slowdown: 20,
    l0_stop: 36,
    pending_slowdown: u64::MAX,
    pending_stop: u64::MAX,
    log_bytes: 1 << 40,
    redirect_log_bytes: 0,
    memtable_bytes: 4 * MIB,
};

fn depth(l0_depth: u64) -> Load {
    Load {
        l0_depth,
        ..Load::default()
    }
}

fn simulated(story: impl FnOnce(Runtime) + Send + 'static) {
    run(SimConfig::new(7), story).result.unwrap();
}

/// A load that tests change while writers ask for it.
#[derive(Clone, Default)]
struct Scene {
    l0_depth: Arc<AtomicU64>,
    over: Arc<AtomicBool>,
}

impl Scene {
    fn decide(&self) -> (Decision, Load, Limits) {
        let load = depth(self.l0_depth.load(Ordering::Relaxed));
        (pressure::decide(&load, &LIMITS), load, LIMITS)
    }

    fn writer(
        &self,
        runtime: &Runtime,
        stalls: &Arc<Stalls>,
        keyspace: KeyspaceId,
        bytes: u64,
    ) -> siltstone_storage::JoinHandle<u64> {
        let (scene, stalls) = (self.clone(), stalls.clone());
        let write = move || {
            let mut written = 0;
            while !scene.over.load(Ordering::Relaxed) {
                let give_up = || scene.over.load(Ordering::Relaxed);
                let waited =
                    stalls.wait_for((keyspace, "k"), bytes, None, || scene.decide(), give_up);
                if matches!(waited, Waited::Passed { .. }) {
                    written += bytes;
                }
            }
            written
        };
        runtime.spawn("writer", write).unwrap()
    }
}

#[test]
fn writers_share_what_the_distance_leaves() {
    simulated(|rt| {
        let stalls = Arc::new(Stalls::new(
            &rt,
            Events::start(&rt, None).unwrap(),
            Arc::new(Notify::new(&rt)),
        ));
        // Filled in a quarter of a second: 16 MiB/s. (Times are the simulation's.)
        rt.sleep(Duration::from_millis(250));
        stalls.sealed(1, 4 * MIB);
        stalls.sealed(2, 4 * MIB);
        let mut before = u64::MAX;
        for l0_depth in [20, 24, 30] {
            let scene = Scene::default();
            scene.l0_depth.store(l0_depth, Ordering::Relaxed);
            let writers: Vec<_> = [1000, 20_000, 200_000]
                .map(|bytes| scene.writer(&rt, &stalls, 1, bytes))
                .into();
            rt.sleep(Duration::from_secs(4));
            scene.over.store(true, Ordering::Relaxed);
            stalls.pressure.notify();
            let written: Vec<u64> = writers.into_iter().map(|w| w.join().unwrap()).collect();
            let (least, most) = (written.iter().min().unwrap(), written.iter().max().unwrap());
            // (A batch costs a few bytes beside its own.)
            assert!(most - least <= most / 10, "{l0_depth}: {written:?}");
            let all: u64 = written.iter().sum();
            assert!(all < before / 10 * 9, "{l0_depth}: {all} after {before}");
            assert!(all > MIB, "{l0_depth}: {all}");
            before = all;
            // Each slowdown begins anew.
            rt.sleep(Duration::from_secs(2));
        }
        let totals = stalls.totals();
        let of = |cause: StallCause| totals.iter().find(|(c, _)| *c == cause).unwrap().1;
        assert!(of(StallCause::L0Slowdown).count > 100);
        assert!(of(StallCause::L0Slowdown).total_us > 1_000_000);
        assert_eq!(of(StallCause::L0Stop), DelayTotal::default());
        assert_eq!(stalls.waiting_count(), 0);
    });
}

#[test]
fn a_slowed_keyspace_delays_no_other_and_relief_is_noticed_at_once() {
    simulated(|rt| {
        let stalls = Arc::new(Stalls::new(
            &rt,
            Events::start(&rt, None).unwrap(),
            Arc::new(Notify::new(&rt)),
        ));
        let scene = Scene::default();
        scene.l0_depth.store(35, Ordering::Relaxed);
        // One batch in debt for minutes, and one behind it.
        let large = scene.writer(&rt, &stalls, 1, 40 * MIB);
        rt.sleep(Duration::from_secs(1));
        let begin = rt.now();
        let pass = stalls.wait_for((2, "other"), 1000, None, || scene.decide(), || false);
        assert!(matches!(pass, Waited::Passed { .. }));
        assert_eq!(rt.now(), begin);
        assert_eq!(stalls.waiting_count(), 1);
        // The limit itself: nobody passes, whatever the rate limit says.
        scene.l0_depth.store(36, Ordering::Relaxed);
        let waiter = {
            let (scene, stalls) = (scene.clone(), stalls.clone());
            let wait =
                move || stalls.wait_for((2, "other"), 1000, None, || scene.decide(), || false);
            rt.spawn("writer", wait).unwrap()
        };
        rt.sleep(Duration::from_secs(5));
        assert_eq!(stalls.waiting_count(), 2);
        let relieved = rt.now();
        scene.over.store(true, Ordering::Relaxed);
        scene.l0_depth.store(3, Ordering::Relaxed);
        stalls.pressure.notify();
        assert!(matches!(waiter.join().unwrap(), Waited::Passed { .. }));
        large.join().unwrap();
        assert_eq!(rt.now(), relieved);
        assert_eq!(stalls.waiting_count(), 0);
        let stop = stalls.totals()[StallCause::L0Stop as usize].1;
        assert_eq!((stop.count, stop.total_us), (1, 5_000_000));
        // Dropped keyspaces are forgotten.
        stalls.forget(1);
        assert!(!stalls.inner.lock().write_rates.contains_key(&1));
    });
}
