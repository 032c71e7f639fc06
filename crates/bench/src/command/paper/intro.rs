//! The texts that a reader of a comparison needs before the first figure.
//!
//! Emphasis is written as in Markdown. [`plain`] removes it.
//!
//! Threading: pure functions.

use std::collections::BTreeMap;

use super::carried::Carried;
use crate::measure::machine::Speed;
use crate::record::{Record, number};
use crate::settings::Files;

/// Paragraphs that say which system each policy stands for, and how figures are computed.
pub fn paragraphs(all: &[Carried]) -> Vec<String> {
    let mut found = Vec::new();
    if let Some(first) = all.first() {
        let paper = &first.experiment.paper;
        found.push(format!("The paper: {}, {}.", paper.title, paper.venue));
    }
    let has_gpu = |carried: &Carried| {
        let mut runs = carried.experiment.runs.iter();
        runs.any(|run| run.settings.gpu.is_used())
    };
    if all.iter().any(has_gpu) {
        found.push(on_gpu());
        return found;
    }
    found.push(
        "Each policy of the option `schedule` stands for a system: `near-data` for ProckStore, \
         `async-single` for PStore, `sync-split` for TStore, `host-only` for SocketRocksDB. All \
         have the same engine, files and settings, and differ in the schedule of compactions \
         only. A switch of it, `spare-host`, leaves the host's cores to those who write and read; \
         it is on for `near-data` and `async-single`, and off for the other two. `plain` is this \
         engine without a device, with the files on a local disk."
            .to_string(),
    );
    found.push(
        "A figure is the median of the rounds. A ratio compares two runs of one round; the table \
         has the median of the ratios. In parentheses stands the interval of 95% (Student's t on \
         the logarithms of the rounds). Throughput counts until all flushes and compactions are \
         done; of runs that write nothing it may count until the last operation. The bandwidth of \
         compactions is the input bytes of the compactions that the host ran, divided by the time \
         in which at least one of them was running. A host that ran none has none."
            .to_string(),
    );
    found.extend(promises(all));
    found
}

/// What the runs with a GPU stand for, and how figures are computed.
fn on_gpu() -> String {
    "Each pair of a strategy and a transfer stands for a system: `luda+plain` for LUDA, \
     `hierarchical+pipeline` for GPU Comp-Pipe, and `hierarchical+direct` for GPU Comp-GDS. `cpu` \
     is this engine without a GPU, and `full` its own strategy. All have the same engine, files \
     and settings. A figure is the median of the rounds, and a ratio compares two runs of one \
     round. In parentheses stands the interval of 95% (Student's t on the logarithms of the \
     rounds); with one round there is none. The throughput of compactions is the bytes of their \
     input tables, divided by the time in which at least one of them ran; in runs with a GPU, \
     only those count that the GPU ran. A run that needs a GPU on a machine without one is not \
     run."
        .to_string()
}

/// Says what unsynced writes survive, if some runs promise less than others.
fn promises(all: &[Carried]) -> Option<String> {
    let mut runs = all.iter().flat_map(|carried| &carried.experiment.runs);
    let is_held = runs.any(|run| run.settings.topology.files == Files::Held && !run.settings.sync);
    is_held.then(|| {
        "Not all runs promise the same. With all files on the device (`held`, as the policies of \
         the paper's figures have them), the log is there too, and the last unsynced writes may \
         be lost when the host's process is killed. Where the log is local (`plain`, and a device \
         with `held-local-log`, `shared` or `lent`), such a kill loses nothing. Power loss may \
         take the last unsynced writes of all of them."
            .to_string()
    })
}

/// The processor, the memory, the file system and the commit of the first run.
pub fn machine(first: &Record) -> String {
    let machine = &first.machine;
    let cpu = machine.cpu.as_deref().unwrap_or("an unknown processor");
    let cores = machine.cores.map_or("-".into(), number::count);
    let memory = number::bytes(machine.memory_bytes.map(|bytes| bytes as f64));
    let commit = first.build.commit.as_deref().unwrap_or("unknown");
    let system = machine.file_system.as_deref();
    format!(
        "Real: {cpu}, {cores} cores, {}, stores on {}. Commit {commit}, {}.",
        memory.replace('\u{a0}', " "),
        system.unwrap_or("an unknown file system"),
        first.date
    )
}

/// Says how steady the machine was, judging by the probes of all runs. `None` if there are no
/// probes.
pub fn steadiness<'a>(records: impl Iterator<Item = &'a Record>) -> Option<String> {
    let (mut probes, mut repeated) = (Vec::new(), 0);
    for record in records {
        probes.extend(record.machine_speed.iter().cloned());
        repeated += usize::from(record.is_repeated);
    }
    let usual = Speed::median_of(&probes);
    let mut slowness: Vec<f64> = probes.iter().map(|probe| probe.slowness(&usual)).collect();
    slowness.sort_by(f64::total_cmp);
    let at = |part: usize| slowness.get(slowness.len() * part / 100);
    let times = |part| Some(number::factor(Some(*at(part)?)).replace('\u{a0}', " "));
    Some(format!(
        "The machine was probed before and after each run, with a fixed computation on each core \
         and with round trips of a byte between the cores. In half of the {} probes the slowest \
         part took no more than {} the usual time, in nine tenths no more than {}. Runs with a \
         probe that is slower than most, or with slower flushes of the disk than for the stores \
         that are compared with theirs, were carried out a second time on a new store, and the \
         second figures count, whatever they are: {repeated} of the runs here.",
        probes.len(),
        times(50)?,
        times(90)?
    ))
}

/// What was used in place of the paper's hardware, each with the number of its runs.
pub fn stand_ins<'a>(records: impl Iterator<Item = &'a Record>) -> Vec<(usize, String)> {
    let mut said: BTreeMap<&str, usize> = BTreeMap::new();
    for text in records.flat_map(|record| &record.stand_ins) {
        *said.entry(text).or_default() += 1;
    }
    let line = |(text, count): (&str, usize)| (count, text.replace('\n', " "));
    said.into_iter().map(line).collect()
}

/// A text without emphasis.
pub fn plain(text: &str) -> String {
    text.replace(['*', '`'], "")
}
