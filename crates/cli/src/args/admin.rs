//! Arguments of the commands that look after a store.

use std::path::PathBuf;
use std::time::Duration;

use clap::builder::NonEmptyStringValueParser;

use clap::Subcommand;

/// Which figures, and how.
#[derive(Debug, clap::Args)]
pub struct FiguresArgs {
    /// The store's folder.
    pub store: PathBuf,
    /// Only this keyspace.
    #[arg(short = 'k', long, value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    pub keyspace: Option<String>,
    /// As JSON, a line each time.
    #[arg(long)]
    pub json: bool,
    /// Look again every SECONDS (1 if none are given), until interrupted: a live screen on a
    /// terminal, else a block or line each time. A store that is not there yet is waited for, up
    /// to 60 seconds. A look that opens the store itself keeps writers out, and the pause after it
    /// is at least 20 times as long as the look.
    #[arg(
        short, long, value_name = "SECONDS", num_args = 0..=1, require_equals = true,
        default_missing_value = "1", value_parser = seconds
    )]
    pub watch: Option<Duration>,
}

/// A duration in seconds, fractions too.
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
    Beside a live writer these are its own figures, which it publishes once a second (setting \
    stats_publish_ms): counters, latencies and delays since \
    it opened the store, and rates when watching. A store that nobody has open is opened for \
    reading; counters are then those of this look at it.")]
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
    A level below 0 is one run of tables without overlap; level 0 has a run for each flush. Raw \
    bytes are keys, values and 12 an entry, before compression.")]
pub struct LevelsArgs {
    /// Which figures.
    #[command(flatten)]
    pub figures: FiguresArgs,
}

/// Arguments of `compact`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    silt compact words.silt\n  \
    silt compact words.silt -k default --prefix ze\n\n\
    Everything (or what a range touches) is merged down to the lowest level that has data there: \
    what was removed or replaced gives its space back. \
    It can be interrupted; what was merged by then stays merged.")]
pub struct CompactArgs {
    /// The store's folder.
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
    /// Say at the end as JSON what was done.
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `checkpoint`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example:\n  silt checkpoint birds.silt /backup/birds-monday.silt\n\n\
    The new folder is a store of its own, all keyspaces at one moment. On the same file system \
    tables are linked, not copied: it takes moments and next to no \
    space. The settings file goes with it. A program that has the store open makes checkpoints \
    with Store::checkpoint.\n\n\
    Tables are not verified: damage in one is in the checkpoint too, so run `silt check` on what \
    you rely on. The store is opened for writing: the command needs write access to its folder, \
    and nobody else may have it open. It need not be compacted first; what is in the log only is \
    written as tables of the checkpoint. The new folder must not lie in the store's own."
)]
pub struct CheckpointArgs {
    /// The store's folder.
    pub store: PathBuf,
    /// The new folder: not there yet, or empty.
    pub folder: PathBuf,
    /// Say at the end as JSON what was done.
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
    Settings are printed as TOML, each with its meaning, unit, default and range. Behind the value \
    in force stands its source: the default, the file OPTIONS.toml in the store's folder, or the \
    store, which keeps what is set for a keyspace.\n\n\
    --set and --unset change the file, which all commands follow; the user's comments in it stay, \
    and a setting that has its default again is taken out. With -k they change the file and what \
    the store keeps for the keyspace, so that the change is in force at once. Both print what is \
    in force then. A store that cannot be read keeps its file as it is. Values are TOML; words \
    need no quotes.\n\n\
    A program follows the file if it opens the store with Options::load. Before a store is there, \
    its folder is created for the file.")]
pub struct OptionsArgs {
    /// The store's folder.
    pub store: PathBuf,
    /// Settings of this keyspace instead of the store's.
    #[arg(short = 'k', long, value_name = "NAME")]
    pub keyspace: Option<String>,
    /// Change a setting.
    #[arg(long, value_name = "NAME=VALUE")]
    pub set: Vec<String>,
    /// Take a setting away, everywhere: its default holds.
    #[arg(long, value_name = "NAME")]
    pub unset: Vec<String>,
    /// Write the file, with every setting in it.
    #[arg(long)]
    pub write: bool,
    /// As JSON.
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `check`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    silt check words.silt\n  \
    silt check words.silt --json | jq .problems\n\n\
    Nothing is changed. The exit code is 0 for a sound store, 1 if there is damage, which is named \
    by file and offset, or if OPTIONS.toml cannot be read or does not fit the store, and 3 if the \
    store could not be looked at: there is none, it is open elsewhere, a file of it may not be \
    read, or its format is newer.")]
pub struct CheckArgs {
    /// The store's folder.
    pub store: PathBuf,
    /// As JSON.
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
    range that is suspect: its keys may be \
    missing, older than the last write, or back although they were deleted. The exit code is 0 if \
    nothing is lost, 1 if something is, 3 if \
    no store could be made. A repair that was cut off can be made again into the same folder.")]
pub struct RepairArgs {
    /// The damaged store's folder.
    pub store: PathBuf,
    /// The new store's folder, which must be empty or not there. STORE.repaired if not given.
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
    It asks first; --yes answers. Only files of the store are deleted, its settings OPTIONS.toml \
    among them, also those in the folders of its log and tables; other files \
    stay, and are listed. Folders that are empty then are removed. A store that is open is \
    refused, and so is a folder that holds no store. If it is cut off, \
    the store is there whole, or destroying it again deletes the rest.")]
pub struct DestroyArgs {
    /// The store's folder.
    pub store: PathBuf,
    /// Do not ask.
    #[arg(short, long)]
    pub yes: bool,
}

/// What to do with keyspaces.
#[derive(Debug, Subcommand)]
pub enum KeyspaceCommand {
    /// List the keyspaces of a store: with their sizes on a terminal and with --json, else by name.
    List(KeyspaceListArgs),
    /// Create a keyspace; the store is created if it is not there.
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
    scripts; --json gives the sizes there too. Entries of tables are counted with their older \
    versions and deletes; `silt count` counts keys. Keyspaces whose names begin with `silt.` hold \
    what interrupted loads need to go on; --all lists them too.")]
pub struct KeyspaceListArgs {
    /// The store's folder.
    pub store: PathBuf,
    /// Also those that tools keep for themselves.
    #[arg(long)]
    pub all: bool,
    /// As JSON.
    #[arg(long)]
    pub json: bool,
}

/// Refuses the name of a keyspace that stands without `-k`.
fn needs_flag(_: &str) -> Result<String, String> {
    Err("the keyspace is given with -k NAME".to_string())
}

/// Arguments of `keyspace create`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  silt keyspace create birds.silt -k sightings")]
pub struct KeyspaceCreateArgs {
    /// The store's folder.
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
    It asks first; --yes answers. The keyspace `default` can be dropped like any other; `put`, \
    `load` and `keyspace create` make it again, empty."
)]
pub struct KeyspaceDropArgs {
    /// The store's folder.
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
    silt man --folder ~/.local/share/man/man1      also one page a command: man silt-load")]
pub struct ManArgs {
    /// Write the pages of all commands into this folder instead.
    #[arg(long, value_name = "FOLDER")]
    pub folder: Option<PathBuf>,
}
