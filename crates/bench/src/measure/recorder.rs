//! What the threads of a workload record, and how it reaches the thread that collects it.
//!
//! A [`Recorder`] keeps the operations of the current second of its thread in a `Tally`. With the
//! first operation that ends in a later second it sends the tally away, together with the number of
//! its second, and goes on with an empty one. A thread that stalls sends its tally late, but the
//! operations are still counted in the second in which they ended.
//!
//! Invariants:
//! - A recorder never waits. It takes no lock, and the channel has no limit. Its tallies come back
//!   empty and are used again.
//! - A recorder has announced itself with a `Message::Begin` before any recorder sends a tally of
//!   the same second or a later one. The collector therefore knows which seconds are complete.
//!
//! Threading: a recorder belongs to the thread that made it, because it reads the processor time of
//! that thread. The [`Meter`] is shared.

use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use super::latency::Latencies;
use super::process;
use crate::settings::Kind;

#[cfg(test)]
mod tests;

const KINDS: usize = Kind::ALL.len();
const SECOND: Duration = Duration::from_secs(1);

/// One call that a thread has finished.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Done {
    /// Which latency it belongs to.
    pub kind: Kind,
    /// How many operations it counts as: each entry of a batch and of a whole scan is one.
    pub operations: u64,
    /// Bytes of keys and values that the engine was given to write.
    pub written_bytes: u64,
    /// Bytes of keys and values that the engine returned.
    pub read_bytes: u64,
}

/// When a call of an open loop was due, when it began and when it ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Times {
    /// When it should have begun. Its latency counts from here.
    pub intended: Instant,
    /// When it did begin. Its service time counts from here.
    pub began: Instant,
    /// When it ended.
    pub ended: Instant,
}

/// What a thread has to do with the workload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Its operations are what the workload is about.
    Measured,
    /// It only writes while the others are measured. Its latencies are kept by kind, and its
    /// operations are counted apart.
    Beside,
}

/// What one thread did in one second.
#[derive(Debug, Default)]
pub(super) struct Tally {
    pub(super) operations: u64,
    pub(super) written_bytes: u64,
    pub(super) read_bytes: u64,
    pub(super) errors: u64,
    pub(super) wrong_answers: u64,
    /// When the last call ended, from the start of the measurement.
    pub(super) last_end: Duration,
    /// Processor time of the thread since its last tally.
    pub(super) cpu_s: Option<f64>,
    /// Latencies by kind.
    pub(super) latency: [Option<Box<Latencies>>; KINDS],
    /// Service times by kind, in an open loop.
    pub(super) service: [Option<Box<Latencies>>; KINDS],
    /// How long operations of an open loop had waited that were never begun.
    pub(super) censored: Option<(Option<Kind>, Box<Latencies>)>,
}

impl Tally {
    /// Empties it, and keeps the memory of the histograms.
    pub(super) fn clear(&mut self) {
        let (mut latency, mut service) = (Default::default(), Default::default());
        std::mem::swap(&mut latency, &mut self.latency);
        std::mem::swap(&mut service, &mut self.service);
        for latencies in latency.iter_mut().chain(&mut service).flatten() {
            latencies.clear();
        }
        *self = Tally {
            latency,
            service,
            ..Tally::default()
        };
    }
}

/// What recorders send to the collector.
#[derive(Debug)]
pub(super) enum Message {
    /// A recorder begins in this second.
    Begin { recorder: u64, second: u64 },
    /// What a recorder has for `second`. It goes on with second `next`; `None` if it ends.
    Tally {
        recorder: u64,
        role: Role,
        second: u64,
        next: Option<u64>,
        tally: Box<Tally>,
        /// Takes the tally back.
        back: Sender<Box<Tally>>,
    },
    /// Nothing more comes.
    Stop,
}

/// A counter in a cache line of its own, which one thread writes.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Published(AtomicU64);

/// What is shared by the threads of one measurement: its clock, and the way to its collector.
#[derive(Debug)]
pub struct Meter {
    start: OnceLock<Instant>,
    sender: Sender<Message>,
    receiver: Mutex<Option<Receiver<Message>>>,
    published: Mutex<Vec<Arc<Published>>>,
    recorders: AtomicU64,
    /// Processor time of the sampler, in nanoseconds.
    pub(super) sampler_cpu_ns: AtomicU64,
}

impl Default for Meter {
    fn default() -> Meter {
        Meter::new()
    }
}

impl Meter {
    /// A measurement whose clock does not run yet.
    pub fn new() -> Meter {
        let (sender, receiver) = mpsc::channel();
        Meter {
            start: OnceLock::new(),
            sender,
            receiver: Mutex::new(Some(receiver)),
            published: Mutex::default(),
            recorders: AtomicU64::new(0),
            sampler_cpu_ns: AtomicU64::new(0),
        }
    }

    /// Starts the clock unless it runs, and returns when it was started.
    pub fn start(&self) -> Instant {
        *self.start.get_or_init(Instant::now)
    }

    /// A recorder for the calling thread. Make it before the barrier at which all threads wait; its
    /// time begins with [`Recorder::begin`].
    pub fn recorder(&self, role: Role) -> Recorder<'_> {
        let published = Arc::<Published>::default();
        let all = self.published.lock();
        all.unwrap_or_else(PoisonError::into_inner)
            .push(published.clone());
        let (back, spare) = mpsc::channel();
        let now = Instant::now();
        Recorder {
            meter: self,
            number: self.recorders.fetch_add(1, Ordering::Relaxed),
            role,
            is_begun: false,
            start: now,
            second: 0,
            end: now,
            last: now,
            operations: 0,
            published,
            cpu_s: None,
            tally: Box::default(),
            back,
            spare,
            _of_one_thread: PhantomData,
        }
    }

    /// The operations of all threads so far, for a progress bar. It lags a moment behind.
    pub fn operations(&self) -> u64 {
        let all = self.published.lock();
        all.unwrap_or_else(PoisonError::into_inner)
            .iter()
            .map(|published| published.0.load(Ordering::Relaxed))
            .sum()
    }

    /// Processor time of the sampler so far, in seconds, as of its last reading.
    pub fn sampler_cpu_s(&self) -> f64 {
        self.sampler_cpu_ns.load(Ordering::Relaxed) as f64 / 1e9
    }

    /// The receiving end, once.
    pub(super) fn take_receiver(&self) -> Option<Receiver<Message>> {
        let mut receiver = self.receiver.lock().unwrap_or_else(PoisonError::into_inner);
        receiver.take()
    }

    pub(super) fn send(&self, message: Message) {
        // Nobody collects any more. The recorders of such a measurement are of no use to anyone.
        let _ = self.sender.send(message);
    }
}

/// Records the operations of one thread. What it has is sent when it is dropped.
#[derive(Debug)]
pub struct Recorder<'a> {
    meter: &'a Meter,
    number: u64,
    role: Role,
    is_begun: bool,
    start: Instant,
    /// The current second, and its end.
    second: u64,
    end: Instant,
    /// The end of the last lap.
    last: Instant,
    operations: u64,
    published: Arc<Published>,
    /// Processor time of the thread when the last tally was sent.
    cpu_s: Option<f64>,
    tally: Box<Tally>,
    back: Sender<Box<Tally>>,
    spare: Receiver<Box<Tally>>,
    _of_one_thread: PhantomData<*const ()>,
}

impl Recorder<'_> {
    /// Begins to measure: starts the meter's clock unless it runs, and the first lap. Returns the
    /// time that it has read.
    pub fn begin(&mut self) -> Instant {
        self.start = self.meter.start();
        let now = Instant::now();
        self.enter(self.second_of(now));
        self.last = now;
        self.cpu_s = process::thread_cpu_s();
        if !self.is_begun {
            self.is_begun = true;
            self.meter.send(Message::Begin {
                recorder: self.number,
                second: self.second,
            });
        }
        now
    }

    /// Records a call of a closed loop that began when the last one ended. It reads the clock once
    /// and returns that time.
    pub fn lap(&mut self, done: &Done) -> Instant {
        let now = Instant::now();
        self.record(done, self.last, now);
        now
    }

    /// Begins a lap now, after a pause that belongs to no operation.
    pub fn restart(&mut self) -> Instant {
        self.last = Instant::now();
        self.last
    }

    /// Records a call of a closed loop with these times. The next lap begins with its end.
    pub fn record(&mut self, done: &Done, began: Instant, ended: Instant) {
        self.count(done, ended);
        let latency = ended.saturating_duration_since(began);
        latencies_of(&mut self.tally.latency, done.kind).record(latency);
    }

    /// Records a call of an open loop.
    pub fn record_open(&mut self, done: &Done, times: &Times) {
        self.count(done, times.ended);
        let since = |from| times.ended.saturating_duration_since(from);
        // A call that began early was not late: its latency is not less than its service time.
        let intended = times.intended.min(times.began);
        latencies_of(&mut self.tally.latency, done.kind).record(since(intended));
        latencies_of(&mut self.tally.service, done.kind).record(since(times.began));
    }

    /// Records a call of an open loop that was due at `intended` and had not begun when it was given
    /// up. What it waited until then is a lower bound of its latency. It is no operation, and in no
    /// second of the series. `kind` is `None` if the thread would have drawn it.
    pub fn record_censored(&mut self, kind: Option<Kind>, intended: Instant, given_up: Instant) {
        let (_, latencies) = self
            .tally
            .censored
            .get_or_insert_with(|| (kind, Box::default()));
        latencies.record(given_up.saturating_duration_since(intended));
    }

    /// Counts a call that failed.
    pub fn count_error(&mut self) {
        self.begin_unless_begun();
        self.tally.errors += 1;
    }

    /// Counts an answer that was wrong.
    pub fn count_wrong_answer(&mut self) {
        self.begin_unless_begun();
        self.tally.wrong_answers += 1;
    }

    /// The operations of this thread so far.
    pub fn operations(&self) -> u64 {
        self.operations
    }

    /// Everything of a call but its times.
    #[inline]
    fn count(&mut self, done: &Done, ended: Instant) {
        if ended >= self.end {
            self.turn(ended);
        }
        self.last = ended;
        self.operations += done.operations;
        self.published.0.store(self.operations, Ordering::Relaxed);
        self.tally.operations += done.operations;
        self.tally.written_bytes += done.written_bytes;
        self.tally.read_bytes += done.read_bytes;
    }

    /// Goes on to the second of `now`.
    #[cold]
    fn turn(&mut self, now: Instant) {
        self.begin_unless_begun();
        let next = self.second_of(now);
        if next > self.second {
            self.hand_over(Some(next));
            self.enter(next);
        }
    }

    fn begin_unless_begun(&mut self) {
        if !self.is_begun {
            self.begin();
        }
    }

    fn second_of(&self, now: Instant) -> u64 {
        now.saturating_duration_since(self.start).as_secs()
    }

    fn enter(&mut self, second: u64) {
        self.second = second;
        self.end = self.start + Duration::from_secs(second) + SECOND;
    }

    /// Sends the tally of the current second.
    fn hand_over(&mut self, next: Option<u64>) {
        let fresh = self.spare.try_recv().unwrap_or_default();
        let mut tally = std::mem::replace(&mut self.tally, fresh);
        let cpu_s = process::thread_cpu_s();
        tally.cpu_s = cpu_s.zip(self.cpu_s).map(|(now, before)| now - before);
        tally.last_end = self.last.saturating_duration_since(self.start);
        self.cpu_s = cpu_s;
        self.meter.send(Message::Tally {
            recorder: self.number,
            role: self.role,
            second: self.second,
            next,
            tally,
            back: self.back.clone(),
        });
    }
}

impl Drop for Recorder<'_> {
    fn drop(&mut self) {
        if self.is_begun {
            self.hand_over(None);
        }
    }
}

/// The latencies of a kind, which are made with its first operation.
#[inline]
fn latencies_of(all: &mut [Option<Box<Latencies>>; KINDS], kind: Kind) -> &mut Latencies {
    all[kind as usize].get_or_insert_default()
}
