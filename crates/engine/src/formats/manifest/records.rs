//! The records of a manifest in memory, one after the other.
//!
//! Opens and repairs walk over a manifest with it. They decide what a bad record means: an open
//! takes it for an edit that was never acknowledged, or for damage; a repair searches behind it.
//!
//! Invariants: a record is given out only if its checksums hold at its own place. Between two edits
//! the seal of the first one is passed over, even if it is damaged ([`behind_seal`]). No bytes
//! cause a panic.
//!
//! Threading: plain data.

use super::format::{ALIGN_BYTES, Bad, HEADER_BYTES, behind_seal, decode_record};

/// A walk over the records of one manifest, from its first one on.
pub(crate) struct Records<'a> {
    bytes: &'a [u8],
    number: u64,
    at: usize,
    count: u64,
}

impl<'a> Records<'a> {
    /// The records of manifest `number`, whose bytes these are.
    pub(crate) fn new(bytes: &'a [u8], number: u64) -> Records<'a> {
        Records {
            bytes,
            number,
            at: HEADER_BYTES,
            count: 0,
        }
    }

    /// The next record: where it begins, and its payload. Behind the last good record it says why
    /// there is no other one.
    pub(crate) fn next(&mut self) -> std::result::Result<(usize, &'a [u8]), Bad> {
        // Nothing seals the first record, the whole state: `CURRENT` names the manifest after its
        // sync.
        if self.count > 1 {
            self.at = behind_seal(self.bytes, self.number, self.at);
        }
        let (payload, end) = decode_record(self.bytes, self.number, self.at)?;
        let at = std::mem::replace(&mut self.at, end);
        self.count += 1;
        Ok((at, payload))
    }

    /// Where the last record that was given out ends, behind its seal if the end was met.
    pub(crate) fn at(&self) -> usize {
        self.at
    }
}

/// The first good record at `from` or behind it: where it begins, its payload, and where it ends.
pub(crate) fn find(bytes: &[u8], number: u64, from: usize) -> Option<(usize, &[u8], usize)> {
    (from..bytes.len()).step_by(ALIGN_BYTES).find_map(|at| {
        let (payload, end) = decode_record(bytes, number, at).ok()?;
        Some((at, payload, end))
    })
}

/// Bytes from `at` through the last one that is not zero: zeros are space for further edits.
pub(crate) fn used_bytes(bytes: &[u8], at: usize) -> u64 {
    let tail = bytes.get(at..).unwrap_or_default();
    let last = tail.iter().rposition(|byte| *byte != 0);
    last.map_or(0, |last| last as u64 + 1)
}
