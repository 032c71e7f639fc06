//! Statistics of an open store: plain data, cheap enough to be collected every second.

#[cfg(feature = "metrics")]
pub(crate) mod recorder;
pub(crate) mod space;
pub(crate) mod stats_file;

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::commit::Commit;
use crate::commit::stalls::{Delay, DelayTotal};
use crate::formats::log::LogStats;
use crate::jobs::Jobs;
use crate::jobs::stats::JobsStats;
use crate::services::budget::MemoryStats;
use crate::stats::space::SpaceStats;
use crate::tree::view::{KeyspaceCore, KeyspaceView, Source};
use crate::types::detect::Limit;
use crate::types::error::Error;
use crate::types::job_stats::{JobStats, LocationStats, QueueStats, SideStats};
use crate::types::metrics::{LatencySummary, Metrics};
use crate::types::options::difference::OptionDifference;
use crate::types::pressure::StallCause;

/// The statistics of one level of a keyspace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LevelStats {
    /// Runs. Levels 1 to 6 have one run, or none if they are empty.
    pub run_count: u64,
    /// Tables.
    pub table_count: u64,
    /// Bytes of the tables' files.
    pub file_bytes: u64,
    /// Raw bytes: user keys, values and 12 bytes an entry.
    pub raw_bytes: u64,
    /// Entries, including deletes and overwritten versions.
    pub entry_count: u64,
    /// Range-delete fragments.
    pub range_delete_count: u64,
}

/// One limit of a keyspace at which writers wait or are slowed down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LimitStats {
    /// Which one.
    pub limit: Limit,
    /// What is held now: bytes of memtables that are not flushed, the depth of level 0, bytes that
    /// compactions have to read, bytes of the log, or free bytes.
    pub load: u64,
    /// The limit is reached if the load is not below this; of free bytes, if it is not above this.
    pub bound: u64,
    /// The time until then at the rates of the last ten seconds, in microseconds. `None` if the
    /// limit does not get nearer.
    pub left_us: Option<u64>,
}

/// How near the writers of a keyspace are to waiting.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PressureStats {
    /// The limits.
    #[serde(deserialize_with = "known")]
    pub limits: Vec<LimitStats>,
    /// Bytes a second that were written into memtables in the last ten seconds.
    pub written_bytes_per_s: u64,
    /// Bytes a second that were flushed in the last ten seconds.
    pub flushed_bytes_per_s: u64,
    /// Memtables fill faster than they are flushed: one was sealed while another one waited for its
    /// flush, and not all are flushed yet.
    pub is_behind: bool,
    /// Since when, in microseconds since the store was opened.
    pub behind_since_us: Option<u64>,
    /// The limit that is about to be reached, if one is.
    #[serde(deserialize_with = "known_limit")]
    pub stall_ahead: Option<Limit>,
    /// Since when, in microseconds since the store was opened.
    pub stall_ahead_since_us: Option<u64>,
}

/// Reads a limit that this build knows.
fn known_limit<'de, D: serde::Deserializer<'de>>(d: D) -> Result<Option<Limit>, D::Error> {
    let value = serde_json::Value::deserialize(d)?;
    Ok(serde_json::from_value(value).ok())
}

/// The statistics of one keyspace.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct KeyspaceStats {
    /// The keyspace's name.
    pub name: String,
    /// Bytes that its memtables use.
    pub memtable_bytes: u64,
    /// Memtables that are being flushed or wait for a flush.
    pub sealed_memtable_count: u64,
    /// Of these, the ones that left their values in the log, because memtables fill faster than
    /// they are flushed.
    pub log_backed_memtable_count: u64,
    /// The bytes that these had in memory before, which are about those that their flushes write.
    pub log_backed_bytes: u64,
    /// Levels 0 to 6.
    #[serde(serialize_with = "numbered")]
    pub levels: Vec<LevelStats>,
    /// How urgent a compaction of each level is: it is due from 1 on. Tables that jobs have
    /// reserved do not count, unless the option `schedule` says so.
    pub level_scores: Vec<f64>,
    /// How near its writers are to waiting.
    pub pressure: PressureStats,
}

/// The statistics of an open store at one moment. Counts begin when the store is opened.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Stats {
    /// `good`, or the reason why the store takes no writes. See also `jobs_failing`.
    pub health: String,
    /// The published sequence number: every entry up to it can be read. It is not a count, because
    /// every open for writing continues about 2^28 above the last number, so that none is given
    /// twice. The counter `put_count` counts the entries that were written, `batch_count` the
    /// batches.
    pub published: u64,
    /// The number of snapshots that are held.
    pub snapshot_count: u64,
    /// The sequence number of the oldest snapshot.
    pub oldest_snapshot: Option<u64>,
    /// The keyspaces, in the order of their ids.
    pub keyspaces: Vec<KeyspaceStats>,
    /// Counters by name.
    pub counters: BTreeMap<Cow<'static, str>, u64>,
    /// Latencies by name. Of gets and puts, one call in sixteen is timed.
    pub latencies: BTreeMap<Cow<'static, str>, LatencySummary>,
    /// The total delays of writers, by cause.
    #[serde(serialize_with = "by_cause", deserialize_with = "known_causes")]
    pub delay_totals: Vec<(StallCause, DelayTotal)>,
    /// The most recent delays of writers, including those that go on now.
    #[serde(deserialize_with = "known")]
    pub delays: Vec<Delay>,
    /// The number of writers that wait now.
    pub waiting_writer_count: u64,
    /// Bytes of memtables that are flushed in a second while flushes run, as the last eight large
    /// flushes were; `None` before the first one. With `stall_policy = "redirect"`, writers that
    /// have used up all memory are admitted at this rate.
    pub flush_bytes_per_s: Option<u64>,
    /// The time since the store was opened, in microseconds.
    pub open_us: u64,
    /// Since when the storage has not answered, in microseconds since 1970; `None` while it
    /// answers. Reads and writes then fail as `Unreachable` after the storage's time limit.
    /// Flushes, compactions and changes of keyspaces wait until it answers; the counter
    /// `unreachable_wait_count` says how many calls had to wait, `unreachable_wait_us` for how long
    /// in all, and `unreachable_count` how many times the storage stopped answering.
    pub unreachable_since_us: Option<u64>,
    /// Flushes and compactions that have begun, wherever they run.
    pub jobs: Vec<JobStats>,
    /// Flushes and compactions that are due and wait for a busy side, or for a worker of the host.
    /// Always empty if the host is the only side.
    pub waiting_jobs: Vec<JobStats>,
    /// The compactions among these, by keyspace and level.
    pub queues: Vec<QueueStats>,
    /// The sides that run jobs: the executors in the order in which they were given, and last the
    /// store's own, whose jobs run on the store's workers. No two have the same name.
    pub sides: Vec<SideStats>,
    /// The log.
    pub log: LogStats,
    /// Memory by use, in bytes.
    pub memory: MemoryStats,
    /// The space that all files take on disk, counted by listing the store's folders.
    pub space: SpaceStats,
    /// The locations of tables, if the store has a second one ([`crate::Options::redirect_dir`]).
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub locations: Vec<LocationStats>,
    /// Obsolete tables that stay only because cursors and reads hold views with them.
    pub pinned_table_count: u64,
    /// Bytes of these tables' files.
    pub pinned_table_bytes: u64,
    /// The error of the last job that failed since the store was opened. A failed job is retried,
    /// so the problem may be long past: see `jobs_failing`.
    pub last_job_error: Option<String>,
    /// Why flushes or compactions fail, if the last three of either have failed. `health` may still
    /// be `good`, because the store takes writes as long as it has memory for them; then writers
    /// wait.
    pub jobs_failing: Option<String>,
    /// Options in force that contradict the file `OPTIONS.toml` in the store's folder, as it was
    /// when the store was opened for writing.
    pub option_differences: Vec<OptionDifference>,
    /// Why that file could not be read, if it could not. The text begins with its path.
    pub options_file_error: Option<String>,
    /// The keyspaces in that file that the store does not have: their names are mistyped, or they
    /// will be created later.
    pub options_of_no_keyspace: Vec<String>,
}

/// Writes each level with its number, for readers that leave some levels out.
fn numbered<S: serde::Serializer>(levels: &[LevelStats], serializer: S) -> Result<S::Ok, S::Error> {
    #[derive(Serialize)]
    struct Numbered<'a> {
        level: usize,
        #[serde(flatten)]
        stats: &'a LevelStats,
    }
    let levels = levels.iter().enumerate();
    serializer.collect_seq(levels.map(|(level, stats)| Numbered { level, stats }))
}

/// Writes the totals as a map from the cause.
fn by_cause<S: serde::Serializer>(
    totals: &[(StallCause, DelayTotal)],
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_map(totals.iter().map(|(cause, total)| (cause.word(), total)))
}

/// Reads what [`by_cause`] wrote, without causes that only another version has.
fn known_causes<'de, D: serde::Deserializer<'de>>(
    deserializer: D,
) -> Result<Vec<(StallCause, DelayTotal)>, D::Error> {
    let all = BTreeMap::<String, DelayTotal>::deserialize(deserializer)?;
    let total = |cause: StallCause| all.get(cause.word()).map(|total| (cause, *total));
    Ok(StallCause::ALL.into_iter().filter_map(total).collect())
}

/// Reads the elements that this build understands. Another version may name other causes.
fn known<'de, D, T>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    D: serde::Deserializer<'de>,
    T: serde::de::DeserializeOwned,
{
    let all = Vec::<serde_json::Value>::deserialize(deserializer)?;
    let known = |value| serde_json::from_value(value).ok();
    Ok(all.into_iter().filter_map(known).collect())
}

impl Stats {
    /// The counter called `name`; 0 if there is none.
    pub fn counter(&self, name: &str) -> u64 {
        self.counters.get(name).copied().unwrap_or(0)
    }

    /// The bytes that flushes and compactions wrote to tables, divided by the bytes of user data
    /// that were written. The log is not included.
    pub fn write_amplification(&self) -> f64 {
        let user = self.counter("user_bytes").max(1);
        (self.counter("flush_out_bytes") + self.counter("compaction_out_bytes")) as f64
            / user as f64
    }
}

/// The statistics of levels 0 to 6 of a view.
pub(crate) fn level_stats(view: &KeyspaceView) -> Vec<LevelStats> {
    let mut levels = vec![LevelStats::default(); crate::types::limits::LEVEL_COUNT];
    for (number, level) in view.level_views() {
        let stats = &mut levels[number];
        stats.run_count += u64::from(!level.level.is_empty());
        stats.table_count += level.level.len() as u64;
        stats.file_bytes += level.level.file_bytes();
        stats.raw_bytes += level.level.raw_bytes();
        for table in level.level.tables() {
            stats.entry_count += table.entries;
            stats.range_delete_count += table.range_deletes;
        }
    }
    levels
}

/// All counters by name.
fn counters(jobs: &Jobs) -> BTreeMap<Cow<'static, str>, u64> {
    let (m, cache) = (&jobs.env().metrics(), jobs.tree().tables().cache());
    let counters = [
        ("get_count", m.get_count.get()),
        ("get_hit_count", m.get_hit_count.get()),
        ("multi_get_count", m.multi_get_count.get()),
        ("put_count", m.put_count.get()),
        ("batch_count", m.batch_count.get()),
        ("group_count", m.group_count.get()),
        ("seek_count", m.seek_count.get()),
        ("hidden_count", m.hidden_count.get()),
        ("gap_count", m.gap_count.get()),
        ("gap_jump_count", m.gap_jump_count.get()),
        ("user_bytes", m.user_bytes.get()),
        ("log_bytes", jobs.wal().appended_bytes()),
        ("log_sync_count", m.log_sync_count.get()),
        ("flush_count", m.flush_count.get()),
        ("flush_in_bytes", m.flush_in_bytes.get()),
        ("flush_out_bytes", m.flush_out_bytes.get()),
        ("flush_cpu_us", m.flush_cpu_us.get()),
        ("compaction_count", m.compaction_count.get()),
        ("compaction_in_bytes", m.compaction_in_bytes.get()),
        ("compaction_out_bytes", m.compaction_out_bytes.get()),
        ("compaction_cpu_us", m.compaction_cpu_us.get()),
        ("trivial_move_count", m.trivial_move_count.get()),
        ("redirected_flush_count", m.redirected_flush_count.get()),
        ("redirected_flush_bytes", m.redirected_flush_bytes.get()),
        ("returned_table_count", m.returned_table_count.get()),
        ("returned_table_bytes", m.returned_table_bytes.get()),
        ("abandoned_flush_count", m.abandoned_flush_count.get()),
        ("location_suspended_count", m.location_suspended_count.get()),
        ("intra_l0_count", m.intra_l0_count.get()),
        ("seek_compaction_count", m.seek_compaction_count.get()),
        ("manual_count", m.manual_count.get()),
        ("delete_compaction_count", m.delete_compaction_count.get()),
        ("dropped_table_count", m.dropped_table_count.get()),
        ("sealed_for_deletes_count", m.sealed_for_deletes_count.get()),
        ("sealed_for_memory_count", m.sealed_for_memory_count.get()),
        ("memory_over_count", m.memory_over_count.get()),
        ("rate_limited_bytes", jobs.runner().rate.limited_bytes.get()),
        ("rate_wait_count", jobs.runner().rate.wait_count.get()),
        ("rate_wait_us", jobs.runner().rate.wait_us.get()),
        (
            "compaction_pause_count",
            jobs.env().metrics().pause_count.get(),
        ),
        ("compaction_pause_us", jobs.env().metrics().pause_us.get()),
        ("log_backed_memtable_count", m.log_backed_count.get()),
        ("log_backed_memtable_bytes", m.log_backed_bytes.get()),
        ("unreachable_count", jobs.env().outage().count.get()),
        (
            "unreachable_wait_count",
            jobs.env().outage().wait_count.get(),
        ),
        ("unreachable_wait_us", jobs.env().outage().wait_us.get()),
        ("job_failed_count", m.job_failed_count.get()),
        ("resumed_job_count", m.resumed_job_count.get()),
        ("adopted_table_count", m.adopted_table_count.get()),
        ("job_declined_count", jobs.runner().sides.declined_count()),
        ("job_rejected_count", jobs.runner().sides.rejected_count()),
        (
            "job_checked_place_count",
            jobs.runner().checked.place_count.get(),
        ),
        ("job_checked_bytes", jobs.runner().checked.bytes.get()),
        (
            "carried_over_table_count",
            jobs.runner().carried_over.table_count.get(),
        ),
        (
            "carried_over_block_count",
            jobs.runner().carried_over.block_count.get(),
        ),
        ("carried_over_bytes", jobs.runner().carried_over.bytes.get()),
        ("job_fallback_count", jobs.runner().sides.fallback_count()),
        (
            "side_suspended_count",
            jobs.runner().sides.suspended_count(),
        ),
        (
            "out_of_order_install_count",
            m.out_of_order_install_count.get(),
        ),
        ("dropped_shadowed_count", m.dropped_shadowed_count.get()),
        ("dropped_tombstone_count", m.dropped_tombstone_count.get()),
        ("dropped_covered_count", m.dropped_covered_count.get()),
        ("dropped_fragment_count", m.dropped_fragment_count.get()),
        ("deleted_file_count", m.deleted_file_count.get()),
        ("replayed_record_count", m.replayed_record_count.get()),
        ("ingest_count", m.ingest_count.get()),
        ("ingest_bytes", m.ingest_bytes.get()),
        ("discarded_log_bytes", m.discarded_log_bytes.get()),
        ("skipped_log_damage_count", m.skipped_log_damage_count.get()),
        ("skipped_log_damage_bytes", m.skipped_log_damage_bytes.get()),
        (
            "map_failed_count",
            jobs.tree().tables().readers().map_failed_count(),
        ),
        ("block_cache_hit_count", cache.points.hit_count()),
        ("block_cache_miss_count", cache.points.miss_count()),
        ("block_cache_scan_hit_count", cache.scans.hit_count()),
        ("block_cache_scan_miss_count", cache.scans.miss_count()),
        (
            "table_open_count",
            jobs.tree().tables().readers().opened_count(),
        ),
        (
            "table_close_count",
            jobs.tree().tables().readers().closed_count(),
        ),
        (
            "table_file_close_count",
            jobs.tree().tables().readers().descriptors().closed_count(),
        ),
        (
            "descriptor_retry_count",
            jobs.tree().tables().readers().descriptors().retried_count(),
        ),
        ("stats_file_failed_count", m.stats_file_failed_count.get()),
        ("event_lost_count", jobs.env().events().lost_count()),
    ];
    let mut counters: BTreeMap<_, _> = counters.map(|(name, n)| (Cow::Borrowed(name), n)).into();
    for (name, n) in counters_of_others(jobs) {
        *counters.entry(Cow::Owned(name)).or_default() += n;
    }
    counters
}

/// The counters that storages and executors keep. What has the same name is added up.
fn counters_of_others(jobs: &Jobs) -> Vec<(String, u64)> {
    let storages = jobs.env().storages_at_once();
    let mut all = Vec::new();
    let mut seen = Vec::new();
    let own = [&storages.manifest, &storages.log, &storages.tables];
    for storage in own.into_iter().chain(&storages.redirect) {
        // Several parts of a store may lie in one storage.
        let base = storage.base().map(|base| std::ptr::from_ref(base).addr());
        if base.is_none() || !seen.contains(&base) {
            seen.push(base);
            all.extend(storage.counters());
        }
    }
    all.extend(jobs.runner().sides.counters());
    all
}

/// All latencies by name.
fn latencies(m: &Metrics) -> BTreeMap<Cow<'static, str>, LatencySummary> {
    let latencies = [
        ("get", m.get_time.summary()),
        ("multi_get", m.multi_get_time.summary()),
        ("put", m.put_time.summary()),
        ("commit", m.commit_time.summary()),
        ("flush", m.flush_time.summary()),
        ("compaction", m.compaction_time.summary()),
        ("sync", m.sync_time.summary()),
    ];
    latencies.map(|(name, l)| (Cow::Borrowed(name), l)).into()
}

/// The statistics of one keyspace.
fn keyspace_stats(commit: &Commit, keyspace: &KeyspaceCore) -> KeyspaceStats {
    let view = keyspace.pin();
    let (mut memtable_bytes, mut log_backed_bytes) = (0, 0);
    for source in &view.sources {
        if let Source::Memtable(mem) = source {
            memtable_bytes += mem.mem.used_bytes();
            if mem.mem.is_log_backed() {
                log_backed_bytes += mem.mem.data_bytes();
            }
        }
    }
    KeyspaceStats {
        name: keyspace.name.clone(),
        memtable_bytes,
        sealed_memtable_count: view.sealed_count as u64,
        log_backed_memtable_count: view.log_backed_count as u64,
        log_backed_bytes,
        levels: level_stats(&view),
        // The statistics of jobs say it.
        level_scores: Vec::new(),
        pressure: pressure_stats(commit, keyspace),
    }
}

fn pressure_stats(commit: &Commit, keyspace: &KeyspaceCore) -> PressureStats {
    let now = commit.look(keyspace);
    let (forecast, stall_ahead_since_us) =
        keyspace.watch.forecast(now.sample, &now.bounds, now.flush);
    let limits = Limit::ALL.map(|limit| {
        let (load, bound) = now.sample.against(limit, &now.bounds);
        LimitStats {
            limit,
            load,
            bound,
            left_us: forecast.left_us[limit as usize],
        }
    });
    PressureStats {
        limits: limits.into(),
        written_bytes_per_s: forecast.written_bytes_per_s,
        flushed_bytes_per_s: forecast.flushed_bytes_per_s,
        is_behind: keyspace.watch.is_behind(),
        behind_since_us: keyspace.watch.behind_since_us(),
        stall_ahead: forecast.stall_ahead,
        stall_ahead_since_us,
    }
}

/// Collects the statistics. The caller has counted the space of the files.
pub(crate) fn collect(jobs: &Jobs, space: SpaceStats) -> Stats {
    let counters = counters(jobs);
    let latencies = latencies(jobs.env().metrics());
    let map = jobs.catalog().keyspaces();
    let keyspaces = map.by_id.values().map(|k| keyspace_stats(jobs.commit(), k));
    let mut keyspaces: Vec<KeyspaceStats> = keyspaces.collect();
    let current = map
        .by_id
        .values()
        .flat_map(|k| {
            k.pin()
                .level_views()
                .flat_map(|(_, l)| l.level.tables().iter().map(|t| t.id).collect::<Vec<_>>())
                .collect::<Vec<_>>()
        })
        .collect();
    let (pinned_table_count, pinned_table_bytes) = jobs.tree().tables().pinned(&current);
    // These come before the locks below, which are held until the value is complete.
    let memory = crate::services::budget::memory(jobs.catalog(), jobs.buffer_bytes());
    let JobsStats {
        jobs: begun,
        waiting,
        queues,
        sides,
        scores,
    } = crate::jobs::stats::collect(jobs);
    for (id, keyspace) in map.by_id.keys().zip(&mut keyspaces) {
        keyspace.level_scores = scores.get(id).map_or(Vec::new(), |scores| scores.to_vec());
    }
    let jobs_failing = jobs
        .env()
        .failures()
        .failing_now()
        .map(|error| error.to_string());
    Stats {
        jobs_failing,
        health: jobs.env().health().describe(),
        published: jobs.tree().snapshots().published(),
        snapshot_count: jobs.tree().snapshots().count() as u64,
        oldest_snapshot: jobs.tree().snapshots().oldest(),
        keyspaces,
        counters,
        latencies,
        delay_totals: jobs.commit().stalls().totals(),
        delays: jobs.commit().stalls().delays(),
        unreachable_since_us: jobs.env().outage().since_unix_us(),
        waiting_writer_count: jobs.commit().stalls().waiting_count() as u64,
        flush_bytes_per_s: jobs.commit().stalls().flush_bytes_per_s(),
        open_us: jobs.commit().stalls().since_open().as_micros() as u64,
        jobs: begun,
        waiting_jobs: waiting,
        queues,
        sides,
        log: jobs.wal().stats(),
        memory,
        locations: crate::jobs::stats::locations(jobs),
        space,
        pinned_table_count,
        pinned_table_bytes,
        last_job_error: jobs.env().failures().last().map(|e| e.to_string()),
        option_differences: crate::services::options_differ::differences(jobs.catalog()),
        options_file_error: crate::services::options_differ::failure(jobs.env())
            .map(Error::to_string),
        options_of_no_keyspace: crate::services::options_differ::of_no_keyspace(jobs.catalog()),
    }
    .with_log_bytes(jobs.catalog().log_bytes())
}

impl Stats {
    fn with_log_bytes(mut self, bytes: u64) -> Stats {
        self.counters.insert("log_live_bytes".into(), bytes);
        self
    }
}
