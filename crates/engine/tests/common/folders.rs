//! A store whose log and tables are in folders of their own, on disks that fail and lose power
//! together.

use std::sync::Arc;

use siltstone::check::{CheckReport, CheckStorages, check};
use siltstone::{Components, Options, Storages, Store};
use siltstone_storage::fault::{FaultStorage, Rule};
use siltstone_storage::{CrashPolicy, MemoryStorage, Runtime, Storage};

/// The number of the folder of each part. The store's own folder has the number 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    pub log: usize,
    pub tables: usize,
    /// The folder of the second location of tables.
    pub redirect: Option<usize>,
}

impl Layout {
    pub const fn of(log: usize, tables: usize) -> Layout {
        Layout {
            log,
            tables,
            redirect: None,
        }
    }

    /// The same, with a second location of tables.
    pub const fn and(self, redirect: usize) -> Layout {
        Layout {
            redirect: Some(redirect),
            ..self
        }
    }
}

pub const LAYOUTS: [Layout; 5] = [
    Layout::of(0, 0),
    Layout::of(1, 0),
    Layout::of(0, 1),
    Layout::of(1, 1),
    Layout::of(1, 2),
];

/// The folders of a store. The rules of `faults` count the calls to all of them.
#[derive(Clone)]
pub struct Folders {
    pub rt: Runtime,
    pub memory: [MemoryStorage; 3],
    pub faults: [FaultStorage; 3],
}

impl Folders {
    pub fn new(rt: &Runtime) -> Folders {
        Folders::on(
            rt,
            ["/store", "/fast", "/large"].map(|name| MemoryStorage::named(rt, name)),
        )
    }

    pub fn on(rt: &Runtime, memory: [MemoryStorage; 3]) -> Folders {
        let first = FaultStorage::new(Arc::new(memory[0].clone()), rt);
        let [_, second, third] = memory.each_ref().map(|m| Arc::new(m.clone()));
        Folders {
            rt: rt.clone(),
            faults: [first.clone(), first.beside(second), first.beside(third)],
            memory,
        }
    }

    /// What a power loss leaves of all folders.
    pub fn crash(&self, policy: CrashPolicy) -> Folders {
        Folders::on(&self.rt, self.memory.each_ref().map(|m| m.crash(policy)))
    }

    /// What kill -9 leaves.
    pub fn kill(&self) -> Folders {
        Folders::on(&self.rt, self.memory.each_ref().map(MemoryStorage::kill))
    }

    /// What may be left after the calls so far.
    pub fn images(&self, seed: u64) -> [Folders; 4] {
        [
            self.kill(),
            self.crash(CrashPolicy::LoseUnsynced),
            self.crash(CrashPolicy::KeepUnsynced),
            self.crash(CrashPolicy::Seeded(seed)),
        ]
    }

    pub fn add(&self, rule: Rule) {
        self.faults[0].add(rule);
    }

    pub fn fired(&self) -> u64 {
        self.faults[0].fired_count(0)
    }

    pub fn clear(&self) {
        self.faults[0].clear();
    }

    pub fn storages(&self, layout: Layout) -> Storages {
        let all = self
            .faults
            .each_ref()
            .map(|f| Arc::new(f.clone()) as Arc<dyn Storage>);
        Storages {
            log: all[layout.log].clone(),
            manifest: all[0].clone(),
            tables: all[layout.tables].clone(),
            redirect: layout.redirect.map(|i| all[i].clone()),
        }
    }

    pub fn try_open(&self, layout: Layout, options: Options) -> siltstone::Result<Store> {
        let components = Components::of(self.storages(layout), self.rt.clone());
        Store::open_with(components, options)
    }

    pub fn open(&self, layout: Layout) -> Store {
        self.try_open(layout, super::small())
            .unwrap_or_else(|e| panic!("{layout:?}: the store does not open: {e}"))
    }

    pub fn read(&self, layout: Layout) -> siltstone::Result<Store> {
        let components = Components::of(self.storages(layout), self.rt.clone());
        Store::open_read_only_with(components, super::small())
    }

    pub fn check(&self, layout: Layout) -> siltstone::Result<CheckReport> {
        let storages = self.storages(layout);
        check(&CheckStorages::of(&storages), &mut |_| ())
    }

    /// Checks that nothing is wrong, left over, or in the wrong folder.
    #[track_caller]
    pub fn assert_sound(&self, layout: Layout) {
        let report = self.check(layout).unwrap();
        assert!(report.is_sound(), "{layout:?}: {:?}", report.problems);
        assert!(
            report.foreign.is_empty(),
            "{layout:?}: {:?}",
            report.foreign
        );
    }

    /// The names of all objects, by folder.
    pub fn names(&self) -> [Vec<String>; 3] {
        self.memory.each_ref().map(|m| {
            let objects = m.list().unwrap().into_iter();
            objects.map(|o| o.name).collect()
        })
    }
}
