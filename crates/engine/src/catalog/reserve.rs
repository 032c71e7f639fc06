//! Space that is reserved for a full disk: without it, a store on a full disk could not be opened
//! to be made smaller.
//!
//! The reserves are files of written zeros: one that can become a manifest, one that can become the
//! first log segment, and one that is deleted when the pointer to the manifest is replaced. The
//! store makes them when there is room (at open, at close, when a full disk has room again, and as
//! the manifest grows), and an open that finds no room uses them.
//!
//! Invariants:
//! - Nothing refers to them. If one is lost, only the guarantee of an open on a full disk is lost.
//! - While there is room, the manifest's reserve holds the whole state *after* every edit: it is
//!   enlarged before an edit that it could not hold is committed ([`before_edit`]), so a process
//!   that is killed at any moment leaves a store that opens on a full disk. Maintenance and a close
//!   enlarge it earlier, so that edits seldom wait for this.
//! - A reserve is never given up to make a larger one: the manifest's reserve is resized in place,
//!   under a second name ([`MANIFEST_RESERVE_RESIZING`]), by which an open finds it after a crash.
//! - An open on a full disk finds the room for new reserves in the files that it deletes: the old
//!   manifest and the old last segment are at least as long as the reserves that took their place.
//!   So a closed segment is not cut to less than the log's reserve ([`LOG_BYTES`]).
//!
//! Threading: a task that makes or resizes them holds the manifest role.

use siltstone_storage::{Epoch, Storage, StorageError};

use crate::catalog::{Catalog, ManifestRole};
use crate::env::Env;
use crate::formats::manifest::{KEPT_BYTES, RESERVE_STEP_BYTES, new_manifest_bytes};
use crate::formats::names::{
    CURRENT_RESERVE, LOG_RESERVE, MANIFEST_RESERVE, MANIFEST_RESERVE_RESIZING,
};
use crate::formats::version::Edit;
use crate::types::error::{Error, Result};

/// The size of the log's reserve, which is the smallest useful segment.
pub(crate) const LOG_BYTES: u64 = 16 << 10;

const POINTER_BYTES: u64 = 16 << 10;

/// The manifest's reserve has at least this many bytes for future edits.
const AHEAD_BYTES: u64 = 16 << 10;

/// The manifest's reserve as of its last measurement. Part of the manifest role.
#[derive(Default)]
pub(crate) struct ManifestReserve {
    /// Its length.
    bytes: u64,
    /// The length of the whole state at that time.
    whole_bytes: u64,
    /// Where the manifest ended at that time.
    measured_at: u64,
    /// The number of the manifest at that time.
    number: u64,
}

impl ManifestReserve {
    /// The maximum length of the whole state after an edit of `edit_bytes`, because an edit adds at
    /// most its own length. `None` if the manifest was rewritten since the measurement.
    fn whole_bytes_after(&self, role: &ManifestRole, edit_bytes: u64) -> Option<u64> {
        let now = role.manifest.writer().acknowledged();
        let edits = now.offset.checked_sub(self.measured_at)?;
        (now.number == self.number).then_some(self.whole_bytes + edits + edit_bytes)
    }
}

/// The length of a manifest whose whole state takes `whole_bytes`, with room for edits that free
/// space.
fn manifest_bytes(whole_bytes: u64) -> u64 {
    whole_bytes + 2 * KEPT_BYTES
}

/// The additional bytes that maintenance and a close reserve for future edits.
fn ahead_bytes(whole_bytes: u64) -> u64 {
    AHEAD_BYTES.max(whole_bytes / 4)
}

/// The name of the manifest's reserve, if it exists. It is the second name if a crash interrupted a
/// resize.
pub(crate) fn find_manifest(storage: &dyn Storage) -> Result<Option<&'static str>> {
    let objects = storage.list()?;
    let is_there = |name: &&str| objects.iter().any(|o| o.name == **name);
    Ok([MANIFEST_RESERVE, MANIFEST_RESERVE_RESIZING]
        .into_iter()
        .find(is_there))
}

/// The name of a reserve, if it exists.
pub(crate) fn find(storage: &dyn Storage, name: &str) -> Result<Option<String>> {
    Ok(storage
        .list()?
        .into_iter()
        .find(|o| o.name == name)
        .map(|o| o.name))
}

/// Makes all reserves that are missing or too small. It is no error if there is no room.
pub(crate) fn make(catalog: &Catalog) -> Result<()> {
    let mut role = catalog.role();
    make_manifest(&catalog.env, &mut role, 0)?;
    make_one(
        catalog.env.epoch(),
        &*catalog.env.storages().manifest,
        CURRENT_RESERVE,
        POINTER_BYTES,
    )?;
    // The log's reserve is made last: if there is no room left for it, the next open can make it
    // from the space of the segment that this open made from the old reserve.
    make_one(
        catalog.env.epoch(),
        &*catalog.env.storages().log,
        LOG_RESERVE,
        LOG_BYTES,
    )
}

/// Enlarges the manifest's reserve if the manifest has grown since it was measured.
pub(crate) fn keep(catalog: &Catalog) -> Result<()> {
    let mut role = catalog.role();
    // A full disk has no room for a larger reserve.
    if catalog.env.health().is_no_space() {
        return Ok(());
    }
    let reserve = &role.reserve;
    let grown = match reserve.whole_bytes_after(&role, 0) {
        Some(most) => most - reserve.whole_bytes,
        None => u64::MAX,
    };
    if grown < ahead_bytes(reserve.whole_bytes) / 2 {
        return Ok(());
    }
    make_manifest(&catalog.env, &mut role, 0)
}

/// Before `edit` is committed: enlarges the manifest's reserve if it could not hold the state with
/// the edit. The edit is committed even if the reserve cannot grow, because the manifest itself may
/// have room for the edit.
pub(crate) fn before_edit(env: &Env, role: &mut ManifestRole, edit: &Edit) {
    // The reserve was never made, because the store is being opened or there was never room for it.
    if role.reserve.bytes == 0 || env.health().is_no_space() {
        return;
    }
    let edit_bytes = edit.encode().len() as u64;
    let most = role.reserve.whole_bytes_after(role, edit_bytes);
    if most.is_some_and(|most| manifest_bytes(most) <= role.reserve.bytes) {
        return;
    }
    if let Err(error) = make_manifest(env, role, edit_bytes) {
        tracing::debug!(%error, "the space kept for a manifest could not be enlarged");
    }
}

/// Makes sure that the manifest's reserve holds the whole state after an edit of `edit_bytes`, and
/// some edits more. It is no error if there is no room.
fn make_manifest(env: &Env, role: &mut ManifestRole, edit_bytes: u64) -> Result<()> {
    let storage = &*env.storages().manifest;
    let end = role.manifest.writer().acknowledged();
    let whole_bytes = role.manifest.state().to_edit().encode().len() as u64;
    let whole_after = whole_bytes + edit_bytes;
    let enough = manifest_bytes(whole_after) + ahead_bytes(whole_after);
    // The first size has room for many edits, so that the reserve is seldom enlarged. If there is
    // no room for it, the last size fits into the space of the previous manifest, which was at
    // least as long.
    let steps = |bytes: u64| bytes.next_multiple_of(RESERVE_STEP_BYTES);
    let wanted = steps(enough + whole_after / 4);
    let mut found_bytes = manifest_found(env.epoch(), storage)?;
    let sizes = [
        wanted,
        steps(manifest_bytes(whole_after)),
        new_manifest_bytes(whole_after),
    ];
    let resizes = |bytes: &u64| match found_bytes < enough {
        true => *bytes > found_bytes,
        // The reserve was made for a much larger state.
        false => found_bytes / 2 > wanted && *bytes == wanted,
    };
    for bytes in sizes.into_iter().filter(resizes) {
        if resize(env.epoch(), storage, found_bytes, bytes)? {
            found_bytes = bytes;
            break;
        }
    }
    role.reserve = ManifestReserve {
        bytes: found_bytes,
        whole_bytes,
        measured_at: end.offset,
        number: end.number,
    };
    Ok(())
}

/// The length of the manifest's reserve, 0 if there is none, under its first name.
fn manifest_found(epoch: Epoch, storage: &dyn Storage) -> Result<u64> {
    let objects = storage.list()?;
    let len = |name| objects.iter().find(|o| o.name == name).map(|o| o.len);
    let (found, resizing) = (len(MANIFEST_RESERVE), len(MANIFEST_RESERVE_RESIZING));
    match (found, resizing) {
        (None, Some(bytes)) if bytes > 0 => {
            storage.rename(epoch, MANIFEST_RESERVE_RESIZING, MANIFEST_RESERVE)?;
            return Ok(bytes);
        }
        (_, Some(_)) => storage.delete(epoch, MANIFEST_RESERVE_RESIZING)?,
        _ => {}
    }
    // A loss of power may have left the name alone.
    if found == Some(0) {
        storage.delete(epoch, MANIFEST_RESERVE)?;
    }
    Ok(found.unwrap_or(0))
}

/// Gives the manifest's reserve the size `bytes`. Returns false, and changes nothing, if there is
/// no room for that.
fn resize(epoch: Epoch, storage: &dyn Storage, found_bytes: u64, bytes: u64) -> Result<bool> {
    if found_bytes == 0 {
        return write_one(epoch, storage, MANIFEST_RESERVE, bytes);
    }
    let file = storage.recycle(epoch, MANIFEST_RESERVE, MANIFEST_RESERVE_RESIZING)?;
    let resized = if bytes < found_bytes {
        file.append(&[&vec![0; bytes as usize]])
            .and_then(|()| file.truncate_to_position())
    } else {
        file.reserve(bytes)
    };
    let resized = resized.and_then(|()| file.sync());
    drop(file);
    storage.rename(epoch, MANIFEST_RESERVE_RESIZING, MANIFEST_RESERVE)?;
    match resized {
        Ok(()) => Ok(true),
        Err(error) if error.is_no_space() => Ok(false),
        Err(error) => Err(Error::from(error).context("reserving space for a full disk")),
    }
}

/// Makes the log's reserve from the space that an open gets by deleting the files of a failed open.
pub(crate) fn make_for_log(epoch: Epoch, storage: &dyn Storage) -> Result<()> {
    make_one(epoch, storage, LOG_RESERVE, LOG_BYTES)
}

/// Makes a reserve of `bytes` if it is missing. It is no error if there is no room.
fn make_one(epoch: Epoch, storage: &dyn Storage, name: &str, bytes: u64) -> Result<()> {
    match storage.list()?.iter().find(|o| o.name == name) {
        Some(found) if found.len >= bytes => return Ok(()),
        // A loss of power may have left the name, or a part of it.
        Some(_) => storage.delete(epoch, name)?,
        None => {}
    }
    write_one(epoch, storage, name, bytes).map(drop)
}

/// Writes a reserve. Returns whether there was room.
fn write_one(epoch: Epoch, storage: &dyn Storage, name: &str, bytes: u64) -> Result<bool> {
    let file = match storage.create(epoch, name) {
        Err(error) if StorageError::is_no_space(&error) => return Ok(false),
        created => created?,
    };
    let made = file.reserve(bytes).and_then(|()| file.sync());
    drop(file);
    match made {
        Ok(()) => Ok(true),
        Err(error) => {
            // A part of a reserve is useless, so its space is freed.
            let _ = storage.delete(epoch, name);
            if error.is_no_space() {
                Ok(false)
            } else {
                Err(Error::from(error).context("reserving space for a full disk"))
            }
        }
    }
}
