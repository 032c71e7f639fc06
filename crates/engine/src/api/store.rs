//! The handle of an open store, [`Store`], and what a store runs on, [`Components`].
//!
//! Each call checks its arguments and leaves the work to one of the parts below.
//!
//! Threading: every method may be called from any thread. The store's tasks end with
//! [`Store::close`], or when the last handle is dropped; [`Store`] lists what counts as one.

use std::borrow::Cow;
use std::path::Path;
use std::sync::Arc;

use siltstone_storage::{Runtime, Storage};
use siltstone_table::exec::Executor;

use crate::api::batch::Batch;
use crate::api::keyspace::Keyspace;
use crate::background::Background;
use crate::catalog::Catalog;
use crate::commit::write::{WriteOptions, write};
use crate::formats::directories::{self, Storages};
use crate::jobs::runner::Executors;
use crate::services::parts::Parts;
use crate::services::recovery::{Purpose, ReplayBudget};
use crate::stats::Stats;
use crate::tools::destroy::DestroyReport;
use crate::tree::snapshot::Snapshot;
use crate::tree::view::KeyspaceCore;
use crate::types::checkpoint::CheckpointReport;
use crate::types::error::{Error, Result};
use crate::types::event::{EventListener, Events};
use crate::types::limits::DEFAULT_KEYSPACE;
use crate::types::options::{KeyspaceOptions, Options, Value};

/// [`Store::open_keyspace`] tries this many times. It has to try again if another thread creates
/// the keyspace just before it does, and drops it at once.
const OPEN_KEYSPACE_TRIES: u32 = 100;

/// What a store runs on: storages, a runtime, executors and a listener.
///
/// The log, the manifest and the tables may lie on different storages. Two storages are the same if
/// their [`Storage::location`] is the same. A store is always opened on the same arrangement of
/// storages on which it was created (`docs/format/directories.md`); only a second location of
/// tables can be added later, and taken out.
pub struct Components {
    /// The storage of the log.
    pub log: Arc<dyn Storage>,
    /// The storage of the manifest and of the lease.
    pub manifest: Arc<dyn Storage>,
    /// The storage of the tables.
    pub tables: Arc<dyn Storage>,
    /// The storage of a second location of tables, if the store has one or is to get one. It is
    /// none of the others. With the option `stall_policy = "redirect"`, flushes that fall behind go
    /// there too.
    pub redirect: Option<Arc<dyn Storage>>,
    /// Threads, locks, clock, randomness.
    pub runtime: Runtime,
    /// Executors of jobs besides the host's own cores. A job is offered to the side that is
    /// expected to finish it first. If that side declines or fails, the host's cores run it. A
    /// store that is opened for reading runs no jobs.
    pub executors: Vec<Arc<dyn Executor>>,
    /// An executor that may run compactions in the place of the host's cores, such as one that
    /// leaves values on the device that has the tables. It uses a worker of the host. What it
    /// declines, the host's cores run, and so they do with work that it failed with. What it makes
    /// is verified as that of other executors. It is used if the option `schedule` has the switch
    /// `separated-transfer`.
    pub separated: Option<Arc<dyn Executor>>,
    /// The listener that receives the store's events. A store that is opened for reading emits
    /// none.
    pub listener: Option<Arc<dyn EventListener>>,
}

impl Components {
    /// Everything on one storage; no executors but the host's cores, and no listener.
    pub fn on(storage: Arc<dyn Storage>, runtime: Runtime) -> Components {
        Components::of(Storages::on(storage), runtime)
    }

    /// What [`Store::open`] uses for the folder `path`: the folders of the store that is there, or
    /// those that the options name for a new one, and threads. A caller adds executors or a
    /// listener, and opens the store with [`Store::open_with`].
    ///
    /// # Errors
    /// As [`Store::open`], for what concerns folders.
    pub fn for_path(path: impl AsRef<Path>, options: &Options) -> Result<Components> {
        options.validate()?;
        let storages = directories::for_open(path.as_ref(), options)?;
        Ok(Components::of(storages, Runtime::threads()))
    }

    /// On these storages; no executors but the host's cores, and no listener.
    pub fn of(storages: Storages, runtime: Runtime) -> Components {
        Components {
            log: storages.log,
            manifest: storages.manifest,
            tables: storages.tables,
            redirect: storages.redirect,
            runtime,
            executors: Vec::new(),
            separated: None,
            listener: None,
        }
    }
}

/// The outcome of opening a store, recorded in the trace.
fn trace_opened(catalog: &Catalog) {
    let m = &catalog.env().metrics();
    tracing::info!(
        published = catalog.tree().snapshots().published(),
        keyspace_count = catalog.keyspaces().by_id.len(),
        replayed_record_count = m.replayed_record_count.get(),
        "opened"
    );
}

/// The error for a keyspace that does not exist. `known` are the names of those that do.
#[cold]
fn no_such_keyspace<'a>(name: &str, known: impl Iterator<Item = &'a String>) -> Error {
    // A name may contain any character, even a line feed.
    let shown = |name: &str| name.escape_debug().to_string();
    let known: Vec<String> = known.map(|name| shown(name)).collect();
    let expected = match known.is_empty() {
        true => "nothing, because the store has no keyspaces".to_string(),
        false => format!("one of: {}", known.join(", ")),
    };
    Error::not_found(format!("there is no keyspace `{}`", shown(name)))
        .expected(expected)
        .advice("create it first (Store::open_keyspace does), or check the name")
}

/// What all handles of an open store share. The tasks end when the last handle is dropped.
struct Opened {
    parts: Parts,
    background: Background,
}

impl Drop for Opened {
    fn drop(&mut self) {
        // A simulated run ends with its first panic, and all its tasks are unwound then. A stop
        // would wait for a lead that no task will ever pass on.
        if self.parts.env.runtime().is_simulated() && std::thread::panicking() {
            return;
        }
        // While they end, the tasks make no storage calls that `close` would not make too.
        self.background.stop();
    }
}

/// An open store. The [crate's page](crate) has a first example.
///
/// A `Store` is a handle, and its clones are handles of the same open store. Any of its methods may
/// be called from any thread.
///
/// # What keeps a store open
///
/// The background tasks run and the lease is held (nobody else can open the store) until
/// [`Store::close`], or until the last handle is dropped. These are handles:
///
/// | value | keeps tasks and lease | keeps memory and files |
/// | --- | --- | --- |
/// | [`Store`] and its clones | yes | all, until the store is closed |
/// | [`Keyspace`] and its clones | yes | all, until the store is closed |
/// | [`Cursor`](crate::Cursor) | no | the tables and memtables that it reads |
/// | [`Range`](crate::Range) | until it is read from the back, or ends | like a `Cursor` |
/// | [`Snapshot`] | no | old versions, while the store is open |
/// | [`PinnedValue`](crate::PinnedValue) | no | the block that the value lies in |
/// | [`Batch`], [`Options`], [`Stats`] | no | nothing of the store |
///
/// So `drop(store)` alone does not close the store while a `Keyspace` lives: drop all handles, or
/// call [`Store::close`], which closes it at once. After that, calls on other handles return
/// `Closed`. A `Cursor` can be used after either. [`Store::close`] also syncs the log and returns
/// the first error. Dropping the last handle does neither, and loses no more than a kill of the
/// process does.
///
/// When a store is closed, it releases its memtables and the files of its log and its manifest,
/// even if handles or cursors are left. Only a memtable that a cursor reads stays, until that
/// cursor is dropped. The following stay until the last handle, `Range` and `Cursor` is dropped:
/// the block cache; the tables that were open (as descriptors or maps, so their space is not free
/// even if a later open deletes them); one descriptor for each folder of the store; and the
/// memtables of a keyspace that was dropped.
///
/// # `fork`
///
/// An open store must not be used on both sides of a `fork`. The child has a copy of the memory,
/// but neither the background tasks nor the threads that own the locks, and it writes to the same
/// files. Calls in the child may wait for ever or damage the store. Open stores after the fork, or
/// let the child only call `exec` or `_exit`.
#[derive(Clone)]
pub struct Store {
    opened: Arc<Opened>,
}

impl Store {
    /// Opens the store in the folder `path` for reading and writing. If there is none, it is
    /// created, unless [`Options::create_if_missing`] is false.
    ///
    /// Only one writer can have a store open, in any process. The open replays the log, so it takes
    /// time in proportion to what was written and not yet flushed.
    ///
    /// In a folder that holds other files and no store, the store is created beside these files;
    /// [`crate::is_store_file`] says which names are the store's. A folder with tables, log
    /// segments or manifests but without `CURRENT` is refused, because they may be all that is left
    /// of a store. (The commands of `silt` refuse every folder that holds other files and no
    /// store.)
    ///
    /// A process with a limit of file sizes (`ulimit -f`) should ignore SIGXFSZ, for example by
    /// [`crate::storage::ignore_file_size_signal`]. The limit then acts like a full disk. By
    /// default the signal ends the process.
    ///
    /// # Errors
    /// `InvalidArgument` for impossible options, or if there is a store and
    /// [`Options::error_if_exists`] is set; `Locked` if another process or handle has the store
    /// open; `NotFound` if there is no store and none may be created; `Corruption` if durable data
    /// is damaged or missing; `Unsupported` for another format version; `NoSpace` or I/O.
    pub fn open(path: impl AsRef<Path>, options: Options) -> Result<Store> {
        Store::open_in(path.as_ref(), options, None)
    }

    /// Like [`Store::open`], with a listener that receives the store's events (see
    /// [`EventListener`]).
    ///
    /// # Errors
    /// As [`Store::open`].
    pub fn open_with_listener(
        path: impl AsRef<Path>,
        options: Options,
        listener: Arc<dyn EventListener>,
    ) -> Result<Store> {
        Store::open_in(path.as_ref(), options, Some(listener))
    }

    fn open_in(
        path: &Path,
        options: Options,
        listener: Option<Arc<dyn EventListener>>,
    ) -> Result<Store> {
        options.validate()?;
        let storages = directories::for_open(path, &options)?;
        let components = Components {
            listener,
            ..Components::of(storages, Runtime::threads())
        };
        Store::open_with(components, options)
    }

    /// Like [`Store::open`], on components of the caller: other storages, a simulated runtime,
    /// executors. The options `log_dir` and `table_dir` are not used, because the storages are
    /// given, and of `redirect_dir` only `"none"`, which takes the second location out.
    ///
    /// # Errors
    /// As [`Store::open`].
    pub fn open_with(components: Components, options: Options) -> Result<Store> {
        options.validate()?;
        options.schedule.check_sides(components.executors.len())?;
        let storages = Storages {
            log: components.log,
            manifest: components.manifest,
            tables: components.tables,
            redirect: components.redirect,
        };
        let _span = tracing::info_span!("open", store = storages.manifest.describe()).entered();
        let events = Events::start(&components.runtime, components.listener)?;
        let opened = crate::services::recovery::open(
            &storages,
            components.runtime,
            Executors {
                others: components.executors,
                separated: components.separated,
            },
            events.clone(),
            options,
            Purpose::Writing,
        )
        .and_then(|parts| Ok((Background::start(&parts)?, parts)));
        let (background, parts) = opened.inspect_err(|_| events.end())?;
        Ok(Store::of(parts, background))
    }

    fn of(parts: Parts, background: Background) -> Store {
        trace_opened(&parts.catalog);
        let opened = Opened { parts, background };
        Store {
            opened: Arc::new(opened),
        }
    }

    /// Opens the store in the folder `path` for reading. Nothing in the folder is changed, except
    /// that the lease's file is created if it is missing and the folder can be written. This works
    /// on a read-only mount too.
    ///
    /// Any number of readers in any processes can have a store open, but not while a writer has it
    /// open. A reader sees what an open for writing would recover. It replays the log into memory,
    /// up to a bound: the largest of eight memtables, [`Options::log_bytes_max`] and
    /// [`Options::replay_bytes_max`].
    ///
    /// Calls that would change the store return `ReadOnly`.
    ///
    /// # Errors
    /// As [`Store::open`]; `Locked` while a writer has the store open; `Io` if the log does not fit
    /// within the bound. A store is never created: `NotFound` if there is none.
    pub fn open_read_only(path: impl AsRef<Path>, options: Options) -> Result<Store> {
        let storages = directories::for_reading(path.as_ref(), &options)?;
        Store::open_read_only_with(Components::of(storages, Runtime::threads()), options)
    }

    /// Like [`Store::open_read_only`], on components of the caller. The only calls that reach files
    /// of the storages are `lease_shared`, `list`, `open` and reads. The executors and the listener
    /// are not used.
    ///
    /// # Errors
    /// As [`Store::open_read_only`].
    pub fn open_read_only_with(components: Components, options: Options) -> Result<Store> {
        options.validate()?;
        let budget = ReplayBudget::of(&options);
        let below = Storages {
            log: components.log,
            manifest: components.manifest,
            tables: components.tables,
            redirect: components.redirect,
        };
        let storages =
            crate::services::recovery::overlay::over(&below, &components.runtime, &budget);
        let _span =
            tracing::info_span!("open", store = below.manifest.describe(), read_only = true)
                .entered();
        let events = Events::start(&components.runtime, None)?;
        let parts = crate::services::recovery::open(
            &storages,
            components.runtime,
            Executors::default(),
            events,
            options,
            Purpose::Reading(budget, below),
        )?;
        let background = Background::without_tasks(&parts);
        Ok(Store::of(parts, background))
    }

    /// Deletes the store in the folder `path`: all files of the store, in the folders of its log
    /// and its tables too, and then those folders that are empty. `OPTIONS.toml` counts as a file
    /// of the store. Other files stay, and the report names them.
    ///
    /// A crash partway leaves either the whole store, or remains that no open takes for a store.
    /// Calling this again deletes the remains.
    ///
    /// # Errors
    /// `NotFound` if there is no store, sound or damaged; nothing has changed then. `Locked` while
    /// a writer or a reader has the store open. `Corruption` if the file that says where its parts
    /// lie is damaged; I/O.
    pub fn destroy(path: impl AsRef<Path>) -> Result<DestroyReport> {
        crate::tools::destroy::destroy(path.as_ref())
    }

    /// Like [`Store::destroy`], for a store on storages of the caller. The storages themselves
    /// stay, with the files in them that are not the store's.
    ///
    /// # Errors
    /// As [`Store::destroy`].
    pub fn destroy_on(storages: &Storages) -> Result<DestroyReport> {
        crate::tools::destroy::destroy_on(storages)
    }

    /// Whether the store was opened for reading only.
    pub fn is_read_only(&self) -> bool {
        self.parts().env.health().is_read_only()
    }

    #[inline]
    pub(crate) fn parts(&self) -> &Parts {
        &self.opened.parts
    }

    fn handle(&self, keyspace: Arc<KeyspaceCore>) -> Keyspace {
        Keyspace::new(self.clone(), keyspace)
    }

    /// The keyspace `default`, which every new store has. Once it has been dropped
    /// ([`Store::drop_keyspace`]), no later open creates it again; [`Store::open_keyspace`] does.
    ///
    /// # Errors
    /// `NotFound` if it was dropped.
    pub fn default_keyspace(&self) -> Result<Keyspace> {
        self.keyspace(DEFAULT_KEYSPACE)
    }

    /// The keyspace called `name`. It is never created; [`Store::open_keyspace`] does that.
    ///
    /// # Errors
    /// `NotFound`, which lists the keyspaces that exist.
    pub fn keyspace(&self, name: &str) -> Result<Keyspace> {
        self.parts().env.check_open()?;
        let map = self.parts().catalog.keyspaces();
        match map.by_name.get(name).and_then(|id| map.by_id.get(id)) {
            Some(keyspace) => Ok(self.handle(keyspace.clone())),
            None => Err(no_such_keyspace(name, map.by_name.keys())),
        }
    }

    /// Creates the keyspace `name`. When the call returns, this is durable in every sync mode.
    ///
    /// # Errors
    /// `InvalidArgument` if the keyspace exists already, or if the name is empty or longer than 255
    /// bytes; as [`Store::write`] otherwise.
    pub fn create_keyspace(&self, name: &str) -> Result<Keyspace> {
        self.create_keyspace_with(name, &KeyspaceOptions::default())
    }

    /// Creates the keyspace `name` with options of its own, which are stored in the manifest.
    /// Options that are not set follow the store's.
    ///
    /// # Errors
    /// As [`Store::create_keyspace`]; `InvalidArgument` naming the option whose value is not valid.
    pub fn create_keyspace_with(&self, name: &str, options: &KeyspaceOptions) -> Result<Keyspace> {
        self.parts().env.check_open()?;
        let keyspace = crate::services::ddl::create(&self.parts().commit, name, options)?;
        tracing::info!(name, id = keyspace.id, "keyspace created");
        Ok(self.handle(keyspace))
    }

    /// The keyspace called `name`. It is created if it does not exist.
    ///
    /// # Errors
    /// As [`Store::create_keyspace`].
    pub fn open_keyspace(&self, name: &str) -> Result<Keyspace> {
        let mut tries = 0;
        loop {
            match self.keyspace(name) {
                Ok(keyspace) => return Ok(keyspace),
                Err(e) if e.kind() == crate::types::error::ErrorKind::NotFound => {}
                Err(e) => return Err(e),
            }
            match self.create_keyspace(name) {
                // Another thread has created the keyspace, and may have dropped it again since. An
                // error for any other reason is final.
                Err(e)
                    if e.kind() == crate::types::error::ErrorKind::InvalidArgument
                        && crate::services::ddl::check_name(name).is_ok()
                        && tries < OPEN_KEYSPACE_TRIES =>
                {
                    tries += 1;
                }
                result => return result,
            }
        }
    }

    /// The names of all keyspaces, sorted.
    pub fn keyspaces(&self) -> Vec<String> {
        self.parts()
            .catalog
            .keyspaces()
            .by_name
            .keys()
            .cloned()
            .collect()
    }

    /// Drops a keyspace and everything in it. When the call returns, this is durable in every sync
    /// mode. Cursors and iterators that read the keyspace stay usable; every other call on its
    /// handles returns `KeyspaceDropped`. Its files are deleted when nothing reads them any more.
    ///
    /// The keyspace `default` can be dropped too. A store may have no keyspaces at all. A full disk
    /// does not prevent a drop, unless the keyspace was created while the disk was full.
    ///
    /// # Errors
    /// `NotFound`; `KeyspaceDropped` if another thread drops it at the same time; as
    /// [`Store::write`] otherwise.
    pub fn drop_keyspace(&self, name: &str) -> Result<()> {
        self.parts().env.check_open()?;
        let keyspace = self.keyspace(name)?;
        crate::services::ddl::drop(&self.parts().jobs, keyspace.inner())?;
        tracing::info!(name, id = keyspace.id(), "keyspace dropped");
        Ok(())
    }

    /// Writes a batch over any keyspaces atomically: readers, and a store that is opened after a
    /// crash, see all of it or nothing. The same batch can be written again.
    ///
    /// The call returns when the batch is in the log and visible to readers. Whether it is then
    /// durable against a loss of power depends on `options` and on the store's
    /// [`SyncMode`](crate::SyncMode). The call waits while a keyspace in the batch is stalled
    /// ([`Options::stall_policy`]).
    ///
    /// # Errors
    /// `InvalidArgument` for a batch of another store, or of an earlier open of this one (see
    /// [`Batch`]); `KeyspaceDropped`; `NoSpace` (nothing was written; writing resumes by itself
    /// when there is room); `Unreachable` (nothing was written; repeat it), also after a stall of
    /// 30 s during which the storage did not answer; `Unsynced` (it was written and is visible, but
    /// is not known to be durable: do not repeat it); `Closed`, also after
    /// [`Store::cancel_stalls`]; `Poisoned`, or I/O. After `Poisoned` or I/O the batch may or may
    /// not be there when the store is opened again.
    pub fn write(&self, batch: &Batch, options: WriteOptions) -> Result<()> {
        self.parts().env.check_open()?;
        let body = batch.body_for(&self.parts().env)?;
        write(&self.parts().commit, Cow::Borrowed(body), options)
    }

    /// Ends the waits of stalled writes, for a program that is asked to end. From now on until the
    /// store is closed, a write or an ingest that is stalled, or would be, fails with `Closed`, and
    /// nothing of it is written. Writes that are not stalled go on. A close also ends these waits.
    pub fn cancel_stalls(&self) {
        self.parts().commit.stalls().cancel();
    }

    /// The options in force now, including those that were set for single keyspaces. Written by
    /// [`Options::to_toml`] and passed to a later open, they give the same configuration. For a
    /// store that is open for reading, these are the options that were passed to the open; those
    /// about the creation of a store have no effect there.
    pub fn options(&self) -> Options {
        crate::services::settings::present(&self.parts().catalog)
    }

    /// Changes one option by its name until the store is closed; it is not stored. The option is
    /// one of the store (such as `log_bytes_max`), or the default of its keyspaces (such as
    /// `memtable_bytes`). A size may have a unit (`"64 MiB"`). The new value applies to the next
    /// memtable, job and decision.
    ///
    /// # Errors
    /// `InvalidArgument` for an unknown name (the error suggests the nearest one), for an option
    /// that cannot change while the store is open (the error says why), or for an impossible value;
    /// `ReadOnly`. Nothing has changed then.
    pub fn set_option(&self, name: &str, value: impl Into<Value>) -> Result<()> {
        self.parts().env.check_open()?;
        crate::services::settings::set_store(&self.parts().jobs, name, &value.into())
    }

    /// A snapshot of all keyspaces: reads at it see what is published now, until it is dropped.
    /// Taking it needs no I/O. Compactions keep the entries that it sees, so a snapshot that is
    /// held for long takes space.
    pub fn snapshot(&self) -> Snapshot {
        self.parts().tree.snapshots().take()
    }

    /// Syncs the log. Every write that was acknowledged before the call then survives a loss of
    /// power.
    ///
    /// # Errors
    /// `Poisoned` if the sync fails, or an earlier one has: a loss of power may then lose writes
    /// that were not synced. `Unsynced` if the storage did not answer in time: the call may be
    /// repeated, and until it succeeds it is not known what is durable.
    pub fn sync_log(&self) -> Result<()> {
        self.parts().env.check_open()?;
        self.parts().wal.sync_log()
    }

    /// Flushes the memtables of all keyspaces to tables and waits until that is done. Everything
    /// that was written or read before the call then survives a loss of power in every sync mode.
    ///
    /// # Errors
    /// The error that prevented the flush. `Unreachable` if the storage cannot be reached for 30 s:
    /// the flush goes on when it can, and may then succeed.
    pub fn flush(&self) -> Result<()> {
        self.parts().env.check_open()?;
        let all: Vec<_> = self
            .parts()
            .catalog
            .keyspaces()
            .by_id
            .values()
            .cloned()
            .collect();
        crate::jobs::flush::flush(&self.parts().jobs, &all)
    }

    /// Waits until no flush and no compaction runs or is due. On a store that is open for reading,
    /// it returns at once.
    ///
    /// # Errors
    /// `Closed`; `NoSpace` or `Poisoned` if the store takes no writes; the last job's error if jobs
    /// fail again and again.
    pub fn wait_until_idle(&self) -> Result<()> {
        self.parts().env.check_open()?;
        if self.is_read_only() {
            return Ok(());
        }
        self.parts().jobs.wait_until_idle()
    }

    /// Writes all keyspaces as they are at one moment into `folder`, as an independent store with
    /// an id of its own. Later writes to this store do not change it.
    ///
    /// Tables are linked if both folders are on one file system, and copied otherwise; what is in
    /// memtables is written as tables. Writers wait for neither. `folder` must not exist, or be
    /// empty. The checkpoint is built in `folder.partial` beside it, which is renamed when
    /// everything is durable.
    ///
    /// # Errors
    /// `InvalidArgument` if `folder` is not empty or lies within this store; `NoSpace`, `Poisoned`,
    /// `ReadOnly`, `Closed` or I/O. Then there is no checkpoint, and this store has not changed.
    pub fn checkpoint(&self, folder: impl AsRef<Path>) -> Result<CheckpointReport> {
        self.parts().env.check_open()?;
        crate::services::checkpoint::write_folder(&self.parts().jobs, folder.as_ref())
    }

    /// Like [`Store::checkpoint`], into an empty storage of the caller. Until the checkpoint is
    /// complete, opening it is refused. After a failure or a crash, the next checkpoint into the
    /// same storage replaces what is there.
    ///
    /// # Errors
    /// As [`Store::checkpoint`].
    pub fn checkpoint_to(&self, target: Arc<dyn Storage>) -> Result<CheckpointReport> {
        self.parts().env.check_open()?;
        crate::services::checkpoint::write(&self.parts().jobs, &target)
    }

    /// Statistics: counters, latencies, delays, running jobs, and the levels of each keyspace. The
    /// call is cheap enough to be made every second. Most of its time goes to [`Stats::space`], for
    /// which it lists the store's folders: a few microseconds a file. A folder that cannot be
    /// listed counts as empty there.
    pub fn stats(&self) -> Stats {
        use crate::stats::space::{self, Listed};
        let counted = space::collect(&self.parts().wal, Listed::All);
        crate::stats::collect(&self.parts().jobs, counted.space)
    }

    /// Closes the store. Running jobs are cancelled, the log is synced, the manifest records where
    /// the log ends, space that was reserved in advance is given back, and the lease is released.
    /// Calls on other handles then return `Closed`. Memtables are not flushed: the log has their
    /// entries, and the next open replays them.
    ///
    /// After a successful close everything is durable in every sync mode ([`Options::sync`]), and a
    /// later open tells damage to the log from writes that were never synced. There is one
    /// exception: if the disk is so full that the manifest has no room for the end of the log,
    /// damage at that end looks like writes that were not synced, as after a kill.
    ///
    /// Dropping the last handle without a close makes no storage calls and leaves the files as a
    /// kill of the process does: nothing is lost, but a loss of power may take writes that were not
    /// synced.
    ///
    /// Cursors, iterators and pinned values may outlive the store and go on reading its tables. If
    /// a later open has deleted a table that they had not opened yet, they return `Closed`.
    ///
    /// # Errors
    /// The error of a failed sync of the log or the manifest, or the error that poisoned the store
    /// before. `Unreachable` if the storage did not answer: the next open recovers the store as
    /// after a kill. The store is closed in any case. `Closed` if it was closed before.
    pub fn close(self) -> Result<()> {
        self.opened.background.close()
    }

    #[doc(hidden)]
    pub fn test_hooks(&self) -> crate::api::testing::TestHooks {
        crate::api::testing::TestHooks::new(self.parts().clone())
    }
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "Store({})",
            self.parts().env.storages().manifest.describe()
        )
    }
}
