//! Giving memory of finished jobs back to the system.
//!
//! A job's buffers and, above all, the fragments of many range deletes are many small blocks that
//! are freed together when it ends. glibc keeps such pages in the heap of the thread that freed
//! them: measured after a compaction over 100,000 range deletes, 30 MiB more than what is in use.
//! Asking it once after a job keeps the store's memory near what
//! [`crate::services::budget::MemoryStats`] says. Other allocators decide for themselves.
//!
//! Threading: any thread; glibc locks its heaps one after the other, for a millisecond or so altogether.

#![allow(unsafe_code)]

/// Returns free pages of the heap to the system, where the allocator needs to be asked.
pub(crate) fn give_back_free_pages() {
    #[cfg(all(target_os = "linux", target_env = "gnu", not(miri)))]
    // SAFETY: it takes no pointer, touches only pages that the allocator knows to be free, and may be called by any thread at any time. With
    // another allocator in the process it finds an empty heap.
    unsafe {
        libc::malloc_trim(0);
    }
}
