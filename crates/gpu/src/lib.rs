//! Compaction on a GPU: `docs/rfc/0014-gpu.md` has the promises, the failure model and the reasons.
//!
//! [`device`] is all that the rest of the crate knows of a GPU: memory, streams, events, copies and
//! kernels, as the trait [`device::Device`]. [`device::cuda`] implements it with NVIDIA's driver,
//! which is looked for when a GPU is opened and never before.
//!
//! Unsafe code is in `src/device/cuda.rs` and `src/device/cuda` only.

#![deny(unsafe_code)]

pub mod device;

/// The kernels, as `cargo xtask ptx` has compiled them. The first line has the hash of the sources.
pub const PTX: &str = include_str!("../kernels/siltstone.ptx");
