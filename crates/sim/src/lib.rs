//! Trials of the whole store on the simulated runtime: a model, workloads, a checker, and the
//! trials that put them together.
//!
//! What it is: one seed decides a run: options, operations, schedule of tasks, faults. Everything
//! that the store answers is compared with the [`model`]; what a trial is there to reach is counted
//! ([`coverage`]) and its absence is a failure. [`trials`] runs seeds and prints the ones that fail
//! with the command that repeats them.
//!
//! - [`model`]: every version of every key, cut to any prefix.
//! - [`observe`]: the history as the store's log was told it.
//! - [`settings`]: what is set for keyspaces, and what of it a crash may leave.
//! - [`world`]: an open store, and every operation on it with what it must give.
//! - [`workload`]: option sets, keys, values, clients.
//! - [`checker`]: whole contents against the model.
//! - [`linear`]: whether a history of overlapping operations has an order.
//! - [`executors`]: executors that fail and lie.
//! - [`fuzzing`]: every parser of bytes, as functions of bytes.
//! - [`reduce`]: what is not needed for a failure is left out.
//! - [`trials`]: option sets, power loss, every storage call, storage errors.
//! - [`process`]: real processes on real files, killed, starved and lied to; alone in this crate it
//!   does not run on the simulated runtime.
//!
//! Threading: a run has one OS thread; runs share nothing.

pub mod checker;
pub mod coverage;
pub mod executors;
pub mod fuzzing;
pub mod linear;
pub mod model;
pub mod noted;
pub mod observe;
pub mod process;
pub mod reduce;
pub mod rng;
pub mod settings;
pub mod trials;
pub mod workload;
pub mod world;
