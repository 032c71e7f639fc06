//! `silt destroy`: deletes a store and all its files, also those of its tables on a device.
//!
//! Invariant: nothing is deleted before the question is answered, or without `--yes`.

use std::path::PathBuf;

use siltstone::{DestroyReport, Storages, Store, is_store_file};
use siltstone_storage::{FileStorage, Storage, files};

use super::place::{refuse_url, storages, tables_on_device};
use crate::args::DestroyArgs;
use crate::failure::{Failure, Outcome};
use crate::output::{Out, bytes, confirm, outln, plural};

/// The number of remaining files that are listed by name.
const LISTED: usize = 10;

/// The name of the lease under which a store is changed.
const LEASE: &str = "store";

/// Runs the command.
pub fn run(args: &DestroyArgs) -> Result<Outcome, Failure> {
    refuse_url(&args.store, "destroy")?;
    let place = args.store.display();
    let storage = FileStorage::open_existing(&args.store).map_err(|e| {
        Failure::from(siltstone::Error::from(e).context(format!("destroying the store {place}")))
    })?;
    // The session with the device, if it has the tables, lasts until they are deleted.
    let tables = tables_on_device(&args.store);
    let parts = tables.as_ref().map(|_| storages(&args.store)).transpose()?;
    // Do not ask if the answer does not matter because the store would be refused.
    let own = storage.list().map_err(siltstone::Error::from)?;
    if own.iter().any(|file| is_store_file(&file.name)) {
        confirm(
            &format!("delete the store {place} with everything in it, for good?"),
            args.yes,
        )?;
    }
    drop(storage);
    let report = match &parts {
        None => Store::destroy(&args.store)?,
        Some((storages, _session)) => destroy_parts(storages)?,
    };
    let mut out = Out::new();
    outln!(
        out,
        "{place}: {} deleted ({})",
        plural(report.deleted_file_count, "file"),
        bytes(report.deleted_bytes)
    )?;
    if !report.left.is_empty() {
        outln!(
            out,
            "these files stay, because they are not part of the store or could not be removed:"
        )?;
        for (path, why) in report.left.iter().take(LISTED) {
            outln!(out, "  {path} ({why})")?;
        }
        if report.left.len() > LISTED {
            outln!(out, "  and {} more", report.left.len() - LISTED)?;
        }
    }
    if let Some(tables) = tables {
        outln!(out, "the folder {tables} stays on the device")?;
    }
    out.finish()?;
    Ok(Outcome::Fine)
}

/// Destroys a store whose tables are on a device, and removes its own folder if nothing is left in
/// it. The folder on the device stays, because hosts cannot remove folders.
fn destroy_parts(storages: &Storages) -> siltstone::Result<DestroyReport> {
    let mut report = Store::destroy_on(storages)?;
    // Under the lease, no other process makes a store there meanwhile.
    let _lease = storages.manifest.lease(LEASE)?;
    let path = PathBuf::from(storages.manifest.location());
    let entries = files::folder_entries(&path)?.unwrap_or_default();
    let why = match entries.iter().all(|name| files::is_own_name(name)) {
        true => files::remove_folder(&path).err().map(|e| e.to_string()),
        false => Some("other files are in it".to_string()),
    };
    let path = path.display().to_string();
    match why {
        None => report.removed.push(path),
        Some(why) => report.left.push((path, why)),
    }
    Ok(report)
}
