//! Outages of the storage below the wrapper of [`crate::env::repeating`].

use std::sync::Arc;
use std::time::Duration;

use siltstone_storage::fault::{Effect, Fault, FaultStorage, Rule};
use siltstone_storage::sim::{self, SimConfig};
use siltstone_storage::{
    Epoch, Instant, MemoryStorage, OpKind, Runtime, Storage, StorageErrorKind,
};

use super::Outage;
use crate::env::repeating::{not_waiting, repeating};
use crate::formats::directories::Storages;

const EPOCH: Epoch = Epoch(0);

struct Stage {
    runtime: Runtime,
    memory: MemoryStorage,
    faults: FaultStorage,
    outage: Arc<Outage>,
    /// The storage whose calls wait.
    storage: Arc<dyn Storage>,
    /// The one whose calls do not.
    at_once: Arc<dyn Storage>,
}

impl Stage {
    /// Fails all calls of this kind until `end`, each after a second.
    fn cut(&self, kind: OpKind, effect: Effect, end: Instant) -> usize {
        let limit = Duration::from_secs(1);
        let rule = Rule::on(kind, Fault::Unreachable { limit, effect });
        self.faults.add(rule.for_good().until(end))
    }

    fn in_secs(&self, secs: u64) -> Instant {
        self.runtime.now() + Duration::from_secs(secs)
    }

    fn names(&self) -> Vec<String> {
        let all = self.memory.list().unwrap();
        all.into_iter().map(|object| object.name).collect()
    }
}

/// Plays a story with several seeds.
fn play(story: impl Fn(Stage) + Clone + Send + 'static) {
    for seed in 0..4 {
        let story = story.clone();
        let run = sim::run(SimConfig::new(seed), move |runtime: Runtime| {
            let memory = MemoryStorage::new(&runtime);
            let faults = FaultStorage::new(Arc::new(memory.clone()), &runtime);
            let outage = Arc::new(Outage::new(&runtime));
            let inner: Arc<dyn Storage> = Arc::new(faults.clone());
            story(Stage {
                runtime,
                memory,
                faults,
                storage: repeating(&Storages::on(inner.clone()), &outage, &outage).manifest,
                at_once: not_waiting(&inner, &outage),
                outage,
            });
        });
        if let Err(failure) = run.result {
            panic!("seed {seed}: {failure}");
        }
    }
}

#[test]
fn a_call_waits_until_the_storage_can_be_reached() {
    play(|stage| {
        stage.outage.begin_waits();
        let end = stage.in_secs(10);
        let began = stage.runtime.unix_micros();
        for kind in [OpKind::Create, OpKind::Append, OpKind::Sync] {
            stage.cut(kind, Effect::None, end);
        }
        let watched = stage.outage.clone();
        let clock = stage.runtime.clone();
        let watch = move || {
            clock.sleep(Duration::from_secs(5));
            (watched.is_unreachable(), watched.since_unix_us())
        };
        let watch = stage.runtime.spawn("watch", watch).unwrap();
        let file = stage.storage.create(EPOCH, "a").unwrap();
        assert!(stage.runtime.now() >= end);
        file.append(&[b"x"]).unwrap();
        file.sync().unwrap();
        let (is_unreachable, since) = watch.join().unwrap();
        assert!(is_unreachable && since.is_some_and(|since| since >= began));
        let outage = &stage.outage;
        assert!(!outage.is_unreachable() && outage.since_unix_us().is_none());
        assert_eq!((outage.count.get(), outage.wait_count.get()), (1, 1));
        assert!(outage.wait_us.get() > 0);
    });
}

#[test]
fn nothing_waits_before_the_open_is_complete() {
    play(|stage| {
        let rule = stage.cut(OpKind::Create, Effect::None, stage.in_secs(10));
        let error = stage.storage.create(EPOCH, "a").err().unwrap();
        assert_eq!(error.kind, StorageErrorKind::Unreachable);
        assert_eq!(stage.faults.fired_count(rule), 1);
        // The call did not end anything for good.
        stage.faults.clear();
        stage.storage.create(EPOCH, "a").unwrap();
    });
}

#[test]
fn a_deletion_and_a_renaming_that_took_effect_succeed() {
    play(|stage| {
        stage.outage.begin_waits();
        for name in ["a", "b"] {
            stage.storage.create(EPOCH, name).unwrap();
        }
        let end = stage.in_secs(3);
        let renaming = stage.cut(OpKind::Rename, Effect::Taken, end);
        stage.storage.rename(EPOCH, "a", "c").unwrap();
        assert!(stage.faults.fired_count(renaming) > 0);
        let deletion = stage.cut(OpKind::Delete, Effect::Taken, stage.in_secs(3));
        stage.storage.delete(EPOCH, "b").unwrap();
        assert!(stage.faults.fired_count(deletion) > 0);
        assert_eq!(stage.names(), ["c"]);
        // A name that was never there is still an error.
        let error = stage.storage.delete(EPOCH, "b").unwrap_err();
        assert_eq!(error.kind, StorageErrorKind::NotFound);
        stage.cut(OpKind::Rename, Effect::None, stage.in_secs(3));
        let error = stage.storage.rename(EPOCH, "b", "d").unwrap_err();
        assert_eq!(error.kind, StorageErrorKind::NotFound);
    });
}

#[test]
fn a_close_ends_the_waits_and_no_call_is_made_afterwards() {
    play(|stage| {
        stage.outage.begin_waits();
        stage.storage.create(EPOCH, "a").unwrap();
        stage.cut(OpKind::Delete, Effect::None, stage.in_secs(1000));
        let storage = stage.storage.clone();
        let delete = move || storage.delete(EPOCH, "a").unwrap_err().kind;
        let waiting = stage.runtime.spawn("delete", delete).unwrap();
        stage.runtime.sleep(Duration::from_secs(20));
        let closed = stage.runtime.now();
        stage.outage.end_waits();
        assert_eq!(waiting.join().unwrap(), StorageErrorKind::Unreachable);
        // It ends with the try that is under way.
        assert!(stage.runtime.now().since(closed) <= Duration::from_secs(1));
        stage.faults.clear();
        let before = stage.faults.counts().total();
        for storage in [&stage.storage, &stage.at_once] {
            let error = storage.delete(EPOCH, "a").unwrap_err();
            assert_eq!(error.kind, StorageErrorKind::Unreachable);
            let error = storage.create(EPOCH, "b").err().unwrap();
            assert_eq!(error.kind, StorageErrorKind::Unreachable);
        }
        assert_eq!(stage.faults.counts().total(), before);
        assert_eq!(stage.names(), ["a"]);
    });
}

#[test]
fn a_close_that_needs_no_call_to_wait_changes_nothing() {
    play(|stage| {
        stage.outage.begin_waits();
        stage.outage.end_waits();
        stage.storage.create(EPOCH, "a").unwrap();
        assert_eq!(stage.names(), ["a"]);
    });
}

#[test]
fn a_read_that_a_close_gives_up_fails_alone() {
    play(|stage| {
        stage.outage.begin_waits();
        stage.storage.create(EPOCH, "a").unwrap();
        let rule = stage.cut(OpKind::Open, Effect::None, stage.in_secs(1000));
        let storage = stage.storage.clone();
        let open = move || storage.open("a").err().unwrap().kind;
        let waiting = stage.runtime.spawn("open", open).unwrap();
        stage.runtime.sleep(Duration::from_secs(5));
        assert!(stage.faults.fired_count(rule) > 1);
        stage.outage.end_waits();
        assert_eq!(waiting.join().unwrap(), StorageErrorKind::Unreachable);
        stage.storage.delete(EPOCH, "a").unwrap();
        assert!(stage.names().is_empty());
    });
}

#[test]
fn a_call_that_does_not_wait_fails_at_once() {
    play(|stage| {
        stage.outage.begin_waits();
        let rule = stage.cut(OpKind::Create, Effect::None, stage.in_secs(1000));
        let error = stage.at_once.create(EPOCH, "a").err().unwrap();
        assert_eq!(error.kind, StorageErrorKind::Unreachable);
        assert_eq!(stage.faults.fired_count(rule), 1);
        assert!(stage.outage.is_unreachable());
        // The store is open, so nothing was given up.
        stage.faults.clear();
        stage.at_once.create(EPOCH, "a").unwrap();
        assert!(!stage.outage.is_unreachable());
    });
}
