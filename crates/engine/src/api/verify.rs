//! Verification of an open store: every table of all keyspaces, block by block.
//!
//! The views of all keyspaces are pinned. Then every table that they name is read from its file and
//! compared with its checksums, the rules of the format, and what the manifest says about it.
//! [`crate::tools::check`] does the same with the tables of a closed store.
//!
//! Invariants: nothing is changed; a damaged table does not prevent the others from being read; no
//! lock is held, so jobs and writers go on.
//!
//! Threading: the caller's task. Tables that become obsolete meanwhile stay on disk until their
//! keyspace is done.

use crate::api::store::Store;
use crate::catalog::Catalog;
use crate::tools::check::{
    CheckProgress, CheckReport, KeyspaceCheck, TableWalk, check_open_table, unreadable_table,
};
use crate::types::error::{Error, ErrorKind, Result};

/// The result of verifying an open store. Damage is in `problems`; the other fields say how much
/// was read.
#[derive(Clone, Debug, Default)]
pub struct VerifyReport {
    /// What was found in each keyspace, sorted by name.
    pub keyspaces: Vec<KeyspaceCheck>,
    /// Tables that were read.
    pub table_count: u64,
    /// Bytes of the tables' files.
    pub table_bytes: u64,
    /// Sound blocks.
    pub block_count: u64,
    /// Entries in the sound blocks.
    pub entry_count: u64,
    /// Range-delete fragments.
    pub range_delete_count: u64,
    /// All damage that was found.
    pub problems: Vec<Error>,
}

impl VerifyReport {
    /// Whether nothing is wrong.
    pub fn is_sound(&self) -> bool {
        self.problems.is_empty()
    }
}

fn verify(catalog: &Catalog, progress: &mut dyn FnMut(CheckProgress)) -> Result<VerifyReport> {
    catalog.env().check_open()?;
    let views: Vec<_> = catalog
        .keyspaces()
        .by_id
        .values()
        .map(|k| (k.name.clone(), k.pin()))
        .collect();
    let total_bytes = views
        .iter()
        .flat_map(|(_, view)| view.level_views())
        .map(|(_, level)| level.level.file_bytes())
        .sum();
    let mut report = CheckReport::default();
    let mut walk = TableWalk::new(&mut report, progress, total_bytes);
    for (name, view) in views {
        let handles = view.level_views().flat_map(|(_, level)| &level.handles);
        let tables = handles.map(|handle| &*handle.meta);
        walk.keyspace(&name, tables, |meta, report| {
            catalog.env().check_open()?;
            let storage = catalog.env().storages_at_once().tables_at(meta.location);
            let checked = check_open_table(&*storage, meta, report);
            match checked.map_err(|error| unreadable_table(meta, error)) {
                Err(error) if error.kind() == ErrorKind::Unreachable => return Err(error),
                checked => report.problems.extend(checked.err()),
            }
            Ok(())
        })?;
    }
    walk.finish();
    Ok(VerifyReport {
        keyspaces: report.keyspaces,
        table_count: report.table_count,
        table_bytes: report.table_bytes,
        block_count: report.block_count,
        entry_count: report.entry_count,
        range_delete_count: report.range_delete_count,
        problems: report.problems,
    })
}

impl Store {
    /// Reads every table of all keyspaces completely and verifies everything that can be verified,
    /// while the store stays in use. `progress` is called after each table. Memtables and the log
    /// are not verified; [`check`](crate::check) of a closed store reads the log too.
    ///
    /// This costs one read of every table. It goes past the block cache, but the kernel may answer
    /// from its page cache.
    ///
    /// ```
    /// # let folder = tempfile::tempdir().unwrap();
    /// let store = siltstone::Store::open(folder.path(), siltstone::Options::default())?;
    /// store.default_keyspace()?.put(b"k", b"v")?;
    /// store.flush()?;
    /// let report = store.verify(&mut |progress| {
    ///     println!("{} of {} bytes", progress.done_bytes, progress.total_bytes);
    /// })?;
    /// assert!(report.is_sound(), "{:?}", report.problems);
    /// assert_eq!(report.entry_count, 1);
    /// # siltstone::Result::Ok(())
    /// ```
    ///
    /// # Errors
    /// `Closed` if the store is closed meanwhile; `Unreachable`. Damage is not an error of the
    /// call: it is in the report.
    pub fn verify(&self, progress: &mut dyn FnMut(CheckProgress)) -> Result<VerifyReport> {
        verify(&self.parts().catalog, progress)
    }
}
