//! Which writes wait until they are durable, by the engine's own count.

use super::*;

/// How often the log was synced in a run of 1500 writes.
fn syncs(workload: Workload, sync: bool) -> u64 {
    let folder = tempfile::tempdir().unwrap();
    let settings = Settings {
        sync,
        ..small(workload)
    };
    let found = run_in(&SiltstoneDriver, folder.path(), &settings);
    found.measured.figures.others["log_sync_count"]
}

#[test]
fn fillsync_syncs_each_write_and_fillrandom_only_if_it_is_asked_to() {
    assert!(syncs(Workload::FillSync, false) >= 1500);
    assert!(syncs(Workload::FillRandom, true) >= 1500);
    assert!(syncs(Workload::FillRandom, false) < 100);
}
