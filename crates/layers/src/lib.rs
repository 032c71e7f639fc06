//! Reads the sources of a crate and shows which files import which.
//!
//! [`Sources::read`] follows the `mod` declarations of a crate from its root and parses every file.
//! [`imports()`] resolves each path in them to the file that it names. [`circles()`] finds files
//! that import each other. [`layers`] compares imports with the order of the folders.
//! [`functions()`] measures functions. `cargo xtask layers` prints all of it, and the test
//! `tests/engine.rs` fails on an import of the engine that runs upward, and `tests/functions.rs` on
//! a function that is too long.
//!
//! Invariants: test code (`#[cfg(test)]`, `#[cfg(doctest)]`) and comments are left out. Paths
//! inside macro calls count. A path that goes through a re-export counts twice: as an import of the
//! file that re-exports the name, and of the file that defines it.

pub mod circles;
pub mod functions;
pub mod imports;
pub mod layers;
pub mod sources;

pub use circles::circles;
pub use functions::{Function, functions};
pub use imports::{Import, imports};
pub use sources::Sources;

/// The crates that are measured, and the file of each from which its modules are found.
pub const CRATES: [(&str, &str); 7] = [
    ("storage", "crates/storage/src/lib.rs"),
    ("table", "crates/table/src/lib.rs"),
    ("engine", "crates/engine/src/lib.rs"),
    ("bench", "crates/bench/src/lib.rs"),
    ("cli", "crates/cli/src/lib.rs"),
    ("sim", "crates/sim/src/lib.rs"),
    ("plasma", "crates/plasma/src/lib.rs"),
];
