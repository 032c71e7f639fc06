//! `silt destroy`: a store and all its files.
//!
//! Invariant: nothing is deleted without an answer, or `--yes`.

use siltstone::{Store, is_store_file};
use siltstone_storage::{FileStorage, Storage};

use crate::args::DestroyArgs;
use crate::failure::{Failure, Outcome};
use crate::output::{Out, bytes, confirm, outln, plural};

/// What is left is listed by name up to here.
const LISTED: usize = 10;

/// Runs the command.
pub fn run(args: &DestroyArgs) -> Result<Outcome, Failure> {
    let place = args.store.display();
    let storage = FileStorage::open_existing(&args.store).map_err(|e| {
        Failure::from(siltstone::Error::from(e).context(format!("destroying the store {place}")))
    })?;
    // Nobody is asked about what would be refused anyway.
    let own = storage.list().map_err(siltstone::Error::from)?;
    if own.iter().any(|file| is_store_file(&file.name)) {
        confirm(
            &format!("delete the store {place} with everything in it, for good?"),
            args.yes,
        )?;
    }
    drop(storage);
    let report = Store::destroy(&args.store)?;
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
            "left, because they are not the store's or could not be removed:"
        )?;
        for (path, why) in report.left.iter().take(LISTED) {
            outln!(out, "  {path} ({why})")?;
        }
        if report.left.len() > LISTED {
            outln!(out, "  and {} more", report.left.len() - LISTED)?;
        }
    }
    out.finish()?;
    Ok(Outcome::Fine)
}
