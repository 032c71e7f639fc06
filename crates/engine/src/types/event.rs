//! Events of an open store, and their delivery to a listener.
//!
//! The user implements [`EventListener`]. [`Events`] is the bounded queue in front of it, which a
//! task of its own empties.
//!
//! Invariants: emitting an event never waits for the listener. An event that finds the queue full
//! is lost and counted (`event_lost_count`). Closing the store ends the queue and waits for nobody,
//! since the listener may be the caller of close; events that are queued by then are still
//! delivered. Stalls, of which there can be thousands a second, leave a quarter of the queue to
//! other events. Without a listener an event is not even built.
//!
//! Threading: any task may emit, under any lock of the store (the queue's lock comes last in their
//! order). One task calls the listener, one event at a time.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use siltstone_storage::{Condvar, Mutex, Runtime};

use crate::types::checkpoint::CheckpointReport;
use crate::types::detect::Limit;
use crate::types::error::{Error, ErrorKind, Result};
use crate::types::limits::KeyspaceId;
use crate::types::metrics::Counter;
use crate::types::options::Value;
use crate::types::options::difference::OptionDifference;
use crate::types::pressure::{Load, StallCause};

/// The most events that wait for the listener.
const QUEUED_MAX: usize = 1024;

/// The number of queued events from which on stall events are lost.
const QUEUED_MAX_OF_DELAYS: usize = QUEUED_MAX / 4 * 3;

/// Receives the events of an open store. Pass it to [`crate::Store::open_with_listener`], or as
/// [`crate::Components::listener`].
///
/// One task of the store calls the listener, with one event after the other, shortly after they
/// happened. A listener may be slow, and may use the store and even close it. The queue holds 1024
/// events; those that find no room in it are lost, and counted as `event_lost_count` in
/// [`crate::Stats`]. A listener that holds a [`crate::Store`] keeps it open. A listener that panics
/// receives no more events.
///
/// ```
/// use std::sync::{Arc, Mutex};
/// use siltstone::{Event, EventListener, Options, Store};
///
/// #[derive(Default)]
/// struct Flushes(Mutex<Vec<String>>);
///
/// impl EventListener for Flushes {
///     fn on_event(&self, event: &Event) {
///         if let Event::Flushed { keyspace, out_bytes, .. } = event {
///             self.0.lock().unwrap().push(format!("{keyspace}: {out_bytes} bytes"));
///         }
///     }
/// }
///
/// # fn main() -> siltstone::Result<()> {
/// # let folder = tempfile::tempdir().unwrap();
/// let flushes = Arc::new(Flushes::default());
/// let store = Store::open_with_listener(folder.path(), Options::default(), flushes.clone())?;
/// store.default_keyspace()?.put(b"key", b"value")?;
/// store.flush()?;
/// store.close()?;
/// # Ok(())
/// # }
/// ```
pub trait EventListener: Send + Sync + 'static {
    /// Called once for each event.
    fn on_event(&self, event: &Event);
}

/// Something that happened in an open store. The open itself emits its failures, damage in the log
/// that it skipped, and options that differ from the file of options in the store's folder.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Event {
    /// A memtable became a run of level 0.
    #[non_exhaustive]
    Flushed {
        /// The keyspace.
        keyspace: String,
        /// Bytes of the memtable's entries, before they are encoded and compressed.
        in_bytes: u64,
        /// Bytes of the files of the new tables.
        out_bytes: u64,
        /// The number of new tables.
        table_count: u64,
        /// How long the flush took, in microseconds.
        duration_us: u64,
        /// The name of the executor that ran it.
        executor: String,
        /// Where that executor computes: `host`, `gpu` or `device`.
        side: String,
    },
    /// A compaction merged, moved or dropped tables.
    #[non_exhaustive]
    Compacted {
        /// The keyspace.
        keyspace: String,
        /// Why the compaction ran, in words.
        reason: String,
        /// The topmost level of the inputs.
        from_level: u8,
        /// The level of the outputs.
        to_level: u8,
        /// The number of input tables.
        in_table_count: u64,
        /// Bytes of the files of the input tables.
        in_bytes: u64,
        /// The number of output tables. A compaction that only moves tables has its inputs as
        /// outputs.
        out_table_count: u64,
        /// Bytes that were written; 0 if no table had to be rewritten.
        out_bytes: u64,
        /// How long the compaction took, in microseconds.
        duration_us: u64,
        /// The name of the executor that ran it. A compaction that only moves or drops tables has
        /// no job, and is the host's.
        executor: String,
        /// Where that executor computes: `host`, `gpu` or `device`.
        side: String,
        /// Why it ran there, in words. Empty if the host is the only side.
        placement: String,
    },
    /// A flush or a compaction begins on another executor than the host's own.
    #[non_exhaustive]
    JobPlaced {
        /// The keyspace.
        keyspace: String,
        /// `flush` or `compaction`.
        kind: &'static str,
        /// Bytes of its inputs: of the entries of a memtable, or of the files of tables.
        in_bytes: u64,
        /// The name of the executor.
        executor: String,
        /// Where it computes: `gpu` or `device`.
        side: String,
        /// Why it was chosen: when each side would have done the job, or why a side was no
        /// candidate, such as `gpu0 0.234 s, host 0.537 s`.
        placement: String,
    },
    /// An executor is given no jobs for a while, because it failed, or its outcomes were rejected,
    /// several times in a row, or because it showed no sign of life. After the pause it is given
    /// one job, which shows whether it works again. If that job goes wrong too, this event is
    /// emitted again, with a longer pause.
    #[non_exhaustive]
    SideSuspended {
        /// The name of the executor.
        executor: String,
        /// Where it computes: `gpu` or `device`.
        side: String,
        /// What went wrong the last time.
        reason: String,
        /// How long it is given no jobs, in microseconds.
        pause_us: u64,
    },
    /// An executor that was suspended has done a job, and is given jobs as before.
    #[non_exhaustive]
    SideResumed {
        /// The name of the executor.
        executor: String,
        /// Where it computes: `gpu` or `device`.
        side: String,
    },
    /// A flush, a compaction or maintenance failed. The store runs it again. If another executor
    /// fails with a job, that is not reported here: another side runs the job, and
    /// `SideStats::failed_count` rises.
    #[non_exhaustive]
    JobFailed {
        /// What failed.
        error: Error,
    },
    /// A flush, a compaction or an ingest added a table.
    #[non_exhaustive]
    TableCreated {
        /// The keyspace.
        keyspace: String,
        /// The name of the file.
        name: String,
        /// The table's level.
        level: u8,
        /// Bytes of the file.
        file_bytes: u64,
        /// The number of entries in it.
        entry_count: u64,
    },
    /// The file of a table that nothing needs any more was deleted.
    #[non_exhaustive]
    TableDeleted {
        /// The name of the file.
        name: String,
    },
    /// A writer begins to wait, because flushes or compactions fall behind.
    #[non_exhaustive]
    StallBegan {
        /// The keyspace for which it waits.
        keyspace: String,
        /// Why it waits.
        cause: StallCause,
        /// What was measured.
        load: Load,
        /// The limit that was reached, in the unit of the cause.
        limit: u64,
    },
    /// The writer continues.
    #[non_exhaustive]
    StallEnded {
        /// The keyspace for which it waited.
        keyspace: String,
        /// Why it waited.
        cause: StallCause,
        /// How long it waited, in microseconds.
        duration_us: u64,
    },
    /// The writers of a keyspace will soon have to wait, at the present rates.
    #[non_exhaustive]
    StallAheadBegan {
        /// The keyspace.
        keyspace: String,
        /// The limit that will be reached.
        limit: Limit,
    },
    /// The writers of a keyspace will not have to wait soon, at the present rates.
    #[non_exhaustive]
    StallAheadEnded {
        /// The keyspace.
        keyspace: String,
        /// How long the stall was ahead, in microseconds.
        lasted_us: u64,
    },
    /// The store was opened without its second location of tables, whose folder cannot be used. If
    /// it was opened for writing, the store needs no table there. If it was opened for reading,
    /// tables may be there, and reads of their keys fail.
    #[non_exhaustive]
    LocationMissing {
        /// The path of the folder.
        place: String,
        /// Why it cannot be used.
        why: String,
    },
    /// Flushes go to the second location of tables too, because memtables fill faster than they are
    /// flushed, or because the first location has hardly any room.
    #[non_exhaustive]
    RedirectBegan {
        /// The path of the second location's folder.
        place: String,
    },
    /// No flush goes there any more.
    #[non_exhaustive]
    RedirectEnded {
        /// The path of the second location's folder.
        place: String,
        /// How long flushes went there, in microseconds.
        lasted_us: u64,
        /// Bytes of the memtables that were flushed there meanwhile.
        flushed_bytes: u64,
    },
    /// Flushes do not go to the second location of tables for a while, because flushes there have
    /// failed or hang, or until the store is opened again, because a sync of its folder failed. Each
    /// time that this is prolonged is an event of its own.
    #[non_exhaustive]
    LocationSuspended {
        /// The path of the folder.
        place: String,
        /// What failed.
        error: Error,
        /// For how long, in microseconds; `None` until the store is opened again.
        for_us: Option<u64>,
    },
    /// A flush to a location that was suspended has succeeded.
    #[non_exhaustive]
    LocationUsedAgain {
        /// The path of the folder.
        place: String,
    },
    /// The store takes no writes until it is opened again.
    #[non_exhaustive]
    Poisoned {
        /// What failed.
        error: Error,
    },
    /// There is no room on the disk. Writes are refused until there is.
    #[non_exhaustive]
    NoSpace {
        /// What failed.
        error: Error,
    },
    /// The open found damage in a part of the log that is not needed, because tables hold
    /// everything in it, and skipped it.
    #[non_exhaustive]
    LogDamageSkipped {
        /// What is damaged, and where.
        error: Error,
    },
    /// The store was not closed, and the open discarded whole records of the log that follow a torn
    /// or damaged one. A power loss can cause this for records that were never synced. If the power
    /// did not fail, the file is damaged, and acknowledged writes are missing.
    #[non_exhaustive]
    LogRecordsDiscarded {
        /// The log file in which replay ended.
        file: String,
        /// Where replay ended, in bytes from the start of the file.
        offset_bytes: u64,
        /// What was found there instead of a record.
        found: String,
        /// The number of whole records that follow.
        record_count: u64,
        /// Bytes of these records.
        record_bytes: u64,
    },
    /// There has been room on the disk for a second. Writes are taken again.
    SpaceAvailable,
    /// An ingest added tables from outside.
    #[non_exhaustive]
    Ingested {
        /// The keyspaces.
        keyspaces: Vec<String>,
        /// The sequence number from which on they are visible.
        number: u64,
        /// The number of tables.
        table_count: u64,
        /// Bytes of their files.
        file_bytes: u64,
    },
    /// A checkpoint was written.
    #[non_exhaustive]
    Checkpointed {
        /// The folder of the checkpoint.
        folder: String,
        /// What it holds.
        report: CheckpointReport,
    },
    /// The value of an option changed.
    #[non_exhaustive]
    OptionChanged {
        /// The keyspace, if the option is one of a keyspace; `None` for an option of the store.
        keyspace: Option<String>,
        /// The option.
        name: &'static str,
        /// The new value; `None` if the keyspace follows the store's option again.
        value: Option<Value>,
    },
    /// The store was opened for writing, and options in force differ from the file `OPTIONS.toml`
    /// in its folder: the program did not pass the result of [`crate::Options::load`].
    #[non_exhaustive]
    OptionsDiffer {
        /// Each option, with the value in force and the value in the file.
        differences: Vec<OptionDifference>,
    },
    /// The store was opened for writing, and the file `OPTIONS.toml` in its folder cannot be read.
    #[non_exhaustive]
    OptionsUnreadable {
        /// Why not. The message begins with the path of the file.
        error: Error,
    },
    /// The store was opened for writing, and the file `OPTIONS.toml` in its folder has options for
    /// keyspaces that the store does not have yet. Either a name is mistyped, or the keyspace will
    /// be created later. It then gets these options if the program passed the result of
    /// [`crate::Options::load`].
    #[non_exhaustive]
    OptionsOfNoKeyspace {
        /// The names in the file.
        keyspaces: Vec<String>,
    },
    /// A keyspace was created.
    #[non_exhaustive]
    KeyspaceCreated {
        /// Its name.
        name: String,
        /// Its id.
        id: KeyspaceId,
    },
    /// A keyspace was dropped.
    #[non_exhaustive]
    KeyspaceDropped {
        /// Its name.
        name: String,
        /// Its id.
        id: KeyspaceId,
    },
}

impl Event {
    fn is_a_delay(&self) -> bool {
        matches!(self, Event::StallBegan { .. } | Event::StallEnded { .. })
    }
}

#[derive(Default)]
struct Queue {
    events: VecDeque<Event>,
    ended: bool,
}

/// The queue of events, and the task that delivers them.
pub(crate) struct Events {
    /// There is a listener that still receives events.
    has_listener: AtomicBool,
    queue: Mutex<Queue>,
    /// The queue has an event, or it has ended.
    changed: Condvar,
    lost: Counter,
}

impl Events {
    /// Starts the task that delivers events, if there is a listener.
    pub(crate) fn start(
        runtime: &Runtime,
        listener: Option<Arc<dyn EventListener>>,
    ) -> Result<Arc<Events>> {
        let events = Arc::new(Events {
            has_listener: AtomicBool::new(listener.is_some()),
            queue: runtime.mutex(Queue::default()),
            changed: runtime.condvar(),
            lost: Counter::default(),
        });
        if let Some(listener) = listener {
            let queue = events.clone();
            // Nobody joins the task: a call of the listener may never return.
            runtime
                .spawn("silt-events", move || queue.deliver(&*listener))
                .map_err(|e| {
                    Error::new(
                        ErrorKind::Io,
                        format!("the task of the event listener could not be started: {e}"),
                    )
                    .advice("raise the process's limit of threads")
                })?;
        }
        Ok(events)
    }

    /// Emits an event. It costs one relaxed load if there is no listener, and never waits for one.
    #[inline]
    pub(crate) fn emit(&self, event: impl FnOnce() -> Event) {
        if self.has_listener.load(Ordering::Relaxed) {
            self.push(event());
        }
    }

    #[cold]
    fn push(&self, event: Event) {
        let max = match event.is_a_delay() {
            true => QUEUED_MAX_OF_DELAYS,
            false => QUEUED_MAX,
        };
        let mut queue = self.queue.lock();
        if queue.ended || queue.events.len() >= max {
            self.lost.add(1);
            return;
        }
        queue.events.push_back(event);
        self.changed.notify_all();
    }

    /// The number of events that were lost because the queue was full.
    pub(crate) fn lost_count(&self) -> u64 {
        self.lost.get()
    }

    /// Takes no more events. The task ends when it has delivered those in the queue.
    pub(crate) fn end(&self) {
        self.queue.lock().ended = true;
        self.changed.notify_all();
    }

    fn deliver(&self, listener: &dyn EventListener) {
        /// A listener that panics receives no more events, and no more are queued for it.
        struct Gone<'a>(&'a Events);
        impl Drop for Gone<'_> {
            fn drop(&mut self) {
                self.0.has_listener.store(false, Ordering::Relaxed);
            }
        }
        let _gone = Gone(self);
        loop {
            let event = {
                let mut queue = self.queue.lock();
                loop {
                    if let Some(event) = queue.events.pop_front() {
                        break event;
                    }
                    if queue.ended {
                        return;
                    }
                    queue = self.changed.wait(queue);
                }
            };
            listener.on_event(&event);
        }
    }
}
