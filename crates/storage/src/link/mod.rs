//! Links: connections that carry bytes between processes.
//!
//! A [`Network`] connects to an [`Address`] and listens on one. A [`Connection`] carries bytes in
//! both directions, in order and without gaps, until it ends. It does not tell whether the peer
//! received what was sent: only an answer of the peer does.
//!
//! Invariants that every implementation keeps:
//! - **N1** Every call that waits has a deadline, and returns soon after the deadline at the
//!   latest.
//! - **N2** What [`Connection::receive`] returns is a prefix of what the peer sent, in the same
//!   order.
//! - **N3** After [`Connection::close`], calls of both sides fail or report the end, including
//!   calls that are already waiting. The peer may still receive what was sent before.
//! - **N4** After a failed call the connection is over: later calls fail too.
//!
//! A connection within one machine may pass a descriptor of an open file along with bytes. The
//! receiver of these bytes gets the descriptor with [`Connection::take_descriptor`]. Nothing is
//! known about it, because the peer may have passed any descriptor.
//!
//! [`SocketNetwork`] uses the sockets of the operating system. [`MemoryNetwork`] is for tests and
//! simulated runs, and fails when it is told to.
//!
//! Threading: all types are shared. A connection has one sender and one receiver at a time, which
//! may be two tasks; the caller ensures this. Any task may call [`Connection::close`].

mod address;
mod descriptors;
mod memory;
mod sockets;

pub use address::Address;
pub use memory::{LinkFaults, MemoryNetwork};
pub use sockets::SocketNetwork;
use std::fmt;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use crate::runtime::Instant;

/// The result of a call of a link.
pub type LinkResult<T> = std::result::Result<T, LinkError>;

/// The kind of a failure of a link. Callers decide by the kind, never by the text of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LinkErrorKind {
    /// Nobody listens at the address, or it cannot be reached.
    Refused,
    /// The deadline passed.
    TimedOut,
    /// The connection is over: one of the sides closed it, it was cut, or the peer's process ended.
    Closed,
    /// Somebody else already listens at the address.
    AddressInUse,
    /// The text is not a valid address, or this network does not support such addresses.
    InvalidAddress,
    /// Permissions are missing.
    PermissionDenied,
    /// No file handle is free. The call may be repeated after other files have been closed.
    TooManyOpen,
    /// Any other error.
    Io,
}

/// A failed call of a link: what was tried, with which peer, the kind of the failure, and details.
#[derive(Clone, Debug)]
pub struct LinkError {
    /// The kind of the failure.
    pub kind: LinkErrorKind,
    /// The operation, for example `connect` or `receive`.
    pub op: &'static str,
    /// The address of the other side, or the address to listen on.
    pub peer: String,
    /// Details, for example the operating system's message.
    pub detail: String,
}

impl LinkError {
    /// An error of kind `kind` for the operation `op` with `peer`.
    pub fn new(
        kind: LinkErrorKind,
        op: &'static str,
        peer: impl Into<String>,
        detail: impl Into<String>,
    ) -> LinkError {
        LinkError {
            kind,
            op,
            peer: peer.into(),
            detail: detail.into(),
        }
    }

    /// Classifies an error of the operating system.
    pub fn from_io(op: &'static str, peer: impl Into<String>, error: &std::io::Error) -> LinkError {
        use std::io::ErrorKind as Io;
        let kind = match error.kind() {
            Io::ConnectionRefused
            | Io::NotFound
            | Io::HostUnreachable
            | Io::NetworkUnreachable
            | Io::NetworkDown
            | Io::AddrNotAvailable => LinkErrorKind::Refused,
            Io::TimedOut | Io::WouldBlock => LinkErrorKind::TimedOut,
            Io::ConnectionReset
            | Io::ConnectionAborted
            | Io::BrokenPipe
            | Io::NotConnected
            | Io::UnexpectedEof => LinkErrorKind::Closed,
            Io::AddrInUse => LinkErrorKind::AddressInUse,
            Io::InvalidInput => LinkErrorKind::InvalidAddress,
            Io::PermissionDenied => LinkErrorKind::PermissionDenied,
            _ if crate::error::is_too_many_open(error) => LinkErrorKind::TooManyOpen,
            _ => LinkErrorKind::Io,
        };
        LinkError::new(kind, op, peer, error.to_string())
    }

    pub(crate) fn timed_out(op: &'static str, peer: &str) -> LinkError {
        LinkError::new(
            LinkErrorKind::TimedOut,
            op,
            peer,
            "it was not done by its deadline",
        )
    }

    pub(crate) fn closed(op: &'static str, peer: &str) -> LinkError {
        LinkError::new(LinkErrorKind::Closed, op, peer, "the connection is over")
    }
}

impl fmt::Display for LinkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}: {}", self.op, self.peer, self.detail)
    }
}

impl std::error::Error for LinkError {}

/// The result of one call of [`Connection::receive`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    /// This many bytes, at least one.
    Bytes(usize),
    /// The peer closed the connection, and everything that it had sent was received.
    End,
    /// Nothing arrived by the deadline. The connection can still be used.
    Nothing,
}

/// Connects to listeners, and creates them.
pub trait Network: Send + Sync {
    /// Connects to a listener.
    ///
    /// # Errors
    /// [`LinkErrorKind::Refused`] if nobody listens there, and other errors of [`LinkError`].
    fn connect(&self, address: &Address, deadline: Instant) -> LinkResult<Arc<dyn Connection>>;

    /// Listens at an address. A port of 0 is replaced by a free one, which [`Listener::address`]
    /// returns.
    ///
    /// # Errors
    /// [`LinkErrorKind::AddressInUse`] if somebody listens there, and other errors of
    /// [`LinkError`].
    fn listen(&self, address: &Address) -> LinkResult<Arc<dyn Listener>>;
}

/// Accepts connections. Dropping the last reference ends the listener.
pub trait Listener: Send + Sync {
    /// The address to which peers connect.
    fn address(&self) -> Address;

    /// The next connection, or `None` if none arrived by the deadline.
    ///
    /// # Errors
    /// [`LinkErrorKind::Closed`] after [`Listener::close`], and other errors of [`LinkError`].
    /// After [`LinkErrorKind::TooManyOpen`] the listener still works.
    fn accept(&self, deadline: Instant) -> LinkResult<Option<Arc<dyn Connection>>>;

    /// Ends the listener. Connections that were accepted remain open.
    fn close(&self);
}

/// A connection to a peer. See the module for the invariants.
pub trait Connection: Send + Sync {
    /// The peer, for messages.
    fn peer(&self) -> String;

    /// Whether both sides are on this machine, so that nobody else can read or change the bytes.
    fn is_local(&self) -> bool;

    /// The name that the peer has proved with a certificate. `None` if connections of this network
    /// have no certificates, or before the first bytes were sent or received.
    fn certified_name(&self) -> Option<String> {
        None
    }

    /// The SHA-256 hash of the certificate that the peer has proved to have. `None` in the same
    /// cases as for [`Connection::certified_name`]. A certificate may have a hash and no name.
    fn certificate_hash(&self) -> Option<[u8; 32]> {
        None
    }

    /// Sends all of `parts`, in order. Returns when the bytes are on their way. It is not known
    /// whether they arrive.
    ///
    /// # Errors
    /// [`LinkError`]. A part of the bytes may have been sent, so the connection is over.
    fn send(&self, parts: &[&[u8]], deadline: Instant) -> LinkResult<()>;

    /// Whether a send of a few tens of KiB would probably not wait now. True if this is not known.
    fn has_room(&self) -> bool {
        true
    }

    /// Whether descriptors of open files can be passed.
    fn passes_descriptors(&self) -> bool {
        false
    }

    /// As [`Connection::send`], and passes a descriptor along with the first byte.
    ///
    /// # Errors
    /// [`LinkError`], also if the connection passes no descriptors. In that case nothing was sent,
    /// and the connection can still be used.
    fn send_with_descriptor(
        &self,
        parts: &[&[u8]],
        descriptor: BorrowedFd<'_>,
        deadline: Instant,
    ) -> LinkResult<()> {
        let _ = (parts, descriptor, deadline);
        let detail = "descriptors cannot be passed on this connection";
        let kind = LinkErrorKind::Io;
        Err(LinkError::new(kind, "send to", self.peer(), detail))
    }

    /// Takes the descriptor that was last passed along with bytes that were received. At most one
    /// is kept until it is taken. If the peer passes more, the older ones are closed.
    fn take_descriptor(&self) -> Option<OwnedFd> {
        None
    }

    /// Receives at most `buf.len()` bytes, and waits for the first one.
    ///
    /// # Errors
    /// [`LinkError`]. It is not an error if nothing arrives in time.
    fn receive(&self, buf: &mut [u8], deadline: Instant) -> LinkResult<Received>;

    /// Ends the connection for both sides, and wakes waiting calls.
    fn close(&self);
}
