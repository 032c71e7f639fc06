//! The threads of a workload: starts them, waits for them, and brings the store to rest.
//!
//! Invariants: everything that can be refused is made before a thread starts. All threads begin at
//! a barrier, and all have ended when the figures are collected. A thread that panics passes the
//! barrier too, and ends the others.
//!
//! Threading: [`measure`] starts the threads of the workload and a sampler, and ends all of them
//! before it returns.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::{Scope, ScopedJoinHandle, Thread};
use std::time::{Duration, Instant};

use super::operations::{Failure, Operation, Shared, Tools, Versions};
use super::settle::Wait;
use super::store::{self, Fixture};
use super::team::{self, Member};
use super::worker::{self, Due};
use super::{Control, Progress, RunError};
use crate::engine::Engine;
use crate::generate::acknowledged::Acknowledged;
use crate::generate::arrival::{Arrivals, Spacing};
use crate::generate::keys::{Keys, MAX_KEY_BYTES};
use crate::generate::random::{Random, Stream};
use crate::generate::rate::{Phase, Rate};
use crate::generate::values::Values;
use crate::measure::{Measured, Meter, Probe, Role, Sampler};
use crate::record::{Found, OpenLoopFound};
use crate::settings::{Amount, Arrival, Settings};

/// How often progress is told.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(100);

/// What is decided before the threads start, and what they share.
struct Run<'a> {
    fixture: &'a Fixture<'a>,
    settings: &'a Settings,
    control: &'a Control,
    progress: &'a (dyn Fn(Progress) + Sync),
    keys: Keys,
    values: Values,
    shared: Shared,
    meter: Meter,
    limit: Option<Duration>,
    total: Option<u64>,
    /// All threads, those beside the measured ones included.
    all_threads: u32,
    ready: Barrier,
    /// The measured threads that still work.
    working: AtomicU32,
    /// The threads that have not ended.
    running: AtomicU32,
    /// Ends the threads: the last measured one has finished, one has failed, or the user wants it.
    stop: AtomicBool,
    /// The thread that waits for the others.
    waiting: Thread,
}

/// What one thread is given.
struct Work<'a> {
    member: Member,
    operation: Box<dyn Operation + Send + 'a>,
    random: Random,
    arrivals: Option<Arrivals>,
}

/// Runs the threads of a workload, waits until the store is idle, and returns what was measured.
pub(super) fn measure(
    fixture: &Fixture<'_>,
    settings: &Settings,
    control: &Control,
    progress: &(dyn Fn(Progress) + Sync),
) -> Result<Found, RunError> {
    let run = Run::new(fixture, settings, control, progress)?;
    let engine = fixture.engine()?;
    let team: Vec<Work<'_>> = (0..run.all_threads)
        .map(|thread| run.work_of(engine, thread))
        .collect::<Result<_, _>>()?;
    let (measured, results, settled) = std::thread::scope(|scope| run.start(scope, engine, team))?;
    let (mut measured_due, mut beside_due) = (Due::default(), Due::default());
    for (member, result) in results {
        let due = result?.map_err(|failure| super::error_of(fixture.driver(), failure))?;
        match member.is_background() {
            true => beside_due += due,
            false => measured_due += due,
        }
    }
    let idle_since = settled?;
    let last = measured.start.map(|start| start + measured.until_last);
    let is_open = settings.arrival() != Arrival::Closed;
    Ok(Found {
        settled_after: last.map_or(Duration::ZERO, |last| {
            idle_since.saturating_duration_since(last)
        }),
        open_loop: is_open.then(|| OpenLoopFound {
            due_operations: measured_due.operations,
            duration: run.limit.unwrap_or(measured.until_last),
        }),
        is_synced: settings.sync,
        measured,
        ..Found::default()
    })
}

/// How each thread ended.
type Results = Vec<(Member, Result<Result<Due, Failure>, RunError>)>;

impl<'a> Run<'a> {
    fn new(
        fixture: &'a Fixture<'a>,
        settings: &'a Settings,
        control: &'a Control,
        progress: &'a (dyn Fn(Progress) + Sync),
    ) -> Result<Run<'a>, RunError> {
        let (limit, total) = match settings.amount() {
            Amount::Seconds(seconds) => (Some(Duration::from_secs_f64(seconds)), None),
            _ => (None, settings.operations()),
        };
        let all_threads = settings.threads + u32::from(settings.workload.has_background_writer());
        Ok(Run {
            fixture,
            settings,
            control,
            progress,
            keys: team::keys(settings)?,
            values: team::values(settings)?,
            shared: Shared {
                records: Acknowledged::new(fixture.end),
            },
            meter: Meter::new(),
            limit,
            total,
            all_threads,
            ready: Barrier::new(all_threads as usize),
            working: AtomicU32::new(settings.threads),
            running: AtomicU32::new(all_threads),
            stop: AtomicBool::new(false),
            waiting: std::thread::current(),
        })
    }

    fn work_of<'b>(&'b self, engine: &'b dyn Engine, thread: u32) -> Result<Work<'b>, RunError> {
        let member = Member {
            thread,
            threads: self.settings.threads,
        };
        let stream = member.stream(self.settings, team::OPERATIONS_LANE)?;
        Ok(Work {
            member,
            operation: team::operation(self.settings, engine, &self.shared, member)?,
            random: stream.random(),
            arrivals: arrivals(self.settings, member)?,
        })
    }

    /// Starts all threads, waits until they have ended and the store is idle.
    fn start<'scope, 'env>(
        &'env self,
        scope: &'scope Scope<'scope, 'env>,
        engine: &'env dyn Engine,
        team: Vec<Work<'env>>,
    ) -> Result<(Measured, Results, Result<Instant, RunError>), RunError> {
        let probe = move |ask| Some(Probe::of(engine, ask));
        let sampler = Sampler::start(scope, &self.meter, probe)
            .map_err(store::system("start the thread that samples"))?;
        let threads: Vec<_> = team
            .into_iter()
            .map(|work| {
                let member = work.member;
                (member, scope.spawn(move || self.thread(engine, work)))
            })
            .collect();
        self.wait_for_threads();
        let results: Results = threads.into_iter().map(joined).collect();
        let has_failed = results
            .iter()
            .any(|(_, result)| !matches!(result, Ok(Ok(_))));
        let settled = match has_failed {
            // Its error ends the run.
            true => Ok(Instant::now()),
            false => self.settle(),
        };
        // The sampler ends in any case, so that the scope ends.
        Ok((sampler.finish(), results, settled))
    }

    fn settle(&self) -> Result<Instant, RunError> {
        (self.progress)(Progress::Settling);
        let exempt_cpu_s = || self.meter.sampler_cpu_s();
        let writes = self.settings.workload.writes();
        Wait::after(writes, &self.control.stop, &exempt_cpu_s).wait(self.fixture)
    }

    /// Tells progress until all threads have ended.
    fn wait_for_threads(&self) {
        let start = Instant::now();
        while self.running.load(Ordering::Acquire) > 0 {
            (self.progress)(Progress::Running {
                operations: self.meter.operations(),
                of: self.total,
                elapsed: start.elapsed(),
                limit: self.limit,
            });
            if self.control.stop.load(Ordering::Acquire) {
                self.stop.store(true, Ordering::Release);
            }
            std::thread::park_timeout(PROGRESS_INTERVAL);
        }
    }

    /// What one thread does.
    fn thread(&self, engine: &dyn Engine, work: Work<'_>) -> Result<Due, Failure> {
        let _ending = Ending(self);
        let common = worker::Common {
            ready: &self.ready,
            stop: &self.stop,
            working: &self.working,
            limit: self.limit,
        };
        let role = match work.member.is_background() {
            true => Role::Beside,
            false => Role::Measured,
        };
        let session = catch_unwind(AssertUnwindSafe(|| engine.session()));
        if !matches!(session, Ok(Ok(_))) {
            self.stop.store(true, Ordering::Release);
            // Every thread passes the barrier, also one that failed or panicked before it.
            self.ready.wait();
        }
        let session = match session {
            Ok(session) => session?,
            Err(panic) => resume_unwind(panic),
        };
        let tools = Tools {
            session,
            keys: &self.keys,
            values: &self.values,
            population: &self.fixture.population,
            random: work.random,
            sync: self.settings.sync,
            versions: Versions::new(self.fixture.generation(), work.member.thread),
            recorder: self.meter.recorder(role),
            stop: &self.stop,
            key: Box::new([0; MAX_KEY_BYTES]),
            value: Vec::new(),
            before: Vec::new(),
        };
        worker::work(&common, work.operation, tools, work.arrivals, role)
    }
}

/// Says at the end of a thread, also if it panicked, that it has ended. The waiting thread looks at
/// once, so that the wait until idle begins with the last operation.
struct Ending<'a>(&'a Run<'a>);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // The thread did not come to the end of its loop, where it would have ended the others.
            self.0.stop.store(true, Ordering::Release);
        }
        self.0.running.fetch_sub(1, Ordering::AcqRel);
        self.0.waiting.unpark();
    }
}

fn joined(
    (member, thread): (Member, ScopedJoinHandle<'_, Result<Due, Failure>>),
) -> (Member, Result<Result<Due, Failure>, RunError>) {
    (member, thread.join().map_err(|_| RunError::Panic))
}

/// The intended starts of a thread's operations in an open loop.
fn arrivals(settings: &Settings, member: Member) -> Result<Option<Arrivals>, RunError> {
    if member.is_background() {
        return beside_arrivals(settings);
    }
    let (rate, spacing) = match settings.arrival() {
        Arrival::Closed => return Ok(None),
        Arrival::Constant(per_second) => (Rate::Constant(per_second), Spacing::Even),
        Arrival::Poisson(per_second) => (Rate::Constant(per_second), Spacing::Poisson),
        Arrival::Phases(phases) => {
            let phases = phases.into_iter().map(|(seconds, per_second)| Phase {
                seconds,
                per_second,
            });
            (Rate::Phases(phases.collect()), Spacing::Even)
        }
    };
    let stream = member.stream(settings, team::ARRIVALS_LANE)?;
    Ok(Some(Arrivals::new(&rate, spacing, stream)?))
}

/// Those of the thread beside the measured ones, which has a rate of its own.
fn beside_arrivals(settings: &Settings) -> Result<Option<Arrivals>, RunError> {
    let Some(per_second) = settings.write_rate else {
        return Ok(None);
    };
    // Even times are not drawn, so the stream only says that the thread has all of them.
    let alone = Stream::new(settings.operation_seed, 0, 1)?;
    let arrivals = Arrivals::new(&Rate::Constant(per_second), Spacing::Even, alone)?;
    Ok(Some(arrivals))
}
