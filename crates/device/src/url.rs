//! The addresses of folders on devices, as users write them: `silt://HOST:PORT/FOLDER`, and
//! `silt+unix://PATH-OF-THE-SOCKET#FOLDER`.
//!
//! Threading: pure functions.

use siltstone_storage::link::Address;
use siltstone_storage::name::{LEASE_PREFIX, NAME_MAX_BYTES, is_object_name};

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

/// Whether a text is meant as the address of a folder on a device, although it may be mistyped: it
/// begins with the name of a scheme and `://`, or with `silt:` or `silt+`, in any case of letters.
/// A local folder with such a name is given as `./NAME`.
pub fn is_url(text: &str) -> bool {
    let begins_with = |prefix: &str| {
        let head = text.get(..prefix.len());
        head.is_some_and(|head| head.eq_ignore_ascii_case(prefix))
    };
    if begins_with("silt:") || begins_with("silt+") {
        return true;
    }
    let Some((scheme, _)) = text.split_once("://") else {
        return false;
    };
    let is_of_a_scheme = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'-' | b'.');
    scheme.starts_with(|c: char| c.is_ascii_alphabetic()) && scheme.bytes().all(is_of_a_scheme)
}

/// Says why a text is not a valid name of a folder. The caller knows that it is not.
fn why_no_folder(name: &str) -> String {
    let is_plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
    if !name.bytes().all(is_plain) {
        "a folder's name has only the characters A-Z a-z 0-9 . _ -".to_string()
    } else if name.starts_with('.') {
        "a folder's name does not begin with a dot".to_string()
    } else if name.starts_with(LEASE_PREFIX) {
        format!("a folder's name does not begin with `{LEASE_PREFIX}`, as files for leases do")
    } else {
        format!("a folder's name has 1 to {NAME_MAX_BYTES} characters")
    }
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
    /// The normal form of the address. In it the path of a socket is absolute, so the text means
    /// the same folder in every working directory.
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
            let what = "it begins with neither `silt://` nor `silt+unix://`";
            return Err(match is_url(text) {
                true => error(&format!(
                    "{what} (a local folder with this name is given as `./NAME`)"
                )),
                false => error(what),
            });
        };
        let address = address.parse::<Address>().map_err(|e| error(&e.detail))?;
        let folder = folder.trim_end_matches('/');
        if !is_object_name(folder) {
            return Err(error(&why_no_folder(folder)));
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
    fn mistyped_addresses_are_no_paths() {
        for text in [
            "silt:/127.0.0.1:4400/birds",
            "silt:127.0.0.1:4400/birds",
            "SILT://127.0.0.1:4400/birds",
            "Silt+Unix:///tmp/s#birds",
            "silt+tcp://127.0.0.1:4400/birds",
            "silt+unix:/tmp/s#birds",
            "slit://127.0.0.1:4400/birds",
            "http://127.0.0.1:4400/birds",
        ] {
            assert!(is_url(text), "{text}");
            let error = text.parse::<DeviceUrl>().unwrap_err().to_string();
            for word in [
                "silt://HOST:PORT/FOLDER",
                "silt+unix://SOCKET#FOLDER",
                "./NAME",
            ] {
                assert!(error.contains(word), "{error}");
            }
        }
        for path in [
            "silt",
            "birds.silt",
            "/tmp/silt:",
            "./silt://h:1/x",
            "a/b://c",
            "://c",
            "ä:/b",
        ] {
            assert!(!is_url(path), "{path}");
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        let long = format!("silt://h:1/{}", "x".repeat(101));
        for (text, reason) in [
            ("silt://127.0.0.1:4400", "no folder"),
            ("silt://127.0.0.1/db", "port"),
            ("silt://h:1/../x", "a folder's name"),
            ("silt://h:1/", "has 1 to 100 characters"),
            ("silt://h:1/ä", "has only the characters"),
            ("silt://h:1/.db", "does not begin with a dot"),
            ("silt://h:1/LOCK.x", "does not begin with `LOCK.`"),
            (long.as_str(), "has 1 to 100 characters"),
            ("silt+unix:///run/s", "no folder"),
            ("silt+unix://#db", "no path"),
            ("/tmp/db", "begins with neither"),
        ] {
            let error = text.parse::<DeviceUrl>().unwrap_err().to_string();
            assert!(error.contains(reason), "{error}");
        }
    }
}
