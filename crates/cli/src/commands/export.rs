//! `silt export`: a range of a keyspace as tables.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use siltstone::{BUILT_TABLE_SUFFIX, Error, ErrorKind, TableFolder};
use siltstone_storage::StorageErrorKind;
use siltstone_storage::name::is_object_name;
use siltstone_table::footer::MAGIC;

use super::{bounds, open_keyspace};
use crate::args::ExportArgs;
use crate::failure::{Failure, Outcome};
use crate::form::push_json_bytes;
use crate::output::{Out, bytes, outln, plural};

/// What tables are called whose keyspace's name cannot be a part of a file's.
const PLAIN_NAME: &str = "table";

/// Runs the command.
pub fn run(args: &ExportArgs) -> Result<Outcome, Failure> {
    let range = bounds(&args.range, &args.form.key(), true)?;
    let fits = |name: &str| is_object_name(&format!("{name}-00000.table"));
    let name = match &args.name {
        Some(name) if fits(name) => &name[..],
        Some(name) => {
            return Err(Failure::Usage(format!(
                "tables cannot be called `{name}`: expected at most 88 of the characters A-Z a-z 0-9 . _ -, the first no dot"
            )));
        }
        None if fits(&args.store.keyspace) => &args.store.keyspace,
        None => PLAIN_NAME,
    };
    let is_new = !args.folder.exists();
    if !is_new && !args.folder.is_dir() {
        return Err(Failure::Other(format!(
            "{}: there is a file of this name, and tables are written into a folder; name a \
             folder, which is created if it is not there",
            args.folder.display()
        )));
    }
    let (store, keyspace) = open_keyspace(&args.store)?;
    let folder = TableFolder::create(&args.folder)?;
    let tables = keyspace.export(range, &folder, name).map_err(|error| {
        if is_new {
            // Only if nothing is in it.
            let _ = std::fs::remove_dir(&args.folder);
        }
        match error.storage().map(|e| e.kind) {
            Some(StorageErrorKind::AlreadyExists) => in_the_way(&args.folder, &error, name),
            _ => error.context(format!("exporting into {}", args.folder.display())),
        }
    })?;
    store.close()?;
    let entries = tables.iter().map(|t| t.entry_count).sum::<u64>();
    let file_bytes = tables.iter().map(|t| t.file_bytes).sum::<u64>();
    let mut out = Out::new();
    if args.json {
        let key = |key: &[u8]| {
            let mut line = Vec::new();
            push_json_bytes(&mut line, key);
            serde_json::from_slice::<serde_json::Value>(&line).unwrap_or_default()
        };
        let each: serde_json::Value = tables
            .iter()
            .map(|t| {
                serde_json::json!({
                    "name": t.file.name(), "entry_count": t.entry_count, "file_bytes": t.file_bytes,
                    "smallest_key": key(&t.smallest_key), "largest_key": key(&t.largest_key),
                })
            })
            .collect();
        let all = serde_json::json!({
            "keyspace": args.store.keyspace, "table_count": tables.len(), "entry_count": entries,
            "file_bytes": file_bytes, "tables": each,
        });
        outln!(out, "{all}")?;
    } else if let (Some(first), Some(last)) = (tables.first(), tables.last()) {
        let names = match tables.len() {
            1 => first.file.name().to_string(),
            _ => format!("{} to {}", first.file.name(), last.file.name()),
        };
        outln!(
            out,
            "{}: {names}, {} with {} ({})",
            args.folder.display(),
            plural(tables.len() as u64, "table"),
            plural(entries, "key"),
            bytes(file_bytes)
        )?;
    } else {
        outln!(out, "nothing to export: no table was written")?;
    }
    out.finish()?;
    Ok(Outcome::Fine)
}

/// A table of this name that does not end as tables do, because its export was cut off.
fn unfinished(folder: &Path, name: &str) -> Option<PathBuf> {
    let ends_as_tables = |path: &Path| {
        let mut end = [0; MAGIC.len()];
        let read = File::open(path).and_then(|mut file| {
            file.seek(SeekFrom::End(-(MAGIC.len() as i64)))?;
            file.read_exact(&mut end)
        });
        read.is_ok() && end == MAGIC
    };
    (0..=99_999)
        .map(|number| folder.join(format!("{name}-{number:05}{BUILT_TABLE_SUFFIX}")))
        .take_while(|path| path.is_file())
        .find(|path| !ends_as_tables(path))
}

/// The refusal of an export over a file that is there.
fn in_the_way(folder: &Path, error: &Error, name: &str) -> Error {
    let file = error.file().unwrap_or(name);
    let file = folder.join(Path::new(file).file_name().unwrap_or_default());
    if let Some(unfinished) = unfinished(folder, name) {
        let message = format!(
            "{} is there already, and {} is no whole table: an export to this folder was cut off",
            file.display(),
            unfinished.display()
        );
        return Error::new(ErrorKind::InvalidArgument, message).advice(format!(
            "delete the tables of that export, {}, and give the command again",
            folder.join(format!("{name}-*.table")).display()
        ));
    }
    let message = format!(
        "{} is there already, and an export replaces nothing",
        file.display()
    );
    Error::new(ErrorKind::InvalidArgument, message).advice(format!(
        "export into another folder, or give the tables another name than `{name}` with --name"
    ))
}
