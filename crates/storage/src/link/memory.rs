//! A network in memory. A test or a seed decides whether its connections are slow, are cut, or stop
//! carrying bytes.
//!
//! In a simulated run the processes at both ends are groups of tasks ([`Runtime::spawn_process`]).
//! An end belongs to the process that connected or accepted. If that process was killed, the peer
//! receives what was sent before, and then the end of the connection. A listener of a killed
//! process is gone.
//!
//! Rules:
//! - N1 to N4 of the parent module hold, and nothing stronger: a cut loses the bytes in flight,
//!   except for a prefix whose length the seed determines. The prefix may end in the middle of a
//!   frame.
//! - A *frozen* connection behaves like a half-open one: sends succeed until the buffer is full,
//!   and nothing arrives. A caller notices this only because a deadline passes.
//! - Each direction of a connection has at most [`BUFFER_BYTES`] bytes in flight.
//!
//! Threading: one mutex of the runtime for the whole network. It is never held during a wait or at
//! a point where the simulator can switch tasks, so a killed process never holds it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use super::{
    Address, Connection, LinkError, LinkErrorKind, LinkResult, Listener, Network, Received,
};
use crate::runtime::{Condvar, Instant, Mutex, MutexGuard, Runtime};
use crate::sim::GroupId;

/// The maximum number of bytes in flight in one direction of a connection.
const BUFFER_BYTES: usize = 256 << 10;

/// The maximum number of bytes that arrive together. A longer send arrives in several pieces.
const PIECE_BYTES: usize = 64 << 10;

/// How often a waiting task checks whether the peer's process was killed. A kill wakes no task.
const LOOK: Duration = Duration::from_millis(20);

/// How the connections of a [`MemoryNetwork`] behave from now on. Each chance applies to every
/// piece that is sent, and is given in units of 1/65,536.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkFaults {
    /// The time from sending a piece to its arrival.
    pub delay: Duration,
    /// The maximum additional time, which is drawn at random for each piece.
    pub jitter: Duration,
    /// Bytes per second of each direction of a connection; 0 means no limit.
    pub bytes_per_s: u64,
    /// The chance that the connection is cut in the middle of the piece.
    pub cut: u16,
    /// The chance that the connection freezes.
    pub freeze: u16,
    /// The chance that the piece, and all pieces that follow it, arrive later by `stall`.
    pub stall_chance: u16,
    /// How long a stall lasts.
    pub stall: Duration,
}

/// Bytes in flight that arrive together.
struct Piece {
    arrives: Instant,
    bytes: Vec<u8>,
    /// The number of bytes of the piece that were received.
    taken: usize,
}

/// One end of a connection.
struct End {
    /// The process that the end belongs to, in simulation.
    owner: Option<GroupId>,
    /// The bytes in flight to this end.
    inbox: VecDeque<Piece>,
    inbox_bytes: usize,
    /// The time at which the last piece sent to this end arrives.
    last_arrives: Instant,
    is_closed: bool,
}

impl End {
    fn new(owner: Option<GroupId>) -> End {
        End {
            owner,
            inbox: VecDeque::new(),
            inbox_bytes: 0,
            last_arrives: Instant::default(),
            is_closed: false,
        }
    }
}

/// The network's state of a connection.
struct Pair {
    ends: [End; 2],
    is_cut: bool,
    is_frozen: bool,
    /// How many of the ends are held, or wait to be accepted.
    handles: usize,
}

/// The network's state of a listener.
struct Listening {
    id: u64,
    owner: Option<GroupId>,
    /// The connections that wait to be accepted.
    waiting: VecDeque<u64>,
    is_closed: bool,
}

#[derive(Default)]
struct State {
    faults: LinkFaults,
    /// If true, attempts to connect get no answer.
    is_silent: bool,
    next: u64,
    pairs: BTreeMap<u64, Pair>,
    listeners: BTreeMap<String, Listening>,
    sent_bytes: u64,
}

struct Inner {
    runtime: Runtime,
    state: Mutex<State>,
    changed: Condvar,
}

/// See the module. A clone is another handle to the same network.
#[derive(Clone)]
pub struct MemoryNetwork {
    inner: Arc<Inner>,
}

impl MemoryNetwork {
    /// A network without faults.
    pub fn new(runtime: &Runtime) -> MemoryNetwork {
        MemoryNetwork {
            inner: Arc::new(Inner {
                runtime: runtime.clone(),
                state: runtime.mutex(State::default()),
                changed: runtime.condvar(),
            }),
        }
    }

    /// Sets how connections behave from now on.
    pub fn set_faults(&self, faults: LinkFaults) {
        self.change(|state| state.faults = faults);
    }

    /// Cuts all connections. A prefix of the bytes in flight still arrives.
    pub fn cut_all(&self) {
        let runtime = self.inner.runtime.clone();
        self.change(|state| {
            for pair in state.pairs.values_mut() {
                pair.cut(&runtime);
            }
        });
    }

    /// Freezes all connections: nothing arrives any more, and neither side is told.
    pub fn freeze_all(&self) {
        self.change(|state| state.pairs.values_mut().for_each(|w| w.is_frozen = true));
    }

    /// Sets whether attempts to connect get no answer, as if the cable were unplugged. Existing
    /// connections are not changed.
    pub fn set_silent(&self, is_silent: bool) {
        self.change(|state| state.is_silent = is_silent);
    }

    /// The number of connections of which at least one end is held.
    pub fn connection_count(&self) -> usize {
        self.inner.state.lock().pairs.len()
    }

    /// The number of all bytes that were sent, in both directions.
    pub fn sent_bytes(&self) -> u64 {
        self.inner.state.lock().sent_bytes
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.inner.state.lock());
        self.inner.changed.notify_all();
    }
}

impl Inner {
    /// The process of the calling task.
    fn caller(&self) -> Option<GroupId> {
        self.runtime.is_simulated().then(|| self.runtime.group())
    }

    fn is_alive(&self, owner: Option<GroupId>) -> bool {
        owner.is_none_or(|group| self.runtime.is_group_alive(group))
    }

    /// Waits for a change, at most until the deadline. Returns `None` if the deadline has passed.
    fn wait<'a>(
        &'a self,
        state: MutexGuard<'a, State>,
        deadline: Instant,
        also: Option<Instant>,
    ) -> Option<MutexGuard<'a, State>> {
        let now = self.runtime.now();
        if now >= deadline {
            return None;
        }
        let mut left = deadline.since(now);
        if let Some(also) = also {
            // A timer that is due now would stop simulated time.
            left = left.min(also.since(now)).max(Duration::from_nanos(1));
        }
        if self.runtime.is_simulated() {
            left = left.min(LOOK);
        }
        Some(self.changed.wait_timeout(state, left).0)
    }
}

impl Pair {
    fn cut(&mut self, runtime: &Runtime) {
        if std::mem::replace(&mut self.is_cut, true) {
            return;
        }
        let now = runtime.now();
        for end in &mut self.ends {
            let mut kept = match self.is_frozen {
                true => 0,
                false => below(runtime, end.inbox_bytes as u64 + 1) as usize,
            };
            for piece in &mut end.inbox {
                let len = piece.len().min(kept);
                piece.bytes.truncate(piece.taken + len);
                piece.arrives = piece.arrives.min(now);
                kept -= len;
            }
            end.inbox.retain(|piece| piece.len() > 0);
            end.inbox_bytes = end.inbox.iter().map(Piece::len).sum();
        }
    }
}

impl Piece {
    fn len(&self) -> usize {
        self.bytes.len() - self.taken
    }
}

/// A random number below `bound`, determined by the seed.
fn below(runtime: &Runtime, bound: u64) -> u64 {
    match bound {
        0 => 0,
        _ => runtime.random_u64() % bound,
    }
}

fn happens(runtime: &Runtime, chance: u16) -> bool {
    chance > 0 && below(runtime, 1 << 16) < u64::from(chance)
}

impl Network for MemoryNetwork {
    fn connect(&self, address: &Address, deadline: Instant) -> LinkResult<Arc<dyn Connection>> {
        const OP: &str = "connect to";
        let inner = &self.inner;
        let name = name_of(OP, address)?;
        let owner = inner.caller();
        let mut state = inner.state.lock();
        while state.is_silent {
            match inner.wait(state, deadline, None) {
                Some(next) => state = next,
                None => return Err(LinkError::timed_out(OP, &address.to_string())),
            }
        }
        let state = &mut *state;
        let listening = state.listeners.get_mut(name);
        let Some(listening) = listening.filter(|d| !d.is_closed && inner.is_alive(d.owner)) else {
            let detail = "nobody listens there";
            let kind = LinkErrorKind::Refused;
            return Err(LinkError::new(kind, OP, address.to_string(), detail));
        };
        let id = state.next;
        state.next += 1;
        let pair = Pair {
            ends: [End::new(owner), End::new(listening.owner)],
            is_cut: false,
            is_frozen: false,
            handles: 2,
        };
        state.pairs.insert(id, pair);
        listening.waiting.push_back(id);
        inner.changed.notify_all();
        Ok(Arc::new(MemoryConnection {
            inner: inner.clone(),
            id,
            side: 0,
            peer: address.to_string(),
        }))
    }

    fn listen(&self, address: &Address) -> LinkResult<Arc<dyn Listener>> {
        const OP: &str = "listen at";
        let inner = &self.inner;
        let name = name_of(OP, address)?;
        let owner = inner.caller();
        let mut state = inner.state.lock();
        let taken = state.listeners.get(name);
        if taken.is_some_and(|listening| !listening.is_closed && inner.is_alive(listening.owner)) {
            let kind = LinkErrorKind::AddressInUse;
            let detail = "somebody listens there";
            return Err(LinkError::new(kind, OP, address.to_string(), detail));
        }
        let id = state.next;
        state.next += 1;
        let listening = Listening {
            id,
            owner,
            waiting: VecDeque::new(),
            is_closed: false,
        };
        state.listeners.insert(name.to_string(), listening);
        Ok(Arc::new(MemoryListener {
            inner: inner.clone(),
            id,
            name: name.to_string(),
        }))
    }
}

fn name_of<'a>(op: &'static str, address: &'a Address) -> LinkResult<&'a str> {
    match address {
        Address::Memory(name) => Ok(name),
        other => Err(LinkError::new(
            LinkErrorKind::InvalidAddress,
            op,
            other.to_string(),
            "this network has addresses memory:NAME only",
        )),
    }
}

struct MemoryListener {
    inner: Arc<Inner>,
    /// Distinguishes this listener from later listeners at the same address.
    id: u64,
    name: String,
}

impl MemoryListener {
    /// The state of this listener. `None` if it was closed and another one listens at its address
    /// now.
    fn listening<'a>(&self, state: &'a mut State) -> Option<&'a mut Listening> {
        let listening = state.listeners.get_mut(&self.name);
        listening.filter(|listening| listening.id == self.id)
    }
}

impl Listener for MemoryListener {
    fn address(&self) -> Address {
        Address::Memory(self.name.clone())
    }

    fn accept(&self, deadline: Instant) -> LinkResult<Option<Arc<dyn Connection>>> {
        const OP: &str = "accept at";
        let inner = &self.inner;
        let owner = inner.caller();
        let mut state = inner.state.lock();
        loop {
            let listening = self.listening(&mut state);
            let Some(listening) = listening.filter(|listening| !listening.is_closed) else {
                return Err(LinkError::closed(OP, &self.address().to_string()));
            };
            if let Some(id) = listening.waiting.pop_front() {
                if let Some(pair) = state.pairs.get_mut(&id) {
                    pair.ends[1].owner = owner;
                }
                return Ok(Some(Arc::new(MemoryConnection {
                    inner: inner.clone(),
                    id,
                    side: 1,
                    peer: format!("memory:{}#{id}", self.name),
                })));
            }
            match inner.wait(state, deadline, None) {
                Some(next) => state = next,
                None => return Ok(None),
            }
        }
    }

    fn close(&self) {
        let mut state = self.inner.state.lock();
        let state = &mut *state;
        let listening = state.listeners.get_mut(&self.name);
        if let Some(listening) = listening.filter(|listening| listening.id == self.id) {
            listening.is_closed = true;
            for id in listening.waiting.drain(..) {
                if let Some(pair) = state.pairs.get_mut(&id) {
                    pair.ends[1].is_closed = true;
                    pair.handles -= 1;
                    if pair.handles == 0 {
                        state.pairs.remove(&id);
                    }
                }
            }
        }
        self.inner.changed.notify_all();
    }
}

struct MemoryConnection {
    inner: Arc<Inner>,
    id: u64,
    /// The index of this end.
    side: usize,
    peer: String,
}

impl MemoryConnection {
    fn pair<'a>(&self, state: &'a mut State) -> &'a mut Pair {
        let pair = state.pairs.get_mut(&self.id);
        pair.expect("a pair stays while one of its ends is held")
    }

    /// Sends one piece.
    fn put(&self, state: &mut State, bytes: &[u8]) {
        let runtime = &self.inner.runtime;
        let faults = state.faults;
        let pair = self.pair(state);
        if happens(runtime, faults.freeze) {
            pair.is_frozen = true;
        }
        let mut takes = faults.delay + drawn(runtime, faults.jitter);
        if happens(runtime, faults.stall_chance) {
            takes += faults.stall;
        }
        let now = runtime.now();
        let is_cut = happens(runtime, faults.cut);
        let to = &mut pair.ends[1 - self.side];
        // No piece overtakes the one before it. With a rate limit, it arrives after that one, later
        // by the time that its own bytes take.
        let mut arrives = (now + takes).max(to.last_arrives);
        if let Some(nanos) = (bytes.len() as u64 * 1_000_000_000).checked_div(faults.bytes_per_s) {
            arrives = arrives + Duration::from_nanos(nanos);
        }
        to.last_arrives = arrives;
        to.inbox_bytes += bytes.len();
        to.inbox.push_back(Piece {
            arrives,
            bytes: bytes.to_vec(),
            taken: 0,
        });
        if is_cut {
            pair.cut(runtime);
        }
        state.sent_bytes += bytes.len() as u64;
    }
}

fn drawn(runtime: &Runtime, most: Duration) -> Duration {
    let nanos = u64::try_from(most.as_nanos()).unwrap_or(u64::MAX);
    Duration::from_nanos(below(runtime, nanos))
}

impl Connection for MemoryConnection {
    fn peer(&self) -> String {
        self.peer.clone()
    }

    fn is_local(&self) -> bool {
        true
    }

    fn send(&self, parts: &[&[u8]], deadline: Instant) -> LinkResult<()> {
        const OP: &str = "send to";
        let inner = &self.inner;
        let bytes = parts.concat();
        for piece in bytes.chunks(PIECE_BYTES) {
            let mut state = inner.state.lock();
            loop {
                let pair = self.pair(&mut state);
                let [here, there] = [self.side, 1 - self.side].map(|side| &pair.ends[side]);
                let is_gone = there.is_closed || !inner.is_alive(there.owner);
                if here.is_closed || pair.is_cut || is_gone && !pair.is_frozen {
                    return Err(LinkError::closed(OP, &self.peer));
                }
                if there.inbox_bytes + piece.len() <= BUFFER_BYTES {
                    break;
                }
                match inner.wait(state, deadline, None) {
                    Some(next) => state = next,
                    None => {
                        self.close();
                        return Err(LinkError::timed_out(OP, &self.peer));
                    }
                }
            }
            self.put(&mut state, piece);
            inner.changed.notify_all();
        }
        Ok(())
    }

    fn receive(&self, buf: &mut [u8], deadline: Instant) -> LinkResult<Received> {
        const OP: &str = "receive from";
        let inner = &self.inner;
        let mut state = inner.state.lock();
        loop {
            let now = inner.runtime.now();
            let pair = self.pair(&mut state);
            let (is_cut, is_frozen) = (pair.is_cut, pair.is_frozen);
            let other = &pair.ends[1 - self.side];
            let is_gone = other.is_closed || !inner.is_alive(other.owner);
            let here = &mut pair.ends[self.side];
            if here.is_closed {
                return Err(LinkError::closed(OP, &self.peer));
            }
            let mut next_arrives = None;
            // A connection that was cut delivers the prefix of the bytes in flight that the cut
            // left.
            if !is_frozen || is_cut {
                match here.inbox.front_mut() {
                    Some(piece) if piece.arrives <= now => {
                        let len = piece.len().min(buf.len());
                        buf[..len].copy_from_slice(&piece.bytes[piece.taken..][..len]);
                        piece.taken += len;
                        if piece.len() == 0 {
                            here.inbox.pop_front();
                        }
                        here.inbox_bytes -= len;
                        inner.changed.notify_all();
                        return Ok(Received::Bytes(len));
                    }
                    Some(piece) => next_arrives = Some(piece.arrives),
                    None if is_cut => return Err(LinkError::closed(OP, &self.peer)),
                    None if is_gone => return Ok(Received::End),
                    None => {}
                }
            }
            match inner.wait(state, deadline, next_arrives) {
                Some(next) => state = next,
                None => return Ok(Received::Nothing),
            }
        }
    }

    fn close(&self) {
        let mut state = self.inner.state.lock();
        self.pair(&mut state).ends[self.side].is_closed = true;
        self.inner.changed.notify_all();
    }
}

impl Drop for MemoryConnection {
    fn drop(&mut self) {
        let mut state = self.inner.state.lock();
        let pair = self.pair(&mut state);
        pair.ends[self.side].is_closed = true;
        pair.handles -= 1;
        if pair.handles == 0 {
            state.pairs.remove(&self.id);
        }
        self.inner.changed.notify_all();
    }
}

impl Drop for MemoryListener {
    fn drop(&mut self) {
        self.close();
    }
}

#[cfg(test)]
mod tests;
