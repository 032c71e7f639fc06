//! Statistics that others read without opening the store: the file `STATS.json`.
//!
//! What it is: a writer's maintenance task publishes its [`Stats`] once a second; [`read_published_stats`] reads them back, beside the live
//! writer or after its end. The file is made of the same serialisation as [`Stats::to_json`].
//!
//! Invariants: publishing costs no sync and never fails anything (failures are counted); it ends before the lease is given back, and an
//! orderly close deletes the file; what a kill leaves says when and by whom it was written. Unknown fields are ignored and missing ones are zero,
//! so that a build reads the figures of its neighbours. Bytes of the file are never believed: what cannot be read is an error.
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
use crate::stats::space::SpaceStats;
use crate::types::error::{Error, Result};
use crate::wal::Wal;

/// A longer file is not read.
const BYTES_MAX: u64 = 64 << 20;

/// On a full disk, room below this is left to those who need it, in bytes.
const SPARE_BYTES: u64 = 1 << 20;

/// A count of the files is repeated when this many times as long has passed as it took.
const COUNT_SHARE: u32 = 1000;

/// The space that the files take, kept from one publication to the next. Counting lists the store's
/// folders, which takes tens of milliseconds for ten thousand tables.
#[derive(Default)]
pub(crate) struct Counted {
    space: SpaceStats,
    /// When it was counted, and how long that took.
    last: Option<(Instant, Duration)>,
}

impl Counted {
    /// The space, counted again if the last count is old enough.
    fn get(&mut self, wal: &Wal) -> SpaceStats {
        let now = wal.env().now();
        let is_due = |(at, took): (Instant, Duration)| now.since(at) >= took * COUNT_SHARE;
        if self.last.is_none_or(is_due) {
            self.space = crate::stats::space::collect(wal);
            let end = wal.env().now();
            self.last = Some((end, end.since(now)));
        }
        self.space
    }
}

/// Statistics that a writer has published.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct PublishedStats {
    /// When, in microseconds since 1970. What is much older than `every_ms` was left by a writer that was killed.
    pub written_us: u64,
    /// The writer's process.
    pub pid: u32,
    /// How often it publishes, in milliseconds: [`crate::Options::stats_publish_ms`].
    pub every_ms: u64,
    /// The writer's version of siltstone.
    pub version: String,
    /// The statistics, as [`crate::Store::stats`] returns them. Only `space` may be older: the
    /// files are counted again when a thousand times as long has passed as the last count took.
    #[serde(serialize_with = "in_full")]
    pub stats: Stats,
}

impl Stats {
    /// All of it as one JSON object on one line: the fields under their names (units last), levels with their numbers, delays by cause, and the
    /// write amplification. What `silt stats --json` prints and `STATS.json` holds.
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

/// How often statistics are published, if they are.
pub(crate) fn interval(env: &Env) -> Option<Duration> {
    let ms = env.live().stats_publish_ms;
    (ms > 0).then(|| Duration::from_millis(ms))
}

/// An open for writing: what a killed writer left is not this one's. Failing is harmless, the file says whose it is.
pub(crate) fn forget_inherited(env: &Env) {
    let storage = &env.storages().manifest;
    let left = storage.list();
    if left.is_ok_and(|all| all.iter().any(|object| object.name == STATS)) {
        let _ = storage.delete(env.epoch(), STATS);
    }
}

/// Whether there is a file of published statistics that is this open's.
#[derive(Default)]
pub(crate) struct OwnFile(AtomicBool);

/// Publishes the present statistics; a failure is counted.
pub(crate) fn publish(jobs: &Jobs, own: &OwnFile, counted: &mut Counted) {
    let storage = &jobs.env().storages().manifest;
    if jobs.env().health().is_no_space() && storage.free_bytes().is_some_and(|b| b < SPARE_BYTES) {
        return;
    }
    let published = PublishedStats {
        written_us: jobs.env().runtime().unix_micros(),
        // A simulated run is a function of its seed.
        pid: if jobs.env().runtime().is_simulated() {
            0
        } else {
            std::process::id()
        },
        every_ms: jobs.env().live().stats_publish_ms,
        version: env!("CARGO_PKG_VERSION").to_string(),
        stats: crate::stats::collect(jobs, counted.get(jobs.wal())),
    };
    let bytes = serde_json::to_vec(&published).expect("plain data with text for keys");
    match storage.publish(jobs.env().epoch(), STATS, &bytes) {
        Ok(()) => own.0.store(true, Ordering::Release),
        Err(_) => {
            jobs.env().metrics().stats_unpublished_count.add(1);
        }
    }
}

/// Takes the file away: the store is being closed, and nothing publishes any more.
pub(crate) fn withdraw(env: &Env, own: &OwnFile) {
    if !own.0.load(Ordering::Acquire) {
        return;
    }
    let _ = env.storages().manifest.delete(env.epoch(), STATS);
}

/// The statistics that the writer of the store in the folder `path` published last. Needs no lease, so it works beside a live writer;
/// costs one small file.
///
/// # Errors
/// `NotFound` if there are none: no writer has the store open, or it has just opened it. `Corruption` if power loss tore the file.
pub fn read_published_stats(path: impl AsRef<Path>) -> Result<PublishedStats> {
    let path = path.as_ref();
    let storage = FileStorage::open_existing(path)
        .map_err(|e| Error::from(e).context(format!("reading statistics of {}", path.display())))?;
    read_published_stats_from(&storage)
}

/// As [`read_published_stats`], from the storage where the manifest lies.
///
/// # Errors
/// As [`read_published_stats`].
pub fn read_published_stats_from(storage: &dyn Storage) -> Result<PublishedStats> {
    let file = storage.open(STATS).map_err(|e| match e.kind {
        StorageErrorKind::NotFound => Error::not_found(format!(
            "no statistics are published in {}",
            storage.describe()
        ))
        .in_file(STATS)
        .advice("a store that is open for writing publishes them once a second; open a closed one to see its levels"),
        _ => e.into(),
    })?;
    let torn = |why: String| {
        Error::corruption(STATS, format!("published statistics cannot be read: {why}")).advice(
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
        for cause in crate::types::pressure::Cause::ALL {
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
            read_published_stats_from(&memory)
        };
        let whole = serde_json::to_vec(&PublishedStats::default()).unwrap();
        assert_eq!(read(&whole).unwrap().pid, 0);
        for len in 0..whole.len() {
            assert!(read(&whole[..len]).unwrap_err().is_corruption(), "{len}");
        }
        for at in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] ^= 0x15;
            let _ = read(&damaged);
        }
        // Of another version: more fields, fewer, and causes that are not known here.
        let other = br#"{"pid":7,"colour":"red","stats":{"published":9,"health":"good","delay_totals":{"moon":{"count":3},"l0_stop":{"count":4}},
            "keyspaces":[{"name":"a","levels":[{"table_count":2}]}],"counters":{"new_count":5}}}"#;
        let found = read(other).unwrap();
        assert_eq!((found.pid, found.stats.published), (7, 9));
        assert_eq!(found.stats.keyspaces[0].levels[0].table_count, 2);
        assert_eq!(found.stats.counter("new_count"), 5);
        assert_eq!(found.stats.delay_totals.len(), 1);
        assert_eq!(found.stats.delay_totals[0].1.count, 4);
    }
}
