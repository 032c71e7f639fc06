//! Pieces of the survivors of a subjob ([RFC 11](../../../../docs/rfc/0011-separated.md),
//! section 10).
//!
//! A chunk of survivors is encoded as in `docs/format/job.md`. It is sent in one piece, or in
//! several if it is longer than a frame. The bytes of a piece are the frame's bulk bytes.
//!
//! Invariants and threading: as in the parent module.

use siltstone_table::fields::{Decoded, FieldReader, FieldWriter};

/// The maximum number of bytes of a chunk. A planner makes chunks of 16,384 extents, which are
/// shorter.
pub const CHUNK_BYTES_MAX: usize = 2 << 20;

/// What a host says about a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SurvivorsPiece {
    /// The attempt.
    pub attempt: u64,
    /// The subjob.
    pub subjob: u32,
    /// The number of the piece in the subjob, counted from 1.
    pub number: u64,
    /// Whether the chunk ends with this piece.
    pub ends_chunk: bool,
}

impl SurvivorsPiece {
    pub(super) fn put(&self, out: &mut FieldWriter) {
        out.u64(self.attempt);
        out.u32(self.subjob);
        out.u64(self.number);
        out.flag(self.ends_chunk);
    }

    pub(super) fn get(i: &mut FieldReader<'_>) -> Decoded<SurvivorsPiece> {
        Ok(SurvivorsPiece {
            attempt: i.u64("attempt")?,
            subjob: i.u32("subjob")?,
            number: i.u64("number of the piece")?,
            ends_chunk: i.flag("whether a chunk ends")?,
        })
    }
}
