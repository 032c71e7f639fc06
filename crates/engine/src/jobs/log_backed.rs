//! Log as run: sealed memtables leave their large values in the log, so that their memory is free
//! before they are flushed, and their flushes wait until the burst is over (RFC 13, section 11).
//!
//! Invariants: a memtable is replaced while its mark `flushing` is set, so no flush of it begins
//! meanwhile; the mark is set and the view is replaced under the lock of the schedule. The memtable
//! holds the log until its flush is installed, so the segments exist when they are pinned. What is
//! read back is verified as a replay verifies it. If anything is not as expected, the memtable stays
//! as it is.
//!
//! Threading: one task builds log-backed memtables ([`leave_values`]). [`Deferral`] is asked under
//! the lock of the schedule. No I/O happens under that lock.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::catalog::KeyspaceMap;
use crate::env::Env;
use crate::env::segment_pins::SegmentPin;
use crate::formats::batch::Entry;
use crate::formats::log::format::segment_name;
use crate::formats::log::values::{ValueAddress, puts_of};
use crate::jobs::Jobs;
use crate::tree::memtable::Memtable;
use crate::tree::memtable::in_log::LogSegment;
use crate::tree::view::{KeyspaceCore, KeyspaceView, MemSource, Source};
use crate::types::error::Result;
use crate::types::options::StallPolicy;
use crate::types::pressure::Limits;

/// Values of at least this size are left in the log. A smaller one would hardly free memory, and a
/// flush would read it alone.
const LEAST_VALUE_BYTES: usize = 512;

/// The same in simulated runs, whose values are small.
const LEAST_SIMULATED_BYTES: usize = ValueAddress::BYTES + 8;

/// A memtable keeps its values if they lie in more segments than this.
const SEGMENTS_MAX: usize = 8;

/// The most segments that are pinned, and their files open, ...
const PINNED_MAX: usize = 256;

/// ... and the part (one divided by it) of the files that the storage can have open.
const OPEN_PART: u64 = 8;

/// Free segments that the log's storage has at least.
const LOG_SEGMENTS_FREE: u64 = 8;

/// A memtable keeps its values if the log between its first and its last record has more than this
/// many times its bytes.
const LOG_FACTOR: u64 = 4;

/// Flushes are not deferred if a keyspace has this many times as many log-backed memtables as level
/// 0 may have runs: each get looks at all of them.
const COUNT_FACTOR: u64 = 4;

/// A flush is deferred while the log has at most this part of the bytes at which writers stop.
const LOG_PART: (u64, u64) = (5, 8);

/// Whether memtables of this store may leave values in the log at all.
fn is_possible(env: &Env) -> bool {
    let live = env.live();
    let log = env.storages().log.capabilities();
    live.stall_policy == StallPolicy::Redirect
        && live.redirect_log_bytes_max > 0
        // Flushes that are behind go to the second location.
        && !env.locations().exists()
        && log.survives_kill
        && !log.pipelined
        && !env.health().is_no_space()
        && !env.health().is_poisoned()
        && !env.outage().is_unreachable()
        && !env.is_closing()
}

/// Whether there is room for what the flushes of log-backed memtables have to write, and for the
/// compactions after them.
fn has_room(env: &Env, map: &KeyspaceMap) -> bool {
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

/// Which flushes are deferred, as of one search for work.
pub(super) struct Deferral<'a> {
    jobs: &'a Jobs,
    /// Whether any may be.
    is_on: bool,
    since_open: Duration,
    log_bytes: u64,
    /// The longest time for which a flush is deferred, if nothing happens.
    longest: Duration,
    defers_any: bool,
}

impl Deferral<'_> {
    pub(super) fn now(jobs: &Jobs) -> Deferral<'_> {
        Deferral {
            jobs,
            is_on: is_possible(&jobs.env) && has_room(&jobs.env, &jobs.catalog.keyspaces()),
            since_open: jobs.commit.stalls().since_open(),
            log_bytes: jobs.catalog.log_bytes(),
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

    /// Whether the memtable is one of those that the task of this module is about to reach. If too
    /// many wait for it, flushes help.
    fn leaves_values_soon(&self, view: &KeyspaceView, source: &MemSource, limits: &Limits) -> bool {
        let whole = (view.sealed_count - view.log_backed_count) as u64;
        view.sealed_count >= 2
            && whole < limits.sealed_memtables.max(2)
            && !source.keeps_values.load(Ordering::Acquire)
            && has_open_files_left(&self.jobs.env)
    }

    /// Whether any flush is deferred.
    pub(super) fn defers_any(&self) -> bool {
        self.defers_any
    }

    /// Notes for compactions and for the task of this module until when flushes are deferred.
    pub(super) fn note(&self) {
        let env = &self.jobs.env;
        if !self.longest.is_zero() {
            env.flush_load().set_deferring(env.now() + self.longest);
        }
    }
}

fn has_open_files_left(env: &Env) -> bool {
    let open = env.storages().log.open_objects_max();
    let most = open.map_or(PINNED_MAX, |open| (open / OPEN_PART) as usize);
    env.segment_pins().count() + SEGMENTS_MAX <= most.min(PINNED_MAX)
}

/// The next memtable to leave its values in the log, marked as being flushed: of those that wait,
/// the one that needs the oldest part of the log.
fn take(jobs: &Jobs) -> Option<(Arc<KeyspaceCore>, Arc<MemSource>)> {
    let env = &jobs.env;
    if !is_possible(env) || !has_open_files_left(env) {
        return None;
    }
    let map = jobs.catalog.keyspaces();
    if !has_room(env, &map) {
        return None;
    }
    let log = &env.storages_at_once().log;
    let needed = LOG_SEGMENTS_FREE * env.options().log_segment_bytes;
    if log.free_bytes().is_some_and(|free| free < needed) {
        return None;
    }
    let since_open = jobs.commit.stalls().since_open();
    let _schedule = jobs.schedule.lock();
    let mut best: Option<(Arc<KeyspaceCore>, Arc<MemSource>)> = None;
    for keyspace in map.by_id.values() {
        let view = keyspace.view();
        // While one memtable waits or is flushed, the next one leaves its values.
        let is_burst = keyspace.watch.is_behind() && keyspace.watch.burst_ends() > since_open;
        if !keyspace.is_created() || !is_burst || view.sealed_count < 2 {
            continue;
        }
        let waits = |m: &&Arc<MemSource>| {
            !m.mem.is_log_backed()
                && m.id > keyspace.wanted_flush()
                && !m.flushing.load(Ordering::Acquire)
                && !m.held.load(Ordering::Acquire)
                && !m.keeps_values.load(Ordering::Acquire)
        };
        let Some(oldest) = view.sealed().rev().find(waits) else {
            continue;
        };
        let is_older =
            |(_, known): &(_, Arc<MemSource>)| oldest.first_position() < known.first_position();
        if best.as_ref().is_none_or(is_older) {
            best = Some((keyspace.clone(), oldest.clone()));
        }
    }
    if let Some((_, source)) = &best {
        source.flushing.store(true, Ordering::Release);
    }
    best
}

/// Leaves the values of one memtable in the log, if one waits for its flush while its keyspace is
/// behind. Returns whether there was one.
pub(crate) fn leave_values(jobs: &Jobs) -> bool {
    let Some((keyspace, source)) = take(jobs) else {
        return false;
    };
    let unmark = Unmark {
        jobs,
        source: &source,
    };
    // It is tried once, whatever happens.
    source.keeps_values.store(true, Ordering::Release);
    let made = build(jobs, &keyspace, &source);
    if let Err(error) = &made {
        tracing::debug!(keyspace = &*keyspace.name, %error, "values stay in memory");
    }
    if let Ok(Some(mem)) = made {
        install(jobs, &keyspace, &source, mem);
    }
    drop(unmark);
    true
}

/// Takes the mark off, also after a panic.
struct Unmark<'a> {
    jobs: &'a Jobs,
    source: &'a MemSource,
}

impl Drop for Unmark<'_> {
    fn drop(&mut self) {
        let schedule = self.jobs.schedule.lock();
        self.source.flushing.store(false, Ordering::Release);
        drop(schedule);
        self.jobs.env.work().notify();
        self.jobs.env.pressure().notify();
    }
}

/// The log-backed memtable. `None` if the values should stay in memory.
fn build(jobs: &Jobs, keyspace: &KeyspaceCore, source: &MemSource) -> Result<Option<Memtable>> {
    let (env, mem) = (&jobs.env, &source.mem);
    let least = match env.runtime().is_simulated() {
        true => LEAST_SIMULATED_BYTES,
        false => LEAST_VALUE_BYTES,
    };
    let (Some(first), last) = (source.first_position(), source.last_position()) else {
        return Ok(None);
    };
    if last <= first || mem.range_delete_count() > 0 {
        return Ok(None);
    }
    let large = mem.large_values(least);
    let left = mem.used_bytes().saturating_sub(large.bytes);
    let is_worth = match env.runtime().is_simulated() {
        true => large.count > 0,
        false => left <= mem.used_bytes() / 4,
    };
    let parts = jobs.wal.parts_between(first, last);
    let log_bytes = parts.iter().map(|part| u64::from(part.to - part.from));
    let is_long = log_bytes.sum::<u64>() > LOG_FACTOR * mem.used_bytes();
    if !is_worth || is_long || parts.len() > SEGMENTS_MAX {
        return Ok(None);
    }
    let storage = &env.storages_at_once().log;
    let numbers = source.seqs();
    let mut addresses: Vec<(u64, ValueAddress)> = Vec::with_capacity(large.count);
    let mut segments = Vec::with_capacity(parts.len());
    for part in &parts {
        // The memtable holds the log, so the segment exists.
        let pin = SegmentPin::new(env, part.segment);
        let file = pin.file(part.to.into(), || storage.open(&segment_name(part.segment)))?;
        let mut note = |sequence: u64, entry: &Entry<'_>, offset: u32| {
            let is_own =
                entry.keyspace == keyspace.id && sequence > numbers.lo && sequence <= numbers.hi;
            if is_own && entry.value.len() >= least {
                let address = ValueAddress {
                    segment: part.segment,
                    offset,
                    len: entry.value.len() as u32,
                    checksum: crc32c::crc32c(entry.value),
                };
                addresses.push((sequence, address));
            }
        };
        puts_of(&*file, part, jobs.wal.salt(), &mut note)?;
        segments.push(LogSegment::new(part.segment, file, pin));
    }
    if !addresses.is_sorted_by_key(|(sequence, _)| *sequence) {
        return Ok(None);
    }
    let made = mem.with_values_in_log(&keyspace.arenas(), &addresses, segments)?;
    // Entries without an address have kept their values.
    let is_same = made.entry_count() == mem.entry_count()
        && made.min_seq() == mem.min_seq()
        && made.max_seq() == mem.max_seq();
    let is_smaller = made.used_bytes() < mem.used_bytes();
    Ok((is_same && is_smaller).then_some(made))
}

/// Puts the log-backed memtable into the place of `source`, if that is still in the view.
fn install(jobs: &Jobs, keyspace: &KeyspaceCore, source: &Arc<MemSource>, mem: Memtable) {
    let bytes = mem.data_bytes();
    let mut is_installed = false;
    let schedule = jobs.schedule.lock();
    keyspace.replace_view(|view| {
        let mut unsettled = view.unsettled();
        let is_it = |s: &Source| matches!(s, Source::Memtable(m) if Arc::ptr_eq(m, source));
        let Some(at) = unsettled.iter().position(is_it) else {
            return view.clone();
        };
        is_installed = true;
        unsettled[at] = Source::Memtable(source.log_backed(mem));
        let version = view.version.clone();
        KeyspaceView::build(unsettled, version, jobs.tree.tables(), Some(view))
    });
    drop(schedule);
    if is_installed {
        let metrics = jobs.env.metrics();
        metrics.log_backed_count.add(1);
        metrics.log_backed_bytes.add(bytes);
        jobs.env.flush_load().progressed(bytes);
    }
}
