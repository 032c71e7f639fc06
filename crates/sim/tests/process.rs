//! The trials with real processes in the gate's size: rows 1, 4 and 5. `SILT_SEEDS=N` scales them
//! to N percent, `SILT_SEED=K` runs one seed.

#![cfg(target_os = "linux")]

#[path = "../../storage/tests/common/tmpfs.rs"]
mod tmpfs;

use std::path::Path;

use siltstone_sim::process::{
    KILL_REACHED, STRACE_REACHED, TMPFS_MIB, TMPFS_REACHED, kill_trial, strace_trial, tmpfs_trial,
    without_strace,
};
use siltstone_sim::trials::seeds_in_turn;
use tmpfs::on_tmpfs;

fn victim() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_victim"))
}

/// Each seed is a folder and five cycles.
#[test]
fn kill_9() {
    seeds_in_turn("kill_9", 1, 10, KILL_REACHED, |seed| {
        kill_trial(seed, victim())
    });
}

/// Each seed is a folder and five faults, drawn from the calls of a first run. Without strace
/// nothing is tested, and this is printed; the gate requires strace.
#[test]
fn strace_errors() {
    if let Some(why) = without_strace() {
        assert!(
            std::env::var_os("SILT_NEED_STRACE").is_none(),
            "strace_errors: {why}; install it (`apt-get install strace`)"
        );
        return println!("strace_errors: NOT TRIED: {why}");
    }
    seeds_in_turn("strace_errors", 1, 10, STRACE_REACHED, |seed| {
        strace_trial(seed, victim())
    });
}

/// Each seed fills a real file system at least six times. If none can be mounted, nothing is
/// tested, and this is printed.
#[test]
fn small_tmpfs() {
    on_tmpfs("small_tmpfs", TMPFS_MIB, |folder| {
        seeds_in_turn("small_tmpfs", 1, 2, TMPFS_REACHED, |seed| {
            tmpfs_trial(seed, victim(), folder)
        });
    });
}
