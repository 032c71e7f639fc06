//! The trials in the gate's size. `SILT_SEEDS=N` scales them to N percent, `SILT_SEED=K` runs one seed.

use siltstone_sim::trials::{fault_trial, options_trial, power_trial, scenario, seeds};

#[test]
fn option_sets() {
    seeds("option_sets", 1, 100, &[], options_trial);
}

#[test]
fn power_loss() {
    seeds("power_loss", 1, 100, &[], power_trial);
}

#[test]
fn storage_errors() {
    seeds("storage_errors", 1, 100, &[], fault_trial);
}

#[test]
fn every_call() {
    seeds("every_call", 1, 2, &[], |seed| scenario(seed, 2));
}
