//! Trials with real processes and real files: rows 1, 4 and 5 of RFC 4.
//!
//! A *victim* is a child process that works on a folder of its own. Its parent, the trial, knows
//! from a seed what the victim does and from a pipe how far it has come, so the expected state is
//! outside of the process that is killed. [`kill_trial`] kills it at random moments,
//! [`strace_trial`] makes its system calls fail, and [`tmpfs_trial`] fills its disk. Each time
//! another process verifies the store.
//!
//! - [`script`]: operations from seed and number, and their effect on a lane's contents.
//! - [`messages`]: messages of victims, dumps of verifiers.
//! - [`victim`], `verifier`: the child's side; the program is `src/bin/victim.rs`.
//! - [`expected`]: the contents that the store may have.
//! - [`parent`]: starting, listening, killing, verifying.
//! - [`device_host`]: a host whose device shares its folder, for row 9; the program is
//!   `src/bin/device_host.rs`.
//!
//! Invariant: these are the only trials that depend on real time. A seed decides what is tested,
//! but not the schedule of the system: a seed that failed may need several runs to fail again, so a
//! failure keeps its folder.
//!
//! Threading: a trial has one thread, and one for each pipe that it reads.

pub mod device_host;
pub mod expected;
mod kill;
pub mod messages;
pub mod parent;
pub mod script;
mod strace;
mod tmpfs;
mod verifier;
pub mod victim;

pub use kill::{CYCLES, KILL_REACHED, kill_trial};
pub use strace::{FAULTS, STRACE_REACHED, strace_trial, without_strace};
pub use tmpfs::{TMPFS_MIB, TMPFS_REACHED, tmpfs_trial};
