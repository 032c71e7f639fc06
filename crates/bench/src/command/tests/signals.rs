//! A signal that comes while a run reports no progress.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use super::{CommandError, Program, bench, runs};
use crate::engine::{
    Abilities, Driver, Engine, Figures, FirstGpu, Level, NullDriver, Result, Session,
};
use crate::settings::EngineSettings;

/// A run that waits this long did not notice the signal.
const BUSY: Duration = Duration::from_secs(20);

/// The map in memory. After the engine was idle a few times, it is busy.
struct Slow {
    /// How often it is idle when it is asked.
    idle_count: usize,
    /// Whether it is busy.
    is_busy: Arc<AtomicBool>,
}

struct SlowEngine {
    inner: Box<dyn Engine>,
    idle_count: usize,
    asked_count: AtomicUsize,
    is_busy: Arc<AtomicBool>,
}

impl Driver for Slow {
    fn name(&self) -> &str {
        "slow"
    }
    fn version(&self) -> String {
        "1".into()
    }
    fn abilities(&self) -> Abilities {
        NullDriver.abilities()
    }
    fn settings(&self, _settings: &EngineSettings) -> BTreeMap<String, String> {
        BTreeMap::new()
    }
    fn open(&self, folder: &Path, settings: &EngineSettings) -> Result<Box<dyn Engine>> {
        Ok(Box::new(SlowEngine {
            inner: NullDriver.open(folder, settings)?,
            idle_count: self.idle_count,
            asked_count: AtomicUsize::new(0),
            is_busy: self.is_busy.clone(),
        }))
    }
}

impl Engine for SlowEngine {
    fn session(&self) -> Result<Box<dyn Session + '_>> {
        self.inner.session()
    }
    fn wait_until_idle(&self) -> Result<bool> {
        if self.asked_count.fetch_add(1, Ordering::Relaxed) >= self.idle_count {
            self.is_busy.store(true, Ordering::Release);
            std::thread::sleep(BUSY);
        }
        Ok(true)
    }
    fn flush(&self) -> Result<()> {
        self.inner.flush()
    }
    fn compact(&self) -> Result<()> {
        self.inner.compact()
    }
    fn ingest(&self, next: &mut dyn FnMut(&mut Vec<u8>, &mut Vec<u8>) -> bool) -> Result<()> {
        self.inner.ingest(next)
    }
    fn figures(&self) -> Figures {
        self.inner.figures()
    }
    fn levels(&self) -> Vec<Level> {
        self.inner.levels()
    }
    fn close(self: Box<Self>) -> Result<()> {
        self.inner.close()
    }
}

#[test]
fn a_signal_ends_a_run_that_waits_for_its_engine() {
    // The run asks after the open, while it prepares, and after the last operation, while it
    // settles.
    for idle_count in [0, 1] {
        let is_busy = Arc::new(AtomicBool::new(false));
        let drivers: Vec<Box<dyn Driver>> = vec![Box::new(Slow {
            idle_count,
            is_busy: is_busy.clone(),
        })];
        let program = Program {
            command: "silt bench",
            drivers: &drivers,
            file: None,
            gpus: &FirstGpu,
            stopped: &|| is_busy.load(Ordering::Acquire),
        };
        let mut out = Vec::<u8>::new();
        let args = runs("fillseq --records 100 --json");
        let error = bench(&program, &args, &mut out).unwrap_err();
        assert!(is_busy.load(Ordering::Acquire));
        let is_right =
            matches!(&error, CommandError::Interrupted(text) if text == "during `fillseq`");
        assert!(is_right, "idle {idle_count} times: {error}");
        assert!(out.is_empty());
    }
}
