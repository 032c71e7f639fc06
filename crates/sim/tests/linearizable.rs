//! Row 11: histories of operations beside each other have an order that explains all answers. `SILT_SEEDS=N` scales to N percent, `SILT_SEED=K`
//! runs one.

use siltstone_sim::trials::{linearizable_threads_trial, linearizable_trial, seeds};

/// One unit: a history of a thousand operations on the simulated runtime, through kills, and one of threads on a folder.
#[test]
fn linearizable() {
    let wanted = [
        "cut.not_seen",
        "cut.took_effect",
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
        "threads.life",
    ];
    seeds("linearizable", 1, 20, &wanted, |seed| {
        let mut coverage = linearizable_trial(seed);
        let folder = tempfile::tempdir().expect("a folder");
        coverage.merge(&linearizable_threads_trial(seed, folder.path()));
        coverage
    });
}
