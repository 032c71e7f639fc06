//! Finding blocks in a file without an index.
//!
//! What it is: a block's values are followed by its header, which holds their checksum, so from a known start the block's header is the first
//! place whose checksum field equals the running checksum of everything before it. Behind damage no start is known: then a place is looked for
//! that is a header in all its fields, whose columns have their checksum, and before which values lie that have theirs.
//!
//! Invariants: see the module above. What is searched in vain, for columns and values of unknown (compressed) length and for the next header, is bounded
//! by a multiple of the file's bytes, so that crafted bytes cannot make it quadratic.
//!
//! Threading: pure functions.

use super::{Gap, PieceReader, Rules, Salvage, joins, sections_at};
use crate::block::header::{FLAG_COLUMNS_COMPRESSED, FLAG_VALUES_COMPRESSED};
use crate::block::{CHECKSUM_BYTES, HEADER_BYTES, Header};
use crate::checksum::crc32c;
use crate::coding::Bytes;
use crate::error::Damage;
use crate::index::Place;
use crate::limits::MAX_BLOCK_VALUE_BYTES;

/// A blind search gives up on parts of unknown length when it has summed this many times the bytes that it searches.
const EFFORT: usize = 64;

/// A block whose start is known is looked for at least so far, however much was searched in vain before.
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

/// crc32c byte by byte, because a checksum is compared behind each of them.
static TABLE: [u32; 256] = table();

/// Where in [`TABLE`] a number stands with this highest byte; each highest byte is there once.
static BY_HIGHEST: [u8; 256] = {
    let mut places = [0; 256];
    let mut i = 0;
    while i < 256 {
        places[(TABLE[i] >> 24) as usize] = i as u8;
        i += 1;
    }
    places
};

/// The checksum of bytes and a zero byte behind them, as far as the bytes before it have a part in it.
#[inline]
fn shifted(crc: u32) -> u32 {
    TABLE[usize::from(crc as u8)] ^ crc >> 8
}

/// Inverse of [`shifted`].
#[inline]
fn unshifted(crc: u32) -> u32 {
    let low = BY_HIGHEST[(crc >> 24) as usize];
    (crc ^ TABLE[usize::from(low)]) << 8 | u32::from(low)
}

/// A crc32c that grows by single bytes.
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

/// Cheap tests that nearly all bytes fail.
#[inline]
fn may_be_header(bytes: &[u8], at: usize) -> bool {
    bytes[at + 30] == 0
        && bytes[at + 31] == 0
        && bytes[at + 6] < 64
        && bytes[at + 5] < 8
        && matches!(bytes[at + 4], 4 | 8)
        && matches!(bytes[at + 7], 0 | 2 | 4)
        && bytes[at + 1] <= 16
}

/// Where the block ends whose header lies at `anchor`, if its columns have their checksum. `effort` is what may still be spent on columns of
/// unknown length, in bytes.
fn columns_end(bytes: &[u8], anchor: usize, h: &Header, effort: &mut usize) -> Option<usize> {
    if !h.has(FLAG_COLUMNS_COMPRESSED) {
        let end = anchor.checked_add(h.columns_bytes())?;
        let stored = bytes.get(anchor..end)?;
        let after = end.checked_add(CHECKSUM_BYTES)?;
        return (after <= bytes.len() && bytes.u32(end) == crc32c(stored)).then_some(after);
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

/// The block that begins at `start`: its header and its end. `search` is what may still be looked through in vain, in bytes.
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

/// Where values of unknown length begin that end at `anchor`, not before `from`. `effort` as in [`columns_end`].
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
    // Compressed values are shorter than what they decode to.
    let first = anchor.saturating_sub(h.value_bytes).max(from);
    let len = anchor.checked_sub(first)?;
    *effort = effort.checked_sub(len)?;
    // crc(first..anchor) = crc(first..start), shifted by what follows, ^ crc(start..anchor): so the checksum of what lies before the values is known
    // at each place, going back from their end by inverse shifts, and forward again with the bytes.
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

/// The next block whose start, header and end all show, from `from` on: start, header, end.
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

/// Where chains of blocks end in a file of which nothing else is known: each may be where the sections begin.
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

/// Adds all blocks of `bytes` to `out`. `end`: where the blocks end, if that is known.
pub(super) fn walk(bytes: &[u8], end: Option<usize>, rules: &Rules<'_>, out: &mut Salvage) {
    let bytes = &bytes[..end.unwrap_or(bytes.len()).min(bytes.len())];
    let mut effort = EFFORT * bytes.len();
    let mut search = EFFORT * bytes.len();
    let mut reader = PieceReader::default();
    // Pieces of the chain that is being read: whether it is an island shows at its end.
    let mut chain_first = out.pieces.len();
    let (mut at, mut chain_start) = (0, 0);
    while at < bytes.len() {
        let (start, anchor, block_end) = match block_at(bytes, at, &mut search) {
            Some((anchor, end)) => (at, anchor, end),
            None => {
                forget_embedded(bytes, at, out);
                if chain_start > 0 {
                    mark_island(out, chain_first);
                }
                let Some(found) = next_block(bytes, at, &mut effort) else {
                    lost(out, at, bytes.len());
                    finish(out);
                    return;
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
            .and_then(|piece| joins(before(out, chain_first), &piece).map(|()| piece));
        match piece {
            Ok(piece) => out.pieces.push(piece),
            Err(damage) => out.gaps.push(Gap {
                damage,
                ..gap(out, start, block_end)
            }),
        }
        at = block_end;
    }
    // The last chain joins the blocks' end, if that is where the bytes end.
    if end.is_none() {
        if chain_start > 0 {
            mark_island(out, chain_first);
        }
        lost(out, at, bytes.len());
    }
    finish(out);
}

/// What a chain's next piece comes after: an island before it may be no part of the table.
fn before(out: &Salvage, chain_first: usize) -> Option<&super::Piece> {
    if out.pieces.len() > chain_first {
        return out.pieces.last();
    }
    out.pieces.iter().rev().find(|p| !p.island)
}

/// Blocks up to `chain_end` behind which a table goes on that begins behind this one: it is a value in a damaged block, even where it joins
/// the blocks before.
fn forget_embedded(bytes: &[u8], chain_end: usize, out: &mut Salvage) {
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

/// An island is believed only between its neighbours' keys; what is not joins the gap. Then gaps get their bounds.
fn finish(out: &mut Salvage) {
    let pieces = std::mem::take(&mut out.pieces);
    let mut kept: Vec<super::Piece> = Vec::with_capacity(pieces.len());
    for (i, piece) in pieces.iter().enumerate() {
        if piece.island {
            let next = pieces[i + 1..].iter().find(|p| !p.island);
            let inside = next.is_none_or(|next| joins(Some(piece), next).is_ok());
            if !inside {
                continue;
            }
        }
        kept.push(piece.clone());
    }
    out.pieces = kept;
    // Neighbouring gaps become one, from piece to piece.
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
