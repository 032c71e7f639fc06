//! Answers to changes of names whose callers gave up. They are kept until the same call is made
//! again.
//!
//! A creation that is answered late leaves an open object on the device. If nobody claims the
//! object for a minute, it is closed there, and a caller that claims it later opens it again. It
//! stays empty until then.
//!
//! Invariants: the answer to a sync is not kept (`names.rs`). An answer is given to a caller once.
//! A change of the same names makes an answer forgotten. At most [`UNCLAIMED_MAX`] answers are
//! kept, and every open object that nobody can claim any more is closed.
//!
//! Threading: plain data, which belongs to the lane of names.

use std::time::Duration;

use siltstone_storage::Instant;

use super::names::Changed;
use crate::wire::Answer;
use crate::wire::request::NamesChange;

/// The maximum number of answers that are kept.
const UNCLAIMED_MAX: usize = 64;

/// How long an unclaimed object stays open.
const OPEN_TIME: Duration = Duration::from_secs(60);

/// The answer to a call that gave up.
pub(super) struct Answered {
    pub(super) change: NamesChange,
    /// The epoch of the lease with which the change was made.
    epoch: u64,
    bulk: Vec<u8>,
    pub(super) answer: Answer,
    since: Instant,
    /// The state of the server in which the object that the call opened is still open. `None` if
    /// the call opened none, or if the object was closed because nobody claimed it.
    open_in: Option<[u8; 16]>,
}

impl Answered {
    /// The open object that nobody has claimed yet.
    fn open_object(&self) -> Option<u64> {
        self.open_in.and_then(|_| object_of(&self.change))
    }

    /// Whether the object that the call opened is not open in this state of the server.
    pub(super) fn must_open_again(&self, state: [u8; 16]) -> bool {
        matches!(self.answer, Answer::Opened { .. }) && self.open_in != Some(state)
    }
}

/// See the module.
#[derive(Default)]
pub(super) struct Unclaimed {
    answers: Vec<Answered>,
    /// Objects that are open and that nobody can claim any more.
    stale: Vec<u64>,
}

impl Unclaimed {
    /// Keeps the answer to a call that gave up.
    pub(super) fn push(
        &mut self,
        change: NamesChange,
        (epoch, bulk): (u64, Vec<u8>),
        changed: Changed,
        now: Instant,
    ) {
        let is_open = matches!(changed.answer, Answer::Opened { .. });
        self.put_back(Answered {
            change,
            epoch,
            bulk,
            answer: changed.answer,
            since: now,
            open_in: is_open.then_some(changed.state),
        });
        if self.answers.len() > UNCLAIMED_MAX {
            let oldest = self.answers.remove(0);
            self.stale.extend(oldest.open_object());
        }
    }

    /// Takes the answer to an earlier call that is the same as this one. An answer to a call under
    /// another lease is forgotten, because another host may have changed the names since.
    pub(super) fn find(
        &mut self,
        change: &NamesChange,
        bulk: &[u8],
        epoch: u64,
    ) -> Option<Answered> {
        let is_it = |old: &Answered| is_same(&old.change, change) && old.bulk == bulk;
        let at = self.answers.iter().position(is_it)?;
        let found = self.answers.remove(at);
        if found.epoch == epoch {
            return Some(found);
        }
        self.stale.extend(found.open_object());
        None
    }

    /// Keeps an answer that was taken but could not be given to the caller.
    pub(super) fn put_back(&mut self, answered: Answered) {
        self.answers.push(answered);
    }

    /// Forgets the answers to earlier changes of the names that this change is about.
    pub(super) fn touch(&mut self, change: &NamesChange) {
        let touched = names_of(change);
        let is_touched = |old: &Answered| {
            let old = names_of(&old.change);
            old.iter().any(|name| touched.contains(name))
        };
        let all = std::mem::take(&mut self.answers);
        let (gone, kept) = all.into_iter().partition::<Vec<_>, _>(is_touched);
        self.answers = kept;
        self.stale
            .extend(gone.iter().filter_map(Answered::open_object));
    }

    /// The objects to close now.
    pub(super) fn take_open(&mut self, now: Instant) -> Vec<u64> {
        let mut close = std::mem::take(&mut self.stale);
        for old in &mut self.answers {
            if now.since(old.since) >= OPEN_TIME {
                close.extend(old.open_object());
                old.open_in = None;
            }
        }
        close
    }
}

/// The names that a change creates, removes or syncs.
pub(super) fn names_of(change: &NamesChange) -> Vec<&str> {
    match change {
        NamesChange::Create { name, .. }
        | NamesChange::SyncObject { name, .. }
        | NamesChange::Delete { name }
        | NamesChange::Publish { name }
        | NamesChange::Replace { name }
        | NamesChange::Import { name, .. } => vec![name],
        NamesChange::Recycle { old, new, .. } | NamesChange::Rename { old, new } => vec![old, new],
        NamesChange::SyncDir
        | NamesChange::SyncParents
        | NamesChange::BeginJob(_)
        | NamesChange::BeginRebuild(_) => Vec::new(),
    }
}

/// Whether two calls ask for the same change. The number of the opened object does not count.
pub(super) fn is_same(a: &NamesChange, b: &NamesChange) -> bool {
    match (a, b) {
        (
            NamesChange::Create { name, direct, .. },
            NamesChange::Create {
                name: other,
                direct: other_direct,
                ..
            },
        ) => name == other && direct == other_direct,
        (
            NamesChange::Recycle { old, new, .. },
            NamesChange::Recycle {
                old: other_old,
                new: other_new,
                ..
            },
        ) => old == other_old && new == other_new,
        (a, b) => a == b,
    }
}

/// The object that a change opens.
pub(super) fn object_of(change: &NamesChange) -> Option<u64> {
    match change {
        NamesChange::Create { file, .. } | NamesChange::Recycle { file, .. } => Some(*file),
        _ => None,
    }
}
