//! Opening a store: creates it, or recovers it after a close, a kill or a loss of power (RFC 1,
//! section 8).
//!
//! [`open`] takes these steps. It takes the lease and reads the manifest ([`claim`]). It replays
//! the log into memtables, and writes those that are full to tables ([`replay`]). It begins a new
//! log. It writes a new manifest with one edit, which installs the replayed data of all keyspaces
//! and the log's new start ([`install`]). It makes the parts of the open store ([`assemble`]). Only
//! when the manifest is durable are files deleted ([`orphans`]), is a second location of tables
//! taken out, and is the store returned.
//!
//! Invariants:
//! - Until the new manifest is current, nothing inherited is changed, so a crash at any call leaves
//!   the old store, plus orphans.
//! - Inherited segments need no sync of their own, because what was read from them is in synced
//!   tables before `open` returns, and nothing is acknowledged before that.
//! - While the storage cannot be reached, an open fails as `Unreachable`, and waits for nothing.
//!
//! Threading: one thread until the parts exist.

mod assemble;
mod claim;
mod install;
mod orphans;
pub(crate) mod overlay;
mod replay;
pub(crate) mod unflushed;

use std::sync::Arc;

use assemble::assemble;
use claim::{Opening, TakingOut};
use siltstone_storage::Runtime;

use crate::catalog::obsolete::delete_old_manifests;
use crate::catalog::{Catalog, reserve};
use crate::formats::directories::{Storages, log_store_id};
use crate::formats::log::format::{MIN_SEGMENT_BYTES, segment_name};
use crate::formats::log::replay::check_start;
use crate::formats::log::{
    LogConfig, LogOptions, LogWriter, Position, ReplayOptions, ReplayReport, SkippedDamage,
};
use crate::formats::names::LOG_RESERVE;
use crate::jobs::runner::Executors;
use crate::services::parts::Parts;
use crate::types::error::{Error, ErrorKind, Result};
use crate::types::event::{Event, Events};
use crate::types::metrics::Metrics;
use crate::types::options::Options;
pub(crate) use claim::Purpose;
use install::{Installed, install};
use orphans::{delete_orphans, delete_segments_behind};
pub(crate) use replay::ReplayBudget;
use replay::{Finished, History, Replay};
use unflushed::Unflushed;

/// Opens the store, or creates it.
///
/// # Errors
/// `Unreachable` if a call failed because the storage cannot be reached, whatever the step that
/// made it says: a later open finds the store as a kill would have left it.
pub(crate) fn open(
    storages: &Storages,
    runtime: Runtime,
    executors: Executors,
    events: Arc<Events>,
    options: Options,
    purpose: Purpose,
) -> Result<Parts> {
    let opened = open_now(storages, runtime, executors, events, options, purpose);
    opened.map_err(|error| match error.is_unreachable() {
        true => error.with_kind(ErrorKind::Unreachable),
        false => error,
    })
}

fn open_now(
    storages: &Storages,
    runtime: Runtime,
    executors: Executors,
    events: Arc<Events>,
    options: Options,
    purpose: Purpose,
) -> Result<Parts> {
    let mut opening = claim::claim(storages, runtime, executors, events, options, purpose)?;
    let taking_out = opening.taking_out.take();
    let recovered = recover(&opening);
    let (log, installed, history) = recovered.inspect_err(|_| {
        // A storage across a link keeps the lease of a failed open otherwise. If it cannot be
        // reached, the lease ends there by silence.
        let _ = opening.lease.release();
    })?;
    let is_reading = opening.is_reading();
    let parts = assemble(opening, log, installed, &history)?;
    if is_reading {
        parts.env.health().set_read_only();
        return Ok(parts);
    }
    let finished = clean_up(&parts.catalog, &parts.unflushed, taking_out.as_ref())
        .and_then(|()| crate::services::settings::store_options_of_keyspaces(&parts.catalog));
    finished.inspect_err(|_| parts.env.release_lease())?;
    crate::services::options_differ::report(&parts.catalog);
    parts.env.outage().begin_waits();
    Ok(parts)
}

/// Replays the log, begins a new one, and installs what was replayed.
fn recover(opening: &Opening) -> Result<(LogWriter, Installed, History)> {
    let (replayed, history) = replay_log(opening)?;
    let log = start_log(opening)?;
    let installed = install(opening, &log, replayed, &history)?;
    Ok((log, installed, history))
}

/// Replays the log. Segments behind its end are deleted: no later replay would read them, and on a
/// full disk their space is needed.
fn replay_log(opening: &Opening) -> Result<(Finished, History)> {
    let old = &opening.old;
    let mut replay = Replay::new(opening)?;
    let mut history = History {
        end: Position::ZERO,
        skipped: None,
    };
    if !opening.is_new {
        let (storages, metrics) = (&opening.storages, &opening.metrics);
        let options = ReplayOptions::of(old, log_store_id(opening.store_id));
        let report = crate::formats::log::replay(&*storages.log, &options, &mut |record| {
            metrics.replayed_record_count.add(1);
            replay.apply(&record)
        })?;
        check_start(&report, options.start.segment)?;
        if let Some(skipped) = &report.skipped {
            emit_skipped_damage(skipped, old.closed, metrics, &opening.events);
        }
        count_discarded(&report, metrics, &opening.events);
        delete_segments_behind(storages, opening.epoch, report.end.segment)?;
        if !opening.is_reading() {
            reserve::make_for_log(opening.epoch, &*storages.log)?;
        }
        history = History {
            end: report.end,
            skipped: report.skipped,
        };
    }
    Ok((replay.finish(old)?, history))
}

/// Begins the log of this open, behind the inherited segments.
fn start_log(opening: &Opening) -> Result<LogWriter> {
    // A leader must not wait for the storage, so the log gets the storage whose calls fail.
    let (storages, old) = (&opening.storages_at_once, &opening.old);
    let health = opening.health.clone();
    let segment_bytes = match opening.is_reading() {
        // The new segment is in memory, and nothing is written to it.
        true => MIN_SEGMENT_BYTES,
        false => opening.options.log_segment_bytes,
    };
    let log = LogWriter::start(LogConfig {
        storage: storages.log.clone(),
        epoch: opening.epoch,
        runtime: opening.runtime.clone(),
        store_id: log_store_id(opening.store_id),
        options: LogOptions {
            segment_bytes,
            recycle_count: 4,
        },
        reserve: reserve::find(&*storages.log, LOG_RESERVE)?,
        last_known_segment: old.log_start.segment.max(old.log_synced.segment) as u32,
        on_poison: Box::new(move |error: &Error| health.poison(error)),
    })?;
    Ok(log)
}

/// Deletes what earlier opens left. If replayed data waits for room, the inherited log and tables
/// stay, and only old manifests are deleted. A second location of tables is taken out in any case:
/// the new manifest names no table there, and replayed data is not flushed there.
fn clean_up(
    catalog: &Catalog,
    unflushed: &Unflushed,
    taking_out: Option<&TakingOut>,
) -> Result<()> {
    let state = catalog.role().state().clone();
    if !unflushed.hold_log(catalog, &state) {
        delete_orphans(catalog, &state)?;
    } else {
        delete_old_manifests(catalog);
        let env = catalog.env();
        env.storages().manifest.sync_dir(env.epoch())?;
    }
    if let Some(taking_out) = taking_out {
        taking_out.finish(catalog.env().epoch())?;
    }
    reserve::make(catalog)
}

/// Counts, traces and emits that replay skipped damage in a part of the log that nothing needs.
fn emit_skipped_damage(skipped: &SkippedDamage, closed: bool, metrics: &Metrics, events: &Events) {
    metrics.skipped_log_damage_count.add(1);
    metrics.skipped_log_damage_bytes.add(skipped.bytes());
    let error = skipped.to_error(closed);
    tracing::warn!(%error, "the log is damaged where nothing needs it, the store opens");
    events.emit(|| Event::LogDamageSkipped {
        error: error.clone(),
    });
}

/// Counts, traces and emits that replay discarded whole records behind a torn or damaged one.
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
    events.emit(|| Event::LogRecordsDiscarded {
        file: file.clone(),
        offset_bytes: report.end.offset.into(),
        found: report.stop.to_string(),
        record_count: discarded.record_count,
        record_bytes: discarded.record_bytes,
    });
}
