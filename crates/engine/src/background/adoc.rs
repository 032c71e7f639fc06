//! The policy `adoc` at work: once a second it looks at all keyspaces, and sets how many
//! compactions run at once and how large memtables are ([`crate::types::adoc`] and RFC 13,
//! section 8).
//!
//! Invariants: there are never more workers for compactions than the process has cores, unless
//! `background_tasks` asks for more. Under another policy everything is as the options say, after
//! at most a second.
//!
//! Threading: the maintenance task. The workers that it starts end by themselves.

use std::sync::Arc;
use std::time::Duration;

use siltstone_storage::{Instant, JoinHandle, Mutex};

use super::slots::Slots;
use super::worker::worker;
use crate::commit::admit::load_of;
use crate::jobs::work::Role;
use crate::services::parts::Parts;
use crate::tree::view::{KeyspaceCore, TunedMemtables};
use crate::types::adoc::{Overflow, Tuning, overflow, tune};
use crate::types::options::StallPolicy;

/// The time between two steps. (ADOC, FAST 2023, section 4.3.)
const STEP: Duration = Duration::from_secs(1);

/// A memtable has at most this part of the machine's memory.
const MEMORY_PART: u64 = 8;

/// See the module.
pub(super) struct Tuner {
    parts: Parts,
    slots: Option<Arc<Slots>>,
    /// The tasks of the store, which a close waits for.
    handles: Arc<Mutex<Vec<JoinHandle<()>>>>,
    /// The number of compactions at once, while the policy is `adoc`.
    compactions: Option<u32>,
    last_step: Instant,
    /// The largest memtable, in bytes.
    memtable_bytes_max: u64,
    /// The most compactions at once for which workers were started.
    workers: u32,
}

impl Tuner {
    pub(super) fn new(
        parts: &Parts,
        slots: Option<Arc<Slots>>,
        handles: Arc<Mutex<Vec<JoinHandle<()>>>>,
    ) -> Tuner {
        let memory = parts.env.runtime().memory_bytes();
        Tuner {
            parts: parts.clone(),
            slots,
            handles,
            compactions: None,
            last_step: parts.env.now(),
            memtable_bytes_max: memory.map_or(u64::MAX, |bytes| bytes / MEMORY_PART),
            workers: 0,
        }
    }

    /// The number of compactions that the store's usual workers can run at once.
    fn usual(&self) -> u32 {
        let tasks = self.parts.env.options().background_tasks;
        tasks.saturating_sub(1).max(1)
    }

    /// Takes a step if one is due.
    pub(super) fn step(&mut self) {
        let env = &self.parts.env;
        if env.live().stall_policy != StallPolicy::Adoc {
            if self.compactions.take().is_some() {
                self.parts.jobs.set_compactions_max(None);
                self.workers = 0;
                for keyspace in self.parts.catalog.keyspaces().by_id.values() {
                    keyspace.set_tuned_memtables(None);
                }
                env.work().notify();
            }
            return;
        }
        let now = env.now();
        if now.since(self.last_step) < STEP {
            return;
        }
        self.last_step = now;
        let usual = Tuning {
            compactions: self.usual(),
            memtable_shift: 0,
        };
        let cores = env.runtime().cores() as u32;
        let compactions_max = cores.max(usual.compactions);
        let compactions = self.compactions.unwrap_or(usual.compactions);
        let mut first: Option<Overflow> = None;
        for keyspace in self.parts.catalog.keyspaces().by_id.values() {
            let limits = keyspace.limits();
            let load = load_of(&self.parts.catalog, keyspace, &keyspace.view(), &limits);
            let own = overflow(&load, &limits);
            first = match (first, own) {
                (Some(a), Some(b)) => Some(a.min(b)),
                (a, b) => a.or(b),
            };
            let tuning = Tuning {
                compactions,
                memtable_shift: keyspace.memtable_shift(),
            };
            let tuned = tune(tuning, own, usual, compactions_max);
            self.set_memtables(keyspace, tuned.memtable_shift);
        }
        let tuning = Tuning {
            compactions,
            memtable_shift: 0,
        };
        let tuned = tune(tuning, first, usual, compactions_max).compactions;
        self.compactions = Some(tuned);
        self.parts.jobs.set_compactions_max(Some(tuned));
        self.start_workers(tuned, usual.compactions);
        self.parts.env.work().notify();
    }

    fn set_memtables(&self, keyspace: &KeyspaceCore, shift: i8) {
        let bytes = keyspace.settings().all.memtable_bytes;
        let wanted = match shift {
            0.. => bytes.saturating_mul(1 << shift),
            _ => bytes >> -shift,
        };
        if shift > 0 && wanted > self.memtable_bytes_max {
            return;
        }
        let tuned = (shift != 0).then(|| TunedMemtables {
            shift,
            arenas: self.parts.tree.arenas().of(wanted),
        });
        // The setting may have changed too.
        let is_new = |tuned: &TunedMemtables| {
            shift != keyspace.memtable_shift()
                || tuned.arenas.arena_bytes() as u64 != keyspace.limits().memtable_bytes
        };
        if tuned
            .as_ref()
            .map_or(keyspace.memtable_shift() != 0, is_new)
        {
            keyspace.set_tuned_memtables(tuned);
        }
    }

    /// Starts workers, so that this many compactions can run at once. If the system gives no
    /// thread, there are fewer.
    fn start_workers(&mut self, compactions: u32, usual: u32) {
        for number in self.workers.max(usual)..compactions {
            let (jobs, slots) = (self.parts.jobs.clone(), self.slots.clone());
            let run = move || worker(&jobs, slots.as_ref(), Role::Tuned, None);
            let env = &self.parts.env;
            let mut handles = self.handles.lock();
            // A close takes the handles after it has said that it closes.
            if env.is_closing() {
                return;
            }
            match env.runtime().spawn(&format!("silt-tuned-{number}"), run) {
                Ok(handle) => handles.push(handle),
                Err(_) => return,
            }
            drop(handles);
            self.workers = number + 1;
        }
    }
}
