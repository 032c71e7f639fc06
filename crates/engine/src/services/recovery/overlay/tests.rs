use super::*;
use siltstone_storage::FaultStorage;

fn stage() -> (FaultStorage, MemoryStorage, Storages) {
    let runtime = Runtime::threads();
    let memory = MemoryStorage::new(&runtime);
    let epoch = memory.lease("store").unwrap().epoch();
    for name in ["a", "b"] {
        let file = memory.create(epoch, name).unwrap();
        file.append(&[name.as_bytes()]).unwrap();
    }
    let faults = FaultStorage::new(Arc::new(memory.clone()), &runtime);
    let below: Arc<dyn Storage> = Arc::new(faults.clone());
    let storages = Storages {
        log: below.clone(),
        manifest: below.clone(),
        tables: below,
        redirect: None,
    };
    (
        faults,
        memory,
        over(&storages, &runtime, &ReplayBudget::fixed(64 << 10)),
    )
}

fn names(storage: &dyn Storage) -> Vec<String> {
    storage
        .list()
        .unwrap()
        .into_iter()
        .map(|o| o.name)
        .collect()
}

#[test]
fn changes_show_and_stay_in_memory() {
    let (faults, memory, storages) = stage();
    assert!(Arc::ptr_eq(&storages.log, &storages.tables));
    let o = &storages.log;
    let lease = o.lease("store").unwrap();
    let e = lease.epoch();
    assert!(
        memory.lease("store").is_err(),
        "a share of the lease is held"
    );

    let kind = |r: Result<()>| r.unwrap_err().kind;
    assert!(o.create(e, "a").is_err());
    let c = o.create(e, "c").unwrap();
    c.append(&[b"new"]).unwrap();
    c.sync().unwrap();
    o.delete(e, "a").unwrap();
    assert_eq!(kind(o.delete(e, "a")), StorageErrorKind::NotFound);
    assert_eq!(o.open("a").err().unwrap().kind, StorageErrorKind::NotFound);
    assert_eq!(
        kind(o.rename(e, "b", "d")),
        StorageErrorKind::PermissionDenied
    );
    assert!(o.recycle(e, "b", "d").is_err());
    o.replace(e, "b", b"other").unwrap();
    o.rename(e, "c", "d").unwrap();
    o.import(e, "f", &memory, "a").unwrap();
    o.sync_dir(e).unwrap();
    o.sync_object(e, "b").unwrap();
    assert_eq!(names(&**o), ["b", "d", "f"]);
    assert_eq!(o.read_small("b").unwrap(), b"other");
    assert_eq!(o.read_small("d").unwrap(), b"new");
    o.create(e, "a").unwrap();
    assert!(o.read_small("a").unwrap().is_empty());
    o.delete(e, "b").unwrap();
    assert_eq!(names(&**o), ["a", "d", "f"]);

    assert_eq!(faults.counts().changes(), 0);
    assert_eq!(names(&memory), ["a", "b"]);
    assert_eq!(memory.read_small("b").unwrap(), b"b");
    drop(lease);
    assert!(memory.lease("store").is_ok());
}

#[test]
fn memory_is_bounded_by_name() {
    let (_, _, storages) = stage();
    let o = &storages.log;
    let e = o.lease("store").unwrap().epoch();
    let file = o.create(e, "t").unwrap();
    file.append(&[&[1; 40 << 10]]).unwrap();
    for refused in [
        file.append(&[&[1; 40 << 10]]),
        file.reserve(80 << 10),
        o.replace(e, "r", &[1; 40 << 10]),
    ] {
        let error = refused.unwrap_err();
        assert!(error.to_string().contains("replay_bytes_max"), "{error}");
        assert!(
            !error.is_no_space(),
            "recovery must not go on without what did not fit"
        );
    }
}
