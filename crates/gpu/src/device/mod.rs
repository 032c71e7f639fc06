//! A GPU as the executor sees it: memory, pinned memory, streams, events, copies, fills, launches.
//!
//! **Streams and events.** Work that is put into a stream is done in the order in which it was put
//! there, some time after the call returned. An event marks a place in a stream. It has passed when
//! all work before it is done. Waiting is polling: [`Device::is_done`] asks, and nothing here
//! blocks.
//!
//! Invariants:
//!
//! - **P1 (pinned memory in use)** While a copy into a pinned buffer may be under way, the host can
//!   neither read nor write the buffer, and while a copy out of it may be, it cannot write:
//!   [`PinnedBuffer::bytes`] and [`PinnedBuffer::bytes_mut`] return [`DeviceError::InUse`]. A copy
//!   counts as under way from its call until [`Device::is_done`] has returned true for an event
//!   that lies after the copy, in the same stream or in one that waited for it. A copy whose call
//!   failed counts too, because the driver does not say whether it had begun. `progress.rs` does
//!   the counting for every kind of device, so a test of the executor on the emulated device finds
//!   an access that is too early.
//! - **P2 (known memory)** Copies and fills stay within one [`Device::alloc`] of the same device,
//!   otherwise they are refused. Kernels get addresses as they are: that they stay within the
//!   memory of their job is promise G4 of the RFC, which the emulated device tests.
//! - **P3 (lifetime)** Memory of either kind is freed when the device and all of its pinned buffers
//!   have been dropped, not earlier. If work in a stream does not end then, the device and its
//!   memory are kept until the process ends.
//!
//! Threading: everything here may be used from several threads at once. Which of two calls comes
//! first in a stream is up to the callers.

pub mod cuda;
mod direct;
#[cfg(feature = "emulate")]
pub mod emulated;
mod error;
mod pinned;
pub(crate) mod progress;
mod ptx;

use std::ops::Range;

use siltstone_storage::DirectFile;

pub use direct::{DeviceFile, DirectMode, TransferError};
pub use error::{DeviceError, Unavailable};
pub use pinned::PinnedBuffer;
pub use ptx::{Entry, entries};

/// The alignment of the addresses that [`Device::alloc`] returns, at least.
pub const ALLOC_ALIGN_BYTES: u64 = 256;

/// The alignment of pinned buffers, which direct I/O needs.
pub const PINNED_ALIGN_BYTES: usize = 4096;

/// The largest number of threads in a block of threads.
pub const BLOCK_THREADS_MAX: u32 = 1024;

/// A range of addresses in the memory of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// The first address.
    pub at: u64,
    /// The length.
    pub bytes: u64,
}

impl Region {
    /// The part of `bytes` bytes that begins `from` bytes after the region's begin, if it lies
    /// within the region.
    pub fn part(self, from: u64, bytes: u64) -> Option<Region> {
        if from.checked_add(bytes)? > self.bytes {
            return None;
        }
        let at = self.at.checked_add(from)?;
        Some(Region { at, bytes })
    }

    /// Whether all of `part` lies within the region.
    pub fn contains(self, part: Region) -> bool {
        let from = part.at.checked_sub(self.at);
        from.is_some_and(|from| self.part(from, part.bytes).is_some())
    }
}

/// The number of a stream of one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Stream {
    pub(crate) index: u32,
}

/// The number of an event of one device. It is valid until [`Device::release`]; a later use is an
/// error, also when the driver's event is in use again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Event {
    pub(crate) index: u32,
    /// How often this event of the driver was released before.
    pub(crate) generation: u32,
}

/// What is known about a GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceFacts {
    /// Its number, by which it is opened.
    pub index: u32,
    /// Its name, such as "NVIDIA H200".
    pub name: String,
    /// All of its memory.
    pub memory_bytes: u64,
    /// The memory that was free when the device was opened. None for a GPU that is only listed: the
    /// driver says so in a context only, and making one takes time and memory.
    pub memory_free_bytes: Option<u64>,
    /// Its compute capability, such as (9, 0).
    pub capability: (u32, u32),
    /// The version of CUDA that its driver supports, such as (12, 4).
    pub driver_version: (u32, u32),
    /// Its address on the PCI bus, such as "0000:17:00.0".
    pub pci_bus_id: String,
    /// The number of its multiprocessors.
    pub multiprocessor_count: u32,
    /// Whether the host computes what a GPU should.
    pub is_emulated: bool,
}

/// A GPU, or what stands in for one.
///
/// A call that fails has an error with the name of the driver's call. Any call may return an error
/// of work that an earlier call put into a stream.
pub trait Device: Send + Sync {
    /// The name of the GPU.
    fn name(&self) -> String;

    /// What is known about it. Free memory is that at open.
    fn facts(&self) -> DeviceFacts;

    /// Takes memory of the GPU, whose bytes are arbitrary. The memory is freed with the device.
    ///
    /// # Errors
    /// There is not enough, or `bytes` is zero.
    fn alloc(&self, bytes: u64) -> Result<Region, DeviceError>;

    /// Takes memory of the host that the GPU reads and writes by itself. Its bytes are zero, its
    /// address is a multiple of [`PINNED_ALIGN_BYTES`], and the CPU reads it as fast as other
    /// memory. It is freed with the device.
    ///
    /// # Errors
    /// There is not enough, or `bytes` is zero.
    fn alloc_pinned(&self, bytes: usize) -> Result<PinnedBuffer, DeviceError>;

    /// Makes a stream. Streams live as long as the device.
    ///
    /// # Errors
    /// The driver's.
    fn stream(&self) -> Result<Stream, DeviceError>;

    /// Copies a range of a pinned buffer to the GPU. `to` has the length of the range.
    ///
    /// # Errors
    /// The driver's, or the lengths or places are wrong.
    fn copy_in(
        &self,
        stream: Stream,
        to: Region,
        from: &PinnedBuffer,
        range: Range<usize>,
    ) -> Result<(), DeviceError>;

    /// Copies from the GPU into a range of a pinned buffer. `from` has the length of the range.
    ///
    /// # Errors
    /// The driver's, or the lengths or places are wrong.
    fn copy_out(
        &self,
        stream: Stream,
        to: &mut PinnedBuffer,
        range: Range<usize>,
        from: Region,
    ) -> Result<(), DeviceError>;

    /// Sets all bytes of a region.
    ///
    /// # Errors
    /// The driver's, or the region is not the device's.
    fn fill(&self, stream: Stream, to: Region, byte: u8) -> Result<(), DeviceError>;

    /// Starts a kernel in `blocks` blocks of `threads` threads. `args` are the bytes of the
    /// structure that is the kernel's one parameter. Without blocks nothing is done.
    ///
    /// # Errors
    /// The driver's, or there is no such kernel, or its parameter has another length.
    fn launch(
        &self,
        stream: Stream,
        kernel: &'static str,
        blocks: u32,
        threads: u32,
        args: &[u8],
    ) -> Result<(), DeviceError>;

    /// Puts an event after all that is in the stream now. It belongs to the caller until
    /// [`Device::release`]; the driver's events are used again.
    ///
    /// # Errors
    /// The driver's.
    fn record(&self, stream: Stream) -> Result<Event, DeviceError>;

    /// What is put into the stream from now on begins after the event has passed.
    ///
    /// # Errors
    /// The driver's, or the event was released.
    fn wait(&self, stream: Stream, event: Event) -> Result<(), DeviceError>;

    /// Whether the event has passed.
    ///
    /// # Errors
    /// The driver's, which may be that of a kernel before the event, or the event was released.
    fn is_done(&self, event: Event) -> Result<bool, DeviceError>;

    /// The time of the GPU between two events that have passed.
    ///
    /// # Errors
    /// The driver's, or an event has not passed or was released.
    fn seconds_between(&self, a: Event, b: Event) -> Result<f64, DeviceError>;

    /// Gives an event back, whether it has passed or not. One that was released is ignored.
    fn release(&self, event: Event);

    /// Prepares direct transfers for all memory that was taken so far.
    ///
    /// # Errors
    /// Why they are not possible here, as text.
    fn begin_direct(&self) -> Result<DirectMode, String>;

    /// Opens a file for direct transfers, after [`Device::begin_direct`].
    ///
    /// # Errors
    /// The library's.
    fn open_file<'a>(
        &'a self,
        file: DirectFile<'a>,
    ) -> Result<Box<dyn DeviceFile + 'a>, DeviceError>;
}

/// What is wrong with a copy, if anything is: the lengths are equal, and the range lies within the
/// buffer.
pub(crate) fn check_copy(
    what: &'static str,
    region: Region,
    buffer: &PinnedBuffer,
    range: &Range<usize>,
) -> Result<(), DeviceError> {
    if range.start > range.end || range.end > buffer.len() {
        return Err(DeviceError::misuse(
            what,
            format!(
                "the range {}..{} of a pinned buffer of {} bytes",
                range.start,
                range.end,
                buffer.len()
            ),
        ));
    }
    if range.len() as u64 != region.bytes {
        return Err(DeviceError::misuse(
            what,
            format!(
                "{} bytes of a pinned buffer and {} bytes of the GPU",
                range.len(),
                region.bytes
            ),
        ));
    }
    Ok(())
}

/// What is wrong with a launch, if anything is.
pub(crate) fn check_launch(
    kernel: &str,
    threads: u32,
    args: &[u8],
    param_bytes: usize,
) -> Result<(), DeviceError> {
    let detail = if !(1..=BLOCK_THREADS_MAX).contains(&threads) {
        format!("{threads} threads for `{kernel}`; a block has 1 to {BLOCK_THREADS_MAX}")
    } else if args.len() != param_bytes {
        let found = args.len();
        format!("{found} bytes of arguments for `{kernel}`, which takes {param_bytes}")
    } else {
        return Ok(());
    };
    Err(DeviceError::misuse("launch", detail))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_lie_within_their_region() {
        let all = Region {
            at: 1000,
            bytes: 10,
        };
        let at = |at, bytes| Region { at, bytes };
        assert_eq!(all.part(0, 10), Some(all));
        assert_eq!(all.part(10, 0), Some(at(1010, 0)));
        assert_eq!(all.part(3, 7), Some(at(1003, 7)));
        assert_eq!(all.part(3, 8), None);
        assert_eq!(all.part(u64::MAX, 2), None);
        assert!(all.contains(at(1003, 7)) && all.contains(at(1010, 0)));
        assert!(!all.contains(at(999, 2)) && !all.contains(at(1003, 8)));
        assert!(!all.contains(at(1003, u64::MAX)));
    }
}
