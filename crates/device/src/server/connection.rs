//! One connection of a server: a hello, and then requests and answers, in order.
//!
//! Invariants: requests are executed one after the other, and answered in their order. While a
//! request is executed, or received in pieces, the client gets a frame `working` each second. Until
//! its hello is accepted, a peer can make the server keep only the bytes of one hello and, with
//! TLS, of one message of the handshake, and it has five seconds.
//!
//! Threading: one task for each connection. The clock task sends `working` with
//! [`Served::tell_working`] while a request is executed.

use std::sync::Arc;
use std::time::Duration;

use siltstone_storage::link::{Connection, LinkErrorKind};
use siltstone_storage::{Instant, JoinHandle, Mutex, Runtime, StorageErrorKind, planted};

use super::Inner;
use super::access::Peer;
use super::requests::{Executed, execute};
use crate::frames::{
    ConnectionError, Frames, Next, receive_hello, send_frame, send_with_descriptor,
};
use crate::wire::answer::WORKING;
use crate::wire::frame::Label;
use crate::wire::hello::{ClientHello, Refusal, ServerHello, Welcome, capability};
use crate::wire::{Answer, Request, WireError};

/// How long a new connection may take to say hello.
const HELLO_LIMIT: Duration = Duration::from_secs(5);

/// How long a client may take to receive an answer before the connection ends.
const SEND_LIMIT: Duration = Duration::from_secs(30);

/// How often a task that waits for a request checks whether the server is stopping.
const LOOK: Duration = Duration::from_secs(1);

/// The interval of the frames that tell a waiting client that the server works.
const WORKING_INTERVAL: Duration = Duration::from_secs(1);

/// What the connection's task does now.
enum Phase {
    /// It waits for a request, or sends an answer.
    Other,
    /// It has been executing a request since this time.
    Executing(Instant),
}

/// What is known about a peer.
#[derive(Clone, Copy)]
enum Who {
    /// It has not said hello yet.
    Greeting,
    /// The server cut it off before it said hello.
    CutOff,
    /// It has said hello, and showed this certificate, if any.
    Known(Option<[u8; 32]>),
}

/// See the module.
pub(super) struct Served {
    /// The connection's number. Later connections have larger numbers.
    pub(super) id: u64,
    connection: Arc<dyn Connection>,
    who: Mutex<Who>,
    phase: Mutex<Phase>,
    task: Mutex<Option<JoinHandle<()>>>,
}

impl Served {
    pub(super) fn new(runtime: &Runtime, id: u64, connection: Arc<dyn Connection>) -> Served {
        Served {
            id,
            connection,
            who: runtime.mutex(Who::Greeting),
            phase: runtime.mutex(Phase::Other),
            task: runtime.mutex(None),
        }
    }

    pub(super) fn close(&self) {
        self.connection.close();
    }

    /// Whether the peer has not said hello yet.
    pub(super) fn is_greeting(&self) -> bool {
        matches!(*self.who.lock(), Who::Greeting)
    }

    /// Whether the peer has said hello.
    fn is_known(&self) -> bool {
        matches!(*self.who.lock(), Who::Known(_))
    }

    /// Notes that the peer took too long to say hello. The caller closes the connection.
    pub(super) fn give_up(&self) {
        *self.who.lock() = Who::CutOff;
    }

    /// Notes that the peer said hello.
    pub(super) fn greeted(&self, certificate: Option<[u8; 32]>) {
        *self.who.lock() = Who::Known(certificate);
    }

    /// The certificate of a peer that said hello.
    pub(super) fn certificate(&self) -> Option<[u8; 32]> {
        match *self.who.lock() {
            Who::Known(certificate) => certificate,
            Who::Greeting | Who::CutOff => None,
        }
    }

    /// Waits for the end of the connection's task.
    pub(super) fn join(&self) {
        let task = self.task.lock().take();
        if let Some(task) = task {
            let _ = task.join();
        }
    }

    /// Tells the client that the server works on its request, if the server has been executing it
    /// for a while. If the client has not read what was sent before, nothing is sent, because
    /// sending could block.
    pub(super) fn tell_working(&self, now: Instant) {
        // The connection's task takes this lock before it sends its answer.
        let phase = self.phase.lock();
        if let Phase::Executing(since) = &*phase
            && now.since(*since) >= WORKING_INTERVAL / 2
            && self.connection.has_room()
        {
            send_working(&*self.connection, now + WORKING_INTERVAL / 10);
        }
    }
}

fn send_working(connection: &dyn Connection, deadline: Instant) {
    let label = Label {
        kind: WORKING,
        ..Label::default()
    };
    // If this fails, the connection's task will notice it.
    let _ = send_frame(connection, label, Vec::new(), &[], deadline);
}

/// Ends the connection if its task panics. Otherwise the clock task would go on to tell the host
/// that the server works on its request, and the host would wait for ever.
struct EndOnPanic<'a>(&'a Inner, &'a Served);

impl Drop for EndOnPanic<'_> {
    fn drop(&mut self) {
        // A panic ends a simulated run, and so does the end of a simulated process.
        if std::thread::panicking() && !self.0.runtime.is_simulated() {
            tracing::error!("the task of a connection panicked");
            self.1.close();
            self.0.forget_connection(self.1.id);
        }
    }
}

/// Starts the task of a connection.
pub(super) fn start(inner: &Arc<Inner>, served: &Arc<Served>) {
    let (task_inner, task_served) = (Arc::clone(inner), Arc::clone(served));
    let run = move || {
        let _guard = EndOnPanic(&task_inner, &task_served);
        let peer = || task_served.connection.peer();
        match serve(&task_inner, &task_served) {
            Ok(()) | Err(ConnectionError::End) => {}
            Err(ConnectionError::Link(error)) => {
                // One of the two sides has refused the certificate of the other.
                let is_refusal = error.kind == LinkErrorKind::PermissionDenied;
                if is_refusal && !task_served.is_known() {
                    task_inner.note_refused(peer(), None, error.detail);
                }
            }
            Err(error) => {
                let peer = peer();
                tracing::warn!(peer, %error, "a connection was ended");
                // A peer that says nothing is more likely a port scan than a host.
                if !task_served.is_known() && !matches!(error, ConnectionError::Silent) {
                    task_inner.note_refused(peer, None, error.to_string());
                }
            }
        }
        task_served.close();
        task_inner.forget_connection(task_served.id);
    };
    match inner.runtime.spawn("connection", run) {
        Ok(task) => *served.task.lock() = Some(task),
        Err(error) => {
            tracing::warn!(%error, "a connection could not be served");
            served.close();
            inner.forget_connection(served.id);
        }
    }
}

fn serve(inner: &Arc<Inner>, served: &Served) -> Result<(), ConnectionError> {
    let runtime = &inner.runtime;
    let connection = &served.connection;
    let hello = receive_hello(&**connection, runtime.now() + HELLO_LIMIT)?;
    let answer = |hello: ServerHello, version| {
        let bytes = hello.encode(version);
        connection.send(&[&bytes], runtime.now() + HELLO_LIMIT)
    };
    let (version, hello) = match ClientHello::decode(&hello) {
        Ok(decoded) => decoded,
        Err(error @ WireError::Version { .. }) => {
            let refusal = Refusal {
                kind: StorageErrorKind::Unsupported,
                reason: "there is no common version of the protocol".into(),
            };
            // The host may not read the answer.
            let _ = answer(ServerHello::Refused(refusal), 0);
            return Err(error.into());
        }
        Err(error) => return Err(error.into()),
    };
    let peer = Peer {
        certificate: connection.certificate_hash(),
        name: connection.certified_name(),
        is_local: connection.is_local(),
    };
    let attached = inner
        .admit(served, &peer)
        .and_then(|()| inner.attach(&hello, &peer));
    let session = match attached {
        Ok(session) => session,
        // The host tries again, as with a device that has ended.
        Err(_) if inner.is_stopping() => return Ok(()),
        Err(refusal) => {
            match refusal.kind {
                // Hosts also ask for folders to find out whether they exist.
                StorageErrorKind::NotFound => inner.note_missing(&hello),
                _ => {
                    let reason = refusal.reason.clone();
                    inner.note_refused(connection.peer(), Some(&hello.host), reason);
                }
            }
            answer(ServerHello::Refused(refusal), version)?;
            return Ok(());
        }
    };
    let _connected = session.connected();
    session.heard();
    let options = &inner.options;
    let welcome = Welcome {
        state: session.id,
        boot: inner.boot(),
        device: inner.device,
        name: options.name.clone(),
        slots: (options.slots, options.parallelism),
        open_objects_max: options.open_objects_max,
        keep_bytes: options.keep_bytes,
        capabilities: capability::FINISHED,
    };
    let passes_descriptors = connection.passes_descriptors();
    answer(ServerHello::Welcome(welcome), version)?;
    let mut frames = Frames::new(Arc::clone(connection));
    let mut last_number = 0;
    let mut told = runtime.now();
    loop {
        let next = frames.next(runtime.now() + LOOK)?;
        let now = runtime.now();
        let frame = match next {
            Next::Frame(frame) => frame,
            Next::Piece => {
                session.heard();
                if now.since(told) >= WORKING_INTERVAL && frames.is_within_frame() {
                    send_working(&**connection, now + WORKING_INTERVAL);
                    told = now;
                }
                continue;
            }
            // The session has ended, perhaps because its host lost power and closed nothing. A host
            // that is alive makes another connection.
            Next::Nothing if inner.is_stopping() => return Ok(()),
            Next::Nothing if session.is_ended() && !planted!(FencedRead) => return Ok(()),
            Next::Nothing => continue,
        };
        session.heard();
        let number = frame.header.number;
        let request = Request::decode(frame.header.kind, frame.fields());
        let request = request.map_err(WireError::from)?;
        last_number += 1;
        if number != last_number {
            return Err(WireError::Order(last_number, number).into());
        }
        *served.phase.lock() = Phase::Executing(now);
        let executed = execute(inner, &session, request, &frame, passes_descriptors);
        // From here on no other task sends on this connection.
        *served.phase.lock() = Phase::Other;
        let (answer, bulk, object) = match executed {
            Executed::Answer(answer, bulk) => (answer, bulk, None),
            Executed::Passed(answer, object) => (answer, Vec::new(), Some(object)),
            Executed::Broken => return Err(WireError::Lane.into()),
        };
        let is_end = matches!(answer, Answer::Ended);
        let label = Label {
            number,
            kind: answer.kind(),
            ..Label::default()
        };
        told = runtime.now();
        let until = told + SEND_LIMIT;
        let descriptor = object.as_ref().and_then(|object| object.descriptor());
        match descriptor {
            Some(fd) => send_with_descriptor(&**connection, label, answer.encode(), fd, until)?,
            None => send_frame(&**connection, label, answer.encode(), &[&bulk], until)?,
        }
        if is_end {
            return Ok(());
        }
    }
}
