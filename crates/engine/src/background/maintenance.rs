//! Maintenance: one task prepares log segments and arenas, raises the ceiling of sequence numbers,
//! bounds the log, keeps the memory budget, seals memtables whose range deletes would free space,
//! deletes what no view holds, writes statistics, and leaves `NoSpace` when there is room again.
//! Some of this is slow, so work with a deadline is not done here.
//!
//! Threading: one runtime task, which works in rounds: when it is notified, and once a second.

use std::time::Duration;

use siltstone_storage::planted;
use siltstone_storage::{Instant, StorageErrorKind};

use super::panics::{failed, guarded, panicked};
use crate::catalog::Catalog;
use crate::catalog::edits::CEILING_STEP;
use crate::catalog::obsolete::delete_obsolete;
use crate::commit::Commit;
use crate::formats::manifest::CURRENT_NAME;
use crate::services::parts::Parts;
use crate::services::recovery::unflushed::install_unflushed;
use crate::services::seal::SealWatches;
use crate::stats::stats_file::{self, OwnFile, SpaceCount};
use crate::tree::iter::ahead::follow_hints;
use crate::tree::view::Source;
use crate::types::error::Result;

/// The longest time between two rounds.
const ROUND_INTERVAL: Duration = Duration::from_secs(1);

/// What the task remembers from one round to the next.
struct Maintenance<'a> {
    parts: &'a Parts,
    own_file: &'a OwnFile,
    /// When statistics were written last.
    last_written: Instant,
    /// When the metrics recorder was fed last.
    #[cfg(feature = "metrics")]
    last_fed: Instant,
    space_count: SpaceCount,
    watches: SealWatches,
    /// Set while there is space again and no event has reported that yet: how many times space had
    /// been missing by then, and since when it has been available.
    space_since: Option<(u64, Instant)>,
}

/// Runs maintenance until the store closes.
pub(super) fn maintain(parts: &Parts, own_file: &OwnFile) {
    let env = &parts.env;
    let opened = env.now();
    let mut maintenance = Maintenance {
        parts,
        own_file,
        // A store that is opened, used a little and closed need not write anything.
        last_written: opened,
        #[cfg(feature = "metrics")]
        last_fed: opened,
        space_count: SpaceCount::default(),
        watches: SealWatches::default(),
        space_since: None,
    };
    let mut panics = 0;
    // Notifications from before this task ran count too, because the store may have been closed
    // between its open and now.
    let mut seen = 0;
    loop {
        env.maintenance().wait_past(seen, maintenance.wait());
        // This is read before the round, so that a request during the round starts another one.
        seen = env.maintenance().count();
        if env.is_closing() {
            return;
        }
        match guarded(env, || "maintenance".into(), || maintenance.round()) {
            Ok(()) => panics = 0,
            Err(error) => {
                panics += 1;
                panicked(&parts.catalog, &error, panics);
                failed(env, error);
            }
        }
    }
}

impl Maintenance<'_> {
    /// How long to wait at most for the next round.
    fn wait(&self) -> Duration {
        let Some(every) = stats_file::interval(&self.parts.env) else {
            return ROUND_INTERVAL;
        };
        let left = (self.last_written + every).since(self.parts.env.now());
        left.clamp(Duration::from_micros(50), ROUND_INTERVAL)
    }

    fn round(&mut self) {
        let (parts, env) = (self.parts, &self.parts.env);
        let now = env.now();
        if stats_file::interval(env).is_some_and(|every| now.since(self.last_written) >= every) {
            self.last_written = now;
            stats_file::write(&parts.jobs, self.own_file, &mut self.space_count);
        }
        #[cfg(feature = "metrics")]
        if now.since(self.last_fed) >= ROUND_INTERVAL {
            self.last_fed = now;
            crate::stats::recorder::feed(&parts.jobs);
        }
        if env.health().is_poisoned() {
            return;
        }
        if env.outage().is_unreachable() {
            // This call notices that the storage answers again, even if nothing else makes calls.
            match env.storages_at_once().manifest.open(CURRENT_NAME) {
                Err(error) if error.kind == StorageErrorKind::Unreachable => return,
                _ => env.outage().count_success(),
            }
        }
        // A failure has poisoned the store, or the step is tried again in the next round.
        let _ = self.steps();
        self.space_since = match (env.health().pending_space_available(), self.space_since) {
            (Some(count), Some((before, since))) if count == before => Some((count, since)),
            (owed, _) => owed.map(|count| (count, now)),
        };
        let is_late = |(_, since): (u64, Instant)| now.since(since) >= ROUND_INTERVAL;
        if self.space_since.is_some_and(is_late) {
            env.health().emit_space_available();
        }
    }

    /// Takes the steps of a round, up to the first one that fails.
    fn steps(&mut self) -> Result<()> {
        let parts = self.parts;
        // This frees space, so it comes before the steps that may need some.
        delete_obsolete(&parts.catalog);
        parts.jobs.delete_leftovers();
        if parts.wal.needs_prepare() {
            parts.wal.prepare_next().inspect_err(|e| {
                parts.env.outage().count_failure(e);
                if e.is_no_space() {
                    parts.env.health().set_no_space(e);
                }
            })?;
        }
        prepare_arena(&parts.catalog);
        crate::services::budget::enforce(&parts.commit, || parts.jobs.buffer_bytes())?;
        let published = parts.tree.snapshots().published();
        if published + CEILING_STEP / 2 > parts.catalog.ceiling() {
            parts.catalog.raise_ceiling(published)?;
        }
        bound_log(&parts.commit)?;
        if !parts.env.health().is_no_space() {
            crate::services::seal::for_deletes(&parts.commit, &mut self.watches)?;
        }
        crate::catalog::reserve::keep(&parts.catalog)?;
        if follow_hints(&parts.tree, parts.catalog.keyspaces().by_id.values()) {
            parts.env.maintenance().notify();
        }
        leave_no_space(parts)
    }
}

/// Prepares an arena for each keyspace whose memtable is being filled; a store that is only read
/// needs none. A failure is harmless, because the leader asks for the arena again when it rotates.
fn prepare_arena(catalog: &Catalog) {
    for keyspace in catalog.keyspaces().by_id.values() {
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

/// If the log is longer than `log_bytes_max`, seals the memtable of the keyspace that needs the
/// oldest part of the log.
fn bound_log(commit: &Commit) -> Result<()> {
    let start = commit.catalog().log_start_without(&[]).segment;
    commit
        .catalog()
        .set_log_bytes(commit.wal().bytes_since(start));
    if commit.catalog().log_bytes() <= commit.env().live().log_bytes_max {
        return Ok(());
    }
    let map = commit.catalog().keyspaces();
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
        commit.seal([&**keyspace])?;
    }
    Ok(())
}

/// If the store is in `NoSpace`, tries whether there is room again: for a log segment and an edit.
fn leave_no_space(parts: &Parts) -> Result<()> {
    if !parts.env.health().is_no_space() {
        // Edits may wait for another reason that kept the manifest from growing.
        return parts.catalog.commit_pending(&mut parts.catalog.role());
    }
    install_unflushed(&parts.jobs, &parts.unflushed)?;
    parts.wal.prepare_next()?;
    {
        let mut role = parts.catalog.role();
        parts.catalog.commit_pending(&mut role)?;
    }
    if !planted!(NoSpaceIsForGood) && parts.env.health().clear_no_space() {
        parts.env.pressure().notify();
        parts.env.work().notify();
        // An open on the full disk may have used up the reserves.
        crate::catalog::reserve::make(&parts.catalog)?;
    }
    Ok(())
}
