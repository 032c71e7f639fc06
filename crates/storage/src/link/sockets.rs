//! Sockets of the operating system: TCP, and Unix sockets.
//!
//! Invariants: descriptors are non-blocking. A call that would block waits in `poll` until its
//! deadline. The file of a Unix socket belongs to the socket's listener: only its owner may open
//! it, and it is removed when the listener ends. A file that another listener has put in its place
//! stays.
//!
//! Threading: as in the parent module. `close` shuts the socket down, which wakes calls in `poll`.

use std::io::{self, IoSlice, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::Mode;
use rustix::net::sockopt::{
    set_socket_keepalive, set_tcp_keepcnt, set_tcp_keepidle, set_tcp_keepintvl,
};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use super::descriptors;
use super::{
    Address, Connection, LinkError, LinkErrorKind, LinkResult, Listener, Network, Received,
};
use crate::runtime::{Instant, Runtime};

/// The network of the operating system.
///
/// A deadline does not apply to the lookup of a host's name, which takes as long as the system's
/// resolver takes.
#[derive(Clone, Debug)]
pub struct SocketNetwork {
    clock: Clock,
}

impl SocketNetwork {
    /// Creates the network. Deadlines refer to the clock of this runtime.
    ///
    /// # Panics
    /// On the simulated runtime, where a task must not wait in the operating system.
    pub fn new(runtime: &Runtime) -> SocketNetwork {
        assert!(
            !runtime.is_simulated(),
            "a simulated task would block the whole run"
        );
        let clock = Clock(runtime.clone());
        SocketNetwork { clock }
    }
}

/// The clock of deadlines.
#[derive(Clone, Debug)]
struct Clock(Runtime);

/// The pause between attempts to connect to a Unix socket whose queue is full.
const QUEUE_IS_FULL: Duration = Duration::from_millis(5);

/// The time that each address of a host gets to answer, unless less is left.
const ADDRESS_TIME_MIN: Duration = Duration::from_millis(250);

/// The operation of a failed send, for messages.
const SEND: &str = "send to";

/// After this much silence the system asks the peer for a sign of life. If three such requests, one
/// after each third of this time, are not answered, the connection is over.
const KEEPALIVE_AFTER: Duration = Duration::from_secs(60);

/// The number of connections that may wait to be accepted.
const BACKLOG: i32 = 128;

impl Clock {
    /// The time that is left until the deadline, or `None` if it has passed.
    fn left(&self, deadline: Instant) -> Option<Duration> {
        let left = deadline.since(self.0.now());
        (!left.is_zero()).then_some(left)
    }

    /// Waits until the descriptor is ready. Returns false if the deadline passes first.
    fn wait_ready(
        &self,
        fd: BorrowedFd<'_>,
        flags: PollFlags,
        deadline: Instant,
    ) -> io::Result<bool> {
        loop {
            let Some(left) = self.left(deadline) else {
                return Ok(false);
            };
            let timeout = Timespec {
                tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
                tv_nsec: left.subsec_nanos().into(),
            };
            let mut fds = [PollFd::from_borrowed_fd(fd, flags)];
            match poll(&mut fds, Some(&timeout)) {
                Ok(0) => {}
                // If the connection has failed or ended, the call that follows reports it.
                Ok(_) => return Ok(true),
                Err(rustix::io::Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }
}

enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Socket {
    /// Reads bytes. If a descriptor was passed along with them, it is put into `passed`.
    fn read(&self, buf: &mut [u8], passed: &Mutex<Option<OwnedFd>>) -> io::Result<usize> {
        let (len, descriptor) = match self {
            Socket::Tcp(socket) => return (&*socket).read(buf),
            Socket::Unix(socket) => descriptors::receive(socket, buf)?,
        };
        if descriptor.is_some() {
            *passed.lock().unwrap_or_else(PoisonError::into_inner) = descriptor;
        }
        Ok(len)
    }

    fn write(&self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Socket::Tcp(socket) => (&*socket).write_vectored(parts),
            Socket::Unix(socket) => (&*socket).write_vectored(parts),
        }
    }

    fn shut_down(&self) {
        // The peer may already have ended the connection.
        let _ = match self {
            Socket::Tcp(socket) => socket.shutdown(Shutdown::Both),
            Socket::Unix(socket) => socket.shutdown(Shutdown::Both),
        };
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Socket::Tcp(socket) => socket.as_fd(),
            Socket::Unix(socket) => socket.as_fd(),
        }
    }
}

struct SocketConnection {
    clock: Clock,
    socket: Socket,
    peer: String,
    is_local: bool,
    /// Set when the connection was closed here, or when a call on it failed.
    is_over: AtomicBool,
    /// The descriptor that the peer passed last.
    passed: Mutex<Option<OwnedFd>>,
}

impl SocketConnection {
    fn tcp(clock: &Clock, socket: TcpStream, peer: &SocketAddr) -> io::Result<SocketConnection> {
        socket.set_nonblocking(true)?;
        // Frames are sent as a whole, so nothing is gained by waiting for more bytes.
        socket.set_nodelay(true)?;
        // If the peer's machine loses power, this ends the connection even if nothing is sent on
        // it.
        set_socket_keepalive(&socket, true)?;
        set_tcp_keepidle(&socket, KEEPALIVE_AFTER)?;
        set_tcp_keepintvl(&socket, KEEPALIVE_AFTER / 3)?;
        set_tcp_keepcnt(&socket, 3)?;
        Ok(SocketConnection {
            clock: clock.clone(),
            socket: Socket::Tcp(socket),
            peer: peer.to_string(),
            is_local: peer.ip().to_canonical().is_loopback(),
            is_over: AtomicBool::new(false),
            passed: Mutex::new(None),
        })
    }

    fn unix(clock: &Clock, socket: UnixStream, peer: String) -> io::Result<SocketConnection> {
        socket.set_nonblocking(true)?;
        Ok(SocketConnection {
            clock: clock.clone(),
            socket: Socket::Unix(socket),
            peer,
            is_local: true,
            is_over: AtomicBool::new(false),
            passed: Mutex::new(None),
        })
    }

    fn check(&self, op: &'static str) -> LinkResult<()> {
        match self.is_over.load(Ordering::Acquire) {
            true => Err(LinkError::closed(op, &self.peer)),
            false => Ok(()),
        }
    }

    /// Waits until the socket is ready. Returns false if the deadline passes first.
    fn wait_ready(
        &self,
        op: &'static str,
        flags: PollFlags,
        deadline: Instant,
    ) -> LinkResult<bool> {
        let is_ready = self.clock.wait_ready(self.socket.as_fd(), flags, deadline);
        is_ready.map_err(|e| self.fail(LinkError::from_io(op, &*self.peer, &e)))
    }

    /// Sends all parts, and passes a descriptor along with the first byte.
    fn send_all(
        &self,
        parts: &[&[u8]],
        mut descriptor: Option<BorrowedFd<'_>>,
        deadline: Instant,
    ) -> LinkResult<()> {
        self.check(SEND)?;
        let mut slices: Vec<IoSlice<'_>> = parts
            .iter()
            .filter(|part| !part.is_empty())
            .map(|part| IoSlice::new(part))
            .collect();
        let mut rest = &mut slices[..];
        while !rest.is_empty() {
            let written = match descriptor {
                Some(descriptor) => descriptors::send(&self.socket, rest, descriptor),
                None => self.socket.write(rest),
            };
            match written {
                Ok(0) => return Err(self.fail(LinkError::closed(SEND, &self.peer))),
                Ok(n) => {
                    descriptor = None;
                    IoSlice::advance_slices(&mut rest, n);
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    if !self.wait_ready(SEND, PollFlags::OUT, deadline)? {
                        return Err(self.fail(LinkError::timed_out(SEND, &self.peer)));
                    }
                }
                Err(e) => return Err(self.fail(LinkError::from_io(SEND, &*self.peer, &e))),
            }
        }
        Ok(())
    }

    /// Ends the connection after a failed call (N4).
    fn fail(&self, error: LinkError) -> LinkError {
        self.close();
        error
    }
}

impl Connection for SocketConnection {
    fn peer(&self) -> String {
        self.peer.clone()
    }

    fn is_local(&self) -> bool {
        self.is_local
    }

    fn has_room(&self) -> bool {
        let mut fds = [PollFd::new(&self.socket, PollFlags::OUT)];
        // If the connection has failed, the send that follows returns the error.
        !matches!(poll(&mut fds, Some(&Timespec::default())), Ok(0))
    }

    fn passes_descriptors(&self) -> bool {
        descriptors::PASSES && matches!(self.socket, Socket::Unix(_))
    }

    fn send_with_descriptor(
        &self,
        parts: &[&[u8]],
        descriptor: BorrowedFd<'_>,
        deadline: Instant,
    ) -> LinkResult<()> {
        if !self.passes_descriptors() {
            let detail = "only Unix sockets pass descriptors";
            let kind = LinkErrorKind::Io;
            return Err(LinkError::new(kind, SEND, &*self.peer, detail));
        }
        self.send_all(parts, Some(descriptor), deadline)
    }

    fn take_descriptor(&self) -> Option<OwnedFd> {
        let mut passed = self.passed.lock().unwrap_or_else(PoisonError::into_inner);
        passed.take()
    }

    fn send(&self, parts: &[&[u8]], deadline: Instant) -> LinkResult<()> {
        self.send_all(parts, None, deadline)
    }

    fn receive(&self, buf: &mut [u8], deadline: Instant) -> LinkResult<Received> {
        const OP: &str = "receive from";
        self.check(OP)?;
        loop {
            match self.socket.read(buf, &self.passed) {
                Ok(0) => {
                    // A shutdown by this side looks like an end by the peer.
                    self.check(OP)?;
                    return Ok(Received::End);
                }
                Ok(n) => return Ok(Received::Bytes(n)),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    if !self.wait_ready(OP, PollFlags::IN, deadline)? {
                        return Ok(Received::Nothing);
                    }
                }
                Err(e) => return Err(self.fail(LinkError::from_io(OP, &*self.peer, &e))),
            }
        }
    }

    fn close(&self) {
        self.is_over.store(true, Ordering::Release);
        self.socket.shut_down();
    }
}

fn connect_tcp(
    clock: &Clock,
    host: &str,
    port: u16,
    deadline: Instant,
) -> io::Result<SocketConnection> {
    let addresses: Vec<SocketAddr> = (host, port).to_socket_addrs()?.collect();
    let connect = |address: &SocketAddr, limit| TcpStream::connect_timeout(address, limit);
    let (socket, address) = connect_any(clock, &addresses, deadline, connect)?;
    SocketConnection::tcp(clock, socket, address)
}

/// How long an address may take, if `left` is the time for all addresses that were not tried yet,
/// and `untried` is their number. It includes this address.
fn share_of(left: Duration, untried: u32) -> Duration {
    (left / untried).max(ADDRESS_TIME_MIN).min(left)
}

/// Tries the addresses of a host one after the other. An address that does not answer gets its
/// share of the time that is left, so that the next ones are tried, too.
fn connect_any<'a, T>(
    clock: &Clock,
    addresses: &'a [SocketAddr],
    deadline: Instant,
    connect: impl Fn(&SocketAddr, Duration) -> io::Result<T>,
) -> io::Result<(T, &'a SocketAddr)> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for (address, untried) in addresses.iter().zip((1..=addresses.len() as u32).rev()) {
        let Some(left) = clock.left(deadline) else {
            return Err(io::ErrorKind::TimedOut.into());
        };
        match connect(address, share_of(left, untried)) {
            Ok(socket) => return Ok((socket, address)),
            Err(e) => last = e,
        }
    }
    Err(last)
}

/// The socket address of a path. The path must be short.
fn unix_address(path: &Path) -> io::Result<SocketAddrUnix> {
    SocketAddrUnix::new(path).map_err(|errno| match errno {
        rustix::io::Errno::NAMETOOLONG => {
            let detail = "the path of a Unix socket has at most 107 bytes, and this one is longer";
            io::Error::new(io::ErrorKind::InvalidInput, detail)
        }
        errno => errno.into(),
    })
}

fn connect_unix(clock: &Clock, path: &Path, deadline: Instant) -> io::Result<SocketConnection> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    let address = unix_address(path)?;
    loop {
        match rustix::net::connect(&socket, &address) {
            Ok(()) => break,
            Err(rustix::io::Errno::INTR) => {}
            // The listener's queue is full.
            Err(rustix::io::Errno::AGAIN) if clock.left(deadline).is_some() => {
                std::thread::sleep(QUEUE_IS_FULL);
            }
            Err(rustix::io::Errno::AGAIN) => return Err(io::ErrorKind::TimedOut.into()),
            Err(errno) => return Err(errno.into()),
        }
    }
    SocketConnection::unix(clock, socket.into(), format!("unix:{}", path.display()))
}

fn other_network(op: &'static str, address: &Address) -> LinkError {
    let detail = "this network has addresses HOST:PORT and unix:PATH only";
    LinkError::new(
        LinkErrorKind::InvalidAddress,
        op,
        address.to_string(),
        detail,
    )
}

impl Network for SocketNetwork {
    fn connect(&self, address: &Address, deadline: Instant) -> LinkResult<Arc<dyn Connection>> {
        const OP: &str = "connect to";
        let connected = match address {
            Address::Tcp { host, port } => connect_tcp(&self.clock, host, *port, deadline),
            Address::Unix(path) => connect_unix(&self.clock, path, deadline),
            Address::Memory(_) => return Err(other_network(OP, address)),
        };
        match connected {
            Ok(connection) => Ok(Arc::new(connection)),
            Err(e) => Err(LinkError::from_io(OP, address.to_string(), &e)),
        }
    }

    fn listen(&self, address: &Address) -> LinkResult<Arc<dyn Listener>> {
        const OP: &str = "listen at";
        let bound = match address {
            Address::Tcp { host, port } => listen_tcp(&self.clock, host, *port),
            Address::Unix(path) => listen_unix(&self.clock, path),
            Address::Memory(_) => return Err(other_network(OP, address)),
        };
        match bound {
            Ok(listener) => Ok(Arc::new(listener)),
            Err(e) => Err(LinkError::from_io(OP, address.to_string(), &e)),
        }
    }
}

enum Acceptor {
    Tcp(TcpListener),
    Unix(UnixListener, SocketFile),
}

impl AsFd for Acceptor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Acceptor::Tcp(listener) => listener.as_fd(),
            Acceptor::Unix(listener, _) => listener.as_fd(),
        }
    }
}

struct SocketListener {
    clock: Clock,
    acceptor: Acceptor,
    address: Address,
    is_over: AtomicBool,
}

fn listen_tcp(clock: &Clock, host: &str, port: u16) -> io::Result<SocketListener> {
    let listener = TcpListener::bind((host, port))?;
    listener.set_nonblocking(true)?;
    let bound = listener.local_addr()?;
    Ok(SocketListener {
        clock: clock.clone(),
        address: Address::Tcp {
            host: match host.parse::<std::net::IpAddr>() {
                Ok(_) => bound.ip().to_string(),
                Err(_) => host.to_string(),
            },
            port: bound.port(),
        },
        acceptor: Acceptor::Tcp(listener),
        is_over: AtomicBool::new(false),
    })
}

/// The file of a Unix socket.
struct SocketFile {
    path: PathBuf,
    /// Its device and inode. No other file can have the same ones while a process has the socket.
    id: (u64, u64),
    /// When it was last changed. It tells a file from a later one with the same inode.
    changed: (i64, i64),
}

impl SocketFile {
    fn of(path: &Path) -> io::Result<SocketFile> {
        let found = std::fs::symlink_metadata(path)?;
        if !found.file_type().is_socket() {
            let detail = "there is a file at this path that is no socket";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, detail));
        }
        Ok(SocketFile {
            path: path.to_path_buf(),
            id: (found.dev(), found.ino()),
            changed: (found.ctime(), found.ctime_nsec()),
        })
    }

    /// Removes the file of a listener that ends, unless another file is at its path by now.
    fn remove(&self) -> io::Result<()> {
        match SocketFile::of(&self.path)?.id == self.id {
            true => std::fs::remove_file(&self.path),
            false => Ok(()),
        }
    }

    /// Removes the file of a socket that no process has open, unless another file is at its path by
    /// now.
    fn remove_stale(&self) -> io::Result<()> {
        match SocketFile::of(&self.path)?.changed == self.changed {
            true => self.remove(),
            false => Ok(()),
        }
    }
}

/// Removes the file of a socket if nobody listens on that socket any more. Any other file stays.
fn remove_stale(clock: &Clock, path: &Path) -> io::Result<()> {
    let file = SocketFile::of(path)?;
    // With this deadline the call does not wait for a listener whose queue is full.
    if connect_unix(clock, path, clock.0.now()).is_err_and(is_refused) {
        // Another process may have replaced the file in the meantime, and listen there.
        return file.remove_stale();
    }
    Ok(())
}

fn is_refused(error: io::Error) -> bool {
    error.kind() == io::ErrorKind::ConnectionRefused
}

fn listen_unix(clock: &Clock, path: &Path) -> io::Result<SocketListener> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    // The mode of the socket becomes the mode of its file, so nobody else can connect, not even
    // between these calls.
    rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    let address = unix_address(path)?;
    match rustix::net::bind(&socket, &address) {
        Err(rustix::io::Errno::ADDRINUSE) => {
            remove_stale(clock, path)?;
            rustix::net::bind(&socket, &address)?;
        }
        bound => bound?,
    }
    let file = SocketFile::of(path)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(SocketListener {
        clock: clock.clone(),
        acceptor: Acceptor::Unix(socket.into(), file),
        address: Address::Unix(path.to_path_buf()),
        is_over: AtomicBool::new(false),
    })
}

impl SocketListener {
    fn accept_one(&self) -> io::Result<SocketConnection> {
        match &self.acceptor {
            Acceptor::Tcp(listener) => {
                let (socket, peer) = listener.accept()?;
                SocketConnection::tcp(&self.clock, socket, &peer)
            }
            Acceptor::Unix(listener, _) => {
                let (socket, _) = listener.accept()?;
                let peer = match rustix::net::sockopt::socket_peercred(&socket) {
                    Ok(who) => format!("pid {}", who.pid.as_raw_nonzero()),
                    Err(_) => "a process of this machine".to_string(),
                };
                SocketConnection::unix(&self.clock, socket, peer)
            }
        }
    }
}

impl Listener for SocketListener {
    fn address(&self) -> Address {
        self.address.clone()
    }

    fn accept(&self, deadline: Instant) -> LinkResult<Option<Arc<dyn Connection>>> {
        const OP: &str = "accept at";
        let failed = |e: &io::Error| LinkError::from_io(OP, self.address.to_string(), e);
        loop {
            if self.is_over.load(Ordering::Acquire) {
                return Err(LinkError::closed(OP, &self.address.to_string()));
            }
            match self.accept_one() {
                Ok(connection) => return Ok(Some(Arc::new(connection))),
                // If a peer connected and went away, this is not a failure of the listener.
                Err(e)
                    if matches!(
                        e.kind(),
                        io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted
                    ) => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    let ready =
                        self.clock
                            .wait_ready(self.acceptor.as_fd(), PollFlags::IN, deadline);
                    if !ready.map_err(|e| failed(&e))? {
                        return Ok(None);
                    }
                }
                Err(e) => return Err(failed(&e)),
            }
        }
    }

    fn close(&self) {
        if self.is_over.swap(true, Ordering::AcqRel) {
            return;
        }
        // This wakes a task that waits in `accept`. If the system refuses it, the task wakes at its
        // deadline.
        let _ = rustix::net::shutdown(&self.acceptor, rustix::net::Shutdown::Both);
        if let Acceptor::Unix(_, file) = &self.acceptor {
            let _ = file.remove();
        }
    }
}

impl Drop for SocketListener {
    fn drop(&mut self) {
        self.close();
    }
}

#[cfg(test)]
mod tests;
