//! A number for each thread of the process.
//!
//! Threading: any thread. The number belongs to the thread of the operating system. Simulated tasks
//! share a thread, and so its number.

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The number of the current thread. Threads are numbered in the order in which they call this
/// first, and numbers are not used again.
#[inline]
pub fn thread_number() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static OWN: Cell<usize> = const { Cell::new(usize::MAX) };
    }
    OWN.with(|own| {
        if own.get() == usize::MAX {
            own.set(NEXT.fetch_add(1, Ordering::Relaxed));
        }
        own.get()
    })
}
