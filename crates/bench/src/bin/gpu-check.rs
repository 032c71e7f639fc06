//! `gpu-check`: see `siltstone_bench::gpu_check`.

use std::process::ExitCode;

use clap::Parser;
use siltstone_bench::gpu_check::{GpuCheckArgs, gpu_check};

fn main() -> ExitCode {
    gpu_check(&GpuCheckArgs::parse())
}
