//! An allocator that remembers the largest requested size, which shows whether code trusted a
//! damaged length.
//!
//! Threading: one counter.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// The system's allocator, which also remembers the largest requested size.
pub struct Largest;

static LARGEST_BYTES: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call goes to the system's allocator with the arguments unchanged; remembering the
// size neither allocates nor unwinds.
unsafe impl GlobalAlloc for Largest {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LARGEST_BYTES.fetch_max(layout.size(), Relaxed);
        // SAFETY: the caller fulfils the contract of `alloc`, which is the same there.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        LARGEST_BYTES.fetch_max(layout.size(), Relaxed);
        // SAFETY: as for `alloc`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the pointer came from the system's allocator, with this layout.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        LARGEST_BYTES.fetch_max(new_size, Relaxed);
        // SAFETY: as for `dealloc`; the caller fulfils the contract on the new size.
        unsafe { System.realloc(pointer, layout, new_size) }
    }
}

/// The size of the largest allocation so far, in bytes.
pub fn largest_bytes() -> usize {
    LARGEST_BYTES.load(Relaxed)
}
