//! Changes of keyspaces that every later write must see: a create, a drop, an ingest. Each is one
//! record in the log with numbers of its own, between two groups of writes.
//!
//! The order is that of a write (RFC 1, section 7): the caller leads the writers, takes numbers,
//! appends the record, makes the change in memory, and publishes the numbers. After the caller has
//! passed the lead on, it commits an edit of the manifest, which makes the change durable without
//! the log ([`Catalog::complete`](crate::catalog::Catalog::complete)). Until the edit is durable,
//! the log is kept from before the record on.
//!
//! Threading: any thread, one change at a time; the caller holds
//! [`Catalog::changes`](crate::catalog::Catalog::changes).

use crate::catalog::pending::Announced;
use crate::commit::Commit;
use crate::commit::write::Lead;
use crate::formats::log::{Position, RecordKind};
use crate::tree::view::KeyspaceCore;
use crate::types::error::{Error, Result};

/// A change of keyspaces that failed.
pub(crate) struct Failed {
    pub(crate) error: Error,
    /// The record may be in the log, so that the next open may find it.
    pub(crate) recorded: bool,
}

impl Failed {
    pub(crate) fn before_the_record(error: Error) -> Failed {
        Failed {
            error,
            recorded: false,
        }
    }
}

/// The record of a change.
pub(crate) struct Announcement<'a> {
    pub(crate) kind: RecordKind,
    /// The number of sequence numbers that it takes.
    pub(crate) count: u64,
    pub(crate) body: &'a [u8],
}

/// A prepared change, and the part of the log that [`Commit::announce`] must keep besides the
/// record.
pub(crate) struct PreparedChange<P> {
    pub(crate) change: P,
    /// The log is kept from this position on, if it lies before the record.
    pub(crate) oldest: Option<Position>,
}

impl<P> PreparedChange<P> {
    /// A change that needs nothing of the log but its record.
    pub(crate) fn new(change: P) -> PreparedChange<P> {
        PreparedChange {
            change,
            oldest: None,
        }
    }
}

impl Commit {
    /// Leads the writers and announces a change. `check` says whether the store may still be
    /// changed: the previous leader may have poisoned it, and then the numbers of that leader must
    /// not be published together with these. `prepare` gets the first number and makes what the
    /// change needs. `show` makes the change visible to reads at later numbers.
    ///
    /// # Errors
    /// Those of `check` and `prepare`, and of the append. Nothing has changed then, but the record
    /// may be in the log.
    pub(crate) fn announce<P, T>(
        &self,
        record: Announcement<'_>,
        check: impl FnOnce() -> Result<()>,
        prepare: impl FnOnce(&mut Lead<'_>, u64) -> Result<PreparedChange<P>>,
        show: impl FnOnce(P) -> T,
    ) -> std::result::Result<(T, Announced), Failed> {
        let mut lead = self.lead();
        let done = self.announce_as_leader(&mut lead, record, check, prepare, show);
        self.finish(lead);
        done
    }

    fn announce_as_leader<P, T>(
        &self,
        lead: &mut Lead<'_>,
        record: Announcement<'_>,
        check: impl FnOnce() -> Result<()>,
        prepare: impl FnOnce(&mut Lead<'_>, u64) -> Result<PreparedChange<P>>,
        show: impl FnOnce(P) -> T,
    ) -> std::result::Result<(T, Announced), Failed> {
        let first = lead.next_seq;
        let last = first + record.count - 1;
        let prepared = check()
            .and_then(|()| self.catalog.reserve_numbers(last))
            .and_then(|()| prepare(lead, first))
            .map_err(Failed::before_the_record)?;
        let end = self.wal.end();
        let hold = self
            .catalog
            .hold_log(prepared.oldest.map_or(end, |oldest| oldest.min(end)));
        let appended = self.wal.append(
            record.kind,
            first,
            record.count,
            &[record.body],
            self.wal.sync_every_write(),
        );
        // A sync in doubt is repeated before the change's edit, and the caller waits for that.
        let end = appended.map(|appended| appended.end).map_err(|error| {
            self.catalog.release_log(hold);
            // A failed sync or an unsure write has poisoned the store before it was reported.
            let recorded = self.env.health().is_poisoned();
            Failed { error, recorded }
        })?;
        let shown = show(prepared.change);
        lead.next_seq = last + 1;
        self.tree.snapshots().publish(last);
        Ok((shown, Announced { end, hold }))
    }

    /// Seals the active memtables of these keyspaces, between two groups of writes. Returns how
    /// many of them were not empty.
    pub(crate) fn seal<'k>(
        &self,
        keyspaces: impl IntoIterator<Item = &'k KeyspaceCore>,
    ) -> Result<usize> {
        let mut lead = self.lead();
        let sealed = lead.seal(self, keyspaces);
        self.finish(lead);
        sealed
    }
}
