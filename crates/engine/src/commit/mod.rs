//! The path of a write: the queue of writers, its leader, and stalls.
//!
//! Nothing here knows jobs.

pub(crate) mod admit;
pub(crate) mod announce;
pub(crate) mod detector;
pub(crate) mod flush_meter;
pub(crate) mod queue;
mod rotate;
pub mod stalls;
pub(crate) mod write;
pub(crate) mod write_rate;

use std::sync::Arc;

use siltstone_storage::Instant;

use crate::catalog::Catalog;
use crate::commit::stalls::Stalls;
use crate::commit::write::{Lead, WriteQueue};
use crate::env::Env;
use crate::tree::Tree;
use crate::types::error::Result;
use crate::types::pressure::StallCause;
use crate::wal::Wal;

/// The path of a write: the queue of writers, and the writers that are stalled before they may join
/// it.
pub(crate) struct Commit {
    env: Arc<Env>,
    tree: Arc<Tree>,
    wal: Arc<Wal>,
    catalog: Arc<Catalog>,
    queue: Arc<WriteQueue>,
    stalls: Stalls,
}

impl Commit {
    pub(crate) fn new(catalog: &Arc<Catalog>, queue: Arc<WriteQueue>) -> Commit {
        let env = catalog.env().clone();
        Commit {
            stalls: Stalls::new(env.runtime(), env.events().clone(), env.pressure().clone()),
            env,
            tree: catalog.tree().clone(),
            wal: catalog.wal().clone(),
            catalog: catalog.clone(),
            queue,
        }
    }

    #[inline]
    pub(crate) fn stalls(&self) -> &Stalls {
        &self.stalls
    }

    #[inline]
    pub(crate) fn env(&self) -> &Arc<Env> {
        &self.env
    }

    #[inline]
    pub(crate) fn tree(&self) -> &Arc<Tree> {
        &self.tree
    }

    #[inline]
    pub(crate) fn wal(&self) -> &Arc<Wal> {
        &self.wal
    }

    #[inline]
    pub(crate) fn catalog(&self) -> &Arc<Catalog> {
        &self.catalog
    }

    /// Waits for this caller's turn to lead the writers.
    pub(crate) fn lead(&self) -> Lead<'_> {
        let mut lead = self.queue.lead();
        // A caller that leads without a batch may replace memtables, or end the keyspace or the
        // store.
        lead.latest = None;
        lead.since = self.env.now();
        lead
    }

    /// Passes the lead on that [`Commit::lead`] took. If writers have waited for it, the time is
    /// counted.
    pub(crate) fn finish(&self, lead: Lead<'_>) {
        let (since, has_waiting) = (lead.since, self.waiting_count() > 0);
        lead.finish();
        if has_waiting {
            self.stalls.count_turn(StallCause::Lead, since);
        }
    }

    /// As [`Commit::lead`], for a write that waits no longer than until the deadline.
    ///
    /// # Errors
    /// `Busy`.
    pub(crate) fn lead_until(&self, deadline: Option<Instant>) -> Result<Lead<'_>> {
        let lead = self.queue.lead_until(deadline);
        let mut lead = lead.ok_or_else(|| self.queue.deadline_passed())?;
        lead.latest = None;
        Ok(lead)
    }

    /// The number of writers that wait in the queue.
    pub(crate) fn waiting_count(&self) -> usize {
        self.queue.waiting_count()
    }
}
