//! What the tests of a second location of tables share, and their story.

use std::sync::Arc;

use siltstone::{
    Components, Event, EventListener, Keyspace, Options, RedirectDir, StallPolicy, Storages, Store,
};
use siltstone_storage::{CrashPolicy, Runtime};

use super::folders::{Folders, Layout};
use super::{Dice, Story, contents, key, small};

pub const ALL: &[Story] = &[("redirected_tables_survive", 6, redirected_tables_survive)];

/// A store in one folder, and the same with a second location of tables.
pub const ONE: Layout = Layout::of(0, 0);
pub const TWO: Layout = ONE.and(1);

/// Options with which flushes may go to the second location.
pub fn redirecting() -> Options {
    Options {
        stall_policy: StallPolicy::Redirect,
        // Reads of tables are calls, and can fail or hang.
        map_tables: false,
        ..small()
    }
}

/// Options with which an open takes the second location out.
pub fn taking_out() -> Options {
    Options {
        redirect_dir: RedirectDir::None,
        ..redirecting()
    }
}

/// Puts a value of 200 such bytes at each of `count` keys, from the key with the number `from` on.
pub fn put_some(keyspace: &Keyspace, from: u64, count: u64, byte: u8) {
    for i in from..from + count {
        keyspace.put(&key(i), &[byte; 200]).unwrap();
    }
}

/// The tables at each location.
pub fn tables(store: &Store) -> [u64; 2] {
    let state = store.test_hooks().state();
    let mut count = [0; 2];
    for keyspace in state.keyspaces.values() {
        for (_, table) in keyspace.version.tables() {
            count[table.location as usize] += 1;
        }
    }
    count
}

/// Opens the store, and makes tables at both locations with [`flush_to_both`].
pub fn with_redirected(folders: &Folders, layout: Layout) -> Store {
    let store = folders.try_open(layout, redirecting()).unwrap();
    flush_to_both(&store);
    store
}

/// Writes, and flushes twice to location 1 and once to location 0. Compactions are paused.
pub fn flush_to_both(store: &Store) {
    let hooks = store.test_hooks();
    hooks.pause_compaction(true);
    let keyspace = store.default_keyspace().unwrap();
    for (round, location) in [1, 0, 1].into_iter().enumerate() {
        hooks.force_location(Some(location));
        put_some(&keyspace, round as u64 * 40, 100, round as u8);
        keyspace.delete_range(&key(7), &key(9)).unwrap();
        store.flush().unwrap();
    }
    hooks.force_location(None);
    let [home, second] = tables(store);
    assert!(home > 0 && second > 1, "{home} and {second}");
}

/// The names of the tables in each folder.
pub fn table_names(folders: &Folders) -> [Vec<String>; 3] {
    folders
        .names()
        .map(|names| names.into_iter().filter(|n| n.ends_with(".tbl")).collect())
}

/// The events of a store. No storage call is made while its lock is held.
#[derive(Default)]
#[allow(clippy::disallowed_types)]
pub struct Heard(pub std::sync::Mutex<Vec<Event>>);

impl EventListener for Heard {
    fn on_event(&self, event: &Event) {
        self.0.lock().unwrap().push(event.clone());
    }
}

impl Heard {
    pub fn count(&self, is: impl Fn(&Event) -> bool) -> usize {
        self.0.lock().unwrap().iter().filter(|e| is(e)).count()
    }
}

/// The components of an open whose events are heard.
pub fn components(storages: Storages, rt: &Runtime, heard: &Arc<Heard>) -> Components {
    Components {
        listener: Some(heard.clone()),
        ..Components::of(storages, rt.clone())
    }
}

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
