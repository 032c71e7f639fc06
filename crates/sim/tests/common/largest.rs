//! An allocator that remembers the largest piece that anybody asked for: what believes a damaged
//! length shows there.
//!
//! Threading: one counter.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// The system's allocator, which remembers the largest piece that anybody asked for.
pub struct Largest;

static LARGEST_BYTES: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call goes to the system's allocator with the arguments unchanged; what is
// remembered neither allocates nor unwinds.
unsafe impl GlobalAlloc for Largest {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LARGEST_BYTES.fetch_max(layout.size(), Relaxed);
        // SAFETY: the caller keeps the contract of `alloc`, which is the same there.
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
        // SAFETY: as for `dealloc`; the caller keeps the contract on the new size.
        unsafe { System.realloc(pointer, layout, new_size) }
    }
}

/// Bytes of the largest allocation so far.
pub fn largest_bytes() -> usize {
    LARGEST_BYTES.load(Relaxed)
}
