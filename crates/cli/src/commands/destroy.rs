//! `silt destroy`: deletes a store and all its files, also those of its tables on a device.
//!
//! Invariant: nothing is deleted before the question is answered, or without `--yes`.

use std::path::{Path, PathBuf};

use siltstone::{DestroyReport, ErrorKind, Storages, Store, is_store_file};
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
    let parts = tables.as_ref().map(|_| storages(&args.store)).transpose();
    let parts = parts.map_err(|failure| no_tables(failure, &args.store))?;
    // Do not ask if the answer does not matter because the store would be refused.
    let own = storage.list().map_err(siltstone::Error::from)?;
    if own.iter().any(|file| is_store_file(&file.name)) {
        let elsewhere = tables.as_ref().map_or_else(String::new, |tables| {
            format!(", and its tables on the device ({tables})")
        });
        confirm(
            &format!("delete the store {place} with everything in it{elsewhere}, for good?"),
            args.yes,
        )?;
    }
    drop(storage);
    let report = match &parts {
        None => Store::destroy(&args.store)?,
        Some((storages, _session)) => destroy_parts(&args.store, storages)?,
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

/// The failure if the tables of a store cannot be reached. They may be gone for good.
fn no_tables(failure: Failure, store: &Path) -> Failure {
    let is_gone = |kind: ErrorKind| matches!(kind, ErrorKind::NotFound | ErrorKind::Unreachable);
    match failure {
        Failure::Store(error) if is_gone(error.kind()) => {
            let advice = error.advice_text().unwrap_or("mount the device's disk");
            let advice = format!(
                "{advice}; if the tables are gone for good, remove the folder {} with rm -r",
                store.display()
            );
            error.advice(advice).into()
        }
        failure => failure,
    }
}

/// Destroys a store whose tables are on a device, and removes its own folder if nothing is left in
/// it. The folder on the device stays, because hosts cannot remove folders.
fn destroy_parts(store: &Path, storages: &Storages) -> siltstone::Result<DestroyReport> {
    let mut report = Store::destroy_on(storages)?;
    // The store is gone now, so a failure does not matter for the command: it is reported.
    remove_folder(&*storages.manifest, &mut report);
    if store.is_symlink() {
        let why = "a link to the store's folder".to_string();
        report.left.push((store.display().to_string(), why));
    }
    Ok(report)
}

/// Removes the store's own folder if nothing is left in it.
fn remove_folder(root: &dyn Storage, report: &mut DestroyReport) {
    let path = PathBuf::from(root.location());
    let removed = || -> siltstone_storage::Result<Vec<String>> {
        // Under the lease, no other process makes a store there meanwhile.
        let _lease = root.lease(LEASE)?;
        let mut foreign = files::folder_entries(&path)?.unwrap_or_default();
        foreign.retain(|name| !files::is_own_name(name));
        if foreign.is_empty() {
            files::remove_folder(&path)?;
        }
        Ok(foreign)
    };
    match removed() {
        Ok(foreign) if foreign.is_empty() => report.removed.push(path.display().to_string()),
        Ok(foreign) => {
            for name in foreign {
                let place = format!("{}/{name}", root.describe());
                // The report has the files already, and not the folders.
                if report.left.iter().all(|(known, _)| *known != place) {
                    report
                        .left
                        .push((place, "not a file of the store".to_string()));
                }
            }
        }
        Err(error) => report
            .left
            .push((path.display().to_string(), error.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_that_cannot_be_removed_is_reported() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let root = FileStorage::open_or_create(&path).unwrap();
        let mut report = DestroyReport::default();
        // Another process has made a store there meanwhile, and has it open.
        let other = FileStorage::open_existing(&path).unwrap();
        let lease = other.lease(LEASE).unwrap();
        remove_folder(&root, &mut report);
        assert!(report.removed.is_empty() && path.exists());
        let [(place, why)] = &report.left[..] else {
            panic!("{report:?}");
        };
        assert_eq!(*place, root.location());
        assert!(why.contains("another writer holds it"), "{why}");
        drop(lease);
        // What was listed before is not listed again.
        std::fs::write(path.join("letter.txt"), "dear").unwrap();
        std::fs::create_dir(path.join("notes")).unwrap();
        let shown = |name: &str| format!("{}/{name}", root.describe());
        let why = || "not a file of the store".to_string();
        report.left = vec![(shown("letter.txt"), why())];
        remove_folder(&root, &mut report);
        let left = vec![(shown("letter.txt"), why()), (shown("notes"), why())];
        assert_eq!((&report.left, path.exists()), (&left, true));
        std::fs::remove_dir(path.join("notes")).unwrap();
        std::fs::remove_file(path.join("letter.txt")).unwrap();
        let location = root.location();
        remove_folder(&root, &mut report);
        assert_eq!(report.removed, [location]);
        assert!(!path.exists());
    }
}
