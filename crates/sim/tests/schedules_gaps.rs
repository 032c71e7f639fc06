//! Row 12: schedules of the gaps that cursors remember. The files under test are the engine's own,
//! compiled into this test: `tree/gaps/shared.rs`, `tree/gaps/state.rs` and `tree/gaps/map.rs`,
//! with the queue of writers and the published number of `commit/queue.rs` and `tree/pinning.rs`.
//!
//! Tasks switch at runtime locks, at the points that the model names, and at every access to an
//! atomic. Weak memory is tested by `crates/engine/tests/gaps_loom.rs`.

#![allow(dead_code)] // The engine uses more of these files than a model does.

use std::sync::{Arc, Mutex};

use siltstone_sim::coverage::Coverage;
use siltstone_sim::rng::Rng;
use siltstone_sim::trials::{seeds, simulate};
use siltstone_storage::Runtime;

#[path = "common/stepping.rs"]
mod atomics;
#[path = "../../engine/src/tree/gaps"]
mod gaps {
    pub(crate) mod map;
    pub(crate) mod shared;
    pub(crate) mod state;
}
#[path = "../../engine/src/tree/pinning.rs"]
mod pinning;
#[path = "../../engine/src/commit/queue.rs"]
mod queue;

use gaps::shared::SharedGaps;
use gaps::state::Way;
use pinning::PublishedNumber;
use queue::Queue;

fn held<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}

type Task = siltstone_storage::JoinHandle<Result<(), String>>;

/// A put or a delete of the keys from `first` to `last`. With several keys, it is like the ingest
/// of a table.
#[derive(Clone, Copy, Debug, Default)]
struct Write {
    first: u8,
    last: u8,
    put: bool,
}

struct Writers;

impl queue::Writers for Writers {
    type Batch = Vec<Write>;
    type Error = ();
    /// The next sequence number.
    type State = u64;
    fn bytes(batch: &Vec<Write>) -> usize {
        batch.len()
    }
    fn leader_panicked(&self) {}
    fn deadline_passed(&self) {}
}

const KEYS: u8 = 6;

/// A keyspace: all entries that were ever written, as (key, number, put), in the order of numbers.
struct Keyspace {
    runtime: Runtime,
    /// How many hidden entries each gap saves, as its cursor reports it. If none, gaps are
    /// forgotten as soon as a key is put while no cursor uses one.
    hidden: u64,
    queue: Queue<Writers>,
    published: PublishedNumber,
    gaps: SharedGaps,
    entries: Mutex<Vec<(u8, u64, bool)>>,
    coverage: Mutex<Coverage>,
}

impl Keyspace {
    fn reached(&self, what: &str) {
        held(&self.coverage).add(what);
    }

    fn is_alive(&self, key: u8, number: u64) -> bool {
        let entries = held(&self.entries);
        let mut of_key = entries.iter().filter(|(k, n, _)| *k == key && *n <= number);
        of_key.next_back().is_some_and(|(_, _, put)| *put)
    }

    /// Writes batches, as `write::commit` does.
    fn write(&self, rounds: u64, rng: &mut Rng) -> Result<(), String> {
        for _ in 0..rounds {
            let batch: Vec<Write> = (0..1 + rng.below(2))
                .map(|_| {
                    let first = rng.below(u64::from(KEYS)) as u8;
                    let more = if rng.chance(20) {
                        rng.below(3) as u8
                    } else {
                        0
                    };
                    Write {
                        first,
                        last: (first + more).min(KEYS - 1),
                        put: rng.chance(25),
                    }
                })
                .collect();
            let batch = std::borrow::Cow::Owned(batch);
            let led = self.queue.join(batch, false, None, |next, group, _| {
                let first = *next;
                for write in group.iter().flat_map(|(batch, _)| batch) {
                    for key in write.first..=write.last {
                        held(&self.entries).push((key, *next, write.put));
                        self.runtime.yield_point();
                    }
                    *next += 1;
                }
                let last = *next - 1;
                assert!(first <= last);
                if self.gaps.is_armed() {
                    let writes = group.iter().flat_map(|(batch, _)| batch);
                    let puts = writes.filter(|write| write.put);
                    let keys: Vec<_> = puts.map(|write| ([write.first], [write.last])).collect();
                    let alive = keys.iter().map(|(first, last)| (&first[..], &last[..]));
                    self.gaps.invalidate(alive, last, 0);
                    self.reached("invalidated");
                    if !self.gaps.is_armed() {
                        self.reached("disarmed");
                    }
                }
                self.published.publish(last);
            });
            led.map_err(|()| "a batch was refused".to_string())?;
        }
        Ok(())
    }

    /// Walks like a cursor, and remembers gaps. It must show exactly the live keys.
    fn read(&self, rounds: u64, rng: &mut Rng) -> Result<(), String> {
        let mut old = None;
        for _ in 0..rounds {
            let number = match old {
                Some(number) if rng.chance(30) => number,
                _ => self.published.number(),
            };
            if rng.chance(30) {
                old = Some(number);
            }
            match rng.chance(50) {
                true => self.walk(number, Way::Forward, rng)?,
                false => self.walk(number, Way::Backward, rng)?,
            }
        }
        Ok(())
    }

    fn walk(&self, number: u64, way: Way, rng: &mut Rng) -> Result<(), String> {
        let mut keys: Vec<u8> = (0..KEYS).collect();
        if way == Way::Backward {
            keys.reverse();
        }
        let mut shown = Vec::new();
        let mut run: Option<(u8, Option<u64>)> = None;
        let mut last = 0;
        let mut end: Option<Vec<u8>> = None;
        for key in keys {
            let is_passed = end.as_ref().is_some_and(|end| match way {
                Way::Forward => [key][..] < end[..],
                Way::Backward => [key][..] >= end[..],
            });
            if is_passed {
                self.reached("jumped");
                last = key;
                continue;
            }
            self.runtime.yield_point();
            if self.is_alive(key, number) {
                shown.push(key);
                self.finish(number, way, run.take(), last);
                continue;
            }
            last = key;
            if let Some(gap) = self.gaps.at(&[key], number) {
                end = Some(match way {
                    Way::Forward => gap.end.clone(),
                    Way::Backward => gap.start.clone(),
                });
                run = run.or(Some((key, None)));
                continue;
            }
            match &mut run {
                None => run = Some((key, None)),
                Some((first, watch @ None)) if rng.chance(70) => {
                    self.gaps.arm(|quiet| {
                        let led = |led: bool| quiet((!led).then(|| self.published.number()));
                        self.queue.with_led(led);
                    });
                    *watch = self.gaps.watch(number, way, &[*first]);
                    let what = if watch.is_some() {
                        "watch.given"
                    } else {
                        "watch.refused"
                    };
                    self.reached(what);
                }
                Some(_) => {}
            }
        }
        self.finish(number, way, run.take(), last);
        if way == Way::Backward {
            shown.reverse();
        }
        let alive: Vec<u8> = (0..KEYS).filter(|k| self.is_alive(*k, number)).collect();
        match shown == alive {
            true => Ok(()),
            false => Err(format!(
                "at {number} {way:?}: shown {shown:?}, alive {alive:?}"
            )),
        }
    }

    fn finish(&self, number: u64, way: Way, run: Option<(u8, Option<u64>)>, last: u8) {
        let Some((_, Some(watch))) = run else { return };
        let far = match way {
            Way::Forward => vec![last, 0],
            Way::Backward => vec![last],
        };
        self.runtime.yield_point();
        if self.gaps.finish(watch, number, &far, self.hidden) {
            self.reached("gap");
        }
    }
}

/// Writers put and delete the same few keys, while readers remember gaps and jump over them,
/// forward and backward, at the published number and at older ones. Every read is exact.
#[test]
fn schedules_gaps() {
    let wanted = [
        "gap",
        "jumped",
        "invalidated",
        "disarmed",
        "watch.given",
        "watch.refused",
    ];
    seeds("schedules_gaps", 1, 10_000, &wanted, |seed| {
        simulate(seed, move |runtime| {
            atomics::explore(&runtime);
            let mut rng = Rng::new(seed);
            let keyspace = Arc::new(Keyspace {
                runtime: runtime.clone(),
                hidden: 100 * rng.below(2),
                queue: Queue::new(&runtime, Writers, 1),
                published: PublishedNumber::new(0),
                gaps: SharedGaps::new(&runtime),
                entries: Mutex::default(),
                coverage: Mutex::default(),
            });
            let mut tasks: Vec<Task> = Vec::new();
            for writer in 0..1 + rng.below(2) {
                let (keyspace, mut rng) = (keyspace.clone(), rng.fork(writer));
                let write = move || keyspace.write(8, &mut rng);
                tasks.push(runtime.spawn("writer", write).map_err(|e| e.to_string())?);
            }
            for reader in 0..1 + rng.below(2) {
                let (keyspace, mut rng) = (keyspace.clone(), rng.fork(10 + reader));
                let read = move || keyspace.read(6, &mut rng);
                tasks.push(runtime.spawn("reader", read).map_err(|e| e.to_string())?);
            }
            for task in tasks {
                task.join().map_err(|_| "a task ended".to_string())??;
            }
            let coverage = held(&keyspace.coverage).clone();
            Ok(coverage)
        })
    });
}
