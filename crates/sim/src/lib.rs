//! Trials of the whole store on the simulated runtime: a model, workloads, a checker, and the
//! trials that use them.
//!
//! One seed decides a run: options, operations, the schedule of tasks, and faults. Every answer of
//! the store is compared with the [`model`]. Each trial counts the events that it reached
//! ([`coverage`]), and fails if it missed an event that it must reach. [`trials`] runs seeds, and
//! prints failing ones with the command that repeats them.
//!
//! - [`model`]: every version of every key, which can be cut to any prefix.
//! - [`observe`]: the history, as it is appended to the store's log.
//! - [`settings`]: the settings of keyspaces, and those that a crash may leave.
//! - [`world`]: an open store, and every operation on it with the expected results.
//! - [`workload`]: option sets, keys, values, clients.
//! - [`checker`]: compares whole contents with the model.
//! - [`linear`]: decides whether a history of overlapping operations has an order.
//! - [`device`]: an executor with slots, whose jobs take time and end as planned or as drawn.
//! - [`executors`]: the executors of a random trial, which fail, lie, hang and wake too late.
//! - [`gpu`]: the GPU of a random trial, which is emulated.
//! - [`fuzzing`]: every parser of bytes, as functions of bytes.
//! - [`pipelined`]: a storage whose appends return before it has taken them.
//! - [`reduce`]: leaves out everything that a failure does not need.
//! - [`remote`]: a device and its hosts as processes of a run, and the link between them.
//! - [`trials`]: option sets, power loss, every storage call, storage errors.
//! - [`process`]: real processes on real files, which are killed, run out of space, or get errors.
//!   Only this part of the crate does not run on the simulated runtime.
//!
//! Threading: a run has one OS thread; runs share nothing.

pub mod checker;
pub mod coverage;
pub mod device;
pub mod executors;
pub mod fuzzing;
pub mod gpu;
pub mod linear;
pub mod marking;
pub mod model;
pub mod observe;
pub mod pipelined;
pub mod process;
pub mod reduce;
pub mod remote;
pub mod rng;
pub mod settings;
pub mod trials;
pub mod workload;
pub mod world;
