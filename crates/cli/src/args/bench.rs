//! Arguments of `bench`. The options themselves are those of the crate `siltstone-bench`, which the
//! programs of `bench-compare` have too.

use clap::Subcommand;
use siltstone_bench::command::{PaperArgs, RunArgs};
use siltstone_bench::settings::Workload;
use siltstone_bench::topology::WithinArgs;

/// The first lines below the options.
const EXAMPLES: &str = "Examples:
  silt bench                               five workloads, in less than a minute
  silt bench fillseq,readseq,readrandom --records 10M --value-bytes 1KiB
  silt bench fillrandom readrandom --for 30s --threads 4 --html page.html
  silt bench fillrandom --folder /data/b
  silt bench readrandom --folder /data/b --cache cold
  silt bench ycsb-load,ycsb-a,ycsb-b,ycsb-c --distribution zipfian:0.9 --json
  silt bench ycsb-e --for 1min
  silt bench overwrite --arrival poisson:50K --for 1min
  silt bench readwhilewriting --write-rate 20K --for 1min
  silt bench peaks                         bursts of 50 s with calm times between
  silt bench peaks --arrival phases:20s@300K,20s@10K --read-ratio 0
  silt bench mixgraph --records 5M --for 1min
  silt bench queue --records 100K --for 30s
  silt bench overwrite --for 1min --gpu
  silt bench fillrandom --compression zstd --own subjobs_max=2,block_bytes=8192
  silt bench paper prockstore-fig16 --scale 0.01    a paper's figure beside ours
";

/// What stands below the list of workloads.
const NOTES: &str = "\
fillseq, fillrandom, fillsync, fillbatch, ingest, ycsb-load and queue begin with an empty store. \
All others need one that was filled with the same keys and values: in the same call, or by an \
earlier one with the same --folder, whose records and sizes are then the default. In a temporary \
folder, a call that begins with a read fills the store first. A fill in --folder deletes the store \
that an earlier fill left there, and nothing else.

Values have 128 bytes and keys 16 if nothing else is said. ycsb-* and peaks have values of 1KiB, \
and mixgraph has keys of 48 bytes and values of pareto:1KiB, which have 36 bytes on average. This \
holds for all workloads that share a store with them, and for the fill that is done first. A queue \
has 10000 records if --records says nothing else. Until it has them, its operations are puts only.

Half of the operations of peaks are reads, unless --read-ratio says something else. By default \
143K operations a second arrive for 50 s, and then 14K for 10 s. On a machine that can take this, \
--arrival phases:... gives a higher rate. Operations of ycsb-* with --distribution uniform also \
read the records that the run inserts. readrandom --for every-record reads as many records as \
--records says; if a random fill left some out, others are read twice.

Every read is compared with what was written, and the first wrong answer ends the run with exit \
code 3. Latencies of an open loop (--arrival) count from the moment at which an operation was due, \
so that a stall cannot hide. After each workload flushes and compactions are waited for; `until \
idle` contains this time.

An option holds for all workloads of the call. One that a workload cannot follow (fillseq ends \
when its work is done, whatever --for says) is ignored there with a note, and refused if no \
workload can follow it. A store that cannot fit on the disk is refused before the run.

A store in --folder stays; `silt check FOLDER/siltstone` verifies it. SIGINT and SIGTERM end the \
call after the operations that are under way, with the exit code 130 or 143; the store is closed, \
and no later run reads what an interrupted write has left. docs/bench-record.md describes the \
output of --json.";

/// What stands below the options: examples, a line for each workload, and notes.
fn after_help() -> String {
    let line = |workload: &Workload| format!("  {:<24}{}\n", workload.name(), workload.summary());
    let workloads: String = Workload::ALL.iter().map(line).collect();
    format!("{EXAMPLES}\nWorkloads:\n{workloads}\n{NOTES}")
}

/// Arguments of `bench`.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true, after_help = after_help())]
pub struct BenchArgs {
    /// Experiments.
    #[command(subcommand)]
    pub command: Option<BenchCommand>,
    /// Workloads.
    #[command(flatten)]
    pub runs: RunArgs,
    /// Whether a GPU runs compactions of the store.
    #[command(flatten)]
    pub gpu: super::GpuUseArgs,
}

/// The commands below `bench`.
#[derive(Debug, Subcommand)]
pub enum BenchCommand {
    /// Run the settings of a paper's figure, and print the paper's values beside the measured ones.
    #[command(after_help = "Examples:\n  \
        silt bench paper                                   list the experiments\n  \
        silt bench paper prockstore-fig16 --scale 0.01\n  \
        silt bench paper gpu --quick --record r.jsonl.zst  the paper on GPU compaction\n  \
        silt bench paper hpdk-fig5 --folder /data/b --html hpdk.html\n  \
        silt bench paper mine.toml --json > mine.jsonl\n  \
        silt bench paper prockstore --quick --within 10min --page p.md --record r.jsonl.zst\n  \
        silt bench paper prockstore --rounds 5 --continue --record r.jsonl.zst\n  \
        silt bench paper --from r.jsonl.zst --page p.md\n\n\
        Beside each value stand the paper's, ours divided by the paper's, the system that the \
        paper measured, and the place in its text. A smaller scale shrinks records, operations \
        and times, and what was shrunk is printed with each run. The hardware of the paper, and \
        what stands in for it, is printed first. What the paper says of a mechanism that \
        siltstone does not have is listed as not measured.\n\n\
        The part of names before the first `-` stands for all experiments of a paper. A run that \
        fails is noted then, and the others go on; --html is a folder, with a page for each \
        experiment and index.html, which has the verdicts on all of them. Rounds are interleaved, \
        and ratios compare runs of one round.\n\n\
        Some runs of the experiments gpu-compaction-* need a GPU, which is opened for each of \
        them. On a machine without one they are printed as not run, with the line that `silt gpu` \
        prints; the other runs go on, and the exit code is 0.\n\n\
        Host and device of an experiment are processes of their own, which end with the call. A \
        link with a rate needs root, ip and tc; without them a limiter in the client stands in, \
        and the record says so.\n\n\
        A file of your own has the form that crates/bench/experiments/README.md describes. A name \
        that does not exist is refused with file, line, column and the nearest name. With --json \
        each run is one object, whose key `experiment` has the paper's values, and the last object \
        has the ratios between runs.")]
    Paper(PaperArgs),
    /// Carry out one run, which standard input has.
    #[command(hide = true)]
    Task,
    /// Become another command that ends with its parent and keeps to its cores.
    #[command(hide = true)]
    Within(WithinArgs),
}
