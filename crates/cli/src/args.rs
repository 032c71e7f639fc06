//! What can be asked of `silt`: commands, flags, and their help.

use std::ops::Range;
use std::path::PathBuf;

use clap::{ArgGroup, Parser, Subcommand, ValueEnum};

/// The command line of siltstone, an embedded key-value store.
///
/// A store is a folder. One process has it open at a time.
/// Keys are ordered bytewise. Exit codes: 0 fine, 1 not found (get) or damage found (check), 2 wrong usage, 3 failed.
#[derive(Debug, Parser)]
#[command(
    name = "silt",
    version,
    propagate_version = true,
    after_help = "Examples:\n  \
        silt demo                                   see it work, and survive kill -9\n  \
        silt load words.silt /usr/share/dict/words  one pair a line\n  \
        silt get words.silt zebra\n  \
        silt scan words.silt --prefix ze --limit 5\n  \
        silt check words.silt                       every checksum and every invariant"
)]
pub struct Args {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Load records of a file into a store, which is created if it is not there.
    Load(LoadArgs),
    /// Print the value of a key.
    Get(GetArgs),
    /// Print keys and values in key order, a pair a line.
    Scan(ScanArgs),
    /// Count keys.
    Count(CountArgs),
    /// Show levels, counters, latencies and delays.
    Stats(StatsArgs),
    /// Verify every checksum and every invariant of a store that nobody has open.
    Check(CheckArgs),
    /// Write millions of particles into a store, read them back, kill the writer with SIGKILL, and verify what survived.
    Demo(DemoArgs),
    /// The demo's own writer process.
    #[command(hide = true)]
    DemoWriter(DemoWriterArgs),
}

/// Which store and keyspace.
#[derive(Debug, clap::Args)]
pub struct StoreArgs {
    /// The store's folder.
    pub store: PathBuf,
    /// The keyspace within the store.
    #[arg(short = 'k', long, value_name = "NAME", default_value = siltstone::DEFAULT_KEYSPACE)]
    pub keyspace: String,
}

/// A format of `load`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// The first column is the key, the rest of the record as it stands is the value (RFC 4180: quotes, line breaks in quotes).
    Csv,
    /// The whole line is the key, its number in the input (from 1) is the value; of equal lines the last one stays.
    Lines,
    /// Records of --record bytes; bytes --key are the key, all others are the value.
    Fixed,
}

/// Arguments of `load`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    silt load people.silt people.csv --format csv --header\n  \
    zcat access.log.gz | silt load log.silt - \n  \
    silt load particles.silt dump.bin --format fixed --record 48 --key 0..16\n\n\
    A record that cannot be loaded (a key over 65,535 bytes, an open quote, a cut record) ends the load with its number and an exit code \
    of 3; what was loaded before it stays. With --skip-bad such records are counted and left out.")]
pub struct LoadArgs {
    /// Store and keyspace.
    #[command(flatten)]
    pub store: StoreArgs,
    /// The file, or - for standard input.
    #[arg(default_value = "-")]
    pub file: PathBuf,
    /// How the file is cut into records.
    #[arg(short, long, value_enum, default_value_t = Format::Lines)]
    pub format: Format,
    /// Leave out the first record, which holds names (csv).
    #[arg(long)]
    pub header: bool,
    /// The byte between columns (csv).
    #[arg(long, value_name = "CHAR", value_parser = delimiter)]
    pub delimiter: Option<u8>,
    /// Length of a record (fixed).
    #[arg(long, value_name = "BYTES")]
    pub record: Option<usize>,
    /// Which bytes of a record are its key, for example 0..16; the end does not belong to it (fixed).
    #[arg(long, value_name = "A..B", value_parser = byte_range)]
    pub key: Option<Range<usize>>,
    /// The value is the whole record, not only the bytes that are not the key (fixed, csv).
    #[arg(long)]
    pub whole: bool,
    /// Leave bad records out and count them instead of stopping at the first.
    #[arg(long)]
    pub skip_bad: bool,
    /// Make every batch durable against power loss before the next one.
    #[arg(long)]
    pub sync: bool,
}

/// How keys and values look.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct FormArgs {
    /// Keys are given, and keys and values are printed, as hexadecimal digits.
    #[arg(long)]
    pub hex: bool,
}

/// Arguments of `get`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    silt get words.silt zebra\n  \
    silt get particles.silt --hex 00000000000000000000000000000007\n  \
    silt get pictures.silt cat.png --raw > cat.png\n\n\
    A key may hold \\xNN, \\t, \\n and \\\\ as `scan` prints them. The exit code is 1 if there is no such key.")]
pub struct GetArgs {
    /// Store and keyspace.
    #[command(flatten)]
    pub store: StoreArgs,
    /// The key.
    pub key: String,
    /// Form of keys and values.
    #[command(flatten)]
    pub form: FormArgs,
    /// Write the value's bytes as they are, without a line end.
    #[arg(long, conflicts_with = "hex")]
    pub raw: bool,
}

/// Which keys.
#[derive(Debug, clap::Args)]
#[command(group = ArgGroup::new("bounds").multiple(true))]
pub struct RangeArgs {
    /// Only keys that begin with this.
    #[arg(long, value_name = "KEY", conflicts_with_all = ["from", "to"])]
    pub prefix: Option<String>,
    /// The smallest key.
    #[arg(long, value_name = "KEY")]
    pub from: Option<String>,
    /// The key before which to end.
    #[arg(long, value_name = "KEY")]
    pub to: Option<String>,
}

/// Arguments of `scan`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    silt scan words.silt --prefix ze --limit 5\n  \
    silt scan words.silt --from m --to n --reverse\n  \
    silt scan words.silt --keys | wc -l\n\n\
    A line is key, tab, value. Text is printed as it is; a tab, a line break and a backslash as \\t, \\n and \\\\, other bytes that are \
    no text as \\xNN.")]
pub struct ScanArgs {
    /// Store and keyspace.
    #[command(flatten)]
    pub store: StoreArgs,
    /// Bounds.
    #[command(flatten)]
    pub range: RangeArgs,
    /// End after so many pairs.
    #[arg(short = 'n', long, value_name = "COUNT")]
    pub limit: Option<u64>,
    /// From the last key to the first.
    #[arg(short, long)]
    pub reverse: bool,
    /// Print keys only.
    #[arg(long)]
    pub keys: bool,
    /// Form of keys and values.
    #[command(flatten)]
    pub form: FormArgs,
}

/// Arguments of `count`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  silt count words.silt --prefix ze")]
pub struct CountArgs {
    /// Store and keyspace.
    #[command(flatten)]
    pub store: StoreArgs,
    /// Bounds.
    #[command(flatten)]
    pub range: RangeArgs,
    /// Form of keys.
    #[command(flatten)]
    pub form: FormArgs,
}

/// Arguments of `stats`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Counters, latencies and delays are those since the store was opened, so of this command's own look at it: recovery and \
    its flushes. The levels are the store's."
)]
pub struct StatsArgs {
    /// The store's folder.
    pub store: PathBuf,
    /// Only this keyspace.
    #[arg(short = 'k', long, value_name = "NAME")]
    pub keyspace: Option<String>,
}

/// Arguments of `check`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Nothing is changed. The exit code is 0 for a sound store, 1 if there is damage (each is named by file and offset), 3 if the store \
    could not be looked at: there is none, it is open elsewhere, or its format is newer."
)]
pub struct CheckArgs {
    /// The store's folder.
    pub store: PathBuf,
}

/// Arguments of `demo`.
#[derive(Debug, clap::Args)]
pub struct DemoArgs {
    /// All of it in a few seconds, with fewer particles.
    #[arg(long)]
    pub quick: bool,
    /// Where the store shall be: a folder that is empty or not there yet. A new one among the temporary files if not given.
    #[arg(long, value_name = "FOLDER")]
    pub store: Option<PathBuf>,
    /// Seed of everything random.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// About how many pairs to write, at least 2,000.
    #[arg(long, hide = true, value_parser = clap::value_parser!(u64).range(2_000..=1_000_000_000))]
    pub pairs: Option<u64>,
    /// How often the writer is killed.
    #[arg(long, hide = true)]
    pub kills: Option<u32>,
}

/// Arguments of the demo's writer process.
#[derive(Debug, clap::Args)]
pub struct DemoWriterArgs {
    /// The store's folder.
    pub store: PathBuf,
    /// Seed of the script.
    #[arg(long)]
    pub seed: u64,
    /// The first operation of each lane.
    #[arg(long, required = true, num_args = 1.., value_delimiter = ',')]
    pub next: Vec<u64>,
}

fn byte_range(text: &str) -> Result<Range<usize>, String> {
    let wrong = || "expected A..B with A below B, for example 0..16".to_string();
    let (start, end) = text.split_once("..").ok_or_else(wrong)?;
    let number = |text: &str| text.parse::<usize>().map_err(|_| wrong());
    let range = number(start)?..number(end)?;
    if range.is_empty() {
        Err(wrong())
    } else {
        Ok(range)
    }
}

fn delimiter(text: &str) -> Result<u8, String> {
    let byte = match text.as_bytes() {
        b"\\t" => b'\t',
        [byte] => *byte,
        _ => return Err("expected one byte, or \\t for a tab".to_string()),
    };
    match byte {
        b'"' | b'\n' | b'\r' => Err("quotes and line ends have their own meaning".to_string()),
        _ => Ok(byte),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_definition_holds() {
        Args::command().debug_assert();
    }

    #[test]
    fn byte_ranges_and_delimiters() {
        assert_eq!(byte_range("0..16"), Ok(0..16));
        for wrong in [
            "",
            "3",
            "..",
            "4..4",
            "5..4",
            "a..b",
            "0..-1",
            "0..99999999999999999999999",
        ] {
            assert!(byte_range(wrong).is_err(), "{wrong}");
        }
        assert_eq!(delimiter(";"), Ok(b';'));
        assert_eq!(delimiter("\\t"), Ok(b'\t'));
        assert!(delimiter("\"").is_err() && delimiter("ab").is_err() && delimiter("").is_err());
    }
}
