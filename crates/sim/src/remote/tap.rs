//! The link between hosts and a device, which sees every message.
//!
//! [`Tap`] is a [`Network`] around another one. At a message that it draws at random, it does one
//! of these: it ends the connection, possibly in the middle of the message; it sends the message
//! twice; or it kills the device or the host. This happens before or after a request is sent, or
//! before or after its answer is sent. The tap prefers messages and moments at which it has done
//! least, so that rare ones are hit too. It can also hold everything that hosts send, as if they
//! were cut off, and let it arrive later, when nobody waits for it any more.
//!
//! Threading: shared by the processes of a run. A std mutex is never held at a point where tasks
//! can be switched.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use siltstone_device::wire::answer::WORKING;
use siltstone_device::wire::frame::HEADER_BYTES;
use siltstone_device::wire::hello::{HELLO_HEAD_BYTES, hello_len};
use siltstone_device::wire::request::{FileChange, NamesChange};
use siltstone_device::wire::{FrameReader, Request, ServerHello};
use siltstone_storage::link::{
    Address, Connection, LinkError, LinkErrorKind, LinkResult, Listener, MemoryNetwork, Network,
    Received,
};
use siltstone_storage::sim::GroupId;
use siltstone_storage::{Instant, Runtime};

use super::lock;
use crate::coverage::Coverage;
use crate::rng::Rng;

/// The moment at which something happens to a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Moment {
    /// The host is about to send a request.
    BeforeRequest,
    /// The host has sent a request.
    AfterRequest,
    /// The device has executed a request, and is about to answer.
    BeforeAnswer,
    /// The device has answered.
    AfterAnswer,
}

/// Something that happens at a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Act {
    /// The connection ends.
    Cut,
    /// A part of the message is sent, and then the connection ends.
    CutWithin,
    /// The message is sent twice.
    Double,
    /// The device's process is killed.
    KillDevice,
    /// The host's process is killed.
    KillHost,
}

/// The name of a request, for coverage.
pub fn name_of(request: &Request) -> &'static str {
    match request {
        Request::KeepAlive => "keep_alive",
        Request::Goodbye => "goodbye",
        Request::Lease { .. } => "lease",
        Request::Release { .. } => "release",
        Request::Reopen { .. } => "reopen",
        Request::Close { .. } => "close",
        Request::Open { .. } => "open",
        Request::Read { .. } => "read",
        Request::ReadSmall { .. } => "read_small",
        Request::List { .. } => "list",
        Request::ProveFolder { .. } => "prove_folder",
        Request::WaitJob { .. } => "wait_job",
        Request::CancelJob { .. } => "cancel_job",
        Request::ReadOutcome { .. } => "read_outcome",
        Request::ReadPart { .. } => "read_part",
        Request::ForgetJob { .. } => "forget_job",
        Request::Survivors(_) => "survivors",
        Request::Names { change, .. } => match change {
            NamesChange::Create { .. } => "create",
            NamesChange::Recycle { .. } => "recycle",
            NamesChange::SyncObject { .. } => "sync_object",
            NamesChange::Delete { .. } => "delete",
            NamesChange::Rename { .. } => "rename",
            NamesChange::Publish { .. } => "publish",
            NamesChange::Replace { .. } => "replace",
            NamesChange::Import { .. } => "import",
            NamesChange::SyncDir => "sync_dir",
            NamesChange::SyncParents => "sync_parents",
            NamesChange::BeginJob(_) => "begin_job",
            NamesChange::BeginRebuild(_) => "begin_rebuild",
        },
        Request::File { change, .. } => match change {
            FileChange::Append { .. } => "append",
            FileChange::Reserve { .. } => "reserve",
            FileChange::Truncate => "truncate",
            FileChange::Sync => "sync",
        },
        _ => "other",
    }
}

/// A request that was sent, with the state of the session for which it was meant.
#[derive(Clone)]
pub(super) struct Recorded {
    pub(super) hello: Arc<Vec<u8>>,
    pub(super) state: [u8; 16],
    pub(super) request: Request,
    pub(super) bulk: Vec<u8>,
}

/// The maximum number of requests that are recorded, and of the bulk bytes of such a request.
const RECORDED_MAX: usize = 400;
const RECORDED_BULK_MAX: usize = 16 << 10;

/// The message at which the next act happens.
enum Aim {
    /// The n-th message from now on.
    Any(u64),
    /// The n-th message of this kind from now on.
    At(Moment, &'static str, u64),
}

struct State {
    rng: Rng,
    acts: Vec<Act>,
    /// The mean number of messages between two acts.
    gap: u64,
    aim: Option<(Aim, Act)>,
    /// The messages that were seen at each moment, and how often something happened there.
    seen: BTreeMap<(Moment, &'static str), u64>,
    device: Option<GroupId>,
    host: Option<GroupId>,
    coverage: Coverage,
    last: Option<(Moment, &'static str, Act)>,
    recorded: Vec<Recorded>,
    held: Vec<Arc<Held>>,
}

/// What a host that is cut off has sent on one connection.
struct Held {
    connection: Arc<dyn Connection>,
    bytes: Mutex<Vec<Vec<u8>>>,
    is_closed: AtomicBool,
}

struct Inner {
    runtime: Runtime,
    network: MemoryNetwork,
    state: Mutex<State>,
    is_holding: AtomicBool,
    is_paused: AtomicBool,
}

/// See the module. A clone is another handle to the same link.
#[derive(Clone)]
pub struct Tap {
    inner: Arc<Inner>,
}

impl Tap {
    /// A tap at which one of `acts` happens about every `gap` messages. If there are no acts,
    /// nothing happens.
    pub fn new(runtime: &Runtime, network: &MemoryNetwork, seed: u64, acts: &[Act]) -> Tap {
        let mut rng = Rng::new(seed ^ 0x7A90);
        let gap = *rng.pick(&[10, 30, 100, 300]);
        Tap {
            inner: Arc::new(Inner {
                runtime: runtime.clone(),
                network: network.clone(),
                state: Mutex::new(State {
                    rng,
                    acts: acts.to_vec(),
                    gap,
                    aim: None,
                    seen: BTreeMap::new(),
                    device: None,
                    host: None,
                    coverage: Coverage::default(),
                    last: None,
                    recorded: Vec::new(),
                    held: Vec::new(),
                }),
                is_holding: AtomicBool::new(false),
                is_paused: AtomicBool::new(false),
            }),
        }
    }

    /// Sets the process of the device, from now on.
    pub fn set_device(&self, group: GroupId) {
        lock(&self.inner.state).device = Some(group);
    }

    /// Sets the process of the host, from now on. What earlier hosts sent is forgotten.
    pub fn set_host(&self, group: GroupId) {
        let mut state = lock(&self.inner.state);
        state.host = Some(group);
        state.recorded.clear();
    }

    /// Makes this act the next one. It happens at the n-th message of this kind from now on.
    pub fn aim(&self, act: Act, moment: Moment, name: &'static str, nth: u64) {
        lock(&self.inner.state).aim = Some((Aim::At(moment, name, nth), act));
    }

    /// Ends all acts: nothing happens any more.
    pub fn end(&self) {
        let mut state = lock(&self.inner.state);
        (state.acts, state.aim) = (Vec::new(), None);
    }

    /// Returns what happened last since the last call, if anything.
    pub fn take_last(&self) -> Option<(Moment, &'static str, Act)> {
        lock(&self.inner.state).last.take()
    }

    /// The coverage that was reached.
    pub fn coverage(&self) -> Coverage {
        lock(&self.inner.state).coverage.clone()
    }

    /// A recorded request, chosen by `draw`.
    pub(super) fn recorded(&self, draw: u64) -> Option<Recorded> {
        let state = lock(&self.inner.state);
        let at = draw.checked_rem(state.recorded.len() as u64)?;
        Some(state.recorded[at as usize].clone())
    }

    /// The network below the tap.
    pub(super) fn network(&self) -> &MemoryNetwork {
        &self.inner.network
    }

    /// Cuts the hosts off: from now on nothing that they send arrives, and they receive nothing.
    pub fn hold(&self) {
        self.inner.is_holding.store(true, Ordering::SeqCst);
    }

    /// Lets everything arrive that hosts have sent since [`Tap::hold`]. Then the link works again.
    pub fn let_go(&self) {
        self.inner.is_holding.store(false, Ordering::SeqCst);
        let held = std::mem::take(&mut lock(&self.inner.state).held);
        for one in held {
            let bytes = std::mem::take(&mut *lock(&one.bytes));
            let deadline = self.inner.runtime.now() + std::time::Duration::from_secs(5);
            for part in &bytes {
                if one.connection.send(&[part], deadline).is_err() {
                    break;
                }
                lock(&self.inner.state).coverage.add("link.arrived_late");
            }
            if one.is_closed.load(Ordering::SeqCst) {
                one.connection.close();
            }
        }
    }

    /// From now on every call of a host stops, as if the host's process were stopped. Its
    /// connections stay open.
    pub fn pause(&self) {
        self.inner.is_paused.store(true, Ordering::SeqCst);
    }

    /// Lets the stopped calls continue.
    pub fn resume(&self) {
        self.inner.is_paused.store(false, Ordering::SeqCst);
    }

    fn wait_while_paused(&self) {
        let pause = std::time::Duration::from_millis(50);
        while self.inner.is_paused.load(Ordering::SeqCst) {
            self.inner.runtime.sleep(pause);
        }
    }

    fn is_holding(&self) -> bool {
        self.inner.is_holding.load(Ordering::SeqCst)
    }

    /// Decides what happens at a message.
    fn at(&self, moment: Moment, name: &'static str) -> Option<Act> {
        let mut state = lock(&self.inner.state);
        let state = &mut *state;
        state.seen.entry((moment, name)).or_default();
        let is_now = match &mut state.aim {
            None => false,
            Some((Aim::Any(left), _)) => {
                *left -= 1;
                *left == 0
            }
            Some((Aim::At(m, n, left), _)) => {
                *left -= u64::from((*m, *n) == (moment, name));
                *left == 0
            }
        };
        let act = state.aim.take_if(|_| is_now).map(|(_, act)| act);
        if state.aim.is_none() && !state.acts.is_empty() {
            let next = *state.rng.pick(&state.acts);
            let any = 1 + state.rng.below(2 * state.gap);
            let aim = match state.rng.chance(50) {
                true => Aim::Any(any),
                false => {
                    let least = state.seen.values().min().copied().unwrap_or(0);
                    let least: Vec<_> = state.seen.iter().filter(|(_, n)| **n == least).collect();
                    let (moment, name) = *state.rng.pick(&least).0;
                    Aim::At(moment, name, 1 + state.rng.below(4))
                }
            };
            state.aim = Some((aim, next));
        }
        if let Some(act) = act {
            *state.seen.entry((moment, name)).or_default() += 1;
            state.last = Some((moment, name, act));
            state.coverage.add(&format!("link.{act:?}.{moment:?}"));
            state.coverage.add(&format!("link.{act:?}.at.{name}"));
        }
        act
    }

    /// Kills the process that the act names, if there is one. Does not return if that is the
    /// caller's process.
    fn kill(&self, act: Act) {
        let group = {
            let state = lock(&self.inner.state);
            match act {
                Act::KillDevice => state.device,
                Act::KillHost => state.host,
                _ => None,
            }
        };
        if let Some(group) = group.filter(|group| self.inner.runtime.is_group_alive(*group)) {
            self.inner.runtime.kill_group(group);
        }
    }

    fn record(&self, recorded: Recorded) {
        let mut state = lock(&self.inner.state);
        if state.recorded.len() >= RECORDED_MAX {
            let at = state.rng.index(RECORDED_MAX);
            state.recorded.swap_remove(at);
        }
        state.recorded.push(recorded);
    }

    fn wait_until(&self, deadline: Instant) {
        let pause = std::time::Duration::from_millis(50);
        while self.is_holding() && self.inner.runtime.now() < deadline {
            self.inner.runtime.sleep(pause);
        }
    }
}

impl Network for Tap {
    fn connect(&self, address: &Address, deadline: Instant) -> LinkResult<Arc<dyn Connection>> {
        self.wait_while_paused();
        self.wait_until(deadline);
        if self.is_holding() {
            let kind = LinkErrorKind::TimedOut;
            let peer = address.to_string();
            return Err(LinkError::new(kind, "connect to", peer, "it was cut off"));
        }
        let inner = self.inner.network.connect(address, deadline)?;
        Ok(Arc::new(HostSide {
            inner,
            tap: self.clone(),
            hello: Mutex::new(Hello::default()),
            held: Mutex::new(None),
        }))
    }

    fn listen(&self, address: &Address) -> LinkResult<Arc<dyn Listener>> {
        let inner = self.inner.network.listen(address)?;
        let tap = self.clone();
        Ok(Arc::new(Listening { inner, tap }))
    }
}

struct Listening {
    inner: Arc<dyn Listener>,
    tap: Tap,
}

impl Listener for Listening {
    fn address(&self) -> Address {
        self.inner.address()
    }
    fn accept(&self, deadline: Instant) -> LinkResult<Option<Arc<dyn Connection>>> {
        let accepted = self.inner.accept(deadline)?;
        Ok(accepted.map(|inner| {
            Arc::new(DeviceSide {
                inner,
                tap: self.tap.clone(),
                heard: Mutex::new(Heard::default()),
            }) as Arc<dyn Connection>
        }))
    }
    fn close(&self) {
        self.inner.close();
    }
}

fn closed(op: &'static str) -> LinkError {
    LinkError::new(LinkErrorKind::Closed, op, "peer", "it was cut")
}

/// Sends a message, unless the act says that it is cut or sent twice.
fn send(
    inner: &dyn Connection,
    parts: &[&[u8]],
    deadline: Instant,
    act: Option<Act>,
    tap: &Tap,
) -> LinkResult<()> {
    match act {
        Some(Act::CutWithin) => {
            let bytes = parts.concat();
            let len = lock(&tap.inner.state).rng.index(bytes.len().max(1));
            let _ = inner.send(&[&bytes[..len]], deadline);
            inner.close();
            Err(closed("send"))
        }
        Some(Act::Double) => {
            inner.send(parts, deadline)?;
            inner.send(parts, deadline)
        }
        _ => inner.send(parts, deadline),
    }
}

/// What a host's end knows about the two hellos.
#[derive(Default)]
struct Hello {
    sent: Option<Arc<Vec<u8>>>,
    answer: Vec<u8>,
    state: Option<[u8; 16]>,
}

/// The host's end of a connection.
struct HostSide {
    inner: Arc<dyn Connection>,
    tap: Tap,
    hello: Mutex<Hello>,
    held: Mutex<Option<Arc<Held>>>,
}

impl HostSide {
    /// Keeps a message of a host that is cut off. Returns false if the host is not cut off.
    fn keep(&self, parts: &[&[u8]]) -> bool {
        let mut held = lock(&self.held);
        let waits = held
            .as_ref()
            .is_some_and(|held| !lock(&held.bytes).is_empty());
        if !self.tap.is_holding() && !waits {
            return false;
        }
        let new = || {
            let held = Arc::new(Held {
                connection: Arc::clone(&self.inner),
                bytes: Mutex::new(Vec::new()),
                is_closed: AtomicBool::new(false),
            });
            lock(&self.tap.inner.state).held.push(Arc::clone(&held));
            held
        };
        let held = held.get_or_insert_with(new);
        lock(&held.bytes).push(parts.concat());
        true
    }
}

impl Connection for HostSide {
    fn peer(&self) -> String {
        self.inner.peer()
    }
    fn is_local(&self) -> bool {
        self.inner.is_local()
    }
    fn send(&self, parts: &[&[u8]], deadline: Instant) -> LinkResult<()> {
        self.tap.wait_while_paused();
        let (hello, state) = {
            let mut hello = lock(&self.hello);
            let sent = hello.sent.clone();
            if sent.is_none() {
                hello.sent = Some(Arc::new(parts.concat()));
            }
            (sent, hello.state)
        };
        let first = hello.as_ref().and_then(|_| first_request_of(parts));
        let name = first
            .as_ref()
            .map_or("hello", |(request, _)| name_of(request));
        if let (Some(hello), Some(state), Some((request, bulk_len))) = (hello, state, first)
            && bulk_len <= RECORDED_BULK_MAX
        {
            let mut bulk = parts[2..].concat();
            bulk.truncate(bulk_len);
            self.tap.record(Recorded {
                hello,
                state,
                request,
                bulk,
            });
        }
        if self.keep(parts) {
            return Ok(());
        }
        let act = self.tap.at(Moment::BeforeRequest, name);
        match act {
            Some(Act::Cut) => {
                self.inner.close();
                return Err(closed("send"));
            }
            Some(act) => self.tap.kill(act),
            None => {}
        }
        send(&*self.inner, parts, deadline, act, &self.tap)?;
        match self.tap.at(Moment::AfterRequest, name) {
            Some(Act::Cut | Act::CutWithin) => self.inner.close(),
            Some(act) => self.tap.kill(act),
            None => {}
        }
        Ok(())
    }
    fn receive(&self, buf: &mut [u8], deadline: Instant) -> LinkResult<Received> {
        if self.tap.is_holding() {
            self.tap.wait_until(deadline);
            return Ok(Received::Nothing);
        }
        let received = self.inner.receive(buf, deadline)?;
        self.tap.wait_while_paused();
        let mut hello = lock(&self.hello);
        if let (Received::Bytes(len), None) = (&received, hello.state) {
            hello.answer.extend_from_slice(&buf[..*len]);
            if let Ok((_, ServerHello::Welcome(welcome))) = ServerHello::decode(&hello.answer) {
                hello.state = Some(welcome.state);
            }
        }
        Ok(received)
    }
    fn close(&self) {
        let held = lock(&self.held).clone();
        match held.filter(|held| !lock(&held.bytes).is_empty()) {
            // What was sent still arrives later.
            Some(held) => held.is_closed.store(true, Ordering::SeqCst),
            None => self.inner.close(),
        }
    }
}

/// The first request in a send, and the number of its bulk bytes. Other requests may follow it in
/// the same call.
fn first_request_of(parts: &[&[u8]]) -> Option<(Request, usize)> {
    let [header, fields, ..] = parts else {
        return None;
    };
    let header: &[u8; HEADER_BYTES] = header.first_chunk()?;
    let header = siltstone_device::wire::FrameHeader::decode(header).ok()?;
    let request = Request::decode(header.kind, fields).ok()?;
    Some((request, header.bulk_len as usize))
}

/// What a device's end has received.
#[derive(Default)]
struct Heard {
    hello: Vec<u8>,
    is_greeted: bool,
    frames: FrameReader,
    last: Option<&'static str>,
    has_sent: bool,
}

impl Heard {
    fn take(&mut self, mut bytes: &[u8]) {
        while !self.is_greeted && !bytes.is_empty() {
            self.hello.push(bytes[0]);
            bytes = &bytes[1..];
            let head = self.hello.first_chunk::<HELLO_HEAD_BYTES>();
            let len = head.and_then(|head| hello_len(head).ok());
            self.is_greeted = len.is_some_and(|len| self.hello.len() == len);
        }
        while !bytes.is_empty() {
            let space = self.frames.space();
            let len = space.len().min(bytes.len());
            space[..len].copy_from_slice(&bytes[..len]);
            bytes = &bytes[len..];
            if len == 0 || self.frames.filled(len).is_err() {
                return;
            }
            if let Ok(Some(frame)) = self.frames.next_frame() {
                let request = Request::decode(frame.header.kind, frame.fields());
                self.last = request.ok().as_ref().map(name_of);
            }
        }
    }
}

/// The device's end of a connection.
struct DeviceSide {
    inner: Arc<dyn Connection>,
    tap: Tap,
    heard: Mutex<Heard>,
}

impl Connection for DeviceSide {
    fn peer(&self) -> String {
        self.inner.peer()
    }
    fn is_local(&self) -> bool {
        self.inner.is_local()
    }
    fn send(&self, parts: &[&[u8]], deadline: Instant) -> LinkResult<()> {
        let name = {
            let mut heard = lock(&self.heard);
            match std::mem::replace(&mut heard.has_sent, true) {
                false => Some("hello"),
                true => heard.last,
            }
        };
        let kind = parts[0].get(16..18).map(|kind| [kind[0], kind[1]]);
        let is_working = parts[0].len() == HEADER_BYTES
            && kind.is_some_and(|kind| u16::from_le_bytes(kind) == WORKING);
        let Some(name) = name.filter(|_| !is_working) else {
            return self.inner.send(parts, deadline);
        };
        let act = self.tap.at(Moment::BeforeAnswer, name);
        match act {
            Some(Act::Cut) => {
                self.inner.close();
                return Err(closed("send"));
            }
            Some(act) => self.tap.kill(act),
            None => {}
        }
        send(&*self.inner, parts, deadline, act, &self.tap)?;
        match self.tap.at(Moment::AfterAnswer, name) {
            Some(Act::Cut | Act::CutWithin) => self.inner.close(),
            Some(act) => self.tap.kill(act),
            None => {}
        }
        Ok(())
    }
    fn receive(&self, buf: &mut [u8], deadline: Instant) -> LinkResult<Received> {
        let received = self.inner.receive(buf, deadline)?;
        if let Received::Bytes(len) = received {
            lock(&self.heard).take(&buf[..len]);
        }
        Ok(received)
    }
    fn close(&self) {
        self.inner.close();
    }
}
