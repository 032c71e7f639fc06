//! The survivors that a host sends for an attempt. They are kept until the executor that rebuilds
//! tables needs them ([RFC 11](../../../../docs/rfc/0011-separated.md), section 10).
//!
//! Invariants:
//! - The pieces of a subjob are taken in the order of their numbers, each of them once, no matter
//!   on which connections they arrive.
//! - Memory is bounded. A running subjob has at most [`CHUNKS_MAX`] chunks and one that is being
//!   put together, each of at most [`CHUNK_BYTES_MAX`] bytes. All other subjobs together have at
//!   most [`WAITING_BYTES_MAX`].
//! - A request waits at most half a second for room. When the attempt ends, no request waits any
//!   more.
//! - If a host breaks these rules, what it sends is refused, and the attempt fails.
//!
//! Threading: shared by connections and by the tasks of the attempt. Locks are taken in this order:
//! `state`, then `asked`. No lock is held during a call of a storage or of a link.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use siltstone_storage::{Condvar, Instant, Mutex, Runtime, StorageError, StorageErrorKind};
use siltstone_table::TableError;
use siltstone_table::exec::part::Point;
use siltstone_table::exec::separated::{SurvivorSource, SurvivorStream};
use siltstone_table::exec::survivors::Survivors;
use siltstone_table::exec::{ExecContext, ExecError};
use siltstone_table::job::Job;

use crate::wire::Answer;
use crate::wire::survivors::{CHUNK_BYTES_MAX, SurvivorsPiece};

/// The maximum number of complete chunks of a subjob that are kept.
const CHUNKS_MAX: usize = 2;

/// The maximum number of bytes that are kept for all subjobs that do not run yet.
const WAITING_BYTES_MAX: usize = 16 << 20;

/// The longest time that a piece waits for room.
const ROOM_WAIT: Duration = Duration::from_millis(500);

/// How often a task that waits for a chunk checks whether its attempt was cancelled.
const LOOK: Duration = Duration::from_millis(100);

const OP: &str = "run a job";

/// The state of one subjob.
#[derive(Default)]
struct Lane {
    /// The number of the last piece that was taken, and its checksum.
    taken: u64,
    last_crc: u32,
    /// The chunk that is being put together.
    begun: Vec<u8>,
    chunks: VecDeque<Vec<u8>>,
    is_running: bool,
    /// Set when the subjob needs no further chunk.
    is_done: bool,
}

impl Lane {
    fn bytes(&self) -> usize {
        self.begun.len() + self.chunks.iter().map(Vec::len).sum::<usize>()
    }
}

#[derive(Default)]
struct State {
    lanes: BTreeMap<u32, Lane>,
    /// The error with which the attempt fails, because the host broke a rule.
    broken: Option<StorageError>,
    has_ended: bool,
}

impl State {
    fn waiting_bytes(&self) -> usize {
        let waiting = self.lanes.values().filter(|lane| !lane.is_running);
        waiting.map(Lane::bytes).sum()
    }

    /// Whether there is room for a piece of the subjob.
    fn has_room(&self, subjob: u32, len: usize) -> bool {
        let lane = self.lanes.get(&subjob);
        let (chunks, is_running) = lane.map_or((0, false), |l| (l.chunks.len(), l.is_running));
        chunks < CHUNKS_MAX && (is_running || self.waiting_bytes() + len <= WAITING_BYTES_MAX)
    }
}

/// See the module.
pub(super) struct Chunks {
    runtime: Runtime,
    attempt: u64,
    job: u128,
    subjobs: u32,
    /// How long a waiting task counts as alive after the host last asked about the attempt.
    silence: Duration,
    asked: Mutex<Instant>,
    state: Mutex<State>,
    changed: Condvar,
}

impl Chunks {
    pub(super) fn new(
        runtime: &Runtime,
        attempt: u64,
        job: &Job,
        silence: Duration,
    ) -> Arc<Chunks> {
        Arc::new(Chunks {
            runtime: runtime.clone(),
            attempt,
            job: job.identity(),
            subjobs: job.subjobs() as u32,
            silence,
            asked: runtime.mutex(runtime.now()),
            state: runtime.mutex(State::default()),
            changed: runtime.condvar(),
        })
    }

    fn error(&self, kind: StorageErrorKind, detail: impl Into<String>) -> StorageError {
        StorageError::new(kind, OP, format!("attempt {}", self.attempt), detail)
    }

    /// Notes that the host has asked about the attempt.
    pub(super) fn asked(&self) {
        *self.asked.lock() = self.runtime.now();
    }

    fn was_asked_lately(&self) -> bool {
        self.runtime.now().since(*self.asked.lock()) < self.silence
    }

    /// Notes that the attempt has ended. Nobody waits any more, and nothing is kept.
    pub(super) fn end(&self) {
        let mut state = self.state.lock();
        state.has_ended = true;
        state.lanes.clear();
        drop(state);
        self.changed.notify_all();
    }

    /// The number of bytes that are kept.
    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        self.state.lock().lanes.values().map(Lane::bytes).sum()
    }

    /// Refuses what a correct host never sends, and makes the attempt fail.
    fn broken(&self, state: &mut State, detail: String) -> StorageError {
        let error = self.error(StorageErrorKind::InvalidInput, detail);
        state.broken.get_or_insert_with(|| error.clone());
        self.changed.notify_all();
        error
    }

    /// Takes a piece, or says that there is no room for it now. `crc` is the checksum of the
    /// frame's body.
    pub(super) fn take(
        &self,
        piece: &SurvivorsPiece,
        crc: u32,
        bytes: &[u8],
    ) -> Result<Answer, StorageError> {
        self.asked();
        let until = self.runtime.now() + ROOM_WAIT;
        let mut state = self.state.lock();
        if piece.subjob >= self.subjobs {
            let count = self.subjobs;
            let subjob = piece.subjob;
            let detail = format!("survivors of subjob {subjob}, and the job has {count} subjobs");
            return Err(self.broken(&mut state, detail));
        }
        loop {
            if state.has_ended {
                let detail = "the attempt has ended, and needs no survivors";
                return Err(self.error(StorageErrorKind::Closed, detail));
            }
            if let Some(error) = &state.broken {
                return Err(error.clone());
            }
            let lane = state.lanes.entry(piece.subjob).or_default();
            let is_repeat = piece.number == lane.taken && crc == lane.last_crc;
            if piece.number > 0 && (is_repeat || piece.number < lane.taken) {
                return Ok(Answer::Done);
            }
            let (next, is_done) = (lane.taken + 1, lane.is_done);
            let len = lane.begun.len() + bytes.len();
            let subjob = piece.subjob;
            let detail = if piece.number != next {
                let found = piece.number;
                format!("piece {found} of subjob {subjob}, and the next one is {next}")
            } else if is_done {
                format!("piece {next} of subjob {subjob}, which needs no more")
            } else if len > CHUNK_BYTES_MAX || bytes.is_empty() {
                format!("a chunk of {len} bytes; it may have 1 to {CHUNK_BYTES_MAX} bytes")
            } else {
                String::new()
            };
            if !detail.is_empty() {
                return Err(self.broken(&mut state, detail));
            }
            if state.has_room(subjob, bytes.len()) {
                let lane = state.lanes.entry(subjob).or_default();
                (lane.taken, lane.last_crc) = (piece.number, crc);
                lane.begun.extend_from_slice(bytes);
                if piece.ends_chunk {
                    let mut chunk = std::mem::take(&mut lane.begun);
                    chunk.shrink_to_fit();
                    lane.chunks.push_back(chunk);
                    drop(state);
                    self.changed.notify_all();
                }
                return Ok(Answer::Done);
            }
            let now = self.runtime.now();
            if now >= until {
                return Ok(Answer::Later);
            }
            state = self.changed.wait_timeout(state, until.since(now)).0;
        }
    }

    /// Waits for the next chunk of a subjob.
    fn next(&self, subjob: u32, ctx: &ExecContext) -> Result<Vec<u8>, ExecError> {
        let mut state = self.state.lock();
        loop {
            if let Some(error) = &state.broken {
                return Err(TableError::Storage(error.clone()).into());
            }
            if ctx.cancel.is_cancelled() || state.has_ended {
                return Err(ExecError::Cancelled);
            }
            let lane = state.lanes.entry(subjob).or_default();
            if let Some(chunk) = lane.chunks.pop_front() {
                drop(state);
                self.changed.notify_all();
                return Ok(chunk);
            }
            state = self.changed.wait_timeout(state, LOOK).0;
            if self.was_asked_lately() {
                ctx.progress.beat();
            }
        }
    }

    fn set(&self, subjob: u32, is_running: bool) {
        let mut state = self.state.lock();
        let lane = state.lanes.entry(subjob).or_default();
        lane.is_running = is_running;
        if !is_running {
            lane.is_done = true;
            lane.begun = Vec::new();
            lane.chunks.clear();
        }
        drop(state);
        self.changed.notify_all();
    }
}

/// Delivers the chunks to the executor.
pub(super) struct ChunkSource(pub(super) Arc<Chunks>);

struct ChunkStream<'a> {
    chunks: &'a Chunks,
    ctx: &'a ExecContext,
    subjob: u32,
    has_ended: bool,
}

impl SurvivorSource for ChunkSource {
    fn open<'a>(
        &'a self,
        _: &'a Job,
        subjob: u32,
        next: &Point,
        ctx: &'a ExecContext,
    ) -> Result<Box<dyn SurvivorStream + 'a>, ExecError> {
        if *next != Point::Start {
            let what = "survivors from a host begin with their subjob";
            return Err(TableError::Misuse(what).into());
        }
        self.0.set(subjob, true);
        Ok(Box::new(ChunkStream {
            chunks: &self.0,
            ctx,
            subjob,
            has_ended: false,
        }))
    }
}

impl SurvivorStream for ChunkStream<'_> {
    fn next_chunk(&mut self) -> Result<Option<Survivors>, ExecError> {
        if self.has_ended {
            return Ok(None);
        }
        let bytes = self.chunks.next(self.subjob, self.ctx)?;
        let wrong = |detail: String| {
            let error = self.chunks.error(StorageErrorKind::InvalidInput, detail);
            ExecError::Failed(TableError::Storage(error))
        };
        let decoded = Survivors::decode(&bytes).map_err(|damage| wrong(damage.to_string()))?;
        let (job, survivors) = decoded;
        if job != self.chunks.job {
            return Err(wrong("a chunk of survivors is of another job".into()));
        }
        self.has_ended = survivors.end.is_some();
        Ok(Some(survivors))
    }
}

impl Drop for ChunkStream<'_> {
    fn drop(&mut self) {
        self.chunks.set(self.subjob, false);
    }
}

#[cfg(test)]
mod tests {
    use siltstone_storage::sim::{SimConfig, run};
    use siltstone_storage::{Epoch, MemoryStorage};
    use siltstone_table::exec::InputMap;
    use siltstone_table::job::{FormatOptions, Input, OutputLimits, OutputPrefix};

    use super::*;

    /// A job of ten subjobs.
    fn job() -> Job {
        Job {
            hard_cuts: (1..10u8).map(|cut| vec![cut]).collect(),
            ..Job::of_stream(
                1,
                Input::of_stream("none", 5..=9),
                OutputLimits::new(1 << 20, 4096, false),
                FormatOptions::default(),
                OutputPrefix::default(),
            )
        }
    }

    fn piece(subjob: u32, number: u64, ends_chunk: bool) -> SurvivorsPiece {
        SurvivorsPiece {
            attempt: 1,
            subjob,
            number,
            ends_chunk,
        }
    }

    fn with_chunks(seed: u64, test: impl FnOnce(&Runtime, Arc<Chunks>) + Send + 'static) {
        let report = run(SimConfig::new(seed), move |rt| {
            let chunks = Chunks::new(&rt, 1, &job(), Duration::from_secs(2));
            test(&rt, chunks);
        });
        report.result.unwrap();
    }

    fn context(rt: &Runtime) -> ExecContext {
        let storage = Arc::new(MemoryStorage::new(rt));
        ExecContext::new(rt.clone(), Arc::new(InputMap::new()), storage, Epoch(1))
    }

    fn is_done(answer: Result<Answer, StorageError>) -> bool {
        matches!(answer.unwrap(), Answer::Done)
    }

    #[test]
    fn pieces_are_taken_once_and_in_order() {
        with_chunks(1, |rt, chunks| {
            assert!(is_done(chunks.take(&piece(3, 1, false), 7, b"ab")));
            // A repetition, no matter what arrived since then.
            assert!(is_done(chunks.take(&piece(3, 1, false), 7, b"ab")));
            assert!(is_done(chunks.take(&piece(3, 2, true), 8, b"cd")));
            assert!(is_done(chunks.take(&piece(3, 1, false), 7, b"ab")));
            assert!(is_done(chunks.take(&piece(3, 2, true), 8, b"cd")));
            assert_eq!(chunks.bytes(), 4);
            let ctx = context(rt);
            assert_eq!(chunks.next(3, &ctx).unwrap(), b"abcd");
            // There is no other chunk, so the task waits until it is cancelled.
            ctx.cancel.cancel();
            assert!(matches!(chunks.next(3, &ctx), Err(ExecError::Cancelled)));
        });
    }

    #[test]
    fn what_no_host_sends_fails_the_attempt() {
        let wrong: [(SurvivorsPiece, u32, usize); 7] = [
            (piece(3, 0, true), 1, 1),
            (piece(3, 3, true), 1, 1),
            // The last number, but with other bytes.
            (piece(3, 1, true), 9, 1),
            (piece(10, 1, true), 1, 1),
            (piece(u32::MAX, 1, true), 1, 1),
            (piece(3, 2, true), 1, CHUNK_BYTES_MAX + 1),
            (piece(3, 2, true), 1, 0),
        ];
        for (i, (piece_of, crc, len)) in wrong.into_iter().enumerate() {
            with_chunks(i as u64, move |rt, chunks| {
                assert!(is_done(chunks.take(&piece(3, 1, true), 7, b"ab")));
                let error = chunks.take(&piece_of, crc, &vec![1; len]).unwrap_err();
                assert_eq!(error.kind, StorageErrorKind::InvalidInput, "{error}");
                let ctx = context(rt);
                let failed = chunks.next(3, &ctx).unwrap_err();
                assert!(failed.to_string().contains(&error.detail), "{failed}");
                // Correct pieces do not help any more.
                assert!(chunks.take(&piece(4, 1, true), 7, b"x").is_err());
            });
        }
    }

    /// A host that sends as much as it can uses bounded memory on the device, and never waits for
    /// long.
    #[test]
    fn memory_is_bounded() {
        with_chunks(2, |rt, chunks| {
            chunks.set(0, true);
            let bytes = vec![1; 1 << 20];
            let mut sent = [0u64; 10];
            for turn in 0..40 {
                for subjob in 0..10u32 {
                    let begun = rt.now();
                    let number = sent[subjob as usize] + 1;
                    // Chunks of two pieces.
                    let piece = piece(subjob, number, number.is_multiple_of(2));
                    match chunks.take(&piece, number as u32, &bytes).unwrap() {
                        Answer::Done => sent[subjob as usize] += 1,
                        Answer::Later => {}
                        other => panic!("{other:?}"),
                    }
                    assert!(rt.now().since(begun) <= ROOM_WAIT + LOOK, "turn {turn}");
                }
            }
            // These are two chunks of the running subjob, and the budget of those that do not run
            // yet.
            assert_eq!(sent[0], 4);
            assert_eq!(chunks.bytes(), (4 << 20) + WAITING_BYTES_MAX);
            // A subjob has room again when it begins to run.
            let full = (1..10u32)
                .find(|subjob| sent[*subjob as usize] < 4)
                .unwrap();
            chunks.set(full, true);
            let number = sent[full as usize] + 1;
            let piece = piece(full, number, number.is_multiple_of(2));
            assert!(is_done(chunks.take(&piece, 1, &bytes)));
            // The end wakes every waiting task and frees all memory.
            let waits = chunks.clone();
            let ctx = context(rt);
            let waiting = rt.spawn("waits", move || waits.next(5, &ctx).map(drop).map_err(drop));
            rt.sleep(LOOK);
            chunks.end();
            drop(waiting.unwrap().join());
            assert_eq!(chunks.bytes(), 0);
            let error = chunks.take(&piece, 1, &bytes).unwrap_err();
            assert_eq!(error.kind, StorageErrorKind::Closed, "{error}");
        });
    }

    /// A waiting task shows signs of life while the host asks, but not while the host is silent.
    #[test]
    fn a_silent_host_is_noticed() {
        with_chunks(3, |rt, chunks| {
            let ctx = context(rt);
            let progress = ctx.progress.clone();
            let (waits, token) = (chunks.clone(), ctx.cancel.clone());
            let task = rt.spawn("waits", move || {
                let ended = waits.next(0, &ctx);
                assert!(matches!(ended, Err(ExecError::Cancelled)));
            });
            for _ in 0..10 {
                let before = progress.signs_of_life();
                chunks.asked();
                rt.sleep(Duration::from_secs(1));
                assert!(progress.signs_of_life() > before);
            }
            rt.sleep(Duration::from_secs(3));
            let before = progress.signs_of_life();
            rt.sleep(Duration::from_secs(5));
            assert_eq!(progress.signs_of_life(), before);
            token.cancel();
            task.unwrap().join().unwrap();
        });
    }
}
