//! The arguments of the commands.
//!
//! Threading: plain data.

use std::path::PathBuf;

use crate::settings::{SettingError, Settings, Workload, nearest, parse_number};

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
    /// The experiment: a name from the list, or a file that ends in .toml. Without it, all
    /// experiments of the program are listed.
    #[arg(value_name = "FIGURE")]
    pub figure: Option<String>,
    /// The part of the paper's records, operations and times that is done, above 0 and at most 1.
    /// The default is in the experiment's file.
    #[arg(long, value_name = "SCALE", value_parser = scale)]
    pub scale: Option<f64>,
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

/// Reads the name of a workload. `paper` is not one, but a misspelt `paper` arrives here.
fn workload(text: &str) -> Result<Workload, String> {
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

fn scale(text: &str) -> Result<f64, String> {
    let scale = parse_number(text)
        .ok()
        .filter(|scale| *scale > 0.0 && *scale <= 1.0);
    scale.ok_or_else(|| "expected a number above 0 and at most 1, such as 0.01".into())
}
