//! Hooks for tests of the engine: what the public interface does not offer (ingest of tables that stand in the store's folder, holding a flush back).
//! No stability is promised.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use siltstone_storage::Epoch;

use crate::api::batch::Batch;
use crate::api::keyspace::Keyspace;
use crate::commit::write::Lead;
use crate::formats::batch::BatchBody;
use crate::formats::version::{KeyspaceVersion, SeqRange, StoreState, TableMeta};
use crate::services::parts::Parts;
use crate::tree::view::Source;
use crate::types::error::Result;

/// See the module.
pub struct TestHooks {
    parts: Parts,
}

impl TestHooks {
    pub(crate) fn new(parts: Parts) -> TestHooks {
        TestHooks { parts }
    }

    /// Seals the active memtable and keeps it from being flushed, as a redirected run would stay out of the levels.
    pub fn seal_and_hold(&self, keyspace: &Keyspace) -> Result<bool> {
        let Ok(keyspace) = self.parts.catalog.keyspace_by_id(keyspace.id()) else {
            return Ok(false);
        };
        let mut lead = self.parts.commit.lead();
        let source = keyspace.view().active().clone();
        source.held.store(true, Ordering::Release);
        let rotated = lead.rotate(&self.parts.commit, &keyspace);
        if !matches!(rotated, Ok(true)) {
            // It goes on as the active memtable: nobody would let it go.
            source.held.store(false, Ordering::Release);
        }
        lead.finish();
        rotated
    }

    /// A batch of this store with keyspaces by number, which may be dropped or never have existed.
    pub fn batch_of(&self, body: BatchBody) -> Batch {
        Batch::of_session(self.parts.env.session(), body)
    }

    /// Lets all held memtables of the keyspace be flushed.
    pub fn release(&self, keyspace: &Keyspace) {
        if let Ok(keyspace) = self.parts.catalog.keyspace_by_id(keyspace.id()) {
            for source in keyspace.view().sealed() {
                source.held.store(false, Ordering::Release);
            }
        }
        self.parts.env.work().notify();
    }

    /// Stops or allows automatic compaction.
    pub fn pause_compaction(&self, paused: bool) {
        self.parts.jobs.set_paused(paused);
    }

    /// Refuses memory for memtables from this size on, in bytes.
    pub fn refuse_arenas_from(&self, bytes: usize) {
        self.parts.tree.arenas().refuse_from(bytes);
    }

    /// Ingests finished, synced tables of the store's table storage.
    pub fn ingest(&self, keyspace: &Keyspace, tables: Vec<TableMeta>) -> Result<u64> {
        let keyspace = self.parts.catalog.keyspace_by_id(keyspace.id())?;
        let part = crate::services::ingest::Part {
            keyspace,
            runs: vec![tables.into_iter().map(Arc::new).collect()],
        };
        crate::services::ingest::commit(&self.parts.commit, &[part]).map_err(|failed| failed.error)
    }

    /// The same, over several keyspaces, with several runs, oldest first.
    pub fn ingest_all(&self, parts: Vec<(&Keyspace, Vec<Vec<TableMeta>>)>) -> Result<u64> {
        let mut all = Vec::new();
        for (keyspace, runs) in parts {
            let runs = runs.into_iter();
            all.push(crate::services::ingest::Part {
                keyspace: self.parts.catalog.keyspace_by_id(keyspace.id())?,
                runs: runs
                    .map(|tables| tables.into_iter().map(Arc::new).collect())
                    .collect(),
            });
        }
        crate::services::ingest::commit(&self.parts.commit, &all).map_err(|failed| failed.error)
    }

    /// Makes the names of tables durable, as an ingest's caller must: through the folder's one owner of syncs (`guard`), or the report of a
    /// lost name would go to a caller who tells nobody.
    pub fn sync_table_names(&self) -> Result<()> {
        Ok(self
            .parts
            .env
            .storages()
            .tables
            .sync_dir(self.parts.env.epoch())?)
    }

    /// A table or run id that nobody has.
    pub fn new_table_id(&self) -> u64 {
        self.parts.catalog.take_table_ids(1)
    }

    /// The number of this open, with which names of its tables begin.
    pub fn open_number(&self) -> u64 {
        self.parts.jobs.runner().open_number
    }

    /// The lease's epoch.
    pub fn epoch(&self) -> Epoch {
        self.parts.env.epoch()
    }

    /// Has the manifest written anew from this length on, in bytes.
    pub fn roll_manifest_from(&self, bytes: u64) {
        self.parts.catalog.role().manifest.set_roll_min_bytes(bytes);
    }

    /// How often the manifest was written anew since the open, because it had grown.
    pub fn manifest_roll_count(&self) -> u64 {
        self.parts.catalog.role().manifest.roll_count()
    }

    /// What the manifest says of the whole store.
    pub fn state(&self) -> Arc<StoreState> {
        self.parts.catalog.role().manifest.state().clone()
    }

    /// What the manifest says of a keyspace.
    pub fn version(&self, keyspace: &Keyspace) -> Option<Arc<KeyspaceVersion>> {
        self.state()
            .keyspace(keyspace.id())
            .map(|k| k.version.clone())
    }

    /// Edits of creates, drops and ingests that wait for room.
    pub fn pending_edit_count(&self) -> usize {
        self.parts.catalog.role().pending.len()
    }

    /// Ingested runs that the keyspace's view shows and the manifest does not know, as far as the view knows.
    pub fn unsettled_run_count(&self, keyspace: &Keyspace) -> usize {
        let Ok(keyspace) = self.parts.catalog.keyspace_by_id(keyspace.id()) else {
            return 0;
        };
        let unsettled = keyspace.view().unsettled();
        let runs = unsettled.iter().filter(|s| matches!(s, Source::Run(_)));
        runs.count()
    }

    /// Numbers, as `(above, up to)`, that no source of the keyspace has between two of those that its view shows: sources on both sides of such a hole
    /// are no neighbours, and never merge.
    pub fn slot_holes(&self, keyspace: &Keyspace) -> Vec<(u64, u64)> {
        let Ok(keyspace) = self.parts.catalog.keyspace_by_id(keyspace.id()) else {
            return Vec::new();
        };
        let view = keyspace.pin();
        let covered = view.version.covered();
        let between = view.sources.windows(2).map(|pair| {
            let (newer, older) = (pair[0].seqs(), pair[1].seqs());
            (older.hi, newer.lo)
        });
        between
            .filter(|(above, to)| above < to && !covered.includes(SeqRange::new(*above, *to)))
            .collect()
    }

    /// What keeps the log from some position on without having anything in it: holds of creates,
    /// drops and ingests, and memtables without entries.
    pub fn needless_log_holds(&self) -> Vec<String> {
        let holds = self.parts.catalog.log_holds();
        let mut all: Vec<String> = holds
            .iter()
            .map(|(id, position)| format!("hold {id} keeps the log from {position} on"))
            .collect();
        for keyspace in self.parts.catalog.keyspaces().by_id.values() {
            let view = keyspace.pin();
            let empty = view.sources.iter().filter_map(|s| match s {
                Source::Memtable(m) if m.mem.is_empty() => m.first_position(),
                _ => None,
            });
            all.extend(empty.map(|position| {
                let name = &keyspace.name;
                format!("an empty memtable of `{name}` keeps the log from {position} on")
            }));
        }
        all
    }

    /// The segment from which on something needs the log, and the one in which it ends.
    pub fn log_need(&self) -> (u32, u32) {
        let needed = self.parts.catalog.log_start_without(&[]).segment;
        (needed, self.parts.wal.log().end().segment)
    }

    /// Raises the ceiling of sequence numbers: an edit that gives no space back.
    pub fn raise_ceiling(&self) -> Result<()> {
        let ceiling = self.parts.catalog.ceiling();
        self.parts.catalog.raise_ceiling(ceiling)
    }

    /// Drops a keyspace as when the log has no room for the drop's record: by an edit alone.
    pub fn drop_without_record(&self, keyspace: &Keyspace) -> Result<()> {
        let keyspace = self.parts.catalog.keyspace_by_id(keyspace.id())?;
        let _ddl = self.parts.catalog.changes();
        let lead = self.parts.commit.lead();
        let dropped = self.parts.catalog.drop_by_edit(&keyspace);
        lead.finish();
        dropped
    }

    /// Takes the lead and keeps it: writers queue up until what is returned is dropped.
    pub fn hold_writes(&self) -> HeldWrites<'_> {
        HeldWrites(Some(self.parts.commit.lead()))
    }

    /// Writers in the queue, the leader not counted.
    pub fn queued_writer_count(&self) -> usize {
        self.parts.commit.waiting_count()
    }

    /// Splits jobs into subjobs from this many input bytes on, from now on.
    pub fn set_subjob_min_bytes(&self, bytes: u64) {
        let min_bytes = &self.parts.jobs.runner().subjob_min_bytes;
        min_bytes.store(bytes, std::sync::atomic::Ordering::Relaxed);
    }

    /// Lets cursors leave a gap behind after this many hidden entries.
    pub fn set_gap_min(&self, hidden: u64) {
        self.parts.tree.set_gap_min(hidden.max(1));
    }

    /// The number of gaps of the keyspace.
    pub fn gap_count(&self, keyspace: &Keyspace) -> usize {
        let keyspace = self.parts.catalog.keyspace_by_id(keyspace.id());
        keyspace.map_or(0, |keyspace| keyspace.gaps.count())
    }

    /// Closes the readers of all tables, as right after an open. Cursors keep theirs.
    pub fn close_tables(&self) {
        self.parts.tree.tables().close_all();
    }

    /// Deletes what no view holds, now.
    pub fn delete_obsolete(&self) {
        crate::catalog::obsolete::delete_obsolete(&self.parts.catalog);
    }
}

/// The lead, held by a test.
pub struct HeldWrites<'a>(Option<Lead<'a>>);

impl Drop for HeldWrites<'_> {
    fn drop(&mut self) {
        if let Some(lead) = self.0.take() {
            lead.finish();
        }
    }
}
