//! Which stores a run takes, and what it deletes.

use std::fs;
use std::path::Path;

use super::spy::{Event, Spy};
use super::{Control, RunError, run, run_in, small};
use crate::settings::{Settings, Workload};

fn refused(spy: &Spy, folder: &Path, settings: &Settings) -> RunError {
    let result = run(spy, folder, settings, &Control::default(), &|_| {});
    result.map(drop).unwrap_err()
}

fn with(workload: Workload, name: &str, value: &str) -> Settings {
    let mut settings = small(workload);
    settings.set(name, value).unwrap();
    settings
}

#[test]
fn a_store_whose_files_have_another_shape_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let spy = Spy::default();
    let fill = with(Workload::FillSeq, "engine.own.block_bytes", "8192");
    run_in(&spy, folder.path(), &fill);
    for (name, value, expected) in [
        (
            "engine.compression",
            "zstd",
            "filled with engine.compression = none, and this run has zstd",
        ),
        (
            "engine.bloom_bits",
            "5",
            "filled with engine.bloom_bits = 10, and this run has 5",
        ),
        (
            "engine.own.siltstone.block_bytes",
            "4096",
            "filled with engine.own.block_bytes = 8192, and this run has 4096",
        ),
        (
            "engine.own.l0_trigger_count",
            "3",
            "filled with engine.own.l0_trigger_count = default, and this run has 3",
        ),
    ] {
        let mut read = with(Workload::ReadRandom, "engine.own.block_bytes", "8192");
        read.set(name, value).unwrap();
        let text = refused(&spy, folder.path(), &read).to_string();
        assert!(text.contains(expected), "{text}");
    }
    let newer = Spy {
        version: "2",
        ..Spy::default()
    };
    let read = with(Workload::ReadRandom, "engine.own.block_bytes", "8192");
    let text = refused(&newer, folder.path(), &read).to_string();
    assert!(
        text.contains("the engine's version = , and this run has 2"),
        "{text}"
    );
}

#[test]
fn a_store_may_be_read_with_other_caches_and_threads() {
    let folder = tempfile::tempdir().unwrap();
    let spy = Spy::default();
    run_in(&spy, folder.path(), &small(Workload::FillSeq));
    for (name, value) in [
        ("engine.cache_bytes", "2MiB"),
        ("engine.background_threads", "1"),
        ("engine.mmap_reads", "true"),
        ("engine.own.rocksdb.block_size", "4096"),
        ("threads", "2"),
    ] {
        run_in(
            &spy,
            folder.path(),
            &with(Workload::ReadRandom, name, value),
        );
    }
}

#[test]
fn an_engine_gets_only_what_is_meant_for_it() {
    let folder = tempfile::tempdir().unwrap();
    let spy = Spy::default();
    let mut fill = with(
        Workload::FillSeq,
        "engine.own.siltstone.block_bytes",
        "8192",
    );
    fill.set("engine.own.rocksdb.block_size", "1").unwrap();
    run_in(&spy, folder.path(), &fill);
    let Some(Event::Open(engine)) = spy.events().into_iter().next() else {
        panic!("the store was not opened first");
    };
    let own: Vec<_> = engine.own.into_iter().collect();
    assert_eq!(own, [("block_bytes".to_string(), "8192".to_string())]);
}

#[test]
fn the_workloads_that_wrote_are_written_down() {
    let folder = tempfile::tempdir().unwrap();
    let spy = Spy::default();
    for workload in [
        Workload::FillSeq,
        Workload::ReadRandom,
        Workload::Overwrite,
        Workload::Open,
    ] {
        run_in(&spy, folder.path(), &small(workload));
    }
    let file = fs::read(folder.path().join("siltstone.population")).unwrap();
    let line = file.split(|byte| *byte == b'\n').next().unwrap();
    let header: serde_json::Value = serde_json::from_slice(line).unwrap();
    let wrote = serde_json::json!(["fillseq", "overwrite", "open"]);
    assert_eq!(header["workloads"], wrote);
}

#[test]
fn folders_beside_the_store_are_deleted_only_if_a_benchmark_made_them() {
    for (workload, ending) in [(Workload::Open, "opened"), (Workload::Ingest, "built")] {
        let folder = tempfile::tempdir().unwrap();
        let spy = Spy::default();
        run_in(&spy, folder.path(), &small(Workload::FillSeq));
        let precious = folder.path().join(format!("siltstone.{ending}/thesis.tex"));
        fs::create_dir(precious.parent().unwrap()).unwrap();
        fs::write(&precious, b"years of work").unwrap();
        let text = refused(&spy, folder.path(), &small(workload)).to_string();
        assert!(text.contains("files that no benchmark made"), "{text}");
        assert!(precious.exists());
        fs::remove_file(&precious).unwrap();
        run_in(&spy, folder.path(), &small(Workload::FillSeq));
        run_in(&spy, folder.path(), &small(workload));
        assert!(!precious.parent().unwrap().exists());
    }
}

#[test]
fn a_folder_that_cannot_be_read_is_not_taken_for_an_empty_one() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("siltstone");
    fs::write(&file, b"years of work").unwrap();
    let error = refused(&Spy::default(), folder.path(), &small(Workload::FillSeq));
    // It is refused before anything is deleted.
    let is_unread =
        matches!(&error, RunError::System { during, .. } if during.starts_with("read "));
    assert!(is_unread, "{error}");
    assert_eq!(fs::read(&file).unwrap(), b"years of work");
}
