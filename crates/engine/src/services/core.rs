//! The store's inside: who owns what, and the few operations that several parts need.
//!
//! What it is: [`Core`] holds every part of an open store. Each part guards itself; the table of owners and locks is RFC 1, section 9.
//! Lock order: manifest role > schedule > a keyspace's `change` > snapshots > stalls > health > events. The leader's role precedes `change` and waits for
//! the manifest role only to raise an exhausted ceiling; nobody waits for the leader while holding the manifest role.
//!
//! Threading: shared by all handles and background tasks.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use arc_swap::ArcSwap;
use siltstone_storage::{Condvar, Epoch, Lease, Mutex, Runtime};

use crate::catalog::reserve::ManifestReserve;
use crate::commit::stalls::Stalls;
use crate::commit::write::WriteQueue;
use crate::env::guard::Guards;
use crate::env::health::Health;
use crate::env::session::SessionId;
pub(crate) use crate::formats::directories::Storages;
use crate::formats::log::{LogWriter, Position};
use crate::formats::manifest::Manifest;
use crate::formats::version::{Edit, LogPosition, LogStart, StoreState};
use crate::jobs::build::JobRunner;
use crate::jobs::schedule::Schedule;
use crate::services::ingest::Guests;
use crate::tree::pinning;
use crate::tree::settings::Arenas;
use crate::tree::snapshot::SnapshotRegistry;
use crate::tree::tables::TableSet;
use crate::tree::view::{KeyspaceCore, Source};
use crate::types::error::closed;
use crate::types::error::dropped_keyspace;
use crate::types::error::{Error, ErrorKind, Result};
use crate::types::event::Events;
use crate::types::limits::KeyspaceId;
use crate::types::metrics::Metrics;
use crate::types::options::Options;
use crate::wal::interval::IntervalSync;
use siltstone_storage::planted::{self, Bug};

/// How far the ceiling of sequence numbers is raised at once.
pub(crate) const CEILING_STEP: u64 = 1 << 28;

/// The manifest's file and what it says. Whoever holds the lock has the manifest role.
pub(crate) struct ManifestRole {
    pub(crate) manifest: Manifest,
    /// Creates, drops and ingests whose edit failed for want of room: part of the next edit, before it.
    pub(crate) pending: Vec<PendingEdit>,
    /// An edit is being written: whoever finds it set has the role from a task that panicked in it.
    pub(crate) writing: bool,
    /// The space kept for a manifest on a full disk.
    pub(crate) reserve: ManifestReserve,
}

/// An edit of a create, drop or ingest that waits for room.
pub(crate) struct PendingEdit {
    pub(crate) edit: Edit,
    /// Those that it was made for; some may be dropped since.
    pub(crate) keyspaces: Vec<Arc<KeyspaceCore>>,
    /// What it keeps of the log.
    pub(crate) pin: u64,
}

impl PendingEdit {
    /// Whether it was made for this keyspace.
    pub(crate) fn concerns(&self, id: KeyspaceId) -> bool {
        self.keyspaces.iter().any(|k| k.id == id)
    }
}

/// Live keyspaces by id and by name.
#[derive(Default, Clone)]
pub(crate) struct KeyspaceMap {
    pub(crate) by_id: BTreeMap<KeyspaceId, Arc<KeyspaceCore>>,
    pub(crate) by_name: BTreeMap<String, KeyspaceId>,
    /// The names of the keyspaces dropped last, for messages: a batch has only their numbers.
    pub(crate) dropped: BTreeMap<KeyspaceId, String>,
}

/// The most names of dropped keyspaces that are remembered.
pub(crate) const DROPPED_NAMES_MAX: usize = 64;

/// The positions from which on something other than a memtable needs the log: creates, drops and
/// ingests without a durable edit, and data that waits for room after an open on a full disk.
#[derive(Default)]
pub(crate) struct Pins {
    next: u64,
    pub(crate) pinned: BTreeMap<u64, Position>,
}

/// See the module.
pub(crate) struct Core {
    /// Identifies this open of the store, to which its batches belong.
    pub(crate) session: SessionId,
    /// As the store was opened.
    pub(crate) options: Options,
    /// As they are now: those that change while the store is open are read here.
    pub(crate) live: ArcSwap<Options>,
    /// The file of options in the store's folder as the open found it; an open for reading ignores
    /// it.
    pub(crate) options_file: crate::formats::options_file::Read,
    pub(crate) sync_every_write: bool,
    pub(crate) runtime: Runtime,
    pub(crate) storages: Storages,
    /// The storages beneath those of an open for reading, and the log that it replayed.
    pub(crate) below: Option<crate::env::wrapped_storage::Below>,
    pub(crate) guards: Guards,
    pub(crate) epoch: Epoch,
    pub(crate) jobs: JobRunner,
    pub(crate) lease: Mutex<Option<Box<dyn Lease>>>,
    pub(crate) health: Arc<Health>,
    pub(crate) events: Arc<Events>,
    pub(crate) stalls: Stalls,
    pub(crate) snapshots: Arc<SnapshotRegistry>,
    pub(crate) metrics: Metrics,
    pub(crate) queue: WriteQueue,
    pub(crate) log: LogWriter,
    pub(crate) interval_sync: IntervalSync,
    pub(crate) keyspaces: ArcSwap<KeyspaceMap>,
    /// Held over a create, drop or ingest, from its record to its edit.
    pub(crate) ddl: Mutex<()>,
    pub(crate) pins: Mutex<Pins>,
    /// Ingests that bring files in; closing waits for them.
    pub(crate) guests: Guests,
    /// A table that an ingest linked could not be synced: from then on they are copied.
    pub(crate) links_fail: AtomicBool,
    pub(crate) manifest: Mutex<ManifestRole>,
    /// The highest number that may be given.
    pub(crate) ceiling: AtomicU64,
    pub(crate) schedule: Mutex<Schedule>,
    /// Something may have become possible: a flush, a compaction, an end.
    pub(crate) work: Condvar,
    /// A job ended or nothing is left to do.
    pub(crate) settled: Condvar,
    pub(crate) tables: Arc<TableSet>,
    pub(crate) arenas: Arenas,
    pub(crate) next_table_id: AtomicU64,
    /// The id of the next keyspace: raised with the record that gives one away, whatever becomes of its edit. `ddl` guards it.
    pub(crate) next_keyspace_id: AtomicU32,
    pub(crate) closing: AtomicBool,
    /// The store was opened on a full disk: replayed data is in memory, and the log that has it is not the one being written.
    pub(crate) waits_for_room: AtomicBool,
    pub(crate) rest: Mutex<Option<crate::services::recovery::Rest>>,
    /// Log bytes that replay would read, refreshed when segments begin and end; for the pressure policy.
    pub(crate) log_bytes: AtomicU64,
    /// Space is wanted: the background tries to leave `NoSpace`.
    pub(crate) tidy: Mutex<Tidy>,
    pub(crate) tidy_wake: Condvar,
    /// Workers that pause after a failed job wait here.
    pub(crate) tidy_pause: Condvar,
    pub(crate) tasks: Mutex<crate::background::Tasks>,
    pub(crate) last_job_error: Mutex<Option<Error>>,
    /// The number of hidden entries from which on a cursor records a gap. Tests change it.
    pub(crate) gap_min: AtomicU64,
    /// There is a file of published statistics that is this open's.
    pub(crate) published: AtomicBool,
}

/// What the maintenance task is asked for.
#[derive(Default)]
pub(crate) struct Tidy {
    pub(crate) wanted: bool,
    pub(crate) closing: bool,
}

impl Core {
    /// The number of hidden entries from which on a cursor records a gap ([`crate::tree::gaps`]).
    #[inline]
    pub(crate) fn gap_min(&self) -> u64 {
        self.gap_min.load(Ordering::Relaxed)
    }

    /// A live keyspace.
    #[inline]
    pub(crate) fn keyspace_by_id(&self, id: KeyspaceId) -> Result<Arc<KeyspaceCore>> {
        let map = self.keyspaces.load();
        match map.by_id.get(&id) {
            Some(keyspace) => Ok(keyspace.clone()),
            None => Err(no_keyspace(&map, id)),
        }
    }

    /// Makes sure that numbers up to `last` may be given. Normally one load: the background raises the ceiling at half.
    #[inline]
    pub(crate) fn reserve_numbers(&self, last: u64) -> Result<()> {
        let ceiling = self.ceiling.load(Ordering::Acquire);
        if last + CEILING_STEP / 2 > ceiling {
            self.wake_tidy();
            if last > ceiling {
                return self.raise_ceiling(last);
            }
        }
        Ok(())
    }

    /// Raises the ceiling to at least a step above `beyond`.
    #[cold]
    pub(crate) fn raise_ceiling(&self, beyond: u64) -> Result<()> {
        let mut role = self.manifest.lock();
        let wanted = beyond
            .saturating_add(CEILING_STEP)
            .min(crate::formats::log::format::MAX_SEQUENCE);
        if wanted <= self.ceiling.load(Ordering::Acquire) {
            return if beyond <= wanted {
                Ok(())
            } else {
                Err(numbers_exhausted())
            };
        }
        if beyond > wanted {
            return Err(numbers_exhausted());
        }
        let edit = Edit {
            sequence_ceiling: Some(wanted),
            ..Edit::default()
        };
        self.commit_edit(&mut role, edit)?;
        self.ceiling.store(wanted, Ordering::Release);
        Ok(())
    }

    /// Appends an edit, with whatever is pending before it, makes it durable and takes it into the state. The caller replaces the
    /// views that it concerns while it still has the role.
    pub(crate) fn commit_edit(&self, role: &mut ManifestRole, edit: Edit) -> Result<()> {
        self.health.check_manifest()?;
        if let Err(error) = self.commit_pending(role) {
            // An edit that gives space back may overtake the others: they say nothing of its keyspaces any more.
            if !may_wait(&error) || !edit.gives_space_back() {
                return Err(error);
            }
        }
        self.commit_one(role, edit)
    }

    /// Commits what waits for room.
    pub(crate) fn commit_pending(&self, role: &mut ManifestRole) -> Result<()> {
        while let Some(first) = role.pending.first() {
            let edit = first.edit.clone();
            if let Err(error) = self.commit_one(role, edit) {
                if !may_wait(&error) {
                    // It was acknowledged, and no later edit could pass it.
                    self.health.poison(&error);
                }
                return Err(error);
            }
            let done = role.pending.remove(0);
            if !planted::is(Bug::PendingStaysUnsettled) {
                for keyspace in &done.keyspaces {
                    crate::services::ddl::settle(self, role, keyspace);
                }
            }
            self.unpin_log(done.pin);
        }
        Ok(())
    }

    fn commit_one(&self, role: &mut ManifestRole, mut edit: Edit) -> Result<()> {
        let state = role.manifest.state();
        let synced = self.log.synced();
        // A place in this open's chain means nothing to a replay that begins before it: while replayed data waits for room, the inherited chain
        // is the log, and a mark beyond its end would read as damage.
        let replay_from = edit.log_start.unwrap_or(state.log_start).segment;
        let beyond = u64::from(edit.closed && planted::is(Bug::CloseEndTooFar)) * 64;
        edit.log_synced = Some(LogPosition {
            segment: synced.segment.into(),
            offset: u64::from(synced.offset) + beyond,
        })
        .filter(|p| *p > state.log_synced && replay_from >= self.log.first_segment().into());
        if edit.closed && edit.log_synced.is_none() {
            // It always says where the log ends, also because no edit may be as short as a seal.
            edit.log_synced = Some(state.log_synced);
        }
        edit.next_table_id =
            Some(self.next_table_id.load(Ordering::Acquire)).filter(|id| *id > state.next_table_id);
        self.check_whole(role)?;
        crate::catalog::reserve::before_edit(self, role, &edit);
        role.writing = true;
        let committed = role.manifest.commit(&edit);
        role.writing = false;
        match committed {
            Ok(_) => {
                // The edit stands, but a manifest that was to replace this one is in doubt: nothing more may be written.
                if let Some(error) = role.manifest.writer().failed() {
                    self.health.poison(error);
                }
                Ok(())
            }
            Err(error) => {
                // The writer knows whether bytes are in doubt. Else nothing was written: there was no room, the space could not be reserved
                // for another reason, or the state refused the edit.
                if role.manifest.writer().failed().is_some() {
                    self.health.poison(&error);
                } else if error.kind() == ErrorKind::NoSpace {
                    self.health.set_no_space(&error);
                }
                Err(error)
            }
        }
    }

    /// What a task left that panicked while it wrote an edit is unknown: poison.
    fn check_whole(&self, role: &ManifestRole) -> Result<()> {
        if !role.writing {
            return Ok(());
        }
        let error = Error::new(
            ErrorKind::Poisoned,
            "a task panicked while it wrote the manifest",
        )
        .advice("this is a bug: report it; reopen the store");
        self.health.poison(&error);
        Err(error)
    }

    /// After a panic: poisons if it came while an edit was being written.
    pub(crate) fn check_manifest_is_whole(&self) {
        let _ = self.check_whole(&self.manifest.lock());
    }

    /// The last edit of a close: where the log starts, where it ends, and that the store was closed
    /// there (RFC 1, section 15). The caller has refused all changes and ended all tasks, so
    /// nothing is appended to the log or the manifest any more, and has synced the log through its
    /// end.
    ///
    /// While replayed data waits for room, the log that a replay reads is the inherited one. The
    /// manifest knows its end since the open, and `commit_one` leaves it as it is.
    pub(crate) fn commit_close(&self) -> Result<()> {
        let mut role = self.manifest.lock();
        let waits_for_room = self.waits_for_room.load(Ordering::Acquire);
        let edit = Edit {
            log_start: match waits_for_room {
                true => None,
                false => self.log_start_edit(role.manifest.state(), &[]),
            },
            closed: true,
            ..Edit::default()
        };
        self.commit_one(&mut role, edit)?;
        role.manifest.record_end().inspect_err(|error| {
            if role.manifest.writer().failed().is_some() {
                self.health.poison(error);
            }
        })
    }

    /// Syncs everything that is in the log.
    pub(crate) fn sync_log(&self) -> Result<()> {
        self.health.check_manifest()?;
        self.sync_log_through(self.log.end())
    }

    /// Syncs the log through `position`; poison is set before anybody is answered.
    pub(crate) fn sync_log_through(&self, position: Position) -> Result<()> {
        if self.log.synced() >= position {
            return Ok(());
        }
        let start = self.runtime.now();
        let result = self.log.sync(position).map(|_| ());
        self.metrics.log_sync_count.add(1);
        self.metrics
            .sync_time
            .record(self.runtime.now().since(start));
        result
    }

    /// Keeps the log from `position` on until the pin is taken away.
    pub(crate) fn pin_log(&self, position: Position) -> u64 {
        let mut pins = self.pins.lock();
        let id = pins.next;
        pins.next += 1;
        pins.pinned.insert(id, position);
        id
    }

    pub(crate) fn unpin_log(&self, pin: u64) {
        self.pins.lock().pinned.remove(&pin);
    }

    /// The position before which nothing but the memtables in `done` needs the log.
    ///
    /// The log's end is read first: a leader pins its sources to the end that it read before its
    /// append, so whatever is pinned after we looked at a source lies at that end or behind it. The
    /// keyspaces are looked at before the pins: a drop pins what its keyspace needs before the
    /// keyspace leaves the map, so it is seen in one of the two.
    pub(crate) fn log_start_without(&self, done: &[u64]) -> Position {
        let start = pinning::log_start(
            || self.log.end().to_u64(),
            || {
                let mut needed: Vec<Position> = Vec::new();
                for keyspace in self.keyspaces.load().by_id.values() {
                    needed.extend(keyspace.view().sources.iter().filter_map(|s| match s {
                        Source::Memtable(m)
                            if !done.contains(&m.id)
                                && !planted::is(Bug::LogStartForgetsOthers) =>
                        {
                            m.first_position()
                        }
                        _ => None,
                    }));
                }
                needed.extend(self.pins.lock().pinned.values());
                needed.into_iter().map(Position::to_u64)
            },
        );
        Position::from_u64(start)
    }

    /// The log start for an edit after which nothing needs the memtables in `done` any more, unless
    /// the manifest has one as far already. It never lies behind what is synced: what is before it
    /// is passed over where it is damaged, so power loss must not be able to damage it.
    pub(crate) fn log_start_edit(&self, state: &StoreState, done: &[u64]) -> Option<LogStart> {
        let needed = self.log_start_without(done);
        let needed = needed.min(self.log.synced());
        let start = LogStart {
            segment: needed.segment.into(),
            offset: needed.offset.into(),
            salt: self.log.salt(),
        };
        Some(start).filter(|start| start.position() > state.log_start.position())
    }

    /// Wakes flush and compaction.
    pub(crate) fn wake_background(&self) {
        let mut schedule = self.schedule.lock();
        schedule.events += 1;
        self.work.notify_all();
    }

    /// Wakes the maintenance task.
    pub(crate) fn wake_tidy(&self) {
        let mut tidy = self.tidy.lock();
        if !tidy.wanted {
            tidy.wanted = true;
            self.tidy_wake.notify_all();
        }
    }

    pub(crate) fn check_open(&self) -> Result<()> {
        if self.closing.load(Ordering::Acquire) {
            Err(closed())
        } else {
            Ok(())
        }
    }
}

#[cold]
fn no_keyspace(map: &KeyspaceMap, id: KeyspaceId) -> Error {
    let name = match map.dropped.get(&id) {
        Some(name) => format!("`{name}`"),
        None => format!("number {id}"),
    };
    dropped_keyspace(&name)
}

/// Whether an edit that failed so may be committed later: nothing was written, and the state would take it. The manifest could not grow.
pub(crate) fn may_wait(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::NoSpace | ErrorKind::Io)
}

#[cold]
fn numbers_exhausted() -> Error {
    Error::new(
        ErrorKind::Unsupported,
        "the store has given its last sequence number",
    )
    .expected("numbers below 2^56")
    .advice("copy the data to a new store")
}
