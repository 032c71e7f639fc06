//! Passing descriptors of open files over Unix sockets, on systems that close a received descriptor
//! when another program is executed.
//!
//! Invariants: a call receives at most one descriptor. The kernel closes descriptors that do not
//! fit into the buffer. If several fit, all but the last one are closed here.
//!
//! Threading: plain system calls.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

/// Whether this system passes descriptors.
pub(super) const PASSES: bool = cfg!(any(target_os = "linux", target_os = "android"));

/// Receives bytes, and the descriptor that was passed along with them.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(super) fn receive(socket: &UnixStream, buf: &mut [u8]) -> io::Result<(usize, Option<OwnedFd>)> {
    use std::io::IoSliceMut;
    use std::mem::MaybeUninit;

    use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(buf)];
    let received = recvmsg(socket, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let mut passed = None;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(descriptors) = message {
            descriptors.for_each(|descriptor| passed = Some(descriptor));
        }
    }
    Ok((received.bytes, passed))
}

/// Sends a part of the bytes, and passes a descriptor along with them.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(super) fn send(
    socket: impl AsFd,
    parts: &[IoSlice<'_>],
    descriptor: BorrowedFd<'_>,
) -> io::Result<usize> {
    use std::mem::MaybeUninit;

    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let descriptors = [descriptor];
    if !control.push(SendAncillaryMessage::ScmRights(&descriptors)) {
        return Err(io::Error::other("there is no room for the descriptor"));
    }
    // Without this flag, sending on a connection that is over would send a signal to this process.
    Ok(sendmsg(socket, parts, &mut control, SendFlags::NOSIGNAL)?)
}

/// Receives bytes. Descriptors are not passed on this system.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(super) fn receive(
    mut socket: &UnixStream,
    buf: &mut [u8],
) -> io::Result<(usize, Option<OwnedFd>)> {
    Ok((io::Read::read(&mut socket, buf)?, None))
}

/// Descriptors are not passed on this system.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(super) fn send(_: impl AsFd, _: &[IoSlice<'_>], _: BorrowedFd<'_>) -> io::Result<usize> {
    Err(io::ErrorKind::Unsupported.into())
}

#[cfg(all(test, any(target_os = "linux", target_os = "android")))]
mod tests {
    use std::fs::File;
    use std::io::{Read, Write};
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use crate::link::{Address, Connection, Network, Received, SocketNetwork};
    use crate::runtime::{Instant, Runtime};

    struct Pair {
        rt: Runtime,
        dir: tempfile::TempDir,
        a: Arc<dyn Connection>,
        b: Arc<dyn Connection>,
    }

    impl Pair {
        fn at(address: impl FnOnce(&std::path::Path) -> Address) -> Pair {
            let rt = Runtime::threads();
            let network = SocketNetwork::new(&rt);
            let dir = tempfile::tempdir().unwrap();
            let listener = network.listen(&address(dir.path())).unwrap();
            let until = rt.now() + Duration::from_secs(10);
            let a = network.connect(&listener.address(), until).unwrap();
            let b = listener.accept(until).unwrap().unwrap();
            Pair { rt, dir, a, b }
        }

        fn unix() -> Pair {
            Pair::at(|dir| Address::Unix(dir.join("socket")))
        }

        fn until(&self) -> Instant {
            self.rt.now() + Duration::from_secs(10)
        }

        fn receive(&self, len: usize) -> Vec<u8> {
            let (mut buf, mut at) = (vec![0; len], 0);
            while at < len {
                match self.b.receive(&mut buf[at..], self.until()).unwrap() {
                    Received::Bytes(n) => at += n,
                    other => panic!("{other:?}"),
                }
            }
            buf
        }

        fn file(&self, text: &str) -> File {
            let path = self.dir.path().join(text);
            std::fs::write(&path, text).unwrap();
            File::open(path).unwrap()
        }

        fn pass(&self, file: &File, bytes: &[u8]) {
            let parts = [&bytes[..1], &bytes[1..]];
            let sent = self
                .a
                .send_with_descriptor(&parts, file.as_fd(), self.until());
            sent.unwrap();
        }
    }

    fn text_of(passed: Option<OwnedFd>) -> Option<String> {
        let mut file = File::from(passed?);
        let mut text = String::new();
        file.read_to_string(&mut text).unwrap();
        assert!(file.write(b"x").is_err(), "it can be read only");
        Some(text)
    }

    #[test]
    fn a_descriptor_comes_with_the_first_byte_that_it_was_sent_with() {
        let pair = Pair::unix();
        assert!(pair.a.passes_descriptors() && pair.b.passes_descriptors());
        pair.a.send(&[b"before"], pair.until()).unwrap();
        assert_eq!(pair.receive(6), b"before");
        assert!(pair.b.take_descriptor().is_none());
        // This is more than the socket takes at once, so the rest is sent without the descriptor.
        let large = vec![7; 1 << 20];
        let file = pair.file("some text");
        std::thread::scope(|scope| {
            scope.spawn(|| pair.pass(&file, &large));
            assert_eq!(pair.receive(1), [7]);
            assert_eq!(
                text_of(pair.b.take_descriptor()).as_deref(),
                Some("some text")
            );
            assert!(pair.receive((1 << 20) - 1) == large[1..]);
        });
        assert!(pair.b.take_descriptor().is_none());
        pair.a.send(&[b"after"], pair.until()).unwrap();
        assert_eq!(pair.receive(5), b"after");
        assert!(pair.b.take_descriptor().is_none());
    }

    #[test]
    fn of_many_descriptors_the_last_is_kept() {
        let pair = Pair::unix();
        let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
        let (first, last) = (pair.file("first"), pair.file("last"));
        let before = open();
        for _ in 0..100 {
            pair.pass(&first, b"xy");
            assert_eq!(pair.receive(2), b"xy");
        }
        pair.pass(&last, b"z!");
        assert_eq!(pair.receive(2), b"z!");
        // Other tests run in this process too.
        assert!(open() < before + 90, "{} of {before}", open());
        assert_eq!(text_of(pair.b.take_descriptor()).as_deref(), Some("last"));
    }

    #[test]
    fn tcp_passes_none() {
        let pair = Pair::at(|_| "127.0.0.1:0".parse().unwrap());
        assert!(!pair.a.passes_descriptors());
        let file = pair.file("text");
        let refused = pair
            .a
            .send_with_descriptor(&[b"x"], file.as_fd(), pair.until());
        assert!(
            refused
                .unwrap_err()
                .to_string()
                .contains("only Unix sockets")
        );
        // The connection can still be used.
        pair.a.send(&[b"more"], pair.until()).unwrap();
        assert_eq!(pair.receive(4), b"more");
        assert!(pair.b.take_descriptor().is_none());
    }
}
