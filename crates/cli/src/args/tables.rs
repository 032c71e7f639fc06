//! Arguments of the commands that ingest and export tables.

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
    The tables are made by `silt export` or by the library's TableBuilder; of a folder, all files \
    that end in .table are ingested. Their entries are newer than everything that the keyspaces \
    hold. They are added in one atomic step, over all keyspaces: after a crash all of them are \
    there or none. If tables of a keyspace overlap, later ones win. Every block is verified first. \
    The ingest is durable when the command ends.\n\n\
    --link makes a hard link to each file if the file system can, and a copy otherwise; a linked \
    file must not be changed afterwards. --copy copies the files. --move removes them once the \
    ingest is durable.")]
pub struct IngestArgs {
    /// Store and keyspace, both created if they do not exist.
    #[command(flatten)]
    pub store: StoreArgs,
    /// Tables, or folders of tables, for the keyspace.
    #[arg(value_name = "FILE", required_unless_present = "into")]
    pub files: Vec<PathBuf>,
    /// A table, or a folder of tables, for another keyspace in the same step; can be repeated.
    #[arg(long, value_name = "NAME=FILE", value_parser = into)]
    pub into: Vec<Into>,
    /// Link the files if possible, and copy them otherwise (the default).
    #[arg(long, conflicts_with_all = ["copy", "move"])]
    pub link: bool,
    /// Copy the files.
    #[arg(long, conflicts_with = "move")]
    pub copy: bool,
    /// Remove the files once the ingest is durable.
    #[arg(long = "move")]
    pub r#move: bool,
    /// Print a summary as JSON at the end.
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `export`.
#[derive(Debug, clap::Args)]
#[command(after_help = format!("Examples:\n  \
    silt export birds.silt out\n  \
    silt export birds.silt -k sightings out --prefix 2026-\n  \
    silt export birds.silt out --from m --to n --name middle\n\n\
    The current contents of the keyspace are written in key order as tables NAME-00000.table, ..., \
    without deletes and older versions. `silt ingest` adds them to any store, and `silt dump` \
    prints them. No file in the folder is replaced. While an export runs, the file \
    NAME-unfinished.export lies beside its tables. If it was killed, the file stays, and neither \
    `silt ingest` nor another export accepts these tables: delete them with the file, and export \
    again.\n\n{FORMS_HELP}"))]
pub struct ExportArgs {
    /// Store and keyspace.
    #[command(flatten)]
    pub store: StoreArgs,
    /// The folder of the tables, created if it does not exist.
    pub folder: PathBuf,
    /// Bounds.
    #[command(flatten)]
    pub range: RangeArgs,
    /// The name of the tables; by default the keyspace's name.
    #[arg(long, value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    pub name: Option<String>,
    /// Form of keys.
    #[command(flatten)]
    pub form: KeyFormArgs,
    /// Print a summary as JSON at the end.
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
