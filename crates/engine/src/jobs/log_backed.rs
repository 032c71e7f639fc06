//! Log as run: sealed memtables leave their large values in the log, so that their memory is free
//! before they are flushed, and their flushes wait until the burst is over (RFC 13, section 11).
//!
//! Invariants: a memtable is replaced while its mark `flushing` is set, so no flush of it begins
//! meanwhile; the mark is set and the view is replaced under the lock of the schedule. The memtable
//! holds the log until its flush is installed, so the segments exist when they are pinned. What is
//! read back is verified as a replay verifies it. If anything is not as expected, the memtable
//! stays as it is.
//!
//! Threading: one task builds log-backed memtables ([`leave_values`]). [`Deferral`] is asked under
//! the lock of the schedule. No I/O happens under that lock.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::env::segment_pins::SegmentPin;
use crate::formats::batch::Entry;
use crate::formats::log::format::segment_name;
use crate::formats::log::values::{ValueAddress, puts_of};
use crate::jobs::Jobs;
use crate::jobs::deferral::{
    SEGMENTS_MAX, has_open_files_left, has_room, is_memory_short, is_possible,
};
use crate::tree::memtable::Memtable;
use crate::tree::memtable::in_log::LogSegment;
use crate::tree::view::{KeyspaceCore, KeyspaceView, MemSource, Source};
use crate::types::error::Result;

/// Values of at least this size are left in the log. A smaller one would hardly free memory, and a
/// flush would read it alone.
const LEAST_VALUE_BYTES: usize = 512;

/// The same in simulated runs, whose values are small.
const LEAST_SIMULATED_BYTES: usize = ValueAddress::BYTES + 8;

/// Free segments that the log's storage has at least.
const LOG_SEGMENTS_FREE: u64 = 8;

/// A memtable keeps its values if the log between its first and its last record has more than this
/// many times its bytes.
const LOG_FACTOR: u64 = 4;

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
        // While one memtable waits or is flushed, the next one leaves its values. (A burst that
        // ends because its writers wait for memory is not over.)
        let is_burst =
            keyspace.watch.burst_ends() > since_open || is_memory_short(&view, &keyspace.limits());
        let is_behind = keyspace.watch.is_behind() && is_burst;
        if !keyspace.is_created() || !is_behind || view.sealed_count < 2 {
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
        // The memtable holds the log from its first record on, so the segment was not deleted.
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
