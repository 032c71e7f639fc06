//! A lane: one stream of a device with its own memory, in which one job computes at a time.
//!
//! [`Lane`] owns a region of the device's memory, of which arrays are cut one after the other, and
//! a pinned buffer for small transfers. [`Work`] is a lane during a job.
//!
//! Invariants:
//! - All kernels and copies of a lane are in one stream, so memory that was given back and taken
//!   again is never in use by earlier work.
//! - What is copied to the device or from it is compared before it is used: the device computes the
//!   checksum of each array, and the host that of its own copy. Blocks of tables are left out,
//!   because they have checksums of their own.
//! - A lane whose last work has not passed is not given to another job.
//!
//! Threading: a lane has one owner at a time. Waiting is polling, with pauses of the runtime.

use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use siltstone_storage::{Mutex, Runtime, planted};
use siltstone_table::checksum::crc32c;
use siltstone_table::exec::{ExecContext, ExecError};

use crate::device::{Device, DeviceError, Event, PinnedBuffer, Region, Stream};
use crate::direct::DirectCounts;
use crate::error::{GpuError, Result};
use crate::kernels::{
    Args, Array, ChecksumRegion, CrcTables, Item, ScanApply32, ScanApply64, ScanSums32, ScanSums64,
};
use crate::profile::{LaneProfile, Profile};

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

/// How often a wait asks before it begins to sleep between two questions.
const SPINS: u32 = 64;

/// How long a job waits for work of an earlier one to end, and how often it asks.
const LANE_WAIT: Duration = Duration::from_millis(200);
const LANE_PAUSE: Duration = Duration::from_micros(100);

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
    crc: Array<u32>,
    /// An event after the last work of a job that did not wait for it.
    pending: Option<Event>,
    /// The events of copies that nobody has waited for yet.
    flying: Vec<Event>,
    profile: LaneProfile,
    direct_counts: Arc<DirectCounts>,
    is_broken: Arc<AtomicBool>,
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
    pub fn open(
        device: &Arc<dyn Device>,
        runtime: &Runtime,
        sizes: LaneSizes,
        profile: Option<&Arc<Profile>>,
        (direct_counts, is_broken): (&Arc<DirectCounts>, &Arc<AtomicBool>),
    ) -> Result<Lane> {
        let region = device.alloc(sizes.memory_bytes)?;
        let mut arena = Arena {
            region,
            used_bytes: 0,
        };
        let crc_tables = arena.take(CRC_TABLE_COUNT)?;
        let crc = arena.take(1)?;
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
            crc,
            pending: None,
            flying: Vec::new(),
            profile: LaneProfile::new(profile),
            direct_counts: Arc::clone(direct_counts),
            is_broken: Arc::clone(is_broken),
        };
        let args = CrcTables { tables: crc_tables };
        lane.launch("crc_tables", CRC_TABLE_COUNT, &args)?;
        Ok(lane)
    }

    /// The device.
    pub fn device(&self) -> &dyn Device {
        &*self.device
    }

    /// What direct transfers have moved.
    pub fn direct_counts(&self) -> &DirectCounts {
        &self.direct_counts
    }

    /// Starts a kernel that has a thread for each item.
    pub fn launch<A: Args>(&self, kernel: &'static str, items: u64, args: &A) -> Result<()> {
        let blocks = items.div_ceil(u64::from(ITEM_THREADS)) as u32;
        self.launch_for(items, kernel, blocks, ITEM_THREADS, args)
    }

    /// Starts a kernel with this many CUDA blocks.
    pub fn launch_blocks<A: Args>(
        &self,
        kernel: &'static str,
        blocks: u32,
        threads: u32,
        args: &A,
    ) -> Result<()> {
        self.launch_for(u64::from(blocks), kernel, blocks, threads, args)
    }

    fn launch_for<A: Args>(
        &self,
        items: u64,
        kernel: &'static str,
        blocks: u32,
        threads: u32,
        args: &A,
    ) -> Result<()> {
        let mut bytes = Vec::with_capacity(A::BYTES as usize);
        args.put(&mut bytes);
        self.timed(kernel, items, |device, stream| {
            device.launch(stream, kernel, blocks, threads, &bytes)
        })
    }

    /// Puts work into the stream, whose time is measured if the executor has a profile.
    fn timed(
        &self,
        name: &'static str,
        items: u64,
        work: impl FnOnce(&dyn Device, Stream) -> std::result::Result<(), DeviceError>,
    ) -> Result<()> {
        let (device, stream) = (&*self.device, self.stream);
        let work = || work(device, stream);
        Ok(self.profile.timed(device, stream, (name, items), work)?)
    }

    /// Whether all work of earlier jobs has passed.
    pub fn is_idle(&mut self) -> bool {
        let Some(event) = self.pending else {
            return true;
        };
        let asked = self.device.is_done(event);
        if asked.as_ref().is_err_and(DeviceError::is_sticky) {
            self.is_broken.store(true, Ordering::Relaxed);
        }
        let has_passed = asked == Ok(true);
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
        let end = (self.used_bytes + wanted_bytes).next_multiple_of(ALIGN_BYTES);
        // The region may end at any byte.
        self.used_bytes = end.min(self.region.bytes);
        Ok(Array::new(part, count))
    }

    fn free_bytes(&self) -> u64 {
        self.region.bytes - self.used_bytes
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

impl Batch {
    /// Replaces the items of an array by as many others.
    pub fn replace<T: Item>(&mut self, slot: &Slot<T>, items: &[T]) {
        debug_assert_eq!(items.len() as u64, slot.count);
        let mut bytes = Vec::with_capacity((slot.count * T::BYTES) as usize);
        items.iter().for_each(|item| item.put(&mut bytes));
        let at = slot.at as usize;
        self.bytes[at..at + bytes.len()].copy_from_slice(&bytes);
    }
}

impl<T: Item> Slot<T> {
    /// The array, of the bytes of its batch on the device.
    pub fn of(&self, batch: Array<u8>) -> Array<T> {
        batch.part(self.at, self.count * T::BYTES).cast()
    }
}

/// A lane that was taken from its pool, to which it goes back when this is dropped.
pub(crate) struct Held {
    /// `None` only while it is dropped.
    lane: Option<Lane>,
    pool: Arc<Pool>,
    /// Where the arrays of a job begin.
    base: u64,
}

/// The reason why [`Held::lane`] is not empty.
const HELD: &str = "a lane is held until it is dropped";

impl Deref for Held {
    type Target = Lane;

    fn deref(&self) -> &Lane {
        self.lane.as_ref().expect(HELD)
    }
}

impl DerefMut for Held {
    fn deref_mut(&mut self) -> &mut Lane {
        self.lane.as_mut().expect(HELD)
    }
}

impl Drop for Held {
    /// Gives all memory of the job back. If work may not have passed, the lane remembers it.
    fn drop(&mut self) {
        if let Some(mut lane) = self.lane.take() {
            lane.arena.used_bytes = self.base;
            for event in std::mem::take(&mut lane.flying) {
                lane.device.release(event);
            }
            if lane.pending.is_none() {
                lane.pending = lane.device.record(lane.stream).ok();
            }
            self.pool.lanes.lock().push(lane);
        }
    }
}

/// The lanes of a device.
pub(crate) struct Pool {
    runtime: Runtime,
    /// Those that no job has.
    lanes: Mutex<Vec<Lane>>,
    count: usize,
    pinned_bytes: u64,
    direct_counts: Arc<DirectCounts>,
    /// A call failed in such a way that all later ones fail.
    is_broken: Arc<AtomicBool>,
}

impl Pool {
    /// Opens `count` lanes.
    pub fn open(
        device: &Arc<dyn Device>,
        runtime: &Runtime,
        sizes: LaneSizes,
        count: usize,
        profile: Option<&Arc<Profile>>,
    ) -> Result<Arc<Pool>> {
        let (direct_counts, is_broken) = (Arc::default(), Arc::default());
        let shared = (&direct_counts, &is_broken);
        let open = |_| Lane::open(device, runtime, sizes, profile, shared);
        let lanes = (0..count).map(open).collect::<Result<Vec<_>>>()?;
        Ok(Arc::new(Pool {
            runtime: runtime.clone(),
            lanes: runtime.mutex(lanes),
            count,
            pinned_bytes: (count * (sizes.staging_bytes + sizes.ring_bytes * sizes.ring_count))
                as u64,
            direct_counts,
            is_broken,
        }))
    }

    /// The pinned memory of all lanes.
    pub fn pinned_bytes(&self) -> u64 {
        self.pinned_bytes
    }

    /// Whether all calls of the device fail.
    pub fn is_broken(&self) -> bool {
        self.is_broken.load(Ordering::Relaxed)
    }

    /// Notes an error of the device.
    pub fn note(&self, error: &DeviceError) {
        if error.is_sticky() {
            self.is_broken.store(true, Ordering::Relaxed);
        }
    }

    /// What direct transfers have moved in all lanes.
    pub fn direct_counts(&self) -> &DirectCounts {
        &self.direct_counts
    }

    /// The number of lanes in which no work of an abandoned job may still go on.
    pub fn usable(&self) -> usize {
        let mut lanes = self.lanes.lock();
        let stuck = lanes
            .iter_mut()
            .filter_map(|lane| (!lane.is_idle()).then_some(()));
        self.count - stuck.count()
    }

    /// Takes an idle lane, if there is one now.
    pub fn take_now(self: &Arc<Pool>, ctx: &ExecContext) -> Option<Work> {
        let mut lanes = self.lanes.lock();
        let idle = lanes.iter_mut().position(|lane| lane.is_idle())?;
        let lane = lanes.swap_remove(idle);
        Some(Work {
            lane: Held {
                base: lane.arena.used_bytes,
                lane: Some(lane),
                pool: Arc::clone(self),
            },
            ctx: ctx.clone(),
        })
    }

    /// Takes an idle lane. Work of a job that was cancelled may still go on in one for a moment.
    pub fn take(self: &Arc<Pool>, ctx: &ExecContext) -> Option<Work> {
        let began = self.runtime.now();
        loop {
            if let Some(work) = self.take_now(ctx) {
                return Some(work);
            }
            let is_hopeless = self.lanes.lock().is_empty() || ctx.cancel.is_cancelled();
            if is_hopeless || self.runtime.now().since(began) > LANE_WAIT {
                return None;
            }
            self.runtime.sleep(LANE_PAUSE);
        }
    }
}

/// A lane during a job.
pub(crate) struct Work {
    pub lane: Held,
    pub ctx: ExecContext,
}

/// A place in the lane's memory to which it can be given back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mark(u64);

impl Work {
    /// Gives back everything that the job has taken.
    pub fn release_all(&mut self) {
        let base = self.lane.base;
        self.lane.arena.used_bytes = base;
    }

    /// Reports bytes to the throttle, and ends a job that was cancelled.
    pub fn spend(&self, bytes: u64) -> Result<()> {
        let cancel = &self.ctx.cancel;
        if let Some(throttle) = &self.ctx.throttle {
            throttle.spent(bytes, &|| cancel.is_cancelled());
        }
        match cancel.is_cancelled() {
            true => Err(ExecError::Cancelled.into()),
            false => Ok(()),
        }
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
            let region = array.region();
            let fill = |device: &dyn Device, stream| device.fill(stream, region, byte);
            self.lane.timed("fill", region.bytes, fill)?;
        }
        Ok(())
    }

    /// The present end of the used memory.
    pub fn mark(&self) -> Mark {
        Mark(self.lane.arena.used_bytes)
    }

    /// Gives back what was taken since the mark. Kernels that were started may still use it,
    /// because later ones begin after them.
    pub fn release(&mut self, mark: Mark) {
        self.lane.arena.used_bytes = mark.0;
    }

    /// Moves the end of the used memory to an address that is a multiple of `bytes`, if there is
    /// room, so that the next array begins there.
    pub fn align(&mut self, bytes: u64) {
        let arena = &mut self.lane.arena;
        let at = arena.region.at + arena.used_bytes;
        let end = at.next_multiple_of(bytes) - arena.region.at;
        arena.used_bytes = end.min(arena.region.bytes);
    }

    /// All free memory as one array. Nothing else can be taken before it is given back.
    pub fn take_all(&mut self) -> Result<Array<u8>> {
        let usable = self.free_bytes().saturating_sub(SLACK_BYTES + ALIGN_BYTES);
        self.take(usable)
    }

    /// The free memory.
    pub fn free_bytes(&self) -> u64 {
        self.lane.arena.free_bytes()
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

    /// Copies items to the device.
    pub fn upload<T: Item>(&mut self, items: &[T]) -> Result<Array<T>> {
        let mut batch = Batch::default();
        let slot = batch.add(items);
        Ok(slot.of(self.upload_batch(&batch)?))
    }

    /// Copies the arrays of a batch to the device, and compares their checksums before any kernel
    /// can use them: a wrong index in them would lead a kernel out of its memory.
    pub fn upload_batch(&mut self, batch: &Batch) -> Result<Array<u8>> {
        let to = self.take_batch(batch)?;
        self.put_batch(batch, to)?;
        Ok(to)
    }

    /// Takes the array to which a batch is copied later.
    pub fn take_batch(&mut self, batch: &Batch) -> Result<Array<u8>> {
        self.take(batch.bytes.len() as u64)
    }

    /// Copies a batch to its array, as [`Work::upload_batch`] does.
    pub fn put_batch(&mut self, batch: &Batch, to: Array<u8>) -> Result<()> {
        let mut at = 0;
        for chunk in batch.bytes.chunks(self.lane.staging.len() / 2) {
            if self.lane.staging.bytes_mut().is_err() {
                self.wait()?;
            }
            self.lane.staging.bytes_mut()?[..chunk.len()].copy_from_slice(chunk);
            let part = to.part(at, chunk.len() as u64);
            let (device, stream) = (&self.lane.device, self.lane.stream);
            device.copy_in(stream, part.region(), &self.lane.staging, 0..chunk.len())?;
            let found = self.checksum(part, chunk.len())?;
            let expected = crc32c(chunk);
            if found != expected {
                return Err(GpuError::Mismatch(format!(
                    "the checksum of an array is {expected:08x} here and {found:08x} on the device"
                )));
            }
            at += chunk.len() as u64;
        }
        Ok(())
    }

    /// Waits for everything that was started, and returns the checksum of an array on the device.
    /// The first `used` bytes of the staging buffer are left as they are.
    pub fn checksum(&mut self, bytes: Array<u8>, used: usize) -> Result<u32> {
        let crc = self.lane.crc;
        let (device, stream) = (Arc::clone(&self.lane.device), self.lane.stream);
        device.fill(stream, crc.region(), 0)?;
        let args = ChecksumRegion {
            bytes,
            tables: self.lane.crc_tables,
            crcs: crc,
            slot: 0,
        };
        let pieces = bytes.count().div_ceil(CRC_PIECE_BYTES).max(1);
        self.launch("checksum_region", pieces, &args)?;
        let at = used.next_multiple_of(8);
        device.copy_out(stream, &mut self.lane.staging, at..at + 4, crc.region())?;
        self.wait()?;
        let found: Vec<u32> = items_of(&self.lane.staging.bytes()?[at..at + 4]);
        Ok(found[0])
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
                if self.lane.staging.bytes_mut().is_err() {
                    self.wait()?;
                }
                let part = array.part(at, len);
                let range = 0..len as usize;
                let (device, stream) = (Arc::clone(&self.lane.device), self.lane.stream);
                device.copy_out(stream, &mut self.lane.staging, range.clone(), part.region())?;
                let expected = self.checksum(part, range.end)?;
                let chunk = &self.lane.staging.bytes()?[range];
                let found = crc32c(chunk);
                if found != expected && !planted!(GpuArraysAreBelieved) {
                    return Err(GpuError::Mismatch(format!(
                        "the checksum of {len} bytes is {expected:08x} on the device and \
                         {found:08x} here"
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

    /// Waits for everything that was started.
    pub fn wait(&mut self) -> Result<()> {
        let event = self.lane.device.record(self.lane.stream)?;
        let passed = self.wait_for(event);
        if passed.is_ok() {
            self.lane.device.release(event);
            self.lane.profile.settle(&*self.lane.device);
        } else {
            self.lane.pending = Some(event);
        }
        passed
    }

    /// An event after everything that was started, for [`Work::take_event`].
    pub fn record(&mut self) -> Result<Event> {
        let event = self.lane.device.record(self.lane.stream)?;
        self.lane.flying.push(event);
        Ok(event)
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
        self.lane.flying.retain(|other| *other != event);
        self.lane.device.release(event);
        self.ctx.progress.beat();
        Ok(())
    }

    /// Starts a copy of a part of a buffer of the ring to the device.
    pub fn copy_in(&mut self, buffer: usize, bytes: usize, to: Array<u8>) -> Result<Event> {
        let from = &self.lane.ring[buffer];
        let copy =
            |device: &dyn Device, stream| device.copy_in(stream, to.region(), from, 0..bytes);
        self.lane.timed("copy in", bytes as u64, copy)?;
        self.record()
    }

    /// Starts a copy from the device to the beginning of a buffer of the ring.
    pub fn copy_out(&mut self, from: Array<u8>, buffer: usize) -> Result<Event> {
        let bytes = from.count() as usize;
        let Lane {
            device,
            stream,
            ring,
            profile,
            ..
        } = &mut *self.lane;
        let (device, stream) = (&**device, *stream);
        let copy = || device.copy_out(stream, &mut ring[buffer], 0..bytes, from.region());
        profile.timed(device, stream, ("copy out", bytes as u64), copy)?;
        self.record()
    }
}

/// The items whose bytes these are.
pub(crate) fn items_of<T: Item>(mut bytes: &[u8]) -> Vec<T> {
    let count = bytes.len() / T::BYTES as usize;
    (0..count).map(|_| T::get(&mut bytes)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_array_at_the_end_of_an_odd_region_leaves_nothing() {
        let region = Region { at: 0, bytes: 1000 };
        let mut arena = Arena {
            region,
            used_bytes: 0,
        };
        // The next multiple of the alignment lies behind the region.
        let array: Array<u8> = arena.take(900).unwrap();
        assert_eq!((array.count(), arena.free_bytes()), (900, 0));
        let next = arena.take::<u8>(1);
        assert!(matches!(next, Err(GpuError::NoRoom { .. })), "{next:?}");
    }
}
