//! Row 7, the parsers of the command line: every file of their fuzzers' corpora, and mutations of
//! each from a seed. `SILT_SEEDS=N` scales the mutations to N percent, `SILT_SEED=K` takes only the
//! mutations of seed K; see `crates/sim/tests/fuzz_corpora.rs` for the parsers of files.

use siltstone_cli::fuzzing::TARGETS;
use siltstone_sim::fuzzing::replay::replay;

/// The number of mutations of a target's whole corpus in the gate.
const MUTATIONS: u64 = 500;

#[test]
fn fuzz_corpora() {
    let replayed = TARGETS.iter().map(|(name, run)| {
        replay(name, MUTATIONS, |bytes| {
            run(bytes);
            Ok(())
        })
    });
    assert_eq!(replayed.sum::<u64>(), 0, "inputs that broke a promise");
}
