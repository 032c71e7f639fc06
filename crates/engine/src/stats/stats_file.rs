//! The file `STATS.json`: statistics of a store that another process has open for writing.
//!
//! The writer's maintenance task writes its [`Stats`] to the file once a second.
//! [`read_stats_file`] reads them, while the writer is alive or after it was killed. The file
//! has the same form as [`Stats::to_json`].
//!
//! Invariants: writing the file takes no sync and fails no other work (failures are counted). It
//! ends before the lease is released, and a close deletes the file. A file that a kill left says
//! when it was written and by which process. Unknown fields are ignored and missing fields are
//! zero, so that one build can read the file of another. The bytes of the file are not trusted:
//! what cannot be read is an error.
//!
//! Threading: the maintenance task writes; reading takes no lease.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use siltstone_storage::files::FileStorage;
use siltstone_storage::{Instant, Storage, StorageErrorKind};

use crate::env::Env;
use crate::formats::names::STATS;
use crate::jobs::Jobs;
use crate::stats::Stats;
use crate::stats::space::{self, Listed, SpaceStats};
use crate::types::error::{Error, Result};

/// The size of the largest file that is read.
const BYTES_MAX: u64 = 64 << 20;

/// On a full disk, nothing is written while less than this is free, so that the store's own work
/// can have it.
const SPARE_BYTES: u64 = 1 << 20;

/// The files are counted again when this many times the duration of the last count has passed.
const COUNT_SHARE: u32 = 1000;

/// The files are counted again at the latest after this time. A listing across a link may have
/// waited for an outage to end, so a slow one says little about the next.
const COUNT_PAUSE_MAX: Duration = Duration::from_secs(5 * 60);

/// How long after a count that failed the files are counted again. Such a count may have waited for
/// an answer that never came, and meanwhile nothing was published.
const FAILED_COUNT_PAUSE: Duration = Duration::from_secs(60);

/// The space that the files take, remembered from one write of the file to the next. Counting lists
/// the store's folders, which takes tens of milliseconds for ten thousand tables.
#[derive(Default)]
pub(crate) struct SpaceCount {
    space: SpaceStats,
    /// Whether all folders could be listed for it.
    is_whole: bool,
    /// When the files are counted again. `None` if they were not counted yet.
    next: Option<Instant>,
}

impl SpaceCount {
    /// The space, counted again if the last count is old enough. While the storage cannot be
    /// reached, and if it fails, the last whole count stays. Until there is one, what can be listed
    /// is counted.
    fn get(&mut self, jobs: &Jobs) -> SpaceStats {
        let env = jobs.env();
        let begun = env.now();
        let is_due = self.next.is_none_or(|next| begun >= next);
        if is_due && env.outage().since_unix_us().is_none() {
            // The caller is the maintenance task, which does not wait for the second location. So
            // of the tables there those are counted that are in use.
            let mut counted = space::collect(jobs.wal(), Listed::WithoutSecondLocation);
            if let Some(second) = crate::jobs::stats::locations(jobs).get(1) {
                let tables = &mut counted.space.tables;
                tables.add_files(second.table_count, second.table_bytes);
            }
            let end = env.now();
            let pause = match counted.is_complete {
                true => end
                    .since(begun)
                    .saturating_mul(COUNT_SHARE)
                    .min(COUNT_PAUSE_MAX),
                false => FAILED_COUNT_PAUSE,
            };
            self.next = Some(end + pause);
            if counted.is_complete || !self.is_whole {
                self.space = counted.space;
                self.is_whole = counted.is_complete;
            }
        }
        self.space
    }
}

/// The contents of the file `STATS.json`: the statistics of a store that is open for writing.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct StatsFile {
    /// When they were written, in microseconds since 1970. If that is much longer ago than
    /// `every_ms`, the writer was killed.
    pub written_us: u64,
    /// The process id of the writer.
    pub pid: u32,
    /// The interval between two writes, in milliseconds: [`crate::Options::stats_file_ms`].
    pub every_ms: u64,
    /// The version of siltstone that the writer runs.
    pub version: String,
    /// The statistics, as [`crate::Store::stats`] returns them. Only `space` may be older: the
    /// files are counted again after a pause of a thousand times the duration of the last count,
    /// but of at most five minutes. While the storage does not answer, the last count stays. A
    /// folder that could not be listed since the store was opened counts as empty.
    #[serde(serialize_with = "in_full")]
    pub stats: Stats,
}

impl Stats {
    /// The statistics as one JSON object on one line: the fields under their names, levels with
    /// their numbers, delays by cause, and the write amplification. `silt stats --json` prints
    /// this, and `STATS.json` holds it.
    pub fn to_json(&self) -> String {
        self.to_value().to_string()
    }

    fn to_value(&self) -> serde_json::Value {
        let mut value = serde_json::to_value(self).expect("plain data with text for keys");
        value["write_amplification"] = self.write_amplification().into();
        value
    }
}

fn in_full<S: serde::Serializer>(
    stats: &Stats,
    serializer: S,
) -> std::result::Result<S::Ok, S::Error> {
    stats.to_value().serialize(serializer)
}

/// The interval between two writes of the file; none if it is not written.
pub(crate) fn interval(env: &Env) -> Option<Duration> {
    let ms = env.live().stats_file_ms;
    (ms > 0).then(|| Duration::from_millis(ms))
}

/// Deletes the file that a killed writer left. A failure is harmless, because the file says which
/// process wrote it.
pub(crate) fn delete_inherited(env: &Env) {
    let storage = &env.storages_at_once().manifest;
    let left = storage.list();
    if left.is_ok_and(|all| all.iter().any(|object| object.name == STATS)) {
        let _ = storage.delete(env.epoch(), STATS);
    }
}

/// Whether this open has written the file.
#[derive(Default)]
pub(crate) struct OwnFile(AtomicBool);

/// Writes the present statistics to the file; a failure is counted.
pub(crate) fn write(jobs: &Jobs, own: &OwnFile, count: &mut SpaceCount) {
    let storage = &jobs.env().storages_at_once().manifest;
    if jobs.env().health().is_no_space() && storage.free_bytes().is_some_and(|b| b < SPARE_BYTES) {
        return;
    }
    // Counting the files may take long, and the time below is that of all other figures.
    let space = count.get(jobs);
    let file = StatsFile {
        written_us: jobs.env().runtime().unix_micros(),
        // A simulated run is a function of its seed.
        pid: if jobs.env().runtime().is_simulated() {
            0
        } else {
            std::process::id()
        },
        every_ms: jobs.env().live().stats_file_ms,
        version: env!("CARGO_PKG_VERSION").to_string(),
        stats: crate::stats::collect(jobs, space),
    };
    let bytes = serde_json::to_vec(&file).expect("plain data with text for keys");
    match storage.publish(jobs.env().epoch(), STATS, &bytes) {
        Ok(()) => own.0.store(true, Ordering::Release),
        Err(_) => {
            jobs.env().metrics().stats_file_failed_count.add(1);
        }
    }
}

/// Deletes the file, if this open has written it. The store is being closed, and the task that
/// writes the file has ended.
pub(crate) fn delete_own(env: &Env, own: &OwnFile) {
    if !own.0.load(Ordering::Acquire) {
        return;
    }
    let _ = env.storages_at_once().manifest.delete(env.epoch(), STATS);
}

/// The statistics that the writer of the store in the folder `path` wrote last. The call takes no
/// lease, so it works while another process has the store open for writing. It reads one small
/// file.
///
/// # Errors
/// `NotFound` if there is no such file: no writer has the store open, or it has only just opened
/// it, or [`crate::Options::stats_file_ms`] is 0. `Corruption` if a loss of power tore the file.
pub fn read_stats_file(path: impl AsRef<Path>) -> Result<StatsFile> {
    let path = path.as_ref();
    let storage = FileStorage::open_existing(path)
        .map_err(|e| Error::from(e).context(format!("reading statistics of {}", path.display())))?;
    read_stats_file_from(&storage)
}

/// Like [`read_stats_file`], from the storage of the manifest.
///
/// # Errors
/// As [`read_stats_file`].
pub fn read_stats_file_from(storage: &dyn Storage) -> Result<StatsFile> {
    let file = storage.open(STATS).map_err(|e| match e.kind {
        StorageErrorKind::NotFound => Error::not_found(format!(
            "there are no statistics of an open store in {}",
            storage.describe()
        ))
        .in_file(STATS)
        .advice(
            "a store that is open for writing writes them once a second; open a closed one to see \
             its levels",
        ),
        _ => e.into(),
    })?;
    let torn = |why: String| {
        Error::corruption(STATS, format!("the statistics cannot be read: {why}")).advice(
            "a live writer replaces them within a second; nothing else depends on this file",
        )
    };
    if file.len() > BYTES_MAX {
        return Err(torn(format!("{} bytes are too many", file.len())));
    }
    let mut bytes = vec![0; file.len() as usize];
    file.read_at(0, &mut bytes)?;
    serde_json::from_slice(&bytes).map_err(|e| torn(e.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_have_their_words() {
        for cause in crate::types::pressure::StallCause::ALL {
            let json = serde_json::to_value(cause).unwrap();
            assert_eq!(json, cause.word());
        }
    }

    #[test]
    fn any_bytes_are_read_or_refused() {
        let runtime = siltstone_storage::Runtime::threads();
        let memory = siltstone_storage::MemoryStorage::new(&runtime);
        let epoch = memory.lease("store").unwrap().epoch();
        let read = |bytes: &[u8]| {
            memory.publish(epoch, STATS, bytes).unwrap();
            read_stats_file_from(&memory)
        };
        let whole = serde_json::to_vec(&StatsFile::default()).unwrap();
        assert_eq!(read(&whole).unwrap().pid, 0);
        for len in 0..whole.len() {
            assert!(read(&whole[..len]).unwrap_err().is_corruption(), "{len}");
        }
        for at in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] ^= 0x15;
            let _ = read(&damaged);
        }
        // The file of another version: it has other fields, and causes that are unknown here.
        let other = br#"{"pid":7,"colour":"red","stats":{"published":9,"health":"good",
            "delay_totals":{"moon":{"count":3},"l0_stop":{"count":4}},
            "keyspaces":[{"name":"a","levels":[{"table_count":2}]}],"counters":{"new_count":5}}}"#;
        let found = read(other).unwrap();
        assert_eq!((found.pid, found.stats.published), (7, 9));
        assert_eq!(found.stats.keyspaces[0].levels[0].table_count, 2);
        assert_eq!(found.stats.counter("new_count"), 5);
        assert_eq!(found.stats.delay_totals.len(), 1);
        assert_eq!(found.stats.delay_totals[0].1.count, 4);
    }
}
