//! The back end that runs tasks as stackful coroutines on one OS thread.
//!
//! Invariants: a coroutine is created, resumed and finished on the OS thread of its run. Its
//! `Coroutine` is in its slot exactly while it is suspended. What resumes it (the driver, or a task
//! that unwinds it) gets control back at its next suspension or its end. A coroutine that will
//! never continue and has not ended is forgotten, never dropped: dropping it would unwind it, which
//! only the scheduler does, with its guards.

// The only unsafe block of the simulation: switching away from a coroutine's stack needs its
// yielder by address.
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
    /// Set when the coroutine first runs. Valid while its stack exists.
    yielder: *const Yielder<(), ()>,
    stack_bytes: usize,
}

thread_local! {
    /// The coroutines of the run on this OS thread, by task number.
    static SLOTS: RefCell<Vec<Slot>> = const { RefCell::new(Vec::new()) };
}

/// Stacks of finished coroutines, for reuse: mapping one and faulting in its pages costs more than
/// a short run. Their number is bounded, so that one run with thousands of tasks does not keep
/// their memory.
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

/// Creates the coroutine of `task`, which must be the next number. It runs `body` when it is first
/// resumed.
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

/// Returns control to what resumed `task`, which is the running task.
pub(super) fn suspend(task: TaskId) {
    let yielder = SLOTS.with_borrow(|slots| slots[task as usize].yielder);
    assert!(!yielder.is_null(), "a task that runs has a yielder");
    // SAFETY: the pointer was stored from a reference into `task`'s own stack when it first ran.
    // `task` is running now (it is the scheduler's `current`, and SLOTS belongs to this OS thread),
    // so its stack exists and its root frame, which owns the yielder, has not returned.
    unsafe { (*yielder).suspend(()) }
}

/// Forgets all coroutines of this OS thread that have not ended. Their stacks stay mapped.
pub(super) fn forget_all() {
    SLOTS.with_borrow_mut(|slots| slots.clear());
}
