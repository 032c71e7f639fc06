//! The writing half of the log: append, sync, make the next segment ready, let obsolete ones go.
//!
//! Invariants:
//! - What `append` returned for is complete; the *end* is raised after the write, so a sync that loads it covers it.
//! - Before the synced position enters segment N, the bytes of all earlier segments of the chain, N's header and N's
//!   name are synced (names when a segment is made ready, bytes oldest first).
//! - A failed sync of log bytes or of the folder, and a failed write into reserved space, poison: sticky, set before
//!   the sync role is given on, and no such call is ever repeated. A segment that cannot be made ready (a full disk)
//!   poisons nothing: the append fails cleanly and may be repeated.
//! - A writer never touches an inherited log: it starts a chain of its own, numbered above every name found.
//!
//! Threading: `append` is for the one leader of a group (a lock makes a mistake harmless); everything else is for any
//! thread. Locks, in order: appender > supply > live > cause of the poison; the sync role is taken before live and
//! never together with appender or supply. An append waits for no sync.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use siltstone_storage::{Epoch, Mutex, Runtime, Storage, StorageErrorKind, WriteFile};

use super::format::{
    ChainEnd, MAX_PAYLOAD_BYTES, MAX_SEGMENT_BYTES, MAX_SEQUENCE, MIN_SEGMENT_BYTES, RecordHeader,
    RecordKind, RecordSeed, SEGMENT_HEADER_BYTES, SegmentHeader, chain, padding_bytes,
    parse_segment_name, record_bytes,
};
use super::position::{AtomicPosition, LogStart, Position};
use super::segments::{Live, LiveSegment, Supply, SupplyError};
use crate::types::error::{Error, ErrorKind, Result, closed};

/// Parts of a record that are written without an allocation.
const INLINE_PARTS: usize = 64;

/// [`LogWriter::shrink`] cuts a segment at a multiple of this many bytes.
const CUT_BYTES: u64 = 4 << 10;

/// Settings of the log.
#[derive(Clone, Debug)]
pub struct LogOptions {
    /// The full size of a segment in bytes: 4 KiB to just below 4 GiB. The first segments are
    /// smaller. A larger batch gets a larger segment of its own.
    pub segment_bytes: u64,
    /// Most obsolete segments that are kept to be recycled.
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
    /// Where the segments live.
    pub storage: Arc<dyn Storage>,
    /// The lease under which it writes.
    pub epoch: Epoch,
    /// Locks and randomness.
    pub runtime: Runtime,
    /// The store's id.
    pub store_id: u64,
    /// Settings.
    pub options: LogOptions,
    /// An object with written space that becomes the first segment if there is no room for a new one.
    pub reserve: Option<String>,
    /// The last segment that the manifest knows of. New segments are numbered above it, also if it
    /// is not there any more.
    pub last_known_segment: u32,
    /// Called once, when the log is poisoned, before anyone is answered. It must not call into the log.
    pub on_poison: Box<dyn Fn(&Error) + Send + Sync>,
}

/// Figures of the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(default)]
pub struct LogStats {
    /// Number of the oldest segment that is kept.
    pub oldest_segment: u32,
    /// Number of the newest one, which is being written.
    pub newest_segment: u32,
    /// Segments that are kept, the one being written included, prepared and pooled ones not.
    pub live_segment_count: usize,
    /// Bytes in them: to the end of their records; whole files for inherited ones.
    pub live_bytes: u64,
    /// Segments made ready and not yet in use.
    pub prepared_segment_count: usize,
    /// Obsolete segments that wait to be recycled.
    pub pooled_segment_count: usize,
    /// Segments created since open.
    pub created_segment_count: u64,
    /// Segments recycled since open.
    pub recycled_segment_count: u64,
    /// Records appended since open.
    pub appended_record_count: u64,
    /// Bytes appended since open, headers and padding included.
    pub appended_bytes: u64,
    /// Syncs done since open.
    pub sync_count: u64,
}

/// What `append` changes.
struct Appender {
    /// `None` once the log was released.
    file: Option<Arc<dyn WriteFile>>,
    number: u32,
    seed: RecordSeed,
    /// Where the next record goes.
    offset: u32,
    /// Written space of the segment, in bytes.
    capacity: u64,
    chain: u32,
    next_sequence: u64,
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

/// The writing half of the log. See the module.
pub struct LogWriter {
    store_id: u64,
    /// One salt for the whole chain: see `docs/format/log.md`.
    salt: u64,
    first_segment: u32,
    appender: Mutex<Appender>,
    supply: Mutex<Supply>,
    live: Mutex<Live>,
    sync_role: Mutex<()>,
    storage: Arc<dyn Storage>,
    epoch: Epoch,
    end: AtomicPosition,
    synced: AtomicPosition,
    next_ready: AtomicBool,
    poisoned: AtomicBool,
    cause: Mutex<Option<Error>>,
    on_poison: Box<dyn Fn(&Error) + Send + Sync>,
    appended_record_count: AtomicU64,
    appended_bytes: AtomicU64,
    sync_count: AtomicU64,
}

impl LogWriter {
    /// Starts a new chain. Segments found are left alone and listed as live until [`LogWriter::obsolete`] lets them
    /// go. The new segment is an orphan until the manifest names [`LogWriter::first_segment`]; nothing in it is
    /// synced until [`LogWriter::sync`].
    ///
    /// # Errors
    /// [`ErrorKind::NoSpace`] when the segment finds no room (nothing is left behind), any other storage failure,
    /// [`ErrorKind::InvalidArgument`] for impossible options.
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
        if let Err(failure) = supply.prepare() {
            match reserve {
                Some(name) if failure.error.is_no_space() => {
                    supply.prepare_from(&name).map_err(|e| e.error)?
                }
                _ => return Err(failure.error),
            }
        }
        let fresh = supply.prepared.take().expect("prepared above");
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
            live: runtime.mutex(live),
            sync_role: runtime.mutex(()),
            storage,
            epoch,
            next_ready: AtomicBool::new(false),
            poisoned: AtomicBool::new(false),
            cause: runtime.mutex(None),
            on_poison,
            appended_record_count: AtomicU64::new(0),
            appended_bytes: AtomicU64::new(0),
            sync_count: AtomicU64::new(0),
        })
    }

    /// Writes the header of a fresh segment; gives the state for appending to it.
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
        })
    }

    /// Appends one record: the concatenation of `parts`, whose entries have the numbers from `first_sequence` on,
    /// `sequence_count` of them. Returns the record's end: what [`LogWriter::sync`] must cover for it. The record
    /// lies whole in the segment of that position.
    ///
    /// # Errors
    /// [`ErrorKind::NoSpace`] (or another failure of making a segment ready): nothing was written and the call may be
    /// repeated. [`ErrorKind::InvalidArgument`]: the payload is too large, or the numbers do not ascend.
    /// [`ErrorKind::Poisoned`]: the log takes no more records.
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
        let total = record_bytes(payload_bytes);
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
                    .found(format_args!("{sequence_count} from {first_sequence} on")),
            );
        };
        if u64::from(appender.offset) + total > appender.capacity {
            self.switch(&mut appender, total)?;
        }
        let header = RecordHeader {
            payload_bytes: payload_bytes as u32,
            kind: kind as u8,
            synced: self.synced.load(),
            first_sequence,
        };
        let (header, checksum) = header.encode(appender.seed, appender.offset, parts);
        let padding = &[0u8; 8][..padding_bytes(payload_bytes)];
        let file = appender.file.as_ref().expect("the log is not released");
        let written = if parts.len() <= INLINE_PARTS {
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
        if let Err(error) = written {
            // The space is reserved, so this is no full disk that would pass; what is on the disk is unknown.
            return Err(self.poison(Error::from(error).context("writing a log record")));
        }
        appender.offset += total as u32;
        appender.chain = chain(appender.chain, checksum);
        appender.next_sequence = next_sequence;
        let end = Position::new(appender.number, appender.offset);
        self.end.raise(end);
        self.appended_record_count.fetch_add(1, Ordering::Relaxed);
        self.appended_bytes.fetch_add(total, Ordering::Relaxed);
        Ok(end)
    }

    /// Goes on into the next segment, with room for a record of `total` bytes.
    #[cold]
    fn switch(&self, appender: &mut Appender, total: u64) -> Result<()> {
        let mut supply = self.supply.lock();
        supply.prepare().map_err(|e| self.supply_failed(e))?;
        let fresh = supply.prepared.as_ref().expect("prepared above");
        let needed = SEGMENT_HEADER_BYTES as u64 + total;
        if fresh.file.len() < needed {
            // It stays prepared when this fails.
            fresh
                .file
                .reserve(needed)
                .map_err(|e| Error::from(e).context("making room for a large batch in the log"))?;
        }
        let fresh = supply.prepared.take().expect("prepared above");
        self.next_ready.store(false, Ordering::Release);
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
        let next = Self::enter(fresh.file, &header, appender.next_sequence)
            .map_err(|e| self.poison(e.context("writing a log segment's header")))?;
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

    /// Syncs the log through `through` unless that is done already, and returns the synced position, which may lie
    /// further. One caller at a time syncs, for all that wait; an append waits for none of them.
    ///
    /// # Errors
    /// [`ErrorKind::Poisoned`]: what lies between the synced position and `through` may be lost. Never repeated.
    pub fn sync(&self, through: Position) -> Result<Position> {
        let synced = self.synced.load();
        if synced >= through {
            return Ok(synced);
        }
        let _role = self.sync_role.lock();
        let synced = self.synced.load();
        if synced >= through {
            return Ok(synced);
        }
        self.check()?;
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
                // Still in the role: whoever waits for it finds the poison, not a second sync that succeeds.
                return Err(self.poison(Error::from(error).context("syncing the log")));
            }
        }
        self.synced.raise(end);
        self.sync_count.fetch_add(1, Ordering::Relaxed);
        self.live.lock().synced_below(end.segment);
        Ok(end)
    }

    /// Syncs everything appended so far.
    ///
    /// # Errors
    /// As [`LogWriter::sync`].
    pub fn sync_all(&self) -> Result<Position> {
        self.sync(self.end())
    }

    /// The end of the last complete record.
    pub fn end(&self) -> Position {
        self.end.load()
    }

    /// The position known to be synced.
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

    /// Where this writer's chain starts: the log start that the manifest must name.
    pub fn chain_start(&self) -> LogStart {
        LogStart::of_segment(self.first_segment.into(), self.salt)
    }

    /// Whether the background should call [`LogWriter::prepare_next`].
    pub fn needs_prepare(&self) -> bool {
        !self.next_ready.load(Ordering::Acquire) && !self.poisoned.load(Ordering::Acquire)
    }

    /// Makes the next segment ready, in the background, so that no writer waits for it.
    ///
    /// # Errors
    /// [`ErrorKind::NoSpace`] and other failures leave the log usable: call again later. A failed sync of the folder
    /// is [`ErrorKind::Poisoned`].
    pub fn prepare_next(&self) -> Result<()> {
        self.check()?;
        let mut supply = self.supply.lock();
        supply.prepare().map_err(|e| self.supply_failed(e))?;
        self.next_ready.store(true, Ordering::Release);
        Ok(())
    }

    /// Lets the segments below `before` go: some are kept to be recycled, the others deleted. For the caller that
    /// has made the manifest edit with that log start durable. Segments that are not synced whole are kept until a
    /// later call. Returns the oldest segment kept.
    ///
    /// # Errors
    /// The first deletion that failed. All are tried, and failed ones again with the next call.
    pub fn obsolete(&self, before: u32) -> Result<u32> {
        self.check()?;
        let before = before.min(self.synced.load().segment);
        let (removed, oldest) = {
            let mut live = self.live.lock();
            let removed = live.remove_below(before);
            (removed, live.iter().next().map_or(0, |s| s.number))
        };
        let doomed = self.supply.lock().retire(removed);
        self.delete(doomed)?;
        Ok(oldest)
    }

    /// Deletes segments. It tries all of them; the next call tries those again that failed.
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

    /// Gives the space back that was written ahead: prepared and pooled segments are deleted, and
    /// the segment being written is cut behind its records, but not to less than `least_bytes`. For
    /// a store that closes, after its last sync of the log; an append after this goes into a new
    /// segment.
    ///
    /// This is safe at every crash. The deleted files have no record that a replay reads: a
    /// prepared segment was never entered, and a pooled one lies below the log's start. The cut
    /// removes only bytes behind the last record, which replay does not believe whether they are
    /// zeros, old bytes of a recycled file, or missing; the bytes of the records are neither moved
    /// nor changed.
    ///
    /// # Errors
    /// The first failure of the storage; nothing is lost by it but room on the disk.
    pub fn shrink(&self, least_bytes: u64) -> Result<()> {
        self.check()?;
        let doomed = self.supply.lock().give_up();
        self.next_ready.store(false, Ordering::Release);
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
            // Behind the last record there are zeros then, and no old bytes of a recycled file.
            file.truncate_to_position()?;
            file.reserve(kept)?;
            file.sync()?;
        }
        deleted
    }

    /// Lets go of all files. Appends, and syncs of what is not synced, fail with
    /// [`ErrorKind::Closed`] from then on. Makes no storage call.
    pub fn release(&self) {
        // In the sync role: no sync that finds no files takes everything for synced.
        let role = self.sync_role.lock();
        self.live.lock().release();
        drop(role);
        self.appender.lock().file = None;
        self.supply.lock().prepared = None;
    }

    /// Number of the oldest segment that is kept.
    pub fn oldest_segment(&self) -> u32 {
        self.live.lock().iter().next().map_or(0, |s| s.number)
    }

    /// Bytes from the start of segment `from` to the log's end: what replay would read.
    pub fn bytes_since(&self, from: u32) -> u64 {
        let end = self.end.load();
        self.live
            .lock()
            .iter()
            .filter(|s| s.number >= from)
            .map(|s| u64::from(s.end.unwrap_or(end.offset)))
            .sum()
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
            stats.prepared_segment_count = usize::from(supply.prepared.is_some());
            stats.pooled_segment_count = supply.pool_count();
            stats.created_segment_count = supply.created_count;
            stats.recycled_segment_count = supply.recycled_count;
        }
        let live = self.live.lock();
        stats.live_segment_count = live.iter().count();
        stats.oldest_segment = live.iter().next().map_or(0, |s| s.number);
        stats.newest_segment = live.iter().last().map_or(0, |s| s.number);
        stats
    }

    /// Why the log takes no more records, if that is so.
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

    /// Poisons the log and gives the error to answer with. The first cause stays.
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
