//! Links: connections that carry bytes between processes.
//!
//! A [`Network`] connects to an [`Address`] and listens on one. A [`Connection`] carries bytes in
//! both directions, in order and without gaps, until it ends. It does not say whether the peer got
//! what was sent: only an answer of the peer does.
//!
//! Invariants that every implementation keeps:
//! - **N1** Every call that waits has a deadline, and returns soon after it at the latest.
//! - **N2** What [`Connection::receive`] returns is a prefix of what the peer sent, in its order.
//! - **N3** After [`Connection::close`], calls of both sides fail or report the end, and so do
//!   calls that wait already. The peer may still receive what was sent before.
//! - **N4** After a failed call the connection is over: later calls fail too.
//!
//! A connection within one machine may pass a descriptor of an open file along with bytes. Whoever
//! receives these bytes finds it in [`Connection::take_descriptor`], and nothing is known of it:
//! the peer may have passed anything.
//!
//! [`SocketNetwork`] has the sockets of the operating system. [`MemoryNetwork`] is part of a test
//! or of a simulated run, and fails as it is told.
//!
//! Threading: all types are shared. A connection has one sender and one receiver at a time, which
//! the caller ensures; they may be two tasks. [`Connection::close`] may be called by any task.

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

/// Result of a call of a link.
pub type LinkResult<T> = std::result::Result<T, LinkError>;

/// The class of a failure of a link. Callers decide by it, never by the text of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LinkErrorKind {
    /// Nobody listens at the address, or it cannot be reached.
    Refused,
    /// The deadline passed.
    TimedOut,
    /// The connection is over: one of the sides closed it, it was cut, or the peer's process ended.
    Closed,
    /// Somebody listens at the address already.
    AddressInUse,
    /// The text is no address, or this network has no such addresses.
    InvalidAddress,
    /// Permissions are missing.
    PermissionDenied,
    /// No file handle is free. The call may be repeated after other files have been closed.
    TooManyOpen,
    /// Any other error.
    Io,
}

/// A failed call of a link: what was tried, with whom, the class, and details.
#[derive(Clone, Debug)]
pub struct LinkError {
    /// The class of the failure.
    pub kind: LinkErrorKind,
    /// The operation, for example `connect` or `receive`.
    pub op: &'static str,
    /// The address of the other side, or the one that was to be listened on.
    pub peer: String,
    /// Details, for example the operating system's message.
    pub detail: String,
}

impl LinkError {
    /// An error of class `kind` for the operation `op` with `peer`.
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

/// What one call of [`Connection::receive`] got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    /// This many bytes, at least one.
    Bytes(usize),
    /// The peer closed the connection, and everything that it had sent was received.
    End,
    /// Nothing came by the deadline. The connection stands as before.
    Nothing,
}

/// Connects and listens.
pub trait Network: Send + Sync {
    /// Connects to a listener.
    ///
    /// # Errors
    /// [`LinkErrorKind::Refused`] if nobody listens there, and others of [`LinkError`].
    fn connect(&self, address: &Address, deadline: Instant) -> LinkResult<Arc<dyn Connection>>;

    /// Listens at an address. A port of 0 is replaced by a free one; [`Listener::address`] has it.
    ///
    /// # Errors
    /// [`LinkErrorKind::AddressInUse`] if somebody listens there, and others of [`LinkError`].
    fn listen(&self, address: &Address) -> LinkResult<Arc<dyn Listener>>;
}

/// Accepts connections. Dropping the last reference ends it.
pub trait Listener: Send + Sync {
    /// The address to which peers connect.
    fn address(&self) -> Address;

    /// The next connection, or `None` if none came by the deadline.
    ///
    /// # Errors
    /// [`LinkErrorKind::Closed`] after [`Listener::close`], and others of [`LinkError`]. After
    /// [`LinkErrorKind::TooManyOpen`] the listener still works.
    fn accept(&self, deadline: Instant) -> LinkResult<Option<Arc<dyn Connection>>>;

    /// Ends the listener. Connections that were accepted stay.
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

    /// The SHA-256 hash of the certificate that the peer has proved to have. `None` as for
    /// [`Connection::certified_name`]; a certificate may have a hash and no name.
    fn certificate_hash(&self) -> Option<[u8; 32]> {
        None
    }

    /// Sends all of `parts`, in order. Returns when the bytes are on their way; whether they arrive
    /// is not known.
    ///
    /// # Errors
    /// [`LinkError`]. A part of the bytes may have been sent, so the connection is over.
    fn send(&self, parts: &[&[u8]], deadline: Instant) -> LinkResult<()>;

    /// Whether a send of a few tens of KiB would probably not wait now. True if that is not known.
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
    /// [`LinkError`], also if the connection passes no descriptors.
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

    /// Takes the descriptor that was passed last along with bytes that were received. At most one
    /// is kept until it is taken; a peer that passes more loses the older ones.
    fn take_descriptor(&self) -> Option<OwnedFd> {
        None
    }

    /// Receives at most `buf.len()` bytes, and waits for the first one.
    ///
    /// # Errors
    /// [`LinkError`]. That nothing came in time is no error.
    fn receive(&self, buf: &mut [u8], deadline: Instant) -> LinkResult<Received>;

    /// Ends the connection for both sides, and wakes calls that wait.
    fn close(&self);
}
