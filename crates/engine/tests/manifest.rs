//! Manifests on real files: what was committed is read back, and the new one replaces the old one.

use std::sync::Arc;

use siltstone::manifest::{
    CURRENT_NAME, Manifest, Space, StoreId, manifest_name, read_current, recover,
};
use siltstone::version::{CreateKeyspace, Edit, StoreState, StoredOptions};
use siltstone_storage::{Epoch, FileStorage, Storage};

fn create(id: u32, name: &str) -> Edit {
    Edit {
        create: vec![CreateKeyspace {
            id,
            name: name.into(),
            sequence: 1,
            options: StoredOptions::new(),
        }],
        ..Edit::new()
    }
}

#[test]
fn a_store_comes_back_from_files() {
    let folder = tempfile::tempdir().unwrap();
    let storage: Arc<dyn Storage> = Arc::new(FileStorage::open_or_create(folder.path()).unwrap());
    assert_eq!(recover(&*storage).unwrap(), None);
    let id = StoreId(0x1234);
    let mut manifest = Manifest::create(
        storage.clone(),
        Epoch(0),
        id,
        Arc::new(StoreState::new()),
        Space::Fresh,
    )
    .unwrap();
    manifest.commit(&create(0, "a")).unwrap();
    let state = manifest.commit(&create(1, "b")).unwrap();
    drop(manifest);

    let recovered = recover(&*storage).unwrap().unwrap();
    assert_eq!(recovered.state, *state);
    assert_eq!((recovered.record_count, recovered.dropped_bytes), (3, 0));
    assert_eq!(recovered.current.store_id, id);

    let drop_a = Edit {
        drop: vec![0],
        ..Edit::new()
    };
    let mut manifest =
        Manifest::reopen(storage.clone(), Epoch(0), &recovered, &drop_a, Space::Fresh).unwrap();
    assert_eq!(read_current(&*storage).unwrap().unwrap().number, 2);
    assert_eq!(manifest.take_obsolete(), [manifest_name(1)]);
    let again = recover(&*storage).unwrap().unwrap();
    assert_eq!(again.state, **manifest.state());
    assert!(again.state.was_dropped(0));
    let text = String::from_utf8(storage.read_small(CURRENT_NAME).unwrap()).unwrap();
    assert!(text.contains("MANIFEST-000000000002"), "{text}");
}
