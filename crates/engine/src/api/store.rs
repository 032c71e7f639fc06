//! The store's public handle: [`Store`], and what it runs on: [`Components`].
//!
//! What it is: thin, cloneable handles over the core. A call checks its arguments and names the parts that do the work: `write`, `read`,
//! `iter`, `ddl`, `flush`, `compaction`.
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
use crate::services::parts::Parts;
use crate::services::recovery::{Purpose, ReplayBudget};
use crate::stats::Stats;
use crate::tools::destroy::DestroyReport;
use crate::tree::snapshot::Snapshot;
use crate::tree::view::KeyspaceCore;
use crate::types::error::{Error, Result};
use crate::types::event::{CheckpointReport, EventListener, Events};
use crate::types::limits::DEFAULT_KEYSPACE;
use crate::types::options::{KeyspaceOptions, Options, Value};

/// How often in a row others may create and drop a keyspace just when somebody opens it.
const OPEN_KEYSPACE_TRIES: u32 = 100;

/// What a store runs on: storages, runtime, executors. Components, not settings.
///
/// Log, manifest and tables may lie on storages of their own, told from each other by [`Storage::location`]. A store remembers whether they do: it
/// is created so, and opened so ever after (`docs/format/directories.md`).
pub struct Components {
    /// Where the log lies.
    pub log: Arc<dyn Storage>,
    /// Where the manifest and the lease lie.
    pub manifest: Arc<dyn Storage>,
    /// Where tables lie.
    pub tables: Arc<dyn Storage>,
    /// Threads, locks, clock, randomness.
    pub runtime: Runtime,
    /// Executors that jobs are offered to before the host's own cores.
    pub executors: Vec<Arc<dyn Executor>>,
    /// Who hears what happens in the store. One that is opened for reading tells nothing.
    pub listener: Option<Arc<dyn EventListener>>,
}

impl Components {
    /// All on one storage, on the host's cores.
    pub fn on(storage: Arc<dyn Storage>, runtime: Runtime) -> Components {
        Components::of(Storages::on(storage), runtime)
    }

    /// On the storages of a store, on the host's cores.
    pub fn of(storages: Storages, runtime: Runtime) -> Components {
        Components {
            log: storages.log,
            manifest: storages.manifest,
            tables: storages.tables,
            runtime,
            executors: Vec::new(),
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

/// There is no keyspace of this name, only those with the names `known`.
#[cold]
fn no_such_keyspace<'a>(name: &str, known: impl Iterator<Item = &'a String>) -> Error {
    // A name may have any characters, a line feed too.
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

/// What all handles of an open store share. Its tasks end when the last handle is gone.
struct Opened {
    parts: Parts,
    background: Background,
}

impl Drop for Opened {
    fn drop(&mut self) {
        // A simulated run ends with its first panic, and unwinds all tasks then: nobody would give
        // on the lead that a stop waits for.
        if self.parts.env.runtime().is_simulated() && std::thread::panicking() {
            return;
        }
        // The tasks make no storage call on their way out that `close` would not make.
        self.background.stop();
    }
}

/// An open store. See the crate's page for a first example.
///
/// A `Store` is a handle; clones of it are handles of the same open store.
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
/// | [`Range`](crate::Range) (of `range`, `prefix`, `iter` or a `for` loop) | until it is read from the back, or has ended | tables and memtables that it reads |
/// | [`Cursor`](crate::Cursor) | no | tables and memtables that it reads |
/// | [`Snapshot`] | no | old versions, while the store is open |
/// | [`PinnedValue`](crate::PinnedValue) | no | the block that the value lies in |
/// | [`Batch`], [`Options`], [`Stats`] | no | nothing of the store |
///
/// So `drop(store)` alone does not close the store while a `Keyspace` lives: drop all handles, or
/// call [`Store::close`], which closes it at once; other handles then get `Closed`. A `Cursor` can
/// go on after either. [`Store::close`] also syncs the log and returns what failed; dropping the
/// last handle does neither, and loses nothing that a kill of the process would not lose.
///
/// A closed store has let go of the files of its log and its manifest and of its memtables, even if
/// handles or cursors are left; a memtable that a cursor reads goes with the cursor. Until the last
/// handle, `Range` and `Cursor` is dropped, these stay: the block cache, the tables that were
/// open (as descriptors or maps, so the space of those that a later open deletes is not free yet),
/// one descriptor for each folder of the store, and the memtables of a keyspace that was dropped.
///
/// # `fork`
///
/// An open store must not be used on both sides of a `fork`: the child has a copy of the memory,
/// but neither the background tasks nor the locks' owners, and writes to the same files. Calls in
/// the child may wait for ever or damage the store. Open stores after the fork, or let the child
/// call `exec` (or `_exit`) and nothing of the store.
#[derive(Clone)]
pub struct Store {
    opened: Arc<Opened>,
}

impl Store {
    /// Opens the store in the folder `path`, creating it if the options say so.
    ///
    /// In a folder that holds other files and no store, the store is created beside them;
    /// [`crate::is_store_file`] tells which names are the store's. Only a folder with tables, log
    /// segments or manifests and without `CURRENT` is refused: they may be all that is left of a
    /// store. (The commands of `silt` refuse a folder with other files and no store.)
    ///
    /// A process with a limit of file sizes (`ulimit -f`) should ignore SIGXFSZ, for example by
    /// [`crate::storage::ignore_file_size_signal`]: the limit is then like a full disk, while by
    /// default the signal ends the process.
    ///
    /// # Errors
    /// `InvalidArgument` for impossible options, `Locked` if another writer has it, `NotFound` if there is none and it may not be created,
    /// `Corruption` if what was promised to be there is damaged, `Unsupported` for a newer format, or I/O.
    pub fn open(path: impl AsRef<Path>, options: Options) -> Result<Store> {
        Store::open_in(path.as_ref(), options, None)
    }

    /// As [`Store::open`], with somebody who hears what happens in the store: see [`EventListener`].
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

    /// Opens a store on components of the caller's.
    ///
    /// # Errors
    /// As [`Store::open`].
    pub fn open_with(components: Components, options: Options) -> Result<Store> {
        options.validate()?;
        let storages = Storages {
            log: components.log,
            manifest: components.manifest,
            tables: components.tables,
        };
        let _span = tracing::info_span!("open", store = storages.manifest.describe()).entered();
        let events = Events::start(&components.runtime, components.listener)?;
        let opened = crate::services::recovery::open(
            &storages,
            components.runtime,
            components.executors,
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

    /// Opens the store in the folder `path` for reading: nothing in it is changed (but that the lease's file is made where it is missing). Any
    /// number of readers may have a store open, in any processes, but no writer beside them. What the log holds is brought into memory (at
    /// most eight memtables, or `log_bytes_max`, whichever is more); what a reader sees is what a writer's open would have kept. Works on a
    /// read-only mount.
    ///
    /// Calls that would change something fail with `ReadOnly`.
    ///
    /// # Errors
    /// As [`Store::open`]; `Locked` while a writer has the store; `Io` if the log holds more than fits.
    pub fn open_read_only(path: impl AsRef<Path>, options: Options) -> Result<Store> {
        let storages = directories::for_reading(path.as_ref(), &options)?;
        Store::open_read_only_with(Components::of(storages, Runtime::threads()), options)
    }

    /// Opens a store on components of the caller's for reading: of the storages nothing but `lease_shared`, `list`, `open` and reads is called.
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
            Vec::new(),
            events,
            options,
            Purpose::Reading(budget, below),
        )?;
        let background = Background::without_tasks(&parts);
        Ok(Store::of(parts, background))
    }

    /// Deletes the store in the folder `path`: all files of its own, in the folders of its log and tables too, and folders that are empty then. What
    /// is not the store's stays, and is named in the report; `OPTIONS.toml` counts as the store's. A crash on the way leaves the whole store, or one
    /// that no open takes for a store; destroying it again deletes the rest.
    ///
    /// # Errors
    /// `NotFound` if there is no store, sound or damaged: then nothing is touched. `Locked` while a writer or readers have it. `Corruption` if the file
    /// that says where its parts lie cannot be believed; I/O.
    pub fn destroy(path: impl AsRef<Path>) -> Result<DestroyReport> {
        crate::tools::destroy::destroy(path.as_ref())
    }

    /// As [`Store::destroy`], of a store on storages of the caller's, which stay, empty but for what is not the store's.
    ///
    /// # Errors
    /// As [`Store::destroy`].
    pub fn destroy_on(storages: &Storages) -> Result<DestroyReport> {
        crate::tools::destroy::destroy_on(storages)
    }

    /// Whether the store was opened for reading.
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

    /// The keyspace `default`, which every new store has. Once it was dropped
    /// ([`Store::drop_keyspace`]), no later open creates it again; [`Store::open_keyspace`] does.
    ///
    /// # Errors
    /// `NotFound` if it was dropped.
    pub fn default_keyspace(&self) -> Result<Keyspace> {
        self.keyspace(DEFAULT_KEYSPACE)
    }

    /// The keyspace called `name`.
    ///
    /// # Errors
    /// `NotFound`, listing what there is.
    pub fn keyspace(&self, name: &str) -> Result<Keyspace> {
        self.parts().env.check_open()?;
        let map = self.parts().catalog.keyspaces();
        match map.by_name.get(name).and_then(|id| map.by_id.get(id)) {
            Some(keyspace) => Ok(self.handle(keyspace.clone())),
            None => Err(no_such_keyspace(name, map.by_name.keys())),
        }
    }

    /// Creates the keyspace `name`.
    ///
    /// # Errors
    /// `InvalidArgument` if it is there already or the name is empty or longer than 255 bytes; as a write otherwise.
    pub fn create_keyspace(&self, name: &str) -> Result<Keyspace> {
        self.create_keyspace_with(name, &KeyspaceOptions::default())
    }

    /// Creates the keyspace `name` with settings of its own. They are kept by the store; what is not set follows the store's options.
    ///
    /// # Errors
    /// As [`Store::create_keyspace`]; `InvalidArgument` naming the option whose value is not valid.
    pub fn create_keyspace_with(&self, name: &str, options: &KeyspaceOptions) -> Result<Keyspace> {
        self.parts().env.check_open()?;
        let keyspace = crate::services::ddl::create(&self.parts().commit, name, options)?;
        tracing::info!(name, id = keyspace.id, "keyspace created");
        Ok(self.handle(keyspace))
    }

    /// The keyspace `name`, created if it is not there.
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
                // Somebody else was faster, and may have dropped it again since. What is refused for another reason is refused for good.
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

    /// Names of all keyspaces, sorted.
    pub fn keyspaces(&self) -> Vec<String> {
        self.parts()
            .catalog
            .keyspaces()
            .by_name
            .keys()
            .cloned()
            .collect()
    }

    /// Drops a keyspace and everything in it. Iterators and snapshots that read it go on; new calls get `KeyspaceDropped`. Its files are
    /// deleted when nothing reads them any more.
    ///
    /// The keyspace `default` is no exception. A store may have no keyspaces at all.
    ///
    /// # Errors
    /// `NotFound`; as a write otherwise.
    pub fn drop_keyspace(&self, name: &str) -> Result<()> {
        self.parts().env.check_open()?;
        let keyspace = self.keyspace(name)?;
        crate::services::ddl::drop(&self.parts().jobs, keyspace.inner())?;
        tracing::info!(name, id = keyspace.id(), "keyspace dropped");
        Ok(())
    }

    /// Writes a batch: all of it or nothing, over any keyspaces. It can be written again.
    ///
    /// # Errors
    /// `InvalidArgument` for a batch of another store, or of an earlier open of this one (see
    /// [`Batch`]); `KeyspaceDropped`; `NoSpace` (nothing was written; writing resumes by itself
    /// when there is room); `Poisoned`, or I/O. After `Poisoned` or I/O the batch may or may not be
    /// there when the store is opened again.
    pub fn write(&self, batch: &Batch, options: WriteOptions) -> Result<()> {
        self.parts().env.check_open()?;
        let body = batch.body_for(&self.parts().env)?;
        write(&self.parts().commit, Cow::Borrowed(body), options)
    }

    /// The options as they are now, with what each keyspace has of its own: what
    /// [`Options::to_toml`] writes to open it like this again. A store that was opened for reading
    /// has the options that were passed; it creates nothing, whatever they say.
    pub fn options(&self) -> Options {
        crate::services::settings::present(&self.parts().catalog)
    }

    /// Changes an option of the store until it is closed (`log_bytes_max`, say), or the default of its keyspaces (`memtable_bytes`), by
    /// name. Sizes may have a unit (`"64 MiB"`). It holds for the next memtable, job and decision.
    ///
    /// # Errors
    /// `InvalidArgument` for a name that is not there (with the nearest one), an option that cannot change while the store is open (with
    /// the reason), or an impossible value; `ReadOnly`. Nothing has changed then.
    pub fn set_option(&self, name: &str, value: impl Into<Value>) -> Result<()> {
        self.parts().env.check_open()?;
        crate::services::settings::set_store(&self.parts().jobs, name, &value.into())
    }

    /// A snapshot of all keyspaces.
    pub fn snapshot(&self) -> Snapshot {
        self.parts().tree.snapshots().take()
    }

    /// Makes everything that was acknowledged before durable against power loss.
    ///
    /// # Errors
    /// `Poisoned`: what was not synced before may be lost with the power.
    pub fn sync_log(&self) -> Result<()> {
        self.parts().env.check_open()?;
        self.parts().wal.sync_log()
    }

    /// Flushes the memtables of all keyspaces and waits for it. What was written, or read, before the call survives a loss of power then,
    /// whatever the sync mode.
    ///
    /// # Errors
    /// What kept the flush from happening.
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

    /// Waits until no flush and no compaction is running or due.
    ///
    /// # Errors
    /// The store's state, if it became unable to go on.
    pub fn wait_until_idle(&self) -> Result<()> {
        self.parts().env.check_open()?;
        if self.is_read_only() {
            return Ok(());
        }
        self.parts().jobs.wait_until_idle()
    }

    /// Writes the store as it is now, all keyspaces at one moment, to the folder `folder` as a store of its own, which `check` finds sound and
    /// which stays as it is while this one goes on. Tables are linked where both folders are on one file system (copied else), what is in memory
    /// is written as tables; writers wait for neither. The folder must not exist or be empty; it is built as `folder.partial` beside it
    /// and renamed when it is whole and durable.
    ///
    /// # Errors
    /// `InvalidArgument` if there is something at `folder`; `NoSpace`, `Poisoned`, `ReadOnly`, or I/O. Then there is no folder, and this store is as it was.
    pub fn checkpoint(&self, folder: impl AsRef<Path>) -> Result<CheckpointReport> {
        self.parts().env.check_open()?;
        crate::services::checkpoint::write_folder(&self.parts().jobs, folder.as_ref())
    }

    /// As [`Store::checkpoint`], into an empty storage of the caller's. Until it is whole, opening it is refused; after a failure or a crash
    /// the next checkpoint into it replaces what is there.
    ///
    /// # Errors
    /// As [`Store::checkpoint`].
    pub fn checkpoint_to(&self, target: Arc<dyn Storage>) -> Result<CheckpointReport> {
        self.parts().env.check_open()?;
        crate::services::checkpoint::write(&self.parts().jobs, &target)
    }

    /// What the store counts, and its shape. Cheap enough to ask every second; only counting the
    /// files for [`Stats::space`] lists the store's folders, which takes a few microseconds a file.
    pub fn stats(&self) -> Stats {
        crate::stats::collect(
            &self.parts().jobs,
            crate::stats::space::collect(&self.parts().wal),
        )
    }

    /// Closes the store: waits for running jobs, syncs the log, writes into the manifest where the
    /// log ends, gives back the space that was written ahead, and gives the lease back. Other
    /// handles get `Closed`. What memtables hold is in the log.
    ///
    /// After a close that succeeded everything is durable, whatever [`Options::sync`] says, and
    /// damage to the log is known to be damage. Only if the disk is so full that the manifest has
    /// no room for the log's end, damage at the end of the log looks like writes that were not
    /// synced, as after a kill.
    ///
    /// Dropping the last handle without a close makes no storage calls: it leaves what a kill of
    /// the process leaves. Nothing is lost by that, but power loss may take what was not synced.
    ///
    /// Cursors, iterators and pinned values that outlive the store read on in the tables that it
    /// left. Where a later open has deleted one that they had not opened yet, they fail with
    /// `Closed`.
    ///
    /// # Errors
    /// A failed sync of the log or the manifest, or the cause if the store was poisoned before. The
    /// store is closed all the same.
    pub fn close(self) -> Result<()> {
        self.opened.background.close()
    }

    #[doc(hidden)]
    pub fn core_for_tests(&self) -> crate::api::testing::TestHooks {
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
