//! Tables that are opened before they are installed, because their job's outcome is verified.
//!
//! Verification opens each table several times, and reads filter, index, range deletes and
//! properties each time; and a reader of the installed table would read them once more.
//! [`Sections`] keeps what was read of them, so that they are read once. [`TableSet::open_early`]
//! gives the file, [`TableSet::keep_early`] the reader, which the table's handle takes when the
//! table is installed.
//!
//! [`TableSet::warm`] reads blocks of such tables into the block cache, where blocks of the inputs
//! are cached that the table replaces.
//!
//! Invariants: a reader is kept under the table's name until the table is installed or discarded.
//! No block of a table that is not a result of the job is read or replaced.
//!
//! Threading: shared. No lock is held over I/O.

use std::collections::BTreeMap;
use std::sync::Arc;

use siltstone_storage::{Access, Map, Mutex, ReadFile, ReadRange, Result, Runtime};
use siltstone_table::error::TableError;
use siltstone_table::exec::CancelToken;
use siltstone_table::footer::Footer;
use siltstone_table::reader::{BlockCache as TableBlockCache, TableReader};

use crate::env::table_files::TableFile;
use crate::formats::version::TableMeta;
use crate::tree::tables::TableSet;

/// The most bytes of one table's sections that are kept.
const KEPT_MAX: usize = 64 << 20;

/// What was read of a table beside its blocks.
pub(crate) struct Sections {
    /// Where the blocks end. `u64::MAX` if that could not be read: then nothing is kept.
    from: u64,
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    /// The bytes of each range that was read, by offset and length.
    ranges: BTreeMap<(u64, usize), Arc<[u8]>>,
    bytes: usize,
    is_over: bool,
}

/// A table's file, whose sections are read once.
pub(crate) struct WithSections {
    file: Arc<dyn ReadFile>,
    sections: Arc<Sections>,
    /// Whether readers may use the file's map.
    maps: bool,
}

impl Sections {
    /// Reads where the blocks end.
    pub(crate) fn of(runtime: &Runtime, file: &dyn ReadFile) -> Arc<Sections> {
        // Whoever verifies the table finds what is wrong with it.
        let from = Footer::read(file).map_or(u64::MAX, |footer| footer.blocks_bytes);
        Arc::new(Sections {
            from,
            kept: runtime.mutex(Kept::default()),
        })
    }

    /// Keeps nothing any more.
    fn forget(&self) {
        let mut kept = self.kept.lock();
        kept.is_over = true;
        kept.bytes = 0;
        kept.ranges.clear();
    }

    fn read(&self, file: &dyn ReadFile, offset: u64, buf: &mut [u8]) -> Result<()> {
        if offset < self.from {
            return file.read_at(offset, buf);
        }
        let key = (offset, buf.len());
        let known = self.kept.lock().ranges.get(&key).cloned();
        if let Some(bytes) = known {
            buf.copy_from_slice(&bytes);
            return Ok(());
        }
        file.read_at(offset, buf)?;
        let mut kept = self.kept.lock();
        if !kept.is_over && kept.bytes + buf.len() <= KEPT_MAX {
            kept.bytes += buf.len();
            kept.ranges.insert(key, Arc::from(&*buf));
        }
        Ok(())
    }
}

impl WithSections {
    /// A file for verification, which does not use maps.
    pub(crate) fn to_verify(file: Arc<dyn ReadFile>, sections: Arc<Sections>) -> WithSections {
        WithSections {
            file,
            sections,
            maps: false,
        }
    }
}

impl ReadFile for WithSections {
    fn name(&self) -> &str {
        self.file.name()
    }
    fn len(&self) -> u64 {
        self.file.len()
    }
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.sections.read(&*self.file, offset, buf)
    }
    fn read_ranges(&self, ranges: &mut [ReadRange<'_>]) -> Result<()> {
        self.file.read_ranges(ranges)
    }
    fn advise(&self, access: Access, offset: u64, len: u64) {
        self.file.advise(access, offset, len);
    }
    fn map(&self) -> Result<Option<Map>> {
        match self.maps {
            true => self.file.map(),
            false => Ok(None),
        }
    }
}

/// What [`TableSet::warm`] read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Warmed {
    pub(crate) blocks: u64,
    pub(crate) bytes: u64,
}

impl TableSet {
    /// Opens the file of a table that a job has made.
    pub(crate) fn open_early(&self, name: &str) -> Result<Arc<TableFile>> {
        self.readers().open_early(name)
    }

    /// Opens a verified table, and keeps its reader until the table is installed or discarded.
    pub(crate) fn keep_early(
        &self,
        file: &Arc<TableFile>,
        sections: &Arc<Sections>,
    ) -> std::result::Result<Arc<TableReader>, TableError> {
        let both = Arc::new(WithSections {
            file: file.clone(),
            sections: sections.clone(),
            maps: true,
        });
        let reader = self.readers().read_early(file, both);
        // The reader has them now.
        sections.forget();
        reader
    }

    /// Gives the readers that were kept for these tables, which are installed now, to their
    /// handles. They count as open tables from here on.
    pub(crate) fn adopt_early(&self, tables: &[Arc<TableMeta>]) {
        for meta in tables {
            if self.readers().is_kept(&meta.name) {
                // Whoever reads the table next reports an error.
                let _ = self.reader(&self.handle(meta));
            }
        }
    }

    /// Forgets the readers that were kept for these tables.
    pub(crate) fn discard_early<'a>(&self, names: impl IntoIterator<Item = &'a str>) {
        names
            .into_iter()
            .for_each(|name| self.readers().forget_kept(name));
    }

    /// Reads blocks of `outputs` into the block cache that have keys of a block of `inputs` which
    /// is cached. Stops when they have more than `most` bytes, or when the job is cancelled. Reads
    /// of users go on finding what they read often.
    pub(crate) fn warm<'a>(
        &self,
        inputs: impl IntoIterator<Item = &'a Arc<TableMeta>>,
        outputs: &[Arc<TableReader>],
        most: u64,
        cancel: &CancelToken,
    ) -> std::result::Result<Warmed, TableError> {
        let cache = self.cache();
        // The newcomers must not drive out most of what is cached.
        let most = most.min(cache.capacity_bytes() / 4);
        let mut warmed = Warmed::default();
        if most == 0 || cache.held_bytes() == 0 {
            return Ok(warmed);
        }
        for meta in inputs {
            let handle = self.held_handle(meta.id);
            let reader = handle.map(|handle| handle.reader.load_full());
            let Some(input) = reader.flatten() else {
                continue;
            };
            let index = input.index();
            for block in 0..index.len() {
                if !cache.has(input.id(), block as u32) {
                    continue;
                }
                // All its keys lie between the separators.
                let first = block.checked_sub(1).map(|before| index.separator(before));
                let (last_key, last_trailer) = index.separator(block);
                for output in outputs {
                    let smallest = &output.properties().smallest_key;
                    if smallest.as_ref().is_none_or(|key| *key > last_key) {
                        continue;
                    }
                    let index = output.index();
                    let from = first
                        .as_ref()
                        .map_or(0, |(key, trailer)| index.find(key, *trailer));
                    let to = index.find(&last_key, last_trailer);
                    for block in from..(to + 1).min(index.len()) {
                        let bytes = index.place(block).stored_bytes();
                        if warmed.bytes + bytes > most || cancel.is_cancelled() {
                            return Ok(warmed);
                        }
                        if cache.has(output.id(), block as u32) {
                            continue;
                        }
                        let read = Arc::new(output.read_block(block)?);
                        cache.insert(output.id(), block as u32, &read);
                        warmed.blocks += 1;
                        warmed.bytes += bytes;
                    }
                }
            }
        }
        Ok(warmed)
    }
}
