//! siltstone beside other engines: each workload in a process of its own, in interleaved rounds.
//!
//! `bench-compare run PLAN` carries out a plan (`plans/*.toml`), and keeps a record of each process
//! that has finished, so that it goes on where it was interrupted. `bench-compare page RESULTS`
//! writes the tables, and `bench-compare pack` puts the records into one file. README.md in this
//! folder tells more.
//!
//! What is compared, in which order, and how the page is computed is in the crate `siltstone-bench`
//! (its module `compare`). Here are processes: [`run`] carries out a plan, [`child`] is what runs
//! in each process, [`engines`] knows which programs carry out the workloads of which engine,
//! [`pebble`] translates settings into the flags of the Go program, [`process`] starts, watches and
//! stops one process, [`lock`] keeps other comparisons away from the results, [`stores`] are the
//! folders of the stores, and [`progress`] are the lines on standard error.
//!
//! Threading: the main thread starts one process at a time. Signals only set a flag.

mod child;
mod engines;
mod lock;
mod page;
mod pebble;
mod plans;
mod process;
mod progress;
mod run;
mod selection;
mod signals;
mod stores;
mod surroundings;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};

/// A failure, in sentences for the user.
type Result<T> = std::result::Result<T, String>;

const EXAMPLES: &str = "Examples:
  bench-compare run quick
  bench-compare run standard --results bench-results/standard
  bench-compare run standard --engines siltstone,rocksdb --rows 128.readrandom
  bench-compare page bench-results/standard --write docs/performance.md
  bench-compare pack bench-results/standard docs/performance/standard.jsonl.zst
  bench-compare page docs/performance/standard.jsonl.zst --write docs/performance.md

A comparison that was interrupted goes on when the same command is given again.";

/// siltstone beside other engines, in one run.
#[derive(Parser)]
#[command(name = "bench-compare", after_help = EXAMPLES)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Carries out a plan, or goes on with one that was interrupted.
    Run(RunArguments),
    /// Prints the tables of results in Markdown.
    Page(PageArguments),
    /// Writes all records of a comparison to one small file, from which `page` can read too.
    Pack(PackArguments),
    /// Lists the plans that are part of the program, and the engines that this build has.
    List,
    /// Runs one workload in this process, and prints its record.
    #[command(hide = true)]
    Child(ChildArguments),
}

/// What `run` is asked to do.
#[derive(Args)]
struct RunArguments {
    /// The name of a plan (see `list`), or the path of a file.
    plan: String,
    /// The folder of the results; `bench-results/PLAN` if it is not given.
    #[arg(long, value_name = "FOLDER")]
    results: Option<PathBuf>,
    /// The folder of the stores; `bench-results/PLAN.stores` if it is not given. The disk under it
    /// is what is measured.
    #[arg(long, value_name = "FOLDER")]
    folder: Option<PathBuf>,
    /// Only these engines.
    #[arg(long, value_delimiter = ',')]
    engines: Vec<String>,
    /// Only these rows: STORE.ROW, or ROW in all stores.
    #[arg(long, value_delimiter = ',')]
    rows: Vec<String>,
    /// This program, built from an earlier commit: its siltstone takes part as the engine `before`.
    /// `cargo xtask bench --against COMMIT` builds it.
    #[arg(long, value_name = "PROGRAM")]
    against: Option<PathBuf>,
    /// The Go program that runs Pebble; if it is not given, `pebble/pebble-bench` in the folder of
    /// bench-compare.
    #[arg(long, value_name = "PROGRAM")]
    pebble: Option<PathBuf>,
    /// Only says what would run, how long it takes and how much disk it needs.
    #[arg(long)]
    estimate: bool,
    /// Runs again what has failed or was left out.
    #[arg(long)]
    retry: bool,
}

/// What `page` is asked to do.
#[derive(Args)]
struct PageArguments {
    /// Folders of results, or files that `pack` wrote; each is a part of the page.
    #[arg(required = true)]
    results: Vec<PathBuf>,
    /// Writes the page to this file instead of printing it.
    #[arg(long, value_name = "FILE")]
    write: Option<PathBuf>,
}

/// What `pack` is asked to do.
#[derive(Args)]
struct PackArguments {
    /// The folder of the results.
    results: PathBuf,
    /// The file to write: lines of JSON, compressed with zstd.
    file: PathBuf,
}

/// What `child` is asked to do.
#[derive(Args)]
struct ChildArguments {
    /// The task, as JSON.
    #[arg(required_unless_present = "protocol")]
    task: Option<String>,
    /// Prints the version of the form of tasks.
    #[arg(long)]
    protocol: bool,
}

fn main() -> ExitCode {
    let result = match Arguments::parse().command {
        Command::Run(arguments) => run::run(&arguments),
        Command::Page(arguments) => page::page(&arguments).map(|()| ExitCode::SUCCESS),
        Command::Pack(arguments) => page::pack(&arguments).map(|()| ExitCode::SUCCESS),
        Command::List => {
            plans::list();
            Ok(ExitCode::SUCCESS)
        }
        Command::Child(arguments) if arguments.protocol => {
            println!("{}", child::PROTOCOL);
            Ok(ExitCode::SUCCESS)
        }
        Command::Child(arguments) => child::child(&arguments.task.unwrap_or_default()),
    };
    result.unwrap_or_else(|error| {
        eprintln!("bench-compare: {error}");
        ExitCode::FAILURE
    })
}
