//! Workloads of one operation: compact, ingest and open.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Instant;

use super::error::RunError;
use super::operations::{Failure, Operation, Result, Tools};
use super::store::{self, Fixture};
use super::team;
use crate::engine::Engine;
use crate::generate::keys::MAX_KEY_BYTES;
use crate::generate::random::Random;
use crate::measure::files::{Purpose, purpose_by_name};
use crate::measure::{Done, Measured, Meter, Probe, Role, Sampler};
use crate::settings::{Kind, Settings};

/// Compacts the whole store.
pub(super) struct Compact<'a> {
    pub engine: &'a dyn Engine,
    pub is_done: bool,
}

impl Operation for Compact<'_> {
    fn step(&mut self, _tools: &mut Tools<'_>) -> Result<Option<Done>> {
        if self.is_done {
            return Ok(None);
        }
        self.is_done = true;
        self.engine.compact()?;
        Ok(Some(once(Kind::Compact, 1, 0)))
    }
}

fn once(kind: Kind, operations: u64, written_bytes: u64) -> Done {
    Done {
        kind,
        operations,
        written_bytes,
        read_bytes: 0,
    }
}

/// Adds all records as sorted tables. The records are made on the way, so the time contains it.
pub(super) struct Ingest<'a> {
    pub engine: &'a dyn Engine,
    pub records: u64,
    pub is_done: bool,
}

impl Operation for Ingest<'_> {
    fn step(&mut self, tools: &mut Tools<'_>) -> Result<Option<Done>> {
        if self.is_done {
            return Ok(None);
        }
        self.is_done = true;
        let (mut record, mut bytes) = (0, 0);
        self.engine.ingest(&mut |key, value| {
            if record == self.records {
                return false;
            }
            key.clear();
            key.extend_from_slice(tools.keys.present(record, &mut tools.key));
            tools.values.write(record, 0, value);
            bytes += (key.len() + value.len()) as u64;
            record += 1;
            true
        })?;
        (0..self.records).for_each(|record| tools.population.add(record));
        Ok(Some(once(Kind::Ingest, self.records, bytes)))
    }
}

/// The raw bytes that are written into the log before the store is opened: less than a memtable, so
/// that all of them are still in the log.
fn log_bytes(settings: &Settings) -> u64 {
    settings.engine.memtable_bytes / 8 * 6
}

/// Opens a store as a `kill -9` would have left it, with a log that has to be replayed.
///
/// The store is open and idle when its files are copied, so the copy is what another process would
/// find if this one were killed. Tables are linked instead of copied, because no engine changes a
/// finished table.
pub(super) fn open(
    fixture: &mut Fixture<'_>,
    settings: &Settings,
) -> std::result::Result<Measured, RunError> {
    let driver = fixture.driver();
    let engine_error = |error| RunError::Engine {
        engine: driver.name().into(),
        error,
    };
    fill_log(fixture, settings)?;
    let copy = fixture.folder().with_extension("opened");
    store::remove_folder(&copy)?;
    copy_store(fixture.folder(), &copy).map_err(store::system(format!(
        "copy the store to {}",
        copy.display()
    )))?;
    fixture.close()?;
    let meter = Meter::new();
    let result = std::thread::scope(|scope| {
        let sampler = Sampler::start(scope, &meter, || None::<Probe>)
            .map_err(store::system("start the thread that samples"))?;
        let mut recorder = meter.recorder(Role::Measured);
        let began = recorder.begin();
        let opened = driver.open(&copy, &settings.engine);
        let ended = Instant::now();
        recorder.record(&once(Kind::Open, 1, 0), began, ended);
        drop(recorder);
        let measured = sampler.finish();
        let engine = opened.map_err(engine_error)?;
        let keys = check_log(&*engine, settings);
        engine.close().map_err(engine_error)?;
        keys.map_err(|failure| super::error_of(driver, failure))?;
        Ok(measured)
    });
    store::remove_folder(&copy)?;
    fixture.open(&settings.engine)?;
    result
}

/// The records whose new values are in the log only.
fn logged_records(settings: &Settings) -> impl Iterator<Item = u64> {
    // A lane that no thread of a workload uses.
    let mut random = Random::new(settings.seed, 0).lane(LOG_LANE);
    let entry = u64::from(settings.key_bytes) + settings.value_bytes.mean() as u64;
    let count = (log_bytes(settings) / entry.max(1)).max(1);
    let records = settings.records;
    (0..count).map(move |_| random.below(records))
}

fn fill_log(fixture: &Fixture<'_>, settings: &Settings) -> std::result::Result<(), RunError> {
    let (keys, values) = (team::keys(settings)?, team::values(settings)?);
    let engine = fixture.engine()?;
    let write = || {
        // The memtable is empty before, so all that follows stays in one memtable and its log.
        engine.flush()?;
        engine.wait_until_idle()?;
        let mut session = engine.session()?;
        let (mut key, mut value) = (Box::new([0; MAX_KEY_BYTES]), Vec::new());
        for record in logged_records(settings) {
            values.write(record, LOGGED_VERSION, &mut value);
            session.put(keys.present(record, &mut key), &value, false)?;
            fixture.population.add(record);
        }
        engine.wait_until_idle()
    };
    let written = write().map_err(|error| RunError::Engine {
        engine: fixture.driver().name().into(),
        error,
    });
    written.map(drop)
}

/// The lane of random numbers that draws the records in the log.
const LOG_LANE: u32 = 9;

/// The version of the values in the log, which tells them from older ones.
const LOGGED_VERSION: u64 = 7;

/// Checks that an open found what was in the log.
fn check_log(engine: &dyn Engine, settings: &Settings) -> Result<()> {
    let wrong = |what: String| Failure::Wrong(what);
    let keys = team::keys(settings).map_err(|e| wrong(e.to_string()))?;
    let values = team::values(settings).map_err(|e| wrong(e.to_string()))?;
    let mut session = engine.session()?;
    let mut key = Box::new([0; MAX_KEY_BYTES]);
    for record in logged_records(settings).step_by(LOG_CHECK_STEP) {
        let mut checked = Ok(());
        let is_found = session.get(keys.present(record, &mut key), &mut |value| {
            checked = values.verify(record, Some(LOGGED_VERSION), value);
        })?;
        if !is_found {
            return Err(wrong(format!(
                "record {record} was in the log, and the open lost it"
            )));
        }
        checked.map_err(|mismatch| wrong(format!("after the open, {mismatch}")))?;
    }
    Ok(())
}

/// One in this many records of the log is checked after the open.
const LOG_CHECK_STEP: usize = 16;

/// Copies a store. Tables are linked if the file system can do that.
fn copy_store(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let (source, target): (PathBuf, PathBuf) = (entry.path(), to.join(entry.file_name()));
        if entry.file_type()?.is_dir() {
            copy_store(&source, &target)?;
            continue;
        }
        let is_table = purpose_by_name(&source) == Purpose::Table
            && source
                .extension()
                .is_some_and(|extension| extension != "mdb");
        if !is_table || fs::hard_link(&source, &target).is_err() {
            fs::copy(&source, &target)?;
        }
    }
    Ok(())
}
