//! A storage that fails on purpose and records a trace of the calls.
//!
//! [`FaultStorage`] wraps any [`Storage`]. [`Rule`]s say which [`Fault`] hits which call. While it
//! is disarmed, rules neither count nor fire. Call counts and the trace continue in either case.
//!
//! A failed call has no effect, except where the fault says otherwise. A failed sync loses the
//! bytes that it covered, unless it failed as unreachable, and a short append leaves a prefix. Both
//! need support from the storage below ([`WriteFile::inject`]): the memory storage supports both,
//! files support the short append.
//!
//! Threading: the mutex of the rules is held neither during a call of the storage below nor during
//! a wait. Concurrent calls are ordered by their entry for the rules, and by their end for the
//! trace.

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use xxhash_rust::xxh3::xxh3_64;

use crate::error::{Result, StorageError, StorageErrorKind};
use crate::op::{CallCounts, OpKind};
use crate::prng::Prng;
use crate::runtime::Runtime;
use crate::storage::{
    Capabilities, Epoch, Lease, ObjectMeta, ReadFile, SharedLease, Storage, WriteFile,
};

mod handle;
mod plan;
mod trace;

#[cfg(test)]
mod tests;

pub use plan::{Calls, Effect, Fault, Repeat, Rule};

use handle::{FaultReader, FaultWriter};
use plan::RuleState;
use trace::{Event, Trace};

/// A fault that fired.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fired {
    /// The rule's number, in the order of [`FaultStorage::add`], from 0.
    pub rule: usize,
    /// The number of the call among all calls through this storage, from 0.
    pub call: u64,
    /// The call's kind.
    pub kind: OpKind,
    /// The object's name.
    pub name: String,
    /// The fault that the rule injected.
    pub fault: Fault,
}

/// A [`Storage`] with faults. A clone is another handle to the same storage.
#[derive(Clone)]
pub struct FaultStorage {
    shared: Arc<Shared>,
}

struct Shared {
    inner: Arc<dyn Storage>,
    runtime: Runtime,
    control: Arc<Mutex<Control>>,
}

#[derive(Default)]
struct Control {
    armed: bool,
    rules: Vec<RuleState>,
    fired: Vec<Fired>,
    counts: CallCounts,
    trace: Option<Trace>,
}

/// What the rules decided for a call.
#[derive(Default)]
struct Verdict {
    delay: Duration,
    failure: Option<Failure>,
    short_read: bool,
    /// Byte ranges of the object that cannot be read.
    unreadable: Vec<Range<u64>>,
    failed_map: bool,
    panic: bool,
    die: bool,
    /// Offsets in the object, and the bits to flip there.
    flips: Vec<(u64, u8)>,
    /// Seeds of flips whose offset is drawn from the range that is read.
    random_flips: Vec<u64>,
}

#[derive(Clone, Copy)]
struct Failure {
    kind: StorageErrorKind,
    after: bool,
    short_per_mille: Option<u32>,
}

impl Failure {
    /// Whether a failed sync has lost what it should have made durable.
    fn loses(self) -> bool {
        self.kind != StorageErrorKind::Unreachable
    }

    fn error(self, kind: OpKind, name: &str) -> StorageError {
        let when = if self.after {
            "after the call had taken effect"
        } else {
            "by a fault rule"
        };
        StorageError::new(
            self.kind,
            kind.name(),
            name,
            format!("injected error, {when}"),
        )
    }
}

impl Verdict {
    /// Flips bits in `bytes`, which start at `offset` of the object.
    fn flip(&self, offset: u64, bytes: &mut [u8]) {
        for (at, mask) in &self.flips {
            let index = at.checked_sub(offset).and_then(|i| usize::try_from(i).ok());
            if let Some(byte) = index.and_then(|i| bytes.get_mut(i)) {
                *byte ^= mask;
            }
        }
        for seed in &self.random_flips {
            let mut rng = Prng::new(*seed);
            let bits = bytes.len() as u64 * 8;
            if bits > 0 {
                let bit = rng.below(bits);
                bytes[(bit / 8) as usize] ^= 1 << (bit % 8);
            }
        }
    }

    fn flips_anything(&self) -> bool {
        !self.flips.is_empty() || !self.random_flips.is_empty()
    }
}

impl Shared {
    fn control(&self) -> MutexGuard<'_, Control> {
        self.control.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Counts the call, applies the rules, and sleeps if they say so.
    fn enter(&self, kind: OpKind, name: &str) -> Verdict {
        let mut verdict = Verdict::default();
        let now = self.runtime.now();
        {
            let mut guard = self.control();
            let control = &mut *guard;
            let call = control.counts.total();
            control.counts.add(kind);
            if !control.armed {
                return verdict;
            }
            for (index, state) in control.rules.iter_mut().enumerate() {
                if !state.fires(kind, name, now) {
                    continue;
                }
                let fault = state.rule.fault;
                control.fired.push(Fired {
                    rule: index,
                    call,
                    kind,
                    name: name.to_owned(),
                    fault,
                });
                let mut fail = |kind, after, short_per_mille| {
                    verdict.failure.get_or_insert(Failure {
                        kind,
                        after,
                        short_per_mille,
                    });
                };
                match fault {
                    Fault::Fail(kind) => fail(kind, false, None),
                    Fault::FailAfter(kind) => fail(kind, true, None),
                    Fault::ShortAppend { per_mille, kind } => {
                        fail(kind, false, Some(per_mille.min(1000)))
                    }
                    Fault::ShortRead => verdict.short_read = true,
                    Fault::Unreadable { start, end } => verdict.unreadable.push(start..end),
                    Fault::FlipAt { offset, mask } => verdict.flips.push((offset, mask)),
                    Fault::FlipRandom { seed } => {
                        verdict
                            .random_flips
                            .push(seed ^ call.wrapping_mul(0x9E37_79B9_7F4A_7C15));
                    }
                    Fault::FailedMap => verdict.failed_map = true,
                    Fault::Panic => verdict.panic = true,
                    Fault::Die => verdict.die = true,
                    Fault::Unreachable { limit, effect } => {
                        let left = state.rule.until.map_or(Duration::MAX, |end| end.since(now));
                        if limit < left {
                            fail(
                                StorageErrorKind::Unreachable,
                                effect.is_taken(kind, call),
                                None,
                            );
                        }
                        verdict.delay = verdict.delay.saturating_add(limit.min(left));
                    }
                    Fault::Delay(delay) => verdict.delay = verdict.delay.saturating_add(delay),
                }
            }
        }
        if !verdict.delay.is_zero() {
            self.runtime.sleep(verdict.delay);
        }
        if verdict.die {
            self.runtime.die();
        }
        assert!(!verdict.panic, "injected panic: {} {name}", kind.name());
        verdict
    }

    fn traced(&self) -> bool {
        self.control().trace.is_some()
    }

    fn record(&self, event: &Event<'_>) {
        if let Some(trace) = &mut self.control().trace {
            trace.record(event);
        }
    }

    /// Makes a call that carries no bytes: applies the rules, calls `call`, and records the event.
    fn call<T>(
        &self,
        kind: OpKind,
        name: &str,
        at: u64,
        call: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        let verdict = self.enter(kind, name);
        let result = match verdict.failure {
            None => call(),
            Some(failure) if failure.after => call().and_then(|_| Err(failure.error(kind, name))),
            Some(failure) => Err(failure.error(kind, name)),
        };
        let outcome = result.as_ref().map(|_| ()).map_err(|e| e.kind);
        self.record(&Event {
            kind,
            name,
            at,
            len: 0,
            bytes: 0,
            outcome,
        });
        result
    }
}

impl FaultStorage {
    /// Wraps `inner`. The result is armed and has no rules. Delays use the clock of `runtime`.
    pub fn new(inner: Arc<dyn Storage>, runtime: &Runtime) -> FaultStorage {
        let control = Control {
            armed: true,
            ..Control::default()
        };
        FaultStorage {
            shared: Arc::new(Shared {
                inner,
                runtime: runtime.clone(),
                control: Arc::new(Mutex::new(control)),
            }),
        }
    }

    /// Wraps another storage with the same rules and counts, for a store with several folders that
    /// should fail as one.
    pub fn beside(&self, inner: Arc<dyn Storage>) -> FaultStorage {
        FaultStorage {
            shared: Arc::new(Shared {
                inner,
                runtime: self.shared.runtime.clone(),
                control: Arc::clone(&self.shared.control),
            }),
        }
    }

    /// The wrapped storage.
    pub fn inner(&self) -> &Arc<dyn Storage> {
        &self.shared.inner
    }

    /// Adds a rule, which counts calls from now on. Returns its number, from 0.
    pub fn add(&self, rule: Rule) -> usize {
        let mut control = self.shared.control();
        control.rules.push(RuleState::new(rule));
        control.rules.len() - 1
    }

    /// Removes all rules and forgets which faults fired.
    pub fn clear(&self) {
        let mut control = self.shared.control();
        control.rules.clear();
        control.fired.clear();
    }

    /// Makes the rules count and fire.
    pub fn arm(&self) {
        self.shared.control().armed = true;
    }

    /// Stops rules from counting and firing.
    pub fn disarm(&self) {
        self.shared.control().armed = false;
    }

    /// The faults that fired, in order.
    pub fn fired(&self) -> Vec<Fired> {
        self.shared.control().fired.clone()
    }

    /// The number of times that rule number `rule` fired.
    pub fn fired_count(&self, rule: usize) -> u64 {
        self.shared.control().rules.get(rule).map_or(0, |r| r.fired)
    }

    /// The number of calls so far, by kind, including failed ones.
    pub fn counts(&self) -> CallCounts {
        self.shared.control().counts
    }

    /// Starts a trace and discards an older one. With a log, it also keeps one line for each call.
    pub fn start_trace(&self, with_log: bool) {
        self.shared.control().trace = Some(Trace::new(with_log));
    }

    /// The digest of all calls since the trace began, with their bytes and outcomes. `None` without
    /// a trace.
    pub fn trace_digest(&self) -> Option<u64> {
        self.shared.control().trace.as_ref().map(Trace::digest)
    }

    /// The lines of the trace. Empty without a log.
    pub fn trace_log(&self) -> Vec<String> {
        self.shared
            .control()
            .trace
            .as_ref()
            .map(Trace::log)
            .unwrap_or_default()
    }

    /// Syncs an object by its name. A failed sync loses the bytes that it covered.
    fn sync_named(&self, name: &str, sync: impl FnOnce() -> Result<()>) -> Result<()> {
        let kind = OpKind::Sync;
        let verdict = self.shared.enter(kind, name);
        let result = match verdict.failure {
            None => sync(),
            Some(failure) if failure.after => sync().and_then(|()| Err(failure.error(kind, name))),
            Some(failure) => {
                if failure.loses() {
                    self.shared.inner.inject_lost_bytes(name);
                }
                Err(failure.error(kind, name))
            }
        };
        let outcome = result.as_ref().map(|_| ()).map_err(|e| e.kind);
        self.shared.record(&Event {
            kind,
            name,
            at: 0,
            len: 0,
            bytes: 0,
            outcome,
        });
        result
    }

    /// Makes a call that creates the object `name`. If it fails as unreachable and takes effect,
    /// the object is deleted again.
    fn create_with<T>(
        &self,
        (kind, seen, at): (OpKind, &str, u64),
        (epoch, name): (Epoch, &str),
        create: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        let mut is_made = false;
        let result = self.shared.call(kind, seen, at, || {
            let created = create();
            is_made = created.is_ok();
            created
        });
        if let Err(error) = &result
            && is_made
            && error.kind == StorageErrorKind::Unreachable
        {
            self.shared.inner.delete(epoch, name)?;
        }
        result
    }

    fn writer(&self, inner: Arc<dyn WriteFile>) -> Arc<dyn WriteFile> {
        Arc::new(FaultWriter::new(Arc::clone(&self.shared), inner))
    }
}

impl std::fmt::Debug for FaultStorage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let control = self.shared.control();
        f.debug_struct("FaultStorage")
            .field("inner", &self.shared.inner.describe())
            .field("armed", &control.armed)
            .field("rules", &control.rules)
            .finish_non_exhaustive()
    }
}

/// The name under which rules see [`Storage::sync_parents`], whose kind is [`OpKind::SyncDir`].
pub const PLACE: &str = "..";

/// A number that distinguishes the second names of two renames in a trace.
fn second(name: &str) -> u64 {
    xxh3_64(name.as_bytes())
}

impl Storage for FaultStorage {
    fn describe(&self) -> String {
        self.shared.inner.describe()
    }

    fn location(&self) -> String {
        self.shared.inner.location()
    }

    fn capabilities(&self) -> Capabilities {
        self.shared.inner.capabilities()
    }

    fn lease(&self, name: &str) -> Result<Box<dyn Lease>> {
        self.shared
            .call(OpKind::Lease, name, 0, || self.shared.inner.lease(name))
    }

    fn lease_shared(&self, name: &str) -> Result<Box<dyn SharedLease>> {
        self.shared.call(OpKind::LeaseShared, name, 0, || {
            self.shared.inner.lease_shared(name)
        })
    }

    fn create(&self, epoch: Epoch, name: &str) -> Result<Arc<dyn WriteFile>> {
        let call = || self.shared.inner.create(epoch, name);
        let file = self.create_with((OpKind::Create, name, 0), (epoch, name), call)?;
        Ok(self.writer(file))
    }

    fn create_direct(&self, epoch: Epoch, name: &str) -> Result<Arc<dyn WriteFile>> {
        let call = || self.shared.inner.create_direct(epoch, name);
        let file = self.create_with((OpKind::Create, name, 0), (epoch, name), call)?;
        Ok(self.writer(file))
    }

    fn open_direct(&self, name: &str) -> Result<Arc<dyn ReadFile>> {
        let call = || self.shared.inner.open_direct(name);
        let file = self.shared.call(OpKind::Open, name, 0, call)?;
        Ok(Arc::new(FaultReader::new(Arc::clone(&self.shared), file)))
    }

    fn check_direct(&self) -> Result<()> {
        self.shared.inner.check_direct()
    }

    fn recycle(&self, epoch: Epoch, old: &str, new: &str) -> Result<Arc<dyn WriteFile>> {
        let call = || self.shared.inner.recycle(epoch, old, new);
        let seen = (OpKind::Recycle, old, second(new));
        let file = self.create_with(seen, (epoch, new), call)?;
        Ok(self.writer(file))
    }

    fn reopen(&self, epoch: Epoch, name: &str, position: u64) -> Result<Arc<dyn WriteFile>> {
        let call = || self.shared.inner.reopen(epoch, name, position);
        let file = self.shared.call(OpKind::Open, name, 0, call)?;
        Ok(self.writer(file))
    }

    fn sync_object(&self, epoch: Epoch, name: &str) -> Result<()> {
        self.sync_named(name, || self.shared.inner.sync_object(epoch, name))
    }

    fn rewrite_object(&self, epoch: Epoch, name: &str) -> Result<()> {
        self.sync_named(name, || self.shared.inner.rewrite_object(epoch, name))
    }

    fn sync_parents(&self, epoch: Epoch) -> Result<()> {
        self.shared.call(OpKind::SyncDir, PLACE, 0, || {
            self.shared.inner.sync_parents(epoch)
        })
    }

    fn open(&self, name: &str) -> Result<Arc<dyn ReadFile>> {
        let file = self
            .shared
            .call(OpKind::Open, name, 0, || self.shared.inner.open(name))?;
        Ok(Arc::new(FaultReader::new(Arc::clone(&self.shared), file)))
    }

    fn list(&self) -> Result<Vec<ObjectMeta>> {
        self.shared
            .call(OpKind::List, "", 0, || self.shared.inner.list())
    }

    fn delete(&self, epoch: Epoch, name: &str) -> Result<()> {
        self.shared.call(OpKind::Delete, name, 0, || {
            self.shared.inner.delete(epoch, name)
        })
    }

    fn rename(&self, epoch: Epoch, old: &str, new: &str) -> Result<()> {
        self.shared.call(OpKind::Rename, old, second(new), || {
            self.shared.inner.rename(epoch, old, new)
        })
    }

    fn import(&self, epoch: Epoch, name: &str, from: &dyn Storage, from_name: &str) -> Result<()> {
        let seen = (OpKind::Import, name, second(from_name));
        self.create_with(seen, (epoch, name), || {
            self.shared.inner.import(epoch, name, from, from_name)
        })
    }

    fn publish(&self, epoch: Epoch, name: &str, bytes: &[u8]) -> Result<()> {
        self.shared.call(OpKind::Publish, name, xxh3_64(bytes), || {
            self.shared.inner.publish(epoch, name, bytes)
        })
    }

    fn base(&self) -> Option<&dyn std::any::Any> {
        self.shared.inner.base()
    }

    fn sync_dir(&self, epoch: Epoch) -> Result<()> {
        let kind = OpKind::SyncDir;
        let verdict = self.shared.enter(kind, "");
        let result = match verdict.failure {
            None => self.shared.inner.sync_dir(epoch),
            Some(failure) if failure.after => self
                .shared
                .inner
                .sync_dir(epoch)
                .and_then(|()| Err(failure.error(kind, "directory"))),
            Some(failure) => {
                if failure.loses() {
                    self.shared.inner.inject_lost_names();
                }
                Err(failure.error(kind, "directory"))
            }
        };
        let outcome = result.as_ref().map(|_| ()).map_err(|e| e.kind);
        self.shared.record(&Event {
            kind,
            name: "",
            at: 0,
            len: 0,
            bytes: 0,
            outcome,
        });
        result
    }

    fn replace(&self, epoch: Epoch, name: &str, bytes: &[u8]) -> Result<()> {
        self.shared.call(OpKind::Replace, name, xxh3_64(bytes), || {
            self.shared.inner.replace(epoch, name, bytes)
        })
    }

    fn counters(&self) -> Vec<(String, u64)> {
        self.shared.inner.counters()
    }

    fn free_bytes(&self) -> Option<u64> {
        self.shared.enter(OpKind::FreeBytes, "");
        self.shared.inner.free_bytes()
    }

    fn open_objects_max(&self) -> Option<u64> {
        self.shared.inner.open_objects_max()
    }

    fn inject_lost_names(&self) -> bool {
        self.shared.inner.inject_lost_names()
    }

    fn inject_lost_bytes(&self, name: &str) -> bool {
        self.shared.inner.inject_lost_bytes(name)
    }
}
