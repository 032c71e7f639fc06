//! The trials with real processes in the gate's size: rows 1, 4 and 5. `SILT_SEEDS=N` scales them to N percent, `SILT_SEED=K` runs one seed.

#![cfg(target_os = "linux")]

use std::path::Path;

use siltstone_sim::process::{KILL_REACHED, kill_trial};
use siltstone_sim::trials::seeds;

fn victim() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_victim"))
}

/// Each seed is a folder and five cycles.
#[test]
fn kill_9() {
    seeds("kill_9", 1, 10, KILL_REACHED, |seed| {
        kill_trial(seed, victim())
    });
}
