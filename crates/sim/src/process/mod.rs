//! Trials with real processes and real files: rows 1, 4 and 5 of RFC 4.
//!
//! What it is: a *victim* is a child process that works on a folder of its own; its parent, the
//! trial, knows from a seed what it does and from a pipe how far it has come, so the expected state
//! lies outside of what is killed. [`kill_trial`] kills it at random moments; [`strace_trial`] has
//! its system calls fail; [`tmpfs_trial`] fills its disk. What is left is verified by another
//! process each time.
//!
//! - [`script`]: operations from seed and number, and what they make of a lane's contents.
//! - [`talk`]: messages of victims, dumps of verifiers.
//! - [`victim`], `verifier`: the child's side; the program is `src/bin/victim.rs`.
//! - [`expected`]: what may be there.
//! - [`parent`]: starting, hearing, killing, verifying.
//!
//! Invariants: the only trials that depend on real time. A seed fixes what is tried, not what the
//! system's scheduler makes of it: a seed that failed may need several runs to fail again, so a
//! failure keeps its folder.
//!
//! Threading: a trial has one thread, and one for each pipe that it hears.

pub mod expected;
mod kill;
pub mod parent;
pub mod script;
mod strace;
pub mod talk;
mod tmpfs;
mod verifier;
pub mod victim;

pub use kill::{CYCLES, KILL_REACHED, kill_trial};
pub use strace::{FAULTS, STRACE_REACHED, strace_trial, without_strace};
pub use tmpfs::{TMPFS_MIB, TMPFS_REACHED, tmpfs_trial};
