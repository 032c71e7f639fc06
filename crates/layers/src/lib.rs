//! Reads the sources of a crate and says who imports whom.
//!
//! What it is: [`Sources::read`] follows the `mod` declarations of a crate from its root and parses
//! every file; [`imports()`] resolves each path in them to the file that it names; [`circles()`]
//! finds files that import each other; [`layers`] compares imports with the order of the folders;
//! and [`functions()`] measures how long functions are. `cargo xtask layers` prints all of it, and
//! the test `tests/engine.rs` fails on an import of the engine that runs upward.
//!
//! Invariants: test code is left out (`#[cfg(test)]`, `#[cfg(doctest)]`), and so are comments.
//! Paths inside macro calls count. A path that goes through a re-export counts twice: as an import
//! of the file that re-exports, and of the file that the name comes from.

pub mod circles;
pub mod functions;
pub mod imports;
pub mod layers;
pub mod sources;

pub use circles::circles;
pub use functions::{Function, functions};
pub use imports::{Import, imports};
pub use sources::Sources;
