//! `silt`: the command line of siltstone.
//!
//! `silt` is one binary over the library. Its code is a library too, so that a fuzzer can call its
//! parsers ([`fuzzing`]). `args` defines commands and flags, `commands` runs them, `demo` is the
//! demo and `report` draws its measurements, `form` converts between bytes and text, and `output`
//! writes to standard output. Exit codes: 0 fine, 1 not found (`get`), damage found (`check`,
//! `dump`), data lost (`repair`), input left out (`load`) or values that are not JSON (`scan`), 2
//! wrong usage, 3 failed, 130 and 143 stopped by SIGINT and SIGTERM (`load` and `bench`, which
//! close the store first).
//!
//! Invariants: data goes to standard output, everything else to standard error; a reader that
//! closes the pipe ends the command quietly; a command that only reads never creates a store.
//!
//! Threading: everything runs on the main thread, except the demo's writers.

mod args;
mod commands;
mod demo;
mod dump;
mod failure;
mod form;
pub mod fuzzing;
mod load;
mod log;
mod output;
mod report;
mod signals;

use std::process::ExitCode;

use clap::Parser;

use args::{Args, Command};
use failure::{Failure, Outcome};

fn run(command: Command) -> Result<Outcome, Failure> {
    match command {
        Command::Load(args) => commands::load::run(&args),
        Command::Put(args) => commands::put::run(&args),
        Command::Get(args) => commands::get::run(&args),
        Command::Del(args) => commands::del::run(&args),
        Command::Scan(args) => commands::scan::run(&args),
        Command::Count(args) => commands::count::run(&args),
        Command::Keyspace(command) => commands::keyspace::run(&command),
        Command::Compact(args) => commands::compact::run(&args),
        Command::Levels(args) => commands::stats::run_levels(&args),
        Command::Stats(args) => commands::stats::run(&args),
        Command::Options(args) => commands::options::run(&args),
        Command::Checkpoint(args) => commands::checkpoint::run(&args),
        Command::Ingest(args) => commands::ingest::run(&args),
        Command::Export(args) => commands::export::run(&args),
        Command::Check(args) => commands::check::run(&args),
        Command::Dump(args) => commands::dump::run(&args),
        Command::Repair(args) => commands::repair::run(&args),
        Command::Destroy(args) => commands::destroy::run(&args),
        Command::Device(args) => commands::device::run(&args),
        Command::Gpu(args) => commands::gpu::run(&args),
        Command::Bench(args) => commands::bench::run(&args),
        Command::Demo(args) => demo::run(&args),
        Command::Completions(args) => commands::completions::run(&args),
        Command::Man(args) => commands::pages::run(&args),
        Command::DemoWriter(args) => demo::writer::run(&args),
    }
}

/// What the binary does.
pub fn main() -> ExitCode {
    commands::completions::answer();
    // A write beyond `ulimit -f` should fail with an error, as on a full disk, and not kill the
    // process.
    siltstone_storage::files::ignore_file_size_signal();
    let args = Args::try_parse().unwrap_or_else(|error| {
        if error.kind() != clap::error::ErrorKind::InvalidUtf8 {
            error.exit()
        }
        let given = std::env::args_os().find(|arg| arg.to_str().is_none());
        let given = given.unwrap_or_default();
        let given = given.as_encoded_bytes().escape_ascii();
        eprintln!(
            "silt: the argument `{given}` is not UTF-8: keys and values with such bytes are given \
            with \\xNN for each, or as digits with --hex or --base64; `silt put` takes a value \
            from a file too, with --file"
        );
        std::process::exit(2)
    });
    if let Some(words) = args.log {
        log::begin(words);
    }
    match run(args.command) {
        Ok(outcome) => outcome.code(),
        Err(failure) => failure.report(),
    }
}
