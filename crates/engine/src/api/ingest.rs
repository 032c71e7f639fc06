//! Tables from outside, taken into keyspaces: the call. What it does is in `services/ingest`.

use std::sync::Arc;

use crate::api::keyspace::Keyspace;
use crate::api::store::Store;
use crate::services::ingest::{IngestMode, IngestReport, ingest};
use crate::services::table_builder::TableFile;
use crate::types::error::{Error, Result};

impl Store {
    /// Takes tables that were built outside ([`crate::TableBuilder`], [`Keyspace::export`]) into
    /// keyspaces: all of them at once or, after any crash, none. Their entries lie above everything
    /// that the keyspaces hold when the call commits, and are seen together, over all keyspaces.
    /// Where files of one keyspace overlap, later ones win; a keyspace may be named more than once.
    ///
    /// When the call returns, the ingest is durable. It writes no data through the log or the
    /// memtables: it costs the import (a link, or a copy), one read of every table to verify it
    /// block by block, and a few syncs. Overlapping files make a run of level 0 each.
    ///
    /// # Errors
    /// `Corruption` for a table that is damaged, `InvalidArgument` for one that no builder made (it
    /// has sequence numbers, several versions of a key, range deletes, or belongs to a store) or
    /// that is of a keyspace of another store, `Unsupported` for one of another format, `NotFound`;
    /// as a write otherwise (`NoSpace`: also where a copy finds no room). Then nothing has changed,
    /// the caller's files are there, and what was imported is deleted. After `Poisoned` or I/O the
    /// ingest may or may not be there when the store is opened again.
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
