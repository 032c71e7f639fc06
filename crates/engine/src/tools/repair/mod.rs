//! Repair: makes a new store from what can be read of a damaged one, and a report of what is lost.
//!
//! [`repair`] (RFC 3, section 6) reads the manifests (`survey`), the log (`history`) and the tables
//! (`tables`), merges what they hold for each keyspace (`merge`), and writes the result as a new
//! store (`target`). It trusts nothing but checksums.
//!
//! Invariants:
//! - The source is never changed. A shared lease is held, so nobody else changes it meanwhile.
//! - No entry with a valid checksum of its block or record is missing, unless something newer for
//!   its key was found too, or the entry is in a table that nothing names and that may never have
//!   been part of the store (the report lists such tables).
//! - The target has nothing that was never written, except for islands, which the report names
//!   ([`SuspectWhy::Island`]).
//! - Every key that may be older than the last write, or deleted since, or missing, lies in a
//!   suspect range of the report. There is one exception, which no format can detect: the last
//!   records of the log, if nothing shows that they existed ([`LogFound::end_is_clear`]).
//! - A crash leaves the source as it was, and a target that the next repair makes anew.
//!
//! Memory: the newest entry of each key in the log, all range deletes, and what the salvage of one
//! table needs.
//!
//! Threading: one task.

mod history;
mod merge;
mod report;
mod survey;
mod tables;
mod target;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use litemap::LiteMap;
use siltstone_storage::{Runtime, Storage};
use siltstone_table::rangedel::{RangeDeletes, joined};

pub use report::{
    KeyspaceRepair, LogFound, LogHole, LostRange, LostWhat, RepairReport, SuspectRange, SuspectWhy,
    UnusedFile,
};

use crate::formats::batch::{Entries, EntryKind};
use crate::formats::directories::{
    Claim, Folder, Missing, Storages, folders, lease_shared, nothing_here, refuse_within,
    why_unusable,
};
use crate::formats::log::{Record, RecordKind};
use crate::formats::version::{
    CreateKeyspace, Edit, KeyRange, KeyspaceEdit, MAX_KEYSPACE_NAME_BYTES, SeqSet, StoreState,
};
use crate::types::error::{Error, ErrorKind, Result};
use crate::types::limits::DEFAULT_KEYSPACE;
use crate::types::limits::{BOTTOM_LEVEL, KeyspaceId};
use merge::{Counts, MergeSource, Sources};
use survey::{KnownKeyspace, KnownTable, Survey};
use tables::{Files, TableFolders, Tables};
use target::Target;

/// The keyspace in which `silt load` keeps the state of interrupted loads. It is not copied: the
/// positions in it do not fit a repaired store.
const LOAD_KEYSPACE: &str = "silt.load";

/// The storages of the store to repair.
#[derive(Clone)]
pub struct RepairSource {
    /// The storage of the log.
    pub log: Arc<dyn Storage>,
    /// The storage of the manifest and the lease.
    pub manifest: Arc<dyn Storage>,
    /// The storage of the tables.
    pub tables: Arc<dyn Storage>,
    /// The storage of the second location of tables, if the store has one.
    pub redirect: Option<Arc<dyn Storage>>,
}

impl RepairSource {
    /// All parts on one storage.
    pub fn on(storage: Arc<dyn Storage>) -> RepairSource {
        RepairSource {
            log: storage.clone(),
            manifest: storage.clone(),
            tables: storage,
            redirect: None,
        }
    }

    /// The storages that [`Storages::find`] found.
    pub fn of(storages: Storages) -> RepairSource {
        RepairSource {
            log: storages.log,
            manifest: storages.manifest,
            tables: storages.tables,
            redirect: storages.redirect,
        }
    }

    fn folders(&self) -> Vec<Folder<'_>> {
        let redirect = self.redirect.as_deref();
        folders(&*self.log, &*self.manifest, &*self.tables, redirect)
    }

    /// This source. If the folder of the second location of tables cannot be used because of `why`,
    /// it is taken for missing.
    fn without_redirect(&self, why: Option<String>) -> RepairSource {
        let mut source = self.clone();
        if let (Some(redirect), Some(why)) = (&self.redirect, why) {
            source.redirect = Some(Missing::storage(&redirect.location(), &why));
        }
        source
    }

    /// The storages of the tables.
    fn table_folders(&self) -> TableFolders {
        let redirect = self.redirect.iter();
        TableFolders(
            [&self.tables]
                .into_iter()
                .chain(redirect)
                .cloned()
                .collect(),
        )
    }

    /// Refuses a folder for the new store that is one of the damaged store's folders, or is inside
    /// one. Call this before the folder is created.
    ///
    /// # Errors
    /// `InvalidArgument` if the folder cannot be used.
    pub fn refuse_target(&self, folder: impl AsRef<std::path::Path>) -> Result<()> {
        let storages = Storages {
            log: self.log.clone(),
            manifest: self.manifest.clone(),
            tables: self.tables.clone(),
            redirect: self.redirect.clone(),
        };
        refuse_within(&storages, folder.as_ref(), "the repaired store")
    }
}

/// Options of a repair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RepairOptions {
    /// Whether to leave out every key whose value may be wrong.
    pub strict: bool,
    /// The size of the new store's tables in raw bytes, as for [`crate::Options::table_bytes`].
    pub table_bytes: u64,
    /// The size of their blocks in bytes before compression, as for
    /// [`crate::Options::block_bytes`].
    pub block_bytes: u64,
    /// Filter bits for each key, as for [`crate::Options::bloom_bits_per_key`].
    pub bloom_bits_per_key: u8,
}

impl Default for RepairOptions {
    fn default() -> RepairOptions {
        RepairOptions {
            strict: false,
            table_bytes: 64 << 20,
            block_bytes: 4 << 10,
            bloom_bits_per_key: 10,
        }
    }
}

/// The progress of a repair in reading tables. Writing the new store reads them once more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RepairProgress {
    /// Bytes of the tables that are done.
    pub done_bytes: u64,
    /// Bytes of all table files.
    pub total_bytes: u64,
}

/// Makes a new store in `target`, which must be empty, from what can be read in `source`. It reads
/// everything twice and writes it once. A `target` with an unfinished repair is cleared first.
///
/// # Errors
/// `NotFound` if there is nothing of a store, `Locked` while the source is open for writing or the
/// target is in use, `InvalidArgument` for a target that holds something else, `Unsupported` for a
/// later format, `NoSpace` and other failures of the storages. After a failure the target has its
/// marker, and can be used for the next attempt. Damage is not an error.
pub fn repair(
    source: &RepairSource,
    target: &Arc<dyn Storage>,
    runtime: &Runtime,
    options: &RepairOptions,
    progress: &mut dyn FnMut(RepairProgress),
) -> Result<RepairReport> {
    let _span = tracing::info_span!(
        "repair",
        source = source.manifest.describe(),
        target = target.describe()
    )
    .entered();
    let context = |e: Error| {
        e.context(format!(
            "repairing the store {}",
            source.manifest.describe()
        ))
    };
    let redirect = source.redirect.as_ref();
    // What cannot be read in the store's own folder is reported when it is needed.
    let why = redirect.and_then(|redirect| {
        let why = why_unusable(&*source.manifest, &**redirect);
        why.unwrap_or_default()
    });
    let source = &source.without_redirect(why);
    let (_held, lost) = lease_shared(&source.folders(), "repairing")?;
    let source = &source.without_redirect(lost.map(|error| error.to_string()));
    let found = Found::read(source, progress).map_err(context)?;
    let lease = target
        .lease(crate::formats::names::LEASE)
        .map_err(|e| Error::from(e).context(format!("making the store {}", target.describe())))?;
    let epoch = lease.epoch();
    let new = Target::begin(target.clone(), epoch, runtime)?;
    found
        .write(source, new, options)
        .inspect(|_| tracing::info!("repaired"))
        .inspect_err(|_| Target::give_up(&**target, epoch))
}

/// For each key the trailer and the value of the newest entry.
type Newest = BTreeMap<Vec<u8>, (u64, Vec<u8>)>;

/// Everything that was found, before it is written.
struct Found {
    survey: Survey,
    tables: Tables,
    log: LogFound,
    /// For each keyspace the newest entries of the log.
    entries: LiteMap<KeyspaceId, Newest>,
}

/// What the log's records say about keyspaces and ingests.
#[derive(Default)]
struct Definitions {
    dropped: BTreeSet<KeyspaceId>,
    created: LiteMap<KeyspaceId, KnownKeyspace>,
    ingested: Vec<(KnownTable, u64)>,
}

impl Definitions {
    fn take(&mut self, record: &Record<'_>) -> Result<()> {
        match record.kind {
            RecordKind::Group => {}
            RecordKind::KeyspaceCreate => {
                let (id, name, options) =
                    crate::formats::log::bodies::decode_create(record.payload)?;
                let known = KnownKeyspace {
                    name: name.to_string(),
                    created: record.first_sequence,
                    options,
                    ..KnownKeyspace::default()
                };
                self.created.insert(id, known);
            }
            RecordKind::KeyspaceDrop => {
                self.dropped
                    .insert(crate::formats::log::bodies::decode_drop(record.payload)?);
            }
            RecordKind::Ingest => {
                let number = record.first_sequence;
                for (keyspace, runs) in
                    crate::formats::log::bodies::decode_ingest(record.payload, number)?.parts
                {
                    for meta in runs.iter().flat_map(|run| run.tables.tables()) {
                        let meta = meta.clone();
                        self.ingested.push((KnownTable { keyspace, meta }, number));
                    }
                }
            }
        }
        Ok(())
    }
}

impl Found {
    fn read(source: &RepairSource, progress: &mut dyn FnMut(RepairProgress)) -> Result<Found> {
        let mut survey = Survey::read(&*source.manifest)?;
        let mut files = Files::list(source.table_folders(), &mut survey.damage)?;
        let mut definitions = Definitions::default();
        let mut undecodable = Vec::new();
        let mut damage = std::mem::take(&mut survey.damage);
        if let Some(id) = survey.store_id {
            match Claim::inspect(&source.folders(), Some(id), || id) {
                Ok(_) => {}
                // The folders may be the right ones even so; their contents will show.
                Err(error) if error.is_corruption() => damage.push(error),
                Err(error) => return Err(error),
            }
        }
        let mut log = history::read(
            &*source.log,
            survey.known_log(),
            &mut damage,
            &mut |record| {
                // The record has a good checksum and cannot be decoded. It can only be reported,
                // unless another build can decode it.
                if let Err(error) = definitions.take(&record) {
                    let file = crate::formats::log::format::segment_name(record.position.segment);
                    let error = error.in_file(file).at(record.position.offset.into());
                    if error.kind() == ErrorKind::Unsupported {
                        return Err(error);
                    }
                    undecodable.push(error);
                }
                Ok(())
            },
        )?;
        damage.append(&mut undecodable);
        let nothing = !survey.is_store && !log.is_there && files.is_empty();
        if nothing {
            return Err(Error::not_found(format!(
                "there is nothing of a store in {}",
                source.manifest.describe()
            ))
            .advice("check the path"));
        }
        // If there was only one table, it may have been lost by itself.
        let lacks_tables = survey.tables.len() > 1 && files.is_empty();
        let folders = source.folders();
        damage.splice(
            0..0,
            nothing_here(&folders, survey.is_store && !log.is_there, lacks_tables),
        );
        let ingested = survey.define(definitions);
        let mut known = survey.tables.clone();
        known.extend(ingested);
        let mut tables = Tables::default();
        tables.read_known(&mut files, &known, progress)?;
        // A table has sequence numbers that neither the log nor a manifest knows. Either the ends
        // of both are lost, or the table was flushed just before the power failed. In both cases
        // there were more writes than are known.
        let unknown = |(id, number): &(KeyspaceId, u64)| {
            *number > log.last_number
                && survey.is_not_dropped(*id)
                && !survey
                    .keyspaces
                    .get(id)
                    .is_some_and(|k| k.covered.contains(*number))
        };
        if survey.is_whole && tables.numbers_found(&files)?.iter().any(unknown) {
            log.is_broken = true;
            log.holes.push(LogHole {
                before: log.end,
                after_number: log.last_number,
                before_number: None,
            });
        }
        let all = !survey.is_whole || !log.holes.is_empty();
        let deleted = survey.deleted.clone();
        tables.read_found(
            &mut files,
            all,
            &deleted,
            &mut |id| {
                let exists = survey.exists_or_restore(id);
                // If the manifest is not whole, neither are the ranges that it says are covered.
                exists.then(|| match survey.is_whole {
                    true => survey.keyspaces[&id].covered.clone(),
                    false => SeqSet::new(),
                })
            },
            progress,
        )?;
        let mut found = Found {
            survey,
            tables,
            log,
            entries: LiteMap::new(),
        };
        found.read_entries(source)?;
        found.tables.damage.splice(0..0, damage);
        found.tables.damage.dedup_by(|a, b| {
            (a.file(), a.offset(), a.message()) == (b.file(), b.offset(), b.message())
        });
        Ok(found)
    }

    /// Takes the entries of the log that no table has.
    fn read_entries(&mut self, source: &RepairSource) -> Result<()> {
        let mut lost: LiteMap<KeyspaceId, Vec<KeyRange>> = LiteMap::new();
        for range in &self.tables.lost {
            lost.entry(range.keyspace)
                .or_default()
                .push(range.range.clone());
        }
        let (survey, entries, tables) = (&mut self.survey, &mut self.entries, &mut self.tables);
        let mut ignored = Vec::new();
        let again = history::read(
            &*source.log,
            survey.known_log(),
            &mut ignored,
            &mut |record| {
                if record.kind != RecordKind::Group {
                    return Ok(());
                }
                for (seq, entry) in (record.first_sequence..).zip(Entries::new(record.payload)) {
                    let Ok(entry) = entry else { break };
                    let id = entry.keyspace;
                    if !survey.exists_or_restore(id) {
                        continue;
                    }
                    if entry.kind == EntryKind::RangeDelete {
                        // Every range delete counts, even if a table has it too.
                        tables.range_deletes.entry(id).or_default().push((
                            entry.key.to_vec(),
                            entry.value.to_vec(),
                            seq,
                        ));
                        continue;
                    }
                    // A put that is covered may have a tombstone that was dropped together with it.
                    // A delete that is covered is true for ever.
                    let covered = entry.kind == EntryKind::Put
                        && survey.keyspaces[&id].covered.contains(seq)
                        && !lost
                            .get(&id)
                            .is_some_and(|ranges| ranges.iter().any(|r| r.contains(entry.key)));
                    if covered {
                        continue;
                    }
                    let trailer = seq << 8 | entry.kind as u64;
                    let newest = entries.entry(id).or_default();
                    match newest.get_mut(entry.key) {
                        Some((old, _)) if *old >= trailer => {}
                        Some(old) => *old = (trailer, entry.value.to_vec()),
                        None => {
                            newest.insert(entry.key.to_vec(), (trailer, entry.value.to_vec()));
                        }
                    }
                }
                Ok(())
            },
        )?;
        // The report is about the first reading, so this one must have found the same records.
        if again.record_count != self.log.record_count {
            return Err(Error::new(
                ErrorKind::Io,
                "a part of the log could be read the first time but not the second time",
            )
            .expected(format!("{} records", self.log.record_count))
            .found(format!("{} records", again.record_count))
            .advice("copy the store to another disk, and repair the copy"));
        }
        Ok(())
    }

    /// Every keyspace is suspect as a whole if something is missing that can concern any key.
    fn suspects(&self) -> Vec<SuspectRange> {
        let mut suspects = self.tables.suspects.clone();
        for id in self.survey.keyspaces.keys() {
            let mut all = |below, why| {
                suspects.push(SuspectRange {
                    keyspace: *id,
                    range: KeyRange::all(),
                    below,
                    why,
                });
            };
            if !self.survey.is_whole {
                all(None, SuspectWhy::Manifest);
            }
            for hole in &self.log.holes {
                all(hole.before_number, SuspectWhy::LogHole);
            }
        }
        suspects.sort_by(|a, b| {
            (a.keyspace, &a.range.start, &a.range.end, a.why).cmp(&(
                b.keyspace,
                &b.range.start,
                &b.range.end,
                b.why,
            ))
        });
        suspects
    }

    fn write(
        mut self,
        source: &RepairSource,
        target: Target,
        options: &RepairOptions,
    ) -> Result<RepairReport> {
        let suspects = self.suspects();
        let largest = self.largest_number();
        let mut report = RepairReport {
            source_id: self.survey.store_id,
            target_id: target.id,
            strict: options.strict,
            manifest: self.survey.manifest.clone(),
            manifest_record_count: self.survey.record_count,
            manifest_is_whole: self.survey.is_whole && !self.log.is_broken,
            log: self.log.clone(),
            damage: std::mem::take(&mut self.tables.damage),
            lost: std::mem::take(&mut self.tables.lost),
            suspects,
            keyspaces: Vec::new(),
            unused: std::mem::take(&mut self.tables.unused),
        };
        let mut edit = Edit {
            whole: true,
            sequence_ceiling: Some(largest.max(self.survey.sequence_ceiling)),
            open_number: Some(target::OPEN_NUMBER),
            created_us: Some(target.now_us()),
            ..Edit::default()
        };
        let mut next_id = 1;
        for (id, keyspace) in std::mem::take(&mut self.survey.keyspaces) {
            if keyspace.name == LOAD_KEYSPACE {
                continue;
            }
            let sources = self.sources(id, source, &report, options);
            let table_count = sources.tables.len() as u64;
            let sources = Arc::new(sources);
            let metas = target.write_tables(
                id,
                largest,
                Arc::new(MergeSource(sources.clone())),
                options,
                &mut next_id,
            )?;
            report
                .keyspaces
                .push(counted(id, &keyspace.name, table_count, &sources.counts));
            edit.create.push(CreateKeyspace {
                id,
                name: keyspace.name,
                sequence: keyspace.created.min(largest),
                options: keyspace.options,
            });
            let mut tables = KeyspaceEdit {
                covered_floor: Some(largest),
                moved_through: Some(largest),
                ..KeyspaceEdit::new(id)
            };
            tables.add_to_level(BOTTOM_LEVEL, &metas);
            edit.keyspaces.push(tables);
        }
        edit.next_table_id = Some(next_id);
        let highest = edit.create.last().map_or(1, |c| c.id.saturating_add(1));
        edit.next_keyspace_id = Some(highest.max(self.survey.next_keyspace_id));
        let state = StoreState::default().apply(&edit)?;
        target.finish(state)?;
        Ok(report)
    }

    fn sources(
        &mut self,
        id: KeyspaceId,
        source: &RepairSource,
        report: &RepairReport,
        options: &RepairOptions,
    ) -> Sources {
        let deletes = self.tables.range_deletes.remove(&id).unwrap_or_default();
        let log = self.entries.remove(&id).unwrap_or_default();
        let of_keyspace = report.suspects.iter().filter(|s| s.keyspace == id);
        Sources {
            folders: source.table_folders(),
            tables: self.tables.sources.remove(&id).unwrap_or_default(),
            log: log
                .into_iter()
                .map(|(key, (trailer, value))| (key, trailer, value))
                .collect(),
            // Joined range deletes are in the order that the format requires.
            deletes: RangeDeletes::new(joined(deletes)).unwrap_or_default(),
            suspects: of_keyspace.cloned().collect(),
            strict: options.strict,
            counts: Counts::default(),
        }
    }

    /// The largest sequence number that was found.
    fn largest_number(&self) -> u64 {
        self.tables.largest_number.max(self.log.last_number).max(1)
    }
}

fn counted(id: KeyspaceId, name: &str, table_count: u64, counts: &Counts) -> KeyspaceRepair {
    KeyspaceRepair {
        id,
        name: name.to_string(),
        key_count: counts.keys.load(Ordering::Relaxed),
        byte_count: counts.bytes.load(Ordering::Relaxed),
        suspect_key_count: counts.suspects.load(Ordering::Relaxed),
        left_out_key_count: counts.left_out.load(Ordering::Relaxed),
        table_count,
    }
}

impl Survey {
    /// Applies what the log says about keyspaces. Returns the tables of ingests that no edit has
    /// installed.
    fn define(&mut self, definitions: Definitions) -> Vec<KnownTable> {
        for (id, mut keyspace) in definitions.created {
            // A keyspace below the next id is known, or was created and dropped again.
            if self.is_whole && id < self.next_keyspace_id {
                continue;
            }
            match self.keyspaces.get_mut(&id) {
                Some(known) if !known.name.is_empty() => {}
                Some(known) => known.name = keyspace.name,
                None => {
                    keyspace
                        .covered
                        .insert(crate::formats::version::SeqRange::new(0, keyspace.created));
                    self.keyspaces.insert(id, keyspace);
                }
            }
        }
        if self.manifest.is_none() {
            // Every store begins with this keyspace.
            self.keyspaces.entry(1).or_default();
        }
        for id in definitions.dropped {
            self.dropped.insert(id);
            self.keyspaces.remove(&id);
            self.tables.retain(|t| t.keyspace != id);
        }
        let ids: Vec<_> = self.keyspaces.keys().copied().collect();
        for id in ids {
            self.give_name(id);
        }
        definitions
            .ingested
            .into_iter()
            .filter(|(table, number)| {
                self.exists_or_restore(table.keyspace)
                    && !self.keyspaces[&table.keyspace].covered.contains(*number)
            })
            .map(|(table, _)| table)
            .collect()
    }

    /// Whether the keyspace was not dropped, as far as is known. Its creation may be lost.
    fn is_not_dropped(&self, id: KeyspaceId) -> bool {
        let was_dropped = self.dropped.contains(&id)
            || self.is_whole && id < self.next_keyspace_id && !self.keyspaces.contains_key(&id)
            || id == KeyspaceId::MAX;
        !was_dropped
    }

    /// Whether the keyspace was not dropped, as far as is known. If its creation is lost, it is
    /// added here.
    fn exists_or_restore(&mut self, id: KeyspaceId) -> bool {
        if self.keyspaces.contains_key(&id) {
            return true;
        }
        if !self.is_not_dropped(id) {
            return false;
        }
        self.keyspaces.insert(id, KnownKeyspace::default());
        self.give_name(id);
        true
    }

    /// Gives a name to a keyspace whose name is lost or is already used by another one.
    fn give_name(&mut self, id: KeyspaceId) {
        let taken = |name: &str| {
            self.keyspaces
                .iter()
                .any(|(other, k)| *other != id && k.name == name)
        };
        let own = self.keyspaces.get(&id).map_or("", |k| &k.name);
        if !own.is_empty() && own.len() <= MAX_KEYSPACE_NAME_BYTES && !taken(own) {
            return;
        }
        let mut name = format!("repaired-{id}");
        if id == 1 && own.is_empty() && !taken(DEFAULT_KEYSPACE) {
            name = DEFAULT_KEYSPACE.to_string();
        }
        while taken(&name) {
            name.push('x');
        }
        if let Some(keyspace) = self.keyspaces.get_mut(&id) {
            keyspace.name = name;
        }
    }
}

/// A salvage that runs out of memory failed because of the machine, not because of the store.
impl From<siltstone_table::exec::ExecError> for Error {
    fn from(error: siltstone_table::exec::ExecError) -> Error {
        match error {
            siltstone_table::exec::ExecError::Failed(error) => error.into(),
            other => Error::new(ErrorKind::Io, other.to_string()),
        }
    }
}
