//! The tables that views name: their handles, their open readers, and the deletion of their files.
//!
//! A [`TableHandle`] is shared by all views that name a table. It opens its reader at the first
//! use, without the table's filter until a lookup of a key needs it, and closes it again when more
//! than `open_tables_max` are open (a clock over handles). Tables of levels 0 and 1, which most
//! reads use, do not count towards this limit and are not closed because of it: their filters and
//! indexes stay in memory. Open files are limited separately: readers and jobs share a table's
//! [`TableFile`], and [`Descriptors`] limits how many of these have a descriptor. [`TableSet`] has
//! all handles. If nothing holds a handle, then neither a view nor a job names the table, and
//! [`TableSet::sweep`] deletes the file.
//!
//! Invariants: a table has one handle at a time. A handle is made only for a table that the
//! manifest names, or that belongs to an ingest in the log; so a table whose handle is not held is
//! obsolete. Destructors make no storage calls.
//!
//! Threading: getting an open reader is one atomic load. Opening takes the handle's lock over I/O.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use arc_swap::{ArcSwapOption, Guard};
use siltstone_storage::{Epoch, Mutex, ReadFile, Runtime, Storage};
use siltstone_table::error::TableError;
use siltstone_table::exec::{Inputs, StreamSource};
use siltstone_table::reader::{
    BlockCache as TableBlockCache, ReaderOptions, TableReader, Verify as TableVerify,
};

use crate::env::descriptors::Descriptors;
use crate::env::table_files::{TableFile, TableFiles};
use crate::formats::version::{Key, KeyRange, TableMeta};
use crate::tree::cache::{BlockCache, ScanCache};
use crate::tree::pick::joined_ranges;
use crate::types::error::{Error, ErrorKind, Result};
use crate::types::event::{Event, Events};
use crate::types::options::{DirectIo, Options, Verify};
use siltstone_storage::planted;

/// A table that a view names.
pub(crate) struct TableHandle {
    pub(crate) meta: Arc<TableMeta>,
    reader: ArcSwapOption<TableReader>,
    opening: Mutex<()>,
    /// Its file while a reader or job uses it: through the page cache, and with direct I/O.
    files: [Mutex<Weak<TableFile>>; 2],
    /// The reader was used since the clock's hand passed.
    used: AtomicBool,
    /// The key ranges that its range deletes cover, once they were read.
    deleted_ranges: ArcSwapOption<Vec<KeyRange>>,
    /// The table is in level 0 or 1 of its keyspace's newest view.
    upper: AtomicBool,
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
    name: String,
    file_bytes: u64,
}

/// See the module.
pub(crate) struct TableSet {
    runtime: Runtime,
    events: Arc<Events>,
    storage: Arc<dyn Storage>,
    files: Arc<TableFiles>,
    /// Limits the number of open files of tables.
    descriptors: Arc<Descriptors>,
    options: ReaderOptions,
    /// The id of the next reader, which is a part of its keys in the cache. Each store counts its
    /// own ids, so that a seed evicts the same blocks whatever else runs in the process.
    next_reader_id: AtomicU64,
    direct_io: DirectIo,
    /// The maximum number of open readers of tables below level 1.
    open_max: usize,
    /// How often a reader was opened (a miss of a filter and an index) or closed (an eviction).
    opened: AtomicU64,
    closed: AtomicU64,
    /// The number of tables that should have been mapped and could not be.
    map_failed_count: AtomicU64,
    registry: Mutex<BTreeMap<u64, Registered>>,
    /// The handles with open readers, in the order in which the clock's hand passes them.
    clock: Mutex<VecDeque<Weak<TableHandle>>>,
    /// Files to be deleted by the next sweep.
    to_delete: Mutex<Vec<String>>,
    /// Held over a sweep.
    sweeping: Mutex<()>,
    cache: Arc<BlockCache>,
    /// The cache for cursors that do not fill it, and for cursors that do.
    scan_caches: [Arc<dyn TableBlockCache>; 2],
}

impl TableSet {
    pub(crate) fn new(
        runtime: &Runtime,
        events: Arc<Events>,
        storage: Arc<dyn Storage>,
        descriptors: Arc<Descriptors>,
        options: &Options,
    ) -> TableSet {
        let cache = Arc::new(BlockCache::new(options.block_cache_bytes));
        TableSet {
            runtime: runtime.clone(),
            events,
            files: Arc::new(TableFiles::new(
                runtime,
                storage.clone(),
                descriptors.clone(),
            )),
            descriptors,
            storage,
            options: ReaderOptions {
                verify: match options.verify {
                    Verify::Once => TableVerify::FirstTouch,
                    Verify::Always => TableVerify::Always,
                },
                map: options.map_tables && options.direct_io != DirectIo::All,
                id: None,
            },
            next_reader_id: AtomicU64::new(0),
            direct_io: options.direct_io,
            open_max: options.open_tables_max as usize,
            opened: AtomicU64::new(0),
            closed: AtomicU64::new(0),
            map_failed_count: AtomicU64::new(0),
            registry: runtime.mutex(BTreeMap::new()),
            clock: runtime.mutex(VecDeque::new()),
            to_delete: runtime.mutex(Vec::new()),
            sweeping: runtime.mutex(()),
            scan_caches: [false, true]
                .map(|fill| -> Arc<dyn TableBlockCache> { Arc::new(ScanCache::new(&cache, fill)) }),
            cache,
        }
    }

    #[inline]
    pub(crate) fn cache(&self) -> &Arc<BlockCache> {
        &self.cache
    }

    pub(crate) fn descriptors(&self) -> &Arc<Descriptors> {
        &self.descriptors
    }

    /// The block cache for a cursor.
    pub(crate) fn scan_cache(&self, fill: bool) -> &Arc<dyn TableBlockCache> {
        &self.scan_caches[usize::from(fill)]
    }

    pub(crate) fn opened_count(&self) -> u64 {
        self.opened.load(Ordering::Relaxed)
    }

    pub(crate) fn closed_count(&self) -> u64 {
        self.closed.load(Ordering::Relaxed)
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
            opening: self.runtime.mutex(()),
            files: [(); 2].map(|()| self.runtime.mutex(Weak::new())),
            used: AtomicBool::new(true),
            deleted_ranges: ArcSwapOption::empty(),
            upper: AtomicBool::new(false),
        });
        registry.insert(
            meta.id,
            Registered {
                handle: Arc::downgrade(&handle),
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
        self.open(handle, false)
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
        self.open(handle, true)
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
        Ok(reader.as_ref().expect("it is open now").clone())
    }

    /// Opens a table, or reads the filter of a reader that lacks it.
    #[cold]
    fn open(
        &self,
        handle: &Arc<TableHandle>,
        to_get: bool,
    ) -> Result<Guard<Option<Arc<TableReader>>>> {
        let _opening = handle.opening.lock();
        let present = handle.reader.load();
        if let Some(reader) = present.as_ref() {
            if !(to_get && reader.lacks_filter()) {
                return Ok(present);
            }
            let name = &handle.meta.name;
            let reader = reader.with_filter().map_err(|e| {
                Error::from(e).context(format!("reading the filter of table {name}"))
            })?;
            handle.reader.store(Some(reader.clone()));
            return Ok(Guard::from_inner(Some(reader)));
        }
        let reader = {
            let name = &handle.meta.name;
            let options = ReaderOptions {
                id: Some(self.next_reader_id.fetch_add(1, Ordering::Relaxed)),
                ..self.options
            };
            let opened = self
                .file(handle, self.direct_io == DirectIo::All)
                .map_err(TableError::from)
                .and_then(|file| match to_get {
                    true => TableReader::open(file, options),
                    false => TableReader::open_without_filter(file, options),
                });
            let reader = opened.map_err(|e| {
                let error = Error::from(e);
                // The manifest names the table, so a missing file is damage.
                if error.kind() == ErrorKind::NotFound {
                    error
                        .with_message("the file of a table is missing")
                        .with_kind(ErrorKind::Corruption)
                        .advice(crate::types::error::REMOVED_ADVICE)
                } else {
                    error
                }
                .context(format!("opening table {name}"))
            })?;
            if u128::from(reader.footer().digest) != handle.meta.digest {
                return Err(Error::corruption(
                    name.clone(),
                    "the table is not the one that the manifest names",
                )
                .expected(format!("digest {:016x}", handle.meta.digest))
                .found(format!("{:016x}", reader.footer().digest)));
            }
            reader
        };
        if reader.lacks_map() {
            self.map_failed_count.fetch_add(1, Ordering::Relaxed);
        }
        handle.reader.store(Some(reader.clone()));
        self.opened.fetch_add(1, Ordering::Relaxed);
        self.clock.lock().push_back(Arc::downgrade(handle));
        self.evict();
        // This reader is returned and not loaded again. Another task that opens tables may have
        // closed it already, and the caller must get a reader even then.
        Ok(Guard::from_inner(Some(reader)))
    }

    /// A table's file, with direct I/O if `direct`. Other readers of the table share it.
    fn file(
        &self,
        handle: &TableHandle,
        direct: bool,
    ) -> siltstone_storage::Result<Arc<TableFile>> {
        let mut slot = handle.files[usize::from(direct)].lock();
        if let Some(file) = slot.upgrade() {
            return Ok(file);
        }
        let file = self.files.open(&handle.meta.name, direct)?;
        *slot = Arc::downgrade(&file);
        Ok(file)
    }

    /// Notes that the store is closed. From now on, a later open of it may delete tables.
    pub(crate) fn set_closed(&self) {
        self.files.set_closed();
    }

    /// The number of tables that should have been mapped and could not be. Their blocks are read
    /// onto the heap.
    pub(crate) fn map_failed_count(&self) -> u64 {
        self.map_failed_count.load(Ordering::Relaxed)
    }

    fn close(&self, handle: &TableHandle) {
        handle.reader.store(None);
        self.closed.fetch_add(1, Ordering::Relaxed);
    }

    /// Closes readers that were not used recently, while too many are open.
    fn evict(&self) {
        let mut clock = self.clock.lock();
        if clock.len() <= self.open_max {
            return;
        }
        let is_upper = |next: &Weak<TableHandle>| next.upgrade().is_some_and(|h| h.is_upper());
        let upper = clock.iter().filter(|next| is_upper(next)).count();
        for _ in 0..2 * clock.len() {
            if clock.len().saturating_sub(upper) <= self.open_max {
                return;
            }
            let Some(next) = clock.pop_front() else {
                return;
            };
            let Some(handle) = next.upgrade() else {
                continue;
            };
            if handle.used.swap(false, Ordering::Relaxed) || handle.is_upper() {
                clock.push_back(next);
            } else {
                self.close(&handle);
            }
        }
    }

    /// Deletes the files of tables that nothing holds any more, and returns how many it deleted.
    /// Sweeps wait for each other. So when this returns, every table that nothing held before the
    /// call is deleted, even if the sweep of another task had begun with it.
    ///
    /// `in_doubt` is called after the tables that nothing holds were found. While the manifest is
    /// in doubt, it may name tables that no view names (a keyspace whose drop failed has left the
    /// map), so nothing is deleted.
    pub(crate) fn sweep(&self, epoch: Epoch, in_doubt: impl Fn() -> bool) -> u64 {
        let _sweeping = self.sweeping.lock();
        let mut names = std::mem::take(&mut *self.to_delete.lock());
        {
            let mut registry = self.registry.lock();
            registry.retain(|_, r| {
                let held = r.handle.strong_count() > 0 || planted!(KeepForEver);
                if !held {
                    names.push(std::mem::take(&mut r.name));
                }
                held
            });
        }
        if in_doubt() {
            self.to_delete.lock().append(&mut names);
            return 0;
        }
        let mut deleted = 0;
        for name in names {
            // The folder's guard repeats a failed deletion.
            if self.storage.delete(epoch, &name).is_ok() {
                deleted += 1;
                self.events.emit(|| Event::TableDeleted { name });
            }
        }
        if deleted > 0 {
            self.clock.lock().retain(|w| w.strong_count() > 0);
        }
        deleted
    }

    /// Lets the next sweep delete files for which no handle was ever made.
    pub(crate) fn delete_later(&self, mut names: Vec<String>) {
        if !names.is_empty() {
            self.to_delete.lock().append(&mut names);
        }
    }

    /// Whether a table of this name has or had a handle, so that [`TableSet::sweep`] deletes it
    /// when nothing holds it.
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

    /// Heap bytes of the open readers.
    pub(crate) fn memory_bytes(&self) -> u64 {
        let clock = self.clock.lock();
        clock
            .iter()
            .filter_map(Weak::upgrade)
            .filter_map(|h| h.reader.load().as_ref().map(|r| r.memory_bytes() as u64))
            .sum()
    }

    /// Closes readers of tables below level 1 until about `bytes` are free, beginning with readers
    /// that were not used recently. Returns the bytes that they held.
    pub(crate) fn close_deep(&self, bytes: u64) -> u64 {
        let mut clock = self.clock.lock();
        let mut freed = 0;
        // The hand goes around twice. The first time it spares readers that were used since it
        // passed them.
        for _ in 0..2 * clock.len() {
            if freed >= bytes {
                break;
            }
            let Some(next) = clock.pop_front() else { break };
            let Some(handle) = next.upgrade() else {
                continue;
            };
            if handle.is_upper() || handle.used.swap(false, Ordering::Relaxed) {
                clock.push_back(next);
                continue;
            }
            let held = handle.reader.load();
            freed += held.as_ref().map_or(0, |r| r.memory_bytes() as u64);
            drop(held);
            self.close(&handle);
        }
        freed
    }

    /// Closes all readers.
    pub(crate) fn close_all(&self) {
        let handles = std::mem::take(&mut *self.clock.lock());
        let handles = handles.iter().filter_map(Weak::upgrade);
        handles.for_each(|handle| self.close(&handle));
    }

    /// Reads the key ranges that a table's range deletes cover. A table that cannot be opened
    /// counts as covering nothing, because every read of it reports the error.
    pub(crate) fn learn_deleted_ranges(&self, handle: &Arc<TableHandle>) {
        if handle.deleted_ranges.load().is_some() {
            return;
        }
        let mut ranges = match self.reader_owned(handle) {
            Ok(reader) => joined_ranges(
                reader
                    .range_deletes()
                    .fragments()
                    .iter()
                    .map(|f| KeyRange::half_open(&f.start, &f.end)),
            ),
            Err(_) => Vec::new(),
        };
        ranges.truncate(DELETED_RANGES_MAX);
        handle.deleted_ranges.store(Some(Arc::new(ranges)));
    }

    /// Keys from the table's index that divide its bytes evenly. There are none if the table cannot
    /// be opened; the job reports the error.
    pub(crate) fn anchors(&self, meta: &TableMeta) -> Vec<Key> {
        const PARTS: usize = 16;
        let handle = self
            .registry
            .lock()
            .get(&meta.id)
            .and_then(|r| r.handle.upgrade());
        let Some(reader) = handle.and_then(|h| self.reader_owned(&h).ok()) else {
            return Vec::new();
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
        let handles: BTreeMap<_, _> = tables
            .iter()
            .map(|meta| ((meta.location, meta.name.clone()), self.handle(meta)))
            .collect();
        Arc::new(JobInputs {
            tables: self.clone(),
            handles,
        })
    }
}

struct JobInputs {
    tables: Arc<TableSet>,
    handles: BTreeMap<(u32, String), Arc<TableHandle>>,
}

fn not_an_input(location: u32, name: &str) -> TableError {
    siltstone_storage::StorageError::new(
        siltstone_storage::StorageErrorKind::NotFound,
        "resolve input",
        name,
        format!("location {location} has no such input of this job"),
    )
    .into()
}

impl Inputs for JobInputs {
    fn table(
        &self,
        location: u32,
        name: &str,
    ) -> std::result::Result<Arc<dyn ReadFile>, TableError> {
        let handle = self
            .handles
            .get(&(location, name.to_string()))
            .ok_or_else(|| not_an_input(location, name))?;
        let direct = self.tables.direct_io != DirectIo::None;
        Ok(self.tables.file(handle, direct)?)
    }

    fn stream(
        &self,
        location: u32,
        name: &str,
    ) -> std::result::Result<Arc<dyn StreamSource>, TableError> {
        Err(not_an_input(location, name))
    }
}
