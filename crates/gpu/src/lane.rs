//! A lane: one stream of a device with its own memory, in which one job computes at a time.
//!
//! [`Lane`] owns a region of the device's memory, of which arrays are cut one after the other, and a
//! pinned buffer for small transfers. [`Work`] is a lane during a job.
//!
//! Invariants:
//! - All kernels and copies of a lane are in one stream, so memory that was given back and taken
//!   again is never in use by earlier work.
//! - What is copied to the device or from it is compared: the device computes the checksum of each
//!   array, and the host that of its own copy. They are compared whenever the host waits. Blocks of
//!   tables are left out, because they have checksums of their own.
//! - A lane whose last work has not passed is not given to another job.
//!
//! Threading: a lane has one owner at a time. Waiting is polling, with pauses of the runtime.

use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use siltstone_storage::{Runtime, planted};
use siltstone_table::checksum::crc32c;
use siltstone_table::exec::{ExecContext, ExecError};

use crate::device::{Device, Event, PinnedBuffer, Region, Stream};
use crate::error::{GpuError, Result};
use crate::kernels::{
    Args, Array, ChecksumRegion, CrcTables, Item, ScanApply32, ScanApply64, ScanSums32, ScanSums64,
};

/// The alignment of arrays, in bytes.
const ALIGN_BYTES: u64 = 256;

/// The bytes after an array of bytes that kernels may read.
pub(crate) const SLACK_BYTES: u64 = 16;

/// The number of items that one thread of a scan adds: `SCAN_GROUP` of the kernels.
const SCAN_GROUP: u64 = 32;

/// The threads of a CUDA block of a kernel that has a thread for each item.
const ITEM_THREADS: u32 = 256;

/// The tables of `crc.h`.
const CRC_TABLE_COUNT: u64 = 2048 + 40;

/// The bytes of a piece of a checksum: `CRC_PIECE` of the kernels.
const CRC_PIECE_BYTES: u64 = 256;

/// The number of checksums that are compared at a time.
const CHECKSUMS: u64 = 64;

/// How often a wait asks before it begins to sleep between two questions.
const SPINS: u32 = 64;

/// The first pause between two questions of a wait. Each later one is a sixteenth longer, so a wait
/// is late by a sixteenth of its time at most.
const PAUSE: Duration = Duration::from_micros(50);

/// The longest pause. A job that is cancelled returns within about this time.
const PAUSE_MAX: Duration = Duration::from_millis(20);

/// Memory of a device, cut into arrays.
struct Arena {
    region: Region,
    used_bytes: u64,
}

/// See the module.
pub(crate) struct Lane {
    device: Arc<dyn Device>,
    runtime: Runtime,
    stream: Stream,
    arena: Arena,
    /// For small transfers.
    staging: PinnedBuffer,
    /// For the bytes of tables.
    pub ring: Vec<PinnedBuffer>,
    /// Tables of the checksum kernels.
    pub crc_tables: Array<u32>,
    crcs: Array<u32>,
    /// An event after the last work of a job that did not wait for it.
    pending: Option<Event>,
}

/// The sizes of a lane.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LaneSizes {
    /// Memory of the device.
    pub memory_bytes: u64,
    /// The pinned buffer for small transfers.
    pub staging_bytes: usize,
    /// The pinned buffers for bytes of tables: their size and their number.
    pub ring_bytes: usize,
    pub ring_count: usize,
}

impl Lane {
    /// Takes the lane's memory.
    pub fn open(device: &Arc<dyn Device>, runtime: &Runtime, sizes: LaneSizes) -> Result<Lane> {
        let region = device.alloc(sizes.memory_bytes)?;
        let mut arena = Arena {
            region,
            used_bytes: 0,
        };
        let crc_tables = arena.take(CRC_TABLE_COUNT)?;
        let crcs = arena.take(CHECKSUMS)?;
        let lane = Lane {
            device: Arc::clone(device),
            runtime: runtime.clone(),
            stream: device.stream()?,
            arena,
            staging: device.alloc_pinned(sizes.staging_bytes)?,
            ring: (0..sizes.ring_count)
                .map(|_| device.alloc_pinned(sizes.ring_bytes))
                .collect::<std::result::Result<_, _>>()?,
            crc_tables,
            crcs,
            pending: None,
        };
        let args = CrcTables { tables: crc_tables };
        lane.launch("crc_tables", CRC_TABLE_COUNT, &args)?;
        Ok(lane)
    }

    /// Starts a kernel that has a thread for each item.
    pub fn launch<A: Args>(&self, kernel: &'static str, items: u64, args: &A) -> Result<()> {
        let blocks = items.div_ceil(u64::from(ITEM_THREADS)) as u32;
        self.launch_blocks(kernel, blocks, ITEM_THREADS, args)
    }

    /// Starts a kernel with this many CUDA blocks.
    pub fn launch_blocks<A: Args>(
        &self,
        kernel: &'static str,
        blocks: u32,
        threads: u32,
        args: &A,
    ) -> Result<()> {
        let mut bytes = Vec::with_capacity(A::BYTES as usize);
        args.put(&mut bytes);
        Ok(self
            .device
            .launch(self.stream, kernel, blocks, threads, &bytes)?)
    }

    /// Whether all work of earlier jobs has passed.
    pub fn is_idle(&mut self) -> bool {
        let Some(event) = self.pending else {
            return true;
        };
        let has_passed = matches!(self.device.is_done(event), Ok(true));
        if has_passed {
            self.device.release(event);
            self.pending = None;
        }
        has_passed
    }
}

impl Arena {
    fn take<T: Item>(&mut self, count: u64) -> Result<Array<T>> {
        let wanted_bytes = count.saturating_mul(T::BYTES).saturating_add(SLACK_BYTES);
        let no_room = GpuError::NoRoom { wanted_bytes };
        let Some(part) = self.region.part(self.used_bytes, wanted_bytes) else {
            return Err(no_room);
        };
        self.used_bytes = (self.used_bytes + wanted_bytes).next_multiple_of(ALIGN_BYTES);
        Ok(Array::new(part, count))
    }
}

/// Arrays that are copied to the device together.
#[derive(Default)]
pub(crate) struct Batch {
    bytes: Vec<u8>,
}

/// An array of a batch.
pub(crate) struct Slot<T> {
    at: u64,
    count: u64,
    of: PhantomData<T>,
}

impl Batch {
    /// Adds an array.
    pub fn add<T: Item>(&mut self, items: &[T]) -> Slot<T> {
        let at = self.bytes.len().next_multiple_of(8);
        self.bytes.resize(at, 0);
        items.iter().for_each(|item| item.put(&mut self.bytes));
        Slot {
            at: at as u64,
            count: items.len() as u64,
            of: PhantomData,
        }
    }
}

impl<T: Item> Slot<T> {
    /// The array, of the bytes of its batch on the device.
    pub fn of(&self, batch: Array<u8>) -> Array<T> {
        batch.part(self.at, self.count * T::BYTES).cast()
    }
}

/// A lane during a job.
pub(crate) struct Work<'a> {
    pub lane: &'a mut Lane,
    pub ctx: &'a ExecContext,
    /// The checksums that the next wait compares: what the host expects at each place.
    expected: Vec<Option<u32>>,
    /// Where the arrays of the job begin.
    base: u64,
}

/// A place in the lane's memory to which it can be given back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mark(u64);

impl<'a> Work<'a> {
    /// Begins a job in an idle lane.
    pub fn new(lane: &'a mut Lane, ctx: &'a ExecContext) -> Result<Work<'a>> {
        let base = lane.arena.used_bytes;
        // A job that ended early has left checksums that nobody has read, and kernels add to them.
        lane.device.fill(lane.stream, lane.crcs.region(), 0)?;
        Ok(Work {
            lane,
            ctx,
            expected: Vec::new(),
            base,
        })
    }

    /// Takes an array with arbitrary items. Kernels may read [`SLACK_BYTES`] after it.
    pub fn take<T: Item>(&mut self, count: u64) -> Result<Array<T>> {
        self.lane.arena.take(count)
    }

    /// Takes an array whose bytes are 0.
    pub fn take_zeros<T: Item>(&mut self, count: u64) -> Result<Array<T>> {
        let array = self.take(count)?;
        self.fill(array, 0)?;
        Ok(array)
    }

    /// Sets all bytes of an array.
    pub fn fill<T: Item>(&mut self, array: Array<T>, byte: u8) -> Result<()> {
        if array.count() > 0 {
            let (device, stream) = (&self.lane.device, self.lane.stream);
            device.fill(stream, array.region(), byte)?;
        }
        Ok(())
    }

    /// The present end of the used memory.
    pub fn mark(&self) -> Mark {
        Mark(self.lane.arena.used_bytes)
    }

    /// Gives back what was taken since the mark. Kernels that were started may still use it, because
    /// later ones begin after them.
    pub fn release(&mut self, mark: Mark) {
        self.lane.arena.used_bytes = mark.0;
    }

    /// The free memory.
    pub fn free_bytes(&self) -> u64 {
        self.lane.arena.region.bytes - self.lane.arena.used_bytes
    }

    /// See [`Lane::launch`].
    pub fn launch<A: Args>(&self, kernel: &'static str, items: u64, args: &A) -> Result<()> {
        self.lane.launch(kernel, items, args)
    }

    /// See [`Lane::launch_blocks`].
    pub fn launch_blocks<A: Args>(
        &self,
        kernel: &'static str,
        blocks: u64,
        threads: u32,
        args: &A,
    ) -> Result<()> {
        self.lane
            .launch_blocks(kernel, blocks as u32, threads, args)
    }

    /// Replaces `count` items by their exclusive prefix sums, and the item after them by their sum.
    pub fn scan32(&mut self, items: Array<u32>, count: u64) -> Result<()> {
        if count == 0 {
            return self.fill(items.first(1), 0);
        }
        let mark = self.mark();
        let groups = count.div_ceil(SCAN_GROUP);
        let sums = self.take(groups + 1)?;
        self.launch("scan_sums32", groups, &ScanSums32 { items, sums, count })?;
        self.scan64(sums, groups)?;
        self.launch("scan_apply32", groups, &ScanApply32 { items, sums, count })?;
        self.release(mark);
        Ok(())
    }

    /// As [`Work::scan32`], for larger sums.
    pub fn scan64(&mut self, items: Array<u64>, count: u64) -> Result<()> {
        if count == 0 {
            return self.fill(items.first(1), 0);
        }
        let mark = self.mark();
        let groups = count.div_ceil(SCAN_GROUP);
        let sums = self.take(groups + 1)?;
        self.launch("scan_sums64", groups, &ScanSums64 { items, sums, count })?;
        match groups {
            1 => self.fill(sums.first(1), 0)?,
            _ => self.scan64(sums, groups)?,
        }
        self.launch("scan_apply64", groups, &ScanApply64 { items, sums, count })?;
        self.release(mark);
        Ok(())
    }

    /// Has the device compute the checksum of an array, to be compared by the next wait. Returns
    /// the number of the checksum.
    fn checksum(&mut self, bytes: Array<u8>, expected: Option<u32>) -> Result<usize> {
        let slot = self.expected.len();
        let args = ChecksumRegion {
            bytes,
            tables: self.lane.crc_tables,
            crcs: self.lane.crcs,
            slot: slot as u64,
        };
        let pieces = bytes.count().div_ceil(CRC_PIECE_BYTES).max(1);
        self.launch("checksum_region", pieces, &args)?;
        self.expected.push(expected);
        Ok(slot)
    }

    /// Copies items to the device.
    pub fn upload<T: Item>(&mut self, items: &[T]) -> Result<Array<T>> {
        let mut batch = Batch::default();
        let slot = batch.add(items);
        Ok(slot.of(self.upload_batch(&batch)?))
    }

    /// Copies the arrays of a batch to the device.
    pub fn upload_batch(&mut self, batch: &Batch) -> Result<Array<u8>> {
        let to: Array<u8> = self.take(batch.bytes.len() as u64)?;
        let mut at = 0;
        for chunk in batch.bytes.chunks(self.lane.staging.len() / 2) {
            if self.lane.staging.bytes_mut().is_err() || self.is_checksum_room_used() {
                self.wait()?;
            }
            self.lane.staging.bytes_mut()?[..chunk.len()].copy_from_slice(chunk);
            let part = to.part(at, chunk.len() as u64);
            let (device, stream) = (&self.lane.device, self.lane.stream);
            device.copy_in(stream, part.region(), &self.lane.staging, 0..chunk.len())?;
            self.checksum(part, Some(crc32c(chunk)))?;
            at += chunk.len() as u64;
        }
        Ok(to)
    }

    /// Whether the next checksum must wait until those so far were compared.
    fn is_checksum_room_used(&self) -> bool {
        self.expected.len() as u64 + 2 > CHECKSUMS
    }

    /// Copies arrays from the device, and waits for them and everything before.
    pub fn download(&mut self, arrays: &[Array<u8>]) -> Result<Vec<Vec<u8>>> {
        let most = self.lane.staging.len() / 2;
        let mut out = Vec::with_capacity(arrays.len());
        for array in arrays {
            let mut bytes = Vec::with_capacity(array.count() as usize);
            let mut at = 0;
            while at < array.count() {
                let len = (array.count() - at).min(most as u64);
                self.wait()?;
                let part = array.part(at, len);
                let slot = self.checksum(part, None)?;
                let range = 0..len as usize;
                let (device, stream) = (&self.lane.device, self.lane.stream);
                device.copy_out(stream, &mut self.lane.staging, range.clone(), part.region())?;
                let crcs = self.read_checksums(range.end)?;
                let chunk = &self.lane.staging.bytes()?[range];
                let found = crc32c(chunk);
                if found != crcs[slot] && !planted!(GpuArraysAreBelieved) {
                    return Err(GpuError::Mismatch(format!(
                        "the checksum of {len} bytes is {:08x} on the device and {found:08x} here",
                        crcs[slot]
                    )));
                }
                bytes.extend_from_slice(chunk);
                at += len;
            }
            out.push(bytes);
        }
        Ok(out)
    }

    /// Copies the items of an array from the device.
    pub fn read<T: Item>(&mut self, array: Array<T>) -> Result<Vec<T>> {
        let bytes = self.download(&[array.cast()])?.pop().unwrap_or_default();
        Ok(items_of(&bytes))
    }

    /// Waits for everything that was started, and compares the checksums of what was uploaded.
    pub fn wait(&mut self) -> Result<()> {
        if self.expected.is_empty() {
            return self.wait_for_stream();
        }
        self.read_checksums(0)?;
        Ok(())
    }

    /// Reads the checksums that the device computed, compares those of uploads, and begins again
    /// with none. They are copied to the staging buffer after its first `used` bytes. Everything that
    /// was started has passed afterwards.
    fn read_checksums(&mut self, used: usize) -> Result<Vec<u32>> {
        let crcs = self.lane.crcs.first(self.expected.len().max(1) as u64);
        let bytes = crcs.region().bytes as usize;
        let at = used.next_multiple_of(8);
        let (device, stream) = (Arc::clone(&self.lane.device), self.lane.stream);
        device.copy_out(
            stream,
            &mut self.lane.staging,
            at..at + bytes,
            crcs.region(),
        )?;
        device.fill(stream, self.lane.crcs.region(), 0)?;
        self.wait_for_stream()?;
        let found: Vec<u32> = items_of(&self.lane.staging.bytes()?[at..at + bytes]);
        let expected = std::mem::take(&mut self.expected);
        for (slot, expected) in expected.into_iter().enumerate() {
            // Those of downloads are compared by who reads the bytes.
            if let Some(expected) = expected
                && expected != found[slot]
            {
                return Err(GpuError::Mismatch(format!(
                    "the checksum of an array is {expected:08x} here and {:08x} on the device",
                    found[slot]
                )));
            }
        }
        Ok(found)
    }

    fn wait_for_stream(&mut self) -> Result<()> {
        let event = self.lane.device.record(self.lane.stream)?;
        let passed = self.wait_for(event);
        if passed.is_ok() {
            self.lane.device.release(event);
        } else {
            self.lane.pending = Some(event);
        }
        passed
    }

    /// An event after everything that was started.
    pub fn record(&mut self) -> Result<Event> {
        Ok(self.lane.device.record(self.lane.stream)?)
    }

    /// Waits until an event has passed. A job that is cancelled does not wait.
    pub fn wait_for(&mut self, event: Event) -> Result<()> {
        let mut pause = PAUSE;
        for spin in 0u32.. {
            if self.lane.device.is_done(event)? {
                return Ok(());
            }
            if self.ctx.cancel.is_cancelled() {
                return Err(ExecError::Cancelled.into());
            }
            if spin >= SPINS {
                self.lane.runtime.sleep(pause);
                pause = (pause + pause / 16).min(PAUSE_MAX);
            }
        }
        Ok(())
    }

    /// Waits for an event and gives it back.
    pub fn take_event(&mut self, event: Event) -> Result<()> {
        self.wait_for(event)?;
        self.lane.device.release(event);
        self.ctx.progress.beat();
        Ok(())
    }

    /// Starts a copy of a part of a buffer of the ring to the device.
    pub fn copy_in(&mut self, buffer: usize, bytes: usize, to: Array<u8>) -> Result<Event> {
        let (device, stream) = (&self.lane.device, self.lane.stream);
        device.copy_in(stream, to.region(), &self.lane.ring[buffer], 0..bytes)?;
        self.record()
    }

    /// Starts a copy from the device to the begin of a buffer of the ring.
    pub fn copy_out(&mut self, from: Array<u8>, buffer: usize) -> Result<Event> {
        let bytes = from.count() as usize;
        let (device, stream) = (Arc::clone(&self.lane.device), self.lane.stream);
        device.copy_out(stream, &mut self.lane.ring[buffer], 0..bytes, from.region())?;
        self.record()
    }
}

impl Drop for Work<'_> {
    /// Gives all memory of the job back. If work may not have passed, the lane remembers it.
    fn drop(&mut self) {
        self.lane.arena.used_bytes = self.base;
        if self.lane.pending.is_none() {
            self.lane.pending = self.lane.device.record(self.lane.stream).ok();
        }
    }
}

/// The items whose bytes these are.
pub(crate) fn items_of<T: Item>(mut bytes: &[u8]) -> Vec<T> {
    let count = bytes.len() / T::BYTES as usize;
    (0..count).map(|_| T::get(&mut bytes)).collect()
}
