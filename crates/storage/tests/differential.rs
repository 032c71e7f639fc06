//! Local files and the memory storage behave alike: random operations give equal answers, equal
//! kinds of errors and equal contents.

#[path = "common/operations.rs"]
mod operations;

use std::sync::Arc;

use operations::{Side, op};
use proptest::prelude::*;
use siltstone_storage::{FileStorage, MemoryStorage, Runtime};

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 150,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn files_and_memory_agree(ops in prop::collection::vec(op(), 1..80)) {
        let dir = tempfile::tempdir().unwrap();
        let memory = MemoryStorage::new(&Runtime::threads());
        let other_dir = tempfile::tempdir().unwrap();
        let other = MemoryStorage::new(&Runtime::threads());
        let open_other = || Arc::new(FileStorage::open_or_create(other_dir.path()).unwrap());
        let mut files = Side::new(
            Arc::new(FileStorage::open_or_create(dir.path()).unwrap()),
            open_other(),
        );
        let mut mem = Side::new(Arc::new(memory.clone()), Arc::new(other.clone()));
        memory.start_journal();
        for (i, op) in ops.iter().enumerate() {
            let (a, b) = (files.apply(op), mem.apply(op));
            prop_assert_eq!(a, b, "operation {}: {:?}", i, op);
        }
        let contents = files.contents();
        prop_assert_eq!(&contents, &mem.contents());
        // The journal replays to the same contents, and so does a reopened folder.
        let mut replay = memory.replay();
        replay.advance_to(u64::MAX);
        let replayed = Side::new(
            Arc::new(replay.kill_in(&Runtime::threads())),
            Arc::new(other),
        );
        prop_assert_eq!(&contents, &replayed.contents());
        drop(files);
        let reopened = Side::new(
            Arc::new(FileStorage::open_existing(dir.path()).unwrap()),
            open_other(),
        );
        prop_assert_eq!(&contents, &reopened.contents());
    }
}
