//! Tests of the tests: with its rule switched off, each story goes red. `cargo test -p siltstone --features planted --test planted -- --nocapture`
//! prints how.

mod common;

use siltstone::planted::{self, Bug};

/// A rule, and a story that needs it.
const PLANTED: &[(Bug, &str)] = &[
    (Bug::FlushWithoutLogSync, "story_01_half_a_batch"),
    (Bug::RecoverOneByOne, "story_02_half_a_recovery"),
    (
        Bug::ReplayIgnoresCovered,
        "story_03_replay_over_a_newer_table",
    ),
    (Bug::StopAtSegmentEnd, "story_04_the_end_of_a_segment"),
    (Bug::GoOnPastBrokenChain, "story_04_the_end_of_a_segment"),
    (Bug::NumberIsNotChecked, "story_05_a_recycled_name"),
    (
        Bug::SyncNewestSegmentOnly,
        "story_06_the_first_record_is_lost",
    ),
    (Bug::GoOnPastBadRecord, "story_06_the_first_record_is_lost"),
    (Bug::SyncMarkIsNumber, "story_07_number_against_position"),
    (Bug::ReuseNumbers, "story_08_a_number_used_twice"),
    (
        Bug::EditBeforeLogSync,
        "story_09_edits_that_overtake_the_log",
    ),
    (
        Bug::IngestVisibleAfterEdit,
        "story_09_a_snapshot_beside_an_ingest",
    ),
    (
        Bug::LogSyncIsRepeated,
        "story_10_a_sync_error_reported_once",
    ),
    (Bug::ReplayWithoutRoom, "story_11_a_full_disk_at_open"),
    (Bug::DeleteBeforeManifest, "story_12_crash_during_recovery"),
    (Bug::TableSyncPoisons, "story_13_a_table_sync_that_fails"),
    (
        Bug::ManifestSyncIsRepeated,
        "story_13_a_manifest_sync_that_fails",
    ),
    (
        Bug::IgnoreUnsettled,
        "story_14_a_tombstone_passes_an_older_memtable",
    ),
    (Bug::MemtablesAboveRuns, "story_15_a_run_comes_in_below"),
    (Bug::OlderByNumber, "story_16_levels_do_not_order_numbers"),
    (Bug::JobKeepsNewestOnly, "story_17_a_snapshot_between"),
    (Bug::NumberBeforeView, "story_17_number_and_view"),
    (Bug::StallInQueue, "story_18_one_stalled_keyspace"),
    (Bug::DeleteHeldTables, "story_19_dropped_while_used"),
    (Bug::CheckBeforePin, "story_19_dropped_under_a_read"),
    (Bug::ReuseKeyspaceIds, "story_19_the_same_name_again"),
    (Bug::FilterBeforeRangeDeletes, "story_20_range_deletes"),
    (Bug::DeleteHeldTables, "story_21_a_pinned_view"),
    (Bug::KeepForEver, "story_21_a_pinned_view"),
    (Bug::OneAttemptForAll, "story_22_the_late_worker"),
    (Bug::IgnoreLostLease, "story_23_the_paused_host"),
    (Bug::BelieveOutcomes, "story_24_lies"),
    (Bug::OfferToLiars, "a_liar_is_set_aside"),
    (
        Bug::OneRefusalFailsAll,
        "a_refused_memtable_fails_its_own_batches",
    ),
    (Bug::UnseededOrder, "story_28_one_seed_one_run"),
    (Bug::AcknowledgeBeforeSync, "synced_survives_power_loss"),
    (
        Bug::DropDoesNotPin,
        "a_drop_keeps_the_log_until_it_is_durable",
    ),
    (Bug::CloseOutsideRoles, "a_late_leader_meets_a_closed_store"),
    (
        Bug::FolderSyncIsHarmless,
        "a_failed_sync_of_the_folder_poisons_whoever_asked",
    ),
    (
        Bug::MissingStartIsEmpty,
        "a_missing_start_segment_is_damage",
    ),
    (Bug::NoSpaceIsForGood, "a_full_disk_passes"),
    (Bug::DropNeedsRoom, "story_11_a_full_disk_at_open"),
    (Bug::DeleteOutputsOfJobs, "story_11_a_full_disk_at_open"),
    (Bug::PendingStaysUnsettled, "a_pending_ingest_settles"),
    (Bug::HealthWithoutLock, "full_disk_and_writers"),
    (Bug::KeepCancelledOutput, "a_close_in_a_job"),
    (Bug::KeepCancelledOutput, "a_drop_in_a_job"),
    (Bug::IngestLeavesHole, "ingests_leave_no_holes"),
    (
        Bug::DropTakesIngestAlong,
        "a_drop_leaves_its_neighbours_ingest",
    ),
    (
        Bug::SpillIdsFromManifest,
        "spilled_ids_lie_above_ingested_ones",
    ),
    (Bug::DropUnderSnapshots, "a_range_delete_under_a_snapshot"),
    (Bug::FailedGroupPins, "a_failed_group_pins_nothing"),
    (
        Bug::CheckIngestsAtOnce,
        "an_ingest_of_a_dropped_keyspace_is_not_missed",
    ),
    (
        Bug::CloseWithoutSync,
        "a_closed_store_is_durable_in_every_mode",
    ),
    (Bug::CloseWithoutEnd, "a_closed_log_is_whole_or_damaged"),
    (Bug::CloseEndTooFar, "a_close_is_cut_off_at_every_call"),
    (
        Bug::CloseWithoutManifestEnd,
        "the_manifest_of_a_closed_store_is_whole_or_damaged",
    ),
    (Bug::OtherChainIsBelieved, "a_log_of_a_copy_is_refused"),
    (
        Bug::ManifestEndIsIgnored,
        "the_manifest_of_a_closed_store_is_whole_or_damaged",
    ),
    (Bug::ClosedEndIsNotAsked, "a_closed_log_is_whole_or_damaged"),
    (
        Bug::ClosedIsNotAsked,
        "a_killed_log_passes_what_is_not_needed",
    ),
    (
        Bug::UnreadableIsNeeded,
        "what_cannot_be_read_and_is_not_needed",
    ),
    (
        Bug::OlderManifestIsBelieved,
        "an_older_manifest_is_not_believed",
    ),
    (Bug::LostStartIsKept, "damage_stays_passed_on_a_full_disk"),
    (
        Bug::ObsoleteStaysAtClose,
        "a_close_deletes_what_nothing_needs",
    ),
];

/// One test, because the switch is one for the process.
#[test]
fn every_story_goes_red_without_its_rule() {
    let only = std::env::var("SILT_PLANTED_ONLY").unwrap_or_default();
    let mut survived = Vec::new();
    for (bug, story) in PLANTED
        .iter()
        .filter(|(bug, _)| format!("{bug:?}").contains(&only))
    {
        planted::set(*bug);
        // A story that ends by a panic in the scheduler is red as well.
        let result = std::panic::catch_unwind(|| common::play(story))
            .unwrap_or_else(|_| Err("the run itself panicked".into()));
        planted::set(Bug::None);
        match result {
            Err(how) => println!("{bug:?}: red: {}", how.lines().next().unwrap_or_default()),
            Ok(()) => survived.push(format!("{bug:?} is not noticed by {story}")),
        }
    }
    assert!(survived.is_empty(), "{survived:#?}");
}
