//! The tables that views name: a handle for each, which gives its open reader.
//!
//! A [`TableHandle`] is shared by all views that name a table, and a job holds the handles of its
//! inputs. It has the table's reader while that is open ([`Readers`] opens and closes it).
//! [`TableSet`] has all handles. If nothing holds a handle, then neither a view nor a job names the
//! table, and [`TableSet::sweep`] deletes the file.
//!
//! Invariants: a table has one handle at a time. A handle is made only for a table that the
//! manifest names, or that belongs to an ingest in the log; so a table whose handle is not held is
//! obsolete.
//!
//! Threading: getting an open reader is one atomic load. The set of handles has a lock that is held
//! over no I/O.

mod deletion;
pub(crate) mod early;
mod inputs;
mod readers;

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use arc_swap::{ArcSwapOption, Guard};
use siltstone_storage::planted;
use siltstone_storage::{Epoch, Mutex, Runtime};
use siltstone_table::exec::Inputs;
use siltstone_table::filter::FilterPlace;
use siltstone_table::reader::{BlockCache as TableBlockCache, TableReader};

use crate::env::descriptors::Descriptors;
use crate::env::table_files::{TableFile, TableFiles};
use crate::formats::directories::Storages;
use crate::formats::version::{Key, KeyRange, TableMeta};
use crate::tree::cache::{BlockCache, ScanCache};
use crate::tree::pick::joined_ranges;
use crate::tree::seeks::SeekCounts;
use crate::types::error::{ErrorKind, Result};
use crate::types::event::Events;
use crate::types::options::Options;
use deletion::{Deletion, FileAt};
use inputs::JobInputs;
use readers::Readers;

/// A table that a view names.
pub(crate) struct TableHandle {
    pub(crate) meta: Arc<TableMeta>,
    reader: ArcSwapOption<TableReader>,
    /// The address of the reader's filter, for prefetches. It may be that of a filter that is gone.
    filter: FilterPlace,
    opening: Mutex<()>,
    /// Its file while a reader or job uses it: through the page cache, and with direct I/O.
    files: [Mutex<Weak<TableFile>>; 2],
    /// The reader was used since the clock's hand passed.
    used: AtomicBool,
    /// The key ranges that its range deletes cover, once they were read.
    deleted_ranges: ArcSwapOption<Vec<KeyRange>>,
    /// The table is in level 0 or 1 of its keyspace's newest view.
    upper: AtomicBool,
    /// Bytes that lookups read from its file without finding their key in it.
    seek_bytes: AtomicU64,
}

impl TableHandle {
    /// Notes that a view is being made that has the table in level 0 or 1 (`upper`), or in a deeper
    /// level.
    pub(crate) fn set_upper(&self, upper: bool) {
        self.upper.store(upper, Ordering::Relaxed);
    }

    fn is_upper(&self) -> bool {
        self.upper.load(Ordering::Relaxed)
    }

    /// Prefetches what the filter reads for a key, if the table is open. It costs much less than to
    /// ask for the reader.
    #[inline]
    pub(crate) fn prefetch_filter(&self, hash: u64) {
        self.filter.prefetch(hash);
    }

    /// Sets or removes the open reader.
    fn set_reader(&self, reader: Option<Arc<TableReader>>) {
        self.filter.set(reader.as_ref().and_then(|r| r.filter()));
        self.reader.store(reader);
    }

    /// Counts bytes that a lookup has read from the file without finding its key. Returns whether
    /// the count has reached the next multiple of the file's size. Only then is it worth while to
    /// ask whether a compaction is due, because it costs at least two times its tables.
    #[cold]
    pub(crate) fn add_seek_bytes(&self, bytes: u64) -> bool {
        let before = self.seek_bytes.fetch_add(bytes, Ordering::Relaxed);
        let multiples = |bytes: u64| bytes / self.meta.file_bytes.max(1);
        multiples(before) != multiples(before.saturating_add(bytes))
    }

    /// The count of [`TableHandle::add_seek_bytes`]. It ends with the table, which a compaction
    /// replaces.
    pub(crate) fn seek_bytes(&self) -> u64 {
        self.seek_bytes.load(Ordering::Relaxed)
    }

    /// The key ranges that its range deletes cover, if they were read.
    pub(crate) fn deleted_ranges(&self) -> Option<Arc<Vec<KeyRange>>> {
        self.deleted_ranges.load_full()
    }
}

/// The maximum number of deleted ranges that are kept for a table. They suffice to see whether a
/// compaction pays.
const DELETED_RANGES_MAX: usize = 4096;

struct Registered {
    handle: Weak<TableHandle>,
    location: u32,
    name: String,
    file_bytes: u64,
}

/// See the module.
pub(crate) struct TableSet {
    runtime: Runtime,
    readers: Readers,
    registry: Mutex<BTreeMap<u64, Registered>>,
    deletion: Deletion,
    seeks: SeekCounts,
    cache: Arc<BlockCache>,
    /// The cache for cursors that do not fill it, and for cursors that do.
    scan_caches: [Arc<dyn TableBlockCache>; 2],
}

impl TableSet {
    pub(crate) fn new(
        runtime: &Runtime,
        events: Arc<Events>,
        storages: &Storages,
        descriptors: Arc<Descriptors>,
        options: &Options,
    ) -> TableSet {
        let cache = Arc::new(BlockCache::new(options.block_cache_bytes));
        let files = TableFiles::new(runtime, storages, descriptors.clone());
        let files = Arc::new(files);
        TableSet {
            runtime: runtime.clone(),
            registry: runtime.mutex(BTreeMap::new()),
            readers: Readers::new(runtime, files, descriptors, options),
            deletion: Deletion::new(runtime, events, storages),
            seeks: SeekCounts::new(options.schedule.seek_compaction),
            scan_caches: [false, true]
                .map(|fill| -> Arc<dyn TableBlockCache> { Arc::new(ScanCache::new(&cache, fill)) }),
            cache,
        }
    }

    #[inline]
    pub(crate) fn cache(&self) -> &Arc<BlockCache> {
        &self.cache
    }

    /// The block cache for a cursor.
    pub(crate) fn scan_cache(&self, fill: bool) -> &Arc<dyn TableBlockCache> {
        &self.scan_caches[usize::from(fill)]
    }

    pub(crate) fn readers(&self) -> &Readers {
        &self.readers
    }

    /// The handle of the table with this id, if a view or a job holds it.
    fn held_handle(&self, id: u64) -> Option<Arc<TableHandle>> {
        let registry = self.registry.lock();
        registry.get(&id).and_then(|r| r.handle.upgrade())
    }

    #[inline]
    pub(super) fn seeks(&self) -> &SeekCounts {
        &self.seeks
    }

    /// Sets the counts of lookups in vain of these tables back.
    pub(crate) fn forget_seeks(&self, tables: impl Iterator<Item = u64>) {
        for handle in tables.filter_map(|id| self.held_handle(id)) {
            handle.seek_bytes.store(0, Ordering::Relaxed);
        }
    }

    /// The handle of a table.
    pub(crate) fn handle(&self, meta: &Arc<TableMeta>) -> Arc<TableHandle> {
        let mut registry = self.registry.lock();
        if let Some(handle) = registry.get(&meta.id).and_then(|r| r.handle.upgrade()) {
            return handle;
        }
        let handle = Arc::new(TableHandle {
            meta: meta.clone(),
            reader: ArcSwapOption::empty(),
            filter: FilterPlace::default(),
            opening: self.runtime.mutex(()),
            files: [(); 2].map(|()| self.runtime.mutex(Weak::new())),
            used: AtomicBool::new(true),
            deleted_ranges: ArcSwapOption::empty(),
            upper: AtomicBool::new(false),
            seek_bytes: AtomicU64::new(0),
        });
        registry.insert(
            meta.id,
            Registered {
                handle: Arc::downgrade(&handle),
                location: meta.location,
                name: meta.name.clone(),
                file_bytes: meta.file_bytes,
            },
        );
        handle
    }

    /// The reader of a table. It is opened if needed, and may lack its filter.
    #[inline]
    pub(crate) fn reader(
        &self,
        handle: &Arc<TableHandle>,
    ) -> Result<Guard<Option<Arc<TableReader>>>> {
        let reader = handle.reader.load();
        if reader.is_some() {
            if !handle.used.load(Ordering::Relaxed) {
                handle.used.store(true, Ordering::Relaxed);
            }
            return Ok(reader);
        }
        self.readers.open(handle, false)
    }

    /// The reader of a table with its filter, for lookups of keys.
    #[inline]
    pub(crate) fn reader_to_get(
        &self,
        handle: &Arc<TableHandle>,
    ) -> Result<Guard<Option<Arc<TableReader>>>> {
        let reader = self.reader_if_open(handle);
        let has_filter = |r: &Arc<TableReader>| !r.lacks_filter() || planted!(UnreadFilterSaysNo);
        if reader.as_ref().is_some_and(has_filter) {
            if !handle.used.load(Ordering::Relaxed) {
                handle.used.store(true, Ordering::Relaxed);
            }
            return Ok(reader);
        }
        self.readers.open(handle, true)
    }

    /// The reader of a table, if it is open.
    pub(crate) fn reader_if_open(&self, handle: &TableHandle) -> Guard<Option<Arc<TableReader>>> {
        handle.reader.load()
    }

    /// [`TableSet::reader`], to keep.
    pub(crate) fn reader_owned(&self, handle: &Arc<TableHandle>) -> Result<Arc<TableReader>> {
        let reader = self.reader(handle)?;
        Ok(reader
            .as_ref()
            .expect("`reader` returns an open one")
            .clone())
    }

    /// [`TableSet::reader_to_get`], to keep.
    pub(crate) fn reader_to_get_owned(
        &self,
        handle: &Arc<TableHandle>,
    ) -> Result<Arc<TableReader>> {
        let reader = self.reader_to_get(handle)?;
        Ok(reader
            .as_ref()
            .expect("`reader_to_get` returns an open one")
            .clone())
    }

    /// Deletes the files of tables that nothing holds any more, and returns how many it deleted.
    /// Sweeps wait for each other. So when this returns, every table that nothing held before the
    /// call is deleted, even if the sweep of another task had begun with it.
    ///
    /// `in_doubt` is called after the tables that nothing holds were found. While the manifest is
    /// in doubt, it may name tables that no view names (a keyspace whose drop failed has left the
    /// map), so nothing is deleted.
    pub(crate) fn sweep(&self, location: u32, epoch: Epoch, in_doubt: impl Fn() -> bool) -> u64 {
        let take_unheld = || self.take_unheld(location);
        let deleted = self.deletion.sweep(location, epoch, take_unheld, in_doubt);
        if deleted > 0 {
            self.readers.forget_dropped();
        }
        deleted
    }

    /// Takes the tables at a location that nothing holds out of the set, and returns where their
    /// files are.
    fn take_unheld(&self, location: u32) -> Vec<FileAt> {
        let mut names = Vec::new();
        self.registry.lock().retain(|_, r| {
            let held =
                r.location != location || r.handle.strong_count() > 0 || planted!(KeepForEver);
            if !held {
                names.push((r.location, std::mem::take(&mut r.name)));
            }
            held
        });
        names
    }

    /// Lets the next sweep delete files at location 0 for which no handle was ever made.
    pub(crate) fn delete_later(&self, names: Vec<String>) {
        self.deletion
            .add(names.into_iter().map(|name| (0, name)).collect());
    }

    /// Whether a table of this name, at any location, has or had a handle, so that
    /// [`TableSet::sweep`] deletes it when nothing holds it.
    pub(crate) fn is_registered(&self, name: &str) -> bool {
        self.registry.lock().values().any(|r| r.name == name)
    }

    /// The number and the bytes of the tables that are kept only for older views and for jobs.
    /// `current` has the ids of the tables of the present views.
    pub(crate) fn pinned(&self, current: &BTreeSet<u64>) -> (u64, u64) {
        let registry = self.registry.lock();
        registry
            .iter()
            .filter(|(id, r)| !current.contains(id) && r.handle.strong_count() > 0)
            .fold((0, 0), |(n, bytes), (_, r)| (n + 1, bytes + r.file_bytes))
    }

    /// Reads the key ranges that a table's range deletes cover. A table that cannot be opened
    /// counts as covering nothing, because every read of it reports the error. If only the storage
    /// cannot be reached, a later call reads them, and the answer is false.
    pub(crate) fn learn_deleted_ranges(&self, handle: &Arc<TableHandle>) -> bool {
        if handle.deleted_ranges.load().is_some() {
            return true;
        }
        let mut ranges = match self.reader_owned(handle) {
            Ok(reader) => joined_ranges(
                reader
                    .range_deletes()
                    .fragments()
                    .iter()
                    .map(|f| KeyRange::half_open(&f.start, &f.end)),
            ),
            Err(error) if error.kind() == ErrorKind::Unreachable => return false,
            Err(_) => Vec::new(),
        };
        ranges.truncate(DELETED_RANGES_MAX);
        handle.deleted_ranges.store(Some(Arc::new(ranges)));
        true
    }

    /// Keys from the table's index that divide its bytes evenly. There are none if the table cannot
    /// be opened; the job reports the error. `is_away` is set when the storage cannot be reached,
    /// and then no other table is opened: each try would wait for its own time limit.
    pub(crate) fn anchors(&self, meta: &TableMeta, is_away: &Cell<bool>) -> Vec<Key> {
        const PARTS: usize = 16;
        let handle = self.held_handle(meta.id).filter(|_| !is_away.get());
        let reader = match handle.map(|handle| self.reader_owned(&handle)) {
            Some(Ok(reader)) => reader,
            Some(Err(error)) => {
                is_away.set(error.kind() == ErrorKind::Unreachable);
                return Vec::new();
            }
            None => return Vec::new(),
        };
        let index = reader.index();
        let mut keys: Vec<Key> = (1..PARTS)
            .map(|part| part * index.len() / PARTS)
            .filter(|i| *i > 0)
            .map(|i| Key::from(index.separator(i - 1).0))
            .collect();
        keys.dedup();
        keys
    }

    /// These tables as the inputs of a job, which holds them until it is over.
    pub(crate) fn inputs(self: &Arc<Self>, tables: Vec<Arc<TableMeta>>) -> Arc<dyn Inputs> {
        let mut handles: Vec<_> = tables
            .iter()
            .map(|meta| ((meta.location, meta.name.clone()), self.handle(meta)))
            .collect();
        handles.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
        Arc::new(JobInputs {
            tables: self.clone(),
            handles,
        })
    }
}
