//! Row 7, the parsers of the command line: every file of their fuzzers' corpora, and mutations of each from a seed. `SILT_SEEDS=N` scales the mutations to
//! N percent; see `crates/sim/tests/fuzz_corpora.rs` for the parsers of files.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use siltstone_cli::fuzzing::TARGETS;
use siltstone_sim::fuzzing::mutate;
use siltstone_sim::rng::Rng;

/// Mutations of a target's whole corpus in the gate.
const MUTATIONS: u64 = 500;

fn corpus(target: &str) -> BTreeMap<String, Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../fuzz/corpora")
        .join(target);
    let entries =
        std::fs::read_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    entries
        .map(|entry| {
            let entry = entry.expect("a folder that can be read");
            let name = entry.file_name().into_string().expect("a name of ours");
            (name, std::fs::read(entry.path()).expect("a file of ours"))
        })
        .collect()
}

fn survives(name: &str, run: fn(&[u8]), what: &str, bytes: &[u8]) -> bool {
    if catch_unwind(AssertUnwindSafe(|| run(bytes))).is_ok() {
        return true;
    }
    let left = std::env::temp_dir().join(format!("silt-fuzz-{name}"));
    let _ = std::fs::write(&left, bytes);
    eprintln!("FAILED: {name} with {what}, left in {}", left.display());
    false
}

#[test]
fn fuzz_corpora() {
    let percent = std::env::var("SILT_SEEDS").map_or(100, |n| n.parse().expect("a number"));
    let mut failed = 0;
    for (name, run) in TARGETS {
        let corpus = corpus(name);
        assert!(!corpus.is_empty(), "{name} has no corpus");
        let files: Vec<(&String, &Vec<u8>)> = corpus.iter().collect();
        for (file, bytes) in &files {
            failed += u64::from(!survives(name, run, file, bytes));
        }
        let count = (MUTATIONS * percent / 100).max(1);
        for seed in 0..count {
            let mut rng = Rng::new(seed ^ 0xC1);
            let (file, bytes) = *rng.pick(&files);
            let (_, other) = *rng.pick(&files);
            let mutated = mutate(&mut rng, bytes, other);
            failed += u64::from(!survives(
                name,
                run,
                &format!("mutation {seed} of {file}"),
                &mutated,
            ));
        }
        println!(
            "fuzz_corpora: {name:16} {:3} files, {count} mutations",
            files.len()
        );
    }
    assert_eq!(failed, 0, "inputs that broke a promise");
}
