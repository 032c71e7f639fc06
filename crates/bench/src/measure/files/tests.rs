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
    drop_from_cache(folder.path()).unwrap();
    // A tmpfs drops nothing.
    let cold_part = cached_part(folder.path()).unwrap().unwrap();
    assert!((0.0..=warm_part).contains(&cold_part), "{cold_part}");
}
