//! A connection whose bytes are encrypted.
//!
//! Sending and receiving both need the state of rustls, and both may have to do a part of the
//! handshake. So each direction of the wrapped connection has a *turn*. The task that has the turn
//! calls the wrapped connection without holding the mutex. Other tasks wait on the condition
//! variable, at most until their own deadlines.
//!
//! Invariants:
//! - Encrypted bytes are taken from rustls only by the task that has the turn to send, so they are
//!   sent in the order in which they were encrypted.
//! - `failed` is set once and never cleared. After that the wrapped connection is closed (N4).
//!
//! Threading: as in the parent module. `close` never takes a turn that another task has.

use std::io::{ErrorKind, IoSlice, Read, Write};
use std::sync::Arc;

use siltstone_storage::link::{Connection, LinkError, LinkErrorKind, LinkResult, Received};
use siltstone_storage::{Condvar, Instant, Mutex, MutexGuard, Runtime};

use super::explain::explain;
use super::name::name_of;
use crate::secret::sha256;

/// How many bytes one call may receive: while the peer is not authenticated, and after that.
const INPUT_BYTES: (usize, usize) = (4 << 10, 64 << 10);

/// The maximum number of encrypted bytes that wait to be sent.
const OUTPUT_BYTES: usize = 64 << 10;

/// See the module.
pub(super) struct TlsConnection {
    runtime: Runtime,
    inner: Arc<dyn Connection>,
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    tls: rustls::Connection,
    /// A task has the turn to receive.
    is_receiving: bool,
    /// A task has the turn to send.
    is_sending: bool,
    /// Received bytes. Those in `input[used..len]` were not given to rustls yet.
    input: Vec<u8>,
    used: usize,
    len: usize,
    /// A buffer for encrypted bytes, which is kept for the next call.
    output: Vec<u8>,
    /// Why the connection is over.
    failed: Option<LinkError>,
    peer_name: Option<String>,
    peer_hash: Option<[u8; 32]>,
    is_established: bool,
}

type Guard<'a> = MutexGuard<'a, State>;

impl State {
    /// Gives received bytes to rustls until rustls has bytes for the caller.
    fn absorb(&mut self) -> Result<(), rustls::Error> {
        while self.used < self.len {
            let mut rest = &self.input[self.used..self.len];
            match self.tls.read_tls(&mut rest) {
                // Bytes behind the peer's closing message are ignored.
                Ok(0) => self.used = self.len,
                Ok(n) => self.used += n,
                Err(error) => return Err(rustls::Error::General(error.to_string())),
            }
            if self.tls.process_new_packets()?.plaintext_bytes_to_read() > 0 {
                break;
            }
        }
        Ok(())
    }

    /// Decrypts as many of the received bytes as `buf` has room for.
    fn take(&mut self, buf: &mut [u8]) -> Result<Taken, rustls::Error> {
        let mut len = 0;
        while len < buf.len() {
            match self.tls.reader().read(&mut buf[len..]) {
                Ok(0) if len == 0 => return Ok(Taken::End),
                Ok(0) => break,
                Ok(n) => len += n,
                Err(error) if error.kind() != ErrorKind::WouldBlock => {
                    return Err(rustls::Error::General(error.to_string()));
                }
                Err(_) if self.used == self.len => break,
                Err(_) => self.absorb()?,
            }
        }
        Ok(Taken::Bytes(len))
    }

    /// Moves the encrypted bytes out of rustls.
    fn take_output(&mut self) -> Vec<u8> {
        let mut output = std::mem::take(&mut self.output);
        output.clear();
        while self.tls.wants_write() {
            let written = self.tls.write_tls(&mut output);
            written.expect("a vector takes all bytes");
        }
        output
    }
}

enum Taken {
    Bytes(usize),
    End,
}

impl TlsConnection {
    pub(super) fn new(
        runtime: &Runtime,
        inner: Arc<dyn Connection>,
        mut tls: rustls::Connection,
    ) -> TlsConnection {
        tls.set_buffer_limit(Some(OUTPUT_BYTES));
        let state = State {
            tls,
            is_receiving: false,
            is_sending: false,
            input: Vec::new(),
            used: 0,
            len: 0,
            output: Vec::new(),
            failed: None,
            peer_name: None,
            peer_hash: None,
            is_established: false,
        };
        TlsConnection {
            runtime: runtime.clone(),
            inner,
            state: runtime.mutex(state),
            changed: runtime.condvar(),
        }
    }

    fn check(&self, state: &State, op: &'static str) -> LinkResult<()> {
        let Some(failed) = &state.failed else {
            return Ok(());
        };
        let kind = match failed.kind {
            LinkErrorKind::PermissionDenied => failed.kind,
            _ => LinkErrorKind::Closed,
        };
        Err(LinkError::new(kind, op, self.inner.peer(), &failed.detail))
    }

    fn error(&self, kind: LinkErrorKind, op: &'static str, detail: &str) -> LinkError {
        LinkError::new(kind, op, self.inner.peer(), detail)
    }

    /// Ends the connection after a failed call (N4).
    fn fail(&self, mut state: Guard<'_>, error: LinkError) -> LinkError {
        state.failed.get_or_insert_with(|| error.clone());
        self.changed.notify_all();
        drop(state);
        self.inner.close();
        error
    }

    /// Ends the connection because rustls found an error. Tells the peer, if that needs no waiting.
    fn break_off(&self, state: Guard<'_>, op: &'static str, error: &rustls::Error) -> LinkError {
        let is_handshaking = !state.is_established;
        let (kind, detail) = explain(error, is_handshaking);
        let explained = self.error(kind, op, &detail);
        if is_handshaking && matches!(state.tls, rustls::Connection::Server(_)) {
            let peer = self.inner.peer();
            tracing::warn!(peer, reason = detail, "a TLS handshake failed");
        }
        self.end(state, explained.clone());
        explained
    }

    /// Ends the connection. The remaining encrypted bytes are sent, if that needs no waiting.
    fn end(&self, mut state: Guard<'_>, error: LinkError) {
        state.failed.get_or_insert(error);
        self.changed.notify_all();
        if !state.is_sending && state.tls.wants_write() {
            // The turn is not given back, because nobody may send after this.
            state.is_sending = true;
            let output = state.take_output();
            drop(state);
            let _ = self.inner.send(&[&output], self.runtime.now());
        } else {
            drop(state);
        }
        self.inner.close();
    }

    /// Waits for a change. Returns `None` if the deadline has passed.
    fn wait<'a>(&'a self, state: Guard<'a>, deadline: Instant) -> Option<Guard<'a>> {
        let left = deadline.since(self.runtime.now());
        match left.is_zero() {
            true => None,
            false => Some(self.changed.wait_timeout(state, left).0),
        }
    }

    /// Sends the encrypted bytes. The caller has checked that no task has the turn to send.
    fn flush<'a>(
        &'a self,
        mut state: Guard<'a>,
        op: &'static str,
        deadline: Instant,
    ) -> LinkResult<Guard<'a>> {
        state.is_sending = true;
        let output = state.take_output();
        drop(state);
        let sent = self.inner.send(&[&output], deadline);
        let mut state = self.state.lock();
        state.is_sending = false;
        state.output = output;
        self.changed.notify_all();
        self.check(&state, op)?;
        match sent {
            Ok(()) => Ok(state),
            Err(error) => Err(self.fail(state, error)),
        }
    }

    /// Receives encrypted bytes, and gives them to rustls. Returns false if none arrived by the
    /// deadline. The caller has checked that no task has the turn to receive, and that rustls has
    /// all bytes that were received before.
    fn fetch<'a>(
        &'a self,
        mut state: Guard<'a>,
        op: &'static str,
        deadline: Instant,
    ) -> LinkResult<(Guard<'a>, bool)> {
        state.is_receiving = true;
        let mut input = std::mem::take(&mut state.input);
        let size = match state.is_established {
            false => INPUT_BYTES.0,
            true => INPUT_BYTES.1,
        };
        input.resize(size, 0);
        drop(state);
        let received = self.inner.receive(&mut input, deadline);
        let mut state = self.state.lock();
        state.is_receiving = false;
        state.input = input;
        (state.used, state.len) = (0, 0);
        self.changed.notify_all();
        self.check(&state, op)?;
        match received {
            Ok(Received::Bytes(len)) => state.len = len,
            Ok(Received::Nothing) => return Ok((state, false)),
            Ok(Received::End) => {
                let detail = match state.is_established {
                    true => "the connection was cut: it ended without the closing message of TLS",
                    false => {
                        "the peer ended the connection within the TLS handshake; check that it \
                         uses TLS, and its log"
                    }
                };
                let error = self.error(LinkErrorKind::Closed, op, detail);
                return Err(self.fail(state, error));
            }
            Err(error) => return Err(self.fail(state, error)),
        }
        match state.absorb() {
            Ok(()) => Ok((state, true)),
            Err(error) => Err(self.break_off(state, op, &error)),
        }
    }

    /// Performs the handshake, or waits for the task that performs it. Returns `None` if it was not
    /// complete by the deadline. The last message of a client is left to the caller, which sends it
    /// together with the first bytes.
    fn establish<'a>(
        &'a self,
        mut state: Guard<'a>,
        op: &'static str,
        deadline: Instant,
    ) -> LinkResult<Option<Guard<'a>>> {
        loop {
            self.check(&state, op)?;
            if state.is_established {
                return Ok(Some(state));
            }
            if !state.tls.is_handshaking() {
                state.is_established = true;
                let certificate = state
                    .tls
                    .peer_certificates()
                    .and_then(|chain| chain.first());
                let hash = certificate.map(|certificate| sha256(certificate));
                state.peer_name = certificate.and_then(name_of);
                state.peer_hash = hash;
                return Ok(Some(state));
            }
            let wants_write = state.tls.wants_write();
            if wants_write && !state.is_sending {
                state = self.flush(state, op, deadline)?;
            } else if !wants_write && !state.is_receiving {
                match self.fetch(state, op, deadline)? {
                    (next, true) => state = next,
                    (_, false) => return Ok(None),
                }
            } else {
                match self.wait(state, deadline) {
                    Some(next) => state = next,
                    None => return Ok(None),
                }
            }
        }
    }

    fn timed_out(&self, op: &'static str) -> LinkError {
        let detail = "it was not done by its deadline";
        self.error(LinkErrorKind::TimedOut, op, detail)
    }
}

impl Connection for TlsConnection {
    fn peer(&self) -> String {
        self.inner.peer()
    }

    fn is_local(&self) -> bool {
        self.inner.is_local()
    }

    fn certified_name(&self) -> Option<String> {
        self.state.lock().peer_name.clone()
    }

    fn certificate_hash(&self) -> Option<[u8; 32]> {
        self.state.lock().peer_hash
    }

    fn has_room(&self) -> bool {
        self.inner.has_room()
    }

    fn send(&self, parts: &[&[u8]], deadline: Instant) -> LinkResult<()> {
        const OP: &str = "send to";
        let established = self.establish(self.state.lock(), OP, deadline)?;
        let Some(mut state) = established else {
            return Err(self.fail(self.state.lock(), self.timed_out(OP)));
        };
        let mut slices: Vec<IoSlice<'_>> = parts
            .iter()
            .filter(|part| !part.is_empty())
            .map(|part| IoSlice::new(part))
            .collect();
        let mut rest = &mut slices[..];
        while !rest.is_empty() {
            // A task that receives may be sending the last message of the handshake.
            while state.is_sending {
                self.check(&state, OP)?;
                let Some(next) = self.wait(state, deadline) else {
                    return Err(self.fail(self.state.lock(), self.timed_out(OP)));
                };
                state = next;
            }
            self.check(&state, OP)?;
            match state.tls.writer().write_vectored(rest) {
                Ok(n) => IoSlice::advance_slices(&mut rest, n),
                Err(error) => {
                    let error = rustls::Error::General(error.to_string());
                    return Err(self.break_off(state, OP, &error));
                }
            }
            state = self.flush(state, OP, deadline)?;
        }
        Ok(())
    }

    fn receive(&self, buf: &mut [u8], deadline: Instant) -> LinkResult<Received> {
        const OP: &str = "receive from";
        if buf.is_empty() {
            return Ok(Received::Nothing);
        }
        let established = self.establish(self.state.lock(), OP, deadline)?;
        let Some(mut state) = established else {
            return Ok(Received::Nothing);
        };
        loop {
            self.check(&state, OP)?;
            match state.take(buf) {
                Ok(Taken::Bytes(0)) => {}
                Ok(Taken::Bytes(len)) => return Ok(Received::Bytes(len)),
                Ok(Taken::End) => return Ok(Received::End),
                Err(error) => return Err(self.break_off(state, OP, &error)),
            }
            if state.tls.wants_write() && !state.is_sending {
                state = self.flush(state, OP, deadline)?;
            } else if state.is_receiving {
                match self.wait(state, deadline) {
                    Some(next) => state = next,
                    None => return Ok(Received::Nothing),
                }
            } else {
                match self.fetch(state, OP, deadline)? {
                    (next, true) => state = next,
                    (_, false) => return Ok(Received::Nothing),
                }
            }
        }
    }

    fn close(&self) {
        let mut state = self.state.lock();
        // After a failure, the peer must not mistake the end for a clean one.
        if state.failed.is_none() && state.is_established && !state.is_sending {
            state.tls.send_close_notify();
        }
        let detail = "the connection is over";
        let error = self.error(LinkErrorKind::Closed, "close", detail);
        self.end(state, error);
    }
}
