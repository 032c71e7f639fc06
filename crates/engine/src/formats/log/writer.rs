//! The writer of the log: it appends, syncs, makes the next segment ready, and lets obsolete ones
//! go.
//!
//! Invariants:
//! - A record has the synced position if it is the first one that begins in its unit of 512 bytes,
//!   or if the position has changed since the last record that has it (`docs/format/log.md`).
//! - When `append` returns, the record is complete. The *end* is raised after the write, so a sync
//!   that loads it covers the record.
//! - Before the synced position enters segment N, the bytes of all earlier segments of the chain,
//!   N's header and N's name are synced. Names are synced when a segment is made ready, bytes
//!   oldest first.
//! - A failed sync of log bytes or of the folder, and a failed write into reserved space, poison
//!   the log. The poison stays, is set before the sync role is passed on, and no such call is ever
//!   repeated. A segment that cannot be made ready (a full disk) poisons nothing: the append fails
//!   without a change and may be repeated.
//! - A storage that cannot be reached ([`ErrorKind::Unreachable`]) poisons nothing either. A failed
//!   append has had no effect, so the record has no position. A failed sync is in doubt
//!   ([`ErrorKind::Unsynced`]): the synced position stays, and a later sync covers the same bytes.
//! - A writer never changes an inherited log. It starts a chain of its own, numbered above every
//!   name found.
//!
//! Threading: `append` is for the one leader of a group (a lock makes a mistake harmless);
//! everything else is for any thread. The order of locks is appender > supply > ready > live >
//! cause of the poison. The sync role is taken before live and never together with appender or
//! supply. An append waits for no sync.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use siltstone_storage::planted;
use siltstone_storage::{
    Epoch, Mutex, Runtime, Storage, StorageError, StorageErrorKind, WriteFile,
};

use super::format::{
    ChainEnd, LONG_RECORD_HEADER_BYTES, MAX_PAYLOAD_BYTES, MAX_SEGMENT_BYTES, MAX_SEQUENCE,
    MIN_SEGMENT_BYTES, POSITION_UNIT_BYTES, RECORD_ALIGN_BYTES, RecordHeader, RecordKind,
    RecordSeed, SEGMENT_HEADER_BYTES, SegmentHeader, chain, padding_bytes, parse_segment_name,
    record_bytes,
};
use super::position::{AtomicPosition, LogStart, Position};
use super::segments::{Fresh, Live, LiveSegment, SYNCS_OF_WRITERS, Supply, SupplyError};
use super::values::{self, SegmentPart};
use crate::types::error::{Error, ErrorKind, Result, closed};

/// The number of parts of a record that are written without an allocation.
const INLINE_PARTS: usize = 64;

/// [`LogWriter::shrink`] cuts a segment at a multiple of this many bytes.
const CUT_BYTES: u64 = 4 << 10;

/// Settings of the log.
#[derive(Clone, Debug)]
pub struct LogOptions {
    /// The full size of a segment in bytes: 4 KiB to just below 4 GiB. The first segments are
    /// smaller. A larger batch gets a larger segment of its own.
    pub segment_bytes: u64,
    /// The most obsolete segments that are kept to be recycled.
    pub recycle_count: usize,
}

impl Default for LogOptions {
    fn default() -> LogOptions {
        LogOptions {
            segment_bytes: 64 << 20,
            recycle_count: 4,
        }
    }
}

/// What a new log needs from its owner.
pub struct LogConfig {
    /// The storage of the segments.
    pub storage: Arc<dyn Storage>,
    /// The lease under which the log is written.
    pub epoch: Epoch,
    /// Locks and randomness.
    pub runtime: Runtime,
    /// The store's id.
    pub store_id: u64,
    /// Settings.
    pub options: LogOptions,
    /// A file with written space that becomes the first segment if there is no room for a new one.
    pub reserve: Option<String>,
    /// The last segment that the manifest knows. New segments are numbered above it, even if it
    /// does not exist any more.
    pub last_known_segment: u32,
    /// Called once, when the log is poisoned, before any call gets its error. It must not call the
    /// log.
    pub on_poison: Box<dyn Fn(&Error) + Send + Sync>,
}

/// Figures of the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(default)]
pub struct LogStats {
    /// The number of the oldest segment that is kept.
    pub oldest_segment: u32,
    /// The number of the newest segment, which is being written.
    pub newest_segment: u32,
    /// The number of segments that are kept, including the one being written, without prepared and
    /// pooled ones.
    pub live_segment_count: usize,
    /// Bytes in these segments: up to the end of their records; of segments found at the open, the
    /// whole file.
    pub live_bytes: u64,
    /// The number of segments that are ready and not in use yet.
    pub prepared_segment_count: usize,
    /// The number of obsolete segments that wait to be recycled.
    pub pooled_segment_count: usize,
    /// Segments created since the open.
    pub created_segment_count: u64,
    /// Segments recycled since the open.
    pub recycled_segment_count: u64,
    /// Bytes of zeros that were written since the open to prepare segments. Records then replace
    /// them.
    pub zeroed_bytes: u64,
    /// Records appended since the open.
    pub appended_record_count: u64,
    /// Bytes appended since the open, including headers and padding.
    pub appended_bytes: u64,
    /// Syncs since the open.
    pub sync_count: u64,
}

/// The state that `append` changes.
struct Appender {
    /// `None` once the log was released.
    file: Option<Arc<dyn WriteFile>>,
    number: u32,
    seed: RecordSeed,
    /// The offset of the next record.
    offset: u32,
    /// Reserved space of the segment, in bytes.
    capacity: u64,
    chain: u32,
    next_sequence: u64,
    /// The last offset of the unit of [`POSITION_UNIT_BYTES`] in which the last record began. A
    /// record that begins behind this offset has the synced position. It is 0 in a segment that
    /// has no record.
    unit_last: u32,
    /// The synced position of the last record that has one.
    last_given: Position,
}

impl Appender {
    fn as_live(&self) -> LiveSegment {
        LiveSegment {
            number: self.number,
            len_bytes: self.file.as_ref().map_or(0, |file| file.len()),
            end: None,
            file: self.file.clone(),
        }
    }
}

/// The last sync that was in doubt.
#[derive(Default)]
struct InDoubt {
    /// The position through which it should have synced the log, and its error.
    last: Option<(Position, Error)>,
}

/// The writer of the log. See the module.
pub struct LogWriter {
    store_id: u64,
    /// One salt for the whole chain: see `docs/format/log.md`.
    salt: u64,
    first_segment: u32,
    appender: Mutex<Appender>,
    supply: Mutex<Supply>,
    /// The segments that are ready, in the order in which they will be used. Never held over I/O:
    /// a leader that finds one here does not wait for one that is being made.
    ready: Mutex<VecDeque<Fresh>>,
    live: Mutex<Live>,
    sync_role: Mutex<InDoubt>,
    /// The number of syncs that are in doubt, so that a caller who waited for one sees that.
    in_doubt_count: AtomicU64,
    storage: Arc<dyn Storage>,
    epoch: Epoch,
    runtime: Runtime,
    end: AtomicPosition,
    synced: AtomicPosition,
    ready_count: AtomicUsize,
    /// A leader waits for a segment.
    leader_waits: AtomicBool,
    /// The number of syncs when the segment that is being written was entered, and how many there
    /// were while the one before was written.
    syncs_at_entry: AtomicU64,
    syncs_in_last: AtomicU64,
    /// How long the last switch to a new segment waited for one, in nanoseconds.
    switch_wait_ns: AtomicU64,
    poisoned: AtomicBool,
    cause: Mutex<Option<Error>>,
    on_poison: Box<dyn Fn(&Error) + Send + Sync>,
    appended_record_count: AtomicU64,
    appended_bytes: AtomicU64,
    sync_count: AtomicU64,
}

impl LogWriter {
    /// Starts a new chain. Segments that are found are not touched, and listed as live until
    /// [`LogWriter::obsolete`] lets them go. The new segment is an orphan until the manifest names
    /// [`LogWriter::first_segment`]. Nothing in it is synced before [`LogWriter::sync`].
    ///
    /// # Errors
    /// [`ErrorKind::NoSpace`] if there is no room for the segment (nothing is left behind), any
    /// other failure of the storage, [`ErrorKind::InvalidArgument`] for options that are not valid.
    pub fn start(config: LogConfig) -> Result<LogWriter> {
        let LogConfig {
            storage,
            epoch,
            runtime,
            store_id,
            options,
            reserve,
            last_known_segment,
            on_poison,
        } = config;
        let size = options.segment_bytes;
        if !(MIN_SEGMENT_BYTES..=MAX_SEGMENT_BYTES).contains(&size) {
            return Err(
                Error::invalid_argument("the log's segment size is out of range")
                    .expected(format_args!(
                        "{MIN_SEGMENT_BYTES} to {MAX_SEGMENT_BYTES} bytes"
                    ))
                    .found(format_args!("{size} bytes")),
            );
        }
        let mut live = Live::default();
        let mut highest = last_known_segment;
        let mut objects = storage.list()?;
        objects.sort();
        for object in objects {
            if let Some(number) = parse_segment_name(&object.name) {
                highest = number.max(highest);
                live.push(LiveSegment {
                    number,
                    len_bytes: object.len,
                    end: Some(u32::try_from(object.len).unwrap_or(u32::MAX)),
                    file: None,
                });
            }
        }
        let salt = runtime.random_u64();
        let mut supply = Supply::new(storage.clone(), epoch, size, options.recycle_count, highest);
        let fresh = match (supply.prepare(false), reserve) {
            (Ok(fresh), _) => fresh,
            (Err(failure), Some(name)) if failure.error.is_no_space() => {
                supply.prepare_from(&name).map_err(|e| e.error)?
            }
            (Err(failure), _) => return Err(failure.error),
        };
        let first_segment = fresh.number;
        let header = SegmentHeader {
            store_id,
            number: first_segment,
            salt,
            previous: ChainEnd::NONE,
        };
        let appender = Self::enter(fresh.file, &header, 0)?;
        live.push(appender.as_live());
        Ok(LogWriter {
            store_id,
            salt,
            first_segment,
            end: AtomicPosition::new(Position::new(first_segment, appender.offset)),
            synced: AtomicPosition::new(Position::new(first_segment, 0)),
            appender: runtime.mutex(appender),
            supply: runtime.mutex(supply),
            ready: runtime.mutex(VecDeque::new()),
            live: runtime.mutex(live),
            sync_role: runtime.mutex(InDoubt::default()),
            in_doubt_count: AtomicU64::new(0),
            storage,
            epoch,
            ready_count: AtomicUsize::new(0),
            leader_waits: AtomicBool::new(false),
            syncs_at_entry: AtomicU64::new(0),
            syncs_in_last: AtomicU64::new(0),
            switch_wait_ns: AtomicU64::new(0),
            poisoned: AtomicBool::new(false),
            cause: runtime.mutex(None),
            runtime,
            on_poison,
            appended_record_count: AtomicU64::new(0),
            appended_bytes: AtomicU64::new(0),
            sync_count: AtomicU64::new(0),
        })
    }

    /// Writes the header of a fresh segment, and returns the state for appending to it.
    fn enter(
        file: Arc<dyn WriteFile>,
        header: &SegmentHeader,
        next_sequence: u64,
    ) -> Result<Appender> {
        let bytes = header.encode();
        file.append(&[&bytes])?;
        let capacity = file.len().min(MAX_SEGMENT_BYTES);
        Ok(Appender {
            file: Some(file),
            number: header.number,
            seed: RecordSeed::new(header.salt, header.number),
            offset: SEGMENT_HEADER_BYTES as u32,
            capacity,
            chain: u32::from_le_bytes(bytes[60..64].try_into().expect("four bytes")),
            next_sequence,
            unit_last: 0,
            last_given: Position::ZERO,
        })
    }

    /// Appends one record: the concatenation of `parts`, which have `sequence_count` entries
    /// numbered from `first_sequence` on. Returns the end of the record, through which
    /// [`LogWriter::sync`] must sync it. The whole record lies in the segment of that position.
    ///
    /// # Errors
    /// [`ErrorKind::NoSpace`], or another failure to make a segment ready: nothing was written, and
    /// the call may be repeated. [`ErrorKind::InvalidArgument`]: the payload is too large, or the
    /// numbers do not ascend. [`ErrorKind::Unreachable`]: the storage did not answer in time, so
    /// nothing was written either. [`ErrorKind::Poisoned`]: the log takes no more records.
    pub fn append(
        &self,
        kind: RecordKind,
        first_sequence: u64,
        sequence_count: u64,
        parts: &[&[u8]],
    ) -> Result<Position> {
        let payload_bytes: u64 = parts.iter().map(|part| part.len() as u64).sum();
        if payload_bytes > MAX_PAYLOAD_BYTES {
            return Err(Error::invalid_argument("the log record is too large")
                .expected(format_args!("at most {MAX_PAYLOAD_BYTES} bytes"))
                .found(format_args!("{payload_bytes} bytes")));
        }
        self.check()?;
        // Whether the record has the synced position may depend on the segment that it gets into.
        let reserved = record_bytes(LONG_RECORD_HEADER_BYTES, payload_bytes);
        let mut appender = self.appender.lock();
        if appender.file.is_none() {
            return Err(closed());
        }
        let after = first_sequence
            .checked_add(sequence_count)
            .filter(|after| first_sequence >= appender.next_sequence && *after <= MAX_SEQUENCE + 1);
        let Some(next_sequence) = after else {
            return Err(
                Error::invalid_argument("the log record's sequence numbers do not ascend")
                    .expected(format_args!("{} to {MAX_SEQUENCE}", appender.next_sequence))
                    .found(format_args!(
                        "{sequence_count} numbers from {first_sequence} on"
                    )),
            );
        };
        if u64::from(appender.offset) + reserved > appender.capacity {
            self.switch(&mut appender, reserved)?;
        }
        let synced = self.synced.load();
        // Rules W1 and W2 of `docs/format/log.md`.
        let gives_position =
            (appender.offset > appender.unit_last) | (synced != appender.last_given);
        let header = RecordHeader {
            payload_bytes: payload_bytes as u32,
            kind: kind as u8,
            synced: gives_position.then_some(synced),
            first_sequence,
        };
        let (header, checksum) = header.encode(appender.seed, appender.offset, parts);
        let padding = &[0u8; RECORD_ALIGN_BYTES][..padding_bytes(payload_bytes)];
        let total = record_bytes(header.len(), payload_bytes);
        let file = appender.file.as_ref().expect("the log is not released");
        let written = if let [part] = parts {
            file.append(&[&header, part, padding])
        } else if parts.len() <= INLINE_PARTS {
            let mut all: [&[u8]; INLINE_PARTS + 2] = [&[]; INLINE_PARTS + 2];
            all[0] = &header;
            all[1..=parts.len()].copy_from_slice(parts);
            all[parts.len() + 1] = padding;
            // An empty last part would be one more vector for the kernel.
            file.append(&all[..parts.len() + 1 + usize::from(!padding.is_empty())])
        } else {
            let mut all = Vec::with_capacity(parts.len() + 2);
            all.push(&header[..]);
            all.extend_from_slice(parts);
            all.push(padding);
            file.append(&all)
        };
        let is_unreachable = |e: &StorageError| e.kind == StorageErrorKind::Unreachable;
        match written {
            // The append had no effect, so the next record takes its place.
            Err(error) if is_unreachable(&error) && !planted!(UnreachableAppendCounts) => {
                return Err(Error::from(error).context("writing a log record"));
            }
            // The space is reserved, so this is not a full disk, which might pass. What is on the
            // disk is unknown.
            Err(error) if !is_unreachable(&error) => {
                return Err(self.poison(Error::from(error).context("writing a log record")));
            }
            _ => {}
        }
        // What the record says counts only now that it is written: a failed append may be repeated
        // at the same place, with another synced position.
        appender.unit_last = appender.offset | (POSITION_UNIT_BYTES - 1);
        appender.last_given = synced;
        appender.offset += total as u32;
        appender.chain = chain(appender.chain, checksum);
        appender.next_sequence = next_sequence;
        let end = Position::new(appender.number, appender.offset);
        self.end.raise(end);
        // Only the holder of the appender changes them.
        let add = |count: &AtomicU64, n| {
            count.store(count.load(Ordering::Relaxed) + n, Ordering::Relaxed);
        };
        add(&self.appended_record_count, 1);
        add(&self.appended_bytes, total);
        Ok(end)
    }

    /// Whether writers sync the log, and not only flushes.
    fn is_synced_by_writers(&self) -> bool {
        let now = self.sync_count.load(Ordering::Relaxed);
        let here = now.saturating_sub(self.syncs_at_entry.load(Ordering::Relaxed));
        here.max(self.syncs_in_last.load(Ordering::Relaxed)) >= SYNCS_OF_WRITERS
    }

    fn take_ready(&self) -> Option<Fresh> {
        let mut ready = self.ready.lock();
        let fresh = ready.pop_front();
        self.ready_count.store(ready.len(), Ordering::Release);
        fresh
    }

    /// Puts a segment that was not used after all before the others.
    fn put_back(&self, fresh: Fresh) {
        let mut ready = self.ready.lock();
        ready.push_front(fresh);
        self.ready_count.store(ready.len(), Ordering::Release);
    }

    /// The next segment: one that is ready, or one that is made now.
    fn next_segment(&self) -> Result<Fresh> {
        if let Some(fresh) = self.take_ready() {
            self.switch_wait_ns.store(0, Ordering::Relaxed);
            return Ok(fresh);
        }
        let start = self.runtime.now();
        self.leader_waits.store(true, Ordering::Release);
        let mut supply = self.supply.lock();
        self.leader_waits.store(false, Ordering::Release);
        // Another task may have made it ready meanwhile.
        let fresh = match self.take_ready() {
            Some(fresh) => Ok(fresh),
            None => supply.prepare(self.is_synced_by_writers()),
        };
        let ns = self.runtime.now().since(start).as_nanos();
        self.switch_wait_ns.store(ns as u64, Ordering::Relaxed);
        fresh.map_err(|e| self.supply_failed(e))
    }

    /// How long the last switch to a new segment waited until one was ready.
    pub fn switch_wait(&self) -> Duration {
        Duration::from_nanos(self.switch_wait_ns.load(Ordering::Relaxed))
    }

    /// Continues in the next segment, with room for a record of `total` bytes. Its first record
    /// has the synced position.
    #[cold]
    fn switch(&self, appender: &mut Appender, total: u64) -> Result<()> {
        let fresh = self.next_segment()?;
        let needed = SEGMENT_HEADER_BYTES as u64 + total;
        if fresh.file.len() < needed
            && let Err(error) = fresh.file.reserve(needed)
        {
            self.put_back(fresh);
            let what = "making room for a large batch in the log";
            return Err(Error::from(error).context(what));
        }
        let previous = ChainEnd {
            segment: appender.number,
            offset: appender.offset,
            checksum: appender.chain,
        };
        let header = SegmentHeader {
            store_id: self.store_id,
            number: fresh.number,
            salt: self.salt,
            previous,
        };
        let next = match Self::enter(fresh.file.clone(), &header, appender.next_sequence) {
            Ok(next) => next,
            Err(error) => {
                let error = error.context("writing a log segment's header");
                if !error.is_unreachable() {
                    return Err(self.poison(error));
                }
                // The append had no effect, so the segment stays ready.
                self.put_back(fresh);
                return Err(error);
            }
        };
        let syncs = self.sync_count.load(Ordering::Relaxed);
        let before = self.syncs_at_entry.swap(syncs, Ordering::Relaxed);
        self.syncs_in_last
            .store(syncs.saturating_sub(before), Ordering::Relaxed);
        {
            let mut live = self.live.lock();
            live.close_current(appender.offset);
            live.push(next.as_live());
        }
        *appender = next;
        self.end
            .raise(Position::new(appender.number, appender.offset));
        Ok(())
    }

    /// Syncs the log through `through`, unless that was done, and returns the synced position,
    /// which may be later. One caller at a time syncs, for all callers that wait. No append waits
    /// for a sync.
    ///
    /// # Errors
    /// [`ErrorKind::Poisoned`]: what lies between the synced position and `through` may be lost.
    /// The sync is never repeated. [`ErrorKind::Unsynced`]: the storage did not answer in time, so
    /// it is not known whether these bytes are durable; the call may be repeated. A caller that
    /// waited for such a sync of another one, which was to cover `through`, gets the same error,
    /// so that callers do not wait for the time limit one after the other.
    pub fn sync(&self, through: Position) -> Result<Position> {
        let synced = self.synced.load();
        if synced >= through {
            return Ok(synced);
        }
        let seen = self.in_doubt_count.load(Ordering::Acquire);
        let mut role = self.sync_role.lock();
        let synced = self.synced.load();
        if synced >= through {
            return Ok(synced);
        }
        self.check()?;
        if let Some((end, error)) = &role.last
            && *end >= through
            && self.in_doubt_count.load(Ordering::Acquire) != seen
        {
            return Err(error.clone());
        }
        let end = self.end.load();
        if through > end {
            return Err(Error::invalid_argument("a sync beyond the log's end")
                .expected(format_args!("at most {end}"))
                .found(through));
        }
        let done = |number, ends: Option<u32>| {
            ends.is_some_and(|ends| synced >= Position::new(number, ends))
        };
        let files = {
            let live = self.live.lock();
            if live.is_released() {
                return Err(closed());
            }
            live.to_sync(end.segment, done)
        };
        for file in files {
            if let Err(error) = file.sync() {
                if error.kind == StorageErrorKind::Unreachable {
                    let error = Error::from(error).with_kind(ErrorKind::Unsynced);
                    let error = error.context("syncing the log");
                    role.last = Some((end, error.clone()));
                    self.in_doubt_count.fetch_add(1, Ordering::AcqRel);
                    return Err(error);
                }
                // The sync role is still held, so a caller that waits for it finds the poison and
                // does not issue a second sync, which might succeed.
                return Err(self.poison(Error::from(error).context("syncing the log")));
            }
        }
        role.last = None;
        self.synced.raise(end);
        self.sync_count.fetch_add(1, Ordering::Relaxed);
        self.live.lock().synced_below(end.segment);
        Ok(end)
    }

    /// Syncs all records that were appended so far.
    ///
    /// # Errors
    /// Those of [`LogWriter::sync`].
    pub fn sync_all(&self) -> Result<Position> {
        self.sync(self.end())
    }

    /// The bytes appended since the start, as in [`LogStats::appended_bytes`].
    pub fn appended_bytes(&self) -> u64 {
        self.appended_bytes.load(Ordering::Relaxed)
    }

    /// The end of the last complete record.
    pub fn end(&self) -> Position {
        self.end.load()
    }

    /// The position through which the log is known to be synced.
    pub fn synced(&self) -> Position {
        self.synced.load()
    }

    /// The number of this writer's first segment.
    pub fn first_segment(&self) -> u32 {
        self.first_segment
    }

    /// The salt of this writer's chain.
    pub fn salt(&self) -> u64 {
        self.salt
    }

    /// Where this writer's chain starts. The manifest must name it as the log's start.
    pub fn chain_start(&self) -> LogStart {
        LogStart::of_segment(self.first_segment.into(), self.salt)
    }

    /// Whether a background task should call [`LogWriter::prepare`] to have `wanted` segments
    /// ready.
    pub fn needs_prepare(&self, wanted: usize) -> bool {
        let ready = self.ready_count.load(Ordering::Acquire);
        ready < wanted && !self.poisoned.load(Ordering::Acquire)
    }

    /// Makes segments ready until `wanted` are, so that no writer waits for one. A background task
    /// calls this.
    ///
    /// # Errors
    /// [`ErrorKind::NoSpace`] and other failures leave the log usable, and the call may be
    /// repeated. A failed sync of the folder is [`ErrorKind::Poisoned`].
    pub fn prepare(&self, wanted: usize) -> Result<()> {
        self.check()?;
        // A leader that waits for a segment takes the first one that is ready.
        while self.needs_prepare(wanted) && !self.leader_waits.load(Ordering::Acquire) {
            let mut supply = self.supply.lock();
            if !self.needs_prepare(wanted) {
                break;
            }
            let prepared = supply.prepare(self.is_synced_by_writers());
            let fresh = prepared.map_err(|e| self.supply_failed(e))?;
            let mut ready = self.ready.lock();
            ready.push_back(fresh);
            self.ready_count.store(ready.len(), Ordering::Release);
        }
        self.check()
    }

    /// Removes the segments below `before`: some are kept to be recycled, the others are deleted.
    /// The caller has made the manifest edit with that log start durable. Segments that are not
    /// completely synced are kept until a later call. Returns the oldest segment that is kept.
    ///
    /// # Errors
    /// The first deletion that failed. All deletions are tried, and those that failed are tried
    /// again by the next call.
    pub fn obsolete(&self, before: u32) -> Result<u32> {
        self.obsolete_except(before, &|_| false)
    }

    /// As [`LogWriter::obsolete`], but the segments for which `is_pinned` returns true stay as they
    /// are until a later call.
    ///
    /// # Errors
    /// As [`LogWriter::obsolete`].
    pub fn obsolete_except(&self, before: u32, is_pinned: &dyn Fn(u32) -> bool) -> Result<u32> {
        self.check()?;
        let before = before.min(self.synced.load().segment);
        let (removed, oldest) = {
            let mut live = self.live.lock();
            let removed = live.remove_below(before, is_pinned);
            (removed, live.iter().next().map_or(0, |s| s.number))
        };
        let doomed = self.supply.lock().retire(removed);
        self.delete(doomed)?;
        Ok(oldest)
    }

    /// Tries to delete all of these segments. The next call tries those again that failed.
    fn delete(&self, doomed: Vec<String>) -> Result<()> {
        let mut failed = Vec::new();
        let mut first_error = None;
        for name in doomed {
            match self.storage.delete(self.epoch, &name) {
                Ok(()) => {}
                Err(error) if error.kind == StorageErrorKind::NotFound => {}
                Err(error) => {
                    failed.push(name);
                    first_error.get_or_insert(error);
                }
            }
        }
        let Some(error) = first_error else {
            return Ok(());
        };
        self.supply.lock().deletion_failed(failed);
        Err(Error::from(error).context("deleting an obsolete log segment"))
    }

    /// Gives back the reserved space, after the last sync of a store that closes: prepared and
    /// pooled segments are deleted, and the segment being written is cut behind its records, but
    /// not to less than `least_bytes`. An append after this goes into a new segment.
    ///
    /// This is safe at every crash. The deleted files have no record that a replay reads: a
    /// prepared segment was never entered, and a pooled one lies below the log's start. The cut
    /// removes only bytes behind the last record, where replay finds no record, whether they are
    /// zeros, old bytes of a recycled file, or missing. The bytes of the records are neither moved
    /// nor changed.
    ///
    /// # Errors
    /// The first failure of the storage. It costs nothing but space on the disk.
    pub fn shrink(&self, least_bytes: u64) -> Result<()> {
        self.check()?;
        let ready = {
            let mut ready = self.ready.lock();
            self.ready_count.store(0, Ordering::Release);
            std::mem::take(&mut *ready)
        };
        let doomed = self.supply.lock().give_up(ready.into_iter());
        let deleted = self.delete(doomed);
        let mut appender = self.appender.lock();
        let end = u64::from(appender.offset);
        // The cut keeps whole units of the medium.
        let kept = end.next_multiple_of(CUT_BYTES).max(least_bytes);
        let Some(file) = appender.file.clone() else {
            return deleted;
        };
        if self.synced.load() >= self.end.load() && file.len() > kept {
            appender.capacity = end;
            // Zeros then follow the last record, and no old bytes of a recycled file.
            file.truncate_to_position()?;
            file.reserve(kept)?;
            file.sync()?;
        }
        deleted
    }

    /// Drops all files. Appends, and syncs of what is not synced, fail with [`ErrorKind::Closed`]
    /// from then on. Makes no storage call.
    pub fn release(&self) {
        // The sync role is held, so that no sync finds the list of files empty and takes all for
        // synced.
        let role = self.sync_role.lock();
        self.live.lock().release();
        drop(role);
        self.appender.lock().file = None;
        self.supply.lock().release();
        self.ready.lock().clear();
        self.ready_count.store(0, Ordering::Release);
    }

    /// The number of the oldest segment that is kept.
    pub fn oldest_segment(&self) -> u32 {
        self.live.lock().iter().next().map_or(0, |s| s.number)
    }

    /// The bytes from the start of segment `from` to the log's end, which replay would read.
    pub fn bytes_since(&self, from: u32) -> u64 {
        let end = self.end.load();
        self.live
            .lock()
            .iter()
            .filter(|s| s.number >= from)
            .map(|s| u64::from(s.end.unwrap_or(end.offset)))
            .sum()
    }

    /// The parts of this log's segments that have the records between two positions.
    pub fn parts_between(&self, first: Position, last: Position) -> Vec<SegmentPart> {
        let end = self.end.load();
        let live = self.live.lock();
        let segments = live.iter().map(|s| (s.number, s.end.unwrap_or(end.offset)));
        values::parts_between(segments, first, last)
    }

    /// Figures of the log.
    pub fn stats(&self) -> LogStats {
        let mut stats = LogStats {
            appended_record_count: self.appended_record_count.load(Ordering::Relaxed),
            appended_bytes: self.appended_bytes.load(Ordering::Relaxed),
            sync_count: self.sync_count.load(Ordering::Relaxed),
            live_bytes: self.bytes_since(0),
            ..LogStats::default()
        };
        {
            let supply = self.supply.lock();
            stats.prepared_segment_count = self.ready_count.load(Ordering::Acquire);
            stats.pooled_segment_count = supply.pool_count();
            stats.created_segment_count = supply.created_count;
            stats.recycled_segment_count = supply.recycled_count;
            stats.zeroed_bytes = supply.zeroed_bytes;
        }
        let live = self.live.lock();
        stats.live_segment_count = live.iter().count();
        stats.oldest_segment = live.iter().next().map_or(0, |s| s.number);
        stats.newest_segment = live.iter().last().map_or(0, |s| s.number);
        stats
    }

    /// Why the log takes no more records; `None` if it does.
    pub fn poison_cause(&self) -> Option<Error> {
        if self.poisoned.load(Ordering::Acquire) {
            self.cause.lock().clone()
        } else {
            None
        }
    }

    #[inline]
    fn check(&self) -> Result<()> {
        if self.poisoned.load(Ordering::Acquire) {
            return Err(self.poisoned_error());
        }
        Ok(())
    }

    #[cold]
    fn poisoned_error(&self) -> Error {
        match &*self.cause.lock() {
            Some(cause) => Error::poisoned(cause),
            None => Error::new(ErrorKind::Poisoned, "the log takes no more records"),
        }
    }

    #[cold]
    fn supply_failed(&self, failed: SupplyError) -> Error {
        if failed.poisons {
            self.poison(failed.error)
        } else {
            failed.error
        }
    }

    /// Poisons the log and returns the error for the caller. The first cause stays.
    #[cold]
    fn poison(&self, error: Error) -> Error {
        let error = error.with_kind(ErrorKind::Poisoned);
        let first = {
            let mut cause = self.cause.lock();
            let first = cause.is_none();
            if first {
                *cause = Some(error.clone());
            }
            self.poisoned.store(true, Ordering::Release);
            first
        };
        if first {
            (self.on_poison)(&error);
        }
        error
    }
}
