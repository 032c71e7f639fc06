//! A log segment as it is read back: through a window that moves forward.
//!
//! Invariants: memory is bounded by one window and one record. A read ahead never makes a read
//! fail: where it meets bytes that cannot be read, only the sectors that are asked for are read
//! from then on.
//!
//! Threading: one task.

use std::sync::Arc;

use siltstone_storage::{Access, ReadFile, Storage, StorageErrorKind};

use super::format::{
    BadRecord, MAX_HEADER_BYTES, MAX_SEGMENT_BYTES, Plausible, RECORD_HEADER_BYTES, RecordHeader,
    RecordSeed, segment_name,
};
use crate::types::error::{Error, Result};

/// Bytes read at once.
const WINDOW_BYTES: usize = 1 << 20;

/// The smallest unit in which a medium loses bytes.
pub(super) const SECTOR_BYTES: u64 = 512;

/// Whether a read failed because the medium cannot deliver the bytes, and not for another reason,
/// such as missing permissions.
pub(crate) fn is_unreadable(error: &Error) -> bool {
    let kind = error.storage().map(|error| error.kind);
    matches!(
        kind,
        Some(StorageErrorKind::Io | StorageErrorKind::MapFailed)
    )
}

/// A segment being read, through one window.
pub(super) struct Segment {
    pub(super) number: u32,
    file: Arc<dyn ReadFile>,
    pub(super) len: u64,
    window: Vec<u8>,
    window_at: u64,
    /// Some bytes of the file cannot be read, so nothing is read ahead any more.
    is_careful: bool,
}

impl Segment {
    pub(super) fn open(storage: &dyn Storage, number: u32) -> Result<Segment> {
        let file = storage.open(&segment_name(number))?;
        let len = file.len().min(MAX_SEGMENT_BYTES);
        file.advise(Access::Sequential, 0, len);
        Ok(Segment {
            number,
            file,
            len,
            window: Vec::new(),
            window_at: 0,
            is_careful: false,
        })
    }

    /// `len` bytes from `at`. They must lie in the segment.
    #[inline]
    pub(super) fn bytes(&mut self, at: u64, len: usize) -> Result<&[u8]> {
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
                segment_name(self.number),
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
        let len = len as usize;
        if self.window.capacity() > 4 * WINDOW_BYTES && len <= WINDOW_BYTES {
            // One large record must not pin its memory for the rest of the log.
            self.window = Vec::new();
        }
        self.window.resize(len, 0);
        self.window_at = at;
        self.file
            .read_at(at, &mut self.window)
            .inspect_err(|_| self.window.clear())?;
        Ok(())
    }

    pub(super) fn header_bytes(&mut self) -> Result<Vec<u8>> {
        let len = self.len.min(MAX_HEADER_BYTES as u64) as usize;
        Ok(self.bytes(0, len)?.to_vec())
    }

    /// The header of a record at `at`.
    #[inline]
    pub(super) fn plausible(
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

    /// The record at `at`, verified whole, and its payload with the padding.
    pub(super) fn record(
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
        Ok(plausible.verify(rest).map(|()| (plausible, rest)))
    }

    /// Verifies the rest of a record in pieces, without holding it whole.
    pub(super) fn verify_in_pieces(&mut self, at: u64, record: &Plausible) -> Result<bool> {
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
