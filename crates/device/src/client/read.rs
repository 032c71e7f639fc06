//! An object of a device that is open for reading.
//!
//! Large reads are split into requests of a frame each, several of which are under way at once. A
//! reader that goes from front to back is served from a buffer, which is filled ahead
//! ([`Access::Sequential`]).
//!
//! Invariants: an object that was opened again, because the device forgot the session, must have
//! its old length. Bytes that this client appended to the object are sent before it is read.
//!
//! Threading: shared. The lock is not held over a request.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use siltstone_storage::{
    Access, Mutex, ReadFile, ReadPurpose, ReadRange, Result, StorageError, StorageErrorKind,
};

use super::Client;
use super::object_name::{Candidates, ObjectName};
use super::pipe::Pipe;
use super::session::Limit;
use crate::frames::ConnectionError;
use crate::wire::frame::BULK_MAX;
use crate::wire::request::RANGES_MAX;
use crate::wire::{Answer, Request};

/// The most requests of one read that are under way at once.
const UNDER_WAY_MAX: usize = 4;

/// The bytes that are read ahead for a reader that goes from front to back.
const AHEAD_BYTES: usize = BULK_MAX;

/// The pause before another try, while it is not known which name the object has.
const PAUSE: Duration = Duration::from_millis(10);

/// Bytes that were read ahead.
#[derive(Default)]
struct Ahead {
    is_on: bool,
    offset: u64,
    bytes: Arc<Vec<u8>>,
}

/// See the module.
pub(super) struct ReadShared {
    pub(super) id: u64,
    /// The name under which it was opened.
    first_name: String,
    name: Mutex<ObjectName>,
    direct: bool,
    len: u64,
    /// The server's state in which the object is open.
    state: Mutex<[u8; 16]>,
    ahead: Mutex<Ahead>,
    pub(super) is_dropped: AtomicBool,
}

/// The handle of an object that is open for reading.
pub(super) struct RemoteReader {
    client: Arc<Client>,
    shared: Arc<ReadShared>,
    drops: Arc<AtomicU64>,
}

impl Drop for RemoteReader {
    fn drop(&mut self) {
        // The keeper closes the object.
        self.shared.is_dropped.store(true, Ordering::Release);
        self.drops.fetch_add(1, Ordering::AcqRel);
    }
}

/// A part of a read, which fits into a frame.
struct Part {
    ranges: Vec<(u64, u32)>,
    bytes: usize,
}

/// Opens an object.
pub(super) fn open(client: &Arc<Client>, name: &str, direct: bool) -> Result<RemoteReader> {
    let session = &client.session;
    let limit = session.limit();
    client.drain(name, &limit, "open")?;
    let id = session.new_object();
    let request = Request::Open {
        name: name.to_string(),
        file: id,
        direct,
    };
    loop {
        let mut pipe = session.take(&limit, "open", name)?;
        match pipe.exchange(&request, &[]) {
            Ok((Answer::Opened { len }, _)) => {
                let shared = Arc::new(ReadShared {
                    id,
                    first_name: name.to_string(),
                    name: session.runtime.mutex(ObjectName::new(name)),
                    direct,
                    len,
                    state: session.runtime.mutex(pipe.state),
                    ahead: session.runtime.mutex(Ahead::default()),
                    is_dropped: AtomicBool::new(false),
                });
                session.give_back(pipe);
                client.readers.lock().insert(id, Arc::clone(&shared));
                return Ok(RemoteReader {
                    client: Arc::clone(client),
                    shared,
                    drops: Arc::clone(&client.drops),
                });
            }
            Ok((Answer::Ended, _)) => session.discard(pipe),
            Ok((Answer::Failed(error), _)) => {
                session.give_back(pipe);
                return Err(error);
            }
            Ok(_) => {
                session.discard(pipe);
                return Err(session.wrong_answer("open", name));
            }
            Err(error) => session.lost(pipe, &error),
        }
        if session.is_over(&limit) {
            return Err(session.unreachable("open", name));
        }
    }
}

impl ReadShared {
    /// Calls a function with the object's name, which it may change.
    pub(super) fn with_name<T>(&self, f: impl FnOnce(&mut ObjectName) -> T) -> T {
        f(&mut self.name.lock())
    }
}

impl RemoteReader {
    /// Opens the object on another state of the server.
    fn reopen(&self, pipe: &mut Pipe) -> std::result::Result<Result<()>, ConnectionError> {
        let shared = &self.shared;
        let gone = |detail: String| {
            let kind = StorageErrorKind::Closed;
            let name = &shared.first_name;
            Ok(Err(StorageError::new(kind, "read", name, detail)))
        };
        let deleted = "the device was started again after the object was deleted or replaced";
        let names = match shared.name.lock().candidates() {
            Candidates::Names(names) => names,
            Candidates::InDoubt => {
                self.client.session.runtime.sleep(PAUSE);
                return Err(ConnectionError::End);
            }
            Candidates::Lost => return gone(deleted.into()),
        };
        for name in names {
            let request = Request::Open {
                name,
                file: shared.id,
                direct: shared.direct,
            };
            match pipe.exchange(&request, &[])?.0 {
                Answer::Opened { len } if len >= shared.len => {
                    *shared.state.lock() = pipe.state;
                    return Ok(Ok(()));
                }
                Answer::Opened { len } => {
                    return gone(format!(
                        "the device was started again, and the object has {len} bytes instead of \
                         {}",
                        shared.len
                    ));
                }
                Answer::Failed(error) if error.kind == StorageErrorKind::NotFound => {}
                Answer::Failed(error) => return Ok(Err(error)),
                _ => return Err(ConnectionError::End),
            }
        }
        gone(deleted.into())
    }

    /// Reads ranges, which are not larger than a frame each, into `out` one after the other.
    fn read_parts(
        &self,
        purpose: ReadPurpose,
        parts: &[Part],
        limit: &Limit,
        out: &mut Vec<u8>,
    ) -> Result<()> {
        let session = &self.client.session;
        let shared = &self.shared;
        let object = session.purpose_of_read(&shared.first_name, purpose);
        let name = shared.name.lock().text().to_string();
        self.client.drain(&name, limit, "read")?;
        let begin = out.len();
        loop {
            out.truncate(begin);
            let mut pipe = session.take(limit, "read", &name)?;
            pipe.object = object;
            let is_open = *shared.state.lock() == pipe.state;
            let opened = match is_open {
                true => Ok(Ok(())),
                false => self.reopen(&mut pipe),
            };
            let read = match opened {
                Ok(Ok(())) => self.try_parts(&mut pipe, parts, out),
                Ok(Err(error)) => Ok(Err(error)),
                Err(error) => Err(error),
            };
            match read {
                Ok(result) => {
                    session.give_back(pipe);
                    return result;
                }
                Err(error) => session.lost(pipe, &error),
            }
            if session.is_over(limit) {
                return Err(session.unreachable("read", &name));
            }
        }
    }

    fn try_parts(
        &self,
        pipe: &mut Pipe,
        parts: &[Part],
        out: &mut Vec<u8>,
    ) -> std::result::Result<Result<()>, ConnectionError> {
        let mut sent = 0;
        let mut failed = None;
        for (at, part) in parts.iter().enumerate() {
            while sent < parts.len() && sent < at + UNDER_WAY_MAX {
                let request = Request::Read {
                    file: self.shared.id,
                    ranges: parts[sent].ranges.clone(),
                };
                pipe.send(&request, &[])?;
                sent += 1;
            }
            let (answer, frame) = pipe.receive()?;
            match answer {
                Answer::Bytes if frame.bulk().len() == part.bytes => {
                    out.extend_from_slice(frame.bulk());
                }
                Answer::Failed(error) => {
                    failed.get_or_insert(error);
                }
                _ => return Err(ConnectionError::End),
            }
        }
        Ok(failed.map_or(Ok(()), Err))
    }

    /// Serves a read from what was read ahead, or reads ahead.
    fn read_ahead(&self, purpose: ReadPurpose, offset: u64, buf: &mut [u8]) -> Result<bool> {
        let (ahead_offset, bytes) = {
            let ahead = self.shared.ahead.lock();
            if !ahead.is_on || buf.len() > AHEAD_BYTES / 2 {
                return Ok(false);
            }
            (ahead.offset, Arc::clone(&ahead.bytes))
        };
        let Some(end) = offset.checked_add(buf.len() as u64) else {
            return Ok(false);
        };
        if end > self.shared.len {
            return Ok(false);
        }
        if offset >= ahead_offset && end <= ahead_offset + bytes.len() as u64 {
            let from = (offset - ahead_offset) as usize;
            buf.copy_from_slice(&bytes[from..from + buf.len()]);
            return Ok(true);
        }
        let len = (self.shared.len - offset).min(AHEAD_BYTES as u64) as usize;
        let part = Part {
            ranges: vec![(offset, len as u32)],
            bytes: len,
        };
        let mut bytes = Vec::with_capacity(len);
        let limit = self.client.session.limit();
        self.read_parts(purpose, &[part], &limit, &mut bytes)?;
        buf.copy_from_slice(&bytes[..buf.len()]);
        let mut ahead = self.shared.ahead.lock();
        (ahead.offset, ahead.bytes) = (offset, Arc::new(bytes));
        Ok(true)
    }
}

/// Cuts ranges into parts that fit into a frame each.
fn parts_of(ranges: impl Iterator<Item = (u64, usize)>) -> Vec<Part> {
    let mut parts: Vec<Part> = Vec::new();
    for (mut offset, mut len) in ranges {
        while len > 0 {
            let room = parts.last().map_or(0, |part| {
                let has_room = part.ranges.len() < RANGES_MAX;
                if has_room { BULK_MAX - part.bytes } else { 0 }
            });
            if room == 0 {
                parts.push(Part {
                    ranges: Vec::new(),
                    bytes: 0,
                });
                continue;
            }
            let take = len.min(room);
            if let Some(part) = parts.last_mut() {
                part.ranges.push((offset, take as u32));
                part.bytes += take;
            }
            offset = offset.saturating_add(take as u64);
            len -= take;
        }
    }
    parts
}

impl ReadFile for RemoteReader {
    fn name(&self) -> &str {
        &self.shared.first_name
    }

    fn len(&self) -> u64 {
        self.shared.len
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.read_ranges_for(ReadPurpose::Lookup, &mut [ReadRange { offset, buf }])
    }

    fn read_ranges(&self, ranges: &mut [ReadRange<'_>]) -> Result<()> {
        self.read_ranges_for(ReadPurpose::Lookup, ranges)
    }

    fn read_ranges_for(&self, purpose: ReadPurpose, ranges: &mut [ReadRange<'_>]) -> Result<()> {
        if let [range] = ranges
            && self.read_ahead(purpose, range.offset, range.buf)?
        {
            return Ok(());
        }
        let parts = parts_of(ranges.iter().map(|range| (range.offset, range.buf.len())));
        if parts.is_empty() {
            return Ok(());
        }
        let mut bytes = Vec::new();
        let limit = self.client.session.limit();
        self.read_parts(purpose, &parts, &limit, &mut bytes)?;
        let mut left = &bytes[..];
        for range in ranges {
            let (this, rest) = left.split_at(range.buf.len());
            range.buf.copy_from_slice(this);
            left = rest;
        }
        Ok(())
    }

    fn advise(&self, access: Access, offset: u64, len: u64) {
        let mut ahead = self.shared.ahead.lock();
        match access {
            Access::Sequential | Access::WillNeed => ahead.is_on = true,
            Access::Random => *ahead = Ahead::default(),
            Access::DontNeed => {
                let end = ahead.offset + ahead.bytes.len() as u64;
                if offset <= ahead.offset && offset.saturating_add(len) >= end {
                    ahead.bytes = Arc::default();
                }
            }
        }
    }
}
