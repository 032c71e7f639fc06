//! `silt checkpoint`: a second store, as the first one is now.

use std::fs;
use std::path::PathBuf;
use std::time::Instant;

use siltstone::Options;

use super::{OPTIONS_FILE, open_existing, options_of};
use crate::args::CheckpointArgs;
use crate::failure::{Failure, Outcome};
use crate::output::{Out, bytes, duration, outln, plural};

/// Runs the command.
pub fn run(args: &CheckpointArgs) -> Result<Outcome, Failure> {
    let start = Instant::now();
    let store = open_existing(&args.store)?;
    let report = store.checkpoint(&args.folder)?;
    store.close()?;
    let (from, to) = (
        args.store.join(OPTIONS_FILE),
        args.folder.join(OPTIONS_FILE),
    );
    if from.exists() {
        // A checkpoint has log and tables in its own folder.
        let text = match options_of(&args.store)? {
            options
                if options.log_dir.as_os_str().is_empty()
                    && options.table_dir.as_os_str().is_empty() =>
            {
                None
            }
            options => Some(
                Options {
                    log_dir: PathBuf::new(),
                    table_dir: PathBuf::new(),
                    ..options
                }
                .to_toml(),
            ),
        };
        let copied = match text {
            Some(text) => fs::write(&to, text),
            None => fs::copy(&from, &to).map(|_| ()),
        }
        .and_then(|()| fs::File::open(&to)?.sync_all());
        copied.map_err(|e| {
            Failure::Other(format!(
                "the checkpoint is whole, but its settings could not be copied: {}: {e}",
                to.display()
            ))
        })?;
    }
    let mut out = Out::new();
    if args.json {
        let all = serde_json::json!({
            "published": report.published,
            "keyspace_count": report.keyspace_count,
            "table_count": report.table_count,
            "table_bytes": report.table_bytes,
            "written_table_count": report.written_table_count,
            "written_bytes": report.written_bytes,
        });
        outln!(out, "{all}")?;
    } else {
        outln!(
            out,
            "{}: {}, {} linked or copied ({}), {} written of what was in the log ({}); {}",
            args.folder.display(),
            plural(report.keyspace_count, "keyspace"),
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
