//! `silt export`: writes a range of a keyspace as tables.

use siltstone::TableFolder;
use siltstone_storage::name::is_object_name;

use super::unfinished::Mark;
use super::{bounds, open_keyspace, place};
use crate::args::ExportArgs;
use crate::failure::{Failure, Outcome};
use crate::form::push_json_bytes;
use crate::output::{Out, bytes, outln, plural};

/// The name of tables if the keyspace's name cannot be part of a file's name.
const PLAIN_NAME: &str = "table";

/// Runs the command.
pub fn run(args: &ExportArgs) -> Result<Outcome, Failure> {
    place::refuse_url_for(
        &args.folder,
        "`silt export` writes tables to a local folder",
    )?;
    let range = bounds(&args.range, &args.form.key(), true)?;
    let fits = |name: &str| is_object_name(&format!("{name}-00000.table"));
    let name = match &args.name {
        Some(name) if fits(name) => &name[..],
        Some(name) => {
            return Err(Failure::Usage(format!(
                "tables cannot be called `{name}`: expected at most 88 of the characters A-Z a-z \
                0-9 . _ -, and no dot at the start"
            )));
        }
        None if fits(&args.store.keyspace) => &args.store.keyspace,
        None => PLAIN_NAME,
    };
    let is_new = !args.folder.exists();
    if !is_new && !args.folder.is_dir() {
        return Err(Failure::Other(format!(
            "{}: this is a file, and tables are written to a folder; name a folder, which is \
            created if it does not exist",
            args.folder.display()
        )));
    }
    let (store, keyspace) = open_keyspace(&args.store)?;
    let folder = TableFolder::create(&args.folder)?;
    let exported = Mark::create(&args.folder, name).and_then(|mark| {
        match keyspace.export(range, &folder, name) {
            Ok(tables) => mark.delete().map(|()| tables),
            Err(error) => {
                mark.abandon();
                let context = format!("exporting into {}", args.folder.display());
                Err(error.context(context).into())
            }
        }
    });
    if exported.is_err() && is_new {
        // This succeeds only if the folder is empty.
        let _ = std::fs::remove_dir(&args.folder);
    }
    let tables = exported?;
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
