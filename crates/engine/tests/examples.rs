//! Runs the examples of the crate, each in a folder of its own. (`readme.rs` runs `first_store`,
//! and compares it with README.md.)
#![allow(dead_code)] // Their `main` takes the folder from the command line.

#[path = "../examples/backup.rs"]
mod backup;
#[path = "../examples/bulk_load.rs"]
mod bulk_load;
#[path = "../examples/time_series.rs"]
mod time_series;
#[path = "../examples/why_it_waits.rs"]
mod why_it_waits;

fn in_a_folder(example: impl FnOnce(&std::path::Path) -> siltstone::Result<()>) {
    let folder = tempfile::tempdir().unwrap();
    example(folder.path()).unwrap();
}

#[test]
fn a_backup_is_made_while_writing_and_repaired() {
    in_a_folder(backup::run);
}

#[test]
fn tables_are_built_and_ingested() {
    in_a_folder(bulk_load::run);
}

#[test]
fn measurements_are_stored_and_read() {
    in_a_folder(time_series::run);
}

#[test]
fn waits_are_reported_with_their_causes() {
    in_a_folder(why_it_waits::run);
}
