//! Verification of an open store: every table of all keyspaces, block by block, while it goes on.
//!
//! What it is: the views of all keyspaces are pinned, then every table that they name is read from
//! its file and held against its checksums, the rules of the format, and what the manifest says of
//! it: what [`crate::tools::check`] does with the tables of a store that nobody has open.
//!
//! Invariants: nothing is changed; a damaged table does not keep the others from being read; no
//! lock is held, jobs and writers go on.
//!
//! Threading: the caller's task. Tables that became obsolete meanwhile stay on disk until it is
//! done with their keyspace.

use crate::api::store::Store;
use crate::catalog::Catalog;
use crate::tools::check::{
    CheckProgress, CheckReport, KeyspaceCheck, TableWalk, check_open_table, unreadable_table,
};
use crate::types::error::{Error, Result};

/// What was found in an open store. Damage is in `problems`; the rest says how much was looked at.
#[derive(Clone, Debug, Default)]
pub struct VerifyReport {
    /// By name.
    pub keyspaces: Vec<KeyspaceCheck>,
    /// Tables that were looked at.
    pub table_count: u64,
    /// Bytes of their files.
    pub table_bytes: u64,
    /// Sound blocks.
    pub block_count: u64,
    /// Sound entries in them.
    pub entry_count: u64,
    /// Range-delete fragments.
    pub range_delete_count: u64,
    /// Everything that is wrong.
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
            let checked = check_open_table(&*catalog.env().storages().tables, meta, report);
            let wrong = checked.map_err(|error| unreadable_table(meta, error)).err();
            report.problems.extend(wrong);
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
    /// Reads every table of all keyspaces whole and verifies all that can be verified of it, while the store goes on. `progress` is told after every
    /// table. What memtables and the log hold is not looked at: `check` of a closed store reads the log too.
    ///
    /// Costs one read of every table, past the block cache; the kernel may answer from its page cache.
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
    /// `Closed` when the store is closed meanwhile. Damage is no error of the call, it is in the report.
    pub fn verify(&self, progress: &mut dyn FnMut(CheckProgress)) -> Result<VerifyReport> {
        verify(&self.parts().catalog, progress)
    }
}
