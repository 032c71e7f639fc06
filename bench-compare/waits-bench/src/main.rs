//! How long writers wait: the policies of `stall_policy` beside RocksDB and LevelDB.
//!
//! `cargo xtask bench waits-bench SCENARIO` runs each engine in a process of its own, in
//! interleaved rounds after one run that is not counted, and prints medians with the lowest and the
//! highest round. The scenarios ([`Scenario`]) are a fill (closed loop), puts that arrive at a
//! fixed rate (open loop), bursts with calm between them, and one overloaded keyspace beside seven
//! others. With `--write-bytes-per-s` the disk is a *shaped stand-in*: siltstone's storage behind
//! [`RatedStorage`](siltstone_storage::rated), so the other engines do not take part.
//!
//! Threading: the parent starts one child at a time. A child's threads are those of its scenario.

mod db;
mod parent;
mod samples;
mod scenario;

use std::process::ExitCode;

use clap::{Parser, ValueEnum};
use serde::{Deserialize, Serialize};

/// A failure, in sentences for the user.
pub type Result<T> = std::result::Result<T, String>;

/// What is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
pub enum Scenario {
    /// One thread puts random keys as fast as it can, then the store settles. With `--readers`,
    /// other threads read meanwhile.
    Fill,
    /// Puts become due at `--rate`, and latency counts from then on.
    Open,
    /// Bursts of 1, 4 and 16 times the memtables, with calm until the store has settled, while
    /// another thread reads.
    Bursts,
    /// Eight keyspaces: seven get 2,000 puts and gets a second together, first alone and then
    /// beside one that is written as fast as it can (siltstone only).
    Keyspaces,
}

/// The use of a second disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
pub enum SecondDisk {
    /// There is none.
    None,
    /// Flushes may go there (`redirect_dir`).
    Tables,
    /// The log is there (`log_dir`).
    Log,
}

/// How long writers wait under each policy and in other engines.
#[derive(Parser, Clone, Debug, Serialize, Deserialize)]
#[command(name = "waits-bench")]
pub struct Arguments {
    /// What is done.
    pub scenario: Scenario,
    /// The engines: `stop`, `slowdown`, `adoc` and `redirect` are siltstone with this policy;
    /// `rocksdb-flat` is RocksDB that stops writers without slowing them down before. Settings of
    /// siltstone may follow a policy, as in `redirect:compaction_nice=19`.
    #[arg(long, value_delimiter = ',', default_value = "slowdown,redirect")]
    pub engines: Vec<String>,
    /// Rounds, each of which runs every engine once.
    #[arg(long, default_value_t = 3)]
    pub rounds: u32,
    /// Bytes of a value. A key has 16.
    #[arg(long, default_value_t = 128)]
    pub value_bytes: usize,
    /// Megabytes that a fill writes.
    #[arg(long, default_value_t = 2000)]
    pub fill_mb: u64,
    /// Threads that read random keys during a `fill`. The keys are put before it begins.
    #[arg(long, default_value_t = 0)]
    pub readers: u32,
    /// Puts a second that become due in `open`.
    #[arg(long, default_value_t = 150_000)]
    pub rate: u64,
    /// Bytes of a memtable. There may be four of them.
    #[arg(long, default_value_t = 64 << 20)]
    pub memtable_bytes: u64,
    /// Threads for flushes and compactions.
    #[arg(long, default_value_t = 2)]
    pub background_threads: u32,
    /// Shapes the disk (siltstone only): bytes a second that are written.
    #[arg(long)]
    pub write_bytes_per_s: Option<u64>,
    /// What a second shaped disk, as fast as the first one, is used for.
    #[arg(long, default_value = "none", requires = "write_bytes_per_s")]
    pub second_disk: SecondDisk,
    /// The folder for the stores, which are deleted after each run.
    #[arg(long, default_value = "bench-results/waits-stores")]
    pub folder: String,
    /// The file to which a line of JSON is added for each process.
    #[arg(long, default_value = "bench-results/waits.jsonl")]
    pub results: String,
    /// The engine of a child.
    #[arg(long, hide = true)]
    pub child: Option<String>,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let done = match &arguments.child {
        Some(engine) => scenario::run(&arguments, engine),
        None => parent::run(&arguments),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("waits-bench: {error}");
            ExitCode::FAILURE
        }
    }
}
