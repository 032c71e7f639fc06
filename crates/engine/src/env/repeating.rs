//! Storages and files whose calls wait until the storage can be reached.
//!
//! [`repeating`] wraps the storages of an open store. All that changes the manifest, names or
//! tables goes through the result: edits, the files of flushes and compactions on the host, the
//! reserves, imports and deletions. A call that fails as unreachable is made again
//! ([`Outage::repeat`]), and so are the calls of the files that it opened. Reads of users, and the
//! log's own calls, go to the storages below, whose calls fail after the storage's time limit.
//!
//! The order of the wrappers is: [`crate::env::descriptors`], then [`crate::env::guard`], then this
//! one. The guard holds the lock of a folder during one try only, so a call that does not wait is
//! not held up by one that does.
//!
//! What may be repeated is a promise of the storage (`StorageErrorKind::Unreachable`): a failed
//! append had no effect; the bytes of a failed sync are kept; a creation that took effect is undone
//! before the next call. A deletion or a renaming may have taken effect, so a repetition that does
//! not find the file has succeeded.
//!
//! Threading: as [`Outage::repeat`].

use std::sync::Arc;

use siltstone_storage::storage::InjectedFault;
use siltstone_storage::wrapped::{Call, Wrapped, Wrapper};
use siltstone_storage::{
    Access, Map, ReadByDescriptor, ReadFile, ReadPurpose, ReadRange, Result, Storage,
    StorageErrorKind, WriteByDescriptor, WriteFile,
};
use siltstone_table::TableError;
use siltstone_table::exec::{Inputs, StreamSource};

use crate::env::outage::{CallError, CallKind, Outage};
use crate::formats::directories::Storages;

/// These storages, with calls that wait. Those of the second location of tables do not, because
/// nothing needs that location, and have the outage `of_location`.
pub(crate) fn repeating(
    storages: &Storages,
    outage: &Arc<Outage>,
    of_location: &Arc<Outage>,
) -> Storages {
    storages.map_with(|location, inner| match location {
        0 => wrap(inner, outage, true),
        _ => wrap(inner, of_location, false),
    })
}

/// A storage whose calls do not wait, for jobs that must be able to stop at any time. As those that
/// wait, they end for good once a close has given up.
pub(crate) fn not_waiting(inner: &Arc<dyn Storage>, outage: &Arc<Outage>) -> Arc<dyn Storage> {
    wrap(inner, outage, false)
}

fn wrap(inner: &Arc<dyn Storage>, outage: &Arc<Outage>, waits: bool) -> Arc<dyn Storage> {
    let calls = Calls {
        outage: outage.clone(),
        waits,
    };
    Arc::new(Wrapped(Repeating {
        inner: inner.clone(),
        calls,
    }))
}

/// The inputs of a job on the host, with calls that wait, unless the input is at the second
/// location of tables.
pub(crate) fn repeating_inputs(inputs: Arc<dyn Inputs>, outage: &Arc<Outage>) -> Arc<dyn Inputs> {
    let calls = Calls {
        outage: outage.clone(),
        waits: true,
    };
    Arc::new(RepeatingInputs { inputs, calls })
}

/// A file, with reads that wait.
pub(crate) fn repeating_reader(file: Arc<dyn ReadFile>, outage: &Arc<Outage>) -> Arc<dyn ReadFile> {
    let calls = Calls {
        outage: outage.clone(),
        waits: true,
    };
    Arc::new(RepeatingReader { file, calls })
}

/// Makes a call that only reads, and waits until it reaches the storage.
pub(crate) fn repeat_read<T>(outage: &Arc<Outage>, call: impl FnMut() -> Result<T>) -> Result<T> {
    let calls = Calls {
        outage: outage.clone(),
        waits: true,
    };
    calls.read(call)
}

/// How the calls of a storage and of its files are made.
#[derive(Clone)]
struct Calls {
    outage: Arc<Outage>,
    waits: bool,
}

impl Calls {
    /// Makes a call that changes something.
    fn change<T, E: CallError>(
        &self,
        call: impl FnMut() -> std::result::Result<T, E>,
    ) -> std::result::Result<T, E> {
        self.make(true, call)
    }

    /// Makes a call that only reads.
    fn read<T, E: CallError>(
        &self,
        call: impl FnMut() -> std::result::Result<T, E>,
    ) -> std::result::Result<T, E> {
        self.make(false, call)
    }

    fn make<T, E: CallError>(
        &self,
        is_change: bool,
        call: impl FnMut() -> std::result::Result<T, E>,
    ) -> std::result::Result<T, E> {
        let waits = self.waits;
        self.outage.make(CallKind { waits, is_change }, call)
    }
}

struct Repeating {
    inner: Arc<dyn Storage>,
    calls: Calls,
}

impl Repeating {
    /// Makes a call. If an earlier try may have removed a name, a repetition that misses it asks
    /// `is_done`.
    fn remove<T: Default>(
        &self,
        mut run: impl FnMut() -> Result<T>,
        is_done: impl Fn() -> Result<bool>,
    ) -> Result<T> {
        let mut tried = false;
        self.calls.change(|| {
            let result = run();
            let Err(error) = &result else {
                return result;
            };
            match error.kind {
                StorageErrorKind::Unreachable => tried = true,
                StorageErrorKind::NotFound if tried && is_done()? => return Ok(T::default()),
                _ => {}
            }
            result
        })
    }

    fn exists(&self, name: &str) -> Result<bool> {
        match self.inner.open(name) {
            Ok(_) => Ok(true),
            Err(error) if error.kind == StorageErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }
}

impl Wrapper for Repeating {
    fn inner(&self) -> &dyn Storage {
        &*self.inner
    }

    fn make<T>(&self, call: Call<'_>, run: impl FnMut() -> Result<T>) -> Result<T> {
        match call {
            Call::Open => self.calls.read(run),
            _ => self.calls.change(run),
        }
    }

    fn remove(&self, call: Call<'_>, run: impl FnMut() -> Result<()>) -> Result<()> {
        match call {
            Call::Rename(new) => self.remove(run, || self.exists(new)),
            _ => self.remove(run, || Ok(true)),
        }
    }

    fn opened(&self, file: Arc<dyn WriteFile>) -> Arc<dyn WriteFile> {
        let calls = self.calls.clone();
        Arc::new(RepeatingWriter { file, calls })
    }

    fn opened_to_read(&self, file: Arc<dyn ReadFile>) -> Arc<dyn ReadFile> {
        let calls = self.calls.clone();
        Arc::new(RepeatingReader { file, calls })
    }
}

struct RepeatingWriter {
    file: Arc<dyn WriteFile>,
    calls: Calls,
}

impl WriteFile for RepeatingWriter {
    fn name(&self) -> &str {
        self.file.name()
    }
    fn position(&self) -> u64 {
        self.file.position()
    }
    fn append(&self, parts: &[&[u8]]) -> Result<()> {
        self.calls.change(|| self.file.append(parts))
    }
    fn append_by_descriptor(&self, len: u64, write: &mut WriteByDescriptor<'_>) -> Result<bool> {
        self.calls
            .change(|| self.file.append_by_descriptor(len, write))
    }
    fn reserve(&self, len: u64) -> Result<()> {
        self.calls.change(|| self.file.reserve(len))
    }
    fn allocate(&self, len: u64) -> Result<bool> {
        self.calls.change(|| self.file.allocate(len))
    }
    fn len(&self) -> u64 {
        self.file.len()
    }
    fn sync(&self) -> Result<()> {
        self.calls.change(|| self.file.sync())
    }
    fn buffer_bytes(&self) -> u64 {
        self.file.buffer_bytes()
    }
    fn start_writeback(&self, from: u64, len: u64) {
        self.file.start_writeback(from, len);
    }
    fn truncate_to_position(&self) -> Result<()> {
        self.calls.change(|| self.file.truncate_to_position())
    }
    fn inject(&self, fault: InjectedFault<'_>) -> bool {
        self.file.inject(fault)
    }
}

struct RepeatingReader {
    file: Arc<dyn ReadFile>,
    calls: Calls,
}

impl ReadFile for RepeatingReader {
    fn name(&self) -> &str {
        self.file.name()
    }
    fn len(&self) -> u64 {
        self.file.len()
    }
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.calls.read(|| self.file.read_at(offset, buf))
    }
    fn read_by_descriptor(&self, read: &mut ReadByDescriptor<'_>) -> Result<bool> {
        self.calls.read(|| self.file.read_by_descriptor(read))
    }
    fn read_ranges(&self, ranges: &mut [ReadRange<'_>]) -> Result<()> {
        self.calls.read(|| self.file.read_ranges(ranges))
    }
    fn read_ranges_for(&self, purpose: ReadPurpose, ranges: &mut [ReadRange<'_>]) -> Result<()> {
        self.calls
            .read(|| self.file.read_ranges_for(purpose, ranges))
    }
    fn advise(&self, access: Access, offset: u64, len: u64) {
        self.file.advise(access, offset, len);
    }
    fn map(&self) -> Result<Option<Map>> {
        self.calls.read(|| self.file.map())
    }
}

struct RepeatingInputs {
    inputs: Arc<dyn Inputs>,
    calls: Calls,
}

impl Inputs for RepeatingInputs {
    fn table(
        &self,
        location: u32,
        name: &str,
    ) -> std::result::Result<Arc<dyn ReadFile>, TableError> {
        if location != 0 {
            return self.inputs.table(location, name);
        }
        let calls = self.calls.clone();
        let file = calls.read(|| self.inputs.table(location, name))?;
        Ok(Arc::new(RepeatingReader { file, calls }))
    }

    fn stream(
        &self,
        location: u32,
        name: &str,
    ) -> std::result::Result<Arc<dyn StreamSource>, TableError> {
        self.inputs.stream(location, name)
    }
}
