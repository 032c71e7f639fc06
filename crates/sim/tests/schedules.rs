//! Row 12: schedules of the engine's small files of locks and atomics, thousands a second. The
//! files under test are the engine's own, compiled into this test: `commit/queue.rs` (the queue of
//! writers and its leader), `env/notify.rs` (no notification is missed), and `tree/pinning.rs` and
//! `tree/snapshot.rs` (view and number, and what holds the log).
//!
//! Tasks are switched at runtime locks and waits, as everywhere in simulation, and here also at
//! every access to an atomic: `atomics` below replaces the engine's module of that name. Weak
//! memory is tested by loom (`cargo xtask loom`).
//!
//! docs/reliability.md, row 12, lists the faults that were made by hand, and after how many seeds
//! each was found.

#![allow(dead_code)] // The engine uses more of these files than a model does.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use siltstone_sim::coverage::Coverage;
use siltstone_sim::rng::Rng;
use siltstone_sim::trials::{seeds, simulate};
use siltstone_storage::{Instant, Runtime};

#[path = "common/stepping.rs"]
mod atomics;
#[path = "../../engine/src/env/notify.rs"]
mod notify;
#[path = "../../engine/src/tree/pinning.rs"]
mod pinning;
#[path = "../../engine/src/commit/queue.rs"]
mod queue;
#[path = "../../engine/src/tree/snapshot.rs"]
mod snapshot;

use pinning::{FirstPosition, Present};
use queue::{Group, Queue};
use snapshot::SnapshotRegistry;

use atomics::{AtomicU64, Ordering};

/// Runs `body` as one schedule.
fn explore(
    seed: u64,
    body: impl FnOnce(Runtime, Rng) -> Result<Coverage, String> + Send + 'static,
) -> Coverage {
    simulate(seed, move |runtime| {
        atomics::explore(&runtime);
        body(runtime, Rng::new(seed))
    })
}

fn held<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}

type Task = siltstone_storage::JoinHandle<Result<(), String>>;

fn join_all(tasks: Vec<Task>) -> Result<(), String> {
    for task in tasks {
        task.join().map_err(|_| "a task ended".to_string())??;
    }
    Ok(())
}

// ---- The queue of writers. ----

/// One batch: its writer, its number among the writer's batches, whether it asks for a sync, and
/// its size.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct TestBatch {
    writer: u64,
    number: u64,
    sync: bool,
    bytes: usize,
}

impl TestBatch {
    /// Some batches are refused.
    fn is_refused(&self) -> bool {
        (self.writer + self.number).is_multiple_of(5)
    }

    /// The answer to a writer that left the queue at its deadline.
    fn late() -> TestBatch {
        TestBatch {
            writer: u64::MAX,
            ..TestBatch::default()
        }
    }
}

struct TestWriters;

impl queue::Writers for TestWriters {
    type Batch = TestBatch;
    type Error = TestBatch;
    type State = LeaderState;
    fn bytes(batch: &TestBatch) -> usize {
        batch.bytes
    }
    fn leader_panicked(&self) -> TestBatch {
        // This happens only after a check has failed in a leader.
        TestBatch::default()
    }
    fn deadline_passed(&self) -> TestBatch {
        TestBatch::late()
    }
}

/// The state that only the leader touches.
#[derive(Default)]
struct LeaderState {
    busy: bool,
}

#[derive(Default)]
struct Committed {
    done: Vec<TestBatch>,
    /// The number of batches whose writers left the queue at their deadlines.
    late_count: u64,
    coverage: Coverage,
}

struct CommitTest {
    runtime: Runtime,
    queue: Queue<TestWriters>,
    committed: Mutex<Committed>,
}

impl CommitTest {
    /// The work of a leader for its group.
    fn commit(
        &self,
        state: &mut LeaderState,
        group: &mut Group<'_, TestWriters>,
        sync: bool,
        rng: &mut Rng,
    ) {
        assert!(!std::mem::replace(&mut state.busy, true), "two leaders");
        assert!(group.iter().all(|(_, result)| result.is_ok()));
        let bytes: usize = group.iter().skip(1).map(|(batch, _)| batch.bytes).sum();
        assert!(bytes <= queue::GROUP_BYTES, "a group of {bytes} bytes");
        assert_eq!(
            sync,
            group.iter().any(|(batch, _)| batch.sync),
            "a sync that was asked for, and by nobody else"
        );
        for _ in 0..rng.below(4) {
            self.runtime.yield_point();
        }
        if rng.chance(20) {
            self.runtime.sleep(Duration::from_nanos(500));
        }
        let mut committed = held(&self.committed);
        let kind = match group.len() {
            1 => "group.alone",
            _ => "group.several",
        };
        committed.coverage.add(kind);
        for (batch, result) in group.iter_mut() {
            assert!(!committed.done.contains(batch), "{batch:?} is done twice");
            committed.done.push(batch.clone());
            if batch.is_refused() {
                *result = Err(batch.clone());
            }
        }
        drop(committed);
        state.busy = false;
    }

    /// Often `None`; else a deadline that passes while somebody leads, or even before.
    fn deadline(&self, rng: &mut Rng) -> Option<Instant> {
        let soon = rng.chance(25);
        soon.then(|| self.runtime.now() + Duration::from_nanos(rng.below(1000)))
    }

    fn write(&self, writer: u64, count: u64, rng: &mut Rng) -> Result<(), String> {
        for number in 0..count {
            // Those who queue up in turn stay there.
            let deadline = match writer {
                1000.. => None,
                _ => self.deadline(rng),
            };
            let mine = TestBatch {
                writer,
                number,
                sync: rng.chance(20),
                bytes: *rng.pick(&[1, 100, queue::GROUP_BYTES / 3, queue::GROUP_BYTES + 1]),
            };
            // A batch of a program is borrowed, that of a single put is owned.
            let batch = match rng.chance(50) {
                true => Cow::Borrowed(&mine),
                false => Cow::Owned(mine.clone()),
            };
            let mut led = false;
            let answer = self
                .queue
                .join(batch, mine.sync, deadline, |state, group, sync| {
                    led = true;
                    assert_eq!(group.own(), &mine, "a leader's own batch comes first");
                    self.commit(state, group, sync, rng);
                });
            let mut committed = held(&self.committed);
            if deadline.is_some() && answer == Err(TestBatch::late()) {
                if committed.done.contains(&mine) {
                    return Err(format!("{mine:?} is done although its writer left"));
                }
                committed.late_count += 1;
                committed.coverage.add("batch.late");
                continue;
            }
            if !committed.done.contains(&mine) {
                return Err(format!("{mine:?} is answered and not done"));
            }
            let expected = match mine.is_refused() {
                true => Err(mine),
                false => Ok(()),
            };
            if answer != expected {
                return Err(format!("answer {answer:?}, expected {expected:?}"));
            }
            committed.coverage.add(if led {
                "batch.led"
            } else {
                "batch.taken_along"
            });
        }
        Ok(())
    }

    /// Takes the lead alone; every second time with a batch of its own, which no other batch joins.
    fn lead_alone(&self, leader: u64, count: u64, rng: &mut Rng) -> Result<(), String> {
        for number in 0..count {
            let Some(mut lead) = self.queue.lead_until(self.deadline(rng)) else {
                let mut committed = held(&self.committed);
                committed.late_count += number % 2;
                committed.coverage.add("lead.late");
                continue;
            };
            if number % 2 == 1 {
                let mine = TestBatch {
                    writer: leader,
                    number,
                    sync: false,
                    bytes: 1,
                };
                let answer = lead.commit(&mine, |state, group| {
                    assert_eq!(group.len(), 1, "a batch with the lead is alone");
                    self.commit(state, group, false, rng);
                });
                lead.finish();
                if answer.is_err() != mine.is_refused() {
                    return Err(format!("answer {answer:?} to {mine:?}"));
                }
                held(&self.committed).coverage.add("lead.batch");
                continue;
            }
            assert!(!std::mem::replace(&mut lead.busy, true), "two leaders");
            for _ in 0..rng.below(4) {
                self.runtime.yield_point();
            }
            lead.busy = false;
            lead.finish();
            held(&self.committed).coverage.add("lead.alone");
            self.runtime.yield_point();
        }
        Ok(())
    }
}

/// The writers of [`in_turn`].
const IN_TURN: u64 = 4;

/// While the lead is taken, writers queue up one after the other. They must be done in that order.
fn in_turn(commit_test: &Arc<CommitTest>, rng: &mut Rng) -> Result<(), String> {
    let lead = commit_test.queue.lead();
    let mut tasks: Vec<Task> = Vec::new();
    for i in 0..IN_TURN {
        let (of_writer, mut rng) = (commit_test.clone(), rng.fork(200 + i));
        let write = move || of_writer.write(1000 + i, 1, &mut rng);
        let task = commit_test.runtime.spawn("in turn", write);
        tasks.push(task.map_err(|e| e.to_string())?);
        while commit_test.queue.waiting_count() as u64 <= i {
            commit_test.runtime.sleep(Duration::from_micros(1));
        }
    }
    lead.finish();
    join_all(tasks)?;
    let committed = held(&commit_test.committed);
    let late = committed.done.iter().filter(|batch| batch.writer >= 1000);
    let order: Vec<u64> = late.map(|batch| batch.writer - 1000).collect();
    match order.is_sorted() {
        true => Ok(()),
        false => Err(format!("joined in turn, done in the order {order:?}")),
    }
}

/// Writers, and tasks that lead for themselves, in all kinds of orders: there is one leader at a
/// time, every batch is done once and then answered, and no writer is left waiting.
#[test]
fn schedules_commit_queue() {
    let wanted = [
        "batch.led",
        "batch.taken_along",
        "batch.late",
        "group.alone",
        "group.several",
        "lead.alone",
        "lead.batch",
        "lead.late",
    ];
    seeds("schedules_commit_queue", 1, 10_000, &wanted, |seed| {
        explore(seed, |runtime, mut rng| {
            let commit_test = Arc::new(CommitTest {
                runtime: runtime.clone(),
                queue: Queue::new(&runtime, TestWriters, LeaderState::default()),
                committed: Mutex::default(),
            });
            let mut tasks: Vec<Task> = Vec::new();
            let mut total = 0;
            for writer in 0..2 + rng.below(4) {
                let (commit_test, mut rng, count) =
                    (commit_test.clone(), rng.fork(writer), 1 + rng.below(4));
                total += count;
                let task =
                    runtime.spawn("writer", move || commit_test.write(writer, count, &mut rng));
                tasks.push(task.map_err(|e| e.to_string())?);
            }
            for leader in 0..rng.below(3) {
                let (commit_test, mut rng) = (commit_test.clone(), rng.fork(100 + leader));
                total += 1;
                let lead = move || commit_test.lead_alone(500 + leader, 2, &mut rng);
                let task = runtime.spawn("leader", lead);
                tasks.push(task.map_err(|e| e.to_string())?);
            }
            join_all(tasks)?;
            in_turn(&commit_test, &mut rng)?;
            commit_test.queue.lead().finish();
            total += IN_TURN;
            if commit_test.queue.waiting_count() != 0 {
                return Err("somebody waits while nobody leads".to_string());
            }
            let mut committed = held(&commit_test.committed);
            let (done, late) = (committed.done.len() as u64, committed.late_count);
            if done + late != total {
                return Err(format!(
                    "{done} of {total} batches are done, {late} are late"
                ));
            }
            // A writer has one batch at a time, so its batches are done in its order.
            for (i, batch) in committed.done.iter().enumerate() {
                let late = committed.done[i..].iter();
                let mut late = late.filter(|o| o.writer == batch.writer);
                if late.any(|other| other.number < batch.number) {
                    return Err(format!("{batch:?} overtook an earlier one"));
                }
            }
            Ok(std::mem::take(&mut committed.coverage))
        })
    });
}

// ---- Views and numbers. ----

type Entries = Vec<(u8, u64)>;

/// A memtable or a run: entries as (key, number). It only grows.
struct Piece {
    entries: Mutex<Entries>,
    sealed: AtomicBool,
}

impl Piece {
    fn new(entries: Entries) -> Arc<Piece> {
        Arc::new(Piece {
            entries: Mutex::new(entries),
            sealed: AtomicBool::new(false),
        })
    }
    fn is_sealed(&self) -> bool {
        self.sealed.load(Ordering::SeqCst)
    }
}

/// Newest first.
type View = Vec<Arc<Piece>>;

/// A keyspace: like `KeyspaceCore` it has an atomic pointer to its view, which is replaced under a
/// lock.
struct Keyspace {
    runtime: Runtime,
    /// The index of the current view in `views`.
    present: AtomicU64,
    views: Mutex<Vec<Arc<View>>>,
    change: siltstone_storage::Mutex<()>,
    registry: Arc<SnapshotRegistry>,
    /// All entries that were ever written, in order of numbers.
    all: Mutex<Entries>,
    /// The numbers at which batches ended.
    ends: Mutex<BTreeSet<u64>>,
    coverage: Mutex<Coverage>,
}

impl Present for Keyspace {
    type View = (u64, Arc<View>);
    fn view(&self) -> Self::View {
        let at = self.present.load(Ordering::Acquire);
        (at, held(&self.views)[at as usize].clone())
    }
    fn is_present(&self, view: &Self::View) -> bool {
        self.present.load(Ordering::Acquire) == view.0
    }
}

const KEYS: u8 = 2;

fn newest(entries: &[(u8, u64)], key: u8, number: u64) -> Option<u64> {
    let of_key = entries.iter().filter(|(k, n)| *k == key && *n <= number);
    of_key.map(|(_, n)| *n).max()
}

impl Keyspace {
    fn new(runtime: &Runtime) -> Arc<Keyspace> {
        Arc::new(Keyspace {
            runtime: runtime.clone(),
            present: AtomicU64::new(0),
            views: Mutex::new(vec![Arc::new(vec![Piece::new(Vec::new())])]),
            change: runtime.mutex(()),
            registry: SnapshotRegistry::new(runtime, 0),
            all: Mutex::default(),
            ends: Mutex::new(BTreeSet::from([0])),
            coverage: Mutex::default(),
        })
    }

    fn reached(&self, what: &str) {
        held(&self.coverage).add(what);
    }

    fn replace(&self, f: impl FnOnce(&View) -> View) {
        let _change = self.change.lock();
        let (_, old) = self.view();
        let at = {
            let mut views = held(&self.views);
            views.push(Arc::new(f(&old)));
            views.len() as u64 - 1
        };
        self.present.store(at, Ordering::Release);
    }

    /// The leader: rotates, fills, publishes.
    fn lead(&self, batches: u64, rng: &mut Rng) -> Result<(), String> {
        let mut next = 1;
        for _ in 0..batches {
            if rng.chance(50) && !held(&self.view().1[0].entries).is_empty() {
                self.replace(|old| {
                    old[0].sealed.store(true, Ordering::SeqCst);
                    let mut view = vec![Piece::new(Vec::new())];
                    view.extend(old.iter().cloned());
                    view
                });
                self.reached("rotated");
            }
            let active = self.view().1[0].clone();
            for _ in 0..1 + rng.below(3) {
                let entry = (rng.below(KEYS.into()) as u8, next);
                next += 1;
                held(&self.all).push(entry);
                self.runtime.yield_point();
                held(&active.entries).push(entry);
            }
            held(&self.ends).insert(next - 1);
            self.registry.publish(next - 1);
        }
        Ok(())
    }

    /// The background: a sealed memtable is replaced, in its slot, by a run with only the entries
    /// that a reader may still see.
    fn flush(&self, rounds: u64) -> Result<(), String> {
        for _ in 0..rounds {
            self.runtime.yield_point();
            let (_, view) = self.view();
            let Some(sealed) = view.iter().rev().find(|piece| piece.is_sealed()).cloned() else {
                continue;
            };
            let (published, snapshots) = self.registry.for_job();
            let entries = held(&sealed.entries).clone();
            let seen: Vec<u64> = snapshots.iter().copied().chain([published]).collect();
            let kept = entries.iter().copied().filter(|(key, number)| {
                let for_some = seen
                    .iter()
                    .any(|at| newest(&entries, *key, *at) == Some(*number));
                *number > published || for_some
            });
            let kept: Entries = kept.collect();
            if kept.len() < entries.len() {
                self.reached("dropped");
            }
            let run = Piece::new(kept);
            self.replace(|old| {
                let same = |piece: &Arc<Piece>| match Arc::ptr_eq(piece, &sealed) {
                    true => run.clone(),
                    false => piece.clone(),
                };
                old.iter().map(same).collect()
            });
            self.reached("installed");
        }
        Ok(())
    }

    /// Compares what a view shows at a number with all entries that were ever written.
    fn compare(&self, view: &View, number: u64, what: &str) -> Result<(), String> {
        if !held(&self.ends).contains(&number) {
            return Err(format!("{what}: {number} lies inside a batch"));
        }
        for key in 0..KEYS {
            self.runtime.yield_point();
            let pieces = view.iter();
            let found = pieces
                .map(|piece| held(&piece.entries).clone())
                .find_map(|entries| newest(&entries, key, number));
            let expected = newest(&held(&self.all), key, number);
            if found != expected {
                return Err(format!(
                    "{what}: key {key} at {number}: found {found:?}, expected {expected:?}"
                ));
            }
        }
        Ok(())
    }

    fn read(&self, rounds: u64, rng: &mut Rng) -> Result<(), String> {
        let never = || Ok::<(), String>(());
        for _ in 0..rounds {
            if rng.chance(60) {
                let snapshot = self.registry.take();
                for _ in 0..3 {
                    let number = Some(snapshot.number());
                    let ((_, view), number) =
                        pinning::pin(self, self.registry.published_number(), number, never)?;
                    self.compare(&view, number, "at a snapshot")?;
                    self.reached("read.snapshot");
                }
            } else {
                let ((at, view), number) =
                    pinning::pin(self, self.registry.published_number(), None, never)?;
                self.compare(&view, number, "now")?;
                self.reached("read.now");
                if self.present.load(Ordering::SeqCst) != at {
                    self.reached("read.of_an_older_view");
                }
            }
        }
        Ok(())
    }
}

/// A leader that rotates and publishes, a background that installs runs, readers and snapshots:
/// every read is exact at its number.
#[test]
fn schedules_views() {
    let wanted = [
        "dropped",
        "installed",
        "read.now",
        "read.of_an_older_view",
        "read.snapshot",
        "rotated",
    ];
    seeds("schedules_views", 1, 10_000, &wanted, |seed| {
        explore(seed, |runtime, mut rng| {
            let keyspace = Keyspace::new(&runtime);
            let mut tasks: Vec<Task> = Vec::new();
            let spawned = |task: std::io::Result<Task>| task.map_err(|e| e.to_string());
            for reader in 0..1 + rng.below(3) {
                let (keyspace, mut rng) = (keyspace.clone(), rng.fork(reader));
                let read = move || keyspace.read(3, &mut rng);
                tasks.push(spawned(runtime.spawn("reader", read))?);
            }
            let (leader, mut own) = (keyspace.clone(), rng.fork(10));
            let lead = move || leader.lead(5, &mut own);
            tasks.push(spawned(runtime.spawn("leader", lead))?);
            let background = keyspace.clone();
            let flush = move || background.flush(10);
            tasks.push(spawned(runtime.spawn("background", flush))?);
            join_all(tasks)?;
            let coverage = held(&keyspace.coverage).clone();
            Ok(coverage)
        })
    });
}

// ---- Where the log starts. ----

/// A source with its records: the positions at which they begin.
struct LogSource {
    first: FirstPosition,
    records: Mutex<Vec<u64>>,
}

struct Log {
    runtime: Runtime,
    /// The end of the log.
    end: AtomicU64,
    /// The sources that are not flushed yet, oldest first; the last one is active.
    sources: Mutex<Vec<Arc<LogSource>>>,
    /// The log before this position was cut off.
    start: Mutex<u64>,
    coverage: Mutex<Coverage>,
}

impl Log {
    fn source() -> Arc<LogSource> {
        Arc::new(LogSource {
            first: FirstPosition::new(),
            records: Mutex::default(),
        })
    }

    /// The leader: holds the log, appends (also behind a gap, as into a new segment), and rotates.
    fn write(&self, rounds: u64, rng: &mut Rng) {
        for _ in 0..rounds {
            if rng.chance(40) {
                let fresh = Log::source();
                self.runtime.yield_point();
                held(&self.sources).push(fresh);
            }
            let source = held(&self.sources).last().expect("one is active").clone();
            let before = self.end.load(Ordering::Acquire);
            source.first.hold(before);
            if rng.chance(20) {
                // The append fails cleanly.
                self.runtime.yield_point();
                if held(&source.records).is_empty() {
                    source.first.release();
                }
                continue;
            }
            let record = before + rng.below(2);
            self.runtime.yield_point();
            self.end.store(record + 1, Ordering::Release);
            assert!(
                *held(&self.start) <= record,
                "appended before the start of the log"
            );
            held(&source.records).push(record);
        }
    }

    /// The background: flushes the oldest sealed source, and cuts off the log that is not needed
    /// any more.
    fn flush(&self, rounds: u64) {
        for _ in 0..rounds {
            self.runtime.yield_point();
            let done = {
                let sources = held(&self.sources);
                (sources.len() > 1).then(|| sources[0].clone())
            };
            let Some(done) = done else { continue };
            let start = pinning::log_start(
                || self.end.load(Ordering::Acquire),
                || {
                    self.runtime.yield_point();
                    let sources = held(&self.sources).clone();
                    let others = sources.into_iter().filter(|s| !Arc::ptr_eq(s, &done));
                    others
                        .map(|source| source.first.position())
                        .collect::<Vec<_>>()
                },
            );
            held(&self.sources).retain(|source| !Arc::ptr_eq(source, &done));
            let mut gone = held(&self.start);
            if start > *gone {
                *gone = start;
                held(&self.coverage).add("log.cut");
            }
            let needed = held(&self.sources).clone();
            let records = needed.iter().flat_map(|s| held(&s.records).clone());
            let oldest = records.min().unwrap_or(u64::MAX);
            assert!(
                *gone <= oldest,
                "the record at {oldest} is needed, the log starts at {gone}"
            );
            held(&self.coverage).add("log.flushed");
        }
    }
}

/// A leader that holds the log and appends, and a background that cuts the log: what an unflushed
/// source needs is never cut off.
#[test]
fn schedules_log_start() {
    seeds(
        "schedules_log_start",
        1,
        10_000,
        &["log.cut", "log.flushed"],
        |seed| {
            explore(seed, |runtime, mut rng| {
                let log = Arc::new(Log {
                    runtime: runtime.clone(),
                    end: AtomicU64::new(1),
                    sources: Mutex::new(vec![Log::source()]),
                    start: Mutex::new(1),
                    coverage: Mutex::default(),
                });
                let (leader, mut own) = (log.clone(), rng.fork(1));
                let write = move || {
                    leader.write(8, &mut own);
                    Ok(())
                };
                let background = log.clone();
                let flush = move || {
                    background.flush(8);
                    Ok(())
                };
                let tasks = [
                    runtime.spawn("leader", write),
                    runtime.spawn("background", flush),
                ];
                let tasks: std::io::Result<Vec<Task>> = tasks.into_iter().collect();
                join_all(tasks.map_err(|e| e.to_string())?)?;
                let coverage = held(&log.coverage).clone();
                Ok(coverage)
            })
        },
    );
}

// ---- Notifications. ----

/// Consumers look for items that producers leave, and wait for a notification where there is none.
/// They wait an hour at most, and simulated time passes only when no task can run: a notification
/// that was missed shows as an hour that has passed.
fn produce_and_consume(runtime: &Runtime, rng: &mut Rng) -> Result<Coverage, String> {
    const HOUR: Duration = Duration::from_secs(3600);
    let notify = Arc::new(notify::Notify::new(runtime));
    let items = Arc::new(Mutex::new(0u64));
    let coverage = Arc::new(Mutex::new(Coverage::default()));
    let began = runtime.now();
    let (consumers, producers, each) = (1 + rng.below(3), 1 + rng.below(3), 1 + rng.below(3));
    let mut tasks = Vec::new();
    for _ in 0..consumers {
        let (runtime_of, notify) = (runtime.clone(), notify.clone());
        let (items, coverage) = (items.clone(), coverage.clone());
        let take = move || {
            let mut taken = 0;
            while taken < each {
                let seen = notify.count();
                runtime_of.yield_point();
                let mut there = held(&items);
                if *there > 0 {
                    *there -= 1;
                    taken += 1;
                    continue;
                }
                drop(there);
                runtime_of.yield_point();
                if !notify.wait_past(seen, HOUR) {
                    return Err("a notification was missed".to_string());
                }
                held(&coverage).add("notify.waited");
            }
            held(&coverage).add("notify.taken");
            Ok(())
        };
        tasks.push(runtime.spawn("taker", take));
    }
    let total = consumers * each;
    for producer in 0..producers {
        let (runtime_of, notify, items) = (runtime.clone(), notify.clone(), items.clone());
        let own = total / producers + u64::from(producer < total % producers);
        let bring = move || {
            for _ in 0..own {
                *held(&items) += 1;
                runtime_of.yield_point();
                notify.notify();
            }
            Ok(())
        };
        tasks.push(runtime.spawn("bringer", bring));
    }
    let tasks: std::io::Result<Vec<Task>> = tasks.into_iter().collect();
    join_all(tasks.map_err(|e| e.to_string())?)?;
    if runtime.now().since(began) >= HOUR {
        return Err("a consumer slept through a notification".to_string());
    }
    let coverage = held(&coverage).clone();
    Ok(coverage)
}

/// Nobody who counts before it looks misses a notification.
#[test]
fn schedules_notify() {
    let wanted = ["notify.waited", "notify.taken"];
    seeds("schedules_notify", 1, 4_000, &wanted, |seed| {
        explore(seed, |runtime, mut rng| {
            produce_and_consume(&runtime, &mut rng)
        })
    });
}
