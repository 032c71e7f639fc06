//! A network in memory, whose connections are slow, are cut, or carry nothing any more, as a test
//! or a seed says.
//!
//! In a simulated run the processes at both ends are groups of tasks
//! ([`Runtime::spawn_process`]). An end belongs to the process that connected or accepted. If that
//! process was killed, the peer receives what was sent before, and then the end of the connection;
//! a listener of a killed process is gone.
//!
//! Rules:
//! - N1 to N4 of the parent module hold, and no stronger promises: a cut loses the bytes that were
//!   on their way, except for a prefix that the seed draws, which may end in the middle of a frame.
//! - A *frozen* connection is what a half-open one looks like: sends succeed until the buffer is
//!   full, and nothing arrives. Only a deadline shows it.
//! - Each direction holds at most [`BUFFER_BYTES`] bytes on their way.
//!
//! Threading: one mutex of the runtime for the whole network, never held over a wait or a point, so
//! a process that is killed never holds it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use super::{
    Address, Connection, LinkError, LinkErrorKind, LinkResult, Listener, Network, Received,
};
use crate::runtime::{Condvar, Instant, Mutex, MutexGuard, Runtime};
use crate::sim::GroupId;

/// The bytes that one direction of a connection holds on their way.
pub const BUFFER_BYTES: usize = 256 << 10;

/// The bytes that are sent as one piece, which arrives as a whole.
const PIECE_BYTES: usize = 64 << 10;

/// How often a waiting task looks whether the peer's process was killed. A kill wakes nobody.
const LOOK: Duration = Duration::from_millis(20);

/// How the connections of a [`MemoryNetwork`] behave from now on. Chances are for each piece that
/// is sent, in 1/65,536.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkFaults {
    /// The time that every piece takes.
    pub delay: Duration,
    /// Each piece takes up to this much longer.
    pub jitter: Duration,
    /// Bytes a second of each direction of a connection; 0 for no limit.
    pub bytes_per_s: u64,
    /// The chance that the connection is cut in the middle of the piece.
    pub cut: u16,
    /// The chance that the connection freezes.
    pub freeze: u16,
    /// The chance that the piece and all that follow take `stall` longer.
    pub stall_chance: u16,
    /// How long a stall lasts.
    pub stall: Duration,
}

struct Piece {
    arrives: Instant,
    bytes: Vec<u8>,
    taken: usize,
}

/// One end of a connection.
struct End {
    /// The process that it belongs to, in simulation.
    owner: Option<GroupId>,
    /// What is on its way to this end.
    inbox: VecDeque<Piece>,
    inbox_bytes: usize,
    /// When the last piece on its way to this end arrives.
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

struct Wire {
    ends: [End; 2],
    is_cut: bool,
    is_frozen: bool,
    /// The references to the ends.
    handles: usize,
}

struct Door {
    owner: Option<GroupId>,
    waiting: VecDeque<u64>,
    is_closed: bool,
}

#[derive(Default)]
struct State {
    faults: LinkFaults,
    /// Nobody can connect, and nobody is told so.
    is_silent: bool,
    next: u64,
    wires: BTreeMap<u64, Wire>,
    doors: BTreeMap<String, Door>,
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

    /// Cuts all connections. Of the bytes on their way a prefix still arrives.
    pub fn cut_all(&self) {
        let runtime = self.inner.runtime.clone();
        self.change(|state| {
            for wire in state.wires.values_mut() {
                wire.cut(&runtime);
            }
        });
    }

    /// Freezes all connections: nothing arrives any more, and nobody is told so.
    pub fn freeze_all(&self) {
        self.change(|state| state.wires.values_mut().for_each(|w| w.is_frozen = true));
    }

    /// Whether attempts to connect get no answer, as if the cable were unplugged. Connections that
    /// stand are not changed.
    pub fn set_silent(&self, is_silent: bool) {
        self.change(|state| state.is_silent = is_silent);
    }

    /// The number of connections of which an end is held.
    pub fn connection_count(&self) -> usize {
        self.inner.state.lock().wires.len()
    }

    /// All bytes that were sent, in both directions.
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

    /// Waits for a change, at most until the deadline. Returns `None` if it has come.
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
            // A timer that is due now would make simulated time stand still.
            left = left.min(also.since(now)).max(Duration::from_nanos(1));
        }
        if self.runtime.is_simulated() {
            left = left.min(LOOK);
        }
        Some(self.changed.wait_timeout(state, left).0)
    }
}

impl Wire {
    fn cut(&mut self, runtime: &Runtime) {
        if std::mem::replace(&mut self.is_cut, true) {
            return;
        }
        let now = runtime.now();
        for end in &mut self.ends {
            let on_their_way: usize = end.inbox.iter().map(Piece::len).sum();
            let mut kept = match self.is_frozen || on_their_way == 0 {
                true => 0,
                false => (runtime.random_u64() % (on_their_way as u64 + 1)) as usize,
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

/// A number below `bound`, from the seed.
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
        let door = state.doors.get_mut(name);
        let Some(door) = door.filter(|d| !d.is_closed && inner.is_alive(d.owner)) else {
            let detail = "nobody listens there";
            let kind = LinkErrorKind::Refused;
            return Err(LinkError::new(kind, OP, address.to_string(), detail));
        };
        let id = state.next;
        state.next += 1;
        let wire = Wire {
            ends: [End::new(owner), End::new(door.owner)],
            is_cut: false,
            is_frozen: false,
            handles: 2,
        };
        state.wires.insert(id, wire);
        door.waiting.push_back(id);
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
        let taken = state.doors.get(name);
        if taken.is_some_and(|door| !door.is_closed && inner.is_alive(door.owner)) {
            let kind = LinkErrorKind::AddressInUse;
            let detail = "somebody listens there";
            return Err(LinkError::new(kind, OP, address.to_string(), detail));
        }
        let door = Door {
            owner,
            waiting: VecDeque::new(),
            is_closed: false,
        };
        state.doors.insert(name.to_string(), door);
        Ok(Arc::new(MemoryListener {
            inner: inner.clone(),
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
    name: String,
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
            let door = state.doors.get_mut(&self.name);
            let Some(door) = door.filter(|door| !door.is_closed) else {
                return Err(LinkError::closed(OP, &self.address().to_string()));
            };
            if let Some(id) = door.waiting.pop_front() {
                if let Some(wire) = state.wires.get_mut(&id) {
                    wire.ends[1].owner = owner;
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
        if let Some(door) = state.doors.get_mut(&self.name) {
            door.is_closed = true;
            for id in door.waiting.drain(..) {
                if let Some(wire) = state.wires.get_mut(&id) {
                    wire.ends[1].is_closed = true;
                    wire.handles -= 1;
                    if wire.handles == 0 {
                        state.wires.remove(&id);
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
    fn wire<'a>(&self, state: &'a mut State) -> &'a mut Wire {
        let wire = state.wires.get_mut(&self.id);
        wire.expect("a wire stays while one of its ends is held")
    }

    /// Puts one piece on its way.
    fn put(&self, state: &mut State, bytes: &[u8]) {
        let runtime = &self.inner.runtime;
        let faults = state.faults;
        let wire = self.wire(state);
        if happens(runtime, faults.freeze) {
            wire.is_frozen = true;
        }
        let mut takes = faults.delay + drawn(runtime, faults.jitter);
        if happens(runtime, faults.stall_chance) {
            takes += faults.stall;
        }
        let now = runtime.now();
        let is_cut = happens(runtime, faults.cut);
        let to = &mut wire.ends[1 - self.side];
        // With a rate, a piece leaves when the one before it has left; without one, it only
        // overtakes nothing.
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
            wire.cut(runtime);
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
                let wire = self.wire(&mut state);
                let [here, there] = [self.side, 1 - self.side].map(|side| &wire.ends[side]);
                let is_gone = there.is_closed || !inner.is_alive(there.owner);
                if here.is_closed || wire.is_cut || is_gone && !wire.is_frozen {
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
            let wire = self.wire(&mut state);
            let (is_cut, is_frozen) = (wire.is_cut, wire.is_frozen);
            let other = &wire.ends[1 - self.side];
            let is_gone = other.is_closed || !inner.is_alive(other.owner);
            let here = &mut wire.ends[self.side];
            if here.is_closed {
                return Err(LinkError::closed(OP, &self.peer));
            }
            let mut next_arrives = None;
            // A connection that was cut delivers the prefix that is left of what was on its way.
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
        self.wire(&mut state).ends[self.side].is_closed = true;
        self.inner.changed.notify_all();
    }
}

impl Drop for MemoryConnection {
    fn drop(&mut self) {
        let mut state = self.inner.state.lock();
        let wire = self.wire(&mut state);
        wire.ends[self.side].is_closed = true;
        wire.handles -= 1;
        if wire.handles == 0 {
            state.wires.remove(&self.id);
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
