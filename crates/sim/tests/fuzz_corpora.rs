//! Row 7: every file of the fuzzers' corpora, and mutations of each from a seed. `SILT_SEEDS=N` scales the mutations to N percent, `SILT_SEED=K` takes
//! only the mutations of seed K.

#[path = "common/largest.rs"]
mod largest;

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use largest::{Largest, largest_bytes};
use siltstone_sim::fuzzing::{TARGETS, Target, mutate};
use siltstone_sim::rng::Rng;

#[global_allocator]
static LARGEST: Largest = Largest;

/// Inputs have less than a few hundred kilobytes, and a block expands to at most its limit: what asks for this much believed a length.
const ALLOCATION_BYTES_MAX: usize = 64 << 20;

/// Mutations of a target's whole corpus in the gate.
const MUTATIONS: u64 = 700;

/// Those of a target whose one run costs a store.
const SLOW_MUTATIONS: u64 = 150;

fn corpora() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpora")
}

/// The files of a target's corpus, by name.
fn corpus(target: &Target) -> BTreeMap<String, Vec<u8>> {
    let folder = corpora().join(target.name);
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

fn number(name: &str) -> Option<u64> {
    let value = std::env::var(name).ok()?;
    Some(
        value
            .parse()
            .unwrap_or_else(|_| panic!("{name}={value} is no number")),
    )
}

/// Runs one input; tells what failed and leaves it in a file.
fn survives(target: &Target, what: &str, bytes: &[u8]) -> bool {
    let before = largest_bytes();
    let run = catch_unwind(AssertUnwindSafe(|| (target.run)(bytes)));
    let asked = largest_bytes();
    let is_bounded = asked == before || asked < ALLOCATION_BYTES_MAX;
    if run.is_ok() && is_bounded {
        return true;
    }
    let left = std::env::temp_dir().join(format!("silt-fuzz-{}", target.name));
    let _ = std::fs::write(&left, bytes);
    eprintln!(
        "FAILED: {} with {what} (largest allocation {asked} bytes), left in {}",
        target.name,
        left.display()
    );
    false
}

#[test]
fn fuzz_corpora() {
    let percent = number("SILT_SEEDS").unwrap_or(100);
    let only = number("SILT_SEED");
    let mut failed = 0;
    for target in &TARGETS {
        let start = std::time::Instant::now();
        let corpus = corpus(target);
        assert!(!corpus.is_empty(), "{} has no corpus", target.name);
        let files: Vec<(&String, &Vec<u8>)> = corpus.iter().collect();
        for (name, bytes) in &files {
            failed += u64::from(!survives(target, name, bytes));
        }
        let is_slow = ["recovery", "repair", "directories", "salvage"].contains(&target.name);
        let mutations = if is_slow { SLOW_MUTATIONS } else { MUTATIONS };
        let count = (mutations * percent / 100).max(1);
        let asked = only.map(|seed| seed..seed + number("SILT_COUNT").unwrap_or(1));
        for seed in asked.unwrap_or(0..count) {
            let mut rng = Rng::new(seed ^ 0xC0);
            let (name, bytes) = *rng.pick(&files);
            let (_, other) = *rng.pick(&files);
            let mutated = mutate(&mut rng, bytes, other);
            let what = format!("mutation {seed} of {name} (SILT_SEED={seed})");
            failed += u64::from(!survives(target, &what, &mutated));
        }
        println!(
            "fuzz_corpora: {:16} {:3} files, {count} mutations, {:.1} s",
            target.name,
            files.len(),
            start.elapsed().as_secs_f64()
        );
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
