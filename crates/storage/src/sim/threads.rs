//! The back end that runs each task on an OS thread of its own; a baton says which one runs.
//!
//! The baton is `State::current`: a thread goes on only when it reads its own number there, and waits on its own
//! condition variable until then. Slower than coroutines by an operating system's wake-up for each switch; kept
//! because Miri and the sanitizers cannot follow a switch of stacks.

use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;

use super::state::{DRIVER, State, TaskId};

/// A task's OS thread, and where it waits for its turn.
struct Seat {
    bell: Arc<Condvar>,
    thread: Option<JoinHandle<()>>,
}

/// Who waits for the baton where.
#[derive(Default)]
pub(super) struct Baton {
    tasks: Mutex<Vec<Seat>>,
    driver: Arc<Condvar>,
}

impl Baton {
    fn bell(&self, task: TaskId) -> Arc<Condvar> {
        if task == DRIVER {
            return self.driver.clone();
        }
        self.tasks.lock().unwrap_or_else(|e| e.into_inner())[task as usize]
            .bell
            .clone()
    }

    /// Starts the OS thread of `task`, which must be the next number. `body` waits for its turn itself.
    pub(super) fn create(
        &self,
        task: TaskId,
        name: &str,
        body: Box<dyn FnOnce() + Send>,
    ) -> io::Result<()> {
        let mut tasks = self.tasks.lock().unwrap_or_else(|e| e.into_inner());
        debug_assert_eq!(tasks.len(), task as usize);
        let thread = std::thread::Builder::new().name(name.into()).spawn(body)?;
        tasks.push(Seat {
            bell: Arc::default(),
            thread: Some(thread),
        });
        Ok(())
    }

    /// Waits for the OS threads of tasks that have `ended`; those of the others stand for ever.
    pub(super) fn join(&self, ended: &[bool]) {
        let mut tasks = self.tasks.lock().unwrap_or_else(|e| e.into_inner());
        let threads: Vec<_> = tasks
            .iter_mut()
            .zip(ended)
            .filter(|(_, ended)| **ended)
            .filter_map(|(seat, _)| seat.thread.take())
            .collect();
        drop(tasks);
        for thread in threads {
            // A task's panic is caught and reported by the run.
            let _ = thread.join();
        }
    }

    /// Tells `State::current` that it is its turn.
    pub(super) fn pass(&self, state: &MutexGuard<'_, State>) {
        self.bell(state.current).notify_one();
    }

    /// Waits until it is `me`'s turn.
    pub(super) fn wait<'a>(
        &self,
        mut state: MutexGuard<'a, State>,
        me: TaskId,
    ) -> MutexGuard<'a, State> {
        if state.current == me {
            return state;
        }
        let bell = self.bell(me);
        while state.current != me {
            state = bell.wait(state).unwrap_or_else(|e| e.into_inner());
        }
        state
    }
}
