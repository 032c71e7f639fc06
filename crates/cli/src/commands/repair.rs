//! `silt repair`: copies everything that can be read of a damaged store to a new store.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use siltstone::repair::{RepairOptions, RepairReport, RepairSource, repair};
use siltstone_storage::{FileStorage, Runtime, Storage};

use super::place::{self, refuse_url, refuse_url_for};
use crate::args::RepairArgs;
use crate::failure::{Failure, Outcome};
use crate::output::{Out, outln};

/// Runs the command.
pub fn run(args: &RepairArgs) -> Result<Outcome, Failure> {
    refuse_url(&args.store, "repair")?;
    if let Some(to) = &args.to {
        refuse_url_for(to, "`silt repair` makes the new store in a local folder")?;
    }
    let target = args.to.clone().unwrap_or_else(|| beside(&args.store));
    let repair_error = |e: siltstone_storage::StorageError, path: &Path| {
        Failure::from(
            siltstone::Error::from(e).context(format!("repairing into {}", path.display())),
        )
    };
    // The session with the device, if it has the tables, lasts as long as the repair.
    let (storages, _session) = place::storages(&args.store)?;
    let source = RepairSource::of(storages);
    source.refuse_target(&target)?;
    let is_new = !target.exists();
    let made: Arc<dyn Storage> =
        Arc::new(
            FileStorage::open_or_create(&target).map_err(|e| match args.to {
                Some(_) => repair_error(e, &target),
                None => Failure::Other(format!(
                    "{}; --to chooses another folder",
                    repair_error(e, &target)
                )),
            })?,
        );
    let bar = ProgressBar::new(0);
    bar.set_draw_target(ProgressDrawTarget::stderr_with_hz(8));
    if let Ok(style) = ProgressStyle::with_template(
        "{bar:32} {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec}",
    ) {
        bar.set_style(style);
    }
    if !io::IsTerminal::is_terminal(&io::stderr()) {
        bar.set_draw_target(ProgressDrawTarget::hidden());
    }
    let options = RepairOptions {
        strict: args.strict,
        ..RepairOptions::default()
    };
    let report = repair(
        &source,
        &made,
        &Runtime::threads(),
        &options,
        &mut |progress| {
            bar.set_length(progress.total_bytes);
            bar.set_position(progress.done_bytes);
        },
    );
    bar.finish_and_clear();
    let report = match report {
        Ok(report) => report,
        Err(error) => {
            drop(made);
            if is_new {
                // Only if the folder contains nothing but the lease's file.
                let _ = std::fs::remove_file(target.join("LOCK.store"));
                let _ = std::fs::remove_dir(&target);
            }
            return Err(error.into());
        }
    };
    if let Some(path) = &args.report {
        std::fs::write(path, report.to_json()).map_err(|e| Failure::file(path, &e))?;
    }
    let mut out = Out::new();
    if args.json {
        outln!(out, "{}", report.to_json().trim_end())?;
    } else {
        print(&mut out, &report, &target)?;
    }
    out.finish()?;
    Ok(if report.lost_nothing() {
        Outcome::Fine
    } else {
        Outcome::Damaged
    })
}

fn print(out: &mut Out, report: &RepairReport, target: &Path) -> Result<(), Failure> {
    outln!(out, "{}", report.to_string().trim_end())?;
    outln!(out, "made      {}", target.display())?;
    if report.lost_nothing() {
        let what = match report.log.is_torn {
            true => "nothing that was synced is lost",
            false => "nothing is lost",
        };
        outln!(out, "{what}")?;
    } else if report.strict {
        outln!(
            out,
            "LOST DATA: see above; suspect keys were left out of the new store"
        )?;
    } else {
        outln!(
            out,
            "LOST DATA: keys of the suspect ranges may be missing, older than they were, or \
            restored although they were deleted"
        )?;
    }
    Ok(())
}

/// `NAME.repaired` beside the store.
fn beside(store: &Path) -> PathBuf {
    let mut name = store
        .file_name()
        .map_or_else(|| "store".into(), |name| name.to_os_string());
    name.push(".repaired");
    match (store.file_name(), store.parent()) {
        (Some(_), Some(parent)) => parent.join(name),
        // `.` and `..` have no name of their own.
        _ => PathBuf::from("..").join(name),
    }
}
