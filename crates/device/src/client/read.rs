//! An object of a device that is open for reading.
//!
//! Large reads are split into requests of one frame each, several of which are under way at once. A
//! reader that reads from front to back is served from what was read ahead (`ahead.rs`).
//!
//! A finished object of a device on this machine is opened through a descriptor that the device
//! passes. It is then a file of this process: its bytes cross no link, it is mapped like a local
//! file, and it stays readable after its name was deleted, after the device was restarted, and
//! after this host was fenced (RFC 9, section 5).
//!
//! Invariants: an object that was opened again, because the device forgot the session, must be at
//! least as long as before. Bytes that this client appended to the object are sent before it is
//! read.
//!
//! Threading: shared. The lock is not held during a request.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use siltstone_storage::files::open_descriptor;
use siltstone_storage::{
    Access, Mutex, ReadFile, ReadPurpose, ReadRange, Result, StorageError, StorageErrorKind,
};

use super::Client;
use super::ahead::{Ahead, Target};
use super::object_name::{Candidates, ObjectName};
use super::pipe::{Passed, Pipe};
use super::purpose::LinkPurpose;
use super::session::{Limit, Opening};
use crate::frames::ConnectionError;
use crate::wire::frame::BULK_MAX;
use crate::wire::hello::capability;
use crate::wire::request::RANGES_MAX;
use crate::wire::{Answer, Frame, Request};

/// The maximum number of requests of one read that are under way at once.
const UNDER_WAY_MAX: usize = 4;

/// How many of the last bytes of a finished object come with the answer to opening it. A table has
/// its footer, its properties and a part of its index there.
const TAIL_BYTES: u32 = 32 << 10;

/// The pause before another attempt, while the object's name is not known.
const PAUSE: Duration = Duration::from_millis(10);

/// See the module.
pub(super) struct ReadShared {
    pub(super) id: u64,
    /// The name under which the object was opened.
    first_name: String,
    name: Mutex<ObjectName>,
    direct: bool,
    len: u64,
    /// The server's state in which the object is open.
    state: Mutex<[u8; 16]>,
    pub(super) ahead: Ahead,
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

/// A part of a read that fits into a frame.
struct Part {
    ranges: Vec<(u64, u32)>,
    bytes: usize,
}

/// How an object is opened.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum How {
    /// The object may still be written.
    Any,
    /// Nobody writes to the object any more.
    Finished,
    /// The page cache is bypassed.
    Direct,
}

/// Opens an object.
pub(super) fn open(client: &Arc<Client>, name: &str, how: How) -> Result<Arc<dyn ReadFile>> {
    let session = &client.session;
    let limit = session.limit();
    client.drain(name, &limit, "open")?;
    let knows_finished = session
        .welcome()
        .is_some_and(|w| w.capabilities & capability::FINISHED != 0);
    let is_finished = how == How::Finished && knows_finished;
    if is_finished {
        // What this session wrote to the object is finished, and the device must know that.
        client.close_dropped(name, &limit)?;
    }
    let id = session.new_object();
    let request = |pipe: &Pipe| match is_finished {
        true => Request::OpenFinished {
            name: name.to_string(),
            file: id,
            tail: TAIL_BYTES,
            descriptor: session.options.descriptors && pipe.passes_descriptors(),
        },
        false => Request::Open {
            name: name.to_string(),
            file: id,
            direct: how == How::Direct,
        },
    };
    let mut opening = Opening::new(session, id);
    loop {
        let mut pipe = session.take(&limit, "open", name)?;
        let request = request(&pipe);
        match opening.exchange(&mut pipe, &request) {
            Ok((Answer::Opened { len }, frame)) => match pipe.descriptor_of(&frame) {
                Passed::Nothing => {
                    let state = pipe.state;
                    session.give_back(pipe);
                    return Ok(opened(client, name, how, id, len, state, frame));
                }
                Passed::Descriptor(descriptor) => {
                    session.give_back(pipe);
                    let shown = format!("{name} of {}", session.describe());
                    let file = open_descriptor(name, shown, descriptor, len)?;
                    session.vital.passed_count.fetch_add(1, Ordering::Relaxed);
                    return Ok(file);
                }
                Passed::Lost => {
                    session.give_back(pipe);
                    let detail = "the device passed a descriptor of the object, and this process \
                                  could not receive it: it may have too many files open";
                    let kind = StorageErrorKind::TooManyOpen;
                    return Err(StorageError::new(kind, "open", name, detail));
                }
            },
            Ok((Answer::Ended, _)) => session.discard(pipe),
            Ok((Answer::Failed(error), _)) => {
                session.give_back(pipe);
                return Err(error);
            }
            Ok(_) => {
                session.discard(pipe);
                return Err(session.wrong_answer("open", name));
            }
            Err(error) => session.lost_in(&limit, pipe, &error),
        }
        if session.is_over(&limit) {
            return Err(session.unreachable("open", name));
        }
    }
}

/// The handle of an object that is open on the device. The answer may contain the object's last
/// bytes.
fn opened(
    client: &Arc<Client>,
    name: &str,
    how: How,
    id: u64,
    len: u64,
    state: [u8; 16],
    answer: Frame,
) -> Arc<dyn ReadFile> {
    let session = &client.session;
    let runtime = &session.runtime;
    let shared = Arc::new(ReadShared {
        id,
        first_name: name.to_string(),
        name: runtime.mutex(ObjectName::new(name)),
        direct: how == How::Direct,
        len,
        state: runtime.mutex(state),
        ahead: Ahead::new(runtime),
        is_dropped: AtomicBool::new(false),
    });
    client.readers.lock().insert(id, Arc::clone(&shared));
    // From here on, a call that opens the object for writing finds this reader.
    let mut writers = client.files_named(name).into_iter();
    let is_written = writers.any(|file| !file.is_dropped.load(Ordering::Acquire));
    let tail = answer.bulk().len() as u64;
    if is_written {
        shared.ahead.turn_off(session);
    } else if how == How::Finished && tail <= len {
        shared.ahead.give(session, len - tail, answer);
    }
    Arc::new(RemoteReader {
        client: Arc::clone(client),
        shared,
        drops: Arc::clone(&client.drops),
    })
}

impl ReadShared {
    /// Calls a function with the object's name, which it may change.
    pub(super) fn with_name<T>(&self, f: impl FnOnce(&mut ObjectName) -> T) -> T {
        f(&mut self.name.lock())
    }
}

impl RemoteReader {
    /// Opens the object in a new state of the server. Returns false if that must be tried again,
    /// because the object's name is not known now.
    fn reopen(&self, pipe: &mut Pipe) -> std::result::Result<Result<bool>, ConnectionError> {
        let shared = &self.shared;
        let gone = |detail: String| {
            let kind = StorageErrorKind::Closed;
            let name = &shared.first_name;
            Ok(Err(StorageError::new(kind, "read", name, detail)))
        };
        let deleted = "the device was started again after the object was deleted or replaced";
        let names = match shared.name.lock().candidates() {
            Candidates::Names(names) => names,
            Candidates::InDoubt => return Ok(Ok(false)),
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
                    return Ok(Ok(true));
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

    /// Reads parts, and calls `sink` with the index and the bytes of each. After a lost connection
    /// this begins again with the first part.
    fn read_parts(
        &self,
        object: LinkPurpose,
        parts: &[Part],
        limit: &Limit,
        sink: &mut dyn FnMut(usize, &[u8]),
    ) -> Result<()> {
        let session = &self.client.session;
        let shared = &self.shared;
        let name = shared.name.lock().text().to_string();
        self.client.drain(&name, limit, "read")?;
        loop {
            let mut pipe = session.take(limit, "read", &name)?;
            pipe.object = object;
            let is_open = *shared.state.lock() == pipe.state;
            let opened = match is_open {
                true => Ok(Ok(true)),
                false => self.reopen(&mut pipe),
            };
            let read = match opened {
                Ok(Ok(true)) => self.try_parts(&mut pipe, parts, sink).map(Some),
                Ok(Ok(false)) => Ok(None),
                Ok(Err(error)) => Ok(Some(Err(error))),
                Err(error) => Err(error),
            };
            match read {
                Ok(Some(result)) => {
                    session.give_back(pipe);
                    return result;
                }
                Ok(None) => {
                    session.give_back(pipe);
                    session.runtime.sleep(PAUSE);
                }
                Err(error) => session.lost_in(limit, pipe, &error),
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
        sink: &mut dyn FnMut(usize, &[u8]),
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
                    sink(at, frame.bulk());
                }
                Answer::Failed(error) => {
                    failed.get_or_insert(error);
                }
                _ => return Err(ConnectionError::End),
            }
        }
        Ok(failed.map_or(Ok(()), Err))
    }

    /// Reads ranges with as few requests as possible, and reads nothing ahead.
    fn read_whole(&self, object: LinkPurpose, ranges: &mut [ReadRange<'_>]) -> Result<()> {
        let parts = parts_of(ranges.iter().map(|range| (range.offset, range.buf.len())));
        if parts.is_empty() {
            return Ok(());
        }
        // The range that is being filled, and how many of its bytes are filled.
        let (mut at, mut filled) = (0, 0);
        let mut sink = |part: usize, mut bytes: &[u8]| {
            if part == 0 {
                (at, filled) = (0, 0);
            }
            while !bytes.is_empty() && at < ranges.len() {
                let buf = &mut ranges[at].buf[filled..];
                let take = buf.len().min(bytes.len());
                buf[..take].copy_from_slice(&bytes[..take]);
                (filled, bytes) = (filled + take, &bytes[take..]);
                if take == buf.len() {
                    (at, filled) = (at + 1, 0);
                }
            }
        };
        self.read_parts(object, &parts, &self.client.session.limit(), &mut sink)
    }

    fn target(&self, purpose: ReadPurpose) -> Target {
        Target {
            file: self.shared.id,
            len: self.shared.len,
            object: self
                .client
                .session
                .purpose_of_read(&self.shared.first_name, purpose),
            state: *self.shared.state.lock(),
        }
    }
}

/// Cuts ranges into parts, each of which fits into a frame.
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
        let session = &self.client.session;
        if let Some(error) = session.ended() {
            return Err(error);
        }
        let target = self.target(purpose);
        let [ReadRange { offset, buf }] = ranges else {
            return self.read_whole(target.object, ranges);
        };
        let read = |offset, buf: &mut [u8]| {
            self.read_whole(target.object, &mut [ReadRange { offset, buf }])
        };
        self.shared.ahead.read(session, target, *offset, buf, read)
    }

    fn advise(&self, access: Access, offset: u64, len: u64) {
        let session = &self.client.session;
        let ahead = &self.shared.ahead;
        ahead.advise(
            session,
            self.target(ReadPurpose::Lookup),
            access,
            offset,
            len,
        );
    }
}
