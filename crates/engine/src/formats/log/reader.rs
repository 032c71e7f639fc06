//! Reads a log segment: its header, the record at an offset, the next good record.
//!
//! This is the only code that reads segments. A replay reads the log's history with it
//! ([`mod@super::replay`], which `check` uses too), a repair what is left of a damaged log, and an
//! inspection a single file. They decide what a bad record means: for a replay it is the end of
//! history or damage, for a repair it may be a hole between two good records, and an inspection
//! shows it and continues (RFC 1; `docs/format/log.md`).
//!
//! Invariants:
//! - A record is returned only after all of its checks passed at the offset where it lies: that of
//!   the header, that of the payload, and zeros as padding. A [`BadRecord`] says why an offset has
//!   no record. An error means that bytes could not be read. No bytes cause a panic.
//! - The length of a record is trusted only if the check of its header passes. Nothing is read
//!   beyond the length that the file had when it was opened, or beyond [`MAX_SEGMENT_BYTES`].
//! - Memory is limited to one window and one record. A segment that is read as a whole
//!   ([`SegmentReader::open_whole`]) has one window of its whole length.
//! - Reading ahead never makes a read fail: after bytes that the medium cannot deliver, only the
//!   sectors that are asked for are read. A segment that is read as a whole has zeros in place of
//!   such sectors, and lists them.
//!
//! Threading: one task.

use std::ops::{Deref, Range};
use std::sync::Arc;

use siltstone_storage::{Access, ReadFile, Storage, StorageErrorKind};

use super::format::{
    BadHeader, BadRecord, MAX_HEADER_BYTES, MAX_SEGMENT_BYTES, Plausible, RECORD_ALIGN_BYTES,
    RECORD_HEADER_BYTES, RecordHeader, RecordSeed, SegmentHeader, header_bytes, may_begin_record,
    segment_name,
};
use crate::formats::file_bytes::make_room;
use crate::types::error::{Error, Result};

/// The number of bytes that are read at once.
pub(crate) const WINDOW_BYTES: usize = 1 << 20;

/// The smallest unit in which a medium loses bytes.
pub(crate) const SECTOR_BYTES: u64 = 512;

/// Whether a read failed because the medium cannot deliver the bytes. Missing permissions, for
/// example, are another reason.
pub(crate) fn is_unreadable(error: &Error) -> bool {
    let kind = error.storage().map(|error| error.kind);
    matches!(
        kind,
        Some(StorageErrorKind::Io | StorageErrorKind::MapFailed)
    )
}

/// The contents of a segment's first bytes.
#[derive(Clone, Debug)]
pub(crate) struct SegmentHead {
    /// The header and its checksum, or the reason why the bytes are not the header of the wanted
    /// segment.
    pub(crate) header: std::result::Result<(SegmentHeader, u32), BadHeader>,
    /// The salt field, even of a damaged header. A record that is valid with this salt belongs to
    /// the segment even so.
    pub(crate) salt: Option<u64>,
    /// The field with the store's id, even of a damaged header.
    pub(crate) store_id: Option<u64>,
}

impl SegmentHead {
    /// Decodes the first bytes of segment `number`.
    pub(crate) fn decode(bytes: &[u8], number: u32) -> SegmentHead {
        SegmentHead {
            header: SegmentHeader::decode(bytes, number),
            salt: SegmentHeader::salt_field(bytes),
            store_id: SegmentHeader::store_id_field(bytes),
        }
    }
}

/// A good record that a search has found.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FoundRecord {
    /// The offset at which it begins.
    pub(crate) at: u64,
    /// Its header, and the offset at which it ends.
    pub(crate) record: Plausible,
    /// The index of the seed with which it was written.
    pub(crate) seed: usize,
}

/// A part of a segment that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UnreadablePart {
    /// The range of its bytes.
    pub(crate) bytes: Range<u64>,
    /// The storage's error.
    pub(crate) why: String,
}

/// A segment that is being read. It owns the file or borrows it.
pub(crate) struct SegmentReader<F = Arc<dyn ReadFile>> {
    file: F,
    len: u64,
    window: Vec<u8>,
    window_at: u64,
    /// Whether some bytes of the file cannot be read, so that nothing is read ahead any more.
    is_careful: bool,
}

impl SegmentReader {
    /// Opens segment `number` for reading from its start to its end.
    ///
    /// # Errors
    /// Those of the storage.
    pub(crate) fn open(storage: &dyn Storage, number: u32) -> Result<SegmentReader> {
        let reader = SegmentReader::of(storage.open(&segment_name(number))?);
        reader.file.advise(Access::Sequential, 0, reader.len);
        Ok(reader)
    }

    /// Opens the segment in the file `name` and reads at most `most` bytes of it at once. Sectors
    /// that the medium cannot deliver are zeros, and are listed in the result.
    ///
    /// # Errors
    /// Those of the storage, except that bytes cannot be read; a lack of memory.
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
                error if is_unreadable(&error) => read_sectors(&*reader.file, &mut reader.window)?,
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

    /// The number of bytes of the file that are read.
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// The file's name.
    pub(crate) fn name(&self) -> &str {
        self.file.name()
    }

    /// The `len` bytes from `at` on. They must lie in the segment.
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
            // The memory for one large record must not be kept for the rest of the log.
            self.window = Vec::new();
        }
        make_room(self.file.name(), len, &mut self.window)?;
        self.window_at = at;
        self.file
            .read_at(at, &mut self.window)
            .inspect_err(|_| self.window.clear())?;
        Ok(())
    }

    /// The first bytes: as many as a header of any version may have, or all there are.
    pub(crate) fn head_bytes(&mut self) -> Result<&[u8]> {
        let len = self.len.min(MAX_HEADER_BYTES as u64) as usize;
        self.bytes(0, len)
    }

    /// Decodes the first bytes as those of segment `number`.
    pub(crate) fn head(&mut self, number: u32) -> Result<SegmentHead> {
        let bytes = self.head_bytes()?;
        Ok(SegmentHead::decode(bytes, number))
    }

    /// The header of a record at `at`. Its payload is not verified yet.
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
        let wanted = header_bytes(self.head_at(at)?) as u64;
        // No more is read than the header has: the bytes behind it may be unreadable.
        let bytes = self.bytes(at, wanted.min(len - at) as usize)?;
        Ok(RecordHeader::decode(bytes, seed, at as u32, len))
    }

    /// The bytes of the shortest header at `at`, which must lie in the segment.
    #[inline]
    fn head_at(&mut self, at: u64) -> Result<&[u8; RECORD_HEADER_BYTES]> {
        let bytes = self.bytes(at, RECORD_HEADER_BYTES)?;
        Ok(bytes.try_into().expect("as long as asked for"))
    }

    /// The record at `at`, completely verified, and its payload.
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
        let rest = &whole[plausible.header.len()..];
        let payload = &rest[..plausible.header.payload_bytes as usize];
        Ok(plausible.verify(rest).map(|()| (plausible, payload)))
    }

    /// The first good record at or behind `from` that was written with one of `seeds`. The search
    /// tries every offset at which a record may begin, counted from `from`.
    pub(crate) fn next(&mut self, from: u64, seeds: &[RecordSeed]) -> Result<Option<FoundRecord>> {
        let mut at = from;
        while at + RECORD_HEADER_BYTES as u64 <= self.len {
            let left = self.len - at;
            let may_begin = may_begin_record(self.head_at(at)?, left);
            for (seed, &value) in seeds.iter().enumerate().filter(|_| may_begin) {
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

    /// Verifies payload and padding of a record in pieces, so that it need not fit into memory.
    pub(crate) fn verify(&mut self, at: u64, record: &Plausible) -> Result<bool> {
        let mut at = at + record.header.len() as u64;
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

/// Reads a file sector by sector. Sectors that cannot be read are filled with zeros, and listed.
///
/// # Errors
/// That the storage cannot be reached: this says nothing about the sector.
fn read_sectors(file: &dyn ReadFile, bytes: &mut [u8]) -> Result<Vec<UnreadablePart>> {
    let mut missing: Vec<UnreadablePart> = Vec::new();
    let offsets = (0..).step_by(SECTOR_BYTES as usize);
    for (sector, at) in bytes.chunks_mut(SECTOR_BYTES as usize).zip(offsets) {
        let Err(error) = file.read_at(at, sector) else {
            continue;
        };
        if error.kind == StorageErrorKind::Unreachable {
            return Err(error.into());
        }
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
    Ok(missing)
}

#[cfg(test)]
mod tests;
