//! Arguments of the commands that take tables in and write them.

use std::path::PathBuf;

use clap::builder::NonEmptyStringValueParser;

use super::{FORMS_HELP, KeyFormArgs, RangeArgs, StoreArgs};

/// Tables for a keyspace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Into {
    /// The keyspace.
    pub keyspace: String,
    /// A table, or a folder of tables.
    pub path: PathBuf,
}

/// Arguments of `ingest`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    silt export birds.silt out && silt ingest copy.silt out\n  \
    silt ingest birds.silt -k sightings day1.table day2.table --move\n  \
    silt ingest birds.silt --into sightings=out/sightings --into names=out/names\n\n\
    The tables are those of `silt export` or of the library's TableBuilder; of a folder all that \
    end in .table. Their entries come above everything that the keyspaces hold, \
    and all of them at once, over all keyspaces: after a crash everything is there or nothing. \
    Where tables of a keyspace overlap, later ones win. Every block is verified \
    first. It is durable when the command ends.\n\n\
    --link makes a second name of each file where the file system can, else a copy; nobody may \
    write to the file afterwards. --copy leaves the files alone, --move removes \
    them once they are safely in.")]
pub struct IngestArgs {
    /// Store and keyspace, both created if they are not there.
    #[command(flatten)]
    pub store: StoreArgs,
    /// Tables, or folders of tables, for the keyspace.
    #[arg(value_name = "FILE", required_unless_present = "into")]
    pub files: Vec<PathBuf>,
    /// A table, or a folder of tables, for another keyspace in the same step; may be given again.
    #[arg(long, value_name = "NAME=FILE", value_parser = into)]
    pub into: Vec<Into>,
    /// Link the files where that can be, else copy them (the default).
    #[arg(long, conflicts_with_all = ["copy", "move"])]
    pub link: bool,
    /// Copy the files.
    #[arg(long, conflicts_with = "move")]
    pub copy: bool,
    /// Remove the files once they are in.
    #[arg(long = "move")]
    pub r#move: bool,
    /// Say at the end as JSON what was done.
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `export`.
#[derive(Debug, clap::Args)]
#[command(after_help = format!("Examples:\n  \
    silt export birds.silt out\n  \
    silt export birds.silt -k sightings out --prefix 2026-\n  \
    silt export birds.silt out --from m --to n --name middle\n\n\
    Writes what the keyspace holds now as tables NAME-00000.table, ... in key order, without \
    deletes and older versions, which `silt ingest` takes into any store and \
    `silt dump` prints. Nothing in the folder is replaced. While an export runs, the file \
    NAME-unfinished.export lies beside its tables. If it was killed, the file stays, and neither \
    `silt ingest` nor another export accepts these tables: delete them with the file, and export \
    again.\n\n{FORMS_HELP}"))]
pub struct ExportArgs {
    /// Store and keyspace.
    #[command(flatten)]
    pub store: StoreArgs,
    /// Where the tables go; created if it is not there.
    pub folder: PathBuf,
    /// Bounds.
    #[command(flatten)]
    pub range: RangeArgs,
    /// What the tables are called; the keyspace's name if not given.
    #[arg(long, value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    pub name: Option<String>,
    /// Form of keys.
    #[command(flatten)]
    pub form: KeyFormArgs,
    /// Say at the end as JSON what was done.
    #[arg(long)]
    pub json: bool,
}

fn into(text: &str) -> Result<Into, String> {
    match text.split_once('=') {
        Some((keyspace, path)) if !keyspace.is_empty() && !path.is_empty() => Ok(Into {
            keyspace: keyspace.to_string(),
            path: path.into(),
        }),
        _ => Err("expected a keyspace and a table or folder: NAME=FILE".to_string()),
    }
}
