//! Where a flush writes its tables: at location 0, or, while memtables fill faster than they are
//! flushed, at the second location (RFC 13, section 10). Compactions always write to location 0.
//!
//! A flush goes where it is expected to end first. That is judged by the bytes of the flushes that
//! run at each location, and by how fast flushes there have been.
//!
//! Failures at the second location are failures of that location, and not of the store: the flush
//! runs again at location 0. A table there that a compaction could not read is left out by the next
//! picks, for a time that grows. A flush that hangs there is *abandoned*: its memtable is flushed
//! again at location 0, and what the late one makes is deleted when it ends. It keeps its task, so
//! another task stands in until then.
//!
//! Invariant: an abandoned flush installs nothing. Whether a flush to the second location is
//! abandoned and whether it begins to be installed is decided under the lock of the schedule.
//!
//! Threading: the lock of the schedule, under which no I/O happens.

use std::sync::atomic::Ordering;
use std::time::Duration;

use siltstone_storage::Instant;
use siltstone_table::exec::RemarkListener;

use crate::commit::flush_meter::UNMEASURED_BYTES_PER_S;
use crate::env::Env;
use crate::env::failures::JobKind;
use crate::formats::directories::REDIRECT;
use crate::jobs::Jobs;
use crate::jobs::location_states::{Blame, Load, Redirecting, Unused, ends_first};
use crate::jobs::schedule::{Running, Schedule};
use crate::jobs::take::flushes_max;
use crate::jobs::work::{Compaction, Placed, Reason, Role, Stage, What, Work};
use crate::tree::view::{KeyspaceCore, MemSource};
use crate::types::error::{Error, ErrorKind};
use crate::types::event::Event;
use crate::types::options::StallPolicy;

/// A flush at the second location has overrun if it takes this many times as long as expected.
const OVERRUN_FACTOR: u32 = 4;

/// It has not overrun before this time, whatever was expected.
const OVERRUN_LEAST: Duration = Duration::from_millis(200);

/// A flush that has overrun hangs if it has not progressed for this time.
const HANGS_AFTER: Duration = Duration::from_secs(5);

/// The log segments for which the second location leaves room if its disk has the log as well.
const SEGMENTS_LEFT: u64 = 4;

/// The memtables for which it leaves room.
const MEMTABLES_LEFT: u64 = 2;

/// Whether the second location has room for more flushes of memtables of this size.
fn has_room(env: &Env, memtable_bytes: u64) -> bool {
    let locations = env.locations();
    let mut needed = MEMTABLES_LEFT.saturating_mul(memtable_bytes);
    if locations.shares_disk() {
        let log = SEGMENTS_LEFT.saturating_mul(env.options().log_segment_bytes);
        needed = needed.saturating_add(log);
    }
    locations.free_bytes().is_none_or(|free| free >= needed)
}

/// Whether a flush may begin at the second location now.
fn is_usable(env: &Env, schedule: &Schedule, memtable_bytes: u64, now: Instant) -> bool {
    is_open(env, schedule, memtable_bytes, now)
        && !schedule.running().iter().any(|r| r.has_overrun(now))
}

/// Whether flushes may go to the second location at all, except while one has overrun there.
fn is_open(env: &Env, schedule: &Schedule, memtable_bytes: u64, now: Instant) -> bool {
    let (locations, states) = (env.locations(), &schedule.states);
    locations.exists()
        && env.live().stall_policy == StallPolicy::Redirect
        && !locations.is_lost()
        && !states.is_suspended(now)
        && !states.is_full(REDIRECT, now)
        && has_room(env, memtable_bytes)
}

impl Running {
    /// Whether this is a flush to the second location that takes much longer than was expected.
    pub(super) fn has_overrun(&self, now: Instant) -> bool {
        self.placed.as_ref().is_some_and(|placed| {
            let usual = Duration::from_nanos(placed.expected_ns).saturating_mul(OVERRUN_FACTOR);
            placed.location == REDIRECT && now.since(placed.begun) > usual.max(OVERRUN_LEAST)
        })
    }

    /// Whether this is a flush to the second location that hangs, or a compaction that reads tables
    /// there and hangs.
    fn hangs(&self, now: Instant) -> bool {
        let is_there = match self.kind {
            JobKind::Flush => self.has_overrun(now),
            JobKind::Compaction => {
                self.reads_redirected && !self.progress.is_paused.load(Ordering::Relaxed)
            }
        };
        // Nothing that is done to install it happens at the second location.
        is_there
            && self.placed.is_some()
            && self.stage.get() != Stage::Finishing
            && self.still_for(now) >= HANGS_AFTER
    }

    /// Whether its task can do nothing else because a call at the second location hangs.
    fn keeps_its_task(&self, now: Instant) -> bool {
        self.is_abandoned || self.hangs(now)
    }
}

/// The path of the second location, for events.
fn path_of_second(env: &Env) -> String {
    let redirect = env.storages().redirect.as_ref();
    redirect.map_or_else(String::new, |storage| storage.location())
}

/// Whether location 0 has hardly any room left for compactions, and the second one has more. Then
/// flushes leave it to them.
fn is_short(env: &Env, keyspace: &KeyspaceCore) -> bool {
    let second = env.locations().free_bytes();
    env.free_bytes()
        .is_some_and(|free| keyspace.is_short_of(free) && second.is_none_or(|second| second > free))
}

impl Schedule {
    /// Chooses the location of a flush that begins on the host now.
    pub(super) fn choose_location(
        &mut self,
        jobs: &Jobs,
        keyspace: &KeyspaceCore,
        source: &MemSource,
        placed: &mut Placed,
    ) {
        let env = jobs.env();
        if !env.locations().exists() || placed.side != jobs.runner().sides.host() {
            return;
        }
        let (now, bytes) = (env.now(), source.mem.data_bytes());
        let memtable_bytes = keyspace.limits().memtable_bytes;
        let stays_at_0 = source.stays_at_0.load(Ordering::Acquire);
        // A full location is not tried again at once, whatever a test asks for.
        let forced = self.forced_location;
        let forced = forced.filter(|location| !self.states.is_full(*location, now));
        let is_usable = || forced.is_some() || is_usable(env, self, memtable_bytes, now);
        if stays_at_0 || !is_usable() {
            return;
        }
        let is_flush_at = |location| {
            move |r: &&Running| {
                let placed = r.placed.as_ref();
                r.kind == JobKind::Flush
                    && !r.is_abandoned
                    && placed.is_some_and(|p| p.location == location)
            }
        };
        let first_rate = self.states.bytes_per_s(0).unwrap_or(UNMEASURED_BYTES_PER_S);
        let measured = self.states.believed_bytes_per_s(now);
        let rate = measured.unwrap_or(first_rate);
        let load = |location, bytes_per_s| Load {
            running_bytes: self
                .running()
                .iter()
                .filter(is_flush_at(location))
                .fold(0, |sum, r| sum + r.bytes),
            bytes_per_s,
        };
        let (first, redirect) = (load(0, first_rate), load(REDIRECT, rate));
        let count = self.running().iter().filter(is_flush_at(REDIRECT)).count();
        // If the second location hangs, one flush at least still runs at the first one. And as long
        // as it is not known how fast the second one is, one flush finds that out.
        let most = match measured {
            Some(_) => flushes_max(env) - 1,
            None => 1,
        };
        let location = match forced {
            Some(location) => location,
            None if self.states.is_full(0, now) => REDIRECT,
            None if is_short(env, keyspace) && count < most => REDIRECT,
            None if env.flush_load().is_behind() && count < most => {
                ends_first(first, redirect, bytes)
            }
            None => 0,
        };
        if location == 0 {
            return;
        }
        if measured.is_some() {
            self.states.note_chosen();
        }
        placed.location = location;
        placed.expected_ns = u64::try_from(redirect.ends_ns(bytes)).unwrap_or(u64::MAX);
        if self.states.redirecting.is_none() {
            self.states.redirecting = Some(Redirecting {
                since: now,
                flushed_bytes: 0,
            });
            env.events().emit(|| Event::RedirectBegan {
                place: path_of_second(env),
            });
        }
    }
}

impl Schedule {
    /// Abandons the flushes that hang at the second location.
    pub(super) fn abandon_hanging(&mut self, env: &Env) {
        if !env.locations().exists() {
            return;
        }
        let now = env.now();
        self.note_reads(now);
        let mut count = 0;
        for running in self.running_mut() {
            let is_flush = running.kind == JobKind::Flush;
            if !is_flush || running.is_abandoned || !running.hangs(now) {
                continue;
            }
            count += 1;
            running.is_abandoned = true;
            running.cancel.cancel();
            running
                .remark
                .remark("it hangs, and its memtable is flushed at location 0");
            if let Some(source) = running.memtable.upgrade() {
                source.stays_at_0.store(true, Ordering::Release);
                source.end_flush();
                source.flushing.store(false, Ordering::Release);
            }
        }
        for _ in 0..count {
            env.metrics().abandoned_flush_count.add(1);
            let why = format!("a flush has not progressed for {} s", HANGS_AFTER.as_secs());
            let error = Error::new(ErrorKind::Io, why).advice("look at the disk of this folder");
            self.flush_failed(env, &error, now);
        }
        if count > 0 {
            env.work().notify();
            env.maintenance().notify();
        }
    }

    /// Whether a flush was abandoned whose call has not returned yet.
    pub(super) fn has_abandoned(&self) -> bool {
        self.running().iter().any(|r| r.is_abandoned)
    }

    /// The tables of a keyspace that picks leave out now: those that could not be read, and, while
    /// a compaction hangs that reads tables at the second location, all that are there.
    pub(super) fn left_out(&self, keyspace: &KeyspaceCore, now: Instant) -> Vec<u64> {
        let mut left_out = self.states.unread(now);
        let is_compaction = |r: &Running| r.kind == JobKind::Compaction;
        if self
            .running()
            .iter()
            .any(|r| is_compaction(r) && r.hangs(now))
        {
            let view = keyspace.view();
            let tables = view.version.tables();
            let there = tables.filter(|(_, table)| table.location != 0);
            left_out.extend(there.map(|(_, table)| table.id));
        }
        left_out
    }

    /// Whether this work was abandoned.
    pub(super) fn is_abandoned(&self, id: u64) -> bool {
        self.running()
            .iter()
            .any(|r| r.is_abandoned && r.id() == id)
    }

    /// A flush to the second location has failed.
    fn flush_failed(&mut self, env: &Env, error: &Error, now: Instant) {
        let states = &mut self.states;
        states.pauses.ended(false, now);
        let unused = match env.locations().is_lost() {
            true => Some(Unused::Lost),
            false => states.pauses.until().map(Unused::Until),
        };
        // A longer suspension is a new one.
        if unused.is_some() && states.reported != unused {
            states.reported = unused;
            let for_us = match unused {
                Some(Unused::Until(until)) => Some(until.since(now).as_micros() as u64),
                _ => None,
            };
            env.metrics().location_suspended_count.add(1);
            // Whoever lost it has reported that (`env/locations.rs`).
            if for_us.is_some() {
                env.events().emit(|| Event::LocationSuspended {
                    place: path_of_second(env),
                    error: error.clone(),
                    for_us,
                });
            }
        }
    }
}

impl Jobs {
    /// Abandons the flushes that hang at the second location.
    pub(crate) fn abandon_hanging(&self) {
        if self.env().locations().exists() {
            self.schedule.lock().abandon_hanging(self.env());
        }
    }

    /// Marks work as being installed. Returns false if it was abandoned.
    pub(super) fn begin_to_finish(&self, work: &Work) -> bool {
        let is_redirected = work.placed.location == REDIRECT;
        let schedule = is_redirected.then(|| self.schedule.lock());
        let is_abandoned = schedule.as_ref().is_some_and(|s| s.is_abandoned(work.id));
        if !is_abandoned {
            work.stage.set(Stage::Finishing);
        }
        !is_abandoned
    }

    /// The work whose tasks hang and have no stand-in yet, with the roles of these tasks. They have
    /// one from now on.
    pub(crate) fn without_stand_in(&self) -> Vec<(u64, Role)> {
        if !self.env().locations().exists() {
            return Vec::new();
        }
        let now = self.env().now();
        let mut schedule = self.schedule.lock();
        let with_role = |running: &mut Running| {
            let hangs = running.keeps_its_task(now);
            let had_one = std::mem::replace(&mut running.has_stand_in, hangs);
            let role = running.placed.as_ref()?.role?;
            (hangs && !had_one).then_some((running.id(), role))
        };
        let running = schedule.running_mut().iter_mut();
        running.filter_map(with_role).collect()
    }

    /// Whether the task of this work hangs.
    pub(crate) fn hangs(&self, id: u64) -> bool {
        let now = self.env().now();
        let schedule = self.schedule.lock();
        let mut running = schedule.running().iter();
        running.any(|r| r.id() == id && r.keeps_its_task(now))
    }

    /// The number of tasks that hang.
    pub(crate) fn hanging_count(&self) -> usize {
        let now = self.env().now();
        let schedule = self.schedule.lock();
        let running = schedule.running().iter();
        running.filter(|r| r.keeps_its_task(now)).count()
    }

    /// Finds out whose failure it is that work failed, and remembers it.
    pub(crate) fn blame(&self, work: &Work, error: &Error) -> Blame {
        let env = self.env();
        let is_unwanted = matches!(
            error.kind(),
            ErrorKind::Closed | ErrorKind::KeyspaceDropped | ErrorKind::Poisoned
        );
        // A job that was done could not be installed: the manifest or the log has failed.
        let is_done = work.stage.get() == Stage::Finishing;
        if !env.locations().exists() || is_unwanted || is_done {
            return Blame::Store;
        }
        let now = env.now();
        let memtable_bytes = work.keyspace.limits().memtable_bytes;
        let mut schedule = self.schedule.lock();
        if schedule.is_abandoned(work.id) {
            return Blame::Location;
        }
        let is_no_space = error.kind() == ErrorKind::NoSpace;
        match &work.what {
            What::Flush(_) if work.placed.location == REDIRECT && is_no_space => {
                schedule.states.set_full(REDIRECT, now);
                Blame::Location
            }
            What::Flush(source) if work.placed.location == REDIRECT => {
                source.stays_at_0.store(true, Ordering::Release);
                schedule.flush_failed(env, error, now);
                Blame::Location
            }
            What::Flush(source) if is_no_space => {
                let stays = source.stays_at_0.load(Ordering::Acquire);
                if stays || !is_usable(env, &schedule, memtable_bytes, now) {
                    return Blame::Store;
                }
                schedule.states.set_full(0, now);
                Blame::Location
            }
            What::Compaction(_) if is_no_space => {
                if !is_usable(env, &schedule, memtable_bytes, now) {
                    return Blame::Store;
                }
                Blame::Room
            }
            What::Compaction(compaction) => {
                let unread = unread_inputs(compaction, error);
                for id in &unread {
                    schedule.states.note_unread(*id, now);
                }
                if unread.is_empty() {
                    let tables = compaction.choice.tables();
                    let there = tables.filter(|table| table.location != 0);
                    let ids = there.map(|table| table.id);
                    schedule.states.note_unexplained(ids, now);
                }
                match unread.is_empty() || compaction.reason == Reason::Manual {
                    true => Blame::Store,
                    false => Blame::Tables,
                }
            }
            What::Flush(_) => Blame::Store,
        }
    }

    /// A flush was installed at the location where it was placed.
    pub(super) fn note_flushed(&self, work: &Work, begun: Instant, bytes: u64) {
        let env = self.env();
        if !env.locations().exists() {
            return;
        }
        let location = work.placed.location;
        // A small one says little of the rate: its time is that of the syncs.
        let measures = bytes >= work.keyspace.limits().memtable_bytes / 2;
        let mut schedule = self.schedule.lock();
        schedule
            .states
            .flushed(location, (begun, env.now()), bytes, measures);
        if location == REDIRECT {
            env.metrics().redirected_flush_count.add(1);
            env.metrics().redirected_flush_bytes.add(bytes);
            if schedule.states.reported.take().is_some() {
                env.events().emit(|| Event::LocationUsedAgain {
                    place: path_of_second(env),
                });
            }
        }
    }

    /// Whether flushes may go to the second location.
    pub(crate) fn may_redirect(&self, memtable_bytes: u64) -> bool {
        let env = self.env();
        env.locations().exists() && is_open(env, &self.schedule.lock(), memtable_bytes, env.now())
    }

    /// Notes that no flush goes to the second location any more, if that is so. `is_short` says
    /// whether location 0 has hardly any room.
    pub(crate) fn end_redirect(&self, is_short: bool) {
        let env = self.env();
        if !env.locations().exists() {
            return;
        }
        let now = env.now();
        let mut schedule = self.schedule.lock();
        let at_redirect = |r: &Running| {
            let placed = r.placed.as_ref();
            placed.is_some_and(|p| p.location == REDIRECT) && !r.is_abandoned
        };
        if schedule.states.redirecting.is_none()
            || schedule.running().iter().any(at_redirect)
            || is_short
            || schedule.states.is_full(0, now)
            || env.flush_load().is_behind()
        {
            return;
        }
        if let Some(ended) = schedule.states.redirecting.take() {
            env.events().emit(|| Event::RedirectEnded {
                place: path_of_second(env),
                lasted_us: now.since(ended.since).as_micros() as u64,
                flushed_bytes: ended.flushed_bytes,
            });
        }
    }
}

/// The tables at the second location that a compaction with this error could not read.
fn unread_inputs(compaction: &Compaction, error: &Error) -> Vec<u64> {
    let named = |name: &str| {
        error.file() == Some(name)
            || error
                .storage()
                .is_some_and(|error| error.name.rsplit('/').next() == Some(name))
    };
    let inputs = compaction.choice.tables();
    let inputs = inputs.filter(|table| table.location != 0 && named(&table.name));
    inputs.map(|table| table.id).collect()
}
