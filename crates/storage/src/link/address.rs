//! The addresses of links, as users write them.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use super::{LinkError, LinkErrorKind};

/// The address of a listener.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Address {
    /// A name or an IP address, and a port: `host:port` or `[::1]:port`.
    Tcp {
        /// The name or the IP address, without brackets.
        host: String,
        /// The port.
        port: u16,
    },
    /// A Unix socket: `unix:PATH`.
    Unix(PathBuf),
    /// A name within a [`MemoryNetwork`](super::MemoryNetwork): `memory:NAME`.
    Memory(String),
}

impl Address {
    /// Whether this address can only be reached from this machine: a Unix socket, or a loopback
    /// address that is written in numbers. A name counts only if it is `localhost`.
    pub fn is_local(&self) -> bool {
        match self {
            Address::Unix(_) | Address::Memory(_) => true,
            Address::Tcp { host, .. } => {
                host == "localhost"
                    || host
                        .parse::<std::net::IpAddr>()
                        .is_ok_and(|ip| ip.is_loopback())
            }
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Tcp { host, port } if host.contains(':') => write!(f, "[{host}]:{port}"),
            Address::Tcp { host, port } => write!(f, "{host}:{port}"),
            Address::Unix(path) => write!(f, "unix:{}", path.display()),
            Address::Memory(name) => write!(f, "memory:{name}"),
        }
    }
}

impl FromStr for Address {
    type Err = LinkError;

    fn from_str(text: &str) -> Result<Address, LinkError> {
        let invalid = |detail: &str| {
            let detail = format!("{detail}; expected HOST:PORT or unix:PATH");
            LinkError::new(
                LinkErrorKind::InvalidAddress,
                "parse the address",
                text,
                detail,
            )
        };
        if let Some(path) = text.strip_prefix("unix:") {
            return match path.is_empty() {
                true => Err(invalid("the path is empty")),
                false => Ok(Address::Unix(path.into())),
            };
        }
        if let Some(name) = text.strip_prefix("memory:") {
            return Ok(Address::Memory(name.to_string()));
        }
        let (host, port) = match text.strip_prefix('[') {
            Some(rest) => {
                let (host, after) = rest
                    .split_once(']')
                    .ok_or_else(|| invalid("the bracket is not closed"))?;
                let port = after
                    .strip_prefix(':')
                    .ok_or_else(|| invalid("there is no port"))?;
                (host, port)
            }
            None => {
                let (host, port) = text
                    .rsplit_once(':')
                    .ok_or_else(|| invalid("there is no port"))?;
                if host.contains(':') {
                    return Err(invalid("an IPv6 address needs brackets"));
                }
                (host, port)
            }
        };
        if host.is_empty() {
            return Err(invalid("there is no host"));
        }
        let port = port
            .parse()
            .map_err(|_| invalid("the port is no number from 0 to 65535"))?;
        Ok(Address::Tcp {
            host: host.to_string(),
            port,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_they_are_written() {
        for text in [
            "example.org:7070",
            "127.0.0.1:0",
            "[::1]:7070",
            "unix:/run/silt.sock",
            "unix:relative",
            "memory:device",
        ] {
            let address: Address = text.parse().unwrap();
            assert_eq!(address.to_string(), text);
        }
    }

    #[test]
    fn what_is_no_address_is_refused_with_the_forms_that_are() {
        for (text, said) in [
            ("", "no port"),
            ("host", "no port"),
            (":7070", "no host"),
            ("host:", "no number"),
            ("host:65536", "no number"),
            ("::1:7070", "brackets"),
            ("[::1:7070", "not closed"),
            ("[::1]7070", "no port"),
            ("unix:", "empty"),
        ] {
            let error = text.parse::<Address>().unwrap_err();
            assert_eq!(error.kind, LinkErrorKind::InvalidAddress);
            let shown = error.to_string();
            assert!(
                shown.contains(said) && shown.contains("HOST:PORT"),
                "{shown}"
            );
        }
    }

    #[test]
    fn only_addresses_of_this_machine_are_local() {
        let is_local = |text: &str| text.parse::<Address>().unwrap().is_local();
        for text in [
            "127.0.0.1:1",
            "127.9.0.1:1",
            "[::1]:1",
            "localhost:1",
            "unix:a",
        ] {
            assert!(is_local(text), "{text}");
        }
        for text in ["0.0.0.0:1", "[::]:1", "10.0.0.1:1", "example.org:1"] {
            assert!(!is_local(text), "{text}");
        }
    }
}
