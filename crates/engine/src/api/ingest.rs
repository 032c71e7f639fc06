//! The call that ingests tables made outside the store. The work is done in `services/ingest`.

use std::sync::Arc;

use crate::api::keyspace::Keyspace;
use crate::api::store::Store;
use crate::services::ingest::{IngestMode, IngestReport, ingest};
use crate::services::table_builder::TableFile;
use crate::types::error::{Error, Result};

impl Store {
    /// Adds tables that were built outside ([`crate::TableBuilder`], [`Keyspace::export`]) to
    /// keyspaces, atomically: after any crash, either all of them are there or none. Their entries
    /// replace older ones of the same keys, and become visible together, over all keyspaces. If
    /// files for one keyspace overlap, later files win. A keyspace may be named more than once.
    ///
    /// When the call returns, the ingest is durable. No data goes through the log or the memtables.
    /// The call costs an import of each file (a link or a copy, see [`IngestMode`]), one read of
    /// each table to verify every block, and a few syncs. Files that overlap each other become
    /// several runs of level 0.
    ///
    /// # Errors
    /// `Corruption` for a table that is damaged; `InvalidArgument` for a table that no builder made
    /// (it has sequence numbers, several versions of a key or range deletes, or belongs to a
    /// store), or for a keyspace of another store; `Unsupported` for a table of another format;
    /// `NotFound` if there is no such file; as [`Store::write`] otherwise, with `NoSpace` also if
    /// there is no room for a copy. Nothing has changed then: the caller's files are still there,
    /// and what was imported is deleted. After `Poisoned` or I/O, the ingest may or may not be
    /// there when the store is opened again.
    pub fn ingest(
        &self,
        files: &[(&Keyspace, Vec<TableFile>)],
        how: IngestMode,
    ) -> Result<IngestReport> {
        for (keyspace, _) in files {
            if !Arc::ptr_eq(&keyspace.store().parts().env, &self.parts().env) {
                return Err(Error::invalid_argument(format!(
                    "keyspace `{}` is of another store",
                    keyspace.name()
                ))
                .advice("open it from this store"));
            }
        }
        let files: Vec<_> = files
            .iter()
            .map(|(keyspace, files)| (keyspace.inner(), &files[..]))
            .collect();
        ingest(&self.parts().jobs, &files, how)
    }
}
