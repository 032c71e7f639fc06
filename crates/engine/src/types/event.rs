//! What happens in an open store, told to a listener of the user's.
//!
//! What it is: [`EventListener`] is the user's, [`Events`] the bounded queue before it, emptied by a task of its own.
//!
//! Invariants: telling never waits for a listener: what finds no room in the queue is lost and counted (`event_lost_count`). Closing ends the
//! queue and waits for nobody, since the listener may be the one who closes; what is in the queue then is still told. Delays, of which there can be
//! thousands a second, leave a quarter of the queue to the others. Without a listener an event is not even made.
//!
//! Threading: told by whoever made it happen, under any lock of the store (the queue's comes last in their order); heard by one task, one at a time.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde::{Deserialize, Serialize};
use siltstone_storage::{Condvar, Mutex, Runtime};

use crate::types::error::{Error, ErrorKind, Result};
use crate::types::limits::KeyspaceId;
use crate::types::metrics::Counter;
use crate::types::options::Value;
use crate::types::options::file::OPTIONS;
use crate::types::pressure::{Cause, Load};

/// Events that wait for the listener at most.
const QUEUED_MAX: usize = 1024;

/// Events at which delays are not queued any more.
const QUEUED_MAX_OF_DELAYS: usize = QUEUED_MAX / 4 * 3;

/// Hears what happens in an open store. Given to [`crate::Store::open_with_listener`], or as [`crate::Components::listener`].
///
/// Events come from a task of the store's, one after the other, a moment after they happened. A listener may take its time and may use the
/// store, close it too; what does not fit into the queue meanwhile (1024 events) is lost, and counted as `event_lost_count` in
/// [`crate::Stats`]. A listener that holds a [`crate::Store`] keeps it open. A listener that panics hears no more.
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
    /// Something has happened.
    fn on_event(&self, event: &Event);
}

/// Something that happened in an open store. The open itself emits its failures, damage in the log
/// that it passed over, and contradictions to the file of options in the store's folder.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Event {
    /// A memtable became a run of level 0.
    #[non_exhaustive]
    Flushed {
        /// The keyspace.
        keyspace: String,
        /// Raw bytes of the memtable's entries.
        in_bytes: u64,
        /// Bytes of the tables' files.
        out_bytes: u64,
        /// Tables.
        table_count: u64,
        /// How long it took, in microseconds.
        duration_us: u64,
    },
    /// Tables were merged, moved or dropped.
    #[non_exhaustive]
    Compacted {
        /// The keyspace.
        keyspace: String,
        /// Why, for people.
        reason: String,
        /// The topmost level of the inputs.
        from_level: u8,
        /// The level of the outputs.
        to_level: u8,
        /// Tables that went in.
        in_table_count: u64,
        /// Bytes of their files.
        in_bytes: u64,
        /// Tables that came out; those that were only moved are the ones that went in.
        out_table_count: u64,
        /// Bytes that were written; 0 if nothing had to be rewritten.
        out_bytes: u64,
        /// How long it took, in microseconds.
        duration_us: u64,
    },
    /// A flush or compaction failed. It runs again.
    #[non_exhaustive]
    JobFailed {
        /// Why.
        error: Error,
    },
    /// A flush, compaction or ingest has added a table.
    #[non_exhaustive]
    TableCreated {
        /// The keyspace.
        keyspace: String,
        /// The file's name.
        name: String,
        /// Its level.
        level: u8,
        /// Bytes of the file.
        file_bytes: u64,
        /// Entries in it.
        entry_count: u64,
    },
    /// The file of a table that nothing needs any more was deleted.
    #[non_exhaustive]
    TableDeleted {
        /// The file's name.
        name: String,
    },
    /// A writer begins to wait.
    #[non_exhaustive]
    StallBegan {
        /// The keyspace whose load causes it.
        keyspace: String,
        /// Why.
        cause: Cause,
        /// The load.
        load: Load,
        /// The limit that it met, in the unit of the cause.
        limit: u64,
    },
    /// It goes on.
    #[non_exhaustive]
    StallEnded {
        /// The keyspace.
        keyspace: String,
        /// Why it waited.
        cause: Cause,
        /// For how long, in microseconds.
        duration_us: u64,
    },
    /// The store takes no writes until it is opened again.
    #[non_exhaustive]
    Poisoned {
        /// What failed.
        error: Error,
    },
    /// There is no space: writes are refused until there is.
    #[non_exhaustive]
    NoSpace {
        /// What failed.
        error: Error,
    },
    /// The open found damage in a part of the log that is not needed, because tables hold
    /// everything in it, and passed over it.
    #[non_exhaustive]
    LogDamagePassed {
        /// What is damaged, and where.
        error: Error,
    },
    /// The store was not closed, and the open discarded whole records of the log behind one that is
    /// torn or damaged. A power loss can cause this for records that were never synced. If the
    /// power did not fail, the file is damaged, and acknowledged writes are missing.
    #[non_exhaustive]
    LogRecordsDiscarded {
        /// The log file in which the replay ended.
        file: String,
        /// Where it ended, in bytes from the file's beginning.
        offset_bytes: u64,
        /// What lies there instead of a record.
        found: String,
        /// Whole records behind it.
        record_count: u64,
        /// Bytes of these records.
        record_bytes: u64,
    },
    /// There is space again, and has been for a second.
    SpaceAgain,
    /// Tables from outside were taken in.
    #[non_exhaustive]
    Ingested {
        /// The keyspaces.
        keyspaces: Vec<String>,
        /// The sequence number from which on they are seen.
        number: u64,
        /// Tables.
        table_count: u64,
        /// Bytes of their files.
        file_bytes: u64,
    },
    /// A checkpoint was written.
    #[non_exhaustive]
    Checkpointed {
        /// Where.
        place: String,
        /// What it holds.
        report: CheckpointReport,
    },
    /// An option has another value.
    #[non_exhaustive]
    OptionChanged {
        /// The keyspace whose own it is; `None` for the store's.
        keyspace: Option<String>,
        /// The option.
        name: &'static str,
        /// Its value; `None` if the keyspace follows the store again.
        value: Option<Value>,
    },
    /// The store was opened for writing, and options in force contradict the file `OPTIONS.toml` in
    /// its folder: the program did not pass the result of [`crate::Options::load`].
    #[non_exhaustive]
    OptionsDiffer {
        /// Each option, with the value in force and the value in the file.
        differences: Vec<OptionDifference>,
    },
    /// The store was opened for writing, and the file `OPTIONS.toml` in its folder cannot be read.
    #[non_exhaustive]
    OptionsUnreadable {
        /// Why. The message begins with the path of the file.
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

/// See the module.
pub(crate) struct Events {
    /// Somebody listens.
    heard: AtomicBool,
    queue: Mutex<Queue>,
    /// Something is in the queue, or it has ended.
    changed: Condvar,
    lost: Counter,
}

impl Events {
    /// Starts telling, if somebody listens.
    pub(crate) fn start(
        runtime: &Runtime,
        listener: Option<Arc<dyn EventListener>>,
    ) -> Result<Arc<Events>> {
        let events = Arc::new(Events {
            heard: AtomicBool::new(listener.is_some()),
            queue: runtime.mutex(Queue::default()),
            changed: runtime.condvar(),
            lost: Counter::default(),
        });
        if let Some(listener) = listener {
            let told = events.clone();
            // Nobody joins it: it may be in a call of the listener's for ever.
            runtime
                .spawn("silt-events", move || told.deliver(&*listener))
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

    /// Tells an event. Costs one relaxed load if nobody listens, and never waits for who does.
    #[inline]
    pub(crate) fn tell(&self, event: impl FnOnce() -> Event) {
        if self.heard.load(Ordering::Relaxed) {
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

    /// Events that found no room.
    pub(crate) fn lost_count(&self) -> u64 {
        self.lost.get()
    }

    /// No event comes any more; the task ends when it has told those in the queue.
    pub(crate) fn end(&self) {
        self.queue.lock().ended = true;
        self.changed.notify_all();
    }

    fn deliver(&self, listener: &dyn EventListener) {
        /// A listener that panics hears no more, and the others do not queue for it.
        struct Gone<'a>(&'a Events);
        impl Drop for Gone<'_> {
            fn drop(&mut self) {
                self.0.heard.store(false, Ordering::Relaxed);
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

/// What a checkpoint holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CheckpointReport {
    /// The sequence number at which it was cut: what a snapshot taken then would see.
    pub published: u64,
    /// Keyspaces.
    pub keyspace_count: u64,
    /// Tables of the source that were linked or copied.
    pub table_count: u64,
    /// Bytes of their files.
    pub table_bytes: u64,
    /// Tables that were written of what was in memory only.
    pub written_table_count: u64,
    /// Bytes of their files.
    pub written_bytes: u64,
}

/// An option whose value in force contradicts the file `OPTIONS.toml` in the store's folder.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct OptionDifference {
    /// The keyspace whose own option the file sets; `None` for an option of the store.
    pub keyspace: Option<String>,
    /// The option.
    pub name: String,
    /// The value in force, as it is written in TOML.
    pub value: String,
    /// The value in the file.
    pub file_value: String,
}

impl std::fmt::Display for OptionDifference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if let Some(keyspace) = &self.keyspace {
            write!(f, "keyspace `{keyspace}`: ")?;
        }
        let (name, value, file_value) = (&self.name, &self.value, &self.file_value);
        write!(f, "{name} is {value}, but {OPTIONS} sets {file_value}")
    }
}
