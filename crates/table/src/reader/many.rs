//! Lookups of many keys at once, over any number of tables.
//!
//! [`TableReader::get`] makes several steps for one key; this module makes each step for many keys
//! before the next step. It prefetches all filters before it reads the first one, then narrows all
//! indexes, then searches them, then opens all blocks (each once for all of its keys), and searches
//! these. So the cache misses of different keys overlap, and all blocks of a table that must be
//! read come from the file in one call.
//!
//! Invariants: lookups are handled in order and in batches, so memory is bounded by [`WINDOW`]
//! lookups and [`READ_AT_ONCE_BYTES`] of blocks (or one larger block).
//!
//! Threading: as [`TableReader`].

use std::sync::Arc;

use siltstone_storage::ReadRange;

use super::{BlockCache, Found, LARGE_BLOCK_BYTES, TableReader};
use crate::block::{Block, Header, View};
use crate::coding::Bytes;
use crate::error::{Damage, Result};
use crate::index::{Narrowed, Place};
use crate::key::seek_trailer;

/// The number of lookups in a batch. Their prefetched lines fit in the second-level cache.
const WINDOW: usize = 128;

/// The stored bytes of blocks that are read together.
const READ_AT_ONCE_BYTES: u64 = 4 << 20;

/// One key that [`get_many`] looks up in one table.
pub struct Lookup<'a> {
    reader: &'a TableReader,
    key: &'a [u8],
    hash: u64,
    seq: u64,
    state: State,
    /// The trailer of the newest version at or below the number, if there is one. It may be that of
    /// a delete.
    pub found: Option<u64>,
    /// Its value.
    pub value: Vec<u8>,
}

/// How far a lookup has got.
#[derive(Clone, Copy)]
enum State {
    /// Not begun, or ended because the table does not have the key.
    Out,
    Narrowed(Narrowed),
    /// The block to search.
    Block(u32),
    /// The index of the open block, and the first entry that may have the key.
    Open(u32, u32),
    /// The index of the open block, and the start and length of the value in it.
    Value(u32, u32, u32),
}

impl<'a> Lookup<'a> {
    /// A lookup of the newest version of `key` with a number of at most `seq`. `hash` is the key's
    /// [`crate::key::hash`].
    pub fn new(reader: &'a TableReader, key: &'a [u8], hash: u64, seq: u64) -> Lookup<'a> {
        Lookup {
            reader,
            key,
            hash,
            seq,
            state: State::Out,
            found: None,
            value: Vec::new(),
        }
    }
}

/// A block that was verified, and decompressed if necessary.
struct OpenBlock {
    table: u64,
    number: u32,
    place: Place,
    held: Held,
}

enum Held {
    /// The block is in the table's map.
    Map(Header),
    Heap(Arc<Block>),
    /// The block is too large to be read for a few values. Each lookup reads only what it needs.
    Large,
}

/// Performs all lookups. Those of one table should follow each other with ascending keys: then each
/// block is opened only once.
///
/// # Errors
/// The first block that cannot be read or is damaged. Lookups before it may have results.
pub fn get_many(cache: &dyn BlockCache, lookups: &mut [Lookup<'_>]) -> Result<()> {
    let mut open: Vec<OpenBlock> = Vec::new();
    for window in lookups.chunks_mut(WINDOW) {
        for lookup in &*window {
            lookup.reader.prefetch_filter(lookup.hash);
        }
        for lookup in &mut *window {
            if lookup.reader.may_contain(lookup.hash) {
                lookup.state = State::Narrowed(lookup.reader.index.narrow(lookup.key));
            }
        }
        for lookup in &mut *window {
            if let State::Narrowed(narrowed) = lookup.state {
                let trailer = seek_trailer(lookup.seq);
                let block = lookup
                    .reader
                    .find_block_narrowed(narrowed, lookup.key, trailer);
                lookup.state = block.map_or(State::Out, State::Block);
            }
        }
        for lookup in &*window {
            if let State::Block(block) = lookup.state {
                lookup.reader.prefetch_block(block);
            }
        }
        let mut from = 0;
        while from < window.len() {
            // The last block may also contain the next keys.
            let last = open.pop();
            open.clear();
            open.extend(last);
            let to = open_blocks(cache, window, from, &mut open)?;
            answer(cache, &mut window[from..to], &open)?;
            from = to;
        }
    }
    Ok(())
}

/// Opens the blocks of the lookups that begin at `from`, as many as may be read at once. Returns
/// the index of the first lookup whose block was not opened.
fn open_blocks(
    cache: &dyn BlockCache,
    lookups: &mut [Lookup<'_>],
    from: usize,
    open: &mut Vec<OpenBlock>,
) -> Result<usize> {
    let mut budget = READ_AT_ONCE_BYTES;
    let mut missing = Vec::new();
    let mut at = from;
    while at < lookups.len() {
        let State::Block(number) = lookups[at].state else {
            at += 1;
            continue;
        };
        let reader = lookups[at].reader;
        let known = open
            .last()
            .is_some_and(|o| o.table == reader.id && o.number == number);
        if !known {
            let place = reader.index.place(number as usize);
            match reader.open_in_memory(cache, number, place)? {
                Some(held) => open.push(OpenBlock {
                    table: reader.id,
                    number,
                    place,
                    held,
                }),
                None => {
                    let bytes = place.stored_bytes();
                    if bytes > budget && budget < READ_AT_ONCE_BYTES {
                        break;
                    }
                    budget = budget.saturating_sub(bytes);
                    missing.push((reader, open.len()));
                    open.push(OpenBlock {
                        table: reader.id,
                        number,
                        place,
                        held: Held::Large,
                    });
                }
            }
        }
        lookups[at].state = State::Open(open.len() as u32 - 1, 0);
        at += 1;
    }
    // One call to the storage for each table.
    for run in missing.chunk_by(|a, b| a.0.id == b.0.id) {
        let reader = run[0].0;
        let numbers: Vec<u32> = run.iter().map(|(_, i)| open[*i].number).collect();
        for ((_, i), block) in run.iter().zip(reader.read_blocks(&numbers)?) {
            let block = Arc::new(block);
            cache.note_read(reader.id, open[*i].place.stored_bytes() as usize);
            cache.insert(reader.id, open[*i].number, &block);
            open[*i].held = Held::Heap(block);
        }
    }
    Ok(at)
}

/// Searches the open blocks and copies the values.
fn answer(cache: &dyn BlockCache, lookups: &mut [Lookup<'_>], open: &[OpenBlock]) -> Result<()> {
    for lookup in &mut *lookups {
        let State::Open(at, _) = lookup.state else {
            continue;
        };
        let key = lookup.key;
        lookup.state = match lookup.reader.locate(&open[at as usize], key)? {
            Some(low) => State::Open(at, low as u32),
            None => State::Out,
        };
    }
    for lookup in &mut *lookups {
        let State::Open(at, low) = lookup.state else {
            continue;
        };
        let block = &open[at as usize];
        let limit = seek_trailer(lookup.seq);
        lookup.state = State::Out;
        if let Held::Large = block.held {
            // Reads its columns and then the one value, or, if it is compressed, the whole block
            // through the cache.
            let (reader, i) = (lookup.reader, block.number as usize);
            let found = reader.lookup(cache, i, lookup.key, limit, Some(&mut lookup.value))?;
            if let Some((trailer, found)) = found {
                lookup.found = Some(trailer);
                if let Found::InBlock(heap, start, len) = found {
                    let value = heap.value_at(start, len).unwrap_or_default();
                    lookup.value.extend_from_slice(value);
                }
            }
            continue;
        }
        let found = lookup
            .reader
            .get_in_open(block, low as usize, lookup.key, limit)?;
        if let Some((trailer, start, len)) = found {
            lookup.found = Some(trailer);
            lookup.state = State::Value(at, start as u32, len as u32);
        }
    }
    for lookup in &mut *lookups {
        if let State::Value(at, start, len) = lookup.state {
            let (start, len) = (start as usize, len as usize);
            let block = &open[at as usize];
            lookup
                .reader
                .copy_value(block, start, len, &mut lookup.value)?;
            lookup.state = State::Out;
        }
    }
    Ok(())
}

/// Runs `$body` with an open block as `$view`. Results from a map are returned only if no page
/// failed.
macro_rules! with_open {
    ($reader:expr, $open:expr, |$view:ident| $body:expr) => {
        match (&$open.held, &$reader.map) {
            (Held::Map(header), Some(map)) => {
                let (anchor, start) = ($open.place.anchor as usize, $open.place.start as usize);
                let result = View::with_header(map, anchor, start, header).and_then(|$view| $body);
                $reader.unless_map_failed(map, $open.place, result)
            }
            (Held::Heap(block), _) => {
                let $view = block.view();
                let result: std::result::Result<_, Damage> = $body;
                result.map_err(|d| d.in_file($reader.name(), $open.place.start))
            }
            _ => Ok(Default::default()),
        }
    };
}

/// The trailer of the newest version at or below the limit, with the start and length of its value.
/// Prefetches the value.
#[inline]
fn find<B: Bytes + ?Sized>(
    view: View<'_, B, &Header>,
    low: usize,
    key: &[u8],
    limit: u64,
) -> std::result::Result<Option<(u64, usize, usize)>, Damage> {
    let Some((entry, trailer)) = view.get_located(low, key, limit)? else {
        return Ok(None);
    };
    let (start, len) = view.value_range(entry)?;
    for line in 0..len.div_ceil(64).min(16) {
        view.bytes().prefetch(view.values() + start + 64 * line);
    }
    Ok(Some((trailer, start, len)))
}

impl TableReader {
    /// The block, if it can be opened without reading the file.
    fn open_in_memory(
        &self,
        cache: &dyn BlockCache,
        number: u32,
        place: Place,
    ) -> Result<Option<Held>> {
        if let Some(map) = &self.map
            && let Some(header) = self.map_header(map, number as usize, place)?
        {
            return Ok(Some(Held::Map(header)));
        }
        if self.map.is_none() && place.stored_bytes() >= LARGE_BLOCK_BYTES {
            return Ok(Some(Held::Large));
        }
        Ok(cache.get(self.id, number).map(Held::Heap))
    }

    /// Reads several blocks by one call to the storage, without a cache.
    fn read_blocks(&self, numbers: &[u32]) -> Result<Vec<Block>> {
        let places: Vec<Place> = numbers
            .iter()
            .map(|n| self.index.place(*n as usize))
            .collect();
        let mut stored: Vec<Vec<u8>> = places
            .iter()
            .map(|p| vec![0; p.stored_bytes() as usize])
            .collect();
        let mut ranges: Vec<ReadRange<'_>> = places
            .iter()
            .zip(&mut stored)
            .map(|(place, buf)| ReadRange {
                offset: place.start,
                buf,
            })
            .collect();
        self.file.read_ranges(&mut ranges)?;
        drop(ranges);
        numbers
            .iter()
            .zip(stored)
            .map(|(n, stored)| self.block_of(*n as usize, stored))
            .collect()
    }

    /// The first entry of the block that may have the key, if there is one. Prefetches its cache
    /// lines.
    #[inline]
    fn locate(&self, open: &OpenBlock, key: &[u8]) -> Result<Option<usize>> {
        if let Held::Large = open.held {
            return Ok(Some(0));
        }
        with_open!(self, open, |view| {
            let low = view.locate(key);
            if let Some(low) = low {
                view.prefetch_result(low);
            }
            Ok(low)
        })
    }

    /// The newest version at or below the limit, from the entry that [`TableReader::locate`]
    /// returned: its trailer, and the start and length of its value, which is prefetched.
    #[inline]
    fn get_in_open(
        &self,
        open: &OpenBlock,
        low: usize,
        key: &[u8],
        limit: u64,
    ) -> Result<Option<(u64, usize, usize)>> {
        with_open!(self, open, |view| find(view, low, key, limit))
    }

    #[inline]
    fn copy_value(
        &self,
        open: &OpenBlock,
        start: usize,
        len: usize,
        out: &mut Vec<u8>,
    ) -> Result<()> {
        match (&open.held, &self.map) {
            (Held::Map(header), Some(map)) => {
                let i = open.number as usize;
                self.copy_from_map(map, i, open.place, header, start, len, out)
            }
            (Held::Heap(block), _) => {
                let value = block.value_at(start, len).ok_or_else(|| {
                    Damage::new("value", 0, len as u64, 0).in_file(self.name(), open.place.start)
                })?;
                out.extend_from_slice(value);
                Ok(())
            }
            _ => Ok(()),
        }
    }
}
