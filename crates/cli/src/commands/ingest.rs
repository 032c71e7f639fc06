//! `silt ingest`: adds tables to one or several keyspaces in one atomic step.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use siltstone::{BUILT_TABLE_SUFFIX, IngestMode, Keyspace, TableFile};

use super::{keyspace_or_new, open_for, place, unfinished};
use crate::args::IngestArgs;
use crate::failure::{Failure, Outcome};
use crate::output::{Out, bytes, duration, outln, plural};

/// Runs the command.
pub fn run(args: &IngestArgs) -> Result<Outcome, Failure> {
    let start = Instant::now();
    // The tables of a keyspace stay in the order in which they are given. A keyspace may occur
    // several times in the list for the library.
    let mut wanted: Vec<(&str, Vec<PathBuf>)> = Vec::new();
    let all = args.files.iter().map(|path| (&args.store.keyspace, path));
    let all = all.chain(args.into.iter().map(|i| (&i.keyspace, &i.path)));
    for (keyspace, path) in all {
        // This comes before the store is created, because a wrong path must not create one.
        let tables = tables_at(path)?;
        match wanted.iter_mut().find(|(name, _)| *name == keyspace) {
            Some((_, list)) => list.extend(tables),
            None => wanted.push((keyspace, tables)),
        }
    }
    let parts = wanted
        .iter()
        .map(|(name, paths)| Ok((*name, TableFile::at_paths(paths)?)))
        .collect::<siltstone::Result<Vec<_>>>()?;
    let mode = if args.copy {
        IngestMode::Copy
    } else if args.r#move {
        IngestMode::Move
    } else {
        IngestMode::Link
    };
    let verify = || {
        let mut files = parts.iter().flat_map(|(_, files)| files);
        files.try_for_each(TableFile::verify)
    };
    // Nothing is created if the tables cannot be ingested.
    let is_new = !place::has_store(&args.store.store);
    if is_new {
        verify()?;
    }
    let names: Vec<&str> = parts.iter().map(|(name, _)| *name).collect();
    let store = open_for(&args.store.store, &names)?;
    let there = store.keyspaces();
    if !is_new && names.iter().any(|name| !there.iter().any(|n| n == name)) {
        verify()?;
    }
    let keyspaces = parts
        .iter()
        .map(|(name, _)| keyspace_or_new(&store, name, args.json))
        .collect::<Result<Vec<Keyspace>, Failure>>()?;
    let parts: Vec<_> = keyspaces
        .iter()
        .zip(parts)
        .map(|(keyspace, (_, files))| (keyspace, files))
        .collect();
    let report = store.ingest(&parts, mode);
    let counts: Vec<_> = parts
        .iter()
        .map(|(keyspace, files)| (keyspace.name().to_string(), files.len() as u64))
        .collect();
    let closed = store.close();
    let report = report?;
    closed?;
    for name in &report.left {
        eprintln!(
            "silt: the table {name} was ingested, but its original file could not be removed"
        );
    }
    let mut out = Out::new();
    if args.json {
        let each: serde_json::Value = counts
            .iter()
            .map(|(name, tables)| serde_json::json!({ "name": name, "table_count": tables }))
            .collect();
        let all = serde_json::json!({
            "keyspaces": each, "number": report.number, "table_count": report.table_count,
            "entry_count": report.entry_count, "file_bytes": report.file_bytes,
            "run_count": report.run_count,
            "not_removed": report.left,
        });
        outln!(out, "{all}")?;
    } else {
        let each: Vec<_> = counts
            .iter()
            .map(|(name, tables)| format!("{name} ({})", plural(*tables, "table")))
            .collect();
        outln!(
            out,
            "ingested {} ({}) into {}; {}",
            plural(report.entry_count, "entry").replace("entrys", "entries"),
            bytes(report.file_bytes),
            each.join(", "),
            duration(start.elapsed())
        )?;
    }
    out.finish()?;
    Ok(Outcome::Fine)
}

/// A table, or the tables of a folder in the order of their names.
fn tables_at(path: &Path) -> Result<Vec<PathBuf>, Failure> {
    let found = fs::metadata(path).map_err(|e| Failure::file(path, &e))?;
    if !found.is_dir() {
        unfinished::refuse(path)?;
        return Ok(vec![path.to_path_buf()]);
    }
    let mut tables = Vec::new();
    for entry in fs::read_dir(path).map_err(|e| Failure::file(path, &e))? {
        let entry = entry.map_err(|e| Failure::file(path, &e))?;
        unfinished::refuse(&entry.path())?;
        if entry
            .file_name()
            .to_string_lossy()
            .ends_with(BUILT_TABLE_SUFFIX)
        {
            tables.push(entry.path());
        }
    }
    if tables.is_empty() {
        return Err(Failure::Other(format!(
            "{}: the folder has no tables ({BUILT_TABLE_SUFFIX}); `silt export` writes such \
            tables, and `silt checkpoint` copies a store's own tables",
            path.display()
        )));
    }
    tables.sort();
    Ok(tables)
}
