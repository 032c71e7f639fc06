//! `silt check`: every checksum and every invariant.

use std::io::{self, IsTerminal};
use std::time::Instant;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use siltstone::check::{CheckReport, CheckStorages, KeyspaceCheck, check};
use siltstone::{Error, Storages};
use siltstone_storage::ObjectMeta;

use super::is_own;
use crate::args::CheckArgs;
use crate::failure::{Failure, Outcome};
use crate::output::{Out, bytes, count, duration, outln, plural};

/// Files that are listed by name; the others are only counted.
const LISTED_FILES: usize = 10;

/// Runs the command.
pub fn run(args: &CheckArgs) -> Result<Outcome, Failure> {
    let start = Instant::now();
    let storages = match Storages::find(&args.store) {
        Ok(storages) => storages,
        // The file that says where log and tables lie is damaged: nothing else can be looked at.
        Err(error) if error.is_corruption() => {
            let mut out = Out::new();
            if args.json {
                let value = serde_json::json!({ "is_sound": false, "problems": [problem(&error)] });
                outln!(out, "{value}")?;
            } else {
                outln!(out, "DAMAGED: 1 problem")?;
                outln!(out, "  {error}")?;
            }
            out.finish()?;
            return Ok(Outcome::Damaged);
        }
        Err(error) => return Err(error.into()),
    };
    let bar = if io::stderr().is_terminal() {
        ProgressBar::new(0)
    } else {
        ProgressBar::hidden()
    };
    bar.set_draw_target(ProgressDrawTarget::stderr_with_hz(8));
    if let Ok(style) = ProgressStyle::with_template(
        "{bar:32} {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec}",
    ) {
        bar.set_style(style);
    }
    if !io::stderr().is_terminal() {
        bar.set_draw_target(ProgressDrawTarget::hidden());
    }
    let report = check(&CheckStorages::of(&storages), &mut |progress| {
        bar.set_length(progress.total_bytes);
        bar.set_position(progress.done_bytes);
    });
    bar.finish_and_clear();
    let report = report?;
    let mut out = Out::new();
    if args.json {
        outln!(out, "{}", json(&report))?;
        out.finish()?;
        return Ok(outcome(&report));
    }
    print(&mut out, &report)?;
    if report.is_sound() {
        let torn = report.log.as_ref();
        let what = match torn.is_some_and(|log| log.discarded_record_count > 0) {
            true => "nothing that was synced is wrong",
            false => "nothing is wrong",
        };
        outln!(out, "sound: {what} ({})", duration(start.elapsed()))?;
    } else {
        outln!(
            out,
            "DAMAGED: {}",
            plural(report.problems.len() as u64, "problem")
        )?;
        for problem in &report.problems {
            outln!(out, "  {}", advised(problem))?;
        }
    }
    out.finish()?;
    Ok(outcome(&report))
}

fn outcome(report: &CheckReport) -> Outcome {
    if report.is_sound() {
        Outcome::Fine
    } else {
        Outcome::Damaged
    }
}

/// A problem that does not send whoever reads it to the command that they have just given.
fn advised(problem: &Error) -> Error {
    let own = problem.clone();
    match problem.advice_text() {
        Some(advice) if advice.starts_with("run `silt check`") => own.advice(
            "restore the file from a copy, or make a new store of what can be read with `silt repair`",
        ),
        _ => own,
    }
}

/// The keyspaces that are shown: one that tools keep for themselves only if something is wrong in
/// it.
fn shown(report: &CheckReport) -> impl Iterator<Item = &KeyspaceCheck> {
    let all = report.keyspaces.iter();
    all.filter(|k| !is_own(&k.name) || k.problem_count > 0)
}

fn problem(e: &Error) -> serde_json::Value {
    let e = advised(e);
    serde_json::json!({
        "kind": e.kind().word(), "file": e.file(), "offset": e.offset(),
        "byte_range": e.byte_range().map(|(start, end)| [start, end]), "keys": e.key_range(),
        "what": e.message(),
        "expected": e.expected_value(), "found": e.found_value(), "advice": e.advice_text(),
    })
}

fn json(report: &CheckReport) -> serde_json::Value {
    let files = |files: &[ObjectMeta]| {
        files
            .iter()
            .map(|f| serde_json::json!({ "name": f.name, "file_bytes": f.len }))
            .collect::<Vec<_>>()
    };
    let keyspaces = shown(report).map(|k| {
        serde_json::json!({
            "name": k.name, "table_count": k.table_count, "file_bytes": k.file_bytes,
            "entry_count": k.entry_count, "problem_count": k.problem_count,
        })
    });
    let problems = report.problems.iter().map(problem);
    let log = report.log.as_ref().map(|log| {
        serde_json::json!({
            "segment_count": log.segment_count, "record_count": log.record_count, "record_bytes": log.record_bytes,
            "entry_count": log.entry_count, "end_segment": log.end.segment, "end_offset": log.end.offset, "stop": log.stop, "closed": log.closed,
            "discarded_record_count": log.discarded_record_count, "discarded_bytes": log.discarded_bytes,
        })
    });
    serde_json::json!({
        "is_sound": report.is_sound(),
        "store": report.store_id.to_string(),
        "manifest": report.manifest,
        "manifest_record_count": report.manifest_record_count,
        "manifest_dropped_bytes": report.manifest_dropped_bytes,
        "table_count": report.table_count,
        "table_bytes": report.table_bytes,
        "block_count": report.block_count,
        "entry_count": report.entry_count,
        "range_delete_count": report.range_delete_count,
        "log": log,
        "keyspaces": keyspaces.collect::<Vec<_>>(),
        "orphans": files(&report.orphans),
        "foreign": files(&report.foreign),
        "problems": problems.collect::<Vec<_>>(),
    })
}

fn print(out: &mut Out, report: &CheckReport) -> Result<(), Failure> {
    if !report.manifest.is_empty() {
        outln!(out, "store     {}", report.store_id)?;
        outln!(
            out,
            "manifest  {}, {}",
            report.manifest,
            plural(report.manifest_record_count, "record")
        )?;
        if report.manifest_dropped_bytes > 0 {
            outln!(
                out,
                "          and {} of an edit that was never acknowledged",
                bytes(report.manifest_dropped_bytes)
            )?;
        }
        outln!(
            out,
            "tables    {} in {}, {}, {}, {}",
            count(report.table_count),
            bytes(report.table_bytes),
            plural(report.block_count, "block"),
            plural(report.entry_count, "entry").replace("entrys", "entries"),
            plural(report.range_delete_count, "range-delete fragment"),
        )?;
    }
    if let Some(log) = &report.log {
        outln!(
            out,
            "log       {} in {}, ends at {} ({}){}",
            plural(log.record_count, "record"),
            plural(log.segment_count, "segment"),
            log.end,
            log.stop,
            match log.closed {
                true => ", where the store was closed",
                false => "",
            }
        )?;
        if log.discarded_record_count > 0 {
            outln!(
                out,
                "          and {} ({}) behind a torn one, never synced; the next open discards them, `silt repair` before it keeps them",
                plural(log.discarded_record_count, "record"),
                bytes(log.discarded_bytes)
            )?;
        }
    }
    for keyspace in shown(report) {
        outln!(
            out,
            "keyspace  {}: {} in {}, {}",
            keyspace.name,
            plural(keyspace.entry_count, "entry").replace("entrys", "entries"),
            plural(keyspace.table_count, "table"),
            match keyspace.problem_count {
                0 => "sound".to_string(),
                n => plural(n, "problem"),
            }
        )?;
    }
    for (files, what) in [
        (
            &report.orphans,
            "that nothing names any more; the next open deletes them",
        ),
        (&report.foreign, "that are no part of a store"),
    ] {
        if files.is_empty() {
            continue;
        }
        outln!(
            out,
            "also      {} {what}:",
            plural(files.len() as u64, "file")
        )?;
        for file in files.iter().take(LISTED_FILES) {
            outln!(out, "          {} ({})", file.name, bytes(file.len))?;
        }
        if files.len() > LISTED_FILES {
            outln!(out, "          ...")?;
        }
    }
    Ok(())
}
