//! The trials in the gate's size. `SILT_SEEDS=N` scales them to N percent, `SILT_SEED=K` runs one seed.

use siltstone_sim::trials::{
    fault_trial, options_trial, power_trial, repair_trial, scenario, seeds,
};

/// What random operations under random options must reach.
const REACHED: &[&str] = &[
    "batch.over_keyspaces",
    "cursor.older_than_the_store",
    "cursor.refreshed",
    "delay.L0Slowdown",
    "delay.L0Stop",
    "delay.LogBytes",
    "delay.SealedMemtables",
    "error.keyspace_dropped",
    "ingest.done",
    "keyspace.created",
    "keyspace.dropped",
    "life.closed",
    "life.killed",
    "life.power_lost",
    "memtable.held",
    "op.CompactRange",
    "op.DeleteRange",
    "op.FlushStore",
    "op.MultiGet",
    "op.PauseCompaction",
    "op.ReadSnapshot",
    "op.Scan",
    "op.StepCursor",
    "op.SyncLog",
    "store.compaction_count",
    "store.deleted_file_count",
    "store.discarded_log_bytes",
    "store.dropped_covered_count",
    "store.dropped_fragment_count",
    "store.dropped_shadowed_count",
    "store.dropped_tombstone_count",
    "store.flush_count",
    "store.intra_l0_count",
    "store.manual_count",
    "store.out_of_order_install_count",
    "store.replayed_record_count",
    "store.trivial_move_count",
    "deepest_level.3",
];

#[test]
fn option_sets() {
    seeds("option_sets", 1, 600, REACHED, options_trial);
}

/// Seeds that once failed, each for a fault of the engine's that is mended: 4821 a flush overtook the create edit of its keyspace (as
/// did 4398 under power loss, 5504 and 7230 under storage errors); 6873 a drop on a full disk that failed had dropped all the same;
/// 16954 a sync of the folder that failed for want of room was made again;
/// 19928 and 23530 a drop without a record showed before its edit was durable.
/// A change of the generator makes other runs of them; then they are only more seeds.
#[test]
fn seeds_that_failed() {
    options_trial(4821);
    power_trial(4398);
    for seed in [
        534, 5504, 6873, 7230, 8751, 9328, 13_193, 16_954, 19_928, 23_530,
    ] {
        fault_trial(seed);
    }
}

#[test]
fn power_loss() {
    let wanted = [
        "crash.recovered",
        "crash.recovered_twice",
        "crash.recovered_after_more_work",
        "crash.pages_kept",
        "crash.pages_lost",
        "crash.pages_torn",
        "crash.pages_older",
        "crash.holes",
        "crash.lengths_lost",
        "crash.creates_lost",
        "crash.deletes_lost",
        "crash.names_reordered",
        "crash.names_without_bytes",
    ];
    seeds("power_loss", 1, 500, &wanted, power_trial);
}

#[test]
fn storage_errors() {
    let wanted = [
        "fault.fired",
        "fault.open_refused",
        "fault.passed",
        "fault.poisoned",
        "fault.reopened",
        "fault.error.io",
        "fault.error.no_space",
        "fault.error.poisoned",
    ];
    seeds("storage_errors", 1, 1000, &wanted, fault_trial);
}

#[test]
fn every_call() {
    let wanted = ["scenario.recovered", "scenario.recovered_twice"];
    // 4 seeds in the gate: a fifth of the pairs; the 40 of `cargo xtask trials` take all.
    let reached = seeds("every_call", 1, 4, &wanted, |seed| scenario(seed, 20));
    println!(
        "every_call: {} of {} pairs of a crash and a crash of its recovery",
        reached.of("scenario.recovered_twice"),
        reached.of("scenario.pairs")
    );
}

/// Random damage: five copies of a store a seed, four of them damaged.
#[test]
fn repairs() {
    let wanted = [
        "repair.damaged.current",
        "repair.damaged.log",
        "repair.damaged.manifest",
        "repair.damaged.table",
        "repair.left_out",
        "repair.log_broken",
        "repair.lost.blocks",
        "repair.lost.range deletes",
        "repair.lost.table",
        "repair.lost_nothing",
        "repair.suspect.log hole",
        "repair.suspect.lost",
        "repair.suspect.manifest",
        "repair.unused",
    ];
    seeds("repairs", 1, 250, &wanted, repair_trial);
}
