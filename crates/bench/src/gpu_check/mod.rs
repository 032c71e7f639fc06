//! `gpu-check`: measures the GPU's executor on a machine with a GPU, and compares its tables there
//! with those of the host's executor.
//!
//! The sections run in the order of their worth, each with its share of the time that is left.
//! After each, `gpu-check.json` and `gpu-check.html` are written anew, so that a run that is cut
//! off leaves what it has measured. `world.rs` makes jobs, `setup.rs` opens devices and runs jobs,
//! `report.rs` is what is written, and `page.rs` draws it. `peer.rs` has RocksDB merge the
//! same entries. The other modules are the sections.
//!
//! With `--emulated` (feature `emulate`) all of it runs on the emulated device, with tiny sizes.
//! Such figures are no speeds, and each says so.
//!
//! Threading: one thread runs the sections.

mod device;
mod equality;
mod kernels;
mod page;
pub mod peer;
mod report;
mod setup;
mod speed;
mod store;
mod world;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;
use siltstone_gpu::device::cuda;
use siltstone_storage::Runtime;

use crate::measure::machine::{Build, Machine, mount_of};
use report::{Report, SectionState};
use setup::{Limit, NOT_A_SPEED, Setup, memory_folder};

/// The options of the program.
#[derive(Clone, Debug, Parser)]
#[command(
    name = "gpu-check",
    about = "Measures the GPU's executor, and compares its tables with those of the host's executor"
)]
pub struct GpuCheckArgs {
    /// The folder of the results
    pub out: PathBuf,
    /// How long all sections take together, in seconds
    #[arg(long, default_value_t = 570.0, value_parser = seconds)]
    pub seconds: f64,
    /// Runs everything on an emulated device, with tiny sizes; no figure is a speed
    #[arg(long)]
    pub emulated: bool,
    /// Runs jobs of some KB, for checkers of memory accesses
    #[arg(long)]
    pub small: bool,
    /// Runs only these sections
    #[arg(long, value_name = "SECTION")]
    pub only: Vec<String>,
    /// The seed of the jobs that are compared
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// The number of the GPU
    #[arg(long, default_value_t = 0)]
    pub index: u32,
    /// The program that merges with RocksDB; by default rocksdb-merge beside this program.
    /// Without it, RocksDB is left out
    #[arg(long, value_name = "PROGRAM")]
    pub rocksdb: Option<PathBuf>,
    /// Jobs run in this folder, which should be in memory; by default /dev/shm if
    /// that has room
    #[arg(long, value_name = "FOLDER")]
    pub memory_folder: Option<PathBuf>,
}

/// Reads a time, of at most a day.
fn seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse::<f64>().ok();
    let seconds = seconds.filter(|seconds| (0.0..=86_400.0).contains(seconds));
    seconds.ok_or("expected seconds from 0 to 86400, such as 570".into())
}

/// A section: its name, its share of the time, and what it does.
struct Section {
    name: &'static str,
    share: f64,
    run: fn(&Setup, Limit, u64, &mut Report) -> Result<bool, String>,
}

/// The sections, in the order of their worth.
const SECTIONS: [Section; 6] = [
    Section {
        name: "device",
        share: 15.0,
        run: |setup, limit, _, report| {
            report.device = Some(device::measure(setup, limit)?);
            Ok(false)
        },
    },
    Section {
        name: "equality",
        share: 165.0,
        run: equality::compare_all,
    },
    Section {
        name: "speed",
        share: 190.0,
        run: |setup, limit, _, report| speed::measure(setup, limit, report),
    },
    Section {
        name: "kernels",
        share: 40.0,
        run: |setup, limit, _, report| kernels::kernels(setup, limit, report),
    },
    Section {
        name: "rank",
        share: 50.0,
        run: |setup, limit, _, report| kernels::rank(setup, limit, report),
    },
    Section {
        name: "store",
        share: 110.0,
        run: |setup, limit, _, report| store::measure(setup, limit, report),
    },
];

/// Runs the program. Without a GPU it says so in one line, and that is no failure. A difference to
/// the host's executor is one, and so is a section that could not be carried out.
pub fn gpu_check(args: &GpuCheckArgs) -> ExitCode {
    match checked(args) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(2)
        }
    }
}

fn checked(args: &GpuCheckArgs) -> Result<bool, String> {
    let names = SECTIONS.map(|section| section.name);
    if let Some(wrong) = args.only.iter().find(|name| !names.contains(&&name[..])) {
        let names = names.join(", ");
        return Err(format!(
            "there is no section `{wrong}`; the names are {names}"
        ));
    }
    let memory = args.memory_folder.clone();
    let memory = memory.unwrap_or_else(|| memory_folder(args.small || args.emulated));
    let setup = Setup {
        runtime: Runtime::threads(),
        is_emulated: args.emulated,
        is_small: args.small,
        memory,
        disk: args.out.clone(),
        index: args.index,
        gpu_memory_bytes: match args.emulated {
            true => None,
            false => cuda::find(Some(args.index))
                .ok()
                .map(|facts| facts.memory_bytes),
        },
        rocksdb: args.rocksdb.clone(),
    };
    let began = Instant::now();
    match setup.device() {
        Ok(device) => match setup.label() {
            None => println!("gpu-check: {}", device.name()),
            Some(label) => println!("gpu-check: every figure here is {label}"),
        },
        Err(why) if !args.emulated => {
            println!("gpu-check: nothing was measured: {why}");
            return Ok(true);
        }
        Err(why) => return Err(why),
    }
    let first_open_s = began.elapsed().as_secs_f64();
    std::fs::create_dir_all(&args.out).map_err(|e| format!("{}: {e}", args.out.display()))?;
    let mut report = begun(&setup);
    report.first_open_s = first_open_s;
    run_sections(args, &setup, &mut report)?;
    let different = report.equality.iter().filter(|row| !row.is_equal).count();
    if different > 0 {
        println!(
            "*** {different} jobs ARE NOT EQUAL to those of the host's executor; their seeds are \
             above ***"
        );
    }
    let has_failed = report
        .sections
        .iter()
        .any(|section| section.error.is_some());
    println!("gpu-check: the results are in {}", args.out.display());
    Ok(different == 0 && !has_failed)
}

/// The time in UTC.
fn now_text(setup: &Setup) -> String {
    let micros = i64::try_from(setup.runtime.unix_micros()).unwrap_or(0);
    let time = chrono::DateTime::from_timestamp_micros(micros).unwrap_or_default();
    time.to_rfc3339_opts(chrono::SecondsFormat::Secs, true)
}

fn begun(setup: &Setup) -> Report {
    let label = setup.label();
    let gpu = match setup.is_emulated {
        true => format!(
            "No GPU was used: the host emulated one. Every figure is labelled \"{NOT_A_SPEED}\"."
        ),
        false => "The GPU, its driver and its link were real.".to_string(),
    };
    let mut hardware = vec![gpu];
    let kind = |folder: &Path| {
        let mount = mount_of(folder);
        mount.map_or("unknown".to_string(), |mount| mount.file_system)
    };
    hardware.push(format!(
        "Jobs ran in {} (file system: {}), which stands in for a fast disk; the disk that is \
         measured beside it is that of {} (file system: {}).",
        setup.memory.display(),
        kind(&setup.memory),
        setup.disk.display(),
        kind(&setup.disk)
    ));
    if setup.is_small {
        hardware.push("Sizes were small, so that speeds mean little.".into());
    }
    Report {
        program: "gpu-check",
        began: now_text(setup),
        build: Build::of_this_program(),
        machine: Machine::of(&setup.disk),
        is_emulated: setup.is_emulated,
        label,
        hardware,
        ..Report::default()
    }
}

fn run_sections(args: &GpuCheckArgs, setup: &Setup, report: &mut Report) -> Result<(), String> {
    let whole = Limit::after(args.seconds);
    let is_wanted = |name: &str| args.only.is_empty() || args.only.iter().any(|only| only == name);
    let wanted: Vec<&Section> = SECTIONS.iter().filter(|s| is_wanted(s.name)).collect();
    let mut shares: f64 = wanted.iter().map(|section| section.share).sum();
    for section in wanted {
        // What earlier sections did not need is divided among the later ones.
        let seconds = whole.left_s() * section.share / shares;
        shares -= section.share;
        println!("{}: {seconds:.0} s at most", section.name);
        report.sections.push(SectionState {
            name: section.name,
            state: "running",
            is_cut: false,
            error: None,
            seconds: 0.0,
        });
        write(&args.out, report)?;
        let began = Instant::now();
        let ended = (section.run)(setup, Limit::after(seconds), args.seed, report);
        if let Err(error) = &ended {
            println!("  {} failed: {error}", section.name);
        }
        if let Some(state) = report.sections.last_mut() {
            state.seconds = began.elapsed().as_secs_f64();
            state.state = if ended.is_ok() { "done" } else { "failed" };
            state.is_cut = ended == Ok(true);
            state.error = ended.err();
        }
        write(&args.out, report)?;
    }
    Ok(())
}

/// Writes both files. A file is replaced whole.
fn write(out: &Path, report: &Report) -> Result<(), String> {
    let json = serde_json::to_string_pretty(report).map_err(|e| e.to_string())?;
    for (name, text) in [
        ("gpu-check.json", json),
        ("gpu-check.html", page::page(report)),
    ] {
        let (path, partial) = (out.join(name), out.join(format!("{name}.partial")));
        std::fs::write(&partial, text)
            .and_then(|()| std::fs::rename(&partial, &path))
            .map_err(|e| format!("{}: {e}", path.display()))?;
    }
    Ok(())
}
