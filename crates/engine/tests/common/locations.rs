//! Stories of tables at a second location.

use siltstone::{Options, StallPolicy};
use siltstone_storage::{CrashPolicy, Runtime};

use super::folders::{Folders, Layout};
use super::{Dice, Story, contents, key, small};

pub const ALL: &[Story] = &[("redirected_tables_survive", 6, redirected_tables_survive)];

/// Flushes go to both locations, and power is lost or the process is killed. Every table must be
/// where the manifest says, and nothing else is left.
fn redirected_tables_survive(rt: Runtime, seed: u64) {
    let options = || Options {
        stall_policy: StallPolicy::Redirect,
        ..small()
    };
    let mut dice = Dice::new(seed);
    let layout = match seed % 3 {
        0 => Layout::of(0, 0).and(1),
        1 => Layout::of(1, 0).and(2),
        _ => Layout::of(0, 1).and(2),
    };
    let mut folders = Folders::new(&rt);
    let mut wanted = None;
    for life in 0..5u8 {
        let store = folders.try_open(layout, options()).unwrap();
        if let Some(wanted) = &wanted {
            assert_eq!(contents(&store), *wanted, "life {life}");
        }
        let hooks = store.test_hooks();
        let keyspace = store.default_keyspace().unwrap();
        // In every other life the tables stay where they were flushed.
        hooks.pause_compaction(life % 2 == 0);
        for location in [1, 0, 1, 1] {
            hooks.force_location(Some(location));
            let first = dice.below(60);
            for i in first..first + 40 {
                keyspace.put(&key(i), &[life; 300]).unwrap();
            }
            store.flush().unwrap();
        }
        wanted = Some(contents(&store));
        drop(keyspace);
        drop((hooks, store));
        folders = match life % 3 {
            0 => folders.crash(CrashPolicy::LoseUnsynced),
            1 => folders.kill(),
            _ => folders.crash(CrashPolicy::Seeded(seed)),
        };
    }
    let store = folders.try_open(layout, options()).unwrap();
    assert_eq!(Some(contents(&store)), wanted);
    store.wait_until_idle().unwrap();
    assert_eq!(Some(contents(&store)), wanted);
    store.close().unwrap();
    folders.assert_sound(layout);
    let left = &folders.names()[layout.redirect.unwrap()];
    assert!(!left.iter().any(|name| name.ends_with(".tbl")), "{left:?}");
}
