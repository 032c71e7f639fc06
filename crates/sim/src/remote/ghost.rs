//! A ghost: it sends requests that arrive long after their answers, on connections of their own.
//!
//! A [`Ghost`] says hello as a host does, with the token of the host's session, and repeats
//! requests that the host made in the same state of the session. Each of them must be answered
//! without having an effect, or end the ghost's connection (D1 of RFC 9).
//!
//! Threading: a ghost has a task of its own.

use std::time::Duration;

use siltstone_device::wire::answer::WORKING;
use siltstone_device::wire::frame::{Label, header_of};
use siltstone_device::wire::{FrameReader, Request, ServerHello};
use siltstone_storage::Runtime;
use siltstone_storage::link::{Connection, Network, Received};

use super::{Tap, address, name_of};
use crate::coverage::Coverage;
use crate::rng::Rng;

/// See the module.
pub struct Ghost {
    runtime: Runtime,
    tap: Tap,
    rng: Rng,
    coverage: Coverage,
}

/// How long a ghost waits for an answer.
const PATIENCE: Duration = Duration::from_secs(2);

impl Ghost {
    /// A ghost of the host that uses this tap.
    pub fn new(runtime: &Runtime, tap: &Tap, seed: u64) -> Ghost {
        Ghost {
            runtime: runtime.clone(),
            tap: tap.clone(),
            rng: Rng::new(seed ^ 0x6705),
            coverage: Coverage::default(),
        }
    }

    /// The coverage that the ghost reached.
    pub fn into_coverage(self) -> Coverage {
        self.coverage
    }

    /// Connects once, and makes at most `count` old requests.
    pub fn haunt(&mut self, count: usize) {
        let Some(first) = self.tap.recorded(self.rng.draw()) else {
            return;
        };
        let deadline = self.runtime.now() + PATIENCE;
        let Ok(connection) = self.tap.network().connect(&address(), deadline) else {
            return;
        };
        if connection.send(&[&first.hello], deadline).is_ok()
            && self.state_of(&*connection) == Some(first.state)
        {
            let mut frames = FrameReader::new();
            let mut number = 0;
            for at in 0..count {
                let old = match at {
                    0 => Some(first.clone()),
                    _ => self.tap.recorded(self.rng.draw()),
                };
                let Some(old) = old.filter(|old| old.state == first.state) else {
                    continue;
                };
                // A host says goodbye only when it needs nothing any more, so this request is not
                // repeated.
                if matches!(old.request, Request::Goodbye) {
                    continue;
                }
                number += 1;
                let label = Label {
                    number,
                    kind: old.request.kind(),
                    flags: 0,
                };
                let fields = old.request.encode();
                let header = header_of(label, &fields, &[&old.bulk]).encode();
                let deadline = self.runtime.now() + PATIENCE;
                if connection
                    .send(&[&header, &fields, &old.bulk], deadline)
                    .is_err()
                    || !self.is_answered(&*connection, &mut frames)
                {
                    self.coverage.add("ghost.ended");
                    break;
                }
                let name = name_of(&old.request);
                self.coverage.add("ghost.answered");
                self.coverage.add(&format!("ghost.answered.{name}"));
            }
        }
        connection.close();
    }

    /// The state of the session, as the device reports it.
    fn state_of(&self, connection: &dyn Connection) -> Option<[u8; 16]> {
        let deadline = self.runtime.now() + PATIENCE;
        let (mut all, mut buf) = (Vec::new(), [0; 4096]);
        while let Ok(Received::Bytes(len)) = connection.receive(&mut buf, deadline) {
            all.extend_from_slice(&buf[..len]);
            match ServerHello::decode(&all) {
                Ok((_, ServerHello::Welcome(welcome))) => return Some(welcome.state),
                Ok(_) => return None,
                Err(_) => {}
            }
        }
        None
    }

    /// Waits for one answer. Returns false if the connection ends.
    fn is_answered(&self, connection: &dyn Connection, frames: &mut FrameReader) -> bool {
        let deadline = self.runtime.now() + PATIENCE;
        loop {
            match frames.next_frame() {
                Ok(Some(frame)) if frame.header.kind == WORKING => continue,
                Ok(Some(_)) => return true,
                Ok(None) => {}
                Err(_) => return false,
            }
            match connection.receive(frames.space(), deadline) {
                Ok(Received::Bytes(len)) if frames.filled(len).is_ok() => {}
                _ => return false,
            }
        }
    }
}
