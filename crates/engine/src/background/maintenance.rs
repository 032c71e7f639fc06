//! Maintenance: one task prepares log segments and arenas, raises the ceiling of sequence numbers,
//! bounds the log, keeps the memory budget, seals memtables whose range deletes would give space
//! back, deletes what no view holds, publishes statistics, and leaves `NoSpace` when there is room
//! again. Some of this is slow, so nothing that has to be done in time is a part of it.
//!
//! Threading: one runtime task, in rounds. It is notified when something is to be done, and looks
//! once a second.

use std::time::Duration;

use siltstone_storage::Instant;
use siltstone_storage::planted::{self, Bug};

use super::panics::{failed, guarded, panicked};
use crate::catalog::Catalog;
use crate::catalog::edits::CEILING_STEP;
use crate::catalog::obsolete::delete_obsolete;
use crate::commit::Commit;
use crate::services::parts::Parts;
use crate::services::recovery::unflushed::install_unflushed;
use crate::services::seal::Watches;
use crate::stats::published::{self, Counted, OwnFile};
use crate::tree::iter::ahead::follow_hints;
use crate::tree::view::Source;
use crate::types::error::Result;

/// How long the task waits at most before it looks again.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// What the task remembers from one round to the next.
struct Maintenance<'a> {
    parts: &'a Parts,
    own_file: &'a OwnFile,
    /// When statistics were published last.
    last_published: Instant,
    /// When the metrics recorder was fed last.
    #[cfg(feature = "metrics")]
    last_fed: Instant,
    counted: Counted,
    watches: Watches,
    /// Since when there has been space again without an event that says so, and the number of the
    /// time that space was missing.
    space_since: Option<(u64, Instant)>,
}

/// The life of the task, until the store closes.
pub(super) fn maintain(parts: &Parts, own_file: &OwnFile) {
    let env = &parts.env;
    let opened = env.now();
    let mut maintenance = Maintenance {
        parts,
        own_file,
        // A store that is opened, used a little and closed need not publish anything.
        last_published: opened,
        #[cfg(feature = "metrics")]
        last_fed: opened,
        counted: Counted::default(),
        watches: Watches::default(),
        space_since: None,
    };
    let mut panics = 0;
    let mut seen = env.maintenance().count();
    loop {
        env.maintenance().wait_past(seen, maintenance.wait());
        // Before the round: what is asked for during this round is done in the next one.
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
        let Some(every) = published::interval(&self.parts.env) else {
            return LOOK_AGAIN;
        };
        let left = (self.last_published + every).since(self.parts.env.now());
        left.clamp(Duration::from_micros(50), LOOK_AGAIN)
    }

    fn round(&mut self) {
        let (parts, env) = (self.parts, &self.parts.env);
        let now = env.now();
        if published::interval(env).is_some_and(|every| now.since(self.last_published) >= every) {
            self.last_published = now;
            published::publish(&parts.jobs, self.own_file, &mut self.counted);
        }
        #[cfg(feature = "metrics")]
        if now.since(self.last_fed) >= LOOK_AGAIN {
            self.last_fed = now;
            crate::stats::recorder::feed(&parts.jobs);
        }
        if env.health().is_poisoned() {
            return;
        }
        // A failure is reported by what it poisons, or the step is tried again in the next round.
        let _ = self.steps();
        self.space_since = match (env.health().pending_space_again(), self.space_since) {
            (Some(count), Some((before, since))) if count == before => Some((count, since)),
            (owed, _) => owed.map(|count| (count, now)),
        };
        let is_late = |(_, since): (u64, Instant)| now.since(since) >= LOOK_AGAIN;
        if self.space_since.is_some_and(is_late) {
            env.health().emit_space_again();
        }
    }

    /// The steps of a round, up to the first that fails.
    fn steps(&mut self) -> Result<()> {
        let parts = self.parts;
        // First what gives space back: everything below may need some.
        delete_obsolete(&parts.catalog);
        if parts.wal.log().needs_prepare() {
            parts.wal.log().prepare_next().inspect_err(|e| {
                if e.is_no_space() {
                    parts.env.health().set_no_space(e);
                }
            })?;
        }
        prepare_arena(&parts.catalog);
        crate::services::budget::keep(&parts.jobs)?;
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

/// Has an arena ready where a memtable is being filled. Stores that are only read keep none. Failing is harmless: whoever rotates asks again.
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

/// Flushes the keyspace that needs the oldest part of the log while the log is longer than its
/// bound.
fn bound_log(commit: &Commit) -> Result<()> {
    let start = commit.catalog().log_start_without(&[]).segment;
    commit
        .catalog()
        .set_log_bytes(commit.wal().log().bytes_since(start));
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

/// Tries whether there is room again: a prepared segment and a committed edit.
fn leave_no_space(parts: &Parts) -> Result<()> {
    if !parts.env.health().is_no_space() {
        // The manifest may have failed to grow for another reason.
        return parts.catalog.commit_pending(&mut parts.catalog.role());
    }
    install_unflushed(&parts.jobs, &parts.unflushed)?;
    parts.wal.log().prepare_next()?;
    {
        let mut role = parts.catalog.role();
        parts.catalog.commit_pending(&mut role)?;
    }
    if !planted::is(Bug::NoSpaceIsForGood) && parts.env.health().clear_no_space() {
        parts.env.pressure().notify();
        parts.env.work().notify();
        // An open on the full disk may have used the reserves up.
        crate::catalog::reserve::make(&parts.catalog)?;
    }
    Ok(())
}
