//! A flush that a caller requests. It seals memtables and waits until they are installed.
//!
//! Threading: the caller's task.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::jobs::Jobs;
use crate::jobs::deferral::has_task;
use crate::tree::view::{KeyspaceCore, Source};
use crate::types::error::Result;

/// Seals the memtables of these keyspaces and waits until they are installed. Then it syncs the log
/// through everything written so far, because other keyspaces may hold the other half of a batch,
/// an ingest that is visible before its edit is durable, or data under a drop that may never become
/// durable.
pub(crate) fn flush(jobs: &Jobs, keyspaces: &[Arc<KeyspaceCore>]) -> Result<()> {
    jobs.env.health().check()?;
    jobs.commit.seal(keyspaces.iter().map(|k| &**k))?;
    let end = jobs.wal.end();
    let waiting: Vec<(&KeyspaceCore, Vec<u64>)> =
        keyspaces.iter().map(|k| (&**k, sealed_ids(k))).collect();
    for (keyspace, ids) in &waiting {
        if let Some(newest) = ids.iter().max() {
            keyspace.want_flush(*newest);
        }
    }
    if has_task(&jobs.env) {
        // Flushes that were deferred may begin.
        jobs.env.work().notify();
    }
    jobs.wait_until(|| {
        let mut left = waiting
            .iter()
            .filter(|(keyspace, ids)| !keyspace.is_dropped() && has_any(keyspace, ids))
            .peekable();
        let is_done = left.peek().is_none();
        if left.any(|(keyspace, _)| !keyspace.is_created()) {
            // The keyspace's create edit waits for room, and the flush waits for that edit.
            jobs.env.health().check()?;
        }
        Ok(is_done)
    })?;
    jobs.wal.sync_log_through(end)
}

/// The ids of the sealed memtables that no test holds back.
fn sealed_ids(keyspace: &KeyspaceCore) -> Vec<u64> {
    let view = keyspace.view();
    let sealed = view.sealed().filter(|m| !m.held.load(Ordering::Acquire));
    sealed.map(|m| m.id).collect()
}

/// Whether a memtable with one of these ids is not installed yet.
fn has_any(keyspace: &KeyspaceCore, ids: &[u64]) -> bool {
    let is_one = |s: &Source| matches!(s, Source::Memtable(m) if ids.contains(&m.id));
    keyspace.view().sources.iter().any(is_one)
}
