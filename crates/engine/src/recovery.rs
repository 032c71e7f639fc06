//! Opening a store: create it, or bring it back after whatever happened.
//!
//! What it is (RFC 1, section 8): lease; manifest; replay of the log into memtables, spilled to tables when they are full; then one edit, in a manifest
//! written whole anew, that installs all keyspaces' replayed data and the log's new start. Only after it is durable is anything
//! deleted and is the store handed out.
//!
//! Invariants:
//! - Until the new manifest is current, nothing inherited is changed: a crash at any call leaves what was there, plus orphans.
//! - Inherited segments need no sync of their own: what was read from them is in synced tables before `open` returns, and until then nobody was
//!   told anything. (DESIGN asks for that sync; one edit for all keyspaces makes it superfluous.)
//! - Replay skips what an installed source covers, and a replayed source lies in one gap between covered ranges, so it straddles none.
//!
//! Threading: one thread until the core exists.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use arc_swap::ArcSwap;
use siltstone_storage::{Epoch, Runtime, Storage};
use siltstone_table::exec::Executor;
use siltstone_table::job::outcome::OutputTable;
use siltstone_table::reader::{ReaderOptions, TableReader};

use crate::batch::{Entries, EntryKind};
use crate::compaction::run::JobRunner;
use crate::compaction::schedule::Schedule;
use crate::core::{
    CEILING_STEP, Core, KeyspaceMap, ManifestRole, Pins, Storages, Tidy, first_memtable,
};
use crate::ddl;
use crate::error::{Error, ErrorKind, Result};
use crate::guard;
use crate::health::Health;
use crate::ingest::{self, Guests};
use crate::log::{
    LogConfig, LogOptions, LogWriter, Position, Record, RecordKind, ReplayOptions, StopReason,
};
use crate::manifest::{self, Manifest, Space, StoreId};
use crate::memtable::Memtable;
use crate::metrics::Metrics;
use crate::options::{KeyspaceOptions, Options, SyncMode};
use crate::planted::{self, Bug};
use crate::reserve;
use crate::settings::{Arenas, Settings};
use crate::snapshot::SnapshotRegistry;
use crate::stall::Stalls;
use crate::store::DEFAULT_KEYSPACE;
use crate::tables::TableSet;
use crate::version::{
    AddTable, CreateKeyspace, Edit, KeyspaceEdit, KeyspaceId, KeyspaceState, KeyspaceVersion,
    Level, Run, RunSlot, SeqRange, SeqSet, StoreState, StoredOptions, TableMeta,
};
use crate::view::{KeyspaceCore, KeyspaceView, MemSource, RunView, Source};
use crate::write::WriteQueue;

/// Replayed data is kept in memory without room for tables up to this many memtables.
const HELD_MEMTABLES: u64 = 8;

/// Name of the lease.
pub(crate) const LEASE: &str = "store";

/// What a store is opened for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    Writing,
    /// On storages that change nothing (`overlay`): no tasks, and every change is refused.
    Reading,
}

/// Opens or creates.
pub(crate) fn open(
    storages: &Storages,
    runtime: Runtime,
    executors: Vec<Arc<dyn Executor>>,
    options: Options,
    purpose: Purpose,
) -> Result<Arc<Core>> {
    let health = Arc::new(Health::new(&runtime));
    let storages = guard::guard(storages, &runtime, &health);
    let place = storages.manifest.describe();
    let no_store = || {
        Error::not_found(format!("there is no store in {place}"))
            .advice("check the path, or open with create_if_missing")
    };
    // Looked at before the lease, which leaves a file: a folder that is no store is left as it is.
    if !options.create_if_missing
        && manifest::read_current(&*storages.manifest).is_ok_and(|current| current.is_none())
    {
        refuse_headless_data(&storages)?;
        return Err(no_store());
    }
    let lease = storages
        .manifest
        .lease(LEASE)
        .map_err(|e| Error::from(e).context(format!("opening the store {place}")))?;
    let epoch = if planted::is(Bug::IgnoreLostLease) {
        Epoch(u64::MAX)
    } else {
        lease.epoch()
    };
    let recovered = manifest::recover(&*storages.manifest)?;
    if recovered.is_some() && options.error_if_exists {
        return Err(
            Error::invalid_argument(format!("there is a store in {place} already"))
                .advice("open it without error_if_exists, or use another folder"),
        );
    }
    if recovered.is_none() {
        if !options.create_if_missing {
            return Err(no_store());
        }
        refuse_headless_data(&storages)?;
    }
    let store_id = match &recovered {
        Some(r) => r.current.store_id,
        None => StoreId(u128::from(runtime.random_u64()) << 64 | u128::from(runtime.random_u64())),
    };
    let metrics = Metrics::default();
    let arenas = Arenas::new(&runtime);
    let old = recovered
        .as_ref()
        .map(|r| r.state.clone())
        .unwrap_or_else(new_state);
    let open_number = next_open_number(&storages, &old)?;
    let jobs = JobRunner::new(
        &runtime,
        &storages,
        epoch,
        open_number,
        options.subjobs_max as usize,
        executors,
    );
    jobs.rate.set(options.background_bytes_per_s);

    let mut replay = Replay::new(&old, &jobs, &options, &arenas)?;
    if recovered.is_some() {
        let synced = Position::new(old.log_synced.segment as u32, old.log_synced.offset as u32);
        let replay_options = ReplayOptions {
            store_id: log_store_id(store_id),
            start_segment: old.log_start as u32,
            synced,
        };
        let report = crate::log::replay(&*storages.log, &replay_options, &mut |record| {
            metrics.replayed_record_count.add(1);
            replay.apply(&record)
        })?;
        if report.stop == StopReason::NoStartSegment && !planted::is(Bug::MissingStartIsEmpty) {
            // Its name was durable before a manifest named it.
            return Err(no_first_segment(old.log_start as u32));
        }
        let covered = old
            .keyspaces
            .values()
            .filter_map(|k| Some(k.version.covered().ranges().last()?.hi))
            .max();
        if planted::is(Bug::SyncMarkIsNumber) && report.last_sequence < covered {
            return Err(Error::corruption(
                "log",
                "the log ends before the number that was synced",
            ));
        }
        metrics
            .discarded_log_bytes
            .add(report.discarded.record_bytes);
        // Behind history's end there is nothing that a later replay would read; on a full disk its space is wanted.
        delete_segments_behind(&storages, epoch, report.end.segment)?;
        if purpose == Purpose::Writing {
            reserve::make_for_log(epoch, &*storages.log, &options)?;
        }
    }
    let (edit, published, rest) = replay.finish(&old)?;
    if rest.is_some() {
        // What the manifest is about to say (creates and drops) comes after these records.
        sync_inherited(&storages, epoch, old.log_start as u32)?;
    }

    let on_poison = {
        let health = health.clone();
        Box::new(move |error: &Error| health.poison(error))
    };
    let log = LogWriter::start(LogConfig {
        storage: storages.log.clone(),
        epoch,
        runtime: runtime.clone(),
        store_id: log_store_id(store_id),
        options: LogOptions {
            segment_bytes: options.log_segment_bytes,
            recycle_count: 4,
        },
        reserve: reserve::find(&*storages.log, reserve::LOG)?,
        on_poison,
    })?;
    let ceiling = published + CEILING_STEP;
    let edit = Edit {
        open_number: Some(open_number),
        sequence_ceiling: Some(ceiling),
        // While replayed data waits for room, replay must find it again.
        log_start: Some(log.first_segment().into()).filter(|_| rest.is_none()),
        ..edit
    };
    let state = old.apply(&edit)?;
    if planted::is(Bug::DeleteBeforeManifest) {
        for number in old.log_start..u64::from(log.first_segment()) {
            let _ = storages
                .log
                .delete(epoch, &crate::log::format::segment_name(number as u32));
        }
    }
    #[cfg(feature = "planted")]
    let state = if planted::is(Bug::RecoverOneByOne) {
        // The first keyspace's data and the log's new start in an edit of their own, before the others'.
        let keyspaces = edit.keyspaces.iter().take(2).cloned().collect();
        let first = old.apply(&Edit { keyspaces, ..edit })?;
        write_manifest(&storages, epoch, store_id, Arc::new(first))?;
        state
    } else {
        state
    };
    let manifest = write_manifest(&storages, epoch, store_id, Arc::new(state))?;
    let state = manifest.state().clone();

    let tables = Arc::new(TableSet::new(&runtime, storages.tables.clone(), &options));
    let mut keyspaces = KeyspaceMap::default();
    let mut source_id = 0;
    for (id, keyspace) in &state.keyspaces {
        let own = KeyspaceOptions::from_stored(&keyspace.options)
            .map_err(|e| e.context(format!("keyspace `{}`", keyspace.name)))?;
        let settings = Settings::new(own, &options, &arenas);
        let mem = first_memtable(&settings)?;
        let mut unsettled = vec![Source::Memtable(MemSource::new(source_id, mem, published))];
        source_id += 1;
        for waiting in rest.iter().flat_map(|r| r.of(*id)) {
            unsettled.push(waiting.source(source_id, &tables));
            source_id += 1;
        }
        let view = KeyspaceView::build(unsettled, keyspace.version.clone(), &tables, None);
        keyspaces.by_name.insert(keyspace.name.clone(), *id);
        keyspaces.by_id.insert(
            *id,
            KeyspaceCore::new(&runtime, *id, &keyspace.name, view, settings),
        );
        keyspaces.by_id[id].set_created();
    }
    let core = Arc::new(Core {
        live: ArcSwap::from_pointee(options.clone()),
        sync_every_write: options.sync == SyncMode::Always,
        stalls: Stalls::new(&runtime),
        snapshots: SnapshotRegistry::new(&runtime, published),
        queue: WriteQueue::new(&runtime, &health, published + 1, source_id),
        keyspaces: ArcSwap::from_pointee(keyspaces),
        ddl: runtime.mutex(()),
        pins: runtime.mutex(Pins::default()),
        guests: Guests::new(&runtime),
        next_table_id: AtomicU64::new(state.next_table_id),
        manifest: runtime.mutex(ManifestRole {
            manifest,
            pending: Vec::new(),
        }),
        ceiling: AtomicU64::new(ceiling),
        schedule: runtime.mutex(Schedule::new()),
        work: runtime.condvar(),
        settled: runtime.condvar(),
        closing: AtomicBool::new(false),
        tidy: runtime.mutex(Tidy::default()),
        tidy_wake: runtime.condvar(),
        tidy_pause: runtime.condvar(),
        tasks: runtime.mutex(Default::default()),
        last_job_error: runtime.mutex(None),
        lease: runtime.mutex(Some(lease)),
        log_bytes: AtomicU64::new(0),
        waits_for_room: AtomicBool::new(rest.is_some()),
        rest: runtime.mutex(None),
        tables,
        jobs,
        epoch,
        health,
        metrics,
        arenas,
        log,
        storages,
        runtime,
        options,
    });
    if purpose == Purpose::Reading {
        core.health.set_read_only();
        return Ok(core);
    }
    match rest {
        None => {
            delete_orphans(&core, &state)?;
            reserve::make(&core)?;
        }
        Some(mut rest) => {
            rest.pin = core.pin_log(old.log_start as u32);
            core.health.set_no_space(&rest.cause);
            crate::background::delete_old_manifests(&core);
            core.storages.manifest.sync_dir(core.epoch)?;
            reserve::make(&core)?;
            *core.rest.lock() = Some(rest);
        }
    }
    crate::settings::keep_wishes(&core)?;
    crate::background::start(&core)?;
    Ok(core)
}

/// The segment at which the manifest says that history starts is not there.
pub(crate) fn no_first_segment(number: u32) -> Error {
    Error::corruption(
        crate::log::format::segment_name(number),
        "the log's first segment is missing",
    )
    .expected("the segment that the manifest names")
    .found("no file of this name")
}

/// The log carries half of the store's id.
pub(crate) fn log_store_id(id: StoreId) -> u64 {
    id.0 as u64
}

/// A store's first state: one keyspace, no numbers given.
fn new_state() -> StoreState {
    let id = 1;
    let mut state = StoreState {
        next_keyspace_id: id + 1,
        next_table_id: 1,
        ..StoreState::new()
    };
    let keyspace = KeyspaceState {
        name: DEFAULT_KEYSPACE.to_string(),
        created_sequence: 0,
        options: StoredOptions::new(),
        version: Arc::new(KeyspaceVersion::new(id)),
    };
    state.keyspaces.insert(id, Arc::new(keyspace));
    state
}

/// Without `CURRENT`, data in the folder means that the pointer was lost, not that the store is new: creating one would delete it.
fn refuse_headless_data(storages: &Storages) -> Result<()> {
    crate::checkpoint::refuse_unfinished(storages)?;
    let refuse = |file: &str| {
        Err(Error::corruption(
            file,
            "the folder holds data of a store but no file CURRENT that names its manifest",
        )
        .advice("put CURRENT back from a copy; do not create a new store over the old one's files"))
    };
    for object in storages.tables.list()? {
        if object.name.ends_with(".tbl") {
            return refuse(&object.name);
        }
    }
    for object in storages
        .log
        .list()?
        .iter()
        .filter(|o| o.name.ends_with(".log") && o.len >= 96)
    {
        let mut head = [0u8; 32];
        storages.log.open(&object.name)?.read_at(64, &mut head)?;
        if head != [0; 32] {
            return refuse(&object.name);
        }
    }
    Ok(())
}

/// Above the last open's number and above that of every table found, so that a name never comes back.
fn next_open_number(storages: &Storages, old: &StoreState) -> Result<u64> {
    let found = storages
        .tables
        .list()?
        .iter()
        .filter_map(|o| open_number_of(&o.name))
        .max()
        .unwrap_or(0);
    Ok(old.open_number.max(found) + 1)
}

/// The open number in a table's name.
pub(crate) fn open_number_of(name: &str) -> Option<u64> {
    let (number, _) = name.strip_suffix(".tbl")?.split_once('-')?;
    u64::from_str_radix(number, 16).ok()
}

fn write_manifest(
    storages: &Storages,
    epoch: Epoch,
    store_id: StoreId,
    state: Arc<StoreState>,
) -> Result<Manifest> {
    // Tables' names, and the log's first segment's, before the manifest that names them.
    storages.tables.sync_dir(epoch)?;
    storages.log.sync_dir(epoch)?;
    let create = |space| {
        Manifest::create(
            storages.manifest.clone(),
            epoch,
            store_id,
            state.clone(),
            space,
        )
        .map_err(Error::from)
    };
    match create(Space::Fresh) {
        Err(error) if error.is_no_space() => {
            // The pointer's replacement is a new object for a moment: its room is given up first, whatever the manifest is made of.
            let freed = reserve::find(&*storages.manifest, reserve::POINTER)?.is_some();
            if freed {
                storages.manifest.delete(epoch, reserve::POINTER)?;
                storages.manifest.sync_dir(epoch)?;
            }
            match reserve::find(&*storages.manifest, reserve::MANIFEST)? {
                Some(name) => create(Space::Recycle(&name)),
                // An open before this one has used it up, and had no room for another.
                None if freed => create(Space::Fresh),
                None => Err(error),
            }
        }
        result => result,
    }
}

/// Deletes the segments behind the end of history: what was discarded, and chains of opens that came to nothing.
fn delete_segments_behind(storages: &Storages, epoch: Epoch, last: u32) -> Result<()> {
    let mut deleted = false;
    for object in storages.log.list()? {
        if crate::log::format::parse_segment_name(&object.name).is_some_and(|n| n > last) {
            storages.log.delete(epoch, &object.name)?;
            deleted = true;
        }
    }
    // Some storages give space back only with the durable deletion.
    if deleted {
        Ok(storages.log.sync_dir(epoch)?)
    } else {
        Ok(())
    }
}

/// Makes what was read from the inherited log durable, oldest segment first.
fn sync_inherited(storages: &Storages, epoch: Epoch, start: u32) -> Result<()> {
    for object in storages.log.list()? {
        if crate::log::format::parse_segment_name(&object.name).is_some_and(|n| n >= start) {
            storages.log.sync_object(epoch, &object.name)?;
        }
    }
    Ok(())
}

/// A keyspace's replayed data so far.
struct Replayed {
    settings: Arc<Settings>,
    /// What installed sources and finished replayed ones cover.
    covered: SeqSet,
    /// The memtable being filled, and the number before its first possible one.
    filling: Option<(Arc<Memtable>, u64)>,
    last_seq: u64,
    /// Ids are given at the end, above every id that the log names.
    runs: Vec<(SeqRange, Sealed)>,
}

/// A replayed source: tables that nothing refers to yet, or, without room for them, its memtable.
enum Sealed {
    Tables(Vec<OutputTable>),
    Held(Arc<Memtable>),
}

/// Replayed data that waits for room: readable, in the inherited log, and not in the manifest.
pub(crate) struct Rest {
    cause: Error,
    published: u64,
    keyspaces: BTreeMap<KeyspaceId, Vec<Waiting>>,
    /// Keeps the inherited log.
    pin: u64,
}

#[derive(Clone)]
enum Waiting {
    Run(Run),
    Held { mem: Arc<Memtable>, seqs: SeqRange },
}

impl Rest {
    fn of(&self, id: KeyspaceId) -> &[Waiting] {
        self.keyspaces.get(&id).map_or(&[], Vec::as_slice)
    }
}

impl Waiting {
    /// As a source of a view: no flush takes it, no compaction passes it.
    fn source(&self, id: u64, tables: &TableSet) -> Source {
        match self {
            Waiting::Run(run) => Source::Run(RunView::new(run, tables, true)),
            Waiting::Held { mem, seqs } => {
                let source = MemSource::new(id, mem.clone(), seqs.lo);
                source.held.store(true, Ordering::Release);
                source.seal(seqs.hi);
                Source::Memtable(source)
            }
        }
    }
}

/// Tries again to install what waits for room: everything, by one edit, with the log's new start.
pub(crate) fn install_rest(core: &Core) -> Result<()> {
    let mut slot = core.rest.lock();
    let Some(rest) = &*slot else { return Ok(()) };
    let mut written: Vec<OutputTable> = Vec::new();
    if let Err(error) = write_rest(core, rest, &mut written) {
        if !core.health.is_poisoned() {
            // See `flush`: an edit in doubt keeps its tables.
            core.jobs.discard(&written);
        }
        return Err(error);
    }
    let pin = rest.pin;
    *slot = None;
    drop(slot);
    core.unpin_log(pin);
    core.waits_for_room.store(false, Ordering::Release);
    let state = core.manifest.lock().manifest.state().clone();
    delete_orphans(core, &state)?;
    reserve::make(core)
}

fn write_rest(core: &Core, rest: &Rest, written: &mut Vec<OutputTable>) -> Result<()> {
    let mut edit = Edit {
        log_start: Some(core.log.first_segment().into()),
        ..Edit::default()
    };
    let mut changed = Vec::new();
    for (id, waiting) in &rest.keyspaces {
        // Dropped meanwhile: that is one way to make room.
        let Ok(keyspace) = core.keyspace_by_id(*id) else {
            continue;
        };
        let mut runs = Vec::new();
        for waiting in waiting {
            match waiting {
                Waiting::Run(run) => runs.push(run.clone()),
                Waiting::Held { mem, seqs } => {
                    let tables = core.jobs.flush_for_recovery(
                        *id,
                        &keyspace.pin_settings().all,
                        mem,
                        rest.published,
                    )?;
                    written.extend(tables.iter().cloned());
                    let ids = tables.len() as u64 + 1;
                    let mut next_id = core.next_table_id.fetch_add(ids, Ordering::AcqRel);
                    let run_id = next_id;
                    next_id += 1;
                    let tables = Level::new(JobRunner::metas(tables, &mut next_id))?;
                    runs.push(Run {
                        id: run_id,
                        seqs: *seqs,
                        tables,
                    });
                }
            }
        }
        edit.keyspaces
            .push(keyspace_edit(*id, &runs, rest.published));
        changed.push(keyspace);
    }
    let mut role = core.manifest.lock();
    edit.keyspaces
        .retain(|k| role.manifest.state().keyspace(k.id).is_some());
    core.commit_edit(&mut role, edit)?;
    for keyspace in changed {
        let held: Vec<u64> = keyspace
            .view()
            .sealed()
            .filter(|m| m.held.load(Ordering::Acquire))
            .map(|m| m.id)
            .collect();
        crate::compaction::install::refresh_view(core, &role, &keyspace, &held);
    }
    Ok(())
}

/// The edit that installs replayed runs of one keyspace; everything up to `published` is then covered.
pub(crate) fn keyspace_edit(id: KeyspaceId, runs: &[Run], published: u64) -> KeyspaceEdit {
    let add = runs.iter().flat_map(|run| {
        let slot = RunSlot {
            id: run.id,
            seqs: run.seqs,
        };
        run.tables.tables().iter().map(move |t| AddTable {
            level: 0,
            run: Some(slot),
            table: t.clone(),
        })
    });
    KeyspaceEdit {
        id,
        covered: runs.iter().map(|r| r.seqs).collect(),
        covered_floor: Some(published),
        add: add.collect(),
        ..KeyspaceEdit::default()
    }
}

/// Applies log records to memtables, and turns those into runs.
struct Replay<'a> {
    jobs: &'a JobRunner,
    options: &'a Options,
    arenas: &'a Arenas,
    keyspaces: BTreeMap<KeyspaceId, Replayed>,
    dropped: BTreeSet<KeyspaceId>,
    next_keyspace_id: KeyspaceId,
    next_table_id: u64,
    edit: Edit,
    ingested: Vec<(KeyspaceId, Run)>,
    last_seq: u64,
    /// Set once a table found no room; from then on memtables are kept, up to the budget.
    no_space: Option<Error>,
    held_bytes: u64,
    held_bytes_max: u64,
}

impl<'a> Replay<'a> {
    fn new(
        state: &StoreState,
        jobs: &'a JobRunner,
        options: &'a Options,
        arenas: &'a Arenas,
    ) -> Result<Self> {
        let mut replay = Replay {
            jobs,
            options,
            arenas,
            keyspaces: BTreeMap::new(),
            dropped: BTreeSet::new(),
            next_keyspace_id: state.next_keyspace_id,
            next_table_id: state.next_table_id,
            edit: Edit::default(),
            ingested: Vec::new(),
            last_seq: 0,
            no_space: None,
            held_bytes: 0,
            held_bytes_max: options.log_bytes_max,
        };
        for (id, keyspace) in &state.keyspaces {
            let covered = keyspace.version.covered().clone();
            replay
                .begin(*id, covered, &keyspace.options)
                .map_err(|e| e.context(format!("keyspace `{}`", keyspace.name)))?;
        }
        Ok(replay)
    }

    /// A keyspace that records may be for.
    fn begin(&mut self, id: KeyspaceId, covered: SeqSet, stored: &StoredOptions) -> Result<()> {
        let own = KeyspaceOptions::from_stored(stored)?;
        let settings = Settings::new(own, self.options, self.arenas);
        let budget = settings.arenas.arena_bytes() as u64 * HELD_MEMTABLES;
        self.held_bytes_max = self.held_bytes_max.max(budget);
        self.keyspaces.insert(id, Replayed::new(covered, settings));
        Ok(())
    }

    fn apply(&mut self, record: &Record<'_>) -> Result<()> {
        let first = record.first_sequence;
        match record.kind {
            RecordKind::Group => self.apply_group(first, record),
            RecordKind::KeyspaceCreate => {
                let (id, name, options) = ddl::decode_create(record.payload)?;
                self.last_seq = self.last_seq.max(first);
                if id < self.next_keyspace_id {
                    // The manifest has it, or has dropped it again.
                    return Ok(());
                }
                self.next_keyspace_id = id + 1;
                let mut covered = SeqSet::new();
                covered.insert(SeqRange::new(0, first));
                self.begin(id, covered, &options)
                    .map_err(|e| e.context(format!("keyspace `{name}`")))?;
                self.edit.create.push(CreateKeyspace {
                    id,
                    name: name.to_string(),
                    sequence: first,
                    options,
                });
                Ok(())
            }
            RecordKind::KeyspaceDrop => {
                let id = ddl::decode_drop(record.payload)?;
                self.last_seq = self.last_seq.max(first);
                if self.keyspaces.remove(&id).is_some() {
                    self.dropped.insert(id);
                    self.ingested.retain(|(keyspace, _)| *keyspace != id);
                    let created = self.edit.create.len();
                    self.edit.create.retain(|c| c.id != id);
                    if self.edit.create.len() == created {
                        self.edit.drop.push(id);
                    }
                }
                Ok(())
            }
            RecordKind::Ingest => {
                let ingest = ingest::decode(record.payload, first)
                    .map_err(|e| e.in_file(file_of(record)).at(record.position.offset.into()))?;
                self.last_seq = self.last_seq.max(ingest.last);
                self.next_table_id = self.next_table_id.max(ingest.next_table_id());
                if planted::is(Bug::CheckIngestsAtOnce) {
                    ingest
                        .tables()
                        .try_for_each(|t| check_ingested(self.jobs.outputs(), t))?;
                }
                for (id, runs) in ingest.parts {
                    // Parts of dropped keyspaces are left out. One edit installs all others, so either all of them are covered or none.
                    let Some(replayed) = self.keyspaces.get(&id) else {
                        continue;
                    };
                    if replayed.covered.contains(first) {
                        continue;
                    }
                    self.seal(id)?;
                    let replayed = self.keyspaces.get_mut(&id).expect("looked at it");
                    for run in runs {
                        replayed.covered.insert(run.seqs);
                        self.ingested.push((id, run));
                    }
                }
                Ok(())
            }
        }
    }

    fn apply_group(&mut self, first: u64, record: &Record<'_>) -> Result<()> {
        for (seq, entry) in (first..).zip(Entries::new(record.payload)) {
            let entry = entry.map_err(|bad| {
                bad.into_error("a log record")
                    .in_file(file_of(record))
                    .at(record.position.offset.into())
            })?;
            self.last_seq = self.last_seq.max(seq);
            let id = entry.keyspace;
            match self.keyspaces.get(&id) {
                None if id < self.next_keyspace_id => {}
                None => {
                    return Err(Error::corruption(
                        file_of(record),
                        format!("a log record names keyspace {id}, which was never created"),
                    )
                    .at(record.position.offset.into()));
                }
                Some(replayed)
                    if replayed.covered.contains(seq)
                        && !planted::is(Bug::ReplayIgnoresCovered) =>
                {
                    if replayed.filling.is_some() {
                        self.seal(id)?;
                    }
                }
                Some(_) => self.insert(id, seq, &entry)?,
            }
        }
        Ok(())
    }

    fn insert(&mut self, id: KeyspaceId, seq: u64, entry: &crate::batch::Entry<'_>) -> Result<()> {
        let replayed = &self.keyspaces[&id];
        let (gap_lo, _) = gap(&replayed.covered, seq);
        let full = match &replayed.filling {
            Some((mem, lo)) => *lo < gap_lo || !mem.room_for(1, entry.key.len(), entry.value.len()),
            None => false,
        };
        if full {
            self.seal(id)?;
        }
        let replayed = self.keyspaces.get_mut(&id).expect("looked at it");
        if replayed.filling.is_none() {
            let min_bytes = Memtable::arena_bytes_for(1, entry.key.len(), entry.value.len());
            // The log may hold one entry of each of a thousand keyspaces.
            let arenas = &replayed.settings.arenas;
            let arena = if replayed.runs.is_empty() {
                arenas.take_lazily(min_bytes)
            } else {
                arenas.take(min_bytes)
            };
            let arena = arena.map_err(|e| {
                Error::new(ErrorKind::NoSpace, format!("no memory for replay: {e}"))
            })?;
            let (lo, _) = gap(&replayed.covered, seq);
            replayed.filling = Some((Arc::new(Memtable::new(arena)), lo));
        }
        let (mem, _) = replayed.filling.as_ref().expect("made above");
        let mut writer = mem.writer();
        let inserted = match entry.kind {
            EntryKind::RangeDelete => writer.add_range_delete(entry.key, entry.value, seq),
            kind => writer.insert(entry.key, seq, kind as u8, entry.value),
        };
        replayed.last_seq = seq;
        inserted.map_err(|e| {
            Error::new(
                ErrorKind::Corruption,
                format!("a log record's entry cannot be applied: {e}"),
            )
        })
    }

    /// Turns the keyspace's memtable into a run of tables that nothing refers to yet.
    fn seal(&mut self, id: KeyspaceId) -> Result<()> {
        let replayed = self
            .keyspaces
            .get_mut(&id)
            .expect("a keyspace that is replayed");
        let Some((mem, lo)) = replayed.filling.take() else {
            return Ok(());
        };
        let seqs = SeqRange::new(lo, replayed.last_seq);
        let published = self.last_seq.max(replayed.last_seq);
        let tables = match &self.no_space {
            Some(_) => None,
            None => match self
                .jobs
                .flush_for_recovery(id, &replayed.settings.all, &mem, published)
            {
                Ok(tables) => Some(tables),
                Err(error) if error.is_no_space() && planted::is(Bug::ReplayWithoutRoom) => {
                    Some(Vec::new())
                }
                Err(error) if error.is_no_space() => {
                    self.no_space = Some(error);
                    None
                }
                Err(error) => return Err(error),
            },
        };
        replayed.covered.insert(seqs);
        match tables {
            Some(tables) if tables.is_empty() => {}
            Some(tables) => replayed.runs.push((seqs, Sealed::Tables(tables))),
            None => {
                self.held_bytes += mem.used_bytes();
                if self.held_bytes > self.held_bytes_max {
                    let cause = self.no_space.clone().expect("set above");
                    return Err(cause
                        .context("the log holds more than fits in memory, and there is no room for tables")
                        .expected(format!("at most {} bytes of replayed data without room", self.held_bytes_max)));
                }
                replayed.runs.push((seqs, Sealed::Held(mem)));
            }
        }
        Ok(())
    }

    /// The one edit of recovery, the last number that counts as published, and what waits for room. With something waiting, the edit holds
    /// only creates and drops: data and the log's start come together, later.
    fn finish(mut self, old: &StoreState) -> Result<(Edit, u64, Option<Rest>)> {
        let ids: Vec<_> = self.keyspaces.keys().copied().collect();
        for id in ids {
            self.seal(id)?;
        }
        // Every number up to the ceiling may have been given, somewhere.
        let given = if planted::is(Bug::ReuseNumbers) {
            0
        } else {
            old.sequence_ceiling
        };
        let published = given.max(self.last_seq);
        if planted::is(Bug::SpillIdsFromManifest) {
            self.next_table_id = old.next_table_id;
        }
        let mut edit = self.edit;
        let mut ingested = self.ingested;
        for (_, run) in &ingested {
            for table in run.tables.tables() {
                check_ingested(self.jobs.outputs(), table)?;
            }
        }
        let mut keyspaces: BTreeMap<KeyspaceId, Vec<Waiting>> = BTreeMap::new();
        for (id, replayed) in self.keyspaces {
            let waiting = keyspaces.entry(id).or_default();
            for (seqs, sealed) in replayed.runs {
                waiting.push(match sealed {
                    Sealed::Held(mem) => Waiting::Held { mem, seqs },
                    Sealed::Tables(tables) => {
                        let run_id = self.next_table_id;
                        self.next_table_id += 1;
                        let metas = JobRunner::metas(tables, &mut self.next_table_id);
                        Waiting::Run(Run {
                            id: run_id,
                            seqs,
                            tables: Level::new(metas)?,
                        })
                    }
                });
            }
            let mut i = 0;
            while i < ingested.len() {
                if ingested[i].0 == id {
                    waiting.push(Waiting::Run(ingested.swap_remove(i).1));
                } else {
                    i += 1;
                }
            }
        }
        edit.next_keyspace_id = Some(self.next_keyspace_id);
        edit.next_table_id = Some(self.next_table_id);
        if let Some(cause) = self.no_space {
            return Ok((
                edit,
                published,
                Some(Rest {
                    cause,
                    published,
                    keyspaces,
                    pin: 0,
                }),
            ));
        }
        for (id, waiting) in keyspaces {
            let runs: Vec<Run> = waiting
                .into_iter()
                .filter_map(|w| match w {
                    Waiting::Run(run) => Some(run),
                    Waiting::Held { .. } => None,
                })
                .collect();
            edit.keyspaces.push(keyspace_edit(id, &runs, published));
        }
        Ok((edit, published, None))
    }
}

impl Replayed {
    fn new(covered: SeqSet, settings: Arc<Settings>) -> Replayed {
        Replayed {
            settings,
            covered,
            filling: None,
            last_seq: 0,
            runs: Vec::new(),
        }
    }
}

fn file_of(record: &Record<'_>) -> String {
    crate::log::format::segment_name(record.position.segment)
}

/// The gap between covered ranges that `seq` lies in: the number before its first one, and its last one.
fn gap(covered: &SeqSet, seq: u64) -> (u64, u64) {
    let ranges = covered.ranges();
    let i = ranges.partition_point(|r| r.hi < seq);
    let lo = i.checked_sub(1).map_or(0, |i| ranges[i].hi);
    let hi = ranges.get(i).map_or(u64::MAX, |r| r.lo);
    (lo, hi)
}

/// A table of an ingest whose edit was lost: its file was synced before the record was written, so it must be there, whole.
fn check_ingested(storage: &Arc<dyn Storage>, table: &TableMeta) -> Result<()> {
    let file = storage
        .open(&table.name)
        .map_err(|e| Error::from(e).with_kind(ErrorKind::Corruption))?;
    let reader = TableReader::open(
        file,
        ReaderOptions {
            map: false,
            ..ReaderOptions::default()
        },
    )?;
    let found = (reader.file().len(), u128::from(reader.footer().digest));
    if found == (table.file_bytes, table.digest) {
        return Ok(());
    }
    Err(Error::corruption(
        table.name.clone(),
        "an ingested table is not the one that the log names",
    )
    .expected(format!(
        "{} bytes, digest {:016x}",
        table.file_bytes, table.digest
    ))
    .found(format!("{} bytes, digest {:016x}", found.0, found.1)))
}

/// Deletes what earlier opens left and the new state does not name. After an open on a full disk it runs beside the store's work: names of
/// this open are none of its business (outputs of running jobs, which nothing names yet), nor are tables that have or had a handle (views from
/// before a compaction hold them, and the sweep deletes them in its time).
fn delete_orphans(core: &Core, state: &StoreState) -> Result<()> {
    let named: BTreeSet<&str> = state
        .keyspaces
        .values()
        .flat_map(|k| k.version.tables())
        .map(|(_, t)| t.name.as_str())
        .collect();
    for object in core.storages.tables.list()? {
        let inherited = open_number_of(&object.name)
            .is_some_and(|n| n < core.jobs.open_number || planted::is(Bug::DeleteOutputsOfJobs));
        if !inherited
            || named.contains(object.name.as_str())
            || core.tables.is_registered(&object.name)
        {
            continue;
        }
        match core.storages.tables.delete(core.epoch, &object.name) {
            Ok(()) => {
                core.metrics.deleted_file_count.add(1);
            }
            // The sweep was faster.
            Err(e) if e.kind == siltstone_storage::StorageErrorKind::NotFound => {}
            Err(e) => return Err(e.into()),
        }
    }
    core.log.obsolete(core.log.first_segment())?;
    crate::background::delete_old_manifests(core);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_lie_between_covered_ranges() {
        let mut covered = SeqSet::new();
        assert_eq!(gap(&covered, 5), (0, u64::MAX));
        covered.insert(SeqRange::new(3, 7));
        covered.insert(SeqRange::new(10, 12));
        assert_eq!(gap(&covered, 2), (0, 3));
        assert_eq!(gap(&covered, 3), (0, 3));
        assert_eq!(gap(&covered, 8), (7, 10));
        assert_eq!(gap(&covered, 10), (7, 10));
        assert_eq!(gap(&covered, 13), (12, u64::MAX));
    }

    #[test]
    fn open_numbers_of_names() {
        assert_eq!(open_number_of("0000000a-00000003-0000-00001.tbl"), Some(10));
        assert_eq!(open_number_of("000012.log"), None);
        assert_eq!(open_number_of("MANIFEST-000000000003"), None);
    }
}
