//! The page cache at the start of a run.

use super::spy::Spy;
use super::{run_in, small};
use crate::measure::files::{self, Kept};
use crate::record::{Context, Found, Record};
use crate::settings::{Cache, Settings, Workload};

fn cold(workload: Workload) -> Settings {
    Settings {
        cache: Cache::Cold,
        ..small(workload)
    }
}

fn warnings(found: &Found) -> Vec<String> {
    let settings = cold(Workload::ReadRandom);
    Record::of(&Spy::default(), &settings, found, &Context::default()).warnings
}

#[cfg(target_os = "linux")]
#[test]
fn the_copy_that_a_cold_open_opens_is_not_in_the_page_cache() {
    let folder = tempfile::tempdir().unwrap();
    let probe = folder.path().join("probe");
    std::fs::create_dir(&probe).unwrap();
    std::fs::write(probe.join("file"), vec![7; 1 << 20]).unwrap();
    if files::drop_from_cache(&probe).unwrap().part() > 0.1 {
        println!("skipped: the file system of temporary folders drops no pages");
        return;
    }
    let spy = Spy::default();
    run_in(&spy, folder.path(), &small(Workload::FillSeq));
    spy.cached_at_open.lock().unwrap().clear();
    let found = run_in(&spy, folder.path(), &cold(Workload::Open));
    // The store, the store with a larger memtable, the copy, and the store again.
    let cached = spy.cached_at_open.lock().unwrap().clone();
    assert_eq!(cached.len(), 4, "{cached:?}");
    assert!(cached[2].is_some_and(|part| part < 0.5), "{cached:?}");
    let before = found.cached_before;
    assert!(before.is_some_and(|part| part < 0.5), "{before:?}");
}

#[test]
fn a_cold_run_that_is_not_cold_has_a_warning() {
    let with = |bytes| Found {
        kept_in_cache: Some(Kept {
            files: 1,
            bytes,
            of_bytes: 1000,
            most: None,
        }),
        ..Found::default()
    };
    assert!(warnings(&Found::default()).is_empty());
    assert!(warnings(&with(10)).is_empty());
    let all = warnings(&with(30));
    assert_eq!(all.len(), 1, "{all:?}");
    assert!(all[0].contains("30 of 1000 bytes of the store"), "{all:?}");
}

#[cfg(target_os = "linux")]
#[test]
fn what_a_tmpfs_keeps_is_found_by_cold_runs() {
    let Ok(folder) = tempfile::tempdir_in("/dev/shm") else {
        println!("skipped: there is no tmpfs at /dev/shm");
        return;
    };
    let spy = Spy::default();
    run_in(&spy, folder.path(), &small(Workload::FillSeq));
    for workload in [Workload::ReadRandom, Workload::Open] {
        let found = run_in(&spy, folder.path(), &cold(workload));
        let all = warnings(&found);
        let is_warned = all.iter().any(|text| text.contains("cold page cache"));
        assert!(is_warned, "{workload}: {all:?}");
    }
}
