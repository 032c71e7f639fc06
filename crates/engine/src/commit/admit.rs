//! Admission: a writer waits here, before it joins the queue, while a keyspace of its batch is over
//! its limits.
//!
//! [`pressure::decide`] decides, from the [`Load`] of the keyspace and its [`Limits`]; where and
//! how a writer waits is the subject of [`crate::commit::stalls`].
//!
//! Invariant: who fails after a rate has admitted the batch gives its bytes back
//! ([`refund_if_late`]), so a batch that is not written takes nothing from the rate.
//!
//! Threading: any thread. Nothing is held while a writer waits.

use std::ops::ControlFlow;
use std::sync::Arc;

use siltstone_storage::Instant;

use crate::catalog::Catalog;
use crate::commit::Commit;
use crate::commit::stalls::Waited;
use crate::formats::batch::BatchBody;
use crate::tree::view::{KeyspaceCore, KeyspaceView};
use crate::types::error::{Error, ErrorKind, Result};
use crate::types::limits::KeyspaceId;
use crate::types::options::StallPolicy;
use crate::types::pressure::{self, Decision, Limits, Load};

/// Waits, outside the queue, while any keyspace of the batch is over its limits. Returns the
/// keyspaces from whose rates its bytes were taken.
pub(crate) fn wait_for_pressure(
    commit: &Commit,
    batch: &BatchBody,
    deadline: Option<Instant>,
) -> Result<Vec<KeyspaceId>> {
    commit.env.health().check()?;
    if let Some((keyspace, _)) = batch.of_one_keyspace() {
        let admitted = wait_for_one(commit, batch, keyspace, deadline)?;
        return Ok(match admitted {
            Admitted::Paid => vec![keyspace],
            Admitted::AtOnce | Admitted::Free => Vec::new(),
        });
    }
    let mut keyspaces: Vec<KeyspaceId> = batch.iter().map(|entry| entry.keyspace).collect();
    keyspaces.sort_unstable();
    keyspaces.dedup();
    // While the writer waits for one keyspace, another one may reach a limit that stops it. So all
    // are asked again after a wait, but a keyspace that has admitted the batch takes its bytes
    // once.
    let mut paid: Vec<KeyspaceId> = Vec::new();
    let mut round = || -> Result<bool> {
        let mut has_waited = false;
        for id in &keyspaces {
            if paid.contains(id) && !is_stopped(commit, *id) {
                continue;
            }
            let admitted = wait_for_one(commit, batch, *id, deadline)?;
            has_waited |= admitted != Admitted::AtOnce;
            if admitted == Admitted::Paid {
                match paid.contains(id) {
                    true => commit.stalls.refund(*id, bytes_of(batch, *id)),
                    false => paid.push(*id),
                }
            }
        }
        Ok(has_waited)
    };
    let waited = (0..ROUNDS_MAX).try_for_each(|_| match round() {
        Ok(true) => ControlFlow::Continue(()),
        Ok(false) => ControlFlow::Break(Ok(())),
        Err(error) => ControlFlow::Break(Err(error)),
    });
    if let ControlFlow::Break(Err(error)) = waited {
        for id in paid {
            commit.stalls.refund(id, bytes_of(batch, id));
        }
        return Err(error);
    }
    Ok(paid)
}

/// How a keyspace admitted a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Admitted {
    /// Without asking its rate.
    AtOnce,
    /// After a wait, in which its rate was not needed.
    Free,
    /// Its bytes were taken from the rate.
    Paid,
}

/// A batch over several keyspaces that still has to wait after this many rounds over all of them
/// joins the queue. So it does not wait for ever for keyspaces that are over their limits by turns.
const ROUNDS_MAX: usize = 8;

/// The bytes that the batch brings to a keyspace.
pub(crate) fn bytes_of(batch: &BatchBody, id: KeyspaceId) -> u64 {
    let own = batch.iter().filter(|entry| entry.keyspace == id);
    own.map(|entry| (entry.key.len() + entry.value.len()) as u64)
        .sum()
}

/// Whether writers of a keyspace are stopped now.
fn is_stopped(commit: &Commit, id: KeyspaceId) -> bool {
    let keyspaces = commit.catalog.keyspaces();
    let decision = |keyspace: &Arc<KeyspaceCore>| {
        let limits = keyspace.limits();
        let load = load_of(&commit.catalog, keyspace, &keyspace.view(), &limits);
        pressure::decide(&load, &limits)
    };
    let decision = keyspaces.by_id.get(&id).map(decision);
    matches!(decision, Some(pressure::Decision::Stop { .. }))
}

/// Waits while keyspace number `id` is over its limits.
fn wait_for_one(
    commit: &Commit,
    batch: &BatchBody,
    id: KeyspaceId,
    deadline: Option<Instant>,
) -> Result<Admitted> {
    let keyspaces = commit.catalog.keyspaces();
    if let Some(keyspace) = keyspaces.by_id.get(&id)
        && (keyspace.is_calm() || passes(commit, keyspace))
    {
        return Ok(Admitted::AtOnce);
    }
    drop(keyspaces);
    let keyspace = commit.catalog.keyspace_by_id(id)?;
    match wait_for_keyspace(commit, &keyspace, deadline, || bytes_of(batch, id))? {
        true => Ok(Admitted::Paid),
        false => Ok(Admitted::Free),
    }
}

/// The decision about a batch for this keyspace, and what it was based on.
#[inline]
fn decide(commit: &Commit, keyspace: &KeyspaceCore) -> (Decision, Load, Limits) {
    let limits = keyspace.limits();
    let load = load_of(&commit.catalog, keyspace, &keyspace.view(), &limits);
    (pressure::decide(&load, &limits), load, limits)
}

/// Whether a batch for this keyspace passes without asking the rate.
#[inline]
fn passes(commit: &Commit, keyspace: &KeyspaceCore) -> bool {
    let (decision, _, limits) = decide(commit, keyspace);
    // With `redirect`, nobody overtakes the writers that wait.
    let in_turn = limits.policy == StallPolicy::Redirect;
    decision == Decision::Pass && (!in_turn || keyspace.waiting_count() == 0)
}

/// Waits while one keyspace is over its limits, for a write that brings it this many `bytes`.
/// Returns whether these were taken from the rate of the keyspace.
pub(crate) fn wait_for_keyspace(
    commit: &Commit,
    keyspace: &KeyspaceCore,
    deadline: Option<Instant>,
    bytes: impl FnOnce() -> u64,
) -> Result<bool> {
    match passes(commit, keyspace) {
        true => Ok(false),
        false => wait_in_line(commit, keyspace, deadline, bytes()),
    }
}

#[cold]
fn wait_in_line(
    commit: &Commit,
    keyspace: &KeyspaceCore,
    deadline: Option<Instant>,
    bytes: u64,
) -> Result<bool> {
    let (env, stalls) = (&commit.env, &commit.stalls);
    let began = env.now();
    let redirects = keyspace.limits().policy == StallPolicy::Redirect;
    // A writer that waits asks with the progress of the flushes as of now.
    let decide = || {
        if redirects {
            keyspace.follow_flushes(env.now(), stalls.single_flush_bytes_per_s());
        }
        decide(commit, keyspace)
    };
    let whose = (keyspace.id, &keyspace.name[..]);
    let _waiting = keyspace.count_waiting();
    loop {
        let mut failing = None;
        let waited = stalls.wait_for(whose, bytes, deadline, decide, || {
            // A writer that is only slowed down is still admitted.
            failing = match decide().0 {
                Decision::Stop { .. } => {
                    let failing = env.failures().failing_for_good(redirects);
                    failing.or_else(|| env.outage().stalled_too_long(began))
                }
                _ => None,
            };
            failing.is_some() || env.health().check().is_err() || keyspace.is_dropped()
        });
        env.health().check()?;
        keyspace.check()?;
        match (failing, waited) {
            (Some(error), _) => return Err(error),
            (None, Waited::Passed { paid }) => return Ok(paid),
            (None, Waited::TimedOut(cause)) => {
                return Err(busy(cause.meaning()).context(format!("keyspace `{}`", keyspace.name)));
            }
            (None, Waited::GaveUp) if stalls.is_cancelled() => {
                return Err(Error::new(
                    ErrorKind::Closed,
                    "nothing was written: the write was stalled, and such waits were cancelled",
                ));
            }
            // What made it give up has passed meanwhile.
            (None, Waited::GaveUp) => {}
        }
    }
}

/// The load of a keyspace with this view.
#[inline]
pub(crate) fn load_of(
    catalog: &Catalog,
    keyspace: &KeyspaceCore,
    view: &KeyspaceView,
    limits: &Limits,
) -> Load {
    let (free_bytes, job_bytes) = keyspace.short_space();
    let (mut sealed_bytes, mut flushed_bytes) = (0, 0);
    let whole = view.sealed().filter(|source| !source.mem.is_log_backed());
    // (The runs between and behind the memtables may be many.)
    for source in whole.take(view.sealed_count - view.log_backed_count) {
        // A memtable with a larger batch counts as a full one.
        let used = source.mem.used_bytes();
        let counted = used.min(limits.memtable_bytes);
        sealed_bytes += counted;
        if limits.policy == StallPolicy::Redirect {
            let flushed = source.flushed_bytes().min(used);
            let flushed = match counted < used {
                true => (u128::from(flushed) * u128::from(counted) / u128::from(used)) as u64,
                false => flushed,
            };
            // Memory is free when a flush is installed, so the one that is next counts. Writers
            // that were admitted for the progress of all would find no free memtable.
            flushed_bytes = u64::max(flushed_bytes, flushed);
        }
    }
    Load {
        sealed_memtable_count: view.sealed_count as u64,
        log_backed_memtable_count: view.log_backed_count as u64,
        log_backed_memory_bytes: view.log_backed_bytes,
        log_backed_bytes: catalog.log_backed_bytes(),
        l0_run_count: view.run_count as u64,
        l0_depth: view.l0_depth as u64,
        log_bytes: catalog.log_bytes(),
        active_bytes: match view.sealed_count {
            0 => 0,
            _ => view.active().mem.used_bytes(),
        },
        sealed_bytes,
        flushed_bytes,
        pending_bytes: keyspace.pending_bytes(),
        free_bytes,
        job_bytes,
    }
}

/// Gives the bytes of a batch back to the rate of its keyspace if it was not written because its
/// deadline passed in the queue.
pub(crate) fn refund_if_late(commit: &Commit, error: &Error, keyspace: KeyspaceId, bytes: u64) {
    if error.kind() == ErrorKind::Busy {
        commit.stalls.refund(keyspace, bytes);
    }
}

/// The error of a write that would have had to wait longer than its caller allows.
#[cold]
pub(crate) fn busy(why: &str) -> Error {
    Error::new(
        ErrorKind::Busy,
        format!("nothing was written: the write would have to wait longer than wait_max: {why}"),
    )
}
