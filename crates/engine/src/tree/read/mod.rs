//! Point reads: a read pins a view and a number, searches the sources from the newest to the
//! oldest, and stops at the first answer.
//!
//! Invariants: sources are ordered from the newest to the oldest and have disjoint ranges of
//! numbers, so the first source that has an entry of the key, or a range delete that covers it,
//! decides. Below level 0, the entry in the higher level is the newer one. The filters of all
//! tables that may have the key are prefetched before the first table is searched.
//!
//! Cost: a read takes no lock, makes no system call if the data is in memory, and allocates nothing
//! if the buffer is large enough for the value.
//!
//! Threading: any thread.

mod many;

use std::sync::Arc;

use siltstone_storage::planted;
use siltstone_table::key::hash;
use siltstone_table::reader::Value as TableValue;

use crate::tree::memtable::in_log::VALUE_ADDRESS;
use crate::tree::seeks::SeekReads;
use crate::tree::tables::TableHandle;
use crate::tree::view::{Kept, KeyspaceCore, KeyspaceView, LevelView, Source};
use crate::tree::{Tree, pinning};
use crate::types::error::{Error, ErrorKind, Result};
use crate::types::metrics::SAMPLE;

pub(crate) use many::multi_get;

const DELETE: u8 = 0;
const PUT: u8 = 1;

/// A value that is not copied if it lies in a block on the heap: the block stays in memory while
/// this value lives. A value in a memtable, or in a table that is read through a map, is copied.
#[derive(Clone, Debug)]
pub struct PinnedValue {
    value: TableValue,
}

impl std::ops::Deref for PinnedValue {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        self.value.as_slice()
    }
}

impl AsRef<[u8]> for PinnedValue {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

#[cold]
pub(crate) fn unknown_kind(kind: u8) -> Error {
    Error::unsupported(format!(
        "an entry is of kind {kind}, which this build does not know"
    ))
    .advice("open the store with the version that wrote it")
}

/// A view that is kept alive, and the number to read at: the given one, or the published one.
pub(crate) fn pin(
    tree: &Tree,
    keyspace: &KeyspaceCore,
    number: Option<u64>,
) -> Result<(Arc<KeyspaceView>, u64)> {
    let check = || keyspace.check();
    let published = tree.snapshots.published_number();
    pinning::pin(&Kept(keyspace), published, number, check)
}

/// A number above all numbers in the file of an ingested table. It is not the highest number of
/// all, because the trailer with that number separates blocks in an index: a key that equals a
/// separator would be searched in the block to the left of its own.
const ABOVE_ALL: u64 = siltstone_table::key::MAX_SEQ - 1;

/// The answer of a source to a lookup of a key.
enum Answer {
    /// The source has neither an entry of the key nor a range delete over it.
    Unknown,
    /// The key has no value.
    Gone,
    /// The value is in the buffer. (After another answer, the buffer may have a hidden value.)
    Value,
}

/// The buffer for a value. `None` if the caller only asks whether there is one.
type Out<'a> = Option<&'a mut Vec<u8>>;

/// Copies the value of `key` at `number` (or now) into `value`. `value` is empty if there is no
/// value, or if the read fails.
#[inline]
pub(crate) fn get_into(
    tree: &Tree,
    keyspace: &KeyspaceCore,
    key: &[u8],
    number: Option<u64>,
    value: &mut Vec<u8>,
) -> Result<bool> {
    value.clear();
    let found = look_up(tree, keyspace, key, number, Some(&mut *value));
    // A source copies a value before it is known whether a range delete of the same source hides
    // it, and a read may fail in the middle of a value.
    if !matches!(found, Ok(true)) {
        value.clear();
    }
    found
}

/// Whether there is a value of `key` now. The value is not copied. In memtables, in mapped blocks
/// and in large blocks without compression, it is not even read.
pub(crate) fn contains(tree: &Tree, keyspace: &KeyspaceCore, key: &[u8]) -> Result<bool> {
    look_up(tree, keyspace, key, None, None)
}

#[inline]
fn look_up(
    tree: &Tree,
    keyspace: &KeyspaceCore,
    key: &[u8],
    number: Option<u64>,
    value: Out<'_>,
) -> Result<bool> {
    let timed = tree
        .env
        .metrics()
        .get_count
        .add(1)
        .is_multiple_of(SAMPLE)
        .then(|| tree.env.now());
    let published = tree.snapshots.published_number();
    let (view, seq) = pinning::pin(keyspace, published, number, || keyspace.check())?;
    let found = search(tree, &view, key, seq, value)?;
    drop(view);
    if found {
        tree.env.metrics().get_hit_count.add(1);
    }
    if let Some(start) = timed {
        tree.env
            .metrics()
            .get_time
            .record(tree.env.now().since(start));
    }
    Ok(found)
}

fn search(
    tree: &Tree,
    view: &KeyspaceView,
    key: &[u8],
    seq: u64,
    mut value: Out<'_>,
) -> Result<bool> {
    // The memtables come first. They often have recently written keys, and need no hash of the key.
    let mut sources = view.sources.iter().enumerate();
    let mut tables_from = view.sources.len();
    for (i, source) in &mut sources {
        match source {
            Source::Memtable(m) => match ask_memtable(m, key, seq, value.as_deref_mut())? {
                Answer::Unknown => {}
                Answer::Gone => return Ok(false),
                Answer::Value => return Ok(true),
            },
            Source::Run(_) => {
                tables_from = i;
                break;
            }
        }
    }
    search_tables(tree, view, tables_from, key, seq, value)
}

#[inline]
fn ask_memtable(
    source: &crate::tree::view::MemSource,
    key: &[u8],
    seq: u64,
    value: Out<'_>,
) -> Result<Answer> {
    let deleted = source.mem.newest_range_delete_covering(key, seq);
    match source.mem.get(key, seq) {
        Some(found) if deleted.is_none_or(|d| d <= found.seq) => match found.kind {
            PUT | VALUE_ADDRESS => {
                if let Some(value) = value {
                    source.mem.read_value(found.kind, found.value, value)?;
                }
                Ok(Answer::Value)
            }
            DELETE => Ok(Answer::Gone),
            other => Err(unknown_kind(other)),
        },
        None if deleted.is_none() => Ok(Answer::Unknown),
        _ => Ok(Answer::Gone),
    }
}

/// The most runs and levels whose filters a get prefetches together.
const CANDIDATES: usize = 32;

/// Tables of neighbouring runs, or of runs and all levels, that may have a key, from the newest to
/// the oldest.
struct Candidates<'v> {
    tables: [Option<&'v Arc<TableHandle>>; CANDIDATES],
    count: usize,
    /// The source after these tables. `None` if the levels are among them, so that nothing is
    /// older.
    next: Option<usize>,
}

impl<'v> Candidates<'v> {
    /// Those from source `from` on, up to a memtable (flushes may be installed in another order
    /// than their memtables have) or to [`CANDIDATES`].
    #[inline]
    fn of(view: &'v KeyspaceView, from: usize, key: &[u8]) -> Candidates<'v> {
        let mut found = Candidates {
            tables: [None; CANDIDATES],
            count: 0,
            next: None,
        };
        for (i, source) in view.sources.iter().enumerate().skip(from) {
            match source {
                Source::Run(run) if i - from < CANDIDATES => found.add(&run.tables, key),
                _ => {
                    found.next = Some(i);
                    return found;
                }
            }
        }
        if view.sources.len() - from + view.levels.len() > CANDIDATES {
            // The levels follow alone.
            found.next = Some(view.sources.len());
            return found;
        }
        view.levels.iter().for_each(|level| found.add(level, key));
        found
    }

    #[inline]
    fn add(&mut self, level: &'v LevelView, key: &[u8]) {
        if let Some(i) = level.level.find(key) {
            self.tables[self.count] = Some(&level.handles[i]);
            self.count += 1;
        }
    }

    #[inline]
    fn iter(&self) -> impl Iterator<Item = &'v Arc<TableHandle>> {
        self.tables[..self.count].iter().copied().flatten()
    }

    /// Prefetches the cache line that each candidate's filter will read for this hash.
    #[inline]
    fn prefetch_filters(&self, hash: u64) {
        self.iter().for_each(|handle| handle.prefetch_filter(hash));
    }
}

/// Searches the sources from `from` on, and then the levels.
fn search_tables(
    tree: &Tree,
    view: &KeyspaceView,
    mut from: usize,
    key: &[u8],
    seq: u64,
    mut value: Out<'_>,
) -> Result<bool> {
    let hash = hash(key);
    loop {
        let candidates = Candidates::of(view, from, key);
        candidates.prefetch_filters(hash);
        for handle in candidates.iter() {
            match ask_table(tree, handle, key, hash, seq, value.as_deref_mut())? {
                Answer::Unknown => {}
                Answer::Gone => return Ok(false),
                Answer::Value => return Ok(true),
            }
        }
        let Some(next) = candidates.next else {
            return Ok(false);
        };
        from = next;
        if let Some(Source::Memtable(m)) = view.sources.get(from) {
            match ask_memtable(m, key, seq, value.as_deref_mut())? {
                Answer::Unknown => from += 1,
                Answer::Gone => return Ok(false),
                Answer::Value => return Ok(true),
            }
        }
    }
}

/// Searches one table.
#[inline]
fn ask_table(
    tree: &Tree,
    handle: &Arc<TableHandle>,
    key: &[u8],
    hash: u64,
    seq: u64,
    value: Out<'_>,
) -> Result<Answer> {
    let reader = tree.tables.reader_to_get(handle)?;
    let reader = reader.as_ref().expect("it is open now");
    let Some((seq, own)) = number_in_table(handle, seq) else {
        return Ok(Answer::Unknown);
    };
    // Range deletes are searched before the filter, because the filter has only point keys.
    let deleted = match handle.meta.range_deletes {
        0 => None,
        _ => reader.covering_seq(key, seq).map(|d| own.unwrap_or(d)),
    };
    let cache = SeekReads::new(&**tree.tables.cache());
    let found = match value {
        Some(value) => reader.get(&cache, key, hash, seq, value),
        None => reader.find(&cache, key, hash, seq),
    }
    .map_err(Error::from)?;
    if found.is_none() {
        tree.tables.count_seek(&tree.env, handle, cache.take());
    }
    decide(found, deleted, own)
}

/// The number to search for in a table's file, and the number of all its entries if the table was
/// ingested, because the numbers in its file do not count. `None` if the whole table is newer than
/// `seq`.
#[inline]
fn number_in_table(handle: &TableHandle, seq: u64) -> Option<(u64, Option<u64>)> {
    match handle.meta.sequence_override {
        None => Some((seq, None)),
        Some(own) if own <= seq || planted!(IngestSeenTooEarly) => Some((ABOVE_ALL, Some(own))),
        Some(_) => None,
    }
}

/// The answer of a table whose newest entry of the key has the trailer `found`, and whose newest
/// range delete over the key has the number `deleted`. `own` is the number of all its entries, if
/// it was ingested.
#[inline]
fn decide(found: Option<u64>, deleted: Option<u64>, own: Option<u64>) -> Result<Answer> {
    match found {
        Some(trailer) if deleted.is_none_or(|d| d <= own.unwrap_or(trailer >> 8)) => {
            match trailer as u8 {
                PUT => Ok(Answer::Value),
                DELETE => Ok(Answer::Gone),
                other => Err(unknown_kind(other)),
            }
        }
        None if deleted.is_none() => Ok(Answer::Unknown),
        _ => Ok(Answer::Gone),
    }
}

/// The value of `key` at `number` (or now), without a copy if it lies in a table.
pub(crate) fn get_pinned(
    tree: &Tree,
    keyspace: &KeyspaceCore,
    key: &[u8],
    number: Option<u64>,
) -> Result<Option<PinnedValue>> {
    let published = tree.snapshots.published_number();
    let (view, seq) = pinning::pin(keyspace, published, number, || keyspace.check())?;
    tree.env.metrics().get_count.add(1);
    let hash = hash(key);
    let mut copied = Vec::new();
    let own = |bytes: Vec<u8>| {
        Ok(Some(PinnedValue {
            value: TableValue::Copied(bytes),
        }))
    };
    let mut from = 0;
    loop {
        while let Some(Source::Memtable(m)) = view.sources.get(from) {
            match ask_memtable(m, key, seq, Some(&mut copied))? {
                Answer::Unknown => from += 1,
                Answer::Gone => return Ok(None),
                Answer::Value => return own(copied),
            }
        }
        let candidates = Candidates::of(&view, from, key);
        candidates.prefetch_filters(hash);
        for handle in candidates.iter() {
            if let Some(answer) = ask_table_pinned(tree, handle, key, hash, seq)? {
                return Ok(answer);
            }
        }
        let Some(next) = candidates.next else {
            return Ok(None);
        };
        from = next;
    }
}

/// Searches a table. Returns `None` if it has neither an entry of the key nor a range delete over
/// it.
fn ask_table_pinned(
    tree: &Tree,
    handle: &Arc<TableHandle>,
    key: &[u8],
    hash: u64,
    seq: u64,
) -> Result<Option<Option<PinnedValue>>> {
    let Some((seq, own)) = number_in_table(handle, seq) else {
        return Ok(None);
    };
    let reader = tree.tables.reader_to_get(handle)?;
    let reader = reader.as_ref().expect("it is open now");
    let deleted = match handle.meta.range_deletes {
        0 => None,
        _ => reader.covering_seq(key, seq).map(|d| own.unwrap_or(d)),
    };
    let cache = SeekReads::new(&**tree.tables.cache());
    let found = if reader.may_contain(hash) {
        match reader.find_block(key, siltstone_table::key::seek_trailer(seq)) {
            Some(block) => reader
                .get_value_in_block(&cache, block, key, seq)
                .map_err(Error::from)?,
            None => None,
        }
    } else {
        None
    };
    if found.is_none() {
        tree.tables.count_seek(&tree.env, handle, cache.take());
    }
    match found {
        Some((trailer, value)) if deleted.is_none_or(|d| d <= own.unwrap_or(trailer >> 8)) => {
            match trailer as u8 {
                PUT => Ok(Some(Some(PinnedValue { value }))),
                DELETE => Ok(Some(None)),
                other => Err(unknown_kind(other).with_kind(ErrorKind::Unsupported)),
            }
        }
        None if deleted.is_none() => Ok(None),
        _ => Ok(Some(None)),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use siltstone_storage::{MemoryStorage, Runtime, Storage};

    use crate::{Components, ErrorKind, Options, Store};

    /// A read may have found the store open before a close took the memtables away. It must then
    /// find the store closed, and must not miss the entries of these memtables.
    #[test]
    fn a_read_that_a_close_overtakes_misses_nothing() {
        let runtime = Runtime::threads();
        let storage: Arc<dyn Storage> = Arc::new(MemoryStorage::new(&runtime));
        let store = Store::open_with(Components::on(storage, runtime), Options::default()).unwrap();
        let keyspace = store.default_keyspace().unwrap();
        keyspace.put("k", "v").unwrap();
        let (core, inner) = (keyspace.parts(), keyspace.inner());
        let read = || super::get_into(&core.tree, inner, b"k", None, &mut Vec::new());
        assert!(read().unwrap());
        store.close().unwrap();
        assert_eq!(read().unwrap_err().kind(), ErrorKind::Closed);
        let many = super::multi_get(&core.tree, inner, &["k"], None).unwrap_err();
        assert_eq!(many.kind(), ErrorKind::Closed);
    }
}
