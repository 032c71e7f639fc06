//! Steps and records allocate nothing, because the simulation runs inside the loops that load a
//! store.

use siltstone_plasma::{CellOrder, Config, Simulation};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// The system's allocator, which counts the allocations of each thread.
struct Counting;

thread_local! {
    /// It is initialised with a constant and has no destructor, so that reading it never allocates.
    static ALLOCATION_COUNT: Cell<u64> = const { Cell::new(0) };
}

/// Counts one more allocation of this thread.
fn count() {
    ALLOCATION_COUNT.with(|count| count.set(count.get() + 1));
}

// SAFETY: every call goes to the system's allocator with unchanged arguments, and counting neither
// allocates nor unwinds.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller keeps the contract of `alloc`, which is the same for the system's
        // allocator.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the pointer came from the system's allocator through `alloc` or `realloc`, with
        // this layout.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        count();
        // SAFETY: as for `dealloc`; the caller keeps the contract on the new size.
        unsafe { System.realloc(pointer, layout, new_size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The number of allocations that `work` makes.
fn allocations(work: impl FnOnce()) -> u64 {
    let before = ALLOCATION_COUNT.get();
    work();
    ALLOCATION_COUNT.get() - before
}

#[test]
fn steps_and_records_allocate_nothing() {
    let config = Config {
        particles: 10_000,
        cells: 64,
        ..Config::default()
    };
    let mut plasma = Simulation::new(config).expect("the configuration is valid");
    let mut order = CellOrder::new();
    assert!(allocations(|| plasma.order_by_cell(&mut order)) > 0);
    let mut sum = 0u64;
    let count = allocations(|| {
        for dump in 0..5 {
            plasma.step();
            plasma.for_each_record(dump, |key, _| sum += u64::from(key[15]));
            plasma.order_by_cell(&mut order);
            sum += plasma
                .records(dump, order.ids())
                .map(|(key, _)| u64::from(key[15]))
                .sum::<u64>();
            assert!(plasma.diagnostics().total_energy > 0.0);
        }
    });
    assert_eq!(count, 0);
    let once: u64 = (0..10_000u64).map(|id| id & 0xff).sum();
    assert_eq!(sum, 10 * once);
}
