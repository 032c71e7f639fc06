//! Arguments of the commands that maintain a store.

use std::path::PathBuf;
use std::time::Duration;

use clap::builder::NonEmptyStringValueParser;

use clap::Subcommand;

/// Which figures, and how.
#[derive(Debug, clap::Args)]
pub struct FiguresArgs {
    /// The store's folder, or its address on a device.
    pub store: PathBuf,
    /// Only this keyspace.
    #[arg(short = 'k', long, value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    pub keyspace: Option<String>,
    /// Print JSON, one line each time.
    #[arg(long)]
    pub json: bool,
    /// Print the figures every SECONDS (every second by default) until interrupted: as a live
    /// screen on a terminal, otherwise as a block or a line each time. If the store does not exist
    /// yet, wait for it for up to 60 seconds. If no process has the store open, each look opens it,
    /// which excludes writers; the pause after such a look is at least 20 times as long as the
    /// look.
    #[arg(
        short, long, value_name = "SECONDS", num_args = 0..=1, require_equals = true,
        default_missing_value = "1", value_parser = seconds
    )]
    pub watch: Option<Duration>,
}

/// A duration in seconds, which may have a fraction.
fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number".to_string())?;
    if !(0.1..=86_400.0).contains(&seconds) {
        return Err("0.1 to 86400 seconds".to_string());
    }
    Ok(Duration::from_secs_f64(seconds))
}

/// Arguments of `stats`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    silt stats words.silt\n  \
    silt stats words.silt --json | jq .counters\n  \
    silt stats words.silt --watch\n  \
    silt stats words.silt --watch=10 --json >>figures.jsonl\n\n\
    If a process has the store open for writing, these are the figures that it publishes once a \
    second (setting \
    stats_file_ms): counters, latencies and delays since it opened the store, and rates with \
    --watch. Otherwise the command opens the store for reading, and the counters are those of this \
    open.")]
pub struct StatsArgs {
    /// Which figures.
    #[command(flatten)]
    pub figures: FiguresArgs,
}

/// Arguments of `levels`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    silt levels words.silt\n  \
    silt levels words.silt -k default --json\n  \
    silt levels words.silt --watch\n\n\
    Each level below level 0 is one run of tables that do not overlap; level 0 has a run for each \
    flush. Raw bytes are those of keys and values and 12 more for each entry, before compression.")]
pub struct LevelsArgs {
    /// Which figures.
    #[command(flatten)]
    pub figures: FiguresArgs,
}

/// Arguments of `compact`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    silt compact words.silt\n  \
    silt compact words.silt -k default --prefix ze\n  \
    silt compact words.silt --gpu\n\n\
    All tables (or those that a range touches) are merged down to the lowest level that has data \
    there. This frees the space of entries that were removed or replaced. The command can be \
    interrupted; what was merged by then stays merged.\n\n\
    With --gpu the command waits until the GPU is open. This takes seconds if the driver has to \
    compile the kernels.")]
pub struct CompactArgs {
    /// The store's folder, or its address on a device.
    pub store: PathBuf,
    /// Only this keyspace.
    #[arg(short = 'k', long, value_name = "NAME")]
    pub keyspace: Option<String>,
    /// Bounds.
    #[command(flatten)]
    pub range: super::RangeArgs,
    /// Form of keys.
    #[command(flatten)]
    pub form: super::KeyFormArgs,
    /// Whether a GPU runs the compactions.
    #[command(flatten)]
    pub gpu: super::GpuUseArgs,
    /// Print a summary as JSON at the end.
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `checkpoint`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example:\n  silt checkpoint birds.silt /backup/birds-monday.silt\n\n\
    The new folder is a store of its own, with all keyspaces as of one moment. On the same file \
    system tables are linked and not copied, so the command takes moments and next to no space. \
    The settings file is copied too. A program that has the store open makes checkpoints with \
    Store::checkpoint.\n\n\
    Tables are not verified, and a damaged table is damaged in the checkpoint too, so run `silt \
    check` on a store or a checkpoint that you rely on. The store is opened for writing: the \
    command needs write access to its folder, and no other process may have it open. The store \
    need not be compacted first; data that is only in the log is written as tables of the \
    checkpoint. The new folder must not lie in the store's own. The tables of a store made with \
    --tables are read through the device, which must answer."
)]
pub struct CheckpointArgs {
    /// The store's folder.
    pub store: PathBuf,
    /// The new folder, which must be empty or not exist yet.
    pub folder: PathBuf,
    /// Print a summary as JSON at the end.
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `options`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    silt options birds.silt\n  \
    silt options birds.silt --set memtable_bytes=134217728 --set compression=lz4\n  \
    silt options birds.silt -k sightings\n  \
    silt options birds.silt -k sightings --set bloom_bits_per_key=12\n  \
    silt options new.silt --set log_dir=/fast/new-log\n  \
    silt options birds.silt --unset compression\n  \
    silt options birds.silt --write\n\n\
    Settings are printed as TOML, each with its meaning, unit, default and range. After the value \
    in force comes its origin: the default, the file OPTIONS.toml in the store's folder, or the \
    store itself, which keeps what was set for a keyspace.\n\n\
    --set and --unset change the file, which all commands follow. Your comments in the file stay, \
    and a setting that has its default again is removed. With -k they change both the file and \
    what the store keeps for the keyspace, so that the change takes effect at once. Then the \
    settings in force are printed. The file of a store that cannot be read is not changed. Values \
    are TOML; words need no quotes.\n\n\
    A program follows the file if it opens the store with Options::load. If the store does not \
    exist yet, its folder is created for the file.")]
pub struct OptionsArgs {
    /// The store's folder, or its address on a device.
    pub store: PathBuf,
    /// Print or change the settings of this keyspace instead of the store's.
    #[arg(short = 'k', long, value_name = "NAME")]
    pub keyspace: Option<String>,
    /// Change a setting.
    #[arg(long, value_name = "NAME=VALUE")]
    pub set: Vec<String>,
    /// Remove a setting everywhere, so that its default holds.
    #[arg(long, value_name = "NAME")]
    pub unset: Vec<String>,
    /// Write the file with every setting in it.
    #[arg(long)]
    pub write: bool,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `check`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    silt check words.silt\n  \
    silt check words.silt --json | jq .problems\n\n\
    Nothing is changed. The exit code is 0 for a sound store; 1 if there is damage, which is named \
    by file and offset, or if OPTIONS.toml cannot be read or does not fit the store; and 3 if the \
    store could not be checked, because it does not exist, is open in another process, has a file \
    that may not be read, or has a newer format.")]
pub struct CheckArgs {
    /// The store's folder, or its address on a device.
    pub store: PathBuf,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `repair`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    silt repair broken.silt                          makes broken.silt.repaired\n  \
    silt repair broken.silt --to new.silt --report lost.json\n  \
    silt repair broken.silt --to sure.silt --strict\n\n\
    The damaged store is not changed. The report names every range of keys that is lost, and every \
    range that is suspect: its keys may be missing, older than the last write, or restored \
    although they were deleted. The exit code is 0 if nothing is lost, 1 if something is lost, and \
    3 if no store could be made. A repair that was interrupted can be repeated into the same \
    folder. The tables of a store made with --tables are read through the device, which must \
    answer.")]
pub struct RepairArgs {
    /// The damaged store's folder.
    pub store: PathBuf,
    /// The new store's folder, which must be empty or not exist yet. The default is STORE.repaired.
    #[arg(long, value_name = "NEW")]
    pub to: Option<PathBuf>,
    /// Leave out every key whose value is suspect.
    #[arg(long)]
    pub strict: bool,
    /// Also write the report into this file, as JSON.
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
    /// Print the report as JSON.
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `destroy`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    silt destroy old.silt\n  \
    silt destroy old.silt --yes        in a script\n\n\
    The command asks first; --yes answers. It deletes only files of the store, also those in the \
    folders of its log and tables, and its settings in OPTIONS.toml. Other files stay, and are \
    listed. Folders that are empty then are removed. A folder on a device stays, empty; remove it \
    on the device's machine. The command refuses a store that is open, and a folder without a \
    store. If it is interrupted, either the whole store is still there, or destroying it again \
    deletes the remaining files.")]
pub struct DestroyArgs {
    /// The store's folder.
    pub store: PathBuf,
    /// Do not ask.
    #[arg(short, long)]
    pub yes: bool,
}

/// The commands about keyspaces.
#[derive(Debug, Subcommand)]
pub enum KeyspaceCommand {
    /// List the keyspaces of a store: with sizes on a terminal and with --json, otherwise only the
    /// names.
    List(KeyspaceListArgs),
    /// Create a keyspace; the store is created if it does not exist.
    Create(KeyspaceCreateArgs),
    /// Drop a keyspace and everything in it.
    Drop(KeyspaceDropArgs),
}

/// Arguments of `keyspace list`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    silt keyspace list words.silt\n  \
    silt keyspace list words.silt --json | jq -r '.[] | [.name, .table_file_bytes] | @tsv'\n\n\
    On a terminal each keyspace is shown with its sizes. Elsewhere each line is a name, for \
    scripts; --json prints the sizes there too. Entries of tables include older versions and \
    deletes; `silt count` counts keys. Keyspaces whose names begin with `silt.` hold what \
    interrupted loads need to continue; --all lists them too.")]
pub struct KeyspaceListArgs {
    /// The store's folder, or its address on a device.
    pub store: PathBuf,
    /// Also list keyspaces that tools keep for themselves.
    #[arg(long)]
    pub all: bool,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Refuses the name of a keyspace that is given without `-k`.
fn needs_flag(_: &str) -> Result<String, String> {
    Err("the keyspace is given with -k NAME".to_string())
}

/// Arguments of `keyspace create`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  silt keyspace create birds.silt -k sightings")]
pub struct KeyspaceCreateArgs {
    /// The store's folder, or its address on a device.
    pub store: PathBuf,
    /// The name of the new keyspace, 1 to 255 bytes.
    #[arg(short = 'k', long, value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    pub keyspace: String,
    /// A name without its flag, for the error.
    #[arg(hide = true, value_name = "NAME", value_parser = needs_flag)]
    pub _misplaced: Option<String>,
}

/// Arguments of `keyspace drop`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example:\n  silt keyspace drop birds.silt -k sightings\n\n\
    The command asks first; --yes answers. The keyspace `default` can be dropped like any other; \
    `put`, `load` and `keyspace create` create it again."
)]
pub struct KeyspaceDropArgs {
    /// The store's folder, or its address on a device.
    pub store: PathBuf,
    /// The keyspace.
    #[arg(short = 'k', long, value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    pub keyspace: String,
    /// A name without its flag, for the error.
    #[arg(hide = true, value_name = "NAME", value_parser = needs_flag)]
    pub _misplaced: Option<String>,
    /// Do not ask.
    #[arg(short, long)]
    pub yes: bool,
}

/// Arguments of `completions`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    silt completions bash > ~/.local/share/bash-completion/completions/silt\n  \
    silt completions zsh > ~/.zfunc/_silt\n  \
    silt completions fish > ~/.config/fish/completions/silt.fish\n\n\
    The completions of keyspaces and settings call `silt`, so it must be on the PATH.")]
pub struct CompletionsArgs {
    /// The shell.
    pub shell: clap_complete::Shell,
}

/// Arguments of `man`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    silt man | man -l -\n  \
    silt man --folder ~/.local/share/man/man1      one page for each command: man silt-load")]
pub struct ManArgs {
    /// Write the pages of all commands to this folder instead.
    #[arg(long, value_name = "FOLDER")]
    pub folder: Option<PathBuf>,
}
