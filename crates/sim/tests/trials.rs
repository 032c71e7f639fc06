//! The trials in the gate's size. `SILT_SEEDS=N` scales them to N percent, `SILT_SEED=K` runs one seed.

use siltstone_sim::trials::{
    Share, Story, every_fault, fault_trial, options_trial, power_trial, reader_at_every_call,
    repair_at_every_call, repair_trial, scenario, seeds,
};

/// What random operations under random options must reach.
const REACHED: &[&str] = &[
    "approximate.shown",
    "approximate.uncertain",
    "batch.over_keyspaces",
    "checkpoint.done",
    "checkpoint.looked_at_again",
    "checkpoint.tables_linked",
    "checkpoint.tables_written",
    "checkpoint.while_written",
    "cursor.older_than_the_store",
    "cursor.refreshed",
    "deepest_level.3",
    "delay.L0Slowdown",
    "delay.L0Stop",
    "delay.LogBytes",
    "delay.SealedMemtables",
    "error.keyspace_dropped",
    "destroy.gone",
    "destroy.whole",
    "export.done",
    "export.in_another_store",
    "export.ingested",
    "export.several_tables",
    "ingest.by_Copy",
    "ingest.by_Link",
    "ingest.by_Move",
    "ingest.done",
    "ingest.files",
    "ingest.over_keyspaces",
    "ingest.overlapping",
    "keyspace.created",
    "keyspace.dropped",
    "life.closed",
    "life.killed",
    "life.power_lost",
    "look.reader",
    "look.repair",
    "look.repair_strict",
    "look.repair_sure",
    "memtable.held",
    "multi_get.while_written",
    "op.Approximate",
    "op.CompactRange",
    "op.DeleteRange",
    "op.FlushStore",
    "op.MultiGet",
    "op.PauseCompaction",
    "op.Prefix",
    "op.ReadSnapshot",
    "op.Scan",
    "op.StepCursor",
    "op.SyncLog",
    "op.Verify",
    "prefix.from_both_ends",
    "settings.keyspace",
    "settings.store",
    "settings.unset",
    "store.compaction_count",
    "store.delete_compaction_count",
    "store.deleted_file_count",
    "store.discarded_log_bytes",
    "store.dropped_covered_count",
    "store.dropped_fragment_count",
    "store.dropped_shadowed_count",
    "store.dropped_table_count",
    "store.dropped_tombstone_count",
    "store.flush_count",
    "store.intra_l0_count",
    "store.manual_count",
    "store.out_of_order_install_count",
    "store.replayed_record_count",
    "store.trivial_move_count",
    "verify.tables",
];

#[test]
fn option_sets() {
    seeds("option_sets", 1, 600, REACHED, options_trial);
}

/// Seeds that once failed, each for a fault of the engine's that is mended: 4821 a flush overtook the create edit of its keyspace (as
/// did 4398 under power loss, 5504 and 7230 under storage errors); 6873 a drop on a full disk that failed had dropped all the same;
/// 16954 a sync of the folder that failed for want of room was made again;
/// 19928 and 23530 a drop without a record showed before its edit was durable.
/// `every_call_fails` 76: the manifest that a pointer may name was deleted when the pointer could not be read back.
/// A change of the generator makes other runs of them; then they are only more seeds.
#[test]
fn seeds_that_failed() {
    options_trial(4821);
    power_trial(4398);
    for seed in [
        534, 1861, 4776, 5504, 6873, 7230, 8751, 8940, 9328, 13_193, 16_954, 19_928, 23_530,
    ] {
        fault_trial(seed);
    }
    every_fault_of_seed(76);
    repair_trial(1155);
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

/// 4 seeds in the gate: a fifth of the calls and pairs of each story; the 40 of `cargo xtask trials` take all, twice.
#[test]
fn every_call() {
    let wanted = [
        "scenario.recovered",
        "scenario.recovered_twice",
        "scenario.checkpoint_not_begun",
        "scenario.checkpoint_taken_up",
        "scenario.checkpoint_whole",
    ];
    let reached = seeds("every_call", 1, 20, &wanted, |seed| {
        let story = Story::ALL[seed as usize % Story::ALL.len()];
        let share = Share {
            calls: 10,
            pairs: 100,
        };
        scenario(seed / Story::ALL.len() as u64, story, share)
    });
    println!(
        "every_call: {} of {} pairs of a crash and a crash of its recovery",
        reached.of("scenario.recovered_twice"),
        reached.of("scenario.pairs")
    );
}

/// Each seed takes one story and one storage.
#[test]
fn every_call_fails() {
    let wanted = [
        "every_fault.fired",
        "every_fault.reopened",
        "every_fault.append",
        "every_fault.checkpoint_taken_up",
        "every_fault.create",
        "every_fault.delete",
        "every_fault.import",
        "every_fault.list",
        "every_fault.open",
        "every_fault.read",
        "every_fault.replace",
        "every_fault.sync",
        "every_fault.sync_dir",
    ];
    seeds("every_call_fails", 1, 32, &wanted, every_fault_of_seed);
}

fn every_fault_of_seed(seed: u64) -> siltstone_sim::coverage::Coverage {
    let plays = [
        (Story::Load, 's'),
        (Story::Ingest, 's'),
        (Story::Ingest, 'x'),
        (Story::Keyspaces, 's'),
        (Story::Checkpoint, 's'),
        (Story::Checkpoint, 't'),
        (Story::Export, 's'),
        (Story::Export, 'x'),
    ];
    let (story, place) = plays[seed as usize % plays.len()];
    every_fault(seed / plays.len() as u64, story, place, 20)
}

#[test]
fn every_call_of_a_repair() {
    let wanted = [
        "repair_crash.made_again",
        "repair_crash.whole",
        "repair_fault.told",
    ];
    let trial = |seed| repair_at_every_call(seed, 10);
    seeds("every_call_of_a_repair", 1, 20, &wanted, trial);
}

#[test]
fn every_call_of_a_reader() {
    let wanted = [
        "reader_fault.fired",
        "reader_fault.told_by_a_read",
        "reader_fault.told_by_open",
    ];
    let trial = |seed| reader_at_every_call(seed, 10);
    seeds("every_call_of_a_reader", 1, 20, &wanted, trial);
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
