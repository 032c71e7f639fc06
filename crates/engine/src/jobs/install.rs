//! Installing what a piece of work made: the edit of the manifest, and the new view.
//!
//! Invariants: F2: outputs are synced before the edit is made, and the edit is durable before the
//! view shows it. F3: the outcome is verified before the manifest role is taken, and while the role
//! is held, the keyspace is checked once more, because it may have been dropped. V2: a flushed run
//! takes the slot of its memtable, whatever its location is, and flushes of one keyspace may be
//! installed in any order. Inputs are reserved, so they are current. Views change in the order of
//! edits, because both are changed under the role.
//!
//! Threading: any task that runs work. No lock that a read or a write takes is held during I/O.

use std::sync::Arc;

use siltstone_storage::planted;
use siltstone_table::job::outcome::OutputTable;

use crate::catalog::ManifestRole;
use crate::catalog::edits::refresh_view;
use crate::formats::version::meta::metas_of;
use crate::formats::version::{Edit, KeyspaceEdit, Run, RunSlot, SeqRange, TableMeta};
use crate::jobs::Jobs;
use crate::jobs::work::{Compaction, What, Work};
use crate::tree::pick::ChoiceKind;
use crate::tree::view::{KeyspaceCore, KeyspaceView, MemSource};
use crate::types::error::Result;

/// Tables with their metadata in the manifest, and the view that shows them. As long as the view is
/// held, their files are not deleted.
type Installed = (Vec<Arc<TableMeta>>, Arc<KeyspaceView>);

impl Jobs {
    /// Installs the tables that a piece of work made, and returns their metadata in the manifest.
    ///
    /// # Errors
    /// Those of the edit; that the keyspace is gone; that the work was cancelled. In these cases
    /// the tables are deleted, unless the edit is in doubt.
    pub(crate) fn install(
        &self,
        work: &Work,
        tables: Vec<OutputTable>,
    ) -> Result<Vec<Arc<TableMeta>>> {
        let outputs = tables.clone();
        let installed = match &work.what {
            What::Flush(source) => self.install_flush(work, source, tables),
            What::Compaction(compaction) => self.install_compaction(work, compaction, tables),
        };
        let early = self.tree.tables();
        let (tables, view) = installed.inspect_err(|_| {
            early.discard_early(outputs.iter().map(|table| &*table.name));
            self.discard_unless_in_doubt(work.placed.location, &outputs);
        })?;
        early.adopt_early(&tables);
        self.report_tables(work, &tables);
        // Other work may have replaced the tables already. Their files stay until here, so that no
        // event says that a table was deleted before one says that it was created.
        drop(view);
        Ok(tables)
    }

    /// Deletes outputs that were not installed, unless the edit that names them is in doubt: an
    /// edit whose sync failed has poisoned the store, but the next open may find it, and then needs
    /// its tables.
    pub(crate) fn discard_unless_in_doubt(&self, location: u32, outputs: &[OutputTable]) {
        if !self.env.health().is_poisoned() || planted!(DiscardInDoubt) {
            self.runner.discard(location, outputs);
        }
    }

    /// The run that a flush made at a location, with new ids.
    pub(crate) fn run_of_flush(
        &self,
        location: u32,
        tables: Vec<OutputTable>,
        seqs: SeqRange,
    ) -> Result<Run> {
        let mut next_id = self.catalog.take_table_ids(tables.len() as u64 + 1);
        Run::of_flush(location, tables, seqs, &mut next_id)
    }

    fn install_flush(
        &self,
        work: &Work,
        source: &MemSource,
        tables: Vec<OutputTable>,
    ) -> Result<Installed> {
        let catalog = &self.catalog;
        let mut role = catalog.role();
        work.keyspace.check()?;
        let seqs = source.seqs();
        let location = match work.placed.location {
            location if !planted!(RedirectedRunIsMisplaced) => location,
            _ => 0,
        };
        let run = self.run_of_flush(location, tables, seqs)?;
        // A source whose numbers are above those of an older unsettled one is installed above it.
        // That is counted, because tests must reach it.
        let out_of_order = has_older_unsettled(&work.keyspace, seqs);
        let metas = run.tables.tables().to_vec();
        let edit = Edit {
            log_start: catalog.log_start_edit(role.state(), &[source.id]),
            keyspaces: vec![KeyspaceEdit::adding(work.keyspace.id, &[run])],
            ..Edit::default()
        };
        let view = self.commit_and_show(&mut role, &work.keyspace, edit, &[source.id])?;
        if out_of_order {
            self.env.metrics().out_of_order_install_count.add(1);
        }
        Ok((metas, view))
    }

    /// Replaces the inputs of a compaction by its outputs. Without a job the outputs are the inputs
    /// (a move), or nothing.
    fn install_compaction(
        &self,
        work: &Work,
        compaction: &Compaction,
        tables: Vec<OutputTable>,
    ) -> Result<Installed> {
        let catalog = &self.catalog;
        let choice = &compaction.choice;
        let metas: Vec<Arc<TableMeta>> = match choice.kind {
            ChoiceKind::TrivialMove => choice.tables().cloned().collect(),
            ChoiceKind::Drop => Vec::new(),
            _ => {
                let ids = tables.len() as u64 + 1;
                let mut next_id = catalog.take_table_ids(ids);
                metas_of(tables, &mut next_id)
            }
        };
        let mut role = catalog.role();
        work.keyspace.check()?;
        if work.cancel.is_cancelled() {
            return Err(crate::jobs::ended::cancelled());
        }
        let mut change = KeyspaceEdit::new(work.keyspace.id);
        change.remove = choice.removals();
        match choice.output_seqs {
            Some(seqs) => {
                let id = catalog.take_table_ids(1);
                change.add_run(RunSlot { id, seqs }, &metas);
            }
            None => change.add_to_level(choice.to, &metas),
        }
        let edit = Edit {
            keyspaces: vec![change],
            ..Edit::default()
        };
        let view = self.commit_and_show(&mut role, &work.keyspace, edit, &[])?;
        Ok((metas, view))
    }

    /// Makes the edit durable, and replaces the view by one without the memtables in `done`.
    /// Returns the new view.
    fn commit_and_show(
        &self,
        role: &mut ManifestRole,
        keyspace: &KeyspaceCore,
        edit: Edit,
        done: &[u64],
    ) -> Result<Arc<KeyspaceView>> {
        self.catalog.commit_edit(role, edit)?;
        refresh_view(&self.tree, role, keyspace, done);
        Ok(keyspace.pin())
    }
}

/// Whether a source that is not installed is older than these numbers.
fn has_older_unsettled(keyspace: &KeyspaceCore, seqs: SeqRange) -> bool {
    let view = keyspace.view();
    view.unsettled().iter().any(|s| s.seqs().hi <= seqs.lo)
}
