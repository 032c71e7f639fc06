//! One log segment being read: its header, the record at a place, the next good record.
//!
//! What it is: the only code that reads segments. A replay reads the log's history with it
//! ([`mod@super::replay`], which `check` uses too), a repair what is left of a damaged log, and an
//! inspection a single file. What a bad place means is for them to say, and they differ: to a
//! replay it is the end of history or damage, to a repair it may be a hole between two good
//! records, and an inspection shows it and goes on (RFC 1; `docs/format/log.md`).
//!
//! Invariants:
//! - A record is given out only after all of its checks held at the very place where it lies: the
//!   header's, the payload's, and zeros as padding. Why a place holds no record is a [`BadRecord`];
//!   an error is given only where bytes could not be read. No bytes cause a panic.
//! - A record's length is believed only when its header's own check holds, and nothing is read
//!   beyond the length that the file had when it was opened, or beyond [`MAX_SEGMENT_BYTES`].
//! - Memory is bounded by one window and one record. A segment that is read whole
//!   ([`SegmentReader::open_whole`]) has one window of its whole length.
//! - A read ahead never makes a read fail: where it meets bytes that the medium cannot deliver,
//!   only the sectors that are asked for are read from then on. A segment that is read whole has
//!   zeros in place of such sectors, and they are listed.
//!
//! Threading: one task.

use std::ops::{Deref, Range};
use std::sync::Arc;

use siltstone_storage::{Access, ReadFile, Storage, StorageErrorKind};

use super::format::{
    BadHeader, BadRecord, MAX_HEADER_BYTES, MAX_SEGMENT_BYTES, Plausible, RECORD_ALIGN_BYTES,
    RECORD_HEADER_BYTES, RecordHeader, RecordSeed, SegmentHeader, segment_name,
};
use crate::formats::file_bytes::make_room;
use crate::types::error::{Error, Result};

/// Bytes read at once.
pub(crate) const WINDOW_BYTES: usize = 1 << 20;

/// The smallest unit in which a medium loses bytes.
pub(crate) const SECTOR_BYTES: u64 = 512;

/// Whether a read failed because the medium cannot deliver the bytes, and not for another reason,
/// such as missing permissions.
pub(crate) fn is_unreadable(error: &Error) -> bool {
    let kind = error.storage().map(|error| error.kind);
    matches!(
        kind,
        Some(StorageErrorKind::Io | StorageErrorKind::MapFailed)
    )
}

/// What the first bytes of a segment say.
#[derive(Clone, Debug)]
pub(crate) struct SegmentHead {
    /// The header and its checksum, or why the bytes are not the header of the wanted segment.
    pub(crate) header: std::result::Result<(SegmentHeader, u32), BadHeader>,
    /// What stands in the place of the salt, also in a damaged header: records that validate with
    /// it are real all the same.
    pub(crate) salt: Option<u64>,
    /// What stands in the place of the store's id, also in a damaged header.
    pub(crate) store_id: Option<u64>,
}

impl SegmentHead {
    /// Reads the first bytes of segment `number`.
    pub(crate) fn decode(bytes: &[u8], number: u32) -> SegmentHead {
        SegmentHead {
            header: SegmentHeader::decode(bytes, number),
            salt: SegmentHeader::salt_field(bytes),
            store_id: SegmentHeader::store_id_field(bytes),
        }
    }
}

/// A good record that a search found.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FoundRecord {
    /// Where it begins.
    pub(crate) at: u64,
    /// Its header, and where it ends.
    pub(crate) record: Plausible,
    /// Which of the seeds it was written with.
    pub(crate) seed: usize,
}

/// A part of a segment that could not be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UnreadablePart {
    /// Its bytes.
    pub(crate) bytes: Range<u64>,
    /// What the storage said.
    pub(crate) why: String,
}

/// A segment being read. It owns the file or borrows it.
pub(crate) struct SegmentReader<F = Arc<dyn ReadFile>> {
    file: F,
    len: u64,
    window: Vec<u8>,
    window_at: u64,
    /// Some bytes of the file cannot be read, so nothing is read ahead any more.
    is_careful: bool,
}

impl SegmentReader {
    /// Opens segment `number`, to be read from its start to its end.
    ///
    /// # Errors
    /// Those of the storage.
    pub(crate) fn open(storage: &dyn Storage, number: u32) -> Result<SegmentReader> {
        let reader = SegmentReader::of(storage.open(&segment_name(number))?);
        reader.file.advise(Access::Sequential, 0, reader.len);
        Ok(reader)
    }

    /// Opens the segment that lies in the file `name` and reads at most `most` bytes of it, in one
    /// piece. Sectors that the medium cannot deliver are zeros in it, and are listed beside it.
    ///
    /// # Errors
    /// Those of the storage, but not that bytes cannot be read; a lack of memory.
    pub(crate) fn open_whole(
        storage: &dyn Storage,
        name: &str,
        most: u64,
    ) -> Result<(SegmentReader, Vec<UnreadablePart>)> {
        let mut reader = SegmentReader::of(storage.open(name)?);
        reader.len = reader.len.min(most);
        make_room(reader.file.name(), reader.len, &mut reader.window)?;
        let unreadable = match reader.file.read_at(0, &mut reader.window) {
            Ok(()) => Vec::new(),
            Err(error) => match Error::from(error) {
                error if is_unreadable(&error) => read_sectors(&*reader.file, &mut reader.window),
                error => return Err(error),
            },
        };
        Ok((reader, unreadable))
    }
}

impl<F: Deref<Target: ReadFile>> SegmentReader<F> {
    /// Reads this file as a segment.
    pub(crate) fn of(file: F) -> SegmentReader<F> {
        SegmentReader {
            len: file.len().min(MAX_SEGMENT_BYTES),
            file,
            window: Vec::new(),
            window_at: 0,
            is_careful: false,
        }
    }

    /// Bytes that are read of the file.
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// The file's name.
    pub(crate) fn name(&self) -> &str {
        self.file.name()
    }

    /// `len` bytes from `at`. They must lie in the segment.
    #[inline]
    pub(crate) fn bytes(&mut self, at: u64, len: usize) -> Result<&[u8]> {
        let inside =
            at >= self.window_at && at + len as u64 <= self.window_at + self.window.len() as u64;
        if !inside {
            self.fill(at, len)?;
        }
        let from = (at - self.window_at) as usize;
        Ok(&self.window[from..from + len])
    }

    #[cold]
    fn fill(&mut self, at: u64, len: usize) -> Result<()> {
        let left = self.len.saturating_sub(at);
        if left < len as u64 {
            return Err(Error::corruption(
                self.name(),
                "the segment became shorter while it was read",
            )
            .at(at));
        }
        if !self.is_careful {
            match self.load(at, left.min(len.max(WINDOW_BYTES) as u64)) {
                Err(error) if is_unreadable(&error) => self.is_careful = true,
                result => return result,
            }
        }
        let sectors_end = (at + len as u64).next_multiple_of(SECTOR_BYTES);
        self.load(at, left.min(sectors_end - at))
    }

    fn load(&mut self, at: u64, len: u64) -> Result<()> {
        if self.window.capacity() > 4 * WINDOW_BYTES && len <= WINDOW_BYTES as u64 {
            // One large record must not keep its memory for the rest of the log.
            self.window = Vec::new();
        }
        make_room(self.file.name(), len, &mut self.window)?;
        self.window_at = at;
        self.file
            .read_at(at, &mut self.window)
            .inspect_err(|_| self.window.clear())?;
        Ok(())
    }

    /// The first bytes: those that a header of any version may have, or all there are.
    pub(crate) fn head_bytes(&mut self) -> Result<&[u8]> {
        let len = self.len.min(MAX_HEADER_BYTES as u64) as usize;
        self.bytes(0, len)
    }

    /// What the first bytes say, if this is segment `number`.
    pub(crate) fn head(&mut self, number: u32) -> Result<SegmentHead> {
        let bytes = self.head_bytes()?;
        Ok(SegmentHead::decode(bytes, number))
    }

    /// The header of a record at `at`, whose payload is still to be verified.
    #[inline]
    pub(crate) fn plausible(
        &mut self,
        at: u64,
        seed: RecordSeed,
    ) -> Result<std::result::Result<Plausible, BadRecord>> {
        let len = self.len;
        if at + RECORD_HEADER_BYTES as u64 > len {
            return Ok(Err(BadRecord::SegmentFull));
        }
        let bytes: &[u8; RECORD_HEADER_BYTES] = self
            .bytes(at, RECORD_HEADER_BYTES)?
            .try_into()
            .expect("as long as asked for");
        Ok(RecordHeader::decode(bytes, seed, at as u32, len))
    }

    /// The record at `at`, verified whole, and its payload.
    pub(crate) fn record(
        &mut self,
        at: u64,
        seed: RecordSeed,
    ) -> Result<std::result::Result<(Plausible, &[u8]), BadRecord>> {
        let plausible = match self.plausible(at, seed)? {
            Ok(plausible) => plausible,
            Err(bad) => return Ok(Err(bad)),
        };
        let whole = self.bytes(at, (u64::from(plausible.end) - at) as usize)?;
        let rest = &whole[RECORD_HEADER_BYTES..];
        let payload = &rest[..plausible.header.payload_bytes as usize];
        Ok(plausible.verify(rest).map(|()| (plausible, payload)))
    }

    /// The first good record at `from` or behind it that was written with one of `seeds`. It is
    /// searched at every place where a record may begin, if `from` is such a place.
    pub(crate) fn next(&mut self, from: u64, seeds: &[RecordSeed]) -> Result<Option<FoundRecord>> {
        let mut at = from;
        while at + RECORD_HEADER_BYTES as u64 <= self.len {
            for (seed, &value) in seeds.iter().enumerate() {
                if let Ok(record) = self.plausible(at, value)?
                    && self.verify(at, &record)?
                {
                    return Ok(Some(FoundRecord { at, record, seed }));
                }
            }
            at += RECORD_ALIGN_BYTES as u64;
        }
        Ok(None)
    }

    /// Verifies payload and padding of a record in pieces, without holding it whole.
    pub(crate) fn verify(&mut self, at: u64, record: &Plausible) -> Result<bool> {
        let mut at = at + RECORD_HEADER_BYTES as u64;
        let mut left = record.header.payload_bytes as usize;
        let mut checksum = record.partial;
        while left > 0 {
            let piece = left.min(WINDOW_BYTES);
            checksum = crc32c::crc32c_append(checksum, self.bytes(at, piece)?);
            at += piece as u64;
            left -= piece;
        }
        if record.verify_checksum(checksum).is_err() {
            return Ok(false);
        }
        let padding = (u64::from(record.end) - at) as usize;
        Ok(self.bytes(at, padding)?.iter().all(|&b| b == 0))
    }
}

/// Reads a file sector by sector, with zeros for the sectors that cannot be read, and lists these.
fn read_sectors(file: &dyn ReadFile, bytes: &mut [u8]) -> Vec<UnreadablePart> {
    let mut missing: Vec<UnreadablePart> = Vec::new();
    let offsets = (0..).step_by(SECTOR_BYTES as usize);
    for (sector, at) in bytes.chunks_mut(SECTOR_BYTES as usize).zip(offsets) {
        let Err(error) = file.read_at(at, sector) else {
            continue;
        };
        sector.fill(0);
        let end = at + sector.len() as u64;
        match missing.last_mut() {
            Some(part) if part.bytes.end == at => part.bytes.end = end,
            _ => missing.push(UnreadablePart {
                bytes: at..end,
                why: error.detail,
            }),
        }
    }
    missing
}

#[cfg(test)]
mod tests;
