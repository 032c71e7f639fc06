//! `silt checkpoint`: copies a store as it is now to a second one.

use std::fs;
use std::time::Instant;

use super::options::file::Changes;
use super::place::{refuse_url, refuse_url_for};
use super::{OPTIONS_FILE, OptionsFile, is_own, open_existing};
use crate::args::CheckpointArgs;
use crate::failure::{Failure, Outcome};
use crate::output::{Out, bytes, duration, outln, plural};

/// Runs the command.
pub fn run(args: &CheckpointArgs) -> Result<Outcome, Failure> {
    let start = Instant::now();
    refuse_url(&args.store, "checkpoint")?;
    refuse_url_for(
        &args.folder,
        "`silt checkpoint` makes the new store in a local folder",
    )?;
    let store = open_existing(&args.store)?;
    let report = store.checkpoint(&args.folder)?;
    let own = store.keyspaces().iter().filter(|name| is_own(name)).count() as u64;
    let keyspace_count = report.keyspace_count.saturating_sub(own);
    store.close()?;
    let (from, to) = (
        args.store.join(OPTIONS_FILE),
        args.folder.join(OPTIONS_FILE),
    );
    if from.exists() {
        // A checkpoint has log and all tables in its own folder.
        let file = OptionsFile::read(&args.store)?;
        let without = Changes {
            keyspace: None,
            set: Vec::new(),
            unset: vec!["log_dir", "table_dir", "redirect_dir"],
        };
        let (_, text) = without.apply(&file.text)?;
        let copied = fs::write(&to, text).and_then(|()| fs::File::open(&to)?.sync_all());
        copied.map_err(|e| {
            Failure::Other(format!(
                "the checkpoint is complete, but its settings could not be copied: {}: {e}",
                to.display()
            ))
        })?;
    }
    let mut out = Out::new();
    if args.json {
        let all = serde_json::json!({
            "published": report.published,
            "keyspace_count": keyspace_count,
            "table_count": report.table_count,
            "table_bytes": report.table_bytes,
            "written_table_count": report.written_table_count,
            "written_bytes": report.written_bytes,
        });
        outln!(out, "{all}")?;
    } else {
        outln!(
            out,
            "{}: {}, {} linked or copied ({}), {} written from the log ({}); {}",
            args.folder.display(),
            plural(keyspace_count, "keyspace"),
            plural(report.table_count, "table"),
            bytes(report.table_bytes),
            plural(report.written_table_count, "table"),
            bytes(report.written_bytes),
            duration(start.elapsed())
        )?;
    }
    out.finish()?;
    Ok(Outcome::Fine)
}
