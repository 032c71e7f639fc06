//! Gaps under loom: all interleavings of a leader that puts a key, a cursor that leaves a gap over
//! it behind, and a cursor that comes later, with every value that the memory model lets a load
//! return.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p siltstone --test gaps_loom --release`
//!
//! `gaps/state.rs` and `gaps/map.rs` are those of the engine. What `gaps/shared.rs` does around
//! them is written again here with loom's atomics: its flag is relaxed, and the pointer to the
//! shown map is an atomic with acquire and release, which is the least that `arc_swap` promises.
//!
//! Each of these changes was tried by hand and makes a test fail: the leader publishes before it
//! invalidates; the flag is set outside the mutex of the queue, or as if nobody led; a watch is
//! granted whatever was invalidated; the reader loads the map before its number.
#![cfg(loom)]
#![allow(dead_code, missing_docs)]

#[path = "../src/tree/gaps"]
mod gaps {
    pub(crate) mod map;
    pub(crate) mod state;
}

use std::sync::Mutex as Plain;

use gaps::map::GapMap;
use gaps::state::{State, Way};
use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use loom::sync::{Arc, Mutex};
use loom::thread;

/// A keyspace with one key, which is dead at number 1.
struct Keyspace {
    /// The state of the queue: whether there is a leader.
    led: Mutex<bool>,
    published: AtomicU64,
    armed: AtomicU32,
    state: Mutex<State>,
    /// The position in `maps` of the map that readers see.
    shown: AtomicU64,
    /// This is not a mutex of loom, because it must not order anything.
    maps: Plain<Vec<std::sync::Arc<GapMap>>>,
}

const KEY: &[u8] = b"k";

impl Keyspace {
    fn new() -> Arc<Keyspace> {
        Arc::new(Keyspace {
            led: Mutex::new(false),
            published: AtomicU64::new(1),
            armed: AtomicU32::new(0),
            state: Mutex::new(State::default()),
            shown: AtomicU64::new(0),
            maps: Plain::new(vec![std::sync::Arc::default()]),
        })
    }

    fn show(&self, state: &State) {
        // The guard is dropped before the store, at which loom may switch to another thread.
        let at = {
            let mut maps = self.maps.lock().expect("no panic under it");
            maps.push(state.map().clone());
            maps.len() as u64 - 1
        };
        self.shown.store(at, Ordering::Release);
    }

    /// A writer that leads at once.
    fn put(&self, number: u64) {
        *self.led.lock().expect("no panic under it") = true;
        if self.armed.load(Ordering::Relaxed) != 0 {
            let mut state = self.state.lock().expect("no panic under it");
            state.invalidate(std::iter::once((KEY, KEY)), number, true, 16);
            self.show(&state);
        }
        self.published.store(number, Ordering::Release);
        *self.led.lock().expect("no panic under it") = false;
    }

    /// A cursor that finds the key deleted and leaves a gap behind, if it may.
    fn leave_gap(&self) {
        let number = self.published.load(Ordering::Acquire);
        {
            let led = self.led.lock().expect("no panic under it");
            let quiet = (!*led).then(|| self.published.load(Ordering::Acquire));
            let mut state = self.state.lock().expect("no panic under it");
            state.arm(quiet);
            self.armed.store(1, Ordering::Relaxed);
        }
        let watch = {
            let mut state = self.state.lock().expect("no panic under it");
            state.watch(number, Way::Forward, KEY)
        };
        let is_alive = number >= 2;
        let Some(watch) = watch.filter(|_| !is_alive) else {
            return;
        };
        let mut state = self.state.lock().expect("no panic under it");
        if state.finish(watch, number, b"l", 1) {
            self.show(&state);
        }
    }

    /// A cursor that reaches the key. It must not jump over the key if that is alive.
    fn read(&self) {
        let number = self.published.load(Ordering::Acquire);
        let shown = self.shown.load(Ordering::Acquire) as usize;
        let map = self.maps.lock().expect("no panic under it")[shown].clone();
        let jumps = map.find(KEY).is_some_and(|gap| gap.number <= number);
        assert!(!jumps || number < 2, "a put is jumped over at {number}");
    }
}

/// All schedules with at most this number of preemptions. With three threads there are too many
/// without a limit.
fn explore(preemptions: usize, body: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(body);
}

/// One put after the other, beside the cursor that leaves a gap behind and then uses it. The first
/// leader may have read the flag before it was set.
#[test]
fn a_cursor_sees_what_comes_after_its_gap() {
    explore(3, || {
        let keyspace = Keyspace::new();
        let leader = {
            let keyspace = keyspace.clone();
            thread::spawn(move || {
                keyspace.put(2);
                keyspace.put(3);
            })
        };
        keyspace.leave_gap();
        keyspace.read();
        leader.join().expect("leader");
    });
}

/// The cursor that uses the gap is not the one that left it.
#[test]
fn another_cursor_sees_what_comes_after_the_gap() {
    explore(3, || {
        let keyspace = Keyspace::new();
        let leader = {
            let keyspace = keyspace.clone();
            thread::spawn(move || keyspace.put(2))
        };
        let finder = {
            let keyspace = keyspace.clone();
            thread::spawn(move || keyspace.leave_gap())
        };
        keyspace.read();
        leader.join().expect("leader");
        finder.join().expect("finder");
    });
}
