//! When the detector is asked: when a memtable is sealed, when a job of its keyspace is installed,
//! and once a second while it says that writers are about to wait.
//!
//! A keyspace is *behind* if its memtables fill faster than they are flushed: from the moment on
//! when a memtable is sealed while another one is still not flushed, until none is left. Then
//! flushes come before compactions (RFC 13, section 5).
//!
//! Threading: any task. No I/O.

use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::commit::Commit;
use crate::commit::admit::load_of;
use crate::commit::flush_meter::UNMEASURED_BYTES_PER_S;
use crate::tree::view::KeyspaceCore;
use crate::tree::watch::Change;
use crate::types::detect::{Bounds, Sample};
use crate::types::event::Event;
use crate::types::options::StallPolicy;
use crate::types::pressure::{Limits, Load};

/// What has happened to a keyspace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Happened {
    /// A memtable with these bytes was sealed.
    Sealed(u64),
    /// A memtable with these bytes was flushed.
    Flushed(u64),
    /// A compaction was installed, or a second has passed.
    Nothing,
}

impl Commit {
    /// Asks the detector about a keyspace to which something has happened.
    pub(crate) fn observe(&self, keyspace: &KeyspaceCore, happened: Happened) {
        let watch = &keyspace.watch;
        match happened {
            Happened::Sealed(bytes) => {
                watch.sealed_bytes.fetch_add(bytes, Ordering::Relaxed);
                watch.set_last_sealed(self.stalls.since_open());
            }
            Happened::Flushed(bytes) => {
                watch.flushed_bytes.fetch_add(bytes, Ordering::Relaxed);
            }
            Happened::Nothing => {}
        }
        let now = self.look(keyspace);
        let (load, limits) = (now.load, now.limits);
        let behind = match happened {
            Happened::Sealed(bytes) if begins(&load, &limits, bytes) => true,
            _ => watch.is_behind() && load.sealed_memtable_count > 0,
        };
        if watch.set_behind(behind, now.sample.at_us) {
            self.env.flush_load().set_behind(behind);
        }
        match watch.observe(now.sample, &now.bounds, now.flush) {
            Change::None => {}
            Change::Began(limit) => self.env.events().emit(|| Event::StallAheadBegan {
                keyspace: keyspace.name.clone(),
                limit,
            }),
            Change::Ended(lasted_us) => self.env.events().emit(|| Event::StallAheadEnded {
                keyspace: keyspace.name.clone(),
                lasted_us,
            }),
        }
        // A drop may have forgotten the keyspace since this began. `Watch::observe` has the lock of
        // `Watch::end`, so either the drop is seen here, or what was set here is seen there.
        if keyspace.is_dropped() {
            self.forget(keyspace);
        }
    }
}

/// Whether a keyspace is behind when a memtable with these bytes was sealed: another one that has
/// at least half of the usual bytes is not flushed yet.
fn begins(load: &Load, limits: &Limits, bytes: u64) -> bool {
    let full = limits.memtable_bytes;
    let others = load.sealed_bytes.saturating_sub(bytes.min(full));
    let is_second = load.sealed_memtable_count >= 2 && others >= full / 2;
    limits.sealed_memtables <= 1 || is_second
}

/// A keyspace at one moment, as the detector sees it.
pub(crate) struct Look {
    load: Load,
    limits: Limits,
    pub(crate) sample: Sample,
    pub(crate) bounds: Bounds,
    /// How long the flush of a memtable takes.
    pub(crate) flush: Duration,
}

impl Commit {
    /// What the detector sees of a keyspace now.
    pub(crate) fn look(&self, keyspace: &KeyspaceCore) -> Look {
        let (view, watch, limits) = (keyspace.view(), &keyspace.watch, keyspace.limits());
        let load = load_of(&self.catalog, keyspace, &view, &limits);
        let active = view.active().mem.used_bytes();
        let sample = Sample {
            at_us: self.stalls.since_open().as_micros() as u64,
            written_bytes: watch.sealed_bytes.load(Ordering::Relaxed) + active,
            flushed_bytes: watch.flushed_bytes.load(Ordering::Relaxed),
            memory_bytes: memory_bytes(&load, &limits, active),
            depth: load.l0_depth,
            pending_bytes: load.pending_bytes,
            log_bytes: load.log_bytes,
            free_bytes: self.env.free_for_writers(),
        };
        let rate = self.stalls.flush_bytes_per_s();
        let rate = rate.unwrap_or(UNMEASURED_BYTES_PER_S).max(1);
        let flush_us = u128::from(limits.memtable_bytes) * 1_000_000 / u128::from(rate);
        Look {
            load,
            limits,
            sample,
            bounds: bounds(&limits, &load),
            flush: Duration::from_micros(flush_us.min(u128::from(u64::MAX)) as u64),
        }
    }
}

/// The memory that counts: that of the sealed memtables and of the active one, each at most a full
/// memtable, and what log-backed ones take beyond their own part. Without a sealed memtable nobody
/// waits for memory.
fn memory_bytes(load: &Load, limits: &Limits, active: u64) -> u64 {
    let keys = load.log_backed_memory_bytes;
    let keys = keys.saturating_sub(limits.key_bytes());
    let all = load.sealed_bytes + active.min(limits.memtable_bytes) + keys;
    match load.sealed_memtable_count {
        0 => all.min(limits.memory_bytes().saturating_sub(1)),
        _ => all,
    }
}

impl Commit {
    /// The keyspace was dropped. Its writers that wait are woken, and a stall that was ahead is not
    /// any more.
    pub(crate) fn forget(&self, keyspace: &KeyspaceCore) {
        self.stalls.forget(keyspace.id);
        let now_us = self.stalls.since_open().as_micros() as u64;
        if let Some(lasted_us) = keyspace.watch.end(now_us) {
            self.env.events().emit(|| Event::StallAheadEnded {
                keyspace: keyspace.name.clone(),
                lasted_us,
            });
        }
        if keyspace.watch.set_behind(false, now_us) {
            self.env.flush_load().set_behind(false);
        }
    }
}

/// The limits at which writers of a keyspace wait or are slowed down.
fn bounds(limits: &Limits, load: &Load) -> Bounds {
    let (depth, pending_bytes) = match limits.policy {
        StallPolicy::Stop => (limits.l0_stop, limits.pending_stop),
        StallPolicy::Slowdown | StallPolicy::Adoc => (limits.l0_slowdown, limits.pending_slowdown),
        StallPolicy::Redirect => (limits.l0_stop, limits.pending_slowdown),
    };
    Bounds {
        memory_bytes: limits.memory_bytes(),
        depth,
        pending_bytes,
        log_bytes: limits.log_limit(load),
        // Only `redirect` limits writers for this.
        free_bytes: match limits.policy {
            StallPolicy::Redirect => load.job_bytes.saturating_mul(3),
            _ => 0,
        },
    }
}
