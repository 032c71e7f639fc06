//! Files that attempts of other executors left behind and that nothing refers to.
//!
//! An executor deletes the files that it does not hand over (`siltstone_table::exec`, promise E4).
//! An executor that panicked, was abandoned or breaks its promise leaves files. When the work has
//! ended, or the attempt was abandoned, its files are noted here, and maintenance deletes them once
//! none of the executor's calls is in progress. The next open deletes files that remain at a close.
//!
//! Invariant: no file that the manifest may name is noted here. An attempt that takes over the
//! tables of an earlier one gives them its own names, so the names of an attempt whose outcome was
//! not believed are never installed.
//!
//! Threading: a mutex over the list, which is not held over storage calls.

use std::sync::Arc;

use siltstone_storage::{Mutex, Runtime, StorageErrorKind};
use siltstone_table::job::OutputPrefix;

use crate::jobs::gate::Gate;
use crate::jobs::runner::JobRunner;

/// The files that one attempt may have left.
pub(crate) struct Leftover {
    /// The attempt's gate, which is shut.
    pub(crate) gate: Arc<Gate>,
    /// The prefix of the names of its tables.
    pub(crate) output: OutputPrefix,
    /// Tables that earlier attempts had left to this one.
    pub(crate) names: Vec<String>,
}

/// See the module.
pub(crate) struct Leftovers {
    all: Mutex<Vec<Leftover>>,
}

impl Leftovers {
    pub(super) fn new(runtime: &Runtime) -> Leftovers {
        Leftovers {
            all: runtime.mutex(Vec::new()),
        }
    }

    pub(crate) fn add(&self, left: Vec<Leftover>) {
        if !left.is_empty() {
            self.all.lock().extend(left);
        }
    }

    /// Deletes the files of attempts that have no call in progress any more. If a deletion fails,
    /// maintenance repeats it.
    pub(super) fn delete(&self, runner: &JobRunner) {
        let all = std::mem::take(&mut *self.all.lock());
        let (idle, busy): (Vec<_>, Vec<_>) = all.into_iter().partition(|left| left.gate.is_idle());
        self.all.lock().extend(busy);
        if idle.is_empty() {
            return;
        }
        let begins: Vec<_> = idle
            .iter()
            .flat_map(|left| [left.output.text(), left.output.second_part().text()])
            .map(|prefix| format!("{prefix}-"))
            .collect();
        let names: Vec<_> = idle.iter().flat_map(|left| &left.names).collect();
        let is_left = |name: &String| {
            names.contains(&name) || begins.iter().any(|begin| name.starts_with(begin))
        };
        // This does not wait for a storage that cannot be reached, because maintenance has other
        // things to do.
        let storage = runner.outputs_elsewhere();
        let deleted = storage.list().and_then(|objects| {
            let found = objects.into_iter().map(|object| object.name);
            for name in found.filter(is_left) {
                match storage.delete(runner.epoch, &name) {
                    Err(error) if error.kind == StorageErrorKind::Unreachable => return Err(error),
                    // The folder's guard repeats a failed deletion.
                    _ => {}
                }
            }
            Ok(())
        });
        if deleted.is_err() {
            self.all.lock().extend(idle);
        }
    }

    /// Waits until no call of these attempts is in progress. A close calls this.
    pub(crate) fn wait_idle(&self) {
        let all = std::mem::take(&mut *self.all.lock());
        for left in all {
            left.gate.wait_idle();
        }
    }
}
