//! `silt keyspace`: lists, creates and drops keyspaces.

use console::{Alignment, measure_text_width, pad_str};
use siltstone::KeyspaceStats;

use super::{is_own, keyspace_of, open_existing, open_or_create, open_to_read, refuse_own_name};
use crate::args::{KeyspaceCommand, KeyspaceCreateArgs, KeyspaceDropArgs, KeyspaceListArgs};
use crate::failure::{Failure, Outcome};
use crate::output::{Out, bytes, confirm, count, on_terminal, one_line, outln};

/// Runs the command.
pub fn run(command: &KeyspaceCommand) -> Result<Outcome, Failure> {
    match command {
        KeyspaceCommand::List(args) => list(args),
        KeyspaceCommand::Create(args) => create(args),
        KeyspaceCommand::Drop(args) => drop_one(args),
    }
}

fn list(args: &KeyspaceListArgs) -> Result<Outcome, Failure> {
    let store = open_to_read(&args.store)?;
    let stats = store.stats();
    let mut keyspaces: Vec<&KeyspaceStats> = stats
        .keyspaces
        .iter()
        .filter(|k| args.all || !is_own(&k.name))
        .collect();
    keyspaces.sort_by(|a, b| a.name.cmp(&b.name));
    let mut out = Out::new();
    if args.json {
        let all: Vec<_> = keyspaces
            .iter()
            .map(|k| {
                let sizes = Sizes::of(k);
                serde_json::json!({
                    "name": k.name,
                    "table_entry_count": sizes.entries,
                    "table_count": sizes.tables,
                    "table_file_bytes": sizes.file_bytes,
                    "memtable_bytes": k.memtable_bytes,
                })
            })
            .collect();
        outln!(out, "{}", serde_json::Value::from(all))?;
    } else if on_terminal() {
        let width = keyspaces
            .iter()
            .map(|k| measure_text_width(&one_line(&k.name)));
        let width = width.max().unwrap_or(0).max(8);
        outln!(
            out,
            "{:<width$}  {:>16}  {:>8}  {:>12}  {:>12}",
            "keyspace",
            "entries (tables)",
            "tables",
            "file bytes",
            "in memory"
        )?;
        for k in keyspaces {
            let sizes = Sizes::of(k);
            outln!(
                out,
                "{}  {:>16}  {:>8}  {:>12}  {:>12}",
                pad_str(&one_line(&k.name), width, Alignment::Left, None),
                count(sizes.entries),
                count(sizes.tables),
                bytes(sizes.file_bytes),
                bytes(k.memtable_bytes)
            )?;
        }
    } else {
        for k in keyspaces {
            outln!(out, "{}", one_line(&k.name))?;
        }
    }
    out.finish()?;
    store.close()?;
    Ok(Outcome::Fine)
}

struct Sizes {
    entries: u64,
    tables: u64,
    file_bytes: u64,
}

impl Sizes {
    fn of(keyspace: &KeyspaceStats) -> Sizes {
        let sum = |of: fn(&siltstone::LevelStats) -> u64| keyspace.levels.iter().map(of).sum();
        Sizes {
            entries: sum(|l| l.entry_count),
            tables: sum(|l| l.table_count),
            file_bytes: sum(|l| l.file_bytes),
        }
    }
}

fn create(args: &KeyspaceCreateArgs) -> Result<Outcome, Failure> {
    refuse_own_name(&args.keyspace)?;
    let store = open_or_create(&args.store)?;
    store.create_keyspace(&args.keyspace)?;
    store.close()?;
    Ok(Outcome::Fine)
}

fn drop_one(args: &KeyspaceDropArgs) -> Result<Outcome, Failure> {
    let store = open_existing(&args.store)?;
    keyspace_of(&store, &args.keyspace)?;
    if !args.yes {
        let stats = store.stats();
        let sizes = stats
            .keyspaces
            .iter()
            .find(|k| k.name == args.keyspace)
            .map_or(0, |k| Sizes::of(k).file_bytes + k.memtable_bytes);
        confirm(
            &format!(
                "Drop keyspace `{}` and all of its data ({})?",
                one_line(&args.keyspace),
                bytes(sizes)
            ),
            false,
        )?;
    }
    store.drop_keyspace(&args.keyspace)?;
    store.close()?;
    Ok(Outcome::Fine)
}
