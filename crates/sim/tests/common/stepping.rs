//! Atomics at which tasks switch, for tests that compile files of the engine with this module in
//! place of the engine's `atomics`.
//!
//! Threading: each OS thread explores one run at a time.

use std::cell::RefCell;
pub(crate) use std::sync::atomic::Ordering;
use std::sync::atomic::{AtomicU32 as Plain32, AtomicU64 as Plain64};

use siltstone_storage::Runtime;

thread_local! {
    /// The run of this OS thread.
    static RUNTIME: RefCell<Option<Runtime>> = const { RefCell::new(None) };
}

/// Sets the run of the calling OS thread.
pub(crate) fn explore(runtime: &Runtime) {
    RUNTIME.set(Some(runtime.clone()));
}

fn point() {
    // Cloned out of the cell, so that it is not borrowed while other tasks run.
    let runtime = RUNTIME.with_borrow(Clone::clone);
    if let Some(runtime) = runtime {
        runtime.yield_point();
    }
}

macro_rules! stepping {
    ($name:ident, $plain:ident, $number:ty) => {
        pub(crate) struct $name($plain);

        impl $name {
            pub(crate) fn new(value: $number) -> Self {
                $name($plain::new(value))
            }
            pub(crate) fn load(&self, _: Ordering) -> $number {
                point();
                self.0.load(Ordering::SeqCst)
            }
            pub(crate) fn store(&self, value: $number, _: Ordering) {
                point();
                self.0.store(value, Ordering::SeqCst);
            }
        }
    };
}
stepping!(AtomicU32, Plain32, u32);
stepping!(AtomicU64, Plain64, u64);
