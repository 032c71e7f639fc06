//! Views and numbers under loom: all interleavings of a leader, a job and a reader, with every
//! value that the memory model lets a load return.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p siltstone --test pinning_loom --release`
//!
//! The file under test is `pinning.rs` itself, on loom's atomics. The pointer to the present view
//! is an atomic with acquire and release, which is the least that `arc_swap` promises. Entries are
//! relaxed words, so only the order of views and numbers makes them visible.
//!
//! Several changes were tried by hand, and each makes a test fail: see docs/reliability.md, row 12.
#![cfg(loom)]
#![allow(dead_code, missing_docs)]

#[path = "../src/tree/pinning.rs"]
mod pinning;

mod atomics {
    pub(crate) use loom::sync::atomic::{AtomicU64, Ordering};
}

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;
use pinning::{FirstPosition, Present, PublishedNumber};

/// Views by their position. Each contains some of the entries.
struct Place(AtomicU64);

impl Present for Place {
    type View = u64;
    fn view(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }
    fn is_present(&self, view: &u64) -> bool {
        self.0.load(Ordering::Acquire) == *view
    }
}

/// Whether an entry was inserted.
struct Entry(AtomicU64);

impl Entry {
    fn new() -> Entry {
        Entry(AtomicU64::new(0))
    }
    fn insert(&self) {
        self.0.store(1, Ordering::Relaxed);
    }
    fn is_there(&self) -> bool {
        self.0.load(Ordering::Relaxed) == 1
    }
}

fn pin(place: &Place, published: &PublishedNumber) -> (u64, u64) {
    pinning::pin(place, published, None, || Ok::<(), ()>(())).expect("nothing refuses")
}

/// One key has the versions 1 and 2 in two memtables; the second memtable is added between them. A
/// read at a number finds that version.
#[test]
fn a_rotation_hides_nothing() {
    loom::model(|| {
        let store = Arc::new((
            Place(AtomicU64::new(0)),
            PublishedNumber::new(0),
            [Entry::new(), Entry::new()],
        ));
        let leader = {
            let store = store.clone();
            thread::spawn(move || {
                let (place, published, entries) = &*store;
                entries[0].insert();
                published.publish(1);
                place.0.store(1, Ordering::Release);
                entries[1].insert();
                published.publish(2);
            })
        };
        let reader = {
            let store = store.clone();
            thread::spawn(move || {
                let (place, published, entries) = &*store;
                let (view, number) = pin(place, published);
                // View 1 has both memtables, and view 0 only the first.
                let newest = (0..=view.min(1))
                    .rev()
                    .find(|i| i + 1 <= number && entries[*i as usize].is_there());
                let found = newest.map_or(0, |i| i + 1);
                assert_eq!(found, number, "in view {view}");
            })
        };
        reader.join().expect("reader");
        leader.join().expect("leader");
    });
}

/// A job replaces a memtable with the versions 1 and 2 by a run with what the published number
/// sees. A read finds its version in the memtable or in the run.
#[test]
fn an_installed_run_shows_what_its_readers_see() {
    loom::model(|| {
        let store = Arc::new((
            Place(AtomicU64::new(0)),
            PublishedNumber::new(1),
            // The older version that the run keeps; 0 if the run has only version 2.
            AtomicU64::new(0),
        ));
        let leader = {
            let store = store.clone();
            thread::spawn(move || store.1.publish(2))
        };
        let job = {
            let store = store.clone();
            thread::spawn(move || {
                let (place, published, kept) = &*store;
                if published.number() == 1 {
                    kept.store(1, Ordering::Relaxed);
                }
                place.0.store(1, Ordering::Release);
            })
        };
        let reader = {
            let store = store.clone();
            thread::spawn(move || {
                let (place, published, kept) = &*store;
                let (view, number) = pin(place, published);
                if view == 1 && number == 1 {
                    assert_eq!(kept.load(Ordering::Relaxed), 1, "version 1 was dropped");
                }
            })
        };
        reader.join().expect("reader");
        leader.join().expect("leader");
        job.join().expect("job");
    });
}

/// The leader holds the log and appends while a job computes where the log starts. The start must
/// not be behind the leader's record.
#[test]
fn the_log_is_kept_from_a_held_position_on() {
    loom::model(|| {
        let log = Arc::new((AtomicU64::new(1), FirstPosition::new()));
        let leader = {
            let log = log.clone();
            thread::spawn(move || {
                let (end, first) = &*log;
                let before = end.load(Ordering::Acquire);
                first.hold(before);
                // A record at the position where the log ended, and another one behind it.
                end.store(before + 1, Ordering::Release);
                first.hold(before + 1);
                end.store(before + 2, Ordering::Release);
            })
        };
        let job = {
            let log = log.clone();
            thread::spawn(move || {
                let (end, first) = &*log;
                let start =
                    pinning::log_start(|| end.load(Ordering::Acquire), || [first.position()]);
                assert!(start <= 1, "the record at 1 is before {start}");
            })
        };
        job.join().expect("job");
        leader.join().expect("leader");
    });
}
