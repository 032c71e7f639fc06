//! Reading ahead of an object: fetches the next bytes for readers that read from front to back.
//!
//! A *stream* is such a reader. It is recognised by its reads, or it announces them with
//! [`Access`]. The next bytes of a stream are requested while the present ones are used. Meanwhile
//! the stream has a connection of its own for these requests, and the answers wait there until a
//! read needs them. The bytes are served once and then dropped, so this is not a cache: the
//! engine's block cache is the only one.
//!
//! Invariants:
//! - The bytes that are ready or under way, for all objects of a session together, are bounded by
//!   the option `ahead_bytes`. The connections of streams are bounded by a quarter of all
//!   connections.
//! - A stream whose connection fails is dropped, and the read is done like any other.
//! - Nothing is read ahead of an object that this session writes, so no read returns bytes that are
//!   older than an append or a truncation before it.
//! - After [`Access::Random`] nothing is read ahead until the reader announces other reads.
//!
//! Threading: shared. The lock is not held during a request. A read takes its stream out for that
//! time, so another read of the same bytes makes its own request.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use siltstone_storage::{Access, Instant, Mutex, Runtime};

use super::pipe::Pipe;
use super::purpose::LinkPurpose;
use super::session::Session;
use crate::wire::frame::BULK_MAX;
use crate::wire::{Answer, Frame, Request};

/// The maximum number of streams that are remembered for one object.
const STREAMS_MAX: usize = 4;

/// After this many reads in a row, each of which began where the one before ended, the next bytes
/// are read ahead.
const HITS: u32 = 2;

/// How many bytes are read ahead: at first, and at most.
const WINDOWS: (usize, usize) = (64 << 10, 1 << 20);

/// The maximum number of bytes that are read ahead because the reader announced them.
const ANNOUNCED_MAX: u64 = 2 << 20;

/// A stream that was not read for this long gives its bytes and its connection back. The device
/// waits longer than this for a connection to take an answer.
const IDLE: Duration = Duration::from_secs(2);

/// Bytes that have arrived.
struct Piece {
    offset: u64,
    frame: Frame,
}

impl Piece {
    fn end(&self) -> u64 {
        self.offset + self.frame.bulk().len() as u64
    }
}

/// Requests without an answer, in the order in which they were sent.
struct UnderWay {
    pipe: Pipe,
    parts: VecDeque<(u64, usize)>,
}

/// A reader that goes from front to back.
struct Stream {
    /// Where the next read of the stream begins.
    next: u64,
    /// How many reads began where the one before ended.
    hits: u32,
    /// How many bytes are read ahead.
    window: usize,
    /// Nothing is requested beyond this offset.
    end: u64,
    /// All bytes of the stream before this offset are ready or under way.
    asked_to: u64,
    ready: VecDeque<Piece>,
    under_way: Option<UnderWay>,
    used: Instant,
}

/// What a session reads ahead, for all its objects together.
#[derive(Default)]
pub(super) struct AheadBudget {
    bytes: AtomicUsize,
    pub(super) pipes: AtomicUsize,
}

impl AheadBudget {
    fn take(&self, bytes: usize, most: usize) -> bool {
        let taken = self
            .bytes
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |held| {
                held.checked_add(bytes).filter(|sum| *sum <= most)
            });
        taken.is_ok()
    }

    fn give_back(&self, bytes: usize) {
        self.bytes.fetch_sub(bytes, Ordering::AcqRel);
    }
}

/// The object that is read, as requests name it.
#[derive(Clone, Copy)]
pub(super) struct Target {
    pub(super) file: u64,
    pub(super) len: u64,
    /// The purpose of the object's bytes.
    pub(super) object: LinkPurpose,
    /// The server's state in which it is open.
    pub(super) state: [u8; 16],
}

/// See the module.
pub(super) struct Ahead {
    runtime: Runtime,
    streams: Mutex<Vec<Stream>>,
    /// If true, nothing is read ahead, because this session writes the object.
    is_off: AtomicBool,
    /// Whether the reader announced reads at random offsets.
    is_random: AtomicBool,
}

impl Stream {
    fn new(next: u64, end: u64, used: Instant) -> Stream {
        Stream {
            next,
            hits: 0,
            window: 0,
            end,
            asked_to: next,
            ready: VecDeque::new(),
            under_way: None,
            used,
        }
    }

    fn begin(&self) -> u64 {
        self.ready.front().map_or(self.next, |piece| piece.offset)
    }

    /// Whether a read at this offset continues the stream.
    fn has(&self, offset: u64) -> bool {
        offset == self.next || (offset >= self.begin() && offset < self.asked_to)
    }

    /// Gives the stream's bytes and its connection back.
    fn close(mut self, session: &Session) {
        self.drop_ready(session, u64::MAX);
        if let Some(under_way) = self.under_way.take() {
            let bytes = under_way.parts.iter().map(|(_, len)| len).sum();
            session.ahead.give_back(bytes);
            session.ahead.pipes.fetch_sub(1, Ordering::AcqRel);
            match under_way.parts.is_empty() {
                true => session.give_back(under_way.pipe),
                // Nobody needs the answers that are still under way.
                false => session.discard(under_way.pipe),
            }
        }
    }

    /// Drops the pieces that end at or before `to`.
    fn drop_ready(&mut self, session: &Session, to: u64) {
        while let Some(first) = self.ready.front()
            && first.end() <= to
        {
            session.ahead.give_back(first.frame.bulk().len());
            self.ready.pop_front();
        }
    }

    /// Takes the next answer. Returns `None` if the stream cannot be used any more.
    fn receive(&mut self, session: &Session, waits: bool) -> Option<bool> {
        let under_way = self.under_way.as_mut()?;
        let &(offset, len) = under_way.parts.front()?;
        let received = match waits {
            true => under_way.pipe.receive().map(Some),
            false => under_way.pipe.receive_now(),
        };
        match received {
            Ok(None) => return Some(false),
            Ok(Some((Answer::Bytes, frame))) if frame.bulk().len() == len => {
                under_way.parts.pop_front();
                self.ready.push_back(Piece { offset, frame });
            }
            // The read is made again without the stream, and then reports what is wrong.
            _ => return None,
        }
        if under_way.parts.is_empty()
            && let Some(done) = self.under_way.take()
        {
            session.ahead.pipes.fetch_sub(1, Ordering::AcqRel);
            session.give_back(done.pipe);
        }
        Some(true)
    }

    /// Fills the front of `buf` with bytes that are ready or under way. Returns how many bytes it
    /// filled, and whether the stream can still be used.
    fn serve(&mut self, session: &Session, offset: u64, buf: &mut [u8]) -> (usize, bool) {
        let mut filled = 0;
        while filled < buf.len() {
            let at = offset + filled as u64;
            let mut ready = self.ready.iter();
            if let Some(piece) = ready.find(|p| p.offset <= at && at < p.end()) {
                let bytes = &piece.frame.bulk()[(at - piece.offset) as usize..];
                let take = bytes.len().min(buf.len() - filled);
                buf[filled..filled + take].copy_from_slice(&bytes[..take]);
                filled += take;
                continue;
            }
            let parts = self.under_way.as_ref().and_then(|u| u.parts.front());
            if parts.is_none_or(|(begin, _)| at < *begin) {
                break;
            }
            // The next piece lies behind everything that is ready, and so does every later read.
            self.drop_ready(session, at);
            if self.receive(session, true).is_none() {
                return (filled, false);
            }
        }
        (filled, true)
    }

    /// Requests the bytes up to `to`. Returns false if the stream cannot be used any more.
    fn ask(&mut self, session: &Session, target: Target, to: u64) -> bool {
        let to = to.min(self.end).min(target.len);
        let mut from = self.asked_to.max(self.next);
        while from < to {
            let len = (to - from).min(BULK_MAX as u64) as usize;
            if !session.ahead.take(len, session.options.ahead_bytes) {
                return true;
            }
            if self.under_way.is_none() {
                let Some(mut pipe) = session.take_to_read_ahead(target.state) else {
                    session.ahead.give_back(len);
                    return true;
                };
                pipe.object = target.object;
                let parts = VecDeque::new();
                self.under_way = Some(UnderWay { pipe, parts });
            }
            let Some(under_way) = self.under_way.as_mut() else {
                return true;
            };
            let request = Request::Read {
                file: target.file,
                ranges: vec![(from, len as u32)],
            };
            under_way.parts.push_back((from, len));
            if under_way.pipe.send(&request, &[]).is_err() {
                return false;
            }
            let asked = &session.vital.ahead_bytes;
            asked.fetch_add(len as u64, Ordering::Relaxed);
            from += len as u64;
            self.asked_to = from;
        }
        true
    }

    /// Requests more bytes if at most half of the window is ready or under way.
    fn go_on(&mut self, session: &Session, target: Target) -> bool {
        let there = self.asked_to.saturating_sub(self.next);
        if self.window == 0 || there * 2 > self.window as u64 {
            return true;
        }
        let to = self.next.saturating_add(self.window as u64);
        let goes_on = self.ask(session, target, to);
        self.window = (self.window * 2).min(WINDOWS.1.max(self.window));
        goes_on
    }
}

impl Ahead {
    pub(super) fn new(runtime: &Runtime) -> Ahead {
        Ahead {
            runtime: runtime.clone(),
            streams: runtime.mutex(Vec::new()),
            is_off: AtomicBool::new(false),
            is_random: AtomicBool::new(false),
        }
    }

    /// Ends reading ahead and drops what was read ahead, because the object is written.
    pub(super) fn turn_off(&self, session: &Session) {
        self.is_off.store(true, Ordering::Release);
        self.close(session);
    }

    /// Gives back the bytes and connections of all streams.
    pub(super) fn close(&self, session: &Session) {
        let streams = std::mem::take(&mut *self.streams.lock());
        streams.into_iter().for_each(|stream| stream.close(session));
    }

    /// Gives back the streams that were not read for a while.
    pub(super) fn close_idle(&self, session: &Session) {
        let now = self.runtime.now();
        let mut idle = Vec::new();
        {
            let mut streams = self.streams.lock();
            let mut at = 0;
            while at < streams.len() {
                match now.since(streams[at].used) >= IDLE {
                    true => idle.push(streams.remove(at)),
                    false => at += 1,
                }
            }
        }
        idle.into_iter().for_each(|stream| stream.close(session));
    }

    /// Takes bytes of the object that came with another answer and will be read soon.
    pub(super) fn give(&self, session: &Session, offset: u64, frame: Frame) {
        let len = frame.bulk().len();
        if len == 0 || !session.ahead.take(len, session.options.ahead_bytes) {
            return;
        }
        let end = offset + len as u64;
        let mut stream = Stream::new(offset, end, self.runtime.now());
        stream.asked_to = end;
        stream.ready.push_back(Piece { offset, frame });
        self.put_back(session, stream);
    }

    fn take(&self, offset: u64) -> Option<Stream> {
        let mut streams = self.streams.lock();
        let at = streams.iter().position(|stream| stream.has(offset))?;
        Some(streams.remove(at))
    }

    fn put_back(&self, session: &Session, mut stream: Stream) {
        stream.used = self.runtime.now();
        let dropped = {
            let mut streams = self.streams.lock();
            // This is checked under the lock, so that no stream stays behind when the object is
            // written.
            if self.is_off.load(Ordering::Acquire) {
                Some(stream)
            } else {
                streams.push(stream);
                (streams.len() > STREAMS_MAX).then(|| streams.remove(0))
            }
        };
        if let Some(stream) = dropped {
            stream.close(session);
        }
    }

    /// Serves a read from what was read ahead, as far as possible. `read` fetches the remaining
    /// bytes like any other read.
    pub(super) fn read<E>(
        &self,
        session: &Session,
        target: Target,
        offset: u64,
        buf: &mut [u8],
        read: impl FnOnce(u64, &mut [u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let end = offset.saturating_add(buf.len() as u64);
        let is_off = self.is_off.load(Ordering::Acquire) || self.is_random.load(Ordering::Acquire);
        if is_off || buf.is_empty() || end > target.len {
            return read(offset, buf);
        }
        let mut stream = self
            .take(offset)
            .unwrap_or_else(|| Stream::new(end, target.len, self.runtime.now()));
        let goes_on_here = offset == stream.next;
        let (filled, is_usable) = stream.serve(session, offset, buf);
        if !is_usable {
            stream.close(session);
            return read(offset + filled as u64, &mut buf[filled..]);
        }
        if goes_on_here {
            stream.hits += 1;
        }
        stream.next = stream.next.max(end);
        if stream.hits >= HITS && stream.window == 0 && filled == 0 {
            stream.window = (4 * buf.len()).clamp(WINDOWS.0, WINDOWS.1);
            (stream.asked_to, stream.end) = (stream.next, target.len);
        }
        // These bytes are requested before the rest is read, so that both are under way at once.
        let is_usable = stream.go_on(session, target);
        let rest = match filled < buf.len() {
            true => read(offset + filled as u64, &mut buf[filled..]),
            false => Ok(()),
        };
        match is_usable {
            true => self.put_back(session, stream),
            false => stream.close(session),
        }
        rest
    }

    /// Takes a hint of the reader.
    pub(super) fn advise(
        &self,
        session: &Session,
        target: Target,
        access: Access,
        offset: u64,
        len: u64,
    ) {
        let end = offset.saturating_add(len).min(target.len);
        match access {
            Access::Random => {
                self.is_random.store(true, Ordering::Release);
                self.close(session);
            }
            Access::DontNeed => {
                let mut streams = self.streams.lock();
                for stream in streams.iter_mut() {
                    stream.drop_ready(session, end);
                }
            }
            Access::Sequential | Access::WillNeed => {
                if self.is_off.load(Ordering::Acquire) || offset >= end {
                    return;
                }
                self.is_random.store(false, Ordering::Release);
                let now = self.runtime.now();
                let mut stream = self
                    .take(offset)
                    .unwrap_or_else(|| Stream::new(offset, end, now));
                stream.end = stream.end.max(end);
                stream.hits = stream.hits.max(HITS);
                if access == Access::Sequential {
                    // The first read requests what follows it.
                    stream.window = stream.window.max(WINDOWS.1);
                    return self.put_back(session, stream);
                }
                match stream.ask(session, target, end.min(offset + ANNOUNCED_MAX)) {
                    true => self.put_back(session, stream),
                    false => stream.close(session),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_budget_is_never_exceeded() {
        let budget = AheadBudget::default();
        assert!(budget.take(60, 100) && budget.take(40, 100));
        assert!(!budget.take(1, 100) && !budget.take(usize::MAX, 100));
        budget.give_back(60);
        assert!(!budget.take(61, 100) && budget.take(60, 100));
        budget.give_back(100);
        assert_eq!(budget.bytes.load(Ordering::Relaxed), 0);
    }
}
