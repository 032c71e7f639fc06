//! Finding blocks in a file without an index.
//!
//! A block's values are followed by its header, which contains their checksum. So if the start of a
//! block is known, its header is at the first offset where the checksum field equals the running
//! checksum of everything before it. After damage no start is known. Then the search looks for an
//! offset where all fields can be a header, the columns match their checksum, and the values before
//! it match theirs.
//!
//! Invariants: see the module above. Unsuccessful searches, for columns and values of unknown
//! (compressed) length and for the next header, are bounded by a multiple of the file's bytes, so
//! that crafted bytes cannot make them quadratic.
//!
//! Threading: pure functions.

use super::{Gap, PieceReader, Rules, Salvage, follows, sections_at};
use crate::block::extent::MAX_PADDING_BYTES;
use crate::block::header::{FLAG_COLUMNS_COMPRESSED, FLAG_VALUES_COMPRESSED};
use crate::block::{CHECKSUM_BYTES, HEADER_BYTES, Header};
use crate::checksum::crc32c;
use crate::coding::Bytes;
use crate::error::Damage;
use crate::index::Place;
use crate::limits::MAX_BLOCK_VALUE_BYTES;

/// A search without a known start stops trying parts of unknown length when it has read this many
/// times the bytes that it searches.
const EFFORT: usize = 64;

/// A block whose start is known is searched for at least this far, however much was searched
/// unsuccessfully before.
const BLOCK_SEARCH_BYTES: usize = 1 << 20;

const fn table() -> [u32; 256] {
    let mut table = [0; 256];
    let mut i = 0;
    while i < 256 {
        let mut crc = i as u32;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 1 == 1 {
                crc >> 1 ^ 0x82f6_3b78
            } else {
                crc >> 1
            };
            bit += 1;
        }
        table[i] = crc;
        i += 1;
    }
    table
}

/// The table for computing crc32c byte by byte, because a checksum is compared after each byte.
static TABLE: [u32; 256] = table();

/// The index in [`TABLE`] of the number with this highest byte. Each highest byte occurs exactly
/// once.
static BY_HIGHEST: [u8; 256] = {
    let mut indexes = [0; 256];
    let mut i = 0;
    while i < 256 {
        indexes[(TABLE[i] >> 24) as usize] = i as u8;
        i += 1;
    }
    indexes
};

/// The part of a checksum that earlier bytes contribute after one more (zero) byte.
#[inline]
fn shifted(crc: u32) -> u32 {
    TABLE[usize::from(crc as u8)] ^ crc >> 8
}

/// The inverse of [`shifted`].
#[inline]
fn unshifted(crc: u32) -> u32 {
    let low = BY_HIGHEST[(crc >> 24) as usize];
    (crc ^ TABLE[usize::from(low)]) << 8 | u32::from(low)
}

/// A crc32c that is extended byte by byte.
#[derive(Clone, Copy, Debug)]
pub struct Running(u32);

impl Default for Running {
    fn default() -> Running {
        Running(u32::MAX)
    }
}

impl Running {
    /// Adds a byte.
    #[inline]
    pub fn push(&mut self, byte: u8) {
        self.0 = TABLE[usize::from(self.0 as u8 ^ byte)] ^ self.0 >> 8;
    }

    /// Adds bytes.
    pub fn add(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|b| self.push(*b));
    }

    /// The checksum of everything so far.
    #[inline]
    pub fn value(self) -> u32 {
        !self.0
    }
}

/// Cheap tests that nearly all offsets fail.
#[inline]
fn may_be_header(bytes: &[u8], at: usize) -> bool {
    u64::from(bytes.u16(at + 30)) <= MAX_PADDING_BYTES
        && bytes[at + 6] < 64
        && bytes[at + 5] < 8
        && matches!(bytes[at + 4], 4 | 8)
        && matches!(bytes[at + 7], 0 | 2 | 4)
        && bytes[at + 1] <= 16
}

/// The end of the block whose header is at `anchor`, if its columns match their checksum. `effort`
/// is the number of bytes that may still be read in vain: for columns that do not match, and in the
/// search for the end of compressed ones.
fn columns_end(bytes: &[u8], anchor: usize, h: &Header, effort: &mut usize) -> Option<usize> {
    if !h.has(FLAG_COLUMNS_COMPRESSED) {
        let end = anchor.checked_add(h.columns_bytes())?;
        let stored = bytes.get(anchor..end)?;
        let after = end.checked_add(CHECKSUM_BYTES)?;
        if after > bytes.len() || *effort == 0 {
            return None;
        }
        if bytes.u32(end) != crc32c(stored) {
            *effort = effort.saturating_sub(stored.len());
            return None;
        }
        return Some(after);
    }
    let mut crc = Running::default();
    crc.add(bytes.get(anchor..anchor + HEADER_BYTES)?);
    let most = anchor.checked_add(h.columns_bytes())?.min(bytes.len());
    let mut end = anchor + HEADER_BYTES;
    while end + CHECKSUM_BYTES <= most && *effort > 0 {
        if bytes.u32(end) == crc.value() {
            return Some(end + CHECKSUM_BYTES);
        }
        crc.push(bytes[end]);
        end += 1;
        *effort -= 1;
    }
    None
}

fn values_fit(h: &Header, stored: usize) -> bool {
    if h.has(FLAG_VALUES_COMPRESSED) {
        h.codec().check_expansion(stored, h.value_bytes).is_ok()
    } else {
        h.value_bytes == stored
    }
}

/// Finds the block that begins at `start`: the offset of its header, and its end. `search` is the
/// number of bytes that may still be searched unsuccessfully.
fn block_at(bytes: &[u8], start: usize, search: &mut usize) -> Option<(usize, usize)> {
    let mut crc = Running::default();
    let furthest = BLOCK_SEARCH_BYTES.max(*search);
    let most = (bytes.len() + 1)
        .saturating_sub(HEADER_BYTES + CHECKSUM_BYTES)
        .min(start.saturating_add(furthest.min(MAX_BLOCK_VALUE_BYTES as usize)));
    let mut effort = EFFORT * (bytes.len() - start);
    for anchor in start..most {
        if bytes.u32(anchor + 24) == crc.value()
            && may_be_header(bytes, anchor)
            && let Ok(header) = Header::parse(bytes, anchor)
            && values_fit(&header, anchor - start)
            && let Some(end) = columns_end(bytes, anchor, &header, &mut effort)
        {
            return Some((anchor, end));
        }
        crc.push(bytes[anchor]);
    }
    *search = search.saturating_sub(most.saturating_sub(start));
    None
}

/// The start of the values that end at `anchor`, not before `from`. `effort` is as in
/// [`columns_end`].
fn values_start(
    bytes: &[u8],
    from: usize,
    anchor: usize,
    h: &Header,
    effort: &mut usize,
) -> Option<usize> {
    if !h.has(FLAG_VALUES_COMPRESSED) {
        let start = anchor.checked_sub(h.value_bytes).filter(|s| *s >= from)?;
        return (crc32c(&bytes[start..anchor]) == h.values_crc).then_some(start);
    }
    // Compressed values are shorter than their uncompressed form.
    let first = anchor.saturating_sub(h.value_bytes).max(from);
    let len = anchor.checked_sub(first)?;
    *effort = effort.checked_sub(len)?;
    // crc(first..anchor) = crc(first..start), shifted by what follows, ^ crc(start..anchor). So the
    // checksum of everything before the values is known at each offset: backwards from their end by
    // inverse shifts, and then forwards again with the bytes.
    let mut wanted = crc32c(&bytes[first..anchor]) ^ h.values_crc;
    for _ in 0..len {
        wanted = unshifted(wanted);
    }
    let mut before = Running::default();
    for (start, byte) in bytes.iter().enumerate().take(anchor).skip(first) {
        if before.value() == wanted && values_fit(h, anchor - start) {
            return Some(start);
        }
        before.push(*byte);
        wanted = shifted(wanted);
    }
    None
}

/// The next block at or after `from` of which start, header and end can be found.
fn next_block(bytes: &[u8], from: usize, effort: &mut usize) -> Option<(usize, usize, usize)> {
    let most = bytes.len().checked_sub(HEADER_BYTES + CHECKSUM_BYTES)?;
    for anchor in from..=most {
        if may_be_header(bytes, anchor)
            && let Ok(header) = Header::parse(bytes, anchor)
            && let Some(end) = columns_end(bytes, anchor, &header, effort)
            && let Some(start) = values_start(bytes, from, anchor, &header, effort)
        {
            return Some((start, anchor, end));
        }
    }
    None
}

/// The ends of chains of blocks in a file of which nothing else is known. The sections may begin at
/// each of them.
pub(super) fn chain_ends(bytes: &[u8]) -> Vec<usize> {
    let mut ends = vec![0];
    let mut effort = EFFORT * bytes.len();
    let mut search = EFFORT * bytes.len();
    let mut at = 0;
    loop {
        while let Some((_, end)) = block_at(bytes, at, &mut search) {
            at = end;
        }
        if ends.last() != Some(&at) {
            ends.push(at);
        }
        match next_block(bytes, at, &mut effort) {
            Some((_, _, end)) => at = end,
            None => return ends,
        }
    }
}

/// Adds all blocks of `bytes` to `out`. `end` is the end of the blocks, if it is known.
///
/// # Errors
/// If a sound block has a feature that this program does not have.
pub(super) fn walk(
    bytes: &[u8],
    end: Option<usize>,
    rules: &Rules<'_>,
    out: &mut Salvage,
) -> Result<(), Damage> {
    let bytes = &bytes[..end.unwrap_or(bytes.len()).min(bytes.len())];
    let mut effort = EFFORT * bytes.len();
    let mut search = EFFORT * bytes.len();
    let mut reader = PieceReader::default();
    // The first piece of the present chain. Only the chain's end shows whether it is an island.
    let mut chain_first = out.pieces.len();
    let (mut at, mut chain_start) = (0, 0);
    while at < bytes.len() {
        let (start, anchor, block_end) = match block_at(bytes, at, &mut search) {
            Some((anchor, end)) => (at, anchor, end),
            None => {
                remove_embedded(bytes, at, out);
                if chain_start > 0 {
                    mark_island(out, chain_first);
                }
                let Some(found) = next_block(bytes, at, &mut effort) else {
                    lost(out, at, bytes.len());
                    finish(out);
                    return Ok(());
                };
                lost(out, at, found.0);
                chain_start = found.0.max(1);
                chain_first = out.pieces.len();
                found
            }
        };
        let place = Place {
            start: start as u64,
            anchor: anchor as u64,
            end: block_end as u64,
        };
        let piece = reader
            .decode(bytes[start..block_end].to_vec(), anchor - start)
            .and_then(|()| rules.piece(&reader.all, place))
            .and_then(|piece| follows(before(out, chain_first), &piece).map(|()| piece));
        match piece {
            Ok(piece) => out.pieces.push(piece),
            Err(damage) if damage.feature.is_some() => return Err(damage.shifted(start as u64)),
            Err(damage) => out.gaps.push(Gap {
                damage,
                ..gap(out, start, block_end)
            }),
        }
        at = block_end;
    }
    // The last chain is connected to the blocks' end, if the bytes end there.
    if end.is_none() {
        if chain_start > 0 {
            mark_island(out, chain_first);
        }
        lost(out, at, bytes.len());
    }
    finish(out);
    Ok(())
}

/// The piece after which a chain's next piece must come. An island before it may not belong to the
/// table.
fn before(out: &Salvage, chain_first: usize) -> Option<&super::Piece> {
    if out.pieces.len() > chain_first {
        return out.pieces.last();
    }
    out.pieces.iter().rev().find(|p| !p.island)
}

/// Removes the blocks before `chain_end` if they are a complete table, with sections after it, that
/// begins within this file. Such a table is a value in a damaged block, even if it directly follows
/// the blocks before it.
fn remove_embedded(bytes: &[u8], chain_end: usize, out: &mut Salvage) {
    let Some((_, index, first)) = sections_at(bytes, chain_end) else {
        return;
    };
    let first = first as u64;
    let of_table = out.pieces.partition_point(|p| p.place.start < first);
    let inner = &out.pieces[of_table..];
    let same = first > 0
        && inner.len() == index.len()
        && inner
            .iter()
            .enumerate()
            .all(|(i, p)| p.place.end == first + index.place(i).end);
    if same {
        out.pieces.truncate(of_table);
    }
}

fn mark_island(out: &mut Salvage, from: usize) {
    out.pieces
        .iter_mut()
        .skip(from)
        .for_each(|p| p.island = true);
}

fn gap(out: &Salvage, start: usize, end: usize) -> Gap {
    Gap {
        start: start as u64,
        end: end as u64,
        block: None,
        after: out.pieces.last().map(|p| p.last_key.clone()),
        until: None,
        until_included: true,
        damage: Damage::new("blocks", 0, 1, 0),
    }
}

fn lost(out: &mut Salvage, start: usize, end: usize) {
    let gap = gap(out, start, end);
    out.gaps.push(gap);
}

/// Keeps an island only if it fits between the keys of its neighbours; otherwise it becomes part of
/// the gap. Then sets the bounds of the gaps.
fn finish(out: &mut Salvage) {
    let pieces = std::mem::take(&mut out.pieces);
    let mut kept: Vec<super::Piece> = Vec::with_capacity(pieces.len());
    for (i, piece) in pieces.iter().enumerate() {
        if piece.island {
            let next = pieces[i + 1..].iter().find(|p| !p.island);
            let inside = next.is_none_or(|next| follows(Some(piece), next).is_ok());
            if !inside {
                continue;
            }
        }
        kept.push(piece.clone());
    }
    out.pieces = kept;
    // Neighbouring gaps are joined, so that each extends from piece to piece.
    let mut gaps: Vec<Gap> = Vec::new();
    for mut gap in std::mem::take(&mut out.gaps) {
        let next = out.pieces.partition_point(|p| p.place.start < gap.start);
        gap.start = next
            .checked_sub(1)
            .map_or(0, |i| out.pieces[i].place.end)
            .min(gap.start);
        gap.end = out
            .pieces
            .get(next)
            .map_or(gap.end, |p| p.place.start.max(gap.end));
        gap.after = next.checked_sub(1).map(|i| out.pieces[i].last_key.clone());
        gap.until = out.pieces.get(next).map(|p| p.first_key.clone());
        match gaps.last_mut() {
            Some(last) if last.after == gap.after && last.until == gap.until => {
                last.end = last.end.max(gap.end);
            }
            _ => gaps.push(gap),
        }
    }
    out.gaps = gaps;
}
