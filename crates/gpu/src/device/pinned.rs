//! Pinned buffers: memory of the host that a device reads and writes by itself.
//!
//! Invariant: P1 of [`super`]. The bytes are reached through [`PinnedBuffer::bytes`] and
//! [`PinnedBuffer::bytes_mut`] only, which ask [`Progress`] first. A borrow that they return ends
//! before a copy that would clash with it can begin: a copy into the buffer borrows it mutably, and
//! a copy out of it only reads.
//!
//! Threading: a buffer has one owner; others may read it meanwhile.

use std::fmt;
use std::sync::Arc;

use super::DeviceError;
use super::progress::{Progress, Use};

/// The memory of a buffer, as its device has it. Only [`PinnedBuffer`] makes slices of it.
pub(crate) trait PinnedMemory: Send + Sync {
    /// Its bytes, while no device writes them.
    fn bytes(&self) -> &[u8];

    /// Its bytes, while no device reads or writes them.
    fn bytes_mut(&mut self) -> &mut [u8];

    /// The address of its first byte, for the device.
    fn address(&self) -> *mut u8;

    /// Its length.
    fn len(&self) -> usize;
}

/// A buffer of pinned memory. Dropping it does not free the memory, which lives as long as its
/// device, and keeps the device's memory until then.
pub struct PinnedBuffer {
    memory: Box<dyn PinnedMemory>,
    /// That of the device.
    progress: Arc<Progress>,
    number: usize,
}

impl PinnedBuffer {
    /// A buffer of the device whose copies `progress` counts.
    pub(crate) fn new(memory: Box<dyn PinnedMemory>, progress: &Arc<Progress>) -> PinnedBuffer {
        PinnedBuffer {
            memory,
            progress: Arc::clone(progress),
            number: progress.add_buffer(),
        }
    }

    /// The number of bytes.
    pub fn len(&self) -> usize {
        self.memory.len()
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes, to be read.
    ///
    /// # Errors
    /// A copy from the device into the buffer may be under way.
    pub fn bytes(&self) -> Result<&[u8], DeviceError> {
        if !self.progress.is_free(self.number, false) {
            let what = "PinnedBuffer::bytes";
            return Err(DeviceError::InUse { what });
        }
        Ok(self.memory.bytes())
    }

    /// The bytes, to be changed.
    ///
    /// # Errors
    /// A copy between the device and the buffer may be under way.
    pub fn bytes_mut(&mut self) -> Result<&mut [u8], DeviceError> {
        if !self.progress.is_free(self.number, true) {
            let what = "PinnedBuffer::bytes_mut";
            return Err(DeviceError::InUse { what });
        }
        Ok(self.memory.bytes_mut())
    }

    /// Whether the buffer belongs to the device with this progress.
    pub(crate) fn is_of(&self, progress: &Arc<Progress>) -> bool {
        Arc::ptr_eq(&self.progress, progress)
    }

    /// The address of the first byte, for the device.
    pub(crate) fn address(&self) -> *mut u8 {
        self.memory.address()
    }

    /// The device has put a copy of this buffer into a stream.
    pub(crate) fn is_copied(&self, stream: u32, does: Use) {
        self.progress.copies(stream, self.number, does);
    }
}

impl fmt::Debug for PinnedBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PinnedBuffer")
            .field("number", &self.number)
            .field("len", &self.len())
            .finish_non_exhaustive()
    }
}
