//! Hooks for tests of the engine: calls that the public interface does not offer, such as an ingest
//! of tables that are already in the store's folder, or holding back a flush. They may change at
//! any time.

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

    /// Seals the active memtable and keeps it from being flushed.
    pub fn seal_and_hold(&self, keyspace: &Keyspace) -> Result<bool> {
        let Ok(keyspace) = self.parts.catalog.keyspace_by_id(keyspace.id()) else {
            return Ok(false);
        };
        let mut lead = self.parts.commit.lead();
        let source = keyspace.view().active().clone();
        source.held.store(true, Ordering::Release);
        let rotated = lead.rotate(&self.parts.commit, &keyspace);
        if !matches!(rotated, Ok(true)) {
            // It is still the active memtable, which nobody would release.
            source.held.store(false, Ordering::Release);
        }
        lead.finish();
        rotated
    }

    /// A batch of this store. Its keyspaces are given by number, and need not exist.
    pub fn batch_of(&self, body: BatchBody) -> Batch {
        Batch::of_session(self.parts.env.session(), body)
    }

    /// Allows flushes of the memtables that [`TestHooks::seal_and_hold`] holds back.
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

    /// Makes all further flushes on the host write to this location, which the store must have, or
    /// lets the store choose again.
    pub fn force_location(&self, location: Option<u32>) {
        self.parts.jobs.force_location(location);
    }

    /// How often background tasks were woken so far, to look for work.
    pub fn woken_count(&self) -> u64 {
        self.parts.env.work().count()
    }

    /// Refuses memory for memtables of this many bytes or more.
    pub fn refuse_arenas_from(&self, bytes: usize) {
        self.parts.tree.arenas().refuse_from(bytes);
    }

    /// Ingests finished, synced tables that are in the store's table storage.
    pub fn ingest(&self, keyspace: &Keyspace, tables: Vec<TableMeta>) -> Result<u64> {
        let keyspace = self.parts.catalog.keyspace_by_id(keyspace.id())?;
        let part = crate::services::ingest::Part {
            keyspace,
            runs: vec![tables.into_iter().map(Arc::new).collect()],
        };
        crate::services::ingest::commit(&self.parts.commit, &[part]).map_err(|failed| failed.error)
    }

    /// Like [`TestHooks::ingest`], over several keyspaces, with several runs, oldest first.
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

    /// Makes the names of tables durable, as the caller of an ingest must. The sync goes through
    /// the folder's guard, because the kernel reports a lost name only once.
    pub fn sync_table_names(&self) -> Result<()> {
        Ok(self
            .parts
            .env
            .storages()
            .tables
            .sync_dir(self.parts.env.epoch())?)
    }

    /// An unused id for a table or a run.
    pub fn new_table_id(&self) -> u64 {
        self.parts.catalog.take_table_ids(1)
    }

    /// The number of this open, with which the names of its tables begin.
    pub fn open_number(&self) -> u64 {
        self.parts.jobs.runner().open_number
    }

    /// The lease's epoch.
    pub fn epoch(&self) -> Epoch {
        self.parts.env.epoch()
    }

    /// Sets the length in bytes from which on the manifest is written anew.
    pub fn roll_manifest_from(&self, bytes: u64) {
        self.parts.catalog.role().set_roll_min_bytes(bytes);
    }

    /// How many times the manifest was written anew since the open because it had grown.
    pub fn manifest_roll_count(&self) -> u64 {
        self.parts.catalog.role().roll_count()
    }

    /// The state of the whole store in the manifest.
    pub fn state(&self) -> Arc<StoreState> {
        self.parts.catalog.role().state().clone()
    }

    /// The version of a keyspace in the manifest.
    pub fn version(&self, keyspace: &Keyspace) -> Option<Arc<KeyspaceVersion>> {
        self.state()
            .keyspace(keyspace.id())
            .map(|k| k.version.clone())
    }

    /// The number of edits of creates, drops and ingests that wait for room.
    pub fn pending_edit_count(&self) -> usize {
        self.parts.catalog.role().pending_count()
    }

    /// The number of ingested runs that count as not yet in the manifest in the keyspace's view.
    pub fn unsettled_run_count(&self, keyspace: &Keyspace) -> usize {
        let Ok(keyspace) = self.parts.catalog.keyspace_by_id(keyspace.id()) else {
            return 0;
        };
        let unsettled = keyspace.view().unsettled();
        let runs = unsettled.iter().filter(|s| matches!(s, Source::Run(_)));
        runs.count()
    }

    /// The holes between the slots of neighbouring sources in the keyspace's view, each as
    /// `(above, up to)`. Sources on both sides of a hole are not neighbours, so they never merge.
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

    /// Everything that holds the log without having a record in it: holds of creates, drops and
    /// ingests, and memtables without entries.
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

    /// The first segment of the log that something needs, and the last segment.
    pub fn log_need(&self) -> (u32, u32) {
        let needed = self.parts.catalog.log_start_without(&[]).segment;
        (needed, self.parts.wal.end().segment)
    }

    /// Raises the ceiling of sequence numbers, which is an edit that frees no space.
    pub fn raise_ceiling(&self) -> Result<()> {
        let ceiling = self.parts.catalog.ceiling();
        self.parts.catalog.raise_ceiling(ceiling)
    }

    /// Drops a keyspace by an edit alone, as if the log had no room for the drop's record.
    pub fn drop_without_record(&self, keyspace: &Keyspace) -> Result<()> {
        let keyspace = self.parts.catalog.keyspace_by_id(keyspace.id())?;
        let _changes = self.parts.catalog.changes();
        let lead = self.parts.commit.lead();
        let dropped = self.parts.catalog.drop_by_edit(&keyspace);
        lead.finish();
        dropped
    }

    /// Takes the lead and keeps it. Writers queue up until the returned value is dropped.
    pub fn hold_writes(&self) -> HeldWrites<'_> {
        HeldWrites(Some(self.parts.commit.lead()))
    }

    /// The number of writers in the queue besides the leader.
    pub fn queued_writer_count(&self) -> usize {
        self.parts.commit.waiting_count()
    }

    /// Sets the number of input bytes from which on a job is divided into subjobs.
    pub fn set_subjob_min_bytes(&self, bytes: u64) {
        let min_bytes = &self.parts.jobs.runner().subjob_min_bytes;
        min_bytes.store(bytes, std::sync::atomic::Ordering::Relaxed);
    }

    /// Sets the number of hidden entries after which a cursor remembers a gap.
    pub fn set_gap_min(&self, hidden: u64) {
        self.parts.tree.set_gap_min(hidden.max(1));
    }

    /// The number of gaps of the keyspace.
    pub fn gap_count(&self, keyspace: &Keyspace) -> usize {
        let keyspace = self.parts.catalog.keyspace_by_id(keyspace.id());
        keyspace.map_or(0, |keyspace| keyspace.gaps.count())
    }

    /// Closes the readers of all tables, so that none is open, as right after an open. Cursors keep
    /// theirs.
    pub fn close_tables(&self) {
        self.parts.tree.tables().readers().close_all();
    }

    /// Deletes the files that no view holds, at once.
    pub fn delete_obsolete(&self) {
        crate::catalog::obsolete::delete_all_obsolete(&self.parts.catalog);
    }
}

/// The lead of the writers' queue, held by a test.
pub struct HeldWrites<'a>(Option<Lead<'a>>);

impl Drop for HeldWrites<'_> {
    fn drop(&mut self) {
        if let Some(lead) = self.0.take() {
            lead.finish();
        }
    }
}
