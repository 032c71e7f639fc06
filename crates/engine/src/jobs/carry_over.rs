//! What an outcome that was verified leaves for the tables when they are installed: their filters
//! and indexes, which the verification has read, and blocks in the block cache for those of the
//! inputs that were there. So reads of users find after a compaction elsewhere what they found
//! before, although none of its bytes were on the host
//! ([RFC 9](../../../../docs/rfc/0009-device.md), section 10).
//!
//! Invariants: nothing is carried over of an outcome that was not believed. A failure to carry over
//! is none of the job.
//!
//! Threading: one task, which judges the outcome.

use std::collections::BTreeMap;
use std::sync::Arc;

use siltstone_storage::wrapped::{Call, Wrapped, Wrapper};
use siltstone_storage::{Mutex, ReadFile, ReadPurpose, Result, Runtime, Storage};
use siltstone_table::reader::TableReader;

use crate::env::outage::Outage;
use crate::env::reading_for::file_for;
use crate::env::repeating::repeating_reader;
use crate::env::table_files::TableFile;

use crate::formats::version::TableMeta;
use crate::tree::tables::TableSet;
use crate::tree::tables::early::{Sections, WithSections};
use crate::types::metrics::Counter;

/// What was carried over.
#[derive(Default)]
pub(crate) struct CarriedOver {
    /// Tables that were installed with their filters and indexes open.
    pub(crate) table_count: Counter,
    /// Blocks that were read into the block cache before their table was installed.
    pub(crate) block_count: Counter,
    /// Their bytes in the tables.
    pub(crate) bytes: Counter,
}

/// A table of the outcome that was opened.
struct Opened {
    file: Arc<TableFile>,
    sections: Arc<Sections>,
}

/// The storage of the outputs, whose tables are opened once.
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

    /// The outcome was believed: keeps the readers of its tables, and reads blocks of at most
    /// `most` bytes for those of the inputs that are cached.
    pub(crate) fn keep<'a>(
        &self,
        inputs: impl IntoIterator<Item = &'a Arc<TableMeta>>,
        most: u64,
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
        match self.tables.warm(inputs, &readers, most) {
            Ok(warmed) => {
                counted.block_count.add(warmed.blocks);
                counted.bytes.add(warmed.bytes);
            }
            Err(error) => tracing::debug!(%error, "blocks of a new table were not read early"),
        }
    }
}
