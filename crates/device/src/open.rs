//! Opens a store that a device has a part in: its folder, its tables, or its jobs.
//!
//! Invariants: a session ends after the store that uses it.
//!
//! Threading: [`DeviceStore`] has one owner; the store in it is shared as any other.

use std::ops::Deref;
use std::path::Path;
use std::sync::Arc;

use siltstone::storage::{FileStorage, Runtime, Storage};
use siltstone::{Components, Error, ErrorKind, Options, Result, Store};
use siltstone_storage::StorageErrorKind;
use siltstone_storage::link::{Address, Network, SocketNetwork};

use crate::client::{ClientOptions, Device, DeviceExecutor};
use crate::tls::{TlsFiles, TlsNetwork};
use crate::url::{DeviceUrl, is_url};
use crate::wire::FolderWanted;

/// What of a store is on devices.
#[derive(Clone, Debug, Default)]
pub struct Placement {
    /// The address of a folder on a device, for the tables of a new store whose log and manifest
    /// are in a local folder. A store that exists knows where its tables are.
    pub tables: Option<String>,
    /// Devices to which compactions are lent, or which share the folder of tables.
    pub devices: Vec<Address>,
    /// How the sessions behave.
    pub client: ClientOptions,
    /// The files of TLS. With them all devices are reached over TLS, without them none is.
    pub tls: Option<TlsFiles>,
}

/// A store and its sessions with devices.
pub struct DeviceStore {
    store: Option<Store>,
    devices: Vec<Arc<Device>>,
}

impl DeviceStore {
    /// The sessions with devices.
    pub fn devices(&self) -> &[Arc<Device>] {
        &self.devices
    }

    /// Closes the store, and ends its sessions.
    ///
    /// # Errors
    /// As [`Store::close`].
    pub fn close(mut self) -> Result<()> {
        let closed = self.store.take().map_or(Ok(()), Store::close);
        self.devices.iter().for_each(|device| device.close());
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
        drop(self.store.take());
        self.devices.iter().for_each(|device| device.close());
    }
}

/// Opens a store at a path, or at the address of a folder on a device (`silt://HOST:PORT/FOLDER`).
/// Its compactions run on the device that has its tables, and on those of `placement`.
///
/// ```no_run
/// use siltstone::Options;
/// use siltstone_device::{Placement, open};
///
/// let store = open("silt://127.0.0.1:4400/birds", Options::default(), &Placement::default())?;
/// store.default_keyspace()?.put("wren", "9 g")?;
/// store.close()?;
/// # siltstone::Result::Ok(())
/// ```
///
/// # Errors
/// As [`Store::open`]; `Unreachable` if a device does not answer; `InvalidArgument` if an address
/// is none, or if the files of TLS cannot be used; `Io` if one side refuses the certificate of
/// the other.
pub fn open(place: &str, options: Options, placement: &Placement) -> Result<DeviceStore> {
    let mut devices = Vec::new();
    let mut components = components(place, &options, placement, &mut devices)?;
    for address in &placement.devices {
        let device = connect(address, FolderWanted::None, placement)?;
        let executor = DeviceExecutor::new("device", &device);
        components.executors.push(Arc::new(executor));
        devices.push(device);
    }
    let store = Some(Store::open_with(components, options)?);
    Ok(DeviceStore { store, devices })
}

/// As [`open`], for reading.
///
/// # Errors
/// As [`Store::open_read_only`], and [`open`].
pub fn open_read_only(place: &str, options: Options, placement: &Placement) -> Result<DeviceStore> {
    let mut devices = Vec::new();
    let options = Options {
        create_if_missing: false,
        ..options
    };
    let components = components(place, &options, placement, &mut devices)?;
    let store = Some(Store::open_read_only_with(components, options)?);
    Ok(DeviceStore { store, devices })
}

/// The parts of a store.
fn components(
    place: &str,
    options: &Options,
    placement: &Placement,
    devices: &mut Vec<Arc<Device>>,
) -> Result<Components> {
    let runtime = Runtime::threads();
    let create = options.create_if_missing;
    if is_url(place) {
        if placement.tables.is_some() {
            return Err(Error::invalid_argument(
                "a store on a device has its tables there, and not on another device",
            ));
        }
        let device = connect_to(place, create, placement)?;
        let mut components = Components::on(device.storage(), runtime);
        add_executor(&mut components, &device);
        devices.push(device);
        return Ok(components);
    }
    let recorded = siltstone::Storages::device_of(Path::new(place))?;
    if let (Some(recorded), Some(wanted)) = (&recorded, &placement.tables)
        && recorded != wanted
    {
        return Err(Error::invalid_argument(format!(
            "the tables of the store {place} are somewhere else"
        ))
        .expected(recorded.clone())
        .found(wanted.clone()));
    }
    let Some(tables) = recorded.or_else(|| placement.tables.clone()) else {
        return Components::for_path(place, options);
    };
    let device = connect_to(&tables, create, placement)?;
    let root = match create {
        true => FileStorage::open_or_create(place),
        false => FileStorage::open_existing(place),
    };
    let root: Arc<dyn Storage> = Arc::new(root?);
    let mut components = Components::on(root, runtime);
    components.tables = device.storage();
    add_executor(&mut components, &device);
    devices.push(device);
    Ok(components)
}

fn add_executor(components: &mut Components, device: &Arc<Device>) {
    let executor = DeviceExecutor::new("device", device);
    components.executors.push(Arc::new(executor));
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

fn connect(address: &Address, folder: FolderWanted, placement: &Placement) -> Result<Arc<Device>> {
    let runtime = Runtime::threads();
    let mut network: Arc<dyn Network> = Arc::new(SocketNetwork::new(&runtime));
    if let Some(files) = &placement.tls {
        let tls = TlsNetwork::new(&runtime, network, files);
        let tls = tls.map_err(|error| Error::invalid_argument(error.to_string()))?;
        network = Arc::new(tls);
    }
    let client = placement.client.clone();
    let device = Device::connect(&runtime, network, address.clone(), folder, client);
    device.map_err(|error| {
        let is_denied = error.kind == StorageErrorKind::PermissionDenied && placement.tls.is_some();
        let error = Error::from(error);
        match error.kind() {
            // The general advice is about files of this machine only.
            _ if is_denied => error.advice(
                "check the certificates and the CA files on both sides, and the permissions of the \
                 folder on the device",
            ),
            ErrorKind::NotFound => error.advice(
                "there is no such folder on the device; a command that may create a store makes it",
            ),
            _ => error,
        }
    })
}
