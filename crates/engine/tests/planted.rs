//! Tests of the tests: each story must fail when the rule that guards it is switched off. Run it
//! with `cargo xtask planted --stories`: many of the faults are patches, and that command applies
//! them to a copy of the sources, where it builds this test.

mod common;

use siltstone::planted::{self, Bug};

/// A rule that is switched off, and a story that then fails.
const PLANTED: &[(Bug, &str)] = &[
    (
        Bug::CompactionsTakeAllTasks,
        "merges_do_not_keep_flushes_waiting",
    ),
    (
        Bug::ProgressIsForgotten,
        "writers_follow_the_progress_of_a_flush",
    ),
    (
        Bug::TakenBatchIsBusy,
        "a_write_leaves_the_queue_at_its_deadline",
    ),
    (
        Bug::FlushWithoutLogSync,
        "a_flushed_batch_is_whole_after_power_loss",
    ),
    (
        Bug::RecoverOneByOne,
        "a_recovery_that_loses_power_keeps_keyspaces_together",
    ),
    (Bug::ReplayIgnoresCovered, "replay_hides_no_newer_table"),
    (
        Bug::StopAtSegmentEnd,
        "a_crash_leaves_a_prefix_over_several_segments",
    ),
    (
        Bug::GoOnPastBrokenChain,
        "a_crash_leaves_a_prefix_over_several_segments",
    ),
    (
        Bug::NumberIsNotChecked,
        "a_recycled_segment_shows_no_old_records",
    ),
    (
        Bug::SyncNewestSegmentOnly,
        "nothing_is_replayed_behind_a_lost_record",
    ),
    (
        Bug::GoOnPastBadRecord,
        "nothing_is_replayed_behind_a_lost_record",
    ),
    (Bug::SyncMarkIsNumber, "gaps_in_numbers_refuse_no_open"),
    (Bug::ReuseNumbers, "no_sequence_number_is_given_twice"),
    (
        Bug::EditBeforeLogSync,
        "no_edit_survives_without_the_log_before_it",
    ),
    (
        Bug::IngestVisibleAfterEdit,
        "a_snapshot_beside_an_ingest_does_not_change",
    ),
    (
        Bug::LogSyncIsRepeated,
        "no_write_is_acknowledged_after_a_failed_log_sync",
    ),
    (
        Bug::ReplayWithoutRoom,
        "an_open_on_a_full_disk_loses_nothing",
    ),
    (
        Bug::DeleteBeforeManifest,
        "a_crash_at_any_call_of_a_recovery_loses_nothing",
    ),
    (
        Bug::TableSyncPoisons,
        "a_failed_table_sync_only_repeats_the_job",
    ),
    (
        Bug::ManifestSyncIsRepeated,
        "a_failed_manifest_sync_poisons_until_reopened",
    ),
    (
        Bug::IgnoreUnsettled,
        "a_tombstone_waits_for_older_memtables",
    ),
    (
        Bug::MemtablesAboveRuns,
        "a_run_installed_late_lies_below_newer_runs",
    ),
    (Bug::OlderByNumber, "levels_do_not_order_numbers"),
    (
        Bug::JobKeepsNewestOnly,
        "a_snapshot_beside_jobs_does_not_change",
    ),
    (
        Bug::NumberBeforeView,
        "a_key_is_found_while_jobs_drop_old_versions",
    ),
    (Bug::StallInQueue, "a_stalled_keyspace_stalls_no_other"),
    (
        Bug::DeleteHeldTables,
        "a_keyspace_dropped_while_used_keeps_its_files",
    ),
    (
        Bug::CheckBeforePin,
        "a_read_beside_a_drop_never_says_not_found",
    ),
    (
        Bug::ReuseKeyspaceIds,
        "a_new_keyspace_has_no_records_of_its_namesake",
    ),
    (
        Bug::FilterBeforeRangeDeletes,
        "range_deletes_hide_exactly_what_is_older",
    ),
    (
        Bug::DeleteHeldTables,
        "a_pinned_view_holds_space_and_returns_it",
    ),
    (Bug::KeepForEver, "a_pinned_view_holds_space_and_returns_it"),
    (
        Bug::OneAttemptForAll,
        "a_late_executor_changes_no_installed_table",
    ),
    (
        Bug::IgnoreLostLease,
        "a_paused_writer_changes_nothing_after_a_takeover",
    ),
    (Bug::BelieveOutcomes, "false_outcomes_are_not_installed"),
    (Bug::OfferToLiars, "an_executor_that_lies_is_suspended"),
    (
        Bug::OneRefusalFailsAll,
        "a_refused_memtable_fails_its_own_batches",
    ),
    (Bug::UnseededOrder, "one_seed_gives_one_trace_of_calls"),
    (Bug::AcknowledgeBeforeSync, "synced_survives_power_loss"),
    (
        Bug::DropDoesNotPin,
        "a_drop_keeps_the_log_until_it_is_durable",
    ),
    (
        Bug::UnpinnedOnceSynced,
        "a_drop_keeps_the_log_until_its_edit_is_durable",
    ),
    (Bug::CloseOutsideRoles, "a_late_leader_meets_a_closed_store"),
    (
        Bug::FolderSyncIsHarmless,
        "a_failed_sync_of_the_folder_poisons_the_store",
    ),
    (
        Bug::MissingStartIsEmpty,
        "a_missing_start_segment_is_damage",
    ),
    (Bug::NoSpaceIsForGood, "a_full_disk_passes"),
    (Bug::DropNeedsRoom, "an_open_on_a_full_disk_loses_nothing"),
    (
        Bug::DeleteOutputsOfJobs,
        "an_open_on_a_full_disk_loses_nothing",
    ),
    (
        Bug::PendingStaysUnsettled,
        "a_pending_ingest_is_installed_when_there_is_room",
    ),
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
    (Bug::GapCutLate, "a_put_into_a_gap_is_seen_at_once"),
    (Bug::FailedGroupPins, "a_failed_group_does_not_keep_the_log"),
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
        "a_killed_log_may_be_damaged_where_it_is_not_needed",
    ),
    (
        Bug::UnreadableIsNeeded,
        "unreadable_bytes_that_are_not_needed_are_skipped",
    ),
    (
        Bug::OlderManifestIsBelieved,
        "an_older_manifest_is_not_believed",
    ),
    (
        Bug::LostStartIsKept,
        "damage_is_still_skipped_on_a_full_disk",
    ),
    (
        Bug::ObsoleteStaysAtClose,
        "a_close_deletes_obsolete_segments",
    ),
    (Bug::UnsyncedIsDurable, "a_sync_in_doubt_promises_nothing"),
    (
        Bug::OutageFailsNames,
        "names_wait_for_the_storage_and_poison_nothing",
    ),
    (
        Bug::UnreachableAppendCounts,
        "a_group_that_did_not_reach_the_log_is_nowhere",
    ),
    (Bug::RedirectedAreOrphans, "redirected_tables_survive"),
    (Bug::RedirectedRunIsMisplaced, "redirected_tables_survive"),
    (
        Bug::RedirectedFolderIsNotSynced,
        "redirected_tables_survive",
    ),
    (
        Bug::PinsAreIgnored,
        "a_cursor_keeps_the_log_segments_that_it_reads",
    ),
];

/// Whether these are the sources with all patches of `xtask/planted`: then the root has this file.
fn all_are_planted() -> bool {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    std::path::Path::new(root).join("PLANTED").is_file()
}

/// This is one test because the switch is global to the process. `SILT_PLANTED_ONLY` in the
/// environment may name some faults, with commas between them.
#[test]
fn every_story_fails_without_its_rule() {
    assert!(
        all_are_planted(),
        "these sources lack the faults that are patches: use `cargo xtask planted --stories`"
    );
    let only = std::env::var("SILT_PLANTED_ONLY").unwrap_or_default();
    let is_chosen = |bug: &Bug| only.is_empty() || only.split(',').any(|n| n == format!("{bug:?}"));
    let mut survived = Vec::new();
    for (bug, story) in PLANTED.iter().filter(|(bug, _)| is_chosen(bug)) {
        planted::set(*bug);
        // A story that ends with a panic in the scheduler has failed as well.
        let result = std::panic::catch_unwind(|| common::play(story))
            .unwrap_or_else(|_| Err("the run itself panicked".into()));
        planted::set(Bug::None);
        match result {
            Err(how) => println!("{bug:?}: fails: {}", how.lines().next().unwrap_or_default()),
            Ok(()) => survived.push(format!("{bug:?} is not noticed by {story}")),
        }
    }
    assert!(survived.is_empty(), "{survived:#?}");
}
