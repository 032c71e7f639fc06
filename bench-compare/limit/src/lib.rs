//! Runs this process with limited memory, so that a store is larger than its memory without being
//! larger than the machine's.
//!
//! [`Limit::enter`] makes a control group with a memory limit and moves this process into it.
//! Version 1 and version 2 of control groups are supported, and systems that have both.
//! [`Limit::leave`] moves the process back and removes the group; dropping a [`Limit`] does the
//! same. A group that a killed process left behind is removed by the next process that enters one.
//!
//! What counts against the limit, and how to use it:
//!
//! - The kernel charges a page to the group of the process that touched it first. What the process
//!   has allocated before it enters stays charged to the group where it was. So a program enters
//!   before it opens a store, best as the first thing that it does. Processes that it starts are in
//!   the group as well.
//! - The same holds for the page cache. A store that was loaded outside of the group has its pages
//!   charged outside, and reading them would be free. They have to be dropped first
//!   (`siltstone_bench::measure::files::drop_from_cache`, which says how many stayed). The pages of
//!   the program itself and of its shared libraries stay outside, in all runs alike.
//! - The limit holds for anonymous memory, the page cache and the kernel's own memory together. The
//!   kernel keeps using the page cache up to the limit and reclaims what was used least. Whether a
//!   run really came near the limit is what [`Reading::nearness`] says.
//! - Swap is forbidden within the group where the kernel counts it, so anonymous memory that does
//!   not fit gets the process killed (SIGKILL), which the process itself cannot report.
//!
//! Invariants: the group exists only as long as its [`Limit`], unless the process is killed. A
//! process is never moved out of the limits of the groups above its own.
//!
//! Threading: a process can be in one group only, so one [`Limit`] at a time makes sense. All
//! threads of the process move together.

mod error;
mod group;
mod place;
mod reading;

use std::path::PathBuf;

pub use error::LimitError;
pub use reading::{NEAR, Nearness, Reading};

use group::Group;
use place::Place;

/// The lowest limit: below it the process itself would hardly run.
pub const MIN_BYTES: u64 = 8 << 20;

/// A limit of memory in which this process is.
#[derive(Debug)]
pub struct Limit {
    group: Group,
    bytes: u64,
}

impl Limit {
    /// Makes a group with a limit of `bytes`, and moves this process with all its threads into it.
    ///
    /// # Errors
    /// If there is no memory controller, if a group above has a lower limit, or if the system
    /// refuses a step. The error says which file and what can be done about it. The process is
    /// where it was before, and no new group is left.
    pub fn enter(bytes: u64) -> Result<Limit, LimitError> {
        let place = Place::of_this_process()?;
        if bytes < MIN_BYTES {
            return Err(LimitError::TooLow { bytes });
        }
        if let Some((group, limit)) = place.lowest_limit().filter(|(_, limit)| *limit < bytes) {
            return Err(LimitError::Above {
                bytes,
                group,
                limit,
            });
        }
        let group = Group::enter(&place, bytes)?;
        Ok(Limit { group, bytes })
    }

    /// What the group uses now, and how often the limit was hit since the process entered it.
    pub fn reading(&self) -> Reading {
        Reading::of(self.group.folder(), self.group.version(), self.bytes)
    }

    /// The folder of the group.
    pub fn folder(&self) -> PathBuf {
        self.group.folder().to_path_buf()
    }

    /// Moves the process back to its own group and removes the group with the limit. Pages of files
    /// stay in the page cache until somebody needs the memory.
    ///
    /// # Errors
    /// If the system refuses it, for example because a process that was started within the group
    /// still runs.
    pub fn leave(mut self) -> Result<(), LimitError> {
        self.group.leave()
    }
}
