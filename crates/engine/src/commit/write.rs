//! The path of a write: group commit through the log and the memtables, up to publication.
//!
//! [`write`] waits while a keyspace of its batch is stalled, and then joins the queue. If nobody
//! leads, it leads at once, without waking anybody. Otherwise it waits until a leader has committed
//! its batch or passes the lead on to it. A leader takes the batches that wait, numbers their
//! entries, appends them as one record, syncs the log if any of the writers asked for it, applies
//! the entries to the memtables, and publishes the last number.
//!
//! Invariants:
//! - **W1** There is one leader at a time. Sequence numbers, the log and publication have the same
//!   order.
//! - **W2** Nothing is applied to a memtable before it is in the log, and nothing is published
//!   before it is in its memtables.
//! - **W3** A group is numbered only after every keyspace in it has room, so no record straddles
//!   two memtables of a keyspace (RFC 1, V1).
//! - **W4** A writer is stalled before it joins the queue. In the queue it waits for nothing but
//!   the I/O of leaders.
//! - **W5** While the storage cannot be reached, a group either is in the log and is applied
//!   and published, with its sync in doubt (`Unsynced`), or has no numbers (`Unreachable`). Neither
//!   poisons the store. A writer that is stalled meanwhile gives up (`Unreachable`) after the time
//!   limit of `Outage::stalled_too_long`.
//!
//! Threading: that of [`queue`].

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use siltstone_storage::Instant;
use siltstone_storage::planted;

use crate::catalog::Catalog;
use crate::commit::Commit;
use crate::commit::admit::{busy, bytes_of, refund_if_late, wait_for_keyspace, wait_for_pressure};
use crate::commit::queue::{Queue, Writers};
use crate::env::Env;
use crate::env::health::Health;
use crate::formats::batch::{BatchBody, Entry, EntryKind, Totals};
use crate::formats::log::{Position, RecordKind};
use crate::tree::gaps::LeaderWatch;
use crate::tree::memtable::{self, LookAhead, Memtable};
use crate::tree::view::{KeyspaceCore, MemSource};
use crate::types::error::{Error, ErrorKind, Result};
use crate::types::limits::KeyspaceId;
use crate::types::metrics::SAMPLE;
use crate::types::pressure::StallCause;
use crate::wal::Appended;

/// The options of one write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct WriteOptions {
    /// Sync the log before the write is acknowledged, whatever the store's [`crate::SyncMode`]
    /// says. This also makes all earlier writes durable. A batch without entries only syncs the
    /// log, as [`Store::sync_log`](crate::Store::sync_log) does.
    pub sync: bool,
    /// How long the write may wait before a leader takes its batch. A batch that would have to wait
    /// longer is not written, and the call fails with [`ErrorKind::Busy`], which says why. `None`:
    /// as long as necessary. The time of the leader's own I/O is not limited by this.
    pub wait_max: Option<Duration>,
}

impl WriteOptions {
    /// The log is synced before the write is acknowledged. The write waits as long as necessary.
    pub const SYNC: WriteOptions = WriteOptions {
        sync: true,
        wait_max: None,
    };

    /// The default: whether the log is synced is decided by the store's [`crate::SyncMode`], and
    /// the write waits as long as necessary.
    pub const NO_SYNC: WriteOptions = WriteOptions {
        sync: false,
        wait_max: None,
    };
}

/// The queue of writers.
pub(crate) type WriteQueue = Queue<StoreWriters>;

/// The leader's role.
pub(crate) type Lead<'a> = crate::commit::queue::Lead<'a, StoreWriters>;

/// A group's batches with their answers.
type Group<'a> = crate::commit::queue::Group<'a, StoreWriters>;

/// The writers of one store.
pub(crate) struct StoreWriters {
    health: Arc<Health>,
}

/// What only the leader touches.
pub(crate) struct LeaderState {
    /// The number that the next entry gets.
    pub(crate) next_seq: u64,
    /// The number that the next memtable gets.
    pub(super) next_source_id: u64,
    /// Memory for the next group.
    needs: Vec<Need>,
    /// The keyspace of the last group's first entry, and its active memtable, which the next group
    /// probably needs too. Whatever replaces an active memtable removes it.
    pub(super) latest: Option<(Arc<KeyspaceCore>, Arc<MemSource>)>,
    /// When the last caller that is no writer got the lead.
    pub(super) since: Instant,
}

impl Writers for StoreWriters {
    type Batch = BatchBody;
    type Error = Error;
    type State = LeaderState;

    fn bytes(batch: &BatchBody) -> usize {
        batch.bytes()
    }

    /// Log and memtables may disagree, so the store takes no more writes.
    fn leader_panicked(&self) -> Error {
        let error = Error::new(
            ErrorKind::Poisoned,
            "the writer that led the group panicked",
        )
        .advice("this is a bug: report it; reopen the store");
        self.health.poison(&error);
        error
    }

    fn deadline_passed(&self) -> Error {
        busy("other writers and changes of the store were before it in the queue")
    }
}

impl WriteQueue {
    /// The queue of a store that gives its next entry `next_seq`.
    pub(crate) fn of_store(env: &Env, next_seq: u64, next_source_id: u64) -> WriteQueue {
        let writers = StoreWriters {
            health: env.health().clone(),
        };
        let state = LeaderState {
            next_seq,
            next_source_id,
            needs: Vec::new(),
            latest: None,
            since: env.now(),
        };
        Queue::new(env.runtime(), writers, state)
    }
}

impl LeaderWatch for WriteQueue {
    fn with_led(&self, f: &mut dyn FnMut(bool)) {
        Queue::with_led(self, f);
    }
}

/// Writes one batch. When it returns, the batch is published and in the log, and if a sync was
/// asked for, it and everything before it is synced, even if the batch is empty.
///
/// # Errors
/// The batch was not written, except with [`ErrorKind::Unsynced`]: it is published and in the log,
/// but its sync is in doubt. A writer that asked for no sync does not get this error.
pub(crate) fn write(
    commit: &Commit,
    batch: Cow<'_, BatchBody>,
    options: WriteOptions,
) -> Result<()> {
    if batch.is_empty() {
        commit.env.health().check()?;
        return match options.sync {
            true => commit.wal.sync_log(),
            false => Ok(()),
        };
    }
    let timed = count_puts(&commit.env, &batch);
    let deadline = deadline(commit, &options);
    let paid = wait_for_pressure(commit, &batch, deadline)?;
    match paid.is_empty() {
        true => join_queue(commit, batch, options, deadline, timed),
        false => {
            let bytes: Vec<u64> = paid.iter().map(|id| bytes_of(&batch, *id)).collect();
            join_queue(commit, batch, options, deadline, timed).inspect_err(|error| {
                for (id, bytes) in paid.iter().zip(bytes) {
                    refund_if_late(commit, error, *id, bytes);
                }
            })
        }
    }
}

/// When the caller of a write with these options stops waiting.
#[inline]
fn deadline(commit: &Commit, options: &WriteOptions) -> Option<Instant> {
    options.wait_max.map(|most| commit.env.now() + most)
}

/// Writes a batch whose entries are all for `keyspace`. Otherwise it does what [`write`] does.
///
/// # Errors
/// Those of [`write`].
#[inline]
pub(crate) fn write_to(
    commit: &Commit,
    keyspace: &KeyspaceCore,
    batch: BatchBody,
    options: WriteOptions,
) -> Result<()> {
    if batch.is_empty() {
        return write(commit, Cow::Owned(batch), options);
    }
    let timed = count_puts(&commit.env, &batch);
    commit.env.health().check()?;
    let deadline = deadline(commit, &options);
    if keyspace.is_calm() {
        return join_queue(commit, Cow::Owned(batch), options, deadline, timed);
    }
    let bytes = |batch: &BatchBody| {
        let bytes = |entry: Entry<'_>| (entry.key.len() + entry.value.len()) as u64;
        batch.iter().map(bytes).sum::<u64>()
    };
    let paid = wait_for_keyspace(commit, keyspace, deadline, || bytes(&batch))?;
    let paid_bytes = if paid { bytes(&batch) } else { 0 };
    let written = join_queue(commit, Cow::Owned(batch), options, deadline, timed);
    written.inspect_err(|error| refund_if_late(commit, error, keyspace.id, paid_bytes))
}

/// The part of a write after its writer was stalled, if it was. `timed` is when the write began, if
/// it is timed.
fn join_queue(
    commit: &Commit,
    batch: Cow<'_, BatchBody>,
    options: WriteOptions,
    deadline: Option<Instant>,
    timed: Option<Instant>,
) -> Result<()> {
    let sync = options.sync || commit.wal.sync_every_write();
    let result = commit
        .queue
        .join(batch, sync, deadline, |leader, group, sync| {
            commit_group(commit, leader, group, sync);
        });
    record_put(&commit.env, timed);
    match result {
        // Another writer of the group asked for the sync.
        Err(error) if is_done(&error, sync) => Ok(()),
        result => result,
    }
}

/// Whether a write that ended with this error has done all that its writer asked for.
fn is_done(error: &Error, sync: bool) -> bool {
    error.kind() == ErrorKind::Unsynced && (!sync || planted!(UnsyncedIsDurable))
}

/// Writes `batch` if `wanted` returns true, all of it as one leader: no other write comes between
/// what `wanted` reads and the batch. Returns what `wanted` returned.
pub(crate) fn write_if(
    commit: &Commit,
    batch: &BatchBody,
    options: WriteOptions,
    wanted: impl FnOnce() -> Result<bool>,
) -> Result<bool> {
    let deadline = deadline(commit, &options);
    let paid = wait_for_pressure(commit, batch, deadline)?;
    let sync = options.sync || commit.wal.sync_every_write();
    let lead = commit.lead_until(deadline);
    let mut lead = lead.inspect_err(|error| {
        for id in &paid {
            refund_if_late(commit, error, *id, bytes_of(batch, *id));
        }
    })?;
    let result = wanted().and_then(|wanted| {
        if wanted {
            let timed = count_puts(&commit.env, batch);
            lead.commit(batch, |leader, group| {
                commit_group(commit, leader, group, sync);
            })?;
            record_put(&commit.env, timed);
        }
        Ok(wanted)
    });
    lead.finish();
    result
}

/// Counts a batch's entries. Returns the present time if this batch is timed.
fn count_puts(env: &Env, batch: &BatchBody) -> Option<Instant> {
    let entries = batch.len() as u64;
    (env.metrics().put_count.add(entries) % SAMPLE < entries).then(|| env.now())
}

fn record_put(env: &Env, start: Option<Instant>) {
    if let Some(start) = start {
        let time = env.now().since(start);
        env.metrics().put_time.record(time);
    }
}

/// What a group needs of one keyspace's memtable.
struct Need {
    keyspace: Arc<KeyspaceCore>,
    source: Arc<MemSource>,
    totals: Totals,
}

impl Need {
    /// The group's entries of this kind for this keyspace.
    fn entries_of<'a>(
        &self,
        group: &'a Group<'_>,
        kind: EntryKind,
    ) -> impl Iterator<Item = Entry<'a>> {
        let id = self.keyspace.id;
        let accepted = group.iter().filter(|(_, r)| r.is_ok());
        let entries = accepted.flat_map(|(b, _)| b.iter());
        entries.filter(move |e| e.keyspace == id && e.kind == kind)
    }
}

/// Commits the leader's group. Every batch gets its result.
fn commit_group(commit: &Commit, leader: &mut LeaderState, group: &mut Group<'_>, sync: bool) {
    // A group of one batch that syncs nothing is timed as a put, if at all.
    let start = (sync || group.len() > 1).then(|| commit.env.now());
    let mut needs = std::mem::take(&mut leader.needs);
    for (batch, result) in group.iter_mut() {
        *result = commit
            .env
            .health()
            .check()
            .and_then(|()| add_needs(&commit.catalog, &mut needs, &mut leader.latest, batch));
    }
    let outcome = commit_accepted(commit, leader, group, &mut needs, sync);
    needs.truncate(1);
    leader.latest = needs.pop().map(|need| (need.keyspace, need.source));
    leader.needs = needs;
    if let Err(error) = outcome {
        for (_, result) in group.iter_mut().filter(|(_, r)| r.is_ok()) {
            *result = Err(error.clone());
        }
    }
    // Only the leader counts these.
    commit.env.metrics().group_count.add_alone(1);
    let batches = group.len() as u64;
    commit.env.metrics().batch_count.add_alone(batches);
    if let Some(start) = start {
        commit
            .env
            .metrics()
            .commit_time
            .record(commit.env.now().since(start));
    }
}

/// Adds what a batch needs. If a keyspace of it is gone, adds nothing and returns an error.
fn add_needs(
    catalog: &Catalog,
    needs: &mut Vec<Need>,
    latest: &mut Option<(Arc<KeyspaceCore>, Arc<MemSource>)>,
    batch: &BatchBody,
) -> Result<()> {
    if let Some((keyspace, totals)) = batch.of_one_keyspace() {
        let at = need_of(catalog, needs, latest, keyspace)?;
        needs[at].totals += totals;
        return Ok(());
    }
    // All keyspaces are checked before anything is added, because a batch is in the group whole or
    // not at all.
    let mut known: Option<KeyspaceId> = None;
    for entry in batch.iter() {
        if known != Some(entry.keyspace) {
            if !needs.iter().any(|n| n.keyspace.id == entry.keyspace) {
                catalog.keyspace_by_id(entry.keyspace)?;
            }
            known = Some(entry.keyspace);
        }
    }
    for entry in batch.iter() {
        let at = need_of(catalog, needs, latest, entry.keyspace)?;
        needs[at].totals.add(&entry);
    }
    Ok(())
}

/// The index of the keyspace's need, which is added if there is none.
fn need_of(
    catalog: &Catalog,
    needs: &mut Vec<Need>,
    latest: &mut Option<(Arc<KeyspaceCore>, Arc<MemSource>)>,
    id: KeyspaceId,
) -> Result<usize> {
    if let Some(at) = needs.iter().position(|need| need.keyspace.id == id) {
        return Ok(at);
    }
    let is_wanted = |(keyspace, source): &mut (Arc<KeyspaceCore>, Arc<MemSource>)| {
        keyspace.id == id && keyspace.check().is_ok() && !source.is_sealed()
    };
    let (keyspace, source) = match latest.take_if(is_wanted) {
        Some(latest) => latest,
        None => {
            let keyspace = catalog.keyspace_by_id(id)?;
            let source = keyspace.view().active().clone();
            (keyspace, source)
        }
    };
    needs.push(Need {
        keyspace,
        source,
        totals: Totals::default(),
    });
    Ok(needs.len() - 1)
}

/// Gives every keyspace of the group a memtable with room. If a keyspace gets none (there is no
/// memory, or a batch is too large for any memtable), the batches that touch it fail, and no
/// others.
fn make_room(
    commit: &Commit,
    leader: &mut LeaderState,
    group: &mut Group<'_>,
    needs: &mut Vec<Need>,
) {
    // Each round fails at least one batch or is the last, because every keyspace in `needs` is
    // there for a batch that is accepted so far.
    while let Err((refused, error)) = make_room_for_all(commit, leader, needs) {
        // The needs are counted anew, without those of the failed batches in other keyspaces. (A
        // memtable that was rotated for them has room.)
        needs.clear();
        for (batch, result) in group.iter_mut().filter(|(_, r)| r.is_ok()) {
            let touches =
                |entry: Entry<'_>| entry.keyspace == refused || planted!(OneRefusalFailsAll);
            *result = if batch.iter().any(touches) {
                Err(error.clone())
            } else {
                add_needs(&commit.catalog, needs, &mut leader.latest, batch)
            };
        }
    }
}

/// As [`make_room`], but stops at the first keyspace that gets no memtable.
fn make_room_for_all(
    commit: &Commit,
    leader: &mut LeaderState,
    needs: &mut [Need],
) -> std::result::Result<(), (KeyspaceId, Error)> {
    for need in needs {
        let Totals {
            entries,
            key_bytes,
            value_bytes,
            ..
        } = need.totals;
        if need.source.mem.room_for(entries, key_bytes, value_bytes) {
            continue;
        }
        let min_bytes = Memtable::arena_bytes_for(entries, key_bytes, value_bytes);
        need.source = leader
            .rotate(commit, &need.keyspace, min_bytes)
            .map_err(|error| (need.keyspace.id, error))?;
    }
    Ok(())
}

fn commit_accepted(
    commit: &Commit,
    leader: &mut LeaderState,
    group: &mut Group<'_>,
    needs: &mut Vec<Need>,
    sync: bool,
) -> Result<()> {
    make_room(commit, leader, group, needs);
    let accepted = || group.iter().filter(|(_, r)| r.is_ok()).map(|(b, _)| b);
    let count: u64 = accepted().map(|b| b.len() as u64).sum();
    if count == 0 {
        return Ok(());
    }
    let first = leader.next_seq;
    reserve_numbers(commit, first + count - 1)?;
    // The log is held before the append: a task that computes the log's start meanwhile sees the
    // hold, or an end of the log that does not lie behind the hold.
    let before = commit.wal.end();
    for need in needs.iter() {
        need.source.hold_log(before);
    }
    let (one, many);
    let bodies: &[&[u8]] = match group.len() {
        1 => {
            one = [group.own().body()];
            &one
        }
        _ => {
            many = group
                .iter()
                .filter(|(_, r)| r.is_ok() || planted!(RefusedBodiesLogged))
                .map(|(b, _)| b.body())
                .collect::<Vec<_>>();
            &many
        }
    };
    // What the insert of a lone entry needs is prefetched while the record is appended. Several
    // entries need no prefetch here: their inserts wait for memory together.
    let only = accepted().next().filter(|_| count == 1);
    let ahead = match (&needs[..], only.and_then(|batch| batch.iter().next())) {
        ([need], Some(entry)) => need.source.mem.look_ahead(entry.key),
        _ => None,
    };
    let user_bytes: usize = bodies.iter().map(|b| b.len()).sum();
    let timed = is_timed(before, user_bytes).then(|| commit.env.now());
    let appended = commit
        .wal
        .append(RecordKind::Group, first, count, bodies, sync)
        .inspect_err(|_| {
            // An empty memtable has no record, so it must not hold the log.
            needs
                .iter()
                .for_each(|need| need.source.release_log_if_empty());
        })?;
    let end = appended.end;
    if before.segment != end.segment || timed.is_some() || !appended.sync_time.is_zero() {
        count_waits(commit, before, end, timed, &appended);
    }
    wake_for_supplies(&commit.env, before, end);
    commit.env.metrics().user_bytes.add_alone(user_bytes as u64);
    leader.next_seq = first + count;
    apply(group, needs, first, ahead).inspect_err(|error| commit.env.health().poison(error))?;
    for need in needs.iter() {
        need.source.set_last_position(end);
        // This must come before the number is published: rule G2 of `gaps`.
        if need.keyspace.gaps.is_armed() {
            let puts = need.entries_of(group, EntryKind::Put);
            let keys = puts.map(|e| (e.key, e.key));
            let gaps = &need.keyspace.gaps;
            gaps.invalidate(keys, first + count - 1, commit.tree.gap_min());
        }
    }
    commit.tree.snapshots().publish(first + count - 1);
    for need in needs.iter().filter(|need| need.totals.deletes > 0) {
        let deletes = || need.entries_of(group, EntryKind::Delete);
        let last = || deletes().last().map(|e| e.key);
        if need
            .keyspace
            .gaps
            .deleted(commit.tree.gap_min(), need.totals.deletes, last)
        {
            commit.env.maintenance().notify();
        }
    }
    appended.unsynced.map_or(Ok(()), Err)
}

/// Makes sure that numbers up to `last` may be given.
#[inline]
fn reserve_numbers(commit: &Commit, last: u64) -> Result<()> {
    if last <= commit.catalog.ceiling() {
        return commit.catalog.reserve_numbers(last);
    }
    let start = commit.env.now();
    let raised = commit.catalog.reserve_numbers(last);
    commit.stalls.count_turn(StallCause::Ceiling, start);
    raised
}

/// One append in this many bytes of the log is timed.
const TIMED_BYTES: u32 = 64 << 10;

/// An append that takes longer than this is counted as a wait.
const SLOW: Duration = Duration::from_millis(1);

/// Whether the append of a record with this many bytes at the log's end is timed.
#[inline]
fn is_timed(end: Position, bytes: usize) -> bool {
    let left = TIMED_BYTES - end.offset % TIMED_BYTES;
    bytes >= left as usize
}

/// Counts for what the leader waited, and all writers with it, while it appended its record.
#[cold]
fn count_waits(
    commit: &Commit,
    before: Position,
    end: Position,
    timed: Option<Instant>,
    appended: &Appended,
) {
    let mut waited = appended.sync_time;
    if !waited.is_zero() {
        commit.stalls.count_turn_of(StallCause::LogSync, waited);
    }
    if before.segment != end.segment {
        let wait = commit.wal.switch_wait();
        if !wait.is_zero() {
            commit.stalls.count_turn_of(StallCause::LogSegment, wait);
        }
        waited += wait;
    }
    if let Some(start) = timed {
        let written = commit.env.now().since(start).saturating_sub(waited);
        if written > SLOW {
            commit.stalls.count_turn_of(StallCause::LogWrite, written);
        }
    }
}

/// The size from which on a log segment is worth preparing before the leader needs it, in bytes.
const SUPPLY_MIN_BYTES: u64 = 1 << 20;

/// Wakes the task of supplies at the start of a segment and at a quarter of a segment of the full
/// size, and maintenance at the start.
#[inline]
fn wake_for_supplies(env: &Env, before: Position, end: Position) {
    // A leader makes a small segment itself.
    if env.options().log_segment_bytes < SUPPLY_MIN_BYTES {
        return;
    }
    let quarter = env.options().log_segment_bytes / 4;
    let late = |p: Position| u64::from(p.offset) >= quarter;
    let is_new = before.segment != end.segment;
    if is_new {
        env.maintenance().notify();
    }
    if is_new || late(before) != late(end) {
        env.supplies().notify();
    }
}

/// Applies the group's entries to their memtables, in the order of their numbers. If there is only
/// one, `ahead` may have its leaf.
fn apply(group: &Group<'_>, needs: &[Need], first: u64, ahead: Option<LookAhead>) -> Result<()> {
    let full = |e: memtable::InsertError| {
        Error::new(
            ErrorKind::Poisoned,
            format!("a memtable refused an entry that it had room for: {e}"),
        )
        .advice("this is a bug; the log has the entry, reopen the store")
    };
    let numbered = || {
        let accepted = group
            .iter()
            .filter(|(_, r)| r.is_ok())
            .flat_map(|(b, _)| b.iter());
        accepted.enumerate().map(|(i, e)| (first + i as u64, e))
    };
    if let [need] = needs {
        return apply_to(&need.source, numbered(), ahead).map_err(full);
    }
    for need in needs {
        let id = need.keyspace.id;
        let own = numbered().filter(|(_, e)| e.keyspace == id);
        apply_to(&need.source, own, None).map_err(full)?;
    }
    Ok(())
}

/// The number of entries that are inserted together, so that their searches in the tree overlap.
const INSERT_CHUNK: usize = 64;

pub(crate) fn apply_to<'a>(
    source: &MemSource,
    entries: impl Iterator<Item = (u64, Entry<'a>)>,
    ahead: Option<LookAhead>,
) -> std::result::Result<(), memtable::InsertError> {
    let mut writer = source.mem.writer();
    let mut chunk: Vec<memtable::Entry<'a>> = Vec::new();
    let mut entries = entries.peekable();
    while let Some((seq, entry)) = entries.next() {
        if entry.kind == EntryKind::RangeDelete {
            writer.add_range_delete(entry.key, entry.value, seq)?;
            continue;
        }
        let inserted = memtable::Entry {
            user_key: entry.key,
            seq,
            kind: entry.kind as u8,
            value: entry.value,
        };
        if chunk.is_empty() && entries.peek().is_none() {
            return writer.insert_ahead(&inserted, ahead);
        }
        chunk.push(inserted);
        if chunk.len() == INSERT_CHUNK {
            writer.insert_group(&chunk)?;
            chunk.clear();
        }
    }
    if chunk.is_empty() {
        Ok(())
    } else {
        writer.insert_group(&chunk)
    }
}

const _: () = assert!(
    crate::commit::queue::RECORD_BYTES as u64 == crate::formats::log::format::MAX_PAYLOAD_BYTES
);

#[cfg(test)]
mod tests {
    use crate::commit::queue::{GROUP_BYTES, RECORD_BYTES, joins};
    use crate::types::limits::MAX_BATCH_BYTES;

    #[test]
    fn a_batch_of_nearly_the_full_size_takes_nobody_beyond_it() {
        assert!(joins(100, 0, GROUP_BYTES));
        assert!(!joins(100, 1, GROUP_BYTES));
        for own in MAX_BATCH_BYTES - 20..=MAX_BATCH_BYTES {
            for (taken, next) in [(0, 1), (0, 20), (5, 15), (6, 15), (GROUP_BYTES, 0)] {
                let fits = own + taken + next <= RECORD_BYTES;
                assert_eq!(joins(own, taken, next), fits, "{own} + {taken} + {next}");
            }
        }
    }
}
