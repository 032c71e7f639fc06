//! Hellos and frames on a connection, for both sides.
//!
//! Invariants: a [`Frames`] gives frames in the order in which the peer sent them. After an error
//! the connection is closed.
//!
//! Threading: one task receives from a connection, and one at a time sends.

use std::sync::Arc;

use std::os::fd::{BorrowedFd, OwnedFd};

use siltstone_storage::link::{Connection, LinkError, Received};
use siltstone_storage::{Instant, StorageError};

use crate::wire::frame::{HEADER_BYTES, Label, flag, header_of};
use crate::wire::hello::{HELLO_HEAD_BYTES, hello_len};
use crate::wire::{Frame, FrameReader, WireError};

/// Why a connection cannot be used any more.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ConnectionError {
    /// The link failed.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// The peer broke the protocol.
    #[error(transparent)]
    Wire(#[from] WireError),
    /// The peer refused something that the connection needs.
    #[error("the device refused: {0}")]
    Refused(StorageError),
    /// The peer closed the connection.
    #[error("the peer closed the connection")]
    End,
    /// The peer was silent for longer than it is allowed to be.
    #[error("no byte came from the peer in time")]
    Silent,
}

/// The result of [`Frames::next`].
#[derive(Debug)]
pub(crate) enum Next {
    /// A frame.
    Frame(Frame),
    /// Some bytes of a frame that is not complete yet.
    Piece,
    /// Nothing came by the deadline.
    Nothing,
}

/// The frames that arrive on a connection.
pub(crate) struct Frames {
    connection: Arc<dyn Connection>,
    reader: FrameReader,
}

impl Frames {
    pub(crate) fn new(connection: Arc<dyn Connection>) -> Frames {
        let reader = FrameReader::new();
        Frames { connection, reader }
    }

    /// Returns the next frame. If it is not complete by the deadline, says whether any bytes
    /// arrived.
    pub(crate) fn next(&mut self, deadline: Instant) -> Result<Next, ConnectionError> {
        let next = self.try_next(deadline);
        if next.is_err() {
            self.connection.close();
        }
        next
    }

    fn try_next(&mut self, deadline: Instant) -> Result<Next, ConnectionError> {
        if let Some(frame) = self.reader.next_frame().map_err(WireError::from)? {
            return Ok(Next::Frame(frame));
        }
        match self.connection.receive(self.reader.space(), deadline)? {
            Received::Nothing => return Ok(Next::Nothing),
            Received::End => return Err(ConnectionError::End),
            Received::Bytes(len) => self.reader.filled(len).map_err(WireError::from)?,
        }
        Ok(match self.reader.next_frame().map_err(WireError::from)? {
            Some(frame) => Next::Frame(frame),
            None => Next::Piece,
        })
    }

    /// Ends the connection.
    pub(crate) fn close(&self) {
        self.connection.close();
    }

    /// The descriptor that was passed along with a frame.
    pub(crate) fn take_descriptor(&self) -> Option<OwnedFd> {
        self.connection.take_descriptor()
    }

    /// Whether a part of a frame has been received.
    pub(crate) fn is_within_frame(&self) -> bool {
        self.reader.is_within_frame()
    }
}

/// A frame to be sent.
pub(crate) struct Outgoing<'a> {
    header: [u8; HEADER_BYTES],
    fields: Vec<u8>,
    bulk: &'a [&'a [u8]],
}

impl<'a> Outgoing<'a> {
    pub(crate) fn new(label: Label, fields: Vec<u8>, bulk: &'a [&'a [u8]]) -> Outgoing<'a> {
        Outgoing {
            header: header_of(label, &fields, bulk).encode(),
            fields,
            bulk,
        }
    }

    /// The length of the frame on the link, in bytes.
    pub(crate) fn len(&self) -> usize {
        let bulk: usize = self.bulk.iter().map(|part| part.len()).sum();
        HEADER_BYTES + self.fields.len() + bulk
    }
}

/// Sends frames, one after the other, with one call of the link.
pub(crate) fn send_frames(
    connection: &dyn Connection,
    frames: &[Outgoing<'_>],
    deadline: Instant,
) -> Result<(), ConnectionError> {
    let mut parts = Vec::with_capacity(3 * frames.len());
    for frame in frames {
        parts.push(&frame.header[..]);
        parts.push(&frame.fields);
        parts.extend_from_slice(frame.bulk);
    }
    connection.send(&parts, deadline).map_err(|error| {
        connection.close();
        error.into()
    })
}

/// Sends a frame.
pub(crate) fn send_frame(
    connection: &dyn Connection,
    label: Label,
    fields: Vec<u8>,
    bulk: &[&[u8]],
    deadline: Instant,
) -> Result<(), ConnectionError> {
    send_frames(connection, &[Outgoing::new(label, fields, bulk)], deadline)
}

/// Sends a frame without bulk bytes, and passes a descriptor along with it.
pub(crate) fn send_with_descriptor(
    connection: &dyn Connection,
    label: Label,
    fields: Vec<u8>,
    descriptor: BorrowedFd<'_>,
    deadline: Instant,
) -> Result<(), ConnectionError> {
    let label = Label {
        flags: label.flags | flag::DESCRIPTOR,
        ..label
    };
    let frame = Outgoing::new(label, fields, &[]);
    let parts = [&frame.header[..], &frame.fields];
    let sent = connection.send_with_descriptor(&parts, descriptor, deadline);
    sent.map_err(|error| {
        connection.close();
        error.into()
    })
}

/// The first bytes of the answer with which a TLS peer refuses a connection that does not use TLS.
const TLS_ALERT: [u8; 2] = [0x15, 0x03];

/// Receives the peer's hello.
pub(crate) fn receive_hello(
    connection: &dyn Connection,
    deadline: Instant,
) -> Result<Vec<u8>, ConnectionError> {
    let mut hello = vec![0; HELLO_HEAD_BYTES];
    let filled = fill(connection, &mut hello, 0, deadline);
    if hello.starts_with(&TLS_ALERT) {
        return Err(WireError::Tls.into());
    }
    filled?;
    let head = hello.first_chunk().expect("its size was just set");
    let len = hello_len(head)?;
    hello.resize(len, 0);
    fill(connection, &mut hello, HELLO_HEAD_BYTES, deadline)?;
    Ok(hello)
}

fn fill(
    connection: &dyn Connection,
    buf: &mut [u8],
    from: usize,
    deadline: Instant,
) -> Result<(), ConnectionError> {
    let mut at = from;
    while at < buf.len() {
        match connection.receive(&mut buf[at..], deadline)? {
            Received::Bytes(len) => at += len,
            Received::End => return Err(ConnectionError::End),
            Received::Nothing => return Err(ConnectionError::Silent),
        }
    }
    Ok(())
}
