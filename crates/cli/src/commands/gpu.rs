//! `silt gpu`: lists the GPUs and measures the link to each; and the executor of a GPU for other
//! commands (`--gpu`).
//!
//! Invariant: no command needs a GPU. Without one, a line says why, and the exit code is that of
//! the command without `--gpu`. Only options that do not fit the GPU that is there are wrong usage.
//!
//! Threading: one task, beside the one that opens a GPU.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use siltstone::{DirectIo, Options};
use siltstone_gpu::device::cuda::{self, CudaDevice};
use siltstone_gpu::device::{Device, DeviceFacts, DirectMode};
use siltstone_gpu::{GpuOptions, LinkSpeed, OpenError, PTX, Strategy, Transfer, measure_link};
use siltstone_storage::Runtime;
use siltstone_table::exec::{Executor, ExecutorState};

use crate::args::{GpuArgs, GpuUseArgs};
use crate::failure::{Failure, Outcome};
use crate::output::{Out, bytes, duration, outln, plural};
use crate::signals::Signals;

/// How often a command looks whether a GPU is open.
const LOOK: Duration = Duration::from_millis(100);

/// Who runs compactions if there is no GPU: in a command that opens a store, and in a device.
const HOST: &str = "the host runs";
const DEVICE: &str = "the cores of the device run";

/// The most jobs at once for which a GPU can be opened.
const GPU_JOBS_MAX: usize = 64;

/// What was measured of a GPU that could be opened.
struct Measured {
    memory_free_bytes: Option<u64>,
    /// The time that the driver took to make a context and to compile the kernels.
    opened_in: Duration,
    /// The speed of copies, or why it could not be measured.
    link: Result<LinkSpeed, String>,
    /// How direct transfers are made, or why they are not possible.
    direct: Result<DirectMode, String>,
}

/// Runs the command.
pub fn run(args: &GpuArgs) -> Result<Outcome, Failure> {
    let mut out = Out::new();
    match cuda::list() {
        Err(why) if args.json => {
            let json = json!({ "gpus": [], "reason": why.to_string() });
            outln!(out, "{json}")?;
        }
        Err(why) => outln!(out, "no GPU can be used: {why}")?,
        Ok(all) => {
            let measured = all.iter().map(measure);
            let each: Vec<_> = all.iter().zip(measured).collect();
            match args.json {
                true => {
                    let each = each.iter().map(|(facts, found)| to_json(facts, found));
                    outln!(out, "{}", json!({ "gpus": each.collect::<Vec<Value>>() }))?;
                }
                false => {
                    for (at, (facts, found)) in each.iter().enumerate() {
                        if at > 0 {
                            outln!(out)?;
                        }
                        print(&mut out, facts, found)?;
                    }
                }
            }
        }
    }
    out.finish()?;
    Ok(Outcome::Fine)
}

/// Opens a GPU, and measures the link to it. If it cannot be opened, says why.
fn measure(facts: &DeviceFacts) -> Result<Measured, String> {
    let begun = Instant::now();
    let device = CudaDevice::open(facts.index, PTX).map_err(|why| why.to_string())?;
    let opened_in = begun.elapsed();
    let link = measure_link(&device, &Runtime::threads());
    let direct = device.begin_direct();
    Ok(Measured {
        direct,
        memory_free_bytes: device.facts().memory_free_bytes,
        opened_in,
        link: link.map_err(|error| error.to_string()),
    })
}

fn rate(bytes_per_s: Option<f64>) -> String {
    match bytes_per_s {
        Some(speed) => format!("{}/s", bytes(speed as u64)),
        None => "not known".to_string(),
    }
}

type Found = Result<Measured, String>;

/// Prints what is known about a GPU.
fn print(out: &mut Out, facts: &DeviceFacts, found: &Found) -> Result<(), Failure> {
    let free = found
        .as_ref()
        .ok()
        .and_then(|found| found.memory_free_bytes);
    let free = free.map_or_else(String::new, |free| format!(" ({} free)", bytes(free)));
    let (capability, driver) = (facts.capability, facts.driver_version);
    let mut line = |title: &str, text: fmt::Arguments<'_>| outln!(out, "{title:<11}{text}");
    line(
        &format!("gpu{}", facts.index),
        format_args!(
            "{}: compute capability {}.{}, {}, memory {}{free}",
            facts.name,
            capability.0,
            capability.1,
            plural(facts.multiprocessor_count.into(), "multiprocessor"),
            bytes(facts.memory_bytes),
        ),
    )?;
    line(
        "driver",
        format_args!("supports CUDA {}.{}", driver.0, driver.1),
    )?;
    let address = &facts.pci_bus_id;
    let found = match found {
        Ok(found) => found,
        Err(why) => {
            line("link", format_args!("PCI {address}"))?;
            return line("unusable", format_args!("{why}"));
        }
    };
    match &found.link {
        Ok(speed) => line(
            "link",
            format_args!(
                "PCI {address}: {} to the GPU, {} back, through pinned memory",
                rate(speed.in_bytes_per_s),
                rate(speed.out_bytes_per_s)
            ),
        )?,
        Err(why) => line(
            "link",
            format_args!("PCI {address}; it could not be measured: {why}"),
        )?,
    }
    line(
        "kernels",
        format_args!("loaded in {}", duration(found.opened_in)),
    )?;
    match &found.direct {
        Ok(mode) => line(
            "transfers",
            format_args!("plain, pipeline, direct ({mode})"),
        ),
        Err(why) => line(
            "transfers",
            format_args!("plain, pipeline; not direct: {why}"),
        ),
    }
}

fn to_json(facts: &DeviceFacts, found: &Found) -> Value {
    let version = |(major, minor): (u32, u32)| format!("{major}.{minor}");
    let measured = found.as_ref().ok();
    let link = measured.map(|found| found.link.as_ref());
    let speed = link.and_then(Result::ok).copied().unwrap_or_default();
    let opened_us = measured.map(|found| found.opened_in.as_micros() as u64);
    let direct = measured.map(|found| found.direct.as_ref());
    let direct_mode = direct.and_then(Result::ok);
    let mut transfers = vec!["plain", "pipeline"];
    if direct_mode.is_some() {
        transfers.push("direct");
    }
    json!({
        "index": facts.index, "name": facts.name, "memory_bytes": facts.memory_bytes,
        "memory_free_bytes": measured.and_then(|found| found.memory_free_bytes),
        "capability": version(facts.capability),
        "driver_cuda_version": version(facts.driver_version),
        "pci_bus_id": facts.pci_bus_id, "multiprocessor_count": facts.multiprocessor_count,
        "in_bytes_per_s": speed.in_bytes_per_s, "out_bytes_per_s": speed.out_bytes_per_s,
        "open_us": opened_us,
        "unusable_because": found.as_ref().err(),
        "not_measured_because": link.and_then(Result::err),
        "transfers": transfers, "direct_mode": direct_mode.map(ToString::to_string),
        "not_direct_because": direct.and_then(Result::err),
    })
}

/// The options that the arguments say.
fn options_of(args: &GpuUseArgs) -> GpuOptions {
    GpuOptions {
        memory_bytes_max: args.gpu_memory.unwrap_or(0),
        strategy: args.gpu_strategy,
        transfer: args.gpu_transfer,
        verifies_all: args.gpu_verify_all,
        verifies_outcomes: args.gpu_verify_all,
        ..GpuOptions::default()
    }
}

/// The executors that the arguments have led to, in words, for a record: everything that decides
/// their speed.
pub fn words(args: &GpuUseArgs, executors: &[Arc<dyn Executor>]) -> String {
    let names: Vec<&str> = executors.iter().map(|executor| executor.name()).collect();
    let model = args.gpu.and_then(|index| cuda::find(index).ok());
    let model = model.map(|facts| format!(" ({})", facts.name));
    let memory = args.gpu_memory.filter(|bytes| *bytes > 0);
    let memory = memory.map(|bytes| format!(", {bytes} bytes of its memory"));
    format!(
        "{}{}: strategy {}, transfer {}{}{}",
        names.join(", "),
        model.unwrap_or_default(),
        args.gpu_strategy,
        args.gpu_transfer,
        memory.unwrap_or_default(),
        match args.gpu_verify_all {
            true => ", everything is verified",
            false => "",
        }
    )
}

/// The executors that the arguments ask for: that of a GPU, which is being opened, or none. If a
/// GPU is asked for and there is none, prints why.
///
/// # Errors
/// Wrong usage if the options do not fit the GPU.
pub fn executors(args: &GpuUseArgs) -> Result<Vec<Arc<dyn Executor>>, Failure> {
    open(args, options_of(args), HOST)
}

/// As [`executors`], for a device that runs `slots` jobs at once.
///
/// # Errors
/// As [`executors`]. Also if the strategy says what jobs drop, which a device does not decide.
pub fn device_executors(args: &GpuUseArgs, slots: u32) -> Result<Vec<Arc<dyn Executor>>, Failure> {
    let strategy = args.gpu_strategy;
    if let Strategy::Quick | Strategy::Hierarchical = strategy {
        return Err(Failure::Usage(format!(
            "--gpu-strategy {strategy}: with it, compactions into the upper levels drop nothing, \
             and the hosts of a device decide what their compactions drop; give the device full, \
             cooperative or luda, or give --gpu to the command that opens the store"
        )));
    }
    let options = GpuOptions {
        jobs: (slots as usize).min(GPU_JOBS_MAX),
        ..options_of(args)
    };
    open(args, options, DEVICE)
}

fn open(
    args: &GpuUseArgs,
    options: GpuOptions,
    others: &str,
) -> Result<Vec<Arc<dyn Executor>>, Failure> {
    let Some(index) = args.gpu else {
        return Ok(Vec::new());
    };
    match siltstone_gpu::open(&Runtime::threads(), index, options) {
        Ok(executor) => Ok(vec![executor]),
        Err(OpenError::Options(what)) => {
            Err(Failure::Usage(format!("the options of the GPU: {what}")))
        }
        Err(why) => {
            say_none(others, why);
            Ok(Vec::new())
        }
    }
}

/// Prints a hint if tables should move directly, and the options of the store do not allow it.
pub fn say_if_not_direct(
    args: &GpuUseArgs,
    options: &Options,
    store: &Path,
    executors: &[Arc<dyn Executor>],
) {
    let is_asked = args.gpu_transfer == Transfer::Direct && !executors.is_empty();
    if is_asked && options.direct_io == DirectIo::None {
        eprintln!(
            "silt: no table moves directly between disk and GPU, because the store has no direct \
             I/O; set it with `silt options {} --set direct_io=compaction`",
            store.display()
        );
    }
}

/// As [`executors`], after the GPU has been opened. One that cannot be opened is left out, and a
/// line says why. `signals` are those for which the command looks: after one, it ends before it
/// uses the executor.
///
/// # Errors
/// As [`executors`].
pub fn open_executors(
    args: &GpuUseArgs,
    signals: Option<&Signals>,
) -> Result<Vec<Arc<dyn Executor>>, Failure> {
    let mut executors = executors(args)?;
    let is_ended = || match signals {
        Some(signals) => signals.wait_for(LOOK).is_some(),
        None => {
            std::thread::sleep(LOOK);
            false
        }
    };
    executors.retain(|executor| {
        loop {
            match executor.state() {
                ExecutorState::Ready => return true,
                ExecutorState::Down(why) => {
                    say_none(HOST, why);
                    return false;
                }
                ExecutorState::Starting(_) if is_ended() => return true,
                ExecutorState::Starting(_) => {}
            }
        }
    });
    Ok(executors)
}

/// Prints why an executor is down at the end of a command, if it is.
pub fn say_if_down(executors: &[Arc<dyn Executor>]) {
    for executor in executors {
        let ExecutorState::Down(why) = executor.state() else {
            continue;
        };
        let counters = executor.counters();
        let has_run = counters
            .iter()
            .any(|(name, count)| name == "gpu_jobs" && *count > 0);
        match has_run {
            true => eprintln!(
                "silt: the GPU was lost, and the host ran what was left of the compactions: {why}"
            ),
            false => say_none(HOST, why),
        }
    }
}

fn say_none(others: &str, why: impl fmt::Display) {
    eprintln!("silt: no GPU is used, and {others} all compactions: {why}");
}
