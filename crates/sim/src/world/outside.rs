//! Builds, exports and ingests tables that belong to no store.
//!
//! Threading: as the world.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use siltstone::version::{KeyRange, TableMeta};
use siltstone::{
    BuiltTable, Components, ErrorKind, IngestMode, IterOptions, Keyspace, Options, Snapshot, Store,
    TableBuilder, TableFile, TableFolder, TableOptions,
};
use siltstone_storage::{Epoch, MemoryStorage, Storage};
use siltstone_table::key::{Kind, trailer};
use siltstone_table::reader::{ReaderOptions, TableReader};
use siltstone_table::salvage::PieceReader;
use siltstone_table::writer::{TableWriter, WriterOptions};

use super::{Errors, Promise, World};
use crate::checker::{Check, check_contents, show};
use crate::model::{Bytes, Pairs};
use crate::observe::lock;

/// A key and its value, or a delete.
type Entry = (Bytes, Option<Bytes>);

/// The digest and the entries of a finished table.
pub(crate) fn read_table(storage: &dyn Storage, name: &str) -> Result<(u128, Vec<Entry>), String> {
    let with_context = |e: siltstone_table::error::TableError| format!("{name}: {e}");
    let file = storage.open(name).map_err(|e| e.to_string())?;
    let options = ReaderOptions {
        map: false,
        ..ReaderOptions::default()
    };
    let table = TableReader::open(file.clone(), options).map_err(with_context)?;
    let mut reader = PieceReader::default();
    let mut entries = Vec::new();
    for i in 0..table.index().len() {
        reader
            .read(&*file, table.index().place(i))
            .map_err(with_context)?;
        for i in 0..reader.len() {
            let is_put = reader.trailer(i) & 0xff == Kind::Put as u64;
            let value = is_put.then(|| reader.value(i).into());
            entries.push((reader.key(i).into(), value));
        }
    }
    Ok((table.footer().digest.into(), entries))
}

/// A part of the names of tables that are written into the store's folder to be ingested there: an
/// attempt number that the store does not use.
pub(crate) const OWN_TABLES: &str = "-99999999-";

impl World {
    /// The folder for tables that belong to no store.
    pub fn folder(&self) -> TableFolder {
        TableFolder::on(self.outside.clone(), Epoch::default())
    }

    /// A prefix that no other outside table has.
    pub fn new_prefix(&self) -> String {
        format!("t{:06}", self.next_name.fetch_add(1, Ordering::Relaxed))
    }

    /// Builds tables of entries in ascending key order, and announces their contents. Returns
    /// `None` if a fault prevented it.
    ///
    /// # Errors
    /// A table with other contents, or an error that is not allowed.
    pub fn build(
        &self,
        entries: &[Entry],
        options: TableOptions,
    ) -> Result<Option<Vec<TableFile>>, String> {
        let prefix = self.new_prefix();
        let built = (|| {
            let mut builder = TableBuilder::new(&self.folder(), &prefix, options)?;
            for (key, value) in entries {
                match value {
                    Some(value) => builder.put(key, value)?,
                    None => builder.delete(key)?,
                }
            }
            builder.finish()
        })();
        let built = match built {
            Ok(built) => built,
            Err(e) => return self.allow(&e, &[], "building tables").map(|()| None),
        };
        self.announce(&built, entries)
    }

    /// Copies the tables under other names without any sync, as a user's tool does. Files that
    /// could not be copied stay.
    ///
    /// # Errors
    /// An error that is not allowed.
    pub fn copied(&self, files: Vec<TableFile>) -> Result<Vec<TableFile>, String> {
        let (epoch, folder) = (Epoch::default(), self.folder());
        let mut all = Vec::new();
        for file in files {
            let name = format!("{}-copy.tbl", self.new_prefix());
            let copy = || -> siltstone_storage::Result<()> {
                let from = self.outside.open(file.name())?;
                let mut bytes = vec![0; from.len() as usize];
                from.read_at(0, &mut bytes)?;
                self.outside.create(epoch, &name)?.append(&[&bytes])
            };
            match copy() {
                Ok(()) => {
                    self.reach("ingest.copied_by_the_user");
                    all.push(folder.file(&name));
                }
                Err(e) => {
                    let _ = self.outside.delete(epoch, &name);
                    self.excuse(e.to_string())?;
                    all.push(file);
                }
            }
        }
        Ok(all)
    }

    /// Compares tables with their expected entries, and announces them. Returns `None` if a fault
    /// prevented reading them.
    fn announce(
        &self,
        built: &[BuiltTable],
        entries: &[Entry],
    ) -> Result<Option<Vec<TableFile>>, String> {
        let mut left = entries;
        for table in built {
            let read = read_table(&*self.outside, table.file.name());
            let (digest, found) = match read {
                Ok(read) => read,
                Err(e) => return self.excuse(e).map(|()| None),
            };
            let count = found.len().min(left.len());
            let (own, rest) = left.split_at(count);
            left = rest;
            let bounds = (&found[0].0[..], &found[found.len() - 1].0[..]);
            let deletes = found.iter().filter(|(_, v)| v.is_none()).count() as u64;
            if own != found
                || bounds != (&table.smallest_key[..], &table.largest_key[..])
                || (table.entry_count, table.delete_count) != (found.len() as u64, deletes)
            {
                return Err(format!(
                    "table {} holds {} entries from {} on, expected {count} from {} on; reported \
                    as \
                    {table:?}",
                    table.file.name(),
                    found.len(),
                    show(bounds.0),
                    own.first().map_or("none".into(), |(k, _)| show(k)),
                ));
            }
            lock(&self.history).announce_table(digest, Arc::new(found));
        }
        if let Some((key, _)) = left.first() {
            return Err(format!("tables end before {}", show(key)));
        }
        Ok(Some(built.iter().map(|table| table.file.clone()).collect()))
    }

    /// Exports a range as `snapshot` sees it, compares it with the model, and announces it. Returns
    /// `None` if it could not be exported.
    ///
    /// # Errors
    /// A wrong answer, or an error that is not allowed.
    pub fn export(
        &self,
        keyspace: &Keyspace,
        snapshot: &Snapshot,
        range: IterOptions,
    ) -> Result<Option<Vec<TableFile>>, String> {
        let wanted = self.seen(keyspace, snapshot, &range);
        let prefix = self.new_prefix();
        let built = match keyspace.export_at(snapshot, range, &self.folder(), &prefix) {
            Ok(built) => built,
            Err(e) => {
                let left = self.outside.list().unwrap_or_default();
                if self.errors == Errors::Fatal && left.iter().any(|o| o.name.starts_with(&prefix))
                {
                    return Err(format!("an export that failed left tables: {e}"));
                }
                self.allow(&e, &[ErrorKind::KeyspaceDropped], "export")?;
                return Ok(None);
            }
        };
        let wanted: Vec<Entry> = wanted.into_iter().map(|(k, v)| (k, Some(v))).collect();
        let files = self.announce(&built, &wanted).map_err(|e| {
            format!(
                "export of {} at {}: {e}",
                keyspace.name(),
                snapshot.number()
            )
        })?;
        self.reach("export.done");
        if built.len() > 1 {
            self.reach("export.several_tables");
        }
        Ok(files)
    }

    /// Ingests exported tables into a new store, which must then hold exactly the pairs that
    /// `snapshot` sees in a range.
    ///
    /// # Errors
    /// A wrong answer, or an error that is not allowed.
    pub fn ingest_elsewhere(
        &self,
        keyspace: &Keyspace,
        snapshot: &Snapshot,
        range: &IterOptions,
        files: &[TableFile],
    ) -> Check {
        let with_context = |e: siltstone::Error| format!("an export in another store: {e}");
        let wanted = self.seen(keyspace, snapshot, range);
        let storage: Arc<dyn Storage> = Arc::new(MemoryStorage::new(&self.runtime));
        let components = Components::on(storage, self.runtime.clone());
        let options = Options {
            memtable_bytes: 64 << 10,
            log_segment_bytes: 64 << 10,
            ..Options::default()
        };
        let store = Store::open_with(components, options).map_err(with_context)?;
        let target = store.default_keyspace().map_err(with_context)?;
        // The export's entries hide these keys, or the keys are shown beside them.
        let hidden = wanted.keys().next().cloned();
        if let Some(key) = &hidden {
            target.put(key, b"before").map_err(with_context)?;
        }
        match store.ingest(&[(&target, files.to_vec())], IngestMode::Link) {
            Ok(_) => {}
            // The folder of the tables fails.
            Err(e) => return self.allow(&e, &[], "an export in another store"),
        }
        let all = BTreeMap::from([("default".to_string(), (1, wanted))]);
        check_contents(&store, &all).map_err(|e| format!("an export in another store: {e}"))?;
        store.close().map_err(with_context)?;
        self.reach("export.in_another_store");
        Ok(())
    }

    /// The pairs that a snapshot sees in a range.
    fn seen(&self, keyspace: &Keyspace, snapshot: &Snapshot, range: &IterOptions) -> Pairs {
        let number = snapshot.number();
        let mut seen = lock(&self.history).model.state(keyspace.id(), number);
        seen.retain(|key, _| {
            range.lower.as_ref().is_none_or(|l| key[..] >= l[..])
                && range.upper.as_ref().is_none_or(|u| key[..] < u[..])
        });
        seen
    }

    /// Ingests tables from outside into keyspaces, all at once. Returns the first number at which
    /// they are visible, or `None` if the ingest failed.
    ///
    /// # Errors
    /// A wrong answer, or an error that is not allowed.
    pub fn ingest(
        &self,
        parts: &[(Keyspace, Vec<TableFile>)],
        how: IngestMode,
    ) -> Result<Option<u64>, String> {
        let files: Vec<(&Keyspace, Vec<TableFile>)> =
            parts.iter().map(|(k, files)| (k, files.clone())).collect();
        let names: Vec<&str> = parts
            .iter()
            .flat_map(|(_, files)| files.iter().map(TableFile::name))
            .collect();
        let _begun = self.begin(Promise::Ingest);
        let report = match self.store.ingest(&files, how) {
            Ok(report) => report,
            Err(e) => {
                let poisoned = self.store.stats().health != "good";
                let there = self.outside.list();
                let gone = there
                    .is_ok_and(|there| !names.iter().all(|n| there.iter().any(|o| o.name == *n)));
                if gone && !poisoned {
                    return Err(format!("a failed ingest took the caller's files: {e}"));
                }
                let text = e.to_string();
                if self.errors == Errors::Damaged && names.iter().any(|name| text.contains(name)) {
                    // The file was cut under the store's name while it was being ingested; the
                    // caller knows it by its own name.
                    self.reach("ingest.damaged_on_the_way");
                    return Ok(None);
                }
                self.allow(&e, &[ErrorKind::KeyspaceDropped], "ingest")?;
                return Ok(None);
            }
        };
        if report.table_count != names.len() as u64 {
            return Err(format!("ingested {report:?} of {} tables", names.len()));
        }
        if names.is_empty() {
            return Ok(None);
        }
        self.synced(report.number);
        let there = match self.outside.list() {
            Ok(there) => there,
            Err(e) => {
                self.excuse(e.to_string())?;
                return Ok(Some(report.number));
            }
        };
        for name in names {
            let is_there = there.iter().any(|o| o.name == name);
            let is_left = report.left.iter().any(|left| left.ends_with(name));
            // A deletion that failed may have taken effect.
            if is_there != (how != IngestMode::Move) && !is_left {
                return Err(format!(
                    "after an ingest by {how:?}, {name} is there: {is_there}"
                ));
            }
        }
        if !report.left.is_empty() && self.errors == Errors::Fatal {
            return Err(format!("a move left {:?}", report.left));
        }
        self.reach("ingest.files");
        if self.other_executors.hung() > 0 {
            self.reach("elsewhere.ingest_beside_a_hung_job");
        }
        self.reach(&format!("ingest.by_{how:?}"));
        let ids: BTreeMap<u32, ()> = parts.iter().map(|(k, _)| (k.id(), ())).collect();
        if ids.len() > 1 {
            self.reach("ingest.over_keyspaces");
        }
        if report.run_count > 1 {
            self.reach("ingest.overlapping");
        }
        Ok(Some(report.number))
    }

    /// Writes a table into the store's folder and ingests it there, without the import.
    ///
    /// # Errors
    /// A wrong answer, or an error that is not allowed.
    pub fn ingest_own(&self, keyspace: &Keyspace, entries: Vec<Entry>) -> Check {
        let Some(meta) = self.prepare_own(entries)? else {
            return Ok(());
        };
        let _begun = self.begin(Promise::Ingest);
        match self.store.test_hooks().ingest(keyspace, vec![meta]) {
            Ok(number) => {
                self.synced(number);
                self.reach("ingest.done");
                Ok(())
            }
            Err(e) => self.allow(&e, &[ErrorKind::KeyspaceDropped], "ingest"),
        }
    }

    /// Writes a table into the store's folder, to be ingested there. Returns `None` if it could not
    /// be written.
    ///
    /// # Errors
    /// An error that is not allowed.
    pub(crate) fn prepare_own(&self, entries: Vec<Entry>) -> Result<Option<TableMeta>, String> {
        let hooks = self.store.test_hooks();
        let name = format!(
            "{:08x}{OWN_TABLES}0000-{:05}.tbl",
            hooks.open_number(),
            self.next_name.fetch_add(1, Ordering::Relaxed)
        );
        let (epoch, id) = (hooks.epoch(), hooks.new_table_id());
        let meta = match write_table(&*self.storage, &name, &entries, epoch, id) {
            Ok(meta) => meta,
            // This trial's own call found no space.
            Err(e) if self.errors != Errors::Fatal && e.contains("no space left") => {
                self.reach("ingest.no_room_for_a_table");
                return Ok(None);
            }
            Err(e) => return self.excuse(format!("table to ingest: {e}")).map(|()| None),
        };
        if let Err(e) = hooks.sync_table_names() {
            return self.excuse(format!("table to ingest: {e}")).map(|()| None);
        }
        lock(&self.history).announce_table(meta.digest, Arc::new(entries));
        Ok(Some(meta))
    }
}

/// Writes a table in the form that an ingest requires: synced, with number 0 in all entries. The
/// caller must sync its name through the store.
fn write_table(
    storage: &dyn Storage,
    name: &str,
    pairs: &[Entry],
    epoch: Epoch,
    id: u64,
) -> Result<TableMeta, String> {
    let options = WriterOptions {
        block_size_bytes: 1 << 10,
        ..WriterOptions::default()
    };
    let file = storage.create(epoch, name).map_err(|e| e.to_string())?;
    let mut writer = TableWriter::new(file.clone(), options).map_err(|e| e.to_string())?;
    for (key, value) in pairs {
        let kind = if value.is_some() {
            Kind::Put
        } else {
            Kind::Delete
        };
        writer
            .add(key, trailer(0, kind), value.as_deref().unwrap_or_default())
            .map_err(|e| e.to_string())?;
    }
    let summary = writer.finish().map_err(|e| e.to_string())?;
    file.sync().map_err(|e| e.to_string())?;
    let (first, last) = (&pairs[0].0, &pairs[pairs.len() - 1].0);
    Ok(TableMeta {
        id,
        location: 0,
        name: name.into(),
        min_seq: 0,
        max_seq: 0,
        raw_bytes: summary.raw_bytes,
        file_bytes: summary.file_bytes,
        entries: summary.properties.entries,
        deletes: summary.properties.deletes,
        range_deletes: 0,
        digest: summary.digest.into(),
        points: Some((first[..].into(), last[..].into())),
        bounds: KeyRange::closed(first, last),
        sequence_override: None,
        flags: 0,
    })
}
