//! Returns the memory of finished jobs to the system.
//!
//! A job's buffers, and above all the fragments of many range deletes, are many small blocks that
//! are freed together when the job ends. glibc keeps such pages in the heap of the thread that
//! freed them: after a compaction over 100,000 range deletes, 30 MiB more was held than was in use.
//! One request after each job keeps the store's memory near what
//! [`crate::services::budget::MemoryStats`] says. Other allocators decide for themselves.
//!
//! Threading: any thread may call it. glibc locks its heaps one after the other, for about a
//! millisecond altogether.

#![allow(unsafe_code)]

/// Returns free pages of the heap to the system, if the allocator does so only on request.
pub(crate) fn give_back_free_pages() {
    #[cfg(all(target_os = "linux", target_env = "gnu", not(miri)))]
    // SAFETY: the call takes no pointer, touches only pages that the allocator knows to be free,
    // and may come from any thread at any time. If the process has another allocator, it finds an
    // empty heap.
    unsafe {
        libc::malloc_trim(0);
    }
}
