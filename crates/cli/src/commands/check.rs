//! `silt check`: verifies every checksum and every invariant.

use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use siltstone::check::{CheckReport, CheckStorages, KeyspaceCheck, TORN_RECORD, check};
use siltstone::{Error, Storages};
use siltstone_storage::{ObjectMeta, Storage};

use super::{OPTIONS_FILE, OptionsFile, is_own, place};
use crate::args::CheckArgs;
use crate::failure::{Failure, Outcome};
use crate::output::{Out, bytes, count, duration, one_line, outln, plural};

/// The number of files that are listed by name. The others are only counted.
const LISTED_FILES: usize = 10;

/// Runs the command.
pub fn run(args: &CheckArgs) -> Result<Outcome, Failure> {
    let start = Instant::now();
    // The session with the device lasts as long as the check.
    let (storages, _session) = match place::storages(&args.store) {
        Ok(found) => found,
        // The file that says where log and tables lie is damaged, so nothing else can be checked.
        Err(Failure::Store(error)) if error.is_corruption() => {
            let mut out = Out::new();
            if args.json {
                let problems = [problem(&error, |file| args.store.join(file))];
                let value = serde_json::json!({ "is_sound": false, "problems": problems });
                outln!(out, "{value}")?;
            } else {
                outln!(out, "DAMAGED: 1 problem")?;
                outln!(out, "  {error}")?;
            }
            out.finish()?;
            return Ok(Outcome::Damaged);
        }
        Err(failure) => return Err(failure),
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
    let absent = absent_keyspaces(&args.store, &report);
    let mut out = Out::new();
    if args.json {
        let mut value = json(&report, |file| path_of(&storages, file));
        value["options_without_keyspace"] = absent.into();
        outln!(out, "{value}")?;
        out.finish()?;
        return Ok(outcome(&report));
    }
    print(&mut out, &report)?;
    for name in absent {
        outln!(
            out,
            "options   {OPTIONS_FILE} has settings for `{}`, which is not a keyspace of the store",
            one_line(&name)
        )?;
    }
    if report.is_sound() {
        let torn = report.log.as_ref();
        let what = match torn.is_some_and(|log| log.is_torn || log.discarded_record_count > 0) {
            true => "nothing that was synced is damaged",
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

/// A problem, without advice to run the command that the user has just run.
fn advised(problem: &Error) -> Error {
    let own = problem.clone();
    match problem.advice_text() {
        Some(advice) if advice.starts_with("run `silt check`") => own.advice(
            "restore the file from a copy, or make a new store of what can be read with `silt \
            repair`",
        ),
        _ => own,
    }
}

/// The keyspaces that are shown. One that tools keep for themselves is shown only if something is
/// wrong in it.
fn shown(report: &CheckReport) -> impl Iterator<Item = &KeyspaceCheck> {
    let all = report.keyspaces.iter();
    all.filter(|k| !is_own(&k.name) || k.problem_count > 0)
}

/// The keyspaces that the settings file names and the store does not have.
fn absent_keyspaces(store: &Path, report: &CheckReport) -> Vec<String> {
    // If the file cannot be read, this is among the problems of the report.
    let Ok(file) = OptionsFile::read(store) else {
        return Vec::new();
    };
    let names = file.options.keyspaces.into_keys();
    let is_there = |name: &String| report.keyspaces.iter().any(|k| k.name == *name);
    match report.manifest.is_empty() {
        true => Vec::new(),
        false => names.filter(|name| !is_there(name)).collect(),
    }
}

/// The path of a file of the store, or the path at which a missing file belongs.
fn path_of(storages: &Storages, file: &str) -> PathBuf {
    let places = [&storages.manifest, &storages.log, &storages.tables];
    let places = places.into_iter().chain(&storages.redirect);
    // The name of a table that is missing at the second location is a path already.
    let path = |place: &Arc<dyn Storage>| Path::new(&place.location()).join(file);
    let mut paths: Vec<PathBuf> = places.map(path).collect();
    let found = paths
        .iter()
        .position(|path| path.symlink_metadata().is_ok());
    let belongs = match file {
        file if file.ends_with(".log") => 1,
        file if file.ends_with(".tbl") => 2,
        _ => 0,
    };
    paths.swap_remove(found.unwrap_or(belongs))
}

fn problem(e: &Error, path: impl Fn(&str) -> PathBuf) -> serde_json::Value {
    let e = advised(e);
    let path = e.file().map(|file| path(file).display().to_string());
    serde_json::json!({
        "kind": e.kind().word(), "file": e.file(), "path": path, "offset": e.offset(),
        "byte_range": e.byte_range().map(|(start, end)| [start, end]), "keys": e.key_range(),
        "what": e.message(),
        "expected": e.expected_value(), "found": e.found_value(), "advice": e.advice_text(),
    })
}

fn json(report: &CheckReport, path: impl Fn(&str) -> PathBuf) -> serde_json::Value {
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
    let problems = report.problems.iter().map(|e| problem(e, &path));
    let log = report.log.as_ref().map(|log| {
        serde_json::json!({
            "segment_count": log.segment_count, "record_count": log.record_count,
            "record_bytes": log.record_bytes,
            "entry_count": log.entry_count, "end_segment": log.end.segment,
            "end_offset": log.end.offset, "stop": log.stop, "closed": log.closed,
            "is_torn": log.is_torn, "discarded_record_count": log.discarded_record_count,
            "discarded_bytes": log.discarded_bytes,
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
        if log.is_torn {
            outln!(out, "          {TORN_RECORD}")?;
        }
        if log.discarded_record_count > 0 {
            outln!(
                out,
                "          and {} ({}) behind a torn one, which were never synced; the next open \
                discards them, and a `silt repair` before that keeps them",
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
            "that nothing refers to; the next open deletes them",
        ),
        (&report.foreign, "that are not part of the store"),
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

#[cfg(test)]
mod tests {
    use siltstone::{Options, RedirectDir, Store};

    use super::*;

    #[test]
    fn files_of_a_second_location_are_shown_where_they_are() {
        let folder = tempfile::tempdir().unwrap();
        let root = std::fs::canonicalize(folder.path()).unwrap();
        let at = |name: &str| root.join(name);
        let options = Options {
            redirect_dir: RedirectDir::Path("../second".into()),
            ..Options::default()
        };
        Store::open(at("s"), options).unwrap().close().unwrap();
        let [here, there] = [
            "00000001-00000001-0000-00000.tbl",
            "00000001-00000002-0000-00000.tbl",
        ];
        std::fs::write(at("s").join(here), "x").unwrap();
        std::fs::write(at("second").join(there), "x").unwrap();
        let storages = Storages::find(at("s")).unwrap();
        assert_eq!(path_of(&storages, here), at("s").join(here));
        assert_eq!(path_of(&storages, there), at("second").join(there));
        // Missing: by name in the folder of the tables, and by its path at the second location.
        assert_eq!(path_of(&storages, "gone.tbl"), at("s/gone.tbl"));
        let gone = at("second/gone.tbl");
        assert_eq!(path_of(&storages, &gone.display().to_string()), gone);
    }
}
