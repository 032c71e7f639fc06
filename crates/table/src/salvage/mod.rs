//! Reads the parts of a damaged table that are still readable.
//!
//! [`salvage`] finds every block of a table file whose checksums are valid, whatever else is
//! damaged in the file, and describes the gaps between them. If the index can be read, it gives the
//! blocks' locations: through the footer, through a footer with one damaged length, or by reading
//! the sections that follow the blocks. Otherwise the file is searched ([`walk`]): block after
//! block from the last known end, and after damage from the next offset where a complete block is
//! found.
//!
//! Invariants: nothing is returned before both checksums of its block were verified, the block was
//! completely decoded, and its entries were found to be in order, after the entries before them,
//! and within the numbers and keys that the table is known to have. Blocks that are connected
//! neither to the file's start nor to the blocks' end are marked as an *island*, because a value
//! that contains a table looks like that. Filters are not used. No bytes cause a panic. Memory is
//! bounded by one block if there is an index, and otherwise by the file.
//!
//! Threading: reads a file that nobody writes, with its own buffers.

pub mod walk;

#[cfg(test)]
mod tests;

use std::cmp::Ordering;
use std::ops::Range;

use siltstone_storage::ReadFile;

use crate::block::{Block, CHECKSUM_BYTES, Decoded};
use crate::checksum::crc32c;
use crate::coding::Bytes;
use crate::error::{Damage, Result, TableError};
use crate::footer::{FOOTER_BYTES, Footer};
use crate::index::{INDEX_HEADER_BYTES, Index, Place};
use crate::key::{HIGHEST_TRAILER, Kind, compare_internal, kind_of, seq_of};
use crate::limits::MAX_PROPERTIES_BYTES;
use crate::properties::Properties;
use crate::rangedel::RangeDeletes;

/// What is known about a table from elsewhere (a manifest). Whatever contradicts it does not belong
/// to this table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Expect {
    /// The smallest and the largest sequence number in the file.
    pub seqs: Option<(u64, u64)>,
    /// The smallest and the largest user key of its entries.
    pub keys: Option<(Vec<u8>, Vec<u8>)>,
}

/// A readable block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Its location.
    pub place: Place,
    /// The number of its entries.
    pub entries: u64,
    /// Its first user key.
    pub first_key: Vec<u8>,
    /// The trailer of the first entry.
    pub first_trailer: u64,
    /// Its last user key.
    pub last_key: Vec<u8>,
    /// The trailer of the last entry.
    pub last_trailer: u64,
    /// Whether it is connected neither to the file's start nor to the blocks' end. Then it may be a
    /// part of a value.
    pub island: bool,
}

/// A range of block bytes that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gap {
    /// The offset of its start in the file, in bytes.
    pub start: u64,
    /// The offset of its end.
    pub end: u64,
    /// The number of the first lost block, if the index is known.
    pub block: Option<u64>,
    /// The lost entries have greater keys than this one, or are older versions of it. If `None`,
    /// they may be as small as the table's smallest.
    pub after: Option<Vec<u8>>,
    /// The lost entries have no greater keys than this one. If `None`, they may be as great as the
    /// table's largest.
    pub until: Option<Vec<u8>>,
    /// Whether the key `until` itself may have lost versions.
    pub until_included: bool,
    /// The damage that was found.
    pub damage: Damage,
}

/// The parts of a table file that are still readable.
#[derive(Clone, Debug, Default)]
pub struct Salvage {
    /// The footer, if its checksum is valid.
    pub footer: Option<Footer>,
    /// The locations of the sections, if they could be determined.
    pub sections: Option<Sections>,
    /// The index, if its checksum is valid.
    pub index: Option<Index>,
    /// The properties, if they could be found and their checksum is valid.
    pub properties: Option<Properties>,
    /// The range deletes. `None` if they were lost, or if it is not known whether there were any.
    pub range_deletes: Option<RangeDeletes>,
    /// The readable blocks, in file order and in key order.
    pub pieces: Vec<Piece>,
    /// The gaps between them.
    pub gaps: Vec<Gap>,
    /// Damaged parts that are not blocks: their names and errors.
    pub parts: Vec<(&'static str, TableError)>,
}

impl Salvage {
    /// Whether no part of the table is damaged.
    pub fn is_whole(&self) -> bool {
        self.gaps.is_empty() && self.parts.is_empty()
    }

    /// The number of entries of all pieces.
    pub fn entry_count(&self) -> u64 {
        self.pieces.iter().map(|p| p.entries).sum()
    }
}

/// Reads single blocks completely.
#[derive(Debug, Default)]
pub struct PieceReader {
    block: Option<Block>,
    all: Decoded,
}

impl PieceReader {
    /// Reads, verifies and decodes the block at `place`.
    ///
    /// # Errors
    /// If the file cannot be read, or the block is damaged.
    pub fn read(&mut self, file: &dyn ReadFile, place: Place) -> Result<()> {
        self.block = None;
        let stored = read(file, place.start, place.stored_bytes())?;
        self.decode(stored, (place.anchor - place.start) as usize)
            .map_err(|d| d.in_file(file.name(), place.start))
    }

    fn decode(&mut self, stored: Vec<u8>, anchor: usize) -> std::result::Result<(), Damage> {
        let block = Block::new(stored, anchor, true)?;
        block.view().decode_all(&mut self.all)?;
        self.block = Some(block);
        Ok(())
    }

    /// The number of entries.
    pub fn len(&self) -> usize {
        self.block.as_ref().map_or(0, |_| self.all.len())
    }

    /// Whether there are no entries.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The user key of entry `i`, which must be below [`PieceReader::len`].
    pub fn key(&self, i: usize) -> &[u8] {
        self.all.key(i)
    }

    /// The trailer of entry `i`.
    pub fn trailer(&self, i: usize) -> u64 {
        self.all.trailers[i]
    }

    /// The value of entry `i`.
    pub fn value(&self, i: usize) -> &[u8] {
        let range = self.all.value_range(i);
        self.block
            .as_ref()
            .and_then(|block| block.value_at(range.start, range.len()))
            .unwrap_or_default()
    }
}

/// The rules that a block must keep, in addition to its checksums, to belong to this table.
struct Rules<'a> {
    expect: &'a Expect,
    seqs: Option<(u64, u64)>,
}

impl Rules<'_> {
    /// Makes a piece from a decoded block that keeps the rules.
    fn piece(&self, all: &Decoded, place: Place) -> std::result::Result<Piece, Damage> {
        let n = all.len();
        for i in 0..n {
            let (key, trailer) = (all.key(i), all.trailers[i]);
            let point = matches!(kind_of(trailer), Some(kind) if kind != Kind::RangeDelete);
            if !point {
                return Err(Damage::new("kind of an entry", 0, 1, trailer & 0xff));
            }
            if i > 0
                && compare_internal(all.key(i - 1), all.trailers[i - 1], key, trailer)
                    != Ordering::Less
            {
                return Err(Damage::new("order of entries", 0, i as u64 - 1, i as u64));
            }
            let seq = seq_of(trailer);
            if let Some((smallest, largest)) = self.seqs
                && !(smallest..=largest).contains(&seq)
            {
                return Err(Damage::new("sequence number of an entry", 0, largest, seq));
            }
        }
        let last = n
            .checked_sub(1)
            .ok_or(Damage::new("block entry count", 0, 1, 0))?;
        if let Some((smallest, largest)) = &self.expect.keys
            && (all.key(0) < &smallest[..] || all.key(last) > &largest[..])
        {
            return Err(Damage::new(
                "keys of a block within those of its table",
                0,
                0,
                0,
            ));
        }
        Ok(Piece {
            place,
            entries: n as u64,
            first_key: all.key(0).to_vec(),
            first_trailer: all.trailers[0],
            last_key: all.key(last).to_vec(),
            last_trailer: all.trailers[last],
            island: false,
        })
    }
}

fn follows(before: Option<&Piece>, piece: &Piece) -> std::result::Result<(), Damage> {
    match before {
        Some(b)
            if compare_internal(
                &b.last_key,
                b.last_trailer,
                &piece.first_key,
                piece.first_trailer,
            ) != Ordering::Less =>
        {
            Err(Damage::new("order of entries", 0, 0, 0))
        }
        _ => Ok(()),
    }
}

/// Reads bytes of a file. Fails if there is not enough memory for them.
fn read(file: &dyn ReadFile, at: u64, len: u64) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let fits = usize::try_from(len).is_ok_and(|len| bytes.try_reserve_exact(len).is_ok());
    if !fits {
        return Err(TableError::Misuse(
            "there is no memory for a part of a damaged table",
        ));
    }
    bytes.resize(len as usize, 0);
    file.read_at(at, &mut bytes)?;
    Ok(bytes)
}

/// Reads a section with a valid checksum. The result is without the checksum.
fn section(file: &dyn ReadFile, place: &Range<u64>, what: &'static str) -> Result<Vec<u8>> {
    let len = place.end.saturating_sub(place.start);
    let bad = |expected, found| {
        Err(Damage::new(what, 0, expected, found).in_file(file.name(), place.start))
    };
    if place.end > file.len() || len < CHECKSUM_BYTES as u64 {
        return bad(CHECKSUM_BYTES as u64, len);
    }
    let mut bytes = read(file, place.start, len)?;
    let end = bytes.len() - CHECKSUM_BYTES;
    let (stored, computed) = (bytes.as_slice().u32(end), crc32c(&bytes[..end]));
    if stored != computed {
        return bad(u64::from(computed), u64::from(stored));
    }
    bytes.truncate(end);
    Ok(bytes)
}

/// The ranges of the sections in the file, in bytes, each with its checksum. The blocks end where
/// the filter starts. The range of a missing section is empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sections {
    /// The filter.
    pub filter: Range<u64>,
    /// The index.
    pub index: Range<u64>,
    /// The range deletes.
    pub range_deletes: Range<u64>,
    /// The properties; the footer follows them.
    pub properties: Range<u64>,
}

impl Sections {
    /// Computes the ranges from the lengths in a footer, if these are possible.
    fn of(lengths: [u64; 5], file_len: u64) -> Option<Sections> {
        let mut ends = [0u64; 5];
        let mut at = 0u64;
        for (end, len) in ends.iter_mut().zip(lengths) {
            at = at.checked_add(len)?;
            *end = at;
        }
        (at.checked_add(FOOTER_BYTES as u64)? == file_len).then(|| Sections {
            filter: ends[0]..ends[1],
            index: ends[1]..ends[2],
            range_deletes: ends[2]..ends[3],
            properties: ends[3]..ends[4],
        })
    }

    fn blocks_end(&self) -> u64 {
        self.filter.start
    }

    fn index(&self, file: &dyn ReadFile) -> Result<Index> {
        let bytes = section(file, &self.index, "checksum of the index")?;
        Index::decode(&bytes, self.blocks_end())
            .map_err(|d| d.in_file(file.name(), self.index.start))
    }
}

/// Passes on errors of the storage and what this program does not have, and returns damage as a
/// value. What it does not have is not damaged, so nobody may drop it as if it were.
fn unless_damaged<T>(result: Result<T>) -> Result<std::result::Result<T, TableError>> {
    match result {
        Ok(found) => Ok(Ok(found)),
        Err(error @ TableError::Storage(_)) => Err(error),
        Err(error @ TableError::Misuse(_)) => Err(error),
        Err(error) if error.is_unsupported() => Err(error),
        Err(error) => Ok(Err(error)),
    }
}

/// Repairs a footer with one damaged length: the other lengths and the file's length give it, and
/// the checksum of the index proves it.
fn repaired_footer(
    file: &dyn ReadFile,
    raw: &[u8; FOOTER_BYTES],
) -> Result<Option<(Sections, Index)>> {
    let lengths: [u64; 5] = std::array::from_fn(|i| raw.as_slice().u64(8 * i));
    let len = file.len();
    for damaged in 0..=lengths.len() {
        let mut lengths = lengths;
        if let Some(slot) = lengths.get_mut(damaged) {
            *slot = 0;
            let others = lengths
                .iter()
                .try_fold(FOOTER_BYTES as u64, |a, b| a.checked_add(*b));
            let Some(rest) = others.and_then(|others| len.checked_sub(others)) else {
                continue;
            };
            lengths[damaged] = rest;
        }
        if let Some(sections) = Sections::of(lengths, len)
            && let Ok(index) = unless_damaged(sections.index(file))?
        {
            return Ok(Some((sections, index)));
        }
    }
    Ok(None)
}

/// Reads the sections that begin at `at` one after the other. The index must be valid. The third
/// result is the offset of this table's first block, which is 0 except for a table within a value.
fn sections_at(bytes: &[u8], at: usize) -> Option<(Sections, Index, usize)> {
    let mut crc = walk::Running::default();
    let mut filter_end = at;
    let mut summed = at;
    loop {
        // There is no filter, or one of some number of 64-byte blocks and a checksum.
        let index_at = if filter_end == at {
            Some(at)
        } else {
            let sum_at = filter_end;
            (bytes.get(sum_at..sum_at + CHECKSUM_BYTES).is_some()
                && bytes.u32(sum_at) == crc.value())
            .then_some(sum_at + CHECKSUM_BYTES)
        };
        if let Some(index_at) = index_at
            && let Some((index, end, first)) = read_index_at(bytes, index_at, at)
        {
            let (range_deletes, properties) = sections_after_index(bytes, end);
            let sections = Sections {
                filter: at as u64..index_at as u64,
                index: index_at as u64..end as u64,
                range_deletes,
                properties,
            };
            return Some((sections, index, first));
        }
        filter_end += 64;
        let block = bytes.get(summed..filter_end)?;
        crc.add(block);
        summed = filter_end;
    }
}

fn checked(bytes: &[u8], at: usize, len: u64) -> Option<(&[u8], usize)> {
    let end = at.checked_add(usize::try_from(len).ok()?)?;
    let body = bytes.get(at..end)?;
    let after = end.checked_add(CHECKSUM_BYTES)?;
    (after <= bytes.len() && bytes.u32(end) == crc32c(body)).then_some((body, after))
}

fn read_index_at(bytes: &[u8], at: usize, blocks_end: usize) -> Option<(Index, usize, usize)> {
    let head = bytes.get(at..at.checked_add(INDEX_HEADER_BYTES)?)?;
    let (n, prefix, width) = (
        u64::from(head.u32(0)),
        u64::from(head.u16(4)),
        u64::from(head.u16(6)),
    );
    let (separators, m) = (u64::from(head.u32(8)), u64::from(head.u32(12)));
    if width != 4 && width != 8 {
        return None;
    }
    let len = INDEX_HEADER_BYTES as u64 + n * (8 + 2 * width + 4) + m * 12 + separators + prefix;
    let (body, end) = checked(bytes, at, len)?;
    // The end of the last block, counted from the first block.
    let last_end = INDEX_HEADER_BYTES as u64 + n * (8 + 2 * width) - width;
    let blocks_bytes = match n {
        0 => 0,
        _ => body.uint(last_end as usize, width as usize),
    };
    let index = Index::decode(body, blocks_bytes).ok()?;
    let first = blocks_end.checked_sub(usize::try_from(blocks_bytes).ok()?)?;
    Some((index, end, first))
}

/// The range deletes and properties after an index. If a section cannot be read, its range contains
/// nothing valid.
fn sections_after_index(bytes: &[u8], at: usize) -> (Range<u64>, Range<u64>) {
    let len = bytes.len();
    let to = len.saturating_sub(FOOTER_BYTES).max(at);
    let head = bytes.get(at..).unwrap_or_default();
    let body = 8 + 16 * u64::from(head.u32(0)) + u64::from(head.u32(4));
    let deletes = checked(bytes, at, body)
        .filter(|(body, end)| RangeDeletes::decode(body).is_ok() && *end <= to)
        .map_or(at, |(_, end)| end);
    (at as u64..deletes as u64, deletes as u64..to as u64)
}

/// Finds the readable parts of a table file.
///
/// # Errors
/// Those of the storage, a lack of memory, and a version or a feature that this program does not
/// have. Damage is part of the result.
pub fn salvage(file: &dyn ReadFile, expect: &Expect) -> Result<Salvage> {
    let mut out = Salvage::default();
    let len = file.len();
    let mut index = None;
    let mut sections = None;
    match len.checked_sub(FOOTER_BYTES as u64) {
        None => {
            let damage = Damage::new("length of a table file", 0, FOOTER_BYTES as u64, len);
            out.parts.push(("footer", damage.in_file(file.name(), 0)));
        }
        Some(at) => {
            let mut raw = [0; FOOTER_BYTES];
            file.read_at(at, &mut raw)?;
            match Footer::decode(&raw, file.name(), len) {
                Ok(footer) => {
                    out.footer = Some(footer);
                    sections = Sections::of(footer.sections(), len);
                }
                Err(error) if error.is_unsupported() => return Err(error),
                Err(error) => {
                    out.parts.push(("footer", error));
                    if let Some((found, holds)) = repaired_footer(file, &raw)? {
                        (sections, index) = (Some(found), Some(holds));
                    }
                }
            }
        }
    }
    if let (Some(sections), None) = (&sections, &index) {
        match unless_damaged(sections.index(file))? {
            Ok(found) => index = Some(found),
            Err(error) => out.parts.push(("index", error)),
        }
    }
    let mut whole = None;
    if sections.is_none() {
        // To find what follows the blocks, they are walked once without knowing where they end.
        let bytes = read(file, 0, len)?;
        let found = walk::chain_ends(&bytes)
            .into_iter()
            .filter_map(|end| sections_at(&bytes, end))
            .find(|(_, _, first)| *first == 0);
        if let Some((found, holds, _)) = found {
            (sections, index) = (Some(found), Some(holds));
        } else {
            out.parts.push((
                "index",
                Damage::new("index", 0, 1, 0).in_file(file.name(), 0),
            ));
        }
        whole = Some(bytes);
    }
    if let Some(sections) = &sections {
        read_sections(file, sections, &mut out)?;
    }
    let rules = Rules {
        expect,
        seqs: expect.seqs.or_else(|| {
            let p = out.properties.as_ref()?;
            Some((p.smallest_seq, p.largest_seq))
        }),
    };
    match index {
        Some(index) => {
            by_index(file, &index, &rules, &mut out)?;
            out.index = Some(index);
        }
        None => {
            let end = sections.as_ref().map(Sections::blocks_end);
            let bytes = match whole {
                Some(bytes) => bytes,
                None => read(file, 0, end.unwrap_or(len).min(len))?,
            };
            walk::walk(&bytes, end.map(|e| e as usize), &rules, &mut out)
                .map_err(|damage| damage.in_file(file.name(), 0))?;
        }
    }
    out.sections = sections;
    Ok(out)
}

fn read_sections(file: &dyn ReadFile, sections: &Sections, out: &mut Salvage) -> Result<()> {
    if !sections.filter.is_empty()
        && let Err(error) =
            unless_damaged(section(file, &sections.filter, "checksum of the filter"))?
    {
        out.parts.push(("filter", error));
    }
    let place = &sections.properties;
    let properties = if place.end.saturating_sub(place.start) > MAX_PROPERTIES_BYTES {
        let damage = Damage::new(
            "length of the properties",
            0,
            MAX_PROPERTIES_BYTES,
            place.end - place.start,
        );
        Err(damage.in_file(file.name(), place.start))
    } else {
        unless_damaged(
            section(file, place, "checksum of the properties")
                .and_then(|bytes| Properties::decode(&bytes, file.name(), place.start)),
        )?
    };
    match properties {
        Ok(properties) => out.properties = Some(properties),
        Err(error) => out.parts.push(("properties", error)),
    }
    let place = &sections.range_deletes;
    let wanted = out.properties.as_ref().map(|p| p.range_deletes);
    let deletes = if place.is_empty() {
        match (out.footer.is_some(), wanted) {
            (true, _) | (_, Some(0)) => Ok(RangeDeletes::default()),
            (_, wanted) => {
                let damage = Damage::new("range deletes", 0, wanted.unwrap_or(1), 0);
                Err(damage.in_file(file.name(), place.start))
            }
        }
    } else {
        unless_damaged(
            section(file, place, "checksum of the range deletes").and_then(|bytes| {
                RangeDeletes::decode(&bytes).map_err(|d| d.in_file(file.name(), place.start))
            }),
        )?
    };
    match deletes {
        Ok(deletes) => out.range_deletes = Some(deletes),
        Err(error) => out.parts.push(("range deletes", error)),
    }
    Ok(())
}

fn by_index(
    file: &dyn ReadFile,
    index: &Index,
    rules: &Rules<'_>,
    out: &mut Salvage,
) -> Result<()> {
    let mut reader = PieceReader::default();
    let mut open: Option<Gap> = None;
    for i in 0..index.len() {
        let place = index.place(i);
        let piece = match unless_damaged(reader.read(file, place))? {
            Ok(()) => rules.piece(&reader.all, place),
            Err(error) => Err(damage_of(&error, place.start)),
        };
        let piece = piece.and_then(|piece| follows(out.pieces.last(), &piece).map(|()| piece));
        match (piece, &mut open) {
            (Ok(piece), gap) => {
                if let Some(mut gap) = gap.take() {
                    let (_, trailer) = index.separator(i - 1);
                    gap.until = Some(piece.first_key.clone());
                    // Between blocks that divide the versions of a key, the separator has a
                    // version's number.
                    gap.until_included = trailer != HIGHEST_TRAILER;
                    out.gaps.push(gap);
                }
                out.pieces.push(piece);
            }
            (Err(_), Some(gap)) => gap.end = place.end,
            (Err(damage), None) => {
                open = Some(Gap {
                    start: place.start,
                    end: place.end,
                    block: Some(i as u64),
                    after: out.pieces.last().map(|p| p.last_key.clone()),
                    until: None,
                    until_included: true,
                    damage,
                });
            }
        }
    }
    if let Some(mut gap) = open {
        gap.until = index
            .len()
            .checked_sub(1)
            .map(|last| index.separator(last).0);
        out.gaps.push(gap);
    }
    Ok(())
}

fn damage_of(error: &TableError, base: u64) -> Damage {
    match error {
        TableError::Corruption {
            offset,
            what,
            expected,
            found,
            ..
        } => Damage::new(what, offset.saturating_sub(base), *expected, *found),
        _ => Damage::new("block", 0, 0, 0),
    }
}
