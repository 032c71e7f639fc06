//! Space kept for a full disk: without it, a store on a full disk could not be opened to be made smaller (STORIES 11).
//!
//! What it is: objects of written zeros: one that can become a manifest, one that can become the first log segment, and one
//! that goes when the pointer is replaced. They are made when there
//! is room (at open, and when a full disk has room again) and used by opens that find none.
//!
//! Invariant: nothing refers to them; losing one loses nothing but the promise.

use siltstone_storage::{Epoch, Storage};

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
    let whole_bytes = core
        .manifest
        .lock()
        .manifest
        .state()
        .to_edit()
        .encode()
        .len() as u64;
    let manifest = (2 * whole_bytes + 2 * KEPT_BYTES).next_multiple_of(RESERVE_STEP_BYTES);
    make_one(
        core.epoch,
        &*core.storages.manifest,
        MANIFEST,
        small.max(manifest),
    )?;
    make_one(core.epoch, &*core.storages.manifest, POINTER, POINTER_BYTES)?;
    // Last: the next open finds the segment that came of the present one, and its space.
    make_one(core.epoch, &*core.storages.log, LOG, small)
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

fn make_one(epoch: Epoch, storage: &dyn Storage, name: &str, bytes: u64) -> Result<()> {
    match storage.list()?.into_iter().find(|o| o.name == name) {
        Some(found) if found.len >= bytes => {}
        Some(found) => {
            storage.delete(epoch, name)?;
            // Without room for more than there was, as much as there was.
            if !write_one(epoch, storage, name, bytes)? {
                write_one(epoch, storage, name, found.len)?;
            }
        }
        None => {
            write_one(epoch, storage, name, bytes)?;
        }
    }
    Ok(())
}

/// Whether there was room.
fn write_one(epoch: Epoch, storage: &dyn Storage, name: &str, bytes: u64) -> Result<bool> {
    let file = storage.create(epoch, name)?;
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
