//! Runs the fuzzers' corpora on stable Rust: every file, and mutations of them from a seed.
//!
//! [`replay`] runs one target. It prints failures with the command that repeats them, and writes
//! their bytes to a file.
//!
//! Invariants: `SILT_SEEDS=N` scales the mutations to N percent; `SILT_SEED=K` runs those of seed K
//! alone, and with `SILT_COUNT=M` those of M seeds from K on.
//!
//! Threading: a target runs on the caller's thread.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::Instant;

use super::mutate;
use crate::rng::Rng;

/// The folder of the corpora, which has a folder for each target.
pub fn corpora() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpora")
}

/// The files of a target's corpus, by name.
fn corpus(target: &str) -> BTreeMap<String, Vec<u8>> {
    let folder = corpora().join(target);
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

/// Passes to `run` every file of the corpus of `target`, and `mutations` inputs made of them. An
/// error of `run`, or a panic, is a failure. Returns the number of failures.
///
/// # Panics
/// If there is no corpus, or it cannot be read.
pub fn replay(target: &str, mutations: u64, run: impl Fn(&[u8]) -> Result<(), String>) -> u64 {
    let start = Instant::now();
    let corpus = corpus(target);
    assert!(!corpus.is_empty(), "{target} has no corpus");
    let survives = |what: &str, bytes: &[u8]| {
        let why = match catch_unwind(AssertUnwindSafe(|| run(bytes))) {
            Ok(Ok(())) => return true,
            Ok(Err(why)) => why,
            Err(_) => "it panicked".to_string(),
        };
        let left = std::env::temp_dir().join(format!("silt-fuzz-{target}"));
        let _ = std::fs::write(&left, bytes);
        eprintln!(
            "FAILED: {target} with {what}: {why}; the bytes are in {}",
            left.display()
        );
        false
    };
    let files: Vec<(&String, &Vec<u8>)> = corpus.iter().collect();
    let mut failed = 0;
    for (name, bytes) in &files {
        failed += u64::from(!survives(name, bytes));
    }
    let percent = number("SILT_SEEDS").unwrap_or(100);
    let count = (mutations * percent / 100).max(1);
    let asked = number("SILT_SEED").map(|seed| seed..seed + number("SILT_COUNT").unwrap_or(1));
    for seed in asked.unwrap_or(0..count) {
        let mut rng = Rng::new(seed ^ 0xC0);
        let (name, bytes) = *rng.pick(&files);
        let (_, other) = *rng.pick(&files);
        let mutated = mutate(&mut rng, bytes, other);
        let what = format!("mutation {seed} of {name} (SILT_SEED={seed})");
        failed += u64::from(!survives(&what, &mutated));
    }
    println!(
        "fuzz_corpora: {target:16} {:3} files, {count} mutations, {:.1} s",
        files.len(),
        start.elapsed().as_secs_f64()
    );
    failed
}
