//! Counts the events that a batch of seeds reached: operations, drop rules, kinds of compaction,
//! faults. A trial fails if it never reached an event that it must reach.
//!
//! Threading: owned; each run returns its own counts, which are added.

use std::collections::BTreeMap;
use std::fmt;

use siltstone::Stats;
use siltstone_storage::CrashReport;

/// Counts by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Coverage {
    counts: BTreeMap<String, u64>,
}

impl Coverage {
    /// Counts one of `name`.
    pub fn add(&mut self, name: &str) {
        self.add_count(name, 1);
    }

    /// Counts `count` of `name`.
    pub fn add_count(&mut self, name: &str, count: u64) {
        *self.counts.entry(name.to_string()).or_insert(0) += count;
    }

    /// Adds the counts of another batch.
    pub fn merge(&mut self, other: &Coverage) {
        for (name, count) in &other.counts {
            self.add_count(name, *count);
        }
    }

    /// Adds the counters of a store, which are complete once it is closed.
    pub fn take_stats(&mut self, stats: &Stats) {
        for (name, count) in &stats.counters {
            if name.ends_with("_count") {
                self.add_count(&format!("store.{name}"), *count);
            }
        }
        self.add_count(
            "store.discarded_log_bytes",
            stats.counter("discarded_log_bytes"),
        );
        for (cause, total) in &stats.delay_totals {
            self.add_count(&format!("delay.{cause:?}"), total.count);
        }
        for side in stats.sides.iter().filter(|side| side.side == "gpu") {
            self.add_count("gpu.believed", side.compaction_count);
            let said = side.last_failure.as_deref().unwrap_or_default();
            if said.contains("no sign of life") {
                self.add("gpu.found_hung");
            }
            if side.state.starts_with("down") {
                self.add("gpu.down");
            }
        }
        let deepest = stats
            .keyspaces
            .iter()
            .flat_map(|k| k.levels.iter().rposition(|l| l.table_count > 0))
            .max();
        if let Some(level) = deepest {
            self.add(&format!("deepest_level.{level}"));
        }
    }

    /// Adds the effects of a crash.
    pub fn take_crash(&mut self, report: &CrashReport) {
        for (name, count) in report.counts() {
            self.add_count(&format!("crash.{name}"), count);
        }
    }

    /// How often `name` was reached.
    pub fn of(&self, name: &str) -> u64 {
        self.counts.get(name).copied().unwrap_or(0)
    }

    /// The names among these that were never reached.
    pub fn missing<'a>(&self, wanted: &[&'a str]) -> Vec<&'a str> {
        wanted
            .iter()
            .copied()
            .filter(|name| self.of(name) == 0)
            .collect()
    }
}

impl fmt::Display for Coverage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, count) in &self.counts {
            writeln!(f, "  {name:44} {count:>10}")?;
        }
        Ok(())
    }
}
