//! Arguments of the commands that read and write keys.

use std::path::PathBuf;

use super::{FORMS_HELP, FormArgs, KeyFormArgs, StoreArgs, limit};

/// Arguments of `put`.
#[derive(Debug, clap::Args)]
#[command(after_help = format!("Examples:\n  \
    silt put birds.silt wren \"9 g\"\n  \
    silt put birds.silt cat.png --file cat.png\n  \
    date | silt put birds.silt now --file -\n  \
    silt put particles.silt 7,12 0.5,2.25 --key-as cell:u32be,id:u64be --value-as x:f32,v:f32\n\n\
    The write is durable when the command ends. With --value-as json the value must be JSON. Write \
    a key or value that begins with a minus after `--`, as the last arguments.\n\n{FORMS_HELP}"))]
pub struct PutArgs {
    /// Store and keyspace, both created if they do not exist.
    #[command(flatten)]
    pub store: StoreArgs,
    /// The key.
    pub key: String,
    /// The value.
    #[arg(required_unless_present = "file", conflicts_with = "file")]
    pub value: Option<String>,
    /// Take the bytes of this file as the value; - is standard input.
    #[arg(long, value_name = "FILE", conflicts_with = "value_as")]
    pub file: Option<PathBuf>,
    /// Form of key and value.
    #[command(flatten)]
    pub form: FormArgs,
}

/// Arguments of `get`.
#[derive(Debug, clap::Args)]
#[command(after_help = format!("Examples:\n  \
    silt get words.silt zebra\n  \
    silt get particles.silt --hex 00000000000000000000000000000007\n  \
    silt get particles.silt 7,12 --key-as cell:u32be,id:u64be --value-as x:f32,v:f32\n  \
    silt get pictures.silt cat.png --raw > cat.png\n\n\
    The exit code is 1 if there is no such key.\n\n{FORMS_HELP}"))]
pub struct GetArgs {
    /// Store and keyspace.
    #[command(flatten)]
    pub store: StoreArgs,
    /// The key.
    pub key: String,
    /// Form of key and value.
    #[command(flatten)]
    pub form: FormArgs,
    /// Write the value's bytes as they are, without a line end.
    #[arg(long, conflicts_with_all = ["hex", "base64", "value_as", "json"])]
    pub raw: bool,
    /// Print key and value as a JSON object.
    #[arg(long)]
    pub json: bool,
}

/// Which keys.
#[derive(Debug, clap::Args)]
pub struct RangeArgs {
    /// Only keys that begin with this.
    #[arg(long, value_name = "KEY", conflicts_with_all = ["from", "to"])]
    pub prefix: Option<String>,
    /// Only keys from this one on.
    #[arg(long, value_name = "KEY")]
    pub from: Option<String>,
    /// Only keys before this one.
    #[arg(long, value_name = "KEY")]
    pub to: Option<String>,
}

impl RangeArgs {
    /// Whether any bound is given.
    pub fn given(&self) -> bool {
        self.prefix.is_some() || self.from.is_some() || self.to.is_some()
    }
}

/// Arguments of `del`.
#[derive(Debug, clap::Args)]
#[command(after_help = format!("Examples:\n  \
    silt del words.silt zebra zebras\n  \
    silt del words.silt --prefix ze\n  \
    silt del words.silt --from m --to n --yes\n\n\
    Removing a range has a cost that does not depend on the number of its keys. The command then \
    asks first; --yes answers. Removing a key that does not exist is no error. The removal is \
    durable when the command ends.\n\n{FORMS_HELP}"))]
pub struct DelArgs {
    /// Store and keyspace.
    #[command(flatten)]
    pub store: StoreArgs,
    /// The keys.
    #[arg(
        value_name = "KEY",
        required_unless_present_any = ["prefix", "from", "to"],
        conflicts_with_all = ["prefix", "from", "to"]
    )]
    pub keys: Vec<String>,
    /// Bounds.
    #[command(flatten)]
    pub range: RangeArgs,
    /// Do not ask.
    #[arg(short, long)]
    pub yes: bool,
    /// Form of keys.
    #[command(flatten)]
    pub form: KeyFormArgs,
}

/// Arguments of `scan`.
#[derive(Debug, clap::Args)]
#[command(after_help = format!("Examples:\n  \
    silt scan words.silt --prefix ze --limit 5\n  \
    silt scan words.silt --from m --to n --reverse\n  \
    silt scan words.silt --keys | wc -l\n  \
    silt scan particles.silt --key-as cell:u32be,id:u64be --value-as x:f32,v:f32 --prefix 7\n  \
    silt scan people.silt --json | jq .value\n\n\
    Each line is a key, a tab and a value. With a layout, the fields are columns under their names \
    on a terminal, and are separated by tabs elsewhere. With --json each line is {{\"key\": ..., \
    \"value\": ...}}. With --value-as json --json, a value that is not JSON is printed as with \
    --value-as text, followed by \"value_is_json\": false; a key likewise, with \"key_is_json\". \
    The scan continues, prints the number of such values at the end, and its exit code is \
    1.\n\n{FORMS_HELP}"))]
pub struct ScanArgs {
    /// Store and keyspace.
    #[command(flatten)]
    pub store: StoreArgs,
    /// Bounds.
    #[command(flatten)]
    pub range: RangeArgs,
    /// Stop after this number of pairs.
    #[arg(short = 'n', long, value_name = "COUNT", value_parser = limit)]
    #[arg(allow_negative_numbers = true)]
    pub limit: Option<u64>,
    /// Scan from the last key to the first.
    #[arg(short, long)]
    pub reverse: bool,
    /// Print keys only.
    #[arg(long)]
    pub keys: bool,
    /// Form of keys and values.
    #[command(flatten)]
    pub form: FormArgs,
    /// Print one JSON object a line.
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `count`.
#[derive(Debug, clap::Args)]
#[command(after_help = format!("Example:\n  silt count words.silt --prefix ze\n\n{FORMS_HELP}"))]
pub struct CountArgs {
    /// Store and keyspace.
    #[command(flatten)]
    pub store: StoreArgs,
    /// Bounds.
    #[command(flatten)]
    pub range: RangeArgs,
    /// Form of keys.
    #[command(flatten)]
    pub form: KeyFormArgs,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}
