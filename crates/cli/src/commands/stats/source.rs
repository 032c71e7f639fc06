//! The origin of figures: the file that a live writer writes, or the store itself, opened for
//! reading.

use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use siltstone::{ErrorKind, Stats, StatsFile};

use crate::commands::{open_to_read, place};
use crate::failure::Failure;
use crate::output::duration;

/// How long to wait for a writer that has just opened the store and has not written any yet, in
/// steps of [`TURN`].
const PATIENCE: Duration = Duration::from_millis(2500);

const TURN: Duration = Duration::from_millis(50);

/// Figures, and their origin.
pub struct Sample {
    /// The figures.
    pub stats: Stats,
    /// Their origin.
    pub source: StatsSource,
    /// How long the store was open for reading, which excludes writers.
    pub held: Duration,
}

/// The origin of figures.
pub enum StatsSource {
    /// No process has the store open for writing: it was opened for reading. Contains the last
    /// figures of a killed writer, if there are any.
    Opened(Option<Written>),
    /// A live writer.
    Written(Written),
}

/// What a writer publishes besides its figures.
#[derive(Clone)]
pub struct Written {
    /// The time, in microseconds since 1970.
    pub written_us: u64,
    /// The age of the figures.
    pub age: Duration,
    /// Its process id.
    pub pid: u32,
    /// Its version of siltstone.
    pub version: String,
    /// The reason why these figures are not current, if they are not.
    pub stale: Option<String>,
}

impl Written {
    /// `store`: the store's path. The writer of a store on a device may be a process of another
    /// machine, of which only the age of its figures says whether it is alive.
    fn of(store: &Path, found: &StatsFile) -> Written {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let now_us = now.map_or(0, |d| d.as_micros() as u64);
        let age = Duration::from_micros(now_us.saturating_sub(found.written_us));
        // A busy machine is sometimes late.
        let patience = Duration::from_secs(2) + 3 * Duration::from_millis(found.every_ms);
        let is_elsewhere = matches!(place::url(store), Ok(Some(_)));
        let stale = if !is_elsewhere && !is_alive(found.pid) {
            Some(format!("there is no process {} any more", found.pid))
        } else if age > patience {
            Some(format!(
                "it publishes every {} and has not for {}",
                duration(Duration::from_millis(found.every_ms)),
                ago(age)
            ))
        } else {
            None
        };
        Written {
            written_us: found.written_us,
            age,
            pid: found.pid,
            version: found.version.clone(),
            stale,
        }
    }
}

/// Whether a process with this id exists. It may be another process, and a process in another
/// container is not visible.
fn is_alive(pid: u32) -> bool {
    use rustix::process::{Pid, test_kill_process};
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    pid.is_some_and(|pid| test_kill_process(pid) != Err(rustix::io::Errno::SRCH))
}

/// A span of time in whole units, in a readable form.
pub fn ago(age: Duration) -> String {
    match age.as_secs() {
        0..10 => format!("{:.1} s", age.as_secs_f64()),
        s @ 10..120 => format!("{s} s"),
        s @ 120..7_200 => format!("{} min", s / 60),
        s @ 7_200..172_800 => format!("{} h", s / 3_600),
        s => format!("{} days", s / 86_400),
    }
}

impl StatsSource {
    /// The origin on one line.
    pub fn line(&self) -> String {
        match self {
            StatsSource::Opened(None) => {
                "read from the store; nobody has it open for writing".to_string()
            }
            StatsSource::Opened(Some(left)) => format!(
                "read from the store; process {} ended without closing it, its last figures of {} \
                ago are in STATS.json",
                left.pid,
                ago(left.age)
            ),
            StatsSource::Written(by) => {
                let line = format!(
                    "written by process {} (siltstone {}), {} ago",
                    by.pid,
                    by.version,
                    ago(by.age)
                );
                match &by.stale {
                    Some(why) => format!("{line}; STALE: {why}"),
                    None => line,
                }
            }
        }
    }

    /// The origin as JSON.
    pub fn to_json(&self) -> Value {
        let written = |kind: &str, by: &Written| {
            json!({
                "kind": kind,
                "pid": by.pid,
                "version": by.version,
                "written_us": by.written_us,
                "age_us": by.age.as_micros() as u64,
                "stale": by.stale,
            })
        };
        match self {
            StatsSource::Opened(None) => json!({ "kind": "opened" }),
            StatsSource::Opened(Some(left)) => {
                json!({ "kind": "opened", "left_behind": written("written", left) })
            }
            StatsSource::Written(by) => written("written", by),
        }
    }
}

impl Sample {
    fn written(store: &Path, found: StatsFile) -> Sample {
        let by = Written::of(store, &found);
        Sample {
            stats: found.stats,
            source: StatsSource::Written(by),
            held: Duration::ZERO,
        }
    }

    /// The figures of a store: those of a live writer if there is one.
    ///
    /// # Errors
    /// There is no store; or it is open for writing, and its writer publishes nothing.
    pub fn take(store: &Path) -> Result<Sample, Failure> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            // This is read first, because an open for reading would exclude a writer for a moment.
            let file = match place::stats_file(store) {
                Err(Failure::Store(error)) if error.kind() == ErrorKind::Unreachable => {
                    return Err(error.into());
                }
                read => read.ok(),
            };
            let fresh = file
                .as_ref()
                .is_some_and(|found| Written::of(store, found).stale.is_none());
            if let (true, Some(found)) = (fresh, &file) {
                return Ok(Sample::written(store, found.clone()));
            }
            let start = Instant::now();
            match open_to_read(store) {
                Ok(opened) => {
                    let stats = opened.stats();
                    opened.close()?;
                    return Ok(Sample {
                        stats,
                        source: StatsSource::Opened(file.as_ref().map(|f| Written::of(store, f))),
                        held: start.elapsed(),
                    });
                }
                Err(Failure::Store(error)) if error.kind() == ErrorKind::Locked => {
                    if let Some(found) = file {
                        return Ok(Sample::written(store, found));
                    }
                    if Instant::now() >= deadline {
                        return Err(error
                            .advice(
                                "its writer has written no statistics: it opened the store a \
                                 moment ago, or its setting stats_file_ms is 0, or its disk is \
                                 full; try again in a moment, or close it, or set \
                                 stats_file_ms",
                            )
                            .into());
                    }
                }
                Err(failure) => return Err(failure),
            }
            std::thread::sleep(TURN);
        }
    }
}
