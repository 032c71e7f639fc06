//! The back end that runs tasks as stackful coroutines on one OS thread.
//!
//! Invariants: a coroutine is made, resumed and finished on the OS thread of its run; its `Coroutine` is in its
//! slot exactly while it is suspended; whoever resumes it (the driver, or a task that unwinds it) gets control back
//! at its next suspension or end. A coroutine that has neither ended nor is wanted any more is forgotten, never
//! dropped: dropping would unwind it, and that is only done by the scheduler's own, guarded way.

// The one unsafe block of the simulation: switching from a coroutine's stack needs its yielder by address.
#![allow(unsafe_code)]

use std::cell::RefCell;
use std::io;
use std::mem::ManuallyDrop;
use std::sync::Mutex as StdMutex;

use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, CoroutineResult, Yielder};

use super::state::TaskId;

type Co = Coroutine<(), (), (), DefaultStack>;

struct Slot {
    suspended: Option<ManuallyDrop<Co>>,
    /// Set when the coroutine first runs; valid while its stack stands.
    yielder: *const Yielder<(), ()>,
    stack_bytes: usize,
}

thread_local! {
    /// The coroutines of the run on this OS thread, by task number.
    static SLOTS: RefCell<Vec<Slot>> = const { RefCell::new(Vec::new()) };
}

/// Stacks of finished coroutines, for the next run: mapping one and faulting its pages in costs more than a short
/// run. Bounded, so that one run with thousands of tasks does not keep their memory.
static STACKS: StdMutex<Vec<(usize, DefaultStack)>> = StdMutex::new(Vec::new());
const MAX_KEPT_STACKS: usize = 64;

fn take_stack(bytes: usize) -> io::Result<DefaultStack> {
    let mut kept = STACKS.lock().unwrap_or_else(|e| e.into_inner());
    match kept.iter().rposition(|(size, _)| *size == bytes) {
        Some(i) => Ok(kept.swap_remove(i).1),
        None => {
            drop(kept);
            DefaultStack::new(bytes)
        }
    }
}

fn keep_stack(bytes: usize, stack: DefaultStack) {
    let mut kept = STACKS.lock().unwrap_or_else(|e| e.into_inner());
    if kept.len() < MAX_KEPT_STACKS {
        kept.push((bytes, stack));
    }
}

/// Makes the coroutine of `task`, which must be the next number. It runs `body` when it is first resumed.
pub(super) fn create(task: TaskId, stack_bytes: usize, body: Box<dyn FnOnce()>) -> io::Result<()> {
    let stack = take_stack(stack_bytes)?;
    let coroutine = Co::with_stack(stack, move |yielder, ()| {
        SLOTS.with_borrow_mut(|slots| slots[task as usize].yielder = yielder);
        body();
    });
    SLOTS.with_borrow_mut(|slots| {
        debug_assert_eq!(slots.len(), task as usize);
        slots.push(Slot {
            suspended: Some(ManuallyDrop::new(coroutine)),
            yielder: std::ptr::null(),
            stack_bytes,
        });
    });
    Ok(())
}

/// Runs `task` until it suspends or ends.
pub(super) fn resume(task: TaskId) {
    let (mut coroutine, stack_bytes) = SLOTS.with_borrow_mut(|slots| {
        let slot = &mut slots[task as usize];
        (
            slot.suspended
                .take()
                .expect("only a suspended task is resumed"),
            slot.stack_bytes,
        )
    });
    match coroutine.resume(()) {
        CoroutineResult::Yield(()) => {
            SLOTS.with_borrow_mut(|slots| slots[task as usize].suspended = Some(coroutine));
        }
        CoroutineResult::Return(()) => keep_stack(
            stack_bytes,
            ManuallyDrop::into_inner(coroutine).into_stack(),
        ),
    }
}

/// Gives control back to whoever resumed `task`, the task that is running.
pub(super) fn suspend(task: TaskId) {
    let yielder = SLOTS.with_borrow(|slots| slots[task as usize].yielder);
    assert!(!yielder.is_null(), "a task that runs has a yielder");
    // SAFETY: the pointer was stored from a reference into `task`'s own stack when it first ran. `task` is the task
    // that is running now (the scheduler's `current`, on this OS thread: SLOTS is this thread's), so its stack
    // stands and its root frame, which owns the yielder, has not returned.
    unsafe { (*yielder).suspend(()) }
}

/// Forgets every coroutine of this OS thread that has not ended: their stacks stay mapped.
pub(super) fn forget_rest() {
    SLOTS.with_borrow_mut(|slots| slots.clear());
}
