//! The project's own engine with executors beside the host's cores, such as a GPU.
//!
//! Threading: as [`SiltstoneDriver`]. All stores that are opened have the same executors.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use siltstone::{Components, Stats, Store};
use siltstone_table::exec::Executor;

use super::siltstone::{Beside, Opened, Siltstone, failed, options_of};
use super::{Abilities, Driver, Engine, Result, SETTINGS_ERROR, SiltstoneDriver, ThreadClass};
use crate::settings::EngineSettings;

/// Counts the compactions of each kind of side: `host`, `gpu` or `device`. Of several executors of
/// a kind, the sums are taken.
pub(super) struct BySide;

impl Beside for BySide {
    fn counters(&self, _store: &Opened, stats: &Stats) -> Vec<(String, u64)> {
        let mut all: BTreeMap<String, u64> = BTreeMap::new();
        for side in &stats.sides {
            for (what, count) in [
                ("count", side.compaction_count),
                ("in_bytes", side.compaction_in_bytes),
                ("busy_us", side.compaction_busy_us),
            ] {
                let name = format!("{}_compaction_{what}", side.side);
                *all.entry(name).or_default() += count;
            }
        }
        all.into_iter().collect()
    }
}

/// Opens stores of siltstone whose jobs run on executors, too.
pub struct SiltstoneWith {
    executors: Vec<Arc<dyn Executor>>,
    /// What they are, for the record.
    words: String,
}

impl SiltstoneWith {
    /// A driver for stores with these executors. `words` says what they are; a record has it as the
    /// setting `executors`.
    pub fn new(executors: Vec<Arc<dyn Executor>>, words: String) -> SiltstoneWith {
        SiltstoneWith { executors, words }
    }
}

impl Driver for SiltstoneWith {
    fn name(&self) -> &str {
        SiltstoneDriver.name()
    }

    fn version(&self) -> String {
        SiltstoneDriver.version()
    }

    fn abilities(&self) -> Abilities {
        SiltstoneDriver.abilities()
    }

    fn settings(&self, settings: &EngineSettings) -> BTreeMap<String, String> {
        let mut all = SiltstoneDriver.settings(settings);
        if !all.contains_key(SETTINGS_ERROR) {
            all.insert("executors".to_string(), self.words.clone());
        }
        all
    }

    fn opens_elsewhere(&self) -> bool {
        false
    }

    fn thread_class(&self, name: &str) -> ThreadClass {
        SiltstoneDriver.thread_class(name)
    }

    fn open(&self, folder: &Path, settings: &EngineSettings) -> Result<Box<dyn Engine>> {
        let options = options_of(settings)?;
        let mut components = Components::for_path(folder, &options).map_err(failed("open"))?;
        components.executors.extend_from_slice(&self.executors);
        let store = Store::open_with(components, options).map_err(failed("open"))?;
        let beside = Some(Box::new(BySide) as Box<dyn Beside>);
        let store = Siltstone::of(Opened::Local(store), folder, beside)?;
        Ok(Box::new(store))
    }
}
