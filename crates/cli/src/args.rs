//! The command line of `silt`: commands, flags, and their help, as data.
//!
//! Invariants: the store is always the first argument, a keyspace is always `-k NAME`; keys and
//! values are given and printed in the forms of [`FormArgs`]; `--json` means JSON output, and
//! `--yes` answers the question of a command.

pub mod admin;
pub mod bench;
pub mod data;
pub mod device;
pub mod dump;
pub mod gpu;
pub mod load;
pub mod tables;

use std::path::PathBuf;

use clap::builder::NonEmptyStringValueParser;
use clap::{Parser, Subcommand};
use siltstone::{Options, StallPolicy, Value};

pub use admin::*;
pub use bench::*;
pub use data::*;
pub use device::{DeviceArgs, DeviceCommand, ProbeArgs};
pub use dump::*;
pub use gpu::{GpuArgs, GpuUseArgs};
pub use load::*;
pub use tables::*;

use crate::form::Form;
use crate::log::Words;

/// The command line of siltstone, an embedded key-value store.
///
/// A store is a folder. One process writes to it at a time, or several read it.
/// Keys are ordered bytewise. Exit codes: 0 fine, 1 not found (get), damage found (check, dump),
/// data lost (repair), input left out (load) or values that are not JSON (scan), 2 wrong usage,
/// 3 failed, 130 and 143 stopped by SIGINT and SIGTERM (load, bench).
#[derive(Debug, Parser)]
#[command(
    name = "silt",
    version,
    propagate_version = true,
    after_help = "Examples:\n  \
        silt demo                                   see it work and survive kill -9\n  \
        silt load words.silt /usr/share/dict/words  one pair a line\n  \
        silt get words.silt zebra\n  \
        silt scan words.silt --prefix ze --limit 5\n  \
        silt put words.silt zebra striped\n  \
        silt levels words.silt                      print the tables of each level\n  \
        silt check words.silt                       verify every checksum and invariant\n  \
        silt bench                                  measure this machine in less than a minute\n\n\
        `silt COMMAND --help` has examples of each command."
)]
pub struct Args {
    /// Print what the store does to standard error.
    #[arg(long, global = true, value_name = "LEVEL", value_enum)]
    pub log: Option<Words>,
    /// The command.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Load records of a file into a store, which is created if it does not exist.
    Load(LoadArgs),
    /// Set a key to a value; the store is created if it does not exist.
    Put(PutArgs),
    /// Print the value of a key.
    Get(GetArgs),
    /// Remove keys, or all keys of a range.
    Del(DelArgs),
    /// Print keys and values in key order, one pair a line.
    Scan(ScanArgs),
    /// Count keys.
    Count(CountArgs),
    /// List, create and drop keyspaces.
    #[command(subcommand)]
    Keyspace(KeyspaceCommand),
    /// Merge tables, which frees the space of entries that were removed or replaced.
    Compact(CompactArgs),
    /// Show the runs, tables and bytes of each level.
    Levels(LevelsArgs),
    /// Show levels, counters, latencies and delays.
    Stats(StatsArgs),
    /// Print the settings of a store, or change them.
    Options(OptionsArgs),
    /// Copy a store as it is now to a second one, with hard links where possible.
    Checkpoint(CheckpointArgs),
    /// Add tables to one or several keyspaces in one atomic step.
    Ingest(IngestArgs),
    /// Write a range of a keyspace as tables that another store can ingest.
    Export(ExportArgs),
    /// Verify every checksum and every invariant of a store that no process has open.
    Check(CheckArgs),
    /// Print the contents of a log segment, a manifest or a table, with offsets.
    Dump(DumpArgs),
    /// Copy everything that can be read of a damaged store to a new one, and say what is lost.
    Repair(RepairArgs),
    /// Delete a store and all its files.
    Destroy(DestroyArgs),
    /// Serve stores and cores of this machine to other processes and machines, until a signal
    /// ends it.
    Device(DeviceArgs),
    /// List the GPUs that can run compactions, and measure the link to each, or say what is
    /// missing.
    Gpu(GpuArgs),
    /// Measure the store with the workloads of db_bench and YCSB, or with those of a paper.
    Bench(BenchArgs),
    /// Write millions of particles into a store, read them back, kill the writer with SIGKILL, and
    /// verify what survived.
    Demo(DemoArgs),
    /// Print the completions of a shell.
    Completions(CompletionsArgs),
    /// Print the manual page.
    Man(ManArgs),
    /// The demo's own writer process.
    #[command(hide = true)]
    DemoWriter(DemoWriterArgs),
}

/// Which store and keyspace.
#[derive(Debug, clap::Args)]
pub struct StoreArgs {
    /// The store's folder, or its address on a device: silt://HOST:PORT/FOLDER, or
    /// silt+unix://SOCKET#FOLDER.
    pub store: PathBuf,
    /// The keyspace within the store.
    #[arg(
        short = 'k', long, value_name = "NAME", default_value = siltstone::DEFAULT_KEYSPACE,
        value_parser = NonEmptyStringValueParser::new()
    )]
    pub keyspace: String,
}

/// How keys look.
#[derive(Clone, Debug, clap::Args)]
pub struct KeyFormArgs {
    /// Keys and values are hexadecimal digits.
    #[arg(long, conflicts_with = "base64")]
    pub hex: bool,
    /// Keys and values are base64.
    #[arg(long)]
    pub base64: bool,
    /// The form of keys: text, hex, base64, or a layout such as cell:u32be,id:u64be.
    #[arg(long, value_name = "FORM", value_parser = Form::named)]
    pub key_as: Option<Form>,
}

impl KeyFormArgs {
    fn both(&self) -> Form {
        match (self.hex, self.base64) {
            (true, _) => Form::Hex,
            (_, true) => Form::Base64,
            _ => Form::Text,
        }
    }

    /// The form of keys.
    pub fn key(&self) -> Form {
        self.key_as.clone().unwrap_or_else(|| self.both())
    }
}

/// How keys and values look.
#[derive(Clone, Debug, clap::Args)]
pub struct FormArgs {
    /// The form of keys.
    #[command(flatten)]
    pub keys: KeyFormArgs,
    /// The form of values: text, hex, base64, json, or a layout such as id:u64,energy:f32.
    #[arg(long, value_name = "FORM", value_parser = Form::named)]
    pub value_as: Option<Form>,
}

impl FormArgs {
    /// The form of keys.
    pub fn key(&self) -> Form {
        self.keys.key()
    }

    /// The form of values.
    pub fn value(&self) -> Form {
        self.value_as.clone().unwrap_or_else(|| self.keys.both())
    }
}

/// Reads the value of `--limit`.
fn limit(text: &str) -> Result<u64, String> {
    let wrong = |_| "expected a number, 0 or more; without --limit there is no bound".to_string();
    text.parse().map_err(wrong)
}

/// The part of the help about forms.
pub const FORMS_HELP: &str = "Forms: text prints UTF-8 as it is, except a tab, a line break and a \
    backslash as \\t, \\n and \\\\, and prints other bytes as \\xNN; keys and values are given in \
    the same way. A layout names the fields in their order. u8 to u128, i8 to i128, f32 and f64 \
    are little-endian, or big-endian with the ending `be` (only unsigned big-endian numbers sort \
    as keys by their value). bytesN is N bytes as hexadecimal digits, textN is text that is padded \
    with zero bytes to N bytes. `bytes` or `text` as the last field takes all remaining bytes. \
    Fields called _ are not shown. Give the values of the fields with commas between them; for a \
    prefix or a bound the first fields are enough. --json prints numbers and text as JSON; bytes \
    that are not text are {\"hex\": \"...\"}.";

/// Arguments of `demo`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    silt demo --quick\n  \
    silt demo --quick --device\n  \
    silt demo --gpu\n  \
    silt demo --store big.silt --seed 7")]
pub struct DemoArgs {
    /// Run the whole demo in a few seconds, with fewer particles.
    #[arg(long)]
    pub quick: bool,
    /// Start a device, a process of its own, to which compactions move while the particles are
    /// written. It shares the store's folder.
    #[arg(long)]
    pub device: bool,
    /// Instead of the plasma, show a burst of puts on a slow disk, under the policy `stop` and
    /// under this one: `stop`, `slowdown`, `adoc` or `redirect`.
    #[arg(
        long,
        value_name = "NAME",
        value_parser = stall_policy,
        conflicts_with_all = ["device", "gpu", "pairs", "kills"]
    )]
    pub policy: Option<StallPolicy>,
    /// Whether a GPU runs compactions while the particles are written.
    #[command(flatten)]
    pub gpu: GpuUseArgs,
    /// The store's folder, which must be empty or not exist yet. By default it is a new temporary
    /// folder.
    #[arg(long, value_name = "FOLDER")]
    pub store: Option<PathBuf>,
    /// The HTML file of the report; an existing file is replaced. By default it lies beside the
    /// store, under the store's name and `.html`.
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
    /// Seed of everything random.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// About how many pairs to write, at least 2,000.
    #[arg(long, hide = true, value_parser = clap::value_parser!(u64).range(2_000..=1_000_000_000))]
    pub pairs: Option<u64>,
    /// The number of times that the writer is killed.
    #[arg(long, hide = true)]
    pub kills: Option<u32>,
}

/// The policy of this name.
fn stall_policy(name: &str) -> Result<StallPolicy, String> {
    let mut options = Options::default();
    let value = Value::from(name);
    options
        .set("stall_policy", &value)
        .map_err(|e| e.to_string())?;
    Ok(options.stall_policy)
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

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_definition_holds() {
        Args::command().debug_assert();
    }
}
