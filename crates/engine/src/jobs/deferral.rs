//! When memtables may leave their values in the log, and which flushes wait for the end of a burst
//! (RFC 13, section 11).
//!
//! Threading: [`Deferral`] is asked under the lock of the schedule. No I/O.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::catalog::{Catalog, KeyspaceMap};
use crate::env::Env;
use crate::tree::view::{KeyspaceCore, KeyspaceView, MemSource, Source};
use crate::types::options::StallPolicy;
use crate::types::pressure::Limits;

/// A memtable keeps its values if they lie in more segments than this.
pub(super) const SEGMENTS_MAX: usize = 8;

/// The most segments that are pinned, and their files open, ...
const PINNED_MAX: usize = 256;

/// ... and the part (one divided by it) of the files that the storage can have open.
const OPEN_PART: u64 = 8;

/// Flushes are not deferred if a keyspace has this many times as many log-backed memtables as level
/// 0 may have runs: each get looks at all of them.
const COUNT_FACTOR: u64 = 4;

/// A flush is deferred while the log has at most this part of the bytes at which writers stop.
const LOG_PART: (u64, u64) = (5, 8);

/// Whether the store has the task that leaves values in the log. If the store has a second
/// location, flushes that are behind go there instead.
pub(crate) fn has_task(env: &Env) -> bool {
    env.options().redirect_log_bytes_max > 0 && !env.locations().exists()
}

/// Whether any memtable of this store may leave values in the log now.
pub(super) fn is_possible(env: &Env) -> bool {
    let live = env.live();
    let log = env.storages().log.capabilities();
    env.flush_load().is_behind()
        && live.stall_policy == StallPolicy::Redirect
        && has_task(env)
        && log.survives_kill
        && !log.pipelined
        && !env.health().is_no_space()
        && !env.health().is_poisoned()
        && !env.outage().is_unreachable()
        && !env.is_closing()
}

/// Whether there is room for what the flushes of log-backed memtables have to write, and for the
/// compactions after them.
pub(super) fn has_room(env: &Env, map: &KeyspaceMap) -> bool {
    let Some(free) = env.free_bytes() else {
        return true;
    };
    let (mut owed, mut job, mut memtable) = (0_u64, 0, 0);
    for keyspace in map.by_id.values() {
        let view = keyspace.view();
        let backed = view.sealed().filter(|m| m.mem.is_log_backed());
        owed += backed.map(|m| m.mem.data_bytes()).sum::<u64>();
        job = job.max(keyspace.short_space().1);
        memtable = memtable.max(keyspace.limits().memtable_bytes);
    }
    free >= 2 * owed + 3 * job + 2 * memtable
}

/// Whether the memtables that have their values in memory take three quarters of what the unflushed
/// ones may take. Then writers wait for this memory, or will soon, so it is freed first.
pub(super) fn is_memory_short(view: &KeyspaceView, limits: &Limits) -> bool {
    let all = view.sealed().chain([view.active()]);
    let whole = all.filter(|source| !source.mem.is_log_backed());
    let used: u64 = whole.map(|source| source.mem.used_bytes()).sum();
    used >= limits.memory_bytes() / 4 * 3
}

/// The order in which a keyspace flushes the sealed memtables that it has to, given oldest first.
/// Those that have left their values in the log may be many, and have little memory to give, so
/// they come last while memory is short.
pub(super) fn order(view: &KeyspaceView, limits: &Limits, due: &mut [Arc<MemSource>]) {
    let has_both = view.log_backed_count > 0 && view.log_backed_count < view.sealed_count;
    let keys_fit = view.log_backed_bytes <= limits.key_bytes();
    if has_both && keys_fit && is_memory_short(view, limits) {
        due.sort_by_key(|source| source.mem.is_log_backed());
    }
}

/// Which flushes are deferred, as of one search for work.
pub(super) struct Deferral<'a> {
    env: &'a Env,
    /// Whether any may be.
    is_on: bool,
    since_open: Duration,
    log_bytes: u64,
    /// The longest time for which a flush is deferred, if nothing happens.
    longest: Duration,
    defers_any: bool,
}

impl Deferral<'_> {
    /// As of now, `since_open` after the store was opened.
    pub(super) fn now(catalog: &Catalog, since_open: Duration) -> Deferral<'_> {
        let env = catalog.env();
        Deferral {
            env,
            is_on: is_possible(env) && has_room(env, &catalog.keyspaces()),
            since_open,
            log_bytes: catalog.log_bytes(),
            longest: Duration::ZERO,
            defers_any: false,
        }
    }

    /// Whether the flush of this sealed memtable waits: until the memtable has left its values in
    /// the log, or, if it has, while the burst goes on that fills the next ones.
    pub(super) fn defers(&mut self, keyspace: &KeyspaceCore, source: &MemSource) -> bool {
        let left = keyspace.watch.burst_ends().saturating_sub(self.since_open);
        let is_wanted = source.id <= keyspace.wanted_flush();
        if !self.is_on || is_wanted || !keyspace.watch.is_behind() || left.is_zero() {
            return false;
        }
        let view = keyspace.view();
        let limits = keyspace.limits();
        let defers = match source.mem.is_log_backed() {
            true => self.defers_log_backed(&view, source, &limits),
            false => self.leaves_values_soon(&view, source, &limits),
        };
        if defers {
            self.longest = self.longest.max(left);
            self.defers_any = true;
        }
        defers
    }

    fn defers_log_backed(&self, view: &KeyspaceView, source: &MemSource, limits: &Limits) -> bool {
        let (part, whole) = LOG_PART;
        let log_bytes = limits.log_bytes.max(limits.redirect_log_bytes);
        // A newer run cannot move down before this one is installed.
        let first_run = view.sources.iter().find(|s| matches!(s, Source::Run(_)));
        let is_below_run = first_run.is_some_and(|run| run.seqs().lo >= source.seqs().hi);
        self.log_bytes <= log_bytes / whole * part
            && view.log_backed_bytes <= limits.key_bytes()
            && view.log_backed_count as u64 <= COUNT_FACTOR * limits.l0_stop
            && !is_below_run
    }

    /// Whether the task of `jobs/log_backed.rs` is about to reach the memtable. If too many wait
    /// for that task, flushes help.
    fn leaves_values_soon(&self, view: &KeyspaceView, source: &MemSource, limits: &Limits) -> bool {
        let whole = (view.sealed_count - view.log_backed_count) as u64;
        view.sealed_count >= 2
            && whole < limits.sealed_memtables.max(2)
            && !source.keeps_values.load(Ordering::Acquire)
            && has_open_files_left(self.env)
    }

    /// Whether any flush is deferred.
    pub(super) fn defers_any(&self) -> bool {
        self.defers_any
    }

    /// Notes until when flushes are deferred, for compactions and for the task of
    /// `jobs/log_backed.rs`.
    pub(super) fn note(&self) {
        let env = self.env;
        if !self.longest.is_zero() {
            env.flush_load().set_deferring(env.now() + self.longest);
        }
    }
}

pub(super) fn has_open_files_left(env: &Env) -> bool {
    let open = env.storages().log.open_objects_max();
    let most = open.map_or(PINNED_MAX, |open| (open / OPEN_PART) as usize);
    env.segment_pins().count() + SEGMENTS_MAX <= most.min(PINNED_MAX)
}
