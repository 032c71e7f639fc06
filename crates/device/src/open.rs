//! Opens a store that uses devices: for its folder, for its tables, or for its jobs.
//!
//! Invariants: a session ends after the store that uses it.
//!
//! Threading: [`DeviceStore`] has one owner. The store in it is shared like any other store.

use std::fmt;
use std::ops::Deref;
use std::path::Path;
use std::sync::Arc;

use siltstone::manifest::CURRENT_NAME;
use siltstone::storage::{FileStorage, Runtime, Storage};
use siltstone::{Components, Error, ErrorKind, Options, RedirectDir, Result, Storages, Store};
use siltstone_storage::StorageErrorKind;
use siltstone_storage::link::{Address, Network, SocketNetwork};
use siltstone_table::exec::Executor;

use crate::client::{
    ClientOptions, Device, DeviceExecutor, LimitedNetwork, SeparatedExecutor, SeparatedStats,
};
use crate::tls::{TlsError, TlsFiles, TlsNetwork};
use crate::url::{DeviceUrl, is_url};
use crate::wire::FolderWanted;

/// The parts of a store that are on devices.
#[derive(Clone, Default)]
pub struct Placement {
    /// The address of a folder on a device, for the tables of a new store whose log and manifest
    /// are in a local folder. An existing store knows where its tables are, unless it has lost its
    /// file `DIRECTORIES`, which an open with this address writes again.
    pub tables: Option<String>,
    /// Devices that compactions are lent to, or that share the folder of tables.
    pub devices: Vec<Address>,
    /// Other executors that run jobs of the store, such as a GPU of this machine.
    pub executors: Vec<Arc<dyn Executor>>,
    /// How the sessions behave.
    pub client: ClientOptions,
    /// The certificates for devices at TCP addresses. `None` for links without TLS.
    pub tls: Option<TlsFiles>,
}

impl fmt::Debug for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let executors = self.executors.iter();
        let executors: Vec<&str> = executors.map(|executor| executor.name()).collect();
        f.debug_struct("Placement")
            .field("tables", &self.tables)
            .field("devices", &self.devices)
            .field("executors", &executors)
            .field("client", &self.client)
            .field("tls", &self.tls)
            .finish()
    }
}

/// The sockets of the system. TCP connections use TLS if there are certificates.
///
/// # Errors
/// If one of the certificate files cannot be used.
pub fn network(
    runtime: &Runtime,
    tls: Option<&TlsFiles>,
) -> std::result::Result<Arc<dyn Network>, TlsError> {
    let sockets: Arc<dyn Network> = Arc::new(SocketNetwork::new(runtime));
    Ok(match tls {
        None => sockets,
        Some(files) => Arc::new(TlsNetwork::new(runtime, sockets, files)?.with_plain_unix()),
    })
}

/// A store and its sessions with devices.
pub struct DeviceStore {
    store: Option<Store>,
    sessions: Sessions,
}

/// The sessions of a store, and the executors, which may have further sessions of their own.
#[derive(Default)]
struct Sessions {
    devices: Vec<Arc<Device>>,
    /// Sessions that have begun and that no executor uses yet.
    begun: Vec<Arc<Device>>,
    executors: Vec<Arc<DeviceExecutor>>,
    /// The executor that leaves values on the device that has the tables, if a device has them.
    separated: Option<Arc<SeparatedExecutor>>,
}

impl Sessions {
    /// Adds a session, and lets its device run the store's jobs. `name` is the name of the
    /// executor.
    fn add(&mut self, components: &mut Components, name: &str, device: Arc<Device>) {
        let executor = Arc::new(DeviceExecutor::new(name, &device));
        components.executors.push(executor.clone());
        self.executors.push(executor);
        self.devices.push(device);
    }

    /// Adds the session of the device that has the tables.
    fn add_of_tables(&mut self, components: &mut Components, name: &str, device: Arc<Device>) {
        let separated = Arc::new(SeparatedExecutor::new(&device));
        components.separated = Some(separated.clone());
        self.separated = Some(separated);
        self.add(components, name, device);
    }

    /// Ends the sessions, and those for lent work first. All of them begin to end before this waits
    /// for any of them, so several devices that cannot be reached take no longer than one.
    fn close(&self) {
        self.executors
            .iter()
            .for_each(|executor| executor.begin_close());
        let devices = || self.devices.iter().chain(&self.begun);
        devices().for_each(|device| device.begin_close());
        self.executors.iter().for_each(|executor| executor.close());
        devices().for_each(|device| device.close());
    }
}

impl Drop for Sessions {
    fn drop(&mut self) {
        self.close();
    }
}

impl DeviceStore {
    /// The sessions with devices.
    pub fn devices(&self) -> &[Arc<Device>] {
        &self.sessions.devices
    }

    /// What the host's compactions did and saved by leaving values on the device that has the
    /// tables. `None` if no device has the tables.
    pub fn separated_stats(&self) -> Option<SeparatedStats> {
        let separated = self.sessions.separated.as_ref();
        separated.map(|executor| executor.stats())
    }

    /// Closes the store, and ends its sessions.
    ///
    /// # Errors
    /// As [`Store::close`].
    pub fn close(mut self) -> Result<()> {
        let closed = self.store.take().map_or(Ok(()), Store::close);
        self.sessions.close();
        closed
    }
}

impl Deref for DeviceStore {
    type Target = Store;

    fn deref(&self) -> &Store {
        self.store
            .as_ref()
            .expect("a store is there until it is closed")
    }
}

impl Drop for DeviceStore {
    fn drop(&mut self) {
        // The store is dropped before the sessions, which end when their field is dropped.
        drop(self.store.take());
    }
}

/// Opens a store at a path, or at the address of a folder on a device (`silt://HOST:PORT/FOLDER`).
/// Its compactions run on the device that has its tables, and on the devices of `placement`.
///
/// The policy `near-data` of the option `schedule` is meant for such stores: the device gets the
/// compactions, and the host's cores are left to writers and readers. The policy `default` treats
/// the host like any other side.
///
/// ```no_run
/// use siltstone::{Options, ScheduleOptions};
/// use siltstone_device::{Placement, open};
///
/// let options = Options {
///     schedule: ScheduleOptions::policy("near-data").expect("it is a policy"),
///     ..Options::default()
/// };
/// let store = open("silt://127.0.0.1:4400/birds", options, &Placement::default())?;
/// store.default_keyspace()?.put("wren", "9 g")?;
/// store.close()?;
/// # siltstone::Result::Ok(())
/// ```
///
/// # Errors
/// As [`Store::open`]; `Unreachable` if a device does not answer; `InvalidArgument` if an address
/// is malformed, or if the TLS files cannot be used; `Io` if one side refuses the certificate of
/// the other.
pub fn open(place: &str, options: Options, placement: &Placement) -> Result<DeviceStore> {
    let mut sessions = Sessions::default();
    // These come first: while one of them does not answer, no folder of a store is created.
    for address in &placement.devices {
        let device = connect(address, FolderWanted::None, placement)?;
        sessions.begun.push(device);
    }
    let mut components = components(place, &options, placement, &mut sessions)?;
    let device_count = sessions.devices.len() + placement.devices.len();
    let begun = std::mem::take(&mut sessions.begun);
    for (address, device) in placement.devices.iter().zip(begun) {
        let name = executor_name(address, device_count);
        sessions.add(&mut components, &name, device);
    }
    components.executors.extend_from_slice(&placement.executors);
    let store = Some(Store::open_with(components, options)?);
    Ok(DeviceStore { store, sessions })
}

/// As [`open`], but only for reading.
///
/// # Errors
/// As [`Store::open_read_only`], and [`open`].
pub fn open_read_only(place: &str, options: Options, placement: &Placement) -> Result<DeviceStore> {
    let mut sessions = Sessions::default();
    let options = Options {
        create_if_missing: false,
        ..options
    };
    let components = components(place, &options, placement, &mut sessions)?;
    let store = Some(Store::open_read_only_with(components, options)?);
    Ok(DeviceStore { store, sessions })
}

/// The name of a device's executor: `device`, or the address of the device if the store has several
/// devices. If the address is long, the name is its end, because the store would cut off the end of
/// a long name.
fn executor_name(address: &Address, device_count: usize) -> String {
    if device_count < 2 {
        return "device".to_string();
    }
    let address = address.to_string();
    let from = address.chars().count().saturating_sub(NAME_CHARS);
    address.chars().skip(from).collect()
}

/// The maximum number of characters that the store keeps of an executor's name.
const NAME_CHARS: usize = 64;

/// The advice if the device does not have the folder of a store's tables.
pub const TABLES_ADVICE: &str = "DIRECTORIES in the store's folder says that the tables lie there: \
    mount the device's disk and start the device again, or bring the folder back; if it was moved, \
    write its new address into DIRECTORIES, with `crc32c edited` as the last line";

/// The parts of a store.
fn components(
    place: &str,
    options: &Options,
    placement: &Placement,
    sessions: &mut Sessions,
) -> Result<Components> {
    let runtime = Runtime::threads();
    let create = options.create_if_missing;
    // This includes the device of the store's tables.
    let device_count = placement.devices.len() + 1;
    if is_url(place) {
        if placement.tables.is_some() {
            return Err(Error::invalid_argument(
                "a store on a device has its tables there, and not on another device",
            ));
        }
        refuse_redirect(place, options)?;
        let device = connect_to(place, create, placement)?;
        let mut components = Components::on(device.storage(), runtime);
        let name = executor_name(&device.link_address(), device_count);
        sessions.add_of_tables(&mut components, &name, device);
        return Ok(components);
    }
    let recorded = Storages::device_of(place)?;
    let wanted = placement.tables.as_deref().map(normal).transpose()?;
    if let (Some(recorded), Some(wanted)) = (&recorded, &wanted)
        && recorded != wanted
    {
        return Err(Error::invalid_argument(format!(
            "the tables of the store {place} are somewhere else"
        ))
        .expected(recorded.clone())
        .found(wanted.clone())
        .advice(
            "leave the address out, because the store knows where its tables are; if the device \
             has another address now, write it into the file `DIRECTORIES` in the store's folder, \
             with `crc32c edited` as the last line",
        ));
    }
    let is_recorded = recorded.is_some();
    let Some(tables) = recorded.or(wanted) else {
        return Components::for_path(place, options);
    };
    refuse_directories(place, options)?;
    // The local folder comes first: if it cannot be opened, nothing is made on the device.
    let was_there = Path::new(place).exists();
    let root = match create {
        true => FileStorage::open_or_create(place),
        false => FileStorage::open_existing(place),
    };
    let root: Arc<dyn Storage> = Arc::new(root?);
    let is_store = exists(&*root, CURRENT_NAME)?;
    // The folder of a store's tables is made together with the store. If it is missing later, the
    // device does not see its disk, or the folder was moved.
    let device = connect_to(&tables, create && !is_store, placement).map_err(|error| {
        if !was_there {
            // This removes only an empty folder.
            let _ = std::fs::remove_dir(place);
        }
        match error.kind() {
            ErrorKind::NotFound if is_recorded => error
                .context(format!("opening the tables of the store {place}"))
                .advice(TABLES_ADVICE),
            ErrorKind::NotFound if is_store => tables_are_here(place, &tables),
            _ => error,
        }
    })?;
    // A store that has lost the file with the address of its tables may be given it again.
    if is_store && !is_recorded {
        let is_lost = Storages::has_lost_tables(place, &*device.storage());
        if !matches!(is_lost, Ok(true)) {
            device.close();
            is_lost?;
            return Err(tables_are_here(place, &tables));
        }
    }
    let mut components = Components::on(root, runtime);
    components.tables = device.storage();
    let name = executor_name(&device.link_address(), device_count);
    sessions.add_of_tables(&mut components, &name, device);
    Ok(components)
}

/// The error for a store that seems to have its tables in its own folder. `tables` is the address
/// that was given.
#[cold]
fn tables_are_here(place: &str, tables: &str) -> Error {
    Error::invalid_argument(format!(
        "the store {place} exists already, and {tables} is not the folder of its tables"
    ))
    .advice(format!(
        "leave the address out, or choose another folder for a new store; if {place} has lost its \
         file DIRECTORIES, give the folder on the device whose file OWNER names {place}"
    ))
}

/// Whether the folder has an object of this name.
fn exists(folder: &dyn Storage, name: &str) -> Result<bool> {
    match folder.open(name) {
        Ok(_) => Ok(true),
        Err(error) if error.kind == StorageErrorKind::NotFound => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Refuses options that name local folders for parts of a store whose tables are on a device. Its
/// log lies in its own folder, so it would not be where its `OPTIONS.toml` says.
fn refuse_directories(place: &str, options: &Options) -> Result<()> {
    let root = Path::new(place);
    let real = |path: &Path| std::fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf());
    let wishes = [
        (
            "log_dir",
            &options.log_dir,
            "its log lies in its own folder",
        ),
        (
            "table_dir",
            &options.table_dir,
            "they do not lie in a local one",
        ),
    ];
    refuse_redirect(place, options)?;
    for (name, dir, why) in wishes {
        let is_own = name == "log_dir" && real(&root.join(dir)) == real(root);
        if is_own || dir.as_os_str().is_empty() {
            continue;
        }
        return Err(Error::invalid_argument(format!(
            "option {name} names a folder for the store {place}, whose tables are on a device: \
             {why}"
        ))
        .expected(format!("no {name}"))
        .found(dir.display())
        .advice(format!(
            "leave {name} out, or remove its line from OPTIONS.toml in the store's folder"
        )));
    }
    Ok(())
}

/// Refuses a second location of tables for a store whose tables are on a device.
fn refuse_redirect(place: &str, options: &Options) -> Result<()> {
    let RedirectDir::Path(dir) = &options.redirect_dir else {
        return Ok(());
    };
    Err(Error::invalid_argument(format!(
        "option redirect_dir names a folder for the store {place}, whose tables are on a device: \
         such a store has no second location of tables"
    ))
    .expected("no redirect_dir")
    .found(dir.display())
    .advice("leave redirect_dir out, or remove its line from OPTIONS.toml in the store's folder"))
}

/// The normal form of a folder's address. The store records it in this form.
fn normal(url: &str) -> Result<String> {
    let parsed = url.parse::<DeviceUrl>();
    let normal = parsed.and_then(|url| url.normal());
    normal.map_err(|error| Error::invalid_argument(error.to_string()))
}

/// Connects to the device of a folder's address.
fn connect_to(url: &str, create: bool, placement: &Placement) -> Result<Arc<Device>> {
    let url: DeviceUrl = url
        .parse()
        .map_err(|error: crate::url::UrlError| Error::invalid_argument(error.to_string()))?;
    let folder = FolderWanted::Named {
        name: url.folder,
        create,
    };
    connect(&url.address, folder, placement)
}

/// Connects to a device in the same way as [`open`], with the client options and the certificates
/// of this placement.
///
/// # Errors
/// As [`open`].
pub fn connect(
    address: &Address,
    folder: FolderWanted,
    placement: &Placement,
) -> Result<Arc<Device>> {
    let runtime = Runtime::threads();
    let network = network(&runtime, placement.tls.as_ref())
        .map_err(|error| Error::invalid_argument(error.to_string()))?;
    let client = placement.client.clone();
    let network = match client.link_bytes_per_s.filter(|rate| *rate > 0) {
        None => network,
        Some(rate) => Arc::new(LimitedNetwork::new(&runtime, network, rate)),
    };
    let device = Device::connect(&runtime, network, address.clone(), folder, client);
    device.map_err(|error| {
        let is_denied = error.kind == StorageErrorKind::PermissionDenied;
        let is_full = error.kind == StorageErrorKind::TooManyOpen;
        let error = Error::from(error);
        match error.kind() {
            // The general advice is about files on this machine only.
            _ if is_denied && matches!(address, Address::Unix(_)) => error.advice(
                "only the user who started the device may use its socket, and the device must be \
                 able to read and write the folder",
            ),
            _ if is_denied => error.advice(
                "check the certificates and the CA files on both sides, the device's access list, \
                 and the permissions of the folder on the device",
            ),
            // The general advice is about open files of this process.
            _ if is_full => error.advice(
                "this is a limit of the device: close sessions of other hosts, or wait until the \
                 device has ended those that are silent",
            ),
            ErrorKind::NotFound => error.advice(
                "there is no such folder on the device; a command that may create a store makes it",
            ),
            _ => error,
        }
    })
}
