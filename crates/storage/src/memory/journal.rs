//! The journal of one run: every change with a running number, and marks at their place among them.
//!
//! With it, one run gives the image after each of its calls: [`Replay`] goes forward through the changes and copies
//! nothing but pointers, so recovering from every prefix costs a replay each, not a run each.

use std::sync::Arc;

use super::MemoryStorage;
use super::crash::{CrashPolicy, CrashReport, crash, part_of};
use super::state::{Effect, State};
use crate::op::OpKind;
use crate::prng::Prng;
use crate::runtime::Runtime;

/// A mark in a journal, for example an acknowledgement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mark {
    /// How many changes came before it. A crash after `n` changes knows of the marks with `at <= n`.
    pub at: u64,
    /// What the marker said.
    pub label: String,
}

#[derive(Clone)]
pub(super) struct Change {
    pub(super) kind: OpKind,
    pub(super) effect: Effect,
}

#[derive(Clone)]
pub(super) struct Journal {
    pub(super) base: State,
    pub(super) changes: Vec<Change>,
    pub(super) marks: Vec<Mark>,
}

/// Walks forward through a journal and gives images of what it passes.
pub struct Replay {
    pub(super) state: State,
    pub(super) changes: Arc<[Change]>,
    pub(super) marks: Vec<Mark>,
    pub(super) at: u64,
    pub(super) runtime: Runtime,
    pub(super) name: String,
    pub(super) capacity: Option<u64>,
}

impl Replay {
    /// How many changes the journal has.
    pub fn len(&self) -> u64 {
        self.changes.len() as u64
    }

    /// Whether nothing changed in the run.
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    /// How many changes are applied.
    pub fn position(&self) -> u64 {
        self.at
    }

    /// The kind of change number `n` (from 0).
    pub fn kind(&self, n: u64) -> Option<OpKind> {
        self.changes.get(usize::try_from(n).ok()?).map(|c| c.kind)
    }

    /// All marks, in order.
    pub fn marks(&self) -> &[Mark] {
        &self.marks
    }

    /// The marks that had been made when the first `position()` changes had happened.
    pub fn marks_so_far(&self) -> &[Mark] {
        &self.marks[..self.marks.partition_point(|m| m.at <= self.at)]
    }

    /// Applies changes until `n` (or all) are applied. It never goes back.
    pub fn advance_to(&mut self, n: u64) {
        while self.at < n.min(self.len()) {
            self.state.apply(&self.changes[self.at as usize].effect);
            self.at += 1;
        }
    }

    /// The storage as a power loss right here leaves it.
    pub fn crash(&self, policy: CrashPolicy) -> (MemoryStorage, CrashReport) {
        self.crash_in(&self.runtime, policy)
    }

    /// As `crash`, for another runtime.
    pub fn crash_in(&self, runtime: &Runtime, policy: CrashPolicy) -> (MemoryStorage, CrashReport) {
        let (state, report) = crash(&self.state, policy);
        (
            MemoryStorage::from_state(runtime, &self.name, state, self.capacity),
            report,
        )
    }

    /// The storage as a kill of the process right here leaves it: everything is there, unsynced things are still
    /// unsynced.
    pub fn kill_in(&self, runtime: &Runtime) -> MemoryStorage {
        MemoryStorage::from_state(runtime, &self.name, self.state.killed(), self.capacity)
    }

    /// The state in the middle of the next change, if it is one that has a middle: an append (by a call that is cut off, or by stores through a
    /// map, which land in any order), or space that is being reserved.
    fn within(&self, seed: u64, report: &mut CrashReport) -> Option<State> {
        let change = self.changes.get(usize::try_from(self.at).ok()?)?;
        let parts = part_of(&change.effect, &self.state, &mut Prng::new(seed), report)?;
        let mut state = self.state.image();
        parts.iter().for_each(|part| state.apply(part));
        Some(state)
    }

    /// The storage as a kill in the middle of the next change leaves it, with what became of that change. `None` if it has no middle.
    pub fn kill_within(
        &self,
        runtime: &Runtime,
        seed: u64,
    ) -> Option<(MemoryStorage, CrashReport)> {
        let mut report = CrashReport::default();
        let state = self.within(seed, &mut report)?.killed();
        let storage = MemoryStorage::from_state(runtime, &self.name, state, self.capacity);
        Some((storage, report))
    }

    /// The storage as a power loss in the middle of the next change leaves it. `None` if it has no middle.
    pub fn crash_within(
        &self,
        runtime: &Runtime,
        policy: CrashPolicy,
        seed: u64,
    ) -> Option<(MemoryStorage, CrashReport)> {
        let mut part = CrashReport::default();
        let state = self.within(seed, &mut part)?;
        let (state, mut report) = crash(&state, policy);
        report.merge(&part);
        let storage = MemoryStorage::from_state(runtime, &self.name, state, self.capacity);
        Some((storage, report))
    }
}
