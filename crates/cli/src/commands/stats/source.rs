//! The origin of figures: the file that a live writer writes, or the store itself, opened for
//! reading.

use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use siltstone::{Error, ErrorKind, Stats, StatsFile, read_stats_file_from};

use crate::commands::{open_to_read, place};
use crate::failure::Failure;
use crate::output::duration;

/// How long to wait for a writer that has just opened the store and has not written any yet, in
/// steps of [`TURN`].
const PATIENCE: Duration = Duration::from_millis(2500);

const TURN: Duration = Duration::from_millis(50);

/// How much later than at its interval a writer may publish on a busy machine.
const LATE: Duration = Duration::from_secs(1);

/// How often the figures of a writer on another machine are read again, to see whether they change.
const LOOK: Duration = Duration::from_millis(200);

/// If a writer publishes at longer intervals, nothing waits for its next figures.
const LOOK_MAX: Duration = Duration::from_secs(5);

/// How far the time of figures may be ahead of this machine's clock without being doubted.
const CLOCK_SLACK: Duration = Duration::from_secs(1);

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
    /// No process has the store open for writing: it was opened for reading.
    Opened(Last),
    /// A live writer.
    Written(Written),
}

/// What is known of the last writer of a store that no process has open for writing.
pub enum Last {
    /// Nothing, because it has closed the store.
    Unknown,
    /// This process closed the store while the command looked at its figures.
    Closed(u32),
    /// It was killed, and has left its last figures.
    Killed(Written),
}

/// What a writer publishes besides its figures.
#[derive(Clone)]
pub struct Written {
    /// The time, in microseconds since 1970.
    pub written_us: u64,
    /// The age of the figures. `None` if they are of the future by this machine's clock.
    pub age: Option<Duration>,
    /// Its process id.
    pub pid: u32,
    /// Its version of siltstone.
    pub version: String,
    /// The reason why these figures are not current, if they are not.
    pub stale: Option<String>,
    /// How the clock of the writer's machine differs from this one's, if that was noticed.
    pub clock: Option<String>,
}

/// What a second look at figures has shown.
#[derive(Clone, Copy)]
enum Look {
    /// There was none, or their time says enough.
    None,
    /// They changed, so the writer is alive, although their time does not fit this machine's clock.
    Changed,
    /// They did not change in this time.
    Same(Duration),
}

/// The time now, in microseconds since 1970.
fn now_us() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |d| d.as_micros() as u64)
}

/// The age that the figures of a live writer may have. A busy machine is sometimes late.
fn patience(every: Duration) -> Duration {
    (2 * LATE).saturating_add(every.saturating_mul(3))
}

/// Whether figures are recent by the time that their writer gave them.
fn is_recent(written_us: u64, now_us: u64, every: Duration) -> bool {
    let age = Duration::from_micros(now_us.saturating_sub(written_us));
    let ahead = Duration::from_micros(written_us.saturating_sub(now_us));
    age <= patience(every) && ahead <= CLOCK_SLACK
}

/// Whether the writer of a store may be a process of another machine.
fn is_elsewhere(store: &Path) -> bool {
    matches!(place::url(store), Ok(Some(_)))
}

/// Reads the figures of a writer on another machine until they change, if their time does not say
/// that the writer is alive. The clocks of the two machines may differ: a live writer may seem to
/// be late, and the last figures of a dead one may seem to be recent. `None` if the writer has
/// closed the store meanwhile.
///
/// # Errors
/// The device does not answer; the figures cannot be read.
fn look_again(store: &Path, found: StatsFile) -> Result<Option<(StatsFile, Look)>, Failure> {
    let every = Duration::from_millis(found.every_ms);
    let Some(url) = place::url(store)? else {
        return Ok(Some((found, Look::None)));
    };
    if is_recent(found.written_us, now_us(), every) || every > LOOK_MAX {
        return Ok(Some((found, Look::None)));
    }
    // One session serves all looks.
    let folder = place::Folder::open(url)?;
    let folder = folder.ok_or_else(|| Error::not_found(format!("there is no folder {url}")))?;
    let storage = folder.storage();
    watch(found, || read_stats_file_from(&*storage))
}

/// As [`look_again`]; `read` reads the figures.
fn watch(
    found: StatsFile,
    mut read: impl FnMut() -> siltstone::Result<StatsFile>,
) -> Result<Option<(StatsFile, Look)>, Failure> {
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(found.every_ms) + LATE {
        std::thread::sleep(LOOK);
        let next = match read() {
            Ok(next) => next,
            // A close deletes the file.
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        if let Some(look) = next_look(&found, &next, now_us()) {
            return Ok(Some((next, look)));
        }
    }
    Ok(Some((found, Look::Same(start.elapsed()))))
}

/// What the figures `next`, which were read after `found`, show at the time `now_us`. `None` if
/// they are the same.
fn next_look(found: &StatsFile, next: &StatsFile, now_us: u64) -> Option<Look> {
    if next.written_us == found.written_us {
        return None;
    }
    let every = Duration::from_millis(next.every_ms);
    Some(match is_recent(next.written_us, now_us, every) {
        true => Look::None,
        false => Look::Changed,
    })
}

impl Written {
    /// `is_elsewhere`: whether the writer may be a process of another machine. Then only its
    /// figures say whether it is alive.
    fn of(found: &StatsFile, look: Look, is_elsewhere: bool, now_us: u64) -> Written {
        let every = Duration::from_millis(found.every_ms);
        let age = Duration::from_micros(now_us.saturating_sub(found.written_us));
        let ahead = Duration::from_micros(found.written_us.saturating_sub(now_us));
        let stale = match look {
            Look::Changed => None,
            Look::Same(time) => Some(format!(
                "it publishes every {}, but published nothing in the {} that this command watched",
                duration(every),
                duration(time)
            )),
            Look::None if !is_elsewhere && !is_alive(found.pid) => {
                Some(format!("there is no process {} any more", found.pid))
            }
            Look::None if age > patience(every) => {
                let why = format!(
                    "it publishes every {} and has not for {}",
                    duration(every),
                    ago(age)
                );
                Some(match is_elsewhere {
                    true => format!("{why}, unless the clocks of the two machines differ"),
                    false => why,
                })
            }
            Look::None if is_elsewhere && ahead > CLOCK_SLACK => Some(format!(
                "its time is {} ahead of this machine's clock",
                ago(ahead)
            )),
            Look::None => None,
        };
        let clock = match look {
            // Figures that have just changed are new.
            Look::Changed if ahead.is_zero() => Some(format!("{} behind", ago(age))),
            Look::Changed => Some(format!("{} ahead of", ago(ahead))),
            Look::Same(_) | Look::None => None,
        };
        Written {
            written_us: found.written_us,
            age: match look {
                Look::Changed => Some(Duration::ZERO),
                Look::Same(_) | Look::None => (ahead <= CLOCK_SLACK).then_some(age),
            },
            pid: found.pid,
            version: found.version.clone(),
            stale,
            clock: clock.map(|differs| format!("its machine's clock is {differs} this one's")),
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
            StatsSource::Opened(Last::Unknown) => {
                "read from the store; nobody has it open for writing".to_string()
            }
            StatsSource::Opened(Last::Closed(pid)) => {
                format!("read from the store; process {pid} has just closed it")
            }
            StatsSource::Opened(Last::Killed(left)) => {
                let age = left.age.map(|age| format!(" of {} ago", ago(age)));
                format!(
                    "read from the store; process {} ended without closing it, its last figures{} \
                     are in STATS.json",
                    left.pid,
                    age.unwrap_or_default()
                )
            }
            StatsSource::Written(by) => {
                let age = by.age.map(|age| format!(", {} ago", ago(age)));
                let line = format!(
                    "written by process {} (siltstone {}){}",
                    by.pid,
                    by.version,
                    age.unwrap_or_default()
                );
                match (&by.stale, &by.clock) {
                    (Some(why), _) => format!("{line}; STALE: {why}"),
                    (None, Some(differs)) => format!("{line}; {differs}"),
                    (None, None) => line,
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
                "age_us": by.age.map(|age| age.as_micros() as u64),
                "stale": by.stale,
                "clock": by.clock,
            })
        };
        match self {
            StatsSource::Opened(Last::Unknown | Last::Closed(_)) => json!({ "kind": "opened" }),
            StatsSource::Opened(Last::Killed(left)) => {
                json!({ "kind": "opened", "left_behind": written("written", left) })
            }
            StatsSource::Written(by) => written("written", by),
        }
    }
}

impl Sample {
    fn written(by: Written, found: StatsFile) -> Sample {
        Sample {
            stats: found.stats,
            source: StatsSource::Written(by),
            held: Duration::ZERO,
        }
    }

    /// The figures of a store: those of a live writer if there is one.
    ///
    /// If the device with the tables of a local store does not answer, these may be the last ones
    /// of a writer that waits for it.
    ///
    /// # Errors
    /// There is no store; or it is open for writing, and its writer publishes nothing; or its
    /// device does not answer, and no live writer of this machine has published anything.
    pub fn take(store: &Path) -> Result<Sample, Failure> {
        let mut deadline = Instant::now() + PATIENCE;
        loop {
            // This is read first, because an open for reading would exclude a writer for a moment.
            let file = match place::stats_file(store) {
                Err(Failure::Store(error)) if error.kind() == ErrorKind::Unreachable => {
                    return Err(error.into());
                }
                read => read.ok(),
            };
            let pid = file.as_ref().map(|found| found.pid);
            let looked = file.map(|found| look_again(store, found)).transpose()?;
            let closed_by = pid.filter(|_| matches!(looked, Some(None)));
            if closed_by.is_some() {
                // Another writer may open the store now.
                deadline = Instant::now() + PATIENCE;
            }
            let file = looked.flatten().map(|(found, look)| {
                let by = Written::of(&found, look, is_elsewhere(store), now_us());
                (by, found)
            });
            if let Some((by, found)) = &file
                && by.stale.is_none()
            {
                return Ok(Sample::written(by.clone(), found.clone()));
            }
            let start = Instant::now();
            match open_to_read(store) {
                Ok(opened) => {
                    let stats = opened.stats();
                    opened.close()?;
                    let last = match (file, closed_by) {
                        (Some((by, _)), _) => Last::Killed(by),
                        (None, Some(pid)) => Last::Closed(pid),
                        (None, None) => Last::Unknown,
                    };
                    return Ok(Sample {
                        stats,
                        source: StatsSource::Opened(last),
                        held: start.elapsed(),
                    });
                }
                Err(Failure::Store(error)) if error.kind() == ErrorKind::Locked => {
                    if let Some((by, found)) = file {
                        return Ok(Sample::written(by, found));
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
                // The writer waits for the device too, and publishes nothing meanwhile.
                Err(Failure::Store(error)) if error.kind() == ErrorKind::Unreachable => {
                    let is_here = |by: &Written| !is_elsewhere(store) && is_alive(by.pid);
                    let Some((mut by, found)) = file.filter(|(by, _)| is_here(by)) else {
                        return Err(error.into());
                    };
                    let why = by.stale.unwrap_or_default();
                    by.stale = Some(format!("{why}; the device with its tables does not answer"));
                    return Ok(Sample::written(by, found));
                }
                Err(failure) => return Err(failure),
            }
            std::thread::sleep(TURN);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_of_another_clock_is_not_trusted() {
        let every = Duration::from_secs(1);
        let (now, second) = (1_000_000_000, 1_000_000);
        for (written, is) in [
            (now, true),
            (now - 4 * second, true),
            (now - 6 * second, false),
            (now + second / 2, true),
            (now + 2 * second, false),
        ] {
            assert_eq!(is_recent(written, now, every), is, "{written}");
        }
        assert!(is_recent(0, u64::MAX, Duration::MAX));
    }

    const SECOND_US: u64 = 1_000_000;
    const HOUR_US: u64 = 3_600 * SECOND_US;
    const NOW_US: u64 = 1_000 * HOUR_US;

    /// Figures of a writer that publishes every second.
    fn figures(written_us: u64) -> StatsFile {
        let file = json!({ "written_us": written_us, "pid": 7, "every_ms": 1000, "version": "1" });
        serde_json::from_value(file).unwrap()
    }

    /// What is said of figures of another machine after this look.
    fn said(written_us: u64, look: Look) -> (Written, String) {
        let by = Written::of(&figures(written_us), look, true, NOW_US);
        (by.clone(), StatsSource::Written(by).line())
    }

    #[test]
    fn figures_that_change_are_of_a_live_writer_whatever_its_clock_is() {
        for written_us in [NOW_US - HOUR_US, NOW_US + HOUR_US] {
            let found = figures(written_us);
            assert!(next_look(&found, &found, NOW_US).is_none());
            let next = figures(written_us + SECOND_US);
            let look = next_look(&found, &next, NOW_US).unwrap();
            assert!(matches!(look, Look::Changed));
            let (by, line) = said(written_us + SECOND_US, look);
            assert_eq!((by.stale, by.age), (None, Some(Duration::ZERO)));
            let differs = match written_us < NOW_US {
                true => "its machine's clock is 59 min behind this one's",
                false => "its machine's clock is 60 min ahead of this one's",
            };
            let start = "written by process 7 (siltstone 1), 0.0 s ago; ";
            assert_eq!(line, format!("{start}{differs}"));
        }
        // A writer that was only late.
        let (found, next) = (figures(NOW_US - HOUR_US), figures(NOW_US));
        let look = next_look(&found, &next, NOW_US).unwrap();
        assert!(matches!(look, Look::None));
        let (by, line) = said(NOW_US, look);
        assert_eq!((by.stale, by.clock), (None, None));
        assert_eq!(line, "written by process 7 (siltstone 1), 0.0 s ago");
    }

    #[test]
    fn figures_of_the_future_have_no_age() {
        let same = Look::Same(Duration::from_secs(2));
        let (by, line) = said(NOW_US + HOUR_US, same);
        assert_eq!(by.age, None);
        assert_eq!(
            line,
            "written by process 7 (siltstone 1); STALE: it publishes every 1.00 s, but published \
             nothing in the 2.00 s that this command watched"
        );
        let source = StatsSource::Opened(Last::Killed(by));
        let start = "read from the store; process 7 ended without closing it, its last figures";
        assert_eq!(source.line(), format!("{start} are in STATS.json"));
        assert_eq!(source.to_json()["left_behind"]["age_us"], Value::Null);
        let (by, _) = said(NOW_US - HOUR_US, same);
        let source = StatsSource::Opened(Last::Killed(by));
        let line = format!("{start} of 60 min ago are in STATS.json");
        assert_eq!(source.line(), line);
        assert_eq!(source.to_json()["left_behind"]["age_us"], HOUR_US);
        // The clocks of two machines always differ a little.
        let (by, _) = said(NOW_US + SECOND_US / 2, Look::None);
        assert_eq!((by.stale, by.age), (None, Some(Duration::ZERO)));
    }

    #[test]
    fn a_writer_that_closes_its_store_was_not_killed() {
        let found = || figures(NOW_US - HOUR_US);
        let closed = watch(found(), || Err(Error::not_found("no such file")));
        assert!(matches!(closed, Ok(None)));
        let failed = watch(found(), || Err(Error::new(ErrorKind::Unreachable, "gone")));
        assert!(
            matches!(failed, Err(Failure::Store(error)) if error.kind() == ErrorKind::Unreachable)
        );
        let source = StatsSource::Opened(Last::Closed(7));
        let line = "read from the store; process 7 has just closed it";
        assert_eq!(source.line(), line);
        assert_eq!(source.to_json(), json!({ "kind": "opened" }));
    }
}
