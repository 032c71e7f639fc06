//! Reads pieces of columns ahead of a merge.
//!
//! Where the inputs lie behind a link, a merge that reads a piece only when it needs it waits for
//! the link each time. A [`ColumnsAhead`] has a task of its own ([`ColumnsAhead::run`]), which
//! reads the next piece of each run while the merge works on the present one.
//!
//! Invariants: a run asks for one piece at a time, so there are two of a run in memory at most.
//! What was read is verified by whoever takes it. After [`ColumnsAhead::close`] nobody waits.
//!
//! Threading: shared by the merge and the reading task. The lock is not held over a read.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use siltstone_storage::{Condvar, Mutex, Runtime};

use super::input_run::read_columns;
use super::table::InputTable;
use crate::error::TableError;
use crate::exec::{CancelToken, ExecError};

/// How often a task that waits looks whether the job was cancelled.
const LOOK: Duration = Duration::from_millis(100);

/// A piece that was asked for.
struct Wanted {
    ticket: u64,
    table: Arc<InputTable>,
    blocks: Range<usize>,
    len: u64,
    buffer: Vec<u8>,
}

#[derive(Default)]
struct State {
    tickets: u64,
    wanted: VecDeque<Wanted>,
    read: BTreeMap<u64, Result<Vec<u8>, TableError>>,
    is_closed: bool,
}

/// See the module.
pub struct ColumnsAhead {
    cancel: CancelToken,
    state: Mutex<State>,
    changed: Condvar,
}

/// Closes when it is dropped, so that nobody waits for a task that has ended by a panic.
struct Closed<'a>(&'a ColumnsAhead);

impl Drop for Closed<'_> {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl ColumnsAhead {
    /// A reader for the runs of one merge, which ends when `cancel` asks for it.
    pub fn new(runtime: &Runtime, cancel: &CancelToken) -> Arc<ColumnsAhead> {
        Arc::new(ColumnsAhead {
            cancel: cancel.clone(),
            state: runtime.mutex(State::default()),
            changed: runtime.condvar(),
        })
    }

    /// Reads what is asked for, until it is closed or cancelled.
    pub fn run(&self) {
        let _closed = Closed(self);
        while let Some(mut wanted) = self.next() {
            wanted.buffer.resize(wanted.len as usize, 0);
            let read = read_columns(&wanted.table, wanted.blocks, &mut wanted.buffer);
            let read = read.map(|()| wanted.buffer);
            self.state.lock().read.insert(wanted.ticket, read);
            self.changed.notify_all();
        }
    }

    fn next(&self) -> Option<Wanted> {
        let mut state = self.state.lock();
        loop {
            if state.is_closed || self.cancel.is_cancelled() {
                return None;
            }
            if let Some(wanted) = state.wanted.pop_front() {
                return Some(wanted);
            }
            state = self.changed.wait_timeout(state, LOOK).0;
        }
    }

    /// Ends the task, and every wait.
    pub fn close(&self) {
        self.state.lock().is_closed = true;
        self.changed.notify_all();
    }

    /// Asks for the columns of these blocks, which have `len` bytes. Returns the ticket to take
    /// them with.
    pub(super) fn want(
        &self,
        table: &Arc<InputTable>,
        blocks: Range<usize>,
        len: u64,
        buffer: Vec<u8>,
    ) -> u64 {
        let mut state = self.state.lock();
        state.tickets += 1;
        let ticket = state.tickets;
        state.wanted.push_back(Wanted {
            ticket,
            table: Arc::clone(table),
            blocks,
            len,
            buffer,
        });
        drop(state);
        self.changed.notify_all();
        ticket
    }

    /// Waits for a piece that was asked for.
    ///
    /// # Errors
    /// The error of the read, `Cancelled` if the job was cancelled, and an error of its own if the
    /// reading task has ended without that.
    pub(super) fn take(&self, ticket: u64) -> Result<Vec<u8>, ExecError> {
        let mut state = self.state.lock();
        loop {
            if let Some(read) = state.read.remove(&ticket) {
                return Ok(read?);
            }
            if self.cancel.is_cancelled() {
                return Err(ExecError::Cancelled);
            }
            if state.is_closed {
                // The owner closes it after the merge, so the task has panicked. This error must
                // not look like a cancellation, which says that the reason is elsewhere.
                let what = "the task that reads columns ahead has ended early; its job failed";
                return Err(TableError::Misuse(what).into());
            }
            state = self.changed.wait_timeout(state, LOOK).0;
        }
    }
}
