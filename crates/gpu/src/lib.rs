//! Compaction on a GPU: `docs/rfc/0014-gpu.md` has the promises, the failure model and the reasons.
//!
//! [`GpuExecutor`] runs jobs on a [`device::Device`]: memory, streams, events, copies and kernels.
//! The other modules know a GPU by this trait only. [`device::cuda`] implements it with NVIDIA's
//! driver, which is looked for when a GPU is opened and never before. With the feature `emulate`,
//! `device::emulated` implements it on the host, for tests.
//!
//! [`open`] is how a program gets an executor: it finds a GPU, and opens it in the background.
//!
//! Unsafe code is in `src/device/cuda.rs`, `src/device/cuda` and `src/device/emulated.rs` only.
//!
//! Threading: executors and devices are shared; each module says what it shares.

#![deny(unsafe_code)]

mod buffers;
pub mod device;
mod direct;
mod error;
mod executor;
mod host;
pub mod kernels;
mod lane;
mod layout;
mod lz4;
mod measure;
mod open;
mod pack;
mod piece;
mod pipeline;
mod profile;
mod retain;
mod sort;
mod strategy;
mod subjob;
mod unpack;
mod upload;
mod write;

pub use executor::{GpuExecutor, GpuOptions};
pub use measure::{LinkSpeed, measure_link};
pub use open::{OpenError, OpeningExecutor, open};
pub use profile::KernelTime;
pub use strategy::{Strategy, Transfer, UnknownName};

/// The kernels, as `cargo xtask ptx` has compiled them. The first line has the hash of the sources.
pub const PTX: &str = include_str!("../kernels/siltstone.ptx");
