//! Collects the statistics of jobs and of the sides that run them.
//!
//! [`collect`] joins the schedule's state (which work runs, where and why) with the records of the
//! sides (slots, speed, failures). The result shows why a job runs on its side, which side waiting
//! work waits for, and why a side is idle.
//!
//! Threading: any task. The schedule's lock is held while its lists are copied. Then the executors
//! are asked without a lock.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use siltstone_storage::{Instant, Storage};

use crate::jobs::Jobs;
use crate::jobs::schedule::{Left, Running, Waits};
use crate::jobs::take::PickState;
use crate::jobs::work::{Described, Stage};
use crate::tree::pick;
use crate::types::job_stats::{JobStats, LocationStats, QueueStats, SideStats};
use crate::types::limits::{KeyspaceId, LEVEL_COUNT};

/// The statistics of jobs and sides.
pub(crate) struct JobsStats {
    /// Jobs that are reserved or running.
    pub(crate) jobs: Vec<JobStats>,
    /// Jobs that wait for a side and are not reserved.
    pub(crate) waiting: Vec<JobStats>,
    /// The waiting jobs by keyspace and level.
    pub(crate) queues: Vec<QueueStats>,
    /// The executors in their order, the host's own last.
    pub(crate) sides: Vec<SideStats>,
    /// How urgent each level of each keyspace is. A level is due if this is at least 1. Tables that
    /// jobs have reserved do not count, unless the policy says so.
    pub(crate) scores: BTreeMap<KeyspaceId, [f64; LEVEL_COUNT]>,
}

/// The statistics that do not change while the work lasts.
fn described(of: &Described, keyspace: &str, input_bytes: u64) -> JobStats {
    JobStats {
        keyspace: keyspace.to_string(),
        kind: of.kind.to_string(),
        from_level: of.from_level,
        to_level: of.to_level,
        reason: of.reason.clone(),
        input_bytes,
        ..JobStats::default()
    }
}

/// A job, and the side that runs it or that it waits for.
struct Shown {
    stats: JobStats,
    at: Option<Waits>,
}

/// Collects the statistics. Must not be called under a lock, because it calls executors.
pub(crate) fn collect(jobs: &Jobs) -> JobsStats {
    let now = jobs.env.now();
    let map = jobs.catalog.keyspaces();
    let (begun, waiting, queues, small_end, reserved): (Vec<Shown>, Vec<Shown>, _, _, Vec<_>) = {
        let schedule = jobs.schedule.lock();
        let begun = schedule.running().iter().map(|r| shown(r, now));
        let waiting = schedule.left().iter().map(|left| Shown {
            stats: JobStats {
                stage: "waiting".to_string(),
                ..described(&left.described, &left.keyspace, left.bytes)
            },
            at: Some(left.waits.clone()),
        });
        (
            begun.collect(),
            waiting.collect(),
            queues(schedule.left()),
            schedule.queues.small_end,
            map.by_id
                .keys()
                .map(|id| schedule.reservations(*id))
                .collect(),
        )
    };
    let scores = map
        .by_id
        .values()
        .zip(reserved)
        .map(|(keyspace, reserved)| {
            let state = PickState::of(jobs, keyspace, reserved, Vec::new());
            (keyspace.id, pick::scores(&state.input(None)))
        });
    let scores = scores.collect();
    let mut sides = jobs.runner.sides.stats();
    for (id, side) in sides.iter_mut().enumerate() {
        side.queue_end = match small_end {
            None => "",
            Some(small) if small == id => "small",
            Some(_) => "large",
        }
        .to_string();
    }
    if let Some(host) = sides.last_mut() {
        host.slot_count = u64::from(jobs.env.options().background_tasks);
    }
    let mut name = |Shown { mut stats, at }: Shown| {
        if let Some(Waits { side, placement }) = at {
            if let Some(side) = side {
                let side = &mut sides[side];
                match stats.is_under_way() {
                    true => add_running(side, &stats),
                    false => side.waiting_job_count += 1,
                }
                stats.executor.clone_from(&side.name);
                stats.side.clone_from(&side.side);
            }
            stats.placement = placement;
        }
        stats
    };
    JobsStats {
        jobs: begun.into_iter().map(&mut name).collect(),
        waiting: waiting.into_iter().map(&mut name).collect(),
        queues,
        sides,
        scores,
    }
}

/// Adds a job that has begun to the sums of its side.
fn add_running(side: &mut SideStats, job: &JobStats) {
    side.running_job_count += 1;
    // Executors report these numbers, which may have any size.
    for (sum, bytes) in [
        (&mut side.running_in_bytes, job.input_bytes),
        (&mut side.running_read_bytes, job.read_bytes),
        (&mut side.running_out_bytes, job.out_bytes),
    ] {
        *sum = sum.saturating_add(bytes);
    }
    side.running_left_us = side.running_left_us.max(job.left_us);
}

/// The waiting compactions by keyspace and level.
fn queues(left: &[Left]) -> Vec<QueueStats> {
    let mut queues: Vec<QueueStats> = Vec::new();
    for work in left {
        let Some(level) = work.described.from_level else {
            continue;
        };
        let is_its =
            |queue: &&mut QueueStats| queue.level == level && queue.keyspace == work.keyspace;
        let at = match queues.iter_mut().find(is_its) {
            Some(queue) => queue,
            None => {
                queues.push(QueueStats {
                    keyspace: work.keyspace.clone(),
                    level,
                    ..QueueStats::default()
                });
                queues.last_mut().expect("one was added")
            }
        };
        at.work_count += 1;
        at.table_count += work.table_count;
        at.bytes = at.bytes.saturating_add(work.bytes);
    }
    queues
}

fn shown(running: &Running, now: Instant) -> Shown {
    let progress = &running.progress;
    let stage = running.stage.get();
    let mut stats = described(&running.described, &running.name, running.bytes);
    let is_paused = stage == Stage::Running && running.progress.is_paused.load(Ordering::Relaxed);
    stats.stage = match is_paused {
        true => "paused".to_string(),
        false => stage.word().to_string(),
    };
    stats.read_bytes = progress.bytes_in.load(Ordering::Relaxed);
    stats.entry_count = progress.entries.load(Ordering::Relaxed);
    stats.out_bytes = progress.bytes_out.load(Ordering::Relaxed);
    let (Some(placed), Some(mut advance)) = (&running.placed, running.advance(now)) else {
        let at = running.waits.clone();
        return Shown { stats, at };
    };
    stats.run_us = Some(micros(advance.elapsed));
    if stage == Stage::Running && (stats.read_bytes > 0 || !advance.expected.is_zero()) {
        advance.read = stats.read_bytes;
        stats.left_us = Some(micros(advance.remaining()));
    }
    let at = Waits {
        side: Some(placed.side),
        placement: running.remark.after(&placed.reason),
    };
    Shown {
        stats,
        at: Some(at),
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// The locations of tables. None if the store has only one.
pub(crate) fn locations(jobs: &Jobs) -> Vec<LocationStats> {
    let env = jobs.env();
    if !env.locations().exists() {
        return Vec::new();
    }
    let mut held = [(0u64, 0u64); 2];
    for keyspace in jobs.catalog().keyspaces().by_id.values() {
        let view = keyspace.pin();
        let levels = view.level_views();
        for table in levels.flat_map(|(_, level)| level.level.tables()) {
            if let Some((count, bytes)) = held.get_mut(table.location as usize) {
                *count += 1;
                *bytes += table.file_bytes;
            }
        }
    }
    let m = env.metrics();
    let schedule = jobs.schedule.lock();
    let states = &schedule.states;
    let of = |(location, storage): (u32, &Arc<dyn Storage>)| {
        let is_first = location == 0;
        let (table_count, table_bytes) = held[usize::from(!is_first)];
        LocationStats {
            location,
            path: storage.location(),
            table_count,
            table_bytes,
            free_bytes: match is_first {
                true => env.free_bytes(),
                false => env.locations().free_bytes(),
            },
            flush_bytes_per_s: states.bytes_per_s(location),
            flushed_bytes: states.flushed_bytes(location),
            returned_bytes: match is_first {
                true => 0,
                false => m.returned_table_bytes.get(),
            },
            is_suspended: !is_first && states.is_suspended(env.now()),
            is_lost: !is_first && env.locations().is_lost(),
        }
    };
    env.storages().locations().map(of).collect()
}
