//! Installs the replayed data: the open writes a new manifest, into reserved space if there is no
//! other room.
//!
//! Invariant: one edit installs both the replayed data and the log's new start. If there is no room
//! for the data, it waits ([`UnflushedData`]), and the log keeps its start.
//!
//! Threading: the opening thread.

use std::sync::Arc;

use siltstone_storage::Epoch;
use siltstone_storage::planted;

use super::claim::Opening;
use super::orphans::sync_inherited;
use super::replay::{Finished, History};
use super::unflushed::UnflushedData;
use crate::catalog::edits::CEILING_STEP;
use crate::catalog::reserve;
use crate::formats::directories::{REDIRECT, Storages};
use crate::formats::log::LogWriter;
use crate::formats::log::format::MAX_SEQUENCE;
use crate::formats::manifest::{Manifest, Space, StoreId};
use crate::formats::names::open_number_of;
use crate::formats::version::{Edit, LogPosition, LogStart, StoreState, TableMeta};
use crate::types::error::{Error, Result};

/// Writes the whole state to a new manifest, and makes it the current one.
pub(super) fn write_manifest(
    storages: &Storages,
    epoch: Epoch,
    store_id: StoreId,
    state: Arc<StoreState>,
) -> Result<Manifest> {
    // The names of the tables and of the log's first segment are durable before the manifest that
    // refers to them.
    storages.tables.sync_dir(epoch)?;
    storages.log.sync_dir(epoch)?;
    // The second location is synced only if this open has made tables there: its disk may fail
    // while nothing needs it.
    let tables = state.keyspaces.values().flat_map(|k| k.version.tables());
    let is_new = |table: &TableMeta| open_number_of(&table.name) == Some(state.open_number);
    let mut redirected = tables.filter(|(_, table)| table.location != 0);
    if redirected.any(|(_, table)| is_new(table)) {
        storages.tables_at(REDIRECT).sync_dir(epoch)?;
    }
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
            // Replacing the pointer takes a new object for a moment, so the space reserved for it
            // is freed first, wherever the manifest gets its space.
            let freed = reserve::find(&*storages.manifest, crate::formats::names::CURRENT_RESERVE)?
                .is_some();
            if freed {
                storages
                    .manifest
                    .delete(epoch, crate::formats::names::CURRENT_RESERVE)?;
                storages.manifest.sync_dir(epoch)?;
            }
            match reserve::find_manifest(&*storages.manifest)? {
                Some(name) => create(Space::Recycle(name)),
                // An earlier open has used the reserve, and had no room for another.
                None if freed => create(Space::Fresh),
                None => Err(error),
            }
        }
        result => result,
    }
}

/// The new manifest, and the replayed data that it does not have for want of room.
pub(super) struct Installed {
    pub(super) manifest: Manifest,
    /// The highest sequence number that may be used.
    pub(super) ceiling: u64,
    /// The last sequence number that counts as used.
    pub(super) published: u64,
    /// The replayed data that the manifest does not have.
    pub(super) unflushed: Option<UnflushedData>,
}

/// Writes the manifest of this open. If there is no room for the replayed data, the data waits, and
/// the manifest gets only creates, drops and counters.
pub(super) fn install(
    opening: &Opening,
    log: &LogWriter,
    replayed: Finished,
    history: &History,
) -> Result<Installed> {
    let old = &opening.old;
    let published = replayed.published;
    let ceiling = (published + CEILING_STEP).min(MAX_SEQUENCE);
    let with_numbers = |edit, log_start, synced| Edit {
        open_number: Some(opening.open_number),
        sequence_ceiling: Some(ceiling),
        log_start,
        log_synced: Some(synced).filter(|synced| *synced > old.log_synced),
        ..edit
    };
    let write = |edit| {
        let state = Arc::new(old.apply(&edit)?);
        write_manifest(&opening.storages, opening.epoch, opening.store_id, state)
    };
    let log_start = log.chain_start();
    let edit = with_numbers(replayed.whole_edit(), Some(log_start), log_start.position());
    let written = match replayed.no_space.clone() {
        Some(no_room) => Err(no_room),
        None => write(edit),
    };
    let (manifest, unflushed) = match written {
        Ok(manifest) => (manifest, None),
        // There is no room for the tables, or for a manifest that names them, so the data waits. (A
        // new store has no data that could wait, and no log but the one that it begins.)
        Err(cause) if cause.is_no_space() && !opening.is_new => {
            let (start, synced) = start_while_waiting(opening, log, history)?;
            let manifest = write(with_numbers(replayed.edit_without_data(), start, synced))?;
            (manifest, Some(replayed.into_unflushed(cause)))
        }
        Err(error) => return Err(error),
    };
    Ok(Installed {
        manifest,
        ceiling,
        published,
        unflushed,
    })
}

/// While replayed data waits for room, a replay must find it again, in a log that is synced through
/// its end. Returns the log's new start, if it changes, and the position through which it is
/// synced.
fn start_while_waiting(
    opening: &Opening,
    log: &LogWriter,
    history: &History,
) -> Result<(Option<LogStart>, LogPosition)> {
    let old = &opening.old;
    let synced = LogPosition {
        segment: history.end.segment.into(),
        offset: history.end.offset.into(),
    };
    // The creates and drops that the manifest is about to get come after these records, so the
    // records are made durable first. That is left out if the log is synced through its end
    // already, as that of a closed store is, because such a log may have parts that cannot be read.
    if synced > old.log_synced {
        let inherited = old.log_start.segment as u32..log.first_segment();
        sync_inherited(&opening.storages, opening.epoch, inherited)?;
    }
    let log_start = log.chain_start();
    Ok(match &history.skipped {
        // Only the replay of a closed store passes over a missing segment. The new manifest is that
        // of an open store, so the log must start behind that segment.
        Some(skipped) if !skipped.keeps_start && !planted!(LostStartIsKept) => match skipped.next {
            Some(next) => (Some(next), synced),
            None => (Some(log_start), log_start.position()),
        },
        _ => (None, synced),
    })
}
