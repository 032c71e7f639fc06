//! Corrects the checksums of damaged bytes, so that parsers reach what follows them.
//!
//! Invariants: lengths and offsets stay as in the bytes, as far as they can be followed; nothing
//! panics.
//!
//! Threading: pure functions.

use siltstone::log::Position;
use siltstone::log::format::{
    ChainEnd, HAS_POSITION, RecordHeader, RecordSeed, SEGMENT_HEADER_BYTES, SegmentHeader, chain,
    header_bytes, record_bytes,
};
use siltstone::manifest::format::{
    HEADER_BYTES, RECORD_HEADER_BYTES as EDIT_HEADER_BYTES, encode_header, encode_record_header,
    record_bytes as edit_bytes,
};
use siltstone::manifest::{Current, StoreId};
use siltstone_table::checksum::{Digest, crc32c};
use siltstone_table::footer::{FOOTER_BYTES, Footer};
use siltstone_table::index::Index;

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let four = bytes.get(at..at + 4).and_then(|b| b.try_into().ok());
    u32::from_le_bytes(four.unwrap_or_default())
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let eight = bytes.get(at..at + 8).and_then(|b| b.try_into().ok());
    u64::from_le_bytes(eight.unwrap_or_default())
}

/// A segment with this header and the records of these bytes (which begin with a header that is
/// ignored), as far as they can be followed: a record that is too long ends with the file.
pub(super) fn segment(bytes: &[u8], header: &SegmentHeader) -> Vec<u8> {
    linked(bytes, header).0
}

/// Like [`segment`], and also returns what the header of the next segment says about its end.
pub(super) fn linked(bytes: &[u8], header: &SegmentHeader) -> (Vec<u8>, ChainEnd) {
    let mut out = bytes.to_vec();
    let len = out.len().max(SEGMENT_HEADER_BYTES);
    out.resize(len, 0);
    let head = header.encode();
    out[..SEGMENT_HEADER_BYTES].copy_from_slice(&head);
    let mut checksum = u32_at(&head, SEGMENT_HEADER_BYTES - 4);
    let seed = RecordSeed::new(header.salt, header.number);
    let mut at = SEGMENT_HEADER_BYTES;
    while let Some(head) = out[at.min(out.len())..].first_chunk() {
        let from = at + header_bytes(head);
        let kind = head[8] & !HAS_POSITION;
        if kind == 0 || from >= out.len() {
            break;
        }
        let payload_bytes = (u32_at(head, 4) as usize).min(out.len() - from);
        let synced = head[8] & HAS_POSITION != 0;
        let synced = synced.then(|| {
            let segment = u32_at(&out, at + 20).min(header.number);
            Position::new(segment, u32_at(&out, at + 24).min(at as u32))
        });
        let record = RecordHeader {
            payload_bytes: payload_bytes as u32,
            kind,
            synced,
            first_sequence: u64_at(head, 8) >> 8,
        };
        let (head, own) = record.encode(seed, at as u32, &[&out[from..from + payload_bytes]]);
        checksum = chain(checksum, own);
        out[at..from].copy_from_slice(&head);
        let end = at + record_bytes(from - at, payload_bytes as u64) as usize;
        if out.len() < end {
            out.resize(end, 0);
        }
        out[from + payload_bytes..end].fill(0);
        at = end;
    }
    let end = ChainEnd {
        segment: header.number,
        offset: at as u32,
        checksum,
    };
    (out, end)
}

/// A manifest with this number and store, and the records of these bytes.
pub(super) fn manifest(bytes: &[u8], current: &Current) -> Vec<u8> {
    let mut out = bytes.to_vec();
    let len = out.len().max(HEADER_BYTES);
    out.resize(len, 0);
    out[..HEADER_BYTES].copy_from_slice(&encode_header(current.store_id, current.number));
    let mut at = HEADER_BYTES;
    while at + EDIT_HEADER_BYTES < out.len() {
        let left = out.len() - at - EDIT_HEADER_BYTES;
        let payload_bytes = (u32_at(&out, at) as usize).min(left);
        if payload_bytes == 0 {
            break;
        }
        let from = at + EDIT_HEADER_BYTES;
        let payload = &out[from..from + payload_bytes];
        let head = encode_record_header(current.number, at as u64, payload);
        out[at..from].copy_from_slice(&head);
        let end = at + edit_bytes(payload_bytes as u64) as usize;
        if out.len() < end {
            out.resize(end, 0);
        }
        out[from + payload_bytes..end].fill(0);
        at = end;
    }
    out
}

/// A manifest's number and store, even if its header's checksum is wrong.
pub(super) fn current_of(bytes: &[u8]) -> Current {
    let low = u64_at(bytes, 16);
    let high = u64_at(bytes, 24);
    Current {
        number: u64_at(bytes, 32).clamp(1, 999_999_999_999),
        store_id: StoreId(u128::from(low) | u128::from(high) << 64),
        end: 0,
    }
}

/// Replaces the last four bytes by the checksum of the others.
pub(super) fn trailing_crc(bytes: &mut [u8]) {
    if let Some(at) = bytes.len().checked_sub(4) {
        let crc = crc32c(&bytes[..at]);
        bytes[at..].copy_from_slice(&crc.to_le_bytes());
    }
}

/// A table with right checksums of its footer, its sections, and its blocks, as far as the footer's
/// lengths and the index can be followed.
pub(super) fn table(bytes: &[u8]) -> Vec<u8> {
    let mut out = bytes.to_vec();
    let Some(at) = out.len().checked_sub(FOOTER_BYTES) else {
        return out;
    };
    let mut footer = Footer {
        blocks_bytes: u64_at(&out, at),
        filter_bytes: u64_at(&out, at + 8),
        index_bytes: u64_at(&out, at + 16),
        range_deletes_bytes: u64_at(&out, at + 24),
        properties_bytes: u64_at(&out, at + 32),
        digest: u64_at(&out, at + 40),
    };
    let sum = footer
        .sections()
        .iter()
        .try_fold(FOOTER_BYTES as u64, |sum, len| sum.checked_add(*len));
    if sum == Some(out.len() as u64) {
        let [blocks, sections @ ..] = footer.sections().map(|len| len as usize);
        let mut start = blocks;
        let mut starts = Vec::new();
        for len in sections {
            trailing_crc(&mut out[start..start + len]);
            starts.push(start);
            start += len;
        }
        let index = starts[1]..(starts[1] + sections[1]).saturating_sub(4);
        let index = out.get(index).map(|i| Index::decode(i, blocks as u64));
        let mut digest = Digest::new();
        if let Some(Ok(index)) = index {
            for i in 0..index.len() {
                let place = index.place(i);
                let (start, anchor, end) = (
                    place.start as usize,
                    place.anchor as usize,
                    place.end as usize,
                );
                let values = crc32c(&out[start..anchor]);
                if anchor + 32 <= end {
                    out[anchor + 24..anchor + 28].copy_from_slice(&values.to_le_bytes());
                }
                trailing_crc(&mut out[anchor..end]);
                digest.push(u32_at(&out, end - 4));
            }
        }
        if sections[2] >= 4 {
            digest.push(u32_at(&out, starts[2] + sections[2] - 4));
        }
        footer.digest = digest.value();
    }
    out[at..].copy_from_slice(&footer.encode());
    out
}
