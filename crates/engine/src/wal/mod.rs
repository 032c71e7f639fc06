//! The open log: appends to it, and when it is synced.
//!
//! A storage that cannot be reached fails single calls and poisons nothing ([`Appended`]). Writers
//! get the error after the time limit of the storage. Background work and changes of the manifest
//! wait instead ([`Wal::sync_log_for_background`]).
//!
//! Nothing here knows keyspaces.
//!
//! Threading: as the log's writer. A wait for the storage holds no lock of this folder.

pub(crate) mod interval;

use std::sync::Arc;
use std::time::Duration;

use siltstone_storage::planted;

use crate::env::Env;
use crate::formats::log::{LogStats, LogWriter, Position, RecordKind, SegmentPart};
use crate::formats::version::LogStart;
use crate::types::error::{Error, ErrorKind, Result};
use crate::types::options::SyncMode;
use crate::wal::interval::IntervalSync;

/// A record that is in the log.
pub(crate) struct Appended {
    /// Where the record ends.
    pub(crate) end: Position,
    /// The error of the sync that was asked for, if it is in doubt: the record is in the log, and
    /// it is not known whether it is durable.
    pub(crate) unsynced: Option<Error>,
    /// How long the sync took that was asked for.
    pub(crate) sync_time: Duration,
}

/// The open log, and when it is synced.
pub(crate) struct Wal {
    env: Arc<Env>,
    log: LogWriter,
    sync_every_write: bool,
    interval_sync: IntervalSync,
}

impl Wal {
    pub(crate) fn new(env: &Arc<Env>, log: LogWriter) -> Wal {
        let sync = env.options().sync;
        let interval = match sync {
            SyncMode::Interval(interval) => Some(interval),
            SyncMode::Always | SyncMode::Never => None,
        };
        Wal {
            env: env.clone(),
            log,
            sync_every_write: sync == SyncMode::Always,
            interval_sync: IntervalSync::new(env.runtime(), interval),
        }
    }

    #[inline]
    pub(crate) fn env(&self) -> &Arc<Env> {
        &self.env
    }

    /// Where the log ends.
    #[inline]
    pub(crate) fn end(&self) -> Position {
        self.log.end()
    }

    /// The position through which the log is synced.
    pub(crate) fn synced(&self) -> Position {
        self.log.synced()
    }

    /// The first segment of this open's chain.
    pub(crate) fn first_segment(&self) -> u32 {
        self.log.first_segment()
    }

    /// Where this open's chain of segments starts.
    pub(crate) fn chain_start(&self) -> LogStart {
        self.log.chain_start()
    }

    /// A position of this open's chain, as an edit has it.
    pub(crate) fn log_start_at(&self, position: Position) -> LogStart {
        LogStart {
            segment: position.segment.into(),
            offset: position.offset.into(),
            salt: self.log.salt(),
        }
    }

    /// Bytes of the log from this segment on.
    pub(crate) fn bytes_since(&self, segment: u32) -> u64 {
        self.log.bytes_since(segment)
    }

    /// See [`LogWriter::appended_bytes`].
    pub(crate) fn appended_bytes(&self) -> u64 {
        self.log.appended_bytes()
    }

    pub(crate) fn stats(&self) -> LogStats {
        self.log.stats()
    }

    /// See [`LogWriter::needs_prepare`].
    pub(crate) fn needs_prepare(&self, wanted: usize) -> bool {
        self.log.needs_prepare(wanted)
    }

    /// See [`LogWriter::prepare`].
    pub(crate) fn prepare(&self, wanted: usize) -> Result<()> {
        self.log.prepare(wanted)
    }

    /// See [`LogWriter::switch_wait`].
    pub(crate) fn switch_wait(&self) -> Duration {
        self.log.switch_wait()
    }

    /// See [`LogWriter::obsolete`]. Segments that memtables read stay.
    pub(crate) fn obsolete(&self, before: u32) -> Result<()> {
        let pins = self.env.segment_pins();
        let is_pinned = |segment| pins.is_pinned(segment) && !planted!(PinsAreIgnored);
        self.log.obsolete_except(before, &is_pinned).map(drop)
    }

    /// See [`LogWriter::parts_between`].
    pub(crate) fn parts_between(&self, first: Position, last: Position) -> Vec<SegmentPart> {
        self.log.parts_between(first, last)
    }

    /// The salt of this open's chain of segments.
    pub(crate) fn salt(&self) -> u64 {
        self.log.salt()
    }

    /// See [`LogWriter::shrink`].
    pub(crate) fn shrink(&self, least_bytes: u64) -> Result<()> {
        self.log.shrink(least_bytes)
    }

    /// Releases the files of the log.
    pub(crate) fn release(&self) {
        self.log.release();
    }

    /// Whether each write is synced.
    #[inline]
    pub(crate) fn sync_every_write(&self) -> bool {
        self.sync_every_write
    }

    /// How often the log is synced, with [`SyncMode::Interval`].
    pub(crate) fn sync_interval(&self) -> Option<Duration> {
        self.interval_sync.interval()
    }

    /// Wakes the task of [`SyncMode::Interval`], so that it sees that the store closes.
    pub(crate) fn wake_interval_sync(&self) {
        self.interval_sync.wake();
    }

    /// Appends one record, whose payload are all `parts`, and syncs the log through it if `sync`.
    ///
    /// # Errors
    /// The record is not in the log, or the store is poisoned. [`ErrorKind::Unreachable`]: it is
    /// not in the log, and the call may be repeated.
    pub(crate) fn append(
        &self,
        kind: RecordKind,
        first: u64,
        count: u64,
        parts: &[&[u8]],
        sync: bool,
    ) -> Result<Appended> {
        let appended = self.log.append(kind, first, count, parts);
        let end = appended.inspect_err(|error| self.env.outage().count_failure(error))?;
        if !sync {
            self.interval_sync.written();
        }
        let mut unsynced = None;
        let mut sync_time = Duration::ZERO;
        if sync && !planted!(AcknowledgeBeforeSync) {
            let start = self.env.now();
            let synced = self.sync_log_through(end);
            sync_time = self.env.now().since(start);
            match synced {
                Err(error) if error.kind() == ErrorKind::Unsynced => {
                    unsynced = Some(error);
                    // Nobody may ask for a sync again, so the sync of the interval takes it over.
                    self.interval_sync.written();
                }
                synced => synced?,
            }
        }
        Ok(Appended {
            end,
            unsynced,
            sync_time,
        })
    }

    /// Syncs the log through its present end.
    pub(crate) fn sync_log(&self) -> Result<()> {
        self.env.health().check_manifest()?;
        self.sync_log_through(self.log.end())
    }

    /// Syncs the log through `position`, for work that must not go on before. If the storage cannot
    /// be reached, this waits until it can, or the store closes.
    ///
    /// # Errors
    /// Those of [`Wal::sync_log_through`]; [`ErrorKind::Unsynced`] only if the store closes.
    pub(crate) fn sync_log_for_background(&self, position: Position) -> Result<()> {
        self.env.outage().repeat(|| self.sync_log_through(position))
    }

    /// Syncs the log through `position`, for a change that has not begun and needs that.
    ///
    /// # Errors
    /// Those of [`Wal::sync_log_through`], but [`ErrorKind::Unreachable`] for a sync in doubt:
    /// nothing has changed for the caller.
    pub(crate) fn sync_log_before_change(&self, position: Position) -> Result<()> {
        let synced = self.sync_log_through(position);
        synced.map_err(|error| match error.kind() {
            ErrorKind::Unsynced => error.with_kind(ErrorKind::Unreachable),
            _ => error,
        })
    }

    /// Syncs the log through `position`. If that fails, the store is poisoned before any caller
    /// gets the error.
    ///
    /// # Errors
    /// [`ErrorKind::Unsynced`] if the storage did not answer in time: nothing is poisoned, and it
    /// is not known what is durable beyond [`Wal::synced`].
    pub(crate) fn sync_log_through(&self, position: Position) -> Result<()> {
        if self.log.synced() >= position {
            return Ok(());
        }
        let start = self.env.now();
        let result = self.log.sync(position).map(|_| ());
        self.env.metrics().log_sync_count.add(1);
        self.env
            .metrics()
            .sync_time
            .record(self.env.now().since(start));
        match &result {
            Ok(()) => self.env.outage().count_success(),
            Err(error) => self.env.outage().count_failure(error),
        }
        result
    }
}
