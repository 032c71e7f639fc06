//! The journal of one run: every change in order, and marks between them.
//!
//! One run thus gives the image after each of its calls. A [`JournalReplay`] moves forward through
//! the changes and copies only pointers, so recovering from every prefix costs one replay each, not
//! one run each.

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
    /// The number of changes before it. A crash after `n` changes comes after the marks with
    /// `at <= n`.
    pub at: u64,
    /// The label that was given to [`MemoryStorage::mark`].
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

/// Moves forward through a journal and makes images at its present position.
pub struct JournalReplay {
    pub(super) state: State,
    pub(super) changes: Arc<[Change]>,
    pub(super) marks: Vec<Mark>,
    pub(super) at: u64,
    pub(super) runtime: Runtime,
    pub(super) name: String,
    pub(super) capacity: Option<u64>,
}

impl JournalReplay {
    /// The number of changes in the journal.
    pub fn len(&self) -> u64 {
        self.changes.len() as u64
    }

    /// Whether the run changed nothing.
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    /// The number of applied changes.
    pub fn position(&self) -> u64 {
        self.at
    }

    /// The kind of the change number `n` (counted from 0).
    pub fn kind(&self, n: u64) -> Option<OpKind> {
        self.changes.get(usize::try_from(n).ok()?).map(|c| c.kind)
    }

    /// All marks, in order.
    pub fn marks(&self) -> &[Mark] {
        &self.marks
    }

    /// The marks before the present position.
    pub fn marks_so_far(&self) -> &[Mark] {
        &self.marks[..self.marks.partition_point(|m| m.at <= self.at)]
    }

    /// Applies changes until `n` (or all) are applied. A replay never moves back.
    pub fn advance_to(&mut self, n: u64) {
        while self.at < n.min(self.len()) {
            self.state.apply(&self.changes[self.at as usize].effect);
            self.at += 1;
        }
    }

    /// The storage as a power loss at the present position leaves it.
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

    /// The storage as a kill of the process at the present position leaves it: everything is there,
    /// and unsynced data is still unsynced.
    pub fn kill_in(&self, runtime: &Runtime) -> MemoryStorage {
        MemoryStorage::from_state(runtime, &self.name, self.state.killed(), self.capacity)
    }

    /// The state partway through the next change. Only an append (by a system call that is
    /// interrupted, or by stores through a map, which happen in any order) and a reservation can be
    /// interrupted partway.
    fn within(&self, seed: u64, report: &mut CrashReport) -> Option<State> {
        let change = self.changes.get(usize::try_from(self.at).ok()?)?;
        let parts = part_of(&change.effect, &self.state, &mut Prng::new(seed), report)?;
        let mut state = self.state.image();
        parts.iter().for_each(|part| state.apply(part));
        Some(state)
    }

    /// The storage as a kill partway through the next change leaves it, and a report of what the
    /// change left. `None` if the change cannot be interrupted partway.
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

    /// The storage as a power loss partway through the next change leaves it. `None` if the change
    /// cannot be interrupted partway.
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
