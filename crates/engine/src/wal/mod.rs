//! The open log: when it is synced.
//!
//! Nothing here knows keyspaces.

pub(crate) mod interval;

use std::sync::Arc;

use crate::env::Env;
use crate::formats::log::{LogWriter, Position};
use crate::types::error::Result;
use crate::types::options::SyncMode;
use crate::wal::interval::IntervalSync;

/// The open log and when it is synced.
pub(crate) struct Wal {
    pub(crate) env: Arc<Env>,
    pub(crate) log: LogWriter,
    pub(crate) sync_every_write: bool,
    pub(crate) interval_sync: IntervalSync,
}

impl Wal {
    pub(crate) fn new(env: &Arc<Env>, log: LogWriter) -> Wal {
        let sync = env.options.sync;
        let interval = match sync {
            SyncMode::Interval(interval) => Some(interval),
            SyncMode::Always | SyncMode::Never => None,
        };
        Wal {
            env: env.clone(),
            log,
            sync_every_write: sync == SyncMode::Always,
            interval_sync: IntervalSync::new(&env.runtime, interval),
        }
    }

    /// Syncs everything that is in the log.
    pub(crate) fn sync_log(&self) -> Result<()> {
        self.env.health.check_manifest()?;
        self.sync_log_through(self.log.end())
    }

    /// Syncs the log through `position`; poison is set before anybody is answered.
    pub(crate) fn sync_log_through(&self, position: Position) -> Result<()> {
        if self.log.synced() >= position {
            return Ok(());
        }
        let start = self.env.runtime.now();
        let result = self.log.sync(position).map(|_| ());
        self.env.metrics.log_sync_count.add(1);
        self.env
            .metrics
            .sync_time
            .record(self.env.runtime.now().since(start));
        result
    }
}
