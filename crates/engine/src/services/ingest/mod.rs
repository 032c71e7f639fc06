//! Ingest: adds finished tables from outside to several keyspaces at once, above everything that
//! these keyspaces hold (RFC 3, section 5).
//!
//! First every file is imported under a name of the store. It is an orphan until a log record names
//! it. Then the imported file is verified ([`mod@check`]), because nobody else can change it any
//! more. Then one leader's turn seals the memtables concerned, gives the runs their numbers, writes
//! one record over all keyspaces, adds the runs to the views and publishes them together. The
//! manifest's edit follows as that of a create does.
//!
//! Invariants:
//! - Run *i* of each keyspace has the record's first number + *i*. The slot of a keyspace's first
//!   run begins where its last source ends. The slot of its last run ends at the record's last
//!   number, so that neighbouring slots meet even if another keyspace has more runs.
//! - If the ingest fails, what was imported is deleted, unless the record may be in the log: a
//!   replay needs the files that the record names.
//! - With *move*, the caller's files are deleted only after the log is synced through the record: a
//!   crash before that would leave the only copy as an orphan of the store.
//! - Files are written to the store's folder without a role. A close waits for that
//!   ([`IngestInFlight`]), so nothing is written after the lease is released.
//!
//! Threading: any thread. Importing and verifying hold no lock; the commit takes the same roles as
//! a create.

pub(crate) mod check;

use std::collections::BTreeMap;
use std::sync::Arc;

use litemap::LiteMap;
use siltstone_storage::planted;
use siltstone_storage::storage::copy_object;
use siltstone_storage::{Storage, StorageErrorKind};

use crate::catalog::Catalog;
use crate::commit::Commit;
use crate::commit::announce::{Announcement, Failed, PreparedChange};
use crate::commit::write::Lead;
use crate::env::ingests::IngestInFlight;
use crate::formats::log::RecordKind;
use crate::formats::log::bodies::{Ingest, NumberedPart, decode_ingest, encode_ingest};
use crate::formats::version::{Edit, Key, KeyspaceEdit, TableMeta};
use crate::jobs::Jobs;
use crate::services::table_builder::{TableFile, no_table};
use crate::tree::Tree;
use crate::tree::view::{KeyspaceCore, KeyspaceView, MemSource, RunView, Source};
use crate::types::error::{Error, Result, closed};
use crate::types::event::Event;
use crate::types::limits::KeyspaceId;

/// How an ingest imports its files into the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum IngestMode {
    /// By a hard link, which gives the file a second name, if the file system and the folders allow
    /// it, and by a copy otherwise. Nobody may write to the file afterwards.
    #[default]
    Link,
    /// By a copy. The caller may do anything with the original files afterwards.
    Copy,
    /// Like [`IngestMode::Link`]; once the ingest is durable, the caller's files are deleted.
    Move,
}

/// The result of an ingest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IngestReport {
    /// The sequence number from which on all ingested entries are visible. 0 if there were no
    /// files.
    pub number: u64,
    /// Tables that were ingested.
    pub table_count: u64,
    /// Entries in these tables, including deletes.
    pub entry_count: u64,
    /// Bytes of these tables' files.
    pub file_bytes: u64,
    /// The largest number of runs that one keyspace got. It is 1 unless files of a keyspace
    /// overlap.
    pub run_count: u64,
    /// With [`IngestMode::Move`], the files that could not be deleted. The ingest has succeeded
    /// nevertheless.
    pub left: Vec<String>,
}

/// Tables for one keyspace: runs of disjoint tables, oldest first. The tables are in the store's
/// folder, and they and their names are synced.
pub(crate) struct Part {
    pub(crate) keyspace: Arc<KeyspaceCore>,
    pub(crate) runs: Vec<Vec<Arc<TableMeta>>>,
}

/// Adds synced tables in the store's folder to their keyspaces, by one record and published
/// together. Returns the last number.
pub(crate) fn commit(commit: &Commit, parts: &[Part]) -> std::result::Result<u64, Failed> {
    for part in parts {
        // An ingest waits like a writer who fills a memtable, because it adds a run as a flush
        // does.
        let bytes = || part.keyspace.load_settings().all.memtable_bytes;
        crate::commit::admit::wait_for_keyspace(commit, &part.keyspace, None, bytes)
            .map_err(Failed::before_the_record)?;
    }
    let _changes = commit.catalog().changes();
    commit
        .env()
        .health()
        .check()
        .map_err(Failed::before_the_record)?;
    for part in parts {
        part.keyspace.check().map_err(Failed::before_the_record)?;
    }
    let body = encode_ingest(&numbered(commit.catalog(), parts));
    let count = parts.iter().map(|p| p.runs.len()).max().unwrap_or(0) as u64;
    let record = Announcement {
        kind: RecordKind::Ingest,
        count,
        body: &body,
    };
    let check = || commit.env().health().check();
    let prepare = |lead: &mut Lead<'_>, first| {
        for part in parts {
            lead.rotate(commit, &part.keyspace)?;
        }
        let mut ingest = decode_ingest(&body, first)?;
        let mut fresh = Vec::new();
        for (part, (_, runs)) in parts.iter().zip(&mut ingest.parts) {
            // The active memtable is empty. Its slot becomes a part of the first run's, so that
            // neighbouring slots still meet.
            if let Some(run) = runs.first_mut() {
                run.seqs.lo = part.keyspace.view().active().lo;
            }
            let settings = part.keyspace.load_settings();
            fresh.push(lead.fresh_source(&settings, ingest.last)?);
        }
        Ok(PreparedChange::new((ingest, fresh)))
    };
    let show = |(ingest, fresh): (Ingest, Vec<Arc<MemSource>>)| {
        show_runs(commit.tree(), parts, &ingest, fresh);
        ingest
    };
    let (ingest, announced) = commit.announce(record, check, prepare, show)?;
    let edit = Edit {
        keyspaces: ingest
            .parts
            .iter()
            .map(|(id, runs)| KeyspaceEdit::adding(*id, runs))
            .collect(),
        ..Edit::default()
    };
    let keyspaces = parts.iter().map(|p| p.keyspace.clone()).collect();
    let completed = commit.catalog().complete(announced, edit, keyspaces);
    completed.map_err(|error| Failed {
        error,
        recorded: true,
    })?;
    Ok(ingest.last)
}

/// Adds the runs to the views, each keyspace's below an empty memtable of `fresh`, and removes
/// their keys from the gaps.
fn show_runs(tree: &Tree, parts: &[Part], ingest: &Ingest, fresh: Vec<Arc<MemSource>>) {
    for ((part, (_, runs)), fresh) in parts.iter().zip(&ingest.parts).zip(fresh) {
        part.keyspace.replace_view(|view| {
            let mut unsettled = view.unsettled();
            // The active memtable is empty, because it was rotated: its slot ends before the
            // ingest, and a new one starts after it.
            unsettled.remove(0);
            unsettled.push(Source::Memtable(fresh));
            let runs = runs
                .iter()
                .map(|run| RunView::new(run, tree.tables(), true));
            unsettled.extend(runs.map(Source::Run));
            KeyspaceView::build(unsettled, view.version.clone(), tree.tables(), Some(view))
        });
    }
    // This must come before the numbers are published (rule G2 of `tree/gaps`).
    for (part, (_, runs)) in parts.iter().zip(&ingest.parts) {
        let gaps = &part.keyspace.gaps;
        if gaps.is_armed() && !planted!(GapOutlivesIngest) {
            let tables = runs.iter().flat_map(|run| run.tables.tables());
            let keys = tables.filter_map(|table| table.points.as_ref());
            gaps.invalidate(
                keys.map(|(first, last)| (&first[..], &last[..])),
                ingest.last,
                tree.gap_min(),
            );
        }
    }
}

/// The parts, with new ids for their runs.
fn numbered(catalog: &Catalog, parts: &[Part]) -> Vec<NumberedPart> {
    let id = || catalog.take_table_ids(1);
    parts
        .iter()
        .map(|part| {
            let runs = part.runs.iter().map(|tables| (id(), tables.clone()));
            (part.keyspace.id, runs.collect())
        })
        .collect()
}

/// Divides tables into runs of disjoint tables, oldest first. A table is put into the oldest run
/// that is above all earlier tables that it overlaps.
pub(crate) fn runs_of(tables: Vec<Arc<TableMeta>>) -> Vec<Vec<Arc<TableMeta>>> {
    // For each run, the last key of each table by its first key. The tables of a run are disjoint,
    // so only one neighbour can overlap.
    let mut bounds: Vec<BTreeMap<Key, Key>> = Vec::new();
    let mut runs: Vec<Vec<Arc<TableMeta>>> = Vec::new();
    for table in tables {
        let Some((first, last)) = &table.points else {
            continue;
        };
        let overlaps = |run: &BTreeMap<Key, Key>| {
            let left = run.range(..=last.clone()).next_back();
            left.is_some_and(|(_, end)| end >= first)
        };
        let at = bounds.iter().rposition(overlaps).map_or(0, |run| run + 1);
        if at == runs.len() {
            runs.push(Vec::new());
            bounds.push(BTreeMap::new());
        }
        bounds[at].insert(first.clone(), last.clone());
        runs[at].push(table);
    }
    runs
}

/// Imports a file by a link. Its bytes may not have been synced yet, so it is synced here. If that
/// sync fails, no later sync of the same file can be trusted, because the kernel reports the error
/// only once. The file is then copied, and so are all files that come after it.
fn link(
    env: &crate::env::Env,
    name: &str,
    from: &dyn Storage,
    from_name: &str,
) -> siltstone_storage::Result<()> {
    let tables = &env.storages().tables;
    tables.import(env.epoch(), name, from, from_name)?;
    let Err(error) = tables.sync_object(env.epoch(), name) else {
        return Ok(());
    };
    if error.kind == StorageErrorKind::Fenced {
        return Err(error);
    }
    env.ingests().set_links_fail();
    tracing::warn!(
        %error,
        file = from_name,
        "a linked table could not be synced, tables are copied from here on"
    );
    tables.delete(env.epoch(), name)?;
    copy_object(&**tables, env.epoch(), name, from, from_name)
}

/// The files that were imported so far.
struct Imported<'a> {
    jobs: &'a Jobs,
    names: Vec<String>,
}

impl Imported<'_> {
    /// Imports one file under `name` and verifies it there.
    fn import(&mut self, file: &TableFile, name: String, how: IngestMode) -> Result<TableMeta> {
        let jobs = self.jobs;
        let tables = &jobs.env().storages().tables;
        let from = file.folder().storage();
        // This is noted before the import, because a failed import may leave a part of the file.
        self.names.push(name.clone());
        let imported = match how {
            IngestMode::Link | IngestMode::Move if !jobs.env().ingests().links_fail() => {
                link(jobs.env(), &name, &**from, file.name())
            }
            _ => copy_object(&**tables, jobs.env().epoch(), &name, &**from, file.name()),
        };
        imported.map_err(|error| no_table(file, error))?;
        let id = jobs.catalog().take_table_ids(1);
        check::verify(&**tables, &name, id, file)
    }

    /// Deletes all of them. If a deletion fails, it is tried again later, at the latest by the next
    /// open.
    fn delete(self) {
        let tables = &self.jobs.env().storages().tables;
        let mut left = Vec::new();
        for name in self.names {
            match tables.delete(self.jobs.env().epoch(), &name) {
                Err(e) if e.kind != StorageErrorKind::NotFound => left.push(name),
                _ => {}
            }
        }
        self.jobs.tree().tables().delete_later(left);
    }
}

/// See [`Store::ingest`](crate::Store::ingest). The caller has checked that the keyspaces are this
/// store's.
pub(crate) fn ingest(
    jobs: &Jobs,
    files: &[(&Arc<KeyspaceCore>, &[TableFile])],
    how: IngestMode,
) -> Result<IngestReport> {
    let _span = tracing::info_span!("ingest").entered();
    let in_flight = IngestInFlight::begin(jobs.env())?;
    jobs.env().health().check()?;
    for (keyspace, _) in files {
        keyspace.check()?;
    }
    let mut imported = Imported {
        jobs,
        names: Vec::new(),
    };
    let prepared = import_all(&mut imported, files, how);
    let (parts, mut report) = match prepared {
        Ok(prepared) => prepared,
        Err(error) => {
            imported.delete();
            return Err(error);
        }
    };
    if parts.is_empty() {
        return Ok(report);
    }
    match commit(jobs.commit(), &parts) {
        Ok(number) => report.number = number,
        Err(failed) => {
            if !failed.recorded {
                imported.delete();
            }
            return Err(failed.error);
        }
    }
    drop(in_flight);
    tracing::info!(
        number = report.number,
        table_count = report.table_count,
        file_bytes = report.file_bytes,
        "ingested"
    );
    jobs.env().events().emit(|| Event::Ingested {
        keyspaces: parts.iter().map(|p| p.keyspace.name.clone()).collect(),
        number: report.number,
        table_count: report.table_count,
        file_bytes: report.file_bytes,
    });
    for part in &parts {
        for table in part.runs.iter().flatten() {
            jobs.env()
                .events()
                .emit(|| table.created(&part.keyspace.name, 0));
        }
    }
    jobs.env().metrics().ingest_count.add(1);
    jobs.env().metrics().ingest_bytes.add(report.file_bytes);
    if how == IngestMode::Move {
        // The commit has synced the log through the record, and before that the names of the
        // imported files.
        for file in files.iter().flat_map(|(_, files)| *files) {
            match file.delete() {
                Err(e) if e.kind != StorageErrorKind::NotFound => report.left.push(file.shown()),
                _ => {}
            }
        }
    }
    Ok(report)
}

fn import_all(
    imported: &mut Imported<'_>,
    files: &[(&Arc<KeyspaceCore>, &[TableFile])],
    how: IngestMode,
) -> Result<(Vec<Part>, IngestReport)> {
    let jobs = imported.jobs;
    // No other attempt has names with this prefix.
    let prefix = jobs.runner().next_prefix();
    // If a keyspace is named twice, the files of the second list come after those of the first.
    let mut tables: LiteMap<KeyspaceId, (Arc<KeyspaceCore>, Vec<Arc<TableMeta>>)> = LiteMap::new();
    let mut report = IngestReport::default();
    for (index, (keyspace, file)) in files
        .iter()
        .flat_map(|(keyspace, files)| files.iter().map(move |file| (keyspace, file)))
        .enumerate()
    {
        // So that a close need not wait for all files.
        jobs.env().check_open()?;
        let index = u32::try_from(index)
            .map_err(|_| Error::invalid_argument("an ingest of more than 2^32 tables"))?;
        let meta = imported.import(file, prefix.table_name(0, index), how)?;
        report.table_count += 1;
        report.entry_count += meta.entries;
        report.file_bytes += meta.file_bytes;
        tables
            .entry(keyspace.id)
            .or_insert_with(|| ((*keyspace).clone(), Vec::new()))
            .1
            .push(Arc::new(meta));
    }
    if tables.is_empty() {
        return Ok((Vec::new(), report));
    }
    jobs.env().storages().tables.sync_dir(jobs.env().epoch())?;
    let parts: Vec<Part> = tables
        .into_iter()
        .map(|(_, (keyspace, tables))| Part {
            keyspace,
            runs: runs_of(tables),
        })
        .collect();
    report.run_count = parts.iter().map(|p| p.runs.len()).max().unwrap_or(0) as u64;
    if jobs.env().is_closing() {
        return Err(closed());
    }
    Ok((parts, report))
}

#[cfg(test)]
mod tests;
