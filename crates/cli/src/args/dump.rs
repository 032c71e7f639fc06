//! Arguments of `dump`.

use std::path::PathBuf;

use clap::ValueEnum;

use super::{FORMS_HELP, FormArgs, RangeArgs};

/// What a file is.
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
    The first column is the offset in the file. A log's records, a manifest's edits and a table's \
    sections and blocks are printed, the first 20 if not asked for more, and \
    with --entries the keys and values in them. Everything is read and verified. A damaged file is \
    printed as far as it holds, behind damage too; each damage is named with \
    offset, expected and found, and the exit code is 1.\n\n\
    Nothing is changed or locked: it works beside a process that has the store open, whose last \
    record may then look cut off.\n\n{FORMS_HELP}"))]
pub struct DumpArgs {
    /// The file: a log segment, a manifest, CURRENT, a table of a store or an exported one.
    pub file: PathBuf,
    /// Every block of a table, every record of a log or manifest.
    #[arg(long, visible_alias = "records")]
    pub blocks: bool,
    /// The entries: keys and values.
    #[arg(long)]
    pub entries: bool,
    /// The entries without their values.
    #[arg(long)]
    pub keys: bool,
    /// Only entries within these bounds.
    #[command(flatten)]
    pub range: RangeArgs,
    /// List so many blocks, records or entries.
    #[arg(short = 'n', long, value_name = "COUNT", value_parser = super::limit)]
    #[arg(allow_negative_numbers = true)]
    pub limit: Option<u64>,
    /// What the file is, where neither its bytes nor its name tell.
    #[arg(long, value_enum)]
    pub kind: Option<DumpKind>,
    /// Form of keys and values.
    #[command(flatten)]
    pub form: FormArgs,
    /// A JSON object a line, with "type" and "offset".
    #[arg(long)]
    pub json: bool,
}
