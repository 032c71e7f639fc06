//! The files of tables that are open.
//!
//! A [`TableFile`] is the file of a table, shared by all that read it: the reader that gets use,
//! readers that cursors hold, and jobs. It does not always have a descriptor of the system:
//! [`Descriptors`] bounds how many have one at a time, and a file that lost its descriptor is
//! opened again for the next read. So the number of open files is bounded, however many readers are
//! held. If all are in use, each read opens and closes its file.
//!
//! A map does not need the descriptor that it was made with, so it does not count here.
//!
//! Invariants: a table has at most one [`TableFile`] for each way of opening it at a time (its
//! handle sees to that). A file stays open until the reads that use it end, so as many files more
//! than the bound may be open for a moment as there are threads that read.
//!
//! Threading: a read takes one atomic load; opening takes the file's lock over I/O.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use arc_swap::ArcSwapOption;
use siltstone_storage::{
    Access, Map, Mutex, ReadByDescriptor, ReadFile, ReadPurpose, ReadRange, Result, Runtime,
    StorageError, StorageErrorKind,
};

use crate::env::descriptors::{Descriptors, Held};
use crate::formats::directories::Storages;

/// See the module.
pub(crate) struct TableFiles {
    runtime: Runtime,
    /// Wrapped by [`Descriptors::wrap`]: their opens may close files of other tables.
    storages: Storages,
    descriptors: Arc<Descriptors>,
    /// The store was closed, so a later open of it may delete any table.
    closed: AtomicBool,
}

impl TableFiles {
    pub(crate) fn new(
        runtime: &Runtime,
        storages: &Storages,
        descriptors: Arc<Descriptors>,
    ) -> TableFiles {
        TableFiles {
            runtime: runtime.clone(),
            storages: storages.clone(),
            descriptors,
            closed: AtomicBool::new(false),
        }
    }

    /// From now on, a missing file is not damage.
    pub(crate) fn set_closed(&self) {
        self.closed.store(true, Ordering::Release);
    }

    /// The path of a location, for messages.
    pub(crate) fn place(&self, location: u32) -> String {
        self.storages.tables_at(location).describe()
    }

    /// Opens the file of a table at a location, past the page cache if `direct` is true.
    pub(crate) fn open(
        self: &Arc<Self>,
        location: u32,
        name: &str,
        direct: bool,
    ) -> Result<Arc<TableFile>> {
        let file = self.open_now(location, name, direct)?;
        let opened = Arc::new_cyclic(|own| TableFile {
            files: self.clone(),
            own: own.clone(),
            location,
            name: name.to_string(),
            direct,
            len: file.len(),
            opened: ArcSwapOption::from_pointee(Opened {
                file,
                _held: self.descriptors.hold(),
                is_mapped: AtomicBool::new(false),
            }),
            opening: self.runtime.mutex(()),
            used: AtomicBool::new(true),
            map: ArcSwapOption::empty(),
        });
        self.descriptors.entered(&opened.own);
        Ok(opened)
    }

    /// Opens a descriptor.
    fn open_now(&self, location: u32, name: &str, direct: bool) -> Result<Arc<dyn ReadFile>> {
        let storage = self.storages.tables_at(location);
        let opened = if direct {
            storage.open_direct(name)
        } else {
            storage.open_finished(name)
        };
        opened.map_err(|error| {
            if error.kind != StorageErrorKind::NotFound || !self.closed.load(Ordering::Acquire) {
                return error;
            }
            let detail = "the store was closed, and a later open has deleted this table";
            StorageError::new(StorageErrorKind::Closed, error.op, error.name, detail)
        })
    }
}

/// A descriptor.
struct Opened {
    // Dropped before `_held`, so that it is counted until it is closed.
    file: Arc<dyn ReadFile>,
    _held: Held,
    /// The file's map was made with this descriptor.
    is_mapped: AtomicBool,
}

/// A table's file, with a descriptor or without. See the module.
pub(crate) struct TableFile {
    files: Arc<TableFiles>,
    own: Weak<TableFile>,
    location: u32,
    name: String,
    direct: bool,
    len: u64,
    opened: ArcSwapOption<Opened>,
    opening: Mutex<()>,
    /// Used since the clock's hand passed it.
    used: AtomicBool,
    map: ArcSwapOption<Map>,
}

impl TableFile {
    /// Whether it was used since the last call.
    pub(crate) fn take_used(&self) -> bool {
        self.used.swap(false, Ordering::Relaxed)
    }

    /// Closes its descriptor, now or when the reads that use it end.
    pub(crate) fn close(&self) {
        self.opened.store(None);
    }

    /// The descriptor, which is opened again if it was closed.
    fn opened(&self) -> Result<Arc<Opened>> {
        if !self.used.load(Ordering::Relaxed) {
            self.used.store(true, Ordering::Relaxed);
        }
        if let Some(opened) = self.opened.load_full() {
            return Ok(opened);
        }
        self.open_again()
    }

    #[cold]
    fn open_again(&self) -> Result<Arc<Opened>> {
        let _opening = self.opening.lock();
        if let Some(opened) = self.opened.load_full() {
            return Ok(opened);
        }
        let file = self.files.open_now(self.location, &self.name, self.direct);
        let file = file.map_err(|error| match error.kind {
            // While a reader holds the table, the store does not delete it.
            StorageErrorKind::NotFound => StorageError::new(
                StorageErrorKind::Removed,
                error.op,
                error.name,
                "the file of a table in use is missing",
            ),
            _ => error,
        })?;
        let opened = Arc::new(Opened {
            file,
            _held: self.files.descriptors.hold(),
            is_mapped: AtomicBool::new(false),
        });
        self.opened.store(Some(opened.clone()));
        self.files.descriptors.entered(&self.own);
        Ok(opened)
    }
}

impl ReadFile for TableFile {
    fn name(&self) -> &str {
        &self.name
    }

    fn len(&self) -> u64 {
        self.len
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.opened()?.file.read_at(offset, buf)
    }

    fn read_ranges(&self, ranges: &mut [ReadRange<'_>]) -> Result<()> {
        self.opened()?.file.read_ranges(ranges)
    }

    fn read_ranges_for(&self, purpose: ReadPurpose, ranges: &mut [ReadRange<'_>]) -> Result<()> {
        self.opened()?.file.read_ranges_for(purpose, ranges)
    }

    fn read_by_descriptor(&self, read: &mut ReadByDescriptor<'_>) -> Result<bool> {
        self.opened()?.file.read_by_descriptor(read)
    }

    /// Advises the descriptor and the map that are there. Nothing is opened for it.
    fn advise(&self, access: Access, offset: u64, len: u64) {
        let opened = self.opened.load_full();
        let with_map = opened
            .as_ref()
            .is_some_and(|o| o.is_mapped.load(Ordering::Relaxed));
        if !with_map && let Some(map) = self.map.load().as_ref() {
            map.advise(access, offset, len);
        }
        if let Some(opened) = opened {
            opened.file.advise(access, offset, len);
        }
    }

    fn map(&self) -> Result<Option<Map>> {
        if let Some(map) = self.map.load().as_ref() {
            return Ok(Some(Map::clone(map)));
        }
        let opened = self.opened()?;
        let map = opened.file.map()?;
        if let Some(map) = &map {
            opened.is_mapped.store(true, Ordering::Relaxed);
            self.map.store(Some(Arc::new(map.clone())));
        }
        Ok(map)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use siltstone_storage::sim::{self, SimConfig};
    use siltstone_storage::{Epoch, MemoryStorage, OpKind, Storage};

    const EPOCH: Epoch = Epoch(0);

    /// `count` files, each with its number as its only byte, of which `open_max` may be open.
    fn files_of(count: u8, open_max: u64) -> (MemoryStorage, Vec<Arc<TableFile>>) {
        files_in(&Runtime::threads(), count, open_max)
    }

    fn files_in(
        runtime: &Runtime,
        count: u8,
        open_max: u64,
    ) -> (MemoryStorage, Vec<Arc<TableFile>>) {
        let memory = MemoryStorage::new(runtime);
        let descriptors = Descriptors::new(runtime, Some(2 * open_max));
        let storage = descriptors.wrap(Arc::new(memory.clone()));
        let storages = Storages::on(storage);
        let files = Arc::new(TableFiles::new(runtime, &storages, descriptors));
        let open = |n: u8| {
            let file = memory.create(EPOCH, &n.to_string()).unwrap();
            file.append(&[&[n]]).unwrap();
            files.open(0, &n.to_string(), false).unwrap()
        };
        let all = (0..count).map(open).collect();
        (memory, all)
    }

    fn read(file: &TableFile) -> Result<u8> {
        let mut byte = [0];
        file.read_at(0, &mut byte).map(|()| byte[0])
    }

    fn open_count(all: &[Arc<TableFile>]) -> usize {
        let is_open = |file: &&Arc<TableFile>| file.opened.load().is_some();
        all.iter().filter(is_open).count()
    }

    #[test]
    fn no_more_files_than_the_bound_are_open_and_all_can_be_read() {
        let (memory, all) = files_of(20, 5);
        assert!(open_count(&all) <= 5);
        for _ in 0..3 {
            for (n, file) in all.iter().enumerate() {
                assert_eq!(usize::from(read(file).unwrap()), n);
                assert!(open_count(&all) <= 5);
            }
        }
        // One that is read all the time keeps its descriptor.
        read(&all[7]).unwrap();
        let before = memory.counts().of(OpKind::Open);
        for n in 0..4 {
            read(&all[n]).unwrap();
            read(&all[7]).unwrap();
        }
        assert_eq!(memory.counts().of(OpKind::Open) - before, 4);
    }

    #[test]
    fn tables_give_back_half_of_their_descriptors_and_at_last_all() {
        let (_memory, all) = files_of(20, u64::MAX / 2);
        let descriptors = all[0].files.descriptors.clone();
        assert_eq!(open_count(&all), 20);
        assert!(descriptors.give_back());
        assert_eq!(open_count(&all), 10);
        for (n, file) in all.iter().enumerate() {
            assert_eq!(usize::from(read(file).unwrap()), n);
        }
        assert!(open_count(&all) <= 10, "the bound stays lowered");
        while descriptors.give_back() {}
        assert_eq!(open_count(&all), 0, "the last one too");
        for (n, file) in all.iter().enumerate() {
            assert_eq!(usize::from(read(file).unwrap()), n);
        }
        assert_eq!(open_count(&all), 4);
    }

    #[test]
    fn a_bound_that_was_lowered_recovers() {
        let run = sim::run(SimConfig::new(7), |runtime: Runtime| {
            let memory = MemoryStorage::new(&runtime);
            let descriptors = Descriptors::new(&runtime, Some(40));
            let storage = descriptors.wrap(Arc::new(memory.clone()));
            let storages = Storages::on(storage);
            let files = Arc::new(TableFiles::new(&runtime, &storages, descriptors.clone()));
            let all: Vec<_> = (0..20u8)
                .map(|n| {
                    let file = memory.create(EPOCH, &n.to_string()).unwrap();
                    file.append(&[&[n]]).unwrap();
                    drop(file);
                    files.open(0, &n.to_string(), false).unwrap()
                })
                .collect();
            while descriptors.give_back() {}
            for expected in [4, 8, 16, 20, 20] {
                for file in &all {
                    read(file).unwrap();
                }
                assert_eq!(open_count(&all), expected);
                runtime.sleep(Duration::from_secs(61));
            }
        });
        run.result.unwrap();
    }

    /// Creating a file failed, while opening a table closed others.
    #[test]
    fn whatever_opens_a_file_takes_descriptors_back_from_tables() {
        let (memory, all) = files_of(6, u64::MAX / 2);
        let descriptors = all[0].files.descriptors.clone();
        let storage = all[0].files.storages.tables.clone();
        for call in 0..5 {
            for file in &all {
                read(file).unwrap();
            }
            let (open, retried) = (open_count(&all) as u64, descriptors.retried_count());
            memory.set_open_max(100, open);
            match call {
                0 => drop(storage.create(EPOCH, "created").unwrap()),
                1 => drop(storage.recycle(EPOCH, "created", "recycled").unwrap()),
                2 => storage.replace(EPOCH, "replaced", b"1").unwrap(),
                3 => storage.publish(EPOCH, "published", b"1").unwrap(),
                _ => drop(storage.open("replaced").unwrap()),
            }
            assert!((open_count(&all) as u64) < open, "call {call}");
            assert_eq!(descriptors.retried_count() - retried, 1, "call {call}");
            memory.set_open_max(100, 100);
        }
        // If no table has a descriptor, the call fails, and creates nothing.
        while descriptors.give_back() {}
        memory.set_open_max(100, 0);
        let error = storage.create(EPOCH, "toomany").err().unwrap();
        assert_eq!(error.kind, StorageErrorKind::TooManyOpen);
        assert!(
            memory
                .list()
                .unwrap()
                .iter()
                .all(|object| object.name != "toomany")
        );
    }

    /// Threads that had closed each other's files a hundred times gave up, and so did one whose
    /// call failed just before the last descriptor came free.
    #[test]
    fn each_of_many_threads_gets_its_turn_at_few_descriptors() {
        for seed in 0..20 {
            let run = sim::run(SimConfig::new(seed), move |runtime: Runtime| {
                let (memory, all) = files_in(&runtime, 30, u64::MAX / 2);
                while all[0].files.descriptors.give_back() {}
                memory.set_open_max(100, 1 + seed % 4);
                let all = Arc::new(all);
                let threads: Vec<_> = (0..60)
                    .map(|thread| {
                        let (all, runtime_there) = (all.clone(), runtime.clone());
                        runtime.spawn("reader", move || {
                            for n in 0..60 {
                                let n = (thread * 7 + n) % all.len();
                                let opened = all[n].opened().unwrap();
                                runtime_there.yield_point();
                                let mut byte = [0];
                                opened.file.read_at(0, &mut byte).unwrap();
                                assert_eq!(usize::from(byte[0]), n);
                            }
                        })
                    })
                    .collect();
                for thread in threads {
                    thread.unwrap().join().unwrap();
                }
            });
            run.result
                .unwrap_or_else(|error| panic!("seed {seed}: {error:?}"));
        }
    }

    #[test]
    fn a_map_needs_no_descriptor() {
        let (memory, all) = files_of(2, 1);
        let maps = [&all[0], &all[1]].map(|file| file.map().unwrap().unwrap());
        assert!(open_count(&all) <= 1);
        let before = memory.counts().of(OpKind::Open);
        for (n, map) in maps.iter().enumerate() {
            assert_eq!(map.read_u8(0), Some(n as u8));
            assert!(all[n].map().unwrap().is_some());
        }
        assert_eq!(memory.counts().of(OpKind::Open), before);
    }

    #[test]
    fn a_missing_file_is_damage_while_the_store_is_open_and_none_afterwards() {
        let (memory, all) = files_of(3, 1);
        memory.delete(EPOCH, "0").unwrap();
        memory.delete(EPOCH, "1").unwrap();
        let kind = |file: &TableFile| read(file).unwrap_err().kind;
        assert_eq!(kind(&all[0]), StorageErrorKind::Removed);
        all[0].files.set_closed();
        assert_eq!(kind(&all[1]), StorageErrorKind::Closed);
        assert_eq!(read(&all[2]).unwrap(), 2);
    }
}
