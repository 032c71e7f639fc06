//! Opening a store: create it, or bring it back after whatever happened.
//!
//! What it is (RFC 1, section 8): lease; manifest; replay of the log into memtables, spilled to tables when they are full; then one edit, in a manifest
//! written whole anew, that installs all keyspaces' replayed data and the log's new start. Only after it is durable is anything
//! deleted and is the store handed out.
//!
//! Invariants:
//! - Until the new manifest is current, nothing inherited is changed: a crash at any call leaves what was there, plus orphans.
//! - Inherited segments need no sync of their own: what was read from them is in synced tables
//!   before `open` returns, and nothing is acknowledged before that.
//!
//! Parts: `replay` (records to runs), `install` (the new manifest; what waits for room), `orphans` (what earlier opens left).
//!
//! Threading: one thread until the core exists.

pub(crate) mod overlay;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};

use arc_swap::ArcSwap;
use siltstone_storage::planted::{self, Bug};
use siltstone_storage::{Epoch, Runtime};
use siltstone_table::exec::Executor;

use crate::catalog::edits::CEILING_STEP;
use crate::catalog::{Catalog, KeyspaceMap, ManifestRole, Pins, reserve};
use crate::commit::Commit;
use crate::commit::stalls::Stalls;
use crate::commit::write::WriteQueue;
use crate::env::descriptors::Descriptors;
use crate::env::failures::Failures;
use crate::env::health::Health;
use crate::env::ingests::IngestsInFlight;
use crate::env::notify::Notify;
use crate::env::session::SessionId;
use crate::env::wrapped_storage::Below;
use crate::env::{Env, guard};
use crate::formats::directories::{
    self, Claim, Storages, log_store_id, random_id, refuse_headless_data,
};
use crate::formats::log::format::{MAX_SEQUENCE, segment_name};
use crate::formats::log::replay::no_first_segment;
use crate::formats::log::{
    LogConfig, LogOptions, LogWriter, PassedDamage, Position, ReplayOptions, ReplayReport,
};
use crate::formats::manifest;
use crate::formats::version::{Edit, KeyspaceState, KeyspaceVersion, LogPosition, StoreState};
use crate::jobs::Jobs;
use crate::jobs::build::JobRunner;
use crate::jobs::schedule::Schedule;
use crate::services::core::Core;
use crate::tree::Tree;
use crate::tree::settings::{Arenas, Settings, first_memtable};
use crate::tree::snapshot::SnapshotRegistry;
use crate::tree::tables::TableSet;
use crate::tree::view::{KeyspaceCore, KeyspaceView, MemSource, Source};
use crate::types::error::{Error, Result};
use crate::types::event::{Event, Events};
use crate::types::limits::DEFAULT_KEYSPACE;
use crate::types::metrics::Metrics;
use crate::types::options::stored::StoredOptions;
use crate::types::options::{DirectIo, KeyspaceOptions, Options, SyncMode};
use crate::wal::Wal;
use crate::wal::interval::IntervalSync;

mod install;
mod orphans;
mod replay;

use install::write_manifest;
pub(crate) use install::{Rest, install_rest, keyspace_edit};
use orphans::{
    delete_orphans, delete_segments_behind, next_open_number, refuse_missing_tables,
    refuse_other_formats, sync_inherited,
};
use replay::Replay;
pub(crate) use replay::ReplayBudget;

/// What a store is opened for.
pub(crate) enum Purpose {
    Writing,
    /// On storages that change nothing (`overlay`) and keep to this budget: no tasks, and every
    /// change is refused. With the storages below them.
    Reading(ReplayBudget, Storages),
}

/// Opens or creates.
pub(crate) fn open(
    storages: &Storages,
    runtime: Runtime,
    executors: Vec<Arc<dyn Executor>>,
    events: Arc<Events>,
    options: Options,
    purpose: Purpose,
) -> Result<Arc<Core>> {
    let health = Arc::new(Health::new(&runtime, events.clone()));
    let descriptors = Descriptors::new(&runtime, storages.tables.open_objects_max());
    let storages = storages.map(|storage| descriptors.wrap(storage.clone()));
    let (storages, guards) = guard::guard(&storages, &runtime, &health);
    let place = storages.manifest.describe();
    let read_only = matches!(purpose, Purpose::Reading(..));
    let may_create = options.create_if_missing && !read_only;
    let no_store = || {
        Error::not_found(format!("there is no store in {place}"))
            .advice(directories::no_store_advice(read_only))
    };
    // Looked at before the lease, which leaves a file: a folder that is no store is left as it is.
    if !may_create
        && manifest::read_current(&*storages.manifest).is_ok_and(|current| current.is_none())
    {
        refuse_headless_data(&storages)?;
        return Err(no_store());
    }
    let lease = directories::lease(&storages)?;
    let epoch = if planted::is(Bug::IgnoreLostLease) {
        Epoch(u64::MAX)
    } else {
        lease.epoch()
    };
    if options.direct_io != DirectIo::None {
        storages.tables.check_direct().map_err(|e| {
            Error::from(e)
                .context(format!("option direct_io is impossible for {place}"))
                .advice("open with direct_io = \"none\", or keep the tables on a file system that has it (ext4, xfs, btrfs)")
        })?;
    }
    let recovered = manifest::recover(&*storages.manifest)?;
    if recovered.is_some() && options.error_if_exists && !read_only {
        return Err(
            Error::invalid_argument(format!("there is a store in {place} already"))
                .advice("open it without error_if_exists, or use another folder"),
        );
    }
    if recovered.is_none() && !may_create {
        return Err(no_store());
    }
    let current = recovered.as_ref().map(|r| r.current.store_id);
    let claim = Claim::inspect(&storages.folders(), current, || random_id(&runtime))?;
    if recovered.is_none() {
        refuse_headless_data(&storages)?;
        // Whoever made the folders, an earlier open that was killed or a user, need not have made their names durable.
        for (folder, _) in storages.folders() {
            folder.sync_place(epoch)?;
        }
        claim.write(&storages.folders(), epoch)?;
    }
    let store_id = claim.id();
    let metrics = Metrics::default();
    let arenas = Arenas::new(&runtime);
    let old = recovered
        .as_ref()
        .map(|r| r.state.clone())
        .unwrap_or_else(|| new_state(runtime.unix_micros()));
    if matches!(purpose, Purpose::Writing) {
        refuse_missing_tables(&storages, &old)?;
    }
    refuse_other_formats(&storages, &old)?;
    let open_number = next_open_number(&storages, &old)?;
    let jobs = JobRunner::new(&runtime, &storages, epoch, open_number, &options, executors);

    let (below, budget) = match purpose {
        Purpose::Writing => (None, ReplayBudget::of(&options)),
        Purpose::Reading(budget, below) => (Some(below), budget),
    };
    let is_reading = below.is_some();
    let mut replayed_to = 0;
    let mut replay = Replay::new(&old, &jobs, &options, &arenas, budget)?;
    let mut history_end = Position::ZERO;
    let mut passed = None;
    if recovered.is_some() {
        let replay_options = ReplayOptions::of(&old, log_store_id(store_id));
        let report = crate::formats::log::replay(&*storages.log, &replay_options, &mut |record| {
            metrics.replayed_record_count.add(1);
            replay.apply(&record)
        })?;
        if report.lacks_start() && !planted::is(Bug::MissingStartIsEmpty) {
            return Err(no_first_segment(replay_options.start.segment));
        }
        if let Some(passed) = &report.passed {
            tell_of_passed_damage(passed, old.closed, &metrics, &events);
        }
        passed = report.passed.clone();
        history_end = report.end;
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
        replayed_to = report.end.segment;
        count_discarded(&report, &metrics, &events);
        // Behind history's end there is nothing that a later replay would read; on a full disk its space is wanted.
        delete_segments_behind(&storages, epoch, report.end.segment)?;
        if !is_reading {
            reserve::make_for_log(epoch, &*storages.log)?;
        }
    }
    let replayed = replay.finish(&old)?;
    let published = replayed.published;

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
            segment_bytes: match read_only {
                // Nothing is written to the new segment, which lies in memory.
                true => crate::formats::log::format::MIN_SEGMENT_BYTES,
                false => options.log_segment_bytes,
            },
            recycle_count: 4,
        },
        reserve: reserve::find(&*storages.log, crate::formats::names::LOG_RESERVE)?,
        last_known_segment: old.log_start.segment.max(old.log_synced.segment) as u32,
        on_poison,
    })?;
    let ceiling = (published + CEILING_STEP).min(MAX_SEQUENCE);
    let ceiling = match planted::is(Bug::LostNumbersComeBack) {
        true => ceiling.max(old.sequence_ceiling),
        false => ceiling,
    };
    let log_start = log.chain_start();
    let with_numbers = |edit, log_start, synced| Edit {
        open_number: Some(open_number),
        sequence_ceiling: Some(ceiling),
        log_start,
        log_synced: Some(synced).filter(|synced| *synced > old.log_synced),
        ..edit
    };
    let edit = with_numbers(replayed.installing(), Some(log_start), log_start.position());
    if planted::is(Bug::DeleteBeforeManifest) {
        for number in old.log_start.segment..u64::from(log.first_segment()) {
            let _ = storages.log.delete(
                epoch,
                &crate::formats::log::format::segment_name(number as u32),
            );
        }
    }
    #[cfg(feature = "planted")]
    if planted::is(Bug::RecoverOneByOne) && replayed.no_space.is_none() {
        // The first keyspace's data and the log's new start in an edit of their own, before the others'.
        let keyspaces = edit.keyspaces.iter().take(2).cloned().collect();
        let first = old.apply(&Edit {
            keyspaces,
            ..edit.clone()
        })?;
        write_manifest(&storages, epoch, store_id, Arc::new(first))?;
    }
    let write = |edit| {
        let state = Arc::new(old.apply(&edit)?);
        write_manifest(&storages, epoch, store_id, state)
    };
    let written = match replayed.no_space.clone() {
        Some(no_room) => Err(no_room),
        None => write(edit),
    };
    let (manifest, rest) = match written {
        Ok(manifest) => (manifest, None),
        // No room for the tables, or none for a manifest that names them: the data waits. (A new
        // store has nothing that could wait, and no log but the one that it begins.)
        Err(cause) if cause.is_no_space() && recovered.is_some() => {
            // Replay must find the data again, in a log that is synced through its end.
            let synced = LogPosition {
                segment: history_end.segment.into(),
                offset: history_end.offset.into(),
            };
            // What the manifest is about to say (creates and drops) comes after these records. A
            // log that is synced through its end already, as that of a closed store is, may have
            // parts that cannot be read.
            if synced > old.log_synced {
                let inherited = old.log_start.segment as u32..log.first_segment();
                sync_inherited(&storages, epoch, inherited)?;
            }
            let (start, synced) = match passed {
                // Only a closed store passes over a segment that is missing, and the new manifest
                // is that of an open one: it starts the log behind that segment.
                Some(passed) if !passed.keeps_start && !planted::is(Bug::LostStartIsKept) => {
                    match passed.next {
                        Some(next) => (Some(next), synced),
                        None => (Some(log_start), log_start.position()),
                    }
                }
                _ => (None, synced),
            };
            let manifest = write(with_numbers(replayed.waiting(), start, synced))?;
            (manifest, Some(replayed.into_rest(cause)))
        }
        Err(error) => return Err(error),
    };
    let state = manifest.state().clone();

    let tables = Arc::new(TableSet::new(
        &runtime,
        events.clone(),
        storages.tables.clone(),
        descriptors,
        &options,
    ));
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
    let env = Arc::new(Env {
        session: SessionId::new(),
        live: ArcSwap::from_pointee(options.clone()),
        options: options.clone(),
        options_file: match is_reading {
            false => crate::formats::options_file::read(&*storages.manifest),
            true => Ok(None),
        },
        runtime: runtime.clone(),
        storages,
        below: below.map(|storages| Below {
            storages,
            live: old.log_start.segment as u32..=replayed_to,
        }),
        guards,
        epoch,
        lease: runtime.mutex(Some(lease)),
        health: health.clone(),
        events: events.clone(),
        metrics,
        ingests: IngestsInFlight::new(&runtime),
        closing: AtomicBool::new(false),
        failures: Failures::new(&runtime),
        work: Notify::new(&runtime),
        settled: Notify::new(&runtime),
        pressure: Arc::new(Notify::new(&runtime)),
        maintenance: Notify::new(&runtime),
        ending: Notify::new(&runtime),
    });
    let queue = WriteQueue::of_store(&runtime, &health, published + 1, source_id);
    let queue = Arc::new(queue);
    let tree = Arc::new(Tree {
        env: env.clone(),
        tables,
        snapshots: SnapshotRegistry::new(&runtime, published),
        arenas,
        gap_min: AtomicU64::new(crate::tree::gaps::HIDDEN_MIN),
        leader_watch: queue.clone(),
    });
    let wal = Arc::new(Wal {
        env: env.clone(),
        log,
        sync_every_write: options.sync == SyncMode::Always,
        interval_sync: IntervalSync::new(
            &runtime,
            match options.sync {
                SyncMode::Interval(interval) => Some(interval),
                SyncMode::Always | SyncMode::Never => None,
            },
        ),
    });
    let catalog = Arc::new(Catalog {
        env: env.clone(),
        tree: tree.clone(),
        wal: wal.clone(),
        keyspaces: ArcSwap::from_pointee(keyspaces),
        ddl: runtime.mutex(()),
        pins: runtime.mutex(Pins::default()),
        manifest: runtime.mutex(ManifestRole {
            manifest,
            pending: Vec::new(),
            writing: false,
            reserve: Default::default(),
        }),
        ceiling: AtomicU64::new(ceiling),
        next_table_id: AtomicU64::new(state.next_table_id),
        next_keyspace_id: AtomicU32::new(state.next_keyspace_id),
        waits_for_room: AtomicBool::new(rest.is_some()),
        log_bytes: AtomicU64::new(0),
    });
    let commit = Arc::new(Commit {
        env: env.clone(),
        tree: tree.clone(),
        wal: wal.clone(),
        catalog: catalog.clone(),
        queue,
        stalls: Stalls::new(&runtime, events, env.pressure.clone()),
    });
    let jobs = Arc::new(Jobs {
        env: env.clone(),
        tree: tree.clone(),
        wal: wal.clone(),
        catalog: catalog.clone(),
        commit: commit.clone(),
        runner: jobs,
        schedule: runtime.mutex(Schedule::new()),
    });
    let core = Arc::new(Core {
        env,
        tree,
        wal,
        catalog,
        commit,
        jobs,
        links_fail: AtomicBool::new(false),
        rest: runtime.mutex(None),
        tasks: runtime.mutex(Default::default()),
        published: AtomicBool::new(false),
    });
    if is_reading {
        core.env.health.set_read_only();
        return Ok(core);
    }
    match rest {
        None => {
            delete_orphans(&core.jobs, &state)?;
            reserve::make(&core.catalog)?;
        }
        Some(mut rest) => {
            let start = state.log_start;
            let start = Position::new(start.segment as u32, start.offset as u32);
            rest.pin = core.catalog.pin_log(start);
            core.env.health.set_no_space(&rest.cause);
            crate::catalog::obsolete::delete_old_manifests(&core.catalog);
            core.env.storages.manifest.sync_dir(core.env.epoch)?;
            reserve::make(&core.catalog)?;
            *core.rest.lock() = Some(rest);
        }
    }
    crate::services::settings::keep_wishes(&core.catalog)?;
    crate::services::options_differ::report(&core.catalog);
    Ok(core)
}

/// Says that replay passed over damage in a part of the log that nothing needs.
fn tell_of_passed_damage(passed: &PassedDamage, closed: bool, metrics: &Metrics, events: &Events) {
    metrics.passed_log_damage_count.add(1);
    metrics.passed_log_damage_bytes.add(passed.bytes());
    let error = passed.to_error(closed);
    tracing::warn!(%error, "the log is damaged where nothing needs it, the store opens");
    events.tell(|| Event::LogDamagePassed {
        error: error.clone(),
    });
}

/// Says that replay discarded whole records, which stand behind one that is torn or damaged.
fn count_discarded(report: &ReplayReport, metrics: &Metrics, events: &Events) {
    let discarded = &report.discarded;
    if discarded.record_count == 0 {
        return;
    }
    metrics.discarded_log_bytes.add(discarded.record_bytes);
    let file = segment_name(report.end.segment);
    tracing::warn!(
        file,
        offset = report.end.offset,
        found = %report.stop,
        records = discarded.record_count,
        bytes = discarded.record_bytes,
        "records of the log behind a torn or damaged one were discarded"
    );
    events.tell(|| Event::LogRecordsDiscarded {
        file: file.clone(),
        offset_bytes: report.end.offset.into(),
        found: report.stop.to_string(),
        record_count: discarded.record_count,
        record_bytes: discarded.record_bytes,
    });
}

/// A store's first state: one keyspace, no numbers given.
fn new_state(created_us: u64) -> StoreState {
    let id = 1;
    let mut state = StoreState {
        next_keyspace_id: id + 1,
        next_table_id: 1,
        created_us,
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
