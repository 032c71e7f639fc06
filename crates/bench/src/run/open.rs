//! The workload `open`: opens a store as a `kill -9` would have left it, with a log that has to be
//! replayed.
//!
//! The store is open and idle when its files are copied, so the copy is what another process would
//! find if this one were killed. Tables are linked instead of copied, because no engine changes a
//! finished table.
//!
//! Invariant: what is measured is the replay of the bytes in the record. The log has them on disk,
//! and no table was written while it was filled.
//!
//! Threading: one thread, beside which a sampler runs.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::error::RunError;
use super::once::once;
use super::operations::{Failure, Result, Versions};
use super::settle::Wait;
use super::store::{self, Fixture, Scratch};
use super::team::{self, Member};
use super::{Control, bring_cache, sizes_of};
use crate::engine::{Engine, Session};
use crate::generate::keys::{KeyBuffer, Keys, MAX_KEY_BYTES};
use crate::generate::values::Values;
use crate::measure::files::{self, Purpose, purpose_by_name};
use crate::measure::{Meter, Role, Sampler};
use crate::record::{Found, OpenFound};
use crate::settings::{EngineSettings, Kind, Settings};

type Done<T> = std::result::Result<T, RunError>;

/// One in this many records of the log is checked after the open.
const LOG_CHECK_STEP: usize = 16;

/// How much larger the memtable is while the log is filled: entries need more room in a memtable
/// than their raw bytes, and engines begin to flush before it is full.
const ROOM: u64 = 4;

/// The largest memtable that settings allow.
const MEMTABLE_BYTES_MAX: u64 = 4 << 30;

/// Measures the open of a copy of the store, and leaves the store open.
pub(super) fn open(
    fixture: &mut Fixture<'_>,
    settings: &Settings,
    control: &Control,
) -> Done<Found> {
    let records = Logged::of(fixture, settings)?;
    let log_bytes = fill_log(fixture, settings, control, &records)?;
    let copy = Scratch::beside(fixture.folder(), "opened")?;
    let to = copy.folder();
    let failed = store::system(format!("copy the store to {}", to.display()));
    copy_store(fixture.folder(), to, &control.stop).map_err(failed)?;
    control.check()?;
    fixture.close()?;
    // The copy is in the page cache, because it was just written. Its tables are the store's own
    // files, which are closed now.
    let kept_in_cache = bring_cache(to, settings.cache)?;
    control.check()?;
    let cached_before = files::cached_part(to).ok().flatten();
    let found = measure(&mut fixture.copied(to), settings, control, &records)?;
    copy.remove()?;
    fixture.open(&settings.engine)?;
    Wait::after_open(&control.stop).wait(fixture)?;
    Ok(Found {
        open: found.open.map(|open| OpenFound { log_bytes, ..open }),
        cached_before,
        kept_in_cache,
        ..found
    })
}

/// The raw bytes that are written into the log before the store is opened: half a memtable. Some
/// engines count what they need beside keys and values, and fjall keeps the memtable size that a
/// keyspace was created with, so more would not fit into one of its memtables.
fn raw_bytes(engine: &EngineSettings) -> u64 {
    engine.memtable_bytes / 2
}

/// The records whose new values are in the log only.
struct Logged {
    records: Vec<u64>,
    /// The version of their values, which tells them from older ones.
    version: u64,
    keys: Keys,
    values: Values,
}

impl Logged {
    fn of(fixture: &Fixture<'_>, settings: &Settings) -> Done<Logged> {
        let member = Member {
            thread: 0,
            threads: 1,
        };
        let mut random = member.stream(settings, team::LOG_LANE)?.random();
        let entry = u64::from(settings.key_bytes) + settings.value_bytes.mean() as u64;
        let count = (raw_bytes(&settings.engine) / entry.max(1)).max(1);
        Ok(Logged {
            records: (0..count).map(|_| random.below(settings.records)).collect(),
            version: Versions::new(fixture.generation(), 0).next(),
            keys: team::keys(settings)?,
            values: team::values(settings)?,
        })
    }

    /// Reads a record and checks that its value is the one that was in the log.
    fn check(&self, session: &mut dyn Session, record: u64, key: &mut KeyBuffer) -> Result<()> {
        let mut checked = Ok(());
        let is_found = session.get(self.keys.present(record, key), &mut |value| {
            checked = self.values.verify(record, Some(self.version), value);
        })?;
        if !is_found {
            return Err(Failure::Wrong(format!(
                "record {record} was in the log, and the open lost it"
            )));
        }
        checked.map_err(|mismatch| Failure::Wrong(format!("after the open, {mismatch}")))
    }

    /// Checks the first record, as a user's first read.
    fn check_first(&self, engine: &dyn Engine) -> Result<()> {
        let mut session = engine.session()?;
        let first = self.records.first().copied().unwrap_or(0);
        self.check(&mut *session, first, &mut [0; MAX_KEY_BYTES])
    }

    /// Checks a part of the records.
    fn check_some(&self, engine: &dyn Engine) -> Result<()> {
        let mut session = engine.session()?;
        let mut key = Box::new([0; MAX_KEY_BYTES]);
        let some = self.records.iter().step_by(LOG_CHECK_STEP);
        some.copied()
            .try_for_each(|record| self.check(&mut *session, record, &mut key))
    }
}

/// Writes the records into the log and a memtable that has room for all of them, and returns their
/// raw bytes.
fn fill_log(
    fixture: &mut Fixture<'_>,
    settings: &Settings,
    control: &Control,
    logged: &Logged,
) -> Done<u64> {
    let memtable_bytes = (settings.engine.memtable_bytes * ROOM).min(MEMTABLE_BYTES_MAX);
    fixture.open(&EngineSettings {
        memtable_bytes,
        ..settings.engine.clone()
    })?;
    // The memtable is empty before, so all that follows stays in one memtable and its log.
    Wait::after(true, &control.stop, &|| 0.0).wait(fixture)?;
    let before = tables(fixture.folder())?;
    let written = write_all(fixture, control, logged)?;
    Wait::after_open(&control.stop).wait(fixture)?;
    check_disk(fixture, &before, written)?;
    Ok(written)
}

fn write_all(fixture: &Fixture<'_>, control: &Control, logged: &Logged) -> Done<u64> {
    let can_sync = fixture.driver().abilities().sync;
    let failed = |error| fixture.engine_error(error);
    let mut session = fixture.engine()?.session().map_err(failed)?;
    let (mut key, mut value) = (Box::new([0; MAX_KEY_BYTES]), Vec::new());
    let (mut bytes, mut left) = (0, logged.records.len());
    for &record in &logged.records {
        if control.stop.load(Ordering::Relaxed) {
            return Err(RunError::Interrupted);
        }
        left -= 1;
        logged.values.write(record, logged.version, &mut value);
        let key = logged.keys.present(record, &mut key);
        // An engine may keep a part of its log in memory. The last sync writes all of it.
        let sync = can_sync && left == 0;
        session.put(key, &value, sync).map_err(failed)?;
        fixture.population.add(record);
        bytes += (key.len() + value.len()) as u64;
    }
    Ok(bytes)
}

/// Refuses a store whose log does not have what was written, or that wrote tables meanwhile. An
/// engine without a log has nothing to replay.
fn check_disk(fixture: &Fixture<'_>, before: &BTreeSet<PathBuf>, written: u64) -> Done<()> {
    let refuse = |what: String| RunError::Store {
        folder: fixture.folder().display().to_string(),
        what,
    };
    let after = tables(fixture.folder())?;
    let new = after.difference(before).count();
    if new > 0 {
        return Err(refuse(format!(
            "the engine wrote {new} tables while its log was filled with {written} bytes, so an \
             open would replay less; give a larger engine.memtable_bytes, or fewer settings of \
             the engine's own"
        )));
    }
    let log = sizes_of(fixture)?.log;
    if log.files > 0 && log.bytes < written {
        return Err(refuse(format!(
            "{written} bytes were written, and the files of the log have {} bytes, so an open \
             would replay less; this is a bug in the benchmark or in the engine's driver",
            log.bytes
        )));
    }
    Ok(())
}

/// Opens the copy, reads a record, and waits until it is idle.
fn measure(
    copy: &mut Fixture<'_>,
    settings: &Settings,
    control: &Control,
    logged: &Logged,
) -> Done<Found> {
    let driver = copy.driver();
    let wrong = |failure| super::error_of(driver, failure);
    let meter = Meter::new();
    let (measured, opened) = std::thread::scope(|scope| -> Done<_> {
        let sampler = Sampler::start(scope, &meter, |_| None)
            .map_err(store::system("start the thread that samples"))?;
        let mut recorder = meter.recorder(Role::Measured);
        let began = recorder.begin();
        let opened = copy.open(&settings.engine);
        let ended = Instant::now();
        recorder.record(&once(Kind::Open, 1, 0), began, ended);
        drop(recorder);
        let opened = opened.and_then(|()| {
            logged.check_first(copy.engine()?).map_err(wrong)?;
            let read = Instant::now();
            let exempt_cpu_s = || meter.sampler_cpu_s();
            let idle_since = Wait::after(false, &control.stop, &exempt_cpu_s).wait(copy)?;
            Ok(Opened {
                until_first_read: read - began,
                settled_after: idle_since.saturating_duration_since(ended),
            })
        });
        // The sampler ends in any case, so that the scope ends.
        Ok((sampler.finish(), opened))
    })?;
    let opened: Opened = opened?;
    logged.check_some(copy.engine()?).map_err(wrong)?;
    copy.close()?;
    Ok(Found {
        measured,
        settled_after: opened.settled_after,
        open: Some(OpenFound {
            until_first_read: opened.until_first_read,
            log_bytes: 0,
        }),
        ..Found::default()
    })
}

/// What was measured after an open.
struct Opened {
    until_first_read: Duration,
    settled_after: Duration,
}

/// The tables below a folder.
fn tables(folder: &Path) -> Done<BTreeSet<PathBuf>> {
    let mut found = BTreeSet::new();
    collect_tables(folder, &mut found)
        .map_err(store::system(format!("list {}", folder.display())))?;
    Ok(found)
}

fn collect_tables(folder: &Path, found: &mut BTreeSet<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let path = entry.path();
        if entry.file_type()?.is_dir() {
            collect_tables(&path, found)?;
        } else if purpose_by_name(&path) == Purpose::Table {
            found.insert(path);
        }
    }
    Ok(())
}

/// Copies a store. Tables are linked if the file system can do that. The copy is incomplete if
/// `stop` is set.
fn copy_store(from: &Path, to: &Path, stop: &AtomicBool) -> io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let entry = entry?;
        let (source, target): (PathBuf, PathBuf) = (entry.path(), to.join(entry.file_name()));
        if entry.file_type()?.is_dir() {
            copy_store(&source, &target, stop)?;
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
