//! `silt destroy`: deletes a store and all its files.
//!
//! Invariant: nothing is deleted before the question is answered, or without `--yes`.

use siltstone::{Store, is_store_file};
use siltstone_storage::{FileStorage, Storage};

use super::place::refuse_on_device;
use crate::args::DestroyArgs;
use crate::failure::{Failure, Outcome};
use crate::output::{Out, bytes, confirm, outln, plural};

/// The number of remaining files that are listed by name.
const LISTED: usize = 10;

/// Runs the command.
pub fn run(args: &DestroyArgs) -> Result<Outcome, Failure> {
    refuse_on_device(&args.store, "destroy")?;
    let place = args.store.display();
    let storage = FileStorage::open_existing(&args.store).map_err(|e| {
        Failure::from(siltstone::Error::from(e).context(format!("destroying the store {place}")))
    })?;
    // Do not ask if the answer does not matter because the store would be refused.
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
            "these files stay, because they are not part of the store or could not be removed:"
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
