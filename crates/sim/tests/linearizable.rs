//! Row 11: histories of overlapping operations have an order that explains all answers.
//! `SILT_SEEDS=N` scales to N percent, `SILT_SEED=K` runs one.

use siltstone_sim::coverage::Coverage;
use siltstone_sim::trials::{
    history_child, linearizable_threads_trial, linearizable_trial, seeds, seeds_in_turn,
    takeover_trial,
};

/// One unit: a history of a thousand operations on the simulated runtime, through kills, and one
/// with threads on a folder, in processes that are killed.
#[test]
fn linearizable() {
    let wanted = [
        "cut.not_seen",
        "cut.took_effect",
        "elsewhere.done",
        "history.beside_another",
        "life.ended",
        "life.killed",
        "life.killed_in_open",
        "life.power_lost",
        "op.batch",
        "op.delete",
        "op.delete_range",
        "op.get",
        "op.get_pinned",
        "op.multi_get",
        "op.put",
        "op.scan",
        "op.scan_back",
        "op.snapshot",
        "store.compaction_count",
        "store.flush_count",
        "threads.closed",
        "threads.killed",
    ];
    seeds_in_turn("linearizable", 1, 20, &wanted, |seed| {
        let mut coverage = linearizable_trial(seed);
        let folder = tempfile::tempdir().expect("a folder");
        let threads = linearizable_threads_trial(seed, folder.path(), "child_of_a_history");
        coverage.merge(&threads);
        coverage
    });
}

/// The process that [`linearizable`] starts and kills. By itself it does nothing.
#[test]
fn child_of_a_history() {
    history_child();
}

/// Row 12, fencing: the holder of a lease is paused at a storage call (each call in turn, for each
/// seed's scenario) while another takes over.
#[test]
fn schedules_takeover() {
    let wanted = ["first.was_refused", "paused", "history"];
    seeds("schedules_takeover", 1, 20, &wanted, |seed| {
        // Ten neighbouring seeds share a scenario, and together they cover all of its calls.
        let (scenario, share) = (seed / 10, seed % 10);
        let mut coverage = Coverage::default();
        let mut call = share;
        while let Some(more) = takeover_trial(scenario, call) {
            coverage.merge(&more);
            coverage.add("paused");
            call += 10;
        }
        coverage
    });
}
