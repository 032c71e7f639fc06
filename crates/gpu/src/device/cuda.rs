//! GPUs of NVIDIA, through the driver's library, which is looked for when this is first used.
//!
//! A device has a context of its own, which is pushed on the calling thread's stack of contexts for
//! the time of each call. So a device may be used from any thread, and a thread that has another
//! context of CUDA keeps it.
//!
//! Invariants:
//!
//! - **C1 (handles)** What `Inner` holds was made by its driver in its context, and is destroyed
//!   by `Inner`'s destructor only. The device and all of its pinned buffers hold `Inner`.
//! - **C2 (copies)** A copy of a pinned buffer is counted after the driver's call, and an event's
//!   clock is taken before it (`progress.rs` has the reason).
//! - **C3 (events)** An event of the driver is either in the pool, or belongs to one [`Event`] that
//!   was not released. It is asked, and its clock used, under one lock.
//!
//! Threading: the driver's calls may be made from all threads at once.

// With the modules in `cuda` and the emulated device the only unsafe code of the crate.
#![allow(unsafe_code)]

mod cufile;
mod driver;
mod library;
mod nvrtc;

use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_uint, c_void};
use std::ops::Range;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::time::Duration;

use cudarc::driver::sys;
use siltstone_storage::{DirectFile, Mutex, Runtime};

pub use cufile::find_cufile;
use cufile::{CuFile, OpenFile};
use driver::{Driver, NOT_READY, call};
pub use nvrtc::compile;

use super::pinned::{PinnedBuffer, PinnedMemory};
use super::progress::{Clock, Progress, Use};
use super::{
    Device, DeviceError, DeviceFacts, DeviceFile, DirectMode, Event, PINNED_ALIGN_BYTES, Region,
    Stream, TransferError, Unavailable, check_copy, check_launch, ptx,
};

/// The version of CUDA whose compiler makes the PTX, which older drivers cannot read.
pub const DRIVER_VERSION_MIN: (u32, u32) = (12, 4);

/// The compute capability that the PTX is made for.
pub const CAPABILITY_MIN: (u32, u32) = (8, 0);

/// How often, with a millisecond between, the destructor asks whether the streams have come to
/// rest. Kernels and copies take milliseconds.
const REST_POLLS: u32 = 2000;

/// A pointer that the driver gave out, which means nothing to this process.
struct Handle<T>(*mut T);

impl<T> Clone for Handle<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Handle<T> {}

// SAFETY: a handle is never dereferenced here, and the driver takes it on any thread.
unsafe impl<T> Send for Handle<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Handle<T> {}

type StreamHandle = Handle<sys::CUstream_st>;
type EventHandle = Handle<sys::CUevent_st>;

/// The GPUs that can be opened. One that is too old, or of which the driver reports an error, is
/// left out if there are others.
///
/// # Errors
/// There is none, and why.
pub fn list() -> Result<Vec<DeviceFacts>, Unavailable> {
    let driver = Driver::load()?;
    let (version, count) = driver.begin()?;
    let (mut all, mut first_error) = (Vec::new(), None);
    for index in 0..count {
        match driver.facts(index, version) {
            Ok(facts) => all.push(facts),
            Err(error) => first_error = first_error.or(Some(error)),
        }
    }
    match first_error.filter(|_| all.is_empty()) {
        Some(error) => Err(error.into()),
        None => capable(all),
    }
}

/// The GPU with this number, or the first one of [`list`]. No context is made, so this is quick.
///
/// # Errors
/// There is none, and why.
pub fn find(index: Option<u32>) -> Result<DeviceFacts, Unavailable> {
    let Some(index) = index else {
        let all = list()?;
        // `list` does not return an empty list.
        return all.into_iter().next().ok_or(Unavailable::NoDevice {
            detail: "none is listed".to_string(),
        });
    };
    Ok(with_index(index)?.1)
}

/// The driver, and the GPU with this number, if it can be opened.
fn with_index(index: u32) -> Result<(Driver, DeviceFacts), Unavailable> {
    let driver = Driver::load()?;
    let (version, count) = driver.begin()?;
    if index >= count {
        return Err(Unavailable::NoSuchDevice { index, count });
    }
    let facts = driver.facts(index, version)?;
    capable(vec![facts.clone()])?;
    Ok((driver, facts))
}

/// Those that are new enough.
fn capable(all: Vec<DeviceFacts>) -> Result<Vec<DeviceFacts>, Unavailable> {
    let (good, old): (Vec<_>, Vec<_>) = all
        .into_iter()
        .partition(|facts| facts.capability >= CAPABILITY_MIN);
    if good.is_empty() {
        let found = old.iter().map(|facts| {
            let (major, minor) = facts.capability;
            format!("{} ({major}.{minor})", facts.name)
        });
        return Err(Unavailable::NotCapable {
            found: found.collect::<Vec<_>>().join(", "),
            needed: CAPABILITY_MIN,
        });
    }
    Ok(good)
}

/// All that has to be given back to the driver (C1).
struct Inner {
    driver: Driver,
    context: Handle<sys::CUctx_st>,
    taken: Mutex<Taken>,
    events: Mutex<Events>,
}

#[derive(Default)]
struct Taken {
    module: Option<Handle<sys::CUmod_st>>,
    regions: Vec<Region>,
    pinned: Vec<Handle<c_void>>,
    streams: Vec<StreamHandle>,
    /// Regions that are registered with the library of direct transfers.
    registered: Vec<Region>,
    /// That library, if direct transfers were begun.
    cufile: Option<&'static CuFile>,
}

#[derive(Default)]
struct Events {
    all: Vec<Slot>,
    /// Those that no [`Event`] has.
    free: Vec<u32>,
}

struct Slot {
    handle: EventHandle,
    generation: u32,
    /// The clock of its place, if an [`Event`] has it.
    clock: Option<Clock>,
}

impl Events {
    /// The slot of an event that was not released.
    fn slot(&self, what: &'static str, event: Event) -> Result<(EventHandle, &Clock), DeviceError> {
        let slot = self.all.get(event.index as usize);
        let slot = slot.filter(|slot| slot.generation == event.generation);
        slot.and_then(|slot| Some((slot.handle, slot.clock.as_ref()?)))
            .ok_or_else(|| DeviceError::misuse(what, "an event that was released"))
    }
}

impl Inner {
    /// Calls the driver in the device's context.
    fn within<T>(
        &self,
        f: impl FnOnce(&Driver) -> Result<T, DeviceError>,
    ) -> Result<T, DeviceError> {
        let driver = &self.driver;
        // SAFETY: the context lives (C1).
        driver.check(unsafe { call!(driver, cuCtxPushCurrent_v2(self.context.0)) })?;
        let result = f(driver);
        let mut popped = ptr::null_mut();
        // SAFETY: the driver writes one pointer.
        let pop = driver.check(unsafe { call!(driver, cuCtxPopCurrent_v2(&mut popped)) });
        let value = result?;
        pop?;
        if popped != self.context.0 {
            return Err(DeviceError::Call {
                what: "cuCtxPopCurrent_v2",
                detail: "a call has left another context on the stack of this thread".into(),
                is_sticky: true,
            });
        }
        Ok(value)
    }

    fn stream(&self, what: &'static str, stream: Stream) -> Result<StreamHandle, DeviceError> {
        let handle = self.taken.lock();
        let handle = handle.streams.get(stream.index as usize).copied();
        handle.ok_or_else(|| DeviceError::misuse(what, "a stream of another device"))
    }

    /// The region lies within one allocation (P2), which is returned.
    fn is_known(&self, what: &'static str, region: Region) -> Result<Region, DeviceError> {
        let taken = self.taken.lock();
        let mut known = taken.regions.iter();
        known
            .find(|known| known.contains(region))
            .copied()
            .ok_or_else(|| {
                let Region { at, bytes } = region;
                let detail =
                    format!("{bytes} bytes at {at:#x}, which the device has not allocated");
                DeviceError::misuse(what, detail)
            })
    }

    /// Loads the kernels: their addresses, by name.
    fn load(
        &self,
        ptx: &str,
        entries: &[ptx::Entry],
    ) -> Result<BTreeMap<String, Kernel>, Unavailable> {
        let text = CString::new(ptx).map_err(|_| Unavailable::Kernels {
            detail: "the PTX contains a zero byte".to_string(),
        })?;
        let mut log = [0u8; 4096];
        let mut options = [
            sys::CUjit_option::CU_JIT_ERROR_LOG_BUFFER,
            sys::CUjit_option::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES,
        ];
        let mut values = [
            log.as_mut_ptr().cast::<c_void>(),
            ptr::without_provenance_mut(log.len() - 1),
        ];
        let mut module = ptr::null_mut();
        let loaded = self.within(|driver| {
            // SAFETY: the text ends with a zero byte. There are two options with their values: the
            // driver writes its remarks into the buffer, which is as long as the second one says.
            driver.check(unsafe {
                call!(
                    driver,
                    cuModuleLoadDataEx(
                        &mut module,
                        text.as_ptr().cast(),
                        options.len() as c_uint,
                        options.as_mut_ptr(),
                        values.as_mut_ptr(),
                    )
                )
            })?;
            self.taken.lock().module = Some(Handle(module));
            Ok(())
        });
        loaded.map_err(|error| with_log(error, &log))?;
        let found = entries.iter().map(|entry| {
            let mut function = ptr::null_mut();
            let name = CString::new(entry.name.as_str()).unwrap_or_default();
            self.within(|driver| {
                // SAFETY: the module is loaded; the driver writes one pointer.
                driver.check(unsafe {
                    call!(
                        driver,
                        cuModuleGetFunction(&mut function, module, name.as_ptr())
                    )
                })
            })?;
            let kernel = Kernel {
                function: Handle(function),
                param_bytes: entry.param_bytes,
            };
            Ok((entry.name.clone(), kernel))
        });
        found.collect()
    }

    /// Whether the streams have come to rest, after a while. In a context that is lost nothing runs
    /// any more.
    fn comes_to_rest(&self) -> bool {
        let runtime = Runtime::threads();
        let streams = self.taken.lock().streams.clone();
        streams.iter().all(|stream| {
            (0..REST_POLLS).any(|poll| {
                if poll > 0 {
                    runtime.sleep(Duration::from_millis(1));
                }
                // SAFETY: the stream lives (C1), and the context is pushed by the caller.
                let asked = unsafe { call!(self.driver, cuStreamQuery(stream.0)) };
                let asked = self.driver.check(asked);
                asked.map_or_else(|error| error.is_sticky(), |()| true)
            })
        })
    }
}

impl Drop for Inner {
    /// Errors are ignored: there is nothing else to be done, and what could not be given back goes
    /// with the context. If the streams do not come to rest, everything is left as it is, because
    /// the driver would wait for them without end.
    fn drop(&mut self) {
        let driver = self.driver;
        let mut is_at_rest = true;
        let _ = self.within(|_| {
            is_at_rest = self.comes_to_rest();
            if !is_at_rest {
                return Ok(());
            }
            let taken = &mut *self.taken.lock();
            // SAFETY: all of these were made in this context, which is the current one, are
            // destroyed here only, and are not used again: nobody else has `Inner` (C1). Nothing
            // runs that uses them.
            unsafe {
                for slot in self.events.lock().all.drain(..) {
                    (driver.cuEventDestroy_v2)(slot.handle.0);
                }
                for stream in taken.streams.drain(..) {
                    (driver.cuStreamDestroy_v2)(stream.0);
                }
                if let Some(module) = taken.module.take() {
                    (driver.cuModuleUnload)(module.0);
                }
                for region in taken.registered.drain(..) {
                    if let Some(cufile) = taken.cufile {
                        cufile.deregister(region);
                    }
                }
                for region in taken.regions.drain(..) {
                    (driver.cuMemFree_v2)(region.at);
                }
                for pinned in taken.pinned.drain(..) {
                    (driver.cuMemFreeHost)(pinned.0);
                }
            }
            Ok(())
        });
        if is_at_rest {
            // SAFETY: the context was made by `open`, and nobody else has it (C1).
            unsafe { (driver.cuCtxDestroy_v2)(self.context.0) };
        }
    }
}

/// The error with what the driver's compiler said.
fn with_log(error: DeviceError, log: &[u8]) -> DeviceError {
    let log = CStr::from_bytes_until_nul(log).unwrap_or_default();
    let log = log.to_string_lossy();
    match error {
        DeviceError::Call {
            what,
            detail,
            is_sticky,
        } if !log.trim().is_empty() => DeviceError::Call {
            what,
            detail: format!("{detail}; the driver's compiler says: {}", log.trim()),
            is_sticky,
        },
        error => error,
    }
}

#[derive(Clone, Copy)]
struct Kernel {
    function: Handle<sys::CUfunc_st>,
    param_bytes: usize,
}

/// A GPU of NVIDIA.
pub struct CudaDevice {
    inner: Arc<Inner>,
    facts: DeviceFacts,
    kernels: BTreeMap<String, Kernel>,
    progress: Arc<Progress>,
}

impl CudaDevice {
    /// Opens the GPU with this number, and loads the kernels of a text of PTX. Without the driver's
    /// cache of compiled kernels this takes seconds.
    ///
    /// # Errors
    /// Why it cannot be used.
    pub fn open(index: u32, ptx: &str) -> Result<CudaDevice, Unavailable> {
        let entries = ptx::entries(ptx).map_err(|detail| Unavailable::Kernels { detail })?;
        let (driver, mut facts) = with_index(index)?;
        let device = driver.device(index)?;
        // A thread that waits for the GPU, in the destructor, sleeps.
        let flags = sys::CUctx_flags::CU_CTX_SCHED_BLOCKING_SYNC as c_uint;
        let mut context = ptr::null_mut();
        // SAFETY: the driver writes one pointer.
        driver.check(unsafe { call!(driver, cuCtxCreate_v2(&mut context, flags, device)) })?;
        let runtime = Runtime::threads();
        let inner = Inner {
            driver,
            context: Handle(context),
            taken: runtime.mutex(Taken::default()),
            events: runtime.mutex(Events::default()),
        };
        // A new context is pushed.
        let mut popped = ptr::null_mut();
        // SAFETY: the driver writes one pointer.
        driver.check(unsafe { call!(driver, cuCtxPopCurrent_v2(&mut popped)) })?;
        let mut free = 0;
        inner.within(|driver| {
            let mut total = 0;
            // SAFETY: the driver writes two numbers.
            driver.check(unsafe { call!(driver, cuMemGetInfo_v2(&mut free, &mut total)) })
        })?;
        facts.memory_free_bytes = Some(free as u64);
        let kernels = inner.load(ptx, &entries)?;
        Ok(CudaDevice {
            inner: Arc::new(inner),
            facts,
            kernels,
            progress: Arc::new(Progress::new(&runtime)),
        })
    }

    /// The buffer is this device's.
    fn is_own(&self, what: &'static str, buffer: &PinnedBuffer) -> Result<(), DeviceError> {
        match buffer.is_of(&self.progress) {
            true => Ok(()),
            false => Err(DeviceError::misuse(
                what,
                "a pinned buffer of another device",
            )),
        }
    }

    /// An event of the driver that is not in use.
    fn event(&self) -> Result<u32, DeviceError> {
        if let Some(index) = self.inner.events.lock().free.pop() {
            return Ok(index);
        }
        self.inner.within(|driver| {
            let mut event = ptr::null_mut();
            let flags = sys::CUevent_flags::CU_EVENT_DEFAULT as c_uint;
            // SAFETY: the driver writes one pointer.
            driver.check(unsafe { call!(driver, cuEventCreate(&mut event, flags)) })?;
            let all = &mut self.inner.events.lock().all;
            all.push(Slot {
                handle: Handle(event),
                generation: 0,
                clock: None,
            });
            Ok((all.len() - 1) as u32)
        })
    }
}

impl Device for CudaDevice {
    fn name(&self) -> String {
        self.facts.name.clone()
    }

    fn facts(&self) -> DeviceFacts {
        self.facts.clone()
    }

    fn alloc(&self, bytes: u64) -> Result<Region, DeviceError> {
        let size = usize::try_from(bytes).unwrap_or(0);
        if size == 0 {
            return Err(DeviceError::misuse("alloc", format!("{bytes} bytes")));
        }
        self.inner.within(|driver| {
            let mut at = 0;
            // SAFETY: the driver writes one number.
            driver.check(unsafe { call!(driver, cuMemAlloc_v2(&mut at, size)) })?;
            let region = Region { at, bytes };
            self.inner.taken.lock().regions.push(region);
            Ok(region)
        })
    }

    fn alloc_pinned(&self, bytes: usize) -> Result<PinnedBuffer, DeviceError> {
        const WHAT: &str = "cuMemHostAlloc";
        if bytes == 0 {
            return Err(DeviceError::misuse("alloc_pinned", "0 bytes"));
        }
        let at = self.inner.within(|driver| {
            let mut at = ptr::null_mut();
            // No flags: the memory is not write-combined, which the CPU would read slowly.
            // SAFETY: the driver writes one pointer.
            driver.check(unsafe { call!(driver, cuMemHostAlloc(&mut at, bytes, 0)) })?;
            self.inner.taken.lock().pinned.push(Handle(at));
            Ok(at)
        })?;
        let at = NonNull::new(at.cast::<u8>());
        let at = at.filter(|at| at.addr().get().is_multiple_of(PINNED_ALIGN_BYTES));
        let at = at.ok_or(DeviceError::Call {
            what: WHAT,
            detail: "the memory does not begin at a page".to_string(),
            is_sticky: false,
        })?;
        // SAFETY: the memory is new, and has this length.
        unsafe { at.write_bytes(0, bytes) };
        let memory = CudaPinned {
            at,
            bytes,
            _inner: Arc::clone(&self.inner),
        };
        Ok(PinnedBuffer::new(Box::new(memory), &self.progress))
    }

    fn stream(&self) -> Result<Stream, DeviceError> {
        self.inner.within(|driver| {
            let mut stream = ptr::null_mut();
            // Streams are independent of the driver's own stream.
            let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as c_uint;
            // SAFETY: the driver writes one pointer.
            driver.check(unsafe { call!(driver, cuStreamCreate(&mut stream, flags)) })?;
            // Both lists grow under one lock, so that they agree on the number.
            let mut taken = self.inner.taken.lock();
            taken.streams.push(Handle(stream));
            let index = self.progress.add_stream();
            Ok(Stream { index })
        })
    }

    fn copy_in(
        &self,
        stream: Stream,
        to: Region,
        from: &PinnedBuffer,
        range: Range<usize>,
    ) -> Result<(), DeviceError> {
        check_copy("copy_in", to, from, &range)?;
        self.is_own("copy_in", from)?;
        self.inner.is_known("copy_in", to)?;
        let handle = self.inner.stream("copy_in", stream)?;
        if range.is_empty() {
            return Ok(());
        }
        let address = from.address().wrapping_add(range.start);
        let copied = self.inner.within(|driver| {
            // SAFETY: the source lies within a pinned buffer, which lives as long as the context,
            // and which nobody writes until the copy has passed (P1). The target lies within an
            // allocation (P2). The stream lives (C1).
            driver.check(unsafe {
                call!(
                    driver,
                    cuMemcpyHtoDAsync_v2(to.at, address.cast(), range.len(), handle.0)
                )
            })
        });
        from.is_copied(stream.index, Use::Reads);
        copied
    }

    fn copy_out(
        &self,
        stream: Stream,
        to: &mut PinnedBuffer,
        range: Range<usize>,
        from: Region,
    ) -> Result<(), DeviceError> {
        check_copy("copy_out", from, to, &range)?;
        self.is_own("copy_out", to)?;
        self.inner.is_known("copy_out", from)?;
        let handle = self.inner.stream("copy_out", stream)?;
        if range.is_empty() {
            return Ok(());
        }
        let address = to.address().wrapping_add(range.start);
        let copied = self.inner.within(|driver| {
            // SAFETY: the target lies within a pinned buffer, which lives as long as the context,
            // and whose bytes nobody reads or writes until the copy has passed (P1). The source
            // lies within an allocation (P2). The stream lives (C1).
            driver.check(unsafe {
                call!(
                    driver,
                    cuMemcpyDtoHAsync_v2(address.cast(), from.at, range.len(), handle.0)
                )
            })
        });
        to.is_copied(stream.index, Use::Writes);
        copied
    }

    fn fill(&self, stream: Stream, to: Region, byte: u8) -> Result<(), DeviceError> {
        self.inner.is_known("fill", to)?;
        let handle = self.inner.stream("fill", stream)?;
        let Ok(size @ 1..) = usize::try_from(to.bytes) else {
            return Ok(());
        };
        self.inner.within(|driver| {
            // SAFETY: the region lies within an allocation (P2). The stream lives (C1).
            driver.check(unsafe { call!(driver, cuMemsetD8Async(to.at, byte, size, handle.0)) })
        })
    }

    fn launch(
        &self,
        stream: Stream,
        kernel: &'static str,
        blocks: u32,
        threads: u32,
        args: &[u8],
    ) -> Result<(), DeviceError> {
        let Kernel {
            function,
            param_bytes,
        } = *self.kernels.get(kernel).ok_or_else(|| {
            DeviceError::misuse("launch", format!("`{kernel}`, which is not in the PTX"))
        })?;
        check_launch(kernel, threads, args, param_bytes)?;
        let handle = self.inner.stream("launch", stream)?;
        if blocks == 0 {
            return Ok(());
        }
        let mut size = args.len();
        let word = |number: u32| ptr::without_provenance_mut::<c_void>(number as usize);
        let mut extra = [
            word(sys::CU_LAUNCH_PARAM_BUFFER_POINTER_AS_INT),
            args.as_ptr().cast_mut().cast(),
            word(sys::CU_LAUNCH_PARAM_BUFFER_SIZE_AS_INT),
            (&raw mut size).cast(),
            word(sys::CU_LAUNCH_PARAM_END_AS_INT),
        ];
        self.inner.within(|driver| {
            // SAFETY: the driver copies the arguments, whose length it gets, before it returns.
            // The function is of the loaded module, and the stream lives (C1). Where the kernel
            // reads and writes is promise G4 of the RFC.
            driver.check(unsafe {
                call!(
                    driver,
                    cuLaunchKernel(
                        function.0,
                        blocks,
                        1,
                        1,
                        threads,
                        1,
                        1,
                        0,
                        handle.0,
                        ptr::null_mut(),
                        extra.as_mut_ptr(),
                    )
                )
            })
        })
    }

    fn record(&self, stream: Stream) -> Result<Event, DeviceError> {
        let stream_handle = self.inner.stream("record", stream)?;
        let index = self.event()?;
        let handle = self.inner.events.lock().all[index as usize].handle;
        // Before the call (C2).
        let clock = self.progress.clock(stream.index);
        let recorded = self.inner.within(|driver| {
            // SAFETY: event and stream live (C1), and the event is nobody else's (C3).
            driver.check(unsafe { call!(driver, cuEventRecord(handle.0, stream_handle.0)) })
        });
        let events = &mut *self.inner.events.lock();
        if let Err(error) = recorded {
            events.free.push(index);
            return Err(error);
        }
        let slot = &mut events.all[index as usize];
        slot.clock = Some(clock);
        Ok(Event {
            index,
            generation: slot.generation,
        })
    }

    fn wait(&self, stream: Stream, event: Event) -> Result<(), DeviceError> {
        let stream_handle = self.inner.stream("wait", stream)?;
        let events = self.inner.events.lock();
        let (handle, clock) = events.slot("wait", event)?;
        self.inner.within(|driver| {
            // SAFETY: event and stream live (C1).
            driver.check(unsafe { call!(driver, cuStreamWaitEvent(stream_handle.0, handle.0, 0)) })
        })?;
        self.progress.waits(stream.index, clock);
        Ok(())
    }

    fn is_done(&self, event: Event) -> Result<bool, DeviceError> {
        let events = self.inner.events.lock();
        let (handle, clock) = events.slot("is_done", event)?;
        let is_done = self.inner.within(|driver| {
            // SAFETY: the event lives (C1).
            let asked = unsafe { call!(driver, cuEventQuery(handle.0)) };
            if asked.1 == NOT_READY {
                return Ok(false);
            }
            driver.check(asked).map(|()| true)
        })?;
        if is_done {
            self.progress.passes(clock);
        }
        Ok(is_done)
    }

    fn seconds_between(&self, a: Event, b: Event) -> Result<f64, DeviceError> {
        let events = self.inner.events.lock();
        let (a, _) = events.slot("seconds_between", a)?;
        let (b, _) = events.slot("seconds_between", b)?;
        let mut milliseconds = 0f32;
        self.inner.within(|driver| {
            // SAFETY: both events live (C1); the driver writes one number.
            driver.check(unsafe { call!(driver, cuEventElapsedTime(&mut milliseconds, a.0, b.0)) })
        })?;
        Ok(f64::from(milliseconds) / 1000.0)
    }

    fn release(&self, event: Event) {
        let events = &mut *self.inner.events.lock();
        let Some(slot) = events.all.get_mut(event.index as usize) else {
            return;
        };
        if slot.generation == event.generation && slot.clock.take().is_some() {
            slot.generation = slot.generation.wrapping_add(1);
            events.free.push(event.index);
        }
    }

    /// Memory that cannot be registered is reached through buffers of the library, so it is no
    /// error.
    fn begin_direct(&self) -> Result<DirectMode, String> {
        let begun = self.inner.within(|_| {
            let cufile = match cufile::shared() {
                Ok(cufile) => cufile,
                Err(why) => return Ok(Err(why)),
            };
            let taken = &mut *self.inner.taken.lock();
            taken.cufile = Some(cufile);
            for region in &taken.regions {
                if !taken.registered.contains(region) && cufile.register(*region).is_ok() {
                    taken.registered.push(*region);
                }
            }
            Ok(Ok(cufile.mode(taken.regions.len() - taken.registered.len())))
        });
        begun.map_err(|error| error.to_string())?
    }

    fn open_file<'a>(
        &'a self,
        file: DirectFile<'a>,
    ) -> Result<Box<dyn DeviceFile + 'a>, DeviceError> {
        let cufile = self.inner.taken.lock().cufile;
        let Some(cufile) = cufile else {
            let detail = "a file before direct transfers were begun";
            return Err(DeviceError::misuse("open_file", detail));
        };
        let inner = &*self.inner;
        let file = inner.within(|_| OpenFile::open(cufile, file.descriptor))?;
        let file = Some(file);
        Ok(Box::new(CudaFile { inner, file }))
    }
}

/// A file that is open for direct transfers.
struct CudaFile<'a> {
    inner: &'a Inner,
    /// `None` only while it is dropped.
    file: Option<OpenFile<'a>>,
}

impl Drop for CudaFile<'_> {
    /// Closes the file in the device's context.
    fn drop(&mut self) {
        let file = self.file.take();
        let _ = self.inner.within(|_| {
            drop(file);
            Ok(())
        });
    }
}

impl CudaFile<'_> {
    /// Makes a transfer of a region, which lies within the allocation that `transfer` gets.
    fn within(
        &self,
        what: &'static str,
        region: Region,
        transfer: impl FnOnce(&OpenFile<'_>, Region) -> Result<(), TransferError>,
    ) -> Result<(), TransferError> {
        let whole = self.inner.is_known(what, region)?;
        let mut result = Ok(());
        self.inner.within(|_| {
            if let Some(file) = &self.file {
                result = transfer(file, whole);
            }
            Ok(())
        })?;
        result
    }
}

impl DeviceFile for CudaFile<'_> {
    fn read(&mut self, to: Region, offset: u64) -> Result<(), TransferError> {
        self.within("read", to, |file, whole| file.read(whole, to, offset))
    }

    fn write(&mut self, from: Region, offset: u64) -> Result<(), TransferError> {
        self.within("write", from, |file, whole| file.write(whole, from, offset))
    }
}

/// The memory of a pinned buffer.
struct CudaPinned {
    at: NonNull<u8>,
    bytes: usize,
    /// Keeps the memory (P3).
    _inner: Arc<Inner>,
}

// SAFETY: the memory belongs to this value alone, apart from copies (P1), and has no thread.
unsafe impl Send for CudaPinned {}
// SAFETY: shared references only read it.
unsafe impl Sync for CudaPinned {}

impl PinnedMemory for CudaPinned {
    fn bytes(&self) -> &[u8] {
        // SAFETY: the memory lives as long as `_inner`, is initialised, and the device does not
        // write it now (P1, which `PinnedBuffer`, the only caller, asks for).
        unsafe { std::slice::from_raw_parts(self.at.as_ptr(), self.bytes) }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and the device does not read it either.
        unsafe { std::slice::from_raw_parts_mut(self.at.as_ptr(), self.bytes) }
    }

    fn address(&self) -> *mut u8 {
        self.at.as_ptr()
    }

    fn len(&self) -> usize {
        self.bytes
    }
}
