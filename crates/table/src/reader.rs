//! Looks keys up in one table file.
//!
//! [`TableReader::open`] reads footer, properties, index, filter and range deletes to the heap and
//! checks all of them. Most of these bytes are the filter, which only lookups of keys need. A table
//! that is opened for iterators may do without it until a lookup needs it
//! ([`TableReader::with_filter`]). Blocks are read in one of two ways: in place from a map of the
//! file, or as heap blocks through the engine's cache. Compressed blocks are always read the second
//! way.
//!
//! A lookup is split into steps, so that the engine can overlap the cache misses of several tables:
//! [`TableReader::prefetch_filter`], [`TableReader::may_contain`], [`TableReader::find_block`],
//! [`TableReader::prefetch_block`], [`TableReader::get_in_block`]. [`get_many`] does so for many
//! keys. Range deletes must be checked before a filter ends a lookup.
//!
//! Invariants: a block's checksums are verified when it is first read after open (columns and
//! values separately, remembered in a bitmap), or at every read. Bytes from a map are not trusted
//! before `failed()` was called after the last access.
//!
//! Threading: shared. The bitmaps are atomic, and bits are only ever set.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use siltstone_storage::{Map, ReadFile, StorageError, StorageErrorKind};

use crate::block::header::{FLAG_COLUMNS_COMPRESSED, FLAG_VALUES_COMPRESSED};
use crate::block::{Block, CHECKSUM_BYTES, Header, View};
use crate::checksum::{crc32c, crc32c_append};
use crate::coding::Bytes;
use crate::error::{Damage, Result, TableError};
use crate::filter::{Filter, filter_blocks};
use crate::footer::{FOOTER_BYTES, Footer};
use crate::index::{Index, Narrowed, Place};
use crate::key::seek_trailer;
use crate::limits::MAX_PROPERTIES_BYTES;
use crate::properties::Properties;
use crate::rangedel::RangeDeletes;
use siltstone_storage::planted;

/// When the checksums of a block are verified.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Verify {
    /// When the block is first read after open.
    #[default]
    FirstTouch,
    /// At every read, so also when the kernel may have read the page again.
    Always,
}

/// How a table is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReaderOptions {
    /// When checksums are verified.
    pub verify: Verify,
    /// Whether to search in a map of the file, if the storage has maps.
    pub map: bool,
    /// The number under which a cache keeps the table's blocks. Tables that share a cache, or a
    /// lookup of many keys, need different numbers. `None` takes a number that no other table of
    /// the process has. Runs that must be reproducible pass their own numbers.
    pub id: Option<u64>,
}

impl Default for ReaderOptions {
    fn default() -> Self {
        ReaderOptions {
            verify: Verify::FirstTouch,
            map: true,
            id: None,
        }
    }
}

/// The engine's cache of heap blocks, by table id and block number.
pub trait BlockCache: Send + Sync {
    /// The block, if the cache has it.
    fn get(&self, table: u64, block: u32) -> Option<Arc<Block>>;

    /// Offers a block that was just read. The cache may decline it.
    fn insert(&self, table: u64, block: u32, read: &Arc<Block>);

    /// A reader has read bytes of blocks of this table from its file. Reads through a map do not
    /// count.
    fn note_read(&self, table: u64, bytes: usize) {
        let _ = (table, bytes);
    }
}

/// A cache that keeps nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoCache;

impl BlockCache for NoCache {
    fn get(&self, _: u64, _: u32) -> Option<Arc<Block>> {
        None
    }

    fn insert(&self, _: u64, _: u32, _: &Arc<Block>) {}
}

/// A value that was found.
#[derive(Clone, Debug)]
pub enum Value {
    /// The value is in a heap block, which it keeps alive.
    Block {
        /// The block.
        block: Arc<Block>,
        /// The offset of the value among the block's values, in bytes.
        start: usize,
        /// Its length in bytes.
        len: usize,
    },
    /// The value was copied.
    Copied(Vec<u8>),
}

impl Value {
    /// The value's bytes.
    pub fn as_slice(&self) -> &[u8] {
        match self {
            Value::Block { block, start, len } => block.value_at(*start, *len).unwrap_or_default(),
            Value::Copied(bytes) => bytes,
        }
    }

    /// The value as an owned vector.
    pub fn into_vec(self) -> Vec<u8> {
        match self {
            Value::Copied(bytes) => bytes,
            Value::Block { .. } => self.as_slice().to_vec(),
        }
    }
}

/// Where the value of a lookup is.
enum Found {
    InBlock(Arc<Block>, usize, usize),
    /// It was appended to the caller's buffer, if there is one.
    Copied,
}

/// Blocks of at least this stored size do not pass through the cache without a map: first only
/// their columns are read, and then the one value.
pub const LARGE_BLOCK_BYTES: u64 = 1 << 20;

/// One bit per block.
struct Bitmap(Box<[AtomicU64]>);

impl Bitmap {
    fn new(bits: usize) -> Bitmap {
        Bitmap((0..bits.div_ceil(64)).map(|_| AtomicU64::new(0)).collect())
    }

    /// A copy with the bits that are set now.
    fn copy(&self) -> Bitmap {
        let word = |word: &AtomicU64| AtomicU64::new(word.load(Ordering::Relaxed));
        Bitmap(self.0.iter().map(word).collect())
    }

    #[inline]
    fn get(&self, i: usize) -> bool {
        self.0[i / 64].load(Ordering::Relaxed) >> (i % 64) & 1 == 1
    }

    fn set(&self, i: usize) {
        self.0[i / 64].fetch_or(1 << (i % 64), Ordering::Relaxed);
    }
}

/// The ids of open tables that were given none.
static NEXT_ID: AtomicU64 = AtomicU64::new(1);

/// An open table.
pub struct TableReader {
    id: u64,
    file: Arc<dyn ReadFile>,
    map: Option<Map>,
    lacks_map: bool,
    verify: Verify,
    footer: Footer,
    properties: Properties,
    index: Index,
    /// `None` if the table has no filter or its filter was not read. Then any key may be in the
    /// table.
    filter: Option<Filter>,
    /// Whether the table has a filter that was not read.
    lacks_filter: bool,
    range_deletes: RangeDeletes,
    columns_verified: Bitmap,
    values_verified: Bitmap,
}

impl std::fmt::Debug for TableReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TableReader")
            .field("file", &self.file.name())
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

fn read_filter(
    file: &dyn ReadFile,
    footer: &Footer,
    properties: &Properties,
) -> Result<Option<Filter>> {
    let at = footer.blocks_bytes;
    let bytes = read_section(file, at, footer.filter_bytes, "checksum of the filter")?;
    let want = filter_blocks(properties.user_keys, properties.bits_per_key) * 64;
    if bytes.len() as u64 != want {
        let damage = Damage::new("filter length", 0, want, bytes.len() as u64);
        return Err(damage.in_file(file.name(), at));
    }
    match properties.bits_per_key {
        0 if properties.entries > 0 => Ok(None),
        bits => Filter::decode(&bytes, bits)
            .map(Some)
            .map_err(|d| d.in_file(file.name(), at)),
    }
}

/// The most cache lines of a block's columns that are prefetched. The columns of a block of 4 KiB
/// have about six with values of 128 bytes, and about 16 with values of 32 bytes.
const COLUMN_LINES: usize = 16;

/// Prefetches the columns of a mapped block. Their header says where each of them begins, so
/// without this a lookup would wait for the header, and then for each line that it needs.
#[inline]
fn prefetch_columns(map: &Map, place: Place) {
    let (at, end) = (place.anchor as usize, place.end as usize);
    for line in (at..end).step_by(64).take(COLUMN_LINES) {
        map.prefetch(line);
    }
}

fn read_section(file: &dyn ReadFile, at: u64, len: u64, what: &'static str) -> Result<Vec<u8>> {
    if len == 0 {
        return Ok(Vec::new());
    }
    let short = len < CHECKSUM_BYTES as u64 || usize::try_from(len).is_err();
    if short {
        return Err(Damage::new(what, 0, CHECKSUM_BYTES as u64, len).in_file(file.name(), at));
    }
    // The footer's lengths add up to the file's, so this is at most the file's length.
    let mut bytes = vec![0; len as usize];
    file.read_at(at, &mut bytes)?;
    let end = bytes.len() - CHECKSUM_BYTES;
    let (stored, computed) = (bytes.as_slice().u32(end), crc32c(&bytes[..end]));
    if stored != computed && !planted!(SectionChecksumIsIgnored) {
        return Err(
            Damage::new(what, end as u64, computed as u64, stored as u64).in_file(file.name(), at),
        );
    }
    bytes.truncate(end);
    Ok(bytes)
}

impl TableReader {
    /// Opens a table. Reads and checks everything except the blocks.
    ///
    /// # Errors
    /// If the file cannot be read or is damaged, or if its version or a feature that it needs is
    /// unknown.
    pub fn open(file: Arc<dyn ReadFile>, options: ReaderOptions) -> Result<Arc<TableReader>> {
        Self::open_as(file, options, true)
    }

    /// Opens a table without reading its filter. Lookups return the same results, but read more
    /// blocks.
    ///
    /// # Errors
    /// As [`TableReader::open`].
    pub fn open_without_filter(
        file: Arc<dyn ReadFile>,
        options: ReaderOptions,
    ) -> Result<Arc<TableReader>> {
        Self::open_as(file, options, false)
    }

    /// The same table with its filter, which is read and checked now. Verified blocks are not
    /// verified again, and their copies in a cache are still found.
    ///
    /// # Errors
    /// If the filter cannot be read or is damaged.
    pub fn with_filter(&self) -> Result<Arc<TableReader>> {
        Ok(Arc::new(TableReader {
            filter: read_filter(&*self.file, &self.footer, &self.properties)?,
            lacks_filter: false,
            id: self.id,
            file: self.file.clone(),
            map: self.map.clone(),
            lacks_map: self.lacks_map,
            verify: self.verify,
            footer: self.footer,
            properties: self.properties.clone(),
            index: self.index.clone(),
            range_deletes: self.range_deletes.clone(),
            columns_verified: self.columns_verified.copy(),
            values_verified: self.values_verified.copy(),
        }))
    }

    fn open_as(
        file: Arc<dyn ReadFile>,
        options: ReaderOptions,
        reads_filter: bool,
    ) -> Result<Arc<TableReader>> {
        let len = file.len();
        let name = file.name();
        let footer = Footer::read(&*file)?;
        let footer_at = len - FOOTER_BYTES as u64;
        let index_at = footer.blocks_bytes + footer.filter_bytes;
        let range_deletes_at = index_at + footer.index_bytes;
        let properties_at = range_deletes_at + footer.range_deletes_bytes;
        if footer.properties_bytes > MAX_PROPERTIES_BYTES {
            let found = footer.properties_bytes;
            return Err(
                Damage::new("length of the properties", 32, MAX_PROPERTIES_BYTES, found)
                    .in_file(name, footer_at),
            );
        }
        let bytes = read_section(
            &*file,
            properties_at,
            footer.properties_bytes,
            "checksum of the properties",
        )?;
        let properties = Properties::decode(&bytes, name, properties_at)?;

        let bytes = read_section(
            &*file,
            index_at,
            footer.index_bytes,
            "checksum of the index",
        )?;
        let index =
            Index::decode(&bytes, footer.blocks_bytes).map_err(|d| d.in_file(name, index_at))?;
        if index.len() as u64 != properties.blocks {
            return Err(Damage::new(
                "index block count",
                0,
                properties.blocks,
                index.len() as u64,
            )
            .in_file(name, index_at));
        }
        // Tables without keys or filter bits have no filter to read.
        let lacks_filter = !reads_filter && footer.filter_bytes > 0;
        let filter = match lacks_filter {
            true => None,
            false => read_filter(&*file, &footer, &properties)?,
        };
        let bytes = read_section(
            &*file,
            range_deletes_at,
            footer.range_deletes_bytes,
            "checksum of the range deletes",
        )?;
        let range_deletes = match footer.range_deletes_bytes {
            0 => RangeDeletes::default(),
            _ => RangeDeletes::decode(&bytes).map_err(|d| d.in_file(name, range_deletes_at))?,
        };
        if range_deletes.fragments().len() as u64 != properties.range_deletes {
            let found = range_deletes.fragments().len() as u64;
            let damage = Damage::new("range delete count", 0, properties.range_deletes, found);
            return Err(damage.in_file(name, range_deletes_at));
        }
        // The map may fail for lack of address space, because of too many maps, or on a file system
        // without maps. Reads work without it.
        let (map, lacks_map) = match options.map.then(|| file.map()) {
            Some(Ok(map)) => (map, false),
            Some(Err(_)) => (None, true),
            None => (None, false),
        };
        let map = map.filter(|map| map.len() as u64 >= footer.blocks_bytes);
        let id = options
            .id
            .unwrap_or_else(|| NEXT_ID.fetch_add(1, Ordering::Relaxed));
        Ok(Arc::new(TableReader {
            id,
            map,
            lacks_map,
            verify: options.verify,
            footer,
            columns_verified: Bitmap::new(index.len()),
            values_verified: Bitmap::new(index.len()),
            properties,
            index,
            filter,
            lacks_filter,
            range_deletes,
            file,
        }))
    }

    /// The number of this open table, under which a cache keeps its blocks.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// The file's name.
    pub fn name(&self) -> &str {
        self.file.name()
    }

    /// Whether a map was requested and could not be had, so that blocks are read to the heap.
    pub fn lacks_map(&self) -> bool {
        self.lacks_map
    }

    /// The file that it reads.
    pub fn file(&self) -> &Arc<dyn ReadFile> {
        &self.file
    }

    /// The properties of the table.
    pub fn properties(&self) -> &Properties {
        &self.properties
    }

    /// The lengths of its sections, and its digest.
    pub fn footer(&self) -> &Footer {
        &self.footer
    }

    /// Its index.
    pub fn index(&self) -> &Index {
        &self.index
    }

    /// Whether the table has a filter that was not read.
    #[inline]
    pub fn lacks_filter(&self) -> bool {
        self.lacks_filter
    }

    /// Its filter, if it has one and it was read.
    pub fn filter(&self) -> Option<&Filter> {
        self.filter.as_ref()
    }

    /// Its range deletes.
    pub fn range_deletes(&self) -> &RangeDeletes {
        &self.range_deletes
    }

    /// The heap bytes of index, filter and range deletes, which stay in memory while the table is
    /// open.
    pub fn memory_bytes(&self) -> usize {
        let filter = self.filter.as_ref().map_or(0, Filter::memory_bytes);
        let bitmaps = 16 * self.columns_verified.0.len();
        self.index.memory_bytes()
            + filter
            + self.range_deletes.memory_bytes()
            + bitmaps
            + std::mem::size_of::<Self>()
    }

    /// The sequence number of the newest range delete of `user_key` that is at most `seq_limit`.
    /// Call this before the filter ends a lookup.
    #[inline]
    pub fn covering_seq(&self, user_key: &[u8], seq_limit: u64) -> Option<u64> {
        self.range_deletes.covering_seq(user_key, seq_limit)
    }

    /// Prefetches the cache line that [`TableReader::may_contain`] will read.
    #[inline]
    pub fn prefetch_filter(&self, hash: u64) {
        if let Some(filter) = &self.filter {
            filter.prefetch(hash);
        }
    }

    /// Returns false if no entry has the user key with this [`crate::key::hash`].
    #[inline]
    pub fn may_contain(&self, hash: u64) -> bool {
        match &self.filter {
            Some(filter) => filter.may_contain(hash),
            None => !(self.lacks_filter && planted!(UnreadFilterSaysNo)),
        }
    }

    /// The number of the block in which to look for (`user_key`, `trailer`). `None` if the table
    /// ends before it.
    #[inline]
    pub fn find_block(&self, user_key: &[u8], trailer: u64) -> Option<u32> {
        let i = self.index.find(user_key, trailer);
        (i < self.index.len()).then_some(i as u32)
    }

    /// Completes [`TableReader::find_block`] after [`Index::narrow`] of the same key. Prefetches
    /// what [`TableReader::prefetch_block`] reads.
    #[inline]
    pub fn find_block_narrowed(
        &self,
        narrowed: Narrowed,
        user_key: &[u8],
        trailer: u64,
    ) -> Option<u32> {
        let i = self.index.find_narrowed(narrowed, user_key, trailer);
        self.index.prefetch_place(i);
        (i < self.index.len()).then_some(i as u32)
    }

    /// Prefetches the first cache lines of a mapped block's columns.
    #[inline]
    pub fn prefetch_block(&self, block: u32) {
        if let Some(map) = &self.map {
            prefetch_columns(map, self.index.place(block as usize));
        }
    }

    /// Looks up the newest version of `user_key` whose sequence number is at most `seq`. Replaces
    /// `value` by its value and returns its trailer, which may be that of a delete. `hash` is the
    /// key's [`crate::key::hash`].
    ///
    /// # Errors
    /// If the block cannot be read or is damaged.
    pub fn get(
        &self,
        cache: &dyn BlockCache,
        user_key: &[u8],
        hash: u64,
        seq: u64,
        value: &mut Vec<u8>,
    ) -> Result<Option<u64>> {
        if !self.may_contain(hash) {
            return Ok(None);
        }
        match self.find_block(user_key, seek_trailer(seq)) {
            Some(block) => self.get_in_block(cache, block, user_key, seq, value),
            None => Ok(None),
        }
    }

    /// The trailer of the entry that [`TableReader::get`] finds. The value is not read: of a block
    /// that is not compressed and is mapped or large, only the columns are read.
    ///
    /// # Errors
    /// As [`TableReader::get`].
    pub fn find(
        &self,
        cache: &dyn BlockCache,
        user_key: &[u8],
        hash: u64,
        seq: u64,
    ) -> Result<Option<u64>> {
        if !self.may_contain(hash) {
            return Ok(None);
        }
        let limit = seek_trailer(seq);
        let Some(block) = self.find_block(user_key, limit) else {
            return Ok(None);
        };
        let found = self.lookup(cache, block as usize, user_key, limit, None)?;
        Ok(found.map(|(trailer, _)| trailer))
    }

    /// As [`TableReader::get`], in the block that [`TableReader::find_block`] returned.
    ///
    /// # Errors
    /// As [`TableReader::get`].
    #[inline]
    pub fn get_in_block(
        &self,
        cache: &dyn BlockCache,
        block: u32,
        user_key: &[u8],
        seq: u64,
        value: &mut Vec<u8>,
    ) -> Result<Option<u64>> {
        value.clear();
        Ok(
            match self.lookup(
                cache,
                block as usize,
                user_key,
                seek_trailer(seq),
                Some(value),
            )? {
                None => None,
                Some((trailer, Found::Copied)) => Some(trailer),
                Some((trailer, Found::InBlock(block, start, len))) => {
                    value.extend_from_slice(block.value_at(start, len).unwrap_or_default());
                    Some(trailer)
                }
            },
        )
    }

    /// As [`TableReader::get_in_block`], without a copy if the value is in a heap block.
    ///
    /// # Errors
    /// As [`TableReader::get`].
    pub fn get_value_in_block(
        &self,
        cache: &dyn BlockCache,
        block: u32,
        user_key: &[u8],
        seq: u64,
    ) -> Result<Option<(u64, Value)>> {
        let mut copy = Vec::new();
        Ok(
            match self.lookup(
                cache,
                block as usize,
                user_key,
                seek_trailer(seq),
                Some(&mut copy),
            )? {
                None => None,
                Some((trailer, Found::Copied)) => Some((trailer, Value::Copied(copy))),
                Some((trailer, Found::InBlock(block, start, len))) => {
                    Some((trailer, Value::Block { block, start, len }))
                }
            },
        )
    }

    /// Looks up a key in block `i`. A value that is not in a heap block is appended to `out`, or
    /// not read if `out` is `None`.
    fn lookup(
        &self,
        cache: &dyn BlockCache,
        i: usize,
        user_key: &[u8],
        limit: u64,
        out: Option<&mut Vec<u8>>,
    ) -> Result<Option<(u64, Found)>> {
        let place = self.index.place(i);
        let damaged = |d: Damage| d.in_file(self.name(), place.start);
        if let Some(map) = &self.map {
            prefetch_columns(map, place);
        }
        if let Some(map) = &self.map
            && let Some(header) = self.map_header(map, i, place)?
        {
            let read = || -> std::result::Result<Option<(u64, usize, usize)>, Damage> {
                let view =
                    View::with_header(map, place.anchor as usize, place.start as usize, &header)?;
                let Some((entry, trailer)) = view.get(user_key, limit)? else {
                    return Ok(None);
                };
                let (start, len) = view.value_range(entry)?;
                Ok(Some((trailer, start, len)))
            };
            let found = read();
            let Some((trailer, start, len)) = self.unless_map_failed(map, place, found)? else {
                return Ok(None);
            };
            if let Some(out) = out {
                self.copy_from_map(map, i, place, &header, start, len, out)?;
            }
            return Ok(Some((trailer, Found::Copied)));
        }
        if self.map.is_none() && place.stored_bytes() >= LARGE_BLOCK_BYTES {
            return self.lookup_large(cache, i, place, user_key, limit, out);
        }
        let block = self.block(cache, i)?;
        let view = block.view();
        let Some((entry, trailer)) = view.get(user_key, limit).map_err(damaged)? else {
            return Ok(None);
        };
        let (start, len) = view.value_range(entry).map_err(damaged)?;
        Ok(Some((trailer, Found::InBlock(block, start, len))))
    }

    /// Reads a block through the cache.
    ///
    /// # Errors
    /// If the block cannot be read or is damaged.
    pub fn block(&self, cache: &dyn BlockCache, i: usize) -> Result<Arc<Block>> {
        if let Some(block) = cache.get(self.id, i as u32) {
            return Ok(block);
        }
        let block = Arc::new(self.read_block(i)?);
        cache.note_read(self.id, self.index.place(i).stored_bytes() as usize);
        cache.insert(self.id, i as u32, &block);
        Ok(block)
    }

    /// Reads a block from the file to the heap, without a cache.
    ///
    /// # Errors
    /// If the block cannot be read or is damaged.
    pub fn read_block(&self, i: usize) -> Result<Block> {
        let place = self.index.place(i);
        let mut stored = vec![0; place.stored_bytes() as usize];
        self.file.read_at(place.start, &mut stored)?;
        self.block_of(i, stored)
    }

    /// Makes block `i` from its stored bytes, and verifies it if that is still to be done.
    fn block_of(&self, i: usize, stored: Vec<u8>) -> Result<Block> {
        let place = self.index.place(i);
        let known = self.columns_verified.get(i) && self.values_verified.get(i);
        let verify = self.verify == Verify::Always || !known;
        let anchor = (place.anchor - place.start) as usize;
        let block =
            Block::new(stored, anchor, verify).map_err(|d| d.in_file(self.name(), place.start))?;
        if verify {
            self.columns_verified.set(i);
            self.values_verified.set(i);
        }
        Ok(block)
    }

    /// Looks up a key in a block that is too large to be read for one value: reads the columns, and
    /// then only the value. The checksum covers all values, so the first lookup also reads these,
    /// in pieces that are not kept.
    fn lookup_large(
        &self,
        cache: &dyn BlockCache,
        i: usize,
        place: Place,
        user_key: &[u8],
        limit: u64,
        out: Option<&mut Vec<u8>>,
    ) -> Result<Option<(u64, Found)>> {
        let damaged = |d: Damage| d.in_file(self.name(), place.anchor);
        let mut columns = vec![0; (place.end - place.anchor) as usize];
        self.file.read_at(place.anchor, &mut columns)?;
        cache.note_read(self.id, columns.len());
        let end = columns.len() - CHECKSUM_BYTES;
        if self.verify == Verify::Always || !self.columns_verified.get(i) {
            let (stored, computed) = (columns.as_slice().u32(end), crc32c(&columns[..end]));
            if stored != computed {
                let what = "checksum of a block's columns";
                return Err(damaged(Damage::new(
                    what,
                    end as u64,
                    computed as u64,
                    stored as u64,
                )));
            }
            self.columns_verified.set(i);
        }
        let header = Header::parse(columns.as_slice(), 0).map_err(damaged)?;
        let values = place.anchor - place.start;
        if header.flags & (FLAG_COLUMNS_COMPRESSED | FLAG_VALUES_COMPRESSED) != 0 {
            let block = self.block(cache, i)?;
            let view = block.view();
            let Some((entry, trailer)) = view.get(user_key, limit).map_err(damaged)? else {
                return Ok(None);
            };
            let (start, len) = view.value_range(entry).map_err(damaged)?;
            return Ok(Some((trailer, Found::InBlock(block, start, len))));
        }
        if header.value_bytes as u64 != values || header.end != end {
            let found = header.value_bytes as u64;
            return Err(damaged(Damage::new(
                "length of a block's values",
                16,
                values,
                found,
            )));
        }
        let view = View::with_header(columns.as_slice(), 0, 0, header).map_err(damaged)?;
        let Some((entry, trailer)) = view.get(user_key, limit).map_err(damaged)? else {
            return Ok(None);
        };
        let (start, len) = view.value_range(entry).map_err(damaged)?;
        let Some(out) = out else {
            return Ok(Some((trailer, Found::Copied)));
        };
        let at = out.len();
        out.resize(at + len, 0);
        self.file
            .read_at(place.start + start as u64, &mut out[at..])?;
        if self.verify == Verify::Always || !self.values_verified.get(i) {
            let mut crc = self.crc_of_file(0, place.start, place.start + start as u64)?;
            crc = crc32c_append(crc, &out[at..]);
            crc = self.crc_of_file(crc, place.start + (start + len) as u64, place.anchor)?;
            if crc != header.values_crc {
                let what = "checksum of a block's values";
                return Err(damaged(Damage::new(
                    what,
                    24,
                    crc as u64,
                    header.values_crc as u64,
                )));
            }
            self.values_verified.set(i);
        }
        Ok(Some((trailer, Found::Copied)))
    }

    fn crc_of_file(&self, mut crc: u32, mut from: u64, to: u64) -> Result<u32> {
        let mut piece = vec![0; (to - from).min(1 << 20) as usize];
        while from < to {
            let part = &mut piece[..(to - from).min(1 << 20) as usize];
            self.file.read_at(from, part)?;
            crc = crc32c_append(crc, part);
            from += part.len() as u64;
        }
        Ok(crc)
    }

    /// An iterator over the entries. Blocks that are not mapped are read through `cache`.
    pub fn iter(self: &Arc<Self>, cache: Arc<dyn BlockCache>) -> TableIter {
        TableIter::new(self.clone(), cache)
    }
}

mod iter;
mod many;
mod mapped;
pub use iter::TableIter;
pub use many::{Lookup, get_many};

#[cfg(test)]
mod tests;
