//! Arguments of `dump`.

use std::path::PathBuf;

use clap::ValueEnum;

use super::{FORMS_HELP, FormArgs, RangeArgs};

/// The kind of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DumpKind {
    /// A segment of the log.
    Log,
    /// A manifest.
    Manifest,
    /// A table.
    Table,
    /// CURRENT.
    Pointer,
}

/// Arguments of `dump`.
#[derive(Debug, clap::Args)]
#[command(after_help = format!("Examples:\n  \
    silt dump words.silt/000000000002.log\n  \
    silt dump words.silt/000000000002.log --entries --limit 100\n  \
    silt dump words.silt/MANIFEST-000000000003\n  \
    silt dump words.silt/CURRENT\n  \
    silt dump table.tbl --entries --prefix ze\n  \
    silt dump table.tbl --json | jq 'select(.type == \"block\")'\n\n\
    The first column is the offset in the file. The records of a log, the edits of a manifest, or \
    the sections and blocks of a table are printed: the first 20 by default, and with --entries \
    the keys and values in them. Everything is read and verified. All valid parts of a damaged \
    file are printed, also those after the damage. Each damage is named with offset, expected and \
    found, and the exit code is 1.\n\n\
    Nothing is changed or locked, so the command works while another process has the store open. \
    The last record that this process writes may then look incomplete.\n\n{FORMS_HELP}"))]
pub struct DumpArgs {
    /// The file: a log segment, a manifest, CURRENT, a table of a store or an exported one.
    pub file: PathBuf,
    /// Print every block of a table, or every record of a log or manifest.
    #[arg(long, visible_alias = "records")]
    pub blocks: bool,
    /// Print the entries: keys and values.
    #[arg(long)]
    pub entries: bool,
    /// Print the entries without their values.
    #[arg(long)]
    pub keys: bool,
    /// Print only entries within these bounds.
    #[command(flatten)]
    pub range: RangeArgs,
    /// Print this number of blocks, records or entries.
    #[arg(short = 'n', long, value_name = "COUNT", value_parser = super::limit)]
    #[arg(allow_negative_numbers = true)]
    pub limit: Option<u64>,
    /// The kind of the file, if neither its bytes nor its name show it.
    #[arg(long, value_enum)]
    pub kind: Option<DumpKind>,
    /// Form of keys and values.
    #[command(flatten)]
    pub form: FormArgs,
    /// Print one JSON object a line, with "type" and "offset".
    #[arg(long)]
    pub json: bool,
}
