//! Runs a workload on a store and finds out what it costs.
//!
//! The phases of a run are those of RFC 8, section 2: prepare, cache, measure, settle, account.
//! [`run`] does all of them and returns what it found.
//!
//! Invariants: all engines get the same operations for equal settings; a run that returns a result
//! had no failure and no wrong answer.
//!
//! Threading: [`run`] starts the threads of the workload and a sampler, and ends all of them before
//! it returns.

pub mod error;
pub mod population;
pub mod store;

mod once;
mod operations;
mod team;
mod worker;

#[cfg(test)]
mod tests;

use std::path::Path;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::engine::{Driver, Engine};
use crate::generate::acknowledged::Acknowledged;
use crate::generate::arrival::{Arrivals, Spacing};
use crate::generate::keys::MAX_KEY_BYTES;
use crate::generate::rate::{Phase, Rate};
use crate::measure::idle::Limits;
use crate::measure::{Meter, Probe, Quiet, Role, Sampler, files, wait_until_quiet};
use crate::record::{Found, OpenLoopFound};
use crate::settings::{Amount, Arrival, Cache, Settings, Workload};

use operations::{Failure, Shared, Tools};
use store::Fixture;
use team::Member;

pub use error::RunError;

/// What a user interface gives a run, and what it may ask it.
#[derive(Debug, Default)]
pub struct Control {
    /// Set by the user interface to end the run, for example by a signal.
    pub stop: AtomicBool,
}

/// What a run tells while it runs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Progress {
    /// The store is made, opened, warmed or dropped from the cache.
    Preparing,
    /// So many operations are done; `of` is known if time does not decide.
    Running {
        /// Operations of all threads.
        operations: u64,
        /// All operations of the run.
        of: Option<u64>,
        /// From the start.
        elapsed: Duration,
        /// How long the run lasts, if time decides.
        limit: Option<Duration>,
    },
    /// All operations are done, and the engine finishes its flushes and compactions.
    Settling,
}

/// How often progress is told.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(100);

/// Runs the workload of `settings` on a store of `driver` below `folder`.
///
/// # Errors
/// See [`RunError`]. A run that failed leaves no result, and its store is not known to later runs.
pub fn run(
    driver: &dyn Driver,
    folder: &Path,
    settings: &Settings,
    control: &Control,
    progress: &(dyn Fn(Progress) + Sync),
) -> Result<Found, RunError> {
    let settings = &settings.resolved();
    settings
        .check(&driver.abilities())
        .map_err(RunError::Settings)?;
    progress(Progress::Preparing);
    let mut fixture = if settings.workload.makes_store() {
        Fixture::create(driver, folder, settings)?
    } else {
        Fixture::existing(driver, folder, settings)?
    };
    prepare_cache(&mut fixture, settings)?;
    let cached_before = files::cached_part(fixture.folder()).ok().flatten();
    if settings.workload.writes() {
        fixture.begin_writing()?;
    }
    let found = match settings.workload {
        Workload::Open => Found {
            measured: once::open(&mut fixture, settings)?,
            ..Found::default()
        },
        _ => measure(&mut fixture, settings, control, progress)?,
    };
    if control.stop.load(Ordering::Acquire) {
        let _ = fixture.close();
        return Err(RunError::Interrupted);
    }
    let sizes = files::sizes(fixture.folder(), &files::purpose_by_name)
        .map_err(store::system("read the sizes of the store's files"))?;
    let cached_after = files::cached_part(fixture.folder()).ok().flatten();
    fixture.close()?;
    if settings.workload.writes() {
        count_records(&mut fixture, settings)?;
        fixture.save(settings)?;
    }
    Ok(Found {
        sizes,
        records: Some(fixture.population.count()),
        live_bytes: Some(fixture.live_bytes),
        cached_before,
        cached_after,
        ..found
    })
}

/// Brings the page cache into the state that the run asks for.
fn prepare_cache(fixture: &mut Fixture<'_>, settings: &Settings) -> Result<(), RunError> {
    match settings.cache {
        Cache::AsIs => Ok(()),
        Cache::Warm => files::warm(fixture.folder())
            .map(drop)
            .map_err(store::system("read the store's files to warm the cache")),
        Cache::Cold => {
            fixture.close()?;
            files::drop_from_cache(fixture.folder())
                .map_err(store::system("drop the store's files from the page cache"))?;
            fixture.open(&settings.engine)
        }
    }
}

/// Counts the records and the raw bytes of their keys and values.
fn count_records(fixture: &mut Fixture<'_>, settings: &Settings) -> Result<(), RunError> {
    let (keys, values) = (team::keys(settings)?, team::values(settings)?);
    let mut buffer = Box::new([0; MAX_KEY_BYTES]);
    let has_one_key_size = keys.ordered();
    let count = fixture.population.count();
    let key_bytes: u64 = if has_one_key_size {
        count * u64::from(settings.key_bytes)
    } else {
        let lengths = fixture.population.records();
        lengths
            .map(|record| keys.present(record, &mut buffer).len() as u64)
            .sum()
    };
    fixture.live_bytes = key_bytes + (count as f64 * values.mean_bytes()) as u64;
    fixture.end = fixture.population.end();
    Ok(())
}

/// The error of a failed operation.
fn error_of(driver: &dyn Driver, failure: Failure) -> RunError {
    let engine = driver.name().to_string();
    match failure {
        Failure::Engine(error) => RunError::Engine { engine, error },
        Failure::Wrong(what) => RunError::WrongAnswer { engine, what },
    }
}

/// The intended starts of a thread's operations in an open loop.
fn arrivals(settings: &Settings, member: Member) -> Result<Option<Arrivals>, RunError> {
    let (rate, spacing) = match settings.arrival() {
        Arrival::Closed => return Ok(None),
        _ if member.is_background() => return Ok(None),
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

/// What is decided before the threads start.
struct Setup {
    threads: u32,
    all_threads: u32,
    limit: Option<Duration>,
    total: Option<u64>,
}

impl Setup {
    fn of(settings: &Settings) -> Setup {
        let threads = settings.threads;
        let (limit, total) = match settings.amount() {
            Amount::Seconds(seconds) => (Some(Duration::from_secs_f64(seconds)), None),
            _ => (None, settings.operations()),
        };
        Setup {
            threads,
            all_threads: threads + u32::from(settings.workload.has_background_writer()),
            limit,
            total,
        }
    }
}

/// Runs the threads of a workload, waits until the store is idle, and returns what was measured.
fn measure(
    fixture: &mut Fixture<'_>,
    settings: &Settings,
    control: &Control,
    progress: &(dyn Fn(Progress) + Sync),
) -> Result<Found, RunError> {
    let setup = Setup::of(settings);
    let (keys, values) = (team::keys(settings)?, team::values(settings)?);
    let fixture = &*fixture;
    let engine = fixture.engine()?;
    let shared = Shared {
        records: Acknowledged::new(fixture.end),
    };
    let meter = Meter::new();
    let ready = Barrier::new(setup.all_threads as usize);
    let working = AtomicU32::new(setup.threads);
    // Ends the threads: the last measured one has finished, one has failed, or the user wants it.
    let stop = AtomicBool::new(false);
    let failed = |failure| error_of(fixture.driver(), failure);
    // Everything that can be refused is made before a thread starts and waits for the others.
    let mut team = Vec::new();
    for thread in 0..setup.all_threads {
        let member = Member {
            thread,
            threads: setup.threads,
        };
        let operation = team::operation(settings, engine, &shared, member)?;
        let random = member.stream(settings, team::OPERATIONS_LANE)?.random();
        team.push((member, operation, random, arrivals(settings, member)?));
    }
    std::thread::scope(|scope| {
        let probe = || {
            Some(Probe {
                figures: engine.figures(),
                levels: engine.levels(),
            })
        };
        let sampler = Sampler::start(scope, &meter, probe)
            .map_err(store::system("start the thread that samples"))?;
        let mut threads = Vec::new();
        for (member, operation, random, arrivals) in team {
            let (ready, working, stop) = (&ready, &working, &stop);
            let (keys, values, meter) = (&keys, &values, &meter);
            let limit = setup.limit;
            threads.push(scope.spawn(move || {
                // The barrier is passed by every thread, also by one that failed before it.
                let session = engine.session();
                let role = if member.is_background() {
                    Role::Beside
                } else {
                    Role::Measured
                };
                let common = worker::Common {
                    ready,
                    stop,
                    working,
                    limit,
                };
                let session = match session {
                    Ok(session) => session,
                    Err(error) => {
                        stop.store(true, Ordering::Release);
                        ready.wait();
                        return Err(Failure::Engine(error));
                    }
                };
                let tools = Tools {
                    session,
                    keys,
                    values,
                    population: &fixture.population,
                    random,
                    sync: settings.sync,
                    version: u64::from(member.thread) << 12,
                    recorder: meter.recorder(role),
                    stop,
                    key: Box::new([0; MAX_KEY_BYTES]),
                    value: Vec::new(),
                };
                let is_background = member.is_background();
                worker::work(&common, operation, tools, arrivals, is_background)
            }));
        }
        let start = Instant::now();
        while threads.iter().any(|thread| !thread.is_finished()) {
            progress(Progress::Running {
                operations: meter.operations(),
                of: setup.total,
                elapsed: start.elapsed(),
                limit: setup.limit,
            });
            if control.stop.load(Ordering::Acquire) {
                stop.store(true, Ordering::Release);
            }
            std::thread::park_timeout(PROGRESS_INTERVAL);
        }
        let results: Vec<_> = threads.into_iter().map(|thread| thread.join()).collect();
        let ended = Instant::now();
        let settled = settle(engine, &meter, progress);
        // The sampler ends in any case, so that the scope ends.
        let measured = sampler.finish();
        let mut due_operations = 0;
        for result in results {
            due_operations += result.map_err(|_| RunError::Panic)?.map_err(failed)?;
        }
        let idle_since = settled.map_err(|error| RunError::Engine {
            engine: fixture.driver().name().into(),
            error,
        })?;
        let is_open = settings.arrival() != Arrival::Closed;
        Ok(Found {
            settled_after: idle_since.saturating_duration_since(ended),
            open_loop: is_open.then(|| OpenLoopFound {
                due_operations,
                duration: setup.limit.unwrap_or(measured.until_last),
            }),
            measured,
            ..Found::default()
        })
    })
}

/// Waits until the store is idle, and returns since when it is.
fn settle(
    engine: &dyn Engine,
    meter: &Meter,
    progress: &(dyn Fn(Progress) + Sync),
) -> crate::engine::Result<Instant> {
    progress(Progress::Settling);
    if engine.wait_until_idle()? {
        return Ok(Instant::now());
    }
    match wait_until_quiet(&Limits::default(), || false, || meter.sampler_cpu_s()) {
        Quiet::Since(since) => Ok(since),
        Quiet::Never => Err(crate::engine::EngineError::new(
            "wait until idle",
            "the engine still works an hour after the last operation",
        )),
    }
}
