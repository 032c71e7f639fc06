//! The addresses of folders on devices, as users write them: `silt://HOST:PORT/FOLDER`, and
//! `silt+unix://PATH-OF-THE-SOCKET#FOLDER`.
//!
//! Threading: pure functions.

use siltstone_storage::link::Address;
use siltstone_storage::name::is_object_name;

/// A folder on a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceUrl {
    /// Where the device listens.
    pub address: Address,
    /// The folder's name.
    pub folder: String,
}

/// Why a text is not an address of a folder on a device.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{text}` is no address of a folder on a device: {reason}; expected silt://HOST:PORT/FOLDER or \
     silt+unix://SOCKET#FOLDER"
)]
pub struct UrlError {
    text: String,
    reason: String,
}

const TCP: &str = "silt://";
const UNIX: &str = "silt+unix://";
const MEMORY: &str = "silt+memory://";

/// Whether a text is meant as the address of a folder on a device.
pub fn is_url(text: &str) -> bool {
    text.starts_with(TCP) || text.starts_with(UNIX)
}

/// The text of a folder's address.
pub fn url_of(address: &Address, folder: &str) -> String {
    match address {
        Address::Unix(path) => format!("{UNIX}{}#{folder}", path.display()),
        Address::Memory(name) => format!("{MEMORY}{name}/{folder}"),
        tcp => format!("{TCP}{tcp}/{folder}"),
    }
}

impl DeviceUrl {
    /// The normal form of the address: the one text that stands for this folder, wherever it is
    /// read. The path of a socket in it is absolute.
    ///
    /// # Errors
    /// If the path is relative, and this process has no working directory.
    pub fn normal(&self) -> Result<String, UrlError> {
        let address = match &self.address {
            Address::Unix(path) => std::path::absolute(path).map(Address::Unix),
            other => Ok(other.clone()),
        };
        match address {
            Ok(address) => Ok(url_of(&address, &self.folder)),
            Err(error) => Err(UrlError {
                text: url_of(&self.address, &self.folder),
                reason: format!("its path cannot be made absolute: {error}"),
            }),
        }
    }
}

impl std::str::FromStr for DeviceUrl {
    type Err = UrlError;

    fn from_str(text: &str) -> Result<DeviceUrl, UrlError> {
        let error = |reason: &str| UrlError {
            text: text.to_string(),
            reason: reason.to_string(),
        };
        let (address, folder) = if let Some(rest) = text.strip_prefix(UNIX) {
            let (path, folder) = rest.rsplit_once('#').ok_or_else(|| error("no folder"))?;
            if path.is_empty() {
                return Err(error("no path of a socket"));
            }
            (format!("unix:{path}"), folder)
        } else if let Some(rest) = text.strip_prefix(TCP) {
            let (address, folder) = rest.split_once('/').ok_or_else(|| error("no folder"))?;
            (address.to_string(), folder)
        } else {
            return Err(error("it begins with neither of them"));
        };
        let address = address.parse::<Address>().map_err(|e| error(&e.detail))?;
        let folder = folder.trim_end_matches('/');
        if !is_object_name(folder) {
            return Err(error(
                "a folder's name has only letters, digits, dots, `_` and `-`, and at most 100",
            ));
        }
        Ok(DeviceUrl {
            address,
            folder: folder.to_string(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_they_are_shown() {
        for text in [
            "silt://127.0.0.1:4400/db",
            "silt://[::1]:4400/db.1",
            "silt://box.example:1/a-b_c",
            "silt+unix:///run/silt.sock#db",
        ] {
            let url: DeviceUrl = text.parse().unwrap();
            assert_eq!(url_of(&url.address, &url.folder), text);
            assert!(is_url(text));
        }
        let url: DeviceUrl = "silt://a:1/db/".parse().unwrap();
        assert_eq!(url.folder, "db");
        assert_eq!(url.normal().unwrap(), "silt://a:1/db");
        let url: DeviceUrl = "silt+unix://a.sock#db".parse().unwrap();
        let here = std::env::current_dir().unwrap();
        let normal = format!("silt+unix://{}#db", here.join("a.sock").display());
        assert_eq!(url.normal().unwrap(), normal);
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, reason) in [
            ("silt://127.0.0.1:4400", "no folder"),
            ("silt://127.0.0.1/db", "port"),
            ("silt://h:1/../x", "a folder's name"),
            ("silt://h:1/", "a folder's name"),
            ("silt+unix:///run/s", "no folder"),
            ("silt+unix://#db", "no path"),
            ("/tmp/db", "begins with neither"),
        ] {
            let error = text.parse::<DeviceUrl>().unwrap_err().to_string();
            assert!(error.contains(reason), "{error}");
        }
    }
}
