//! Arguments about GPUs: those of `gpu`, and those of commands that can use one.

use siltstone_gpu::{Strategy, Transfer};

/// Whether a GPU runs compactions of a command, and how.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct GpuUseArgs {
    /// Let a GPU run compactions: the one with this number in `silt gpu`, or the first that can be
    /// used. If there is none, one line says why, and the processor runs all compactions.
    #[arg(long, value_name = "INDEX", num_args = 0..=1, require_equals = true)]
    pub gpu: Option<Option<u32>>,
    /// Which parts of a compaction the GPU computes: full, quick, cooperative, luda, hierarchical
    /// or cpu.
    #[arg(
        long,
        value_name = "NAME",
        requires = "gpu",
        default_value_t,
        hide_default_value = true
    )]
    pub gpu_strategy: Strategy,
    /// How tables get to the GPU and back: plain, pipeline or direct. With direct, the disk and the
    /// GPU exchange them by themselves (GPUDirect Storage); this needs libcufile, and the option
    /// direct_io of the store (`silt options STORE --set direct_io=compaction`).
    #[arg(
        long,
        value_name = "NAME",
        requires = "gpu",
        default_value_t,
        hide_default_value = true
    )]
    pub gpu_transfer: Transfer,
    /// Use this much of the GPU's memory, such as 8GiB. The default is half of what is free, and
    /// 16GiB at most.
    #[arg(long, value_name = "BYTES", requires = "gpu", value_parser = super::device::size)]
    pub gpu_memory: Option<u64>,
    /// Verify everything that the GPU makes: all blocks, and all entries again from their inputs.
    /// Usually a share is verified. This takes about as much processor time as the compactions. On
    /// a device it means the blocks; the entries are verified by the hosts.
    #[arg(long, requires = "gpu")]
    pub gpu_verify_all: bool,
}

/// Arguments of `gpu`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    silt gpu\n  \
    silt gpu --json | jq -r '.gpus[].name'\n  \
    silt load birds.silt birds.csv --gpu\n\n\
    For each GPU that can be used, the command opens it, has the driver compile the kernels, and \
    measures how fast copies through pinned memory are. This takes seconds, and some memory of the \
    GPU. If no GPU can be used, one line says what is missing, and the exit code is 0 too: no \
    command needs a GPU.\n\n\
    A GPU needs compute capability 8.0 or later, and NVIDIA's driver 550 or later (CUDA 12.4). \
    Nothing of NVIDIA is needed to build or to start `silt`.")]
pub struct GpuArgs {
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}
