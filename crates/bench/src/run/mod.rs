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
mod open;
mod operations;
mod settle;
mod team;
mod threads;
mod worker;

#[cfg(test)]
mod tests;

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::engine::Driver;
use crate::generate::keys::MAX_KEY_BYTES;
use crate::measure::files::{self, Kept};
use crate::record::Found;
use crate::settings::{Cache, Settings, Workload};

use operations::Failure;
use settle::Wait;
use store::{Fixture, Scratch};

pub use error::RunError;

/// What a user interface gives a run, and what it may ask it.
#[derive(Debug, Default)]
pub struct Control {
    /// Set by the user interface to end the run, for example by a signal.
    pub stop: AtomicBool,
}

impl Control {
    /// Ends the run here if the user wants to end it.
    fn check(&self) -> Result<(), RunError> {
        match self.stop.load(Ordering::Acquire) {
            true => Err(RunError::Interrupted),
            false => Ok(()),
        }
    }
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
    let found = carry_out(&mut fixture, settings, control, progress);
    match found {
        Ok(_) if control.stop.load(Ordering::Acquire) => Err(interrupted(&mut fixture)),
        Err(RunError::Interrupted) => Err(interrupted(&mut fixture)),
        Err(error) => Err(error),
        Ok(found) => account(&mut fixture, settings, found),
    }
}

/// Closes the store of a run that the user ended.
fn interrupted(fixture: &mut Fixture<'_>) -> RunError {
    // It may be busy, and then it stays open until the process ends.
    let _ = fixture.close();
    RunError::Interrupted
}

/// The phases before the accounts: cache, measure, settle.
fn carry_out(
    fixture: &mut Fixture<'_>,
    settings: &Settings,
    control: &Control,
    progress: &(dyn Fn(Progress) + Sync),
) -> Result<Found, RunError> {
    let kept_in_cache = prepare_cache(fixture, settings, control)?;
    control.check()?;
    let cached_before = files::cached_part(fixture.folder()).ok().flatten();
    if settings.workload.writes() {
        fixture.begin_writing()?;
    }
    let found = match settings.workload {
        Workload::Open => open::open(fixture, settings, control)?,
        Workload::Ingest => {
            // Engines build the tables there, and delete the folder.
            let built = Scratch::beside(fixture.folder(), "built")?;
            let found = threads::measure(fixture, settings, control, progress)?;
            built.remove()?;
            found
        }
        _ => threads::measure(fixture, settings, control, progress)?,
    };
    // The workload `open` has looked at the copy that it opened.
    Ok(Found {
        cached_before: found.cached_before.or(cached_before),
        kept_in_cache: found.kept_in_cache.or(kept_in_cache),
        ..found
    })
}

/// Reads the sizes of the store while it is open and after it was closed, and writes down which
/// records it has.
fn account(
    fixture: &mut Fixture<'_>,
    settings: &Settings,
    found: Found,
) -> Result<Found, RunError> {
    let sizes = sizes_of(fixture)?;
    let cached_after = files::cached_part(fixture.folder()).ok().flatten();
    fixture.close()?;
    let closed_sizes = sizes_of(fixture)?;
    if settings.workload.writes() {
        count_records(fixture, settings)?;
        fixture.save(settings)?;
    }
    Ok(Found {
        sizes,
        closed_sizes,
        records: Some(fixture.population.count()),
        live_bytes: Some(fixture.live_bytes),
        cached_after,
        ..found
    })
}

fn sizes_of(fixture: &Fixture<'_>) -> Result<files::Sizes, RunError> {
    let mut all = files::Sizes::default();
    for folder in fixture.folders() {
        let sizes = files::sizes(&folder, &files::purpose_by_name)
            .map_err(store::system("read the sizes of the store's files"))?;
        all.add(&sizes);
    }
    Ok(all)
}

/// Waits until the store that was opened is idle, and brings the page cache into the state that the
/// run asks for. Returns what stayed in a cache that should be cold.
fn prepare_cache(
    fixture: &mut Fixture<'_>,
    settings: &Settings,
    control: &Control,
) -> Result<Option<Kept>, RunError> {
    let idle = Wait::after_open(&control.stop);
    idle.wait(fixture)?;
    if settings.workload == Workload::Open {
        // It opens a copy of the store. `run/open.rs` prepares the cache when the copy is complete.
        return Ok(None);
    }
    if settings.cache != Cache::Cold {
        return bring_cache(fixture.folder(), settings.cache);
    }
    fixture.close()?;
    let kept = bring_cache(fixture.folder(), Cache::Cold)?;
    fixture.open(&settings.engine)?;
    idle.wait(fixture)?;
    Ok(kept)
}

/// Brings the files of a store into this state of the page cache. The store must be closed if it
/// should be cold. Returns what stayed in a cache that should be cold.
fn bring_cache(folder: &Path, cache: Cache) -> Result<Option<Kept>, RunError> {
    match cache {
        Cache::AsIs => Ok(None),
        Cache::Warm => files::warm(folder)
            .map(|_| None)
            .map_err(store::system("read the store's files to warm the cache")),
        Cache::Cold => files::drop_from_cache(folder)
            .map(Some)
            .map_err(store::system("drop the store's files from the page cache")),
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
