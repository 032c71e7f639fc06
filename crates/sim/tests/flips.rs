//! Row 6: bytes at rest that change. `SILT_SEEDS=N` scales to N percent, `SILT_SEED=K` runs one
//! seed's store, and `SILT_FLIP=N` only its copy N.

#[path = "common/largest.rs"]
mod largest;

use largest::{Largest, largest_bytes};
use siltstone_sim::trials::{FLIPS, flip_trial, seeds};

#[global_allocator]
static LARGEST: Largest = Largest;

/// No file here has more than a few hundred kilobytes, and no table expands to more. An allocation
/// of this size means that a damaged length was trusted.
const ALLOCATION_BYTES_MAX: usize = 32 << 20;

/// Every kind of file must meet every kind of damage that its size allows, and give every answer
/// that is allowed.
fn wanted() -> Vec<String> {
    let single = ["bit", "byte", "noise", "cut", "garbage"];
    let zeros = ["zeroed_sector", "zeroed_page"];
    let pages = ["swapped_pages", "duplicated_page"];
    let files: [(&str, bool, &[&str]); 9] = [
        ("log", true, &["refused", "history_ends", "right"]),
        ("manifest", true, &["refused", "right"]),
        ("table", true, &["error_on_read", "right"]),
        ("checkpoint.table", true, &["error_on_read"]),
        ("checkpoint.manifest", true, &["refused", "right"]),
        ("open.table", true, &["error_on_read", "right"]),
        ("open.manifest", true, &["refused_later", "right"]),
        ("ingest.table", true, &["refused"]),
        // One page, and less than two sectors.
        ("current", false, &["refused"]),
    ];
    let mut all = Vec::new();
    for (file, has_pages, outcomes) in files {
        let paged = pages.iter().filter(|_| has_pages);
        for what in single.iter().chain(&zeros).chain(paged).chain(outcomes) {
            all.push(format!("flip.{file}.{what}"));
        }
    }
    for one in [
        "log.gone",
        "log.passed",
        "log.of_closed",
        "log.closed_refused",
        "manifest.gone",
        "table.gone",
        "current.gone",
        "checkpoint.table.gone",
        "checkpoint.manifest.gone",
        "directories.refused",
        "owner.refused",
        "stats.right",
        "reserve.right",
        "open.log.right",
        "open.verify_finds_damage",
        "compacted",
        "opened_again",
    ] {
        all.push(format!("flip.{one}"));
    }
    all
}

#[test]
fn bit_flips() {
    let wanted = wanted();
    let wanted: Vec<&str> = wanted.iter().map(String::as_str).collect();
    seeds("bit_flips", 1, 10_000 / FLIPS, &wanted, flip_trial);
    let largest_bytes = largest_bytes();
    println!("bit_flips: the largest allocation had {largest_bytes} bytes");
    assert!(
        largest_bytes < ALLOCATION_BYTES_MAX,
        "something asked for {largest_bytes} bytes at once"
    );
}

#[test]
fn seeds_that_failed() {
    // Two pages of a log were swapped, one below its start and one behind its end; the trial
    // treated everything between them as damaged.
    for seed in [117, 328] {
        flip_trial(seed);
    }
}
