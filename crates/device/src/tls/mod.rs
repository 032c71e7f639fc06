//! TLS around the connections of another network. Both sides show a certificate.
//!
//! [`TlsNetwork`] wraps a [`Network`]. The side that connects checks that the peer's certificate is
//! signed by the authority in [`TlsFiles::ca`] and has the name in the address. The side that
//! listens requires a certificate that is signed by that authority.
//!
//! Invariants:
//! - N1 to N4 of [`siltstone_storage::link`] hold.
//! - No byte of the caller is sent or returned before the peer's certificate has been checked.
//! - The handshake is done by the first call that sends or receives, within the deadline of that
//!   call. So a slow or hostile peer delays only the task of its own connection, never `accept`.
//! - Before the handshake is complete, a connection holds at most 4 KiB of input, the one message
//!   of at most 64 KiB that rustls assembles, and the answer to it.
//! - A connection that ends without the closing message of TLS is reported as
//!   [`LinkErrorKind::Closed`], never as [`Received::End`](siltstone_storage::link::Received::End).
//!
//! Only TLS 1.3 is supported. Sessions are not resumed, so each connection shows its certificate.
//!
//! Keys and signatures use the system's random source, so a simulated run over TLS does not send
//! the same bytes again for the same seed.
//!
//! Threading: as for other networks. The state of a connection is protected by one mutex of the
//! runtime, which is never held while a call of the wrapped connection waits.

mod connection;
mod explain;
mod files;
mod name;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::{ServerName, UnixTime};
use rustls::time_provider::TimeProvider;
use rustls::{ClientConfig, ClientConnection, ServerConfig, ServerConnection};
use siltstone_storage::link::{
    Address, Connection, LinkError, LinkErrorKind, LinkResult, Listener, Network,
};
use siltstone_storage::{Instant, Runtime};

use connection::TlsConnection;
pub use files::TlsError;

/// The files that TLS needs, all of them in the PEM format.
#[derive(Clone, Debug)]
pub struct TlsFiles {
    /// The certificates of the authorities that sign the certificates of peers.
    pub ca: PathBuf,
    /// The certificate of this process, followed by the certificates between it and the authority,
    /// if any.
    pub certificate: PathBuf,
    /// The private key of the certificate.
    pub key: PathBuf,
}

/// See the module.
pub struct TlsNetwork {
    runtime: Runtime,
    inner: Arc<dyn Network>,
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
    /// If true, Unix sockets are used without TLS. The permissions of the socket's file decide who
    /// may connect.
    leaves_unix_plain: bool,
}

impl TlsNetwork {
    /// Adds TLS to the connections of `inner`. The files are read now, and not again. Certificates
    /// are checked against the clock of this runtime.
    ///
    /// # Errors
    /// If a file cannot be read or does not contain what it must contain, or if the key belongs to
    /// another certificate.
    pub fn new(
        runtime: &Runtime,
        inner: Arc<dyn Network>,
        files: &TlsFiles,
    ) -> Result<TlsNetwork, TlsError> {
        let (client, server) = files::load(files, Arc::new(Clock(runtime.clone())))?;
        Ok(TlsNetwork {
            runtime: runtime.clone(),
            inner,
            client: Arc::new(client),
            server: Arc::new(server),
            leaves_unix_plain: false,
        })
    }

    /// The same network, but with Unix sockets that use no TLS.
    pub fn with_plain_unix(self) -> TlsNetwork {
        TlsNetwork {
            leaves_unix_plain: true,
            ..self
        }
    }

    fn is_plain(&self, address: &Address) -> bool {
        self.leaves_unix_plain && matches!(address, Address::Unix(_))
    }
}

/// The clock that decides whether a certificate is expired.
#[derive(Debug)]
struct Clock(Runtime);

impl TimeProvider for Clock {
    fn current_time(&self) -> Option<UnixTime> {
        let since_epoch = Duration::from_micros(self.0.unix_micros());
        Some(UnixTime::since_unix_epoch(since_epoch))
    }
}

/// The name that the peer's certificate must have at this address.
fn name_at(address: &Address) -> LinkResult<ServerName<'static>> {
    let name = match address {
        Address::Tcp { host, .. } => host,
        Address::Unix(_) => "localhost",
        Address::Memory(name) => name,
    };
    ServerName::try_from(name.to_string()).map_err(|_| {
        let detail = format!(
            "no certificate can have the name `{name}`; use a DNS name or an IP address without \
             a zone"
        );
        LinkError::new(
            LinkErrorKind::InvalidAddress,
            "connect to",
            address.to_string(),
            detail,
        )
    })
}

fn no_connection(op: &'static str, peer: String, error: &rustls::Error) -> LinkError {
    let detail = format!("TLS could not be set up: {error}");
    LinkError::new(LinkErrorKind::Io, op, peer, detail)
}

impl Network for TlsNetwork {
    fn connect(&self, address: &Address, deadline: Instant) -> LinkResult<Arc<dyn Connection>> {
        if self.is_plain(address) {
            return self.inner.connect(address, deadline);
        }
        let name = name_at(address)?;
        let tls = ClientConnection::new(Arc::clone(&self.client), name)
            .map_err(|error| no_connection("connect to", address.to_string(), &error))?;
        let inner = self.inner.connect(address, deadline)?;
        Ok(Arc::new(TlsConnection::new(
            &self.runtime,
            inner,
            tls.into(),
        )))
    }

    fn listen(&self, address: &Address) -> LinkResult<Arc<dyn Listener>> {
        if self.is_plain(address) {
            return self.inner.listen(address);
        }
        Ok(Arc::new(TlsListener {
            runtime: self.runtime.clone(),
            inner: self.inner.listen(address)?,
            config: Arc::clone(&self.server),
        }))
    }
}

struct TlsListener {
    runtime: Runtime,
    inner: Arc<dyn Listener>,
    config: Arc<ServerConfig>,
}

impl Listener for TlsListener {
    fn address(&self) -> Address {
        self.inner.address()
    }

    fn accept(&self, deadline: Instant) -> LinkResult<Option<Arc<dyn Connection>>> {
        let Some(inner) = self.inner.accept(deadline)? else {
            return Ok(None);
        };
        let tls = ServerConnection::new(Arc::clone(&self.config))
            .map_err(|error| no_connection("accept from", inner.peer(), &error))?;
        Ok(Some(Arc::new(TlsConnection::new(
            &self.runtime,
            inner,
            tls.into(),
        ))))
    }

    fn close(&self) {
        self.inner.close();
    }
}
