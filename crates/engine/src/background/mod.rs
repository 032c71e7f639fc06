//! The store's own tasks: workers for jobs, one maintenance task, one for the interval's sync; starting, waiting for, and stopping them.
//!
//! What it is: `background_tasks` workers take work from the schedule. With two or more, the first takes flushes only, so that a long
//! compaction never keeps a memtable from its flush. The maintenance task prepares log segments and arenas, raises the ceiling,
//! bounds the log, keeps the memory budget, seals memtables whose range deletes would give space back, deletes what no view holds, publishes
//! statistics, and leaves `NoSpace` when there is room again. It does slow things, so what has a time to keep is no part of it: the sync of
//! `SyncMode::Interval` is a task of its own ([`crate::wal::interval`]).
//!
//! Invariants: tasks hold the core alive and end by themselves once `closing` is set; nothing waits for a task while it holds a lock that the
//! task may want. Every loop here waits on a condition with a bound, so a missed event costs a delay, never a hang.
//!
//! Threading: runtime tasks.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use siltstone_storage::planted::{self, Bug};
use siltstone_storage::{Instant, JoinHandle};

use crate::catalog::Catalog;
use crate::catalog::edits::may_wait;
use crate::catalog::obsolete::{
    delete_again, delete_obsolete, delete_obsolete_segments, delete_old_manifests,
};
use crate::commit::Commit;
use crate::env::Env;
use crate::env::failures::LASTING_FAILURES;
use crate::jobs::Jobs;
use crate::jobs::schedule::{self, Task};
use crate::services::core::Core;
use crate::services::seal::Watches;
use crate::tree::iter::ahead::follow_hints;
use crate::tree::view::Source;
use crate::types::error::{Error, ErrorKind, Result, closed};
use crate::types::event::Event;

/// How long a task waits at most before it looks again.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// The running tasks.
#[derive(Default)]
pub(crate) struct Tasks {
    handles: Vec<JoinHandle<()>>,
}

/// Starts workers and maintenance.
pub(crate) fn start(core: &Arc<Core>) -> Result<()> {
    crate::stats::published::forget_inherited(&core.env);
    let mut handles = Vec::new();
    let workers = core.env.options.background_tasks;
    let failed = |e: std::io::Error| {
        Error::new(
            ErrorKind::Io,
            format!("a background task could not be started: {e}"),
        )
        .advice("raise the process's limit of threads")
    };
    for i in 0..workers {
        let task_core = core.clone();
        let flush_only = i == 0 && workers > 1;
        let spawned = core
            .env
            .runtime
            .spawn(&format!("silt-worker-{i}"), move || {
                worker(&task_core.jobs, flush_only)
            })
            .map_err(failed);
        match spawned {
            Ok(handle) => handles.push(handle),
            Err(error) => {
                // Those that have begun are waited for.
                core.tasks.lock().handles = handles;
                stop(core);
                return Err(error);
            }
        }
    }
    let task_core = core.clone();
    let maintenance = core
        .env
        .runtime
        .spawn("silt-maintenance", move || maintain(&task_core))
        .map_err(failed);
    let mut result = maintenance.map(|handle| handles.push(handle));
    if result.is_ok()
        && let Some(interval) = core.wal.interval_sync.interval()
    {
        let task_core = core.clone();
        let syncing = core
            .env
            .runtime
            .spawn("silt-sync", move || {
                let run = || crate::wal::interval::run(&task_core.wal, interval);
                // The sync that it was in is of unknown outcome.
                if let Err(error) = guarded(&task_core.env, || "the sync of the log".into(), run) {
                    task_core
                        .env
                        .health
                        .poison(&error.with_kind(ErrorKind::Poisoned));
                }
            })
            .map_err(failed);
        result = syncing.map(|handle| handles.push(handle));
    }
    core.tasks.lock().handles = handles;
    if result.is_err() {
        stop(core);
    }
    result
}

/// Panics in a row of one task, or of one keyspace's flushes or compactions, after which the store takes no more writes: what they do not do stays
/// undone.
const PANICS_MAX: u32 = LASTING_FAILURES;

/// Runs `work`; a panic in it is an error that says so. In a simulated run a panic is the run's end, and the stack of a killed process is unwound
/// to its end: neither is caught.
///
/// What is seen of what `work` had in hand: locks are released, so whatever lies under one must be whole between any two calls that may panic, or say
/// that it is not, as the manifest does ([`Core::check_manifest_is_whole`]) and the leader's role.
fn guarded<T>(env: &Env, what: impl FnOnce() -> String, work: impl FnOnce() -> T) -> Result<T> {
    if env.runtime.is_simulated() {
        return Ok(work());
    }
    catch_unwind(AssertUnwindSafe(work)).map_err(|payload| {
        let said = payload
            .downcast_ref::<&str>()
            .copied()
            .or_else(|| payload.downcast_ref::<String>().map(|s| &**s))
            .unwrap_or("no message");
        Error::new(ErrorKind::Io, format!("{} panicked: {said}", what())).advice(
            "this is a bug: report it, with what stands on standard error; nothing that was acknowledged is lost",
        )
    })
}

/// A task has panicked, for the `count`-th time in a row.
fn panicked(catalog: &Catalog, error: &Error, count: u32) {
    catalog.check_manifest_is_whole();
    if count >= PANICS_MAX {
        let again = format!("{count} times in a row, and what it does stays undone");
        catalog
            .env
            .health
            .poison(&error.clone().with_kind(ErrorKind::Poisoned).context(again));
    }
}

fn worker(jobs: &Jobs, flush_only: bool) {
    let mut panics = 0;
    loop {
        match guarded(&jobs.env, || "a worker".into(), || work(&jobs, flush_only)) {
            Ok(true) => panics = 0,
            Ok(false) => return,
            Err(error) => {
                panics += 1;
                panicked(&jobs.catalog, &error, panics);
                if jobs.env.closing.load(Ordering::Acquire) {
                    return;
                }
                failed(&jobs.env, error);
            }
        }
    }
}

/// Waits for one task and runs it. False: the store closes.
fn work(jobs: &Jobs, flush_only: bool) -> bool {
    let task = loop {
        let seen = jobs.env.work.count();
        if jobs.env.closing.load(Ordering::Acquire) {
            schedule::end_unfinished(&jobs);
            return false;
        }
        let task = match jobs.env.health.check_manifest() {
            Ok(()) => schedule::next(&jobs, flush_only),
            Err(_) => None,
        };
        if let Some(task) = task {
            break task;
        }
        jobs.env.settled.notify();
        jobs.env.work.wait_past(seen, LOOK_AGAIN);
    };
    run(&jobs, task);
    true
}

fn run(jobs: &Jobs, mut task: Task) {
    let what = task.what();
    let guarded = guarded(
        &jobs.env,
        || what,
        || match &mut task {
            Task::Flush(flush) => crate::jobs::flush::run(&jobs, flush),
            Task::Compaction(compaction) => crate::jobs::install::run(&jobs, compaction),
        },
    );
    let result = guarded.unwrap_or_else(|error| {
        panicked(&jobs.catalog, &error, schedule::count_panic(&jobs, &task));
        Err(error)
    });
    // Before anybody can find that nothing runs any more.
    if let Err(error) = &result
        && error.kind() == ErrorKind::NoSpace
    {
        jobs.env.health.set_no_space(error);
    }
    schedule::finish(&jobs, task, &result);
    // Work for a keyspace that is gone has not failed: it is not wanted any more.
    if let Err(error) = result
        && !matches!(error.kind(), ErrorKind::Closed | ErrorKind::KeyspaceDropped)
    {
        if planted::is(Bug::TableSyncPoisons) {
            jobs.env.health.poison(&error);
        }
        failed(&jobs.env, error);
    }
    jobs.env.pressure.notify();
    jobs.env.maintenance.notify();
}

/// Counts and tells a failure of a task, and pauses.
fn failed(env: &Env, error: Error) {
    env.metrics.job_failed_count.add(1);
    tracing::warn!(%error, "a flush or compaction failed, it runs again");
    env.events.tell(|| Event::JobFailed {
        error: error.clone(),
    });
    env.failures.set_last(error);
    // A job that failed is due again at once; a little patience keeps a lasting failure from spinning.
    pause(env, Duration::from_millis(100));
}

/// Sleeps, but not through a close.
fn pause(env: &Env, duration: Duration) {
    // It is notified once, when the tasks are to end.
    env.ending.wait_past(0, duration);
}

fn maintain(core: &Arc<Core>) {
    let mut panics = 0;
    // Those who open, do little and close need not publish anything: the first time is an interval after the open.
    let mut last_published = core.env.runtime.now();
    #[cfg(feature = "metrics")]
    let mut last_fed = last_published;
    let mut counted = crate::stats::published::Counted::default();
    let mut watches = Watches::default();
    // Since when there is space again that nobody was told of.
    let mut space_since: Option<(u64, Instant)> = None;
    let mut seen = core.env.maintenance.count();
    loop {
        let publish_every = crate::stats::published::interval(&core.env);
        let now = core.env.runtime.now();
        let wait = publish_every
            .map_or(LOOK_AGAIN, |every| (last_published + every).since(now))
            .clamp(Duration::from_micros(50), LOOK_AGAIN);
        core.env.maintenance.wait_past(seen, wait);
        // Before the round: what is asked for during this round is done in the next one.
        seen = core.env.maintenance.count();
        if core.env.closing.load(Ordering::Acquire) {
            return;
        }
        let round = guarded(
            &core.env,
            || "maintenance".into(),
            || {
                let now = core.env.runtime.now();
                if publish_every.is_some_and(|every| now.since(last_published) >= every) {
                    last_published = now;
                    crate::stats::published::publish(core, &mut counted);
                }
                #[cfg(feature = "metrics")]
                if now.since(last_fed) >= LOOK_AGAIN {
                    last_fed = now;
                    crate::stats::recorder::feed(&core.jobs);
                }
                if core.env.health.is_poisoned() {
                    return;
                }
                // Each of these failures is either told by what it poisons, or tried again with the next round.
                let _ = tidy_up(core, &mut watches);
                space_since = match (core.env.health.owes_space_again(), space_since) {
                    (Some(count), Some((before, since))) if count == before => Some((count, since)),
                    (owed, _) => owed.map(|count| (count, now)),
                };
                if space_since.is_some_and(|(_, since)| now.since(since) >= LOOK_AGAIN) {
                    core.env.health.tell_space_again();
                }
            },
        );
        match round {
            Ok(()) => panics = 0,
            Err(error) => {
                panics += 1;
                panicked(&core.catalog, &error, panics);
                failed(&core.env, error);
            }
        }
    }
}

/// One round of maintenance.
fn tidy_up(core: &Arc<Core>, watches: &mut Watches) -> Result<()> {
    // First what gives space back: everything below may need some.
    delete_obsolete(&core.catalog);
    if core.wal.log.needs_prepare() {
        core.wal.log.prepare_next().inspect_err(|e| {
            if e.is_no_space() {
                core.env.health.set_no_space(e);
            }
        })?;
    }
    prepare_arena(&core.catalog);
    crate::services::budget::keep(&core.jobs)?;
    let published = core.tree.snapshots.published();
    if published + crate::catalog::edits::CEILING_STEP / 2
        > core.catalog.ceiling.load(Ordering::Acquire)
    {
        core.catalog.raise_ceiling(published)?;
    }
    bound_log(&core.commit)?;
    if !core.env.health.is_no_space() {
        crate::services::seal::for_deletes(&core.commit, watches)?;
    }
    crate::catalog::reserve::keep(&core.catalog)?;
    if follow_hints(&core.tree, core.catalog.keyspaces.load().by_id.values()) {
        core.env.maintenance.notify();
    }
    leave_no_space(core)
}

/// Has an arena ready where a memtable is being filled. Stores that are only read keep none. Failing is harmless: whoever rotates asks again.
fn prepare_arena(catalog: &Catalog) {
    for keyspace in catalog.keyspaces.load().by_id.values() {
        let settings = keyspace.settings();
        if settings.lean {
            continue;
        }
        let arenas = &settings.arenas;
        if keyspace.view().active().mem.used_bytes() > arenas.arena_bytes() as u64 / 4 {
            let _ = arenas.prepare();
        }
    }
}

/// Flushes the keyspace that needs the oldest part of the log while the log is longer than its
/// bound.
fn bound_log(commit: &Commit) -> Result<()> {
    let start = commit.catalog.log_start_without(&[]).segment;
    commit
        .catalog
        .log_bytes
        .store(commit.wal.log.bytes_since(start), Ordering::Relaxed);
    if commit.catalog.log_bytes.load(Ordering::Relaxed) <= commit.env.live.load().log_bytes_max {
        return Ok(());
    }
    let map = commit.catalog.keyspaces.load_full();
    let oldest = map.by_id.values().filter_map(|k| {
        let view = k.pin();
        let needed = view.sources.iter().filter_map(|s| match s {
            Source::Memtable(m) => m.first_position(),
            Source::Run(_) => None,
        });
        needed.min().map(|position| (position, k))
    });
    if let Some((_, keyspace)) = oldest.min_by_key(|(position, _)| *position)
        && keyspace.view().sealed_count == 0
    {
        let mut lead = commit.queue.lead();
        let rotated = lead.rotate(&commit, keyspace);
        lead.finish();
        rotated?;
    }
    Ok(())
}

/// Tries whether there is room again: a prepared segment and a committed edit.
fn leave_no_space(core: &Core) -> Result<()> {
    if !core.env.health.is_no_space() {
        // The manifest may have failed to grow for another reason.
        return core
            .catalog
            .commit_pending(&mut core.catalog.manifest.lock());
    }
    crate::services::recovery::install_rest(core)?;
    core.wal.log.prepare_next()?;
    {
        let mut role = core.catalog.manifest.lock();
        core.catalog.commit_pending(&mut role)?;
    }
    if !planted::is(Bug::NoSpaceIsForGood) && core.env.health.clear_no_space() {
        core.env.pressure.notify();
        core.env.work.notify();
        // An open on the full disk may have used the reserves up.
        crate::catalog::reserve::make(&core.catalog)?;
    }
    Ok(())
}

/// Refuses everything from here on. Taken inside every role that changes storage, so that nobody who passed a check before
/// goes on after the lease is gone: a late leader, a late edit and a late create all find the store closed.
fn refuse_changes(commit: &Commit) -> bool {
    if planted::is(Bug::CloseOutsideRoles) {
        return !commit.env.closing.swap(true, Ordering::AcqRel);
    }
    let _ddl = commit.catalog.ddl.lock();
    let lead = commit.queue.lead();
    let role = commit.catalog.manifest.lock();
    let first = !commit.env.closing.swap(true, Ordering::AcqRel);
    commit.env.health.close();
    drop(role);
    lead.finish();
    first
}

/// Ends the tasks and gives the lease back, unless that was done. Makes no storage call itself.
pub(crate) fn stop(core: &Core) {
    if refuse_changes(&core.commit) {
        end_tasks(core, || ());
    }
}

/// Ends the tasks, does `last` while the store is still ours, and gives the lease back.
fn end_tasks(core: &Core, last: impl FnOnce()) {
    schedule::cancel_all(&core.jobs);
    core.env.ending.notify();
    core.env.work.notify();
    core.env.maintenance.notify();
    core.wal.interval_sync.wake();
    core.env.pressure.notify();
    let handles = std::mem::take(&mut core.tasks.lock().handles);
    for handle in handles {
        // A task that panicked beyond what `guarded` covers has told so on standard error; the store's data is in log and tables.
        let _ = handle.join();
    }
    // Callers that bring files in see the close soon; what they began to write they delete again.
    core.env.ingests.wait_until_none_left();
    last();
    core.tree.tables.set_closed();
    let_go(&core.catalog);
    core.env.events.end();
    // The lease goes when no task can write any more.
    let lease = core.env.lease.lock().take();
    drop(lease);
}

/// Lets go of what a closed store does not need any more and what its handles and cursors would
/// keep else: the files of the log and the manifest, and the memtables that nobody reads.
fn let_go(catalog: &Catalog) {
    catalog.wal.log.release();
    catalog.manifest.lock().manifest.release();
    for keyspace in catalog.keyspaces.load().by_id.values() {
        keyspace.close(&catalog.tree.tables);
    }
    catalog.tree.arenas.release_kept();
}

/// Writes into the manifest where the log ends, so that a log which ends earlier is known to be
/// damaged. The log is synced through that end.
///
/// Without room for the edit the close succeeds all the same: everything is durable, and only
/// damage at the end of this log would look like writes that were never synced, as after a kill.
fn write_log_end(catalog: &Catalog) -> Result<()> {
    if planted::is(Bug::CloseWithoutEnd) {
        return Ok(());
    }
    if catalog.env.health.is_poisoned() {
        return catalog.env.health.check_manifest();
    }
    match catalog.commit_close() {
        Err(error) if may_wait(&error) => {
            tracing::warn!(%error, "closed without a record of where the log ends");
            Ok(())
        }
        result => result,
    }
}

/// Ends the tasks, syncs the log, writes where it ends, gives the lease back.
pub(crate) fn close(core: &Arc<Core>) -> Result<()> {
    // A poisoned store cannot promise what was not synced before, and never tries that sync again: whoever closes it is told.
    let poisoned = if core.env.health.is_poisoned() {
        core.env.health.check_manifest()
    } else {
        Ok(())
    };
    if !refuse_changes(&core.commit) {
        return Err(closed());
    }
    let mut result = poisoned.and_then(|()| match planted::is(Bug::CloseWithoutSync) {
        true => Ok(()),
        false => core.wal.sync_log_through(core.wal.log.end()),
    });
    end_tasks(core, || {
        if result.is_ok() {
            // After the last task: no edit follows this one.
            result = write_log_end(&core.catalog);
        }
        match &result {
            Ok(()) => tracing::info!(store = core.env.storages.manifest.describe(), "closed"),
            Err(error) => tracing::error!(%error, "closed after a failure"),
        }
        // What the last jobs made obsolete goes now rather than at the next open; a poisoned store
        // changes nothing any more.
        if result.is_ok() {
            crate::stats::published::withdraw(core);
            core.tree
                .tables
                .sweep(core.env.epoch, || core.env.health.is_poisoned());
            delete_again(&core.env);
            if let Err(error) = give_space_back(&core.catalog) {
                tracing::warn!(%error, "the closed store takes more space than it needs");
            }
        }
    });
    result
}

/// The last step of a close, after which a closed store is as large as its data and opens on a full
/// disk. Everything is synced before this step, and a crash within it changes only what no open
/// reads:
/// - the log segments below the log start of the last edit are deleted;
/// - the log gives back what it wrote ahead
///   ([`LogWriter::shrink`](crate::formats::log::LogWriter::shrink) says why no record can be lost
///   by that);
/// - then, because there is more room now, the space kept for a full disk is resized in place to
///   fit the manifest. Nothing refers to that space.
///
/// So a failure here loses nothing, and the close does not fail for it.
fn give_space_back(catalog: &Catalog) -> Result<()> {
    delete_old_manifests(catalog);
    // Segments that fit go to the pool, which `shrink` deletes.
    let deleted = match planted::is(Bug::ObsoleteStaysAtClose) {
        true => Ok(()),
        false => delete_obsolete_segments(catalog),
    };
    let shrunk = catalog.wal.log.shrink(crate::catalog::reserve::LOG_BYTES);
    crate::catalog::reserve::make(catalog)?;
    for (folder, _) in catalog.env.storages.folders() {
        folder.sync_dir(catalog.env.epoch)?;
    }
    deleted.and(shrunk)
}
