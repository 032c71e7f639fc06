//! A gate between the store and an attempt of another executor. It can cut the attempt off.
//!
//! A [`Gate`] wraps an attempt's inputs, its output storage and the files that it writes. While the
//! gate is open, it only counts the calls in progress. Once it is shut, every such call fails as
//! fenced, and the inputs are released. So an executor that hangs, and wakes after the engine has
//! given up the attempt, changes nothing, even if the store was closed and opened by another
//! process since ([RFC 7](../../../../docs/rfc/0007-slots.md), section 7).
//!
//! Invariant: after [`Gate::shut`] no call begins, and after [`Gate::wait_idle`] none is in
//! progress, except appends in which the executor writes a file by itself
//! ([`WriteFile::append_by_descriptor`]). Those are work of the executor, which may hang in them,
//! so they are no reason to wait: neither for an attempt that shows no sign of life, nor when the
//! store is closed. What such a call writes late gets into a file whose name no other attempt ever
//! has, and which is deleted as an orphan.
//!
//! Threading: a mutex for a count. It is not held during calls.

use std::sync::Arc;

use siltstone_storage::wrapped::{Call, Wrapped, Wrapper};
use siltstone_storage::{
    Condvar, Mutex, ReadFile, Result, Runtime, Storage, StorageError, StorageErrorKind,
    WriteByDescriptor, WriteFile,
};
use siltstone_table::error::TableError;
use siltstone_table::exec::{Inputs, StreamSource};

struct State {
    is_shut: bool,
    /// Calls in progress.
    calls: usize,
    /// `None` once the gate is shut.
    inputs: Option<Arc<dyn Inputs>>,
}

/// See the module.
pub(crate) struct Gate {
    state: Mutex<State>,
    idle: Condvar,
}

/// A call in progress. Dropping this value ends it.
struct InCall<'a>(&'a Gate);

impl Drop for InCall<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.calls -= 1;
        if state.calls == 0 && state.is_shut {
            self.0.idle.notify_all();
        }
    }
}

fn fenced(op: &'static str, name: &str) -> StorageError {
    let detail = "the engine has given up this attempt of a job";
    StorageError::new(StorageErrorKind::Fenced, op, name, detail)
}

impl Gate {
    /// An open gate for these inputs.
    pub(crate) fn new(runtime: &Runtime, inputs: Arc<dyn Inputs>) -> Arc<Gate> {
        Arc::new(Gate {
            state: runtime.mutex(State {
                is_shut: false,
                calls: 0,
                inputs: Some(inputs),
            }),
            idle: runtime.condvar(),
        })
    }

    /// The inputs, wrapped for the attempt.
    pub(crate) fn inputs(self: &Arc<Gate>) -> Arc<dyn Inputs> {
        Arc::new(GatedInputs(self.clone()))
    }

    /// A storage for outputs, wrapped for the attempt.
    pub(crate) fn outputs(self: &Arc<Gate>, storage: &Arc<dyn Storage>) -> Arc<dyn Storage> {
        Arc::new(Wrapped(GatedStorage {
            gate: self.clone(),
            inner: storage.clone(),
        }))
    }

    /// Cuts the attempt off. Returns at once, so calls in progress may still be running.
    pub(crate) fn shut(&self) {
        let inputs = {
            let mut state = self.state.lock();
            state.is_shut = true;
            state.inputs.take()
        };
        // The inputs are dropped without the lock, because this may release the last reference to a
        // table.
        drop(inputs);
    }

    /// Whether the gate is open and a call of the attempt is in progress.
    pub(crate) fn is_in_call(&self) -> bool {
        let state = self.state.lock();
        !state.is_shut && state.calls > 0
    }

    /// Whether no call is in progress.
    pub(crate) fn is_idle(&self) -> bool {
        self.state.lock().calls == 0
    }

    /// Waits until no call is in progress. The gate must be shut.
    pub(crate) fn wait_idle(&self) {
        let mut state = self.state.lock();
        while state.calls > 0 {
            state = self.idle.wait(state);
        }
    }

    /// Fails if the gate is shut. For calls in which the executor does the work.
    fn check(&self, op: &'static str, name: &str) -> Result<()> {
        match self.state.lock().is_shut {
            true => Err(fenced(op, name)),
            false => Ok(()),
        }
    }

    fn enter(&self, op: &'static str, name: &str) -> Result<InCall<'_>> {
        let mut state = self.state.lock();
        if state.is_shut {
            return Err(fenced(op, name));
        }
        state.calls += 1;
        Ok(InCall(self))
    }
}

struct GatedInputs(Arc<Gate>);

impl GatedInputs {
    /// The inputs, for one call.
    fn enter(&self, name: &str) -> Result<(Arc<dyn Inputs>, InCall<'_>)> {
        let call = self.0.enter(RESOLVE, name)?;
        let inputs = self.0.state.lock().inputs.clone();
        let inputs = inputs.ok_or_else(|| fenced(RESOLVE, name))?;
        Ok((inputs, call))
    }
}

/// The name of the call that resolves an input, in errors.
const RESOLVE: &str = "resolve input";

impl Inputs for GatedInputs {
    fn table(
        &self,
        location: u32,
        name: &str,
    ) -> std::result::Result<Arc<dyn ReadFile>, TableError> {
        let (inputs, _in_call) = self.enter(name)?;
        inputs.table(location, name)
    }

    fn stream(
        &self,
        location: u32,
        name: &str,
    ) -> std::result::Result<Arc<dyn StreamSource>, TableError> {
        let (inputs, _in_call) = self.enter(name)?;
        inputs.stream(location, name)
    }
}

struct GatedStorage {
    gate: Arc<Gate>,
    inner: Arc<dyn Storage>,
}

impl Wrapper for GatedStorage {
    fn inner(&self) -> &dyn Storage {
        &*self.inner
    }

    fn make<T>(&self, call: Call<'_>, mut run: impl FnMut() -> Result<T>) -> Result<T> {
        let (op, name) = match call {
            Call::Open => ("open", ""),
            Call::Create(name) => ("create", name),
            Call::Replace(name) => ("replace", name),
            Call::Rename(name) => ("rename", name),
            Call::Delete(name) => ("delete", name),
            Call::SyncDir => ("sync_dir", ""),
        };
        let _in_call = self.gate.enter(op, name)?;
        run()
    }

    fn opened(&self, file: Arc<dyn WriteFile>) -> Arc<dyn WriteFile> {
        Arc::new(GatedFile {
            gate: self.gate.clone(),
            inner: file,
        })
    }
}

struct GatedFile {
    gate: Arc<Gate>,
    inner: Arc<dyn WriteFile>,
}

impl WriteFile for GatedFile {
    fn name(&self) -> &str {
        self.inner.name()
    }
    fn position(&self) -> u64 {
        self.inner.position()
    }
    fn append(&self, parts: &[&[u8]]) -> Result<()> {
        let _in_call = self.gate.enter("append", self.name())?;
        self.inner.append(parts)
    }
    fn append_by_descriptor(&self, len: u64, write: &mut WriteByDescriptor<'_>) -> Result<bool> {
        self.gate.check("append", self.name())?;
        self.inner.append_by_descriptor(len, write)
    }
    fn reserve(&self, len: u64) -> Result<()> {
        let _in_call = self.gate.enter("reserve", self.name())?;
        self.inner.reserve(len)
    }
    fn len(&self) -> u64 {
        self.inner.len()
    }
    fn sync(&self) -> Result<()> {
        let _in_call = self.gate.enter("sync", self.name())?;
        self.inner.sync()
    }
    fn buffer_bytes(&self) -> u64 {
        self.inner.buffer_bytes()
    }
    fn start_writeback(&self, from: u64, len: u64) {
        self.inner.start_writeback(from, len);
    }
    fn truncate_to_position(&self) -> Result<()> {
        let _in_call = self.gate.enter("truncate", self.name())?;
        self.inner.truncate_to_position()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use siltstone_storage::fault::{Fault, Rule};
    use siltstone_storage::sim::{SimConfig, run};
    use siltstone_storage::{DirectFile, Epoch, FaultStorage, MemoryStorage, OpKind};
    use siltstone_table::exec::InputMap;

    use super::*;

    const EPOCH: Epoch = Epoch(1);

    fn simulated(story: impl FnOnce(Runtime, Arc<FaultStorage>) + Send + 'static) {
        let report = run(SimConfig::new(5), |rt| {
            let memory: Arc<dyn Storage> = Arc::new(MemoryStorage::new(&rt));
            let faults = Arc::new(FaultStorage::new(memory, &rt));
            story(rt, faults);
        });
        report.result.unwrap();
    }

    fn is_fenced<T>(result: Result<T>) -> bool {
        result.is_err_and(|error| error.kind == StorageErrorKind::Fenced)
    }

    /// An executor that hangs while it writes a file by itself keeps nobody waiting.
    #[test]
    fn a_transfer_of_the_executor_is_no_call() {
        struct Own(Arc<Gate>);
        impl WriteFile for Own {
            fn name(&self) -> &str {
                "a"
            }
            fn position(&self) -> u64 {
                0
            }
            fn append(&self, _: &[&[u8]]) -> Result<()> {
                Ok(())
            }
            fn append_by_descriptor(&self, _: u64, _: &mut WriteByDescriptor<'_>) -> Result<bool> {
                assert!(!self.0.is_in_call() && self.0.is_idle());
                self.0.shut();
                self.0.wait_idle();
                Ok(true)
            }
            fn reserve(&self, _: u64) -> Result<()> {
                Ok(())
            }
            fn len(&self) -> u64 {
                0
            }
            fn sync(&self) -> Result<()> {
                Ok(())
            }
            fn truncate_to_position(&self) -> Result<()> {
                Ok(())
            }
        }
        let inputs: Arc<dyn Inputs> = Arc::new(InputMap::new());
        let gate = Gate::new(&Runtime::threads(), inputs);
        let inner = Arc::new(Own(gate.clone()));
        let file = GatedFile { gate, inner };
        let never = &mut |_: DirectFile<'_>, _| panic!("nothing is written");
        assert!(file.append_by_descriptor(4096, never).unwrap());
        assert!(is_fenced(file.append_by_descriptor(4096, never)));
    }

    #[test]
    fn nothing_passes_a_gate_that_was_shut() {
        simulated(|rt, storage| {
            let mut inputs = InputMap::new();
            storage.create(EPOCH, "input").unwrap();
            inputs.add_table(0, "input", storage.open("input").unwrap());
            let inputs: Arc<dyn Inputs> = Arc::new(inputs);
            let gate = Gate::new(&rt, inputs.clone());
            let below: Arc<dyn Storage> = storage.clone();
            let (outputs, gated) = (gate.outputs(&below), gate.inputs());
            let file = outputs.create(EPOCH, "a").unwrap();
            file.append(&[b"before"]).unwrap();
            file.sync().unwrap();
            outputs.sync_dir(EPOCH).unwrap();
            gated.table(0, "input").unwrap();
            assert_eq!(Arc::strong_count(&inputs), 2);

            gate.shut();
            gate.wait_idle();
            assert_eq!(Arc::strong_count(&inputs), 1, "the inputs were let go");
            assert!(gated.table(0, "input").is_err() && gated.stream(0, "s").is_err());
            assert!(is_fenced(file.append(&[b"after"])));
            let write = &mut |_: DirectFile<'_>, _| panic!("it is shut");
            assert!(is_fenced(file.append_by_descriptor(0, write)));
            assert!(is_fenced(file.reserve(100)) && is_fenced(file.sync()));
            assert!(is_fenced(file.truncate_to_position()));
            assert!(is_fenced(outputs.create(EPOCH, "b")));
            assert!(is_fenced(outputs.create_direct(EPOCH, "b")));
            assert!(is_fenced(outputs.delete(EPOCH, "a")));
            assert!(is_fenced(outputs.rename(EPOCH, "a", "b")));
            assert!(is_fenced(outputs.replace(EPOCH, "a", b"other")));
            assert!(is_fenced(outputs.publish(EPOCH, "a", b"other")));
            assert!(is_fenced(outputs.import(EPOCH, "b", &*below, "a")));
            assert!(is_fenced(outputs.sync_dir(EPOCH)));
            assert!(is_fenced(outputs.open("a")) && is_fenced(outputs.list()));
            let names: Vec<_> = below.list().unwrap().into_iter().map(|o| o.name).collect();
            assert_eq!(names, ["a", "input"]);
            assert_eq!(below.read_small("a").unwrap(), b"before");
        });
    }

    #[test]
    fn a_call_in_progress_is_waited_for() {
        simulated(|rt, storage| {
            let gate = Gate::new(&rt, Arc::new(InputMap::new()));
            let below: Arc<dyn Storage> = storage.clone();
            let file = gate.outputs(&below).create(EPOCH, "a").unwrap();
            let slow = Fault::Delay(Duration::from_secs(3));
            storage.add(Rule::on(OpKind::Append, slow).times(1));
            let writes = {
                let file = file.clone();
                rt.spawn("late", move || (file.append(&[b"1"]), file.append(&[b"2"])))
                    .unwrap()
            };
            rt.sleep(Duration::from_secs(1));
            let begin = rt.now();
            gate.shut();
            assert_eq!(rt.now(), begin, "shutting waits for nobody");
            gate.wait_idle();
            assert_eq!(rt.now().since(begin), Duration::from_secs(2));
            assert_eq!(below.read_small("a").unwrap(), b"1");
            let (first, second) = writes.join().unwrap();
            assert!(first.is_ok() && is_fenced(second));
        });
    }
}
