//! Arguments about GPUs: those of `gpu`, and those of commands that can use one.

use siltstone_gpu::{Strategy, Transfer};

/// Whether a GPU runs compactions of a command, and how.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct GpuUseArgs {
    /// Let a GPU run compactions: the one with this number in `silt gpu`, or the first one there.
    /// If it cannot be used, one line says why, and the processor runs all compactions.
    #[arg(long, value_name = "INDEX", num_args = 0..=1, require_equals = true)]
    pub gpu: Option<Option<u32>>,
    /// Which parts of a compaction the GPU computes: full, quick, cooperative, luda, hierarchical
    /// or cpu. The default is full; `silt gpu --help` explains them.
    #[arg(
        long,
        value_name = "NAME",
        requires = "gpu",
        default_value_t,
        hide_default_value = true
    )]
    pub gpu_strategy: Strategy,
    /// How tables get to the GPU and back: plain, pipeline or direct. The default is pipeline. With
    /// direct, the disk and the GPU exchange them by themselves (GPUDirect Storage); this needs
    /// libcufile, and the option direct_io of the store (`silt options STORE --set
    /// direct_io=compaction`).
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
    /// Verify everything that the GPU makes: the checksums of all blocks, and all entries, which
    /// are derived from the inputs again. Without this option a share of both is verified. This
    /// takes about as much processor time as the compactions on the processor. On a device it
    /// means the blocks only, because the hosts verify the entries.
    #[arg(long, requires = "gpu")]
    pub gpu_verify_all: bool,
}

/// Arguments of `gpu`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    silt gpu\n  \
    silt gpu --json | jq -r '.gpus[].name'\n  \
    silt load birds.silt birds.csv --gpu\n\n\
    The command opens each GPU, has the driver compile the kernels, and measures how fast copies \
    through pinned memory are. This takes seconds, and some memory of the GPU. A GPU that is too \
    old, or does not answer the driver, is left out if there are others. If no GPU can be used, \
    one line says what is missing, and the exit code is 0 too: no command needs a GPU.\n\n\
    A compaction reads tables (unpack), merges their entries (sort), drops those that nobody can \
    see any more (collect), and writes tables (pack). --gpu-strategy says which of these the GPU \
    does:\n  \
    full          all of them (the default)\n  \
    cooperative   unpack, sort and pack; the processor collects\n  \
    luda          unpack and pack; the processor sorts and collects\n  \
    quick         as full, but compactions into levels 1 and 2 collect nothing\n  \
    hierarchical  quick into levels 1 and 2, and cooperative below\n  \
    cpu           nothing: the processor runs all compactions\n\n\
    --gpu-transfer says how tables get to the GPU and back:\n  \
    plain         each step waits for the one before\n  \
    pipeline      reads, copies, computation and writes overlap (the default)\n  \
    direct        as pipeline, but the disk and the GPU exchange tables by themselves\n\n\
    Only compactions with at least 16 MiB of inputs are offered to a GPU, and of those the ones \
    that it probably ends sooner than the processor.\n\n\
    A GPU needs compute capability 8.0 or later, and NVIDIA's driver 550 or later (CUDA 12.4). \
    Nothing of NVIDIA is needed to build or to start `silt`.")]
pub struct GpuArgs {
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}
