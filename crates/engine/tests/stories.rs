//! The stories of `docs/stories.md` that a whole store can play: faults that it must survive. That
//! page also names the tests of the stories that are decided below the engine. The functions are in
//! `common`; `planted.rs` plays them with one rule of the store switched off.

mod common;

use std::collections::BTreeSet;

macro_rules! stories {
    ($($name:ident)*) => {
        $(#[test] fn $name() { common::run(stringify!($name)); })*

        #[test]
        fn every_story_is_a_test() {
            let listed: BTreeSet<_> = [$(stringify!($name)),*].into();
            let all: BTreeSet<_> = common::all().map(|(name, ..)| *name).collect();
            assert_eq!(listed, all);
        }
    };
}

stories! {
    a_flushed_batch_is_whole_after_power_loss
    a_recovery_that_loses_power_keeps_keyspaces_together
    replay_hides_no_newer_table
    a_crash_leaves_a_prefix_over_several_segments
    a_recycled_segment_shows_no_old_records
    nothing_is_replayed_behind_a_lost_record
    gaps_in_numbers_refuse_no_open
    no_sequence_number_is_given_twice
    no_edit_survives_without_the_log_before_it
    a_snapshot_beside_an_ingest_does_not_change
    no_write_is_acknowledged_after_a_failed_log_sync
    an_open_on_a_full_disk_loses_nothing
    a_crash_at_any_call_of_a_recovery_loses_nothing
    a_failed_table_sync_only_repeats_the_job
    a_failed_manifest_sync_poisons_until_reopened
    a_tombstone_waits_for_older_memtables
    a_run_installed_late_lies_below_newer_runs
    levels_do_not_order_numbers
    a_snapshot_beside_jobs_does_not_change
    a_key_is_found_while_jobs_drop_old_versions
    a_stalled_keyspace_stalls_no_other
    a_keyspace_dropped_while_used_keeps_its_files
    a_read_beside_a_drop_never_says_not_found
    a_new_keyspace_has_no_records_of_its_namesake
    range_deletes_hide_exactly_what_is_older
    a_pinned_view_holds_space_and_returns_it
    a_late_executor_changes_no_installed_table
    a_paused_writer_changes_nothing_after_a_takeover
    false_outcomes_are_not_installed
    an_executor_that_lies_is_suspended
    what_quick_compactions_keep_is_dropped_below
    a_compaction_of_other_contents_is_not_installed
    one_seed_gives_one_trace_of_calls
    synced_survives_power_loss
    a_drop_keeps_the_log_until_it_is_durable
    a_drop_keeps_the_log_until_its_edit_is_durable
    a_late_leader_meets_a_closed_store
    a_failed_sync_of_the_folder_poisons_the_store
    a_missing_start_segment_is_damage
    a_full_disk_passes
    dropping_makes_room
    a_pending_ingest_is_installed_when_there_is_room
    ingests_leave_no_holes
    a_drop_leaves_its_neighbours_ingest
    runs_of_several_keyspaces_meet
    spilled_ids_lie_above_ingested_ones
    a_dropped_keyspace_leaves_no_spilled_tables
    a_failed_group_does_not_keep_the_log
    an_ingest_of_a_dropped_keyspace_is_not_missed
    a_dropped_keyspace_that_only_the_log_knows_stays_dropped
    a_refused_memtable_fails_its_own_batches
    a_keyspace_dropped_before_its_create_found_room
    a_drop_without_room_succeeds_once_there_is_room
    keyspaces_come_and_go_on_a_full_disk
    full_disk_and_writers
    a_full_disk_is_reported_before_the_store_is_idle
    compactions_keep_to_the_rate
    a_slow_rate_delays_only_compactions
    deletes_give_space_back
    a_range_delete_gives_space_back
    a_range_delete_alone_gives_space_back
    a_range_delete_under_a_snapshot
    dropped_keyspaces_free_their_files
    obsolete_files_never_pile_up
    deletes_of_few_or_absent_keys_cost_little
    a_put_into_a_gap_is_seen_at_once
    a_close_in_a_job
    memory_keeps_to_its_budget
    memory_beyond_the_budget_is_used_and_counted
    a_failed_compaction_resumes
    nothing_is_adopted_after_a_failed_sync
    a_compaction_that_ends_between_attempts_leaves_nothing
    nothing_gets_between_two_attempts
    power_is_lost_in_a_second_attempt
    the_last_handle_in_a_job
    a_drop_in_a_job
    a_flush_beside_a_drop_keeps_its_promise
    the_sync_of_the_interval_waits_for_no_other_task
    a_flush_of_an_empty_memtable_syncs_what_came_before
    a_failed_sync_of_the_inherited_log_is_not_believed_later
    a_closed_log_is_whole_or_damaged
    a_killed_log_may_be_damaged_where_it_is_not_needed
    the_manifest_of_a_closed_store_is_whole_or_damaged
    a_log_of_a_copy_is_refused
    the_log_of_a_later_life_does_not_hide_a_loss
    a_close_is_cut_off_at_every_call
    a_closed_store_is_durable_in_every_mode
    a_close_on_a_full_disk
    a_close_while_data_waits_for_room
    a_drop_beside_a_flush_keeps_the_log
    the_log_does_not_start_behind_the_synced_position
    a_checkpoint_is_a_closed_store
    an_older_manifest_is_not_believed
    damage_is_still_skipped_on_a_full_disk
    a_close_deletes_obsolete_segments
    unreadable_bytes_that_are_not_needed_are_skipped
    a_repair_loses_nothing_without_saying_so
    closed_logs_are_changed_at_random
    killed_logs_are_changed_at_random
    every_fault_of_a_close
    a_sync_in_doubt_promises_nothing
    a_group_that_did_not_reach_the_log_is_nowhere
    names_wait_for_the_storage_and_poison_nothing
    a_leader_without_a_segment_changes_nothing
    a_caller_of_a_flush_gives_up_and_the_flush_goes_on
    a_close_does_not_wait_for_the_storage
    a_job_waits_for_the_storage_and_does_not_fail
    an_unreachable_storage_is_never_taken_for_damage
    a_stalled_writer_gives_up_and_writes_go_on_later
    a_stalled_writer_goes_on_when_the_storage_answers
    cancelled_stalls_end_at_once
    a_write_that_would_wait_too_long_writes_nothing
    a_busy_batch_is_in_none_of_its_keyspaces
    a_write_leaves_the_queue_at_its_deadline
    waits_for_a_leader_have_names
    a_stalled_keyspace_delays_no_other
    merges_do_not_keep_flushes_waiting
    compactions_leave_the_cores_to_writers_and_flushes
    writers_follow_the_progress_of_a_flush
    redirected_tables_survive
    values_in_the_log_are_read_where_they_are
    a_cursor_keeps_the_log_segments_that_it_reads
    a_crash_in_a_burst_loses_nothing
    a_flush_that_was_asked_for_is_not_deferred
    damage_under_a_value_in_the_log_is_named
    a_log_that_cannot_be_read_back_keeps_no_values
}
