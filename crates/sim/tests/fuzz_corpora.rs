//! Row 7: every file of the fuzzers' corpora, and mutations of each from a seed. `SILT_SEEDS=N`
//! scales the mutations to N percent, `SILT_SEED=K` runs only the mutations of seed K.

#[path = "common/largest.rs"]
mod largest;

use largest::{Largest, largest_bytes};
use siltstone_sim::fuzzing::TARGETS;
use siltstone_sim::fuzzing::replay::{corpora, replay};

#[global_allocator]
static LARGEST: Largest = Largest;

/// Inputs have less than a few hundred kilobytes, and a block expands to at most its limit. An
/// allocation of this size means that a length was trusted.
const ALLOCATION_BYTES_MAX: usize = 64 << 20;

/// The number of mutations of a target's whole corpus in the gate.
const MUTATIONS: u64 = 700;

/// The same for a target that needs a store for each run.
const SLOW_MUTATIONS: u64 = 150;

#[test]
fn fuzz_corpora() {
    let mut failed = 0;
    for target in &TARGETS {
        let is_slow = ["recovery", "repair", "directories", "salvage"].contains(&target.name);
        let mutations = if is_slow { SLOW_MUTATIONS } else { MUTATIONS };
        failed += replay(target.name, mutations, |bytes| {
            let before = largest_bytes();
            (target.run)(bytes);
            let asked = largest_bytes();
            match asked == before || asked < ALLOCATION_BYTES_MAX {
                true => Ok(()),
                false => Err(format!("it asked for {asked} bytes at once")),
            }
        });
    }
    println!(
        "fuzz_corpora: the largest allocation had {} bytes",
        largest_bytes()
    );
    assert_eq!(failed, 0, "inputs that broke a promise");
}

#[test]
fn corpora_are_small_and_known() {
    let mut bytes = 0;
    for entry in std::fs::read_dir(corpora()).expect("the corpora") {
        let entry = entry.expect("a folder that can be read");
        let name = entry.file_name().into_string().expect("a name of ours");
        let of_cli = name.starts_with("cli_");
        assert!(
            of_cli || TARGETS.iter().any(|t| t.name == name),
            "a corpus of no target: {name}"
        );
        let files = std::fs::read_dir(entry.path()).expect("a folder");
        bytes += files
            .map(|f| f.and_then(|f| f.metadata()).expect("a file").len())
            .sum::<u64>();
    }
    assert!(bytes < 1 << 20, "the corpora have {bytes} bytes");
}
