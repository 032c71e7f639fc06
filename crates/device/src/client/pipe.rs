//! One connection of a client. Requests on it are answered in the order in which they were sent.
//!
//! Invariants: answers arrive in the order of the requests, so a pipe only counts them. After an
//! error the pipe cannot be used any more.
//!
//! Threading: one owner. The receiving half can be taken out, so that another task can send at the
//! same time.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use siltstone_storage::link::Connection;
use siltstone_storage::{Instant, Runtime, StorageErrorKind};

use super::link_rate::LinkRate;
use super::purpose::{Awaited, LinkPurpose, Traffic};
use crate::frames::{ConnectionError, Frames, Next, Outgoing, send_frames};
use crate::wire::answer::WORKING;
use crate::wire::frame::{Label, flag};
use crate::wire::{Answer, Frame, Request, WireError};

/// How long a send may take. The server reads no request while it executes one, so this is long. A
/// dead connection is noticed while an answer is awaited.
const SEND_LIMIT: Duration = Duration::from_secs(60);

/// What all pipes of a client share.
pub(super) struct Vital {
    pub(super) runtime: Runtime,
    /// The address of the device, for messages.
    pub(super) address: String,
    /// How long a connection may be silent while an answer is due.
    pub(super) silence: Duration,
    /// When a byte from the device last arrived.
    pub(super) last_heard_ns: AtomicU64,
    /// When the session ends at the latest, once its end has begun. From then on nobody waits for
    /// an answer, even if the device says that it is working.
    pub(super) ends_ns: AtomicU64,
    /// The bytes of the session, by purpose.
    pub(super) traffic: Arc<Traffic>,
    /// Appends that were joined to earlier ones.
    pub(super) joined_count: AtomicU64,
    /// Bytes that were read ahead.
    pub(super) ahead_bytes: AtomicU64,
    /// Objects that were opened through a descriptor that the device passed.
    pub(super) passed_count: AtomicU64,
    pub(super) rate: LinkRate,
}

impl Vital {
    pub(super) fn heard(&self) {
        let now = self.runtime.now().as_nanos();
        self.last_heard_ns.fetch_max(now, Ordering::Relaxed);
    }

    /// When the session ends at the latest.
    pub(super) fn ends(&self) -> Instant {
        Instant::from_nanos(self.ends_ns.load(Ordering::Relaxed))
    }
}

/// The receiving half of a pipe.
pub(super) struct Receiver {
    frames: Frames,
    vital: Arc<Vital>,
    last_answer: u64,
    awaited: Arc<Awaited>,
}

impl Receiver {
    /// Waits for the next answer. The frame has the bulk bytes of the answer.
    pub(super) fn receive(&mut self) -> Result<(Answer, Frame), ConnectionError> {
        let begun = self.vital.runtime.now();
        loop {
            let (now, ends) = (self.vital.runtime.now(), self.vital.ends());
            if now >= ends {
                return Err(ConnectionError::Silent);
            }
            let deadline = (now + self.vital.silence).min(ends);
            match self.frames.next(deadline)? {
                Next::Nothing => return Err(ConnectionError::Silent),
                Next::Piece => self.vital.heard(),
                Next::Frame(frame) => {
                    let took = self.vital.runtime.now().since(begun);
                    let len = frame.header.body_len() + crate::wire::frame::HEADER_BYTES;
                    self.vital.rate.note(len as u64, took);
                    if let Some(answer) = self.answer_of(frame)? {
                        return Ok(answer);
                    }
                }
            }
        }
    }

    /// Ends the connection.
    pub(super) fn close(&self) {
        self.frames.close();
    }

    /// Returns the next answer, if it has already arrived. If only a part has arrived, that is
    /// received.
    pub(super) fn receive_now(&mut self) -> Result<Option<(Answer, Frame)>, ConnectionError> {
        loop {
            match self.frames.next(self.vital.runtime.now())? {
                Next::Nothing => return Ok(None),
                Next::Piece => self.vital.heard(),
                Next::Frame(frame) => {
                    if let Some(answer) = self.answer_of(frame)? {
                        return Ok(Some(answer));
                    }
                }
            }
        }
    }

    /// Decodes the answer in a frame. Returns `None` for a sign of life.
    fn answer_of(&mut self, frame: Frame) -> Result<Option<(Answer, Frame)>, ConnectionError> {
        self.vital.heard();
        let len = frame.header.body_len() + crate::wire::frame::HEADER_BYTES;
        self.vital.traffic.received(self.awaited.get(), len);
        if frame.header.kind == WORKING {
            return Ok(None);
        }
        self.last_answer += 1;
        if frame.header.number != self.last_answer {
            let found = frame.header.number;
            return Err(WireError::Order(self.last_answer, found).into());
        }
        let answer = Answer::decode(frame.header.kind, frame.fields());
        let mut answer = answer.map_err(WireError::from)?;
        if let Answer::Failed(error) = &mut answer {
            // Without this, a full disk, for example, could be taken for one of this machine.
            error.detail += &format!(", on the device at {}", self.vital.address);
            if error.kind == StorageErrorKind::TooManyOpen {
                // The general advice is about a process, which is not this one here.
                error.detail += ", which has reached its own limit";
            }
        }
        Ok(Some((answer, frame)))
    }

    /// The descriptor that was passed along with this frame. The system may have had no free
    /// descriptor to receive it.
    pub(super) fn descriptor_of(&self, frame: &Frame) -> Passed {
        // A descriptor that arrived with another frame is not used.
        let passed = self.frames.take_descriptor();
        match frame.header.flags & flag::DESCRIPTOR != 0 {
            true => passed.map_or(Passed::Lost, Passed::Descriptor),
            false => Passed::Nothing,
        }
    }
}

/// Whether a descriptor was passed along with a frame.
pub(super) enum Passed {
    /// None was passed.
    Nothing,
    /// This descriptor was passed.
    Descriptor(OwnedFd),
    /// A descriptor was passed, but could not be received.
    Lost,
}

/// See the module.
pub(super) struct Pipe {
    connection: Arc<dyn Connection>,
    vital: Arc<Vital>,
    /// When the connection was made.
    pub(super) connected: Instant,
    /// The state of the server in which the session was when it connected.
    pub(super) state: [u8; 16],
    last_sent: u64,
    awaited: Arc<Awaited>,
    /// The purpose of the bytes of the object that the pipe is used for now.
    pub(super) object: LinkPurpose,
    /// `None` while a task receives with it.
    pub(super) receiver: Option<Receiver>,
}

impl Pipe {
    pub(super) fn new(
        connection: Arc<dyn Connection>,
        vital: &Arc<Vital>,
        state: [u8; 16],
    ) -> Pipe {
        let awaited: Arc<Awaited> = Arc::default();
        let receiver = Receiver {
            awaited: Arc::clone(&awaited),
            frames: Frames::new(Arc::clone(&connection)),
            vital: Arc::clone(vital),
            last_answer: 0,
        };
        Pipe {
            connected: vital.runtime.now(),
            connection,
            vital: Arc::clone(vital),
            state,
            last_sent: 0,
            awaited,
            object: LinkPurpose::Other,
            receiver: Some(receiver),
        }
    }

    /// Sends a request.
    pub(super) fn send(
        &mut self,
        request: &Request,
        bulk: &[&[u8]],
    ) -> Result<(), ConnectionError> {
        self.send_all(&[(request, bulk)])
    }

    /// Sends requests, one after the other, with one call of the link.
    pub(super) fn send_all(
        &mut self,
        requests: &[(&Request, &[&[u8]])],
    ) -> Result<(), ConnectionError> {
        let mut frames = Vec::with_capacity(requests.len());
        for (request, bulk) in requests {
            self.last_sent += 1;
            let label = Label {
                number: self.last_sent,
                kind: request.kind(),
                ..Label::default()
            };
            let frame = Outgoing::new(label, request.encode(), bulk);
            let purpose = LinkPurpose::of(request, self.object);
            self.awaited.set(purpose);
            self.vital.traffic.sent(purpose, frame.len());
            frames.push(frame);
        }
        let deadline = (self.vital.runtime.now() + SEND_LIMIT).min(self.vital.ends());
        send_frames(&*self.connection, &frames, deadline)
    }

    /// Whether a request of a few tens of KiB could probably be sent without waiting.
    pub(super) fn has_room(&self) -> bool {
        self.connection.has_room()
    }

    /// Sends a request and waits for its answer. All earlier requests must be answered.
    pub(super) fn exchange(
        &mut self,
        request: &Request,
        bulk: &[&[u8]],
    ) -> Result<(Answer, Frame), ConnectionError> {
        self.send(request, bulk)?;
        self.receive()
    }

    /// Waits for the next answer.
    pub(super) fn receive(&mut self) -> Result<(Answer, Frame), ConnectionError> {
        let receiver = self.receiver.as_mut();
        receiver.expect("nobody else receives").receive()
    }

    /// The next answer, if it has already arrived.
    pub(super) fn receive_now(&mut self) -> Result<Option<(Answer, Frame)>, ConnectionError> {
        let receiver = self.receiver.as_mut();
        receiver.expect("nobody else receives").receive_now()
    }

    /// Whether descriptors can be passed along with frames.
    pub(super) fn passes_descriptors(&self) -> bool {
        self.connection.passes_descriptors()
    }

    /// The descriptor that was passed along with this frame.
    pub(super) fn descriptor_of(&self, frame: &Frame) -> Passed {
        let receiver = self.receiver.as_ref();
        receiver.map_or(Passed::Nothing, |receiver| receiver.descriptor_of(frame))
    }

    /// Closes the connection, and wakes a task that receives.
    pub(super) fn close(&self) {
        self.connection.close();
    }
}
