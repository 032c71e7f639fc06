//! A map view of an immutable object. It is no `&[u8]`: its bytes may turn to zeros under an I/O error, so
//! accessors check bounds, decode each field once and copy out. See `docs/rfc/0002`.
//!
//! (Interface; the storage crate's owner finishes the implementation behind it.)

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Keeps whatever the view points into alive (a kernel mapping, or a buffer of the memory storage).
pub trait MapOwner: Send + Sync {
    /// Set by the SIGBUS handler once a page of this map could not be read.
    fn failed(&self) -> &AtomicBool;
}

/// A bounds-checked view of an object's bytes.
#[derive(Clone)]
pub struct Map {
    ptr: *const u8,
    len: usize,
    owner: Arc<dyn MapOwner>,
}

// SAFETY: the view is read-only memory that lives as long as `owner`, which is Send + Sync.
unsafe impl Send for Map {}
// SAFETY: as above; every access is a read.
unsafe impl Sync for Map {}

impl Map {
    /// A view of `len` bytes at `ptr`.
    ///
    /// # Safety
    /// `ptr..ptr + len` must stay readable (zeros after a failed page count as readable) until `owner` is dropped.
    pub unsafe fn new(ptr: *const u8, len: usize, owner: Arc<dyn MapOwner>) -> Map {
        Map { ptr, len, owner }
    }

    /// Length in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the view is empty.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether a page of it failed. Ask after the last touch, before anything read from it is believed.
    #[inline]
    pub fn failed(&self) -> bool {
        self.owner.failed().load(Ordering::Acquire)
    }

    /// Copies `buf.len()` bytes from `offset`; false if that is out of bounds.
    #[inline]
    pub fn copy_to(&self, offset: usize, buf: &mut [u8]) -> bool {
        match offset.checked_add(buf.len()) {
            Some(end) if end <= self.len => {
                // SAFETY: in bounds by the check; the memory is readable by the contract of `new`.
                unsafe { std::ptr::copy_nonoverlapping(self.ptr.add(offset), buf.as_mut_ptr(), buf.len()) };
                true
            }
            _ => false,
        }
    }

    /// Asks the processor to fetch the line at `offset`; out of bounds does nothing.
    #[inline]
    pub fn prefetch(&self, offset: usize) {
        if offset < self.len {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: a prefetch of a mapped address has no architectural effect.
            unsafe {
                std::arch::x86_64::_mm_prefetch(self.ptr.add(offset) as *const i8, std::arch::x86_64::_MM_HINT_T0);
            }
        }
    }
}
