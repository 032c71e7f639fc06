//! The open readers of tables: opened at the first use, and closed again when there are too many.
//!
//! A reader is opened without its table's filter until a lookup of a key needs it. More than
//! `open_tables_max` readers are not open for long: a clock over the handles closes those that were
//! not used recently. Tables of levels 0 and 1, which most reads use, do not count towards this
//! limit and are not closed because of it: their filters and indexes stay in memory. Open files are
//! limited separately: readers and jobs share a table's [`TableFile`], and [`Descriptors`] limits
//! how many of these have a descriptor.
//!
//! Invariant: every handle with an open reader is in the clock.
//!
//! Threading: opening takes the handle's lock over I/O, and then the clock's lock, which is held
//! over no I/O.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use arc_swap::Guard;
use siltstone_storage::{Mutex, ReadFile, Runtime};
use siltstone_table::error::TableError;
use siltstone_table::reader::{ReaderOptions, TableReader, Verify as TableVerify};

use crate::env::descriptors::Descriptors;
use crate::env::table_files::{TableFile, TableFiles};
use crate::tree::tables::TableHandle;
use crate::types::error::{Error, ErrorKind, REMOVED_ADVICE, Result};
use crate::types::options::{DirectIo, Options, Verify};

/// See the module.
pub(crate) struct Readers {
    files: Arc<TableFiles>,
    /// Limits the number of open files of tables.
    descriptors: Arc<Descriptors>,
    options: ReaderOptions,
    /// The id of the next reader, which is a part of its keys in the cache. Each store counts its
    /// own ids, so that a seed evicts the same blocks whatever else runs in the process.
    next_id: AtomicU64,
    direct_io: DirectIo,
    /// The maximum number of open readers of tables below level 1.
    open_max: usize,
    /// How often a reader was opened (a miss of a filter and an index) or closed (an eviction).
    opened: AtomicU64,
    closed: AtomicU64,
    /// The number of tables that should have been mapped and could not be.
    map_failed_count: AtomicU64,
    /// The readers of tables that are not installed yet, by the tables' names.
    kept: Mutex<BTreeMap<String, Kept>>,
    /// The handles with open readers, in the order in which the clock's hand passes them.
    clock: Mutex<VecDeque<Weak<TableHandle>>>,
}

/// A reader of a table that is not installed yet, and the table's file.
struct Kept {
    reader: Arc<TableReader>,
    file: Arc<TableFile>,
}

impl Readers {
    pub(super) fn new(
        runtime: &Runtime,
        files: Arc<TableFiles>,
        descriptors: Arc<Descriptors>,
        options: &Options,
    ) -> Readers {
        Readers {
            files,
            descriptors,
            options: ReaderOptions {
                verify: match options.verify {
                    Verify::Once => TableVerify::FirstTouch,
                    Verify::Always => TableVerify::Always,
                },
                map: options.map_tables && options.direct_io != DirectIo::All,
                id: None,
            },
            next_id: AtomicU64::new(0),
            direct_io: options.direct_io,
            open_max: options.open_tables_max as usize,
            opened: AtomicU64::new(0),
            closed: AtomicU64::new(0),
            map_failed_count: AtomicU64::new(0),
            kept: runtime.mutex(BTreeMap::new()),
            clock: runtime.mutex(VecDeque::new()),
        }
    }

    pub(crate) fn descriptors(&self) -> &Arc<Descriptors> {
        &self.descriptors
    }

    pub(crate) fn opened_count(&self) -> u64 {
        self.opened.load(Ordering::Relaxed)
    }

    pub(crate) fn closed_count(&self) -> u64 {
        self.closed.load(Ordering::Relaxed)
    }

    /// The number of tables that should have been mapped and could not be. Their blocks are read
    /// onto the heap.
    pub(crate) fn map_failed_count(&self) -> u64 {
        self.map_failed_count.load(Ordering::Relaxed)
    }

    /// Opens a table, or reads the filter of a reader that lacks it.
    #[cold]
    pub(super) fn open(
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
            handle.set_reader(Some(reader.clone()));
            return Ok(Guard::from_inner(Some(reader)));
        }
        let reader = self.open_file(handle, to_get)?;
        if reader.lacks_map() {
            self.map_failed_count.fetch_add(1, Ordering::Relaxed);
        }
        handle.set_reader(Some(reader.clone()));
        self.opened.fetch_add(1, Ordering::Relaxed);
        self.clock.lock().push_back(Arc::downgrade(handle));
        self.evict();
        // This reader is returned and not loaded again. Another task that opens tables may have
        // closed it already, and the caller must get a reader even then.
        Ok(Guard::from_inner(Some(reader)))
    }

    /// A reader of a table's file, which must be the table that the manifest names.
    fn open_file(&self, handle: &TableHandle, with_filter: bool) -> Result<Arc<TableReader>> {
        let name = &handle.meta.name;
        let direct = self.direct_io == DirectIo::All;
        let opened = match self.take_kept(name) {
            Some(kept) => {
                *handle.files[usize::from(direct)].lock() = Arc::downgrade(&kept.file);
                Ok(kept.reader)
            }
            None => self
                .file(handle, direct)
                .map_err(TableError::from)
                .and_then(|file| match with_filter {
                    true => TableReader::open(file, self.next_options()),
                    false => TableReader::open_without_filter(file, self.next_options()),
                }),
        };
        let reader = opened.map_err(|e| {
            let error = Error::from(e);
            // The manifest names the table, so a missing file is damage.
            if error.kind() == ErrorKind::NotFound {
                error
                    .with_message("the file of a table is missing")
                    .with_kind(ErrorKind::Corruption)
                    .advice(REMOVED_ADVICE)
            } else {
                error
            }
            .context(match handle.meta.location {
                0 => format!("opening table {name}"),
                location => {
                    let place = self.files.place(location);
                    format!("opening table {name} at location {location}, {place}")
                }
            })
        })?;
        if u128::from(reader.footer().digest) != handle.meta.digest {
            return Err(Error::corruption(
                name.clone(),
                "the table is not the one that the manifest names",
            )
            .expected(format!("digest {:016x}", handle.meta.digest))
            .found(format!("{:016x}", reader.footer().digest)));
        }
        Ok(reader)
    }

    /// The options of the next reader.
    fn next_options(&self) -> ReaderOptions {
        ReaderOptions {
            id: Some(self.next_id.fetch_add(1, Ordering::Relaxed)),
            ..self.options
        }
    }

    /// Opens the file of a table that is not installed yet. Other executors than the host's own
    /// make tables at location 0 only.
    pub(super) fn open_early(&self, name: &str) -> siltstone_storage::Result<Arc<TableFile>> {
        self.files.open(0, name, self.direct_io == DirectIo::All)
    }

    /// Opens a reader of a table that is not installed yet, and keeps it.
    pub(super) fn read_early(
        &self,
        file: &Arc<TableFile>,
        through: Arc<dyn ReadFile>,
    ) -> std::result::Result<Arc<TableReader>, TableError> {
        let reader = TableReader::open(through, self.next_options())?;
        let kept = Kept {
            reader: reader.clone(),
            file: file.clone(),
        };
        self.kept.lock().insert(file.name().to_string(), kept);
        Ok(reader)
    }

    /// Whether a reader of the table of this name is kept.
    pub(super) fn is_kept(&self, name: &str) -> bool {
        self.kept.lock().contains_key(name)
    }

    /// Takes the reader that is kept of the table of this name.
    fn take_kept(&self, name: &str) -> Option<Kept> {
        self.kept.lock().remove(name)
    }

    /// Forgets the reader that is kept of the table of this name.
    pub(super) fn forget_kept(&self, name: &str) {
        drop(self.take_kept(name));
    }

    /// The file of a job's input.
    pub(super) fn input_file(
        &self,
        handle: &TableHandle,
    ) -> siltstone_storage::Result<Arc<TableFile>> {
        self.file(handle, self.direct_io != DirectIo::None)
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
        let meta = &handle.meta;
        let file = self.files.open(meta.location, &meta.name, direct)?;
        *slot = Arc::downgrade(&file);
        Ok(file)
    }

    fn close(&self, handle: &TableHandle) {
        handle.set_reader(None);
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
        drop(std::mem::take(&mut *self.kept.lock()));
        let handles = std::mem::take(&mut *self.clock.lock());
        let handles = handles.iter().filter_map(Weak::upgrade);
        handles.for_each(|handle| self.close(&handle));
    }

    /// Forgets handles that nothing holds any more.
    pub(super) fn forget_dropped(&self) {
        self.clock.lock().retain(|w| w.strong_count() > 0);
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

    /// Notes that the store is closed. From now on, a later open of it may delete tables.
    pub(crate) fn set_closed(&self) {
        self.files.set_closed();
    }
}
