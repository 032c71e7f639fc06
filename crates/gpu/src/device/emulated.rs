//! A device that is the host: its memory is memory of the process, and its kernels are the sources
//! of the GPU's kernels, compiled by the host's compiler.
//!
//! It exists for tests and trials, and is no stand-in for speed. It is strict where a GPU is not:
//!
//! - Work in a stream is done late, and in an order that a seed decides; only streams and events
//!   constrain it. So a missing wait, or a buffer that is used again too early, gives a wrong
//!   result here, although it may go unnoticed on a GPU.
//! - The threads of a kernel run in an order that the seed decides.
//! - An index out of bounds in a kernel ends the kernel, and is an error of the device with the
//!   line of the source. As on a GPU, all later calls then fail.
//! - Memory is full of garbage when it is taken.
//! - Calls can be made to fail, and copies to flip a bit ([`Faults`]).
//!
//! Invariants: P1 to P3 of [`super`]. Addresses in the queues of streams lie within memory that the
//! device or its pinned buffers own, because every call checks them (P2), and neither is freed
//! before the queues.
//!
//! Threading: one lock around everything; kernels run under it.
#![allow(unsafe_code)]

use std::collections::{BTreeMap, VecDeque};
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ops::Range;
use std::sync::Arc;

use siltstone_storage::{DirectFile, Mutex, Runtime};

use super::pinned::PinnedMemory;
use super::progress::{Clock, Progress, Use};
use super::{
    Device, DeviceError, DeviceFacts, DeviceFile, DirectMode, Event, PinnedBuffer, Region, Stream,
    TransferError, check_copy,
};

/// What goes wrong, and when. Calls are counted from 1; 0 means never. Transfers between a file and
/// the device are copies, too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// This call fails.
    pub failing_call: u64,
    /// The call that fails, and all later ones: the error is sticky.
    pub is_sticky: bool,
    /// This copy, in or out, has a flipped bit.
    pub flipped_copy: u64,
    /// Before this copy from the device, a bit of the memory that is copied flips, so the copy has
    /// the same wrong bit and no checksum shows it. Copies in are counted, too.
    pub flipped_source: u64,
    /// Which bit of the copy or of its source, modulo its length.
    pub flipped_bit: u64,
    /// This transfer between a file and the device does nothing, and says that all is well.
    pub idle_transfer: u64,
    /// No file can be opened for such transfers.
    pub refuses_files: bool,
    /// From this kernel on, nothing ends any more.
    pub hanging_kernel: u64,
}

/// What went wrong in a kernel, and how many accesses to arrays it made, as `emulated.c` has it.
#[repr(C)]
struct KernelFault {
    index: u64,
    count: u64,
    file: *const c_char,
    line: u32,
    is_set: u32,
    accesses: u64,
}

unsafe extern "C" {
    fn siltstone_emulated_launch(
        name: *const c_char,
        args: *const c_void,
        args_bytes: u64,
        blocks: u32,
        threads: u32,
        seed: u64,
        fault: *mut KernelFault,
    ) -> c_int;

    fn siltstone_emulated_kernel(i: u64, args_bytes: *mut u64) -> *const c_char;
}

/// The kernels by name, each with the size of its arguments in bytes.
pub fn kernels() -> Vec<(String, u64)> {
    let kernel = |i| {
        let mut args_bytes = 0;
        // SAFETY: the function writes one number, and returns a string constant or null.
        let name = unsafe { siltstone_emulated_kernel(i, &mut args_bytes) };
        // SAFETY: a string constant of the kernels.
        let name = (!name.is_null()).then(|| unsafe { CStr::from_ptr(name) });
        name.map(|name| (name.to_string_lossy().into_owned(), args_bytes))
    };
    (0..).map_while(kernel).collect()
}

/// Memory at a fixed address, which is freed when it is dropped.
struct Memory {
    at: *mut u8,
    bytes: usize,
    layout: std::alloc::Layout,
}

// SAFETY: it owns what it points to, as a box does.
unsafe impl Send for Memory {}
// SAFETY: the address is only read.
unsafe impl Sync for Memory {}

/// The bytes after the end of a region that kernels may read.
const SLACK_BYTES: usize = 64;

impl Memory {
    fn new(bytes: usize, fill: u8) -> Option<Memory> {
        let layout = std::alloc::Layout::from_size_align(bytes + SLACK_BYTES, 4096).ok()?;
        // SAFETY: the layout has bytes.
        let at = unsafe { std::alloc::alloc(layout) };
        if at.is_null() {
            return None;
        }
        // SAFETY: `at` has this many bytes.
        unsafe { at.write_bytes(fill, bytes + SLACK_BYTES) };
        Some(Memory { at, bytes, layout })
    }

    fn region(&self) -> Region {
        Region {
            at: self.at.expose_provenance() as u64,
            bytes: self.bytes as u64,
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: it was allocated with this layout, and nothing else frees it.
        unsafe { std::alloc::dealloc(self.at, self.layout) };
    }
}

/// A pinned buffer. It keeps the device's state alive, whose queues may name it.
struct Pinned {
    memory: Arc<Memory>,
}

impl PinnedMemory for Pinned {
    fn bytes(&self) -> &[u8] {
        // SAFETY: the memory lives as long as `self`, and P1 says that nobody writes it meanwhile.
        unsafe { std::slice::from_raw_parts(self.memory.at, self.memory.bytes) }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and nobody reads it meanwhile.
        unsafe { std::slice::from_raw_parts_mut(self.memory.at, self.memory.bytes) }
    }

    fn address(&self) -> *mut u8 {
        self.memory.at
    }

    fn len(&self) -> usize {
        self.memory.bytes
    }
}

/// Flips a bit of a range of memory, which was compared with that of the device or of a pinned
/// buffer when the work was put into its stream.
fn flip(at: usize, bytes: usize, bit: u64) {
    if bytes > 0 {
        let bit = bit % (8 * bytes as u64);
        let at: *mut u8 = std::ptr::with_exposed_provenance_mut(at + (bit / 8) as usize);
        // SAFETY: the byte is within the range, which nobody else uses during the work.
        unsafe { *at ^= 1 << (bit % 8) };
    }
}

enum Work {
    Copy {
        to: usize,
        from: usize,
        bytes: usize,
        flipped_bit: Option<u64>,
    },
    Fill {
        to: usize,
        bytes: usize,
        byte: u8,
    },
    /// A bit of the device's memory flips.
    Flip {
        at: usize,
        bytes: usize,
        bit: u64,
    },
    Launch {
        kernel: CString,
        blocks: u32,
        threads: u32,
        args: Vec<u64>,
        args_bytes: u64,
        hangs: bool,
    },
    /// The record with this number has passed.
    Record(usize),
    /// What follows begins when this record has passed, whatever became of its event.
    Wait(usize),
}

#[derive(Default)]
struct EventState {
    generation: u32,
    is_free: bool,
    record: usize,
    clock: Clock,
}

struct State {
    memory: Vec<Memory>,
    /// Kept until the queues that may name it are gone.
    pinned: Vec<Arc<Memory>>,
    streams: Vec<VecDeque<Work>>,
    events: Vec<EventState>,
    /// Whether each record of an event has passed.
    records: Vec<bool>,
    /// The error of a kernel, after which every call fails.
    broken: Option<String>,
    random: u64,
    seed: u64,
    calls: u64,
    copies: u64,
    kernels: u64,
    transfers: u64,
    /// The accesses to arrays of each kernel.
    accesses: BTreeMap<CString, u64>,
}

/// See the module.
pub struct EmulatedDevice {
    state: Mutex<State>,
    progress: Arc<Progress>,
    memory_bytes: u64,
    faults: Faults,
}

fn failure(what: &'static str, detail: impl Into<String>, is_sticky: bool) -> DeviceError {
    DeviceError::Call {
        what,
        detail: detail.into(),
        is_sticky,
    }
}

impl EmulatedDevice {
    /// A device with this much memory, without faults. With seed 0 everything is done at once and
    /// in order.
    pub fn new(runtime: &Runtime, memory_bytes: u64, seed: u64) -> EmulatedDevice {
        EmulatedDevice::with_faults(runtime, memory_bytes, seed, Faults::default())
    }

    /// A device with faults.
    pub fn with_faults(
        runtime: &Runtime,
        memory_bytes: u64,
        seed: u64,
        faults: Faults,
    ) -> EmulatedDevice {
        EmulatedDevice {
            state: runtime.mutex(State {
                memory: Vec::new(),
                pinned: Vec::new(),
                streams: Vec::new(),
                events: Vec::new(),
                records: Vec::new(),
                broken: None,
                random: seed,
                seed,
                calls: 0,
                copies: 0,
                kernels: 0,
                transfers: 0,
                accesses: BTreeMap::new(),
            }),
            progress: Arc::new(Progress::new(runtime)),
            memory_bytes,
            faults,
        }
    }

    /// The numbers of calls, copies and kernels so far.
    pub fn counts(&self) -> (u64, u64, u64) {
        let state = self.state.lock();
        (state.calls, state.copies, state.kernels)
    }

    /// How many accesses to arrays all launches of a kernel made so far. An access to a structure
    /// is one.
    pub fn accesses(&self, kernel: &str) -> u64 {
        let state = self.state.lock();
        let mut all = state.accesses.iter();
        all.find(|(name, _)| name.to_bytes() == kernel.as_bytes())
            .map_or(0, |(_, count)| *count)
    }

    /// The number of events that were not released.
    pub fn events_in_use(&self) -> usize {
        let state = self.state.lock();
        state.events.iter().filter(|event| !event.is_free).count()
    }

    /// Counts a call, and fails if it is to fail.
    fn begin(&self, state: &mut State, what: &'static str) -> Result<(), DeviceError> {
        state.calls += 1;
        if let Some(detail) = &state.broken {
            return Err(failure(what, detail.clone(), true));
        }
        if state.calls == self.faults.failing_call {
            if self.faults.is_sticky {
                state.broken = Some("an error that was asked for".into());
            }
            let detail = "an error that was asked for";
            return Err(failure(what, detail, self.faults.is_sticky));
        }
        Ok(())
    }

    fn add(&self, state: &mut State, stream: Stream, work: Work) -> Result<(), DeviceError> {
        let Some(queue) = state.streams.get_mut(stream.index as usize) else {
            return Err(DeviceError::misuse("stream", "a stream of another device"));
        };
        queue.push_back(work);
        if state.seed == 0 {
            self.run(state, usize::MAX);
        }
        Ok(())
    }

    fn check_region(
        &self,
        state: &State,
        what: &'static str,
        region: Region,
    ) -> Result<(), DeviceError> {
        let is_known = |memory: &Memory| memory.region().contains(region);
        match state.memory.iter().any(is_known) {
            true => Ok(()),
            false => Err(DeviceError::misuse(
                what,
                format!("{} bytes that are not the device's", region.bytes),
            )),
        }
    }

    /// Does up to `most` pieces of work, drawn among the streams whose first one may begin.
    fn run(&self, state: &mut State, most: usize) {
        for _ in 0..most {
            if state.broken.is_some() {
                return;
            }
            let may_begin = |queue: &VecDeque<Work>| match queue.front() {
                None => false,
                Some(Work::Wait(record)) => state.records[*record],
                Some(Work::Launch { hangs, .. }) => !hangs,
                Some(_) => true,
            };
            let ready: Vec<usize> = (0..state.streams.len())
                .filter(|i| may_begin(&state.streams[*i]))
                .collect();
            if ready.is_empty() {
                return;
            }
            state.random = state
                .random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let stream = ready[(state.random >> 33) as usize % ready.len()];
            if let Some(work) = state.streams[stream].pop_front() {
                self.do_work(state, work);
            }
        }
    }

    fn do_work(&self, state: &mut State, work: Work) {
        match work {
            Work::Copy {
                to,
                from,
                bytes,
                flipped_bit,
            } => {
                let to: *mut u8 = std::ptr::with_exposed_provenance_mut(to);
                let from: *const u8 = std::ptr::with_exposed_provenance(from);
                // SAFETY: both ranges were checked when the copy was put into the stream; one is of
                // the device and one of a pinned buffer, so they do not overlap; P1 keeps the host
                // from the buffer.
                unsafe { std::ptr::copy_nonoverlapping(from, to, bytes) };
                if let Some(bit) = flipped_bit {
                    flip(to.expose_provenance(), bytes, bit);
                }
            }
            Work::Fill { to, bytes, byte } => {
                let to: *mut u8 = std::ptr::with_exposed_provenance_mut(to);
                // SAFETY: the range was checked when the fill was put into the stream.
                unsafe { to.write_bytes(byte, bytes) };
            }
            Work::Flip { at, bytes, bit } => flip(at, bytes, bit),
            Work::Launch {
                kernel,
                blocks,
                threads,
                args,
                args_bytes,
                ..
            } => {
                let seed = match state.seed {
                    0 => 0,
                    _ => state.random | 1,
                };
                let mut fault = KernelFault {
                    index: 0,
                    count: 0,
                    file: std::ptr::null(),
                    line: 0,
                    is_set: 0,
                    accesses: 0,
                };
                // SAFETY: `args` has `args_bytes` bytes, and the function compares this with what
                // the kernel takes. Kernels reach memory through arrays only, and compare each
                // index with the array's length. The arrays are those of the crate's `kernels`
                // module, which makes them of regions of this device.
                let result = unsafe {
                    siltstone_emulated_launch(
                        kernel.as_ptr(),
                        args.as_ptr().cast(),
                        args_bytes,
                        blocks,
                        threads,
                        seed,
                        &mut fault,
                    )
                };
                *state.accesses.entry(kernel.clone()).or_default() += fault.accesses;
                let name = kernel.to_string_lossy();
                state.broken = match result {
                    0 => None,
                    1 => {
                        // SAFETY: the file is a string constant of the kernels.
                        let file = unsafe { CStr::from_ptr(fault.file) }.to_string_lossy();
                        let what = match fault.index < fault.count {
                            true => "a misaligned place, with",
                            false => "a place that is out of bounds, with",
                        };
                        Some(format!(
                            "`{name}` used {what} index {} of an array of {} at {file}:{}",
                            fault.index, fault.count, fault.line
                        ))
                    }
                    2 => Some(format!("there is no kernel `{name}`")),
                    _ => Some(format!("`{name}` does not take {args_bytes} bytes")),
                };
            }
            Work::Record(record) => state.records[record] = true,
            Work::Wait(_) => {}
        }
    }

    fn event<'a>(
        state: &'a mut State,
        what: &'static str,
        event: Event,
    ) -> Result<&'a mut EventState, DeviceError> {
        match state.events.get_mut(event.index as usize) {
            Some(found) if found.generation == event.generation && !found.is_free => Ok(found),
            _ => Err(DeviceError::misuse(what, "an event that was released")),
        }
    }

    /// Counts a transfer. Returns whether it does nothing.
    fn is_idle(&self, state: &mut State) -> bool {
        state.transfers += 1;
        state.transfers == self.faults.idle_transfer
    }

    /// The number of transfers between files and the device so far.
    pub fn transfer_count(&self) -> u64 {
        self.state.lock().transfers
    }

    fn flipped(&self, state: &mut State) -> Option<u64> {
        state.copies += 1;
        (state.copies == self.faults.flipped_copy).then_some(self.faults.flipped_bit)
    }
}

impl Device for EmulatedDevice {
    fn name(&self) -> String {
        "emulated".into()
    }

    fn facts(&self) -> DeviceFacts {
        DeviceFacts {
            index: 0,
            name: self.name(),
            memory_bytes: self.memory_bytes,
            memory_free_bytes: Some(self.memory_bytes),
            capability: (0, 0),
            driver_version: (0, 0),
            pci_bus_id: String::new(),
            multiprocessor_count: 1,
            is_emulated: true,
        }
    }

    fn alloc(&self, bytes: u64) -> Result<Region, DeviceError> {
        let mut state = self.state.lock();
        self.begin(&mut state, "alloc")?;
        let taken: u64 = state.memory.iter().map(|m| m.bytes as u64).sum();
        let is_too_much = bytes == 0 || bytes > self.memory_bytes.saturating_sub(taken);
        let memory = match is_too_much {
            true => None,
            false => Memory::new(bytes as usize, 0xa5),
        };
        let Some(memory) = memory else {
            return Err(failure(
                "alloc",
                format!("no room for {bytes} bytes"),
                false,
            ));
        };
        let region = memory.region();
        state.memory.push(memory);
        Ok(region)
    }

    fn alloc_pinned(&self, bytes: usize) -> Result<PinnedBuffer, DeviceError> {
        let mut state = self.state.lock();
        self.begin(&mut state, "alloc_pinned")?;
        let memory = match bytes {
            0 => None,
            _ => Memory::new(bytes, 0),
        };
        let Some(memory) = memory.map(Arc::new) else {
            return Err(failure("alloc_pinned", format!("no {bytes} bytes"), false));
        };
        state.pinned.push(Arc::clone(&memory));
        let memory = Box::new(Pinned { memory });
        Ok(PinnedBuffer::new(memory, &self.progress))
    }

    fn stream(&self) -> Result<Stream, DeviceError> {
        let mut state = self.state.lock();
        self.begin(&mut state, "stream")?;
        state.streams.push(VecDeque::new());
        let index = self.progress.add_stream();
        Ok(Stream { index })
    }

    fn copy_in(
        &self,
        stream: Stream,
        to: Region,
        from: &PinnedBuffer,
        range: Range<usize>,
    ) -> Result<(), DeviceError> {
        let mut state = self.state.lock();
        self.begin(&mut state, "copy_in")?;
        check_copy("copy_in", to, from, &range)?;
        self.check_region(&state, "copy_in", to)?;
        let flipped_bit = self.flipped(&mut state);
        let work = Work::Copy {
            to: to.at as usize,
            from: from.address().expose_provenance() + range.start,
            bytes: range.len(),
            flipped_bit,
        };
        from.is_copied(stream.index, Use::Reads);
        self.add(&mut state, stream, work)
    }

    fn copy_out(
        &self,
        stream: Stream,
        to: &mut PinnedBuffer,
        range: Range<usize>,
        from: Region,
    ) -> Result<(), DeviceError> {
        let mut state = self.state.lock();
        self.begin(&mut state, "copy_out")?;
        check_copy("copy_out", from, to, &range)?;
        self.check_region(&state, "copy_out", from)?;
        let flipped_bit = self.flipped(&mut state);
        if state.copies == self.faults.flipped_source {
            let work = Work::Flip {
                at: from.at as usize,
                bytes: range.len(),
                bit: self.faults.flipped_bit,
            };
            self.add(&mut state, stream, work)?;
        }
        let work = Work::Copy {
            to: to.address().expose_provenance() + range.start,
            from: from.at as usize,
            bytes: range.len(),
            flipped_bit,
        };
        to.is_copied(stream.index, Use::Writes);
        self.add(&mut state, stream, work)
    }

    fn fill(&self, stream: Stream, to: Region, byte: u8) -> Result<(), DeviceError> {
        let mut state = self.state.lock();
        self.begin(&mut state, "fill")?;
        self.check_region(&state, "fill", to)?;
        let work = Work::Fill {
            to: to.at as usize,
            bytes: to.bytes as usize,
            byte,
        };
        self.add(&mut state, stream, work)
    }

    fn launch(
        &self,
        stream: Stream,
        kernel: &'static str,
        blocks: u32,
        threads: u32,
        args: &[u8],
    ) -> Result<(), DeviceError> {
        let mut state = self.state.lock();
        self.begin(&mut state, "launch")?;
        if blocks == 0 {
            return Ok(());
        }
        let Ok(name) = CString::new(kernel) else {
            return Err(DeviceError::misuse("launch", "a name with a zero byte"));
        };
        state.kernels += 1;
        let word = |bytes: &[u8]| {
            let mut word = [0; 8];
            word[..bytes.len()].copy_from_slice(bytes);
            u64::from_ne_bytes(word)
        };
        let hanging = self.faults.hanging_kernel;
        let work = Work::Launch {
            kernel: name,
            blocks,
            threads,
            args: args.chunks(8).map(word).collect(),
            args_bytes: args.len() as u64,
            hangs: hanging > 0 && state.kernels >= hanging,
        };
        self.add(&mut state, stream, work)
    }

    fn record(&self, stream: Stream) -> Result<Event, DeviceError> {
        let mut state = self.state.lock();
        self.begin(&mut state, "record")?;
        let clock = self.progress.clock(stream.index);
        let index = match state.events.iter().position(|event| event.is_free) {
            Some(index) => index,
            None => {
                state.events.push(EventState::default());
                state.events.len() - 1
            }
        };
        let record = state.records.len();
        let event = &mut state.events[index];
        event.is_free = false;
        event.record = record;
        event.clock = clock;
        let work = Work::Record(event.record);
        let event = Event {
            index: index as u32,
            generation: event.generation,
        };
        state.records.push(false);
        self.add(&mut state, stream, work)?;
        Ok(event)
    }

    fn wait(&self, stream: Stream, event: Event) -> Result<(), DeviceError> {
        let mut state = self.state.lock();
        self.begin(&mut state, "wait")?;
        let found = EmulatedDevice::event(&mut state, "wait", event)?;
        let (clock, work) = (found.clock.clone(), Work::Wait(found.record));
        self.add(&mut state, stream, work)?;
        self.progress.waits(stream.index, &clock);
        Ok(())
    }

    fn is_done(&self, event: Event) -> Result<bool, DeviceError> {
        let mut state = self.state.lock();
        self.begin(&mut state, "is_done")?;
        EmulatedDevice::event(&mut state, "is_done", event)?;
        // Polls see the work proceed, some steps at a time.
        let steps = 1 + (state.random >> 40) as usize % 8;
        self.run(&mut state, steps);
        if let Some(detail) = &state.broken {
            return Err(failure("is_done", detail.clone(), true));
        }
        let record = EmulatedDevice::event(&mut state, "is_done", event)?.record;
        let has_passed = state.records[record];
        if has_passed {
            let found = EmulatedDevice::event(&mut state, "is_done", event)?;
            self.progress.passes(&found.clock);
        }
        Ok(has_passed)
    }

    fn seconds_between(&self, a: Event, b: Event) -> Result<f64, DeviceError> {
        let mut state = self.state.lock();
        self.begin(&mut state, "seconds_between")?;
        for event in [a, b] {
            let record = EmulatedDevice::event(&mut state, "seconds_between", event)?.record;
            if !state.records[record] {
                let detail = "an event that has not passed";
                return Err(DeviceError::misuse("seconds_between", detail));
            }
        }
        // The emulation's time says nothing about a GPU's.
        Ok(0.0)
    }

    fn release(&self, event: Event) {
        let mut state = self.state.lock();
        if let Ok(found) = EmulatedDevice::event(&mut state, "release", event) {
            found.is_free = true;
            found.generation += 1;
        }
    }

    fn begin_direct(&self) -> Result<DirectMode, String> {
        let mut state = self.state.lock();
        let begun = self.begin(&mut state, "begin_direct");
        begun.map_err(|error| error.to_string())?;
        Ok(DirectMode::Emulated)
    }

    fn open_file<'a>(
        &'a self,
        file: DirectFile<'a>,
    ) -> Result<Box<dyn DeviceFile + 'a>, DeviceError> {
        self.begin(&mut self.state.lock(), "open_file")?;
        if self.faults.refuses_files {
            return Err(failure("open_file", "files are refused", false));
        }
        Ok(Box::new(EmulatedFile { device: self, file }))
    }
}

/// A file that is open for direct transfers.
struct EmulatedFile<'a> {
    device: &'a EmulatedDevice,
    file: DirectFile<'a>,
}

impl EmulatedFile<'_> {
    /// The bytes of a region, in pieces that the file's alignment allows: an address in the memory
    /// of a GPU need not be aligned, one in the host's must be.
    fn each_piece(
        &self,
        region: Region,
        mut move_piece: impl FnMut(&mut [u8], u64) -> Result<(), TransferError>,
        copies_in: bool,
    ) -> Result<(), TransferError> {
        const PIECE_BYTES: usize = 64 << 10;
        let no_memory = || failure("open_file", "no memory", false);
        let piece = Memory::new(PIECE_BYTES, 0).ok_or_else(no_memory)?;
        let mut done = 0;
        while done < region.bytes {
            let bytes = (region.bytes - done).min(PIECE_BYTES as u64) as usize;
            // SAFETY: the memory has this many bytes, and only this function has it.
            let aligned = unsafe { std::slice::from_raw_parts_mut(piece.at, bytes) };
            let at: *mut u8 = std::ptr::with_exposed_provenance_mut((region.at + done) as usize);
            if !copies_in {
                // SAFETY: the caller has compared the region with the device's memory, and holds
                // the lock under which kernels run. The two do not overlap.
                unsafe { std::ptr::copy_nonoverlapping(at, aligned.as_mut_ptr(), bytes) };
            }
            move_piece(aligned, done)?;
            if copies_in {
                // SAFETY: as above.
                unsafe { std::ptr::copy_nonoverlapping(aligned.as_ptr(), at, bytes) };
            }
            done += bytes as u64;
        }
        Ok(())
    }
}

impl DeviceFile for EmulatedFile<'_> {
    fn read(&mut self, to: Region, offset: u64) -> Result<(), TransferError> {
        let mut state = self.device.state.lock();
        self.device.begin(&mut state, "read_file")?;
        self.device.check_region(&state, "read_file", to)?;
        if self.device.is_idle(&mut state) {
            return Ok(());
        }
        let file = self.file.descriptor;
        let read = |bytes: &mut [u8], done: u64| {
            let mut filled = 0;
            while filled < bytes.len() {
                let at = offset + done + filled as u64;
                match rustix::io::pread(file, &mut bytes[filled..], at) {
                    Ok(0) => {
                        let detail = format!("the file ends before offset {at}");
                        return Err(failure("read_file", detail, false).into());
                    }
                    Ok(count) => filled += count,
                    Err(rustix::io::Errno::INTR) => {}
                    Err(error) => return Err(TransferError::File(error.into())),
                }
            }
            Ok(())
        };
        self.each_piece(to, read, true)?;
        if let Some(bit) = self.device.flipped(&mut state).filter(|_| to.bytes > 0) {
            let bit = bit % (8 * to.bytes);
            let at = std::ptr::with_exposed_provenance_mut::<u8>((to.at + bit / 8) as usize);
            // SAFETY: the byte lies within the region, which was compared with the device's memory.
            unsafe { *at ^= 1 << (bit % 8) };
        }
        Ok(())
    }

    fn write(&mut self, from: Region, offset: u64) -> Result<(), TransferError> {
        let mut state = self.device.state.lock();
        self.device.begin(&mut state, "write_file")?;
        self.device.check_region(&state, "write_file", from)?;
        if self.device.is_idle(&mut state) {
            return Ok(());
        }
        let flipped = self.device.flipped(&mut state);
        let flipped = flipped.filter(|_| from.bytes > 0);
        let flipped = flipped.map(|bit| bit % (8 * from.bytes));
        let file = self.file.descriptor;
        let write = |bytes: &mut [u8], done: u64| {
            let bit = flipped.and_then(|bit| bit.checked_sub(8 * done));
            if let Some(bit) = bit.filter(|bit| *bit < 8 * bytes.len() as u64) {
                bytes[(bit / 8) as usize] ^= 1 << (bit % 8);
            }
            let mut written = 0;
            while written < bytes.len() {
                let at = offset + done + written as u64;
                match rustix::io::pwrite(file, &bytes[written..], at) {
                    Ok(count) => written += count,
                    Err(rustix::io::Errno::INTR) => {}
                    Err(error) => return Err(TransferError::File(error.into())),
                }
            }
            Ok(())
        };
        self.each_piece(from, write, false)
    }
}
