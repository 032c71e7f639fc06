//! The files of tables that are open, and the bound on them.
//!
//! What it is: a [`TableFile`] is a table's file as everybody reads it: the reader that gets share,
//! readers that cursors hold, and jobs. It has a descriptor of the system only while it is used: at
//! most [`TableFiles`]' bound of them have one at a time, and one that lost its descriptor opens
//! the file again for its next read. So the number of open files is bounded whatever holds readers,
//! and when everything is in use, files are opened, read and closed.
//!
//! A map outlives the descriptor that it was made with, and counts for nothing here.
//!
//! Invariants: a table has at most one [`TableFile`] for each way of opening it at a time (the
//! handle's business); a file that is read stays open until that read is over, so there may be as
//! many more open for a moment as there are threads that read.
//!
//! Threading: a read takes one atomic load; opening takes the file's lock over I/O, and closing
//! others takes the clock's.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use arc_swap::ArcSwapOption;
use siltstone_storage::{
    Access, Map, Mutex, ReadFile, ReadRange, Result, Runtime, Storage, StorageError,
    StorageErrorKind,
};

/// Fewer than this are not worth closing.
const LEAST: usize = 4;

/// See the module.
pub(crate) struct TableFiles {
    runtime: Runtime,
    storage: Arc<dyn Storage>,
    /// The most that are open; less after the process ran out of descriptors.
    open_max: AtomicUsize,
    clock: Mutex<Clock>,
    /// How many descriptors were closed for others.
    closed_count: AtomicU64,
    /// The store was closed: the next one that opens it may delete any table.
    closed: AtomicBool,
}

/// The files with a descriptor, in the order in which the clock's hand passes them.
#[derive(Default)]
struct Clock {
    files: VecDeque<Weak<TableFile>>,
    /// When there are this many, those that are gone are taken out.
    prune_at: usize,
}

impl Clock {
    fn prune(&mut self) {
        self.files.retain(|next| next.strong_count() > 0);
        self.prune_at = 2 * self.files.len() + 64;
    }
}

impl TableFiles {
    pub(crate) fn new(runtime: &Runtime, storage: Arc<dyn Storage>) -> TableFiles {
        // The other half is for the log, the manifest, the outputs of jobs, and the program around
        // the store.
        let open_max = storage.open_objects_max().map_or(u64::MAX, |max| max / 2);
        TableFiles {
            runtime: runtime.clone(),
            storage,
            open_max: AtomicUsize::new(usize::try_from(open_max).unwrap_or(usize::MAX)),
            clock: runtime.mutex(Clock::default()),
            closed_count: AtomicU64::new(0),
            closed: AtomicBool::new(false),
        }
    }

    /// How many descriptors were closed since the open, because too many were open at a time.
    pub(crate) fn closed_count(&self) -> u64 {
        self.closed_count.load(Ordering::Relaxed)
    }

    fn close(&self, file: &TableFile) {
        file.opened.store(None);
        self.closed_count.fetch_add(1, Ordering::Relaxed);
    }

    /// From now on a file that is missing is no damage.
    pub(crate) fn set_closed(&self) {
        self.closed.store(true, Ordering::Release);
    }

    /// Opens a table's file, past the page cache or not.
    pub(crate) fn open(self: &Arc<Self>, name: &str, direct: bool) -> Result<Arc<TableFile>> {
        let file = self.open_now(name, direct)?;
        let opened = Arc::new_cyclic(|own| TableFile {
            files: self.clone(),
            own: own.clone(),
            name: name.to_string(),
            direct,
            len: file.len(),
            opened: ArcSwapOption::from_pointee(Opened {
                file,
                is_mapped: AtomicBool::new(false),
            }),
            opening: self.runtime.mutex(()),
            used: AtomicBool::new(true),
            map: ArcSwapOption::empty(),
        });
        self.entered(&opened.own);
        Ok(opened)
    }

    /// A descriptor for a file; where the process has none left, after closing others.
    fn open_now(&self, name: &str, direct: bool) -> Result<Arc<dyn ReadFile>> {
        loop {
            let opened = if direct {
                self.storage.open_direct(name)
            } else {
                self.storage.open(name)
            };
            match opened {
                Err(error)
                    if error.kind == StorageErrorKind::TooManyOpen
                        && !siltstone_storage::planted::is(
                            siltstone_storage::planted::Bug::HandlesRunOut,
                        )
                        && self.shed() => {}
                Err(error)
                    if error.kind == StorageErrorKind::NotFound
                        && self.closed.load(Ordering::Acquire) =>
                {
                    let detail = "the store was closed, and a later open has deleted this table";
                    let kind = StorageErrorKind::Closed;
                    return Err(StorageError::new(kind, error.op, error.name, detail));
                }
                opened => return opened,
            }
        }
    }

    /// A file has a descriptor now: others lose theirs if there are too many.
    fn entered(&self, file: &Weak<TableFile>) {
        let mut clock = self.clock.lock();
        clock.files.push_back(file.clone());
        if clock.files.len() >= clock.prune_at {
            clock.prune();
        }
        let open_max = self.open_max.load(Ordering::Relaxed);
        // Twice around: the first time those are spared that were used since the last time.
        for _ in 0..2 * clock.files.len() {
            if clock.files.len() <= open_max {
                return;
            }
            let Some(next) = clock.files.pop_front() else {
                return;
            };
            let Some(file) = next.upgrade() else {
                continue;
            };
            if file.used.swap(false, Ordering::Relaxed) {
                clock.files.push_back(next);
            } else {
                self.close(&file);
            }
        }
    }

    /// Closes half of the open files and lets no more than that be open from now on; false if there
    /// is nothing to gain.
    pub(crate) fn shed(&self) -> bool {
        let mut clock = self.clock.lock();
        clock.prune();
        let keep = clock.files.len() / 2;
        if keep < LEAST {
            return false;
        }
        self.open_max.fetch_min(keep, Ordering::Relaxed);
        let excess = clock.files.len() - keep;
        for file in clock
            .files
            .drain(..excess)
            .filter_map(|next| next.upgrade())
        {
            self.close(&file);
        }
        true
    }
}

/// A descriptor.
struct Opened {
    file: Arc<dyn ReadFile>,
    /// The map is this one's.
    is_mapped: AtomicBool,
}

/// A table's file, with a descriptor or without. See the module.
pub(crate) struct TableFile {
    files: Arc<TableFiles>,
    own: Weak<TableFile>,
    name: String,
    direct: bool,
    len: u64,
    opened: ArcSwapOption<Opened>,
    opening: Mutex<()>,
    /// Used since the clock's hand passed.
    used: AtomicBool,
    map: ArcSwapOption<Map>,
}

impl TableFile {
    /// The descriptor, opened again if it was closed.
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
        let file = self.files.open_now(&self.name, self.direct);
        let file = file.map_err(|error| match error.kind {
            // A reader holds it, so nobody may have deleted it.
            StorageErrorKind::NotFound => StorageError::new(
                StorageErrorKind::UnexpectedEof,
                error.op,
                error.name,
                "the file of a table in use is gone",
            ),
            _ => error,
        })?;
        let opened = Arc::new(Opened {
            file,
            is_mapped: AtomicBool::new(false),
        });
        self.opened.store(Some(opened.clone()));
        self.files.entered(&self.own);
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

    /// The advice goes to what is there; nothing is opened for it.
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
    use super::*;
    use siltstone_storage::{Epoch, MemoryStorage, OpKind};

    const EPOCH: Epoch = Epoch(0);

    /// As many files, each of one byte that is its number, and a bound on those that are open.
    fn files_of(count: u8, open_max: usize) -> (MemoryStorage, Vec<Arc<TableFile>>) {
        let runtime = Runtime::threads();
        let memory = MemoryStorage::new(&runtime);
        let mut files = TableFiles::new(&runtime, Arc::new(memory.clone()));
        files.open_max = AtomicUsize::new(open_max);
        let files = Arc::new(files);
        let open = |n: u8| {
            let file = memory.create(EPOCH, &n.to_string()).unwrap();
            file.append(&[&[n]]).unwrap();
            files.open(&n.to_string(), false).unwrap()
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
    fn without_descriptors_half_of_the_files_are_closed() {
        let (_memory, all) = files_of(20, usize::MAX);
        assert_eq!(open_count(&all), 20);
        assert!(all[0].files.shed());
        assert_eq!(open_count(&all), 10);
        for (n, file) in all.iter().enumerate() {
            assert_eq!(usize::from(read(file).unwrap()), n);
        }
        assert!(open_count(&all) <= 10, "and it stays so");
        while all[0].files.shed() {}
        assert!(open_count(&all) > 0);
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
        assert_eq!(kind(&all[0]), StorageErrorKind::UnexpectedEof);
        all[0].files.set_closed();
        assert_eq!(kind(&all[1]), StorageErrorKind::Closed);
        assert_eq!(read(&all[2]).unwrap(), 2);
    }
}
