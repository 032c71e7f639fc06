//! Arguments of `bench`. The options themselves are those of the crate `siltstone-bench`, which the
//! programs of `bench-compare` have too.

use clap::Subcommand;
use siltstone_bench::command::{PaperArgs, RunArgs};
use siltstone_bench::settings::Workload;

/// Arguments of `bench`.
#[derive(Debug, clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = format!("Examples:\n  \
    silt bench                                        five workloads, in less than a minute\n  \
    silt bench fillseq,readseq,readrandom --records 10M --value-bytes 1KiB\n  \
    silt bench fillrandom readrandom --for 30s --threads 4 --html page.html\n  \
    silt bench fillrandom --folder /data/b && silt bench readrandom --folder /data/b --cache cold\n  \
    silt bench ycsb-load,ycsb-a,ycsb-b,ycsb-c --distribution zipfian:0.9 --json > runs.jsonl\n  \
    silt bench readwhilewriting --arrival poisson:50K --for 1min\n  \
    silt bench fillrandom --compression zstd --own subjobs_max=2,block_bytes=8192\n  \
    silt bench paper prockstore-fig16 --scale 0.01    a paper's figure beside ours\n\n\
    The workloads are {}.\n\n\
    fillseq, fillrandom, fillsync, fillbatch, ingest, ycsb-load and queue begin with an empty \
    store. All others need one that was filled with the same keys and values: in the same \
    call, or by an earlier one with the same --folder, whose records and sizes are then the \
    default. In a temporary folder, a call that begins with a read fills the store first. A fill in \
    --folder deletes the store that an earlier fill left there, and nothing else.\n\n\
    Every read is compared with what was written, and the first wrong answer ends the run with \
    exit code 3. Latencies of an open loop (--arrival) count from the moment at which an operation \
    was due, so that a stall cannot hide. After each workload flushes and compactions are waited \
    for; `until idle` contains this time.\n\n\
    An option holds for all workloads of the call. One that a workload cannot follow (fillseq ends \
    when its work is done, whatever --for says) is ignored there with a note, and refused if no \
    workload can follow it. A store that cannot fit on the disk is refused before the run.\n\n\
    A store in --folder stays; `silt check FOLDER/siltstone` verifies it. SIGINT and SIGTERM end \
    the call after the operations that are under way, with the exit code 130 or 143; the store is \
    closed, and no later run reads what an interrupted write has left. docs/bench-record.md \
    describes the output of --json.", Workload::NAMES.join(", "))
)]
pub struct BenchArgs {
    /// Experiments.
    #[command(subcommand)]
    pub command: Option<BenchCommand>,
    /// Workloads.
    #[command(flatten)]
    pub runs: RunArgs,
}

/// The commands below `bench`.
#[derive(Debug, Subcommand)]
pub enum BenchCommand {
    /// Run the settings of a paper's figure, and print the paper's values beside the measured ones.
    #[command(after_help = "Examples:\n  \
        silt bench paper                                   list the experiments\n  \
        silt bench paper prockstore-fig16 --scale 0.01\n  \
        silt bench paper hpdk-fig5 --folder /data/b --html hpdk.html\n  \
        silt bench paper mine.toml --json > mine.jsonl\n\n\
        Beside each value stand the paper's, ours divided by the paper's, the system that the paper \
        measured, and the place in its text. A smaller scale shrinks records, operations and times, \
        and what was shrunk is printed with each run. The hardware of the paper, and what stands in \
        for it, is printed first. What the paper says of a mechanism that siltstone does not have \
        is listed as not measured.\n\n\
        A file of your own has the form that crates/bench/experiments/README.md describes. A name \
        that does not exist is refused with file, line, column and the nearest name. With --json \
        each run is one object, whose key `experiment` has the paper's values, and the last object \
        has the ratios between runs.")]
    Paper(PaperArgs),
}
