//! The back end that runs each task on its own OS thread. A baton says which of them runs.
//!
//! The baton is `State::current`: a thread continues only when it finds its own number there, and
//! until then it waits on its own condition variable. This is slower than coroutines, because each
//! switch wakes a thread of the operating system. It exists because Miri and the sanitizers cannot
//! follow a switch of stacks.

use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;

use super::state::{DRIVER, State, TaskId};

/// The OS thread of a task, and the condition variable on which it waits for its turn.
struct TaskThread {
    turn: Arc<Condvar>,
    thread: Option<JoinHandle<()>>,
}

/// The condition variables on which tasks and the driver wait for the baton.
#[derive(Default)]
pub(super) struct Baton {
    tasks: Mutex<Vec<TaskThread>>,
    driver: Arc<Condvar>,
}

impl Baton {
    fn turn(&self, task: TaskId) -> Arc<Condvar> {
        if task == DRIVER {
            return self.driver.clone();
        }
        self.tasks.lock().unwrap_or_else(|e| e.into_inner())[task as usize]
            .turn
            .clone()
    }

    /// Starts the OS thread of `task`, which must be the next number. `body` itself waits for its
    /// turn.
    pub(super) fn create(
        &self,
        task: TaskId,
        name: &str,
        body: Box<dyn FnOnce() + Send>,
    ) -> io::Result<()> {
        let mut tasks = self.tasks.lock().unwrap_or_else(|e| e.into_inner());
        debug_assert_eq!(tasks.len(), task as usize);
        let thread = std::thread::Builder::new().name(name.into()).spawn(body)?;
        tasks.push(TaskThread {
            turn: Arc::default(),
            thread: Some(thread),
        });
        Ok(())
    }

    /// Joins the OS threads of the tasks that have `ended`. Those of other tasks never end.
    pub(super) fn join(&self, ended: &[bool]) {
        let mut tasks = self.tasks.lock().unwrap_or_else(|e| e.into_inner());
        let threads: Vec<_> = tasks
            .iter_mut()
            .zip(ended)
            .filter(|(_, ended)| **ended)
            .filter_map(|(task, _)| task.thread.take())
            .collect();
        drop(tasks);
        for thread in threads {
            // A task's panic is caught and reported by the run.
            let _ = thread.join();
        }
    }

    /// Notifies the task `State::current` that it is its turn.
    pub(super) fn pass(&self, state: &MutexGuard<'_, State>) {
        self.turn(state.current).notify_one();
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
        let turn = self.turn(me);
        while state.current != me {
            state = turn.wait(state).unwrap_or_else(|e| e.into_inner());
        }
        state
    }
}
