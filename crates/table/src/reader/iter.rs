//! Iterates over the entries of a table, in both directions.
//!
//! The user key is kept in a buffer, and a value is copied only on request. A scan of a map
//! prefetches the cache lines of later values: the processor cannot see from the columns that
//! values follow each other.
//!
//! Threading: one owner.

use std::sync::Arc;

use super::{BlockCache, TableReader, Verify};
use crate::block::{Block, Entry, Header, View, Window};
use crate::error::{Damage, Result};
use crate::index::Place;

/// How far ahead of the current value a scan prefetches, in bytes.
const AHEAD_BYTES: usize = 1024;

/// Room for most keys. The buffer grows for longer ones.
const KEY_CAPACITY_BYTES: usize = 64;

/// The number of cache lines of values that a seek prefetches. The scan prefetches those that
/// follow.
const SEEK_LINES: usize = 6;

enum CurrentBlock {
    None,
    /// The block is in the reader's map.
    Map(Header),
    Heap(Arc<Block>),
}

/// A position in a table. A new iterator is at no entry.
pub struct TableIter {
    reader: Arc<TableReader>,
    cache: Arc<dyn BlockCache>,
    current: CurrentBlock,
    block: usize,
    /// The location of `block`.
    place: Place,
    entry: usize,
    entries: usize,
    /// The entry at which a scan prefetches the next block.
    ahead_at: usize,
    valid: bool,
    /// Entries of the current block that were decoded for a scan.
    window: Window,
    /// Whether the checksum of the current block's values is known to be right.
    values_verified: bool,
    /// The user key, and the bytes that [`View::key_over`] leaves after it.
    key: Vec<u8>,
    key_len: usize,
    /// Whether `key` is from the current block, so that it begins with the block's prefix.
    key_in_block: bool,
    trailer: u64,
    value_start: usize,
    value_len: usize,
    value: Vec<u8>,
}

/// Runs `$body` with the current block as `$view`. Results from a map are returned only if no page
/// failed.
macro_rules! with_view {
    ($self:ident, |$view:ident| $body:expr) => {{
        let place = $self.place;
        match (&$self.current, &$self.reader.map) {
            (CurrentBlock::Map(header), Some(map)) => {
                let (anchor, start) = (place.anchor as usize, place.start as usize);
                let bytes = map.view();
                let result =
                    View::with_header(&bytes, anchor, start, header).and_then(|$view| $body);
                $self.reader.unless_map_failed(map, place, result)
            }
            (CurrentBlock::Heap(block), _) => {
                let $view = block.view();
                let result: std::result::Result<_, Damage> = $body;
                result.map_err(|d| d.in_file($self.reader.name(), place.start))
            }
            _ => Err(crate::error::TableError::Misuse(
                "an iterator was used that is at no block",
            )),
        }
    }};
}

impl TableIter {
    pub(super) fn new(reader: Arc<TableReader>, cache: Arc<dyn BlockCache>) -> TableIter {
        TableIter {
            reader,
            cache,
            current: CurrentBlock::None,
            block: usize::MAX,
            place: Place {
                start: 0,
                anchor: 0,
                end: 0,
            },
            entry: 0,
            entries: 0,
            ahead_at: 0,
            valid: false,
            window: Window::default(),
            values_verified: false,
            key: Vec::with_capacity(KEY_CAPACITY_BYTES),
            key_len: 0,
            key_in_block: false,
            trailer: 0,
            value_start: 0,
            value_len: 0,
            value: Vec::new(),
        }
    }

    /// The table.
    pub fn reader(&self) -> &Arc<TableReader> {
        &self.reader
    }

    /// Whether the iterator is at an entry.
    #[inline]
    pub fn valid(&self) -> bool {
        self.valid
    }

    /// The current user key.
    #[inline]
    pub fn key(&self) -> &[u8] {
        &self.key[..self.key_len]
    }

    /// The current trailer.
    #[inline]
    pub fn trailer(&self) -> u64 {
        self.trailer
    }

    /// The length of the current value in bytes. The value is not read.
    #[inline]
    pub fn value_len(&self) -> usize {
        self.value_len
    }

    /// The current value. It is borrowed from a heap block, or copied from a map.
    ///
    /// # Errors
    /// If it cannot be read or its checksum is wrong.
    #[inline]
    pub fn value(&mut self) -> Result<&[u8]> {
        match (&self.current, &self.reader.map) {
            (CurrentBlock::Map(header), Some(map)) => {
                self.value.clear();
                let place = self.place;
                let (start, len) = (self.value_start, self.value_len);
                self.reader.copy_from_map(
                    map,
                    self.block,
                    place,
                    header,
                    start,
                    len,
                    &mut self.value,
                )?;
                Ok(&self.value)
            }
            (CurrentBlock::Heap(block), _) => block
                .value_at(self.value_start, self.value_len)
                .ok_or_else(|| {
                    Damage::new("value", 0, self.value_len as u64, 0)
                        .in_file(self.reader.name(), self.place.start)
                }),
            _ => Ok(&[]),
        }
    }

    /// Copies the current value to the end of `out`.
    ///
    /// # Errors
    /// If it cannot be read or its checksum is wrong. `out` may then have some of its bytes.
    #[inline(always)]
    pub fn append_value(&mut self, out: &mut Vec<u8>) -> Result<()> {
        if self.values_verified
            && let Some(map) = &self.reader.map
            && let start = self.place.start as usize + self.value_start
            && map.view().append_to(start, self.value_len, out)
            && !map.failed()
        {
            return Ok(());
        }
        self.append_any_value(out)
    }

    /// As [`TableIter::append_value`], for a value of any block.
    #[inline(never)]
    fn append_any_value(&mut self, out: &mut Vec<u8>) -> Result<()> {
        if let (CurrentBlock::Map(header), Some(map)) = (&self.current, &self.reader.map) {
            let (start, len) = (self.value_start, self.value_len);
            self.reader
                .copy_from_map(map, self.block, self.place, header, start, len, out)?;
            self.values_verified = self.reader.verify == Verify::FirstTouch;
            return Ok(());
        }
        out.extend_from_slice(self.value()?);
        Ok(())
    }

    /// The current value in its heap block, without a copy. `None` if the current block is not on
    /// the heap.
    pub fn value_in_block(&self) -> Option<super::Value> {
        match &self.current {
            CurrentBlock::Heap(block) if self.valid => Some(super::Value::Block {
                block: block.clone(),
                start: self.value_start,
                len: self.value_len,
            }),
            _ => None,
        }
    }

    fn invalidate(&mut self) {
        self.valid = false;
    }

    fn enter(&mut self, block: usize) -> Result<()> {
        if block == self.block && !matches!(self.current, CurrentBlock::None) {
            return Ok(());
        }
        self.current = CurrentBlock::None;
        self.key_in_block = false;
        self.window.clear();
        self.values_verified = false;
        let place = self.reader.index.place(block);
        if let Some(map) = &self.reader.map
            && let Some(header) = self.reader.map_header(map, block, place)?
        {
            self.entries = header.n;
            self.current = CurrentBlock::Map(header);
        } else {
            let heap = self.reader.block(&*self.cache, block)?;
            self.entries = heap.view().len();
            self.current = CurrentBlock::Heap(heap);
        }
        self.block = block;
        self.place = place;
        self.ahead_at = self.entries / 2;
        Ok(())
    }

    /// Loads the key, the trailer and the value range of the current entry. The entries after it
    /// are decoded too, because a scan forward is likely to need them.
    #[inline(always)]
    fn load(&mut self) -> Result<()> {
        self.valid = false;
        if let Some(at) = self.window.position(self.entry)
            && self.key_in_block
            && self.take_from_window(at)
        {
            return Ok(());
        }
        self.load_window()
    }

    /// Shows the entry at this position of the window. Returns false if something is wrong.
    #[inline(always)]
    fn take_from_window(&mut self, at: usize) -> bool {
        let entry = match (&self.current, &self.reader.map) {
            (CurrentBlock::Map(_), Some(map)) => {
                let bytes = map.view();
                let entry = self.window.take(&bytes, at, &mut self.key);
                let Some(entry) = entry.filter(|_| !map.failed()) else {
                    return false;
                };
                // The processor fetches the lines of a page one after the other, but it does not
                // see that the values go on in the next page.
                let mut line = self.place.start as usize + entry.value_start + AHEAD_BYTES;
                let end = line + entry.value_len.min(AHEAD_BYTES);
                while line < end {
                    bytes.prefetch(line);
                    line += 64;
                }
                entry
            }
            (CurrentBlock::Heap(block), _) => {
                match self.window.take(block.view().bytes(), at, &mut self.key) {
                    Some(entry) => entry,
                    None => return false,
                }
            }
            _ => return false,
        };
        self.show(entry);
        true
    }

    /// As [`TableIter::load`], for an entry that is not in the window.
    #[inline(never)]
    fn load_window(&mut self) -> Result<()> {
        let mut key = std::mem::take(&mut self.key);
        let (i, in_block, window) = (self.entry, self.key_in_block, &mut self.window);
        let filled = with_view!(self, |view| {
            Ok((in_block || view.prefix_over(&mut key)) && view.fill_window(i, window))
        });
        self.key = key;
        self.key_in_block = false;
        if matches!(filled, Ok(true))
            && let Some(at) = self.window.position(i)
            && self.take_from_window(at)
        {
            return Ok(());
        }
        // What is wrong, if anything is, is wrong with this entry or with another one.
        self.window.clear();
        self.load_single()
    }

    /// As [`TableIter::load`], without the entries beside this one.
    #[inline(never)]
    fn load_single(&mut self) -> Result<()> {
        self.valid = false;
        let mut key = std::mem::take(&mut self.key);
        let (i, in_block) = (self.entry, std::mem::take(&mut self.key_in_block));
        let loaded = with_view!(self, |view| view.entry_over(i, &mut key, in_block));
        self.key = key;
        self.show(loaded?);
        Ok(())
    }

    #[inline(always)]
    fn show(&mut self, entry: Entry) {
        self.key_len = entry.key_len;
        self.key_in_block = true;
        self.trailer = entry.trailer;
        (self.value_start, self.value_len) = (entry.value_start, entry.value_len);
        self.valid = true;
    }

    /// Moves to the first entry at or after (`user_key`, `trailer`) in the order of entries.
    ///
    /// # Errors
    /// If a block cannot be read or is damaged. The iterator is then at no entry.
    pub fn seek(&mut self, user_key: &[u8], trailer: u64) -> Result<()> {
        self.invalidate();
        match self.reader.find_block(user_key, trailer) {
            Some(block) => self.seek_in_block(block, user_key, trailer),
            None => Ok(()),
        }
    }

    /// As [`TableIter::seek`], in the block that [`TableReader::find_block`] returned. A caller
    /// that seeks in several tables prefetches all blocks before it searches any.
    ///
    /// # Errors
    /// As [`TableIter::seek`].
    pub fn seek_in_block(&mut self, block: u32, user_key: &[u8], trailer: u64) -> Result<()> {
        self.locate_in_block(block, user_key, trailer)?;
        self.stand()
    }

    /// The first half of [`TableIter::seek_in_block`]: finds the entry and prefetches its cache
    /// lines. The iterator is at no entry until [`TableIter::stand`] is called.
    ///
    /// # Errors
    /// As [`TableIter::seek`].
    pub fn locate_in_block(&mut self, block: u32, user_key: &[u8], trailer: u64) -> Result<()> {
        self.invalidate();
        self.enter(block as usize)?;
        self.entry = with_view!(self, |view| {
            view.seek(user_key, trailer)
                .inspect(|&i| view.prefetch_result(i))
        })?;
        Ok(())
    }

    /// Moves to the entry that [`TableIter::locate_in_block`] found in the call before. Does
    /// nothing if the iterator is at no block.
    ///
    /// # Errors
    /// As [`TableIter::seek`].
    pub fn stand(&mut self) -> Result<()> {
        if matches!(self.current, CurrentBlock::None) {
            return Ok(());
        }
        self.load_or_next_block()?;
        if self.entry >= self.ahead_at {
            self.prefetch_next_block();
        }
        if let (CurrentBlock::Map(_), Some(map), true) =
            (&self.current, &self.reader.map, self.valid)
        {
            // The lines of the first values were not prefetched yet.
            let at = self.place.start as usize + self.value_start;
            for line in 0..SEEK_LINES {
                map.prefetch(at + 64 * line);
            }
        }
        Ok(())
    }

    /// Loads the current entry. If it is past the block's end, moves to the first entry of the next
    /// block.
    #[inline(always)]
    fn load_or_next_block(&mut self) -> Result<()> {
        if self.entry >= self.entries && !self.enter_next_block()? {
            return Ok(());
        }
        self.load()
    }

    /// Moves to the first entry of the next block, without loading it. Returns false if there is no
    /// such block.
    #[inline(never)]
    fn enter_next_block(&mut self) -> Result<bool> {
        self.invalidate();
        if self.block + 1 >= self.reader.index.len() {
            return Ok(false);
        }
        self.enter(self.block + 1)?;
        self.entry = 0;
        if self.ahead_at == 0 {
            self.prefetch_next_block();
        }
        Ok(true)
    }

    /// Moves to the last entry at or before (`user_key`, `trailer`) in the order of entries.
    ///
    /// # Errors
    /// As [`TableIter::seek`].
    pub fn seek_for_prev(&mut self, user_key: &[u8], trailer: u64) -> Result<()> {
        self.seek(user_key, trailer)?;
        if !self.valid {
            return self.seek_to_last();
        }
        if self.key() == user_key && self.trailer == trailer {
            return Ok(());
        }
        self.prev()
    }

    /// Moves to the first entry.
    ///
    /// # Errors
    /// As [`TableIter::seek`].
    pub fn seek_to_first(&mut self) -> Result<()> {
        self.invalidate();
        if self.reader.index.is_empty() {
            return Ok(());
        }
        self.enter(0)?;
        self.entry = 0;
        self.load()
    }

    /// Moves to the last entry.
    ///
    /// # Errors
    /// As [`TableIter::seek`].
    pub fn seek_to_last(&mut self) -> Result<()> {
        self.invalidate();
        let Some(last) = self.reader.index.len().checked_sub(1) else {
            return Ok(());
        };
        self.enter(last)?;
        self.entry = self.entries - 1;
        self.load_single()
    }

    /// Moves to the next entry. Does nothing if the iterator is at none.
    ///
    /// # Errors
    /// As [`TableIter::seek`].
    #[allow(clippy::should_implement_trait)] // It can fail, and entries are borrowed from it.
    pub fn next(&mut self) -> Result<()> {
        if !self.valid {
            return Ok(());
        }
        self.entry += 1;
        if self.entry == self.ahead_at {
            self.prefetch_next_block();
        }
        self.load_or_next_block()
    }

    /// Prefetches the columns of the block after the current one. A short scan that ends before
    /// has no use for them.
    fn prefetch_next_block(&self) {
        if self.block + 1 < self.reader.index.len() {
            self.reader.prefetch_block(self.block as u32 + 1);
        }
    }

    /// Moves to the previous entry. Does nothing if the iterator is at none.
    ///
    /// # Errors
    /// As [`TableIter::seek`].
    pub fn prev(&mut self) -> Result<()> {
        if !self.valid {
            return Ok(());
        }
        self.invalidate();
        if self.entry > 0 {
            self.entry -= 1;
        } else {
            let Some(before) = self.block.checked_sub(1) else {
                return Ok(());
            };
            self.enter(before)?;
            self.entry = self.entries - 1;
        }
        self.load_single()
    }
}
