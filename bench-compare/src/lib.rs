//! What the benchmarks of this folder share.

pub mod c_library;
