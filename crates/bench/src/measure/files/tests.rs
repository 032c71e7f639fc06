use super::*;

fn folder_with(files: &[(&str, usize)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, bytes) in files {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, vec![7; *bytes]).unwrap();
    }
    folder
}

#[test]
fn sizes_are_told_apart_by_purpose() {
    let folder = folder_with(&[
        ("000001.sst", 10_000),
        ("lost/000002.sst", 500),
        ("000003.log", 3_000),
        ("LOG", 20),
        ("empty.sst", 0),
    ]);
    let found = sizes(folder.path(), &purpose_by_name).unwrap();
    assert_eq!((found.tables.files, found.tables.bytes), (3, 10_500));
    assert_eq!((found.log.files, found.log.bytes), (1, 3_000));
    assert_eq!((found.other.files, found.other.bytes), (1, 20));
    let total = found.total();
    assert_eq!((total.files, total.bytes), (5, 13_520));
    assert!(total.allocated_bytes >= 13_520, "{total:?}");

    let all_other = sizes(folder.path(), &|_| Purpose::Other).unwrap();
    assert_eq!(all_other.other, total);
}

#[test]
fn names_of_all_engines_are_known() {
    for (name, purpose) in [
        ("store/0000000a-00000003-0000-00001.tbl", Purpose::Table),
        ("store/000000000007.log", Purpose::Log),
        ("store/RESERVE-LOG", Purpose::Log),
        ("store/MANIFEST-000000000012", Purpose::Other),
        ("rocksdb/000012.sst", Purpose::Table),
        ("rocksdb/LOG", Purpose::Other),
        ("leveldb/000012.ldb", Purpose::Table),
        ("lmdb/data.mdb", Purpose::Table),
        ("lmdb/lock.mdb", Purpose::Other),
        ("fjall/keyspaces/0/tables/12", Purpose::Table),
        ("fjall/0.jnl", Purpose::Log),
    ] {
        assert_eq!(purpose_by_name(Path::new(name)), purpose, "{name}");
    }
}

#[test]
fn a_missing_folder_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("nothing-here");
    for error in [
        sizes(&missing, &purpose_by_name).unwrap_err(),
        cached_part(&missing).unwrap_err(),
        warm(&missing).unwrap_err(),
        drop_from_cache(&missing).unwrap_err(),
    ] {
        assert!(error.to_string().contains("nothing-here"), "{error}");
    }
}

#[test]
fn an_empty_folder_has_no_cached_part() {
    let folder = folder_with(&[("empty.sst", 0)]);
    assert_eq!(cached_part(folder.path()).unwrap(), None);
    assert_eq!(warm(folder.path()).unwrap(), 0);
}

#[cfg(unix)]
#[test]
fn links_are_not_followed() {
    let folder = folder_with(&[("000001.sst", 10)]);
    std::os::unix::fs::symlink(folder.path(), folder.path().join("around")).unwrap();
    std::os::unix::fs::symlink("nowhere", folder.path().join("000002.sst")).unwrap();
    let found = sizes(folder.path(), &purpose_by_name).unwrap();
    assert_eq!(found.total().files, 1);
}

#[cfg(target_os = "linux")]
#[test]
fn files_are_warmed_and_dropped() {
    let folder = folder_with(&[("a.sst", 3_000_000), ("b.sst", 1)]);
    assert_eq!(warm(folder.path()).unwrap(), 3_000_001);
    let warm_part = cached_part(folder.path()).unwrap().unwrap();
    assert!(warm_part > 0.9, "{warm_part}");
    let kept = drop_from_cache(folder.path()).unwrap();
    // A tmpfs drops nothing.
    let cold_part = cached_part(folder.path()).unwrap().unwrap();
    assert!((0.0..=warm_part).contains(&cold_part), "{cold_part}");
    assert_eq!(kept.of_bytes, 3_000_001);
    assert!(
        (kept.part() - cold_part).abs() < 0.01,
        "{kept:?} {cold_part}"
    );
    assert_eq!(kept.files > 0, kept.bytes > 0);
    assert_eq!(kept.most.is_some(), kept.bytes > 0);
}

#[test]
fn what_stays_in_the_cache_is_told_with_its_file() {
    let nothing = Kept::default();
    assert_eq!(nothing.part(), 0.0);
    assert!(nothing.to_string().starts_with("all pages were dropped"));
    let (mut kept, mut most_bytes) = (Kept::default(), 0);
    kept.of_bytes = 10_000;
    for (name, bytes) in [("a.sst", 100), ("b.sst", 0), ("c.sst", 300), ("d.sst", 200)] {
        kept.add(Path::new(name), bytes, &mut most_bytes);
    }
    assert_eq!((kept.files, kept.bytes, kept.part()), (3, 600, 0.06));
    let text = kept.to_string();
    assert!(text.starts_with("600 of 10000 bytes stayed"), "{text}");
    assert!(text.contains("most of them in c.sst"), "{text}");
}

#[cfg(target_os = "linux")]
#[test]
fn pages_of_a_tmpfs_are_told_as_kept() {
    let Ok(folder) = tempfile::tempdir_in("/dev/shm") else {
        println!("skipped: there is no tmpfs at /dev/shm");
        return;
    };
    fs::write(folder.path().join("a.sst"), vec![7; 1 << 20]).unwrap();
    let kept = drop_from_cache(folder.path()).unwrap();
    assert_eq!(
        (kept.files, kept.bytes, kept.of_bytes),
        (1, 1 << 20, 1 << 20)
    );
    assert!(kept.most.unwrap().ends_with("a.sst"));
}

/// A file of 64 GiB with a MiB of data at its start and one in the middle.
#[cfg(target_os = "linux")]
fn folder_with_holes() -> tempfile::TempDir {
    use std::os::unix::fs::FileExt;
    let folder = tempfile::tempdir().unwrap();
    let file = File::create(folder.path().join("data.mdb")).unwrap();
    file.set_len(64 << 30).unwrap();
    for at in [0, 32 << 30] {
        file.write_all_at(&vec![7; 1 << 20], at).unwrap();
    }
    file.sync_all().unwrap();
    folder
}

#[cfg(target_os = "linux")]
#[test]
fn holes_take_no_space_and_are_not_read() {
    let folder = folder_with_holes();
    let tables = sizes(folder.path(), &purpose_by_name).unwrap().tables;
    assert_eq!(tables.bytes, 64 << 30);
    let data = (2 << 20)..(8 << 20);
    assert!(data.contains(&tables.allocated_bytes), "{tables:?}");

    let warmed = warm(folder.path()).unwrap();
    assert!(data.contains(&warmed), "{warmed}");
    let warm_part = cached_part(folder.path()).unwrap().unwrap();
    assert!(warm_part > 0.9, "{warm_part}");
    let kept = drop_from_cache(folder.path()).unwrap();
    assert!(data.contains(&kept.of_bytes), "{kept:?}");
    assert!(kept.bytes <= kept.of_bytes, "{kept:?}");
}

#[cfg(target_os = "linux")]
#[test]
fn the_ranges_of_a_file_are_those_that_were_written() {
    let folder = folder_with_holes();
    let file = File::open(folder.path().join("data.mdb")).unwrap();
    let ranges = extents::data_ranges(&file, 64 << 30).unwrap();
    assert_eq!(ranges.len(), 2, "{ranges:?}");
    // Blocks are of 64 KiB at most on usual file systems.
    for (range, at) in ranges.iter().zip([0, 32 << 30]) {
        assert_eq!(range.start, at);
        assert!((1 << 20..2 << 20).contains(&(range.end - at)), "{ranges:?}");
    }
    // A length below that of the file cuts the ranges off.
    let first = extents::data_ranges(&file, 1000).unwrap();
    assert_eq!(first, vec![0..1000]);
    assert_eq!(extents::data_ranges(&file, 0).unwrap(), Vec::new());

    let hole = File::create(folder.path().join("hole")).unwrap();
    hole.set_len(1 << 30).unwrap();
    assert_eq!(extents::data_ranges(&hole, 1 << 30).unwrap(), Vec::new());
}

#[cfg(target_os = "linux")]
#[test]
fn a_file_of_nothing_but_a_hole_has_no_cached_part() {
    let folder = tempfile::tempdir().unwrap();
    let file = File::create(folder.path().join("data.mdb")).unwrap();
    file.set_len(1 << 40).unwrap();
    assert_eq!(warm(folder.path()).unwrap(), 0);
    assert_eq!(cached_part(folder.path()).unwrap(), None);
}
