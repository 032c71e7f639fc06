//! Maintenance: one task raises the ceiling of sequence numbers, bounds the log, keeps the memory
//! budget, seals memtables whose range deletes would free space, deletes what no view holds, writes
//! statistics, and leaves `NoSpace` when there is room again. Some of this is slow, so work with a
//! deadline is not done here.
//!
//! Threading: one runtime task, which works in rounds: when it is notified, and once a second.

use std::sync::Arc;
use std::time::Duration;

use siltstone_storage::planted;
use siltstone_storage::{Instant, Storage, StorageErrorKind};

use super::adoc::Tuner;
use super::panics::{failed, guarded, panicked};
use super::stand_ins::StandIns;
use crate::catalog::edits::CEILING_STEP;
use crate::catalog::obsolete::delete_obsolete;
use crate::commit::Commit;
use crate::commit::detector::Happened;
use crate::formats::manifest::CURRENT_NAME;
use crate::services::parts::Parts;
use crate::services::recovery::unflushed::install_unflushed;
use crate::services::seal::SealWatches;
use crate::stats::stats_file::{self, OwnFile, SpaceCount};
use crate::tree::iter::ahead::follow_hints;
use crate::tree::view::KeyspaceCore;
use crate::types::error::Result;
use crate::types::options::StallPolicy;

/// The longest time between two rounds.
const ROUND_INTERVAL: Duration = Duration::from_secs(1);

/// The log has room for flushes to the second location if this many of its segments have.
const SEGMENTS_LEFT: u64 = 4;

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
    tuner: Tuner,
    stand_ins: StandIns,
    /// See [`Maintenance::look_ahead`].
    last_look: Option<Instant>,
}

/// Runs maintenance until the store closes.
pub(super) fn maintain(parts: &Parts, own_file: &OwnFile, tuner: Tuner, stand_ins: StandIns) {
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
        tuner,
        stand_ins,
        last_look: None,
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

    /// Once a second, notes the free bytes, and asks the detector about keyspaces whose writers may
    /// have to wait soon.
    fn look_ahead(&mut self) {
        let parts = self.parts;
        let now = parts.env.now();
        if self
            .last_look
            .is_some_and(|last| now.since(last) < ROUND_INTERVAL)
        {
            return;
        }
        self.last_look = Some(now);
        // Only `redirect` limits writers for this, and a device is asked over its link.
        let free = match parts.env.live().stall_policy {
            StallPolicy::Redirect => parts.env.storages_at_once().tables.free_bytes(),
            _ => None,
        };
        let map = parts.catalog.keyspaces();
        let is_short = |keyspace: &Arc<KeyspaceCore>| free.is_some_and(|f| keyspace.is_short_of(f));
        let is_short = map.by_id.values().any(is_short);
        let for_writers = match is_short {
            true => self.with_second_location(free),
            false => free,
        };
        parts.env.set_free_bytes(free, for_writers);
        self.stand_ins.step();
        parts.jobs.end_redirect(is_short);
        for keyspace in map.by_id.values() {
            keyspace.set_free_bytes(for_writers);
            if keyspace.watch.needs_look() {
                parts.commit.observe(keyspace, Happened::Nothing);
            }
        }
    }

    /// The free bytes that count for writers if there are hardly any at location 0: those at the
    /// second location, where flushes go then, as long as the log and the manifest have room.
    fn with_second_location(&self, free: Option<u64>) -> Option<u64> {
        let env = &self.parts.env;
        let storages = env.storages_at_once();
        let needed = SEGMENTS_LEFT.saturating_mul(env.options().log_segment_bytes);
        let has_room = |storage: &Arc<dyn Storage>| {
            let free = storage.free_bytes();
            free.is_none_or(|free| free >= needed)
        };
        let map = self.parts.catalog.keyspaces();
        let memtables = map.by_id.values().map(|k| k.limits().memtable_bytes);
        let is_open = self.parts.jobs.may_redirect(memtables.max().unwrap_or(0));
        if !is_open || !has_room(&storages.log) || !has_room(&storages.manifest) {
            return free;
        }
        let second = env.locations().free_bytes();
        second.map(|second| second.max(free.unwrap_or(0)))
    }

    /// Takes the steps of a round, up to the first one that fails.
    fn steps(&mut self) -> Result<()> {
        let parts = self.parts;
        // This frees space, so it comes before the steps that may need some.
        delete_obsolete(&parts.catalog);
        parts.jobs.delete_leftovers();
        self.look_ahead();
        self.tuner.step();
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

/// If the log is longer than `log_bytes_max`, besides what log-backed memtables need, seals all
/// active memtables that hold its oldest quarter. Their flushes come before others.
fn bound_log(commit: &Commit) -> Result<()> {
    let catalog = commit.catalog();
    let start = catalog.log_start_without(&[]);
    catalog.set_log_bytes(commit.wal().bytes_since(start.segment));
    catalog.count_log_backed();
    // What log-backed memtables need is no reason to flush others early.
    let most = commit.env().live().log_bytes_max;
    let is_long = catalog.log_bytes() > most.saturating_add(catalog.log_backed_bytes());
    catalog.set_log_overdue(is_long.then_some(start));
    let Some(overdue) = catalog.overdue_log() else {
        return Ok(());
    };
    let map = catalog.keyspaces();
    let holds = |keyspace: &&Arc<KeyspaceCore>| {
        let position = keyspace.view().active().first_position();
        position.is_some_and(|position| position <= overdue)
    };
    let holders: Vec<&KeyspaceCore> = map.by_id.values().filter(holds).map(|k| &**k).collect();
    if !holders.is_empty() {
        commit.seal(holders)?;
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
    parts.wal.prepare(1)?;
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
