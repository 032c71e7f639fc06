//! The arguments of the commands.
//!
//! Threading: plain data.

use std::path::PathBuf;
use std::time::Duration;

use crate::settings::{SettingError, Settings, Workload, nearest, parse_number, parse_seconds};

use super::settings::SettingsArgs;

/// Arguments of a call that runs workloads.
#[derive(Debug, clap::Args)]
pub struct RunArgs {
    /// What is done, in this order on one store, with the names of db_bench and YCSB. Commas and
    /// blanks separate several. Without any: fillrandom, readrandom, readmissing, seekrandom and
    /// readseq, which take less than a minute with the default settings.
    #[arg(value_name = "WORKLOAD", value_delimiter = ',', value_parser = workload)]
    pub workloads: Vec<Workload>,
    /// Engine and output.
    #[command(flatten)]
    pub output: OutputArgs,
    /// The folder in which the store lies; it is created, and it is kept with the store. By default
    /// it is a new temporary folder, which is removed at the end.
    #[arg(long, value_name = "FOLDER")]
    pub folder: Option<PathBuf>,
    /// Keep the temporary folder, and print where it is.
    #[arg(long, conflicts_with = "folder")]
    pub keep: bool,
    /// What is done, and how the engine is opened.
    #[command(flatten)]
    pub settings: SettingsArgs,
}

/// Which engine, and how results are given.
#[derive(Debug, Clone, clap::Args)]
pub struct OutputArgs {
    /// The engine. `siltstone` is the default; `null`, a sorted map in memory, shows what the
    /// benchmark itself costs.
    #[arg(long, value_name = "NAME")]
    pub engine: Option<String>,
    /// Print JSON, one object a line for each workload; docs/bench-record.md describes its keys.
    #[arg(long)]
    pub json: bool,
    /// Write a page with charts of all workloads to this file, which is replaced if it exists.
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
}

/// Arguments of a call that runs an experiment.
#[derive(Debug, clap::Args)]
pub struct PaperArgs {
    /// The experiment: a name from the list, the part of names before the first `-` (all
    /// experiments of that paper), or a file that ends in .toml. Without it, all experiments of the
    /// program are listed.
    #[arg(value_name = "FIGURE")]
    pub figure: Option<String>,
    /// The part of the paper's records, operations and times that is done, above 0 and at most 1.
    /// The default is in the experiment's file.
    #[arg(long, value_name = "SCALE", value_parser = scale)]
    pub scale: Option<f64>,
    /// Use the smaller scale that experiments have for a quick look.
    #[arg(long, conflicts_with = "scale")]
    pub quick: bool,
    /// How often each run is carried out. The rounds of runs that are compared are interleaved. The
    /// default is in the experiment's file.
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=100))]
    pub rounds: Option<u32>,
    /// Begin no further runs after this time. Figures then have fewer rounds, or none.
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub within: Option<Duration>,
    /// Write all records to this file, compressed with zstd.
    #[arg(long, value_name = "FILE")]
    pub record: Option<PathBuf>,
    /// If the file of --record exists, carry out only the rounds that it lacks. It must have been
    /// written by this build, for the same experiments and scales.
    #[arg(long = "continue", requires = "record", conflicts_with = "from")]
    pub continues: bool,
    /// Write a page in Markdown to this file.
    #[arg(long, value_name = "FILE")]
    pub page: Option<PathBuf>,
    /// Run nothing: make the page from this file, which --record has written.
    #[arg(
        long,
        value_name = "FILE",
        requires = "page",
        conflicts_with_all = ["figure", "scale", "quick", "rounds", "within", "record", "folder"]
    )]
    pub from: Option<PathBuf>,
    /// Engine and output.
    #[command(flatten)]
    pub output: OutputArgs,
    /// The folder in which the stores lie; it is created. By default it is a new temporary folder.
    #[arg(long, value_name = "FOLDER")]
    pub folder: Option<PathBuf>,
    /// Keep the stores. By default each is deleted after its last run.
    #[arg(long)]
    pub keep: bool,
}

/// Reads the name of a workload. `paper` is not one, but it arrives here if options come before it,
/// and so does a misspelt `paper`.
fn workload(text: &str) -> Result<Workload, String> {
    if text == "paper" {
        return Err(
            "`paper` is a command of its own, and comes before its options; its experiments open \
             a GPU by themselves where they need one"
                .into(),
        );
    }
    let mut settings = Settings::default();
    match settings.set("workload", text) {
        Ok(()) => Ok(settings.workload),
        Err(SettingError::Text { error, .. }) => {
            let names = Workload::NAMES.iter().copied();
            let meant = nearest(text, names.chain(["paper"]));
            let meant = meant.map(|name| format!("did you mean `{name}`? "));
            Err(format!(
                "{}expected {}",
                meant.unwrap_or_default(),
                error.expected
            ))
        }
        Err(other) => Err(other.to_string()),
    }
}

fn time(text: &str) -> Result<Duration, String> {
    let seconds = parse_seconds(text).map_err(|error| error.to_string())?;
    Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string())
}

fn scale(text: &str) -> Result<f64, String> {
    let scale = parse_number(text)
        .ok()
        .filter(|scale| *scale > 0.0 && *scale <= 1.0);
    scale.ok_or_else(|| "expected a number above 0 and at most 1, such as 0.01".into())
}
