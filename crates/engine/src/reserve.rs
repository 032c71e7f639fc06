//! Space kept for a full disk: without it, a store on a full disk could not be opened to be made smaller (STORIES 11).
//!
//! What it is: objects of written zeros: one that can become a manifest, one that can become the first log segment, and one
//! that goes when the pointer is replaced. They are made when there
//! is room (at open, when a full disk has room again, and as the manifest grows) and used by opens that find none.
//!
//! Invariant: nothing refers to them; losing one loses nothing but the promise.

use std::sync::atomic::Ordering;

use siltstone_storage::{Epoch, Storage, StorageError};

use crate::core::Core;
use crate::error::{Error, Result};
use crate::manifest::{KEPT_BYTES, RESERVE_STEP_BYTES};
use crate::options::Options;

/// Becomes a manifest.
pub(crate) const MANIFEST: &str = "RESERVE";
/// Becomes a log segment.
pub(crate) const LOG: &str = "RESERVE-LOG";

/// Deleted for the few bytes of the pointer's replacement, which is a new object for a moment.
pub(crate) const POINTER: &str = "RESERVE-CURRENT";
const POINTER_BYTES: u64 = 16 << 10;

/// Bytes of edits after which the manifest's reserve is looked at again.
const GROWN_BYTES: u64 = RESERVE_STEP_BYTES;

/// The largest part of the disk that each takes in a small store.
const MIN_BYTES: u64 = 256 << 10;

/// The smallest segment that is worth having: what stores with the smallest memtables put by.
const LEAST_BYTES: u64 = 16 << 10;

/// The reserve's name, if it is there.
pub(crate) fn find(storage: &dyn Storage, name: &str) -> Result<Option<String>> {
    Ok(storage
        .list()?
        .into_iter()
        .find(|o| o.name == name)
        .map(|o| o.name))
}

/// Makes both, if they are missing or too small. No room is no failure.
pub(crate) fn make(core: &Core) -> Result<()> {
    let small = MIN_BYTES.min(core.options.memtable_bytes / 4);
    let (state, position) = {
        let role = core.manifest.lock();
        let writer = role.manifest.writer();
        (role.manifest.state().clone(), writer.acknowledged())
    };
    let whole_bytes = state.to_edit().encode().len() as u64;
    let now = whole_bytes + 2 * KEPT_BYTES;
    let steps = |bytes: u64| bytes.next_multiple_of(RESERVE_STEP_BYTES);
    // With what edits may add before it is looked at again.
    let enough = small.max(now + GROWN_BYTES);
    // Half as much again as is needed, so that it is not made anew for every few tables; else what fits where the manifest before this one was.
    let wanted = small.max(steps(now + GROWN_BYTES + whole_bytes));
    let storage = &*core.storages.manifest;
    make_one(core.epoch, storage, MANIFEST, enough, &[wanted, steps(now)])?;
    make_one(
        core.epoch,
        storage,
        POINTER,
        POINTER_BYTES,
        &[POINTER_BYTES],
    )?;
    // Last: the next open finds the segment that came of the present one, and its space.
    make_one(core.epoch, &*core.storages.log, LOG, small, &[small])?;
    core.reserved_at.store(position.offset, Ordering::Relaxed);
    Ok(())
}

/// Makes them anew if the manifest has grown since: what was enough for the state then may not be for the present one.
pub(crate) fn keep(core: &Core) -> Result<()> {
    let end = {
        let role = core.manifest.lock();
        role.manifest.writer().acknowledged().offset
    };
    // A manifest that was written anew is shorter than what is remembered.
    let grown = end.abs_diff(core.reserved_at.load(Ordering::Relaxed));
    // A full disk has no room for more, and what there is would only be put at risk.
    if grown < GROWN_BYTES || core.health.is_no_space() {
        return Ok(());
    }
    make(core)
}

/// Makes the log's reserve, out of space that a failed open has just given back. One that is there is kept, whatever its size: on a full disk
/// there is no other.
pub(crate) fn make_for_log(epoch: Epoch, storage: &dyn Storage, options: &Options) -> Result<()> {
    if find(storage, LOG)?.is_some() {
        return Ok(());
    }
    // What was given back may be a segment that came of a smaller reserve.
    let mut bytes = MIN_BYTES.min(options.memtable_bytes / 4);
    while !write_one(epoch, storage, LOG, bytes)? && bytes > LEAST_BYTES {
        bytes = (bytes / 2).max(LEAST_BYTES);
    }
    Ok(())
}

/// One that has `enough` bytes stays; else the first of `sizes` is made that there is room for.
fn make_one(
    epoch: Epoch,
    storage: &dyn Storage,
    name: &str,
    enough: u64,
    sizes: &[u64],
) -> Result<()> {
    let found = storage.list()?.into_iter().find(|o| o.name == name);
    let found_bytes = found.as_ref().map_or(0, |o| o.len);
    if found.is_some() {
        if found_bytes >= enough {
            return Ok(());
        }
        storage.delete(epoch, name)?;
    }
    // Without room for more than there was, as much as there was.
    let more = sizes.iter().copied().filter(|bytes| *bytes > found_bytes);
    let same = Some(found_bytes).filter(|bytes| *bytes > 0);
    for bytes in more.chain(same) {
        if write_one(epoch, storage, name, bytes)? {
            break;
        }
    }
    Ok(())
}

/// Whether there was room.
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
            // Its space is worth more to others.
            let _ = storage.delete(epoch, name);
            if error.is_no_space() {
                Ok(false)
            } else {
                Err(Error::from(error).context("reserving space for a full disk"))
            }
        }
    }
}
