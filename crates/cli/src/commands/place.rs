//! Where a store is: in a folder of this machine, or on a device (`silt://HOST:PORT/FOLDER`,
//! `silt+unix://SOCKET#FOLDER`); and what commands read of a store before they open it.
//!
//! The address of a folder on a device is kept in a `PathBuf` as the text that was given, because
//! the argument of a command may be either. Nothing may join, normalise or canonicalise such a
//! path, which would change its double slash: a command asks [`url`] first.
//!
//! Invariant: a command that cannot work on a device calls [`refuse_url`] or [`refuse_url_for`]
//! before anything else, so that no folder with the name `silt:` is ever created.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use siltstone::{
    Error, ErrorKind, Options, ScheduleOptions, StatsFile, Storages, read_stats_file,
    read_stats_file_from,
};
use siltstone_device::url::is_url;
use siltstone_device::{
    ClientOptions, Device, DeviceUrl, FolderWanted, Placement, TABLES_ADVICE, TlsFiles,
};
use siltstone_storage::link::Address;
use siltstone_storage::{FileStorage, Storage};

use crate::failure::Failure;

/// How long a command waits for a store that another host has open. The lease of a host that was
/// killed becomes free after ten seconds.
const LEASE_WAIT: Duration = Duration::from_secs(12);

/// How long an open store waits for a device that does not answer, for example because it is
/// started again.
const TIME_LIMIT: Duration = Duration::from_secs(30);

/// How long the first contact with a device may take. A wrong address is reported sooner than a
/// device that stops answering, because nothing is lost by giving the command again.
const FIRST_LIMIT: Duration = Duration::from_secs(5);

/// Reads the path of a store as the address of a folder on a device. `None` if it is a path.
///
/// # Errors
/// Wrong usage if the path looks like an address and is not a valid one.
pub fn url(path: &Path) -> Result<Option<&str>, Failure> {
    let shown = path.to_string_lossy();
    if !is_url(&shown) {
        return Ok(None);
    }
    parsed(&shown)?;
    match path.to_str() {
        Some(text) => Ok(Some(text)),
        None => Err(Failure::Usage(format!(
            "{shown}: the address of a folder on a device must be UTF-8"
        ))),
    }
}

/// The options with the policy for a store that a device has a part in. For the policy `default`
/// the host is a side like others, and takes compactions while its writers need its cores.
pub fn near_data(options: Options) -> Options {
    Options {
        schedule: ScheduleOptions::policy("near-data").unwrap_or_default(),
        ..options
    }
}

/// Refuses the address of a folder on a device, for a command that works on local files only.
/// `command` is the command's name. For a folder that the command makes, use [`refuse_url_for`].
///
/// # Errors
/// Wrong usage if the path is such an address, or if it looks like an address and is not a valid
/// one.
pub fn refuse_url(path: &Path, command: &str) -> Result<(), Failure> {
    if url(path)?.is_none() {
        return Ok(());
    }
    Err(Failure::Usage(format!(
        "`silt {command}` works on the files of a local folder, and {} is on a device: give the \
         command on the device's machine, with the folder below its --data",
        path.display()
    )))
}

/// Refuses the address of a folder on a device where a local folder is meant. `what` says what the
/// folder is for.
///
/// # Errors
/// Wrong usage if the path is such an address, or if it looks like an address and is not a valid
/// one.
pub fn refuse_url_for(path: &Path, what: &str) -> Result<(), Failure> {
    match url(path)? {
        None => Ok(()),
        Some(url) => Err(Failure::Usage(format!(
            "{what}, and {url} is the address of a folder on a device: give a local folder"
        ))),
    }
}

/// How sessions of commands with devices behave.
pub fn client_options() -> ClientOptions {
    ClientOptions {
        time_limit: TIME_LIMIT,
        lease_wait: LEASE_WAIT,
        ..ClientOptions::default()
    }
}

/// The variables that name the certificates for devices at TCP addresses.
const TLS: [&str; 3] = ["SILT_TLS_CA", "SILT_TLS_CERT", "SILT_TLS_KEY"];

/// The certificates that the environment names, for devices at TCP addresses.
fn tls_files() -> Result<Option<TlsFiles>, Failure> {
    let files = TLS.map(|name| std::env::var_os(name).filter(|file| !file.is_empty()));
    let files = files.map(|file| file.map(PathBuf::from));
    match files {
        [Some(ca), Some(certificate), Some(key)] => Ok(Some(TlsFiles {
            ca,
            certificate,
            key,
        })),
        [None, None, None] => Ok(None),
        // Without TLS, everything would go over the link in the clear, which is not what whoever
        // sets one of them wants.
        files => {
            let missing = TLS.iter().zip(&files).filter(|(_, file)| file.is_none());
            let missing: Vec<&str> = missing.map(|(name, _)| *name).collect();
            Err(Failure::Usage(format!(
                "only some of the variables {} are set: set {} too, or none of them for links \
                 without TLS",
                TLS.join(", "),
                missing.join(" and ")
            )))
        }
    }
}

/// A store whose parts on devices are those that its path and its folder name.
///
/// # Errors
/// Wrong usage if the environment names only some of the certificates.
pub fn placement() -> Result<Placement, Failure> {
    Ok(Placement {
        client: client_options(),
        tls: tls_files()?,
        ..Placement::default()
    })
}

/// The tables of a local store, if they are on a device. Errors of the folder are reported when the
/// store is opened.
pub fn tables_on_device(path: &Path) -> Option<String> {
    Storages::device_of(path).ok().flatten()
}

fn parsed(url: &str) -> Result<DeviceUrl, Failure> {
    url.parse()
        .map_err(|error: siltstone_device::url::UrlError| Failure::Usage(error.to_string()))
}

/// Connects to a device, which must answer soon.
///
/// # Errors
/// It does not answer, or refuses; a file of TLS cannot be used.
pub fn first_contact(address: &Address, folder: FolderWanted) -> Result<Arc<Device>, Failure> {
    let placement = Placement {
        client: ClientOptions {
            time_limit: FIRST_LIMIT,
            ..client_options()
        },
        ..placement()?
    };
    Ok(siltstone_device::connect(address, folder, &placement)?)
}

/// Makes sure that the devices which have a part in a store answer. This comes before the store is
/// opened or created, so that a wrong address is reported soon and leaves no folder. The device of
/// a store at an address is not asked: its folder's settings were read through it.
///
/// # Errors
/// One of them does not answer.
pub fn reach_devices(path: &Path, placed: &Placement) -> Result<(), Failure> {
    let tables = match url(path)? {
        Some(_) => None,
        None => placed.tables.clone().or_else(|| tables_on_device(path)),
    };
    let tables = tables.map(|url| Ok::<_, Failure>(parsed(&url)?.address));
    for address in placed.devices.iter().cloned().chain(tables.transpose()?) {
        first_contact(&address, FolderWanted::None)?.close();
    }
    Ok(())
}

/// A session with the device of a folder, which is not created.
pub struct Folder {
    device: Arc<Device>,
}

impl Folder {
    /// Connects to the device. `None` if it has no such folder.
    ///
    /// # Errors
    /// `Unreachable` if it does not answer; the device's reason if it refuses the folder.
    pub fn open(url: &str) -> Result<Option<Folder>, Failure> {
        let parsed = parsed(url)?;
        let wanted = FolderWanted::Named {
            name: parsed.folder,
            create: false,
        };
        match first_contact(&parsed.address, wanted) {
            Ok(device) => Ok(Some(Folder { device })),
            Err(Failure::Store(error)) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(failure) => Err(failure),
        }
    }

    /// The folder.
    pub fn storage(&self) -> Arc<dyn Storage> {
        self.device.storage()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        self.device.close();
    }
}

/// A small file of a store's folder on a device. `None` if the folder or the file does not exist.
///
/// # Errors
/// The device does not answer; the file cannot be read.
pub fn read_file(url: &str, name: &str) -> Result<Option<Vec<u8>>, Failure> {
    let Some(folder) = Folder::open(url)? else {
        return Ok(None);
    };
    match folder.storage().read_small(name).map_err(Error::from) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Whether there is a store. If that cannot be found out, the open reports why.
pub fn has_store(path: &Path) -> bool {
    match url(path) {
        Ok(Some(url)) => matches!(read_file(url, "CURRENT"), Ok(Some(_))),
        Ok(None) => path.join("CURRENT").exists(),
        Err(_) => false,
    }
}

/// Whether the tables of a local store lie in this folder on a device, and the store has lost the
/// file that says so.
///
/// # Errors
/// The device does not answer; the files of the store cannot be read.
pub fn has_lost_tables(path: &Path, url: &str) -> Result<bool, Failure> {
    match Folder::open(url)? {
        Some(folder) => Ok(Storages::has_lost_tables(path, &*folder.storage())?),
        None => Ok(false),
    }
}

/// Whether the folder of a store exists.
///
/// # Errors
/// Its device does not answer.
pub fn has_folder(path: &Path) -> Result<bool, Failure> {
    match url(path)? {
        Some(url) => Ok(Folder::open(url)?.is_some()),
        None => Ok(path.is_dir()),
    }
}

/// The figures that the writer of a store publishes.
///
/// # Errors
/// As [`read_stats_file`]; the device does not answer.
pub fn stats_file(path: &Path) -> Result<StatsFile, Failure> {
    let Some(url) = url(path)? else {
        return Ok(read_stats_file(path)?);
    };
    match Folder::open(url)? {
        Some(folder) => Ok(read_stats_file_from(&*folder.storage())?),
        None => Err(Error::not_found(format!("there is no folder {url}")).into()),
    }
}

/// The storages of a store that no process needs to have open, and the session with its device, if
/// it has one. The session must live as long as the storages are used.
///
/// # Errors
/// As [`Storages::find`]; the device does not answer, or has no such folder.
pub fn storages(path: &Path) -> Result<(Storages, Option<Folder>), Failure> {
    let connect = |url: &str, advice: &'static str| {
        Folder::open(url)?.ok_or_else(|| {
            let error = Error::not_found(format!("there is no folder {url} on the device"));
            Failure::from(error.advice(advice))
        })
    };
    if let Some(url) = url(path)? {
        let folder = connect(url, "check the path, and the address of the device")?;
        let storage = folder.storage();
        let storages = Storages {
            log: Arc::clone(&storage),
            manifest: Arc::clone(&storage),
            tables: storage,
            redirect: None,
        };
        return Ok((storages, Some(folder)));
    }
    let Some(tables) = tables_on_device(path) else {
        return Ok((Storages::find(path)?, None));
    };
    let folder = connect(&tables, TABLES_ADVICE)?;
    // The log and the manifest of a store with tables on a device are both in its own folder.
    let root = FileStorage::open_existing(path).map_err(Error::from)?;
    let root: Arc<dyn Storage> = Arc::new(root);
    let storages = Storages {
        log: Arc::clone(&root),
        manifest: root,
        tables: folder.storage(),
        redirect: None,
    };
    Ok((storages, Some(folder)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_kept_as_it_was_given() {
        for text in ["silt://127.0.0.1:4400/db", "silt+unix:///run/s#db"] {
            assert_eq!(url(Path::new(text)).unwrap(), Some(text));
            let refused = refuse_url(Path::new(text), "dump").unwrap_err();
            assert!(matches!(refused, Failure::Usage(ref why) if why.contains(text)));
        }
        for path in ["birds.silt", "/tmp/silt:", "./silt://x", "./silt:/h:1/db"] {
            assert_eq!(url(Path::new(path)).unwrap(), None, "{path}");
            refuse_url(Path::new(path), "dump").unwrap();
        }
        for wrong in ["silt://127.0.0.1:4400", "silt:/h:1/db", "SILT://h:1/db"] {
            let wrong = Path::new(wrong);
            assert!(matches!(url(wrong), Err(Failure::Usage(_))));
            assert!(refuse_url(wrong, "dump").is_err());
        }
    }
}
