//! The trials. Each is a function of a seed that checks the store under one kind of trouble and
//! panics at the first wrong answer.
//!
//! A trial draws options and operations from its seed, lets clients work, and compares every answer
//! with the model. The trials for each kind of trouble are:
//! - [`options_trial`]: random operations under random option sets, with the store reopened and
//!   killed in between.
//! - [`power_trial`]: power loss at random calls, with random losses, and again during recovery.
//! - [`scenario`]: a fixed story that crashes at every storage call.
//! - [`every_fault`]: a fixed story in which every storage call fails in turn.
//! - [`fault_trial`]: random storage calls that fail.
//! - [`failed_syncs_trial`]: syncs that fail.
//! - [`disk_full_trial`]: a disk that fills up.
//! - [`outages_trial`]: a storage that cannot be reached now and then.
//! - [`handles_trial`]: a process that runs out of file handles.
//! - [`cut_files_trial`]: files that are cut while the store is open.
//! - [`flip_trial`]: bytes of the store's files that change on the medium.
//! - [`repair_trial`]: repairs of damaged folders.
//! - [`repair_at_every_call`], [`reader_at_every_call`]: repairs and readers in which every storage
//!   call fails in turn.
//! - [`same_operations_trial`]: one list of operations under several option sets.
//! - [`picks_trial`]: the choices of compactions over random histories.
//! - [`linearizable_trial`], [`takeover_trial`]: histories of overlapping operations.
//! - [`waits_trial`]: writers that are faster than the storage, and how long they wait.
//!
//! [`seeds`] runs a trial with many seeds, and [`simulate`] runs one seed on the simulated runtime.
//!
//! Threading: each trial has its own run of the simulated runtime, so trials share nothing.

mod closing;
mod cut_files;
mod disk_full;
mod every_fault;
mod failed_syncs;
mod faults;
mod flips;
mod handles;
mod linearizable;
mod media;
mod moments;
mod offline;
mod offline_faults;
mod options;
mod outages;
mod picks;
mod power;
mod promised;
mod repair;
mod replay;
mod run;
mod same_operations;
mod scenario;
mod seeds;
mod simulate;
mod stories;
mod takeover;
mod waits;

pub use cut_files::cut_files_trial;
pub use disk_full::{disk_full_trial, disk_full_trial_alone};
pub use every_fault::{every_fault, every_fault_alone};
pub use failed_syncs::failed_syncs_trial;
pub use faults::{fault_trial, fault_trial_alone};
pub use flips::{FLIPS, flip_trial};
pub use handles::handles_trial;
pub use linearizable::linearizable_trial;
pub use linearizable::threads::{history_child, linearizable_threads_trial};
pub use offline_faults::{reader_at_every_call, repair_at_every_call};
pub use options::{options_trial, options_trial_long};
pub use outages::outages_trial;
pub use picks::picks_trial;
pub use power::{power_trial, power_trial_alone};
pub use repair::repair_trial;
pub use replay::{Trace, trace, trace_with_gpu};
pub use same_operations::same_operations_trial;
pub use scenario::{Share, scenario};
pub use seeds::{seeds, seeds_in_turn};
pub use simulate::simulate;
pub use stories::Story;
pub use takeover::takeover_trial;
pub use waits::waits_trial;

use promised::Promised;
use run::Run;

/// The percentage of seeds whose stores have executors besides the host's own.
const OTHER_EXECUTORS_PERCENT: u64 = 40;
use simulate::{STEPS, simulate_counted};
