//! What the benchmarks of this folder share.

pub mod c_engine;
mod c_library;
