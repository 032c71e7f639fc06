//! Carries over to new tables what the verification of their outcome has read: their filters and
//! indexes. It also reads blocks of the new tables into the block cache in place of the blocks of
//! the inputs that were cached. So after a compaction on another side, reads of users find as much
//! in memory as before, although none of the new tables' bytes were on the host ([RFC
//! 9](../../../../docs/rfc/0009-device.md), section 10).
//!
//! Invariants: nothing is carried over from an outcome that was not believed. A failure to carry
//! over is not a failure of the job.
//!
//! Threading: one task, the one that judges the outcome.

use std::collections::BTreeMap;
use std::sync::Arc;

use siltstone_storage::wrapped::{Call, Wrapped, Wrapper};
use siltstone_storage::{Mutex, ReadFile, ReadPurpose, Result, Runtime, Storage};
use siltstone_table::exec::CancelToken;
use siltstone_table::reader::TableReader;

use crate::env::outage::Outage;
use crate::env::reading_for::file_for;
use crate::env::repeating::repeating_reader;
use crate::env::table_files::TableFile;

use crate::formats::version::TableMeta;
use crate::tree::tables::TableSet;
use crate::tree::tables::early::{Sections, WithSections};
use crate::types::metrics::Counter;

/// Counts of what was carried over.
#[derive(Default)]
pub(crate) struct CarriedOver {
    /// Tables that were installed with their filters and indexes open.
    pub(crate) table_count: Counter,
    /// Blocks that were read into the block cache before their table was installed.
    pub(crate) block_count: Counter,
    /// The stored bytes of these blocks.
    pub(crate) bytes: Counter,
}

/// A table of the outcome that the verification has opened.
struct Opened {
    file: Arc<TableFile>,
    sections: Arc<Sections>,
}

/// The storage of the outputs. It opens each table of the outcome only once.
struct OpenedOnce {
    inner: Arc<dyn Storage>,
    runtime: Runtime,
    tables: Arc<TableSet>,
    outage: Arc<Outage>,
    opened: Arc<Mutex<BTreeMap<String, Opened>>>,
}

impl OpenedOnce {
    fn open(&self, name: &str) -> Result<Arc<dyn ReadFile>> {
        let known = |all: &BTreeMap<String, Opened>| {
            let opened = all.get(name)?;
            Some((opened.file.clone(), opened.sections.clone()))
        };
        let known = known(&self.opened.lock());
        let (file, sections) = match known {
            Some(known) => known,
            None => {
                let file = self.outage_waits(|| self.tables.open_early(name))?;
                let reader = repeating_reader(file.clone(), &self.outage);
                let reader = file_for(ReadPurpose::Verify, reader);
                let sections = Sections::of(&self.runtime, &*reader);
                let opened = Opened {
                    file: file.clone(),
                    sections: sections.clone(),
                };
                self.opened.lock().insert(name.to_string(), opened);
                (file, sections)
            }
        };
        let file = file_for(ReadPurpose::Verify, repeating_reader(file, &self.outage));
        Ok(Arc::new(WithSections::to_verify(file, sections)))
    }

    fn outage_waits<T>(&self, call: impl FnMut() -> Result<T>) -> Result<T> {
        crate::env::repeating::repeat_read(&self.outage, call)
    }
}

impl Wrapper for OpenedOnce {
    fn inner(&self) -> &dyn Storage {
        &*self.inner
    }

    fn make<T>(&self, _: Call<'_>, mut run: impl FnMut() -> Result<T>) -> Result<T> {
        run()
    }

    fn finished(&self, name: &str) -> Option<Result<Arc<dyn ReadFile>>> {
        Some(self.open(name))
    }
}

/// See the module.
pub(crate) struct CarryOver {
    storage: Arc<dyn Storage>,
    tables: Arc<TableSet>,
    opened: Arc<Mutex<BTreeMap<String, Opened>>>,
}

impl CarryOver {
    pub(crate) fn new(
        runtime: &Runtime,
        tables: &Arc<TableSet>,
        outputs: &Arc<dyn Storage>,
        outage: &Arc<Outage>,
    ) -> CarryOver {
        let opened = Arc::new(runtime.mutex(BTreeMap::new()));
        let once = OpenedOnce {
            inner: outputs.clone(),
            runtime: runtime.clone(),
            tables: tables.clone(),
            outage: outage.clone(),
            opened: opened.clone(),
        };
        CarryOver {
            storage: Arc::new(Wrapped(once)),
            tables: tables.clone(),
            opened,
        }
    }

    /// The storage of the outputs, for the verification.
    pub(crate) fn storage(&self) -> &dyn Storage {
        &*self.storage
    }

    /// Called when the outcome was believed. Keeps the readers of its tables, and reads at most
    /// `most` bytes of blocks in place of the blocks of the inputs that are cached. Stops reading
    /// when the job is cancelled.
    pub(crate) fn keep<'a>(
        &self,
        inputs: impl IntoIterator<Item = &'a Arc<TableMeta>>,
        most: u64,
        cancel: &CancelToken,
        counted: &CarriedOver,
    ) {
        let opened = std::mem::take(&mut *self.opened.lock());
        let mut readers: Vec<Arc<TableReader>> = Vec::new();
        for (name, opened) in opened {
            match self.tables.keep_early(&opened.file, &opened.sections) {
                Ok(reader) => readers.push(reader),
                Err(error) => tracing::debug!(name, %error, "a table was not opened early"),
            }
        }
        counted.table_count.add(readers.len() as u64);
        match self.tables.warm(inputs, &readers, most, cancel) {
            Ok(warmed) => {
                counted.block_count.add(warmed.blocks);
                counted.bytes.add(warmed.bytes);
            }
            Err(error) => tracing::debug!(%error, "blocks of a new table were not read early"),
        }
    }
}
