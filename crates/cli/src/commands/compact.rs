//! `silt compact`: merges tables on request.

use std::io::IsTerminal;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use siltstone::{Keyspace, Options, Stats, Store};
use siltstone_device::Placement;

use super::stats::jobs::{add_devices, name_of, print_devices};
use super::{bounds, is_own, keyspace_of, options_of, place};
use crate::args::CompactArgs;
use crate::failure::{Failure, Outcome};
use crate::output::{Out, bytes, count, duration, outln, plural};

/// The interval at which progress is updated.
const LOOK: Duration = Duration::from_millis(200);

/// Runs the command.
pub fn run(args: &CompactArgs) -> Result<Outcome, Failure> {
    let range = bounds(&args.range, &args.form.key(), false)?;
    let options = Options {
        create_if_missing: false,
        error_if_exists: false,
        ..options_of(&args.store)?
    };
    let placement = Placement {
        // The first job may be the only one, so it waits until the GPU is open.
        executors: super::gpu::open_executors(&args.gpu, None)?,
        ..place::placement()?
    };
    super::gpu::say_if_not_direct(&args.gpu, &options, &args.store, &placement.executors);
    let store = super::open_placed(&args.store, options, &placement)?;
    let names = match &args.keyspace {
        Some(name) => vec![name.clone()],
        None => store.keyspaces(),
    };
    let keyspaces = names
        .iter()
        .map(|name| keyspace_of(&store, name))
        .collect::<Result<Vec<_>, _>>()?;
    // Keyspaces that tools keep for themselves are merged too, but not shown.
    let is_shown = |name: &str| args.keyspace.is_some() || !is_own(name);
    // Entries from the log count as data that was there before the compaction.
    store.flush()?;
    let before = sizes(&store.stats(), &names);
    let start = Instant::now();
    let (from, to) = (range.lower.as_deref(), range.upper.as_deref());
    for keyspace in &keyspaces {
        one(&store, keyspace, from, to)?;
    }
    let stats = store.stats();
    let after = sizes(&stats, &names);
    store.close()?;
    let mut out = Out::new();
    if args.json {
        let time_us = u64::try_from(start.elapsed().as_micros()).unwrap_or(u64::MAX);
        let each = names.iter().zip(before.iter().zip(&after));
        let each = each.filter(|(name, _)| is_shown(name));
        let each: serde_json::Value = each
            .map(|(name, (before, after))| {
                let figures = |s: &Size| {
                    serde_json::json!({
                        "table_count": s.tables,
                        "file_bytes": s.file_bytes,
                        "entry_count": s.entries,
                    })
                };
                serde_json::json!({
                    "name": name, "before": figures(before), "after": figures(after),
                })
            })
            .collect();
        let mut all = serde_json::json!({ "keyspaces": each, "time_us": time_us });
        add_devices(&mut all, &stats);
        outln!(out, "{all}")?;
        super::gpu::say_if_down(&placement.executors);
    } else {
        for (name, (before, after)) in names.iter().zip(before.iter().zip(&after)) {
            if !is_shown(name) {
                continue;
            }
            let words = |s: &Size| {
                format!(
                    "{} in {} with {} entries",
                    bytes(s.file_bytes),
                    plural(s.tables, "table"),
                    count(s.entries)
                )
            };
            outln!(out, "{name}: {}, before {}", words(after), words(before))?;
        }
        outln!(out, "compacted in {}", duration(start.elapsed()))?;
        if !placement.executors.is_empty() {
            print_devices(&mut out, &stats)?;
        }
    }
    out.finish()?;
    Ok(Outcome::Fine)
}

struct Size {
    tables: u64,
    file_bytes: u64,
    entries: u64,
}

fn sizes(stats: &Stats, names: &[String]) -> Vec<Size> {
    let of = |name: &String| {
        let levels = stats.keyspaces.iter().filter(|k| k.name == *name);
        let levels = levels.flat_map(|k| &k.levels);
        levels.fold(
            Size {
                tables: 0,
                file_bytes: 0,
                entries: 0,
            },
            |sum, level| Size {
                tables: sum.tables + level.table_count,
                file_bytes: sum.file_bytes + level.file_bytes,
                entries: sum.entries + level.entry_count,
            },
        )
    };
    names.iter().map(of).collect()
}

/// Compacts a keyspace, and shows the progress on a terminal.
fn one(
    store: &Store,
    keyspace: &Keyspace,
    from: Option<&[u8]>,
    to: Option<&[u8]>,
) -> Result<(), Failure> {
    if !std::io::stderr().is_terminal() {
        return Ok(keyspace.compact_range(from, to)?);
    }
    let bar = ProgressBar::new_spinner();
    bar.set_draw_target(ProgressDrawTarget::stderr_with_hz(8));
    if let Ok(style) = ProgressStyle::with_template(
        "{spinner} {prefix}: merged {binary_bytes}, {binary_bytes_per_sec}; {msg}",
    ) {
        bar.set_style(style);
    }
    bar.set_prefix(keyspace.name().to_string());
    let merged = |stats: &Stats| {
        let compactions = stats.jobs.iter().filter(|job| job.kind != "flush");
        let running: u64 = compactions.map(|job| job.read_bytes).sum();
        stats.counter("compaction_in_bytes") + running
    };
    let first = merged(&store.stats());
    let result = std::thread::scope(|scope| {
        let (done, ended) = mpsc::channel();
        scope.spawn(move || {
            let _ = done.send(keyspace.compact_range(from, to));
        });
        loop {
            match ended.recv_timeout(LOOK) {
                Ok(result) => return result.map_err(Failure::from),
                Err(mpsc::RecvTimeoutError::Timeout) => {
                    let stats = store.stats();
                    bar.set_position(merged(&stats).saturating_sub(first));
                    let jobs: Vec<_> = stats.jobs.iter().map(name_of).collect();
                    bar.set_message(jobs.join("; "));
                    bar.tick();
                }
                Err(mpsc::RecvTimeoutError::Disconnected) => {
                    return Err(Failure::Other("the compaction ended early".to_string()));
                }
            }
        }
    });
    bar.finish_and_clear();
    result
}
