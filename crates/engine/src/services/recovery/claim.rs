//! The first step of an open: takes the lease, reads the manifest, and makes all checks that need
//! no replay of the log. If the store has several folders, it notes the open in them (`OPENED`).
//!
//! Invariants:
//! - The second location of tables is added after all checks that need no replay, and before the
//!   open is noted. It is only taken out when the new manifest is durable ([`TakingOut`]).
//! - A folder without a store, in which none may be created, is not changed. Nothing that an
//!   earlier open left is changed, except for `OPENED`.
//! - The open is noted after these checks and before the replay, which makes tables and deletes
//!   segments. So an open that the replay refuses, because the log is damaged, has been noted.
//!
//! Threading: the opening thread.

use std::sync::Arc;

use siltstone_storage::{Epoch, Lease, Runtime, Storage};

use super::orphans::{next_open_number, refuse_missing_tables, refuse_other_formats};
use super::replay::ReplayBudget;
use crate::env::descriptors::Descriptors;
use crate::env::guard::{self, Guards};
use crate::env::health::Health;
use crate::env::locations::Locations;
use crate::env::outage::Outage;
use crate::env::repeating::repeating;
use crate::formats::directories::{
    self, Claim, Missing, Opened, Redirect, Storages, Wish, log_store_id, random_id,
    refuse_headless_data, refuse_taking_out, why_unusable,
};
use crate::formats::log::ReplayOptions;
use crate::formats::log::replay::refuse_missing_start;
use crate::formats::manifest::{self, Recovered, StoreId};
use crate::formats::version::{KeyspaceState, KeyspaceVersion, StoreState};
use crate::jobs::runner::{Executors, JobRunner};
use crate::tree::settings::Arenas;
use crate::types::error::{Error, ErrorKind, Result};
use crate::types::event::{Event, Events};
use crate::types::limits::DEFAULT_KEYSPACE;
use crate::types::metrics::Metrics;
use crate::types::options::stored::StoredOptions;
use crate::types::options::{DirectIo, Options, RedirectDir};

/// What a store is opened for.
pub(crate) enum Purpose {
    Writing,
    /// On storages that change nothing (`overlay`) and keep to this budget; the second field has
    /// the storages below them. There are no tasks, and every change is refused.
    Reading(ReplayBudget, Storages),
}

/// A store that is being opened: what its parts will be made of, and what was read.
pub(super) struct Opening {
    /// The storages as the open store uses them for what it changes, and those below, whose calls
    /// do not wait. During the open, no call waits.
    pub(super) storages: Storages,
    pub(super) storages_at_once: Storages,
    pub(super) outage: Arc<Outage>,
    pub(super) locations: Arc<Locations>,
    pub(super) guards: Guards,
    pub(super) descriptors: Arc<Descriptors>,
    pub(super) runtime: Runtime,
    pub(super) health: Arc<Health>,
    pub(super) events: Arc<Events>,
    pub(super) options: Options,
    pub(super) lease: Box<dyn Lease>,
    pub(super) epoch: Epoch,
    pub(super) store_id: StoreId,
    /// Whether there was no store before.
    pub(super) is_new: bool,
    /// The state in the inherited manifest, or that of a new store.
    pub(super) old: StoreState,
    pub(super) open_number: u64,
    pub(super) runner: JobRunner,
    pub(super) metrics: Metrics,
    pub(super) arenas: Arenas,
    /// For an open for reading, the storages below the overlay.
    pub(super) below: Option<Storages>,
    pub(super) budget: ReplayBudget,
    /// The second location of tables, if it is taken out. The other storages are without it.
    pub(super) taking_out: Option<TakingOut>,
}

/// The second location of tables is taken out. Its files stay until the new manifest is durable: a
/// loss of power can bring back an older manifest than the one that was read, and that one may name
/// tables there.
pub(super) struct TakingOut {
    claim: Claim,
    /// The storages with the location.
    storages: Storages,
}

impl TakingOut {
    /// Takes the location out. The caller has made a manifest durable that names no table there.
    pub(super) fn finish(&self, epoch: Epoch) -> Result<()> {
        self.claim.take_out(&self.storages.folders(), epoch)
    }
}

impl Opening {
    /// Whether nothing may be changed.
    pub(super) fn is_reading(&self) -> bool {
        self.below.is_some()
    }
}

/// Takes the lease, reads the manifest, and checks that the store may be opened with these options.
pub(super) fn claim(
    storages: &Storages,
    runtime: Runtime,
    executors: Executors,
    events: Arc<Events>,
    options: Options,
    purpose: Purpose,
) -> Result<Opening> {
    let health = Arc::new(Health::new(&runtime, events.clone()));
    let locations = Locations::new(&runtime, events.clone());
    // Otherwise the lease of the same folder would seem to be held by another process.
    storages.refuse_same()?;
    let storages = &with_usable_redirect(storages)?;
    let descriptors = Descriptors::new(&runtime, storages.tables.open_objects_max());
    let storages = storages.map(|storage| descriptors.wrap(storage.clone()));
    let (at_once, guards) = guard::guard(&storages, &runtime, &health, &locations);
    let outage = Arc::new(Outage::new(&runtime));
    let storages = repeating(&at_once, &outage, locations.outage());
    let (mut below, budget) = match purpose {
        Purpose::Writing => (None, ReplayBudget::of(&options)),
        Purpose::Reading(budget, below) => (Some(below), budget),
    };
    let is_reading = below.is_some();
    let may_create = options.create_if_missing && !is_reading;
    // This is checked before the lease is taken, because taking the lease creates a file.
    if !may_create
        && manifest::read_current(&*storages.manifest).is_ok_and(|current| current.is_none())
    {
        refuse_headless_data(&storages)?;
        return Err(no_store(&storages, is_reading));
    }
    let (lease, lost) = directories::lease(&storages)?;
    let epoch = lease.epoch();
    let mut layers = Layers { storages, at_once };
    if let Some(error) = lost {
        layers.lose_redirect(&error.to_string());
    }
    let found = read_store(&mut layers, &runtime, epoch, &options, is_reading);
    let found = found.inspect_err(|_| {
        // A storage across a link would keep the lease of an open that failed.
        let _ = lease.release();
    })?;
    let Layers { storages, at_once } = layers;
    let storages_at_once = at_once;
    locations.set_found(&storages_at_once);
    if let (Some(below), Some(redirect)) = (&mut below, &storages.redirect)
        && Missing::why(&**redirect).is_some()
    {
        below.redirect = storages.redirect.clone();
    }
    if let Some(redirect) = &storages.redirect
        && let Some(why) = Missing::why(&**redirect)
    {
        let (place, why) = (redirect.location(), why.to_string());
        tracing::warn!(
            place,
            why,
            "the store is opened without its second location of tables"
        );
        events.emit(|| Event::LocationMissing { place, why });
    }
    let metrics = Metrics::default();
    let arenas = Arenas::new(&runtime);
    let runner = JobRunner::new(
        &runtime,
        (&storages, &storages_at_once, &outage),
        epoch,
        found.open_number,
        &options,
        executors,
        &events,
    )
    .of_store(found.store_id);
    Ok(Opening {
        storages,
        storages_at_once,
        outage,
        locations,
        guards,
        descriptors,
        runtime,
        health,
        events,
        options,
        lease,
        epoch,
        store_id: found.store_id,
        is_new: found.is_new,
        old: found.old,
        open_number: found.open_number,
        runner,
        metrics,
        arenas,
        below,
        budget,
        taking_out: found.taking_out,
    })
}

/// These storages. If the folder of the second location of tables cannot be used, it is taken for
/// missing: nothing but its tables needs it. Nothing is created there then, not even its lease.
///
/// # Errors
/// Those of reading the store's own folder.
fn with_usable_redirect(storages: &Storages) -> Result<Storages> {
    let mut storages = storages.clone();
    if let Some(redirect) = &storages.redirect {
        let place = storages.manifest.describe();
        let why = why_unusable(&*storages.manifest, &**redirect)
            .map_err(|e| e.context(format!("opening the store {place}")))?;
        if let Some(why) = why {
            storages.redirect = Some(Storages::missing(&redirect.location(), &why));
        }
    }
    Ok(storages)
}

/// The storages of a store that is being opened, whose calls wait, and those below, whose calls do
/// not.
struct Layers {
    storages: Storages,
    at_once: Storages,
}

impl Layers {
    /// The folder of the second location cannot be used, because of `why`.
    fn lose_redirect(&mut self, why: &str) {
        if let Some(redirect) = &self.storages.redirect {
            let missing = Storages::missing(&redirect.location(), why);
            self.set_redirect(Some(missing));
        }
    }

    fn set_redirect(&mut self, redirect: Option<Arc<dyn Storage>>) {
        self.storages.redirect.clone_from(&redirect);
        self.at_once.redirect = redirect;
    }
}

/// What an open finds in the folders under its lease.
struct Found {
    store_id: StoreId,
    is_new: bool,
    old: StoreState,
    open_number: u64,
    taking_out: Option<TakingOut>,
}

/// Reads the manifest, and makes the checks that need the lease.
fn read_store(
    layers: &mut Layers,
    runtime: &Runtime,
    epoch: Epoch,
    options: &Options,
    is_reading: bool,
) -> Result<Found> {
    let wish = match (&options.redirect_dir, is_reading) {
        (_, true) => Wish::Read,
        (RedirectDir::None, false) => Wish::TakeOut,
        _ => Wish::Keep,
    };
    let all = layers.storages.clone();
    check_direct_io(&*all.tables, options.direct_io)?;
    let recovered = manifest::recover(&*all.manifest)?;
    match &recovered {
        Some(_) if options.error_if_exists && !is_reading => return Err(store_exists(&all)),
        None if !options.create_if_missing || is_reading => {
            return Err(no_store(&all, is_reading));
        }
        _ => {}
    }
    let mut claim = claim_folders(&all, (runtime, options), epoch, recovered.as_ref(), wish)?;
    let all_folders = all.folders();
    let store_id = claim.id();
    let known = Opened::check(&claim.compared(&all_folders), store_id)?;
    if let Some(error) = known.unread().filter(|_| !is_reading) {
        if recovered.is_none() || *claim.redirect() == Redirect::Added {
            return Err(error.clone());
        }
        claim.lose_redirect(&error.to_string());
    }
    match claim.redirect() {
        Redirect::None | Redirect::Kept | Redirect::Added => {}
        Redirect::Missing(why) => layers.lose_redirect(why),
        Redirect::TakenOut { .. } | Redirect::Unused => layers.set_redirect(None),
    }
    // From here on without a location that is taken out.
    let storages = &layers.storages;
    let is_new = recovered.is_none();
    let old = match recovered {
        Some(recovered) => recovered.state,
        None => new_state(runtime.unix_micros()),
    };
    if !is_reading {
        if let Redirect::TakenOut { .. } = claim.redirect() {
            refuse_taking_out(&old)?;
        }
        refuse_missing_tables(storages, &old)?;
    }
    refuse_other_formats(storages, &old)?;
    let open_number = next_open_number(storages, &old)?;
    if !is_reading {
        let folders = storages.folders();
        // An incomplete clone must not take the folders from the store. A replay would find damage
        // in the log, too, but it changes the folders, so the open is noted before it.
        if !is_new && all_folders.len() > 1 {
            let options = ReplayOptions::of(&old, log_store_id(store_id));
            refuse_missing_start(&*storages.log, &options)?;
        }
        if !is_new {
            // A lost DIRECTORIES is written again only now that all tables are known to be there.
            // The second location of tables is added.
            claim.restore(&all_folders, epoch)?;
        }
        let new = || random_id(runtime).0;
        let is_there = |(storage, _): &directories::Folder<'_>| Missing::why(*storage).is_none();
        let noted: Vec<_> = folders.into_iter().filter(is_there).collect();
        Opened::note(&noted, store_id, &known, new, epoch)?;
    }
    let taking_out = (!is_new && claim.takes_out()).then(|| TakingOut {
        claim,
        storages: all.clone(),
    });
    Ok(Found {
        store_id,
        is_new,
        old,
        open_number,
        taking_out,
    })
}

/// Checks that the folders belong to one store, and makes those of a new store.
fn claim_folders(
    storages: &Storages,
    (runtime, options): (&Runtime, &Options),
    epoch: Epoch,
    recovered: Option<&Recovered>,
    wish: Wish,
) -> Result<Claim> {
    let current = recovered.map(|r| r.current.store_id);
    let folders = storages.folders();
    let mut claim = Claim::for_open(&folders, current, || random_id(runtime), wish)?;
    if let (Redirect::Kept | Redirect::Added, Some(redirect)) =
        (claim.redirect(), &storages.redirect)
    {
        match check_direct_io(&**redirect, options.direct_io) {
            // A folder that cannot be read is as good as none.
            Err(error)
                if current.is_some()
                    && *claim.redirect() == Redirect::Kept
                    && error.kind() != ErrorKind::Unsupported =>
            {
                claim.lose_redirect(&error.to_string());
            }
            checked => checked?,
        }
    }
    if recovered.is_none() {
        refuse_headless_data(storages)?;
        // An earlier open that was killed, or the user, may have created the folders without making
        // their names durable.
        for (folder, _) in &folders {
            folder.sync_parents(epoch)?;
        }
        claim.write(&folders, epoch)?;
    }
    Ok(claim)
}

fn check_direct_io(tables: &dyn Storage, wanted: DirectIo) -> Result<()> {
    if wanted == DirectIo::None {
        return Ok(());
    }
    tables.check_direct().map_err(|e| {
        let place = tables.describe();
        Error::from(e)
            .context(format!("option direct_io cannot be used for {place}"))
            .advice(
                "open with direct_io = \"none\", or keep the tables on a file system that has it \
                 (ext4, xfs, btrfs)",
            )
    })
}

fn no_store(storages: &Storages, is_reading: bool) -> Error {
    let place = storages.manifest.describe();
    Error::not_found(format!("there is no store in {place}"))
        .advice(directories::no_store_advice(is_reading))
}

fn store_exists(storages: &Storages) -> Error {
    let place = storages.manifest.describe();
    Error::invalid_argument(format!("there is a store in {place} already"))
        .advice("open it without error_if_exists, or use another folder")
}

/// A store's first state: one keyspace, no numbers given.
fn new_state(created_us: u64) -> StoreState {
    let id = 1;
    let mut state = StoreState {
        next_keyspace_id: id + 1,
        next_table_id: 1,
        created_us,
        ..StoreState::new()
    };
    let keyspace = KeyspaceState {
        name: DEFAULT_KEYSPACE.to_string(),
        created_sequence: 0,
        options: StoredOptions::new(),
        version: Arc::new(KeyspaceVersion::new(id)),
    };
    state.keyspaces.insert(id, Arc::new(keyspace));
    state
}
