//! The open log: when it is synced.
//!
//! Nothing here knows keyspaces.

pub(crate) mod interval;

use crate::formats::log::{LogWriter, Position};
use crate::tree::Tree;
use crate::types::error::Result;
use crate::wal::interval::IntervalSync;

/// The open log and when it is synced.
pub(crate) struct Wal {
    pub(crate) tree: Tree,
    pub(crate) log: LogWriter,
    pub(crate) sync_every_write: bool,
    pub(crate) interval_sync: IntervalSync,
}

/// Until all users name the parts that they need, a part stands for those below it, too.
impl std::ops::Deref for Wal {
    type Target = Tree;

    fn deref(&self) -> &Tree {
        &self.tree
    }
}

impl Wal {
    /// Syncs everything that is in the log.
    pub(crate) fn sync_log(&self) -> Result<()> {
        self.health.check_manifest()?;
        self.sync_log_through(self.log.end())
    }

    /// Syncs the log through `position`; poison is set before anybody is answered.
    pub(crate) fn sync_log_through(&self, position: Position) -> Result<()> {
        if self.log.synced() >= position {
            return Ok(());
        }
        let start = self.runtime.now();
        let result = self.log.sync(position).map(|_| ());
        self.metrics.log_sync_count.add(1);
        self.metrics
            .sync_time
            .record(self.runtime.now().since(start));
        result
    }
}
