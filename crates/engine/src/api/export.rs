//! Export: writes what a snapshot sees of a key range as tables that another store can ingest.
//!
//! Invariants: the tables hold one put for each key and no deletes, all with number 0, and name no
//! keyspace (RFC 3, section 5). A failed export deletes what it wrote, as far as the folder lets
//! it.
//!
//! Threading: the caller's task, which holds a snapshot and no lock.

use crate::api::keyspace::Keyspace;
use crate::services::table_builder::{BuiltTable, TableBuilder, TableFolder, TableOptions};
use crate::tree::iter::IterOptions;
use crate::tree::snapshot::Snapshot;
use crate::types::error::Result;

/// Each time that this many entries were copied, the export checks whether the store was closed.
const CHECK_EVERY: u64 = 4096;

impl Keyspace {
    /// Writes everything that the keyspace holds now within the bounds of `range` into `folder`, as
    /// tables `PREFIX-00000.table`, `PREFIX-00001.table` and so on. They are synced, disjoint and
    /// in key order, and any store can [`ingest`](crate::Store::ingest) them. If there are no keys
    /// in the range, no table is written.
    ///
    /// This costs a scan of the range. Meanwhile a snapshot keeps old versions from being dropped.
    ///
    /// # Errors
    /// `InvalidArgument` if `folder` has a file with one of these names already; as
    /// [`Keyspace::cursor`] for reading, and [`TableBuilder::finish`] for writing. The tables
    /// written so far are then deleted.
    pub fn export(
        &self,
        range: impl Into<IterOptions>,
        folder: &TableFolder,
        prefix: &str,
    ) -> Result<Vec<BuiltTable>> {
        let snapshot = self.store().snapshot();
        self.export_at(&snapshot, range, folder, prefix)
    }

    /// Like [`Keyspace::export`], as `snapshot` sees the range.
    ///
    /// # Errors
    /// As [`Keyspace::export`]; `InvalidArgument` for a snapshot of another store.
    pub fn export_at(
        &self,
        snapshot: &Snapshot,
        range: impl Into<IterOptions>,
        folder: &TableFolder,
        prefix: &str,
    ) -> Result<Vec<BuiltTable>> {
        let mut cursor = self.cursor_at(
            snapshot,
            IterOptions {
                values: true,
                ..range.into()
            },
        )?;
        let options = TableOptions::from(&self.inner().load_settings().all);
        let own = folder.wrapped(self.parts().tree.tables().readers().descriptors());
        let mut builder = TableBuilder::new(&own, prefix, options)?;
        let copied = (|| {
            cursor.seek_to_first()?;
            let mut count = 0u64;
            while cursor.valid() {
                builder.put(cursor.key(), cursor.value())?;
                count += 1;
                if count.is_multiple_of(CHECK_EVERY) {
                    self.parts().env.check_open()?;
                }
                cursor.next()?;
            }
            Ok(())
        })();
        match copied {
            Ok(()) => builder.finish(),
            Err(error) => {
                builder.abandon();
                Err(error)
            }
        }
    }
}
