//! The stories that the design must survive, each as a test with its number. The stories themselves are in `common`; `planted.rs` plays them
//! with their rules switched off.
//!
//! Where a story's rule lies below the engine, its test does too:
//!
//! | story | tests elsewhere |
//! | --- | --- |
//! | 4, 5, 6, 7 | `log_damage.rs` (`story_4_...` to `story_7_...`), `log_crash.rs` |
//! | 10 | `log_faults.rs`: `story_10_a_sync_error_reported_once_is_told_to_everyone` |
//! | 13 | `manifest_damage.rs`, `log_faults.rs`: `every_single_failure_either_passes_or_poisons` |
//! | 14, 15, 16 | `src/compaction/pick_tests.rs`, `crates/sim/src/trials/picks.rs` |
//! | 20 | `crates/table/tests/exec.rs`: `no_reader_sees_a_difference` |
//! | 24 | `crates/table/src/job/verify.rs` and `crates/table/tests/exec.rs` |
//! | 25 (the job that changed) | `crates/table/src/job`: a job's identity; `crates/table/tests/exec_resumption.rs`: another job's tables are not adopted |
//! | 66, 67 (RFC 3) | `common/resumption.rs`, `crates/table/tests/exec_resumption.rs` |
//! | 26 (zeros from a mapping) | `crates/storage/src/files/tests.rs`: `a_lost_page_reads_as_zeros_and_marks_the_map`; at engine level `errors.rs`, a failed map |
//! | 27 (a lock across a hand-over) | `crates/storage/tests/sim_child.rs`: `a_plain_mutex_over_a_storage_call_is_caught_by_the_watchdog` (it aborts the process) |
//! | 28 | `crates/storage/tests/sim_child.rs`: `a_seed_replays_in_another_process` |

mod common;

macro_rules! stories {
    ($($name:ident)*) => {
        $(#[test] fn $name() { common::run(stringify!($name)); })*

        #[test]
        fn every_story_is_a_test() {
            let here: std::collections::BTreeSet<_> = [$(stringify!($name)),*].into();
            let told: std::collections::BTreeSet<_> = common::all().map(|(name, ..)| *name).collect();
            assert_eq!(here, told);
        }
    };
}

stories! {
    story_01_half_a_batch
    story_02_half_a_recovery
    story_03_replay_over_a_newer_table
    story_04_the_end_of_a_segment
    story_05_a_recycled_name
    story_06_the_first_record_is_lost
    story_07_number_against_position
    story_08_a_number_used_twice
    story_09_edits_that_overtake_the_log
    story_09_a_snapshot_beside_an_ingest
    story_10_a_sync_error_reported_once
    story_11_a_full_disk_at_open
    story_12_crash_during_recovery
    story_13_a_table_sync_that_fails
    story_13_a_manifest_sync_that_fails
    story_14_a_tombstone_passes_an_older_memtable
    story_15_a_run_comes_in_below
    story_16_levels_do_not_order_numbers
    story_17_a_snapshot_between
    story_17_number_and_view
    story_18_one_stalled_keyspace
    story_19_dropped_while_used
    story_19_dropped_under_a_read
    story_19_the_same_name_again
    story_20_range_deletes
    story_21_a_pinned_view
    story_22_the_late_worker
    story_23_the_paused_host
    story_24_lies
    a_liar_is_set_aside
    story_28_one_seed_one_run
    synced_survives_power_loss
    a_drop_keeps_the_log_until_it_is_durable
    a_late_leader_meets_a_closed_store
    a_failed_sync_of_the_folder_poisons_whoever_asked
    a_missing_start_segment_is_damage
    a_full_disk_passes
    dropping_makes_room
    a_pending_ingest_settles
    ingests_leave_no_holes
    a_drop_leaves_its_neighbours_ingest
    runs_of_several_keyspaces_meet
    spilled_ids_lie_above_ingested_ones
    a_dropped_keyspace_leaves_no_spilled_tables
    a_failed_group_pins_nothing
    an_ingest_of_a_dropped_keyspace_is_not_missed
    a_drop_of_what_only_the_log_knows
    a_refused_memtable_fails_its_own_batches
    a_keyspace_dropped_before_its_create_found_room
    a_drop_without_room_of_what_was_created_without
    keyspaces_come_and_go_on_a_full_disk
    full_disk_and_writers
    a_full_disk_is_told_before_idleness
    compactions_keep_to_the_rate
    a_slow_rate_holds_up_nobody_else
    deletes_give_space_back
    a_range_delete_gives_space_back
    a_range_delete_alone_gives_space_back
    a_range_delete_under_a_snapshot
    dropped_keyspaces_free_their_files
    obsolete_files_never_pile_up
    what_deletes_nothing_is_left_alone
    a_close_in_a_job
    memory_keeps_to_its_budget
    what_does_not_fit_is_used_all_the_same
    a_failed_compaction_goes_on
    nothing_is_adopted_after_a_failed_sync
    what_ends_a_compaction_between_attempts
    nothing_gets_between_two_attempts
    power_is_lost_in_a_second_attempt
    the_last_handle_in_a_job
    a_drop_in_a_job
    a_flush_beside_a_drop_keeps_its_promise
    the_intervals_sync_waits_for_nobody
    a_flush_of_nothing_is_a_promise_too
    a_failed_sync_of_the_inherited_log_is_not_believed_later
    a_closed_log_is_whole_or_damaged
    a_killed_log_passes_what_is_not_needed
    the_manifest_of_a_closed_store_is_whole_or_damaged
    a_log_of_a_copy_is_refused
    the_log_of_a_later_life_does_not_hide_a_loss
    a_close_is_cut_off_at_every_call
    a_closed_store_is_durable_in_every_mode
    a_close_on_a_full_disk
    a_close_while_data_waits_for_room
    a_drop_beside_a_flush_keeps_the_log
    an_open_on_what_was_not_synced
    a_checkpoint_is_a_closed_store
    an_older_manifest_is_not_believed
    damage_stays_passed_on_a_full_disk
    a_close_deletes_what_nothing_needs
    what_cannot_be_read_and_is_not_needed
    a_repair_loses_nothing_without_saying_so
    closed_logs_are_changed_at_random
    killed_logs_are_changed_at_random
    every_fault_of_a_close
}
